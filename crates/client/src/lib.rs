//! kera-client
