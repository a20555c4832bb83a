//! What native readers see of a lane that transactions have written to: what is committed.
//!
//! Chunks of aborted transactions are left out, and nothing is read from the first transaction on that has not ended. Markers stay:
//! they are what a reader's ordinals go on with behind what was left out. Lanes without transactions, which is nearly all, pay a
//! load for it.
//!
//! Who reads first and asks then misses nothing: a lane's [`Visibility`](kera_log::Visibility) is set before the first record is appended that it is
//! about, so a reader that has found such a record finds it, too. And the transaction of that record is known to run, or to have
//! ended, before it can be read (docs/decisions/0013-kafka-transactions.md).

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::kafka_batch::KafkaBatchView;
use kera_format::{ChunkView, Cursor};
use kera_log::{Lane, ReadOutcome, Visibility};

/// What was done to what a read has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shown {
    /// Records of transactions are left in it only if they are committed.
    pub(crate) committed: bool,
    /// Some were left out.
    pub(crate) holes: bool,
}

/// Where readers of a lane come to its end; `durable` is its durable end, from before the call.
pub(crate) fn end(lane: &Lane, durable: u64) -> u64 {
    lane.visibility().map_or(durable, |by| by.end(durable).min(durable))
}

/// Whether that is known: the next owner of a lane has to ask first which transactions run.
pub(crate) fn is_known(lane: &Lane) -> bool {
    lane.visibility().is_none_or(|by| by.is_known())
}

/// Takes out of a read what nobody may see. `None`: what was read is not there any more, and is to be read anew.
///
/// What was aborted is forgotten when retention has taken it, and readers keep what they have read: if it goes between the read and the question what of it was aborted, the answer
/// does not name that. So the answer counts if all that it is about is there behind it. `begins`: where the lane was found to begin behind the read before, if that one came to nothing.
/// What lies behind that place and was read since is there, whatever its ordinals are: where a disk gives again what was lost they go back along a lane.
pub(crate) fn narrow(lane: &Lane, outcome: &mut ReadOutcome, begins: &mut Option<Cursor>) -> Option<Shown> {
    let Some(by) = lane.visibility() else { return Some(Shown::default()) };
    let end = end(lane, outcome.durable_ordinal);
    outcome.durable_ordinal = end;
    let mut passing = Passing { by, end, hidden: None, asked_from: None, aborted: HashSet::new() };
    let (mut shown, mut holes) = (Vec::with_capacity(outcome.data.len()), false);
    let mut stop = None;
    for data in std::mem::take(&mut outcome.data) {
        let (kept, skipped, stopped) = passing.pass(&data);
        shown.extend(kept.into_iter().map(|(from, to)| data.slice(from..to)));
        holes |= skipped;
        stop = stopped;
        if stop.is_some() {
            break;
        }
    }
    if let Some(from) = passing.asked_from {
        let (place, first) = lane.earliest();
        if from < first && begins.replace(place) != Some(place) {
            return None;
        }
    }
    outcome.data_bytes = shown.iter().map(Bytes::len).sum();
    outcome.data = shown;
    if let Some(cursor) = stop {
        // What comes next becomes readable with the marker of a transaction, whose append moves the lane.
        (outcome.next, outcome.at_durable_end) = (cursor, true);
        (outcome.end_of_group, outcome.loading) = (false, false);
    }
    Some(Shown { committed: true, holes })
}

/// A walk over the chunks of one read.
struct Passing<'a> {
    by: &'a Arc<dyn Visibility>,
    end: u64,
    /// Aborted transactions that begin ahead, the next one last.
    hidden: Option<Vec<(i64, u64)>>,
    /// From which ordinal on that was asked for.
    asked_from: Option<u64>,
    /// Producers whose aborted transaction the walk is in.
    aborted: HashSet<i64>,
}

