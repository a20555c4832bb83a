//! Brokers at their sessions: over a real log, and with real backups on simulated disks.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod applications;
mod common;
mod compacted_copies;
mod kept;
mod loads;
mod mending;
mod moves;
mod random;
mod reads;
mod recovery;
mod standing;
mod threads;
mod transactions;
mod writes;
