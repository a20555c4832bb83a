//! What every client has seen, put together, and what must hold of it.
//!
//! A record says who wrote it, where to, and its number there; so each one tells by itself where it may be. The truth of a
//! lane is what was found under each ordinal, by whoever was told of it first: a producer by its acknowledgement, a reader by
//! reading. From then on nothing else may ever be found there.
//!
//! | checked | when |
//! | --- | --- |
//! | one content for an ordinal | at every acknowledgement and every read |
//! | a producer's records of a streamlet: in the order sent, each once | the same |
//! | a reader gets the records of a lane without a gap, from wherever it starts | at every read |
//! | what was acknowledged is there, and what anybody has read is still there | when everything is healed, and after one more restart |
//! | of each key of a compacted lane what was written last is there, and nothing is gone that was not written over | when everything is healed, and after one more restart |
//! | how far an application has committed never moves back by itself | whenever it is asked |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A lane of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The stream's number.
    pub stream: u64,
    /// The streamlet.
    pub streamlet: u32,
    /// The lane.
    pub lane: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} of streamlet {} of stream {}", self.lane, self.streamlet, self.stream)
    }
}

/// A record, as its value tells it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Written {
    /// The producer's number in the run.
    pub producer: u32,
    /// The streamlet that it was written to.
    pub streamlet: u32,
    /// How many this producer had written there before.
    pub number: u64,
}

/// Bytes of a value before its filling.
const VALUE_HEAD: usize = 24;
/// Keys that are written at a time in a compacted stream, and how many records a producer writes until they are others.
const KEYS: u64 = 8;
const KEYS_LAST: u64 = 40;

impl Written {
    /// The value that a record carries: who it is, and `filling` bytes that follow from that.
    pub fn value(self, filling: usize) -> Vec<u8> {
        let mut value = Vec::with_capacity(VALUE_HEAD + filling);
        value.extend_from_slice(&u64::from(self.producer).to_le_bytes());
        value.extend_from_slice(&u64::from(self.streamlet).to_le_bytes());
        value.extend_from_slice(&self.number.to_le_bytes());
        value.extend((0..filling).map(|at| self.filling(at)));
        value
    }

    /// Its key in a compacted stream: producers write each other's, and after a while others.
    pub fn key(self) -> u64 {
        self.number / KEYS_LAST * KEYS + (self.number * 7 + u64::from(self.producer) * 3) % KEYS
    }

    /// Whether it takes its key away there.
    pub fn is_tombstone(self) -> bool {
        let mixed = (self.number + u64::from(self.producer)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 62 == 0
    }

    /// Who it is in eight bytes: what a record says that has no value.
    pub fn stamp(self) -> u64 {
        u64::from(self.producer) << 48 | u64::from(self.streamlet) << 32 | self.number
    }

    /// Reads that back.
    pub fn of_stamp(stamp: u64) -> Written {
        let (producer, streamlet) = ((stamp >> 48) as u32, (stamp >> 32) as u32 & 0xffff);
        Written { producer, streamlet, number: stamp & 0xffff_ffff }
    }

    fn filling(self, at: usize) -> u8 {
        (self.number as u8).wrapping_mul(31).wrapping_add(self.producer as u8).wrapping_add(at as u8)
    }

    /// Reads a value back; the error says what is wrong with it.
    pub fn parse(value: &[u8]) -> Result<Written, String> {
        let word = |at: usize| value.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
        let (Some(producer), Some(streamlet), Some(number)) = (word(0), word(8), word(16)) else {
            return Err(format!("a value of {} bytes, which nobody wrote", value.len()));
        };
        let written = Written { producer: producer as u32, streamlet: streamlet as u32, number };
        let filling = &value[VALUE_HEAD..];
        match filling.iter().enumerate().find(|(at, byte)| **byte != written.filling(*at)) {
            Some((at, _)) => Err(format!("byte {} of {written:?} is another than was written", VALUE_HEAD + at)),
            None => Ok(written),
        }
    }
}

/// Something that must never happen, and did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn violation<T>(message: String) -> Result<T, Violation> {
    Err(Violation(message))
}

