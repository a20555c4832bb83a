//! `kera cluster up` as somebody types it who tries a cluster out: started, stopped at the terminal, started again.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::common::members::free_ports_in_a_row;
use crate::common::{self, Place, eventually, kera, run, stderr, stdout};

struct Cluster {
    place: Place,
    /// The first of twelve, three for each kind.
    port: u16,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { place: Place::new(), port: free_ports_in_a_row::<12>()[0] }
    }

    fn flags(&self) -> Vec<String> {
        let (data, port) = (self.place.data().display().to_string(), self.port);
        let line = format!(
            "cluster up --data {data} --arena-bytes 64MiB --port {port} --kafka-port {} --cluster-port {} --http-port {}",
            port + 3,
            port + 6,
            port + 9
        );
        line.split_whitespace().map(String::from).collect()
    }

    /// In a process group of its own, as a shell starts it.
    fn start(&self) -> Child {
        let mut command = kera(self.flags());
        // Disks may stand still for seconds at each of the steps to a graceful end; the command waits for a minute.
        command.env("KERA_ARENA_DIR", self.place.arena()).env("KERA_STOP_TIMEOUT", "55s").process_group(0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        // It may hear later than others that all nodes are there; a signal before that has it fail.
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("Ctrl-C stops all that were started here")), "{}", self.logs());
        eventually("three nodes", || run(self.at("status --json")).status.success() && self.live() == 3);
        child
    }

    fn at(&self, line: &str) -> Vec<String> {
        let all: Vec<String> = (0..3).map(|node| format!("127.0.0.1:{}", self.port + node)).collect();
        line.split_whitespace().map(String::from).chain(["--connect".into(), all.join(",")]).collect()
    }

    fn live(&self) -> usize {
        let status: serde_json::Value =
            serde_json::from_str(&stdout(&run(self.at("status --json")))).unwrap_or_default();
        let nodes = status["cluster"]["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|node| node["state"] == "live").count()
    }

    /// Ctrl-C at a terminal: the whole group gets it.
    fn interrupt(&self, mut child: Child) {
        let sent = Command::new("kill").args(["-INT", "--", &format!("-{}", child.id())]).status();
        assert!(sent.expect("kill runs").success());
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}\n{}", self.logs());
    }

    fn logs(&self) -> String {
        let log = |node| std::fs::read_to_string(self.place.data().join(format!("node-{node}/log.txt")));
        (1..=3).map(|node| log(node).unwrap_or_default()).collect()
    }
}

#[test]
fn a_cluster_that_was_stopped_at_the_terminal_stopped_gracefully_and_starts_again_with_its_records() {
    let cluster = Cluster::new();
    let first = cluster.start();
    // Not while one of the three is taken for lost for a moment.
    let make = cluster.at("stream create flights --streamlets 6 --replication 3 --if-not-exists");
    eventually("a stream", || run(&make).status.success());
    let done = run(cluster.at(&format!("produce flights --file {}", common::sample("flights-sample.ndjson"))));
    assert!(done.status.success(), "{}", stderr(&done));
    cluster.interrupt(first);
    assert!(!cluster.logs().contains("stopped at once"), "{}", cluster.logs());
    assert_eq!(cluster.place.arena_files(), Vec::<std::path::PathBuf>::new());

    let second = cluster.start();
    let read = run(cluster.at("consume flights --max 200"));
    assert_eq!(stdout(&read).lines().count(), 200, "{}", stderr(&read));
    cluster.interrupt(second);

    // They would all wait for each other where nobody is.
    let mut flags = cluster.flags();
    let at = flags.iter().position(|flag| flag == "--cluster-port").expect("it is there") + 1;
    let was = std::mem::replace(&mut flags[at], free_ports_in_a_row::<3>()[0].to_string());
    let refused = run(&flags);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("was made with --cluster-port {was}")) && !said.contains("--cluster-listen"),
        "{said}"
    );
}

/// The node would name flags of its own.
#[test]
fn a_port_that_is_in_use_is_named_with_its_flag_before_a_node_is_started() {
    let cluster = Cluster::new();
    let held = TcpListener::bind(("127.0.0.1", cluster.port + 4)).expect("a free port");
    let said = stderr(&run(cluster.flags()));
    assert!(said.contains(&format!("node 2: {} is in use", held.local_addr().expect("it listens"))), "{said}");
    assert!(said.contains("--kafka-port") && !said.contains("--kafka-listen"), "{said}");
    assert!(!common::exists(&cluster.place.data().join("node-1")), "the first node was started");

    let mut flags = cluster.flags();
    let at = flags.iter().position(|flag| flag == "--http-port").expect("it is there") + 1;
    flags[at] = cluster.port.to_string();
    let refused = run(&flags);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("would be a port of both --port and --http-port"), "{said}");
}

/// Who kills the command finds its ports and its arenas free again.
#[test]
fn nodes_stop_gracefully_when_the_command_that_has_started_them_is_killed() {
    let cluster = Cluster::new();
    let mut command = cluster.start();
    command.kill().expect("it runs");
    command.wait().expect("it ends");
    let serves = |node: &u16| TcpStream::connect(("127.0.0.1", cluster.port + *node)).is_ok();
    eventually("the nodes' ends", || !(0..3).any(|node| serves(&node)) && cluster.place.arena_files().is_empty());
    assert!(!cluster.logs().contains("stopped at once"), "{}", cluster.logs());
}

#[test]
fn a_mistake_in_what_a_cluster_is_started_with_is_told_whole() {
    let cluster = Cluster::new();
    let mut flags = cluster.flags();
    flags.extend(["--nodes".into(), "1".into()]);
    let at = flags.iter().position(|flag| flag == "--arena-bytes").expect("it is there") + 1;
    flags[at] = "foo".into();
    let said = stderr(&run(&flags));
    assert!(said.contains("arena.bytes") && said.contains("foo"), "{said}");
}
