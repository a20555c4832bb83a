//! A disk whose containers lie now and then, to see that a checker notices.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_env::{DirectIo, Disk, DiskFile, OpenMode};

/// What is wrong with containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Nothing.
    None,
    /// They say that they are synced, and are not.
    Unsynced,
    /// Now and then they say that they have written, and have not.
    Unwritten,
}

/// A disk with such containers.
#[derive(Debug)]
pub struct Liar {
    pub disk: Arc<dyn Disk>,
    pub lie: Lie,
}

#[derive(Debug)]
struct LyingFile {
    file: Arc<dyn DiskFile>,
    lie: Lie,
    writes: AtomicU64,
}

impl Disk for Liar {
    fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode, direct)?;
        let lie = if path.starts_with("containers/") { self.lie } else { Lie::None };
        Ok(Arc::new(LyingFile { file, lie, writes: AtomicU64::new(0) }))
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn root(&self) -> &Path {
        self.disk.root()
    }
    fn direct_io(&self) -> DirectIo {
        self.disk.direct_io()
    }
}

impl DiskFile for LyingFile {
    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let writes = self.writes.fetch_add(1, Ordering::Relaxed);
        if self.lie == Lie::Unwritten && writes % 8 == 7 {
            return Ok(());
        }
        self.file.write_vectored_at(offset, parts)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        if self.lie == Lie::Unsynced { Ok(()) } else { self.file.sync_data() }
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.allocate(offset, bytes)
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.punch_hole(offset, bytes)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
