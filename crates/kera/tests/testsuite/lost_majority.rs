//! The majority of the coordinators burns: what is left goes on with what a person has look at it and name who is gone.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::members::{Member, cluster, free_ports, live, start_again, three_nodes, voters};
use crate::common::{self, Node, end_of, eventually, run, stderr, stdout};

/// Runs `kera cluster recover` on a member's data directory, with more flags.
fn recover(member: &Member, more: &str) -> std::process::Output {
    let data = member.place.data().display().to_string();
    run(["cluster", "recover", "--data", &data].into_iter().chain(more.split_whitespace()))
}

fn refused(member: &Member, more: &str) -> String {
    let output = recover(member, more);
    assert!(!output.status.success(), "{}", stdout(&output));
    stdout(&output) + &stderr(&output)
}

fn recovered(member: &Member, more: &str) -> Value {
    let output = recover(member, &format!("{more} --json"));
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// A machine is gone with its disk.
fn burn(member: &Member, node: Node) {
    node.kill();
    std::fs::remove_dir_all(member.place.data()).expect("nobody uses it");
}

fn acks(member: &Member) -> String {
    member.place.file("acks").display().to_string()
}

/// Writes records that tell of themselves; a file has what was acknowledged.
fn produce(node: &Node, member: &Member, records: u64) {
    node.ok(&format!("verify produce --stream kept --log {} --records {records} --record-bytes 200", acks(member)));
}

/// All blocks have as many copies as they are to have: they are acknowledged with one less, where a node is slow.
fn have_all_copies(node: &Node) -> bool {
    let nodes = cluster(node)["nodes"].as_array().cloned().expect("nodes");
    nodes.iter().all(|node| node["copies"]["under_replicated_blocks"] == 0)
}

/// All that was acknowledged so far is read, once and in order.
fn consume(node: &Node, member: &Member, records: u64) {
    let said = node.ok(&format!("verify consume --stream kept --log {}", acks(member)));
    assert!(said.contains(&format!("{records} records acknowledged, {records} read")), "{said}");
}

#[test]
fn the_last_of_three_goes_on_alone_with_all_that_was_acknowledged_and_takes_writes_when_another_node_is_there() {
    let ports = free_ports::<8>();
    let (members, mut nodes) = three_nodes(&[ports[0], ports[1], ports[2], ports[3], ports[4], ports[5]]);
    let third = nodes.pop().flatten().expect("it runs");
    third.ok("stream create kept --streamlets 6 --replication 3");
    produce(&third, &members[2], 5000);
    eventually("all have three copies", || have_all_copies(&third));
    assert_eq!(cluster(&third)["last_votes"], json!([]));
    let said = refused(&members[2], "--gone 1,2 --yes");
    assert!(said.contains("is in use by process"), "{said}");

    for (member, node) in members.iter().zip(nodes) {
        burn(member, node.expect("it runs"));
    }
    eventually("the node says that it is alone", || third.get("/readyz").1.contains("no majority of the coordinators"));
    third.kill();

    let found = recovered(&members[2], "");
    assert_eq!((&found["node"], &found["leads_from"]), (&json!(3), &Value::Null), "{found}");
    let known = found["nodes"].as_array().expect("nodes");
    assert!(known.len() == 3 && known.iter().all(|node| node["votes"] == true), "{found}");
    let said = refused(&members[2], "--gone 1 --yes");
    assert!(said.contains("a majority is left: node 2, node 3; start these"), "{said}");
    let said = refused(&members[2], "--gone 1,2");
    assert!(said.contains("Node 3 will lead the coordinators alone") && said.contains("pass --yes"), "{said}");
    let said = stderr(&recover(&members[2], "--gone 1,2 --json"));
    assert!(said.contains("Node 3 will lead the coordinators alone") && said.contains("pass --yes"), "{said}");
    assert_eq!(recovered(&members[2], "")["entry"], found["entry"], "nothing was changed");
    let done = recovered(&members[2], "--gone 1,2 --yes");
    assert!(done["leads_from"]["entry"].as_u64() > done["entry"].as_u64(), "{done}");
    assert!(refused(&members[2], "--gone 1,2 --yes").contains("a majority is left: node 3"));

    let third = start_again(&members[2]);
    eventually("all is taken over", || cluster(&third)["waiting_streamlets"] == 0);
    consume(&third, &members[2], 5000);
    // Of three copies two are needed.
    let fourth = Member::new(4, ports[6], ports[7], Some(ports[5]), &[]);
    let other = start_again(&fourth);
    eventually("two are live", || live(&third) == 2);
    produce(&other, &members[2], 2000);
    consume(&third, &members[2], 7000);
    for gone in [1, 2] {
        eventually("nobody needs what it had", || third.run(&format!("node remove {gone}")).status.success());
    }
    assert_eq!(cluster(&other)["nodes"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_node_that_is_left_of_two_goes_on_when_the_one_that_voted_alone_is_gone() {
    let ports = free_ports::<6>();
    let members: Vec<Member> =
        (0..2).map(|at| Member::new(at + 1, ports[at], ports[3 + at], (at > 0).then_some(ports[3]), &[])).collect();
    let [first, second] = [0, 1].map(|at: usize| start_again(&members[at]));
    eventually("two nodes, of which one votes", || live(&second) == 2 && voters(&second) == 1);
    second.ok("stream create kept --streamlets 4 --replication 2");
    produce(&second, &members[1], 3000);
    eventually("all have two copies", || have_all_copies(&second));
    assert_eq!(cluster(&second)["last_votes"], json!([1]));
    let said = second.ok("status");
    assert!(said.contains("votes    node 1 alone: the cluster stands still if it is lost"), "{said}");

    burn(&members[0], first);
    eventually("the node says that it is alone", || {
        second.get("/readyz").1.contains("no majority of the coordinators")
    });
    second.kill();
    // It is done, also if nobody reads what it says.
    let data = members[1].place.data().display().to_string();
    let mut command = common::kera(["cluster", "recover", "--data", &data, "--gone", "1", "--yes"]);
    let mut recovering = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
    drop(recovering.stdout.take());
    assert_eq!(end_of(&mut recovering), Some(0));
    let second = start_again(&members[1]);
    eventually("all is taken over", || cluster(&second)["waiting_streamlets"] == 0);
    consume(&second, &members[1], 3000);
    // Of two copies both are needed. Whoever writes only waits, and the node that had the other one may be given up.
    let line = format!("verify produce --stream kept --log {} --records 1000 --record-bytes 200", acks(&members[1]));
    let mut waiting = second.command(&line).stdout(Stdio::null()).spawn().expect("the binary runs");
    let is_said =
        || second.json("status")["problems"].to_string().contains("copies for more than 5 s, and writes need 2");
    eventually("it is said that producers wait", is_said);
    let third = Member::new(3, ports[2], ports[5], Some(ports[4]), &[]);
    let other = start_again(&third);
    eventually("two are live", || live(&second) == 2);
    assert_eq!(end_of(&mut waiting), Some(0));
    eventually("nobody waits", || !is_said());
    produce(&other, &members[1], 1000);
    consume(&second, &members[1], 5000);
    let names: BTreeSet<u64> = [1, 2, 3].into();
    let nodes = cluster(&second)["nodes"].as_array().cloned().expect("nodes");
    assert_eq!(nodes.iter().filter_map(|node| node["node"].as_u64()).collect::<BTreeSet<_>>(), names);
}
