//! A node of a cluster: a machine, and a process on it with a real log, broker and backup and real virtual logs. What its shell does on
//! threads and over sockets is here by turns, in the same order: see `docs/simulator.md` for what is real and what stands in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kera_backup::{Backup, BackupConfig, BackupError, StoreDone};
use kera_broker::{Broker, BrokerConfig, Moving};
use kera_coordinator::balancer::{BalanceConfig, Balancer};
use kera_coordinator::cluster::{CalledOff, ClusterState};
use kera_coordinator::detector::{Detector, LOST_AFTER_MS};
use kera_env::{Clock, Disk, FaultyDisk, ManualClock, MemoryDisk, Random, SeededRandom};
use kera_format::arena::BlockSize;
use kera_format::cluster::{ClusterEntry, LogName};
use kera_format::vlog_replica::LogId;
use kera_format::{Cursor, GroupId, StreamId, StreamletId};
use kera_log::compact::Compactor;
use kera_log::store::{DiskStore, Step, StoreRecovery};
use kera_log::{Arena, ArenaConfig, ArenaFull, Attach, AttachedSegment, CutOffRoom, Log, LogConfig};
use kera_protocol::{BlockStored, ListReplicas, MoveInfo, ReleaseBlocks};

use super::CLUSTER;
use super::changing::Changing;
use super::clock::{Ages, ProcessClock};
use super::compacting::{Elsewhere, compactor};
use super::coordinators::{Command, Told};
use super::copies::{Copies, Directory, lock};
use super::copying::Copier;
use super::hearing::Hearing;
use super::mending::Damaged;
use super::own_logs::OwnLogs;
use super::plan::Planted;
use super::sessions::Sessions;
use super::taking::Recovery;
use crate::cluster::machine::small_store;

const ARENA_BYTES: u64 = 8 << 20;
/// What a backup says of lanes in an answer that is to be little: what three lanes have that both producers have written to does not fit.
const LITTLE_BYTES: usize = 1 << 10;
/// A lane without writes for so long has its segment closed, in milliseconds.
const IDLE_CLOSE_MS: i64 = 2_000;
/// How often it is looked whether groups that are held for others are gone, in microseconds.
pub(super) const TELL_GONE_US: u64 = 5_000_000;
/// For how long a cluster is calm before its nodes are evened out, where that is played.
const BALANCE_AFTER_US: u64 = 200_000;

