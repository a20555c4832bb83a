//! Systems that can be measured: KerA and its peers. Each has an adapter that starts the server, and drives a load generator
//! in a process of its own that prints one JSON object with the fields of `kera bench`.
//!
//! Everything that is started here ends with the adapter, by its process id.

mod kafka;
pub mod kera;
mod nats;
mod nodes;
mod peer;
mod redis;

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::run::Missing;
use super::sample::{Sampler, Snapshot, Usage, Watched, usage};
use super::stop::Stop;
use super::workload::Workload;
use crate::BenchError;
use crate::server::end_with_parent;

/// How often a load generator is looked after.
const LOOK: Duration = Duration::from_millis(5);

/// A system under measurement.
pub trait System {
    /// Its name on the command line and in results.
    fn name(&self) -> &'static str;
    /// Versions of server and load generator, for people.
    fn version(&self) -> String;
    /// How its server is set up, for people.
    fn settings(&self) -> String;
    /// What an acknowledgement means with this workload.
    fn guarantees(&self, workload: &Workload) -> String;
    /// Why it cannot do this workload, if it cannot.
    fn leaves_out(&self, workload: &Workload) -> Option<String>;
    /// Ways to load it, of which the best counts; one of them is the empty one.
    fn ways(&self, _workload: &Workload) -> Vec<&'static str> {
        vec![""]
    }
    /// One measurement. Starts the server first if it does not run as this workload wants it.
    fn measure(&mut self, job: &Job<'_>) -> Result<Outcome, BenchError>;
    /// Stops the server and removes what it had.
    fn stop(&mut self);
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// What is done.
    pub workload: &'a Workload,
    /// Which of the system's ways.
    pub way: &'a str,
    /// Records that are sent instead of sending for a time; for tests, in which nothing may depend on time.
    pub records: Option<u64>,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seconds before.
    pub warmup_seconds: f64,
    /// How often to look at what it costs.
    pub look_every: Duration,
    /// Whether the server's own counters are read meanwhile.
    pub profile: bool,
    /// Whether the user has had enough.
    pub stop: &'a Stop,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the load generator printed.
    pub figures: Value,
    /// What the measured stretch cost.
    pub usage: Usage,
    /// The load generator and its flags.
    pub command: Vec<String>,
    pub(super) seen: Vec<Snapshot>,
}

/// A load generator that is about to run.
pub(super) struct Load<'a> {
    pub(super) command: Command,
    /// Processes whose cost is counted.
    pub(super) servers: Vec<u32>,
    pub(super) dir: &'a Path,
    pub(super) metrics: Vec<SocketAddr>,
    /// What its output says, as the fields of `kera bench`.
    pub(super) read: fn(&str) -> Result<Value, String>,
}

/// Runs a load generator, looks on, and reads what it prints. `meanwhile` is called all the time with the time since it started.
pub(super) fn drive(
    load: Load<'_>,
    job: &Job<'_>,
    mut meanwhile: impl FnMut(Duration) -> Result<(), BenchError>,
) -> Result<Outcome, BenchError> {
    let words = words_of(&load.command);
    let mut running = Running::spawn(load.command)?;
    let sampler = Sampler::start(Watched {
        servers: load.servers,
        client: running.child.id(),
        dir: load.dir.to_owned(),
        every: job.look_every,
        metrics: if job.profile { load.metrics } else { vec![] },
    });
    let started = Instant::now();
    let text = running.wait(job.stop, || meanwhile(started.elapsed()));
    let seen = sampler.finish();
    let stall_ms = running.stall.as_secs_f64() * 1e3;
    let shown = words.join(" ");
    let mut figures =
        (load.read)(&text?).map_err(|e| BenchError::server(format!("reading the output of {shown}"), e))?;
    if let Some(fields) = figures.as_object_mut() {
        fields.insert("stall_ms".into(), stall_ms.into());
    }
    let seconds = figures.get("seconds").and_then(Value::as_f64).unwrap_or(job.seconds);
    Ok(Outcome { usage: usage(&seen, seconds), figures, command: words, seen })
}

/// Reads what `kera bench --json` and its likes print.
pub(super) fn read_json(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text.trim()).map_err(|e| format!("{e}: {}", text.trim()))?;
    match value.get("errors").and_then(Value::as_u64).unwrap_or(0) {
        0 => Ok(value),
        n => Err(format!("{n} errors; the first: {}", value["first_error"])),
    }
}

/// Runs a command to its end; gives what it printed.
pub(super) fn output(command: Command, stop: &Stop) -> Result<String, BenchError> {
    Running::spawn(command)?.wait(stop, || Ok(()))
}

