//! Apache Kafka, one broker, loaded through librdkafka (`peers/rdkafka-bench`) and, where it can do the workload, by Kafka's own
//! Java producer.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::peer::{command_of, needed, only_kera, script};
use super::{Job, Load, Outcome, Places, System, drive, output, read_json};
use crate::BenchError;
use crate::experiment::stop::Stop;
use crate::experiment::workload::{Mode, Safety, Workload};

/// Records that a fresh broker gets first: its hot path is compiled while it runs.
const WARMUP_RECORDS: u64 = 2_000_000;
/// The way that is the Java producer.
const JAVA: &str = "java";

/// Kafka.
#[derive(Debug)]
pub struct Kafka {
    script: PathBuf,
    load: PathBuf,
    dir: PathBuf,
    bootstrap: String,
    pid: u32,
    quick: bool,
}

impl Kafka {
    /// Starts a broker and warms it up. Its settings are Kafka's own, but that deleted topics give their space back soon.
    pub fn new(places: &Places) -> Result<Kafka, BenchError> {
        let how = "build it: cargo build --release --manifest-path peers/rdkafka-bench/Cargo.toml (needs a C compiler and make)";
        let load = needed(places.peers.join("rdkafka-bench/target/release/rdkafka-bench"), how)?;
        let path = needed(places.peers.join("kafka/kafka.sh"), "run it in the repository's root, or give --peers-dir")?;
        let bootstrap = script(&path, &["start", "log.segment.delete.delay.ms=1000"])?;
        let mut kafka = Kafka { script: path, load, dir: places.dir.clone(), bootstrap, pid: 0, quick: places.quick };
        let pid = script(&kafka.script, &["pid"])?;
        kafka.pid = pid.parse().map_err(|e| BenchError::server(format!("reading {pid}"), e))?;
        let mut warm = kafka.command("produce", &Workload::default());
        warm.args(["--records", &WARMUP_RECORDS.to_string()]);
        output(warm, &Stop::new())?;
        Ok(kafka)
    }

    fn command(&self, what: &str, workload: &Workload) -> Command {
        let mut command = Command::new(&self.load);
        command.arg(what).args(["--bootstrap", &self.bootstrap, "--server-pid", &self.pid.to_string()]);
        let mut flag = |name: &str, value: String| {
            command.arg(name).arg(value);
        };
        flag("--topics", workload.streams.to_string());
        flag("--partitions", workload.streamlets.to_string());
        flag("--record-bytes", workload.record_bytes.to_string());
        flag("--batch-bytes", workload.chunk_bytes.to_string());
        flag("--linger-ms", workload.linger_ms.to_string());
        flag("--producers", workload.producers.to_string());
        flag("--consumers", workload.consumers.to_string());
        if workload.durability == Safety::Power {
            flag("--topic-property", "flush.messages=1".into());
        }
        command
    }

    fn flags(&self, job: &Job<'_>) -> Command {
        let workload = job.workload;
        let mut command = self.command(command_of(workload), workload);
        if !job.way.is_empty() {
            command.args(["--spread", job.way]);
        }
        let (records, warmup, seconds) = match (workload.mode, workload.rate) {
            (Mode::Consume, _) => (workload.records, 0, 0.0),
            (_, Some(rate)) => ((rate * job.seconds) as u64, (rate * job.warmup_seconds) as u64, 0.0),
            // A sync for each batch: the warm-up would take longer than the run.
            _ if workload.durability == Safety::Power => (1_000_000_000, 1000, job.seconds),
            _ => (1_000_000_000, 100_000, job.seconds),
        };
        command.args(["--records", &records.to_string(), "--warmup-records", &warmup.to_string()]);
        if seconds > 0.0 {
            command.args(["--seconds", &seconds.to_string()]);
        }
        if let Some(rate) = workload.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        command
    }

    fn drive(
        &self,
        command: Command,
        job: &Job<'_>,
        read: fn(&str) -> Result<Value, String>,
    ) -> Result<Outcome, BenchError> {
        drive(Load { command, server: Some(self.pid), dir: &self.dir, metrics: None, read }, job, |_| Ok(()))
    }

    fn delete(&self, workload: &Workload) {
        // A topic that is left costs the next runs a little, and is gone with the broker.
        let _ = output(self.command("delete", workload), &Stop::new());
    }

    fn java(&self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let workload = job.workload;
        let topic = "bench";
        let partitions = workload.streamlets.to_string();
        output(self.script(&["topic", topic, &partitions]), job.stop)?;
        let records = ((job.seconds + job.warmup_seconds) * 500_000.0) as u64;
        let sizes = [records, workload.record_bytes, workload.chunk_bytes].map(|number| number.to_string());
        let linger = format!("linger.ms={}", workload.linger_ms.round());
        let words = ["java-produce", topic, &sizes[0], &sizes[1], &sizes[2], &linger, "enable.idempotence=false"];
        let outcome = self.drive(self.script(&words), job, read_java);
        self.delete(workload);
        outcome
    }

