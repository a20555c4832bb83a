//! What the broker is told of nodes and owners: which streamlets are this node's, in which owner epoch, and who has the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use kera_broker::Broker;
use kera_coordinator::StreamEvent;
use kera_coordinator::cluster::{ClusterState, Placed};
use kera_format::cluster::{ClusterEntry, NodeNumber};
use kera_format::{StreamId, StreamletId};
use kera_log::{Log, Tenure};
use kera_raft::{Change, Group, Observer};
use parking_lot::Mutex;

use super::adaptive::Adapting;
use super::copies::Copies;
use super::moves::Moves;
use super::recovery::Recovery;
use super::returning::Returning;
use super::{floors, leftovers};

/// What the broker is told of a state before all that has changed in it is told. What is looked at is the newest state that there is, and the broker may have to hear
/// of other changes in front of that: had it the number of this one, whoever was told it would look at none of those any more.
const UNNUMBERED: u64 = 0;

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
        self.everything(&group);
        self.broker.told_up_to(version);
    }

    fn everything(&self, group: &Group) {
        self.nodes(group);
        let (streams, next) = group.read(|state| {
            let streams: Vec<StreamId> = state.catalog.streams().map(|info| info.id).collect();
            (streams, state.catalog.next_stream())
        });
        let (there, next) = known_to(self.broker.log(), streams, next);
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
        let Some(placed) = group.read(|state| state.placed(self.node, stream)) else { return };
        // One that is not there comes with a change of its own, or has just gone.
        let Some(found) = self.broker.log().stream(stream) else { return };
        let placed = known_of(placed, found.streamlet_count());
        // Whoever takes them over begins as soon as the broker knows that they are its own.
        placed.lost.iter().for_each(|at| _ = self.adapting.set_copies(stream, StreamletId(*at)));
        if let Err(failure) = self.broker.place_stream(UNNUMBERED, stream, placed.owners.clone()) {
            tracing::error!(%stream, error = %failure, "the broker does not follow the cluster; restart the node");
            return;
        }
        group.read(|state| floors::agree(self.broker.log(), state, stream));
        if !placed.lost.is_empty() {
            self.recovery.look();
        }
        for streamlet in placed.mine {
            let (epoch, streamlet) = (placed.owners[streamlet as usize].epoch, StreamletId(streamlet));
            if self.is_open(stream, streamlet, epoch) {
                continue;
            }
            let handed = self.moves.handed(stream, streamlet);
            self.adapting.opens(stream, streamlet);
            if let Err(failure) = self.broker.open_streamlet(stream, streamlet, epoch, handed.as_ref()) {
                tracing::error!(%stream, %streamlet, error = %failure, "a streamlet cannot be opened; restart the node");
            }
        }
    }

    /// Drops what others have rebuilt of this node's, of all that it has or of some.
    fn drop_rebuilt(&self, group: &Group, rebuilt: impl FnOnce(&ClusterState) -> Vec<(StreamId, StreamletId)>) {
        let _alone = self.placing.lock();
        leftovers::drop_rebuilt(self.broker.log(), group.read(rebuilt));
    }

    fn drop_all_rebuilt(&self, group: &Group) {
        self.drop_rebuilt(group, |state| state.rebuilt_by_others(self.node, self.epoch));
    }

    /// Whether this node takes writes of it in this owner epoch already.
    fn is_open(&self, stream: StreamId, streamlet: StreamletId, epoch: u32) -> bool {
        let found = self.broker.log().stream(stream);
        let place = found.as_ref().and_then(|stream| stream.streamlet(streamlet));
        place.is_some_and(|place| place.tenure() != Tenure::Elsewhere && place.owner_epoch() == epoch)
    }
}

