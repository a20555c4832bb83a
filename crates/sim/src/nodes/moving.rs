//! Streamlets that move because a person wants it, as `crates/server/src/cluster/moves.rs` does it, by turns; and nodes that are stopped in
//! good order, as `crates/server/src/node/stop.rs` does it. What moves are and what is told of them is decided by the real rules
//! and by [`kera_broker::Moving`].

use kera_format::{StreamId, StreamletId};
use kera_log::{LaneHandover, Log};
use kera_protocol::placement::{LaneState, Memory};
use kera_protocol::{FinishMove, GroupsGone, LetGo, MoveInfo, StreamletState};

use super::coordinators::Command;
use super::copies::lock;
use super::network::Packet;
use super::node::{TELL_GONE_US, Take};
use super::plan::Planted;
use super::world::{ASK_US, Event, World};
use crate::cluster::truth::Violation;

/// Time until a step of a move that failed is tried again.
const RETRY_US: u64 = 20_000;
/// How often the owner before looks whether all is acknowledged, and how many times before it answers that it is not.
const LOOK_US: u64 = 5_000;
const LOOKS: u32 = 20;
/// How long a node that is being stopped waits for backups.
const SETTLE_US: u64 = 2_000_000;
/// How long a node that is stopped finishes what is under way, if it does: less than `node.stop_timeout` comes with, and more than requests may take.
const FINISH_US: u64 = 5_000_000;

impl World {
    /// Moves may have been noted or called off.
    pub(super) fn look_at_moves(&mut self, node: u32) {
        let (epoch, known) = (self.node(node).epoch, self.node(node).known.clone());
        let Some(running) = self.node_mut(node).following() else { return };
        let state = lock(&known);
        let to_me = state.move_infos().filter(|of| of.to == node);
        let is_moving = |stream: StreamId, streamlet: StreamletId| state.move_of(stream, streamlet.0).is_some();
        let owned = |stream: StreamId, at: StreamletId| state.owned_in((node, epoch), stream, at.0);
        let coming: Vec<MoveInfo> = running.moving.look(&running.broker, to_me, is_moving, owned);
        running.takes.extend(coming.iter().map(|of| (of.number, Take { of: *of, asked: 0 })));
        drop(state);
        for of in coming {
            self.take_moved(node, of.number);
        }
    }

    /// Steps 2 to 4 for a streamlet that comes to a node, for as long as its move is noted.
    pub(super) fn take_moved(&mut self, node: u32, number: u64) {
        let (life, question) = (self.node(node).life, self.number());
        let known = self.node(node).known.clone();
        let is_noted = lock(&known).moves().contains_key(&number);
        let Some(running) = self.node_mut(node).running() else { return };
        let Some(take) = running.takes.get_mut(&number) else { return };
        if !is_noted {
            running.takes.remove(&number);
            running.changing.last.retain(|last| last.number != number);
            running.moving.over(number);
            return;
        }
        take.asked = question;
        let MoveInfo { stream, streamlet, from, .. } = take.of;
        let owner = lock(&known).told_owner(stream, streamlet);
        if running.broker.forget_leftovers(stream, streamlet, &owner).is_err() {
            self.schedule.after(RETRY_US, Event::Take(node, life, number, question));
            return;
        }
        self.schedule.after(ASK_US, Event::Take(node, life, number, question));
        self.tell(node, from, Packet::LetGo(question, LetGo { number, stream, streamlet }));
    }

    /// The owner before is asked to let go, or looks again whether it has.
    pub(super) fn let_go(&mut self, node: u32, from: u32, question: u64, asked: LetGo, looks: u32) {
        let (life, planted) = (self.node(node).life, self.plan.planted);
        let known = self.node(node).known.clone();
        let noted = {
            let known = lock(&known);
            let is_noted = known.is_to_let_go(asked.number, asked.stream, asked.streamlet.0, node);
            is_noted.then(|| known.handed_room(asked.stream, asked.streamlet.0))
        };
        let Some(running) = self.node_mut(node).running() else { return };
        let asked_for = match running.hearing.follows() {
            true => running.moving.let_go(&running.broker, &asked, noted),
            false => Err("the node is starting".to_owned()),
        };
        let answer = match asked_for {
            Ok(None) if planted == Some(Planted::ChangesUnsettled) && from == node => {
                Ok(kera_protocol::codec::bytes_of(&unsettled(&running.log, &asked)))
            }
            Ok(None) if looks < LOOKS => {
                let again = (from, question, asked, looks + 1);
                self.schedule.after(LOOK_US, Event::LettingGo(node, life, again));
                return;
            }
            Ok(None) => Ok(Vec::new()),
            Ok(Some(state)) => Ok(kera_protocol::codec::bytes_of(&spoiled(state, planted))),
            Err(reason) => Err(reason),
        };
        self.tell(node, from, Packet::LetGone(question, answer));
    }

