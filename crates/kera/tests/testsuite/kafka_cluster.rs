//! Kafka consumer groups of three nodes in three processes: each has one coordinator, which another node becomes when it is killed or
//! frozen, with all that was acknowledged. Requests are written by hand.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::members::free_ports;
use crate::common::{Node, PATIENCE, Place, eventually};

const OFFSET_COMMIT: i16 = 8;
const OFFSET_FETCH: i16 = 9;
const FIND_COORDINATOR: i16 = 10;
const LOADING: i16 = 14;
const NOT_AVAILABLE: i16 = 15;
const NOT_COORDINATOR: i16 = 16;

/// Three nodes; 0 founds the cluster.
struct Three {
    flags: Vec<Vec<String>>,
    kafka: Vec<u16>,
    nodes: Vec<Option<Node>>,
    _places: Vec<Place>,
}

impl Three {
    fn start() -> Three {
        Three::start_after(|_, _| ())
    }

    /// The same without the third one, which comes later.
    fn start_two() -> Three {
        Three::begin(|_, _| (), 2)
    }

    /// The same, when something was done with the flags of the first node but for those of the cluster, and its port for Kafka clients.
    fn start_after(first: impl Fn(&[String], u16)) -> Three {
        Three::begin(first, 3)
    }

    fn begin(first: impl Fn(&[String], u16), count: usize) -> Three {
        let ports = free_ports::<9>();
        let places: Vec<Place> = (0..3).map(|_| Place::new()).collect();
        let flags = places.iter().enumerate().map(|(at, place)| {
            let mut flags = place.flags();
            let mut set = |flag: &str, port: u16| {
                let value = flags.iter().position(|known| known == flag).expect("it is there") + 1;
                flags[value] = format!("127.0.0.1:{port}");
            };
            set("--listen", ports[at]);
            set("--kafka-listen", ports[3 + at]);
            if at == 0 {
                first(&flags, ports[3]);
            }
            flags.extend(["--node".into(), (at + 1).to_string()]);
            flags.extend(["--cluster-listen".into(), format!("127.0.0.1:{}", ports[6 + at])]);
            if at > 0 {
                flags.extend(["--join".into(), format!("127.0.0.1:{}", ports[6])]);
            }
            flags
        });
        let flags: Vec<Vec<String>> = flags.collect();
        let kafka = ports[3..6].to_vec();
        let mut three = Three { flags, kafka, nodes: vec![None, None, None], _places: places };
        (0..count).for_each(|at| three.start_node(at));
        eventually("all nodes live", || (0..count).all(|at| three.live(at) == count));
        three
    }

    fn start_node(&mut self, at: usize) {
        let mut node = Node::start_flags(&self.flags[at]);
        node.expect_warning("");
        self.nodes[at] = Some(node);
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it runs")
    }

    fn status(&self, at: usize) -> Value {
        self.node(at).json("status")["cluster"].clone()
    }

