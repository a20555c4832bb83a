//! What threads that work at the same time find of a streamlet's applications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kera_env::{Clock, ManualClock, Random, SeededRandom};
use kera_format::applications::{Entry, LaneKey, Position};
use kera_format::chunk::ChunkTarget;
use kera_format::{
    ChunkBuilder, ChunkView, Compression, Cursor, Durability, GroupId, LaneId, ProducerEpoch, ProducerId, Record,
    SegmentId, StreamId, StreamOptions, StreamletId,
};
use kera_log::{Arena, ArenaConfig, ChunkReference, DurabilitySink, Log, LogConfig, Observer, SinkError, Ticket};
use kera_protocol::{Owner, Start, Status};
use parking_lot::Mutex;

use super::commit::Committer;
use super::journal::Journal;
use super::keepers::{FOUND_AT, Keepers, Kept, LOOKED_AT};
use super::replay::Replay;
use super::requests::{check_stayed, named};
use crate::acks::Answer;
use crate::broker::Broker;
use crate::config::BrokerConfig;
use crate::failure::Failure;

const STREAM: StreamId = StreamId(7);

/// A disk that has everything at once, or nothing ever.
#[derive(Default)]
struct Disk {
    appended: AtomicU64,
    /// What lanes have not heard of yet.
    references: Mutex<Vec<ChunkReference>>,
    stands_still: AtomicBool,
}

impl DurabilitySink for Disk {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        self.references.lock().push(reference);
        self.appended.fetch_add(1, Ordering::Relaxed) + 1
    }
    fn durable_through(&self) -> Ticket {
        if self.stands_still.load(Ordering::Relaxed) { 0 } else { self.appended.load(Ordering::Relaxed) }
    }
    fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
        true
    }
    fn healthy(&self) -> Result<(), SinkError> {
        Ok(())
    }
    fn segment_safe(&self, _: SegmentId) {}
}

struct Node {
    disk: Arc<Disk>,
    log: Arc<Log>,
    broker: Arc<Broker>,
    _dir: tempfile::TempDir,
}

impl Node {
    /// Number 1 of a cluster, with a stream of two streamlets that it owns, of which it has opened the first.
    fn new() -> Node {
        let node = Node::alone();
        node.broker.join_cluster([1; 16], 1);
        let mine = Owner { node: 1, epoch: 1, older: Vec::new() };
        node.broker.place_stream(1, STREAM, vec![mine.clone(), mine]).expect("a stream");
        node.open(0);
        node
    }

    /// A node that is in no cluster, with a stream of two streamlets.
    fn alone() -> Node {
        let dir = tempfile::tempdir().expect("a directory");
        let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 16 << 20, node: [7; 16] };
        let (arena, _) = Arena::create_or_attach(arena).expect("an arena");
        let log = Log::new(LogConfig { segment_arena_share: 1 << 20, ..LogConfig::default() }, arena);
        let disk = Arc::new(Disk::default());
        log.set_sinks(Arc::new(vec![disk.clone() as Arc<dyn DurabilitySink>]));
        let clock = Arc::new(ManualClock::new(1_000_000)) as Arc<dyn Clock>;
        let broker = Broker::new(BrokerConfig::default(), Arc::clone(&log), clock);
        let durability = Durability::Power;
        let options = StreamOptions { streamlets: 2, lanes: 2, durability, ..StreamOptions::default() };
        broker.stream_created(STREAM, options).expect("a stream");
        Node { disk, log, broker, _dir: dir }
    }

    fn open(&self, streamlet: u32) {
        self.broker.open_streamlet(STREAM, StreamletId(streamlet), 1, None).expect("a streamlet");
    }

    fn append(&self, streamlet: u32, sequence: u64) {
        self.append_in(streamlet, LaneId(0), sequence);
    }

    fn append_in(&self, streamlet: u32, lane: LaneId, sequence: u64) {
        self.append_of(ProducerId(2), streamlet, lane, sequence);
    }

    fn append_of(&self, producer_id: ProducerId, streamlet: u32, lane: LaneId, sequence: u64) {
        let mut chunk = ChunkBuilder::default();
        chunk.push(&Record::value(b"a record"));
        let target = ChunkTarget {
            stream: STREAM,
            streamlet: StreamletId(streamlet),
            producer_id,
            producer_epoch: ProducerEpoch(0),
            sequence,
        };
        let chunk = chunk.seal(&target, Compression::None).expect("it fits");
        let stream = self.log.stream(STREAM).expect("a stream");
        let lane = stream.streamlet(StreamletId(streamlet)).and_then(|of| of.lane(lane)).expect("a lane");
        let first = lane.next_ordinal() == 0;
        lane.append(&ChunkView::parse(&chunk).expect("a chunk"), 5).expect("appended");
        if first {
            self.broker.lane_started(lane);
        }
    }
}

