//! The group coordinator of the Kafka door: who is a member of which group, in which generation, and how far each group is.
//!
//! Logic only. The door calls one method per request, with the time, and takes the answers out of
//! [`Coordinator::take_done`]; what must be durable goes through a [`Journal`], what topics there are comes from [`Topics`].
//! Nothing here waits, looks at a clock or opens a socket, so that a test or a simulator can drive it. Runs under the
//! door's lock, on whichever thread the request came in on.
//!
//! ```text
//! request ─▶ Coordinator ─▶ Group ─┬▶ classic: join, sync, heartbeat, leave        generations and members through the journal
//!                                  ├▶ consumer: one heartbeat, epochs, assignors   epochs and members through the journal
//!                                  └▶ offsets                                      every change through the journal
//! ```

mod admin;
mod api;
mod changing;
mod classic;
mod consumer;
mod coordinator;
mod embedded;
mod group;
mod keeping;
mod offset_requests;
mod offsets;
mod requests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use api::{Answer, AppendFailed, Caller, Done, GroupConfig, Journal, Mark, Now, Topic, Topics};
pub use coordinator::Coordinator;
pub(crate) use coordinator::may_be_recorded;
