//! What other nodes are asked for, and what is kept of their answers: which groups they have, and chunks, a piece at a time.
//!
//! Memory is bounded by [`DoorConfig::older_bytes_max`](crate::DoorConfig::older_bytes_max): what was used longest ago goes first. So is
//! what is asked of a node at a time; whoever comes then is woken when an answer has come. A node that cannot be asked is asked again a
//! little later, if somebody still waits.
//!
//! A node that has heard of later owners than this one may have groups no more that the table of owners here says it has. What is not in its
//! list would look like what retention has taken, and readers would pass over it. So a list without any group of a run that its node should have, or of several pages, is
//! kept only if what the node says of the owners behind it bears it out ([`Listing::is_borne_out`]).
//!
//! Answers are taken in on the thread for what nodes ask each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kera_format::chunk::Chunks;
use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamletId};
use kera_log::Lane;
use kera_protocol::read::{ENTRY_FOLLOW_GROUPS, ENTRY_UNCOMMITTED};
use kera_protocol::{
    AvailableGroups, FindOwners, GroupInfo, GroupList, Lookup, LookupResult, Owner, OwnerRun, Owners, ReadChunks,
    ReadChunksResponse, ReadEntry, Start, Status,
};
use parking_lot::Mutex;

use super::{Answer, Group, LaneKey, Place, Run, key_of};
use crate::door::Door;

/// Bytes of chunks that are asked for at a time.
const PIECE_BYTES: usize = 1 << 20;
/// How long another node may take to have chunks brought back from its disk before it says that there is nothing yet.
const WAIT_MS: u32 = 1_000;
/// Requests for chunks that a node is sent before it has answered.
const ASKS_MAX: usize = 16;
/// After so long groups are asked for again: retention takes them.
const GROUPS_AGE_US: u64 = 10_000_000;
/// Groups that nobody has asked for since they were old go after so long: whoever reads has them asked for again and again.
const HELD_AGE_US: u64 = 60_000_000;
/// How soon a node is asked again that could not be, or had nothing.
const RETRY_US: u64 = 200_000;
/// Pieces that nobody has used for so long go.
const PIECE_AGE_US: u64 = 30_000_000;
/// So often all that is kept is looked through for what nobody uses.
const LOOK_US: u64 = 1_000_000;
/// Places of which it is remembered that they were asked for in vain.
const FAILED_MAX: usize = 4_096;

/// See the module.
pub(crate) struct Older {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: HashMap<(u32, Place), Held>,
    /// By lane and first offset.
    pieces: BTreeMap<(LaneKey, u64), Piece>,
    bytes: usize,
    /// Chunks that are asked for, or were in vain.
    asked: HashMap<(LaneKey, u64), Asked>,
    nodes: HashMap<u32, Busy>,
    /// Streamlets whose lanes are to be woken, and when.
    retries: BTreeMap<Place, u64>,
    /// When it is looked next for what nobody uses.
    look_us: u64,
}

/// The groups that a node has of a streamlet.
#[derive(Default)]
struct Held {
    /// Who owned it and who had its older groups when the node was asked: it may have others when they have changed.
    owner: Owner,
    groups: Option<HashMap<LaneId, Vec<Group>>>,
    /// From then on it is asked for again.
    old_us: u64,
    asking: bool,
}

struct Piece {
    data: Bytes,
    /// Behind its last record.
    end: u64,
    /// Where its node goes on.
    next: Cursor,
    used_us: u64,
}

#[derive(Default)]
struct Asked {
    under_way: bool,
    failures: u32,
}

/// What is asked of a node.
#[derive(Default)]
struct Busy {
    asks: usize,
    denied: BTreeSet<Place>,
    not_before_us: u64,
}

/// Chunks that are asked for.
struct Ask {
    lane: Arc<Lane>,
    node: u32,
    offset: u64,
}

/// The groups of a streamlet that a node is asked for.
struct Listing {
    node: u32,
    place: Place,
    /// What was known of the streamlet's owners when the node was asked.
    owner: Owner,
    /// What has come so far.
    groups: Vec<GroupInfo>,
    /// It has come in several pages.
    is_paged: bool,
}

