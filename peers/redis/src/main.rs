//! Loads Redis Streams and prints one JSON object with the fields of `kera bench`.
//!
//! A partition is a stream, that is a key. A producer pipelines XADD commands: as many records for one stream as a chunk holds, then
//! the next stream, until a request is full; then it waits for all answers. XADD trims (MAXLEN ~), so that a run can go on for as long
//! as it likes. A consumer waits with XREAD BLOCK on the streams that are its share.
//!
//! At a rate every record has a time at which it is due and counts from then; all that are due go out as one pipeline.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use redis::{Client, Connection, Pipeline, Value};
use serde_json::json;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The field of an entry that carries the record.
const FIELD: &str = "v";
/// Entries of one answer to a consumer, for each stream.
const READ_COUNT: usize = 2000;
/// Bytes that an entry takes beside its value, about: what its share of `--kept-bytes` is divided by.
const ENTRY_BYTES: u64 = 16;

/// What to do.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum What {
    /// Producers only.
    Produce,
    /// Producers and consumers at once.
    Both,
}

/// Loads Redis Streams the way `kera bench` loads a KerA server.
#[derive(Parser, Clone)]
struct Load {
    what: What,
    /// The server.
    #[arg(long, default_value = "127.0.0.1:6379")]
    address: String,
    /// Streams.
    #[arg(long, default_value_t = 16)]
    partitions: usize,
    /// Bytes of a record's value.
    #[arg(long, default_value_t = 100)]
    record_bytes: usize,
    /// Records that go to one stream before the next one's turn.
    #[arg(long, default_value_t = 150)]
    chunk_records: usize,
    /// Records of a pipeline.
    #[arg(long, default_value_t = 2400)]
    request_records: usize,
    /// Taken, and not used: a producer waits for each pipeline.
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
    /// Producers, each a thread.
    #[arg(long, default_value_t = 1)]
    producers: usize,
    /// Consumers, each a thread.
    #[arg(long, default_value_t = 1)]
    consumers: usize,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before.
    #[arg(long, default_value_t = 1.0)]
    warmup_seconds: f64,
    /// Taken, and not used: runs end by time.
    #[arg(long, default_value_t = 0)]
    records: u64,
    /// What each stream keeps.
    #[arg(long, default_value_t = 32 << 20)]
    kept_bytes: u64,
    /// Records per second of all producers together; 0: as fast as it goes.
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Taken, and not used: whoever runs this looks at the server itself.
    #[arg(long, default_value_t = 0)]
    server_pid: u32,
}

/// What one side has done within the measured stretch.
struct Side {
    records: AtomicU64,
    nanos: Mutex<Histogram<u64>>,
}

impl Side {
    fn new() -> Result<Side, Failure> {
        Ok(Side { records: AtomicU64::new(0), nanos: Mutex::new(Histogram::new_with_bounds(1, 600_000_000_000, 3)?) })
    }

    fn add(&self, records: u64, nanos: impl Iterator<Item = u64>) {
        self.records.fetch_add(records, Relaxed);
        let mut histogram = self.nanos.lock().expect("no holder panics");
        nanos.for_each(|nanos| histogram.saturating_record(nanos.max(1)));
    }

    fn report(&self, load: &Load) -> serde_json::Value {
        let (records, nanos) = (self.records.load(Relaxed), self.nanos.lock().expect("no holder panics"));
        let at = |quantile| if nanos.is_empty() { 0.0 } else { nanos.value_at_quantile(quantile) as f64 / 1e3 };
        let rate = records as f64 / load.seconds;
        json!({
            "records": records,
            "bytes": records * load.record_bytes as u64,
            "seconds": load.seconds,
            "records_per_s": rate,
            "mib_per_s": rate * load.record_bytes as f64 / f64::from(1 << 20),
            "latency_us": { "samples": nanos.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) },
            "errors": 0,
        })
    }
}

/// What all threads share.
struct Shared {
    load: Load,
    produced: Side,
    consumed: Side,
    measuring: AtomicBool,
    stop: AtomicBool,
}

