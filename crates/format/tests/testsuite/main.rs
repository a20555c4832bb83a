//! Bytes on disks: golden files, and what a decoder refuses.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod golden;
mod golden_applications;
mod golden_begins;
mod golden_cluster;
mod golden_container;
mod golden_files;
mod golden_kafka_floors;
mod golden_kafka_groups;
mod golden_kafka_transactions;
mod golden_piece;
mod golden_replica;
mod record_and_chunk;
mod segment_and_options;
mod support;
