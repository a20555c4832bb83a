//! What a new owner does with the streamlets of a lost broker: steps 5 to 7 of `docs/replication.md`, "A broker is lost".
//!
//! Called by whoever follows the coordinator, on a thread that may wait: [`Broker::take_over`] asks the backups what the lanes
//! had, decides what of that is served ([`decide`]) and opens the streamlets, so that producers go on; [`Broker::rebuild`] then
//! reads the chunks from the backups and has them replicated through this node's own log. Between the two and during the second
//! everything is served: who needs what is not there yet waits for it ([`kera_log::Streamlet::receive_lost`]).
//!
//! Both may fail at any point, be called again, and be cut off by a crash. Nothing of a streamlet changes before all backups
//! that must be asked have answered. Until [`Broker::rebuild`] has returned the lost logs must be kept: a next owner finds in
//! them whatever this one's log does not have yet.
//!
//! What backups say comes from outside: places, ordinals and counts are checked against what a lane can have, chunks against
//! their checksums and places. What does not fit is an error that names the backup, and the next one is asked.

mod ask;
mod asked;
mod decide;
mod fetch;
mod given_up;
mod kept;
mod needed;
mod progress;
mod returned;
mod stripes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_format::vlog_replica::{BLOCKS_UNDER_WAY_MAX, LogId};
use kera_format::{GroupId, LaneId, StreamId, StreamletId};
use kera_log::{GroupInfo, LaneHandover, LostLane, Streamlet, Tenure};
use kera_protocol::limits::PAGE_ITEMS_MAX;
use kera_protocol::{
    BlocksRead, LaneStateList, LaneStates, Owner, ProducerPlace, ReadBlocks, ReplicatedLane, SegmentPart, Status,
    StreamletRef, StreamletState,
};

use crate::broker::Broker;
use crate::failure::Failure;
use crate::handover;
pub use ask::NoStates;
use ask::ask_range;
use asked::{Found, Said, Views, view_of};
use decide::{Decided, Source};
use fetch::{Arrivals, Copied, in_parallel};
pub use given_up::logs_without;
use progress::{Laps, cold_blocks};
pub use progress::{RebuildTimes, RecoveryProgress};
use returned::Ends;
pub(crate) use returned::FoundBefore;
pub use returned::NotTaken;

/// Streamlets that one question names, if [that is not too much](ask).
const ASKED_AT_ONCE: usize = 1000;
/// Threads that ask and read.
const THREADS: usize = 4;
/// What an error begins with by which a backup that is there [does not give blocks](Copies::read_blocks) since one of them does not read back: it may give the others.
pub const NOT_READ_BACK: &str = "a block does not read back: ";
/// How long a wait lasts before it is looked whether anything is wrong.
const LOOK: Duration = Duration::from_millis(100);

/// A log of a lost incarnation whose end is decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedLog {
    /// Its name.
    pub log: LogId,
    /// Its views, the oldest first.
    pub views: Vec<EndedView>,
    /// Its last block; zero if it has none.
    pub end: u64,
    /// Whether all backups of its newest view have shown that block. If not, one of them alone may have the last few.
    pub at_all: bool,
}

/// Who has a log from which block on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedView {
    /// Its first block.
    pub first: u64,
    /// The numbers of the backups that have its blocks: each all of them. None: nobody needs them.
    pub backups: Vec<u32>,
}

/// How backups are asked. The calls block and come from several threads; an error is a sentence without the backup's number.
pub trait Copies: Send + Sync {
    /// Asks for the state of lanes. What is more than an answer may have is [an error that says so](NoStates::is_too_much), whatever it is that the backup answers; and
    /// so is [what takes too long](NoStates::is_late).
    fn lane_states(&self, backup: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates>;
    /// Asks for blocks. An error that begins with [`NOT_READ_BACK`] is of one of them, any other of the backup: it does not answer, or has nothing of all that.
    fn read_blocks(&self, backup: u32, asked: &ReadBlocks) -> Result<BlocksRead, String>;
    /// Says that streamlets are about to be opened with what these logs have up to their ends, so that these ends stay; nothing is served before
    /// that is known. An error: one of them is another one by now, or nobody hears it.
    fn opens_with(&self, _ends: &[(LogId, u64)]) -> Result<(), String> {
        Ok(())
    }
    /// Whether a backup is not known to be lost: one that is answers late or never, so it is asked after others, and not at all what could be
    /// left out.
    fn is_there(&self, _backup: u32) -> bool {
        true
    }
    /// Whether it is this node's own backup: it is asked before others, and alone as long as it gives what is wanted, for what it has does not cross the network.
    fn is_here(&self, _backup: u32) -> bool {
        false
    }
    /// From how many threads it is asked at most; with one everything is done on the thread of the caller.
    fn threads(&self) -> usize {
        THREADS
    }
    /// Whether what is asked for is still wanted. Once it is not it never is again, and all that asks ends soon, with an error.
    fn goes_on(&self) -> bool {
        true
    }
    /// Called before each wait for memory or for this node's own copies: how long it may last. A simulator lets the rest of the
    /// world go on here and asks for no wait at all.
    fn pause(&self) -> Duration {
        LOOK
    }
}

/// What streamlets took along when they moved last.
pub type HandedStates = BTreeMap<(StreamId, StreamletId), StreamletState>;

/// What is to be rebuilt of streamlets that were taken over, and from where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rebuild {
    /// The streamlets, whether or not there is anything of them.
    pub streamlets: Vec<StreamletRef>,
    /// For each range of blocks of a log that is to be read: which of the streamlets have chunks there.
    ranges: Vec<ReadFor>,
    /// The logs that it needs until it is done: those that are read, and those without which another owner, who takes over from this one,
    /// might decide something else. See [`needed`].
    pub needs: BTreeSet<LogId>,
    /// Where the lanes of each were found to end, with the groups that are to come. Not of those of which this node holds groups that are not [behind all of that](Ends).
    ends: BTreeMap<StreamletRef, Ends>,
    /// Of those that an earlier try has opened, the logs that it [found](FoundBefore) them in.
    logs_before: BTreeMap<StreamletRef, BTreeSet<LogId>>,
    /// Lanes with something to rebuild.
    pub lanes: u64,
    /// Bytes to rebuild.
    pub bytes: u64,
}

