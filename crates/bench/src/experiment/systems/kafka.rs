//! Apache Kafka, one broker or several, loaded through librdkafka (`peers/rdkafka-bench`) or by Kafka's own Java clients (`peers/kafka/Load.java`):
//! two systems that share the brokers, and never run at the same time.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::kera::{OUTAGE_AT, nobody_was_killed};
use super::peer::{command_of, needed, only_kera, output_of, script};
use super::{Job, Load, Outcome, Places, System, drive, output, read_json};
use crate::BenchError;
use crate::experiment::stop::Stop;
use crate::experiment::workload::{Mode, Safety, Workload};

/// Records that a fresh broker gets first: its hot path is compiled while it runs. Brokers of a cluster get fewer, each of which all of
/// them handle.
const WARMUP_RECORDS: u64 = 2_000_000;
const CLUSTER_WARMUP_RECORDS: u64 = 500_000;
/// Records, and at a rate seconds, that a Java client gets before its clock starts: it is compiled while it runs too.
const JAVA_WARMUP: (u64, f64) = (1_500_000, 3.0);

/// What a producer holds that is not acknowledged. More made nothing faster, and a run of a second lasts until all of it is written.
const BUFFER_BYTES: u64 = 16 << 20;
/// Where every batch is synced or copied by itself all that would take minutes to write: so many batches of each partition, and at least so
/// many bytes.
const SLOW_BUFFER: (u64, u64) = (4, 1 << 20);

/// The first broker's port unless the environment says another one; each takes the next one for its controller.
const PORT: u16 = 19092;
/// From one broker's port to the next one's.
const PORTS_APART: u16 = 10;
/// What brokers of one cluster have in common.
const CLUSTER_ID: &str = "a2VyYS1iZW5jaC1jbHVzdA";
/// Heap of each broker of a cluster; a single one has what the script gives it.
const CLUSTER_HEAP: &str = "1g";

/// Brokers, for all adapters that load them: as many as the last workload wanted. They end with the last adapter.
#[derive(Debug)]
pub(super) struct Brokers {
    script: PathBuf,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    /// Process ids, in the order of their numbers.
    pids: Vec<u32>,
    /// How often brokers were started: each time they have to be warmed up again.
    start: u64,
}

/// Brokers that run.
#[derive(Clone, PartialEq, Debug)]
struct Serving {
    /// Where clients reach them.
    bootstrap: String,
    /// Their processes.
    pids: Vec<u32>,
    /// Which start they are of.
    start: u64,
}

impl Brokers {
    /// Looks for the script and fetches Kafka; brokers are started when a workload says how many.
    pub(super) fn new(places: &Places) -> Result<Brokers, BenchError> {
        let path = needed(places.peers.join("kafka/kafka.sh"), "run it in the repository's root, or give --peers-dir")?;
        script(&path, &["fetch"])?;
        Ok(Brokers { script: path, running: Mutex::default() })
    }

    /// So many brokers: those that run, or fresh ones. Their settings are Kafka's own, but that deleted topics give their space back soon.
    fn serve(&self, nodes: usize) -> Result<Serving, BenchError> {
        let mut running = self.running.lock();
        if running.pids.len() != nodes {
            self.end(&mut running);
            running.start += 1;
            for number in 1..=nodes {
                let words = settings(number, nodes);
                let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
                words.insert(0, "start");
                let outcome = self.run(number, nodes, &words);
                let pid = outcome.and_then(|_| self.run(number, nodes, &["pid"]));
                let pid = pid.and_then(|pid| {
                    pid.parse().map_err(|e| BenchError::server(format!("reading the process id {pid}"), e))
                });
                match pid {
                    Ok(pid) => running.pids.push(pid),
                    Err(error) => {
                        // The script may have left it half started.
                        let _ = self.run(number, nodes, &["stop"]);
                        self.end(&mut running);
                        return Err(error);
                    }
                }
            }
        }
        let bootstrap = (1..=nodes).map(|number| format!("127.0.0.1:{}", port(number))).collect::<Vec<_>>().join(",");
        Ok(Serving { bootstrap, pids: running.pids.clone(), start: running.start })
    }

    /// kill -9 of the last broker: the first one is the controller as well, of which a cluster as it is started here has one.
    fn kill_last(&self) -> Result<(), BenchError> {
        let running = self.running.lock();
        let pid = running.pids.last().and_then(|pid| Pid::from_raw(i32::try_from(*pid).ok()?));
        let pid = pid.ok_or_else(|| BenchError::server("killing a broker", "none runs"))?;
        // The script's own child has ended, so nobody reaps the broker; its id is in the file that the script looks at.
        kill_process(pid, Signal::KILL).map_err(|e| BenchError::io("killing a broker", e.into()))
    }