    /// What the owner before said.
    pub(super) fn let_gone(
        &mut self,
        node: u32,
        question: u64,
        answer: Result<Vec<u8>, String>,
    ) -> Result<(), Violation> {
        let (epoch, life, pause) = (self.node(node).epoch, self.node(node).life, self.number());
        let known = self.node(node).known.clone();
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        let Some(take) = running.takes.values_mut().find(|take| take.asked == question) else { return Ok(()) };
        let (of, number) = (take.of, take.of.number);
        take.asked = pause;
        match answer {
            Err(_) => self.schedule.after(RETRY_US, Event::Take(node, life, number, pause)),
            Ok(state) if state.is_empty() => self.take_moved(node, number),
            Ok(state) => {
                let room = lock(&known).handed_kept(of.stream, of.streamlet.0);
                let kept = running.moving.told(&of, &state, room);
                let state = kept.map_err(|error| Violation(format!("what node {} hands over: {error}", of.from)))?;
                let is_own = of.from == node;
                if !is_own || !self.begins_last_copies(node, number, (of.stream, of.streamlet.0), &state) {
                    self.ask(node, Command::FinishMove(FinishMove { number, node, epoch, state }));
                }
            }
        }
        Ok(())
    }

    /// The coordinators were asked to make a node the owner of what moves. What was not done is tried again while the move is noted.
    pub(super) fn move_finished(&mut self, node: u32, number: u64, is_done: bool) {
        let (life, pause) = (self.node(node).life, self.number());
        let Some(running) = self.node_mut(node).running() else { return };
        let to_itself = running.takes.get(&number).is_some_and(|take| take.of.from == node);
        let what = if to_itself { "moved to its own node" } else { "moved" };
        *self.events_of.entry(what).or_default() += u64::from(is_done);
        if is_done && self.evening.remove(&number) {
            *self.events_of.entry("evened out").or_default() += 1;
        }
        let Some(running) = self.node_mut(node).running() else { return };
        if is_done {
            running.takes.remove(&number);
            running.moving.over(number);
        } else if let Some(take) = running.takes.get_mut(&number) {
            take.asked = pause;
            self.schedule.after(RETRY_US, Event::Take(node, life, number, pause));
        }
    }

    /// Tells the coordinators, now and then, of groups that a node holds and that retention has taken.
    pub(super) fn tell_gone(&mut self, node: u32) {
        let now_us = self.now_us();
        let (epoch, known) = (self.node(node).epoch, self.node(node).known.clone());
        let Some(running) = self.node_mut(node).running() else { return };
        if now_us < running.tell_gone_us {
            return;
        }
        running.tell_gone_us = now_us + TELL_GONE_US;
        let groups = running.broker.gone_groups(lock(&known).held_by(node));
        if !groups.is_empty() {
            *self.events_of.entry("told of groups that are gone").or_default() += 1;
            self.ask(node, Command::GroupsGone(GroupsGone { node, epoch, groups }));
        }
    }

    /// A person asks any node to have a streamlet moved.
    pub(super) fn wants_move(&mut self, at: u32, to: u32) -> bool {
        let streams = self.coordinators.state.catalog.streams();
        let all: Vec<(StreamId, u32)> =
            streams.flat_map(|info| (0..info.options.streamlets).map(|streamlet| (info.id, streamlet))).collect();
        if all.is_empty() || self.node(at).process.is_none() {
            return false;
        }
        let (stream, streamlet) = all[self.below(all.len() as u64) as usize];
        self.ask(at, Command::Move(stream, streamlet, to));
        true
    }

