//! Measuring and doubting KerA: a load generator, a yardstick, a verifier, and a tormentor of servers.
//!
//! What is here runs in the client's process, behind `kera bench` and `kera verify`, and reaches a server only through
//! `kera-client`, as users do. It reads clocks, starts threads and, where it is asked to, starts and kills servers; no
//! server ever depends on it.

#![cfg_attr(
    not(test),
    warn(
        clippy::print_stdout,
        clippy::print_stderr,
        reason = "they panic when nobody reads, and leave what was started"
    )
)]

pub mod chaos;
pub mod clock;
mod error;
pub mod experiment;
pub mod keys;
pub mod latency;
pub mod limit;
pub mod load;
pub mod ports;
pub mod process;
pub mod server;
pub mod source;
pub mod verify;

pub use error::BenchError;
pub use keys::KeyDistribution;
pub use latency::{Latencies, LatencySummary};

/// A runtime for the calling thread alone.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| BenchError::io("starting an async runtime", e))
}
