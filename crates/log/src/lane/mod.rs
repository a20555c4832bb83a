//! A lane: one append position of a streamlet (the papers' "entry", thesis 6.2.1), a chain of groups of segments.
//!
//! One lock per lane. Appends hold it for the copy; reads hold it to find and pin segments, and copy nothing. Order of
//! locks: a lane's before the arena's and before that of the list of open lanes; never two lanes' at once; observers of the lane, and the store but for
//! [`crate::SegmentStore::closed`], are called with none held.

mod append;
mod spent;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kera_format::{Cursor, GroupId, LaneId, ProducerEpoch, ProducerId, SegmentId, SegmentIndex, StreamId, StreamletId};
use parking_lot::Mutex;

use crate::cut_off::CutOff;
use crate::group::{At, Chain, GroupInfo, SegmentInfo, Slot, Summary, ahead_of};
use crate::producers::{LaneProducer, Producers};
use crate::rebuild::Rebuilding;
use crate::segment::Segment;
use crate::shared::Shared;
use crate::sink::{DurabilitySink, Ticket};
use crate::streamlet::StreamletShared;
use crate::tenure::Tenure;
use crate::visibility::Visibility;
use crate::waiters::{LaneVersion, Observer, Waiters};

pub use append::{AppendError, Appended};
pub(crate) use spent::Spent;

/// A lane among all of a node.
pub(crate) type LaneName = (StreamId, StreamletId, LaneId);

#[cfg(test)]
thread_local! {
    /// How many lanes were looked at for whether they have an open segment.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How much is in a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneStats {
    /// Ordinal of the first record that is there.
    pub first_ordinal: u64,
    /// Ordinal that the next record gets.
    pub next_ordinal: u64,
    /// Up to which ordinal readers see.
    pub durable_ordinal: u64,
    /// Bytes of all segments, headers included.
    pub bytes: u64,
    /// Of those, in memory: whole blocks.
    pub memory_bytes: u64,
    /// Of those, on disk.
    pub disk_bytes: u64,
    /// Append time of the last chunk; 0 if there was none.
    pub last_append_ms: i64,
    /// Groups.
    pub groups: u64,
    /// Segments.
    pub segments: u64,
    /// Records below have been compared with all that came after them up to here.
    pub compacted_ordinal: u64,
    /// Bytes of segments behind, the open one included.
    pub uncompacted_bytes: u64,
}

/// A segment that has room for fewer chunks than this, of the size of its last, is closed early when memory is short: of larger
/// ones what is lost if smaller chunks follow would be worth more than what is gained.
const SPENT_CHUNKS: u32 = 4;

/// The segment that takes appends, with what is needed for the next one at hand.
pub(crate) struct Open {
    pub(crate) segment: Arc<Segment>,
    pub(crate) head: u32,
    pub(crate) capacity: u32,
    pub(crate) chunk_count: u32,
    pub(crate) opened_ms: i64,
    /// When it was opened or appended to last, by the clock and not by the lane's append times, which never fall.
    pub(crate) used_ms: i64,
    /// Where its chunks must go before they are durable; `None`: they are at once.
    pub(crate) sink: Option<Arc<dyn DurabilitySink>>,
}

impl Open {
    /// Its times, as far as they are ahead of a clock that was set back since, begin now: else it would stay open for as long.
    pub(crate) fn set_back(&mut self, now_ms: i64) {
        let ahead_ms = ahead_of(now_ms);
        for ms in [&mut self.opened_ms, &mut self.used_ms] {
            if *ms > ahead_ms {
                *ms = now_ms;
            }
        }
    }

    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.capacity - self.head
    }

    /// Whether it is small for chunks of so many bytes and has no room for another one: kept open it would only hold memory
    /// until the lane's next chunk closes it.
    #[inline]
    pub(crate) fn is_spent(&self, bytes: u32) -> bool {
        self.room() < bytes && self.capacity / SPENT_CHUNKS < bytes
    }
}

