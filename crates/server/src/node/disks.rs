//! Which disks belong to a node. Each one but the first, which has the node's identity, carries a file that names its node and itself, and the first one has a list of
//! them. So a start notices that a disk is not there, as one that is not mounted, and does not take what was on it for something that never was.
//!
//! ```json
//! disk.json   {"version": 1, "node": "<uuid>", "disk": "<uuid>"}             on each disk but the first
//! disks.json  {"version": 1, "disks": [{"disk": "<uuid>", "path": "<path>"}]}  on the first one
//! ```
//!
//! Both are kept [twice](crate::marks).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_env::{Disk, Random};
use serde::{Deserialize, Serialize};

use crate::fatal::{Fatal, OWN_DISKS};
use crate::identity::{FILE, uuid_text};
use crate::marks;

const DISK: &str = "disk.json";
const LIST: &str = "disks.json";
const VERSION: u32 = 1;
const BYTES_MAX: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    version: u32,
    node: String,
    disk: String,
}

#[derive(Serialize, Deserialize, Default, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
struct List {
    version: u32,
    disks: Vec<Listed>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
struct Listed {
    disk: String,
    path: PathBuf,
}

/// The disks of a node, as they are now.
#[derive(Debug)]
pub(super) struct KnownDisks {
    first: Arc<dyn Disk>,
    list: List,
    /// Where disks were that are not there.
    pub(super) lost: Vec<PathBuf>,
}

impl KnownDisks {
    /// Looks whether all disks are there that the node had, and marks those that are new. Without `accepts_loss` one that is missing is an error; with it the list
    /// stays as it is until [`accepted`](KnownDisks::accepted).
    pub(super) fn look(
        node: &[u8; 16],
        disks: &[Arc<dyn Disk>],
        random: &dyn Random,
        accepts_loss: bool,
    ) -> Result<KnownDisks, Fatal> {
        let (first, others) = disks.split_first().expect("a node has a disk");
        let before: Option<List> = read(&**first, LIST)?.map(|found| found.mended(&**first, LIST));
        let known = before.clone().unwrap_or_default();
        let mut list = List { version: VERSION, disks: Vec::new() };
        for disk in others {
            if disk.list("").map_err(|error| Fatal::directory(disk.root(), error))?.iter().any(|name| name == FILE) {
                return Err(data_directory(disk.root()));
            }
            let found = read::<Mark>(&**disk, DISK)?;
            if let Some(mark) = found.as_ref().map(|found| &found.what).filter(|mark| mark.node != uuid_text(node)) {
                return Err(foreign(disk.root(), &mark.node, node));
            }
            let found = found.map(|found| found.mended(&**disk, DISK));
            let is_known = |mark: &Mark| known.disks.iter().any(|one| one.disk == mark.disk);
            if before.is_some() && !found.as_ref().is_some_and(is_known) && has_some(&**disk)? {
                return Err(given_up(disk.root()));
            }
            let id = match found {
                Some(mark) => mark.disk,
                None => mark(&**disk, node, random)?,
            };
            if list.disks.iter().any(|other| other.disk == id) {
                let message = format!("{} is named twice among the disks", disk.root().display());
                return Err(Fatal::not_here(message, "name each disk once with --disks"));
            }
            list.disks.push(Listed { disk: id, path: disk.root().to_owned() });
        }
        let is_there = |one: &&Listed| list.disks.iter().any(|other| other.disk == one.disk);
        let (_, mut lost): (Vec<&Listed>, Vec<&Listed>) = known.disks.iter().partition(is_there);
        // An earlier version took the data directory for one of the others as well, where it had a second name. Under that name it is refused now: who leaves it out
        // misses nothing, for what is in it is here. The list is written without it.
        if !lost.is_empty() {
            let own = read::<Mark>(&**first, DISK).ok().flatten().map(|found| found.what.disk);
            lost.retain(|one| own.as_ref() != Some(&one.disk));
        }
        let lost_paths: Vec<PathBuf> = lost.iter().map(|one| one.path.clone()).collect();
        if !lost.is_empty() && !accepts_loss {
            return Err(missing(&lost_paths));
        }
        let known = KnownDisks { first: first.clone(), list, lost: lost_paths };
        let is_listed = before.is_some() || !others.is_empty();
        if known.lost.is_empty() && before.as_ref() != Some(&known.list) && is_listed {
            known.write()?;
        }
        Ok(known)
    }

