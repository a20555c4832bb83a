//! Where lanes begin because this node has let go of what was in front ([`kera_format::begins`]): written behind what it tells of, by the thread that
//! writes to the first disk, and read once at a start.
//!
//! Nothing waits for it: a note that a kill takes, or a disk that fails, has a node rebuilt that need not be.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_env::{DiskFile, Folder, OpenMode};
use kera_format::begins::{BEGIN_BYTES, Begin};
use parking_lot::Mutex;

use super::container::CONTAINER_DIR;
use super::queue::LaneKey;

/// Lanes that are noted at most, those that came first.
const LANES_MAX: usize = 1 << 20;
/// The file is written anew when it is larger than this, and has several records of a lane.
const FILE_BYTES_LEAST: u64 = 1 << 20;
/// The file is written anew when it has so many records of each lane.
const RECORDS_OF_A_LANE: u64 = 4;
/// It is also when twice as many lanes are known as when it was written anew last, and more than so many: most may be of streams that are gone, and of these no lane has a second record.
const LANES_LEAST: usize = 16_384;

/// See the module.
pub(crate) struct Begins {
    /// That of the containers of the first disk.
    folder: Arc<Folder>,
    node: [u8; 16],
    retry_us: u64,
    /// Told and not written yet.
    told: Mutex<BTreeMap<LaneKey, u64>>,
    /// Whether there is something.
    is_told: AtomicBool,
    file: Mutex<File>,
}

#[derive(Default)]
struct File {
    known: BTreeMap<LaneKey, u64>,
    /// Lanes that were known when the file was written anew last.
    kept: usize,
    /// What records are put behind, and where; the file is written anew if there is none.
    open: Option<(Arc<dyn DiskFile>, u64)>,
    /// After an error not before.
    retry_at_us: u64,
}

fn path() -> String {
    format!("{CONTAINER_DIR}/begins")
}

impl Begins {
    /// Reads what earlier lives have noted: nothing if the disk does not give it.
    pub(crate) fn open(folder: &Arc<Folder>, node: [u8; 16], retry_ms: u64) -> Begins {
        let bytes = folder.disk().read_all(&path(), LANES_MAX * BEGIN_BYTES * RECORDS_OF_A_LANE as usize * 2);
        let mut known = BTreeMap::new();
        let bytes = bytes.unwrap_or_default();
        let records = bytes.chunks_exact(BEGIN_BYTES).map_while(|record| Begin::parse(record).ok());
        for begin in records.take_while(|begin| begin.node == node) {
            note(&mut known, (begin.stream, begin.streamlet, begin.lane), begin.ordinal);
        }
        let file = Mutex::new(File { known, ..File::default() });
        let (told, is_told) = (Mutex::default(), AtomicBool::new(false));
        Begins { folder: Arc::clone(folder), node, retry_us: retry_ms * 1000, told, is_told, file }
    }

    /// All that is known, by lane.
    pub(crate) fn all(&self) -> Vec<(LaneKey, u64)> {
        self.file.lock().known.iter().map(|(lane, ordinal)| (*lane, *ordinal)).collect()
    }

    /// A lane has been let go of in front of an ordinal. True: it is to be written soon.
    pub(crate) fn tell(&self, lane: LaneKey, ordinal: u64) -> bool {
        note(&mut self.told.lock(), lane, ordinal);
        !self.is_told.swap(true, Ordering::AcqRel)
    }

