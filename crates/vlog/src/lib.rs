//! kera-vlog