#[test]
fn a_copy_is_written_by_one_thread_at_a_time() {
    let node = Node::new();
    let stream = node.log.stream(STREAM).expect("a stream");
    let journal = Journal::default();
    journal.open_progress(STREAM, stream.streamlet(StreamletId(0)).expect("a streamlet"), 0);
    let append = || assert!(journal.append("a", STREAM, &[Entry::Deleted], 5).failure.is_none());
    append();
    journal.want_copy();
    let from = journal.begin_copy(u64::MAX).expect("it is wanted");
    let before = journal.added_bytes();
    append();
    assert!(journal.begin_copy(0).is_none(), "somebody writes it");
    journal.end_copy(from, before);
    assert!(journal.begin_copy(0).is_none(), "it has not replaced anything yet");
    assert!(journal.trim());
    assert_eq!(journal.added_bytes(), 0);
    (0..2).for_each(|_| append());
    assert!(journal.begin_copy(0).is_some(), "more was added than the copy took");
    journal.give_up_copy();
    assert!(journal.begin_copy(u64::MAX).is_some(), "one that was given up is due");
}

/// Who takes streamlets of a lost node over has looked for them before.
#[test]
fn nothing_is_kept_of_a_streamlet_that_is_opened_when_its_stream_is_gone() {
    let node = Node::new();
    let stream = node.log.stream(STREAM).expect("a stream");
    let place = Arc::clone(stream.streamlet(StreamletId(1)).expect("a streamlet"));
    let applications = &node.broker.applications;
    assert_eq!(applications.keepers.all().len(), 1, "the first streamlet");
    node.broker.stream_deleted(STREAM).expect("deleted");
    applications.streamlet_opened(&node.broker, STREAM, &place, None);
    assert!(applications.keepers.all().is_empty() && applications.keepers.unread(None).is_empty());
}

/// All that the node keeps were looked at for each one that came, of which a start brings as many.
#[test]
fn a_streamlet_that_is_opened_has_only_those_of_its_stream_looked_at_that_are_not_read() {
    let node = Node::new();
    let keepers = &node.broker.applications.keepers;
    let mine = Owner { node: 1, epoch: 1, older: Vec::new() };
    LOOKED_AT.set(0);
    for stream in (100..140).map(StreamId) {
        let options = StreamOptions { streamlets: 2, lanes: 1, ..StreamOptions::default() };
        node.broker.stream_comes(stream, options).expect("a stream");
        node.broker.place_stream(2, stream, vec![mine.clone(), mine.clone()]).expect("a stream");
        let open =
            |streamlet| node.broker.open_streamlet(stream, StreamletId(streamlet), 1, None).expect("a streamlet");
        (0..2).for_each(open);
    }
    assert_eq!((keepers.all().len(), keepers.unread(None).len()), (1 + 80, 0));
    assert_eq!(LOOKED_AT.get(), 80);
    // Where all are read nobody is looked at, and one that is not is found as long as it stays.
    node.open(1);
    assert_eq!((node.broker.applications.read_on(&node.broker, None).len(), LOOKED_AT.get()), (0, 81));
    let unread = |of| keepers.unread(of).iter().map(|(of, one)| (*of, one.place.id())).collect::<Vec<_>>();
    let stream = node.log.stream(StreamId(139)).expect("a stream");
    assert!(keepers.remove(stream.id(), StreamletId(1)));
    assert!(keepers.add(stream.id(), stream.streamlet(StreamletId(1)).expect("a streamlet"), None));
    assert_eq!([None, Some(stream.id())].map(unread), [[(stream.id(), StreamletId(1))]; 2]);
    assert!(unread(Some(STREAM)).is_empty());
    keepers.remove_stream(stream.id());
    assert!(unread(None).is_empty());
}

