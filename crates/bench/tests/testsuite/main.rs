//! What measures: its command line and the scripts for clusters.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod cluster_recovery;
mod cluster_scripts;
mod common;
mod kera_bench;
