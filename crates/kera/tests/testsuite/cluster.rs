//! Three nodes in three processes on this machine: they form a cluster, agree on streams, and survive the loss of their leader.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::members::{Member, cluster, free_ports, live, some_nodes, start_again, three_nodes, voters};
use crate::common::{self, Node, Place, change_a_bit, eventually, files, kera};

#[test]
fn three_nodes_agree_on_streams_and_another_leads_when_the_leader_is_killed() {
    let ports = free_ports::<6>();
    let racks = ["a", "b", "c"];
    let members: Vec<Member> = (0..3)
        .map(|at| Member::new(at + 1, ports[at], ports[3 + at], (at > 0).then_some(ports[3]), &["--rack", racks[at]]))
        .collect();
    let mut nodes: Vec<Option<Node>> = members.iter().map(|member| Some(member.start())).collect();
    let at = |nodes: &[Option<Node>], at: usize| -> Value { cluster(nodes[at].as_ref().expect("it runs")) };
    eventually("three coordinators that vote", || nodes.iter().flatten().all(|node| voters(node) == 3));

    for (number, node) in nodes.iter().flatten().enumerate() {
        node.ok(&format!("stream create made-{number} --streamlets 3 --replication 1"));
    }
    eventually("all streams on all nodes", || {
        nodes.iter().flatten().all(|node| (0..3).all(|of| node.ok("stream list").contains(&format!("made-{of}"))))
    });
    let status = at(&nodes, 0);
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(3));
    assert!(status["nodes"].as_array().unwrap().iter().all(|node| node["streamlets"] == 3), "{status}");
    assert_eq!(status["nodes"][1]["rack"], "b");

    let leader = status["leader"].as_u64().expect("a leader") as usize - 1;
    nodes[leader].take().expect("it runs").kill();
    let other = (leader + 1) % 3;
    eventually("another leader that has seen the loss", || {
        let status = at(&nodes, other);
        let leads = status["leader"].as_u64().unwrap_or(0) as usize;
        leads != 0 && leads != leader + 1 && status["nodes"][leader]["state"] == "lost"
    });
    assert_eq!(at(&nodes, other)["waiting_streamlets"], 3);
    nodes[other].as_ref().expect("it runs").ok("stream create after-the-loss --replication 1");
    // The lost node is to come back: it gets the third copy then.
    let said = nodes[other].as_ref().expect("it runs").ok("stream create copied");
    assert!(said.contains("1 streamlet of 1 lane, 3 copies"), "{said}");

    let back = members[leader].start();
    assert!(back.ok("stream list").contains("after-the-loss"));
    // On a busy machine it may have been taken for lost once more.
    eventually("it is live as its next incarnation", || {
        let status = cluster(&back);
        let node = &status["nodes"][leader];
        node["epoch"].as_u64() >= Some(2) && node["state"] == "live" && status["waiting_streamlets"] == 0
    });
    let said = back.ok("stream create by-itself --streamlets 2");
    assert!(said.contains("2 streamlets of 1 lane, 3 copies (as in any cluster of 3 nodes or more; "), "{said}");
    drop(members[leader].place.data());
}

/// All disks of a cluster whose nodes were killed have changed a bit of what the coordinators have decided.
#[test]
fn coordinators_whose_disks_have_changed_a_bit_each_know_all_that_they_have_decided() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    for (number, node) in nodes.iter().flatten().enumerate() {
        node.ok(&format!("stream create made-{number} --replication 2"));
    }
    nodes.iter_mut().for_each(|node| node.take().expect("it runs").kill());
    for (at, member) in members.iter().enumerate() {
        let raft = files(&member.place.data().join("raft"));
        let of_log = |path: &&PathBuf| path.to_string_lossy().ends_with(if at == 1 { ".log.copy" } else { ".log" });
        change_a_bit(raft.iter().find(of_log).unwrap_or_else(|| panic!("a log among {raft:?}")));
        change_a_bit(&member.place.data().join("raft/node"));
    }
    let nodes: Vec<Node> = std::thread::scope(|scope| {
        let starts: Vec<_> = members.iter().map(|member| scope.spawn(|| start_again(member))).collect();
        starts.into_iter().map(|start| start.join().expect("it starts")).collect()
    });
    for node in &nodes {
        let list = node.ok("stream list");
        assert!((0..3).all(|number| list.contains(&format!("made-{number}"))), "{list}");
    }
}

