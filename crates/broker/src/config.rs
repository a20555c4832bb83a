//! What a broker is told: limits and defaults. Plain values, checked by the node's configuration; read on every thread.

use kera_format::limits as sizes;
use kera_protocol::FRAME_HEADER_BYTES;
use kera_protocol::frame::FRAME_BYTES_MAX;
use kera_protocol::limits::READ_ENTRIES_MAX;
use kera_protocol::read::{ANSWER_BYTES, READ_HEAD_BYTES};

/// Limits and defaults of a broker. [`Default`] works; `epoch` must be set by the node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerConfig {
    /// The node's incarnation, higher after every start. Part of every member and application id, so that those of an
    /// earlier process are never mistaken for those of this one.
    pub epoch: u32,
    /// The largest frame that comes in, in bytes; lists that have no pages take half of one at most.
    pub frame_bytes_max: usize,

    /// Unanswered write requests per connection; the next one waits in the connection's buffer.
    pub in_flight_requests_max: usize,
    /// Bytes of unanswered write requests per connection; one request is always let through.
    pub in_flight_bytes_max: usize,
    /// How long a write waits for room or for its disk when the request does not say, in milliseconds.
    pub write_timeout_ms_default: u32,
    /// The longest that a write may ask to wait, in milliseconds; longer is cut.
    pub write_timeout_ms_max: u32,

    /// Data bytes of one read's answer; a request that asks for more gets this. A first chunk that is larger comes all
    /// the same.
    pub read_bytes_max: usize,
    /// Data bytes of one push; a subscription that asks for more, or for nothing in particular, gets this.
    pub push_bytes_max: usize,
    /// Requests that wait at one time per connection: reads, lookups, next groups, next segments.
    pub waiting_max: usize,
    /// Subscriptions per connection.
    pub subscriptions_max: usize,
    /// Entries of all waiting reads and subscriptions of a connection together.
    pub entries_max: usize,
    /// Credit that a subscription may have, in bytes; more is cut.
    pub credit_bytes_max: u64,

    /// Applications of the node.
    pub applications_max: usize,
    /// Memory for what applications may come to know of lanes, of all together, in bytes. One that would pass it is not made; those that there are
    /// grow with their streams all the same.
    pub applications_bytes_max: u64,
    /// Members of one application.
    pub members_max: usize,
    /// Groups that a member gets in one answer.
    pub groups_per_answer_max: usize,
    /// Groups of one lane, with `order = none`, that may be leased or done while an earlier one is not.
    pub groups_ahead_max: usize,
    /// A lease's length when a member does not ask for one, in milliseconds.
    pub lease_ms_default: u32,
    /// The shortest lease; shorter wishes are raised to it.
    pub lease_ms_min: u32,
    /// The longest lease; longer wishes are cut to it.
    pub lease_ms_max: u32,
    /// The stream of committed offsets is written anew when this many bytes were added since the last time, and at
    /// least as many as the state itself takes.
    pub snapshot_bytes: u64,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        BrokerConfig {
            epoch: 1,
            frame_bytes_max: sizes::FRAME_BYTES_DEFAULT,
            in_flight_requests_max: 256,
            in_flight_bytes_max: 64 << 20,
            write_timeout_ms_default: 30_000,
            write_timeout_ms_max: 600_000,
            read_bytes_max: 8 << 20,
            push_bytes_max: 1 << 20,
            waiting_max: 64,
            subscriptions_max: 64,
            entries_max: 65_536,
            credit_bytes_max: 256 << 20,
            applications_max: 10_000,
            applications_bytes_max: 32 << 20,
            members_max: 10_000,
            groups_per_answer_max: 1_024,
            groups_ahead_max: 1_024,
            lease_ms_default: 30_000,
            lease_ms_min: 1_000,
            lease_ms_max: 600_000,
            snapshot_bytes: 4 << 20,
        }
    }
}

/// Data bytes that fit into a frame beside `entries` answers.
///
/// Into the largest frame of the protocol, which every client takes, and not into the largest that clients may send here: of
/// a chunk that has come in by itself an answer may have to tell many lanes besides. So a chunk always fits, beside as many
/// entries as a request may have, and there is always room for some data. What an answer keeps in memory is bounded by
/// [`read_bytes_max`](BrokerConfig::read_bytes_max) or [`push_bytes_max`](BrokerConfig::push_bytes_max), or is one chunk.
pub(crate) fn data_bytes_max(entries: usize) -> usize {
    FRAME_BYTES_MAX.saturating_sub(FRAME_HEADER_BYTES + READ_HEAD_BYTES + entries * ANSWER_BYTES)
}

const _: () = assert!(
    FRAME_HEADER_BYTES + READ_HEAD_BYTES + READ_ENTRIES_MAX * ANSWER_BYTES + sizes::CHUNK_BYTES_MAX <= FRAME_BYTES_MAX
);