impl Listing {
    /// The owner epochs of the runs that the node has by what is known here, and of which something may be missing: no group of any lane has come, or the rest may have gone
    /// to another node between two pages.
    fn missing(&self) -> impl Iterator<Item = Range<u32>> {
        let of_node = self.owner.older_runs().filter(move |(_, node)| *node == self.node).map(|(epochs, _)| epochs);
        let has_come = move |epochs: &Range<u32>| self.groups.iter().any(|group| epochs.contains(&group.group.epoch()));
        of_node.filter(move |epochs| self.is_paged || !has_come(epochs))
    }

    /// Whether there is nothing in these runs, by what the node said of the owners after it had told its groups.
    fn is_borne_out(&self, says: &Owner) -> bool {
        says.bears_out(&self.owner, self.node, self.missing())
    }
}

/// What a page says of the owners of a streamlet, if it says something.
fn owner_in(page: &Owners, (stream, streamlet): Place) -> Option<Owner> {
    let mut runs = page.streams.iter().filter(|found| found.stream == stream).flat_map(|found| &found.runs);
    runs.find(|run| run.contains(streamlet)).map(OwnerRun::owner)
}

fn place_of(lane: &Lane) -> Place {
    (lane.stream_id(), lane.streamlet_id())
}

/// Whoever waits for lanes of a streamlet looks again.
fn wake(door: &Door, (stream, streamlet): Place) {
    let Some(stream) = door.broker.log().stream(stream) else { return };
    let Some(streamlet) = stream.streamlet(streamlet) else { return };
    streamlet.lanes().for_each(|lane| lane.wake());
}

impl State {
    fn retry(&mut self, place: Place, at_us: u64) {
        let due = self.retries.entry(place).or_insert(at_us);
        *due = at_us.min(*due);
    }

    /// Whether a node may be asked now; if not, lanes of the streamlet are woken later.
    fn may_ask(&mut self, node: u32, place: Place, now_us: u64) -> bool {
        let not_before_us = self.nodes.entry(node).or_default().not_before_us;
        if now_us < not_before_us {
            self.retry(place, not_before_us);
        }
        now_us >= not_before_us
    }

    /// A node could not be asked.
    fn is_away(&mut self, node: u32, place: Place, now_us: u64) {
        self.nodes.entry(node).or_default().not_before_us = now_us + RETRY_US;
        self.retry(place, now_us + RETRY_US);
    }

    /// Where a list is to go; nowhere if it is asked for anew.
    fn held_for(&mut self, listing: &Listing) -> Option<&mut Held> {
        self.held.get_mut(&(listing.node, listing.place)).filter(|held| held.owner == listing.owner)
    }

    fn remove(&mut self, key: &(LaneKey, u64)) {
        if let Some(piece) = self.pieces.remove(key) {
            self.bytes -= piece.data.len();
        }
    }

    fn keep(&mut self, key: (LaneKey, u64), piece: Piece, bytes_max: usize) {
        self.remove(&key);
        self.bytes += piece.data.len();
        self.pieces.insert(key, piece);
        while self.bytes > bytes_max {
            let others = self.pieces.iter().filter(|(other, _)| **other != key);
            let Some((oldest, _)) = others.min_by_key(|(_, piece)| piece.used_us) else { break };
            let oldest = *oldest;
            self.remove(&oldest);
        }
    }

    /// The streamlets whose lanes are to be woken now. Now and then lets go of what nobody uses: tens of thousands of streamlets may have moved, and readers wait for this lock.
    fn turn(&mut self, now_us: u64) -> Vec<Place> {
        let due = self.retries.iter().filter(|(_, at)| **at <= now_us).map(|(place, _)| *place).collect();
        self.retries.retain(|_, at| *at > now_us);
        if now_us >= self.look_us {
            self.look_us = now_us.saturating_add(LOOK_US);
            self.let_go(now_us);
        }
        due
    }

