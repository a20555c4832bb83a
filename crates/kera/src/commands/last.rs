//! Which records `kera consume --last N` begins with: of all lanes that it reads together the N newest, or all there are.
//!
//! Lanes know their records by ordinals, which may have holes: compaction, and transactions that were aborted, leave some out, and with --key most of
//! those that are there are not wanted. So each lane is read from N ordinals before its end at first. One that may have more of the last records than it
//! has shown then is read again, from eight times as far back, until it has shown enough, or all it has. That ends: no lane is read from in front of its
//! first record, nor beyond the end that it had when this began.
//!
//! What is held is bounded: by [`LAST_MAX`](crate::cli::LAST_MAX) records, and by [`BYTES_MAX`]. They are held as they are printed, without the memory
//! they came in. Where the newest so far take more, of the oldest of them only the place is held: if it is among the last ones in the end they are refused,
//! and if enough that are newer come it never mattered how large it was.

use std::collections::{BTreeMap, BTreeSet};

use kera_client::{ClientError, ConsumedRecord, Consumer, LaneId, Start, StreamletId};
use kera_server::units::human_bytes;
use tokio::time::sleep;

use crate::commands::consume::{Source, WONDER_EVERY};
use crate::error::CliError;

/// Most bytes that the last records may take, as they are printed.
const BYTES_MAX: usize = 256 << 20;
/// How many times as far back a lane is read that has not shown enough.
const FURTHER: u64 = 8;

/// A lane of a streamlet.
type Place = (StreamletId, LaneId);
/// Ordinals behind the last records, by lanes.
pub(super) type Ends = BTreeMap<Place, u64>;
/// Where a record stands among the others: its time, see [`Window::newest_ms`], its lane, and its ordinal there.
type Key = (i64, Place, u64);

/// The last records of some lanes, as far as they were read.
pub(super) struct Last {
    /// So many at most.
    most: usize,
    /// As they are printed, and in that order.
    kept: BTreeMap<Key, Vec<u8>>,
    /// What they take.
    bytes: usize,
    /// Those for which there was no room: all of them are older than those that are kept.
    without_room: BTreeSet<Key>,
    lanes: BTreeMap<Place, Window>,
}

/// What is read of a lane.
struct Window {
    /// Ordinal from which on it is read.
    from: u64,
    /// Ordinal behind the last record that could be read when this began: what came after that is none of the last records.
    end: u64,
    /// There is nothing in front of it.
    is_whole: bool,
    /// Records in it that are wanted.
    found: u64,
    /// When its first record was taken, wanted or not, in milliseconds since 1970. Nothing: it has none.
    oldest_ms: Option<i64>,
    /// When its last one was taken, or one before that, if a clock went back: within a lane order goes before time.
    newest_ms: i64,
}

impl Window {
    fn new(from: u64, end: u64, is_whole: bool) -> Window {
        Window { from, end, is_whole, found: 0, oldest_ms: None, newest_ms: i64::MIN }
    }
}

impl Last {
    /// Of lanes that end there.
    fn new(most: u64, ends: impl IntoIterator<Item = (Place, u64)>) -> Last {
        let window = |end: u64| Window::new(end.saturating_sub(most), end, end <= most);
        let lanes = ends.into_iter().map(|(place, end)| (place, window(end))).collect();
        let (kept, without_room) = (BTreeMap::new(), BTreeSet::new());
        Last { most: usize::try_from(most).unwrap_or(usize::MAX), kept, bytes: 0, without_room, lanes }
    }

