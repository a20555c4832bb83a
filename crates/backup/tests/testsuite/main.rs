//! Backups at their sessions, over disks that fail, are full or stand still.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod backup;
mod common;
mod disks;
