//! How a node hears of what becomes true, as `crates/server/src/cluster/feed.rs` and `crates/server/src/cluster/follow.rs` have it, by turns. What is told of a change, in which order,
//! what comes before what when a broker hears of owners, and when a state has its number is decided by the real code ([`Change::tellings`], [`kera_broker::Broker::hear_of_owners`],
//! [`News`]).
//!
//! What becomes true a node knows at once, and is told piece by piece. In most runs all pieces are told before anything else happens. In runs in which nodes hear [in
//! pieces](super::plan::Plan::in_pieces) anything may happen between two of them: clients are served, backups answer, more becomes true. How long that takes is up to the seed, and so is,
//! where a node has just begun to follow, whether it is told first of what there is or of what becomes true meanwhile.
//!
//! In runs in which nodes are [sent snapshots](super::plan::Plan::sends_snapshots) one gets the newest state in the place of what it lacks now and then, and is told of that as real ones are
//! ([`ClusterState::changes_to`]). What it has not seen entry by entry it knows no more.

use std::collections::VecDeque;

use kera_broker::{Failure, News, Placing, UNNUMBERED};
use kera_coordinator::StreamEvent;
use kera_coordinator::catalog::has_owners;
use kera_coordinator::cluster::{Change, ClusterState, Owned, Telling, ToldStreams};
use kera_format::cluster::{ClusterEntry, LogName, OwnerReason};
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId, level};
use kera_protocol::{ListReplicas, ReleaseBlocks, StreamletState};

use super::CLUSTER;
use super::copies::lock;
use super::floors::{agree, agree_one};
use super::node::{Running, drop_all};
use super::plan::Planted;
use super::world::{Event, World};
use crate::cluster::truth::Violation;

/// Of so many steps in which a node learns something it is sent a snapshot in one, where these are played.
const SENT_EVERY: usize = 4;
/// Pieces that a node is told in one turn, at most.
const PIECES_MAX: u64 = 2;

/// One thing that a node is told.
#[derive(Clone, Debug)]
enum Piece {
    /// Its log and its backup hear of a change.
    First(Change),
    /// Its broker does.
    Tell(Telling),
    /// Below which number it has heard of all streams.
    HeardBefore(StreamId),
    /// Moves may have been noted or called off.
    Moves,
    /// All was told of a change.
    Over(Change),
    /// All was told of an entry.
    Number(u64),
    /// All was told up to an entry, as whoever begins says it.
    UpTo(u64),
}

/// What a node is still to be told.
#[derive(Default)]
pub(super) struct Hearing {
    streams: ToldStreams,
    news: News,
    follows: bool,
    /// By the entry; those of a snapshot by the first of the entries in the place of which it came.
    pieces: VecDeque<(usize, Piece)>,
    /// What is told to a node that has just begun to follow.
    beginning: VecDeque<Piece>,
    /// The entry of which some was told and some is left.
    begun: Option<usize>,
    /// Whether its next turn is planned.
    is_planned: bool,
}

impl Hearing {
    /// Of a node whose log has the streams of a state.
    pub(super) fn of(known: &ClusterState) -> Hearing {
        Hearing { streams: ToldStreams::of(known.catalog.streams().cloned()), ..Hearing::default() }
    }

    /// Whether anything is told to it.
    pub(super) fn follows(&self) -> bool {
        self.follows
    }

    /// Whether clients are served: it was told all that there was when it began to follow.
    pub(super) fn serves(&self) -> bool {
        self.follows && self.beginning.is_empty()
    }

    /// Up to which entry all was told of what is known up to one.
    pub(super) fn heard(&self, known: usize) -> usize {
        self.pieces.front().map_or(known, |(index, _)| index - 1)
    }

    fn has_something(&self) -> bool {
        !self.beginning.is_empty() || !self.pieces.is_empty()
    }

