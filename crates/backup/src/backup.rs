//! What a backup takes, when it counts as stored, and what a fence does to it.
//!
//! I/O threads call [`Backup::store`]; a writer per disk calls [`Backup::run`]. The order of locks is: a disk's writer, then
//! the state, then a disk's queue; nobody is called back under the last two.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kera_env::{AlignedBuffer, Clock, Disk, Processors, Random, write_copy};
use kera_format::checksum::crc32c;
use kera_format::vlog::{BLOCK_HEADER_BYTES, PAGE_BYTES, pages};
use kera_format::vlog_replica::{Fences, LogId};
use kera_protocol::{BlockStored, LogEnd, LogView, Status, StoreHead, StoreOutcome};
use parking_lot::Mutex;

use crate::disks::{BackupDisk, FOLDER, choose};
use crate::error::{BackupError, OpenError};
use crate::files::{DiskWriter, NotBegun, Row, RunKey};
use crate::open::{self, OpenReport};
use crate::positions::Positions;
use crate::queue::Job;
use crate::replica::{FilePart, Fit, Replica, Run};
use crate::spare::Spare;
use crate::stats::{BackupStats, ReadCounts};

/// How long an idle writer sleeps at most.
const IDLE: Duration = Duration::from_millis(500);
/// A disk that failed is left alone for so long.
const RETRY_US: u64 = 500_000;

/// Settings of a backup. [`BackupConfig::new`] has defaults that work.
#[derive(Clone, Debug)]
pub struct BackupConfig {
    /// Uuid of the cluster: blocks and files of another one are refused.
    pub cluster: [u8; 16],
    /// Number of the node in it.
    pub node: u32,
    /// Bytes of a file, reserved piece by piece. A block that is larger gets a file of its own.
    pub file_bytes: u64,
    /// Files of a disk that are kept to be used again, of as many bytes as a fifth of what is free at most.
    pub spares: usize,
    /// Bytes of blocks that are taken and not written yet, those that writers are with included. Beyond it brokers wait.
    pub queue_bytes_max: usize,
    /// Bytes of memory for what is known about chunks in files that are not full. Beyond it the file with the most is closed.
    pub index_bytes_max: usize,
    /// Bytes that one answer says of lanes, to whoever can ask for less. What would take more is refused ([`Backup::lane_states`]).
    pub states_bytes_max: usize,
    /// Names the run of the machine ([`kera_env::boot_id`]): of files that were written in another one what was not synced may be lost.
    /// Zeros: nobody knows, and each start counts as one after a loss of power. `None`: the power is never lost.
    pub boot_id: Option<[u8; 16]>,
    /// How busy the machine is. `None`: nobody knows, and much is written past the page cache however slow the disk is.
    pub processors: Option<Arc<dyn Processors>>,
}

impl BackupConfig {
    /// Files of 32 MiB, 4 GiB of them kept to be used again, 256 MiB of blocks on their way, 256 MiB of what is known about chunks, answers of 64 MiB about
    /// lanes.
    pub fn new(cluster: [u8; 16], node: u32) -> BackupConfig {
        BackupConfig {
            cluster,
            node,
            file_bytes: 32 << 20,
            spares: 128,
            queue_bytes_max: 256 << 20,
            index_bytes_max: 256 << 20,
            states_bytes_max: 64 << 20,
            boot_id: None,
            processors: None,
        }
    }
}

/// Told what became of a block.
pub trait StoreDone: Send + Sync {
    /// The block that was queued with this token is stored, or not. Called once for each, on a writer's thread, which goes on behind it: must not block.
    fn stored(&self, token: u64, result: Result<BlockStored, BackupError>);
    /// There is room again, after [`Taken::Full`]. May come more often.
    fn room(&self);
}

/// What [`Backup::store`] did with a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// This is the answer.
    Answered(BlockStored),
    /// The answer comes through [`StoreDone`].
    Queued,
    /// Too much waits for the disks. [`StoreDone::room`] is called when the same block may be offered again.
    Full,
    /// It is refused.
    Refused(BackupError),
}

/// What a turn of a writer did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ran {
    /// So many requests were answered.
    Answered(usize),
    /// Nothing waits.
    Idle,
}

#[derive(Default)]
pub(crate) struct State {
    /// Of each node the highest epoch that is fenced.
    pub(crate) fences: BTreeMap<u32, u32>,
    pub(crate) logs: BTreeMap<LogId, Replica>,
    /// Of files of which nobody knows whose they are: the virtual log, and the last block.
    headless: Vec<(Option<u32>, u64)>,
    /// Logs of which a recovery was told what lanes have: nothing of them goes before all of it does.
    pub(crate) recovered: BTreeSet<LogId>,
    /// Runs of fenced logs with blocks that nobody asked to sync: see [`Backup::settle_fenced`].
    pub(crate) to_settle: BTreeSet<RunKey>,
    /// Runs of each disk.
    pub(crate) runs: Vec<usize>,
    pub(crate) next_run: u64,
    waiting: Vec<Arc<dyn StoreDone>>,
}

impl State {
    pub(crate) fn fenced(&self, log: LogId) -> Option<u32> {
        self.fences.get(&log.node).copied().filter(|fenced| log.epoch <= *fenced)
    }

