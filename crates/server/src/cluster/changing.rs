//! What this node does for streams that get another number of copies (`docs/replication.md`, "Another number of copies"): copies all that it has of
//! their streamlets in logs with as many backups, says so of what it holds for others, and has what it owns move to itself, by which it goes on in
//! such a log.
//!
//! Driven by the thread that copies again; the end of a move comes from whoever carries it out, while writers wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_broker::{Broker, CopyRun, CopyStep};
use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::ToCopy;
use kera_format::{StreamId, StreamletId};
use kera_log::{DurabilitySink, Log, Streamlet, Tenure};
use kera_protocol::{CopiesMade, MoveInfo, RenewOwner};
use kera_raft::Group;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::ask_while;
use super::copies::Copies;

type Place = (StreamId, StreamletId);

/// Time between two looks whether the last copies are durable, while writers wait.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes that are given at once while writers wait: few are left by then.
const LAST_BYTES: u64 = 4 << 20;
/// How long writers wait for these at most.
const LAST: Duration = Duration::from_secs(1);
/// Streamlets of a node that move to itself at a time.
const MOVES_MAX: usize = 16;
/// Time until a streamlet that did not get its copies by a move is moved again, and how often that doubles.
const RETRY: Duration = Duration::from_secs(2);
const DOUBLES_MAX: u32 = 5;

/// What was copied of a streamlet.
#[derive(Default)]
struct Run {
    /// For how many copies.
    copies: u32,
    run: CopyRun,
    /// Moves that were asked for, and when the next one may be.
    moves: u32,
    not_before: Option<Instant>,
}

/// See the module.
pub(super) struct Changing {
    node: u32,
    epoch: u32,
    group: Arc<Group>,
    broker: Arc<Broker>,
    copies: Arc<Copies>,
    /// Where the coordinators' log runs.
    runtime: Handle,
    runs: Mutex<HashMap<Place, Run>>,
}

impl Changing {
    pub(super) fn new(
        (node, epoch): (u32, u32),
        group: &Arc<Group>,
        broker: &Arc<Broker>,
        copies: &Arc<Copies>,
        runtime: &Handle,
    ) -> Arc<Changing> {
        let (group, broker, copies, runtime) = (group.clone(), broker.clone(), copies.clone(), runtime.clone());
        Arc::new(Changing { node, epoch, group, broker, copies, runtime, runs: Mutex::default() })
    }

    /// What is to be done. What was copied of anything else is forgotten.
    pub(super) fn work(&self) -> Vec<ToCopy> {
        let work = self.group.read(|state| state.to_copy(self.node, self.epoch));
        let mut runs = self.runs.lock();
        if !runs.is_empty() {
            let wanted: HashMap<Place, u32> =
                work.iter().map(|of| ((of.stream, StreamletId(of.streamlet)), of.wanted)).collect();
            runs.retain(|place, of| wanted.get(place) == Some(&of.copies));
        }
        work
    }

    fn place(&self, of: &ToCopy) -> Option<Arc<Streamlet>> {
        self.broker.log().stream(of.stream)?.streamlet(StreamletId(of.streamlet)).cloned()
    }

    /// Gives some more of what is closed to the log that makes the copies.
    pub(super) fn step(&self, of: &ToCopy, bytes: u64) -> CopyStep {
        self.step_with(of, |run, log, place, sink| run.step(log, place, sink, bytes))
    }

    fn step_with(
        &self,
        of: &ToCopy,
        step: impl FnOnce(&mut CopyRun, &Log, &Streamlet, &dyn DurabilitySink) -> CopyStep,
    ) -> CopyStep {
        let (Some(stream), Some(place)) = (self.broker.log().stream(of.stream), self.place(of)) else {
            return CopyStep::Later;
        };
        let log = self.copies.log_with(of.wanted, of.stream, place.id(), &stream.options());
        let mut runs = self.runs.lock();
        let known = runs.entry((of.stream, place.id())).or_default();
        if known.copies != of.wanted {
            *known = Run { copies: of.wanted, ..Run::default() };
        }
        step(&mut known.run, self.broker.log(), &place, &*log.behind())
    }