    /// Lets go of what nobody has used for long.
    fn let_go(&mut self, now_us: u64) {
        let unused = self.pieces.iter().filter(|(_, piece)| piece.used_us + PIECE_AGE_US < now_us);
        let unused: Vec<_> = unused.map(|(key, _)| *key).collect();
        unused.iter().for_each(|key| self.remove(key));
        self.held.retain(|_, held| {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            held.asking || held.old_us + HELD_AGE_US >= now_us
        });
    }

    /// The piece with an offset.
    fn find(&mut self, lane: LaneKey, offset: u64) -> Option<&mut Piece> {
        let (_, piece) = self.pieces.range_mut((lane, 0)..=(lane, offset)).next_back()?;
        (piece.end > offset).then_some(piece)
    }

    /// An answer about chunks has come. The streamlets that somebody was turned away from meanwhile.
    fn answered(&mut self, ask: &Ask, done: bool) -> BTreeSet<Place> {
        let key = (key_of(&ask.lane), ask.offset);
        if done {
            self.asked.remove(&key);
        } else if let Some(asked) = self.asked.get_mut(&key) {
            (asked.under_way, asked.failures) = (false, asked.failures + 1);
        }
        if self.asked.len() > FAILED_MAX {
            self.asked.retain(|_, asked| asked.under_way);
        }
        let busy = self.nodes.entry(ask.node).or_default();
        busy.asks = busy.asks.saturating_sub(1);
        std::mem::take(&mut busy.denied)
    }
}

impl Older {
    /// Nothing is kept yet; never more than so many bytes, but for one piece.
    pub(crate) fn new(bytes_max: usize) -> Older {
        Older { bytes_max, state: Mutex::default() }
    }

    /// The groups of a lane that a node has of some epochs. They are asked for if they are not known, or were some time ago.
    pub(super) fn groups(&self, door: &Door, node: u32, lane: &Arc<Lane>, owner: &Owner, epochs: &Range<u32>) -> Run {
        let (place, now_us) = (place_of(lane), door.clock.monotonic_us());
        let mut state = self.state.lock();
        let held = state.held.entry((node, place)).or_default();
        if held.owner != *owner {
            *held = Held { owner: owner.clone(), ..Held::default() };
        }
        let known = held.groups.as_ref().map(|groups| {
            let groups = groups.get(&lane.id()).map_or(&[][..], Vec::as_slice);
            groups.iter().filter(|group| epochs.contains(&group.id.epoch())).copied().collect()
        });
        if now_us >= held.old_us && !held.asking && state.may_ask(node, place, now_us) {
            if let Some(held) = state.held.get_mut(&(node, place)) {
                (held.asking, held.old_us) = (true, now_us + GROUPS_AGE_US);
            }
            drop(state);
            let listing = Listing { node, place, owner: owner.clone(), groups: Vec::new(), is_paged: false };
            ask_groups(door, listing, GroupId::NONE);
        }
        known
    }

    fn take_groups(&self, door: &Door, listing: &Listing) {
        let mut groups: HashMap<LaneId, Vec<Group>> = HashMap::new();
        for group in listing.groups.iter().filter(|group| group.durable_ordinal > group.first_ordinal) {
            groups.entry(group.lane).or_default().push(Group {
                id: group.group,
                node: listing.node,
                first: group.first_ordinal,
                end: group.durable_ordinal,
                first_segment: group.first_segment,
                last_append_ms: group.last_append_ms,
            });
        }
        let mut state = self.state.lock();
        let Some(held) = state.held_for(listing) else { return };
        (held.asking, held.groups) = (false, Some(groups));
        drop(state);
        wake(door, listing.place);
    }

    /// A list has not come, or does not count; `away`: the node could not be asked, and is not asked for anything else for a moment.
    fn not_listed(&self, door: &Door, listing: &Listing, away: bool, why: &str) {
        let (node, place, now_us) = (listing.node, listing.place, door.clock.monotonic_us());
        let mut state = self.state.lock();
        let Some(held) = state.held_for(listing) else { return };
        tracing::debug!(node, why, "what it has of earlier times is not known yet");
        held.asking = false;
        if held.groups.is_none() {
            held.old_us = now_us + RETRY_US;
        }
        if away {
            state.is_away(node, place, now_us);
        } else {
            state.retry(place, now_us + RETRY_US);
        }
    }

