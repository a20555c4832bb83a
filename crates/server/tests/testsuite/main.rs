//! A whole node in this process, over its doors.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod common;
mod kafka;
mod kafka_compaction;
mod kafka_oracle;
mod kafka_trouble;
mod node;
