//! Random sequences of operations of several connections, on a small arena, with a disk and a clock that move by chance.
//! Whatever happens: nothing panics, every request is answered once, what was acknowledged is read once, in order, and
//! a group is never leased twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use kera_broker::BrokerConfig;
use kera_env::Clock;
use kera_format::chunk::Chunks;
use kera_format::{Cursor, StreamId, StreamletId};
use kera_protocol::application::{AfterCommit, CommitOffsets, CommittedOffsets, DescribeApplication};
use kera_protocol::{
    ErrorBody, FetchOffsets, Heartbeat, JoinedApplication, LeasedGroup, LeasedGroups, LeaveApplication, NextGroups, Op,
    ReadChunksResponse, ResetOffsets, Start, Status, Subscribe, WriteChunksResponse,
};
use proptest::prelude::*;

use crate::common::*;

const PEERS: usize = 3;
const STREAMLETS: u32 = 2;

#[derive(Clone, Debug)]
enum Step {
    /// A producer of a peer sends its next chunks, or the last ones again.
    Write {
        peer: usize,
        durable: bool,
        streamlet: u32,
        chunks: usize,
        again: bool,
    },
    Read {
        peer: usize,
        wait_ms: u32,
    },
    Subscribe {
        peer: usize,
        credit: u64,
    },
    Join {
        peer: usize,
    },
    Leave {
        peer: usize,
    },
    /// A peer's connection is lost, which its session does not know, and the peer is back on another one.
    Reconnect {
        peer: usize,
    },
    NextGroups {
        peer: usize,
        max: u32,
        wait_ms: u32,
    },
    Commit {
        peer: usize,
        lease: usize,
        ordinal: u64,
        after: u8,
        stale: bool,
    },
    Heartbeat {
        peer: usize,
    },
    Reset,
    Sync,
    Advance(u64),
    Tick,
    Retain,
    Raw {
        peer: usize,
        op: usize,
        body: Vec<u8>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let peer = || 0..PEERS;
    let wait = || prop_oneof![Just(0u32), 1u32..5_000];
    let step = prop_oneof![
        8 => (peer(), any::<bool>(), 0..STREAMLETS, 1usize..4, prop::bool::weighted(0.2))
            .prop_map(|(peer, durable, streamlet, chunks, again)| Step::Write { peer, durable, streamlet, chunks, again }),
        4 => (peer(), wait()).prop_map(|(peer, wait_ms)| Step::Read { peer, wait_ms }),
        1 => (peer(), 0u64..100_000).prop_map(|(peer, credit)| Step::Subscribe { peer, credit }),
        3 => peer().prop_map(|peer| Step::Join { peer }),
        1 => peer().prop_map(|peer| Step::Leave { peer }),
        1 => peer().prop_map(|peer| Step::Reconnect { peer }),
        4 => (peer(), 0u32..4, wait()).prop_map(|(peer, max, wait_ms)| Step::NextGroups { peer, max, wait_ms }),
        6 => (peer(), 0usize..3, 0u64..4, 0u8..3, prop::bool::weighted(0.1))
            .prop_map(|(peer, lease, ordinal, after, stale)| Step::Commit { peer, lease, ordinal, after, stale }),
        2 => peer().prop_map(|peer| Step::Heartbeat { peer }),
        1 => Just(Step::Reset),
        6 => Just(Step::Sync),
        3 => (0u64..6_000).prop_map(Step::Advance),
        2 => Just(Step::Tick),
        1 => Just(Step::Retain),
        1 => (peer(), 0usize..40, prop::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(peer, op, body)| Step::Raw { peer, op, body }),
    ];
    prop::collection::vec(step, 1..120)
}

const PLAIN: StreamId = STREAM;
const DURABLE: StreamId = StreamId(8);

/// Next sequence, and the chunks that were sent last.
type Sent = (u64, Vec<Vec<u8>>);

/// What a producer knows.
#[derive(Default)]
struct Producer {
    /// Per stream and streamlet.
    sent: HashMap<(StreamId, u32), Sent>,
}

struct World {
    house: House,
    peers: Vec<Peer>,
    producers: Vec<Producer>,
    joined: Vec<Option<JoinedApplication>>,
    leases: Vec<Vec<LeasedGroup>>,
    /// Leases that it has once tried to give up: it may have them or not.
    given_up: Vec<HashSet<u64>>,
    /// It has said which leases it knows of.
    has_told: Vec<bool>,
    /// Sessions whose peers are gone: nobody reads what they answer.
    ghosts: Vec<Peer>,
    /// Correlations that are not answered.
    open: Vec<HashMap<u64, Op>>,
    subscriptions: Vec<HashSet<u64>>,
    /// Writes that are not answered: what was in them.
    writes: Vec<HashMap<u64, Vec<Vec<u8>>>>,
    /// Acknowledged chunks: stream, streamlet and lane, ordinal; producer and sequence.
    acknowledged: BTreeMap<(StreamId, u32, u32, u64), (u64, u64)>,
    positions: HashMap<(StreamletId, u32), (u64, u64)>,
    /// Leases that were there when it was looked, and positions that were compared with earlier ones.
    looked_at: (u64, u64),
}

impl World {
    fn new(order_is_none: bool) -> World {
        let config = BrokerConfig { in_flight_requests_max: 3, snapshot_bytes: 1 << 10, ..config() };
        let house = House::with(config, 2 << 20);
        let shape = if order_is_none { order_none(options(STREAMLETS, 2)) } else { options(STREAMLETS, 2) };
        house.stream(PLAIN, shape.clone());
        house.stream(DURABLE, power(shape));
        let peers = (0..PEERS).map(|_| house.peer_with(100_000)).collect();
        fn each<T: Default>() -> Vec<T> {
            (0..PEERS).map(|_| T::default()).collect()
        }
        World {
            house,
            peers,
            producers: each(),
            joined: each(),
            leases: each(),
            given_up: each(),
            has_told: each(),
            ghosts: Vec::new(),
            open: each(),
            subscriptions: each(),
            writes: each(),
            acknowledged: BTreeMap::new(),
            positions: HashMap::new(),
            looked_at: (0, 0),
        }
    }

