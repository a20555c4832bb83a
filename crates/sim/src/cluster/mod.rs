//! A node and its clients in one thread: the real logic of log, virtual logs, store, coordinator and broker, on simulated
//! clocks, networks and disks, with everything that can go wrong, and with checks of what must hold all the same.
//!
//! | part | what |
//! | --- | --- |
//! | [`schedule`] | what happens when; the fingerprint of a run |
//! | `machine` | disk, arena and process of a node, by turns instead of threads |
//! | `client`, `producer`, `reader`, `member` | who talks to it, by the protocol's own messages |
//! | [`faults`] | what goes wrong |
//! | [`truth`] | what everybody has seen, and what must hold of it |
//! | [`world`] | a run |
//!
//! A run is a function of its seed: no thread, no socket, no clock and no random number that is not simulated.

pub(crate) mod client;
pub mod faults;
pub(crate) mod machine;
pub(crate) mod member;
mod producer;
pub(crate) mod reader;
pub mod schedule;
pub mod truth;
pub mod world;

pub use faults::Fault;
pub use world::{Plan, Planted, Report, run};
