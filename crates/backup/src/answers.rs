//! What recoveries and brokers ask a backup beside storing: what it has, lanes' states, blocks; and giving files back. On
//! threads that may wait for disks.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kera_env::OpenMode;
use kera_format::ChunkView;
use kera_format::checksum::crc32c;
use kera_format::chunk::Chunks;
use kera_format::vlog_replica::{Footer, LogId, ReplicaMark, SegmentRun};
use kera_protocol::codec::Wire;
use kera_protocol::frame::FRAME_BYTES_MAX;
use kera_protocol::limits::page_items;
use kera_protocol::{
    BlockHead, BlockRange, BlocksRead, BlocksReleased, LaneStateList, LaneStates, ListReplicas, ProducerPlace,
    ReadBlocks, ReleaseBlocks, ReplicaInfo, ReplicaList, ReplicatedLane, SegmentPart, Status, StreamletRef,
};

use crate::backup::Backup;
use crate::error::BackupError;
use crate::files::DiskWriter;
use crate::index::{FileIndex, LaneKey, MARKS};
use crate::replica::{FilePart, Replica, Run};
use crate::scan::Source;

/// Bytes of chunks in one answer at most, but for a single block that is larger.
const READ_BYTES_MAX: usize = 16 << 20;

/// Who asks this node's own backup for so many bytes of chunks at a time or more wants many blocks one behind the other.
const MANY_BYTES: usize = 1 << 20;

/// From this version of the operation on whoever asks for the state of lanes takes `LimitReached` for: ask for less. For those before it is the last word, and what they
/// were to take over would wait until they are upgraded.
const ASKS_FOR_LESS: u8 = 3;

/// How long what is known about an open file is waited for before its blocks are read instead.
const FOOTER_WAIT: Duration = Duration::from_millis(500);

impl Backup {
    /// What it has, a page at a time: what a backup announces when it has joined.
    pub fn list(&self, asked: &ListReplicas) -> ReplicaList {
        let limit = page_items(asked.limit);
        let state = self.state.lock();
        let behind = state.logs.iter().filter(|(log, _)| asked.after.is_none_or(|after| **log > after));
        let info = |(log, replica): (&LogId, &Replica)| {
            let parts = replica.runs.iter().flat_map(|run| &run.files);
            ReplicaInfo {
                log: *log,
                blocks: replica.ranges(),
                files: parts.clone().count() as u32,
                bytes: parts.map(|part| part.bytes).sum(),
                fenced: state.fenced(*log).is_some(),
            }
        };
        let mut replicas: Vec<ReplicaInfo> = behind.take(limit + 1).map(info).collect();
        let more = replicas.len() > limit;
        replicas.truncate(limit);
        ReplicaList { replicas, more }
    }

    /// The parts of files with these blocks, without what is there twice.
    fn parts(&self, log: LogId, from: u64, through: u64) -> Vec<FilePart> {
        let state = self.state.lock();
        state.logs.get(&log).map_or_else(Vec::new, |replica| replica.parts(from, through))
    }

    /// The first block from `from` on that was not given back.
    fn kept_from(&self, log: LogId, from: u64) -> u64 {
        let state = self.state.lock();
        let rows = || state.logs.get(&log).into_iter().flat_map(|replica| &replica.runs);
        if rows().any(|row| (row.first..=row.written).contains(&from)) {
            return from;
        }
        let had = rows().filter(|row| row.origin <= from && from < row.first && row.first <= row.written);
        had.map(|row| row.first).min().unwrap_or(from)
    }

    /// Whether a backup may answer for these blocks: it may not if some in the midst do not read back.
    fn is_whole(&self, log: LogId, from: u64, through: u64) -> Result<(), BackupError> {
        let missing = self.state.lock().logs.get(&log).and_then(|replica| replica.missing(from, through));
        let Some(missing) = missing else { return Ok(()) };
        let reason =
            format!("block {missing} does not read back and was not given back; another backup of the view has it");
        Err(BackupError::new(Status::SegmentUnreadable, reason))
    }

    fn source(&self, log: LogId, part: &FilePart, at_once: bool) -> Result<Source, BackupError> {
        let (disk, name) = (&*self.disks[part.disk].disk, (part.sequence, part.key, log.vlog));
        Source::open_to_lend(disk, name, &self.spare, at_once).map_err(|error| self.unreadable(part, &error))
    }

    fn unreadable(&self, part: &FilePart, error: &io::Error) -> BackupError {
        BackupError::disk(
            &format!("{}/{}", self.disks[part.disk].disk.root().display(), crate::files::path(part.sequence)),
            error,
        )
    }

    /// The state of lanes in blocks of a log, from what is in memory about the open files and from the footers of the others.
    /// Blocks are read only of files that the range asked for cuts. An error names the file that does not read back, or a block that was
    /// found missing at the start and was not given back.
    ///
    /// `LimitReached`: lanes have more to tell than [an answer may have](crate::BackupConfig::states_bytes_max), or may have: what takes more than half of that is refused
    /// if it was found out on the way. It is to be asked for fewer streamlets, or blocks; of one streamlet in one block there is always an answer.
    pub fn lane_states(&self, asked: &LaneStates) -> Result<LaneStateList, BackupError> {
        self.lane_states_in(ASKS_FOR_LESS, asked)
    }

