//! What connections ask for that may wait for a disk: done one after the other on threads of its own, apart from the blocks. A disk of several that does
//! not answer holds up those who fence, for a fence is on all of them, and those who give back what is on it, and nobody else: each kind has its own
//! threads.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_protocol::{
    ErrorBody, FenceNode, FrameHeader, LaneStates, ListReplicas, Message, NodeFenced, Op, ReadBlocks, ReleaseBlocks,
    Status, encode_error, encode_response,
};
use parking_lot::{Condvar, Mutex};

use crate::backup::Backup;
use crate::error::BackupError;
use crate::session::Mailbox;

/// A request that waits.
pub(crate) struct Command {
    pub(crate) header: FrameHeader,
    pub(crate) body: Vec<u8>,
    pub(crate) reply: Arc<Mailbox>,
}

/// What a thread of the service does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceThread {
    /// Fences: producers wait for them.
    Fences,
    /// What recoveries and owners ask for.
    Answers,
    /// Gives files back.
    Releases,
}

impl ServiceThread {
    fn of(op: u16) -> ServiceThread {
        match Op::from_u16(op) {
            Some(Op::FenceNode) => ServiceThread::Fences,
            Some(Op::ReleaseBlocks) => ServiceThread::Releases,
            _ => ServiceThread::Answers,
        }
    }
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    stopping: bool,
}

/// What waits for the threads of one kind.
#[derive(Default)]
struct Commands {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

/// See the module. Connections bound what they have under way, so the queues are bounded with them.
pub struct BackupService {
    backup: Arc<Backup>,
    commands: [Commands; 3],
}

impl BackupService {
    /// Threads that it needs in [`run`](BackupService::run). Two answer: one that reads for a recovery must not hold up the others.
    pub const THREADS: [ServiceThread; 4] =
        [ServiceThread::Fences, ServiceThread::Answers, ServiceThread::Answers, ServiceThread::Releases];

    /// A service for the sessions of a backup.
    pub fn new(backup: Arc<Backup>) -> Arc<BackupService> {
        Arc::new(BackupService { backup, commands: Default::default() })
    }

    /// Whose service it is.
    pub fn backup(&self) -> &Arc<Backup> {
        &self.backup
    }

    /// Whether it does `op`.
    pub(crate) fn serves(op: Op) -> bool {
        matches!(op, Op::FenceNode | Op::ListReplicas | Op::LaneStates | Op::ReadBlocks | Op::ReleaseBlocks)
    }

    pub(crate) fn push(&self, command: Command) {
        let commands = &self.commands[ServiceThread::of(command.header.op) as usize];
        commands.waiting.lock().commands.push_back(command);
        commands.arrived.notify_one();
    }

    /// Does what comes of a kind until [`stop`](BackupService::stop): the main function of its [threads](BackupService::THREADS).
    pub fn run(&self, thread: ServiceThread) {
        let commands = &self.commands[thread as usize];
        loop {
            let mut waiting = commands.waiting.lock();
            let command = loop {
                if let Some(command) = waiting.commands.pop_front() {
                    break command;
                }
                if waiting.stopping {
                    return;
                }
                commands.arrived.wait(&mut waiting);
            };
            drop(waiting);
            let mut frame = Vec::new();
            self.answer(&command.header, &command.body, &mut frame);
            command.reply.frame(frame);
        }
    }

    /// Has its threads return when nothing is left.
    pub fn stop(&self) {
        for commands in &self.commands {
            commands.waiting.lock().stopping = true;
            commands.arrived.notify_all();
        }
    }

    /// Does one request and appends its whole answer to `out`: for [`run`](BackupService::run), tests and a simulator.
    pub fn answer(&self, header: &FrameHeader, body: &[u8], out: &mut Vec<u8>) {
        let backup = &self.backup;
        match Op::from_u16(header.op) {
            Some(Op::FenceNode) => done(header, body, out, |asked: FenceNode| {
                backup.fence(asked.node, asked.epoch, &asked.logs).map(|ends| NodeFenced { ends })
            }),
            Some(Op::ListReplicas) => done(header, body, out, |asked: ListReplicas| Ok(backup.list(&asked))),
            Some(Op::LaneStates) => done(header, body, out, |asked: LaneStates| backup.lane_states(&asked)),
            Some(Op::ReadBlocks) => done(header, body, out, |asked: ReadBlocks| backup.read_blocks(&asked)),
            Some(Op::ReleaseBlocks) => done(header, body, out, |asked: ReleaseBlocks| Ok(backup.release(&asked))),
            _ => encode_error(
                header,
                Status::NotSupported,
                &ErrorBody::new("a backup does not serve the operation"),
                out,
            ),
        }
    }
}

fn done<M: Message>(
    header: &FrameHeader,
    body: &[u8],
    out: &mut Vec<u8>,
    act: impl FnOnce(M) -> Result<M::Response, BackupError>,
) {
    match M::decode(header.version, body) {
        Ok(asked) => match act(asked) {
            Ok(answer) => encode_response(header, &answer, out),
            Err(error) => encode_error(header, error.status, &ErrorBody::new(error.reason), out),
        },
        Err(error) => encode_error(header, error.status(), &ErrorBody::new(error.to_string()), out),
    }
}
