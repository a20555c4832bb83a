//! Reading the blocks of lost logs from backups, and putting their chunks to their places: step 6. Threads of their own, which
//! wait for backups, for room in the arena and for this node's own log.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use kera_format::chunk::Chunks;
use kera_format::vlog_replica::BLOCKS_UNDER_WAY_MAX;
use kera_log::{
    ArenaFull, DurabilitySink, Observer, RebuildError, Rebuilt, RebuiltCopy, SinkError, SinkErrorKind, Streamlet,
    Ticket,
};
use kera_protocol::{BlocksRead, ReadBlocks, Status, StreamletRef};
use parking_lot::{Condvar, Mutex};

use super::{Copies, RangeOfLog, ReadFor, RecoveryProgress};
use crate::broker::Broker;
use crate::failure::Failure;

/// About how many bytes of chunks a backup is asked for at a time.
const READ_BYTES: u32 = 4 << 20;
/// Answers that have come and are not dealt with.
const AHEAD: usize = 2;
/// Segments that are whole and do not have their copies take at most one part in this many of the arena: until there are so many,
/// what is read comes before what is copied, which takes the same processors, memory and network.
const UNCOPIED_SHARE: u64 = 2;
/// Those of them that are on their way to their copies.
const WAITING_SHARE: u64 = 32;
/// How often nothing may have happened after a wait.
const LOOKS_MAX: u32 = 300;

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
            self.look(copies.pause());
            let now = sink.durable_through();
            looks = if now > before { 0 } else { looks + 1 };
            before = now;
            if let Err(error) = sink.healthy()
                && (error.kind != SinkErrorKind::Behind || looks >= LOOKS_MAX)
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

/// Reads the last blocks of these ranges, before anybody is told of them. One backup alone may have them: others were away when the end of the log was
/// decided, or had less. If that one was lost after streamlets were opened, what producers were told to be there already would be nowhere.
pub(super) fn tails(
    ranges: &[RangeOfLog],
    wanted: &[StreamletRef],
    copies: &dyn Copies,
) -> Result<Vec<Bytes>, Failure> {
    let left = AtomicUsize::new(TAIL_BYTES_MAX);
    let tails = in_parallel(copies.threads(), ranges, |range| {
        let mut errors = Vec::new();
        let (there, lost) = range.there_and_lost(copies);
        for backup in there.into_iter().chain(lost) {
            match read_tail(range, backup, wanted, copies) {
                Ok(tail) => {
                    let bytes = tail.iter().map(Bytes::len).sum();
                    let room = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
                    return Ok(if room.is_ok() { tail } else { Vec::new() });
                }
                Err(reason) => errors.push(format!("backup {backup}: {reason}")),
            }
        }
        let message = format!("no backup gives the last of {range}: {}", errors.join("; "));
        Err(Failure::later(Status::SegmentUnreadable, message))
    })?;
    Ok(tails.into_iter().flatten().collect())
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
    for chunk in tails.iter().flat_map(|chunks| Chunks::new(chunks)).map_while(Result::ok) {
        if let Err(error) = broker.log.rebuild_chunk(chunk.as_bytes()) {
            tracing::debug!(%error, "a chunk of the end of a lost log is read again later");
        }
    }
}

/// Reads all ranges once, as far as something of them is missing. What could not be had is told; an error means that it is of
/// no use to go on. `all`: what is rebuilt together. `asks_all`: every backup of a range is read, and not one that has it to its end.
pub(super) fn pass(
    broker: &Broker,
    all: &[StreamletRef],
    ranges: &[ReadFor],
    missing: &BTreeSet<StreamletRef>,
    (copies, asks_all): (&dyn Copies, bool),
    progress: &RecoveryProgress,
) -> Result<Vec<String>, Failure> {
    let mut jobs = Vec::new();
    for (range, has) in ranges {
        let wanted: Vec<StreamletRef> = has.iter().filter(|name| missing.contains(name)).copied().collect();
        if !wanted.is_empty() {
            jobs.push(Job { broker, all, range, wanted, copies, asks_all, progress });
        }
    }
    let errors = in_parallel(copies.threads(), &jobs, Job::run)?;
    Ok(errors.into_iter().flatten().collect())
}

/// A range that is read.
struct Job<'a> {
    broker: &'a Broker,
    all: &'a [StreamletRef],
    range: &'a RangeOfLog,
    wanted: Vec<StreamletRef>,
    copies: &'a dyn Copies,
    asks_all: bool,
    progress: &'a RecoveryProgress,
}

/// Why a backup's blocks are not of use.
enum Stop {
    /// This backup's: another one is asked.
    Backup(String),
    /// Nobody's would be.
    All(Failure),
}