impl Observer for Feed {
    fn changed(&self, _index: u64, change: &Change) {
        let Some(group) = self.group.upgrade() else { return };
        match change {
            Change::Replaced => {
                self.everything(&group);
                // Nobody is told one by one of what others have rebuilt before it, and what was given up.
                self.drop_all_rebuilt(&group);
            }
            Change::Stream(StreamEvent::Deleted(info)) => {
                self.broker.displace_stream(UNNUMBERED, info.id);
                self.copies.look_for_gone();
            }
            Change::Stream(StreamEvent::Altered { after: info, .. } | StreamEvent::Created(info)) => {
                self.place(&group, info.id);
            }
            Change::Cluster(
                ClusterEntry::OwnerChanged { stream, .. }
                | ClusterEntry::GroupsHeld { stream, .. }
                | ClusterEntry::GroupsLost { stream, .. },
            ) => self.place(&group, *stream),
            Change::Cluster(ClusterEntry::GroupsReturned { stream, streamlet, .. }) => {
                self.place(&group, *stream);
                self.returning.is_held(*stream, *streamlet);
            }
            Change::Cluster(ClusterEntry::LaneBegins { stream, streamlet, lane, .. }) => {
                // As it is now: what is told of older entries must not undo what newer ones said.
                let _alone = self.placing.lock();
                if let Some(floor) = group.read(|state| state.floor(*stream, *streamlet, *lane)) {
                    floors::agree_one(self.broker.log(), *stream, *streamlet, *lane, floor.ordinal);
                }
            }
            Change::Cluster(ClusterEntry::OwnerReturned { .. }) => self.everything(&group),
            Change::Cluster(ClusterEntry::LogGivenUp { log }) if log.node == self.node => {
                self.drop_all_rebuilt(&group);
            }
            Change::Cluster(ClusterEntry::StreamletsRebuilt { stream, first, count, .. }) => {
                self.drop_rebuilt(&group, |state| {
                    let all = (*first..first.saturating_add(*count)).map(StreamletId);
                    let rebuilt = all.filter(|at| state.is_rebuilt_by_others(self.node, *stream, *at));
                    rebuilt.map(|at| (*stream, at)).collect()
                });
            }
            Change::Cluster(
                ClusterEntry::NodeJoined { .. } | ClusterEntry::NodeFenced { .. } | ClusterEntry::NodeRemoved { .. },
            ) => self.nodes(&group),
            Change::Cluster(_) => {}
        }
        if let Change::Stream(event) = change {
            heard_of(&self.broker, event);
        }
        self.news.note(change);
        if may_be_waited_for(&group, change) {
            self.recovery.look();
        }
        if let Change::Cluster(
            ClusterEntry::MoveNoted { .. }
            | ClusterEntry::MoveCalledOff { .. }
            | ClusterEntry::OwnerChanged { .. }
            | ClusterEntry::NodeJoined { .. }
            | ClusterEntry::NodeFenced { .. },
        ) = change
        {
            self.moves.look();
        }
    }

    fn told(&self, index: u64) {
        self.news.number(&self.broker, index);
    }
}

/// Whether something has changed, in the entry that is being told, of what the broker is told. One entry may change many streams: when a node is lost, the owners of
/// all of which it had something. So its number waits for the last of them.
#[derive(Default)]
struct News(AtomicBool);

