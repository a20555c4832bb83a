//! One connection of a node: the coordinator's operations and the node's status are answered here, everything else is
//! the broker's.
//!
//! Lives on the I/O thread of its connection. What may wait for a disk (commands to the coordinator, a look at the disks
//! for the node's status) goes to the [`Commands`] threads and comes back through a wake; nothing here blocks.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use kera_broker::{Broker, BrokerSession};
use kera_coordinator::Coordinator;
use kera_protocol::frame::FRAME_HEADER_BYTES;
use kera_protocol::{
    ClusterDescription, ErrorBody, FrameHeader, NodeStatusResponse, Op, Status, encode_error, encode_response,
};
use kera_rpc::{Flow, Outbox, Peer, Session, SessionFactory, SessionWaker};
use parking_lot::Mutex;

use crate::cluster::Cluster;

/// Commands of one connection that may be unanswered before it is read no further.
const COMMANDS_PENDING_MAX: usize = 32;
/// The most bytes of a command: a stream's name and options fit many times.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Bytes of the commands of all connections that wait for their turn, those included of which the connection has ended. Beyond it who comes is told that they are not done, and clients
/// give them to another node, or come back.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// What a command takes that waits, beside its body: more than it does.
const WAITING_BYTES: usize = 256;

/// Tells how the node is, unless it is gone. May wait for disks.
pub type StatusSource = Arc<dyn Fn() -> Option<NodeStatusResponse> + Send + Sync>;

/// A command on its way to the coordinator, or a question for the node's status, and the session that waits for the answer.
struct Command {
    op: Op,
    header: FrameHeader,
    body: Vec<u8>,
    /// Only the session has them: they are gone when nobody waits any more.
    replies: Weak<Replies>,
    _waits: Waits,
}

/// Bytes that are counted as long as a command is there.
struct Waits {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Answers on their way back to a session, with what they answer.
struct Replies {
    frames: Mutex<Vec<(Op, Vec<u8>)>>,
    waker: SessionWaker,
}

/// The threads that may wait: one gives commands to the coordinator, one at a time, waiting for the disk where they do, and
/// another tells how the node is.
///
/// A command may wait for a leader of the coordinators, for ten seconds and more, and holds up those behind it. The node's
/// status is what people ask for when that is so: it has a line, and room, of its own. And the line of commands does not only grow as
/// long as there is no leader: those whose connection has ended are left out. Nobody has been told of them, and who comes again
/// asks anew. But they are left out when their turn comes: so that nobody fills the memory who connects, asks and is gone again and again, what waits is bounded by its bytes.
pub struct Commands {
    commands: Sender<Command>,
    statuses: Sender<Command>,
    stopping: Arc<AtomicBool>,
    /// Bytes of what waits in the one line, and in the other.
    waiting: [Arc<AtomicUsize>; 2],
}

impl Commands {
    /// Starts the threads. They end when the last session and this handle are gone.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(
        coordinator: Arc<Coordinator>,
        status: StatusSource,
    ) -> io::Result<(Arc<Commands>, [JoinHandle<()>; 2])> {
        let stopping = Arc::new(AtomicBool::new(false));
        let is_stopping = stopping.clone();
        let (commands, command_thread) = spawn("kera-commands", move |command, frame| {
            if is_stopping.load(Ordering::Acquire) {
                // Nobody was asked for it, and clients give it to another node. What may have been done they would not give twice.
                return encode_error(&command.header, Status::NotReady, &stopping_body(), frame);
            }
            coordinator.handle(command.op, &command.header, &command.body, frame);
            if is_stopping.load(Ordering::Acquire) {
                say_that_it_may_be_done(&command.header, frame);
            }
        })?;
        let (statuses, status_thread) = spawn("kera-status", move |command, frame| match status() {
            Some(status) => encode_response(&command.header, &status, frame),
            None => encode_error(&command.header, Status::ShuttingDown, &stopping_body(), frame),
        })?;
        let waiting = Default::default();
        Ok((Arc::new(Commands { commands, statuses, stopping, waiting }), [command_thread, status_thread]))
    }

    /// The node stops: commands whose turn has not come are refused, as not done. So it waits for the one that is under way, and not for
    /// as many as stand in line. That one it waits for shortly, and of what it does not hear of by then it says that it may be done.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Room for a command with so many bytes, if there is some.
    fn room(&self, op: Op, bytes: usize) -> Option<Waits> {
        let (all, bytes) = (&self.waiting[usize::from(op == Op::NodeStatus)], WAITING_BYTES + bytes);
        let waits = Waits { all: Arc::clone(all), bytes };
        (all.fetch_add(bytes, Ordering::Relaxed) + bytes <= WAITING_BYTES_MAX).then_some(waits)
    }