    /// The same for who asks in a version of the operation: one that [cannot ask for less](ASKS_FOR_LESS) is told as much as it takes.
    pub(crate) fn lane_states_in(&self, version: u8, asked: &LaneStates) -> Result<LaneStateList, BackupError> {
        let mut gathering = self.begin_lane_states(version, asked)?;
        while gathering.disk().is_some() {
            self.gather(&mut gathering)?;
        }
        Ok(gathering.finish())
    }

    /// The same one file after the other, for who must know of which disk each is.
    pub(crate) fn begin_lane_states(&self, version: u8, asked: &LaneStates) -> Result<Gathering, BackupError> {
        {
            let mut state = self.state.lock();
            if state.logs.contains_key(&asked.log) {
                state.recovered.insert(asked.log);
            }
        }
        self.is_whole(asked.log, asked.from_block, asked.through_block)?;
        Ok(Gathering {
            log: asked.log,
            blocks: (asked.from_block, asked.through_block),
            wanted: asked.streamlets.iter().copied().collect(),
            left: self.parts(asked.log, asked.from_block, asked.through_block).into(),
            lanes: BTreeMap::new(),
            bytes: 0,
            bytes_max: self.states_bytes_max(version),
        })
    }

    /// Bytes that are gathered at most for who asks in a version of the operation. Whoever cannot ask for less takes any frame: what fits into one must not be refused, and half
    /// of this [is not](Gathering::join).
    fn states_bytes_max(&self, version: u8) -> usize {
        let max = self.config.states_bytes_max;
        if version < ASKS_FOR_LESS { max.max(2 * FRAME_BYTES_MAX) } else { max }
    }

    /// Takes what the next file says. An error also if that is too much for an answer.
    pub(crate) fn gather(&self, gathering: &mut Gathering) -> Result<(), BackupError> {
        let Some(part) = gathering.left.pop_front() else { return Ok(()) };
        let (from, through) = gathering.blocks;
        let blocks = (from.max(part.first), through.min(part.last));
        let footer = self.noticed(gathering.log, &part, blocks, self.footer(gathering.log, &part, from, through))?;
        gathering.take(footer)
    }

    /// What a file holds, as far as it is in a range of blocks.
    fn footer(&self, log: LogId, part: &FilePart, from: u64, through: u64) -> Result<Footer, BackupError> {
        let whole = from <= part.first && part.last <= through;
        if whole && part.open {
            // A writer whose disk stands still has its lock for as long; what it has written can be read.
            let writer = self.disks[part.disk].writer.try_lock_for(FOOTER_WAIT);
            let mut open = writer.iter().flat_map(|writer| writer.open.values());
            // It may have got more blocks since, or a footer.
            if let Some(open) = open.find(|open| open.header.file == part.sequence && open.last <= through) {
                return Ok(open.index.footer(log.vlog, part.sequence, part.key, open.last));
            }
        }
        let mut source = self.source(log, part, false)?;
        if whole && part.footer.is_some() {
            match source.footer() {
                Ok(Some((_, footer))) => return Ok(footer),
                Ok(None) => tracing::warn!(file = part.sequence, "a footer does not read back; its blocks are read"),
                Err(error) => return Err(self.unreadable(part, &error)),
            }
        }
        let mut index = FileIndex::default();
        let (mut at, mut block) = self.skip_to(&mut source, part, (part.start, part.first), from)?;
        while block <= part.last.min(through) {
            at += self.whole_block(&mut source, part, at, block)?.total_bytes() as u64;
            index.note_block(source.chunks());
            block += 1;
        }
        Ok(index.footer(log.vlog, part.sequence, part.key, part.last))
    }

    /// Goes on from a block of a file at a position to the one that is wanted, or behind the file's last one. What is in front need not read back: it is of another
    /// view, of which this may be one backup of several, while this is the only one of the next.
    fn skip_to(
        &self,
        source: &mut Source,
        part: &FilePart,
        (mut at, mut block): (u64, u64),
        wanted: u64,
    ) -> Result<(u64, u64), BackupError> {
        while block < wanted.min(part.last + 1) {
            (at, block) = match source.skip(at, block) {
                Ok(Ok((_, next))) if next > wanted => {
                    return Err(damaged(source, at, &format!("block {wanted} is not found behind it")));
                }
                Ok(Ok(next)) => next,
                Ok(Err(reason)) => return Err(damaged(source, at, &reason)),
                Err(error) => return Err(self.unreadable(part, &error)),
            };
            self.positions.passed(part, block, at);
            self.reads.passed_blocks.fetch_add(1, Ordering::Relaxed);
        }
        Ok((at, block))
    }

    /// A block that reads back.
    fn whole_block(
        &self,
        source: &mut Source,
        part: &FilePart,
        at: u64,
        block: u64,
    ) -> Result<kera_format::vlog::BlockHeader, BackupError> {
        match source.block(at) {
            Ok(Ok(header)) if header.block == block => Ok(header),
            Ok(Ok(header)) => Err(damaged(source, at, &format!("block {} is there", header.block))),
            Ok(Err(reason)) => Err(damaged(source, at, &reason)),
            Err(error) => Err(self.unreadable(part, &error)),
        }
    }

    /// Reads blocks, whole or only the chunks of some streamlets, each verified. A block that does not read back is an error
    /// which names it; what is behind it can be asked for.
    ///
    /// For who asks without a message, and has a thread that does nothing else: where many blocks are wanted they are read at once, past the page cache.
    pub fn read_blocks(&self, asked: &ReadBlocks) -> Result<BlocksRead, BackupError> {
        let mut reading = self.begin_read(asked);
        reading.at_once = reading.bytes_max >= MANY_BYTES;
        while self.disk_of(&mut reading)?.is_some() {
            self.read_on(&mut reading)?;
        }
        Ok(reading.read)
    }

