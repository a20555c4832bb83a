//! Reading the blocks of lost logs from backups, and putting their chunks to their places: step 6. Threads of their own, which
//! wait for backups, for room in the arena and for this node's own log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

use bytes::Bytes;
use kera_format::chunk::Chunks;
use kera_format::vlog_replica::BLOCKS_UNDER_WAY_MAX;
use kera_log::{ArenaFull, DurabilitySink, Observer, RebuildError, Rebuilt, RebuiltCopy, SinkError, Streamlet, Ticket};
use kera_protocol::{BlocksRead, ReadBlocks, Status, StreamletRef};
use parking_lot::{Condvar, Mutex};

use super::progress::{WithoutMemory, spend};
use super::stripes::{Asking, Busy, Stripe, is_here, stripes, wanted};
use super::{Copies, NOT_READ_BACK, RangeOfLog, ReadFor, RebuildTimes, RecoveryProgress};
use crate::broker::Broker;
use crate::failure::Failure;

/// About how many bytes of chunks a backup is asked for at a time.
const READ_BYTES: u32 = 4 << 20;
/// Answers that have come and are not dealt with, of each thread that reads. With the one that is dealt with, and the one on its way, each has four at a time: 64 MiB in all of as many threads, if no block
/// is larger than what is asked for.
const AHEAD: usize = 2;
/// Segments that are whole and do not have their copies take at most one part in this many of the arena: until there are so many,
/// what is read comes before what is copied, which takes the same processors, memory and network.
const UNCOPIED_SHARE: u64 = 2;
/// Those of them that are on their way to their copies.
const WAITING_SHARE: u64 = 32;
/// How often nothing may have happened after a wait.
const LOOKS_MAX: u32 = 300;
/// Memory that is touched at a time ahead of who puts chunks there.
const TOUCHED_AT_ONCE: u64 = 2 << 20;
/// Time until it is looked again whether memory that was touched has been used.
const TOUCH_LOOK: Duration = Duration::from_millis(5);

/// An error once the node is to stop. Asked wherever something takes long: at each answer, and at each look while it is waited for memory and for copies.
///
/// What ends with it is as after any other error, or a crash: it is not told as rebuilt, the lost logs stay, and the next start takes all of it over again.
pub(super) fn must_go_on(copies: &dyn Copies) -> Result<(), Failure> {
    if copies.goes_on() {
        return Ok(());
    }
    let message = "this node is stopping, and rebuilds the rest when it is back".to_owned();
    Err(Failure::later(Status::ShuttingDown, message))
}

/// Lets a thread wait for what an [`Observer`] is told.
pub(super) struct Arrivals {
    me: Weak<Arrivals>,
    arrived: Mutex<bool>,
    changed: Condvar,
}

impl Arrivals {
    pub(super) fn new() -> Arc<Arrivals> {
        Arc::new_cyclic(|me| Arrivals { me: Weak::clone(me), arrived: Mutex::new(false), changed: Condvar::new() })
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.me.upgrade().map(|me| me as Arc<dyn Observer>)
    }

    /// Waits for a while. Whether something has come.
    pub(super) fn look(&self, pause: Duration) -> bool {
        let mut arrived = self.arrived.lock();
        if !*arrived && !pause.is_zero() {
            let _ = self.changed.wait_for(&mut arrived, pause);
        }
        std::mem::take(&mut *arrived)
    }

    /// Waits until a ticket is durable.
    pub(super) fn durable(
        &self,
        sink: &dyn DurabilitySink,
        ticket: Ticket,
        copies: &dyn Copies,
    ) -> Result<(), Failure> {
        let Some(observer) = self.observer() else { return Ok(()) };
        let (mut before, mut looks) = (sink.durable_through(), 0);
        while sink.wait(ticket, &observer, 0) {
            must_go_on(copies)?;
            self.look(copies.pause());
            let now = sink.durable_through();
            looks = if now > before { 0 } else { looks + 1 };
            before = now;
            if let Err(error) = sink.healthy()
                && (!error.kind.passes() || looks >= LOOKS_MAX)
            {
                return Err(Failure::later(Status::NotReady, format!("what was rebuilt has no copies yet: {error}")));
            }
            if looks >= LOOKS_MAX {
                let message = "what was rebuilt has no copies yet: nothing has become durable for long";
                return Err(Failure::later(Status::NotReady, message));
            }
        }
        Ok(())
    }

    /// Waits until the arena may have room; false if nothing has come back for a while.
    fn room(&self, broker: &Broker, full: &ArenaFull, copies: &dyn Copies) -> bool {
        let Some(observer) = self.observer() else { return false };
        !broker.log.wait_for_space(full.seen, &observer, 0) || self.look(copies.pause())
    }
}

impl Observer for Arrivals {
    fn advanced(&self, _: u64) {
        *self.arrived.lock() = true;
        self.changed.notify_all();
    }
}

/// Does something with each item, so many at a time; the first error ends it.
pub(super) fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    each: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let work = || {
        while failed.lock().is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            match each(item) {
                Ok(result) => done.lock().push((at, result)),
                Err(failure) => {
                    failed.lock().get_or_insert(failure);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(work);
        }
        work();
    });
    if let Some(failure) = failed.into_inner() {
        return Err(failure);
    }
    let mut done = done.into_inner();
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// Whether a backup has the last block of a range, and so all of its own, from the first that was not given back.
pub(super) fn has_last(
    range: &RangeOfLog,
    backup: u32,
    asked: &[StreamletRef],
    copies: &dyn Copies,
) -> Result<(), String> {
    let question = ReadBlocks {
        log: range.log,
        from_block: range.last,
        through_block: range.last,
        streamlets: asked.iter().take(1).copied().collect(),
        max_bytes: 1,
    };
    match copies.read_blocks(backup, &question)?.next_block > range.last {
        true => Ok(()),
        false => Err(format!("it does not have block {}", range.last)),
    }
}