    /// Entries have become true, with these changes: one, or those in the place of which a snapshot came. `is_early`: they have their number before it is told: a defect.
    fn comes(&mut self, (first, last): (usize, usize), changes: Vec<Change>, (node, is_early): (u32, bool)) {
        let is_told = changes.iter().any(Change::is_told);
        let mut add = |piece| self.pieces.push_back((first, piece));
        if is_told && is_early {
            add(Piece::UpTo(last as u64));
        }
        for change in changes {
            if concerns_log_or_backup(&change) {
                add(Piece::First(change.clone()));
            }
            change.tellings(node).into_iter().for_each(|telling| add(Piece::Tell(telling)));
            if change.is_told() || change.is_about_moves() {
                add(Piece::Over(change));
            }
        }
        if is_told {
            add(Piece::Number(last as u64));
        }
    }

    /// The next piece, with the entry that it is of; none: it is of what is told to who begins.
    fn next(&mut self, from_beginning: bool) -> Option<(Option<usize>, Piece)> {
        if !self.beginning.is_empty() && (from_beginning || self.pieces.is_empty()) {
            return self.beginning.pop_front().map(|piece| (None, piece));
        }
        let (index, piece) = self.pieces.pop_front()?;
        self.begun = self.pieces.front().map(|(next, _)| *next).filter(|next| *next == index);
        Some((Some(index), piece))
    }

    /// What a piece has turned out to be made of.
    fn put_back(&mut self, of: Option<usize>, more: Vec<Piece>) {
        for piece in more.into_iter().rev() {
            match of {
                None => self.beginning.push_front(piece),
                Some(index) => {
                    self.pieces.push_front((index, piece));
                    self.begun = Some(index);
                }
            }
        }
    }

    /// Somebody begins to follow while others are told of an entry: not before these were told all of it.
    fn end_begun(&mut self) {
        while self.begun.is_some() && self.pieces.front().map(|(index, _)| *index) == self.begun {
            self.pieces.pop_front();
        }
        self.begun = None;
    }
}

/// Whether a log, or a backup, has something to do about a change itself.
fn concerns_log_or_backup(change: &Change) -> bool {
    matches!(change, Change::Stream(_) | Change::Replaced | Change::Cluster(ClusterEntry::LogGivenUp { .. }))
}

/// What comes of what a node was told.
#[derive(Default)]
pub(super) struct Heard {
    /// Moves may have been noted or called off.
    moves: bool,
    /// Bytes that it leaves to a node that came back.
    left_bytes: u64,
}

/// Something a node is told; that it cannot do that must not be.
type Fed = Result<(), String>;

impl Running {
    /// Begins to follow: what the log does not know of the streams it is told at once, and then all that there is.
    pub(super) fn follow(&mut self, known: &ClusterState, applied: usize) -> Fed {
        self.hearing.end_begun();
        for event in self.hearing.streams.catch_up(known.catalog.streams(), applied as u64) {
            self.stream_changed(&event)?;
        }
        self.broker.join_cluster(CLUSTER, self.number);
        self.hearing.follows = true;
        // Of what comes behind that it is told.
        let heard = self.hearing.heard(applied);
        self.hearing.beginning.extend(Telling::at_start().map(Piece::Tell));
        self.hearing.beginning.push_back(Piece::UpTo(heard as u64));
        Ok(())
    }

    /// Tells all that is left.
    pub(super) fn hear_all(&mut self, known: &ClusterState) -> Result<Heard, String> {
        let mut heard = Heard::default();
        while self.hear_one(known, true, &mut heard)? {}
        Ok(heard)
    }

    /// Tells the next piece, if there is one.
    fn hear_one(&mut self, known: &ClusterState, from_beginning: bool, heard: &mut Heard) -> Result<bool, String> {
        let Some((of, piece)) = self.hearing.next(from_beginning) else { return Ok(false) };
        let more = self.hear(known, (of, piece), heard)?;
        self.hearing.put_back(of, more);
        Ok(true)
    }

    /// Tells a piece, with the entry that it is of; what it turns out to be made of.
    fn hear(
        &mut self,
        known: &ClusterState,
        (of, piece): (Option<usize>, Piece),
        heard: &mut Heard,
    ) -> Result<Vec<Piece>, String> {
        let follows = self.hearing.follows;
        match piece {
            Piece::First(change) => self.first(known, of.unwrap_or_default() as u64, &change)?,
            // Nobody listens yet.
            _ if !follows => {}
            Piece::Tell(telling) => return self.tell(known, telling, heard),
            Piece::HeardBefore(next) => self.broker.heard_of_streams(next),
            Piece::Moves => heard.moves = true,
            Piece::Over(change) => {
                if change.is_told() {
                    self.hearing.news.note();
                }
                heard.moves |= change.is_about_moves();
            }
            Piece::Number(index) => self.hearing.news.number(&self.broker, index),
            Piece::UpTo(index) => self.broker.told_up_to(index),
        }
        Ok(Vec::new())
    }

