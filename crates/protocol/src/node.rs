//! How a node is.

use crate::codec::{question, wire_enum, wire_struct};
use crate::first::node::CopiesDescriptionV1;
use crate::message::{messages, responses, versioned_responses};

question! {
    /// Asks how the node is.
    NodeStatus
}

question! {
    /// Asks how a node's copies on other nodes are, and what it keeps for others.
    DescribeCopies
}

question! {
    /// Asks which streamlets a node has in virtual logs of their own.
    DescribeLogs
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
        /// Streams, but for the system's own.
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

wire_struct! {
    /// How the copies of what a node owns are, and what it keeps for others. All zeros from a node that is alone.
    #[derive(Copy, Default)]
    pub struct CopiesDescription {
        /// Virtual logs of this node that other nodes have copies of.
        pub logs: u64,
        /// Bytes of chunks that wait for their copies.
        pub pending_bytes: u64,
        /// Blocks of those logs that are needed and have fewer copies than they should.
        pub under_replicated_blocks: u64,
        /// Bytes of lost brokers that are still to be rebuilt here, or are and have not their copies yet.
        pub rebuild_left_bytes: u64,
        /// Virtual logs of other nodes of which this one has a copy.
        pub backup_logs: u64,
        /// Bytes of the files of those copies.
        pub backup_bytes: u64,
        /// Of those logs, those of nodes that were lost or started again since: they stay until nobody rebuilds from them and nothing is copied
        /// in them alone.
        pub lost_logs: u64,
        /// Bytes of the files of those.
        pub lost_log_bytes: u64,
    }
}

wire_struct! {
    /// A streamlet that has a virtual log of its own because it filled the one that it shared with others.
    #[derive(Copy)]
    pub struct OwnLog {
        /// Of which stream.
        pub stream: kera_format::StreamId,
        /// Which streamlet.
        pub streamlet: kera_format::StreamletId,
        /// Number of the log among those of its node.
        pub log: u32,
    }
}

wire_struct! {
    /// Streamlets of a node that have virtual logs of their own.
    #[derive(Default)]
    pub struct LogsDescription {
        /// Them, by stream and number.
        pub own: Vec<OwnLog>,
    }
}

messages! {
    NodeStatus => NodeStatusResponse;
    DescribeCopies => CopiesDescription;
    DescribeLogs => LogsDescription;
}
responses!(NodeStatusResponse, LogsDescription);
versioned_responses! { CopiesDescription, 1 CopiesDescriptionV1; }
