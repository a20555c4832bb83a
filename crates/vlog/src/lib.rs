//! Virtual logs: the log of references to chunks of many lanes that makes acknowledged bytes durable (thesis 7.3).
//!
//! Partitioning and durability are apart: chunks lie in the segments of their lanes, and a reference to each goes to a
//! virtual log, under the lane's lock, in the order in which acknowledgements will leave. On one node the virtual log
//! is a group-commit log on disk: everything that has arrived while the last block was written goes into the next one,
//! and one sync serves all streams. A cluster sends the same log to backups.
//!
//! | to | call | on |
//! | --- | --- | --- |
//! | start | [`VirtualLog::open`] or, of several on a disk, [`VirtualLog::open_in`], hand it to `Log::set_sinks`, then [`VirtualLog::replay`] | the starting thread |
//! | append | [`DurabilitySink::appended`](kera_log::DurabilitySink::appended), never blocks | I/O threads, under a lane's lock |
//! | make durable | [`VirtualLog::run`], or [`VirtualLog::run_once`] for a simulator | the writer thread, one per virtual log |
//! | give space back | [`DurabilitySink::segment_safe`](kera_log::DurabilitySink::segment_safe) | any thread |
//! | stop | [`VirtualLog::stop`], then join the writer | the stopping thread |
//!
//! [`ReplicatedLog`] is that other sink: the same backlog, whose blocks go to backups of a view that the coordinator has agreed
//! to, through [`BackupLink`] and [`Views`]. Which of the two serves a stream is its `replication`.
//!
//! What it must never do: move [`durable_through`](kera_log::DurabilitySink::durable_through) past a chunk that is not
//! synced; trust a file whose sync failed; remove a file while a segment with chunks in it is neither stored nor gone.

mod backlog;
mod files;
mod replay;
mod replicated;
mod stats;
mod through;
mod virtual_log;
mod writer;

pub use replay::{Damage, ReplayError, ReplayReport};
pub use replicated::{
    Answer, BackupId, BackupLink, Block, Held, ReplicatedConfig, ReplicatedLog, ReplicatedStats, Shares, Turn, View,
    ViewAnswer, Views,
};
pub use stats::VirtualLogStats;
pub use virtual_log::{OpenError, Ran, SegmentCloser, VirtualLog, VirtualLogConfig};
