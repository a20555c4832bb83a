//! A directory tree on a disk, and a file in it, as KerA's logic sees them.
//!
//! Called from threads that may block (persister, loader, virtual log writer, start and stop), never from an I/O
//! thread. Paths are relative to the tree's root, with `/` between names, and cannot leave it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

/// What offsets, lengths and addresses of direct I/O must be multiples of: 4 KiB suits every disk in use.
pub const DISK_ALIGNMENT: usize = 4096;

/// What opening a file means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Makes the file, for reading and writing; an error (`AlreadyExists`) if it is there.
    Create,
    /// For reading; an error (`NotFound`) if it is not there.
    Read,
    /// For reading and writing; an error (`NotFound`) if it is not there.
    ReadWrite,
}

/// Whether a disk's direct files go past the page cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectIo {
    /// They do, wherever offset, length and address are multiples of [`DISK_ALIGNMENT`].
    Direct,
    /// They do not; the reason is in words.
    Buffered(String),
}

/// One directory tree. All methods block.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file. `direct` asks for I/O past the page cache where that is possible; what is not aligned goes
    /// through the page cache, with the same result.
    fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Names in a directory, sorted. An error (`NotFound`) if there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Removes a file. Survives a power cut only after [`sync_dir`](Disk::sync_dir).
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Renames a file over whatever has the name. Survives a power cut only after [`sync_dir`](Disk::sync_dir).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes a directory and those above it; fine if it is there. Their names are synced.
    fn create_dir_all(&self, dir: &str) -> io::Result<()>;

    /// Makes creations, removals and renames in a directory survive a power cut.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Where the tree is, for messages.
    fn root(&self) -> &Path;

    /// Whether direct files are direct, and if not, why.
    fn direct_io(&self) -> DirectIo;

    /// A whole small file. An error (`InvalidData`) if it is larger than `limit` bytes, before memory is taken.
    fn read_all(&self, path: &str, limit: usize) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read, false)?;
        let bytes = file.len()?;
        if bytes > limit as u64 {
            let message = format!("{path} has {bytes} bytes, the limit is {limit}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut contents = vec![0; bytes as usize];
        let read = file.read_at(0, &mut contents)?;
        contents.truncate(read);
        Ok(contents)
    }

    /// Replaces a small file, or makes it: after a power cut it holds the old bytes or the new ones, never a mix. What was
    /// written of the new ones before an error is removed, if the disk lets it be: after a kill it stays, as `path` with `.tmp` behind it.
    fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.replace_unsynced(path, bytes)?;
        self.sync_dir(dir_of(path))
    }

    /// The same but for the last step: which of the two it holds after a power cut is certain when its directory is synced.
    fn replace_unsynced(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{path}.tmp");
        let written = self.create_with(&temporary, bytes).and_then(|file| file.sync_data());
        if let Err(error) = written.and_then(|()| self.rename(&temporary, path)) {
            // On a full disk it would take what is left, once for each name that is tried.
            let _ = self.remove(&temporary);
            return Err(error);
        }
        Ok(())
    }

    /// Makes a file with these bytes, in place of any that is there. Syncs nothing.
    fn create_with(&self, path: &str, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
        match self.remove(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = self.open(path, OpenMode::Create, false)?;
        file.write_at(0, bytes)?;
        Ok(file)
    }
}

/// The directory that a path is in; empty: the root.
pub(crate) fn dir_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// What a disk says that has lost what it was asked for, as error numbers of the system: a bad sector is `EIO` by way of the page cache and `ENODATA` past it, what a
/// disk with checksums of its own finds changed is `EILSEQ`.
///
/// What a file system says that finds itself damaged, `EUCLEAN` or `EBADMSG`, is not among them: a check of it may bring back what it was asked for.
pub const LOST_ERRNOS: [i32; 3] = [Errno::IO.raw_os_error(), Errno::NODATA.raw_os_error(), Errno::ILSEQ.raw_os_error()];

/// Whether a disk says that it has lost what it was asked for: any other error may pass.
pub fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| LOST_ERRNOS.contains(&errno))
}

