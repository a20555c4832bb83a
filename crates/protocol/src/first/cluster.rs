//! Of [`crate::cluster`]: joining, signs of life and how a cluster is, before clusters had levels; whoever speaks these speaks level 1. And what is
//! rebuilt, before that was told with owner epochs.

use kera_format::{StreamId, level};

use super::bodies;
use crate::codec::wire_struct;
use crate::{
    ClusterDescription, JoinCluster, MemberNode, NodeAlive, RebuildRange, Role, SharedSetting, StreamletsRebuilt,
};

wire_struct! {
    /// [`JoinCluster`], version 1.
    pub struct JoinClusterV1 {
        /// Its number, from 1.
        pub node: u32,
        /// Its uuid.
        pub uuid: [u8; 16],
        /// What it does.
        pub roles: Vec<Role>,
        /// Its rack; empty: none.
        pub rack: String,
        /// Where other nodes reach it.
        pub cluster_address: String,
        /// Where clients reach it; empty: not at all.
        pub native_address: String,
        /// Where Kafka clients reach it; empty: not at all.
        pub kafka_address: String,
        /// Where its HTTP is; empty: nowhere.
        pub http_address: String,
        /// Settings that all nodes share, as it has them.
        pub settings: Vec<SharedSetting>,
        /// An epoch that it has not used.
        pub epoch_min: u32,
        /// Whether it has all that it acknowledged before.
        pub has_all: bool,
    }
}

impl From<&JoinCluster> for JoinClusterV1 {
    fn from(current: &JoinCluster) -> JoinClusterV1 {
        let current = current.clone();
        JoinClusterV1 {
            node: current.node,
            uuid: current.uuid,
            roles: current.roles,
            rack: current.rack,
            cluster_address: current.cluster_address,
            native_address: current.native_address,
            kafka_address: current.kafka_address,
            http_address: current.http_address,
            settings: current.settings,
            epoch_min: current.epoch_min,
            has_all: current.has_all,
        }
    }
}

impl From<JoinClusterV1> for JoinCluster {
    fn from(first: JoinClusterV1) -> JoinCluster {
        JoinCluster {
            node: first.node,
            uuid: first.uuid,
            roles: first.roles,
            rack: first.rack,
            cluster_address: first.cluster_address,
            native_address: first.native_address,
            kafka_address: first.kafka_address,
            http_address: first.http_address,
            settings: first.settings,
            epoch_min: first.epoch_min,
            has_all: first.has_all,
            level_min: level::FIRST,
            level_max: level::FIRST,
        }
    }
}

wire_struct! {
    /// [`NodeAlive`], version 1.
    #[derive(Copy)]
    pub struct NodeAliveV1 {
        /// The node.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
    }
}

impl From<&NodeAlive> for NodeAliveV1 {
    fn from(current: &NodeAlive) -> NodeAliveV1 {
        NodeAliveV1 { node: current.node, epoch: current.epoch }
    }
}

impl From<NodeAliveV1> for NodeAlive {
    fn from(first: NodeAliveV1) -> NodeAlive {
        NodeAlive { node: first.node, epoch: first.epoch, level_max: level::FIRST }
    }
}

wire_struct! {
    /// [`MemberNode`] in version 1 of [`ClusterDescription`].
    pub struct MemberNodeV1 {
        /// Its number.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Its uuid.
        pub uuid: [u8; 16],
        /// Whether it is lost.
        pub fenced: bool,
        /// Whether it votes.
        pub votes: bool,
        /// What it does.
        pub roles: Vec<Role>,
        /// Its rack; empty: none.
        pub rack: String,
        /// Where other nodes reach it.
        pub cluster_address: String,
        /// Where clients reach it; empty: not at all.
        pub native_address: String,
        /// Streamlets that it owns.
        pub streamlets: u64,
    }
}

