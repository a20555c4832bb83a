//! What commands do, which are refused, and with which words.

use std::sync::{Arc, Mutex};

use kera_coordinator::catalog::{Catalog, RAISED_EPOCHS_MAX};
use kera_coordinator::{
    ClusterLog, Coordinator, CoordinatorConfig, CoordinatorError, LiveNode, StreamEvent, StreamObserver,
};
use kera_env::{ManualClock, MemoryDisk};
use kera_format::catalog::Entry;
use kera_format::{Durability, ProducerEpoch, ProducerId, StreamId, StreamOptions, level, limits};
use kera_protocol::{
    AllocateProducer, AllocatedProducer, Body, CreateStream, DeleteStream, Empty, ErrorBody, FrameHeader, ListStreams,
    Message, Op, Status, StreamChanges, StreamInfo, StreamRef, encode_request, frame,
};

use crate::support::{NODE, create, open};

fn message_of(result: Result<impl std::fmt::Debug, CoordinatorError>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn a_stream_is_found_by_name_and_by_id_also_after_a_restart() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    let info = coordinator.create_stream(&create("flights")).expect("created");
    assert_eq!((info.id, info.created_ms), (StreamId(1), 1_000));
    for _ in 0..2 {
        let coordinator = open(&disk).expect("open");
        assert_eq!(coordinator.stream(&"flights".into()).expect("by name"), info);
        assert_eq!(coordinator.stream(&info.id.into()).expect("by id"), info);
        assert_eq!(coordinator.streams(), vec![info.clone()]);
    }
}

#[test]
fn a_name_that_exists_is_refused_unless_that_is_fine() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let info = coordinator.create_stream(&create("a")).expect("created");
    let refused = coordinator.create_stream(&create("a")).expect_err("exists");
    assert_eq!(refused.status(), Status::StreamExists);
    let other = StreamOptions { streamlets: 9, ..StreamOptions::default() };
    let request = CreateStream { name: "a".into(), options: other, if_not_exists: true };
    assert_eq!(coordinator.create_stream(&request).expect("the one that exists"), info);
}

#[test]
fn ids_are_never_used_again_also_not_after_restarts() {
    let disk = MemoryDisk::new();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let coordinator = open(&disk).expect("open");
        seen.push(coordinator.create_stream(&create("a")).expect("created").id.0);
        coordinator.delete_stream(&"a".into()).expect("deleted");
    }
    assert_eq!(seen, [1, 2, 3]);
    assert!(open(&disk).expect("open").streams().is_empty());
}

#[test]
fn all_mistakes_of_options_are_told_at_once() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let options = StreamOptions {
        streamlets: 0,
        segment_bytes_max: 1000,
        replication: 3,
        compact_dirty_percent: 101,
        virtual_logs: 2,
        ..StreamOptions::default()
    };
    let request = CreateStream { name: "a".into(), options, if_not_exists: false };
    let refused = coordinator.create_stream(&request).expect_err("refused");
    assert_eq!(refused.status(), Status::InvalidOptions);
    let message = refused.to_string();
    for part in [
        "streamlets is 0, allowed is 1 to 131072",
        "segment_bytes is 1000, allowed is a power of two",
        "replication is 3, but there is 1 node to hold copies; ask for 1 at most",
        "compact_dirty_percent is 101, the limit is 100",
    ] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    let options = StreamOptions { virtual_logs: 2, ..StreamOptions::default() };
    let message = message_of(coordinator.create_stream(&CreateStream { options, ..create("a") }));
    assert!(message.contains("virtual_logs is 2, but streams with one copy share those of their node"), "{message}");
    assert!(coordinator.streams().is_empty());
}

#[test]
fn names_follow_the_rules_and_the_systems_are_kept_for_it() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    for name in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(250)] {
        let refused = coordinator.create_stream(&create(name)).expect_err(name);
        assert_eq!(refused.status(), Status::InvalidName, "{name}");
    }
    assert!(message_of(coordinator.create_stream(&create("_kera.mine"))).contains("kept for the system"));
    let options = StreamOptions { durability: Durability::Power, ..StreamOptions::default() };
    let info = coordinator.system_stream("_kera.applications", &options).expect("made");
    assert_eq!(coordinator.system_stream("_kera.applications", &StreamOptions::default()).expect("found"), info);
    assert_eq!(coordinator.delete_stream(&info.id.into()).expect_err("kept").status(), Status::InvalidName);
    let changes = StreamChanges { retention_ms: Some(None), ..StreamChanges::default() };
    assert_eq!(coordinator.alter_stream(&info.id.into(), &changes).expect_err("kept").status(), Status::InvalidName);
}

