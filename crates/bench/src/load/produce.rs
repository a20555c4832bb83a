//! The producing side. Each producer is a thread with a current-thread runtime, its own client and connections.
//!
//! As fast as it goes: records are handed over a stretch of bytes at a time, and in between the runtime gets a turn, so
//! that chunks leave while others are filled. Latency is the client's own: from
//! the first record of a chunk to its acknowledgement.
//!
//! At a rate: every record has a time at which it is due, and counts from then, however late it could be handed over.
//! A server that stalls therefore shows its stall in all records that were due meanwhile (no coordinated omission).
//! The streamlet is chosen here, because reports come in order for each streamlet, and so tell which record they mean.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use kera_client::{Client, DeliveryReport, Producer, Routing, StreamletId};
use parking_lot::Mutex;

use super::config::LoadConfig;
use super::meter::Meter;
use crate::BenchError;
use crate::clock::{Alarm, now_ns};
use crate::experiment::Stop;
use crate::keys::KeyDistribution;
use crate::source::RecordSource;

/// Stamps per second that are worth taking at a rate: more make no better percentiles.
const STAMPS_PER_S: f64 = 200_000.0;

/// What the producers of a load share.
pub(super) struct Shared {
    pub(super) config: LoadConfig,
    pub(super) address: String,
    pub(super) streams: Vec<String>,
    pub(super) meter: Meter,
    /// Records that may still be sent; unlimited if there is no limit.
    pub(super) left: AtomicU64,
    /// Told to end.
    pub(super) stop: AtomicBool,
    /// Asked by somebody who does not want to wait for what is under way.
    pub(super) asked: Stop,
}

impl Shared {
    /// Takes up to `want` of the records that are left to send.
    fn take(&self, want: u64) -> u64 {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| {
            if left == u64::MAX { Some(left) } else { Some(left - left.min(want)) }
        });
        taken.map_or(0, |left| left.min(want))
    }
}

/// One producer thread: connects, says that it is ready through `start`, and sends until told to stop.
pub(super) fn run(shared: &Arc<Shared>, number: u32, start: &super::StartLine) -> Result<(), BenchError> {
    let runtime = crate::runtime()?;
    runtime.block_on(async {
        let built = super::built(&shared.asked, build(shared)).await;
        start.ready_and_wait(built.is_ok());
        let (mut producers, stamps) = built?;
        let work = async {
            let outcome = match shared.config.rate {
                None => flat_out(shared, number, &mut producers).await,
                Some(rate) => at_rate(shared, number, &mut producers, &stamps, rate).await,
            };
            for producer in producers {
                if let Err(error) = producer.close().await {
                    shared.meter.fail(0, || error.to_string());
                }
            }
            outcome
        };
        // Of a node that hangs there is no room for more, and no end of what is under way.
        super::unless_asked(&shared.asked, work).await.unwrap_or(Err(BenchError::Interrupted))
    })
}

/// For each stream, the stamps of records that are under way.
type Stamps = Vec<Arc<Mutex<Vec<StreamletStamps>>>>;

/// What is under way to one streamlet: reports come in the order in which records were sent.
#[derive(Debug, Default)]
struct StreamletStamps {
    sent: u64,
    reported: u64,
    /// Numbers and stamps of those that are measured.
    stamps: VecDeque<(u64, u64)>,
}

async fn build(shared: &Arc<Shared>) -> Result<(Vec<Producer>, Stamps), BenchError> {
    let config = &shared.config;
    let failed = |error: kera_client::ClientError| BenchError::server("starting a producer", error);
    let client = Client::builder(&shared.address).client_name("kera-bench").connect().await.map_err(failed)?;
    let (mut producers, mut stamps) = (Vec::new(), Vec::new());
    for stream in &shared.streams {
        let pending: Arc<Mutex<Vec<StreamletStamps>>> = Arc::default();
        pending.lock().resize_with(config.streamlets as usize, StreamletStamps::default);
        let (for_report, pending_of_report) = (shared.clone(), pending.clone());
        let builder = client
            .producer(stream)
            .chunk_bytes(config.chunk_bytes)
            .request_bytes(config.request_bytes)
            .linger(config.linger)
            .in_flight(config.in_flight)
            .buffer_bytes(config.buffer_bytes_each())
            .compression(config.compression)
            .idempotent(config.idempotent)
            .routing(if config.key_distribution == KeyDistribution::None { Routing::RoundRobin } else { Routing::Key })
            .on_reports(move |reports| reported(&for_report, &pending_of_report, reports));
        producers.push(super::once_known(async || builder.clone().build().await).await.map_err(failed)?);
        stamps.push(pending);
    }
    Ok((producers, stamps))
}

