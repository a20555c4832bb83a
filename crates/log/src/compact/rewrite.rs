//! A segment without the records that compaction takes. Pure: bytes in, bytes out.
//!
//! Why what comes out can stand in the place of what went in is in `docs/decisions/0014-compaction.md`.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;

use kera_env::Believed;
use kera_format::chunk::{ChunkTarget, Chunks, PayloadKind, seal_in_place};
use kera_format::kafka_batch::{self, KAFKA_BATCH_HEADER_BYTES, KafkaBatchView, KafkaRecords};
use kera_format::kafka_codec::KafkaCodec;
use kera_format::limits::CHUNK_UNCOMPRESSED_BYTES_MAX;
use kera_format::record::REMOVED_RECORD;
use kera_format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentProgress};
use kera_format::{BrokerPart, CHUNK_HEADER_BYTES, ChunkView, Compression, FormatError, RecordView, Records};

use super::elsewhere::Goes;
use super::map::OrdinalMap;
use crate::group::ahead_of;
use crate::visibility::Visibility;

/// Why a segment cannot be compacted now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RewriteError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("it has records of transactions, and nobody here knows which were committed")]
    Transactions,
    #[error("it was rewritten as often as can be counted")]
    TooOften,
}

/// A chunk's records as they are without compression.
enum Opened<'a> {
    Native(Cow<'a, [u8]>),
    Kafka(KafkaBatchView<'a>, Cow<'a, [u8]>),
    /// A batch of an aborted transaction.
    Aborted(KafkaBatchView<'a>),
    /// A batch that ends a transaction. True if nobody needs it any more.
    Marker(bool),
    /// Its producer wrote what cannot be taken apart: it stays, and so does what it may hide.
    Unreadable,
}

/// A record as compaction sees it.
struct Seen<'a> {
    ordinal: u64,
    key: Option<&'a [u8]>,
    is_tombstone: bool,
    bytes: &'a [u8],
}

fn open<'a>(chunk: &ChunkView<'a>, base: u64, visibility: Option<&dyn Visibility>) -> Result<Opened<'a>, RewriteError> {
    if chunk.header().kind != PayloadKind::KafkaBatch {
        return Ok(readable(chunk.uncompressed().map(Opened::Native)));
    }
    let Ok(batch) = KafkaBatchView::parse(chunk.payload()) else { return Ok(Opened::Unreadable) };
    if batch.is_control() || batch.is_transactional() {
        let Some(visibility) = visibility else { return Err(RewriteError::Transactions) };
        let end = base + u64::from(chunk.header().record_count);
        let hidden = visibility.hidden(base, end);
        let is_hidden = hidden.iter().any(|(producer, from)| *producer == batch.producer_id() && *from <= base);
        if batch.is_control() {
            return Ok(Opened::Marker(!is_hidden));
        }
        if is_hidden {
            return Ok(Opened::Aborted(batch));
        }
    }
    let records = batch.uncompressed(CHUNK_UNCOMPRESSED_BYTES_MAX);
    Ok(readable(records.map(|records| Opened::Kafka(batch, records))))
}

/// What was opened, if all of its records can be read. The chunk's checksums were verified: it is as its producer made it.
fn readable(opened: Result<Opened<'_>, FormatError>) -> Opened<'_> {
    let is_readable = |opened: &Opened<'_>| each_record(opened, 0, |_| {}).is_ok();
    opened.ok().filter(is_readable).unwrap_or(Opened::Unreadable)
}

/// Calls `each` with the records of a chunk that are there.
fn each_record<'a>(opened: &'a Opened<'_>, base: u64, mut each: impl FnMut(Seen<'a>)) -> Result<(), FormatError> {
    match opened {
        Opened::Native(payload) => {
            for (ordinal, record) in (base..).zip(Records::new(payload)) {
                let record = record?;
                if !record.is_removed() {
                    let (key, is_tombstone) = (record.key(), record.value().is_none());
                    each(Seen { ordinal, key, is_tombstone, bytes: record.as_bytes() });
                }
            }
        }
        Opened::Kafka(batch, records) => {
            for record in KafkaRecords::new(batch, records) {
                let record = record?;
                let (ordinal, is_tombstone) = (base + u64::from(record.offset_delta), record.value.is_none());
                each(Seen { ordinal, key: record.key, is_tombstone, bytes: record.bytes });
            }
        }
        Opened::Aborted(_) | Opened::Marker(_) | Opened::Unreadable => {}
    }
    Ok(())
}

