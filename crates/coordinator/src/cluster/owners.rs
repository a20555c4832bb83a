//! Who owns the streamlets of one stream, as runs of neighbours with the same owner: a hundred thousand streamlets over three
//! brokers take three runs.

use std::collections::BTreeMap;

use kera_format::cluster::{LogName, NodeNumber};

/// Who owns a streamlet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// The broker.
    pub node: NodeNumber,
    /// Its epoch when it became the owner.
    pub epoch: u32,
    /// The owner epoch: the upper half of the ids of groups that it opens.
    pub owner_epoch: u32,
    /// What a lost broker had of it is not rebuilt yet: the logs of lost brokers are still needed.
    pub rebuilding: bool,
    /// How many copies there are of what is acknowledged, this one included. It is what the stream says, but for one whose number of copies is being
    /// changed.
    pub copies: u32,
}

impl Owner {
    /// Whether others have copies, so that another node can take it over when this one is lost.
    pub fn is_copied(&self) -> bool {
        self.copies > 1
    }

    /// Whether it is this incarnation's, which says that it has rebuilt it in that owner epoch; zero: in whatever owner epoch it is.
    pub(super) fn has_rebuilt_in(&self, incarnation: (NodeNumber, u32), owner_epoch: u32) -> bool {
        (self.node, self.epoch) == incarnation && (owner_epoch == 0 || owner_epoch == self.owner_epoch)
    }
}

/// Neighbouring streamlets with one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first one.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Whose they are.
    pub owner: Owner,
}

impl Run {
    /// The first streamlet behind it.
    pub fn end(&self) -> u32 {
        self.first + self.count
    }
}

/// Groups that are not with the owner of their streamlets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Held {
    /// The first streamlet.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The owner epoch in the ids of the groups.
    pub owner_epoch: u32,
    /// Who has them.
    pub node: NodeNumber,
    /// They are lost there, and are to be rebuilt by the owner.
    pub lost: bool,
}

/// Streamlets that are being rebuilt may need something of the logs of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RebuiltFrom {
    /// Whose logs.
    pub(super) node: NodeNumber,
    /// The first streamlet.
    pub(super) first: u32,
    /// How many.
    pub(super) count: u32,
    /// The last of the node's epochs.
    pub(super) epoch: u32,
}

impl RebuiltFrom {
    fn end(&self) -> u32 {
        self.first + self.count
    }
}

/// The nodes of whose logs a streamlet that is rebuilt may need something.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sources {
    /// It is not known which.
    Any,
    /// These, each up to the logs of this epoch of it.
    Of(BTreeMap<NodeNumber, u32>),
}

impl Sources {
    /// Whether it may need something of a log.
    pub fn have(&self, log: LogName) -> bool {
        match self {
            Sources::Any => true,
            Sources::Of(nodes) => nodes.get(&log.node).is_some_and(|last| log.epoch <= *last),
        }
    }
}

/// The owners of one stream.
#[derive(Clone, Debug, Default)]
pub struct StreamOwners {
    /// In order, without overlap; what is between them has no owner.
    runs: Vec<Run>,
    /// In order. Of one owner epoch without overlap.
    held: Vec<Held>,
    /// None of these has more streamlets than that, so those that meet a range begin not far in front of it. Nearly always they have one each: there may be as many as
    /// there are streamlets, and whoever looks for those of each streamlet must not look through all of them.
    widest: u32,
    /// Of streamlets that are being rebuilt, by node, without overlap of one and the same. Those of which nothing is here are rebuilt from any log.
    sources: Vec<RebuiltFrom>,
}

impl PartialEq for StreamOwners {
    fn eq(&self, other: &StreamOwners) -> bool {
        // `widest` depends on what there was before.
        (&self.runs, &self.held, &self.sources) == (&other.runs, &other.held, &other.sources)
    }
}

impl Eq for StreamOwners {}

