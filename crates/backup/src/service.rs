//! What connections ask for that may wait for a disk: done one after the other on threads of its own, apart from the blocks. A disk of several that does
//! not answer holds up those who want to have what is on it, and nobody who reads from another one: each has its own threads for that, which touch no other disk, and
//! an answer that takes several goes from one's to the next one's. A fence waits for the first disk alone, where it is written. Giving back has one
//! thread: while one disk does not answer nothing is given back from any, and nobody waits for that.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_protocol::{
    ErrorBody, FenceNode, FrameHeader, LaneStates, ListReplicas, Message, NodeFenced, Op, ReadBlocks, ReleaseBlocks,
    Status, encode_error, encode_response,
};
use parking_lot::{Condvar, Mutex};

use crate::answers::{Gathering, Reading};
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
    /// What recoveries and owners ask for, as far as no disk is needed.
    Questions,
    /// The same from a disk.
    Answers(usize),
    /// Gives files back.
    Releases,
}

/// What waits for the threads of one kind.
struct Waiting<T> {
    /// And whether nothing more is to come.
    waiting: Mutex<(VecDeque<T>, bool)>,
    arrived: Condvar,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting { waiting: Mutex::default(), arrived: Condvar::new() }
    }
}

impl<T> Waiting<T> {
    /// Gives it back if nobody may be there any more who would take it.
    fn push(&self, one: T) -> Result<(), T> {
        let mut waiting = self.waiting.lock();
        if waiting.1 {
            return Err(one);
        }
        waiting.0.push_back(one);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for the next one. `None`: nothing more comes.
    fn next(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(one) = waiting.0.pop_front() {
                return Some(one);
            }
            if waiting.1 {
                return None;
            }
            self.arrived.wait(&mut waiting);
        }
    }

    fn stop(&self) {
        self.waiting.lock().1 = true;
        self.arrived.notify_all();
    }
}

/// An answer that is put together from what is on disks, one file after the other.
enum Partial {
    Lanes(Gathering),
    Blocks(Reading),
}

/// One on its way from disk to disk.
struct Answer {
    header: FrameHeader,
    partial: Partial,
    reply: Arc<Mailbox>,
}

/// See the module. Connections bound what they have under way, so the queues are bounded with them.
pub struct BackupService {
    backup: Arc<Backup>,
    fences: Waiting<Command>,
    questions: Waiting<Command>,
    releases: Waiting<Command>,
    /// By disk.
    answers: Vec<Waiting<Answer>>,
}

impl BackupService {
    /// A service for the sessions of a backup.
    pub fn new(backup: Arc<Backup>) -> Arc<BackupService> {
        let (fences, questions, releases) = Default::default();
        let answers = (0..backup.disk_count()).map(|_| Waiting::default()).collect();
        Arc::new(BackupService { backup, fences, questions, releases, answers })
    }

    /// Threads that it needs in [`run`](BackupService::run). Two answer from each disk: one that reads for a recovery must not hold up the others.
    pub fn threads(&self) -> Vec<ServiceThread> {
        let answers = (0..self.answers.len()).flat_map(|disk| [ServiceThread::Answers(disk); 2]);
        [ServiceThread::Fences, ServiceThread::Questions, ServiceThread::Releases].into_iter().chain(answers).collect()
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
        let waiting = match Op::from_u16(command.header.op) {
            Some(Op::FenceNode) => &self.fences,
            Some(Op::ReleaseBlocks) => &self.releases,
            _ => &self.questions,
        };
        if let Err(command) = waiting.push(command) {
            let error = ErrorBody::new("the backup is stopping");
            command.reply.frame(frame(|out| encode_error(&command.header, Status::NotReady, &error, out)));
        }
    }

    /// Does what comes of a kind until [`stop`](BackupService::stop): the main function of its [threads](BackupService::threads).
    pub fn run(&self, thread: ServiceThread) {
        let answer_all = |commands: &Waiting<Command>| {
            while let Some(Command { header, body, reply }) = commands.next() {
                reply.frame(frame(|out| self.answer(&header, &body, out)));
            }
        };
        match thread {
            ServiceThread::Fences => answer_all(&self.fences),
            ServiceThread::Releases => answer_all(&self.releases),
            ServiceThread::Questions => {
                while let Some(command) = self.questions.next() {
                    self.begin(command);
                }
            }
            ServiceThread::Answers(disk) => {
                while let Some(answer) = self.answers.get(disk).and_then(Waiting::next) {
                    self.go_on(answer, Some(disk));
                }
            }
        }
    }

