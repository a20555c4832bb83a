//! From times to offsets: ListOffsets, and what it costs; the end of a leader's epoch.
//!
//! What counts are the times of records: whoever wrote them may have copied them from elsewhere, or have a clock that is ahead. Each
//! segment keeps the largest time of its records and each chunk's header that of the chunk's, so that a lookup goes to the segment that has
//! the record, through the headers in it, and unpacks the one batch. In a batch that cannot be read the record is not looked for: its first one is
//! told. A lookup that has to look at much lets others have the thread in between.
//!
//! Of a partition that other nodes have had before, the walk goes through what they have ([`crate::older`]), from where they say that what was
//! appended at that time or later begins, and goes on where it was when more of it has come.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use kafka_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, TopicName,
};
use kera_format::chunk::{Chunks, PayloadKind};
use kera_format::kafka_batch::KafkaBatchView;
use kera_format::{ChunkView, StreamId};
use kera_log::{FoundTime, Lane, LaneVersion, ReadError, Tenure, newest_ms};
use kera_rpc::Outbox;

use crate::batch;
use crate::door::Door;
use crate::epochs;
use crate::floors::{first_offset, known_first};
use crate::older::{Answer, Group, Shared, Standing, Step, Time};
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
/// Bytes of other nodes' chunks that a lookup by time walks; then it answers with the offset that it has come to.
const WALK_BYTES_MAX: usize = 64 << 20;
const STEP_BYTES: usize = 1 << 20;
/// Bytes that are looked at before others on this thread have their turn.
const TURN_BYTES: usize = if cfg!(test) { 1 << 20 } else { 16 << 20 };
/// What looking through the headers of a segment counts for.
const HEADERS_BYTES: usize = 256 << 10;
/// Segments that one request has come from disk at the same time: what came for it must not push out what it has not looked at.
const LOADS_MAX: usize = 4;

/// A request for offsets that is not answered yet.
pub(crate) struct Listing {
    request: Request,
    asked: ListOffsetsRequest,
    deadline_us: u64,
    older_deadline_us: u64,
    /// Of all partitions, in the order of the request.
    parts: Vec<Part>,
}

/// How far a partition of a request is.
enum Part {
    Looking(Box<Walk>),
    Told(Told),
}

/// A lookup by time.
#[derive(Default)]
struct Walk {
    /// In which stream: a topic's name is another one's when it has been deleted and made again.
    of: Option<StreamId>,
    /// What this node has.
    own: Own,
    /// What another node says of where to begin.
    answer: Option<Answer>,
    /// The next offset to look at of what other nodes have.
    at: Option<u64>,
    seen: Seen,
}

/// How far a lookup is in what this node has of a partition.
#[derive(Default)]
struct Own {
    /// The next offset to look at.
    at: u64,
    /// The time that is looked for, of the largest one: what segments say.
    wanted: Option<i64>,
    /// The largest time that was found, and its offset.
    best: Option<(i64, u64)>,
    is_done: bool,
}

/// What a lookup by time has seen of what other nodes have.
#[derive(Clone, Default)]
struct Seen {
    bytes: usize,
    /// Of the last batch: its first offset, and when it was appended.
    last: Option<(u64, i64)>,
    /// The largest timestamp, and the offset of its record.
    best: Option<(i64, u64)>,
}

/// What a lookup came to.
#[derive(Clone, Copy)]
enum Told {
    At {
        timestamp: i64,
        offset: i64,
    },
    Error(ResponseError),
    /// A segment is on its way.
    Wait(LaneVersion),
    /// There is more to look at than is looked at in one turn.
    Later,
}

const NOWHERE: Told = Told::At { timestamp: -1, offset: -1 };

impl Listing {
    pub(crate) fn new(core: &Core, request: Request, asked: ListOffsetsRequest) -> Listing {
        let now_us = core.door.clock.monotonic_us();
        let (deadline_us, older_deadline_us) = (now_us + WAIT_US, now_us + WAIT_OLDER_US);
        let parts = parts_of(&asked);
        Listing { request, asked, deadline_us, older_deadline_us, parts }
    }

    /// When it is to be looked at again, if nothing happens before.
    pub(crate) fn deadline_us(&self, now_us: u64) -> u64 {
        if now_us < self.older_deadline_us { self.older_deadline_us } else { self.deadline_us }
    }

