//! Applications: leases, takeover, fairness, both orders, fencing, and what a restart finds.

use kera_broker::BrokerConfig;
use kera_env::Clock;
use kera_format::{Cursor, GroupId, LaneId, Order, SegmentIndex, StreamId, StreamOptions, StreamletId};
use kera_log::SinkErrorKind;
use kera_protocol::application::AfterCommit::{Done, Keep, Release};
use kera_protocol::application::{
    ApplicationState, CommitEntry, CommitOffsets, CommittedOffsets, DeleteApplication, DescribeApplication,
    FetchOffsets, Heartbeat, JoinApplication, JoinedApplication, LeaveApplication, ListApplications, ResetOffsets,
};
use kera_protocol::{AvailableGroups, Empty, LeasedGroup, LeasedGroups, Lookup, NextGroups, Start, Status};

use crate::common;
use crate::common::*;

/// One record in a chunk that takes most of half a segment: a group holds one or two of them.
fn big(streamlet: u32) -> Vec<u8> {
    chunk_of(target(STREAM, streamlet, 0, 0), 1, 40 << 10)
}

/// Writes one group after the other into streamlet 0; each holds one record.
fn write_groups(peer: &mut Peer, count: usize) {
    for _ in 0..count {
        assert_eq!(statuses(&peer.write(&[big(0)])), [Status::Ok]);
    }
}

fn wait_groups(peer: &mut Peer, joined: &JoinedApplication, max_groups: u32) {
    let JoinedApplication { application, member, .. } = *joined;
    peer.send(&NextGroups { application, member, max_groups, max_wait_ms: 600_000 });
}

fn fetch(peer: &mut Peer) -> CommittedOffsets {
    peer.call(&FetchOffsets { application: "report".into(), stream: STREAM, streamlets: vec![] })
}

/// A commit that says that a group of one record was read to its end.
fn done(group: &LeasedGroup) -> CommitEntry {
    let cursor = Cursor { position: group.start.position.max(128) + 41_072, ..group.start };
    commit_entry(group, cursor, group.start_ordinal + 1, Done)
}

#[test]
fn a_member_gets_the_groups_of_all_lanes_and_commits_them() {
    let house = House::new();
    house.stream(STREAM, options(3, 1));
    let mut peer = house.peer();
    for streamlet in 0..3 {
        peer.write(&[chunk_of(target(STREAM, streamlet, 0, 0), 4, 10)]);
    }
    let joined = peer.join(&house, "report", Start::Earliest);
    assert!(joined.heartbeat_ms < joined.lease_ms);
    let groups = peer.next_groups(&joined, 10);
    assert_eq!(groups.iter().map(|group| group.streamlet.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(groups.iter().all(|group| group.start_ordinal == 0));
    assert!(peer.next_groups(&joined, 10).is_empty(), "a group is given once");

    let next = peer.read(STREAM, groups[0].start).answers[0].0.next;
    assert_eq!(peer.commit(&house, &joined, &[commit_entry(&groups[0], next, 4, Keep)]), [Status::Ok]);
    let stored = fetch(&mut peer);
    assert_eq!(stored.offsets.len(), 1);
    assert_eq!((stored.offsets[0].ordinal, stored.offsets[0].cursor), (4, next));

    let described = peer.call(&DescribeApplication { application: "report".into(), stream: STREAM });
    assert_eq!((described.members.len(), described.leases.len(), described.lag), (1, 3, 8));
    assert_eq!(described.state, ApplicationState::Active);
    let listed = peer.call(&ListApplications { stream: None });
    assert_eq!((listed.applications[0].name.as_str(), listed.applications[0].lag), ("report", 8));
}

#[test]
fn a_commit_is_answered_when_it_is_durable() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(10)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let commit = CommitOffsets {
        application: joined.application,
        member: joined.member,
        entries: vec![commit_entry(&group, group.start, 1, Keep)],
    };
    peer.send(&commit);
    assert!(peer.frames().is_empty());
    // The same again changes nothing, and is not acknowledged earlier either.
    peer.send(&commit);
    assert!(peer.frames().is_empty());
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 2);
}

/// What a loss of power could take back is told to nobody: neither to who asks how far the application is, nor to the member
/// that goes on where another one has stopped.
#[test]
fn a_position_is_told_when_it_is_durable() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let (mut peer, mut other) = (house.peer(), house.peer());
    peer.write(&[chunk(10)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let second = other.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let next = peer.read(STREAM, group.start).answers[0].0.next;
    let entries = vec![commit_entry(&group, next, 1, Release)];
    peer.send(&CommitOffsets { application: joined.application, member: joined.member, entries });
    let JoinedApplication { application, member, .. } = second;
    other.send(&NextGroups { application, member, max_groups: 1, max_wait_ms: 0 });
    other.send(&FetchOffsets { application: "report".into(), stream: STREAM, streamlets: vec![] });
    other.run(&house);
    assert!(other.frames().is_empty(), "told before it was durable");
    house.sink.sync();
    other.run(&house);
    let frames = other.frames();
    assert_eq!(frames[0].decode::<LeasedGroups>().groups[0].start_ordinal, 1);
    assert_eq!(frames[1].decode::<CommittedOffsets>().offsets[0].ordinal, 1);
}

#[test]
fn with_order_lane_the_next_group_comes_after_the_one_before_is_done() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    write_groups(&mut peer, 3);
    let joined = peer.join(&house, "report", Start::Earliest);
    let first = peer.next_groups(&joined, 10);
    assert_eq!(first.len(), 1);
    assert!(peer.next_groups(&joined, 10).is_empty());
    // The group is closed, and read: the next one comes.
    assert_eq!(peer.commit(&house, &joined, &[done(&first[0])]), [Status::Ok]);
    let second = peer.next_groups(&joined, 10);
    assert_eq!((second.len(), second[0].start_ordinal), (1, 1));
    assert!(second[0].group > first[0].group);
    peer.commit(&house, &joined, &[done(&second[0])]);
    let third = peer.next_groups(&joined, 10);
    assert_eq!(third[0].start_ordinal, 2);
    // The third is open: it cannot be done yet.
    assert_eq!(peer.commit(&house, &joined, &[done(&third[0])]), [Status::InvalidArgument]);
    write_groups(&mut peer, 1);
    assert_eq!(peer.commit(&house, &joined, &[done(&third[0])]), [Status::Ok]);
    assert_eq!(peer.next_groups(&joined, 10)[0].start_ordinal, 3);
}