/// What is left when a process has ended, and who knows what.
pub(super) struct Node {
    pub(super) number: u32,
    pub(super) memory: MemoryDisk,
    pub(super) disk: FaultyDisk,
    /// Its own: it may be set to another time.
    pub(super) clock: Arc<ManualClock>,
    pub(super) process: Option<Process>,
    /// Counts starts and ends: what was planned for an earlier process is not for this one.
    pub(super) life: u32,
    /// The node's incarnation, as its identity file has it.
    pub(super) epoch: u32,
    pub(super) first_start: bool,
    /// It was stopped with everything on disk, and has had no arena since: see `take_note_away` in `crates/server/src/node/start.rs`.
    pub(super) was_stopped: bool,
    /// It drops what it holds for others when it starts: a defect.
    pub(super) forgets_held: bool,
    /// It takes what it holds to be copied again when it is not: a defect.
    pub(super) gives_up_held: bool,
    /// It has streamlets change their virtual log before the first one is settled: a defect.
    pub(super) changes_unsettled: bool,
    /// It takes all that it has to be read by applications: a defect.
    pub(super) consumes_early: bool,
    /// A defect of its virtual logs, if there is one.
    pub(super) planted: Option<Planted>,
    /// Its own virtual logs say that everything is durable before it is: a defect.
    pub(super) own_logs_lie: bool,
    /// It leaves out what its own virtual logs have when it starts: a defect.
    pub(super) leaves_out_own_logs: bool,
    /// A kill takes its arena, and it does not notice: a defect.
    pub(super) forgets_memory: bool,
    /// What its disk has lost it looks for nowhere: a defect.
    pub(super) mends_nothing: bool,
    /// What its disk has lost it takes to have never been: a defect.
    pub(super) believes_its_disk: bool,
    /// Its compaction takes all of a streamlet to be here: a defect.
    pub(super) removes_blindly: bool,
    /// It takes backups that were removed to have what they had: a defect.
    pub(super) believes_the_removed: bool,
    /// It does not tell lanes that come to it where they begin: a defect.
    pub(super) forgets_floors: bool,
    /// It hears of what becomes true in pieces, and serves between them.
    pub(super) in_pieces: bool,
    /// Its backup says little of lanes in one answer.
    pub(super) tells_little: bool,
    /// How its processes find out how old something is.
    pub(super) ages: Ages,
    /// There are streams with one copy.
    pub(super) has_own_logs: bool,
    /// How long its process has stood still, in all, in microseconds.
    pub(super) frozen_us: u64,
    pub(super) id: [u8; 16],
    arena: PathBuf,
    pub(super) arena_bytes: u64,
    seed: u64,
    /// The coordinators' state as far as this node has it: on its disk, synced before it counts.
    pub(super) known: Arc<Mutex<ClusterState>>,
    pub(super) applied: usize,
    /// The last snapshot of it that it was sent, and up to which batch that goes: its next process begins with that, and with the entries behind it.
    pub(super) sent: Option<(usize, Vec<ClusterEntry>)>,
    pub(super) frozen_until_us: u64,
    /// Its disk was made to fail since the process before ended.
    pub(super) is_troubled: bool,
    /// Bits of its files were changed.
    pub(super) is_flipped: bool,
    /// The machine has lost its power before: of blocks that were not synced some may be there without those before them.
    pub(super) has_lost_power: bool,
    /// Its last process came with all that it had acknowledged.
    pub(super) came_with_all: bool,
    /// How often it was switched on, and whether its backup is told.
    boots: u32,
    pub(super) tells_of_boots: bool,
    pub(super) disk_us: u64,
    /// It never comes back.
    pub(super) is_gone: bool,
    /// There is nothing left of it.
    pub(super) is_burned: bool,
    /// It is one of the coordinators, or may become one.
    pub(super) is_coordinator: bool,
}

/// A command that is not answered yet.
pub(super) struct Pending {
    pub(super) command: Command,
    /// It is not tried again before.
    pub(super) next_us: u64,
    pub(super) until_us: u64,
    pub(super) told: Option<Told>,
}

/// A node's process.
pub(super) struct Process {
    pub(super) heard: BTreeMap<u32, (u32, u64)>,
    pub(super) detector: Detector,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Since when it has known of moves, as long as it leads.
    pub(super) moves_seen: BTreeMap<u64, u64>,
    /// Which moves it has called off, as a leader.
    pub(super) called_off: CalledOff,
    /// What evens out the nodes, as long as it leads.
    pub(super) balancer: Balancer,
    /// Since when streamlets have waited to be opened, as long as it leads, and how often backups were asked for ends again since then.
    pub(super) opening: Option<(u64, u64)>,
    /// It is being stopped, until then at most.
    pub(super) stopping: Option<u64>,
    /// Until when at most it answers first what is under way.
    pub(super) finishing: Option<u64>,
    /// There once the node has joined.
    pub(super) running: Option<Running>,
}

/// What backups answer, by the number of what was asked.
#[derive(Default)]
pub(super) struct Stored(Mutex<Vec<(u64, Result<BlockStored, BackupError>)>>);