/// What a node of a cluster knows, and how its coordinators answer it.
#[derive(Default)]
struct Clustered<T> {
    catalog: Mutex<Catalog>,
    coordinators: T,
    /// What each observer is said to know already.
    known: Mutex<Vec<Vec<StreamInfo>>>,
}

trait Answers: Send + Sync {
    fn answer(&self, known: &Mutex<Catalog>, asked: (Op, u8, &[u8]), system: bool)
    -> Result<Vec<u8>, CoordinatorError>;
}

impl<T: Answers> ClusterLog for Clustered<T> {
    fn request(&self, op: Op, version: u8, body: &[u8], system: bool) -> Result<Vec<u8>, CoordinatorError> {
        self.coordinators.answer(&self.catalog, (op, version, body), system)
    }
    fn level(&self) -> u32 {
        level::NEWEST
    }
    fn read(&self, read: &mut dyn FnMut(&Catalog)) {
        read(&self.catalog.lock().unwrap());
    }
    fn copies_of(&self, _: StreamId, _: u32) -> u32 {
        0
    }
    fn wanted_copies(&self, _: StreamId) -> Option<u32> {
        None
    }
    fn live_nodes(&self) -> Vec<LiveNode> {
        Vec::new()
    }
    fn observe(&self, _: Arc<dyn StreamObserver>, known: Vec<StreamInfo>) {
        self.known.lock().unwrap().push(known);
    }
}

/// One of them leads when it is asked for the third time.
#[derive(Default)]
struct Electing {
    asked: Mutex<u32>,
}

impl Answers for Electing {
    fn answer(
        &self,
        known: &Mutex<Catalog>,
        (op, version, body): (Op, u8, &[u8]),
        system: bool,
    ) -> Result<Vec<u8>, CoordinatorError> {
        assert!(op == Op::CreateStream && system, "{op:?}");
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        if *asked < 3 {
            return Err(CoordinatorError::NoLeader("nobody leads".into()));
        }
        let CreateStream { name, options, .. } = CreateStream::decode(version, body)?;
        let mut catalog = known.lock().unwrap();
        let made = Entry::StreamCreated { stream: StreamId(1), at_ms: 1_000, options, name: name.clone() };
        catalog.apply(&made).expect("there is none of that name");
        let mut answer = Vec::new();
        catalog.find(&name.as_str().into())?.encode(version, &mut answer);
        Ok(answer)
    }
}

/// A node may start while the coordinators lose their leader.
#[test]
fn a_stream_of_the_system_is_waited_for_while_nobody_leads_and_nobody_is_asked_for_one_that_is_known() {
    let log = Arc::new(Clustered::<Electing>::default());
    let coordinator = Coordinator::of_cluster(log.clone(), Arc::new(ManualClock::new(1_000)));
    let (name, options) = ("_kera.applications", StreamOptions::default());
    let mut pauses = Vec::new();
    let made = coordinator.awaited_system_stream(name, &options, |error| pauses.push(error.to_string()));
    let made = made.expect("made");
    assert_eq!((made.name.as_str(), pauses.len()), (name, 2), "{pauses:?}");
    *log.coordinators.asked.lock().unwrap() = 0;
    assert_eq!(coordinator.system_stream(name, &options).expect("it is known"), made);
    assert_eq!(*log.coordinators.asked.lock().unwrap(), 0, "nobody leads, for all that the node knows");
    assert!(message_of(coordinator.system_stream("_kera.other", &options)).contains("nobody leads"));
}

/// Their leader knows a stream of which the node has not heard.
#[derive(Default)]
struct Ahead {
    deleted: Mutex<Vec<StreamRef>>,
}

impl Answers for Ahead {
    fn answer(
        &self,
        _: &Mutex<Catalog>,
        (op, version, body): (Op, u8, &[u8]),
        _: bool,
    ) -> Result<Vec<u8>, CoordinatorError> {
        assert_eq!(op, Op::DeleteStream);
        let mut deleted = self.deleted.lock().unwrap();
        let stream = DeleteStream::decode(version, body)?.stream;
        if deleted.contains(&stream) {
            return Err(CoordinatorError::NoSuchStream { stream: "stream `new`".into() });
        }
        deleted.push(stream);
        let mut answer = Vec::new();
        Empty.encode(version, &mut answer);
        Ok(answer)
    }
}

