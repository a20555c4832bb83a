//! A replicated log with real backups on simulated disks, a coordinator that keeps to its rules, and a network that loses,
//! doubles, delays and reorders: whatever happens, what is acknowledged is at every backup of its view, and nothing is
//! acknowledged after the fence that recovery does not find.
//!
//! The faults that it must survive: any message lost, doubled, late or overtaken by others; a backup killed and started again
//! at any moment, or gone for good while there are others; the broker declared lost at any moment, rightly or not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use kera_backup::{Backup, BackupConfig, BackupError, StoreDone, Taken};
use kera_env::{Clock, Disk, FaultyDisk, ManualClock, MemoryDisk, SeededRandom};
use kera_format::chunk::Chunks;
use kera_format::cluster::Rack;
use kera_format::vlog_replica::LogId;
use kera_format::{ChunkView, LaneId, StreamletId};
use kera_log::{Arena, ArenaConfig, CopiedAgain, DurabilitySink, Log, LogConfig, Observer, SinkErrorKind, Ticket};
use kera_protocol::{BlockStored, ListReplicas, LogView, ReadBlocks, ReleaseBlocks, Status, StoreHead, StoreOutcome};
use kera_vlog::{Answer, BackupId, BackupLink, Block, ReplicatedConfig, ReplicatedLog, Turn, View, ViewAnswer, Views};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::{Calls, NODE, STREAM, STREAMLETS, chunk, options, text_of};

const CLUSTER: [u8; 16] = *b"cluster-16-bytes";
const LOG: LogId = LogId { node: 1, epoch: 7, vlog: 0 };
const BACKUPS: u32 = 5;

/// What the log has said and nobody has heard yet.
#[derive(Default)]
struct Said {
    blocks: Vec<(BackupId, StoreHead, Vec<u8>)>,
    asked: Vec<View>,
    released: Vec<(BackupId, u64)>,
    given_up: Vec<u32>,
    fenced: u32,
    candidates: Vec<BackupId>,
    racks: HashMap<BackupId, Rack>,
    /// The content that each block was sent with first.
    contents: BTreeMap<u64, Vec<u8>>,
}

#[derive(Default)]
struct Net(Mutex<Said>);

impl Net {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().expect("no panic")
    }
}

impl BackupLink for Net {
    fn send(&self, to: BackupId, view: &View, block: &Arc<Block>) {
        let asks = Block::asks(block.number);
        assert!(asks || view.backups.contains(&to), "block {} goes to {to}, which is not in {view:?}", block.number);
        let bytes: Vec<u8> = block.parts.iter().flat_map(|part| part.iter().copied()).collect();
        assert_eq!(bytes.len(), block.chunk_bytes as usize);
        let mut said = self.said();
        if !asks {
            let first = said.contents.entry(block.number).or_insert_with(|| bytes.clone());
            assert_eq!(*first, bytes, "block {} has two contents", block.number);
        }
        let head = StoreHead {
            cluster: CLUSTER,
            log: block.log,
            view: view.number,
            view_first: view.first,
            block: block.number,
            written_ms: block.written_ms,
            chunk_count: block.chunk_count,
            chunk_bytes: block.chunk_bytes,
            chunks_checksum: block.chunks_checksum,
            flags: 0,
        };
        said.blocks.push((to, head, bytes));
    }

    fn release(&self, to: BackupId, _: LogId, through: u64) {
        self.said().released.push((to, through));
    }
}

impl Views for Net {
    fn candidates(&self, _: LogId) -> Vec<(BackupId, Rack)> {
        let said = self.said();
        said.candidates.iter().map(|backup| (*backup, said.racks.get(backup).copied().unwrap_or_default())).collect()
    }
    fn ask(&self, _: LogId, view: &View) {
        self.said().asked.push(view.clone());
    }
    fn fenced(&self, _: LogId) {
        self.said().fenced += 1;
    }
    fn give_up_view(&self, _: LogId, view: u32) {
        self.said().given_up.push(view);
    }
}

/// What backups answer, by the block's number.
#[derive(Default)]
struct Heard(Mutex<Vec<(u64, Result<BlockStored, BackupError>)>>);

impl StoreDone for Heard {
    fn stored(&self, token: u64, result: Result<BlockStored, BackupError>) {
        self.0.lock().expect("no panic").push((token, result));
    }
    fn room(&self) {}
}

/// Lives that backups have begun: a later one has a larger number.
static LIVES: AtomicU64 = AtomicU64::new(1);

struct Node {
    disk: FaultyDisk,
    backup: Option<Arc<Backup>>,
    life: u64,
    heard: Arc<Heard>,
}

impl Node {
    fn new() -> Node {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        let mut node = Node { disk, backup: None, life: 0, heard: Arc::default() };
        node.start(1);
        node
    }

    fn start(&mut self, seed: u64) {
        let config = BackupConfig { file_bytes: 32 << 10, ..BackupConfig::new(CLUSTER, 2) };
        let disks = vec![Arc::new(self.disk.clone()) as Arc<dyn Disk>];
        let clock = Arc::new(ManualClock::new(5));
        let (backup, report) = Backup::open(config, disks, clock, Arc::new(SeededRandom::new(seed))).expect("open");
        assert_eq!(report.damage, [""; 0]);
        (self.backup, self.life) = (Some(backup), LIVES.fetch_add(1, Ordering::Relaxed));
    }

    fn has(&self, block: u64) -> bool {
        let Some(backup) = &self.backup else { return false };
        let list = backup.list(&ListReplicas { after: None, limit: 0 });
        let mut ranges = list.replicas.iter().filter(|replica| replica.log == LOG).flat_map(|replica| &replica.blocks);
        ranges.any(|range| range.first <= block && block <= range.last)
    }

    fn content(&self, block: u64) -> Vec<u8> {
        let backup = self.backup.as_ref().expect("started");
        let asked =
            ReadBlocks { log: LOG, from_block: block, through_block: block, streamlets: Vec::new(), max_bytes: 1 };
        let read = backup.read_blocks(&asked).expect("read");
        assert_eq!(read.blocks.len(), 1, "block {block}");
        read.blocks[0].1.to_vec()
    }
}

/// The coordinator's part: views, the fence, the end.
struct Coordinator {
    views: Vec<View>,
    fenced: bool,
    end: Option<u64>,
}

impl Coordinator {
    fn answer(&mut self, asked: &View) -> ViewAnswer {
        let newest = self.views.last().expect("a first view");
        if asked == newest {
            return ViewAnswer::Agreed(asked.clone());
        }
        if self.fenced {
            return ViewAnswer::Fenced;
        }
        if asked.number != newest.number + 1 {
            return ViewAnswer::Refused { asked: asked.clone(), newest: newest.clone() };
        }
        self.views.push(asked.clone());
        ViewAnswer::Agreed(asked.clone())
    }

    fn view_of(&self, block: u64) -> &View {
        self.views.iter().rfind(|view| view.first <= block).expect("a view")
    }
}

/// A backup, and which of its lives.
type From = (BackupId, u64);

struct World {
    rng: StdRng,
    log: Arc<Log>,
    replicated: Arc<ReplicatedLog>,
    clock: Arc<ManualClock>,
    net: Arc<Net>,
    nodes: BTreeMap<BackupId, Node>,
    coordinator: Coordinator,
    /// On their way: to backups, from them, to the coordinator, from it.
    to_backups: Vec<(BackupId, StoreHead, Vec<u8>)>,
    from_backups: Vec<(From, u64, Answer)>,
    to_coordinator: Vec<View>,
    from_coordinator: Vec<ViewAnswer>,
    tickets: Vec<(Ticket, u32, String)>,
    /// The last ticket of what was copied again.
    copied: Ticket,
    checked: u64,
    gone: BTreeSet<BackupId>,
    loses: bool,
    _arena: tempfile::TempDir,
}

fn config() -> ReplicatedConfig {
    ReplicatedConfig {
        block_bytes_max: 600,
        blocks_under_way_max: 3,
        stretch_bytes: 2000,
        ..ReplicatedConfig::new(LOG, 3)
    }
}

