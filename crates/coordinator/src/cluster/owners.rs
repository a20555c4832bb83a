//! Who owns the streamlets of one stream, as runs of neighbours with the same owner: a hundred thousand streamlets over three
//! brokers take three runs.

use kera_format::cluster::NodeNumber;

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
}

impl Owner {
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

/// The owners of one stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamOwners {
    /// In order, without overlap; what is between them has no owner.
    runs: Vec<Run>,
    held: Vec<Held>,
}

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

    /// Gives a range to an owner, whoever had it.
    pub(super) fn set(&mut self, first: u32, count: u32, owner: Owner) {
        if count == 0 {
            return;
        }
        let end = first + count;
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

    /// Groups of a streamlet that are not with the owner, by their owner epochs.
    pub fn held_of(&self, streamlet: u32) -> impl Iterator<Item = Held> + '_ {
        let is_of = move |held: &&Held| (held.first..held.first + held.count).contains(&streamlet);
        self.held.iter().filter(is_of).copied()
    }

    /// Notes that groups are lost where they are held.
    pub(super) fn lose(&mut self, first: u32, count: u32, owner_epoch: u32) {
        let end = first + count;
        let meets = |held: &&Held| {
            held.owner_epoch == owner_epoch && held.first < end && first < held.first + held.count && !held.lost
        };
        let lost: Vec<Held> = self.held.iter().filter(meets).copied().collect();
        for held in lost {
            let (from, to) = (held.first.max(first), (held.first + held.count).min(end));
            self.hold(Held { first: from, count: to - from, lost: true, ..held });
        }
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
    pub(super) fn hold(&mut self, held: Held) {
        let end = held.first + held.count;
        let mut kept = Vec::with_capacity(self.held.len() + 2);
        for old in std::mem::take(&mut self.held) {
            let old_end = old.first + old.count;
            if old.owner_epoch != held.owner_epoch || old_end <= held.first || old.first >= end {
                kept.push(old);
                continue;
            }
            if old.first < held.first {
                kept.push(Held { count: held.first - old.first, ..old });
            }
            if old_end > end {
                kept.push(Held { first: end, count: old_end - end, ..old });
            }
        }
        if held.node != 0 {
            kept.push(held);
        }
        kept.sort_unstable();
        self.held = kept;
    }
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
        Owner { node, epoch: 1, owner_epoch: node, rebuilding: false }
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

    #[test]
    fn a_hundred_thousand_streamlets_of_three_brokers_are_three_runs() {
        let mut owners = StreamOwners::default();
        (0..100_000).for_each(|at| owners.set(at, 1, owner(1 + at / 33_334)));
        assert_eq!(owners.runs().len(), 3);
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
