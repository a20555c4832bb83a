//! kera-bench