#[derive(Default, Debug)]
struct LaneTruth {
    at: BTreeMap<u64, Written>,
    of: BTreeMap<u32, BTreeMap<u64, u64>>,
    /// Told to a producer.
    acknowledged: u64,
    /// Ordinals at which a reader found that compaction has removed what was there.
    removed: BTreeSet<u64>,
    /// Ordinals of which nothing was left when all applications had read them.
    read_by_all: BTreeSet<u64>,
}

/// Numbers of records, by stream, streamlet and producer.
type Numbers = BTreeMap<(u64, u32, u32), BTreeSet<u64>>;

/// See the module.
#[derive(Default, Debug)]
pub struct Truth {
    lanes: BTreeMap<Place, LaneTruth>,
    /// Acknowledged by whoever did not say at which place.
    somewhere: Numbers,
    /// Acknowledged and gone, as the stream's promise allows.
    gone: Numbers,
    committed: BTreeMap<(String, Place), (u64, &'static str)>,
    processed: BTreeMap<(String, Place), u64>,
    checks: u64,
}

impl Truth {
    /// How often something was compared with what must hold.
    pub fn checks(&self) -> u64 {
        self.checks
    }

    /// Records that producers were told of.
    pub fn acknowledged(&self) -> u64 {
        self.lanes.values().map(|lane| lane.acknowledged).sum()
    }

    /// A producer was told that its records are at `base` and behind.
    pub fn acknowledged_at(&mut self, place: Place, base: u64, records: &[Written]) -> Result<(), Violation> {
        for (ordinal, written) in (base..).zip(records) {
            self.found(place, ordinal, *written, "acknowledged")?;
        }
        self.lanes.entry(place).or_default().acknowledged += records.len() as u64;
        Ok(())
    }

    /// A producer was told that its records are there, and not where.
    pub fn acknowledged_somewhere(&mut self, stream: u64, records: &[Written]) {
        for written in records {
            let of = (stream, written.streamlet, written.producer);
            self.somewhere.entry(of).or_default().insert(written.number);
        }
    }

    /// Records that a producer was told of are gone, as the stream's promise allows: they are never found again.
    pub fn never(&mut self, place: Place, records: &[Written]) {
        for written in records {
            let of = (place.stream, written.streamlet, written.producer);
            self.gone.entry(of).or_default().insert(written.number);
        }
    }

    /// What is known at ordinals of a lane does not count any more: others may be found there, and what was there may be found again, for those who were
    /// not told of it send it again.
    pub fn unlearn(&mut self, place: Place, ordinals: std::ops::Range<u64>) {
        let lane = self.lanes.entry(place).or_default();
        lane.at.retain(|ordinal, _| !ordinals.contains(ordinal));
        lane.of.values_mut().for_each(|own| own.retain(|_, ordinal| !ordinals.contains(ordinal)));
    }

    /// The same of what is known at ordinals of a lane: others may be found there.
    pub fn forget(&mut self, place: Place, ordinals: std::ops::Range<u64>) {
        let records: Vec<Written> = self.between(place, ordinals.clone()).map(|(_, written)| written).collect();
        let lane = self.lanes.entry(place).or_default();
        lane.at.retain(|ordinal, _| !ordinals.contains(ordinal));
        for written in &records {
            if let Some(own) = lane.of.get_mut(&written.producer) {
                own.remove(&written.number);
            }
        }
        self.never(place, &records);
    }

    /// Somebody has read a record.
    pub fn read_at(&mut self, place: Place, ordinal: u64, value: &[u8]) -> Result<(), Violation> {
        match Written::parse(value) {
            Ok(written) => self.found(place, ordinal, written, "read"),
            Err(problem) => violation(format!("{place}, ordinal {ordinal}: {problem}")),
        }
    }

    /// The same of a record without a value, by its [stamp](Written::stamp).
    pub fn tombstone_at(&mut self, place: Place, ordinal: u64, stamp: u64) -> Result<(), Violation> {
        let written = Written::of_stamp(stamp);
        if !written.is_tombstone() {
            return violation(format!("{place}, ordinal {ordinal}: {written:?} has lost its value"));
        }
        self.found(place, ordinal, written, "read")
    }

    /// Somebody has read on over ordinals of a compacted lane whose records are not there any more. Whether they may be gone is seen when all is known:
    /// see [`read_compacted`](Truth::read_compacted).
    pub fn removed_at(&mut self, place: Place, ordinals: std::ops::Range<u64>) {
        self.checks += 1;
        self.lanes.entry(place).or_default().removed.extend(ordinals);
    }