    /// What its backup and its log do about a change of entry `index`.
    fn first(&mut self, known: &ClusterState, index: u64, change: &Change) -> Fed {
        match change {
            Change::Cluster(ClusterEntry::LogGivenUp { log }) => {
                self.backup.release(&ReleaseBlocks { log: LogId::from(*log), through_block: u64::MAX });
            }
            // Of one that is not over the first view may not be known yet.
            Change::Replaced => {
                let page = self.backup.list(&ListReplicas { after: None, limit: 0 });
                let is_given_up =
                    |name: &LogName| !known.logs().contains_key(name) && known.is_over(name.node, name.epoch);
                for log in page.replicas.iter().map(|replica| replica.log).filter(|log| is_given_up(&(*log).into())) {
                    self.backup.release(&ReleaseBlocks { log, through_block: u64::MAX });
                }
            }
            Change::Stream(event) if self.hearing.follows && self.hearing.streams.is_news(index, event) => {
                self.stream_changed(event)?;
            }
            Change::Stream(_) | Change::Cluster(_) => {}
        }
        Ok(())
    }

    fn stream_changed(&self, event: &StreamEvent) -> Fed {
        let serves_unplaced = self.planted == Some(Planted::ServesUnplaced);
        let done = match event {
            StreamEvent::Created(info) => {
                let has_owners = has_owners(&info.name) && !serves_unplaced;
                self.broker.hear_of_stream(info.id, info.options.clone(), has_owners)
            }
            StreamEvent::Altered { after, .. } => self.broker.stream_altered(after.id, after.options.clone()),
            StreamEvent::Deleted(info) => self.broker.stream_deleted(info.id),
        };
        done.map_err(|error| format!("the log of node {} does not follow: {error}", self.number))
    }

    fn tell(&mut self, known: &ClusterState, telling: Telling, heard: &mut Heard) -> Result<Vec<Piece>, String> {
        if self.planted == Some(Planted::HeardAhead) {
            self.broker.heard_of_streams(known.catalog.next_stream());
        }
        match telling {
            Telling::Nodes => self.broker.set_nodes(UNNUMBERED, known.node_infos()),
            Telling::Everything => return Ok(self.everything(known)),
            Telling::Place(stream) => self.place(known, stream)?,
            Telling::Gone(stream) => self.broker.displace_stream(UNNUMBERED, stream),
            Telling::HeardOf(stream) => self.broker.heard_of(stream),
            Telling::HeldAgain(stream, at) => heard.left_bytes += self.broker.leave_to_holder(stream, StreamletId(at)),
            Telling::AllHeldAgain => heard.left_bytes += self.broker.leave_all_to_holders(),
            Telling::Begins(stream, streamlet, lane) => agree_one(&self.log, known, (stream, streamlet, lane)),
            Telling::DropRebuilt => drop_all(&self.log, known.rebuilt_by_others(self.number, self.epoch)),
            Telling::DropRebuiltOf { stream, first, count } => {
                let all = (first..first + count).map(StreamletId);
                let rebuilt = all.filter(|at| known.is_rebuilt_by_others(self.number, stream, *at));
                drop_all(&self.log, rebuilt.map(|at| (stream, at)));
            }
        }
        Ok(Vec::new())
    }

    fn everything(&mut self, known: &ClusterState) -> Vec<Piece> {
        if known.level() >= level::COMPACTED_COPIES {
            self.log.copy_compacted();
        }
        self.broker.set_nodes(UNNUMBERED, known.node_infos());
        let (streams, next) = (known.catalog.streams().map(|info| info.id), known.catalog.next_stream());
        let (there, heard_before) = self.broker.known_to(streams, next);
        let places = there.into_iter().map(|stream| Piece::Tell(Telling::Place(stream)));
        places.chain([Piece::HeardBefore(heard_before), Piece::Moves]).collect()
    }

