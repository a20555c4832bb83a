//! One connection of a node: the coordinator's operations and the node's status are answered here, everything else is
//! the broker's.
//!
//! Lives on the I/O thread of its connection. What may wait for a disk (commands to the coordinator, a look at the disks
//! for the node's status) goes to the [`Commands`] thread and comes back through a wake; nothing here blocks.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
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

/// Tells how the node is, unless it is gone. May wait for disks.
pub type StatusSource = Arc<dyn Fn() -> Option<NodeStatusResponse> + Send + Sync>;

/// A command on its way to the coordinator, and the session that waits for the answer.
struct Command {
    op: Op,
    header: FrameHeader,
    body: Vec<u8>,
    replies: Arc<Replies>,
}

/// Answers on their way back to a session.
struct Replies {
    frames: Mutex<Vec<Vec<u8>>>,
    waker: SessionWaker,
}

/// The thread that gives commands to the coordinator, one at a time, waiting for the disk where they do.
pub struct Commands {
    sender: Sender<Command>,
}

impl Commands {
    /// Starts the thread. It ends when the last session and this handle are gone.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(coordinator: Arc<Coordinator>, status: StatusSource) -> io::Result<(Arc<Commands>, JoinHandle<()>)> {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("kera-commands".into())
            .stack_size(512 << 10)
            .spawn(move || work(&coordinator, &status, &receiver))?;
        Ok((Arc::new(Commands { sender }), thread))
    }
}

fn work(coordinator: &Coordinator, status: &StatusSource, receiver: &Receiver<Command>) {
    while let Ok(command) = receiver.recv() {
        let mut frame = Vec::with_capacity(256);
        if command.op == Op::NodeStatus {
            match status() {
                Some(status) => encode_response(&command.header, &status, &mut frame),
                None => encode_error(&command.header, Status::ShuttingDown, &stopping(), &mut frame),
            }
        } else {
            coordinator.handle(command.op, &command.header, &command.body, &mut frame);
        }
        command.replies.frames.lock().push(frame);
        command.replies.waker.wake();
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
    /// The thread for commands.
    pub commands: Arc<Commands>,
}

impl SessionFactory for NodeSessions {
    fn open(&self, peer: Peer, waker: SessionWaker) -> Box<dyn Session> {
        Box::new(NodeSession {
            broker: self.broker.session(peer.address, waker.clone()),
            coordinator: self.coordinator.clone(),
            cluster: self.cluster.clone(),
            commands: self.commands.clone(),
            replies: Arc::new(Replies { frames: Mutex::new(Vec::new()), waker }),
            pending: 0,
        })
    }
}

struct NodeSession {
    broker: BrokerSession,
    coordinator: Arc<Coordinator>,
    cluster: Option<Arc<Cluster>>,
    commands: Arc<Commands>,
    replies: Arc<Replies>,
    /// Commands whose answers are not in the outbox yet.
    pending: usize,
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
            send(&frame, out);
            return Flow::Done;
        }
        if self.pending >= COMMANDS_PENDING_MAX {
            return Flow::Blocked;
        }
        let command = Command { op, header: *header, body: body.to_vec(), replies: self.replies.clone() };
        match self.commands.sender.send(command) {
            Ok(()) => self.pending += 1,
            Err(_) => out.error(header, Status::ShuttingDown, &stopping()),
        }
        Flow::Done
    }

    fn collect(&mut self, out: &mut Outbox) {
        if self.pending == 0 {
            return;
        }
        let frames = std::mem::take(&mut *self.replies.frames.lock());
        for frame in frames {
            self.pending -= 1;
            send(&frame, out);
        }
    }
}

fn stopping() -> ErrorBody {
    ErrorBody::new("the node is stopping")
}

/// Puts a whole frame, as the coordinator encodes it, into the outbox.
fn send(frame: &[u8], out: &mut Outbox) {
    let header = FrameHeader::parse(frame, frame.len()).expect("the coordinator answers with whole frames");
    let mut writer = out.begin(&header);
    writer.body().extend_from_slice(&frame[FRAME_HEADER_BYTES..]);
    writer.finish();
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
        self.pending > 0 || self.broker.is_busy()
    }

    fn on_stop(&mut self, out: &mut Outbox) {
        self.collect(out);
        self.broker.on_stop(out);
    }

    fn on_close(&mut self) {
        self.broker.on_close();
    }
}
