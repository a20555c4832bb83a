//! A streamlet that goes from one log to another and back.

use kera_format::GroupId;

use super::restart::{back_without_harm, restart_as};
use super::*;

/// A log whose streamlets are another node's until it is told otherwise.
fn elsewhere() -> Node {
    let node = node();
    node.log.stream(STREAM).unwrap().place_elsewhere();
    node
}

pub(super) fn streamlet(node: &Node) -> Arc<Streamlet> {
    Arc::clone(node.log.stream(STREAM).unwrap().streamlet(StreamletId(0)).unwrap())
}

fn append(node: &Node, chunk: &[u8]) -> Result<Appended, AppendError> {
    node.lane().append(&ChunkView::parse(chunk).unwrap(), 5)
}

/// Moves the streamlet, as the broker does.
fn move_to(from: &Node, to: &Node, epoch: u32) {
    streamlet(from).let_go().unwrap();
    assert!(streamlet(from).is_settled());
    let state = streamlet(from).hand_over();
    streamlet(to).receive(&state).unwrap();
    streamlet(to).open(epoch, true).unwrap();
    streamlet(from).leave();
}

/// A lost log goes further than what was handed over, and knows nothing of a producer that wrote last into groups that stayed elsewhere.
#[test]
fn what_goes_further_along_a_lane_takes_no_later_chunk_of_a_producer_back() {
    let node = elsewhere();
    let told = |next_ordinal, producer, sequence, base_ordinal| LaneHandover {
        lane: LaneId(0),
        next_ordinal,
        last_append_ms: 0,
        forgot: false,
        hole_end: 0,
        producers: vec![ProducerHandover {
            producer_id: ProducerId(producer),
            producer_epoch: ProducerEpoch(0),
            sequence,
            chunks: vec![ChunkPlace { sequence, base_ordinal, cursor: start() }],
        }],
        groups: Vec::new(),
    };
    streamlet(&node).receive(&[told(10, 7, 5, 9), told(12, 8, 3, 11), told(13, 7, 2, 4)]).unwrap();
    streamlet(&node).open(5, true).unwrap();
    assert_eq!(append(&node, &chunk_of(7, 0, 6, 100)).unwrap().base_ordinal, 13);
    assert_eq!(append(&node, &chunk_of(8, 0, 4, 100)).unwrap().base_ordinal, 14);
}

#[test]
fn an_owner_epoch_is_the_upper_half_of_its_groups() {
    let node = elsewhere();
    assert_eq!(append(&node, &chunk(0, 100)), Err(AppendError::Elsewhere { letting_go: false }));
    assert!(!node.lane().is_plain());
    streamlet(&node).open(9, false).unwrap();
    assert!(node.lane().is_plain());
    assert_eq!(append(&node, &chunk(0, 100)).unwrap().cursor.group, GroupId::new(9, 1));
}

#[test]
fn a_retry_at_the_next_owner_is_recognised_and_ordinals_go_on() {
    let (a, b) = (node(), elsewhere());
    for sequence in 0..7 {
        append(&a, &chunk(sequence, 100)).unwrap();
    }
    let seen = a.lane().version();
    move_to(&a, &b, 5);
    assert_ne!(a.lane().version(), seen, "readers at the end look again");
    assert_eq!(append(&a, &chunk(7, 100)), Err(AppendError::Elsewhere { letting_go: false }));
    let again = append(&b, &chunk(6, 100)).unwrap();
    assert_eq!((again.duplicate, again.base_ordinal), (true, 6));
    assert_eq!(
        append(&b, &chunk(0, 100)).unwrap().base_ordinal,
        Appended::UNKNOWN_ORDINAL,
        "it is too old for its place"
    );
    assert!(matches!(append(&b, &chunk(8, 100)), Err(AppendError::SequenceGap { expected: 7, .. })));
    let next = append(&b, &chunk(7, 100)).unwrap();
    assert_eq!((next.base_ordinal, next.cursor.group), (7, GroupId::new(5, 1)));
    // And back, with what the other has taken meanwhile.
    move_to(&b, &a, 6);
    assert!(append(&a, &chunk(7, 100)).unwrap().duplicate);
    let back = append(&a, &chunk(8, 100)).unwrap();
    assert_eq!((back.base_ordinal, back.cursor.group.epoch()), (8, 6));
    assert!(matches!(append(&a, &chunk_of(8, 0, 1, 100)), Err(AppendError::SequenceGap { expected: 0, .. })));
}