/// Notes the keys of a segment's records from `from` on. The ordinal up to which all are noted: the segment's end, or less if the
/// table is full.
pub(crate) fn note_keys(
    image: &[u8],
    progress: &SegmentProgress,
    from: u64,
    visibility: Option<&dyn Visibility>,
    map: &mut OrdinalMap,
) -> Result<u64, RewriteError> {
    for chunk in Chunks::new(&image[SEGMENT_HEADER_BYTES..progress.head as usize]) {
        let chunk = chunk?;
        let base = chunk.broker()?.base_ordinal;
        if base + u64::from(chunk.header().record_count) <= from {
            continue;
        }
        let mut full_at = None;
        let opened = open(&chunk, base, visibility)?;
        each_record(&opened, base, |seen| {
            if let (None, Some(key)) = (full_at, seen.key.filter(|_| seen.ordinal >= from))
                && !map.note(key, seen.ordinal)
            {
                full_at = Some(seen.ordinal);
            }
        })?;
        if let Some(ordinal) = full_at {
            return Ok(ordinal);
        }
    }
    Ok(progress.next_ordinal)
}

/// Calls `each` with the keys of a chunk's values. False: it cannot be taken apart.
pub(super) fn has_values(chunk: &ChunkView<'_>, visibility: &dyn Visibility, each: &mut dyn FnMut(&[u8])) -> bool {
    let note = |seen: Seen<'_>| {
        if let Some(key) = seen.key.filter(|_| !seen.is_tombstone) {
            each(key);
        }
    };
    match open(chunk, 0, Some(visibility)) {
        Ok(Opened::Unreadable) | Err(_) => false,
        Ok(opened) => each_record(&opened, 0, note).is_ok(),
    }
}

/// What goes.
pub(crate) struct Rules<'a> {
    pub(crate) map: &'a OrdinalMap,
    /// Records from here on were not noted: they stay.
    pub(crate) map_end: u64,
    pub(crate) visibility: Option<&'a dyn Visibility>,
    /// Chunks that stay, if only as empty ones: by their first ordinals.
    pub(crate) remembered: &'a HashSet<u64>,
    /// The lane has forgotten producers, whose chunks go: what is left says so.
    pub(crate) has_forgotten: bool,
    pub(crate) now: Believed,
    /// Tombstones of segments that were compacted so long ago go.
    pub(crate) tombstone_ms: i64,
    /// Something in front could not be removed: what hides it stays.
    pub(crate) is_blocked: bool,
    /// Which of the tombstones may go whose time is up.
    pub(crate) tombstones: Goes,
    /// There are some of which that depends on what nobody has looked at yet.
    pub(crate) asks: Cell<bool>,
    /// Segments that end up to here were compacted before something in front of them was here.
    pub(crate) joined_to: u64,
    /// In front of such a segment something has gone now: the time of its tombstones begins anew.
    pub(crate) is_fresh: bool,
}

/// A segment as it is without what goes.
pub(crate) struct Rewritten {
    /// Header and chunks.
    pub(crate) image: Vec<u8>,
    pub(crate) header: SegmentHeader,
    pub(crate) progress: SegmentProgress,
    pub(crate) records_removed: u64,
}

/// What becomes of a chunk.
enum Fate {
    Stays,
    Goes,
    Becomes(Vec<u8>),
    /// It would grow, so it stays as it is with what should go.
    Sticks,
}