    fn place(&mut self, known: &ClusterState, stream: StreamId) -> Fed {
        let Some(placed) = known.placed(self.number, stream) else {
            if known.catalog.find(&stream.into()).is_err() {
                self.broker.hear_of_no_owners(stream);
            }
            return Ok(());
        };
        for place in self.log.stream(stream).iter().flat_map(|found| found.streamlets()) {
            place.set_may_return(known.may_come_back(stream, place.id().0, (self.number, self.epoch)));
        }
        let broker = self.broker.clone();
        let mut places = Places { running: self, known, stream, failed: None };
        broker.hear_of_owners(stream, &placed.owners, &placed.mine, &placed.lost, &mut places);
        places.failed.map_or(Ok(()), Err)
    }

    /// As `crates/server/src/cluster/adaptive.rs` does.
    fn set_copies(&self, known: &ClusterState, stream: StreamId, streamlet: StreamletId) -> Fed {
        let (copies, found) = (known.copies_of(stream, streamlet.0), self.log.stream(stream));
        let place = found.as_ref().and_then(|found| found.streamlet(streamlet));
        if place.is_some_and(|place| place.own_log().is_none() || place.copies() != copies) {
            let set = self.broker.set_copies(stream, streamlet, copies);
            set.map_err(|failure| format!("node {} cannot put {streamlet} into its log: {failure}", self.number))?;
        }
        Ok(())
    }
}

/// What a node knows of a stream beside who owns it.
struct Places<'a> {
    running: &'a mut Running,
    known: &'a ClusterState,
    stream: StreamId,
    /// What it could not do first.
    failed: Option<String>,
}

impl Places<'_> {
    fn note(&mut self, done: Fed) {
        if let Err(why) = done {
            self.failed.get_or_insert(why);
        }
    }
}

impl Placing for Places<'_> {
    fn set_copies(&mut self, streamlet: StreamletId) {
        let set = self.running.set_copies(self.known, self.stream, streamlet);
        self.note(set);
    }

    fn placed(&mut self) {
        if !self.running.forgets_floors {
            agree(&self.running.log, self.known, self.stream);
        }
    }

    fn handed(&mut self, streamlet: StreamletId) -> Option<StreamletState> {
        let kept = self.known.handed(self.stream, streamlet.0)?;
        match self.running.moving.handed(self.stream, streamlet, &kept) {
            Ok(state) => Some(state),
            Err(error) => {
                self.note(Err(format!("what was handed over of {streamlet} cannot be read: {error}")));
                None
            }
        }
    }

    fn choose_log(&mut self, streamlet: StreamletId) {
        self.set_copies(streamlet);
        let copies = self.known.copies_of(self.stream, streamlet.0);
        self.running.put_in_log(self.stream, streamlet, copies);
    }

    fn failed(&mut self, streamlet: Option<StreamletId>, failure: Failure) {
        let number = self.running.number;
        let why = match streamlet {
            None => format!("the broker of node {number} does not follow: {failure}"),
            Some(streamlet) => format!("node {number} cannot open {streamlet}: {failure}"),
        };
        self.note(Err(why));
    }
}

impl World {
    /// A node learns of the log up to a batch.
    pub(super) fn learn(&mut self, number: u32, index: usize) -> Result<(), Violation> {
        if !self.may_learn(number, index)? || !self.has_written(number, index)? {
            return self.finish(number);
        }
        while self.node(number).applied < index && self.node(number).process.is_some() {
            // Who is told may see a state that is ahead of what it is told.
            let ahead = 1 + self.below(3) as usize;
            let from = self.node(number).applied;
            let to = (from + ahead).min(index);
            let is_sent = self.plan.sends_snapshots && (to + number as usize).is_multiple_of(SENT_EVERY);
            let to = if is_sent { index } else { to };
            let batches = self.know(number, (from, to), is_sent)?;
            // Who recovers knows what the coordinators know, and may look before the broker has been told.
            if (to + number as usize).is_multiple_of(3) {
                self.recovery_turn(number)?;
            }
            let moves = !self.plan.in_pieces && self.hear_all(number)?;
            self.count_given_back(number, &batches)?;
            if moves {
                self.look_at_moves(number);
            }
        }
        self.keep_state(number)?;
        self.plan_hearing(number);
        self.finish(number)
    }