    /// Answers if nothing has to come from disk first. True if it is done with.
    pub(crate) fn complete(&mut self, core: &mut Core, now_us: u64, out: &mut Outbox) -> bool {
        if !self.look(core, now_us) {
            return false;
        }
        match encode(&self.request, &self.answer(core)) {
            Ok(body) => {
                let mut frame = out.begin_prefixed();
                frame.body().extend_from_slice(&body);
                frame.finish();
            }
            Err(error) => tracing::error!(%error, "an answer to ListOffsets cannot be encoded"),
        }
        true
    }

    /// Looks at the partitions of which nothing is told yet. True if something is told of all. Who does not wait for a lane, and has had its
    /// turn, wakes itself.
    fn look(&mut self, core: &mut Core, now_us: u64) -> bool {
        let Listing { asked, parts, deadline_us, older_deadline_us, .. } = self;
        let committed = asked.isolation_level == READ_COMMITTED;
        let (mut left, mut loads, mut is_done) = (TURN_BYTES, 0, true);
        let mut parts = parts.iter_mut();
        for topic in &asked.topics {
            let mut known = None;
            for (partition, part) in topic.partitions.iter().zip(parts.by_ref()) {
                let Part::Looking(walk) = part else { continue };
                let known = known.get_or_insert_with(|| core.topic(&topic.name)).as_ref();
                let lane = known.and_then(|topic| topic.lane(partition.partition_index));
                let told = loop {
                    let Some(lane) = lane else {
                        let info = core.door.info(&topic.name);
                        break Told::Error(core.door.not_here(info.as_ref(), partition.partition_index));
                    };
                    let (told, is_older) = look(core, lane, partition, committed, walk, &mut left);
                    match told {
                        Told::Wait(_) if is_older && now_us >= *older_deadline_us => {
                            break Told::Error(ResponseError::OffsetNotAvailable);
                        }
                        Told::Wait(_) | Told::Later if now_us >= *deadline_us => {
                            break Told::Error(ResponseError::RequestTimedOut);
                        }
                        Told::Wait(version) if lane.wait(version, &core.observer, 0) => {
                            loads += usize::from(!is_older);
                            break told;
                        }
                        Told::Wait(_) => {}
                        told => break told,
                    }
                };
                match told {
                    Told::Wait(_) => is_done = false,
                    Told::Later => {
                        core.observer.advanced(0);
                        return false;
                    }
                    told => *part = Part::Told(told),
                }
                // The lanes of these wake it.
                if loads >= LOADS_MAX {
                    return false;
                }
            }
        }
        is_done
    }

    fn answer(&self, core: &mut Core) -> ListOffsetsResponse {
        let mut parts = self.parts.iter();
        let mut topics = Vec::with_capacity(self.asked.topics.len());
        for topic in &self.asked.topics {
            let known = core.topic(&topic.name);
            let partitions = topic.partitions.iter().zip(parts.by_ref()).map(|(partition, part)| {
                let index = partition.partition_index;
                let lane = known.as_ref().and_then(|topic| topic.lane(index));
                let told = match part {
                    Part::Told(told) => *told,
                    Part::Looking(_) => Told::Error(ResponseError::RequestTimedOut),
                };
                told_partition(&core.door, index, lane, &told, self.request.version)
            });
            let partitions = partitions.collect();
            topics.push(ListOffsetsTopicResponse::default().with_name(topic.name.clone()).with_partitions(partitions));
        }
        ListOffsetsResponse::default().with_topics(topics)
    }
}

/// All partitions of a request. Those that it names more than once are refused, as by Kafka.
fn parts_of(asked: &ListOffsetsRequest) -> Vec<Part> {
    let of_topic = |topic: &ListOffsetsTopic| {
        let name = topic.name.clone();
        let indexes: Vec<i32> = topic.partitions.iter().map(|of| of.partition_index).collect();
        indexes.into_iter().map(move |index| (name.clone(), index))
    };
    let named: Vec<(TopicName, i32)> = asked.topics.iter().flat_map(of_topic).collect();
    let mut times: HashMap<&(TopicName, i32), usize> = HashMap::new();
    named.iter().for_each(|of| *times.entry(of).or_default() += 1);
    let part = |of| match times.get(of) {
        Some(1) => Part::Looking(Box::default()),
        _ => Part::Told(Told::Error(ResponseError::InvalidRequest)),
    };
    named.iter().map(part).collect()
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
        Told::Wait(_) | Told::Later => answer.with_error_code(ResponseError::RequestTimedOut.code()),
    }
}