impl Rebuild {
    /// The ranges, each with the backups that it has now.
    fn ranges_now(&self, logs: &[EndedLog]) -> Vec<ReadFor> {
        let mut ranges = self.ranges.clone();
        for (range, _) in &mut ranges {
            let of_log = logs.iter().find(|known| known.log == range.log);
            // Of views that begin at one block all but the last have none. A range may be a part of a view.
            if let Some(view) = of_log.and_then(|known| known.views.iter().rfind(|view| view.first <= range.first)) {
                range.backups = view.backups.clone();
            }
        }
        ranges
    }
}

/// Blocks of one view of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RangeOfLog {
    log: LogId,
    first: u64,
    last: u64,
    backups: Vec<u32>,
}

impl RangeOfLog {
    /// Its backups in the order in which they are listed: those that are there now, and those that are lost, which answer late or never.
    fn there_and_lost(&self, copies: &dyn Copies) -> (Vec<u32>, Vec<u32>) {
        self.backups.iter().copied().partition(|backup| copies.is_there(*backup))
    }
}

impl std::fmt::Display for RangeOfLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LogId { node, epoch, vlog } = self.log;
        write!(f, "blocks {} to {} of log {vlog} of node {node} in its epoch {epoch}", self.first, self.last)
    }
}

/// What backups say of a lane.
#[derive(Default)]
struct Told {
    parts: Vec<(Source, SegmentPart)>,
    marks: Vec<(Source, ProducerPlace)>,
}

/// What backups say of all lanes that are wanted.
type ToldLanes = BTreeMap<(StreamId, StreamletId, LaneId), Told>;
/// What is served of them.
type DecidedLanes = BTreeMap<Place, BTreeMap<LaneId, Decided>>;

/// Of which lanes several logs told, and the logs that told of others alone.
#[derive(Default)]
struct Several {
    lanes: BTreeMap<(StreamId, StreamletId, LaneId), needed::ToldLane>,
    alone: BTreeSet<LogId>,
}

/// A lane with something to be read, and from where.
type ReadLane = (StreamletRef, LaneId, BTreeSet<Source>);
/// What is read of a log, and the streamlets that it is read for.
type ReadFor = (RangeOfLog, Vec<StreamletRef>);
type Place = (StreamId, StreamletId);

/// A streamlet that is taken over in an owner epoch, and its row in the table of owners, which names this node and that epoch. A row of before would say that what the
/// lost owner wrote is with whoever held something before it.
struct Wanted {
    epoch: u32,
    place: Arc<Streamlet>,
    owner: Owner,
}

impl Wanted {
    /// It is not open yet.
    fn is_elsewhere(&self) -> bool {
        self.place.tenure() == Tenure::Elsewhere
    }
}

type AllWanted = BTreeMap<Place, Wanted>;

/// Whether a lane of an answer is one that these streamlets can have.
type Check<'a> = dyn Fn(&ReplicatedLane, &[StreamletRef]) -> Result<(), String> + Sync + 'a;

impl Broker {
    /// Whether the table of owners names this node for a streamlet in an owner epoch: it may be taken over then. Who knows of its owners from elsewhere may know
    /// of them earlier.
    pub fn is_named_owner(&self, stream: StreamId, streamlet: StreamletId, epoch: u32) -> bool {
        self.named_owner(stream, streamlet, epoch).is_some()
    }

    fn named_owner(&self, stream: StreamId, streamlet: StreamletId, epoch: u32) -> Option<Owner> {
        let owner = self.ownership.owner(stream, streamlet)?;
        ((owner.node, owner.epoch) == (self.ownership.node(), epoch)).then_some(owner)
    }

    /// Takes writes of streamlets that a lost broker owned, each in the owner epoch that is named; their old groups are there
    /// from here on, and awaited. `logs`: every ended log that the coordinator still knows, of any incarnation, of nodes that the streamlets may
    /// need something of. The table of
    /// owners must name this node already, with who has groups of which earlier epochs: what it says to be here, and no lost
    /// log has, stays.
    ///
    /// All or nothing, but for a full arena: an error has opened none of the streamlets, or names the first that is not open.
    /// Asked again it goes on; streamlets that are open already in the epoch named are left as they are.
    pub fn take_over(
        &self,
        streamlets: &[(StreamId, StreamletId, u32)],
        logs: &[EndedLog],
        copies: &dyn Copies,
    ) -> Result<Rebuild, Failure> {
        self.take_over_moved(streamlets, logs, copies, &HandedStates::new())
    }

    /// The same for streamlets of which some have moved before: `handed` is what they took along when they did so last, by which
    /// lanes are known that were not written to since.
    pub fn take_over_moved(
        &self,
        streamlets: &[(StreamId, StreamletId, u32)],
        logs: &[EndedLog],
        copies: &dyn Copies,
        handed: &HandedStates,
    ) -> Result<Rebuild, Failure> {
        self.take_over_without(streamlets, (logs, &Views::new()), copies, handed).map(|(rebuild, _)| rebuild)
    }