/// What a member has read can be lost behind it, with the end of its group. It could not commit any more, and nobody read on behind the group.
#[test]
fn a_position_behind_the_end_of_a_closed_group_is_that_end() {
    for after in [Done, Release, Keep] {
        let house = House::new();
        house.stream(STREAM, power(options(1, 1)));
        let (mut peer, mut writer) = (house.peer(), house.peer());
        let records = |records| write_request(&[chunk_of(target(STREAM, 0, 0, 0), records, 10)], 0);
        writer.call_durable(&house, &records(8));
        let joined = peer.join(&house, "report", Start::Earliest);
        let group = peer.next_groups(&joined, 1)[0];
        let behind = |group: &LeasedGroup, after| {
            commit_entry(group, Cursor { segment: SegmentIndex(7), ..group.start }, group.start_ordinal + 14, after)
        };
        let commit = |peer: &mut Peer, entry: CommitEntry| peer.commit(&house, &joined, &[entry])[0];
        assert_eq!(commit(&mut peer, behind(&group, after)), Status::InvalidArgument, "the group is open");
        writer.send(&records(4));
        let stream = house.log.stream(STREAM).expect("a stream");
        stream.streamlet(group.streamlet).and_then(|of| of.lane(group.lane)).expect("a lane").close_group();
        let too_early = commit(&mut peer, behind(&group, after));
        assert_eq!(too_early, Status::InvalidArgument, "when it was sent not all of the group was durable");
        assert_eq!(commit(&mut peer, behind(&group, after)), Status::Ok, "{after:?}");
        assert_eq!(fetch(&mut peer).offsets[0].ordinal, 12);
        if after == Keep {
            assert_eq!(commit(&mut peer, behind(&group, Done)), Status::Ok);
        }
        writer.run(&house);
        writer.frames();
        writer.call_durable(&house, &records(3));
        let next = peer.next_groups(&joined, 1)[0];
        assert_eq!((next.start_ordinal, next.group > group.group), (12, true));
        assert_eq!(commit(&mut peer, behind(&next, after)), Status::InvalidArgument, "it is open");
        let _: Empty = peer.call(&LeaveApplication { application: joined.application, member: joined.member });
        let nobody = JoinedApplication { member: 0, ..joined };
        let refused = peer.commit(&house, &nobody, &[behind(&group, after)])[0];
        assert_eq!(refused, Status::InvalidArgument, "nobody has read that");
    }
}

