//! kera-server
