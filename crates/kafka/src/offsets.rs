//! From times to offsets: ListOffsets, and what it costs; the end of a leader's epoch.
//!
//! A lane knows when its chunks were appended, and a chunk's header the largest timestamp of its records. A lookup by time starts at
//! the first chunk that was appended at or after that time (no earlier one holds such a record, unless the producer's clock is
//! ahead) and walks chunk headers from there. In a batch that is compressed the record is not looked for: its first one is told.
//!
//! Of a partition that other nodes have had before, the walk goes through what they have ([`crate::older`]), and goes on where it was when
//! more of it has come.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use kafka_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};
use kera_format::chunk::{Chunks, NO_TIMESTAMP, PayloadKind};
use kera_format::kafka_batch::KafkaBatchView;
use kera_format::{ChunkView, Cursor};
use kera_log::{Lane, LaneVersion, Lookup, ReadError, Tenure};
use kera_rpc::Outbox;

use crate::batch;
use crate::door::Door;
use crate::epochs;
use crate::floors::{first_offset, known_first};
use crate::older::{Answer, Group, Shared, Step, Time};
use crate::session::{Core, Request, encode};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
/// Readers of committed records are told of nothing behind the first transaction that runs.
const READ_COMMITTED: i8 = 1;
/// From this version on an answer says in which leader's epoch an offset is.
const VERSION_EPOCHS: i16 = 4;
/// How long a lookup waits for segments from disk.
const WAIT_US: u64 = 30_000_000;
/// How long it waits for what other nodes have: then its client is to ask again, so that what it wants of others does not wait as well.
const WAIT_OLDER_US: u64 = 3_000_000;
/// Bytes of chunks that a lookup by time walks; then it answers with the offset that it has come to.
const WALK_BYTES_MAX: usize = 64 << 20;
const STEP_BYTES: usize = 1 << 20;

/// A request for offsets that is not answered yet.
pub(crate) struct Listing {
    request: Request,
    asked: ListOffsetsRequest,
    deadline_us: u64,
    older_deadline_us: u64,
    /// How far lookups by time have come in partitions that other nodes have had: by the places of topic and partition in the request.
    walks: HashMap<(usize, usize), Walk>,
}

/// A lookup by time in a partition that other nodes have had.
#[derive(Default)]
struct Walk {
    /// What another node says of where to begin.
    answer: Option<Answer>,
    /// The next offset to look at.
    at: Option<u64>,
    seen: Seen,
}

/// What a lookup by time has seen.
#[derive(Clone, Default)]
struct Seen {
    bytes: usize,
    /// Of the last batch: its first offset, and when it was appended.
    last: Option<(u64, i64)>,
    /// The largest timestamp, and the offset of its record.
    best: Option<(i64, u64)>,
}

/// What a lookup came to.
enum Told {
    At {
        timestamp: i64,
        offset: i64,
    },
    Error(ResponseError),
    /// A segment is on its way.
    Wait(LaneVersion),
}

impl Listing {
    pub(crate) fn new(core: &Core, request: Request, asked: ListOffsetsRequest) -> Listing {
        let now_us = core.door.clock.monotonic_us();
        let (deadline_us, older_deadline_us) = (now_us + WAIT_US, now_us + WAIT_OLDER_US);
        Listing { request, asked, deadline_us, older_deadline_us, walks: HashMap::new() }
    }

    /// When it is to be looked at again, if nothing happens before.
    pub(crate) fn deadline_us(&self, now_us: u64) -> u64 {
        if now_us < self.older_deadline_us { self.older_deadline_us } else { self.deadline_us }
    }

    /// Answers if nothing has to come from disk first. True if it is done with.
    pub(crate) fn complete(&mut self, core: &mut Core, now_us: u64, out: &mut Outbox) -> bool {
        let Some(answer) = self.answer(core, now_us) else { return false };
        match encode(&self.request, &answer) {
            Ok(body) => {
                let mut frame = out.begin_prefixed();
                frame.body().extend_from_slice(&body);
                frame.finish();
            }
            Err(error) => tracing::error!(%error, "an answer to ListOffsets cannot be encoded"),
        }
        true
    }

