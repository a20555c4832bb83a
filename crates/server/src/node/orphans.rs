//! Whose an arena is. Beside its file in shared memory lies a link to the data directory of its node, so that the memory of
//! a node whose data directory was deleted is found by the next node that starts.
//!
//! It is named and never removed: a data directory may also be missing because its disk is not mounted, and then the arena
//! holds records that were acknowledged.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// How the names of links end; they begin like their arenas'.
const LINK: &str = "data";
/// Entries of a directory that are looked at.
const LOOK_AT_MAX: usize = 10_000;

/// An arena's file that belongs to a data directory which is not there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Orphan {
    pub(super) arena: PathBuf,
    pub(super) link: PathBuf,
    pub(super) data: PathBuf,
    /// What it takes of the machine's memory.
    pub(super) bytes: u64,
}

/// Links an arena to its data directory. A file system without links goes without.
pub(super) fn mark(arena: &Path, data: &Path) {
    let link = arena.with_extension(LINK);
    let data = fs::canonicalize(data).unwrap_or_else(|_| data.to_owned());
    if fs::read_link(&link).is_ok_and(|known| known == data) {
        return;
    }
    let made = remove_link(&link).and_then(|()| symlink(&data, &link));
    if let Err(error) = made {
        tracing::debug!(%error, link = %link.display(), "the arena is not linked to its data directory");
    }
}

/// Takes the link away, with its arena.
pub(super) fn unmark(arena: &Path) {
    if let Err(error) = remove_link(&arena.with_extension(LINK)) {
        tracing::debug!(%error, "the link from the arena to its data directory stays");
    }
}

fn remove_link(link: &Path) -> std::io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Arenas in a directory that no process has open and whose data directories are not there.
pub(super) fn find(dir: &Path) -> Vec<Orphan> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let links = entries.flatten().take(LOOK_AT_MAX).map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("kera-") && path.extension().is_some_and(|end| end == LINK)
    });
    let mut found: Vec<Orphan> = links.filter_map(orphan).collect();
    found.sort_unstable_by(|a, b| a.arena.cmp(&b.arena));
    found
}

fn orphan(link: PathBuf) -> Option<Orphan> {
    let data = fs::read_link(&link).ok()?;
    let is_gone = fs::metadata(&data).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let arena = link.with_extension("arena");
    let file = fs::File::open(&arena).ok().filter(|_| is_gone)?;
    // Whoever uses it has it locked. The lock taken here ends with the file's handle.
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let bytes = file.metadata().ok()?.blocks() * 512;
    Some(Orphan { arena, link, data, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_arena_that_nobody_has_and_whose_data_is_gone_is_named_and_nothing_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let (arena, data) = (dir.path().join(format!("kera-{name}.arena")), dir.path().join(name));
            fs::write(&arena, [1; 8192]).unwrap();
            fs::create_dir(&data).unwrap();
            mark(&arena, &data);
            mark(&arena, &data);
            (arena, data)
        };
        let (kept, _) = place("kept");
        let (used, used_data) = place("used");
        let (lost, lost_data) = place("lost");
        assert_eq!(find(dir.path()), []);
        let open = fs::File::open(&used).unwrap();
        flock(&open, FlockOperation::LockExclusive).unwrap();
        fs::remove_dir(used_data).unwrap();
        let lost_data_path = fs::canonicalize(&lost_data).unwrap();
        fs::remove_dir(lost_data).unwrap();
        let found = find(dir.path());
        assert_eq!((found.len(), &found[0].arena, &found[0].data), (1, &lost, &lost_data_path));
        assert!(found[0].bytes >= 8192);
        assert!([&kept, &used, &lost].iter().all(|arena| arena.exists()));
        unmark(&lost);
        unmark(&lost);
        assert_eq!(find(dir.path()), []);
        assert!(lost.exists());
    }

    #[test]
    fn an_arena_that_moved_with_its_data_is_linked_anew() {
        let dir = tempfile::tempdir().unwrap();
        let arena = dir.path().join("kera-a.arena");
        fs::write(&arena, []).unwrap();
        for data in ["one", "two"] {
            let data = dir.path().join(data);
            fs::create_dir(&data).unwrap();
            mark(&arena, &data);
            assert_eq!(fs::read_link(arena.with_extension(LINK)).unwrap(), fs::canonicalize(&data).unwrap());
        }
    }
}
