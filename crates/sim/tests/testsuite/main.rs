//! The simulators and the models: they repeat, they find what is planted, and they find nothing else.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod cluster;
mod common;
mod ends;
mod nodes;
mod ownership;
mod replication;
