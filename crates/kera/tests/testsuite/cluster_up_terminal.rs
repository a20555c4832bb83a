//! `kera cluster up` at a terminal: what somebody types, and what becomes of the cluster in the background.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::members::free_ports_in_a_row;
use crate::common::{Place, end_of, eventually, lacks, run, stdout};

/// The program, where a test can put another one in its place.
fn program(place: &Place) -> PathBuf {
    place.file("kera")
}

/// A cluster that a shell has started at a terminal of its own.
struct Terminal {
    place: Place,
    /// Three for each kind.
    ports: [u16; 12],
    script: Child,
    typed: ChildStdin,
    said: Arc<Mutex<String>>,
    /// The process of the command, once it has said that all is there.
    up: String,
}

impl Terminal {
    /// `line`: what the shell is to do, with UP for the command.
    fn start(line: &str) -> Terminal {
        let (place, ports) = (Place::new(), free_ports_in_a_row());
        std::fs::copy(env!("CARGO_BIN_EXE_kera"), program(&place)).expect("a copy");
        let up = format!(
            "{} cluster up --data {} --arena-bytes 64MiB --port {} --kafka-port {} --cluster-port {} --http-port {}",
            program(&place).display(),
            place.data().display(),
            ports[0],
            ports[3],
            ports[6],
            ports[9]
        );
        let mut command = Command::new("script");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KERA_")) {
            command.env_remove(name);
        }
        command.args(["-qec", &line.replace("UP", &up), "/dev/null"]);
        command.env("SHELL", "/bin/sh").env("KERA_ARENA_DIR", place.arena());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("`script` of util-linux is there");
        let typed = script.stdin.take().expect("it is piped");
        let mut out = script.stdout.take().expect("it is piped");
        let said = Arc::new(Mutex::new(String::new()));
        let writer = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(bytes @ 1..) = out.read(&mut part) {
                writer.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..bytes]));
            }
        });
        let mut terminal = Terminal { place, ports, script, typed, said, up: String::new() };
        terminal.hears("Ctrl-C stops all that were started here");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", terminal.process(3))).expect("it runs");
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        terminal.up = parent.expect("a parent").to_owned();
        terminal
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    fn hears(&self, text: &str) {
        eventually(text, || self.said().contains(text));
    }

    fn types(&mut self, text: &str) {
        self.typed.write_all(text.as_bytes()).expect("the terminal takes it");
    }

    /// The first process of a node.
    fn process(&self, node: u32) -> String {
        let said = self.said();
        let line = said.lines().find(|line| line.starts_with(&format!("node {node} "))).expect("it was told");
        line.split_once("process ").and_then(|(_, rest)| rest.split(' ').next()).expect("a process").to_owned()
    }

    fn kill(&self, node: u32) {
        assert!(send("-KILL", &self.process(node)));
        eventually("a loss that is known", || self.live() == 2);
    }

    fn live(&self) -> usize {
        let address = format!("127.0.0.1:{}", self.ports[0]);
        let output = run(["status", "--json", "--connect", &address]);
        let status: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap_or_default();
        let nodes = status["cluster"]["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|node| node["state"] == "live").count()
    }

    /// Ctrl-C.
    fn interrupt(mut self) {
        self.types("\x03");
        let ended = end_of(&mut self.script);
        self.up.clear();
        assert_eq!(ended, Some(0), "{}", self.said());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it said:\n{}", self.said());
        }
        if !self.up.is_empty() {
            // Without its terminal it is stopped by no reading of it, and hears that it is to end.
            send("-TERM", &self.up);
            let _ = self.script.kill();
            send("-CONT", &self.up);
        }
        let _ = self.script.wait();
    }
}

fn send(signal: &str, process: &str) -> bool {
    Command::new("kill").args([signal, process]).status().expect("kill runs").success()
}

/// Some systems come without util-linux's `script`.
fn can_have_terminals() -> bool {
    let there = Command::new("script").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_err() {
        lacks("`script` of util-linux, for a terminal");
    }
    there.is_ok()
}

/// What reads from its terminal there is stopped, and its nodes would be left alone.
#[test]
fn a_cluster_in_the_background_is_looked_after_and_hears_who_types_when_it_is_in_front_again() {
    if !can_have_terminals() {
        return;
    }
    let mut terminal = Terminal::start("set -m; UP & read line; fg");
    terminal.kill(3);
    terminal.hears("node 3 was killed; to start it again, in another terminal and in this folder:");
    // The first line is for the shell.
    eventually("a node that starts again", || {
        terminal.types("\n");
        terminal.said().contains("node 3 starts, process ")
    });
    eventually("all three", || terminal.live() == 3);
    terminal.interrupt();
}

/// It may have been started elsewhere, as it was told how; and what keeps it from starting keeps nothing from the others.
#[test]
fn a_node_that_cannot_be_started_again_takes_no_other_with_it() {
    if !can_have_terminals() {
        return;
    }
    let mut terminal = Terminal::start("exec UP");
    let taken = |port: u16| {
        let mut listener = None;
        eventually("a port to take", || {
            listener = TcpListener::bind(("127.0.0.1", port)).ok();
            listener.is_some()
        });
        listener
    };
    terminal.kill(3);
    terminal.hears("node 3 was killed; press Enter to start it again");
    let listener = taken(terminal.ports[2]);
    terminal.types("\n");
    terminal.hears("is in use");
    terminal.hears("all is well if it was started in another terminal");
    drop(listener);
    // Another build is put where the program was.
    let new = terminal.place.file("kera.new");
    std::fs::copy(program(&terminal.place), &new).expect("a copy");
    std::fs::rename(&new, program(&terminal.place)).expect("it takes its place");
    // What is no other process is nothing that is well.
    let (data, kept) = (terminal.place.data().join("node-3"), terminal.place.file("kept"));
    std::fs::rename(&data, &kept).expect("its data");
    std::fs::write(&data, "").expect("a file");
    terminal.types("\n");
    terminal.hears("  next: see to that first and press Enter again");
    std::fs::remove_file(&data).expect("a file");
    std::fs::rename(&kept, &data).expect("its data");
    let listener = taken(terminal.ports[5]);
    terminal.types("\n");
    terminal.hears(&format!("127.0.0.1:{} is in use", terminal.ports[5]));
    drop(listener);
    // It starts, and ends again.
    let broken = terminal.place.file("kera.broken");
    std::fs::write(&broken, "#!/bin/sh\nexit 16\n").expect("a script");
    std::fs::set_permissions(&broken, Permissions::from_mode(0o755)).expect("it can be executed");
    std::fs::rename(program(&terminal.place), &new).expect("it is put aside");
    std::fs::rename(&broken, program(&terminal.place)).expect("it takes its place");
    terminal.types("\n");
    terminal.hears("node 3 starts, process ");
    terminal.hears("node 3 has ended");
    terminal.hears("node 3 is not there; press Enter to start it again");
    std::fs::rename(&new, program(&terminal.place)).expect("it is back");
    terminal.types("\n");
    eventually("all three", || terminal.live() == 3);
    terminal.interrupt();
}