    /// A peer whose frame is blocked can send nothing else.
    fn send<M: kera_protocol::Message>(&mut self, peer: usize, message: &M) -> Option<u64> {
        if self.peers[peer].is_blocked() {
            return None;
        }
        self.peers[peer].send(message);
        let correlation = self.peers[peer].correlation;
        self.open[peer].insert(correlation, M::OP);
        Some(correlation)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { peer, durable, streamlet, chunks, again } => {
                self.write(peer, durable, streamlet, chunks, again)
            }
            Step::Read { peer, wait_ms } => {
                let entries: Vec<_> =
                    (0..STREAMLETS).map(|s| entry(PLAIN, s, peer as u32 % 2, Cursor::default())).collect();
                let mut request = read_request(&entries, wait_ms);
                request.min_bytes = wait_ms * 10;
                self.send(peer, &request);
            }
            Step::Subscribe { peer, credit } => {
                let entries = vec![entry(PLAIN, 0, 0, Cursor::default()), entry(DURABLE, 1, 1, Cursor::default())];
                let request = Subscribe { credit_bytes: credit, push_bytes_max: 10_000, entries };
                if let Some(correlation) = self.send(peer, &request) {
                    self.subscriptions[peer].insert(correlation);
                }
            }
            Step::Join { peer } => {
                let member = self.joined[peer].as_ref().map_or(0, |joined| joined.member);
                let request = join_request("report", PLAIN, Start::Earliest);
                self.send(peer, &kera_protocol::JoinApplication { member, ..request });
            }
            Step::Leave { peer } => {
                if let Some(JoinedApplication { application, member, .. }) = self.joined[peer].take() {
                    self.leases[peer].clear();
                    self.send(peer, &LeaveApplication { application, member });
                }
            }
            Step::Reconnect { peer } => self.reconnect(peer),
            Step::NextGroups { peer, max, wait_ms } => {
                if let Some(JoinedApplication { application, member, .. }) = self.joined[peer] {
                    self.send(peer, &NextGroups { application, member, max_groups: max, max_wait_ms: wait_ms });
                }
            }
            Step::Commit { peer, lease, ordinal, after, stale } => self.commit(peer, lease, ordinal, after, stale),
            Step::Heartbeat { peer } => {
                if let Some(JoinedApplication { application, member, .. }) = self.joined[peer] {
                    self.send(peer, &Heartbeat { application, member });
                }
            }
            Step::Reset => {
                let to = Start::Ordinal(3);
                let request = ResetOffsets {
                    application: "report".into(),
                    stream: PLAIN,
                    streamlets: vec![],
                    to,
                    dry_run: false,
                };
                // Meant to move positions.
                self.positions.clear();
                self.send(0, &request);
            }
            Step::Sync => self.house.sink.sync(),
            Step::Advance(ms) => self.house.clock.advance_ms(ms),
            Step::Tick => self.house.broker.tick(),
            Step::Retain => {
                // Only the stream of offsets has anything that may go: the others keep seven days.
                self.house.log.retain(self.house.clock.now_ms());
            }
            Step::Raw { peer, op, body } => self.raw(peer, op, &body),
        }
        self.settle();
    }