#[test]
fn a_node_that_was_alone_brings_its_streams_along_and_one_that_differs_is_refused() {
    let ports = free_ports::<4>();
    let first = Member::new(1, ports[0], ports[2], None, &[]);
    let alone = first.place.start();
    alone.ok("stream create from-before");
    assert_eq!(alone.json("status")["cluster"], Value::Null);
    assert_eq!(alone.stop(), 0);
    let node = first.start();
    assert!(node.ok("stream list").contains("from-before"));
    assert_eq!(cluster(&node)["nodes"][0]["streamlets"], 1);

    let other = Member::new(2, ports[1], ports[3], Some(ports[2]), &["--streams-max", "7"]);
    let output = common::run(&other.flags);
    assert!(!output.status.success());
    let said = common::stderr(&output);
    assert!(said.contains("streams.streams_max is 100000 in the cluster and 7 on this node"), "{said}");
    assert_eq!(cluster(&node)["nodes"].as_array().map(Vec::len), Some(1));

    // One with streams of its own would lose them, and the first one without its number what the cluster has done since.
    let busy = Place::new();
    assert_eq!(busy.start().stop(), 0);
    let refused = Member { flags: other.flags.clone(), place: busy };
    let mut flags = refused.flags.clone();
    let data = flags.iter().position(|flag| flag == "--data").expect("it is there") + 1;
    flags[data] = refused.place.data().to_string_lossy().into_owned();
    let said = common::stderr(&common::run(&flags));
    assert!(said.contains("streams of its own"), "{said}");
    assert_eq!(node.stop(), 0);
    // Each ends while the epoch that it has begun is on its way to the disk.
    for _ in 0..8 {
        let said = common::stderr(&common::run(first.place.flags()));
        assert!(said.contains("part of a cluster"), "{said}");
    }
}

/// Who owns something, from 0; the first one if there are several.
fn owner(node: &Node) -> usize {
    let nodes = cluster(node)["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().position(|node| node["streamlets"].as_u64().unwrap_or(0) > 0).expect("somebody owns streamlets")
}

#[test]
fn what_was_acknowledged_survives_brokers_that_are_killed_and_one_that_is_frozen() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    let log = members[0].place.file("acks").display().to_string();
    nodes[0].as_ref().unwrap().ok("stream create copied --streamlets 6 --replication 3");
    let producing = common::verify_produce("copied", &log, 60_000, 6_000, &all);

    for lost in [1, 0] {
        std::thread::sleep(std::time::Duration::from_millis(500));
        nodes[lost].take().expect("it runs").kill();
        let other = nodes[2].as_ref().expect("it runs");
        eventually("the loss is seen", || cluster(other)["nodes"][lost]["state"] == "lost");
        // Its streamlets have other owners, before it is back.
        eventually("nothing waits for it", || cluster(other)["waiting_streamlets"] == 0);
        nodes[lost] = Some(start_again(&members[lost]));
        eventually("it is back", || live(nodes[2].as_ref().expect("it runs")) == 3);
    }
    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}", common::both(&produced));
    common::verify_consume("copied", &log, 60_000, &all);

    // One that is alive and does not know that it is lost: what it takes is never acknowledged, and it starts again by itself. What was written until here may
    // all be there by now.
    let log = members[0].place.file("acks-of-frozen").display().to_string();
    nodes[2].as_ref().unwrap().ok("stream create frozen --streamlets 6 --replication 3");
    let mut producing = common::verify_produce("frozen", &log, 30_000, 6_000, &all);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let frozen = owner(nodes[2].as_ref().unwrap());
    let other = nodes[(frozen + 1) % 3].as_ref().unwrap();
    let epoch = cluster(other)["nodes"][frozen]["epoch"].as_u64().expect("an epoch");
    nodes[frozen].as_ref().unwrap().signal("STOP");
    assert!(producing.try_wait().expect("it is there").is_none(), "nothing is written any more, so nothing is shown");
    eventually("the loss is seen", || cluster(other)["nodes"][frozen]["state"] == "lost");
    nodes[frozen].as_ref().unwrap().signal("CONT");
    eventually("it is back", || {
        let status = cluster(other);
        status["nodes"][frozen]["state"] == "live" && status["nodes"][frozen]["epoch"].as_u64() > Some(epoch)
    });

    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}", common::both(&produced));
    common::verify_consume("frozen", &log, 30_000, &all);
}