    fn give(&self, command: Command) -> bool {
        let line = if command.op == Op::NodeStatus { &self.statuses } else { &self.commands };
        line.send(command).is_ok()
    }
}

/// Starts a thread that answers what stands in a line of its own.
fn spawn(
    name: &str,
    answer: impl Fn(&Command, &mut Vec<u8>) + Send + 'static,
) -> io::Result<(Sender<Command>, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let builder = std::thread::Builder::new().name(name.into()).stack_size(512 << 10);
    Ok((sender, builder.spawn(move || work(&answer, &receiver))?))
}

/// A command was under way when the node was told to stop, and its answer is not waited for as long as it may take: if it was not ready it may be done all the same. Who is to make
/// a stream, and takes that for not done, asks another node and is told that there is one.
fn say_that_it_may_be_done(asked: &FrameHeader, frame: &mut Vec<u8>) {
    let is_not_ready =
        FrameHeader::parse(frame, frame.len()).is_ok_and(|answer| answer.status == Status::NotReady as u16);
    if !is_not_ready {
        return;
    }
    let why = frame.get(FRAME_HEADER_BYTES..).and_then(|body| ErrorBody::decode(body).ok());
    frame.clear();
    encode_error(asked, Status::ShuttingDown, &why.unwrap_or_else(stopping_body), frame);
}

fn work(answer: &dyn Fn(&Command, &mut Vec<u8>), receiver: &Receiver<Command>) {
    while let Ok(command) = receiver.recv() {
        if command.replies.strong_count() == 0 {
            continue;
        }
        let mut frame = Vec::with_capacity(256);
        answer(&command, &mut frame);
        if let Some(replies) = command.replies.upgrade() {
            replies.frames.lock().push((command.op, frame));
            replies.waker.wake();
        }
    }
}

/// Makes the sessions of a node.
pub struct NodeSessions {
    /// Who answers everything else.
    pub broker: Arc<Broker>,
    /// Who keeps the catalog.
    pub coordinator: Arc<Coordinator>,
    /// The node's part of its cluster, if it has one.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// The threads for commands.
    pub commands: Arc<Commands>,
}

impl SessionFactory for NodeSessions {
    fn open(&self, peer: Peer, waker: SessionWaker) -> Box<dyn Session> {
        Box::new(NodeSession {
            node: self.broker.clone(),
            broker: self.broker.session(peer.address, waker.clone()),
            coordinator: self.coordinator.clone(),
            cluster: self.cluster.clone(),
            commands: self.commands.clone(),
            replies: Arc::new(Replies { frames: Mutex::new(Vec::new()), waker }),
            pending: 0,
            statuses_pending: 0,
        })
    }
}

struct NodeSession {
    node: Arc<Broker>,
    broker: BrokerSession,
    coordinator: Arc<Coordinator>,
    cluster: Option<Arc<Cluster>>,
    commands: Arc<Commands>,
    replies: Arc<Replies>,
    /// Commands whose answers are not in the outbox yet.
    pending: usize,
    /// The same of questions for the node's status.
    statuses_pending: usize,
}

impl NodeSession {
    fn command(&mut self, op: Op, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        if body.len() > COMMAND_BYTES_MAX {
            let message = format!("{op} has {} bytes, the limit is {COMMAND_BYTES_MAX}", body.len());
            out.error(header, Status::InvalidArgument, &ErrorBody::new(message));
            return Flow::Done;
        }
        // Questions are answered from memory at once, unless a command that was asked before them is still under way.
        if matches!(op, Op::GetStream | Op::ListStreams) && self.pending == 0 {
            let mut frame = Vec::with_capacity(256);
            self.coordinator.handle(op, header, body, &mut frame);
            self.tell(op, &frame, out);
            return Flow::Done;
        }
        if self.pending + self.statuses_pending >= COMMANDS_PENDING_MAX {
            return Flow::Blocked;
        }
        let Some(waits) = self.commands.room(op, body.len()) else {
            let message =
                "too many commands wait at this node, for a leader of the coordinators or for its disk; ask another node, or again"
                    .to_owned();
            // Nobody was asked for it. Not `Overloaded`, which clients take for too few live nodes and do not take to another node.
            out.error(header, Status::NotReady, &ErrorBody { message, retry_after_ms: 1_000 });
            return Flow::Done;
        };
        let replies = Arc::downgrade(&self.replies);
        match self.commands.give(Command { op, header: *header, body: body.to_vec(), replies, _waits: waits }) {
            true => *self.pending_of(op) += 1,
            false => out.error(header, Status::ShuttingDown, &stopping_body()),
        }
        Flow::Done
    }

