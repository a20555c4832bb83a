//! Streams that get another number of copies while `kera verify` writes to them: what was written with one copy survives the loss of its node from then on,
//! and nothing is lost, doubled or out of order, whoever is killed meanwhile.

mod common;

use std::process::{Child, Output, Stdio};

use common::members::{Member, cluster, free_ports, start_again, three_nodes};
use common::{Node, eventually};

/// Three nodes.
struct House {
    members: Vec<Member>,
    nodes: Vec<Option<Node>>,
    all: String,
}

fn both(output: &Output) -> String {
    format!("{}{}", common::stdout(output), common::stderr(output))
}

impl House {
    fn new() -> House {
        let ports = free_ports::<6>();
        let (members, nodes) = three_nodes(&ports);
        let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
        let house = House { members, nodes, all };
        eventually("the level that knows of it", || house.node(1).json("cluster level")["level"].as_u64() >= Some(21));
        house
    }

    fn node(&self, number: usize) -> &Node {
        self.nodes[number - 1].as_ref().expect("it runs")
    }

    fn log(&self, stream: &str) -> String {
        self.members[0].place.file(stream).display().to_string()
    }

    fn produce(&self, stream: &str, records: u32, rate: u32) -> Child {
        let (log, all) = (self.log(stream), &self.all);
        let line =
            format!("verify produce --stream {stream} --log {log} --records {records} --rate {rate} --connect {all}");
        let mut producing = common::kera(line.split_whitespace());
        producing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    }

    /// Everything that was acknowledged is there, once and in order.
    fn prove(&self, stream: &str, records: u32) {
        let line = format!("verify consume --stream {stream} --log {} --connect {}", self.log(stream), self.all);
        let consumed = common::run(line.split_whitespace());
        assert!(consumed.status.success(), "{}", both(&consumed));
        let said = format!("{records} records acknowledged, {records} read");
        assert!(common::stdout(&consumed).contains(&said), "{}", both(&consumed));
    }

    fn copies(&self, at: usize, stream: &str) -> u64 {
        self.node(at).json(&format!("stream describe {stream}"))["options"]["replication"].as_u64().expect("a number")
    }

    fn lose(&mut self, number: usize, seen_by: usize) {
        self.nodes[number - 1].take().expect("it runs").kill();
        eventually("the loss is seen", || cluster(self.node(seen_by))["nodes"][number - 1]["state"] == "lost");
        eventually("nothing waits for it", || cluster(self.node(seen_by))["waiting_streamlets"] == 0);
    }
}

fn done(producing: Child) {
    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}", both(&produced));
}

#[test]
fn a_stream_of_one_copy_gets_more_under_load_and_survives_the_loss_of_any_node() {
    let mut house = House::new();
    for (stream, durability) in [("process", "process"), ("power", "power")] {
        house.node(1).ok(&format!("stream create {stream} --streamlets 6 --durability {durability}"));
    }
    // Some of it is with nodes that do not own it any more.
    let first = house.produce("process", 10_000, 5_000);
    for streamlet in 0..3 {
        house.node(1).ok(&format!("streamlet move process/{streamlet} --to {}", 1 + (streamlet + 1) % 3));
    }
    done(first);
    let producing = [house.produce("process", 40_000, 4_000), house.produce("power", 40_000, 4_000)];
    house.node(2).ok("stream alter process --replication 3");
    house.node(3).ok("stream alter power --replication 2");
    for (stream, copies) in [("process", 3), ("power", 2)] {
        eventually("all streamlets have their copies", || house.copies(1, stream) == copies);
    }
    house.lose(2, 1);
    producing.into_iter().for_each(done);
    house.prove("process", 50_000);
    house.prove("power", 40_000);
    // And back: the next loss is survived as well.
    house.nodes[1] = Some(start_again(&house.members[1]));
    eventually("it is back", || cluster(house.node(1))["nodes"][1]["state"] != "lost");
    eventually("everything has its copies", || house.node(1).ok("status").contains("PROBLEM") == false);
    house.lose(3, 1);
    house.prove("process", 50_000);
    house.prove("power", 40_000);
}
