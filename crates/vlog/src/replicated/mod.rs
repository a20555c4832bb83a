//! A virtual log that is replicated: the same sink and the same blocks as the one on disk, but they go to backups
//! (thesis 5.3.3, 6.3; `docs/replication.md` is the protocol).
//!
//! I/O threads append under a lane's lock; one thread, the log's, makes blocks, sends them and acknowledges. Answers come
//! from any thread into an inbox and wake it. How backups are reached and who is asked for views is behind two traits, so that
//! a simulator drives all of it step by step: [`ReplicatedLog::run_once`] does what can be done and never waits.
//!
//! What it must never do: acknowledge a block that a backup of the current view has not answered, or any block between asking for
//! a view and its answer; send a block with a content that its number has not always had; acknowledge anything after it learned
//! that it is fenced.

mod behind;
mod block;
mod choice;
mod kept;
mod state;
mod waiting;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kera_env::Clock;
use kera_format::cluster::Rack;
use kera_format::vlog_replica::{BLOCKS_UNDER_WAY_MAX, LogId};
use kera_format::{SegmentId, StreamId, StreamletId, copies_min};
use kera_log::{ChunkReference, DurabilitySink, SinkError, SinkErrorKind, Ticket, made_durable};
use parking_lot::Mutex;

use crate::backlog::Pending;
use behind::{Behind, Shared};
pub use block::Block;
use state::{Core, Effect};
use waiting::Waiting;

/// How old chunks are that wait for a block is known to this part of how old they may be.
const LAG_PARTS: u64 = 8;

/// Number of a node that keeps copies.
pub type BackupId = u32;

/// Which backups have a log from which block on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Its number in the log, from 1.
    pub number: u32,
    /// Its first block.
    pub first: u64,
    /// Who has it from there on.
    pub backups: Vec<BackupId>,
}

impl View {
    /// What a log has before the coordinator has agreed to its first view.
    pub const NONE: View = View { number: 0, first: 1, backups: Vec::new() };
}

/// Settings of a replicated log. [`ReplicatedConfig::new`] has defaults that work.
#[derive(Clone, Copy, Debug)]
pub struct ReplicatedConfig {
    /// Its name in the cluster.
    pub log: LogId,
    /// Copies, the broker's own included.
    pub copies: u32,
    /// The fewest copies with which writes are acknowledged.
    pub copies_min: u32,
    /// Chunks of streams with asynchronous replication are acknowledged before they are durable while not more bytes than this wait for
    /// their copies.
    pub lag_bytes_max: u64,
    /// The same for how long the oldest chunk waits for them.
    pub lag_us_max: u64,
    /// Whether somebody tells with [`ReplicatedLog::own_stored`] how far the broker's own copy is. Without it the arena is the
    /// copy, which is as durable as `process` asks.
    pub own_copy: bool,
    /// A block holds about this many bytes of chunks, and always at least one reference.
    pub block_bytes_max: usize,
    /// Blocks that are under way at a time: at least two, if anything goes [behind](ReplicatedLog::behind).
    pub blocks_under_way_max: usize,
    /// Bytes of them above which none is made.
    pub bytes_under_way_max: u64,
    /// References that may wait before appends are refused for a while. Each takes about 60 bytes.
    pub references_max: usize,
    /// Blocks are given back to backups in stretches of about so many bytes.
    pub stretch_bytes: u64,
    /// A backup that has stored nothing for so long, with something to store, is replaced.
    pub late_us: u64,
    /// A block that was sent and not answered for so long is sent again, and the next times after twice as long each, up to five seconds.
    pub resend_us: u64,
    /// A backup that is busy is left alone for so long.
    pub busy_us: u64,
    /// A view that was asked for is asked for again after so long; backups are looked for as often, and asked again whether they are there.
    pub ask_again_us: u64,
    /// A backup that was replaced is not chosen again for so long.
    pub suspect_us: u64,
    /// What lacks copies is copied again when the backups have been the same for so long.
    pub copy_again_after_us: u64,
    /// How long a view holds before it is looked whether its backups could stand in more racks.
    pub spread_after_us: u64,
}

