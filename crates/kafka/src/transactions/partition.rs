//! The transactions of one partition: which run, so up to where readers of committed records may read, and which were
//! aborted, so what they pass over.
//!
//! Pure, under a lock of the partition that also covers the append it is about: a transaction is known to run before anybody
//! can have read its first record, and to have ended before anybody can have read beyond its marker. Readers take the
//! partition's durable end first, and then look here.

use std::collections::{BTreeMap, BTreeSet};

use kera_format::StreamId;
use kera_format::kafka_transactions::AbortedRange;

/// What is known of the transactions of a partition. Offsets are ordinals of its lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionTransactions {
    stream: StreamId,
    partition: u32,
    /// The first offset of what each producer has written in a transaction that has not ended.
    open: BTreeMap<i64, u64>,
    /// The same, by offset.
    firsts: BTreeSet<(u64, i64)>,
    /// Ended, by a marker that may not be durable: first offset and marker's offset.
    ending: Vec<(u64, u64)>,
    /// By marker's offset.
    aborted: Vec<AbortedRange>,
    /// In a cluster: what coordinators know is not here yet, of the owner epoch that is named. Nothing is told until then.
    loading: Option<u32>,
    /// Producers whose batches belong to a transaction that its coordinator knows, until their marker.
    claims: BTreeMap<i64, Claim>,
    /// Claims that a coordinator was asked for: producer, a number that no other has, and the node. A marker ends them.
    asked: Vec<(i64, u64, u32)>,
    asked_last: u64,
    /// Open by the journal of a node that was alone, which goes on with them: loads do not tell of them. As it was before coordinators told anything.
    alone: Option<BTreeMap<i64, u64>>,
}

/// What a coordinator has answered for a producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Claim {
    epoch: i16,
    /// The transaction has written nothing before: what its marker names.
    from_offset: u64,
}

impl PartitionTransactions {
    /// No transaction has written to the partition.
    pub fn new(stream: StreamId, partition: u32) -> PartitionTransactions {
        PartitionTransactions {
            stream,
            partition,
            open: BTreeMap::new(),
            firsts: BTreeSet::new(),
            ending: Vec::new(),
            aborted: Vec::new(),
            loading: None,
            claims: BTreeMap::new(),
            asked: Vec::new(),
            asked_last: 0,
            alone: None,
        }
    }

    /// A node has come to own the partition in `epoch`, or holds a part of it in none (0): nothing is told of it until
    /// [loaded](PartitionTransactions::load). `keeps`: what is open now stays so.
    pub fn begin_load(&mut self, epoch: u32, keeps: bool) {
        self.loading = Some(epoch);
        self.claims.clear();
        self.asked.clear();
        if keeps {
            self.keep_alone();
        }
    }

    /// What is open now is what a node that was alone knows of. Once: later there is in it what coordinators have told.
    fn keep_alone(&mut self) {
        let open = &self.open;
        self.alone.get_or_insert_with(|| open.clone());
    }

    /// The coordinators tell from here on what becomes of this producer's transaction, which the node has known of when it was alone. It has written
    /// nothing before `from_offset`: that is what its marker will name, also where the first record came later.
    pub fn hand_over(&mut self, producer_id: i64, from_offset: u64) {
        self.keep_alone();
        if let Some(alone) = &mut self.alone {
            alone.remove(&producer_id);
        }
        if let Some(first) = self.open.get_mut(&producer_id).filter(|first| from_offset < **first) {
            self.firsts.remove(&(*first, producer_id));
            self.firsts.insert((from_offset, producer_id));
            *first = from_offset;
        }
    }

    /// Whether what coordinators know is not here yet.
    pub fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// All coordinators have said what they know: what is open, by producer and first offset, and what was aborted. False if that is not
    /// what is waited for.
    pub fn load(
        &mut self,
        epoch: u32,
        open: impl IntoIterator<Item = (i64, u64)>,
        aborted: impl IntoIterator<Item = AbortedRange>,
    ) -> bool {
        if self.loading != Some(epoch) {
            return false;
        }
        self.refresh(open, aborted);
        self.loading = None;
        true
    }

    /// The same again, of a partition that nothing is written to here.
    pub fn refresh(
        &mut self,
        open: impl IntoIterator<Item = (i64, u64)>,
        aborted: impl IntoIterator<Item = AbortedRange>,
    ) {
        self.open.clear();
        self.firsts.clear();
        self.ending.clear();
        let alone = self.alone.take();
        alone.iter().flatten().for_each(|(producer_id, first)| self.wrote(*producer_id, *first));
        self.alone = alone;
        self.add(open, aborted);
    }