/// It learns both when it runs again: that it is to stop, and that others took it for lost. It would start again because of that.
#[test]
fn a_node_that_is_told_to_stop_stops_although_it_was_declared_lost() {
    let ports = free_ports::<6>();
    let (_, mut nodes) = three_nodes(&ports);
    let stopped = nodes[2].as_ref().unwrap();
    stopped.signal("STOP");
    let other = nodes[0].as_ref().unwrap();
    eventually("the loss is seen", || cluster(other)["nodes"][2]["state"] == "lost");
    stopped.signal("TERM");
    stopped.signal("CONT");
    let mut stopped = nodes[2].take().unwrap();
    stopped.wait_end();
    assert!(stopped.log().contains("stopped"), "{}", stopped.log());
}

/// Logs of earlier incarnations take no new blocks, so nothing moves their beginning on: what is left in them is copied into new ones.
#[test]
fn logs_from_before_a_restart_do_not_hold_back_the_space_of_what_was_deleted() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let node = nodes[0].as_ref().unwrap();
    // So much that what is kept of it is mostly dead behind its deletion, also where one backup of two has fallen behind when all are killed.
    for (stream, records) in [("small", 2000), ("large", 300_000)] {
        node.ok(&format!("stream create {stream} --streamlets 3 --replication 3"));
        node.ok(&format!("bench produce --stream {stream} --streamlets 3 --records {records} --record-bytes 500"));
    }
    nodes.iter_mut().for_each(|node| node.take().expect("it runs").kill());
    std::thread::scope(|scope| {
        for (node, member) in nodes.iter_mut().zip(&members) {
            scope.spawn(|| *node = Some(start_again(member)));
        }
    });
    let node = nodes[0].as_ref().unwrap();
    eventually("all are back", || live(node) == 3);
    eventually("each node has one log from before and one from now", || {
        // And one more where somebody was taken for lost.
        cluster(node)["logs"].as_u64() >= Some(6)
    });
    let of_lost = |node: &Node| gauge(node, "kera_backup_lost_files_bytes");
    assert!(nodes.iter().flatten().all(|node| of_lost(node) > 0), "what is kept of lives that are over is told");
    let said = node.ok("status");
    assert!((1..=3).all(|number| said.contains(&format!("before: node {number} keeps"))), "{said}");
    node.ok("stream delete large --yes");
    eventually("the old logs are given up", || cluster(node)["logs"] == 3);
    eventually("nothing of them is kept", || nodes.iter().flatten().all(|node| of_lost(node) == 0));
    assert!(!node.ok("status").contains("before: "));
    let small = node.ok("consume small --max 2000 --json");
    assert_eq!(small.lines().count(), 2000);
}

/// A gauge of a node.
fn gauge(node: &Node, name: &str) -> u64 {
    let (status, text) = node.get("/metrics");
    assert_eq!(status, 200);
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("the metric is there");
    line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number") as u64
}

#[test]
fn what_lost_a_copy_is_copied_again_so_that_another_loss_takes_nothing() {
    let ports = free_ports::<10>();
    let (members, mut nodes) = some_nodes(5, &ports);
    let all = (0..5).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    let log = members[0].place.file("acks").display().to_string();
    nodes[4].as_ref().unwrap().ok("stream create copied --streamlets 10 --replication 2");
    let line = format!("verify produce --stream copied --log {log} --records 20000 --connect {all}");
    let produced = common::run(line.split_whitespace());
    assert!(produced.status.success(), "{}{}", common::stdout(&produced), common::stderr(&produced));

    // Each of the two had one of the two copies of something: the second loss is one too many unless the first is made good.
    for lost in [0, 1] {
        nodes[lost].take().expect("it runs").kill();
        let other = nodes[4].as_ref().expect("it runs");
        eventually("the loss is seen", || cluster(other)["nodes"][lost]["state"] == "lost");
        eventually("its streamlets have other owners", || cluster(other)["waiting_streamlets"] == 0);
        // Twice as long as it takes a node to notice that a backup of a quiet log is gone.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let left: Vec<&Node> = nodes.iter().flatten().collect();
        eventually("what it had is rebuilt", || left.iter().all(|node| gauge(node, "kera_rebuild_left_bytes") == 0));
        eventually("everything has its copies", || {
            left.iter().all(|node| gauge(node, "kera_copies_under_replicated_blocks") == 0)
        });
    }
    let line = format!("verify consume --stream copied --log {log} --connect {all}");
    let consumed = common::run(line.split_whitespace());
    assert!(consumed.status.success(), "{}{}", common::stdout(&consumed), common::stderr(&consumed));
    assert!(
        common::stdout(&consumed).contains("20000 records acknowledged, 20000 read"),
        "{}",
        common::stdout(&consumed)
    );
}

