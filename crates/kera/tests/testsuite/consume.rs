//! What `kera consume` picks out of a stream: the last records of it, those of a key, and those of some streamlets and lanes.

use serde_json::Value;

use crate::common::{Node, Place, eventually, follow, lines, sorted, terminate, with_stream};

/// Writes lines, each with its key in front of a colon.
fn produce(place: &Place, node: &Node, written: &str) {
    let file = place.file("lines");
    std::fs::write(&file, written).unwrap();
    node.ok(&format!("produce flights --key-separator : --null-value null --file {}", file.display()));
}

/// What is printed with some flags, a line each.
fn printed(node: &Node, flags: &str) -> Vec<String> {
    lines(&node.ok(&format!("consume flights {flags}")))
}

/// All records as JSON, in the order of the times at which they were taken, and then of streamlets and lanes.
fn by_time(node: &Node, flags: &str) -> Vec<String> {
    let mut all = printed(node, &format!("--json {flags}"));
    all.sort_by_key(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        let number = |field: &str| record[field].as_u64().unwrap();
        let appended = record["appended"].as_str().unwrap().to_owned();
        (appended, number("streamlet"), number("lane"), number("ordinal"))
    });
    all
}

fn refused(node: &Node, line: &str, words: &[&str]) {
    let (status, said) = node.fails(line);
    assert!(status == 2 && words.iter().all(|word| said.contains(word)), "{line}: {status} {said}");
}

#[test]
fn the_last_records_are_those_of_the_whole_stream_in_the_order_of_time() {
    let (place, node) = with_stream("--streamlets 3 --lanes 2");
    for round in 0..4 {
        produce(&place, &node, &(0..10).map(|key| format!("{key}:{round}.{key}\n")).collect::<String>());
    }
    let all = by_time(&node, "");
    assert_eq!(all.len(), 40);
    for count in [0, 1, 7, 39, 40, 1_000] {
        let last = printed(&node, &format!("--json --last {count}"));
        assert_eq!(&last[..], &all[all.len().saturating_sub(count)..], "--last {count}");
    }
    assert_eq!(printed(&node, "--json --last 7 --max 2"), &all[33..35]);
    let value = |line: &String| serde_json::from_str::<Value>(line).unwrap()["value"].as_str().unwrap().to_owned();
    assert_eq!(printed(&node, "--last 3"), all[37..].iter().map(value).collect::<Vec<_>>());
    for part in ["--streamlets 1", "--streamlets 0,2", "--lanes 0", "--lanes 1 --streamlets 0-1"] {
        let all = by_time(&node, part);
        let last = printed(&node, &format!("--json --last 3 {part}"));
        assert_eq!(&last[..], &all[all.len().saturating_sub(3)..], "{part}");
    }
    refused(&node, "consume flights --last 100001", &["--last", "100001", "100000", "--from 1h"]);
    refused(&node, "consume flights --last x", &["--last", "`x`", "like 10"]);
    refused(&node, "consume flights --last 3 --application a", &["--last", "--application"]);
    refused(&node, "consume flights --last 3 --from 1h", &["--last", "--from"]);
}

#[test]
fn who_follows_goes_on_behind_the_last_records() {
    let (place, node) = with_stream("--streamlets 2");
    produce(&place, &node, &(0..20).map(|key| format!("{key}:{key}\n")).collect::<String>());
    let all = by_time(&node, "");
    let (mut follower, mut out) = follow(&node, "consume flights --last 3 --follow --json");
    assert_eq!(out.by_ref().take(3).collect::<Vec<_>>(), &all[17..]);
    produce(&place, &node, "a:more\n");
    let next: Value = serde_json::from_str(&out.next().unwrap()).unwrap();
    assert_eq!((next["key"].as_str(), next["value"].as_str()), (Some("a"), Some("more")));
    terminate(&follower);
    assert!(follower.wait().unwrap().success());
}

/// Compaction leaves holes between ordinals: going back by so many ordinals finds too few.
#[test]
fn of_a_compacted_stream_there_are_as_many_last_records_or_all_that_are_left() {
    let (place, node) = with_stream("--cleanup compact --segment-bytes 64KiB --compact-dirty-percent 1");
    let line = |key: String| format!("{key}:{}\n", "x".repeat(200));
    produce(&place, &node, &(0..30).map(|number| line(format!("once-{number}"))).collect::<String>());
    let again: String = (0..2_000).map(|number| line(format!("again-{}", number % 20))).collect();
    let mut written = 30;
    eventually("holes that compaction leaves", || {
        // Where it is late it is waited for: of what is left no more may be written than --last takes.
        if written < 40_000 {
            produce(&place, &node, &again);
            written += 2_000;
        }
        printed(&node, "").len() < written / 2
    });
    eventually("looks between which nothing is compacted", || {
        let all = printed(&node, "--json");
        let last = printed(&node, &format!("--json --last {}", all.len() - 5));
        let more = printed(&node, &format!("--json --last {}", all.len() + 500));
        let once = printed(&node, "--json --last 1 --key once-1");
        let is_same = all == printed(&node, "--json");
        if is_same {
            assert_eq!(&last[..], &all[5..]);
            assert_eq!(more, all);
            assert_eq!(once, &all[1..2], "far in front of the end");
        }
        is_same
    });
}