    /// The same for one streamlet for which a person has given up views of logs, each with its number from 1. Everybody is asked for them all the same, and those are left out that
    /// nobody gives; if what is left contradicts itself, of the others as few as will do. None of them if anything else does not come: who was silent may have what contradicts nothing.
    /// Which ones were left out is told, too.
    pub fn take_over_without(
        &self,
        streamlets: &[(StreamId, StreamletId, u32)],
        (logs, given_up): (&[EndedLog], &BTreeSet<(LogId, u32)>),
        copies: &dyn Copies,
        handed: &HandedStates,
    ) -> Result<(Rebuild, BTreeSet<(LogId, u32)>), Failure> {
        let wanted = self.wanted(streamlets)?;
        let mut laps = Laps::begin(&*self.clock);
        let Found { ranges, decided, several, tails, left_out } = self.find(&wanted, (logs, given_up), copies)?;
        let asked_ms = laps.lap_ms();
        if wanted.values().any(Wanted::is_elsewhere) {
            settle_ends(&several, &ranges, logs, copies)?;
        }
        let settled_ms = laps.lap_ms();
        let (mut rebuild, mut read) = (Rebuild::default(), Vec::new());
        let opened = self.open_all(&wanted, decided, handed, (&mut rebuild, &mut read));
        // Behind the loop: a log of which this leaves nothing to read is one that the streamlet came from all the same. After an error, too: streamlets that are open tell
        // their producers of what one backup alone had.
        fetch::put_tails(self, &tails);
        opened.inspect_err(|_| self.keep_found(&rebuild, (&read[..], &ranges[..]), &wanted))?;
        self.add_found_before(&mut rebuild, &wanted);
        let awaited = wanted.values().flat_map(|Wanted { place, .. }| place.awaited());
        rebuild.bytes = awaited.map(|(_, segment)| u64::from(segment.end)).sum();
        self.ownership.wake();
        // Producers go on from here.
        let opened_ms = laps.lap_ms();
        rebuild.needs = needed_of(&several, &ranges, copies);
        rebuild.ranges = ranges_to_read(read, &several, &rebuild.needs, &ranges);
        let needs_ms = laps.lap_ms();
        tracing::debug!(asked_ms, settled_ms, opened_ms, needs_ms, "where the time of a taking over went");
        Ok((rebuild, left_out))
    }

    /// Streamlets that are taken over, each with its row in the table of owners.
    fn wanted(&self, streamlets: &[(StreamId, StreamletId, u32)]) -> Result<AllWanted, Failure> {
        let mut wanted = AllWanted::new();
        for &(stream, streamlet, epoch) in streamlets {
            let place = self.streamlet_to_move(stream, streamlet)?;
            let is_open = place.tenure() != Tenure::Elsewhere;
            if is_open && place.owner_epoch() != epoch {
                let has = place.owner_epoch();
                let message = format!(
                    "streamlet {streamlet} of stream {stream} is open in owner epoch {has}, it cannot be taken over in {epoch}"
                );
                return Err(Failure::later(Status::NotReady, message));
            }
            let Some(owner) = self.named_owner(stream, streamlet, epoch) else {
                let message = format!(
                    "the table of owners does not name this node yet for streamlet {streamlet} of stream {stream} in owner epoch {epoch}"
                );
                return Err(Failure::later(Status::NotReady, message));
            };
            wanted.insert((stream, streamlet), Wanted { epoch, place, owner });
        }
        Ok(wanted)
    }

    /// Opens those that are not open, one after the other up to the first that cannot be. Notes what has something to be read, and of which logs.
    fn open_all(
        &self,
        wanted: &AllWanted,
        mut decided: DecidedLanes,
        handed: &HandedStates,
        (rebuild, read): (&mut Rebuild, &mut Vec<ReadLane>),
    ) -> Result<(), Failure> {
        for (&(stream, streamlet), of) in wanted {
            let place = &of.place;
            let mut lanes = decided.remove(&(stream, streamlet)).unwrap_or_default();
            if of.is_elsewhere() {
                let state = handed.get(&(stream, streamlet));
                let of_lanes = state.map(handover::from_state).unwrap_or_default();
                if let Some(state) = state {
                    leave_out_older_progress(place, &mut lanes, state.epoch);
                }
                let ends = self.open_taken((stream, streamlet), of, &mut lanes, &of_lanes)?;
                rebuild.ends.extend(ends.map(|ends| (StreamletRef { stream, streamlet }, ends)));
                self.applications.streamlet_opened(self, stream, place, state);
            }
            let name = StreamletRef { stream, streamlet };
            rebuild.streamlets.push(name);
            let of_lanes: BTreeSet<LaneId> = place.awaited().iter().map(|(lane, _)| *lane).collect();
            rebuild.lanes += of_lanes.len() as u64;
            let sources = of_lanes.iter().filter_map(|lane| Some((name, *lane, lanes.get(lane)?.sources.clone())));
            read.extend(sources);
        }
        Ok(())
    }

