//! Nodes and the coordinators' log: asking the leader, and joining; and how processes begin and end.

use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::ClusterState;
use kera_env::Clock;
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_vlog::{View, ViewAnswer};

use super::coordinators::{Command, Told};
use super::copies::lock;
use super::network::Packet;
use super::node::{Pending, StartError};
use super::recovering::Reply;
use super::world::{Event, Wire, World};
use crate::cluster::truth::Violation;

impl World {
    /// Asks the leader for something, until it is answered or has taken too long.
    pub(super) fn ask(&mut self, node: u32, command: Command) -> u64 {
        let number = self.number();
        let until_us = match command {
            Command::Join(_) => u64::MAX,
            _ => self.now_us() + 10_000_000,
        };
        let life = self.node(node).life;
        if let Some(process) = &mut self.node_mut(node).process {
            process.pending.insert(number, Pending { command, next_us: 0, until_us, told: None });
            self.schedule.after(1, Event::Retry(node, life, number));
        }
        number
    }

    pub(super) fn retry(&mut self, node: u32, number: u64) -> Result<(), Violation> {
        let now_us = self.now_us();
        let Some(process) = &mut self.node_mut(node).process else { return Ok(()) };
        let Some(pending) = process.pending.get_mut(&number).filter(|pending| pending.told.is_none()) else {
            return Ok(());
        };
        if now_us > pending.until_us {
            let pending = process.pending.remove(&number).expect("it was there");
            return self.finished(node, number, pending.command, None);
        }
        if now_us < pending.next_us {
            // It was tried again in between, and will be.
            return Ok(());
        }
        let command = pending.command.clone();
        let leader = self.coordinators.leader.filter(|leader| self.cuts.is_whole(node, *leader, now_us));
        let pause_us = if leader.is_some() { 1_000_000 } else { 50_000 };
        self.try_again(node, number, pause_us);
        if let Some(leader) = leader {
            self.tell(node, leader, Packet::Command(number, command));
        }
        Ok(())
    }

    pub(super) fn try_again(&mut self, node: u32, number: u64, pause_us: u64) {
        let next_us = self.now_us() + pause_us;
        let life = self.node(node).life;
        let Some(process) = &mut self.node_mut(node).process else { return };
        if let Some(pending) = process.pending.get_mut(&number) {
            pending.next_us = next_us;
            self.schedule.at(next_us, Event::Retry(node, life, number));
        }
    }

    /// The leader is asked for something.
    pub(super) fn command(&mut self, from: u32, leader: u32, number: u64, command: &Command) -> Result<(), Violation> {
        // Who asks tries again soon, as it does if another one leads.
        if !self.leads(leader) || self.looks_before(leader, command) || self.has_to_wait(command) {
            self.tell(leader, from, Packet::NotLeader(number));
            return Ok(());
        }
        let before = self.coordinators.index();
        let holds =
            |log: &LogName| self.coordinators.state.holdings().iter().any(|of| of.node == log.node && of.held > 0);
        let given_up = matches!(command, Command::GiveUp(log, _) if holds(log));
        let told = self.coordinators.execute(command, self.clock.now_ms())?;
        if !self.agree(leader)? {
            // It may become true all the same, and is asked for again as what was answered and not heard is.
            self.tell(leader, from, Packet::NotLeader(number));
            return Ok(());
        }
        if given_up && told.is_ok() {
            *self.events_of.entry("holders gave up logs").or_default() += 1;
        }
        self.spread(leader, before)?;
        if let (Command::Join(join), Some(process)) = (command, &mut self.node_mut(leader).process) {
            process.heard.remove(&join.node);
        }
        self.tell(leader, from, Packet::Learn(self.coordinators.index()));
        self.tell(leader, from, Packet::Done(number, told));
        Ok(())
    }

    /// Whether somebody is told to come again.
    fn has_to_wait(&self, command: &Command) -> bool {
        let Command::Join(join) = command else { return false };
        if self.coordinators.forgets_numbers {
            return false;
        }
        matches!(self.coordinators.state.plan_join(join, 0), Err(CoordinatorError::NoLeader(_)))
    }