    /// Batches become true for a node, as far as it knows; what they say. `is_sent`: it knows them from a snapshot.
    fn know(
        &mut self,
        number: u32,
        (from, to): (usize, usize),
        is_sent: bool,
    ) -> Result<Vec<Vec<ClusterEntry>>, Violation> {
        let is_early = self.plan.planted == Some(Planted::NumbersEarly);
        let known = self.node(number).known.clone();
        let mut state = lock(&known).clone();
        let before = is_sent.then(|| state.clone());
        let batches: Vec<_> = (from + 1..=to).map(|at| self.coordinators.batch(at).to_vec()).collect();
        let mut come = Vec::new();
        for (index, batch) in (from + 1..).zip(&batches) {
            let mut changes = Vec::new();
            for entry in batch {
                let change = state.apply_telling(entry);
                let refused = |why: String| Violation(format!("a node refuses what is true: {why}"));
                changes.extend(change.map_err(|error| refused(error.0))?);
            }
            come.push(((index, index), changes));
        }
        if let Some(before) = before {
            let sent = state.snapshot();
            state = restored(&sent)?;
            state.takes_place_of(&before);
            self.node_mut(number).sent = Some((to, sent));
            come = vec![((from + 1, to), before.changes_to(&state))];
            *self.events_of.entry("knew it from a snapshot").or_default() += 1;
        }
        *lock(&known) = state;
        let node = self.node_mut(number);
        node.applied = to;
        if let Some(running) = node.running() {
            come.into_iter().for_each(|(of, changes)| running.hearing.comes(of, changes, (number, is_early)));
            *self.events_of.entry("told of a snapshot").or_default() += u64::from(is_sent);
        }
        Ok(batches)
    }

    /// A process knows what its node has on its disk: the last snapshot that it was sent, and the entries behind it. What it had seen before that snapshot it does not know any more.
    pub(super) fn know_from_disk(&self, number: u32) -> Result<(), Violation> {
        let node = self.node(number);
        // One that goes on alone has entries of its own behind what others had.
        let Some((to, sent)) = node.sent.as_ref().filter(|(to, _)| *to >= self.coordinators.began_at) else {
            return Ok(());
        };
        let mut state = restored(sent)?;
        for entry in (to + 1..=node.applied).flat_map(|at| self.coordinators.batch(at)) {
            state.apply(entry).map_err(|refused| Violation(format!("a start refuses what is true: {}", refused.0)))?;
        }
        *lock(&node.known) = state;
        Ok(())
    }

    fn count_given_back(&mut self, number: u32, batches: &[Vec<ClusterEntry>]) -> Result<(), Violation> {
        let is_in_part = |batch: &&Vec<ClusterEntry>| {
            batch.len() > 1 && batch.iter().any(|entry| given_back(entry, number).is_some())
        };
        let in_part = batches.iter().filter(is_in_part).count();
        *self.events_of.entry("given back, and older groups stay").or_default() += in_part as u64;
        let is_of_started_again =
            |entry: &&ClusterEntry| given_back(entry, number).is_some() && self.was_started_again(entry);
        let by_started_again: Vec<_> = batches.iter().flatten().filter(is_of_started_again).collect();
        let opened = by_started_again.iter().filter(|entry| self.had_been_opened(entry)).count();
        *self.events_of.entry("given back by who was started again").or_default() += by_started_again.len() as u64;
        *self.events_of.entry("given back by who was started again and had opened it").or_default() += opened as u64;
        let given_back: Vec<Owned> = batches.iter().flatten().filter_map(|entry| given_back(entry, number)).collect();
        *self.events_of.entry("given back").or_default() += given_back.len() as u64;
        self.look_at_opened(number, &given_back)
    }

