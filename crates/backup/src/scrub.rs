//! Reading files of copies before somebody needs them: a block that went bad is found while the owner of the log has what was in it, and can have it copied again.
//!
//! On a thread of whoever drives it, which decides how fast. What is found is not told in [`Backup::list`] from then on: owners ask for that now and then
//! (`docs/replication.md`, "A disk has lost something").

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use kera_env::is_out_of_means;
use kera_format::vlog_replica::LogId;
use kera_protocol::{BlockRange, Status};

use crate::backup::Backup;
use crate::error::BackupError;
use crate::files::RunKey;
use crate::replica::FilePart;
use crate::scan::Source;

/// Reads all files, log by log. Of those that blocks are written to, what was stored by then: a log to which nobody writes has its last file open for as long as it is there.
pub struct BackupScrubber {
    backup: Arc<Backup>,
    parts: VecDeque<(LogId, FilePart)>,
}

impl BackupScrubber {
    /// Begins a round: all that is there now is read.
    pub fn new(backup: Arc<Backup>) -> BackupScrubber {
        let state = backup.state.lock();
        let parts = state.logs.iter().flat_map(|(log, replica)| {
            let parts = replica.runs.iter().flat_map(|run| &run.files);
            parts.filter(|part| part.has_blocks()).map(|part| (*log, *part))
        });
        let parts = parts.collect();
        drop(state);
        BackupScrubber { backup, parts }
    }

    /// Reads one file. Its bytes, and how many of its blocks are damaged. `None`: the round is over.
    ///
    /// One that the system lets nobody read now, for want of files or memory, is left to the next round: what counts as damaged is told to nobody until the next start, and the
    /// log to which it belongs would take other backups for it.
    pub fn step(&mut self) -> Option<(u64, u64)> {
        let (log, part) = self.parts.pop_front()?;
        match self.backup.read_back(log, &part) {
            Err(error) if is_out_of_means(&error) => {
                let (disk, file) = (self.backup.disks[part.disk].disk.root().display(), part.sequence);
                tracing::warn!(%log, %disk, file, %error, "copies cannot be looked through now");
                Some((0, 0))
            }
            read => Some(self.backup.note_read(log, &part, read)),
        }
    }
}

/// Bytes of blocks that were read, those that are damaged, and what is wrong with the first of them.
type Read = (u64, Vec<BlockRange>, String);

impl Backup {
    /// Looks at a file that could not be synced, of a run whose blocks were answered before that.
    ///
    /// What the kernel could not write it tells each handle once, and takes for written from then on: a later sync that succeeds says nothing, and what is
    /// read through the page cache may be what the disk never got. Read past it a block is what the disk has. Those that it does not have are not told from
    /// here on, and their owner copies them again. The others are there: whatever a disk has yet to make durable of what it gives it does with the next
    /// sync that succeeds, of whichever file.
    pub(crate) fn look_at_unsynced(&self, disk: usize, run: RunKey, sequence: u64) {
        for part in &self.unsynced_parts(disk, run, sequence) {
            self.look(run.0, part);
        }
    }

    /// What is to be looked at so. Of a run whose blocks are to be synced its writer takes care, while it is that of this disk.
    pub(crate) fn unsynced_parts(&self, disk: usize, run: RunKey, sequence: u64) -> Vec<FilePart> {
        let mut state = self.state.lock();
        let known = state.logs.get_mut(&run.0).and_then(|log| log.run_mut(run.1));
        let known = known.filter(|run| !run.to_sync || run.disk != disk);
        let is_it = |part: &&FilePart| (part.disk, part.sequence) == (disk, sequence) && part.has_blocks();
        known.map_or_else(Vec::new, |run| run.files.iter().filter(is_it).copied().collect())
    }

    /// Reads a file, or a part of one, past the page cache, and notes blocks that do not read back. What cannot be read for whatever reason does not.
    pub(crate) fn look(&self, log: LogId, part: &FilePart) {
        self.note_read(log, part, self.read_back(log, part));
    }