    /// Chunks that another node has from the start of `range` on, up to `max_bytes` but at least one. If they are not here they are asked
    /// for, and the lane is woken. Those behind them are asked for as well, while the range goes on.
    pub(super) fn piece(
        &self,
        door: &Door,
        lane: &Arc<Lane>,
        group: &Group,
        range: Range<u64>,
        max_bytes: usize,
    ) -> Option<Bytes> {
        let now_us = door.clock.monotonic_us();
        let mut state = self.state.lock();
        let found = state.find(key_of(lane), range.start).map(|piece| {
            piece.used_us = now_us;
            (piece.data.clone(), piece.end, piece.next)
        });
        drop(state);
        match found {
            Some((data, end, next)) => {
                if end < range.end {
                    self.want(door, lane, group, end, Some(next));
                }
                Some(cut(&data, range.start, max_bytes))
            }
            None => {
                self.want(door, lane, group, range.start, None);
                None
            }
        }
    }

    /// Asks for chunks, `from` a cursor if it is known; without one somebody waits for them.
    fn want(&self, door: &Door, lane: &Arc<Lane>, group: &Group, offset: u64, from: Option<Cursor>) {
        let (key, place, now_us) = (key_of(lane), place_of(lane), door.clock.monotonic_us());
        let mut state = self.state.lock();
        if state.find(key, offset).is_some() || state.asked.get(&(key, offset)).is_some_and(|asked| asked.under_way) {
            return;
        }
        if !state.may_ask(group.node, place, now_us) {
            return;
        }
        let busy = state.nodes.entry(group.node).or_default();
        if busy.asks >= ASKS_MAX {
            if from.is_none() {
                busy.denied.insert(place);
            }
            return;
        }
        busy.asks += 1;
        let asked = state.asked.entry((key, offset)).or_default();
        asked.under_way = true;
        // Where the offset is in the group is asked for first. If that is not told, all of the group is gone through.
        let whole = offset <= group.first || asked.failures % 2 == 1;
        drop(state);
        let start = Cursor { group: group.id, segment: group.first_segment, position: 0 };
        let ask = Ask { lane: Arc::clone(lane), node: group.node, offset };
        match from {
            Some(from) => ask_chunks(door, ask, from),
            None if whole => ask_chunks(door, ask, start),
            None => ask_place(door, ask),
        }
    }

    fn failed(&self, door: &Door, ask: &Ask, away: bool, why: &str) {
        tracing::debug!(node = ask.node, lane = ?ask.lane, offset = ask.offset, why, "older chunks have not come");
        let (place, now_us) = (place_of(&ask.lane), door.clock.monotonic_us());
        let mut state = self.state.lock();
        let denied = state.answered(ask, false);
        if away {
            state.is_away(ask.node, place, now_us);
        } else {
            // Retention may have taken it, or another node has it by now.
            if let Some(held) = state.held.get_mut(&(ask.node, place)) {
                held.old_us = held.old_us.min(now_us);
            }
            state.retry(place, now_us + RETRY_US);
        }
        drop(state);
        denied.into_iter().for_each(|place| wake(door, place));
    }

    fn take_chunks(&self, door: &Door, ask: Ask, told: Result<ReadChunksResponse, String>) {
        let told = match told {
            Ok(told) => told,
            Err(error) => return self.failed(door, &ask, true, &error),
        };
        let Some((head, data)) = told.answers.into_iter().next() else {
            return self.failed(door, &ask, false, "there is nothing yet");
        };
        if head.status() != Some(Status::Ok) {
            return self.failed(door, &ask, false, &format!("{:?}", head.status()));
        }
        let Some((first, end)) = span(&data) else {
            return self.failed(door, &ask, false, "chunks are damaged, or there are none");
        };
        if end <= ask.offset {
            return ask_chunks(door, ask, head.next);
        }
        let key = (key_of(&ask.lane), first.min(ask.offset));
        let piece = Piece { data, end, next: head.next, used_us: door.clock.monotonic_us() };
        let mut state = self.state.lock();
        let denied = state.answered(&ask, true);
        state.keep(key, piece, self.bytes_max);
        drop(state);
        ask.lane.wake();
        denied.into_iter().for_each(|place| wake(door, place));
    }

