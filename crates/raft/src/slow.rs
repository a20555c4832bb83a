//! Coordinators whose disks are slow, or stand still.
//!
//! `openraft` does one thing after the other, and waits for the disk in between: as long as a vote, or entries, are being written a node says nothing, hears nothing and answers nothing. Where a sync
//! takes as long as a leader may be silent, half a second, each leader would be given up while it writes its first entry, and whoever has just written would find that nobody was heard for as long and
//! try to be elected in the place of a leader that lives. So beside `openraft`:
//!
//! * A leader [says that it leads](Group::say_that_it_leads) as soon as it does, and again and again while it writes, for as long as its disk may be merely slow by what it took lately. One that was
//!   well and takes no end is not waited for: the others elect one of theirs as they do without all this, and so they do when a slow one is not done after several times what it took before, or stands
//!   still ([`Timing::stands_still_ms`](crate::Timing)), which ends it at the latest.
//! * Who writes for long [does not try to be elected](Group::settle) meanwhile and for a moment after that: what others have said lies there, and is looked at first.
//! * Votes are [written ahead](crate::store) there.
//!
//! Why nobody who is not elected leads for that, and no two are elected with one rank. `openraft` orders leaders by term, and those of one term by their numbers; "rank" is both. Wherever a node is killed,
//! by `kill -9` or with its power:
//!
//! 1. *Before its own vote for itself is written.* It has asked nobody. At its start it has the vote from before.
//! 2. *Behind that, before the others' are written.* They have answered nobody. It finds at its start that it has voted in that term, or in one further on, and begins behind that. So it never asks twice in one
//!    term, and a majority that is told to be one has voted for just one try.
//! 3. *Before whoever has voted has written more.* It finds that vote, or one for nobody in a term further on, in front of which it votes for nobody. So a majority that has voted for a rank has nobody
//!    left who votes for a lower one, and each later majority has one of them in it.
//! 4. *Behind the votes, before or while the leader writes its first entry.* It has only said so, which each who hears it remembers and need not have written: a start finds that it has voted for
//!    that one, or point 3. The leader finds its vote for itself, not that it leads, and begins with another try.
//! 5. *While entries are written*, with who leads in front of them in the same block: both are there or none is. The vote on the disk is then that of the leader whose entries they are, and none was given since,
//!    or they would not have been taken ([`save_vote`](crate::store) forgets whom to write with each vote).
//! 6. *While what contradicts a leader's log is cut off, or what a snapshot has.* Who leads is not written with that. It need not be: the vote on the disk is the one that was given for that leader, or one
//!    further on, so point 3 holds, and what is cut off was decided by nobody, or is in the snapshot.
//!
//! To say that one leads is a message that a leader may send at any time: without entries, in its own rank, with nothing decided that was not before it was looked who leads. It is sent by who was elected only, counts as no
//! answer for anything, and who has voted in a higher rank refuses it. What it can bring about is that others wait for longer, and so it ends by itself. Not to try to be elected is never wrong.
//!
//! No wall clock is in this. What is measured here is measured by the monotonic clock of the node itself, and where it is wrong an election comes sooner or later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kera_protocol::{RaftAppend, RaftBallot, RaftOutcome};
use tokio::time::MissedTickBehavior;

use crate::group::Group;
use crate::network::ask;
use crate::types::place_of;

/// What a leader has said of itself.
#[derive(Default)]
struct Said {
    last: Option<RaftBallot>,
    /// The last term in which somebody has refused it, who had voted in a higher rank. Whoever leads is none as soon as it hears of that, which it does when its disk is done.
    refused_in: Arc<AtomicU64>,
}

impl Said {
    /// Whether it is to be said now. `is_kept`: its disk keeps it from saying so otherwise.
    fn is_due(&mut self, ballot: RaftBallot, is_kept: bool) -> bool {
        let is_new = self.last.replace(ballot) != Some(ballot);
        is_new || is_kept && self.refused_in.load(Ordering::Acquire) < ballot.term
    }
}

/// Whether a node has heard what others have said while it wrote.
#[derive(Default)]
pub(crate) struct Settling {
    /// From when on it has.
    from_us: u64,
}

impl Settling {
    /// To be asked often. `writes`: it has been writing for long. It needs `for_us` to hear the rest.
    fn look(&mut self, now_us: u64, writes: bool, for_us: u64) -> bool {
        if writes {
            self.from_us = now_us.saturating_add(for_us);
        }
        now_us >= self.from_us
    }
}