wire_struct! {
    /// [`ClusterDescription`], version 1.
    pub struct ClusterDescriptionV1 {
        /// Uuid of the cluster; zeros: the node is alone.
        pub cluster: [u8; 16],
        /// Number of the leader; 0: there is none that the node knows of.
        pub leader: u32,
        /// Its term.
        pub term: u64,
        /// The entry of the coordinators' log up to which the node is.
        pub applied: u64,
        /// All nodes.
        pub nodes: Vec<MemberNodeV1>,
        /// Virtual logs that are kept.
        pub logs: u64,
        /// Streamlets that wait for a node that is lost.
        pub waiting_streamlets: u64,
    }
}

impl From<&ClusterDescription> for ClusterDescriptionV1 {
    fn from(current: &ClusterDescription) -> ClusterDescriptionV1 {
        let node = |node: &MemberNode| MemberNodeV1 {
            node: node.node,
            epoch: node.epoch,
            uuid: node.uuid,
            fenced: node.fenced,
            votes: node.votes,
            roles: node.roles.clone(),
            rack: node.rack.clone(),
            cluster_address: node.cluster_address.clone(),
            native_address: node.native_address.clone(),
            streamlets: node.streamlets,
        };
        ClusterDescriptionV1 {
            cluster: current.cluster,
            leader: current.leader,
            term: current.term,
            applied: current.applied,
            nodes: current.nodes.iter().map(node).collect(),
            logs: current.logs,
            waiting_streamlets: current.waiting_streamlets,
        }
    }
}

impl From<ClusterDescriptionV1> for ClusterDescription {
    fn from(first: ClusterDescriptionV1) -> ClusterDescription {
        let node = |node: MemberNodeV1| MemberNode {
            node: node.node,
            epoch: node.epoch,
            uuid: node.uuid,
            fenced: node.fenced,
            votes: node.votes,
            roles: node.roles,
            rack: node.rack,
            cluster_address: node.cluster_address,
            native_address: node.native_address,
            streamlets: node.streamlets,
            level_max: 0,
        };
        ClusterDescription {
            cluster: first.cluster,
            leader: first.leader,
            term: first.term,
            applied: first.applied,
            nodes: first.nodes.into_iter().map(node).collect(),
            logs: first.logs,
            waiting_streamlets: first.waiting_streamlets,
            level: 0,
        }
    }
}

wire_struct! {
    /// Neighbouring streamlets of a stream, in version 1 of [`StreamletsRebuilt`].
    #[derive(Copy)]
    pub struct StreamletRange {
        /// The stream.
        pub stream: StreamId,
        /// The first streamlet.
        pub first: u32,
        /// How many.
        pub count: u32,
    }
}

wire_struct! {
    /// [`StreamletsRebuilt`], version 1.
    pub struct StreamletsRebuiltV1 {
        /// The broker.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Which streamlets.
        pub streamlets: Vec<StreamletRange>,
    }
}

impl From<&StreamletsRebuilt> for StreamletsRebuiltV1 {
    fn from(current: &StreamletsRebuilt) -> StreamletsRebuiltV1 {
        let range = |of: &RebuildRange| StreamletRange { stream: of.stream, first: of.first, count: of.count };
        StreamletsRebuiltV1 {
            node: current.node,
            epoch: current.epoch,
            streamlets: current.streamlets.iter().map(range).collect(),
        }
    }
}

impl From<StreamletsRebuiltV1> for StreamletsRebuilt {
    fn from(first: StreamletsRebuiltV1) -> StreamletsRebuilt {
        let range =
            |of: StreamletRange| RebuildRange { stream: of.stream, first: of.first, count: of.count, owner_epoch: 0 };
        StreamletsRebuilt {
            node: first.node,
            epoch: first.epoch,
            streamlets: first.streamlets.into_iter().map(range).collect(),
        }
    }
}

bodies!(JoinClusterV1, NodeAliveV1, ClusterDescriptionV1, StreamletsRebuiltV1);