    fn write(&mut self, peer: usize, durable: bool, streamlet: u32, chunks: usize, again: bool) {
        if self.peers[peer].is_blocked() {
            return;
        }
        let stream = if durable { DURABLE } else { PLAIN };
        let (next, last) = self.producers[peer].sent.entry((stream, streamlet)).or_default();
        if !again || last.is_empty() {
            *last = (0..chunks as u64)
                .map(|i| {
                    let target = target(stream, streamlet, 1 + peer as u64, *next + i);
                    chunk_of(target, 1 + i as usize, if streamlet == 0 { 2_000 } else { 15_000 })
                })
                .collect();
            *next += chunks as u64;
        }
        let sent = last.clone();
        if let Some(correlation) = self.send(peer, &write_request(&sent, 3_000)) {
            self.writes[peer].insert(correlation, sent);
        }
    }

    fn commit(&mut self, peer: usize, lease: usize, ordinal: u64, after: u8, stale: bool) {
        let Some(JoinedApplication { application, member, .. }) = self.joined[peer] else { return };
        let Some(group) = self.leases[peer].get(lease).copied() else { return };
        let after = [AfterCommit::Keep, AfterCommit::Release, AfterCommit::Done][after as usize];
        let mut entry = commit_entry(&group, group.start, group.start_ordinal + ordinal, after);
        if stale {
            entry.lease = entry.lease.wrapping_sub(1);
        }
        self.send(peer, &CommitOffsets { application, member, entries: vec![entry] });
        if after != AfterCommit::Keep && !stale {
            // It may be refused; then the lease is simply not used again.
            self.given_up[peer].insert(self.leases[peer].remove(lease).lease);
        }
    }

    /// What was asked and not answered is never heard of.
    fn reconnect(&mut self, peer: usize) {
        let back = self.house.peer_with(100_000);
        self.ghosts.push(std::mem::replace(&mut self.peers[peer], back));
        self.open[peer].clear();
        self.subscriptions[peer].clear();
        self.writes[peer].clear();
        let member = self.joined[peer].as_ref().map_or(0, |joined| joined.member);
        let leases = Some(self.leases[peer].iter().map(|group| group.lease).collect());
        let request = join_request("report", PLAIN, Start::Earliest);
        self.send(peer, &kera_protocol::JoinApplication { member, leases, ..request });
        self.has_told[peer] = true;
    }

    fn raw(&mut self, peer: usize, op: usize, body: &[u8]) {
        let served: Vec<Op> = Op::ALL.iter().copied().filter(|op| kera_broker::BrokerSession::serves(*op)).collect();
        let op = served[op % served.len()];
        if self.peers[peer].is_blocked() || op == Op::WriteChunks {
            return;
        }
        self.peers[peer].raw(op, body);
        let correlation = self.peers[peer].correlation;
        self.open[peer].insert(correlation, op);
        if op == Op::Subscribe {
            self.subscriptions[peer].insert(correlation);
        }
    }