#[test]
fn with_order_none_groups_are_independent() {
    let house = House::new();
    house.stream(STREAM, order_none(options(1, 1)));
    let (mut one, mut two) = (house.peer(), house.peer());
    write_groups(&mut one, 5);
    let (first, second) = (one.join(&house, "report", Start::Earliest), two.join(&house, "report", Start::Earliest));
    let ones = one.next_groups(&first, 2);
    let twos = two.next_groups(&second, 10);
    assert_eq!(ones.iter().map(|g| g.start_ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(twos.iter().map(|g| g.start_ordinal).collect::<Vec<_>>(), [2, 3, 4]);
    // Done in any order.
    assert_eq!(two.commit(&house, &second, &[done(&twos[1]), done(&twos[0])]), [Status::Ok; 2]);
    assert_eq!(one.commit(&house, &first, &[done(&ones[1])]), [Status::Ok]);
    let stored = fetch(&mut one);
    assert_eq!(stored.offsets.len(), 3);
    assert!(stored.offsets.iter().all(|offset| offset.done));
    // The one that was left behind is given again when its member leaves, and nothing else is.
    let _: Empty = one.call(&LeaveApplication { application: first.application, member: first.member });
    let again = two.next_groups(&second, 10);
    assert_eq!(again.iter().map(|g| g.start_ordinal).collect::<Vec<_>>(), [0]);
    assert_eq!(two.commit(&house, &second, &[done(&again[0])]), [Status::Ok]);
    // Everything before the open group is one position now.
    two.next_groups(&second, 1);
    let stored = fetch(&mut two);
    assert_eq!(stored.offsets.len(), 1);
    assert_eq!((stored.offsets[0].ordinal, stored.offsets[0].done), (4, true));
}

/// A house with an unordered stream that keeps its records until they are consumed.
fn kept_until_consumed() -> House {
    let house = House::new();
    let consumed = StreamOptions { retention_consumed: true, retention_ms: None, ..options(1, 1) };
    house.stream(STREAM, order_none(consumed));
    house
}

/// Where the application is in the only lane, and how many records it has before it.
fn lag(peer: &mut Peer) -> (Option<u64>, u64) {
    let lanes = peer.call(&DescribeApplication { application: "report".into(), stream: STREAM }).lanes;
    (lanes[0].committed_ordinal, lanes[0].lag)
}

/// Has retention take what nobody needs any more.
fn retain(house: &House) -> u64 {
    house.broker.tick();
    house.log.retain(house.clock.now_ms())
}

/// The lag was that of the last group that was done for as long as nobody asked for more, and the next one was open; and what was done was kept.
#[test]
fn with_order_none_what_is_read_behind_groups_that_are_done_counts_at_once() {
    let house = kept_until_consumed();
    let mut peer = house.peer();
    let read = |peer: &mut Peer, group: &LeasedGroup, after| {
        let next = peer.read(STREAM, group.start).answers[0].0.next;
        commit_entry(group, next, group.start_ordinal + 1, after)
    };
    write_groups(&mut peer, 3);
    let joined = peer.join(&house, "report", Start::Earliest);
    let groups = peer.next_groups(&joined, 10);
    let open = read(&mut peer, &groups[2], Release);
    assert_eq!(peer.commit(&house, &joined, &[open, done(&groups[1])]), [Status::Ok; 2]);
    assert_eq!(lag(&mut peer), (Some(0), 3), "the first one is not done");
    assert_eq!(peer.commit(&house, &joined, &[done(&groups[0])]), [Status::Ok]);
    assert_eq!(lag(&mut peer), (Some(3), 0));
    assert_eq!(fetch(&mut peer).offsets.len(), 1);
    drop(peer);

    // What was joined is not recorded: it is joined again, before anybody asks.
    let house = house.restart();
    let mut peer = house.peer();
    assert_eq!(retain(&house), 2);
    house.sink.sync();
    assert_eq!(lag(&mut peer), (Some(3), 0));
    write_groups(&mut peer, 1);
    assert_eq!(lag(&mut peer), (Some(3), 1));
    let joined = peer.call(&join_request("report", STREAM, Start::Earliest));
    let groups = peer.next_groups(&joined, 10);
    assert_eq!(groups.iter().map(|group| group.start_ordinal).collect::<Vec<_>>(), [3], "it is given nothing again");
    let open = read(&mut peer, &groups[0], Keep);
    assert_eq!(peer.commit(&house, &joined, &[open]), [Status::Ok]);
    assert_eq!(lag(&mut peer), (Some(4), 0), "it need not be closed");
    assert_eq!(retain(&house), 1);
}

/// It was known in memory only. Behind a start the groups in front were gone, and the application was where its last commit of the first one had put it, for as long as
/// the open group was not read to its end.
#[test]
fn with_order_none_where_an_application_is_outlives_the_groups_in_front() {
    let house = kept_until_consumed();
    let mut peer = house.peer();
    write_groups(&mut peer, 3);
    assert_eq!(statuses(&peer.write(&[chunk(10)])), [Status::Ok]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let groups = peer.next_groups(&joined, 10);
    let open = CommitEntry { after: Release, ..done(&groups[2]) };
    assert_eq!(peer.commit(&house, &joined, &[open, done(&groups[1])]), [Status::Ok; 2]);
    assert_eq!(peer.commit(&house, &joined, &[done(&groups[0])]), [Status::Ok]);
    assert_eq!(lag(&mut peer), (Some(3), 1));
    // As long as that cannot be recorded nothing goes.
    *house.sink.sick.lock() = Some(kera_log::SinkErrorKind::Full);
    assert_eq!(retain(&house), 0);
    *house.sink.sick.lock() = None;
    assert_eq!(retain(&house), 2);
    house.sink.sync();
    drop(peer);

    let house = house.restart();
    let mut peer = house.peer();
    assert_eq!(lag(&mut peer), (Some(3), 1));
    house.broker.tick();
    assert_eq!(lag(&mut peer), (Some(3), 1));
    let joined = peer.call(&join_request("report", STREAM, Start::Earliest));
    let groups = peer.next_groups(&joined, 10);
    assert_eq!(groups.iter().map(|group| group.start_ordinal).collect::<Vec<_>>(), [3], "it is given nothing again");
}

/// Groups behind the base stay leased when the order changes. What was in front of one that was committed then was never given to anybody again.
#[test]
fn a_group_that_was_leased_with_order_none_passes_over_nothing_when_the_order_is_lane() {
    let house = kept_until_consumed();
    let (mut one, mut two) = (house.peer(), house.peer());
    write_groups(&mut one, 3);
    let (first, second) = (one.join(&house, "report", Start::Earliest), two.join(&house, "report", Start::Earliest));
    assert_eq!(one.next_groups(&first, 1)[0].start_ordinal, 0);
    let later = two.next_groups(&second, 1)[0];
    assert_eq!(later.start_ordinal, 1);
    let before = house.log.stream(STREAM).expect("a stream").options();
    let altered = StreamOptions { order: Order::Lane, ..(*before).clone() };
    house.broker.stream_altered(STREAM, altered).expect("a stream");
    let read = |after| CommitEntry { after, ..done(&later) };
    assert_eq!(two.commit(&house, &second, &[read(Keep)]), [Status::Ok]);
    assert_eq!(lag(&mut two), (Some(0), 3), "the first one is not read");
    assert_eq!(retain(&house), 0);

    let _: Empty = one.call(&LeaveApplication { application: first.application, member: first.member });
    assert!(two.next_groups(&second, 10).is_empty(), "a lane has one lease from here on");
    assert_eq!(two.commit(&house, &second, &[read(Release)]), [Status::Ok]);
    let again = two.next_groups(&second, 10);
    assert_eq!(again.iter().map(|group| group.start_ordinal).collect::<Vec<_>>(), [0]);
    assert_eq!(two.commit(&house, &second, &[done(&again[0])]), [Status::Ok]);
    assert_eq!(lag(&mut two), (Some(2), 1), "what was read behind it counts");
    assert_eq!(two.next_groups(&second, 10)[0].start_ordinal, 2);
    assert_eq!(retain(&house), 2);
}

#[test]
fn groups_ahead_are_bounded_with_order_none() {
    let house = House::with(BrokerConfig { groups_ahead_max: 2, ..config() }, 16 << 20);
    house.stream(STREAM, order_none(options(1, 1)));
    let mut peer = house.peer();
    write_groups(&mut peer, 6);
    let joined = peer.join(&house, "report", Start::Earliest);
    let groups = peer.next_groups(&joined, 10);
    assert_eq!(groups.len(), 2);
    peer.commit(&house, &joined, &[done(&groups[1])]);
    assert!(peer.next_groups(&joined, 10).is_empty());
    peer.commit(&house, &joined, &[done(&groups[0])]);
    assert_eq!(peer.next_groups(&joined, 10).len(), 2);
}

#[test]
fn a_member_waits_for_groups() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let (mut peer, mut writer) = (house.peer(), house.peer());
    let joined = peer.join(&house, "report", Start::Earliest);
    wait_groups(&mut peer, &joined, 10);
    assert!(peer.frames().is_empty());
    // A lane gets its first chunk ever.
    writer.write(&[chunk_of(target(STREAM, 1, 0, 0), 1, 10)]);
    peer.run(&house);
    let groups = peer.frame().decode::<LeasedGroups>().groups;
    assert_eq!(groups[0].streamlet, StreamletId(1));
    // A lane that was read to the end of a closed group gets another.
    writer.write(&[big(1), big(1)]);
    let all_read = commit_entry(&groups[0], groups[0].start, 2, Done);
    assert_eq!(peer.commit(&house, &joined, &[all_read]), [Status::Ok]);
    assert_eq!(peer.next_groups(&joined, 10)[0].start_ordinal, 2);
    wait_groups(&mut peer, &joined, 10);
    house.clock.advance_ms(600_000);
    peer.run(&house);
    assert_eq!(peer.frame().status(), Status::UnknownMember, "it was silent for longer than its lease");
}

#[test]
fn waiting_in_vain_is_answered_with_no_groups() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let joined = peer.join(&house, "report", Start::Earliest);
    let JoinedApplication { application, member, .. } = joined;
    peer.send(&NextGroups { application, member, max_groups: 0, max_wait_ms: 2_000 });
    house.clock.advance_ms(2_000);
    peer.run(&house);
    assert!(peer.frame().decode::<LeasedGroups>().groups.is_empty());
}

#[test]
fn a_silent_member_loses_its_groups_and_its_late_commit_moves_nothing() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let (mut one, mut two) = (house.peer(), house.peer());
    one.write(&[chunk(10), chunk(10), chunk(10)]);
    let first = one.join(&house, "report", Start::Earliest);
    let second = two.join(&house, "report", Start::Earliest);
    let held = one.next_groups(&first, 1)[0];
    let after_one = Cursor { position: held.start.position.max(128) + 112, ..held.start };
    one.commit(&house, &first, &[commit_entry(&held, after_one, 1, Keep)]);
    wait_groups(&mut two, &second, 1);
    house.clock.advance_ms(9_000);
    let _ = two.session.deadline_us();
    two.heartbeat(&second);
    house.clock.advance_ms(2_000);
    house.broker.tick();
    two.run(&house);
    let taken = two.frame().decode::<LeasedGroups>().groups[0];
    assert_eq!((taken.group, taken.start_ordinal, taken.start), (held.group, 1, after_one), "from the last commit");
    assert_ne!(taken.lease, held.lease);
    assert_eq!(house.broker.metrics().read().members_expired, 1);

    let late = CommitOffsets {
        application: first.application,
        member: first.member,
        entries: vec![commit_entry(&held, after_one, 3, Keep)],
    };
    assert_eq!(one.refused(&late), Status::UnknownMember);
    // Joined again as somebody else it still does not own the lease.
    let again = one.join(&house, "report", Start::Earliest);
    assert_ne!(again.member, first.member);
    assert_eq!(one.commit(&house, &again, &[commit_entry(&held, after_one, 3, Keep)]), [Status::LeaseLost]);
    assert_eq!(one.commit(&house, &again, &[commit_entry(&taken, after_one, 3, Keep)]), [Status::LeaseLost]);
    assert_eq!(house.broker.metrics().read().offsets_fenced, 2);
    assert_eq!(fetch(&mut one).offsets[0].ordinal, 1);
}