#[test]
fn streamlets_that_are_not_read_are_those_that_a_look_at_all_finds_whatever_comes_and_goes() {
    let node = Node::new();
    let (keepers, random) = (&node.broker.applications.keepers, SeededRandom::new(11));
    let mut places = Vec::new();
    for stream in (100..104).map(StreamId) {
        let options = StreamOptions { streamlets: 4, lanes: 1, ..StreamOptions::default() };
        node.broker.stream_comes(stream, options).expect("a stream");
        let of = node.log.stream(stream).expect("a stream");
        places.extend((0..4).map(|at| (stream, Arc::clone(of.streamlet(StreamletId(at)).expect("a streamlet")))));
    }
    let (mut earlier, mut found) = (Vec::new(), 0);
    for _ in 0..4_000 {
        let (stream, place) = &places[random.below(places.len() as u64) as usize];
        let (stream, id) = (*stream, place.id());
        match random.below(16) {
            0..5 => _ = keepers.add(stream, place, None),
            5 => _ = keepers.remove(stream, id),
            6 => _ = keepers.remove_earlier(stream, place),
            7 if random.below(4) == 0 => keepers.remove_stream(stream),
            8..10 => {
                place.leave();
                place.open(place.owner_epoch() + 1, false).expect("it has left");
            }
            10 => earlier.extend(keepers.get(stream, id).map(|one| (stream, one))),
            // It may be gone by then, or another one in its place.
            11 if !earlier.is_empty() => {
                let (of, one) = earlier.swap_remove(random.below(earlier.len() as u64) as usize);
                keepers.serve(of, &one);
            }
            _ => keepers.get(stream, id).iter().for_each(|one| keepers.serve(stream, one)),
        }
        let named = |(of, one): &(StreamId, Arc<Kept>)| (*of, one.place.id(), Arc::as_ptr(one));
        let all: Vec<_> = keepers.all().iter().filter(|(_, one)| !one.is_read()).map(named).collect();
        let of_stream: Vec<_> = all.iter().filter(|(of, ..)| *of == stream).copied().collect();
        assert_eq!(keepers.unread(None).iter().map(named).collect::<Vec<_>>(), all);
        assert_eq!(keepers.unread(Some(stream)).iter().map(named).collect::<Vec<_>>(), of_stream);
        found += all.len();
    }
    assert!(found > 4_000, "{found}");
}

/// Whoever looks at one of its lanes before the application has its position there would begin somewhere else.
#[test]
fn a_streamlet_is_served_when_all_its_applications_have_what_was_read() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let (application, _) = applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    let second = StreamletId(1);
    // The application is busy while what is known of it in the second streamlet is read.
    let state = application.state.lock();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| node.open(1));
        let kept = loop {
            match applications.keepers.get(STREAM, second) {
                Some(kept) if kept.journal.check_open().is_ok() => break kept,
                _ => std::thread::yield_now(),
            }
        };
        assert!(!applications.keepers.serves(STREAM, second) && !kept.is_read());
        drop(state);
        opening.join().expect("it is open");
        assert!(applications.keepers.serves(STREAM, second) && kept.is_read());
    });
    assert!(application.state.lock().known.contains(&second));
    assert!(applications.keepers.unread(None).is_empty());
}

