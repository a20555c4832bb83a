//! The writing half of the verifier: self-describing records, and a log of what was acknowledged.
//!
//! Each producer is a thread with a current-thread runtime. It counts its records for each streamlet, sends a few to
//! one streamlet, then a few to another, and learns from the client's reports, which come in order for each streamlet,
//! which of them are acknowledged. A server that is away is waited for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kera_client::{Client, ClientError, DeliveryReport, Producer, Record, StreamOptions, StreamletId};
use kera_format::CHUNK_HEADER_BYTES;
use kera_format::limits::CHUNK_BYTES_MAX;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::acklog::{AckLog, AckPlace};
use super::record::{Identity, Source, VALUE_BYTES_MIN, encode};
use crate::BenchError;
use crate::load::config::RATE_MIN;

/// The least chunk that a producer takes: a header and a little.
pub(crate) const CHUNK_BYTES_MIN: usize = CHUNK_HEADER_BYTES + 32;
/// Producers and members are threads of this process.
pub(crate) const THREADS_MAX: u32 = 1000;
/// Ten years: what a clock can take.
pub(super) const SECONDS_MAX: u64 = 10 * 365 * 86_400;

/// How the records are written.
#[derive(Clone, Debug)]
pub struct ProduceConfig {
    /// The stream; made if it is missing.
    pub stream: String,
    /// Its options if it is made.
    pub options: StreamOptions,
    /// The log of acknowledgements; appended to.
    pub log: PathBuf,
    /// Producers, each on a thread of its own.
    pub producers: u32,
    /// Bytes of a value, at least [`VALUE_BYTES_MIN`].
    pub record_bytes: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// How long a chunk that is not full waits.
    pub linger: Duration,
    /// Unanswered requests of a producer.
    pub in_flight: usize,
    /// Records of all producers together; `None` is no limit.
    pub records: Option<u64>,
    /// How long to send; `None` is no limit.
    pub time: Option<Duration>,
    /// Records per second of all producers together; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// How long the server may be away before records are given up.
    pub delivery_timeout: Duration,
    /// Decides how many records go to a streamlet in turn.
    pub seed: u64,
}

impl Default for ProduceConfig {
    fn default() -> Self {
        ProduceConfig {
            stream: "verify".into(),
            options: StreamOptions::default(),
            log: "kera-verify.acks".into(),
            producers: 2,
            record_bytes: 100,
            chunk_bytes: 4 << 10,
            linger: Duration::ZERO,
            in_flight: 5,
            records: None,
            time: Some(Duration::from_secs(10)),
            rate: None,
            delivery_timeout: Duration::from_secs(600),
            seed: 1,
        }
    }
}

impl ProduceConfig {
    /// Refuses what cannot work, before anything is asked of a server: names the flag, the limit and what to do.
    fn check(&self) -> Result<(), BenchError> {
        let ranges = [
            ("producers", self.producers.into(), 1, THREADS_MAX.into()),
            ("in-flight", self.in_flight as u64, 1, 1000),
            ("chunk-bytes", self.chunk_bytes as u64, CHUNK_BYTES_MIN as u64, CHUNK_BYTES_MAX as u64),
            ("records", self.records.unwrap_or(1), 1, u64::MAX),
            ("seconds", self.time.map_or(1, whole_seconds), 1, SECONDS_MAX),
            ("patience-seconds", whole_seconds(self.delivery_timeout), 1, SECONDS_MAX),
            ("linger-ms", self.linger.as_millis() as u64, 0, 60_000),
        ];
        if let Some((flag, value, least, most)) =
            ranges.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value))
        {
            return Err(BenchError::setting(flag, format!("{value} is out of range; give {least} to {most}")));
        }
        check_record_bytes(self.record_bytes)?;
        match self.rate {
            Some(rate) if !(rate.is_finite() && rate >= RATE_MIN) => {
                let least = format!("it must be a number of records per second, {RATE_MIN} or more");
                Err(BenchError::setting("rate", format!("{least}; leave it out for no limit")))
            }
            _ => Ok(()),
        }
    }
}

