//! A streamlet that fills a virtual log nearly alone gets one of its own, and goes back when it is quiet: under load of `kera verify`, with its
//! owner killed behind each change, and nothing may be lost, doubled or out of order.

use std::process::Child;

use crate::common::members::{Member, cluster, free_ports, start_again, voters};
use crate::common::{self, Node, eventually};

// The rate is above what a streamlet of the small stream writes, so that the large one alone goes.
const FLAGS: [&str; 8] =
    ["--own-logs-max", "2", "--own-logs-interval", "300ms", "--own-logs-rate", "100KiB", "--virtual-logs", "1"];

/// So many that they are still written when the last owner has them, at the rate below, on a machine that stands still in between.
const LARGE_RECORDS: u32 = 240_000;

struct House {
    members: Vec<Member>,
    nodes: Vec<Option<Node>>,
    all: String,
}

impl House {
    fn new() -> House {
        let ports = free_ports::<6>();
        let member = |at: usize| Member::new(at + 1, ports[at], ports[3 + at], (at > 0).then(|| ports[3]), &FLAGS);
        let members: Vec<Member> = (0..3).map(member).collect();
        let nodes: Vec<Option<Node>> = members.iter().map(|member| Some(start_again(member))).collect();
        let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
        let house = House { members, nodes, all };
        eventually("three coordinators", || voters(house.node(0)) == 3);
        house
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it runs")
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

    /// A metric of a node; zero of one that does not run.
    fn metric(&self, at: usize, name: &str) -> u64 {
        let Some(node) = &self.nodes[at] else { return 0 };
        let (_, text) = node.get("/metrics");
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).expect("a metric")
    }

    fn sum(&self, name: &str) -> u64 {
        (0..3).map(|at| self.metric(at, name)).sum()
    }

    fn lose_and_start(&mut self, at: usize) {
        self.nodes[at].take().expect("it runs").kill();
        let other = (at + 1) % 3;
        eventually("the loss is seen", || cluster(self.node(other))["nodes"][at]["state"] == "lost");
        eventually("nothing waits for it", || cluster(self.node(other))["waiting_streamlets"] == 0);
        self.nodes[at] = Some(start_again(&self.members[at]));
    }
}

fn done(producing: Child) {
    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}{}", common::stdout(&produced), common::stderr(&produced));
}

#[test]
fn a_streamlet_that_fills_a_log_goes_to_its_own_survives_the_loss_of_its_owner_and_comes_back() {
    let mut house = House::new();
    house.node(0).ok("stream create large --streamlets 1 --replication 2");
    house.node(0).ok("stream create small --streamlets 6 --replication 2");
    eventually("the level that knows such moves", || house.node(0).json("cluster level")["level"].as_u64() >= Some(4));
    let (large, small) = (house.produce("large", LARGE_RECORDS, 6_000), house.produce("small", 40_000, 2_000));
    for _ in 0..2 {
        let mut owner = 0;
        // It goes back for a moment when the load stands still.
        eventually("it has a log of its own", || {
            let found = (0..3).find(|at| house.metric(*at, "kera_copies_own_logs") == 1);
            let told = found.map(|at| cluster(house.node(at))["nodes"][at]["own_logs"][0].clone());
            owner = found.unwrap_or(owner);
            told.is_some_and(|told| told["stream"] == "large" && told["streamlet"] == 0)
        });
        house.lose_and_start(owner);
    }
    eventually("it has one at its third owner", || house.sum("kera_copies_own_logs") == 1);
    done(large);
    done(small);
    house.prove("large", LARGE_RECORDS);
    eventually("it is back", || {
        house.sum("kera_copies_own_logs") == 0 && house.sum("kera_copies_own_logs_left_total") >= 1
    });
    house.prove("large", LARGE_RECORDS);
    house.prove("small", 40_000);
    let described = house.node(0).ok("status");
    assert!(!described.contains("lost"), "{described}");
}
