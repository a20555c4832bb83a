//! What a cluster agrees on beyond its streams: nodes, owners, views of virtual logs, moves. The rules of
//! `docs/replication.md`.
//!
//! Plain data like [`Catalog`](crate::catalog::Catalog): no lock, no disk, no time of its own. `rules.rs` says when an
//! entry may become true, `plan.rs` which entries do what somebody asked for. Every node of the cluster applies the same
//! entries in the same order, so all checks look at nothing but the state and the entry.

mod balance;
mod copies;
mod duties;
mod ends;
mod given_back;
mod handed;
mod looks;
mod lost;
mod lost_for_one;
mod moves;
mod needs;
mod numbers;
mod open_ends;
mod owners;
mod plan;
mod returned;
mod rules;
mod skipped;
mod state;
mod told;

pub use balance::{NOTICEABLE, RATE_MAX, Rates, move_info, moves_by_itself};
pub use copies::{CopiesChange, ToCopy};
pub use duties::{EndsAsked, HandedOn, Owned, Placed, ToBeCut, ToldEnd, agreed_end};
pub use ends::AgreedEnd;
pub use given_back::asked_back;
pub use looks::EndLooks;
pub use lost_for_one::Views;
pub use moves::{CalledOff, Loss, MOVES_MAX};
pub use needs::Needs;
pub use owners::{Held, Owner, Run, Sources, StreamOwners};
pub use plan::{Join, LogView, OWNER_RUNS_MAX, roles_of};
pub use returned::{Offerable, Offers};
pub use rules::Refused;
pub use state::{ClusterState, Floor, LogState, Move, NodeState, View};
pub use told::{Change, Telling, ToldStreams};