#[test]
fn a_stream_of_which_a_node_has_not_heard_yet_is_deleted_by_way_of_it() {
    let log = Arc::new(Clustered::<Ahead>::default());
    let coordinator = Coordinator::of_cluster(log.clone(), Arc::new(ManualClock::new(1_000)));
    let name: StreamRef = "new".into();
    coordinator.delete_stream(&name).expect("the leader knows it");
    assert_eq!(*log.coordinators.deleted.lock().unwrap(), std::slice::from_ref(&name));
    assert_eq!(coordinator.delete_stream(&name).expect_err("it is gone").status(), Status::UnknownStream);
}

#[test]
fn options_change_all_or_none() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let before = coordinator.create_stream(&create("a")).expect("created");
    let name: StreamRef = "a".into();
    let changes = StreamChanges {
        retention_bytes: Some(Some(5)),
        retention_ms: Some(None),
        durability: Some(Durability::Power),
        ..StreamChanges::default()
    };
    let after = coordinator.alter_stream(&name, &changes).expect("altered");
    assert_eq!(after.options.retention_bytes, Some(5));
    assert_eq!(after.options.retention_ms, None);
    assert_eq!((after.id, after.created_ms), (before.id, before.created_ms));

    let changes = StreamChanges {
        retention_bytes: Some(Some(6)),
        streamlets: Some(0),
        lanes: Some(3),
        replication: Some(2),
        ..StreamChanges::default()
    };
    let message = message_of(coordinator.alter_stream(&name, &changes));
    for part in [
        "streamlets is 1 and cannot shrink to 0",
        "lanes is 1 and cannot change",
        "replication is 2, but there is 1 node",
    ] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert_eq!(coordinator.stream(&name).expect("there"), after);

    let changes = StreamChanges { streamlets: Some(9), ..StreamChanges::default() };
    assert_eq!(coordinator.alter_stream(&name, &changes).expect("it grows").options.streamlets, 9);
    let changes = StreamChanges { streamlets: Some(8), ..StreamChanges::default() };
    assert!(message_of(coordinator.alter_stream(&name, &changes)).contains("streamlets is 9 and cannot shrink to 8"));
}

#[test]
fn settings_are_kept_as_they_were_given_also_after_a_restart() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    let given = |text: &[(&str, &str)]| text.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let settings = given(&[("segment.bytes", "1073741824"), ("retention.ms", "604800000")]);
    let options = StreamOptions { settings, ..StreamOptions::default() };
    coordinator.create_stream(&CreateStream { options, ..create("a") }).expect("created");
    let changes = StreamChanges {
        settings: [("retention.ms".into(), None), ("flush.ms".into(), Some(" 5".into()))].into(),
        ..StreamChanges::default()
    };
    let after = coordinator.alter_stream(&"a".into(), &changes).expect("altered");
    assert_eq!(after.options.settings, given(&[("flush.ms", " 5"), ("segment.bytes", "1073741824")]));
    // In a journal, and in a snapshot that begins the next one.
    for _ in 0..2 {
        assert_eq!(open(&disk).expect("open").stream(&"a".into()).expect("there"), after);
        let coordinator = open(&disk).expect("open");
        for at in 0..300 {
            let changes = StreamChanges { retention_bytes: Some(Some(1 + at % 2)), ..StreamChanges::default() };
            coordinator.alter_stream(&"a".into(), &changes).expect("altered");
        }
        let changes = StreamChanges { retention_bytes: Some(None), ..StreamChanges::default() };
        coordinator.alter_stream(&"a".into(), &changes).expect("altered");
    }
}