#[test]
fn a_member_that_comes_back_in_time_keeps_its_groups() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(10)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let held = peer.next_groups(&joined, 1)[0];
    drop(peer);
    house.clock.advance_ms(5_000);
    let mut again = house.peer();
    let back =
        again.call(&JoinApplication { member: joined.member, ..join_request("report", STREAM, Start::Earliest) });
    assert_eq!(back.member, joined.member);
    assert_eq!(again.heartbeat(&back).leases, 1);
    assert_eq!(again.commit(&house, &back, &[commit_entry(&held, held.start, 1, Keep)]), [Status::Ok]);
}

#[test]
fn groups_whose_member_was_never_told_of_them_are_free_when_it_is_back() {
    let house = House::new();
    house.stream(STREAM, options(3, 1));
    let mut lost = house.peer();
    lost.write(&[chunk_of(target(STREAM, 0, 0, 0), 1, 10)]);
    let joined = lost.join(&house, "report", Start::Earliest);
    let held = lost.next_groups(&joined, 1)[0];
    // Its connection is gone, which the broker does not know: one answer is on its way, and one request waits for the next group.
    lost.write(&[chunk_of(target(STREAM, 1, 0, 0), 1, 10)]);
    wait_groups(&mut lost, &joined, 1);
    wait_groups(&mut lost, &joined, 1);
    lost.run(&house);
    let back = |leases: Option<Vec<u64>>| JoinApplication {
        member: joined.member,
        leases,
        ..join_request("report", STREAM, Start::Earliest)
    };
    let mut again = house.peer();
    assert_eq!(again.call(&back(None)).member, joined.member);
    assert_eq!(again.heartbeat(&joined).leases, 2, "who does not say what it knows of keeps it all");
    again.call(&back(Some(vec![held.lease, 4_711])));
    assert_eq!(again.heartbeat(&joined).leases, 1);
    // Whoever waits where nobody hears of it gets nothing, neither what is free now nor what comes.
    lost.run(&house);
    again.write(&[chunk_of(target(STREAM, 2, 0, 0), 1, 10)]);
    lost.run(&house);
    let streamlets = |groups: &[LeasedGroup]| groups.iter().map(|group| group.streamlet.0).collect::<Vec<_>>();
    let groups = again.next_groups(&joined, 10);
    assert_eq!(streamlets(&groups), [1, 2]);
    assert_eq!(lost.frames().last().map(common::Frame::status), Some(Status::UnknownMember));
    assert_eq!(again.commit(&house, &joined, &[commit_entry(&held, held.start, 1, Keep)]), [Status::Ok]);
    // One whose connections are many is given groups where it joined last.
    let mut third = house.peer();
    third.call(&back(Some(vec![held.lease, groups[0].lease])));
    let JoinedApplication { application, member, .. } = joined;
    let asked = NextGroups { application, member, max_groups: 10, max_wait_ms: 0 };
    assert_eq!(again.refused(&asked), Status::UnknownMember);
    // A join that was said earlier and comes late is none.
    again.call(&back(Some(Vec::new())));
    assert_eq!(streamlets(&third.next_groups(&joined, 10)), [2]);
    assert_eq!(third.heartbeat(&joined).leases, 3);
}

