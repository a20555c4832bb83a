//! Who owns which streamlet, where its older groups are, and what goes with it when it moves (`docs/replication.md`).
//!
//! Owners are told in runs of streamlets with a step between them, so that 100,000 streamlets that were dealt out to nodes in turn
//! are a few runs, and those that were dealt out in blocks as well.

use std::ops::Range;

use crate::codec::{wire_enum, wire_struct};
use crate::message::{messages, responses};
use crate::{Role, StreamRef};
use kera_format::limits::STREAMLETS_MAX;
use kera_format::{Cursor, GroupId, LaneId, ProducerEpoch, ProducerId, StreamId, StreamletId};

wire_struct! {
    /// Asks who owns the streamlets of streams. Any node answers, from what it knows.
    pub struct FindOwners {
        /// The streams, at most [`crate::limits::OWNER_STREAMS_MAX`]; none: all.
        pub streams: Vec<StreamRef>,
        /// Only runs behind this one, by their stream and first streamlet; absent: from the first.
        pub after: Option<(StreamId, StreamletId)>,
        /// Most runs in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// A node of the cluster.
    pub struct NodeInfo {
        /// Its number in the cluster, from 1; it keeps it for ever.
        pub node: u32,
        /// Its incarnation.
        pub node_epoch: u32,
        /// Where it takes this protocol, `host:port`; empty: where it was asked.
        pub address: String,
        /// Where it takes Kafka's protocol; empty: nowhere.
        pub kafka_address: String,
        /// Where it takes HTTP; empty: nowhere.
        pub http_address: String,
        /// The rack it stands in; empty: not told.
        pub rack: String,
        /// What it does.
        pub roles: Vec<Role>,
    }
}

wire_struct! {
    /// Who has the groups of earlier owners.
    #[derive(Copy, Hash)]
    pub struct OlderGroups {
        /// The first owner epoch of them; they end before the next entry's, or before that of the owner.
        pub first_epoch: u32,
        /// The node that serves them.
        pub node: u32,
    }
}

wire_struct! {
    /// Streamlets of a stream with one owner and one past.
    pub struct OwnerRun {
        /// The first of them.
        pub first: StreamletId,
        /// How many there are.
        pub count: u32,
        /// How far they are apart; at least 1.
        pub step: u32,
        /// The node that owns them; zero: nobody at the moment.
        pub node: u32,
        /// Its owner epoch: the upper half of the ids of groups that it opens. Zero: ids are not those of an owner, there is one
        /// node.
        pub epoch: u32,
        /// Who serves groups of earlier epochs, by their epochs; those of epochs before the first are gone.
        pub older: Vec<OlderGroups>,
    }
}

wire_struct! {
    /// The owners of a stream's streamlets.
    pub struct StreamOwners {
        /// The stream.
        pub stream: StreamId,
        /// How many streamlets it has.
        pub streamlets: u32,
        /// Runs, by their first streamlets. A stream's runs may be spread over pages.
        pub runs: Vec<OwnerRun>,
    }
}

wire_struct! {
    /// Who owns what.
    pub struct Owners {
        /// The cluster.
        pub cluster: [u8; 16],
        /// Rises with each change. Pages of different versions do not belong together: ask again from the first. Each node numbers states as it hears of them: which of two nodes has heard of more the numbers do not say.
        pub version: u64,
        /// The node that answers; zero: it is in no cluster, and owns everything.
        pub node: u32,
        /// All nodes.
        pub nodes: Vec<NodeInfo>,
        /// The streams that were asked for, by their ids.
        pub streams: Vec<StreamOwners>,
        /// Whether there are more runs.
        pub more: bool,
    }
}

messages! {
    FindOwners => Owners;
}
responses!(Owners);

wire_enum! {
    /// What a lane remembers of the chunks of its producers.
    pub enum Memory, "0 (all of them) or 1 (some are forgotten)" {
        /// A producer that is not in the list has never written.
        Whole = 0 => "whole",
        /// A producer that is not in the list may have written.
        Forgotten = 1 => "forgotten",
    }
}

wire_struct! {
    /// One of the last chunks of a producer in a lane.
    #[derive(Copy)]
    pub struct ChunkMark {
        /// Its sequence.
        pub sequence: u64,
        /// Ordinal of its first record.
        pub base_ordinal: u64,
        /// Where it is.
        pub cursor: Cursor,
    }
}

wire_struct! {
    /// What a lane knows of a producer.
    pub struct ProducerState {
        /// The producer; 0: nobody, and chunks in front of the ordinal of its one chunk are missing, so a producer whose last chunk is in front of
        /// it, too, may have sent more. Who does not know of that leaves it out.
        pub producer_id: ProducerId,
        /// Its epoch; earlier ones are refused.
        pub producer_epoch: ProducerEpoch,
        /// The sequence of its last chunk.
        pub sequence: u64,
        /// Its last chunks, oldest first.
        pub chunks: Vec<ChunkMark>,
    }
}

wire_struct! {
    /// A group of a lane that an earlier owner keeps.
    #[derive(Copy)]
    pub struct KeptGroup {
        /// The group.
        pub group: GroupId,
        /// Ordinal of its first record.
        pub first_ordinal: u64,
        /// Ordinal of the record after its last one.
        pub next_ordinal: u64,
    }
}

wire_struct! {
    /// Where a lane stands when its streamlet changes its owner.
    pub struct LaneState {
        /// The lane.
        pub lane: LaneId,
        /// Ordinal of the next record.
        pub next_ordinal: u64,
        /// Append time of the last chunk; those that follow have no earlier one.
        pub last_append_ms: i64,
        /// Whether the list of producers is whole.
        pub memory: Memory,
        /// What is known of producers, the one that was silent longest first.
        pub producers: Vec<ProducerState>,
        /// The groups that the last owner keeps, by their ids.
        pub groups: Vec<KeptGroup>,
    }
}

wire_struct! {
    /// What the next owner of a streamlet must know before it takes writes. Lanes that were never written to are left out.
    pub struct StreamletState {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet.
        pub streamlet: StreamletId,
        /// The owner epoch of the last owner.
        pub epoch: u32,
        /// Its lanes.
        pub lanes: Vec<LaneState>,
        /// How far applications are in it: chunks of records as they are in its progress lane.
        pub progress: Vec<u8>,
    }
}
responses!(StreamletState);

impl Owners {
    /// What to ask for the next page with, [`FindOwners::after`]: its last run. Nothing if there is no more, or none that this page says where to find.
    pub fn next_page(&self) -> Option<(StreamId, StreamletId)> {
        let runs = self.streams.iter().flat_map(|found| found.runs.iter().map(|run| (found.stream, run.first)));
        if self.more { runs.last() } else { None }
    }
}

/// Of which streamlets of one stream pages of [`Owners`] have told.
///
/// The owners may change between two pages that have one number, and their runs with them. A streamlet that was in a run behind the first page, and has come to be in one that begins
/// in front of the second, is on neither.
#[derive(Clone, Debug, Default)]
pub struct StreamletsTold(Vec<bool>);

impl StreamletsTold {
    /// What the next page tells of the stream. No more is kept of it than a stream can have.
    pub fn take(&mut self, page: &StreamOwners) {
        let streamlets = page.streamlets.min(STREAMLETS_MAX) as usize;
        if self.0.len() < streamlets {
            self.0.resize(streamlets, false);
        }
        for run in &page.runs {
            for streamlet in run.streamlets().take_while(|streamlet| (streamlet.0 as usize) < streamlets) {
                self.0[streamlet.0 as usize] = true;
            }
        }
    }

    /// Those that the stream has by what was told, and that no page tells of.
    pub fn untold(&self) -> impl Iterator<Item = StreamletId> + '_ {
        (0..).map(StreamletId).zip(&self.0).filter(|(_, is_told)| !**is_told).map(|(streamlet, _)| streamlet)
    }
}

