//! A node that does not hear from the coordinators any more: what it refuses after five seconds, and what it goes on with.

use std::sync::atomic::Ordering;

use kera_broker::SERVES_MS;
use kera_env::Clock;
use kera_format::{Cursor, StreamId, StreamOptions, StreamletId};
use kera_protocol::{FindOwners, ListApplications, ReadChunksResponse, Start, Status, Subscribe};

use crate::common::*;

const ALONE: StreamId = STREAM;
const COPIED: StreamId = StreamId(8);

fn house() -> House {
    let house = House::new();
    house.sink.instant.store(true, Ordering::SeqCst);
    house.stream(ALONE, options(1, 1));
    house.stream(COPIED, StreamOptions { replication: 3, ..options(1, 1) });
    house
}

fn chunk_for(stream: StreamId) -> Vec<u8> {
    chunk_of(target(stream, 0, 0, 0), 1, 100)
}

/// To the last moment of a confirmation of now, or behind it.
fn wait(house: &House, past: bool) {
    house.clock.advance_ms(SERVES_MS - 1 + u64::from(past));
}

#[test]
fn a_node_in_no_cluster_stands_by_itself() {
    let house = house();
    house.clock.advance_ms(1_000_000);
    assert_eq!(statuses(&house.peer().write(&[chunk_for(ALONE)])), [Status::Ok]);
    assert_eq!(house.peer().read(ALONE, Cursor::default()).answers[0].0.status(), Some(Status::Ok));
}

#[test]
fn after_five_seconds_only_streams_with_copies_are_written_until_the_coordinators_are_heard_of() {
    let house = house();
    house.broker.confirmed(house.clock.since_boot_us());
    let mut peer = house.peer();
    let both = [chunk_for(ALONE), chunk_for(COPIED)];
    wait(&house, false);
    assert_eq!(statuses(&peer.write(&both)), [Status::Ok, Status::Ok]);
    house.clock.advance_ms(1);
    assert!(!house.broker.is_confirmed());
    assert_eq!(statuses(&peer.write(&both)), [Status::NotOwner, Status::Ok]);
    house.broker.confirmed(house.clock.since_boot_us());
    assert_eq!(statuses(&peer.write(&both)), [Status::Ok, Status::Ok]);
}

/// Streamlets come to another number of copies one after the other, and their stream says so when all have.
#[test]
fn after_five_seconds_what_has_one_copy_is_not_written_whatever_its_stream_says() {
    let house = house();
    for (stream, copies) in [(ALONE, 3), (COPIED, 1)] {
        house.broker.set_copies(stream, StreamletId(0), copies).unwrap();
    }
    house.broker.confirmed(house.clock.since_boot_us());
    let mut peer = house.peer();
    let both = [chunk_for(ALONE), chunk_for(COPIED)];
    assert_eq!(statuses(&peer.write(&both)), [Status::Ok, Status::Ok]);
    wait(&house, true);
    assert_eq!(statuses(&peer.write(&both)), [Status::Ok, Status::NotOwner]);
}

/// Meanwhile the others have declared it lost, and a person may have given its streamlets to somebody else.
#[test]
fn a_machine_that_was_suspended_does_not_go_on_with_what_was_left_of_the_five_seconds() {
    let house = house();
    house.broker.confirmed(house.clock.since_boot_us());
    let mut peer = house.peer();
    let both = [chunk_for(ALONE), chunk_for(COPIED)];
    assert_eq!(statuses(&peer.write(&both)), [Status::Ok, Status::Ok]);
    house.clock.suspend_ms(SERVES_MS);
    assert!(!house.broker.is_confirmed());
    assert_eq!(statuses(&peer.write(&both)), [Status::NotOwner, Status::Ok]);
    assert_eq!(peer.refused(&read_request(&[entry(COPIED, 0, 0, Cursor::default())], 0)), Status::Fenced);
    house.broker.confirmed(house.clock.since_boot_us());
    assert_eq!(statuses(&peer.write(&both)), [Status::Ok, Status::Ok]);
}

#[test]
fn after_five_seconds_readers_and_members_are_sent_to_other_nodes() {
    let house = house();
    let mut peer = house.peer();
    assert_eq!(statuses(&peer.write(&[chunk_for(COPIED)])), [Status::Ok]);
    house.broker.confirmed(house.clock.since_boot_us());
    wait(&house, true);
    let read = read_request(&[entry(COPIED, 0, 0, Cursor::default())], 0);
    assert_eq!(peer.refused(&read), Status::Fenced);
    assert_eq!(peer.refused(&FindOwners { streams: Vec::new(), after: None, limit: 1 }), Status::Fenced);
    assert_eq!(peer.refused(&join_request("late", COPIED, Start::Earliest)), Status::Fenced);
    assert_eq!(peer.refused(&ListApplications { stream: None }), Status::Fenced);
    house.broker.confirmed(house.clock.since_boot_us());
    assert_eq!(peer.read(COPIED, Cursor::default()).answers[0].0.status(), Some(Status::Ok));
}

#[test]
fn whoever_is_subscribed_or_waits_is_told_with_the_next_data() {
    let house = house();
    house.broker.confirmed(house.clock.since_boot_us());
    let (mut subscribed, mut waiting, mut writer) = (house.peer(), house.peer(), house.peer());
    let entries = vec![entry(COPIED, 0, 0, Cursor::default())];
    subscribed.send(&Subscribe { credit_bytes: 1 << 20, push_bytes_max: 0, entries: entries.clone() });
    subscribed.frames();
    waiting.send(&read_request(&entries, 60_000));
    wait(&house, true);
    assert_eq!(statuses(&writer.write(&[chunk_for(COPIED)])), [Status::Ok]);
    for peer in [&mut subscribed, &mut waiting] {
        peer.run(&house);
        let told: ReadChunksResponse = peer.frame().decode();
        let (answer, data) = &told.answers[0];
        assert_eq!((answer.status(), answer.durable_ordinal, data.len()), (Some(Status::NotOwner), 0, 0));
    }
}