    fn pending_of(&mut self, op: Op) -> &mut usize {
        if op == Op::NodeStatus { &mut self.statuses_pending } else { &mut self.pending }
    }

    fn collect(&mut self, out: &mut Outbox) {
        if self.pending + self.statuses_pending == 0 {
            return;
        }
        let frames = std::mem::take(&mut *self.replies.frames.lock());
        for (op, frame) in frames {
            *self.pending_of(op) -= 1;
            self.tell(op, &frame, out);
        }
    }

    /// Puts an answer into the outbox. That there is no such stream is not said by a node that has not heard from the coordinators for so long that it does not serve: it may
    /// have been made since, and who asks would take it for what nobody knows.
    fn tell(&self, op: Op, frame: &[u8], out: &mut Outbox) {
        let header = FrameHeader::parse(frame, frame.len()).expect("the coordinator answers with whole frames");
        let is_unknown = op == Op::GetStream && header.status == Status::UnknownStream as u16;
        if is_unknown && !self.node.is_confirmed() {
            let message = "this node knows no such stream, and has not heard from a majority of the coordinators for so long that one may \
                           have been made since; ask another node";
            return out.error(&header, Status::NotReady, &ErrorBody::new(message));
        }
        let mut writer = out.begin(&header);
        writer.body().extend_from_slice(&frame[FRAME_HEADER_BYTES..]);
        writer.finish();
    }
}

fn stopping_body() -> ErrorBody {
    ErrorBody::new("the node is stopping")
}