#[test]
fn the_member_that_holds_most_is_asked_to_release() {
    let house = House::new();
    house.stream(STREAM, options(4, 1));
    let (mut one, mut two) = (house.peer(), house.peer());
    for streamlet in 0..4 {
        one.write(&[chunk_of(target(STREAM, streamlet, 0, 0), 3, 10)]);
    }
    let first = one.join(&house, "report", Start::Earliest);
    let held = one.next_groups(&first, 10);
    assert_eq!(held.len(), 4);
    assert!(one.heartbeat(&first).release.is_empty(), "nobody waits");

    let second = two.join(&house, "report", Start::Earliest);
    wait_groups(&mut two, &second, 10);
    let release = one.heartbeat(&first).release;
    assert_eq!(release.len(), 2, "half of four");
    assert_eq!(one.heartbeat(&first).release, release, "told until it is done");
    let entries: Vec<CommitEntry> = held
        .iter()
        .filter(|group| release.contains(&group.lease))
        .map(|group| commit_entry(group, group.start, 2, Release))
        .collect();
    assert_eq!(one.commit(&house, &first, &entries), [Status::Ok; 2]);
    assert!(one.next_groups(&first, 10).is_empty(), "what it gave back is for the one that waits");
    two.run(&house);
    let mut got = two.frame().decode::<LeasedGroups>().groups;
    got.extend(two.next_groups(&second, 10));
    assert_eq!(got.len(), 2);
    assert!(got.iter().all(|group| group.start_ordinal == 2), "from where it was left");
    assert!(one.heartbeat(&first).release.is_empty());
    assert_eq!(house.broker.metrics().read().releases_asked, 2);
    // A third one finds four groups with two members: its share is one.
    let mut three = house.peer();
    let third = three.join(&house, "report", Start::Earliest);
    wait_groups(&mut three, &third, 10);
    let asked = one.heartbeat(&first).release.len() + two.heartbeat(&second).release.len();
    assert_eq!(asked, 1);
    // It leaves again: nobody has to give anything.
    let _: Empty = two.call(&LeaveApplication { application: third.application, member: third.member });
    assert_eq!(one.heartbeat(&first).release.len() + two.heartbeat(&second).release.len(), 0);
    three.run(&house);
    assert_eq!(three.frame().status(), Status::UnknownMember);
}

#[test]
fn a_position_never_moves_back_by_itself() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    for (ordinal, expected) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
        assert_eq!(peer.commit(&house, &joined, &[commit_entry(&group, group.start, ordinal, Keep)]), [Status::Ok]);
        assert_eq!(fetch(&mut peer).offsets[0].ordinal, expected);
    }
    let two = [commit_entry(&group, group.start, 10, Keep), commit_entry(&group, group.start, 4, Keep)];
    assert_eq!(peer.commit(&house, &joined, &two), [Status::Ok; 2]);
    assert_eq!(fetch(&mut peer).offsets[0].ordinal, 10);
}

#[test]
fn commits_that_make_no_sense_are_refused_one_by_one() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(10)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let good = commit_entry(&group, group.start, 1, Keep);
    let next_group = Cursor { group: kera_format::GroupId(group.group.0 + 1), ..group.start };
    let entries = [
        CommitEntry { streamlet: StreamletId(9), ..good },
        CommitEntry { lane: kera_format::LaneId(9), ..good },
        CommitEntry { streamlet: StreamletId(1), ..good },
        CommitEntry { lease: group.lease + 1, ..good },
        CommitEntry { ordinal: 2, ..good },
        CommitEntry { ordinal: u64::MAX, ..good },
        CommitEntry { cursor: next_group, ..good },
        CommitEntry { cursor: Cursor { segment: kera_format::SegmentIndex(5), ..group.start }, ..good },
        CommitEntry { after: Done, ..good },
        good,
    ];
    use Status::*;
    let expected = [
        UnknownStreamlet,
        UnknownLane,
        LeaseLost,
        LeaseLost,
        InvalidArgument,
        InvalidArgument,
        InvalidArgument,
        InvalidArgument,
        InvalidArgument,
        Ok,
    ];
    assert_eq!(peer.commit(&house, &joined, &entries), expected);
}

#[test]
fn offsets_are_committed_without_members_too() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    let start = peer.read(STREAM, Cursor::default()).answers[0].0.start;
    let made: CommittedOffsets = peer.call_durable(&house, &reset(Start::Earliest, false));
    let entry = CommitEntry {
        streamlet: StreamletId(0),
        lane: kera_format::LaneId(0),
        lease: 0,
        cursor: start,
        ordinal: 6,
        after: Keep,
    };
    let alone = CommitOffsets { application: made.application, member: 0, entries: vec![entry] };
    assert_eq!(peer.call_durable(&house, &alone).statuses, [0]);
    assert_eq!(fetch(&mut peer).offsets[0].ordinal, 6);
    let unknown = CommitEntry { cursor: Cursor { group: kera_format::GroupId(u64::MAX), ..start }, ..entry };
    let nowhere = CommitOffsets { entries: vec![unknown], ..alone.clone() };
    assert_eq!(peer.call_durable(&house, &nowhere).statuses, [Status::CursorUnknown as u16]);
    let joined = peer.join(&house, "report", Start::Latest);
    assert_eq!(peer.refused(&alone), Status::ApplicationActive);
    assert_eq!(peer.next_groups(&joined, 1)[0].start_ordinal, 6);
}

/// Any number of them was kept, and written anew with every copy: they may be of groups that retention has taken.
#[test]
fn groups_that_never_were_are_not_committed_ahead_of_what_is_read() {
    let house = House::new();
    house.stream(STREAM, order_none(options(1, 1)));
    let mut peer = house.peer();
    write_groups(&mut peer, 2);
    let made: CommittedOffsets = peer.call_durable(&house, &reset(Start::Earliest, false));
    let first = made.offsets[0].cursor;
    drop(peer);
    let house = house.restart();
    let mut peer = house.peer();
    write_groups(&mut peer, 2);
    let lane = LaneId(0);
    let at_end = peer.call(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane, at: Start::Latest }).cursor;
    assert!(at_end.group.epoch() > first.group.epoch(), "those between could have been there");

    let recorded = || {
        let system = house.log.stream(SYSTEM).expect("it is there");
        let lanes = system.streamlets().flat_map(|of| of.lanes());
        lanes.map(|lane| lane.stats().next_ordinal).sum::<u64>()
    };
    let commit = |peer: &mut Peer, cursors: Vec<Cursor>| {
        let one = |cursor| CommitEntry { streamlet: StreamletId(0), lane, lease: 0, cursor, ordinal: 1, after: Keep };
        let entries: Vec<CommitEntry> = cursors.into_iter().map(one).collect();
        let commit = CommitOffsets { application: made.application, member: 0, entries };
        peer.call_durable(&house, &commit).statuses
    };
    let before = recorded();
    let invented = (1_000..3_000).map(|number| GroupId::new(first.group.epoch(), number));
    let invented: Vec<Cursor> = invented.map(|group| Cursor { group, ..Cursor::default() }).collect();
    assert_eq!(commit(&mut peer, invented), [Status::CursorUnknown as u16; 2_000]);
    assert_eq!((fetch(&mut peer).offsets.len(), recorded()), (1, before));
    // One that is there is.
    let asked = AvailableGroups { stream: STREAM, streamlet: StreamletId(0), after: first.group, limit: 1 };
    let second = Cursor { group: peer.call(&asked).groups[0].group, ..Cursor::default() };
    assert_eq!(commit(&mut peer, vec![second]), [Status::Ok as u16]);
    assert_eq!((fetch(&mut peer).offsets.len(), recorded()), (2, before + 1));
}

