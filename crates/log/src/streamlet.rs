//! A streamlet: the user's logical partition, Q lanes that are made when they are first used.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use kera_format::cluster::COPIES_MAX;
use kera_format::{Durability, GroupId, LaneId, ProducerId, StreamOptions, StreamletId};
use parking_lot::Mutex;

use crate::lane::Lane;
use crate::retention::Room;
use crate::sink::{DurabilitySink, SinkError, SinkErrorKind};
use crate::stream::StreamShared;
use crate::tenure::{Tenure, TenureWord};

/// Logs that a streamlet is in one after the other, as they are counted: its usual one is number 0, and these are behind it.
pub const OWN_LOGS_MAX: usize = 16;

/// A log, once it was needed.
type Chosen = OnceLock<Arc<dyn DurabilitySink>>;

/// Numbers of logs above it are those that make so many copies.
const OF_COPIES: u8 = OWN_LOGS_MAX as u8;

/// What has made the streamlet's chunks durable, and what does now. A log stays what it is as long as the process lives, so that tickets
/// can be asked for when the streamlet has gone to another one.
#[derive(Default)]
struct Sinks {
    /// With how many copies.
    usual: OnceLock<(u32, Arc<dyn DurabilitySink>)>,
    own: OnceLock<Box<[Chosen; OWN_LOGS_MAX]>>,
    /// Those that it is in when it gets another number of copies, by that number.
    of_copies: OnceLock<Box<[Chosen; COPIES_MAX as usize]>>,
    /// Zero: the usual one, otherwise one of its own, from 1, or behind these one of another number of copies.
    now: AtomicU8,
}

impl Sinks {
    fn at(&self, number: u8) -> Option<&Arc<dyn DurabilitySink>> {
        let Some(at) = number.checked_sub(1) else { return self.usual.get().map(|(_, sink)| sink) };
        match at.checked_sub(OF_COPIES) {
            None => self.own.get()?.get(usize::from(at))?.get(),
            Some(at) => self.of_copies.get()?.get(usize::from(at))?.get(),
        }
    }

    /// The number of the log with so many copies that it shares with others.
    fn shared_number(&self, copies: u32) -> u8 {
        match self.usual.get() {
            Some((has, _)) if *has != copies => OF_COPIES + copies.clamp(1, COPIES_MAX) as u8,
            _ => 0,
        }
    }
}

/// What the lanes of a streamlet share.
pub(crate) struct StreamletShared {
    pub(crate) id: StreamletId,
    pub(crate) stream: Arc<StreamShared>,
    /// Groups that were opened in this epoch.
    groups: AtomicU32,
    sinks: Sinks,
    /// See [`Streamlet::copies`]; zero: as its stream says.
    copies: AtomicU32,
    pub(crate) tenure: TenureWord,
    /// Another node is known to own it.
    pub(crate) is_others: AtomicBool,
    /// That node may give it back.
    pub(crate) may_return: AtomicBool,
}

