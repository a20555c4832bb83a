//! The judge is judged: clean logs pass, and every kind of planted fault is found and named.

use super::super::acklog::AckPlace;
use super::super::record::{Identity, encode};
use super::*;

const RUN: u64 = 0xfeed;

fn source(producer: u32) -> Source {
    Source { run: RUN, producer }
}

fn value(producer: u32, streamlet: u32, number: u64) -> Vec<u8> {
    let mut value = Vec::new();
    encode(&Identity { source: source(producer), streamlet: StreamletId(streamlet), number }, 64, &mut value);
    value
}

fn place(streamlet: u32, ordinal: u64) -> Place {
    Place { streamlet: StreamletId(streamlet), lane: LaneId(0), ordinal }
}

/// A log as a broker would keep it: for each streamlet the records in their order.
#[derive(Clone)]
struct Stream(Vec<Vec<Vec<u8>>>);

impl Stream {
    /// Two producers, three streamlets, chunks of ten records in turn.
    fn clean() -> (Stream, Acked) {
        let mut acked = Acked::default();
        let mut streamlets = Vec::new();
        for streamlet in 0..3u32 {
            let mut log = Vec::new();
            for chunk in 0..20u64 {
                for producer in 0..2 {
                    let numbers = chunk * 10..chunk * 10 + 10;
                    let at = AckPlace { lane: LaneId(0), ordinal: log.len() as u64 };
                    acked.add(source(producer), StreamletId(streamlet), numbers.clone(), Some(at));
                    log.extend(numbers.map(|number| value(producer, streamlet, number)));
                }
            }
            streamlets.push(log);
        }
        (Stream(streamlets), acked)
    }

    fn verdict(&self, acked: &Acked) -> Verdict {
        let mut checker = Checker::new(true);
        for (streamlet, log) in self.0.iter().enumerate() {
            for (ordinal, value) in log.iter().enumerate() {
                checker.take(place(streamlet as u32, ordinal as u64), value);
            }
        }
        checker.finish(acked)
    }
}

fn kinds(verdict: &Verdict) -> Vec<&'static str> {
    verdict.findings.counts().keys().copied().collect()
}

#[test]
fn a_clean_stream_holds() {
    let (stream, acked) = Stream::clean();
    let verdict = stream.verdict(&acked);
    assert!(verdict.holds(), "{verdict}");
    assert_eq!((verdict.seen, verdict.acknowledged, verdict.unacknowledged), (1200, 1200, 0));
    assert!(verdict.to_string().contains("nothing lost"));
}

#[test]
fn records_in_flight_at_the_end_may_be_there_or_not() {
    let (mut stream, acked) = Stream::clean();
    stream.0[1].push(value(0, 1, 200));
    let verdict = stream.verdict(&acked);
    assert!(verdict.holds(), "{verdict}");
    assert_eq!(verdict.unacknowledged, 1);
}

#[test]
fn a_lost_tail_is_found() {
    let (mut stream, acked) = Stream::clean();
    stream.0[2].truncate(397);
    let verdict = stream.verdict(&acked);
    assert_eq!(kinds(&verdict), ["lost"]);
    let lost = Finding::Lost { source: source(1), streamlet: StreamletId(2), numbers: 197..200 };
    assert_eq!(verdict.findings.first(), [lost]);
    assert_eq!(verdict.findings.counts()["lost"], 3);
}

#[test]
fn a_whole_streamlet_that_is_gone_is_found() {
    let (mut stream, acked) = Stream::clean();
    stream.0[0].clear();
    let verdict = stream.verdict(&acked);
    assert_eq!(verdict.findings.counts()["lost"], 400);
    assert!(!verdict.holds());
}

#[test]
fn a_record_lost_in_the_middle_is_found_even_if_ordinals_close_up() {
    let (mut stream, acked) = Stream::clean();
    stream.0[1].remove(25);
    let verdict = stream.verdict(&acked);
    assert!(kinds(&verdict).contains(&"lost") && kinds(&verdict).contains(&"moved"), "{verdict}");
    assert!(verdict.to_string().contains("records 15 to 15 were acknowledged and never came"), "{verdict}");
}

#[test]
fn a_chunk_appended_twice_is_found() {
    let (mut stream, acked) = Stream::clean();
    let again: Vec<Vec<u8>> = stream.0[0][390..400].to_vec();
    stream.0[0].extend(again);
    let verdict = stream.verdict(&acked);
    assert_eq!(verdict.findings.counts()["twice"], 10, "{verdict}");
    let twice = Finding::Twice { source: source(1), number: 190, first: place(0, 390), again: place(0, 400) };
    assert_eq!(verdict.findings.first()[0], twice);
}

#[test]
fn a_chunk_appended_twice_at_once_is_found() {
    let (mut stream, acked) = Stream::clean();
    let again: Vec<Vec<u8>> = stream.0[0][10..20].to_vec();
    stream.0[0].splice(20..20, again);
    assert_eq!(stream.verdict(&acked).findings.counts()["twice"], 10);
}

