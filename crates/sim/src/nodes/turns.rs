//! Turns of a node's threads, and what a node wants of the world after one.

use kera_coordinator::cluster::LogView as WantedView;
use kera_format::LaneId;
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_protocol::{StreamletsRebuilt, UseEnds, UsedEnd};
use kera_vlog::{Answer as Stored, Block, Turn, View};

use super::coordinators::Command;
use super::copies::{Out, lock};
use super::network::Packet;
use super::packets::answer_of;
use super::plan::Planted;
use super::recovering::{Question, Reply, SILENCE, Wants};
use super::sessions::Said;
use super::world::{ASK_US, BEAT_US, Event, PAUSE_US, World};
use crate::cluster::truth::Violation;

impl World {
    /// What a node wants of the world after it did something.
    pub(super) fn after_turn(&mut self, node: u32) -> Result<(), Violation> {
        let now_us = self.now_us();
        if self.node(node).memory.is_off() {
            self.lose_power(node);
            return Ok(());
        }
        let (mut said, jitter_us) = (Vec::new(), 20 + self.below(100));
        let life = self.node(node).life;
        let is_stopping = self.node(node).process.as_ref().is_some_and(|process| process.stopping.is_some());
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        running.sessions.settle(now_us, &mut said);
        let went_on = std::mem::take(&mut running.sessions.went_on);
        let out = std::mem::take(&mut *lock(&running.copies.out));
        let mut planned = Vec::new();
        if !running.turns.logs {
            running.turns.logs = true;
            planned.push((now_us + jitter_us, Event::Logs(node, life)));
        }
        if !running.turns.backup && (!running.storing.is_empty() || running.backup.has_to_settle()) {
            running.turns.backup = true;
            planned.push((now_us + jitter_us, Event::Backup(node, life)));
        }
        if let Some(at_us) = running.sessions.deadline_us()
            && running.turns.deadline_us.is_none_or(|planned| at_us < planned)
        {
            running.turns.deadline_us = Some(at_us);
            planned.push((at_us, Event::Deadline(node, life)));
        }
        planned.into_iter().for_each(|(at_us, event)| self.schedule.at(at_us, event));
        if went_on > 0 {
            *self.events_of.entry("went on with what was held back").or_default() += went_on;
        }
        if is_stopping && !said.is_empty() {
            let answers = said.iter().filter(|one| matches!(one, Said::Frame(..))).count() as u64;
            *self.events_of.entry("answered while it was being stopped").or_default() += answers;
        }
        self.send_all(said);
        for one in out {
            self.went_out(node, one);
        }
        Ok(())
    }

    pub(super) fn went_out(&mut self, node: u32, out: Out) {
        match out {
            Out::Block(to, head, chunks) => {
                if self.plan.planted == Some(Planted::AcknowledgesEarly) {
                    let running = self.node_mut(node).running();
                    let log = running.and_then(|running| running.copies.get(head.log));
                    let last = log.as_ref().and_then(|log| log.state().1.backups.last().copied());
                    if let Some(log) = log.filter(|_| last == Some(to)) {
                        log.answered(to, self.node(to).life.into(), head.block, Stored::Stored(head.block));
                    }
                }
                if self.plan.planted == Some(Planted::BelievesTheSilent) && Block::asks(head.block) {
                    let life = self.node(to).life.into();
                    let running = self.node_mut(node).running();
                    if let Some(log) = running.and_then(|running| running.copies.get(head.log)) {
                        log.answered(to, life, head.block, Stored::Next(1));
                    }
                    return;
                }
                if !Block::asks(head.block) {
                    self.told.losses.sent(head.log, head.block, &chunks);
                }
                self.tell(node, to, Packet::Block(head, chunks));
            }
            Out::Release(to, release) => self.tell(node, to, Packet::Release(release)),
            Out::Ask(log, view) => self.ask_for_view(node, log, &view),
            Out::GiveUpView(log, view) => {
                let name = LogName::from(log);
                self.ask(node, Command::GiveUpView(name, view));
            }
            // It ends this incarnation and begins the next at once.
            Out::Fenced => {
                let process = self.node(node).process.as_ref();
                if process.is_some_and(|process| process.stopping.is_none()) {
                    self.start_again(node);
                }
            }
        }
    }

    pub(super) fn start_again(&mut self, node: u32) {
        *self.events_of.entry("started again").or_default() += 1;
        let back_us = 20_000 + self.below(50_000);
        self.kill(node, Some(back_us));
    }

