//! The coordinators' log on their own disks, in runs that have it there (`Plan::coordinator_disks`): each of them writes votes, entries and snapshots with the real code, reads
//! them at its start, and leads or follows by what they say.
//!
//! What they say to each other is played, and each time is one event: who wants to lead asks all whom it hears for their votes, and who leads has all whom it hears
//! write what is planned. Disks fail between any two of these writes and in their midst. What too few have written is not true. Whoever leads next has it in its log and
//! makes it true, or has not, and others cut it off.
//!
//! What each has answered for is remembered here, and compared with what it finds when it starts; so is the state that it had with what its files make of the same entries.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use kera_env::Disk;
use kera_format::cluster::RaftPlace;
use kera_format::raft::{LogEntry, Payload, Record};
use kera_raft::{Ballot, OnDisk};

use super::copies::lock;
use super::faults::Fault;
use super::leading::ELECTION_US;
use super::node::StartError;
use super::plan::Planted;
use super::world::World;
use crate::cluster::truth::Violation;

/// Entries after which a coordinator writes the next snapshot, and how many of those in front of it its log keeps.
const SNAPSHOT_ENTRIES: usize = 30;
const KEPT_ENTRIES: usize = 6;
/// The largest file of a run.
const FILE_BYTES_MAX: usize = 64 << 20;

/// A coordinator's process, as far as it writes their log.
struct Voter {
    /// That of the process.
    life: u32,
    on_disk: OnDisk,
    /// A vote that it has answered for and not written: a defect.
    unwritten: Option<Ballot>,
    /// The highest term that others have told it of.
    heard: u64,
    /// Up to which entry it has a snapshot.
    snapshot: usize,
}

impl Voter {
    fn ballot(&self) -> Ballot {
        self.unwritten.max(self.on_disk.ballot()).unwrap_or_default()
    }
}

/// What a coordinator has answered for: it must find that, or what came behind it, whenever it starts.
#[derive(Clone, Copy, Default)]
struct Answered {
    ballot: Ballot,
    last: RaftPlace,
}

/// See the module.
#[derive(Default)]
pub(super) struct Voting {
    voters: BTreeMap<u32, Voter>,
    answered: BTreeMap<u32, Answered>,
    /// Where what is true is in their logs, the first at 1, or behind where one of them has gone on alone.
    places: Vec<RaftPlace>,
    /// Where that is.
    began: RaftPlace,
    /// For whom each has voted, by its number and the term.
    given: BTreeMap<(u32, u64), u32>,
    /// Whose disk has refused a write, so that their processes end.
    fallen: BTreeSet<u32>,
}

fn vote((term, node, committed): Ballot) -> Record {
    Record::Vote { term, node, committed }
}

/// Of two logs the one that goes further has the higher term at its end, and of those the higher index.
fn reach(last: RaftPlace) -> (u64, u64) {
    (last.term, last.index)
}

impl World {
    fn voter(&self, number: u32) -> Option<&Voter> {
        let voter = self.voting.as_ref()?.voters.get(&number)?;
        self.is_of(number, voter.life).then_some(voter)
    }

    fn voter_mut(&mut self, number: u32) -> Option<&mut Voter> {
        let (life, is_there) = (self.node(number).life, self.node(number).process.is_some());
        let voter = self.voting.as_mut()?.voters.get_mut(&number)?;
        (is_there && voter.life == life).then_some(voter)
    }

    /// The other coordinators that vote and that one of them hears.
    fn heard_by(&self, number: u32) -> Vec<u32> {
        let others = self.voters.iter().copied().filter(|other| *other != number);
        others.filter(|other| self.hears(number, *other)).collect()
    }

    fn true_entries(&self) -> u64 {
        self.voting.as_ref().map_or(0, |voting| voting.began.index + voting.places.len() as u64)
    }

    /// Has the first entries on the disks of all who vote, as a cluster that was founded has before anything goes wrong.
    pub(super) fn found_on_disks(&mut self) -> Result<(), Violation> {
        let Some(entries) = self.coordinators.proposed.take() else { return Ok(()) };
        let (ballot, place) = ((1, 1, true), RaftPlace { term: 1, leader: 1, index: 1 });
        let entry = LogEntry { place, payload: Payload::Entries(entries.clone()) };
        for number in self.voters.clone() {
            let node = self.node(number);
            let opened = OnDisk::open(Arc::new(node.disk.clone()), number, node.id);
            let mut on_disk = opened.map_err(|error| Violation(error.to_string()))?;
            let written = on_disk.write(vec![vote(ballot), Record::Appended(entry.clone())]);
            written.map_err(|error| Violation(error.to_string()))?;
            if let Some(voting) = &mut self.voting {
                voting.answered.insert(number, Answered { ballot, last: place });
            }
        }
        self.coordinators.make_true(entries)?;
        if let Some(voting) = &mut self.voting {
            voting.places.push(place);
        }
        Ok(())
    }