fn main() -> ExitCode {
    match run(Load::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redis-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(load: Load) -> Result<(), Failure> {
    let client = Client::open(format!("redis://{}", load.address))?;
    let mut admin = client.get_connection()?;
    redis::cmd("FLUSHALL").query::<()>(&mut admin)?;
    let shared = Shared {
        produced: Side::new()?,
        consumed: Side::new()?,
        measuring: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        load,
    };
    let (shared, load) = (&shared, &shared.load);
    let outcome = std::thread::scope(|scope| -> Result<(), Failure> {
        let mut threads = Vec::new();
        let named = |name: String| std::thread::Builder::new().name(name);
        if load.what == What::Both {
            for number in 0..load.consumers.min(load.partitions) {
                let connection = client.get_connection()?;
                let work = move || consume(shared, connection, number);
                threads.push(named(format!("consumer-{number}")).spawn_scoped(scope, guarded(shared, work))?);
            }
        }
        for number in 0..load.producers {
            let connection = client.get_connection()?;
            let work = move || produce(shared, connection, number);
            threads.push(named(format!("producer-{number}")).spawn_scoped(scope, guarded(shared, work))?);
        }
        wait(shared, load.warmup_seconds);
        shared.measuring.store(true, Relaxed);
        wait(shared, load.seconds);
        shared.measuring.store(false, Relaxed);
        shared.stop.store(true, Relaxed);
        let mut outcome = Ok(());
        for thread in threads {
            outcome = outcome.and(thread.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        }
        outcome
    });
    redis::cmd("FLUSHALL").query::<()>(&mut admin)?;
    outcome?;
    let mut report = shared.produced.report(load);
    if load.what == What::Both {
        report["consume"] = shared.consumed.report(load);
    }
    println!("{report}");
    Ok(())
}

/// A thread that fails ends the run at once.
fn guarded<'a>(
    shared: &'a Shared,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'a,
) -> impl FnOnce() -> Result<(), Failure> + Send + 'a {
    move || {
        let outcome = work();
        if outcome.is_err() {
            shared.stop.store(true, Relaxed);
        }
        outcome
    }
}

fn wait(shared: &Shared, seconds: f64) {
    let end = now_ns() + (seconds * 1e9) as u64;
    while now_ns() < end && !shared.stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn key(partition: usize) -> String {
    format!("bench-{partition}")
}

/// Adds a record that carries `stamp`.
fn add(pipeline: &mut Pipeline, load: &Load, key: &str, stamp: u64, value: &mut [u8]) {
    if let Some(head) = value.first_chunk_mut::<8>() {
        *head = stamp.to_le_bytes();
    }
    let most = (load.kept_bytes / (load.record_bytes as u64 + ENTRY_BYTES)).max(1000);
    pipeline.cmd("XADD").arg(key).arg("MAXLEN").arg("~").arg(most).arg("*").arg(FIELD).arg(&*value).ignore();
}

fn produce(shared: &Shared, mut connection: Connection, number: usize) -> Result<(), Failure> {
    let load = &shared.load;
    let keys: Vec<String> = (0..load.partitions).map(key).collect();
    let mut value = vec![b'x'; load.record_bytes];
    let mut pipeline = Pipeline::with_capacity(load.request_records);
    let mut partition = number * load.partitions / load.producers;
    let interval_ns = if load.rate > 0.0 { 1e9 * load.producers as f64 / load.rate } else { 0.0 };
    let (started, mut sent) = (now_ns(), 0u64);
    let mut due = Vec::new();
    while !shared.stop.load(Relaxed) {
        pipeline.clear();
        due.clear();
        if load.rate > 0.0 {
            let due_of = |n: u64| started + (n as f64 * interval_ns) as u64;
            sleep_until(due_of(sent));
            let now = now_ns();
            while due_of(sent) <= now && due.len() < load.request_records.max(1000) {
                add(&mut pipeline, load, &keys[partition % keys.len()], due_of(sent), &mut value);
                due.push(due_of(sent));
                (sent, partition) = (sent + 1, partition + 1);
            }
        } else {
            let mut left = load.request_records;
            while left > 0 {
                let chunk = load.chunk_records.min(left);
                let now = now_ns();
                // A chunk's latency counts once, from its first record.
                due.push(now);
                for n in 0..chunk {
                    add(&mut pipeline, load, &keys[partition % keys.len()], if n == 0 { now } else { 0 }, &mut value);
                }
                (left, partition) = (left - chunk, partition + 1);
            }
        }
        let records = if load.rate > 0.0 { due.len() } else { load.request_records } as u64;
        pipeline.query::<()>(&mut connection)?;
        if shared.measuring.load(Relaxed) {
            let now = now_ns();
            shared.produced.add(records, due.iter().map(|from| now.saturating_sub(*from)));
        }
    }
    Ok(())
}

fn consume(shared: &Shared, mut connection: Connection, number: usize) -> Result<(), Failure> {
    let load = &shared.load;
    let keys: Vec<String> = (0..load.partitions).filter(|n| n % load.consumers == number).map(key).collect();
    let mut cursors = vec![String::from("0-0"); keys.len()];
    while !shared.stop.load(Relaxed) {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(READ_COUNT).arg("BLOCK").arg(50).arg("STREAMS").arg(&keys).arg(&cursors);
        let answer: Value = command.query(&mut connection)?;
        let now = now_ns();
        let (mut records, mut nanos) = (0, Vec::new());
        // [[key, [[id, [field, value]], …]], …], or nothing when the time is up.
        let Value::Array(streams) = answer else { continue };
        for stream in &streams {
            let Value::Array(parts) = stream else { return Err("an answer that is no stream".into()) };
            let (Some(Value::BulkString(key)), Some(Value::Array(entries))) = (parts.first(), parts.get(1)) else {
                return Err("a stream without entries".into());
            };
            for entry in entries {
                let Some(stamp) = stamp_of(entry) else { return Err("an entry without a record".into()) };
                records += 1;
                if stamp != 0 {
                    nanos.push(now.saturating_sub(stamp));
                }
            }
            let at =
                keys.iter().position(|name| name.as_bytes() == key.as_slice()).ok_or("a stream nobody asked for")?;
            if let Some(Value::Array(last)) = entries.last()
                && let Some(Value::BulkString(id)) = last.first()
            {
                cursors[at] = String::from_utf8_lossy(id).into_owned();
            }
        }
        if shared.measuring.load(Relaxed) {
            shared.consumed.add(records, nanos.into_iter());
        }
    }
    Ok(())
}

/// When a record was sent; zero: it is not measured.
fn stamp_of(entry: &Value) -> Option<u64> {
    let Value::Array(parts) = entry else { return None };
    let Some(Value::Array(fields)) = parts.get(1) else { return None };
    let Some(Value::BulkString(value)) = fields.get(1) else { return None };
    Some(value.first_chunk::<8>().map_or(0, |head| u64::from_le_bytes(*head)))
}

/// CLOCK_MONOTONIC in nanoseconds, the same in every process of a host.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until `at_ns` of CLOCK_MONOTONIC, without the scheduler's usual slack of 50 microseconds.
fn sleep_until(at_ns: u64) {
    let time = libc::timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
    // SAFETY: `time` is live, and no remainder is asked for. The slack applies to this thread only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, std::ptr::null_mut());
    }
}
