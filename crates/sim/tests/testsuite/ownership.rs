//! A streamlet has one owner at a time, whoever moves, dies or is slow; each rule is needed.

use kera_sim::explore::{Outcome, explore};
use kera_sim::ownership::{Fault, Ownership};

const STATES_MAX: usize = 2_000_000;

#[test]
fn one_owner_at_a_time() {
    let outcome = explore(&Ownership { chunks: 3, moves: 3, fault: None }, STATES_MAX);
    let Outcome::Holds { states, steps } = outcome else { panic!("{outcome:#?}") };
    println!("{states} states, {steps} steps");
    assert!(states > 100, "the model goes somewhere");
}

#[test]
fn every_rule_is_needed() {
    for fault in Fault::ALL {
        let outcome = explore(&Ownership { chunks: 2, moves: 3, fault: Some(fault) }, STATES_MAX);
        let Outcome::Broken { why, way } = outcome else { panic!("{fault:?} harms nobody: {outcome:?}") };
        println!("{fault:?}: {why}\n  {}", way.join("\n  "));
    }
}
