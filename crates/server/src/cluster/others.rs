//! What the Kafka door asks about other nodes: who coordinates the cluster, where copies are, as clients are told in replicas and those in
//! sync, and what older owners have of the streamlets of its groups.
//!
//! Which log serves a streamlet is known to its owner alone. So what is told of a partition is what holds for the logs of its owner that
//! have as many copies: their backups, those of most logs first. On three nodes with three copies that is exact.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use kera_coordinator::cluster::{ClusterState, LogState};
use kera_format::chunk::Chunks;
use kera_format::cluster::{Doors, Rack, Roles};
use kera_format::{Cursor, FormatError, LaneId, StreamId, StreamletId};
use kera_kafka::{Answered, Coordinators, Given, OtherNodes};
use kera_protocol::read::{ENTRY_FOLLOW_GROUPS, ENTRY_UNCOMMITTED};
use kera_protocol::{
    Body, MemberNode, Message, Op, ReadAnswer, ReadChunks, ReadChunksResponse, ReadEntry, Status, StreamStats,
    StreamStatsResponse,
};
use kera_raft::Transport;

use super::transactions::LEVEL;
use super::transport::RpcTransport;
use super::{Cluster, STOPPING, wait_while};

/// Bytes that are asked for at a time.
const READ_BYTES: u32 = 1 << 20;

/// The other nodes, as the door of this one sees them.
pub(crate) struct Others {
    cluster: Arc<Cluster>,
    transport: RpcTransport,
}

impl Others {
    /// With connections of its own.
    pub(crate) fn new(cluster: &Arc<Cluster>) -> Others {
        let transport = RpcTransport::new(cluster.copies.runtime().clone());
        transport.knows(&cluster.group);
        Others { cluster: cluster.clone(), transport }
    }

    /// What a node answers to a native request. Blocks the thread, until the node stops.
    fn ask_for<M: Message>(&self, node: u32, asked: &M) -> Result<Vec<u8>, String> {
        let address = self.cluster.group.read(|state| state.node(node).map(|node| node.doors.native.clone()));
        let address = address.ok_or_else(|| format!("node {node} is not in the cluster any more"))?;
        let mut body = Vec::new();
        asked.encode(M::OP.version_max(), &mut body);
        let answer = self.transport.call(node.into(), &address, M::OP, body);
        wait_while(&self.cluster.runtime, answer, || !self.cluster.is_stopping()).ok_or(STOPPING)?
    }

    /// Asks at one of a node's addresses.
    fn ask_at(&self, node: u32, choose: impl Fn(&Doors) -> &String, op: Op, body: Vec<u8>, done: Answered) {
        let address = self.cluster.group.read(|state| state.node(node).map(|node| choose(&node.doors).clone()));
        let Some(address) = address else {
            return done(Err(format!("node {node} is not in the cluster any more")));
        };
        let answer = self.transport.call(node.into(), &address, op, body);
        self.cluster.copies.runtime().spawn(async move { done(answer.await) });
    }
}

impl OtherNodes for Others {
    fn leading_coordinator(&self) -> Option<u32> {
        self.cluster.group.leader().map(|(node, _)| node)
    }

    fn coordinators(&self) -> Coordinators {
        let known = self.cluster.group.describe();
        let (voters, observers): (Vec<_>, Vec<_>) = known.nodes.iter().partition(|node| node.votes);
        let numbers = |nodes: Vec<&MemberNode>| nodes.into_iter().map(|node| node.node).collect();
        let leader = Some(known.leader).filter(|leader| *leader != 0);
        Coordinators { leader, term: known.term, voters: numbers(voters), observers: numbers(observers) }
    }

    fn copies_of(&self, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>) {
        self.cluster.group.read(|state| known(state, owner, copies))
    }

    fn read(&self, node: u32, stream: StreamId, streamlet: StreamletId, from: Cursor) -> Result<Given, String> {
        let lane = LaneId(0);
        // Nobody writes to it in transactions, and what is committed may be known only once this is read.
        let flags = ENTRY_FOLLOW_GROUPS | ENTRY_UNCOMMITTED;
        let entry = ReadEntry { stream, streamlet, lane, cursor: from, max_bytes: 0, flags };
        let asked = ReadChunks { max_wait_ms: 1_000, min_bytes: 1, max_bytes: READ_BYTES, entries: vec![entry] };
        let answer = self.ask_for(node, &asked)?;
        let read = ReadChunksResponse::decode(Op::ReadChunks.version_max(), &answer);
        let read = read.map_err(|error: kera_protocol::ProtocolError| error.to_string())?;
        if let Some((head, data)) = read.answers.into_iter().next() {
            return given(node, &head, &data);
        }
        // It has nothing to give just then: the lane ends here, or its disk takes its time. Only what it says of the lane tells which.
        let asked = StreamStats { stream, streamlets: vec![streamlet], after: None, limit: 0 };
        let answer = self.ask_for(node, &asked)?;
        let stats = StreamStatsResponse::decode(Op::StreamStats.version_max(), &answer);
        let stats = stats.map_err(|error: kera_protocol::ProtocolError| error.to_string())?;
        // One that was never written to is left out.
        let held = stats.lanes.iter().find(|stats| stats.lane == lane && stats.first_ordinal < stats.durable_ordinal);
        let durable_ordinal = held.map_or(0, |stats| stats.durable_ordinal);
        Ok(Given { data: Vec::new(), next: from, durable_ordinal })
    }

