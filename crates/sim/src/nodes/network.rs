//! What nodes say to each other, and who hears whom. Any packet may be lost, late, overtaken or doubled: what a broken connection loses,
//! and what comes twice because it was sent again.

use bytes::Bytes;
use kera_coordinator::cluster::{Offerable, ToldEnd};
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_protocol::{LetGo, LogView, OfferGroups, ReleaseBlocks, StoreHead, WholeLane};
use kera_vlog::Answer;

use super::coordinators::{Command, Told};
use super::recovering::{Question, Reply};

/// A message between nodes.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Block(StoreHead, Bytes),
    /// What a backup says of a block, in which of its lives.
    Stored(LogId, u32, u64, Answer),
    /// A connection to a backup cannot be made or broke: told by the sender's own machine.
    Broken(u32, LogId),
    Release(ReleaseBlocks),
    /// A sign of life of an incarnation.
    Alive(u32),
    Command(u64, Command),
    Done(u64, Told),
    /// Whoever was asked does not lead: it may be asked again.
    NotLeader(u64),
    /// The log of the coordinators, up to a batch.
    Learn(usize),
    Fence {
        node: u32,
        epoch: u32,
        logs: Vec<LogView>,
    },
    Fenced {
        node: u32,
        epoch: u32,
        ends: Option<Vec<(LogName, ToldEnd)>>,
    },
    /// Of a recovery: which of the workers, and the number of the question.
    Ask(usize, u64, Question),
    Told(usize, u64, Reply),
    /// The next owner of a streamlet asks the present one to let go of it, with the number of the question.
    LetGo(u64, LetGo),
    /// What that says: the state that goes along, nothing as long as not all is acknowledged, or why it does not let go.
    LetGone(u64, Result<Vec<u8>, String>),
    /// A node that came back has what another one rebuilds.
    Offer(OfferGroups),
    /// The epoch of it that is named never holds that again: it is not all.
    Refused(Offerable, u32),
    /// It lacks these ends of lanes, which it has cut off.
    Lacking(Offerable, u32, Vec<WholeLane>),
}

/// Who hears whom: nodes by their numbers, clients as 0.
pub(super) struct Cuts {
    until_us: Vec<Vec<u64>>,
}

impl Cuts {
    pub(super) fn new(nodes: u32) -> Cuts {
        let count = nodes as usize + 1;
        Cuts { until_us: vec![vec![0; count]; count] }
    }

    /// Nothing gets from one to the other until then.
    pub(super) fn cut(&mut self, from: u32, to: u32, until_us: u64) {
        let at = &mut self.until_us[from as usize][to as usize];
        *at = until_us.max(*at);
    }

    /// Until when nothing gets from one to the other.
    pub(super) fn until_us(&self, from: u32, to: u32) -> u64 {
        self.until_us[from as usize][to as usize]
    }

    /// Whether each hears the other.
    pub(super) fn is_whole(&self, one: u32, other: u32, now_us: u64) -> bool {
        self.until_us(one, other) <= now_us && self.until_us(other, one) <= now_us
    }

    pub(super) fn heal(&mut self) {
        self.until_us.iter_mut().flatten().for_each(|until| *until = 0);
    }
}
