//! Who the node is: a uuid for ever, and an epoch that is one higher after every start. In `node.json` in the data
//! directory, replaced atomically, and [twice](crate::marks).
//!
//! Read and written under the directory's lock: at a start, also when that has an arena behind a graceful stop, at a stop, which notes that everything is on disk, and, if file and copy are not the same, when the
//! node's own disk is scrubbed. The epoch is on disk before anything of this
//! incarnation is: group ids carry it, so no two incarnations can give the same id to different bytes.

use std::io;

use kera_env::{Disk, Random};
use kera_raft::SKIPPED;
use serde::{Deserialize, Serialize};

use crate::fatal::Fatal;
use crate::marks::{self, Marks};

/// The file, in the data directory.
pub const FILE: &str = "node.json";
/// The version of the file of a node that was stopped with everything on disk.
const VERSION_STOPPED: u32 = 1;
/// The version of the file of a node that runs, or was killed: it may have an arena that programs which know version 1 only cannot
/// attach. In a cluster such a program would tell the others that this node has lost what is in it, before it looks.
const VERSION_RUNNING: u32 = 2;
/// The most bytes the file may have.
const FILE_BYTES_MAX: usize = 4096;

/// Who the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Stays the same for a data directory.
    pub node: [u8; 16],
    /// The incarnation, from 1.
    pub epoch: u32,
    /// Whether there was no identity before: the data directory is a new one.
    pub first_start: bool,
    /// Whether the incarnation before was stopped with everything on disk.
    pub stopped: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    node: String,
    epoch: u32,
    /// Absent in the files of nodes that were never stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stopped: bool,
}

