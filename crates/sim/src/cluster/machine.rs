//! A machine: a disk, memory that outlives a process, a clock of its own; and the process of a node on it, put together from
//! the same parts as a real one but for sockets and threads.
//!
//! What a thread of a node would do is a turn here, taken when the world says so. What a kill leaves, and what a power cut
//! leaves, is what the operating system would leave: the first one everything that was written and the arena's file, the
//! second one what was synced and some of the rest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use kera_broker::{APPLICATIONS_STREAM, Broker, BrokerConfig, applications_stream_options};
use kera_coordinator::{Coordinator, CoordinatorConfig, StreamEvent, StreamObserver};
use kera_env::{Clock, Disk, FaultyDisk, Folder, ManualClock, MemoryDisk, Random, SeededRandom};
use kera_format::arena::BlockSize;
use kera_format::{Cursor, LaneId, SegmentId, StreamId, StreamletId};
use kera_log::store::{DiskStore, Step, StoreConfig};
use kera_log::{
    Arena, ArenaConfig, Attach, ChunkReference, DurabilitySink, Log, LogConfig, Observer, RestoreError, Restored,
    SinkError, Ticket,
};
use kera_protocol::{FRAME_HEADER_BYTES, FrameHeader, Op};
use kera_vlog::{Ran, SegmentCloser, VirtualLog, VirtualLogConfig};

use super::world::{Plan, Planted};
pub(super) use crate::served::Said;
use crate::served::{Connection, OUTBOX_BYTES, WAKES_MAX};

/// Bytes of an arena: small, so that it is full now and then.
const ARENA_BYTES: u64 = 4 << 20;
const VIRTUAL_LOGS: u32 = 2;
/// A lane without writes for so long has its segment closed, in milliseconds.
const IDLE_CLOSE_MS: i64 = 3_000;

/// What is left when a process has ended.
pub(super) struct Machine {
    pub(super) memory: MemoryDisk,
    pub(super) disk: FaultyDisk,
    pub(super) clock: Arc<ManualClock>,
    pub(super) process: Option<Process>,
    /// Counts starts: what was planned for an earlier process is not for this one.
    pub(super) life: u32,
    /// The node's incarnation, as its identity file has it.
    epoch: u32,
    id: [u8; 16],
    arena: PathBuf,
    seed: u64,
    planted: Option<Planted>,
    /// Its disk was made to fail since the process before ended.
    pub(super) is_troubled: bool,
}

/// A node's process.
pub(super) struct Process {
    clock: Arc<ManualClock>,
    log: Arc<Log>,
    store: Arc<DiskStore>,
    virtual_logs: Vec<Arc<VirtualLog>>,
    broker: Arc<Broker>,
    coordinator: Arc<Coordinator>,
    connections: BTreeMap<u64, Connection>,
}

/// Segments and references lead back to the log: it must not keep those alive that keep it.
pub(crate) struct WeakSink {
    virtual_log: Weak<VirtualLog>,
    /// Says that everything is durable before it is.
    lies: bool,
}

impl WeakSink {
    /// `lies`: says that everything is durable before it is.
    pub(crate) fn new(virtual_log: &Arc<VirtualLog>, lies: bool) -> WeakSink {
        WeakSink { virtual_log: Arc::downgrade(virtual_log), lies }
    }

    fn get(&self) -> Arc<VirtualLog> {
        self.virtual_log.upgrade().expect("a process that runs has its virtual logs")
    }
}

impl DurabilitySink for WeakSink {
    fn appended(&self, reference: ChunkReference) -> Ticket {
        self.get().appended(reference)
    }
    fn durable_through(&self) -> Ticket {
        if self.lies {
            return Ticket::MAX;
        }
        self.get().durable_through()
    }
    fn wait(&self, ticket: Ticket, observer: &Arc<dyn Observer>, token: u64) -> bool {
        !self.lies && self.get().wait(ticket, observer, token)
    }
    fn healthy(&self) -> Result<(), SinkError> {
        self.get().healthy()
    }
    fn virtual_log(&self) -> u32 {
        self.get().virtual_log()
    }
    fn segment_safe(&self, id: SegmentId) {
        if let Some(virtual_log) = self.virtual_log.upgrade() {
            virtual_log.segment_safe(id);
        }
    }
}

/// A store whose containers are soon full, and whose writers and tries are quick.
pub(crate) fn small_store(node: [u8; 16]) -> StoreConfig {
    StoreConfig {
        node,
        container_bytes: 512 << 10,
        batch_bytes: 128 << 10,
        write_delay_ms: 100,
        release_delay_ms: 50,
        retry_ms: 100,
        through_segment_bytes_min: 256 << 10,
        ..StoreConfig::default()
    }
}

