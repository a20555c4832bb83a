//! Virtual logs over a real log, with disks that fail, and with backups.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod commit;
mod crash;
mod example;
mod replicated;
mod support;
mod through;
