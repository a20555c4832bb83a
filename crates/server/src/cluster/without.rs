//! Blocks of lost logs without which single streamlets go on, as a person has said (`docs/replication.md`, "One streamlet goes on without").

use std::collections::BTreeSet;

use kera_broker::EndedLog;
use kera_coordinator::cluster::{ClusterState, Owned};
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};

/// Views of logs, each with its number from 1.
pub(super) type Views = BTreeSet<(LogId, u32)>;

/// What was given up for a streamlet: in owner epochs before this one, and in all. The former is not asked for any more, for an owner before may have opened the streamlet without;
/// the rest may still come from somebody.
pub(super) fn given_up(
    state: &ClusterState,
    (stream, streamlet): (StreamId, StreamletId),
    owner_epoch: u32,
) -> (Views, Views) {
    let all = || state.given_up_for(stream, streamlet.0);
    let view = |(log, view, _): (LogName, u32, u32)| (LogId::from(log), view);
    (all().filter(|(_, _, said_in)| *said_in < owner_epoch).map(view).collect(), all().map(view).collect())
}

/// Of so many views that were given up it is found out which ones read back after all. Of more only if all but one do, for each way to leave some out asks all backups.
const TOLD_APART_MAX: usize = 4;

/// What is left out in turn until a streamlet can be opened, beside what an owner before has left out: of the rest as few views as will do. Of several that were given up some may read
/// back: who has named one of these first, and then the right one, loses nothing of it.
pub(super) fn tries(before: &Views, all: &Views) -> Vec<Views> {
    let rest: Vec<(LogId, u32)> = all.difference(before).copied().collect();
    let with = |some: Vec<(LogId, u32)>| before.iter().copied().chain(some).collect::<Views>();
    if rest.len() > TOLD_APART_MAX {
        return rest.iter().map(|one| vec![*one]).chain([rest.clone()]).map(with).collect();
    }
    let mut choices: Vec<u32> = (1..1_u32 << rest.len()).collect();
    choices.sort_by_key(|choice| choice.count_ones());
    let chosen =
        |choice: u32| (0_u32..).zip(&rest).filter(move |(at, _)| (choice >> *at) & 1 == 1).map(|(_, one)| *one);
    choices.into_iter().map(|choice| with(chosen(choice).collect())).collect()
}

/// Streamlets that are taken over together, without those of which something was given up: each of these by itself, for the others wait for what it does not.
pub(super) fn alone(state: &ClusterState, owned: Vec<Owned>) -> Vec<Vec<Owned>> {
    let (given_up, others): (Vec<Owned>, Vec<Owned>) =
        owned.into_iter().partition(|(stream, streamlet, _)| state.given_up_for(*stream, streamlet.0).next().is_some());
    let others = Some(others).filter(|others| !others.is_empty());
    others.into_iter().chain(given_up.into_iter().map(|one| vec![one])).collect()
}

/// The same logs with nobody who has these views.
pub(super) fn without(logs: &[EndedLog], given_up: &Views) -> Vec<EndedLog> {
    let mut left = logs.to_vec();
    for EndedLog { log, views, .. } in &mut left {
        let gone = views.iter_mut().zip(1..).filter(|(_, number)| given_up.contains(&(*log, *number)));
        gone.for_each(|(view, _)| view.backups.clear());
    }
    left
}

#[cfg(test)]
mod tests {
    use kera_broker::EndedView;
    use kera_coordinator::catalog::Limits;
    use kera_format::StreamOptions;
    use kera_format::cluster::{ClusterEntry, OwnerReason};
    use kera_protocol::CreateStream;

    use super::super::testing::{apply, joined};
    use super::*;

    const LOG: LogName = LogName { node: 1, epoch: 7, log: 0 };