    /// The same one file after the other, for who must know of which disk each is. Block by block through the page cache, whose disk reads ahead while an answer is on its way.
    pub(crate) fn begin_read(&self, asked: &ReadBlocks) -> Reading {
        // Of a row that went on behind the range all blocks in it may have been given back: it had them.
        let begins = self.kept_from(asked.log, asked.from_block).min(asked.through_block.saturating_add(1));
        Reading {
            log: asked.log,
            blocks: (asked.from_block, asked.through_block),
            wanted: asked.streamlets.iter().copied().collect(),
            bytes_max: (asked.max_bytes as usize).min(READ_BYTES_MAX),
            at_once: false,
            left: self.parts(asked.log, asked.from_block, asked.through_block).into(),
            read: BlocksRead { next_block: begins.max(asked.from_block), blocks: Vec::new() },
            bytes: 0,
        }
    }

    /// The disk that the next block is read from; `None`: nothing more is read.
    pub(crate) fn disk_of(&self, reading: &mut Reading) -> Result<Option<usize>, BackupError> {
        let Reading { log, blocks: (from, _), left, read, .. } = reading;
        while let Some(part) = left.front() {
            if part.first > read.next_block && read.next_block == *from && read.blocks.is_empty() {
                self.is_whole(*log, read.next_block, part.first)?;
                // What is before the first block that is here was given back.
                read.next_block = part.first;
            }
            if part.first > read.next_block {
                return Ok(None);
            }
            if part.last >= read.next_block {
                return Ok(Some(part.disk));
            }
            left.pop_front();
        }
        Ok(None)
    }

    /// Reads what is wanted of the next file.
    pub(crate) fn read_on(&self, reading: &mut Reading) -> Result<(), BackupError> {
        let Some(part) = reading.left.pop_front() else { return Ok(()) };
        let read = self.timed(&self.reads.us, || self.read_file(reading, &part));
        // The one that did not read back, if one did not.
        let block = reading.read.next_block;
        self.noticed(reading.log, &part, (block, block), read)
    }

    fn read_file(&self, reading: &mut Reading, part: &FilePart) -> Result<(), BackupError> {
        if reading.at_once && reading.bytes > reading.bytes_max / 4 * 3 {
            // What is left would be a small piece of the next file.
            reading.left.clear();
            return Ok(());
        }
        let (log, last) = (reading.log, part.last.min(reading.blocks.1));
        let mut source = self.source(log, part, reading.at_once)?;
        let known = self.positions.find(log, part, reading.read.next_block);
        let find = || self.skip_to(&mut source, part, known, reading.read.next_block);
        let (mut at, mut block) = self.timed(&self.reads.finding_us, find)?;
        while block <= last {
            let (came_to, next) = self.read_at_once(reading, &source, part, (at, block));
            if next == block {
                break;
            }
            (at, block) = (came_to, next);
            if reading.bytes > 0 && block <= last {
                self.positions.ended(log, part, block, at);
                reading.left.clear();
                return Ok(());
            }
        }
        if block <= last {
            // And what is asked for next, so that the disk goes on while somebody deals with this.
            source.will_read(at, 2 * reading.bytes_max as u64);
        }
        while block <= last {
            let header = self.whole_block(&mut source, part, at, block)?;
            if reading.bytes > 0 && reading.bytes + header.chunk_bytes as usize > reading.bytes_max {
                self.positions.ended(log, part, block, at);
                reading.left.clear();
                return Ok(());
            }
            self.count_read(reading, part, header.total_bytes());
            let head = head_of(&header);
            let wanted = part_of(&head, source.chunks(), &reading.wanted);
            reading.take(wanted.unwrap_or_else(|| (head, source.lend())));
            at += header.total_bytes() as u64;
            block += 1;
        }
        Ok(())
    }

    /// Reads blocks of a file from one on at once, past the page cache. Where it has come to: a block that is not wholly in what was read, or does not read back there, is to be
    /// read next, or by itself if it is the first.
    fn read_at_once(
        &self,
        reading: &mut Reading,
        source: &Source,
        part: &FilePart,
        (mut at, mut block): (u64, u64),
    ) -> (u64, u64) {
        let last = part.last.min(reading.blocks.1);
        let end = self.positions.behind(part, last).or(part.footer).unwrap_or(source.bytes);
        let room = reading.bytes_max.saturating_sub(reading.bytes) as u64;
        let read = || source.extent(at, room.min(end.saturating_sub(at)));
        let Some(extent) = self.timed(&self.reads.direct_us, read) else { return (at, block) };
        self.reads.direct_bytes.fetch_add(extent.bytes() as u64, Ordering::Relaxed);
        self.count_read(reading, part, extent.bytes());
        let (before, mut lent) = (reading.read.blocks.len(), 0);
        while block <= last
            && let Some((header, chunks)) = source.block_in(&extent, at, block)
        {
            let head = head_of(&header);
            let part = part_of(&head, &chunks, &reading.wanted);
            lent += if part.is_none() { chunks.len() } else { 0 };
            reading.take(part.unwrap_or((head, chunks)));
            at += header.total_bytes() as u64;
            block += 1;
        }
        if (1..extent.bytes() / 2).contains(&lent) {
            // A few chunks would keep all that memory for as long as somebody has them, beside what was copied out of it.
            let few = reading.read.blocks[before..].iter_mut();
            few.for_each(|(_, chunks)| *chunks = Bytes::copy_from_slice(chunks));
        }
        (at, block)
    }