#[test]
fn a_node_that_is_cut_off_from_the_coordinators_stops_serving_and_goes_on_when_they_are_back() {
    let ports = free_ports::<6>();
    let (members, nodes) = three_nodes(&ports);
    let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    let log = members[0].place.file("acks").display().to_string();
    let node = |at: usize| nodes[at].as_ref().expect("it runs");
    node(0).ok("stream create alone --streamlets 3 --replication 1");
    let line = format!("verify produce --stream alone --log {log} --records 3000 --connect {all}");
    let produced = common::run(line.split_whitespace());
    assert!(produced.status.success(), "{}{}", common::stdout(&produced), common::stderr(&produced));

    // The first node runs on and hears of nobody.
    for at in [1, 2] {
        node(at).signal("STOP");
    }
    let problem = || node(0).get("/readyz").1;
    let lacking = "no majority of the coordinators: node 1 does not hear nodes 2 and 3";
    eventually("the node says so", || problem().contains(lacking));
    let refused = node(0).run("application list");
    assert!(!refused.status.success(), "{}", common::stdout(&refused));
    let said = common::stderr(&refused);
    assert!(said.contains(lacking) && said.contains("next: if they run, the node"), "{said}");
    assert!(problem().contains("kera cluster recover"), "{}", problem());
    // What only the leader can do is waited for, and not without a word.
    let refused = node(0).run("stream create other");
    assert!(!refused.status.success(), "{}", common::stdout(&refused));
    let said = common::stderr(&refused);
    assert!(said.contains(&format!("{lacking}: what they decide waits")), "{said}");
    let is_not_done = said.contains(&format!("error: {lacking}\n  next: if they run, the node"));
    // It has been handed on to one that led, and that one does it when it goes on.
    let may_be_done = said.contains(&format!("whether it is done: {lacking}\n  next: look whether it is done"))
        && said.contains("command again; if they run, the node");
    assert!(is_not_done || may_be_done, "{said}");
    for internal in ["BasicNode", "quorum", "FindOwners", "the data path"] {
        assert!(!said.contains(internal), "{said}");
    }
    let said = node(0).ok("status");
    assert!(said.contains(lacking) && said.contains("not known: the node that was asked hears no majority"), "{said}");
    assert!(!said.contains("stands still if"), "{said}");

    for at in [1, 2] {
        node(at).signal("CONT");
    }
    eventually("it serves again", || node(0).get("/readyz").0 == 200);
    eventually("all are live", || live(node(0)) == 3);
    let line = format!("verify consume --stream alone --log {log} --connect {all}");
    let consumed = common::run(line.split_whitespace());
    assert!(consumed.status.success(), "{}{}", common::stdout(&consumed), common::stderr(&consumed));
}

/// What a node keeps for others takes the longer to be opened the more there is. The cluster hears of the node meanwhile: one that was taken for
/// lost because of that, at each of its starts, never came back.
#[test]
fn a_node_whose_copies_take_long_to_be_opened_comes_back_at_its_first_try() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let seen = |nodes: &[Option<Node>]| cluster(nodes[0].as_ref().expect("it runs"))["nodes"][2].clone();
    nodes[2].take().expect("it runs").kill();
    eventually("its loss is seen", || seen(&nodes)["state"] == "lost");
    // A file that cannot be opened for reading before somebody opens it for writing.
    let slow = members[2].place.data().join("replicas/1.replica.damaged");
    rustix::fs::mknodat(rustix::fs::CWD, &slow, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    let (is_heard, back) = std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            // Three times as long as a node may be silent, and more than one may be that was wronged, as on a machine that stands still itself.
            let is_heard = [1_500, 6_000, 6_000, 6_000].into_iter().any(|silent_ms| {
                let epoch = || seen(&nodes)["epoch"].as_u64();
                eventually("it has joined", || epoch() >= Some(2) && seen(&nodes)["state"] != "lost");
                let joined = epoch();
                std::thread::sleep(std::time::Duration::from_millis(silent_ms));
                epoch() == joined && seen(&nodes)["state"] != "lost"
            });
            drop(std::fs::OpenOptions::new().write(true).open(&slow).expect("somebody reads"));
            is_heard
        });
        let back = start_again(&members[2]);
        (opening.join().expect("no panic"), back)
    });
    assert!(is_heard, "it was taken for lost while it opened them: {}", seen(&nodes));
    eventually("it is live", || seen(&nodes)["state"] == "live");
    assert_eq!(back.stop(), 0);
}

