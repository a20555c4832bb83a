//! What a consumer knows of each lane or leased group that it reads, and how received bytes become batches.
//!
//! Owned by the consumer, on its task. Positions move in three steps: *received* (asked for no more), *delivered*
//! (returned to the program) and *processed* (the program has come back for more, or has committed it if it does that by itself);
//! only the last is committed.

use std::time::Duration;

use bytes::Bytes;
use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::{ChunkView, Compression, Cursor, FormatError, GroupId, LaneId, Records, StreamletId};
use tokio::time::Instant;

use super::batch::{Batch, BatchChunk};
use super::{GapPolicy, Position, kafka};
use crate::ClientError;
use crate::placement::HOME;

/// So many bytes of records are unpacked for one batch, and then what is left of a chunk. Records that compress well are a thousand times what came
/// in, which is all that credit bounds.
const UNPACKED_BYTES_MAX: usize = 4 << 20;
/// Nodes that send a reader on do so again within this.
const SENT_AROUND_PAUSE: Duration = Duration::from_secs(5);
/// A node that does not give what comes next says so again within this. Of a lane that is quiet nothing else comes that would tell that it is read.
const REFUSED_PAUSE: Duration = Duration::from_secs(15);

/// A lease on a group, as its holder sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// The node that gave it.
    pub(super) node: u32,
    pub(super) id: u64,
    pub(super) group: GroupId,
    pub(super) committed: (Cursor, u64),
    /// The server wants it back, and the program has until then to commit what it has got of it.
    pub(super) asked_back: Option<Instant>,
    /// It is given back, from what is processed on: nothing more of it is returned to the program.
    pub(super) releasing: bool,
}

/// How long it has been that something happens again and again that happens `now`, never more than a `pause` apart. `noted`: since when, and when last.
fn lasts(noted: &mut Option<(Instant, Instant)>, pause: Duration, now: Instant) -> Duration {
    let since = match *noted {
        Some((since, last)) if now.saturating_duration_since(last) <= pause => since,
        _ => now,
    };
    *noted = Some((since, now));
    now.saturating_duration_since(since)
}

/// A lane, or one group of it, that is being read.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) streamlet: StreamletId,
    pub(super) lane: LaneId,
    /// Where to ask on.
    pub(super) received: Cursor,
    /// Where delivering goes on: the chunk, and the next record's ordinal.
    pub(super) delivered: (Cursor, u64),
    pub(super) processed: (Cursor, u64),
    /// Ordinal behind the last record that can be read, as last told.
    pub(super) durable: u64,
    /// Where to stop.
    pub(super) target: Option<u64>,
    /// Part of a live subscription or poll.
    pub(super) fed: bool,
    /// The node that feeds it, or did last.
    pub(super) node: u32,
    /// Since when nodes have only said that they do not have what comes next, and when one said so last.
    pub(super) sent_around: Option<(Instant, Instant)>,
    /// The same of nodes that do not give it for now.
    pub(super) refused: Option<(Instant, Instant)>,
    /// It is not polled for before, since it was not given: all others would be asked for again as fast as it is refused.
    pub(super) rests_until: Option<Instant>,
    /// Retention may have gone past what is delivered.
    pub(super) may_have_gap: bool,
    /// What comes next was gone, and the server said where to go on: perhaps before it, if it lost its end.
    pub(super) sent_on: bool,
    /// The server said that what `received` pointed at is gone. What stands in line was received before that: only the piece that comes
    /// next may be apart from the one before it.
    pub(super) received_gone: bool,
    /// `received` points at nothing: it has to be looked up again.
    pub(super) astray: bool,
    /// Records in front of what comes next were left out by the server.
    pub(super) holes: bool,
    /// Delivered to the end of its group.
    pub(super) ended: bool,
    pub(super) lease: Option<Lease>,
}

