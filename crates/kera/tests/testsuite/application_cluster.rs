//! An application of several members over three nodes: what its members have committed survives the loss of owners, and never moves back.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::members::{cluster, free_ports, live, some_nodes_with, start_again, three_nodes};
use crate::common::{self, Node, PATIENCE, end_of, eventually};

const RECORDS: u64 = 60_000;

/// A node knows of an application what is in its own streamlets: what it did to that alone, it would have said of all.
#[test]
fn over_http_a_node_changes_no_part_of_an_application_and_says_what_is_at_others() {
    let ports = free_ports::<6>();
    let (members, nodes) = three_nodes(&ports);
    let node = nodes[0].as_ref().expect("it runs");
    let file = members[0].place.file("lines");
    std::fs::write(&file, (0..300).map(|number| format!("{number}:{number}\n")).collect::<String>()).expect("a file");
    node.ok("stream create spread --streamlets 6 --replication 1");
    node.ok(&format!("produce spread --key-separator : --file {}", file.display()));
    assert_eq!(node.ok("consume spread --application audit").lines().count(), 300);

    let at = "/v1/applications/spread/audit";
    let (status, said) = node.http_request("POST", &format!("{at}/reset"), "{\"to\":\"earliest\"}");
    assert!(status == 501 && said.contains("`kera application reset` asks all owners"), "{status} {said}");
    assert!(said.contains("nodes 2, 3 own streamlets of `spread`"), "{said}");
    let (status, said) = node.http_request("DELETE", at, "");
    assert!(status == 501 && said.contains("`kera application delete` asks all owners"), "{status} {said}");
    let described: Value = serde_json::from_str(&node.get(at).1).expect("an answer");
    assert_eq!(described["unheard"], serde_json::json!([2, 3]), "{described}");
    let listed: Value = serde_json::from_str(&node.get("/v1/applications").1).expect("an answer");
    assert_eq!(
        (&listed[0]["name"], &listed[0]["unheard"]),
        (&serde_json::json!("audit"), &serde_json::json!([2, 3])),
        "{listed}"
    );
    assert_eq!(node.json("application list")[0]["lag"], 0, "nothing was reset");
    eventually("all are heard", || {
        let whole = node.json("application describe audit");
        (whole["lanes"].as_array().map(Vec::len), whole.get("unheard")) == (Some(6), None)
    });

    // What it owns itself it resets, and whatever is there when it owns all.
    let own = described["lanes"][0]["streamlet"].as_u64().expect("a number");
    let reset = format!("{{\"to\":\"earliest\",\"streamlets\":[{own}]}}");
    let (status, said) = node.http_request("POST", &format!("{at}/reset"), &reset);
    assert_eq!(status, 200, "{said}");
    assert!(node.json("application list")[0]["lag"].as_u64() > Some(0));
    node.ok("application reset audit --to earliest --yes");
    assert_eq!(node.json("application list")[0]["lag"], 300);
    node.ok("application delete audit --yes");
    assert_eq!(node.json("application list"), serde_json::json!([]));

    // Of a stream that it owns nothing of it does not know who reads it, or whether anybody does.
    node.ok("stream create lone --streamlets 1 --replication 1");
    node.ok(&format!("produce lone --key-separator : --file {}", file.display()));
    assert_eq!(node.ok("consume lone --application audit").lines().count(), 300);
    // Owners of what it gets do not know who has read the rest, and take a reset all the same: what is shown before is what is set.
    node.ok("stream alter lone --streamlets 3");
    let reset = |flags: &str| node.json(&format!("application reset audit --stream lone --to earliest {flags}"));
    let shown = reset("--dry-run");
    assert_eq!(shown["offsets"].as_array().map(Vec::len), Some(1), "nothing was ever written to the others: {shown}");
    node.ok(&format!("produce lone --key-separator : --file {}", file.display()));
    let shown = reset("--dry-run");
    assert_eq!(shown["offsets"].as_array().map(Vec::len), Some(3), "{shown}");
    let one = reset("--dry-run --streamlets 2")["offsets"].clone();
    let (number, to) = (&serde_json::json!(2), &serde_json::json!(0));
    assert_eq!(
        (&one[0]["streamlet"], &one[0]["lane"], &one[0]["ordinal"], &one[0]["to"]),
        (number, to, to, to),
        "{one}"
    );
    assert_eq!(one.as_array().map(Vec::len), Some(1), "{one}");
    assert_eq!(reset("--yes")["offsets"], shown["offsets"]);

    node.ok("stream create single --streamlets 1 --replication 1");
    node.ok(&format!("produce single --key-separator : --file {}", file.display()));
    assert_eq!(node.ok("consume single --application audit").lines().count(), 300);
    let told = |name: &str| {
        let at = format!("/v1/applications/single/{name}");
        let mut told: Vec<(u16, String)> = nodes.iter().flatten().map(|node| node.get(&at)).collect();
        told.sort();
        told
    };
    for (name, of_owner) in [("audit", 200), ("nobody", 404)] {
        let told = told(name);
        let codes: Vec<u16> = told.iter().map(|(status, _)| *status).collect();
        assert_eq!(codes, [of_owner, 501, 501], "{told:?}");
        assert!(told[1].1.contains("`kera application describe` asks all owners"), "{told:?}");
    }
}