/// The machine of a lost coordinator is replaced by one that has its addresses. What that one answers is not the vote of the other, which may have agreed to what nobody
/// has who is left.
#[test]
fn who_has_the_address_of_a_lost_coordinator_does_not_vote_for_it() {
    let ports = free_ports::<6>();
    let (_members, mut nodes) = three_nodes(&ports);
    let third = nodes.pop().flatten().expect("it runs");
    nodes.clear();
    let new = Member::new(4, ports[0], ports[3], Some(ports[5]), &[]);
    let mut child = kera(&new.flags).stderr(Stdio::null()).spawn().expect("the binary runs");
    eventually("a node at the address of the first one", || TcpStream::connect(("127.0.0.1", ports[3])).is_ok());
    let terms = || cluster(&third)["term"].as_u64().expect("a number");
    let began = terms();
    eventually("some elections, each without a majority", || terms() >= began + 3);
    let leader = cluster(&third)["leader"].clone();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert_ne!(leader, 3, "one of three coordinators is left");
}

/// The same when the one that is left has started again, and knows only by its log who the others are.
#[test]
fn who_has_the_address_of_a_lost_coordinator_does_not_vote_for_one_that_has_started_again() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    nodes[0].as_ref().expect("it runs").ok("stream create kept --replication 3");
    nodes.drain(..).flatten().for_each(Node::kill);
    let new = Member::new(4, ports[0], ports[3], Some(ports[5]), &[]);
    let new = Waiting::start(&new);
    eventually("a node at the address of the first one", || TcpStream::connect(("127.0.0.1", ports[3])).is_ok());
    let third = Waiting::start(&members[2]);
    eventually("it asks for votes, and has its own", || {
        let said = third.said();
        said.contains("another node than the one of this number")
            && said.contains("2 votes of 3 are needed and 1 can be had")
    });
    assert!(!third.is_ready(), "{}", third.said());
    drop(new);
    let second = start_again(&members[1]);
    eventually("the two are there", || live(&second) == 2 && third.is_ready());
    assert_ne!(cluster(&second)["leader"], 1);
    assert!(second.ok("stream list").contains("kept"));
}

/// Its disk is not mounted, for one. The others are told to join where it is, and have heard of no leader when they ask there.
#[test]
fn a_first_node_without_its_data_founds_another_cluster_and_the_others_go_on_without_it() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    nodes[0].as_ref().expect("it runs").ok("stream create kept --replication 3");
    nodes.drain(..).flatten().for_each(Node::kill);
    let empty = Member::new(1, ports[0], ports[3], None, &[]);
    let founder = start_again(&empty);
    assert!(founder.log().contains("this node has founded a cluster"), "{}", founder.log());

    let second = Waiting::start(&members[1]);
    // One that led when it was killed leads again, alone, and asks nobody to let it join.
    eventually("it does not ask for a vote there", || {
        second.said().contains("another node than the one of this number")
    });
    let third = start_again(&members[2]);
    eventually("the two are there", || live(&third) == 2 && second.is_ready());
    let status = cluster(&third);
    assert!(status["leader"] == 2 || status["leader"] == 3, "{status}");
    assert!(third.ok("stream list").contains("kept"));
    assert_eq!(cluster(&founder)["nodes"].as_array().map(Vec::len), Some(1), "it has let nobody in");
    assert_eq!(founder.stop(), 0);

    // As operators are told to start it once there is another one.
    let joins = Member::new(1, ports[0], ports[3], Some(ports[5]), &[]);
    let refused = common::run(&joins.flags);
    assert!(!refused.status.success());
    let refused = common::stderr(&refused);
    assert!(refused.contains("another node is number 1 of the cluster"), "{refused}");
    let flags = members[0].flags.iter().cloned().chain(["--join".into(), format!("127.0.0.1:{}", ports[5])]).collect();
    let back = start_again(&Member { place: Place::new(), flags });
    eventually("all are live", || live(&back) == 3);
}