/// A virtual log on a node's own disk whose files are soon full.
pub(crate) fn small_virtual_log(number: u32, node: [u8; 16]) -> VirtualLogConfig {
    VirtualLogConfig {
        file_bytes: 256 << 10,
        block_bytes_max: 64 << 10,
        keep_bytes: 1 << 20,
        spares: 1,
        retry_ms: 50,
        ..VirtualLogConfig::new(number, node)
    }
}

/// Restores a chunk of a virtual log. No threads make room meanwhile where the arena is full: the store steps in between.
pub(crate) fn restore(
    log: &Log,
    store: &DiskStore,
    clock: &ManualClock,
    (vlog, chunk): (u32, &[u8]),
) -> Result<Restored, RestoreError> {
    for _ in 0..10_000 {
        match log.restore_chunk(vlog, chunk) {
            Err(RestoreError::ArenaFull(_)) => {
                log.close_coldest();
                clock.advance_ms(10);
                store.step();
            }
            other => return other,
        }
    }
    log.restore_chunk(vlog, chunk)
}

pub(crate) struct Close(Weak<Log>);

impl Close {
    pub(crate) fn new(log: &Arc<Log>) -> Close {
        Close(Arc::downgrade(log))
    }
}

impl SegmentCloser for Close {
    fn close_segments(&self, ids: &[SegmentId]) {
        if let Some(log) = self.0.upgrade() {
            log.close_segments(ids);
        }
    }
}

struct Follow(Arc<Broker>);

impl StreamObserver for Follow {
    fn stream_changed(&self, event: &StreamEvent) {
        let followed = match event {
            StreamEvent::Created(info) => self.0.stream_created(info.id, info.options.clone()),
            StreamEvent::Altered { after, .. } => self.0.stream_altered(after.id, after.options.clone()),
            StreamEvent::Deleted(info) => self.0.stream_deleted(info.id),
        };
        followed.expect("the log takes what the catalog took");
    }
}

impl Machine {
    /// A machine that was never switched on. `dir` is where the file of its arena goes.
    pub(super) fn new(number: u32, plan: &Plan, dir: &std::path::Path) -> Machine {
        let memory = MemoryDisk::new();
        let mut id = *b"simulated node  ";
        id[15] = number as u8;
        Machine {
            disk: FaultyDisk::new(Arc::new(memory.clone())),
            memory,
            clock: Arc::new(ManualClock::new(1_700_000_000_000)),
            process: None,
            life: 0,
            epoch: 0,
            id,
            arena: dir.join(format!("{number}.arena")),
            seed: plan.seed,
            planted: plan.planted,
            is_troubled: false,
        }
    }

    /// Starts a process.
    ///
    /// # Errors
    /// A disk that fails or is full: as a real one, the process ends, and whoever looks after it starts it again.
    /// Damage that a start finds is a reason, too; a simulated machine must not have any, so it ends the run.
    pub(super) fn start(&mut self) -> Result<(), StartError> {
        assert!(self.process.is_none(), "two processes on one directory");
        self.life += 1;
        self.epoch += 1;
        let process = self.open()?;
        self.process = Some(process);
        Ok(())
    }

