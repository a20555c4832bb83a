//! The points: what is measured, with which flags on either side, what is compared, and what is to be reached.

use std::path::Path;
use std::time::Duration;

use kera_bench::BenchError;
use kera_bench::limit::{self, LimitConfig};
use serde::Serialize;

/// How long runs are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) seconds: f64,
    pub(crate) quick: bool,
}

/// Which figure of a run counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Metric {
    /// Records per second of the run's main side.
    Rate,
    /// Records per second of the slower side of a run of both.
    RateOfBoth,
    /// Payload bytes per second, without what headers add.
    Bytes,
    /// 99 of 100 sends are acknowledged within this, in microseconds. Less is better.
    AckP99,
    /// 99 of 100 sends are received within this, in microseconds. Less is better.
    ReceiptP99,
}

impl Metric {
    /// Whether less is better.
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Metric::AckP99 | Metric::ReceiptP99)
    }
}

/// A limit of the machine that a point is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// The bare server with frames of this size.
    BareServer(usize),
    /// Sequential writes over what was written before.
    DiskWrite,
    /// Writes behind what was written before, synced as they come.
    DiskAppend,
    /// Sequential reads.
    DiskRead,
}

impl Limit {
    /// Bytes per second.
    pub(crate) fn measure(self, dir: &Path) -> Result<f64, BenchError> {
        let none =
            LimitConfig { frame_bytes: vec![], rounds: 1, time: Duration::from_millis(500), ..LimitConfig::default() };
        match self {
            Limit::BareServer(bytes) => {
                let config = LimitConfig { frame_bytes: vec![bytes], time: Duration::from_secs(2), ..none };
                Ok(limit::run(&config, |_| ())?.server[0].bytes_per_s)
            }
            Limit::DiskWrite | Limit::DiskAppend | Limit::DiskRead => {
                let config = LimitConfig { disk_dir: Some(dir.to_owned()), ..none };
                let disk = limit::run(&config, |_| ())?.disk.unwrap_or_default();
                Ok(match self {
                    Limit::DiskWrite => disk.write_bytes_per_s,
                    Limit::DiskAppend => disk.append_bytes_per_s,
                    _ => disk.read_bytes_per_s,
                })
            }
        }
    }

    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Limit::BareServer(_) => "bare server",
            Limit::DiskWrite => "disk, writing",
            Limit::DiskAppend => "disk, appending",
            Limit::DiskRead => "disk, reading",
        }
    }
}

/// One point.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    /// Words behind `kera bench`.
    pub(crate) kera: Vec<String>,
    /// The arena of a node of its own for this point; `None` uses the common node.
    pub(crate) own_node_arena: Option<u64>,
    /// Ways to load Kafka, all of which do the same: its best counts.
    pub(crate) kafka: Vec<KafkaLoad>,
    pub(crate) metric: Metric,
    pub(crate) limit: Option<Limit>,
    /// KerA's figure divided by Kafka's (or Kafka's by KerA's for times), or by the limit.
    pub(crate) target: f64,
}

/// Which of Kafka's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KafkaClient {
    /// `peers/rdkafka-bench`.
    Librdkafka,
    /// `peers/kafka/Load.java`, with Kafka's own clients.
    Java,
}

impl KafkaClient {
    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            KafkaClient::Librdkafka => "librdkafka",
            KafkaClient::Java => "Java client",
        }
    }
}

/// One way to load Kafka.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KafkaLoad {
    pub(crate) client: KafkaClient,
    /// Flags, which both clients share.
    pub(crate) words: Vec<String>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// All points, in the order in which they are run.
pub(crate) fn all(scale: &Scale) -> Vec<Point> {
    let mut points = Vec::new();
    points.extend(yardstick(scale));
    points.extend(produce(scale));
    points.extend(partitions(scale));
    points.extend(both(scale));
    points.extend(consume(scale));
    points.extend(power(scale));
    points.extend(latency(scale));
    points
}

/// What streamlets keep in all while a run goes on: the same for every point, well within the arena.
const KEPT_BYTES: u64 = 512 << 20;

fn kera_flags(scale: &Scale, command: &str, streamlets: u64, chunk_bytes: u64, more: &str) -> Vec<String> {
    let kept = (KEPT_BYTES / streamlets).max(1 << 20);
    words(&format!(
        "{command} --streamlets {streamlets} --chunk-bytes {chunk_bytes} --seconds {} --warmup-seconds {} \
         --retention-bytes {kept} {more}",
        scale.seconds,
        warmup_seconds(scale),
    ))
}

/// How long clocks wait at points that go by time, on both sides: the same clients send on when they start.
fn warmup_seconds(scale: &Scale) -> u32 {
    if scale.quick { 1 } else { 3 }
}

/// What Kafka's producers hold that is not acknowledged. It is what KerA's and the Java client's hold; more made nothing faster.
const KAFKA_BUFFER_BYTES: u64 = 32 << 20;

