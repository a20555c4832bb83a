//! A node that comes back offers what it still has to those who took it over and are rebuilding it; and how such an owner answers
//! (`docs/replication.md`, "A returning node holds again what it has").
//!
//! Nothing waits for it: the owner goes on rebuilding until the coordinators say that the node holds the groups, and what comes of an offer that was
//! not answered both of them see in the coordinators' log.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kera_broker::{Broker, NotTaken};
use kera_coordinator::cluster::{ClusterState, Offerable};
use kera_format::{StreamId, StreamletId, level};
use kera_protocol::{Body, ErrorBody, GiveBack, GroupsOffered, OfferGroups, ReturnGroups, Status};
use kera_raft::{Group, Transport, ask};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Came;
use super::leftovers::Cut;
use super::recovery::Recovery;

/// Time until it is offered again what was not taken: at first, and at most. An owner may not know yet where its lanes end.
const AGAIN: Duration = Duration::from_millis(200);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// What an owner has rebuilt of groups that another node holds stays for so long, for readers that were on their way to it.
const LINGER: Duration = Duration::from_millis(300);

/// See the module.
pub(super) struct Returning {
    node: u32,
    epoch: u32,
    group: Arc<Group>,
    broker: Arc<Broker>,
    recovery: Arc<Recovery>,
    transport: Arc<dyn Transport>,
    /// Where the coordinators' log runs.
    runtime: Handle,
    /// Of which the start has cut something.
    cut: HashSet<(StreamId, StreamletId)>,
    /// Of which some of that is kept.
    cut_off: Mutex<CutOff>,
}

/// Streamlets of which a start has cut something off that may count yet.
pub(super) type CutOff = Vec<(StreamId, StreamletId)>;

/// The same, as the node's sessions find it: there once the node's log is whole.
#[derive(Default)]
pub(super) struct ReturningRole(OnceLock<Arc<Returning>>);

impl ReturningRole {
    pub(super) fn set(&self, returning: Arc<Returning>) {
        let _ = self.0.set(returning);
    }

    /// Answers a node that has come back.
    pub(super) async fn offered(&self, version: u8, body: &[u8]) -> Result<Vec<u8>, (Status, ErrorBody)> {
        let malformed = |error: kera_protocol::ProtocolError| (Status::Malformed, ErrorBody::new(error.to_string()));
        let offered = OfferGroups::decode(version, body).map_err(malformed)?;
        let later = |reason: String| (Status::NotReady, ErrorBody::new(reason));
        let returning = self.0.get().ok_or_else(|| later("the node is starting".into()))?;
        let said = returning.take(&offered).await.map_err(later)?;
        let mut answer = Vec::new();
        said.encode(version, &mut answer);
        Ok(answer)
    }
}

/// Whether a node offers nothing but the place of a streamlet, to get it back.
fn is_nothing(offer: &OfferGroups) -> bool {
    offer.lanes.is_empty() && offer.cut_off.is_empty()
}

impl Returning {
    /// Who came with all it had acknowledged has something to offer.
    pub(super) fn start(
        Came { node, epoch, has_all, .. }: Came,
        group: &Arc<Group>,
        broker: &Arc<Broker>,
        (recovery, transport, Cut { of: cut, kept }): (&Arc<Recovery>, Arc<dyn Transport>, Cut),
        runtime: &Handle,
        mut stop: watch::Receiver<bool>,
    ) -> Arc<Returning> {
        let returning = Arc::new(Returning {
            node,
            epoch,
            group: group.clone(),
            broker: broker.clone(),
            recovery: recovery.clone(),
            transport,
            runtime: runtime.clone(),
            cut,
            cut_off: Mutex::new(kept),
        });
        if has_all {
            let offering = Arc::downgrade(&returning);
            runtime.spawn(async move {
                let mut pause = AGAIN;
                loop {
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    let Some(returning) = Weak::upgrade(&offering) else { return };
                    let has_news = returning.offer_all().await;
                    pause = if has_news { AGAIN } else { (2 * pause).min(AGAIN_MAX) };
                }
            });
        }
        returning
    }