    fn answer(&mut self, core: &mut Core, now_us: u64) -> Option<ListOffsetsResponse> {
        let mut topics = Vec::with_capacity(self.asked.topics.len());
        for (topic_at, topic) in self.asked.topics.iter().enumerate() {
            let known = core.topic(&topic.name);
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for (at, partition) in topic.partitions.iter().enumerate() {
                let lane = known.as_ref().and_then(|topic| topic.lane(partition.partition_index));
                let told = loop {
                    let Some(lane) = lane else { break Told::Error(ResponseError::UnknownTopicOrPartition) };
                    if lane.tenure() == Tenure::Elsewhere || !core.door.broker.is_confirmed() {
                        break Told::Error(ResponseError::NotLeaderOrFollower);
                    }
                    // Where partitions end is looked at before what is known of their transactions.
                    let durable = lane.durable_ordinal();
                    let end = if self.asked.isolation_level == READ_COMMITTED {
                        let partitions = &core.door.transactions.partitions;
                        match partitions.stable(lane.stream_id(), partition.partition_index, durable) {
                            // What is deleted of a transaction that runs holds nobody back.
                            Some(stable) => stable.max(known_first(lane).min(durable)),
                            None => break Told::Error(ResponseError::NotLeaderOrFollower),
                        }
                    } else {
                        durable
                    };
                    let shared = Shared::of(&core.door, lane);
                    let told = match &shared {
                        None => look(lane, partition, end, None),
                        Some(shared) => {
                            let walk = self.walks.entry((topic_at, at)).or_default();
                            look(lane, partition, end, Some((&core.door, shared, walk)))
                        }
                    };
                    match told {
                        Told::Wait(_) if shared.is_some() && now_us >= self.older_deadline_us => {
                            break Told::Error(ResponseError::OffsetNotAvailable);
                        }
                        Told::Wait(_) if now_us >= self.deadline_us => {
                            break Told::Error(ResponseError::RequestTimedOut);
                        }
                        Told::Wait(version) => {
                            if lane.wait(version, &core.observer, 0) {
                                return None;
                            }
                        }
                        told => break told,
                    }
                };
                partitions.push(told_partition(
                    &core.door,
                    partition.partition_index,
                    lane,
                    &told,
                    self.request.version,
                ));
            }
            topics.push(ListOffsetsTopicResponse::default().with_name(topic.name.clone()).with_partitions(partitions));
        }
        Some(ListOffsetsResponse::default().with_topics(topics))
    }
}

fn told_partition(
    door: &Door,
    index: i32,
    lane: Option<&Arc<Lane>>,
    told: &Told,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let answer = ListOffsetsPartitionResponse::default().with_partition_index(index);
    match told {
        Told::At { timestamp, offset } => {
            let answer = answer.with_timestamp(*timestamp).with_offset(*offset);
            if *offset >= 0 && version >= VERSION_EPOCHS {
                let epoch = |lane: &Arc<Lane>| epochs::at(lane, *offset, &older_groups(door, lane));
                answer.with_leader_epoch(lane.map_or(epochs::UNKNOWN, epoch))
            } else {
                answer
            }
        }
        Told::Error(error) => answer.with_error_code(error.code()).with_timestamp(-1).with_offset(-1),
        Told::Wait(_) => answer.with_error_code(ResponseError::RequestTimedOut.code()),
    }
}

/// What is known of the groups that other nodes have of a lane.
fn older_groups(door: &Door, lane: &Arc<Lane>) -> Vec<Group> {
    Shared::of(door, lane).map_or_else(Vec::new, |shared| shared.groups(door, lane))
}

/// Of a partition that other nodes have had: the door, its owners, and how far a lookup by time has come.
type OfOthers<'a> = Option<(&'a Door, &'a Shared, &'a mut Walk)>;