impl Stored {
    pub(super) fn take(&self) -> Vec<(u64, Result<BlockStored, BackupError>)> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl StoreDone for Stored {
    fn stored(&self, token: u64, result: Result<BlockStored, BackupError>) {
        lock(&self.0).push((token, result));
    }
    fn room(&self) {}
}

/// A node that has joined.
pub(super) struct Running {
    pub(super) number: u32,
    pub(super) epoch: u32,
    pub(super) clock: Arc<ProcessClock>,
    pub(super) log: Arc<Log>,
    pub(super) store: Arc<DiskStore>,
    pub(super) damaged: Arc<Damaged>,
    pub(super) copies: Arc<Copies>,
    pub(super) own: OwnLogs,
    pub(super) broker: Arc<Broker>,
    pub(super) backup: Arc<Backup>,
    pub(super) compactor: Compactor,
    pub(super) elsewhere: Arc<Elsewhere>,
    pub(super) stored: Arc<Stored>,
    /// Who sent the blocks that the backup has taken and not answered: node, log and block.
    pub(super) storing: BTreeMap<u64, (u32, LogId, u64)>,
    pub(super) next_store: u64,
    pub(super) sessions: Sessions,
    pub(super) recovery: Recovery,
    pub(super) copier: Copier,
    pub(super) moving: Moving,
    /// Moves to this node, by their numbers.
    pub(super) takes: BTreeMap<u64, Take>,
    /// It has streamlets change their virtual log although something in the first one is not acknowledged: a defect.
    pub(super) changes_unsettled: bool,
    /// It takes all that it has to be read by applications: a defect.
    consumes_early: bool,
    /// It does not tell lanes that come to it where they begin: a defect.
    pub(super) forgets_floors: bool,
    /// A defect of how it hears of streams, if there is one.
    pub(super) planted: Option<Planted>,
    pub(super) came_with_all: bool,
    /// What it is told of what has become true.
    pub(super) hearing: Hearing,
    /// Streamlets of which its start has cut something.
    pub(super) cut: BTreeSet<(StreamId, StreamletId)>,
    /// When it offers again what it came back with.
    pub(super) offer_us: u64,
    /// Where streamlets are to go on that change their virtual log.
    pub(super) wanted_logs: BTreeMap<(StreamId, StreamletId), Option<u8>>,
    /// What it does for streams that are to have another number of copies.
    pub(super) changing: Changing,
    /// When groups that are gone are told next.
    pub(super) tell_gone_us: u64,
    pub(super) turns: Turns,
}

/// A streamlet that comes to a node.
pub(super) struct Take {
    pub(super) of: MoveInfo,
    /// The question that the owner before has not answered, or what a pause is for.
    pub(super) asked: u64,
}

/// Turns that are planned already.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) logs: bool,
    pub(super) backup: bool,
    pub(super) deadline_us: Option<u64>,
}

/// Why a process did not start.
pub(super) enum StartError {
    /// The disk is in trouble, as a fault has it.
    Disk,
    /// There is no fault that could explain it.
    Unsound(String),
}

impl Node {
    pub(super) fn new(number: u32, seed: u64, clock: &Arc<ManualClock>, dir: &std::path::Path) -> Node {
        let memory = MemoryDisk::new();
        let mut id = *b"node of cluster ";
        id[15] = number as u8;
        Node {
            number,
            disk: FaultyDisk::new(Arc::new(memory.clone())),
            memory,
            clock: clock.clone(),
            process: None,
            life: 0,
            epoch: 0,
            first_start: true,
            was_stopped: false,
            forgets_held: false,
            gives_up_held: false,
            changes_unsettled: false,
            consumes_early: false,
            planted: None,
            own_logs_lie: false,
            leaves_out_own_logs: false,
            forgets_memory: false,
            mends_nothing: false,
            ages: Ages::default(),
            believes_its_disk: false,
            removes_blindly: false,
            believes_the_removed: false,
            forgets_floors: false,
            in_pieces: false,
            tells_little: false,
            has_own_logs: false,
            frozen_us: 0,
            came_with_all: false,
            id,
            arena: dir.join(format!("{number}.arena")),
            arena_bytes: ARENA_BYTES,
            seed: seed ^ u64::from(number) << 40,
            known: Arc::default(),
            applied: 0,
            sent: None,
            frozen_until_us: 0,
            is_troubled: false,
            is_flipped: false,
            has_lost_power: false,
            boots: 0,
            tells_of_boots: true,
            disk_us: 300,
            is_gone: false,
            is_burned: false,
            is_coordinator: number <= 3,
        }
    }

    /// A process that has not joined yet.
    pub(super) fn begin(&mut self) {
        assert!(self.process.is_none(), "two processes on one directory");
        self.life += 1;
        self.process = Some(Process {
            heard: BTreeMap::new(),
            detector: Detector::new(LOST_AFTER_MS),
            pending: BTreeMap::new(),
            moves_seen: BTreeMap::new(),
            called_off: CalledOff::default(),
            balancer: Balancer::new(BalanceConfig { after_us: Some(BALANCE_AFTER_US) }),
            opening: None,
            stopping: None,
            finishing: None,
            running: None,
        });
    }