    /// Asks a node where in a lane records of a time begin.
    pub(super) fn ask_time(&self, door: &Door, lane: &Arc<Lane>, node: u32, time_ms: i64) -> Answer {
        let answer = Answer::default();
        let (told, lane) = (Arc::clone(&answer), Arc::clone(lane));
        let asked = lookup_of(&lane, Start::TimeMs(time_ms));
        door.ask_native(node, &asked, move |_, found: Result<LookupResult, String>| {
            *told.lock() = Some(found.map(|found| found.ordinal));
            lane.wake();
        });
        answer
    }

    /// Wakes whoever waits for nodes that are to be asked again, and lets go of what nobody uses. Called again and again.
    pub(crate) fn tick(&self, door: &Door) {
        let now_us = door.clock.monotonic_us();
        let due = self.state.lock().turn(now_us);
        due.into_iter().for_each(|place| wake(door, place));
    }
}

fn lookup_of(lane: &Lane, at: Start) -> Lookup {
    Lookup { stream: lane.stream_id(), streamlet: lane.streamlet_id(), lane: lane.id(), at }
}

/// Asks for the groups of a streamlet, a page behind the other.
fn ask_groups(door: &Door, mut listing: Listing, after: GroupId) {
    let asked = AvailableGroups { stream: listing.place.0, streamlet: listing.place.1, after, limit: 0 };
    door.ask_native(listing.node, &asked, move |door, told: Result<GroupList, String>| match told {
        Ok(page) => {
            listing.groups.extend(page.groups);
            match listing.groups.last().map(|last| last.group) {
                Some(last) if page.more && last > after => {
                    listing.is_paged = true;
                    ask_groups(door, listing, last);
                }
                _ if listing.missing().next().is_some() => ask_owners(door, listing, None),
                _ => door.older.take_groups(door, &listing),
            }
        }
        Err(error) => door.older.not_listed(door, &listing, true, &error),
    });
}

/// Asks a node for the owners of a streamlet after it has told its groups, a page behind the other up to the one that has the streamlet. What that one says is so by
/// itself: those in front of it may be of an earlier state.
fn ask_owners(door: &Door, listing: Listing, after: Option<(StreamId, StreamletId)>) {
    let asked = FindOwners { streams: vec![listing.place.0.into()], after, limit: 0 };
    door.ask_native(listing.node, &asked, move |door, told: Result<Owners, String>| {
        let page = match told {
            Ok(page) => page,
            Err(error) => return door.older.not_listed(door, &listing, true, &error),
        };
        let is_ours = page.cluster == door.broker.ownership().cluster();
        match owner_in(&page, listing.place) {
            Some(says) if is_ours && listing.is_borne_out(&says) => door.older.take_groups(door, &listing),
            Some(_) => {
                let why = "it knows other owners, and has not told of groups that it should have";
                door.older.not_listed(door, &listing, false, why);
            }
            None => match page.next_page().filter(|next| Some(*next) > after) {
                Some(next) => ask_owners(door, listing, Some(next)),
                None => door.older.not_listed(door, &listing, false, "it has not said who owns the streamlet"),
            },
        }
    });
}

/// Asks where an offset is, and then for what is there.
fn ask_place(door: &Door, ask: Ask) {
    let asked = lookup_of(&ask.lane, Start::Ordinal(ask.offset));
    door.ask_native(ask.node, &asked, move |door, found: Result<LookupResult, String>| match found {
        Ok(found) => ask_chunks(door, ask, found.cursor),
        Err(error) => door.older.failed(door, &ask, false, &error),
    });
}

fn ask_chunks(door: &Door, ask: Ask, cursor: Cursor) {
    let (stream, streamlet, lane) = key_of(&ask.lane);
    let flags = ENTRY_FOLLOW_GROUPS | ENTRY_UNCOMMITTED;
    let entry = ReadEntry { stream, streamlet, lane, cursor, max_bytes: 0, flags };
    let entries = vec![entry];
    let asked = ReadChunks { max_wait_ms: WAIT_MS, min_bytes: 1, max_bytes: PIECE_BYTES as u32, entries };
    door.ask_native(ask.node, &asked, move |door, told| door.older.take_chunks(door, ask, told));
}