#[test]
fn chunks_that_changed_places_are_found() {
    let (mut stream, acked) = Stream::clean();
    for i in 0..10 {
        // Chunks 2 and 3 of producer 0.
        stream.0[2].swap(40 + i, 60 + i);
    }
    let verdict = stream.verdict(&acked);
    assert!(kinds(&verdict).contains(&"order") && kinds(&verdict).contains(&"moved"), "{verdict}");
    let order = Finding::Order { source: source(0), number: 20, after: 39, place: place(2, 60) };
    assert!(verdict.findings.first().contains(&order), "{verdict}");
}

#[test]
fn a_flipped_bit_is_found() {
    let (mut stream, acked) = Stream::clean();
    stream.0[1][7][40] ^= 4;
    let verdict = stream.verdict(&acked);
    assert!(verdict.findings.first().contains(&Finding::Damaged { place: place(1, 7) }), "{verdict}");
    assert_eq!(verdict.findings.counts()["lost"], 1);
}

#[test]
fn a_record_in_another_streamlet_is_found() {
    let (mut stream, acked) = Stream::clean();
    let astray = stream.0[0].pop().unwrap();
    stream.0[1].push(astray);
    let verdict = stream.verdict(&acked);
    assert_eq!(kinds(&verdict), ["astray", "lost"]);
}

#[test]
fn redelivery_is_no_fault_and_skipping_ahead_is() {
    let (stream, acked) = Stream::clean();
    let mut checker = Checker::new(true);
    let mut take = |range: Range<u64>| {
        range.for_each(|ordinal| checker.take(place(0, ordinal), &stream.0[0][ordinal as usize]));
    };
    take(0..100);
    take(60..150);
    take(170..180);
    take(150..170);
    take(180..400);
    let records = acked.records.into_iter().filter(|((_, s), _)| s.0 == 0).collect();
    let acked = Acked { records, ..Acked::default() };
    assert_eq!(checker.outstanding(&acked), 0);
    let verdict = checker.finish(&acked);
    assert_eq!((verdict.seen, verdict.redelivered), (400, 40));
    assert_eq!(verdict.findings.first(), [Finding::Delivery { place: place(0, 170), expected: 150 }]);
}

#[test]
fn without_order_groups_may_come_in_any_order() {
    let (stream, acked) = Stream::clean();
    let mut checker = Checker::new(false);
    for (streamlet, log) in stream.0.iter().enumerate() {
        for group in [3usize, 1, 0, 2] {
            for (ordinal, value) in log.iter().enumerate().skip(group * 100).take(100) {
                checker.take(place(streamlet as u32, ordinal as u64), value);
            }
        }
    }
    let verdict = checker.finish(&acked);
    assert!(verdict.holds(), "{verdict}");
}

#[test]
fn ordinals_that_never_come_are_a_hole() {
    let (stream, acked) = Stream::clean();
    let mut checker = Checker::new(false);
    for (streamlet, log) in stream.0.iter().enumerate() {
        for (ordinal, value) in log.iter().enumerate().filter(|(ordinal, _)| !(50..53).contains(ordinal)) {
            checker.take(place(streamlet as u32, ordinal as u64), value);
        }
    }
    let verdict = checker.finish(&acked);
    assert_eq!(verdict.findings.counts()["hole"], 9);
    assert_eq!(verdict.findings.counts()["lost"], 9);
}

#[test]
fn findings_are_all_counted_and_the_first_are_kept() {
    let (mut stream, acked) = Stream::clean();
    for log in &mut stream.0 {
        log.iter_mut().step_by(2).for_each(|value| value[50] ^= 1);
    }
    let verdict = stream.verdict(&acked);
    assert_eq!(verdict.findings.counts()["damaged"], 600);
    assert_eq!(verdict.findings.first().iter().filter(|f| f.kind() == "damaged").count(), KEPT);
}

#[test]
fn records_of_others_are_counted_and_do_no_harm() {
    let mut checker = Checker::new(true);
    checker.take(place(0, 0), b"hello");
    let verdict = checker.finish(&Acked::default());
    assert!(verdict.holds());
    assert_eq!(verdict.foreign, 1);
}

#[test]
fn a_record_that_comes_again_is_a_finding_only_once_it_is_committed() {
    let mut checker = Checker::new(true);
    for ordinal in [0, 1, 0, 1] {
        checker.take(place(0, ordinal), &value(0, 0, ordinal));
    }
    checker.expect_nothing_again();
    checker.take(place(0, 2), &value(0, 0, 2));
    assert!(checker.findings().is_empty());
    checker.take(place(0, 1), &value(0, 0, 1));
    let verdict = checker.finish(&Acked::default());
    assert_eq!((verdict.redelivered, kinds(&verdict)), (3, vec!["again"]));
    assert!(verdict.to_string().contains("streamlet 0 lane 0 ordinal 1 was delivered again"), "{verdict}");
}
