//! The load generator and the yardstick in a tiny mode, with the real binary: so that they cannot rot.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Place, end_of, eventually, run, stderr, stdout};

fn fields(report: &Value) -> [f64; 5] {
    ["records", "bytes", "seconds", "records_per_s", "mib_per_s"].map(|name| report[name].as_f64().expect(name))
}

#[test]
fn produce_consume_and_both_report_what_they_did() {
    let place = Place::new();
    let node = place.start();
    let report = node.json("bench produce --records 20000 --streamlets 3 --chunk-bytes 4KiB --producers 2");
    assert_eq!(report["records"], 20_000);
    assert_eq!(report["bytes"], 2_000_000);
    assert_eq!(report["errors"], 0);
    assert!(fields(&report).iter().all(|&figure| figure > 0.0), "{report}");
    for name in ["p50", "p99", "p999", "max"] {
        assert!(report["latency_us"][name].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(report["config"]["chunk_bytes"], 4096);
    assert!(report["server"]["resident_bytes"].as_u64().unwrap() > 0, "the server on this host is found: {report}");

    let report = node.json("bench consume --records 20000 --streamlets 3 --consumers 2 --compression lz4");
    assert_eq!((&report["records"], &report["errors"]), (&20_000.into(), &0.into()), "{report}");

    let report = node.json("bench both --records 20000 --streamlets 4 --lanes 2 --key-distribution zipf --keys 100");
    assert_eq!(report["records"], 20_000);
    assert_eq!(report["consume"]["records"], 20_000);
    assert_eq!(report["bytes"], 20_000 * 108, "keys count");
    assert!(report["consume"]["latency_us"]["p99"].as_f64().unwrap() > 0.0, "{report}");

    assert_eq!(node.json("stream list").as_array().map_or(0, Vec::len), 0, "what it made is gone");
    node.stop();
}

#[test]
fn a_rate_is_kept_and_every_record_has_a_latency() {
    let place = Place::new();
    let node = place.start();
    let line =
        "bench both --rate 2000 --records 3000 --warmup-records 100 --linger-ms 0 --streamlets 2 --chunk-bytes 1KiB";
    let started = Instant::now();
    let report = node.json(line);
    // Of all that it has done: where the machine stood still in the warm-up, what is measured is only what was due at its end.
    assert!(started.elapsed() > Duration::from_millis(1400), "3,000 records at 2,000/s take 1.5 s: {report}");
    // A warm-up ends with a chunk: on a busy machine that may hold a few records more than were asked for.
    let records = report["records"].as_u64().unwrap();
    assert!((2950..=3000).contains(&records), "{report}");
    assert_eq!(report["latency_us"]["samples"], records, "{report}");
    node.stop();
}

/// What was due while the node stood still counts, though the load's time was over before anything of it was acknowledged.
#[test]
fn a_stall_beyond_the_end_of_a_load_at_a_rate_is_told() {
    /// So many that the node stands still before it is over, however late a busy machine sees how far it is.
    const SECONDS: u64 = 20;
    const RATE: u64 = 200;
    let place = Place::new();
    let node = place.start();
    let line = format!(
        "bench both --rate {RATE} --seconds {SECONDS} --warmup-seconds 0 --linger-ms 0 --streamlets 1 --chunk-bytes 1KiB --json"
    );
    let child = node.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let seen = SECONDS * RATE * 2 / 5;
    eventually("two fifths of it", || node.json("status")["appended_records"].as_u64() >= Some(seen));
    node.signal("STOP");
    let stands_still = Instant::now();
    // The rest of the load's time, and more.
    std::thread::sleep(Duration::from_secs(SECONDS * 3 / 5 + 2));
    let stood_still = stands_still.elapsed();
    node.signal("CONT");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    // The first record that was due while it stood still had to wait for all of the rest.
    let waited_us = (stood_still - Duration::from_secs(1) / RATE as u32).as_micros() as f64;
    for side in [&report, &report["consume"]] {
        let samples = side["latency_us"]["samples"].as_u64().unwrap();
        assert!(samples.abs_diff(SECONDS * RATE) <= 1, "all that was due: {report}");
        assert!(side["latency_us"]["max"].as_f64().unwrap() >= waited_us, "{stood_still:?}: {report}");
    }
    node.stop();
}

#[test]
fn many_streams_and_an_application_work() {
    let place = Place::new();
    let node = place.start();
    let report = node.json(
        "bench both --streams 10 --streamlets 1 --records 5000 --durability power --consumers 2 --chunk-bytes 1KiB --stream some --keep",
    );
    assert_eq!(report["consume"]["records"], 5000, "{report}");
    assert_eq!(node.json("stream list").as_array().map_or(0, Vec::len), 10, "they were to be kept");
    let report = node.json("bench both --records 5000 --application counters --consumers 2 --streamlets 4");
    assert_eq!(report["consume"]["records"], 5000, "{report}");
    node.stop();
}

/// What was made for it is nothing that anybody would look for.
#[test]
fn an_interrupted_load_leaves_no_stream_behind_unless_it_is_to_be_kept() {
    let place = Place::new();
    let node = place.start();
    let streams = || node.json("stream list").as_array().map_or(0, Vec::len);
    for (line, signal, left) in [
        ("bench produce --seconds 600 --streams 2 --streamlets 1", "-INT", 0),
        ("bench consume --records 1000000000 --streamlets 1 --retention-bytes 1MiB", "-TERM", 0),
        ("bench both --seconds 600 --rate 1000 --streamlets 1 --keep", "-TERM", 1),
    ] {
        let before = node.json("status")["appended_records"].as_u64();
        let child = node.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("records", || node.json("status")["appended_records"].as_u64() > before);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(130), "{line}: {said}");
        assert!(said.contains("interrupted: nothing was measured to its end"), "{line}: {said}");
        assert_eq!(streams(), left, "{line}");
    }
    node.stop();
}

/// What it has sent is answered by nobody, and what it still has to send finds no room.
#[test]
fn a_load_ends_soon_after_it_was_interrupted_though_its_node_hangs() {
    let place = Place::new();
    let node = place.start();
    let streams = || -> BTreeSet<String> {
        let list = node.json("stream list");
        list.as_array().unwrap().iter().map(|stream| stream["name"].as_str().unwrap().to_owned()).collect()
    };
    for line in ["bench produce --seconds 600 --streamlets 1", "bench both --seconds 600 --rate 0.01 --streamlets 1"] {
        let before = streams();
        let mut child = node.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Of this load: the one before may still have records under way.
        eventually("its records", || {
            let records = |stream: &String| node.json(&format!("stream describe {stream}"))["records"].as_u64();
            streams().difference(&before).any(|stream| records(stream) > Some(0))
        });
        node.signal("STOP");
        // Long enough for what there is room for.
        std::thread::sleep(Duration::from_millis(500));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let asked = Instant::now();
        let ended = end_of(&mut child);
        node.signal("CONT");
        assert!(asked.elapsed() < Duration::from_secs(25), "{line}: the calls' own limit is 30 s");
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert_eq!(ended, Some(1), "{line}: {said}");
        assert!(said.contains("deleting a stream"), "{line}: what is left is told: {said}");
    }
    node.stop();
}

#[test]
fn mistakes_name_the_flag() {
    let place = Place::new();
    let node = place.start();
    for (line, word) in [
        ("bench produce --seconds nine", "seconds"),
        ("bench produce --chunk-bytes 3", "chunk-bytes"),
        ("bench both --consumers 99 --streamlets 2", "consumers"),
        ("bench produce --rate 0", "rate"),
        ("bench produce --streamlets 0", "streamlets"),
        ("bench limit --frame-bytes 1", "frame-bytes"),
    ] {
        let (status, says) = node.fails(line);
        assert!(status == 2 || status == 1, "{line}: {status}");
        assert!(says.contains(word), "{line}: {says}");
    }
    node.stop();
}

#[test]
fn an_embedded_node_and_the_yardstick_need_no_server() {
    let place = Place::new();
    let dir = place.file("");
    let dir = dir.to_str().unwrap();
    let line = format!("bench produce --embedded --dir {dir} --arena-bytes 64MiB --records 5000 --streamlets 2 --json");
    let output = run(line.split_whitespace());
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!(report["records"], 5000);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "the embedded node leaves nothing");
    let line = format!(
        "bench limit --seconds 0.02 --rounds 1 --frame-bytes 4KiB,64KiB --disk {dir} --disk-bytes 16MiB --json"
    );
    let report: Value = serde_json::from_str(&stdout(&run(line.split_whitespace()))).unwrap();
    assert_eq!(report["server"].as_array().unwrap().len(), 2);
    assert!(report["disk"]["write_bytes_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["generator"]["make_ns"].as_f64().unwrap() > 0.0);
}