/// Bytes of the last blocks of logs that are kept at most.
const TAIL_BYTES_MAX: usize = 64 << 20;

fn bytes_of(read: &BlocksRead) -> u64 {
    read.blocks.iter().map(|(_, chunks)| chunks.len() as u64).sum()
}

/// Reads the last blocks of these ranges, before anybody is told of them. One backup alone may have them: others were away when the end of the log was
/// decided, or had less. If that one was lost after streamlets were opened, what producers were told to be there already would be nowhere.
///
/// With those of which nobody gives that. An error if there is one that may not lack it.
pub(super) fn tails(
    ranges: &[RangeOfLog],
    wanted: &[StreamletRef],
    copies: &dyn Copies,
    may_lack: &(dyn Fn(&RangeOfLog) -> bool + Sync),
) -> Result<(Vec<Bytes>, Vec<RangeOfLog>), Failure> {
    let left = AtomicUsize::new(TAIL_BYTES_MAX);
    let tails = in_parallel(copies.threads(), ranges, |range| {
        let mut errors = Vec::new();
        let (there, lost) = range.there_and_lost(copies);
        for backup in there.into_iter().chain(lost) {
            match read_tail(range, backup, wanted, copies) {
                Ok(tail) => {
                    let bytes = tail.iter().map(Bytes::len).sum();
                    let room = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
                    return Ok(Ok(if room.is_ok() { tail } else { Vec::new() }));
                }
                Err(reason) => errors.push(format!("backup {backup}: {reason}")),
            }
        }
        if may_lack(range) {
            return Ok(Err(range.clone()));
        }
        let message = format!("no backup gives the last of {range}: {}", errors.join("; "));
        Err(Failure::later(Status::SegmentUnreadable, message))
    })?;
    let (mut read, mut lacking) = (Vec::new(), Vec::new());
    for tail in tails {
        match tail {
            Ok(chunks) => read.extend(chunks),
            Err(range) => lacking.push(range),
        }
    }
    Ok((read, lacking))
}

fn read_tail(
    range: &RangeOfLog,
    backup: u32,
    wanted: &[StreamletRef],
    copies: &dyn Copies,
) -> Result<Vec<Bytes>, String> {
    let (last, mut tail) = (range.last, Vec::new());
    let mut next = range.first.max(last.saturating_sub(BLOCKS_UNDER_WAY_MAX - 1));
    while next <= last {
        let asked = ReadBlocks {
            log: range.log,
            from_block: next,
            through_block: last,
            streamlets: wanted.to_vec(),
            max_bytes: READ_BYTES,
        };
        let read = copies.read_blocks(backup, &asked)?;
        if read.next_block <= next || read.next_block > last + 1 {
            return Err(format!("it does not have block {next}"));
        }
        next = read.next_block;
        tail.extend(read.blocks.into_iter().map(|(_, chunks)| chunks));
    }
    Ok(tail)
}

/// Puts what was read of the ends of logs to its places, as far as there is room: the rest is read again from whoever has it.
pub(super) fn put_tails(broker: &Broker, tails: &[Bytes]) {
    let mut put_off = 0;
    for chunk in tails.iter().flat_map(|chunks| Chunks::new(chunks)).map_while(Result::ok) {
        match broker.log.rebuild_tail(chunk.as_bytes()) {
            Ok(Rebuilt::Later) | Err(RebuildError::ArenaFull(_)) => put_off += 1,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a chunk of the end of a lost log is read again later"),
        }
    }
    if put_off > 0 {
        tracing::warn!(
            chunks = put_off,
            "other old segments take the room of the ends of lost logs; until these are read again one backup alone may have them"
        );
    }
}

/// Reads all ranges once, as far as something of them is missing. What could not be had is told; an error means that it is of
/// no use to go on. `all`: what is rebuilt together. `asks_all`: every backup of a range is read, and not one that has it to its end.
///
/// From the end of each range to its front, since what was written last is what has not been read by those who follow: they go on as soon as that is there, and
/// whatever they have read comes behind it ([`Backwards`]). No range waits for all of another one: they take turns, those at the ends of logs more of them. Long ranges that other nodes have are read
/// [in stripes](super::stripes), from all of their backups at once.
pub(super) fn pass(
    broker: &Broker,
    all: &[StreamletRef],
    ranges: &[ReadFor],
    missing: &BTreeSet<StreamletRef>,
    (copies, asks_all): (&dyn Copies, bool),
    progress: &RecoveryProgress,
) -> Result<Vec<String>, Failure> {
    let newer = |range: &RangeOfLog| {
        let is_newer = |other: &&ReadFor| other.0.log == range.log && other.0.first > range.first;
        ranges.iter().filter(is_newer).count() as u64
    };
    let (wanted, busy) = (wanted(ranges, |name| missing.contains(name)), Busy::default());
    let bytes_all = progress.bytes_all.load(Ordering::Relaxed);
    let mut jobs = BTreeMap::new();
    for Stripe { range, of, turn, is_behind } in stripes(&wanted, newer, bytes_all, (copies, asks_all)) {
        let (wanted, skipped, away, busy) = (&of.streamlets[..], &of.skipped, &of.away, &busy);
        let job = Job { broker, all, range, wanted, copies, asks_all, skipped, away, busy, progress };
        jobs.insert((turn, jobs.len()), (Reading::of(&job, is_behind), job));
    }
    let threads = copies.threads().min(jobs.len());
    let turns = Turns { waiting: Mutex::new(jobs), errors: Mutex::default(), failed: Mutex::new(None) };
    with_memory_ahead(broker, (copies, progress), || {
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| turns.take());
            }
            turns.take();
        });
    });
    match turns.failed.into_inner() {
        Some(failure) => Err(failure),
        None => Ok(bounded(turns.errors.into_inner())),
    }
}