#[test]
fn settings_that_there_are_not_and_too_large_ones_are_refused() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    coordinator.create_stream(&create("a")).expect("created");
    let changes = |name: &str, value: Option<String>| StreamChanges {
        settings: [(name.to_owned(), value)].into(),
        ..StreamChanges::default()
    };
    let refused = |changes: &StreamChanges| message_of(coordinator.alter_stream(&"a".into(), changes));
    let message = refused(&changes("no.such.setting", Some("1".into())));
    assert!(message.contains("settings: there is no `no.such.setting`"), "{message}");
    let message = refused(&changes("flush.ms", Some("5".repeat(4096))));
    assert!(message.contains("settings.bytes is 4104, the limit is 4096"), "{message}");
    // What a later version may have kept can be unset.
    coordinator.alter_stream(&"a".into(), &changes("no.such.setting", None)).expect("nothing to do");
    let options = StreamOptions { settings: [("x".into(), String::new())].into(), ..StreamOptions::default() };
    let message = message_of(coordinator.create_stream(&CreateStream { options, ..create("b") }));
    assert!(message.contains("settings: there is no `x`"), "{message}");
}

#[test]
fn what_is_not_there_is_named() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let refused = coordinator.delete_stream(&"nope".into()).expect_err("not there");
    assert_eq!(refused.status(), Status::UnknownStream);
    assert!(refused.to_string().contains("stream `nope`"), "{refused}");
    assert!(message_of(coordinator.stream(&StreamId(7).into())).contains("stream 7"));
}

#[test]
fn the_number_of_streams_is_bounded() {
    let config = CoordinatorConfig { streams_max: 2, ..CoordinatorConfig::single(NODE) };
    let disk = Arc::new(MemoryDisk::new());
    let coordinator = Coordinator::open(&config, disk, Arc::new(ManualClock::default())).expect("open");
    coordinator.create_stream(&create("a")).expect("first");
    coordinator.create_stream(&create("b")).expect("second");
    let refused = coordinator.create_stream(&create("c")).expect_err("one too many");
    assert_eq!(refused.status(), Status::LimitReached);
    coordinator.delete_stream(&"a".into()).expect("deleted");
    coordinator.create_stream(&create("c")).expect("room again");
}

/// The limit of lanes is one of all streams: a stream may have as many for itself.
#[test]
fn the_number_of_lanes_is_bounded() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    let with = |name: &str, streamlets, lanes| {
        let options = StreamOptions { streamlets, lanes, ..StreamOptions::default() };
        CreateStream { options, ..create(name) }
    };
    let half = limits::STREAMLETS_MAX / 2;
    coordinator.create_stream(&with("a", half, 8)).expect("half of them");
    coordinator.create_stream(&with("b", half - 1, 8)).expect("nearly the other half");
    let refused = coordinator.create_stream(&with("c", 9, 1)).expect_err("one too many");
    assert_eq!(refused.status(), Status::LimitReached);
    let said = "all streams have 1048568 lanes, of 1048576 at most, and this takes 9 more";
    assert!(refused.to_string().starts_with(said), "{refused}");
    assert!(coordinator.check_lanes(9).is_err() && coordinator.check_lanes(8).is_ok());
    // Also when one grows, and after a start.
    let grow = |streamlets| StreamChanges { streamlets: Some(streamlets), ..StreamChanges::default() };
    let refused = coordinator.alter_stream(&"b".into(), &grow(half + 1)).expect_err("it grows too much");
    assert_eq!(refused.status(), Status::LimitReached);
    drop(coordinator);
    let coordinator = open(&disk).expect("open again");
    coordinator.alter_stream(&"b".into(), &grow(half)).expect("the last ones");
    assert_eq!(coordinator.create_stream(&with("c", 1, 1)).expect_err("full").status(), Status::LimitReached);
    // What does not grow can be altered, and the node makes what it needs for itself.
    let keep = StreamChanges { retention_ms: Some(Some(1_000)), ..StreamChanges::default() };
    coordinator.alter_stream(&"b".into(), &keep).expect("altered");
    coordinator.system_stream("_kera.own", &StreamOptions::default()).expect("made");
    coordinator.delete_stream(&"a".into()).expect("deleted");
    coordinator.create_stream(&with("c", 1, 1)).expect("room again");
}

