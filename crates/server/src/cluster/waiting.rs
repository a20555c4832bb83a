//! What a cluster waits for that lost nodes have, in sentences for `kera status`: which nodes these are and what to do. Of the coordinators'
//! state alone.

use kera_coordinator::cluster::ClusterState;
use kera_format::cluster::{LogName, NodeNumber};
use kera_protocol::StreamletRange;

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