/// What is known of the groups that other nodes have of a lane.
fn older_groups(door: &Door, lane: &Arc<Lane>) -> Vec<Group> {
    let shared = Shared::of(door, lane).ok().flatten();
    shared.map_or_else(Vec::new, |shared| shared.groups(door, lane))
}

/// What a partition's lookup comes to, as far as there is something `left` to look at; and whether other nodes have had the partition.
fn look(
    core: &Core,
    lane: &Arc<Lane>,
    asked: &ListOffsetsPartition,
    committed: bool,
    walk: &mut Walk,
    left: &mut usize,
) -> (Told, bool) {
    look_while(core, lane, asked, committed, (walk, left), || ())
}

/// The same. What was found counts if whose the partition is, and who has what of it, is the same behind that. `meanwhile` is for tests: it comes in front of the look.
fn look_while(
    core: &Core,
    lane: &Arc<Lane>,
    asked: &ListOffsetsPartition,
    committed: bool,
    (walk, left): (&mut Walk, &mut usize),
    meanwhile: impl Fn(),
) -> (Told, bool) {
    let of = Some(lane.stream_id());
    if walk.of != of {
        // It begins; or its topic has been deleted since the last turn, and made again.
        *walk = Walk { of, ..Walk::default() };
    }
    loop {
        let Ok(standing) = Standing::of(&core.door, lane) else {
            return (Told::Error(ResponseError::NotLeaderOrFollower), false);
        };
        meanwhile();
        let looked = look_as(core, lane, asked, committed, (&mut *walk, &mut *left), &standing);
        if standing.holds(&core.door, lane) {
            return looked;
        }
        // It may have passed over what had just left.
        *walk = Walk { of, ..Walk::default() };
    }
}

/// The same by what is known of whose the partition is.
fn look_as(
    core: &Core,
    lane: &Arc<Lane>,
    asked: &ListOffsetsPartition,
    committed: bool,
    (walk, left): (&mut Walk, &mut usize),
    standing: &Standing,
) -> (Told, bool) {
    let door = &core.door;
    if !door.broker.is_confirmed() {
        return (Told::Error(ResponseError::NotLeaderOrFollower), false);
    }
    if let Err(error) = epochs::check(lane, asked.current_leader_epoch) {
        return (Told::Error(error), false);
    }
    // Where the partition ends is looked at before what is known of its transactions.
    let durable = lane.durable_ordinal();
    let end = if committed {
        match door.transactions.partitions.stable(lane.stream_id(), asked.partition_index, durable) {
            // What is deleted of a transaction that runs holds nobody back.
            Some(stable) => stable.max(known_first(lane).min(durable)),
            None => return (Told::Error(ResponseError::NotLeaderOrFollower), false),
        }
    } else {
        durable
    };
    let plain = |offset: u64| Told::At { timestamp: -1, offset: offset.cast_signed() };
    let shared = standing.shared(door);
    let version = lane.version();
    let told = match (asked.timestamp, &shared) {
        (LATEST, _) => plain(end),
        (EARLIEST | EARLIEST_LOCAL, None) => plain(first_offset(lane)),
        (EARLIEST | EARLIEST_LOCAL, Some(shared)) => shared.first(door, lane).map_or(Told::Wait(version), plain),
        (LATEST_TIERED, _) => NOWHERE,
        (MAX_TIMESTAMP, None) => largest_time(lane, &mut walk.own, left),
        (MAX_TIMESTAMP, Some(shared)) => largest_time_of(&OfOthers { door, lane, shared, version }, walk, left),
        (time, None) if time >= 0 => by_time(lane, time, &mut walk.own, left),
        (time, Some(shared)) if time >= 0 => by_time_of(&OfOthers { door, lane, shared, version }, time, walk, left),
        _ => Told::Error(ResponseError::InvalidRequest),
    };
    let told = match told {
        Told::At { timestamp: 0.., offset } if offset >= end.cast_signed() => NOWHERE,
        // It is in a batch of which the first records were deleted.
        Told::At { timestamp: timestamp @ 0.., offset } => {
            Told::At { timestamp, offset: offset.max(lane.floor_ordinal().cast_signed()) }
        }
        told => told,
    };
    (told, shared.is_some())
}

fn failed(error: &ReadError) -> Told {
    Told::Error(match error {
        ReadError::Deleted => ResponseError::UnknownTopicOrPartition,
        ReadError::LoadFailed(_) => ResponseError::KafkaStorageError,
        _ => ResponseError::OffsetNotAvailable,
    })
}