/// What was appended since the lane was made or rebuilt.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    pub(crate) records: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, more: &Counts) {
        self.chunks += more.chunks;
        self.bytes += more.bytes;
        self.records += more.records;
    }
}

/// Everything of a lane that changes together.
#[derive(Default)]
pub(crate) struct LaneState {
    pub(crate) chain: Chain,
    /// The last segment of the last group, if it takes appends.
    pub(crate) open: Option<Open>,
    /// The lane is among [`Shared::open_lanes`]: it has such a segment, or had one when it was looked last.
    pub(crate) is_listed: bool,
    pub(crate) next_ordinal: u64,
    pub(crate) last_append_ms: i64,
    pub(crate) version: u64,
    pub(crate) waiters: Waiters,
    pub(crate) producers: Producers,
    /// Closed segments that are not durable to their end, and those behind them, oldest first.
    pub(crate) unsettled: VecDeque<Arc<Segment>>,
    pub(crate) last_ticket: Option<Ticket>,
    pub(crate) consumed_floor: Option<Cursor>,
    /// What was in front the node has let go of itself, in this life or an earlier one: retention has taken it, or it was deleted.
    pub(crate) let_go_to: u64,
    /// Records below have been compared with all that came after them up to here, since the start.
    pub(crate) compacted_to: u64,
    /// Segments that end up to here may have been compacted before something in front of them was here; zero: none.
    pub(crate) joined_to: u64,
    /// Segments from before that stay, and are to be given to the streamlet's log: see [`Streamlet::keep`](crate::Streamlet::keep).
    pub(crate) kept: Vec<SegmentId>,
    /// How often something was put in front of what was there, or cut off behind.
    pub(crate) reshaped: u64,
    /// Size class of the last segment, and the lane's rate while it was open.
    pub(crate) class_bytes: u64,
    pub(crate) bytes_per_s: u64,
    /// It filled its last segment, for the most part: it is worth having memory touched ahead.
    pub(crate) fills: bool,
    pub(crate) deleted: bool,
    /// While old segments come from backups.
    pub(crate) rebuilding: Option<Box<Rebuilding>>,
    /// What a start has cut off, while it may still count.
    pub(crate) cut_off: Option<Box<CutOff>>,
    pub(crate) counts: Counts,
}

impl LaneState {
    /// Ordinal of the first record that is there; without any that of the next.
    pub(crate) fn first_ordinal(&self) -> u64 {
        self.chain.first().map_or(self.next_ordinal, |at| self.chain.slot(at).summary().base_ordinal)
    }
}

/// A lane of a streamlet.
pub struct Lane {
    pub(crate) id: LaneId,
    pub(crate) home: Arc<StreamletShared>,
    pub(crate) state: Mutex<LaneState>,
    pub(crate) durable_ordinal: AtomicU64,
    /// Closed segments whose records are all below may go.
    pub(crate) floor_ordinal: AtomicU64,
    /// On the list of lanes that [`crate::made_durable`] is about to wake.
    pub(crate) settling: AtomicBool,
    /// In which owner epoch it [says everything by itself](Lane::says_everything_in).
    pub(crate) everything_in: AtomicU32,
    pub(crate) duplicates: AtomicU64,
    /// Bytes of what is new that readers got.
    pub(crate) read_new: AtomicU64,
    pub(crate) visibility: OnceLock<Arc<dyn Visibility>>,
}

impl Lane {
    pub(crate) fn new(id: LaneId, home: Arc<StreamletShared>) -> Arc<Lane> {
        home.stream.lanes.fetch_add(1, Ordering::Relaxed);
        let producers = Producers::within(Arc::clone(&home.stream.log.producer_room));
        let deleted = home.stream.deleted.load(Ordering::Acquire);
        let state = LaneState { deleted, producers, ..LaneState::default() };
        Arc::new(Lane {
            id,
            home,
            state: Mutex::new(state),
            durable_ordinal: AtomicU64::new(0),
            floor_ordinal: AtomicU64::new(0),
            settling: AtomicBool::new(false),
            everything_in: AtomicU32::new(0),
            duplicates: AtomicU64::new(0),
            read_new: AtomicU64::new(0),
            visibility: OnceLock::new(),
        })
    }