impl OwnerRun {
    /// Its streamlets, in order. Nothing of a run that no streamlet can be in.
    pub fn streamlets(&self) -> impl Iterator<Item = StreamletId> + '_ {
        let step = self.step.max(1);
        (0..self.count).map_while(move |at| Some(StreamletId(self.first.0.checked_add(at.checked_mul(step)?)?)))
    }

    /// Whether a streamlet is one of [`streamlets`](OwnerRun::streamlets), however many there are.
    pub fn contains(&self, streamlet: StreamletId) -> bool {
        let (step, behind) = (self.step.max(1), streamlet.0.checked_sub(self.first.0));
        behind.is_some_and(|behind| behind % step == 0 && behind / step < self.count)
    }

    /// The owner of each of them.
    pub fn owner(&self) -> Owner {
        Owner { node: self.node, epoch: self.epoch, older: self.older.clone() }
    }
}

/// Who a streamlet belongs to, as tables keep it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owner {
    /// The node; zero: nobody.
    pub node: u32,
    /// Its owner epoch.
    pub epoch: u32,
    /// Who serves groups of earlier epochs, by their epochs.
    pub older: Vec<OlderGroups>,
}

impl Owner {
    /// The node that serves a group; of a reader that asks for the first group there is ([`GroupId::NONE`]), the one that serves the
    /// oldest.
    pub fn holder(&self, group: GroupId) -> u32 {
        if group != GroupId::NONE && group.epoch() >= self.epoch {
            return self.node;
        }
        let at = self.older.partition_point(|older| group != GroupId::NONE && older.first_epoch <= group.epoch());
        self.older.get(at.saturating_sub(1)).map_or(self.node, |older| older.node)
    }