    /// Others know that what was on the lost disks is missing: the node does not have them any more.
    pub(super) fn accepted(&self) -> Result<(), Fatal> {
        if self.lost.is_empty() { Ok(()) } else { self.write() }
    }

    fn write(&self) -> Result<(), Fatal> {
        put(&*self.first, LIST, &self.list)
    }
}

/// Names a disk as one of the node.
fn mark(disk: &dyn Disk, node: &[u8; 16], random: &dyn Random) -> Result<String, Fatal> {
    let mut id = [0; 16];
    random.fill(&mut id);
    let mark = Mark { version: VERSION, node: uuid_text(node), disk: uuid_text(&id) };
    put(disk, DISK, &mark)?;
    tracing::info!(path = %disk.root().display(), "it is one of this node's disks from now on");
    Ok(mark.disk)
}

/// Whether there are segments or copies on a disk.
fn has_some(disk: &dyn Disk) -> Result<bool, Fatal> {
    let has = |folder: &str, end: &str| match disk.list(folder) {
        Ok(names) => Ok(names.iter().any(|name| name.ends_with(end))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Fatal::directory(disk.root(), error)),
    };
    Ok(has("containers", ".kera")? || has("replicas", ".replica")?)
}

fn put<T: Serialize>(disk: &dyn Disk, name: &str, what: &T) -> Result<(), Fatal> {
    let text = serde_json::to_vec_pretty(what).map_err(|error| damaged(disk, name, &error.to_string()))?;
    marks::write(disk, name, &text).map_err(|error| Fatal::directory(disk.root(), error))
}

/// What was found of a file that is kept twice.
struct Found<T> {
    what: T,
    are_same: bool,
}

impl<T: Serialize> Found<T> {
    /// Both are there behind this, if the disk takes them.
    fn mended(self, disk: &dyn Disk, name: &str) -> T {
        if !self.are_same
            && let Err(error) = put(disk, name, &self.what)
        {
            tracing::warn!(%error, name, "it is there once; a later start writes it twice");
        }
        self.what
    }
}

/// What a file says, or its copy if the disk has changed the file.
fn read<T: for<'a> Deserialize<'a>>(disk: &dyn Disk, name: &str) -> Result<Option<Found<T>>, Fatal> {
    let found = match marks::read(disk, name, BYTES_MAX) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fatal::directory(disk.root(), error)),
    };
    let copy = found.copy.as_deref().and_then(|copy| parse(disk, name, copy).ok());
    let file = parse(disk, name, &found.file);
    let is_changed = found.is_one_bit_off() || matches!(file, Err(Fatal::Data { .. }));
    let what = match copy.filter(|_| is_changed) {
        Some(copy) => {
            tracing::warn!(path = %disk.root().join(name).display(), "the file is not what was written; its copy is taken");
            copy
        }
        None => file?,
    };
    Ok(Some(Found { what, are_same: found.are_same() }))
}

fn parse<T: for<'a> Deserialize<'a>>(disk: &dyn Disk, name: &str, text: &[u8]) -> Result<T, Fatal> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    match serde_json::from_slice(text) {
        Ok(Version { version }) if version != VERSION => {
            let path = disk.root().join(name);
            let message = format!("{} has version {version}, and this build knows {VERSION}", path.display());
            Err(Fatal::OtherBuild { message })
        }
        _ => serde_json::from_slice(text).map_err(|error| damaged(disk, name, &error.to_string())),
    }
}

