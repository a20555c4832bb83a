//! What there is to read: groups, segments, places of ordinals and times, statistics (thesis tables 6.1 and 6.2).
//!
//! Rare requests of readers that find their own way. Answers are pages; none takes memory beyond a page and a small
//! window per lane.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use kera_format::limits::STREAMLETS_MAX;
use kera_format::{Cursor, GroupId, LaneId, SegmentId, StreamId, StreamletId};
use kera_log::{
    GroupInfo as LogGroup, Lane, LaneVersion, Log, Lookup as Found, SegmentInfo as LogSegment, Streamlet, Tenure,
};
use kera_protocol::groups::SegmentPlace;
use kera_protocol::limits::{WAIT_MS_MAX, page_items};
use kera_protocol::{
    AvailableGroups, AvailableSegments, GroupInfo, GroupList, LaneStats, Lookup, LookupResult, NextSegments, Op,
    SegmentInfo, SegmentList, Start, Status, StreamStats, StreamStatsResponse,
};
use kera_rpc::Outbox;

use crate::failure::Failure;
use crate::moved::read_here;
use crate::ownership::{Ownership, Whose, first_of};
use crate::session::{Attempt, Core, Request};
use crate::visible;

/// Groups fetched from a lane at a time while the lanes of a streamlet are merged.
const GROUPS_WINDOW: usize = 32;
/// How long a lookup waits for a segment to come from disk, in milliseconds.
pub(crate) const LOAD_WAIT_MS: u32 = 30_000;

/// Whether `op` is answered here.
pub(crate) fn serves(op: Op) -> bool {
    matches!(op, Op::NextSegments | Op::AvailableGroups | Op::AvailableSegments | Op::Lookup | Op::StreamStats)
}

/// Tries one of the operations that [`serves`] names.
pub(crate) fn attempt(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    match request.op {
        Op::NextSegments => return next_segments(core, request, out),
        Op::Lookup => return lookup(core, request, out),
        Op::AvailableGroups => out.respond(request.header, &available_groups(core, &request.message()?)?),
        Op::AvailableSegments => out.respond(request.header, &available_segments(core, &request.message()?)?),
        _ => out.respond(request.header, &stream_stats(core, &request.message()?)?),
    }
    Ok(Attempt::Answered)
}

/// Refuses to be told of more streamlets than any stream has. Each need be named once, and what is named is looked up and sorted on the thread of other connections.
pub(crate) fn check_named(streamlets: &[StreamletId]) -> Result<(), Failure> {
    let (named, limit) = (streamlets.len(), STREAMLETS_MAX as usize);
    if named <= limit { Ok(()) } else { Err(Failure::limit("streamlets named in one request", named, limit)) }
}

/// The first of the records from `first` to `durable` that is not deleted: what was lies there until retention takes its whole segment.
pub(crate) fn first_left(lane: &Lane, first: u64, durable: u64) -> u64 {
    first.max(lane.floor_ordinal().min(durable))
}

/// A group as readers are told of it. Of one of which everything was deleted nothing is in it, though retention has not been there yet.
fn to_group_info(lane: &Lane, group: &LogGroup) -> GroupInfo {
    let first = group.first_segment;
    GroupInfo {
        group: group.id,
        lane: lane.id(),
        first_segment: first,
        last_segment: group.last_segment,
        first_ordinal: first_left(lane, group.first_ordinal, group.durable_ordinal),
        durable_ordinal: group.durable_ordinal,
        bytes: group.bytes,
        closed: group.closed,
        first_append_ms: group.first_append_ms,
        last_append_ms: group.last_append_ms,
    }
}

/// The groups of one lane, a window at a time.
struct LaneGroups<'a> {
    lane: &'a Arc<Lane>,
    window: VecDeque<LogGroup>,
}

impl LaneGroups<'_> {
    /// The lane's next group after `after`.
    fn next(&mut self, after: GroupId) -> Option<LogGroup> {
        if self.window.is_empty() {
            self.window.extend(self.lane.groups(after, GROUPS_WINDOW));
        }
        self.window.pop_front()
    }
}

