//! What other nodes have of a streamlet, for compaction: who has which groups by the table of owners, and the walk over their chunks
//! (`docs/decisions/0037-tombstones-look-at-other-nodes.md`). How nodes are asked is the caller's business.

use std::ops::Range;

use kera_format::chunk::Chunks;
use kera_format::{ChunkView, Cursor};
use kera_log::compact::{Holder, Run};
use kera_log::{Lane, Tenure};
use kera_protocol::{Owner, ReadChunksResponse, Status};

use crate::ownership::first_of;

/// So often a node may say that there is nothing yet before it is left alone for this time.
const QUIET_MAX: u32 = 10;

/// Who has the groups of a lane's streamlet, by its entry in the table of owners, as node `me` sees it. `None`: some may still come to this node.
pub fn runs(me: u32, lane: &Lane, owner: &Owner, is_rebuilt: bool) -> Option<Vec<Run>> {
    let is_mine = owner.node == me;
    let is_open = lane.tenure() == Tenure::Here && lane.owner_epoch() == owner.epoch;
    // A streamlet that is taken over or rebuilt here gets older groups, or another node holds them again.
    (!is_mine || is_open && !is_rebuilt).then(|| runs_of(me, owner))
}

/// Calls `each` with every chunk that a node has in groups of these owner epochs, until that returns false. `ask` reads at a cursor there. An error unless
/// it was called with all of them.
pub fn read(
    node: u32,
    epochs: Range<u32>,
    ask: &mut dyn FnMut(Cursor) -> Result<ReadChunksResponse, String>,
    each: &mut dyn FnMut(&ChunkView<'_>) -> bool,
) -> Result<(), String> {
    let mut cursor = first_of(epochs.start);
    let mut quiet = 0;
    while cursor.group.epoch() < epochs.end {
        let read = ask(cursor)?;
        let Some((head, data)) = read.answers.into_iter().next() else {
            quiet += 1;
            if quiet == QUIET_MAX {
                return Err(format!("node {node} has nothing at {cursor:?}, and does not say that it ends there"));
            }
            continue;
        };
        quiet = 0;
        if !goes_on(head.status(), cursor, head.next, &epochs) {
            return Err(format!("node {node} says {:?} at {cursor:?}", head.status()));
        }
        for chunk in Chunks::new(&data) {
            let chunk = chunk.map_err(|error| error.to_string())?;
            chunk.verify().map_err(|error| error.to_string())?;
            let group = chunk.broker().map_err(|error| error.to_string())?.group;
            if group.epoch() < epochs.end && !each(&chunk) {
                return Err("there is too much, or the node is stopping".into());
            }
        }
        cursor = head.next;
    }
    Ok(())
}

/// Whether an answer says what there is at a cursor, and where it goes on behind that. A node that has not these groups, or does not know yet that
/// they ended, says neither.
fn goes_on(status: Option<Status>, at: Cursor, next: Cursor, epochs: &Range<u32>) -> bool {
    match status {
        Some(Status::Ok) => next > at,
        // It has them up to their end.
        Some(Status::NotOwner) => next.group.epoch() >= epochs.end,
        // Retention has taken what was there.
        Some(Status::CursorGone) => next > at,
        _ => false,
    }
}

fn runs_of(me: u32, owner: &Owner) -> Vec<Run> {
    let run = |(first_epoch, node): (u32, u32)| {
        let holder = match node {
            0 => Holder::Nobody,
            node if node == me => Holder::Here,
            node => Holder::Node(node),
        };
        Run { first_epoch, holder }
    };
    owner.runs().map(run).collect()
}

#[cfg(test)]
mod tests {
    use kera_protocol::OlderGroups;

    use super::*;

    #[test]
    fn groups_that_are_lost_are_nobodys_and_the_last_run_is_the_owners() {
        let older = [(2, 1), (4, 0), (5, 3)].map(|(first_epoch, node)| OlderGroups { first_epoch, node });
        let found = runs_of(3, &Owner { node: 1, epoch: 9, older: older.to_vec() });
        let expected = [(2, Holder::Node(1)), (4, Holder::Nobody), (5, Holder::Here), (9, Holder::Node(1))];
        assert_eq!(found, expected.map(|(first_epoch, holder)| Run { first_epoch, holder }));
    }

    #[test]
    fn a_node_that_has_not_what_is_asked_for_is_not_believed_to_have_read_all_of_it() {
        let (at, inside, end) = (first_of(4), Cursor { position: 900, ..first_of(4) }, first_of(6));
        let says = |status, next| goes_on(Some(status), at, next, &(4..6));
        assert!(says(Status::Ok, inside) && says(Status::NotOwner, end) && says(Status::CursorGone, inside));
        assert!(!says(Status::Ok, at), "it would be asked for ever");
        assert!(!says(Status::NotOwner, at) && !says(Status::NotOwner, first_of(5)), "it may not know what it has");
        assert!(!says(Status::NotReady, end) && !goes_on(None, at, end, &(4..6)));
    }
}