impl ReplicatedConfig {
    /// Blocks of up to 1 MiB, four under way; a backup is late after half a second. A majority of the copies is the least.
    pub fn new(log: LogId, copies: u32) -> ReplicatedConfig {
        ReplicatedConfig {
            log,
            copies,
            copies_min: copies_min(copies),
            lag_bytes_max: 64 << 20,
            lag_us_max: 1_000_000,
            own_copy: false,
            block_bytes_max: 1 << 20,
            blocks_under_way_max: BLOCKS_UNDER_WAY_MAX as usize,
            bytes_under_way_max: 16 << 20,
            references_max: 1 << 20,
            stretch_bytes: 32 << 20,
            late_us: 500_000,
            resend_us: 100_000,
            busy_us: 10_000,
            ask_again_us: 100_000,
            suspect_us: 5_000_000,
            copy_again_after_us: 3_000_000,
            spread_after_us: 30_000_000,
        }
    }
}

/// What backups of a log have to have, as it is at some moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The present view.
    pub view: View,
    /// The blocks in it that are acknowledged and not given back.
    pub blocks: RangeInclusive<u64>,
    /// Older views, each with all of its blocks that are acknowledged.
    older: Vec<(View, RangeInclusive<u64>)>,
}

/// How blocks reach backups.
pub trait BackupLink: Send + Sync {
    /// Sends a block in a view, or [asks](Block::asks) with one. What becomes of it is told by [`ReplicatedLog::answered`], that the connection is gone by
    /// [`ReplicatedLog::broken`]. Must not block; may lose, double and reorder.
    fn send(&self, to: BackupId, view: &View, block: &Arc<Block>);

    /// Nobody needs the log's blocks up to `through` any more. May be lost.
    fn release(&self, to: BackupId, log: LogId, through: u64);
}

/// Who agrees to views: the coordinator.
pub trait Views: Send + Sync {
    /// Backups that may be chosen and where they stand, best first: on other racks, with room; those of the present view that are there among them. Must not
    /// block.
    fn candidates(&self, log: LogId) -> Vec<(BackupId, Rack)>;

    /// Asks for a view: the coordinator agrees if the one before it is the newest and the node is not fenced. Answered by
    /// [`ReplicatedLog::view_answered`]; must not block; may be asked more than once.
    fn ask(&self, log: LogId, view: &View);

    /// A backup or the coordinator has fenced this node: it was declared lost and must join again.
    fn fenced(&self, log: LogId);

    /// Nobody needs the blocks of this older view any more, nor its backups: they were given back, or what lives in them has come again
    /// in later blocks. Told once; if it gets lost a recovery asks for the view in vain and waits for its backups. Must not block.
    fn give_up_view(&self, log: LogId, view: u32) {
        let _ = (log, view);
    }
}

/// What a backup says about a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It has it, and all before it from the view's first one on; up to which, it says itself.
    Stored(u64),
    /// It takes nothing from this node and epoch.
    Fenced(u32),
    /// It can take this one.
    Next(u64),
    /// It has no room now, or could not write it: it may be sent again soon.
    Busy(String),
    /// It cannot take it: full disk, failed disk.
    Refused(String),
}

/// What the coordinator says about a view. It may come late, and more than once: it says of which view it speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViewAnswer {
    /// This view is agreed to.
    Agreed(View),
    /// One is not. The same question may still be agreed to if it was put more than once.
    Refused {
        /// The one that was asked for.
        asked: View,
        /// The newest that whoever answers knows.
        newest: View,
    },
    /// This node and epoch are fenced.
    Fenced,
}

/// Something that happened.
pub(crate) enum Event {
    /// Of a backup in one of its lives, to a block.
    Answered(BackupId, u64, u64, Answer),
    Broken(BackupId, String),
    View(ViewAnswer),
    /// Of a backup, the view that holds, and a block.
    Lost(BackupId, u32, u64),
    Own(u64),
}

/// What a turn did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Something; there may be more to do.
    Worked,
    /// Nothing.
    Idle,
    /// Nothing is taken any more: it is fenced.
    Fenced,
}

/// What a replicated log has done since it was opened, and what it holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicatedStats {
    /// Blocks acknowledged.
    pub blocks: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Bytes of the chunks.
    pub chunk_bytes: u64,
    /// Blocks under way.
    pub under_way: u64,
    /// Bytes of them.
    pub bytes_under_way: u64,
    /// References that wait for a block.
    pub pending_references: u64,
    /// Bytes of them.
    pub pending_bytes: u64,
    /// For how long the oldest chunk that is in a block has waited for its copies, in microseconds.
    pub lag_us: u64,
    /// Number of the view.
    pub view: u32,
    /// Copies that the newest blocks get, the broker's own included.
    pub copies: u64,
    /// View changes.
    pub views_changed: u64,
    /// Times that blocks were sent again.
    pub resent: u64,
    /// Blocks that are needed and may have fewer copies than they should.
    pub under_replicated: u64,
    /// Whether it is fenced.
    pub fenced: bool,
}

