//! What a real node does on threads that wait: taking streamlets over, and rebuilding them. Here each has a thread of the machine
//! too, but only one of all threads ever runs: the world waits until this one asks a backup something, pauses or is done, and goes on
//! meanwhile as long as it likes. So a run stays a function of its seed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_broker::{
    Broker, Copies, EndedLog, Failure, HandedStates, MendFrom, NoStates, NotGathered, Rebuild, RecoveryProgress, gather,
};
use kera_coordinator::cluster::{Owned, Views};
use kera_format::SegmentId;
use kera_format::vlog_replica::LogId;
use kera_log::{DamagedSegment, Log};
use kera_protocol::{BlocksRead, LaneStateList, LaneStates, ReadBlocks, Status, StreamletRef};

/// What is said of a backup that has not answered in time.
pub(super) const SILENCE: &str = "it does not answer";

/// What is asked of a backup.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Lanes(LaneStates),
    Blocks(ReadBlocks),
}

impl Question {
    /// Of which log, and from which block to which.
    pub(super) fn blocks(&self) -> (LogId, u64, u64) {
        match self {
            Question::Lanes(asked) => (asked.log, asked.from_block, asked.through_block),
            Question::Blocks(asked) => (asked.log, asked.from_block, asked.through_block),
        }
    }
}

/// What a streamlet of a rebuild goes on without, if that fails: who is asked for that once more, and what is left without it.
pub(super) struct LeftOut {
    pub(super) name: StreamletRef,
    pub(super) asked: Vec<EndedLog>,
    pub(super) left: Vec<EndedLog>,
}

/// What it says.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Lanes(Result<LaneStateList, NoStates>),
    Blocks(Result<BlocksRead, String>),
    Said(Result<(), String>),
    GoOn,
}

/// What the thread wants of the world before it goes on.
pub(super) enum Wants {
    Backup(u32, Question),
    /// That the coordinators know with which ends of logs it opens streamlets.
    Ends(Vec<(LogId, u64)>),
    /// Time.
    Pause,
    /// What it is rebuilt from, and how many views that were given up were left out.
    TakenOver(Result<Rebuild, String>, u64),
    /// With how many streamlets have gone on without something.
    Rebuilt(Result<(), String>, u64),
    Mended(SegmentId, Result<(), NotGathered>),
}

/// The payload of the panic with which a thread ends whose process was killed.
struct Killed;

/// See the module.
pub(super) struct Worker {
    replies: Option<Sender<Reply>>,
    wants: Receiver<Wants>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Takes streamlets over from these logs, without those views that were given up which do not come. `live`: nodes that are not known to be lost when it begins.
    pub(super) fn take_over(
        broker: &Arc<Broker>,
        owned: Vec<Owned>,
        (logs, given_up): (Vec<EndedLog>, Views),
        handed: HandedStates,
        live: BTreeSet<u32>,
    ) -> Worker {
        let broker = broker.clone();
        Worker::start(live, move |copies| {
            let taken = broker.take_over_without(&owned, (&logs, &given_up), copies, &handed);
            let left_out = taken.as_ref().map_or(0, |(_, left_out)| left_out.len() as u64);
            let taken = taken.map(|(rebuild, _)| rebuild).map_err(|failure| failure.to_string());
            drop(broker);
            Wants::TakenOver(taken, left_out)
        })
    }

    /// Rebuilds what was taken over, and lets streamlets go on without what is left out for them if nobody gives that. `live`: as above.
    pub(super) fn rebuild(
        broker: &Arc<Broker>,
        rebuild: Rebuild,
        (logs, left_out): (Vec<EndedLog>, Vec<LeftOut>),
        live: BTreeSet<u32>,
    ) -> Worker {
        let broker = broker.clone();
        Worker::start(live, move |copies| {
            let (progress, mut went_on) = (RecoveryProgress::default(), 0);
            let mut done = broker.rebuild(&rebuild, &logs, copies, &progress);
            if is_unreadable(&done) {
                for LeftOut { name, asked, left } in &left_out {
                    let logs = (&asked[..], &left[..]);
                    let goes_on = broker.go_on_without(&rebuild, *name, logs, copies, &progress);
                    went_on += u64::from(goes_on.unwrap_or(false));
                }
                if went_on > 0 {
                    done = broker.rebuild(&rebuild, &logs, copies, &progress);
                }
            }
            drop(broker);
            Wants::Rebuilt(done.map_err(|failure| failure.to_string()), went_on)
        })
    }

