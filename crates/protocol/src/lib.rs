//! kera-protocol