impl Identity {
    /// Reads the identity, or makes one, and begins the next epoch. Only [`persist`](Identity::persist) makes it true.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn begin(disk: &dyn Disk, random: &dyn Random) -> Result<Identity, Fatal> {
        let identity = match marks::read(disk, FILE, FILE_BYTES_MAX) {
            Ok(found) => Identity::of(disk, &found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut node = [0; 16];
                random.fill(&mut node);
                // Marks of a random uuid, so that other tools take it for one.
                node[6] = node[6] & 0x0f | 0x40;
                node[8] = node[8] & 0x3f | 0x80;
                Identity { node, epoch: 0, first_start: true, stopped: false }
            }
            Err(error) => return Err(Fatal::directory(disk.root(), error)),
        };
        match identity.epoch.checked_add(1) {
            Some(epoch) => Ok(Identity { epoch, ..identity }),
            None => Err(damaged(disk, "its epoch is the last one there is")),
        }
    }

    /// Puts the epoch on disk, synced.
    ///
    /// # Errors
    /// The file cannot be replaced.
    pub fn persist(&self, disk: &dyn Disk) -> Result<(), Fatal> {
        self.write(disk, false)
    }

    /// Puts the epoch on disk, synced, that its cluster has given to a node that has no arena yet. If it `has_all` that it had, what the disk says of the stop before
    /// stays: until there is an arena nothing else says that everything is on disk.
    ///
    /// # Errors
    /// The file cannot be replaced.
    pub fn persist_joined(&self, disk: &dyn Disk, has_all: bool) -> Result<(), Fatal> {
        self.write(disk, self.stopped && has_all)
    }

    /// Says so if its cluster, which has given it `epoch`, has begun epochs of it that its disks do not know of. For a node that was in the cluster before: one that is new may have the number of another
    /// one that was given up, and goes on behind its epochs.
    ///
    /// An epoch is on disk right after it is given. So these disks are an older copy; or a start ended in between, or had not heard that it was let in and asked again. Nobody can tell which, so it goes on: an
    /// older copy that shows otherwise [is refused](kera_coordinator::cluster::ClusterState::check_disks) before.
    pub fn tell_unknown_starts(&self, epoch: u32) {
        let unknown = self.unknown_starts(epoch);
        if unknown > 0 {
            tracing::warn!(
                on_disk = self.epoch - 1,
                given = epoch,
                "the cluster has begun {unknown} epochs of this node that are not on its disks, which may be an older copy of those that it had. If they are, stop it (docs/operations.md, A disk that loses \
                 something). Otherwise starts of it ended while they joined, or had to ask more than once, and nothing is wrong"
            );
        }
    }

    /// How many those are.
    fn unknown_starts(&self, epoch: u32) -> u32 {
        let unknown = epoch.saturating_sub(self.epoch);
        // A recovery of the coordinators skips some.
        if unknown >= SKIPPED / 2 { 0 } else { unknown }
    }

    /// Puts on disk that this incarnation has stopped and that everything it had is on disk.
    ///
    /// # Errors
    /// The file cannot be replaced.
    pub fn persist_stopped(&self, disk: &dyn Disk) -> Result<(), Fatal> {
        self.write(disk, true)
    }

    /// Compares the file with its copy while the node runs, and writes both anew if they are not the same: how many bytes they have, and whether they were not.
    ///
    /// # Errors
    /// The file cannot be read, or not be replaced.
    pub fn look_at_disk(&self, disk: &dyn Disk) -> Result<(u64, bool), Fatal> {
        let found = marks::read(disk, FILE, FILE_BYTES_MAX).map_err(|error| Fatal::directory(disk.root(), error))?;
        if !found.are_same() {
            self.persist(disk)?;
        }
        Ok((2 * found.file.len() as u64, !found.are_same()))
    }

    fn write(&self, disk: &dyn Disk, stopped: bool) -> Result<(), Fatal> {
        let version = if stopped { VERSION_STOPPED } else { VERSION_RUNNING };
        let file = File { version, node: uuid_text(&self.node), epoch: self.epoch, stopped };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| damaged(disk, &error.to_string()))?;
        marks::write(disk, FILE, &text).map_err(|error| Fatal::directory(disk.root(), error))
    }

    /// What the file says, or its copy if the file is not what was written.
    ///
    /// A copy is written when its file is durable, and nobody uses an epoch before both are. So the file may be one epoch ahead, or more if a build
    /// that knows no copies has run, and is never behind; and the uuid is the same for ever.
    fn of(disk: &dyn Disk, found: &Marks) -> Result<Identity, Fatal> {
        let parse = |text: &[u8]| {
            check_version(disk, text)?;
            Identity::parse(text).map_err(|reason| damaged(disk, &reason))
        };
        let copy = found.copy.as_deref().and_then(|copy| parse(copy).ok());
        let (is_wrong, file) = match (parse(&found.file), &copy) {
            (Ok(file), Some(copy)) => (file.node != copy.node || file.epoch < copy.epoch, Ok(file)),
            (Err(error @ Fatal::OtherBuild { .. }), _) => (found.is_one_bit_off(), Err(error)),
            (file, _) => (file.is_err(), file),
        };
        match copy.filter(|_| is_wrong) {
            Some(copy) => {
                let path = disk.root().join(FILE);
                tracing::warn!(path = %path.display(), "the file is not what was written; its copy is taken");
                Ok(copy)
            }
            None => file,
        }
    }

    fn parse(bytes: &[u8]) -> Result<Identity, String> {
        let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Some(node) = parse_uuid(&file.node) else {
            return Err(format!("`{}` is no uuid", file.node));
        };
        Ok(Identity { node, epoch: file.epoch, first_start: false, stopped: file.stopped })
    }

    /// The node's uuid as text.
    pub fn node_text(&self) -> String {
        uuid_text(&self.node)
    }
}

/// Whether this program knows the version of a file. What another one has written is not damaged, whatever is in it.
fn check_version(disk: &dyn Disk, bytes: &[u8]) -> Result<(), Fatal> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Ok(Version { version }) = serde_json::from_slice(bytes) else { return Ok(()) };
    if (VERSION_STOPPED..=VERSION_RUNNING).contains(&version) {
        return Ok(());
    }
    let path = disk.root().join(FILE);
    let message = format!(
        "{} has version {version} and this build knows {VERSION_STOPPED} and {VERSION_RUNNING}: another build has run here, and may \
         have left records in its arena that are nowhere else",
        path.display()
    );
    Err(Fatal::OtherBuild { message })
}

