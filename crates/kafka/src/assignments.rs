//! Where clients want partitions to be: nodes, of which the first is to lead. CreateTopics and CreatePartitions may say it of new partitions, and
//! [`reassignments`](crate::reassignments) of those that are there.
//!
//! What is taken of it is who leads, and how many copies there are. Where these are is the coordinators' business, for virtual logs have copies and partitions have
//! none of their own: as many nodes are named as there are to be copies, and Metadata tells which it came to.
//!
//! On the commands thread, for the leader of the coordinators is asked.

use std::collections::BTreeSet;
use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::BrokerId;
use kera_coordinator::CoordinatorError;
use kera_format::cluster::COPIES_MAX;
use kera_format::{StreamId, StreamletId};
use kera_protocol::admin::StreamInfo;
use kera_protocol::{DescribeMoves, MoveStreamlet, StreamRef};

use crate::admin::{Refusal, refusal};
use crate::door::Door;
use crate::numbering::streamlet_of;

/// Time between two tries to move a partition that moves for another reason.
const RETRY: Duration = Duration::from_millis(50);
/// How often one request tries that again, for all of its partitions together: others wait for it.
const RETRIES_MAX: u32 = 20;

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err((ResponseError::InvalidReplicaAssignment, why.into()))
}

/// The nodes that serve Kafka clients.
pub(crate) fn nodes(door: &Door) -> Vec<i32> {
    door.brokers().into_iter().map(|(id, ..)| id).collect()
}

pub(crate) fn not_there(node: &dyn std::fmt::Display, nodes: &[i32]) -> String {
    format!("node {node} serves no Kafka clients or is not there; nodes that do are {nodes:?}")
}

/// The first of the nodes that are named for a partition, if each of them is there and named once.
pub(crate) fn first_of(wanted: &[BrokerId], nodes: &[i32]) -> Result<BrokerId, Refusal> {
    let Some(first) = wanted.first().copied() else {
        return refuse("no node is named that is to have the partition");
    };
    if let Some(unknown) = wanted.iter().find(|node| !nodes.contains(&node.0)) {
        return refuse(not_there(&unknown.0, nodes));
    }
    if wanted.iter().enumerate().any(|(at, node)| wanted[..at].contains(node)) {
        return refuse("a node is named twice");
    }
    Ok(first)
}

/// Whether all partitions of a topic, or all new ones, can be where they are wanted: how many copies that makes.
///
/// A node that is alone has one copy of everything. In a cluster all named nodes have to take part now, and the first of each partition has to take
/// streamlets, so that nothing is made that cannot be led where it is wanted.
pub(crate) fn check<'a>(door: &Door, wanted: impl Iterator<Item = &'a [BrokerId]>) -> Result<u32, Refusal> {
    let nodes = nodes(door);
    let live = door.coordinator.live_nodes();
    let mut copies = None;
    for wanted in wanted {
        if !door.is_in_cluster() {
            if wanted != [BrokerId(door.node_id())] {
                return refuse(format!("there is one node: every partition is on {}", door.node_id()));
            }
            continue;
        }
        let first = first_of(wanted, &nodes)?;
        let lives = |node: &BrokerId| {
            live.as_ref().map(|live| live.iter().find(|of| of.node == node.0.cast_unsigned()).copied())
        };
        if let Some(lost) = wanted.iter().find(|node| matches!(lives(node), Some(None))) {
            return refuse(format!("node {} is lost; start it again or choose another one", lost.0));
        }
        if let Some(Some(node)) = lives(&first).filter(|node| node.is_some_and(|node| !node.takes)) {
            return refuse(format!("node {} takes no partitions: it is no broker, or is being drained", node.node));
        }
        if *copies.get_or_insert(wanted.len()) != wanted.len() {
            return refuse("all partitions of a topic have as many copies: name as many nodes for each");
        }
    }
    match u32::try_from(copies.unwrap_or(1)) {
        Ok(copies @ 1..=COPIES_MAX) => Ok(copies),
        _ => refuse(format!("there are {COPIES_MAX} copies at most")),
    }
}

