//! What other nodes have of a streamlet, as compaction asks for it: who has which groups, by the coordinators' log, and their chunks, as native
//! readers get them (`docs/decisions/0037-tombstones-look-at-other-nodes.md`).

use std::ops::Range;
use std::sync::Arc;

use kera_format::chunk::Chunks;
use kera_format::cluster::Roles;
use kera_format::{ChunkView, Cursor, GroupId};
use kera_log::compact::{Holder, Others, Run};
use kera_log::{Lane, Tenure};
use kera_protocol::read::{ENTRY_FOLLOW_GROUPS, ENTRY_UNCOMMITTED};
use kera_protocol::{Body, Op, Owner, ProtocolError, ReadChunks, ReadChunksResponse, ReadEntry, Status};
use kera_raft::Transport;

use super::transport::RpcTransport;
use super::{Cluster, wait};

/// Bytes that are asked for at a time.
const READ_BYTES: u32 = 1 << 20;
/// How long another node may take to have chunks brought back from its disk before it says that there is nothing yet.
const WAIT_MS: u32 = 1_000;
/// So often a node may say that before it is left alone for this time.
const QUIET_MAX: u32 = 10;

/// Other nodes, as compaction of this one sees them.
pub(crate) struct Elsewhere {
    cluster: Arc<Cluster>,
    transport: RpcTransport,
}

impl Elsewhere {
    /// With connections of its own.
    pub(crate) fn new(cluster: &Arc<Cluster>) -> Elsewhere {
        Elsewhere { cluster: cluster.clone(), transport: RpcTransport::new(cluster.copies.runtime().clone()) }
    }

    fn ask(&self, node: u32, lane: &Lane, cursor: Cursor) -> Result<ReadChunksResponse, String> {
        let address = self.cluster.group.read(|state| {
            let live = state.node(node).filter(|node| node.is_live(Roles::BROKER));
            live.map(|node| node.doors.native.clone())
        });
        let address = address.ok_or_else(|| format!("node {node} is not there"))?;
        let (stream, streamlet, flags) =
            (lane.stream_id(), lane.streamlet_id(), ENTRY_FOLLOW_GROUPS | ENTRY_UNCOMMITTED);
        let entry = ReadEntry { stream, streamlet, lane: lane.id(), cursor, max_bytes: 0, flags };
        let asked = ReadChunks { max_wait_ms: WAIT_MS, min_bytes: 1, max_bytes: READ_BYTES, entries: vec![entry] };
        let mut body = Vec::new();
        asked.encode(Op::ReadChunks.version_max(), &mut body);
        let answer = self.transport.call(node.into(), &address, Op::ReadChunks, body);
        let answer = wait(&self.cluster.runtime, answer)?;
        let read = ReadChunksResponse::decode(Op::ReadChunks.version_max(), &answer);
        read.map_err(|error: ProtocolError| error.to_string())
    }
}

impl Others for Elsewhere {
    fn runs(&self, lane: &Lane) -> Option<Vec<Run>> {
        let (me, stream, streamlet) = (self.cluster.node, lane.stream_id(), lane.streamlet_id());
        let found = self.cluster.group.read(|state| {
            let placed = state.placed(me, stream)?.owners.into_iter().nth(streamlet.0 as usize)?;
            Some((placed, state.owner(stream, streamlet.0)?.rebuilding))
        });
        let Some((owner, is_rebuilt)) = found else {
            // A stream that each node has for itself.
            return lane.is_plain().then(|| vec![Run { first_epoch: 0, holder: Holder::Here }]);
        };
        let is_mine = owner.node == me;
        let is_open = lane.tenure() == Tenure::Here && lane.owner_epoch() == owner.epoch;
        // A streamlet that is taken over or rebuilt here gets older groups, or another node holds them again.
        (!is_mine || is_open && !is_rebuilt).then(|| runs(me, &owner))
    }

    fn read(
        &self,
        lane: &Lane,
        node: u32,
        epochs: Range<u32>,
        each: &mut dyn FnMut(&ChunkView<'_>) -> bool,
    ) -> Result<(), String> {
        let mut cursor = first_of(epochs.start);
        let mut quiet = 0;
        while cursor.group.epoch() < epochs.end {
            let read = self.ask(node, lane, cursor)?;
            let Some((head, data)) = read.answers.into_iter().next() else {
                quiet += 1;
                if quiet == QUIET_MAX {
                    return Err(format!("node {node} has nothing at {cursor:?}, and does not say that it ends there"));
                }
                continue;
            };
            quiet = 0;
            if !goes_on(head.status(), cursor, head.next, &epochs) {
                return Err(format!("node {node} says {:?} at {cursor:?}", head.status()));
            }
            for chunk in Chunks::new(&data) {
                let chunk = chunk.map_err(|error| error.to_string())?;
                chunk.verify().map_err(|error| error.to_string())?;
                let group = chunk.broker().map_err(|error| error.to_string())?.group;
                if group.epoch() < epochs.end && !each(&chunk) {
                    return Err("there is too much, or the node is stopping".into());
                }
            }
            cursor = head.next;
        }
        Ok(())
    }
}

/// Whether an answer says what there is at a cursor, and where it goes on behind that. A node that has not these groups, or does not know yet that
/// they ended, says neither.
fn goes_on(status: Option<Status>, at: Cursor, next: Cursor, epochs: &Range<u32>) -> bool {
    match status {
        Some(Status::Ok) => next > at,
        // It has them up to their end.
        Some(Status::NotOwner) => next.group.epoch() >= epochs.end,
        // Retention has taken what was there.
        Some(Status::CursorGone) => next > at,
        _ => false,
    }
}

fn runs(me: u32, owner: &Owner) -> Vec<Run> {
    let older = owner.older.iter().map(|older| (older.first_epoch, older.node));
    let run = |(first_epoch, node): (u32, u32)| {
        let holder = match node {
            0 => Holder::Nobody,
            node if node == me => Holder::Here,
            node => Holder::Node(node),
        };
        Run { first_epoch, holder }
    };
    older.chain([(owner.epoch, owner.node)]).map(run).collect()
}

/// Where groups of an owner epoch begin.
fn first_of(epoch: u32) -> Cursor {
    Cursor { group: GroupId::new(epoch, 0), ..Cursor::default() }
}

#[cfg(test)]
mod tests {
    use kera_protocol::OlderGroups;

    use super::*;

    #[test]
    fn groups_that_are_lost_are_nobodys_and_the_last_run_is_the_owners() {
        let older = [(2, 1), (4, 0), (5, 3)].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
        let found = runs(3, &Owner { node: 1, epoch: 9, older: older.to_vec() });
        let expected = [(2, Holder::Node(1)), (4, Holder::Nobody), (5, Holder::Here), (9, Holder::Node(1))];
        assert_eq!(found, expected.map(|(first_epoch, holder)| Run { first_epoch, holder }));
    }

    #[test]
    fn a_node_that_has_not_what_is_asked_for_is_not_believed_to_have_read_all_of_it() {
        let (at, inside, end) = (first_of(4), Cursor { position: 900, ..first_of(4) }, first_of(6));
        let says = |status, next| goes_on(Some(status), at, next, &(4..6));
        assert!(says(Status::Ok, inside) && says(Status::NotOwner, end) && says(Status::CursorGone, inside));
        assert!(!says(Status::Ok, at), "it would be asked for ever");
        assert!(!says(Status::NotOwner, at) && !says(Status::NotOwner, first_of(5)), "it may not know what it has");
        assert!(!says(Status::NotReady, end) && !goes_on(None, at, end, &(4..6)));
    }
}
