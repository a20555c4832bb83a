//! The producing side. Each producer is a thread with a current-thread runtime, its own client and connections.
//!
//! As fast as it goes: records are handed over a stretch of bytes at a time, and in between the runtime gets a turn, so
//! that chunks leave while others are filled. Latency is the client's own: from
//! the first record of a chunk to its acknowledgement.
//!
//! At a rate: every record has a time at which it is due, and counts from then, however late it could be handed over.
//! A server that stalls therefore shows its stall in all records that were due meanwhile (no coordinated omission), also
//! if it goes on only behind the end of the measured stretch: what was due in it is sent and waited for as long as
//! something is acknowledged, and given up, with the time that it has waited, when nothing is for [`PATIENCE`](super::PATIENCE).
//! The streamlet is chosen here, because reports number the records of each streamlet, and so tell which record they mean.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

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
            match shared.config.rate {
                None => flat_out(shared, number, &mut producers).await?,
                Some(rate) => {
                    if !at_rate(shared, number, &mut producers, &stamps, rate).await? {
                        // Dropped unclosed, producers give up what they have, and report that.
                        return Ok(());
                    }
                }
            }
            for producer in producers {
                if let Err(error) = producer.close().await {
                    shared.meter.fail(0, || error.to_string());
                }
            }
            Ok(())
        };
        // Of a node that hangs there is no room for more, and no end of what is under way.
        super::unless_asked(&shared.asked, work).await.unwrap_or(Err(BenchError::Interrupted))
    })
}

/// For each stream, the stamps of records that are under way.
type Stamps = Vec<Arc<Mutex<Vec<StreamletStamps>>>>;

/// What is under way to one streamlet.
#[derive(Debug, Default)]
struct StreamletStamps {
    sent: u64,
    /// Numbers and stamps of those that are measured, by number.
    stamps: VecDeque<(u64, u64)>,
}

impl StreamletStamps {
    /// One more record was handed over, which is measured if it has a stamp.
    fn push(&mut self, stamp: u64) {
        if stamp != 0 {
            self.stamps.push_back((self.sent, stamp));
        }
        self.sent += 1;
    }

    /// Takes the stamps of records that were reported. Their numbers say which they are: a chunk whose first acknowledgement was lost is
    /// reported behind later ones.
    fn take(&mut self, first_record: u64, records: u64) -> impl Iterator<Item = u64> {
        let at = |number: u64| self.stamps.partition_point(|&(known, _)| known < number);
        let reported = at(first_record)..at(first_record + records);
        self.stamps.drain(reported).map(|(_, stamp)| stamp)
    }
}

/// When the records of a producer at a rate are due.
struct Schedule {
    first_ns: f64,
    interval_ns: f64,
    /// One record in this many is measured.
    sample: u64,
    /// The first record that was not handed over.
    next: u64,
    /// Whether that one was taken from those that are left to send.
    next_is_taken: bool,
}

impl Schedule {
    /// From now on; producers take turns within an interval.
    fn new(config: &LoadConfig, number: u32, rate: f64) -> Schedule {
        let producers = f64::from(config.producers);
        let interval_ns = 1e9 * producers / rate;
        Schedule {
            first_ns: now_ns() as f64 + interval_ns * f64::from(number) / producers,
            interval_ns,
            sample: (rate / producers / STAMPS_PER_S).ceil().max(1.0) as u64,
            next: 0,
            next_is_taken: false,
        }
    }

    fn due_ns(&self) -> u64 {
        (self.first_ns + self.next as f64 * self.interval_ns) as u64
    }

    /// The time at which the next record is due if it is measured, otherwise zero.
    fn stamp(&self) -> u64 {
        if self.next.is_multiple_of(self.sample) { self.due_ns() } else { 0 }
    }

    /// Takes the next record from those that are left, if it is still to be sent: if it is due within the stretch, and there is one left.
    fn take(&mut self, shared: &Shared) -> bool {
        self.next_is_taken = self.due_ns() < shared.meter.ends_ns() && (self.next_is_taken || shared.take(1) == 1);
        self.next_is_taken
    }