    /// Decides what is served of each lane.
    fn decide_all(
        &self,
        told: ToldLanes,
        wanted: &AllWanted,
        ranges: &[RangeOfLog],
    ) -> Result<(DecidedLanes, Several), Failure> {
        let log_of = |source: Source| ranges[source].log;
        let (mut decided, mut several) = (DecidedLanes::new(), Several::default());
        for ((stream, streamlet, lane), Told { mut parts, marks }) in told {
            // Lanes of others are not taken from an answer.
            let Some(Wanted { place, owner, .. }) = wanted.get(&(stream, streamlet)) else { continue };
            let elsewhere = self.elsewhere(owner, place);
            let of_parts = parts.iter().map(|(source, _)| log_of(*source));
            let logs: BTreeSet<LogId> = of_parts.chain(marks.iter().map(|(source, _)| log_of(*source))).collect();
            // What holders have of progress is of no use to the owner's applications: it is rebuilt.
            if lane != LaneId::PROGRESS {
                parts.retain(|(_, part)| !self.is_with_another(owner, part.group));
            }
            let kept = (logs.len() > 1).then(|| parts.clone());
            let places: Vec<ProducerPlace> = marks.iter().map(|(_, mark)| *mark).collect();
            let found = decide::decide_moved(parts, &places, &log_of, &elsewhere).map_err(|reason| {
                let message =
                    format!("lane {lane} of streamlet {streamlet} of stream {stream} cannot be put together: {reason}");
                Failure::later(Status::SegmentUnreadable, message)
            })?;
            match kept {
                Some(parts) => {
                    let told = needed::ToldLane::new(parts, marks, elsewhere, found.clone());
                    several.lanes.insert((stream, streamlet, lane), told);
                }
                None => several.alone.extend(logs),
            }
            decided.entry((stream, streamlet)).or_default().insert(lane, found);
        }
        Ok((decided, several))
    }

    /// Reads what is to be rebuilt from the backups, puts it where it belongs, and waits until all of it is durable in this
    /// node's own log: then the lost logs are not needed for these streamlets any more. `logs`: those that it was taken over
    /// from, with the backups that they have now. Blocks the thread, starts some more; takes as much memory of the arena as
    /// [`kera_log::Log::rebuild_chunk`] says, and half of it for what does not have its copies. After an error it goes on
    /// where it was when it is called again.
    ///
    /// Readers come first: what is read has the copies that the lost broker left behind, so new ones are made when all can be
    /// read, as far as memory lets them wait, and when it cannot go on.
    ///
    /// It ends soon, without the rest, once these copies are [not to go on](Copies::goes_on).
    pub fn rebuild(
        &self,
        rebuild: &Rebuild,
        logs: &[EndedLog],
        copies: &dyn Copies,
        progress: &RecoveryProgress,
    ) -> Result<(), Failure> {
        progress.bytes_all.fetch_max(rebuild.bytes, Ordering::Relaxed);
        progress.lanes.fetch_max(rebuild.lanes, Ordering::Relaxed);
        let (laps, cold_before) = (Laps::begin(&*self.clock), cold_blocks(self.log.arena()));
        if let Err(failure) = self.read_back(rebuild, logs, copies, progress) {
            if copies.goes_on() {
                self.copy_some(rebuild);
                self.give_back_begun(rebuild);
            }
            return Err(failure);
        }
        tracing::info!(bytes = rebuild.bytes, "what a lost broker had can be read again");
        progress.tell(laps.all_ms(), cold_blocks(self.log.arena()).saturating_sub(cold_before));
        self.copy_rebuilt(rebuild, copies)?;
        self.wait_for_copies(rebuild, copies)?;
        kept::copy_kept(self, rebuild, copies)
    }

    /// Reads until nothing is missing.
    fn read_back(
        &self,
        rebuild: &Rebuild,
        logs: &[EndedLog],
        copies: &dyn Copies,
        progress: &RecoveryProgress,
    ) -> Result<(), Failure> {
        let ranges = rebuild.ranges_now(logs);
        let pass = |missing: &BTreeSet<StreamletRef>, asks_all| {
            fetch::pass(self, &rebuild.streamlets, &ranges, missing, (copies, asks_all), progress)
        };
        loop {
            let missing = self.missing(rebuild);
            let Some((name, lane, segment)) = missing.first else { return Ok(()) };
            progress.passes.fetch_add(1, Ordering::Relaxed);
            let is_as_before = || self.missing(rebuild).count == missing.count;
            let mut errors = pass(&missing.streamlets, false)?;
            if is_as_before() {
                // Backups give blocks back each for itself, whole files at a time: one that was asked what lanes have may have told of
                // segments of which another one, which is read now, has given the front back.
                errors = pass(&missing.streamlets, true)?;
            }
            if is_as_before() {
                given_up::give_up(
                    self,
                    (rebuild, &ranges, logs),
                    &[],
                    &missing.streamlets,
                    (copies, progress),
                    &mut errors,
                )?;
            }
            if is_as_before() {
                let message = format!(
                    "segment {} of group {} of lane {lane} of streamlet {} of stream {} does not come from any backup: {}",
                    segment.index,
                    segment.group,
                    name.streamlet,
                    name.stream,
                    if errors.is_empty() { "no log has all of it".to_owned() } else { errors.join("; ") },
                );
                return Err(Failure::later(Status::SegmentUnreadable, message));
            }
        }
    }

    /// Makes room, if some is lacking, of what is begun of these streamlets, and of no others.
    fn give_back_begun(&self, rebuild: &Rebuild) {
        let names: BTreeSet<StreamletRef> = rebuild.streamlets.iter().copied().collect();
        self.log.give_back_begun(|stream, streamlet| names.contains(&StreamletRef { stream, streamlet }));
    }

    /// Sends a part of what was read on its way to its copies, and waits for nothing: called each time that a rebuild cannot go on,
    /// which may be for long, while what is there already needs its copies.
    fn copy_some(&self, rebuild: &Rebuild) {
        let mut left = fetch::copied_at_once(self);
        for name in &rebuild.streamlets {
            let Some(place) = self.place_of(*name) else { continue };
            while left > 0
                && let Ok(Some(copy)) = place.copy_rebuilt()
            {
                let is_healthy = copy.sink.healthy().is_ok();
                left = if is_healthy { left.saturating_sub(copy.segment.bytes()) } else { 0 };
            }
        }
    }