    /// Does something whose time counts.
    fn timed<T>(&self, on: &AtomicU64, work: impl FnOnce() -> T) -> T {
        let began_us = self.clock.monotonic_us();
        let done = work();
        on.fetch_add(self.clock.monotonic_us().saturating_sub(began_us), Ordering::Relaxed);
        done
    }

    /// So many bytes of a file were read. Who wants the chunks of some streamlets rebuilds them, and readers wait for that; whole blocks are copied once more, which nobody waits for.
    fn count_read(&self, reading: &Reading, part: &FilePart, bytes: usize) {
        self.reads.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if !reading.wanted.is_empty() {
            self.disks[part.disk].read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// The node and epoch of a log were declared lost, as the coordinators say: a recovery may have asked about it before this process began, and
    /// waits for what it was told of. For who starts a backup, before it serves.
    pub fn keep_whole(&self, log: LogId) {
        let mut state = self.state.lock();
        if state.logs.contains_key(&log) {
            state.recovered.insert(log);
        }
    }

    /// Gives files back whose blocks nobody needs any more. With the highest number the log is forgotten; its fence stays.
    ///
    /// Of a log that is fenced, or that a recovery has asked about, only all goes: an owner that was declared lost and does not know it yet may have
    /// nothing to do with what retention takes, but who took over from it waits for each segment that it was told of.
    ///
    /// A file that its disk does not let go of stays, with those of its row behind it if the disk is well, until the next time.
    pub fn release(&self, asked: &ReleaseBlocks) -> BlocksReleased {
        if asked.through_block == u64::MAX {
            return self.release_all(asked.log);
        }
        let _releasing = self.releasing.lock();
        let mut released = BlocksReleased { files: 0, bytes: 0 };
        if self.state.lock().is_over(asked.log) {
            return released;
        }
        if let Err(error) = self.anchor(asked) {
            tracing::warn!(log = %asked.log, %error, "files of copies are given back later");
            return released;
        }
        let mut state = self.state.lock();
        let is_over = state.is_over(asked.log);
        let Some(replica) = state.logs.get_mut(&asked.log).filter(|_| !is_over) else { return released };
        let mut rows: Vec<Going> = Vec::new();
        for run in &mut replica.runs {
            let mut parts = VecDeque::new();
            // The last file stays: it is what a restart knows the row by. One without blocks is not: a start removes it. Nor is it what the next one that goes has
            // behind it: that one has to survive itself, and may have come since it was made sure that there is such a one.
            while run.files.iter().skip(1).find(|part| part.open || part.has_blocks()).is_some_and(|part| part.anchored)
                && let Some(part) = run.files.front().filter(|part| !part.open && part.last <= asked.through_block)
            {
                parts.push_back(*part);
                run.files.pop_front();
                run.first = run.files.front().map_or(run.first, |part| part.first);
            }
            rows.push(Going::of(run, parts));
        }
        // One that has parts in several rows goes once, and not before all of them do.
        let mut known = files_of(replica);
        drop(state);
        for mut going in rows {
            going.leave_out(&mut known);
            if going.is_nothing() {
                continue;
            }
            self.give_back_in_order(&mut going, &mut released);
            let mut state = self.state.lock();
            if let Some(run) = state.logs.get_mut(&asked.log).and_then(|log| log.run_mut(going.run)) {
                run.given_back_on = going.given_back_on;
                run.refused = going.refused;
                going.parts.into_iter().rev().for_each(|part| run.files.push_front(part));
                run.first = run.files.front().map_or(run.first, |part| part.first);
            }
        }
        released
    }

    fn release_all(&self, log: LogId) -> BlocksReleased {
        self.let_go_of(self.take_files(log), DiskWriter::remove)
    }

    /// Sets a log aside of which nobody knows any more whether it is needed: it is forgotten, as if it had been given back, but its files stay, with `.unknown` behind
    /// their names, until a person removes them, or takes that away again while the node is stopped. Returns what they are.
    pub fn set_aside(&self, log: LogId) -> BlocksReleased {
        self.let_go_of(self.take_files(log), DiskWriter::set_aside)
    }

    /// Forgets a log: the files that it had.
    fn take_files(&self, log: LogId) -> Vec<FilePart> {
        let mut state = self.state.lock();
        let state_now = &mut *state;
        state_now.recovered.remove(&log);
        let Some(replica) = state_now.logs.remove(&log) else { return Vec::new() };
        let mut gone: Vec<FilePart> = Vec::new();
        for run in replica.runs {
            state_now.runs[run.disk] = state_now.runs[run.disk].saturating_sub(1);
            gone.extend(run.refused);
            gone.extend(run.files);
        }
        gone
    }

    /// Gives back the first files of a row, or all. None before those in front of it are gone for good, be they on another disk: with one of them still there, or
    /// there again behind a loss of power, it would be missing within its row, and nobody could tell that from damage. What stays is left in `going`.
    ///
    /// But a disk that is not well, and that the row is not written to, is not waited for: it may never let go of anything, and what is behind would fill up
    /// the others. Its own files are asked for each time, first and in their order. A start that finds them before they are gone takes the row for doubtful, and
    /// a person is asked where it ends. That is the lesser evil: a disk that is gone is seldom there again with a start, and what it has is given back then without it.
    fn give_back_in_order(&self, going: &mut Going, released: &mut BlocksReleased) {
        let mut refusing = BTreeMap::new();
        let mut refused = VecDeque::new();
        for part in std::mem::take(&mut going.refused) {
            match self.give_back_next(going, &part, &mut refusing) {
                Next::Gone => note_released(released, &part),
                // What is behind it has gone before.
                Next::Refused | Next::Stays => refused.push_back(part),
            }
        }
        while let Some(part) = going.parts.front().copied() {
            match self.give_back_next(going, &part, &mut refusing) {
                Next::Gone => note_released(released, &part),
                Next::Refused => refused.push_back(part),
                Next::Stays => break,
            }
            going.parts.pop_front();
        }
        going.refused = refused;
    }

    /// `refusing`: disks that are asked for nothing more of the row, and whether what is behind goes all the same.
    fn give_back_next(&self, going: &mut Going, part: &FilePart, refusing: &mut BTreeMap<usize, bool>) -> Next {
        let row_disk = going.disk;
        let refuses = |refusing: &mut BTreeMap<usize, bool>, disk: usize, error: &io::Error| {
            let is_left = self.disks[disk].keeps(error) && Some(disk) != row_disk;
            refusing.insert(disk, is_left);
            is_left
        };
        let of_left = |is_left: bool| if is_left { Next::Refused } else { Next::Stays };
        if let Some(is_left) = refusing.get(&part.disk) {
            return of_left(*is_left);
        }
        // Of one disk none that is gone comes back before those that went behind it.
        let before = going.given_back_on.filter(|disk| *disk != part.disk && refusing.get(disk) != Some(&true));
        if let Some(other) = before
            && let Err(error) = self.disks[other].names.sync_gone()
            && !refuses(refusing, other, &error)
        {
            return Next::Stays;
        }
        let removed = self.disks[part.disk].writer.lock().remove(part.sequence);
        match removed {
            Ok(()) => {
                self.disks[part.disk].lets_go();
                going.given_back_on = Some(part.disk);
                Next::Gone
            }
            Err(error) => of_left(refuses(refusing, part.disk, &error)),
        }
    }

    /// Forgets the rows of a log that reach into none of these ranges, and gives their files back. `needed`: the blocks of all views that anybody may ask
    /// for yet, those of the newest one without an end.
    ///
    /// A backup that was replaced and is back begins a row each time, of which the last file stays: without it a start would not know of the row, and who asks for
    /// blocks that were given back would take them for lost. Of a view that was given up nobody asks, and where the log ends the newest one says. A row that
    /// may have gone on behind what is known of it may have reached into that, and stays.
    pub fn forget_rows(&self, log: LogId, needed: &[BlockRange]) -> BlocksReleased {
        let _releasing = self.releasing.lock();
        let mut released = BlocksReleased { files: 0, bytes: 0 };
        let mut state = self.state.lock();
        let state_now = &mut *state;
        let is_over = state_now.is_over(log);
        let Some(replica) = state_now.logs.get_mut(&log).filter(|_| !is_over) else { return released };
        let is_needed = |run: &Run| needed.iter().any(|range| range.first <= run.written && run.origin <= range.last);
        let is_known = |run: &Run| {
            run.taken == run.written && !run.doubtful && run.lost_behind.is_none() && run.begun <= run.written
        };
        let (gone, kept): (Vec<Run>, Vec<Run>) =
            replica.runs.drain(..).partition(|run| is_known(run) && !is_needed(run) && run.origin <= run.written);
        replica.runs = kept;
        for run in &gone {
            state_now.runs[run.disk] = state_now.runs[run.disk].saturating_sub(1);
        }
        let mut known = files_of(replica);
        if replica.runs.is_empty() {
            state_now.logs.remove(&log);
        }
        drop(state);
        for mut run in gone {
            let parts = std::mem::take(&mut run.files);
            let mut going = Going::of(&mut run, parts);
            going.leave_out(&mut known);
            going.disk = None;
            self.give_back_in_order(&mut going, &mut released);
            // A start finds what stays as the end of the row, and whoever wants nothing of that says so again.
            let stays = going.refused.iter().chain(&going.parts);
            stays.for_each(|part| self.disks[part.disk].writer.lock().forget(part.sequence));
        }
        released
    }

    /// Has the writers of their disks let go of all files of a log.
    fn let_go_of(
        &self,
        mut gone: Vec<FilePart>,
        how: impl Fn(&mut DiskWriter, u64) -> io::Result<()>,
    ) -> BlocksReleased {
        let mut released = BlocksReleased { files: 0, bytes: 0 };
        gone.sort_by_key(|part| (part.disk, part.sequence));
        gone.dedup_by_key(|part| (part.disk, part.sequence));
        for part in gone {
            let mut writer = self.disks[part.disk].writer.lock();
            if let Err(error) = how(&mut writer, part.sequence) {
                // A start finds it, and whoever wants nothing of it says so again.
                tracing::warn!(file = part.sequence, %error, "a file of copies cannot be removed or renamed");
                writer.forget(part.sequence);
            }
            released.files += 1;
            released.bytes += part.bytes;
        }
        released
    }
}

/// Disk and number of each file of a log.
fn files_of(replica: &Replica) -> HashSet<(usize, u64)> {
    let parts = replica.runs.iter().flat_map(|run| run.refused.iter().chain(&run.files));
    parts.map(|part| (part.disk, part.sequence)).collect()
}

fn note_released(released: &mut BlocksReleased, part: &FilePart) {
    released.files += 1;
    released.bytes += part.bytes;
}

/// Files of a row that are given back.
struct Going {
    run: u64,
    /// The disk that the row is written to, if it goes on.
    disk: Option<usize>,
    given_back_on: Option<usize>,
    /// Those that their disks did not let go of before.
    refused: VecDeque<FilePart>,
    /// What comes behind them.
    parts: VecDeque<FilePart>,
}

impl Going {
    /// With what was refused of the row before, which is the row's no more.
    fn of(run: &mut Run, parts: VecDeque<FilePart>) -> Going {
        let refused = std::mem::take(&mut run.refused);
        Going { run: run.id, disk: Some(run.disk), given_back_on: run.given_back_on, refused, parts }
    }

    /// Leaves out the files that are known, and has the others known.
    fn leave_out(&mut self, known: &mut HashSet<(usize, u64)>) {
        self.refused.retain(|part| known.insert((part.disk, part.sequence)));
        self.parts.retain(|part| known.insert((part.disk, part.sequence)));
    }

    fn is_nothing(&self) -> bool {
        self.refused.is_empty() && self.parts.is_empty()
    }
}

/// What became of a file that was to be given back.
enum Next {
    Gone,
    /// Its disk has it still, and is not waited for.
    Refused,
    /// So it is with those behind it.
    Stays,
}

impl Backup {
    /// Makes sure that the file which is to be the first of its row survives a loss of power: a start knows the row by it, and what is
    /// missing of the row before it was given back.
    ///
    /// One whose name is [doubtful](crate::names) cannot be that: were it gone after a loss of power, those in front of it and its own blocks would look as if all of them
    /// had been given back, and the log as if it ended for certain in front of them. What is in front of it stays until a later one becomes the first.
    fn anchor(&self, asked: &ReleaseBlocks) -> io::Result<()> {
        let next_first = |run: &Run| {
            let is_kept = |part: &&FilePart| part.open || part.last > asked.through_block;
            let last = || run.files.iter().rfind(|part| part.has_blocks()).or(run.files.back());
            let kept = run.files.iter().find(is_kept).or_else(last).copied()?;
            let is_next = run.files.front().is_some_and(|front| front.sequence != kept.sequence);
            (is_next && !kept.anchored).then_some((run.id, kept, run.synced >= kept.first))
        };
        let found: Vec<_> = {
            let state = self.state.lock();
            state.logs.get(&asked.log).into_iter().flat_map(|log| &log.runs).filter_map(next_first).collect()
        };
        for (run, part, is_synced) in found {
            let on = &self.disks[part.disk];
            if !is_synced {
                on.disk.open(&crate::files::path(part.sequence), OpenMode::ReadWrite, false)?.sync_data()?;
                on.names.sync()?;
            }
            if on.names.is_doubtful(part.sequence) {
                continue;
            }
            let mut state = self.state.lock();
            let run = state.logs.get_mut(&asked.log).and_then(|log| log.run_mut(run));
            for known in run.into_iter().flat_map(|run| &mut run.files).filter(|known| known.sequence <= part.sequence)
            {
                known.anchored = true;
            }
        }
        Ok(())
    }
}

/// Lanes' states, as far as the files have been looked at that say them.
pub(crate) struct Gathering {
    log: LogId,
    /// The first and the last one.
    blocks: (u64, u64),
    wanted: HashSet<StreamletRef>,
    left: VecDeque<FilePart>,
    lanes: BTreeMap<LaneKey, Lane>,
    /// Bytes of an answer with all of that, as far as it has not been [joined](Gathering::join), and the most that it may have.
    bytes: usize,
    bytes_max: usize,
}

impl Gathering {
    fn take(&mut self, footer: Footer) -> Result<(), BackupError> {
        let Gathering { wanted, lanes, bytes, .. } = self;
        let is_wanted = |stream, streamlet| wanted.is_empty() || wanted.contains(&StreamletRef { stream, streamlet });
        for run in footer.segments.into_iter().filter(|run| is_wanted(run.stream, run.streamlet)) {
            let key = LaneKey { stream: run.stream, streamlet: run.streamlet, lane: run.lane };
            lanes.entry(key).or_default().runs.push(run);
            *bytes += PART_BYTES;
        }
        for mark in footer.producers.into_iter().filter(|mark| is_wanted(mark.stream, mark.streamlet)) {
            let key = LaneKey { stream: mark.stream, streamlet: mark.streamlet, lane: mark.lane };
            lanes.entry(key).or_default().marks.push(mark);
            *bytes += MARK_BYTES;
        }
        if *bytes + lanes.len() * LANE_BYTES > self.bytes_max { self.join() } else { Ok(()) }
    }

    /// Puts together what several files have of each lane: that may be little, where lanes are in many files and have a few bytes in each. If it is not, too much was asked for:
    /// whoever went on from nearly all that an answer may have would do this again for each file.
    fn join(&mut self) -> Result<(), BackupError> {
        self.lanes.values_mut().for_each(Lane::join);
        self.bytes = self.lanes.values().map(Lane::told_bytes).sum();
        let (has, max) = (self.bytes + self.lanes.len() * LANE_BYTES, self.bytes_max);
        // Less than one streamlet in one block nobody can ask for.
        let is_least = self.wanted.len() == 1 && self.blocks.0 == self.blocks.1;
        if has <= max / 2 || is_least {
            return Ok(());
        }
        let reason = format!(
            "{} lanes have more to tell than fits into an answer of {max} bytes: {has} before {} more files were looked at; ask for fewer streamlets or blocks at a time",
            self.lanes.len(),
            self.left.len()
        );
        Err(BackupError::new(Status::LimitReached, reason))
    }

    /// The disk of the next file; `None`: all have been looked at.
    pub(crate) fn disk(&self) -> Option<usize> {
        self.left.front().map(|part| part.disk)
    }

    pub(crate) fn finish(self) -> LaneStateList {
        LaneStateList { lanes: self.lanes.into_iter().map(|(key, lane)| lane.finish(key)).collect() }
    }
}

/// Blocks, as far as they have been read.
pub(crate) struct Reading {
    log: LogId,
    /// The first and the last one.
    blocks: (u64, u64),
    wanted: HashSet<StreamletRef>,
    bytes_max: usize,
    /// Many blocks are wanted, and nobody else waits for the thread that reads them.
    at_once: bool,
    left: VecDeque<FilePart>,
    pub(crate) read: BlocksRead,
    bytes: usize,
}

impl Reading {
    /// A block was read, with what is wanted of it.
    fn take(&mut self, (head, chunks): (BlockHead, Bytes)) {
        self.read.next_block = head.block + 1;
        if head.chunk_count > 0 || self.wanted.is_empty() {
            self.bytes += chunks.len();
            self.read.blocks.push((head, chunks));
        }
    }
}

/// The error of a block that does not read back: nothing of it is given out.
fn damaged(source: &Source, at: u64, reason: &str) -> BackupError {
    let reason = format!("{} is damaged at byte {at}: {reason}; another backup of the view has the block", source.path);
    BackupError::new(Status::SegmentUnreadable, reason)
}

/// The head of a block as it is answered.
fn head_of(header: &kera_format::vlog::BlockHeader) -> BlockHead {
    BlockHead {
        block: header.block,
        written_ms: header.written_ms,
        chunk_count: header.chunk_count,
        chunk_bytes: header.chunk_bytes,
        chunks_checksum: header.chunks_checksum,
        zero: 0,
    }
}

/// A block with the chunks of some streamlets only. `None`: it is theirs as it is, or everybody's.
fn part_of(head: &BlockHead, chunks: &[u8], wanted: &HashSet<StreamletRef>) -> Option<(BlockHead, Bytes)> {
    if wanted.is_empty() {
        return None;
    }
    let is_wanted = |chunk: &ChunkView<'_>| {
        let (stream, streamlet) = (chunk.header().stream, chunk.header().streamlet);
        wanted.contains(&StreamletRef { stream, streamlet })
    };
    let kept: Vec<ChunkView<'_>> = Chunks::new(chunks).map_while(Result::ok).filter(is_wanted).collect();
    if kept.iter().map(|chunk| chunk.as_bytes().len()).sum::<usize>() == chunks.len() {
        return None;
    }
    let chunk_count = kept.len() as u32;
    let kept = kept.iter().map(ChunkView::as_bytes).collect::<Vec<_>>().concat();
    Some((
        BlockHead { chunk_count, chunk_bytes: kept.len() as u32, chunks_checksum: crc32c(&kept), ..*head },
        kept.into(),
    ))
}

/// Bytes of a lane, of a part of it and of a producer's chunk in an answer.
const LANE_BYTES: usize = <ReplicatedLane as Wire>::BYTES_MIN;
const PART_BYTES: usize = <SegmentPart as Wire>::BYTES_MIN;
const MARK_BYTES: usize = <ProducerPlace as Wire>::BYTES_MIN;

/// A lane, from the footers of several files.
#[derive(Default)]
struct Lane {
    runs: Vec<SegmentRun>,
    marks: Vec<ReplicaMark>,
}

impl Lane {
    /// Bytes that it takes in an answer as it is, beside its own.
    fn told_bytes(&self) -> usize {
        self.runs.len() * PART_BYTES + self.marks.len() * MARK_BYTES
    }