    pub(super) fn ask_for_view(&mut self, node: u32, log: LogId, view: &View) {
        let Some(running) = self.nodes[node as usize - 1].running() else { return };
        if !lock(&running.copies.asking).insert(log) {
            return;
        }
        let mut first = view.first;
        if self.plan.planted == Some(Planted::ViewBehindWritten) && view.number > 1 {
            first += running.copies.get(log).map_or(0, |log| log.stats().under_way);
        }
        let name = LogName::from(log);
        let wanted = WantedView { log: name, view: view.number, first, backups: view.backups.clone() };
        self.ask(node, Command::View(wanted));
    }

    pub(super) fn run_logs(&mut self, node: u32, _: u32) -> Result<(), Violation> {
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        running.turns.logs = false;
        let mut worked = false;
        for log in running.copies.all() {
            worked |= log.run_once() == Turn::Worked;
        }
        // Otherwise nothing happens before something happened; what this turn itself set off comes with the next.
        running.turns.logs = !worked;
        self.look_at_copied(node)?;
        self.after_turn(node)?;
        if let Some(running) = self.node_mut(node).running()
            && !worked
        {
            running.turns.logs = false;
        }
        Ok(())
    }

    pub(super) fn run_backup(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        let disk_us = self.node(node).disk_us;
        let pause_us = disk_us + self.below(disk_us);
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        running.backup.run_once(0);
        let _ = running.backup.settle_fenced(0) || running.backup.sync_full(0);
        let mut answers = Vec::new();
        for (number, result) in running.stored.take() {
            if let Some((from, log, block)) = running.storing.remove(&number) {
                answers.push((from, Packet::Stored(log, life, block, answer_of(result))));
            }
        }
        running.turns.backup = !running.storing.is_empty() || running.backup.has_to_settle();
        if running.turns.backup {
            self.schedule.after(pause_us, Event::Backup(node, life));
        }
        if self.node(node).memory.is_off() {
            // The power went before anything was answered.
            return Ok(());
        }
        for (from, packet) in answers {
            self.tell(node, from, packet);
        }
        Ok(())
    }

    pub(super) fn beat(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        self.schedule.after(BEAT_US, Event::Beat(node, life));
        let epoch = self.node(node).epoch;
        let listeners = if self.stands_still(node) { Vec::new() } else { self.listeners() };
        for voter in listeners {
            self.tell(node, voter, Packet::Alive(epoch));
        }
        let process = self.node(node).process.as_ref();
        if !self.node(node).is_live() && process.is_some_and(|process| process.stopping.is_none()) {
            self.start_again(node);
        }
        Ok(())
    }

    pub(super) fn recover(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        self.schedule.after(10_000, Event::Recover(node, life));
        self.recovery_turn(node)
    }

    pub(super) fn recovery_turn(&mut self, node: u32) -> Result<(), Violation> {
        let now_us = self.now_us();
        let known = self.node(node).known.clone();
        let gives_up_held = self.node(node).gives_up_held;
        let says_too_little = self.plan.planted == Some(Planted::NeedsNothing);
        let planted = self.plan.planted;
        let Some(running) = self.node_mut(node).following() else { return Ok(()) };
        let given = running.give_back(&lock(&known), now_us);
        let started = running.recover(&lock(&known), now_us, planted);
        let old = running.old_logs(&lock(&known), now_us, gives_up_held);
        let report = (running.recovery.reporting.is_none() && !running.recovery.to_report.is_empty())
            .then(|| running.recovery.to_report.clone());
        let needs = running.needs_to_tell(&lock(&known), says_too_little);
        let epoch = running.epoch;
        self.offer(node);
        for asked in given {
            self.ask(node, Command::GiveBack(asked));
        }
        for which in started {
            self.resume(node, which, Some(Reply::GoOn))?;
        }
        for log in old {
            self.ask(node, Command::GiveUp(log, epoch));
        }
        if let Some(said) = needs {
            let number = self.ask(node, Command::Needs(said));
            if let Some(running) = self.node_mut(node).running() {
                running.recovery.telling = Some(number);
            }
        }
        if let Some(streamlets) = report {
            let number = self.ask(node, Command::Rebuilt(StreamletsRebuilt { node, epoch, streamlets }));
            if let Some(running) = self.node_mut(node).running() {
                running.recovery.reporting = Some(number);
            }
        }
        Ok(())
    }

