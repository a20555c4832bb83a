//! The state that all nodes have: entries of the log make it, snapshots carry it, observers follow it.
//!
//! Observers are called on a thread of their own, one entry after the other in the order of the log: they may wait for disks, and
//! the log does not wait for them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use kera_coordinator::StreamEvent;
use kera_coordinator::cluster::ClusterState;
use kera_env::Folder;
use kera_format::catalog::Entry as CatalogEntry;
use kera_format::cluster::ClusterEntry;
use kera_protocol::{StreamInfo, StreamRef};
use openraft::storage::RaftStateMachine;
use openraft::{
    EntryPayload, ErrorSubject, ErrorVerb, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::file::OpenError;
use crate::room::when_there_is_room;
use crate::snapshot::{self, Loaded};
use crate::types::{Applied, Entry, Place, StoredMembers, TypeConfig};

/// What has become true.
#[derive(Clone, Debug)]
pub enum Change {
    /// A stream was made, altered or deleted.
    Stream(StreamEvent),
    /// Anything else.
    Cluster(ClusterEntry),
    /// A snapshot has replaced the state. Changes of streams have been told before; everything else may be different.
    Replaced,
}

/// Who wants to know of all changes of the state.
pub trait Observer: Send + Sync {
    /// Called on a thread of its own, one change at a time and in order. `index` is that of the entry of the log.
    fn changed(&self, index: u64, change: &Change);
}

#[derive(Default)]
pub(crate) struct Current {
    pub(crate) state: ClusterState,
    pub(crate) applied: Option<Place>,
    pub(crate) members: StoredMembers,
}

impl Current {
    /// What the newest snapshot says; nothing yet if there is none. Blocks.
    pub(crate) fn of_newest(folder: &Folder) -> Result<Current, OpenError> {
        let loaded = snapshot::newest(folder)?;
        let of =
            |loaded: Loaded| Current { state: loaded.state, applied: Some(loaded.applied), members: loaded.members };
        Ok(loaded.map(of).unwrap_or_default())
    }

    /// Makes the next entry of the log true; what observers are told of it.
    pub(crate) fn apply(&mut self, entry: Entry) -> (Applied, Vec<Change>) {
        let (mut answer, mut changes) = (Applied::default(), Vec::new());
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(members) => self.members = StoredMembers::new(Some(entry.log_id), members),
            EntryPayload::Normal(batch) => {
                for one in &batch.0 {
                    match apply_one(&mut self.state, one) {
                        Ok(change) => changes.extend(change),
                        Err(refused) => {
                            answer.refused = Some(refused);
                            break;
                        }
                    }
                }
            }
        }
        self.applied = Some(entry.log_id);
        (answer, changes)
    }
}

/// What is shared by all who read the state.
pub(crate) struct Shared {
    pub(crate) current: RwLock<Current>,
    changes: Mutex<Sender<(u64, Vec<Change>)>>,
    observers: Arc<Mutex<Vec<Arc<dyn Observer>>>>,
    /// Up to which entry observers have been told.
    pub(crate) followed: watch::Receiver<u64>,
    /// Held by whoever writes snapshots.
    pub(crate) snapshots: Mutex<()>,
    /// Up to which entry a snapshot is durable. None: one could not be written, or was given up, and nothing is written any more.
    pub(crate) durable: watch::Sender<Option<u64>>,
}

impl Shared {
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        self.observers.lock().push(observer);
    }
}

/// The state machine. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) shared: Arc<Shared>,
    folder: Arc<Folder>,
    node: [u8; 16],
    closing: Arc<AtomicBool>,
}

impl Machine {
    /// Begins with the newest snapshot, if there is one. Blocks. A snapshot that waits for room is given up when `closing` says so.
    pub(crate) fn open(folder: Arc<Folder>, node: [u8; 16], closing: Arc<AtomicBool>) -> Result<Machine, OpenError> {
        let current = Current::of_newest(&folder)?;
        let index = current.applied.map_or(0, |place| place.index);
        let (told, followed) = watch::channel(index);
        let (changes, receiver) = channel();
        let observers = Arc::new(Mutex::new(Vec::new()));
        let (disk_error, followers) =
            (|error| OpenError::Disk { path: snapshot::DIR.to_owned(), error }, observers.clone());
        let spawn = std::thread::Builder::new().name("kera-follow".into()).stack_size(512 << 10);
        spawn.spawn(move || follow(&receiver, &followers, &told)).map_err(disk_error)?;
        let (current, changes) = (RwLock::new(current), Mutex::new(changes));
        let (snapshots, durable) = (Mutex::default(), watch::Sender::new(Some(index)));
        let shared = Shared { current, changes, observers, followed, snapshots, durable };
        Ok(Machine { shared: Arc::new(shared), folder, node, closing })
    }