    /// The same of a partition that was shown until now by what is known of it here, in which coordinators have ended nothing yet: that stays.
    pub fn learn(
        &mut self,
        open: impl IntoIterator<Item = (i64, u64)>,
        aborted: impl IntoIterator<Item = AbortedRange>,
    ) {
        self.keep_alone();
        self.add(open, aborted);
    }

    fn add(&mut self, open: impl IntoIterator<Item = (i64, u64)>, aborted: impl IntoIterator<Item = AbortedRange>) {
        open.into_iter().for_each(|(producer_id, first)| self.wrote(producer_id, first));
        let known = std::mem::take(&mut self.aborted);
        let all = known.into_iter().chain(aborted).map(|range| ((range.producer_id, range.first_offset), range));
        self.aborted = all.collect::<BTreeMap<_, _>>().into_values().collect();
        self.aborted.sort_by_key(|range| range.marker_offset);
    }

    /// Whether something is open.
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether batches of a producer in this epoch belong to a transaction that runs.
    pub fn is_claimed(&self, producer_id: i64, epoch: i16) -> bool {
        self.claims.get(&producer_id).is_some_and(|claim| claim.epoch == epoch)
    }

    /// Whether its coordinator is being asked at `node`. If another node was, its answer is not waited for any more.
    pub fn is_asked(&mut self, producer_id: i64, node: u32) -> bool {
        self.asked.retain(|(asked, _, at)| *asked != producer_id || *at == node);
        self.asked.iter().any(|(asked, ..)| *asked == producer_id)
    }

    /// Whether its coordinator is being asked, wherever that was.
    pub fn is_asking(&self, producer_id: i64) -> bool {
        self.asked.iter().any(|(asked, ..)| *asked == producer_id)
    }

    /// A producer's coordinator is asked now, at `node`. Only one at a time: what they tell of where the transaction begins must not go back.
    /// The number to come back with, and before what the transaction has written nothing; `end` is the partition's durable end.
    pub fn ask(&mut self, producer_id: i64, end: u64, node: u32) -> (u64, u64) {
        self.asked_last += 1;
        self.asked.push((producer_id, self.asked_last, node));
        (self.asked_last, self.begun(producer_id).unwrap_or(end))
    }

    /// The coordinator has answered: with which epoch and from where on the producer may write, if it may. Without effect if a marker of the
    /// producer came in between, or another owner: whom the answer is about may have ended.
    pub fn answered(&mut self, producer_id: i64, number: u64, granted: Option<(i16, u64)>) {
        let is_it = |asked: &(i64, u64, u32)| (asked.0, asked.1) == (producer_id, number);
        let Some(at) = self.asked.iter().position(is_it) else { return };
        self.asked.swap_remove(at);
        if let Some((epoch, from_offset)) = granted {
            self.claims.insert(producer_id, Claim { epoch, from_offset });
        }
    }

    /// Whether a marker is a late copy of one that an earlier transaction of the producer had, since the one that is open began behind it. One that names a later
    /// place is not: its coordinator may have been told that place by an owner to whom the partition did not belong any more.
    pub fn is_late(&self, producer_id: i64, from_offset: u64) -> bool {
        let begun = self.claims.get(&producer_id).map(|claim| claim.from_offset).or(self.begun(producer_id));
        begun.is_some_and(|begun| from_offset < begun)
    }

    /// What an aborted transaction of a producer has left that began at `from_offset` or later. Those whose marker is in front of that are not looked at, of which there may be
    /// very many: each transaction that is given up before it has written to a partition asks there.
    pub fn left(&self, producer_id: i64, from_offset: u64) -> Option<AbortedRange> {
        let at = self.aborted.partition_point(|range| range.marker_offset < from_offset);
        let is_it = |range: &&AbortedRange| {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            range.producer_id == producer_id && range.first_offset >= from_offset
        };
        self.aborted[at..].iter().find(is_it).copied()
    }

    /// A producer's transaction has records from `offset` on, if it is not known to have some already.
    pub fn wrote(&mut self, producer_id: i64, offset: u64) {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.open.entry(producer_id) {
            vacant.insert(offset);
            self.firsts.insert((offset, producer_id));
        }
    }

