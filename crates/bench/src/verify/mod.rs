//! Doubting a server: records that describe themselves go in, what was acknowledged is written down, and later
//! everything that comes out is held against it. Nothing may be lost, nothing may be there twice, order is kept.

pub mod acklog;
mod again;
pub mod checker;
mod consume;
pub mod intervals;
mod produce;
pub mod record;

pub(crate) use again::{nothing_again, settle};
pub use checker::{Checker, Finding, Verdict};
pub(crate) use consume::consume_until;
pub use consume::{ConsumeConfig, collect, consume, consume_with};
pub(crate) use produce::{CHUNK_BYTES_MIN, THREADS_MAX, check_record_bytes};
pub use produce::{ProduceConfig, ProduceProgress, ProduceReport, produce};

/// Waits until a flag is set, for at most a few hundredths of a second longer.
async fn until_set(flag: &std::sync::atomic::AtomicBool) {
    while !flag.load(std::sync::atomic::Ordering::Relaxed) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