    /// Sends what was read on its way to its copies.
    fn copy_rebuilt(&self, rebuild: &Rebuild, copies: &dyn Copies) -> Result<(), Failure> {
        let mut copied = Copied::new();
        for name in &rebuild.streamlets {
            let Some(place) = self.place_of(*name) else { continue };
            while copied.copy(self, &place, copies)? {}
        }
        Ok(())
    }

    /// What is still awaited.
    fn missing(&self, rebuild: &Rebuild) -> Missing {
        let mut missing = Missing::default();
        for name in &rebuild.streamlets {
            let Some(place) = self.place_of(*name) else { continue };
            let awaited = place.awaited();
            if let Some((lane, segment)) = awaited.first() {
                missing.first.get_or_insert((*name, *lane, *segment));
                missing.streamlets.insert(*name);
                missing.count += awaited.len();
            }
        }
        missing
    }

    /// A streamlet, unless its stream is gone.
    fn place_of(&self, name: StreamletRef) -> Option<Arc<Streamlet>> {
        self.log.stream(name.stream)?.streamlet(name.streamlet).cloned()
    }

    fn wait_for_copies(&self, rebuild: &Rebuild, copies: &dyn Copies) -> Result<(), Failure> {
        let arrivals = Arrivals::new();
        for name in &rebuild.streamlets {
            let Some(place) = self.place_of(*name) else { continue };
            if let Some((sink, ticket)) = place.rebuilt_through() {
                arrivals.durable(&*sink, ticket, copies)?;
            }
            place.end_rebuilding();
        }
        Ok(())
    }

    /// Puts the old groups of a streamlet into its lanes and opens it. Where its lanes end, if all that is in them is to be rebuilt, or is [behind what is](Ends).
    ///
    /// What this node has of the streamlet from an earlier time goes first, but for groups that the table of owners says to be
    /// here and that no lost log knows, or only [parts of](Broker::leave_out_parts). A group that a log knows is rebuilt from there, even if
    /// it is here: what is here may end later, with chunks that were never acknowledged, and it has no copies in this node's log.
    ///
    /// It goes when nothing is left that may fail: an owner that could not open a streamlet, and gives it back, still has all that it held of it.
    fn open_taken(
        &self,
        (stream, streamlet): Place,
        Wanted { epoch, place, owner }: &Wanted,
        lanes: &mut BTreeMap<LaneId, Decided>,
        handed: &[LaneHandover],
    ) -> Result<Option<Ends>, Failure> {
        let refused = |error: &dyn std::fmt::Display| {
            let message = format!("streamlet {streamlet} of stream {stream} is not taken over yet: {error}");
            Failure::later(Status::NotReady, message)
        };
        place.forget_unacknowledged().map_err(|full| refused(&format!("the arena has no {} bytes", full.bytes)))?;
        self.leave_out_parts(owner, place, lanes, handed);
        let lanes = &*lanes;
        let held = self.held(owner, place, lanes);
        place.forget_groups(|group| held.contains(&group));
        let own = place.lanes().flat_map(|lane| lane.groups(GroupId::NONE, usize::MAX));
        let own_from = own.map(|group| group.id.epoch()).min();
        let next_of = |lane: LaneId| lanes.get(&lane).map_or(0, |decided| decided.next_ordinal);
        let (before, behind): (Vec<LaneHandover>, Vec<LaneHandover>) =
            handed.iter().cloned().partition(|state| state.next_ordinal <= next_of(state.lane));
        place.receive(&before).map_err(|error| refused(&error))?;
        // What was handed over, and what stays, tells the producers of all that was before its end; where what comes begins behind that, the
        // lane knows by itself that it does not know all.
        let lost: Vec<LostLane> = lanes
            .iter()
            .filter(|(_, decided)| decided.next_ordinal > 0)
            .map(|(&lane, decided)| lost(lane, decided))
            .collect();
        place.receive_lost(&lost).map_err(|error| refused(&error))?;
        place.receive(&behind).map_err(|error| refused(&error))?;
        // Before anybody appends.
        let ends = Ends::found(place.hand_over(), own_from, lanes);
        self.opens(stream, place, *epoch);
        place.open(*epoch, !owner.older.is_empty()).map_err(|error| refused(&error))?;
        for lane in place.lanes() {
            self.lane_started(lane);
        }
        Ok(ends)
    }

    /// Whether another node holds a group, which has all of it: readers are sent there. A lost log may have a part of it, since a life of that node
    /// before its present one began it, or somebody has rebuilt some of it before the node was back. Rebuilt here, the part would be compacted here as if it were all,
    /// and once the holder is lost too the rewriting would count instead of what was appended.
    fn is_with_another(&self, owner: &Owner, group: GroupId) -> bool {
        holder_of(owner, group).is_some_and(|node| node != 0 && node != self.ownership.node())
    }

    /// Owner epochs whose groups are not rebuilt from lost logs since they are at nodes that live, this one included.
    fn elsewhere(&self, owner: &Owner, place: &Streamlet) -> Vec<u32> {
        let me = self.ownership.node();
        let others = owner.older.iter().filter(|older| older.node != me).map(|older| older.first_epoch);
        let here = place.lanes().flat_map(|lane| lane.groups(GroupId::NONE, usize::MAX)).map(|group| group.id.epoch());
        others.chain(here).collect()
    }