impl Rules<'_> {
    /// When a segment was compacted is what the wall clock said then, be it believed or not, and how long ago that is goes by what is believed now: so no jump says that
    /// the time of tombstones is over, and none that turns out to be right begins it in the past.
    fn tombstones_go(&self, header: &SegmentHeader) -> bool {
        !self.is_blocked && header.compacted_ms().is_some_and(|ms| self.now.age_ms(ms) >= self.tombstone_ms)
    }

    /// Whether a segment was compacted by a clock that was ahead, and set back since: its tombstones would stay until the time that it said.
    fn is_ahead(&self, header: &SegmentHeader) -> bool {
        self.now.doubt().is_none() && header.compacted_ms().is_some_and(|ms| ms > ahead_of(self.now.wall_ms()))
    }

    fn removes(&self, seen: &Seen<'_>, tombstones_go: bool) -> bool {
        let Some(key) = seen.key.filter(|_| seen.ordinal < self.map_end) else { return false };
        self.map.has_later(key, seen.ordinal) || seen.is_tombstone && tombstones_go && self.lets_go(key)
    }
}

/// The segment without what goes; `None` if it is as it should be already. `rules.is_blocked` is set if something stays that
/// should go.
pub(crate) fn rewrite(image: &[u8], rules: &mut Rules<'_>) -> Result<Option<Rewritten>, RewriteError> {
    let found = SegmentHeader::parse(image)?;
    let progress = SegmentProgress::parse(image, found.capacity_bytes)?;
    let begins_anew = rules.is_fresh && progress.next_ordinal <= rules.joined_to || rules.is_ahead(&found);
    let header = if begins_anew { found.compacted_in_part() } else { found };
    let tombstones_go = rules.tombstones_go(&header);
    let head = progress.head as usize;
    let mut out = image[..SEGMENT_HEADER_BYTES].to_vec();
    let (mut at, mut chunks, mut is_changed, mut has_tombstones, mut records_removed) =
        (SEGMENT_HEADER_BYTES, 0, false, false, 0);
    for chunk in Chunks::new(&image[SEGMENT_HEADER_BYTES..head]) {
        let chunk = chunk?;
        let part = chunk.broker()?;
        at += chunk.as_bytes().len();
        let must_stay = at == head || rules.remembered.contains(&part.base_ordinal);
        let opened = open(&chunk, part.base_ordinal, rules.visibility)?;
        let mut kept = Vec::new();
        let mut removed = 0;
        each_record(&opened, part.base_ordinal, |seen| {
            let goes = rules.removes(&seen, tombstones_go);
            removed += u64::from(goes);
            has_tombstones |= seen.is_tombstone && !goes;
            if !goes {
                kept.push(((seen.ordinal - part.base_ordinal) as u32, seen.bytes));
            }
        })?;
        match fate(&chunk, &part, &opened, &kept, removed > 0, must_stay)? {
            Fate::Stays => out.extend_from_slice(chunk.as_bytes()),
            Fate::Sticks => {
                out.extend_from_slice(chunk.as_bytes());
                rules.is_blocked = true;
            }
            Fate::Becomes(chunk) => {
                out.extend_from_slice(&chunk);
                (is_changed, records_removed) = (true, records_removed + removed);
            }
            Fate::Goes => {
                (is_changed, records_removed) = (true, records_removed + removed);
                continue;
            }
        }
        chunks += 1;
    }
    // From when on its tombstones are waited for has to be written down once.
    let whole = progress.next_ordinal <= rules.map_end && !rules.is_blocked;
    let was_whole = found.compacted_ms().is_some();
    let is_due = has_tombstones && header.compacted_ms().is_none() && (whole || was_whole);
    if !is_changed && !is_due {
        return Ok(None);
    }
    rules.is_fresh |= records_removed > 0;
    let header = if has_tombstones { header } else { found };
    let header = if rules.has_forgotten { header.forgotten() } else { header };
    let header = header.rewritten(rules.now.wall_ms(), whole).ok_or(RewriteError::TooOften)?;
    let head = out.len() as u64;
    let progress = SegmentProgress { head, durable_head: head, chunk_count: chunks, ..progress };
    header.write(&mut out);
    progress.write(&mut out);
    Ok(Some(Rewritten { image: out, header, progress, records_removed }))
}