    /// Reads the last records, `most` at most, with a consumer that was built to stop at the ends of its lanes, and to begin there. It has stopped
    /// there afterwards.
    ///
    /// A node that is lost meanwhile is waited for, with a word.
    ///
    /// # Errors
    /// What the consumer says, a place cannot be looked up, or the last records take too much memory.
    pub(super) async fn read(source: &Source, consumer: &mut Consumer, most: u64) -> Result<Last, CliError> {
        let ends = consumer.positions();
        let mut last = Last::new(most, ends.iter().map(|at| ((at.streamlet, at.lane), at.ordinal)));
        let mut places: Vec<(Place, u64)> = last.lanes.iter().map(|(place, window)| (*place, window.from)).collect();
        // Where nothing was ever written there is nowhere to go back to, and who wants none goes nowhere.
        places.retain(|(place, from)| last.lanes.get(place).is_some_and(|window| *from < window.end));
        while !places.is_empty() {
            for ((streamlet, lane), from) in places {
                consumer.seek(streamlet, lane, Start::Ordinal(from)).await?;
            }
            last.read_to_end(source, consumer).await?;
            let mut firsts = Vec::new();
            for (streamlet, lane) in last.lacking() {
                let at = source.client.admin().lookup(source.stream.id, streamlet, lane, Start::Earliest).await?;
                firsts.push(((streamlet, lane), at.first_ordinal));
            }
            places = last.widen(&firsts);
        }
        last.check_room()?;
        Ok(last)
    }

    async fn read_to_end(&mut self, source: &Source, consumer: &mut Consumer) -> Result<(), CliError> {
        let mut said = String::new();
        loop {
            let next = tokio::select! {
                biased;
                next = consumer.next() => next?,
                () = sleep(WONDER_EVERY) => {
                    source.say_why(&mut said).await;
                    continue;
                }
            };
            let Some(record) = next else { return Ok(()) };
            self.take(source, &record)?;
        }
    }

    fn take(&mut self, source: &Source, record: &ConsumedRecord) -> Result<(), CliError> {
        let place = (record.streamlet, record.lane);
        let Some(key) = self.key(place, record.ordinal, record.append_time_ms, source.wants(record)) else {
            return Ok(());
        };
        let mut line = Vec::new();
        source.write(record, &mut line)?;
        self.keep(key, line);
        Ok(())
    }

    /// A record was read: where it stands among the others. Nothing if it is not kept: it is not wanted, it is from behind the end, or there are
    /// enough that are newer.
    fn key(&mut self, place: Place, ordinal: u64, append_time_ms: i64, is_wanted: bool) -> Option<Key> {
        let window = self.lanes.get_mut(&place).filter(|window| ordinal < window.end)?;
        window.oldest_ms.get_or_insert(append_time_ms);
        window.newest_ms = window.newest_ms.max(append_time_ms);
        if !is_wanted {
            return None;
        }
        window.found += 1;
        let key = (window.newest_ms, place, ordinal);
        let is_newer = self.oldest().is_some_and(|oldest| oldest < key);
        (self.count() < self.most || is_newer).then_some(key)
    }

    /// How many there are, with room or without.
    fn count(&self) -> usize {
        self.kept.len() + self.without_room.len()
    }

    fn oldest(&self) -> Option<Key> {
        self.without_room.first().or_else(|| self.kept.keys().next()).copied()
    }

    fn keep(&mut self, key: Key, mut line: Vec<u8>) {
        // If it is among the last ones, so is what had no room and is newer: they are refused then.
        if self.without_room.last().is_some_and(|newest| key <= *newest) {
            self.without_room.insert(key);
        } else {
            // While it was written it took up to twice as much: what is bounded is what is held.
            line.shrink_to_fit();
            self.bytes += line.len();
            self.bytes -= self.kept.insert(key, line).map_or(0, |before| before.len());
        }
        if self.count() > self.most && self.without_room.pop_first().is_none() {
            self.drop_oldest();
        }
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.drop_oldest()
        {
            self.without_room.insert(oldest);
        }
    }

    /// Drops the oldest one that is kept, and says which it was.
    fn drop_oldest(&mut self) -> Option<Key> {
        let (key, line) = self.kept.pop_first()?;
        self.bytes -= line.len();
        Some(key)
    }

