//! What the broker is told of nodes and owners: which streamlets are this node's, in which owner epoch, and who has the others.

use std::sync::{Arc, Weak};

use kera_broker::{Broker, Failure, News, Placing, UNNUMBERED};
use kera_coordinator::cluster::{ClusterState, Telling};
use kera_format::cluster::NodeNumber;
use kera_format::{StreamId, StreamletId};
use kera_protocol::StreamletState;
use kera_raft::{Change, Group, Observer};
use parking_lot::Mutex;

use super::adaptive::Adapting;
use super::copies::Copies;
use super::moves::Moves;
use super::recovery::Recovery;
use super::returning::Returning;
use super::{floors, leftovers};

/// Feeds one broker. Called by the thread that follows the log, and once at the start.
pub(super) struct Feed {
    node: NodeNumber,
    epoch: u32,
    broker: Arc<Broker>,
    group: Weak<Group>,
    /// Held from the look at the state until what comes of it is done: what the broker is told last is newest, and nothing is opened that is being dropped.
    placing: Mutex<()>,
    /// Opens those that a lost broker had.
    recovery: Arc<Recovery>,
    /// Takes and gives those that move.
    moves: Arc<Moves>,
    /// Says which virtual log a streamlet goes to.
    adapting: Arc<Adapting>,
    /// Leaves what it rebuilds to nodes that come back with it.
    returning: Arc<Returning>,
    /// Has logs of streams that are gone serve others.
    copies: Arc<Copies>,
    news: News,
}

impl Feed {
    pub(super) fn new(
        (node, epoch): (NodeNumber, u32),
        (broker, copies): (Arc<Broker>, Arc<Copies>),
        group: Weak<Group>,
        (recovery, moves, adapting, returning): (Arc<Recovery>, Arc<Moves>, Arc<Adapting>, Arc<Returning>),
    ) -> Feed {
        let (placing, news) = (Mutex::default(), News::default());
        Feed { node, epoch, broker, group, placing, recovery, moves, adapting, returning, copies, news }
    }

    /// Tells all that is known, and from then on what changes.
    pub(super) fn begin(self: &Arc<Self>) {
        let Some(group) = self.group.upgrade() else { return };
        self.broker.join_cluster(group.read(ClusterState::cluster), self.node);
        // First: what changes while everything is told is told again. Up to here the log has been told of all streams, and what it is told of behind that comes here as well.
        group.observe(self.clone());
        let version = group.followed();
        Telling::at_start().iter().for_each(|telling| self.tell(&group, telling));
        self.broker.told_up_to(version);
    }

    fn tell(&self, group: &Group, telling: &Telling) {
        match telling {
            Telling::Nodes => self.nodes(group),
            Telling::Everything => self.everything(group),
            Telling::Place(stream) => self.place(group, *stream),
            Telling::Gone(stream) => {
                // Behind who places it just now, at the start, and has looked before it went.
                let _alone = self.placing.lock();
                self.broker.displace_stream(UNNUMBERED, *stream);
                self.copies.look_for_gone();
            }
            Telling::HeardOf(stream) => self.broker.heard_of(*stream),
            Telling::HeldAgain(stream, streamlet) => self.returning.is_held(*stream, *streamlet),
            Telling::AllHeldAgain => self.returning.all_are_held(),
            Telling::Begins(stream, streamlet, lane) => {
                // As it is now: what is told of older entries must not undo what newer ones said.
                let _alone = self.placing.lock();
                if let Some(floor) = group.read(|state| state.floor(*stream, *streamlet, *lane)) {
                    floors::agree_one(self.broker.log(), *stream, *streamlet, *lane, floor.ordinal);
                }
            }
            Telling::DropRebuilt => self.drop_rebuilt(group, |state| state.rebuilt_by_others(self.node, self.epoch)),
            Telling::DropRebuiltOf { stream, first, count } => self.drop_rebuilt(group, |state| {
                let all = (*first..first.saturating_add(*count)).map(StreamletId);
                let rebuilt = all.filter(|at| state.is_rebuilt_by_others(self.node, *stream, *at));
                rebuilt.map(|at| (*stream, at)).collect()
            }),
        }
    }