    /// Lets time pass until somebody leads, where that has to be chosen first.
    pub(super) fn wait_for_leader(&mut self) -> Result<(), Violation> {
        let leads = |world: &World| world.coordinators.leader.is_some_and(|leader| world.leads(leader));
        let until_us = self.now_us() + 10_000_000;
        while self.voting.is_some() && !leads(&*self) && self.now_us() < until_us {
            self.run_until(self.now_us() + 100_000)?;
        }
        Ok(())
    }

    /// A process of a coordinator reads what is on its disk, which must be what it has answered for. Whether it goes on.
    pub(super) fn open_voter(&mut self, number: u32) -> Result<bool, Violation> {
        if self.voting.is_none() || !self.node(number).is_coordinator {
            return Ok(true);
        }
        let node = self.node(number);
        let (life, disk): (u32, Arc<dyn Disk>) = (node.life, Arc::new(node.disk.clone()));
        match OnDisk::open(disk, number, node.id).map_err(|error| node.why(error)) {
            Ok(_) if self.node(number).memory.is_off() => {
                self.lose_power(number);
                Ok(false)
            }
            Ok(on_disk) => {
                if on_disk.snapshot() == self.coordinators.began_at as u64 {
                    // It was written, and its process did not live to know.
                    self.know_anew(number);
                }
                self.look_at_found(number, &on_disk)?;
                self.truth.checked();
                let snapshot = on_disk.snapshot() as usize;
                if let Some(voting) = &mut self.voting {
                    voting.voters.insert(number, Voter { life, on_disk, unwritten: None, heard: 0, snapshot });
                }
                Ok(true)
            }
            Err(StartError::Unsound(why)) => Err(Violation(why)),
            Err(StartError::Disk) => {
                match self.node(number).memory.is_off() {
                    true => self.lose_power(number),
                    false => self.kill(number, None),
                }
                Ok(false)
            }
        }
    }

    /// Compares what a coordinator finds with what it has answered for, and with what it knew.
    fn look_at_found(&self, number: u32, on_disk: &OnDisk) -> Result<(), Violation> {
        let answered = self.voting.as_ref().and_then(|voting| voting.answered.get(&number));
        let Answered { ballot, last } = answered.copied().unwrap_or_default();
        let (found, end) = (on_disk.ballot().unwrap_or_default(), on_disk.last());
        // Whoever leads for sure takes the place of one that was voted for in vain in the same term.
        let is_same = found.1 == ballot.1 || found.2;
        if found.0 < ballot.0 || (found.0 == ballot.0 && !is_same) {
            let message = format!("coordinator {number} has answered for the vote {ballot:?}, and finds {found:?}");
            return Err(Violation(message));
        }
        if reach(end) < reach(last) {
            let message =
                format!("coordinator {number} has answered for the entry {last:?}, and its log ends at {end:?}");
            return Err(Violation(message));
        }
        let node = self.node(number);
        let made = on_disk.state_at(node.applied as u64);
        let made = made.map_err(|why| Violation(format!("coordinator {number} has lost what it knew: {why}")))?;
        if made.snapshot() != lock(&node.known).snapshot() {
            let message = format!("the log of coordinator {number} makes another state of {} entries", node.applied);
            return Err(Violation(message));
        }
        Ok(())
    }

    /// A coordinator wants to lead: whether a majority votes for it and has all that its log has, which is true from then on. It is always so where they have no disks.
    pub(super) fn campaign(&mut self, candidate: u32) -> Result<bool, Violation> {
        if self.voting.is_none() {
            return Ok(true);
        }
        let Some(voter) = self.voter(candidate) else { return Ok(false) };
        let (term, last) = (voter.ballot().0.max(voter.heard) + 1, voter.on_disk.last());
        // Its own vote is on its disk before it asks anybody.
        if !self.votes(candidate, candidate, (term, last))? {
            return Ok(false);
        }
        let mut votes = 1;
        for other in self.heard_by(candidate) {
            votes += usize::from(self.votes(other, candidate, (term, last))?);
        }
        let is_chosen = votes * 2 > self.voters.len() && self.write_vote(candidate, (term, candidate.into(), true))?;
        if !is_chosen {
            *self.events_of.entry("elections of coordinators in vain").or_default() += 1;
            return Ok(false);
        }
        self.look_at_chosen(candidate, term)?;
        let before = self.true_entries();
        let leads = self.propose(candidate, Payload::Blank)?;
        if leads {
            let left = self.true_entries() - before - 1;
            *self.events_of.entry("elections of coordinators").or_default() += 1;
            *self.events_of.entry("entries that the next leader made true").or_default() += left;
        }
        Ok(leads)
    }

