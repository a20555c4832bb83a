//! What nodes say to each other: on its way, and where it arrives.

use std::sync::Arc;

use bytes::Bytes;
use kera_backup::{BackupError, Taken};
use kera_broker::NoStates;
use kera_coordinator::cluster::ToldEnd;
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_protocol::{BlockStored, ListReplicas, LogView, Status, StoreHead, StoreOutcome};
use kera_vlog::Answer as Stored;

use super::copies::lock;
use super::network::Packet;
use super::plan::Planted;
use super::recovering::{Question, Reply};
use super::world::{Event, World};
use crate::cluster::truth::Violation;

impl World {
    /// Puts a packet on its way. A packet to a process that is gone is lost, and so is one that is cut off.
    pub(super) fn tell(&mut self, from: u32, to: u32, packet: Packet) {
        let (now_us, mut delay_us) = (self.now_us(), 50 + self.below(400));
        if from != to && self.is_troubled {
            match self.below(200) {
                0 | 1 => return,
                2 | 3 => self.put(from, to, delay_us + self.below(20_000), packet.clone()),
                4..=7 => delay_us += self.below(20_000),
                _ => {}
            }
        }
        if from != to && self.cuts.until_us(from, to) > now_us {
            return self.unreachable(from, to, &packet, 100_000);
        }
        if self.node(to).process.is_none() {
            return self.unreachable(from, to, &packet, 1_000);
        }
        self.put(from, to, delay_us, packet);
    }

    pub(super) fn put(&mut self, from: u32, to: u32, delay_us: u64, packet: Packet) {
        let life = self.node(to).life;
        self.schedule.after(delay_us, Event::Packet(from, to, life, packet));
    }

    /// Whoever sends blocks is told by its own machine that nobody takes them.
    pub(super) fn unreachable(&mut self, from: u32, to: u32, packet: &Packet, after_us: u64) {
        if let Packet::Block(head, _) = packet {
            self.put(from, from, after_us + self.below(after_us), Packet::Broken(to, head.log));
        }
    }

    pub(super) fn arrive(&mut self, from: u32, to: u32, life: u32, packet: Packet) -> Result<(), Violation> {
        if !self.is_of(to, life) {
            self.unreachable(from, to, &packet, 1_000);
            return Ok(());
        }
        match packet {
            Packet::Block(head, chunks) => self.store_block(from, to, &head, &chunks),
            Packet::Stored(log, life, block, answer) => {
                if let Some(log) = self.node_mut(to).running().and_then(|running| running.copies.get(log)) {
                    log.answered(from, life.into(), block, answer);
                }
            }
            Packet::Broken(backup, log) => {
                if let Some(log) = self.node_mut(to).running().and_then(|running| running.copies.get(log)) {
                    log.broken(backup, format!("backup {backup} cannot be reached"));
                }
            }
            Packet::Release(release) => {
                if let Some(running) = self.node_mut(to).running() {
                    running.backup.release(&release);
                    *self.events_of.entry("gave copies of a log back").or_default() += 1;
                }
            }
            Packet::Alive(epoch) => {
                let now_us = self.now_us();
                let node = self.node_mut(to);
                let is_known = lock(&node.known).node(from).is_some();
                if let Some(process) = node.process.as_mut().filter(|_| is_known) {
                    process.heard.insert(from, (epoch, now_us));
                }
            }
            Packet::Command(number, command) => return self.command(from, to, number, &command),
            Packet::Done(number, told) => {
                if let Some(process) = &mut self.node_mut(to).process
                    && let Some(pending) = process.pending.get_mut(&number)
                {
                    pending.told = Some(told);
                }
                return self.finish(to);
            }
            Packet::NotLeader(number) => {
                self.try_again(to, number, 50_000);
            }
            Packet::Learn(index) => return self.learn(to, index),
            Packet::Fence { node, epoch, logs } => self.fence(from, to, (node, epoch), &logs),
            Packet::Fenced { node, epoch, ends } => return self.fenced(to, from, (node, epoch), ends),
            Packet::Ask(which, number, question) => self.asked_for_blocks(from, to, (which, number), &question),
            Packet::Told(which, number, reply) => {
                let running = self.node_mut(to).running();
                if running.is_some_and(|running| running.recovery.asked[which] == number) {
                    return self.resume(to, which, Some(reply));
                }
            }
            Packet::LetGo(question, asked) => self.let_go(to, from, question, asked, 0),
            Packet::LetGone(question, answer) => return self.let_gone(to, question, answer),
            Packet::Offer(offered) => self.offered(to, &offered),
            Packet::Refused(of, epoch) => self.refused(to, of, epoch),
            Packet::Lacking(of, epoch, lanes) => self.lacking(to, of, epoch, &lanes),
        }
        Ok(())
    }