    /// Offers what this node has to those who rebuild it. Whether somebody took some of it, or was asked for the first time.
    async fn offer_all(&self) -> bool {
        let mut has_news = false;
        let (mut all, back) = self.group.read(|state| {
            let offerable: BTreeSet<Offerable> = state.offerable(self.node, self.epoch).into_iter().collect();
            (offerable, state.may_get_back(self.node, self.epoch))
        });
        all.extend(&back);
        for of in all {
            let (stream, streamlet) = (of.stream, StreamletId(of.streamlet));
            if !self.broker.has_let_go(stream, streamlet, (of.owner, of.owner_epoch)) {
                continue;
            }
            // From here on its copies are kept, whatever becomes of the answer.
            // What it gets back may be nothing but its place.
            let nothing = || (back.contains(&of) && self.broker.has_nothing_of(stream, streamlet)).then(Vec::new);
            let whole = || self.broker.whole_lanes(stream, streamlet).or_else(nothing);
            let lanes = self.recovery.offers(|offers| offers.make(of, whole));
            let Some(lanes) = lanes else { continue };
            self.broker.offers(stream, streamlet, Some(of.owner_epoch));
            let (node, epoch, owner_epoch) = (self.node, self.epoch, of.owner_epoch);
            let cut_off = self.broker.cut_off_lanes(stream, streamlet);
            let let_go = self.broker.let_go_lanes(stream, streamlet);
            let is_uncut = !self.cut.contains(&(stream, streamlet));
            let offer = OfferGroups { node, epoch, stream, streamlet, owner_epoch, lanes, cut_off, let_go, is_uncut };
            match self.offer(&of, &offer).await {
                // It was there to be given back, and its owner has opened it.
                Ok(answer) if is_nothing(&offer) && !answer.is_taken => self.refused(of),
                Ok(answer) => has_news |= self.answered(of, &answer),
                Err(reason) => {
                    tracing::debug!(%stream, %streamlet, owner = of.owner, reason, "it is not decided yet whether older groups are held here again");
                }
            }
        }
        self.let_go_of_what_is_decided();
        has_news
    }

    /// What the owner says of an offer. Whether it is to be offered again soon, or others may be.
    fn answered(&self, of: Offerable, answer: &GroupsOffered) -> bool {
        let Offerable { stream, streamlet, owner, .. } = of;
        let place = StreamletId(streamlet);
        if answer.is_taken {
            tracing::info!(%stream, streamlet, owner, "older groups are held here again and need not be rebuilt");
            return true;
        }
        if !answer.lacking.is_empty() {
            match self.broker.take_up_lacking(stream, place, &answer.lacking) {
                Ok(true) => {
                    let records =
                        answer.lacking.iter().map(|lane| lane.next_ordinal.saturating_sub(lane.first_ordinal));
                    let records = records.fold(0, u64::saturating_add);
                    tracing::info!(%stream, streamlet, owner, records, "what had been under way was found in the logs, and is taken up again");
                    if let Some(lanes) = self.broker.whole_lanes(stream, place) {
                        self.recovery.offers(|offers| offers.has_taken_up(of, lanes));
                        return true;
                    }
                }
                Ok(false) => {}
                Err(full) => {
                    tracing::debug!(%stream, streamlet, bytes = full.bytes, "what is lacking is taken up again when there is room in the arena");
                    return false;
                }
            }
        }
        tracing::info!(%stream, streamlet, owner, "what is here of older groups is not all, or has no copies; they are rebuilt");
        self.refused(of);
        true
    }

    fn refused(&self, of: Offerable) {
        let (stream, streamlet) = (of.stream, StreamletId(of.streamlet));
        self.recovery.offers(|offers| offers.refuse(of));
        self.broker.offers(stream, streamlet, None);
        self.broker.let_go_of_cut_off(stream, streamlet);
    }

