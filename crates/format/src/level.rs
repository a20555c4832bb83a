//! Levels of a cluster: what its nodes may count on each other to understand.
//!
//! Messages between two parties have versions that the two agree on when they connect. A level is about what *all* nodes of a cluster
//! must understand: entries of the coordinators' log, snapshots of them, and whatever one node leaves on disk or in streams for
//! another. The coordinators raise the level in force when every node speaks the next one, and never lower it
//! (`docs/decisions/0022-cluster-levels.md`).
//!
//! | level | since it |
//! | --- | --- |
//! | 1 | clusters as they first were |
//! | 2 | the level itself is in the coordinators' log, and clusters serve transactions |
//! | 3 | streams may be replicated asynchronously; logs of a node that holds older groups may be given up |
//! | 4 | a streamlet may move from its node to itself, to go on in another virtual log |
//! | 5 | coordinators of Kafka's groups keep members, in records that earlier versions do not know |
//! | 6 | where lanes begin whose records were deleted is in the coordinators' log |
//! | 7 | who rebuilds says which logs of lost nodes that takes, and the others may be given up meanwhile |
//! | 8 | that something is rebuilt counts for the owner epoch in which it was rebuilt, and for no later one |
//! | 9 | a node that has come back may hold again what it had, instead of the owner who rebuilds it |
//! | 10 | who takes over says with which ends of lost logs, and others may be taken back |
//! | 11 | compacted segments are copied again, in pieces |
//! | 12 | a person may give up blocks of a lost log of which no backup is left |
//! | 13 | a lost log without an end holds back those alone who may need something of it |
//! | 14 | of which nodes' logs a streamlet is rebuilt is known, and other logs hold it back no more, with an end or without |
//! | 15 | a person may give up what backups which are gone alone had of the end of a lost log |
//! | 16 | a node that comes back with all it had goes on with what nobody has taken over |
//! | 17 | settings of topics are kept as Kafka clients have given them |
//! | 18 | who takes something over passes over the logs of those who live and have what is in them |
//! | 19 | groups of Kafka clients change their protocol while they have members, of whom there are records that earlier versions do not know |
//! | 20 | producers skip the numbers of chunks that they have given up, instead of beginning another epoch |
//! | 21 | the number of copies of a stream may change, streamlet by streamlet |
//! | 22 | who goes on with what it was rebuilding needs none of its own logs for it |
//! | 23 | who has taken over what it cannot open gives it back to the node that is back with all of it |
//! | 24 | that a node has copied what it holds of a streamlet counts for the owner epoch that it knew of, and for no later one |
//! | 25 | a node that has come back may hold again what is in front of what the present owner has written in its earlier lives |
//! | 25 | a streamlet moves with more than 64 KiB of lanes and positions of applications |
//! | 26 | who gives a streamlet back keeps the older groups that it held before it took it over |
//! | 26 | a person may give up blocks of a lost log for one streamlet alone |

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

/// The level of clusters that know of none, and the lowest that this build speaks.
pub const FIRST: u32 = 1;
/// From this one on streams may be replicated asynchronously.
pub const ASYNCHRONOUS: u32 = 3;
/// From this one on a node may have logs of its earlier incarnations given up although it holds older groups of streamlets that have moved.
pub const HOLDERS_GIVE_UP: u32 = 3;
/// From this one on a streamlet may move from its node to itself.
pub const SELF_MOVES: u32 = 4;
/// From this one on members of Kafka's groups are kept.
pub const MEMBERS_KEPT: u32 = 5;
/// From this one on the coordinators' log says where lanes begin whose records were deleted.
pub const AGREED_FLOORS: u32 = 6;
/// From this one on nodes say which logs of lost nodes they rebuild from, so that others may be given up meanwhile.
pub const REBUILD_NEEDS: u32 = 7;
/// From this one on the coordinators' log says of what was rebuilt in which owner epoch that was.
pub const REBUILT_IN: u32 = 8;
/// From this one on a node that has come back may hold again what the present owner would rebuild.
pub const RETURNED_GROUPS: u32 = 9;
/// From this one on nodes say with which ends of lost logs they open streamlets, so that other ends may be taken back.
pub const USED_ENDS: u32 = 10;
/// From this one on compacted segments are copied again, in [pieces](crate::piece).
pub const COMPACTED_COPIES: u32 = 11;
/// From this one on a person may give up blocks of a lost log of which no backup is left.
pub const LOST_BLOCKS: u32 = 12;
/// From this one on a lost log without an end holds back those alone who may need something of it.
pub const OPEN_ENDS: u32 = 13;
/// From this one on it is known of which nodes' logs a streamlet is rebuilt.
pub const REBUILT_FROM: u32 = 14;
/// From this one on a person may give up what backups which are gone alone had of the end of a lost log.
pub const LOST_ENDS: u32 = 15;
/// From this one on a node that comes back with all it had goes on with what nobody has taken over, whatever ends of its logs are decided.
pub const OWNED_UNTIL_TAKEN: u32 = 16;
/// From this one on settings of topics are kept as they were given.
pub const SETTINGS: u32 = 17;
/// From this one on whoever takes something over needs no logs of earlier lives of those who live: its own, but those in which it was rebuilding it, and holders'.
pub const LIVING_HOLDERS: u32 = 18;
/// From this one on groups of Kafka clients change between the classic and the consumer protocol while they have members.
pub const CHANGING_GROUPS: u32 = 19;
/// From this one on producers [skip](crate::chunk::Skip) numbers. It is agreed on between a client and a node alone.
pub const SKIPPED_NUMBERS: u32 = 20;
/// From this one on streams may get another number of copies.
pub const CHANGED_COPIES: u32 = 21;
/// From this one on a node that comes back with all it had and goes on with what it was rebuilding needs no logs of its own lives in which it was.
pub const OWN_LIVES: u32 = 22;
/// From this one on who has taken over what it cannot open gives it back to the node that has come back with all of it.
pub const GIVEN_BACK: u32 = 23;
/// From this one on a node that has copied what it holds of a streamlet says in which owner epoch that is.
pub const COPIED_IN: u32 = 24;
/// From this one on the owner that leaves older groups to a node which has come back keeps what it has written itself in earlier owner epochs, and says so to the leader.
pub const RETURNED_IN_FRONT: u32 = 25;
/// From this one on a streamlet takes more than [`HANDED_BYTES_MAX`](crate::cluster::HANDED_BYTES_MAX) along if its lanes and applications need that.
pub const LARGE_MOVES: u32 = 25;
/// From this one on who gives a streamlet back keeps the older groups that it held before it took it over, and says so to the leader.
pub const GIVEN_BACK_IN_PART: u32 = 26;
/// From this one on a person may give up blocks of a lost log for one streamlet that is being rebuilt, also where backups are left that do not give them.
pub const LOST_FOR_ONE: u32 = 26;
/// The highest level that this build speaks.
pub const NEWEST: u32 = 26;

/// What this process speaks up to.
static SPOKEN: AtomicU32 = AtomicU32::new(NEWEST);

/// The levels that this process speaks.
#[inline]
pub fn spoken() -> RangeInclusive<u32> {
    FIRST..=SPOKEN.load(Ordering::Relaxed)
}

/// Has this process speak like one of an earlier version, with everybody: levels above `level`, and versions of operations that came
/// with them, are unknown to it. For tests of upgrades; before anything else happens. A level that this build does not
/// speak is taken for the nearest one.
pub fn speak_up_to(level: u32) {
    SPOKEN.store(level.clamp(FIRST, NEWEST), Ordering::Relaxed);
}