fn reported(shared: &Shared, pending: &Mutex<Vec<StreamletStamps>>, reports: &[DeliveryReport]) {
    let now = now_ns();
    if shared.config.rate.is_some() {
        let mut pending = pending.lock();
        reports.iter().for_each(|report| take_stamps(shared, &mut pending, report, now));
    } else if let Some(mut latencies) = shared.meter.latencies() {
        for report in reports.iter().filter(|report| report.result.is_ok()) {
            latencies.record_ns(report.latency.as_nanos() as u64);
        }
    }
    let mut acknowledged = 0;
    for report in reports {
        match &report.result {
            Ok(_) => acknowledged += u64::from(report.records),
            Err(error) => shared.meter.fail(report.records.into(), || error.to_string()),
        }
    }
    if acknowledged > 0 {
        shared.meter.add(acknowledged, now);
    }
}

/// Moves on in the streamlet's records and counts the latencies of those that are measured.
fn take_stamps(shared: &Shared, pending: &mut [StreamletStamps], report: &DeliveryReport, now: u64) {
    let Some(streamlet) = pending.get_mut(report.streamlet.0 as usize) else { return };
    streamlet.reported += u64::from(report.records);
    let mut latencies = shared.meter.latencies();
    while let Some(&(number, stamp)) = streamlet.stamps.front() {
        if number >= streamlet.reported {
            break;
        }
        streamlet.stamps.pop_front();
        if let (Some(latencies), true) = (&mut latencies, report.result.is_ok()) {
            latencies.record_ns(now.saturating_sub(stamp));
        }
    }
}

async fn flat_out(shared: &Shared, number: u32, producers: &mut [Producer]) -> Result<(), BenchError> {
    let config = &shared.config;
    let mut source = RecordSource::new(&config.shape(), seed(number));
    let turn = (config.turn_bytes() / (config.record_bytes + 8)).max(1) as u64;
    let mut next_stream = number as usize;
    while !shared.stop.load(Relaxed) {
        let records = shared.take(turn);
        if records == 0 {
            break;
        }
        // One stream gets a turn's records, then the next one does.
        let count = producers.len();
        let producer = &mut producers[next_stream % count];
        next_stream += 1;
        source.prepare(records as usize, config.sample as usize, now_ns());
        let keys = source.key_refs();
        let sent = producer.send_all(source.records(&keys)).await;
        sent.map_err(|error| BenchError::server("sending", error))?;
        tokio::task::yield_now().await;
    }
    for producer in producers {
        // What cannot be delivered has been counted by its report.
        let _ = producer.flush().await;
    }
    Ok(())
}

async fn at_rate(
    shared: &Shared,
    number: u32,
    producers: &mut [Producer],
    stamps: &Stamps,
    rate: f64,
) -> Result<(), BenchError> {
    let config = &shared.config;
    let lost = |error: kera_client::ClientError| BenchError::server("sending", error);
    let mut alarm = Alarm::new().map_err(|e| BenchError::io("setting a timer", e))?;
    let mut source = RecordSource::new(&config.shape(), seed(number));
    let interval_ns = 1e9 * f64::from(config.producers) / rate;
    let sample = (rate / f64::from(config.producers) / STAMPS_PER_S).ceil().max(1.0) as u64;
    // Producers take turns within an interval.
    let first_ns = now_ns() as f64 + interval_ns * f64::from(number) / f64::from(config.producers);
    for i in 0u64.. {
        let due_ns = (first_ns + i as f64 * interval_ns) as u64;
        alarm.until(due_ns).await.map_err(|e| BenchError::io("waiting for a timer", e))?;
        if shared.stop.load(Relaxed) || shared.take(1) == 0 {
            break;
        }
        let stream = i as usize % producers.len();
        let stamp = if i % sample == 0 { due_ns } else { 0 };
        let streamlet = source.with_next(stamp, |record| {
            let turn = (i / producers.len() as u64 % u64::from(config.streamlets)) as u32;
            record
                .keys
                .first()
                .map_or(turn, |key| kera_client::routing::streamlet_of_key(key, config.streamlets, config.lanes))
        });
        {
            let mut pending = stamps[stream].lock();
            let pending = &mut pending[streamlet as usize];
            if stamp != 0 {
                let number = pending.sent;
                pending.stamps.push_back((number, stamp));
            }
            pending.sent += 1;
        }
        source
            .again(async |record| producers[stream].send_to(StreamletId(streamlet), record).await)
            .await
            .map_err(lost)?;
    }
    for producer in producers {
        let _ = producer.flush().await;
    }
    Ok(())
}

fn seed(number: u32) -> u64 {
    0x5eed_0000 + u64::from(number)
}