/// `end`: up to where the reader may read.
fn look(lane: &Arc<Lane>, asked: &ListOffsetsPartition, end: u64, others: OfOthers<'_>) -> Told {
    let plain = |offset: u64| Told::At { timestamp: -1, offset: offset.cast_signed() };
    if let Err(error) = epochs::check(lane, asked.current_leader_epoch) {
        return Told::Error(error);
    }
    let version = lane.version();
    let told = match (asked.timestamp, others) {
        (LATEST, _) => plain(end),
        (EARLIEST | EARLIEST_LOCAL, None) => plain(first_offset(lane)),
        (EARLIEST | EARLIEST_LOCAL, Some((door, shared, _))) => {
            shared.first(door, lane).map_or(Told::Wait(version), plain)
        }
        (LATEST_TIERED, _) => Told::At { timestamp: -1, offset: -1 },
        (MAX_TIMESTAMP, None) => largest_time(lane),
        (MAX_TIMESTAMP, Some((door, shared, walk))) => largest_time_of(door, lane, shared, version, walk),
        (time, None) if time >= 0 => by_time(lane, time),
        (time, Some((door, shared, walk))) if time >= 0 => by_time_of(door, lane, shared, version, (time, walk)),
        _ => Told::Error(ResponseError::InvalidRequest),
    };
    match told {
        Told::At { timestamp: 0.., offset } if offset >= end.cast_signed() => Told::At { timestamp: -1, offset: -1 },
        // It is in a batch of which the first records were deleted.
        Told::At { timestamp: timestamp @ 0.., offset } => {
            Told::At { timestamp, offset: offset.max(lane.floor_ordinal().cast_signed()) }
        }
        told => told,
    }
}

fn failed(error: &ReadError) -> Told {
    Told::Error(match error {
        ReadError::Deleted => ResponseError::UnknownTopicOrPartition,
        ReadError::LoadFailed(_) => ResponseError::KafkaStorageError,
        _ => ResponseError::OffsetNotAvailable,
    })
}

/// The first record with `time` or later.
fn by_time(lane: &Arc<Lane>, time: i64) -> Told {
    let cursor = match lane.lookup_time(time) {
        Ok(Lookup::Found { cursor, .. }) => cursor,
        Ok(Lookup::Loading(version)) => return Told::Wait(version),
        Err(error) => return failed(&error),
    };
    let mut seen = Seen::default();
    let walked = walk(lane, cursor, &mut seen, |seen, chunk, base, append_ms| {
        with_time(lane, time, seen, chunk, (base, append_ms))
    });
    told_by_time(walked, &seen)
}

/// The record of a chunk with `time` or later, if there is one that is not deleted.
fn with_time(
    lane: &Lane,
    time: i64,
    seen: &mut Seen,
    chunk: &ChunkView<'_>,
    (base, append_ms): (u64, i64),
) -> Option<Told> {
    seen.last = Some((base, append_ms));
    let floor = lane.floor_ordinal();
    let is_there = base + u64::from(chunk.header().record_count) > floor;
    // What was deleted in front of a batch's other records is not told.
    let from = u32::try_from(floor.saturating_sub(base)).unwrap_or(u32::MAX);
    if is_there && newest(chunk, append_ms) >= time { first_at(chunk, base, append_ms, time, from) } else { None }
}

fn told_by_time(walked: Walked, seen: &Seen) -> Told {
    match (walked, seen.last) {
        (Walked::Found(told), _) => told,
        (Walked::Wait(version), _) => Told::Wait(version),
        (Walked::Error(error), _) => failed(&error),
        (Walked::Enough, Some((base, append_ms))) => Told::At { timestamp: append_ms, offset: base.cast_signed() },
        (Walked::End | Walked::Enough, _) => Told::At { timestamp: -1, offset: -1 },
    }
}

/// The same as [`by_time`] where other nodes have had the partition.
fn by_time_of(
    door: &Door,
    lane: &Arc<Lane>,
    shared: &Shared,
    version: LaneVersion,
    (time, walk): (i64, &mut Walk),
) -> Told {
    if walk.at.is_none() {
        match shared.find_time(door, lane, time, &mut walk.answer) {
            Time::At(offset) => walk.at = Some(offset),
            Time::Wait => return Told::Wait(version),
            Time::Failed(error) => return failed(&error),
        }
    }
    let walked = walk_all(door, lane, shared, version, walk, |seen, chunk, base, append_ms| {
        with_time(lane, time, seen, chunk, (base, append_ms))
    });
    told_by_time(walked, &walk.seen)
}

/// The record with the largest timestamp, or the last batch that was walked if there are too many.
fn largest_time(lane: &Arc<Lane>) -> Told {
    let mut seen = Seen::default();
    let walked = walk(lane, lane.earliest().0, &mut seen, largest);
    told_largest(walked, &seen)
}

