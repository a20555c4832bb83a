//! The consuming side: one thread and one librdkafka instance for each consumer, partitions dealt out by number.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rdkafka_sys::RDKafkaErrorCode as Code;
use rdkafka_sys::bindings as raw;

use crate::Load;
use crate::client::{self, Client, c_string, error_name};
use crate::report::{self, Report, ServerCost, now_ns};

/// A consumer that gets nothing for this long gives up.
const PATIENCE: Duration = Duration::from_secs(30);
const BATCH: usize = 4096;
const BEGINNING: i64 = -2;

/// Reads every record of the load's topics from the beginning until `wanted` have come, which may become less meanwhile. What counts
/// begins with the first record behind those of the warm-up, or with the measured time.
pub(crate) fn consume(load: &Load, wanted: &AtomicU64) -> Result<Report, String> {
    let got = AtomicU64::new(0);
    let consumers = load.consumers.max(1);
    let cpu_before = OnceLock::new();
    let outcomes: Vec<Result<Outcome, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..consumers)
            .map(|n| {
                scope.spawn({
                    let (got, cpu_before) = (&got, &cpu_before);
                    move || one(load, n, wanted, got, cpu_before)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err("a consuming thread panicked".into()))).collect()
    });
    let (mut nanos, mut records, mut errors, mut first, mut last) = (report::latencies(), 0, 0, u64::MAX, 0);
    for outcome in outcomes {
        let one = outcome?;
        nanos.add(&one.nanos).map_err(|e| e.to_string())?;
        records += one.records;
        errors += one.errors;
        (first, last) = (first.min(one.first), last.max(one.last));
    }
    let took = Duration::from_nanos(last.saturating_sub(first));
    let mut report = Report::new(load, records, took, &nanos, errors);
    if load.server_pid != 0 {
        report.server = Some(ServerCost {
            cpu_seconds: cpu_before.get().map_or(0.0, |before| report::cpu_seconds(load.server_pid) - before),
            resident_bytes: report::resident_bytes(load.server_pid),
        });
    }
    Ok(report)
}

fn properties(load: &Load) -> Result<client::Properties, String> {
    let mut properties: client::Properties = [
        ("bootstrap.servers", load.bootstrap.as_str()),
        ("group.id", "rdkafka-bench"),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "earliest"),
        // What rdkafka_performance sets: always keep the local queue filled.
        ("queued.min.messages", "1000000"),
        ("queued.max.messages.kbytes", "262144"),
        ("fetch.message.max.bytes", "1048576"),
        ("fetch.max.bytes", "52428800"),
        ("fetch.wait.max.ms", "100"),
        ("fetch.min.bytes", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    if load.rate > 0.0 {
        properties.push(("fetch.error.backoff.ms".to_owned(), "1".to_owned()));
    }
    for (name, value) in client::pairs(&load.properties)? {
        // A run of both sides has one list of properties; those of producers mean nothing here.
        if !["acks", "linger.ms", "batch.size", "batch.num.messages"].contains(&name.as_str())
            && !name.starts_with("queue.buffering")
        {
            properties.push((name, value));
        }
    }
    Ok(properties)
}

fn assign(client: &Client, load: &Load, number: usize) -> Result<(), String> {
    let consumers = load.consumers.max(1);
    // SAFETY: the list is ours and destroyed below; names are copied; the client is live.
    unsafe {
        let list = raw::rd_kafka_topic_partition_list_new(load.partitions);
        for (t, name) in load.topic_names().iter().enumerate() {
            let name = c_string(name)?;
            for partition in 0..load.partitions {
                if (t * load.partitions as usize + partition as usize) % consumers == number {
                    (*raw::rd_kafka_topic_partition_list_add(list, name.as_ptr(), partition)).offset = BEGINNING;
                }
            }
        }
        let code = raw::rd_kafka_assign(client.0, list);
        raw::rd_kafka_topic_partition_list_destroy(list);
        if Code::from(code) == Code::NoError { Ok(()) } else { Err(error_name(code)) }
    }
}

/// What one consumer got in the measured time, which is the producers' own where their clock starts and stops while they send.
struct Outcome {
    records: u64,
    errors: u64,
    nanos: Histogram<u64>,
    /// When the first and the last of them came; the first is `u64::MAX` if none did.
    first: u64,
    last: u64,
}

/// One consumer. The first that gets something that counts notes what the server has cost by then.
fn one(
    load: &Load,
    number: usize,
    wanted: &AtomicU64,
    got: &AtomicU64,
    cpu_before: &OnceLock<f64>,
) -> Result<Outcome, String> {
    let client = Client::consumer(&properties(load)?)?;
    assign(&client, load, number)?;
    // SAFETY: the handle is live; the queue is destroyed below, before the client.
    let queue = unsafe { raw::rd_kafka_queue_get_consumer(client.0) };
    let mut seen = Outcome { records: 0, errors: 0, nanos: report::latencies(), first: u64::MAX, last: 0 };
    let measured = if load.is_timed() {
        let starts = now_ns() + (load.warmup_seconds * 1e9) as u64;
        starts..starts + (load.seconds * 1e9) as u64
    } else {
        0..u64::MAX
    };
    let mut messages = vec![std::ptr::null_mut(); BATCH];
    let mut heard = Instant::now();
    while got.load(Ordering::Relaxed) < wanted.load(Ordering::Relaxed) {
        // A batch call returns when the batch is full or its time is over, so at a low rate one message is asked for.
        let (batch, timeout_ms): (usize, c_int) = if load.rate > 0.0 { (1, 100) } else { (BATCH, 20) };
        // SAFETY: `messages` has room for `batch` pointers; the queue is live.
        let count = unsafe { raw::rd_kafka_consume_batch_queue(queue, timeout_ms, messages.as_mut_ptr(), batch) };
        if count <= 0 {
            if heard.elapsed() > PATIENCE {
                let (got, wanted) = (got.load(Ordering::Relaxed), wanted.load(Ordering::Relaxed));
                return Err(format!("{got} of {wanted} records came, then nothing for {PATIENCE:?}"));
            }
            continue;
        }
        heard = Instant::now();
        let now = now_ns();
        let counts = measured.contains(&now) && got.load(Ordering::Relaxed) >= load.warmup_records;
        if counts {
            cpu_before.get_or_init(|| report::cpu_seconds(load.server_pid));
            seen.first = seen.first.min(now);
            seen.last = now;
        }
        let mut good = 0;
        for &message in &messages[..count as usize] {
            // SAFETY: the library gave `count` live messages, each ours to destroy once.
            unsafe {
                if Code::from((*message).err) != Code::NoError {
                    seen.errors += 1;
                } else {
                    good += 1;
                    if (*message).len >= 8 {
                        let stamp = (*message).payload.cast::<u64>().read_unaligned();
                        if stamp != 0 && counts {
                            let _ = seen.nanos.record(now.saturating_sub(stamp).max(1));
                        }
                    }
                }
                raw::rd_kafka_message_destroy(message);
            }
        }
        got.fetch_add(good, Ordering::Relaxed);
        seen.records += if counts { good } else { 0 };
    }
    // SAFETY: the queue is ours.
    unsafe { raw::rd_kafka_queue_destroy(queue) };
    Ok(seen)
}