fn words_of(command: &Command) -> Vec<String> {
    // The program without its folder: results say nothing of where somebody keeps it.
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// A child whose output is read. It is killed when dropped.
struct Running {
    child: Child,
    out: Option<std::thread::JoinHandle<String>>,
    err: Option<std::thread::JoinHandle<String>>,
    words: String,
    /// The longest that the machine let a thread wait that had slept for a moment: what no system that is measured can help.
    stall: Duration,
}

impl Running {
    fn spawn(mut command: Command) -> Result<Running, BenchError> {
        let words = words_of(&command).join(" ");
        end_with_parent(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| BenchError::io(format!("running {words}"), e))?;
        let out = child.stdout.take().map(collect);
        let err = child.stderr.take().map(collect);
        Ok(Running { child, out, err, words, stall: Duration::ZERO })
    }

    fn wait(
        &mut self,
        stop: &Stop,
        mut meanwhile: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<String, BenchError> {
        let status = loop {
            if let Some(status) =
                self.child.try_wait().map_err(|e| BenchError::io("waiting for a load generator", e))?
            {
                break status;
            }
            stop.check()?;
            meanwhile()?;
            let slept = Instant::now();
            std::thread::sleep(LOOK);
            self.stall = self.stall.max(slept.elapsed().saturating_sub(LOOK));
        };
        let text =
            |thread: Option<std::thread::JoinHandle<String>>| thread.and_then(|t| t.join().ok()).unwrap_or_default();
        let (out, err) = (text(self.out.take()), text(self.err.take()));
        stop.check()?;
        if status.success() {
            return Ok(out);
        }
        let why = if err.trim().is_empty() { status.to_string() } else { err.trim().to_owned() };
        Err(BenchError::server(&self.words, why))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A child that has been waited for is not signalled again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Where adapters find their programs and keep their data.
#[derive(Clone, Debug)]
pub struct Places {
    /// The `kera` program.
    pub kera: PathBuf,
    /// The folder `peers` of the repository.
    pub peers: PathBuf,
    /// Where servers keep their data; a folder for each below it, removed afterwards.
    pub dir: PathBuf,
    /// Whether runs are short: then peers are loaded in one way only.
    pub quick: bool,
}

/// What can be asked for, KerA first.
pub const NAMES: [&str; 5] = ["kera", "kafka", "kafka-java", "nats", "redis"];

/// Systems that were asked for.
pub struct Opened {
    /// Those that are there, KerA first.
    pub systems: Vec<Box<dyn System>>,
    /// Those that are not, and why.
    pub missing: Vec<Missing>,
}

/// Adapters for systems by name. Peers that are not there come back with the reason; without KerA there is nothing to compare.
pub fn open(names: &[String], places: &Places) -> Result<Opened, BenchError> {
    let mut systems: Vec<Box<dyn System>> = vec![Box::new(kera::Kera::new(places)?)];
    let (mut missing, mut brokers) = (Vec::new(), None);
    for name in names.iter().filter(|name| *name != "kera") {
        match open_peer(name, places, &mut brokers) {
            Ok(system) => systems.push(system),
            Err(error) => missing.push(Missing { system: name.clone(), why: error.to_string() }),
        }
    }
    Ok(Opened { systems, missing })
}

/// `brokers`: Kafka's, which its two clients share.
fn open_peer(
    name: &str,
    places: &Places,
    brokers: &mut Option<Arc<kafka::Brokers>>,
) -> Result<Box<dyn System>, BenchError> {
    let mut kafka = || match brokers {
        Some(brokers) => Ok(brokers.clone()),
        None => kafka::Brokers::new(places).map(|found| brokers.insert(Arc::new(found)).clone()),
    };
    match name {
        "kafka" => Ok(Box::new(kafka::Kafka::librdkafka(kafka()?, places)?)),
        "kafka-java" => Ok(Box::new(kafka::Kafka::java(kafka()?, places)?)),
        "nats" => Ok(Box::new(nats::open(places)?)),
        "redis" => Ok(Box::new(redis::open(places)?)),
        _ => Err(BenchError::setting("peer", format!("`{name}` is none of: {}", NAMES.join(", ")))),
    }
}

/// An empty folder.
pub(super) fn remake(dir: &Path) -> Result<(), BenchError> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).map_err(|e| BenchError::io_at("creating", dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_failures_come_back_with_the_words() {
        assert_eq!(output(shell("echo yes"), &Stop::new()).unwrap(), "yes\n");
        let mut slow = Running::spawn(shell("sleep 0.1")).unwrap();
        slow.wait(&Stop::new(), || Ok(())).unwrap();
        assert!(slow.stall > Duration::ZERO, "a sleep always takes a little longer");
        let error = output(shell("echo no room >&2; exit 3"), &Stop::new()).unwrap_err().to_string();
        assert!(error.contains("no room") && error.contains("sh -c"), "{error}");
    }

    #[test]
    fn whoever_has_had_enough_does_not_wait_and_leaves_nothing_running() {
        let dir = tempfile::tempdir().unwrap();
        let (mark, stop) = (dir.path().join("mark"), Stop::new());
        let mut running = Running::spawn(shell(&format!("echo $$ > {}; exec sleep 60", mark.display()))).unwrap();
        let pid = running.child.id();
        let outcome = running.wait(&stop, || {
            if mark.exists() {
                stop.ask();
            }
            Ok(())
        });
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
        drop(running);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn errors_that_a_load_generator_counts_fail_the_run() {
        assert!(read_json("{\"errors\": 2, \"first_error\": \"lost\"}").unwrap_err().contains("lost"));
        assert!(read_json("{\"errors\": 0}").is_ok());
        assert!(read_json("done").is_err());
    }
}
