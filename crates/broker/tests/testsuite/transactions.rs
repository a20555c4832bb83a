//! Native readers of lanes that transactions have written to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_format::chunk::{ChunkTarget, PayloadKind, seal_in_place};
use kera_format::kafka_batch::KAFKA_BATCH_HEADER_BYTES;
use kera_format::{CHUNK_HEADER_BYTES, ChunkView, Compression, Cursor, LaneId, StreamletId};
use kera_log::{Lane, Visibility};
use kera_protocol::application::DescribeApplication;
use kera_protocol::{
    JoinedApplication, Lookup, NextGroups, OlderGroups, Owner, ReadAnswer, ReadChunksResponse, Start, Status,
    StreamStats, Subscribe,
};
use parking_lot::Mutex;

use crate::common::*;

const TRANSACTIONAL: u8 = 0x10;
const MARKER: u8 = 0x30;

/// What the Kafka door would know.
#[derive(Debug, Default)]
struct Known {
    /// It is not known which transactions run.
    is_loading: bool,
    open: Option<u64>,
    aborted: Vec<(i64, u64)>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<Known>);

impl Visibility for Shared {
    fn end(&self, durable: u64) -> u64 {
        let known = self.0.lock();
        if known.is_loading { 0 } else { known.open.map_or(durable, |open| open.min(durable)) }
    }
    fn is_known(&self) -> bool {
        !self.0.lock().is_loading
    }
    fn hidden(&self, _: u64, _: u64) -> Vec<(i64, u64)> {
        self.0.lock().aborted.clone()
    }
}

fn lane(house: &House) -> Arc<Lane> {
    house.stream(STREAM, options(1, 1));
    let stream = house.log.stream(STREAM).unwrap();
    Arc::clone(stream.streamlet(StreamletId(0)).unwrap().lane(LaneId(0)).unwrap())
}

/// Appends a batch of one record; its ordinal.
fn append(lane: &Arc<Lane>, attributes: u8) -> u64 {
    let mut chunk = vec![0; CHUNK_HEADER_BYTES + KAFKA_BATCH_HEADER_BYTES];
    let batch = &mut chunk[CHUNK_HEADER_BYTES..];
    batch[11] = KAFKA_BATCH_HEADER_BYTES as u8 - 12;
    (batch[16], batch[22], batch[50], batch[60]) = (2, attributes, 9, 1);
    let target = ChunkTarget { stream: STREAM, streamlet: lane.streamlet_id(), ..ChunkTarget::default() };
    seal_in_place(&mut chunk, &target, PayloadKind::KafkaBatch, Compression::None, 1, 0).unwrap();
    lane.append(&ChunkView::parse(&chunk).unwrap(), 1).unwrap().base_ordinal
}

fn subscribe(peer: &mut Peer) {
    let entries = vec![entry(STREAM, 0, 0, Cursor::default())];
    peer.send(&Subscribe { credit_bytes: 1 << 20, push_bytes_max: 0, entries });
    assert_eq!(peer.frames().len(), 2, "that it stands, and what can be read");
}

fn told(response: &ReadChunksResponse) -> (&ReadAnswer, Vec<u64>) {
    let (answer, data) = &response.answers[0];
    (answer, ordinals(data))
}

#[test]
fn readers_wait_for_the_end_of_a_transaction_and_pass_over_an_aborted_one() {
    let house = House::new();
    let lane = lane(&house);
    let known = Arc::new(Shared::default());
    lane.set_visibility(|| Arc::clone(&known) as Arc<dyn Visibility>);
    known.0.lock().open = Some(1);
    append(&lane, 0);
    append(&lane, TRANSACTIONAL);
    append(&lane, 0);

    let (mut pushed, mut polled) = (house.peer(), house.peer());
    subscribe(&mut pushed);
    let first: ReadChunksResponse = polled.read(STREAM, Cursor::default());
    let (answer, found) = told(&first);
    assert_eq!((found, answer.durable_ordinal, answer.committed(), answer.holes()), (vec![0], 1, true, false));
    polled.send(&read_request(&[entry(STREAM, 0, 0, answer.next)], 5_000));
    assert!(polled.frames().is_empty(), "it waits");
    let looked = polled.call(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at: Start::Latest });
    assert_eq!((looked.ordinal, looked.durable_ordinal, looked.cursor), (1, 1, answer.next));

    // It aborts: nobody may see ordinal 1.
    {
        let mut known = known.0.lock();
        append(&lane, MARKER);
        (known.open, known.aborted) = (None, vec![(9, 1)]);
    }
    for peer in [&mut pushed, &mut polled] {
        peer.run(&house);
        let answer: ReadChunksResponse = peer.frame().decode();
        let (answer, found) = told(&answer);
        assert_eq!((found, answer.durable_ordinal, answer.committed(), answer.holes()), (vec![2, 3], 4, true, true));
    }
}