    /// Asks a coordinator for its vote.
    fn votes(&mut self, number: u32, candidate: u32, (term, last): (u64, RaftPlace)) -> Result<bool, Violation> {
        let Some(voter) = self.voter(number) else { return Ok(false) };
        let (known, own) = (voter.ballot().0, voter.on_disk.last());
        if term <= known || reach(own) > reach(last) {
            if let Some(asks) = self.voter_mut(candidate) {
                asks.heard = asks.heard.max(known);
            }
            return Ok(false);
        }
        if !self.write_vote(number, (term, candidate.into(), false))? {
            return Ok(false);
        }
        let before = self.voting.as_mut().and_then(|voting| voting.given.insert((number, term), candidate));
        match before.filter(|before| *before != candidate) {
            Some(before) => {
                let message =
                    format!("in term {term} coordinator {number} votes for {candidate}, and did for {before}");
                Err(Violation(message))
            }
            None => Ok(true),
        }
    }

    /// What is true and a coordinator that runs does not have.
    fn lacked_by(&self, number: u32) -> Option<RaftPlace> {
        let (voting, voter) = (self.voting.as_ref()?, self.voter(number)?);
        let (entries, end) = (voter.on_disk.entries(), voter.on_disk.last().index);
        let cut = entries.first_key_value().map_or(end, |(first, _)| first - 1);
        // What is cut off is in its snapshot.
        let mut behind = voting.places.iter().filter(|place| place.index > cut);
        let lacks = |place: &&RaftPlace| entries.get(&place.index).is_none_or(|entry| entry.place != **place);
        behind.find(lacks).copied()
    }

    /// Who was chosen has all that is true.
    fn look_at_chosen(&mut self, leader: u32, term: u64) -> Result<(), Violation> {
        self.truth.checked();
        match self.lacked_by(leader) {
            Some(place) => Err(Violation(format!(
                "coordinator {leader} leads in term {term} without the entry {place:?}, which is true"
            ))),
            None => Ok(()),
        }
    }

    /// Has what is planned written, and makes it true: whether it is. If a majority cannot write it nobody leads for a while.
    pub(super) fn agree(&mut self, leader: u32) -> Result<bool, Violation> {
        let Some(entries) = self.coordinators.proposed.take() else { return Ok(true) };
        // What an earlier try has left in its log becomes true first, when it is chosen again.
        let is_level = |voter: &Voter| voter.on_disk.last().index == self.true_entries();
        let may = self.leads(leader) && self.voter(leader).is_some_and(is_level);
        if may && self.propose(leader, Payload::Entries(entries))? {
            return Ok(true);
        }
        if self.coordinators.leader == Some(leader) {
            *self.events_of.entry("entries that too few coordinators have").or_default() += 1;
            self.coordinators.leader = None;
            self.coordinators.elect_at_us = Some(self.now_us() + ELECTION_US + self.below(ELECTION_US));
        }
        Ok(false)
    }

    /// Has an entry written by a leader and all whom it hears: whether a majority has it, so that it is true with all in front of it.
    fn propose(&mut self, leader: u32, payload: Payload) -> Result<bool, Violation> {
        let Some(voter) = self.voter(leader) else { return Ok(false) };
        let (ballot, index) = (voter.ballot(), voter.on_disk.last().index + 1);
        let place = RaftPlace { term: ballot.0, leader: leader.into(), index };
        if !self.write(leader, vec![Record::Appended(LogEntry { place, payload })])? {
            return Ok(false);
        }
        let mut have = 1;
        for other in self.heard_by(leader) {
            have += usize::from(self.follows((leader, ballot), other, index)?);
        }
        if have * 2 <= self.voters.len() {
            return Ok(false);
        }
        for index in self.true_entries() + 1..=index {
            let entry = self.voter(leader).and_then(|voter| voter.on_disk.entries().get(&index).cloned());
            let entry = entry.ok_or_else(|| Violation(format!("leader {leader} has no entry {index}")))?;
            let entries = match entry.payload {
                Payload::Blank => Vec::new(),
                Payload::Entries(entries) => entries,
            };
            self.coordinators.make_true(entries)?;
            if let Some(voting) = &mut self.voting {
                voting.places.push(entry.place);
            }
        }
        Ok(true)
    }