    /// Whether the node has all that it acknowledged before: its arena, or nothing ever.
    pub(super) fn has_all(&self) -> bool {
        let is_whole = || self.believes_its_disk || self.can_be_read();
        self.first_start || ((self.was_stopped || self.has_survived()) && is_whole())
    }

    fn has_survived(&self) -> bool {
        Arena::has_survived(&self.arena, self.id).expect("an arena of this build, or none")
    }

    /// Whether the disk has lost nothing of which it could not be told what it was.
    fn can_be_read(&self) -> bool {
        let kept = self.kept().map(|(_, stored, memory)| {
            // The next to attach it finds all of it.
            memory.iter().for_each(|(arena, _)| arena.freeze());
            stored.lacks.is_empty()
        });
        kept.unwrap_or(true)
    }

    /// What the process before has left on the disk and in memory, if that has outlived it. As `open_kept` in `crates/server/src/node/start.rs` does.
    fn kept(&self) -> Result<(Arc<DiskStore>, StoreRecovery, Option<Memory>), StartError> {
        let (disk, clock): (Arc<dyn Disk>, Arc<dyn Clock>) = (Arc::new(self.disk.clone()), self.clock.clone());
        let random = Arc::new(SeededRandom::new(self.seed ^ u64::from(self.epoch)));
        let memory = match self.has_survived() {
            true => Some(self.own_arena().map(|(arena, attach)| (arena, attached(attach)))?),
            false => None,
        };
        let opened = match &memory {
            Some((_, attached)) => {
                let in_memory = attached.iter().map(|attached| attached.segment.id()).collect();
                DiskStore::open_after_kill(small_store(self.id), vec![disk], clock, random, &in_memory)
            }
            None => DiskStore::open(small_store(self.id), vec![disk], clock, random),
        };
        let (store, stored) = opened.map_err(|e| {
            memory.iter().for_each(|(arena, _)| arena.freeze());
            self.why(e)
        })?;
        Ok((store, stored, memory))
    }

    /// The node has joined with an epoch, which is on its disk by now: puts its log together and serves.
    pub(super) fn open(&mut self, epoch: u32) -> Result<(), StartError> {
        (self.epoch, self.first_start, self.was_stopped) = (epoch, false, self.was_stopped && self.came_with_all);
        let running = self.opened(epoch).and_then(|running| self.told(running));
        self.was_stopped &= running.is_err() && !self.has_survived();
        let running = running?;
        if let Some(process) = &mut self.process {
            process.running = Some(running);
        }
        Ok(())
    }

    fn opened(&self, epoch: u32) -> Result<Running, StartError> {
        let own_clock = ProcessClock::of(self);
        let clock: Arc<dyn Clock> = own_clock.clone();
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let random: Arc<dyn Random> = Arc::new(SeededRandom::new(self.seed ^ u64::from(epoch)));
        let opened = Backup::open(self.backup_config(), vec![disk.clone()], clock.clone(), random.clone());
        let (backup, report) = opened.map_err(|e| self.why(e))?;
        if !self.is_flipped && !self.has_lost_power {
            self.sound(&report.damage)?;
        }
        self.forget_given_up(&backup);
        let copies = Copies::new((self.number, epoch), clock.clone(), self.known.clone(), self.planted);
        let copies = Arc::new(copies);
        let (store, stored, memory) = self.kept()?;
        let (arena, attached) = match memory {
            Some(memory) => memory,
            None => self.own_arena().map(|(arena, attach)| (arena, attached(attach)))?,
        };
        let log = log_in(arena, &store);
        if !self.is_flipped {
            self.sound(&stored.problems)?;
        }
        // The coordinators have been told that something is missing.
        store.others_have(&stored.lacks).map_err(|e| self.why(e))?;
        let own = self.open_own_logs(&disk, &clock, &random)?;
        self.set_sinks((&log, &store), &copies, &own);
        let elsewhere = Arc::new(Elsewhere::new(self.number, &self.known));
        let compactor = compactor((&log, &store), &clock, (self.seed, &elsewhere), self.removes_blindly);
        let broker = self.broker(epoch, &log, clock)?;
        let cut = self.recover(epoch, (&log, &store, &own), stored, attached)?;
        own_clock.begin_with(&log);
        let recovery = Recovery::of(&lock(&self.known), (self.number, epoch), &broker);
        Ok(Running {
            number: self.number,
            epoch,
            clock: own_clock,
            damaged: Damaged::of(&log, self.mends_nothing),
            log,
            store,
            copies,
            own,
            broker,
            backup,
            compactor,
            elsewhere,
            stored: Arc::default(),
            storing: BTreeMap::new(),
            next_store: 1,
            sessions: Sessions::default(),
            recovery,
            copier: self.copier(epoch),
            moving: Moving::default(),
            takes: BTreeMap::new(),
            changes_unsettled: self.changes_unsettled,
            consumes_early: self.consumes_early,
            forgets_floors: self.forgets_floors,
            planted: self.planted,
            came_with_all: self.came_with_all,
            hearing: Hearing::default(),
            cut,
            offer_us: 0,
            wanted_logs: BTreeMap::new(),
            changing: Changing::default(),
            tell_gone_us: self.clock.monotonic_us() + TELL_GONE_US,
            turns: Turns::default(),
        })
    }