/// A node has several addresses, and only `--join` names that of the cluster.
#[test]
fn a_node_that_is_to_join_where_clients_connect_is_told_which_address_is_meant() {
    let ports = free_ports::<4>();
    let first = start_again(&Member::new(1, ports[0], ports[2], None, &[]));
    let joins = Member::new(2, ports[1], ports[3], Some(ports[0]), &[]);
    let refused = common::run(&joins.flags);
    let said = common::stderr(&refused);
    assert_eq!(refused.status.code(), Some(16), "{said}");
    assert!(said.contains(&format!("--join 127.0.0.1:{}: ", ports[0])), "{said}");
    assert!(said.contains("name what it has for --cluster-listen"), "{said}");
    assert_eq!(cluster(&first)["nodes"].as_array().map(Vec::len), Some(1), "it has let nobody in");
}

/// It was started without `--join` at first, by mistake. By itself it would go on beside the cluster that it was meant for.
#[test]
fn a_node_that_has_founded_a_cluster_of_its_own_is_not_taken_for_one_of_another_and_goes_on_where_nobody_is() {
    let ports = free_ports::<4>();
    let first = start_again(&Member::new(1, ports[0], ports[2], None, &[]));
    let second = Member::new(2, ports[1], ports[3], None, &[]);
    assert_eq!(start_again(&second).stop(), 0);

    let flags = second.flags.iter().cloned().chain(["--join".into(), format!("127.0.0.1:{}", ports[2])]).collect();
    let joins = Member { place: second.place, flags };
    for _ in 0..2 {
        let refused = common::run(&joins.flags);
        let said = common::stderr(&refused);
        assert!(!refused.status.success() && said.contains("this data directory is that of cluster"), "{said}");
        let there = cluster(&first)["cluster"].as_str().expect("a uuid").to_owned();
        assert!(said.contains(&there) && said.contains("use an empty one"), "{said}");
    }
    assert_eq!(cluster(&first)["nodes"].as_array().map(Vec::len), Some(1), "it has let nobody in");
    // A founder is told to name another node, and comes up where that one is down.
    assert_eq!(first.stop(), 0);
    assert_eq!(start_again(&joins).stop(), 0);
}

/// A node that cannot be ready yet. Dropped, it is killed.
struct Waiting {
    child: Child,
    log: PathBuf,
}

impl Waiting {
    fn start(member: &Member) -> Waiting {
        let log = member.place.file("log");
        let out = std::fs::File::create(&log).expect("a log");
        Waiting { child: kera(&member.flags).stderr(out).spawn().expect("the binary runs"), log }
    }

    /// What it has said so far.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        self.said().contains("\"message\":\"ready\"")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the node said:\n{}", self.said());
        }
    }
}

#[test]
fn a_node_that_waits_for_a_majority_says_for_whom_and_one_that_has_moved_says_how_it_is_found() {
    let ports = free_ports::<7>();
    let (members, mut nodes) = three_nodes(&ports);
    // The second one, without its address for other nodes: they would never find it.
    nodes[1].take().expect("it runs").kill();
    let moved = Member::new(2, ports[1], ports[6], None, &["--data", &members[1].place.data().display().to_string()]);
    let refused = common::run(&moved.flags);
    assert_eq!(refused.status.code(), Some(10));
    let said = common::stderr(&refused);
    let (known, now) = (format!("127.0.0.1:{}", ports[4]), format!("127.0.0.1:{}", ports[6]));
    assert!(said.contains(&format!("at {known}")) && said.contains(&format!("at {now}")), "{said}");
    let mut flags = moved.flags.clone();
    flags.extend(["--join".into(), format!("127.0.0.1:{}", ports[5])]);
    let mut found = Node::start_flags(&flags);
    found.expect_warning("");
    eventually("all are live", || live(&found) == 3);

    // Alone it waits for one of the others, and says for whom.
    nodes.clear();
    found.kill();
    let log = moved.place.file("log");
    let out = std::fs::File::create(&log).expect("a log");
    let mut alone = kera(&moved.flags).stderr(out).spawn().expect("the binary runs");
    eventually("it says what it waits for", || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.contains("2 votes of 3 are needed and 1 can be had, its own included")
            && said.contains(&format!("node 1 at 127.0.0.1:{}", ports[3]))
    });
    alone.kill().expect("it runs");
    alone.wait().expect("it ends");
}