    /// Asks what there is of a log. Of one of which nothing is known all may be in a file of which nobody knows whose it is.
    fn of_log<T>(&self, log: LogId, ask: impl FnOnce(&Replica) -> T) -> T {
        if let Some(replica) = self.logs.get(&log) {
            return ask(replica);
        }
        let perhaps = self.headless.iter().filter(|(vlog, _)| vlog.is_none_or(|vlog| vlog == log.vlog));
        let perhaps_through = perhaps.map(|(_, last)| *last).max().unwrap_or(0);
        ask(&Replica { perhaps_through, ..Replica::default() })
    }

    /// Whether others take over what is in a log.
    pub(crate) fn is_over(&self, log: LogId) -> bool {
        self.fenced(log).is_some() || self.recovered.contains(&log)
    }
}

/// See the crate.
pub struct Backup {
    pub(crate) config: BackupConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) disks: Vec<BackupDisk>,
    pub(crate) state: Mutex<State>,
    next_file: AtomicU64,
    /// Of blocks that no writer has begun with.
    queued_bytes: AtomicUsize,
    pub(crate) spare: Arc<Spare>,
    pub(crate) positions: Positions,
    pub(crate) reads: ReadCounts,
    /// Held while the fences are written: a file has all of those before it.
    fencing: Mutex<()>,
    /// Held while files of a row are given back: they go in their order.
    pub(crate) releasing: Mutex<()>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    blocks: AtomicU64,
    failures: AtomicU64,
    fenced_blocks: AtomicU64,
}