/// What went wrong, no more of it than somebody reads.
fn bounded(mut errors: Vec<String>) -> Vec<String> {
    let more = errors.len().saturating_sub(ERRORS_MAX);
    if more > 0 {
        errors.truncate(ERRORS_MAX);
        errors.push(format!("and {more} more like these"));
    }
    errors
}

/// Does something for which memory is needed, as much as is still to be rebuilt. A page that was never used takes several times as long as what is put there is copied; who reads, checks and
/// puts chunks to their places would stand still for that, and does not if another thread has been there before. It is ahead by as much as [the arena](kera_log::Arena::warm) keeps
/// touched for writers.
fn with_memory_ahead(broker: &Broker, (copies, progress): (&dyn Copies, &RecoveryProgress), work: impl FnOnce()) {
    let all = progress.bytes_all.load(Ordering::Relaxed);
    let left = all.saturating_sub(progress.bytes_readable.load(Ordering::Relaxed));
    if copies.threads() == 1 || left < TOUCHED_AT_ONCE {
        return work();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ahead = scope.spawn(|| touch(broker, left, &is_over));
        // Also if the work panics: the scope waits for the other thread.
        let _over = Over { is_over: &is_over, thread: ahead.thread().clone() };
        work();
    });
}

/// Touches so much memory, or until it is over, or the machine has none: then whoever puts chunks there finds that out, and gives up after a while. Going on here would tell it each time that a
/// block has come back, and it would go on for as long.
pub(super) fn touch(broker: &Broker, mut left: u64, is_over: &AtomicBool) {
    while left >= TOUCHED_AT_ONCE && !is_over.load(Ordering::Acquire) {
        match broker.log.arena().warm_if_there_is_memory(TOUCHED_AT_ONCE) {
            Ok(0) => std::thread::park_timeout(TOUCH_LOOK),
            Ok(touched) => left = left.saturating_sub(touched),
            Err(_) => return,
        }
    }
}

/// Says that it is over to who touches memory, and wakes it.
struct Over<'a> {
    is_over: &'a AtomicBool,
    thread: Thread,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The ranges that are read, each with how far it is.
struct Turns<'a> {
    /// By their turns, and in front of those by how many newer ranges their logs have: who has had fewer comes first.
    waiting: Mutex<BTreeMap<(u64, usize), (Reading, Job<'a>)>>,
    errors: Mutex<Vec<String>>,
    failed: Mutex<Option<Failure>>,
}

impl Turns<'_> {
    /// Reads until nothing waits for a turn, or it is of no use.
    fn take(&self) {
        // For all that this thread reads: what is on its way counts until it is durable, whatever is read next.
        let mut copied = Copied::new();
        while self.failed.lock().is_none() {
            copied.forget_durable();
            let mut waiting = self.waiting.lock();
            let Some(((turn, number), (mut reading, job))) = waiting.pop_first() else { return };
            // Each of the others has a thread of its own then.
            let is_last = waiting.is_empty();
            drop(waiting);
            match job.turn(&mut reading, is_last, &mut copied) {
                Ok(true) => {
                    reading.tell();
                    self.errors.lock().append(&mut reading.errors);
                }
                Ok(false) => drop(self.waiting.lock().insert((turn + 1, number), (reading, job))),
                Err(failure) => drop(self.failed.lock().get_or_insert(failure)),
            }
        }
    }
}

/// Blocks of the first piece that is read of a range.
const FIRST_BLOCKS: u64 = 4;
/// About how many bytes of chunks a piece has, from when it is known how large blocks are. A backup finds the first block of one by the headers of those before it in its
/// file, or of a few of them where it remembers the place of one close by.
const PIECE_BYTES: u64 = 16 << 20;
/// By what a piece is larger than the one before at most.
const GROWS_BY: u64 = 4;
/// Bytes of chunks in the first turn of a range, and in later ones: in the first all get what their streams end with.
const FIRST_TURN_BYTES: u64 = 4 << 20;
pub(super) const TURN_BYTES: u64 = 64 << 20;
/// Pieces in a turn, if there is little in them.
const TURN_PIECES: u32 = 16;
/// Pieces for which no backup answers before a range is given up for this time; and how often one that does not is asked for blocks of it that others, which are there, do not give.
const SKIPPED_MAX: u32 = 2;
/// What went wrong is told so many times at most; of blocks that nobody gives so many rows of each range or stripe, and of what a backup says so many bytes.
const ERRORS_MAX: usize = 32;
const ROWS_MAX: usize = 8;
const REASON_BYTES: usize = 400;