impl Session for NodeSession {
    #[inline]
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        match Op::from_u16(header.op) {
            Some(op) if BrokerSession::serves(op) => self.broker.handle(op, header, body, out),
            Some(op) if Coordinator::serves(op) || op == Op::NodeStatus => self.command(op, header, body, out),
            Some(Op::DescribeCluster) => {
                let alone = || ClusterDescription {
                    cluster: [0; 16],
                    leader: 0,
                    term: 0,
                    applied: 0,
                    nodes: Vec::new(),
                    logs: 0,
                    waiting_streamlets: 0,
                    level: 0,
                };
                out.respond(header, &self.cluster.as_ref().map_or_else(alone, |cluster| cluster.describe()));
                Flow::Done
            }
            Some(Op::DescribeCopies) => {
                out.respond(header, &self.cluster.as_ref().map_or_else(Default::default, |cluster| cluster.copied()));
                Flow::Done
            }
            Some(Op::DescribeLogs) => {
                out.respond(header, &self.cluster.as_ref().map_or_else(Default::default, |cluster| cluster.own_logs()));
                Flow::Done
            }
            // The server answers Hello itself and refuses operations that nobody knows.
            _ => {
                let error = ErrorBody::new("the operation is not served by this node");
                out.error(header, Status::NotSupported, &error);
                Flow::Done
            }
        }
    }

    fn on_wake(&mut self, out: &mut Outbox) {
        self.collect(out);
        self.broker.on_wake(out);
    }

    fn on_drained(&mut self, out: &mut Outbox) {
        self.collect(out);
        self.broker.on_drained(out);
    }

    fn deadline_us(&self) -> Option<u64> {
        self.broker.deadline_us()
    }

    fn on_deadline(&mut self, now_us: u64, out: &mut Outbox) {
        self.collect(out);
        let _ = now_us;
        self.broker.on_deadline(out);
    }

    fn is_busy(&self) -> bool {
        self.pending + self.statuses_pending > 0 || self.broker.is_busy()
    }

    fn on_stop(&mut self, out: &mut Outbox) {
        self.collect(out);
        self.broker.on_stop(out);
    }

    fn on_close(&mut self) {
        self.broker.on_close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use kera_broker::BrokerConfig;
    use kera_coordinator::catalog::Catalog;
    use kera_coordinator::{ClusterLog, CoordinatorError, LiveNode, StreamObserver};
    use kera_env::{Clock, SystemClock};
    use kera_format::StreamId;
    use kera_log::{Arena, ArenaConfig, Log, LogConfig};
    use kera_protocol::{AllocateProducer, GetStream, ListStreams, Message, NodeStatus, StreamInfo};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// The coordinators of a cluster that has no leader: who asks them waits at a gate, and is refused behind it.
    struct Leaderless {
        came: Mutex<Sender<()>>,
        gate: Mutex<Receiver<()>>,
    }

    impl ClusterLog for Leaderless {
        fn request(&self, _: Op, _: u8, _: &[u8], _: bool) -> Result<Vec<u8>, CoordinatorError> {
            self.came.lock().send(()).unwrap();
            let _ = self.gate.lock().recv();
            Err(CoordinatorError::NoLeader("nobody answers".into()))
        }
        fn level(&self) -> u32 {
            0
        }
        fn read(&self, read: &mut dyn FnMut(&Catalog)) {
            read(&Catalog::default());
        }
        fn copies_of(&self, _: StreamId, _: u32) -> u32 {
            0
        }
        fn wanted_copies(&self, _: StreamId) -> Option<u32> {
            None
        }
        fn live_nodes(&self) -> Vec<LiveNode> {
            Vec::new()
        }
        fn observe(&self, _: Arc<dyn StreamObserver>, _: Vec<StreamInfo>) {}
    }

    struct Node {
        sessions: NodeSessions,
        threads: [JoinHandle<()>; 2],
        /// Told of each command that is at the gate.
        comes: Receiver<()>,
        /// Lets one through.
        opens: Sender<()>,
        _dir: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Node {
            let dir = tempfile::tempdir().unwrap();
            let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 4 << 20, node: [7; 16] };
            let log = Log::new(LogConfig::default(), Arena::create_or_attach(arena).unwrap().0);
            let clock = Arc::new(SystemClock::new());
            let broker = Broker::new(BrokerConfig::default(), log, clock.clone());
            let ((came, comes), (opens, gate)) = (channel(), channel());
            let leaderless = Leaderless { came: Mutex::new(came), gate: Mutex::new(gate) };
            let coordinator = Arc::new(Coordinator::of_cluster(Arc::new(leaderless), clock));
            let (commands, threads) = Commands::start(coordinator.clone(), Arc::new(|| None)).unwrap();
            let sessions = NodeSessions { broker, coordinator, cluster: None, commands };
            Node { sessions, threads, comes, opens, _dir: dir }
        }

        fn connection(&self) -> Connection {
            let waker = SessionWaker::detached();
            let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 1, io_thread: 0 };
            Connection { session: self.sessions.open(peer, waker.clone()), waker, out: Outbox::new(1 << 20) }
        }
    }

    struct Connection {
        session: Box<dyn Session>,
        waker: SessionWaker,
        out: Outbox,
    }

    impl Connection {
        fn ask<M: Message>(&mut self, message: &M) {
            let header = FrameHeader { op: M::OP as u16, version: 1, ..FrameHeader::default() };
            let mut body = Vec::new();
            message.encode(1, &mut body);
            assert_eq!(self.session.on_frame(&header, &body, &mut self.out), Flow::Done);
        }

        fn ask_producer(&mut self) {
            self.ask(&AllocateProducer { producer_id: None });
        }

        /// The status of the answer that comes next.
        fn answer(&mut self) -> Option<Status> {
            let started = Instant::now();
            while self.out.is_empty() {
                assert!(started.elapsed() < PATIENCE, "no answer comes");
                match self.waker.take() {
                    true => self.session.on_wake(&mut self.out),
                    false => std::thread::yield_now(),
                }
            }
            let frames = std::mem::replace(&mut self.out, Outbox::new(1 << 20)).to_vec();
            Status::from_u16(FrameHeader::parse(&frames, frames.len()).unwrap().status)
        }
    }

    #[test]
    fn the_node_tells_how_it_is_while_commands_wait_for_a_leader() {
        let node = Node::new();
        let [mut first, mut other] = [(); 2].map(|()| node.connection());
        first.ask_producer();
        node.comes.recv_timeout(PATIENCE).expect("it is asked");
        for asked in 0..3 {
            // Here it cannot tell, for there is none.
            let connection = if asked == 0 { &mut first } else { &mut other };
            connection.ask(&NodeStatus);
            assert_eq!(connection.answer(), Some(Status::ShuttingDown));
            assert!(connection.session.is_busy() == (asked == 0));
        }
        // What is known in memory does not wait for that either.
        other.ask(&NodeStatus);
        other.ask(&ListStreams { prefix: String::new(), after: String::new(), limit: 0, system: false });
        assert_eq!(other.answer(), Some(Status::Ok));
        node.opens.send(()).unwrap();
        assert_eq!(first.answer(), Some(Status::NotReady));
        assert!(!first.session.is_busy());
    }

    #[test]
    fn a_command_of_which_the_connection_has_ended_is_left_out() {
        let Node { sessions, threads, comes, opens, _dir } = {
            let node = Node::new();
            let [mut first, mut gone, mut last] = [(); 3].map(|()| node.connection());
            first.ask_producer();
            node.comes.recv_timeout(PATIENCE).expect("it is asked");
            gone.ask_producer();
            gone.ask_producer();
            last.ask_producer();
            drop(gone);
            for connection in [&mut first, &mut last] {
                node.opens.send(()).unwrap();
                assert_eq!(connection.answer(), Some(Status::NotReady));
            }
            node
        };
        drop((sessions, opens));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(comes.try_iter().count(), 1, "that of the last one");
    }

    #[test]
    fn commands_that_wait_are_bounded_by_their_bytes_and_taken_again_when_others_are_gone() {
        let node = Node::new();
        let [mut first, mut last] = [(); 2].map(|()| node.connection());
        first.ask_producer();
        node.comes.recv_timeout(PATIENCE).expect("it is asked");
        let header = FrameHeader { op: Op::CreateStream as u16, version: 1, ..FrameHeader::default() };
        let (body, mut taken) = (vec![0; COMMAND_BYTES_MAX], 0);
        let refused = loop {
            let mut gone = node.connection();
            assert_eq!(gone.session.on_frame(&header, &body, &mut gone.out), Flow::Done);
            if !gone.out.is_empty() {
                break gone.answer();
            }
            taken += COMMAND_BYTES_MAX;
            assert!(taken <= WAITING_BYTES_MAX, "{taken} bytes wait");
        };
        assert_eq!(refused, Some(Status::NotReady), "clients give it to another node");
        last.ask(&NodeStatus);
        assert_eq!(last.answer(), Some(Status::ShuttingDown), "that has room of its own; here it cannot tell");
        node.opens.send(()).unwrap();
        assert_eq!(first.answer(), Some(Status::NotReady));
        // They are left out, one after the other.
        loop {
            last.ask_producer();
            if last.out.is_empty() {
                break;
            }
            assert_eq!(last.answer(), Some(Status::NotReady));
        }
        node.opens.send(()).unwrap();
        assert_eq!(last.answer(), Some(Status::NotReady));
    }

    #[test]
    fn a_node_that_is_cut_off_does_not_say_that_there_is_no_such_stream() {
        let node = Node::new();
        let mut connection = node.connection();
        let mut told = |heard_us: Option<u64>| {
            heard_us.into_iter().for_each(|at_us| node.sessions.broker.confirmed(at_us));
            connection.ask(&GetStream { stream: "new".into() });
            connection.answer()
        };
        assert_eq!(told(None), Some(Status::UnknownStream), "it is alone");
        // When the machine was started.
        assert_eq!(told(Some(0)), Some(Status::NotReady));
        assert_eq!(told(Some(SystemClock::new().since_boot_us())), Some(Status::UnknownStream));
    }

    /// The two were told the other way around: a client gave up what nobody had been asked for, and asked again for a stream that it had made itself, to be told that there is one.
    #[test]
    fn a_node_that_stops_refuses_commands_whose_turn_has_not_come_as_not_done_and_the_one_under_way_as_perhaps_done() {
        let node = Node::new();
        let [mut first, mut second] = [(); 2].map(|()| node.connection());
        first.ask_producer();
        node.comes.recv_timeout(PATIENCE).expect("it is asked");
        second.ask_producer();
        node.sessions.commands.stop();
        node.opens.send(()).unwrap();
        let told = [first.answer(), second.answer()].map(|status| status.expect("it is known"));
        assert_eq!(told, [Status::ShuttingDown, Status::NotReady]);
        assert_eq!(told.map(Status::could_duplicate), [true, false]);
        assert!(told.iter().all(|status| status.retryable()));
        assert!(node.comes.try_recv().is_err());
    }
}