    /// All nodes that serve some of its groups, each once, the owner last.
    pub fn holders(&self) -> Vec<u32> {
        let mut holders: Vec<u32> = Vec::with_capacity(1 + self.older.len());
        for node in self.older.iter().map(|older| older.node) {
            if node != self.node && !holders.contains(&node) {
                holders.push(node);
            }
        }
        holders.push(self.node);
        holders
    }

    /// The runs of owner epochs whose groups one node serves, by their epochs: the first epoch and the node of each. The last run is the owner's own.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let older = self.older.iter().map(|older| (older.first_epoch, older.node));
        older.chain([(self.epoch, self.node)])
    }

    /// The same of earlier owners, with all epochs of each run.
    pub fn older_runs(&self) -> impl Iterator<Item = (Range<u32>, u32)> + '_ {
        self.runs().zip(self.runs().skip(1)).map(|((first, node), (end, _))| (first..end, node))
    }

    /// Whether a node has all groups of some owner epochs.
    fn has_all(&self, node: u32, epochs: &Range<u32>) -> bool {
        let inside = self.runs().map(|(first, _)| first).filter(|first| epochs.contains(first));
        inside.chain([epochs.start]).all(|epoch| self.holder(GroupId::new(epoch, 0)) == node)
    }

    /// Whether a node that says this has told all groups that it has in these `runs` of owner epochs, which are its by what was `known` when it was asked for them before. It knows the
    /// same. Or it has not heard of the owner that is known, and has these groups by what it knows: then it has let go of none of them. Everything else may be later than what is known:
    /// groups that have gone to another node would look like what retention has taken.
    pub fn bears_out(&self, known: &Owner, node: u32, mut runs: impl Iterator<Item = Range<u32>>) -> bool {
        // Without an owner epoch it has not heard of any owner.
        let is_behind = self.epoch != 0 && self.epoch < known.epoch;
        self == known || (is_behind && runs.all(|epochs| self.has_all(node, &epochs)))
    }
}