    /// Everything that is closed has its copies: tells it, or asks for the move with which the rest gets them. What is not agreed to is asked for again
    /// when it is looked again. Waits for the coordinators as long as it `goes_on`.
    pub(super) fn made(&self, of: &ToCopy, goes_on: impl Fn() -> bool) {
        let (node, epoch, stream, streamlet) = (self.node, self.epoch, of.stream, StreamletId(of.streamlet));
        let coordinators = (&self.group, &self.runtime);
        let asked = if of.is_owner {
            let is_own = |of: &MoveInfo| (of.from, of.to) == (node, node);
            let may = self.group.read(|state| {
                let moving = state.move_infos().filter(is_own).count();
                moving < MOVES_MAX && state.may_be_copied(stream, of.streamlet)
            });
            let is_here = self.place(of).is_some_and(|place| place.tenure() == Tenure::Here);
            if !may || !is_here || !self.may_move_now(of) {
                return;
            }
            let renew = RenewOwner { stream, streamlet, node, epoch };
            ask_while(coordinators, renew, goes_on).map(drop)
        } else {
            let (copies, number, state) = (of.wanted, 0, Vec::new());
            // As it was before it was looked at what is there: what came since has not been copied.
            let owner_epoch = of.owner_epoch;
            let made = CopiesMade { node, epoch, stream, streamlet, copies, number, state, owner_epoch };
            ask_while(coordinators, made, goes_on).map(drop)
        };
        if let Err(error) = asked {
            tracing::info!(%stream, %streamlet, copies = of.wanted, %error, "a streamlet does not get its copies yet");
        }
    }

    /// Whether it is time to have a streamlet move: writers wait for each move, also for one that comes to nothing.
    fn may_move_now(&self, of: &ToCopy) -> bool {
        let (now, mut runs) = (Instant::now(), self.runs.lock());
        let known = runs.entry((of.stream, StreamletId(of.streamlet))).or_default();
        if known.not_before.is_some_and(|at| now < at) {
            return false;
        }
        known.copies = of.wanted;
        known.not_before = Some(now + RETRY * (1 << known.moves.min(DOUBLES_MAX)));
        known.moves += 1;
        true
    }

    /// Whether a streamlet that moves to this node itself is to have another number of copies with that.
    pub(super) fn of_move(&self, stream: StreamId, streamlet: StreamletId) -> Option<ToCopy> {
        let is_it = |of: &ToCopy| (of.stream, of.streamlet) == (stream, streamlet.0) && of.is_owner;
        let work = self.group.read(|state| state.to_copy(self.node, self.epoch));
        work.into_iter().find(is_it)
    }

    /// Makes the copies of what is left, when the streamlet is let go and all of it is acknowledged. False: the move goes on without another number of
    /// copies: it was wanted for another reason, or writers would wait for too long.
    pub(super) async fn finish(&self, of: &ToCopy, number: u64) -> bool {
        if !of.is_more() {
            return true;
        }
        if !self.runs.lock().contains_key(&(of.stream, StreamletId(of.streamlet))) {
            return false;
        }
        let until = Instant::now() + LAST;
        loop {
            match self.step_with(of, |run, log, place, sink| run.last_step(log, place, sink, LAST_BYTES)) {
                CopyStep::Done => return true,
                CopyStep::Gave(_) => tokio::task::yield_now().await,
                CopyStep::Later => tokio::time::sleep(LOOK).await,
                CopyStep::Stuck(_) => return false,
            }
            if Instant::now() > until || !self.group.read(|state| state.moves().contains_key(&number)) {
                return false;
            }
        }
    }

    /// The end of such a move.
    pub(super) async fn tell_moved(&self, of: &ToCopy, number: u64, state: Vec<u8>) -> Result<(), CoordinatorError> {
        let (node, epoch, stream, streamlet) = (self.node, self.epoch, of.stream, StreamletId(of.streamlet));
        let (copies, owner_epoch) = (of.wanted, of.owner_epoch);
        let made = CopiesMade { node, epoch, stream, streamlet, copies, number, state, owner_epoch };
        self.group.ask(&made).await.map(drop)
    }
}
