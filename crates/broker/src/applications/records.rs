//! The records of the system stream that keeps applications and their offsets: `docs/formats/applications.md`.
//!
//! Ordinary KerA records. The key says what is told about, in text, so that `kera consume` can show it; the value is a
//! small fixed layout with a version. For each key the last record counts, a record without a value says that it is gone.

use kera_format::{ApplicationId, ChunkBuilder, Cursor, GroupId, LaneId, Record, RecordView, SegmentIndex, StreamId, StreamletId};
use kera_protocol::Start;

/// The version of both layouts of values.
const VERSION: u8 = 1;
const APPLICATION_BYTES: usize = 32;
const POSITION_BYTES: usize = 40;
const FLAG_DONE: u8 = 1;
const FLAG_ANEW: u8 = 2;
/// The most bytes that a record takes: a name, four numbers, a value.
pub(super) const RECORD_BYTES_MAX: usize = 512;

/// A lane of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct LaneKey {
    pub(super) streamlet: StreamletId,
    pub(super) lane: LaneId,
}

impl LaneKey {
    /// As the token of a call-back.
    pub(super) fn to_u64(self) -> u64 {
        u64::from(self.streamlet.0) << 32 | u64::from(self.lane.0)
    }

    pub(super) fn from_u64(token: u64) -> LaneKey {
        LaneKey { streamlet: StreamletId((token >> 32) as u32), lane: LaneId(token as u32) }
    }
}

/// What never changes about an application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub(super) id: ApplicationId,
    pub(super) name: String,
    pub(super) stream: StreamId,
    /// Where it starts in lanes that it has no position in.
    pub(super) start: Start,
    pub(super) created_ms: i64,
}

/// How far a group has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    /// Where to read on.
    pub(super) cursor: Cursor,
    /// Ordinal of the next record to process.
    pub(super) ordinal: u64,
    /// The group has been read to its end.
    pub(super) done: bool,
    pub(super) committed_ms: i64,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// An application exists.
    Application(Meta),
    /// It is gone, with all of its positions.
    Deleted,
    /// Where it is in a lane: every group before the position's is done. `anew`: what was known of later groups is void.
    Base { lane: LaneKey, position: Position, anew: bool },
    /// Where it is in a group of a lane while an earlier group is not done (order `none`).
    Ahead { lane: LaneKey, position: Position },
}

/// Appends the record of an entry to a chunk.
pub(super) fn encode(name: &str, stream: StreamId, entry: &Entry, into: &mut ChunkBuilder) {
    let mut push = |key: String, value: Option<&[u8]>| {
        into.push(&Record { keys: &[key.as_bytes()], value, ..Record::default() });
    };
    match entry {
        Entry::Application(meta) => push(format!("{name}/{stream}"), Some(&application_value(meta))),
        Entry::Deleted => push(format!("{name}/{stream}"), None),
        Entry::Base { lane, position, anew } => {
            let key = format!("{name}/{stream}/{}/{}", lane.streamlet.0, lane.lane.0);
            push(key, Some(&position_value(position, *anew)));
        }
        Entry::Ahead { lane, position } => {
            let group = position.cursor.group.0;
            let key = format!("{name}/{stream}/{}/{}/{group}", lane.streamlet.0, lane.lane.0);
            push(key, Some(&position_value(position, false)));
        }
    }
}

fn application_value(meta: &Meta) -> [u8; APPLICATION_BYTES] {
    let (kind, start) = match meta.start {
        Start::Earliest => (0, 0),
        Start::Latest => (1, 0),
        Start::Ordinal(ordinal) => (2, ordinal),
        Start::TimeMs(time_ms) => (3, time_ms as u64),
    };
    let mut value = [0; APPLICATION_BYTES];
    (value[0], value[1]) = (VERSION, kind);
    value[8..16].copy_from_slice(&meta.id.0.to_le_bytes());
    value[16..24].copy_from_slice(&start.to_le_bytes());
    value[24..32].copy_from_slice(&meta.created_ms.to_le_bytes());
    value
}

fn position_value(position: &Position, anew: bool) -> [u8; POSITION_BYTES] {
    let mut value = [0; POSITION_BYTES];
    value[0] = VERSION;
    value[1] = if position.done { FLAG_DONE } else { 0 } | if anew { FLAG_ANEW } else { 0 };
    value[4..8].copy_from_slice(&position.cursor.segment.0.to_le_bytes());
    value[8..16].copy_from_slice(&position.cursor.group.0.to_le_bytes());
    value[16..20].copy_from_slice(&position.cursor.position.to_le_bytes());
    value[24..32].copy_from_slice(&position.ordinal.to_le_bytes());
    value[32..40].copy_from_slice(&position.committed_ms.to_le_bytes());
    value
}