/// A lane says once that it starts. Who looks for it while its streamlet is not served does not find it.
#[test]
fn a_lane_that_starts_while_its_streamlet_is_read_is_lined_up_in_all_applications() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let [first, second] = ["a", "b"]
        .map(|name| applications.find_or_create(broker, name, &stream, Start::Earliest).expect("an application").0);
    let key = LaneKey { streamlet: StreamletId(1), lane: LaneId(1) };
    let lane = || stream.streamlet(key.streamlet).and_then(|of| of.lane(key.lane)).expect("a lane");
    // The second one is busy when the first one has what is known of the streamlet.
    let state = second.state.lock();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| node.open(1));
        while !first.state.lock().known.contains(&key.streamlet) {
            std::thread::yield_now();
        }
        let starting = scope.spawn(|| node.append_in(1, key.lane, 0));
        while lane().next_ordinal() == 0 {
            first.take_moved(&mut first.state.lock());
            std::thread::yield_now();
        }
        first.take_moved(&mut first.state.lock());
        drop(state);
        opening.join().expect("it is open");
        starting.join().expect("it is there");
    });
    for application in [first, second] {
        let mut state = application.state.lock();
        application.take_moved(&mut state);
        assert!(state.lanes.contains_key(&key), "`{}` does not know the lane", application.meta.name);
    }
}

/// The streamlet leaves between what a commit records and its answer: that waits for the record all the same.
#[test]
fn what_was_recorded_with_a_streamlet_that_has_left_is_waited_for() {
    let node = Node::new();
    let keepers = &node.broker.applications.keepers;
    let before = keepers.of_stream(STREAM);
    let lane = LaneKey { streamlet: StreamletId(0), lane: LaneId(0) };
    let kept = super::kept_entry(
        lane,
        &kera_protocol::placement::KeptGroup { group: GroupId::new(1, 1), first_ordinal: 0, next_ordinal: 1 },
    );
    assert!(keepers.record("a", STREAM, &[kept], 5).failure.is_none());
    node.disk.stands_still.store(true, Ordering::Relaxed);
    node.broker.applications.streamlet_left(STREAM, StreamletId(0));
    let waits = |before: &[_]| {
        let mut answer = Answer::default();
        keepers.wait_for(&mut answer, before, STREAM, |_| true);
        !answer.tickets.is_empty()
    };
    assert!(waits(&before) && !waits(&[]));
}

/// What is known of a stream was forgotten with its last streamlet, also if another one had come by then, with applications of its own.
#[test]
fn applications_stay_if_a_streamlet_comes_while_the_last_one_leaves() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let (application, _) = applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    // The two steps of `streamlet_left`, and what comes in between.
    assert!(applications.keepers.remove(STREAM, StreamletId(0)));
    applications.forget_streamlet(STREAM, StreamletId(0));
    node.open(1);
    applications.forget_stream_without_streamlets(STREAM);
    assert!(!application.is_deleted());
    assert!(applications.by_name("a", STREAM).is_ok_and(|found| found.meta.id == application.meta.id));
    assert!(application.state.lock().known.contains(&StreamletId(1)));
    applications.streamlet_left(STREAM, StreamletId(1));
    assert!(application.is_deleted() && applications.by_name("a", STREAM).is_err());
}

/// Its applications go with the last streamlet of a stream, and are at its next owner: it is not said that there is none.
#[test]
fn who_asks_about_a_streamlet_that_leaves_meanwhile_is_sent_to_its_next_owner() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    let before = applications.keepers.of_stream(STREAM);
    let refused = |name: &str| named(applications, (name, STREAM), &before, &[]).err().map(|failure| failure.status);
    let stayed = |streamlet: u32| check_stayed(applications, STREAM, &before, &[StreamletId(streamlet)]).is_ok();
    assert_eq!((refused("a"), refused("b")), (None, Some(Status::UnknownApplication)));
    assert!(stayed(0) && stayed(1));
    applications.streamlet_left(STREAM, StreamletId(0));
    assert_eq!((refused("a"), stayed(0), stayed(1)), (Some(Status::NotReady), false, true));
}