    /// Passes on what came of reading blocks of a file for somebody, from the first to the last of `blocks`. If one did not read back, the file is looked through at once: its owner is
    /// told of the loss as of any that is found here, and may have the block copied again before the next round comes to it.
    pub(crate) fn noticed<T>(
        &self,
        log: LogId,
        part: &FilePart,
        blocks: (u64, u64),
        read: Result<T, BackupError>,
    ) -> Result<T, BackupError> {
        if read.as_ref().is_err_and(|error| error.status == Status::SegmentUnreadable)
            && !self.is_known_damaged(log, blocks)
            && let Ok(found) = self.read_back(log, part)
        {
            self.note_read(log, part, Ok(found));
        }
        read
    }

    /// Whether damage in these blocks was found since the start: whoever asks for them again does not have all of their file read anew. What was found in others of the file says nothing
    /// of them: they may be of another view, of which its owner knows no loss.
    fn is_known_damaged(&self, log: LogId, (first, last): (u64, u64)) -> bool {
        let state = self.state.lock();
        let damaged = state.logs.get(&log).map_or(&[][..], |replica| &replica.damaged[..]);
        damaged.iter().any(|range| range.first <= last && first <= range.last)
    }

    /// Notes blocks that do not read back. Bytes that were read, and blocks of which nobody knew.
    fn note_read(&self, log: LogId, part: &FilePart, read: io::Result<Read>) -> (u64, u64) {
        let (bytes, mut damaged, reason) = match read {
            Ok(read) => read,
            Err(error) => (0, vec![BlockRange { first: part.first, last: part.last }], error.to_string()),
        };
        if damaged.is_empty() {
            return (bytes, 0);
        }
        let mut state = self.state.lock();
        let Some(replica) = state.logs.get_mut(&log) else { return (bytes, 0) };
        // What was given back meanwhile is nobody's, and so is what was cut off behind a sync that failed.
        let is_it = |is: &&FilePart| (is.disk, is.sequence, is.start) == (part.disk, part.sequence, part.start);
        let Some(last) = replica.runs.iter().flat_map(|run| &run.files).find(is_it).map(|part| part.last) else {
            return (bytes, 0);
        };
        damaged.retain_mut(|range| {
            range.last = range.last.min(last);
            range.first <= range.last
        });
        if damaged.is_empty() {
            return (bytes, 0);
        }
        let known = replica.damaged.clone();
        replica.note_damaged(&damaged);
        let is_news = replica.damaged != known;
        drop(state);
        let count = damaged.iter().map(|range| range.last - range.first + 1).sum();
        if is_news {
            let (disk, file) = (self.disks[part.disk].disk.root().display(), part.sequence);
            let first = damaged[0].first;
            tracing::error!(%log, %disk, file, first, blocks = count, reason, "copies on a disk are not what was written; their owner copies them again");
            return (bytes, count);
        }
        (bytes, 0)
    }

    fn read_back(&self, log: LogId, part: &FilePart) -> io::Result<Read> {
        let disk = &*self.disks[part.disk].disk;
        let mut source = Source::open_direct(disk, part.sequence, part.key, log.vlog)?;
        let (mut at, mut block) = (part.start, part.first);
        let (mut bytes, mut damaged, mut first_reason) = (0, Vec::new(), String::new());
        while block <= part.last {
            let reason = match source.block(at) {
                Ok(Ok(header)) if header.block == block => {
                    (at, block) = (at + header.total_bytes() as u64, block + 1);
                    bytes += header.total_bytes() as u64;
                    continue;
                }
                Ok(Ok(header)) => format!("block {} is there", header.block),
                Ok(Err(reason)) => reason,
                Err(error) if is_out_of_means(&error) => return Err(error),
                Err(error) => error.to_string(),
            };
            if damaged.is_empty() {
                first_reason = reason;
            }
            // Where nothing can be found any more all the rest is gone.
            let (next_at, next) = match source.skip(at, block) {
                Ok(Ok(next)) => next,
                Ok(Err(_)) | Err(_) => (at, part.last + 1),
            };
            damaged.push(BlockRange { first: block, last: (next - 1).min(part.last) });
            (at, block) = (next_at, next);
        }
        Ok((bytes, damaged, first_reason))
    }
}
