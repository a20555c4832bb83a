//! What the broker is told of nodes and owners: which streamlets are this node's, in which owner epoch, and who has the others.

use std::sync::{Arc, Weak};

use kera_broker::Broker;
use kera_coordinator::StreamEvent;
use kera_coordinator::catalog::SYSTEM_PREFIX;
use kera_coordinator::cluster::{ClusterState, StreamOwners, roles_of};
use kera_format::cluster::{ClusterEntry, NodeNumber};
use kera_format::{StreamId, StreamletId};
use kera_log::Tenure;
use kera_protocol::placement::OlderGroups;
use kera_protocol::{NodeInfo, Owner};
use kera_raft::{Change, Group, Observer};
use parking_lot::Mutex;

use super::leftovers;
use super::recovery::Recovery;

/// Feeds one broker. Called by the thread that follows the log, and once at the start.
pub(super) struct Feed {
    node: NodeNumber,
    epoch: u32,
    broker: Arc<Broker>,
    group: Weak<Group>,
    /// Held from the look at the state until the broker has been told: what is told last is newest.
    placing: Mutex<()>,
    /// Opens those that a lost broker had.
    recovery: Arc<Recovery>,
}

/// A stream as the broker is told of it.
struct Placed {
    owners: Vec<Owner>,
    /// Streamlets that this incarnation of this node owns and opens by itself.
    mine: Vec<u32>,
    /// Whether there are others, which are to be taken over.
    has_lost: bool,
}

impl Feed {
    pub(super) fn new(
        (node, epoch): (NodeNumber, u32),
        broker: Arc<Broker>,
        group: Weak<Group>,
        recovery: Arc<Recovery>,
    ) -> Feed {
        Feed { node, epoch, broker, group, placing: Mutex::default(), recovery }
    }

    /// Tells all that is known.
    pub(super) fn begin(&self) {
        let Some(group) = self.group.upgrade() else { return };
        self.broker.join_cluster(group.read(ClusterState::cluster), self.node);
        self.everything(&group);
    }

    fn everything(&self, group: &Group) {
        self.nodes(group);
        let streams: Vec<StreamId> = group.read(|state| state.catalog.streams().map(|info| info.id).collect());
        streams.into_iter().for_each(|stream| self.place(group, stream));
    }

    fn nodes(&self, group: &Group) {
        let nodes = group.read(|state| state.nodes().iter().map(|(number, node)| node_info(*number, node)).collect());
        self.broker.set_nodes(group.applied(), nodes);
    }

    fn place(&self, group: &Group, stream: StreamId) {
        let _alone = self.placing.lock();
        let (version, placed) = (group.applied(), group.read(|state| placed(state, self.node, stream)));
        let Some(placed) = placed else { return };
        if let Err(failure) = self.broker.place_stream(version, stream, placed.owners.clone()) {
            tracing::error!(%stream, error = %failure, "the broker does not follow the cluster; restart the node");
            return;
        }
        if placed.has_lost {
            self.recovery.look();
        }
        for streamlet in placed.mine {
            let (epoch, streamlet) = (placed.owners[streamlet as usize].epoch, StreamletId(streamlet));
            if self.is_open(stream, streamlet, epoch) {
                continue;
            }
            if let Err(failure) = self.broker.open_streamlet(stream, streamlet, epoch, None) {
                tracing::error!(%stream, %streamlet, error = %failure, "a streamlet cannot be opened; restart the node");
            }
        }
    }

    /// Whether this node takes writes of it in this owner epoch already.
    fn is_open(&self, stream: StreamId, streamlet: StreamletId, epoch: u32) -> bool {
        let found = self.broker.log().stream(stream);
        let place = found.as_ref().and_then(|stream| stream.streamlet(streamlet));
        place.is_some_and(|place| place.tenure() != Tenure::Elsewhere && place.owner_epoch() == epoch)
    }
}

impl Observer for Feed {
    fn changed(&self, index: u64, change: &Change) {
        let Some(group) = self.group.upgrade() else { return };
        match change {
            Change::Replaced => self.everything(&group),
            Change::Stream(StreamEvent::Deleted(info)) => {
                self.broker.displace_stream(index, info.id);
            }
            Change::Stream(StreamEvent::Altered { after: info, .. } | StreamEvent::Created(info)) => {
                self.place(&group, info.id);
            }
            Change::Cluster(ClusterEntry::OwnerChanged { stream, .. } | ClusterEntry::GroupsHeld { stream, .. }) => {
                self.place(&group, *stream);
            }
            Change::Cluster(ClusterEntry::OwnerReturned { .. }) => self.everything(&group),
            Change::Cluster(ClusterEntry::LogGivenUp { log }) if log.node == self.node => {
                group.read(|state| leftovers::drop_rebuilt(self.broker.log(), state, self.node, self.epoch));
            }
            Change::Cluster(ClusterEntry::LogEnded { .. }) => self.recovery.look(),
            Change::Cluster(
                ClusterEntry::NodeJoined { .. } | ClusterEntry::NodeFenced { .. } | ClusterEntry::NodeRemoved { .. },
            ) => self.nodes(&group),
            Change::Cluster(_) => {}
        }
    }
}

fn node_info(number: NodeNumber, node: &kera_coordinator::cluster::NodeState) -> NodeInfo {
    NodeInfo {
        node: number,
        node_epoch: node.epoch,
        address: node.doors.native.clone(),
        kafka_address: node.doors.kafka.clone(),
        http_address: node.doors.http.clone(),
        rack: node.rack.clone(),
        roles: roles_of(node.roles),
    }
}

/// A stream's owners, one for each streamlet; nothing for streams of the system, which each node has for itself.
fn placed(state: &ClusterState, node: NodeNumber, stream: StreamId) -> Option<Placed> {
    let info = state.catalog.find(&stream.into()).ok().filter(|info| !info.name.starts_with(SYSTEM_PREFIX))?;
    let nobody = StreamOwners::default();
    let known = state.owners(stream).unwrap_or(&nobody);
    let mut owners = vec![Owner::default(); info.options.streamlets as usize];
    let (mut mine, mut has_lost) = (Vec::new(), false);
    for run in known.runs() {
        for streamlet in run.first..run.end().min(info.options.streamlets) {
            let owner = Owner { node: run.owner.node, epoch: run.owner.owner_epoch, older: Vec::new() };
            owners[streamlet as usize] = owner;
            if run.owner.node == node && state.is_live(node, run.owner.epoch) {
                has_lost |= run.owner.rebuilding;
                if !run.owner.rebuilding {
                    mine.push(streamlet);
                }
            }
        }
    }
    for held in known.held() {
        for streamlet in held.first..(held.first + held.count).min(info.options.streamlets) {
            let older = OlderGroups { first_epoch: held.owner_epoch, node: held.node };
            owners[streamlet as usize].older.push(older);
        }
    }
    owners.iter_mut().for_each(|owner| owner.older.sort_unstable_by_key(|older| older.first_epoch));
    Some(Placed { owners, mine, has_lost })
}
