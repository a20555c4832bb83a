//! Models of KerA's protocols, small enough to walk through every state that can be reached.
//!
//! For tests only: nothing of a node depends on it. [`explore`] walks; [`replication`] and [`ownership`] are the core of
//! `docs/replication.md`.

pub mod explore;
pub mod ownership;
pub mod replication;