#[test]
fn while_it_is_let_go_nothing_is_appended_and_a_move_can_be_called_off() {
    let node = node();
    append(&node, &chunk(0, 100)).unwrap();
    streamlet(&node).let_go().unwrap();
    assert_eq!(append(&node, &chunk(0, 100)), Err(AppendError::Elsewhere { letting_go: true }), "not even a duplicate");
    // A lane that is made now sees it as well.
    let other = node.lane_number(1).append(&ChunkView::parse(&chunk_of(1, 0, 0, 100)).unwrap(), 5);
    assert_eq!(other, Err(AppendError::Elsewhere { letting_go: true }));
    assert!(matches!(streamlet(&node).let_go(), Err(TenureError::Wrong { is: Tenure::LettingGo, .. })));
    streamlet(&node).resume(false).unwrap();
    let next = append(&node, &chunk(1, 100)).unwrap();
    assert_eq!((next.base_ordinal, next.cursor.group.number()), (1, 2), "the group before was closed");
}

/// A node of a cluster that has lost a segment from the middle of its lane: chunk 0 of producer 7 is in front of that, 1 to 8 of producer 8
/// are in it and behind.
fn back_with_a_hole() -> Node {
    let node = node();
    append(&node, &chunk_of(7, 0, 0, 100)).unwrap();
    (0..9).for_each(|n| _ = append(&node, &chunk_of(8, 0, n, 30_000)).unwrap());
    let config = LogConfig { has_owner_epochs: true, ..LogConfig::default() };
    let (node, mut segments, _) = restart_as(node, options(), config);
    segments.sort_by_key(|one| one.segment.progress().next_ordinal);
    drop(segments.remove(1));
    node.log.recover(Vec::new(), segments);
    let problems = node.log.finish_recovery(1);
    assert!(problems.iter().any(|problem| problem.contains("starts at ordinal")), "{problems:?}");
    node
}

#[test]
fn a_producer_goes_on_behind_a_hole_wherever_its_streamlet_is() {
    let (a, b, c) = (back_with_a_hole(), elsewhere(), elsewhere());
    // It had written into what is missing, and was answered.
    move_to(&a, &b, 5);
    assert!(append(&b, &chunk_of(7, 0, 0, 100)).unwrap().duplicate, "what is there is known");
    let gap = append(&b, &chunk_of(8, 0, 10, 100));
    assert!(matches!(gap, Err(AppendError::SequenceGap { expected: 9, .. })), "its last is behind the hole: {gap:?}");
    move_to(&b, &c, 6);
    assert_eq!(append(&c, &chunk_of(7, 0, 4, 100)).map(|next| next.base_ordinal), Ok(10));
    let gap = append(&c, &chunk_of(7, 0, 6, 100));
    assert!(matches!(gap, Err(AppendError::SequenceGap { expected: 5, .. })), "{gap:?}");
}

/// The first owner has what came before and behind what is with another one; `forgot`: whether that has forgotten producers.
fn back_between_groups_of_another_owner(forgot: bool) -> Node {
    let node = elsewhere();
    streamlet(&node).open(3, false).unwrap();
    append(&node, &chunk_of(7, 0, 0, 100)).unwrap();
    append(&node, &chunk_of(8, 0, 0, 100)).unwrap();
    streamlet(&node).leave();
    let mut told = streamlet(&node).hand_over();
    // Two more of producer 8.
    (told[0].next_ordinal, told[0].forgot) = (4, forgot);
    let mark = |sequence| ChunkPlace { sequence, base_ordinal: sequence + 1, cursor: start() };
    told[0].producers[1].chunks.extend([mark(1), mark(2)]);
    if forgot {
        told[0].producers.remove(0);
    }
    streamlet(&node).receive(&told).unwrap();
    streamlet(&node).open(5, true).unwrap();
    append(&node, &chunk_of(9, 0, 0, 100)).unwrap();
    let config = LogConfig { has_owner_epochs: true, ..LogConfig::default() };
    back_without_harm((node, options(), config), &told, 6)
}

#[test]
fn what_another_owner_has_and_has_told_of_is_no_hole_for_producers() {
    let node = back_between_groups_of_another_owner(false);
    let gap = append(&node, &chunk_of(7, 0, 2, 100));
    assert!(matches!(gap, Err(AppendError::SequenceGap { expected: 1, .. })), "{gap:?}");
    assert_eq!(append(&node, &chunk_of(8, 0, 3, 100)).map(|next| next.base_ordinal), Ok(5));
    // An owner that has forgotten some may have forgotten this one, though it is known here from before.
    let node = back_between_groups_of_another_owner(true);
    assert_eq!(append(&node, &chunk_of(7, 0, 2, 100)).map(|next| next.base_ordinal), Ok(5));
}