impl Job<'_> {
    /// Reads the range from one backup, and from the block at which it fails from the next. What went wrong with those that
    /// failed, if none has all of it.
    fn run(&self) -> Result<Vec<String>, Failure> {
        let (mut from, mut errors) = (self.range.first, Vec::new());
        // Each that keeps silent costs its time, and what it had does not come sooner from anybody.
        let (there, lost) = self.range.there_and_lost(self.copies);
        for backup in there.into_iter().chain(lost) {
            if self.asks_all {
                from = self.range.first;
            }
            match self.read_from(backup, &mut from) {
                Ok(()) if self.asks_all => {}
                Ok(()) => return Ok(Vec::new()),
                Err(Stop::All(failure)) => return Err(failure),
                Err(Stop::Backup(reason)) => {
                    tracing::warn!(backup, range = %self.range, reason, "a backup does not give blocks; another one is asked");
                    errors.push(format!("backup {backup} at block {from}: {reason}"));
                }
            }
        }
        Ok(errors)
    }

    /// Reads from one backup: one thread asks while this one deals with what has come.
    fn read_from(&self, backup: u32, from: &mut u64) -> Result<(), Stop> {
        if self.copies.threads() == 1 {
            let mut copied = Copied::new();
            while *from <= self.range.last {
                let read = self.ask_once(backup, *from).map_err(Stop::Backup)?;
                self.take(&read, &mut copied, from)?;
            }
            return Ok(());
        }
        let (sender, receiver) = sync_channel(AHEAD);
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (first, stop) = (*from, &stopped);
            scope.spawn(move || self.ask(backup, first, &sender, stop));
            let result = self.deal_with(&receiver, from);
            stopped.store(true, Ordering::Relaxed);
            // Who waits to hand something over sees that nobody takes it.
            drop(receiver);
            result
        })
    }

    /// Asks for block after block.
    fn ask(&self, backup: u32, first: u64, to: &SyncSender<Result<BlocksRead, String>>, stopped: &AtomicBool) {
        let mut next = first;
        while next <= self.range.last && !stopped.load(Ordering::Relaxed) {
            let answer = self.ask_once(backup, next);
            let failed = answer.is_err();
            if let Ok(read) = &answer {
                next = read.next_block;
            }
            if to.send(answer).is_err() || failed {
                return;
            }
        }
    }

    fn ask_once(&self, backup: u32, next: u64) -> Result<BlocksRead, String> {
        let last = self.range.last;
        let is_awaiting = |name: &&StreamletRef| self.broker.place_of(**name).is_some_and(|place| place.is_awaiting());
        let streamlets: Vec<StreamletRef> = self.wanted.iter().filter(is_awaiting).copied().collect();
        if streamlets.is_empty() {
            // All of it is there by now, or with a node that has come back.
            return Ok(BlocksRead { next_block: last + 1, ..BlocksRead::default() });
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
            return Err(format!("asked for blocks {next} to {last} it went on to {}", read.next_block));
        }
        Ok(read)
    }

    fn deal_with(&self, receiver: &Receiver<Result<BlocksRead, String>>, from: &mut u64) -> Result<(), Stop> {
        let mut copied = Copied::new();
        while *from <= self.range.last {
            let read = receiver.recv().map_err(|_| Stop::Backup("it stopped answering".to_owned()))?;
            self.take(&read.map_err(Stop::Backup)?, &mut copied, from)?;
        }
        Ok(())
    }

    fn take(&self, read: &BlocksRead, copied: &mut Copied, from: &mut u64) -> Result<(), Stop> {
        for (_, chunks) in &read.blocks {
            self.progress.bytes_read.fetch_add(chunks.len() as u64, Ordering::Relaxed);
            self.put_block(chunks, copied)?;
        }
        *from = read.next_block;
        Ok(())
    }

    fn put_block(&self, chunks: &[u8], copied: &mut Copied) -> Result<(), Stop> {
        for chunk in Chunks::new(chunks) {
            let chunk = chunk.map_err(|error| Stop::Backup(error.to_string()))?;
            let name = StreamletRef { stream: chunk.header().stream, streamlet: chunk.header().streamlet };
            if self.wanted.binary_search(&name).is_err() {
                let StreamletRef { stream, streamlet } = name;
                let reason =
                    format!("it sent a chunk of streamlet {streamlet} of stream {stream}, which was not asked for");
                return Err(Stop::Backup(reason));
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
        while log.rebuilt_bytes() > limit
            && (self.copy(name, copied)? || copied.wait(self.copies).map_err(Stop::All)?)
        {}
        Ok(())
    }

    /// Has a segment copied: first of this streamlet, then of those that are read here, then of all that are rebuilt together. What takes the
    /// room may be of streamlets of which nothing is missing any more, and is sent nowhere else before all are read. False: there is none.
    fn copy(&self, first: StreamletRef, copied: &mut Copied) -> Result<bool, Stop> {
        for name in std::iter::once(&first).chain(&self.wanted).chain(self.all) {
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
    fn put(&self, name: StreamletRef, chunk: &[u8], copied: &mut Copied) -> Result<Rebuilt, Stop> {
        let mut looks = 0;
        while looks < LOOKS_MAX {
            match self.broker.log.rebuild_chunk(chunk) {
                Ok(rebuilt) => return Ok(rebuilt),
                Err(RebuildError::ArenaFull(full)) => {
                    self.copy(name, copied)?;
                    looks = if copied.arrivals.room(self.broker, &full, self.copies) { 0 } else { looks + 1 };
                }
                Err(RebuildError::Sink(error)) => return Err(Stop::All(nowhere(&error))),
                Err(error) => return Err(Stop::Backup(error.to_string())),
            }
        }
        let message = "the arena has been full for long, and old segments wait for room".to_owned();
        Err(Stop::All(Failure::later(Status::ArenaFull, message)))
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
        let Some(copy) = place.copy_rebuilt().map_err(|error| nowhere(&error))? else { return Ok(false) };
        self.waiting.push_back(copy);
        self.waiting.retain(|copy| copy.sink.durable_through() < copy.ticket);
        let limit = copied_at_once(broker);
        while self.waiting.len() > 1 && self.waiting.iter().map(|copy| copy.segment.bytes()).sum::<u64>() > limit {
            self.wait(copies)?;
        }
        Ok(true)
    }

    /// Waits until the first that is on its way has its copies. False: there is none.
    fn wait(&mut self, copies: &dyn Copies) -> Result<bool, Failure> {
        let Some(copy) = self.waiting.pop_front() else { return Ok(false) };
        self.arrivals.durable(&*copy.sink, copy.ticket, copies)?;
        Ok(true)
    }
}