/// Notes the record of a chunk with the largest timestamp.
fn largest(seen: &mut Seen, chunk: &ChunkView<'_>, base: u64, append_ms: i64) -> Option<Told> {
    let newest = newest(chunk, append_ms);
    if seen.best.is_none_or(|(largest, _)| newest > largest) {
        let offset = match first_at(chunk, base, append_ms, newest, 0) {
            Some(Told::At { offset, .. }) => offset.cast_unsigned(),
            _ => base,
        };
        seen.best = Some((newest, offset));
    }
    None
}

fn told_largest(walked: Walked, seen: &Seen) -> Told {
    match (walked, seen.best) {
        (Walked::Wait(version), _) => Told::Wait(version),
        (Walked::Error(error), _) => failed(&error),
        (Walked::Found(told), _) => told,
        (Walked::End | Walked::Enough, Some((timestamp, offset))) => {
            Told::At { timestamp, offset: offset.cast_signed() }
        }
        (Walked::End | Walked::Enough, None) => Told::At { timestamp: -1, offset: -1 },
    }
}

/// The same as [`largest_time`] where other nodes have had the partition.
fn largest_time_of(door: &Door, lane: &Arc<Lane>, shared: &Shared, version: LaneVersion, walk: &mut Walk) -> Told {
    if walk.at.is_none() {
        walk.at = shared.first(door, lane);
    }
    if walk.at.is_none() {
        return Told::Wait(version);
    }
    let walked = walk_all(door, lane, shared, version, walk, largest);
    told_largest(walked, &walk.seen)
}

/// The largest timestamp of a chunk's records.
fn newest(chunk: &ChunkView<'_>, append_ms: i64) -> i64 {
    match chunk.header().max_timestamp_ms {
        NO_TIMESTAMP => append_ms,
        // Native records without a timestamp of their own have that of the append.
        newest if chunk.header().kind == PayloadKind::Records => newest.max(append_ms),
        newest => newest,
    }
}

/// The first record of a chunk with `time` or later, of those from the record number `from` on if that is not the first; its first
/// record if it cannot be looked into.
fn first_at(chunk: &ChunkView<'_>, base: u64, append_ms: i64, time: i64, from: u32) -> Option<Told> {
    let told = |delta: u32, timestamp: i64| Told::At { timestamp, offset: (base + u64::from(delta)).cast_signed() };
    let made;
    let batch = match chunk.header().kind {
        PayloadKind::KafkaBatch => chunk.payload(),
        _ => match batch::from_native(chunk, base, append_ms) {
            Ok(batch) => {
                made = batch;
                &made
            }
            Err(_) => return Some(told(0, newest(chunk, append_ms))),
        },
    };
    match batch::first_at(batch, time, from) {
        Some((delta, timestamp)) => Some(told(delta, timestamp)),
        None if from > 0 || is_thinned(batch) => None,
        None => Some(told(0, newest(chunk, append_ms))),
    }
}

/// Whether compaction has taken records out of a batch: the one whose timestamp its header has may be among them.
fn is_thinned(batch: &[u8]) -> bool {
    KafkaBatchView::parse(batch).is_ok_and(|view| view.records_count() < view.offsets())
}

enum Walked {
    Found(Told),
    /// The durable end.
    End,
    /// As many bytes as are walked at a time.
    Enough,
    Wait(LaneVersion),
    Error(ReadError),
}