/// Blocks of a range, piece after piece: the last piece first, each in its order. Its pieces follow from what was read, so that who asks ahead and who deals with the
/// answers know the same.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Backwards {
    /// What is left beside the present piece, from a block to before another one, in order.
    left: Vec<(u64, u64)>,
    /// The present piece: where it begins, and the next block of it; it ends before `end`.
    begins: u64,
    next: u64,
    end: u64,
    /// Bytes that were read of it.
    bytes: u64,
    /// Blocks of the piece that are asked for at once at most: fewer where one does not read back, so that it is known which, and more with each answer behind it.
    at_once: u64,
    /// Left of the turn.
    turn_bytes: u64,
    turn_pieces: u32,
}

impl Backwards {
    fn new(first: u64, last: u64) -> Backwards {
        Backwards::starting(first, last, FIRST_BLOCKS)
    }

    /// With so many blocks in the first piece.
    fn starting(first: u64, last: u64, blocks: u64) -> Backwards {
        let end = last.saturating_add(1).max(first);
        let mut all = Backwards {
            left: vec![(first, end)],
            begins: end,
            next: end,
            end,
            bytes: 0,
            at_once: u64::MAX,
            turn_bytes: 0,
            turn_pieces: 0,
        };
        all.begin_piece(blocks);
        all
    }

    fn is_done(&self) -> bool {
        self.next >= self.end
    }

    fn is_turn_over(&self) -> bool {
        self.is_done() || self.turn_bytes == 0 || self.turn_pieces == 0
    }

    /// What is in front of a block of the present piece was read, so many bytes since the last time. If all of it would be much more than a piece should have, because
    /// its blocks are larger than those behind it, the rest of it is read in pieces of its own.
    fn read_to(&mut self, next: u64, bytes: u64) {
        self.bytes += bytes;
        self.at_once = self.at_once.saturating_mul(2);
        self.turn_bytes = self.turn_bytes.saturating_sub(bytes);
        self.next = next;
        let (read, all) = (self.next - self.begins, self.end - self.begins);
        let is_too_large = self.bytes.saturating_mul(all) > (2 * PIECE_BYTES).saturating_mul(read);
        if self.is_done() || is_too_large {
            self.left.push((self.next, self.end));
            self.end = self.next;
            self.turn_pieces = self.turn_pieces.saturating_sub(1);
            self.piece_before();
        }
    }

    /// The last block that is asked for together with the next one.
    fn asked_to(&self) -> u64 {
        self.end.min(self.next.saturating_add(self.at_once)) - 1
    }

    /// One of the blocks that were asked for does not read back: half of them are asked for. False: it was one.
    fn narrows(&mut self) -> bool {
        let asked = self.asked_to() + 1 - self.next;
        self.at_once = (asked / 2).max(1);
        asked > 1
    }

    /// Goes on behind the next block, which nobody gives. Others have their turns sooner for it: many such blocks take a question each.
    fn leave_out(&mut self) {
        let (at_once, begins) = (self.at_once, self.begins);
        self.read_to(self.next + 1, 0);
        if self.begins == begins {
            self.at_once = at_once;
        }
        self.turn_pieces = self.turn_pieces.saturating_sub(1);
    }

    /// Goes on with the piece before the present one, which has as many blocks as have [`PIECE_BYTES`] in the present one.
    fn piece_before(&mut self) {
        let blocks = self.end - self.begins;
        let wanted = blocks.saturating_mul(PIECE_BYTES).checked_div(self.bytes).unwrap_or(u64::MAX);
        self.begin_piece(wanted.clamp(1, blocks.saturating_mul(GROWS_BY).max(1)));
    }

    /// Takes so many blocks from the end of what is left.
    fn begin_piece(&mut self, blocks: u64) {
        self.left.retain(|(first, end)| first < end);
        let Some((first, end)) = self.left.pop() else {
            (self.begins, self.next) = (self.end, self.end);
            return;
        };
        self.begins = first.max(end.saturating_sub(blocks));
        (self.next, self.end, self.bytes, self.at_once) = (self.begins, end, 0, u64::MAX);
        self.left.push((first, self.begins));
    }

    /// Nothing is read any more.
    fn finish(&mut self) {
        self.left.clear();
        self.next = self.end;
    }
}

/// How far a range is read.
struct Reading {
    /// Its backups, in the order in which they are asked, and which one is now.
    backups: Vec<u32>,
    at: usize,
    /// The first one that is asked is that which has least to do.
    chooses: bool,
    left: Backwards,
    turns: u32,
    /// What was wrong with those that did not give what was asked for last, how many these are, and which of them said last that blocks do not read back.
    reasons: Vec<String>,
    tried: usize,
    damaged_at: Option<usize>,
    /// Blocks that nobody gave who is there, and how many more there are.
    left_out: Vec<LeftOut>,
    more_left_out: u64,
    errors: Vec<String>,
}

/// Blocks in a row that nobody gave, and what was said of the first.
struct LeftOut {
    first: u64,
    last: u64,
    reasons: Vec<String>,
}

impl Reading {
    /// `is_behind`: of a stripe that is not at the end of its range, and is read as a whole.
    fn of(job: &Job<'_>, is_behind: bool) -> Reading {
        // Each that keeps silent costs its time, and what it had does not come sooner from anybody.
        let (mut backups, lost) = job.range.there_and_lost(job.copies);
        backups.extend(lost);
        let blocks = if is_behind { u64::MAX } else { FIRST_BLOCKS };
        let left = Backwards::starting(job.range.first, job.range.last, blocks);
        let chooses = !job.asks_all && job.copies.threads() > 1 && !is_here(&job.range, job.copies);
        let turns = u32::from(is_behind);
        Reading {
            backups,
            at: 0,
            chooses,
            left,
            turns,
            reasons: Vec::new(),
            tried: 0,
            damaged_at: None,
            left_out: Vec::new(),
            more_left_out: 0,
            errors: Vec::new(),
        }
    }