/// See the module.
pub struct ReplicatedLog {
    config: ReplicatedConfig,
    clock: Arc<dyn Clock>,
    links: Arc<dyn BackupLink>,
    views: Arc<dyn Views>,
    shared: Arc<Shared>,
    behind: Arc<Behind>,
    inbox: Mutex<Vec<Event>>,
    writer: Mutex<Writer>,
    blocks: AtomicU64,
    chunks: AtomicU64,
    chunk_bytes: AtomicU64,
}

/// What only the log's thread touches.
struct Writer {
    core: Core,
    /// What producers wait for, and what nobody waits for.
    new: Taken,
    behind: Taken,
    /// Since when what producers wait for waits.
    waiting: Waiting,
    events: Vec<Event>,
    /// Bytes of new chunks of each streamlet, if somebody wants to know.
    measured: Option<Shares>,
}

/// What was taken from a backlog.
#[derive(Default)]
struct Taken {
    /// Blocks are made of what is in front, while there may be a million behind that.
    pending: VecDeque<Pending>,
    /// The last ticket that is in a block.
    ticket: Ticket,
}

/// Bytes of the chunks of streamlets.
pub type Shares = HashMap<(StreamId, StreamletId), u64>;

impl ReplicatedLog {
    /// A log whose first view the coordinator has agreed to.
    pub fn new(
        config: ReplicatedConfig,
        view: View,
        clock: Arc<dyn Clock>,
        links: Arc<dyn BackupLink>,
        views: Arc<dyn Views>,
    ) -> Arc<ReplicatedLog> {
        let core = Core::new(config, view, clock.monotonic_us());
        let (new, behind, waiting) = Default::default();
        let shared = Arc::new(Shared::new(config));
        Arc::new(ReplicatedLog {
            writer: Mutex::new(Writer { core, new, behind, waiting, events: Vec::new(), measured: None }),
            behind: Arc::new(Behind::new(&shared)),
            shared,
            inbox: Mutex::default(),
            blocks: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
            chunk_bytes: AtomicU64::new(0),
            config,
            clock,
            links,
            views,
        })
    }

    /// The sink for what is copied again: what is appended to the log itself does not wait behind it.
    pub fn behind(&self) -> Arc<dyn DurabilitySink> {
        self.behind.clone()
    }

    /// Its name in the cluster.
    pub fn id(&self) -> LogId {
        self.config.log
    }

    /// A backup has answered to a block. Any thread.
    ///
    /// `life`: in which of its lives, from 1; a later one has a larger number. Between two of them a backup may have lost what it had, within one it
    /// has not. A life may have several numbers if whatever is answered by the next one was asked when nothing by the one before could come any more.
    pub fn answered(&self, backup: BackupId, life: u64, block: u64, answer: Answer) {
        self.happened(Event::Answered(backup, life, block, answer));
    }

    /// The connection to a backup is gone, or cannot be made. Any thread.
    pub fn broken(&self, backup: BackupId, why: String) {
        self.happened(Event::Broken(backup, why));
    }

    /// A backup has these blocks, as it has said: it is replaced, perhaps by itself, if some of those are missing that [`held`](ReplicatedLog::held) told before it
    /// was asked. If they are of an older view, what lives in that is [copied again](ReplicatedLog::to_copy_again), whatever the backup says later. Any thread.
    ///
    /// What is in front of all that it has of a view may have been given back. A hole is none of that, also where nothing lives in it any more: whoever takes over asks for
    /// the whole view, and only this log knows what nobody needs.
    pub fn came_back(&self, backup: BackupId, held: &Held, has: &[RangeInclusive<u64>]) {
        let released = self.writer.lock().core.kept.released();
        let present = (&held.view, held.view.first..=*held.blocks.end());
        let older = held.older.iter().map(|(view, blocks)| (view, blocks.clone()));
        for (view, blocks) in older.chain([present]).filter(|(view, _)| view.backups.contains(&backup)) {
            if let Some(missing) = first_missing(&blocks, released, has) {
                self.happened(Event::Lost(backup, view.number, missing));
            }
        }
    }