    /// It is told all that is known; where nodes hear of that in pieces it begins to follow later.
    fn told(&self, mut running: Running) -> Result<Running, StartError> {
        let known = lock(&self.known);
        running.hearing = Hearing::of(&known);
        if !self.in_pieces {
            running.follow(&known, self.applied).map_err(StartError::Unsound)?;
            running.hear_all(&known).map_err(StartError::Unsound)?;
        }
        Ok(running)
    }

    /// Up to which entry all was told of what it knows.
    pub(super) fn heard(&self) -> usize {
        let running = self.process.as_ref().and_then(|process| process.running.as_ref());
        running.map_or(self.applied, |running| running.hearing.heard(self.applied))
    }

    /// Puts the lanes together from what is in memory, on disk and in the logs. The streamlets of which something was cut.
    fn recover(
        &self,
        epoch: u32,
        (log, store, own): (&Log, &DiskStore, &OwnLogs),
        stored: StoreRecovery,
        attached: Vec<AttachedSegment>,
    ) -> Result<BTreeSet<(StreamId, StreamletId)>, StartError> {
        log.set_copies(&lock(&self.known).other_copies());
        let report = log.recover(stored.segments, attached);
        log.let_go_before(&stored.let_go);
        self.sound(&self.unexpected(epoch, report.problems))?;
        self.replay(own, log, store)?;
        store.replayed();
        let done = self.cut_leftovers(log, store, epoch)?;
        self.sound(&self.unexpected(epoch, log.finish_recovery(epoch)))?;
        Ok(done)
    }

    /// A broker that has been told of all streams.
    fn broker(&self, epoch: u32, log: &Arc<Log>, clock: Arc<dyn Clock>) -> Result<Arc<Broker>, StartError> {
        let broker = Broker::new(BrokerConfig { epoch, ..BrokerConfig::default() }, log.clone(), clock);
        for info in lock(&self.known).catalog.streams() {
            broker.stream_created(info.id, info.options.clone()).map_err(|e| self.why(e))?;
        }
        Ok(broker)
    }

    fn copier(&self, epoch: u32) -> Copier {
        let (now_us, believes_the_removed) = (self.clock.monotonic_us(), self.believes_the_removed);
        Copier::new(&lock(&self.known), (self.number, epoch), (now_us, believes_the_removed))
    }

    fn own_arena(&self) -> Result<(Arc<Arena>, Attach), StartError> {
        let arena = ArenaConfig { path: self.arena.clone(), bytes: self.arena_bytes, node: self.id };
        Arena::create_or_attach_with(arena, BlockSize::Roomy).map_err(|e| self.why(e))
    }

    fn set_sinks(&self, (log, store): (&Arc<Log>, &Arc<DiskStore>), copies: &Arc<Copies>, own: &OwnLogs) {
        let sinks = own.sinks(self.own_logs_lie);
        log.set_sinks(Arc::new(Directory { copies: Arc::downgrade(copies), own: sinks }));
        own.attach(log, store);
    }