    /// Takes what is only a part of what this node holds out of what comes from the lost logs. A rebuild that was cut off leaves parts of groups
    /// behind in a log, which is kept for as long as its node holds anything; what that node has rebuilt since, all of it and with its
    /// copies, must not go for them. What was here when the lost log was written is never more than that log has up to its end.
    ///
    /// A log of an earlier life of the owner is such a part as well: what it lacks of its copies when that life ended has them in the log of the present one, and
    /// is acknowledged. It may begin with what is not here any more. In a life in which this node has owned the streamlet only retention takes
    /// that, and it takes the front: who asked was told so.
    ///
    /// Nor must it go for the same groups [as they were before this node has compacted them](kept).
    fn leave_out_parts(
        &self,
        owner: &Owner,
        place: &Streamlet,
        lanes: &mut BTreeMap<LaneId, Decided>,
        handed: &[LaneHandover],
    ) {
        let me = self.ownership.node();
        for lane in place.all_lanes() {
            let Some(comes) = lanes.get_mut(&lane.id()) else { continue };
            let groups = lane.groups(GroupId::NONE, usize::MAX);
            // Behind that ordinals may have been given out again, unless this node has owned it in its present life: then it has gone on itself.
            let told = handed.iter().filter(|state| state.lane == lane.id()).map(|state| state.next_ordinal).max();
            let has_owned = place.owner_epoch() != 0;
            let lane_end = if has_owned { u64::MAX } else { comes.next_ordinal.max(told.unwrap_or(0)) };
            let epochs: BTreeSet<u32> = comes.segments.iter().map(|segment| segment.group.epoch()).collect();
            let is_held = |group: &GroupInfo| holder_of(owner, group.id) == Some(me);
            // Others who owned it since may have rewritten it from what it was before.
            let owned_last = has_owned && owner.older.last().is_none_or(|last| last.first_epoch <= place.owner_epoch());
            let compacted = kept::compacted_since(&self.log, lane, &groups, (&comes.segments, owned_last), &is_held);
            let is_part = |epoch: &u32| {
                let is_here = |group: &&GroupInfo| group.id.epoch() == *epoch && is_held(group);
                let here: Vec<&GroupInfo> = groups.iter().filter(is_here).collect();
                let (Some(first), Some(last)) = (here.first(), here.last()) else { return false };
                let of_epoch = || comes.segments.iter().filter(|segment| segment.group.epoch() == *epoch);
                let from = of_epoch().map(|segment| segment.base_ordinal).min().unwrap_or(0);
                let to = of_epoch().map(|segment| segment.next_ordinal).max().unwrap_or(0);
                let known: u64 = of_epoch().map(|segment| segment.next_ordinal - segment.base_ordinal).sum();
                let is_whole = here.windows(2).all(|pair| pair[0].next_ordinal == pair[1].first_ordinal);
                // What ends before what is here is not all of it: retention has taken the front here, which a lost log may still have.
                let has_front = first.first_ordinal <= from || has_owned || to < last.next_ordinal;
                let has_it = is_whole && has_front && to <= last.next_ordinal;
                // Copies are made in no order: a log may have the end of them alone, as well as the beginning.
                let is_less = first.first_ordinal < from || to < last.next_ordinal || known < to - from;
                has_it && last.next_ordinal <= lane_end && (is_less || compacted.contains(epoch))
            };
            let parts: BTreeSet<u32> = epochs.iter().copied().filter(is_part).collect();
            if !parts.is_empty() {
                place.keep(lane.id(), &parts.intersection(&compacted).copied().collect());
                comes.segments.retain(|segment| !parts.contains(&segment.group.epoch()));
                comes.first_ordinal = comes.segments.first().map_or(comes.next_ordinal, |first| first.base_ordinal);
            }
        }
    }

    /// Groups that stay: those of epochs that are here and in no lost log, in lanes that join what comes from the lost logs.
    fn held(&self, owner: &Owner, place: &Streamlet, lanes: &BTreeMap<LaneId, Decided>) -> BTreeSet<GroupId> {
        let me = self.ownership.node();
        let rebuilt =
            |lane: &Decided, group: GroupId| lane.segments.iter().any(|segment| segment.group.epoch() == group.epoch());
        let mut held = BTreeSet::new();
        for lane in place.all_lanes() {
            let comes = lanes.get(&lane.id());
            let groups = lane.groups(GroupId::NONE, usize::MAX);
            // Of progress nobody holds anything for somebody else: what is here and follows all that comes, this node has written as the owner, whoever is said to hold the
            // records of that owner epoch, of which it may have none.
            let is_mine = |group: &&GroupInfo| lane.id() == LaneId::PROGRESS || holder_of(owner, group.id) == Some(me);
            let is_told = |group: &&GroupInfo| comes.is_some_and(|comes| rebuilt(comes, group.id));
            let here: Vec<_> = groups.iter().filter(|group| is_mine(group) && !is_told(group)).collect();
            let joins = match (here.last(), comes.filter(|comes| comes.next_ordinal > 0)) {
                (Some(last), Some(comes)) => last.next_ordinal == comes.first_ordinal,
                _ => true,
            };
            // What comes may also be older than what is here, or come in between: groups of a node that held them for this one. Or on both
            // sides: before it what this node had in an earlier life, whose logs are still there, and behind it what the lost node wrote
            // after a move.
            let goes_on = |last: &GroupInfo| {
                let mut segments = comes.iter().flat_map(|comes| &comes.segments);
                segments.any(|one| one.base_ordinal == last.next_ordinal)
            };
            let is_apart = |group: &&GroupInfo| {
                let mut segments = comes.iter().flat_map(|comes| &comes.segments);
                segments.all(|one| one.next_ordinal <= group.first_ordinal || group.next_ordinal <= one.base_ordinal)
            };
            // Or what is between is with another node: the streamlet was there after it had been here, and before the lost node had it. Also if that one has been lost since
            // the logs were looked for: what it held is gathered next.
            let is_bridged = |last: &GroupInfo| {
                let segments = comes.iter().flat_map(|comes| &comes.segments);
                let behind = segments.filter(|one| one.base_ordinal >= last.next_ordinal).map(|one| one.group.epoch());
                let next = behind.min().unwrap_or(owner.epoch);
                let mut others = owner.older.iter().filter(|older| older.node != me);
                others.any(|older| last.id.epoch() < older.first_epoch && older.first_epoch <= next)
            };
            // All that comes is in front of it: if they end together, what came of it was left out.
            let is_newer = here.last().zip(comes).is_some_and(|(last, comes)| comes.next_ordinal <= last.next_ordinal);
            let fits = is_newer || here.last().is_some_and(|last| goes_on(last) || is_bridged(last));
            if joins || (fits && here.iter().all(is_apart)) {
                held.extend(here.iter().map(|group| group.id));
            }
        }
        held
    }
}

