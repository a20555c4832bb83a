//! Has what lacks copies copied again: records in blocks of which a backup is gone, old segments that hold back space at backups, and after
//! a return what only the logs of earlier incarnations have, if those are not whole any more.
//!
//! One thread, which looks twice a second and is in no hurry: what is new goes first, and a node that is rebuilding does that before, for as long
//! as it gets further. What lost a backup goes before the rest, log by log in turns. The rest may take hours: of that about a second's worth is done at each look, and
//! what cannot be given yet holds up nothing else.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_broker::CopyStep;
use kera_coordinator::cluster::ToCopy;
use kera_format::cluster::{NodeNumber, Roles};
use kera_format::vlog_replica::LogId;
use kera_format::{SegmentId, StreamId, level};
use kera_log::{CopiedAgain, DurabilitySink, Log, Ticket};
use kera_protocol::ListReplicas;
use kera_vlog::ReplicatedLog;
use parking_lot::{Condvar, Mutex};

use super::changing::Changing;
use super::copies::{Copies, named_views};
use super::recovery::{HeldAgain, OldView, Recovery};
use crate::fatal::Fatal;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// A backup that is away for so long has lost what it had: a restart takes less.
const AWAY: Duration = Duration::from_secs(10);
/// Segments that are asked for at a time.
const SEGMENTS: usize = 64;
/// Bytes that are given to a log at a time.
const BYTES: u64 = 16 << 20;
/// Bytes per second, of all logs together: a part of what a disk and a network take.
const BYTES_PER_S: u64 = 128 << 20;
/// Nodes are asked so often what they have: a disk of theirs may have lost something since.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// What a backup has said that it has is as new as views that ended before.
const FRESH: Duration = Duration::from_secs(1);
/// Old logs are looked at so long after the start, and then so often, but for what is to be copied at once.
const OLD_LOGS: Duration = Duration::from_secs(2);
/// What a node has left in its old logs is copied again when these hold so many times as much, as in its logs of today.
const DEAD_FACTOR: u64 = 2;
/// And when that is worth so many bytes.
const DEAD_BYTES: u64 = 32 << 20;
/// Time between two looks whether copies are durable.
const WAIT: Duration = Duration::from_millis(2);
/// For about so long something is copied before it is looked once more which logs have lost a backup, and so long a log is waited for in its turn.
const TURN: Duration = Duration::from_secs(1);
/// What was given to a log and has no copies for so long is spoken of.
const COPYING_MAX: Duration = Duration::from_secs(60);
/// A segment that cannot be given for so long makes room for others that may be.
const PATIENCE: Duration = Duration::from_secs(10);
/// And this long after it could not be given first it is asked for as if it had never been.
const TRY_AGAIN: Duration = Duration::from_secs(100);
/// For so long all waits for a rebuild that gets further. Then each log has one turn: what lost a backup may have no other copy, and a rebuild may take hours.
const REBUILD_FIRST: Duration = Duration::from_secs(30);

/// Blocks that a node has of logs, as it has said.
struct Has {
    epoch: u32,
    at: Instant,
    logs: HashMap<LogId, Replica>,
    /// Logs that were over when it was asked, with the last block of each: of these it has said all that there is to say.
    ended: HashMap<LogId, u64>,
}

/// A log as a backup has it.
#[derive(Default)]
struct Replica {
    blocks: Vec<RangeInclusive<u64>>,
    /// Bytes of its files.
    bytes: u64,
}

/// See the module.
pub(super) struct Copier {
    log: Arc<Log>,
    copies: Arc<Copies>,
    recovery: Arc<Recovery>,
    changing: Arc<Changing>,
    stopping: Mutex<bool>,
    changed: Condvar,
    /// Blocks of logs of this node's earlier incarnations that are needed, and of which a backup is not known to have all.
    old_lacking: AtomicU64,
    /// When the backup was asked what it has that was asked longest ago.
    heard: Mutex<Instant>,
}

/// What the thread remembers.
#[derive(Default)]
struct Memory {
    /// Segments that cannot be copied.
    never: HashSet<SegmentId>,
    /// Those that lost a backup and could not be given yet, and since when: their lanes are being rebuilt, maybe for good, or their disks do not give them.
    waits: HashMap<SegmentId, Instant>,
    /// Since when all waits for a rebuild.
    waits_since: Option<Instant>,
    /// What logs were given that had lost a backup, and did not have its copies when their turns ended.
    under_way: HashMap<LogId, UnderWay>,
    /// Those of them that keep a streamlet from getting its copies, and of which that was told.
    stuck: HashSet<SegmentId>,
    /// Every node understands compacted segments that are copied.
    knows_compacted: bool,
    /// The nodes of the cluster. Who was given up is none of them, and has nothing any more, whatever it had when it was asked.
    members: HashSet<NodeNumber>,
    /// Since when nodes are away.
    away: HashMap<NodeNumber, Instant>,
    has: HashMap<NodeNumber, Has>,
    /// Those that are to be asked again.
    unclear: RefCell<HashSet<NodeNumber>>,
    /// The streamlet with which it goes on of those that get another number of copies.
    changes_from: Option<(StreamId, u32)>,
    /// What came back and is being copied again.
    returned: Option<Returned>,
    /// What was held again when all of it was copied.
    copied: Option<HeldAgain>,
    /// All that was found until then. It is not copied once more when something else comes to be held: as long as the node has any of it, a log of this life keeps what it was given
    /// of it, and is given it again when a backup of that is lost.
    known: HashSet<SegmentId>,
}

/// What was done with segments.
#[derive(Default)]
struct Gave {
    /// Have their copies now.
    copied: Vec<SegmentId>,
    /// Need none: retention has taken them, or they cannot be copied.
    dropped: Vec<SegmentId>,
    /// Cannot be given now.
    later: Vec<SegmentId>,
    /// When the last has them, and the bytes of all.
    last: Ticket,
    bytes: u64,
}

/// What a log was given of what lacks copies.
struct UnderWay {
    sink: Arc<dyn DurabilitySink>,
    segments: Vec<SegmentId>,
    /// When the last of them has its copies.
    last: Ticket,
    /// They are in blocks of the log from this one on.
    since: u64,
    /// When they were given, unless it was said since that they have no copies yet.
    unsaid: Option<Instant>,
}

impl UnderWay {
    fn has_copies(&self) -> bool {
        self.sink.durable_through() >= self.last
    }

    /// Waits until all of it has its copies, and not for longer than `until`: whether it has, and nothing if the node stops. `pause`: false if it does.
    fn wait(&self, until: Instant, mut pause: impl FnMut() -> bool) -> Option<bool> {
        while !self.has_copies() {
            if Instant::now() >= until {
                return Some(false);
            }
            pause().then_some(())?;
        }
        Some(true)
    }
}