    fn tell(&self, index: u64, changes: Vec<Change>) {
        // Nobody follows any more only when the process ends.
        let _ = self.shared.changes.lock().send((index, changes));
    }

    /// Writes a snapshot.
    async fn keep(&self, index: u64, bytes: Vec<u8>) -> Result<(), StorageError<u64>> {
        let (folder, closing, shared) = (self.folder.clone(), self.closing.clone(), self.shared.clone());
        let write = move || {
            let _alone = shared.snapshots.lock();
            when_there_is_room("a snapshot of the coordinators", &closing, || snapshot::write(&folder, index, &bytes))
        };
        let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other).flatten();
        let is_written = written.is_ok();
        self.shared.durable.send_modify(|until| *until = until.filter(|_| is_written).map(|until| until.max(index)));
        written.map_err(Machine::failed)
    }

    fn failed(error: io::Error) -> StorageError<u64> {
        StorageError::from_io_error(ErrorSubject::StateMachine, ErrorVerb::Write, error)
    }
}

fn follow(
    changes: &Receiver<(u64, Vec<Change>)>,
    observers: &Mutex<Vec<Arc<dyn Observer>>>,
    told: &watch::Sender<u64>,
) {
    while let Ok((index, changes)) = changes.recv() {
        let observers = observers.lock().clone();
        for change in &changes {
            observers.iter().for_each(|observer| observer.changed(index, change));
        }
        told.send_replace(index);
    }
}

/// Applies one entry; what observers are told of it.
fn apply_one(state: &mut ClusterState, entry: &ClusterEntry) -> Result<Option<Change>, String> {
    let find = |state: &ClusterState, stream: StreamRef| state.catalog.find(&stream).ok().cloned();
    let before = match entry {
        ClusterEntry::Catalog(
            CatalogEntry::StreamAltered { stream, .. } | CatalogEntry::StreamDeleted { stream, .. },
        ) => find(state, (*stream).into()),
        _ => None,
    };
    state.apply(entry).map_err(|refused| refused.0)?;
    let event = match entry {
        ClusterEntry::Catalog(CatalogEntry::StreamCreated { stream, .. }) => {
            find(state, (*stream).into()).map(StreamEvent::Created)
        }
        ClusterEntry::Catalog(CatalogEntry::StreamAltered { stream, .. }) => {
            let after = find(state, (*stream).into());
            before.zip(after).map(|(before, after)| StreamEvent::Altered { before, after })
        }
        ClusterEntry::Catalog(CatalogEntry::StreamDeleted { .. }) => before.map(StreamEvent::Deleted),
        ClusterEntry::Catalog(_) => None,
        other => return Ok(Some(Change::Cluster(other.clone()))),
    };
    Ok(event.map(Change::Stream))
}

