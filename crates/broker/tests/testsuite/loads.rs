//! Readers of segments that are only on disk: they wait, and go on when the disk has given them back.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kera_broker::Broker;
use kera_env::Clock;
use kera_format::{Cursor, LaneId, StreamletId};
use kera_protocol::application::AfterCommit::Keep;
use kera_protocol::{
    CommittedOffsets, FetchOffsets, LeasedGroup, LeasedGroups, Lookup, LookupResult, NextGroups, ReadChunksResponse,
    ResetOffsets, Start, Status, StreamStats, Subscribe,
};

use crate::common::*;

/// A stream with four groups of one record, the first three on disk only.
fn house() -> House {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..4 {
        assert_eq!(statuses(&peer.write(&[chunk(40 << 10)])), [Status::Ok]);
    }
    assert_eq!(house.store.evict_all(&house.log), 3);
    house
}

#[test]
fn a_read_waits_for_the_disk() {
    let house = house();
    let mut peer = house.peer();
    peer.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000));
    assert!(peer.frames().is_empty());
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    let answer: ReadChunksResponse = peer.frame().decode();
    assert_eq!(ordinals(&answer.answers[0].1), [0]);
    // Without waiting the answer is empty, and the disk at work.
    let next = answer.answers[0].0.next;
    assert!(peer.read(STREAM, next).answers.is_empty());
    assert_eq!(house.store.bring(&house.log), 1);
    assert_eq!(ordinals(&peer.read(STREAM, next).answers[0].1), [1]);
}

#[test]
fn a_disk_that_does_not_give_back_is_told_and_tried_again() {
    let house = house();
    let mut peer = house.peer();
    let request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000);
    peer.send(&request);
    house.store.fail(&house.log);
    peer.run(&house);
    let answer: ReadChunksResponse = peer.frame().decode();
    assert_eq!(answer.answers[0].0.status(), Some(Status::SegmentUnreadable));
    peer.send(&request);
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    assert_eq!(ordinals(&peer.frame().decode::<ReadChunksResponse>().answers[0].1), [0]);
}

#[test]
fn a_subscription_goes_through_what_is_on_disk() {
    let house = house();
    let mut peer = house.peer();
    let entries = vec![entry(STREAM, 0, 0, Cursor::default())];
    peer.send(&Subscribe { credit_bytes: 1 << 20, push_bytes_max: 0, entries });
    let mut seen = Vec::new();
    for _ in 0..10 {
        house.store.bring(&house.log);
        peer.run(&house);
        for frame in peer.frames().iter().filter(|frame| frame.header.is_push()) {
            let response: ReadChunksResponse = frame.decode();
            seen.extend(response.answers.iter().flat_map(|(_, data)| ordinals(data)));
        }
    }
    assert_eq!(seen, [0, 1, 2, 3]);
}

#[test]
fn a_lookup_waits_for_the_disk_and_not_for_ever() {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    // Groups of several chunks: the header of the segment alone does not tell.
    for _ in 0..8 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 2_000)]);
    }
    assert!(house.store.evict_all(&house.log) > 0);
    let lookup = Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at: Start::Ordinal(15) };
    peer.send(&lookup);
    assert!(peer.frames().is_empty());
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    assert_eq!(peer.frame().decode::<LookupResult>().ordinal, 10);

    // A disk that says nothing at all.
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..8 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 2_000)]);
    }
    house.store.evict_all(&house.log);
    peer.send(&lookup);
    house.clock.advance_ms(30_000);
    peer.run(&house);
    assert_eq!(peer.frame().status(), Status::LoadPressure);
}

#[test]
fn whoever_asks_for_more_from_disk_than_may_wait_comes_again() {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..8 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 2_000)]);
    }
    house.store.evict_all(&house.log);
    let lookup = Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at: Start::Ordinal(15) };
    for _ in 0..house.config.waiting_max {
        peer.send(&lookup);
    }
    assert!(peer.frames().is_empty());
    let refused = peer.refused(&lookup);
    assert!(refused.retryable(), "{refused}");
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    assert_eq!(peer.frames().len(), house.config.waiting_max);
    assert_eq!(peer.call(&lookup).ordinal, 10);
}

/// All of them were kept while they waited: as many of the largest frames as may wait took gigabytes for one connection.
#[test]
fn what_waits_for_the_disk_takes_a_bounded_number_of_bytes() {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..8 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 2_000)]);
    }
    house.store.evict_all(&house.log);
    // The same one a hundred thousand times: 400 KB.
    let reset = ResetOffsets {
        application: "report".into(),
        stream: STREAM,
        streamlets: vec![StreamletId(0); 100_000],
        to: Start::Ordinal(15),
        dry_run: false,
    };
    for _ in 0..10 {
        peer.send(&reset);
    }
    assert!(peer.frames().is_empty());
    let refused = peer.refused(&reset);
    assert!(refused.retryable(), "{refused}");
    // Others that wait are small.
    peer.send(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at: Start::Ordinal(15) });
    assert!(peer.frames().is_empty());
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 11);
    let set: CommittedOffsets = peer.call_durable(&house, &reset);
    assert_eq!(set.offsets[0].ordinal, 15);
}

