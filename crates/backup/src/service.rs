//! What connections ask for that may wait for a disk: done one after the other on threads of its own, apart from the blocks.

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

#[derive(Default)]
struct Commands {
    fences: VecDeque<Command>,
    others: VecDeque<Command>,
    stopping: bool,
}

/// See the module. Connections bound what they have under way, so the queue is bounded with them.
pub struct BackupService {
    backup: Arc<Backup>,
    commands: Mutex<Commands>,
    arrived: Condvar,
}

impl BackupService {
    /// A service for the sessions of a backup. Needs a thread or two in [`run`](BackupService::run).
    pub fn new(backup: Arc<Backup>) -> Arc<BackupService> {
        Arc::new(BackupService { backup, commands: Mutex::default(), arrived: Condvar::new() })
    }

    /// Whose service it is.
    pub fn backup(&self) -> &Arc<Backup> {
        &self.backup
    }

    /// Whether it does `op`.
    pub(crate) fn serves(op: Op) -> bool {
        matches!(op, Op::FenceNode | Op::ListReplicas | Op::LaneStates | Op::ReadBlocks | Op::ReleaseBlocks)
    }

    /// A fence goes before all others: producers wait for it.
    pub(crate) fn push(&self, command: Command) {
        let mut commands = self.commands.lock();
        match Op::from_u16(command.header.op) {
            Some(Op::FenceNode) => commands.fences.push_back(command),
            _ => commands.others.push_back(command),
        }
        drop(commands);
        self.arrived.notify_one();
    }

    /// Does what comes until [`stop`](BackupService::stop): the main function of its threads.
    pub fn run(&self) {
        loop {
            let mut commands = self.commands.lock();
            let command = loop {
                if let Some(command) = commands.fences.pop_front() {
                    break command;
                }
                if let Some(command) = commands.others.pop_front() {
                    break command;
                }
                if commands.stopping {
                    return;
                }
                self.arrived.wait(&mut commands);
            };
            drop(commands);
            let mut frame = Vec::new();
            self.answer(&command.header, &command.body, &mut frame);
            command.reply.frame(frame);
        }
    }

    /// Has its threads return when nothing is left.
    pub fn stop(&self) {
        self.commands.lock().stopping = true;
        self.arrived.notify_all();
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
