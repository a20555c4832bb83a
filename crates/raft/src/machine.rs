//! The state that all nodes have: entries of the log make it, snapshots carry it, observers follow it.
//!
//! Observers are called on a thread of their own, one entry after the other in the order of the log: they may wait for disks, and
//! the log does not wait for them.
//!
//! What is done for snapshots takes as long as the state is large. The thread that says that the node lives and leads does none of it: they are read, written, put into bytes and compared
//! on others, with a state that stays as it is meanwhile ([`Current::state`]). Nor do entries wait to be applied for one that is sent, or made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use kera_coordinator::cluster::{Change, ClusterState};
use kera_env::Folder;
use openraft::storage::RaftStateMachine;
use openraft::{
    EntryPayload, ErrorSubject, ErrorVerb, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::file::OpenError;
use crate::room::when_there_is_room;
use crate::snapshot::{self, Carried, Loaded};
use crate::types::{Applied, Entry, Node, Place, StoredMembers, TypeConfig};

/// Who wants to know of all changes of the state.
pub trait Observer: Send + Sync {
    /// Called on a thread of its own, one change at a time and in order. `index` is that of the entry of the log.
    fn changed(&self, index: u64, change: &Change);

    /// All changes of this entry of the log were told. One entry may have many, and another one none.
    fn told(&self, _index: u64) {}
}

#[derive(Default)]
pub(crate) struct Current {
    /// Whoever makes a snapshot of it holds on to it. The first entry that is applied meanwhile is applied to a copy.
    pub(crate) state: Arc<ClusterState>,
    pub(crate) applied: Option<Place>,
    pub(crate) members: StoredMembers,
}

impl Current {
    /// What the newest snapshot says; nothing yet if there is none. Blocks.
    pub(crate) fn of_newest(folder: &Folder) -> Result<Current, OpenError> {
        let loaded = snapshot::newest(folder)?;
        Ok(loaded.map(Current::from).unwrap_or_default())
    }

    /// Makes the next entry of the log true; what observers are told of it.
    pub(crate) fn apply(&mut self, entry: Entry) -> (Applied, Vec<Change>) {
        let (mut answer, mut changes) = (Applied::default(), Vec::new());
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(members) => self.members = StoredMembers::new(Some(entry.log_id), members),
            EntryPayload::Normal(batch) => {
                let state = Arc::make_mut(&mut self.state);
                for one in &batch.0 {
                    match state.apply_telling(one) {
                        Ok(change) => changes.extend(change),
                        Err(refused) => {
                            answer.refused = Some(refused.0);
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

impl From<Loaded> for Current {
    fn from(loaded: Loaded) -> Current {
        Current { state: Arc::new(loaded.state), applied: Some(loaded.applied), members: loaded.members }
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
    /// How far the newest snapshot on the disk goes.
    newest: Mutex<Option<SnapshotMeta<u64, Node>>>,
}

impl Shared {
    /// Who comes is told of all entries behind those that all others have been told of when this returns. So it waits while one is being told, and no observer may call it.
    ///
    /// Otherwise one that is being told to the others would not be told to whoever comes, and what they make of it may not be there yet when that one looks at the state and at them.
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
        let newest = Mutex::new(current.applied.map(|applied| snapshot::meta(applied, current.members.clone())));
        let (told, followed) = watch::channel(index);
        let (changes, receiver) = channel();
        let observers = Arc::new(Mutex::new(Vec::new()));
        let (disk_error, followers) =
            (|error| OpenError::Disk { path: snapshot::DIR.to_owned(), error }, observers.clone());
        let spawn = std::thread::Builder::new().name("kera-follow".into()).stack_size(512 << 10);
        spawn.spawn(move || follow(&receiver, &followers, &told)).map_err(disk_error)?;
        let (current, changes) = (RwLock::new(current), Mutex::new(changes));
        let (snapshots, durable) = (Mutex::default(), watch::Sender::new(Some(index)));
        let shared = Shared { current, changes, observers, followed, snapshots, durable, newest };
        Ok(Machine { shared: Arc::new(shared), folder, node, closing })
    }

    fn tell(&self, index: u64, changes: Vec<Change>) {
        // Nobody follows any more only when the process ends.
        let _ = self.shared.changes.lock().send((index, changes));
    }

    /// Writes a snapshot that goes so far, which `bytes` makes: on another thread.
    async fn keep(
        &self,
        meta: SnapshotMeta<u64, Node>,
        bytes: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Result<(), StorageError<u64>> {
        let index = meta.last_log_id.map_or(0, |place| place.index);
        let (folder, closing, shared) = (self.folder.clone(), self.closing.clone(), self.shared.clone());
        let write = move || {
            let bytes = bytes();
            let _alone = shared.snapshots.lock();
            when_there_is_room("a snapshot of the coordinators", &closing, || snapshot::write(&folder, index, &bytes))
        };
        let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other).flatten();
        let is_written = written.is_ok();
        if is_written {
            let mut newest = self.shared.newest.lock();
            let before = newest.as_ref().and_then(|known| known.last_log_id).map_or(0, |place| place.index);
            if newest.is_none() || before < index {
                *newest = Some(meta);
            }
        }
        self.shared.durable.send_modify(|until| *until = until.filter(|_| is_written).map(|until| until.max(index)));
        written.map_err(Machine::failed)
    }

    /// The newest snapshot, for whoever sends it.
    fn carried(&self) -> Carried {
        Carried::Newest(self.folder.clone())
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
        // Until all of it was told: see [`Shared::observe`].
        let observers = observers.lock();
        for change in &changes {
            observers.iter().for_each(|observer| observer.changed(index, change));
        }
        observers.iter().for_each(|observer| observer.told(index));
        told.send_replace(index);
    }
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

    /// Nobody asks for it: parts of a snapshot are put together before `openraft` hears of it.
    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Carried>, StorageError<u64>> {
        Ok(Box::new(self.carried()))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, Node>,
        carried: Box<Carried>,
    ) -> Result<(), StorageError<u64>> {
        let Carried::Came(mut loaded, bytes) = *carried else {
            return Err(Machine::failed(io::Error::other("a snapshot is to be taken over that nobody has sent")));
        };
        let index = loaded.applied.index;
        self.keep(meta.clone(), move || bytes).await?;
        let shared = self.shared.clone();
        // Nothing is applied before this has returned, so what the two are compared with is what gives way.
        let install = move || {
            let before = shared.current.read().state.clone();
            loaded.state.takes_place_of(&before);
            let changes = before.changes_to(&loaded.state);
            *shared.current.write() = Current::from(*loaded);
            changes
        };
        let changes = tokio::task::spawn_blocking(install).await.map_err(io::Error::other).map_err(Machine::failed)?;
        self.tell(index, changes);
        Ok(())
    }

    /// Reads nothing: entries are not applied before this has returned, for as long as a large snapshot takes, or without end where the disk does not answer. Whoever sends it reads it.
    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        let newest = self.shared.newest.lock().clone();
        Ok(newest.map(|meta| Snapshot { meta, snapshot: Box::new(self.carried()) }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError<u64>> {
        let (state, applied, members) = {
            let current = self.shared.current.read();
            let Some(applied) = current.applied else {
                return Err(Machine::failed(io::Error::other("nothing is applied, so there is nothing to keep")));
            };
            (current.state.clone(), applied, current.members.clone())
        };
        let (node, meta) = (self.node, snapshot::meta(applied, members.clone()));
        self.keep(meta.clone(), move || snapshot::encode(node, &state, applied, &members)).await?;
        Ok(Snapshot { meta, snapshot: Box::new(self.carried()) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use kera_coordinator::CoordinatorError;
    use kera_coordinator::catalog::Limits;
    use kera_coordinator::cluster::{Join, LogView};
    use kera_env::{DirectIo, Disk, DiskFile, MemoryDisk, OpenMode};
    use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, Roles};
    use kera_format::{StreamOptions, StreamletId, level};
    use kera_protocol::{CreateStream, GiveBack};
    use openraft::{CommittedLeaderId, LogId};

    use super::*;
    use crate::snapshot::CODED;
    use crate::types::Batch;

    /// Notes what is opened to be read.
    #[derive(Debug, Default)]
    struct Noting {
        inner: MemoryDisk,
        opened: Mutex<Vec<String>>,
    }

    impl Disk for Noting {
        fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
            self.opened.lock().push(path.to_owned());
            self.inner.open(path, mode, direct)
        }
        fn list(&self, dir: &str) -> io::Result<Vec<String>> {
            self.opened.lock().push(dir.to_owned());
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
    fn no_entry_waits_to_be_applied_for_a_snapshot_that_is_read_to_be_sent() {
        let disk = Arc::new(Noting::default());
        let mut machine = Machine::open(crate::file::folder(disk.clone()), [1; 16], Arc::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let entry = Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), 1), payload: EntryPayload::Blank };
        let found = runtime.block_on(async {
            machine.apply([entry]).await.unwrap();
            machine.build_snapshot().await.unwrap();
            disk.opened.lock().clear();
            machine.get_current_snapshot().await.unwrap()
        });
        let found = found.expect("it was made");
        assert_eq!(found.meta.last_log_id.map(|place| place.index), Some(1));
        assert!(disk.opened.lock().is_empty(), "no entry would be applied meanwhile");
        let (place, bytes) = found.snapshot.into_bytes().unwrap();
        assert_eq!((place.index, snapshot::decode(&bytes).unwrap().applied), (1, place));
        assert!(!disk.opened.lock().is_empty(), "whoever sends it reads it");
    }

    fn entry(index: u64, entries: Vec<ClusterEntry>) -> Entry {
        Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), index), payload: EntryPayload::Normal(Batch(entries)) }
    }

    fn machine(node: u8) -> Machine {
        Machine::open(crate::file::folder(Arc::new(MemoryDisk::new())), [node; 16], Arc::default()).unwrap()
    }

    #[test]
    fn no_snapshot_is_put_into_bytes_or_read_on_the_thread_that_says_that_a_node_lives() {
        let (mut from, mut to) = (machine(1), machine(2));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let before = CODED.get();
        runtime.block_on(async {
            from.apply([entry(1, vec![ClusterEntry::LevelRaised { level: 2 }])]).await.unwrap();
            let Snapshot { meta, snapshot } = from.build_snapshot().await.unwrap();
            let read = move || {
                let (_, bytes) = snapshot.into_bytes().unwrap();
                Carried::Came(Box::new(snapshot::decode(&bytes).unwrap()), bytes)
            };
            let carried = tokio::task::spawn_blocking(read).await.unwrap();
            to.install_snapshot(&meta, Box::new(carried)).await.unwrap();
            assert_eq!(to.get_current_snapshot().await.unwrap().map(|found| found.meta), Some(meta));
        });
        assert_eq!(CODED.get(), before);
        assert_eq!(to.shared.current.read().state.level(), 2);
    }

    #[test]
    fn a_snapshot_has_the_state_of_when_it_was_begun_and_entries_are_applied_meanwhile() {
        let mut machine = machine(1);
        let mut maker = machine.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let raised = |index| entry(index, vec![ClusterEntry::LevelRaised { level: index as u32 + 1 }]);
        let made = runtime.block_on(async {
            machine.apply([raised(1)]).await.unwrap();
            let (made, applied) = tokio::join!(maker.build_snapshot(), machine.apply([raised(2)]));
            assert_eq!(applied.unwrap(), [Applied::default()]);
            made.unwrap()
        });
        let (place, bytes) = made.snapshot.into_bytes().unwrap();
        assert_eq!((place.index, snapshot::decode(&bytes).unwrap().state.level()), (1, 2));
        assert_eq!(machine.shared.current.read().state.level(), 3);
    }

    /// Makes true what is planned, and notes it.
    fn then(
        state: &mut ClusterState,
        all: &mut Vec<ClusterEntry>,
        plan: impl FnOnce(&ClusterState) -> Result<Vec<ClusterEntry>, CoordinatorError>,
    ) {
        let entries = plan(state).unwrap();
        entries.iter().for_each(|entry| state.apply(entry).unwrap());
        all.extend(entries);
    }

    /// What has happened when node 1 is back with all it had, and others have taken over from it and cannot open that; and how one of them gives it back.
    fn taken_over() -> (Vec<ClusterEntry>, GiveBack) {
        let (mut state, mut all) = (ClusterState::default(), Vec::new());
        let joins = |node: NodeNumber| {
            let doors = Doors { cluster: node.to_string(), ..Doors::default() };
            let (uuid, roles, rack, settings) = ([node as u8; 16], Roles::ALL, String::new(), Vec::new());
            Join { node, uuid, roles, rack, doors, settings, epoch_min: 1, has_all: true, levels: (1, level::NEWEST) }
        };
        then(&mut state, &mut all, |state| state.plan_found([9; 16], &joins(1), 0));
        for node in 2..=3 {
            then(&mut state, &mut all, |state| state.plan_join(&joins(node), 0));
        }
        for level in state.level() + 1..=level::NEWEST {
            then(&mut state, &mut all, |_| Ok(vec![ClusterEntry::LevelRaised { level }]));
        }
        let options = StreamOptions { streamlets: 3, replication: 2, ..StreamOptions::default() };
        let created = CreateStream { name: "copied".into(), options, if_not_exists: false };
        let limits = Limits { streams: 100, nodes: 16 };
        then(&mut state, &mut all, |state| state.plan_create_stream(&created, &limits, 0, false));
        let log = LogName { node: 1, epoch: 1, log: 0 };
        then(&mut state, &mut all, |state| state.plan_view(&LogView { log, view: 1, first: 1, backups: vec![2] }));
        then(&mut state, &mut all, |state| state.plan_fence(1, 1));
        then(&mut state, &mut all, |_| Ok(vec![ClusterEntry::LogEnded { log, end: 5 }]));
        then(&mut state, &mut all, |state| state.plan_recover(1, 1));
        then(&mut state, &mut all, |state| state.plan_join(&joins(1), 0));
        let epoch = |node: NodeNumber| state.node(node).unwrap().epoch;
        let of = state.may_get_back(1, epoch(1)).first().copied().expect("others have something of it");
        let asked = GiveBack {
            node: of.owner,
            epoch: epoch(of.owner),
            stream: of.stream,
            streamlet: StreamletId(of.streamlet),
            owner_epoch: of.owner_epoch,
            to: 1,
            to_epoch: epoch(1),
            keeps: Vec::new(),
        };
        (all, asked)
    }

    /// Who is far behind misses entries, and has seen others.
    #[test]
    fn what_was_seen_before_a_snapshot_that_is_sent_is_known_behind_it() {
        let (entries, asked) = taken_over();
        let (mut from, mut follows, mut begins) = (machine(1), machine(2), machine(3));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            from.apply([entry(1, entries.clone()), entry(2, Vec::new())]).await.unwrap();
            let answers = follows.apply([entry(1, entries)]).await.unwrap();
            assert_eq!(answers, [Applied::default()], "all of it is true");
            let made = from.build_snapshot().await.unwrap();
            let (_, bytes) = made.snapshot.into_bytes().unwrap();
            for (to, has_seen) in [(&mut follows, true), (&mut begins, false)] {
                let carried = Carried::Came(Box::new(snapshot::decode(&bytes).unwrap()), bytes.clone());
                to.install_snapshot(&made.meta, Box::new(carried)).await.unwrap();
                let (state, applied) = {
                    let current = to.shared.current.read();
                    (current.state.clone(), current.applied)
                };
                assert_eq!(applied.map(|place| place.index), Some(2));
                assert_eq!(state.may_give_back(&asked), has_seen);
            }
        });
    }

    /// Notes the entry of each change, and when all of an entry was told.
    #[derive(Default)]
    struct Notes(Mutex<Vec<(u64, &'static str)>>);

    impl Observer for Notes {
        fn changed(&self, index: u64, _: &Change) {
            self.0.lock().push((index, "changed"));
        }
        fn told(&self, index: u64) {
            self.0.lock().push((index, "told"));
        }
    }

    #[test]
    fn an_entry_is_told_when_all_of_its_changes_are() {
        let mut machine = machine(1);
        let notes = Arc::new(Notes::default());
        machine.shared.observe(notes.clone());
        let mut followed = machine.shared.followed.clone();
        let raised = |index, levels: &[u32]| {
            entry(index, levels.iter().map(|level| ClusterEntry::LevelRaised { level: *level }).collect())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            machine.apply([raised(1, &[2, 3]), raised(2, &[]), raised(3, &[4])]).await.unwrap();
            followed.wait_for(|told| *told >= 3).await.unwrap();
        });
        let expected = [(1, "changed"), (1, "changed"), (1, "told"), (2, "told"), (3, "changed"), (3, "told")];
        assert_eq!(*notes.0.lock(), expected);
    }

    /// Is told of a change for as long as somebody wants.
    struct Slow {
        begins: Sender<()>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl Observer for Slow {
        fn changed(&self, _: u64, _: &Change) {
            let _ = self.begins.send(());
            let _ = self.goes_on.lock().recv();
        }
    }

    /// It would be told of that one by nobody, and the others may not have done yet what it looks for.
    #[test]
    fn who_comes_while_an_entry_is_told_comes_when_all_others_were_told_of_it() {
        let mut machine = machine(1);
        let ((begins, begun), (goes_on, told)) = (channel(), channel());
        machine.shared.observe(Arc::new(Slow { begins, goes_on: Mutex::new(told) }));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let raised = entry(1, vec![ClusterEntry::LevelRaised { level: 2 }]);
        runtime.block_on(machine.apply([raised])).unwrap();
        begun.recv().unwrap();
        let shared = machine.shared.clone();
        let comes = std::thread::spawn(move || {
            shared.observe(Arc::new(Notes::default()));
            *shared.followed.borrow()
        });
        // Long enough for a thread that waits for nothing.
        let is_early = (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            comes.is_finished()
        });
        goes_on.send(()).unwrap();
        assert_eq!((is_early, comes.join().unwrap()), (false, 1));
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
                let found = runtime().block_on(machine.get_current_snapshot()).unwrap().expect("there always is one");
                let asked = found.meta.last_log_id;
                let (place, _) = found.snapshot.into_bytes().expect("it can be read");
                assert!(Some(place) >= asked, "{place} is there, {asked:?} was asked for");
            }
        });
    }
}