    fn live(&self, at: usize) -> usize {
        let nodes = self.status(at)["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|node| node["state"] == "live").count()
    }

    /// The coordinator of a group as one node tells it, from 0, if it knows one.
    fn told(&self, at: usize, group: &str) -> Option<usize> {
        let answer = Kafka::connect(self.kafka[at])?.call(FIND_COORDINATOR, 0, &text(group))?;
        let error = i16::from_be_bytes([answer[0], answer[1]]);
        let node = i32::from_be_bytes(answer[2..6].try_into().expect("four bytes"));
        (error == 0).then_some(node as usize - 1)
    }

    /// The same, once the nodes that run agree, and it is one of them that serves the group.
    fn coordinator(&self, group: &str) -> usize {
        let running: Vec<usize> = (0..3).filter(|at| self.nodes[*at].is_some()).collect();
        let started = Instant::now();
        loop {
            let told: Vec<_> = running.iter().map(|at| self.told(*at, group)).collect();
            if let Some(Some(node)) = told.first().copied()
                && told.iter().all(|other| *other == Some(node))
                && running.contains(&node)
                && self.offset(node, group).is_ok()
            {
                return node;
            }
            assert!(started.elapsed() < PATIENCE, "no coordinator of {group}: {told:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a node says that a group has committed of partition 0 of `t`; -1 for nothing.
    fn offset(&self, at: usize, group: &str) -> Result<i64, i16> {
        Kafka::connect(self.kafka[at]).and_then(|mut kafka| kafka.offset(group)).unwrap_or(Err(-1))
    }

    /// Commits at whoever coordinates the group: where processors are busy that may be another node than a moment ago. Who it is.
    fn commit_somewhere(&self, group: &str, offset: i64) -> usize {
        let started = Instant::now();
        loop {
            let at = self.coordinator(group);
            let mut kafka = Kafka::connect(self.kafka[at]);
            let answer = kafka.as_mut().and_then(|kafka| kafka.call(OFFSET_COMMIT, 2, &commit_of(group, offset)));
            let error = answer.map(|answer| error_of(&answer));
            if error == Some(0) {
                return at;
            }
            let passes = matches!(error, None | Some(LOADING | NOT_AVAILABLE | NOT_COORDINATOR));
            assert!(passes && started.elapsed() < PATIENCE, "{group} commits nothing: {error:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The coordinators of groups, once all nodes take part: one that was taken for lost for a moment gets its share again.
    fn coordinators(&self, groups: &[String]) -> Vec<usize> {
        let mut owners = Vec::new();
        eventually("all nodes take part", || {
            owners = groups.iter().map(|group| self.coordinator(group)).collect();
            (0..3).all(|node| owners.contains(&node))
        });
        owners
    }

    /// Commits at a node: the error. As clients do, it tries again while the coordinator has no copies to write to.
    fn commit(&self, at: usize, group: &str, offset: i64) -> i16 {
        let started = Instant::now();
        loop {
            let mut kafka = Kafka::connect(self.kafka[at]).expect("it runs");
            let answer = kafka.call(OFFSET_COMMIT, 2, &commit_of(group, offset)).expect("it answers");
            match error_of(&answer) {
                NOT_AVAILABLE if started.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
                error => return error,
            }
        }
    }
}

struct Kafka(TcpStream);

impl Kafka {
    fn connect(port: u16) -> Option<Kafka> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(Kafka(stream))
    }

    fn send(&mut self, key: i16, version: i16, body: &[u8]) -> Option<()> {
        let head = [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 9, 0, 1, b't']].concat();
        let frame = [&((head.len() + body.len()) as u32).to_be_bytes()[..], &head, body].concat();
        self.0.write_all(&frame).ok()
    }

    /// An answer's body; `None` if the connection has ended.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut answer).ok()?;
        Some(answer.split_off(4))
    }

    fn call(&mut self, key: i16, version: i16, body: &[u8]) -> Option<Vec<u8>> {
        self.send(key, version, body)?;
        self.answer()
    }

    fn offset(&mut self, group: &str) -> Option<Result<i64, i16>> {
        // Version 2 says errors of the group at its end.
        let body = [&text(group)[..], &one_partition(&[])].concat();
        let answer = self.call(OFFSET_FETCH, 2, &body)?;
        let error = i16::from_be_bytes(*answer.last_chunk()?);
        if error != 0 {
            return Some(Err(error));
        }
        // One topic, its name, one partition, its index.
        Some(Ok(i64::from_be_bytes(answer[15..23].try_into().ok()?)))
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// Partition 0 of topic `t`, and what follows its number.
fn one_partition(more: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 1][..], &text("t"), &[0, 0, 0, 1, 0, 0, 0, 0], more].concat()
}

/// OffsetCommit version 2 of a group without members.
fn commit_of(group: &str, offset: i64) -> Vec<u8> {
    let nobody = [&(-1_i32).to_be_bytes()[..], &text(""), &(-1_i64).to_be_bytes()].concat();
    [&text(group)[..], &nobody, &one_partition(&[&offset.to_be_bytes()[..], &text("")].concat())].concat()
}

fn error_of(answer: &[u8]) -> i16 {
    i16::from_be_bytes(*answer.last_chunk().expect("it ends with the error"))
}

fn groups() -> Vec<String> {
    (0..12).map(|number| format!("group-{number}")).collect()
}

/// What groups commit is in a stream that was made when there were two nodes.
#[test]
fn what_groups_have_committed_gets_a_third_copy_when_a_third_node_comes() {
    let mut three = Three::start_two();
    three.node(0).ok("stream create t --replication 2");
    three.commit_somewhere("early", 7);
    let copies = |three: &Three| {
        let described = three.node(0).json("stream describe _kera.cluster.groups");
        described["options"]["replication"].as_u64().expect("a number")
    };
    assert_eq!(copies(&three), 2);
    three.start_node(2);
    eventually("a third copy", || copies(&three) == 3);
    let at = three.coordinator("early");
    assert_eq!(three.offset(at, "early"), Ok(7));
    let at = three.commit_somewhere("early", 8);
    three.nodes[at].take().expect("it runs").kill();
    let next = three.coordinator("early");
    assert_eq!(three.offset(next, "early"), Ok(8));
}

#[test]
fn what_groups_have_committed_survives_the_loss_of_their_coordinators() {
    let mut three = Three::start();
    three.node(0).ok("stream create t --streamlets 3 --replication 3");
    let groups = groups();
    let mut owners = three.coordinators(&groups);
    for (at, group) in groups.iter().enumerate() {
        owners[at] = three.commit_somewhere(group, 10 + at as i64);
        let other = (owners[at] + 1) % 3;
        assert_eq!(three.commit(other, group, 99), NOT_COORDINATOR);
        assert_eq!(three.offset(other, group), Err(NOT_COORDINATOR));
    }
    // Each node is lost once, the first one's second owner too, and each time what was committed since is there.
    for round in 0..3_i64 {
        let lost = owners[0];
        three.nodes[lost].take().expect("it runs").kill();
        for (at, group) in groups.iter().enumerate() {
            owners[at] = three.coordinator(group);
            assert_ne!(owners[at], lost);
            assert_eq!(three.offset(owners[at], group), Ok(10 + at as i64 + 100 * round), "{group}");
            owners[at] = three.commit_somewhere(group, 10 + at as i64 + 100 * (round + 1));
        }
        three.start_node(lost);
        eventually("it is back", || three.live(lost) == 3);
        eventually("nothing waits", || three.status(lost)["waiting_streamlets"] == 0);
    }
    // All of them at once, as in a loss of power that spares the disks.
    three.nodes.iter_mut().for_each(|node| node.take().expect("it runs").kill());
    let flags = three.flags.clone();
    let started: Vec<_> =
        flags.into_iter().map(|flags| std::thread::spawn(move || Node::start_flags(&flags))).collect();
    three.nodes = started.into_iter().map(|node| node.join().ok()).collect();
    three.nodes.iter_mut().flatten().for_each(|node| node.expect_warning(""));
    for (at, group) in groups.iter().enumerate() {
        let owner = three.coordinator(group);
        assert_eq!(three.offset(owner, group), Ok(10 + at as i64 + 300), "{group}");
    }
}

#[test]
fn a_coordinator_that_was_frozen_acknowledges_nothing_any_more() {
    let three = Three::start();
    three.node(0).ok("stream create t --streamlets 1 --replication 3");
    let frozen = three.coordinator("g");
    assert_eq!(three.commit(frozen, "g", 1), 0);
    let mut old = Kafka::connect(three.kafka[frozen]).expect("it runs");
    assert_eq!(old.offset("g"), Some(Ok(1)));
    three.node(frozen).signal("STOP");
    // It is on its way while nobody reads it, and is read when another node has the group.
    old.send(OFFSET_COMMIT, 2, &commit_of("g", 99)).expect("the system takes it");
    let other = (frozen + 1) % 3;
    eventually("another one coordinates it", || {
        three.told(other, "g").is_some_and(|node| node != frozen && three.offset(node, "g") == Ok(1))
    });
    let next = three.told(other, "g").expect("it was told");
    assert_eq!(three.commit(next, "g", 2), 0);
    three.node(frozen).signal("CONT");
    let answer = old.answer();
    assert!(answer.as_ref().is_none_or(|answer| error_of(answer) != 0), "{answer:?}");
    eventually("it is back", || three.live(other) == 3);
    let now = three.coordinator("g");
    assert_eq!(three.offset(now, "g"), Ok(2));
}

#[test]
fn what_groups_have_committed_goes_along_when_their_coordinators_are_drained() {
    let three = Three::start();
    three.node(0).ok("stream create t --streamlets 1 --replication 3");
    let groups = groups();
    for (at, group) in groups.iter().enumerate() {
        three.commit_somewhere(group, at as i64);
    }
    // The second time groups come that two nodes have had, some of them from a node that had others itself.
    for round in 0..2_i64 {
        let left = three.coordinator(&groups[0]);
        three.node(left).ok(&format!("node drain {} --no-wait", left + 1));
        eventually("it owns nothing", || three.status(left)["nodes"][left]["streamlets"] == 0);
        for (at, group) in groups.iter().enumerate() {
            let owner = three.coordinator(group);
            assert_ne!(owner, left);
            assert_eq!(three.offset(owner, group), Ok(at as i64 + 100 * round), "{group}");
            three.commit_somewhere(group, at as i64 + 100 * (round + 1));
        }
        eventually("nobody needs what it has of them", || three.status(left)["nodes"][left]["held_streamlets"] == 0);
        three.node(left).ok(&format!("node drain {} --undo", left + 1));
    }
}

#[test]
fn what_groups_have_committed_at_a_node_that_was_alone_comes_along_to_its_cluster() {
    let groups = groups();
    let alone = |flags: &[String], port: u16| {
        let node = Node::start_flags(flags);
        node.ok("stream create t --streamlets 1");
        assert!(!node.ok("application list").contains("Groups of Kafka clients"));
        let mut kafka = Kafka::connect(port).expect("it runs");
        for (at, group) in groups.iter().enumerate() {
            for offset in [1, 10 + at as i64] {
                let answer = kafka.call(OFFSET_COMMIT, 2, &commit_of(group, offset)).expect("it answers");
                assert_eq!(error_of(&answer), 0);
            }
        }
        let list = node.ok("application list");
        assert!(list.contains("Groups of Kafka clients are not among them"), "{list}");
        assert_eq!(node.stop(), 0);
    };
    let mut three = Three::start_after(alone);
    let owners = three.coordinators(&groups);
    for (at, group) in groups.iter().enumerate() {
        assert_eq!(three.offset(owners[at], group), Ok(10 + at as i64), "{group}");
    }
    // Once: what is committed from then on counts, also when the node is lost that was alone.
    three.commit_somewhere(&groups[0], 99);
    three.nodes[0].take().expect("it runs").kill();
    assert_eq!(three.offset(three.coordinator(&groups[0]), &groups[0]), Ok(99));
    assert_eq!(three.offset(three.coordinator(&groups[1]), &groups[1]), Ok(11));
}
