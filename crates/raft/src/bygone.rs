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
//!
//! Where a person has had two nodes go on, each alone, one of them has skipped at least [`SKIPPED`] more than the other, which is to it as a node from before.

use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::Refused;
use kera_format::cluster::RaftPlace;
use kera_protocol::RaftBallot;

use crate::group::Group;
use crate::survivor::SKIPPED;
use crate::types::{Place, ballot_of, log_id, place_of};

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

impl Group {
    /// Refuses what a leader sends in whose log another entry is at a place that is decided here: each of two nodes went on alone from the group that both were in, and they have come as
    /// far. `openraft` takes for granted that what is decided is the same everywhere, and would go on with the one's entries behind the other's. A recovery skips so much that two of
    /// them are told apart as a group and one before it ([`check_group`]); this is for those that are not, as of earlier versions.
    ///
    /// A leader of this very group that was deposed, and does not know it yet, may have an entry there that was never decided. Its messages are in vain anyway; the present leader tells it.
    /// This node does not, for it cannot tell it from one that has gone on alone, which must not learn of the term. But it can say what to do in either case: who takes a deposed one for the
    /// other would clear the data directory of a node that has all that it should have.
    ///
    /// # Errors
    /// It has another one.
    pub(crate) fn check_same(&self, ballot: RaftBallot, at: Option<RaftPlace>) -> Result<(), CoordinatorError> {
        let applied = self.shared.current.read().applied;
        let (Some(at), Some(applied)) = (at.as_ref().map(log_id), applied) else { return Ok(()) };
        if applied.leader_id.term < u64::from(SKIPPED) || at.index > applied.index {
            return Ok(());
        }
        let entry = self.entries.read().get(&at.index).map(|entry| entry.log_id);
        let metrics = self.raft.metrics().borrow().clone();
        let decided = [Some(applied), entry, metrics.snapshot, metrics.purged];
        let here = decided.into_iter().flatten().find(|place| place.index == at.index);
        if at <= applied && here.is_none_or(|here| here == at) {
            return Ok(());
        }
        let (node, here) = (ballot.node, here.unwrap_or(applied));
        let own = ballot_of(&metrics.vote);
        if (ballot.term, ballot.node) < (own.term, own.node) {
            let reason = format!(
                "node {node} leads the coordinators no more: they have decided entry {} without it. It follows by itself when the present leader reaches it: keep its disks, and see that the two \
                 reach each other. Only if it goes on to lead where they do, it has gone on alone from the same coordinators (`kera cluster recover`): decide then which of the two goes on",
                at.index
            );
            return Err(CoordinatorError::Refused(Refused(reason)));
        }
        let reason = format!(
            "node {node} leads coordinators with another log: entry {} is of node {} in term {} there, and this node has entry {} of node {} in term {}. Both have gone on alone from the \
             same coordinators (`kera cluster recover`), and what one has decided since the other lacks: decide which of them goes on, stop the other one, give it up there \
             (`kera node remove`), and start it with an empty data directory",
            at.index, at.leader_id.node_id, at.leader_id.term, here.index, here.leader_id.node_id, here.leader_id.term
        );
        if self.contradicting.lock().insert(node) {
            tracing::error!("{reason}");
        }
        Err(CoordinatorError::Refused(Refused(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