impl StreamletShared {
    /// The epoch of groups that are opened now: that of the owner if one was told, else the node's.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        match self.tenure.epoch() {
            0 => self.stream.log.epoch.load(Ordering::Relaxed),
            epoch => epoch,
        }
    }

    /// A name for a group that is opened now.
    pub(crate) fn next_group(&self) -> GroupId {
        GroupId::new(self.epoch(), self.groups.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// What makes the streamlet's chunks durable that are appended now.
    pub(crate) fn sink(&self) -> Result<&Arc<dyn DurabilitySink>, SinkError> {
        if let Some(sink) = self.sinks.at(self.log_number()) {
            return Ok(sink);
        }
        let Some(sinks) = self.stream.log.sinks.get() else {
            let reason = "durability is power and this node has no virtual log".to_owned();
            return Err(SinkError { kind: SinkErrorKind::Failed, reason, retry_after_ms: 1000 });
        };
        let copies = self.copies();
        let choose = || {
            let options = StreamOptions { replication: copies, ..(*self.stream.options()).clone() };
            sinks.sink(self.stream.id, self.id, &options)
        };
        match self.log_number().checked_sub(OF_COPIES + 1) {
            None => Ok(&self.sinks.usual.get_or_init(|| (copies, choose())).1),
            Some(at) => Ok(self.sinks.of_copies.get_or_init(Box::default)[usize::from(at)].get_or_init(choose)),
        }
    }

    /// How many copies there are of what is acknowledged.
    pub(crate) fn copies(&self) -> u32 {
        match self.copies.load(Ordering::Acquire) {
            0 => self.stream.options().replication,
            copies => copies,
        }
    }

    /// Whether chunks go through a virtual log before they are acknowledged.
    pub(crate) fn is_logged(&self) -> bool {
        self.copies() > 1 || self.stream.options().durability == Durability::Power
    }

    /// The sink, if it was ever needed; one that was, if the present one was not.
    pub(crate) fn used_sink(&self) -> Option<&Arc<dyn DurabilitySink>> {
        let own = || self.sinks.own.get()?.iter().find_map(OnceLock::get);
        let of_copies = || self.sinks.of_copies.get()?.iter().find_map(OnceLock::get);
        let before = || own().or_else(of_copies).or_else(|| self.sinks.at(0));
        self.sinks.at(self.log_number()).or_else(before)
    }

    /// Which of its logs the streamlet is in now.
    #[inline]
    pub(crate) fn log_number(&self) -> u8 {
        self.sinks.now.load(Ordering::Acquire)
    }

    /// One of the logs that it is or was in.
    pub(crate) fn sink_at(&self, number: u8) -> Option<&Arc<dyn DurabilitySink>> {
        self.sinks.at(number)
    }

    /// Has what is appended from now on go to another log: see [`Streamlet::put_in`].
    pub(crate) fn set_log(&self, own: Option<(u8, Arc<dyn DurabilitySink>)>) {
        let number = own.as_ref().map_or_else(|| self.sinks.shared_number(self.copies()), |(at, _)| at + 1);
        if let Some((at, sink)) = own {
            let all = self.sinks.own.get_or_init(Box::default);
            all[usize::from(at)].get_or_init(|| sink);
        }
        self.sinks.now.store(number, Ordering::Release);
    }

    /// Has what is appended from now on go to a log with so many copies: see [`Streamlet::set_copies`].
    pub(crate) fn set_copies(&self, copies: u32) {
        self.copies.store(copies.clamp(1, COPIES_MAX), Ordering::Release);
        self.set_log(None);
    }

    /// Whether it is in the log with so many copies that it shares with others.
    pub(crate) fn is_in_shared_log(&self, copies: u32) -> bool {
        self.log_number() == self.sinks.shared_number(copies)
    }

    /// Which of its own logs it is in, from 0.
    pub(crate) fn own_log(&self) -> Option<u8> {
        self.log_number().checked_sub(1).filter(|at| *at < OF_COPIES)
    }
}

/// A streamlet of a stream.
pub struct Streamlet {
    shared: Arc<StreamletShared>,
    lanes: Box<[OnceLock<Arc<Lane>>]>,
    progress: OnceLock<Arc<Lane>>,
    /// What retention found when it looked last at how much there is.
    pub(crate) room: Mutex<Option<Room>>,
}

impl Streamlet {
    pub(crate) fn new(id: StreamletId, stream: Arc<StreamShared>) -> Streamlet {
        let lanes = (0..stream.options().lanes).map(|_| OnceLock::new()).collect();
        let tenure = if stream.is_elsewhere() { Tenure::Elsewhere } else { Tenure::Here };
        let (groups, sinks, tenure) = (AtomicU32::new(0), Sinks::default(), TenureWord::new(tenure));
        let (is_others, may_return) = (AtomicBool::new(false), AtomicBool::new(false));
        let copies = AtomicU32::new(0);
        let shared = Arc::new(StreamletShared { id, stream, groups, sinks, copies, tenure, is_others, may_return });
        Streamlet { shared, lanes, progress: OnceLock::new(), room: Mutex::default() }
    }

    /// Whether another node is known to own it, for whatever reason it may be [elsewhere](Tenure::Elsewhere): then what is here are older groups,
    /// and all of them may go when they are old enough. Told by whoever follows the owners.
    pub fn set_others(&self, is_others: bool) {
        self.shared.is_others.store(is_others, Ordering::Release);
    }

    /// Whether the node that owns it may give it back, since it has not rebuilt it: then this one goes on with its lanes, and has to know where. Told by whoever follows the owners, before
    /// that they are [others](Streamlet::set_others).
    pub fn set_may_return(&self, may_return: bool) {
        self.shared.may_return.store(may_return, Ordering::Release);
    }

    pub(crate) fn shared(&self) -> &StreamletShared {
        &self.shared
    }

    pub(crate) fn word(&self) -> &TenureWord {
        &self.shared.tenure
    }

    /// Its number in the stream.
    pub fn id(&self) -> StreamletId {
        self.shared.id
    }
    /// A lane, made if it was never used; `None` if the streamlet has no such lane.
    #[inline]
    pub fn lane(&self, lane: LaneId) -> Option<&Arc<Lane>> {
        let at = self.lanes.get(lane.0 as usize)?;
        Some(at.get_or_init(|| Lane::new(lane, Arc::clone(&self.shared))))
    }
    /// The lane of a producer: its id modulo Q.
    #[inline]
    pub fn lane_of(&self, producer: ProducerId) -> &Arc<Lane> {
        let lane = LaneId((producer.0 % self.lanes.len() as u64) as u32);
        self.lane(lane).expect("a remainder of the number of lanes")
    }
    /// The lanes that were ever used.
    pub fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().filter_map(OnceLock::get)
    }
    /// Bytes of chunks that producers have appended to it since the process started, headers included. Each used lane is locked for a moment.
    pub fn appended_bytes(&self) -> u64 {
        self.lanes().map(|lane| lane.state.lock().counts.bytes).sum()
    }
    /// Bytes that readers got of what was appended here and has not gone to disk and back, since the process started: each reader's anew. Those who read the arena
    /// themselves are not seen.
    pub fn followed_bytes(&self) -> u64 {
        self.lanes().map(|lane| lane.read_new.load(Ordering::Relaxed)).sum()
    }
    /// The lane [`LaneId::PROGRESS`], which the broker writes and readers do not see. Made if it was never used.
    pub fn progress_lane(&self) -> &Arc<Lane> {
        self.progress.get_or_init(|| Lane::new(LaneId::PROGRESS, Arc::clone(&self.shared)))
    }
    /// The lanes that were ever used, with that of progress: for those who keep, copy and rebuild what there is.
    pub fn all_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes().chain(self.progress.get())
    }
    /// Any lane by its id, that of progress included.
    pub(crate) fn any_lane(&self, lane: LaneId) -> Option<&Arc<Lane>> {
        if lane == LaneId::PROGRESS { Some(self.progress_lane()) } else { self.lane(lane) }
    }
    /// The lane of progress, if it was ever used.
    pub fn used_progress_lane(&self) -> Option<&Arc<Lane>> {
        self.progress.get()
    }
}

impl std::fmt::Debug for Streamlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streamlet").field("id", &self.shared.id).finish_non_exhaustive()
    }
}