/// A turn for each log, again and again until none of them got anything or it is `until`: whether some did in the end. Nothing if the node stops, as `turn` says of a log.
fn in_turns<L>(logs: &[L], until: Instant, mut turn: impl FnMut(&L) -> Option<bool>) -> Option<bool> {
    loop {
        let mut got = false;
        for log in logs {
            got |= turn(log)?;
        }
        if !got || Instant::now() >= until {
            return Some(got);
        }
    }
}

/// How long copying so many bytes takes at least.
fn due(bytes: u64) -> Duration {
    Duration::from_micros(bytes * 1_000_000 / BYTES_PER_S)
}

impl Gave {
    fn note(&mut self, segment: SegmentId, ticket: Ticket, bytes: u32) {
        self.copied.push(segment);
        (self.last, self.bytes) = (self.last.max(ticket), self.bytes + u64::from(bytes));
    }
}

/// What came back and is to be copied again, of which a few are asked for at a time: what is not in memory is read for this, and has to stay there until
/// it is given.
#[derive(Default)]
struct Returned {
    /// What was held again when it was last looked what there is.
    again: HeldAgain,
    /// All that was found at these looks.
    known: HashSet<SegmentId>,
    /// Those that are not asked for, by streamlets, the next one first.
    queue: VecDeque<VecDeque<SegmentId>>,
    /// Those that are asked for at each look, and since when.
    asked: Vec<(SegmentId, Instant)>,
    /// Some of them were not before this look.
    asks_for_more: bool,
    given: Given,
}

/// Up to where logs have to be durable for what was given to them.
#[derive(Default)]
struct Given(Vec<(Arc<dyn DurabilitySink>, Ticket)>);

impl Given {
    /// Whether some of what was given to this log is not durable yet.
    fn waits_for(&mut self, sink: &Arc<dyn DurabilitySink>) -> bool {
        self.0.retain(|(given, last)| given.durable_through() < *last);
        self.0.iter().any(|(given, _)| Arc::ptr_eq(sink, given))
    }
}

fn is_beside(one: SegmentId, other: SegmentId) -> bool {
    (one.stream, one.streamlet) == (other.stream, other.streamlet)
}

impl Returned {
    /// What there is by now: whatever was not found before is asked for behind the others.
    fn add(&mut self, again: HeldAgain, segments: impl IntoIterator<Item = SegmentId>) {
        self.again = again;
        for segment in segments {
            if !self.known.insert(segment) {
                continue;
            }
            match self.queue.back_mut() {
                Some(last) if is_beside(last[0], segment) => last.push_back(segment),
                _ => self.queue.push_back(VecDeque::from([segment])),
            }
        }
    }

    /// Asks for as many as may be asked for, of each streamlet one after the other. What cannot be given for long, because its lane waits for what is
    /// rebuilt or its disk does not give it, is asked for again when everything else was.
    fn fill(&mut self, now: Instant) {
        let (waits, waited): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.asked).into_iter().partition(|(_, since)| now.duration_since(*since) < PATIENCE);
        self.asked = waits;
        for (segment, _) in waited {
            let mut of_streamlets = self.queue.iter_mut();
            match of_streamlets.find(|of| is_beside(of[0], segment)) {
                Some(of) => of.push_back(segment),
                None => self.queue.push_back(VecDeque::from([segment])),
            }
        }
        let waits = self.asked.len();
        while self.asked.len() < SEGMENTS
            && let Some(mut of) = self.queue.pop_front()
        {
            self.asked.extend(of.pop_front().map(|segment| (segment, now)));
            if !of.is_empty() {
                self.queue.push_back(of);
            }
        }
        self.asks_for_more = self.asked.len() > waits;
    }

    /// A turn for each streamlet of which something is asked for, until `until`. `give`: which of these are done with; nothing if the node stops. Whether
    /// any were.
    fn round(
        &mut self,
        until: Instant,
        mut give: impl FnMut(&mut Given, &[SegmentId]) -> Option<Vec<SegmentId>>,
    ) -> Option<bool> {
        self.fill(Instant::now());
        let (mut got, mut turns) = (false, HashSet::new());
        while let Some(&(first, _)) = self.asked.first()
            && turns.insert((first.stream, first.streamlet))
        {
            let of_it = |(one, _): &(SegmentId, Instant)| is_beside(*one, first);
            let (its, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.asked).into_iter().partition(of_it);
            self.asked = others;
            let wanted: Vec<SegmentId> = its.iter().map(|(segment, _)| *segment).collect();
            let done: HashSet<SegmentId> = give(&mut self.given, &wanted)?.into_iter().collect();
            got |= !done.is_empty();
            self.asked.extend(its.into_iter().filter(|(segment, _)| !done.contains(segment)));
            // Those that had to go first, too.
            if done.iter().any(|segment| !wanted.contains(segment)) {
                self.queue.iter_mut().for_each(|of| of.retain(|segment| !done.contains(segment)));
                self.queue.retain(|of| !of.is_empty());
            }
            if Instant::now() >= until {
                break;
            }
        }
        Some(got)
    }

    /// All of it has its copies, or needs none.
    fn is_over(&self) -> bool {
        let is_durable = self.given.0.iter().all(|(sink, last)| sink.durable_through() >= *last);
        self.queue.is_empty() && self.asked.is_empty() && is_durable
    }
}

/// Copies some of what is to have another number of copies, until `until`: whether anything was given and there is more, and nothing if the node stops.
/// `begin`: with which streamlet, from call to call. `step` gives a piece; `ended` is told of those of which nothing can be given now.
fn change_some(
    work: &[ToCopy],
    begin: &mut Option<(StreamId, u32)>,
    until: Instant,
    mut step: impl FnMut(&ToCopy) -> Option<CopyStep>,
    mut ended: impl FnMut(&ToCopy, CopyStep),
) -> Option<bool> {
    let first = begin.take().map_or(0, |begin| work.partition_point(|of| (of.stream, of.streamlet) < begin));
    let mut gave = false;
    for of in work[first..].iter().chain(&work[..first]) {
        loop {
            let step = step(of)?;
            if !matches!(step, CopyStep::Gave(_)) {
                ended(of, step);
                break;
            }
            gave = true;
            if Instant::now() >= until {
                *begin = Some((of.stream, of.streamlet));
                return Some(true);
            }
        }
        if Instant::now() >= until {
            *begin = Some((of.stream, of.streamlet + 1));
            return Some(gave);
        }
    }
    Some(false)
}

