//! Rebuilds that share the room for what is begun, of which one waits for chunks that nobody gives now.

use kera_log::{AwaitedSegment, Rebuilt, Streamlet};
use kera_protocol::placement::{LaneState, Memory::Whole};

use super::*;

const STUCK: StreamId = StreamId(8);

/// A chunk of one of the segments that are stuck.
fn stuck_chunk(number: u32) -> Vec<u8> {
    let mut chunk = ChunkBuilder::default();
    chunk.push(&Record::value(&[1; 100]));
    let target = ChunkTarget {
        stream: STUCK,
        streamlet: X,
        producer_id: ProducerId(3),
        producer_epoch: ProducerEpoch(0),
        sequence: number.into(),
    };
    let mut chunk = chunk.seal(&target, Compression::None).expect("it fits").to_vec();
    let part = BrokerPart {
        group: GroupId::new(1, number + 1),
        segment: SegmentIndex(0),
        base_ordinal: u64::from(number) * 10,
        append_time_ms: 1,
        lane: LaneId(0),
        position: 128,
    };
    part.stamp(&mut chunk);
    chunk
}

/// A streamlet of another stream, of which so many segments are awaited and each has its first chunk. How many are put off, and its rebuild, of which nothing comes.
fn stuck(node: &Node, segments: u32) -> (usize, Rebuild) {
    let options = StreamOptions {
        streamlets: 1,
        lanes: 1,
        segments_per_group: 1,
        segment_bytes_max: 64 << 10,
        ..StreamOptions::default()
    };
    node.broker.stream_created(STUCK, options).expect("a stream");
    let stream = node.log.stream(STUCK).expect("a stream");
    stream.place_elsewhere();
    let streamlet: Arc<Streamlet> = Arc::clone(stream.streamlet(X).expect("a streamlet"));
    let awaited = |number: u32| AwaitedSegment {
        group: GroupId::new(1, number + 1),
        index: SegmentIndex(0),
        end: 64 << 10,
        base_ordinal: u64::from(number) * 10,
        next_ordinal: u64::from(number + 1) * 10,
        rewrite: 0,
    };
    let state = LaneHandover {
        lane: LaneId(0),
        next_ordinal: u64::from(segments) * 10,
        last_append_ms: 0,
        forgot: false,
        hole_end: 0,
        producers: Vec::new(),
        groups: Vec::new(),
    };
    streamlet.receive_lost(&[LostLane { state, segments: (0..segments).map(awaited).collect() }]).expect("lanes");
    streamlet.open(2, false).expect("opened");
    let put = (0..segments).map(|number| node.log.rebuild_chunk(&stuck_chunk(number)).expect("a chunk"));
    let put_off = put.filter(|put| *put == Rebuilt::Later).count();
    (put_off, Rebuild { streamlets: vec![StreamletRef { stream: STUCK, streamlet: X }], ..Rebuild::default() })
}

fn again(node: &Node, rebuild: &Rebuild, logs: &[EndedLog], copies: &dyn Copies) -> Result<(), Failure> {
    node.broker.rebuild(rebuild, logs, copies, &RecoveryProgress::default())
}

/// Backups that answer when memory was touched for what they are asked for.
struct WhenTouched<'a>(&'a Memory, &'a Log);

impl Copies for WhenTouched<'_> {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.0.lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        for _ in 0..12_000 {
            if self.1.arena().stats().warm_free_bytes >= 1 << 20 {
                return self.0.read_blocks(backup, asked);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("nobody touches memory".to_owned())
    }
}

#[test]
fn memory_is_touched_while_who_is_to_put_chunks_there_waits_for_them() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let mut rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert!(next.log.arena().stats().warm_free_bytes < 1 << 20, "nobody has touched it before");
    // As if there were more.
    rebuild.bytes = 8 << 20;
    again(&next, &rebuild, &logs, &WhenTouched(&memory, &next.log)).expect("rebuilt");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
}

/// Each try would wake who waits for room, who would never know that none comes.
#[test]
fn memory_that_the_machine_does_not_have_is_not_touched_again_and_again() {
    let node = Node::new(2);
    let arena = std::fs::OpenOptions::new().write(true).open(node._dir.path().join("arena")).expect("the arena's file");
    arena.set_len(3 << 20).expect("its blocks begin at 2 MiB, and there is nothing behind their first one");
    let (is_over, seen) = (std::sync::atomic::AtomicBool::new(false), node.log.arena().stats());
    let returns = std::thread::scope(|scope| {
        let touches = scope.spawn(|| crate::recovery::fetch::touch(&node.broker, 1 << 30, &is_over));
        let returns = (0..12_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            touches.is_finished()
        });
        is_over.store(true, Ordering::Release);
        returns
    });
    assert!(returns, "it goes on trying");
    assert_eq!(node.log.arena().stats().free_bytes, seen.free_bytes, "it has given back what it tried");
}

