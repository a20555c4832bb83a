//! What clients are told while nobody leads the coordinators, and of what their leader refuses.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kera_coordinator::CoordinatorError;
use kera_format::level;
use parking_lot::Mutex;

use super::copies::{Cluster, FRESH_PRODUCER, Leader};
use super::transactions::{Held, World, text, topic};
use super::*;

fn no_leader() -> CoordinatorError {
    CoordinatorError::NoLeader("nobody leads".into())
}

/// An id for a producer without transactions.
fn init() -> InitProducerIdRequest {
    InitProducerIdRequest::default().with_transactional_id(None)
}

#[test]
fn clients_ask_again_while_nobody_leads_the_coordinators() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1]], false).0, 0);
    cluster.leader.answer_instead(|| Some(no_leader()));
    let unled = ResponseError::NotController.code();
    assert_eq!(cluster.create("new", 1, &[], false).0, unled);
    assert_eq!(cluster.grow("t", 2, &[&[1]], false), unled);
    assert_eq!(cluster.codes("t", &[(0, Some(&[2]))]), [unled]);
    let world = &mut cluster.world;
    let deleted = world.call(1, &DeleteTopicsRequest::default().with_topic_names(vec![topic("t")]));
    assert_eq!(deleted.responses[0].error_code, unled);
    let listed = world.call(0, &ListPartitionReassignmentsRequest::default());
    assert_eq!(listed.error_code, unled);
    let producer = world.call(2, &init());
    let loading = ResponseError::CoordinatorLoadInProgress.code();
    assert_eq!((producer.error_code, producer.producer_id.0), (loading, -1));
}

#[test]
fn the_coordinators_are_asked_once_for_a_request_while_nobody_leads_them() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1], &[2], &[3]], false).0, 0);
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    cluster.leader.answer_instead(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(no_leader())
    });
    let times = || asked.swap(0, Ordering::Relaxed);
    let names = ["a", "b", "c"].map(topic);
    let wanted = names.clone().map(|name| metadata_request::MetadataRequestTopic::default().with_name(Some(name)));
    let told = cluster
        .world
        .call(5, &MetadataRequest::default().with_topics(Some(wanted.to_vec())).with_allow_auto_topic_creation(true));
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(told.topics.iter().map(|topic| topic.error_code).collect::<Vec<_>>(), [unknown; 3], "{told:?}");
    assert_eq!(times(), 1);
    let wanted =
        names.map(|name| create_topics_request::CreatableTopic::default().with_name(name).with_num_partitions(1));
    let wanted = wanted.map(|topic| topic.with_replication_factor(1));
    let told = cluster.world.call(5, &CreateTopicsRequest::default().with_topics(wanted.to_vec()));
    let unled = ResponseError::NotController.code();
    assert_eq!(told.topics.iter().map(|topic| topic.error_code).collect::<Vec<_>>(), [unled; 3]);
    assert_eq!(times(), 1);
    let elsewhere = [(0, Some(&[2][..])), (1, Some(&[3][..])), (2, Some(&[1][..]))];
    assert_eq!((cluster.codes("t", &elsewhere), times()), (vec![unled; 3], 1));
}

/// Asked for again by themselves clients would be told that the topic is there, or is not, because of what they had asked for themselves.
#[test]
fn what_may_be_done_is_told_so_and_behind_what_is_done_nothing_has_clients_ask_for_all_of_it_again() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1]], false).0, 0);
    cluster.leader.answer_instead(|| Some(CoordinatorError::MayBeDone("nobody has told".into())));
    let timed_out = ResponseError::RequestTimedOut.code();
    assert_eq!(cluster.create("new", 1, &[], false).0, timed_out);
    assert_eq!(cluster.grow("t", 2, &[&[1]], false), timed_out);
    let delete = DeleteTopicsRequest::default().with_topic_names(vec![topic("t"), topic("new")]);
    let deleted = cluster.world.call(1, &delete).responses;
    assert_eq!(deleted.iter().map(|one| one.error_code).collect::<Vec<_>>(), [timed_out; 2]);
    // The leader is lost behind the first one.
    let asked = AtomicU32::new(0);
    cluster.leader.answer_instead(move || (asked.fetch_add(1, Ordering::Relaxed) > 0).then(no_leader));
    let one = create_topics_request::CreatableTopic::default().with_num_partitions(1).with_replication_factor(1);
    let wanted = ["a", "b", "c"].map(|name| one.clone().with_name(topic(name)));
    let told = cluster.world.call(5, &CreateTopicsRequest::default().with_topics(wanted.to_vec()));
    let codes: Vec<i16> = told.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [0, timed_out, timed_out]);
}

