//! The producing side: one thread and one librdkafka instance for each producer.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use rdkafka_sys::RDKafkaErrorCode as Code;
use rdkafka_sys::bindings as raw;

use crate::Load;
use crate::client::{self, Client, Topic};
use crate::report::{self, Report, ServerCost, now_ns};

const FLAG_COPY: i32 = 2;
/// What is queued and what is under way.
const PURGE_ALL: i32 = 1 | 2;
/// Records between two looks at the clock where that starts and stops while producers send.
const LOOK_EVERY: u64 = 128;

/// What delivery reports count. Lives as long as the client that points to it.
struct Acks {
    acked: AtomicU64,
    failed: AtomicU64,
    nanos: Mutex<Histogram<u64>>,
}

/// What one producer did.
struct Outcome {
    /// In the measured time.
    records: u64,
    failed: u64,
    nanos: Histogram<u64>,
    /// All of it.
    acknowledged: u64,
    started: u64,
    ended: u64,
    /// CPU seconds of the server in the measured time.
    server_cpu: f64,
}

/// The measured time of a producer whose clock starts and stops while it sends.
struct Clock {
    server_pid: u32,
    starts: u64,
    stops: u64,
    began: Option<Mark>,
    ended: Option<Mark>,
    nanos: Histogram<u64>,
}

/// When a clock started or stopped, and how far everything was.
struct Mark {
    at: u64,
    acked: u64,
    server_cpu: f64,
}

impl Clock {
    fn new(load: &Load, now: u64) -> Clock {
        let at = |seconds: f64| now + (seconds * 1e9) as u64;
        Clock {
            server_pid: load.server_pid,
            starts: at(load.warmup_seconds),
            stops: at(load.warmup_seconds + load.seconds),
            began: None,
            ended: None,
            nanos: report::latencies(),
        }
    }

    /// Looks what time it is; whether it is over.
    fn look(&mut self, acks: &Acks) -> bool {
        let now = now_ns();
        let mark = || Mark {
            at: now,
            acked: acks.acked.load(Ordering::Relaxed),
            server_cpu: report::cpu_seconds(self.server_pid),
        };
        if self.began.is_none() && now >= self.starts {
            self.began = Some(mark());
            acks.nanos.lock().expect("no holder panics").reset();
        }
        if self.ended.is_none() && now >= self.stops {
            self.ended = Some(mark());
            self.nanos = acks.nanos.lock().expect("no holder panics").clone();
        }
        self.ended.is_some()
    }
}

/// Runs all producers until everything they sent is acknowledged.
pub(crate) fn produce(load: &Load) -> Result<Report, String> {
    if load.warmup_records > 0 && load.rate == 0.0 {
        let warmup = Load { records: load.warmup_records, seconds: 0.0, rate: 0.0, ..load.clone() };
        run(&warmup)?;
    }
    run(load)
}

fn run(load: &Load) -> Result<Report, String> {
    let producers = load.producers.max(1);
    let ready = std::sync::Barrier::new(producers);
    let outcomes: Vec<Result<Outcome, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..producers)
            .map(|n| {
                scope.spawn({
                    let ready = &ready;
                    move || one(load, n, ready)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err("a producing thread panicked".into()))).collect()
    });
    let (mut nanos, mut records, mut failed, mut acknowledged) = (report::latencies(), 0, 0, 0);
    let (mut first, mut last, mut server_cpu) = (u64::MAX, 0, 0.0f64);
    for outcome in outcomes {
        let one = outcome?;
        nanos.add(&one.nanos).map_err(|e| e.to_string())?;
        records += one.records;
        failed += one.failed;
        acknowledged += one.acknowledged;
        (first, last) = (first.min(one.started), last.max(one.ended));
        // All of them see the same server, at nearly the same time.
        server_cpu = server_cpu.max(one.server_cpu);
    }
    let took = Duration::from_nanos(last.saturating_sub(first));
    let server = (load.server_pid != 0)
        .then(|| ServerCost { cpu_seconds: server_cpu, resident_bytes: report::resident_bytes(load.server_pid) });
    Ok(Report { acknowledged, server, ..Report::new(load, records, took, &nanos, failed) })
}

