//! The verifier with the real binary: it passes what is right, finds what is wrong, and torments a node a little.

use std::process::{Output, Stdio};

use kera_bench::verify::{ConsumeConfig, consume_with};
use serde_json::Value;

use crate::common::{self, Place, lacks, run, stderr, stdout};

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
    // Whoever reads what it says may be gone first.
    for flags in ["", "--json"] {
        let mut command = node.command(&format!("verify consume --log {path} {flags}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(common::end_of(&mut child), Some(1));
    }
    node.ok("stream create other");
    let (status, says) = node.fails(&format!("verify consume --stream other --log {path}"));
    assert!(status == 1 && says.contains("acknowledged of `verify`, and `other` is read"), "{says}");
    let (status, says) = node.fails(&format!("verify produce --stream other --records 10 --log {path}"));
    assert!(status == 1 && says.contains("acknowledged of `verify`, and would prove nothing of `other`"), "{says}");
    let empty = place.file("empty");
    std::fs::write(&empty, "").unwrap();
    let (status, says) = node.fails(&format!("verify consume --log {}", empty.display()));
    assert!(status == 1 && says.contains("proves nothing"), "{says}");
    let output = node.run(&format!("verify consume --log {path}"));
    assert!(stdout(&output).contains("records 2000 to 2009 were acknowledged and never came"), "{}", stdout(&output));
    node.stop();
}

/// A position that moves back when all that was read is committed: here somebody sets it back.
#[test]
fn what_an_application_has_committed_and_is_given_again_is_found() {
    let place = Place::new();
    let node = place.start();
    let log = place.file("acks");
    node.json(&format!("verify produce --log {} --records 2000 --streamlets 2 --producers 1", log.display()));
    let verdict = |application: &str, between: &dyn Fn()| {
        let config =
            ConsumeConfig { log: log.clone(), application: Some(application.into()), ..ConsumeConfig::default() };
        consume_with(&config, &node.address(), between).expect("a verdict")
    };
    let kept = verdict("kept", &|| ());
    assert!(kept.holds() && kept.redelivered == 0, "{kept}");
    let moved = verdict("moved", &|| drop(node.ok("application reset moved --to earliest --yes")));
    assert!(moved.to_string().contains("again 2000"), "{moved}");
    node.stop();
}

fn chaos(flags: &str) -> Output {
    let place = Place::new();
    let dir = place.file("");
    let line = format!("verify chaos --dir {} --quiet --json {flags}", dir.display());
    run(line.split_whitespace())
}

fn must_hold(flags: &str) -> Value {
    must_hold_with(&format!("--arena-bytes 32MiB --rate 5000 --between-ms 100,400 {flags}"))
}

fn must_hold_with(flags: &str) -> Value {
    let output = chaos(&format!("--recovery-seconds 240 {flags}"));
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

/// Directories of runs under shared memory that this process's child has made.
fn arenas_of(pid: u32) -> usize {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return 0 };
    let name = format!("kera-chaos-{pid}-");
    entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).count()
}

#[test]
fn an_interrupted_torment_leaves_nothing_behind() {
    let place = Place::new();
    let dir = place.file("");
    let line = format!("verify chaos --dir {} --rounds 1000 --rate 1000 --arena-bytes 32MiB --quiet", dir.display());
    let mut child = common::kera(line.split_whitespace()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let acknowledged =
        || std::fs::read_dir(&dir).unwrap().flatten().any(|run| run.path().join("acknowledged").exists());
    common::eventually("a torment under way", acknowledged);
    let sent = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("interrupted: nothing is proved"), "{said}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(arenas_of(child.id()), 0);
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
        lacks("root, for a small disk");
        return None;
    }
    Some(output)
}

#[test]
fn a_full_disk_stops_acknowledgements_and_loses_nothing() {
    let Some(output) = full_disk("--hold-seconds 1 --recovery-seconds 240 --arena-bytes 16MiB --seed 10") else {
        return;
    };
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(output.status.success() && report["holds"] == true, "{report:#}\n{}", stderr(&output));
    assert!(report["stood_still_ms"][0].as_f64().unwrap() >= 1000.0, "{report:#}");
}

