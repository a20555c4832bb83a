//! Apache Kafka, one broker, loaded through librdkafka (`peers/rdkafka-bench`) or by Kafka's own Java clients (`peers/kafka/Load.java`):
//! two systems that share the broker, and never run at the same time.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use super::peer::{command_of, needed, only_kera, script};
use super::{Job, Load, Outcome, Places, System, drive, output, read_json};
use crate::BenchError;
use crate::experiment::stop::Stop;
use crate::experiment::workload::{Mode, Safety, Workload};

/// Records that a fresh broker gets first: its hot path is compiled while it runs.
const WARMUP_RECORDS: u64 = 2_000_000;
/// Records, and at a rate seconds, that a Java client gets before its clock starts: it is compiled while it runs too.
const JAVA_WARMUP: (u64, f64) = (1_500_000, 3.0);

/// What a producer holds that is not acknowledged. More made nothing faster, and a run of a second lasts until all of it is written.
const BUFFER_BYTES: u64 = 16 << 20;
/// Where every batch is synced by itself all that would take minutes to write: so many batches of each partition, and at least so many
/// bytes.
const SYNCED_BUFFER: (u64, u64) = (4, 1 << 20);

/// One broker, for all adapters that load it. It ends with the last of them.
#[derive(Debug)]
pub(super) struct Broker {
    script: PathBuf,
    bootstrap: String,
    pid: u32,
}

impl Broker {
    /// Starts a broker. Its settings are Kafka's own, but that deleted topics give their space back soon.
    pub(super) fn start(places: &Places) -> Result<Broker, BenchError> {
        let path = needed(places.peers.join("kafka/kafka.sh"), "run it in the repository's root, or give --peers-dir")?;
        let bootstrap = script(&path, &["start", "log.segment.delete.delay.ms=1000"])?;
        let mut broker = Broker { script: path, bootstrap, pid: 0 };
        let pid = script(&broker.script, &["pid"])?;
        broker.pid = pid.parse().map_err(|e| BenchError::server(format!("reading {pid}"), e))?;
        Ok(broker)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = script(&self.script, &["stop"]);
    }
}

/// Who loads the broker. Both know the same flags.
#[derive(Clone, Debug)]
enum Client {
    /// `peers/rdkafka-bench`.
    Librdkafka(PathBuf),
    /// `peers/kafka/Load.java`, with Kafka's own clients.
    Java,
}

/// Kafka, with one of its clients.
#[derive(Debug)]
pub(super) struct Kafka {
    broker: Arc<Broker>,
    client: Client,
    dir: PathBuf,
    quick: bool,
}

impl Kafka {
    /// Loads the broker through librdkafka, and begins with warming it up.
    pub(super) fn librdkafka(broker: Arc<Broker>, places: &Places) -> Result<Kafka, BenchError> {
        let how = "build it: cargo build --release --manifest-path peers/rdkafka-bench/Cargo.toml (needs a C compiler and make)";
        let load = needed(places.peers.join("rdkafka-bench/target/release/rdkafka-bench"), how)?;
        Kafka { broker, client: Client::Librdkafka(load), dir: places.dir.clone(), quick: places.quick }.warm()
    }

    /// Loads the broker with Kafka's Java clients, which are compiled first.
    pub(super) fn java(broker: Arc<Broker>, places: &Places) -> Result<Kafka, BenchError> {
        script(&broker.script, &["load-build"])?;
        Kafka { broker, client: Client::Java, dir: places.dir.clone(), quick: places.quick }.warm()
    }

    fn warm(self) -> Result<Kafka, BenchError> {
        let mut warm = self.command("both", &Workload::default());
        warm.args(["--records", &WARMUP_RECORDS.to_string()]);
        output(warm, &Stop::new())?;
        Ok(self)
    }