impl World {
    fn new(seed: u64, config: ReplicatedConfig) -> World {
        World::begin(seed, config, View { number: 1, first: 1, backups: vec![1, 2] })
    }

    /// One whose log begins with this view.
    fn begin(seed: u64, config: ReplicatedConfig, first: View) -> World {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let arena = ArenaConfig { path: folder.path().join("arena"), bytes: 16 << 20, node: NODE };
        let (arena, _) = Arena::create_or_attach(arena).expect("arena");
        let log = Log::new(LogConfig::default(), arena);
        let net = Arc::new(Net::default());
        net.said().candidates = (1..=BACKUPS).collect();
        let clock = Arc::new(ManualClock::new(1_000_000));
        let replicated = ReplicatedLog::new(
            config,
            first.clone(),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::clone(&net) as Arc<dyn BackupLink>,
            Arc::clone(&net) as Arc<dyn Views>,
        );
        log.set_sinks(Arc::new(vec![Arc::clone(&replicated) as Arc<dyn DurabilitySink>]));
        log.create_stream(STREAM, options()).expect("stream");
        log.recover(Vec::new(), Vec::new());
        log.finish_recovery(1);
        World {
            rng: StdRng::seed_from_u64(seed),
            log,
            replicated,
            clock,
            net,
            nodes: (1..=BACKUPS).map(|id| (id, Node::new())).collect(),
            coordinator: Coordinator { views: vec![first], fenced: false, end: None },
            to_backups: Vec::new(),
            from_backups: Vec::new(),
            to_coordinator: Vec::new(),
            from_coordinator: Vec::new(),
            tickets: Vec::new(),
            copied: 0,
            checked: 0,
            gone: BTreeSet::new(),
            loses: true,
            _arena: folder,
        }
    }

    fn append(&mut self) -> bool {
        let streamlet = self.rng.random_range(0..STREAMLETS);
        let text = format!("{} {}", self.tickets.len(), "x".repeat(self.rng.random_range(0..300)));
        let bytes = chunk(streamlet, &text);
        let view = ChunkView::parse(&bytes).expect("chunk");
        let stream = self.log.stream(STREAM).expect("stream");
        let lane =
            Arc::clone(stream.streamlet(StreamletId(streamlet)).expect("streamlet").lane(LaneId(0)).expect("lane"));
        match lane.append(&view, self.clock.now_ms()) {
            Ok(appended) => {
                self.tickets.push((appended.ticket.expect("not durable yet"), streamlet, text));
                true
            }
            Err(_) => false,
        }
    }

    /// The log does what it can, and what it says goes on its way.
    fn turn(&mut self) -> Turn {
        let turn = self.replicated.run_once();
        let mut said = self.net.said();
        self.to_backups.append(&mut said.blocks);
        self.to_coordinator.append(&mut said.asked);
        drop(said);
        self.check();
        turn
    }