/// Whether nothing is left of a segment but its last chunk, without a record. That chunk stays, whatever is known of keys and transactions: the segment
/// hides nothing, nothing hides it, and [`rewrite`] leaves it as it is for ever.
pub(crate) fn is_emptied(image: &[u8], progress: &SegmentProgress) -> bool {
    let mut chunks = Chunks::new(&image[SEGMENT_HEADER_BYTES..progress.head as usize]);
    let (Some(Ok(chunk)), None) = (chunks.next(), chunks.next()) else { return false };
    if chunk.header().kind == PayloadKind::KafkaBatch {
        let batch = KafkaBatchView::parse(chunk.payload());
        return batch.is_ok_and(|batch| batch.is_control() || batch.records_count() == 0);
    }
    let is_removed = |record: Result<RecordView<'_>, FormatError>| record.is_ok_and(|record| record.is_removed());
    chunk.uncompressed().is_ok_and(|payload| Records::new(&payload).all(is_removed))
}

fn fate(
    chunk: &ChunkView<'_>,
    part: &BrokerPart,
    opened: &Opened<'_>,
    kept: &[(u32, &[u8])],
    has_removed: bool,
    must_stay: bool,
) -> Result<Fate, RewriteError> {
    let (compression, payload) = match opened {
        Opened::Unreadable => return Ok(Fate::Sticks),
        Opened::Marker(true) if !must_stay => return Ok(Fate::Goes),
        Opened::Marker(_) => return Ok(Fate::Stays),
        Opened::Aborted(_) | Opened::Native(_) | Opened::Kafka(..) if kept.is_empty() && !must_stay => {
            return Ok(Fate::Goes);
        }
        Opened::Aborted(batch) if batch.records_count() == 0 => return Ok(Fate::Stays),
        Opened::Native(_) | Opened::Kafka(..) if !has_removed => return Ok(Fate::Stays),
        Opened::Aborted(batch) | Opened::Kafka(batch, _) => {
            let most = chunk.as_bytes().len() - CHUNK_HEADER_BYTES;
            (Compression::None, kafka_payload(batch, kept, most))
        }
        Opened::Native(_) => native_payload(chunk, kept),
    };
    let header = chunk.header();
    let target = ChunkTarget {
        stream: header.stream,
        streamlet: header.streamlet,
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        sequence: header.sequence,
    };
    let mut bytes = vec![0; CHUNK_HEADER_BYTES];
    bytes.extend_from_slice(&payload);
    if kera_format::align8(bytes.len()) > chunk.as_bytes().len() {
        return Ok(Fate::Sticks);
    }
    seal_in_place(&mut bytes, &target, header.kind, compression, header.record_count, header.max_timestamp_ms)?;
    part.stamp(&mut bytes);
    Ok(Fate::Becomes(bytes))
}

/// A chunk's records, with eight bytes in place of each that is not kept.
fn native_payload(chunk: &ChunkView<'_>, kept: &[(u32, &[u8])]) -> (Compression, Vec<u8>) {
    let mut payload = Vec::new();
    let mut kept = kept.iter().peekable();
    for n in 0..chunk.header().record_count {
        payload.extend_from_slice(kept.next_if(|(at, _)| *at == n).map_or(&REMOVED_RECORD[..], |(_, bytes)| bytes));
    }
    let mut best = (Compression::None, payload.clone());
    for compression in [chunk.header().compression, Compression::Zstd] {
        if chunk.header().compression != Compression::None && payload.len() <= CHUNK_UNCOMPRESSED_BYTES_MAX {
            let compressed = compression.compress(&payload);
            if compressed.len() < best.1.len() {
                best = (compression, compressed);
            }
        }
    }
    best
}