impl News {
    fn note(&self, change: &Change) {
        if is_told(change) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// All of entry `index` was told.
    fn number(&self, broker: &Broker, index: u64) {
        if self.0.swap(false, Ordering::Relaxed) {
            broker.told_up_to(index);
        }
    }
}

/// Those of the streams of a state that the log has, and below which number it has all that are still there. The state may be ahead of what was told: a stream that the
/// log does not have yet comes with a change of its own. Were it heard of before that, it would pass for gone in between.
fn known_to(log: &Log, streams: Vec<StreamId>, next: StreamId) -> (Vec<StreamId>, StreamId) {
    let (there, to_come): (Vec<StreamId>, Vec<StreamId>) =
        streams.into_iter().partition(|stream| log.stream(*stream).is_some());
    (there, to_come.into_iter().min().unwrap_or(next))
}

/// What the log has of a stream that has so many streamlets there. The state may be ahead of what was told: those that it has grown by since come with a change of their own, and as long
/// as the log does not have them the broker takes no owner of them.
fn known_of(placed: Placed, streamlets: u32) -> Placed {
    let Placed { mut owners, mut mine, mut lost } = placed;
    owners.truncate(streamlets as usize);
    mine.retain(|streamlet| *streamlet < streamlets);
    lost.retain(|streamlet| *streamlet < streamlets);
    Placed { owners, mine, lost }
}

/// The broker has heard of a stream, whatever became of it. Changes come in order, and what they have made of the state is there before: so all streams with
/// lower numbers are placed that are still there. One that was made and is gone by the time that this node hears of its making is never placed; were it not
/// said here that it was heard of, a transaction that has written to it would wait for it without end.
fn heard_of(broker: &Broker, event: &StreamEvent) {
    let (StreamEvent::Created(info) | StreamEvent::Deleted(info) | StreamEvent::Altered { after: info, .. }) = event;
    broker.heard_of_streams(StreamId(info.id.0.saturating_add(1)));
}

/// Whether a change is one of what the broker is told: of nodes, streams and owners. Also if the broker has heard of it before, with the newest state of something else: whoever
/// was told its number by another node asks for a later one.
fn is_told(change: &Change) -> bool {
    use ClusterEntry as Is;
    let is_of_owners = |entry: &ClusterEntry| {
        let has_moved = matches!(entry, Is::OwnerChanged { .. } | Is::OwnerReturned { .. });
        has_moved || matches!(entry, Is::GroupsHeld { .. } | Is::GroupsLost { .. } | Is::GroupsReturned { .. })
    };
    let is_of_nodes =
        |entry: &ClusterEntry| matches!(entry, Is::NodeJoined { .. } | Is::NodeFenced { .. } | Is::NodeRemoved { .. });
    match change {
        Change::Replaced | Change::Stream(_) => true,
        Change::Cluster(entry) => is_of_owners(entry) || is_of_nodes(entry),
    }
}

/// Whether something may be taken over or rebuilt behind a change that could not before, or logs of this node's earlier incarnations may go.
fn may_be_waited_for(group: &Group, change: &Change) -> bool {
    match change {
        Change::Cluster(
            ClusterEntry::LogEnded { .. }
            | ClusterEntry::EndTakenBack { .. }
            | ClusterEntry::EndGivenUp { .. }
            | ClusterEntry::ViewGivenUpFor { .. }
            | ClusterEntry::LogGivenUp { .. }
            | ClusterEntry::StreamletsRebuilt { .. }
            | ClusterEntry::GroupsReturned { .. }
            // Somebody may be back with what is missing.
            | ClusterEntry::NodeJoined { .. }
            | ClusterEntry::NodeFenced { .. }
            | ClusterEntry::NodeRemoved { .. },
        )
        | Change::Replaced => true,
        // A person has said that nobody has these blocks. Of logs that are written to it is their owners that need them no more.
        Change::Cluster(ClusterEntry::ViewGivenUp { log, .. }) => {
            !group.read(|state| state.is_live(log.node, log.epoch))
        }
        Change::Stream(_) | Change::Cluster(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use kera_broker::BrokerConfig;
    use kera_env::ManualClock;
    use kera_format::StreamOptions;
    use kera_log::{Arena, ArenaConfig, LogConfig};
    use kera_protocol::admin::StreamInfo;
    use kera_protocol::{FindOwners, Owner};

    use super::*;

    fn broker() -> (Arc<Broker>, tempfile::TempDir) {
        let dir = tempfile::tempdir().expect("a directory");
        let config = ArenaConfig { path: dir.path().join("feed.arena"), bytes: 16 << 20, node: [1; 16] };
        let (arena, _) = Arena::create_or_attach(config).expect("an arena");
        let log = Log::new(LogConfig::default(), arena);
        (Broker::new(BrokerConfig::default(), log, Arc::new(ManualClock::new(0))), dir)
    }

    /// The first of them is told, and somebody asks of the second one's stream.
    #[test]
    fn an_entry_with_several_changes_has_no_number_before_the_last_of_them() {
        let (broker, _dir) = broker();
        let version = || {
            let all = FindOwners { streams: Vec::new(), after: None, limit: 0 };
            broker.find_owners(&all, |_| None).ok().map(|told| told.version)
        };
        let (news, fenced) = (News::default(), |node| ClusterEntry::NodeFenced { node, epoch: 1 });
        for node in [1, 2] {
            news.note(&Change::Cluster(fenced(node)));
            assert_eq!(version(), Some(0));
        }
        news.number(&broker, 9);
        assert_eq!(version(), Some(9));
        // Nothing of it is what the broker is told: whoever has the number before it need not ask again.
        news.note(&Change::Cluster(ClusterEntry::LevelRaised { level: 2 }));
        news.number(&broker, 10);
        assert_eq!(version(), Some(9));
    }

    #[test]
    fn a_stream_that_the_log_is_still_to_be_told_of_is_not_heard_of() {
        let (broker, _dir) = broker();
        broker.stream_created(StreamId(5), StreamOptions::default()).expect("made");
        let known = |streams: &[u64]| {
            let streams = streams.iter().copied().map(StreamId).collect();
            known_to(broker.log(), streams, StreamId(9))
        };
        assert_eq!(known(&[5]), (vec![StreamId(5)], StreamId(9)), "those in between are gone");
        assert_eq!(known(&[5, 7, 8]), (vec![StreamId(5)], StreamId(7)));
    }

    /// Its broker takes the owners of what there is. Of all of them it took some, opened none, and was to be started again.
    #[test]
    fn of_a_stream_that_the_log_is_still_to_be_told_to_grow_what_it_has_is_placed() {
        let (broker, _dir) = broker();
        let stream = StreamId(5);
        broker.join_cluster([1; 16], 1);
        broker.stream_comes(stream, StreamOptions { streamlets: 2, ..StreamOptions::default() }).expect("made");
        let owner = |node| Owner { node, epoch: 3, older: Vec::new() };
        let grown = Placed { owners: vec![owner(1), owner(2), owner(1), owner(1)], mine: vec![0, 2], lost: vec![3] };
        assert_eq!(known_of(grown.clone(), 4), grown);
        let placed = known_of(grown, 2);
        assert!(broker.place_stream(0, stream, placed.owners.clone()).is_ok());
        assert_eq!(broker.ownership().owners(stream), Some(vec![owner(1), owner(2)]));
        assert_eq!((placed.mine, placed.lost), (vec![0], vec![]));
    }

    /// It was deleted by the time that this node heard of its making.
    #[test]
    fn a_stream_that_came_and_went_is_not_waited_for() {
        let (broker, _dir) = broker();
        let may_come = |stream| broker.ownership().may_hear_of(StreamId(stream));
        broker.heard_of_streams(StreamId(50));
        assert!(may_come(50));
        let info = StreamInfo { id: StreamId(50), name: "t".into(), created_ms: 0, options: StreamOptions::default() };
        heard_of(&broker, &StreamEvent::Created(info.clone()));
        assert_eq!([50, 51].map(may_come), [false, true]);
        heard_of(&broker, &StreamEvent::Deleted(StreamInfo { id: StreamId(60), ..info }));
        assert_eq!([60, 61].map(may_come), [false, true], "of its making nothing was told");
    }
}