    fn command(&self, what: &str, workload: &Workload) -> Command {
        let mut command = match &self.client {
            Client::Librdkafka(load) => Command::new(load),
            Client::Java => {
                let mut command = Command::new(&self.broker.script);
                command.arg("load");
                command
            }
        };
        command.arg(what).args(["--bootstrap", &self.broker.bootstrap, "--server-pid", &self.broker.pid.to_string()]);
        let mut flag = |name: &str, value: String| {
            command.arg(name).arg(value);
        };
        flag("--topics", workload.streams.to_string());
        flag("--partitions", workload.streamlets.to_string());
        flag("--record-bytes", workload.record_bytes.to_string());
        flag("--batch-bytes", workload.chunk_bytes.to_string());
        flag("--linger-ms", workload.linger_ms.to_string());
        let synced =
            (SYNCED_BUFFER.0 * workload.partitions() * workload.chunk_bytes).clamp(SYNCED_BUFFER.1, BUFFER_BYTES);
        let buffer = if workload.durability == Safety::Power { synced } else { BUFFER_BYTES };
        flag("--buffer-bytes", buffer.to_string());
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
        let is_java = matches!(self.client, Client::Java);
        let (records, warmup, seconds) = match (workload.mode, workload.rate) {
            (Mode::Consume, _) => (workload.records, 0, 0.0),
            (_, Some(rate)) => {
                let warmup = if is_java { job.warmup_seconds.max(JAVA_WARMUP.1) } else { job.warmup_seconds };
                ((rate * job.seconds) as u64, (rate * warmup) as u64, 0.0)
            }
            // A sync for each batch: the warm-up would take longer than the run.
            _ if workload.durability == Safety::Power => (1_000_000_000, 1000, job.seconds),
            _ if is_java => (1_000_000_000, JAVA_WARMUP.0, job.seconds),
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

    fn drive(&self, command: Command, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let load = Load { command, server: Some(self.broker.pid), dir: &self.dir, metrics: None, read: read_json };
        drive(load, job, |_| Ok(()))
    }

    fn delete(&self, workload: &Workload) {
        // A topic that is left costs the next runs a little, and is gone with the broker.
        let _ = output(self.command("delete", workload), &Stop::new());
    }
}

impl System for Kafka {
    fn name(&self) -> &'static str {
        match self.client {
            Client::Librdkafka(_) => "kafka",
            Client::Java => "kafka-java",
        }
    }

    fn version(&self) -> String {
        match self.client {
            Client::Librdkafka(_) => "Apache Kafka 4.1 on OpenJDK, loaded through librdkafka".into(),
            Client::Java => "the same broker, loaded by Kafka's own Java clients (peers/kafka/Load.java)".into(),
        }
    }

    fn settings(&self) -> String {
        let client = match self.client {
            Client::Librdkafka(_) => String::new(),
            Client::Java => format!(
                " Each run is a Java machine of its own, whose clock starts after {} records or {} s; where everything is synced \
                 after a thousand records.",
                JAVA_WARMUP.0, JAVA_WARMUP.1
            ),
        };
        let ways = if self.quick {
            "In short runs records are spread over partitions batch by batch."
        } else {
            "Records are spread over partitions one by one, batch by batch, and by the client's own partitioner; the best of these \
             counts."
        };
        format!(
            "one broker with its own settings, 1.5 GB of heap, warmed up.{client} {ways} Kafka has no bound on what it keeps in these runs."
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
        if self.quick || workload.rate.is_some() || workload.mode == Mode::Consume {
            vec!["batch"]
        } else {
            vec!["record", "batch", "library"]
        }
    }

    fn measure(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError> {
        if job.workload.mode == Mode::Consume {
            let mut fill = self.command("produce", job.workload);
            fill.args(["--keep", "--records", &job.workload.records.to_string()]);
            output(fill, job.stop)?;
            let outcome = self.drive(self.flags(job), job);
            self.delete(job.workload);
            return outcome;
        }
        let outcome = self.drive(self.flags(job), job);
        if outcome.is_err() {
            self.delete(job.workload);
        }
        outcome
    }

    fn stop(&mut self) {
        // A broker that one run has failed on serves the next one: starting it takes longer than everything else.
    }
}