impl Copier {
    pub(super) fn start(
        log: &Arc<Log>,
        copies: &Arc<Copies>,
        recovery: &Arc<Recovery>,
        changing: Arc<Changing>,
    ) -> Result<(Arc<Copier>, JoinHandle<()>), Fatal> {
        let copier = Arc::new(Copier {
            log: log.clone(),
            copies: copies.clone(),
            recovery: recovery.clone(),
            changing,
            stopping: Mutex::new(false),
            changed: Condvar::new(),
            old_lacking: AtomicU64::new(0),
            heard: Mutex::new(Instant::now()),
        });
        let running = copier.clone();
        let thread = std::thread::Builder::new().name("kera-copier".into()).spawn(move || running.run());
        let no_thread = |error| Fatal::Resources { what: "a thread that copies again what lacks copies", error };
        Ok((copier, thread.map_err(no_thread)?))
    }

    /// Has the thread return, soon.
    pub(super) fn stop(&self) {
        *self.stopping.lock() = true;
        self.changed.notify_all();
    }

    /// False: the node stops.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut stopping = self.stopping.lock();
        while !*stopping && !self.changed.wait_until(&mut stopping, until).timed_out() {}
        !*stopping
    }

    /// Blocks of logs of this node's earlier incarnations that have fewer copies than they should, as far as is known.
    pub(super) fn old_lacking(&self) -> u64 {
        self.old_lacking.load(Ordering::Relaxed)
    }

    /// How long ago the backup was asked what it has that was asked longest ago, of those that are there: what their disks have lost since is in no number.
    pub(super) fn heard_age(&self) -> Duration {
        self.heard.lock().elapsed()
    }

    /// The thread. It looks at nodes also while something is rebuilt: a log to which nothing is written would not notice that a backup
    /// of it is gone.
    fn run(&self) {
        let mut memory = Memory::default();
        let (began, mut looked) = (Instant::now(), Instant::now());
        let mut goes_on = false;
        while self.pause(if std::mem::take(&mut goes_on) { WAIT } else { LOOK }) {
            self.look_at_nodes(&mut memory);
            self.look_at_level(&mut memory);
            let (logs, rebuilds) = (self.copies.all(), self.recovery.comes_on());
            if memory.gives_way(rebuilds, Instant::now()) {
                logs.iter().for_each(|(id, log)| self.look_at_copies(*id, log, &memory));
                continue;
            }
            memory.under_way.retain(|id, _| logs.iter().any(|(known, _)| known == id));
            let copied = in_turns(&logs, Instant::now() + TURN, |(id, log)| self.copy(*id, log, &mut memory));
            let Some(goes_first) = copied else { return };
            if rebuilds {
                continue;
            }
            if goes_first {
                goes_on = true;
                continue;
            }
            let Some(changes_more) = self.change_copies(&mut memory) else { return };
            goes_on = changes_more;
            // Once is enough: what was not copied then never can be. But for what came to be held since.
            let again = self.recovery.held_again();
            let has_copied = memory.copied.as_ref().is_some_and(|copied| again.is_subset(copied));
            if has_copied {
                self.old_lacking.store(0, Ordering::Relaxed);
                continue;
            }
            let views = self.recovery.old_views();
            let has_open_end = u64::from(self.recovery.has_open_end());
            self.old_lacking.store(memory.lacking(&views) + has_open_end, Ordering::Relaxed);
            let (is_due, is_late) = (looked.elapsed() > OLD_LOGS, began.elapsed() > AWAY);
            // What one loss more may take does not wait: a node may be killed again and again soon after its start.
            let at_once = || self.recovery.may_lack_copies() || memory.lacks_some(&views, false);
            let is_open = || is_late && self.recovery.has_open_end();
            let wanted = memory.returned.is_some()
                || at_once()
                || (is_due && (is_open() || memory.lacks_some(&views, is_late) || self.is_mostly_dead(&views)));
            if wanted {
                let Some(got) = self.copy_returned(&mut memory) else { return };
                goes_on |= got;
            }
            if wanted || is_due {
                looked = Instant::now();
            }
        }
    }

    /// Copies what is to have another number of copies, for a [turn](TURN); whether there is more that can be given, and nothing if the node stops. What a
    /// streamlet waits for holds up no other one.
    fn change_copies(&self, memory: &mut Memory) -> Option<bool> {
        let (work, stuck) = (self.changing.work(), &mut memory.stuck);
        let step = |of: &ToCopy| {
            let began = Instant::now();
            let step = if of.is_more() { self.changing.step(of, BYTES) } else { CopyStep::Done };
            let pause = match step {
                CopyStep::Gave(bytes) => due(bytes).saturating_sub(began.elapsed()).max(WAIT),
                _ => Duration::ZERO,
            };
            self.pause(pause).then_some(step)
        };
        let ended = |of: &ToCopy, step| match step {
            CopyStep::Done => self.changing.made(of, || !*self.stopping.lock()),
            CopyStep::Stuck(segment) if stuck.insert(segment) => {
                tracing::warn!(
                    %segment,
                    copies = of.wanted,
                    "a streamlet does not get its copies: this compacted segment does not fit into pieces before it is compacted again"
                );
            }
            _ => {}
        };
        change_some(&work, &mut memory.changes_from, Instant::now() + TURN, step, ended)
    }

    /// Copies compacted segments from the level on at which every node understands them.
    fn look_at_level(&self, memory: &mut Memory) {
        let knows = self.recovery.group().read(|state| state.level() >= level::COMPACTED_COPIES);
        if knows && !std::mem::replace(&mut memory.knows_compacted, true) {
            self.log.copy_compacted();
            memory.level_rose();
        }
    }

    /// Who is away, and what those have that have started again: their disks may be others, or have lost what was not synced.
    fn look_at_nodes(&self, memory: &mut Memory) {
        let nodes: Vec<(NodeNumber, u32, bool)> = self.recovery.group().read(|state| {
            let of = |(number, node): (&NodeNumber, &kera_coordinator::cluster::NodeState)| {
                (*number, node.epoch, node.is_live(Roles::BACKUP))
            };
            state.nodes().iter().map(of).collect()
        });
        memory.members = nodes.iter().map(|(node, ..)| *node).collect();
        memory.away.retain(|node, _| memory.members.contains(node));
        memory.has.retain(|node, _| memory.members.contains(node));
        let named = self.copies.all().into_iter().flat_map(|(_, log)| log.state().1.backups);
        named.filter(|node| !memory.members.contains(node)).for_each(|node| self.copies.lost(node));
        for (node, epoch, is_live) in nodes {
            if !is_live {
                self.copies.lost(node);
                memory.away.entry(node).or_insert_with(Instant::now);
                continue;
            }
            memory.away.remove(&node);
            let is_unclear = memory.unclear.get_mut().remove(&node);
            // What an earlier life of it had says nothing.
            memory.has.retain(|known, has| *known != node || has.epoch == epoch);
            let known = memory.has.get(&node).map(|has| has.at);
            if !is_unclear && known.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
                continue;
            }
            let held: Vec<_> = self.copies.all().into_iter().map(|(id, log)| (id, log.held(), log)).collect();
            let ended = self.recovery.old_views().into_iter().map(|view| (view.log, *view.blocks.end())).collect();
            let at = Instant::now();
            match self.replicas(node) {
                Ok(logs) => {
                    for (id, held, log) in held {
                        log.came_back(node, &held, logs.get(&id).map_or(&[][..], |replica| &replica.blocks));
                        if known.is_none() {
                            log.release_again(node);
                        }
                    }
                    memory.has.insert(node, Has { epoch, at, logs, ended });
                }
                Err(error) => tracing::debug!(node, error, "a backup has not said what it has; it is asked again"),
            }
        }
        let is_there = |node: &&NodeNumber| !memory.away.contains_key(*node);
        let heard = memory.members.iter().filter(is_there).map(|node| memory.has.get(node).map(|has| has.at));
        // Who has never said anything has not for as long as was looked.
        if let Some(heard) = heard.min().unwrap_or_else(|| Some(Instant::now())) {
            *self.heard.lock() = heard;
        }
    }

    /// What a backup has of all logs.
    fn replicas(&self, node: NodeNumber) -> Result<HashMap<LogId, Replica>, String> {
        let (mut logs, mut after) = (HashMap::new(), None);
        loop {
            let page = self.recovery.ask_backup(node, &ListReplicas { after, limit: 0 })?;
            after = page.replicas.last().map(|replica| replica.log);
            for replica in page.replicas {
                let blocks = replica.blocks.iter().map(|range| range.first..=range.last).collect();
                logs.insert(replica.log, Replica { blocks, bytes: replica.bytes });
            }
            if !page.more || after.is_none() {
                return Ok(logs);
            }
        }
    }

    /// The turn of a log that may have lost a backup: it is given some of what is in blocks that lack copies. Whether something has them now that had not before, and nothing if the
    /// node stops.
    ///
    /// A log whose backups do not answer makes nothing durable, for as long as that lasts. It is waited for in one turn only; in those that follow it is looked at, and
    /// given no more before it has made durable what it has.
    fn copy(&self, id: LogId, log: &ReplicatedLog, memory: &mut Memory) -> Option<bool> {
        // Also while it waits for what it was given: what a backup has lost meanwhile counts at once.
        self.look_at_copies(id, log, memory);
        let mut got = false;
        if let Some(mut before) = memory.under_way.remove(&id) {
            if !before.has_copies() {
                if before.unsaid.take_if(|given| given.elapsed() > COPYING_MAX).is_some() {
                    tracing::warn!(log = %id, "what is copied again in a log has waited for its copies for a minute: one loss more may take it");
                }
                memory.under_way.insert(id, before);
                log.give_up_views();
                return Some(false);
            }
            before.segments.iter().for_each(|segment| log.copied_again(*segment, before.since));
            got = true;
        }
        let wanted = memory.next_to_copy(Instant::now(), |memory, without| {
            log.to_copy_again(SEGMENTS, without, &|backup, blocks| memory.lacks(backup, id, blocks))
        });
        let (began, since) = (Instant::now(), log.next_block());
        let gave = self.append(&wanted, log, &mut memory.never);
        memory.note_waits(&gave, began);
        let Gave { copied: segments, last, bytes, .. } = gave;
        if segments.is_empty() {
            return Some(got);
        }
        let given = UnderWay { sink: log.behind(), segments, last, since, unsaid: Some(began) };
        if given.wait(began + TURN, || self.pause(WAIT))? {
            given.segments.iter().for_each(|segment| log.copied_again(*segment, since));
            got = true;
        } else {
            memory.under_way.insert(id, given);
        }
        self.pause(due(bytes).saturating_sub(began.elapsed())).then_some(got)
    }

    /// Looks which blocks of older views of a log have their copies, and whether the coordinators know which views nobody needs.
    fn look_at_copies(&self, id: LogId, log: &ReplicatedLog, memory: &Memory) {
        let said = |backup: NodeNumber, blocks: &RangeInclusive<u64>| memory.has_said_less(backup, id, blocks);
        log.look_at_copies(&|backup, blocks| memory.has_all(backup, id, blocks), &said);
        log.give_up_again(&self.recovery.group().read(|state| named_views(state, id)));
    }

    /// Gives segments to their log. What is in neither list of those that are done with can be given later.
    fn append(&self, wanted: &[SegmentId], log: &ReplicatedLog, never: &mut HashSet<SegmentId>) -> Gave {
        let (mut gave, sink) = (Gave::default(), log.behind());
        for segment in wanted {
            let mut given = |segment, ticket, head| {
                gave.note(segment, ticket, head);
                gave.bytes < BYTES
            };
            match self.log.copy_again_in_order(*segment, &*sink, &mut given) {
                CopiedAgain::Given(ticket, head) => gave.note(*segment, ticket, head),
                CopiedAgain::Later | CopiedAgain::Behind(_) => gave.later.push(*segment),
                CopiedAgain::Gone => {
                    log.segment_gone(*segment);
                    gave.dropped.push(*segment);
                }
                CopiedAgain::Never => {
                    never.insert(*segment);
                    gave.dropped.push(*segment);
                }
            }
            if gave.bytes >= BYTES {
                break;
            }
        }
        gave
    }

    /// Whether backups keep much more for this node's earlier incarnations than what it has left of that time: streamlets have become
    /// others' since, streams were deleted, retention has taken records, and each return leaves one more log behind. They are asked
    /// each time, because what they keep is what this is about.
    fn is_mostly_dead(&self, views: &[OldView]) -> bool {
        let backups: BTreeSet<NodeNumber> = views.iter().flat_map(|view| &view.backups).copied().collect();
        let of_views = |log: &LogId| views.iter().any(|view| view.log == *log);
        let kept = backups.into_iter().filter_map(|backup| self.replicas(backup).ok());
        let kept =
            kept.map(|logs| logs.iter().filter(|(log, _)| of_views(log)).map(|(_, kept)| kept.bytes).sum::<u64>());
        kept.sum::<u64>() > DEAD_FACTOR * self.recovery.returned_bytes() + DEAD_BYTES
    }

    /// Copies what this node got back at its start and has copies of in the logs of its earlier incarnations only: one of those has lost a
    /// backup, or they keep mostly what nobody needs. When all of it is copied the old logs can go. For a [turn](TURN): whether anything was given, and
    /// nothing if the node stops.
    ///
    /// What has to wait waits alone, maybe for good: a segment that its disk does not give, a lane that is being rebuilt, a log without enough backups.
    fn copy_returned(&self, memory: &mut Memory) -> Option<bool> {
        let mut returned = memory.take_returned(&self.recovery.held_again(), || self.recovery.returned_segments());
        let never = &mut memory.never;
        let until = Instant::now() + TURN;
        let mut give = |given: &mut Given, wanted: &[SegmentId]| {
            let Some(log) = self.copies.log_of(&self.log, wanted[0]) else { return Some(wanted.to_vec()) };
            let (began, sink) = (Instant::now(), log.behind());
            if given.waits_for(&sink) {
                return Some(Vec::new());
            }
            let Gave { copied, dropped, last, bytes, .. } = self.append(wanted, &log, never);
            given.0.push((sink.clone(), last));
            while given.waits_for(&sink) && Instant::now() < until {
                self.pause(WAIT).then_some(())?;
            }
            self.pause(due(bytes).saturating_sub(began.elapsed())).then(|| [copied, dropped].concat())
        };
        let mut got = returned.round(until, &mut give)?;
        // What was asked for just now may come from the disk.
        if !got && returned.asks_for_more {
            self.pause(LOOK / 10).then_some(())?;
            got = returned.round(until, &mut give)?;
        }
        if let Some(again) = memory.went_on(returned, || self.recovery.returned_segments().0) {
            self.recovery.copied_returned(again);
        }
        Some(got)
    }
}

