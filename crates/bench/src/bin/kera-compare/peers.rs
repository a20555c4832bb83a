//! The two sides: a node of KerA and a broker of Kafka, each with its load generator as a process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kera_bench::BenchError;
use kera_bench::server::{Server, ServerConfig};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::points::{KafkaClient, KafkaLoad, Point};

/// Runs a load generator and reads the JSON that it prints. One that failed, or that has counted errors, is an error: what it says of the rest
/// is not what was asked for.
fn json_of(command: &mut Command) -> Result<Value, BenchError> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped()).output();
    let output = output.map_err(|e| BenchError::io(format!("running {shown}"), e))?;
    if !output.status.success() {
        return Err(BenchError::server(shown, String::from_utf8_lossy(&output.stderr).trim()));
    }
    let said = serde_json::from_slice(&output.stdout);
    let said = said.map_err(|e| BenchError::server(format!("reading the output of {shown}"), e))?;
    without_errors(said).map_err(|why| BenchError::server(shown, why))
}

/// What a load generator says, unless one of its sides has counted errors.
fn without_errors(said: Value) -> Result<Value, String> {
    for (side, pointer) in [("the main side", "/errors"), ("consumers", "/consume/errors")] {
        let errors = said.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        if errors > 0 {
            let first = said.get("first_error").and_then(Value::as_str).unwrap_or("it does not say which");
            return Err(format!("{side} had {errors} errors; the first: {first}"));
        }
    }
    Ok(said)
}

/// KerA.
pub(crate) struct Kera {
    program: PathBuf,
    dir: PathBuf,
    arena_bytes: u64,
    /// The common node, started when first needed.
    node: Option<Server>,
}

impl Kera {
    pub(crate) fn new(program: PathBuf, dir: PathBuf, arena_bytes: u64) -> Kera {
        Kera { program, dir, arena_bytes, node: None }
    }

    /// Where its data is, once a node has been started.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn start(&self, arena_bytes: u64) -> Result<Server, BenchError> {
        remake(&self.dir)?;
        let config = ServerConfig { arena_bytes: Some(arena_bytes), ..ServerConfig::in_dir(&self.program, &self.dir) };
        Ok(Server::start(config)?.0)
    }

    /// One run of a point.
    pub(crate) fn run(&mut self, point: &Point) -> Result<Value, BenchError> {
        if point.own_node_arena.is_some() {
            self.stop();
        }
        let mut node = match (self.node.take(), point.own_node_arena) {
            (Some(node), None) => node,
            (_, arena_bytes) => self.start(arena_bytes.unwrap_or(self.arena_bytes))?,
        };
        let mut command = Command::new(&self.program);
        command.arg("bench").args(&point.kera).arg("--json").args(["--connect", &node.address()]);
        let value = json_of(&mut command);
        if point.own_node_arena.is_some() {
            let _ = node.stop(Duration::from_secs(60));
        } else {
            self.node = Some(node);
        }
        settle();
        value
    }

    fn stop(&mut self) {
        if let Some(mut node) = self.node.take() {
            let _ = node.stop(Duration::from_secs(60));
        }
    }
}

impl Drop for Kera {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A load generator, and the server that it loads: whatever speaks Kafka's protocol.
pub(crate) struct Load {
    program: PathBuf,
    /// Words in front of the load's own.
    words: &'static [&'static str],
    bootstrap: String,
    pid: String,
}

impl Load {
    /// librdkafka's.
    pub(crate) fn new(program: &Path, bootstrap: String, pid: String) -> Load {
        Load { program: program.to_owned(), words: &[], bootstrap, pid }
    }

    /// That of Kafka's own Java clients, which Kafka's script starts.
    fn java(script: &Path, of: &Load) -> Load {
        let (bootstrap, pid) = (of.bootstrap.clone(), of.pid.clone());
        Load { program: script.to_owned(), words: &["load"], bootstrap, pid }
    }

    /// One run.
    pub(crate) fn run(&self, words: &[String]) -> Result<Value, BenchError> {
        let value = if words.first().is_some_and(|word| word == "produce-and-consume") {
            // A topic is filled, and then read: the reading counts.
            self.command("produce", &words[1..], &["--keep"])?;
            let consumed = self.command("consume", &words[1..], &[]);
            let mut delete = Command::new(&self.program);
            let _ = delete.args(self.words).args(["delete", "--bootstrap", &self.bootstrap]).output();
            consumed
        } else {
            self.command(&words[0], &words[1..], &[])
        };
        settle();
        value
    }