    /// Whether [`write`](Begins::write) has something to write now.
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        self.is_told.load(Ordering::Acquire) && self.file.lock().retry_at_us <= now_us
    }

    /// Writes what was told. `has`: whether there is such a lane still. When it is to be tried again, in microseconds, if it failed.
    pub(crate) fn write(&self, now_us: u64, has: impl Fn(&LaneKey) -> bool) -> Option<u64> {
        if !self.is_told.load(Ordering::Acquire) {
            return None;
        }
        let mut file = self.file.lock();
        if now_us < file.retry_at_us {
            return Some(file.retry_at_us);
        }
        self.is_told.store(false, Ordering::Release);
        let told = std::mem::take(&mut *self.told.lock());
        told.iter().for_each(|(lane, ordinal)| note(&mut file.known, *lane, *ordinal));
        let written = match file.open.take().filter(|(_, end)| file.goes_on(*end)) {
            Some((open, end)) => self.append(open, end, &told),
            None => {
                file.known.retain(|lane, _| has(lane));
                file.kept = file.known.len();
                self.replace(&file.known)
            }
        };
        match written {
            Ok(open) => {
                file.open = Some(open);
                None
            }
            Err(_) => {
                // All that is known is written then.
                self.is_told.store(true, Ordering::Release);
                file.retry_at_us = now_us + self.retry_us;
                Some(file.retry_at_us)
            }
        }
    }

    fn append(
        &self,
        open: Arc<dyn DiskFile>,
        end: u64,
        told: &BTreeMap<LaneKey, u64>,
    ) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let bytes = self.records(told);
        open.write_at(end, &bytes)?;
        Ok((open, end + bytes.len() as u64))
    }

    fn replace(&self, known: &BTreeMap<LaneKey, u64>) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let bytes = self.records(known);
        self.folder.replace(&path(), &bytes)?;
        Ok((self.folder.disk().open(&path(), OpenMode::ReadWrite, false)?, bytes.len() as u64))
    }

    fn records(&self, of: &BTreeMap<LaneKey, u64>) -> Vec<u8> {
        let record = |(lane, ordinal): (&LaneKey, &u64)| {
            let (stream, streamlet, lane) = *lane;
            Begin { node: self.node, stream, streamlet, lane, ordinal: *ordinal }.encode()
        };
        of.iter().flat_map(record).collect()
    }
}

impl File {
    /// Whether more is put behind what ends there.
    fn goes_on(&self, end: u64) -> bool {
        end < self.bytes_max() && self.known.len() <= (2 * self.kept).max(LANES_LEAST)
    }

    fn bytes_max(&self) -> u64 {
        let each = (self.known.len() * BEGIN_BYTES) as u64;
        (each * RECORDS_OF_A_LANE).max(FILE_BYTES_LEAST)
    }
}

