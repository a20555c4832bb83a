//! The coordinators' log on this node's disk. One owner, blocks on the disk; `docs/formats/raft.md` has the bytes.
//!
//! All entries that are not in a snapshot are in memory too: a few thousand at most.
//!
//! The file is kept [twice](kera_env::read_twice). A vote that was given, or an entry that was acknowledged, and that a disk has changed since, would otherwise look
//! as one that was torn if it is the last: cut, it is a vote that can be given once more, or a decision of the coordinators that only a minority has. The copy gets each
//! block when whoever waits for it has been told, and is not synced.
//!
//! Snapshots are in the same folder, with a writer of their own, and who looks at the disk writes anew there what it has changed. What a sync of the folder could not
//! write the system tells whoever has asked for that one, so all of them sync it in [one place](Folder), and a log or a snapshot counts if no sync of anybody
//! has failed since it began to get its name: the votes and entries in it are answered for, and what it takes the place of is removed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kera_env::{Both, Disk, DiskFile, Folder, OpenMode, copy_path, read_twice, without_copy, write_copy};
use kera_format::cluster::RaftPlace;
use kera_format::raft::{
    FILE_HEADER_BYTES, FileHeader, LogEntry, Record, encode_blocks, is_whole_block, parse_block, parse_first_block,
};

use crate::room::has_no_room;

/// Where the files are, below the data directory.
pub const DIR: &str = "raft";
/// The file with the node's number, in decimal digits.
const NUMBER: &str = "node";
/// What a name ends in until the file is [whole](Disk::replace).
const UNFINISHED: &str = ".tmp";
/// The largest file that is read. Earlier builds had some of more than 1 GiB.
const FILE_BYTES_MAX: usize = 4 << 30;
/// A file that is larger, and has grown to four times what it began with, gives way to the next.
const FILE_BYTES_MIN: u64 = 4 << 20;
/// One that is larger than this does whatever it began with: it must not become one that is not read.
const FILE_BYTES_LARGE: u64 = 512 << 20;

/// Why the log cannot be opened. Nothing on the disk has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk refused.
    #[error("{path}: {error}")]
    Disk {
        /// The file or directory, below the data directory.
        path: String,
        /// What the disk said.
        #[source]
        error: io::Error,
    },
    /// The node was given another number before.
    #[error("{path}: {reason}; a node keeps its number for ever")]
    Number {
        /// The file.
        path: String,
        /// Which number.
        reason: String,
    },
    /// A file is not what was written, or contradicts itself.
    #[error("{path} is damaged at byte {offset}: {reason}; what follows there was acknowledged, so it is not skipped")]
    Damaged {
        /// The file.
        path: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// What the log has cut off is in no snapshot.
    #[error(
        "{path}: the coordinators' log begins behind entry {index}, and no snapshot has what was in front of that: an earlier build of kera was killed between the two"
    )]
    Cut {
        /// The directory.
        path: String,
        /// The last entry that was cut off.
        index: u64,
    },
}

/// Notes the node's number, once: votes were given under it.
pub(crate) fn check_number(folder: &Folder, number: u32) -> Result<(), OpenError> {
    let disk = &**folder.disk();
    let path = format!("{DIR}/{NUMBER}");
    let at = |error| OpenError::Disk { path: path.clone(), error };
    let digits = number.to_string();
    disk.create_dir_all(DIR).map_err(at)?;
    match read_twice(disk, &path, 32) {
        Ok(both) if both.are_same() && both.file == digits.as_bytes() => return Ok(()),
        // One that does not say it was changed by the disk, or a kill came before the copy.
        Ok(both) if both.file == digits.as_bytes() || both.copy == digits.as_bytes() => {}
        Ok(both) => {
            let reason = format!("this node has number {}, not {number}", String::from_utf8_lossy(&both.file));
            return Err(OpenError::Number { path, reason });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(at(error)),
    }
    folder.replace_twice(&path, digits.as_bytes()).map_err(at)
}

/// The folder of all that a coordinator has on its disk. One is shared by all who write there.
pub(crate) fn folder(disk: Arc<dyn Disk>) -> Arc<Folder> {
    Arc::new(Folder::new(disk, DIR))
}

/// What the file says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Contents {
    /// Term, node, and whether it is the leader.
    pub(crate) vote: Option<(u64, u64, bool)>,
    pub(crate) entries: BTreeMap<u64, LogEntry>,
    pub(crate) purged: Option<RaftPlace>,
}

impl Contents {
    pub(crate) fn last(&self) -> Option<RaftPlace> {
        self.entries.last_key_value().map(|(_, entry)| entry.place).or(self.purged)
    }