    /// Puts together what follows one another, and of each producer its last chunks. More can be put to that later.
    fn join(&mut self) {
        self.runs.sort_by_key(|run| (run.group, run.segment, run.rewrite, run.position, run.end));
        self.runs.dedup_by(|run, last| {
            // What follows, or is there twice because it was written to another file again.
            let follows = (last.group, last.segment, last.rewrite) == (run.group, run.segment, run.rewrite)
                && run.position <= last.end;
            if follows && run.end > last.end {
                (last.end, last.next_ordinal) = (run.end, run.next_ordinal);
            }
            follows
        });
        self.runs.shrink_to_fit();
        self.marks = last_marks(std::mem::take(&mut self.marks));
    }

    fn finish(mut self, key: LaneKey) -> ReplicatedLane {
        self.join();
        let part = |run: &SegmentRun| SegmentPart {
            group: run.group,
            segment: run.segment,
            position: run.position,
            end: run.end,
            base_ordinal: run.base_ordinal,
            next_ordinal: run.next_ordinal,
            rewrite: run.rewrite,
            row_end: run.row_end,
        };
        let place = |mark: &ReplicaMark| ProducerPlace {
            producer_id: mark.producer_id,
            producer_epoch: mark.producer_epoch,
            sequence: mark.sequence,
            base_ordinal: mark.base_ordinal,
            at: mark.at,
        };
        let next_ordinal = self.runs.iter().map(|run| run.next_ordinal).max().unwrap_or(0);
        let streamlet = StreamletRef { stream: key.stream, streamlet: key.streamlet };
        let (parts, producers) = (self.runs.iter().map(part).collect(), self.marks.iter().map(place).collect());
        ReplicatedLane { streamlet, lane: key.lane, next_ordinal, parts, producers }
    }
}

/// Of each producer the last chunks of its highest epoch, in the order of their ordinals.
fn last_marks(marks: Vec<ReplicaMark>) -> Vec<ReplicaMark> {
    let mut by_producer: BTreeMap<u64, Vec<ReplicaMark>> = BTreeMap::new();
    for mark in marks {
        by_producer.entry(mark.producer_id.0).or_default().push(mark);
    }
    let mut last = Vec::new();
    for mut marks in by_producer.into_values() {
        let epoch = marks.iter().map(|mark| mark.producer_epoch).max().unwrap_or_default();
        marks.retain(|mark| mark.producer_epoch == epoch);
        marks.sort_by_key(|mark| mark.base_ordinal);
        marks.dedup();
        last.extend_from_slice(&marks[marks.len().saturating_sub(MARKS)..]);
    }
    last.sort_by_key(|mark| (mark.base_ordinal, mark.producer_id.0));
    last
}

#[cfg(test)]
mod tests {
    use kera_format::{Cursor, GroupId, LaneId, ProducerEpoch, ProducerId, SegmentIndex, StreamId, StreamletId};

