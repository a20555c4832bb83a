//! A node: configuration, the roles put together, HTTP, metrics and logs (thesis 6.3). What `kera serve` runs.
//!
//! Called by the command line only. It owns every thread and every file of the process; the roles it puts together
//! own none.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "they panic when nobody reads; log lines do not")]

mod again;
pub mod api;
mod cluster;
pub mod config;
#[cfg(test)]
mod docs;
pub mod fatal;
pub mod http;
pub mod identity;
pub mod logs;
mod machine;
mod marks;
pub mod metrics;
mod node;
pub mod readiness;
mod run;
pub mod session;
mod signals;
pub mod suggest;
pub mod survivor;
pub mod units;

/// Where a node keeps its part of the coordinators' log, below its data directory.
pub use kera_raft::file::DIR as COORDINATORS_DIR;
pub use node::{Node, forget_arena};
pub use run::serve;
pub use signals::Wishes;

/// The arena's size that `auto` stands for with this configuration, on this machine, now.
pub fn arena_bytes_auto(config: &config::Config) -> u64 {
    machine::arena_bytes_auto(&node::arena_dir(config))
}
