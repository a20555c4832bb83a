//! Two machines burn at once that were all who had a log: what nobody has any more is given up by a person, and nothing else.

use serde_json::Value;

use crate::common::members::{Member, cluster, free_ports, live, start_again, voters};
use crate::common::{Node, eventually};

const STREAM: &str = "kept";

/// Four nodes. The third one is in another rack than the others, so that it has their copies, and the fourth has no vote.
fn four() -> (Vec<Member>, Vec<Option<Node>>) {
    let ports = free_ports::<8>();
    let racks = ["a", "a", "b", "a"];
    let member = |at: usize| {
        let join = (at > 0).then_some(ports[4]);
        Member::new(at + 1, ports[at], ports[4 + at], join, &["--rack", racks[at]])
    };
    let members: Vec<Member> = (0..4).map(member).collect();
    let mut nodes: Vec<Option<Node>> = Vec::new();
    for member in &members {
        let mut node = member.start();
        node.expect_warning("");
        nodes.push(Some(node));
        let first = nodes[0].as_ref().expect("it runs");
        let wanted = if nodes.len() < 3 { 1 } else { 3 };
        eventually("votes", || voters(first) == wanted && live(first) == nodes.len());
    }
    (members, nodes)
}

/// How many records each streamlet has had, and how many there are of all.
fn ends(node: &Node) -> ([u64; 4], u64) {
    let described = node.json(&format!("stream describe {STREAM} --lanes"));
    let (mut ends, mut all) = ([0; 4], 0);
    for lane in described["lanes_used"].as_array().expect("lanes") {
        let of = |field: &str| lane[field].as_u64().expect("a number");
        ends[of("streamlet") as usize] = of("durable_ordinal");
        all += of("durable_ordinal") - of("first_ordinal");
    }
    (ends, all)
}

fn lost_logs(node: &Node) -> Vec<Value> {
    node.json("log list")["logs"].as_array().cloned().expect("logs")
}

#[test]
fn what_burned_with_all_who_had_it_is_given_up_by_a_person_and_nothing_else() {
    let (members, mut nodes) = four();
    let first = nodes[0].take().expect("it runs");
    first.ok(&format!("stream create {STREAM} --streamlets 4 --replication 2"));
    let acks = |name: &str| members[0].place.file(name).display().to_string();
    let produce =
        |log: &str| format!("verify produce --stream {STREAM} --log {} --records 4000 --record-bytes 200", acks(log));
    first.ok(&produce("before"));
    let (before, _) = ends(&first);
    assert!(before.iter().all(|end| *end > 0), "{before:?}");

    // The owner of the last streamlet, and the node with its copies.
    nodes[2].take().expect("it runs").kill();
    nodes[3].take().expect("it runs").kill();
    eventually("it is seen that nobody is there", || lost_logs(&first).iter().any(|log| log["node"] == 4));
    let lost = lost_logs(&first);
    let log = lost.iter().find(|log| log["node"] == 4).expect("it is there");
    assert_eq!(log["missing"][0]["backups"], serde_json::json!([3]), "{log}");
    assert_eq!(log["lost_nodes"], serde_json::json!([3, 4]), "{log}");
    let waiting = log["streamlets"].as_array().expect("streamlets");
    assert!(waiting.contains(&format!("{STREAM}/3").into()) && !waiting.contains(&format!("{STREAM}/0").into()));

    let (_, said) = first.fails("log accept-loss 4 --gone 3,4");
    assert!(said.contains("would be gone for good") && said.contains(&format!("{STREAM}/3")), "{said}");
    let (_, said) = first.fails("log accept-loss 4 --gone 4 --yes");
    assert!(said.contains("node 3 may come back with what is missing of log 0 of node 4"), "{said}");
    let (_, said) = first.fails("log accept-loss 4 --gone 2,3,4 --yes");
    assert!(said.contains("node 2 is live, so it is not gone"), "{said}");
    let (_, said) = first.fails("log accept-loss 2 --gone 3,4 --yes");
    assert!(said.contains("nothing is missing of 2"), "{said}");

    let of: std::collections::BTreeSet<u64> = lost.iter().filter_map(|log| log["node"].as_u64()).collect();
    for node in of {
        first.ok(&format!("log accept-loss {node} --gone 3,4 --yes"));
    }
    assert!(lost_logs(&first).is_empty());
    eventually("nothing waits", || cluster(&first)["waiting_streamlets"] == 0);
    first.ok(&produce("after"));
    let (after, _) = ends(&first);
    assert!(after[0] > before[0] && after[1] > before[1], "what others have stays: {before:?} {after:?}");
    assert!(after[3] > 0, "and what nobody has goes on: {after:?}");

    // One is given up, and one comes back nevertheless, with what it had.
    eventually("its logs are needed no more", || first.run("node remove 3").status.success());
    let _back = start_again(&members[3]);
    eventually("it is back", || live(&first) == 3);
    first.ok(&produce("again"));
    let (_, all) = ends(&first);
    let read = first.ok(&format!("consume {STREAM} --from earliest --format json"));
    assert_eq!(read.lines().count() as u64, all, "readers get all that there is");
}