/// What is next of what this node has of a partition.
enum Next {
    /// A chunk that says to have what is looked for, and its offsets.
    Chunk(Bytes, Range<u64>),
    /// There is none, to the durable end.
    End,
    Told(Told),
}

/// The next chunk from `at` on that says to have a record with `time` or later.
fn next_with(lane: &Lane, at: &mut u64, time: i64, left: &mut usize) -> Next {
    let failed = |error: ReadError| Next::Told(failed(&error));
    loop {
        if *left == 0 {
            return Next::Told(Told::Later);
        }
        *left = left.saturating_sub(HEADERS_BYTES);
        let (cursor, offsets) = match lane.lookup_timestamp(*at, time) {
            Ok(FoundTime::Chunk { cursor, ordinal, next_ordinal }) => (cursor, ordinal..next_ordinal),
            Ok(FoundTime::Passed(next)) => {
                *at = next;
                continue;
            }
            Ok(FoundTime::Nothing) => return Next::End,
            Ok(FoundTime::Loading(version)) => return Next::Told(Told::Wait(version)),
            Err(error) => return failed(error),
        };
        match lane.read_and_load(cursor, 1, true, false) {
            Ok((outcome, _)) => {
                if let Some(data) = outcome.data.into_iter().next() {
                    *left = left.saturating_sub(data.len());
                    return Next::Chunk(data, offsets);
                }
                // It has gone from memory since: found again, it comes from disk.
            }
            Err(error) => return failed(error),
        }
    }
}

/// The first record with `time` or later.
fn by_time(lane: &Lane, time: i64, own: &mut Own, left: &mut usize) -> Told {
    loop {
        match next_with(lane, &mut own.at, time, left) {
            Next::Chunk(data, offsets) => {
                let found = through(lane, &[data], &mut Seen::default(), &mut |_, chunk, base, append_ms| {
                    with_time(lane, time, chunk, (base, append_ms))
                });
                match found {
                    Ok((Some(told), _)) => return told,
                    Ok((None, _)) => own.at = offsets.end,
                    Err(error) => return failed(&error),
                }
            }
            Next::End => return NOWHERE,
            Next::Told(told) => return told,
        }
    }
}

/// The record of a chunk with `time` or later, if there is one that is not deleted.
fn with_time(lane: &Lane, time: i64, chunk: &ChunkView<'_>, (base, append_ms): (u64, i64)) -> Option<Told> {
    let floor = lane.floor_ordinal();
    let is_there = base + u64::from(chunk.header().record_count) > floor;
    // What was deleted in front of a batch's other records is not told.
    let from = u32::try_from(floor.saturating_sub(base)).unwrap_or(u32::MAX);
    let is_promised = newest_ms(chunk.header(), append_ms) >= time;
    if is_there && is_promised { first_at(chunk, base, append_ms, time, from) } else { None }
}

/// The first of the records with the largest time.
///
/// What is looked for first is the largest time that any segment says to have, and then what is larger than the one that was found. What
/// a segment says may be of a record that is deleted, or not durable: if there is none with that time, the next smaller one is looked for.
fn largest_time(lane: &Lane, own: &mut Own, left: &mut usize) -> Told {
    loop {
        let wanted = match own.wanted {
            Some(wanted) => wanted,
            None => match lane.largest_timestamp(i64::MAX) {
                Ok(None) => return NOWHERE,
                Ok(Some(wanted)) => wanted,
                Err(version) => return Told::Wait(version),
            },
        };
        own.wanted = Some(wanted);
        match next_with(lane, &mut own.at, wanted, left) {
            Next::Chunk(data, offsets) => {
                let mut seen = Seen::default();
                if let Err(error) = through(lane, &[data], &mut seen, &mut largest) {
                    return failed(&error);
                }
                own.at = offsets.end;
                // A chunk of native records says more than it has where some of them have a time of their own.
                if let Some((largest, offset)) = seen.best.filter(|(largest, _)| *largest >= wanted) {
                    (own.best, own.wanted) = (Some((largest, offset)), Some(largest.saturating_add(1)));
                }
            }
            Next::End => match own.best {
                Some(best) => return told_best(best),
                None => match lane.largest_timestamp(wanted) {
                    Ok(None) => return NOWHERE,
                    Ok(smaller) => *own = Own { wanted: smaller, ..Own::default() },
                    Err(version) => return Told::Wait(version),
                },
            },
            Next::Told(told) => return told,
        }
    }
}