    /// A coordinator gets what a leader's log has and its own has not: whether it has it on its disk.
    fn follows(&mut self, (leader, ballot): (u32, Ballot), other: u32, through: u64) -> Result<bool, Violation> {
        let Some(voter) = self.voter(other) else { return Ok(false) };
        let known = voter.ballot();
        if known.0 > ballot.0 || (known != ballot && !self.write_vote(other, ballot)?) {
            return Ok(false);
        }
        if self.plan.planted == Some(Planted::AnswersUnwritten) {
            let last = self.voter(leader).map(|voter| voter.on_disk.last());
            let answered = self.voting.as_mut().and_then(|voting| voting.answered.get_mut(&other));
            if let (Some(last), Some(answered)) = (last, answered) {
                answered.last = last;
            }
            return Ok(true);
        }
        let records = self.to_write(leader, other, through);
        self.write(other, records)
    }

    /// What a coordinator has to write to have what another one has, up to an entry.
    fn to_write(&self, of: u32, to: u32, through: u64) -> Vec<Record> {
        let Some(voter) = self.voter(to) else { return Vec::new() };
        let own = voter.on_disk.entries().values().map(|entry| entry.place);
        let wrong = own.filter(|own| own.index <= through).find(|own| self.place(of, own.index) != Some(*own));
        let first = wrong.map_or(voter.on_disk.last().index + 1, |wrong| wrong.index);
        let cut = wrong.map(|wrong| Record::Truncated { from: wrong.index });
        let entries = (first..=through).filter_map(|index| self.entry(of, index)).map(Record::Appended);
        cut.into_iter().chain(entries).collect()
    }

    /// Where an entry is: one that is true, or one of this coordinator's log.
    fn place(&self, of: u32, index: u64) -> Option<RaftPlace> {
        let voting = self.voting.as_ref()?;
        let behind = index.checked_sub(voting.began.index)? as usize;
        let Some(at) = behind.checked_sub(1) else { return (index > 0).then_some(voting.began) };
        let is_true = voting.places.get(at).copied();
        is_true.or_else(|| Some(self.voter(of)?.on_disk.entries().get(&index)?.place))
    }

    fn entry(&self, of: u32, index: u64) -> Option<LogEntry> {
        if index > self.true_entries() {
            return self.voter(of)?.on_disk.entries().get(&index).cloned();
        }
        let payload = match self.coordinators.batch(index as usize) {
            [] => Payload::Blank,
            entries => Payload::Entries(entries.to_vec()),
        };
        Some(LogEntry { place: self.place(of, index)?, payload })
    }

    /// Whether a node may take entries to be true: a coordinator has them in its log before. Whose disk stands still learns nothing, unless it leads and others have them.
    pub(super) fn has_written(&mut self, number: u32, index: usize) -> Result<bool, Violation> {
        if self.is_stuck(number) && self.coordinators.leader != Some(number) {
            return Ok(false);
        }
        if self.voter(number).is_none() || self.plan.planted == Some(Planted::AnswersUnwritten) {
            return Ok(true);
        }
        let records = self.to_write(number, number, index as u64);
        self.write(number, records)
    }

    /// Whether a coordinator that runs has all that is true, with a snapshot that names those who vote.
    pub(super) fn may_go_on_alone(&self, number: u32) -> bool {
        self.voter(number).is_some_and(|voter| voter.snapshot > 0) && self.lacked_by(number).is_none()
    }

    /// Whether a coordinator has all that is true and nothing else, where that is on its disk.
    pub(super) fn is_level(&self, number: u32) -> bool {
        let has_all = |voter: &Voter| voter.on_disk.last().index == self.true_entries();
        self.voting.is_none() || self.voter(number).is_some_and(has_all)
    }

