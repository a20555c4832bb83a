//! What this machine has: memory, cores, free space. Asked once at start, and for free space by maintenance.

use std::fs;
use std::io;
use std::path::Path;

use crate::units::{GIB, MIB};

/// The most that `auto` takes for the arena.
const ARENA_AUTO_MAX: u64 = 2 * GIB;
/// Sizes that `auto` picks are multiples of this.
const ARENA_STEP: u64 = 16 * MIB;
/// The most that stays free of a disk, and at most one part in so many of it.
const DISK_FREE_MIN: u64 = 512 * MIB;
const DISK_FREE_SHARE: u64 = 50;

/// Bytes of memory that the process may use: the machine's, or the limit of its control group.
pub(crate) fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion, reason = "the type of totalram differs between machines")]
    let machine = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    group.map_or(machine, |limit: u64| machine.min(limit))
}

/// Cores that the process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of a file system: all, and those that are free for this user.
///
/// # Errors
/// What the operating system says.
pub(crate) fn space(path: &Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::statvfs(path)?;
    Ok((found.f_blocks.saturating_mul(found.f_frsize), found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Lets the process open as many files as it may: every connection is one.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// The arena's size when nobody says: the least of 2 GiB, a quarter of the memory and half of what is free in `dir`.
pub(crate) fn arena_bytes_auto(dir: &Path) -> u64 {
    let free = space(dir).map_or(0, |(_, free)| free);
    let wanted = ARENA_AUTO_MAX.min(memory_bytes() / 4).min(free / 2);
    (wanted / ARENA_STEP * ARENA_STEP).max(ARENA_STEP)
}

/// Bytes of a disk that no data is written to: a node whose disk is full goes on to note what the cluster decides, and so does whatever else is on that disk.
pub(crate) fn disk_free_min(root: &Path) -> u64 {
    space(root).map_or(0, |(total, _)| DISK_FREE_MIN.min(total / DISK_FREE_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_something() {
        assert!(memory_bytes() > 64 * MIB);
        assert!(cores() >= 1);
        let (total, free) = space(Path::new("/")).unwrap();
        assert!(total >= free);
        let bytes = arena_bytes_auto(&std::env::temp_dir());
        assert!(disk_free_min(Path::new("/")) <= (total / DISK_FREE_SHARE).min(DISK_FREE_MIN));
        assert!((ARENA_STEP..=ARENA_AUTO_MAX).contains(&bytes) && bytes.is_multiple_of(ARENA_STEP));
    }
}
