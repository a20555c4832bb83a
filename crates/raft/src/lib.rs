//! The coordinators of a cluster as one: what they agree on is a log (Raft, by `openraft`), and every node of the cluster has the
//! state that it makes. Coordinators vote, all others are told.
//!
//! [`Group`] is one node's part of it. It runs on a `tokio` runtime that it is started on; threads of its own write the log
//! ([`mod@file`]) and tell observers. Messages come in through [`Group::handle`] and go out through a [`Transport`]; so tests
//! run whole groups in one process, over a network that loses, delays and parts them. Nothing per chunk or per segment ever
//! comes here, and what a node knows it answers from its own memory.

mod beats;
mod bygone;
mod commands;
mod driver;
pub mod file;
mod group;
mod known;
mod machine;
mod network;
mod on_disk;
mod room;
mod slow;
mod snapshot;
mod store;
mod survivor;
mod types;
mod votes;

pub use commands::is_refused_again;
pub use driver::Backups;
pub use group::{Group, GroupConfig, Timing};
pub use kera_coordinator::cluster::Change;
pub use known::{KnownMember, Stranger};
pub use machine::Observer;
pub use network::{NOT_SENT, Pending, Transport, ask, in_versions};
pub use on_disk::{Ballot, OnDisk};
pub use survivor::{SKIPPED, Survivor};
