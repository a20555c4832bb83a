//! Who is in the cluster as this node's own log has it, committed or not: all that a node knows that starts and has heard of nobody yet.

use std::collections::BTreeSet;

use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::{ClusterEntry, NodeNumber};
use kera_protocol::Op;
use openraft::EntryPayload;

use crate::group::Group;
use crate::types::StoredMembers;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMember {
    /// Its number.
    pub node: NodeNumber,
    /// Where other nodes reach it.
    pub address: String,
    /// Whether it votes.
    pub votes: bool,
}

/// Why something is not said to who answers at the address of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stranger {
    /// The number has another uuid.
    #[error("another node than {0} answers")]
    Another(NodeNumber),
    /// The number has none yet, as far as this node knows.
    #[error("node {0} is not known here yet")]
    Unknown(NodeNumber),
}

/// All nodes that a membership names, by number.
pub(crate) fn known_members(members: &StoredMembers) -> Vec<KnownMember> {
    let membership = members.membership();
    let votes: BTreeSet<u64> = membership.voter_ids().collect();
    let one = |(node, at): (&u64, &openraft::BasicNode)| KnownMember {
        node: *node as NodeNumber,
        address: at.addr.clone(),
        votes: votes.contains(node),
    };
    membership.nodes().map(one).collect()
}

impl Group {
    /// All nodes that this node's log names, by number; none if it was never told of a cluster. Unlike what [`read`](Group::read) tells it is there
    /// before anybody has said what is committed. Behind a start from when [`is_member`](Group::is_member) has answered.
    pub fn members(&self) -> Vec<KnownMember> {
        let metrics = self.raft.metrics().borrow().clone();
        known_members(&metrics.membership_config)
    }

    /// Who votes, by number: while a change of that is half done two lists, and nothing is decided without a majority of each.
    pub fn voters(&self) -> Vec<BTreeSet<NodeNumber>> {
        let metrics = self.raft.metrics().borrow().clone();
        let lists = metrics.membership_config.membership().get_joint_config();
        lists.iter().map(|list| list.iter().map(|node| *node as NodeNumber).collect()).collect()
    }

    /// Uuid of the cluster whose log this node has; `None`: it was never told of one.
    pub fn cluster(&self) -> Option<[u8; 16]> {
        let known = |state: &ClusterState| Some(state.cluster()).filter(|cluster| *cluster != [0; 16]);
        self.as_logged(known, |cluster, entry| match entry {
            ClusterEntry::Founded { cluster: founded, .. } => cluster.or(Some(*founded)),
            _ => cluster,
        })
    }

    /// Uuid of the node of a number, as this node's log has it, or of the one that joins just now under a number that nobody has.
    fn uuid_of(&self, node: NodeNumber) -> Option<[u8; 16]> {
        let known = |state: &ClusterState| state.node(node).map(|known| known.uuid);
        let logged = self.as_logged(known, |uuid, entry| match entry {
            // Of a number that somebody has it is refused when it is applied, unless it is the same one.
            ClusterEntry::NodeJoined { node: joined, uuid: its, .. } if *joined == node => uuid.or(Some(*its)),
            ClusterEntry::NodeRemoved { node: removed } if *removed == node => None,
            _ => uuid,
        });
        logged.or_else(|| self.joining.lock().filter(|(joins, _)| *joins == node).map(|(_, uuid)| uuid))
    }

    /// What the applied state says, changed by the entries behind it. Mostly there are none, or few; after a start all that no snapshot has.
    fn as_logged<T>(&self, applied: impl FnOnce(&ClusterState) -> T, change: impl Fn(T, &ClusterEntry) -> T) -> T {
        let (from, known) = {
            let current = self.shared.current.read();
            (current.applied.map_or(0, |place| place.index + 1), applied(&current.state))
        };
        let entries = self.entries.read();
        let batches = entries.range(from..).filter_map(|(_, entry)| match &entry.payload {
            EntryPayload::Normal(batch) => Some(&batch.0),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        });
        batches.flatten().fold(known, change)
    }

    /// Whether who answers with `uuid` at the address of a node is that node, so that it may be sent an operation.
    ///
    /// A machine that has come to the address of a coordinator knows nothing of what that one has agreed to. If its vote counted, a leader could be
    /// chosen who lacks what a majority had, and what it took of the log would count as that of the coordinator; and if it is of another cluster it
    /// would lose its own log. What is *applied* says who is who only when somebody leads: a node that starts without a snapshot has applied nothing,
    /// in just the elections in which it matters, and one that follows has not applied what is not committed. So the log is asked, which is on the
    /// disk, and behind what is applied its entries count before they are committed:
    ///
    /// * A number gets another uuid only after the node that had it was taken out of the group and given up, both committed (`change_node`), and votes
    ///   only after that. So in whatever log a number votes, the uuid that it has at the end of that log is that of the one who votes.
    /// * A node joins before it votes. Who has its number in the group and no uuid for it has been told of it by a leader that was lost while the node joined:
    ///   it is sent nothing of the log, and is not asked for its vote, which it does not have. It asks to join once more, and with that request a
    ///   leader has its uuid, before the log has (`admit`).
    ///
    /// Anything else may be sent to a node of which this one has not heard: who is new asks the leader before it has the log.
    ///
    /// # Errors
    /// Why nothing is to be sent.
    pub fn check_is(&self, node: NodeNumber, op: Op, uuid: [u8; 16]) -> Result<(), Stranger> {
        let is_of_log = matches!(op, Op::RaftVote | Op::RaftAppend | Op::RaftSnapshot);
        match self.uuid_of(node) {
            Some(known) if known != uuid => Err(Stranger::Another(node)),
            None if is_of_log => Err(Stranger::Unknown(node)),
            _ => Ok(()),
        }
    }
}