/// A load of Kafka whose clock starts and stops while producers and consumers are at work, as KerA's does. As many records as it takes: the time ends it.
fn kafka_flags(scale: &Scale, command: &str, partitions: u64, batch_bytes: u64, more: &str) -> Vec<String> {
    words(&format!(
        "{command} --partitions {partitions} --batch-bytes {batch_bytes} --buffer-bytes {KAFKA_BUFFER_BYTES} \
         --records 2000000000 --seconds {} --warmup-seconds {} {more}",
        scale.seconds,
        warmup_seconds(scale),
    ))
}

/// The ways in which Kafka can be fed: by librdkafka and by its own Java clients, with records spread over partitions one by one, batch by batch
/// and by the client's own partitioner. Its throughput depends on it, and the best one counts.
fn any_way(load: &[String]) -> Vec<KafkaLoad> {
    let spreads = |client| {
        ["record", "batch", "library"].map(|spread| {
            let words = load.iter().cloned().chain(["--spread".into(), spread.into()]).collect();
            KafkaLoad { client, words }
        })
    };
    [KafkaClient::Librdkafka, KafkaClient::Java].into_iter().flat_map(spreads).collect()
}

/// What a broker that has just been started is loaded with first. A JVM compiles what it does often while it does it, which takes about
/// that long on a small machine.
pub(crate) fn kafka_warm_up(scale: &Scale) -> KafkaLoad {
    let scale = Scale { seconds: if scale.quick { 2.0 } else { 8.0 }, quick: true };
    KafkaLoad { client: KafkaClient::Librdkafka, words: kafka_flags(&scale, "both", 16, 16 << 10, "--spread batch") }
}

fn yardstick(scale: &Scale) -> Vec<Point> {
    [("limit-16k", 16u64 << 10), ("limit-64k", 64 << 10)]
        .map(|(name, bytes)| Point {
            name,
            title: format!("one producer, chunks of {} KiB, against a bare server", bytes >> 10),
            kera: kera_flags(scale, "produce", 1, bytes, ""),
            own_node_arena: None,
            kafka: vec![],
            metric: Metric::Bytes,
            limit: Some(Limit::BareServer(bytes as usize)),
            target: 0.6,
        })
        .to_vec()
}

fn produce(scale: &Scale) -> Vec<Point> {
    [("produce-1k", 1u64, 50.0), ("produce-4k", 4, 15.0), ("produce-16k", 16, 15.0), ("produce-64k", 64, 15.0)]
        .map(|(name, kib, target)| Point {
            name,
            title: format!("produce, 16 streamlets, chunks of {kib} KiB"),
            kera: kera_flags(scale, "produce", 16, kib << 10, ""),
            own_node_arena: None,
            kafka: any_way(&kafka_flags(scale, "produce", 16, kib << 10, "")),
            metric: Metric::Rate,
            limit: None,
            target,
        })
        .to_vec()
}

fn partitions(scale: &Scale) -> Vec<Point> {
    [("streamlets-512", 512u64), ("streamlets-1024", 1024)]
        .map(|(name, count)| Point {
            name,
            title: format!("produce, {count} streamlets, 1 MiB of chunks in all"),
            kera: kera_flags(scale, "produce", count, (1 << 20) / count, ""),
            own_node_arena: None,
            kafka: any_way(&kafka_flags(scale, "produce", count, (1 << 20) / count, "")),
            metric: Metric::Rate,
            limit: None,
            target: 40.0,
        })
        .to_vec()
}

fn both(scale: &Scale) -> Vec<Point> {
    [("both-4k", 4u64), ("both-16k", 16), ("both-64k", 64)]
        .map(|(name, kib)| Point {
            name,
            title: format!("produce and consume at once, 16 streamlets, chunks of {kib} KiB"),
            kera: kera_flags(scale, "both", 16, kib << 10, ""),
            own_node_arena: None,
            kafka: any_way(&kafka_flags(scale, "both", 16, kib << 10, "")),
            metric: Metric::RateOfBoth,
            limit: None,
            target: 10.0,
        })
        .to_vec()
}

fn consume(scale: &Scale) -> Vec<Point> {
    let records: u64 = if scale.quick { 4_000_000 } else { 20_000_000 };
    let cold: u64 = if scale.quick { 8_000_000 } else { 40_000_000 };
    // On top of them, on both sides: clients connect, and a JVM's are compiled.
    let warmup = records / 10;
    vec![
        Point {
            name: "consume-memory",
            title: format!("a consumer catches up with {} million records from memory", records / 1_000_000),
            kera: words(&format!(
                "consume --streamlets 16 --chunk-bytes 16384 --records {records} --warmup-records {warmup}"
            )),
            own_node_arena: Some(6 << 30),
            kafka: any_way(&words(&format!(
                "produce-and-consume --partitions 16 --batch-bytes 16384 --buffer-bytes {KAFKA_BUFFER_BYTES} \
                 --records {records} --warmup-records {warmup}"
            ))),
            metric: Metric::Rate,
            limit: None,
            target: 1.0,
        },
        Point {
            name: "consume-disk",
            title: "a consumer catches up from disk, against what the disk reads".into(),
            kera: words(&format!("consume --streamlets 16 --chunk-bytes 65536 --records {cold}")),
            own_node_arena: Some(256 << 20),
            kafka: vec![],
            metric: Metric::Bytes,
            limit: Some(Limit::DiskRead),
            target: 0.8,
        },
    ]
}