    /// The next record was handed over, or given up.
    fn is_done(&mut self) {
        self.next += 1;
        self.next_is_taken = false;
    }
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
            latencies.record(now.saturating_sub(report.latency.as_nanos() as u64), now);
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

/// Counts the latencies of those records of a chunk that are measured. A chunk that was given up counts as well: it has waited at least so long.
fn take_stamps(shared: &Shared, pending: &mut [StreamletStamps], report: &DeliveryReport, now: u64) {
    let Some(streamlet) = pending.get_mut(report.streamlet.0 as usize) else { return };
    let mut latencies = shared.meter.latencies();
    for stamp in streamlet.take(report.first_record, report.records.into()) {
        if let Some(latencies) = &mut latencies {
            latencies.record(stamp, now);
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

/// Sends every record when it is due, and waits for all of them. False if some were given up, because nothing was acknowledged any more.
async fn at_rate(
    shared: &Shared,
    number: u32,
    producers: &mut [Producer],
    stamps: &Stamps,
    rate: f64,
) -> Result<bool, BenchError> {
    let mut schedule = Schedule::new(&shared.config, number, rate);
    let sent = tokio::select! {
        biased;
        sent = send_when_due(shared, number, producers, stamps, &mut schedule) => Some(sent),
        () = until_nothing_comes(shared, super::PATIENCE) => None,
    };
    match sent {
        Some(outcome) => outcome.map(|()| true),
        None => {
            give_up(shared, &mut schedule);
            Ok(false)
        }
    }
}

async fn send_when_due(
    shared: &Shared,
    number: u32,
    producers: &mut [Producer],
    stamps: &Stamps,
    schedule: &mut Schedule,
) -> Result<(), BenchError> {
    let config = &shared.config;
    let lost = |error: kera_client::ClientError| BenchError::server("sending", error);
    let mut alarm = Alarm::new().map_err(|e| BenchError::io("setting a timer", e))?;
    let mut source = RecordSource::new(&config.shape(), seed(number));
    while wait_for_next(shared, &mut alarm, schedule).await? && schedule.take(shared) {
        let (i, stamp) = (schedule.next, schedule.stamp());
        let stream = i as usize % producers.len();
        let streamlet = source.with_next(stamp, |record| {
            let turn = (i / producers.len() as u64 % u64::from(config.streamlets)) as u32;
            record
                .keys
                .first()
                .map_or(turn, |key| kera_client::routing::streamlet_of_key(key, config.streamlets, config.lanes))
        });
        source
            .again(async |record| producers[stream].send_to(StreamletId(streamlet), record).await)
            .await
            .map_err(lost)?;
        // The producer's task runs on this thread, and has not had its turn since the record was taken: it is not reported yet.
        stamps[stream].lock()[streamlet as usize].push(stamp);
        schedule.is_done();
    }
    for producer in producers {
        let _ = producer.flush().await;
    }
    Ok(())
}

/// Waits until the next record is due. False if there is none: the stretch is over by then, which is waited for, or the load was told to end.
async fn wait_for_next(shared: &Shared, alarm: &mut Alarm, schedule: &Schedule) -> Result<bool, BenchError> {
    let due_ns = schedule.due_ns();
    loop {
        // A stretch whose warm-up goes on has no end yet, so it is looked for again now and then.
        let (now, ends_ns) = (now_ns(), shared.meter.ends_ns());
        let until_ns = due_ns.min(ends_ns);
        if shared.stop.load(Relaxed) {
            return Ok(false);
        }
        if now >= until_ns {
            return Ok(due_ns < ends_ns);
        }
        let look_ns = now + super::LOOK.as_nanos() as u64;
        alarm.until(until_ns.min(look_ns)).await.map_err(|e| BenchError::io("waiting for a timer", e))?;
    }
}

/// Ends when the stretch is over and nothing has been acknowledged for so long since: a server that is only behind has all the time that it needs.
async fn until_nothing_comes(shared: &Shared, patience: Duration) {
    let (mut known, mut since) = (0, Instant::now());
    loop {
        let records = shared.meter.records();
        if records != known || now_ns() < shared.meter.ends_ns() {
            (known, since) = (records, Instant::now());
        } else if since.elapsed() >= patience {
            return;
        }
        tokio::time::sleep(super::LOOK).await;
    }
}

/// Counts what was due within the stretch and could not even be handed over, with the time that it has waited.
fn give_up(shared: &Shared, schedule: &mut Schedule) {
    let now = now_ns();
    let mut unsent = 0;
    let mut latencies = shared.meter.latencies();
    while schedule.take(shared) {
        let stamp = schedule.stamp();
        if let (Some(latencies), true) = (&mut latencies, stamp != 0) {
            latencies.record(stamp, now);
        }
        unsent += 1;
        schedule.is_done();
    }
    drop(latencies);
    let patience = super::PATIENCE.as_secs();
    shared.meter.fail(unsent, || {
        format!("behind the end nothing was acknowledged for {patience} s, and what was left is given up: does the server answer?")
    });
}

fn seed(number: u32) -> u64 {
    0x5eed_0000 + u64::from(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(records: Option<u64>, time: Duration) -> Shared {
        let config = LoadConfig { rate: Some(1000.0), records, time: Some(time), ..LoadConfig::default() };
        Shared {
            meter: Meter::new(Some(0), config.time).judged_by_due(true),
            config,
            address: String::new(),
            streams: vec![],
            left: AtomicU64::new(records.unwrap_or(u64::MAX)),
            stop: AtomicBool::new(false),
            asked: Stop::new(),
        }
    }

    #[test]
    fn reports_say_which_records_they_mean_also_out_of_order() {
        let mut streamlet = StreamletStamps::default();
        (0..6).for_each(|number| streamlet.push(if number == 1 { 0 } else { 100 + number }));
        assert_eq!(streamlet.take(3, 2).collect::<Vec<_>>(), [103, 104], "the chunk before it comes later");
        assert_eq!(streamlet.take(0, 3).collect::<Vec<_>>(), [100, 102], "one of them was not measured");
        assert_eq!(streamlet.take(5, 1).collect::<Vec<_>>(), [105]);
    }

    #[test]
    fn what_was_due_and_is_given_up_counts_with_the_time_that_it_has_waited() {
        // A second, which was over a second ago.
        let begun_ns = now_ns() - 2_000_000_000;
        for (records, given_up) in [(None, 1000), (Some(400), 400)] {
            let shared = shared(records, Duration::from_secs(1));
            let mut schedule = Schedule { first_ns: begun_ns as f64, ..Schedule::new(&shared.config, 0, 1000.0) };
            shared.meter.begin(begun_ns);
            // One was taken, and waited for room.
            assert!(schedule.take(&shared));
            shared.meter.end();
            give_up(&shared, &mut schedule);
            let told = shared.meter.summary();
            assert_eq!((shared.meter.errors(), told.samples), (given_up, given_up));
            assert!(told.max >= 2e6, "{told:?}");
            assert!(shared.meter.first_error().is_some_and(|error| error.contains("nothing was acknowledged")));
        }
    }

    #[test]
    fn nobody_is_given_up_on_before_the_stretch_is_over_or_while_something_comes() {
        let runtime = crate::runtime().unwrap();
        let gives_up = async |shared: &Shared, patience| {
            tokio::select! {
                biased;
                () = until_nothing_comes(shared, patience) => true,
                () = tokio::time::sleep(4 * super::super::LOOK) => false,
            }
        };
        let goes_on = shared(None, Duration::from_secs(3600));
        goes_on.meter.begin(now_ns());
        assert!(!runtime.block_on(gives_up(&goes_on, Duration::ZERO)));
        let is_over = shared(None, Duration::ZERO);
        is_over.meter.begin(now_ns());
        is_over.meter.add(1, 1);
        assert!(!runtime.block_on(gives_up(&is_over, Duration::from_secs(3600))), "more may come");
        assert!(runtime.block_on(gives_up(&is_over, Duration::ZERO)), "as soon as no more comes");
    }
}