    use super::*;

    const MAX: usize = 4096;

    fn gathering() -> Gathering {
        Gathering {
            log: LogId { node: 1, epoch: 7, vlog: 0 },
            blocks: (1, u64::MAX),
            wanted: HashSet::new(),
            left: VecDeque::new(),
            lanes: BTreeMap::new(),
            bytes: 0,
            bytes_max: MAX,
        }
    }

    /// A file with eight bytes of a lane, which follow what the file before it has of its segment, and are a producer's.
    fn footer(segment: u32, file: u32) -> Footer {
        let (stream, streamlet, lane) = (StreamId(1), StreamletId(0), LaneId(0));
        let (group, segment, position) = (GroupId::new(2, 1), SegmentIndex(segment), 128 + 8 * file);
        let run = SegmentRun {
            stream,
            streamlet,
            lane,
            group,
            segment,
            position,
            end: position + 8,
            base_ordinal: file.into(),
            next_ordinal: u64::from(file) + 1,
            rewrite: 0,
            row_end: 0,
        };
        let mark = ReplicaMark {
            stream,
            streamlet,
            lane,
            producer_id: ProducerId(5),
            producer_epoch: ProducerEpoch(0),
            sequence: file.into(),
            base_ordinal: file.into(),
            at: Cursor { group, segment, position },
        };
        let (segments, producers) = (vec![run], vec![mark]);
        Footer { vlog: 0, file: file.into(), key: 0, last_block: file.into(), segments, producers }
    }

