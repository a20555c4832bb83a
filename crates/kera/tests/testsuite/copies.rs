//! Streams that get another number of copies while `kera verify` writes to them: what was written with one copy survives the loss of its node from then on,
//! and nothing is lost, doubled or out of order, whoever is killed meanwhile.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::common::members::{Member, cluster, free_ports, start_again, three_nodes};
use crate::common::{self, Node, both, eventually};

/// Three nodes.
struct House {
    members: Vec<Member>,
    nodes: Vec<Option<Node>>,
    all: String,
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
        common::verify_produce(stream, &self.log(stream), records, rate, &self.all)
    }

    fn prove(&self, stream: &str, records: u32) {
        common::verify_consume(stream, &self.log(stream), records, &self.all);
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
        house.node(1).ok(&format!("stream create {stream} --streamlets 6 --replication 1 --durability {durability}"));
    }
    // Some of it is with nodes that do not own it any more.
    let first = house.produce("process", 10_000, 5_000);
    for streamlet in 0..3 {
        house.node(1).ok(&format!("streamlet move process/{streamlet} --to {}", 1 + (streamlet + 1) % 3));
    }
    done(first);
    let producing = [house.produce("process", 40_000, 4_000), house.produce("power", 40_000, 4_000)];
    let at_once = house.node(2).json("stream alter process --replication 3 --no-wait");
    assert_eq!(
        (&at_once["options"]["replication"], &at_once["replication_wanted"]),
        (&json!(1), &json!(3)),
        "{at_once}"
    );
    let waited = house.node(3).ok("stream alter power --replication 2");
    assert!(waited.contains("altered power: 6 streamlets of 1 lane, 2 copies, "), "{waited}");
    for (stream, copies) in [("process", 3), ("power", 2)] {
        eventually("all streamlets have their copies", || house.copies(1, stream) == copies);
    }
    assert_eq!(house.node(1).json("stream describe process").get("replication_wanted"), None);
    house.lose(2, 1);
    producing.into_iter().for_each(done);
    house.prove("process", 50_000);
    house.prove("power", 40_000);
    // And back: the next loss is survived as well.
    house.nodes[1] = Some(start_again(&house.members[1]));
    eventually("it is back", || cluster(house.node(1))["nodes"][1]["state"] != "lost");
    eventually("everything has its copies", || !house.node(1).ok("status").contains("PROBLEM"));
    house.lose(3, 1);
    house.prove("process", 50_000);
    house.prove("power", 40_000);
}

/// What one node alone had of a stream has no copies before it is back: everybody says so, and who waits for them is told which node to start.
#[test]
fn whoever_looks_is_told_how_far_it_is_and_which_lost_node_is_waited_for() {
    let mut house = House::new();
    house.node(1).ok("stream create flights --streamlets 6 --replication 1");
    house.node(1).ok("stream create lone --replication 1");
    house.node(1).ok("streamlet move lone/0 --to 3");
    let refused = |line: &str| house.node(1).fails(line).1;
    let many = refused("stream alter flights --replication 4");
    assert!(many.contains("there are 3 nodes to hold copies; ask for 3 at most"), "{many}");

    house.nodes[2].take().expect("it runs").kill();
    eventually("the loss is seen", || cluster(house.node(1))["nodes"][2]["state"] == "lost");
    let called_for = house.node(2).ok("stream alter lone --replication 2 --no-wait");
    assert!(
        called_for.contains("1 copy, to be 2: 0 of 1 streamlets have them; the rest waits for node 3"),
        "{called_for}"
    );
    let called_off = house.node(1).ok("stream alter lone --replication 1");
    assert!(called_off.contains("altered lone: 1 streamlet of 1 lane, 1 copy, retention"), "{called_off}");

    let line = "stream alter flights --replication 2";
    house.node(2).ok(&format!("{line} --no-wait"));
    eventually("what can be is done", || house.node(1).json("stream describe flights")["replication_there"] == 4);
    house.says_what_it_waits_for();
    let back = house.node(1).fails("stream alter flights --replication 1").1;
    assert!(back.contains("2 is the least"), "{back}");

    let words = line.split(' ').chain(["--connect", &house.all]);
    let waiting = common::kera(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    house.nodes[2] = Some(start_again(&house.members[2]));
    let waited = waiting.wait_with_output().expect("it ends");
    let said = both(&waited);
    assert!(waited.status.success() && said.contains("altered flights: 6 streamlets of 1 lane, 2 copies, "), "{said}");
    assert!(said.contains("flights is to have 2 copies: 4 of 6 streamlets have them"), "{said}");
    assert!(!house.node(1).ok("status").contains("copies: "), "nothing is under way");
}

impl House {
    /// Of `flights`, whose streamlets at node 3 wait for it.
    fn says_what_it_waits_for(&self) {
        let node = self.node(1);
        for (line, words) in [
            ("stream describe flights", "1 copy, to be 2: 4 of 6 streamlets have them; the rest waits for node 3"),
            ("stream list", "flights: to have 2 copies, 4 of 6 streamlets have them"),
            ("status", "copies: flights has 1 copy, to be 2: 4 of 6 streamlets have them"),
            ("status", "PROBLEM  the copies of flights wait for node 3, which is lost: start it"),
        ] {
            // What others do not tell within a second is left out.
            eventually(&format!("{line} says `{words}`"), || node.ok(line).contains(words));
        }
        let waits = |of: &Value| {
            (of["replication_wanted"].clone(), of["replication_there"].clone(), of["replication_waits_for"].clone())
        };
        let by_http = node.get("/v1/streams/flights").1;
        let by_http: Value = serde_json::from_str(&by_http).expect("it is JSON");
        let listed = node.json("stream list");
        let listed =
            listed.as_array().and_then(|all| all.iter().find(|of| of["name"] == "flights")).expect("it is there");
        for of in [&node.json("stream describe flights"), listed, &by_http] {
            assert_eq!(waits(of), (json!(2), json!(4), json!([3])), "{of}");
        }
        eventually("the change is listed", || cluster(node)["copy_changes"][0]["waits_for"] == json!([3]));
        assert!(node.get("/metrics").1.contains("kera_cluster_copy_changes 1\n"));
        let said = json!("the copies of flights wait for node 3, which is lost: start it");
        let problems = || node.json("status")["problems"].clone();
        eventually("the problem is listed", || problems().as_array().is_some_and(|all| all.contains(&said)));
        assert_eq!(node.fails("status --check").0, 1);
    }
}