    /// Where the producer's transaction that runs has begun.
    pub fn begun(&self, producer_id: i64) -> Option<u64> {
        self.open.get(&producer_id).copied()
    }

    /// The producers whose transactions run.
    pub fn producers(&self) -> impl Iterator<Item = (i64, u64)> {
        self.open.iter().map(|(producer, first)| (*producer, *first))
    }

    /// The marker of a producer's transaction was appended. What it has left if it was aborted, which the journal must know
    /// before the transaction is over.
    pub fn ended(
        &mut self,
        (producer_id, epoch): (i64, i16),
        commit: bool,
        marker_offset: u64,
    ) -> Option<AbortedRange> {
        self.claims.remove(&producer_id);
        self.asked.retain(|(asked, ..)| *asked != producer_id);
        if let Some(alone) = &mut self.alone {
            alone.remove(&producer_id);
        }
        let first_offset = self.open.remove(&producer_id)?;
        self.firsts.remove(&(first_offset, producer_id));
        self.ending.push((first_offset, marker_offset));
        // Where the partition has lost all of it with the machine's power nothing is left to pass over.
        if commit || first_offset > marker_offset {
            return None;
        }
        let stable_offset = self.firsts.first().map_or(marker_offset + 1, |(first, _)| *first);
        let range = AbortedRange {
            stream: self.stream,
            partition: self.partition,
            producer_id,
            first_offset,
            marker_offset,
            stable_offset,
            epoch,
        };
        self.aborted.push(range);
        Some(range)
    }

    /// Takes ranges that the journal knows. Of one producer and first offset the later counts. Before anything else.
    ///
    /// All of them in one go: there may be two million, and to look for the place of each by itself takes hours.
    pub fn restore(&mut self, ranges: impl IntoIterator<Item = AbortedRange>) {
        self.add([], ranges);
    }

    /// Takes out the ranges whose marker is not before `end`, where the partition has lost its end with the machine's power.
    /// What is left of their records needs another marker.
    pub fn take_cut(&mut self, end: u64) -> Vec<AbortedRange> {
        let at = self.aborted.partition_point(|known| known.marker_offset < end);
        let mut cut = self.aborted.split_off(at);
        cut.retain(|range| range.first_offset < end);
        cut
    }

    /// Up to where every transaction has ended: readers of committed records stop there. `durable` is the partition's durable
    /// end, from before this call.
    pub fn stable(&mut self, durable: u64) -> u64 {
        if self.loading.is_some() {
            return 0;
        }
        self.take_out_ended(durable);
        let open = self.firsts.first().map(|(first, _)| *first);
        let ending = self.ending.iter().map(|(first, _)| *first);
        ending.chain(open).fold(durable, u64::min)
    }

    /// Forgets where transactions were whose markers are durable; `durable` is the partition's durable end. Also where nobody reads.
    pub fn take_out_ended(&mut self, durable: u64) {
        self.ending.retain(|(_, marker)| *marker >= durable);
    }

    /// Those that have ended and were not taken out.
    #[cfg(test)]
    pub(crate) fn ending_count(&self) -> usize {
        self.ending.len()
    }

    /// The transactions whose records in `from..to` a reader passes over: producer and first offset. It does so until the
    /// producer's marker.
    pub fn aborted(&self, from: u64, to: u64) -> Vec<(i64, u64)> {
        let at = self.aborted.partition_point(|range| range.marker_offset < from);
        let mut found = Vec::new();
        for range in &self.aborted[at..] {
            if range.first_offset < to {
                found.push((range.producer_id, range.first_offset));
            }
            // Whatever ended later begins behind it.
            if range.stable_offset >= to {
                break;
            }
        }
        found
    }

    /// All that is to be written again when the journal is.
    pub fn ranges(&self) -> &[AbortedRange] {
        &self.aborted
    }