    /// Has its threads return when nothing is left.
    pub fn stop(&self) {
        [&self.fences, &self.questions, &self.releases].into_iter().for_each(Waiting::stop);
        self.answers.iter().for_each(Waiting::stop);
    }

    /// Answers what needs no disk, and finds out which ones all else needs. Waits for none.
    fn begin(&self, command: Command) {
        let Command { header, body, reply } = command;
        let begun = match Op::from_u16(header.op) {
            Some(Op::LaneStates) => begun(&header, &body, |asked: LaneStates| {
                self.backup.begin_lane_states(header.version, &asked).map(Partial::Lanes)
            }),
            Some(Op::ReadBlocks) => {
                begun(&header, &body, |asked: ReadBlocks| Ok(Partial::Blocks(self.backup.begin_read(&asked))))
            }
            _ => Err(frame(|out| self.answer(&header, &body, out))),
        };
        match begun {
            Ok(partial) => self.go_on(Answer { header, partial, reply }, None),
            Err(frame) => reply.frame(frame),
        }
    }

    /// Goes on with an answer for as long as it takes what is on this disk, and leaves it to the threads of the next one. Blocks that were read are answered before, and who
    /// asked goes on behind them: what waits for a disk keeps none in memory. Once those threads may have ended it goes on here: nobody waits any more whom that could
    /// hold up.
    fn go_on(&self, mut answer: Answer, disk: Option<usize>) {
        loop {
            let next = match &mut answer.partial {
                Partial::Lanes(gathering) => Ok(gathering.disk()),
                Partial::Blocks(reading) => self.backup.disk_of(reading),
            };
            match next {
                Ok(Some(next)) if disk != Some(next) && answer.has_blocks() => return answer.whole(),
                Ok(Some(next)) if disk != Some(next) => match self.answers[next].push(answer) {
                    Ok(()) => return,
                    Err(back) => answer = back,
                },
                Ok(Some(_)) => {}
                Ok(None) => return answer.whole(),
                Err(error) => return answer.failed(error),
            }
            let went_on = match &mut answer.partial {
                Partial::Lanes(gathering) => self.backup.gather(gathering),
                Partial::Blocks(reading) => self.backup.read_on(reading),
            };
            if let Err(error) = went_on {
                return answer.failed(error);
            }
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
            Some(Op::LaneStates) => {
                done(header, body, out, |asked: LaneStates| backup.lane_states_in(header.version, &asked))
            }
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

impl Answer {
    fn has_blocks(&self) -> bool {
        matches!(&self.partial, Partial::Blocks(reading) if !reading.read.blocks.is_empty())
    }

    fn whole(self) {
        let Answer { header, partial, reply } = self;
        reply.frame(frame(|out| match partial {
            Partial::Lanes(gathering) => encode_response(&header, &gathering.finish(), out),
            Partial::Blocks(reading) => encode_response(&header, &reading.read, out),
        }));
    }

    fn failed(self, error: BackupError) {
        self.reply.frame(frame(|out| refuse(&self.header, error, out)));
    }
}

fn frame(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(&mut frame);
    frame
}

fn refuse(header: &FrameHeader, error: BackupError, out: &mut Vec<u8>) {
    encode_error(header, error.status, &ErrorBody::new(error.reason), out);
}

/// What is begun for a request, or the frame that answers it at once.
fn begun<M: Message>(
    header: &FrameHeader,
    body: &[u8],
    begin: impl FnOnce(M) -> Result<Partial, BackupError>,
) -> Result<Partial, Vec<u8>> {
    let asked = M::decode(header.version, body);
    let asked = asked.map_err(|error| BackupError::new(error.status(), error.to_string()));
    asked.and_then(begin).map_err(|error| frame(|out| refuse(header, error, out)))
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
            Err(error) => refuse(header, error, out),
        },
        Err(error) => encode_error(header, error.status(), &ErrorBody::new(error.to_string()), out),
    }
}