/// Of progress leaves out what is here and what comes from before the owner that has handed the streamlet over last, in its `epoch`: that has
/// said all of it again. Lost logs may be of any time, and what they say would be taken for something that was said later.
fn leave_out_older_progress(place: &Streamlet, lanes: &mut BTreeMap<LaneId, Decided>, epoch: u32) {
    place.forget_progress(|group| group.epoch() > epoch);
    let Some(comes) = lanes.get_mut(&LaneId::PROGRESS) else { return };
    comes.segments.retain(|segment| segment.group.epoch() > epoch);
    match comes.segments.first() {
        Some(first) => comes.first_ordinal = first.base_ordinal,
        None => drop(lanes.remove(&LaneId::PROGRESS)),
    }
}

/// The node that is said to hold a group of an earlier owner.
fn holder_of(owner: &Owner, group: GroupId) -> Option<u32> {
    let behind = owner.older.partition_point(|older| older.first_epoch <= group.epoch());
    behind.checked_sub(1).map(|at| owner.older[at].node)
}

/// What is still awaited.
#[derive(Default)]
struct Missing {
    first: Option<(StreamletRef, LaneId, kera_log::AwaitedSegment)>,
    streamlets: BTreeSet<StreamletRef>,
    count: usize,
}

/// A lane as it is taken over.
fn lost(lane: LaneId, decided: &Decided) -> LostLane {
    let state = LaneHandover {
        lane,
        next_ordinal: decided.next_ordinal,
        last_append_ms: 0,
        forgot: decided.forgot,
        hole_end: 0,
        producers: decided.producers.clone(),
        groups: Vec::new(),
    };
    LostLane { state, segments: decided.segments.clone() }
}

/// Says with which ends it is decided what is served: of all logs that told of the lanes. The others would tell of nothing up to a lower end either.
fn settle_ends(
    several: &Several,
    ranges: &[RangeOfLog],
    logs: &[EndedLog],
    copies: &dyn Copies,
) -> Result<(), Failure> {
    let told = told_of(several, ranges);
    let ends: Vec<(LogId, u64)> =
        logs.iter().filter(|ended| told.contains(&ended.log)).map(|ended| (ended.log, ended.end)).collect();
    let refused = |reason: String| {
        let message =
            format!("the coordinators do not know yet with which ends of lost logs streamlets are opened: {reason}");
        Failure::later(Status::NotReady, message)
    };
    if ends.is_empty() { Ok(()) } else { copies.opens_with(&ends).map_err(refused) }
}

/// Of logs that told of lanes that are taken over the ranges at their ends, if one of several backups may have the last blocks alone.
fn shared_tails(several: &Several, ranges: &[RangeOfLog], logs: &[EndedLog]) -> Vec<RangeOfLog> {
    let told = told_of(several, ranges);
    let is_end = |range: &&RangeOfLog| {
        let of_log = logs.iter().find(|ended| ended.log == range.log);
        // They may be ranges of their own.
        let is_last = |ended: &EndedLog| {
            ended.end == range.last || range.first == range.last && ended.end - range.last < BLOCKS_UNDER_WAY_MAX
        };
        told.contains(&range.log)
            && range.backups.len() > 1
            && of_log.is_some_and(|ended| !ended.at_all && is_last(ended))
    };
    ranges.iter().filter(is_end).cloned().collect()
}

/// In their order.
fn names_of(wanted: &AllWanted) -> Vec<StreamletRef> {
    wanted.keys().map(|&(stream, streamlet)| StreamletRef { stream, streamlet }).collect()
}

/// The logs that told of lanes that are taken over.
fn told_of(several: &Several, ranges: &[RangeOfLog]) -> BTreeSet<LogId> {
    let sources = several.lanes.values().flat_map(|lane| lane.sources());
    sources.map(|source| ranges[source].log).chain(several.alone.iter().copied()).collect()
}

/// The logs that are needed for what was taken over. Asks backups of lanes that several logs tell of whether they have them; that one does
/// not answer costs nothing but space.
fn needed_of(several: &Several, ranges: &[RangeOfLog], copies: &dyn Copies) -> BTreeSet<LogId> {
    let log_of = |source: Source| ranges[source].log;
    let sources: BTreeSet<Source> = several.lanes.values().flat_map(|lane| lane.sources()).collect();
    let mut needed = told_of(several, ranges);
    let Some(((stream, streamlet, _), _)) = several.lanes.first_key_value() else { return needed };
    let asked = [StreamletRef { stream: *stream, streamlet: *streamlet }];
    let of_source = |source: Source| ranges[source].backups.iter().map(move |backup| (source, *backup));
    let questions: Vec<(Source, u32)> = sources.iter().copied().flat_map(of_source).collect();
    let shows = |(source, backup): &(Source, u32)| {
        let shows = copies.is_there(*backup) && fetch::has_last(&ranges[*source], *backup, &asked, copies).is_ok();
        Ok((*source, shows))
    };
    let Ok(answers) = in_parallel(copies.threads(), &questions, shows) else { return needed };
    let mut shown = vec![needed::Shown::default(); ranges.len()];
    answers.iter().filter(|(_, shows)| *shows).for_each(|(source, _)| shown[*source].backups += 1);
    (shown.iter_mut().zip(ranges)).for_each(|(shown, range)| shown.all = shown.backups == range.backups.len());
    let lanes: Vec<&needed::ToldLane> = several.lanes.values().collect();
    let known = needed::Sources { log_of: &log_of, shown: &|source| shown[source] };
    needed::leave_out(&lanes, &mut needed, &several.alone, &known);
    needed
}