    /// The same of ordinals that all applications have read, of a stream that keeps nothing longer: whatever was there may have gone for that.
    pub fn read_by_all(&mut self, place: Place, ordinals: std::ops::Range<u64>) {
        self.lanes.entry(place).or_default().read_by_all.extend(ordinals);
    }

    /// A compacted lane was read from its beginning to `end`, and these ordinals were there. Of each key that is what was written to it last, and
    /// what was not there, now or when anybody read the lane before, is something that a later record of its key stands for.
    pub fn read_compacted(&mut self, place: Place, end: u64, seen: &BTreeSet<u64>) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get(&place) else { return self.read_from(place, 0, end) };
        let is_told = |of: &&(u64, u32, u32)| (of.0, of.1) == (place.stream, place.streamlet);
        if self.somewhere.keys().any(|of| is_told(&of)) && (0..end).any(|ordinal| !lane.at.contains_key(&ordinal)) {
            // A record that a producer was told of without its place went before anybody read it: its key is not known there.
            return Ok(());
        }
        self.read_from(place, 0, end)?;
        let lane = &self.lanes[&place];
        let mut last: BTreeMap<u64, (u64, Written)> = BTreeMap::new();
        let mut shown: BTreeMap<u64, (u64, Written)> = BTreeMap::new();
        for (ordinal, written) in &lane.at {
            last.insert(written.key(), (*ordinal, *written));
            if seen.contains(ordinal) {
                shown.insert(written.key(), (*ordinal, *written));
            }
        }
        for ordinal in &lane.removed {
            let Some(written) = lane.at.get(ordinal) else { continue };
            if !written.is_tombstone() && last[&written.key()].0 == *ordinal {
                return violation(format!("{place}: {written:?} at {ordinal} is the last of its key, and was removed"));
            }
        }
        last.retain(|_, (ordinal, _)| !lane.read_by_all.contains(ordinal));
        for (key, (ordinal, written)) in last {
            match (shown.get(&key), written.is_tombstone()) {
                (Some((at, _)), _) if *at == ordinal => {}
                (None, true) => {}
                // That it is gone it said before, too.
                (Some((_, other)), true) if other.is_tombstone() => {}
                (Some((at, other)), is_gone) => {
                    let how = if is_gone { "came back to life" } else { "is the last there is" };
                    let what = format!("is what key {key} has, and {written:?} was at {ordinal}");
                    return violation(format!("{place}: {other:?} at {at} {how}: it {what}"));
                }
                (None, false) => {
                    return violation(format!("{place}: key {key} is gone, {written:?} was at {ordinal}"));
                }
            }
        }
        self.checks += 1;
        Ok(())
    }

    fn found(&mut self, place: Place, ordinal: u64, written: Written, how: &str) -> Result<(), Violation> {
        self.checks += 1;
        if written.streamlet != place.streamlet {
            return violation(format!("{place}, ordinal {ordinal}: {written:?} was {how} in a streamlet of others"));
        }
        let lane = self.lanes.entry(place).or_default();
        match lane.at.get(&ordinal) {
            Some(known) if *known == written => return Ok(()),
            Some(known) => {
                return violation(format!("{place}, ordinal {ordinal}: {written:?} was {how} where {known:?} was"));
            }
            None => {}
        }
        let gone = self.gone.get(&(place.stream, written.streamlet, written.producer));
        if gone.is_some_and(|gone| gone.contains(&written.number)) {
            return violation(format!("{place}: {written:?} was gone and was {how} at {ordinal}"));
        }
        let own = lane.of.entry(written.producer).or_default();
        if let Some(other) = own.get(&written.number) {
            return violation(format!("{place}: {written:?} was {how} at {ordinal} and is at {other}, too"));
        }
        let before = own.range(..written.number).next_back().filter(|(_, at)| **at > ordinal);
        let behind = own.range(written.number..).next().filter(|(_, at)| **at < ordinal);
        if let Some((number, at)) = before.or(behind) {
            return violation(format!("{place}: {written:?} was {how} at {ordinal}, and number {number} is at {at}"));
        }
        own.insert(written.number, ordinal);
        lane.at.insert(ordinal, written);
        Ok(())
    }

