//! A server as a child process: started, waited for, stopped, killed, frozen. Ended for good when dropped.
//!
//! Every signal goes to the process that was started here, by its id, and to nothing else. The thread that starts a
//! server must live as long as the server is to live.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{BenchError, ports};

/// How to start a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The `kera` program.
    pub program: PathBuf,
    /// Its data directory.
    pub data: PathBuf,
    /// Where it listens; `None` takes a free port, the same one at every start.
    pub listen: Option<SocketAddr>,
    /// Bytes of the arena; `None` is the server's own choice.
    pub arena_bytes: Option<u64>,
    /// Where the arena file is; `None` is the server's own choice.
    pub arena_dir: Option<PathBuf>,
    /// Whether it serves HTTP, at a free port of loopback, the same one at every start.
    pub http: bool,
    /// More flags of `kera serve`. Kafka clients are served only if they say so.
    pub flags: Vec<String>,
    /// Where its log goes; appended to.
    pub log: PathBuf,
    /// How long it may take until it serves.
    pub start_timeout: Duration,
}

impl ServerConfig {
    /// A server of `program` with everything it has in `dir`.
    pub fn in_dir(program: &Path, dir: &Path) -> ServerConfig {
        ServerConfig {
            program: program.to_owned(),
            data: dir.join("data"),
            listen: None,
            arena_bytes: None,
            arena_dir: None,
            http: false,
            flags: Vec::new(),
            log: dir.join("server.log"),
            start_timeout: Duration::from_secs(60),
        }
    }
}

/// A running server, or one that was killed and can be started again.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    address: SocketAddr,
    http_address: Option<SocketAddr>,
    child: Option<Child>,
}

impl Server {
    /// Starts it and waits until it serves. Gives how long that took.
    pub fn start(config: ServerConfig) -> Result<(Server, Duration), BenchError> {
        let (listen, http) = (config.listen, config.http);
        // Both are looked for at once: a port that nobody holds would be found twice.
        let [one, other] = ports::free()?;
        let (address, http_address) = (listen.unwrap_or(one), http.then_some(other));
        let mut server = Server { config, address, http_address, child: None };
        let took = server.start_again()?;
        Ok((server, took))
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Where it serves HTTP, if it does.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Its process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// How it is started.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Starts a server that was stopped or killed, at the same address, and waits until it serves.
    pub fn start_again(&mut self) -> Result<Duration, BenchError> {
        let config = &self.config;
        let log = OpenOptions::new().create(true).append(true).open(&config.log);
        let log = log.map_err(|e| BenchError::io_at("opening the server's log", &config.log, e))?;
        let mut command = Command::new(&config.program);
        command.arg("serve").arg("--data").arg(&config.data).arg("--listen").arg(self.address.to_string());
        let http = self.http_address.map_or("none".into(), |address| address.to_string());
        command.args(["--http-listen", &http, "--log-format", "json"]);
        if !config.flags.iter().any(|flag| flag == "--kafka-listen") {
            command.args(["--kafka-listen", "none"]);
        }
        if let Some(bytes) = config.arena_bytes {
            command.arg("--arena-bytes").arg(bytes.to_string());
        }
        if let Some(dir) = &config.arena_dir {
            command.arg("--arena-dir").arg(dir);
        }
        command.args(&config.flags).stdin(Stdio::null());
        end_with_parent(&mut command);
        // Ctrl-C at a terminal is for the one who started it, who ends it in the right order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let streams = log.metadata().and_then(|before| Ok((before.len(), log.try_clone()?, log)));
        let (log_before, out, err) = streams.map_err(|e| BenchError::io("sharing the server's log", e))?;
        let started = Instant::now();
        let child = command.stdout(out).stderr(err).spawn();
        self.child = Some(child.map_err(|e| BenchError::io_at("starting", &config.program, e))?);
        self.wait_until_serving(started, log_before)
    }

    /// It serves when its log, from `log_from` on, says so.
    fn wait_until_serving(&mut self, started: Instant, log_from: u64) -> Result<Duration, BenchError> {
        loop {
            if self.log_since(log_from).lines().any(is_ready) {
                return Ok(started.elapsed());
            }
            if let Some(status) = self.ended()? {
                self.child = None;
                return Err(BenchError::server(
                    "starting a server",
                    format!("it ended with {status}{}", self.log_tail()),
                ));
            }
            if started.elapsed() > self.config.start_timeout {
                let message = format!("it is not ready after {:?}{}", self.config.start_timeout, self.log_tail());
                self.kill()?;
                return Err(BenchError::server("starting a server", message));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn log_since(&self, from: u64) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.config.log)?;
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        // A log that cannot be read says nothing: the wait ends with its time.
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// Its exit status, if it has ended on its own.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        match &mut self.child {
            None => Ok(None),
            Some(child) => child.try_wait().map_err(|e| BenchError::io("looking after the server", e)),
        }
    }

    /// kill -9.
    pub fn kill(&mut self) -> Result<(), BenchError> {
        if let Some(mut child) = self.child.take() {
            child.kill().map_err(|e| BenchError::io("killing the server", e))?;
            child.wait().map_err(|e| BenchError::io("waiting for the killed server", e))?;
        }
        Ok(())
    }

    /// Asks it to stop and waits. It has to end well, and in time.
    pub fn stop(&mut self, within: Duration) -> Result<Duration, BenchError> {
        let started = Instant::now();
        self.signal(Signal::TERM)?;
        while started.elapsed() < within {
            if let Some(status) = self.ended()? {
                self.child = None;
                return if status.success() {
                    Ok(started.elapsed())
                } else {
                    Err(BenchError::server("stopping the server", format!("it ended with {status}{}", self.log_tail())))
                };
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let message = format!("it did not stop within {within:?}{}", self.log_tail());
        self.kill()?;
        Err(BenchError::server("stopping the server", message))
    }

    /// Freezes it (SIGSTOP): it holds its sockets and does nothing.
    pub fn freeze(&self) -> Result<(), BenchError> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`freeze`](Server::freeze).
    pub fn thaw(&self) -> Result<(), BenchError> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        let Some(child) = &self.child else { return Ok(()) };
        // The child is not reaped before `wait`, so its id cannot have gone to another process.
        let pid = Pid::from_child(child);
        kill_process(pid, signal).map_err(|e| BenchError::io("sending the server a signal", e.into()))
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self) -> String {
        const TAIL: u64 = 2000;
        let end = std::fs::metadata(&self.config.log).map_or(0, |log| log.len());
        let tail = self.log_since(end.saturating_sub(TAIL));
        if tail.is_empty() { String::new() } else { format!("; the end of its log:\n{tail}") }
    }

    /// Lines of its log that say that the server panicked: there must be none.
    pub fn panics(&self) -> Vec<String> {
        let log = std::fs::read(&self.config.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        text.lines().filter(|line| line.contains("panicked at")).map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.thaw();
        let _ = self.kill();
    }
}

/// Has the process asked to stop (SIGTERM) when the thread that starts it is gone, however that came: nothing is left running.
pub fn end_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let parent = Some(rustix::process::getpid());
    // SAFETY: the closure runs between fork and exec and makes two system calls: no memory is taken, no lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // Gone before that was said, it is not heard of any more.
            if rustix::process::getppid() == parent { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
        });
    }
}

