//! What tests of several modules need.

use kera_protocol::HelloResponse;

/// How a node greets.
pub(crate) fn hello() -> HelloResponse {
    HelloResponse {
        server_name: "test".into(),
        server_version: "1".into(),
        node_id: [1; 16],
        node_epoch: 1,
        ops: HelloResponse::ops_spoken(),
        frame_bytes_max: 8 << 20,
        chunk_bytes_max: 4 << 20,
        in_flight_bytes_max: 64 << 20,
        in_flight_requests_max: 1_000,
        subscriptions_max: 128,
        idle_timeout_ms: 0,
    }
}
