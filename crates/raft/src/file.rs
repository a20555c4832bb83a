//! The coordinators' log on this node's disk. One owner, blocks on the disk; `docs/formats/raft.md` has the bytes.
//!
//! All entries that are not in a snapshot are in memory too: a few thousand at most.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kera_env::{Disk, DiskFile, OpenMode};
use kera_format::cluster::RaftPlace;
use kera_format::raft::{FILE_HEADER_BYTES, FileHeader, LogEntry, Record, encode_block, parse_block};

/// Where the files are, below the data directory.
pub const DIR: &str = "raft";
/// The file with the node's number, in decimal digits.
const NUMBER: &str = "node";
/// The largest file that is read.
const FILE_BYTES_MAX: usize = 1 << 30;
/// A file that is larger, and has grown to four times what it began with, gives way to the next.
const FILE_BYTES_MIN: u64 = 4 << 20;

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
}

/// Notes the node's number, once: votes were given under it.
pub(crate) fn check_number(disk: &dyn Disk, number: u32) -> Result<(), OpenError> {
    let path = format!("{DIR}/{NUMBER}");
    let at = |error| OpenError::Disk { path: path.clone(), error };
    disk.create_dir_all(DIR).map_err(at)?;
    match disk.read_all(&path, 32) {
        Ok(bytes) if bytes == number.to_string().as_bytes() => Ok(()),
        Ok(bytes) => {
            let reason = format!("this node has number {}, not {number}", String::from_utf8_lossy(&bytes));
            Err(OpenError::Number { path, reason })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.replace(&path, number.to_string().as_bytes()).map_err(at)
        }
        Err(error) => Err(at(error)),
    }
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

    fn take(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Vote { term, node, committed } => self.vote = Some((term, node, committed)),
            Record::Appended(entry) => {
                let index = entry.place.index;
                let next = self.last().map(|place| place.index + 1);
                if next.is_some_and(|next| next != index) {
                    return Err(format!("entry {index} does not follow {}", next.unwrap_or(0) - 1));
                }
                self.entries.insert(index, entry);
            }
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

/// The file that is written.
#[derive(Debug)]
pub(crate) struct LogFile {
    disk: Arc<dyn Disk>,
    node: [u8; 16],
    generation: u64,
    /// `None` after a failure: what comes next needs a new generation first.
    file: Option<Arc<dyn DiskFile>>,
    end: u64,
    /// Bytes that the file began with.
    began: u64,
    sequence: u64,
    contents: Contents,
}

impl LogFile {
    /// Reads what is there and goes on in it; one that was torn gives way to the next. Blocks.
    pub(crate) fn open(disk: Arc<dyn Disk>, node: [u8; 16]) -> Result<LogFile, OpenError> {
        let at = |path: &str, error| OpenError::Disk { path: path.to_owned(), error };
        disk.create_dir_all(DIR).map_err(|error| at(DIR, error))?;
        let names = disk.list(DIR).map_err(|error| at(DIR, error))?;
        let newest = names.iter().filter_map(|name| number_of(name, ".log")).max();
        let mut log = LogFile {
            disk,
            node,
            generation: newest.unwrap_or(0),
            file: None,
            end: 0,
            began: 0,
            sequence: 0,
            contents: Contents::default(),
        };
        if newest.is_some() {
            let path = log.path();
            let bytes = log.disk.read_all(&path, FILE_BYTES_MAX).map_err(|error| at(&path, error))?;
            let is_whole = log.read(&path, &bytes)?;
            // What was read must stay, whoever wrote it and did not live to sync it.
            let opened = log.disk.open(&path, OpenMode::ReadWrite, false);
            let file = opened.and_then(|file| file.sync_data().map(|()| file)).map_err(|error| at(&path, error))?;
            log.file = is_whole.then_some(file);
        }
        if log.file.is_none() {
            log.begin().map_err(|error| at(DIR, error))?;
        }
        Ok(log)
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    fn path(&self) -> String {
        format!("{DIR}/{:016}.log", self.generation)
    }

    /// Takes a file's blocks. Tells whether all of it reads back.
    fn read(&mut self, path: &str, bytes: &[u8]) -> Result<bool, OpenError> {
        let damaged = |offset: usize, reason: String| {
            Err(OpenError::Damaged { path: path.to_owned(), offset: offset as u64, reason })
        };
        // Published by a rename with its first block synced: what is torn is behind that.
        match FileHeader::parse(bytes) {
            Ok(header) if header.node != self.node => return damaged(8, "it was written by another node".into()),
            Ok(header) if header.generation != self.generation => return damaged(24, "it has another number".into()),
            Ok(_) => {}
            Err(error) => return damaged(0, error.to_string()),
        }
        let mut at = FILE_HEADER_BYTES;
        while at < bytes.len() {
            let (sequence, records, size) = match parse_block(&bytes[at..]) {
                Ok(parsed) => parsed,
                Err(error) => {
                    let next = self.sequence + 1;
                    let follows = |at: usize| parse_block(&bytes[at..]).is_ok_and(|(number, ..)| number > next);
                    if (at + 8..bytes.len()).step_by(8).any(follows) {
                        return damaged(at, error.to_string());
                    }
                    tracing::info!(
                        path,
                        offset = at,
                        torn = bytes.len() - at,
                        "the end of the coordinators' log is cut"
                    );
                    return Ok(false);
                }
            };
            if sequence != self.sequence + 1 {
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
        Ok(true)
    }

    /// Makes records true and durable, all or none of them.
    pub(crate) fn write(&mut self, records: Vec<Record>) -> io::Result<()> {
        let mut after = None;
        if self.file.is_none() || (self.end > FILE_BYTES_MIN && self.end > 4 * self.began) {
            self.begin()?;
        }
        let Some(file) = self.file.clone() else { return Err(io::Error::other("the log is not open")) };
        let mut bytes = Vec::new();
        encode_block(self.sequence + 1, &records, &mut bytes);
        if let Err(error) = file.write_at(self.end, &bytes).and_then(|()| file.sync_data()) {
            // Nobody knows what is on the disk: the next generation says what counts.
            self.file = None;
            return Err(error);
        }
        self.sequence += 1;
        self.end += bytes.len() as u64;
        for record in records {
            if let Err(reason) = self.contents.take(record) {
                after = Some(reason);
            }
        }
        after.map_or(Ok(()), |reason| Err(io::Error::other(reason)))
    }

    /// Goes on in the next generation, which begins with all that counts.
    fn begin(&mut self) -> io::Result<()> {
        self.generation += 1;
        let mut bytes = FileHeader { node: self.node, generation: self.generation }.encode().to_vec();
        encode_block(1, &self.contents.records(), &mut bytes);
        let path = self.path();
        self.disk.replace(&path, &bytes)?;
        self.file = Some(self.disk.open(&path, OpenMode::ReadWrite, false)?);
        (self.end, self.began, self.sequence) = (bytes.len() as u64, bytes.len() as u64, 1);
        remove_before(&*self.disk, ".log", self.generation);
        Ok(())
    }
}

/// Removes files with lower numbers. That one of them stays does no harm.
pub(crate) fn remove_before(disk: &dyn Disk, suffix: &str, number: u64) {
    let Ok(names) = disk.list(DIR) else { return };
    for name in names.iter().filter(|name| number_of(name, suffix).is_some_and(|of| of < number)) {
        if let Err(error) = disk.remove(&format!("{DIR}/{name}")) {
            tracing::debug!(%name, %error, "an old file of the coordinators' log stays");
        }
    }
}

pub(crate) fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    (digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{FaultyDisk, MemoryDisk};
    use kera_format::raft::Payload;

    fn entry(index: u64) -> Record {
        let place = RaftPlace { term: 1, leader: 1, index };
        Record::Appended(LogEntry { place, payload: Payload::Blank })
    }

    fn vote(term: u64) -> Record {
        Record::Vote { term, node: 1, committed: false }
    }

    #[test]
    fn what_was_answered_is_there_after_any_power_cut() {
        for steps in 0..60 {
            let disk = Arc::new(MemoryDisk::new());
            let mut log = LogFile::open(disk.clone(), [1; 16]).unwrap();
            disk.cut_power_at(disk.steps() + steps);
            let (mut answered, mut term) = (0, 0);
            for index in 1..=20 {
                if log.write(vec![vote(index)]).is_ok() {
                    term = index;
                }
                match log.write(vec![entry(answered + 1)]) {
                    Ok(()) => answered += 1,
                    Err(_) if disk.is_off() => break,
                    Err(error) => panic!("{error}"),
                }
            }
            disk.crash(steps);
            let log = LogFile::open(disk, [1; 16]).unwrap();
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
        let mut log = LogFile::open(disk.clone(), [1; 16]).unwrap();
        log.write(vec![vote(3), entry(1)]).unwrap();
        disk.fail_sync(1);
        log.write(vec![entry(2)]).unwrap_err();
        disk.tear_write(1);
        log.write(vec![entry(2)]).unwrap_err();
        assert_eq!(log.contents().last().map(|place| place.index), Some(1));
        // What lies behind the failed write is out of the way with the next that goes well.
        log.write(vec![Record::Appended(LogEntry {
            place: RaftPlace { term: 2, leader: 1, index: 2 },
            payload: Payload::Blank,
        })])
        .unwrap();
        let before = log.contents().clone();
        drop(log);
        assert_eq!(LogFile::open(memory, [1; 16]).unwrap().contents(), &before);
    }

    #[test]
    fn a_node_keeps_its_number() {
        let disk = MemoryDisk::new();
        check_number(&disk, 7).unwrap();
        check_number(&disk, 7).unwrap();
        let error = check_number(&disk, 8).unwrap_err().to_string();
        assert!(error.contains("has number 7, not 8"), "{error}");
    }

    #[test]
    fn cut_and_purged_entries_are_gone_and_the_file_stays_small() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(disk.clone(), [1; 16]).unwrap();
        log.write((1..=10).map(entry).collect()).unwrap();
        log.write(vec![Record::Truncated { from: 8 }]).unwrap();
        log.write(vec![Record::Purged { place: RaftPlace { term: 1, leader: 1, index: 5 } }]).unwrap();
        assert_eq!(log.contents().entries.keys().copied().collect::<Vec<_>>(), [6, 7]);
        let log = LogFile::open(disk.clone(), [1; 16]).unwrap();
        assert_eq!(log.contents().entries.keys().copied().collect::<Vec<_>>(), [6, 7]);
        assert_eq!(log.contents().purged.map(|place| place.index), Some(5));
        let mut log = LogFile::open(disk.clone(), [1; 16]).unwrap();
        for index in 8..120_000 {
            log.write(vec![entry(index)]).unwrap();
            if index % 1000 == 0 {
                log.write(vec![Record::Purged { place: RaftPlace { term: 1, leader: 1, index } }]).unwrap();
            }
        }
        assert!(disk.used_bytes() < 2 * FILE_BYTES_MIN, "{}", disk.used_bytes());
        assert_eq!(disk.list(DIR).unwrap().len(), 1);
    }

    #[test]
    fn a_changed_byte_in_the_middle_is_damage_and_of_another_node_too() {
        let disk = Arc::new(MemoryDisk::new());
        let mut log = LogFile::open(disk.clone(), [1; 16]).unwrap();
        log.write(vec![entry(1)]).unwrap();
        log.write(vec![entry(2)]).unwrap();
        let path = log.path();
        let error = LogFile::open(disk.clone(), [2; 16]).unwrap_err().to_string();
        assert!(error.contains("another node"), "{error}");
        disk.flip_bit(&path, FILE_HEADER_BYTES as u64 + 16 + 8, 1).unwrap();
        let error = LogFile::open(disk, [1; 16]).unwrap_err().to_string();
        assert!(error.contains("damaged at byte 80"), "{error}");
    }
}
