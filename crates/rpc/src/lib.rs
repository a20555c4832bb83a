//! kera-rpc