    /// One of the messages: the oldest mostly; sometimes it stays as well, or is lost.
    fn pick<T: Clone>(rng: &mut StdRng, loses: bool, from: &mut Vec<T>) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let at = if loses && rng.random_ratio(1, 4) { rng.random_range(0..from.len()) } else { 0 };
        match rng.random_range(0..20) {
            0 if loses => {
                from.remove(at);
                None
            }
            1 if loses => Some(from[at].clone()),
            _ => Some(from.remove(at)),
        }
    }

    fn deliver_block(&mut self) {
        let Some((to, head, bytes)) = Self::pick(&mut self.rng, self.loses, &mut self.to_backups) else { return };
        let Some(Node { backup: Some(backup), heard, life, .. }) = self.nodes.get(&to) else {
            // Nobody is there: a connection that cannot be made tells so, sometimes.
            if self.rng.random_ratio(1, 3) {
                self.replicated.broken(to, "nobody listens".into());
            }
            return;
        };
        let done = Arc::clone(heard) as Arc<dyn StoreDone>;
        match backup.store(&head, &bytes, &done, head.block) {
            Taken::Answered(answer) => self.from_backups.push(((to, *life), head.block, answer_of(Ok(answer)))),
            Taken::Refused(error) => self.from_backups.push(((to, *life), head.block, answer_of(Err(error)))),
            Taken::Queued => {}
            Taken::Full => panic!("so much does not fit into a test"),
        }
    }

    /// A turn, and what comes of it if the log asks who is there: all that are answer at once.
    fn turn_and_ask(&mut self) {
        self.turn();
        let (questions, blocks) =
            std::mem::take(&mut self.to_backups).into_iter().partition(|(_, head, _)| Block::asks(head.block));
        let questions: Vec<(BackupId, StoreHead, Vec<u8>)> = questions;
        self.to_backups = blocks;
        for (to, head, bytes) in questions {
            let Some(Node { backup: Some(backup), heard, life, .. }) = self.nodes.get(&to) else { continue };
            let done = Arc::clone(heard) as Arc<dyn StoreDone>;
            let Taken::Answered(answer) = backup.store(&head, &bytes, &done, 0) else { panic!("it waits for a disk") };
            self.replicated.answered(to, *life, head.block, answer_of(Ok(answer)));
        }
        self.turn();
    }

    /// A backup writes what it has taken, and answers.
    fn write(&mut self, id: BackupId) {
        let Some(Node { backup: Some(backup), heard, life, .. }) = self.nodes.get(&id) else { return };
        backup.run_once(0);
        for (block, result) in heard.0.lock().expect("no panic").drain(..) {
            self.from_backups.push(((id, *life), block, answer_of(result)));
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..=13 => {
                self.append();
            }
            14 => self.copy_some(),
            15..=39 => {
                self.turn();
            }
            40..=59 => self.deliver_block(),
            60..=74 => {
                let id = self.rng.random_range(1..=BACKUPS);
                self.write(id);
            }
            75..=87 => {
                if let Some((from, block, answer)) = Self::pick(&mut self.rng, self.loses, &mut self.from_backups) {
                    self.replicated.answered(from.0, from.1, block, answer);
                }
            }
            88..=90 => {
                if let Some(asked) = Self::pick(&mut self.rng, self.loses, &mut self.to_coordinator) {
                    let answer = self.coordinator.answer(&asked);
                    self.from_coordinator.push(answer);
                }
            }
            91..=93 => {
                if let Some(answer) = Self::pick(&mut self.rng, self.loses, &mut self.from_coordinator) {
                    self.replicated.view_answered(answer);
                }
            }
            94..=96 => self.clock.advance_ms(self.rng.random_range(1..120)),
            97 => self.kill(),
            98 => self.start(),
            _ => {
                if self.rng.random_ratio(1, 8) {
                    let id = self.rng.random_range(1..=BACKUPS);
                    self.replicated.broken(id, "cut".into());
                }
            }
        }
    }

    /// Copies some segment again, for nobody.
    fn copy_some(&mut self) {
        let stream = self.log.stream(STREAM).expect("stream");
        let segments = stream.streamlets().flat_map(|streamlet| self.log.segments_before(streamlet, u32::MAX));
        let segments: Vec<_> = segments.collect();
        if segments.is_empty() {
            return;
        }
        let id = segments[self.rng.random_range(0..segments.len())];
        if let CopiedAgain::Given(ticket, _) = self.log.copy_again(id, &*self.replicated.behind()) {
            assert!(ticket > self.copied, "tickets rise");
            self.copied = ticket;
        }
    }

    /// A process dies: what it had not written is gone, what it had written is not.
    fn kill(&mut self) {
        let id = self.rng.random_range(1..=BACKUPS);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.backup = None;
            node.heard = Arc::default();
        }
        if self.rng.random() {
            self.replicated.broken(id, "killed".into());
        }
    }

    fn start(&mut self) {
        let id = self.rng.random_range(1..=BACKUPS);
        let seed = self.rng.random();
        if self.gone.contains(&id) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.backup.is_none()) {
            node.start(seed);
        }
    }

    /// The broker is declared lost: by the coordinator first, then at a backup of the newest view, which is asked how far it is.
    fn fence(&mut self) {
        self.coordinator.fenced = true;
        for id in 1..=BACKUPS {
            let seed = self.rng.random();
            if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.backup.is_none()) {
                node.start(seed);
            }
        }
        let newest = self.coordinator.views.last().expect("a view").clone();
        let asked = newest.backups[self.rng.random_range(0..newest.backups.len())];
        let views = [LogView { vlog: LOG.vlog, first_block: newest.first }];
        let node = self.nodes.get_mut(&asked).expect("a node");
        let end = node.backup.as_ref().expect("started").fence(LOG.node, LOG.epoch, &views).expect("fenced")[0].through;
        self.coordinator.end = Some(end);
        self.check();
    }

    /// Everything that is acknowledged is at every backup of its view, with the content that it was sent with.
    fn check(&mut self) {
        let (acknowledged, _) = self.replicated.state();
        if let Some(end) = self.coordinator.end {
            assert!(acknowledged <= end, "block {acknowledged} is acknowledged, the log ends at {end}");
        }
        for block in self.checked + 1..=acknowledged {
            self.check_block(block);
        }
        self.checked = self.checked.max(acknowledged);
        let durable = self.replicated.durable_through() + self.replicated.behind().durable_through();
        let tickets: u64 = (1..=acknowledged).map(|block| chunks_in(&self.net.said().contents[&block])).sum();
        assert_eq!(durable, tickets, "tickets are durable as far as blocks are acknowledged");
    }

    fn check_block(&self, block: u64) {
        let view = self.coordinator.view_of(block);
        let content = self.net.said().contents[&block].clone();
        for id in &view.backups {
            let node = &self.nodes[id];
            // A process that is down has what it had.
            if node.backup.is_some() {
                assert!(node.has(block), "block {block} is acknowledged, backup {id} of {view:?} has it not");
                assert_eq!(node.content(block), content, "block {block} at backup {id}");
            }
        }
    }

    /// Everybody is there and nothing is lost any more: all that was appended becomes durable.
    fn heal(&mut self) {
        self.loses = false;
        for id in 1..=BACKUPS {
            let seed = self.rng.random();
            if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.backup.is_none() && !self.gone.contains(&id))
            {
                node.start(seed);
            }
        }
        let last = self.tickets.last().map_or(0, |(ticket, ..)| *ticket);
        self.heal_to(&*self.replicated.clone(), last);
        self.heal_to(&*self.replicated.behind(), self.copied);
    }

    fn heal_to(&mut self, sink: &dyn DurabilitySink, last: Ticket) {
        for _ in 0..5000 {
            if sink.durable_through() >= last && self.to_coordinator.is_empty() {
                return;
            }
            self.round();
        }
        panic!("{last} tickets, {:?}, {:?}", self.replicated.stats(), self.replicated.state());
    }

    /// A turn, and all that is said comes and is answered.
    fn round(&mut self) {
        self.turn();
        while !self.to_backups.is_empty() {
            self.deliver_block();
        }
        (1..=BACKUPS).for_each(|id| self.write(id));
        for (from, block, answer) in std::mem::take(&mut self.from_backups) {
            self.replicated.answered(from.0, from.1, block, answer);
        }
        for asked in std::mem::take(&mut self.to_coordinator) {
            let answer = self.coordinator.answer(&asked);
            self.replicated.view_answered(answer);
        }
        for answer in std::mem::take(&mut self.from_coordinator) {
            self.replicated.view_answered(answer);
        }
        self.clock.advance_ms(50);
    }

    /// Copies again what the log wants to have copied, as a node does. Returns the number of segments.
    fn copy_again(&mut self, lacks: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool) -> usize {
        let mut copied = 0;
        loop {
            let wanted = self.replicated.to_copy_again(3, &HashSet::new(), lacks);
            let since = self.replicated.next_block();
            let given: Vec<_> = wanted
                .iter()
                .filter_map(|id| match self.log.copy_again(*id, &*self.replicated.behind()) {
                    CopiedAgain::Given(ticket, _) => Some((*id, ticket)),
                    CopiedAgain::Later => None,
                    other => panic!("{id}: {other:?}"),
                })
                .collect();
            if wanted.is_empty() {
                return copied;
            }
            let last = given.iter().map(|(_, ticket)| *ticket).max().unwrap_or(0);
            self.heal_to(&*self.replicated.behind(), last);
            given.iter().for_each(|(id, _)| self.replicated.copied_again(*id, since));
            copied += given.len();
        }
    }

    /// Readers see what is acknowledged, in its order.
    fn check_readers(&self) {
        for streamlet in 0..STREAMLETS {
            let durable = self.replicated.durable_through();
            let expected: Vec<&String> = self
                .tickets
                .iter()
                .filter(|(ticket, of, _)| *of == streamlet && *ticket <= durable)
                .map(|(.., text)| text)
                .collect();
            let stream = self.log.stream(STREAM).expect("stream");
            let lane =
                Arc::clone(stream.streamlet(StreamletId(streamlet)).expect("streamlet").lane(LaneId(0)).expect("lane"));
            let (mut cursor, mut texts) = (lane.earliest().0, Vec::new());
            loop {
                let read = lane.read(cursor, 1 << 20, true).expect("read");
                for data in &read.data {
                    texts.extend(Chunks::new(data).map(|chunk| text_of(&chunk.expect("chunk"))));
                }
                if read.at_durable_end {
                    break;
                }
                cursor = read.next;
            }
            assert_eq!(texts.iter().collect::<Vec<_>>(), expected, "streamlet {streamlet}");
        }
    }
}

fn chunks_in(content: &[u8]) -> u64 {
    Chunks::new(content).map(|chunk| u64::from(chunk.is_ok())).sum()
}

fn answer_of(result: Result<BlockStored, BackupError>) -> Answer {
    match result {
        Ok(BlockStored { outcome: StoreOutcome::Stored, block }) => Answer::Stored(block),
        Ok(BlockStored { outcome: StoreOutcome::Fenced, block }) => Answer::Fenced(block as u32),
        Ok(BlockStored { outcome: StoreOutcome::Next, block }) => Answer::Next(block),
        Err(error) if error.status == Status::Overloaded => Answer::Busy(error.reason),
        Err(error) => Answer::Refused(error.reason),
    }
}

#[test]
fn what_is_acknowledged_is_at_every_backup_of_its_view() {
    let mut blocks = 0;
    for seed in 0..150 {
        let mut world = World::new(seed, config());
        for _ in 0..world.rng.random_range(100..1200) {
            world.step();
        }
        world.heal();
        world.check_readers();
        (1..=world.checked).for_each(|block| world.check_block(block));
        blocks += world.checked;
    }
    assert!(blocks > 150, "hardly anything is acknowledged: {blocks} blocks");
}

#[test]
fn nothing_is_acknowledged_that_the_fence_has_not_found() {
    let mut blocks = 0;
    for seed in 1000..1250 {
        let mut world = World::new(seed, config());
        for _ in 0..world.rng.random_range(50..800) {
            world.step();
        }
        world.fence();
        let asked_after = world.rng.random_range(50..600);
        for _ in 0..asked_after {
            world.step();
        }
        // Recovery can read all of it at the backups of each view.
        world.loses = false;
        let end = world.coordinator.end.expect("decided");
        let (acknowledged, _) = world.replicated.state();
        assert!(acknowledged <= end, "seed {seed}");
        world.check_readers();
        blocks += acknowledged;
    }
    assert!(blocks > 250, "hardly anything is acknowledged: {blocks} blocks");
}