fn power(scale: &Scale) -> Vec<Point> {
    let seconds = scale.seconds;
    // What is measured is the disk, so the arena has been filled once before: memory that nobody has touched yet comes more
    // slowly than the disk writes.
    let warmup = if scale.quick { 1 } else { 12 };
    let large = |name, against: &str, limit| Point {
        name,
        title: format!("one stream of large chunks, durability power, against what the disk {against}"),
        kera: words(&format!(
            "produce --streamlets 1 --chunk-bytes 1048576 --request-bytes 4194304 --segment-bytes 16777216 \
             --durability power --seconds {seconds} --warmup-seconds {warmup} --retention-bytes 4294967296"
        )),
        own_node_arena: None,
        kafka: vec![],
        metric: Metric::Bytes,
        limit: Some(limit),
        target: 0.8,
    };
    vec![
        Point {
            name: "power-512",
            title: "512 streams of small chunks, everything on disk before it is acknowledged".into(),
            kera: words(&format!(
                "produce --streams 512 --streamlets 1 --chunk-bytes 1024 --durability power --seconds {seconds} \
                 --warmup-seconds {} --retention-bytes 2097152",
                warmup_seconds(scale)
            )),
            own_node_arena: None,
            kafka: any_way(&kafka_flags(scale, "produce", 1, 1024, "--topics 512 --topic-property flush.messages=1")),
            metric: Metric::Rate,
            limit: None,
            target: 20.0,
        },
        large("power-large", "writes", Limit::DiskWrite),
        large("power-large-append", "appends", Limit::DiskAppend),
    ]
}

fn latency(scale: &Scale) -> Vec<Point> {
    let seconds = scale.seconds;
    let records = (10_000.0 * seconds) as u64;
    let kera = format!("both --streamlets 1 --rate 10000 --linger-ms 0 --records {records} --warmup-records 30000");
    let kafka = words(&format!(
        "both --partitions 1 --batch-bytes 16384 --linger-ms 0 --rate 10000 --records {records} --warmup-records 30000"
    ));
    // Without linger librdkafka sends each record by itself and falls behind at this rate; Kafka's own clients fill a batch meanwhile.
    let kafka = [KafkaClient::Librdkafka, KafkaClient::Java].map(|client| KafkaLoad { client, words: kafka.clone() });
    [("latency-ack", Metric::AckP99, "acknowledgement", 20.0), ("latency-receipt", Metric::ReceiptP99, "receipt", 1.0)]
        .map(|(name, metric, to, target)| Point {
            name,
            title: format!("10,000 records/s, no linger: send to {to}, 99 of 100"),
            kera: words(&kera),
            own_node_arena: None,
            kafka: kafka.to_vec(),
            metric,
            limit: None,
            target,
        })
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).map(String::as_str)
    }

    /// A clock that goes from the first record on has connecting and compiling in it, and one that goes to the last record the end of what
    /// is under way.
    #[test]
    fn clocks_of_both_sides_start_behind_a_warm_up_of_the_same_clients() {
        for scale in [Scale { seconds: 10.0, quick: false }, Scale { seconds: 2.0, quick: true }] {
            for point in all(&scale).iter().filter(|point| !point.kafka.is_empty()) {
                for load in &point.kafka {
                    let of = |flag: &str| value(&load.words, flag);
                    for flag in ["--warmup-seconds", "--warmup-records"] {
                        assert_eq!(value(&point.kera, flag), of(flag), "{}: {flag} of {load:?}", point.name);
                    }
                    let goes_by_time = matches!(load.words[0].as_str(), "produce" | "both") && of("--rate").is_none();
                    let seconds = scale.seconds.to_string();
                    assert_eq!(of("--seconds"), goes_by_time.then_some(seconds.as_str()), "{}: {load:?}", point.name);
                    assert!(
                        of(if goes_by_time { "--warmup-seconds" } else { "--warmup-records" }).is_some(),
                        "{load:?}"
                    );
                    if !goes_by_time {
                        assert_eq!(of("--records"), value(&point.kera, "--records"), "{}: {load:?}", point.name);
                    }
                }
            }
        }
    }

    #[test]
    fn the_best_of_all_ways_to_load_kafka_counts() {
        for point in all(&Scale { seconds: 10.0, quick: false }).iter().filter(|point| !point.kafka.is_empty()) {
            let spreads = |client| {
                let of = point.kafka.iter().filter(|load| load.client == client);
                of.map(|load| value(&load.words, "--spread")).collect::<Vec<_>>()
            };
            let at_a_rate = point.metric.is_time();
            let all = [Some("record"), Some("batch"), Some("library")];
            // One partition has no spread.
            let wanted: &[Option<&str>] = if at_a_rate { &[None] } else { &all };
            for client in [KafkaClient::Librdkafka, KafkaClient::Java] {
                assert_eq!(spreads(client), wanted, "{}", point.name);
            }
        }
    }
}