/// A record that was read back: the application's name, its stream, and what is told. `None`: not one of ours, or of a
/// later version.
pub(super) fn decode(record: &RecordView<'_>) -> Option<(String, StreamId, Entry)> {
    let key = std::str::from_utf8(record.key()?).ok()?;
    let mut parts = key.split('/');
    let name = parts.next().filter(|name| kera_format::limits::name_is_valid(name))?;
    let stream = StreamId(parts.next()?.parse().ok()?);
    let numbers: Vec<u64> = parts.map(str::parse).collect::<Result<_, _>>().ok()?;
    let entry = match (numbers[..].len(), record.value()) {
        (0, None) => Entry::Deleted,
        (0, Some(value)) => Entry::Application(decode_application(name, stream, value)?),
        (2, Some(value)) => {
            let (position, anew) = decode_position(value)?;
            Entry::Base { lane: lane_key(&numbers)?, position, anew }
        }
        (3, Some(value)) => {
            let (position, _) = decode_position(value)?;
            (position.cursor.group.0 == numbers[2]).then_some(())?;
            Entry::Ahead { lane: lane_key(&numbers)?, position }
        }
        _ => return None,
    };
    Some((name.to_owned(), stream, entry))
}

fn lane_key(numbers: &[u64]) -> Option<LaneKey> {
    let streamlet = StreamletId(numbers[0].try_into().ok()?);
    Some(LaneKey { streamlet, lane: LaneId(numbers[1].try_into().ok()?) })
}

fn u64_at(value: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(value[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(value: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(value[at..at + 4].try_into().expect("four bytes"))
}

fn decode_application(name: &str, stream: StreamId, value: &[u8]) -> Option<Meta> {
    if value.len() != APPLICATION_BYTES || value[0] != VERSION {
        return None;
    }
    let start = match value[1] {
        0 => Start::Earliest,
        1 => Start::Latest,
        2 => Start::Ordinal(u64_at(value, 16)),
        3 => Start::TimeMs(u64_at(value, 16) as i64),
        _ => return None,
    };
    let id = ApplicationId(u64_at(value, 8));
    Some(Meta { id, name: name.to_owned(), stream, start, created_ms: u64_at(value, 24) as i64 })
}

fn decode_position(value: &[u8]) -> Option<(Position, bool)> {
    if value.len() != POSITION_BYTES || value[0] != VERSION || value[1] & !(FLAG_DONE | FLAG_ANEW) != 0 {
        return None;
    }
    let cursor = Cursor {
        group: GroupId(u64_at(value, 8)),
        segment: SegmentIndex(u32_at(value, 4)),
        position: u32_at(value, 16),
    };
    let done = value[1] & FLAG_DONE != 0;
    let position = Position { cursor, ordinal: u64_at(value, 24), done, committed_ms: u64_at(value, 32) as i64 };
    Some((position, value[1] & FLAG_ANEW != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::Records;
    use proptest::prelude::*;

    fn round_trip(entry: &Entry) -> Option<(String, StreamId, Entry)> {
        let mut chunk = ChunkBuilder::default();
        encode("app-1", StreamId(7), entry, &mut chunk);
        let sealed = chunk.seal(&Default::default(), Default::default()).expect("fits");
        let view = kera_format::ChunkView::parse(&sealed).expect("sealed");
        decode(&Records::new(view.payload()).next().expect("one record").expect("well-formed"))
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let lane = (any::<u32>(), any::<u32>())
            .prop_map(|(s, l)| LaneKey { streamlet: StreamletId(s), lane: LaneId(l) });
        let position = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>(), any::<i64>()).prop_map(
            |(group, segment, position, ordinal, done, committed_ms)| Position {
                cursor: Cursor { group: GroupId(group), segment: SegmentIndex(segment), position },
                ordinal,
                done,
                committed_ms,
            },
        );
        let start = prop_oneof![
            Just(Start::Earliest),
            Just(Start::Latest),
            any::<u64>().prop_map(Start::Ordinal),
            any::<i64>().prop_map(Start::TimeMs),
        ];
        prop_oneof![
            Just(Entry::Deleted),
            (any::<u64>(), start, any::<i64>()).prop_map(|(id, start, created_ms)| {
                let (name, stream) = ("app-1".to_owned(), StreamId(7));
                Entry::Application(Meta { id: ApplicationId(id), name, stream, start, created_ms })
            }),
            (lane.clone(), position.clone(), any::<bool>())
                .prop_map(|(lane, position, anew)| Entry::Base { lane, position, anew }),
            (lane, position).prop_map(|(lane, position)| Entry::Ahead { lane, position }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(entry in entries()) {
            prop_assert_eq!(round_trip(&entry), Some(("app-1".to_owned(), StreamId(7), entry)));
        }

        #[test]
        fn foreign_records_are_passed_over(key in "\\PC{0,40}", value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = Vec::new();
            Record { keys: &[key.as_bytes()], value: Some(&value), ..Record::default() }.encode(&mut bytes);
            let _ = decode(&RecordView::parse(&bytes).expect("well-formed"));
        }
    }

    #[test]
    fn golden_bytes_of_a_position() {
        let cursor = Cursor { group: GroupId::new(3, 2), segment: SegmentIndex(5), position: 128 };
        let position = Position { cursor, ordinal: 1_000, done: true, committed_ms: 1_700_000_000_000 };
        let expected: [u8; POSITION_BYTES] = [
            1, 1, 0, 0, 5, 0, 0, 0, // version, flags, segment
            2, 0, 0, 0, 3, 0, 0, 0, // group 3.2
            128, 0, 0, 0, 0, 0, 0, 0, // position
            0xe8, 3, 0, 0, 0, 0, 0, 0, // ordinal
            0x00, 0x68, 0xe5, 0xcf, 0x8b, 0x01, 0, 0, // committed_ms
        ];
        assert_eq!(position_value(&position, false), expected);
    }
}