#[test]
fn a_full_disk_that_nobody_felt_proves_nothing_and_fails() {
    let mut told = String::new();
    // A disk that stands still for a second of its own accord is taken for one that is full.
    for seed in 11..16 {
        let flags = format!("--rate 2000 --recovery-seconds 5 --seed {seed}");
        let Some(output) = full_disk(&flags) else { return };
        told = stdout(&output) + &stderr(&output);
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap_or_default();
        if report["problems"].to_string().contains("never bit") {
            assert_eq!((output.status.code(), &report["holds"]), (Some(1), &false.into()), "{told}");
            return;
        }
    }
    panic!("{told}");
}

/// Chunks of more than 64 KiB in segments of 4 MiB: what is written straight to containers is killed in the middle, too.
#[test]
fn large_segments_lose_nothing() {
    let report = must_hold_with(
        "--rounds 3 --faults kill,power --durability power --seed 12 --streamlets 1 --lanes 1 --producers 2 --rate 5000 \
         --record-bytes 2000 --chunk-bytes 96KiB --segment-bytes 4MiB --arena-bytes 320MiB --between-ms 800,1200",
    );
    assert!(report["through_bytes"].as_u64().unwrap() > 0, "{report:#}");
}

/// Refused before a node starts, with the flag, the limit and the next step.
#[test]
fn settings_of_chaos_that_cannot_work_are_refused() {
    for (flags, says) in [
        ("--segment-bytes 64KiB --chunk-bytes 64KiB", "--chunk-bytes: a chunk of 65536 bytes"),
        ("--segment-bytes 100000B", "--segment-bytes: 100000"),
        ("--record-bytes 10", "--record-bytes: 10 is less than 32"),
        ("--rate -5", "0, as fast as it goes, or more"),
        ("--rate fast", "give records per second"),
        ("--producers 0", "--producers: 0"),
        ("--disk-bytes 1GiB", "--faults full-disk"),
        ("--between-ms 2,1", "swap them"),
        ("--hold-seconds 99999", "--hold-seconds: "),
        ("--program /no/such/kera", "--program: /no/such/kera"),
    ] {
        let output = run(format!("verify chaos --quiet {flags}").split_whitespace());
        assert_eq!(output.status.code(), Some(2), "{flags}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(says), "{flags}: {}", stderr(&output));
    }
}

#[test]
fn settings_of_produce_and_consume_that_cannot_work_are_refused() {
    for (line, says) in [
        ("produce --producers 0", "--producers: 0"),
        ("produce --rate 0", "--rate: it must be"),
        // When the second record is due is more than a clock can take.
        ("produce --rate 1e-300", "--rate: it must be"),
        ("produce --rate nan", "0, as fast as it goes, or more"),
        ("produce --in-flight 0", "--in-flight: 0"),
        ("produce --chunk-bytes 16B", "--chunk-bytes: 16"),
        ("produce --records 0", "--records: 0"),
        ("produce --seconds 0", "--seconds: 0"),
        ("produce --patience-seconds 0", "--patience-seconds: 0"),
        ("consume --consumers 0", "--consumers: 0"),
        ("consume --patience-seconds 0", "--patience-seconds: 0"),
        ("consume --application a --crash-every-seconds 0", "--crash-every-seconds: 0"),
    ] {
        let output = run(format!("verify {line}").split_whitespace());
        assert_eq!(output.status.code(), Some(2), "{line}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(says), "{line}: {}", stderr(&output));
    }
    let output = run(["verify", "consume", "--log", "/no/such/log"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("/no/such/log") && stderr(&output).contains("verify produce"),
        "{}",
        stderr(&output)
    );
}

/// A program that is no node: its last words are in the error, and the next step says where its log is.
#[test]
fn a_node_that_does_not_start_is_reported_with_its_log() {
    let place = Place::new();
    let dir = place.file("");
    let output = run(["verify", "chaos", "--quiet", "--program", "/bin/false", "--dir", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let says = stderr(&output);
    assert!(says.contains("starting a server: it ended with exit status: 1") && says.contains("server.log"), "{says}");
}

#[test]
fn promises_that_nobody_made_are_refused() {
    let output = chaos("--faults power --durability process");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("durability power"), "{}", stderr(&output));
}