#[test]
fn more_streamlets_than_any_stream_has_are_not_looked_at() {
    let house = house();
    let mut peer = house.peer();
    let streamlets = vec![StreamletId(0); 131_073];
    let (application, stream) = ("report".to_owned(), STREAM);
    let fetch = FetchOffsets { application: application.clone(), stream, streamlets: streamlets.clone() };
    let stats = StreamStats { stream, streamlets: streamlets.clone(), after: None, limit: 0 };
    let reset = ResetOffsets { application, stream, streamlets, to: Start::Earliest, dry_run: false };
    assert_eq!(peer.refused(&fetch), Status::LimitReached);
    assert_eq!(peer.refused(&stats), Status::LimitReached);
    assert_eq!(peer.refused(&reset), Status::LimitReached);
}

#[test]
fn a_member_gets_its_first_group_when_its_start_is_found() {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..8 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 2_000)]);
    }
    house.store.evict_all(&house.log);
    let joined = peer.join(&house, "report", Start::Ordinal(15));
    let (application, member) = (joined.application, joined.member);
    peer.send(&NextGroups { application, member, max_groups: 1, max_wait_ms: 60_000 });
    assert!(peer.frames().is_empty());
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    let group: LeasedGroup = peer.frame().decode::<LeasedGroups>().groups[0];
    assert_eq!(group.start_ordinal, 15);
}

#[test]
fn a_reset_waits_for_the_disk() {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..8 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 2_000)]);
    }
    house.store.evict_all(&house.log);
    let reset = ResetOffsets {
        application: "report".into(),
        stream: STREAM,
        streamlets: vec![],
        to: Start::Ordinal(15),
        dry_run: false,
    };
    peer.send(&reset);
    assert!(peer.frames().is_empty());
    assert_eq!(house.store.bring(&house.log), 1);
    peer.run(&house);
    house.sink.sync();
    peer.run(&house);
    let set: CommittedOffsets = peer.frame().decode();
    assert_eq!(set.offsets[0].ordinal, 15);
}

/// Offsets in several segments of their stream, all of them on disk only, and what the broker that wrote them says.
fn offsets_on_disk() -> (House, CommittedOffsets) {
    let house = House::stored();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 2_000, 0)]);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    for ordinal in 1..=1_500 {
        assert_eq!(peer.commit(&house, &joined, &[commit_entry(&group, group.start, ordinal, Keep)]), [Status::Ok]);
    }
    let committed = peer.call(&fetch());
    assert_eq!(committed.offsets[0].ordinal, 1_500);
    house.log.close_all();
    assert!(house.store.evict_all(&house.log) > 2);
    (house, committed)
}

fn fetch() -> FetchOffsets {
    FetchOffsets { application: "report".into(), stream: STREAM, streamlets: vec![] }
}

#[test]
fn the_start_waits_for_offsets_that_are_on_disk_only() {
    let (mut house, committed) = offsets_on_disk();
    // The broker of the next start, over the same log.
    let next = Broker::new(config(), Arc::clone(&house.log), Arc::clone(&house.clock) as Arc<dyn Clock>);
    let starting = thread::spawn({
        let next = Arc::clone(&next);
        move || next.open_applications(SYSTEM)
    });
    let mut brought = 0;
    while !starting.is_finished() {
        brought += house.store.bring(&house.log);
        thread::sleep(Duration::from_millis(1));
    }
    let report = starting.join().unwrap().unwrap();
    assert!(brought > 2 && report.records > 1_500 && report.applications == 1, "{brought} {report:?}");
    house.broker = next;
    let known: CommittedOffsets = house.peer().call(&fetch());
    assert_eq!(known.offsets, committed.offsets);
}

#[test]
fn a_start_that_cannot_read_the_offsets_says_so_and_does_not_go_on_without_them() {
    let (house, _) = offsets_on_disk();
    let next = Broker::new(config(), Arc::clone(&house.log), Arc::clone(&house.clock) as Arc<dyn Clock>);
    let starting = thread::spawn(move || next.open_applications(SYSTEM));
    while !starting.is_finished() {
        house.store.fail(&house.log);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(starting.join().unwrap().unwrap_err().status, Status::SegmentUnreadable);
}