    /// A backup does not give the next block: which one is asked instead, or which blocks. False: the range is at its end.
    ///
    /// One that is there may give all but one block (`is_damaged`). So fewer are asked for until it is known which one nobody gives, and the reading goes on behind that. Those who do not answer
    /// at all are not asked for each such block: that would take as long as an answer may take, each time.
    fn fails(&mut self, job: &Job<'_>, reason: &str, is_damaged: bool) -> bool {
        let (backup, block) = (self.backups[self.at], self.left.next);
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES)];
        self.reasons.push(format!("backup {backup} at block {block}: {reason}"));
        if is_damaged {
            self.damaged_at = Some(self.at);
        } else {
            *job.away.lock().entry(backup).or_default() += 1;
        }
        if !job.asks_all && self.asks_next(job) {
            return true;
        }
        self.tried = 0;
        if let Some(at) = self.damaged_at.take() {
            self.at = at;
            if self.left.narrows() {
                self.reasons.clear();
            } else {
                self.leave_out();
            }
            return true;
        }
        // What is in front of it may read back all the same.
        self.errors.append(&mut self.reasons);
        self.left.piece_before();
        self.left.turn_pieces = 0;
        if job.skipped.fetch_add(1, Ordering::Relaxed) + 1 < SKIPPED_MAX {
            return true;
        }
        self.ends(job)
    }

    /// Goes on with the next backup that has not been asked for the next block. False: there is none.
    fn asks_next(&mut self, job: &Job<'_>) -> bool {
        loop {
            self.at = (self.at + 1) % self.backups.len();
            self.tried += 1;
            if self.tried >= self.backups.len() {
                return false;
            }
            let backup = self.backups[self.at];
            let times = job.away.lock().get(&backup).copied().unwrap_or(0);
            if self.damaged_at.is_none() || times < SKIPPED_MAX {
                return true;
            }
            self.reasons.push(format!("backup {backup}: it has not answered {times} times, and is asked again later"));
        }
    }

    /// Nobody who is there gives the next block.
    fn leave_out(&mut self) {
        let (block, reasons) = (self.left.next, std::mem::take(&mut self.reasons));
        let has_room = self.left_out.len() < ROWS_MAX;
        match self.left_out.last_mut() {
            Some(row) if row.last + 1 == block => row.last = block,
            _ if has_room => self.left_out.push(LeftOut { first: block, last: block, reasons }),
            _ => self.more_left_out += 1,
        }
        self.left.leave_out();
    }

    /// Somebody has given what others have failed to give.
    fn comes(&mut self) {
        self.reasons.clear();
        (self.tried, self.damaged_at) = (0, None);
    }

    /// Puts the blocks that nobody gave into words.
    fn tell(&mut self) {
        for LeftOut { first, last, reasons } in self.left_out.drain(..) {
            let reasons = reasons.join("; ");
            let is_one = first == last;
            self.errors.push(if is_one { reasons } else { format!("blocks {first} to {last}: {reasons}") });
        }
        let more = std::mem::take(&mut self.more_left_out);
        if more > 0 {
            self.errors.push(format!("{more} more blocks are given by nobody who is there"));
        }
    }

    /// A backup has given what it has. False: the range is at its end.
    fn ends(&mut self, job: &Job<'_>) -> bool {
        self.tell();
        self.at += 1;
        if !job.asks_all || self.at >= self.backups.len() {
            return false;
        }
        let Backwards { turn_bytes, turn_pieces, .. } = self.left;
        self.left = Backwards::new(job.range.first, job.range.last);
        job.skipped.store(0, Ordering::Relaxed);
        (self.left.turn_bytes, self.left.turn_pieces) = (turn_bytes, turn_pieces);
        true
    }
}

/// A range that is read, or a stripe of one.
struct Job<'a> {
    broker: &'a Broker,
    all: &'a [StreamletRef],
    range: RangeOfLog,
    wanted: &'a [StreamletRef],
    copies: &'a dyn Copies,
    asks_all: bool,
    /// Pieces of the whole range for which nobody has answered.
    skipped: &'a AtomicU32,
    /// How often each backup has given nothing of it.
    away: &'a Mutex<BTreeMap<u32, u32>>,
    busy: &'a Busy,
    progress: &'a RecoveryProgress,
}

/// Why a backup's blocks are not of use.
enum Stop {
    /// This backup's: another one is asked. `is_damaged`: one of those that it was asked for does not read back, and others it may give.
    Backup { reason: String, is_damaged: bool },
    /// Nobody's would be.
    All(Failure),
}

/// Of what a backup has said instead of giving blocks.
fn stopped(reason: String) -> Stop {
    Stop::Backup { is_damaged: reason.starts_with(NOT_READ_BACK), reason }
}

/// Of a block whose bytes are not what was written, or are of no use.
fn damaged(error: &dyn std::fmt::Display) -> Stop {
    Stop::Backup { reason: error.to_string(), is_damaged: true }
}

/// What was asked of a backup: nothing if nothing is missing any more.
type Asked = Result<Option<BlocksRead>, String>;

