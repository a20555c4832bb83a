//! kera-coordinator
