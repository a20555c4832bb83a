//! A connection is given the requests of the oracle with bytes changed, cut out and put in: it answers or closes, and the next
//! request is served. The same code is fuzzed, see `fuzz/README.md`.

// Of the oracle only the requests are used here; and what is fuzzed is public for the fuzzer.
#![allow(dead_code, unreachable_pub)]

#[path = "../../server/examples/kafka-oracle/answer.rs"]
mod answer;
#[path = "../../server/examples/kafka-oracle/batches.rs"]
mod batches;
#[path = "../../../fuzz/src/kafka_session.rs"]
mod kafka_session;
#[path = "../../server/examples/kafka-oracle/requests.rs"]
mod requests;
#[path = "../../server/examples/kafka-oracle/scenes.rs"]
mod scenes;
#[path = "../../server/examples/kafka-oracle/side.rs"]
mod side;
#[path = "../../server/examples/kafka-oracle/steps.rs"]
mod steps;

use kafka_session::{Connection, frames};
use side::Memory;
use steps::Rng;

const STEPS: u64 = 1_500;

/// Bytes changed in one to four places.
fn mutated(rng: &mut Rng, frame: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(4) {
        // The key and the version stay, for the most part: otherwise nothing gets further than that.
        let from = if rng.one_in(16) { 0 } else { 8 };
        let at = (from + rng.below(frame.len() as u64) as usize).min(frame.len().saturating_sub(1));
        match rng.below(5) {
            0 => frame[at] ^= 1 << rng.below(8),
            1 => frame[at] = rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => frame.truncate(at.max(1)),
            3 => frame.insert(at, rng.next() as u8),
            _ => drop(frame.remove(at)),
        }
        if frame.len() < 9 {
            frame.resize(9, 0);
        }
    }
}

#[test]
fn whatever_is_sent_is_answered_or_closes_the_connection() {
    let mut connection = Connection::new();
    for asked in steps::prologue() {
        assert!(connection.patient_frame(&asked.frame(1, 0).unwrap()));
    }
    let (mut went_on, mut closed) = (0, 0);
    for number in 9..9 + STEPS {
        // Scenes are no single requests.
        let Ok(mut frame) = steps::nth(7, number, &Memory::default()).frame(1, 0) else { continue };
        let mut rng = Rng::new(8, number);
        mutated(&mut rng, &mut frame);
        if connection.frame(&frame) {
            went_on += 1;
        } else {
            closed += 1;
        }
    }
    assert!(went_on > STEPS / 10 && closed > STEPS / 10, "{went_on} went on, {closed} closed: mutate less, or more");
    // ApiVersions, version 0, of a client without a name.
    assert!(connection.patient_frame(&[0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff]));
}

#[test]
fn frames_are_told_apart() {
    assert_eq!(frames(&[0, 1, 9, 0, 0, 0, 9, 8]), [&[9][..], &[], &[8]]);
    assert!(frames(&[1]).is_empty());
}