fn damaged(disk: &dyn Disk, name: &str, reason: &str) -> Fatal {
    Fatal::Data { message: format!("{} is damaged: {reason}", disk.root().join(name).display()) }
}

fn foreign(path: &Path, found: &str, node: &[u8; 16]) -> Fatal {
    let path = path.display();
    let message = format!("{path} is a disk of node {found}, and this is node {}", uuid_text(node));
    Fatal::not_here(message, OWN_DISKS)
}

/// That of another node, or this node's own by a way that the system does not know for the same, as a network file system that is mounted twice.
fn data_directory(path: &Path) -> Fatal {
    let path = path.display();
    let message = format!("{path} is the data directory of a node: it has {FILE}");
    Fatal::not_here(message, format!("leave {path} out of --disks; if what is in it is not needed any more, empty it"))
}

fn given_up(path: &Path) -> Fatal {
    let path = path.display();
    let message = format!(
        "{path} has segments or copies, and is not one of this node's disks, or not any more: what is on it others have rebuilt since"
    );
    Fatal::not_here(message, format!("empty {path}, or leave it out of --disks"))
}

fn missing(lost: &[PathBuf]) -> Fatal {
    let paths: Vec<String> = lost.iter().map(|path| path.display().to_string()).collect();
    let (what, them) = if lost.len() == 1 { ("a disk", "it") } else { ("disks", "them") };
    Fatal::not_here(
        format!("{what} of this node, last at {}, cannot be found", paths.join(", ")),
        format!(
            "mount {them}, and name {them} with --disks. What is gone for good is given up with --accept-damage true, for one start: a cluster \
             has copies of all that has more than one, and rebuilds it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use kera_env::{MemoryDisk, SeededRandom, copy_path};

    use super::*;

    const NODE: [u8; 16] = [7; 16];

    fn disks<const COUNT: usize>() -> [Arc<dyn Disk>; COUNT] {
        std::array::from_fn(|_| Arc::new(MemoryDisk::new()) as Arc<dyn Disk>)
    }

    fn look(disks: &[&Arc<dyn Disk>], accepts: bool) -> Result<KnownDisks, String> {
        let disks: Vec<Arc<dyn Disk>> = disks.iter().map(|disk| Arc::clone(disk)).collect();
        static SEED: AtomicU64 = AtomicU64::new(1);
        let random = SeededRandom::new(SEED.fetch_add(1, Ordering::Relaxed));
        KnownDisks::look(&NODE, &disks, &random, accepts).map_err(|error| format!("{error}; {}", error.next_step()))
    }

    #[test]
    fn a_disk_that_is_not_there_is_missed_until_that_is_accepted() {
        let [a, b, c, empty] = &disks();
        assert!(look(&[a], false).unwrap().lost.is_empty());
        assert!(a.read_all(LIST, 9999).is_err(), "a node with one disk has no list");
        look(&[a, b, c], false).unwrap();
        look(&[a, c, b], false).unwrap();
        let error = look(&[a, b], false).unwrap_err();
        assert!(error.contains("a disk of this node") && error.contains("--accept-damage"), "{error}");
        let error = look(&[a, b, empty], false).unwrap_err();
        assert!(error.contains("cannot be found"), "it is not mounted: {error}");
        // Killed before anybody knows that something is missing: the next start misses it, too.
        assert_eq!(look(&[a, b, empty], true).unwrap().lost.len(), 1);
        assert!(look(&[a, b, empty], false).is_err());
        look(&[a, b, empty], true).unwrap().accepted().unwrap();
        assert!(look(&[a, b, empty], false).unwrap().lost.is_empty());
        // The old one may be used again once it is empty.
        c.create_dir_all("containers").unwrap();
        c.replace("containers/0000000000000001.kera", b"a segment").unwrap();
        assert!(look(&[a, b, empty, c], false).unwrap_err().contains("; empty "));
        c.remove("containers/0000000000000001.kera").unwrap();
        assert!(look(&[a, b, empty, c], false).unwrap().lost.is_empty());
    }

    #[test]
    fn a_data_directory_is_no_extra_disk() {
        let [a, b] = &disks();
        b.replace(FILE, b"{}").unwrap();
        let error = look(&[a, b], true).unwrap_err();
        assert!(error.contains("is the data directory of a node") && error.contains("leave "), "{error}");
        b.remove(FILE).unwrap();
        look(&[a, b], false).unwrap();
    }

    /// Who followed the advice to leave it out was told that a disk is missing.
    #[test]
    fn a_data_directory_that_was_taken_for_a_disk_as_well_is_not_missed() {
        let [a, b] = &disks();
        look(&[a, a, b], false).unwrap();
        // As the identity that was there all along: earlier versions did not look for it.
        a.replace(FILE, b"{}").unwrap();
        assert!(look(&[a, a, b], false).unwrap_err().contains("; leave "));
        assert!(look(&[a], false).unwrap_err().contains("a disk of this node"), "the other one is missed");
        assert_eq!(look(&[a, b], false).unwrap().list.disks.len(), 1);
        assert!(look(&[a, b], false).unwrap().lost.is_empty());
        let listed = || read::<List>(&**a, LIST).unwrap().expect("a list").what.disks.len();
        assert_eq!(listed(), 1, "it is written anew");
        let [c] = &disks();
        look(&[c, c], false).unwrap();
        assert!(look(&[c], false).unwrap().lost.is_empty());
        assert!(read::<List>(&**c, LIST).unwrap().expect("a list").what.disks.is_empty());
    }

    /// What ran before disks had marks has something on all of them.
    #[test]
    fn disks_of_an_earlier_version_are_taken_as_they_are() {
        let [a, b, c] = &disks();
        for disk in [b, c] {
            disk.create_dir_all("replicas").unwrap();
            disk.replace("replicas/1.replica", b"a copy").unwrap();
        }
        assert!(look(&[a, b, c], false).unwrap().lost.is_empty());
        assert!(look(&[a, b], false).is_err());
    }

    #[test]
    fn disks_of_others_damaged_and_newer_files_are_refused() {
        let [a, b] = &disks();
        look(&[a, b], false).unwrap();
        let other = KnownDisks::look(&[8; 16], &[Arc::clone(a), Arc::clone(b)], &SeededRandom::new(1), true);
        assert!(other.unwrap_err().to_string().contains("is a disk of node 07070707-"));
        let error = look(&[a, b, b], false).unwrap_err();
        assert!(error.contains("named twice"), "{error}");
        b.replace(DISK, br#"{"version": 2, "what": 1}"#).unwrap();
        assert!(look(&[a, b], false).unwrap_err().contains("has version 2, and this build knows 1"));
        b.replace(DISK, b"{").unwrap();
        b.replace(&copy_path(DISK), b"{").unwrap();
        assert!(look(&[a, b], true).unwrap_err().contains("disk.json is damaged"));
    }

    #[test]
    fn no_byte_is_needed_that_is_in_the_copy_and_behind_it_both_are_there_again() {
        let whole = [MemoryDisk::new(), MemoryDisk::new()];
        let disks = |of: &[MemoryDisk; 2]| of.clone().map(|disk| Arc::new(disk) as Arc<dyn Disk>);
        let [a, b] = &disks(&whole);
        let known = look(&[a, b], false).unwrap().list;
        for (at, name) in [(0, LIST), (1, DISK)] {
            for path in [name.to_owned(), copy_path(name)] {
                let bytes = whole[at].read_all(&path, 9999).unwrap().len() as u64;
                for (offset, bit) in (0..bytes).flat_map(|offset| (0..8).map(move |bit| (offset, bit))) {
                    whole[at].flip_bit(&path, offset, bit).unwrap();
                    assert_eq!(look(&[a, b], false).unwrap().list, known, "{path} {offset} {bit}");
                    assert!(marks::read(&whole[at], name, 9999).unwrap().are_same(), "{path} {offset} {bit}");
                }
            }
        }
    }
}