    /// What was cut off is kept as long as it may be that it counts.
    fn let_go_of_what_is_decided(&self) {
        let mut cut_off = self.cut_off.lock();
        if cut_off.is_empty() {
            return;
        }
        let may_count = |state: &ClusterState, (stream, streamlet): &(StreamId, StreamletId)| {
            state.may_come_back(*stream, streamlet.0, (self.node, self.epoch))
        };
        let open = |state: &ClusterState| cut_off.iter().copied().partition(|of| may_count(state, of));
        let (open, decided): (CutOff, CutOff) = self.group.read(open);
        *cut_off = open;
        decided.into_iter().for_each(|(stream, streamlet)| self.broker.let_go_of_cut_off(stream, streamlet));
    }

    async fn offer(&self, of: &Offerable, offer: &OfferGroups) -> Result<GroupsOffered, String> {
        let address = self.group.read(|state| state.node(of.owner).map(|node| node.doors.cluster.clone()));
        let address = address.ok_or("its owner is not in the cluster any more")?;
        ask(&*self.transport, of.owner.into(), &address, offer).await
    }

    /// A node says that it has older groups which this one rebuilds. It is answered when the coordinators know that it holds them, or that it never does, or must
    /// have more first; an error: it may be asked again.
    async fn take(&self, offered: &OfferGroups) -> Result<GroupsOffered, String> {
        let OfferGroups { stream, streamlet, owner_epoch, .. } = *offered;
        let Some(rebuild) = self.recovery.rebuild_of(stream, streamlet, owner_epoch) else {
            let (node, epoch, to, to_epoch) = (self.node, self.epoch, offered.node, offered.epoch);
            let keeps = self.group.read(|state| state.kept_by_giver(stream, streamlet, owner_epoch));
            let asked = GiveBack { node, epoch, stream, streamlet, owner_epoch, to, to_epoch, keeps };
            self.recovery.ask_back(asked, offered.is_uncut);
            return Err("it has not been taken over yet, or it is rebuilt".into());
        };
        // A leader that does not know of it would say that the other node holds that as well.
        let keeps_own = rebuild.keeps_own(stream, streamlet);
        if keeps_own && self.group.read(|state| state.level() < level::RETURNED_IN_FRONT) {
            return Ok(GroupsOffered { is_taken: false, lacking: Vec::new() });
        }
        let handed = self.recovery.handed_state(stream, streamlet);
        let room = self.group.read(|state| state.handed_kept(stream, streamlet.0));
        let state = match self.broker.check_offer(&rebuild, offered, handed, room) {
            Ok(state) => state,
            Err(NotTaken::Later(why)) => return Err(why),
            Err(NotTaken::Lacking(lacking)) => return Ok(GroupsOffered { is_taken: false, lacking }),
            Err(NotTaken::Never(why)) => {
                if !is_nothing(offered) {
                    tracing::info!(%stream, %streamlet, node = offered.node, why, "a node that came back does not have what is rebuilt");
                }
                return Ok(GroupsOffered { is_taken: false, lacking: Vec::new() });
            }
        };
        let asked = ReturnGroups {
            node: self.node,
            epoch: self.epoch,
            stream,
            streamlet,
            owner_epoch,
            holder: offered.node,
            holder_epoch: offered.epoch,
            state,
        };
        self.group.ask(&asked).await.map_err(|error| error.to_string())?;
        Ok(GroupsOffered { is_taken: true, lacking: Vec::new() })
    }

    /// Another node holds older groups of a streamlet, which this one may be rebuilding. Never blocks.
    pub(super) fn is_held(&self, stream: StreamId, streamlet: u32) {
        let broker = self.broker.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(LINGER).await;
            let bytes = broker.leave_to_holder(stream, StreamletId(streamlet));
            if bytes > 0 {
                tracing::info!(%stream, streamlet, bytes, "older groups are with the node that came back with them");
            }
        });
    }

    /// The same of all streamlets, for this node has heard of it with a snapshot. Never blocks: there may be many of them.
    pub(super) fn all_are_held(&self) {
        let broker = self.broker.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(LINGER).await;
            let leaving = tokio::task::spawn_blocking(move || broker.leave_all_to_holders());
            if let Ok(bytes @ 1..) = leaving.await {
                tracing::info!(bytes, "older groups are with nodes that came back with them");
            }
        });
    }
}