    /// The present view and the older ones that are needed, with the blocks that each of their backups must have. Any thread.
    pub fn held(&self) -> Held {
        let writer = self.writer.lock();
        let core = &writer.core;
        Held { view: core.view.clone(), blocks: core.held(), older: core.held_before() }
    }

    /// A backup was started again, and may not have heard what was given back: it is told so once more. Any thread.
    pub fn release_again(&self, backup: BackupId) {
        self.tell(|core| core.release_again(backup));
    }

    /// The coordinator has answered. Any thread.
    pub fn view_answered(&self, answer: ViewAnswer) {
        self.happened(Event::View(answer));
    }

    /// The broker's own copy has all blocks up to this one. Any thread.
    pub fn own_stored(&self, through: u64) {
        self.happened(Event::Own(through));
    }

    fn happened(&self, event: Event) {
        let mut inbox = self.inbox.lock();
        inbox.push(event);
        let first = inbox.len() == 1;
        drop(inbox);
        if first {
            self.shared.new.nudge();
        }
    }

    /// Works until [`stop`](ReplicatedLog::stop): the log's thread's main function. What is not acknowledged then stays so.
    pub fn run(&self) {
        while !self.shared.new.is_stopping() {
            if self.run_once() == Turn::Worked {
                continue;
            }
            let (wait_us, full) = {
                let writer = self.writer.lock();
                (writer.core.wait_us(), !writer.core.has_room())
            };
            self.shared.new.sleep(Duration::from_micros(wait_us), full);
        }
    }

    /// Does all that can be done now: takes what happened, acknowledges, makes blocks, sends.
    pub fn run_once(&self) -> Turn {
        let now_us = self.clock.monotonic_us();
        let mut guard = self.writer.lock();
        let writer = &mut *guard;
        std::mem::swap(&mut writer.events, &mut self.inbox.lock());
        let mut worked = !writer.events.is_empty();
        for event in writer.events.drain(..) {
            writer.core.event(event, now_us);
        }
        self.shared.tell_kept(&mut writer.core.kept);
        worked |= self.acknowledge(&mut writer.core);
        worked |= self.make_blocks(writer, now_us);
        let log = self.config.log;
        writer.core.turn(now_us, &|| self.views.candidates(log));
        writer.core.release();
        let was_fenced = writer.core.fenced;
        let view = writer.core.view.clone();
        for effect in std::mem::take(&mut writer.core.effects) {
            match effect {
                Effect::Send(to, block) => self.links.send(to, &view, &block),
                Effect::Ask(view) => self.views.ask(log, &view),
                Effect::Release(to, through) => self.links.release(to, log, through),
                Effect::GiveUpView(view) => self.views.give_up_view(log, view),
                Effect::Fenced => {
                    writer.new.pending.clear();
                    writer.behind.pending.clear();
                    self.now_fenced();
                }
            }
            worked = true;
        }
        self.look_after(&writer.core, now_us);
        match (was_fenced, worked) {
            (true, _) => Turn::Fenced,
            (false, true) => Turn::Worked,
            (false, false) => Turn::Idle,
        }
    }

    /// Moves durable heads in the order of the appends, then tells who waits.
    fn acknowledge(&self, core: &mut Core) -> bool {
        let acknowledged = core.acknowledge();
        for block in &acknowledged {
            made_durable(&block.references);
            self.shared.made_durable(block);
            self.blocks.fetch_add(1, Ordering::Relaxed);
            self.chunks.fetch_add(block.chunk_count.into(), Ordering::Relaxed);
            self.chunk_bytes.fetch_add(block.chunk_bytes.into(), Ordering::Relaxed);
        }
        !acknowledged.is_empty()
    }