fn reset(to: Start, dry_run: bool) -> ResetOffsets {
    ResetOffsets { application: "report".into(), stream: STREAM, streamlets: vec![], to, dry_run }
}

#[test]
fn start_policies_say_where_a_member_begins() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let mut peer = house.peer();
    let mut times = Vec::new();
    for _ in 0..4 {
        times.push(house.clock.now_ms());
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
        house.clock.advance_ms(100);
    }
    let cases = [
        ("earliest", Start::Earliest, 0),
        ("ordinal", Start::Ordinal(25), 25),
        ("ordinal-beyond", Start::Ordinal(99), 40),
        ("time", Start::TimeMs(times[2]), 20),
        ("time-beyond", Start::TimeMs(i64::MAX), 40),
        ("latest", Start::Latest, 40),
    ];
    let joined: Vec<_> = cases.iter().map(|(name, start, _)| peer.join(&house, name, *start)).collect();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8), chunk_of(target(STREAM, 1, 0, 0), 1, 8)]);
    for (joined, (name, _, expected)) in joined.iter().zip(cases) {
        let groups = peer.next_groups(joined, 10);
        // Those that look it up at their first group look at the lane as it is then.
        let expected = if name.ends_with("beyond") { expected + 10 } else { expected };
        let place = groups.iter().find(|group| group.streamlet == StreamletId(0)).map(|group| group.start_ordinal);
        assert_eq!(place, Some(expected), "{name}");
        // A lane that was empty when the application was made is read from its first record.
        let fresh = groups.iter().find(|group| group.streamlet == StreamletId(1)).map(|group| group.start_ordinal);
        let expected = if name.ends_with("beyond") || name == "ordinal" { 1 } else { 0 };
        assert_eq!(fresh, Some(expected), "{name}");
    }
}

#[test]
fn a_position_that_retention_took_moves_to_the_first_record_there_is_and_is_counted() {
    let house = House::new();
    let kept = StreamOptions { retention_bytes: Some(150 << 10), ..options(1, 1) };
    house.stream(STREAM, kept);
    let mut peer = house.peer();
    write_groups(&mut peer, 2);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&house, &joined, &[commit_entry(&group, group.start, 0, Release)]), [Status::Ok]);
    write_groups(&mut peer, 10);
    assert!(house.log.retain(house.clock.now_ms()) > 0);
    let first = peer.next_groups(&joined, 1)[0].start_ordinal;
    assert!(first > 0);
    let counts = house.broker.metrics().read();
    assert_eq!((counts.positions_lost, counts.records_lost), (1, first));
}

#[test]
fn a_reset_moves_positions_when_nobody_is_a_member() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    peer.commit(&house, &joined, &[commit_entry(&group, group.start, 8, Keep)]);
    assert_eq!(peer.refused(&reset(Start::Earliest, false)), Status::ApplicationActive);
    let _: Empty = peer.call(&LeaveApplication { application: joined.application, member: joined.member });
    let planned: CommittedOffsets = peer.call(&reset(Start::Ordinal(4), true));
    assert_eq!(planned.offsets[0].ordinal, 4);
    assert_eq!(fetch(&mut peer).offsets[0].ordinal, 8, "only told");
    let _: CommittedOffsets = peer.call_durable(&house, &reset(Start::Ordinal(4), false));
    let joined = peer.call(&join_request("report", STREAM, Start::Latest));
    assert_eq!(peer.next_groups(&joined, 1)[0].start_ordinal, 4);
}

#[test]
fn a_deleted_application_is_forgotten_for_good() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    peer.commit(&house, &joined, &[commit_entry(&group, group.start, 8, Keep)]);
    let delete = DeleteApplication { application: "report".into(), stream: STREAM };
    assert_eq!(peer.refused(&delete), Status::ApplicationActive);
    let JoinedApplication { application, member, .. } = joined;
    let _: Empty = peer.call(&LeaveApplication { application, member });
    let _: Empty = peer.call_durable(&house, &delete);
    assert_eq!(peer.refused(&delete), Status::UnknownApplication);
    assert_eq!(peer.refused(&Heartbeat { application, member }), Status::UnknownApplication);
    drop(peer);
    let house = house.restart();
    let mut peer = house.peer();
    assert!(peer.call(&ListApplications { stream: None }).applications.is_empty());
    let again = peer.join(&house, "report", Start::Earliest);
    assert_ne!(again.application, application);
    assert_eq!(peer.next_groups(&again, 1)[0].start_ordinal, 0);
}

/// The stream is deleted while a member waits for groups, `sick` being what the sink says meanwhile: the application is gone at once, and behind a restart.
fn applications_go_with_it(sick: Option<SinkErrorKind>) {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(10)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    peer.next_groups(&joined, 1);
    wait_groups(&mut peer, &joined, 1);
    *house.sink.sick.lock() = sick;
    house.broker.stream_deleted(STREAM).expect("a stream");
    peer.run(&house);
    assert_eq!(peer.frame().status(), Status::UnknownApplication);
    assert!(peer.call(&ListApplications { stream: None }).applications.is_empty());
    assert_eq!(house.broker.application_counts().applications, 0);
    *house.sink.sick.lock() = None;
    house.broker.tick();
    drop(peer);
    let house = house.restart();
    assert!(house.peer().call(&ListApplications { stream: None }).applications.is_empty());
}

/// They were counted and listed until the next start, and kept all that the stream has in memory.
#[test]
fn applications_go_with_their_stream_also_if_that_cannot_be_recorded() {
    applications_go_with_it(Some(SinkErrorKind::Full));
}

#[test]
fn applications_go_with_their_stream() {
    applications_go_with_it(None);
}