    /// Whether who gives a streamlet back was started again since it took it over: the owner epoch that it gives up is none of an entry that names the streamlet.
    fn was_started_again(&self, entry: &ClusterEntry) -> bool {
        let ClusterEntry::OwnerChanged { stream, first, number: given_up, .. } = entry else { return false };
        self.coordinators.reason_of(*stream, *first, *given_up as u32).is_none()
    }

    /// A node is told all that is left. Whether moves may have been noted or called off.
    fn hear_all(&mut self, number: u32) -> Result<bool, Violation> {
        let known = self.node(number).known.clone();
        let Some(running) = self.node_mut(number).running() else { return Ok(false) };
        let state = lock(&known).clone();
        let heard = running.hear_all(&state).map_err(Violation)?;
        self.count_heard(number, &heard);
        Ok(heard.moves)
    }

    fn count_heard(&mut self, number: u32, heard: &Heard) {
        let Some(running) = self.nodes[number as usize - 1].running() else { return };
        let logs = std::mem::take(&mut running.changing.logs);
        *self.events_of.entry("changed its log").or_default() += logs.changed;
        *self.events_of.entry("stayed in its log").or_default() += logs.stayed;
        *self.events_of.entry("bytes left to who came back").or_default() += heard.left_bytes;
    }

    /// A node begins to follow.
    pub(super) fn follow(&mut self, number: u32) -> Result<(), Violation> {
        let (known, applied) = (self.node(number).known.clone(), self.node(number).applied);
        let Some(running) = self.node_mut(number).running() else { return Ok(()) };
        let state = lock(&known).clone();
        running.follow(&state, applied).map_err(Violation)?;
        self.plan_hearing(number);
        Ok(())
    }

    /// A node is told some pieces of what is left.
    pub(super) fn hear(&mut self, number: u32) -> Result<(), Violation> {
        let (count, drawn) = (1 + self.below(PIECES_MAX), self.below(1 << PIECES_MAX));
        let known = self.node(number).known.clone();
        let Some(running) = self.node_mut(number).running() else { return Ok(()) };
        running.hearing.is_planned = false;
        let (state, mut heard) = (lock(&known).clone(), Heard::default());
        for at in 0..count {
            let from_beginning = (drawn >> at) & 1 == 1;
            running.hear_one(&state, from_beginning, &mut heard).map_err(Violation)?;
        }
        self.count_heard(number, &heard);
        if heard.moves {
            self.look_at_moves(number);
        }
        self.plan_hearing(number);
        self.finish(number)
    }

    /// Plans when a node is told more, if something is left.
    fn plan_hearing(&mut self, number: u32) {
        let life = self.node(number).life;
        let Some(running) = self.node_mut(number).running() else { return };
        if running.hearing.is_planned || !running.hearing.has_something() {
            return;
        }
        running.hearing.is_planned = true;
        let delay_us = self.piece_us();
        self.schedule.after(delay_us, Event::Hear(number, life));
    }

    /// Time until a node is told more: what is told waits for disks, and for other threads.
    fn piece_us(&self) -> u64 {
        match self.below(if self.is_troubled { 30 } else { 1 }) {
            0..=19 => 50 + self.below(1_000),
            20..=27 => self.below(20_000),
            _ => self.below(150_000),
        }
    }

    /// Time until a node begins to follow that has put its log together.
    pub(super) fn begins_us(&self) -> u64 {
        5_000 + self.below(if self.below(4) == 0 { 300_000 } else { 30_000 })
    }
}

/// The state that a snapshot tells of.
fn restored(snapshot: &[ClusterEntry]) -> Result<ClusterState, Violation> {
    let mut state = ClusterState::default();
    let restored = snapshot.iter().try_for_each(|entry| state.restore(entry));
    restored.map_err(|refused| Violation(format!("a snapshot has what is refused: {}", refused.0)))?;
    Ok(state)
}

/// The streamlet that this node is given back by an entry, with its owner epoch.
fn given_back(entry: &ClusterEntry, to: u32) -> Option<Owned> {
    let ClusterEntry::OwnerChanged { stream, first, node, owner_epoch, reason, .. } = entry else { return None };
    (*reason == OwnerReason::GivenBack && *node == to).then_some((*stream, StreamletId(*first), *owner_epoch))
}
