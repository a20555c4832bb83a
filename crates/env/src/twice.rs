//! Small files that a node cannot do without, and that nobody else has, are kept twice: who it is, its catalog, the coordinators' log. A disk that changes a bit or
//! cannot read a sector takes one of the two, and what is there once more is true.
//!
//! The second one is called the copy, and has the same bytes, always later: what is in a copy was durable in its file before. So of two that read back the file
//! counts, and a copy that has more than a file of which the end does not read back tells a changed end from a torn one. What is read from a copy is
//! written into a new file by whoever reads it, so that both are there again.

use std::io;
use std::sync::Arc;

use crate::disk::{DISK_ALIGNMENT, Disk, DiskFile, OpenMode, dir_of, is_unreadable, read_readable};

const COPY: &str = ".copy";

/// A file's bytes and those of its copy. What is not there, or cannot be read at all, is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Both {
    /// Of the file itself.
    pub file: Vec<u8>,
    /// Of its copy.
    pub copy: Vec<u8>,
}

impl Both {
    /// Whether both are the same, byte for byte.
    pub fn are_same(&self) -> bool {
        self.file == self.copy
    }

    /// Up to where at least one of them goes, in bytes.
    pub fn end(&self) -> usize {
        self.file.len().max(self.copy.len())
    }

    /// What the file has from a byte on, then what its copy has.
    fn from(&self, at: usize) -> [&[u8]; 2] {
        [&self.file, &self.copy].map(|bytes| bytes.get(at..).unwrap_or_default())
    }

    /// What is at a byte of the file, or at that of its copy if the file does not read back there and the copy's `counts`; and whether it is the copy's. The error is the file's.
    pub fn read_back<T, E>(
        &self,
        at: usize,
        parse: impl Fn(&[u8]) -> Result<T, E>,
        counts: impl Fn(&T) -> bool,
    ) -> Result<(T, bool), E> {
        let [file, copy] = self.from(at);
        parse(file).map(|found| (found, false)).or_else(|error| match parse(copy) {
            Ok(found) if counts(&found) => Ok((found, true)),
            _ => Err(error),
        })
    }

    /// Whether something that `is_next` reads back in either behind a byte, at a multiple of 8 bytes from there.
    pub fn goes_on_behind(&self, at: usize, is_next: impl Fn(&[u8]) -> bool) -> bool {
        self.from(at).iter().any(|bytes| (8..bytes.len()).step_by(8).any(|at| is_next(&bytes[at..])))
    }
}

/// Where a file's copy is.
pub fn copy_path(path: &str) -> String {
    format!("{path}{COPY}")
}

/// The name of the file that a name is of, be it that of its copy.
pub fn without_copy(name: &str) -> &str {
    name.strip_suffix(COPY).unwrap_or(name)
}

/// Reads a file and its copy. Sectors of which the disk says that it cannot read them are zeros, if it can read others.
///
/// # Errors
/// What is wrong with the file, unless it is not there or nothing of it can be read, and its copy can be. `NotFound`: there is neither. `InvalidData`: it is larger
/// than `limit` bytes.
pub fn read_twice(disk: &dyn Disk, path: &str, limit: usize) -> io::Result<Both> {
    let copy = read_sectors(disk, &copy_path(path), limit);
    match (read_sectors(disk, path, limit), copy) {
        (Ok(file), copy) => Ok(Both { file, copy: copy.unwrap_or_default() }),
        // Any other error may pass, and the copy need not have all that the file has.
        (Err(error), Ok(copy)) if error.kind() == io::ErrorKind::NotFound || is_unreadable(&error) => {
            Ok(Both { file: Vec::new(), copy })
        }
        (Err(error), Err(other)) if error.kind() == io::ErrorKind::NotFound => Err(other),
        (Err(error), _) => Err(error),
    }
}