/// The runs of a stream's owners, by streamlet from 0 on. Each streamlet is in one run, runs are as long as they can be.
pub fn runs_of(owners: &[Owner]) -> Vec<OwnerRun> {
    let mut runs: Vec<OwnerRun> = Vec::new();
    // The run of each kind of owner that may still grow.
    let mut growing: std::collections::HashMap<&Owner, usize> = std::collections::HashMap::new();
    for (streamlet, owner) in (0u32..).zip(owners) {
        if let Some(run) = growing.get(owner).map(|at| &mut runs[*at]) {
            let apart = streamlet - run.first.0;
            if run.count == 1 || apart == run.count * run.step {
                run.step = if run.count == 1 { apart } else { run.step };
                run.count += 1;
                continue;
            }
        }
        growing.insert(owner, runs.len());
        runs.push(OwnerRun {
            first: StreamletId(streamlet),
            count: 1,
            step: 1,
            node: owner.node,
            epoch: owner.epoch,
            older: owner.older.clone(),
        });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(node: u32, epoch: u32) -> Owner {
        Owner { node, epoch, older: Vec::new() }
    }

    /// The owners that runs tell.
    fn owners_of(runs: &[OwnerRun], streamlets: usize) -> Vec<Owner> {
        let mut owners = vec![Owner::default(); streamlets];
        for run in runs {
            for streamlet in run.streamlets() {
                let place = &mut owners[streamlet.0 as usize];
                assert_eq!(*place, Owner::default(), "{streamlet} is in two runs");
                *place = run.owner();
            }
        }
        owners
    }

    #[test]
    fn many_streamlets_are_few_runs() {
        let in_turn: Vec<Owner> = (0..100_000).map(|at| owner(at % 5 + 1, 7)).collect();
        let runs = runs_of(&in_turn);
        assert_eq!(runs.len(), 5);
        assert_eq!(owners_of(&runs, in_turn.len()), in_turn);
        let blocks: Vec<Owner> = (0..100_000).map(|at| owner(at / 20_000 + 1, 7)).collect();
        assert_eq!(runs_of(&blocks).len(), 5);
    }

    #[test]
    fn a_group_is_where_its_epoch_says() {
        let older = vec![OlderGroups { first_epoch: 3, node: 1 }, OlderGroups { first_epoch: 5, node: 2 }];
        let owner = Owner { node: 3, epoch: 9, older };
        let holders = [0, 2, 3, 4, 5, 8, 9, 12].map(|epoch| owner.holder(GroupId::new(epoch, 1)));
        assert_eq!(holders, [1, 1, 1, 1, 2, 2, 3, 3]);
        assert_eq!(owner.holder(GroupId::NONE), 1, "the first there is");
        assert_eq!(owner.holders(), [1, 2, 3]);
        assert_eq!(owner.runs().collect::<Vec<_>>(), [(3, 1), (5, 2), (9, 3)]);
        assert_eq!(owner.older_runs().collect::<Vec<_>>(), [(3..5, 1), (5..9, 2)]);
        let back = Owner { node: 1, ..owner };
        assert_eq!(back.holders(), [2, 1]);
        let alone = Owner { node: 4, epoch: 2, older: Vec::new() };
        assert_eq!([GroupId::NONE, GroupId::new(1, 1), GroupId::new(2, 1)].map(|group| alone.holder(group)), [4; 3]);
        assert_eq!((alone.runs().collect::<Vec<_>>(), alone.older_runs().count()), (vec![(2, 4)], 0));
    }

    /// Of four streamlets the last two were another node's, until the second page was asked for.
    #[test]
    fn streamlets_of_a_run_that_has_grown_between_two_pages_are_missing() {
        let stream = StreamId(7);
        let page = |runs| StreamOwners { stream, streamlets: 4, runs };
        let untold = |told: &StreamletsTold| told.untold().map(|streamlet| streamlet.0).collect::<Vec<_>>();
        let before = runs_of(&[owner(1, 1), owner(1, 1), owner(2, 1), owner(2, 1)]);
        let mut told = StreamletsTold::default();
        assert!(untold(&told).is_empty());
        told.take(&page(before[..1].to_vec()));
        assert_eq!(untold(&told), [2, 3]);
        let mut now = runs_of(&[owner(1, 1), owner(1, 1), owner(1, 1), owner(2, 1)]);
        // Those behind the first page.
        now.retain(|run| run.first > before[0].first);
        told.take(&page(now));
        assert_eq!(untold(&told), [2]);
        let wild = OwnerRun { count: u32::MAX, ..before[0].clone() };
        told.take(&StreamOwners { stream, streamlets: u32::MAX, runs: vec![wild] });
        assert!(untold(&told).is_empty());
    }

    #[test]
    fn a_run_that_ends_nowhere_ends() {
        let run = OwnerRun {
            first: StreamletId(u32::MAX - 2),
            count: u32::MAX,
            step: 2,
            node: 1,
            epoch: 1,
            older: Vec::new(),
        };
        assert_eq!(run.streamlets().count(), 2);
        assert!(run.contains(StreamletId(u32::MAX)) && !run.contains(StreamletId(0)));
        assert_eq!(OwnerRun { first: StreamletId(5), count: 2, step: 0, ..run }.streamlets().count(), 2);
    }

    proptest! {
        #[test]
        fn a_run_contains_the_streamlets_that_it_names(first in 0..20_u32, count in 0..20_u32, step in 0..5_u32) {
            let run = OwnerRun { first: StreamletId(first), count, step, node: 1, epoch: 1, older: Vec::new() };
            let contained: Vec<StreamletId> = (0..120).map(StreamletId).filter(|one| run.contains(*one)).collect();
            prop_assert_eq!(contained, run.streamlets().collect::<Vec<_>>());
        }

        #[test]
        fn runs_tell_all_owners(dealt in prop::collection::vec((1..4_u32, 1..3_u32, 0..2_u32), 1..200)) {
            let owners: Vec<Owner> = dealt
                .iter()
                .map(|(node, epoch, older)| Owner {
                    older: (0..*older).map(|at| OlderGroups { first_epoch: at, node: 9 }).collect(),
                    ..owner(*node, *epoch + 1)
                })
                .collect();
            let runs = runs_of(&owners);
            prop_assert!(runs.is_sorted_by_key(|run| run.first));
            prop_assert_eq!(owners_of(&runs, owners.len()), owners);
        }
    }
}