/// A connection of its own; what its answers wait for becomes durable.
struct Connection {
    sink: Arc<Held>,
    session: Box<dyn Session>,
    waker: SessionWaker,
    out: Outbox,
}

impl Connection {
    fn open(door: &Arc<Door>, sink: &Arc<Held>, connection: u64) -> Connection {
        let waker = SessionWaker::detached();
        let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection, io_thread: 0 };
        let session = KafkaSessions(door.clone()).open(peer, waker.clone());
        Connection { sink: sink.clone(), session, waker, out: Outbox::new(1 << 20) }
    }

    fn send<R: Encodable>(&mut self, key: ApiKey, version: i16, request: &R) {
        let frame = frame(key, version, 7, request);
        assert_eq!(self.session.on_frame(&FrameHeader::default(), &frame, &mut self.out), Flow::Done);
    }

    /// Waits for an answer that another thread makes, whose error comes behind so many bytes.
    fn wait_error(&mut self, at: usize) -> i16 {
        let started = Instant::now();
        while self.out.to_vec().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(60), "no answer comes");
            self.sink.release();
            match self.waker.take() {
                true => self.session.on_wake(&mut self.out),
                false => std::thread::yield_now(),
            }
        }
        let answer = self.out.to_vec();
        i16::from_be_bytes([answer[8 + at], answer[9 + at]])
    }
}

#[test]
fn members_join_while_a_command_waits_for_a_leader_and_who_has_gone_does_not_wait() {
    let mut leader = None;
    let world = World::with(|broker, clock| {
        let made = leader.insert(Leader::found(broker, level::NEWEST));
        Arc::new(Coordinator::of_cluster(made.clone(), clock.clone()))
    });
    let (broker, coordinator) = world.parts();
    let config = DoorConfig { node: [3; 16], ..DoorConfig::default() };
    let (door, threads) =
        Door::start(config, broker, coordinator, world.clock.clone(), Arc::new(SystemRandom)).unwrap();
    let ((came, comes), (opens, gate)) = (channel(), channel::<()>());
    let gate = Mutex::new(gate);
    leader.expect("it is made").answer_instead(move || {
        came.send(()).unwrap();
        // Until the gate is open.
        let _ = gate.lock().recv();
        Some(no_leader())
    });
    let [mut first, mut gone, mut last, mut member] = [2, 3, 4, 5].map(|of| Connection::open(&door, &world.sink, of));
    first.send(ApiKey::InitProducerId, 1, &init());
    comes.recv_timeout(Duration::from_secs(60)).expect("it is asked");
    gone.send(ApiKey::InitProducerId, 1, &init());
    last.send(ApiKey::InitProducerId, 1, &init());
    drop(gone);

    let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata("m".into());
    let join = JoinGroupRequest::default()
        .with_group_id(GroupId(text("g")))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(10_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    member.send(ApiKey::JoinGroup, 3, &join);
    world.clock.advance_ms(5_000);
    // Behind the time for which it is held back.
    assert_eq!(member.wait_error(4), 0);

    drop(opens);
    let loading = ResponseError::CoordinatorLoadInProgress.code();
    assert_eq!((first.wait_error(4), last.wait_error(4)), (loading, loading));
    assert_eq!(comes.try_iter().count(), 1, "for the last one");
    drop((first, last, member, door, world));
    threads.join();
}

/// A node in a cluster of which nobody leads the coordinators, and how often it has asked for them.
fn without_leader() -> (World, Arc<AtomicU32>) {
    let cluster = Cluster::new();
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    cluster.leader.answer_instead(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(no_leader())
    });
    (cluster.world, asked)
}

