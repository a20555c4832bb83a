//! A disk in memory that forgets as a real one does when the power goes. For tests and the simulator.
//!
//! What [`DiskFile::sync_data`] has not covered may be lost, kept, or torn at any sector of 512 bytes; creations,
//! removals and renames that [`Disk::sync_dir`] has not covered may be undone, the later ones first, as a journalling
//! file system does. Which of it happens is drawn from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::disk::{DISK_ALIGNMENT, DirectIo, Disk, DiskFile, OpenMode, check_path};

const PAGE_BYTES: usize = DISK_ALIGNMENT;
const SECTOR_BYTES: usize = 512;

type Page = Arc<[u8; PAGE_BYTES]>;

/// A directory tree in memory. A clone is the same disk.
#[derive(Debug, Clone)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
    root: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    file_next: u64,
    names: BTreeMap<String, u64>,
    names_synced: BTreeMap<String, u64>,
    /// Changes of names that no directory sync has covered, in order.
    names_pending: Vec<NameChange>,
    dirs: BTreeSet<String>,
    pages_used: u64,
    pages_max: Option<u64>,
    /// Counts power cuts: handles of an earlier one are dead.
    incarnation: u64,
    steps: u64,
    cut_at_step: Option<u64>,
    is_off: bool,
}

#[derive(Debug, Default)]
struct File {
    /// Absent pages are zeros.
    pages: BTreeMap<u64, Page>,
    pages_synced: BTreeMap<u64, Page>,
    /// Pages that differ, or may, between the two.
    dirty: BTreeSet<u64>,
    len: u64,
    len_synced: u64,
}

#[derive(Debug, Clone)]
enum NameChange {
    Add(String, u64),
    Remove(String),
    Rename(String, String),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Add(path, file) => {
                names.insert(path.clone(), *file);
            }
            NameChange::Remove(path) => {
                names.remove(path);
            }
            NameChange::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }

    fn touches(&self, dir: &str) -> bool {
        match self {
            NameChange::Add(path, _) | NameChange::Remove(path) => parent(path) == dir,
            NameChange::Rename(from, to) => parent(from) == dir || parent(to) == dir,
        }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path} is not there"))
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

impl Default for MemoryDisk {
    fn default() -> MemoryDisk {
        MemoryDisk::new()
    }
}

impl MemoryDisk {
    /// An empty disk without a limit.
    pub fn new() -> MemoryDisk {
        MemoryDisk { state: Arc::default(), root: PathBuf::from("/memory-disk") }
    }

    /// An empty disk that holds at most `bytes` of file contents.
    pub fn with_capacity(bytes: u64) -> MemoryDisk {
        let disk = MemoryDisk::new();
        disk.state().pages_max = Some(bytes / PAGE_BYTES as u64);
        disk
    }

    /// Cuts the power and turns it on again: what was not synced is lost, kept or torn as `seed` has it, open files
    /// are dead, and a cut that was planned has happened.
    pub fn crash(&self, seed: u64) {
        let mut state = self.state();
        let mut rng = StdRng::seed_from_u64(seed);
        let fate = Fate::draw(&mut rng);
        let pending = std::mem::take(&mut state.names_pending);
        let kept = match fate {
            Fate::Lost => 0,
            Fate::Kept => pending.len(),
            Fate::Torn => rng.random_range(0..=pending.len()),
        };
        let mut names = std::mem::take(&mut state.names_synced);
        pending[..kept].iter().for_each(|change| change.apply(&mut names));
        let alive: BTreeSet<u64> = names.values().copied().collect();
        state.files.retain(|number, _| alive.contains(number));
        for file in state.files.values_mut() {
            file.crash(fate, &mut rng);
        }
        state.names = names.clone();
        state.names_synced = names;
        state.pages_used = state.files.values().map(|file| file.pages.len() as u64).sum();
        state.incarnation += 1;
        state.is_off = false;
        state.cut_at_step = None;
    }

    /// The power goes in the middle of the `steps`th change from now on (1 is the next): that one and everything
    /// after it fails until [`crash`](MemoryDisk::crash).
    pub fn cut_power_at(&self, steps: u64) {
        let mut state = self.state();
        state.cut_at_step = Some(state.steps + steps);
    }

    /// Whether a planned power cut has happened.
    pub fn is_off(&self) -> bool {
        self.state().is_off
    }

    /// Changes made so far: writes, syncs, and changes of lengths and names.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Bytes of file contents, in whole pages.
    pub fn used_bytes(&self) -> u64 {
        self.state().pages_used * PAGE_BYTES as u64
    }

