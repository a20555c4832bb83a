//! A connection of a Kafka client, from its bytes to its answers: a door on a log in memory, and whatever comes in.
//!
//! Nothing may make it panic, what it keeps to be sent is bounded, and a connection that was not closed goes on answering.

use std::sync::Arc;

use kera_broker::{Broker, BrokerConfig};
use kera_coordinator::{Coordinator, CoordinatorConfig, StreamEvent, StreamObserver};
use kera_env::{Clock, MemoryDisk, SystemClock, SystemRandom};
use kera_kafka::{Door, DoorConfig, DoorThread, KafkaSessions};
use kera_log::{Arena, ArenaConfig, Log, LogConfig};
use kera_protocol::FrameHeader;
use kera_rpc::{Flow, Outbox, Peer, Session, SessionFactory, SessionWaker};

/// An answer has at most so many bytes, whatever a request of a few hundred asks for.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Times that one request is offered again while it waits.
const TRIES: usize = 2_000;

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

/// A door and one connection to it.
pub struct Connection {
    session: Option<Box<dyn Session>>,
    waker: SessionWaker,
    door: Option<(Arc<Door>, DoorThread)>,
    out: Outbox,
    taken: usize,
    _dir: tempfile::TempDir,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.session = None;
        if let Some((door, thread)) = self.door.take() {
            drop(door);
            thread.join();
        }
    }
}

impl Connection {
    /// A fresh door.
    pub fn new() -> Connection {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let path = dir.path().join("unit.arena");
        let arena = Arena::create_or_attach(ArenaConfig { path, bytes: 64 << 20, node: [3; 16] });
        let log = Log::new(LogConfig::default(), arena.expect("an arena").0);
        let broker = Broker::new(BrokerConfig::default(), log, Arc::clone(&clock));
        let config = CoordinatorConfig::single([3; 16]);
        let coordinator = Coordinator::open(&config, Arc::new(MemoryDisk::default()), Arc::clone(&clock));
        let coordinator = Arc::new(coordinator.expect("a catalog in memory"));
        coordinator.set_observer(Arc::new(Follow(Arc::clone(&broker))));
        let config = DoorConfig { node: [3; 16], auto_create: false, ..DoorConfig::default() };
        let door = Door::start(config, broker, coordinator, clock, Arc::new(SystemRandom)).expect("a door");
        let waker = SessionWaker::detached();
        let mut connection =
            Connection { session: None, waker, door: Some(door), out: Outbox::new(1 << 20), taken: 0, _dir: dir };
        connection.open();
        connection
    }

    fn open(&mut self) {
        let (door, _) = self.door.as_ref().expect("it is there until the end");
        let peer = Peer { address: ([127, 0, 0, 1], 9).into(), connection: 1, io_thread: 0 };
        self.session = Some(KafkaSessions(Arc::clone(door)).open(peer, self.waker.clone()));
        self.out = Outbox::new(1 << 20);
        self.taken = 0;
    }

    /// Gives a frame to the connection, and lets it do what it does with it. Whether it went on: it is a new one otherwise.
    pub fn frame(&mut self, frame: &[u8]) -> bool {
        self.offer(frame, TRIES, std::thread::yield_now)
    }

    /// The same for a frame that must be answered: the door's thread may be kept from its work for long.
    pub fn patient_frame(&mut self, frame: &[u8]) -> bool {
        self.offer(frame, 120_000, || std::thread::sleep(std::time::Duration::from_millis(1)))
    }

    fn offer(&mut self, frame: &[u8], tries: usize, wait: fn()) -> bool {
        for _ in 0..tries {
            let session = self.session.as_mut().expect("it is open");
            let flow = session.on_frame(&FrameHeader::default(), frame, &mut self.out);
            if self.waker.take() {
                session.on_wake(&mut self.out);
            }
            let sent = self.out.to_vec().len();
            assert!(sent - self.taken <= ANSWER_BYTES_MAX, "{} bytes for {}", sent - self.taken, frame.len());
            self.taken = sent;
            match flow {
                Flow::Close(_) => {
                    self.open();
                    return false;
                }
                Flow::Blocked => wait(),
                _ => {
                    if sent > 16 * ANSWER_BYTES_MAX {
                        self.open();
                    }
                    return true;
                }
            }
        }
        // A fetch or a group may keep it waiting, which is its right: whoever is behind it waits, too.
        self.open();
        false
    }
}

impl Default for Connection {
    fn default() -> Connection {
        Connection::new()
    }
}

/// Frames, each behind its length in two bytes; what is left at the end is one, too.
pub fn frames(mut data: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (frame, behind) = rest.split_at(length);
        all.push(frame);
        data = behind;
    }
    all
}