#[test]
fn keys_that_are_no_text_are_written_and_found_again() {
    let (place, node) = with_stream("--streamlets 2");
    let file = place.file("lines");
    std::fs::write(&file, "00ff:x\nfe:y\n").unwrap();
    node.ok(&format!("produce flights --key-separator : --key-encoding hex --file {}", file.display()));
    assert_eq!(printed(&node, "--key 00ff --key-encoding hex"), ["x"]);
    assert_eq!(printed(&node, "--key AP8= --key-encoding base64 --key-separator :"), ["AP8=:x"]);
    let found = printed(&node, "--key fe --key-encoding hex --json --last 1");
    let record: Value = serde_json::from_str(&found[0]).unwrap();
    assert_eq!((&record["key_hex"], &record["value"]), (&Value::from("fe"), &Value::from("y")));
    refused(&node, "consume flights --key ann --key-encoding hex", &["`ann` is not hexadecimal"]);
}

#[test]
fn only_records_of_the_keys_that_are_named_are_printed() {
    let (place, node) = with_stream("--streamlets 4");
    produce(&place, &node, "ann:1\nanna:2\nbob:3\nann:4\nnull:5\n:6\nann:null\n");
    assert_eq!(printed(&node, "--key ann"), ["1", "4", ""]);
    assert_eq!(printed(&node, "--key ann --key-separator :"), ["ann:1", "ann:4", "ann:null"]);
    for line in printed(&node, "--key ann --json") {
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["key"], "ann");
    }
    assert_eq!(printed(&node, "--key ann --json").len(), 3);
    assert_eq!(sorted(printed(&node, "--key anna --key bob")), ["2", "3"]);
    assert_eq!(printed(&node, "--key="), ["6"], "an empty key is another thing than none");
    assert!(printed(&node, "--key an").is_empty() && printed(&node, "--key an --last 3").is_empty());
    assert_eq!(printed(&node, "--key ann --max 2"), ["1", "4"]);
    assert_eq!(printed(&node, "--key ann --last 2 --max 1"), ["4"]);
    assert_eq!(printed(&node, "--key ann --last 100").len(), 3);
    refused(&node, "consume flights --key ann --application report", &["--key", "--application"]);

    let (mut follower, mut out) = follow(&node, "consume flights --key ann --last 1 --follow --key-separator :");
    assert_eq!(out.next().as_deref(), Some("ann:null"));
    produce(&place, &node, &(0..1_000).map(|other| format!("{other}:x\n")).collect::<String>());
    produce(&place, &node, "ann:7\n");
    assert_eq!(out.next().as_deref(), Some("ann:7"));
    terminate(&follower);
    assert!(follower.wait().unwrap().success());
}

#[test]
fn streamlets_and_lanes_are_named_by_ranges_too() {
    let (place, node) = with_stream("--streamlets 4 --lanes 2");
    produce(&place, &node, &(0..40).map(|key| format!("{key}:{key}\n")).collect::<String>());
    let all = sorted(printed(&node, ""));
    assert_eq!(sorted(printed(&node, "--streamlets 0-3")), all);
    assert_eq!(sorted(printed(&node, "--streamlets 0-3,2,1-2 --lanes 0-1")), all, "each is read once");
    let parts = ["--streamlets 0-1,3", "--streamlets 2"].map(|part| printed(&node, part));
    assert!(parts.iter().all(|part| !part.is_empty()));
    assert_eq!(sorted(parts.concat()), all);
    let lanes = ["--lanes 0", "--lanes 1"].map(|part| printed(&node, part));
    assert_eq!(sorted(lanes.concat()), all);

    let wrong: [(&str, &[&str]); 8] = [
        ("consume flights --streamlets 2-9", &["there is no streamlet 9 in flights", "it has 4 streamlets"]),
        ("consume flights --lanes 0-2", &["there is no lane 2", "each has 2 lanes"]),
        ("consume flights --streamlets 0,3-1", &["--streamlets", "`3-1`", "like 1-3"]),
        ("consume flights --streamlets 0-4294967295", &["--streamlets", "`0-4294967295`", "131071"]),
        ("consume flights --lanes 5000", &["--lanes", "`5000`", "4095"]),
        ("consume flights --streamlets 0-1 --application a", &["--streamlets", "--application"]),
        (
            "application reset report --stream flights --to earliest --streamlets 0-9 --yes",
            &["there is no streamlet 9"],
        ),
        ("log accept-loss 1 --gone 1-5000 --yes", &["--gone", "`1-5000`", "1000 at most"]),
    ];
    for (line, words) in wrong {
        refused(&node, line, words);
    }
    node.ok("consume flights --application report");
    let reset = node.json("application reset report --to earliest --streamlets 1-2 --yes");
    let mut set: Vec<u64> =
        reset["offsets"].as_array().unwrap().iter().map(|one| one["streamlet"].as_u64().unwrap()).collect();
    set.sort_unstable();
    set.dedup();
    assert_eq!(set, [1, 2], "{reset}");
}