impl Has {
    fn has_all(&self, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
        let ranges = self.logs.get(&log).map_or(&[][..], |replica| &replica.blocks);
        ranges.iter().any(|range| range.contains(blocks.start()) && range.contains(blocks.end()))
    }
}

impl Memory {
    /// Whether all waits for a rebuild now: while one gets further, but not for [ever](REBUILD_FIRST).
    fn gives_way(&mut self, rebuilds: bool, now: Instant) -> bool {
        if !rebuilds {
            self.waits_since = None;
            return false;
        }
        let since = *self.waits_since.get_or_insert(now);
        let gives_way = now.duration_since(since) < REBUILD_FIRST;
        if !gives_way {
            self.waits_since = Some(now);
        }
        gives_way
    }

    /// What is copied next of a log. `of`: what there is without these. Those that could not be given for [long](PATIENCE) come when there is nothing else: as they are the oldest, they
    /// would be all that is asked for.
    fn next_to_copy(
        &mut self,
        now: Instant,
        of: impl Fn(&Memory, &HashSet<SegmentId>) -> Vec<SegmentId>,
    ) -> Vec<SegmentId> {
        self.waits.retain(|_, since| now.duration_since(*since) < TRY_AGAIN);
        let is_late = |since: Instant| now.duration_since(since) >= PATIENCE;
        let late = self.waits.iter().filter(|(_, since)| is_late(**since)).map(|(segment, _)| *segment);
        let without: HashSet<SegmentId> = late.chain(self.never.iter().copied()).collect();
        let wanted = of(&*self, &without);
        if wanted.is_empty() && without.len() > self.never.len() { of(&*self, &self.never) } else { wanted }
    }