    fn span(&self) -> Span {
        let first = self.entries.first_key_value().map(|(index, _)| *index);
        let last = self.entries.last_key_value().map(|(index, _)| *index);
        Span { purged: self.purged.map(|place| place.index), entries: first.zip(last) }
    }

    /// Whether these records may follow, one after the other.
    fn check(&self, records: &[Record]) -> Result<(), String> {
        let mut span = self.span();
        records.iter().try_for_each(|record| span.take(record))
    }

    fn take(&mut self, record: Record) -> Result<(), String> {
        self.span().take(&record)?;
        match record {
            Record::Vote { term, node, committed } => self.vote = Some((term, node, committed)),
            Record::Appended(entry) => drop(self.entries.insert(entry.place.index, entry)),
            Record::Truncated { from } => drop(self.entries.split_off(&from)),
            Record::Purged { place } => {
                self.entries = self.entries.split_off(&(place.index + 1));
                self.purged = Some(place);
            }
        }
        Ok(())
    }

    /// Records that say all of it.
    fn records(&self) -> Vec<Record> {
        let vote = self.vote.map(|(term, node, committed)| Record::Vote { term, node, committed });
        let purged = self.purged.map(|place| Record::Purged { place });
        vote.into_iter().chain(purged).chain(self.entries.values().cloned().map(Record::Appended)).collect()
    }
}

/// Which entries a log has, without what they are.
struct Span {
    purged: Option<u64>,
    /// The first and the last of them.
    entries: Option<(u64, u64)>,
}

impl Span {
    fn take(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Vote { .. } => {}
            Record::Appended(entry) => {
                let index = entry.place.index;
                let last = self.entries.map(|(_, last)| last).or(self.purged);
                if let Some(last) = last.filter(|last| last + 1 != index) {
                    return Err(format!("entry {index} does not follow {last}"));
                }
                self.entries = Some((self.entries.map_or(index, |(first, _)| first), index));
            }
            Record::Truncated { from } => {
                let left = self.entries.filter(|(first, _)| first < from);
                self.entries = left.map(|(first, last)| (first, last.min(from - 1)));
            }
            Record::Purged { place } => {
                let left = self.entries.filter(|(_, last)| *last > place.index);
                self.entries = left.map(|(first, last)| (first.max(place.index + 1), last));
                self.purged = Some(place.index);
            }
        }
        Ok(())
    }
}

/// The file that is written.
#[derive(Debug)]
pub(crate) struct LogFile {
    folder: Arc<Folder>,
    node: [u8; 16],
    generation: u64,
    /// `None` after a failure: what comes next needs a new generation first.
    file: Option<Arc<dyn DiskFile>>,
    /// `None` after a failure, and then the next write begins a new generation as well. If that gets no copy either it counts nevertheless, and the write
    /// after it tries once more.
    copy: Option<Arc<dyn DiskFile>>,
    /// What of the file the copy does not have yet: its last bytes.
    not_copied: Vec<u8>,
    end: u64,
    /// Bytes that the file began with.
    began: u64,
    sequence: u64,
    contents: Contents,
}

impl LogFile {
    /// Reads what is there and goes on in it; one that was torn gives way to the next. Blocks.
    pub(crate) fn open(folder: Arc<Folder>, node: [u8; 16]) -> Result<LogFile, OpenError> {
        let disk = folder.disk().clone();
        let at = |path: &str, error| OpenError::Disk { path: path.to_owned(), error };
        disk.create_dir_all(DIR).map_err(|error| at(DIR, error))?;
        let names = disk.list(DIR).map_err(|error| at(DIR, error))?;
        let newest = names.iter().filter_map(|name| number_of(name, ".log")).max();
        let mut log = LogFile {
            folder,
            node,
            generation: newest.unwrap_or(0),
            file: None,
            copy: None,
            not_copied: Vec::new(),
            end: 0,
            began: 0,
            sequence: 0,
            contents: Contents::default(),
        };
        if newest.is_some() {
            let path = log.path();
            let both = read_twice(&*disk, &path, FILE_BYTES_MAX).map_err(|error| at(&path, error))?;
            let is_whole = log.read(&path, &both)?;
            let open = |path: &str| disk.open(path, OpenMode::ReadWrite, false).map_err(|error| at(path, error));
            if is_whole {
                let file = open(&path)?;
                // What was read must stay, whoever wrote it and did not live to sync it.
                file.sync_data().map_err(|error| at(&path, error))?;
                log.file = Some(file);
            }
            if is_whole && both.are_same() {
                log.copy = Some(open(&copy_path(&path))?);
            }
        }
        match (&log.file, &log.copy) {
            (Some(_), Some(_)) => {}
            (None, _) => log.begin().map_err(|error| at(DIR, error))?,
            // Nothing is written before there is a generation with a copy, and nothing has to be to read it.
            (Some(_), None) => {
                if let Err(error) = log.begin() {
                    tracing::warn!(%error, "there is no copy of the coordinators' log; the first write makes one");
                }
            }
        }
        remove_unfinished(&*disk);
        Ok(log)
    }