impl Track {
    pub(super) fn new(streamlet: StreamletId, lane: LaneId, start: Cursor, ordinal: u64) -> Track {
        Track {
            streamlet,
            lane,
            received: start,
            delivered: (start, ordinal),
            processed: (start, ordinal),
            durable: ordinal,
            target: None,
            fed: false,
            node: HOME,
            sent_around: None,
            refused: None,
            rests_until: None,
            may_have_gap: false,
            sent_on: false,
            received_gone: false,
            astray: false,
            holes: false,
            ended: false,
            lease: None,
        }
    }

    /// A node has said that it does not have what comes next: for how long nodes have done nothing else. One that is read from
    /// for a while in between has it, even if there is nothing to read.
    pub(super) fn sent_elsewhere(&mut self, now: Instant) -> Duration {
        lasts(&mut self.sent_around, SENT_AROUND_PAUSE, now)
    }

    /// A node does not give what comes next for now: for how long nothing else was said of it.
    pub(super) fn refused_for(&mut self, now: Instant) -> Duration {
        lasts(&mut self.refused, REFUSED_PAUSE, now)
    }

    /// Until when it is not polled for, if that is later than `now`.
    pub(super) fn rests(&self, now: Instant) -> Option<Instant> {
        self.rests_until.filter(|until| *until > now)
    }

    pub(super) fn position(&self) -> Position {
        let (cursor, ordinal) = self.delivered;
        Position { streamlet: self.streamlet, lane: self.lane, cursor, ordinal }
    }

    /// Whether it is one leased group, and not this one.
    pub(super) fn is_leased_apart_from(&self, group: GroupId) -> bool {
        self.lease.is_some_and(|lease| lease.group != group)
    }

    /// Whether a commit has something to tell: progress, the group's end, or that it is given back.
    pub(super) fn has_to_commit(&self) -> bool {
        self.lease.is_some_and(|lease| lease.releasing || self.done() || lease.committed != self.processed)
    }

    /// Read and processed to the end of its group.
    pub(super) fn done(&self) -> bool {
        self.ended && self.processed == self.delivered
    }

    /// Whether everything up to where it was to stop has been delivered.
    pub(super) fn at_target(&self) -> bool {
        self.target.is_some_and(|target| self.delivered.1 >= target)
    }
}

/// Data of one track as it was received, in line to be delivered.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) track: u64,
    pub(super) data: Bytes,
    /// Where reading goes on behind the data.
    pub(super) next: Cursor,
    pub(super) end_of_group: bool,
    /// Records of transactions are there only if they are committed.
    pub(super) committed: bool,
    /// Records were left out.
    pub(super) holes: bool,
    /// What came in front of it was gone.
    pub(super) after_gone: bool,
    /// The node and the subscription that it came by, and how many bytes of credit go back with it.
    pub(super) credit: Option<(u32, u64, u64)>,
}

/// What decoding needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoding {
    pub(super) verify: bool,
    pub(super) gaps: GapPolicy,
    /// Compaction leaves holes between ordinals.
    pub(super) holes: bool,
}

/// A piece, decoded as far as it went.
pub(super) struct Decoded {
    pub(super) batch: Batch,
    /// Records that retention had removed before the first.
    pub(super) removed: u64,
    pub(super) bytes: u64,
    /// What stopped it; `piece` then starts at the chunk that is at fault.
    pub(super) error: Option<ClientError>,
}