impl Backup {
    /// Reads what the disks have: fences, files with a footer, and the blocks of those without. What a loss of power has torn is
    /// cut; what was changed by a disk is left out, and reported. The report has what is there.
    pub fn open(
        config: BackupConfig,
        disks: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<(Arc<Backup>, OpenReport), OpenError> {
        let opened = open::open(&config, &disks, &clock, &random)?;
        let mut state =
            State { fences: opened.fences, logs: opened.logs, headless: opened.headless, ..State::default() };
        state.runs = vec![0; disks.len()];
        for run in state.logs.values().flat_map(|replica| &replica.runs) {
            state.runs[run.disk] += 1;
        }
        state.next_run = state.logs.values().map(|replica| replica.runs.len() as u64).sum::<u64>() + 1;
        let writers = opened.writers.into_iter();
        let disks = disks.into_iter().zip(writers).map(|(disk, writer)| BackupDisk::new(disk, writer)).collect();
        let backup = Backup {
            config,
            clock,
            disks,
            state: Mutex::new(state),
            next_file: AtomicU64::new(opened.next_file),
            queued_bytes: AtomicUsize::new(0),
            spare: Arc::default(),
            positions: Positions::default(),
            reads: ReadCounts::default(),
            fencing: Mutex::new(()),
            releasing: Mutex::new(()),
            counts: Counts::default(),
        };
        Ok((Arc::new(backup), opened.report))
    }

    /// Takes a block, if it is one that it may take. Copies the chunks; never blocks. `token` comes back through `done`.
    pub fn store(&self, head: &StoreHead, chunks: &[u8], done: &Arc<dyn StoreDone>, token: u64) -> Taken {
        if let Some(taken) = self.untaken(head, chunks, done, token) {
            return taken;
        }
        // Copied before the lock is taken, which all connections share.
        let mut data = self.place(chunks.len());
        data.extend_from_slice(chunks);
        self.take(head, data, done, token)
    }

    /// As [`store`](Backup::store), of a block whose chunks have been put into a [`place`](Backup::place): they are not copied. Leaves
    /// `data` as it is where it says [`Taken::Full`].
    pub fn store_placed(
        &self,
        head: &StoreHead,
        data: &mut AlignedBuffer,
        done: &Arc<dyn StoreDone>,
        token: u64,
    ) -> Taken {
        let untaken = self.untaken(head, data.get(BLOCK_HEADER_BYTES..).unwrap_or_default(), done, token);
        if untaken == Some(Taken::Full) {
            return Taken::Full;
        }
        let data = std::mem::take(data);
        match untaken {
            Some(taken) => {
                self.spare.give(data);
                taken
            }
            None => self.take(head, data, done, token),
        }
    }

    /// Memory for a block with so many bytes of chunks, which are to be appended to what is in it.
    pub fn place(&self, chunk_bytes: usize) -> AlignedBuffer {
        let mut data = self.spare.take(pages(BLOCK_HEADER_BYTES + chunk_bytes));
        data.clear();
        data.resize(BLOCK_HEADER_BYTES);
        data
    }

    /// What becomes of a block that is not taken, or not now.
    fn untaken(&self, head: &StoreHead, chunks: &[u8], done: &Arc<dyn StoreDone>, token: u64) -> Option<Taken> {
        if let Err(error) = self.check(head, chunks) {
            return Some(Taken::Refused(error));
        }
        if let Some(taken) = self.without_data(head, done, token) {
            return Some(taken);
        }
        let bytes = pages(BLOCK_HEADER_BYTES + chunks.len());
        let queued = self.queued_bytes.load(Ordering::Acquire);
        if queued > 0 && queued + bytes > self.queue_share() {
            let mut state = self.state.lock();
            if !state.waiting.iter().any(|waiting| Arc::ptr_eq(waiting, done)) {
                state.waiting.push(Arc::clone(done));
            }
            drop(state);
            // The last writer may have been done in between: then nobody would be told.
            if self.queued_bytes.load(Ordering::Acquire) == 0 {
                self.tell_room();
            }
            return Some(Taken::Full);
        }
        None
    }

    /// Bytes of blocks that may wait for writers. Each of these takes all that waits for it at a time, and is then with so many bytes at most, which do not count as
    /// waiting: a disk that stands still with them would hold up the blocks for all others.
    fn queue_share(&self) -> usize {
        self.config.queue_bytes_max / (self.disks.len() + 1)
    }

    fn check(&self, head: &StoreHead, chunks: &[u8]) -> Result<(), BackupError> {
        let bad = |reason: String| Err(BackupError::new(Status::Malformed, reason));
        if head.cluster != self.config.cluster {
            return bad("StoreHead.cluster is another cluster's; look at the addresses of its nodes".into());
        }
        if head.block == 0 || head.view_first == 0 || head.view_first > head.block {
            return bad(format!("StoreHead.block is {}, in a view that begins at {}", head.block, head.view_first));
        }
        if head.chunk_bytes as usize != chunks.len() {
            return bad(format!("StoreHead.chunk_bytes is {}, {} are there", head.chunk_bytes, chunks.len()));
        }
        let computed = crc32c(chunks);
        if computed != head.chunks_checksum {
            let reason = format!(
                "block {}: checksum is {:#010x}, the bytes give {computed:#010x}",
                head.block, head.chunks_checksum
            );
            return Err(BackupError::new(Status::ChunkChecksum, reason));
        }
        Ok(())
    }

    /// Answers what needs no room: blocks that are there, and those that cannot be taken.
    fn without_data(&self, head: &StoreHead, done: &Arc<dyn StoreDone>, token: u64) -> Option<Taken> {
        let mut state = self.state.lock();
        if let Some(fenced) = state.fenced(head.log) {
            self.counts.fenced_blocks.fetch_add(1, Ordering::Relaxed);
            return Some(Taken::Answered(BlockStored { outcome: StoreOutcome::Fenced, block: fenced.into() }));
        }
        let mut unknown = Replica::default();
        let replica = state.logs.get_mut(&head.log).unwrap_or(&mut unknown);
        if head.asks()
            && let Some(error) = self.holds_up(replica)
        {
            return Some(Taken::Refused(error));
        }
        match replica.fit(head.block, head.view_first, head.synced()) {
            Fit::Stored => {
                replica.note_answered(head.block, head.synced());
                Some(Taken::Answered(stored(replica, head)))
            }
            Fit::OnItsWay(run) => {
                let run = &replica.runs[run];
                let taken_back = run.taken_back;
                let job = Job { head: *head, run: run.id, taken_back, data: None, done: Arc::clone(done), token };
                self.disks[run.disk].queue.push(job);
                Some(Taken::Queued)
            }
            Fit::Hole(next) => Some(Taken::Answered(BlockStored { outcome: StoreOutcome::Next, block: next })),
            Fit::Follows(_) | Fit::Begins => None,
        }
    }

    /// What would hold up whatever comes next of a log: where it goes stands still. Whoever asks chooses backups, and would wait for this one until it
    /// is replaced, and again each time that it is chosen. A disk that fails answers blocks, and is not looked at here.
    fn holds_up(&self, replica: &Replica) -> Option<BackupError> {
        let now_us = self.clock.monotonic_us();
        let stands_still = |disk: &BackupDisk| disk.stands_still(now_us);
        // Behind blocks that are on their way their run goes on.
        match replica.runs.last().filter(|run| run.taken > run.written) {
            Some(run) => stands_still(&self.disks[run.disk]),
            None => self.disks.iter().map(stands_still).min_by_key(Option::is_some).flatten(),
        }
    }

    fn take(&self, head: &StoreHead, mut data: AlignedBuffer, done: &Arc<dyn StoreDone>, token: u64) -> Taken {
        data.resize(pages(data.len()));
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let fit =
            state.logs.get(&head.log).map_or(Fit::Begins, |log| log.fit(head.block, head.view_first, head.synced()));
        let begins = matches!(fit, Fit::Begins) && head.block == head.view_first;
        if state.fenced(head.log).is_some() || !(begins || matches!(fit, Fit::Follows(_))) {
            // Another connection was here in between.
            drop(guard);
            self.spare.give(data);
            let again = || BackupError::new(Status::Overloaded, "the log has just been given back; send it again");
            return self.without_data(head, done, token).unwrap_or_else(|| Taken::Refused(again()));
        }
        let now_us = self.clock.monotonic_us();
        let replica = state.logs.entry(head.log).or_default();
        let at = match fit {
            Fit::Follows(run) => run,
            _ => {
                let disk = match choose(&self.disks, &state.runs, now_us) {
                    Ok(disk) => disk,
                    Err(error) => return Taken::Refused(error),
                };
                state.runs[disk] += 1;
                state.next_run += 1;
                let (before, id) = (head.block - 1, state.next_run);
                replica.insert(Run {
                    first: head.block,
                    origin: head.block,
                    doubtful: false,
                    lost_behind: None,
                    begun: 0,
                    taken: before,
                    taken_back: 0,
                    written: before,
                    synced: before,
                    answered: before,
                    to_sync: false,
                    disk,
                    id,
                    files: VecDeque::new(),
                    given_back_on: None,
                    refused: VecDeque::new(),
                })
            }
        };
        let run = &mut replica.runs[at];
        let is_idle = run.taken == run.written && run.files.back().is_none_or(|part| !part.open);
        if is_idle {
            // Nothing of it is on its way, so its blocks stay in order on whichever disk. Those of a log that is to be synced are: all before a file are
            // when it begins, and its own by the end of the turn in which they are written.
            state.runs[run.disk] -= 1;
            run.disk = choose(&self.disks, &state.runs, now_us).unwrap_or(run.disk);
            state.runs[run.disk] += 1;
        }
        if !self.disks[run.disk].is_well(now_us) {
            return Taken::Refused(self.disks[run.disk].trouble());
        }
        run.taken = head.block;
        run.to_sync |= head.synced();
        self.queued_bytes.fetch_add(data.len(), Ordering::AcqRel);
        let (disk, run, taken_back) = (run.disk, run.id, run.taken_back);
        let job = Job { head: *head, run, taken_back, data: Some(data), done: Arc::clone(done), token };
        self.disks[disk].queue.push(job);
        Taken::Queued
    }

    /// Writes what is taken for a disk until [`stop`](Backup::stop), then what is left: a writer thread's main function.
    pub fn run(&self, disk: usize) {
        loop {
            // Who syncs behind the writer settles as well.
            let ran = if self.disks[disk].full.is_run() { self.turn(disk) } else { self.run_once(disk) };
            if ran == Ran::Idle && !self.disks[disk].queue.sleep(IDLE) {
                return;
            }
        }
    }

    /// Disks, and so writers.
    pub fn disk_count(&self) -> usize {
        self.disks.len()
    }

    /// One turn of a disk's writer: writes everything that waits, answers those that asked for no sync, syncs each file once
    /// for all others, answers them. If nothing waits it settles a fenced log.
    pub fn run_once(&self, disk: usize) -> Ran {
        match self.turn(disk) {
            Ran::Idle if self.settle_fenced(disk) => Ran::Answered(0),
            ran => ran,
        }
    }

    fn turn(&self, disk: usize) -> Ran {
        let jobs = self.disks[disk].queue.take();
        if jobs.is_empty() {
            return Ran::Idle;
        }
        let part = &self.disks[disk];
        part.comes_further(self.clock.monotonic_us());
        let mut writer = part.writer.lock();
        let mut groups: BTreeMap<RunKey, Vec<Job>> = BTreeMap::new();
        for job in jobs {
            groups.entry((job.head.log, job.run)).or_default().push(job);
        }
        let (mut answers, mut count) = (Vec::new(), 0);
        let mut to_sync: Vec<(RunKey, Vec<Job>)> = Vec::new();
        for (run, jobs) in groups {
            let jobs = self.write_group(&mut writer, disk, run, jobs, &mut answers);
            part.comes_further(self.clock.monotonic_us());
            let (synced, written): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.head.synced());
            self.settle(run, written, false, &mut answers);
            if !synced.is_empty() {
                to_sync.push((run, synced));
            }
            // Those that only must survive a kill wait for no sync, and for no other run's blocks.
            count += tell(&mut answers);
        }
        for (run, jobs) in to_sync {
            self.sync_group(&mut writer, disk, run, jobs, &mut answers);
            part.comes_further(self.clock.monotonic_us());
        }
        self.bound_index(&mut writer, disk);
        let unsure = std::mem::take(&mut writer.unsure);
        drop(writer);
        // Whole files are read here, and not under the writer's lock, so that nobody else waits for it. A later sync of this turn may count for them already; whoever waits for one is
        // answered when they have been looked at.
        for (log, file) in &unsure {
            part.comes_further(self.clock.monotonic_us());
            self.look(*log, file);
        }
        part.is_done();
        count += tell(&mut answers);
        self.tell_room();
        Ran::Answered(count)
    }

