//! Connections of other nodes. Frames for the coordinators are handed to their log's runtime, and answers come back through a
//! wake; those for the backup are its own session's.

use std::sync::Arc;

use kera_backup::BackupSession;
use kera_env::AlignedBuffer;
use kera_protocol::frame::{FRAME_HEADER_BYTES, begin_frame, finish_frame};
use kera_protocol::{ErrorBody, FrameHeader, Op, Status, encode_error};
use kera_raft::Group;
use kera_rpc::{Flow, Outbox, Peer, Place, Session, SessionFactory, SessionWaker};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::backups::BackupRole;
use super::moves::MovesRole;
use super::returning::ReturningRole;
use super::transactions::KafkaRole;

/// Requests of one connection that may be unanswered before it is read no further.
const PENDING_MAX: usize = 1024;

/// Makes the sessions.
pub(super) struct ClusterSessions {
    pub(super) group: Arc<Group>,
    pub(super) backup: Arc<BackupRole>,
    pub(super) moves: Arc<MovesRole>,
    pub(super) returning: Arc<ReturningRole>,
    pub(super) kafka: Arc<KafkaRole>,
    pub(super) runtime: Handle,
}

struct Replies {
    frames: Mutex<Vec<Vec<u8>>>,
    waker: SessionWaker,
}

impl SessionFactory for ClusterSessions {
    fn open(&self, _peer: Peer, waker: SessionWaker) -> Box<dyn Session> {
        let replies = Arc::new(Replies { frames: Mutex::default(), waker });
        Box::new(ClusterSession {
            group: self.group.clone(),
            role: self.backup.clone(),
            moves: self.moves.clone(),
            returning: self.returning.clone(),
            kafka: self.kafka.clone(),
            backup: None,
            runtime: self.runtime.clone(),
            replies,
            pending: 0,
        })
    }
}

struct ClusterSession {
    group: Arc<Group>,
    role: Arc<BackupRole>,
    moves: Arc<MovesRole>,
    returning: Arc<ReturningRole>,
    kafka: Arc<KafkaRole>,
    /// There from the first request for it on.
    backup: Option<BackupSession>,
    runtime: Handle,
    replies: Arc<Replies>,
    /// Requests whose answers are not in the outbox yet.
    pending: usize,
}

impl ClusterSession {
    fn collect(&mut self, out: &mut Outbox) {
        for frame in std::mem::take(&mut *self.replies.frames.lock()) {
            self.pending -= 1;
            let header = FrameHeader::parse(&frame, frame.len()).expect("a frame that was encoded here");
            let mut writer = out.begin(&header);
            writer.body().extend_from_slice(&frame[FRAME_HEADER_BYTES..]);
            writer.finish();
        }
    }
}

impl ClusterSession {
    fn backup(&mut self) -> Option<&mut BackupSession> {
        if self.backup.is_none() {
            self.backup = self.role.session(self.replies.waker.clone());
        }
        self.backup.as_mut()
    }

    fn for_backup(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        match self.backup() {
            Some(backup) => backup.on_frame(header, body, out),
            None => {
                // Its files are being read, or it is none.
                out.error(header, Status::Overloaded, &ErrorBody::new("this node keeps no copies yet"));
                Flow::Done
            }
        }
    }
}

impl Session for ClusterSession {
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        if Op::from_u16(header.op).is_some_and(BackupSession::serves) {
            return self.for_backup(header, body, out);
        }
        let is_nodes = |op: &Op| matches!(op, Op::LetGo | Op::OfferGroups | Op::NodeLoad);
        let is_served = |op: &Op| (80..90).contains(&(*op as u16)) || is_nodes(op) || KafkaRole::serves(*op);
        let Some(op) = Op::from_u16(header.op).filter(is_served) else {
            out.error(header, Status::NotSupported, &ErrorBody::new("this address is for nodes of the cluster"));
            return Flow::Done;
        };
        if self.pending >= PENDING_MAX {
            return Flow::Blocked;
        }
        self.pending += 1;
        let (group, replies, header, body) = (self.group.clone(), self.replies.clone(), *header, body.to_vec());
        let (moves, returning, kafka) = (self.moves.clone(), self.returning.clone(), self.kafka.clone());
        self.runtime.spawn(async move {
            let mut frame = Vec::new();
            let answer = match op {
                Op::LetGo => moves.let_go(header.version, &body).await,
                Op::OfferGroups => returning.offered(header.version, &body).await,
                op if KafkaRole::serves(op) => kafka.answer(op, header.version, body).await,
                op => group.handle(op, header.version, &body).await,
            };
            match answer {
                Ok(answer) => {
                    let start = begin_frame(&header.response(Status::Ok as u16), &mut frame);
                    frame.extend_from_slice(&answer);
                    finish_frame(&mut frame, start, 0);
                }
                Err((status, error)) => encode_error(&header, status, &error, &mut frame),
            }
            replies.frames.lock().push(frame);
            replies.waker.wake();
        });
        Flow::Done
    }

    fn place(&mut self, header: &FrameHeader, start: &[u8]) -> Option<Place> {
        let is_for_backup = Op::from_u16(header.op).is_some_and(BackupSession::serves);
        is_for_backup.then(|| self.backup()).flatten()?.place(header, start)
    }

    fn on_placed(&mut self, header: &FrameHeader, start: &[u8], rest: &mut AlignedBuffer, out: &mut Outbox) -> Flow {
        match &mut self.backup {
            Some(backup) => backup.on_placed(header, start, rest, out),
            None => Flow::Close("a frame was placed that has no place".into()),
        }
    }

    fn on_wake(&mut self, out: &mut Outbox) {
        self.collect(out);
        if let Some(backup) = &mut self.backup {
            backup.on_wake(out);
        }
    }

    fn is_busy(&self) -> bool {
        self.pending > 0 || self.backup.as_ref().is_some_and(|backup| backup.is_busy())
    }
}