    fn command(&self, command: &str, words: &[String], more: &[&str]) -> Result<Value, BenchError> {
        let mut run = Command::new(&self.program);
        run.args(self.words).arg(command).args(words).args(more);
        json_of(run.args(["--bootstrap", &self.bootstrap, "--server-pid", &self.pid]))
    }
}

/// Kafka.
pub(crate) struct Kafka {
    script: PathBuf,
    load: Load,
    java: Load,
}

impl Kafka {
    /// Starts a broker. Its settings are Kafka's own, but that deleted topics give their space back soon.
    pub(crate) fn new(script: &Path, load: &Path) -> Result<Kafka, BenchError> {
        if !load.is_file() {
            let message = format!(
                "there is no {}; build it with `cargo build --release --manifest-path peers/rdkafka-bench/Cargo.toml`",
                load.display()
            );
            return Err(BenchError::Setting { flag: "rdkafka-bench", message });
        }
        stop_when_interrupted(script)?;
        let started = script_output(script, &["start", "log.segment.delete.delay.ms=1000"])?;
        let load = Load::new(load, started, String::new());
        let mut kafka = Kafka { script: script.to_owned(), java: Load::java(script, &load), load };
        let pid = script_output(script, &["pid"])?;
        (kafka.load.pid, kafka.java.pid) = (pid.clone(), pid);
        Ok(kafka)
    }

    /// Compiles the load generator of the Java clients.
    pub(crate) fn build_java(&self) -> Result<(), BenchError> {
        script_output(&self.script, &["load-build"]).map(|_| ())
    }

    /// One run of librdkafka's load generator.
    pub(crate) fn run(&self, words: &[String]) -> Result<Value, BenchError> {
        self.load.run(words)
    }

    /// One run of whichever load generator.
    pub(crate) fn run_load(&self, load: &KafkaLoad) -> Result<Value, BenchError> {
        match load.client {
            KafkaClient::Librdkafka => self.load.run(&load.words),
            KafkaClient::Java => self.java.run(&load.words),
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).arg("stop").output();
    }
}

/// The broker is in a session of its own: whoever interrupts or ends this program would leave it behind.
fn stop_when_interrupted(script: &Path) -> Result<(), BenchError> {
    let script = script.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|e| BenchError::io("listening for signals", e))?;
    let mut term = {
        let _inside = runtime.enter();
        signal(SignalKind::terminate()).map_err(|e| BenchError::io("listening for signals", e))?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = term.recv() => {}
            }
        });
        eprintln!("kera-compare: interrupted, stopping Kafka");
        let _ = Command::new(&script).arg("stop").output();
        std::process::exit(130);
    });
    Ok(())
}

fn script_output(script: &Path, words: &[&str]) -> Result<String, BenchError> {
    let shown = format!("{} {}", script.display(), words.join(" "));
    let mut command = Command::new(script);
    // The broker outlives the script, so the script's output goes to a file that nobody has to wait for.
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|e| BenchError::io(format!("running {shown}"), e))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(BenchError::server(shown, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// An empty directory.
pub(crate) fn remake(dir: &Path) -> Result<(), BenchError> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).map_err(|e| BenchError::io_at("creating", dir, e))
}

/// Lets what one side left to be written reach the disk, so that the other does not pay for it.
fn settle() {
    rustix::fs::sync();
    std::thread::sleep(Duration::from_secs(1));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_with_errors_is_none() {
        assert!(without_errors(json!({ "errors": 0, "consume": { "errors": 0 } })).is_ok());
        assert!(without_errors(json!({ "records": 1 })).is_ok());
        let why = without_errors(json!({ "errors": 3, "first_error": "too slow" })).unwrap_err();
        assert!(why.contains("3 errors") && why.contains("too slow"), "{why}");
        let why = without_errors(json!({ "errors": 0, "consume": { "errors": 2 } })).unwrap_err();
        assert!(why.contains("consumers had 2 errors"), "{why}");
    }
}
