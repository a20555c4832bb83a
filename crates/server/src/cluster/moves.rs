//! Streamlets that move from and to this node (`docs/replication.md`, "A streamlet moves"): the coordinators note moves, the node that
//! gets a streamlet asks the one that has it to let go, and then the coordinators to make it the owner. What it was told goes
//! into the coordinators' log with that, so that whoever recovers it knows where lanes began here.
//!
//! Everything goes on from the state of the coordinators: whoever is started again finds the moves that are still noted there.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kera_broker::{Broker, Moving};
use kera_coordinator::CoordinatorError;
use kera_format::{StreamId, StreamletId};
use kera_protocol::{
    Body, ErrorBody, FinishMove, GroupsGone, HeldGroups, LetGo, LetGone, MoveInfo, Op, Status, StreamletState,
};
use kera_raft::{Group, Transport};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::changing::Changing;

/// Time until something that failed is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// How often it is looked whether what was appended is acknowledged.
const LOOK: Duration = Duration::from_millis(1);
/// How long who asks is left without an answer, in looks.
const LOOKS: u32 = 100;
/// How often it is looked whether groups that are held for others are gone.
const TIDY: Duration = Duration::from_secs(5);
/// Ranges of such groups that are told at once.
const GONE_MAX: usize = 1000;

/// See the module.
pub(super) struct Moves {
    node: u32,
    epoch: u32,
    group: Arc<Group>,
    broker: Arc<Broker>,
    transport: Arc<dyn Transport>,
    /// Makes the copies of what gets another number of them by a move to this node itself.
    changing: Arc<Changing>,
    /// Where the coordinators' log runs.
    runtime: Handle,
    stop: watch::Receiver<bool>,
    work: Mutex<Moving>,
    /// Groups that may be where this start could not read, once it was looked.
    unread: OnceLock<BTreeSet<OfHeld>>,
}

/// A streamlet, and the owner epoch of groups of it.
type OfHeld = (StreamId, u32, u32);

/// The node's moves, as its sessions find them: there once the node's log is whole.
#[derive(Default)]
pub(super) struct MovesRole(OnceLock<Arc<Moves>>);

impl MovesRole {
    pub(super) fn set(&self, moves: Arc<Moves>) {
        let _ = self.0.set(moves);
    }

    /// Answers the next owner of a streamlet of this node.
    pub(super) async fn let_go(&self, version: u8, body: &[u8]) -> Result<Vec<u8>, (Status, ErrorBody)> {
        let malformed = |error: kera_protocol::ProtocolError| (Status::Malformed, ErrorBody::new(error.to_string()));
        let asked = LetGo::decode(version, body).map_err(malformed)?;
        let later = |reason: String| (Status::NotReady, ErrorBody::new(reason));
        let moves = self.0.get().ok_or_else(|| later("the node is starting".into()))?;
        let state = moves.let_go_of(&asked).await.map_err(later)?;
        let mut answer = Vec::new();
        LetGone { state }.encode(version, &mut answer);
        Ok(answer)
    }
}

