//! The verifier with the real binary: it passes what is right, finds what is wrong, and torments a node a little.

mod common;

use std::process::Output;

use common::{Place, run, stderr, stdout};
use serde_json::Value;

#[test]
fn what_was_acknowledged_is_proved_to_be_there() {
    let place = Place::new();
    let node = place.start();
    let log = place.file("acks");
    let log = log.to_str().unwrap();
    let written =
        node.json(&format!("verify produce --log {log} --records 20000 --streamlets 3 --lanes 2 --producers 3"));
    assert_eq!((&written["acknowledged"], &written["given_up"]), (&20_000.into(), &0.into()), "{written}");
    // A second run goes into the same log and the same stream.
    node.json(&format!("verify produce --log {log} --records 1000 --producers 1"));
    let verdict = node.json(&format!("verify consume --log {log}"));
    assert_eq!((&verdict["holds"], &verdict["records"]), (&true.into(), &21_000.into()), "{verdict}");
    let verdict = node.json(&format!("verify consume --log {log} --application audit --consumers 2"));
    assert_eq!((&verdict["holds"], &verdict["acknowledged"]), (&true.into(), &21_000.into()), "{verdict}");
    node.stop();
}

#[test]
fn a_record_that_is_missing_is_found_and_the_exit_status_says_so() {
    let place = Place::new();
    let node = place.start();
    let log = place.file("acks");
    let (path, records) = (log.to_str().unwrap(), 2000);
    node.json(&format!("verify produce --log {path} --records {records} --streamlets 1 --producers 1"));
    // The log is made to promise ten records more than were sent.
    let text = std::fs::read_to_string(&log).unwrap();
    let run = text.split_whitespace().nth(2).unwrap();
    std::fs::write(&log, format!("{text}ack {run} 0 0 {records} {} - -\n", records + 10)).unwrap();
    let (status, says) = node.fails(&format!("verify consume --log {path}"));
    assert_eq!(status, 1, "{says}");
    let output = node.run(&format!("verify consume --log {path}"));
    assert!(stdout(&output).contains("records 2000 to 2009 were acknowledged and never came"), "{}", stdout(&output));
    node.stop();
}

fn chaos(flags: &str) -> Output {
    let place = Place::new();
    let dir = place.file("");
    let fixed = "--quiet --json --arena-bytes 32MiB --rate 5000 --between-ms 100,400";
    let line = format!("verify chaos --dir {} {fixed} {flags}", dir.display());
    run(line.split_whitespace())
}

fn must_hold(flags: &str) -> Value {
    let output = chaos(flags);
    let report: Value = serde_json::from_str(&stdout(&output))
        .unwrap_or_else(|e| panic!("{e}: {}{}", stdout(&output), stderr(&output)));
    assert!(output.status.success() && report["holds"] == true, "{report:#}\n{}", stderr(&output));
    assert!(report["acknowledged"].as_u64().unwrap() > 0, "{report:#}");
    report
}

#[test]
fn three_kills_under_load_lose_nothing() {
    let report = must_hold("--rounds 3 --faults kill --seed 7");
    assert_eq!(report["faults"]["kill"], 3);
}

#[test]
fn losing_memory_loses_nothing_that_was_to_survive_it() {
    must_hold("--rounds 3 --faults kill,power --durability power --order none --seed 8");
}

#[test]
fn a_frozen_and_a_stopped_node_lose_nothing() {
    must_hold("--rounds 3 --faults freeze,stop --hold-seconds 1 --seed 9");
}

/// Mounting the small disk takes root: `None` without.
fn full_disk(flags: &str) -> Option<Output> {
    let place = Place::new();
    let line =
        format!("verify chaos --dir {} --quiet --json --rounds 1 --faults full-disk {flags}", place.file("").display());
    let output = run(line.split_whitespace());
    if stderr(&output).contains("needs root") {
        eprintln!("not root: nothing to test");
        return None;
    }
    Some(output)
}

#[test]
fn a_full_disk_stops_acknowledgements_and_loses_nothing() {
    let Some(output) = full_disk("--hold-seconds 1 --arena-bytes 16MiB --seed 10") else { return };
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(output.status.success() && report["holds"] == true, "{report:#}\n{}", stderr(&output));
    assert!(report["stood_still_ms"][0].as_f64().unwrap() >= 1000.0, "{report:#}");
}

#[test]
fn a_full_disk_that_nobody_felt_proves_nothing_and_fails() {
    let Some(output) = full_disk("--rate 2000 --recovery-seconds 5 --seed 11") else { return };
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["holds"], false);
    assert!(report["problems"].to_string().contains("never bit"), "{report:#}");
}

#[test]
fn promises_that_nobody_made_are_refused() {
    let output = chaos("--faults power --durability process");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("durability power"), "{}", stderr(&output));
}