#[test]
fn positions_survive_a_restart_and_memberships_do_not() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let mut peer = house.peer();
    for streamlet in 0..2 {
        peer.write(&[chunk_of(target(STREAM, streamlet, 0, 0), 10, 8)]);
    }
    let joined = peer.join(&house, "report", Start::Earliest);
    let groups = peer.next_groups(&joined, 2);
    let entries =
        [commit_entry(&groups[0], groups[0].start, 3, Keep), commit_entry(&groups[1], groups[1].start, 7, Keep)];
    peer.commit(&house, &joined, &entries);
    let before = fetch(&mut peer);
    drop(peer);

    let house = house.restart();
    let mut peer = house.peer();
    assert_eq!(fetch(&mut peer), before);
    let old = CommitOffsets { application: joined.application, member: joined.member, entries: entries.to_vec() };
    assert_eq!(peer.refused(&old), Status::UnknownMember);
    let again = peer.call(&join_request("report", STREAM, Start::Latest));
    assert_eq!(again.application, joined.application);
    assert_ne!(again.member, joined.member);
    let groups = peer.next_groups(&again, 2);
    let mut starts: Vec<u64> = groups.iter().map(|group| group.start_ordinal).collect();
    starts.sort_unstable();
    assert_eq!(starts, [3, 7]);
    assert!(groups.iter().all(|group| entries.iter().all(|entry| entry.lease != group.lease)));
}

#[test]
fn groups_done_out_of_order_survive_a_restart() {
    let house = House::new();
    house.stream(STREAM, order_none(options(1, 1)));
    let mut peer = house.peer();
    write_groups(&mut peer, 5);
    let joined = peer.join(&house, "report", Start::Earliest);
    let groups = peer.next_groups(&joined, 4);
    peer.commit(&house, &joined, &[done(&groups[1]), done(&groups[3])]);
    drop(peer);
    let house = house.restart();
    let mut peer = house.peer();
    let joined = peer.call(&join_request("report", STREAM, Start::Earliest));
    let left: Vec<u64> = peer.next_groups(&joined, 10).iter().map(|group| group.start_ordinal).collect();
    assert_eq!(left, [0, 2, 4]);
}

#[test]
fn latest_is_where_the_application_was_made_also_after_a_restart() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    peer.join(&house, "report", Start::Latest);
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    drop(peer);
    let house = house.restart();
    let mut peer = house.peer();
    let joined = peer.call(&join_request("report", STREAM, Start::Latest));
    assert_eq!(peer.next_groups(&joined, 1)[0].start_ordinal, 10);
}

#[test]
fn the_stream_of_offsets_stays_small_and_replays() {
    let house = House::with(BrokerConfig { snapshot_bytes: 64 << 10, ..config() }, 64 << 20);
    house.stream(STREAM, order_none(StreamOptions { segments_per_group: 64, ..options(3, 1) }));
    let mut peer = house.peer();
    for streamlet in [0, 0, 0, 1, 1, 1, 2, 2, 2] {
        assert_eq!(statuses(&peer.write(&[chunk_of(target(STREAM, streamlet, 0, 0), 7_000, 0)])), [Status::Ok]);
    }
    let other = peer.join(&house, "other", Start::Latest);
    let joined = peer.join(&house, "report", Start::Earliest);
    let groups = peer.next_groups(&joined, 3);
    for ordinal in 1..=20_000u64 {
        let group = &groups[ordinal as usize % 3];
        assert_eq!(peer.commit(&house, &joined, &[commit_entry(group, group.start, ordinal, Keep)]), [Status::Ok]);
        if ordinal % 50 == 0 {
            peer.heartbeat(&other);
            house.broker.tick();
            house.sink.sync();
            house.broker.tick();
            house.log.retain(house.clock.now_ms());
        }
    }
    assert!(house.broker.metrics().read().snapshots_written > 10);
    let system = house.log.stream(kera_format::StreamId(SYSTEM.0)).expect("it is there");
    let bytes: u64 = system.streamlets().flat_map(|s| s.lanes()).map(|lane| lane.stats().bytes).sum();
    assert!(bytes < 3 << 20, "{bytes}");
    let before = fetch(&mut peer);
    drop(peer);
    drop(system);
    let house = house.restart();
    let mut peer = house.peer();
    assert_eq!(fetch(&mut peer), before);
    assert_eq!(peer.call(&ListApplications { stream: Some(STREAM) }).applications.len(), 2);
}

#[test]
fn offsets_that_cannot_be_recorded_stay_as_they_were() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    peer.commit(&house, &joined, &[commit_entry(&group, group.start, 2, Keep)]);
    *house.sink.sick.lock() = Some(kera_log::SinkErrorKind::Full);
    let JoinedApplication { application, member, .. } = joined;
    let entries = vec![commit_entry(&group, group.start, 5, Release)];
    assert_eq!(peer.refused(&CommitOffsets { application, member, entries }), Status::DiskFull);
    assert_eq!(peer.heartbeat(&joined).leases, 1, "it still has its lease");
    *house.sink.sick.lock() = None;
    assert_eq!(fetch(&mut peer).offsets[0].ordinal, 2);
    assert_eq!(peer.commit(&house, &joined, &[commit_entry(&group, group.start, 5, Release)]), [Status::Ok]);
    assert_eq!(fetch(&mut peer).offsets[0].ordinal, 5);
}

#[test]
fn offsets_are_committed_while_writers_have_filled_the_arena() {
    let house = House::new();
    house.stream(STREAM, StreamOptions { segments_per_group: 1_000, ..options(1, 1) });
    let mut peer = house.peer();
    assert_eq!(statuses(&peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 2_000, 0)])), [Status::Ok]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let mut writer = house.peer();
    while !writer.is_blocked() {
        writer.send(&write_request(&[big(0)], 60_000));
    }
    // More than fits into the segment that was open before the arena was full.
    for ordinal in 1..=1_000 {
        let entry = commit_entry(&group, group.start, ordinal, Keep);
        assert_eq!(peer.commit(&house, &joined, &[entry]), [Status::Ok], "{ordinal}");
    }
    // An application that is made now is recorded, too.
    peer.join(&house, "other", Start::Earliest);
    let summaries = house.broker.application_summaries(10);
    let told: Vec<_> = summaries.iter().map(|one| (one.name.as_str(), one.members)).collect();
    assert_eq!(told, [("other", 1), ("report", 1)]);
    assert_eq!(house.broker.application_summaries(1).len(), 1);
}

