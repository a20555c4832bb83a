//! Reading a stream some streamlets of which are at a node that is lost: the others are read, and it is said what is not.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::members::{Member, cluster, free_ports, some_nodes, start_again, three_nodes};
use crate::common::{self, Node, end_of, eventually};

/// Writes these to all streamlets.
fn produce(node: &Node, numbers: std::ops::Range<u32>) -> BTreeSet<String> {
    let mut producing = node.command("produce spread --chunk-bytes 256B").stdin(Stdio::piped()).spawn().unwrap();
    let written: BTreeSet<String> = numbers.map(|number| format!("record number {number}")).collect();
    let text: String = written.iter().map(|line| format!("{line}\n")).collect();
    producing.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(producing.wait().unwrap().success());
    written
}

/// Three nodes of which the first one is lost, with what it had of these records. Two ports for each.
fn without_the_first(ports: &[u16]) -> (Vec<Member>, Vec<Option<Node>>, BTreeSet<String>) {
    let (members, mut nodes) = three_nodes(ports);
    let node = nodes[1].as_ref().expect("it runs");
    node.ok("stream create spread --streamlets 3 --replication 1");
    let written = produce(node, 0..300);
    nodes[0].take().expect("it runs").kill();
    let node = nodes[1].as_ref().expect("it runs");
    eventually("a loss that is known", || cluster(node)["nodes"][0]["state"] == "lost");
    (members, nodes, written)
}

/// Follows the stream into a file, and what it says into [another one](said_of).
fn follow(node: &Node, flags: &str, to: &Path) -> Child {
    let mut command = node.command(&format!("consume spread --follow {flags}"));
    let command = command.stdout(File::create(to).unwrap()).stderr(File::create(to.with_extension("said")).unwrap());
    command.spawn().unwrap()
}

fn said_of(to: &Path) -> String {
    std::fs::read_to_string(to.with_extension("said")).unwrap()
}

