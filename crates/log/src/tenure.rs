//! Whose a streamlet is, as far as its lanes must know: whether they take appends, in which owner epoch groups are opened, and
//! what goes from one owner to the next (`docs/replication.md`, "A streamlet moves").
//!
//! Told by the broker, from any thread. A node that is alone never calls anything here: all its streamlets are here, and groups
//! are opened in the node's epoch. Lanes look at one word of their streamlet with each append, under their own lock; that is what
//! makes letting go exact: [`Streamlet::let_go`] changes the word and then takes each lane's lock once, so an append has either been counted in
//! the lane's ordinals by then or sees the word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use kera_format::{Cursor, LaneId, ProducerEpoch, ProducerId};

use crate::group::GroupInfo;
use crate::lane::Lane;
use crate::producers::Reach;
use crate::sink::DurabilitySink;
use crate::streamlet::{OWN_LOGS_MAX, Streamlet};

/// Where a streamlet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tenure {
    /// On this node: it takes appends.
    Here,
    /// On this node, which is about to give it to another: appends wait.
    LettingGo,
    /// On another node, or nowhere. What was written here is still read here.
    Elsewhere,
}

/// Other nodes have groups of the streamlet, older or later ones.
const SHARED: u64 = 1 << 40;
const PHASE: u32 = 32;

/// A streamlet's word: owner epoch, tenure, and whether others have groups.
#[derive(Debug, Default)]
pub(crate) struct TenureWord(AtomicU64);

impl TenureWord {
    pub(crate) fn new(tenure: Tenure) -> TenureWord {
        let word = TenureWord::default();
        word.set(tenure, 0, tenure == Tenure::Elsewhere);
        word
    }

    fn set(&self, tenure: Tenure, epoch: u32, shared: bool) {
        let shared = if shared { SHARED } else { 0 };
        self.0.store(u64::from(epoch) | (tenure as u64) << PHASE | shared, Ordering::Release);
    }

    /// Changes nothing but whether others have groups, which they always may while it is not here. Others may let go of it at the same time.
    fn set_shared(&self, shared: bool) {
        let change = |word| {
            let is_here = (word >> PHASE) & 3 == Tenure::Here as u64;
            Some(if shared || !is_here { word | SHARED } else { word & !SHARED })
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        (self.0.load(Ordering::Acquire) >> PHASE) & 3 == Tenure::Here as u64
    }

    /// Whether the streamlet is here and nobody else has anything of it.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.0.load(Ordering::Acquire) >> PHASE == Tenure::Here as u64
    }

    pub(crate) fn tenure(&self) -> Tenure {
        match (self.0.load(Ordering::Acquire) >> PHASE) & 3 {
            0 => Tenure::Here,
            1 => Tenure::LettingGo,
            _ => Tenure::Elsewhere,
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.0.load(Ordering::Acquire) as u32
    }
}

/// One of a producer's last chunks, as it goes to the next owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// Its sequence.
    pub sequence: u64,
    /// Ordinal of its first record.
    pub base_ordinal: u64,
    /// Where it is, at the owner that took it.
    pub cursor: Cursor,
}

/// What a lane knows of a producer, as it goes to the next owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerHandover {
    /// The producer.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// The sequence of its last chunk.
    pub sequence: u64,
    /// Its last chunks, oldest first.
    pub chunks: Vec<ChunkPlace>,
}

/// What the next owner of a lane must know before it takes appends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneHandover {
    /// The lane.
    pub lane: LaneId,
    /// Ordinal of the next record.
    pub next_ordinal: u64,
    /// Append time of the last chunk.
    pub last_append_ms: i64,
    /// Producers that are not in the list may have written.
    pub forgot: bool,
    /// Chunks in front of this ordinal are missing, and nobody knows whose they were; zero: none. Then it has forgotten some, too.
    pub hole_end: u64,
    /// Producers, the one that was silent longest first.
    pub producers: Vec<ProducerHandover>,
    /// The groups that stay where they are.
    pub groups: Vec<GroupInfo>,
}