#[test]
fn a_read_that_finds_only_aborted_records_says_where_to_go_on() {
    let house = House::new();
    let lane = lane(&house);
    append(&lane, TRANSACTIONAL);
    append(&lane, MARKER);
    let known = Shared(Mutex::new(Known { aborted: vec![(9, 0)], ..Known::default() }));
    lane.set_visibility(|| Arc::new(known));
    let mut peer = house.peer();
    let mut request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 5_000);
    (request.max_bytes, request.min_bytes) = (100, 1_000);
    peer.send(&request);
    let first: ReadChunksResponse = peer.frame().decode();
    let (answer, found) = told(&first);
    assert_eq!((found, answer.holes(), answer.more()), (vec![], true, true));
    let second = peer.read(STREAM, answer.next);
    assert_eq!(told(&second).1, [1]);
}

#[test]
fn deleted_records_are_in_front_of_every_start() {
    let house = House::new();
    let lane = lane(&house);
    for _ in 0..4 {
        append(&lane, 0);
    }
    lane.raise_floor(2);
    let mut peer = house.peer();
    for at in [Start::Earliest, Start::Ordinal(1), Start::TimeMs(0)] {
        let looked = peer.call(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at });
        assert_eq!(looked.ordinal, 2, "{at:?}");
        assert_eq!(ordinals(&peer.read(STREAM, looked.cursor).answers[0].1), [2, 3]);
    }
}

/// A reader whose place was gone took them for lost. One that was to stop at what was the end did not hear that all in front of it was deleted, and waited for it for ever.
#[test]
fn a_place_says_that_what_lies_in_front_of_it_is_deleted() {
    let house = House::new();
    let lane = lane(&house);
    (0..4).for_each(|_| _ = append(&lane, 0));
    let mut peer = house.peer();
    let mut firsts = || {
        [Start::Earliest, Start::Ordinal(1), Start::TimeMs(0), Start::Latest].map(|at| {
            let looked = peer.call(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at });
            assert_eq!(looked.durable_ordinal, 4, "{at:?}");
            looked.first_ordinal
        })
    };
    assert_eq!(firsts(), [0; 4]);
    lane.raise_floor(3);
    assert_eq!(firsts(), [3; 4]);
    lane.raise_floor(9);
    assert_eq!(firsts(), [4; 4], "no further than what there is");
}

/// They are there until their segment goes, and counted as long.
#[test]
fn deleted_records_are_neither_counted_nor_something_that_an_application_has_to_read() {
    let house = House::new();
    let lane = lane(&house);
    (0..4).for_each(|_| _ = append(&lane, 0));
    let mut peer = house.peer();
    peer.join(&house, "report", Start::Earliest);
    let mut told = || {
        let stats = peer.call(&StreamStats { stream: STREAM, streamlets: vec![], after: None, limit: 0 });
        let of = &stats.lanes[0];
        let described = peer.call(&DescribeApplication { application: "report".into(), stream: STREAM });
        (of.first_ordinal, of.durable_ordinal, of.next_ordinal, described.lag)
    };
    assert_eq!(told(), (0, 4, 4, 4));
    lane.raise_floor(3);
    assert_eq!(told(), (3, 4, 4, 1));
    lane.raise_floor(9);
    assert_eq!(told(), (4, 4, 4, 0), "no further than what there is");
}