    /// A node has one of its streamlets go on in another of its virtual logs.
    pub(super) fn wants_other_log(&mut self, node: u32) -> bool {
        let (epoch, known) = (self.node(node).epoch, self.node(node).known.clone());
        let mine: Vec<(StreamId, u32)> = {
            let state = lock(&known);
            let all = state.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(|at| (info.id, at)));
            all.filter(|(stream, at)| state.is_owner((node, epoch), *stream, *at)).collect()
        };
        if mine.is_empty() {
            return false;
        }
        let ((stream, at), number) = (mine[self.below(mine.len() as u64) as usize], self.below(2) as u8);
        let Some(running) = self.node_mut(node).running() else { return false };
        let streamlet = StreamletId(at);
        let found = running.log.stream(stream);
        let Some(place) = found.as_ref().and_then(|found| found.streamlet(streamlet)) else { return false };
        // Of what has one copy there is one log for each node.
        if place.copies() == 1 {
            return false;
        }
        let wanted = place.own_log().is_none().then_some(number);
        running.wanted_logs.insert((stream, streamlet), wanted);
        self.ask(node, Command::Renew(stream, at, node, epoch));
        true
    }

    /// A person asks for what evens brokers out, and has it done.
    pub(super) fn wants_rebalance(&mut self, at: u32) -> bool {
        if self.node(at).process.is_none() {
            return false;
        }
        let plan = self.coordinators.state.rebalance(0);
        for of in &plan {
            self.ask(at, Command::Move(of.stream, of.streamlet.0, of.to));
        }
        !plan.is_empty()
    }

    /// A person drains a node, for a while.
    pub(super) fn wants_drain(&mut self, node: u32, lasts_us: u64) -> bool {
        if self.node(node).process.is_none() {
            return false;
        }
        self.ask(node, Command::Drain(node, true));
        self.schedule.after(3 * lasts_us, Event::Undrain(node));
        true
    }

    /// Has one of the nodes that are left emptied while everything recovers: no trouble may leave anything behind that keeps streamlets where
    /// they are.
    pub(super) fn empty_one(&mut self) {
        let left: Vec<u32> = (1..=self.count()).filter(|node| !self.node(*node).is_gone).collect();
        let node = left[self.below(left.len() as u64) as usize];
        self.emptied = Some(node);
        self.empty(node);
    }

    /// Asks for that until everything is healed: somebody may have asked for the opposite before, and that comes late.
    pub(super) fn empty(&mut self, node: u32) {
        if self.emptied != Some(node) {
            return;
        }
        self.schedule.after(1_000_000, Event::Undrain(node));
        let is_draining = self.coordinators.state.node(node).is_some_and(|known| known.draining);
        if is_draining {
            return;
        }
        // That others are drained may have come late, too: then nobody is left who could take what it has.
        (1..=self.count()).for_each(|other| self.undrain(other));
        if let Some(at) = (1..=self.count()).find(|at| self.node(*at).process.is_some()) {
            self.ask(at, Command::Drain(node, true));
        }
    }

    /// The node that was emptied may own streamlets again.
    pub(super) fn fill_again(&mut self) {
        if let Some(node) = self.emptied.take() {
            self.undrain(node);
        }
    }

    /// A node that was drained may own streamlets again: asked for until it is so.
    pub(super) fn undrain(&mut self, node: u32) {
        let state = &self.coordinators.state;
        let is_over = self.node(node).is_gone || state.node(node).is_none_or(|known| !known.draining);
        if is_over || self.emptied == Some(node) {
            return;
        }
        self.schedule.after(1_000_000, Event::Undrain(node));
        if let Some(at) = (1..=self.count()).find(|at| self.node(*at).process.is_some()) {
            self.ask(at, Command::Drain(node, false));
        }
    }

    /// What has to do with moves and is not as it must become when all is well.
    pub(super) fn moving(&self) -> Vec<String> {
        let state = &self.coordinators.state;
        let mut waiting: Vec<String> = state.move_infos().map(|of| format!("{of:?} is not over")).collect();
        let emptied = self.emptied.and_then(|node| Some((node, state.node(node)?)));
        waiting.extend(emptied.filter(|(_, known)| !known.draining || known.streamlets > 0).map(|(node, known)| {
            let (draining, has) = (known.draining, known.streamlets);
            format!("node {node} is to be empty and owns {has} streamlets; it is being drained: {draining}")
        }));
        for info in state.catalog.streams() {
            let held = state.owners(info.id).into_iter().flat_map(|owners| owners.held());
            let lost = held.filter(|held| held.lost || state.node(held.node).is_none_or(|node| node.fenced));
            waiting.extend(lost.map(|held| format!("stream {}: {held:?} is lost and not gathered", info.id)));
        }
        waiting
    }

    /// A node is told to stop: what is under way is answered, in runs in which nodes do that; then nobody is served any more, and everything goes to its disk.
    pub(super) fn stop(&mut self, node: u32) -> bool {
        let now_us = self.now_us();
        let (life, until_us, finishes) = (self.node(node).life, now_us + SETTLE_US, self.plan.finishes);
        if now_us < self.node(node).frozen_until_us {
            return false;
        }
        let Some(process) = &mut self.node_mut(node).process else { return false };
        if process.stopping.is_some() {
            return false;
        }
        let Some(running) = process.running.as_mut().filter(|running| running.hearing.serves()) else { return false };
        process.stopping = Some(until_us);
        running.broker.stop();
        if finishes {
            let mut said = Vec::new();
            running.sessions.stop(&mut said);
            process.finishing = Some(now_us + FINISH_US);
            self.send_all(said);
        } else {
            self.serve_nobody(node);
        }
        self.schedule.after(1_000, Event::Stopping(node, life));
        true
    }

    /// Nobody is served by a node any more, and nothing is rebuilt.
    fn serve_nobody(&mut self, node: u32) {
        if let Some(running) = self.node_mut(node).running() {
            running.sessions.close_all();
            running.recovery.stop();
            running.log.close_all();
        }
        self.hang_up(node);
    }

    /// Whether a node that is stopped still answers what is under way. Once it does not any more backups are waited for.
    fn finishes(&mut self, node: u32) -> bool {
        let now_us = self.now_us();
        let Some(process) = &mut self.node_mut(node).process else { return false };
        let Some(until_us) = process.finishing else { return false };
        let is_over = process.running.as_ref().is_none_or(|running| running.sessions.are_over());
        if is_over || now_us >= until_us {
            (process.finishing, process.stopping) = (None, Some(now_us + SETTLE_US));
            self.serve_nobody(node);
        }
        true
    }

    /// It ends when everything is on disk, or when it has waited long enough: then its arena stays.
    pub(super) fn go_on_stopping(&mut self, node: u32) {
        let (now_us, life) = (self.now_us(), self.node(node).life);
        let planted = self.plan.planted == Some(Planted::StopsUnsettled);
        if self.finishes(node) {
            return self.schedule.after(1_000, Event::Stopping(node, life));
        }
        let Some(process) = &self.node(node).process else { return };
        let (Some(until_us), Some(running)) = (process.stopping, &process.running) else { return };
        let is_settled = planted || running.log.is_settled();
        if !is_settled && now_us < until_us {
            self.schedule.after(2_000, Event::Stopping(node, life));
            return;
        }
        let flushed = running.flush() && is_settled;
        if self.node(node).memory.is_off() {
            // The power went meanwhile.
            return;
        }
        *self.events_of.entry(if flushed { "stopped" } else { "stopped with its arena" }).or_default() += 1;
        if flushed {
            self.node_mut(node).was_stopped = true;
            self.node(node).forget_arena();
        }
        self.kill(node, None);
    }
}