/// Why a streamlet does not change its tenure.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TenureError {
    /// The owner epoch is not above those of all groups that are here.
    #[error("owner epoch is {epoch}, and lane {lane} has groups of epoch {highest}: a later one is needed")]
    StaleEpoch {
        /// The epoch that was told.
        epoch: u32,
        /// A lane with later groups.
        lane: LaneId,
        /// Their epoch.
        highest: u32,
    },
    /// Not in this tenure.
    #[error("the streamlet is {is:?}, it must be {must:?} for this")]
    Wrong {
        /// What it is.
        is: Tenure,
        /// What it must be.
        must: Tenure,
    },
    /// A streamlet has not so many logs of its own.
    #[error("there is no log {0} of a streamlet's own, {OWN_LOGS_MAX} is the most")]
    NoSuchLog(u8),
    /// The state names a lane that the stream does not have.
    #[error("lane {0} is not a lane of the stream")]
    UnknownLane(LaneId),
}

impl Streamlet {
    /// Where it is.
    pub fn tenure(&self) -> Tenure {
        self.word().tenure()
    }

    /// The owner epoch that groups are opened in; zero: in the node's epoch.
    pub fn owner_epoch(&self) -> u32 {
        self.word().epoch()
    }

    fn must_be(&self, must: Tenure) -> Result<(), TenureError> {
        let is = self.tenure();
        if is == must { Ok(()) } else { Err(TenureError::Wrong { is, must }) }
    }

    /// This node becomes the owner: groups are opened in `epoch`, which must be above those of all groups that are here; `shared`: others have
    /// groups of it. What an earlier owner handed over is [received](Streamlet::receive) before.
    /// Where its lanes begin was [agreed](Lane::agree_floor) before, too.
    pub fn open(&self, epoch: u32, shared: bool) -> Result<(), TenureError> {
        self.must_be(Tenure::Elsewhere)?;
        for lane in self.all_lanes() {
            let state = lane.state.lock();
            let highest = state.chain.groups.back().map_or(0, |group| group.id.epoch());
            if highest >= epoch {
                return Err(TenureError::StaleEpoch { epoch, lane: lane.id(), highest });
            }
        }
        for lane in self.lanes() {
            let mut state = lane.state.lock();
            lane.let_go_of_cut_off(&mut state);
            // A lane that has come back shorter than it was begins at its end: what is appended next is seen.
            lane.floor_ordinal.fetch_min(state.next_ordinal, Ordering::AcqRel);
        }
        self.word().set(Tenure::Here, epoch, shared);
        self.all_lanes().for_each(|lane| lane.wake());
        Ok(())
    }

    /// In which log it is: `None`: the one that its stream and number give it, otherwise the number of one that it was [put
    /// into](Streamlet::put_in).
    pub fn own_log(&self) -> Option<u8> {
        self.shared().own_log()
    }

    /// What makes durable what is appended to it now; `None` if nothing was to be appended there since the start. What was appended before may be in another log.
    pub fn sink(&self) -> Option<&Arc<dyn DurabilitySink>> {
        self.shared().sink_at(self.shared().log_number())
    }

    /// How many copies there are of what is acknowledged here, this node's included: what the stream says, but while that changes.
    pub fn copies(&self) -> u32 {
        self.shared().copies()
    }

    /// Whether what is appended becomes durable in the log with so many copies that the streamlet shares with others, and all that is there has them.
    pub fn is_in_log_of(&self, copies: u32) -> bool {
        copies == self.copies() && self.shared().is_in_shared_log(copies)
    }

    /// It has so many copies from now on, and what is appended becomes durable in a log with as many. For whoever knows that all that was appended has them,
    /// before it is [opened](Streamlet::open) in a later owner epoch, or before anything is recovered. It is in none of its [own](Streamlet::own_log)
    /// logs then. Nothing if it has.
    pub fn set_copies(&self, copies: u32) {
        if self.is_in_log_of(copies) {
            return;
        }
        self.shared().set_copies(copies);
        // What they stand for is in the other log, and durable.
        self.all_lanes().for_each(|lane| lane.state.lock().last_ticket = None);
    }

