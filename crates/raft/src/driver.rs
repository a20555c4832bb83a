//! What the leader does by itself: who is silent is fenced, logs of fenced brokers end, streamlets without owner get one,
//! coordinators get votes. Steps 1 to 4 of "A broker is lost" in `docs/replication.md`; each is in the log before the next begins,
//! so whoever leads next goes on where this one stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_coordinator::CoordinatorError;
use kera_coordinator::balancer::{BalanceConfig, Balancer};
use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{AgreedEnd, ClusterState, EndLooks, EndsAsked, ToldEnd};
use kera_coordinator::detector::Detector;
use kera_format::cluster::{LogName, NodeNumber, Roles};
use openraft::ChangeMembers;
use tokio::sync::watch;

use crate::group::Group;
use crate::network::Pending;

/// Most coordinators that vote.
const VOTERS_MAX: usize = 5;
/// A coordinator that is so many entries behind gets no vote yet.
const VOTER_LAG_MAX: u64 = 100;

/// For how long the end of a log waits for a backup that has not answered and is not known to be lost, in microseconds. Without it the log may
/// end at a block that one backup alone has; when that is lost too nobody can show the end, and what was in the log waits for ever.
const ANSWER_US_MAX: u64 = 2_500_000;

/// For how long streamlets have waited to be opened before backups are asked once more how far they have lost logs, in microseconds, and the time
/// between two such questions. An end that nobody has used and nobody shows any more is taken back then.
const OPEN_US_MAX: u64 = 2_500_000;

/// A move that takes longer is called off, in microseconds.
const MOVE_US_MAX: u64 = 10_000_000;

/// Has backups fence. Whoever knows how to reach them does it.
pub trait Backups: Send + Sync + 'static {
    /// Asks a backup to fence (node, epoch) and to tell how far it has logs of it, each given with the first block of its newest
    /// view: the last block without a hole, in the order asked. The fence is on its disk when it answers.
    fn fence(
        &self,
        backup: NodeNumber,
        address: &str,
        node: NodeNumber,
        epoch: u32,
        logs: Vec<(LogName, u64)>,
    ) -> Pending<Vec<(LogName, ToldEnd)>>;
}

/// Backups that have told of a log, each with the epoch in which it took part when it was asked.
type ToldBy = Vec<(NodeNumber, u32)>;

/// What a leader remembers of its waits.
#[derive(Default)]
struct Waits {
    /// Since when it has known of incarnations that are over.
    over: BTreeMap<(NodeNumber, u32), u64>,
    /// Since when streamlets have waited to be opened, and how often backups were asked since then.
    opening: Option<(u64, u64)>,
}