    /// Remembers which of what was to be copied could not be given.
    fn note_waits(&mut self, gave: &Gave, now: Instant) {
        for segment in gave.copied.iter().chain(&gave.dropped) {
            self.waits.remove(segment);
        }
        for segment in &gave.later {
            self.waits.entry(*segment).or_insert(now);
        }
    }

    /// What came back and is to be copied: what is being copied, with what came to be held since. `look`: all that there is.
    ///
    /// One segment that cannot be given may keep it from ever being over, so what came later must not wait for that.
    fn take_returned(&mut self, again: &HeldAgain, look: impl FnOnce() -> (Vec<SegmentId>, HeldAgain)) -> Returned {
        let is_begun = self.returned.is_some();
        let begin = || Returned { known: std::mem::take(&mut self.known), ..Returned::default() };
        let mut returned = self.returned.take().unwrap_or_else(begin);
        if !is_begun || !again.is_subset(&returned.again) {
            let (mut segments, again) = look();
            segments.retain(|segment| !self.never.contains(segment));
            tracing::info!(
                segments = segments.iter().filter(|segment| !returned.known.contains(segment)).count(),
                "what came back with this node is copied again, so that its old logs can go"
            );
            returned.add(again, segments);
        }
        returned
    }

    /// Keeps what is being copied until it is over. Then, if everything that there is has its copies: with what was held again. `look`: all that there is.
    fn went_on(&mut self, returned: Returned, look: impl FnOnce() -> Vec<SegmentId>) -> Option<HeldAgain> {
        if !returned.is_over() {
            self.returned = Some(returned);
            return None;
        }
        let Returned { again, known, .. } = returned;
        (self.copied, self.known) = (Some(again.clone()), known);
        // What can never be copied has its copies in the old logs for good.
        look().iter().all(|segment| !self.never.contains(segment)).then_some(again)
    }

    /// What could not be copied may be by now, and has to be before old logs go: what came back is looked through anew, for it was left out there.
    fn level_rose(&mut self) {
        if !self.never.is_empty() {
            (self.returned, self.copied) = (None, None);
            self.known.clear();
            self.never.clear();
        }
    }

    /// Blocks of these of which a backup is not known to have all.
    fn lacking(&self, views: &[OldView]) -> u64 {
        let is_lacking =
            |view: &&OldView| view.backups.iter().any(|backup| !self.has_all(*backup, view.log, &view.blocks));
        views.iter().filter(is_lacking).map(|view| view.blocks.end() + 1 - view.blocks.start()).sum()
    }

    /// Whether a backup lacks some of these. `is_late`: those that were away when this node began would be back by now. Before that it is
    /// looked only for what a backup that is back never had: it was away when the log's end was decided, and until what is in these
    /// blocks is copied again one loss more is one too many (`docs/replication.md`, "An end that nobody can show").
    fn lacks_some(&self, views: &[OldView], is_late: bool) -> bool {
        let lacks = |view: &OldView, blocks: &RangeInclusive<u64>| {
            view.backups.iter().any(|backup| self.lacks(*backup, view.log, blocks))
        };
        views.iter().any(|view| {
            let last = *view.blocks.end()..=*view.blocks.end();
            (view.is_unshown && lacks(view, &last)) || (is_late && lacks(view, &view.blocks))
        })
    }