    /// Has what is appended from now on become durable in another log: `own` with its number below [`OWN_LOGS_MAX`], or the usual one. A number
    /// means the same log as long as the process lives. Before it is [opened](Streamlet::open), in a later owner epoch than all that it has:
    /// a recovery tells what is missing between two logs by that. Whoever asks makes sure that it [is settled](Streamlet::is_settled), or
    /// something in the second log would be acknowledged before something in the first. Nothing if it is in that log.
    pub fn put_in(&self, own: Option<(u8, Arc<dyn DurabilitySink>)>) -> Result<(), TenureError> {
        let number = own.as_ref().map(|(number, _)| *number);
        if number == self.own_log() {
            return Ok(());
        }
        if let Some(number) = number.filter(|number| usize::from(*number) >= OWN_LOGS_MAX) {
            return Err(TenureError::NoSuchLog(number));
        }
        self.must_be(Tenure::Elsewhere)?;
        self.shared().set_log(own);
        // What they stand for is in the other log, and durable.
        self.all_lanes().for_each(|lane| lane.state.lock().last_ticket = None);
        Ok(())
    }

    /// Others have come to have groups of it, or have them no more. Nothing else changes.
    pub fn set_shared(&self, shared: bool) {
        self.word().set_shared(shared);
    }

    /// From the return on nothing is appended; open groups are closed. What was appended becomes durable as always:
    /// see [`is_settled`](Streamlet::is_settled).
    pub fn let_go(&self) -> Result<(), TenureError> {
        self.must_be(Tenure::Here)?;
        self.word().set(Tenure::LettingGo, self.owner_epoch(), true);
        // A lane that is made now is either seen by this walk, or its first append sees the word behind a fence.
        fence(Ordering::SeqCst);
        self.all_lanes().for_each(|lane| lane.close_group());
        Ok(())
    }

    /// Whether all that was appended is durable. While it is let go it then stays so.
    pub fn is_settled(&self) -> bool {
        self.all_lanes().all(|lane| {
            let next_ordinal = lane.state.lock().next_ordinal;
            lane.durable_ordinal() >= next_ordinal
        })
    }

    /// What the next owner must know: of lanes that were ever written to. Final once it is let go and settled.
    pub fn hand_over(&self) -> Vec<LaneHandover> {
        let lanes = self.all_lanes().filter_map(|lane| lane.hand_over());
        lanes.collect()
    }

    /// The move is called off: appends go on, in the same epoch.
    pub fn resume(&self, shared: bool) -> Result<(), TenureError> {
        self.must_be(Tenure::LettingGo)?;
        self.word().set(Tenure::Here, self.owner_epoch(), shared);
        self.all_lanes().for_each(|lane| lane.wake());
        Ok(())
    }

    /// It belongs to another node from here on, whatever it was. Readers at the end of what is here are woken.
    pub fn leave(&self) {
        self.word().set(Tenure::Elsewhere, self.owner_epoch(), true);
        fence(Ordering::SeqCst);
        self.all_lanes().for_each(|lane| lane.close_group());
    }

    /// Takes what the last owner handed over, before [`open`](Streamlet::open). Asked for again, also after a restart in which the lanes have
    /// come back with what was written since, it changes nothing.
    pub fn receive(&self, lanes: &[LaneHandover]) -> Result<(), TenureError> {
        self.must_be(Tenure::Elsewhere)?;
        for handover in lanes {
            let lane = self.any_lane(handover.lane).ok_or(TenureError::UnknownLane(handover.lane))?;
            lane.receive(handover);
            lane.fill_hole(handover);
        }
        Ok(())
    }
}

