//! The coordinator: which streams there are, with which options, and who may call itself which producer.
//!
//! A node's shell opens one [`Coordinator`] on the data directory, tells the broker the streams it finds, and hands it
//! the requests of clients ([`Coordinator::handle`]). Any thread may call it. A command blocks until it is on the disk,
//! synced: commands are rare, and nothing per record or per chunk ever comes here. Reads never wait for the disk.
//!
//! Every command is checked against the state ([`catalog`]), becomes an entry, is journalled ([`journal`]), applied and
//! then told to a [`StreamObserver`], in this order and one at a time. So whatever anybody has seen is on the disk,
//! and observers learn of changes in the order in which a restart repeats them. The entries are what a replicated log
//! of several coordinators would carry.

pub mod balancer;
pub mod catalog;
pub mod cluster;
mod coordinator;
pub mod detector;
mod error;
pub mod journal;
pub mod loads;
mod requests;

pub use coordinator::{ClusterLog, Coordinator, CoordinatorConfig, LiveNode, StreamEvent, StreamObserver};
pub use error::{CoordinatorError, OpenError};