/// What happened to streams between two states.
fn differences(before: &ClusterState, after: &ClusterState) -> Vec<Change> {
    let mut changes = Vec::new();
    let of = |state: &ClusterState, info: &StreamInfo| state.catalog.find(&info.id.into()).ok().cloned();
    for info in before.catalog.streams().filter(|info| of(after, info).is_none()) {
        changes.push(StreamEvent::Deleted(info.clone()));
    }
    for info in after.catalog.streams() {
        match of(before, info) {
            None => changes.push(StreamEvent::Created(info.clone())),
            Some(before) if before.options != info.options => {
                changes.push(StreamEvent::Altered { before, after: info.clone() });
            }
            Some(_) => {}
        }
    }
    changes.into_iter().map(Change::Stream).chain([Change::Replaced]).collect()
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<Place>, StoredMembers), StorageError<u64>> {
        let current = self.shared.current.read();
        Ok((current.applied, current.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        for entry in entries {
            let index = entry.log_id.index;
            let (answer, changes) = self.shared.current.write().apply(entry);
            self.tell(index, changes);
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Vec<u8>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta<u64, crate::types::Node>,
        bytes: Box<Vec<u8>>,
    ) -> Result<(), StorageError<u64>> {
        let loaded = snapshot::decode(&bytes).map_err(|reason| Machine::failed(io::Error::other(reason)))?;
        let index = loaded.applied.index;
        self.keep(index, *bytes).await?;
        let changes = {
            let mut current = self.shared.current.write();
            let changes = differences(&current.state, &loaded.state);
            *current = Current { state: loaded.state, applied: Some(loaded.applied), members: loaded.members };
            changes
        };
        self.tell(index, changes);
        Ok(())
    }

    /// Read on another thread: the one that this runs on says that the node lives and leads. It would say so no more for as long as a large snapshot takes, or without end where the disk does
    /// not answer, and whoever leads next has to send the same one.
    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        let folder = self.folder.clone();
        let read = move || -> io::Result<Option<Snapshot<TypeConfig>>> {
            let found = snapshot::read_newest(&**folder.disk())?;
            Ok(found.map(|(loaded, bytes)| Snapshot { meta: loaded.meta(), snapshot: Box::new(bytes) }))
        };
        let found = tokio::task::spawn_blocking(read).await.map_err(io::Error::other).flatten();
        found.map_err(Machine::failed)
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError<u64>> {
        let (bytes, meta, index) = {
            let current = self.shared.current.read();
            let Some(applied) = current.applied else {
                return Err(Machine::failed(io::Error::other("nothing is applied, so there is nothing to keep")));
            };
            let bytes = snapshot::encode(self.node, &current.state, applied, &current.members);
            (bytes, snapshot::meta(applied, current.members.clone()), applied.index)
        };
        self.keep(index, bytes.clone()).await?;
        Ok(Snapshot { meta, snapshot: Box::new(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::thread::{self, ThreadId};

    use kera_env::{DirectIo, Disk, DiskFile, MemoryDisk, OpenMode};
    use openraft::{CommittedLeaderId, LogId};

    use super::*;

    /// Notes who opens files to read them.
    #[derive(Debug, Default)]
    struct Noting {
        inner: MemoryDisk,
        readers: Mutex<Vec<ThreadId>>,
    }

    impl Disk for Noting {
        fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
            self.readers.lock().push(thread::current().id());
            self.inner.open(path, mode, direct)
        }
        fn list(&self, dir: &str) -> io::Result<Vec<String>> {
            self.readers.lock().push(thread::current().id());
            self.inner.list(dir)
        }
        fn remove(&self, path: &str) -> io::Result<()> {
            self.inner.remove(path)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.inner.rename(from, to)
        }
        fn create_dir_all(&self, dir: &str) -> io::Result<()> {
            self.inner.create_dir_all(dir)
        }
        fn sync_dir(&self, dir: &str) -> io::Result<()> {
            self.inner.sync_dir(dir)
        }
        fn free_bytes(&self) -> io::Result<u64> {
            self.inner.free_bytes()
        }
        fn root(&self) -> &Path {
            self.inner.root()
        }
        fn direct_io(&self) -> DirectIo {
            self.inner.direct_io()
        }
    }

    #[test]
    fn the_thread_that_says_that_a_node_lives_waits_for_no_snapshot_that_is_read() {
        let disk = Arc::new(Noting::default());
        let mut machine = Machine::open(crate::file::folder(disk.clone()), [1; 16], Arc::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let entry = Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), 1), payload: EntryPayload::Blank };
        let found = runtime.block_on(async {
            machine.apply([entry]).await.unwrap();
            machine.build_snapshot().await.unwrap();
            disk.readers.lock().clear();
            machine.get_current_snapshot().await.unwrap()
        });
        assert_eq!(found.and_then(|found| found.meta.last_log_id).map(|place| place.index), Some(1));
        let readers = disk.readers.lock();
        assert!(!readers.is_empty() && !readers.contains(&thread::current().id()));
    }

    /// A snapshot that is there no more because the next one is: who asks for the newest gets that.
    #[test]
    fn who_asks_for_the_newest_snapshot_gets_one_while_the_next_is_made() {
        let folder = crate::file::folder(Arc::new(MemoryDisk::new()));
        let mut machine = Machine::open(folder, [1; 16], Arc::default()).unwrap();
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let made = |machine: &mut Machine, index| {
            let entry = Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), index), payload: EntryPayload::Blank };
            runtime().block_on(async {
                machine.apply([entry]).await.unwrap();
                machine.build_snapshot().await.unwrap();
            });
        };
        made(&mut machine, 1);
        let (mut maker, is_over) = (machine.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (2..1_000).for_each(|index| made(&mut maker, index));
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                let found = runtime().block_on(machine.get_current_snapshot()).unwrap();
                assert!(found.is_some(), "there always is one");
            }
        });
    }
}