impl Lane {
    /// Whether its streamlet is here and no other node has any of its groups: what nearly all are.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.home.tenure.is_plain()
    }

    /// Where its streamlet is.
    pub fn tenure(&self) -> Tenure {
        self.home.tenure.tenure()
    }

    /// The owner epoch that its groups are opened in; zero: in the node's epoch.
    pub fn owner_epoch(&self) -> u32 {
        self.home.tenure.epoch()
    }

    /// Whoever keeps something in it has written all of that anew in this owner epoch, durably: nobody needs what other nodes have of it.
    pub fn says_everything_in(&self, owner_epoch: u32) {
        self.everything_in.store(owner_epoch, Ordering::Release);
    }

    /// Whether [that was said](Lane::says_everything_in) in the epoch of its present owner.
    pub fn says_everything(&self) -> bool {
        let said = self.everything_in.load(Ordering::Acquire);
        said != 0 && said == self.owner_epoch()
    }

    /// The epoch that its groups are opened in: the owner's or, without one, the node's.
    pub fn epoch(&self) -> u32 {
        self.home.epoch()
    }

    /// Whoever waits looks again: what may be read has changed, though nothing was appended.
    pub fn wake(&self) {
        let mut state = self.state.lock();
        state.version += 1;
        let wake = state.waiters.take();
        drop(state);
        wake.call();
    }

    fn hand_over(&self) -> Option<LaneHandover> {
        let state = self.state.lock();
        if state.next_ordinal == 0 {
            return None;
        }
        let (producers, forgot) = state.producers.hand_over();
        let durable = self.durable_ordinal();
        // What is in the lane of progress goes to the next owner as a whole, by the broker: nobody comes back for its groups.
        let stays = self.id() != LaneId::PROGRESS;
        let groups = state.chain.groups.iter().filter(|_| stays).filter_map(|group| group.info(durable)).collect();
        Some(LaneHandover {
            lane: self.id(),
            next_ordinal: state.next_ordinal,
            last_append_ms: state.last_append_ms,
            forgot,
            hole_end: state.producers.hole_end(),
            producers,
            groups,
        })
    }

    pub(crate) fn receive(self: &Arc<Self>, handover: &LaneHandover) {
        let limit = self.log().config.producers_per_lane_max;
        let mut state = self.state.lock();
        let later = state.next_ordinal < handover.next_ordinal;
        let reach = match later {
            true => Reach::Further,
            false if state.chain.has_all(handover.next_ordinal, state.next_ordinal) => Reach::Joined,
            false => Reach::Apart,
        };
        state.producers.receive(&handover.producers, handover.forgot, reach, limit);
        if handover.hole_end > 0 {
            state.producers.set_hole(handover.hole_end);
        }
        state.last_append_ms = state.last_append_ms.max(handover.last_append_ms);
        if later {
            state.next_ordinal = handover.next_ordinal;
            self.durable_ordinal.fetch_max(handover.next_ordinal, Ordering::Release);
        }
        state.version += 1;
        let wake = state.waiters.take();
        drop(state);
        wake.call();
    }

    /// An owner that has forgotten nobody knew whose all chunks are in front of the end of what it hands over: what is missing of them here it
    /// has, or has known.
    fn fill_hole(&self, handover: &LaneHandover) {
        if !handover.forgot {
            self.state.lock().producers.fill_hole(handover.next_ordinal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn who_says_that_others_have_groups_does_not_take_back_what_becomes_of_the_streamlet_meanwhile() {
        let word = TenureWord::new(Tenure::Here);
        let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let wrong = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    word.set_shared(true);
                    word.set_shared(false);
                    begins.store(true, Ordering::Relaxed);
                }
            });
            while !begins.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let mut wrong = 0;
            for epoch in 0..1_000_000 {
                for tenure in [Tenure::LettingGo, Tenure::Here] {
                    word.set(tenure, epoch, true);
                    // Long enough for the other thread to store what it had read before.
                    let is_so = (0..20).all(|_| (word.tenure(), word.epoch()) == (tenure, epoch));
                    wrong += u64::from(!is_so);
                }
            }
            ends.store(true, Ordering::Relaxed);
            wrong
        });
        assert_eq!(wrong, 0);
        word.set(Tenure::LettingGo, 1, true);
        word.set_shared(false);
        assert!(!word.is_plain());
        word.set(Tenure::Here, 1, true);
        assert!(!word.is_plain());
        word.set_shared(false);
        assert!(word.is_plain());
    }
}