fn told_best((timestamp, offset): (i64, u64)) -> Told {
    Told::At { timestamp, offset: offset.cast_signed() }
}

/// Notes the record of a chunk with the largest timestamp.
fn largest(seen: &mut Seen, chunk: &ChunkView<'_>, base: u64, append_ms: i64) -> Option<Told> {
    let newest = newest_ms(chunk.header(), append_ms);
    if seen.best.is_none_or(|(largest, _)| newest > largest) {
        let found = largest_at(chunk, base, append_ms, newest);
        seen.best = seen.best.filter(|(largest, _)| *largest >= found.0).or(Some(found));
    }
    None
}

/// A partition that other nodes have had. `version` is its lane's from before it was looked at.
struct OfOthers<'a> {
    door: &'a Door,
    lane: &'a Arc<Lane>,
    shared: &'a Shared,
    version: LaneVersion,
}

/// The same as [`by_time`] where other nodes have had the partition: it begins where a node says that what was appended at that time or later
/// begins, or what this node has does by the times of its records, whatever comes first.
fn by_time_of(of: &OfOthers<'_>, time: i64, walk: &mut Walk, left: &mut usize) -> Told {
    if walk.at.is_none() {
        let elsewhere = match of.shared.find_time(of.door, of.lane, time, &mut walk.answer) {
            Time::At(offset) => offset,
            Time::Nowhere => u64::MAX,
            Time::Wait => return Told::Wait(of.version),
        };
        let here = match next_with(of.lane, &mut walk.own.at, time, left) {
            Next::Chunk(_, offsets) => offsets.start,
            Next::End => u64::MAX,
            Next::Told(told) => return told,
        };
        let end = of.lane.durable_ordinal();
        (walk.at, walk.own) = (Some(here.min(elsewhere).min(end)), Own::default());
    }
    let lane = of.lane;
    let walked = walk_older(of, walk, u64::MAX, left, |seen, chunk, base, append_ms| {
        seen.last = Some((base, append_ms));
        with_time(lane, time, chunk, (base, append_ms))
    });
    match (walked, walk.seen.last) {
        (Walked::Told(told), _) => told,
        (Walked::Enough, Some((base, append_ms))) => Told::At { timestamp: append_ms, offset: base.cast_signed() },
        (Walked::End | Walked::Enough, _) => {
            walk.own.at = walk.own.at.max(walk.at.unwrap_or(0));
            by_time(lane, time, &mut walk.own, left)
        }
    }
}

/// The same as [`largest_time`] where other nodes have had the partition: of what they have, the groups of the one that was appended to last are
/// looked through, unless what is here is later than that.
fn largest_time_of(of: &OfOthers<'_>, walk: &mut Walk, left: &mut usize) -> Told {
    if !walk.own.is_done {
        match largest_time(of.lane, &mut walk.own, left) {
            Told::At { .. } => walk.own.is_done = true,
            told => return told,
        }
    }
    let Some(last) = of.shared.last_elsewhere(of.door, of.lane) else { return Told::Wait(of.version) };
    let best = walk.own.best;
    let is_later = |last: &Group| best.is_none_or(|(largest, _)| last.last_append_ms >= largest);
    if let Some(last) = last.filter(is_later) {
        walk.at = walk.at.or(Some(last.first));
        if let Walked::Told(told) = walk_older(of, walk, last.end, left, largest) {
            return told;
        }
    }
    // Of two with the same time the first.
    let earlier = |one: &(i64, u64)| (one.0, std::cmp::Reverse(one.1));
    best.into_iter().chain(walk.seen.best).max_by_key(earlier).map_or(NOWHERE, told_best)
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
            Err(_) => return Some(told(0, newest_ms(chunk.header(), append_ms))),
        },
    };
    match batch::first_at(batch, time, from) {
        Ok(Some((delta, timestamp))) => Some(told(delta, timestamp)),
        // The header says more than is in it: that of native records may, the latest may be compacted away, and a batch that does not say its time counts
        // as of its append. What comes behind has its turn.
        Ok(None) => None,
        Err(_) if from > 0 || is_thinned(batch) => None,
        Err(_) => Some(told(0, newest_ms(chunk.header(), append_ms))),
    }
}

