//! Nodes and commands for tests with the real binary: free ports, directories that go away, and log lines that must not
//! be there.
#![allow(unreachable_pub, reason = "one binary has all tests")]

pub mod kafka;
pub mod members;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The longest that anything may take before a test gives up. Disks and processors that stand still for seconds again and again are no defect.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Says that a test proves nothing, for want of something that is not there. Continuous integration has it: there the test fails.
pub fn lacks(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what} is not there, and `CI` is set: nothing may be left out");
    eprintln!("{what} is not there: nothing to test");
}

/// The `kera` binary with an environment that the tests control.
pub fn kera<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KERA_")) {
        command.env_remove(name);
    }
    // Machines that run tests stand still for longer than a node may be silent in a cluster. One that has ended is noticed at once all the same.
    command.env("_KERA_LOST_AFTER_MS", "3000");
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    kera(args).output().expect("the binary runs")
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("the output is text")
}

/// Both as text.
pub fn both(output: &Output) -> String {
    format!("{}{}", stdout(output), stderr(output))
}

/// `kera verify` writes so many records to a stream, at a rate a second, and keeps in `log` what was acknowledged.
pub fn verify_produce(stream: &str, log: &str, records: u32, rate: u32, connect: &str) -> Child {
    let line =
        format!("verify produce --stream {stream} --log {log} --records {records} --rate {rate} --connect {connect}");
    kera(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Everything that was acknowledged by `log` is there, once and in order, and it is so many records.
pub fn verify_consume(stream: &str, log: &str, records: u32, connect: &str) {
    let consumed = run(format!("verify consume --stream {stream} --log {log} --connect {connect}").split_whitespace());
    assert!(consumed.status.success(), "{}", both(&consumed));
    let said = format!("{records} records acknowledged, {records} read");
    assert!(stdout(&consumed).contains(&said), "{}", both(&consumed));
}

/// A file of the repository's sample data.
pub fn sample(name: &str) -> String {
    format!("{}/../../data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A data directory and an arena directory that go away with the test.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("there is room for a test") }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The arena's directory: shared memory, so that a kill behaves as it does for users.
    pub fn arena(&self) -> PathBuf {
        self.dir.path().join("arena")
    }

    /// Arena files that are there.
    pub fn arena_files(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.arena()) else { return Vec::new() };
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        files.filter(|path| path.extension().is_some_and(|end| end == "arena")).collect()
    }

    /// Flags of a node that lives here.
    pub fn flags(&self) -> Vec<String> {
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        [
            "serve",
            "--data",
            &path(self.data()),
            "--arena-dir",
            &path(self.arena()),
            "--arena-bytes",
            "64MiB",
            "--listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
            "--kafka-listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            // Disks may stand still for seconds at each of the steps to a graceful end.
            "--stop-timeout",
            "200s",
        ]
        .map(String::from)
        .to_vec()
    }

    /// Starts a node and waits until it is ready.
    pub fn start(&self) -> Node {
        self.start_with(&[])
    }

    /// Starts a node with more flags.
    pub fn start_with(&self, more: &[&str]) -> Node {
        let mut flags = self.flags();
        flags.extend(more.iter().map(|s| (*s).to_owned()));
        Node::start_flags(&flags)
    }
}

/// A node in a process of its own. Dropped, it is killed, and unexpected log lines fail the test.
pub struct Node {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<thread::JoinHandle<()>>,
    ready: Value,
    expected: Vec<&'static str>,
    /// Whether others may take it for lost, or it them.
    is_of_cluster: bool,
}

impl Node {
    /// Starts a node with exactly these flags.
    pub fn start_flags(flags: &[String]) -> Node {
        let mut child = kera(flags).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let stderr = child.stderr.take().expect("it is piped");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = lines.clone();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                writer.lock().unwrap().push(line);
            }
        });
        let is_of_cluster = flags.iter().any(|flag| flag == "--node");
        let (reader, expected) = (Some(reader), Vec::new());
        let mut node = Node { child, lines, reader, ready: Value::Null, expected, is_of_cluster };
        node.ready = node.wait_for("ready");
        node
    }

    /// Waits for a log line with this message.
    pub fn wait_for(&mut self, message: &str) -> Value {
        let started = Instant::now();
        loop {
            for line in self.lines.lock().unwrap().iter() {
                if let Ok(value) = serde_json::from_str::<Value>(line)
                    && value["message"] == message
                {
                    return value;
                }
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && started.elapsed() < PATIENCE, "no `{message}`: {ended:?}\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// All log lines so far.
    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Fields of the line at ready.
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    pub fn address(&self) -> String {
        self.ready["listen"].as_str().expect("it says where it listens").to_owned()
    }

    /// Where it listens now: one that was taken for lost has started again by itself, perhaps at another port.
    pub fn http(&self) -> String {
        let lines = self.lines.lock().unwrap();
        let mut parsed = lines.iter().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ready = parsed.find(|line| line["message"] == "ready");
        ready.as_ref().unwrap_or(&self.ready)["http"].as_str().expect("it says where HTTP listens").to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A warning or error with this text is expected.
    pub fn expect_warning(&mut self, text: &'static str) {
        self.expected.push(text);
    }

    /// A command against this node.
    pub fn command(&self, line: &str) -> Command {
        let mut command = kera(line.split_whitespace());
        command.env("KERA_CONNECT", self.address());
        command
    }

    /// Runs a command against this node.
    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("the binary runs")
    }

    /// Runs a command that must succeed, and returns what it prints.
    ///
    /// On a machine that stands still for a second a node of a cluster is taken for lost, and starts again by itself: what is refused for that alone
    /// is asked again, as people do who read what they are told.
    pub fn ok(&self, line: &str) -> String {
        let started = Instant::now();
        loop {
            let output = self.run(line);
            if output.status.success() {
                return stdout(&output);
            }
            let said = stderr(&output);
            let passes = self.is_of_cluster && started.elapsed() < PATIENCE && may_pass(line, &said);
            assert!(passes, "kera {line}: {}\n{}{said}", output.status, stdout(&output));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a command that must fail, and returns its exit status and what it says.
    pub fn fails(&self, line: &str) -> (i32, String) {
        let output = self.run(line);
        assert!(!output.status.success(), "kera {line} should fail, and said {}", stdout(&output));
        (output.status.code().unwrap_or(-1), stderr(&output))
    }

    /// Runs a command with `--json` and reads what it prints.
    pub fn json(&self, line: &str) -> Value {
        let text = self.ok(&format!("{line} --json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("kera {line}: {error}\n{text}"))
    }

    /// An HTTP request without a body; returns status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.http_request("GET", path, "")
    }

    pub fn http_request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let started = Instant::now();
        let answer = loop {
            match self.answer_to(&request) {
                Ok(answer) => break answer,
                // It is about to start again by itself, for it was taken for lost.
                Err(error) => {
                    let is_harmless = method == "GET" || error.kind() == ErrorKind::ConnectionRefused;
                    let passes = self.is_of_cluster && is_harmless && started.elapsed() < PATIENCE;
                    assert!(passes, "HTTP does not answer: {error}\n{}", self.log());
                }
            }
            thread::sleep(Duration::from_millis(50));
        };
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("the answer has a status");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, body.to_owned())
    }

    fn answer_to(&self, request: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.http())?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        if name == "STOP" {
            eventually("all its threads stand still", || self.stands_still());
        }
    }

    /// On a busy machine a thread may run on for a moment after the signal was sent.
    fn stands_still(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let state = |task: &Path| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
        };
        tasks.flatten().all(|task| state(&task.path()) == Some('T'))
    }

    /// Stops it gracefully and returns its exit status.
    pub fn stop(mut self) -> i32 {
        self.signal("TERM");
        self.wait_end()
    }

    /// Waits for its end and returns its exit status.
    pub fn wait_end(&mut self) -> i32 {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(started.elapsed() < PATIENCE, "it does not end\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if thread::panicking() {
            eprintln!("the node said:\n{}", self.log());
            return;
        }
        for line in self.lines.lock().unwrap().iter() {
            let level = serde_json::from_str::<Value>(line).map_or(Value::Null, |value| value["level"].clone());
            let is_quiet = matches!(level.as_str(), Some("INFO" | "DEBUG" | "TRACE"));
            let is_expected = self.expected.iter().any(|text| line.contains(text));
            assert!(is_quiet || is_expected, "unexpected line: {line}");
        }
    }
}

/// Whether a command was refused because a node is away for a moment, and may be given again.
fn may_pass(line: &str, said: &str) -> bool {
    // Nobody has heard of these commands, or they ask for more nodes than are there.
    let refused = [
        "start a node with `kera serve`",
        "try again in a moment; /readyz",
        "to hold copies; ask for",
        "at most for now",
    ];
    // Whoever only reads may do it again.
    let broken_off = [
        "`kera status` shows which nodes are lost",
        "which is lost",
        "try again, on another connection",
        "ask FindOwners",
        "ask another node who owns what",
        "has not heard from a majority",
        "the leader of the coordinators does not say",
    ];
    let reads =
        ["status", "stream list", "stream describe", "cluster level", "application list", "application describe"];
    let only_reads = reads.iter().any(|of| line.starts_with(of))
        || (line.starts_with("consume ") && !line.contains("--application"))
        || line.contains("--dry-run");
    // What has moved stays where it is to be.
    let moves = ["streamlet move", "node drain"].iter().any(|of| line.starts_with(of));
    let called_off = ["called off", "is not over after", " lost"];
    // Whoever writes or commits may have done a part of it; all others are told so before anything is done.
    let is_part = ["produce", "consume", "verify", "bench"].iter().any(|of| line.starts_with(of));
    let is_away = said.contains("no majority of the coordinators") && (only_reads || !is_part);
    is_away
        || refused.iter().any(|words| said.contains(words))
        || (only_reads && broken_off.iter().any(|words| said.contains(words)))
        || (moves && called_off.iter().any(|words| said.contains(words)))
}

/// The lines of a text.
pub fn lines(text: &str) -> Vec<String> {
    text.lines().map(String::from).collect()
}

/// The same in the order of the alphabet, where theirs does not matter.
pub fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// A node with a stream `flights` that has these options.
pub fn with_stream(options: &str) -> (Place, Node) {
    let place = Place::new();
    let node = place.start();
    node.ok(&format!("stream create flights {options}"));
    (place, node)
}

/// A command with its standard output as lines that can be read while it runs.
pub fn follow(node: &Node, line: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = node.command(line).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out.lines().map_while(Result::ok))
}

/// Ends a process as whoever stops it does.
pub fn terminate(child: &Child) {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
}

/// Waits for the end of a process, and returns its exit status; nothing if a signal has ended it.
pub fn end_of(child: &mut Child) -> Option<i32> {
    let mut ended = None;
    eventually("its end", || {
        ended = child.try_wait().expect("it is a child");
        ended.is_some()
    });
    ended.and_then(|status| status.code())
}

/// Waits until `holds` does.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} did not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Changes a bit of a file, in the midst of it.
pub fn change_a_bit(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let at = bytes.len() / 2;
    bytes[at] ^= 2;
    std::fs::write(path, bytes).expect("it can be written");
}

/// The files of a directory, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// Whether a file or directory is there.
pub fn exists(path: &Path) -> bool {
    path.exists()
}