/// The offset of the first record of some chunks, and behind the last one.
fn span(data: &[u8]) -> Option<(u64, u64)> {
    let (mut first, mut end) = (None, 0);
    for chunk in Chunks::new(data) {
        let chunk = chunk.ok()?;
        let base = chunk.broker().ok()?.base_ordinal;
        first.get_or_insert(base);
        end = base + u64::from(chunk.header().record_count);
    }
    Some((first?, end))
}

/// The chunks from the one with an offset on, up to so many bytes but at least one.
fn cut(data: &Bytes, offset: u64, max_bytes: usize) -> Bytes {
    let (mut from, mut to) = (0, 0);
    for chunk in Chunks::new(data).map_while(Result::ok) {
        let bytes = chunk.as_bytes().len();
        let end = chunk.broker().map_or(0, |place| place.base_ordinal + u64::from(chunk.header().record_count));
        if end <= offset && to == from {
            (from, to) = (to + bytes, to + bytes);
            continue;
        }
        if to > from && to + bytes - from > max_bytes {
            break;
        }
        to += bytes;
    }
    data.slice(from..to)
}

#[cfg(test)]
mod tests {
    use kera_format::SegmentIndex;
    use kera_protocol::{OlderGroups, StreamOwners};

    use super::*;

    thread_local! {
        /// How many streamlets were looked at for whether somebody still asks for their groups.
        pub(super) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn what_is_kept_is_looked_through_once_a_second_and_who_waits_is_woken_in_time() {
        let mut state = State::default();
        for stream in (0..1_000).map(StreamId) {
            let held = Held { groups: Some(HashMap::new()), old_us: 100_000_000, ..Held::default() };
            state.held.insert((2, (stream, StreamletId(0))), held);
            state.retry((stream, StreamletId(0)), stream.0 * 2_000);
        }
        LOOKED_AT.set(0);
        let woken: Vec<usize> = (0..100).map(|turn| state.turn(turn * 20_000).len()).collect();
        assert_eq!((woken[0], &woken[1..]), (1, &[10; 99][..]));
        assert_eq!((LOOKED_AT.get(), state.held.len()), (2_000, 1_000));
        assert_eq!(state.turn(100_000_000 + HELD_AGE_US + 1).len(), 9);
        assert!(state.held.is_empty() && state.retries.is_empty());
    }

    #[test]
    fn groups_that_nobody_asks_for_any_more_are_let_go_of() {
        let mut state = State::default();
        let place = |stream| (2, (StreamId(stream), StreamletId(0)));
        let known = || Some(HashMap::new());
        let held = |old_us, asking| Held { owner: Owner::default(), groups: known(), old_us, asking };
        state.held.insert(place(1), held(GROUPS_AGE_US, false));
        state.held.insert(place(2), held(GROUPS_AGE_US, true));
        state.held.insert(place(3), held(HELD_AGE_US, false));
        let mut left = |now_us| {
            state.let_go(now_us);
            let mut left: Vec<u64> = state.held.keys().map(|(_, (stream, _))| stream.0).collect();
            left.sort_unstable();
            left
        };
        assert_eq!(left(GROUPS_AGE_US + HELD_AGE_US), [1, 2, 3]);
        assert_eq!(left(GROUPS_AGE_US + HELD_AGE_US + 1), [2, 3], "the answer to one is still to come");
        assert_eq!(left(2 * HELD_AGE_US + 1), [2]);
    }

    const PLACE: Place = (StreamId(7), StreamletId(5));

    fn owner(node: u32, epoch: u32, older: &[(u32, u32)]) -> Owner {
        let older = older.iter().map(|&(first_epoch, node)| OlderGroups { first_epoch, node }).collect();
        Owner { node, epoch, older }
    }

    /// Node 2 has told of a group of each of these owner epochs. By what is known here it has those from 3 to 4 and from 7 to 8.
    fn listing(epochs: &[u32]) -> Listing {
        let group = |epoch: &u32| GroupInfo {
            group: GroupId::new(*epoch, 1),
            lane: LaneId(0),
            first_segment: SegmentIndex(0),
            last_segment: SegmentIndex(0),
            first_ordinal: 0,
            durable_ordinal: 0,
            bytes: 0,
            closed: true,
            first_append_ms: 0,
            last_append_ms: 0,
        };
        let groups = epochs.iter().map(group).collect();
        Listing { node: 2, place: PLACE, owner: owner(1, 9, &[(3, 2), (5, 1), (7, 2)]), groups, is_paged: false }
    }

    #[test]
    fn a_run_is_missing_if_its_node_has_no_group_of_any_of_its_epochs() {
        let missing = |epochs: &[u32]| {
            let listing = listing(epochs);
            listing.missing().map(|run| (run.start, run.end)).collect::<Vec<(u32, u32)>>()
        };
        assert!(missing(&[3, 8]).is_empty() && missing(&[4, 7]).is_empty());
        assert_eq!(missing(&[7]), [(3, 5)]);
        assert_eq!(missing(&[4, 5, 9]), [(7, 9)]);
        assert_eq!(missing(&[]), [(3, 5), (7, 9)]);
    }

    #[test]
    fn a_list_without_a_run_counts_if_its_node_knows_what_is_known_or_has_the_run_and_has_not_heard_of_more() {
        let counts = |says: &Owner| listing(&[7]).is_borne_out(says);
        assert!(counts(&owner(1, 9, &[(3, 2), (5, 1), (7, 2)])));
        // It has heard that the run is another node's, or the owner's, or gone, or that there is another owner.
        assert!(!counts(&owner(1, 9, &[(3, 4), (5, 1), (7, 2)])));
        assert!(!counts(&owner(1, 9, &[(3, 1), (5, 1), (7, 2)])));
        assert!(!counts(&owner(1, 9, &[(5, 1), (7, 2)])));
        assert!(!counts(&owner(4, 11, &[(3, 2), (5, 1), (7, 2), (9, 1)])));
        // It has not heard yet that it is not the owner any more.
        assert!(counts(&owner(2, 7, &[(3, 2), (5, 1)])) && counts(&owner(2, 3, &[])));
        // Nor that it has the run.
        assert!(!counts(&owner(2, 7, &[(3, 4), (5, 1)])) && !counts(&owner(2, 7, &[(3, 2), (4, 4), (5, 1)])));
        assert!(!counts(&owner(2, 4, &[(3, 4)])) && !counts(&owner(4, 4, &[(3, 2)])));
        // Nor of anybody.
        assert!(!counts(&owner(2, 0, &[])) && !counts(&owner(0, 0, &[])));
    }

    #[test]
    fn the_owner_of_a_streamlet_is_found_in_its_run() {
        let run = |first, count, step, node| OwnerRun {
            first: StreamletId(first),
            count,
            step,
            node,
            epoch: 4,
            older: vec![OlderGroups { first_epoch: 1, node: 9 }],
        };
        let page = |runs| Owners {
            cluster: [1; 16],
            version: 3,
            node: 2,
            nodes: Vec::new(),
            streams: vec![StreamOwners { stream: PLACE.0, streamlets: 8, runs }],
            more: false,
        };
        let found = |runs| owner_in(&page(runs), PLACE);
        let at = |node| Some(owner(node, 4, &[(1, 9)]));
        assert_eq!(found(vec![run(0, 3, 2, 1), run(1, 3, 2, 2), run(7, 1, 1, 3)]), at(2));
        assert_eq!([found(vec![run(5, 1, 0, 3)]), found(vec![run(0, u32::MAX, 1, 4)])], [at(3), at(4)]);
        assert_eq!([found(vec![run(1, 2, 2, 2)]), found(vec![run(6, 1, 1, 2)]), found(Vec::new())], [None, None, None]);
        assert_eq!(owner_in(&page(vec![run(0, 8, 1, 1)]), (StreamId(8), PLACE.1)), None);
    }
}
