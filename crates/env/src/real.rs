//! A directory of the machine's file system, past the page cache where file system and alignment allow.
//!
//! A direct file holds two descriptors: one with `O_DIRECT` for aligned I/O and one without for the rest. The kernel
//! keeps the two coherent; callers that want speed keep everything aligned.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise};
use rustix::io::Errno;

use crate::aligned::AlignedBuffer;
use crate::disk::{DISK_ALIGNMENT, DirectIo, Disk, DiskFile, OpenMode, check_path};

/// Most slices the kernel takes in one call.
const SLICES_MAX: usize = 1024;
/// Most bytes given to the kernel in one call: below its limit of 2 GiB, and aligned.
const CALL_BYTES_MAX: usize = 1 << 30;
const PROBE_NAME: &str = ".kera-direct-io-probe";
/// The system call that tells how much of a part of a file the page cache has. It came with Linux 6.5, with one number for most processors.
const CACHESTAT: libc::c_long = 451;

/// A directory tree of the machine's file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    direct: DirectIo,
    kept_free: u64,
}

impl RealDisk {
    /// Takes `root`, making it if it is not there, and tries out whether its file system does direct I/O.
    pub fn open(root: &Path) -> io::Result<RealDisk> {
        make(root)?;
        let direct = match probe(root) {
            Ok(()) => DirectIo::Direct,
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                DirectIo::Buffered("the file system refuses O_DIRECT".to_owned())
            }
            Err(e) => DirectIo::Buffered(format!("O_DIRECT was tried and failed: {e}")),
        };
        Ok(RealDisk { root: root.to_owned(), direct, kept_free: 0 })
    }

    /// Takes `root` as [`open`](RealDisk::open) does, and leaves everything to the page cache.
    pub fn open_buffered(root: &Path) -> io::Result<RealDisk> {
        make(root)?;
        Ok(RealDisk { root: root.to_owned(), direct: DirectIo::Buffered("it was asked for".to_owned()), kept_free: 0 })
    }

    /// Has so many bytes stay free: what would [take space ahead](DiskFile::allocate) of them is refused, as data does, which comes without end. What is
    /// written without that, as what must be noted about the data, has them.
    pub fn keep_free(self, bytes: u64) -> RealDisk {
        RealDisk { kept_free: bytes, ..self }
    }

    fn at(&self, path: &str) -> io::Result<PathBuf> {
        check_path(path)?;
        Ok(self.root.join(path))
    }
}

/// Makes a directory and those above it that are not there. Their names survive a power cut, as does what is synced below.
fn make(root: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = root.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
    fs::create_dir_all(root)?;
    for made in missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

/// Writes and reads one block with `O_DIRECT`; a file system may take the flag and refuse the I/O.
fn probe(root: &Path) -> io::Result<()> {
    let path = root.join(PROBE_NAME);
    let result = (|| {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(true).custom_flags(direct_flag()).open(&path)?;
        let mut block = AlignedBuffer::zeroed(DISK_ALIGNMENT);
        file.write_all_at(&block, 0)?;
        file.read_exact_at(&mut block, 0)
    })();
    let _ = fs::remove_file(&path);
    result
}

fn direct_flag() -> i32 {
    OFlags::DIRECT.bits() as i32
}

fn options(mode: OpenMode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(mode != OpenMode::Read).create_new(mode == OpenMode::Create);
    options
}

impl Disk for RealDisk {
    fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.at(path)?;
        let buffered = options(mode).open(&path)?;
        let direct = if direct && self.direct == DirectIo::Direct {
            let again = if mode == OpenMode::Create { OpenMode::ReadWrite } else { mode };
            Some(options(again).custom_flags(direct_flag()).open(&path)?)
        } else {
            None
        };
        Ok(Arc::new(RealFile { buffered, direct, kept_free: self.kept_free }))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(dir)?)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string()
                && name != PROBE_NAME
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.at(path)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from)?, self.at(to)?)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        fs::create_dir_all(self.at(dir)?)?;
        let mut parent = dir;
        while let Some((above, _)) = parent.rsplit_once('/') {
            self.sync_dir(above)?;
            parent = above;
        }
        self.sync_dir("")
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        File::open(self.at(dir)?)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(free_of(&rustix::fs::statvfs(&self.root)?).saturating_sub(self.kept_free))
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn direct_io(&self) -> DirectIo {
        self.direct.clone()
    }
}