impl Group {
    /// Does the leader's work while this node is the leader, until `stop` says so. To be run once.
    pub async fn drive(self: Arc<Self>, backups: Arc<dyn Backups>, mut stop: watch::Receiver<bool>) {
        let timing = self.config.timing;
        let mut detector = Detector::new(timing.lost_after_ms);
        let (mut moves, mut waits) = (BTreeMap::new(), Waits::default());
        let after_us = self.config.balance_after_ms.map(|ms| ms * 1000);
        let mut balancer = Balancer::new(BalanceConfig { after_us });
        let mut turn = tokio::time::interval(Duration::from_millis(timing.heartbeat_ms / 2));
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                _ = turn.tick() => {}
            }
            // Every coordinator hears all nodes, so that whoever leads next knows at once who is silent.
            let lost = self.listen(&mut detector);
            self.remember_fenced();
            if !self.is_leader() {
                moves.clear();
                waits = Waits::default();
                *self.looks.lock() = EndLooks::default();
                self.loads.lock().forget();
                self.noted.lock().clear();
                balancer.forget();
                continue;
            }
            let late = self.late_moves(&mut moves);
            if let Err(error) = self.lead(lost, late, &mut waits, &*backups).await {
                tracing::debug!(%error, "the leader's work waits");
            } else if let Err(error) = self.even_out(&mut balancer).await {
                tracing::debug!(%error, "the evening out of nodes waits");
            }
        }
    }

    /// Who has been silent for too long, as far as this node has heard.
    fn listen(&self, detector: &mut Detector) -> Vec<(NodeNumber, u32)> {
        if self.stands_still() {
            // Of others it hears, but it can have nobody fenced; and where all disks stood still they are all silent. Whoever does not look for long
            // blames nobody for that.
            return Vec::new();
        }
        let now_us = self.clock.monotonic_us();
        self.heard.lock().iter().for_each(|(node, (epoch, at_us))| detector.heard(*node, *epoch, *at_us));
        let live = self.read(live_nodes);
        live.iter()
            .filter(|(node, _)| *node == self.config.node)
            .for_each(|(node, epoch)| detector.heard(*node, *epoch, now_us));
        detector.lost(&live, now_us)
    }

    /// Notes since when it has known who is fenced.
    fn remember_fenced(&self) {
        let now_us = self.clock.monotonic_us();
        let fenced: BTreeSet<(NodeNumber, u32)> = self.read(|state| {
            let fenced = state.nodes().iter().filter(|(_, node)| node.fenced);
            fenced.map(|(number, node)| (*number, node.epoch)).collect()
        });
        let mut since = self.fenced_us.lock();
        since.retain(|incarnation, _| fenced.contains(incarnation));
        for incarnation in fenced {
            since.entry(incarnation).or_insert(now_us);
        }
    }

    /// Moves that have taken too long since this node first saw them as the leader. The owner before goes on then; whoever wants them
    /// may ask again.
    fn late_moves(&self, seen: &mut BTreeMap<u64, u64>) -> Vec<u64> {
        let now_us = self.clock.monotonic_us();
        let moves: Vec<u64> = self.read(|state| state.moves().keys().copied().collect());
        seen.retain(|number, _| moves.binary_search(number).is_ok());
        for number in &moves {
            seen.entry(*number).or_insert(now_us);
        }
        seen.iter()
            .filter(|(_, since)| now_us.saturating_sub(**since) > MOVE_US_MAX)
            .map(|(number, _)| *number)
            .collect()
    }

    async fn lead(
        &self,
        lost: Vec<(NodeNumber, u32)>,
        late: Vec<u64>,
        waits: &mut Waits,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        for (node, epoch) in lost {
            self.commit(&mut *self.leading.lock().await, |state| state.plan_fence(node, epoch)).await?;
            // Not before: a leader that is cut off itself tries each time it looks, and fences nobody.
            tracing::warn!(node, epoch, "the node is silent; it is fenced");
        }
        let (over, now_us) = (self.read(ClusterState::lost), self.clock.monotonic_us());
        waits.over.retain(|incarnation, _| over.contains(incarnation));
        for (node, epoch) in over {
            let since_us = *waits.over.entry((node, epoch)).or_insert(now_us);
            self.end_logs((node, epoch), now_us.saturating_sub(since_us) < ANSWER_US_MAX, backups).await?;
            let is_over = |state: &ClusterState| state.logs_of(node, epoch).all(|(_, log)| log.end.is_some());
            let gives_some =
                |state: &ClusterState| state.plan_recover(node, epoch).is_ok_and(|entries| !entries.is_empty());
            if self.read(|state| is_over(state) && gives_some(state)) {
                self.commit(&mut *self.leading.lock().await, |state| state.plan_recover(node, epoch)).await?;
            }
        }
        self.take_ends_back(&mut waits.opening, now_us, backups).await?;
        for number in late {
            tracing::warn!(number, "a move takes too long and is called off");
            self.commit(&mut *self.leading.lock().await, |state| state.plan_call_off(number)).await?;
        }
        for plan in [ClusterState::plan_gather, ClusterState::plan_drain_moves] {
            if self.read(|state| plan(state).is_ok_and(|entries| !entries.is_empty())) {
                self.commit(&mut *self.leading.lock().await, plan).await?;
            }
        }
        let now_ms = self.clock.now_ms();
        if self.read(|state| state.plan_say_copies(now_ms).is_ok_and(|entries| !entries.is_empty())) {
            self.commit(&mut *self.leading.lock().await, |state| state.plan_say_copies(now_ms)).await?;
        }
        let most = Limits { streams: self.config.streams_max, nodes: self.config.copies_max };
        if self.read(|state| state.plan_more_copies(&most).is_ok_and(|entries| !entries.is_empty())) {
            self.commit(&mut *self.leading.lock().await, |state| state.plan_more_copies(&most)).await?;
        }
        if self.read(|state| state.plan_give_up_lost().is_ok_and(|entries| !entries.is_empty())) {
            self.commit(&mut *self.leading.lock().await, ClusterState::plan_give_up_lost).await?;
        }
        if self.read(|state| state.plan_adopt().is_ok_and(|entries| !entries.is_empty())) {
            self.commit(&mut *self.leading.lock().await, ClusterState::plan_adopt).await?;
        }
        self.raise_level().await?;
        self.give_votes().await
    }

    /// Has streamlets move from brokers that have much to those that have little, if it is time for that.
    async fn even_out(&self, balancer: &mut Balancer) -> Result<(), CoordinatorError> {
        let now_us = self.clock.monotonic_us();
        self.loads.lock().leads(now_us);
        std::mem::take(&mut *self.noted.lock()).into_iter().for_each(|what| balancer.rest(what, now_us));
        let moves = self.read(|state| balancer.look(now_us, state, || self.heard_rates(state, now_us)));
        if moves.is_empty() {
            return Ok(());
        }
        self.commit(&mut *self.leading.lock().await, |state| state.plan_moves(&moves)).await?;
        self.balance_moves.fetch_add(moves.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Raises the level of the cluster when all nodes let it be raised.
    async fn raise_level(&self) -> Result<(), CoordinatorError> {
        let plan = |state: &ClusterState| state.plan_raise_level(|node, epoch| self.level_max_of(node, epoch));
        if !self.read(|state| plan(state).is_ok_and(|entries| !entries.is_empty())) {
            return Ok(());
        }
        self.commit(&mut *self.leading.lock().await, plan).await?;
        tracing::info!(level = self.level(), "all nodes speak the next level of the cluster, which is in force now");
        Ok(())
    }

    /// Asks the backups of the newest views how far they have the logs of a fenced broker, and ends each log where all that answer have it
    /// ([`ClusterState::end_told`]). `waits`: not those of which a backup has not answered that is not known to be lost.
    async fn end_logs(
        &self,
        (node, epoch): (NodeNumber, u32),
        waits: bool,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        let asked = self.read(|state| state.ends_to_ask(node, epoch));
        for (log, end, by) in self.ask_ends((node, epoch), asked, (waits, false), backups).await {
            self.commit(&mut *self.leading.lock().await, |state| state.plan_end_log(log, end)).await?;
            self.looks.lock().told(log, by);
        }
        Ok(())
    }

    /// While streamlets wait to be opened, has ends of lost logs that nobody has used decided again by what backups tell now: one that told of more may
    /// be lost since, and with it what nobody was told of (`docs/replication.md`, "An end that nobody can show"). At once where somebody is about
    /// to use one, and a backup takes part that has not told.
    async fn take_ends_back(
        &self,
        opening: &mut Option<(u64, u64)>,
        now_us: u64,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        let wanted = self.looks.lock().wanted();
        for of in wanted {
            self.decide_again(of, false, backups).await?;
        }
        let now_looked_us = self.clock.monotonic_us();
        self.read(|state| self.looks.lock().looked(state, now_looked_us));
        if !self.read(|state| state.takes_used_ends() && state.waits_to_be_opened()) {
            *opening = None;
            return Ok(());
        }
        let (since_us, times) = opening.get_or_insert((now_us, 0));
        if now_us.saturating_sub(*since_us) < OPEN_US_MAX * (*times + 1) {
            return Ok(());
        }
        // The first time those are waited for that are not known to be lost.
        let waits = *times == 0;
        *times += 1;
        for of in self.read(ClusterState::with_unused_ends) {
            self.decide_again(of, waits, backups).await?;
        }
        Ok(())
    }

    /// Takes ends of an incarnation's logs back that nobody has used, if backups that are there have less. `waits`: as in [`Group::ask_ends`].
    async fn decide_again(
        &self,
        (node, epoch): (NodeNumber, u32),
        waits: bool,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        let asked = self.read(|state| state.ends_to_ask_again(node, epoch));
        for (log, told, by) in self.ask_ends((node, epoch), asked, (waits, true), backups).await {
            let (plan, end) = (|state: &ClusterState| state.plan_take_back(log, told), told.end);
            if self.read(|state| plan(state).is_ok_and(|entries| !entries.is_empty())) {
                tracing::warn!(%log, end, "not all backups show a lost log to the end that was decided, and nobody has used that: it ends here now");
                self.commit(&mut *self.leading.lock().await, plan).await?;
            }
            self.looks.lock().told(log, by);
        }
        Ok(())
    }

    /// Where logs of a fenced broker end by what backups answer, and which. `waits`: not those of which a backup has not answered that is not known to be lost.
    /// `is_again`: those that are known to be lost are not asked, since nobody waits for a fence any more.
    async fn ask_ends(
        &self,
        (node, epoch): (NodeNumber, u32),
        asked: Vec<EndsAsked>,
        (waits, is_again): (bool, bool),
        backups: &dyn Backups,
    ) -> Vec<(LogName, AgreedEnd, ToldBy)> {
        let mut told: BTreeMap<LogName, (Vec<(NodeNumber, ToldEnd)>, usize)> = BTreeMap::new();
        let (mut waited_for, mut by): (BTreeSet<LogName>, BTreeMap<LogName, ToldBy>) = Default::default();
        for (backup, address, logs) in asked {
            logs.iter().for_each(|(log, _)| told.entry(*log).or_default().1 += 1);
            if is_again && self.read(|state| state.node(backup).is_none_or(|known| known.fenced)) {
                continue;
            }
            let wait = Duration::from_millis(self.config.timing.lost_after_ms);
            let takes_part_in = self.read(|state| state.node(backup).map(|known| known.epoch));
            let asked = tokio::time::timeout(wait, backups.fence(backup, &address, node, epoch, logs.clone())).await;
            let ends = match asked.unwrap_or_else(|_| Err("it does not answer".into())) {
                Ok(ends) => ends,
                Err(reason) => {
                    tracing::info!(backup, node, epoch, reason, "a backup does not fence yet");
                    if waits && self.read(|state| state.node(backup).is_some_and(|known| !known.fenced)) {
                        waited_for.extend(logs.iter().map(|(log, _)| *log));
                    }
                    continue;
                }
            };
            for (log, end) in ends.into_iter().filter(|(log, _)| logs.iter().any(|(asked, _)| asked == log)) {
                by.entry(log).or_default().extend(takes_part_in.map(|epoch| (backup, epoch)));
                told.entry(log).or_default().0.push((backup, end));
            }
        }
        told.retain(|log, _| !waited_for.contains(log));
        self.read(|state| {
            let ended = told.iter().filter_map(|(log, (told, expected))| {
                Some((*log, state.end_told(*log, told, *expected)?, by.get(log).cloned().unwrap_or_default()))
            });
            ended.collect()
        })
    }

    /// Takes nodes that were given up out of the group, with their votes. A number that joins just now is not in the state yet: nobody
    /// joins while this looks.
    async fn let_leave(&self) -> Result<(), CoordinatorError> {
        let members = self.raft.metrics().borrow().membership_config.membership().clone();
        let is_gone = |state: &ClusterState, node: u64| {
            let is_founded = state.cluster() != [0; 16];
            is_founded && node != u64::from(self.config.node) && state.node(node as NodeNumber).is_none()
        };
        if members.get_joint_config().len() > 1
            || !self.read(|state| members.nodes().any(|(id, _)| is_gone(state, *id)))
        {
            return Ok(());
        }
        let _alone = self.leading.lock().await;
        let gone: BTreeSet<u64> =
            self.read(|state| members.nodes().map(|(id, _)| *id).filter(|id| is_gone(state, *id)).collect());
        let votes: BTreeSet<u64> = members.voter_ids().filter(|id| gone.contains(id)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        tracing::info!(nodes = ?gone, "nodes that were given up leave the coordinators");
        let change =
            if votes.is_empty() { ChangeMembers::RemoveNodes(gone) } else { ChangeMembers::RemoveVoters(votes) };
        let changed = self.raft.change_membership(change, false).await;
        changed.map(drop).map_err(|error| crate::group::no_leader(&error))
    }

    /// Gives votes to coordinators that follow closely, so that their number is odd: one, three or five.
    async fn give_votes(&self) -> Result<(), CoordinatorError> {
        self.let_leave().await?;
        let metrics = self.raft.metrics().borrow().clone();
        let Some(replication) = &metrics.replication else { return Ok(()) };
        let members = metrics.membership_config.membership();
        let voters: Vec<u64> = members.voter_ids().collect();
        let last = metrics.last_log_index.unwrap_or(0);
        let is_close = |node: &u64| {
            replication.get(node).is_some_and(|at| at.is_some_and(|place| place.index + VOTER_LAG_MAX >= last))
        };
        let coordinators = self.read(|state| {
            let live = state.nodes().iter().filter(|(_, node)| node.is_live(Roles::COORDINATOR));
            live.map(|(number, _)| u64::from(*number)).collect::<Vec<_>>()
        });
        let ready: Vec<u64> =
            coordinators.into_iter().filter(|node| !voters.contains(node) && is_close(node)).collect();
        // An even number is what is left when one was given up.
        let wanted = 1 + voters.len() % 2;
        if ready.len() < wanted || voters.len() + wanted > VOTERS_MAX || members.get_joint_config().len() > 1 {
            return Ok(());
        }
        let _alone = self.leading.lock().await;
        let more = ready[..wanted].iter().copied().collect();
        tracing::info!(voters = ?ready[..wanted], "coordinators get votes");
        let changed = self.raft.change_membership(ChangeMembers::AddVoterIds(more), true).await;
        changed.map(drop).map_err(|error| crate::group::no_leader(&error))
    }
}

fn live_nodes(state: &ClusterState) -> Vec<(NodeNumber, u32)> {
    state.nodes().iter().filter(|(_, node)| !node.fenced).map(|(number, node)| (*number, node.epoch)).collect()
}
