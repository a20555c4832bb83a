//! The consuming side. Each consumer is a thread with a current-thread runtime, its own client and connections, and
//! looks at every record it is given, in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kera_client::{Batch, Client, ClientError, CommitMode, Consumer};
use tokio::task::LocalSet;

use super::config::LoadConfig;
use super::meter::Meter;
use crate::BenchError;
use crate::clock::now_ns;
use crate::experiment::Stop;
use crate::source::stamp_of;

/// How often a consumer without data looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// What the consumers of a load share.
pub(super) struct Shared {
    pub(super) config: LoadConfig,
    pub(super) address: String,
    pub(super) streams: Vec<String>,
    pub(super) meter: Meter,
    /// All consumers end when this many records have come or are gone for good; `u64::MAX`: when told.
    pub(super) wanted: AtomicU64,
    /// Whether each consumer ends where the stream ended when it started.
    pub(super) until_end: bool,
    /// Told to end.
    pub(super) stop: AtomicBool,
    /// A consumer has failed for good: what it was to read comes to nobody.
    pub(super) has_failed: AtomicBool,
    /// Asked by somebody who does not want to wait for what is under way.
    pub(super) asked: Stop,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Relaxed) || self.meter.settled() >= self.wanted.load(Relaxed)
    }
}

/// One consumer thread.
pub(super) fn run(shared: &Arc<Shared>, number: u32, start: &super::StartLine) -> Result<(), BenchError> {
    let runtime = crate::runtime()?;
    runtime.block_on(LocalSet::new().run_until(async {
        let built = super::built(&shared.asked, build(shared, number)).await;
        start.ready_and_wait(built.is_ok());
        let readers: Vec<_> =
            built?.into_iter().map(|consumer| tokio::task::spawn_local(read(shared.clone(), consumer))).collect();
        let work = async {
            for reader in readers {
                reader.await.map_err(|_| BenchError::Thread { what: "a consumer" })?;
            }
            Ok(())
        };
        super::unless_asked(&shared.asked, work).await.unwrap_or(Err(BenchError::Interrupted))
    }))
}

async fn build(shared: &Arc<Shared>, number: u32) -> Result<Vec<Consumer>, BenchError> {
    let config = &shared.config;
    let failed = |error: kera_client::ClientError| BenchError::server("starting a consumer", error);
    let client = Client::builder(&shared.address).client_name("kera-bench").connect().await.map_err(failed)?;
    let mut consumers = Vec::new();
    for (i, stream) in shared.streams.iter().enumerate() {
        if shared.streams.len() > 1 && i as u32 % config.consumers != number {
            continue;
        }
        let mut builder = client
            .consumer(stream)
            .credit_bytes(config.credit_bytes)
            .long_poll(config.long_poll)
            .verify(config.verify_checksums)
            .until_end(shared.until_end);
        if let Some(application) = &config.application {
            builder = builder.application(application).commit(CommitMode::Interval(Duration::from_secs(1)));
        } else if shared.streams.len() == 1 {
            let (streamlets, lanes) = part(config, number);
            builder = builder.streamlets(streamlets).lanes(lanes);
        }
        consumers.push(super::once_known(async || builder.clone().build().await).await.map_err(failed)?);
    }
    Ok(consumers)
}

/// The streamlets and lanes of one consumer among those that share a stream without an application.
fn part(config: &LoadConfig, number: u32) -> (Vec<u32>, Vec<u32>) {
    let (streamlets, lanes, consumers) = (config.streamlets, config.lanes, config.consumers.max(1));
    if consumers <= streamlets {
        return ((0..streamlets).filter(|s| s % consumers == number).collect(), (0..lanes).collect());
    }
    // More consumers than streamlets: those of one streamlet share its lanes. Streamlet s has those whose number leaves
    // s as the rest.
    let streamlet = number % streamlets;
    let sharing = consumers / streamlets + u32::from(streamlet < consumers % streamlets);
    (vec![streamlet], (0..lanes).filter(|lane| lane % sharing == number / streamlets).collect())
}

async fn read(shared: Arc<Shared>, mut consumer: Consumer) {
    let mut removed = 0;
    while !shared.is_over() {
        // Dropping the future that waits for a batch loses nothing.
        match tokio::time::timeout(LOOK, consumer.next_batch()).await {
            Err(_) => {}
            Ok(Ok(None)) => break,
            Ok(Ok(Some(batch))) => count(&shared.meter, &batch),
            Ok(Err(error)) => {
                shared.meter.fail(1, || error.to_string());
                if !matches!(error, ClientError::Gap { .. }) {
                    shared.has_failed.store(true, Relaxed);
                    break;
                }
            }
        }
        // Records that are gone count as done with: waiting for them would be waiting for ever.
        let all_removed = consumer.stats().removed_records;
        shared.meter.pass_over(all_removed - removed);
        removed = all_removed;
    }
    if let Err(error) = consumer.close().await {
        shared.meter.fail(1, || error.to_string());
    }
}

#[inline]
fn count(meter: &Meter, batch: &Batch) {
    let now = now_ns();
    let mut records = 0;
    let mut latencies = meter.latencies();
    for record in batch.records() {
        records += 1;
        let stamp = stamp_of(record.view.value().unwrap_or_default());
        if stamp != 0
            && let Some(latencies) = &mut latencies
        {
            latencies.record(stamp, now);
        }
    }
    drop(latencies);
    meter.add(records, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_retention_removed_is_not_waited_for() {
        let (config, address) = (LoadConfig::default(), String::new());
        let (wanted, stop, has_failed) = (AtomicU64::new(100), AtomicBool::new(false), AtomicBool::new(false));
        let (meter, streams) = (Meter::new(Some(0), None), vec![]);
        let asked = Stop::new();
        let shared = Shared { config, address, streams, meter, wanted, until_end: false, stop, has_failed, asked };
        shared.meter.add(60, 1);
        assert!(!shared.is_over());
        shared.meter.pass_over(39);
        assert!(!shared.is_over(), "one is still to come");
        shared.meter.pass_over(1);
        assert!(shared.is_over());
        assert_eq!((shared.meter.records(), shared.meter.removed()), (60, 40), "nobody received those");
    }

    #[test]
    fn every_lane_has_exactly_one_consumer() {
        for (streamlets, lanes, consumers) in [(1, 1, 1), (16, 1, 3), (3, 4, 3), (3, 4, 5), (1, 7, 4), (4, 4, 16)] {
            let config = LoadConfig { streamlets, lanes, consumers, ..LoadConfig::default() };
            let mut seen = std::collections::BTreeMap::new();
            for number in 0..consumers {
                let (streamlets, lanes) = part(&config, number);
                for lane in streamlets.iter().flat_map(|s| lanes.iter().map(move |l| (*s, *l))) {
                    *seen.entry(lane).or_insert(0) += 1;
                }
            }
            assert_eq!(seen.len() as u32, streamlets * lanes, "{config:?}");
            assert!(seen.values().all(|&count| count == 1), "{config:?}");
        }
    }
}