    fn open(&self) -> Result<Process, StartError> {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let random: Arc<dyn Random> = Arc::new(SeededRandom::new(self.seed ^ u64::from(self.epoch)));
        let config = CoordinatorConfig::single(self.id);
        let coordinator = Coordinator::open(&config, Arc::clone(&disk), Arc::clone(&clock)).map_err(|e| self.why(e))?;
        let applications = coordinator.system_stream(APPLICATIONS_STREAM, &applications_stream_options());
        let applications = applications.map_err(|e| self.why(e))?.id;

        let opened = DiskStore::open(small_store(self.id), vec![disk.clone()], clock.clone(), random.clone());
        let (store, stored) = opened.map_err(|e| self.why(e))?;
        self.sound(&stored.problems)?;
        let arena = ArenaConfig { path: self.arena.clone(), bytes: ARENA_BYTES, node: self.id };
        let (arena, attach) = Arena::create_or_attach_with(arena, BlockSize::Roomy).map_err(|e| self.why(e))?;
        let attached = match attach {
            Attach::Created => Vec::new(),
            Attach::Attached { segments, .. } => segments,
        };
        let log = Log::new(LogConfig { segment_arena_share: 16, ..LogConfig::default() }, arena);
        log.set_store(store.clone());
        store.attach(&log);
        let folder = Arc::new(Folder::new(Arc::clone(&disk), &VirtualLogConfig::new(0, self.id).directory));
        let virtual_logs = (0..VIRTUAL_LOGS).map(|number| self.virtual_log(number, &folder, &clock, &random));
        let virtual_logs = virtual_logs.collect::<Result<Vec<_>, _>>()?;
        let lies = self.planted == Some(Planted::AcknowledgedTooSoon);
        let weak = |one| Arc::new(WeakSink::new(one, lies)) as Arc<dyn DurabilitySink>;
        log.set_sinks(Arc::new(virtual_logs.iter().map(weak).collect::<Vec<_>>()));
        for virtual_log in &virtual_logs {
            virtual_log.set_closer(Arc::new(Close::new(&log)));
            virtual_log.set_write_through(store.clone());
        }
        let config = BrokerConfig { epoch: self.epoch, ..BrokerConfig::default() };
        let broker = Broker::new(config, log.clone(), clock);
        for stream in coordinator.streams() {
            broker.stream_created(stream.id, stream.options).map_err(|e| self.why(e))?;
        }
        let report = log.recover(stored.segments, attached);
        self.sound(&report.problems)?;
        self.replay(&log, &store, &virtual_logs)?;
        store.replayed();
        self.sound(&log.finish_recovery(self.epoch))?;
        self.bring(&log, &store, applications)?;
        broker.open_applications(applications).map_err(|e| self.why(e))?;
        coordinator.set_observer(Arc::new(Follow(broker.clone())));
        let coordinator = Arc::new(coordinator);
        Ok(Process {
            clock: self.clock.clone(),
            log,
            store,
            virtual_logs,
            broker,
            coordinator,
            connections: BTreeMap::new(),
        })
    }