    /// Problems of a start that nothing explains. Streamlets that are taken over again may have what was rebuilt of them and what was
    /// written since, and not what is between; of those that have moved others may have what is between.
    fn unexpected(&self, epoch: u32, problems: Vec<String>) -> Vec<String> {
        let known = lock(&self.known);
        let mut others = known.not_gone_on_with(self.number, epoch);
        others.extend(known.catalog.streams().flat_map(|info| {
            let held = known.owners(info.id).into_iter().flat_map(|owners| owners.held());
            held.flat_map(|held| (held.first..held.first + held.count).map(|at| (info.id, StreamletId(at))))
        }));
        let names: Vec<String> = others.iter().map(|(stream, at)| format!("segment {stream}/{at}/")).collect();
        let is_expected = |problem: &String| names.iter().any(|name| problem.starts_with(name));
        problems.into_iter().filter(|problem| !is_expected(problem)).collect()
    }

    fn backup_config(&self) -> BackupConfig {
        let mut boot_id = [1; 16];
        boot_id[..4].copy_from_slice(&self.boots.to_le_bytes());
        let usual = BackupConfig::new(CLUSTER, self.number);
        BackupConfig {
            file_bytes: 64 << 10,
            boot_id: self.tells_of_boots.then_some(boot_id),
            states_bytes_max: if self.tells_little { LITTLE_BYTES } else { usual.states_bytes_max },
            ..usual
        }
    }

    fn forget_given_up(&self, backup: &Backup) {
        let known = lock(&self.known);
        let page = backup.list(&ListReplicas { after: None, limit: 0 });
        assert!(!page.more, "so many logs do not fit into a run");
        for replica in &page.replicas {
            let name = LogName::from(replica.log);
            if !known.logs().contains_key(&name) {
                backup.release(&ReleaseBlocks { log: replica.log, through_block: u64::MAX });
            } else if !known.is_live(name.node, name.epoch) {
                backup.keep_whole(replica.log);
            }
        }
    }

    /// See `crates/server/src/cluster/leftovers.rs`.
    fn cut_leftovers(
        &self,
        log: &Log,
        store: &DiskStore,
        epoch: u32,
    ) -> Result<BTreeSet<(StreamId, StreamletId)>, StartError> {
        let known = lock(&self.known);
        let of = |(stream, streamlet): (StreamId, StreamletId)| log.stream(stream)?.streamlet(streamlet).cloned();
        let (mut room, mut done) = (CutOffRoom::of(log), BTreeSet::new());
        for cut in known.to_be_cut(self.number, epoch) {
            let Some(place) = of((cut.stream, cut.streamlet)) else { continue };
            if cut.own_from.is_some_and(|from| !place.has_unacknowledged_before(from)) {
                continue;
            }
            if place.has_unacknowledged() {
                done.insert((cut.stream, cut.streamlet));
            }
            let mut tries = 0;
            let mut cut = || match self.came_with_all {
                true => place.cut_off_unacknowledged(&mut room),
                false => place.forget_unacknowledged(),
            };
            while cut().is_err() {
                tries += 1;
                if tries == 3_000 {
                    return Err(self.why("there is no room in the arena to cut what was never acknowledged"));
                }
                self.clock.advance_ms(10);
                store.step();
            }
        }
        drop_all(log, known.rebuilt_by_others(self.number, epoch));
        if self.forgets_held {
            drop_all(log, known.not_gone_on_with(self.number, epoch));
        }
        for handed in known.handed_on(self.number) {
            let Some(place) = of((handed.stream, handed.streamlet)) else { continue };
            let is_older =
                |group: GroupId| group.epoch() < handed.owner_epoch && handed.owner.holder(group) == self.number;
            for lane in place.lanes() {
                let end = handed.ends.get(&lane.id()).copied().unwrap_or(0);
                let no_room = |full: ArenaFull| self.why(format!("there is no room for {} bytes", full.bytes));
                // No disk here lacks what it gives again.
                let gone = lane.end_older(end, is_older).map_err(no_room)?;
                let said = gone.map(|ordinals| format!("{lane:?} has {ordinals:?}, and was handed on at {end}"));
                self.sound(said.as_slice())?;
            }
        }
        Ok(done)
    }

