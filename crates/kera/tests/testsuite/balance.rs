//! Nodes of a cluster in processes that are evened out: by themselves when one comes, and by what producers write.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::members::{Member, cluster, free_ports, some_nodes_with, start_again};
use crate::common::{self, Node, both, eventually};

const RECORDS: u64 = 40_000;

fn owned(node: &Node) -> Vec<u64> {
    let nodes = cluster(node)["nodes"].as_array().cloned().expect("nodes");
    nodes.iter().map(|node| node["streamlets"].as_u64().expect("a number")).collect()
}

fn metric(node: &Node, name: &str) -> u64 {
    let (_, text) = node.get("/metrics");
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn a_node_that_is_added_or_comes_back_gets_its_share_by_itself_while_records_go_through() {
    let ports = free_ports::<8>();
    let flags = ["--balance-after", "1s"];
    let (members, mut nodes) = some_nodes_with(3, &ports[..6], &flags);
    let at = |nodes: &[Option<Node>], number: usize| owned(nodes[number].as_ref().expect("it runs"));
    let first = nodes[0].as_ref().expect("it runs");
    first.ok("stream create shared --streamlets 12 --replication 2");
    // Where processors are busy one of them may have been taken for lost for a moment.
    eventually("each has its share", || owned(first) == [4, 4, 4]);
    let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
    let log = members[0].place.file("acks").display().to_string();
    let start = |line: String| {
        let mut command = common::kera(line.split_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let producing =
        start(format!("verify produce --stream shared --log {log} --records {RECORDS} --rate 2000 --connect {all}"));
    let line = format!("consume shared --from earliest --follow --max {RECORDS} --format json --connect {all}");
    let reading = std::thread::spawn({
        let reading = start(line);
        move || reading.wait_with_output().expect("it ends")
    });

    let moves = |nodes: &[Option<Node>]| {
        nodes.iter().flatten().map(|node| metric(node, "kera_cluster_balance_moves_total")).sum::<u64>()
    };
    let before = moves(&nodes);
    let fourth = Member::new(4, ports[6], ports[7], Some(ports[3]), &flags);
    nodes.push(Some(start_again(&fourth)));
    eventually("the fourth node has its share", || at(&nodes, 0) == [3, 3, 3, 3]);
    // Who was taken for lost for a moment, as on a busy machine, has had more moves made.
    let nodes_now = cluster(nodes[0].as_ref().expect("it runs"))["nodes"].as_array().cloned().expect("nodes");
    let nobody_was = nodes_now.iter().all(|node| node["epoch"] == 1);
    assert!(!nobody_was || moves(&nodes) == before + 3, "and no more moved than that takes");

    nodes[2].take().expect("it runs").kill();
    eventually("the others have what it had", || at(&nodes, 0)[2] == 0);
    nodes[2] = Some(start_again(&members[2]));
    eventually("it has its share again", || at(&nodes, 3) == [3, 3, 3, 3]);

    let produced = producing.wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}", both(&produced));
    let read = reading.join().expect("no panic");
    assert!(read.status.success(), "{}", common::stderr(&read));
    let mut lanes: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
    for line in common::stdout(&read).lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("a record");
        let number = |name: &str| record[name].as_u64().expect("a number");
        lanes.entry((number("streamlet"), number("lane"))).or_default().push(number("ordinal"));
    }
    assert_eq!(lanes.values().map(Vec::len).sum::<usize>() as u64, RECORDS);
    assert!(lanes.values().all(|ordinals| ordinals.iter().copied().eq(0..ordinals.len() as u64)), "in order, once");
    let proven = common::run(format!("verify consume --stream shared --log {log} --connect {all}").split_whitespace());
    assert!(proven.status.success(), "{}", both(&proven));
}

#[test]
fn a_busy_streamlet_has_its_node_to_itself_when_somebody_asks_for_that() {
    let ports = free_ports::<6>();
    let (members, nodes) = some_nodes_with(3, &ports, &["--balance", "false"]);
    let first = nodes[0].as_ref().expect("it runs");
    first.ok("stream create quiet --streamlets 8 --replication 2");
    first.ok("stream create busy --streamlets 1 --replication 2");
    let before = owned(first);
    assert_eq!(before, [3, 3, 3]);
    let file = members[0].place.file("lines.txt");
    std::fs::write(&file, format!("{}\n", "x".repeat(999)).repeat(4096)).expect("a file");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not for ever, if something is wrong below.
            for _ in (0..400).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                first.ok(&format!("produce busy --file {} --quiet", file.display()));
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let plan = || first.json("rebalance --dry-run");
        let mut planned = plan();
        eventually("the load is known", || {
            planned = plan();
            planned["moves"].as_array().map(Vec::len) == Some(2)
        });
        let busy = planned["moves"][0]["from"].as_u64().expect("a node") as usize;
        let of = &planned["nodes"][busy - 1];
        assert!(of["bytes_per_s"].as_u64() >= Some(1 << 20), "{planned}");
        assert_eq!((&of["streamlets"], &of["streamlets_after"]), (&3.into(), &1.into()), "{planned}");
        assert!(planned["moves"].as_array().expect("moves").iter().all(|of| of["stream"] == "quiet"), "{planned}");
        // While the producer has no turn there is no load, and other moves.
        eventually("the text says so", || {
            let text = first.ok("rebalance --dry-run");
            text.contains("TAKES") && text.contains("2 moves")
        });
        eventually("it has its node to itself, and it stays like that", || {
            first.ok("rebalance");
            owned(first)[busy - 1] == 1 && first.json("rebalance")["moved"] == 0
        });
        is_over.store(true, Ordering::Relaxed);
    });
}