    /// Node 1 is lost, and node 2 rebuilds a streamlet that it had, of which a view was given up. With that streamlet and another one.
    fn given() -> (ClusterState, Owned, Owned) {
        let mut state = joined(4, 7);
        (state.level() + 1..=kera_format::level::NEWEST)
            .for_each(|level| apply(&mut state, &[ClusterEntry::LevelRaised { level }]));
        let view = |view, first| ClusterEntry::ViewAgreed { log: LOG, view, first, backups: vec![3, 4] };
        apply(&mut state, &[view(1, 1), view(2, 6)]);
        let options = StreamOptions { streamlets: 4, replication: 2, ..StreamOptions::default() };
        let created = CreateStream { name: "payments".into(), options, if_not_exists: false };
        let entries = state.plan_create_stream(&created, &Limits { streams: 10, nodes: 4 }, 0, false).expect("made");
        apply(&mut state, &entries);
        let stream = state.catalog.find(&"payments".into()).expect("it is there").id;
        let of = |node| {
            let mut runs = state.owners(stream).expect("owners").runs().iter();
            runs.find(|run| run.owner.node == node).expect("it owns one").first
        };
        let (streamlet, other) = (of(1), of(3));
        apply(
            &mut state,
            &[ClusterEntry::NodeFenced { node: 1, epoch: 7 }, ClusterEntry::LogEnded { log: LOG, end: 9 }],
        );
        let (owner_epoch, reason, number) = (state.next_owner_epoch(), OwnerReason::Recovered, 0);
        let (first, count, node, epoch) = (streamlet, 1, 2, 7);
        let changed = ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number };
        apply(
            &mut state,
            &[changed, ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log: LOG, view: 1 }],
        );
        let owned = |at| (stream, StreamletId(at), owner_epoch);
        (state, owned(streamlet), owned(other))
    }

    #[test]
    fn of_several_that_were_given_up_as_few_are_left_out_as_will_do() {
        let of = |numbers: &[u32]| numbers.iter().map(|number| (LogId::from(LOG), *number)).collect::<Views>();
        let told = |before: &[u32], all: &[u32]| tries(&of(before), &of(all));
        assert_eq!(told(&[1], &[1]), Vec::<Views>::new(), "nothing may come from anybody");
        assert_eq!(told(&[], &[2]), [of(&[2])]);
        assert_eq!(told(&[1], &[1, 2, 3]), [of(&[1, 2]), of(&[1, 3]), of(&[1, 2, 3])]);
        assert_eq!(told(&[], &[1, 2, 3, 4]).len(), 15);
        let many = told(&[], &[1, 2, 3, 4, 5]);
        assert_eq!((many.len(), &many[0], &many[5]), (6, &of(&[1]), &of(&[1, 2, 3, 4, 5])));
    }

    #[test]
    fn what_was_given_up_for_one_streamlet_is_left_out_for_it_alone() {
        let (state, one, other) = given();
        assert_eq!(alone(&state, vec![one, other]), [[other], [one]]);
        assert_eq!(alone(&state, vec![other]), [[other]]);
        let (stream, streamlet, owner_epoch) = one;
        let views = Views::from([(LogId::from(LOG), 1)]);
        let of = |streamlet, owner_epoch| given_up(&state, (stream, streamlet), owner_epoch);
        assert_eq!(of(streamlet, owner_epoch), (Views::new(), views.clone()), "it is asked for once more");
        assert_eq!(of(streamlet, owner_epoch + 1), (views.clone(), views.clone()), "an owner may have gone on without");
        assert_eq!(of(other.1, owner_epoch), (Views::new(), Views::new()));

        let view = |first, backups: &[u32]| EndedView { first, backups: backups.to_vec() };
        let ended = |epoch, backups: &[u32]| EndedLog {
            log: LogId { node: 1, epoch, vlog: 0 },
            views: vec![view(1, backups), view(6, &[3, 4])],
            end: 9,
            at_all: true,
        };
        let left = without(&[ended(7, &[3, 4]), ended(6, &[3, 4])], &views);
        assert_eq!(left, [ended(7, &[]), ended(6, &[3, 4])]);
    }
}
