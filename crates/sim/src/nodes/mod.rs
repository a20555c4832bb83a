//! Several nodes in one thread: each with a real log, virtual logs with copies, store, broker and backup, under the real rules of the
//! coordinators, on simulated time, networks and disks; nodes are lost, taken over from and come back, and what was acknowledged must
//! be there once and in order all the same.
//!
//! | part | what |
//! | --- | --- |
//! | `node` | a machine, and a process on it by turns instead of threads |
//! | `copies` | its virtual logs |
//! | `own_logs` | its virtual logs of streams with one copy, on its own disk |
//! | `copying` | what copies again what lacks copies |
//! | `compacting` | compaction, and what it asks other nodes |
//! | `taking`, `recovering` | what takes over and rebuilds, on a thread that runs only when the world lets it |
//! | `sessions` | connections of clients |
//! | `coordinators` | the real state, rules and plans on a simulated log |
//! | `voting` | that log on the coordinators' disks, in runs that have it there |
//! | `majority` | most coordinators that are gone, and the one that a person has go on alone |
//! | `client`, `producer`, `reader`, `member` | who talks to them |
//! | `early` | what producers of asynchronous streams were told of, and what may be missing of it |
//! | `network`, `packets`, `wires` | what is said between nodes, and between them and clients |
//! | `moving` | streamlets that move, and nodes that are stopped in good order |
//! | `bounds` | streams that keep so many bytes of each streamlet |
//! | `floors` | records that are deleted from the front of lanes |
//! | `losses` | more that is lost than copies allow, and what a person gives up |
//! | `unread` | blocks that nobody gives, and single streamlets that go on without |
//! | `away` | a node that is away while nobody can open what was taken over from it |
//! | `people` | nodes that are removed for good, and machines that come |
//! | `streams` | the streams that there are, and those that people make and delete |
//! | `hearing` | how nodes are told of what becomes true |
//! | `turns`, `leading`, `following` | what nodes do by themselves, what their leader does, and how they follow it |
//! | [`faults`], `trouble`, `clock`, `stuck` | what goes wrong |
//! | [`plan`] | what a run is made of |
//! | [`world`] | a run |
//!
//! A run is a function of its seed, like one of a single node ([`crate::cluster`]).

mod away;
mod bounds;
mod changing;
mod client;
mod clock;
mod compacting;
mod coordinators;
mod copies;
mod copying;
mod early;
pub mod faults;
mod floors;
mod following;
mod hearing;
mod leading;
mod losses;
mod majority;
mod member;
mod mending;
mod moving;
mod network;
mod node;
mod own_logs;
mod packets;
mod people;
pub mod plan;
mod producer;
mod reader;
mod recovering;
mod returning;
mod sessions;
mod streams;
mod stuck;
mod taking;
mod trouble;
mod turns;
mod unread;
mod voting;
mod wires;
pub mod world;

pub use faults::Fault;
pub use plan::{Kind, Plan, Planted, Report};
pub use world::run;

/// The cluster's uuid.
const CLUSTER: [u8; 16] = *b"simulatedcluster";