    /// Everything of a lane was read, from its beginning to `end`: nothing that anybody was told of may be missing.
    pub fn read_whole(&mut self, place: Place, end: u64) -> Result<(), Violation> {
        self.read_from(place, 0, end)
    }

    /// The same of a lane that began at `first`: what was before it had gone.
    pub fn read_from(&mut self, place: Place, first: u64, end: u64) -> Result<(), Violation> {
        self.checks += 1;
        let Some(lane) = self.lanes.get(&place) else {
            return if end == 0 { Ok(()) } else { violation(format!("{place} has records that nobody has read")) };
        };
        if let Some((ordinal, written)) = lane.at.range(end..).next() {
            return violation(format!("{place} ends at {end}; {written:?} was at {ordinal}"));
        }
        // Up to `end` each was read now, so each ordinal is known.
        let mut missing = (first..end).filter(|ordinal| !lane.at.contains_key(ordinal));
        if let Some(ordinal) = missing.next() {
            return violation(format!("{place}: nobody has seen what is at {ordinal}"));
        }
        for (producer, own) in &lane.of {
            let told = self.somewhere.get(&(place.stream, place.streamlet, *producer)).into_iter().flatten();
            for number in told.filter(|number| !own.contains_key(number)) {
                // It was between these two: what has gone from there before anybody read it may have been it.
                let from = own.range(..number).next_back().map_or(0, |(_, at)| at + 1);
                let to = own.range(number..).next().map_or(end, |(_, at)| *at);
                if (from..to).all(|ordinal| lane.at.contains_key(&ordinal)) {
                    return violation(format!(
                        "{place}: number {number} of producer {producer} was acknowledged and is nowhere between {from} and {to}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A producer has sent all its records and been told of all: `count` of them to a streamlet. They are all in its lanes.
    pub fn wrote_all(&mut self, stream: u64, streamlet: u32, producer: u32, count: u64) -> Result<(), Violation> {
        self.checks += 1;
        let lanes = self.lanes.iter().filter(|(place, _)| (place.stream, place.streamlet) == (stream, streamlet));
        let found: u64 = lanes.filter_map(|(_, lane)| lane.of.get(&producer)).map(|own| own.len() as u64).sum();
        if found == count {
            return Ok(());
        }
        violation(format!("producer {producer} wrote {count} records to streamlet {streamlet}; there are {found}"))
    }

    /// A member was given a lease that begins at `start`. What lies before it was processed by somebody, or the application
    /// would never see it; and what the application was told to have committed stays committed.
    pub fn leased_from(&mut self, asked: &Asked, place: Place, start: u64) -> Result<(), Violation> {
        self.goes_on_at(asked, place, start)?;
        self.committed_to(asked, place, start, "a lease")
    }

    /// The first half of that.
    pub fn goes_on_at(&mut self, asked: &Asked, place: Place, start: u64) -> Result<(), Violation> {
        self.checks += 1;
        let (application, processed) = (&asked.application, self.processed_to(asked, place));
        if start > processed {
            return violation(format!("{place}: application {application} goes on at {start}, after {processed}"));
        }
        Ok(())
    }

    /// How far an application has processed a lane, whoever did.
    pub fn processed_to(&self, asked: &Asked, place: Place) -> u64 {
        self.processed_by(&asked.application, place)
    }

    /// The same of an application by its name.
    pub fn processed_by(&self, application: &str, place: Place) -> u64 {
        self.processed.get(&(application.to_owned(), place)).copied().unwrap_or(0)
    }

    /// What is known of an application when something is asked of it: the answer may be on its way for long, and must not be
    /// compared with what came to be meanwhile.
    pub fn asking(&self, application: &str) -> Asked {
        let own = self.committed.iter().filter(|((name, _), _)| name == application);
        let known = own.map(|((_, place), known)| (*place, *known)).collect();
        Asked { application: application.to_owned(), known }
    }

    /// A member has processed a lane's records from `from` to `to`, and says so in a commit that is about to leave.
    pub fn processed(&mut self, application: &str, place: Place, to: u64) {
        let known = self.processed.entry((application.to_owned(), place)).or_default();
        *known = to.max(*known);
    }

    /// What is known to be, or to have been, at ordinals of a lane.
    pub fn between(&self, place: Place, ordinals: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Written)> {
        let lane = self.lanes.get(&place).into_iter();
        lane.flat_map(move |lane| lane.at.range(ordinals.clone())).map(|(ordinal, written)| (*ordinal, *written))
    }

    /// One more comparison with what must hold, made elsewhere.
    pub fn checked(&mut self) {
        self.checks += 1;
    }

    /// The end of what anybody has found in a lane.
    pub fn end(&self, place: Place) -> u64 {
        let last = self.lanes.get(&place).and_then(|lane| lane.at.last_key_value());
        last.map_or(0, |(ordinal, _)| ordinal + 1)
    }

    /// A commit was acknowledged.
    pub fn committed_at_least(&mut self, application: &str, place: Place, ordinal: u64) {
        let known = self.committed.entry((application.to_owned(), place)).or_default();
        if ordinal > known.0 {
            *known = (ordinal, "an acknowledged commit");
        }
    }

    /// Lanes that records were found in.
    pub fn places(&self) -> Vec<Place> {
        self.lanes.keys().copied().collect()
    }

    /// An application was told its position in a lane, by what `how` says.
    pub fn committed_to(
        &mut self,
        asked: &Asked,
        place: Place,
        ordinal: u64,
        how: &'static str,
    ) -> Result<(), Violation> {
        self.not_before(asked, place, ordinal, how)?;
        let known = self.committed.entry((asked.application.clone(), place)).or_default();
        if ordinal > known.0 {
            *known = (ordinal, how);
        }
        Ok(())
    }

    /// The same where that alone does not say that it was committed: only what was known before is compared with it.
    pub fn not_before(
        &mut self,
        asked: &Asked,
        place: Place,
        ordinal: u64,
        how: &'static str,
    ) -> Result<(), Violation> {
        self.checks += 1;
        let application = &asked.application;
        if let Some((before, told)) = asked.known.get(&place)
            && ordinal < *before
        {
            let what = format!("{place}: application {application} was told {before} by {told}");
            return violation(format!("{what}, and now {ordinal} by {how}"));
        }
        Ok(())
    }
}

/// See [`Truth::asking`].
#[derive(Clone, Default, Debug)]
pub struct Asked {
    application: String,
    known: BTreeMap<Place, (u64, &'static str)>,
}

impl Asked {
    /// The application that is asked about.
    pub fn application(&self) -> &str {
        &self.application
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { stream: 7, streamlet: 2, lane: 0 };

    fn of(producer: u32, number: u64) -> Written {
        Written { producer, streamlet: 2, number }
    }

    fn truth() -> Truth {
        let mut truth = Truth::default();
        truth.acknowledged_at(PLACE, 0, &[of(1, 0), of(1, 1)]).expect("nothing was there");
        truth.acknowledged_at(PLACE, 3, &[of(2, 0)]).expect("nothing was there");
        truth
    }

    #[test]
    fn what_was_written_reads_back_and_a_wrong_byte_is_seen() {
        let mut value = of(3, 9).value(40);
        assert_eq!(Written::parse(&value), Ok(of(3, 9)));
        value[30] ^= 4;
        assert!(Written::parse(&value).unwrap_err().contains("byte 30"));
        assert!(Written::parse(&value[..20]).is_err());
    }

    #[test]
    fn of_each_key_of_a_compacted_lane_the_last_record_must_be_there() {
        let all: Vec<Written> = (0..4 * KEYS_LAST).map(|number| of(1, number)).collect();
        assert!(all.iter().all(|written| Written::of_stamp(written.stamp()) == *written));
        let end = all.len() as u64;
        let is_last = |at: u64| all[at as usize + 1..].iter().all(|later| later.key() != all[at as usize].key());
        let before = |at: u64| (0..at).rfind(|other| all[*other as usize].key() == all[at as usize].key());
        let is_gone = |at: u64| all[at as usize].is_tombstone();
        let value = (0..end).find(|at| is_last(*at) && !is_gone(*at) && before(*at).is_some()).expect("a value");
        let hides = |at: &u64| is_last(*at) && is_gone(*at) && before(*at).is_some_and(|before| !is_gone(before));
        let gone = (0..end).find(hides).expect("a tombstone that hides something");
        let check = |seen: &dyn Fn(u64) -> bool, removed: Option<u64>| {
            let mut truth = Truth::default();
            truth.acknowledged_at(PLACE, 0, &all).expect("nothing was there");
            truth.removed_at(PLACE, removed.map_or(0..0, |at| at..at + 1));
            let seen: BTreeSet<u64> = (0..end).filter(|at| seen(*at)).collect();
            truth.read_compacted(PLACE, end, &seen).map_err(|violation| violation.0)
        };
        assert_eq!(check(&|_| true, None), Ok(()));
        assert_eq!(check(&is_last, before(value)), Ok(()), "the last of each key is there");
        assert_eq!(check(&|at| is_last(at) && at != gone, Some(gone)), Ok(()), "nothing is left of a key");
        assert!(check(&|at| at != value, None).unwrap_err().contains("is what key"));
        assert!(check(&|at| is_last(at) && at != value, None).unwrap_err().contains("is gone"));
        assert!(check(&|at| at != gone, None).unwrap_err().contains("came back to life"));
        assert!(check(&|_| true, Some(value)).unwrap_err().contains("was removed"));
        let mut truth = Truth::default();
        truth.acknowledged_at(PLACE, 0, &all).expect("nothing was there");
        truth.read_by_all(PLACE, value..value + 1);
        let seen: BTreeSet<u64> = (0..end).filter(|at| *at != value).collect();
        assert_eq!(truth.read_compacted(PLACE, end, &seen), Ok(()), "all have read it");
        let mut truth = Truth::default();
        assert_eq!(truth.tombstone_at(PLACE, 0, all[gone as usize].stamp()), Ok(()));
        assert!(truth.tombstone_at(PLACE, 1, all[value as usize].stamp()).unwrap_err().0.contains("lost its value"));
    }

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let broken = |result: Result<(), Violation>, words: &str| {
            let message = result.unwrap_err().0;
            assert!(message.contains(words), "{message}");
        };
        assert_eq!(truth().read_at(PLACE, 0, &of(1, 0).value(5)), Ok(()));
        broken(truth().read_at(PLACE, 0, &of(1, 1).value(5)), "was");
        broken(truth().read_at(PLACE, 2, &of(1, 1).value(5)), "is at 1, too");
        broken(truth().acknowledged_at(PLACE, 9, &[of(1, 7), of(1, 6)]), "number 7 is at 9");
        broken(truth().read_at(Place { streamlet: 1, ..PLACE }, 0, &of(1, 0).value(5)), "of others");
        broken(truth().read_whole(PLACE, 3), "ends at 3");
        broken(truth().read_whole(PLACE, 4), "nobody has seen what is at 2");
        let mut filled = truth();
        filled.read_at(PLACE, 2, &of(1, 2).value(0)).expect("it follows");
        assert_eq!(filled.read_whole(PLACE, 4), Ok(()));
        assert_eq!(filled.wrote_all(7, 2, 1, 3), Ok(()));
        filled.acknowledged_somewhere(7, &[of(1, 1), of(1, 2)]);
        assert_eq!(filled.read_whole(PLACE, 4), Ok(()));
        filled.acknowledged_somewhere(7, &[of(1, 3)]);
        broken(filled.read_whole(PLACE, 4), "number 3 of producer 1 was acknowledged and is nowhere between 3 and 4");
        broken(filled.wrote_all(7, 2, 1, 4), "there are 3");
        broken(
            {
                let asked = filled.asking("a");
                filled.leased_from(&asked, PLACE, 1)
            },
            "goes on at 1, after 0",
        );
        filled.processed("a", PLACE, 4);
        assert_eq!(
            {
                let asked = filled.asking("a");
                filled.leased_from(&asked, PLACE, 3)
            },
            Ok(())
        );
        assert_eq!(
            {
                let asked = filled.asking("a");
                filled.committed_to(&asked, PLACE, 4, "an answer")
            },
            Ok(())
        );
        assert_eq!(filled.end(PLACE), 4);
        broken(
            {
                let asked = filled.asking("a");
                filled.committed_to(&asked, PLACE, 3, "an answer")
            },
            "was told 4 by an answer",
        );
    }
}