/// The ranges that are read, each with its streamlets: of logs that are needed.
fn ranges_to_read(
    read: Vec<ReadLane>,
    several: &Several,
    needed: &BTreeSet<LogId>,
    ranges: &[RangeOfLog],
) -> Vec<ReadFor> {
    let log_of = |source: Source| ranges[source].log;
    let mut sources: BTreeMap<Source, BTreeSet<StreamletRef>> = BTreeMap::new();
    for (name, lane, from) in read {
        let told = several.lanes.get(&(name.stream, name.streamlet, lane));
        let from = told.map_or(from, |told| needed::read_from(told, needed, &log_of));
        for source in from {
            sources.entry(source).or_default().insert(name);
        }
    }
    let of = |(source, names): (Source, BTreeSet<StreamletRef>)| (ranges[source].clone(), names.into_iter().collect());
    sources.into_iter().map(of).collect()
}

/// The ranges of blocks that one backup can answer for.
fn ranges_of(logs: &[EndedLog]) -> Vec<RangeOfLog> {
    let mut ranges = Vec::new();
    for EndedLog { log, views, end, .. } in logs {
        for (at, view) in views.iter().enumerate() {
            let behind = views.get(at + 1).map_or(u64::MAX, |next| next.first.saturating_sub(1));
            let range =
                RangeOfLog { log: *log, first: view.first, last: behind.min(*end), backups: view.backups.clone() };
            if range.first <= range.last {
                // What was needed of a view without backups has come again in later blocks.
                if !range.backups.is_empty() {
                    ranges.push(range);
                }
            }
        }
    }
    ranges
}

/// The same with each of the last blocks of logs, as many as may have been under way, as a range of its own; nothing if they all are already.
fn with_last_blocks_alone(ranges: &[RangeOfLog], logs: &[EndedLog]) -> Vec<RangeOfLog> {
    let mut finer = Vec::new();
    for range in ranges {
        let end = logs.iter().find(|ended| ended.log == range.log).map_or(0, |ended| ended.end);
        let alone = range.first.max((end + 1).saturating_sub(BLOCKS_UNDER_WAY_MAX));
        if alone > range.first {
            finer.push(RangeOfLog { last: range.last.min(alone - 1), ..range.clone() });
        }
        finer.extend((alone..=range.last).map(|block| RangeOfLog { first: block, last: block, ..range.clone() }));
    }
    if finer.len() > ranges.len() { finer } else { Vec::new() }
}

impl Broker {
    /// What one backup of each range says of the lanes that are wanted. An error if nobody says anything of one, but for ranges of views that were given up.
    fn ask(
        &self,
        wanted: &AllWanted,
        ranges: Vec<RangeOfLog>,
        (logs, given_up): (&[EndedLog], &Views),
        copies: &dyn Copies,
    ) -> Result<Said, Failure> {
        let names = names_of(wanted);
        let mut lanes_of = HashMap::new();
        for &(stream, _) in wanted.keys() {
            let lanes = self.log.stream(stream).map_or(0, |stream| stream.options().lanes);
            lanes_of.insert(stream, lanes);
        }
        let check = |lane: &ReplicatedLane, asked: &[StreamletRef]| check_lane(lane, asked, wanted, &lanes_of);
        let questions: Vec<(Source, &[StreamletRef])> = (0..ranges.len())
            .flat_map(|source| names.chunks(ASKED_AT_ONCE.min(PAGE_ITEMS_MAX)).map(move |names| (source, names)))
            .collect();
        let answers = in_parallel(copies.threads(), &questions, |&(source, asked)| {
            let range = &ranges[source];
            ask_range(range, asked, copies, &check).map(|lanes| (source, Ok(lanes))).or_else(|failure| {
                let view = view_of(range, logs);
                if given_up.contains(&view) { Ok((source, Err(view))) } else { Err(failure) }
            })
        })?;
        let mut said = Said { ranges, answers: Vec::new(), lacks: Views::new() };
        for (source, answer) in answers {
            match answer {
                Ok(lanes) => said.answers.push((source, lanes)),
                Err(view) => _ = said.lacks.insert(view),
            }
        }
        Ok(said)
    }
}

/// Whether an answer names what was asked for, which is in order, and what there can be.
fn check_lane(
    lane: &ReplicatedLane,
    asked: &[StreamletRef],
    wanted: &AllWanted,
    lanes_of: &HashMap<StreamId, u32>,
) -> Result<(), String> {
    let StreamletRef { stream, streamlet } = lane.streamlet;
    let of = wanted.get(&(stream, streamlet)).filter(|_| asked.binary_search(&lane.streamlet).is_ok());
    let Some(Wanted { epoch, .. }) = of else {
        return Err(format!("it tells of streamlet {streamlet} of stream {stream}, which was not asked for"));
    };
    let lanes = lanes_of.get(&stream).copied().unwrap_or(0);
    let name = || format!("lane {} of streamlet {streamlet} of stream {stream}", lane.lane);
    if lane.lane.0 >= lanes && lane.lane != LaneId::PROGRESS {
        return Err(format!("it tells of {}, which has {lanes} lanes", name()));
    }
    for part in &lane.parts {
        decide::check_part(part, *epoch).map_err(|reason| format!("{}: {reason}", name()))?;
    }
    Ok(())
}