fn available_groups(core: &mut Core, message: &AvailableGroups) -> Result<GroupList, Failure> {
    let streamlet = core.streams.streamlet(&core.broker, message.stream, message.streamlet)?;
    groups_while(core.broker.ownership(), streamlet, message, || ())
}

/// Merges the groups of a streamlet's lanes by id.
///
/// Who has some of them has to be the same before the look at them and behind it. Who leaves groups to another node has the table of owners say so first, and then has them go:
/// whoever was told of what is left would take the others for removed, and pass over them. `meanwhile` is for tests: it comes in front of the look.
fn groups_while(
    ownership: &Ownership,
    streamlet: &Arc<Streamlet>,
    message: &AvailableGroups,
    meanwhile: impl FnOnce(),
) -> Result<GroupList, Failure> {
    let owner = ownership.owner(message.stream, message.streamlet);
    let is_untold = owner.is_none() && streamlet.tenure() == Tenure::Elsewhere;
    if is_untold || !ownership.has_some(message.stream, message.streamlet) {
        // Whoever asks has heard something that this node has not, or looked at the owners too long ago: nothing would look like no record.
        return Err(ownership.not_owner(message.stream, message.streamlet));
    }
    meanwhile();
    let limit = page_items(message.limit);
    let mut lanes: Vec<LaneGroups<'_>> =
        streamlet.lanes().map(|lane| LaneGroups { lane, window: VecDeque::new() }).collect();
    let mut next: BinaryHeap<Reverse<(GroupId, usize)>> = BinaryHeap::new();
    let mut heads: Vec<Option<LogGroup>> = Vec::with_capacity(lanes.len());
    for (at, lane) in lanes.iter_mut().enumerate() {
        heads.push(lane.next(message.after));
        next.extend(heads[at].as_ref().map(|group| Reverse((group.id, at))));
    }
    // What came here from the logs of lost nodes and is held by another node is read there, as far as that one still has it.
    let is_here = read_here(ownership, message.stream, message.streamlet);
    let mut groups = Vec::new();
    while groups.len() < limit {
        let Some(Reverse((id, at))) = next.pop() else { break };
        if let Some(group) = heads[at].take().filter(|group| is_here(group.id)) {
            groups.push(to_group_info(lanes[at].lane, &group));
        }
        heads[at] = lanes[at].next(id);
        next.extend(heads[at].as_ref().map(|group| Reverse((group.id, at))));
    }
    if ownership.owner(message.stream, message.streamlet) != owner {
        return Err(ownership.not_owner(message.stream, message.streamlet));
    }
    Ok(GroupList { groups, more: !next.is_empty() })
}

/// The lane of a streamlet that has a group.
fn lane_of_group(streamlet: &Arc<Streamlet>, group: GroupId) -> Result<(&Arc<Lane>, LogGroup), Failure> {
    let found = streamlet.lanes().find_map(|lane| Some((lane, lane.group(group)?)));
    found.ok_or_else(|| {
        let message = format!("streamlet {} has no group {group}, or retention has taken it", streamlet.id());
        Failure::new(Status::UnknownGroup, message)
    })
}

fn to_segment_info(log: &Log, lane: &Lane, group: GroupId, segment: &LogSegment) -> SegmentInfo {
    let (stream, streamlet, index) = (lane.stream_id(), lane.streamlet_id(), segment.index);
    let in_memory = log.segment(SegmentId { stream, streamlet, lane: lane.id(), group, index });
    let place = match (segment.open, segment.in_memory, segment.on_disk) {
        (true, _, _) => SegmentPlace::Open,
        (false, _, false) => SegmentPlace::Memory,
        (false, true, true) => SegmentPlace::Both,
        (false, false, true) => SegmentPlace::Disk,
    };
    SegmentInfo {
        index: segment.index,
        place,
        base_ordinal: segment.base_ordinal,
        durable_ordinal: segment.durable_ordinal,
        durable_head: segment.durable_head,
        // What is only on disk has no buffer.
        capacity_bytes: in_memory.map_or(0, |found| found.capacity_bytes()),
        first_append_ms: segment.first_append_ms,
        last_append_ms: segment.last_append_ms,
    }
}