/// Seconds, the one that has begun included.
pub(super) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Refuses values that are too small to describe themselves, or fit into no chunk.
pub(crate) fn check_record_bytes(bytes: usize) -> Result<(), BenchError> {
    let most = CHUNK_BYTES_MAX - CHUNK_BYTES_MIN;
    let message = match bytes {
        0..VALUE_BYTES_MIN => format!("{bytes} is less than {VALUE_BYTES_MIN}, what a record needs to describe itself"),
        bytes if bytes > most => format!("{bytes} is more than {most}, what fits into the largest chunk"),
        _ => return Ok(()),
    };
    Err(BenchError::setting("record-bytes", message))
}

/// What was written.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ProduceReport {
    /// The run, as it stands in every record and in the log.
    pub run: String,
    /// Records handed to the client.
    pub sent: u64,
    /// Records acknowledged.
    pub acknowledged: u64,
    /// Records given up: they may be in the stream or not.
    pub given_up: u64,
    /// Chunks whose first acknowledgement was lost, and that the server recognised.
    pub duplicate_chunks: u64,
    /// Connections that were made again.
    pub reconnects: u64,
    /// How long it took.
    pub seconds: f64,
    /// What went wrong first with records that were given up.
    pub first_error: Option<String>,
}

/// Counts that others may look at while producers run.
#[derive(Debug, Default)]
pub struct ProduceProgress {
    /// Records handed to the client.
    pub sent: AtomicU64,
    /// Records acknowledged.
    pub acknowledged: AtomicU64,
    /// Records given up.
    pub given_up: AtomicU64,
    /// Set to end the run: what was sent is still waited for.
    pub stop: AtomicBool,
    /// Set to end the run at once: nobody waits for a server that will not come back.
    pub abandon: AtomicBool,
}

struct Run {
    config: ProduceConfig,
    address: String,
    id: u64,
    log: AckLog,
    progress: Arc<ProduceProgress>,
    started: Instant,
    left: AtomicU64,
    streamlets: u32,
    totals: Mutex<ProduceReport>,
}

/// Runs until records or time are used up, or `progress.stop` is set, and until everything sent is acknowledged.
///
/// Must not be called from within an async runtime.
pub fn produce(
    config: &ProduceConfig,
    address: &str,
    progress: &Arc<ProduceProgress>,
) -> Result<ProduceReport, BenchError> {
    config.check()?;
    let info = crate::runtime()?.block_on(async {
        let client = patient_client(address).await?;
        let made = client.admin().ensure_stream(&config.stream, config.options.clone()).await;
        made.map_err(|error| BenchError::server("making the stream", error))
    })?;
    let id = SmallRng::from_os_rng().random::<u64>();
    let run = Arc::new(Run {
        config: config.clone(),
        address: address.to_owned(),
        id,
        log: AckLog::append(&config.log, id, &config.stream)?,
        progress: progress.clone(),
        started: Instant::now(),
        left: AtomicU64::new(config.records.unwrap_or(u64::MAX)),
        streamlets: info.options.streamlets,
        totals: Mutex::new(ProduceReport { run: format!("{id:016x}"), ..ProduceReport::default() }),
    });
    let outcomes: Vec<Result<(), BenchError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..config.producers.max(1))
            .map(|number| {
                let run = &run;
                scope.spawn(move || one_producer(run, number))
            })
            .collect();
        let panicked = || Err(BenchError::Thread { what: "a verifying producer" });
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    run.log.check()?;
    outcomes.into_iter().collect::<Result<(), _>>()?;
    let mut report = run.totals.lock().clone();
    report.sent = progress.sent.load(Relaxed);
    report.acknowledged = progress.acknowledged.load(Relaxed);
    report.given_up = progress.given_up.load(Relaxed);
    report.seconds = run.started.elapsed().as_secs_f64();
    Ok(report)
}

/// A client that waits for a server that is away.
pub(super) async fn patient_client(address: &str) -> Result<Client, BenchError> {
    let client = Client::builder(address).client_name("kera-verify").retry_timeout(Duration::from_secs(300));
    client.connect().await.map_err(|error| BenchError::server(format!("connecting to {address}"), error))
}