    /// A backup says what it has of blocks of a log.
    fn asked_for_blocks(&mut self, from: u32, to: u32, (which, number): (usize, u64), question: &Question) {
        let unread = self.why_unread(question).or_else(|| self.why_away(question));
        let Some(running) = self.node_mut(to).running() else { return };
        let reply = match (question, unread) {
            (Question::Lanes(_), Some(why)) => Reply::Lanes(Err(why.into())),
            (Question::Blocks(_), Some(why)) => Reply::Blocks(Err(why)),
            (Question::Lanes(asked), None) => {
                let no_states = |error: BackupError| {
                    let is_too_much = error.status == Status::LimitReached;
                    NoStates { reason: error.reason, is_too_much, is_late: false }
                };
                Reply::Lanes(running.backup.lane_states(asked).map_err(no_states))
            }
            (Question::Blocks(asked), None) => {
                Reply::Blocks(running.backup.read_blocks(asked).map_err(|e| e.to_string()))
            }
        };
        if matches!(&reply, Reply::Lanes(Err(no_states)) if no_states.is_too_much) {
            *self.events_of.entry("lanes asked for in parts").or_default() += 1;
        }
        self.tell(to, from, Packet::Told(which, number, reply));
    }

    pub(super) fn store_block(&mut self, from: u32, to: u32, head: &StoreHead, chunks: &Bytes) {
        let life = self.node(to).life;
        let Some(running) = self.node_mut(to).running() else {
            let answer = Stored::Busy("this node keeps no copies yet".to_owned());
            return self.tell(to, from, Packet::Stored(head.log, life, head.block, answer));
        };
        running.next_store += 1;
        let number = running.next_store;
        let done = running.stored.clone() as Arc<dyn kera_backup::StoreDone>;
        let answer = match running.backup.store(head, chunks, &done, number) {
            Taken::Queued => {
                running.storing.insert(number, (from, head.log, head.block));
                return;
            }
            Taken::Answered(answer) => answer_of(Ok(answer)),
            Taken::Refused(error) => answer_of(Err(error)),
            Taken::Full => return,
        };
        self.tell(to, from, Packet::Stored(head.log, life, head.block, answer));
    }

    pub(super) fn fence(&mut self, leader: u32, to: u32, (node, epoch): (u32, u32), logs: &[LogView]) {
        let no_fence = self.plan.planted == Some(Planted::NoFence);
        let Some(running) = self.node_mut(to).running() else { return };
        let ends =
            match no_fence {
                true => Some(unfenced_ends(&running.backup, (node, epoch), logs)),
                false => running.backup.fence(node, epoch, logs).ok().map(|ends| {
                    ends.into_iter().map(|end| (LogName { node, epoch, log: end.vlog }, end.into())).collect()
                }),
            };
        self.tell(to, leader, Packet::Fenced { node, epoch, ends });
    }
}

pub(super) fn answer_of(result: Result<BlockStored, kera_backup::BackupError>) -> Stored {
    match result {
        Ok(BlockStored { outcome: StoreOutcome::Stored, block }) => Stored::Stored(block),
        Ok(BlockStored { outcome: StoreOutcome::Fenced, block }) => Stored::Fenced(block as u32),
        Ok(BlockStored { outcome: StoreOutcome::Next, block }) => Stored::Next(block),
        Err(error) if error.status == Status::Overloaded => Stored::Busy(error.to_string()),
        Err(error) => Stored::Refused(error.to_string()),
    }
}

/// How far a backup has logs, told without a fence: a defect.
fn unfenced_ends(backup: &kera_backup::Backup, (node, epoch): (u32, u32), logs: &[LogView]) -> Vec<(LogName, ToldEnd)> {
    let list = backup.list(&ListReplicas { after: None, limit: 0 });
    let end = |view: &LogView| {
        let of = LogId { node, epoch, vlog: view.vlog };
        let ranges = list.replicas.iter().filter(|replica| replica.log == of).flat_map(|replica| &replica.blocks);
        let last = ranges.map(|range| range.last).max().unwrap_or(0).max(view.first_block - 1);
        (LogName { node, epoch, log: view.vlog }, ToldEnd { through: last, certain: true, begun: 0 })
    };
    logs.iter().map(end).collect()
}
