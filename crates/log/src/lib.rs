//! kera-log
