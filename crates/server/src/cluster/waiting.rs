//! What a cluster waits for that lost nodes have, in sentences for `kera status`: which nodes these are and what to do. Of the coordinators'
//! state alone.

use std::time::{Duration, Instant};

use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::{LogName, NodeNumber};
use kera_format::{StreamId, level};
use kera_protocol::StreamletRange;

use crate::units::human_duration;

/// Streamlets that are named of those that wait.
const NAMED: usize = 3;
/// What has waited for so long may wait for good: it is said how to go on without.
const FOR_LONG: Duration = Duration::from_secs(60);

/// What is said of logs of lost nodes that have no end: nothing that was in them can be taken over.
pub(super) fn undecided(state: &ClusterState) -> Option<String> {
    let open = || state.lost_logs().filter(|(_, log)| log.end.is_none());
    let (name, log) = open().next()?;
    let backups = log.views.last().map_or(&[][..], |view| &view.backups);
    let told: Vec<String> = backups.iter().map(|node| named(state, *node)).collect();
    let (count, told) = (open().count(), told.join(", "));
    Some(format!(
        "{count} virtual logs of lost nodes have no end yet, so what was in them waits: {name} waits for one of its backups, {told}, or \
         for node {} with what it had{}",
        name.node,
        to_start(state)
    ))
}

/// What is said of logs of lost nodes with blocks that nobody has who is there: nothing that was in them is taken over before, for their node may have all of it.
pub(super) fn unreadable(state: &ClusterState) -> Option<String> {
    let is_left = |range: &StreamletRange| {
        let owner = state.owner(range.stream, range.first);
        owner.is_some_and(|owner| !state.is_live(owner.node, owner.epoch))
    };
    let lost = state.lost_log_infos(usize::MAX).logs;
    let log = lost.iter().find(|log| log.end > 0 && log.streamlets.iter().any(is_left) && !log.missing.is_empty())?;
    let (name, of) = (LogName::from(log.log), log.missing.first()?);
    let count: u32 = log.streamlets.iter().filter(|range| is_left(range)).map(|range| range.count).sum();
    let told: Vec<String> = of.backups.iter().map(|node| named(state, *node)).collect();
    Some(format!(
        "{count} streamlets of lost nodes wait for blocks {} to {} of {name}: for {}, or for node {} with what it had{}",
        of.first,
        of.last,
        told.join(", "),
        name.node,
        to_start(state)
    ))
}

/// Lost nodes that have copies of logs of lost nodes, as advice behind a sentence; nothing if there are none.
pub(super) fn to_start(state: &ClusterState) -> String {
    let has_copies =
        |node: NodeNumber| state.lost_logs().any(|(_, log)| log.views.iter().any(|view| view.backups.contains(&node)));
    let lost = state.nodes().iter().filter(|(number, node)| node.fenced && has_copies(**number));
    let lost: Vec<String> = lost.map(|(number, _)| number.to_string()).collect();
    match lost.len() {
        0 => String::new(),
        1 => format!("; start node {}, which is lost and has copies", lost[0]) + or_give_up(state),
        _ => format!("; start nodes {}, which are lost and have copies", lost.join(", ")) + or_give_up(state),
    }
}

/// Which streamlets wait and for how long, each with since when it does: as a part of a sentence, and what to type if what they wait for is gone for good, as advice behind it.
/// Both are nothing if none waits, the latter also as long as it may pass.
pub(super) fn who_waits(
    state: &ClusterState,
    mut waiting: Vec<((StreamId, u32), Instant)>,
    now: Instant,
) -> (String, String) {
    let Some(since) = waiting.iter().map(|(_, since)| *since).min() else { return Default::default() };
    waiting.sort_unstable();
    let name = |(stream, at): (StreamId, u32)| match state.catalog.find(&stream.into()) {
        Ok(info) => format!("{}/{at}", info.name),
        Err(_) => format!("{stream}/{at}"),
    };
    let named: Vec<String> = waiting.iter().take(NAMED).map(|(of, _)| name(*of)).collect();
    let more = match waiting.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let waits = now.saturating_duration_since(since);
    let who = format!(" ({}{more}, for {})", named.join(", "), human_duration(waits.as_millis() as u64));
    let is_for_long = waits >= FOR_LONG && state.level() >= level::LOST_FOR_ONE;
    let next = format!(
        "; if blocks that it waits for are gone for good: `kera streamlet accept-loss {} --log NODE/EPOCH/LOG --blocks FIRST-LAST`",
        named[0]
    );
    (who, if is_for_long { next } else { String::new() })
}

/// Where it is said what nobody has who is there, if there is such.
fn or_give_up(state: &ClusterState) -> &'static str {
    match state.lost_log_infos(1).logs.is_empty() {
        true => "",
        false => " (what is gone for good: `kera log list`)",
    }
}

fn named(state: &ClusterState, node: NodeNumber) -> String {
    match state.node(node) {
        Some(known) if known.fenced => format!("node {node} (lost)"),
        Some(_) => format!("node {node}"),
        None => format!("node {node} (given up)"),
    }
}