fn damaged(disk: &dyn Disk, reason: &str) -> Fatal {
    Fatal::Data { message: format!("{} is damaged: {reason}", disk.root().join(FILE).display()) }
}

/// A uuid in its usual form.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (index, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::{MemoryDisk, SeededRandom, copy_path};

    #[test]
    fn the_node_stays_and_its_epoch_grows() {
        let (disk, random) = (MemoryDisk::new(), SeededRandom::new(1));
        let start = || {
            let identity = Identity::begin(&disk, &random).unwrap();
            identity.persist(&disk).unwrap();
            identity
        };
        let first = start();
        assert!(first.first_start);
        assert_eq!(first.epoch, 1);
        let second = start();
        assert_eq!(second, Identity { node: first.node, epoch: 2, first_start: false, stopped: false });
        second.persist_stopped(&disk).unwrap();
        assert_eq!(start(), Identity { epoch: 3, stopped: true, ..second });
        assert!(!start().stopped, "it may have been killed since");
        assert_eq!(parse_uuid(&first.node_text()), Some(first.node));
    }

    #[test]
    fn an_epoch_that_was_not_put_on_disk_is_begun_once_more() {
        let (disk, random) = (MemoryDisk::new(), SeededRandom::new(1));
        let begin = || Identity::begin(&disk, &random).unwrap();
        begin().persist(&disk).unwrap();
        for stopped in [false, true] {
            begin().write(&disk, stopped).unwrap();
            let refused = begin();
            assert_eq!((begin(), refused.stopped), (refused, stopped));
        }
    }

    #[test]
    fn what_is_noted_of_a_stop_stays_beside_the_next_epochs_until_it_is_taken_away_or_something_is_missing() {
        let (disk, random) = (MemoryDisk::new(), SeededRandom::new(1));
        let begin = || Identity::begin(&disk, &random).unwrap();
        let first = begin();
        first.persist(&disk).unwrap();
        first.persist_stopped(&disk).unwrap();
        for epoch in 2..5 {
            let joined = begin();
            assert_eq!((joined.epoch, joined.stopped), (epoch, true));
            joined.persist_joined(&disk, true).unwrap();
        }
        begin().persist(&disk).unwrap();
        let killed = begin();
        assert_eq!((killed.epoch, killed.stopped), (6, false));
        killed.persist_joined(&disk, true).unwrap();
        assert!(!begin().stopped, "its arena says so");
        begin().persist_stopped(&disk).unwrap();
        begin().persist_joined(&disk, false).unwrap();
        assert!(!begin().stopped, "others know better");
    }

    #[test]
    fn epochs_that_are_not_on_disk_are_those_between_what_was_asked_for_and_what_was_given() {
        let identity = Identity { node: [1; 16], epoch: 7, first_start: false, stopped: true };
        assert_eq!([7, 8, 10].map(|epoch| identity.unknown_starts(epoch)), [0, 1, 3]);
        assert_eq!(identity.unknown_starts(7 + SKIPPED), 0, "the coordinators have skipped them");
    }

    #[test]
    fn what_a_program_that_knows_no_roomy_arena_may_open_was_stopped() {
        let (disk, random) = (MemoryDisk::new(), SeededRandom::new(1));
        let version = || serde_json::from_slice::<File>(&disk.read_all(FILE, 4096).unwrap()).unwrap().version;
        let identity = Identity::begin(&disk, &random).unwrap();
        identity.persist(&disk).unwrap();
        assert_eq!(version(), 2, "it runs, or was killed");
        identity.persist_stopped(&disk).unwrap();
        assert_eq!(version(), 1);
        // One that such a program was killed with.
        let text = format!("{{\"version\":1,\"node\":\"{}\",\"epoch\":7}}", identity.node_text());
        disk.replace(FILE, text.as_bytes()).unwrap();
        let identity = Identity::begin(&disk, &random).unwrap();
        assert_eq!((identity.epoch, identity.stopped, identity.first_start), (8, false, false));
    }

    #[test]
    fn a_damaged_file_is_refused_and_kept() {
        for text in ["", "{", "{\"version\":1,\"node\":\"x\",\"epoch\":1}"] {
            let disk = MemoryDisk::new();
            disk.replace(FILE, text.as_bytes()).unwrap();
            let error = Identity::begin(&disk, &SeededRandom::new(1)).unwrap_err();
            assert!(error.to_string().contains("node.json is damaged"), "{error}");
            assert_eq!(disk.read_all(FILE, 4096).unwrap(), text.as_bytes());
        }
    }

    /// Digits of the epoch, of the uuid and of the version parse as others do.
    #[test]
    fn no_byte_is_needed_that_is_in_the_copy_and_no_epoch_is_begun_twice() {
        let (whole, random) = (MemoryDisk::new(), SeededRandom::new(1));
        for _ in 0..12 {
            Identity::begin(&whole, &random).unwrap().persist(&whole).unwrap();
        }
        let last = Identity::begin(&whole, &random).unwrap();
        let copy = copy_path(FILE);
        let texts = [FILE, &copy].map(|path| (path, whole.read_all(path, 9999).unwrap()));
        for (path, text) in &texts {
            for (offset, bit) in (0..text.len() as u64).flat_map(|offset| (0..8).map(move |bit| (offset, bit))) {
                let disk = MemoryDisk::new();
                texts.iter().for_each(|(path, text)| disk.replace(path, text).unwrap());
                disk.flip_bit(path, offset, bit).unwrap();
                let identity = Identity::begin(&disk, &random).unwrap();
                assert!(
                    identity.node == last.node && identity.epoch >= last.epoch,
                    "{path} {offset} {bit}: {identity:?}"
                );
                assert!(last.look_at_disk(&disk).unwrap().1 && !last.look_at_disk(&disk).unwrap().1);
                assert!(marks::read(&disk, FILE, 9999).unwrap().are_same());
            }
        }
    }

    #[test]
    fn a_file_that_is_ahead_of_its_copy_counts_whoever_wrote_it() {
        let (disk, random) = (MemoryDisk::new(), SeededRandom::new(1));
        let first = Identity::begin(&disk, &random).unwrap();
        first.persist(&disk).unwrap();
        let text = format!("{{\"version\":1,\"node\":\"{}\",\"epoch\":7,\"stopped\":true}}", first.node_text());
        disk.replace(FILE, text.as_bytes()).unwrap();
        assert_eq!(
            Identity::begin(&disk, &random).unwrap(),
            Identity { epoch: 8, first_start: false, stopped: true, ..first }
        );
        let text = format!("{{\"version\":9,\"node\":\"{}\",\"epoch\":8}}", first.node_text());
        disk.replace(FILE, text.as_bytes()).unwrap();
        assert!(matches!(Identity::begin(&disk, &random), Err(Fatal::OtherBuild { .. })));
    }

    #[test]
    fn a_file_of_a_later_build_is_refused_and_not_called_damaged() {
        let disk = MemoryDisk::new();
        let text = "{\"version\":9,\"node\":\"x\",\"something\":\"else\"}";
        disk.replace(FILE, text.as_bytes()).unwrap();
        let error = Identity::begin(&disk, &SeededRandom::new(1)).unwrap_err();
        assert!(matches!(error, Fatal::OtherBuild { .. }), "{error}");
        assert!(error.to_string().contains("version 9") && error.next_step().contains("stop it gracefully"), "{error}");
        assert_eq!(disk.read_all(FILE, 4096).unwrap(), text.as_bytes());
    }

    #[test]
    fn an_epoch_cannot_wrap() {
        let disk = MemoryDisk::new();
        let text = format!("{{\"version\":1,\"node\":\"{}\",\"epoch\":{}}}", uuid_text(&[7; 16]), u32::MAX);
        disk.replace(FILE, text.as_bytes()).unwrap();
        assert!(Identity::begin(&disk, &SeededRandom::new(1)).unwrap_err().to_string().contains("last one"));
    }
}