/// What the coordinators have said against nodes that a client has named.
pub(crate) fn as_assignment(error: &CoordinatorError) -> Refusal {
    match error {
        // The node is lost or drained, or the streamlet is being rebuilt or moves already.
        CoordinatorError::Refused(_) | CoordinatorError::Leader { .. } => {
            (ResponseError::InvalidReplicaAssignment, error.to_string())
        }
        error => refusal(error),
    }
}

/// Has partitions be led where they are wanted.
pub(crate) struct Leads<'a> {
    door: &'a Door,
    /// What moves, once the leader was asked.
    moving: Option<Moving>,
    retries: u32,
    /// That nobody leads the coordinators. They are not asked again: each question waits for a leader for seconds.
    unled: Option<Refusal>,
}

/// What the leader of the coordinators has told of moves.
struct Moving {
    /// Streamlets that are to leave their nodes.
    leaving: BTreeSet<(StreamId, StreamletId)>,
    /// These are all, and not only as many as are told at one time.
    is_all: bool,
}

impl<'a> Leads<'a> {
    pub(crate) fn new(door: &'a Door) -> Leads<'a> {
        Leads { door, moving: None, retries: RETRIES_MAX, unled: None }
    }

    /// Whether a streamlet is at a node, and stays there. By what this node knows it may be there and have gone, or be about to go: so the leader is asked what moves, once for
    /// all partitions of a request, and what the leader knows this node knows behind that.
    fn stays(&mut self, stream: StreamId, streamlet: StreamletId, node: u32) -> Result<bool, Refusal> {
        let door = self.door;
        let is_there = || door.broker.ownership().owner(stream, streamlet).is_some_and(|owner| owner.node == node);
        if !is_there() {
            return Ok(false);
        }
        if self.moving.is_none() {
            let told = door.coordinator.moves(&DescribeMoves { limit: 0 }).map_err(|error| self.refused(&error))?;
            let is_all = told.under_way == told.moves.len() as u64;
            let leaving = told.moves.iter().filter(|of| of.from != of.to).map(|of| (of.stream, of.streamlet));
            self.moving = Some(Moving { leaving: leaving.collect(), is_all });
        }
        let stays = |known: &Moving| known.is_all && !known.leaving.contains(&(stream, streamlet));
        Ok(is_there() && self.moving.as_ref().is_some_and(stays))
    }

    /// What the client is told of an error. That nobody leads the coordinators is remembered.
    fn refused(&mut self, error: &CoordinatorError) -> Refusal {
        let refused = as_assignment(error);
        self.unled = matches!(error, CoordinatorError::NoLeader(_)).then(|| refused.clone());
        refused
    }

    /// Has a node lead a partition. `may_wait`: the partition may move for a moment because it gets its copies, and is moved then.
    ///
    /// Of partitions that share a streamlet the first has it move; for the others it is at that node, or on its way there.
    pub(crate) fn lead(
        &mut self,
        info: &StreamInfo,
        partition: u32,
        to: BrokerId,
        may_wait: bool,
    ) -> Result<(), Refusal> {
        let streamlet = streamlet_of(partition, &info.options);
        let to = to.0.cast_unsigned();
        if !self.door.is_in_cluster() {
            return Ok(());
        }
        if let Some(refused) = &self.unled {
            return Err(refused.clone());
        }
        if self.stays(info.id, streamlet, to)? {
            return Ok(());
        }
        let message = MoveStreamlet { stream: StreamRef::Id(info.id), streamlet, to };
        loop {
            let error = match self.door.coordinator.move_streamlet(&message) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let is_refused = matches!(error, CoordinatorError::Refused(_) | CoordinatorError::Leader { .. });
            if !may_wait || !is_refused || self.retries == 0 {
                return Err(self.refused(&error));
            }
            self.retries -= 1;
            std::thread::sleep(RETRY);
        }
    }

    /// The same for new partitions, from number `first` on. They are there, wherever that is, so it is no error if one cannot be moved after all.
    pub(crate) fn lead_new<'w>(&mut self, info: &StreamInfo, first: u32, wanted: impl Iterator<Item = &'w [BrokerId]>) {
        for (partition, nodes) in (first..).zip(wanted) {
            let Some(to) = nodes.first().copied() else { continue };
            if let Err((error, why)) = self.lead(info, partition, to, true) {
                tracing::warn!(topic = %info.name, partition, ?error, why, "a new partition is not where it is wanted");
            }
        }
    }
}