    /// Runs every session that has something to do, and looks at what was answered.
    fn settle(&mut self) {
        for ghost in &mut self.ghosts {
            ghost.run(&self.house);
            ghost.frames();
            ghost.session.on_drained(&mut ghost.out);
        }
        for number in 0..PEERS {
            self.peers[number].run(&self.house);
            for frame in self.peers[number].frames() {
                let correlation = frame.header.correlation;
                if frame.header.is_push() {
                    assert!(self.subscriptions[number].contains(&correlation));
                    check_data(&ReadChunksResponse::decode_shared(&frame.body.into()).expect("well-formed"));
                    continue;
                }
                let op = self.open[number].remove(&correlation).expect("answered once, and only if asked");
                assert_eq!(Op::from_u16(frame.header.op), Some(op));
                self.answered(number, op, &frame);
            }
            self.peers[number].drained();
        }
    }

    fn answered(&mut self, peer: usize, op: Op, frame: &Frame) {
        if frame.status() != Status::Ok {
            assert!(!ErrorBody::decode(&frame.body).expect("well-formed").message.is_empty());
            self.writes[peer].remove(&frame.header.correlation);
            if frame.status() == Status::UnknownMember {
                self.joined[peer] = None;
                self.leases[peer].clear();
            }
            return;
        }
        match op {
            Op::WriteChunks => self.acknowledge(peer, frame),
            Op::ReadChunks => check_data(&frame.decode()),
            Op::JoinApplication => {
                let joined: JoinedApplication = frame.decode();
                if self.joined[peer].as_ref().is_none_or(|known| known.member != joined.member) {
                    self.leases[peer].clear();
                    // A new one says it again with its next connection.
                    self.has_told[peer] = false;
                }
                self.joined[peer] = Some(joined);
            }
            Op::NextGroups => self.leases[peer].extend(frame.decode::<LeasedGroups>().groups),
            _ => {}
        }
    }

    fn acknowledge(&mut self, peer: usize, frame: &Frame) {
        let Some(sent) = self.writes[peer].remove(&frame.header.correlation) else { return };
        let results = frame.decode::<WriteChunksResponse>().results;
        assert_eq!(results.len(), sent.len());
        for (bytes, result) in sent.iter().zip(results) {
            let header = *kera_format::ChunkView::parse(bytes).expect("a chunk").header();
            if result.status() == Some(Status::Ok) {
                let place = (header.stream, header.streamlet.0, result.lane.0, result.base_ordinal);
                let who = (header.producer_id.0, header.sequence);
                let before = self.acknowledged.insert(place, who);
                assert!(before.is_none_or(|before| before == who), "one ordinal, one chunk");
            }
        }
    }

    /// No group has two leases; with order `lane` no lane has. Positions only go forward.
    fn check_application(&mut self, order_is_none: bool) {
        let mut peer = self.house.peer();
        peer.send(&DescribeApplication { application: "report".into(), stream: PLAIN });
        let frame = peer.frame();
        if frame.status() != Status::Ok {
            return;
        }
        let described: kera_protocol::ApplicationDescription = frame.decode();
        let mut seen = HashSet::new();
        for lease in &described.leases {
            let group = if order_is_none { lease.group.0 } else { 0 };
            assert!(seen.insert((lease.streamlet, lease.lane, group)), "leased twice: {lease:?}");
            assert!(described.members.iter().any(|member| member.member == lease.member));
        }
        self.check_told(&described);
        self.looked_at.0 += described.leases.len() as u64;
        let held: u32 = described.members.iter().map(|member| member.leases).sum();
        assert_eq!(held as usize, described.leases.len());
        peer.send(&FetchOffsets { application: "report".into(), stream: PLAIN, streamlets: vec![] });
        // What is not durable yet is not told.
        let Some(frame) = peer.frames().pop() else { return };
        let fetched: CommittedOffsets = frame.decode();
        if !order_is_none {
            for offset in fetched.offsets {
                let now = (offset.cursor.group.0, offset.ordinal);
                let before = self.positions.insert((offset.streamlet, offset.lane.0), now);
                assert!(before.is_none_or(|before| before <= now), "{before:?} to {now:?}");
                self.looked_at.1 += u64::from(before.is_some());
            }
        }
    }

