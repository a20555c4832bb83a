//! Giving segments to a sink once more, so that copies elsewhere are where they should be: when a backup was lost that had some of
//! them, or when old ones hold back space (`docs/replication.md`, "What a backup keeps, and for how long").
//!
//! What is settled is given again, as what is rebuilt is: closed, durable, its bytes never change, so it may come behind what is
//! newer. Recovery puts chunks together by their places and does not mind that one is there twice. Whoever asks for it waits for the
//! ticket, and only then lets go of the older copies: a node that is lost in between is recovered from those.
//!
//! A compacted segment goes in [pieces](kera_format::piece) as it is, in the lane's order: decision 35.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kera_format::{GroupId, SegmentId};

use crate::Lane;
use crate::group::Slot;
use crate::lane::LaneState;
use crate::log::Log;
use crate::rebuild::address_of;
use crate::sink::{DurabilitySink, Ticket};

/// What became of a segment that was to be copied again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopiedAgain {
    /// Its chunks are with the sink; when the ticket is durable they have all their copies. Bytes of the chunks.
    Given(Ticket, u32),
    /// Not now: it was open and is closed from here on, or comes back from disk, or its lane is being rebuilt. Ask again soon.
    Later,
    /// There is no such segment any more, or there are no chunks in it.
    Gone,
    /// It was compacted, and so was this one in front of it, which is to be given first.
    Behind(SegmentId),
    /// It was compacted, and not every node would understand that, or it cannot be put into a row of pieces: it stays where it is.
    Never,
}

impl Log {
    /// Gives the chunks of a segment to a sink once more: to the one whose older blocks are not to be needed for it, which need not be
    /// the one that its streamlet is in now. Any thread; blocks for the lane's lock only. The segment stays in memory until the sink has
    /// written it.
    pub fn copy_again(&self, id: SegmentId, sink: &dyn DurabilitySink) -> CopiedAgain {
        let Some(lane) = self.lane_of(id) else { return CopiedAgain::Gone };
        let mut state = lane.state.lock();
        if state.is_rebuilding() {
            return CopiedAgain::Later;
        }
        let Some(at) = state.chain.find(id.group, id.index) else { return CopiedAgain::Gone };
        let slot = state.chain.slot_mut(at);
        let is_compacted = slot.summary().is_compacted;
        if is_compacted && !self.shared.copies_compacted.load(Ordering::Relaxed) {
            return CopiedAgain::Never;
        }
        if slot.open {
            drop(state);
            lane.close_segment(id);
            return CopiedAgain::Later;
        }
        match slot.memory.clone() {
            Some(segment) if segment.is_settled() => {
                if is_compacted && let Some(first) = lane.uncopied_before(&mut state, id, sink) {
                    return CopiedAgain::Behind(first);
                }
                drop(state);
                match lane.replicate(&segment, sink) {
                    Some(ticket) => CopiedAgain::Given(ticket, segment.head()),
                    None if is_compacted => CopiedAgain::Never,
                    None => CopiedAgain::Gone,
                }
            }
            Some(_) => CopiedAgain::Later,
            None => {
                if let Some(reason) = slot.failed.take() {
                    tracing::warn!(segment = %id, %reason, "a segment cannot be copied again, because it cannot be read");
                    return CopiedAgain::Later;
                }
                let load = slot.at.filter(|_| !std::mem::replace(&mut slot.loading, true));
                drop(state);
                if let (Some(at), Some(store)) = (load, self.shared.store.get()) {
                    store.load(id, at);
                }
                CopiedAgain::Later
            }
        }
    }

    /// The same behind those that are to be given first, of which `given` is told; if it returns false no more are given for now.
    pub fn copy_again_in_order(
        &self,
        id: SegmentId,
        sink: &dyn DurabilitySink,
        given: &mut dyn FnMut(SegmentId, Ticket, u32) -> bool,
    ) -> CopiedAgain {
        loop {
            let again = self.copy_again(id, sink);
            let CopiedAgain::Behind(first) = again else { return again };
            match self.copy_again(first, sink) {
                CopiedAgain::Given(ticket, bytes) if given(first, ticket, bytes) => {}
                CopiedAgain::Never => return CopiedAgain::Never,
                _ => return CopiedAgain::Later,
            }
        }
    }

    /// From here on compacted segments are copied again: every node understands their [pieces](kera_format::piece).
    pub fn copy_compacted(&self) {
        self.shared.copies_compacted.store(true, Ordering::Relaxed);
    }

    /// Whether they are.
    pub fn copies_compacted(&self) -> bool {
        self.shared.copies_compacted.load(Ordering::Relaxed)
    }

    /// Closed segments of a streamlet's lanes that are in groups of owner epochs below `epoch`, with the open ones.
    pub fn segments_before(&self, streamlet: &crate::Streamlet, epoch: u32) -> Vec<SegmentId> {
        before(streamlet, epoch, |lane, group, slot| lane.segment_id(group, slot.index))
    }

    /// The same without what was rebuilt since this process began: what it came with.
    pub fn returned_segments(&self, streamlet: &crate::Streamlet, epoch: u32) -> Vec<SegmentId> {
        let of = |lane: &Lane, group, slot: &Slot| (!slot.is_rebuilt).then(|| lane.segment_id(group, slot.index));
        before(streamlet, epoch, of).into_iter().flatten().collect()
    }

    /// Segments of a streamlet's lanes to which nothing is appended any more, that of progress included, in the order of each lane.
    pub fn closed_segments(&self, streamlet: &crate::Streamlet) -> Vec<SegmentId> {
        let all =
            before(streamlet, u32::MAX, |lane, group, slot| (!slot.open).then(|| lane.segment_id(group, slot.index)));
        all.into_iter().flatten().collect()
    }

    /// Bytes of the chunks in what it came with.
    pub fn returned_bytes(&self, streamlet: &crate::Streamlet, epoch: u32) -> u64 {
        let of = |_: &Lane, _, slot: &Slot| if slot.is_rebuilt { 0 } else { u64::from(slot.summary().head) };
        before(streamlet, epoch, of).into_iter().sum()
    }
}

impl Lane {
    /// The first compacted segment in front of `id` that was not given to this sink as it is now.
    ///
    /// A tombstone that was removed from one segment hides records in front of it, which were removed before. If its copy were there without
    /// theirs, a recovery would bring those back. What is in front when a segment's image is at hand was rewritten no later than that image,
    /// and a log is cut at its end only: who finds the copy finds theirs.
    fn uncopied_before(&self, state: &mut LaneState, id: SegmentId, sink: &dyn DurabilitySink) -> Option<SegmentId> {
        let uncopied = state.chain.uncopied_before((id.group, id.index.0), address_of(sink));
        uncopied.map(|(group, index)| self.segment_id(group, index))
    }
}

fn before<T>(streamlet: &crate::Streamlet, epoch: u32, of: impl Fn(&Lane, GroupId, &Slot) -> T) -> Vec<T> {
    let of_lane = |lane: &Arc<Lane>| {
        let state = lane.state.lock();
        let groups = state.chain.groups.iter().filter(|group| group.id.epoch() < epoch);
        groups.flat_map(|group| group.slots.iter().map(|slot| of(lane, group.id, slot))).collect::<Vec<_>>()
    };
    streamlet.all_lanes().flat_map(of_lane).collect()
}