/// What a node would hand over to itself while something in the log that the streamlet is in is not acknowledged: a defect. Everything is here
/// already, so it says only whose it is and where lanes go on if this node is lost.
fn unsettled(log: &Log, asked: &LetGo) -> StreamletState {
    let found = log.stream(asked.stream);
    let place = found.as_ref().and_then(|found| found.streamlet(asked.streamlet));
    let lane = |lane: LaneHandover| LaneState {
        lane: lane.lane,
        next_ordinal: lane.next_ordinal,
        last_append_ms: lane.last_append_ms,
        memory: Memory::Whole,
        producers: Vec::new(),
        groups: Vec::new(),
    };
    StreamletState {
        stream: asked.stream,
        streamlet: asked.streamlet,
        epoch: place.map_or(0, |place| place.owner_epoch()),
        lanes: place.map_or_else(Vec::new, |place| place.hand_over().into_iter().map(lane).collect()),
        progress: Vec::new(),
    }
}

/// What is handed over, without what a defect leaves out.
fn spoiled(mut state: StreamletState, planted: Option<Planted>) -> StreamletState {
    if planted == Some(Planted::HandsOverNoPositions) {
        state.progress.clear();
    }
    for lane in &mut state.lanes {
        match planted {
            Some(Planted::HandsOverNoOrdinals) => lane.next_ordinal = 0,
            Some(Planted::HandsOverNoProducers) => lane.producers.clear(),
            _ => {}
        }
    }
    state
}
