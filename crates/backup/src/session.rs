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
/// Blocks of a connection that are not answered, beyond which it waits. Those that are new are bounded by their bytes; whoever sends again what is on its way
/// waits for it once more, and takes memory without bringing any. A broker has four of each log under way.
const BLOCKS_MAX: usize = 1024;

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
        if self.blocks >= BLOCKS_MAX {
            return Flow::Blocked;
        }
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
                if self.commands >= COMMANDS_MAX && op == Op::ReleaseBlocks {
                    // A broker's blocks come behind it, and are not to wait for what others have the service read. The next one covers it.
                    let reason = "too much is under way; blocks are given back with the next request of the log";
                    out.error(header, Status::Overloaded, &ErrorBody::new(reason));
                    return Flow::Done;
                }
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
        if self.blocks >= BLOCKS_MAX {
            return Flow::Blocked;
        }
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

#[cfg(test)]
mod tests {
    use kera_env::{Disk, ManualClock, MemoryDisk, SeededRandom};
    use kera_format::checksum::crc32c;
    use kera_format::vlog_replica::LogId;
    use kera_protocol::codec::Wire;
    use kera_protocol::{Body, ReleaseBlocks};

    use super::*;
    use crate::BackupConfig;

    const LOG: LogId = LogId { node: 1, epoch: 7, vlog: 0 };

    fn open() -> (Arc<Backup>, BackupSession) {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(MemoryDisk::new())];
        let config = BackupConfig::new([9; 16], 4);
        let (backup, _) = Backup::open(config, disks, clock, Arc::new(SeededRandom::new(1))).expect("open");
        (backup.clone(), BackupSession::new(BackupService::new(backup), SessionWaker::detached()))
    }

    fn header(op: Op, correlation: u64) -> FrameHeader {
        FrameHeader { op: op as u16, version: 1, correlation, ..FrameHeader::default() }
    }

    /// The first block of a log, without chunks.
    fn first_block() -> Vec<u8> {
        let mut block = Vec::new();
        StoreHead {
            cluster: [9; 16],
            log: LOG,
            view: 1,
            view_first: 1,
            block: 1,
            written_ms: 7,
            chunk_count: 0,
            chunk_bytes: 0,
            chunks_checksum: crc32c(&[]),
            flags: 0,
        }
        .put(&mut block);
        block
    }

    /// Its first one is on its way for as long as the disk takes.
    #[test]
    fn a_block_that_is_sent_again_and_again_takes_so_much_memory_and_no_more() {
        let ((backup, mut session), mut out, block) = (open(), Outbox::new(1 << 20), first_block());
        let mut flows = (0..10_000).map(|correlation| {
            let header = header(Op::StoreBlock, correlation);
            match correlation % 2 {
                0 => session.on_frame(&header, &block, &mut out),
                _ => session.on_placed(&header, &block, &mut backup.place(0), &mut out),
            }
        });
        assert!(flows.by_ref().take(BLOCKS_MAX).all(|flow| flow == Flow::Done));
        assert!(flows.all(|flow| flow == Flow::Blocked));
        assert_eq!((session.blocks, out.is_empty()), (BLOCKS_MAX, true));
        while backup.run_once(0) != crate::Ran::Idle {}
        session.on_wake(&mut out);
        assert_eq!((session.blocks, out.is_empty()), (0, false));
        assert_eq!(session.on_frame(&header(Op::StoreBlock, 10_000), &block, &mut out), Flow::Done);
    }

    /// Nobody runs the service: its threads are with something else.
    #[test]
    fn blocks_do_not_wait_behind_what_is_given_back() {
        let ((_backup, mut session), mut out) = (open(), Outbox::new(1 << 20));
        let mut body = Vec::new();
        ReleaseBlocks { log: LOG, through_block: 1 }.encode(1, &mut body);
        for correlation in 0..COMMANDS_MAX as u64 {
            assert_eq!(session.on_frame(&header(Op::ReleaseBlocks, correlation), &body, &mut out), Flow::Done);
        }
        assert!(out.is_empty(), "they wait");
        assert_eq!(session.on_frame(&header(Op::ReleaseBlocks, 99), &body, &mut out), Flow::Done);
        assert!(!out.is_empty(), "it is told that it does not");
        assert_eq!(session.on_frame(&header(Op::StoreBlock, 100), &first_block(), &mut out), Flow::Done);
        assert_eq!(session.blocks, 1, "it is on its way");
        // What somebody waits for waits for its turn.
        assert_eq!(session.on_frame(&header(Op::LaneStates, 101), &[], &mut out), Flow::Blocked);
    }
}