/// Calls `each` with every chunk from a cursor on, its base ordinal and its time, until it has found something.
fn walk(
    lane: &Arc<Lane>,
    mut cursor: Cursor,
    seen: &mut Seen,
    mut each: impl FnMut(&mut Seen, &ChunkView<'_>, u64, i64) -> Option<Told>,
) -> Walked {
    while seen.bytes < WALK_BYTES_MAX {
        let outcome = match lane.read(cursor, STEP_BYTES, true) {
            Ok(outcome) => outcome,
            Err(error) => return Walked::Error(error),
        };
        if outcome.data.is_empty() && outcome.loading {
            return Walked::Wait(outcome.version);
        }
        match through(lane, &outcome.data, seen, &mut each) {
            Ok((Some(told), _)) => return Walked::Found(told),
            Ok((None, _)) => {}
            Err(error) => return Walked::Error(error),
        }
        if outcome.data.is_empty() || outcome.at_durable_end {
            return Walked::End;
        }
        cursor = outcome.next;
    }
    Walked::Enough
}

/// The same from where a walk is, of a partition that other nodes have had.
fn walk_all(
    door: &Door,
    lane: &Arc<Lane>,
    shared: &Shared,
    version: LaneVersion,
    walk: &mut Walk,
    mut each: impl FnMut(&mut Seen, &ChunkView<'_>, u64, i64) -> Option<Told>,
) -> Walked {
    let mut at = walk.at.unwrap_or(0);
    while at < shared.present_first(lane) {
        if walk.seen.bytes >= WALK_BYTES_MAX {
            return Walked::Enough;
        }
        let data = match shared.step(door, lane, at, STEP_BYTES, true) {
            Step::Data(data) => data,
            Step::Present => break,
            Step::Wait(_) => return Walked::Wait(version),
            Step::Failed(error) => return Walked::Error(error),
        };
        match through(lane, &data, &mut walk.seen, &mut each) {
            Ok((Some(told), _)) => return Walked::Found(told),
            Ok((None, next)) => at = next.unwrap_or(at).max(at + 1),
            Err(error) => return Walked::Error(error),
        }
        walk.at = Some(at);
    }
    match lane.lookup_ordinal(at) {
        Ok(Lookup::Found { cursor, .. }) => {
            // What is here is gone through again if it has to wait.
            let mut seen = walk.seen.clone();
            let walked = self::walk(lane, cursor, &mut seen, each);
            if !matches!(walked, Walked::Wait(_)) {
                walk.seen = seen;
            }
            walked
        }
        Ok(Lookup::Loading(version)) => Walked::Wait(version),
        Err(error) => Walked::Error(error),
    }
}

/// Calls `each` with the chunks of some data that are not deleted as a whole: what it has found, and the offset behind them.
fn through(
    lane: &Lane,
    data: &[Bytes],
    seen: &mut Seen,
    each: &mut impl FnMut(&mut Seen, &ChunkView<'_>, u64, i64) -> Option<Told>,
) -> Result<(Option<Told>, Option<u64>), ReadError> {
    let mut behind = None;
    for chunk in data.iter().flat_map(|data| Chunks::new(data)) {
        let Ok((chunk, place)) = chunk.and_then(|chunk| Ok((chunk, chunk.broker()?))) else {
            return Err(ReadError::LoadFailed("a chunk is damaged".into()));
        };
        let next = place.base_ordinal + u64::from(chunk.header().record_count);
        behind = Some(next);
        seen.bytes += chunk.as_bytes().len();
        if next <= lane.floor_ordinal() {
            continue;
        }
        if let Some(told) = each(seen, &chunk, place.base_ordinal, place.append_time_ms) {
            return Ok((Some(told), behind));
        }
    }
    Ok((None, behind))
}

/// Where epochs of leaders end.
pub(crate) fn end_of_epoch(core: &mut Core, asked: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
    let mut topics = Vec::with_capacity(asked.topics.len());
    let door = Arc::clone(&core.door);
    for topic in asked.topics {
        let known = core.topic(&topic.topic);
        let partitions = topic.partitions.iter().map(|partition| {
            let answer = EpochEndOffset::default().with_partition(partition.partition);
            let lane = known.as_ref().and_then(|topic| topic.lane(partition.partition));
            match lane {
                None => answer.with_error_code(ResponseError::UnknownTopicOrPartition.code()),
                Some(lane) if lane.tenure() == Tenure::Elsewhere => {
                    answer.with_error_code(ResponseError::NotLeaderOrFollower.code())
                }
                Some(lane) => match epochs::check(lane, partition.current_leader_epoch) {
                    Err(error) => answer.with_error_code(error.code()),
                    Ok(()) => epochs::end_of(lane, partition.leader_epoch, &older_groups(&door, lane))
                        .map_or(answer.clone(), |(epoch, end)| answer.with_leader_epoch(epoch).with_end_offset(end)),
                },
            }
        });
        let partitions = partitions.collect();
        topics.push(OffsetForLeaderTopicResult::default().with_topic(topic.topic.clone()).with_partitions(partitions));
    }
    OffsetForLeaderEpochResponse::default().with_topics(topics)
}
