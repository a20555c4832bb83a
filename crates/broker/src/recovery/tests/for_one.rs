//! Blocks that backups have and do not give, which a person gives up for one streamlet.

use super::*;

#[test]
fn one_streamlet_goes_on_without_blocks_that_a_backup_has_and_does_not_give() {
    let (memory, logs) = lost();
    let copies = Memory { damaged: vec![(11, 2)], ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let there = in_two_views(&logs, &[11]);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &there, &copies).expect("taken over");
    assert_eq!(next.append(10).base_ordinal, 10);
    let again = || next.broker.rebuild(&rebuild, &there, &copies, &RecoveryProgress::default());
    let waits = again().expect_err("it may read back another time");
    assert_eq!(waits.status, Status::SegmentUnreadable);
    assert!(waits.message.contains("block 2 does not read back"), "{waits}");

    let without = in_two_views(&logs, &[]);
    let goes_on = |streamlet| {
        let (name, progress) = (StreamletRef { stream: STREAM, streamlet }, RecoveryProgress::default());
        next.broker.go_on_without(&rebuild, name, (&there[..], &without[..]), &copies, &progress)
    };
    assert_eq!(goes_on(StreamletId(7)), Ok(false), "nothing is awaited of another one");
    assert_eq!(next.lane().groups(GroupId::NONE, usize::MAX)[0].first_ordinal, 0, "nothing has gone");
    assert_eq!(goes_on(X), Ok(true));
    again().expect("nothing is left to wait for");
    assert_eq!(next.readable(), [6, 7, 8, 9, 10], "a lane has no holes, and begins behind what is gone");
    assert_eq!((next.append(9).duplicate, next.append(11).base_ordinal), (true, 11), "and goes on as it was");
    assert_eq!(goes_on(X), Ok(false), "asked again there is nothing to do");
}

/// The backup that is left says nothing of these blocks, so the streamlet was never opened.
#[test]
fn one_that_was_not_opened_opens_with_what_there_is() {
    let (memory, logs) = lost();
    let copies = Memory { empty: vec![11], ..memory };
    let next = Node::new(2);
    next.is_owner(2, 3);
    let takes = |logs: &[EndedLog]| next.broker.take_over(&[(STREAM, X, 3)], logs, &copies);
    let waits = takes(&in_two_views(&logs, &[11])).expect_err("it has lost them");
    assert_eq!(waits.status, Status::SegmentUnreadable);
    let without = in_two_views(&logs, &[]);
    let rebuild = takes(&without).expect("opened");
    assert_eq!(next.append(10).base_ordinal, 10, "numbers are not given out again");
    next.broker.rebuild(&rebuild, &without, &copies, &RecoveryProgress::default()).expect("rebuilt");
    assert_eq!(next.readable(), [6, 7, 8, 9, 10]);
}