    fn replay(&self, log: &Log, store: &DiskStore, virtual_logs: &[Arc<VirtualLog>]) -> Result<(), StartError> {
        for virtual_log in virtual_logs {
            let vlog = virtual_log.virtual_log();
            let replayed = virtual_log.replay(&mut |chunk| restore(log, store, &self.clock, (vlog, chunk)));
            let report = replayed.map_err(|e| self.why(e))?;
            self.sound(&report.damage.iter().map(|damage| damage.reason.to_string()).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Has everything of a stream in memory, so that a start that reads it need not wait for the store's threads, which are
    /// not there.
    fn bring(&self, log: &Log, store: &DiskStore, stream: StreamId) -> Result<(), StartError> {
        let stream = log.stream(stream).expect("it was made just now");
        let lane = stream.streamlet(StreamletId(0)).and_then(|streamlet| streamlet.lane(LaneId(0)).cloned());
        let lane = lane.expect("every stream has a first lane");
        let mut cursor = Cursor::default();
        for _ in 0..100_000 {
            let outcome = lane.read(cursor, 1 << 20, true).map_err(|e| self.why(e))?;
            cursor = outcome.next;
            if outcome.loading {
                self.clock.advance_ms(1);
                store.step();
            } else if outcome.at_durable_end {
                return Ok(());
            }
        }
        Err(self.why("segments of the system do not come back from the disk"))
    }

    fn virtual_log(
        &self,
        number: u32,
        folder: &Arc<Folder>,
        clock: &Arc<dyn Clock>,
        random: &Arc<dyn Random>,
    ) -> Result<Arc<VirtualLog>, StartError> {
        let config = small_virtual_log(number, self.id);
        let opened = VirtualLog::open_in(Arc::clone(folder), config, Arc::clone(clock), Arc::clone(random));
        opened.map_err(|e| self.why(e))
    }

    fn why(&self, error: impl std::fmt::Display) -> StartError {
        match self.memory.is_off() || self.is_troubled {
            true => StartError::Disk,
            false => StartError::Unsound(format!("a start fails on a sound disk: {error}")),
        }
    }

    fn sound(&self, problems: &[String]) -> Result<(), StartError> {
        match problems {
            [] => Ok(()),
            _ if self.memory.is_off() || self.is_troubled => Err(StartError::Disk),
            [problem, ..] => Err(StartError::Unsound(format!("a start finds: {problem}"))),
        }
    }

    /// kill -9: what was written stays, synced or not, and so does the arena.
    pub(super) fn kill(&mut self) {
        self.process = None;
        self.life += 1;
        self.disk = FaultyDisk::new(Arc::new(self.memory.clone()));
        self.is_troubled = false;
        if self.planted == Some(Planted::KillsTakeTheArena) {
            self.forget_arena();
        }
    }

    /// The file of the arena goes, as it would with the machine's memory.
    fn forget_arena(&self) {
        if let Err(error) = std::fs::remove_file(&self.arena)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            panic!("the file of the simulated arena: {error}");
        }
    }

    /// The machine loses power: memory is gone, and of the disk what was not synced is lost, kept or torn.
    pub(super) fn cut_power(&mut self, seed: u64) {
        self.kill();
        self.forget_arena();
        self.memory.crash(seed);
    }
}

/// Why a process did not start.
pub(super) enum StartError {
    /// The disk is in trouble, as a fault has it.
    Disk,
    /// There is no fault that could explain it.
    Unsound(String),
}

impl Process {
    /// A client has connected.
    pub(super) fn connect(&mut self, wire: u64) {
        self.connections.insert(wire, Connection::new(&self.broker, wire, OUTBOX_BYTES));
    }

    /// A command to the coordinator, from somebody who is on the machine.
    pub(super) fn command<M: kera_protocol::Message>(&self, message: &M) -> (FrameHeader, Bytes) {
        let mut body = Vec::new();
        message.encode(M::OP.version_max(), &mut body);
        let header = FrameHeader { op: M::OP as u16, version: M::OP.version_max(), ..FrameHeader::default() };
        let mut frame = Vec::new();
        self.coordinator.handle(M::OP, &header, &body, &mut frame);
        let answer = FrameHeader::parse(&frame, frame.len()).expect("whole frames");
        (answer, Bytes::copy_from_slice(&frame[FRAME_HEADER_BYTES..]))
    }

    /// A connection is gone.
    pub(super) fn lost(&mut self, wire: u64) {
        if let Some(connection) = self.connections.remove(&wire) {
            connection.close();
        }
    }

    /// A request has come in.
    pub(super) fn request(&mut self, wire: u64, header: FrameHeader, body: Bytes, said: &mut Vec<Said>) {
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        connection.came(header, body);
        connection.serve(&by_coordinator(&self.coordinator), said);
        self.settle(said);
    }

    /// Sessions that were woken, or whose deadline has passed, do what they have to, until nobody has anything to do.
    pub(super) fn settle(&mut self, said: &mut Vec<Said>) {
        let now_us = self.clock.monotonic_us();
        for _ in 0..WAKES_MAX {
            let mut is_quiet = true;
            for connection in self.connections.values_mut() {
                if connection.wakes(now_us) {
                    is_quiet = false;
                    connection.serve(&by_coordinator(&self.coordinator), said);
                }
            }
            for gone in said.iter().filter_map(|one| if let Said::Closed(wire) = one { Some(*wire) } else { None }) {
                self.connections.remove(&gone);
            }
            if is_quiet {
                return;
            }
        }
        panic!("sessions never come to rest");
    }

    /// When the next session has something to do by itself.
    pub(super) fn deadline_us(&self) -> Option<u64> {
        self.connections.values().filter_map(Connection::deadline_us).min()
    }

    /// A turn of a virtual log's writer. Whether there may be more to do at once.
    pub(super) fn write_virtual_log(&self, number: usize) -> bool {
        matches!(self.virtual_logs[number].run_once(), Ran::Wrote { .. })
    }

    /// A turn of the store's threads. Whether there may be more to do at once.
    pub(super) fn step_store(&self) -> bool {
        self.store.step() == Step::Again
    }

    /// A turn of maintenance.
    pub(super) fn tick(&self, now_ms: i64) {
        self.broker.tick();
        self.log.retain(self.clock.believed());
        self.log.close_idle(now_ms, IDLE_CLOSE_MS);
    }

    /// How many virtual logs there are.
    pub(super) fn virtual_logs(&self) -> usize {
        self.virtual_logs.len()
    }
}

/// What is for the coordinator it answers at once.
fn by_coordinator(coordinator: &Coordinator) -> impl Fn(Op, &FrameHeader, &Bytes) -> Option<(FrameHeader, Bytes)> {
    move |op, header, body| {
        if !Coordinator::serves(op) {
            return None;
        }
        let mut frame = Vec::new();
        coordinator.handle(op, header, body, &mut frame);
        let answer = FrameHeader::parse(&frame, frame.len()).expect("whole frames");
        Some((answer, Bytes::copy_from_slice(&frame[FRAME_HEADER_BYTES..])))
    }
}
