//! Doubting KerA without a machine to break: models of its protocols, small enough to walk through every state that can be
//! reached, and a simulator that puts the real logic through years of trouble in minutes.
//!
//! For tests only: nothing of a node depends on it. [`explore`] walks; [`replication`], [`ends`] and [`ownership`] are the core
//! of `docs/replication.md`. [`cluster`] simulates; the binary `kera-sim` runs it for as long as one likes.

pub mod cluster;
pub mod ends;
pub mod explore;
mod faults;
pub mod nodes;
pub mod ownership;
pub mod replication;
mod served;