    /// Whether a backup does not have these blocks of a log any more: it is away for long, or has come back without them. Of one that
    /// has never been asked nothing is said.
    fn lacks(&self, backup: NodeNumber, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
        if !self.members.contains(&backup) {
            return true;
        }
        if let Some(since) = self.away.get(&backup) {
            return since.elapsed() > AWAY;
        }
        let Some(has) = self.has.get(&backup) else { return false };
        if has.has_all(log, blocks) {
            return false;
        }
        // A node that keeps silent holds up the look, and other logs their turn: of what is over no answer is too old.
        let was_over = has.ended.get(&log).is_some_and(|last| blocks.end() <= last);
        if was_over || has.at.elapsed() < FRESH {
            return true;
        }
        self.unclear.borrow_mut().insert(backup);
        false
    }

    /// Whether a backup takes part and did not have all of these when it was asked last, however long ago that was.
    fn has_said_less(&self, backup: NodeNumber, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
        let is_there = self.members.contains(&backup) && !self.away.contains_key(&backup);
        self.has.get(&backup).filter(|_| is_there).is_some_and(|has| !has.has_all(log, blocks))
    }

    /// Whether a backup takes part and has said that it has all of these. If it has not said so for long it is asked again.
    fn has_all(&self, backup: NodeNumber, log: LogId, blocks: &RangeInclusive<u64>) -> bool {
        let is_there = self.members.contains(&backup) && !self.away.contains_key(&backup);
        let Some(has) = self.has.get(&backup).filter(|_| is_there) else { return false };
        let has_all = has.has_all(log, blocks);
        if !has_all && has.at.elapsed() >= FRESH {
            self.unclear.borrow_mut().insert(backup);
        }
        has_all
    }
}

#[cfg(test)]
mod tests {
    use kera_format::{GroupId, LaneId, SegmentIndex, StreamletId};
    use kera_log::{ChunkReference, Observer, SinkError};

    use super::*;

    const LOG: LogId = LogId { node: 1, epoch: 2, vlog: 0 };

    fn of_all(segments: impl IntoIterator<Item = SegmentId>) -> Returned {
        let mut returned = Returned::default();
        returned.add(HeldAgain::new(), segments);
        returned
    }

    fn segments(streamlet: u32, count: u32) -> Vec<SegmentId> {
        let of = |index| SegmentId {
            stream: StreamId(1),
            streamlet: StreamletId(streamlet),
            lane: LaneId(0),
            group: GroupId::new(1, 1),
            index: SegmentIndex(index),
        };
        (0..count).map(of).collect()
    }

    /// Segments of streamlet 0 can never be given: their lane waits for something that is rebuilt, or their disk does not give them. There are more than are asked
    /// for at a time.
    #[test]
    fn what_cannot_be_given_holds_up_no_other_streamlet() {
        let stuck = |segment: &SegmentId| segment.streamlet == StreamletId(0);
        let (over, far) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let all = [0, 1, 2].into_iter().flat_map(|at| segments(at, 3 * SEGMENTS as u32));
        let mut returned = of_all(all);
        let mut given = HashSet::new();
        let mut round = |returned: &mut Returned, until| {
            let give = |_: &mut Given, wanted: &[SegmentId]| {
                let done: Vec<SegmentId> = wanted.iter().filter(|one| !stuck(one)).take(8).copied().collect();
                given.extend(done.iter().copied());
                Some(done)
            };
            let got = returned.round(until, give);
            (got, given.len())
        };
        assert_eq!(round(&mut returned, far), (Some(true), 16), "a piece of each of the others");
        // Where there is time for one streamlet only they take turns.
        let turns: Vec<usize> = (0..3).map(|_| round(&mut returned, over).1).collect();
        assert_eq!(turns.last(), Some(&32), "{turns:?}");
        // What was asked for in vain for long makes room.
        let mut rounds = 0;
        while round(&mut returned, far).1 < 6 * SEGMENTS {
            let ago = Instant::now().checked_sub(2 * PATIENCE).expect("the machine runs for longer");
            returned.asked.iter_mut().for_each(|(_, since)| *since = ago);
            rounds += 1;
            assert!(rounds < 1000, "{} of {} are given", given.len(), 6 * SEGMENTS);
        }
        assert!(!returned.is_over(), "the rest is asked for as long as it is there");
        assert_eq!(returned.asked.len() + returned.queue.iter().map(VecDeque::len).sum::<usize>(), 3 * SEGMENTS);
        let all_of = |_: &mut Given, wanted: &[SegmentId]| Some(wanted.to_vec());
        (0..4).for_each(|_| assert!(returned.round(far, all_of).is_some()));
        assert!(returned.is_over());
        assert_eq!(of_all(segments(0, 1)).round(far, |_, _| None), None, "the node stops");
    }

    /// A compacted segment goes behind those in front of it, which may not be asked for yet.
    #[test]
    fn what_had_to_go_first_is_not_given_once_more() {
        let all = segments(0, 2 * SEGMENTS as u32);
        let mut returned = of_all(all.clone());
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(returned.round(far, |_, _| Some(all.clone())), Some(true));
        assert!(returned.is_over());
    }

    /// A compacted segment is left out below the level from which on it is copied, and the level rises before the others are given.
    #[test]
    fn what_could_not_be_copied_before_the_level_rose_is_asked_for_again() {
        let far = Instant::now() + Duration::from_secs(3600);
        let (compacted, plain) = (segments(0, 1)[0], segments(1, 1)[0]);
        let (held, all) = (HeldAgain::new(), vec![compacted, plain]);
        let look = || (all.clone(), HeldAgain::new());
        let round = |memory: &mut Memory, done: &[SegmentId]| {
            let (mut returned, mut asked) = (memory.take_returned(&held, look), Vec::new());
            let give = |_: &mut Given, wanted: &[SegmentId]| {
                asked.extend_from_slice(wanted);
                Some(wanted.iter().filter(|one| done.contains(one)).copied().collect())
            };
            returned.round(far, give).expect("the node goes on");
            (asked, memory.went_on(returned, || all.clone()))
        };
        let mut memory = Memory::default();
        memory.never.insert(compacted);
        assert_eq!(round(&mut memory, &[]), (vec![plain], None));
        memory.level_rose();
        assert_eq!(round(&mut memory, &[plain]), (all.clone(), None), "the old logs alone have it");
        assert_eq!(round(&mut memory, &[compacted]), (vec![compacted], Some(HeldAgain::new())));
        // The same if nothing else was left to copy.
        let mut memory = Memory::default();
        memory.never.insert(compacted);
        assert_eq!(round(&mut memory, &[plain]), (vec![plain], None));
        assert_eq!(memory.copied, Some(HeldAgain::new()), "it cannot be done better");
        memory.level_rose();
        assert_eq!(memory.copied, None);
        assert_eq!(round(&mut memory, &all).1, Some(HeldAgain::new()));
    }