#[test]
fn streams_are_listed_in_pages() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    for name in ["b2", "a1", "b1", "c", "b3"] {
        coordinator.create_stream(&create(name)).expect("created");
    }
    coordinator.system_stream("_kera.applications", &StreamOptions::default()).expect("made");
    let page = |prefix: &str, after: &str, limit, system| {
        let request = ListStreams { prefix: prefix.into(), after: after.into(), limit, system };
        let list = coordinator.list_streams(&request);
        (list.streams.into_iter().map(|info| info.name).collect::<Vec<_>>().join(" "), list.more)
    };
    assert_eq!(page("", "", 0, false), ("a1 b1 b2 b3 c".into(), false));
    assert_eq!(page("", "", 0, true), ("_kera.applications a1 b1 b2 b3 c".into(), false));
    assert_eq!(page("b", "", 2, false), ("b1 b2".into(), true));
    assert_eq!(page("b", "b2", 2, false), ("b3".into(), false));
    assert_eq!(page("b", "a", 1, false), ("b1".into(), true));
    assert_eq!(page("b", "zzz", 1, false), ("".into(), false));
}

#[test]
fn producer_ids_are_given_once_and_epochs_only_rise() {
    let disk = MemoryDisk::new();
    let allocated = |id, epoch| AllocatedProducer { producer_id: ProducerId(id), producer_epoch: ProducerEpoch(epoch) };
    let coordinator = open(&disk).expect("open");
    assert_eq!(coordinator.allocate_producer(None).expect("id"), allocated(1, 0));
    assert_eq!(coordinator.allocate_producer(None).expect("id"), allocated(2, 0));
    assert_eq!(coordinator.allocate_producer(Some(ProducerId(1))).expect("epoch"), allocated(1, 1));
    for unknown in [0, 3, 500, u64::MAX] {
        let refused = coordinator.allocate_producer(Some(ProducerId(unknown))).expect_err("never given");
        assert_eq!(refused.status(), Status::UnknownProducer);
    }
    drop(coordinator);
    let coordinator = open(&disk).expect("open");
    assert_eq!(coordinator.allocate_producer(Some(ProducerId(1))).expect("epoch"), allocated(1, 2));
    // The rest of the block may have been given out, for all that the disk knows.
    assert_eq!(coordinator.allocate_producer(None).expect("id"), allocated(1001, 0));
}

#[test]
fn only_one_producer_in_a_thousand_costs_a_write() {
    let disk = MemoryDisk::new();
    let coordinator = open(&disk).expect("open");
    coordinator.allocate_producer(None).expect("id");
    let steps = disk.steps();
    for _ in 0..999 {
        coordinator.allocate_producer(None).expect("id");
    }
    assert_eq!(disk.steps(), steps);
    assert_eq!(coordinator.allocate_producer(None).expect("id").producer_id, ProducerId(1001));
    assert!(disk.steps() > steps);
}

#[test]
fn a_producer_that_used_up_its_epochs_gets_another_id() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let id = coordinator.allocate_producer(None).expect("id").producer_id;
    for epoch in 1..=u16::MAX {
        let allocated = coordinator.allocate_producer(Some(id)).expect("epoch");
        assert_eq!((allocated.producer_id, allocated.producer_epoch), (id, ProducerEpoch(epoch)));
    }
    let allocated = coordinator.allocate_producer(Some(id)).expect("another id");
    assert_eq!((allocated.producer_id, allocated.producer_epoch), (ProducerId(id.0 + 1), ProducerEpoch(0)));
}

/// An error would be for good: nobody whose epoch was raised is ever forgotten.
#[test]
fn where_no_more_raised_epochs_are_kept_others_get_another_id() {
    let (mut catalog, most) = (Catalog::default(), RAISED_EPOCHS_MAX as u64);
    let given_below = ProducerId(most + 2);
    let raised =
        |producer, epoch| Entry::ProducerEpochRaised { producer: ProducerId(producer), epoch: ProducerEpoch(epoch) };
    for id in 1..=most {
        let planned = catalog.plan_raise(ProducerId(id), given_below).expect("it was given");
        assert_eq!(planned, Some(raised(id, 1)));
        catalog.apply(&raised(id, 1)).expect("it was planned");
    }
    let plan = |id| catalog.plan_raise(ProducerId(id), given_below).map_err(|error| error.status());
    assert_eq!(plan(most + 1), Ok(None), "another id");
    assert_eq!(plan(7), Ok(Some(raised(7, 2))), "it is one of those that are kept");
    assert_eq!(plan(most + 2), Err(Status::UnknownProducer));
}

#[derive(Default)]
struct Seen(Mutex<Vec<StreamEvent>>);

impl StreamObserver for Seen {
    fn stream_changed(&self, event: &StreamEvent) {
        self.0.lock().expect("no panic").push(event.clone());
    }
}

