//! A file system of a known size that can be filled to the last byte and emptied again: a tmpfs that is mounted over
//! the data directory. Mounting takes root; without it `full-disk` is refused with the reason.
//!
//! The mount is seen by the thread that makes it and by what that starts, and by nobody else, where the system lets a thread
//! have a view of its own: so it is gone with this process, however that ends, Ctrl-C and kill -9 included.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::BenchError;

/// The name of the file that takes all the space.
const FILLER: &str = "filler-of-the-verifier";

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub(super) struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// Mounts one of `bytes` at `dir`, which exists and is empty.
    pub(super) fn mount(dir: &Path, bytes: u64) -> Result<SmallDisk, BenchError> {
        have_own_mounts();
        let size = format!("size={bytes}");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "kera-verify"]).arg(dir).output();
        let output = output.map_err(|e| BenchError::io("running mount", e))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let message = format!("full-disk needs root, to mount a small file system at {}: {why}", dir.display());
            return Err(BenchError::setting("faults", message));
        }
        Ok(SmallDisk { dir: dir.to_owned() })
    }

    /// Takes all the space there is. Called again and again while the disk is to stay full: the server may have given
    /// some back.
    pub(super) fn fill(&self) -> Result<u64, BenchError> {
        let path = self.dir.join(FILLER);
        let mut file = File::options().create(true).append(true).open(&path);
        let mut filled = 0;
        let piece = vec![0x5a; 256 << 10];
        let mut bytes = piece.len();
        while let Ok(open) = &mut file {
            match open.write(&piece[..bytes]) {
                Ok(written) => filled += written as u64,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull && bytes > 1 => bytes /= 2,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(filled),
                Err(error) => return Err(BenchError::io_at("filling", &path, error)),
            }
        }
        match file {
            Err(error) if error.kind() != std::io::ErrorKind::StorageFull => {
                Err(BenchError::io_at("creating", &path, error))
            }
            _ => Ok(filled),
        }
    }

    /// Gives the space back.
    pub(super) fn free(&self) -> Result<(), BenchError> {
        let path = self.dir.join(FILLER);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(BenchError::io_at("removing", &path, error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Also while something still looks into it: then it goes when that does.
        let _ = Command::new("umount").arg("--lazy").arg(&self.dir).output();
    }
}

/// From here on what this thread mounts is its own. Where that is refused, a mount is there for all, as ever.
fn have_own_mounts() {
    // SAFETY: descriptors stay shared; only the view of the file system becomes this thread's own.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_ok() {
        // Without this, what is mounted here is passed on to where the view comes from.
        let _ = Command::new("mount").args(["--make-rprivate", "/"]).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `None` without the right to mount, which says so. Continuous integration has it: there the test fails.
    fn small(dir: &Path) -> Option<SmallDisk> {
        match SmallDisk::mount(dir, 1 << 20) {
            Ok(disk) => Some(disk),
            Err(error) => {
                let may_lack = std::env::var_os("CI").is_none();
                assert!(may_lack, "no disk is mounted, and `CI` is set: nothing may be left out: {error}");
                eprintln!("no disk is mounted: nothing to test: {error}");
                None
            }
        }
    }

    #[test]
    fn a_full_disk_takes_nothing_until_space_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = small(dir.path()) else { return };
        let write = || std::fs::write(dir.path().join("x"), [1; 8192]);
        write().unwrap();
        assert!(disk.fill().unwrap() > 900 << 10);
        assert_eq!(disk.fill().unwrap(), 0);
        assert!(std::fs::write(dir.path().join("y"), [1; 8192]).is_err());
        disk.free().unwrap();
        disk.free().unwrap();
        write().unwrap();
    }

    #[test]
    fn a_small_disk_is_gone_although_a_file_in_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = small(dir.path()) else { return };
        let open = File::create(dir.path().join("x")).unwrap();
        let seen = || std::fs::exists(dir.path().join("x")).unwrap();
        assert!(seen());
        drop(disk);
        assert!(!seen());
        drop(open);
    }
}