/// Turns the data of `piece` into a batch and moves `track.delivered`. At a chunk that cannot be delivered, and when much was unpacked, it stops
/// and leaves the rest in `piece`.
pub(super) fn decode(track: &mut Track, piece: &mut Piece, how: Decoding) -> Decoded {
    let mut out = Decoded {
        batch: Batch { streamlet: track.streamlet, lane: track.lane, chunks: Vec::new() },
        removed: 0,
        bytes: 0,
        error: None,
    };
    let (mut offset, mut unpacked_bytes) = (0, 0);
    track.holes |= piece.holes;
    if std::mem::take(&mut piece.after_gone) {
        (track.may_have_gap, track.sent_on) = (true, true);
    }
    for chunk in Chunks::new(&piece.data) {
        let decode = |chunk: ChunkView<'_>| decode_chunk(&chunk, &piece.data, how.verify, piece.committed);
        let decoded = chunk.and_then(|chunk| Ok((chunk, decode(chunk)?)));
        let (chunk, mut decoded) = match decoded {
            Ok(decoded) => decoded,
            Err(source) => {
                let cursor = track.delivered.0;
                let cursor = format!("{}/{}/{}", cursor.group, cursor.segment, cursor.position);
                let (streamlet, lane, ordinal) = (track.streamlet, track.lane, track.delivered.1);
                let of_application = track.lease.is_some();
                out.error = Some(ClientError::Chunk { streamlet, lane, cursor, ordinal, of_application, source });
                break;
            }
        };
        let expected = track.delivered.1;
        let behind = decoded.base_ordinal + u64::from(decoded.ordinals);
        if decoded.base_ordinal < expected && track.sent_on {
            // The lane goes on with numbers that were given before: what had them then is lost.
            let (streamlet, lane, found) = (track.streamlet, track.lane, decoded.base_ordinal);
            out.error = Some(ClientError::Gap { streamlet, lane, expected, found });
            (track.delivered, track.sent_on) = ((decoded.cursor, found), false);
            break;
        }
        if decoded.base_ordinal > expected && !how.holes && !track.holes {
            let missing = decoded.base_ordinal - expected;
            if let Some(error) = gap(track, how.gaps, decoded.base_ordinal) {
                track.delivered.1 = decoded.base_ordinal;
                out.error = Some(error);
                break;
            }
            out.removed += missing;
        }
        (track.may_have_gap, track.sent_on) = (false, false);
        offset += chunk.as_bytes().len();
        out.bytes += chunk.as_bytes().len() as u64;
        track.delivered = (
            Cursor { position: decoded.cursor.position + chunk.as_bytes().len() as u32, ..decoded.cursor },
            behind.max(expected),
        );
        decoded.skip = decoded.records_before(expected);
        if decoded.skip < decoded.record_count {
            unpacked_bytes += decoded.unpacked_bytes(&piece.data);
            out.batch.chunks.push(decoded);
        }
        if unpacked_bytes >= UNPACKED_BYTES_MAX {
            break;
        }
    }
    piece.data = piece.data.slice(offset..);
    if out.error.is_none() && piece.data.is_empty() {
        // Of a piece with holes the last one may be behind its last chunk.
        track.holes = piece.holes || (track.holes && out.bytes == 0);
        track.delivered.0 = piece.next;
        track.ended |= piece.end_of_group && track.lease.is_some();
    }
    out
}

/// What is wrong when the next chunk starts later than expected; `None`: retention removed records, and that is fine.
fn gap(track: &Track, policy: GapPolicy, found: u64) -> Option<ClientError> {
    let expected = track.delivered.1;
    match (track.may_have_gap, policy) {
        (true, GapPolicy::Count) => None,
        (true, GapPolicy::Error) => {
            Some(ClientError::Removed { streamlet: track.streamlet, lane: track.lane, records: found - expected })
        }
        (false, _) => Some(ClientError::Gap { streamlet: track.streamlet, lane: track.lane, expected, found }),
    }
}