    /// The stream.
    #[inline]
    pub fn stream_id(&self) -> StreamId {
        self.home.stream.id
    }
    /// The streamlet.
    #[inline]
    pub fn streamlet_id(&self) -> StreamletId {
        self.home.id
    }
    /// Its number in the streamlet.
    #[inline]
    pub fn id(&self) -> LaneId {
        self.id
    }
    /// What makes chunks durable that are appended now; `None` if the stream never had durability `power` since the start. What was
    /// appended before may be [in another log](Lane::sink_of).
    pub fn sink(&self) -> Option<&Arc<dyn DurabilitySink>> {
        self.home.used_sink()
    }

    /// What the ticket of an [append](Appended) belongs to, by the [number](Appended::log) of its log.
    pub fn sink_of(&self, log: u8) -> Option<&Arc<dyn DurabilitySink>> {
        self.home.sink_at(log)
    }

    /// How many copies there are of what is acknowledged: see [`Streamlet::copies`](crate::Streamlet::copies).
    pub fn copies(&self) -> u32 {
        self.home.copies()
    }

    /// Whether a producer may be answered now for what it has appended to the lane, before that is durable: the stream is replicated
    /// asynchronously, and its copies do not lag too far behind. Only for answers to producers that accept the loss of what has no copies.
    #[inline]
    pub fn may_answer_early(&self) -> bool {
        self.home.stream.is_async() && self.sink().is_some_and(|sink| sink.may_answer_early())
    }

    /// The name of one of its segments.
    pub(crate) fn segment_id(&self, group: GroupId, index: u32) -> SegmentId {
        let (stream, streamlet) = (self.stream_id(), self.streamlet_id());
        SegmentId { stream, streamlet, lane: self.id, group, index: SegmentIndex(index) }
    }

    #[inline]
    pub(crate) fn log(&self) -> &Shared {
        &self.home.stream.log
    }

