//! What other nodes have of a streamlet, as compaction asks for it: who has which groups, by the coordinators' log, and their chunks, as native
//! readers get them (`docs/decisions/0037-tombstones-look-at-other-nodes.md`).

use std::ops::Range;
use std::sync::Arc;

use kera_broker::elsewhere::{read, runs};
use kera_format::cluster::Roles;
use kera_format::{ChunkView, Cursor};
use kera_log::Lane;
use kera_log::compact::{Holder, Others, Run};
use kera_protocol::read::{ENTRY_FOLLOW_GROUPS, ENTRY_UNCOMMITTED};
use kera_protocol::{Body, Op, ProtocolError, ReadChunks, ReadChunksResponse, ReadEntry};
use kera_raft::Transport;

use super::transport::RpcTransport;
use super::{Cluster, STOPPING, wait_while};

/// Bytes that are asked for at a time.
const READ_BYTES: u32 = 1 << 20;
/// How long another node may take to have chunks brought back from its disk before it says that there is nothing yet.
const WAIT_MS: u32 = 1_000;

/// Other nodes, as compaction of this one sees them.
pub(crate) struct Elsewhere {
    cluster: Arc<Cluster>,
    transport: RpcTransport,
}

impl Elsewhere {
    /// With connections of its own.
    pub(crate) fn new(cluster: &Arc<Cluster>) -> Elsewhere {
        let transport = RpcTransport::new(cluster.copies.runtime().clone());
        transport.knows(&cluster.group);
        Elsewhere { cluster: cluster.clone(), transport }
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
        let answer = wait_while(&self.cluster.runtime, answer, || !self.cluster.is_stopping()).ok_or(STOPPING)??;
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
        runs(me, lane, &owner, is_rebuilt)
    }

    fn read(
        &self,
        lane: &Lane,
        node: u32,
        epochs: Range<u32>,
        each: &mut dyn FnMut(&ChunkView<'_>) -> bool,
    ) -> Result<(), String> {
        read(node, epochs, &mut |cursor| self.ask(node, lane, cursor), each)
    }
}
