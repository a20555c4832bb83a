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

/// Seconds of load that fresh brokers get first: their hot path is compiled while they run. Several on the two cores of a small machine
/// compile for about a minute, and have a tenth of their rate until then.
const WARMUP_SECONDS: f64 = 8.0;
const CLUSTER_WARMUP_SECONDS: f64 = 60.0;
/// Seconds that a client gets at least before its clock starts: it looks for its partitions' leaders, asks for its producer id, and a Java
/// client is compiled while it runs, beside the brokers of a cluster.
const CLIENT_WARMUP_SECONDS: f64 = 1.0;
const JAVA_WARMUP_SECONDS: f64 = 3.0;
const JAVA_CLUSTER_WARMUP_SECONDS: f64 = 8.0;
/// How much longer than its load a warm-up may take.
const WARMED_UP_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take until topics of a run that failed are gone.
const DELETED_WITHIN: Duration = Duration::from_secs(20);

/// What a producer holds that is not acknowledged: the Java client's own setting. More made nothing faster.
const BUFFER_BYTES: u64 = 32 << 20;

/// Partitions that a broker is asked for at most.
const PARTITIONS_MAX: u64 = 4_000;

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
    /// Whether a client has warmed them up.
    are_warm: bool,
    /// So many did not start, or could not be warmed up, and why: that takes minutes, and is not tried at every point.
    refused: Option<(usize, String)>,
}

/// Brokers that run.
#[derive(Clone, PartialEq, Debug)]
struct Serving {
    /// Where clients reach them.
    bootstrap: String,
    /// Their processes.
    pids: Vec<u32>,
}

impl Brokers {
    /// Looks for the script and fetches Kafka; brokers are started when a workload says how many.
    pub(super) fn new(places: &Places) -> Result<Brokers, BenchError> {
        let path = needed(places.peers.join("kafka/kafka.sh"), "run it in the repository's root, or give --peers-dir")?;
        script(&path, &["fetch"])?;
        Ok(Brokers { script: path, running: Mutex::default() })
    }

    /// So many brokers: those that run, or fresh ones, which `warm_up` loads. Their settings are Kafka's own, but that deleted topics give
    /// their space back soon.
    fn serve(
        &self,
        nodes: usize,
        warm_up: impl FnOnce(&Serving) -> Result<(), BenchError>,
    ) -> Result<Serving, BenchError> {
        let mut running = self.running.lock();
        if let Some((of, why)) = running.refused.as_ref().filter(|(of, _)| *of == nodes) {
            return Err(BenchError::server(format!("{of} brokers"), format!("they failed before: {why}")));
        }
        let outcome = self.serve_now(&mut running, nodes, warm_up);
        match &outcome {
            Ok(_) | Err(BenchError::Interrupted) => {}
            Err(error) => running.refused = Some((nodes, error.to_string())),
        }
        outcome
    }

    fn serve_now(
        &self,
        running: &mut Running,
        nodes: usize,
        warm_up: impl FnOnce(&Serving) -> Result<(), BenchError>,
    ) -> Result<Serving, BenchError> {
        if running.pids.len() != nodes || !running.pids.iter().all(|pid| is_alive(*pid)) {
            self.end(running);
            running.are_warm = false;
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
                        self.end(running);
                        return Err(error);
                    }
                }
            }
        }
        let bootstrap = (1..=nodes).map(|number| format!("127.0.0.1:{}", port(number))).collect::<Vec<_>>().join(",");
        let serving = Serving { bootstrap, pids: running.pids.clone() };
        if !running.are_warm {
            warm_up(&serving)?;
            running.are_warm = true;
        }
        Ok(serving)
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

/// Whether a broker still runs. It is nobody's child here: when it has ended its id is gone, or is that of a zombie.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, behind)| !behind.starts_with(['Z', 'X']))
}

