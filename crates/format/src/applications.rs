//! The records that keep applications and their offsets, in the system stream `_kera.applications`.
//!
//! Ordinary KerA records in ordinary chunks. The primary key says in text what is told about:
//!
//! ```text
//! APPLICATION/STREAM                          an application; without a value: it is gone, with all of its positions
//! APPLICATION/STREAM/STREAMLET/LANE           where it is in a lane: every group before the position's is done
//! APPLICATION/STREAM/STREAMLET/LANE/GROUP     where it is in a group while an earlier one is not done (order `none`)
//! /STREAM/STREAMLET/LANE/GROUP                a group that an earlier owner of the streamlet has kept (only in a progress lane)
//! ```
//! `APPLICATION` is its name, the others are ids in decimal. The last record of a key counts. Values:
//!
//! ```text
//! application                               position
//! offset  bytes  field                      offset  bytes  field
//!      0      1  version     1                   0      1  version       1
//!      1      1  start       0 earliest,         1      1  flags         1 the group is done, 2 what was known of
//!                            1 latest,                                   later groups is void
//!                            2 ordinal,          2      2  zero
//!                            3 time              4      4  segment
//!      2      6  zero                            8      8  group
//!      8      8  id                             16      4  position
//!     16      8  start_at    ordinal or time    20      4  zero
//!     24      8  created_ms                     24      8  ordinal       of the next record to process
//!                                               32      8  committed_ms
//! kept group
//! offset  bytes  field
//!      0      1  version        1
//!      1      7  zero
//!      8      8  first_ordinal
//!     16      8  next_ordinal   behind its last record
//! ```
//! In a cluster the same records are in the progress lane of each streamlet ([`LaneId::PROGRESS`]), about that streamlet.

use crate::wire::{i64_at, put, u16_at, u32_at, u64_at};
use crate::{
    ApplicationId, ChunkBuilder, Cursor, FormatError, GroupId, LaneId, Record, RecordView, SegmentIndex, StreamId,
    StreamletId, limits,
};

/// The version of the layouts of values.
pub const APPLICATIONS_VERSION: u8 = 1;
/// Bytes of an application's value.
pub const APPLICATION_BYTES: usize = 32;
/// Bytes of a position's value.
pub const POSITION_BYTES: usize = 40;
/// Bytes of a kept group's value.
pub const KEPT_GROUP_BYTES: usize = 24;
/// The most bytes that one of these records takes: a name of 249, four numbers of at most 20 digits, a value.
pub const RECORD_BYTES_MAX: usize = 512;
const FLAG_DONE: u8 = 1;
const FLAG_ANEW: u8 = 2;

/// A lane of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneKey {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane in it.
    pub lane: LaneId,
}

impl LaneKey {
    /// Both numbers in one.
    pub fn to_u64(self) -> u64 {
        u64::from(self.streamlet.0) << 32 | u64::from(self.lane.0)
    }

    /// From both numbers in one.
    pub fn from_u64(number: u64) -> LaneKey {
        LaneKey { streamlet: StreamletId((number >> 32) as u32), lane: LaneId(number as u32) }
    }
}

/// Where an application starts in lanes that it has no position in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartAt {
    /// At the first record there is.
    Earliest,
    /// After what was there when the application was made. Positions were recorded then: a lane without one came later.
    Latest,
    /// At the record with this number.
    Ordinal(u64),
    /// At the first chunk appended at or after this time, milliseconds since 1970.
    TimeMs(i64),
}

/// What never changes about an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Application {
    /// Its id.
    pub id: ApplicationId,
    /// Where it starts.
    pub start: StartAt,
    /// When it was made, milliseconds since 1970.
    pub created_ms: i64,
}

/// How far a group has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Where to read on.
    pub cursor: Cursor,
    /// Ordinal of the next record to process.
    pub ordinal: u64,
    /// The group has been read to its end; then segment and position mean nothing.
    pub done: bool,
    /// When that was committed, milliseconds since 1970.
    pub committed_ms: i64,
}