#[cfg(test)]
mod tests {
    use kera_coordinator::catalog::Limits;
    use kera_format::StreamOptions;
    use kera_format::cluster::{ClusterEntry, LogName};
    use kera_protocol::CreateStream;

    use super::super::testing::{apply, joined};
    use super::*;

    /// Four nodes; node 1 has a log at 2 and 3, and is lost.
    fn lost() -> ClusterState {
        let mut state = joined(4, 7);
        let log = LogName { node: 1, epoch: 7, log: 0 };
        apply(&mut state, &[ClusterEntry::ViewAgreed { log, view: 1, first: 1, backups: vec![2, 3] }]);
        fence(&mut state, 1);
        state
    }

    fn fence(state: &mut ClusterState, node: NodeNumber) {
        apply(state, &[ClusterEntry::NodeFenced { node, epoch: 7 }]);
    }

    #[test]
    fn who_waits_is_named_with_for_how_long_and_what_to_type_when_that_is_long() {
        let mut state = joined(4, 7);
        let options = StreamOptions { streamlets: 6, replication: 2, ..StreamOptions::default() };
        let created = CreateStream { name: "payments".into(), options, if_not_exists: false };
        let entries = state.plan_create_stream(&created, &Limits { streams: 10, nodes: 4 }, 0, false).expect("made");
        apply(&mut state, &entries);
        let stream = state.catalog.find(&"payments".into()).expect("it is there").id;
        let began = Instant::now();
        let waiting: Vec<_> = (0..5).rev().map(|at| ((stream, at), began + Duration::from_secs(at.into()))).collect();
        let after = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(who_waits(&state, Vec::new(), after(600)), (String::new(), String::new()));
        let who = |text: &str| format!(" (payments/0, payments/1, payments/2 and 2 more, for {text})");
        assert_eq!(who_waits(&state, waiting.clone(), after(59)), (who("59s"), String::new()));
        assert_eq!(who_waits(&state, waiting.clone(), after(60)), (who("1m"), String::new()), "the level is too low");
        (state.level() + 1..=level::LOST_FOR_ONE)
            .for_each(|level| apply(&mut state, &[ClusterEntry::LevelRaised { level }]));
        let next = "; if blocks that it waits for are gone for good: `kera streamlet accept-loss payments/0 --log NODE/EPOCH/LOG --blocks FIRST-LAST`";
        assert_eq!(who_waits(&state, waiting.clone(), after(60)), (who("1m"), next.into()));
        assert_eq!(who_waits(&state, waiting[4..].to_vec(), after(0)).0, " (payments/0, for 0 ms)");
    }

    #[test]
    fn a_log_without_an_end_names_who_could_tell_it() {
        let mut state = lost();
        assert_eq!(to_start(&state), "", "its backups are there");
        fence(&mut state, 2);
        let said = undecided(&state).expect("it has no end");
        assert!(
            said.contains("log 0 of node 1 epoch 7 waits for one of its backups, node 2 (lost), node 3, or for node 1"),
            "{said}"
        );
        assert!(said.ends_with("; start node 2, which is lost and has copies"), "{said}");
        fence(&mut state, 3);
        fence(&mut state, 4);
        let gone = "; start nodes 2, 3, which are lost and have copies (what is gone for good: `kera log list`)";
        assert_eq!(to_start(&state), gone);
        let log = LogName { node: 1, epoch: 7, log: 0 };
        apply(&mut state, &[ClusterEntry::LogEnded { log, end: 5 }]);
        assert_eq!(undecided(&state), None);
        assert_eq!(to_start(&state), gone);
        assert_eq!(unreadable(&state), None, "nobody waits for it");
    }

    #[test]
    fn blocks_that_nobody_has_name_who_had_them() {
        let mut state = joined(4, 7);
        let log = LogName { node: 1, epoch: 7, log: 0 };
        let view = |view, first, backups| ClusterEntry::ViewAgreed { log, view, first, backups };
        apply(&mut state, &[view(1, 1, vec![2]), view(2, 6, vec![3])]);
        let options = StreamOptions { streamlets: 2, replication: 2, ..StreamOptions::default() };
        let created = CreateStream { name: "payments".into(), options, if_not_exists: false };
        let entries = state.plan_create_stream(&created, &Limits { streams: 10, nodes: 4 }, 0, false).expect("made");
        apply(&mut state, &entries);
        fence(&mut state, 1);
        apply(&mut state, &[ClusterEntry::LogEnded { log, end: 9 }]);
        assert_eq!(unreadable(&state), None, "its backups are there");
        fence(&mut state, 2);
        let said = unreadable(&state).expect("a backup is gone");
        let what = "1 streamlets of lost nodes wait for blocks 1 to 5 of log 0 of node 1 epoch 7: for node 2 (lost), or for node 1";
        assert!(said.starts_with(what), "{said}");
        assert!(said.contains("; start node 2, which is lost and has copies"), "{said}");
    }
}