    /// A member that has said which leases it knows of, and waits for none, knows of all that it has.
    fn check_told(&self, described: &kera_protocol::ApplicationDescription) {
        for peer in 0..PEERS {
            let Some(joined) = self.joined[peer].as_ref().filter(|_| self.has_told[peer]) else { continue };
            if self.open[peer].values().any(|op| matches!(op, Op::NextGroups | Op::JoinApplication)) {
                continue;
            }
            for lease in described.leases.iter().filter(|lease| lease.member == joined.member) {
                let known = self.leases[peer].iter().any(|group| group.lease == lease.lease);
                assert!(known || self.given_up[peer].contains(&lease.lease), "nobody was told of {lease:?}");
            }
        }
    }

    /// Everything acknowledged is there, once, in the order of its producer.
    fn check_log(&mut self) {
        for stream in [PLAIN, DURABLE] {
            for (streamlet, lane) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                self.check_lane(stream, streamlet, lane);
            }
        }
    }

    fn check_lane(&mut self, stream: StreamId, streamlet: u32, lane: u32) {
        let mut peer = self.house.peer();
        let mut cursor = Cursor::default();
        let mut found: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        loop {
            let answer = peer.call(&read_request(&[entry(stream, streamlet, lane, cursor)], 0));
            let Some((told, data)) = answer.answers.first() else { break };
            assert_eq!(told.status(), Some(Status::Ok));
            for chunk in Chunks::new(data) {
                let chunk = chunk.expect("whole");
                let who = (chunk.header().producer_id.0, chunk.header().sequence);
                found.insert(chunk.broker().expect("stamped").base_ordinal, who);
            }
            cursor = told.next;
        }
        let all: Vec<_> = found.values().copied().collect();
        for producer in 1..=PEERS as u64 {
            let sequences: Vec<u64> = all.iter().filter(|who| who.0 == producer).map(|who| who.1).collect();
            assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{sequences:?}");
        }
        let range = (stream, streamlet, lane, 0)..=(stream, streamlet, lane, u64::MAX);
        for (place, who) in self.acknowledged.range(range) {
            assert_eq!(found.get(&place.3), Some(who), "acknowledged at {place:?}");
        }
    }

    /// Lets all time pass: then everything has been answered.
    fn finish(&mut self) {
        for _ in 0..40 {
            self.house.sink.sync();
            self.house.clock.advance_ms(1_000);
            self.settle();
        }
        for open in &self.open {
            assert!(open.is_empty(), "not answered: {open:?}");
        }
    }
}

fn check_data(response: &ReadChunksResponse) {
    for (_, data) in &response.answers {
        let ordinals = ordinals(data);
        assert!(ordinals.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    }
}

/// Chunks that were acknowledged in all random sequences, leases that were looked at, and positions that were compared with earlier ones.
static ACKNOWLEDGED: AtomicU64 = AtomicU64::new(0);
static LEASED: AtomicU64 = AtomicU64::new(0);
static COMPARED: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    fn random_sequences(steps in steps(), order_is_none in any::<bool>()) {
        let mut world = World::new(order_is_none);
        for step in steps {
            world.step(step);
            world.check_application(order_is_none);
        }
        world.finish();
        world.check_log();
        ACKNOWLEDGED.fetch_add(world.acknowledged.len() as u64, Ordering::Relaxed);
        LEASED.fetch_add(world.looked_at.0, Ordering::Relaxed);
        COMPARED.fetch_add(world.looked_at.1, Ordering::Relaxed);
    }
}

#[test]
fn nothing_breaks_a_promise() {
    random_sequences();
    let [acknowledged, leased, compared] =
        [&ACKNOWLEDGED, &LEASED, &COMPARED].map(|count| count.load(Ordering::Relaxed));
    assert!(
        acknowledged > 96 && leased > 0 && compared > 0,
        "hardly anything is promised: {acknowledged} chunks, {leased} leases, {compared} positions compared"
    );
}