fn read_sectors(disk: &dyn Disk, path: &str, limit: usize) -> io::Result<Vec<u8>> {
    let error = match disk.read_all(path, limit) {
        Err(error) if is_unreadable(&error) => error,
        done => return done,
    };
    let file = disk.open(path, OpenMode::Read, false)?;
    let mut bytes = vec![0; limit.min(file.len()? as usize)];
    let mut unreadable = 0;
    let read = read_readable(&*file, 0, &mut bytes, &mut |_| unreadable += 1)?;
    bytes.truncate(read);
    if unreadable < bytes.len().div_ceil(DISK_ALIGNMENT) { Ok(bytes) } else { Err(error) }
}

/// [Replaces](Disk::replace) a file, then its copy: both survive a power cut when this returns. After one in the midst of it the file is whole, old or new.
pub fn replace_twice(disk: &dyn Disk, path: &str, bytes: &[u8]) -> io::Result<()> {
    replace_with_copy(disk, path, bytes, bytes)
}

/// The same with a copy that has more in it than the file.
pub fn replace_with_copy(disk: &dyn Disk, path: &str, bytes: &[u8], copy: &[u8]) -> io::Result<()> {
    disk.replace(path, bytes)?;
    write_copy(disk, path, copy)?.sync_data()?;
    disk.sync_dir(dir_of(path))
}

/// Begins the copy of a file with these bytes, in place of any that is there. Syncs nothing: as long as the file reads back nobody needs it.
pub fn write_copy(disk: &dyn Disk, path: &str, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
    disk.create_with(&copy_path(path), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultyDisk, MemoryDisk};

    #[test]
    fn either_is_read_when_the_other_is_gone() {
        let disk = MemoryDisk::new();
        disk.create_dir_all("d").unwrap();
        assert_eq!(read_twice(&disk, "d/a", 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        replace_twice(&disk, "d/a", b"one").unwrap();
        replace_twice(&disk, "d/a", b"other").unwrap();
        disk.crash(1);
        let both = read_twice(&disk, "d/a", 9).unwrap();
        assert!(both.are_same() && both.file == b"other", "{both:?}");
        disk.remove("d/a").unwrap();
        let both = read_twice(&disk, "d/a", 9).unwrap();
        assert_eq!((both.from(0)[0], both.from(2)[1], both.end()), (&b""[..], &b"her"[..], 5));
        // One that is too large is as good as none.
        assert_eq!(read_twice(&disk, "d/a", 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(without_copy("a.log.copy"), "a.log");
    }

    #[test]
    fn a_sector_that_cannot_be_read_costs_what_is_in_it_and_an_error_that_may_pass_is_told() {
        let memory = Arc::new(MemoryDisk::new());
        let disk = FaultyDisk::new(memory.clone());
        let bytes = vec![7; 2 * DISK_ALIGNMENT];
        replace_twice(&disk, "a", &bytes).unwrap();
        disk.set_unreadable("a", DISK_ALIGNMENT as u64);
        let both = read_twice(&disk, "a", 1 << 20).unwrap();
        assert_eq!((both.copy, &both.file[..DISK_ALIGNMENT]), (bytes.clone(), &bytes[..DISK_ALIGNMENT]));
        assert_eq!(both.file[DISK_ALIGNMENT..], vec![0; DISK_ALIGNMENT]);
        disk.set_broken(true);
        assert!(is_unreadable(&read_twice(&disk, "a", 1 << 20).unwrap_err()));
    }

    #[test]
    fn after_a_power_cut_at_any_step_the_file_is_old_or_new() {
        for step in 1..30 {
            let disk = MemoryDisk::new();
            replace_twice(&disk, "a", b"old").unwrap();
            disk.cut_power_at(step);
            let done = replace_twice(&disk, "a", b"new").is_ok();
            disk.crash(step);
            let both = read_twice(&disk, "a", 9).unwrap();
            assert!(both.file == b"new" || (both.file == b"old" && !done), "step {step}: {both:?}");
            assert!(!done || both.are_same(), "step {step}: {both:?}");
        }
    }
}
