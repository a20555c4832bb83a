//! The Kafka door: serves Kafka's protocol in the same process, straight onto the log.
//!
//! A topic is a stream, partition p is lane p mod Q of streamlet p / Q, an offset is an ordinal. A record batch is kept verbatim
//! as a chunk's payload ([`kera_format::chunk::PayloadKind::KafkaBatch`]); native chunks become batches on the way to a Kafka
//! reader. A node that is alone leads every partition, in a cluster the owner of its streamlet does.
//!
//! | part | does |
//! | --- | --- |
//! | `apis`, `shape`, `wire` | which requests are served, and that nothing in them lies about its size |
//! | `session` | one connection: requests in, answers out, in order |
//! | `produce`, `batch` | record batches into lanes |
//! | `fetch`, `fetch_sessions`, `offsets` | lanes as record batches; what a client goes on fetching; times to offsets |
//! | `admin`, `metadata`, `configs`, `access` | topics and what the node says about itself |
//! | `counts`, `once` | numbers for metrics; what requests name again and again |
//! | `older` | what other nodes have of partitions that moved here |
//! | `epochs` | epochs of leaders |
//! | `cluster`, `copies` | who leads and votes; where copies are |
//! | `assignments`, `reassignments` | where clients want partitions: new ones, and those that are to move or to get another number of copies |
//! | `partitions`, `floors` | what partitions take up; where they begin once records were deleted |
//! | [`groups`], `group_door`, `group_parts`, `group_founding`, `gone_topics` | the group coordinator, its connections, which groups are this node's, which come from a node that was alone, and what goes with a topic |
//! | `state_log` | the streams of the coordinators |
//! | [`transactions`], `transaction_door`, `transaction_waits`, `endings` | the transaction coordinator, its connections, who waits for an end, its markers |
//! | `transaction_parts`, `far_endings`, `node_requests`, `transaction_founding` | the same in a cluster: whose ids are whose, markers of other nodes, what nodes ask each other, and what comes from a node that was alone |
//!
//! Sessions run on the I/O threads of a [`kera_rpc::Server`] with [`kera_rpc::Framing::Prefixed`] and never wait; commands that
//! wait for a disk or for other nodes have a thread of their own. Nothing from the network is believed: requests are walked along their shape
//! before memory is taken for them.

mod access;
mod admin;
mod apis;
mod assignments;
mod batch;
mod cluster;
mod config_words;
mod configs;
mod convert;
mod copies;
mod counts;
mod door;
mod endings;
mod epochs;
mod far_endings;
mod fetch;
mod fetch_sessions;
mod floors;
mod gone_topics;
mod group_door;
mod group_founding;
mod group_parts;
pub mod groups;
mod limits_told;
mod metadata;
mod node_requests;
mod numbering;
mod offsets;
mod older;
mod once;
mod pace;
mod partitions;
mod produce;
mod reassignments;
mod request;
mod session;
mod shape;
mod starts;
mod state_log;
mod state_parts;
#[cfg(test)]
mod tests;
mod transaction_claims;
mod transaction_door;
mod transaction_doubt;
mod transaction_founding;
mod transaction_journal;
mod transaction_owner;
mod transaction_partitions;
mod transaction_parts;
mod transaction_waits;
pub mod transactions;
mod visibility;
mod wire;

pub use counts::DoorStats;
pub use door::{Coordinators, Door, DoorConfig, DoorThread, Given, KafkaSessions, OtherNodes, StartError};
pub use node_requests::Answered;
pub use request::read_request;
pub use state_log::NOT_GIVEN;
pub use wire::Malformed;