    /// Flips one bit of a file, both in what is synced and in what is not: rot.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.state();
        let file = state.named(path)?;
        let page = offset / PAGE_BYTES as u64;
        for pages in [&mut file.pages, &mut file.pages_synced] {
            if let Some(page) = pages.get_mut(&page) {
                Arc::make_mut(page)[offset as usize % PAGE_BYTES] ^= 1 << (bit % 8);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn reading(&self) -> io::Result<()> {
        if self.is_off { Err(power_is_off()) } else { Ok(()) }
    }

    /// Counts a change; `Ok(true)` means that it is the one in whose middle the power goes.
    fn changing(&mut self) -> io::Result<bool> {
        self.reading()?;
        self.steps += 1;
        self.is_off = self.cut_at_step.is_some_and(|at| self.steps >= at);
        Ok(self.is_off)
    }

    fn named(&mut self, path: &str) -> io::Result<&mut File> {
        let number = *self.names.get(path).ok_or_else(|| not_found(path))?;
        self.files.get_mut(&number).ok_or_else(|| not_found(path))
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        let cut = self.changing()?;
        change.apply(&mut self.names);
        self.names_pending.push(change);
        if cut { Err(power_is_off()) } else { Ok(()) }
    }
}

/// What becomes of everything not synced in one power cut.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Lost,
    Kept,
    Torn,
}

impl Fate {
    fn draw(rng: &mut StdRng) -> Fate {
        match rng.random_range(0..4) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            _ => Fate::Torn,
        }
    }

    fn keeps(self, rng: &mut StdRng) -> bool {
        match self {
            Fate::Lost => false,
            Fate::Kept => true,
            Fate::Torn => rng.random(),
        }
    }
}