    fn stop(&self) {
        self.end(&mut self.running.lock());
    }

    fn end(&self, running: &mut Running) {
        let count = running.pids.len();
        // The controller goes last.
        for number in (1..=count).rev() {
            let _ = self.run(number, count, &["stop"]);
        }
        running.pids.clear();
    }

    fn run(&self, number: usize, nodes: usize, words: &[&str]) -> Result<String, BenchError> {
        let mut command = Command::new(&self.script);
        command.args(words).env("KAFKA_PORT", port(number).to_string()).stdin(Stdio::null());
        if nodes > 1 {
            command.env("KAFKA_CLUSTER_ID", CLUSTER_ID).env("KAFKA_HEAP", CLUSTER_HEAP);
        }
        output_of(command)
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether each batch waits for a disk or for other brokers.
fn is_slow(workload: &Workload) -> bool {
    workload.durability == Safety::Power || workload.copies > 1
}

fn port(number: usize) -> u16 {
    let first = std::env::var("KAFKA_PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(PORT);
    first + PORTS_APART * (number as u16 - 1)
}

/// Settings of one of several brokers, of which the first is the controller.
fn settings(number: usize, nodes: usize) -> Vec<String> {
    let mut words = vec!["log.segment.delete.delay.ms=1000".to_owned()];
    if nodes > 1 {
        words.push(format!("offsets.topic.replication.factor={}", nodes.min(3)));
    }
    if number > 1 {
        words.extend([
            format!("node.id={number}"),
            "process.roles=broker".into(),
            format!("listeners=PLAINTEXT://127.0.0.1:{}", port(number)),
            format!("controller.quorum.voters=1@127.0.0.1:{}", port(1) + 1),
        ]);
    }
    words
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
    brokers: Arc<Brokers>,
    client: Client,
    dir: PathBuf,
    quick: bool,
    /// The brokers that it has warmed up.
    warmed: Option<Serving>,
}

impl Kafka {
    /// Loads brokers through librdkafka.
    pub(super) fn librdkafka(brokers: Arc<Brokers>, places: &Places) -> Result<Kafka, BenchError> {
        let how = "build it: cargo build --release --manifest-path peers/rdkafka-bench/Cargo.toml (needs a C compiler and make)";
        let load = needed(places.peers.join("rdkafka-bench/target/release/rdkafka-bench"), how)?;
        Ok(Kafka::new(brokers, Client::Librdkafka(load), places))
    }

    /// Loads brokers with Kafka's Java clients, which are compiled first.
    pub(super) fn java(brokers: Arc<Brokers>, places: &Places) -> Result<Kafka, BenchError> {
        script(&brokers.script, &["load-build"])?;
        Ok(Kafka::new(brokers, Client::Java, places))
    }

    fn new(brokers: Arc<Brokers>, client: Client, places: &Places) -> Kafka {
        Kafka { brokers, client, dir: places.dir.clone(), quick: places.quick, warmed: None }
    }

    /// As many brokers as the workload wants, warmed up by this client.
    fn serve(&mut self, workload: &Workload, stop: &Stop) -> Result<Serving, BenchError> {
        let serving = self.brokers.serve(workload.nodes as usize)?;
        if self.warmed.as_ref() != Some(&serving) {
            let usual = Workload { nodes: workload.nodes, copies: workload.copies, ..Workload::default() };
            let mut warm = self.command(&serving, "both", &usual);
            let records = if workload.nodes > 1 { CLUSTER_WARMUP_RECORDS } else { WARMUP_RECORDS };
            warm.args(["--records", &records.to_string()]);
            output(warm, stop)?;
            self.warmed = Some(serving.clone());
        }
        Ok(serving)
    }

    fn command(&self, serving: &Serving, what: &str, workload: &Workload) -> Command {
        let mut command = match &self.client {
            Client::Librdkafka(load) => Command::new(load),
            Client::Java => {
                let mut command = Command::new(&self.brokers.script);
                command.arg("load");
                command
            }
        };
        command.arg(what).args(["--bootstrap", &serving.bootstrap]);
        let mut flag = |name: &str, value: String| {
            command.arg(name).arg(value);
        };
        flag("--topics", workload.streams.to_string());
        flag("--partitions", workload.streamlets.to_string());
        flag("--replication", workload.copies.to_string());
        flag("--record-bytes", workload.record_bytes.to_string());
        flag("--batch-bytes", workload.chunk_bytes.to_string());
        flag("--linger-ms", workload.linger_ms.to_string());
        let slow = (SLOW_BUFFER.0 * workload.partitions() * workload.chunk_bytes).clamp(SLOW_BUFFER.1, BUFFER_BYTES);
        let buffer = if is_slow(workload) { slow } else { BUFFER_BYTES };
        flag("--buffer-bytes", buffer.to_string());
        flag("--producers", workload.producers.to_string());
        flag("--consumers", workload.consumers.to_string());
        if workload.durability == Safety::Power {
            flag("--topic-property", "flush.messages=1".into());
        }
        if workload.copies > 1 {
            flag("--topic-property", "min.insync.replicas=2".into());
            flag("-X", "acks=all".into());
            flag("-X", "enable.idempotence=true".into());
        }
        command
    }

    fn flags(&self, serving: &Serving, job: &Job<'_>) -> Command {
        let workload = job.workload;
        let mut command = self.command(serving, command_of(workload), workload);
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
            // Java clients do not warm up for longer than JAVA_WARMUP's seconds.
            _ if is_java && workload.durability == Safety::Process => (1_000_000_000, JAVA_WARMUP.0, job.seconds),
            // A sync or two copies for each batch: the warm-up would take longer than the run.
            _ if is_slow(workload) => (1_000_000_000, 1000, job.seconds),
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

    fn drive(&self, serving: &Serving, job: &Job<'_>) -> Result<Outcome, BenchError> {
        let command = self.flags(serving, job);
        let servers = serving.pids.clone();
        let load = Load { command, servers, dir: &self.dir, metrics: vec![], read: read_json };
        if job.workload.mode != Mode::Outage {
            return drive(load, job, |_| Ok(()));
        }
        // Java clients warm up for longer than they are asked to; those of librdkafka are not slower at first.
        let at = Duration::from_secs_f64(job.warmup_seconds + job.seconds * OUTAGE_AT);
        let mut killed: Option<Instant> = None;
        let outcome = drive(load, job, |elapsed| {
            if killed.is_none() && elapsed >= at {
                self.brokers.kill_last()?;
                killed = Some(Instant::now());
            }
            Ok(())
        });
        // The next one begins with brokers that have lost nothing.
        self.brokers.stop();
        killed.map_or_else(|| Err(nobody_was_killed()), |_| outcome)
    }

    fn delete(&self, serving: &Serving, workload: &Workload) {
        // A topic that is left costs the next runs a little, and is gone with the broker.
        let _ = output(self.command(serving, "delete", workload), &Stop::new());
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
            "one broker with its own settings and 1.5 GB of heap, or in a cluster several with 1 GB each, of which the first is the \
             controller as well; warmed up.{client} {ways} Kafka has no bound on what it keeps in these runs."
        )
    }

    fn guarantees(&self, workload: &Workload) -> String {
        let copies = match workload.copies {
            1 => "one copy, acks=1, no idempotence".to_owned(),
            n => format!("{n} copies, acks=all, min.insync.replicas=2, idempotence"),
        };
        match workload.durability {
            Safety::Process => format!("{copies}; acknowledged when it is in the page cache: survives kill -9"),
            Safety::Power => format!("{copies}, flush.messages=1: synced before it is acknowledged"),
        }
    }

    fn leaves_out(&self, workload: &Workload) -> Option<String> {
        if workload.mode == Mode::Start {
            return Some("its script starts tools that take longer than the broker".into());
        }
        if workload.partitions() > 10_000 {
            return Some("a single broker is not meant for more than some thousand partitions".into());
        }
        if workload.mode == Mode::Outage && (workload.nodes == 1 || matches!(self.client, Client::Java)) {
            return Some("a broker is killed in a cluster only, loaded through librdkafka".into());
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
        let serving = self.serve(job.workload, job.stop)?;
        if job.workload.mode == Mode::Consume {
            let mut fill = self.command(&serving, "produce", job.workload);
            fill.args(["--keep", "--records", &job.workload.records.to_string()]);
            output(fill, job.stop)?;
            let outcome = self.drive(&serving, job);
            self.delete(&serving, job.workload);
            return outcome;
        }
        let outcome = self.drive(&serving, job);
        if outcome.is_err() && job.workload.mode != Mode::Outage {
            self.delete(&serving, job.workload);
        }
        outcome
    }

    fn stop(&mut self) {
        // Brokers that one run has failed on serve the next one: starting them takes longer than everything else.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_of_a_cluster_have_one_controller_and_ports_of_their_own() {
        assert!(settings(1, 1).iter().all(|one| !one.contains("replication.factor")));
        let (first, third) = (settings(1, 3).join(" "), settings(3, 3).join(" "));
        assert!(!first.contains("process.roles") && third.contains("process.roles=broker"), "{first} {third}");
        assert!(third.contains(&format!("1@127.0.0.1:{}", port(1) + 1)) && third.contains(&port(3).to_string()));
    }
}