/// A page of a group's segments, with the lane and the state of it that the page was made from.
fn segments(
    core: &mut Core,
    stream: StreamId,
    message: &AvailableSegments,
) -> Result<(SegmentList, Arc<Lane>, LaneVersion), Failure> {
    let streamlet = core.streams.streamlet(&core.broker, stream, message.streamlet)?;
    let (lane, _) = lane_of_group(streamlet, message.group)?;
    let seen = lane.version();
    let (lane, group) = lane_of_group(streamlet, message.group).map(|(_, group)| (lane, group))?;
    let limit = page_items(message.limit);
    let mut found = lane.segments(message.group, message.after, limit + 1).unwrap_or_default();
    let more = found.len() > limit;
    found.truncate(limit);
    let log = &core.broker.log;
    let segments = found.iter().map(|segment| to_segment_info(log, lane, message.group, segment)).collect();
    Ok((SegmentList { lane: lane.id(), segments, complete: group.closed && !more, more }, Arc::clone(lane), seen))
}

fn available_segments(core: &mut Core, message: &AvailableSegments) -> Result<SegmentList, Failure> {
    segments(core, message.stream, message).map(|(list, _, _)| list)
}

fn next_segments(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let NextSegments { stream, streamlet, group, after, limit, max_wait_ms } = request.message()?;
    let asked = AvailableSegments { stream, streamlet, group, after, limit };
    let (list, lane, seen) = segments(core, stream, &asked)?;
    let wait_ms = max_wait_ms.min(WAIT_MS_MAX);
    if list.segments.is_empty() && !list.complete && !request.last && wait_ms > 0 {
        return Ok(Attempt::Wait { lanes: vec![(lane, seen)], wait_ms });
    }
    out.respond(request.header, &list);
    Ok(Attempt::Answered)
}

/// A place in a lane, and the ordinal there; or what to wait for.
pub(crate) enum Place {
    Here(kera_format::Cursor, u64),
    Loading(LaneVersion),
}

/// Finds a start in a lane: never in front of what was deleted, and the end is where transactions begin that have not ended.
pub(crate) fn find(lane: &Lane, at: Start) -> Result<Place, Failure> {
    let floor = lane.floor_ordinal();
    let found = match at {
        Start::Earliest => match lane.earliest() {
            (_, ordinal) if ordinal < floor => lane.lookup_ordinal(floor)?,
            (cursor, ordinal) => return Ok(Place::Here(cursor, ordinal)),
        },
        Start::Latest => {
            let (cursor, ordinal) = lane.latest();
            match visible::end(lane, ordinal) {
                end if end < ordinal => lane.lookup_ordinal(end)?,
                _ => return Ok(Place::Here(cursor, ordinal)),
            }
        }
        Start::Ordinal(ordinal) => lane.lookup_ordinal(ordinal.max(floor))?,
        Start::TimeMs(time_ms) => match lane.lookup_time(time_ms)? {
            Found::Found { ordinal, .. } if ordinal < floor => lane.lookup_ordinal(floor)?,
            found => found,
        },
    };
    Ok(match found {
        Found::Found { cursor, ordinal } => Place::Here(cursor, ordinal.max(floor)),
        Found::Loading(seen) => Place::Loading(seen),
    })
}

/// Refuses as long as it is not known which transactions run in a lane: whoever reads up to the end would stop where it begins, and whoever begins at
/// the end would begin there.
pub(crate) fn check_visible(lane: &Lane) -> Result<(), Failure> {
    if lane.tenure() == Tenure::Elsewhere || visible::is_known(lane) {
        return Ok(());
    }
    let (stream, streamlet, lane) = (lane.stream_id(), lane.streamlet_id(), lane.id());
    let message = format!(
        "which transactions run in lane {lane} of streamlet {streamlet} of stream {stream} is not known here yet: it has just moved here"
    );
    Err(Failure::later(Status::NotReady, message))
}

