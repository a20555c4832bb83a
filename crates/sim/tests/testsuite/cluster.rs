//! The simulator itself: it repeats, it finds what is planted, and it finds nothing else.

use kera_sim::cluster::{Fault, Plan, Planted, run};

use crate::common::all;

/// Short runs for many seeds, and long ones, in which segments go to the disk and come back, for some.
const SHORT: u64 = 1_000;
const LONG: u64 = 40;

fn short(seed: u64) -> Plan {
    Plan { trouble_ms: 15_000, records: 150, ..Plan::new(seed) }
}

fn long(seed: u64) -> Plan {
    Plan { records: 4_000, ..Plan::new(seed) }
}

#[test]
fn a_seed_repeats_itself() {
    let mut traces = Vec::new();
    for seed in 1..7 {
        let first = run(&long(seed));
        assert_eq!(first, run(&long(seed)), "two runs of seed {seed}");
        assert!(first.acknowledged > 0 && !first.faults.is_empty(), "{first:?}");
        traces.push(first.trace);
    }
    // Equal ones need not come one after the other.
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 6, "seeds that do the same");
}

#[test]
fn many_seeds_keep_every_promise() {
    assert_eq!(all(1..1 + SHORT, |seed| run(&short(seed)).violation), Vec::<String>::new());
}

#[test]
fn long_runs_keep_every_promise() {
    assert_eq!(all(10_001..10_001 + LONG, |seed| run(&long(seed)).violation), Vec::<String>::new());
}

#[test]
fn every_fault_happens() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 1..20 {
        seen.extend(run(&long(seed)).faults.into_keys());
    }
    let missing: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).filter(|name| !seen.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Some seed shows the defect in one of these words. What others say on the way there is told only if none does.
fn found(planted: Planted, words: &[&str]) {
    let mut otherwise = Vec::new();
    let is_found = (1..100).any(|seed| {
        let found = run(&Plan { planted: Some(planted), ..short(seed) }).violation;
        let says_so = found.iter().any(|found| words.iter().any(|words| found.contains(words)));
        otherwise.extend(found.filter(|_| !says_so));
        says_so
    });
    assert!(is_found, "{planted:?} was not found by {words:?}; what was: {otherwise:?}");
}

#[test]
fn an_acknowledgement_that_comes_too_soon_is_found() {
    found(Planted::AcknowledgedTooSoon, &["ends at", "acknowledged where", "read where", "by an acknowledged commit"]);
}

#[test]
fn a_kill_that_loses_memory_is_found() {
    // What is lost is missing where it was read before, or an application waits for it in vain.
    found(Planted::KillsTakeTheArena, &["ends at", "acknowledged where", "read where", "not done for long"]);
}

#[test]
fn a_retry_that_is_not_recognised_is_found() {
    found(Planted::RetriesAreNew, &[", too"]);
}