/// What is at a node that is lost is in no figure; and what is done without it is done in part.
#[test]
fn a_node_that_is_not_heard_is_named_and_so_is_what_was_done_without_it() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let node = nodes[0].as_ref().expect("it runs");
    let file = members[0].place.file("lines");
    std::fs::write(&file, (0..300).map(|number| format!("{number}:{number}\n")).collect::<String>()).expect("a file");
    for (stream, streamlets, application) in [("spread", 3, "audit"), ("lone", 1, "solo")] {
        node.ok(&format!("stream create {stream} --replication 1 --streamlets {streamlets}"));
        node.ok(&format!("produce {stream} --key-separator : --file {}", file.display()));
        assert_eq!(node.ok(&format!("consume {stream} --application {application}")).lines().count(), 300);
    }
    eventually("all are heard", || common::stderr(&node.run("application list")).is_empty());
    let owner = node.json("stream describe lone")["owners"][0]["owner"].as_u64().expect("an owner") as usize;
    let (lost, other) = (owner - 1, owner % 3);
    nodes[lost].take().expect("it runs").kill();
    let node = nodes[other].as_ref().expect("it runs");
    eventually("a loss that is known", || cluster(node)["nodes"][lost]["state"] == "lost");

    let not_heard = format!("node {owner} was not heard");
    for flags in ["", " --json", " --stream spread"] {
        let listed = node.run(&format!("application list{flags}"));
        assert!(listed.status.success() && common::stdout(&listed).contains("audit"), "{}", common::stdout(&listed));
        assert!(common::stderr(&listed).contains(&not_heard), "{}", common::stderr(&listed));
    }
    assert_eq!(node.json("application list")[0]["unheard"], serde_json::json!([owner]));
    // It alone knows one there.
    for flags in ["", " --json"] {
        let listed = node.run(&format!("application list --stream lone{flags}"));
        let (status, said) = (listed.status.code(), common::stdout(&listed) + &common::stderr(&listed));
        assert!(status == Some(1) && said.contains(&format!("no application is known, but {not_heard}")), "{said}");
    }
    let top = node.ok("top --count 1");
    assert!(top.contains(&format!("{not_heard}: LAG lacks")), "{top}");
    assert_eq!(node.json("top --count 1")["unheard"], serde_json::json!([owner]));
    let (_, said) = node.fails("application describe solo");
    assert!(said.contains(&format!("{not_heard} and may know it")), "{said}");
    assert!(node.ok("stream describe spread").contains(&not_heard));
    assert_eq!(node.json("stream describe spread")["unheard"], serde_json::json!([owner]));
    let (_, said) = node.fails("application reset audit --stream spread --to earliest --yes");
    let is_lost = format!("for node {owner}, which is lost");
    assert!(said.contains("how far `audit` has read spread is not known") && said.contains(&is_lost), "{said}");
    let (_, said) = node.fails("application delete tpyo --stream spread --yes");
    assert!(!said.contains("it is done for"), "there is no application of that name: {said}");
    let (_, said) = node.fails("application delete audit --yes");
    assert!(said.contains("it is done for streamlet") && said.contains("give the command again"), "{said}");

    nodes[lost] = Some(start_again(&members[lost]));
    let node = nodes[other].as_ref().expect("it runs");
    eventually("it is back", || live(node) == 3);
    node.ok("application delete audit --yes");
    let listed = node.json("application list");
    assert_eq!((listed[0]["name"].as_str(), listed.as_array().map(Vec::len)), (Some("solo"), Some(1)), "{listed}");
}

/// It waited without end, and named the node that it was connected to, which answers.
#[test]
fn an_owner_that_stands_still_behind_the_end_is_named_and_waited_for_only_so_long() {
    let ports = free_ports::<6>();
    // The lease of the killed one is not over before the owner stands still, however slow the machine is.
    let (members, nodes) = some_nodes_with(3, &ports, &["--lease", "10m"]);
    let node = nodes[0].as_ref().expect("it runs");
    let file = members[0].place.file("lines");
    std::fs::write(&file, (0..100).map(|number| format!("{number}\n")).collect::<String>()).expect("a file");
    node.ok("stream create lone --replication 1 --streamlets 1");
    let produce = format!("produce lone --file {}", file.display());
    node.ok(&produce);
    let owner = node.json("stream describe lone")["owners"][0]["owner"].as_u64().expect("an owner") as usize;
    let node = nodes[owner % 3].as_ref().expect("it runs");
    let mut command = node.command("consume lone --application audit --follow --from earliest");
    let mut killed = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a consumer");
    let mut out = BufReader::new(killed.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!(out.by_ref().take(100).count(), 100);
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    node.ok(&produce);

    let mut command = node.command("consume lone --application audit");
    let mut consumer = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a consumer");
    let mut said = BufReader::new(consumer.stderr.take().expect("what it says")).lines().map_while(Result::ok);
    assert!(said.by_ref().any(|line| line.starts_with("waiting: ") && line.contains("of audit")), "it ended");
    nodes[owner - 1].as_ref().expect("it runs").signal("STOP");
    let status = end_of(&mut consumer);
    let said: Vec<String> = said.collect();
    assert_eq!(status, Some(1), "{said:?}");
    let is_named = |line: &String| line.contains(&format!("streamlet 0 waits for node {owner}, which is lost"));
    assert!(said.iter().any(is_named), "{said:?}");
}

/// How far the application is in each streamlet, as the owners tell; nothing while one of them cannot be asked.
fn committed(node: &Node) -> Option<BTreeMap<u64, u64>> {
    let output = node.run("application describe audit --stream copied --json");
    let description: Value = serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())?;
    let lanes = description["lanes"].as_array()?;
    let of = |lane: &Value| Some((lane["streamlet"].as_u64()?, lane["committed_ordinal"].as_u64()?));
    Some(lanes.iter().filter_map(of).collect())
}