/// Its records can be read when it has ended: an application that begins with what can be read from now on has them before it.
#[test]
fn an_application_that_begins_at_the_end_does_not_pass_over_a_transaction_that_runs() {
    for on_disk in [false, true] {
        let house = House::stored();
        let lane = lane(&house);
        let known = Arc::new(Shared::default());
        lane.set_visibility(|| Arc::clone(&known) as Arc<dyn Visibility>);
        let mut peer = house.peer();
        append(&lane, 0);
        known.0.lock().open = Some(1);
        append(&lane, TRANSACTIONAL);
        append(&lane, 0);
        if on_disk {
            lane.close_group();
            assert!(house.store.evict_all(&house.log) > 0);
            append(&lane, 0);
        }
        let joined = peer.join(&house, "report", Start::Latest);
        let marker = append(&lane, MARKER);
        known.0.lock().open = None;
        let group = peer.next_groups(&joined, 1)[0];
        assert_eq!(group.start_ordinal, 1);
        if !on_disk {
            assert_eq!(ordinals(&peer.read(STREAM, group.start).answers[0].1), (1..=marker).collect::<Vec<_>>());
        }
        drop(peer);
        // Nothing runs now.
        let mut peer = house.peer();
        let behind = peer.join(&house, "behind", Start::Latest);
        append(&lane, 0);
        assert_eq!(peer.next_groups(&behind, 1)[0].start_ordinal, marker + 1);
    }
}

#[test]
fn no_application_begins_at_an_end_that_is_not_known() {
    let house = House::new();
    let lane = lane(&house);
    let known = Arc::new(Shared::default());
    lane.set_visibility(|| Arc::clone(&known) as Arc<dyn Visibility>);
    (0..2).for_each(|_| _ = append(&lane, 0));
    known.0.lock().is_loading = true;
    let mut peer = house.peer();
    assert_eq!(peer.refused(&join_request("report", STREAM, Start::Latest)), Status::NotReady);
    known.0.lock().is_loading = false;
    let joined = peer.join(&house, "report", Start::Latest);
    append(&lane, 0);
    assert_eq!(peer.next_groups(&joined, 1)[0].start_ordinal, 2);
}

/// Node `number` of a cluster, with a stream of two streamlets that have these owners, in owner epoch 2. It has opened those that are its own.
fn in_cluster(number: u32, owners: [u32; 2]) -> House {
    let house = House::new();
    house.sink.instant.store(true, Ordering::SeqCst);
    house.stream(STREAM, options(2, 1));
    house.broker.join_cluster([1; 16], number);
    let owned = owners.map(|node| Owner { node, epoch: 2, older: vec![] }).to_vec();
    house.broker.place_stream(2, STREAM, owned).unwrap();
    for (streamlet, _) in (0..).map(StreamletId).zip(owners).filter(|(_, node)| *node == number) {
        house.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
    }
    house
}

/// A lane of a node of a cluster with three records, of which the second one is of a transaction that runs; and what is known of it.
fn with_transaction(house: &House, streamlet: StreamletId) -> (Arc<Lane>, Arc<Shared>) {
    let stream = house.log.stream(STREAM).unwrap();
    let lane = Arc::clone(stream.streamlet(streamlet).unwrap().lane(LaneId(0)).unwrap());
    let known = Arc::new(Shared::default());
    lane.set_visibility(|| Arc::clone(&known) as Arc<dyn Visibility>);
    known.0.lock().open = Some(1);
    for attributes in [0, TRANSACTIONAL, 0] {
        append(&lane, attributes);
    }
    (lane, known)
}

/// It began behind all that was durable, and its members never saw what the transaction had written.
#[test]
fn an_application_begins_in_a_streamlet_that_comes_when_it_is_known_which_transactions_run() {
    let (house, comes) = (in_cluster(1, [1, 1]), StreamletId(1));
    let (lane, known) = with_transaction(&house, comes);
    let owner = |node, epoch| Owner { node, epoch, older: vec![] };
    house.broker.set_owner(3, STREAM, comes, owner(9, 3)).unwrap();
    let mut peer = house.peer();
    let joined = peer.join(&house, "report", Start::Latest);
    known.0.lock().is_loading = true;
    house.broker.set_owner(4, STREAM, comes, owner(1, 4)).unwrap();
    house.broker.open_streamlet(STREAM, comes, 4, None).unwrap();
    let JoinedApplication { application, member, .. } = joined;
    let asked = NextGroups { application, member, max_groups: 9, max_wait_ms: 0 };
    for _ in 0..2 {
        assert_eq!(peer.refused(&asked), Status::NotReady, "it does not say that there is nothing");
        // As its node does again and again.
        house.broker.tick();
    }
    known.0.lock().is_loading = false;
    house.broker.tick();
    append(&lane, MARKER);
    known.0.lock().open = None;
    let given = peer.next_groups(&joined, 9);
    assert_eq!(given.iter().map(|group| (group.streamlet, group.start_ordinal)).collect::<Vec<_>>(), [(comes, 1)]);
}