    /// Refuses if there was no room for all of the last records.
    fn check_room(&self) -> Result<(), CliError> {
        if self.without_room.is_empty() {
            return Ok(());
        }
        let (most, bytes) = (self.most, human_bytes(BYTES_MAX as u64));
        let message = format!("--last {most}: these records take more than {bytes} of memory");
        Err(CliError::failure(message).next("ask for fewer, or for those since some time, like --from 1h"))
    }

    /// Lanes in which there may be more of the last records, in front of where they were read from.
    fn lacking(&self) -> Vec<Place> {
        let is_full = self.count() >= self.most;
        let oldest_ms = self.oldest().filter(|_| is_full).map(|(ms, ..)| ms);
        // What stands in front of a record that is older than all that is kept is older still.
        let is_older = |window: &Window| oldest_ms.zip(window.oldest_ms).is_some_and(|(kept, read)| read < kept);
        let lacks = |window: &Window| !window.is_whole && window.found < self.most as u64 && !is_older(window);
        self.lanes.iter().filter(|(_, window)| lacks(window)).map(|(place, _)| *place).collect()
    }

    /// Goes further back in lanes whose first records have these ordinals. Returns from where on they are to be read again, all of each; lanes
    /// that were read from their beginning are not.
    fn widen(&mut self, firsts: &[(Place, u64)]) -> Vec<(Place, u64)> {
        let mut again = Vec::new();
        for (place, first) in firsts {
            let Some(window) = self.lanes.get_mut(place) else { continue };
            if window.from <= *first {
                window.is_whole = true;
                continue;
            }
            let span = (window.end - window.from).max(1).saturating_mul(FURTHER);
            let from = window.end.saturating_sub(span).max(*first);
            *window = Window::new(from, window.end, from == *first);
            again.push((*place, from));
        }
        let read_again: BTreeSet<Place> = again.iter().map(|(place, _)| *place).collect();
        self.kept.retain(|(_, place, _), _| !read_again.contains(place));
        self.without_room.retain(|(_, place, _)| !read_again.contains(place));
        self.bytes = self.kept.values().map(Vec::len).sum();
        again
    }

    /// Has a consumer that follows go on behind the last records. A lane that was not there for them is read from its first record on: the stream has
    /// got it since.
    ///
    /// # Errors
    /// A place cannot be looked up.
    pub(super) async fn go_on(&self, consumer: &mut Consumer) -> Result<(), ClientError> {
        for at in consumer.positions() {
            let end = self.lanes.get(&(at.streamlet, at.lane)).map_or(0, |window| window.end);
            if at.ordinal > end {
                consumer.seek(at.streamlet, at.lane, Start::Ordinal(end)).await?;
            }
        }
        Ok(())
    }

    /// Where each lane ended when this began.
    pub(super) fn ends(&self) -> Ends {
        self.lanes.iter().map(|(place, window)| (*place, window.end)).collect()
    }

