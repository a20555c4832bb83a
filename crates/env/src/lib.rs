//! kera-env