impl StreamOwners {
    /// The runs, in order. What is between them has no owner.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Groups that are not with the owner.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Who owns a streamlet.
    pub fn owner(&self, streamlet: u32) -> Option<Owner> {
        let at = self.runs.partition_point(|run| run.end() <= streamlet);
        self.runs.get(at).filter(|run| run.first <= streamlet).map(|run| run.owner)
    }

    /// The runs that a range meets, each cut to the range.
    pub fn within(&self, first: u32, count: u32) -> impl Iterator<Item = Run> {
        let end = first.saturating_add(count);
        let from = self.runs.partition_point(|run| run.end() <= first);
        self.runs[from..].iter().take_while(move |run| run.first < end).map(move |run| {
            let (start, stop) = (run.first.max(first), run.end().min(end));
            Run { first: start, count: stop - start, owner: run.owner }
        })
    }

    /// The ranges below `streamlets` that nobody owns.
    pub fn unowned(&self, streamlets: u32) -> Vec<(u32, u32)> {
        let (mut gaps, mut at) = (Vec::new(), 0);
        for run in &self.runs {
            if run.first > at {
                gaps.push((at, run.first - at));
            }
            at = run.end();
        }
        if at < streamlets {
            gaps.push((at, streamlets - at));
        }
        gaps
    }

    /// Of whose logs streamlets are rebuilt, as far as that is known.
    pub(super) fn sources(&self) -> &[RebuiltFrom] {
        &self.sources
    }

    /// The nodes of whose logs a streamlet is rebuilt, as was noted when it began to be.
    pub(super) fn noted_sources(&self, streamlet: u32) -> Sources {
        let of = self.sources.iter().filter(|from| (from.first..from.end()).contains(&streamlet));
        let nodes: BTreeMap<NodeNumber, u32> = of.map(|from| (from.node, from.epoch)).collect();
        if nodes.is_empty() { Sources::Any } else { Sources::Of(nodes) }
    }

    /// Whether some of these streamlets may need something of a log by what was noted when they began to be rebuilt, or nothing was.
    pub(super) fn may_be_rebuilt_from(&self, log: LogName, run: &Run) -> bool {
        self.is_noted(log, run) || self.with_sources(run.first, run.end()) != [(run.first, run.end())]
    }

    /// Whether it was noted that some of these streamlets may need something of a log.
    pub(super) fn is_noted(&self, log: LogName, run: &Run) -> bool {
        let is_from = |from: &RebuiltFrom| from.node == log.node && log.epoch <= from.epoch;
        let mut from = self.sources.iter().filter(|from| from.first < run.end() && run.first < from.end());
        from.any(is_from)
    }

    /// Notes of whose logs streamlets of one owner, who is lost or gathers, are about to be rebuilt: what they were rebuilt from until now if they were not whole,
    /// those of that owner if it `counts`, and those of `holders` of groups of them. `epoch_of`: the newest epoch of a node.
    pub(super) fn begin_rebuild(
        &mut self,
        run: &Run,
        counts: bool,
        holders: impl Fn(&Held) -> bool,
        epoch_of: impl Fn(NodeNumber) -> u32,
    ) {
        let whole = vec![(run.first, run.end())];
        let known = if run.owner.rebuilding { self.with_sources(run.first, run.end()) } else { whole };
        for (from, to) in known {
            let held = self.held_within(from, to - from).filter(|held| holders(held));
            let held = held.map(|held| (held.node, held.first.max(from), (held.first + held.count).min(to)));
            let held: Vec<_> = held.filter(|(_, first, end)| first < end).collect();
            for (node, first, end) in counts.then_some((run.owner.node, from, to)).into_iter().chain(held) {
                self.rebuild_from(RebuiltFrom { node, first, count: end - first, epoch: epoch_of(node) });
            }
        }
    }