    /// Whether what was cut off is in a snapshot, as whoever has looked for one says: up to which entry the newest one goes. Builds until Nov 2026 cut the log while the snapshot
    /// of a leader was being written: a kill has left some with neither, or with an older one, and nothing that is here tells what was there.
    pub(crate) fn check_cut(&self, snapshot: Option<u64>) -> Result<(), OpenError> {
        match &self.contents.purged {
            Some(place) if snapshot.is_none_or(|until| until < place.index) => {
                Err(OpenError::Cut { path: DIR.to_owned(), index: place.index })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    fn path(&self) -> String {
        format!("{DIR}/{:016}.log", self.generation)
    }

    /// Takes a file's blocks, and from its copy those that do not read back. Tells whether the file itself has all of them and nothing else.
    fn read(&mut self, path: &str, both: &Both) -> Result<bool, OpenError> {
        let damaged = |offset: usize, reason: String| {
            Err(OpenError::Damaged { path: path.to_owned(), offset: offset as u64, reason })
        };
        // Published by a rename with its first block synced: what is torn is behind that.
        let mut is_whole = match both.read_back(0, FileHeader::parse, |_| true) {
            Ok((header, _)) if header.node != self.node => return damaged(8, "it was written by another node".into()),
            Ok((header, _)) if header.generation != self.generation => {
                return damaged(24, "it has another number".into());
            }
            Ok((_, is_copied)) => !is_copied,
            Err(error) => return damaged(0, error.to_string()),
        };
        let mut at = FILE_HEADER_BYTES;
        while at < both.end() {
            let next = self.sequence + 1;
            let parse = if next == 1 { parse_first_block } else { parse_block };
            let (sequence, records, size) = match both.read_back(at, parse, |(number, ..)| *number == next) {
                Ok((parsed, is_copied)) => {
                    if is_copied {
                        tracing::warn!(
                            path,
                            offset = at,
                            "a block of the coordinators' log does not read back; its copy does"
                        );
                        is_whole = false;
                    }
                    parsed
                }
                Err(error) => {
                    // Nor is it torn: it may be a vote that a later version has answered for. What is known and has another number is something else: a copy is not synced, and may
                    // show what a disk had there before.
                    let is_unknown = |bytes: &[u8]| is_whole_block(bytes) && parse(bytes).is_err();
                    if [&both.file, &both.copy].iter().any(|bytes| bytes.get(at..).is_some_and(is_unknown)) {
                        return damaged(at, format!("{error} (a later version of kera may have written it)"));
                    }
                    // The first one was there before the file was.
                    if next == 1
                        || both.goes_on_behind(at, |bytes| parse_block(bytes).is_ok_and(|(number, ..)| number > next))
                    {
                        return damaged(at, error.to_string());
                    }
                    let torn = both.end() - at;
                    tracing::info!(path, offset = at, torn, "the end of the coordinators' log is cut");
                    return Ok(false);
                }
            };
            if sequence != next {
                return damaged(at, format!("block {sequence} follows block {}", self.sequence));
            }
            for record in records {
                if let Err(reason) = self.contents.take(record) {
                    return damaged(at, reason);
                }
            }
            (self.sequence, at) = (sequence, at + size);
            self.end = at as u64;
        }
        self.began = self.end;
        Ok(is_whole)
    }

    /// Makes records true and durable, all or none of them; how many bytes that takes.
    ///
    /// What fails in one file is tried once more in the next generation: that says what counts, so that it is all the same what the first try has left on
    /// the disk. Otherwise whoever ends on the error and starts again would read what the system has in memory of that try, take it for durable, and
    /// write behind it. What finds no room is left to whoever waits for it.
    ///
    /// Records that do not follow are an error and are not written: on the disk they would be damage at every start.
    pub(crate) fn write(&mut self, records: Vec<Record>) -> io::Result<u64> {
        self.contents.check(&records).map_err(io::Error::other)?;
        self.copy();
        let bytes = match self.append(&records) {
            Err(error) if !has_no_room(&error) => {
                tracing::warn!(%error, "the coordinators' log could not be written; it goes on in another file");
                self.append(&records)?
            }
            written => written?,
        };
        records.into_iter().try_for_each(|record| self.contents.take(record)).map_err(io::Error::other)?;
        Ok(bytes)
    }

    /// Has records on the disk, in the next generation if there has to be one.
    ///
    /// Each block of them is synced before the next is written: one that reads back behind one that does not is damage. If not all get there the
    /// next generation has none of them, and after a loss of power in the midst of it those that are there are as good as any that nobody was told of.
    fn append(&mut self, records: &[Record]) -> io::Result<u64> {
        let is_large = self.end > FILE_BYTES_MIN && self.end > FILE_BYTES_LARGE.min(4 * self.began);
        if self.file.is_none() || self.copy.is_none() || is_large {
            self.begin()?;
        }
        let Some(file) = self.file.clone() else { return Err(io::Error::other("the log is not open")) };
        let blocks = encode_blocks(self.sequence + 1, records).map_err(io::Error::other)?;
        let mut end = self.end;
        for block in &blocks {
            if let Err(error) = file.write_at(end, block).and_then(|()| file.sync_data()) {
                // Nobody knows what is on the disk: the next generation says what counts.
                self.file = None;
                return Err(error);
            }
            end += block.len() as u64;
        }
        let bytes = end - self.end;
        (self.sequence, self.end) = (self.sequence + blocks.len() as u64, end);
        self.not_copied = blocks.concat();
        Ok(bytes)
    }

    /// Writes into the copy what it has not yet. Nobody waits for it, and nothing is synced.
    ///
    /// A disk that changes what was synced before this was called, and a kill before it, are needed to lose a block: it would be taken for a torn one.
    pub(crate) fn copy(&mut self) {
        let bytes = std::mem::take(&mut self.not_copied);
        if !bytes.is_empty()
            && let Some(copy) = &self.copy
            && let Err(error) = copy.write_at(self.end - bytes.len() as u64, &bytes)
        {
            tracing::warn!(%error, "the copy of the coordinators' log cannot be written; the next generation has one again");
            self.copy = None;
        }
    }

    /// Compares the file with its copy, and goes on in the next generation if they are not the same: how many bytes they have, and whether they were not.
    pub(crate) fn look(&mut self) -> io::Result<(u64, bool)> {
        self.copy();
        if self.file.is_none() {
            return Ok((0, false));
        }
        if self.copy.is_none() {
            self.begin()?;
            return Ok((0, true));
        }
        let both = read_twice(&**self.folder.disk(), &self.path(), FILE_BYTES_MAX)?;
        let is_damaged = !both.are_same();
        if is_damaged {
            // Until there is one again nothing is written.
            self.copy = None;
            self.begin()?;
        }
        Ok(((both.file.len() + both.copy.len()) as u64, is_damaged))
    }

    /// Goes on in the next generation, which begins with all that counts. It counts from when its file is there, with a copy or without one.
    fn begin(&mut self) -> io::Result<()> {
        // If this fails the next one may be there all the same: nothing is written into this one any more.
        (self.file, self.copy) = (None, None);
        self.generation += 1;
        let mut bytes = FileHeader { node: self.node, generation: self.generation }.encode().to_vec();
        let blocks = encode_blocks(1, &self.contents.records()).map_err(io::Error::other)?;
        blocks.iter().for_each(|block| bytes.extend_from_slice(block));
        let (path, disk) = (self.path(), self.folder.disk());
        self.folder.replace(&path, &bytes)?;
        self.file = Some(disk.open(&path, OpenMode::ReadWrite, false)?);
        match write_copy(&**disk, &path, &bytes) {
            Ok(copy) => self.copy = Some(copy),
            Err(error) => tracing::warn!(%error, "there is no copy of the coordinators' log; the next write makes one"),
        }
        self.not_copied.clear();
        (self.end, self.began, self.sequence) = (bytes.len() as u64, bytes.len() as u64, blocks.len() as u64);
        remove_before(&**disk, ".log", self.generation);
        Ok(())
    }
}

/// Removes files with lower numbers, and what was to become such a one. That one of them stays does no harm.
pub(crate) fn remove_before(disk: &dyn Disk, suffix: &str, number: u64) {
    let of = |name: &str| number_of(name.strip_suffix(UNFINISHED).unwrap_or(name), suffix);
    remove_all(disk, |name| of(name).is_some_and(|of| of < number));
}

/// Removes what a kill has left that came before a file had its name. For a start: nobody writes one yet.
fn remove_unfinished(disk: &dyn Disk) {
    let is_numbered = |name: &str| [".log", ".snapshot"].iter().any(|suffix| number_of(name, suffix).is_some());
    remove_all(disk, |name| name.strip_suffix(UNFINISHED).is_some_and(is_numbered));
}

fn remove_all(disk: &dyn Disk, is_meant: impl Fn(&str) -> bool) {
    let Ok(names) = disk.list(DIR) else { return };
    for name in names.iter().filter(|name| is_meant(name)) {
        if let Err(error) = disk.remove(&format!("{DIR}/{name}")) {
            tracing::debug!(%name, %error, "an old file of the coordinators' log stays");
        }
    }
}

/// The number of a file, or of its copy.
pub(crate) fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = without_copy(name).strip_suffix(suffix)?;
    (digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{FaultyDisk, MemoryDisk};
    use kera_format::checksum::crc32c;
    use kera_format::cluster::ClusterEntry;
    use kera_format::raft::{Payload, encode_block};

    fn entry(index: u64) -> Record {
        let place = RaftPlace { term: 1, leader: 1, index };
        Record::Appended(LogEntry { place, payload: Payload::Blank })
    }

    fn vote(term: u64) -> Record {
        Record::Vote { term, node: 1, committed: false }
    }

    #[test]
    fn what_was_answered_is_there_after_any_power_cut() {
        for steps in 1..60 {
            let disk = Arc::new(MemoryDisk::new());
            let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
            disk.cut_power_at(steps);
            let (mut answered, mut term) = (0, 0);
            for index in 1..=20 {
                if log.write(vec![vote(index)]).is_ok() {
                    term = index;
                }
                match log.write(vec![entry(answered + 1)]) {
                    Ok(_) => answered += 1,
                    Err(_) if disk.is_off() => break,
                    Err(error) => panic!("{error}"),
                }
            }
            disk.crash(steps);
            let log = LogFile::open(folder(disk), [1; 16]).unwrap();
            let last = log.contents().last().map_or(0, |place| place.index);
            assert!(last == answered || last == answered + 1, "{answered} were answered, {last} are there");
            let has = log.contents().vote.map_or(0, |(term, ..)| term);
            assert!(has >= term, "the vote of term {term} was answered, that of {has} is there");
        }
    }

    #[test]
    fn a_write_that_failed_has_not_happened_and_the_next_goes_well() {
        let memory = Arc::new(MemoryDisk::new());
        let disk = Arc::new(FaultyDisk::new(memory.clone()));
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        disk.set_broken(true);
        log.write(vec![entry(2)]).unwrap_err();
        disk.set_broken(false);
        disk.set_space(Some(50));
        // As often as whoever waits for room tries it.
        (0..20).for_each(|_| drop(log.write(vec![entry(2)]).unwrap_err()));
        disk.set_space(None);
        assert_eq!(log.contents().last().map(|place| place.index), Some(1));
        // What lies behind the failed write is out of the way with the next that goes well.
        log.write(vec![Record::Appended(LogEntry {
            place: RaftPlace { term: 2, leader: 1, index: 2 },
            payload: Payload::Blank,
        })])
        .unwrap();
        let is_all_there_is = |log: &LogFile| {
            let names: Vec<String> = memory.list(DIR).unwrap().iter().map(|name| format!("{DIR}/{name}")).collect();
            assert_eq!(names, [log.path(), copy_path(&log.path())]);
        };
        is_all_there_is(&log);
        let before = log.contents().clone();
        drop(log);
        // What a kill has left of earlier tries, and of a later one.
        for name in ["0000000000000001.log", "0000000000000099.log", "0000000000000009.snapshot"] {
            memory.create_with(&format!("{DIR}/{name}.tmp"), b"the beginning").unwrap();
        }
        let again = LogFile::open(folder(memory.clone()), [1; 16]).unwrap();
        assert_eq!(again.contents(), &before);
        is_all_there_is(&again);
    }

    #[test]
    fn a_write_that_fails_once_is_made_in_the_next_file() {
        for fail in [FaultyDisk::fail_sync, FaultyDisk::fail_write, FaultyDisk::tear_write] {
            let memory = Arc::new(MemoryDisk::new());
            let disk = Arc::new(FaultyDisk::new(memory.clone()));
            let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
            log.write(vec![vote(3), entry(1)]).unwrap();
            let first = log.path();
            fail(&disk, 1);
            log.write(vec![entry(2)]).unwrap();
            assert_ne!(log.path(), first);
            memory.crash(1);
            let again = LogFile::open(folder(memory), [1; 16]).unwrap();
            assert_eq!((again.contents(), again.contents().entries.len()), (log.contents(), 2));
        }
    }

    /// What is in it would be gone with the power, and the file that had it before is removed.
    #[test]
    fn a_file_whose_name_a_sync_of_somebody_else_may_have_lost_gives_way_to_another() {
        let disk = Arc::new(FaultyDisk::new(Arc::new(MemoryDisk::new())));
        let folder = folder(disk.clone());
        let mut log = LogFile::open(folder.clone(), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        let lost = format!("{DIR}/{:016}.log", log.generation + 1);
        let broken = disk.clone();
        disk.once_named(&lost, move || {
            broken.fail_sync_dir(1);
            assert!(folder.sync().is_err(), "of who writes a snapshot");
        });
        log.begin().unwrap_err();
        log.write(vec![entry(2)]).unwrap();
        assert_ne!(log.path(), lost);
        assert_eq!(LogFile::open(crate::file::folder(disk), [1; 16]).unwrap().contents(), log.contents());
    }

    #[test]
    fn what_does_not_follow_is_not_written_and_the_log_can_still_be_read() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        let purged = |index| Record::Purged { place: RaftPlace { term: 1, leader: 1, index } };
        log.write(vec![vote(3), entry(1)]).unwrap();
        let wrong = [
            vec![entry(5)],
            vec![entry(2), entry(4)],
            vec![entry(2), Record::Truncated { from: 2 }, entry(3)],
            vec![purged(7), entry(2)],
            vec![Record::Truncated { from: 1 }, purged(7), Record::Truncated { from: 3 }, entry(3)],
        ];
        for records in wrong {
            let error = log.write(records).unwrap_err().to_string();
            assert!(error.contains("does not follow"), "{error}");
        }
        log.write(vec![entry(2), Record::Truncated { from: 2 }, entry(2), purged(7), entry(8)]).unwrap();
        let again = LogFile::open(folder(disk), [1; 16]).unwrap();
        assert_eq!(again.contents(), log.contents());
        assert_eq!(again.contents().entries.keys().copied().collect::<Vec<_>>(), [8]);
    }

    /// Of an older one too: the entries between the two would be asked for at each start.
    #[test]
    fn a_log_that_begins_behind_what_the_newest_snapshot_has_is_not_gone_on_with() {
        let mut log = LogFile::open(folder(Arc::new(MemoryDisk::new())), [1; 16]).unwrap();
        log.check_cut(None).unwrap();
        log.write(vec![Record::Purged { place: RaftPlace { term: 1, leader: 1, index: 7 } }]).unwrap();
        for (snapshot, is_there) in [(None, false), (Some(6), false), (Some(7), true), (Some(8), true)] {
            assert_eq!(log.check_cut(snapshot).is_ok(), is_there, "{snapshot:?}");
        }
    }

    #[test]
    fn a_node_keeps_its_number() {
        let folder = folder(Arc::new(MemoryDisk::new()));
        check_number(&folder, 7).unwrap();
        check_number(&folder, 7).unwrap();
        let error = check_number(&folder, 8).unwrap_err().to_string();
        assert!(error.contains("has number 7, not 8"), "{error}");
    }

    #[test]
    fn cut_and_purged_entries_are_gone_and_the_file_stays_small() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write((1..=10).map(entry).collect()).unwrap();
        log.write(vec![Record::Truncated { from: 8 }]).unwrap();
        log.write(vec![Record::Purged { place: RaftPlace { term: 1, leader: 1, index: 5 } }]).unwrap();
        assert_eq!(log.contents().entries.keys().copied().collect::<Vec<_>>(), [6, 7]);
        let log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        assert_eq!(log.contents().entries.keys().copied().collect::<Vec<_>>(), [6, 7]);
        assert_eq!(log.contents().purged.map(|place| place.index), Some(5));
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        for index in 8..120_000 {
            log.write(vec![entry(index)]).unwrap();
            if index % 1000 == 0 {
                log.write(vec![Record::Purged { place: RaftPlace { term: 1, leader: 1, index } }]).unwrap();
            }
        }
        assert!(disk.used_bytes() < 4 * FILE_BYTES_MIN, "{}", disk.used_bytes());
        assert_eq!(disk.list(DIR).unwrap().len(), 2, "the file and its copy");
    }

    /// Every byte, the last block's too, which looks as if it were torn.
    #[test]
    fn no_byte_is_needed_that_is_in_the_copy_and_behind_it_both_are_there_again() {
        let whole = Arc::new(MemoryDisk::new());
        check_number(&folder(whole.clone()), 7).unwrap();
        let mut log = LogFile::open(folder(whole.clone()), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        log.write(vec![entry(2)]).unwrap();
        log.write(vec![vote(4)]).unwrap();
        log.copy();
        let (before, path) = (log.contents().clone(), log.path());
        let paths = ["raft/node".to_owned(), path];
        let files: Vec<(String, Vec<u8>)> = paths
            .iter()
            .flat_map(|path| [path.clone(), copy_path(path)])
            .map(|path| (path.clone(), whole.read_all(&path, 1 << 20).unwrap()))
            .collect();
        for (path, bytes) in &files {
            for offset in 0..bytes.len() as u64 {
                let disk = Arc::new(MemoryDisk::new());
                disk.create_dir_all(DIR).unwrap();
                files.iter().for_each(|(path, bytes)| disk.replace(path, bytes).unwrap());
                disk.flip_bit(path, offset, (offset % 8) as u8).unwrap();
                check_number(&folder(disk.clone()), 7).unwrap();
                let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
                assert_eq!(log.contents(), &before, "{path} {offset}");
                log.write(vec![entry(3)]).unwrap();
                log.copy();
                for path in ["raft/node", &log.path()] {
                    assert!(read_twice(&*disk, path, 1 << 20).unwrap().are_same(), "{path} {offset}");
                }
            }
        }
    }

    #[test]
    fn who_looks_finds_what_a_disk_has_changed_and_both_are_there_again() {
        let memory = Arc::new(MemoryDisk::new());
        let disk = Arc::new(FaultyDisk::new(memory.clone()));
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        let mut index = 0;
        let mut write = |log: &mut LogFile| {
            index += 1;
            log.write(vec![entry(index)]).unwrap();
        };
        write(&mut log);
        assert!(!log.look().unwrap().1, "what is not copied yet is copied first");
        for place in [10, FILE_HEADER_BYTES as u64 + 20] {
            for of in [str::to_owned, copy_path] {
                memory.flip_bit(&of(&log.path()), place, 1).unwrap();
                disk.set_space(Some(0));
                log.look().unwrap_err();
                disk.set_space(None);
                write(&mut log);
                assert!(!log.look().unwrap().1);
                memory.flip_bit(&log.path(), place, 1).unwrap();
                assert!(log.look().unwrap().1 && !log.look().unwrap().1);
                write(&mut log);
            }
        }
        log.copy();
        assert_eq!(LogFile::open(folder(memory), [1; 16]).unwrap().contents(), log.contents());
    }

    #[test]
    fn a_copy_that_cannot_be_written_fails_nothing_and_is_made_anew() {
        let memory = Arc::new(MemoryDisk::new());
        let disk = Arc::new(FaultyDisk::new(memory.clone()));
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        let first = log.path();
        disk.fail_write(2);
        log.write(vec![entry(1)]).unwrap();
        log.copy();
        log.write(vec![entry(2)]).unwrap();
        log.copy();
        assert_ne!(log.path(), first);
        assert!(read_twice(&*memory, &log.path(), 1 << 20).unwrap().are_same());
        assert_eq!(memory.list(DIR).unwrap().len(), 2, "the file and its copy");
        // A full disk keeps nobody from reading one of a build that kept it once.
        memory.remove(&copy_path(&log.path())).unwrap();
        disk.set_space(Some(0));
        let mut again = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        assert_eq!(again.contents(), log.contents());
        again.write(vec![entry(3)]).unwrap_err();
        disk.set_space(None);
        again.write(vec![entry(3)]).unwrap();
        assert_eq!(LogFile::open(folder(memory), [1; 16]).unwrap().contents(), again.contents());
    }

    #[test]
    fn a_byte_that_is_changed_in_both_in_the_middle_is_damage_and_of_another_node_too() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![entry(1)]).unwrap();
        log.write(vec![entry(2)]).unwrap();
        let path = log.path();
        let error = LogFile::open(folder(disk.clone()), [2; 16]).unwrap_err().to_string();
        assert!(error.contains("another node"), "{error}");
        for path in [path.clone(), copy_path(&path)] {
            disk.flip_bit(&path, FILE_HEADER_BYTES as u64 + 16 + 8, 1).unwrap();
        }
        let error = LogFile::open(folder(disk), [1; 16]).unwrap_err().to_string();
        assert!(error.contains("damaged at byte 80"), "{error}");
    }

    /// Cut as if it were torn, it would be a vote that can be given once more, or an entry that a majority has.
    #[test]
    fn a_last_block_that_only_a_later_version_knows_is_not_cut() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        log.copy();
        let (path, end, sequence) = (log.path(), log.end, log.sequence + 1);
        drop(log);
        let mut block = Vec::new();
        encode_block(sequence, &[vote(4)], &mut block);
        block[20..22].copy_from_slice(&9_u16.to_le_bytes());
        let checksum = crc32c(&block[4..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        for path in [path.clone(), copy_path(&path)] {
            disk.open(&path, OpenMode::ReadWrite, false).unwrap().write_at(end, &block).unwrap();
            let error = LogFile::open(folder(disk.clone()), [1; 16]).unwrap_err().to_string();
            assert!(error.contains(&format!("damaged at byte {end}: raft_record.kind is 9")), "{error}");
            assert!(error.contains("a later version"), "{error}");
        }
        let names = disk.list(DIR).unwrap();
        assert_eq!(names.len(), 2, "nothing has been changed: {names:?}");
    }

    #[test]
    fn a_torn_block_is_cut_also_if_its_copy_shows_an_earlier_one_there() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        log.copy();
        let (path, end, before) = (log.path(), log.end, log.contents().clone());
        drop(log);
        let mut earlier = Vec::new();
        encode_block(1, &[vote(2)], &mut earlier);
        for (path, bytes) in [(copy_path(&path), earlier), (path, vec![1; 40])] {
            disk.open(&path, OpenMode::ReadWrite, false).unwrap().write_at(end, &bytes).unwrap();
        }
        assert_eq!(LogFile::open(folder(disk), [1; 16]).unwrap().contents(), &before);
    }

    /// What is not there cannot have been torn: a file has its name when it has its first block.
    #[test]
    fn a_log_without_a_byte_is_damage_and_no_node_that_has_never_voted() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![vote(3)]).unwrap();
        let path = log.path();
        drop(log);
        for path in [path.clone(), copy_path(&path)] {
            disk.replace(&path, &[]).unwrap();
        }
        let error = LogFile::open(folder(disk), [1; 16]).unwrap_err().to_string();
        assert!(error.contains("damaged at byte 0"), "{error}");
    }

    /// An entry with as much of a streamlet as most take along.
    fn large(index: u64) -> Record {
        let (stream, streamlet, owner_epoch) = (kera_format::StreamId(1), index as u32, 1);
        let mut state = vec![0; kera_format::cluster::HANDED_BYTES_MAX];
        state[0] = index as u8;
        let handed = ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state };
        let place = RaftPlace { term: 1, leader: 1, index };
        Record::Appended(LogEntry { place, payload: Payload::Entries(vec![handed]) })
    }

    #[test]
    fn a_log_with_more_than_a_block_takes_is_read_again_and_at_once_after_a_power_cut_too() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        // More than a block takes, and they come at once.
        log.write((1..=1200).map(large).collect()).unwrap();
        assert_eq!(LogFile::open(folder(disk.clone()), [1; 16]).unwrap().contents(), log.contents());
        // A generation that begins with all of it.
        log.begin().unwrap();
        log.write(vec![vote(3)]).unwrap();
        let before = log.contents().clone();
        assert_eq!(LogFile::open(folder(disk.clone()), [1; 16]).unwrap().contents(), &before);
        log.begin().unwrap();
        disk.crash(1);
        assert_eq!(LogFile::open(folder(disk), [1; 16]).unwrap().contents(), &before);
    }

    /// As an earlier build began its generations.
    #[test]
    fn a_generation_that_begins_with_one_block_of_any_size_is_read() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        for part in 0..12 {
            log.write((1..=100).map(|at| large(100 * part + at)).collect()).unwrap();
        }
        let before = log.contents().clone();
        let generation = log.generation + 1;
        let mut bytes = FileHeader { node: [1; 16], generation }.encode().to_vec();
        encode_block(1, &before.records(), &mut bytes);
        assert!(bytes.len() > kera_format::raft::BLOCK_BYTES_MAX);
        for path in [format!("{DIR}/{generation:016}.log"), copy_path(&format!("{DIR}/{generation:016}.log"))] {
            disk.replace(&path, &bytes).unwrap();
        }
        assert_eq!(LogFile::open(folder(disk.clone()), [1; 16]).unwrap().contents(), &before);
        assert_eq!(LogFile::open(folder(disk), [1; 16]).unwrap().contents(), &before, "what the first start has begun");
    }

    #[test]
    fn a_first_block_that_does_not_read_back_is_damage_also_if_none_follows() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        log.begin().unwrap();
        let path = log.path();
        for path in [path.clone(), copy_path(&path)] {
            disk.flip_bit(&path, FILE_HEADER_BYTES as u64 + 20, 1).unwrap();
        }
        let error = LogFile::open(folder(disk), [1; 16]).unwrap_err().to_string();
        assert!(error.contains("damaged at byte 64"), "{error}");
    }

    #[test]
    fn a_generation_whose_copy_cannot_be_written_is_one_without_a_copy() {
        let memory = Arc::new(MemoryDisk::new());
        let disk = Arc::new(FaultyDisk::new(memory.clone()));
        let mut log = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        log.write(vec![entry(1)]).unwrap();
        disk.fail_write(2);
        log.begin().unwrap();
        log.write(vec![entry(2)]).unwrap();
        log.copy();
        assert!(read_twice(&*memory, &log.path(), 1 << 20).unwrap().are_same(), "the next write has made one");
        assert_eq!(LogFile::open(folder(memory), [1; 16]).unwrap().contents(), log.contents());
    }
}
