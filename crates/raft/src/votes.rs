//! Who of the coordinators votes. Pure, for the driver of the one that leads.

use std::collections::BTreeSet;

use kera_protocol::NO_MAJORITY;

/// Most coordinators that vote.
const VOTERS_MAX: usize = 5;

/// A coordinator that votes, or that follows closely enough to be given a vote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coordinator {
    pub(crate) node: u64,
    /// Whether it votes now.
    pub(crate) votes: bool,
    /// Whether it takes part.
    pub(crate) live: bool,
    /// Whether it is drained, as one is that is about to be given up.
    pub(crate) draining: bool,
}

/// Who is to vote, as `me` who leads wants it.
///
/// An odd number: of two both are needed for anything, so that two are lost more easily than one, and four more easily than three. When one of three was
/// given up one of the two that are left keeps its vote until there are three again.
///
/// Those who vote go on, also if they are lost for now. Of these, whoever is lost goes first where there are too many, and `me` last. Who is drained keeps
/// its vote only as long as there would be fewer votes without it than there are now: when it is gone there is nobody any more whom it could give it to.
pub(crate) fn who_votes(me: u64, known: &[Coordinator]) -> BTreeSet<u64> {
    let odd = |count: usize| if count.is_multiple_of(2) { count.saturating_sub(1) } else { count };
    let stay = known.iter().filter(|one| !one.draining).count();
    let vote = known.iter().filter(|one| one.votes).count();
    let mut known = known.to_vec();
    known.sort_by_key(|one| (one.draining, !one.votes, !one.live, one.node != me, one.node));
    let wanted = odd(stay).max(odd(vote)).min(VOTERS_MAX);
    known.iter().take(wanted).map(|one| one.node).collect()
}

/// That node `me` hears no majority of those who vote, with whom it does not hear, as a sentence without its end; nothing if it is one of more than half of them or hears these. Whether
/// they are not there or it is cut off itself, it cannot know.
pub(crate) fn lacking(me: u64, voters: &BTreeSet<u64>, hears: impl Fn(u64) -> bool) -> Option<String> {
    let (there, away): (Vec<u64>, Vec<u64>) = voters.iter().copied().partition(|voter| *voter == me || hears(*voter));
    if voters.is_empty() || there.len() > voters.len() / 2 {
        return None;
    }
    Some(format!("{NO_MAJORITY}: node {me} does not hear {}", named(&away)))
}

/// `node 1`, `nodes 1 and 2`, `nodes 1, 2 and 3`.
fn named(nodes: &[u64]) -> String {
    let numbers: Vec<String> = nodes.iter().map(u64::to_string).collect();
    match numbers.split_last() {
        None => "nobody".to_owned(),
        Some((only, [])) => format!("node {only}"),
        Some((last, others)) => format!("nodes {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_node_does_not_hear_is_said_where_that_is_a_majority() {
        let said =
            |me: u64, voters: u64, heard: &[u64]| lacking(me, &(1..=voters).collect(), |node| heard.contains(&node));
        let is = |text: &str| Some(format!("{NO_MAJORITY}: {text}"));
        assert_eq!(said(1, 3, &[]), is("node 1 does not hear nodes 2 and 3"));
        assert_eq!(said(2, 5, &[4]), is("node 2 does not hear nodes 1, 3 and 5"));
        assert_eq!(said(1, 2, &[]), is("node 1 does not hear node 2"));
        assert_eq!(said(2, 1, &[]), is("node 2 does not hear node 1"), "it does not vote itself");
        assert_eq!(said(4, 3, &[2, 3]), None);
        assert_eq!(said(2, 3, &[3]), None);
        assert_eq!(said(1, 1, &[]), None);
        assert_eq!(said(1, 0, &[]), None, "it knows of nobody yet");
    }

    /// Those of `all` who vote when `votes` did, `lost` are not there and `drained` are drained; 1 leads.
    fn of(all: u64, votes: &[u64], lost: &[u64], drained: &[u64]) -> Vec<u64> {
        let one = |node| {
            let votes = votes.contains(&node);
            Coordinator { node, votes, live: !lost.contains(&node), draining: drained.contains(&node) }
        };
        who_votes(1, &(1..=all).map(one).collect::<Vec<_>>()).into_iter().collect()
    }

    #[test]
    fn one_three_or_five_vote() {
        let numbers = (1..=7).map(|all| of(all, &[1], &[], &[]).len());
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 1, 3, 3, 5, 5, 5]);
        assert_eq!(of(4, &[1, 3, 4], &[3], &[]), [1, 3, 4], "who is lost for now goes on");
    }

    #[test]
    fn when_one_was_given_up_another_one_gets_its_vote_or_one_more_loses_its_own() {
        assert_eq!(of(3, &[1, 3], &[], &[]), [1, 2, 3]);
        assert_eq!(of(2, &[1, 2], &[], &[]), [1]);
        assert_eq!(of(4, &[1, 2, 3, 4], &[], &[]), [1, 2, 3]);
        assert_eq!(of(4, &[1, 2, 3, 4], &[2], &[]), [1, 3, 4], "who is lost");
        assert_eq!(of(4, &[1, 2, 3, 4], &[2], &[3]), [1, 2, 4], "who is to go");
    }

    #[test]
    fn who_is_drained_gives_its_vote_to_another_one_that_stays() {
        assert_eq!(of(3, &[1, 2, 3], &[], &[3]), [1, 2, 3], "there is none");
        assert_eq!(of(4, &[1, 2, 3], &[], &[3]), [1, 2, 4]);
        assert_eq!(of(5, &[1, 2, 3], &[], &[3]), [1, 2, 4], "not to five with one that goes");
        assert_eq!(of(2, &[1], &[], &[1]), [2], "the only one, which leads");
        assert_eq!(of(1, &[1], &[], &[1]), [1]);
        assert_eq!(of(2, &[1, 2], &[], &[1]), [2]);
    }
}
