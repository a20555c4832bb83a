//! Messages of a group that is no more: of nodes that were taken for gone, and were not, or came back ([`Survivor::recover`](crate::Survivor::recover)).
//!
//! Raft tells leaders apart by their terms alone, and a node says its term to whoever asks in a lower one. So those who were the majority before would learn the term of the group
//! that went on without them, elect one of theirs in the next, and be followed by all who hear of it, whatever is in their log: of entries that are decided `openraft`
//! takes for granted that they are the same everywhere. So what such nodes send is refused before it is looked at as a message of the log, with an error that says no term.
//!
//! They are told by how far they are. A recovery skips [`SKIPPED`] terms and entries, and the first entry of its group is behind them. Whoever has applied that
//! refuses messages whose sender is more than half as far behind:
//!
//! * In a lower term. No leader or candidate of this group is: what is applied was decided in a term that a majority knew.
//! * With fewer entries, whatever its term is. A leader of this group knows that decided which its snapshot has, and all that others can have applied is behind that by no more than the entries
//!   between two snapshots, some thousands. A snapshot that it sends is one of these. A candidate with so few entries does not have what is decided, and
//!   would get no vote anyway.
//!
//! Nodes from before can pass for this group only once they decide half a million entries by themselves.

use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::Refused;
use kera_format::cluster::RaftPlace;

use crate::survivor::SKIPPED;
use crate::types::{Place, place_of};

/// Refuses a message of a group that this node's has left behind. `applied`: up to where this node's state is; `at`: an entry that whoever sends it has or knows to be decided.
///
/// # Errors
/// It is one.
pub(crate) fn check_group(applied: Option<Place>, term: u64, at: Option<RaftPlace>) -> Result<(), CoordinatorError> {
    let applied = applied.as_ref().map(place_of).unwrap_or_default();
    let index = at.map_or(0, |place| place.index);
    let is_near = |its: u64, own: u64| its.saturating_add(u64::from(SKIPPED / 2)) >= own;
    if is_near(term, applied.term) && is_near(index, applied.index) {
        return Ok(());
    }
    tracing::debug!(term, index, "a node of the coordinators' group before a recovery is refused");
    let reason = format!(
        "the coordinators' log is at entry {index} there, in the group from before the majority was lost (`kera cluster recover`): the node follows by itself when the leader reaches \
         it, keep its disks; if it was given up (`kera node remove`), stop it"
    );
    Err(CoordinatorError::Refused(Refused(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::log_id;

    #[test]
    fn who_is_far_behind_in_terms_or_entries_is_of_a_group_before() {
        let place = |term, index| Some(RaftPlace { term, leader: 1, index });
        let of = |term, index| place(term, index).as_ref().map(log_id);
        let (applied, skipped) = (of(1_048_580, 1_049_000), u64::from(SKIPPED));
        assert!(check_group(None, 1, None).is_ok(), "a node that has nothing yet");
        assert!(check_group(of(7, 5000), 7, None).is_ok(), "no recovery ever was");
        assert!(check_group(applied, 1_048_580, place(1_048_580, 1_048_990)).is_ok());
        assert!(check_group(applied, 2 * skipped, place(2 * skipped, 3 * skipped)).is_ok(), "another recovery");
        assert!(check_group(applied, 5, place(5, 1_049_000)).is_err(), "its term");
        assert!(check_group(applied, 1_048_581, place(1_048_581, 430)).is_err(), "it has heard of the term");
        assert!(check_group(applied, u64::MAX, None).is_err());
    }
}