/// Copies whose waits are over at once, and that end all at last: who waits for nothing would do so for ever.
struct Hasty<'a> {
    copies: &'a Memory,
    progress: &'a RecoveryProgress,
    /// How often it was asked whether to go on, and how many waited for memory when most did.
    asked: AtomicU32,
    without: std::sync::atomic::AtomicU64,
}

impl Copies for Hasty<'_> {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.copies.lane_states(backup, asked)
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.copies.read_blocks(backup, asked)
    }

    fn threads(&self) -> usize {
        1
    }

    fn goes_on(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) < 100_000
    }

    fn pause(&self) -> Duration {
        self.without.fetch_max(self.progress.without_memory.load(Ordering::Relaxed), Ordering::Relaxed);
        Duration::ZERO
    }
}

/// What it gives back of a block that gets no memory is nothing that it can wait for.
#[test]
fn a_rebuild_without_memory_waits_and_says_so_and_goes_on_when_there_is_some() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    // The last blocks are with both backups, and not read before it is opened.
    let logs = with_end_at_all(&logs);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert_eq!(next.log.arena().stats().used_bytes, 0, "nothing is in memory that is taken away");
    let arena = std::fs::OpenOptions::new().write(true).open(next._dir.path().join("arena")).expect("the arena's file");
    let bytes = arena.metadata().expect("its size").len();
    arena.set_len(2 << 20).expect("its blocks begin there");
    let progress = RecoveryProgress::default();
    let (asked, without) = (AtomicU32::new(0), std::sync::atomic::AtomicU64::new(0));
    let hasty = Hasty { copies: &memory, progress: &progress, asked, without };
    let waits = next.broker.rebuild(&rebuild, &logs, &hasty, &progress).expect_err("there is no memory");
    assert_eq!(waits.status, Status::ArenaFull, "{waits}");
    assert!(waits.message.contains("no memory"), "{waits}");
    assert_eq!(hasty.without.load(Ordering::Relaxed), 1, "it says for what it waits");
    assert_eq!(progress.without_memory.load(Ordering::Relaxed), 0);
    arena.set_len(bytes).expect("there is memory again");
    next.broker.rebuild(&rebuild, &logs, &hasty, &progress).expect("it goes on");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>());
}

/// What could not even be begun is not nowhere.
#[test]
fn nothing_is_given_up_that_had_no_room() {
    let (lost, memory, logs) = lost_node();
    for sequence in 0..4 {
        assert_eq!(lost.append_to(LaneId(1), sequence).base_ordinal, sequence);
    }
    let other = Memory { chunks: lost.chunks_of(LaneId(1)), ..Memory::default() };
    let other_log = EndedLog { log: Two::OTHER, end: 4, at_all: true, ..logs[0].clone() };
    let with_other = |of: Vec<EndedLog>| [of, vec![other_log.clone()]].concat();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let copies = Two(memory, other);
    let there = with_other(in_two_views(&logs, &[11]));
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &there, &copies).expect("taken over");
    // All the room is taken, a quarter of the arena, before anything of it is read.
    let (put_off, of_stuck) = stuck(&next, 64);
    assert_eq!(put_off, 0);
    let given_up = with_other(in_two_views(&logs, &[]));
    let waits = again(&next, &rebuild, &given_up, &copies).expect_err("it has no room");
    assert!(waits.message.contains("had no room in memory"), "{waits}");
    let first = |lane| next.lane_of(LaneId(lane)).groups(GroupId::NONE, usize::MAX)[0].first_ordinal;
    assert_eq!((first(0), first(1)), (0, 0), "nothing has gone");
    again(&next, &of_stuck, &[], &copies).expect_err("nothing comes of it");
    again(&next, &rebuild, &given_up, &copies).expect("it is given up");
    assert_eq!(next.readable(), [6, 7, 8, 9], "what is behind the blocks that are gone");
    assert_eq!((first(1), next.chunks_of(LaneId(1)).len()), (0, 4), "the other lane was never there");
}