fn properties(load: &Load) -> Result<client::Properties, String> {
    let mut properties = vec![
        ("bootstrap.servers".to_owned(), load.bootstrap.clone()),
        ("acks".to_owned(), "1".to_owned()),
        ("linger.ms".to_owned(), load.linger_ms.to_string()),
        ("batch.size".to_owned(), load.batch_bytes.to_string()),
        // Only batch.size bounds a batch, and memory bounds the queue.
        ("batch.num.messages".to_owned(), "1000000".to_owned()),
        ("queue.buffering.max.messages".to_owned(), "2000000".to_owned()),
        ("queue.buffering.max.kbytes".to_owned(), (load.buffer_bytes >> 10).max(1).to_string()),
        ("socket.nagle.disable".to_owned(), "true".to_owned()),
    ];
    properties.extend(client::pairs(&load.properties)?);
    Ok(properties)
}

unsafe extern "C" fn delivered(_: *mut raw::rd_kafka_t, message: *const raw::rd_kafka_message_t, opaque: *mut c_void) {
    // SAFETY: the library passes a live message and the pointer that `one` gave it, whose target outlives the client.
    let (message, acks) = unsafe { (&*message, &*opaque.cast::<Acks>()) };
    match Code::from(message.err) {
        Code::NoError => {}
        // Given up when the time was over.
        Code::PurgeQueue | Code::PurgeInflight => return,
        _ => {
            acks.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    acks.acked.fetch_add(1, Ordering::Relaxed);
    let sent_ns = message._private as u64;
    if sent_ns != 0 {
        let _ = acks.nanos.lock().expect("no holder panics").record(now_ns().saturating_sub(sent_ns).max(1));
    }
}

/// One producer.
fn one(load: &Load, number: usize, ready: &std::sync::Barrier) -> Result<Outcome, String> {
    let acks = Acks { acked: AtomicU64::new(0), failed: AtomicU64::new(0), nanos: Mutex::new(report::latencies()) };
    let client = Client::producer(&properties(load)?, Some(delivered), (&raw const acks).cast_mut().cast());
    ready.wait();
    let client = client?;
    let topics = load.topic_names().iter().map(|name| Topic::new(&client, name)).collect::<Result<Vec<_>, _>>()?;
    let (started, cpu_before) = (now_ns(), report::cpu_seconds(load.server_pid));
    let mut clock = load.is_timed().then(|| Clock::new(load, started));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if load.rate > 0.0 {
            // At a fixed rate the sending thread sleeps, so somebody else has to take the reports as they come.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    client.poll(20);
                }
            });
        }
        if let Some(clock) = &mut clock {
            send_timed(load, &client, &topics, &acks, clock);
            client.purge(PURGE_ALL);
        } else {
            send_all(load, number, &client, &topics, started);
        }
        while client.outstanding() > 0 {
            if load.rate > 0.0 { std::thread::sleep(Duration::from_millis(1)) } else { client.poll(10) }
        }
        done.store(true, Ordering::Relaxed);
    });
    let ended = now_ns();
    let server_cpu = report::cpu_seconds(load.server_pid) - cpu_before;
    drop(topics);
    drop(client);
    let (acknowledged, failed) = (acks.acked.into_inner(), acks.failed.into_inner());
    let nanos = acks.nanos.into_inner().expect("no holder panics");
    let whole = Outcome { records: acknowledged, failed, nanos, acknowledged, started, ended, server_cpu };
    Ok(match clock {
        Some(Clock { began: Some(began), ended: Some(ended), nanos, .. }) => Outcome {
            records: ended.acked - began.acked,
            nanos,
            started: began.at,
            ended: ended.at,
            server_cpu: ended.server_cpu - began.server_cpu,
            ..whole
        },
        _ => whole,
    })
}

/// Sends until the clock has stopped, and looks at it also while there is no room.
fn send_timed(load: &Load, client: &Client, topics: &[Topic], acks: &Acks, clock: &mut Clock) {
    let sample = load.sample.max(1);
    let mut targets = Targets::new(load, topics);
    let mut payload = Payload::new(load);
    for i in 0u64.. {
        if i % LOOK_EVERY == 0 && clock.look(acks) {
            return;
        }
        let (topic, partition) = targets.next();
        let stamp = if i % sample == 0 { now_ns() } else { 0 };
        while !payload.send(topic, partition, stamp) {
            client.poll(1);
            if clock.look(acks) {
                return;
            }
        }
        if i % 64 == 0 {
            client.poll(0);
        }
    }
}