/// A streamlet that is read while floors are set brings an application along that is behind those that there were: what it has to read stays.
#[test]
fn floors_are_those_of_all_applications_that_there_are_when_they_are_set() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let options = StreamOptions { retention_consumed: true, retention_ms: None, ..(*stream.options()).clone() };
    broker.stream_altered(STREAM, options).expect("altered");
    let (ahead, _) = applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    let second = stream.streamlet(StreamletId(1)).expect("a streamlet");
    second.open(1, false).expect("nobody else owns it");
    let key = LaneKey { streamlet: second.id(), lane: LaneId(0) };
    let lane = second.lane(key.lane).expect("a lane");
    // Of nobody: a producer's last chunk is kept for what it tells of that.
    node.append_of(ProducerId(0), 1, key.lane, 0);
    lane.close_group();
    // What is recorded with the streamlet: the one has read its record, and the other has not.
    let group = lane.groups(GroupId::NONE, 1).first().expect("a group").id;
    let position = Position { cursor: Cursor { group, ..Cursor::default() }, ordinal: 1, done: true, committed_ms: 5 };
    let journal = Journal::default();
    journal.open_progress(STREAM, second, 0);
    let exists = ahead.meta.to_record();
    for (name, entries) in [("a", vec![exists, Entry::Base { lane: key, position, anew: true }]), ("b", vec![exists])] {
        assert!(journal.append(name, STREAM, &entries, 5).failure.is_none());
    }
    kera_log::made_durable(&node.disk.references.lock());
    assert!(applications.keepers.add(STREAM, second, None));
    // The two steps of `set_floors`, and what comes in between.
    let dirty = applications.take_dirty(&stream, true);
    assert!(dirty.contains(&key));
    applications.read_on(broker, Some(STREAM));
    applications.set_floors_of(&stream, &dirty, 5);
    node.log.retain(10);
    assert_eq!(lane.earliest().1, 0, "an application that has come has it to read");
    let behind = applications.by_name("b", STREAM).expect("it has come");
    applications.remove(broker, &behind, 5).expect("all is known");
    applications.set_floors(broker);
    node.log.retain(10);
    assert_eq!(lane.earliest().1, 1, "all have read it");
}

/// Whoever asks has looked for the stream before that, and nobody deletes what is made behind it.
#[test]
fn an_application_of_a_stream_that_has_gone_meanwhile_is_not_made() {
    const SYSTEM: StreamId = StreamId(1);
    let node = Node::alone();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    broker.stream_created(SYSTEM, super::applications_stream_options()).expect("a stream");
    broker.open_applications(SYSTEM).expect("opened");
    let stream = node.log.stream(STREAM).expect("a stream");
    applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    broker.stream_deleted(STREAM).expect("a stream");
    let made = applications.find_or_create(broker, "b", &stream, Start::Earliest).map(drop);
    assert_eq!(made.expect_err("its stream has gone").status, Status::UnknownStream);
    assert_eq!(applications.counts().applications, 0);
}

/// Nobody else makes an application meanwhile, or takes one out.
#[test]
fn an_application_is_recorded_with_each_streamlet_without_a_look_at_all_others() {
    let node = Node::alone();
    let (id, streamlets) = (StreamId(9), (0..100).map(StreamletId));
    let options = StreamOptions { streamlets: 100, durability: Durability::Power, ..StreamOptions::default() };
    let stream = node.log.create_stream(id, options).expect("a stream");
    let keepers = Keepers::default();
    keepers.join_cluster();
    for streamlet in streamlets.clone() {
        assert!(keepers.add(id, stream.streamlet(streamlet).expect("a streamlet"), None));
        let one = keepers.get(id, streamlet).expect("it is kept");
        assert!(keepers.open_read(id, &one, 0));
        keepers.serve(id, &one);
    }
    FOUND_AT.set(0);
    let recorded = keepers.record("a", id, &[Entry::Deleted], 5);
    assert!(recorded.any && recorded.failure.is_none() && recorded.done == [true]);
    let lane_of = |streamlet| stream.streamlet(streamlet).and_then(|of| of.used_progress_lane());
    assert!(streamlets.clone().all(|streamlet| lane_of(streamlet).is_some_and(|lane| lane.next_ordinal() == 1)));
    let looked = FOUND_AT.get();
    assert!((100..=800).contains(&looked), "{looked}");
}