    /// The records, as they are printed. All of them: others were refused.
    pub(super) fn lines(self) -> Vec<Vec<u8>> {
        self.kept.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record: its ordinal, when it was taken, and whether it is wanted.
    type At = (u64, i64, bool);

    fn place(streamlet: u32) -> Place {
        (StreamletId(streamlet), LaneId(0))
    }

    /// The last records of streamlets with these, as a consumer would read them, one streamlet after the other; and how often one was read.
    fn last(most: u64, streamlets: &[&[At]]) -> (Vec<String>, u32) {
        let end = |records: &&[At]| records.last().map_or(0, |(ordinal, ..)| ordinal + 1);
        let first = |at: Place| streamlets[at.0.0 as usize].first().map_or(0, |(ordinal, ..)| *ordinal);
        let mut last = Last::new(most, (0..).map(place).zip(streamlets.iter().map(end)));
        let mut places: Vec<(Place, u64)> = last.lanes.iter().map(|(at, window)| (*at, window.from)).collect();
        let mut reads = 0;
        while !places.is_empty() {
            for (at, from) in places {
                reads += 1;
                assert!(reads < 1_000, "it never ends");
                for (ordinal, ms, is_wanted) in streamlets[at.0.0 as usize].iter().filter(|(of, ..)| *of >= from) {
                    if let Some(key) = last.key(at, *ordinal, *ms, *is_wanted) {
                        last.keep(key, format!("{}/{ordinal}", at.0).into_bytes());
                        assert!(last.kept.len() as u64 <= most);
                    }
                }
            }
            let firsts: Vec<(Place, u64)> = last.lacking().into_iter().map(|at| (at, first(at))).collect();
            places = last.widen(&firsts);
        }
        assert_eq!(last.bytes, last.kept.values().map(Vec::len).sum::<usize>());
        assert_eq!(last.check_room(), Ok(()));
        (last.lines().into_iter().map(|line| String::from_utf8(line).unwrap()).collect(), reads)
    }

    fn all(ordinals: impl IntoIterator<Item = u64>, ms: impl Fn(u64) -> i64) -> Vec<At> {
        ordinals.into_iter().map(|ordinal| (ordinal, ms(ordinal), true)).collect()
    }

    #[test]
    fn the_newest_of_all_lanes_are_the_last_in_the_order_of_time() {
        let (even, odd) = (all(0..100, |at| 2 * at as i64), all(0..100, |at| 2 * at as i64 + 1));
        assert_eq!(last(5, &[&even, &odd]).0, ["1/97", "0/98", "1/98", "0/99", "1/99"]);
        // One that has been quiet for long has none of them, be it long or short.
        let quiet = all(0..3, |at| at as i64 - 10);
        assert_eq!(last(3, &[&quiet, &odd, &[]]).0, ["1/97", "1/98", "1/99"]);
        assert_eq!(last(2, &[&quiet, &[]]).0, ["0/1", "0/2"]);
        assert_eq!(last(5, &[&quiet, &[]]).0, ["0/0", "0/1", "0/2"], "there are no more");
        assert!(last(0, &[&even, &odd]).0.is_empty());
        // All at one time: by streamlet.
        let (one, other) = (all(0..2, |_| 7), all(0..2, |_| 7));
        assert_eq!(last(3, &[&one, &other]).0, ["0/1", "1/0", "1/1"]);
    }

    /// A reader of a lane relies on its order, whatever the clocks of nodes say.
    #[test]
    fn records_of_a_lane_stay_in_order_where_a_clock_goes_back() {
        let back = all(0..6, |at| if at < 3 { 100 + at as i64 } else { at as i64 });
        let other = all(0..6, |at| 100 + at as i64);
        assert_eq!(last(4, &[&back]).0, ["0/2", "0/3", "0/4", "0/5"]);
        let (both, _) = last(12, &[&back, &other]);
        for streamlet in ["0/", "1/"] {
            let of: Vec<&String> = both.iter().filter(|line| line.starts_with(streamlet)).collect();
            assert!(of.len() == 6 && of.is_sorted(), "{both:?}");
        }
    }

    /// Compaction leaves holes, retention takes the beginning, and what has other keys is not wanted.
    #[test]
    fn lanes_with_holes_are_read_from_further_back_until_there_are_enough_or_no_more() {
        let holes = all((1_000_000..=9_000_000).step_by(1_000_000), |at| at as i64);
        let (lines, reads) = last(3, &[&holes]);
        assert_eq!(lines, ["0/7000000", "0/8000000", "0/9000000"]);
        assert!(reads > 1);
        let (lines, reads) = last(100, &[&holes]);
        assert_eq!((lines.len(), &lines[0][..]), (9, "0/1000000"), "all there are");
        // Once from each place further back: it is not read again when its beginning was reached.
        assert!(reads <= 8, "{reads}");

        let keyed: Vec<At> = (0..5_000).map(|at| (at, at as i64, at % 1_000 == 7)).collect();
        assert_eq!(last(2, &[&keyed]).0, ["0/3007", "0/4007"]);
        assert_eq!(last(9, &[&keyed]).0.len(), 5);
        let nothing: Vec<At> = (0..5_000).map(|at| (at, at as i64, false)).collect();
        assert!(last(2, &[&nothing]).0.is_empty());
        assert_eq!(last(2, &[&nothing, &keyed]).0, ["1/3007", "1/4007"]);
    }

    /// With a key most lanes have none of it: they are not read from their beginning if there are enough records that are newer.
    #[test]
    fn a_lane_is_not_read_from_further_back_where_all_is_older() {
        let nothing: Vec<At> = (0..1_000_000).map(|at| (at, at as i64, false)).collect();
        let newest = [(0, 2_000_000, true)];
        assert_eq!(last(1, &[&nothing, &newest]), (vec!["1/0".to_owned()], 2));
    }

    #[test]
    fn what_comes_after_the_end_is_none_of_the_last_records() {
        let mut last = Last::new(2, [(place(0), 3)]);
        assert!(last.key(place(0), 3, 5, true).is_none(), "it came meanwhile");
        assert!(last.key(place(1), 0, 5, true).is_none(), "its lane did");
        assert!(last.key(place(0), 2, 5, true).is_some());
    }

    #[test]
    fn what_is_held_takes_no_more_memory_than_is_counted() {
        let mut last = Last::new(1, [(place(0), 1)]);
        let key = last.key(place(0), 0, 0, true).unwrap();
        let mut line = Vec::with_capacity(1_000);
        line.push(b'\n');
        last.keep(key, line);
        assert_eq!(last.bytes, 1);
        assert!(last.kept.values().all(|line| line.capacity() < 1_000));
    }

    #[test]
    fn records_that_take_too_much_memory_are_refused() {
        let mut last = Last::new(4, [(place(0), 9)]);
        for ordinal in 0..9 {
            let key = last.key(place(0), ordinal, ordinal as i64, true).unwrap();
            // Four of the small ones may stay, however many there were.
            last.keep(key, vec![0; BYTES_MAX / 4 + usize::from(ordinal == 8)]);
            assert_eq!(last.check_room().is_err(), ordinal == 8, "{ordinal}");
            assert!(last.bytes <= BYTES_MAX, "{ordinal}: {}", last.bytes);
        }
        let error = last.check_room().unwrap_err();
        assert!(error.message.starts_with("--last 4: these records take more than 256"), "{error}");
        assert!(error.next_step.contains("fewer"), "{error}");
    }

    /// Lanes are read one after the other, and one that is read first may have nothing but what is old.
    #[test]
    fn large_records_that_are_none_of_the_last_ones_keep_nobody_from_these() {
        let mut last = Last::new(3, [(place(0), 3), (place(1), 3)]);
        let keep = |last: &mut Last, streamlet: u32, ordinal: u64, ms: i64, line: Vec<u8>| {
            let key = last.key(place(streamlet), ordinal, ms, true).unwrap();
            last.keep(key, line);
        };
        for ordinal in 0..3 {
            keep(&mut last, 0, ordinal, ordinal as i64, vec![0; BYTES_MAX / 2]);
        }
        assert!(last.bytes <= BYTES_MAX, "{}", last.bytes);
        assert!(last.check_room().is_err(), "the oldest of them would be printed");
        for ordinal in 0..2 {
            keep(&mut last, 1, ordinal, 100 + ordinal as i64, vec![1]);
        }
        assert_eq!(last.check_room(), Ok(()), "one of the large ones is left");
        keep(&mut last, 1, 2, 102, vec![1]);
        assert_eq!((last.bytes, last.lines()), (3, vec![vec![1]; 3]));
    }
}