    /// What a coordinator that is stopped has in its log, and too few have written, becomes true; up to where that goes. Together it makes the state that is known.
    pub(super) fn take_for_true(&mut self, number: u32) -> Result<RaftPlace, Violation> {
        let node = self.node(number);
        let opened = OnDisk::open(Arc::new(node.disk.clone()), number, node.id);
        let on_disk = opened.map_err(|error| Violation(error.to_string()))?;
        for entry in on_disk.entries().range(self.true_entries() + 1..).map(|(_, entry)| entry) {
            let entries = match &entry.payload {
                Payload::Blank => Vec::new(),
                Payload::Entries(entries) => entries.clone(),
            };
            self.coordinators.make_true(entries)?;
            if let Some(voting) = &mut self.voting {
                voting.places.push(entry.place);
            }
        }
        self.truth.checked();
        let (last, known) = (on_disk.last(), self.true_entries());
        let made = on_disk.state_at(last.index).map_err(Violation)?;
        if last.index != known || made.snapshot() != self.coordinators.state.snapshot() {
            return Err(Violation(format!("coordinator {number} is left with {last:?} of {known} entries")));
        }
        Ok(last)
    }

    /// A coordinator goes on alone behind this place: nothing in front of it is any entry's.
    pub(super) fn begin_alone(&mut self, number: u32, place: RaftPlace) {
        if let Some(voting) = &mut self.voting {
            (voting.began, voting.places) = (place, Vec::new());
            let ballot = (place.term, number.into(), false);
            voting.answered.insert(number, Answered { ballot, last: place });
        }
        self.know_anew(number);
        self.voters = vec![number];
    }

    /// A node knows what one goes on alone with, and not more, if it knew what was before.
    fn know_anew(&mut self, number: u32) {
        let began_at = self.coordinators.began_at;
        if self.node(number).applied < began_at {
            *lock(&self.node(number).known) = self.coordinators.began.clone();
            self.node_mut(number).applied = began_at;
        }
    }

    /// Whether a node may learn of entries up to this one. Who knows of the group before one has gone on alone gets that one's snapshot in the place of what it has, and starts
    /// again: its incarnation is over.
    pub(super) fn may_learn(&mut self, number: u32, index: usize) -> Result<bool, Violation> {
        let began_at = self.coordinators.began_at;
        if self.node(number).applied >= began_at {
            return Ok(true);
        }
        // What was said in the group before is of other entries.
        if index < began_at || self.is_stuck(number) || self.node(number).process.is_none() {
            return Ok(false);
        }
        if self.voter(number).is_some() {
            // Whoever sends it leads, and says in which term: who takes it votes for nobody in an earlier one.
            let leading = self.coordinators.leader.and_then(|leader| self.voter(leader)).map(Voter::ballot);
            let is_to_follow = match leading {
                Some(ballot) => {
                    self.voter(number).is_some_and(|voter| voter.ballot() == ballot)
                        || self.write_vote(number, ballot)?
                }
                None => false,
            };
            if !is_to_follow {
                return Ok(false);
            }
        }
        let voters: Vec<u64> = self.voters.iter().map(|voter| u64::from(*voter)).collect();
        let (state, place) = (self.coordinators.began.clone(), self.place(number, began_at as u64));
        if let (Some(place), Some(voter)) = (place, self.voter_mut(number)) {
            let kept = voter.on_disk.keep(&state, place, place, &voters);
            if !self.written(number, kept)? {
                return Ok(false);
            }
        }
        *self.events_of.entry("took the snapshot of one that was left").or_default() += 1;
        self.know_anew(number);
        self.start_again(number);
        Ok(false)
    }

    /// A coordinator writes a snapshot of what it knows, if there is much since the last one.
    pub(super) fn keep_state(&mut self, number: u32) -> Result<(), Violation> {
        let applied = self.node(number).applied;
        let is_time = |voter: &Voter| applied >= voter.snapshot + SNAPSHOT_ENTRIES;
        if self.is_stuck(number) || !self.voter(number).is_some_and(is_time) {
            return Ok(());
        }
        let state = lock(&self.node(number).known).clone();
        let voters: Vec<u64> = self.voters.iter().map(|voter| u64::from(*voter)).collect();
        let (place, cut) = (self.place(number, applied as u64), self.place(number, (applied - KEPT_ENTRIES) as u64));
        let (Some(place), Some(cut), Some(voter)) = (place, cut, self.voter_mut(number)) else { return Ok(()) };
        let kept = voter.on_disk.keep(&state, place, cut, &voters);
        if kept.is_ok() {
            voter.snapshot = applied;
        }
        let is_kept = self.written(number, kept)?;
        *self.events_of.entry("snapshots of coordinators").or_default() += u64::from(is_kept);
        Ok(())
    }