#[test]
fn a_node_that_is_started_with_another_number_is_told_its_own_and_nobody_is_told_to_move_data_away() {
    let ports = free_ports::<4>();
    let first = Member::new(1, ports[0], ports[2], None, &[]);
    assert_eq!(first.start().stop(), 0);
    let mut flags = first.flags.clone();
    let at = flags.iter().position(|flag| flag == "--node").expect("it is there") + 1;
    flags[at] = "5".into();
    let refused = common::run(&flags);
    assert_eq!(refused.status.code(), Some(16));
    let said = common::stderr(&refused);
    assert!(said.contains("start it with --node 1") && !said.contains("start empty"), "{said}");
}

/// As when somebody goes back to a snapshot of its machine: what it acknowledged since is not there, and it would say that it has all that it had.
#[test]
fn a_node_with_an_older_copy_of_its_disks_is_refused() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let lines = members[0].place.file("lines");
    std::fs::write(&lines, (0..100).map(|at| format!("{at}:{at}\n")).collect::<String>()).expect("there is room");
    // Each node has the log of some of its streamlets.
    let write = |node: &Node, stream: &str| {
        node.ok(&format!("stream create {stream} --streamlets 6 --replication 3"));
        node.ok(&format!("produce {stream} --key-separator : --file {}", lines.display()));
    };
    let first = nodes[0].take().expect("it runs");
    write(&first, "before");
    assert_eq!(nodes[2].take().expect("it runs").stop(), 0);
    let (data, older) = (members[2].place.data(), members[2].place.file("older"));
    let copied = std::process::Command::new("cp").arg("-a").args([&data, &older]).status().expect("cp is there");
    assert!(copied.success());
    nodes[2] = Some(start_again(&members[2]));
    eventually("it is live again", || live(&first) == 3);
    write(&first, "since");
    assert_eq!(nodes[2].take().expect("it runs").stop(), 0);

    std::fs::remove_dir_all(&data).expect("nobody uses it");
    std::fs::rename(&older, &data).expect("nobody uses it");
    // A start that ends before the cluster is asked is none either: one with a disk of another node.
    let foreign = members[2].place.file("foreign");
    std::fs::create_dir_all(&foreign).expect("there is room");
    let uuid = |digit: &str| [8, 4, 4, 4, 12].map(|digits| digit.repeat(digits)).join("-");
    let mark = format!("{{\"version\":1,\"node\":\"{}\",\"disk\":\"{}\"}}", uuid("a"), uuid("b"));
    std::fs::write(foreign.join("disk.json"), mark).expect("there is room");
    let with_it = members[2].flags.iter().cloned().chain(["--disks".into(), foreign.display().to_string()]);
    let said = common::stderr(&common::run(with_it));
    assert!(said.contains("is a disk of node aaaaaaaa"), "{said}");
    // Whoever starts it again and again changes nothing.
    for _ in 0..2 {
        let refused = common::run(&members[2].flags);
        let said = common::stderr(&refused);
        assert!(!refused.status.success() && said.contains("the disks of node 3 are an older copy"), "{said}");
        assert!(said.contains("start it with the disks that it had"), "{said}");
    }
}

/// It has written nothing that has copies since, so nothing shows what its disks are. But the cluster has let it in once more than they know.
#[test]
fn a_node_whose_disks_may_be_an_older_copy_says_so() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let first = nodes[0].take().expect("it runs");
    first.ok("stream create single --streamlets 3 --replication 1");
    assert_eq!(nodes[2].take().expect("it runs").stop(), 0);
    let (data, older) = (members[2].place.data(), members[2].place.file("older"));
    let copied = std::process::Command::new("cp").arg("-a").args([&data, &older]).status().expect("cp is there");
    assert!(copied.success());
    nodes[2] = Some(start_again(&members[2]));
    eventually("it is live again", || live(&first) == 3);
    assert_eq!(nodes[2].take().expect("it runs").stop(), 0);
    std::fs::remove_dir_all(&data).expect("nobody uses it");
    std::fs::rename(&older, &data).expect("nobody uses it");
    let node = start_again(&members[2]);
    assert!(node.log().contains("epochs of this node that are not on its disks"), "{}", node.log());
}