    #[test]
    fn what_comes_to_be_held_waits_for_nothing_that_cannot_be_given() {
        let far = Instant::now() + Duration::from_secs(3600);
        let stuck = segments(0, 1)[0];
        let mut given = Vec::new();
        let mut round = |memory: &mut Memory, again: &HeldAgain, streamlets: u32| {
            let look = || ((0..streamlets).flat_map(|at| segments(at, 1 + at)).collect(), again.clone());
            let mut returned = memory.take_returned(again, look);
            let give = |_: &mut Given, wanted: &[SegmentId]| {
                let done: Vec<SegmentId> = wanted.iter().filter(|one| **one != stuck).copied().collect();
                given.extend_from_slice(&done);
                Some(done)
            };
            returned.round(far, give).expect("the node goes on");
            assert_eq!(memory.went_on(returned, || look().0), None, "one of them is not given");
            std::mem::take(&mut given)
        };
        let mut memory = Memory::default();
        let held = |streamlet| HeldAgain::from([(StreamId(1), streamlet)]);
        assert_eq!(round(&mut memory, &HeldAgain::new(), 2), segments(1, 2));
        assert_eq!(round(&mut memory, &HeldAgain::new(), 2), []);
        assert_eq!(round(&mut memory, &held(2), 3), segments(2, 3), "what was given is not given again");
        assert_eq!(round(&mut memory, &held(3), 4), segments(3, 4), "and what is held no longer does not count");
        let returned = memory.returned.expect("it is never over");
        assert_eq!((returned.asked.len(), returned.again), (1, held(3)));
    }

    #[test]
    fn what_has_its_copies_is_not_copied_once_more_with_what_comes_to_be_held_later() {
        let far = Instant::now() + Duration::from_secs(3600);
        let round = |memory: &mut Memory, again: &HeldAgain, streamlets: u32| {
            let look = || ((0..streamlets).flat_map(|at| segments(at, 2)).collect(), again.clone());
            let (mut returned, mut given) = (memory.take_returned(again, look), Vec::new());
            let give = |_: &mut Given, wanted: &[SegmentId]| {
                given.extend_from_slice(wanted);
                Some(wanted.to_vec())
            };
            returned.round(far, give).expect("the node goes on");
            (given, memory.went_on(returned, || look().0))
        };
        let mut memory = Memory::default();
        let held = |streamlets: &[u32]| -> HeldAgain { streamlets.iter().map(|at| (StreamId(1), *at)).collect() };
        let both = [segments(0, 2), segments(1, 2)].concat();
        assert_eq!(round(&mut memory, &held(&[]), 2), (both, Some(held(&[]))));
        assert_eq!(round(&mut memory, &held(&[2]), 3), (segments(2, 2), Some(held(&[2]))));
        assert_eq!(round(&mut memory, &held(&[2, 3]), 4), (segments(3, 2), Some(held(&[2, 3]))));
        // What was left out is looked for in all that there is.
        memory.never.insert(segments(4, 1)[0]);
        memory.level_rose();
        assert_eq!(round(&mut memory, &held(&[2, 3]), 4).0.len(), 8);
    }

    #[test]
    fn a_streamlet_that_gets_copies_without_end_holds_up_a_look_for_one_piece() {
        let of =
            |streamlet| ToCopy { stream: StreamId(1), streamlet, copies: 1, wanted: 2, is_owner: true, owner_epoch: 1 };
        let work = [of(0), of(1), of(2)];
        let (over, far) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let (mut begin, mut steps) = (None, Vec::new());
        let mut some = |until, steps_max: usize| {
            let mut ended = Vec::new();
            let step = |of: &ToCopy| {
                steps.push(of.streamlet);
                let step = if of.streamlet == 1 { CopyStep::Gave(BYTES) } else { CopyStep::Later };
                (steps.len() <= steps_max).then_some(step)
            };
            let got = change_some(&work, &mut begin, until, step, |of, _| ended.push(of.streamlet));
            (got, std::mem::take(&mut steps), ended)
        };
        assert_eq!(some(over, 9), (Some(false), vec![0], vec![0]), "nothing more can be given of it now");
        assert_eq!(some(over, 9), (Some(true), vec![1], vec![]));
        assert_eq!(some(over, 9), (Some(true), vec![1], vec![]), "it goes on where it was");
        assert_eq!(some(far, 3), (None, vec![1, 1, 1, 1], vec![]), "the node stops");
        let mut begin = Some((StreamId(1), 2));
        let mut looked = Vec::new();
        let later = |of: &ToCopy| {
            looked.push(of.streamlet);
            Some(CopyStep::Later)
        };
        assert_eq!(change_some(&work, &mut begin, far, later, |_, _| {}), Some(false));
        assert_eq!((looked, begin), (vec![2, 0, 1], None), "each has its turn");
    }

    #[test]
    fn a_log_with_much_to_copy_again_holds_up_no_other_log() {
        let (over, far) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let mut left = [9, 0, 2];
        let mut turns = Vec::new();
        let mut some = |until| {
            let turn = |log: &usize| {
                turns.push(*log);
                let gets = left[*log] > 0;
                left[*log] -= u32::from(gets);
                Some(gets)
            };
            (in_turns(&[0, 1, 2], until, turn), std::mem::take(&mut turns))
        };
        assert_eq!(some(over), (Some(true), vec![0, 1, 2]), "each has its turn, however late it is");
        assert_eq!(some(far).0, Some(false), "until there is nothing left");
        assert_eq!(left, [0; 3]);
        assert_eq!(in_turns(&[0, 1], far, |_: &usize| None), None, "the node stops");
    }

    #[test]
    fn what_a_log_does_not_make_durable_is_waited_for_in_one_turn_only() {
        let sink = Arc::new(Stands(AtomicU64::new(6)));
        let given = UnderWay { sink: sink.clone(), segments: segments(0, 2), last: 7, since: 1, unsaid: None };
        assert_eq!(given.wait(Instant::now(), || panic!("its turn is over")), Some(false));
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(given.wait(far, || false), None, "the node stops");
        let goes_on = || {
            sink.0.fetch_add(1, Ordering::Relaxed);
            true
        };
        assert_eq!((given.has_copies(), given.wait(far, goes_on), given.has_copies()), (false, Some(true), true));
    }

    /// A log that has made durable what it is told.
    struct Stands(AtomicU64);