    /// Puts a segment that the disk has lost on it again. `live`: as above.
    pub(super) fn mend(log: &Arc<Log>, of: DamagedSegment, from: Vec<MendFrom>, live: BTreeSet<u32>) -> Worker {
        let log = log.clone();
        Worker::start(live, move |copies| {
            let failed = |reason| NotGathered { reason, has_older: false };
            let done = gather(of, &from, copies).and_then(|found| log.mended(found).map_err(failed));
            if done.as_ref().is_err_and(|not| not.has_older) {
                // It is found out once more if the disk does not take that.
                drop(log.note_lost(&of));
            }
            drop(log);
            Wants::Mended(of.id(), done)
        })
    }

    fn start(live: BTreeSet<u32>, work: impl FnOnce(&dyn Copies) -> Wants + Send + 'static) -> Worker {
        let (replies, replied) = channel();
        let (want, wants) = channel();
        let run = move || {
            let asks = Asks { want: want.clone(), replied: Mutex::new(replied), live: Mutex::new(live) };
            // Nothing happens before the world says so.
            if asks.replied().recv().is_err() {
                return;
            }
            let worked = catch_unwind(AssertUnwindSafe(|| work(&asks)));
            match worked {
                Ok(wants) => drop(want.send(wants)),
                Err(payload) if payload.is::<Killed>() => {}
                Err(payload) => resume_unwind(payload),
            }
        };
        let thread = std::thread::Builder::new().name("recovering".into()).spawn(run).expect("a thread");
        Worker { replies: Some(replies), wants, thread: Some(thread) }
    }

    /// Lets it go on until it wants something.
    pub(super) fn resume(&mut self, reply: Reply) -> Wants {
        let sent = self.replies.as_ref().map(|replies| replies.send(reply));
        match self.wants.recv() {
            Ok(wants) => wants,
            Err(_) => {
                // It has panicked, and so does whoever waits for it.
                drop(sent);
                let ended = self.thread.take().map(JoinHandle::join);
                match ended {
                    Some(Err(payload)) => resume_unwind(payload),
                    _ => panic!("a recovery ended without a word"),
                }
            }
        }
    }
}

impl Drop for Worker {
    /// As a kill would: it does nothing more, and has let go of all that it had when this returns.
    fn drop(&mut self) {
        self.replies = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if let (Err(payload), false) = (ended, std::thread::panicking()) {
                resume_unwind(payload);
            }
        }
    }
}

/// Whether something failed since nobody has what it needs.
fn is_unreadable<T>(done: &Result<T, Failure>) -> bool {
    done.as_ref().is_err_and(|failure| failure.status == Status::SegmentUnreadable)
}

struct Asks {
    want: Sender<Wants>,
    replied: Mutex<Receiver<Reply>>,
    /// Whom it takes to be there: who has kept silent is asked after others.
    live: Mutex<BTreeSet<u32>>,
}

impl Asks {
    fn replied(&self) -> std::sync::MutexGuard<'_, Receiver<Reply>> {
        self.replied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, wants: Wants) -> Reply {
        let sent = self.want.send(wants);
        match (sent, self.replied().recv()) {
            (Ok(()), Ok(reply)) => reply,
            _ => resume_unwind(Box::new(Killed)),
        }
    }
}

impl Asks {
    fn note(&self, backup: u32, why: Option<&str>) {
        if why == Some(SILENCE) {
            self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&backup);
        }
    }
}

impl Copies for Asks {
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        match self.ask(Wants::Backup(backup, Question::Lanes(asked.clone()))) {
            Reply::Lanes(answer) => {
                self.note(backup, answer.as_ref().err().map(|why| why.reason.as_str()));
                answer
            }
            other => panic!("lanes were asked for, and {other:?} came"),
        }
    }

    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        // Small answers, so that a rebuild takes many and a lot happens between them.
        let asked = ReadBlocks { max_bytes: 32 << 10, ..asked.clone() };
        match self.ask(Wants::Backup(backup, Question::Blocks(asked))) {
            Reply::Blocks(answer) => {
                self.note(backup, answer.as_ref().err().map(String::as_str));
                answer
            }
            other => panic!("blocks were asked for, and {other:?} came"),
        }
    }

    fn opens_with(&self, ends: &[(LogId, u64)]) -> Result<(), String> {
        match self.ask(Wants::Ends(ends.to_vec())) {
            Reply::Said(heard) => heard,
            other => panic!("the coordinators were told something, and {other:?} came"),
        }
    }

    fn is_there(&self, backup: u32) -> bool {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).contains(&backup)
    }

    fn threads(&self) -> usize {
        1
    }

    fn pause(&self) -> Duration {
        self.ask(Wants::Pause);
        Duration::ZERO
    }
}
