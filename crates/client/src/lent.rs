//! Connections of producers. The first so many producers of a client have one each to a node, those that come later share them in turn: a
//! program that writes to hundreds of streams has no hundreds of connections to each node, of which a node takes a bounded number.
//!
//! Called by the producers' tasks, on whichever runtime they run. Requests of a connection are answered in order, so producers that share one
//! wait for each other where a node has no room; a connection that breaks breaks for all of them, and they send again what was under way.

use std::collections::HashMap;
use std::sync::Arc;

use kera_rpc::{Connection, RpcError, WeakConnection};

use crate::Client;
use crate::placement::Placement;
use crate::turn::InTurn;

/// Connections to a node that a client's producers have at most.
const LENT_MAX: usize = 16;

/// A node, and which incarnation of it.
type Of = (u32, u32);

/// The connections to one node. Locked while one is made, so that no more are made than there may be.
#[derive(Debug, Default)]
struct ToNode {
    connections: Vec<WeakConnection>,
    turn: usize,
}

impl ToNode {
    /// One that is there, if there are enough.
    fn next(&mut self) -> Option<Connection> {
        self.connections.retain(|weak| weak.upgrade().is_some_and(|connection| !connection.is_closed()));
        if self.connections.len() < LENT_MAX {
            return None;
        }
        self.turn += 1;
        self.connections[self.turn % self.connections.len()].upgrade()
    }
}

/// What a client's producers have borrowed.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    nodes: std::sync::Mutex<HashMap<Of, Arc<InTurn<ToNode>>>>,
}

impl Lent {
    fn node(&self, of: Of) -> Arc<InTurn<ToNode>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !nodes.contains_key(&of) {
            // An earlier incarnation has no connections any more.
            nodes.retain(|(node, epoch), _| *node != of.0 || *epoch > of.1);
        }
        Arc::clone(nodes.entry(of).or_default())
    }
}

impl Client {
    /// A connection for a producer to a node, one try. To be dropped, not closed, by who has no more use for it: others may share it.
    pub(crate) async fn lend(&self, placement: &Placement, node: u32) -> Result<Connection, RpcError> {
        let to_node = self.lent().node((node, placement.node_epoch(node)));
        let keep = |to_node: &mut ToNode, made: &Connection| to_node.connections.push(made.downgrade());
        to_node.get(ToNode::next, self.dedicated_to(placement, node), keep).await
    }
}