#[test]
fn a_fenced_log_says_so_to_all_who_wait_and_takes_nothing() {
    let mut world = World::new(1, config());
    for _ in 0..10 {
        world.append();
    }
    let calls = Arc::new(Calls::default());
    let observer = Arc::clone(&calls) as Arc<dyn Observer>;
    let last = world.tickets[9].0;
    assert!(world.replicated.wait(last, &observer, 5));
    world.turn();
    world.replicated.answered(2, 1, 1, Answer::Fenced(7));
    assert_eq!(world.turn(), Turn::Fenced);
    assert_eq!(calls.tokens(), [5]);
    assert_eq!(world.net.said().fenced, 1);
    let error = world.replicated.healthy().expect_err("fenced");
    assert_eq!(error.kind, SinkErrorKind::Fenced);
    assert!(!world.append(), "nothing is taken");
    // Answers that come late change nothing.
    for block in 1..=10 {
        world.replicated.answered(1, 1, block, Answer::Stored(block));
        world.replicated.answered(2, 1, block, Answer::Stored(block));
    }
    assert_eq!(world.turn(), Turn::Fenced);
    assert_eq!(world.replicated.durable_through(), 0);
    assert_eq!(world.net.said().fenced, 1);
}

#[test]
fn a_backup_that_is_gone_is_replaced_from_the_last_acknowledged_block_on() {
    let mut world = World::new(2, config());
    world.loses = false;
    for _ in 0..6 {
        world.append();
    }
    world.heal();
    let (acknowledged, before) = world.replicated.state();
    assert!(acknowledged > 0);
    world.nodes.get_mut(&2).expect("a node").backup = None;
    world.gone.insert(2);
    for _ in 0..6 {
        world.append();
    }
    world.heal();
    let (after, view) = world.replicated.state();
    assert_eq!((view.number, view.first), (before.number + 1, acknowledged + 1));
    assert!(!view.backups.contains(&2) && view.backups.len() == 2 && after > acknowledged, "{view:?}");
    let stats = world.replicated.stats();
    assert_eq!((stats.under_replicated, stats.views_changed), (acknowledged, 1));
    world.check_readers();
}

#[test]
fn what_a_backup_has_answered_does_not_count_in_the_next_view_for_it_may_have_lost_it() {
    let mut world = World::new(12, config());
    world.loses = false;
    world.append();
    world.turn();
    world.to_backups.retain(|(to, ..)| *to == 2);
    world.deliver_block();
    world.write(2);
    let (from, block, answer) = world.from_backups.pop().expect("it answers");
    world.replicated.answered(from.0, from.1, block, answer);
    // Its machine loses its power before the block is synced, and comes back. The other one is gone, and has never answered.
    world.nodes.insert(2, Node::new());
    world.nodes.get_mut(&1).expect("a node").backup = None;
    world.gone.insert(1);
    world.net.said().candidates = vec![2];
    world.replicated.broken(1, "node 1 does not answer".into());
    for _ in 0..100 {
        world.turn_and_ask();
        for asked in std::mem::take(&mut world.to_coordinator) {
            let answer = world.coordinator.answer(&asked);
            world.replicated.view_answered(answer);
        }
        world.clock.advance_ms(50);
    }
    assert_eq!(world.replicated.state().1.backups, [2]);
    assert_eq!(world.replicated.durable_through(), 0, "nobody but the writer has it");
    world.heal();
    assert!(world.nodes[&2].has(1));
}