/// Has a process stand still, or go on.
fn signal(process: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &process.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Three nodes of which one owned all that there is and is lost, and a reader that follows the stream and waits for it.
struct AllLost {
    members: Vec<Member>,
    nodes: Vec<Option<Node>>,
    /// The one that is lost.
    owner: usize,
    /// The one that the reader asks.
    asked: usize,
    followed: PathBuf,
    following: Child,
}

/// `max`: how many records the reader takes. Two ports for each node.
fn all_lost(ports: &[u16], max: u32) -> AllLost {
    let (members, mut nodes) = three_nodes(ports);
    let node = nodes[1].as_ref().expect("it runs");
    node.ok("stream create spread --streamlets 1 --replication 1");
    let owner =
        cluster(node)["nodes"].as_array().unwrap().iter().position(|node| node["streamlets"] == 1).expect("an owner");
    let asked = (owner + 1) % 3;
    nodes[owner].take().expect("it runs").kill();
    let node = nodes[asked].as_ref().expect("it runs");
    eventually("a loss that is known", || cluster(node)["nodes"][owner]["state"] == "lost");
    let followed = members[asked].place.file("followed");
    let following = follow(node, &format!("--max {max}"), &followed);
    eventually("what it waits for", || said_of(&followed).contains("streamlet 0 waits"));
    AllLost { members, nodes, owner, asked, followed, following }
}

#[test]
fn what_is_not_at_a_lost_node_is_read_and_the_rest_when_it_is_back() {
    let ports = free_ports::<6>();
    let (members, mut nodes, written) = without_the_first(&ports);
    let node = nodes[1].as_ref().expect("it runs");
    let output = node.run("consume spread");
    let read: BTreeSet<String> = common::stdout(&output).lines().map(String::from).collect();
    let said = common::stderr(&output);
    assert!(!read.is_empty() && read.len() < 300 && read.is_subset(&written), "{read:?} {said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("waits for node 1, which is lost") && !said.contains("kera serve"), "{said}");

    let following = node.command("consume spread --from earliest --follow --max 300").stdout(Stdio::piped()).spawn();
    let mut following = following.unwrap();
    let mut out = BufReader::new(following.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..read.len() {
        out.read_line(&mut text).unwrap();
    }
    nodes[0] = Some(start_again(&members[0]));
    out.read_to_string(&mut text).unwrap();
    assert!(following.wait().unwrap().success());
    assert_eq!(text.lines().map(String::from).collect::<BTreeSet<_>>(), written);
}

/// It joins before it has opened what it has, and listens last: until then whoever looks for its streamlets is refused.
#[test]
fn a_node_that_is_back_and_does_not_listen_yet_holds_up_no_other() {
    let ports = free_ports::<7>();
    let (members, mut nodes, _) = without_the_first(&ports);
    let node = nodes[1].as_ref().expect("it runs");
    let others: Vec<String> = node.json("stream describe spread")["owners"]
        .as_array()
        .expect("owners")
        .iter()
        .filter(|of| of["owner"] != 1)
        .map(|of| of["streamlet"].to_string())
        .collect();
    let there = node.ok(&format!("consume spread --streamlets {}", others.join(","))).lines().count();
    assert!(there > 0 && there < 300, "{there}");
    // One reads the others when the node is back, and one waits for it alone, which has to say where its ordinals are.
    let (all, one) = (members[0].place.file("all"), members[0].place.file("one"));
    let lost =
        (0..3).map(|number| number.to_string()).find(|streamlet| !others.contains(streamlet)).expect("it owned one");
    let mut following = [
        follow(node, &format!("--from earliest --max {}", there + 5_000), &all),
        follow(node, &format!("--from ordinal:0 --max {} --streamlets {lost}", 300 - there), &one),
    ];
    eventually("what is there", || lines_of(&all).len() == there);
    eventually("what is away", || said_of(&one).contains("for node 1, which is lost"));

    // Nobody listens where it says that it does, nor where it did.
    let mut flags = members[0].flags.clone();
    let listen = flags.iter().position(|flag| flag == "--listen").expect("it is there") + 1;
    flags[listen] = format!("127.0.0.1:{}", ports[6]);
    flags.extend(["--advertised".into(), "127.0.0.1:1".into()]);
    let mut deaf = Node::start_flags(&flags);
    deaf.expect_warning("");
    eventually("it is live", || cluster(node)["nodes"][0]["state"] == "live");
    let lines = members[1].place.file("lines");
    let away = |key: &str| kera_client::routing::streamlet_of_key(key.as_bytes(), 3, 1).to_string() == lost;
    let keys = (0..).map(|number: u32| number.to_string()).filter(|key| !away(key)).take(5_000);
    std::fs::write(&lines, keys.map(|key| format!("{key}:more {key}\n")).collect::<String>()).unwrap();
    node.ok(&format!("produce spread --key-separator : --file {}", lines.display()));
    assert_eq!(end_of(&mut following[0]), Some(0), "{}", said_of(&all));
    eventually("why it waits", || said_of(&one).contains(&format!("streamlet {lost} waits: ")));

    deaf.kill();
    nodes[0] = Some(start_again(&members[0]));
    assert_eq!(end_of(&mut following[1]), Some(0), "{}", said_of(&one));
    assert_eq!(lines_of(&one).len(), 300 - there);
}

/// What it waits for is asked of the coordinators, who know that it waits for nothing.
#[test]
fn a_streamlet_that_waits_for_no_block_gives_none_up() {
    let ports = free_ports::<6>();
    let (_members, nodes) = three_nodes(&ports);
    let node = nodes[1].as_ref().expect("it runs");
    node.ok("stream create spread --streamlets 1 --replication 2");
    let (_, said) = node.fails("streamlet accept-loss spread/0 --log 1/1/0 --blocks 1-5");
    assert!(said.contains("blocks 1 to 5 of log 1/1/0") && said.contains("would be gone for good"), "{said}");
    let (_, said) = node.fails("streamlet accept-loss spread/0 --log 1/1/0 --blocks 1-5 --yes");
    assert!(said.contains("is not being rebuilt: it waits for no block"), "{said}");
    assert_eq!(produce(node, 0..300).len(), 300, "it goes on as it was");
}

/// Where streamlets ended that were left out, nobody could say when it began. It stands still while they are back and are written to.
#[test]
fn who_follows_gets_what_was_written_before_it_has_noticed_that_a_node_is_back() {
    let ports = free_ports::<6>();
    let (members, mut nodes, _) = without_the_first(&ports);
    let node = nodes[1].as_ref().expect("it runs");

    let subscriptions = || -> u64 {
        let of = |node: &Node| node.json("status")["subscriptions"].as_u64().expect("a number");
        nodes.iter().flatten().map(of).sum()
    };
    let before = subscriptions();
    let followed = members[0].place.file("followed");
    let mut command = node.command("consume spread --follow --max 300");
    let mut following = command.stdout(File::create(&followed).unwrap()).spawn().unwrap();
    eventually("its subscriptions", || subscriptions() > before);
    signal(&following, "-STOP");
    nodes[0] = Some(start_again(&members[0]));
    let written = produce(nodes[1].as_ref().expect("it runs"), 300..600);
    signal(&following, "-CONT");
    assert_eq!(end_of(&mut following), Some(0));
    let text = std::fs::read_to_string(&followed).unwrap();
    assert_eq!(text.lines().map(String::from).collect::<BTreeSet<_>>(), written);
}

/// It owns all that there is, so nothing can be begun with until it is back; and the stream grows behind that.
#[test]
fn who_follows_a_stream_of_which_all_was_lost_gets_all_that_comes_since() {
    let ports = free_ports::<6>();
    let AllLost { members, mut nodes, owner, asked, followed, mut following } = all_lost(&ports, 600);
    // It looks twice a second: it stands still while the node is back and takes what it has to show.
    signal(&following, "-STOP");
    nodes[owner] = Some(start_again(&members[owner]));
    let mut written = produce(nodes[owner].as_ref().unwrap(), 0..300);
    signal(&following, "-CONT");
    eventually("what came before it has noticed", || {
        std::fs::read_to_string(&followed).unwrap().lines().count() == 300
    });
    let node = nodes[asked].as_ref().expect("it runs");
    node.ok("stream alter spread --streamlets 4");
    written.extend(produce(node, 300..600));
    assert_eq!(end_of(&mut following), Some(0));
    let text = std::fs::read_to_string(&followed).unwrap();
    assert_eq!(text.lines().map(String::from).collect::<BTreeSet<_>>(), written);
}

/// Other nodes own what the stream gets then: that waits neither for the one that is lost, nor do records that came before it was noticed go by unseen.
#[test]
fn who_follows_a_stream_of_which_all_was_lost_reads_what_it_gets_meanwhile() {
    let ports = free_ports::<6>();
    let AllLost { members, nodes, asked, followed, mut following, .. } = all_lost(&ports, 20);
    let node = nodes[asked].as_ref().expect("it runs");
    signal(&following, "-STOP");
    node.ok("stream alter spread --streamlets 4");
    let away = |key: &str| kera_client::routing::streamlet_of_key(key.as_bytes(), 4, 1) == 0;
    let lines = (0..).map(|number| number.to_string()).filter(|key| !away(key)).take(20);
    let written: BTreeSet<String> = lines.collect();
    let text: String = written.iter().map(|number| format!("{number}:{number}\n")).collect();
    let file = members[asked].place.file("lines");
    std::fs::write(&file, text).unwrap();
    node.ok(&format!("produce spread --key-separator : --file {}", file.display()));
    signal(&following, "-CONT");
    assert_eq!(end_of(&mut following), Some(0));
    assert_eq!(lines_of(&followed), written);
}

/// Lines of a file, as a set: each is there once.
fn lines_of(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).expect("a file");
    let lines: BTreeSet<String> = text.lines().map(String::from).collect();
    assert_eq!(lines.len(), text.lines().count(), "{text}");
    lines
}

/// Of two nodes that are away one comes back: what it has waits for the other neither with those that were read all the time, nor where all was
/// away.
#[test]
fn who_follows_reads_what_is_back_while_another_node_stays_away() {
    let ports = free_ports::<10>();
    let (members, mut nodes) = some_nodes(5, &ports);
    let node = nodes[1].as_ref().expect("it runs");
    node.ok("stream create spread --replication 1 --streamlets 5");
    let written = produce(node, 0..300);
    let owners = node.json("stream describe spread")["owners"].as_array().expect("owners").clone();
    let of = |number: u32| -> Vec<String> {
        let owned = owners.iter().filter(|of| of["owner"] == number);
        owned.map(|of| of["streamlet"].to_string()).collect()
    };
    let (away, back) = (of(1), of(3));
    let records = |streamlets: &str| -> BTreeSet<String> {
        node.ok(&format!("consume spread --streamlets {streamlets}")).lines().map(String::from).collect()
    };
    let (of_away, of_back) = (records(&away.join(",")), records(&back.join(",")));
    assert!(!of_away.is_empty() && !of_back.is_empty());

    for lost in [0, 2] {
        nodes[lost].take().expect("it runs").kill();
    }
    let node = nodes[1].as_ref().expect("it runs");
    eventually("losses that are known", || {
        let cluster = cluster(node);
        [0, 2].iter().all(|lost| cluster["nodes"][lost]["state"] == "lost")
    });
    let (all, two) = (members[0].place.file("all"), members[0].place.file("two"));
    let streamlets = [away, back].concat().join(",");
    let max = of_away.len() + of_back.len();
    let mut following = [
        follow(node, "--from earliest --max 300", &all),
        follow(node, &format!("--from earliest --max {max} --streamlets {streamlets}"), &two),
    ];
    for path in [&all, &two] {
        let is_said = |text: &str| said_of(path).contains(text);
        eventually("what is away", || is_said("for node 1, which is lost") && is_said("for node 3,"));
    }

    nodes[2] = Some(start_again(&members[2]));
    for path in [&all, &two] {
        eventually("what is back", || lines_of(path).is_superset(&of_back));
        assert!(lines_of(path).is_disjoint(&of_away));
    }
    nodes[0] = Some(start_again(&members[0]));
    assert_eq!(following.each_mut().map(end_of), [Some(0); 2]);
    assert_eq!(lines_of(&all), written);
    assert_eq!(lines_of(&two), &of_away | &of_back);
}