    /// Writes the blocks of a run, file by file. Gives those jobs back that are written; the others have been answered.
    ///
    /// None of them that was taken back since, although it may have the number that is next: behind a write that failed a run may go on at another disk, at
    /// once, and what had been queued here meanwhile comes to its turn when it has. Two writers would have the run then. As long as nothing was
    /// taken back it is here: with a block on its way a run stays where it is.
    fn write_group(
        &self,
        writer: &mut DiskWriter,
        disk: usize,
        run: RunKey,
        jobs: Vec<Job>,
        answers: &mut Vec<Answer>,
    ) -> Vec<Job> {
        let mut done = Vec::with_capacity(jobs.len());
        let mut blocks = Vec::new();
        let mut failed: Option<BackupError> = None;
        let mut state = self.state.lock();
        let known = state.logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1));
        let mut next = known.map(|run| (run.written + 1, run.taken_back));
        drop(state);
        for mut job in jobs {
            let Some(data) = job.data.take() else {
                done.push(job);
                continue;
            };
            self.queued_bytes.fetch_sub(data.len(), Ordering::AcqRel);
            let follows = next == Some((job.head.block, job.taken_back));
            if failed.is_some() || !follows {
                // What came before it was not written: whoever sent it sends that again first.
                self.spare.give(data);
                let gone = || BackupError::new(Status::Overloaded, "a block before it was not written; send it again");
                answers.push(Answer::of(job, Err(failed.clone().unwrap_or_else(gone))));
                continue;
            }
            let bytes = data.len() as u64;
            let pending: u64 = blocks.iter().map(|(_, data): &(StoreHead, AlignedBuffer)| data.len() as u64).sum();
            if !writer.has_room(run, pending + bytes) {
                let written = self.write_blocks(writer, disk, run, &mut blocks).and_then(|()| {
                    self.close_file(writer, disk, run);
                    self.sync_before(writer, disk, run)?;
                    self.begin_file(writer, disk, run, &job.head)
                });
                if let Err(error) = written {
                    self.spare.give(data);
                    answers.push(Answer::of(job, Err(error.clone())));
                    failed = Some(error);
                    continue;
                }
            }
            next = Some((job.head.block + 1, job.taken_back));
            blocks.push((job.head, data));
            done.push(job);
        }
        if let Err(error) = self.write_blocks(writer, disk, run, &mut blocks) {
            failed = Some(error);
        }
        let Some(error) = failed else { return done };
        writer.leave(run);
        self.roll_back(writer, disk, run, |_| {});
        let written =
            self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)).map_or(0, |run| run.written);
        let (done, lost): (Vec<Job>, Vec<Job>) = done.into_iter().partition(|job| job.head.block <= written);
        answers.extend(lost.into_iter().map(|job| Answer::of(job, Err(error.clone()))));
        done
    }

    /// Begins the next file of a run. The log may be given back or set aside meanwhile: who does that has its files by then, and would know nothing of this one, which a
    /// start would take for what is left of the log. So it is known in one step with that the log is there, or goes at once.
    fn begin_file(
        &self,
        writer: &mut DiskWriter,
        disk: usize,
        run: RunKey,
        head: &StoreHead,
    ) -> Result<(), BackupError> {
        let sequence = self.next_file.fetch_add(1, Ordering::Relaxed);
        let row = self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)).map(|run| Row {
            first_block: run.origin,
            synced: run.to_sync,
            is_new: !run.files.iter().any(FilePart::has_blocks),
        });
        let gone = || BackupError::new(Status::Overloaded, "the log has just been given back; send it again");
        let Some(row) = row else { return Err(gone()) };
        if row.is_new {
            self.close_others(writer, disk, run);
        }
        let (error, there) = match writer.begin(run, head, sequence, row) {
            Ok(open) => (None, Some((open.header.key, open.reserved))),
            Err(NotBegun { error, left }) => (Some(error), left),
        };
        let part = |(key, bytes)| FilePart {
            disk,
            sequence,
            key,
            start: PAGE_BYTES as u64,
            first: head.block,
            last: head.block - 1,
            bytes,
            footer: None,
            open: error.is_none(),
            anchored: error.is_none() && row.is_new && !row.synced,
        };
        let is_there = match self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)) {
            Some(run) => {
                run.files.extend(there.map(part));
                true
            }
            None => false,
        };
        if !is_there {
            writer.forget(sequence);
            if let Err(error) = writer.discard(sequence) {
                tracing::warn!(sequence, %error, "a file of a log that was given back cannot be removed");
            }
            return Err(gone());
        }
        error.map_or(Ok(()), |error| Err(self.disk_failed(disk, &error, sequence)))
    }

    /// The log comes in another view than before: what its other runs have open here takes no more, and would keep its handle and the space that is
    /// reserved for it until the log ends. A late block of theirs begins a file of its own.
    fn close_others(&self, writer: &mut DiskWriter, disk: usize, run: RunKey) {
        let others: Vec<RunKey> = writer.open.keys().filter(|of| of.0 == run.0 && **of != run).copied().collect();
        others.into_iter().for_each(|other| self.close_file(writer, disk, other));
    }

    fn close_file(&self, writer: &mut DiskWriter, disk: usize, run: RunKey) {
        let Some(closed) = writer.close(run) else { return };
        self.disks[disk].full.tell();
        let mut state = self.state.lock();
        let part = state.logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)).and_then(|run| run.files.back_mut());
        let Some(part) = part else { return };
        part.open = false;
        match closed {
            Ok(closed) => (part.footer, part.bytes) = (Some(closed.footer), closed.bytes),
            Err(error) => {
                let sequence = part.sequence;
                drop(state);
                self.disk_failed(disk, &error, sequence);
            }
        }
    }

    fn write_blocks(
        &self,
        writer: &mut DiskWriter,
        disk: usize,
        run: RunKey,
        blocks: &mut Vec<(StoreHead, AlignedBuffer)>,
    ) -> Result<(), BackupError> {
        let Some((last, _)) = blocks.last() else { return Ok(()) };
        let last = last.block;
        let synced =
            self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)).map_or(0, |run| run.synced);
        let begins = writer.open.get(&run).map(|open| (open.header.file, open.end));
        let written = writer.append(run, blocks, synced);
        self.disks[disk].comes_further(self.clock.monotonic_us());
        let reserved = writer.open.get(&run).map_or(0, |open| open.reserved);
        if let (Some((file, at)), Ok(())) = (begins, &written) {
            self.positions.written(disk, file, at, blocks.iter().map(|(head, data)| (head.block, data.len() as u64)));
        }
        let (count, bytes) = (blocks.len() as u64, blocks.iter().map(|(_, data)| data.len() as u64).sum());
        blocks.drain(..).for_each(|(_, data)| self.spare.give(data));
        if let Err(error) = written {
            let sequence = writer.open.get(&run).map_or(0, |open| open.header.file);
            return Err(self.disk_failed(disk, &error, sequence));
        }
        self.counts.blocks.fetch_add(count, Ordering::Relaxed);
        self.disks[disk].written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.disks[disk].works();
        if let Some(run) = self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)) {
            run.written = last;
            if let Some(part) = run.files.back_mut() {
                (part.last, part.bytes) = (last, reserved);
            }
        }
        Ok(())
    }

    /// A write failed: blocks that were taken behind what is written are not on their way any more, and the next one begins a
    /// file. Files without any that count go: when those around them are given back they would look like what is left behind a hole. One that
    /// cannot be removed goes with those in its turn. `first`: what is noted before. Nothing if the run goes on at another disk by now.
    fn roll_back(&self, writer: &mut DiskWriter, disk: usize, run: RunKey, first: impl FnOnce(&mut Run)) {
        let mut empty = Vec::new();
        let mut state = self.state.lock();
        let known = state.logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1));
        if let Some(run) = known.filter(|run| run.disk == disk) {
            first(run);
            (run.taken, run.taken_back) = (run.written, run.taken_back + 1);
            if let Some(part) = run.files.back_mut() {
                part.open = false;
            }
            let written = run.written;
            for part in run.files.iter_mut().rev().take_while(|part| !part.has_blocks()) {
                // In front of the file that gets these blocks.
                (part.first, part.last) = (written + 1, written);
                empty.extend((part.disk == disk).then_some(part.sequence));
            }
        }
        drop(state);
        empty.retain(|sequence| match writer.discard(*sequence) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(sequence, %error, "a file that failed cannot be removed yet");
                false
            }
        });
        let mut state = self.state.lock();
        if let Some(run) = state.logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)) {
            let is_gone = |part: &FilePart| part.disk == disk && empty.contains(&part.sequence) && !part.has_blocks();
            run.files.retain(|part| !is_gone(part));
        }
    }

    /// Syncs a run and answers who waits for that. After a failed sync nobody knows what is on the disk: what was not synced
    /// before, and was not answered as written, is taken back and must be sent again, to another file. What was answered so is
    /// [looked at](Backup::look) before the turn is over.
    fn sync_group(&self, writer: &mut DiskWriter, disk: usize, run: RunKey, jobs: Vec<Job>, answers: &mut Vec<Answer>) {
        match self.sync(writer, disk, run) {
            Ok(()) => self.settle(run, jobs, true, answers),
            Err(error) => answers.extend(jobs.into_iter().map(|job| Answer::of(job, Err(error.clone())))),
        }
    }

    /// A file of a run that is to be synced begins when those before it are on the disk. Otherwise a loss of power could keep it and
    /// lose them, and a start would take them for given back and answer for blocks that it does not have. Of other runs a few may
    /// wait, for a start after a loss of power looks through the last ones of each.
    fn sync_before(&self, writer: &mut DiskWriter, disk: usize, run: RunKey) -> Result<(), BackupError> {
        let to_sync = self.state.lock().logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1)).map(|run| run.to_sync);
        if to_sync == Some(true) {
            return self.sync(writer, disk, run);
        }
        writer.bound_unsynced(run).map_err(|(sequence, error)| {
            let parts = self.unsynced_parts(disk, run, sequence);
            writer.unsure.extend(parts.into_iter().map(|part| (run.0, part)));
            self.disk_failed(disk, &error, sequence)
        })
    }

    fn sync(&self, writer: &mut DiskWriter, disk: usize, run: RunKey) -> Result<(), BackupError> {
        let synced = self.try_sync(writer, disk, run);
        if synced.is_err() {
            // A row may be long of which nobody asked to sync anything before: what is known to be synced of it is not read again. What it has on other disks a sync of this
            // one says nothing about.
            let (log, unsynced) = (run.0, writer.abandon(run));
            let is_unsynced = |part: &FilePart| part.disk == disk && unsynced.contains(&part.sequence);
            let (mut cut, mut unsure) = (Vec::new(), Vec::new());
            self.roll_back(writer, disk, run, |run| {
                run.written = run.synced.max(run.answered);
                let (synced, written) = (run.synced, run.written);
                for part in run.files.iter_mut().filter(|part| part.last > synced) {
                    if part.last > written {
                        (part.last, part.footer) = (written, None);
                        cut.push(*part);
                    }
                    // The next sync is one of another file, and counts for all in front of it.
                    unsure.extend((part.has_blocks() && is_unsynced(part)).then_some((log, *part)));
                }
            });
            cut.iter().for_each(|part| self.cut_off(log, part));
            writer.unsure.extend(unsure);
        }
        synced
    }

    /// Syncs a run and notes that it is. After an error nothing is changed: what that means is up to the caller.
    ///
    /// Nor if the run goes on at another disk by now: somebody waits here for a block that was taken back, and may be there, and not synced.
    ///
    /// Blocks that were only to be written count with it also where a sync before has failed of them, or of their file's name: they stay where they are, what they were answered for holds, and
    /// whether they read back is [looked at](Backup::look) before the turn in which that failed is over. A loss of power may take them, and then a start finds a hole in the row.
    fn try_sync(&self, writer: &mut DiskWriter, disk: usize, run: RunKey) -> Result<(), BackupError> {
        if let Err(error) = writer.sync(run) {
            let sequence = writer.open.get(&run).map_or(0, |open| open.header.file);
            return Err(self.disk_failed(disk, &error, sequence));
        }
        let mut state = self.state.lock();
        let known = state.logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1));
        if let Some(run) = known.filter(|run| run.disk == disk) {
            run.synced = run.written;
        }
        Ok(())
    }

    /// Answers jobs whose blocks are as durable as they asked for. A fence that came meanwhile counts: whoever asked how far the
    /// log is was told before.
    fn settle(&self, run: RunKey, jobs: Vec<Job>, synced: bool, answers: &mut Vec<Answer>) {
        if jobs.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let fenced = state.fenced(run.0);
        let Some(log) = state.logs.get_mut(&run.0) else {
            let gone = BackupError::new(Status::Overloaded, "the log has just been given back");
            answers.extend(jobs.into_iter().map(|job| Answer::of(job, Err(gone.clone()))));
            return;
        };
        for job in jobs {
            let is_there = log.fit(job.head.block, job.head.view_first, synced) == Fit::Stored;
            let answer = match fenced {
                Some(epoch) => Ok(BlockStored { outcome: StoreOutcome::Fenced, block: epoch.into() }),
                None if is_there => Ok(stored(log, &job.head)),
                None => Err(BackupError::new(Status::Overloaded, "the block was not written; send it again")),
            };
            if answer.as_ref().is_ok_and(|answer| answer.outcome == StoreOutcome::Stored)
                && let Some(run) = log.run_mut(run.1).filter(|_| !synced)
            {
                run.answered = run.answered.max(job.head.block);
            }
            answers.push(Answer::of(job, answer));
        }
    }

    /// Closes files until what is known about chunks takes no more than its share of memory.
    fn bound_index(&self, writer: &mut DiskWriter, disk: usize) {
        let share = self.config.index_bytes_max / self.disks.len();
        while let (bytes, Some(largest)) = writer.index_bytes() {
            if bytes <= share {
                return;
            }
            self.close_file(writer, disk, largest);
        }
    }

    pub(crate) fn disk_failed(&self, disk: usize, error: &io::Error, sequence: u64) -> BackupError {
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        let retry_at_us = self.clock.monotonic_us() + RETRY_US;
        self.disks[disk].failed(error, &crate::files::path(sequence), retry_at_us)
    }

    /// Whether blocks of fenced logs wait for [`run_once`](Backup::run_once) to sync them.
    pub fn has_to_settle(&self) -> bool {
        !self.state.lock().to_settle.is_empty()
    }

    /// Takes nothing from `node` in `epoch` and before any more, and tells how far its logs of that epoch are here. When it
    /// returns the fence is on the first disk, which no start does without; after an error it holds as long as the process lives, and no end
    /// is told. Other disks are not waited for: one that stands still would keep everybody from taking over what a lost node had.
    ///
    /// The ends hold for good: a block that is written later is answered as fenced, so nobody counts it. A log with damage in it gets no end
    /// from here: what a disk has changed may be all that is left, and to cut it there is for a person to decide.
    pub fn fence(&self, node: u32, epoch: u32, logs: &[LogView]) -> Result<Vec<LogEnd>, BackupError> {
        let _fencing = self.fencing.lock();
        let mut state = self.state.lock();
        let known = state.fences.get(&node).copied();
        let highest = known.map_or(epoch, |known| known.max(epoch));
        state.fences.insert(node, highest);
        let fences = Fences { entries: state.fences.iter().map(|(node, epoch)| (*node, *epoch)).collect() };
        drop(state);
        let (bytes, path, first) = (fences.encode(), format!("{FOLDER}/fences"), &self.disks[0]);
        if let Err(error) = first.names.replace(&path, &bytes) {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            return Err(first.failed(&error, &path, self.clock.monotonic_us() + RETRY_US));
        }
        // Whoever fences waits for the file, and nobody for its copy.
        if let Err(error) = write_copy(&*first.disk, &path, &bytes) {
            tracing::warn!(path, %error, "the fences are there once; the next ones are written twice");
        }
        let mut state = self.state.lock();
        let asked = logs.iter().map(|view| LogId { node, epoch, vlog: view.vlog });
        let runs = asked.filter_map(|log| Some((log, state.logs.get(&log)?)));
        let is_unsynced = |run: &&Run| !run.to_sync && run.synced < run.written;
        let to_settle: Vec<RunKey> = runs
            .flat_map(|(log, replica)| replica.runs.iter().filter(is_unsynced).map(move |run| (log, run.id)))
            .collect();
        state.to_settle.extend(to_settle);
        self.disks.iter().for_each(|disk| disk.full.tell());
        let end = |view: &LogView| {
            state.of_log(LogId { node, epoch, vlog: view.vlog }, |replica| {
                let end = end_of(replica, view);
                (end.certain || !replica.is_damaged_behind(end.through)).then_some(end)
            })
        };
        Ok(logs.iter().filter_map(end).collect())
    }

    /// How far a log is here, and whether that is certain, without a fence: it may go on at any moment.
    pub fn end_now(&self, log: LogId, first_block: u64) -> LogEnd {
        let view = LogView { vlog: log.vlog, first_block };
        self.state.lock().of_log(log, |replica| end_of(replica, &view))
    }

    /// Tells the writers to write what is left and return from [`run`](Backup::run).
    pub fn stop(&self) {
        for disk in &self.disks {
            disk.queue.stop();
            disk.full.stop();
        }
    }

    /// Bytes of blocks that somebody waits for and that were moved since the backup was opened: all that were written to a disk, and those that were read from it for
    /// some streamlets, which are rebuilt with them. Waits for nothing.
    pub fn first_bytes(&self, disk: usize) -> u64 {
        let Some(disk) = self.disks.get(disk) else { return 0 };
        disk.written_bytes.load(Ordering::Relaxed) + disk.read_bytes.load(Ordering::Relaxed)
    }

    /// Counters and sizes. Waits for no disk.
    pub fn stats(&self) -> BackupStats {
        let mut stats = BackupStats {
            blocks: self.counts.blocks.load(Ordering::Relaxed),
            failures: self.counts.failures.load(Ordering::Relaxed),
            fenced_blocks: self.counts.fenced_blocks.load(Ordering::Relaxed),
            queued_bytes: (self.queued_bytes.load(Ordering::Relaxed) + self.spare.bytes()) as u64,
            ..BackupStats::default()
        };
        for disk in &self.disks {
            stats.block_bytes += disk.written_bytes.load(Ordering::Relaxed);
            let counts = &disk.counts;
            stats.index_bytes += counts.index_bytes.load(Ordering::Relaxed) as u64;
            stats.writes += counts.writes.load(Ordering::Relaxed);
            stats.direct_writes += counts.direct_writes.load(Ordering::Relaxed);
            stats.syncs += counts.syncs.load(Ordering::Relaxed);
        }
        self.reads.tell(&mut stats);
        let state = self.state.lock();
        (stats.logs, stats.fences) = (state.logs.len() as u64, state.fences.len() as u64);
        for part in state.logs.values().flat_map(|log| &log.runs).flat_map(|run| &run.files) {
            stats.files += 1;
            stats.file_bytes += part.bytes;
        }
        stats
    }

    /// For how long no disk of it has come any further, in microseconds; 0 if one has nothing to do.
    pub fn stands_still_us(&self) -> u64 {
        let now_us = self.clock.monotonic_us();
        self.disks.iter().map(|disk| disk.busy_us(now_us)).min().unwrap_or(0)
    }

    /// Bytes of the files of each log of which it has blocks.
    pub fn log_bytes(&self) -> Vec<(LogId, u64)> {
        let state = self.state.lock();
        let bytes = |log: &Replica| log.runs.iter().flat_map(|run| &run.files).map(|file| file.bytes).sum();
        state.logs.iter().map(|(id, log)| (*id, bytes(log))).collect()
    }

    fn tell_room(&self) {
        if self.queued_bytes.load(Ordering::Acquire) > self.queue_share() / 2 {
            return;
        }
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        waiting.iter().for_each(|done| done.room());
    }
}