    fn make_blocks(&self, writer: &mut Writer, now_us: u64) -> bool {
        let mut made = false;
        while writer.core.has_room() {
            self.shared.take(&mut writer.new, &mut writer.behind);
            let under_way = writer.core.behind_under_way();
            let Some(is_behind) = behind::comes_next(&writer.new.pending, &writer.behind.pending, under_way) else {
                break;
            };
            let from = if is_behind { &mut writer.behind } else { &mut writer.new };
            let mut bytes = 0;
            let fits = |pending: &&Pending| {
                bytes += pending.reference.bytes as usize;
                bytes <= self.config.block_bytes_max
            };
            let count = from.pending.iter().take_while(fits).count().max(1);
            if let Some(shares) = writer.measured.as_mut().filter(|_| !is_behind) {
                measure(shares, from.pending.range(..count));
            }
            let taken = from.pending.drain(..count).collect();
            let number = writer.core.next_block();
            let block = Block::new(self.config.log, number, self.clock.now_ms(), taken, from.ticket);
            let block = Arc::new(Block { is_behind, ..block });
            let since_us = if is_behind { now_us } else { writer.waiting.since(from.ticket + 1, now_us) };
            from.ticket = block.last_ticket;
            writer.core.push(block, since_us);
            if !self.config.own_copy {
                writer.core.event(Event::Own(number), 0);
            }
            made = true;
        }
        if writer.core.has_room() {
            writer.waiting.nothing_waits();
        } else {
            writer.waiting.no_room(self.shared.new.last_ticket(), now_us, self.config.lag_us_max / LAG_PARTS);
        }
        made
    }

    /// Whether appends make sense.
    fn look_after(&self, core: &Core, now_us: u64) {
        if core.fenced {
            return;
        }
        let shared = &self.shared;
        shared.is_late.store(core.lag_us(now_us) > self.config.lag_us_max, Ordering::Relaxed);
        let waiting = shared.new.depth().references;
        let lasts = core.too_few_for_long(now_us);
        let kind = if lasts.is_some() { SinkErrorKind::TooFewCopies } else { SinkErrorKind::Behind };
        let trouble = lasts.or_else(|| core.too_few()).or_else(|| {
            let limit = match shared.healthy.load(Ordering::Relaxed) {
                true => self.config.references_max,
                false => self.config.references_max / 2,
            };
            (waiting > limit).then(|| format!("{waiting} chunks wait for the backups of {}", self.config.log))
        });
        let is_well = trouble.is_none();
        let now = trouble.map(|reason| SinkError { kind, reason, retry_after_ms: 20 });
        let before = std::mem::replace(&mut *shared.trouble.lock(), now);
        let was_well = shared.healthy.swap(is_well, Ordering::AcqRel);
        // Who was told to wait, waits for the next block to become durable; with too few copies there need not be any on its way. That they have been too few
        // for long is told, too: whoever can say so to a client does not wait for it.
        let begins_to_last = kind == SinkErrorKind::TooFewCopies
            && before.is_none_or(|before| before.kind != SinkErrorKind::TooFewCopies);
        if (is_well && !was_well) || begins_to_last {
            shared.wake_waiters();
        }
    }

    /// What waits never becomes durable: whoever waits is told to look again, and everybody that this node is out.
    fn now_fenced(&self) {
        let reason =
            format!("{}: this node was declared lost and owns nothing until it has joined again", self.config.log);
        tracing::error!("{reason}");
        *self.shared.trouble.lock() = Some(SinkError { kind: SinkErrorKind::Fenced, reason, retry_after_ms: 0 });
        self.shared.healthy.store(false, Ordering::Release);
        self.shared.take(&mut Taken::default(), &mut Taken::default());
        self.views.fenced(self.config.log);
        self.shared.wake_waiters();
    }

    /// Has [`run`](ReplicatedLog::run) return.
    pub fn stop(&self) {
        self.shared.new.stop();
    }

    /// Looks which blocks of older views have all their copies although their backups are not those of the present view: `has` says whether a backup is there and has
    /// all of these. Until it is called again, or another view holds, [`ReplicatedStats::under_replicated`] does not count them. And which do not have theirs although
    /// their backups are: `lacks` says whether one does not have all of these any more. Any thread.
    pub fn look_at_copies(
        &self,
        has: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool,
        lacks: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool,
    ) {
        self.writer.lock().core.look_at_copies(has, lacks);
    }

    /// Tells of older views that are not needed any more. Any thread.
    pub fn give_up_views(&self) {
        self.tell(Core::give_up_views);
    }

    /// Tells once more of those older views that are not needed any more and are among `named`, for which the coordinator still names backups: what was told of them may have
    /// got lost. Any thread.
    pub fn give_up_again(&self, named: &[u32]) {
        self.tell(|core| core.give_up_again(named));
    }

    /// Has the log's thread do what comes of it.
    fn tell(&self, what: impl FnOnce(&mut Core)) {
        let mut writer = self.writer.lock();
        what(&mut writer.core);
        if !writer.core.effects.is_empty() {
            self.shared.new.nudge();
        }
    }

