//! A group changes its protocol while it has members, as in KIP-848: one whose members agree among themselves (classic) becomes one
//! whose coordinator assigns (consumer) when the first member of that kind comes, and goes back when the last one has gone.
//! In between both kinds are in it, so that an application is rolled from one protocol to the other without a moment at which nobody reads.
//!
//! # Why no partition is with two members, and no epoch comes again
//!
//! * *Up.* Members have at most what their generation gave them and what they said they had when they joined last: who keeps what it has while it joins
//!   again may not have heard yet what it is given instead, or be about to give back what it is not given any more. All of
//!   that they hold in the new group, and nobody is given what somebody holds. The group's epoch goes on behind the generation, so each of them is asked to
//!   join again, and says by that what it has given back.
//! * *Down.* The generation is the epoch of the last target, which no member's epoch is above: the next one was told to nobody. As in any
//!   rebalance of the classic protocol, nobody has anything in it before its leader has assigned, and that is when all have joined again or are thrown out.
//! * A crash in between. The group's record comes first, and with another kind than the one before it all that was kept of members
//!   is over ([`Coordinator::replay`](super::Coordinator::replay)): either the change is there with all of its members, or nobody is a member, and all join again.
//!
//! Members of both kinds are in one group only from level [`CHANGING_GROUPS`](kera_format::level::CHANGING_GROUPS) on: earlier versions cannot read their
//! records. Before that a group changes while it is empty, and members of the other kind are refused.

use bytes::Bytes;

use super::embedded::{self, Named, Subscription};

/// The type of protocol of members that consume, the only ones a coordinator can assign to.
pub(super) const CONSUMERS: &str = "consumer";

/// A member that speaks the classic protocol, on its way from a group of one kind to the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Changing {
    pub(super) id: String,
    /// The name that outlives it, if it has one.
    pub(super) instance: Option<String>,
    pub(super) client_id: String,
    pub(super) host: String,
    pub(super) session_ms: u64,
    pub(super) rebalance_ms: u64,
    /// What it can do, what it likes most first, each with what it tells.
    pub(super) protocols: Vec<(String, Bytes)>,
    /// What it was given last. With what its subscription says it had when it joined, that is all that it may be reading.
    pub(super) given: Named,
}

/// What a member of the classic protocol subscribes to, by what it says under the protocol that it likes most.
pub(super) fn subscription_of(protocols: &[(String, Bytes)]) -> Option<Subscription> {
    embedded::subscription(&protocols.first()?.1)
}