    /// Commands of a node that was told by now of all that follows from them.
    pub(super) fn finish(&mut self, number: u32) -> Result<(), Violation> {
        loop {
            let node = self.node_mut(number);
            let heard = node.heard();
            let Some(process) = &mut node.process else { return Ok(()) };
            let is_done = |pending: &Pending| match &pending.told {
                Some(Ok(index)) => *index <= heard,
                Some(Err(_)) => true,
                None => false,
            };
            let done = process.pending.iter().find(|(_, pending)| is_done(pending)).map(|(at, _)| *at);
            let Some(at) = done else { return Ok(()) };
            let pending = process.pending.remove(&at).expect("it was there");
            self.finished(number, at, pending.command, pending.told)?;
        }
    }

    /// A command is done, refused, or given up.
    pub(super) fn finished(
        &mut self,
        number: u32,
        at: u64,
        command: Command,
        told: Option<Told>,
    ) -> Result<(), Violation> {
        match (command, told) {
            (Command::Join(_), Some(Err(why))) => Err(Violation(format!("node {number} may not join: {why}"))),
            (Command::Join(_), _) => self.joined(number),
            (Command::View(view), told) => {
                let epoch = self.node(number).epoch;
                let known = self.node(number).known.clone();
                let Some(running) = self.node_mut(number).running() else { return Ok(()) };
                let log = LogId::from(view.log);
                lock(&running.copies.asking).remove(&log);
                let asked = View { number: view.view, first: view.first, backups: view.backups };
                let answer = match told {
                    Some(Ok(_)) => ViewAnswer::Agreed(asked),
                    Some(Err(_)) => refusal(&lock(&known), (number, epoch), view.log, asked),
                    None => return Ok(()),
                };
                if let Some(log) = running.copies.get(log) {
                    log.view_answered(answer);
                }
                Ok(())
            }
            (Command::Rebuilt(_), told) => {
                self.reported(number, at, matches!(told, Some(Ok(_))));
                Ok(())
            }
            (Command::Needs(_), _) => {
                if let Some(running) = self.node_mut(number).running()
                    && running.recovery.telling == Some(at)
                {
                    running.recovery.telling = None;
                }
                Ok(())
            }
            (Command::UseEnds(_), told) => {
                let Some(running) = self.node_mut(number).running() else { return Ok(()) };
                if running.recovery.using != Some(at) {
                    return Ok(());
                }
                running.recovery.using = None;
                let heard = told.unwrap_or_else(|| Err("the coordinators do not answer".into())).map(drop);
                self.resume(number, 0, Some(Reply::Said(heard)))
            }
            (Command::FinishMove(of), told) => {
                self.move_finished(number, of.number, matches!(told, Some(Ok(_))));
                Ok(())
            }
            (Command::Made(made), told) => {
                self.copies_told(number, made, told.map(|told| told.is_ok()));
                Ok(())
            }
            (Command::GiveUp(..) | Command::GiveUpView(..) | Command::GroupsGone(_) | Command::Alter(..), _)
            | (Command::Move(..) | Command::Renew(..) | Command::Drain(..) | Command::Remove(_), _)
            | (Command::Create(_) | Command::Delete(_), _) => Ok(()),
            (Command::SetFloors(asked), told) => {
                self.floors_noted(number, &asked, matches!(told, Some(Ok(_))));
                Ok(())
            }
            (Command::AcceptLoss(_) | Command::AcceptStreamletLoss(_), _)
            | (Command::Returned(_) | Command::GiveBack(_), _) => Ok(()),
        }
    }

    /// The coordinators were told what is rebuilt.
    fn reported(&mut self, number: u32, at: u64, is_done: bool) {
        let Some(running) = self.node_mut(number).running() else { return };
        if running.recovery.reporting != Some(at) {
            return;
        }
        running.recovery.reporting = None;
        if is_done {
            running.recovery.to_report.clear();
            running.recovery.needs.pop_front();
        }
    }