/// Whoever has read all from the beginning, or is recorded with the streamlet, does not begin at an end.
#[test]
fn who_does_not_begin_at_the_end_of_a_streamlet_that_comes_does_not_wait_for_that() {
    let (house, comes) = (in_cluster(1, [1, 1]), StreamletId(1));
    let mut peer = house.peer();
    peer.join(&house, "known", Start::Latest);
    let (_, known) = with_transaction(&house, comes);
    let joined = peer.join(&house, "report", Start::Earliest);
    known.0.lock().is_loading = true;
    house.broker.set_owner(3, STREAM, comes, Owner { node: 1, epoch: 3, older: vec![] }).unwrap();
    house.broker.open_streamlet(STREAM, comes, 3, None).unwrap();
    let given = peer.next_groups(&joined, 9);
    assert_eq!(given.iter().map(|group| (group.streamlet, group.start_ordinal)).collect::<Vec<_>>(), [(comes, 0)]);
}

/// The same where the node comes to know the application with a streamlet, and has another one already.
#[test]
fn an_application_that_comes_with_a_streamlet_begins_in_others_when_it_is_known_which_transactions_run() {
    let (moved, other) = (StreamletId(0), StreamletId(1));
    let (first, next) = (in_cluster(1, [1, 2]), in_cluster(2, [1, 2]));
    let lane = Arc::clone(first.log.stream(STREAM).unwrap().streamlet(moved).unwrap().lane(LaneId(0)).unwrap());
    append(&lane, 0);
    first.peer().join(&first, "report", Start::Latest);
    first.broker.let_go(STREAM, moved).unwrap();
    let state = first.broker.handed_over(STREAM, moved).unwrap().expect("all is durable");

    let (lane, known) = with_transaction(&next, other);
    known.0.lock().is_loading = true;
    let older = vec![OlderGroups { first_epoch: 2, node: 1 }];
    next.broker.set_owner(3, STREAM, moved, Owner { node: 2, epoch: 3, older }).unwrap();
    next.broker.open_streamlet(STREAM, moved, 3, Some(&state)).unwrap();
    next.broker.tick();
    let mut peer = next.peer();
    assert_eq!(peer.refused(&join_request("report", STREAM, Start::Latest)), Status::NotReady);
    known.0.lock().is_loading = false;
    next.broker.tick();
    let joined = peer.join(&next, "report", Start::Latest);
    append(&lane, MARKER);
    known.0.lock().open = None;
    let given = peer.next_groups(&joined, 9);
    assert_eq!(given.iter().map(|group| (group.streamlet, group.start_ordinal)).collect::<Vec<_>>(), [(other, 1)]);
}

/// The next owner of a lane has to ask which transactions run in it. Until then nothing says where readers are to stop.
#[test]
fn nobody_is_told_of_an_end_as_long_as_it_is_not_known_which_transactions_run() {
    let house = House::new();
    let lane = lane(&house);
    let known = Arc::new(Shared::default());
    lane.set_visibility(|| Arc::clone(&known) as Arc<dyn Visibility>);
    (0..4).for_each(|_| _ = append(&lane, 0));
    let mut peer = house.peer();
    let starts = [Start::Earliest, Start::Latest, Start::Ordinal(1), Start::TimeMs(0)];
    known.0.lock().is_loading = true;
    for at in starts {
        peer.send(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at });
        assert_eq!(peer.frame().status(), Status::NotReady, "{at:?}");
    }
    *known.0.lock() = Known { open: Some(3), ..Known::default() };
    for (at, ordinal) in starts.into_iter().zip([0, 3, 1, 0]) {
        let looked = peer.call(&Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at });
        assert_eq!((looked.ordinal, looked.durable_ordinal), (ordinal, 3), "{at:?}");
    }
}
