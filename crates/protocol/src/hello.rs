//! The handshake. `Hello` is the first frame of a connection, and version 1 of it is understood for ever: whoever is
//! ahead learns from the answer how far back to go.

use crate::Op;
use crate::codec::wire_struct;
use crate::message::{messages, responses};

wire_struct! {
    /// Says who connects.
    pub struct Hello {
        /// What the program calls itself, for logs and listings. At most 255 bytes.
        pub client_name: String,
        /// Its version. At most 255 bytes.
        pub client_version: String,
    }
}

wire_struct! {
    /// The versions of one operation that the server speaks.
    pub struct OpRange {
        /// The operation; may be unknown to the reader.
        pub op: u16,
        /// The lowest version.
        pub version_min: u8,
        /// The highest version.
        pub version_max: u8,
    }
}

wire_struct! {
    /// Says who answers, what it speaks and what it takes.
    pub struct HelloResponse {
        /// What the server calls itself.
        pub server_name: String,
        /// Its version.
        pub server_version: String,
        /// The node; stays the same for a data directory.
        pub node_id: [u8; 16],
        /// The node's incarnation; higher after every start.
        pub node_epoch: u32,
        /// Every operation it speaks.
        pub ops: Vec<OpRange>,
        /// The largest frame it takes.
        pub frame_bytes_max: u32,
        /// The largest chunk it takes, header and padding included.
        pub chunk_bytes_max: u32,
        /// Bytes of requests that may be unanswered on this connection before it stops reading.
        pub in_flight_bytes_max: u64,
        /// Requests that may be unanswered on this connection before it stops reading.
        pub in_flight_requests_max: u32,
        /// Subscriptions that may be open on this connection.
        pub subscriptions_max: u32,
        /// A connection that is silent for so long is closed; zero: never.
        pub idle_timeout_ms: u32,
    }
}

impl HelloResponse {
    /// The ranges of this build, for [`ops`](HelloResponse::ops).
    pub fn ops_spoken() -> Vec<OpRange> {
        let range = |op: &Op| {
            let versions = op.versions();
            OpRange { op: *op as u16, version_min: *versions.start(), version_max: *versions.end() }
        };
        Op::ALL.iter().filter(|op| !op.versions().is_empty()).map(range).collect()
    }

    /// The highest version of `op` that both this build and the server speak.
    pub fn common_version(&self, op: Op) -> Option<u8> {
        let range = self.ops.iter().find(|range| range.op == op as u16)?;
        op.common_version(range.version_min, range.version_max)
    }
}

messages! { Hello => HelloResponse; }
responses!(HelloResponse);