    /// Segments whose chunks are to be appended once more ([`kera_log::Log::copy_again`]), the oldest first and at most `most`: those that
    /// have fewer copies than they should since a backup was replaced, and a few old ones that hold back many blocks in which nothing else
    /// lives. `without` names those that cannot be copied; `lacks` says whether a backup of an older view does not have these of its
    /// blocks any more, because it is lost or came back without them. Also tells of views that are not needed any more. Any thread.
    pub fn to_copy_again(
        &self,
        most: usize,
        without: &HashSet<SegmentId>,
        lacks: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool,
    ) -> Vec<SegmentId> {
        self.give_up_views();
        let now_us = self.clock.monotonic_us();
        self.writer.lock().core.to_copy_again(now_us, most, without, lacks)
    }

    /// Blocks that may have chunks of a segment, each range with the backups that have all of it; the newest first. As many bytes as a backup's file each, or less.
    /// Any thread.
    pub fn blocks_of(&self, segment: SegmentId) -> Vec<(RangeInclusive<u64>, Vec<BackupId>)> {
        self.writer.lock().core.blocks_of(segment)
    }

    /// The number of the next block: whatever is appended from now on is in this one or behind it.
    pub fn next_block(&self) -> u64 {
        self.writer.lock().core.next_block()
    }

    /// All chunks of a segment were appended again when `since` was the [next block](ReplicatedLog::next_block) or a later one was,
    /// and are durable: older blocks are not needed for it. Any thread.
    pub fn copied_again(&self, segment: SegmentId, since: u64) {
        self.writer.lock().core.kept.copied_again(segment, since);
        self.shared.new.nudge();
    }

    /// Bytes of the chunks of each streamlet that have come into blocks since it was asked last; nothing the first time. What is copied
    /// again or rebuilt does not count. Any thread.
    pub fn take_shares(&self) -> Shares {
        self.writer.lock().measured.replace(Shares::new()).unwrap_or_default()
    }

    /// The last block that is acknowledged, and the view that holds.
    pub fn state(&self) -> (u64, View) {
        let writer = self.writer.lock();
        (writer.core.acknowledged, writer.core.view.clone())
    }

    /// Counters and sizes.
    pub fn stats(&self) -> ReplicatedStats {
        let now_us = self.clock.monotonic_us();
        let writer = self.writer.lock();
        let ((under_way, bytes_under_way), core) = (writer.core.under_way(), &writer.core);
        let (new, behind) = (self.shared.new.depth(), self.shared.behind.depth());
        let taken = writer.new.pending.len() + writer.behind.pending.len();
        ReplicatedStats {
            blocks: self.blocks.load(Ordering::Relaxed),
            chunks: self.chunks.load(Ordering::Relaxed),
            chunk_bytes: self.chunk_bytes.load(Ordering::Relaxed),
            under_way: under_way as u64,
            bytes_under_way,
            pending_references: (new.references + behind.references + taken) as u64,
            pending_bytes: new.bytes + behind.bytes,
            lag_us: core.lag_us(now_us),
            view: core.view.number,
            copies: 1 + core.view.backups.len() as u64,
            views_changed: core.views_changed,
            resent: core.resent,
            under_replicated: core.under_replicated(),
            fenced: core.fenced,
        }
    }
}

/// The first block of a view that is not among those that a backup has. Blocks up to `released` it may have given back, all in front of the first that it has.
fn first_missing(blocks: &RangeInclusive<u64>, released: u64, has: &[RangeInclusive<u64>]) -> Option<u64> {
    let (first, last) = (*blocks.start(), *blocks.end());
    let needed = first.max(released + 1);
    let of_view = has.iter().filter(|range| first <= *range.end()).min_by_key(|range| *range.start());
    let missing = match of_view {
        Some(range) if *range.start() <= needed => range.end() + 1,
        _ => needed,
    };
    (needed <= last && missing <= last).then_some(missing)
}

fn measure<'a>(shares: &mut Shares, taken: impl Iterator<Item = &'a Pending>) {
    // What is durable comes once more.
    let is_new = |of: &ChunkReference| of.next_ordinal > of.lane.durable_ordinal();
    for of in taken.map(|pending| &pending.reference).filter(|of| is_new(of)) {
        *shares.entry((of.lane.stream_id(), of.lane.streamlet_id())).or_default() += u64::from(of.bytes);
    }
}