#[test]
fn consumed_groups_go_when_every_application_has_read_them() {
    let house = House::new();
    house.stream(STREAM, StreamOptions { retention_consumed: true, retention_ms: None, ..options(1, 1) });
    let mut peer = house.peer();
    write_groups(&mut peer, 4);
    let retain = || {
        house.broker.tick();
        house.log.retain(house.clock.now_ms())
    };
    assert_eq!(retain(), 0, "no application, nothing is consumed");
    let one = peer.join(&house, "one", Start::Earliest);
    let two = peer.join(&house, "two", Start::Earliest);
    assert_eq!(retain(), 0);
    for joined in [&one, &two] {
        for _ in 0..2 {
            let group = peer.next_groups(joined, 1)[0];
            assert_eq!(peer.commit(&house, joined, &[done(&group)]), [Status::Ok]);
            if joined.application == one.application {
                assert_eq!(retain(), 0, "the other one has not read it");
            }
        }
    }
    assert_eq!(retain(), 2);
}

#[test]
fn wrong_requests_are_refused_by_name() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let join = join_request("report", STREAM, Start::Earliest);
    assert_eq!(peer.refused(&join_request("a/b", STREAM, Start::Earliest)), Status::InvalidName);
    assert_eq!(peer.refused(&join_request("", STREAM, Start::Earliest)), Status::InvalidName);
    assert_eq!(peer.refused(&join_request("report", StreamId(99), Start::Earliest)), Status::UnknownStream);
    assert_eq!(peer.refused(&join_request("report", SYSTEM, Start::Earliest)), Status::InvalidArgument);
    let long = JoinApplication { member_name: "x".repeat(256), ..join.clone() };
    assert_eq!(peer.refused(&long), Status::InvalidArgument);
    let next = NextGroups { application: NO_APPLICATION, member: 1, max_groups: 1, max_wait_ms: 0 };
    assert_eq!(peer.refused(&next), Status::UnknownApplication);
    let joined = peer.join(&house, "report", Start::Earliest);
    let next = NextGroups { application: joined.application, member: 1, max_groups: 1, max_wait_ms: 0 };
    assert_eq!(peer.refused(&next), Status::UnknownMember);
    assert_eq!(
        peer.refused(&DescribeApplication { application: "x".into(), stream: STREAM }),
        Status::UnknownApplication
    );
    let huge = JoinApplication { lease_ms: u32::MAX, ..join };
    assert_eq!(peer.call(&huge).lease_ms, house.config.lease_ms_max);
}

#[test]
fn applications_and_members_are_bounded() {
    let house = House::with(BrokerConfig { applications_max: 1, members_max: 1, ..config() }, 16 << 20);
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.join(&house, "report", Start::Earliest);
    assert_eq!(peer.refused(&join_request("report", STREAM, Start::Earliest)), Status::LimitReached);
    assert_eq!(peer.refused(&join_request("other", STREAM, Start::Earliest)), Status::LimitReached);
}

/// Memory for what each application knows of each lane is beside an arena that is bounded, and was not.
#[test]
fn what_applications_know_of_lanes_is_bounded_together_and_nobody_is_given_up_for_it() {
    let config = BrokerConfig { applications_bytes_max: 12 << 8, ..config() };
    let mut house = House::with(config, 16 << 20);
    house.stream(STREAM, options(2, 4));
    let refusal = |peer: &mut Peer| {
        peer.send(&join_request("other", STREAM, Start::Earliest));
        let frame = peer.frame();
        assert_eq!(frame.status(), Status::LimitReached);
        frame.error().message
    };
    let mut peer = house.peer();
    // A stream's first one is always made, and lanes count before anybody has written to them.
    peer.join(&house, "report", Start::Earliest);
    let message = refusal(&mut peer);
    assert!(message.contains("would be 16, the limit is 12") && message.contains("arena.bytes"), "{message}");
    for producer in 0..8 {
        let streamlet = (producer / 4) as u32;
        peer.write(&[chunk_of(target(STREAM, streamlet, producer, 0), 1, 10)]);
    }
    drop(peer);
    for _ in 0..2 {
        let mut peer = house.peer();
        let joined = peer.join(&house, "report", Start::Earliest);
        assert_eq!(peer.next_groups(&joined, 10).len(), 8);
        refusal(&mut peer);
        drop(peer);
        house = house.restart();
    }
    let another = StreamId(STREAM.0 + 1);
    house.stream(another, options(1, 8));
    house.peer().call_durable(&house, &join_request("other", another, Start::Earliest));
}

#[test]
fn commits_in_flight_are_bounded() {
    let house = House::with(BrokerConfig { in_flight_requests_max: 2, ..config() }, 16 << 20);
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let JoinedApplication { application, member, .. } = joined;
    let commit = |ordinal| CommitOffsets {
        application,
        member,
        entries: vec![commit_entry(&group, group.start, ordinal, Keep)],
    };
    peer.send(&commit(1));
    peer.send(&commit(2));
    assert_eq!(peer.send(&commit(3)), kera_rpc::Flow::Blocked);
    house.sink.sync();
    peer.run(&house);
    assert!(!peer.is_blocked());
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 3);
    assert_eq!(fetch(&mut peer).offsets[0].ordinal, 3);
}

#[test]
fn an_application_that_comes_later_holds_what_is_there() {
    let house = House::new();
    house.stream(STREAM, StreamOptions { retention_consumed: true, retention_ms: None, ..options(1, 1) });
    let mut peer = house.peer();
    write_groups(&mut peer, 4);
    let one = peer.join(&house, "one", Start::Earliest);
    for _ in 0..3 {
        let group = peer.next_groups(&one, 1)[0];
        assert_eq!(peer.commit(&house, &one, &[done(&group)]), [Status::Ok]);
    }
    house.broker.tick();
    let two = peer.join(&house, "two", Start::Earliest);
    house.broker.tick();
    assert_eq!(house.log.retain(house.clock.now_ms()), 0);
    let _: Empty = peer.call(&LeaveApplication { application: two.application, member: two.member });
    let _: Empty = peer.call_durable(&house, &DeleteApplication { application: "two".into(), stream: STREAM });
    house.broker.tick();
    assert_eq!(house.log.retain(house.clock.now_ms()), 3);
}