    /// Lets a worker go on, with an answer or without one.
    pub(super) fn resume(&mut self, node: u32, which: usize, reply: Option<Reply>) -> Result<(), Violation> {
        let number = self.number();
        let planted = self.plan.planted;
        let life = self.node(node).life;
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        let recovery = &mut running.recovery;
        let reply = reply.unwrap_or_else(|| recovery.late[which].clone().unwrap_or(Reply::GoOn));
        let question = recovery.questions[which].take();
        self.heard_of_blocks(node, which, question, &reply);
        let Some(running) = self.node_mut(node).running() else { return Ok(()) };
        let recovery = &mut running.recovery;
        let Some(worker) = &mut recovery.workers[which] else { return Ok(()) };
        let wants = worker.resume(spoiled(reply, planted));
        (recovery.asked[which], recovery.late[which]) = (number, None);
        self.look_at_taken(node)?;
        self.look_at_cut(node)?;
        match wants {
            Wants::Backup(backup, question) => {
                let late = || SILENCE.to_owned();
                let late = match &question {
                    Question::Lanes(_) => Reply::Lanes(Err(late().into())),
                    Question::Blocks(_) => Reply::Blocks(Err(late())),
                };
                let (log, from, _) = question.blocks();
                if let Some(running) = self.node_mut(node).running() {
                    running.recovery.late[which] = Some(late);
                    running.recovery.questions[which] = Some((backup, log, from));
                }
                self.schedule.after(ASK_US, Event::GoOn(node, life, which, number));
                self.tell(node, backup, Packet::Ask(which, number, question));
            }
            Wants::Ends(ends) => self.say_ends(node, which, number, ends),
            Wants::Pause => self.schedule.after(PAUSE_US, Event::GoOn(node, life, which, number)),
            Wants::TakenOver(taken, left_out) => {
                *self.events_of.entry("taken over").or_default() += u64::from(taken.is_ok());
                if left_out > 0 {
                    *self.events_of.entry("opened without what was given up for it").or_default() += 1;
                }
                if let Some(running) = self.node_mut(node).running() {
                    running.taken_over(taken);
                }
            }
            Wants::Mended(id, done) => {
                *self.events_of.entry("mended").or_default() += u64::from(done.is_ok());
                let has_older = done.as_ref().is_err_and(|not| not.has_older);
                if let Some(running) = self.node_mut(node).running() {
                    running.mended(id, done);
                }
                if has_older {
                    // A person starts the node again, as it says that somebody should.
                    *self.events_of.entry("rebuilt as it was").or_default() += 1;
                    self.kill(node, Some(1_000_000));
                }
            }
            Wants::Rebuilt(done, went_on) => {
                *self.events_of.entry("rebuilt").or_default() += u64::from(done.is_ok());
                if went_on > 0 {
                    *self.events_of.entry("went on without what was given up for it").or_default() += went_on;
                }
                if let Some(running) = self.node_mut(node).running() {
                    running.rebuilt(done);
                }
            }
        }
        Ok(())
    }
}

impl World {
    /// A new owner is about to open streamlets with these ends of logs, and waits until the coordinators know it.
    fn say_ends(&mut self, node: u32, which: usize, number: u64, ends: Vec<(LogId, u64)>) {
        let life = self.node(node).life;
        let ends: Vec<UsedEnd> = ends.into_iter().map(|(log, end)| UsedEnd { log, end }).collect();
        let at = &mut self.nodes[node as usize - 1];
        let known = std::sync::Arc::clone(&at.known);
        let Some(running) = at.running() else { return };
        let said = UseEnds { node, epoch: running.epoch, ends };
        let known = lock(&known);
        // These ends stay already, or nobody takes any back.
        let is_settled = !known.takes_used_ends() || known.plan_use_ends(&said).is_ok_and(|entries| entries.is_empty());
        if is_settled {
            running.recovery.late[which] = Some(Reply::Said(Ok(())));
            return self.schedule.after(1, Event::GoOn(node, life, which, number));
        }
        let asked = self.ask(node, Command::UseEnds(said));
        if let Some(running) = self.node_mut(node).running() {
            running.recovery.using = Some(asked);
        }
    }
}

/// What a backup says of lanes, without what a defect leaves out.
fn spoiled(reply: Reply, planted: Option<Planted>) -> Reply {
    let Reply::Lanes(Ok(mut list)) = reply else { return reply };
    match planted {
        Some(Planted::ForgetsProducers) => list.lanes.iter_mut().for_each(|lane| lane.producers.clear()),
        Some(Planted::ForgetsPositions) => list.lanes.retain(|lane| lane.lane != LaneId::PROGRESS),
        _ => {}
    }
    Reply::Lanes(Ok(list))
}
