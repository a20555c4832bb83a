//! What is noted of a disk's containers beside them: files of lines with a container and a place in it.
//!
//! They are not kept twice, and have no checksums. What a disk has lost of one is missing, and that is told; what it has left of it counts, and stays when something more is noted.
//! Nothing is taken for empty that was written: a file that is too large ends a start, and a note for which there is no room is an error and changes nothing, so that what
//! was noted before is known to every later start. What could not be noted as lost is found so once more by whoever reads it.

use std::collections::BTreeSet;
use std::io;

use kera_env::{Disk, Folder, OpenMode, is_unreadable, read_readable};

use crate::store::container::CONTAINER_DIR;

/// What others have.
pub(crate) const KNOWN: &str = "lacks";
/// What was found lost while the node ran.
pub(crate) const LOST: &str = "lost";
/// Up to where a start has synced what has no footer.
pub(crate) const SYNCED: &str = "synced";

/// More is neither written to one nor read of it: some three million places.
const NOTES_BYTES_MAX: usize = 64 << 20;

/// What is noted in a file.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) places: BTreeSet<(u64, u64)>,
    /// The file does not read back in all of it: a sentence that says so.
    pub(super) problem: Option<String>,
}

/// What is noted; without the file nothing. An error: it may read back later, or is larger than any that was written.
pub(super) fn noted(disk: &dyn Disk, name: &str) -> io::Result<Noted> {
    let path = format!("{CONTAINER_DIR}/{name}");
    let (bytes, mut is_damaged) = read(disk, &path)?;
    let mut places = BTreeSet::new();
    for line in String::from_utf8_lossy(&bytes).lines() {
        match place(line) {
            Some(place) => {
                places.insert(place);
            }
            None => is_damaged = true,
        }
    }
    let sentence =
        || format!("{} is damaged: some of what was noted there is missing", disk.root().join(&path).display());
    Ok(Noted { places, problem: is_damaged.then(sentence) })
}

fn place(line: &str) -> Option<(u64, u64)> {
    let (container, at) = line.split_once(' ')?;
    Some((container.parse().ok()?, at.parse().ok()?))
}

/// A file's bytes, with zeros for what the disk has lost of them, which are in no line that is a place; and whether it has lost some.
fn read(disk: &dyn Disk, path: &str) -> io::Result<(Vec<u8>, bool)> {
    match disk.read_all(path, NOTES_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        Err(error) if is_unreadable(&error) => {}
        done => return Ok((done?, false)),
    }
    let what_is_left = || -> io::Result<(Vec<u8>, bool)> {
        let file = disk.open(path, OpenMode::Read, false)?;
        let mut bytes = vec![0; NOTES_BYTES_MAX.min(file.len()? as usize)];
        let mut is_damaged = false;
        let read = read_readable(&*file, 0, &mut bytes, &mut |_| is_damaged = true)?;
        bytes.truncate(read);
        Ok((bytes, is_damaged))
    };
    match what_is_left() {
        Err(error) if is_unreadable(&error) => Ok((Vec::new(), true)),
        done => done,
    }
}

/// Notes something on the disk that it is of. After an error what was noted before still is.
pub(crate) fn note(folder: &Folder, name: &str, places: impl Iterator<Item = (u64, u64)>) -> io::Result<()> {
    let Noted { places: before, problem } = noted(&**folder.disk(), name)?;
    let all: BTreeSet<(u64, u64)> = before.iter().copied().chain(places).collect();
    if all == before {
        return Ok(());
    }
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
    write_notes(folder, name, &all)
}

pub(super) fn write_notes(folder: &Folder, name: &str, all: &BTreeSet<(u64, u64)>) -> io::Result<()> {
    folder.replace(&format!("{CONTAINER_DIR}/{name}"), lines(all, NOTES_BYTES_MAX)?.as_bytes())
}

/// What is written of places; an error if that is more than could be read.
fn lines(all: &BTreeSet<(u64, u64)>, limit: usize) -> io::Result<String> {
    let text: String = all.iter().map(|(container, at)| format!("{container} {at}\n")).collect();
    if text.len() <= limit {
        return Ok(text);
    }
    Err(io::Error::other(format!("{} places take {} bytes, the limit is {limit}", all.len(), text.len())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kera_env::{FaultyDisk, MemoryDisk};

    use super::*;

    fn empty() -> (FaultyDisk, Folder) {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        disk.create_dir_all(CONTAINER_DIR).unwrap();
        let folder = Folder::new(Arc::new(disk.clone()), CONTAINER_DIR);
        (disk, folder)
    }

    fn some(count: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..count).map(|n| (1_000_000 + n, 4096))
    }

    #[test]
    fn all_that_was_noted_is_known_whatever_is_noted_behind_it() {
        let (disk, folder) = empty();
        for name in [KNOWN, LOST, SYNCED] {
            note(&folder, name, some(100_000)).unwrap();
            let Noted { places, problem } = noted(&disk, name).unwrap();
            assert_eq!((places.len(), problem), (100_000, None), "{name}");
            note(&folder, name, [(1, 0)].into_iter()).unwrap();
            assert!(noted(&disk, name).unwrap().places.into_iter().eq([(1, 0)].into_iter().chain(some(100_000))));
        }
    }

    #[test]
    fn what_is_too_large_is_neither_written_nor_taken_for_empty() {
        let all = BTreeSet::from([(1, 0), (20, 4096)]);
        assert_eq!(lines(&all, 12).unwrap(), "1 0\n20 4096\n");
        assert!(lines(&all, 11).unwrap_err().to_string().contains("2 places take 12 bytes"));
        let (disk, folder) = empty();
        let path = format!("{CONTAINER_DIR}/{LOST}");
        disk.create_with(&path, &vec![b'\n'; NOTES_BYTES_MAX + 1]).unwrap();
        assert_eq!(noted(&disk, LOST).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(note(&folder, LOST, [(1, 0)].into_iter()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(disk.open(&path, OpenMode::Read, false).unwrap().len().unwrap(), NOTES_BYTES_MAX as u64 + 1);
    }

    #[test]
    fn damage_is_told_and_costs_what_is_in_it() {
        let (disk, folder) = empty();
        note(&folder, LOST, some(1000)).unwrap();
        let path = format!("{CONTAINER_DIR}/{LOST}");
        let has_problem = |least: usize| {
            let Noted { places, problem } = noted(&disk, LOST).unwrap();
            assert!(places.len() >= least && places.len() < 1000, "{}", places.len());
            assert!(places.iter().all(|place| some(1000).any(|noted| noted == *place)), "{places:?}");
            assert!(problem.unwrap().contains("lost is damaged"));
            disk.heal_reads();
        };
        // A line has 13 bytes, and a page a part of two more than are whole in it.
        disk.set_unreadable(&path, 5000);
        has_problem(1000 - 317);
        // The space in the first line is a digit.
        disk.flip_bit_on_read(&path, 7, 4);
        has_problem(999);
        disk.set_unopenable(&path);
        has_problem(0);
        // What is left stays when something is noted.
        disk.set_unreadable(&path, 5000);
        note(&folder, LOST, [(1, 0)].into_iter()).unwrap();
        disk.heal_reads();
        let Noted { places, problem } = noted(&disk, LOST).unwrap();
        assert!(places.contains(&(1, 0)) && places.len() > 1000 - 317, "{}", places.len());
        assert_eq!(problem, None);
    }
}