/// Has a load generator send for a time, behind a warm-up of the same producers.
fn timed(command: &mut Command, warmup_seconds: f64, seconds: f64) {
    // As many as it takes: the time ends it.
    command.args(["--records", "2000000000", "--seconds", &seconds.to_string()]);
    command.args(["--warmup-seconds", &warmup_seconds.to_string()]);
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
        Kafka { brokers, client, dir: places.dir.clone(), quick: places.quick }
    }

    /// As many brokers as the workload wants, warmed up.
    fn serve(&mut self, workload: &Workload, stop: &Stop) -> Result<Serving, BenchError> {
        self.brokers.serve(workload.nodes as usize, |serving| {
            let usual = Workload { nodes: workload.nodes, copies: workload.copies, ..Workload::default() };
            let mut warm = self.command(serving, "both", &usual);
            let seconds = if workload.nodes > 1 { CLUSTER_WARMUP_SECONDS } else { WARMUP_SECONDS };
            timed(&mut warm, CLIENT_WARMUP_SECONDS, seconds);
            let stop = stop.within(Duration::from_secs_f64(seconds) + WARMED_UP_WITHIN);
            let outcome = output(warm, &stop);
            if outcome.is_err() {
                self.delete(serving, &usual);
            }
            match (outcome, stop.check()) {
                (_, Err(BenchError::Interrupted)) => Err(BenchError::Interrupted),
                // Loaded for that long they are warm, whatever consumers have not got yet.
                (_, Err(_)) => Ok(()),
                (outcome, Ok(())) => outcome.map(|_| ()),
            }
        })
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
        flag("--buffer-bytes", BUFFER_BYTES.to_string());
        flag("--producers", workload.producers.to_string());
        flag("--consumers", workload.consumers.to_string());
        if workload.durability == Safety::Power {
            flag("--topic-property", "flush.messages=1".into());
        }
        if workload.copies > 1 {
            flag("--topic-property", "min.insync.replicas=2".into());
            flag("-X", "acks=all".into());
            // A librdkafka that is idempotent never sleeps while a partition has more to send than may be under way, and takes the cores
            // that the brokers need.
            let is_idempotent = matches!(self.client, Client::Java);
            flag("-X", format!("enable.idempotence={is_idempotent}"));
        }
        command
    }

    fn flags(&self, serving: &Serving, job: &Job<'_>) -> Command {
        let workload = job.workload;
        let mut command = self.command(serving, command_of(workload), workload);
        if !job.way.is_empty() {
            command.args(["--spread", job.way]);
        }
        let least = match (&self.client, workload.mode) {
            // A broker is killed so many seconds after the start.
            (Client::Librdkafka(_), Mode::Outage) => 0.0,
            (Client::Librdkafka(_), _) => CLIENT_WARMUP_SECONDS,
            (Client::Java, _) if workload.nodes > 1 => JAVA_CLUSTER_WARMUP_SECONDS,
            (Client::Java, _) => JAVA_WARMUP_SECONDS,
        };
        let warmup = job.warmup_seconds.max(least);
        match (workload.mode, workload.rate) {
            (Mode::Consume, _) => {
                command.args(["--records", &workload.records.to_string()]);
            }
            (_, Some(rate)) => {
                let of = |seconds: f64| ((rate * seconds) as u64).to_string();
                command.args(["--records", &of(job.seconds), "--warmup-records", &of(warmup)]);
                command.args(["--rate", &rate.to_string()]);
            }
            _ => timed(&mut command, warmup, job.seconds),
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
        let _ = output(self.command(serving, "delete", workload), &Stop::new().within(DELETED_WITHIN));
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
                " Each run is a Java machine of its own, whose clock starts after {JAVA_WARMUP_SECONDS} s at the earliest, in a cluster \
                 after {JAVA_CLUSTER_WARMUP_SECONDS} s."
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
             controller as well; warmed up for {WARMUP_SECONDS} s, or {CLUSTER_WARMUP_SECONDS} s.{client} {ways} Producers hold up to {} MiB that is not acknowledged; clocks start while they send, \
             and stop while they send. Kafka has no bound on what it keeps in these runs.",
            BUFFER_BYTES >> 20
        )
    }

    fn guarantees(&self, workload: &Workload) -> String {
        let copies = match workload.copies {
            1 => "one copy, acks=1, no idempotence".to_owned(),
            n if matches!(self.client, Client::Java) => {
                format!("{n} copies, acks=all, min.insync.replicas=2, idempotence")
            }
            n => format!("{n} copies, acks=all, min.insync.replicas=2, no idempotence"),
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
        if workload.partitions() > PARTITIONS_MAX {
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
        // Starting brokers is not part of it.
        let stop = job.stop.anew();
        let job = &Job { stop: &stop, ..job.clone() };
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
    fn brokers_that_cannot_be_started_are_not_tried_at_every_point() {
        let dir = tempfile::tempdir().unwrap();
        let (path, tries) = (dir.path().join("kafka.sh"), dir.path().join("tries"));
        std::fs::write(&path, format!("#!/bin/sh\n[ $1 = start ] && echo once >> {}\nexit 1\n", tries.display()))
            .unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let brokers = Brokers { script: path, running: Mutex::default() };
        let refused = || brokers.serve(1, |_| Ok(())).unwrap_err().to_string();
        assert!(!refused().contains("failed before") && refused().contains("failed before"));
        assert_eq!(std::fs::read_to_string(tries).unwrap().lines().count(), 1);
        assert!(!is_alive(u32::MAX) && is_alive(std::process::id()));
    }

    #[test]
    fn brokers_of_a_cluster_have_one_controller_and_ports_of_their_own() {
        assert!(settings(1, 1).iter().all(|one| !one.contains("replication.factor")));
        let (first, third) = (settings(1, 3).join(" "), settings(3, 3).join(" "));
        assert!(!first.contains("process.roles") && third.contains("process.roles=broker"), "{first} {third}");
        assert!(third.contains(&format!("1@127.0.0.1:{}", port(1) + 1)) && third.contains(&port(3).to_string()));
    }
}