fn lookup(core: &mut Core, request: Request<'_>, out: &mut Outbox) -> Result<Attempt, Failure> {
    let message: Lookup = request.message()?;
    let lane = core.streams.lane(&core.broker, message.stream, message.streamlet, message.lane)?;
    match find_while(core.broker.ownership(), lane, message.at, || ())? {
        Looked::Found(found) => {
            out.respond(request.header, &found);
            Ok(Attempt::Answered)
        }
        Looked::Loading(seen) => Ok(Attempt::Wait { lanes: vec![(Arc::clone(lane), seen)], wait_ms: LOAD_WAIT_MS }),
    }
}

/// What a [`Lookup`] has come to.
#[derive(Debug)]
enum Looked {
    Found(LookupResult),
    /// As with [`Place::Loading`].
    Loading(LaneVersion),
}

/// Finds a place in a lane of which other nodes may have groups, and where it begins and ends.
///
/// Whose the lane is has to be the same before the look at it and behind it. A streamlet that is taken over is emptied of what it had, told where it ends, and given its groups,
/// one after the other: who looked in between and found it open then would be told that its beginning is its end, and read nothing of it. `meanwhile` is for tests: it comes
/// between the two looks.
fn find_while(ownership: &Ownership, lane: &Arc<Lane>, at: Start, meanwhile: impl FnOnce()) -> Result<Looked, Failure> {
    let standing = Whose::of(ownership, lane);
    check_visible(lane)?;
    let (mut cursor, ordinal) = match find(lane, at)? {
        Place::Here(cursor, ordinal) => (cursor, ordinal),
        Place::Loading(seen) => return Ok(Looked::Loading(seen)),
    };
    let stats = lane.stats();
    meanwhile();
    // As whoever puts the groups of several nodes together finds it: who is told of an earlier one takes what is deleted for lost, or waits for it.
    let first_ordinal = first_left(lane, stats.first_ordinal, stats.durable_ordinal);
    let durable_ordinal = visible::end(lane, stats.durable_ordinal);
    if Whose::of(ownership, lane) != standing {
        return Err(ownership.not_owner(lane.stream_id(), lane.streamlet_id()));
    }
    if !standing.is_plain {
        cursor = placed(ownership, lane, &standing, at, cursor, ordinal)?;
    }
    Ok(Looked::Found(LookupResult { cursor, ordinal, first_ordinal, durable_ordinal }))
}

/// A place that was found in a lane of which other nodes have groups. Refused if another node may have the right one: then the reader's
/// look at the owners is too old.
fn placed(
    ownership: &Ownership,
    lane: &Lane,
    standing: &Whose,
    at: Start,
    found: Cursor,
    ordinal: u64,
) -> Result<Cursor, Failure> {
    let (stream, streamlet) = (lane.stream_id(), lane.streamlet_id());
    let Some(owner) = &standing.owner else {
        // It has just come, and nobody has said yet whose it is: that nothing is here says nothing of what there is.
        let is_untold = standing.tenure == Tenure::Elsewhere;
        return if is_untold { Err(Failure::not_owner(stream, streamlet, 0)) } else { Ok(found) };
    };
    let is_its = owner.node == ownership.node();
    let is_owner = is_its && standing.tenure != Tenure::Elsewhere;
    if is_its && !is_owner {
        // It is being taken over: what is here of it from before is not all, and says nothing of where the lane begins and ends.
        return Err(ownership.not_owner(stream, streamlet));
    }
    let at_end = ordinal >= lane.durable_ordinal();
    let latest = is_owner && at_end;
    // Groups of owners before may all have come here since.
    let has_all = is_owner && owner.older.iter().all(|older| older.node == owner.node);
    let allowed = match at {
        _ if has_all => true,
        Start::Latest => is_owner,
        Start::Earliest => false,
        Start::Ordinal(wanted) => ordinal <= wanted && (latest || !at_end),
        Start::TimeMs(_) => latest || !at_end,
    };
    if !allowed {
        return Err(ownership.not_owner(stream, streamlet));
    }
    // Before the first chunk of its epoch an owner has no group yet, and what it has itself is perhaps not the last group before. But what it
    // appended in an earlier epoch, before it was started again, may not be durable yet: that comes first.
    let begins = first_of(owner.epoch).group;
    let of_epoch = lane.groups(GroupId(begins.0.saturating_sub(1)), 1).first().map(|group| group.first_ordinal);
    let is_next = of_epoch.unwrap_or_else(|| lane.next_ordinal()) <= ordinal;
    Ok(if latest && is_next && found.group < begins { first_of(owner.epoch) } else { found })
}

