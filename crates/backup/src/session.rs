//! One connection to a backup: blocks go to the backup where they lie in the read buffer, all else to the service.

use std::sync::Arc;

use kera_env::AlignedBuffer;
use kera_protocol::replication::STORE_HEAD_BYTES;
use kera_protocol::{BlockStored, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Op, Status, StoreHead};
use kera_rpc::{Flow, Outbox, Place, Session, SessionWaker};
use parking_lot::Mutex;

use crate::backup::{Backup, StoreDone, Taken};
use crate::error::BackupError;
use crate::service::{BackupService, Command};

/// Requests of a connection that the service has not answered.
const COMMANDS_MAX: usize = 16;

/// What comes back to a session from other threads.
pub(crate) struct Mailbox {
    replies: Mutex<Vec<Reply>>,
    waker: SessionWaker,
}

enum Reply {
    Stored(u64, Result<BlockStored, BackupError>),
    Frame(Vec<u8>),
}

impl Mailbox {
    fn put(&self, reply: Reply) {
        self.replies.lock().push(reply);
        self.waker.wake();
    }

    pub(crate) fn frame(&self, frame: Vec<u8>) {
        self.put(Reply::Frame(frame));
    }
}

impl StoreDone for Mailbox {
    fn stored(&self, token: u64, result: Result<BlockStored, BackupError>) {
        self.put(Reply::Stored(token, result));
    }

    fn room(&self) {
        self.waker.wake();
    }
}

/// See the module. A node puts it beside the broker's session; on a node that is only a backup it is the whole session.
pub struct BackupSession {
    backup: Arc<Backup>,
    service: Arc<BackupService>,
    mailbox: Arc<Mailbox>,
    done: Arc<dyn StoreDone>,
    blocks: usize,
    commands: usize,
    /// Of this connection's blocks.
    version: u8,
    taken: Vec<Reply>,
}

impl BackupSession {
    /// A session of a connection that `waker` wakes.
    pub fn new(service: Arc<BackupService>, waker: SessionWaker) -> BackupSession {
        let mailbox = Arc::new(Mailbox { replies: Mutex::default(), waker });
        let done = Arc::clone(&mailbox) as Arc<dyn StoreDone>;
        let backup = Arc::clone(service.backup());
        BackupSession { backup, service, mailbox, done, blocks: 0, commands: 0, version: 1, taken: Vec::new() }
    }

    /// Whether it serves `op`.
    pub fn serves(op: Op) -> bool {
        op == Op::StoreBlock || BackupService::serves(op)
    }

    fn store(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        let taken = match StoreHead::parse(header.version, body) {
            Ok((head, chunks)) => self.backup.store(&head, chunks, &self.done, header.correlation),
            Err(error) => Taken::Refused(BackupError::new(error.status(), error.to_string())),
        };
        self.answer(header, taken, out)
    }

    fn answer(&mut self, header: &FrameHeader, taken: Taken, out: &mut Outbox) -> Flow {
        self.version = header.version;
        match taken {
            Taken::Answered(answer) => out.respond(header, &answer),
            Taken::Queued => self.blocks += 1,
            Taken::Full => return Flow::Blocked,
            Taken::Refused(error) => out.error(header, error.status, &ErrorBody::new(error.reason)),
        }
        Flow::Done
    }

    fn collect(&mut self, out: &mut Outbox) {
        std::mem::swap(&mut self.taken, &mut self.mailbox.replies.lock());
        for reply in self.taken.drain(..) {
            match reply {
                Reply::Stored(correlation, result) => {
                    self.blocks -= 1;
                    let (op, version) = (Op::StoreBlock as u16, self.version);
                    let header = FrameHeader { op, version, correlation, ..FrameHeader::default() };
                    match result {
                        Ok(answer) => out.respond(&header, &answer),
                        Err(error) => out.error(&header, error.status, &ErrorBody::new(error.reason)),
                    }
                }
                Reply::Frame(frame) => {
                    self.commands -= 1;
                    if let Ok(header) = FrameHeader::parse(&frame, frame.len()) {
                        let mut writer = out.begin(&header);
                        writer.body().extend_from_slice(&frame[FRAME_HEADER_BYTES..]);
                        writer.finish();
                    }
                }
            }
        }
    }
}

impl Session for BackupSession {
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        match Op::from_u16(header.op) {
            Some(Op::StoreBlock) => self.store(header, body, out),
            Some(op) if BackupService::serves(op) => {
                if self.commands >= COMMANDS_MAX {
                    return Flow::Blocked;
                }
                self.commands += 1;
                let reply = Arc::clone(&self.mailbox);
                self.service.push(Command { header: *header, body: body.to_vec(), reply });
                Flow::Done
            }
            _ => {
                out.error(header, Status::NotSupported, &ErrorBody::new("a backup does not serve the operation"));
                Flow::Done
            }
        }
    }

    /// Chunks of a large block go from the socket to where they are written from.
    fn place(&mut self, header: &FrameHeader, start: &[u8]) -> Option<Place> {
        if Op::from_u16(header.op) != Some(Op::StoreBlock) {
            return None;
        }
        // What is wrong with it is told when it has come as a whole.
        let head = StoreHead::parse_start(header.version, start).ok()?;
        let chunk_bytes = head.chunk_bytes as usize;
        let is_whole = FRAME_HEADER_BYTES + STORE_HEAD_BYTES + chunk_bytes == header.frame_bytes as usize;
        is_whole.then(|| Place { start_bytes: STORE_HEAD_BYTES, buffer: self.backup.place(chunk_bytes) })
    }

    fn on_placed(&mut self, header: &FrameHeader, start: &[u8], rest: &mut AlignedBuffer, out: &mut Outbox) -> Flow {
        let taken = match StoreHead::parse_start(header.version, start) {
            Ok(head) => self.backup.store_placed(&head, rest, &self.done, header.correlation),
            Err(error) => Taken::Refused(BackupError::new(error.status(), error.to_string())),
        };
        self.answer(header, taken, out)
    }

    fn on_wake(&mut self, out: &mut Outbox) {
        self.collect(out);
    }

    fn is_busy(&self) -> bool {
        self.blocks + self.commands > 0
    }
}