fn send_all(load: &Load, number: usize, client: &Client, topics: &[Topic], started: u64) {
    let producers = load.producers.max(1) as u64;
    let share = |records: u64| records / producers + u64::from((number as u64) < records % producers);
    // At a fixed rate the warm-up is the unmeasured start of the run itself, at that rate.
    let unmeasured = if load.rate > 0.0 { share(load.warmup_records) } else { 0 };
    let records = share(load.records) + unmeasured;
    let interval_ns = if load.rate > 0.0 { 1e9 * producers as f64 / load.rate } else { 0.0 };
    let sample = if load.rate > 0.0 { 1 } else { load.sample.max(1) };
    let mut targets = Targets::new(load, topics);
    let mut payload = Payload::new(load);
    for i in 0..records {
        let mut stamp = 0;
        if interval_ns > 0.0 {
            // The time at which the record was due, not the one at which it could be sent: no coordinated omission.
            stamp = started + (i as f64 * interval_ns) as u64;
            if stamp > now_ns() {
                report::sleep_until(stamp);
            }
            if i < unmeasured {
                stamp = 0;
            }
        } else if i % sample == 0 {
            stamp = now_ns();
            if load.seconds > 0.0 && (stamp - started) as f64 / 1e9 >= load.seconds {
                break;
            }
        }
        let (topic, partition) = targets.next();
        while !payload.send(topic, partition, stamp) {
            client.poll(10);
        }
        if load.rate == 0.0 && i % 64 == 0 {
            client.poll(0);
        }
    }
}

/// What is sent: one record that all share, which the library does not copy, and one that carries a time.
struct Payload {
    plain: &'static mut [u8],
    stamped: Vec<u8>,
    record_bytes: usize,
}

impl Payload {
    fn new(load: &Load) -> Payload {
        let mut plain = vec![b'k'; load.record_bytes.max(8)];
        plain[..8].fill(0);
        let stamped = plain.clone();
        Payload { plain: plain.leak(), stamped, record_bytes: load.record_bytes }
    }

    /// Hands a record over, with the time that its latency counts from, or 0. False if there is no room.
    fn send(&mut self, topic: *mut raw::rd_kafka_topic_t, partition: i32, stamp: u64) -> bool {
        let (payload, flags) = if stamp == 0 {
            (&mut *self.plain, 0)
        } else {
            self.stamped[..8].copy_from_slice(&stamp.to_le_bytes());
            (&mut self.stamped[..], FLAG_COPY)
        };
        // SAFETY: `plain` is leaked, so it outlives the client's use of it, and is not written to; `stamped` is copied by the call. The
        // topic is live. The opaque value is a number, not a pointer.
        let outcome = unsafe {
            raw::rd_kafka_produce(
                topic,
                partition,
                flags,
                payload.as_mut_ptr().cast(),
                self.record_bytes,
                std::ptr::null(),
                0,
                stamp as *mut c_void,
            )
        };
        outcome != -1
    }
}

/// Whose turn it is: round robin over all partitions of all topics, by record or by batch; or over topics alone, and the
/// library's partitioner does the rest.
struct Targets {
    all: Vec<(*mut raw::rd_kafka_topic_t, i32)>,
    at: usize,
    run: usize,
    left: usize,
}

impl Targets {
    fn new(load: &Load, topics: &[Topic]) -> Targets {
        const LIBRARY_CHOOSES: i32 = -1;
        let partitions = if load.spread == "library" { LIBRARY_CHOOSES..0 } else { 0..load.partitions };
        let all: Vec<_> =
            partitions.flat_map(|partition| topics.iter().map(move |topic| (topic.0, partition))).collect();
        let run = if load.spread == "batch" { (load.batch_bytes / (load.record_bytes + 8)).max(1) } else { 1 };
        Targets { all, at: 0, run, left: run }
    }

    fn next(&mut self) -> (*mut raw::rd_kafka_topic_t, i32) {
        if self.left == 0 {
            self.left = self.run;
            self.at = (self.at + 1) % self.all.len();
        }
        self.left -= 1;
        self.all[self.at]
    }
}