impl Group {
    /// Tells those who vote that this node leads: as soon as it does, and at each heartbeat while its disk keeps it from saying so. `openraft` says it with the first entry, which is on the leader's own
    /// disk before it is sent: on a slow one that takes longer than those wait who have voted for it, and they would elect somebody else meanwhile. And so it is with each entry.
    pub(crate) async fn say_that_it_leads(&self) {
        let (me, mut leaders, mut said) = (self.config.node, self.leaders.clone(), Said::default());
        let mut turn = tokio::time::interval(Duration::from_millis(self.config.timing.heartbeat_ms));
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Before it is looked who leads: what a later leader has decided is not in the log of who follows this one, and that would be taken for decided in its place.
            let decided = self.shared.current.read().applied.as_ref().map(place_of);
            let leader = *leaders.borrow_and_update();
            let leads = leader.filter(|ballot| ballot.node == u64::from(me));
            if let Some(ballot) = leads
                && said.is_due(ballot, self.is_kept_from_saying_so())
            {
                self.say_to_voters(
                    &RaftAppend { ballot, before: None, entries: Vec::new(), decided },
                    &said.refused_in,
                );
            }
            tokio::select! {
                changed = leaders.changed() => if changed.is_err() { break },
                _ = turn.tick(), if leads.is_some() => {}
            }
        }
        // Its part in the log has ended, and the other loops say so.
        std::future::pending().await
    }

    fn say_to_voters(&self, said: &RaftAppend, refused_in: &Arc<AtomicU64>) {
        let (me, term) = (self.config.node, said.ballot.term);
        // Later it is of no use, and the next one has been said.
        let wait = Duration::from_millis(5 * self.config.timing.election_ms);
        let members = self.members();
        // Who does not vote any more leads no longer than until that is decided.
        if !members.iter().any(|member| member.votes && member.node == me) {
            return;
        }
        for member in members.into_iter().filter(|member| member.votes && member.node != me) {
            let (transport, said, refused_in) = (self.transport.clone(), said.clone(), refused_in.clone());
            tokio::spawn(async move {
                let answer = ask(&*transport, member.node.into(), &member.address, &said);
                // Who does not hear it hears of the first entry.
                if let Ok(Ok(answer)) = tokio::time::timeout(wait, answer).await
                    && answer.outcome == RaftOutcome::NewerLeader
                {
                    refused_in.fetch_max(term, Ordering::AcqRel);
                }
            });
        }
    }

    /// Whether the disk has kept this node from saying anything for as long as lies between two signs of life, and may be merely slow.
    fn is_kept_from_saying_so(&self) -> bool {
        self.writing.for_us() >= self.config.timing.heartbeat_ms * 1000
            && self.writing.may_be_slow()
            && !self.stands_still()
            && self.raft.metrics().borrow().running_state.is_ok()
    }

    /// Lets this node try to be elected, unless it writes for long or did a moment ago. To be called several times in a heartbeat.
    ///
    /// When it is done with that `openraft` looks for how long nobody was heard before it looks at what has come, as at the end of each write for a snapshot; and where entries were under way to this
    /// node its leader has sent nothing else, and says something as soon as they are answered.
    pub(crate) fn settle(&self, settling: &mut Settling) {
        let timing = &self.config.timing;
        let writes = self.writing.for_us() >= timing.heartbeat_ms * 1000;
        let is_settled = settling.look(self.clock.monotonic_us(), writes, 2 * timing.election_ms * 1000);
        self.raft.runtime_config().elect(is_settled && !self.is_silent.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use kera_coordinator::cluster::ClusterState;
    use kera_env::{FaultyDisk, ManualClock, MemoryDisk};
    use kera_format::cluster::RaftPlace;
    use kera_format::level;
    use kera_format::raft::Record;
    use kera_protocol::{Body, Op, RaftAppended, RaftVote, RaftVoted};
    use tokio::sync::watch;

    use super::*;
    use crate::file::LogFile;
    use crate::group::{GroupConfig, Timing, encoded};
    use crate::network::{Pending, Transport};
    use crate::types::{StoredMembers, log_id, members};
    use crate::{file, snapshot};

    /// Reaches node 2 only, and has the disk stand still from when that one votes. How often it was told then who leads.
    struct Stuck {
        disk: FaultyDisk,
        told: watch::Sender<u64>,
    }

    impl Transport for Stuck {
        fn call(&self, to: u64, _: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>> {
            let version = op.version_max();
            let answer: Result<Vec<u8>, String> = match (to, op) {
                (2, Op::RaftVote) => {
                    self.disk.set_stuck(true);
                    let ballot = RaftVote::decode(version, &body).expect("it asks for votes").ballot;
                    Ok(encoded(&RaftVoted { ballot, granted: true, last: None }, version))
                }
                (2, Op::RaftAppend) => {
                    self.told.send_modify(|told| *told += 1);
                    Ok(encoded(&RaftAppended { outcome: RaftOutcome::All, through: None, ballot: None }, version))
                }
                _ => Err("nobody is there".into()),
            };
            Box::pin(async move { answer })
        }
    }

    /// What node 1 has on its disk, which votes with node 2.
    fn kept() -> Arc<MemoryDisk> {
        let disk = Arc::new(MemoryDisk::new());
        let place = RaftPlace { term: 5, leader: 1, index: 100 };
        let nodes: Vec<(u64, String)> = (1..=2).map(|node: u64| (node, node.to_string())).collect();
        let voters = StoredMembers::new(Some(log_id(&place)), members(&[vec![1, 2]], &nodes));
        let folder = file::folder(disk.clone());
        let bytes = snapshot::encode([1; 16], &ClusterState::default(), log_id(&place), &voters);
        let mut log = LogFile::open(folder.clone(), [1; 16]).unwrap();
        snapshot::write(&folder, 100, &bytes).unwrap();
        log.write(vec![Record::Vote { term: 5, node: 1, committed: false }, Record::Purged { place }]).unwrap();
        disk
    }

    async fn until_stuck(disk: &FaultyDisk) {
        let disk = disk.clone();
        tokio::task::spawn_blocking(move || disk.wait_until_stuck()).await.unwrap();
    }

    /// Else those who follow it give it up with each entry, and nobody leads for long enough that anything is decided.
    #[tokio::test]
    async fn a_leader_says_that_it_leads_while_its_slow_disk_writes_and_not_while_it_stands_still() {
        let disk = FaultyDisk::new(kept());
        let (clock, (told, mut signs)) = (Arc::new(ManualClock::new(0)), watch::channel(0));
        let config = GroupConfig {
            node: 1,
            uuid: [1; 16],
            address: "1".into(),
            streams_max: 10,
            copies_max: 3,
            snapshot_entries: 1000,
            snapshot_bytes: 1 << 20,
            // It asks for votes once, when it is told to.
            timing: Timing { election_ms: 600_000, stands_still_ms: 120_000, ..Timing::default() },
            level_max: level::NEWEST,
            balance_after_ms: None,
        };
        let transport = Arc::new(Stuck { disk: disk.clone(), told });
        let started = Group::start(config, Arc::new(disk.clone()), transport, clock.clone()).await;
        let group = started.unwrap();
        let leads = group.clone();
        tokio::spawn(async move { leads.say_that_it_leads().await });
        // Its vote for itself takes 300 ms.
        disk.set_stuck(true);
        group.raft.trigger().elect().await.unwrap();
        until_stuck(&disk).await;
        clock.advance_ms(300);
        disk.set_stuck(false);
        // It leads, and writes its first entry.
        signs.wait_for(|signs| *signs > 0).await.unwrap();
        until_stuck(&disk).await;
        assert!(!group.is_kept_from_saying_so(), "it has just said so");
        clock.advance_ms(200);
        assert!(group.is_kept_from_saying_so());
        signs.wait_for(|signs| *signs > 3).await.unwrap();
        clock.advance_ms(300 * 8);
        assert!(!group.is_kept_from_saying_so(), "its disk is not merely slow");
        disk.set_stuck(false);
        group.stop().await;
    }

    /// Those who have heard it would wait for one that is none as soon as its disk is done.
    #[test]
    fn a_leader_that_somebody_has_refused_says_no_more_that_it_leads() {
        let ballot = |term| RaftBallot { term, node: 1, committed: true };
        let mut said = Said::default();
        assert!(said.is_due(ballot(5), false), "at once");
        assert!(!said.is_due(ballot(5), false) && said.is_due(ballot(5), true));
        said.refused_in.fetch_max(5, Ordering::AcqRel);
        assert!(!said.is_due(ballot(5), true));
        assert!(said.is_due(ballot(9), false), "it was elected anew");
        assert!(said.is_due(ballot(9), true));
    }

    /// Else it would be a candidate, against a leader that it has heard and not looked at.
    #[test]
    fn who_has_written_for_long_waits_for_a_moment_before_it_tries_to_be_elected() {
        let mut settling = Settling::default();
        assert!(settling.look(0, false, 400), "it has just started");
        assert!(!settling.look(1_000, true, 400) && !settling.look(2_000, true, 400));
        assert!(!settling.look(2_399, false, 400), "it is done");
        assert!(settling.look(2_400, false, 400));
    }
}
