//! Streams whose producers do not wait for copies: the loss of their owner takes the end of what it acknowledged and nothing else.

use std::process::Stdio;

use serde_json::Value;

use crate::common::members::{cluster, free_ports, live, start_again, three_nodes};
use crate::common::{self, Node, eventually};

/// So many that they are still written behind the first loss, also on a machine that stands still for seconds.
const RECORDS: u64 = 120_000;

/// The owner of the only streamlet, from 0.
fn owner(node: &Node) -> usize {
    let nodes = cluster(node)["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().position(|node| node["streamlets"].as_u64().unwrap_or(0) > 0).expect("somebody owns the streamlet")
}

fn metric(node: &Node, name: &str) -> u64 {
    let (_, text) = node.get("/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("the metric is there");
    line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number") as u64
}

fn verdict(log: &str, all: &str) -> Value {
    let line = format!("verify consume --stream quick --log {log} --connect {all} --json");
    serde_json::from_slice(&common::run(line.split_whitespace()).stdout).expect("a verdict")
}

#[test]
fn the_loss_of_an_owner_takes_the_end_of_what_it_acknowledged_and_nothing_else() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    let log = members[0].place.file("acks").display().to_string();
    let node = nodes[0].as_ref().unwrap();
    node.ok("stream create quick --replication 3 --replication-mode async");
    let described = node.ok("stream describe quick");
    assert!(described.contains("3 copies that producers do not wait for"), "{described}");

    let line = format!("verify produce --stream quick --log {log} --records {RECORDS} --rate 6000 --connect {all}");
    let mut producing = common::kera(line.split_whitespace());
    let producing = producing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let first = owner(node);
    eventually("it is written to", || metric(nodes[first].as_ref().unwrap(), "kera_chunks_answered_early_total") > 100);
    // If it is back before others step in its arena has all; otherwise the end is lost here as well.
    nodes[first].take().unwrap().kill();
    nodes[first] = Some(start_again(&members[first]));
    eventually("it is back", || live(nodes[first].as_ref().unwrap()) == 3);

    // Its backups take nothing for a moment in which it acknowledges, and then it is gone for good.
    let mut tries = 0;
    let (lost, others) = loop {
        tries += 1;
        let lost = owner(nodes[first].as_ref().unwrap());
        let others = [(lost + 1) % 3, (lost + 2) % 3];
        let early = || metric(nodes[lost].as_ref().unwrap(), "kera_chunks_answered_early_total");
        let before = early();
        // Producers have to come back to it first, and it needs an agreed view of its log, which stopped nodes do not agree to.
        eventually("it acknowledges again", || early() > before + 20);
        others.iter().for_each(|at| nodes[*at].as_ref().unwrap().signal("STOP"));
        let stopped = early();
        // Some blocks are on their way to the backups and are there when these go on; what waits behind them is not.
        let acknowledges = (0..300).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            early() > stopped + 60
        });
        if acknowledges {
            break (lost, others);
        }
        // It does so for a second, which may be over before this test has its next turn.
        assert!(tries < 10, "it acknowledges nothing meanwhile");
        others.iter().for_each(|at| nodes[*at].as_ref().unwrap().signal("CONT"));
        eventually("all are live again", || live(nodes[lost].as_ref().unwrap()) == 3);
    };
    nodes[lost].take().unwrap().kill();
    others.iter().for_each(|at| nodes[*at].as_ref().unwrap().signal("CONT"));

    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}{}", common::stdout(&produced), common::stderr(&produced));
    let verdict = verdict(&log, &all);
    assert_eq!(verdict["acknowledged"], RECORDS, "{verdict}");
    let findings = verdict["findings"].as_object().expect("what was found");
    let lost_records = RECORDS - verdict["records"].as_u64().expect("a number");
    // How much depends on the machine: what was sent in the second for which copies may lag, and more if producers had to catch up.
    assert!(lost_records > 0 && lost_records < RECORDS / 2, "{verdict}");
    assert!(findings.keys().all(|kind| kind == "lost"), "twice, out of order or with a hole: {verdict}");
    // One stretch of each of the two producers for each of the times, two as a rule: nothing in between.
    assert!(verdict["first_findings"].as_array().is_some_and(|all| all.len() <= 2 + 2 * tries), "{verdict}");
    assert_eq!(findings["lost"], lost_records, "{verdict}");
}