fn decode_chunk(chunk: &ChunkView<'_>, data: &Bytes, verify: bool, committed: bool) -> Result<BatchChunk, FormatError> {
    let header = chunk.header();
    if verify {
        chunk.verify()?;
    }
    let broker = chunk.broker()?;
    match header.kind {
        PayloadKind::Records => {}
        PayloadKind::KafkaBatch => return kafka::decode_chunk(chunk, &broker, data, committed),
        kind => {
            let (value, allowed) =
                (kind as u64, "0 (KerA records) or 1 (a Kafka batch): this client reads no other kind");
            return Err(FormatError::BadField { field: "chunk.kind", value, allowed });
        }
    }
    let payload = match header.compression {
        Compression::None => data.slice_ref(chunk.payload()),
        compression => compression.decompress(chunk.payload())?.into(),
    };
    let (mut records, mut removed) = (0u32, false);
    for record in Records::new(&payload) {
        removed |= record?.is_removed();
        records += 1;
    }
    if records != header.record_count {
        let allowed = "the number of records in the payload";
        return Err(FormatError::BadField { field: "chunk.record_count", value: header.record_count.into(), allowed });
    }
    let mut decoded = BatchChunk {
        cursor: Cursor { group: broker.group, segment: broker.segment, position: broker.position },
        base_ordinal: broker.base_ordinal,
        append_time_ms: broker.append_time_ms,
        ordinals: records,
        record_count: records,
        skip: 0,
        payload,
        kafka: None,
    };
    if removed {
        kafka::leave_out_removed(&mut decoded)?;
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::chunk::{ChunkTarget, NO_TIMESTAMP};
    use kera_format::record::REMOVED_RECORD;
    use kera_format::{BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, Record};

    fn chunk(base_ordinal: u64, records: u32, compression: Compression, position: u32) -> Vec<u8> {
        let mut builder = ChunkBuilder::default();
        for i in 0..records {
            builder.push(&Record::value(format!("value {:032}", base_ordinal + u64::from(i)).as_bytes()));
        }
        let mut bytes = builder.seal(&ChunkTarget::default(), compression).expect("it is small");
        BrokerPart { group: GroupId::new(1, 1), base_ordinal, position, ..BrokerPart::default() }.stamp(&mut bytes);
        bytes
    }

    fn piece(chunks: &[Vec<u8>]) -> Piece {
        let next = Cursor { group: GroupId::new(1, 1), position: 9_000, ..Cursor::default() };
        let data = chunks.concat().into();
        let (end_of_group, committed, holes, after_gone, credit) = (false, false, false, false, None);
        Piece { track: 0, data, next, end_of_group, committed, holes, after_gone, credit }
    }

    fn how(gaps: GapPolicy) -> Decoding {
        Decoding { verify: true, gaps, holes: false }
    }

    fn track(ordinal: u64) -> Track {
        Track::new(StreamletId(0), LaneId(0), Cursor::default(), ordinal)
    }

    #[test]
    fn records_before_the_start_are_skipped_and_repeated_chunks_dropped() {
        let mut track = track(12);
        let chunks = [chunk(0, 5, Compression::None, 128), chunk(10, 5, Compression::Zstd, 512)];
        let decoded = decode(&mut track, &mut piece(&chunks), how(GapPolicy::Error));
        assert!(decoded.error.is_none());
        let ordinals: Vec<u64> = decoded.batch.records().map(|record| record.ordinal).collect();
        assert_eq!(ordinals, [12, 13, 14]);
        assert_eq!(decoded.batch.base_ordinal(), 12);
        assert_eq!((track.delivered.1, track.delivered.0.position), (15, 9_000));
    }

    #[test]
    fn a_quiet_streamlet_that_moves_now_and_then_is_not_sent_around() {
        let mut track = track(0);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let around = [0, 1, 4, 8].map(|seconds| track.sent_elsewhere(at(seconds)));
        assert_eq!(around.map(|time| time.as_secs()), [0, 1, 4, 8]);
        assert_eq!(track.sent_elsewhere(at(70)), Duration::ZERO, "a node had it for a minute");
        assert_eq!(track.sent_elsewhere(at(72)), Duration::from_secs(2));
    }

    #[test]
    fn a_gap_without_retention_is_an_error_once() {
        let mut track = track(0);
        let mut piece = piece(&[chunk(0, 2, Compression::None, 128), chunk(7, 1, Compression::None, 400)]);
        let decoded = decode(&mut track, &mut piece, how(GapPolicy::Count));
        assert_eq!(decoded.batch.len(), 2);
        assert!(matches!(decoded.error, Some(ClientError::Gap { expected: 2, found: 7, .. })));
        let decoded = decode(&mut track, &mut piece, how(GapPolicy::Count));
        assert!(decoded.error.is_none());
        assert_eq!(decoded.batch.base_ordinal(), 7);
    }

    #[test]
    fn what_the_server_left_out_is_no_gap_up_to_the_chunk_behind_it() {
        let mut track = track(0);
        let mut left_out = piece(&[chunk(3, 2, Compression::None, 128)]);
        left_out.holes = true;
        let decoded = decode(&mut track, &mut left_out, how(GapPolicy::Error));
        assert_eq!((decoded.error.is_none(), decoded.removed, track.delivered.1), (true, 0, 5));
        let mut nothing = piece(&[]);
        assert!(decode(&mut track, &mut nothing, how(GapPolicy::Error)).error.is_none());
        let decoded = decode(&mut track, &mut piece(&[chunk(9, 1, Compression::None, 700)]), how(GapPolicy::Error));
        assert_eq!((decoded.error.is_none(), track.delivered.1), (true, 10), "it was left out behind the piece before");
        let decoded = decode(&mut track, &mut piece(&[chunk(12, 1, Compression::None, 900)]), how(GapPolicy::Error));
        assert!(matches!(decoded.error, Some(ClientError::Gap { expected: 10, found: 12, .. })));
    }

    #[test]
    fn records_that_compaction_removed_are_counted_and_not_shown() {
        let mut bytes = vec![0; CHUNK_HEADER_BYTES];
        Record::value(b"first").encode(&mut bytes);
        bytes.extend_from_slice(&[REMOVED_RECORD, REMOVED_RECORD].concat());
        Record::value(b"fourth").encode(&mut bytes);
        let builder = ChunkBuilder::filled(bytes, 4, NO_TIMESTAMP);
        let mut bytes = builder.seal(&ChunkTarget::default(), Compression::None).expect("it is small");
        BrokerPart { group: GroupId::new(1, 1), base_ordinal: 10, position: 128, ..BrokerPart::default() }
            .stamp(&mut bytes);
        for (from, expected) in [(10, &[10, 13][..]), (11, &[13]), (14, &[])] {
            let mut track = track(from);
            let batch = decode(&mut track, &mut piece(&[bytes.clone()]), how(GapPolicy::Error)).batch;
            assert_eq!(batch.records().map(|record| record.ordinal).collect::<Vec<_>>(), expected);
            assert_eq!(track.delivered.1, 14);
            let last = batch.records().last().and_then(|record| record.view.value().map(<[u8]>::to_vec));
            assert!(expected.is_empty() || last.as_deref() == Some(b"fourth"));
        }
    }

    #[test]
    fn what_retention_removed_is_counted_or_reported() {
        let mut counting = track(0);
        counting.may_have_gap = true;
        let decoded = decode(&mut counting, &mut piece(&[chunk(7, 1, Compression::Lz4, 128)]), how(GapPolicy::Count));
        assert_eq!((decoded.removed, decoded.batch.len()), (7, 1));
        let mut reporting = track(0);
        reporting.may_have_gap = true;
        let mut piece = piece(&[chunk(7, 1, Compression::None, 128)]);
        let decoded = decode(&mut reporting, &mut piece, how(GapPolicy::Error));
        assert!(matches!(decoded.error, Some(ClientError::Removed { records: 7, .. })));
        assert_eq!(decode(&mut reporting, &mut piece, how(GapPolicy::Error)).batch.len(), 1);
    }

    #[test]
    fn numbers_given_again_after_a_loss_are_told_once() {
        let mut track = track(9);
        track.sent_on = true;
        let mut piece = piece(&[chunk(7, 1, Compression::None, 128), chunk(8, 3, Compression::None, 400)]);
        let decoded = decode(&mut track, &mut piece, how(GapPolicy::Count));
        assert!(decoded.batch.is_empty());
        assert!(matches!(decoded.error, Some(ClientError::Gap { expected: 9, found: 7, .. })));
        let decoded = decode(&mut track, &mut piece, how(GapPolicy::Count));
        assert_eq!((decoded.batch.base_ordinal(), decoded.batch.len()), (7, 4));
    }

    #[test]
    fn what_compresses_well_comes_in_several_batches() {
        let large = |base_ordinal: u64, position: u32, compression| {
            let mut builder = ChunkBuilder::default();
            builder.push(&Record::value(&vec![7; 3 << 20]));
            let mut bytes = builder.seal(&ChunkTarget::default(), compression).expect("it is small");
            BrokerPart { group: GroupId::new(1, 1), base_ordinal, position, ..BrokerPart::default() }.stamp(&mut bytes);
            bytes
        };
        let (mut track, mut chunks, mut position) = (track(0), Vec::new(), 128);
        for ordinal in 0..5 {
            chunks.push(large(ordinal, position, Compression::Zstd));
            position += chunks.last().map_or(0, Vec::len) as u32;
        }
        let mut last = piece(&chunks);
        last.end_of_group = true;
        let (group, committed) = (GroupId::new(1, 1), (Cursor::default(), 0));
        track.lease = Some(Lease { node: HOME, id: 1, group, committed, asked_back: None, releasing: false });
        for (behind, is_whole) in [(2, false), (4, false), (5, true)] {
            let decoded = decode(&mut track, &mut last, how(GapPolicy::Error));
            assert!(decoded.error.is_none());
            assert_eq!((decoded.batch.end_ordinal(), track.delivered.1), (behind, behind));
            assert_eq!((last.data.is_empty(), track.ended), (is_whole, is_whole));
            let position = 128 + chunks[..behind as usize].concat().len() as u32;
            assert_eq!(track.delivered.0.position, if is_whole { last.next.position } else { position });
        }
        // What was not compressed takes no memory of its own.
        let chunks = [5, 6, 7].map(|ordinal| large(ordinal, 128, Compression::None));
        assert_eq!(decode(&mut track, &mut piece(&chunks), how(GapPolicy::Error)).batch.len(), 3);
    }

    #[test]
    fn a_flipped_bit_stops_at_its_chunk() {
        let mut bad = chunk(2, 1, Compression::None, 400);
        let last = bad.len() - 9;
        bad[last] ^= 1;
        let mut track = track(0);
        let mut piece = piece(&[chunk(0, 2, Compression::None, 128), bad]);
        let decoded = decode(&mut track, &mut piece, how(GapPolicy::Count));
        assert_eq!(decoded.batch.len(), 2);
        assert!(matches!(decoded.error, Some(ClientError::Chunk { .. })));
        assert!(matches!(decode(&mut track, &mut piece, how(GapPolicy::Count)).error, Some(ClientError::Chunk { .. })));
        assert_eq!(track.delivered.1, 2);
    }

    #[test]
    fn records_one_by_one_know_where_they_are() {
        let mut track = track(1);
        let chunks = [chunk(0, 3, Compression::None, 128), chunk(3, 2, Compression::None, 512)];
        let batch = decode(&mut track, &mut piece(&chunks), how(GapPolicy::Count)).batch;
        let mut unpacked = super::super::batch::Unpacked::new(batch);
        assert_eq!(unpacked.position().map(|(cursor, ordinal)| (cursor.position, ordinal)), Some((128, 1)));
        assert_eq!(unpacked.next().map(|record| record.ordinal), Some(1));
        assert_eq!(unpacked.next().map(|record| record.ordinal), Some(2));
        assert_eq!(unpacked.position().map(|(cursor, ordinal)| (cursor.position, ordinal)), Some((512, 3)));
        assert_eq!(unpacked.next().map(|record| record.ordinal), Some(3));
        let rest = unpacked.rest();
        assert_eq!(rest.records().map(|record| record.ordinal).collect::<Vec<_>>(), [4]);
    }
}