fn end_of(replica: &Replica, view: &LogView) -> LogEnd {
    // What an end promises has to be there after a loss of power, if the log's blocks have.
    let told = |run: &Run| if run.to_sync { run.synced } else { run.written };
    let through = replica.through(view.first_block, |run| (run.origin, told(run)));
    let (certain, begun) = (replica.is_certain(view.first_block, through, told), replica.begun_behind(through, told));
    LogEnd { vlog: view.vlog, through, certain, begun }
}

fn stored(replica: &Replica, head: &StoreHead) -> BlockStored {
    let through = |run: &Run| (run.origin, if head.synced() { run.synced } else { run.written });
    BlockStored { outcome: StoreOutcome::Stored, block: replica.through(head.view_first, through) }
}

/// An answer that goes out when the state is not locked.
struct Answer {
    done: Arc<dyn StoreDone>,
    token: u64,
    result: Result<BlockStored, BackupError>,
}

impl Answer {
    fn of(job: Job, result: Result<BlockStored, BackupError>) -> Answer {
        Answer { done: job.done, token: job.token, result }
    }
}

/// Tells everybody, and how many they were.
fn tell(answers: &mut Vec<Answer>) -> usize {
    let count = answers.len();
    answers.drain(..).for_each(|answer| answer.done.stored(answer.token, answer.result));
    count
}