    /// The owner of streamlets goes on in another life with what it was rebuilding of them: what it has rebuilt until now is in logs of lives up to the one
    /// that the run names.
    pub(super) fn goes_on_rebuilding(&mut self, run: &Run) {
        if !run.owner.rebuilding {
            return;
        }
        let Owner { node, epoch, .. } = run.owner;
        for (first, end) in self.with_sources(run.first, run.end()) {
            // It may be in the list with a later life, as a holder.
            let is_later = |from: &&RebuiltFrom| from.node == node && from.epoch > epoch;
            let later: Vec<RebuiltFrom> = self.sources.iter().filter(is_later).copied().collect();
            self.rebuild_from(RebuiltFrom { node, first, count: end - first, epoch });
            for from in later {
                let (first, end) = (from.first.max(first), from.end().min(end));
                if first < end {
                    self.rebuild_from(RebuiltFrom { first, count: end - first, ..from });
                }
            }
        }
    }

    /// The parts of a range of which it is known what they are rebuilt from, in order.
    fn with_sources(&self, first: u32, end: u32) -> Vec<(u32, u32)> {
        let within = self.sources.iter().map(|from| (from.first.max(first), from.end().min(end)));
        let mut within: Vec<(u32, u32)> = within.filter(|(from, to)| from < to).collect();
        within.sort_unstable();
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for (from, to) in within {
            match parts.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => parts.push((from, to)),
            }
        }
        parts
    }

    /// Notes that streamlets may need something of a node's logs up to those of an epoch of it.
    pub(super) fn rebuild_from(&mut self, from: RebuiltFrom) {
        self.cut_sources(from.first, from.end(), |old| old.node == from.node);
        self.sources.push(from);
        self.sources.sort_unstable();
        let mut joined: Vec<RebuiltFrom> = Vec::with_capacity(self.sources.len());
        for one in self.sources.drain(..) {
            match joined.last_mut() {
                Some(last) if (last.node, last.epoch, last.end()) == (one.node, one.epoch, one.first) => {
                    last.count += one.count
                }
                _ => joined.push(one),
            }
        }
        self.sources = joined;
    }

    /// Takes a range out of what `which` says.
    fn cut_sources(&mut self, first: u32, end: u32, which: impl Fn(&RebuiltFrom) -> bool) {
        let meets = |old: &RebuiltFrom| which(old) && old.first < end && first < old.end();
        if !self.sources.iter().any(meets) {
            return;
        }
        for old in std::mem::take(&mut self.sources) {
            if !meets(&old) {
                self.sources.push(old);
                continue;
            }
            let left = outside((old.first, old.end()), (first, end));
            self.sources.extend(left.map(|(first, count)| RebuiltFrom { first, count, ..old }));
        }
    }

    /// Gives a range to an owner, whoever had it.
    pub(super) fn set(&mut self, first: u32, count: u32, owner: Owner) {
        if count == 0 {
            return;
        }
        let end = first + count;
        if !owner.rebuilding {
            self.cut_sources(first, end, |_| true);
        }
        let mut runs = Vec::with_capacity(self.runs.len() + 2);
        let before = self.runs.iter().filter(|run| run.first < first);
        runs.extend(before.map(|run| Run { count: run.end().min(first) - run.first, ..*run }));
        runs.push(Run { first, count, owner });
        let after = self.runs.iter().filter(|run| run.end() > end);
        runs.extend(after.map(|run| Run { first: run.first.max(end), count: run.end() - run.first.max(end), ..*run }));
        self.runs = joined(runs);
    }

    /// Changes owners run by run.
    pub(super) fn update(&mut self, change: impl Fn(Owner) -> Owner) {
        self.runs.iter_mut().for_each(|run| run.owner = change(run.owner));
        self.runs = joined(std::mem::take(&mut self.runs));
    }

    /// Changes the owners of a range, run by run; what nobody owns stays so.
    pub(super) fn update_within(&mut self, first: u32, count: u32, change: impl Fn(Owner) -> Owner) {
        let inside: Vec<Run> = self.within(first, count).collect();
        inside.into_iter().for_each(|run| self.set(run.first, run.count, change(run.owner)));
    }

    /// Where in the list those are that meet a range, with few others.
    fn near(&self, first: u32, end: u32) -> std::ops::Range<usize> {
        let from = self.held.partition_point(|held| held.first.saturating_add(self.widest) <= first);
        from..self.held.partition_point(|held| held.first < end)
    }

    /// Groups of some of these streamlets that are not with the owner.
    pub(super) fn held_within(&self, first: u32, count: u32) -> impl Iterator<Item = &Held> {
        let near = &self.held[self.near(first, first.saturating_add(count))];
        near.iter().filter(move |held| first < held.first + held.count)
    }

    /// Groups of a streamlet that are not with the owner, by their owner epochs.
    pub fn held_of(&self, streamlet: u32) -> impl Iterator<Item = Held> + '_ {
        self.held_within(streamlet, 1).copied()
    }

    /// Notes that groups are lost where they are held.
    pub(super) fn lose(&mut self, first: u32, count: u32, owner_epoch: u32) {
        let (end, near, mut cut) = (first + count, self.near(first, first + count), Vec::new());
        let meets = |held: &&mut Held| held.owner_epoch == owner_epoch && first < held.first + held.count && !held.lost;
        for held in self.held[near].iter_mut().filter(meets) {
            let (from, to) = (held.first.max(first), (held.first + held.count).min(end));
            if to - from == held.count {
                // Its place in the order stays: no other one is of the same streamlets and epoch.
                held.lost = true;
            } else {
                cut.push(Held { first: from, count: to - from, lost: true, ..*held });
            }
        }
        cut.into_iter().for_each(|held| self.hold(held));
    }

    /// All groups of a streamlet from before its owner are with a node that has come back.
    pub(super) fn bring_back(&mut self, streamlet: u32, node: NodeNumber) {
        let mut older: Vec<Held> = self.held_of(streamlet).collect();
        if older.is_empty() {
            // Of a streamlet that has never moved the owner has all, those that it is rebuilding included.
            older.push(Held { first: streamlet, count: 1, owner_epoch: 1, node, lost: false });
        }
        older.into_iter().for_each(|held| self.hold(Held { first: streamlet, count: 1, node, lost: false, ..held }));
    }

    /// Notes who has groups; node 0: nobody any more.
    ///
    /// In place: when a node is lost that held groups of tens of thousands of streamlets, a thousand of these are noted in one go, by every node and by the
    /// thread that says that it lives.
    pub(super) fn hold(&mut self, held: Held) {
        let end = held.first + held.count;
        let meets =
            |old: &Held| old.owner_epoch == held.owner_epoch && old.first < end && held.first < old.first + old.count;
        let met: Vec<usize> = self.near(held.first, end).filter(|at| meets(&self.held[*at])).collect();
        // As nearly always: the same streamlets, and another node. Nothing else of that epoch is beside it in the order.
        if let [at] = met[..]
            && (self.held[at].first, self.held[at].count) == (held.first, held.count)
            && held.node != 0
        {
            self.held[at] = held;
            return;
        }
        let mut come: Vec<Held> = Vec::from_iter((held.node != 0).then_some(held));
        self.widest = self.widest.max(held.count);
        for at in met.into_iter().rev() {
            let old = self.held.remove(at);
            let left = outside((old.first, old.first + old.count), (held.first, end));
            come.extend(left.map(|(first, count)| Held { first, count, ..old }));
        }
        for one in come {
            let at = self.held.partition_point(|old| *old < one);
            self.held.insert(at, one);
        }
    }
}

