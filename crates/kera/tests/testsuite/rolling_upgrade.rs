//! A cluster of the version before becomes one of this version, node after node, while it is written to and read. The nodes are of one
//! build: those of the version before are told to speak like it. `bench/cluster_upgrade.py` does it with two builds.

use std::process::Stdio;

use kera_format::level::NEWEST;
use serde_json::Value;

use crate::common::members::{Member, cluster, free_ports, live, start_again, voters};
use crate::common::{self, Node, eventually};

const RECORDS: usize = 24_000;
const EARLIER: [&str; 2] = ["--speak-level", "1"];

/// As it was started, and as one of the version before.
fn member(number: usize, ports: &[u16]) -> (Member, Member) {
    let join = (number > 1).then_some(ports[3]);
    let current = Member::new(number, ports[number - 1], ports[2 + number], join, &[]);
    let flags = current.flags.iter().cloned().chain(EARLIER.map(String::from)).collect();
    let earlier = Member { place: common::Place::new(), flags };
    (current, earlier)
}

fn level(node: &Node) -> Value {
    node.json("cluster level")
}

/// Stops a node in good order and starts it again as another version, and waits until nothing waits for it.
fn change(nodes: &mut [Option<Node>], at: usize, to: &Member) {
    assert_eq!(nodes[at].take().expect("it runs").stop(), 0);
    let other = nodes[(at + 1) % 3].as_ref().expect("it runs");
    eventually("its streamlets have other owners", || cluster(other)["waiting_streamlets"] == 0);
    nodes[at] = Some(start_again(to));
    let other = nodes[(at + 1) % 3].as_ref().expect("it runs");
    eventually("it is back", || live(other) == 3 && cluster(other)["waiting_streamlets"] == 0);
}

#[test]
fn a_cluster_is_upgraded_node_by_node_while_it_is_written_to_and_read() {
    let ports = free_ports::<8>();
    let (current, earlier): (Vec<Member>, Vec<Member>) = (1..=3).map(|number| member(number, &ports)).unzip();
    let mut nodes: Vec<Option<Node>> = earlier.iter().map(|member| Some(start_again(member))).collect();
    eventually("coordinators that vote", || nodes.iter().flatten().all(|node| voters(node) == 3));
    let (_, said) = nodes[0].as_ref().unwrap().fails("cluster level");
    assert!(said.contains("runs a version without levels"), "{said}");
    nodes[0].as_ref().unwrap().ok("stream create copied --streamlets 6 --replication 3");

    let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    let log = current[0].place.file("acks").display().to_string();
    let line = format!("verify produce --stream copied --log {log} --records {RECORDS} --rate 2000 --connect {all}");
    let mut producing = common::kera(line.split_whitespace());
    let producing = producing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let printed = current[0].place.file("read");
    let line = format!("consume copied --application all --from earliest --follow --format json --connect {all}");
    let mut reading = common::kera(line.split_whitespace());
    reading.stdout(std::fs::File::create(&printed).expect("a file")).stderr(Stdio::piped());
    let mut reading = reading.spawn().expect("the binary runs");

    // There and back: before the level has risen nothing is lost by it.
    change(&mut nodes, 1, &current[1]);
    change(&mut nodes, 1, &earlier[1]);
    for at in [1, 2] {
        change(&mut nodes, at, &current[at]);
        assert_eq!(cluster(nodes[at].as_ref().unwrap())["nodes"][at]["state"], "live");
    }
    change(&mut nodes, 0, &current[0]);
    eventually("the next level", || nodes.iter().flatten().all(|node| level(node)["level"] == NEWEST));
    let said = level(nodes[0].as_ref().unwrap());
    assert_eq!((&said["held_back_by"], said["next"].is_null()), (&Value::Array(Vec::new()), true), "{said}");
    // It is left out where the leader does not tell it within a second.
    eventually("the status says so", || {
        nodes[0].as_ref().unwrap().ok("status").contains(&format!("level    {NEWEST}"))
    });

    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}{}", common::stdout(&produced), common::stderr(&produced));
    eventually("all is read", || {
        std::fs::read(&printed).is_ok_and(|text| text.iter().filter(|byte| **byte == b'\n').count() >= RECORDS)
    });
    assert!(reading.try_wait().expect("a process").is_none(), "the consumer has ended");
    reading.kill().expect("it runs");
    reading.wait().expect("it ends");
    let line = format!("verify consume --stream copied --log {log} --connect {all}");
    let consumed = common::run(line.split_whitespace());
    assert!(consumed.status.success(), "{}{}", common::stdout(&consumed), common::stderr(&consumed));
    let said = format!("{RECORDS} records acknowledged, {RECORDS} read");
    assert!(common::stdout(&consumed).contains(&said), "{}", common::stdout(&consumed));

    // From here on there is no way back: not for a new node, and not for one that has been there.
    let late = Member::new(4, ports[6], ports[7], Some(ports[3]), &EARLIER);
    let said = common::stderr(&common::run(&late.flags));
    let is_late =
        |said: &str| said.contains(&format!("is at level {NEWEST} and this")) && said.contains("speaks levels 1 to 1");
    assert!(is_late(&said), "{said}");
    assert_eq!(nodes[2].take().unwrap().stop(), 0);
    let said = common::stderr(&common::run(&earlier[2].flags));
    assert!(is_late(&said), "{said}");
    nodes[2] = Some(start_again(&current[2]));
    eventually("it is back", || live(nodes[0].as_ref().unwrap()) == 3);
}

#[test]
fn a_node_is_told_who_holds_the_level_back() {
    let ports = free_ports::<8>();
    let (current, earlier) = member(2, &ports);
    let first = Member::new(1, ports[0], ports[3], None, &["--cluster-level-max", "1"]);
    let node = start_again(&first);
    let other = start_again(&current);
    eventually("both have said it", || level(&other)["nodes"][1]["level_max"] == NEWEST);
    let said = level(&node);
    assert_eq!((&said["level"], &said["next"], &said["held_back_by"][0]), (&1.into(), &2.into(), &1.into()), "{said}");
    eventually("the status says so", || other.ok("status").contains("1; node 1 holds back level 2"));
    // What a node of the earlier version would not understand waits.
    let asynchronous = "stream create quick --replication 2 --replication-mode async";
    for node in [&node, &other] {
        let (_, said) = node.fails(asynchronous);
        assert!(said.contains("needs level 3"), "{said}");
    }
    // So it can go back.
    assert_eq!(other.stop(), 0);
    let other = start_again(&earlier);
    eventually("it is back", || live(&other) == 2);
    assert_eq!(node.stop(), 0);
    let node =
        start_again(&Member { place: common::Place::new(), flags: first.flags[..first.flags.len() - 2].to_vec() });
    eventually("both have said it", || level(&node)["held_back_by"][0] == 2);
}