/// What one record tells about an application of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It exists.
    Exists(Application),
    /// It is gone, with all of its positions.
    Deleted,
    /// Where it is in a lane: every group before the position's is done. `anew`: what was known of later groups is void.
    Base {
        /// The lane.
        lane: LaneKey,
        /// Where it is.
        position: Position,
        /// Whether positions in later groups are void.
        anew: bool,
    },
    /// Where it is in a group while an earlier one of its lane is not done.
    Ahead {
        /// The lane.
        lane: LaneKey,
        /// Where it is.
        position: Position,
    },
    /// Not of an application: an earlier owner of the streamlet has a group of the lane.
    Kept {
        /// The lane.
        lane: LaneKey,
        /// The group.
        group: GroupId,
        /// Ordinal of its first record.
        first_ordinal: u64,
        /// Ordinal behind its last record.
        next_ordinal: u64,
    },
}

impl Entry {
    /// Appends the record of this entry, for application `name` of `stream`, to a chunk.
    pub fn encode(&self, name: &str, stream: StreamId, into: &mut ChunkBuilder) {
        let mut push = |key: String, value: Option<&[u8]>| {
            into.push(&Record { keys: &[key.as_bytes()], value, ..Record::default() });
        };
        match self {
            Entry::Exists(application) => push(format!("{name}/{stream}"), Some(&application.to_bytes())),
            Entry::Deleted => push(format!("{name}/{stream}"), None),
            Entry::Base { lane, position, anew } => {
                let key = format!("{name}/{stream}/{}/{}", lane.streamlet.0, lane.lane.0);
                push(key, Some(&position.to_bytes(*anew)));
            }
            Entry::Ahead { lane, position } => {
                let group = position.cursor.group.0;
                let key = format!("{name}/{stream}/{}/{}/{group}", lane.streamlet.0, lane.lane.0);
                push(key, Some(&position.to_bytes(false)));
            }
            Entry::Kept { lane, group, first_ordinal, next_ordinal } => {
                let key = format!("/{stream}/{}/{}/{}", lane.streamlet.0, lane.lane.0, group.0);
                let mut value = [0; KEPT_GROUP_BYTES];
                value[0] = APPLICATIONS_VERSION;
                put(&mut value, 8, &first_ordinal.to_le_bytes());
                put(&mut value, 16, &next_ordinal.to_le_bytes());
                push(key, Some(&value));
            }
        }
    }

    /// What a record tells: the application's name, its stream, the entry. Of a kept group the name is empty.
    pub fn decode(record: &RecordView<'_>) -> Result<(String, StreamId, Entry), FormatError> {
        let key = Key::parse(record.key().unwrap_or_default())?;
        let entry = match (key.parts, record.value()) {
            (4, Some(value)) if key.name.is_empty() => {
                check_length("kept group", value, KEPT_GROUP_BYTES)?;
                let zero = u64_at(value, 0) >> 8;
                if zero != 0 {
                    return Err(bad("kept_group.zero", zero, "0"));
                }
                let (first_ordinal, next_ordinal) = (u64_at(value, 8), u64_at(value, 16));
                Entry::Kept { lane: key.lane()?, group: GroupId(key.numbers[3]), first_ordinal, next_ordinal }
            }
            _ if key.name.is_empty() => return Err(bad("applications.key (name)", 0, "a name, or five parts")),
            (1, None) => Entry::Deleted,
            (1, Some(value)) => Entry::Exists(Application::parse(value)?),
            (3, Some(value)) => {
                let (position, anew) = Position::parse(value)?;
                Entry::Base { lane: key.lane()?, position, anew }
            }
            (4, Some(value)) => {
                let (position, _) = Position::parse(value)?;
                if position.cursor.group.0 != key.numbers[3] {
                    return Err(bad("position.group", position.cursor.group.0, "the group that the key names"));
                }
                Entry::Ahead { lane: key.lane()?, position }
            }
            (parts, _) => {
                return Err(bad("applications.key (parts)", parts as u64 + 1, "2, 4 or 5 with a value, or 2 without"));
            }
        };
        Ok((key.name, StreamId(key.numbers[0]), entry))
    }
}

