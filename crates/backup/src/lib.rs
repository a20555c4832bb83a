//! The role *backup*: copies of other brokers' virtual logs (thesis 6.3 to 6.6; `docs/replication.md` has the protocol).
//!
//! | to | call | on |
//! | --- | --- | --- |
//! | start | [`Backup::open`]: reads what the disks have | the starting thread |
//! | store a block | [`Backup::store`], never blocks | I/O threads |
//! | write what was taken | [`Backup::run`], or [`Backup::run_once`] for a simulator | one writer thread per disk |
//! | fence, and what a recovery asks | [`Backup::fence`], [`Backup::lane_states`], [`Backup::read_blocks`] | a thread that may wait for disks |
//! | serve all of it over connections | [`BackupSession`], and [`BackupService::run`] on [threads](BackupService::threads) that may wait | I/O threads |
//! | look whether what is there still reads back | [`BackupScrubber`] | a thread that may wait for disks |
//! | sync what is full | [`Backup::run_syncs`]; writers do it themselves where nobody else does | one more thread per disk |
//! | stop | [`Backup::stop`], then join the threads | the stopping thread |
//!
//! What it must never do: answer that a block is stored before it survives what was asked for; take a block behind a
//! hole; take a block of a node that it has fenced, also after a restart; answer a fence before it is on disk; give out a
//! block whose checksum does not match.
//!
//! # Memory that survives a kill
//!
//! A block counts as stored with durability `process` when it was written to its file without a sync: what a process has
//! written outlives it in the page cache. It is the file that the block must reach anyway, and the restart that reads it is the
//! one after a loss of power. Shared memory of its own would be a second copy of every byte and a second way to restart.

mod answers;
mod backup;
mod disks;
mod error;
mod files;
mod index;
mod names;
mod open;
mod positions;
mod queue;
mod replica;
mod scan;
mod scrub;
mod service;
mod session;
mod spare;
mod stats;
mod syncing;
mod way;

pub use backup::{Backup, BackupConfig, Ran, StoreDone, Taken};
pub use error::{BackupError, OpenError};
pub use open::OpenReport;
pub use scrub::BackupScrubber;
pub use service::{BackupService, ServiceThread};
pub use session::BackupSession;
pub use stats::BackupStats;
