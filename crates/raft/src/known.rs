//! Who is in the cluster as this node's own log has it, committed or not: all that a node knows that starts and has heard of nobody yet.

use std::collections::BTreeSet;

use kera_format::cluster::NodeNumber;

use crate::group::Group;

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

impl Group {
    /// All nodes that this node's log names, by number; none if it was never told of a cluster. Unlike what [`read`](Group::read) tells it is there
    /// before anybody has said what is committed.
    pub fn members(&self) -> Vec<KnownMember> {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let votes = |node: u64| membership.voter_ids().any(|voter| voter == node);
        let one = |(node, at): (&u64, &openraft::BasicNode)| KnownMember {
            node: *node as NodeNumber,
            address: at.addr.clone(),
            votes: votes(*node),
        };
        membership.nodes().map(one).collect()
    }

    /// Who votes, by number: while a change of that is half done two lists, and nothing is decided without a majority of each.
    pub fn voters(&self) -> Vec<BTreeSet<NodeNumber>> {
        let metrics = self.raft.metrics().borrow().clone();
        let lists = metrics.membership_config.membership().get_joint_config();
        lists.iter().map(|list| list.iter().map(|node| *node as NodeNumber).collect()).collect()
    }
}