    fn everything(&self, group: &Group) {
        self.nodes(group);
        let (streams, next) = group.read(|state| {
            let streams: Vec<StreamId> = state.catalog.streams().map(|info| info.id).collect();
            (streams, state.catalog.next_stream())
        });
        let (there, next) = self.broker.known_to(streams, next);
        there.into_iter().for_each(|stream| self.place(group, stream));
        self.broker.heard_of_streams(next);
        self.moves.look();
    }

    fn nodes(&self, group: &Group) {
        let _alone = self.placing.lock();
        self.broker.set_nodes(UNNUMBERED, group.read(ClusterState::node_infos));
    }

    fn place(&self, group: &Group, stream: StreamId) {
        let _alone = self.placing.lock();
        let of = |state: &ClusterState| (state.placed(self.node, stream), state.catalog.find(&stream.into()).is_err());
        let (placed, is_gone) = group.read(of);
        let Some(placed) = placed else {
            // Otherwise it is one of the system's, which each node has for itself.
            if is_gone {
                self.broker.hear_of_no_owners(stream);
            }
            return;
        };
        if let Some(found) = self.broker.log().stream(stream) {
            group.read(|state| leftovers::keep_ends(&found, state, (self.node, self.epoch)));
        }
        let mut known = Known { feed: self, group, stream, takes_over: !placed.lost.is_empty() };
        self.broker.hear_of_owners(stream, &placed.owners, &placed.mine, &placed.lost, &mut known);
    }

    /// Drops what others have rebuilt of this node's, of all that it has or of some.
    fn drop_rebuilt(&self, group: &Group, rebuilt: impl FnOnce(&ClusterState) -> Vec<(StreamId, StreamletId)>) {
        let _alone = self.placing.lock();
        leftovers::drop_rebuilt(self.broker.log(), group.read(rebuilt));
    }
}

/// What this node knows of a stream beside who owns it.
struct Known<'a> {
    feed: &'a Feed,
    group: &'a Group,
    stream: StreamId,
    /// Whether some of its streamlets are to be taken over.
    takes_over: bool,
}

impl Placing for Known<'_> {
    fn set_copies(&mut self, streamlet: StreamletId) {
        self.feed.adapting.set_copies(self.stream, streamlet);
    }

    fn placed(&mut self) {
        self.group.read(|state| floors::agree(self.feed.broker.log(), state, self.stream));
        if self.takes_over {
            self.feed.recovery.look();
        }
    }

    fn handed(&mut self, streamlet: StreamletId) -> Option<StreamletState> {
        self.feed.moves.handed(self.stream, streamlet)
    }

    fn choose_log(&mut self, streamlet: StreamletId) {
        self.feed.adapting.opens(self.stream, streamlet);
    }

    fn failed(&mut self, streamlet: Option<StreamletId>, failure: Failure) {
        let stream = self.stream;
        match streamlet {
            None => {
                tracing::error!(%stream, error = %failure, "the broker does not follow the cluster; restart the node")
            }
            Some(streamlet) => {
                tracing::error!(%stream, %streamlet, error = %failure, "a streamlet cannot be opened; restart the node");
            }
        }
    }
}

impl Observer for Feed {
    fn changed(&self, _index: u64, change: &Change) {
        let Some(group) = self.group.upgrade() else { return };
        change.tellings(self.node).iter().for_each(|telling| self.tell(&group, telling));
        if change.is_told() {
            self.news.note();
        }
        if group.read(|state| change.may_be_waited_for(state)) {
            self.recovery.look();
        }
        if change.is_about_moves() {
            self.moves.look();
        }
    }

    fn told(&self, index: u64) {
        self.news.number(&self.broker, index);
    }
}