/// Whoever reads what is committed waits for markers, and a leader may be waited for over and over.
#[test]
fn the_thread_that_ends_transactions_asks_nobody_for_ids() {
    let (mut world, asked) = without_leader();
    let door = world.running().door.clone();
    door.transactions.want_id();
    door.transactions.tick();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    door.transactions.stock_wanted();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// Partitions that come to a node are hidden until it has asked what it has to know of them.
#[test]
fn the_thread_that_follows_owners_asks_nobody_for_a_stream() {
    let (mut world, asked) = without_leader();
    let door = world.running().door.clone();
    assert_eq!(door.groups.owner_of(&door.broker, "g"), None);
    assert!(door.groups.is_wanted());
    door.owner.follow(&door);
    assert_eq!((door.groups.follow(&door.catalog, &door.broker).len(), asked.load(Ordering::Relaxed)), (0, 0));
    door.groups.make_wanted(&door.catalog, &door.broker);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn what_the_leader_of_the_coordinators_refuses_is_told_as_if_this_node_did() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create("t", 1, &[&[1]], false).0, 0);
    let mistakes = || vec!["streamlets: 2 is not between 1 and 1".to_owned()];
    cluster.leader.answer_instead(move || Some(CoordinatorError::BadOptions { mistakes: mistakes() }));
    assert_eq!(cluster.grow("t", 2, &[&[1]], false), ResponseError::InvalidPartitions.code());
    assert_eq!(cluster.create("new", 1, &[], false).0, ResponseError::InvalidConfig.code());
    cluster.leader.answer_instead(|| Some(CoordinatorError::Disk(io::ErrorKind::StorageFull.into())));
    assert_eq!(cluster.create("new", 1, &[], false).0, ResponseError::KafkaStorageError.code());
}

/// Java's admin client, franz-go and Sarama end with any other error than this one, and with them whoever makes topics at a start.
#[test]
fn a_topic_for_whose_copies_too_few_nodes_live_is_asked_for_again_and_holds_back_no_other() {
    let mut cluster = Cluster::new();
    let is_first = AtomicBool::new(true);
    cluster.leader.answer_instead(move || {
        let few = || CoordinatorError::TooFewLive("replication is 3, and node 3 is lost".into());
        is_first.swap(false, Ordering::Relaxed).then(few)
    });
    let one = create_topics_request::CreatableTopic::default().with_num_partitions(1).with_replication_factor(3);
    let wanted = ["a", "b"].map(|name| one.clone().with_name(topic(name)));
    let told = cluster.world.call(5, &CreateTopicsRequest::default().with_topics(wanted.to_vec()));
    let codes: Vec<i16> = told.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [ResponseError::NotController.code(), 0]);
    let why = told.topics[0].error_message.clone().unwrap_or_default().to_string();
    assert_eq!(why, "replication is 3, and node 3 is lost");
}

/// KafkaJS and Sarama end with any other error than this one, and so does Java's client of earlier versions: a producer that begins, or is to have its next epoch, while the disk is full.
#[test]
fn a_producer_asks_again_for_its_id_while_the_disk_is_full_and_not_when_it_has_failed() {
    let mut cluster = Cluster::new();
    for (kind, error) in [
        (io::ErrorKind::StorageFull, ResponseError::CoordinatorLoadInProgress),
        (io::ErrorKind::Other, ResponseError::KafkaStorageError),
    ] {
        cluster.leader.answer_instead(move || Some(CoordinatorError::Disk(kind.into())));
        for asked in [init(), init().with_producer_id(ProducerId(7)).with_producer_epoch(0)] {
            let answer = cluster.world.call(4, &asked);
            assert_eq!((answer.error_code, answer.producer_id.0), (error.code(), -1), "{kind:?}");
        }
    }
}

/// A producer of a cluster that is no more, or one too many of those whose epochs are kept.
#[test]
fn a_producer_that_cannot_keep_its_id_gets_another_one() {
    let mut cluster = Cluster::new();
    let mut told = |instead: Option<fn() -> CoordinatorError>| {
        let first = AtomicBool::new(true);
        cluster.leader.answer_instead(move || instead.filter(|_| first.swap(false, Ordering::Relaxed)).map(|of| of()));
        let asked = init().with_producer_id(ProducerId(1_000_000_000_000));
        let answer = cluster.world.call(4, &asked.with_producer_epoch(0));
        (answer.error_code, answer.producer_id.0, answer.producer_epoch)
    };
    let fresh = (0, FRESH_PRODUCER.cast_signed(), 0);
    assert_eq!(told(None), fresh);
    assert_eq!(told(Some(|| CoordinatorError::Limit { what: "producers", limit: 1, advice: "" })), fresh);
}