fn buffer_bytes(config: &ProduceConfig) -> usize {
    let wanted = config.chunk_bytes.saturating_mul(config.in_flight).saturating_mul(4);
    // However large chunks are, one is filled while another is on its way.
    wanted.clamp(256 << 10, 8 << 20).max(config.chunk_bytes.saturating_mul(2))
}

fn one_producer(run: &Arc<Run>, number: u32) -> Result<(), BenchError> {
    crate::runtime()?.block_on(async {
        let failed = |error: ClientError| BenchError::server("starting a producer", error);
        let source = Source { run: run.id, producer: number };
        let of_reports = run.clone();
        let config = &run.config;
        let mut producer = patient_client(&run.address)
            .await?
            .producer(&config.stream)
            .chunk_bytes(config.chunk_bytes)
            .linger(config.linger)
            .in_flight(config.in_flight)
            // Little enough that a stopped server is felt at once.
            .buffer_bytes(buffer_bytes(config))
            .delivery_timeout(config.delivery_timeout)
            .request_timeout(Duration::from_secs(10))
            .on_report(move |report| note(&of_reports, source, report))
            .build()
            .await
            .map_err(failed)?;
        let (sent, flushed) = tokio::select! {
            outcome = async { (send(run, source, &mut producer).await, producer.flush().await) } => outcome,
            () = super::until_set(&run.progress.abandon) => (Ok(()), Ok(())),
        };
        let stats = producer.stats();
        let mut totals = run.totals.lock();
        totals.duplicate_chunks += stats.duplicate_chunks;
        totals.reconnects += stats.reconnects;
        drop(totals);
        sent?;
        match flushed {
            Err(error) if ends_producer(&error) => Err(BenchError::server("sending", error)),
            _ => Ok(()),
        }
    })
}

/// Records that were given up are in the log and in the counts; only what ends a producer is an error.
fn ends_producer(error: &ClientError) -> bool {
    match error {
        ClientError::Unknown { error, .. } => ends_producer(error),
        error => matches!(error, ClientError::Fenced { .. } | ClientError::Closed),
    }
}

async fn send(run: &Run, source: Source, producer: &mut Producer) -> Result<(), BenchError> {
    let mut random = SmallRng::seed_from_u64(run.config.seed ^ u64::from(source.producer) << 32);
    let mut numbers = vec![0u64; run.streamlets as usize];
    let mut value = Vec::new();
    let mut mine = 0u64;
    let rate = run.config.rate.map(|rate| rate / f64::from(run.config.producers.max(1)));
    loop {
        let streamlet = StreamletId(random.random_range(0..run.streamlets));
        for _ in 0..random.random_range(1..=40) {
            let over = run.progress.stop.load(Relaxed)
                || run.config.time.is_some_and(|time| run.started.elapsed() >= time)
                || run.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
            if over {
                return Ok(());
            }
            let number = &mut numbers[streamlet.0 as usize];
            encode(&Identity { source, streamlet, number: *number }, run.config.record_bytes, &mut value);
            let sent = producer.send_to(streamlet, &Record::value(&value)).await;
            sent.map_err(|error| BenchError::server("sending", error))?;
            *number += 1;
            mine += 1;
            run.progress.sent.fetch_add(1, Relaxed);
        }
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(mine as f64 / rate);
            tokio::time::sleep(due.saturating_sub(run.started.elapsed())).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

fn note(run: &Run, source: Source, report: &DeliveryReport) {
    let numbers = report.first_record..report.first_record + u64::from(report.records);
    match &report.result {
        Ok(delivered) => {
            let place = delivered.base_ordinal.map(|ordinal| AckPlace { lane: delivered.lane, ordinal });
            run.log.acknowledged(source, report.streamlet, numbers, place);
            run.progress.acknowledged.fetch_add(u64::from(report.records), Relaxed);
        }
        Err(error) => {
            run.log.given_up(source, report.streamlet, numbers);
            run.progress.given_up.fetch_add(u64::from(report.records), Relaxed);
            run.totals.lock().first_error.get_or_insert_with(|| error.to_string());
        }
    }
}