#[test]
fn an_epoch_that_groups_have_already_is_refused() {
    let (a, b) = (elsewhere(), elsewhere());
    streamlet(&a).open(4, false).unwrap();
    append(&a, &chunk(0, 100)).unwrap();
    move_to(&a, &b, 5);
    let refused = streamlet(&a).open(4, true);
    assert_eq!(refused, Err(TenureError::StaleEpoch { epoch: 4, lane: LaneId(0), highest: 4 }));
    assert_eq!(streamlet(&a).tenure(), Tenure::Elsewhere);
}

#[test]
fn a_state_that_comes_again_after_more_was_written_changes_nothing() {
    let (a, b) = (node(), elsewhere());
    append(&a, &chunk(0, 100)).unwrap();
    streamlet(&a).let_go().unwrap();
    let state = streamlet(&a).hand_over();
    streamlet(&b).receive(&state).unwrap();
    streamlet(&b).open(5, true).unwrap();
    append(&b, &chunk(1, 100)).unwrap();
    streamlet(&b).leave();
    streamlet(&b).receive(&state).unwrap();
    streamlet(&b).open(6, true).unwrap();
    assert_eq!(append(&b, &chunk(1, 100)).unwrap().base_ordinal, 1);
    assert_eq!(append(&b, &chunk(2, 100)).unwrap().base_ordinal, 2);
    let lane = LaneHandover { lane: LaneId(2), ..state[0].clone() };
    streamlet(&b).leave();
    assert_eq!(streamlet(&b).receive(&[lane]), Err(TenureError::UnknownLane(LaneId(2))));
}

#[test]
fn the_first_group_of_an_epoch_is_found_without_its_number() {
    let (a, b) = (node(), elsewhere());
    append(&a, &chunk(0, 100)).unwrap();
    move_to(&a, &b, 5);
    let start = Cursor { group: GroupId::new(5, 0), ..Cursor::default() };
    let nothing = b.lane().read(start, 1 << 20, true).unwrap();
    assert!(nothing.at_durable_end && nothing.data_bytes == 0);
    append(&b, &chunk(1, 100)).unwrap();
    let found = b.lane().read(start, 1 << 20, true).unwrap();
    assert_eq!((found.start.group, found.data_bytes > 0), (GroupId::new(5, 1), true));
    let lost = Cursor { group: GroupId::new(3, 1), ..Cursor::default() };
    assert!(matches!(b.lane().read(lost, 1 << 20, true), Err(ReadError::Gone { .. })));
}

#[test]
fn a_streamlet_goes_on_in_another_log_and_comes_back() {
    let (node, first) = power_node();
    let second = Arc::new(Sink::default());
    let other = || Some((3, Arc::clone(&second) as Arc<dyn DurabilitySink>));
    let place = streamlet(&node);
    assert_eq!(append(&node, &chunk(0, 100)).unwrap().log, 0);
    assert!(place.put_in(other()).is_err(), "it takes appends");
    place.let_go().unwrap();
    place.leave();
    assert!(!place.is_settled());
    first.sync();
    assert_eq!(
        place.put_in(Some((OWN_LOGS_MAX as u8, first.clone()))),
        Err(TenureError::NoSuchLog(OWN_LOGS_MAX as u8))
    );
    place.put_in(other()).unwrap();
    place.open(9, true).unwrap();
    let again = append(&node, &chunk(0, 100)).unwrap();
    assert!(again.duplicate && again.ticket.is_none(), "what is in the first log is durable");
    let next = append(&node, &chunk(1, 100)).unwrap();
    assert_eq!((place.own_log(), next.log, next.ticket), (Some(3), 4, Some(1)));
    assert_eq!((first.pending.lock().len(), second.pending.lock().len()), (0, 1));
    let is = |log, sink: &Arc<Sink>| {
        Arc::ptr_eq(node.lane().sink_of(log).unwrap(), &(sink.clone() as Arc<dyn DurabilitySink>))
    };
    assert!(is(0, &first) && is(4, &second), "tickets of both can be asked for");
    assert_eq!(node.lane().durable_ordinal(), 1);
    second.sync();
    assert_eq!(node.lane().durable_ordinal(), 2);
    place.let_go().unwrap();
    place.leave();
    place.put_in(None).unwrap();
    place.open(10, true).unwrap();
    assert_eq!((append(&node, &chunk(2, 100)).unwrap().log, place.own_log()), (0, None));
    // A segment is copied again in the log that it was in.
    let segment = place.lanes().next().map(|lane| lane.groups(GroupId::NONE, 9)[1].id).map(|group| SegmentId {
        stream: STREAM,
        streamlet: StreamletId(0),
        lane: LaneId(0),
        group,
        index: kera_format::SegmentIndex(0),
    });
    assert!(matches!(node.log.copy_again(segment.unwrap(), &*second), CopiedAgain::Given(1, _)));
    assert_eq!((first.pending.lock().len(), second.pending.lock().len()), (1, 1));
}