#[derive(Debug)]
struct RealFile {
    buffered: File,
    direct: Option<File>,
    /// Bytes of the disk that stay free.
    kept_free: u64,
}

fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    let alignment = DISK_ALIGNMENT;
    offset.is_multiple_of(alignment as u64)
        && bytes.len().is_multiple_of(alignment)
        && bytes.as_ptr().addr().is_multiple_of(alignment)
}

impl RealFile {
    fn writer(&self, offset: u64, parts: &[IoSlice<'_>]) -> &File {
        match &self.direct {
            Some(direct) if parts.iter().all(|part| is_aligned(offset, part)) => direct,
            _ => &self.buffered,
        }
    }
}

/// How many of the parts go into one call. A single part above the limit goes alone: the kernel takes what it can of it.
fn call_parts(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let many = sizes.take(SLICES_MAX).take_while(|size| {
        bytes += size;
        bytes <= CALL_BYTES_MAX
    });
    many.count().max(1)
}

fn zero_progress() -> io::Error {
    io::Error::new(io::ErrorKind::WriteZero, "the file takes no more bytes")
}

impl DiskFile for RealFile {
    fn write_vectored_at(&self, mut offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut parts: Vec<IoSlice<'_>> = parts.iter().filter(|part| !part.is_empty()).copied().collect();
        let mut rest = &mut parts[..];
        while !rest.is_empty() {
            let many = call_parts(rest.iter().map(|part| part.len()));
            let batch = &rest[..many];
            let file = self.writer(offset, batch);
            match rustix::io::pwritev(file, batch, offset) {
                Ok(0) => return Err(zero_progress()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, mut offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            let file = match &self.direct {
                Some(direct) if is_aligned(offset, rest) => direct,
                _ => &self.buffered,
            };
            let most = rest.len().min(CALL_BYTES_MAX);
            match rustix::io::pread(file, &mut rest[..most], offset) {
                Ok(0) => break,
                Ok(read) => {
                    offset += read as u64;
                    done += read;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    fn read_vectored_at(&self, mut offset: u64, mut parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut done = 0;
        IoSliceMut::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let many = call_parts(parts.iter().map(|part| part.len()));
            let batch = &mut parts[..many];
            let file = match &self.direct {
                Some(direct) if batch.iter().all(|part| is_aligned(offset, part)) => direct,
                _ => &self.buffered,
            };
            match rustix::io::preadv(file, batch, offset) {
                Ok(0) => break,
                Ok(read) => {
                    offset += read as u64;
                    done += read;
                    IoSliceMut::advance_slices(&mut parts, read);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes) {
            // Who cannot read ahead reads when it is asked to.
            let _ = fadvise(&self.buffered, offset, Some(bytes), Advice::WillNeed);
        }
    }

    fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        cached_bytes(&self.buffered, offset, bytes).is_none_or(|cached| cached > bytes / 2)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.buffered.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.buffered.set_len(bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.check_free(bytes)?;
        fallocate(&self.buffered, FallocateFlags::KEEP_SIZE, offset, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        fallocate(&self.buffered, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.buffered.metadata()?.len())
    }
}

impl RealFile {
    fn check_free(&self, bytes: u64) -> io::Result<()> {
        if self.kept_free == 0 {
            return Ok(());
        }
        let free = free_of(&rustix::fs::fstatvfs(&self.buffered)?);
        if free >= bytes.saturating_add(self.kept_free) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, too_full(free, bytes, self.kept_free)))
    }
}

/// How much of a part of a file the page cache has, in whole pages. `None`: this kernel does not say.
fn cached_bytes(file: &File, offset: u64, bytes: u64) -> Option<u64> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")) {
        return None;
    }
    // Pages that it has, that are dirty, that are being written, and that were evicted, of late and before.
    let (range, mut pages) = ([offset, bytes], [0_u64; 5]);
    // SAFETY: the kernel reads two numbers, the part, and writes five; both are there for as long as the call takes.
    let told = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0_u32) };
    (told == 0).then(|| pages[0] * rustix::param::page_size() as u64)
}

/// Why a disk on which there is some room takes no more data.
fn too_full(free: u64, wanted: u64, kept: u64) -> String {
    let shown =
        |bytes: u64| if bytes < 10 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) };
    let (free, wanted, kept) = (shown(free), shown(wanted), shown(kept));
    format!("{wanted} are wanted on the disk, which has {free} free, and {kept} stay free for what is not data")
}

fn free_of(space: &rustix::fs::StatVfs) -> u64 {
    space.f_bavail.saturating_mul(space.f_frsize)
}

/// Not being able to is fine: both uses only save space or time.
fn fallocate(file: &File, flags: FallocateFlags, offset: u64, bytes: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, flags, offset, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            result => return Ok(result?),
        }
    }
}