    /// The partition starts at `start` now.
    pub fn trim(&mut self, start: u64) {
        let gone = self.aborted.partition_point(|range| range.marker_offset < start);
        self.aborted.drain(..gone);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use proptest::prelude::*;

    thread_local! {
        /// How many ranges were looked at for what a transaction has left.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    fn none() -> PartitionTransactions {
        PartitionTransactions::new(StreamId(6), 1)
    }

    #[test]
    fn an_aborted_transaction_of_which_nothing_is_in_front_of_its_marker_leaves_nothing() {
        for (marker, leaves) in [(9, false), (11, true)] {
            let mut of = none();
            of.wrote(1, 10);
            assert_eq!(of.ended((1, 0), false, marker).is_some(), leaves);
            assert_eq!((of.ranges().is_empty(), of.has_open()), (!leaves, false));
        }
    }

    #[test]
    fn readers_stop_where_the_first_open_transaction_begins() {
        let mut of = none();
        assert_eq!(of.stable(5), 5);
        of.wrote(1, 5);
        of.wrote(2, 7);
        of.wrote(1, 8);
        assert_eq!((of.stable(9), of.stable(4), of.begun(1)), (5, 4, Some(5)));
        // The marker is at 9, but not durable yet.
        assert_eq!(of.ended((1, 0), true, 9), None);
        assert_eq!(of.stable(9), 5);
        assert_eq!(of.stable(10), 7);
        assert_eq!(of.ended((1, 0), true, 10), None, "it has nothing here any more");
        let range = of.ended((2, 3), false, 10).unwrap();
        assert_eq!((range.first_offset, range.marker_offset, range.stable_offset, range.epoch), (7, 10, 11, 3));
        assert_eq!(of.stable(11), 11);
        assert_eq!((of.aborted(0, 7), of.aborted(0, 8), of.aborted(10, 11)), (vec![], vec![(2, 7)], vec![(2, 7)]));
        assert_eq!(of.aborted(11, 20), []);
        of.trim(10);
        assert_eq!(of.ranges(), [range]);
        of.trim(11);
        assert_eq!(of.ranges(), []);
    }

    #[test]
    fn what_lost_its_marker_is_taken_out() {
        let range = |first_offset, marker_offset| AbortedRange {
            stream: StreamId(6),
            partition: 1,
            producer_id: 4,
            first_offset,
            marker_offset,
            stable_offset: marker_offset + 1,
            epoch: 0,
        };
        let mut of = none();
        of.restore([(20, 24), (1, 3), (10, 13), (16, 18), (10, 15)].map(|(first, marker)| range(first, marker)));
        assert_eq!(of.ranges(), [range(1, 3), range(10, 15), range(16, 18), range(20, 24)]);
        assert_eq!(of.take_cut(17), [range(16, 18)]);
        assert_eq!(of.ranges(), [range(1, 3), range(10, 15)]);
    }

    /// As many as that one by one would take longer than anybody waits.
    #[test]
    fn what_many_have_left_is_put_in_order_at_once() {
        let many = 500_000;
        let range = |at: u64, marker_offset| AbortedRange {
            stream: StreamId(6),
            partition: 1,
            producer_id: at as i64,
            first_offset: 10 * at,
            marker_offset,
            stable_offset: marker_offset + 1,
            epoch: 0,
        };
        let (mut of, marker) = (none(), |at: u64| 10 * at + if at.is_multiple_of(2) { 5 } else { 3 });
        let earlier = (0..many).rev().map(|at| range(at, 10 * at + 3));
        let later = (0..many).step_by(2).map(|at| range(at, 10 * at + 5));
        of.restore(earlier.chain(later));
        assert_eq!(of.ranges().len() as u64, many);
        assert!((0..many).zip(of.ranges()).all(|(at, known)| *known == range(at, marker(at))));
    }

    #[test]
    fn what_was_aborted_long_before_is_not_looked_at_for_what_a_transaction_has_left() {
        let mut of = none();
        for at in 0..1_000 {
            of.wrote(4, 10 * at);
            assert!(of.ended((4, 0), false, 10 * at + 5).is_some());
        }
        let left = |producer_id, from_offset| {
            LOOKED_AT.set(0);
            (of.left(producer_id, from_offset).map(|range| range.first_offset), LOOKED_AT.get())
        };
        assert_eq!(left(7, 9_996), (None, 0), "one that has written nothing");
        assert_eq!(left(4, 9_990), (Some(9_990), 1));
        assert_eq!(left(4, 9_983), (Some(9_990), 2), "that which it ends began in front of that");
        assert_eq!(left(4, 0), (Some(0), 1));
    }

    #[test]
    fn a_claim_holds_until_the_marker_and_is_void_if_it_comes_first() {
        let mut of = none();
        let (number, from) = of.ask(1, 10, 2);
        assert_eq!((from, of.is_asked(1, 2), of.is_claimed(1, 0)), (10, true, false));
        of.answered(1, number + 1, Some((0, 10)));
        assert!(!of.is_claimed(1, 0), "an answer to something else");
        of.answered(1, number, Some((0, 10)));
        assert!(of.is_claimed(1, 0) && !of.is_claimed(1, 1) && !of.is_asked(1, 2));
        of.wrote(1, 12);
        assert!(of.is_late(1, 4) && !of.is_late(1, 10) && !of.is_late(1, 11) && !of.is_late(2, 4));
        let range = of.ended((1, 0), false, 14).unwrap();
        assert_eq!((of.left(1, 10), of.left(1, 13), of.left(2, 0)), (Some(range), None, None));
        assert!(!of.is_claimed(1, 0));
        let (number, _) = of.ask(1, 15, 2);
        of.ended((1, 0), true, 15);
        of.answered(1, number, Some((0, 15)));
        assert!(!of.is_claimed(1, 0), "a marker came in between");
        // Another node has come to coordinate it in between.
        let (number, _) = of.ask(1, 16, 2);
        assert!(!of.is_asked(1, 3));
        of.answered(1, number, Some((0, 16)));
        assert!(!of.is_claimed(1, 0));
        // Another owner in between.
        let (number, _) = of.ask(1, 16, 2);
        of.begin_load(7, false);
        of.answered(1, number, Some((0, 16)));
        assert!(of.is_loading() && !of.is_claimed(1, 0));
        assert!(of.load(7, [(3, 5)], [range]));
        assert!(of.is_late(3, 4) && !of.is_late(3, 6), "an owner of before has told the coordinator of a later place");
        assert_eq!((of.begun(3), of.stable(20), of.ranges()), (Some(5), 5, &[range][..]));
        let (_, from) = of.ask(3, 16, 2);
        assert_eq!(from, 5, "what is open began there");
        assert!(of.is_late(3, 4) && !of.is_late(3, 5));
    }

    #[test]
    fn what_coordinators_tell_comes_to_what_a_node_that_was_alone_knows() {
        let mut of = none();
        (1..3).for_each(|producer| of.wrote(producer, 4 + producer as u64));
        let range = of.ended((2, 0), false, 9).unwrap();
        let told = AbortedRange { producer_id: 3, first_offset: 1, marker_offset: 3, stable_offset: 4, ..range };
        of.learn([(4, 12)], [told]);
        // The marker at 9 is not durable yet.
        assert_eq!((of.stable(9), of.ranges(), of.begun(1), of.begun(4)), (5, &[told, range][..], Some(5), Some(12)));
        // The partition leaves, and what the coordinators tell has ended; it comes once more.
        of.refresh([], []);
        assert_eq!((of.begun(1), of.begun(4), of.stable(20)), (Some(5), None, 5));
        of.learn([(4, 12)], []);
        of.begin_load(7, true);
        assert!(of.load(7, [], []));
        assert_eq!((of.begun(1), of.begun(4)), (Some(5), None), "it was told of");
        of.ended((1, 0), true, 20);
        of.refresh([], []);
        assert_eq!((of.stable(30), of.ranges()), (30, &[told, range][..]));
    }

    /// Its coordinator knows the place where the partition was added to it.
    #[test]
    fn the_marker_of_what_was_handed_over_is_not_late_where_its_first_record_came_later() {
        let mut of = none();
        of.wrote(1, 10);
        of.wrote(2, 12);
        of.hand_over(1, 7);
        of.hand_over(2, u64::MAX);
        of.hand_over(3, 4);
        of.learn([(1, 7)], []);
        assert!(!of.is_late(1, 7) && of.is_late(1, 6));
        assert_eq!((of.stable(20), of.begun(2), of.begun(3)), (7, Some(12), None));
        let range = of.ended((1, 0), false, 14).unwrap();
        assert_eq!((range.first_offset, range.marker_offset, range.stable_offset), (7, 14, 12));
        of.ended((2, 0), true, 15);
        assert_eq!((of.stable(20), of.has_open()), (20, false));
    }

    /// A record of the log, and what a reader of committed records makes of it.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Logged {
        Plain,
        /// Of a producer, in its how-manieth transaction.
        In(i64, usize),
        Marker(i64),
    }