/// Ordinals never fall. There is no room for more lanes than so many.
fn note(known: &mut BTreeMap<LaneKey, u64>, lane: LaneKey, ordinal: u64) {
    let is_full = known.len() >= LANES_MAX;
    match known.get_mut(&lane) {
        Some(noted) => *noted = ordinal.max(*noted),
        None if is_full => {}
        None => drop(known.insert(lane, ordinal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{Disk, FaultyDisk, MemoryDisk};
    use kera_format::{LaneId, StreamId, StreamletId};

    const NODE: [u8; 16] = [3; 16];

    fn lane(number: u32) -> LaneKey {
        (StreamId(7), StreamletId(number / 4), LaneId(number % 4))
    }

    fn open(disk: &Arc<dyn Disk>) -> Begins {
        open_as(disk, NODE)
    }

    fn open_as(disk: &Arc<dyn Disk>, node: [u8; 16]) -> Begins {
        Begins::open(&Arc::new(Folder::new(Arc::clone(disk), CONTAINER_DIR)), node, 100)
    }

    fn tell(begins: &Begins, told: &[(u32, u64)]) {
        told.iter().for_each(|(at, ordinal)| _ = begins.tell(lane(*at), *ordinal));
        assert_eq!(begins.write(0, |_| true), None);
    }

    fn disks() -> (MemoryDisk, FaultyDisk, Arc<dyn Disk>) {
        let memory = MemoryDisk::new();
        let faulty = FaultyDisk::new(Arc::new(memory.clone()));
        let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
        disk.create_dir_all(CONTAINER_DIR).unwrap();
        (memory, faulty, disk)
    }

    #[test]
    fn the_next_life_knows_the_highest_of_each_lane() {
        let (_, _, disk) = disks();
        assert_eq!(open(&disk).all(), []);
        let begins = open(&disk);
        assert!(begins.tell(lane(1), 5) && !begins.tell(lane(1), 3));
        tell(&begins, &[(2, 7)]);
        tell(&begins, &[(1, 9)]);
        tell(&begins, &[(1, 8)]);
        assert_eq!(open(&disk).all(), [(lane(1), 9), (lane(2), 7)]);
        // And goes on from there.
        let again = open(&disk);
        tell(&again, &[(3, 1)]);
        assert_eq!(open(&disk).all(), [(lane(1), 9), (lane(2), 7), (lane(3), 1)]);
        assert_eq!(open_as(&disk, [4; 16]).all(), [], "another node's");
    }

    #[test]
    fn the_file_stays_small_and_forgets_lanes_that_are_gone() {
        let (_, _, disk) = disks();
        let begins = open(&disk);
        for n in 0..60_000 {
            tell(&begins, &[(n % 3, u64::from(n))]);
        }
        let bytes = disk.read_all(&path(), usize::MAX).unwrap().len() as u64;
        assert!(bytes <= FILE_BYTES_LEAST + 3 * BEGIN_BYTES as u64, "{bytes}");
        assert_eq!(open(&disk).all().len(), 3);
        let begins = open(&disk);
        begins.tell(lane(0), 70_000);
        assert_eq!(begins.write(0, |of| *of != lane(1)), None);
        assert_eq!(open(&disk).all(), [(lane(0), 70_000), (lane(2), 59_999)]);
    }

    #[test]
    fn lanes_of_streams_that_live_for_a_moment_do_not_pile_up() {
        let (_, _, disk) = disks();
        let begins = open(&disk);
        let (stays, of) = (lane(0), |number: u64| (StreamId(100 + number), StreamletId(0), LaneId(0)));
        begins.tell(stays, 5);
        let most = 5 * LANES_LEAST as u64;
        for number in 0..most {
            begins.tell(of(number), 1);
            assert_eq!(begins.write(0, |known| [stays, of(number)].contains(known)), None);
            assert!(begins.file.lock().known.len() <= LANES_LEAST);
        }
        let known = open(&disk).all();
        assert!(known.contains(&(stays, 5)) && known.contains(&(of(most - 1), 1)));
        let bytes = disk.read_all(&path(), usize::MAX).unwrap().len() as u64;
        assert!(bytes < FILE_BYTES_LEAST + 2 * BEGIN_BYTES as u64, "{bytes}");
    }

    #[test]
    fn what_is_torn_or_damaged_ends_it_and_is_written_anew() {
        let (_, _, disk) = disks();
        tell(&open(&disk), &[(0, 1), (1, 2), (2, 3)]);
        let whole = disk.read_all(&path(), usize::MAX).unwrap();
        let mut damaged = whole.clone();
        damaged[BEGIN_BYTES + 44] ^= 1;
        for (bytes, left) in [(&whole[..whole.len() - 1], 2), (&damaged[..], 1), (&whole[..3], 0)] {
            disk.replace(&path(), bytes).unwrap();
            let begins = open(&disk);
            assert_eq!(begins.all().len(), left);
            tell(&begins, &[(5, 5)]);
            assert_eq!(open(&disk).all().len(), left + 1);
        }
    }

    #[test]
    fn a_disk_that_fails_is_tried_again_with_all_that_was_told() {
        let (_, faulty, disk) = disks();
        let begins = open(&disk);
        tell(&begins, &[(0, 1)]);
        faulty.set_broken(true);
        begins.tell(lane(1), 2);
        assert_eq!(begins.write(1_000, |_| true), Some(101_000));
        begins.tell(lane(2), 3);
        assert_eq!(begins.write(2_000, |_| true), Some(101_000), "not before");
        faulty.set_broken(false);
        assert_eq!(begins.write(101_000, |_| true), None);
        assert_eq!(open(&disk).all().len(), 3);
    }
}
