//! What a container without a footer ends in: the batch that a kill or a loss of power may have cut off, and what the disk does not give of it.
//!
//! Where no arena tells what was stored, what does not read back counts as cut off, since the virtual log still has what was not synced. What the disk cannot read at all may have
//! been cut off too; or it was synced, the virtual log has let go of it, and it reads again one day. So it is left out, and what follows it in its lane with it, but nothing of
//! it is marked as released or written over, and others hear that it is lacking: nobody is told that it is gone. The lane may go on without it; then what comes back goes where its ordinals
//! were given again ([`crate::given_again`]).

use std::collections::HashSet;
use std::io;
use std::ops::Range;

use kera_env::AlignedBuffer;
use kera_format::container::{BatchHeader, PAGE_BYTES, Trailer, pages};

use super::{Before, Lack, Scan, StoreRecovery};
use crate::store::queue::lane_of;

impl Scan {
    /// Verifies the images of the last batch: what of it counts as cut off, and what may have been.
    pub(super) fn look_at_last(
        &mut self,
        last: Range<usize>,
        (disk, path): (u16, &str),
        Before { in_memory, synced_to, known }: Before<'_>,
        found: &mut StoreRecovery,
    ) -> io::Result<()> {
        let was_synced = self.end <= synced_to;
        // What follows a torn segment in its lane goes too, whole or not: a lane has no holes (decision 0007).
        let (mut torn_lanes, mut unread_lanes) = (HashSet::new(), HashSet::new());
        for i in last {
            let (number, entry) = &self.entries[i];
            let (number, id, at, bytes) = (*number, entry.header.id, entry.at, pages(entry.image_bytes()));
            let (lane, is_released) = (lane_of(id), self.released.get(number));
            // What was synced has counted since, also if it was found lost while a node ran: what was left out is in no batch that is noted as synced.
            let is_known = !was_synced && known.contains(&(self.header.container, at));
            let (is_torn, is_unsure) = match in_memory.map(|in_memory| in_memory.contains(&id)) {
                // It is written once more, whatever has become of this one.
                Some(true) => (!self.is_whole(entry)?, false),
                // An earlier start has left it out.
                _ if unread_lanes.contains(&lane) || is_known && !self.is_whole(entry)? => (true, false),
                None if was_synced => (false, true),
                None => (torn_lanes.contains(&lane) || !self.is_whole(entry)?, false),
                Some(false) => (false, true),
            };
            if !is_released && is_torn {
                let is_first = torn_lanes.insert(lane);
                self.torn.push(number);
                let is_unread = in_memory.is_none() && self.is_lost(at, bytes)?;
                self.unread.extend(is_unread.then_some(at));
                if is_first && (is_unread || is_known) {
                    unread_lanes.insert(lane);
                    self.keep(at, disk, found);
                }
                self.kept.extend(unread_lanes.contains(&lane).then_some(number));
            } else if !is_released && is_unsure {
                self.unsure.push(number);
            }
        }
        found.problems.extend(self.unread.iter().map(|at| unread(path, *at)));
        Ok(())
    }

    /// Looks whether a batch may have begun at the end so far that the disk cannot read. Where nothing but a footer can be nothing is lacking: it is written once more.
    pub(super) fn look_at_end(&mut self, file_bytes: u64, disk: u16, found: &mut StoreRecovery) -> io::Result<()> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = self.read(self.end, &mut page)?;
        let bytes = match BatchHeader::parse(&page[..read]).ok().filter(|batch| self.is_at_end(batch)) {
            // Of one that the file does not have all of nothing was synced.
            Some(batch) if batch.at.saturating_add(batch.batch_bytes) > file_bytes => return Ok(()),
            Some(batch) => batch.index_bytes(),
            None => PAGE_BYTES as u64,
        };
        if !self.is_lost(self.end, bytes)? {
            return Ok(());
        }
        self.unread.push(self.end);
        if !self.ends_in_footer(file_bytes)? {
            self.keep(self.end, disk, found);
        }
        Ok(())
    }

    /// Whether what the file has behind the end so far can be nothing but a footer: a page, for a batch has an index and an image, or what the file's last page says.
    fn ends_in_footer(&self, file_bytes: u64) -> io::Result<bool> {
        if file_bytes.saturating_sub(self.end) <= PAGE_BYTES as u64 {
            return Ok(true);
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = self.read(file_bytes - PAGE_BYTES as u64, &mut page)?;
        let trailer = Trailer::parse(&page[..read], file_bytes);
        let place = (self.header.container, self.header.key, self.end);
        Ok(trailer.is_ok_and(|trailer| (trailer.container, trailer.key, trailer.at) == place))
    }

    /// A place cannot be read, and may have been anything: the file stays, as it is, for a start that can read it, and the lack is told.
    pub(super) fn keep(&mut self, at: u64, disk: u16, found: &mut StoreRecovery) {
        (self.has_gap, self.lacks_some) = (true, true);
        found.lacks.push(Lack { disk, container: self.header.container, at });
    }
}

fn unread(path: &str, at: u64) -> String {
    format!(
        "{path}: the disk cannot read all of what begins at {at}, and nothing says that it was synced: it counts as cut off until a start can read it"
    )
}
