//! A node: configuration, the roles put together, HTTP, metrics and logs (thesis 6.3). What `kera serve` runs.
//!
//! Called by the command line only. It owns every thread and every file of the process; the roles it puts together
//! own none.

pub mod config;
#[cfg(test)]
mod docs;
pub mod suggest;
pub mod units;