/// A key taken apart.
struct Key {
    name: String,
    numbers: [u64; 4],
    parts: usize,
}

impl Key {
    fn parse(key: &[u8]) -> Result<Key, FormatError> {
        let wrong = || bad("applications.key", key.len() as u64, "NAME/NUMBER, with up to three more numbers");
        let mut rest = std::str::from_utf8(key).map_err(|_| wrong())?.split('/');
        let name =
            rest.next().filter(|name| name.is_empty() || limits::name_is_valid(name)).ok_or_else(wrong)?.to_owned();
        let mut found = Key { name, numbers: [0; 4], parts: 0 };
        for text in rest {
            let number = found.numbers.get_mut(found.parts).ok_or_else(wrong)?;
            *number = text.parse().map_err(|_| wrong())?;
            found.parts += 1;
        }
        Ok(found)
    }

    fn lane(&self) -> Result<LaneKey, FormatError> {
        let number = |at: usize| u32::try_from(self.numbers[at]);
        match (number(1), number(2)) {
            (Ok(streamlet), Ok(lane)) => Ok(LaneKey { streamlet: StreamletId(streamlet), lane: LaneId(lane) }),
            _ => Err(bad("applications.key (lane)", self.numbers[1].max(self.numbers[2]), "numbers of 32 bits")),
        }
    }
}

fn bad(field: &'static str, value: u64, allowed: &'static str) -> FormatError {
    FormatError::BadField { field, value, allowed }
}

fn check_length(what: &'static str, value: &[u8], expected: usize) -> Result<(), FormatError> {
    FormatError::need(what, expected, value.len())?;
    if value.len() != expected {
        return Err(FormatError::OverLimit { field: what, value: value.len() as u64, limit: expected as u64 });
    }
    if value[0] != APPLICATIONS_VERSION {
        return Err(bad("applications.version", value[0].into(), "1"));
    }
    Ok(())
}

impl Application {
    /// The value of its record.
    pub fn to_bytes(&self) -> [u8; APPLICATION_BYTES] {
        let (start, start_at) = match self.start {
            StartAt::Earliest => (0, 0),
            StartAt::Latest => (1, 0),
            StartAt::Ordinal(ordinal) => (2, ordinal),
            StartAt::TimeMs(time_ms) => (3, time_ms as u64),
        };
        let mut value = [0; APPLICATION_BYTES];
        (value[0], value[1]) = (APPLICATIONS_VERSION, start);
        put(&mut value, 8, &self.id.0.to_le_bytes());
        put(&mut value, 16, &start_at.to_le_bytes());
        put(&mut value, 24, &self.created_ms.to_le_bytes());
        value
    }

    /// Reads the value of its record.
    pub fn parse(value: &[u8]) -> Result<Application, FormatError> {
        check_length("application", value, APPLICATION_BYTES)?;
        let zero = u64_at(value, 0) >> 16;
        if zero != 0 {
            return Err(bad("application.zero", zero, "0"));
        }
        let start_at = u64_at(value, 16);
        let start = match value[1] {
            0 => StartAt::Earliest,
            1 => StartAt::Latest,
            2 => StartAt::Ordinal(start_at),
            3 => StartAt::TimeMs(start_at as i64),
            other => return Err(bad("application.start", other.into(), "0 to 3")),
        };
        Ok(Application { id: ApplicationId(u64_at(value, 8)), start, created_ms: i64_at(value, 24) })
    }
}

impl Position {
    /// The value of its record.
    pub fn to_bytes(&self, anew: bool) -> [u8; POSITION_BYTES] {
        let mut value = [0; POSITION_BYTES];
        value[0] = APPLICATIONS_VERSION;
        value[1] = if self.done { FLAG_DONE } else { 0 } | if anew { FLAG_ANEW } else { 0 };
        put(&mut value, 4, &self.cursor.segment.0.to_le_bytes());
        put(&mut value, 8, &self.cursor.group.0.to_le_bytes());
        put(&mut value, 16, &self.cursor.position.to_le_bytes());
        put(&mut value, 24, &self.ordinal.to_le_bytes());
        put(&mut value, 32, &self.committed_ms.to_le_bytes());
        value
    }