#[test]
fn writes_wait_when_there_are_too_few_copies_and_say_so() {
    let mut world = World::new(3, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    for id in [1, 2] {
        world.nodes.get_mut(&id).expect("a node").backup = None;
    }
    world.append();
    world.turn();
    for id in [1, 2] {
        world.replicated.broken(id, format!("node {id} does not answer"));
    }
    world.clock.advance_ms(1);
    world.replicated.run_once();
    world.clock.advance_ms(1);
    assert_eq!(world.replicated.durable_through(), 0);
    // They come back: nobody was asked for a view with fewer copies than the least, and nothing was lost.
    world.heal();
    assert_eq!(world.coordinator.views.len(), 1);
    assert_eq!(world.replicated.durable_through(), 1);
    assert!(world.replicated.healthy().is_ok());
}

/// They are tried again and again meanwhile, and look healthy for a moment each time.
#[test]
fn too_few_copies_are_told_apart_from_too_much_that_waits_when_they_have_been_too_few_for_long() {
    let mut world = World::new(3, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    for id in [1, 2] {
        world.nodes.get_mut(&id).expect("a node").backup = None;
    }
    world.append();
    let mut told = Vec::new();
    for _ in 0..200 {
        world.turn();
        world.to_backups.clear();
        let few = world.replicated.healthy().is_err_and(|error| error.kind == SinkErrorKind::TooFewCopies);
        told.push(few);
        for id in [1, 2] {
            world.replicated.broken(id, format!("node {id} does not answer"));
        }
        world.clock.advance_ms(50);
    }
    let first = told.iter().position(|few| *few).expect("it is told");
    // For five seconds, and as long as a turn or two take, one that is replaced or started again may yet come.
    assert!((100..105).contains(&first) && told[first..].iter().all(|few| *few), "{first} {told:?}");
    world.heal();
    assert_eq!(world.replicated.durable_through(), 1);
    assert!(world.replicated.healthy().is_ok());
    // What is appended after a while has not waited for long, whatever was before.
    world.clock.advance_ms(60_000);
    assert!(world.append());
    world.turn();
    assert!(world.replicated.healthy().is_ok());
}

/// Nothing is taken of a log that has never had a view, and so nothing waits that would be late.
#[test]
fn too_few_copies_are_told_of_a_log_that_has_never_had_backups_until_it_has_some() {
    let mut world = World::begin(5, config(), View::NONE);
    world.loses = false;
    world.net.said().candidates.clear();
    let mut told = Vec::new();
    for _ in 0..200 {
        world.round();
        told.push(world.replicated.healthy().expect_err("nobody is there").kind == SinkErrorKind::TooFewCopies);
    }
    let first = told.iter().position(|few| *few).expect("it is told");
    // As where they are gone.
    assert!((100..105).contains(&first) && told[first..].iter().all(|few| *few), "{first} {told:?}");
    assert!(!world.append(), "nothing is taken meanwhile");
    world.net.said().candidates = vec![1, 2];
    (0..100).for_each(|_| world.round());
    assert!(world.replicated.healthy().is_ok());
    assert_eq!(world.replicated.state().1.backups, [1, 2]);
    assert!(world.append());
    world.heal();
    assert!(world.replicated.durable_through() > 0);
}

/// They take all blocks, and never come to an answer: what was sent again ten times a second was kept for as long, at both ends.
#[test]
fn backups_that_never_answer_and_that_nobody_can_replace_are_sent_to_less_and_less_often() {
    let mut world = World::new(3, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    while world.to_backups.len() < 6 {
        world.append();
        world.turn();
    }
    assert_eq!(world.to_backups.len(), 6, "three blocks to each of two");
    let mut rounds = 0;
    for _ in 0..1200 {
        world.to_backups.clear();
        world.clock.advance_ms(50);
        world.turn();
        rounds += world.to_backups.iter().filter(|(to, head, _)| *to == 1 && head.block == 1).count();
    }
    assert!((10..=20).contains(&rounds), "{rounds} in a minute");
    // Then they do.
    world.to_backups.clear();
    world.clock.advance_ms(5050);
    world.turn();
    world.heal();
    assert_eq!(world.replicated.durable_through(), world.tickets.last().expect("one").0);
    assert_eq!(world.coordinator.views.len(), 1);
}

#[test]
fn who_waits_for_copies_while_nothing_is_on_its_way_is_called_when_there_are_enough() {
    let mut world = World::new(3, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    // The first time they are tried again at once.
    for _ in 0..2 {
        for id in [1, 2] {
            world.replicated.broken(id, format!("node {id} does not answer"));
        }
        world.replicated.run_once();
    }
    assert_eq!(world.replicated.healthy().expect_err("no copies").kind, SinkErrorKind::Behind);
    // As a session does whose chunk was not taken.
    let calls = Arc::new(Calls::default());
    let observer = Arc::clone(&calls) as Arc<dyn Observer>;
    assert!(world.replicated.wait(world.replicated.durable_through() + 1, &observer, 5));
    world.clock.advance_ms(200);
    world.replicated.run_once();
    assert!(world.replicated.healthy().is_ok());
    assert_eq!(calls.tokens(), [5]);
}

#[test]
fn with_one_backup_left_the_view_is_smaller_and_grows_again() {
    let mut world = World::new(4, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    world.append();
    world.heal();
    world.nodes.get_mut(&1).expect("a node").backup = None;
    world.gone.insert(1);
    world.append();
    world.heal();
    assert_eq!(world.replicated.state().1.backups, [2]);
    assert_eq!(world.replicated.stats().copies, 2);
    world.net.said().candidates = vec![2, 3];
    world.clock.advance_ms(1000);
    for _ in 0..4 {
        world.append();
        world.heal();
        world.clock.advance_ms(200);
    }
    assert_eq!(world.replicated.state().1.backups, [2, 3]);
}

/// As that of a stream which is made while a node is down.
#[test]
fn a_log_that_begins_with_fewer_backups_has_all_of_it_at_the_missing_one_when_that_is_there() {
    let config = ReplicatedConfig { copy_again_after_us: 400_000, ..config() };
    let mut world = World::begin(9, config, View::NONE);
    world.loses = false;
    world.net.said().candidates = vec![2];
    (0..100).for_each(|_| world.round());
    assert_eq!(world.replicated.state().1.backups, [2]);
    while world.tickets.len() < 20 {
        world.append();
        world.heal();
    }
    let acknowledged = world.replicated.state().0;
    assert!(acknowledged > 0 && world.replicated.stats().under_replicated > 0);
    world.net.said().candidates = vec![2, 3];
    (0..100).for_each(|_| world.round());
    let (_, view) = world.replicated.state();
    assert_eq!((view.backups, view.first), (vec![2, 3], acknowledged + 1));
    assert!(world.replicated.stats().under_replicated > 0, "what is before it has a copy less");
    assert!(world.copy_again(&|_, _| false) > 0);
    world.turn();
    assert_eq!((world.replicated.stats().under_replicated, world.net.said().given_up.clone()), (0, vec![1]));
    let contents = world.net.said().contents.clone();
    let mut texts = BTreeSet::new();
    for (block, content) in contents.range(view.first..) {
        assert!(world.nodes[&3].has(*block), "block {block}");
        texts.extend(Chunks::new(content).map(|chunk| text_of(&chunk.expect("chunk"))));
    }
    assert_eq!(world.tickets.iter().filter(|(.., text)| !texts.contains(text)).count(), 0);
    world.check_readers();
}

#[test]
fn a_lost_backup_that_nothing_was_sent_to_is_in_no_next_view() {
    let mut world = World::new(4, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    world.append();
    world.heal();
    world.nodes.get_mut(&1).expect("a node").backup = None;
    world.gone.insert(1);
    world.append();
    world.heal();
    assert_eq!(world.replicated.state().1.backups, [2]);
    // The coordinators know that it is lost, and agree to no view with it.
    world.net.said().candidates = vec![3];
    for _ in 0..4 {
        world.clock.advance_ms(1000);
        world.turn_and_ask();
        world.heal();
    }
    assert_eq!(world.replicated.state().1.backups, [3]);
}

/// Nothing is written, and the coordinators do not know yet that a machine burned: what is named by the next view must have answered.
fn burns(world: &mut World, id: BackupId) {
    world.nodes.get_mut(&id).expect("a node").backup = None;
    world.gone.insert(id);
}

/// Turns for so long, with all that are there answering what they are asked.
fn pass(world: &mut World, ms: u64) {
    for _ in 0..ms / 25 {
        world.turn_and_ask();
        world.clock.advance_ms(25);
    }
}

#[test]
fn a_backup_that_burned_a_moment_ago_is_in_no_next_view_although_it_was_in_the_last_one() {
    let mut world = World::new(4, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    world.append();
    world.heal();
    burns(&mut world, 2);
    world.replicated.broken(1, "the coordinators have fenced it".into());
    world.net.said().candidates = vec![2];
    pass(&mut world, 3000);
    assert_eq!(world.to_coordinator, [], "nobody could show the end of the log");
    // The other one is back, and has what it had.
    world.net.said().candidates = vec![1, 2];
    world.clock.advance_ms(3000);
    world.append();
    pass(&mut world, 600);
    world.heal();
    assert_eq!(world.replicated.state().1.backups, [1]);
}

#[test]
fn a_candidate_that_burned_a_moment_ago_is_in_no_view_and_the_next_one_is() {
    let mut world = World::new(4, config());
    world.loses = false;
    world.append();
    world.heal();
    burns(&mut world, 3);
    world.replicated.broken(1, "node 1 does not answer".into());
    world.net.said().candidates = vec![2, 3, 4, 5];
    pass(&mut world, 75);
    assert_eq!(world.to_coordinator, [], "it may answer");
    pass(&mut world, 75);
    assert_eq!(world.to_coordinator.first().map(|view| &view.backups[..]), Some(&[2, 4][..]));
}

/// Writes would wait for one that was replaced a moment ago and is back. It is taken, since there is no other and it answers.
#[test]
fn who_was_replaced_a_moment_ago_is_taken_before_writes_wait() {
    let mut world = World::new(4, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2, 3];
    world.append();
    world.heal();
    world.replicated.broken(2, "node 2 does not answer".into());
    world.turn_and_ask();
    world.heal();
    world.turn();
    assert_eq!(world.replicated.state().1.backups, [1, 3]);
    for id in [1, 3, 4] {
        burns(&mut world, id);
        world.replicated.broken(id, format!("node {id} does not answer"));
    }
    world.net.said().candidates = vec![2, 4];
    world.append();
    pass(&mut world, 300);
    assert_eq!(world.to_coordinator.first().map(|view| &view.backups[..]), Some(&[2][..]));
    world.heal();
    assert_eq!(world.replicated.durable_through(), 2);
}

/// Backups 1 and 2 of the first view are in different racks, 3 is in that of 2, and 4 in a third one.
fn in_racks(world: &mut World) {
    world.net.said().racks = [(1, 1), (2, 2), (3, 2), (4, 3)].map(|(id, rack)| (id, Rack::Other(rack))).into();
}

#[test]
fn who_takes_a_place_stands_in_a_rack_of_its_own_if_one_answers() {
    let mut world = World::new(4, config());
    world.loses = false;
    in_racks(&mut world);
    world.append();
    world.heal();
    world.replicated.broken(1, "node 1 does not answer".into());
    world.net.said().candidates = vec![2, 3, 4];
    pass(&mut world, 150);
    assert_eq!(world.to_coordinator.first().map(|view| &view.backups[..]), Some(&[2, 4][..]), "3 stands beside 2");
}

#[test]
fn a_view_in_too_few_racks_takes_one_in_another_when_it_is_there() {
    let mut world = World::new(4, config());
    world.loses = false;
    in_racks(&mut world);
    world.append();
    world.heal();
    burns(&mut world, 4);
    world.replicated.broken(1, "node 1 does not answer".into());
    world.net.said().candidates = vec![2, 3, 4];
    pass(&mut world, 600);
    world.heal();
    world.turn();
    assert_eq!(world.replicated.state().1.backups, [2, 3], "nobody else is there");
    // 4 is still not there when it is asked: nothing changes, and nothing waits meanwhile.
    world.clock.advance_ms(30_000);
    pass(&mut world, 600);
    world.append();
    world.heal();
    assert_eq!((world.replicated.state().1.number, world.replicated.durable_through()), (2, 2));
    world.nodes.insert(4, Node::new());
    world.gone.remove(&4);
    world.clock.advance_ms(30_000);
    pass(&mut world, 600);
    world.append();
    world.heal();
    assert_eq!(world.replicated.state().1.backups, [2, 4]);
    // It stays so.
    world.clock.advance_ms(60_000);
    pass(&mut world, 600);
    assert_eq!(world.to_coordinator, []);
    world.check_readers();
}

#[test]
fn a_fenced_log_learns_of_it_when_it_asks_who_is_there() {
    let mut world = World::new(4, config());
    world.loses = false;
    world.append();
    world.heal();
    world.fence();
    world.replicated.broken(1, "node 1 does not answer".into());
    world.net.said().candidates = vec![2, 3];
    let views = [LogView { vlog: LOG.vlog, first_block: 1 }];
    world.nodes[&2].backup.as_ref().expect("started").fence(LOG.node, LOG.epoch, &views).expect("fenced");
    world.turn_and_ask();
    assert!(world.replicated.stats().fenced);
    assert_eq!(world.to_coordinator, []);
}

#[test]
fn chunks_may_be_answered_before_their_copies_within_limits() {
    let config = ReplicatedConfig { lag_bytes_max: 1500, lag_us_max: 200_000, ..config() };
    let mut world = World::new(5, config);
    world.loses = false;
    let mut early = 0;
    loop {
        world.append();
        world.replicated.run_once();
        let stats = world.replicated.stats();
        let is_close = stats.pending_bytes + stats.bytes_under_way <= 1500;
        assert_eq!(world.replicated.may_answer_early(), is_close);
        if !is_close {
            break;
        }
        early += 1;
    }
    assert!(early > 1, "{early}");
    assert_eq!(world.replicated.durable_through(), 0, "readers see what has copies only");
    world.heal();
    assert_eq!(world.replicated.durable_through(), early + 1);
    assert!(world.replicated.may_answer_early());

    world.append();
    world.replicated.run_once();
    assert!(world.replicated.may_answer_early());
    world.clock.advance_ms(201);
    world.replicated.run_once();
    assert!(!world.replicated.may_answer_early(), "too long");
    assert_eq!(world.replicated.stats().lag_us, 201_000);
    world.heal();
    assert!(world.replicated.may_answer_early());
    assert_eq!(world.replicated.stats().lag_us, 0);

    world.append();
    world.replicated.run_once();
    world.fence();
    world.replicated.answered(world.replicated.state().1.backups[0], 1, 1, Answer::Fenced(LOG.epoch + 1));
    world.replicated.run_once();
    assert!(!world.replicated.may_answer_early(), "somebody else may own it now");
}

/// Backups stand still with as many blocks under way as may be, take these at last, and stand still again.
#[test]
fn what_has_waited_for_a_block_is_as_old_in_it() {
    let mut world = World::new(7, ReplicatedConfig { lag_us_max: 300_000, ..config() });
    world.loses = false;
    while world.replicated.stats().under_way < 3 {
        world.append();
        world.turn();
    }
    world.append();
    for _ in 0..9 {
        world.turn();
        world.clock.advance_ms(30);
    }
    assert!(world.replicated.may_answer_early(), "what has waited for nine tenths of the time may be lost");
    while !world.to_backups.is_empty() {
        world.deliver_block();
    }
    (1..=BACKUPS).for_each(|id| world.write(id));
    for (from, block, answer) in std::mem::take(&mut world.from_backups) {
        world.replicated.answered(from.0, from.1, block, answer);
    }
    world.turn();
    let stats = world.replicated.stats();
    assert_eq!((stats.under_way, stats.pending_bytes), (1, 0), "it has gone on");
    assert_eq!(stats.lag_us, 270_000);
    assert!(world.replicated.may_answer_early());
    world.clock.advance_ms(60);
    world.turn();
    assert!(!world.replicated.may_answer_early(), "it has no copies for longer than that");
    world.heal();
    assert!(world.replicated.may_answer_early());
    assert_eq!(world.replicated.stats().lag_us, 0);
}

#[test]
fn blocks_are_given_back_when_their_segments_are_gone() {
    let mut world = World::new(6, config());
    world.loses = false;
    for _ in 0..40 {
        world.append();
    }
    world.heal();
    assert!(world.net.said().released.is_empty());
    let (acknowledged, view) = world.replicated.state();
    world.log.delete_stream(STREAM).expect("it was there");
    for _ in 0..20 {
        world.turn();
        world.clock.advance_ms(100);
    }
    let released = world.net.said().released.clone();
    let through = released.iter().map(|(_, through)| *through).max().expect("something");
    assert!(through > 1 && through <= acknowledged, "{through} of {acknowledged}");
    for (backup, through) in released {
        assert!(view.backups.contains(&backup));
        let node = &world.nodes[&backup];
        node.backup.as_ref().expect("started").release(&ReleaseBlocks { log: LOG, through_block: through });
    }
    let files: u64 = world.nodes.values().map(|node| node.backup.as_ref().expect("started").stats().files).sum();
    assert!(files <= 2 * view.backups.len() as u64, "{files} files are left");
}

#[test]
fn what_lost_a_backup_is_copied_again_and_nobody_needs_its_old_view() {
    let config = ReplicatedConfig { copy_again_after_us: 400_000, ..config() };
    let mut world = World::new(7, config);
    world.loses = false;
    (0..60).for_each(|_| _ = world.append());
    world.heal();
    world.nodes.get_mut(&2).expect("a node").backup = None;
    world.gone.insert(2);
    (0..20).for_each(|_| _ = world.append());
    world.heal();
    let lacks = |backup: BackupId, _: &RangeInclusive<u64>| backup == 2;
    let (_, view) = world.replicated.state();
    assert!(world.replicated.stats().under_replicated > 0);
    // What was under way is with the backups of the new view, whatever it was put together with before.
    let all = world.log.streams().into_iter().flat_map(|stream| stream.streamlets().cloned().collect::<Vec<_>>());
    let segments = all.flat_map(|streamlet| world.log.segments_before(&streamlet, u32::MAX));
    let ranges = segments.flat_map(|id| world.replicated.blocks_of(id)).map(|(blocks, _)| blocks);
    let ranges: Vec<RangeInclusive<u64>> = ranges.collect();
    assert!(
        ranges.iter().any(|blocks| *blocks.start() < view.first)
            && ranges.iter().any(|blocks| view.first <= *blocks.end())
    );
    assert!(ranges.iter().all(|blocks| view.first <= *blocks.start() || *blocks.end() < view.first), "{ranges:?}");
    world.replicated.look_at_copies(&|backup, _| backup != 2, &|_, _| false);
    assert!(world.replicated.stats().under_replicated > 0, "one of them is gone");
    world.replicated.look_at_copies(&|_, _| true, &|_, _| false);
    assert_eq!(world.replicated.stats().under_replicated, 0, "they are others than those of the view, and have all");
    world.replicated.look_at_copies(&|_, _| false, &|_, _| true);
    assert!(world.replicated.stats().under_replicated > 0, "they have lost something, whoever they are");
    world.replicated.look_at_copies(&|_, _| true, &|_, _| false);
    assert_eq!(world.copy_again(&lacks), 0, "the view is too young");
    world.clock.advance_ms(400);
    assert_eq!(world.copy_again(&|_, _| false), 0, "everybody has what they had");
    assert!(world.copy_again(&lacks) >= STREAMLETS as usize);
    world.turn();
    assert_eq!((world.replicated.stats().under_replicated, world.net.said().given_up.clone()), (0, vec![1]));
    // Without the blocks of the old view nothing is missing.
    let contents = world.net.said().contents.clone();
    let mut texts = BTreeSet::new();
    for (_, content) in contents.range(view.first..) {
        texts.extend(Chunks::new(content).map(|chunk| text_of(&chunk.expect("chunk"))));
    }
    assert_eq!(world.tickets.iter().filter(|(.., text)| !texts.contains(text)).count(), 0);
    world.check_readers();
    (1..=world.checked).filter(|block| *block >= view.first).for_each(|block| world.check_block(block));
}

/// What is damaged a backup has noted in its memory. A start of it may take the block for whole again, and the list that it tells then has it.
#[test]
fn what_a_backup_has_lost_of_an_older_view_is_copied_again_whatever_it_says_later() {
    let config = ReplicatedConfig { copy_again_after_us: 400_000, ..config() };
    let mut world = World::new(7, config);
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    (0..60).for_each(|_| _ = world.append());
    world.heal();
    let (acknowledged, before) = world.replicated.state();
    let lacking = |world: &World| {
        world.replicated.look_at_copies(&|_, _| true, &|_, _| false);
        world.replicated.stats().under_replicated > 0
    };
    world.replicated.came_back(2, &world.replicated.held(), &[2..=acknowledged]);
    world.turn_and_ask();
    world.heal();
    world.turn();
    let (_, view) = world.replicated.state();
    assert_eq!((view.number, &view.backups), (before.number + 1, &before.backups));
    assert!(lacking(&world));
    world.replicated.came_back(2, &world.replicated.held(), &[1..=acknowledged]);
    world.turn();
    assert!(lacking(&world), "it has said that it lacks a block");
    // Backup 1 has lost one of the older view as well, in which nobody looks for the present one.
    world.replicated.came_back(1, &world.replicated.held(), &[1..=1, 3..=acknowledged]);
    world.turn();
    assert_eq!(world.replicated.state().1, view);
    world.replicated.give_up_again(&[before.number, view.number]);
    world.turn();
    assert!(world.net.said().given_up.is_empty(), "both are needed");
    world.clock.advance_ms(400);
    assert!(world.copy_again(&|_, _| false) >= STREAMLETS as usize);
    world.turn();
    assert!(!lacking(&world));
    assert_eq!(world.net.said().given_up, [before.number]);
    // The coordinators have not done it, or had no leader.
    world.replicated.give_up_again(&[before.number, view.number]);
    world.turn();
    assert_eq!(world.net.said().given_up, [before.number, before.number]);
    world.check_readers();
}

/// Whoever takes over asks for all of a view. A backup with a hole in it refuses, and nobody is left who knows that nothing lives there.
#[test]
fn a_hole_where_nothing_lives_any_more_is_a_loss_and_what_was_given_back_is_none() {
    let mut world = World::new(9, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    (0..400).for_each(|_| _ = world.append());
    world.heal();
    let (acknowledged, before) = world.replicated.state();
    let streams = world.log.streams();
    let streamlets = streams.iter().flat_map(|stream| stream.streamlets().cloned().collect::<Vec<_>>());
    let all: Vec<_> = streamlets.flat_map(|streamlet| world.log.segments_before(&streamlet, u32::MAX)).collect();
    all.iter().for_each(|id| world.replicated.segment_gone(*id));
    world.turn();
    let through = world.net.said().released.iter().map(|(_, through)| *through).max().expect("something");
    assert!(4 < through && through < acknowledged, "{through} of {acknowledged}");
    // A backup that was started again has not heard it; one that was never asked to keep anything is told nothing.
    world.net.said().released.clear();
    [2, 5].into_iter().for_each(|backup| world.replicated.release_again(backup));
    world.turn();
    assert_eq!(world.net.said().released, [(2, through)]);
    let held = world.replicated.held();
    for given_back in [1, through - 1, through, through + 1] {
        world.replicated.came_back(2, &held, &[given_back..=acknowledged]);
        world.turn();
        assert_eq!(world.replicated.state().1, before, "what is in front of {given_back} was given back");
    }
    world.replicated.came_back(2, &held, &[1..=through - 3, through - 1..=acknowledged]);
    world.turn_and_ask();
    world.heal();
    world.turn();
    let (_, view) = world.replicated.state();
    assert_eq!((view.number, view.first), (before.number + 1, acknowledged + 1));
}

#[test]
fn a_copy_that_is_not_durable_yet_does_not_count() {
    let config = ReplicatedConfig { copy_again_after_us: 0, ..config() };
    let mut world = World::new(8, config);
    world.loses = false;
    (0..40).for_each(|_| _ = world.append());
    world.heal();
    world.replicated.broken(2, "gone".into());
    world.gone.insert(2);
    world.append();
    world.heal();
    let lacks = |backup: BackupId, _: &RangeInclusive<u64>| backup == 2;
    let needed = world.replicated.stats().under_replicated;
    for _ in 0..20 {
        let wanted = world.replicated.to_copy_again(100, &HashSet::new(), &lacks);
        assert!(!wanted.is_empty());
        wanted.iter().for_each(|id| _ = world.log.copy_again(*id, &*world.replicated.behind()));
        world.turn();
    }
    assert_eq!(world.replicated.stats().under_replicated, needed);
    assert!(world.net.said().given_up.is_empty());
}

#[test]
fn what_is_appended_does_not_wait_behind_what_is_copied_again() {
    let mut world = World::new(12, ReplicatedConfig { blocks_under_way_max: 4, ..config() });
    world.loses = false;
    (0..200).for_each(|_| _ = world.append());
    world.heal();
    (0..50).for_each(|_| world.copy_some());
    let all = world.copied;
    for _ in 0..20 {
        let before = world.replicated.state().0;
        world.append();
        let (ticket, _, text) = world.tickets.last().cloned().expect("appended");
        world.heal_to(&*world.replicated.clone(), ticket);
        let contents = world.net.said().contents.clone();
        let has = |content: &[u8]| Chunks::new(content).any(|chunk| text_of(&chunk.expect("chunk")) == text);
        let (block, _) = contents.range(before + 1..).find(|(_, content)| has(content)).expect("it was sent");
        // Two that were under way, and one that is made first when both are answered.
        assert!(*block <= before + 4, "{} blocks in front of it", block - before - 1);
    }
    let copied = world.replicated.behind().durable_through();
    assert!((10..all).contains(&copied), "it goes on meanwhile: {copied} of {all}");
    // It goes on under any load.
    for _ in 0..200 {
        (0..20).for_each(|_| _ = world.append());
        world.turn();
    }
    world.heal();
    assert_eq!(world.replicated.behind().durable_through(), world.copied);
    world.check_readers();
}

#[test]
fn one_old_segment_does_not_hold_back_all_that_is_behind_it() {
    let mut world = World::new(9, config());
    world.loses = false;
    (0..400).for_each(|_| _ = world.append());
    world.heal();
    // All but one streamlet lose what is closed.
    let stream = world.log.stream(STREAM).expect("stream");
    let lane = Arc::clone(stream.streamlet(StreamletId(0)).expect("streamlet").lane(LaneId(0)).expect("lane"));
    let mut wanted = world.replicated.to_copy_again(1000, &HashSet::new(), &|_, _| false);
    assert_eq!(wanted, [], "all of it lives");
    let alive: BTreeSet<_> = (world.log.streams().iter())
        .flat_map(|stream| stream.streamlets().cloned().collect::<Vec<_>>())
        .flat_map(|streamlet| world.log.segments_before(&streamlet, u32::MAX))
        .collect();
    alive.iter().filter(|id| id.streamlet != StreamletId(0)).for_each(|id| world.replicated.segment_gone(*id));
    world.turn();
    assert!(world.net.said().released.is_empty(), "the first stretch has something of streamlet 0");
    wanted = world.replicated.to_copy_again(1000, &HashSet::new(), &|_, _| false);
    assert!(wanted.iter().all(|id| id.streamlet == StreamletId(0)) && !wanted.is_empty(), "{wanted:?}");
    assert!(world.copy_again(&|_, _| false) > 0);
    (0..3).for_each(|_| _ = world.turn());
    let through = world.net.said().released.iter().map(|(_, through)| *through).max().expect("something");
    assert!(through > world.replicated.state().0 / 2, "{through}");
    assert!(lane.durable_ordinal() > 0);
}

/// The second block overtakes the first one on its way to node 2, which asks for the first, and then gets it. What it asked is the answer.
fn asks_late(world: &mut World) -> (From, u64, Answer) {
    for _ in 0..2 {
        world.append();
        world.turn();
    }
    let overtakes = world.to_backups.iter().position(|(to, head, _)| (*to, head.block) == (2, 2)).expect("it was sent");
    let second = world.to_backups.remove(overtakes);
    world.to_backups.insert(0, second);
    world.deliver_block();
    let late = world.from_backups.pop().expect("an answer at once");
    assert_eq!((late.0.0, late.1, &late.2), (2, 2, &Answer::Next(1)));
    while !world.to_backups.is_empty() {
        world.deliver_block();
    }
    [1, 2].into_iter().for_each(|id| world.write(id));
    for (from, block, answer) in std::mem::take(&mut world.from_backups) {
        world.replicated.answered(from.0, from.1, block, answer);
    }
    world.turn();
    assert_eq!(world.replicated.state().0, 1);
    late
}

#[test]
fn a_question_for_a_block_that_comes_late_is_no_loss() {
    let mut world = World::new(14, config());
    world.loses = false;
    let ((from, life), block, answer) = asks_late(&mut world);
    let before = world.replicated.state().1;
    world.replicated.answered(from, life, block, answer);
    world.turn();
    assert_eq!((world.to_coordinator.len(), &world.replicated.state().1), (0, &before), "nobody is replaced");
    let sent: Vec<_> = world.to_backups.iter().map(|(to, head, _)| (*to, head.block)).collect();
    assert_eq!(sent, [(2, 2)], "it gets what it did not take");
    world.heal();
    assert_eq!(world.replicated.state(), (2, before));
    assert_eq!(world.replicated.durable_through(), 2);
}

#[test]
fn a_question_of_a_later_life_for_a_block_that_an_earlier_one_had_is_a_loss() {
    let mut world = World::new(14, config());
    world.loses = false;
    let ((from, life), ..) = asks_late(&mut world);
    // Its machine lost its power before anything was synced.
    world.nodes.insert(2, Node::new());
    assert!(world.nodes[&2].life > life);
    world.replicated.answered(from, world.nodes[&2].life, 2, Answer::Next(1));
    world.turn_and_ask();
    let asked = world.to_coordinator.first().expect("a view").clone();
    assert_eq!(asked.first, 2);
    // What its first life has said before comes now, and says nothing of what it has.
    world.replicated.answered(from, life, 2, Answer::Stored(2));
    world.turn();
    assert_eq!(world.replicated.state().0, 1);
    world.heal();
    assert_eq!(world.replicated.state().1.number, 2);
}

/// A loss of power left it a block behind one that is torn (durability `process`). Counted by the block that it answers for, the torn one was acknowledged
/// with this node's memory as its only copy.
#[test]
fn a_backup_that_has_a_block_behind_a_hole_has_what_is_in_front_of_the_hole() {
    let mut world = World::new(17, config());
    world.loses = false;
    for _ in 0..3 {
        world.append();
        world.turn();
    }
    // Here both have all of it, and the second one says what it would say with the hole.
    while !world.to_backups.is_empty() {
        world.deliver_block();
    }
    [1, 2].into_iter().for_each(|id| world.write(id));
    world.from_backups.clear();
    world.replicated.answered(1, 1, 3, Answer::Stored(3));
    world.replicated.answered(2, 1, 3, Answer::Stored(1));
    world.turn();
    assert_eq!(world.replicated.state().0, 1, "the second block is not there");
    // It comes as what it was asked for, once more.
    world.to_backups.clear();
    world.replicated.answered(2, 1, 2, Answer::Next(2));
    world.turn();
    let sent: Vec<_> = world.to_backups.iter().map(|(to, head, _)| (*to, head.block)).collect();
    assert_eq!(sent, [(2, 2), (2, 3)]);
    world.replicated.answered(2, 1, 2, Answer::Stored(3));
    world.turn();
    assert_eq!(world.replicated.state().0, 3, "all that follows was there");
}

/// A question may be put twice by whoever carries it: refused the first time, as a backup was lost, and agreed to the second time, as it is back. What was acknowledged in
/// between by the backups of the old view would not be at those of the new one.
#[test]
fn a_view_that_was_refused_may_be_agreed_to_after_all() {
    for other_is_asked in [false, true] {
        let mut world = World::new(18, config());
        world.loses = false;
        world.append();
        world.heal();
        let before = world.replicated.state();
        assert_eq!((before.0, before.1.backups.as_slice()), (1, &[1, 2][..]));
        // It is on its way to the second one when the connection breaks.
        world.append();
        world.turn();
        world.replicated.broken(2, "cut".into());
        world.turn_and_ask();
        let asked = world.to_coordinator.pop().expect("a view");
        assert!(!asked.backups.contains(&2), "{asked:?}");
        let refused = ViewAnswer::Refused { asked: asked.clone(), newest: before.1.clone() };
        world.replicated.view_answered(refused);
        let mut other = None;
        for _ in 0..20 {
            world.turn_and_ask();
            while !world.to_backups.is_empty() {
                world.deliver_block();
            }
            [1, 2].into_iter().for_each(|id| world.write(id));
            for ((from, life), block, answer) in std::mem::take(&mut world.from_backups) {
                world.replicated.answered(from, life, block, answer);
            }
            world.turn();
            assert_eq!(world.replicated.state(), before, "both have the block, but the view that was refused may hold");
            other = other.or_else(|| world.to_coordinator.pop().filter(|view| *view != asked));
            if !other_is_asked || other.is_some() {
                break;
            }
            pass(&mut world, 50);
        }
        world.to_coordinator.clear();
        assert_eq!(world.coordinator.answer(&asked), ViewAnswer::Agreed(asked.clone()));
        let answer = match other {
            Some(other) => world.coordinator.answer(&other),
            None => ViewAnswer::Agreed(asked.clone()),
        };
        world.replicated.view_answered(answer);
        world.heal();
        assert_eq!(world.replicated.state(), (2, asked), "other asked: {other_is_asked}");
    }
}

/// What a later life has may be told by what it has stored, too: a block that came twice.
#[test]
fn a_later_life_that_has_stored_less_than_an_earlier_one_has_lost_it() {
    let mut world = World::new(15, config());
    world.loses = false;
    for _ in 0..3 {
        world.append();
        world.turn();
    }
    let first =
        world.to_backups.iter().find(|(to, head, _)| (*to, head.block) == (2, 1)).cloned().expect("it was sent");
    world.heal();
    assert_eq!(world.replicated.state().0, 3);
    world.nodes.insert(2, Node::new());
    world.to_backups.push(first);
    world.deliver_block();
    world.write(2);
    let (from, block, answer) = world.from_backups.pop().expect("it answers");
    assert_eq!((block, &answer), (1, &Answer::Stored(1)));
    world.replicated.answered(from.0, from.1, block, answer);
    world.turn_and_ask();
    assert_eq!(world.to_coordinator.first().map(|view| view.first), Some(4), "two blocks are lost");
}

#[test]
fn a_later_life_that_has_all_of_it_goes_on() {
    let mut world = World::new(16, config());
    world.loses = false;
    for _ in 0..3 {
        world.append();
        world.turn();
    }
    world.heal();
    let before = world.replicated.state();
    world.nodes.get_mut(&2).expect("a node").start(2);
    world.append();
    world.heal();
    assert_eq!(world.replicated.state(), (before.0 + 1, before.1));
}

#[test]
fn a_backup_that_has_lost_what_it_had_is_taken_again_from_the_last_acknowledged_block_on() {
    let mut world = World::new(10, config());
    world.loses = false;
    world.net.said().candidates = vec![1, 2];
    (0..10).for_each(|_| _ = world.append());
    world.heal();
    let (acknowledged, before) = world.replicated.state();
    let held = world.replicated.held();
    assert_eq!((held.blocks.clone(), &held.view), (1..=acknowledged, &before));
    world.replicated.came_back(2, &held, &[1..=acknowledged]);
    world.turn();
    assert_eq!(world.replicated.state().1, before, "it has all of it");
    // Its machine lost its power before anything was synced, and there is nobody else. Nothing is written meanwhile.
    world.nodes.insert(2, Node::new());
    let lacking = |world: &World| world.replicated.stats().under_replicated > 0;
    assert!(!lacking(&world));
    world.replicated.came_back(2, &held, &[]);
    world.turn_and_ask();
    assert!(lacking(&world), "it is in trouble");
    world.heal();
    world.turn();
    assert!(lacking(&world), "it is in the new view, without what is in the older one");
    let (_, view) = world.replicated.state();
    assert_eq!((view.number, view.first, &view.backups), (before.number + 1, acknowledged + 1, &before.backups));
    // The same once more, found by what is written.
    world.append();
    world.heal();
    world.nodes.insert(2, Node::new());
    world.append();
    world.heal();
    let (last, again) = world.replicated.state();
    assert_eq!((again.number, &again.backups), (view.number + 1, &before.backups));
    assert!(last >= again.first && again.first > view.first);
}