    pub(super) fn why(&self, error: impl std::fmt::Display) -> StartError {
        match self.memory.is_off() || self.is_troubled {
            true => StartError::Disk,
            false => StartError::Unsound(format!("node {} does not start on a sound disk: {error}", self.number)),
        }
    }

    pub(super) fn sound(&self, problems: &[String]) -> Result<(), StartError> {
        match problems {
            [] => Ok(()),
            _ if self.memory.is_off() || self.is_troubled => Err(StartError::Disk),
            [problem, ..] => Err(StartError::Unsound(format!("node {} finds at its start: {problem}", self.number))),
        }
    }

    /// kill -9: what was written stays, synced or not, and so does the arena.
    pub(super) fn kill(&mut self) {
        self.process = None;
        self.life += 1;
        self.frozen_until_us = 0;
        self.disk = FaultyDisk::new(Arc::new(self.memory.clone()));
        self.is_troubled = false;
        if self.forgets_memory {
            self.forget_arena();
            self.first_start = true;
        }
    }

    /// The machine loses power: memory is gone, and of the disk what was not synced is lost, kept or torn.
    pub(super) fn cut_power(&mut self, seed: u64) {
        self.kill();
        self.forget_arena();
        self.memory.crash(seed);
        self.boots += 1;
    }

    /// The arena's file is gone, as far as it was there.
    pub(super) fn forget_arena(&self) {
        if let Err(error) = std::fs::remove_file(&self.arena)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            panic!("the file of the simulated arena: {error}");
        }
    }

    pub(super) fn running(&mut self) -> Option<&mut Running> {
        self.process.as_mut()?.running.as_mut()
    }

    /// The same of one that is told what becomes true.
    pub(super) fn following(&mut self) -> Option<&mut Running> {
        self.running().filter(|running| running.hearing.follows())
    }

    /// The same of one that serves clients.
    pub(super) fn serving(&mut self) -> Option<&mut Running> {
        self.running().filter(|running| running.hearing.serves())
    }

    /// The incarnation that takes part, if there is one.
    pub(super) fn is_live(&self) -> bool {
        lock(&self.known).is_live(self.number, self.epoch)
    }
}

/// An arena, and the segments that were in it.
type Memory = (Arc<Arena>, Vec<AttachedSegment>);

/// The segments that were in an arena.
fn attached(attach: Attach) -> Vec<kera_log::AttachedSegment> {
    match attach {
        Attach::Created => Vec::new(),
        Attach::Attached { segments, .. } => segments,
    }
}

fn log_in(arena: Arc<Arena>, store: &Arc<DiskStore>) -> Arc<Log> {
    let config = LogConfig { has_owner_epochs: true, segment_arena_share: 16, ..LogConfig::default() };
    let log = Log::new(config, arena);
    log.set_store(store.clone());
    store.attach(&log);
    log
}

/// Drops groups of streamlets that others have.
pub(super) fn drop_all(log: &Log, which: impl IntoIterator<Item = (StreamId, StreamletId)>) {
    let of = |(stream, streamlet): (StreamId, StreamletId)| log.stream(stream)?.streamlet(streamlet).cloned();
    for place in which.into_iter().filter_map(of) {
        place.forget_groups(|_| false);
    }
}

impl Running {
    /// A turn of the store's threads. Whether there may be more to do at once.
    pub(super) fn step_store(&self) -> bool {
        self.store.step() == Step::Again
    }

    /// Writes everything to disk that the store was given: whether it is there.
    pub(super) fn flush(&self) -> bool {
        self.store.flush_all().is_ok()
    }

    /// A turn of maintenance.
    pub(super) fn tick(&self) {
        let now_ms = self.clock.now_ms();
        self.broker.tick();
        if self.consumes_early {
            let end = Cursor { group: GroupId(u64::MAX), ..Cursor::default() };
            let streams = self.log.streams();
            let lanes = streams.iter().flat_map(|stream| stream.streamlets()).flat_map(|streamlet| streamlet.lanes());
            lanes.for_each(|lane| lane.set_consumed_floor(Some(end)));
        }
        self.log.retain(self.clock.of_ages());
        self.log.close_idle(now_ms, IDLE_CLOSE_MS);
    }
}