    /// Reads the value of its record; the second is whether positions in later groups are void.
    pub fn parse(value: &[u8]) -> Result<(Position, bool), FormatError> {
        check_length("position", value, POSITION_BYTES)?;
        let flags = value[1];
        if flags & !(FLAG_DONE | FLAG_ANEW) != 0 {
            return Err(bad("position.flags", flags.into(), "bits 0 and 1"));
        }
        let zero = u32_at(value, 20) | u32::from(u16_at(value, 2));
        if zero != 0 {
            return Err(bad("position.zero", zero.into(), "0"));
        }
        let cursor = Cursor {
            group: GroupId(u64_at(value, 8)),
            segment: SegmentIndex(u32_at(value, 4)),
            position: u32_at(value, 16),
        };
        let (ordinal, committed_ms) = (u64_at(value, 24), i64_at(value, 32));
        Ok((Position { cursor, ordinal, done: flags & FLAG_DONE != 0, committed_ms }, flags & FLAG_ANEW != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkView, Records};
    use proptest::prelude::*;

    fn round_trip(entry: &Entry) -> Result<(String, StreamId, Entry), FormatError> {
        let mut chunk = ChunkBuilder::default();
        entry.encode("app-1", StreamId(7), &mut chunk);
        let sealed = chunk.seal(&Default::default(), Default::default()).expect("it fits");
        let view = ChunkView::parse(&sealed).expect("sealed");
        assert!(view.payload().len() <= RECORD_BYTES_MAX);
        Entry::decode(&Records::new(view.payload()).next().expect("one record").expect("well-formed"))
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let lane = any::<u64>().prop_map(LaneKey::from_u64);
        let position = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>(), any::<i64>()).prop_map(
            |(group, segment, position, ordinal, done, committed_ms)| Position {
                cursor: Cursor { group: GroupId(group), segment: SegmentIndex(segment), position },
                ordinal,
                done,
                committed_ms,
            },
        );
        let start = prop_oneof![
            Just(StartAt::Earliest),
            Just(StartAt::Latest),
            any::<u64>().prop_map(StartAt::Ordinal),
            any::<i64>().prop_map(StartAt::TimeMs),
        ];
        prop_oneof![
            Just(Entry::Deleted),
            (any::<u64>(), start, any::<i64>()).prop_map(|(id, start, created_ms)| {
                Entry::Exists(Application { id: ApplicationId(id), start, created_ms })
            }),
            (lane.clone(), position.clone(), any::<bool>()).prop_map(|(lane, position, anew)| Entry::Base {
                lane,
                position,
                anew
            }),
            (lane, position).prop_map(|(lane, position)| Entry::Ahead { lane, position }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(entry in entries()) {
            prop_assert_eq!(round_trip(&entry), Ok(("app-1".to_owned(), StreamId(7), entry)));
        }

        #[test]
        fn foreign_records_are_errors(key in "\\PC{0,40}", value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = Vec::new();
            Record { keys: &[key.as_bytes()], value: Some(&value), ..Record::default() }.encode(&mut bytes);
            let _ = Entry::decode(&RecordView::parse(&bytes).expect("well-formed"));
        }
    }

    #[test]
    fn the_longest_record_is_as_long_as_promised() {
        let name = "n".repeat(limits::APPLICATION_NAME_BYTES_MAX);
        let cursor = Cursor { group: GroupId(u64::MAX), segment: SegmentIndex(u32::MAX), position: u32::MAX };
        let position = Position { cursor, ordinal: u64::MAX, done: true, committed_ms: i64::MAX };
        let mut chunk = ChunkBuilder::default();
        Entry::Ahead { lane: LaneKey::from_u64(u64::MAX), position }.encode(&name, StreamId(u64::MAX), &mut chunk);
        assert!(chunk.bytes() - crate::CHUNK_HEADER_BYTES <= RECORD_BYTES_MAX);
    }
}