/// A batch with the same offsets and fewer records, in `most` bytes if it can be had in so many.
///
/// Its producer may have compressed it better than is usual. What is left would take more then, stay, and with it all that it should not show any more; so whatever takes fewer
/// bytes is tried. Every client reads Gzip.
fn kafka_payload(batch: &KafkaBatchView<'_>, kept: &[(u32, &[u8])], most: usize) -> Vec<u8> {
    let records: Vec<u8> = kept.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    let (mut codec, mut body) = (batch.codec(), batch.codec().compress(&records));
    for other in [batch.codec(), KafkaCodec::Gzip] {
        if KAFKA_BATCH_HEADER_BYTES + body.len().min(records.len()) <= most {
            break;
        }
        let compressed = other.compress_best(&records);
        if compressed.len() < body.len() {
            (codec, body) = (other, compressed);
        }
    }
    if body.len() >= records.len() {
        (codec, body) = (KafkaCodec::None, records);
    }
    let mut bytes = batch.as_bytes()[..KAFKA_BATCH_HEADER_BYTES].to_vec();
    bytes.extend_from_slice(&body);
    bytes[22] = bytes[22] & !7 | codec as u8;
    bytes[57..61].copy_from_slice(&(kept.len() as u32).to_be_bytes());
    kafka_batch::seal(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use kera_env::{Clock, ManualClock};
    use kera_format::container::verify_image;
    use kera_format::segment::SegmentState;
    use kera_format::{ChunkBuilder, GroupId, LaneId, Record, SegmentId, SegmentIndex, StreamId, StreamletId};

    use super::*;

    const NOW_MS: i64 = 1_000_000;

    /// A closed segment of chunks, each with the keys and values of its records.
    fn image(chunks: &[&[(&str, Option<&str>)]]) -> Vec<u8> {
        let (stream, streamlet, lane) = (StreamId(1), StreamletId(0), LaneId(0));
        let id = SegmentId { stream, streamlet, lane, group: GroupId::new(1, 1), index: SegmentIndex(0) };
        let header = SegmentHeader { id, capacity_bytes: 1 << 20, base_ordinal: 10, created_ms: 1, flags: 0 };
        let mut image = vec![0; SEGMENT_HEADER_BYTES];
        let mut ordinal = 10;
        for records in chunks {
            let mut builder = ChunkBuilder::default();
            for (key, value) in *records {
                let value = value.map(str::as_bytes);
                builder.push(&Record { keys: &[key.as_bytes()], value, ..Record::default() });
            }
            let target = ChunkTarget { stream: id.stream, streamlet: id.streamlet, ..ChunkTarget::default() };
            let mut chunk = builder.seal(&target, Compression::None).unwrap();
            let position = image.len() as u32;
            let (group, segment, lane) = (id.group, id.index, id.lane);
            BrokerPart { group, segment, base_ordinal: ordinal, append_time_ms: 5, lane, position }.stamp(&mut chunk);
            image.extend_from_slice(&chunk);
            ordinal += records.len() as u64;
        }
        let head = image.len() as u64;
        let progress = SegmentProgress {
            head,
            durable_head: head,
            next_ordinal: ordinal,
            state: SegmentState::Closed,
            chunk_count: chunks.len() as u32,
            first_append_ms: 5,
            last_append_ms: 5,
            max_timestamp_ms: kera_format::chunk::NO_TIMESTAMP,
        };
        header.write(&mut image);
        progress.write(&mut image);
        image
    }

    fn noted(image: &[u8]) -> (OrdinalMap, u64) {
        let mut map = OrdinalMap::new(1 << 20, 5);
        let progress = SegmentProgress::parse(image, 1 << 20).unwrap();
        let end = note_keys(image, &progress, 0, None, &mut map).unwrap();
        (map, end)
    }

    fn keys(image: &[u8]) -> Vec<(u64, String)> {
        let (_, progress) = verify_image(image).unwrap();
        let mut keys = Vec::new();
        for chunk in Chunks::new(&image[SEGMENT_HEADER_BYTES..progress.head as usize]) {
            let chunk = chunk.unwrap();
            let base = chunk.broker().unwrap().base_ordinal;
            let opened = open(&chunk, base, None).unwrap();
            let text = |key: Option<&[u8]>| String::from_utf8(key.unwrap().to_vec()).unwrap();
            each_record(&opened, base, |seen| keys.push((seen.ordinal, text(seen.key)))).unwrap();
        }
        keys
    }

    fn compacted(
        image: &[u8],
        map: &OrdinalMap,
        map_end: u64,
        blocked: bool,
        now: impl Into<Believed>,
    ) -> Option<Rewritten> {
        let remembered = HashSet::new();
        let mut rules = Rules {
            map,
            map_end,
            visibility: None,
            remembered: &remembered,
            has_forgotten: false,
            now: now.into(),
            tombstone_ms: 100,
            is_blocked: blocked,
            tombstones: Goes::All,
            asks: Cell::default(),
            joined_to: 0,
            is_fresh: false,
        };
        rewrite(image, &mut rules).unwrap()
    }

    #[test]
    fn the_last_chunk_stays_and_the_others_go_when_nothing_is_left_of_them() {
        let image = image(&[&[("a", Some("1"))], &[("a", Some("2")), ("b", Some("1"))], &[("c", Some("1"))]]);
        let (mut map, end) = noted(&image);
        assert_eq!(end, 14);
        assert!(map.note(b"c", 90));
        let left = compacted(&image, &map, end, false, NOW_MS).unwrap();
        assert_eq!(keys(&left.image), [(11, "a".to_owned()), (12, "b".to_owned())]);
        assert_eq!((left.progress.chunk_count, left.progress.next_ordinal), (2, 14));
        assert_eq!((left.header.rewrites(), left.header.compacted_ms()), (1, Some(NOW_MS)));
        assert!(compacted(&left.image, &map, end, false, NOW_MS + 1).is_none(), "it is as it should be");
        assert!(!is_emptied(&left.image, &left.progress), "two records are left");
        assert!(map.note(b"a", 91) && map.note(b"b", 92));
        let left = compacted(&left.image, &map, 93, false, NOW_MS + 1).unwrap();
        assert_eq!((keys(&left.image).len(), left.progress.chunk_count), (0, 1));
        assert!(is_emptied(&left.image, &left.progress));
    }

    #[test]
    fn tombstones_of_a_segment_that_was_compacted_by_a_doubted_clock_stay_for_their_time() {
        let clock = ManualClock::new(NOW_MS);
        clock.believed();
        let image = image(&[&[("a", None), ("b", Some("1"))], &[("c", Some("1"))]]);
        let (map, end) = noted(&image);
        let rewritten = |image: &[u8]| compacted(image, &map, end, false, clock.believed());
        // The machine stood still for two days, and its clock is right.
        clock.set_now_ms(NOW_MS + 2 * 86_400_000);
        let marked = rewritten(&image).unwrap();
        assert_eq!(marked.header.compacted_ms(), Some(clock.now_ms()));
        clock.advance_ms(60_000);
        assert!(rewritten(&marked.image).is_none(), "by what is believed they were marked in two days");
        for _ in 0..100 {
            clock.advance_ms(60_000);
            clock.believed();
        }
        assert_eq!(clock.believed().doubt(), None);
        assert_eq!(keys(&rewritten(&marked.image).unwrap().image).len(), 2, "their time is over");
        // Or it is set back: by what it said then they would stay for two days.
        clock.set_now_ms(clock.now_ms() - 2 * 86_400_000);
        let anew = rewritten(&marked.image).unwrap();
        assert_eq!((keys(&anew.image).len(), anew.header.compacted_ms()), (3, Some(clock.now_ms())));
    }

    #[test]
    fn tombstones_go_a_while_after_their_segment_was_compacted_whole() {
        let image = image(&[&[("a", Some("1"))], &[("a", None)], &[("b", Some("1"))]]);
        let (map, end) = noted(&image);
        let in_part = compacted(&image, &map, end - 1, false, NOW_MS).unwrap();
        assert_eq!((keys(&in_part.image).len(), in_part.header.compacted_ms()), (2, None));
        let blocked = compacted(&in_part.image, &map, end, true, NOW_MS + 500);
        assert!(blocked.is_none(), "what it hides may still be there");
        let whole = compacted(&in_part.image, &map, end, false, NOW_MS + 500).unwrap();
        assert_eq!((whole.header.compacted_ms(), whole.header.rewrites()), (Some(NOW_MS + 500), 2));
        assert!(compacted(&whole.image, &map, end, false, NOW_MS + 599).is_none());
        assert!(compacted(&whole.image, &map, end, true, NOW_MS + 600).is_none());
        let gone = compacted(&whole.image, &map, end, false, NOW_MS + 600).unwrap();
        assert_eq!(keys(&gone.image), [(12, "b".to_owned())]);
        assert_eq!(gone.header.compacted_ms(), Some(NOW_MS + 500));
    }

    #[test]
    fn a_full_table_ends_at_the_key_that_did_not_fit() {
        let names: Vec<String> = (0..300).map(|n| format!("key {n}")).collect();
        let records: Vec<_> = names.iter().map(|name| (name.as_str(), Some("1"))).collect();
        let image = image(&[&records[..100], &records[100..]]);
        let mut map = OrdinalMap::new(0, 5);
        let progress = SegmentProgress::parse(&image, 1 << 20).unwrap();
        let end = note_keys(&image, &progress, 0, None, &mut map).unwrap();
        assert_eq!(end, 10 + 192);
        map.clear();
        assert_eq!(note_keys(&image, &progress, end, None, &mut map).unwrap(), 310);
    }

    #[test]
    fn what_a_producer_has_compressed_better_than_is_usual_loses_records_all_the_same() {
        // Nothing of it comes twice, and there are ten of 256 bytes.
        let mut state = 7_u64;
        let mut digit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b'0' + ((state >> 33) % 10) as u8
        };
        let records: Vec<Vec<u8>> = (0..50).map(|_| (0..400).map(|_| digit()).collect()).collect();
        let kept: Vec<(u32, &[u8])> = (0..).zip(records.iter().map(|record| &record[..])).skip(1).collect();
        let left = records[1..].concat();
        for codec in [KafkaCodec::None, KafkaCodec::Gzip, KafkaCodec::Snappy, KafkaCodec::Lz4, KafkaCodec::Zstd] {
            let mut bytes = vec![0; KAFKA_BATCH_HEADER_BYTES];
            bytes.extend_from_slice(&codec.compress_best(&records.concat()));
            let length = bytes.len() as u32 - 12;
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            (bytes[16], bytes[22]) = (2, codec as u8);
            bytes[23..27].copy_from_slice(&49_u32.to_be_bytes());
            bytes[57..61].copy_from_slice(&50_u32.to_be_bytes());
            let batch = KafkaBatchView::parse(&bytes).unwrap();
            let least = codec.compress_best(&left).len().min(KafkaCodec::Gzip.compress_best(&left).len());
            // What it takes as it always does, and less than that.
            for most in [bytes.len(), KAFKA_BATCH_HEADER_BYTES + least] {
                let payload = kafka_payload(&batch, &kept, most);
                let rewritten = KafkaBatchView::parse(&payload).unwrap();
                assert!(payload.len() <= most, "{}: {} of {most} bytes", codec.name(), payload.len());
                assert_eq!((rewritten.records_count(), rewritten.offsets()), (49, 50));
                assert_eq!(rewritten.uncompressed(1 << 20).unwrap(), left);
                assert!(
                    rewritten.codec() == codec || [KafkaCodec::None, KafkaCodec::Gzip].contains(&rewritten.codec())
                );
            }
        }
    }
}