#[test]
fn observers_learn_of_changes_and_of_nothing_else() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let seen = Arc::new(Seen::default());
    coordinator.set_observer(Arc::clone(&seen) as Arc<dyn StreamObserver>);
    let before = coordinator.create_stream(&create("a")).expect("created");
    coordinator.create_stream(&create("a")).expect_err("exists");
    coordinator.alter_stream(&"a".into(), &StreamChanges::default()).expect("nothing to do");
    let changes = StreamChanges { segments_per_group: Some(3), ..StreamChanges::default() };
    let after = coordinator.alter_stream(&"a".into(), &changes).expect("altered");
    coordinator.delete_stream(&"a".into()).expect("deleted");
    let expected = [
        StreamEvent::Created(before.clone()),
        StreamEvent::Altered { before, after: after.clone() },
        StreamEvent::Deleted(after),
    ];
    assert_eq!(*seen.0.lock().expect("no panic"), expected);
}

#[test]
fn what_was_told_of_streams_is_kept_for_who_is_told_of_changes_and_not_behind_that() {
    let log = Arc::new(Clustered::<Electing>::default());
    let (name, options) = ("a".into(), StreamOptions::default());
    let made = Entry::StreamCreated { stream: StreamId(1), at_ms: 1_000, options, name };
    log.catalog.lock().unwrap().apply(&made).expect("there is none");
    let coordinator = Coordinator::of_cluster(log.clone(), Arc::new(ManualClock::new(1_000)));
    let told = coordinator.streams();
    assert_eq!(told.len(), 1);
    for _ in 0..2 {
        coordinator.set_observer(Arc::new(Seen::default()));
        assert_eq!(coordinator.streams(), told);
    }
    assert_eq!(*log.known.lock().unwrap(), [told, Vec::new()]);
}

fn ask<M: Message>(coordinator: &Coordinator, message: &M) -> (Status, Vec<u8>) {
    let mut bytes = Vec::new();
    encode_request(message, 1, 77, &mut bytes);
    let header = FrameHeader::parse(&bytes, frame::FRAME_BYTES_MAX).expect("header");
    let mut out = b"before".to_vec();
    coordinator.handle(M::OP, &header, &bytes[frame::FRAME_HEADER_BYTES..], &mut out);
    assert_eq!(&out[..6], b"before");
    let answer = FrameHeader::parse(&out[6..], frame::FRAME_BYTES_MAX).expect("header");
    assert_eq!((answer.op, answer.correlation), (header.op, 77));
    (Status::from_u16(answer.status).expect("status"), out[6 + frame::FRAME_HEADER_BYTES..].to_vec())
}

#[test]
fn requests_are_answered_with_whole_frames() {
    let coordinator = open(&MemoryDisk::new()).expect("open");
    let (status, body) = ask(&coordinator, &create("a"));
    assert_eq!(status, Status::Ok);
    assert_eq!(StreamInfo::decode(1, &body).expect("body").name, "a");
    let (status, body) = ask(&coordinator, &create("a"));
    assert_eq!(status, Status::StreamExists);
    assert!(ErrorBody::decode(&body).expect("body").message.contains("`a` exists"));
    let (status, body) = ask(&coordinator, &AllocateProducer { producer_id: None });
    assert_eq!(status, Status::Ok);
    assert_eq!(AllocatedProducer::decode(1, &body).expect("body").producer_id, ProducerId(1));
    for op in [Op::CreateStream, Op::GetStream, Op::ListStreams, Op::AlterStream, Op::DeleteStream] {
        let header = FrameHeader { op: op as u16, version: 1, correlation: 5, ..FrameHeader::default() };
        let mut out = Vec::new();
        coordinator.handle(op, &header, b"\xff\xff\xff", &mut out);
        let answer = FrameHeader::parse(&out, frame::FRAME_BYTES_MAX).expect("header");
        assert_eq!(answer.status, Status::Malformed as u16, "{op}");
        let header = FrameHeader { version: 99, ..header };
        out.clear();
        coordinator.handle(op, &header, b"", &mut out);
        let answer = FrameHeader::parse(&out, frame::FRAME_BYTES_MAX).expect("header");
        assert_eq!(answer.status, Status::UnsupportedVersion as u16, "{op}");
    }
    assert!(!Coordinator::serves(Op::WriteChunks));
}