/// Whether a line of a server's log says that it serves.
fn is_ready(line: &str) -> bool {
    line.contains("ready")
        && serde_json::from_str::<serde_json::Value>(line).is_ok_and(|line| line["message"] == "ready")
}

/// The process of this host that listens on a TCP port of IPv4, if it may be seen.
pub fn listener_pid(port: u16) -> Option<u32> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").ok()?;
    const LISTENING: &str = "0A";
    let inode = sockets.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local_port = u16::from_str_radix(fields.get(1)?.rsplit_once(':')?.1, 16).ok()?;
        (local_port == port && *fields.get(3)? == LISTENING).then(|| fields.get(9).copied())?
    })?;
    let wanted = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn the_listener_of_a_port_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        // What another test starts has it as well, until it is another program.
        assert!((0..1000).any(|_| listener_pid(port) == Some(std::process::id())));
    }

    fn script(dir: &Path, text: &str) -> PathBuf {
        let program = dir.join("kera");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        program
    }

    /// A script cannot be run while any process holds it open for writing, and other tests fork meanwhile.
    fn patiently<T>(mut start: impl FnMut() -> Result<T, BenchError>) -> Result<T, BenchError> {
        loop {
            match start() {
                Err(BenchError::Io { source, .. }) if source.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                outcome => return outcome,
            }
        }
    }

    #[test]
    fn a_server_is_up_when_it_says_so_and_stops_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            r#"trap 'exit 0' TERM; echo '{"level":"INFO","message":"ready"}' >&2; while true; do sleep 0.01; done"#;
        let config = ServerConfig::in_dir(&script(dir.path(), text), dir.path());
        let (mut server, _) = patiently(|| Server::start(config.clone())).unwrap();
        assert!(server.ended().unwrap().is_none());
        server.freeze().unwrap();
        server.thaw().unwrap();
        server.stop(Duration::from_secs(240)).unwrap();
        assert_eq!(server.pid(), None);
        // What an earlier life said does not count for this one.
        script(dir.path(), "exit 7");
        assert!(patiently(|| server.start_again()).unwrap_err().to_string().contains('7'));
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "echo no room for me >&2; exit 3");
        let config = ServerConfig::in_dir(&program, dir.path());
        let error = patiently(|| Server::start(config.clone())).unwrap_err().to_string();
        assert!(error.contains("no room for me") && error.contains('3'), "{error}");
    }
}
