//! The protocol of `docs/replication.md` holds in every state within the bounds; each of its rules is needed.

use kera_sim::explore::{Outcome, explore};
use kera_sim::replication::{Fault, Replication};

const STATES_MAX: usize = 4_000_000;

#[test]
fn what_is_acknowledged_survives() {
    for (blocks, views, copies) in [(3, 3, 2), (5, 2, 2), (2, 4, 2), (4, 3, 1), (5, 2, 3)] {
        let outcome = explore(&Replication { blocks, views, copies, fault: None }, STATES_MAX);
        let Outcome::Holds { states, steps } = outcome else { panic!("{blocks} blocks, {views} views: {outcome:#?}") };
        println!("{blocks} blocks, {views} views, {copies} backups each: {states} states, {steps} steps");
        assert!(states > 100, "the model goes somewhere");
    }
}

#[test]
fn every_rule_is_needed() {
    for fault in Fault::ALL {
        let outcome = explore(&Replication { blocks: 2, views: 3, copies: 2, fault: Some(fault) }, STATES_MAX);
        let Outcome::Broken { why, way } = outcome else { panic!("{fault:?} harms nobody: {outcome:?}") };
        println!("{fault:?}: {why}\n  {}", way.join("\n  "));
    }
}