/// A streamlet that has come since its owner has looked would bring the application back.
#[test]
fn an_application_is_not_deleted_while_a_streamlet_is_unread() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let (application, _) = applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    node.append(0, 0);
    let second = stream.streamlet(StreamletId(1)).expect("a streamlet");
    let is_refused = || {
        let failure = applications.remove(broker, &application, 5).expect_err("it is not read yet");
        failure.status == Status::NotReady && !application.is_deleted()
    };
    assert!(is_refused(), "it is this node's, and is still to be opened");
    second.open(1, false).expect("nobody else owns it");
    assert!(is_refused());
    assert!(applications.keepers.add(STREAM, second, None));
    assert!(is_refused());
    applications.read_on(broker, Some(STREAM));
    applications.remove(broker, &application, 5).expect("all is read");
    assert!(application.is_deleted());
}

/// Whoever writes a copy has looked that it is there, and the copy would stand behind the record that it is not.
#[test]
fn an_application_that_is_deleted_while_it_is_copied_does_not_come_back() {
    let node = Node::new();
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let (application, _) = applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application");
    node.open(1);
    let kept = applications.keepers.get(STREAM, StreamletId(0)).expect("it is this node's");
    let state = application.state.lock();
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| applications.remove(broker, &application, 5));
        while applications.registry.try_read().is_some() && !removing.is_finished() {
            std::thread::yield_now();
        }
        // It has the time for it, if it does not wait.
        (0..10_000).take_while(|_| !removing.is_finished()).for_each(|_| std::thread::yield_now());
        let written = kept.journal.append("a", STREAM, &[application.meta.to_record()], 5);
        assert!(written.failure.is_none() && !application.is_deleted());
        drop(state);
        removing.join().expect("no panic").expect("it is deleted");
    });
    let lane = stream.streamlet(StreamletId(0)).and_then(|of| of.used_progress_lane()).expect("it is used");
    kera_log::made_durable(&node.disk.references.lock());
    let replay = Replay::read(lane).expect("it can be read");
    assert_eq!(replay.report.records, 3, "{replay:?}");
    assert!(replay.applications.is_empty(), "{replay:?}");
}

#[test]
fn nothing_is_recorded_of_an_application_behind_its_deletion() {
    let node = Node::new();
    node.open(1);
    let (broker, applications) = (&node.broker, &node.broker.applications);
    let stream = node.log.stream(STREAM).expect("a stream");
    let make = || applications.find_or_create(broker, "a", &stream, Start::Earliest).expect("an application").0;
    // Who has found it before it is deleted.
    let application = make();
    applications.remove(broker, &application, 5).expect("it is deleted");
    let is_refused = |failure: Option<Failure>| failure.is_some_and(|of| of.status == Status::UnknownApplication);
    let by = Committer { member: 0, now_us: 5, now_ms: 5 };
    assert!(is_refused(application.commit(by, &[]).err()));
    assert!(is_refused(application.reset(&mut application.state.lock(), &[], 5).err()));
    // Nor does a second deletion of it take out the one that has its name now.
    let anew = make();
    assert!(is_refused(applications.remove(broker, &application, 5).err()));
    assert!(applications.by_name("a", STREAM).is_ok_and(|found| found.meta.id == anew.meta.id));
}