    pub(super) fn start(&mut self, number: u32) -> Result<(), Violation> {
        if self.node(number).process.is_some() || self.node(number).is_gone || self.is_stopped_for_good(number) {
            return Ok(());
        }
        *self.events_of.entry("starts").or_default() += 1;
        let join = self.join_of(number);
        let node = self.node_mut(number);
        node.came_with_all = join.has_all;
        // Its identity says so to one start only.
        node.first_start = false;
        node.begin();
        let life = node.life;
        self.know_from_disk(number)?;
        if !self.open_voter(number)? {
            return Ok(());
        }
        if self.node(number).is_coordinator {
            self.schedule.after(1_000, Event::Coordinate(number, life));
        }
        // It was there when the cluster was founded.
        self.ask(number, Command::Join(join));
        Ok(())
    }

    pub(super) fn joined(&mut self, number: u32) -> Result<(), Violation> {
        let node = self.node_mut(number);
        let epoch = lock(&node.known).node(number).map_or(0, |known| known.epoch);
        if lock(&node.known).node(number).is_some_and(|known| known.fenced) {
            // It was declared lost meanwhile, and starts again before it cuts anything: see `crates/server/src/cluster/leftovers.rs`.
            self.kill(number, None);
            return Ok(());
        }
        match node.open(epoch) {
            Ok(()) => {
                self.look_at_clock(number);
                let life = self.node(number).life;
                self.schedule.after(1_000, Event::Beat(number, life));
                self.schedule.after(700, Event::Store(number, life));
                self.schedule.after(1_500, Event::LogTimers(number, life));
                if self.node(number).has_own_logs {
                    self.schedule.after(900, Event::OwnLogs(number, life));
                }
                if self.is_compacting {
                    self.schedule.after(300_000, Event::Compact(number, life));
                }
                self.schedule.after(2_000, Event::Recover(number, life));
                let tick_us = self.below(500_000);
                self.schedule.after(tick_us, Event::Tick(number, life));
                if self.plan.in_pieces {
                    let begins_us = self.begins_us();
                    self.schedule.after(begins_us, Event::Follow(number, life));
                }
                self.look_at_moves(number);
                self.after_turn(number)
            }
            Err(StartError::Disk) => {
                match self.node(number).memory.is_off() {
                    true => self.lose_power(number),
                    false => self.kill(number, None),
                }
                Ok(())
            }
            Err(StartError::Unsound(why)) => Err(Violation(why)),
        }
    }

    /// Connections with a node are over, and their clients learn of it.
    pub(super) fn hang_up(&mut self, node: u32) {
        let open = |wire: &&Wire| wire.node == node && wire.is_open_at_node;
        let wires: Vec<u64> = self.wires.iter().filter(|(_, wire)| open(wire)).map(|(id, _)| *id).collect();
        for wire in wires {
            self.send(wire, 1, Event::LostAtClient(wire));
            if let Some(known) = self.wires.get_mut(&wire) {
                known.is_open_at_node = false;
            }
        }
    }

    /// A process has ended.
    pub(super) fn ended(&mut self, node: u32, back_us: Option<u64>) {
        self.hang_up(node);
        self.forget_answers(node);
        let held = std::mem::take(&mut self.held);
        let (own, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|(of, ..)| *of == node);
        self.held = others;
        for (.., event) in own {
            // Frames were for the process that is gone; the rest is for the world.
            if let Event::Connected(wire) = event {
                self.schedule.after(1_000, Event::LostAtClient(wire));
            }
        }
        let pause_us = back_us.unwrap_or_else(|| match self.below(2) {
            0 => 20_000 + self.below(200_000),
            _ => 100_000 + self.below(4_000_000),
        });
        self.schedule.after(pause_us, Event::Start(node));
    }
}

/// What a refusal means, by what the node knows: that may be a little old, and then it asks once more.
fn refusal(state: &ClusterState, me: (u32, u32), log: LogName, asked: View) -> ViewAnswer {
    if !state.is_live(me.0, me.1) {
        return ViewAnswer::Fenced;
    }
    let agreed = state.newest_view(log);
    let of = |(number, view): (u32, &kera_coordinator::cluster::View)| View {
        number,
        first: view.first,
        backups: view.backups.clone(),
    };
    let newest = agreed.map_or(View::NONE, of);
    ViewAnswer::Refused { asked, newest }
}