impl File {
    fn crash(&mut self, fate: Fate, rng: &mut StdRng) {
        if !fate.keeps(rng) {
            self.len = self.len_synced;
        }
        for page in std::mem::take(&mut self.dirty) {
            let zeros = || Arc::new([0; PAGE_BYTES]);
            let mut result = self.pages_synced.get(&page).cloned().unwrap_or_else(zeros);
            let written = self.pages.get(&page).cloned().unwrap_or_else(zeros);
            for sector in 0..PAGE_BYTES / SECTOR_BYTES {
                if fate.keeps(rng) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    Arc::make_mut(&mut result)[range.clone()].copy_from_slice(&written[range]);
                }
            }
            self.pages.insert(page, result);
        }
        self.cut(self.len);
        self.pages_synced = self.pages.clone();
        self.dirty.clear();
        self.len_synced = self.len;
    }

    /// Zeros everything from `len` on.
    fn cut(&mut self, len: u64) {
        let page_bytes = PAGE_BYTES as u64;
        let whole = len.div_ceil(page_bytes);
        for page in self.pages.split_off(&whole).into_keys() {
            self.dirty.insert(page);
        }
        if !len.is_multiple_of(page_bytes)
            && let Some(page) = self.pages.get_mut(&(len / page_bytes))
        {
            Arc::make_mut(page)[(len % page_bytes) as usize..].fill(0);
            self.dirty.insert(len / page_bytes);
        }
    }

    fn zero(&mut self, from: u64, to: u64) {
        let page_bytes = PAGE_BYTES as u64;
        let touched: Vec<u64> = self.pages.range(from / page_bytes..to.div_ceil(page_bytes)).map(|(p, _)| *p).collect();
        for page in touched {
            let start = from.max(page * page_bytes) - page * page_bytes;
            let end = to.min((page + 1) * page_bytes) - page * page_bytes;
            if (start, end) == (0, page_bytes) {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[start as usize..end as usize].fill(0);
            }
            self.dirty.insert(page);
        }
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (page, start) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
            let many = bytes.len().min(PAGE_BYTES - start);
            let target = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(target)[start..start + many].copy_from_slice(&bytes[..many]);
            self.dirty.insert(page);
            bytes = &bytes[many..];
            offset += many as u64;
            self.len = self.len.max(offset);
        }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let many = (self.len.saturating_sub(offset)).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < many {
            let at = offset + done as u64;
            let (page, start) = (at / PAGE_BYTES as u64, at as usize % PAGE_BYTES);
            let part = (many - done).min(PAGE_BYTES - start);
            match self.pages.get(&page) {
                Some(page) => bytes[done..done + part].copy_from_slice(&page[start..start + part]),
                None => bytes[done..done + part].fill(0),
            }
            done += part;
        }
        many
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            match self.pages.get(&page) {
                Some(bytes) => self.pages_synced.insert(page, bytes.clone()),
                None => self.pages_synced.remove(&page),
            };
        }
        self.len_synced = self.len;
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &str, mode: OpenMode, _direct: bool) -> io::Result<Arc<dyn DiskFile>> {
        check_path(path)?;
        let mut state = self.state();
        state.reading()?;
        let number = match (state.names.get(path).copied(), mode) {
            (Some(_), OpenMode::Create) => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{path} is there")));
            }
            (Some(number), _) => number,
            (None, OpenMode::Create) if parent(path).is_empty() || state.dirs.contains(parent(path)) => {
                state.file_next += 1;
                let number = state.file_next;
                state.files.insert(number, File::default());
                state.change_name(NameChange::Add(path.to_owned(), number))?;
                number
            }
            (None, _) => return Err(not_found(path)),
        };
        let incarnation = state.incarnation;
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(MemoryFile { disk: self.clone(), path: path.to_owned(), number, incarnation, writable }))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        check_path(dir)?;
        let state = self.state();
        state.reading()?;
        if !dir.is_empty() && !state.dirs.contains(dir) {
            return Err(not_found(dir));
        }
        let paths = state.names.keys().chain(state.dirs.iter());
        let mut names: Vec<String> = paths
            .filter(|path| parent(path) == dir && !path.is_empty())
            .map(|path| path.rsplit_once('/').map_or(&path[..], |(_, name)| name).to_owned())
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        check_path(path)?;
        let mut state = self.state();
        state.reading()?;
        let number = *state.names.get(path).ok_or_else(|| not_found(path))?;
        state.change_name(NameChange::Remove(path.to_owned()))?;
        // The contents stay for a power cut that undoes the removal, but take no space any more.
        let pages = state.files.get(&number).map_or(0, |file| file.pages.len() as u64);
        state.pages_used = state.pages_used.saturating_sub(pages);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_path(from)?;
        check_path(to)?;
        let mut state = self.state();
        state.reading()?;
        if !state.names.contains_key(from) {
            return Err(not_found(from));
        }
        state.change_name(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        check_path(dir)?;
        let mut state = self.state();
        state.reading()?;
        let mut dir = dir;
        while !dir.is_empty() {
            state.dirs.insert(dir.to_owned());
            dir = parent(dir);
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        check_path(dir)?;
        let mut state = self.state();
        if state.changing()? {
            return Err(power_is_off());
        }
        let (now, later) = std::mem::take(&mut state.names_pending).into_iter().partition(|c| c.touches(dir));
        state.names_pending = later;
        let now: Vec<NameChange> = now;
        now.iter().for_each(|change| change.apply(&mut state.names_synced));
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        state.reading()?;
        let free = state.pages_max.map_or(1 << 40, |max| max.saturating_sub(state.pages_used));
        Ok(free * PAGE_BYTES as u64)
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn direct_io(&self) -> DirectIo {
        DirectIo::Direct
    }
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    path: String,
    number: u64,
    incarnation: u64,
    writable: bool,
}

impl MemoryFile {
    fn read_with<R>(&self, read: impl FnOnce(&File) -> R) -> io::Result<R> {
        let state = self.disk.state();
        state.reading()?;
        if state.incarnation != self.incarnation {
            return Err(power_is_off());
        }
        state.files.get(&self.number).map(read).ok_or_else(|| not_found(&self.path))
    }

    /// Makes one change that may take up to `pages` more pages. When the power goes in its middle the change is as
    /// unsynced as any other, so it is made and reported as failed.
    fn change(&self, pages: u64, change: impl FnOnce(&mut File)) -> io::Result<()> {
        if !self.writable {
            let message = format!("{} is open for reading only", self.path);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let mut state = self.disk.state();
        if state.incarnation != self.incarnation {
            return Err(power_is_off());
        }
        let cut = state.changing()?;
        if state.pages_max.is_some_and(|max| state.pages_used + pages > max) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the memory disk is full"));
        }
        let file = state.files.get_mut(&self.number).ok_or_else(|| not_found(&self.path))?;
        let before = file.pages.len() as u64;
        change(file);
        let after = file.pages.len() as u64;
        state.pages_used = (state.pages_used + after).saturating_sub(before);
        if cut { Err(power_is_off()) } else { Ok(()) }
    }

    /// Pages of a range that the file does not have yet.
    fn missing(&self, offset: u64, bytes: u64) -> io::Result<u64> {
        let page_bytes = PAGE_BYTES as u64;
        let pages = offset / page_bytes..(offset + bytes).div_ceil(page_bytes);
        let many = pages.end.saturating_sub(pages.start);
        self.read_with(|file| many - file.pages.range(pages).count() as u64)
    }
}

impl DiskFile for MemoryFile {
    fn write_vectored_at(&self, mut offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.change(self.missing(offset, bytes)?, |file| {
            for part in parts {
                file.write(offset, part);
                offset += part.len() as u64;
            }
        })
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_with(|file| file.read(offset, bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.incarnation != self.incarnation || state.changing()? {
            return Err(power_is_off());
        }
        state.files.get_mut(&self.number).map(File::sync).ok_or_else(|| not_found(&self.path))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.change(0, |file| {
            file.cut(bytes);
            file.len = bytes;
        })
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.change(self.missing(offset, bytes)?, |_| {})
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.change(0, |file| file.zero(offset, offset + bytes))
    }

    fn len(&self) -> io::Result<u64> {
        self.read_with(|file| file.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: std::ops::Range<u64> = 0..40;

    #[test]
    fn synced_bytes_survive_every_cut_and_others_some() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in SEEDS {
            let disk = MemoryDisk::new();
            let file = disk.open("f", OpenMode::Create, true).unwrap();
            disk.sync_dir("").unwrap();
            file.write_at(0, &[1; 8192]).unwrap();
            file.sync_data().unwrap();
            file.write_at(4096, &[2; 8192]).unwrap();
            disk.crash(seed);
            assert!(file.read_at(0, &mut [0]).is_err(), "handles die with the power");
            let back = disk.read_all("f", 1 << 20).unwrap();
            assert!(back[..4096].iter().all(|b| *b == 1));
            assert!(back[4096..8192].iter().all(|b| *b == 1 || *b == 2));
            assert!(back.len() == 8192 || back.len() == 12288);
            match back[4096..8192].iter().filter(|b| **b == 2).count() {
                0 => lost += 1,
                4096 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(kept > 0 && lost > 0 && torn > 0, "{kept} {lost} {torn}");
    }

    #[test]
    fn names_survive_after_a_directory_sync_only() {
        let mut seen = BTreeSet::new();
        for seed in SEEDS {
            let disk = MemoryDisk::new();
            disk.create_dir_all("d").unwrap();
            disk.open("d/a", OpenMode::Create, true).unwrap();
            disk.sync_dir("d").unwrap();
            disk.open("d/b", OpenMode::Create, true).unwrap();
            disk.rename("d/a", "d/c").unwrap();
            disk.crash(seed);
            seen.insert(disk.list("d").unwrap().join(" "));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a", "a b", "b c"]);
    }

    #[test]
    fn replace_is_all_or_nothing_at_every_step() {
        for steps in 1.. {
            let mut done = false;
            for seed in SEEDS {
                let disk = MemoryDisk::new();
                disk.replace("n", &[1; 700]).unwrap();
                disk.cut_power_at(steps);
                let result = disk.replace("n", &[2; 900]);
                done = !disk.is_off();
                disk.crash(seed);
                let back = disk.read_all("n", 1 << 20).unwrap();
                assert!(back == [1; 700] || back == [2; 900], "step {steps} seed {seed}");
                assert!(result.is_err() || back == [2; 900]);
            }
            if done {
                assert!(steps > 3);
                break;
            }
        }
    }

    #[test]
    fn full_disk_refuses_and_holes_make_room() {
        let disk = MemoryDisk::with_capacity(16384);
        let file = disk.open("f", OpenMode::Create, true).unwrap();
        file.write_at(0, &[1; 16384]).unwrap();
        assert_eq!(file.write_at(16384, &[1]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.allocate(0, 20_000).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.free_bytes().unwrap(), 0);
        file.punch_hole(0, 8192).unwrap();
        assert_eq!(disk.free_bytes().unwrap(), 8192);
        file.write_at(16384, &[1]).unwrap();
        disk.remove("f").unwrap();
        assert_eq!(disk.used_bytes(), 0);
    }

    #[test]
    fn cutting_and_growing_a_file_shows_zeros() {
        let disk = MemoryDisk::new();
        let file = disk.open("f", OpenMode::Create, false).unwrap();
        file.write_at(0, &[1; 10_000]).unwrap();
        file.set_len(5_000).unwrap();
        file.set_len(10_000).unwrap();
        let back = disk.read_all("f", 1 << 20).unwrap();
        assert!(back[..5_000].iter().all(|b| *b == 1) && back[5_000..].iter().all(|b| *b == 0));
        disk.flip_bit("f", 3, 1).unwrap();
        assert_eq!(disk.read_all("f", 1 << 20).unwrap()[3], 3);
    }
}