    fn script(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.args(words);
        command
    }
}

/// The last line of Kafka's `ProducerPerformance`: "1000 records sent, 2000.0 records/sec (0.19 MB/sec), 1.5 ms avg latency, …".
fn read_java(text: &str) -> Result<Value, String> {
    let line = text.lines().rev().find(|line| line.contains(" records sent, ") && line.contains("99th"));
    let line = line.ok_or_else(|| format!("there is no last line in: {text}"))?;
    let before = |word: &str| -> Result<f64, String> {
        let number = line.split(word).next().and_then(|before| before.split([' ', '(']).next_back());
        number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("there is no number before `{word}` in: {line}"))
    };
    let (records, rate) = (before(" records sent")?, before(" records/sec")?);
    Ok(json!({
        "records": records,
        "records_per_s": rate,
        "seconds": records / rate.max(1.0),
        "mib_per_s": before(" MB/sec")?,
        "latency_us": { "p50": before(" ms 50th")? * 1e3, "p99": before(" ms 99th")? * 1e3, "max": before(" ms max")? * 1e3 },
        "errors": 0,
    }))
}

impl System for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn version(&self) -> String {
        "Apache Kafka 4.1 on OpenJDK, loaded through librdkafka".into()
    }

    fn settings(&self) -> String {
        let ways = if self.quick {
            "In short runs records are spread over partitions batch by batch."
        } else {
            "Records are spread over partitions one by one, batch by batch, and by the library's own partitioner, and for single \
             producers Kafka's Java producer is tried too; the best of these counts."
        };
        format!(
            "one broker with its own settings, 1.5 GB of heap, warmed up. {ways} Kafka has no bound on what it keeps in these runs."
        )
    }

    fn guarantees(&self, workload: &Workload) -> String {
        match workload.durability {
            Safety::Process => {
                "one copy, acks=1, no idempotence; acknowledged when it is in the page cache: survives kill -9"
            }
            Safety::Power => "one copy, acks=1, flush.messages=1: synced before it is acknowledged",
        }
        .into()
    }

    fn leaves_out(&self, workload: &Workload) -> Option<String> {
        if workload.mode == Mode::Start {
            return Some("its script starts tools that take longer than the broker".into());
        }
        if workload.partitions() > 10_000 {
            return Some("a single broker is not meant for more than some thousand partitions".into());
        }
        only_kera(workload)
    }

    fn ways(&self, workload: &Workload) -> Vec<&'static str> {
        let is_plain = workload.mode == Mode::Produce && workload.rate.is_none() && workload.streams == 1;
        match (self.quick || workload.rate.is_some(), is_plain && workload.producers == 1) {
            (true, _) => vec!["batch"],
            (false, true) if workload.durability == Safety::Process => vec!["record", "batch", "library", JAVA],
            (false, _) => vec!["record", "batch", "library"],
        }
    }

    fn measure(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        if job.way == JAVA {
            return self.java(job);
        }
        if job.workload.mode == Mode::Consume {
            let mut fill = self.command("produce", job.workload);
            fill.args(["--keep", "--records", &job.workload.records.to_string()]);
            output(fill, job.stop)?;
            let outcome = self.drive(self.flags(job), job, read_json);
            self.delete(job.workload);
            return outcome;
        }
        let outcome = self.drive(self.flags(job), job, read_json);
        if outcome.is_err() {
            self.delete(job.workload);
        }
        outcome
    }

    fn stop(&mut self) {
        // A broker that one run has failed on serves the next one: starting it takes longer than everything else.
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _ = script(&self.script, &["stop"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_kafkas_own_producer_is_read() {
        let text = "1200 records sent, 600.1 records/sec (0.06 MB/sec), 1.0 ms avg latency, 5.0 ms max latency.\n\
                    5000 records sent, 2500.500 records/sec (0.24 MB/sec), 12.25 ms avg latency, 90.00 ms max latency, \
                    3 ms 50th, 40 ms 95th, 80 ms 99th, 90 ms 99.9th.\n";
        let value = read_java(text).unwrap();
        assert_eq!((&value["records"], &value["records_per_s"]), (&5000.0.into(), &2500.5.into()));
        assert_eq!((&value["latency_us"]["p50"], &value["latency_us"]["p99"]), (&3000.0.into(), &80000.0.into()));
        assert!(read_java("it failed").is_err());
    }
}