/// What is left of a range, given by its first and the one behind its last, without another one that it meets: parts with their lengths.
fn outside((first, end): (u32, u32), (from, to): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    let parts = [(first, from.saturating_sub(first)), (to, end.saturating_sub(to))];
    parts.into_iter().filter(|(_, count)| *count > 0)
}

fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.owner == run.owner && last.end() == run.first => last.count += run.count,
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(node: u32) -> Owner {
        Owner { node, epoch: 1, owner_epoch: node, rebuilding: false, copies: 2 }
    }

    proptest! {
        #[test]
        fn runs_say_the_same_as_a_table(changes in proptest::collection::vec((0u32..20, 0u32..8, 1u32..4), 0..30)) {
            let (mut owners, mut table) = (StreamOwners::default(), vec![None; 32]);
            for (first, count, node) in changes {
                owners.set(first, count, owner(node));
                (first..first + count).for_each(|at| table[at as usize] = Some(owner(node)));
                for at in 0..32 {
                    prop_assert_eq!(owners.owner(at), table[at as usize]);
                }
                for pair in owners.runs().windows(2) {
                    prop_assert!(pair[0].end() <= pair[1].first);
                    prop_assert!(pair[0].end() < pair[1].first || pair[0].owner != pair[1].owner, "not joined");
                }
                let gaps: u32 = owners.unowned(32).iter().map(|(_, count)| count).sum();
                prop_assert_eq!(gaps as usize, table.iter().filter(|owner| owner.is_none()).count());
                let inside: u32 = owners.within(5, 10).map(|run| run.count).sum();
                prop_assert_eq!(inside as usize, table[5..15].iter().flatten().count());
            }
        }
    }

    proptest! {
        /// `begin`: whose node it was and whether it was whole; otherwise it is rebuilt.
        #[test]
        fn what_is_rebuilt_from_whom_is_the_same_as_in_a_table(
            changes in proptest::collection::vec((0u32..20, 1u32..8, 1u32..4, any::<bool>()), 0..30),
            held in proptest::collection::vec((0u32..20, 1u32..8, 4u32..7), 0..4),
        ) {
            let mut owners = StreamOwners::default();
            owners.set(0, 32, owner(1));
            for (first, count, node) in held {
                owners.hold(Held { first, count, owner_epoch: node, node, lost: false });
            }
            let mut table = vec![BTreeMap::new(); 32];
            for (first, count, node, is_rebuilt) in changes {
                let runs: Vec<Run> = owners.within(first, count).collect();
                if is_rebuilt {
                    runs.iter().for_each(|run| owners.set(run.first, run.count, Owner { rebuilding: false, ..run.owner }));
                    (first..first + count).for_each(|at| table[at as usize].clear());
                    continue;
                }
                runs.iter().for_each(|run| owners.begin_rebuild(run, true, |_| true, |node| node * 10));
                for at in first..first + count {
                    let before = owners.owner(at).expect("all have one").node;
                    table[at as usize].insert(before, before * 10);
                    table[at as usize].extend(owners.held_of(at).map(|held| (held.node, held.node * 10)));
                }
                owners.set(first, count, Owner { rebuilding: true, ..owner(node) });
            }
            for (at, nodes) in table.into_iter().enumerate() {
                let known = if nodes.is_empty() { Sources::Any } else { Sources::Of(nodes) };
                prop_assert_eq!(owners.noted_sources(at as u32), known);
            }
            let mut again = StreamOwners { sources: Vec::new(), ..owners.clone() };
            owners.sources().iter().rev().for_each(|from| again.rebuild_from(*from));
            prop_assert_eq!(again, owners);
        }
    }

    /// Which log it may be was not known when it began, and is not known when its next owner goes on.
    #[test]
    fn what_is_rebuilt_from_any_log_stays_so() {
        let mut owners = StreamOwners::default();
        owners.set(0, 4, Owner { rebuilding: true, ..owner(1) });
        owners.set(1, 1, owner(1));
        for run in owners.within(0, 3).collect::<Vec<_>>() {
            owners.begin_rebuild(&run, true, |_| true, |_| 7);
        }
        owners.set(0, 3, Owner { rebuilding: true, ..owner(2) });
        let of: Vec<Sources> = (0..4).map(|at| owners.noted_sources(at)).collect();
        assert_eq!(of, [Sources::Any, Sources::Of([(1, 7)].into()), Sources::Any, Sources::Any]);
    }

    #[test]
    fn a_hundred_thousand_streamlets_of_three_brokers_are_three_runs() {
        let mut owners = StreamOwners::default();
        (0..100_000).for_each(|at| owners.set(at, 1, owner(1 + at / 33_334)));
        assert_eq!(owners.runs().len(), 3);
    }

    /// How it is noted who has groups, from the list as it is: as simple as can be.
    fn hold_anew(list: &[Held], held: Held) -> Vec<Held> {
        let end = held.first + held.count;
        let mut kept = Vec::new();
        for old in list {
            let old_end = old.first + old.count;
            if old.owner_epoch != held.owner_epoch || old_end <= held.first || old.first >= end {
                kept.push(*old);
                continue;
            }
            let left = outside((old.first, old_end), (held.first, end));
            kept.extend(left.map(|(first, count)| Held { first, count, ..*old }));
        }
        kept.extend((held.node != 0).then_some(held));
        kept.sort_unstable();
        kept
    }

    proptest! {
        #[test]
        fn groups_that_are_noted_in_place_are_listed_as_if_all_were_noted_anew(
            changes in proptest::collection::vec((0u32..20, 1u32..8, 1u32..4, 0u32..4, any::<bool>()), 0..60),
        ) {
            let (mut owners, mut list) = (StreamOwners::default(), Vec::new());
            for (first, count, owner_epoch, node, lost) in changes {
                let held = Held { first, count, owner_epoch, node, lost };
                owners.hold(held);
                list = hold_anew(&list, held);
                prop_assert_eq!(owners.held(), &list[..]);
            }
            for at in 0..32 {
                let of = list.iter().filter(|held| (held.first..held.first + held.count).contains(&at)).copied();
                prop_assert_eq!(owners.held_of(at).collect::<Vec<_>>(), of.collect::<Vec<_>>());
            }
        }

        #[test]
        fn groups_are_lost_where_and_only_where_that_was_said(
            held in proptest::collection::vec((0u32..20, 1u32..8, 1u32..4, 1u32..4), 0..20),
            lost in proptest::collection::vec((0u32..20, 1u32..8, 1u32..4), 0..6),
        ) {
            let (mut owners, mut table) = (StreamOwners::default(), BTreeMap::new());
            for (first, count, owner_epoch, node) in held {
                owners.hold(Held { first, count, owner_epoch, node, lost: false });
                table.extend((first..first + count).map(|at| ((at, owner_epoch), (node, false))));
            }
            for (first, count, owner_epoch) in lost {
                owners.lose(first, count, owner_epoch);
                let of = |(at, epoch): &(u32, u32)| *epoch == owner_epoch && (first..first + count).contains(at);
                table.iter_mut().filter(|(what, _)| of(what)).for_each(|(_, (_, lost))| *lost = true);
                prop_assert!(owners.held().is_sorted());
            }
            let singles = owners.held().iter().flat_map(|held| {
                (held.first..held.first + held.count).map(|at| ((at, held.owner_epoch), (held.node, held.lost)))
            });
            prop_assert_eq!(singles.collect::<BTreeMap<_, _>>(), table);
        }
    }

    /// Whoever walks through all of them for each of them takes a minute for it.
    #[test]
    fn a_node_may_hold_groups_of_as_many_streamlets_as_there_are() {
        let (mut owners, count) = (StreamOwners::default(), 50_000);
        for first in 0..count {
            owners.hold(Held { first, count: 1, owner_epoch: 1 + first % 2, node: 1, lost: false });
        }
        for at in 0..count {
            owners.lose(at, 1, 1 + at % 2);
            owners.hold(Held { first: at, count: 1, owner_epoch: 1 + at % 2, node: 2, lost: true });
            assert_eq!(owners.held_of(at).map(|held| (held.node, held.lost)).collect::<Vec<_>>(), [(2, true)]);
        }
    }

    #[test]
    fn held_groups_are_cut_where_they_go() {
        let mut owners = StreamOwners::default();
        let held = Held { first: 0, count: 10, owner_epoch: 3, node: 1, lost: false };
        owners.hold(held);
        owners.hold(Held { first: 4, count: 2, node: 0, ..held });
        assert_eq!(owners.held(), [Held { count: 4, ..held }, Held { first: 6, count: 4, ..held }]);
        owners.hold(Held { node: 0, ..held });
        assert_eq!(owners.held(), []);
    }
}