/// Asks how far it is, and checks that it is nowhere behind where it was.
fn look(node: &Node, before: &mut BTreeMap<u64, u64>) -> u64 {
    for (streamlet, ordinal) in committed(node).unwrap_or_default() {
        let known = before.entry(streamlet).or_default();
        assert!(ordinal >= *known, "streamlet {streamlet} moved back from {known} to {ordinal}");
        *known = ordinal;
    }
    before.values().sum()
}

fn member(all: &str, number: u32, to: &std::path::Path) -> Child {
    let line = format!("consume copied --application audit --follow --format json --connect {all}");
    let out = std::fs::File::create(to).expect("a file");
    let mut command = common::kera(line.split_whitespace());
    let started = command.stdout(out).stderr(Stdio::null()).spawn();
    started.unwrap_or_else(|error| panic!("member {number}: {error}"))
}

#[test]
fn members_read_everything_and_their_commits_survive_owners_that_are_killed() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = three_nodes(&ports);
    let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    nodes[0].as_ref().unwrap().ok("stream create copied --streamlets 6 --replication 3");
    let files: Vec<_> = (0..3).map(|at| members[0].place.file(&format!("read-{at}"))).collect();
    let mut readers: Vec<Child> = (0..).zip(&files).map(|(number, file)| member(&all, number, file)).collect();
    let log = members[0].place.file("acks").display().to_string();
    let line = format!("verify produce --stream copied --log {log} --records {RECORDS} --rate 5000 --connect {all}");
    let mut producing = common::kera(line.split_whitespace());
    let mut producing = producing.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");

    let mut before = BTreeMap::new();
    for lost in [1, 0, 1] {
        let other = nodes[2].as_ref().expect("it runs");
        let at_first = look(other, &mut before);
        // On a slow machine all may be written before the last one is lost.
        eventually("commits go on", || {
            let now = committed(other).map_or(0, |now| now.values().sum::<u64>());
            now > at_first + 500 || now == RECORDS
        });
        look(other, &mut before);
        // Streamlets that have moved, with what they had before still at other nodes: to the one that is lost, and away from it.
        for (streamlet, to) in [(lost, 3), (4, lost + 1), (5, lost + 1)] {
            other.ok(&format!("streamlet move copied/{streamlet} --to {to}"));
            look(other, &mut before);
        }
        nodes[lost].take().expect("it runs").kill();
        let other = nodes[2].as_ref().expect("it runs");
        eventually("nothing waits for it", || {
            let status = cluster(other);
            status["nodes"][lost]["state"] == "lost" && status["waiting_streamlets"] == 0
        });
        look(other, &mut before);
        nodes[lost] = Some(start_again(&members[lost]));
        eventually("it is back", || live(nodes[2].as_ref().expect("it runs")) == 3);
    }
    assert!(producing.wait().expect("it ends").success());
    // One of the members goes away without a word: the others get its groups.
    let mut gone = readers.remove(1);
    gone.kill().expect("it runs");
    let _ = gone.wait();
    let other = nodes[2].as_ref().expect("it runs");
    let began = std::time::Instant::now();
    while look(other, &mut before) < RECORDS {
        assert!(began.elapsed() < PATIENCE, "{} of {RECORDS} are committed: {before:?}", before.values().sum::<u64>());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(before.values().sum::<u64>(), RECORDS, "each acknowledged record is there once");
    for mut reader in readers {
        reader.kill().expect("it runs");
        let _ = reader.wait();
    }
    let mut read = HashSet::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("what a member printed");
        // The last line of one that was killed may be cut.
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            read.insert((line["streamlet"].as_u64().unwrap(), line["ordinal"].as_u64().unwrap()));
        }
    }
    assert_eq!(read.len() as u64, RECORDS, "what is committed was read");
    let listed: Value = serde_json::from_str(&other.ok("application list --json")).expect("a list");
    assert_eq!((listed[0]["name"].as_str(), listed[0]["lag"].as_u64()), (Some("audit"), Some(0)), "{listed}");
}