impl Moves {
    /// `runtime`: that of the coordinators' log. Begins with what is noted already.
    pub(super) fn start(
        (node, epoch): (u32, u32),
        group: &Arc<Group>,
        broker: &Arc<Broker>,
        (transport, changing): (Arc<dyn Transport>, Arc<Changing>),
        runtime: &Handle,
        stop: watch::Receiver<bool>,
    ) -> Arc<Moves> {
        let moves = Arc::new(Moves {
            node,
            epoch,
            group: group.clone(),
            broker: broker.clone(),
            transport,
            changing,
            runtime: runtime.clone(),
            stop: stop.clone(),
            work: Mutex::default(),
            unread: OnceLock::new(),
        });
        let (tidied, mut stop) = (Arc::downgrade(&moves), stop);
        runtime.spawn(async move {
            loop {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep(TIDY) => {}
                }
                let Some(moves) = Weak::upgrade(&tidied) else { return };
                moves.tell_gone().await;
            }
        });
        moves
    }

    /// Moves may have been noted or called off. Never blocks. Called when the state of the coordinators has changed.
    pub(super) fn look(self: &Arc<Self>) {
        let me = (self.node, self.epoch);
        let mut work = self.work.lock();
        let places = work.places();
        // What is done waits for lanes, and so behind the look. What becomes true meanwhile is looked at next; nothing is let go for it before.
        let (to_me, seen): (Vec<MoveInfo>, HashMap<_, _>) = self.group.read(|state| {
            let to_me = state.move_infos().filter(|of| of.to == self.node);
            let one = |(stream, at): (StreamId, StreamletId)| {
                ((stream, at), (state.move_of(stream, at.0).is_some(), state.owned_in(me, stream, at.0)))
            };
            (to_me.collect(), places.into_iter().map(one).collect())
        });
        let is_moving = |stream, at| seen.get(&(stream, at)).is_some_and(|(is_moving, _)| *is_moving);
        let owned = |stream, at| seen.get(&(stream, at)).and_then(|(_, owned)| *owned);
        let coming = work.look(&self.broker, to_me, is_moving, owned);
        for of in coming {
            let (moves, mut stop) = (self.clone(), self.stop.clone());
            self.runtime.spawn(async move {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => {}
                    () = moves.take(of) => {}
                }
                moves.work.lock().over(of.number);
            });
        }
    }

    /// Lets go of a streamlet for a move that is noted; what the next owner must know, when it is final.
    fn let_go(&self, asked: &LetGo) -> Result<Option<StreamletState>, String> {
        let LetGo { number, stream, streamlet } = *asked;
        // Held over the look at the state, so that a move that is called off now is seen by `look` with what is noted here.
        let mut work = self.work.lock();
        let noted = self.group.read(|state| {
            let is_noted = state.is_to_let_go(number, stream, streamlet.0, self.node);
            is_noted.then(|| state.handed_room(stream, streamlet.0))
        });
        work.let_go(&self.broker, asked, noted)
    }

    /// The same until it is final, for a while: then nothing, and whoever asks asks again.
    async fn let_go_of(&self, asked: &LetGo) -> Result<Vec<u8>, String> {
        for _ in 0..LOOKS {
            if let Some(state) = self.let_go(asked)? {
                return Ok(kera_protocol::codec::bytes_of(&state));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(Vec::new())
    }

    /// Takes a streamlet, for as long as its move is noted.
    async fn take(&self, of: MoveInfo) {
        let mut said = false;
        loop {
            let from = self.group.read(|state| {
                let noted = state.moves().contains_key(&of.number);
                noted.then(|| state.node(of.from).map(|node| node.doors.cluster.clone()).unwrap_or_default())
            });
            let Some(address) = from else { return };
            match self.try_to_take(&of, &address).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(reason) => {
                    if !said {
                        tracing::info!(number = of.number, from = of.from, reason, "a streamlet does not come yet");
                    }
                    said = true;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Steps 2 to 4. False: not all that was appended is acknowledged yet.
    async fn try_to_take(&self, of: &MoveInfo, address: &str) -> Result<bool, String> {
        let MoveInfo { number, stream, streamlet, from, .. } = *of;
        let asked = LetGo { number, stream, streamlet };
        let state = if from == self.node {
            self.let_go_of(&asked).await?
        } else {
            let owner = self.group.read(|state| state.told_owner(stream, streamlet));
            self.broker.forget_leftovers(stream, streamlet, &owner).map_err(|failure| failure.to_string())?;
            let (version, mut body) = (Op::LetGo.version_max(), Vec::new());
            asked.encode(version, &mut body);
            let answer = self.transport.call(from.into(), address, Op::LetGo, body).await?;
            LetGone::decode(version, &answer).map_err(|error| error.to_string())?.state
        };
        if state.is_empty() {
            return Ok(false);
        }
        let copied = if from == self.node { self.changing.of_move(stream, streamlet) } else { None };
        let copied = match copied {
            Some(of) if self.changing.finish(&of, number).await => Some(of),
            _ => None,
        };
        let room = self.group.read(|state| state.handed_kept(stream, streamlet.0));
        let kept = self.work.lock().told(of, &state, room).map_err(|error| error.to_string())?;
        let mut finished = None;
        if let Some(of) = &copied {
            match self.changing.tell_moved(of, number, kept.clone()).await {
                // The move goes on without: writers wait.
                Err(error) if !matches!(error, CoordinatorError::NoLeader(_)) => {
                    tracing::info!(%stream, %streamlet, %error, "a streamlet does not get its copies yet");
                }
                other => finished = Some(other),
            }
        }
        let finished = match finished {
            Some(finished) => finished,
            None => {
                let finish = FinishMove { number, node: self.node, epoch: self.epoch, state: kept };
                self.group.ask(&finish).await.map(drop)
            }
        };
        match finished {
            Ok(_) => Ok(true),
            // The first answer may have been lost: the state says whether it is done.
            Err(CoordinatorError::NoLeader(reason)) => Err(reason),
            Err(error) => {
                tokio::time::sleep(RETRY).await;
                Err(error.to_string())
            }
        }
    }

    /// What the last owner of a streamlet handed over, for this node to open it: all of it if it was told just now, otherwise what the
    /// coordinators keep.
    pub(super) fn handed(&self, stream: StreamId, streamlet: StreamletId) -> Option<StreamletState> {
        let kept = self.group.read(|state| state.handed(stream, streamlet.0))?;
        let handed = self.work.lock().handed(stream, streamlet, &kept);
        handed
            .inspect_err(|error| tracing::error!(%stream, %streamlet, %error, "what was handed over cannot be read"))
            .ok()
    }

    /// Tells the coordinators of groups that this node holds and that retention has taken.
    async fn tell_gone(&self) {
        let (group, broker, node) = (self.group.clone(), self.broker.clone(), self.node);
        // It may hold some of each streamlet that there is, and this runtime is the one that says that the node lives.
        let look = move || broker.gone_groups(group.read(|state| state.held_by(node)));
        let Ok(mut gone) = self.runtime.spawn_blocking(look).await else { return };
        let unread = self.unread.get_or_init(|| may_be_unread(&self.broker, &gone));
        gone.retain(|of| !unread.contains(&of_held(of)));
        gone.truncate(GONE_MAX);
        if gone.is_empty() {
            return;
        }
        let message = GroupsGone { node: self.node, epoch: self.epoch, groups: gone };
        if let Err(error) = self.group.ask(&message).await {
            tracing::debug!(%error, "the coordinators do not know yet that old groups are gone");
        }
    }
}

fn of_held(of: &HeldGroups) -> OfHeld {
    (of.stream, of.first, of.owner_epoch)
}

/// Which of the groups that are not there may be on a disk of which the start could not read all: those that were missing from the beginning. Nobody else has those of streamlets with one
/// copy. Said to be gone they would be nobody's, and what a later start reads again nobody would find here.
fn may_be_unread(broker: &Broker, missing: &[HeldGroups]) -> BTreeSet<OfHeld> {
    if !broker.log().lacks_some() {
        return BTreeSet::new();
    }
    if !missing.is_empty() {
        tracing::warn!(
            count = missing.len(),
            "older groups of streamlets that have moved from this node are not found, and a disk could not be read: they stay said to be here until a start reads all of it and does not find them \
             either, or somebody gives them up (kera streamlet accept-loss, with this node stopped)"
        );
    }
    missing.iter().map(of_held).collect()
}