    fn write_vote(&mut self, number: u32, ballot: Ballot) -> Result<bool, Violation> {
        if self.plan.planted == Some(Planted::ForgetsVotes)
            && let Some(voter) = self.voter_mut(number)
        {
            voter.unwritten = Some(ballot);
            return self.written(number, Ok(()));
        }
        self.write(number, vec![vote(ballot)])
    }

    /// Has a coordinator write records: whether it may answer for them.
    fn write(&mut self, number: u32, records: Vec<Record>) -> Result<bool, Violation> {
        if self.is_stuck(number) {
            return Ok(records.is_empty());
        }
        let Some(voter) = self.voter_mut(number) else { return Ok(false) };
        if records.is_empty() {
            return Ok(true);
        }
        let written = voter.on_disk.write(records);
        self.written(number, written)
    }

    /// What came of a write. A disk that is full is waited for, as `crates/raft/src/room.rs` does: what is asked for is not answered, and is written when it is asked for once
    /// more. Any other error ends the process, as it ends a node whose part in the log has ended.
    fn written(&mut self, number: u32, written: io::Result<()>) -> Result<bool, Violation> {
        let Err(error) = written else {
            let now = self.voter(number).map(|voter| (voter.ballot(), voter.on_disk.last()));
            if let (Some(voting), Some((ballot, last))) = (&mut self.voting, now) {
                let answered = voting.answered.entry(number).or_default();
                answered.ballot = ballot;
                if reach(last) > reach(answered.last) {
                    answered.last = last;
                }
            }
            // The power may go in what comes behind the sync: it has happened, and the process ends.
            if self.node(number).memory.is_off() {
                self.falls(number);
            }
            return Ok(true);
        };
        let node = self.node(number);
        let is_off = node.memory.is_off();
        if !is_off && !node.is_troubled {
            return Err(Violation(format!("coordinator {number} cannot write to a sound disk: {error}")));
        }
        let is_full = !is_off && error.kind() == io::ErrorKind::StorageFull;
        if is_full && self.has_room_but_for_data() {
            return Err(Violation(format!("coordinator {number} finds no room on a disk that is full for data")));
        }
        if is_full {
            *self.events_of.entry("coordinators had no room").or_default() += 1;
        } else {
            self.falls(number);
        }
        Ok(false)
    }

    /// Whether whoever finds no room in this run is one that wants it for data.
    fn has_room_but_for_data(&self) -> bool {
        self.plan.only.contains(&Fault::DataFull) && !self.plan.only.contains(&Fault::DiskFull)
    }

    fn falls(&mut self, number: u32) {
        if let Some(voting) = &mut self.voting {
            voting.fallen.insert(number);
        }
    }

    /// Ends the processes of coordinators whose disks have refused what they were to write, behind the event in which that was.
    pub(super) fn end_fallen(&mut self) {
        let fallen = self.voting.as_mut().map(|voting| std::mem::take(&mut voting.fallen));
        for number in fallen.unwrap_or_default() {
            if self.node(number).process.is_none() {
                continue;
            }
            let is_off = self.node(number).memory.is_off();
            let what =
                if is_off { "coordinators lost their power in a write" } else { "coordinators ended by their disks" };
            *self.events_of.entry(what).or_default() += 1;
            match is_off {
                true => self.lose_power(number),
                false => self.start_again(number),
            }
        }
    }

    /// Kills a coordinator and changes a bit of what it has of their log, of which it has two copies. Only where machines do not lose their power in the midst of a write: the
    /// second copy is not synced, so both would be hit.
    pub(super) fn rot_log(&mut self, number: u32) -> bool {
        if self.power || self.node(number).is_troubled || self.voter(number).is_none() {
            return false;
        }
        let memory = self.node(number).memory.clone();
        let mut files = memory.list(kera_raft::file::DIR).unwrap_or_default();
        files.retain(|name| !name.ends_with(".tmp"));
        if files.is_empty() {
            return false;
        }
        let path = format!("{}/{}", kera_raft::file::DIR, files[self.below(files.len() as u64) as usize]);
        let bytes = memory.read_all(&path, FILE_BYTES_MAX).map_or(0, |bytes| bytes.len() as u64);
        if bytes == 0 {
            return false;
        }
        // The last bytes are what looks torn.
        let from = if self.below(2) == 0 { 0 } else { bytes - bytes.min(100) };
        let (offset, bit) = (from + self.below(bytes - from), self.below(8) as u8);
        self.kill(number, Some(1));
        memory.flip_bit(&path, offset, bit).is_ok()
    }
}