/// Names the machine's run since it was switched on: files that were not synced are whole as long as it is the same. Zeros where
/// there is none.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter_map(|b| char::from(b).to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, RealDisk) {
        // Beside the build's output and not in /tmp, which may be a tmpfs without O_DIRECT.
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        // It is not there yet if the build's output is elsewhere.
        fs::create_dir_all(&base).unwrap();
        let dir = tempfile::Builder::new().prefix("kera-env-").tempdir_in(base).unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        (dir, disk)
    }

    #[test]
    fn aligned_and_unaligned_writes_read_back_whatever_the_path() {
        let (_dir, disk) = disk();
        for direct in [true, false] {
            let name = format!("f{direct}");
            let file = disk.open(&name, OpenMode::Create, direct).unwrap();
            let mut first = AlignedBuffer::zeroed(2 * DISK_ALIGNMENT);
            first.fill(1);
            let mut second = AlignedBuffer::zeroed(DISK_ALIGNMENT);
            second.fill(2);
            file.write_vectored_at(0, &[IoSlice::new(&first), IoSlice::new(&[]), IoSlice::new(&second)]).unwrap();
            // What is read ahead does not hide what is written behind that.
            file.will_read(0, 1 << 20);
            file.will_read(1 << 40, 0);
            file.write_at(3 * DISK_ALIGNMENT as u64, b"tail").unwrap();
            file.sync_data().unwrap();
            let mut back = AlignedBuffer::zeroed(4 * DISK_ALIGNMENT);
            assert_eq!(file.read_at(0, &mut back).unwrap(), 3 * DISK_ALIGNMENT + 4);
            assert!(back[..8192].iter().all(|b| *b == 1) && back[8192..12288].iter().all(|b| *b == 2));
            assert_eq!(&back[12288..12292], b"tail");
            assert_eq!(file.len().unwrap(), 12292);
            assert!(file.write_at(0, b"x").is_ok());
        }
    }

    #[test]
    fn what_the_page_cache_has_is_told_where_the_kernel_says_it() {
        let (dir, disk) = disk();
        let file = disk.open("f", OpenMode::Create, false).unwrap();
        let bytes = vec![7; 64 * DISK_ALIGNMENT];
        file.write_at(0, &bytes).unwrap();
        file.sync_data().unwrap();
        let (all, other) = (bytes.len() as u64, File::open(dir.path().join("f")).unwrap());
        let told = || cached_bytes(&other, 0, all);
        // File systems that lie on others do not say it of their own, and what is to go may stay in part.
        let is_most = |told: Option<u64>| told.is_none_or(|told| told > all / 2);
        assert_eq!(file.is_cached(0, all), is_most(told()));
        fadvise(&other, 0, None, Advice::DontNeed).unwrap();
        assert_eq!(file.is_cached(0, all), is_most(told()));
        // What lies behind the file's end is nowhere.
        assert_eq!(file.is_cached(1 << 40, 1 << 20), told().is_none());
    }

    #[test]
    fn more_slices_than_one_call_takes() {
        let (_dir, disk) = disk();
        let file = disk.open("many", OpenMode::Create, true).unwrap();
        let bytes: Vec<[u8; 3]> = (0..3000u16).map(|i| [i as u8, (i >> 8) as u8, 9]).collect();
        let parts: Vec<IoSlice<'_>> = bytes.iter().map(|b| IoSlice::new(b)).collect();
        file.write_vectored_at(5, &parts).unwrap();
        let back = disk.read_all("many", 1 << 20).unwrap();
        assert_eq!(back[5..], bytes.concat()[..]);
    }

    #[test]
    fn vectored_reads_fill_all_parts_up_to_the_end() {
        let (_dir, disk) = disk();
        let file = disk.open("parts", OpenMode::Create, true).unwrap();
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        file.write_at(0, &bytes).unwrap();
        let (mut a, mut b, mut c) = (AlignedBuffer::zeroed(8192), AlignedBuffer::zeroed(4096), vec![0; 9000]);
        let mut parts = [IoSliceMut::new(&mut []), IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        assert_eq!(file.read_vectored_at(4096, &mut parts).unwrap(), 12288);
        assert_eq!([&a[..], &b[..]].concat(), bytes[4096..16384]);
        let mut parts = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut c)];
        assert_eq!(file.read_vectored_at(8192, &mut parts).unwrap(), 20_000 - 8192);
        assert_eq!([&a[..], &c[..20_000 - 16384]].concat(), bytes[8192..]);
    }

    /// On a small disk it read as if a MiB was free for data: all was rounded down.
    #[test]
    fn why_a_disk_takes_no_more_is_told_to_the_kib_where_that_matters() {
        assert_eq!(
            too_full(1_600 << 10, 4 << 20, 819 << 10),
            "4096 KiB are wanted on the disk, which has 1600 KiB free, and 819 KiB stay free for what is not data"
        );
        assert!(
            too_full(600 << 20, 256 << 20, 512 << 20).starts_with("256 MiB are wanted on the disk, which has 600 MiB")
        );
    }

    /// Data takes its space ahead. What is written without that finds room on a disk that is full for data.
    #[test]
    fn what_is_kept_free_is_not_taken_ahead() {
        let (dir, disk) = disk();
        let free = disk.free_bytes().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap().keep_free(free + (1 << 40));
        assert_eq!(disk.free_bytes().unwrap(), 0);
        let file = disk.open("data", OpenMode::Create, true).unwrap();
        let error = file.allocate(0, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("MiB stay free"), "{error}");
        disk.replace("node.json", b"one").unwrap();
        file.write_at(0, &[1; 4096]).unwrap();
        file.punch_hole(0, 4096).unwrap();
        let disk = RealDisk::open(dir.path()).unwrap().keep_free(free / 2);
        disk.open("more", OpenMode::Create, true).unwrap().allocate(0, 1 << 20).unwrap();
    }

    #[test]
    fn replace_lists_and_limits() {
        let (_dir, disk) = disk();
        disk.create_dir_all("a/b").unwrap();
        disk.replace("a/b/node.json", b"one").unwrap();
        disk.replace("a/b/node.json", b"two").unwrap();
        assert_eq!(disk.list("a/b").unwrap(), ["node.json"]);
        assert_eq!(disk.read_all("a/b/node.json", 3).unwrap(), b"two");
        assert_eq!(disk.read_all("a/b/node.json", 2).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(disk.read_all("a/b/none", 2).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(
            disk.open("a/b/node.json", OpenMode::Create, false).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        disk.remove("a/b/node.json").unwrap();
        assert!(disk.list("a/b").unwrap().is_empty());
        assert!(disk.free_bytes().unwrap() > 0);
    }

    #[test]
    fn holes_read_as_zeros_and_allocation_keeps_the_length() {
        let (_dir, disk) = disk();
        let file = disk.open("holes", OpenMode::Create, true).unwrap();
        file.allocate(0, 1 << 20).unwrap();
        assert!(file.is_empty().unwrap());
        file.write_at(0, &[7; 16384]).unwrap();
        file.punch_hole(4096, 8192).unwrap();
        let back = disk.read_all("holes", 1 << 20).unwrap();
        assert_eq!(back.len(), 16384);
        assert_eq!(back.iter().filter(|b| **b == 7).count(), 8192);
        file.set_len(4096).unwrap();
        assert_eq!(file.len().unwrap(), 4096);
    }

    #[test]
    fn buffered_on_request_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open_buffered(dir.path()).unwrap();
        assert!(matches!(disk.direct_io(), DirectIo::Buffered(why) if why.contains("asked for")));
        let file = disk.open("f", OpenMode::Create, true).unwrap();
        file.write_at(0, b"x").unwrap();
        assert_eq!(disk.read_all("f", 10).unwrap(), b"x");
    }
}
