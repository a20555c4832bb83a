//! What this machine has: memory, cores, free space. Asked once at start, and for free space by maintenance.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::http;
use crate::units::{GIB, MIB};

/// The most that `auto` takes for the arena.
const ARENA_AUTO_MAX: u64 = 2 * GIB;
/// Sizes that `auto` picks are multiples of this.
const ARENA_STEP: u64 = 16 * MIB;
/// The most that stays free of a disk, and at most one part in so many of it.
const DISK_FREE_MIN: u64 = 512 * MIB;
const DISK_FREE_SHARE: u64 = 50;
/// Of all files that the process may open the node keeps so many for itself, or one in so many if that is more; half of them if there are few.
const FILES_OWN_MIN: u64 = 512;
const FILES_OWN_SHARE: u64 = 4;
/// Of what is left one in so many is for connections of other nodes.
const FILES_NODES_SHARE: u64 = 4;

/// Fewer connections for other nodes than this are said at the start: some from each, and a cluster may have hundreds of them.
pub(crate) const NODES_FEW: u64 = 1_024;

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
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Files that the process may open.
pub(crate) fn files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many connections there may be, as far as each is a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Connections {
    /// Of clients, native ones and Kafka's together.
    pub(crate) clients: usize,
    /// Of other nodes.
    pub(crate) nodes: usize,
}

/// What is left for connections of so many files that the process may open.
///
/// Without a bound clients take all of them, and then the node opens neither the next file of the coordinators' log nor one with records. So it keeps
/// [some](FILES_OWN_MIN) for itself, for what is on its disks and for its own connections to other nodes. And as clients are not to keep other nodes
/// from connecting, a part of the rest is for those alone.
pub(crate) fn connections_of(files_max: u64) -> Connections {
    let own = (files_max / FILES_OWN_SHARE).max(FILES_OWN_MIN.min(files_max / 2));
    let left = files_max.saturating_sub(own).saturating_sub(http::CONNECTIONS_MAX as u64);
    let nodes = left / FILES_NODES_SHARE;
    let count = |files: u64| usize::try_from(files.max(1)).unwrap_or(usize::MAX);
    Connections { clients: count(left - nodes), nodes: count(nodes) }
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
    fn connections_leave_the_node_some_files() {
        for files in [0, 1, 100, 1_024, 4_096, 20_000, 1 << 20] {
            let Connections { clients, nodes } = connections_of(files);
            assert!(clients >= 1 && nodes >= 1, "{files}");
            let left = files.saturating_sub((clients + nodes + http::CONNECTIONS_MAX) as u64);
            assert!(files < 1_000 || left >= FILES_OWN_MIN.max(files / FILES_OWN_SHARE), "{files}: {left}");
        }
        assert_eq!(connections_of(4_096), Connections { clients: 2_112, nodes: 704 });
        assert!(connections_of(20_000).clients > 10_000, "enough for what is set unless somebody says otherwise");
        assert!(connections_of(u64::MAX).nodes > 10_000);
        let is_said = |files| (connections_of(files).nodes as u64) < NODES_FEW;
        assert!(is_said(4_096) && !is_said(20_000));
        assert!(files_max() > 0);
    }

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
