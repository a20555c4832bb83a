//! Ends of lost logs are taken back only when nobody has used them, in every state within the bounds; each of the rules is needed.

use kera_sim::ends::{Ends, Fault};
use kera_sim::explore::{Outcome, explore};

const STATES_MAX: usize = 4_000_000;

#[test]
fn who_opens_does_so_with_one_end_and_nobody_waits_for_one_that_nobody_used() {
    for has in [[3, 2], [3, 1], [2, 1], [2, 2]] {
        let outcome = explore(&Ends { has, fault: None }, STATES_MAX);
        let Outcome::Holds { states, steps } = outcome else { panic!("{has:?}: {outcome:#?}") };
        println!("{has:?}: {states} states, {steps} steps");
        assert!(states > 100, "the model goes somewhere");
    }
}

#[test]
fn every_rule_is_needed() {
    for fault in Fault::ALL {
        // What a loss of power takes matters where it was acknowledged and is near the end.
        let has = if fault == Fault::BelieveUncertain { [2, 2] } else { [3, 1] };
        let outcome = explore(&Ends { has, fault: Some(fault) }, STATES_MAX);
        let Outcome::Broken { why, way } = outcome else { panic!("{fault:?} harms nobody: {outcome:?}") };
        println!("{fault:?}: {why}\n  {}", way.join("\n  "));
    }
}