    /// Put together only at the end, what lanes have in many files took memory for each of these, however little there is to tell.
    #[test]
    fn what_many_files_have_of_a_lane_is_put_together_on_the_way() {
        let (mut gathering, mut most) = (gathering(), 0);
        for file in 0..10_000 {
            gathering.take(footer(0, file)).expect("it is little");
            most = most.max(gathering.lanes.values().map(|lane| lane.runs.len() + lane.marks.len()).sum::<usize>());
        }
        assert!((10..=MAX / MARK_BYTES).contains(&most), "{most} entries at a time");
        let told = gathering.finish();
        let [lane] = &told.lanes[..] else { panic!("{told:?}") };
        let [part] = lane.parts[..] else { panic!("{:?}", lane.parts) };
        assert_eq!((part.position, part.end, part.base_ordinal, part.next_ordinal), (128, 80_128, 0, 10_000));
        let places: Vec<u64> = lane.producers.iter().map(|place| place.base_ordinal).collect();
        assert_eq!((lane.next_ordinal, places), (10_000, (9_995..10_000).collect()));
    }

    #[test]
    fn of_one_streamlet_in_one_block_there_is_always_an_answer() {
        let name = StreamletRef { stream: StreamId(1), streamlet: StreamletId(0) };
        let mut least = Gathering { wanted: HashSet::from([name]), blocks: (7, 7), ..gathering() };
        (0..1_000).for_each(|file| least.take(footer(file, file)).expect("nobody can ask for less"));
        assert_eq!(least.finish().lanes[0].parts.len(), 1_000);
    }

    #[test]
    fn what_does_not_fit_into_an_answer_is_refused_before_all_of_it_is_gathered() {
        let mut gathering = gathering();
        let refused = (0..10_000).find_map(|file| gathering.take(footer(file, file)).err().map(|error| (file, error)));
        let (file, error) = refused.expect("ten thousand segments");
        assert_eq!(error.status, Status::LimitReached, "{error}");
        assert!(error.reason.contains("ask for fewer"), "{error}");
        let segments = file as usize + 1;
        assert!((MAX / 2 / PART_BYTES..=MAX / PART_BYTES + 1).contains(&segments), "after {segments} segments");
    }
}
