//! The `kera` binary as people and clients meet it: one node, and clusters of real processes.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod adaptive_replication;
mod application_cluster;
mod asynchronous_replication;
mod balance;
mod bench;
mod cluster;
mod cluster_up;
mod cluster_up_terminal;
mod common;
mod compacted_cluster;
mod consume;
mod copies;
mod experiments;
mod kafka_cluster;
mod kafka_cluster_members;
mod kafka_cluster_settings;
mod kafka_cluster_transactions;
mod kafka_cluster_transactions_recovery;
mod kafka_memory;
mod kafka_moves;
mod lacking_nodes;
mod lost_logs;
mod lost_majority;
mod lost_streamlets;
mod mending;
mod moves;
mod next_incarnation;
mod node;
mod other_builds;
mod records;
mod returning;
mod rolling_upgrade;
mod terminal;
mod two_doors;
mod verify;
