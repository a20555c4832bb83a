//! Where copies are, as Kafka clients are told: replicas, and those that are in sync.
//!
//! Which log serves a streamlet is known to its owner alone. So what is told of a partition is what holds for the logs of its owner that
//! have as many copies: their backups, those of most logs first. On three nodes with three copies that is exact.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use kera_coordinator::cluster::{ClusterState, LogState};
use kera_format::cluster::Roles;
use kera_kafka::KnownCopies;

use super::Cluster;

impl KnownCopies for Cluster {
    fn copies_of(&self, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>) {
        self.group.read(|state| known(state, owner, copies))
    }
}

fn known(state: &ClusterState, owner: u32, copies: u32) -> (Vec<u32>, Vec<u32>) {
    let epoch = state.node(owner).map_or(0, |node| node.epoch);
    let backups = copies.saturating_sub(1) as usize;
    let has_so_many = |log: &&LogState| log.views.iter().map(|view| view.backups.len()).max() == Some(backups);
    let logs = state.logs().iter().filter(|(name, _)| (name.node, name.epoch) == (owner, epoch)).map(|(_, log)| log);
    let (mut now, mut before) = (BTreeMap::new(), BTreeMap::new());
    for log in logs.filter(has_so_many) {
        for (at, view) in log.views.iter().enumerate() {
            let counts = if at + 1 == log.views.len() { &mut now } else { &mut before };
            view.backups.iter().for_each(|backup| *counts.entry(*backup).or_insert(0) += 1);
        }
    }
    let most_first = |counts: BTreeMap<u32, usize>| {
        let mut sorted: Vec<_> = counts.into_iter().map(|(node, logs)| (Reverse(logs), node)).collect();
        sorted.sort_unstable();
        sorted.into_iter().map(|(_, node)| node)
    };
    let is_live = |node: &u32| state.node(*node).is_some_and(|node| node.is_live(Roles::BACKUP));
    let mut replicas = vec![owner];
    replicas.extend(most_first(now).take(backups));
    let in_sync = replicas.iter().copied().filter(|node| *node == owner || is_live(node)).collect();
    for node in most_first(before) {
        if replicas.len() <= backups && !replicas.contains(&node) {
            replicas.push(node);
        }
    }
    (replicas, in_sync)
}