impl Job<'_> {
    /// Reads a part of the range, or all that is left if it is the last that waits; and from the block at which a backup fails on from the next one.
    /// Whether nothing is left; what went wrong is in `reading` then, if nobody has all of it.
    fn turn(&self, reading: &mut Reading, is_last: bool, copied: &mut Copied) -> Result<bool, Failure> {
        let bytes = if reading.turns == 0 { FIRST_TURN_BYTES } else { TURN_BYTES };
        reading.turns += 1;
        let turn = if is_last { (u64::MAX, u32::MAX) } else { (bytes, TURN_PIECES) };
        (reading.left.turn_bytes, reading.left.turn_pieces) = turn;
        if !self.asks_all && self.skipped.load(Ordering::Relaxed) >= SKIPPED_MAX {
            // Others have found out that nobody gives all of the range.
            return Ok(true);
        }
        loop {
            let Some(asking) = self.next_of(reading) else { return Ok(true) };
            let backup = asking.backup;
            let read = self.read_from(backup, reading, copied);
            drop(asking);
            // Nobody is asked any more once the node stops. That is no word about what there is: what nobody has may be given up.
            must_go_on(self.copies)?;
            let goes_on = match read {
                Ok(()) if !reading.left.is_done() => return Ok(false),
                Ok(()) => reading.ends(self),
                Err(Stop::All(failure)) => return Err(failure),
                Err(Stop::Backup { reason, is_damaged }) => {
                    if self.progress.may_say(self.broker.clock.monotonic_us()) {
                        let (range, block) = (&self.range, reading.left.next);
                        tracing::warn!(backup, %range, block, reason, "a backup does not give blocks; another one is asked");
                    }
                    // It is one failure however often is asked which block it is.
                    if !is_damaged || reading.left.at_once == u64::MAX {
                        self.busy.fails(backup);
                    }
                    reading.fails(self, &reason, is_damaged)
                }
            };
            if !goes_on {
                return Ok(true);
            }
            if reading.left.is_turn_over() && !reading.left.is_done() {
                return Ok(false);
            }
        }
    }

    /// The backup that is asked now. Which are there is looked at when a stripe has its first turn, which may be long after others had theirs.
    fn next_of(&self, reading: &mut Reading) -> Option<Asking<'_>> {
        if std::mem::take(&mut reading.chooses) {
            let (backups, asking) = self.busy.choose(self.range.there_and_lost(self.copies));
            reading.backups = backups;
            return asking;
        }
        reading.backups.get(reading.at).map(|backup| self.busy.ask(*backup))
    }

    /// Reads from one backup until the turn is over: one thread asks while this one deals with what has come.
    fn read_from(&self, backup: u32, reading: &mut Reading, copied: &mut Copied) -> Result<(), Stop> {
        if self.copies.threads() == 1 {
            while !reading.left.is_turn_over() {
                let read = self.spend(|times| &times.asking_us, || self.ask_once(backup, &reading.left));
                self.take(read.map_err(stopped)?, copied, reading)?;
            }
            return Ok(());
        }
        let (sender, receiver) = sync_channel(AHEAD);
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (left, stop) = (reading.left.clone(), &stopped);
            scope.spawn(move || self.ask(backup, left, &sender, stop));
            let result = self.deal_with(&receiver, reading, copied);
            stopped.store(true, Ordering::Relaxed);
            // Who waits to hand something over sees that nobody takes it.
            drop(receiver);
            result
        })
    }

    /// Asks for block after block.
    fn ask(&self, backup: u32, mut left: Backwards, to: &SyncSender<Asked>, stopped: &AtomicBool) {
        while !left.is_turn_over() && !stopped.load(Ordering::Relaxed) {
            let answer = self.spend(|times| &times.asking_us, || self.ask_once(backup, &left));
            let goes_on = match &answer {
                Ok(Some(read)) => {
                    left.read_to(read.next_block, bytes_of(read));
                    true
                }
                Ok(None) | Err(_) => false,
            };
            if self.spend(|times| &times.handing_us, || to.send(answer)).is_err() || !goes_on {
                return;
            }
        }
    }

    fn ask_once(&self, backup: u32, left: &Backwards) -> Asked {
        let (next, last) = (left.next, left.asked_to());
        let is_awaiting = |name: &&StreamletRef| self.broker.place_of(**name).is_some_and(|place| place.is_awaiting());
        let streamlets: Vec<StreamletRef> = self.wanted.iter().filter(is_awaiting).copied().collect();
        if streamlets.is_empty() {
            // All of it is there by now, or with a node that has come back.
            return Ok(None);
        }
        let asked = ReadBlocks {
            log: self.range.log,
            from_block: next,
            through_block: last,
            streamlets,
            max_bytes: READ_BYTES,
        };
        let read = self.copies.read_blocks(backup, &asked)?;
        if read.next_block <= next || read.next_block > last + 1 {
            // Whoever has lost several blocks in a row and knows it says so of those that have others behind them in what it is asked for; of fewer it gives nothing.
            let is_lost = read.next_block == next && left.at_once < u64::MAX;
            let of = if is_lost { NOT_READ_BACK } else { "" };
            return Err(format!("{of}asked for blocks {next} to {last} it went on to {}", read.next_block));
        }
        Ok(Some(read))
    }

    fn deal_with(&self, receiver: &Receiver<Asked>, reading: &mut Reading, copied: &mut Copied) -> Result<(), Stop> {
        while !reading.left.is_turn_over() {
            let read = self.spend(|times| &times.waiting_us, || receiver.recv());
            let read = read.map_err(|_| stopped("it stopped answering".to_owned()))?;
            self.take(read.map_err(stopped)?, copied, reading)?;
        }
        Ok(())
    }

    fn take(&self, read: Option<BlocksRead>, copied: &mut Copied, reading: &mut Reading) -> Result<(), Stop> {
        let Some(read) = read else {
            reading.left.finish();
            return Ok(());
        };
        must_go_on(self.copies).map_err(Stop::All)?;
        let put = || {
            read.blocks.iter().try_for_each(|(_, chunks)| {
                self.progress.bytes_read.fetch_add(chunks.len() as u64, Ordering::Relaxed);
                self.put_block(chunks, copied)
            })
        };
        self.spend(|times| &times.placing_us, put)?;
        reading.comes();
        reading.left.read_to(read.next_block, bytes_of(&read));
        Ok(())
    }

    fn put_block(&self, chunks: &[u8], copied: &mut Copied) -> Result<(), Stop> {
        for chunk in Chunks::new(chunks) {
            let chunk = chunk.map_err(|error| damaged(&error))?;
            let name = StreamletRef { stream: chunk.header().stream, streamlet: chunk.header().streamlet };
            if self.wanted.binary_search(&name).is_err() {
                let StreamletRef { stream, streamlet } = name;
                let reason =
                    format!("it sent a chunk of streamlet {streamlet} of stream {stream}, which was not asked for");
                return Err(stopped(reason));
            }
            if let Rebuilt::Whole { bytes } = self.put(name, chunk.as_bytes(), copied)? {
                self.progress.bytes_readable.fetch_add(bytes.into(), Ordering::Relaxed);
                self.bound_memory(name, copied)?;
            }
        }
        Ok(())
    }

    /// Has what is more than may wait copied, first of this streamlet.
    fn bound_memory(&self, name: StreamletRef, copied: &mut Copied) -> Result<(), Stop> {
        let log = &self.broker.log;
        let limit = log.arena().bytes() / UNCOPIED_SHARE;
        if log.rebuilt_bytes() <= limit {
            return Ok(());
        }
        self.spend(
            |times| &times.copies_us,
            || {
                while log.rebuilt_bytes() > limit
                    && (self.copy(name, copied)? || copied.wait(self.copies).map_err(Stop::All)?)
                {}
                Ok(())
            },
        )
    }

    /// Does something whose time counts.
    fn spend<T>(&self, on: impl FnOnce(&RebuildTimes) -> &AtomicU64, work: impl FnOnce() -> T) -> T {
        spend(&*self.broker.clock, on(&self.progress.times), work)
    }

    /// Has a segment copied: first of this streamlet, then of those that are read here, then of all that are rebuilt together. What takes the
    /// room may be of streamlets of which nothing is missing any more, and is sent nowhere else before all are read. False: there is none.
    fn copy(&self, first: StreamletRef, copied: &mut Copied) -> Result<bool, Stop> {
        copied.forget_durable();
        for name in std::iter::once(&first).chain(self.wanted).chain(self.all) {
            let Some(place) = self.broker.place_of(*name) else { continue };
            if copied.copy(self.broker, &place, self.copies).map_err(Stop::All)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Puts a chunk to its place, waiting for room. Room comes: what is whole is copied, and when it is durable goes to the store,
    /// which writes it out; what is not whole takes a part of the arena only. If none comes for long nobody frees any, and going
    /// on later is better.
    ///
    /// The same if there is room and the machine has no memory for it. But that something has come may mean little then: blocks that others need at once, or just that it may be
    /// looked again. So it does not begin to wait anew for that.
    fn put(&self, name: StreamletRef, chunk: &[u8], copied: &mut Copied) -> Result<Rebuilt, Stop> {
        let (mut looks, mut without_memory) = (0, None);
        while looks < LOOKS_MAX {
            match self.broker.log.rebuild_chunk(chunk) {
                Ok(rebuilt) => return Ok(rebuilt),
                Err(RebuildError::ArenaFull(full)) => {
                    must_go_on(self.copies).map_err(Stop::All)?;
                    if full.lacks_memory() {
                        without_memory.get_or_insert_with(|| WithoutMemory::of(self.progress));
                    }
                    let has_room: Result<bool, Stop> = self.spend(
                        |times| &times.room_us,
                        || {
                            self.copy(name, copied)?;
                            Ok(copied.arrivals.room(self.broker, &full, self.copies))
                        },
                    );
                    looks = match has_room? {
                        true if full.lacks_memory() => looks,
                        true => 0,
                        false => looks + 1,
                    };
                }
                Err(RebuildError::Sink(error)) => return Err(Stop::All(nowhere(&error))),
                Err(error) => return Err(damaged(&error)),
            }
        }
        let message = match without_memory {
            None => "the arena has been full for long, and old segments wait for room",
            Some(_) => {
                "the machine has had no memory for old segments for long: the file system of the arena is full before the arena is"
            }
        };
        Err(Stop::All(Failure::later(Status::ArenaFull, message.to_owned())))
    }
}

/// What is rebuilt cannot be made durable here.
fn nowhere(error: &SinkError) -> Failure {
    Failure::later(Status::NotReady, format!("nothing can be rebuilt: {error}"))
}

/// Bytes of rebuilt segments that may be on their way to their copies.
pub(super) fn copied_at_once(broker: &Broker) -> u64 {
    broker.log.arena().bytes() / WAITING_SHARE
}

/// Segments that are whole and on their way to their copies: until they have them they cannot leave memory.
pub(super) struct Copied {
    waiting: VecDeque<RebuiltCopy>,
    arrivals: Arc<Arrivals>,
}

impl Copied {
    pub(super) fn new() -> Copied {
        Copied { waiting: VecDeque::new(), arrivals: Arrivals::new() }
    }

    /// Sends a segment of a streamlet on its way, and waits for the first ones while too many are. False: there is none to send.
    pub(super) fn copy(&mut self, broker: &Broker, place: &Streamlet, copies: &dyn Copies) -> Result<bool, Failure> {
        must_go_on(copies)?;
        let Some(copy) = place.copy_rebuilt().map_err(|error| nowhere(&error))? else { return Ok(false) };
        self.waiting.push_back(copy);
        self.forget_durable();
        let limit = copied_at_once(broker);
        while self.waiting.len() > 1 && self.waiting.iter().map(|copy| copy.segment.bytes()).sum::<u64>() > limit {
            self.wait(copies)?;
        }
        Ok(true)
    }

    /// Those that have their copies may leave memory, and do not while they are kept here.
    fn forget_durable(&mut self) {
        self.waiting.retain(|copy| copy.sink.durable_through() < copy.ticket);
    }

    /// Waits until the first that is on its way has its copies. False: there is none.
    fn wait(&mut self, copies: &dyn Copies) -> Result<bool, Failure> {
        let Some(copy) = self.waiting.pop_front() else { return Ok(false) };
        self.arrivals.durable(&*copy.sink, copy.ticket, copies)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks as they are read, each of so many bytes, a few at a time.
    fn order(first: u64, last: u64, bytes: u64, at_a_time: u64) -> Vec<u64> {
        let (mut left, mut order) = (Backwards::new(first, last), Vec::new());
        while !left.is_done() {
            let next = left.end.min(left.next + at_a_time);
            order.extend(left.next..next);
            left.read_to(next, bytes * (next - left.next));
        }
        order
    }

    #[test]
    fn pieces_come_from_the_end_and_each_block_once() {
        for (first, last, bytes, at_a_time) in
            [(1, 1, 9, 1), (1, 10, 9, 3), (7, 5000, 100, 50), (1, 300, 1 << 20, 4), (3, 90, 64 << 20, 1), (1, 99, 0, 2)]
        {
            let mut order = order(first, last, bytes, at_a_time);
            assert!(order.iter().take(FIRST_BLOCKS as usize).any(|block| *block == last), "{order:?}");
            order.sort_unstable();
            assert_eq!(order, (first..=last).collect::<Vec<u64>>());
        }
        assert_eq!(order(1, 10, 9, 3), [7, 8, 9, 10, 1, 2, 3, 4, 5, 6]);
        assert_eq!(order(1, 0, 9, 1), [0; 0], "a range that has no blocks");
        assert_eq!(order(0, 0, 9, 1), [0]);
    }

    /// What was written last came in small chunks, what is in front of it in large ones.
    #[test]
    fn a_piece_that_is_much_larger_than_the_one_behind_it_is_taken_apart() {
        let (mut left, mut order) = (Backwards::new(1, 6000), Vec::new());
        let bytes = |block: u64| if block > 1000 { 1000 } else { 1 << 20 };
        while !left.is_done() {
            order.push(left.next);
            left.read_to(left.next + 1, bytes(left.next));
        }
        // The last of the large ones is there before more than a piece of what is in front of it, and so on.
        let at = |block: u64| order.iter().position(|other| *other == block).unwrap();
        let before = |block: u64| order[..at(block)].iter().filter(|other| **other < block - 32).count() as u64;
        assert!([1000, 900, 500, 200].iter().all(|block| before(*block) << 20 <= PIECE_BYTES), "{order:?}");
        order.sort_unstable();
        assert_eq!(order, (1..=6000).collect::<Vec<u64>>());
    }

    /// A backup that gives three blocks at a time, or none if one of them is damaged.
    #[test]
    fn of_what_is_asked_for_the_damaged_blocks_alone_are_left_out() {
        let damaged = |block: u64| [2, 17, 18, 19, 40].contains(&block);
        let (mut left, mut read, mut left_out, mut questions) = (Backwards::new(1, 40), Vec::new(), Vec::new(), 0);
        while !left.is_done() {
            let last = left.asked_to().min(left.next + 2);
            questions += 1;
            match (left.next..=last).any(damaged) {
                false => {
                    read.extend(left.next..=last);
                    left.read_to(last + 1, 9);
                }
                true if left.narrows() => {}
                true => {
                    left_out.push(left.next);
                    left.leave_out();
                }
            }
        }
        assert_eq!(left_out, [40, 2, 17, 18, 19]);
        read.sort_unstable();
        assert_eq!(read, (1..=40).filter(|block| !damaged(*block)).collect::<Vec<u64>>());
        assert!(questions < 80, "{questions} questions");
    }

    #[test]
    fn pieces_are_about_as_large_as_they_may_be() {
        let mut left = Backwards::new(1, 1_000_000);
        let mut pieces = Vec::new();
        while !left.is_done() && pieces.len() < 12 {
            pieces.push((left.end - left.begins) * 1000);
            left.read_to(left.end, (left.end - left.begins) * 1000);
        }
        assert_eq!(pieces[..3], [4000, 16_000, 64_000]);
        let all = &pieces[9..];
        assert!(all.iter().all(|bytes| (PIECE_BYTES - 1000..=PIECE_BYTES).contains(bytes)), "{pieces:?}");
    }
}