/// Three nodes with a hundred records of three copies, the last of which was stopped in good order.
fn with_the_third_stopped() -> (Vec<Member>, Vec<Option<Node>>) {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let lines = members[0].place.file("lines");
    std::fs::write(&lines, (0..100).map(|at| format!("{at}:{at}\n")).collect::<String>()).expect("there is room");
    let first = nodes[0].as_ref().expect("it runs");
    first.ok("stream create copied --streamlets 3 --replication 3");
    first.ok(&format!("produce copied --key-separator : --file {}", lines.display()));
    assert_eq!(nodes[2].take().expect("it runs").stop(), 0);
    (members, nodes)
}

/// A start that ends before the node is in its cluster is none: without what its disk says of the stop before, others would rebuild all that it has.
#[test]
fn a_node_that_is_told_to_stop_while_it_waits_for_its_cluster_was_stopped_with_everything_on_disk_all_the_same() {
    let (members, nodes) = with_the_third_stopped();
    drop(nodes);
    let identity = || std::fs::read_to_string(members[2].place.data().join("node.json")).expect("it is there");
    let before = identity();
    assert!(before.contains("\"stopped\": true"), "{before}");

    let log = members[2].place.file("log");
    let out = std::fs::File::create(&log).expect("a log");
    let mut waits = kera(&members[2].flags).stderr(out).spawn().expect("the binary runs");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("it says what it waits for", || said().contains("2 votes of 3 are needed"));
    let pid = rustix::process::Pid::from_child(&waits);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert_eq!(waits.wait().expect("it ends").code(), Some(130));
    assert!(said().contains("the next start finds all that there was"), "{}", said());
    assert_eq!(identity(), before);

    let nodes: Vec<Node> = std::thread::scope(|scope| {
        let starts: Vec<_> = members.iter().map(|member| scope.spawn(|| start_again(member))).collect();
        starts.into_iter().map(|start| start.join().expect("it starts")).collect()
    });
    assert!(identity().contains("\"version\": 2"), "it runs: {}", identity());
    assert_eq!(nodes[2].ok("consume copied --max 100 --json").lines().count(), 100);
}

/// A stop has given the arena back, so its note is all that says that everything is on disk until there is another arena: without it others would rebuild all that the node has.
#[test]
fn a_node_whose_start_ends_between_its_joining_and_its_arena_was_stopped_with_everything_on_disk_all_the_same() {
    let (members, _nodes) = with_the_third_stopped();
    let identity = || -> Value {
        let text = std::fs::read_to_string(members[2].place.data().join("node.json")).expect("it is there");
        serde_json::from_str(&text).expect("JSON")
    };
    let mut before = identity();
    assert_eq!(before["stopped"], true, "{before}");

    // There is no arena, and none can be made where its file is to be.
    let uuid = before["node"].as_str().expect("a uuid").to_owned();
    let arena = members[2].place.arena().join(format!("kera-{uuid}.arena"));
    std::os::unix::fs::symlink(members[2].place.file("not-there/arena"), &arena).expect("a link");
    for _ in 0..2 {
        let refused = common::run(&members[2].flags);
        assert_eq!(refused.status.code(), Some(15), "{}", common::stderr(&refused));
        let now = identity();
        assert!(now["epoch"].as_u64() > before["epoch"].as_u64(), "it has joined: {now}, before {before}");
        assert_eq!(now["stopped"], true, "{now}");
        before = now;
    }
    std::fs::remove_file(&arena).expect("it is there");

    let back = start_again(&members[2]);
    let now = identity();
    assert!(now["version"] == 2 && now["stopped"] == Value::Null, "it runs: {now}");
    assert!(arena.exists(), "that is said by its arena");
    eventually("it is live", || live(&back) == 3);
    assert_eq!(back.ok("consume copied --max 100 --json").lines().count(), 100);
}