    fn ask(&self, node: u32, op: Op, body: Vec<u8>, done: Answered) {
        self.ask_at(node, |doors| &doors.cluster, op, body, done);
    }

    fn ask_native(&self, node: u32, op: Op, body: Vec<u8>, done: Answered) {
        self.ask_at(node, |doors| &doors.native, op, body, done);
    }

    fn serves_transactions(&self) -> bool {
        self.cluster.level() >= LEVEL
    }
}

/// What an answer says that another node has of a lane.
///
/// # Errors
/// It can say nothing of it: its disk cannot be read, or it does not know who owns the lane. Or what it gives is damaged: whoever reads it writes anew what is in it, and has
/// the node let go of what it has. What was passed over would be gone for good.
fn given(node: u32, head: &ReadAnswer, data: &[u8]) -> Result<Given, String> {
    match head.status() {
        // What it has next, or what retention has left.
        Some(Status::Ok | Status::CursorGone) => {
            verify(data).map_err(|error| format!("node {node} gives older groups that are damaged: {error}"))?;
            Ok(Given { data: data.to_vec(), next: head.next, durable_ordinal: head.durable_ordinal })
        }
        // In place of an ordinal it names the owner, in the upper half. One that has not heard of the coordinators for a while names nobody: it may have the
        // lane itself, and so may one that is about to serve it.
        Some(Status::NotOwner) if ![0, u64::from(node)].contains(&(head.durable_ordinal >> 32)) => {
            Ok(Given { data: Vec::new(), next: head.next, durable_ordinal: 0 })
        }
        status => Err(format!("node {node} does not give older groups: {status:?}")),
    }
}

fn verify(data: &[u8]) -> Result<(), FormatError> {
    Chunks::new(data).try_for_each(|chunk| chunk?.verify())
}

fn known(state: &ClusterState, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>) {
    let epoch = state.node(owner).map_or(0, |node| node.epoch);
    let backups = copies.saturating_sub(1) as usize;
    let has_so_many = |log: &&LogState| log.views.iter().map(|view| view.backups.len()).max() == Some(backups);
    let logs = state.logs().iter().filter(|(name, _)| (name.node, name.epoch) == (owner, epoch)).map(|(_, log)| log);
    let (mut now, mut before) = (BTreeMap::new(), BTreeMap::new());
    for log in logs.filter(has_so_many) {
        for (at, view) in log.views.iter().enumerate() {
            let counts = if at + 1 == log.views.len() { &mut now } else { &mut before };
            view.backups.iter().for_each(|backup| *counts.entry(*backup).or_insert(0) += 1);
        }
    }
    let most_first = |counts: BTreeMap<u32, usize>| {
        let mut sorted: Vec<_> = counts.into_iter().map(|(node, logs)| (Reverse(logs), node)).collect();
        sorted.sort_unstable();
        sorted.into_iter().map(|(_, node)| node)
    };
    let nobody_yet = now.is_empty() && before.is_empty();
    let is_live = |node: &u32| state.node(*node).is_some_and(|node| node.is_live(Roles::BACKUP));
    let mut replicas = vec![owner];
    replicas.extend(most_first(now).take(backups));
    if nobody_yet {
        // Its owner has never written anything with so many copies. Those of whom the first are asked for would lack nothing, and tools take what is told for
        // the topic's replication.
        let mut asked = state.backups_for(owner, 0);
        asked.sort_by_key(|(node, rack)| (*rack == Rack::Own, node.wrapping_sub(owner)));
        replicas.extend(asked.into_iter().map(|(node, _)| node).take(backups));
        // Behind them those that are lost and are to come back: while they are away a log begins without them.
        let away = state.nodes().iter().filter(|(node, of)| **node != owner && of.is_away(Roles::BACKUP));
        let away = away.map(|(node, _)| *node);
        let missing = (1 + backups).saturating_sub(replicas.len());
        replicas.extend(away.take(missing));
    }
    let in_sync = replicas.iter().copied().filter(|node| *node == owner || is_live(node)).collect();
    for node in most_first(before) {
        if replicas.len() <= backups && !replicas.contains(&node) {
            replicas.push(node);
        }
    }
    (replicas, in_sync)
}