    #[derive(Clone, Debug)]
    enum Event {
        Plain,
        Write(i64),
        End(i64, bool),
        Durable,
        Restart,
        /// The partition comes to a node that knows something of it from before.
        Load,
        Read(prop::sample::Index, usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let producer = 1..4i64;
        let event = prop_oneof![
            2 => Just(Event::Plain),
            6 => producer.clone().prop_map(Event::Write),
            3 => (producer, any::<bool>()).prop_map(|(producer, commit)| Event::End(producer, commit)),
            3 => Just(Event::Durable),
            1 => Just(Event::Restart),
            1 => Just(Event::Load),
            4 => (any::<prop::sample::Index>(), 1..9usize).prop_map(|(from, count)| Event::Read(from, count)),
        ];
        prop::collection::vec(event, 1..120)
    }

    /// What a client's consumer gives out of `from..to`: it follows the list and the markers.
    fn consumed(log: &[Logged], of: &PartitionTransactions, from: usize, to: usize) -> Vec<usize> {
        let mut list = of.aborted(from as u64, to as u64);
        list.sort_unstable_by_key(|(_, first)| *first);
        let (mut list, mut passed_over) = (list.into_iter().peekable(), BTreeSet::new());
        let mut given = Vec::new();
        for (at, logged) in log.iter().enumerate().take(to).skip(from) {
            while let Some((producer, _)) = list.next_if(|(_, first)| *first <= at as u64) {
                passed_over.insert(producer);
            }
            match logged {
                Logged::Plain => given.push(at),
                Logged::In(producer, _) if passed_over.contains(producer) => {}
                Logged::In(..) => given.push(at),
                Logged::Marker(producer) => drop(passed_over.remove(producer)),
            }
        }
        given
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Whatever ends how and when, also over restarts that only know where transactions may have begun: a reader gets what
        /// was committed, never what was aborted, and never stops at what has ended for good.
        #[test]
        fn readers_get_what_is_committed(events in events()) {
            let mut of = none();
            let (mut log, mut durable, mut stable, mut loads) = (Vec::new(), 0, 0, 1);
            // Of each producer's transaction that runs: its number, where it was added, and whether it has written.
            let mut running: BTreeMap<i64, (usize, u64)> = BTreeMap::new();
            let mut outcomes: Vec<Option<bool>> = Vec::new();
            for event in &events {
                let end = log.len() as u64;
                match event {
                    Event::Plain => log.push(Logged::Plain),
                    Event::Write(producer) => {
                        let (number, _) = *running.entry(*producer).or_insert_with(|| {
                            outcomes.push(None);
                            (outcomes.len() - 1, end)
                        });
                        log.push(Logged::In(*producer, number));
                        of.wrote(*producer, end);
                    }
                    Event::End(producer, commit) => {
                        let Some((number, _)) = running.remove(producer) else { continue };
                        outcomes[number] = Some(*commit);
                        log.push(Logged::Marker(*producer));
                        of.ended((*producer, 0), *commit, end);
                        // It is over when the marker is durable.
                        durable = log.len();
                    }
                    Event::Durable => durable = log.len(),
                    Event::Restart => {
                        let mut again = none();
                        again.restore(of.ranges().iter().rev().copied());
                        running.iter().for_each(|(producer, (_, added))| again.wrote(*producer, *added));
                        of = again;
                        stable = 0;
                    }
                    Event::Load => {
                        let ranges = of.ranges().to_vec();
                        loads += 1;
                        of.begin_load(loads, false);
                        prop_assert_eq!(of.stable(durable as u64), 0, "it is not known what is open");
                        prop_assert!(!of.load(loads - 1, [], []), "what was told to an earlier owner does not count");
                        let open = running.iter().map(|(producer, (_, added))| (*producer, *added));
                        prop_assert!(of.load(loads, open, ranges));
                        stable = 0;
                    }
                    Event::Read(from, count) => {
                        let now_stable = of.stable(durable as u64) as usize;
                        prop_assert!(now_stable >= stable, "readers were sent back");
                        stable = now_stable;
                        let first_open = log.iter().position(|logged| {
                            matches!(logged, Logged::In(_, number) if outcomes[*number].is_none())
                        });
                        prop_assert!(first_open.is_none_or(|first| stable <= first), "an open transaction is read");
                        if running.is_empty() {
                            prop_assert_eq!(stable, durable);
                        }
                        let from = from.index(stable + 1);
                        let to = (from + count).min(stable);
                        let is_committed = |at: &usize| match log[*at] {
                            Logged::Plain => true,
                            Logged::In(_, number) => outcomes[number] == Some(true),
                            Logged::Marker(_) => false,
                        };
                        let expected: Vec<usize> = (from..to).filter(is_committed).collect();
                        prop_assert_eq!(consumed(&log, &of, from, to), expected);
                    }
                }
            }
        }
    }
}
