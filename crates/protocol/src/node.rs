//! How a node is.

use crate::ProtocolError;
use crate::codec::{Reader, Wire, wire_enum, wire_struct};
use crate::message::{messages, responses};
use crate::spec::{Source, Trace};

/// Asks how the node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStatus;

impl Wire for NodeStatus {
    const BYTES_MIN: usize = 0;
    fn put(&self, _out: &mut Vec<u8>) {}
    fn get(_from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok(NodeStatus)
    }
    fn kind() -> String {
        "NodeStatus".to_owned()
    }
    fn trace(&self, _trace: &mut Trace) {}
    fn sample(_source: &mut Source<'_>) -> Self {
        NodeStatus
    }
}

wire_enum! {
    /// What a node does.
    pub enum Role, "0 (coordinator), 1 (broker) or 2 (backup)" {
        /// Keeps the catalog.
        Coordinator = 0 => "coordinator",
        /// Serves streams.
        Broker = 1 => "broker",
        /// Keeps copies.
        Backup = 2 => "backup",
    }
}

wire_struct! {
    /// A directory that data is kept in.
    pub struct DiskStatus {
        /// Its path on the node.
        pub path: String,
        /// Bytes of its file system.
        pub total_bytes: u64,
        /// Bytes that are free there.
        pub free_bytes: u64,
        /// Bytes that the node's own files take.
        pub used_bytes: u64,
        /// Why it is not used, empty if it is.
        pub problem: String,
    }
}

wire_struct! {
    /// How a node is.
    pub struct NodeStatusResponse {
        /// The node.
        pub node_id: [u8; 16],
        /// Its incarnation.
        pub node_epoch: u32,
        /// The version of its program.
        pub version: String,
        /// What it does.
        pub roles: Vec<Role>,
        /// When it started, milliseconds since 1970.
        pub started_ms: i64,
        /// For how long it has been up, in milliseconds.
        pub uptime_ms: u64,
        /// Whether it serves.
        pub ready: bool,
        /// What keeps it from serving, or from serving well; empty if nothing does.
        pub problems: Vec<String>,
        /// Bytes of the arena.
        pub arena_bytes: u64,
        /// Of those, used.
        pub arena_used_bytes: u64,
        /// Streams.
        pub streams: u64,
        /// Lanes that were written to.
        pub lanes: u64,
        /// Groups.
        pub groups: u64,
        /// Segments.
        pub segments: u64,
        /// Bytes of chunks kept, in memory and on disk.
        pub stored_bytes: u64,
        /// Open connections.
        pub connections: u64,
        /// Open subscriptions.
        pub subscriptions: u64,
        /// Applications.
        pub applications: u64,
        /// Records appended since it started.
        pub appended_records: u64,
        /// Bytes of chunks appended since it started.
        pub appended_bytes: u64,
        /// Bytes of chunks sent to readers since it started.
        pub read_bytes: u64,
        /// Bytes appended and not durable yet.
        pub pending_bytes: u64,
        /// Where data is kept.
        pub disks: Vec<DiskStatus>,
    }
}

messages! { NodeStatus => NodeStatusResponse; }
responses!(NodeStatusResponse);