    /// The lane's last segment takes appends from here on.
    pub(crate) fn set_open(&self, state: &mut LaneState, open: Open) {
        self.log().segments_open.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut state.is_listed, true) {
            self.log().open_lanes.lock().insert((self.stream_id(), self.streamlet_id(), self.id));
        }
        state.open = Some(open);
    }

    /// Whether a segment takes appends. A lane that is listed and has none is not any more from here on.
    pub(crate) fn is_open(&self) -> bool {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        let mut state = self.state.lock();
        let is_open = state.open.is_some();
        if !is_open && std::mem::take(&mut state.is_listed) {
            self.log().open_lanes.lock().remove(&(self.stream_id(), self.streamlet_id(), self.id));
        }
        is_open
    }

    /// No segment takes appends from here on.
    pub(crate) fn take_open(&self, state: &mut LaneState) -> Option<Open> {
        let open = state.open.take()?;
        self.log().segments_open.fetch_sub(1, Ordering::Relaxed);
        Some(open)
    }

    /// Up to which ordinal readers see.
    #[inline]
    pub fn durable_ordinal(&self) -> u64 {
        self.durable_ordinal.load(Ordering::Acquire)
    }

    /// The ordinal of the record that is appended next, whether or not those in front of it are durable.
    pub fn next_ordinal(&self) -> u64 {
        self.state.lock().next_ordinal
    }

    /// Records below this are deleted. What is left of a segment can still be read: who shows the lane to others sees to it.
    #[inline]
    pub fn floor_ordinal(&self) -> u64 {
        self.floor_ordinal.load(Ordering::Acquire)
    }

    /// Deletes records below `ordinal`: retention lets go of the segments that have no others. It never falls; it is not
    /// stored, and 0 after a start.
    pub fn raise_floor(&self, ordinal: u64) {
        self.floor_ordinal.fetch_max(ordinal, Ordering::AcqRel);
        self.home.stream.has_floors.store(true, Ordering::Release);
    }

    /// Says where the lane begins as all nodes of a cluster have agreed, before its streamlet is [opened](crate::Streamlet::open) here or while
    /// it is elsewhere. Of one that is here it never falls: what its owner has deleted stays so. Like [`raise_floor`](Lane::raise_floor).
    pub fn agree_floor(&self, ordinal: u64) {
        match self.home.tenure.tenure() {
            Tenure::Elsewhere => self.floor_ordinal.store(ordinal, Ordering::Release),
            Tenure::Here | Tenure::LettingGo => {
                self.floor_ordinal.fetch_max(ordinal.min(self.durable_ordinal()), Ordering::AcqRel);
            }
        }
        self.home.stream.has_floors.store(true, Ordering::Release);
    }

    /// Calls `observer` once when a reader could see something else than in state `seen` (data, a loaded segment, retention,
    /// the stream's end). False, and no call, if it could already: read again instead. No wake-up is lost, see
    /// [`crate::Observer`]'s module.
    ///
    /// The observer is kept weakly, and registering again with the same token costs little and does not pile up: a session
    /// that waits for many lanes may register at all of them each time.
    pub fn wait(&self, seen: LaneVersion, observer: &Arc<dyn Observer>, token: u64) -> bool {
        let mut state = self.state.lock();
        if state.version != seen.0 {
            return false;
        }
        state.waiters.push(observer, token);
        true
    }

    /// Part of [`crate::made_durable`]: durable heads of this lane have moved.
    pub(crate) fn settle(&self) {
        self.settling.store(false, Ordering::Release);
        let mut state = self.state.lock();
        while state.unsettled.front().is_some_and(|segment| segment.is_settled()) {
            if let Some(segment) = state.unsettled.pop_front()
                && !state.deleted
            {
                self.log().hand_over(&segment);
            }
        }
        if state.unsettled.is_empty() {
            // Nothing is in the way of what was durable at once behind chunks that were not.
            let through = match &state.open {
                Some(Open { segment, sink: Some(_), .. }) => segment.base_ordinal(),
                _ => state.next_ordinal,
            };
            self.durable_ordinal.fetch_max(through, Ordering::Release);
        }
        state.version += 1;
        let wake = state.waiters.take();
        drop(state);
        wake.call();
    }

    /// Closes the open segment and its group: the next append opens another. A change of durability, a graceful stop.
    pub fn close_group(&self) {
        let mut state = self.state.lock();
        if let Some(group) = state.chain.groups.back_mut() {
            group.closed = true;
        }
        let now_ms = state.last_append_ms;
        self.close_open(&mut state, now_ms);
        state.version += 1;
        let wake = state.waiters.take();
        drop(state);
        wake.call();
    }

    /// Whether no segment is open, or waits for its sink before it goes to the store.
    pub(crate) fn has_given_all(&self) -> bool {
        let state = self.state.lock();
        state.open.is_none() && state.unsettled.is_empty()
    }

    /// Changes a segment's slot under the lock, then wakes whoever waits; `None` if the lane has no such segment.
    pub(crate) fn with_slot<T>(&self, id: SegmentId, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let at = state.chain.find(id.group, id.index)?;
        let slot = state.chain.slot_mut(at);
        let was = slot.rewriting();
        let done = change(slot);
        if slot.rewriting() != was {
            state.chain.is_new((id.group, id.index.0));
        }
        state.version += 1;
        let wake = state.waiters.take();
        drop(state);
        wake.call();
        Some(done)
    }

    /// Drops everything: the stream is deleted.
    pub(crate) fn delete(&self) {
        let mut state = self.state.lock();
        state.deleted = true;
        state.rebuilding = None;
        state.version += 1;
        let chain = std::mem::take(&mut state.chain);
        self.take_open(&mut state);
        state.unsettled.clear();
        state.producers.reset();
        self.log().retire(std::mem::take(&mut state.counts), self.duplicates.swap(0, Ordering::Relaxed));
        let wake = state.waiters.take();
        drop(state);
        wake.call();
        for group in chain.groups {
            for slot in group.slots {
                let id = self.segment_id(group.id, slot.index);
                if let Some(segment) = slot.memory {
                    segment.disown();
                }
                if slot.stale.is_some() {
                    self.log().release(id, slot.stale);
                }
                self.log().release(id, slot.at);
            }
        }
    }

    /// Up to `limit` of its groups, in order, from the first with an id above `after` on.
    pub fn groups(&self, after: GroupId, limit: usize) -> Vec<GroupInfo> {
        let state = self.state.lock();
        let from = state.chain.groups.partition_point(|group| group.id <= after);
        state.chain.groups.range(from..).take(limit).filter_map(|group| group.info(self.durable_ordinal())).collect()
    }

    /// One of its groups.
    pub fn group(&self, id: GroupId) -> Option<GroupInfo> {
        let state = self.state.lock();
        let at = state.chain.find_group(id)?;
        state.chain.groups[at].info(self.durable_ordinal())
    }

    /// Up to `limit` segments of a group, in order, behind `after`; `None` if the lane does not have the group.
    pub fn segments(&self, group: GroupId, after: Option<SegmentIndex>, limit: usize) -> Option<Vec<SegmentInfo>> {
        let state = self.state.lock();
        let slots = &state.chain.groups[state.chain.find_group(group)?].slots;
        let from = slots.partition_point(|slot| after.is_some_and(|after| slot.index <= after.0));
        Some(slots.range(from..).take(limit).map(|slot| slot.info(self.durable_ordinal())).collect())
    }

    /// The lane's state as of now, for [`Lane::wait`] without a read.
    pub fn version(&self) -> LaneVersion {
        LaneVersion(self.state.lock().version)
    }

    /// A producer goes on with this epoch, from number 0: see [`crate::producers`]. In memory only: after a restart the lane
    /// knows what chunks say.
    pub fn raise_producer_epoch(&self, id: ProducerId, epoch: ProducerEpoch) {
        self.state.lock().producers.raise_epoch(id, epoch);
    }

    /// Whether the lane remembers anything of a producer.
    pub fn knows_producer(&self, id: ProducerId) -> bool {
        self.state.lock().producers.knows(id)
    }

    /// The producers that wrote last, the latest first, so many at most.
    pub fn producers(&self, limit: usize) -> Vec<LaneProducer> {
        self.state.lock().producers.latest(limit)
    }

    /// How much is in it.
    pub fn stats(&self) -> LaneStats {
        let state = self.state.lock();
        let mut stats = LaneStats {
            next_ordinal: state.next_ordinal,
            durable_ordinal: self.durable_ordinal(),
            groups: state.chain.groups.len() as u64,
            last_append_ms: state.last_append_ms,
            ..LaneStats::default()
        };
        stats.first_ordinal = state.first_ordinal();
        let is_compacted =
            |at: &At| state.chain.slot(*at).summary().compacted_ms.is_some() && self.is_compared(&state, at.group);
        let compacted = state.chain.from(state.chain.first()).take_while(is_compacted).last();
        let compacted = compacted.map_or(0, |at| state.chain.slot(at).summary().next_ordinal);
        stats.compacted_ordinal = state.compacted_to.max(compacted);
        for at in state.chain.from(state.chain.first()) {
            let slot = state.chain.slot(at);
            let Summary { head, next_ordinal, .. } = slot.summary();
            stats.segments += 1;
            stats.bytes += u64::from(head);
            stats.uncompacted_bytes += if next_ordinal > stats.compacted_ordinal { head.into() } else { 0 };
            stats.disk_bytes += slot.at.map_or(0, |at| at.bytes);
            stats.memory_bytes += slot.memory.as_ref().map_or(0, |segment| segment.block_bytes());
        }
        stats
    }

    /// Where the slowest named application is: with `retention_consumed` closed groups below may go. `None`: no
    /// application is known, nothing goes for that reason.
    pub fn set_consumed_floor(&self, floor: Option<Cursor>) {
        self.state.lock().consumed_floor = floor;
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({}/{}/{})", self.stream_id(), self.streamlet_id(), self.id)
    }
}