#[cfg(test)]
mod tests {
    use kera_coordinator::cluster::LogView;
    use kera_format::chunk::ChunkTarget;
    use kera_format::cluster::LogName;
    use kera_format::{CHUNK_HEADER_BYTES, ChunkBuilder, Compression, Record};

    use super::super::testing::{apply, joined};
    use super::*;

    #[test]
    fn a_node_that_does_not_know_who_owns_a_lane_has_not_said_that_it_has_nothing() {
        let here = Cursor::default();
        let says = |owner: u64| ReadAnswer {
            durable_ordinal: owner << 32 | 7,
            ..ReadAnswer::failed(0, Status::NotOwner, here, here)
        };
        assert_eq!(given(2, &says(1), &[]), Ok(Given::default()), "node 1 has it");
        assert!(given(2, &says(2), &[]).is_err(), "it is about to serve it");
        let unheard = ReadAnswer::failed(0, Status::NotOwner, here, here);
        assert!(given(2, &unheard, &[]).is_err(), "it has not heard of the coordinators");
        assert!(given(2, &ReadAnswer::failed(0, Status::NotReady, here, here), &[]).is_err());
    }

    /// What is passed over of them is nowhere once their reader has written all anew.
    #[test]
    fn older_groups_that_came_damaged_are_not_taken_for_what_the_node_has() {
        let (from, next) = (Cursor::default(), Cursor { position: 512, ..Cursor::default() });
        let mut chunk = ChunkBuilder::default();
        chunk.push(&Record::value(b"an offset"));
        let whole = chunk.seal(&ChunkTarget::default(), Compression::None).unwrap();
        for status in [Status::Ok, Status::CursorGone] {
            let head = ReadAnswer { durable_ordinal: 7, ..ReadAnswer::failed(0, status, from, next) };
            let two = [&whole[..], &whole].concat();
            assert_eq!(given(2, &head, &two), Ok(Given { data: two.clone(), next, durable_ordinal: 7 }));
            let mut damaged = two.clone();
            damaged[whole.len() + CHUNK_HEADER_BYTES + 2] ^= 1;
            let said = given(2, &head, &damaged).unwrap_err();
            assert!(said.contains("node 2 gives older groups that are damaged"), "{said}");
            assert!(given(2, &head, &two[..two.len() - 1]).is_err(), "it ends in the middle of a chunk");
        }
    }

    #[test]
    fn who_would_have_copies_is_told_until_somebody_has() {
        let mut state = joined(4, 1);
        assert_eq!(known(&state, 2, 3), (vec![2, 3, 4], vec![2, 3, 4]));
        assert_eq!(known(&state, 2, 1), (vec![2], vec![2]));
        let log = LogName { node: 2, epoch: 1, log: 0 };
        let agreed = state.plan_view(&LogView { log, view: 1, first: 1, backups: vec![1, 4] }).unwrap();
        apply(&mut state, &agreed);
        assert_eq!(known(&state, 2, 3), (vec![2, 1, 4], vec![2, 1, 4]));
        assert_eq!(known(&state, 2, 2).0.len(), 2, "of another stream nothing is written");
    }

    /// Tools take the number of replicas for the topic's.
    #[test]
    fn who_is_lost_and_to_come_back_is_a_replica_of_what_was_made_without_it_and_not_in_sync() {
        let mut state = joined(3, 1);
        let fenced = state.plan_fence(3, 1).unwrap();
        apply(&mut state, &fenced);
        let told = (vec![1, 2, 3], vec![1, 2]);
        assert_eq!(known(&state, 1, 3), told);
        assert_eq!(known(&state, 1, 2), (vec![1, 2], vec![1, 2]), "nobody is missing");
        let log = LogName { node: 1, epoch: 1, log: 0 };
        let agreed = state.plan_view(&LogView { log, view: 1, first: 1, backups: vec![2] }).unwrap();
        apply(&mut state, &agreed);
        assert_eq!(known(&state, 1, 3), told, "its log begins with one backup");
        let drained = state.plan_drain(3, true).unwrap();
        apply(&mut state, &drained);
        assert_eq!(known(&state, 1, 3), (vec![1, 2], vec![1, 2]), "it does not come back");
    }
}