fn stream_stats(core: &mut Core, message: &StreamStats) -> Result<StreamStatsResponse, Failure> {
    let stream = core.streams.get(&core.broker.log, message.stream);
    let stream = stream.ok_or_else(|| core.broker.unknown_stream(message.stream))?;
    check_named(&message.streamlets)?;
    let mut wanted = message.streamlets.clone();
    wanted.sort_unstable();
    wanted.dedup();
    if let Some(&streamlet) = wanted.iter().find(|id| stream.streamlet(**id).is_none()) {
        return Err(Failure::unknown_streamlet(stream.id(), streamlet, stream.options().streamlets));
    }
    let after = message.after;
    let limit = page_items(message.limit);
    let mut used: Vec<(StreamletId, LaneId, &Arc<Lane>)> = stream
        .streamlets()
        .filter(|streamlet| wanted.is_empty() || wanted.binary_search(&streamlet.id()).is_ok())
        .flat_map(|streamlet| streamlet.lanes().map(|lane| (streamlet.id(), lane.id(), lane)))
        .filter(|(streamlet, lane, _)| after.is_none_or(|after| (*streamlet, *lane) > after))
        .collect();
    used.sort_unstable_by_key(|(streamlet, lane, _)| (*streamlet, *lane));
    let mut lanes = Vec::new();
    let mut more = false;
    for (streamlet, lane, found) in used {
        let stats = found.stats();
        if stats.next_ordinal == 0 {
            continue;
        }
        if lanes.len() == limit {
            more = true;
            break;
        }
        lanes.push(LaneStats {
            streamlet,
            lane,
            first_ordinal: first_left(found, stats.first_ordinal, stats.durable_ordinal),
            durable_ordinal: stats.durable_ordinal,
            next_ordinal: stats.next_ordinal,
            bytes: stats.bytes,
            memory_bytes: stats.memory_bytes,
            disk_bytes: stats.disk_bytes,
            groups: stats.groups.try_into().unwrap_or(u32::MAX),
            segments: stats.segments.try_into().unwrap_or(u32::MAX),
            last_append_ms: stats.last_append_ms,
            compacted_ordinal: stats.compacted_ordinal,
            uncompacted_bytes: stats.uncompacted_bytes,
        });
    }
    Ok(StreamStatsResponse { lanes, more })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Where a reader is told that a lane begins, and ends, if between its look at the lane and the look at whose that is `meanwhile` happens.
    pub(crate) fn look_up_meanwhile(
        broker: &crate::Broker,
        lane: &Arc<Lane>,
        at: Start,
        meanwhile: &dyn Fn(),
    ) -> Result<(u64, u64), Status> {
        match find_while(broker.ownership(), lane, at, meanwhile) {
            Ok(Looked::Found(found)) => Ok((found.ordinal, found.durable_ordinal)),
            Ok(Looked::Loading(_)) => panic!("it is in memory"),
            Err(failure) => Err(failure.status),
        }
    }

    /// The owner epochs of the groups that a node tells of if, between its look at the owners and its look at the groups, `meanwhile` happens.
    pub(crate) fn groups_meanwhile(
        broker: &crate::Broker,
        (stream, streamlet): (StreamId, StreamletId),
        meanwhile: &dyn Fn(),
    ) -> Result<Vec<u32>, Status> {
        let found = broker.log().stream(stream).expect("a stream");
        let place = found.streamlet(streamlet).expect("a streamlet");
        let asked = AvailableGroups { stream, streamlet, after: GroupId::NONE, limit: 0 };
        let told = groups_while(broker.ownership(), place, &asked, meanwhile).map_err(|failure| failure.status)?;
        let mut epochs: Vec<u32> = told.groups.iter().map(|group| group.group.epoch()).collect();
        epochs.dedup();
        Ok(epochs)
    }
}