/// The largest time of a chunk's records, which its header says to be `newest`, and the first offset that has it; the chunk's first offset if it cannot
/// be looked into.
fn largest_at(chunk: &ChunkView<'_>, base: u64, append_ms: i64, newest: i64) -> (i64, u64) {
    let made;
    let (batch, newest) = match chunk.header().kind {
        PayloadKind::KafkaBatch => (chunk.payload(), newest),
        _ => match batch::from_native(chunk, base, append_ms) {
            Ok(batch) => {
                made = batch;
                (&made[..], batch::newest(&made).unwrap_or(newest))
            }
            Err(_) => return (newest, base),
        },
    };
    match batch::first_at(batch, newest, 0) {
        Ok(Some((delta, timestamp))) => (timestamp, base + u64::from(delta)),
        Ok(None) | Err(_) => (newest, base),
    }
}

/// Whether compaction has taken records out of a batch: the one whose timestamp its header has may be among them.
fn is_thinned(batch: &[u8]) -> bool {
    KafkaBatchView::parse(batch).is_ok_and(|view| view.records_count() < view.offsets())
}

enum Walked {
    Told(Told),
    /// Where this node's own records begin, or what was to be looked through ends.
    End,
    /// As many bytes as are walked.
    Enough,
}

/// Calls `each` with every chunk from where a walk is that was written before the present owner, in front of `end`, with its base ordinal and its
/// time, until it has found something.
fn walk_older(
    of: &OfOthers<'_>,
    walk: &mut Walk,
    end: u64,
    left: &mut usize,
    mut each: impl FnMut(&mut Seen, &ChunkView<'_>, u64, i64) -> Option<Told>,
) -> Walked {
    let mut at = walk.at.unwrap_or(0);
    while at < of.shared.present_first(of.lane).min(end) {
        if walk.seen.bytes >= WALK_BYTES_MAX {
            return Walked::Enough;
        }
        if *left == 0 {
            return Walked::Told(Told::Later);
        }
        let data = match of.shared.step(of.door, of.lane, at, STEP_BYTES, true) {
            Step::Data(data) => data,
            Step::Present => break,
            Step::Wait(_) => return Walked::Told(Told::Wait(of.version)),
            Step::Failed(error) => return Walked::Told(failed(&error)),
        };
        *left = left.saturating_sub(data.iter().map(Bytes::len).sum());
        match through(of.lane, &data, &mut walk.seen, &mut each) {
            Ok((Some(told), _)) => return Walked::Told(told),
            Ok((None, next)) => at = next.unwrap_or(at).max(at + 1),
            Err(error) => return Walked::Told(failed(&error)),
        }
        walk.at = Some(at);
    }
    Walked::End
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
    let mut seen = HashSet::new();
    for topic in asked.topics {
        let known = core.topic(&topic.topic);
        // Each once, in whichever list of its topic: see [`crate::once`].
        let is_new = |partition: &&OffsetForLeaderPartition| seen.insert((topic.topic.clone(), partition.partition));
        let partitions = topic.partitions.iter().filter(is_new).map(|partition| {
            let answer = EpochEndOffset::default().with_partition(partition.partition);
            let lane = known.as_ref().and_then(|topic| topic.lane(partition.partition));
            match lane {
                None => {
                    let info = door.info(&topic.topic);
                    answer.with_error_code(door.not_here(info.as_ref(), partition.partition).code())
                }
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn looked(core: &Core, lane: &Arc<Lane>, time: i64, mut walk: Walk, meanwhile: &dyn Fn()) -> Option<i64> {
        let asked = ListOffsetsPartition::default().with_timestamp(time).with_current_leader_epoch(epochs::UNKNOWN);
        let mut left = TURN_BYTES;
        match look_while(core, lane, &asked, false, (&mut walk, &mut left), meanwhile).0 {
            Told::At { offset, .. } => Some(offset),
            Told::Wait(_) => None,
            Told::Later | Told::Error(_) => panic!("it has its turn, at a leader"),
        }
    }

    /// Where a partition is told to begin if, between the look at the owners and that at the lane, `meanwhile` happens. `None`: that is waited for.
    pub(crate) fn begins_meanwhile(core: &Core, lane: &Arc<Lane>, meanwhile: &dyn Fn()) -> Option<i64> {
        looked(core, lane, EARLIEST, Walk::default(), meanwhile)
    }

    /// The first offset with a time that is told by a lookup which had come to offset `at` of partition 0 in a stream.
    pub(crate) fn found_behind(core: &Core, lane: &Arc<Lane>, (of, at): (StreamId, u64), time: i64) -> Option<i64> {
        let own = Own { at, ..Own::default() };
        looked(core, lane, time, Walk { of: Some(of), own, ..Walk::default() }, &|| ())
    }
}