/// Whether the system says that there are no more files to open, for the process or at all, or no memory: whoever waits may get some.
pub fn is_out_of_means(error: &io::Error) -> bool {
    let errnos = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| errnos.contains(&errno))
}

/// Reads as [`DiskFile::read_at`] does. Pages of [`DISK_ALIGNMENT`] bytes that the disk cannot read are zeros, and `lost` is called with the place of each.
///
/// # Errors
/// Any but those of a disk that has lost something.
pub fn read_readable(
    file: &dyn DiskFile,
    offset: u64,
    bytes: &mut [u8],
    lost: &mut dyn FnMut(u64),
) -> io::Result<usize> {
    match file.read_at(offset, bytes) {
        Err(error) if is_unreadable(&error) => {}
        done => return done,
    }
    let mut done = 0;
    for (part, at) in bytes.chunks_mut(DISK_ALIGNMENT).zip((offset..).step_by(DISK_ALIGNMENT)) {
        match file.read_at(at, part) {
            Ok(read) => {
                done += read;
                if read < part.len() {
                    break;
                }
            }
            Err(error) if is_unreadable(&error) => {
                part.fill(0);
                lost(at);
                done += part.len();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// An open file. All methods block; several threads may use one file at a time.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Writes all of `bytes` at `offset`, growing the file if need be. After an error any part of them may be
    /// written. Nothing survives a power cut before [`sync_data`](DiskFile::sync_data).
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[IoSlice::new(bytes)])
    }

    /// Writes all `parts` back to back from `offset` on, as [`write_at`](DiskFile::write_at) does.
    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// Reads into `bytes` from `offset` on. Returns how many bytes were read: fewer than asked only at the file's end.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Reads into all `parts`, one after the other, from `offset` on. Returns the bytes read: fewer than asked only at the
    /// file's end.
    fn read_vectored_at(&self, mut offset: u64, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for part in parts {
            let read = self.read_at(offset, part)?;
            done += read;
            offset += read as u64;
            if read < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// So many bytes from `offset` on are going to be read soon, not past the page cache. A hint: where the disk takes it, it reads ahead while the caller does something else.
    fn will_read(&self, offset: u64, bytes: u64) {
        let _ = (offset, bytes);
    }

    /// Whether the page cache has most of so many bytes from `offset` on, or nobody says: who reads them past it would wait for the disk for nothing. Brings nothing into it.
    fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        let _ = (offset, bytes);
        false
    }

    /// Makes everything written so far, and the file's length, survive a power cut. After an error nobody knows what
    /// is on the disk: a file whose sync failed must not be trusted with anything not synced before, even if a later
    /// sync succeeds.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file off or extends it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Takes disk space for a range, so that later writes into it do not find the disk full. Does not change the
    /// file's length. Fine, without effect, on file systems that cannot.
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Gives the disk space of a range back; it reads as zeros. Fine, without effect, on file systems that cannot.
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The names of a path, or an error (`InvalidInput`) if it is absolute, leaves the root or has an odd name in it.
pub(crate) fn check_path(path: &str) -> io::Result<()> {
    let fine = path.is_empty() || path.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    if fine {
        Ok(())
    } else {
        let message = format!("`{path}` is no path relative to the root without `.` and `..`");
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_lost_what_it_says_so_of_and_nothing_that_may_come_back() {
        let is_lost = |errno: Errno| is_unreadable(&errno.into());
        assert!([Errno::IO, Errno::NODATA, Errno::ILSEQ].into_iter().all(is_lost));
        let may_pass = [
            Errno::ROFS,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::ACCESS,
            Errno::AGAIN,
            Errno::UCLEAN,
            Errno::BADMSG,
        ];
        assert!(!may_pass.into_iter().any(is_lost));
        assert!(!is_unreadable(&io::Error::other("none of the system's")));
    }

    #[test]
    fn paths_cannot_leave_the_root() {
        for good in ["", "a", "a/b.kera"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for bad in ["/a", "a//b", "..", "a/../b", "./a", "a/", "a\0b"] {
            assert_eq!(check_path(bad).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad}");
        }
    }
}