    impl DurabilitySink for Stands {
        fn appended(&self, _: ChunkReference) -> Ticket {
            0
        }
        fn durable_through(&self) -> Ticket {
            self.0.load(Ordering::Relaxed)
        }
        fn wait(&self, _: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
            false
        }
        fn healthy(&self) -> Result<(), SinkError> {
            Ok(())
        }
        fn segment_safe(&self, _: SegmentId) {}
    }

    /// Backups 3 and 4 are there and have these blocks of the log, which ends at 10.
    fn there(third: RangeInclusive<u64>, fourth: RangeInclusive<u64>) -> Memory {
        let mut memory = Memory { members: HashSet::from([3, 4]), ..Memory::default() };
        for (backup, blocks) in [(3, third), (4, fourth)] {
            let logs = HashMap::from([(LOG, Replica { blocks: vec![blocks], bytes: 0 })]);
            memory.has.insert(backup, Has { epoch: 5, at: Instant::now(), logs, ended: HashMap::new() });
        }
        memory
    }

    fn ends_at_10(is_unshown: bool) -> [OldView; 1] {
        [OldView { log: LOG, blocks: 4..=10, backups: vec![3, 4], is_unshown }]
    }

    /// Backup 3 was away when the log's end was decided, and is back without its last blocks: these are at one backup only.
    #[test]
    fn what_a_backup_that_is_back_never_had_is_copied_at_once() {
        let memory = there(4..=6, 4..=10);
        assert!(memory.lacks_some(&ends_at_10(true), false));
        assert!(memory.lacks_some(&ends_at_10(true), true));
        let whole = there(4..=10, 4..=10);
        assert!(!whole.lacks_some(&ends_at_10(true), false) && !whole.lacks_some(&ends_at_10(true), true));
    }

    /// What it had when it was asked last does not count, nor that it was not away for long when it was given up.
    #[test]
    fn who_was_given_up_has_nothing() {
        let mut memory = there(4..=10, 4..=10);
        assert!(!memory.lacks(3, LOG, &(4..=10)) && memory.has_all(3, LOG, &(4..=10)));
        assert!(!memory.has_said_less(3, LOG, &(4..=10)) && memory.has_said_less(3, LOG, &(4..=11)));
        memory.away.insert(3, Instant::now());
        assert!(!memory.lacks(3, LOG, &(4..=10)) && !memory.has_all(3, LOG, &(4..=10)), "it may be back in a moment");
        memory.away.remove(&3);
        memory.members.remove(&3);
        assert!(
            memory.lacks(3, LOG, &(4..=10)) && !memory.has_said_less(3, LOG, &(4..=11)),
            "it says nothing any more"
        );
        assert!(memory.lacks_some(&ends_at_10(false), true));
        assert_eq!((memory.lacking(&ends_at_10(false)), there(4..=10, 3..=12).lacking(&ends_at_10(false))), (7, 0));
    }

    /// A node that does not answer holds up each look for longer than answers of the others are new.
    #[test]
    fn what_a_backup_has_said_of_a_log_that_was_over_does_not_grow_old() {
        let mut memory = there(4..=6, 4..=10);
        let ago = Instant::now().checked_sub(2 * PATIENCE).expect("the machine runs for longer");
        memory.has.values_mut().for_each(|has| has.at = ago);
        assert!(!memory.lacks_some(&ends_at_10(false), true), "it may have got more since");
        assert!(memory.unclear.get_mut().remove(&3));
        memory.has.values_mut().for_each(|has| has.ended = HashMap::from([(LOG, 9)]));
        assert!(!memory.lacks_some(&ends_at_10(false), true), "there is a later end");
        memory.has.values_mut().for_each(|has| has.ended = HashMap::from([(LOG, 10)]));
        assert!(memory.lacks_some(&ends_at_10(false), true));
    }

    #[test]
    fn a_rebuild_that_takes_hours_holds_up_what_has_no_other_copy_for_a_while_only() {
        let (mut memory, begin) = (Memory::default(), Instant::now());
        let mut gives_way = |rebuilds, seconds| memory.gives_way(rebuilds, begin + Duration::from_secs(seconds));
        assert!(!gives_way(false, 0) && gives_way(true, 1) && gives_way(true, 30));
        assert!(!gives_way(true, 31), "each log has a turn");
        assert!(gives_way(true, 32) && gives_way(true, 60) && !gives_way(true, 61));
        assert!(gives_way(true, 62) && !gives_way(false, 63));
        assert!(gives_way(true, 1000), "that is another rebuild");
    }

    /// The lane of streamlet 0 is rebuilt, and waits for a person. Its segments are the oldest, and more than are asked for at a time.
    #[test]
    fn what_cannot_be_copied_again_holds_up_nothing_behind_it() {
        let (mut memory, begin) = (Memory::default(), Instant::now());
        let all = [segments(0, SEGMENTS as u32), segments(1, 2)].concat();
        let wanted = |memory: &mut Memory, seconds| {
            memory.next_to_copy(begin + Duration::from_secs(seconds), |_, without| {
                all.iter().filter(|one| !without.contains(*one)).take(SEGMENTS).copied().collect()
            })
        };
        let later = Gave { later: segments(0, SEGMENTS as u32), ..Gave::default() };
        assert_eq!(wanted(&mut memory, 0), segments(0, SEGMENTS as u32));
        memory.note_waits(&later, begin);
        memory.note_waits(&later, begin + Duration::from_secs(9));
        assert_eq!(wanted(&mut memory, 9), segments(0, SEGMENTS as u32), "it may be read from a disk");
        assert_eq!(wanted(&mut memory, 10), segments(1, 2));
        memory.never.extend(segments(1, 2));
        assert_eq!(wanted(&mut memory, 11), segments(0, SEGMENTS as u32), "there is nothing else");
        memory.never.clear();
        memory.note_waits(&Gave { copied: segments(0, 1), ..Gave::default() }, begin);
        assert_eq!(wanted(&mut memory, 12), [segments(0, 1), segments(1, 2)].concat());
        assert_eq!(wanted(&mut memory, 100), segments(0, SEGMENTS as u32), "it is tried again");
    }

    /// It may be that the front was given back, and that a backup is about to come back.
    #[test]
    fn what_may_be_there_yet_is_not_copied_at_once() {
        let mut memory = there(6..=10, 4..=10);
        assert!(!memory.lacks_some(&ends_at_10(true), false));
        assert!(memory.lacks_some(&ends_at_10(true), true));
        memory.has.remove(&3);
        memory.away.insert(3, Instant::now());
        assert!(!memory.lacks_some(&ends_at_10(true), false) && !memory.lacks_some(&ends_at_10(true), true));
        assert!(!there(4..=6, 4..=10).lacks_some(&ends_at_10(false), false), "all have shown the end");
    }
}