/// A person has given up blocks that a backup gives, of a streamlet that had no room beside another one of its rebuild.
#[test]
fn what_had_no_room_is_read_before_one_streamlet_goes_on_without_it() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let there = in_two_views(&logs, &[11]);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &there, &memory).expect("taken over");
    let (put_off, of_stuck) = stuck(&next, 64);
    assert_eq!(put_off, 0);
    let streamlets = [rebuild.streamlets.clone(), of_stuck.streamlets].concat();
    let both = Rebuild { streamlets, ..rebuild.clone() };
    again(&next, &both, &there, &memory).expect_err("nothing has room");
    let without = in_two_views(&logs, &[]);
    let (name, progress) = (StreamletRef { stream: STREAM, streamlet: X }, RecoveryProgress::default());
    let goes_on = next.broker.go_on_without(&both, name, (&there[..], &without[..]), &memory, &progress);
    assert_eq!(goes_on, Ok(true));
    again(&next, &rebuild, &there, &memory).expect("nothing is left to wait for");
    assert_eq!(next.readable(), (0..10).collect::<Vec<u64>>(), "nothing has gone that somebody gives");
}

/// The ends of logs are read before producers are told of them, for one backup alone may have them. They stay, whatever else waits for room.
#[test]
fn what_one_backup_alone_had_stays_when_others_need_room() {
    let (memory, mut logs) = lost();
    logs[0].end = 9;
    let next = Node::new(2);
    next.is_owner(2, 3);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    assert!(next.append(8).duplicate, "producers are told of it");
    let (put_off, of_stuck) = stuck(&next, 70);
    assert!(put_off > 0);
    again(&next, &of_stuck, &[], &memory).expect_err("nothing comes of it");
    let silent = Memory { silent: vec![11, 12], ..copy_of(&memory) };
    again(&next, &rebuild, &logs, &silent).expect_err("nobody answers");
    // Backup 12 does not have block 6, of a segment that ends with it.
    let alone = Memory { silent: vec![11], damaged: vec![(12, 6)], ..copy_of(&memory) };
    again(&next, &rebuild, &logs, &alone).expect("block 6 is here");
    assert_eq!(next.readable(), (0..9).collect::<Vec<u64>>());
}

/// The streamlets are taken over together, and the second one cannot be opened. Producers of the first are told what is there from then on.
#[test]
fn what_one_backup_alone_had_stays_when_another_streamlet_cannot_be_opened() {
    let (memory, mut logs) = lost();
    logs[0].end = 9;
    let next = Node::new(2);
    next.is_owner(2, 3);
    let owner = Owner { node: 2, epoch: 3, older: Vec::new() };
    next.broker.stream_created(STUCK, StreamOptions { streamlets: 1, ..StreamOptions::default() }).expect("a stream");
    next.broker.place_stream(4, STUCK, vec![owner]).expect("a stream");
    let lane = LaneState {
        lane: LaneId(99),
        next_ordinal: 1,
        last_append_ms: 0,
        memory: Whole,
        producers: Vec::new(),
        groups: Vec::new(),
    };
    let state = StreamletState { stream: STUCK, streamlet: X, epoch: 2, lanes: vec![lane], progress: Vec::new() };
    let handed = HandedStates::from([((STUCK, X), state)]);
    let both = [(STREAM, X, 3), (STUCK, X, 3)];
    let refused = next.broker.take_over_moved(&both, &logs, &memory, &handed).expect_err("there is no such lane");
    assert!(refused.message.contains("of stream 8 is not taken over"), "{refused}");
    assert!(next.append(8).duplicate, "producers are told of it");
    let alone = Memory { silent: vec![11], damaged: vec![(12, 6)], ..copy_of(&memory) };
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("it is open");
    again(&next, &rebuild, &logs, &alone).expect("block 6 is here");
    assert_eq!(next.readable(), (0..9).collect::<Vec<u64>>());
}

/// Others may be reading what they have begun just now.
#[test]
fn what_a_rebuild_has_begun_is_not_given_back_for_another_one() {
    let (memory, logs) = lost();
    let next = Node::new(2);
    next.is_owner(2, 3);
    let logs = with_end_at_all(&logs);
    let rebuild = next.broker.take_over(&[(STREAM, X, 3)], &logs, &memory).expect("taken over");
    let (put_off, of_stuck) = stuck(&next, 70);
    assert_eq!(put_off, 6);
    let silent = Memory { silent: vec![11, 12], ..copy_of(&memory) };
    again(&next, &rebuild, &logs, &silent).expect_err("nobody answers");
    let put = |number| next.log.rebuild_chunk(&stuck_chunk(number)).expect("a chunk");
    assert!((0..64).all(|number| put(number) == Rebuilt::NotAwaited), "it is there");
    again(&next, &of_stuck, &[], &memory).expect_err("nothing comes of it");
    assert_eq!(put(0), Rebuilt::Put, "it was given back, since something was put off");
}