impl Passing<'_> {
    /// The ranges of `data` that are shown, whether some are not, and the chunk where readers have to wait.
    fn pass(&mut self, data: &Bytes) -> (Vec<(usize, usize)>, bool, Option<Cursor>) {
        let mut kept: Vec<(usize, usize)> = Vec::new();
        let (mut at, mut skipped) = (0, false);
        for chunk in Chunks::new(data) {
            // What is damaged goes on as it is: its reader says so.
            let Some((chunk, place)) = chunk.ok().and_then(|chunk| Some((chunk, chunk.broker().ok()?))) else {
                kept.push((at, data.len()));
                break;
            };
            if place.base_ordinal >= self.end {
                let cursor = Cursor { group: place.group, segment: place.segment, position: place.position };
                return (kept, skipped, Some(cursor));
            }
            let to = at + chunk.as_bytes().len();
            if self.is_hidden(&chunk, place.base_ordinal) {
                skipped = true;
            } else {
                match kept.last_mut() {
                    Some((_, end)) if *end == at => *end = to,
                    _ => kept.push((at, to)),
                }
            }
            at = to;
        }
        (kept, skipped, None)
    }

    fn is_hidden(&mut self, chunk: &ChunkView<'_>, ordinal: u64) -> bool {
        if chunk.header().kind != PayloadKind::KafkaBatch {
            return false;
        }
        let Ok(batch) = KafkaBatchView::parse(chunk.payload()) else { return false };
        if !batch.is_transactional() {
            return false;
        }
        self.asked_from.get_or_insert(ordinal);
        let hidden = self.hidden.get_or_insert_with(|| {
            let mut hidden = self.by.hidden(ordinal, self.end);
            hidden.sort_unstable_by_key(|(_, first)| std::cmp::Reverse(*first));
            hidden
        });
        while let Some((producer, _)) = hidden.pop_if(|(_, first)| *first <= ordinal) {
            self.aborted.insert(producer);
        }
        if batch.is_control() {
            self.aborted.remove(&batch.producer_id());
            return false;
        }
        self.aborted.contains(&batch.producer_id())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use kera_format::chunk::{ChunkTarget, seal_in_place};
    use kera_format::kafka_batch::KAFKA_BATCH_HEADER_BYTES;
    use kera_format::{
        BrokerPart, CHUNK_HEADER_BYTES, Compression, GroupId, LaneId, StreamId, StreamOptions, StreamletId,
    };
    use kera_log::{Arena, ArenaConfig, Log, LogConfig, Streamlet};
    use proptest::prelude::*;

    const TRANSACTIONAL: u8 = 0x10;
    const MARKER: u8 = 0x30;

    #[derive(Debug)]
    struct Fixed {
        end: u64,
        hidden: Vec<(i64, u64, u64)>,
    }

    impl Visibility for Fixed {
        fn end(&self, durable: u64) -> u64 {
            self.end.min(durable)
        }
        fn hidden(&self, from: u64, to: u64) -> Vec<(i64, u64)> {
            let touches = |(_, first, marker): &&(i64, u64, u64)| *first < to && *marker >= from;
            self.hidden.iter().filter(touches).map(|(producer, first, _)| (*producer, *first)).collect()
        }
    }

    /// A chunk of one record.
    fn chunk(producer: i64, attributes: u8, target: &ChunkTarget) -> Vec<u8> {
        let mut batch = vec![0; KAFKA_BATCH_HEADER_BYTES];
        batch[8..12].copy_from_slice(&(KAFKA_BATCH_HEADER_BYTES as u32 - 12).to_be_bytes());
        (batch[16], batch[22]) = (2, attributes);
        batch[43..51].copy_from_slice(&producer.to_be_bytes());
        let mut chunk = vec![0; CHUNK_HEADER_BYTES];
        chunk.extend_from_slice(&batch);
        seal_in_place(&mut chunk, target, PayloadKind::KafkaBatch, Compression::None, 1, 0).unwrap();
        chunk
    }

    /// One at each ordinal: producer and attributes.
    fn data(first: u64, chunks: &[(i64, u8)]) -> Bytes {
        let mut data = Vec::new();
        for (n, (producer, attributes)) in chunks.iter().enumerate() {
            let mut chunk = chunk(*producer, *attributes, &ChunkTarget::default());
            let (base_ordinal, position) = (first + n as u64, data.len() as u32);
            BrokerPart { group: GroupId::new(1, 1), base_ordinal, position, ..BrokerPart::default() }.stamp(&mut chunk);
            data.extend_from_slice(&chunk);
        }
        data.into()
    }

    /// The ordinals that are shown, and where readers have to wait.
    fn shown(by: Fixed, pieces: &[Bytes]) -> (Vec<u64>, Option<u32>) {
        let end = by.end;
        let by: Arc<dyn Visibility> = Arc::new(by);
        let mut passing = Passing { by: &by, end, hidden: None, asked_from: None, aborted: HashSet::new() };
        let mut ordinals = Vec::new();
        for piece in pieces {
            let (kept, skipped, stop) = passing.pass(piece);
            let whole: usize = kept.iter().map(|(from, to)| to - from).sum();
            assert!(skipped || stop.is_some() || whole == piece.len());
            for (from, to) in kept {
                ordinals
                    .extend(Chunks::new(&piece[from..to]).map(|chunk| chunk.unwrap().broker().unwrap().base_ordinal));
            }
            if let Some(cursor) = stop {
                return (ordinals, Some(cursor.position));
            }
        }
        (ordinals, None)
    }

    #[test]
    fn aborted_records_are_left_out_up_to_their_marker() {
        let chunks = [
            (7, TRANSACTIONAL),
            (8, TRANSACTIONAL),
            (-1, 0),
            (7, TRANSACTIONAL),
            (8, MARKER),
            (7, MARKER),
            (7, TRANSACTIONAL),
            (7, MARKER),
        ];
        let all = data(10, &chunks);
        let by = || Fixed { end: 18, hidden: vec![(7, 10, 15)] };
        assert_eq!(shown(by(), std::slice::from_ref(&all)), (vec![11, 12, 14, 15, 16, 17], None));
        // From the middle of it on, and over the boundary of two segments.
        assert_eq!(shown(by(), &[data(13, &chunks[3..])]).0, [14, 15, 16, 17]);
        assert_eq!(shown(by(), &[data(10, &chunks[..2]), data(12, &chunks[2..])]).0, [11, 12, 14, 15, 16, 17]);
    }

    /// Retention takes what was read while it is asked what of it was aborted, which nobody knows any more then.
    #[derive(Debug)]
    struct Forgets {
        streamlet: Arc<Streamlet>,
        taken: GroupId,
        asked: AtomicU64,
    }

    impl Visibility for Forgets {
        fn end(&self, durable: u64) -> u64 {
            durable
        }
        fn hidden(&self, _: u64, _: u64) -> Vec<(i64, u64)> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.streamlet.leave();
            self.streamlet.forget_groups(|group| group > self.taken);
            Vec::new()
        }
    }

    /// A lane with a transaction of which a part goes while it is asked about, and the first of what stays.
    fn forgetting() -> (Arc<Forgets>, Arc<Lane>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("visible.arena");
        let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 16 << 20, node: [3; 16] }).unwrap();
        let log = Log::new(LogConfig::default(), arena);
        let stream = log.create_stream(StreamId(7), StreamOptions::default()).unwrap();
        let streamlet = stream.streamlet(StreamletId(0)).unwrap();
        let lane = streamlet.lane(LaneId(0)).unwrap();
        let target = ChunkTarget { stream: StreamId(7), ..ChunkTarget::default() };
        for attributes in [TRANSACTIONAL, MARKER] {
            let chunk = chunk(7, attributes, &target);
            lane.append(&ChunkView::parse(&chunk).unwrap(), 1).unwrap();
            lane.close_group();
        }
        let taken = lane.groups(GroupId::NONE, 1)[0].id;
        let by = Arc::new(Forgets { streamlet: Arc::clone(streamlet), taken, asked: AtomicU64::new(0) });
        lane.set_visibility(|| Arc::clone(&by) as Arc<dyn Visibility>);
        let lane = Arc::clone(lane);
        (by, lane, dir)
    }

    #[test]
    fn what_goes_while_it_is_asked_what_of_it_was_aborted_is_not_shown() {
        let (by, lane, _dir) = forgetting();
        let (read, mut begins) = (|| lane.read(Cursor::default(), 1 << 20, true).unwrap(), None);
        let mut outcome = read();
        assert!(outcome.data_bytes > 0);
        assert_eq!(narrow(&lane, &mut outcome, &mut begins), None);
        let mut outcome = read();
        assert_eq!(narrow(&lane, &mut outcome, &mut begins), Some(Shown { committed: true, holes: false }));
        let is_left = outcome.start.group > by.taken;
        assert_eq!((is_left, by.asked.load(Ordering::Relaxed)), (true, 2), "what is left of it");
    }

    /// What a disk has given again may lie in front of what was given the same ordinals since, and end behind where that begins. Who reads that would read it again and again.
    #[test]
    fn what_is_there_is_shown_though_its_ordinals_are_lower_than_where_the_lane_begins() {
        let (by, lane, _dir) = forgetting();
        let read = lane.read(Cursor::default(), 1 << 20, true).unwrap();
        let mut begins = None;
        assert_eq!(narrow(&lane, &mut read.clone(), &mut begins), None);
        // Nothing has gone since that was found.
        let mut again = read.clone();
        assert_eq!(narrow(&lane, &mut again, &mut begins), Some(Shown { committed: true, holes: false }));
        assert_eq!((again.data_bytes, by.asked.load(Ordering::Relaxed)), (read.data_bytes, 2));
        // Something has.
        begins = Some(Cursor::default());
        assert_eq!(narrow(&lane, &mut read.clone(), &mut begins), None);
    }

    #[test]
    fn readers_wait_where_a_transaction_runs() {
        let all = data(0, &[(-1, 0), (7, TRANSACTIONAL), (-1, 0)]);
        let chunk_bytes = (all.len() / 3) as u32;
        assert_eq!(shown(Fixed { end: 1, hidden: vec![] }, &[all]), (vec![0], Some(chunk_bytes)));
    }

    proptest! {
        /// Producers take turns; whatever order their transactions have, what is shown is what was committed.
        #[test]
        fn what_is_shown_is_what_was_committed(
            steps in prop::collection::vec((1..4_i64, 0..4_u8), 1..60),
            from in 0..60_usize,
            cut in 0..60_usize,
        ) {
            let mut chunks = Vec::new();
            let mut open: std::collections::BTreeMap<i64, u64> = Default::default();
            let (mut hidden, mut dead) = (Vec::new(), HashSet::new());
            let mut of: std::collections::BTreeMap<i64, Vec<u64>> = Default::default();
            for (producer, step) in steps {
                let at = chunks.len() as u64;
                match step {
                    0 => chunks.push((-1, 0)),
                    1 | 2 if open.contains_key(&producer) => {
                        chunks.push((producer, MARKER));
                        let (first, records) = (open.remove(&producer).unwrap(), of.remove(&producer).unwrap());
                        if step == 2 {
                            hidden.push((producer, first, at));
                            dead.extend(records);
                        }
                    }
                    _ => {
                        chunks.push((producer, TRANSACTIONAL));
                        open.entry(producer).or_insert(at);
                        of.entry(producer).or_default().push(at);
                    }
                }
            }
            let end = open.values().min().copied().unwrap_or(chunks.len() as u64);
            let from = from.min(chunks.len());
            let cut = cut.clamp(from, chunks.len());
            let pieces = [data(from as u64, &chunks[from..cut]), data(cut as u64, &chunks[cut..])];
            let expected: Vec<u64> =
                (from as u64..end.max(from as u64)).filter(|at| !dead.contains(at)).collect();
            prop_assert_eq!(shown(Fixed { end, hidden }, &pieces).0, expected);
        }
    }
}
