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
use kera_coordinator::cluster::{AgreedEnd, CalledOff, ClusterState, EndLooks, EndsAsked, ToldEnd};
use kera_coordinator::detector::Detector;
use kera_env::{Lasting, Lasts};
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber, Roles};
use openraft::ChangeMembers;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::commands::Leading;
use crate::group::Group;
use crate::machine::Shared;
use crate::network::Pending;
use crate::slow::Settling;
use crate::survivor::SKIPPED;
use crate::types::Place;
use crate::votes::{Coordinator, who_votes};

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

/// Whoever leads says so when it has not been able to fence a silent node for so long, in microseconds.
const FAILING_US_MAX: u64 = 10_000_000;

/// How often it is looked for how long a fence has been under way.
const LOOK: Duration = Duration::from_secs(1);

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

/// Backups are asked the same question again after so long at first, and after twice as long each time, up to the second, in microseconds: each
/// question has a live backup sync its fences on all its disks.
const ASK_US_MIN: u64 = 100_000;
const ASK_US_MAX: u64 = 2_000_000;

/// Backups that have told of a log, each with the epoch in which it took part when it was asked.
type ToldBy = Vec<(NodeNumber, u32)>;

/// What a backup is asked about logs of an incarnation.
#[derive(Clone, PartialEq, Eq)]
struct Question {
    of: (NodeNumber, u32),
    backup: NodeNumber,
    address: String,
    logs: Vec<(LogName, u64)>,
    /// In which epoch the backup takes part; `None`: it is known to be lost.
    epoch: Option<u32>,
    /// Whether the logs wait for it, if it does not answer and is not lost by then.
    waits: bool,
}

/// An incarnation that is over, and how often was asked how far its logs go.
struct Over {
    since_us: u64,
    asked: Vec<Question>,
    /// When the same is asked again at the earliest, and how long that is after the time before.
    again_us: u64,
    pause_us: u64,
}

impl Over {
    fn new(now_us: u64) -> Over {
        Over { since_us: now_us, asked: Vec::new(), again_us: 0, pause_us: 0 }
    }

    /// Whether this is asked now. Something else is asked at once: a backup takes part again, is lost now or not waited for any more, or a log has its end.
    fn is_due(&mut self, questions: &[Question], now_us: u64) -> bool {
        if self.asked != questions {
            (self.asked, self.pause_us) = (questions.to_vec(), 0);
        } else if now_us < self.again_us {
            return false;
        } else {
            self.pause_us = (self.pause_us * 2).clamp(ASK_US_MIN, ASK_US_MAX);
        }
        self.again_us = now_us + self.pause_us;
        true
    }
}

/// What is said of a node that should be fenced, and is not.
const UNFENCED: &str = "a silent node cannot be fenced, so nobody takes over what it owns";

/// Incarnations that are silent, as long as they are, each with since when this node could not have it fenced when it led. That another one was fenced says nothing of it.
#[derive(Default)]
struct Fences(BTreeMap<(NodeNumber, u32), Lasting>);

impl Fences {
    /// Forgets all but these.
    fn keep(&mut self, silent: &[(NodeNumber, u32)]) {
        self.0.retain(|incarnation, _| silent.contains(incarnation));
    }

    fn of(&mut self, node: NodeNumber, epoch: u32) -> &mut Lasting {
        self.0.entry((node, epoch)).or_insert(Lasting::new(FAILING_US_MAX))
    }
}

/// Waits for something, and looks each time that a `pause` is over, until it is there.
async fn meanwhile<T, P: Future<Output = ()>>(
    something: impl Future<Output = T>,
    pause: impl Fn() -> P,
    mut look: impl FnMut(),
) -> T {
    let mut something = std::pin::pin!(something);
    loop {
        tokio::select! {
            biased;
            there = &mut something => return there,
            () = pause() => look(),
        }
    }
}

/// What a leader remembers of its waits.
#[derive(Default)]
struct Waits {
    /// Incarnations that it knows to be over.
    over: BTreeMap<(NodeNumber, u32), Over>,
    /// Since when streamlets have waited to be opened, and how often backups were asked since then.
    opening: Option<(u64, u64)>,
    /// Moves that it has called off.
    called_off: CalledOff,
    /// The entry as of which a look through all that is agreed has found nothing to do: so it does until there is another one.
    nothing_as_of: Option<u64>,
}

#[cfg(test)]
thread_local! {
    /// How often all streams were looked through for what is to be done.
    static LOOKED_THROUGH: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Group {
    /// Does the leader's work while this node is the leader, until `stop` says so. To be run once.
    ///
    /// Five loops, of which none waits for another. The one that listens awaits nothing but its next turn, so that a turn which comes late says that this
    /// process did not run: then nobody is to blame for having been silent ([`Detector::lost`]). If it waited for what others are asked, a backup
    /// without power would look like that for as long as it is asked, and nobody would be fenced meanwhile. The one that fences waits for the log, and
    /// not for backups.
    pub async fn drive(self: Arc<Self>, backups: Arc<dyn Backups>, mut stop: watch::Receiver<bool>) {
        let ((silent, seen), fenced) = (watch::channel(Vec::new()), Notify::new());
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.listen_always(&silent) => {}
            () = self.fence_silent(seen, &fenced) => {}
            () = self.lead_always(&fenced, &*backups) => {}
            () = self.say_that_it_leads() => {}
        }
    }

    fn turns(&self) -> tokio::time::Interval {
        let mut turn = tokio::time::interval(Duration::from_millis(self.config.timing.heartbeat_ms / 2));
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        turn
    }

    /// Tells `silent` at each turn who is. Every coordinator hears all nodes, so that whoever leads next knows at once.
    async fn listen_always(&self, silent: &watch::Sender<Vec<(NodeNumber, u32)>>) {
        let (mut turn, mut detector) = (self.turns(), Detector::new(self.config.timing.lost_after_ms));
        let mut settling = Settling::default();
        loop {
            turn.tick().await;
            self.settle(&mut settling);
            self.turned_us.store(self.clock.monotonic_us().max(1), Ordering::Release);
            silent.send_replace(self.listen(&mut detector));
            self.remember_fenced();
        }
    }

    /// Has those fenced who are silent, as long as this node leads. `fenced`: at once there is something to do for who leads.
    async fn fence_silent(&self, mut silent: watch::Receiver<Vec<(NodeNumber, u32)>>, fenced: &Notify) {
        let mut failing = Fences::default();
        let seconds_of = |lasts: Option<Lasts>| match lasts {
            Some(Lasts::For(since_us)) => Some(since_us / 1_000_000),
            Some(Lasts::Over) | None => None,
        };
        while silent.changed().await.is_ok() {
            let lost = silent.borrow_and_update().clone();
            // Also while another node leads: where that changes all the time nobody fences, and nobody would have failed for long.
            failing.keep(&lost);
            for (node, epoch) in lost.into_iter().filter(|_| self.is_leader()) {
                let of = failing.of(node, epoch);
                // Commands go one at a time, and one before it may not come to an end: who only looked at what becomes of a fence would never say so.
                let look = || {
                    if let Some(seconds) = seconds_of(of.look(true, self.clock.monotonic_us())) {
                        tracing::warn!(
                            node,
                            epoch,
                            seconds,
                            "{UNFENCED}: the command is under way and does not come to its end"
                        );
                    }
                };
                let pause = || tokio::time::sleep(LOOK);
                let committed = meanwhile(self.fence(node, epoch, &silent), pause, look).await;
                let seconds = seconds_of(of.look(committed.is_err(), self.clock.monotonic_us()));
                if let Err(error) = committed {
                    match seconds {
                        Some(seconds) => tracing::warn!(%error, node, epoch, seconds, "{UNFENCED}"),
                        None => tracing::debug!(%error, node, epoch, "a silent node cannot be fenced yet"),
                    }
                } else if !self.read(|state| state.is_live(node, epoch)) {
                    // Not before: a leader that is cut off itself tries each time it looks, and fences nobody.
                    tracing::warn!(node, epoch, "the node is silent; it is fenced");
                    fenced.notify_one();
                }
            }
        }
    }

    /// Has a node fenced, unless it is heard again before it is its turn.
    async fn fence(
        &self,
        node: NodeNumber,
        epoch: u32,
        silent: &watch::Receiver<Vec<(NodeNumber, u32)>>,
    ) -> Result<(), CoordinatorError> {
        // The log may have kept it waiting, and the node has been heard since.
        let is_silent = || silent.borrow().contains(&(node, epoch));
        let plan = |state: &ClusterState| if is_silent() { state.plan_fence(node, epoch) } else { Ok(Vec::new()) };
        self.commit(&mut *self.leading.lock().await, plan).await.map(drop)
    }

    async fn lead_always(&self, fenced: &Notify, backups: &dyn Backups) {
        let (mut turn, mut moves, mut waits) = (self.turns(), BTreeMap::new(), Waits::default());
        let after_us = self.config.balance_after_ms.map(|ms| ms * 1000);
        let (mut balancer, mut kept) = (Balancer::new(BalanceConfig { after_us }), (None, 0));
        loop {
            tokio::select! {
                _ = turn.tick() => {}
                () = fenced.notified() => {}
            }
            self.keep_log_short(&mut kept).await;
            self.renew_snapshot().await;
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
            if let Err(error) = self.lead(late, &mut waits, backups).await {
                tracing::debug!(%error, "the leader's work waits");
            } else if let Err(error) = self.even_out(&mut balancer).await {
                tracing::debug!(%error, "the evening out of nodes waits");
            }
        }
    }

    /// Has a snapshot made when the log has grown by many bytes since the last one, however few entries they are: what is not in a snapshot is in memory, and at the
    /// beginning of each of the log's files, and a file that is too large is not read. `kept`: the snapshot, and what was written when it was seen.
    async fn keep_log_short(&self, kept: &mut (Option<u64>, u64)) {
        let written = self.writing.bytes();
        let newest = self.raft.metrics().borrow().snapshot.map(|place| place.index);
        if newest != kept.0 {
            *kept = (newest, written);
        } else if written - kept.1 > self.config.snapshot_bytes {
            kept.1 = written;
            if let Err(error) = self.raft.trigger().snapshot().await {
                tracing::debug!(%error, "no snapshot is made");
            }
        }
    }

    /// Has a snapshot made in the term of this leader where the newest one is of an earlier term, in a group that has gone on without a majority: those who were the majority may have
    /// heard of its term without its snapshot, elected one of theirs in the next, and decided something. They take a snapshot only if it is of a later term than that.
    ///
    /// In any other group a snapshot is of no earlier term than what others have decided in front of it.
    async fn renew_snapshot(&self) {
        let metrics = self.raft.metrics().borrow().clone();
        let term = |place: Option<Place>| place.map_or(0, |place| place.leader_id.term);
        let is_due = self.is_leader()
            && (u64::from(SKIPPED)..metrics.current_term).contains(&term(metrics.snapshot))
            && term(metrics.last_applied) == metrics.current_term;
        if is_due && let Err(error) = self.raft.trigger().snapshot().await {
            tracing::debug!(%error, "no snapshot is made");
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

    /// Has committed what a plan says, and whether it says anything.
    async fn commit_if_any(
        &self,
        plan: impl Fn(&ClusterState) -> Result<Vec<ClusterEntry>, CoordinatorError>,
    ) -> Result<bool, CoordinatorError> {
        let is_any = self.read(|state| plan(state).is_ok_and(|entries| !entries.is_empty()));
        if is_any {
            self.commit(&mut *self.leading.lock().await, plan).await?;
        }
        Ok(is_any)
    }

    /// Whether a look through all that is agreed would find something to do, where it still ends with this entry. Debug builds make sure that nothing is passed over.
    fn finds_some(&self, as_of: u64) -> bool {
        let current = self.shared.current.read();
        let (applied, state) = (current.applied.map_or(0, |place| place.index), &*current.state);
        let most = Limits { streams: self.config.streams_max, nodes: self.config.copies_max };
        let plans = [
            state.plan_gather(),
            state.plan_say_copies(0),
            state.plan_more_copies(&most),
            state.plan_give_up_lost(),
            state.plan_adopt(),
        ];
        let waits = state.takes_used_ends() && state.waits_to_be_opened();
        let is_any = |planned: &Result<Vec<ClusterEntry>, _>| planned.as_ref().is_ok_and(|entries| !entries.is_empty());
        applied == as_of && (!state.lost().is_empty() || waits || plans.iter().any(is_any))
    }

    /// One turn. Most of what is to be done can be seen in what is agreed alone, by a look through all streams, of which there may be very many: where that
    /// has found nothing it is not looked again before something else is agreed.
    async fn lead(&self, late: Vec<u64>, waits: &mut Waits, backups: &dyn Backups) -> Result<(), CoordinatorError> {
        let (as_of, now_us) = (self.applied(), self.clock.monotonic_us());
        let looks = waits.nothing_as_of != Some(as_of);
        #[cfg(test)]
        LOOKED_THROUGH.set(LOOKED_THROUGH.get() + u64::from(looks));
        debug_assert!(looks || !self.finds_some(as_of), "there is something to do as of entry {as_of}");
        let over = if looks { self.read(ClusterState::lost) } else { Vec::new() };
        let mut is_any = !over.is_empty();
        self.end_logs(&over, &mut waits.over, backups).await?;
        for (node, epoch) in over {
            let is_over = |state: &ClusterState| state.logs_of(node, epoch).all(|(_, log)| log.end.is_some());
            let gives_some =
                |state: &ClusterState| state.plan_recover(node, epoch).is_ok_and(|entries| !entries.is_empty());
            if self.read(|state| is_over(state) && gives_some(state)) {
                self.commit(&mut *self.leading.lock().await, |state| state.plan_recover(node, epoch)).await?;
            }
        }
        self.take_ends_back(&mut waits.opening, looks, now_us, backups).await?;
        is_any |= waits.opening.is_some();
        for number in late {
            let Some(of) = self.read(|state| state.moves().get(&number).copied()) else { continue };
            waits.called_off.note(&of, now_us);
            let (stream, streamlet, from, to) = (of.stream, of.streamlet, of.from, of.to);
            tracing::warn!(number, %stream, streamlet, from, to, "a move takes too long and is called off");
            self.commit(&mut *self.leading.lock().await, |state| state.plan_call_off(number)).await?;
        }
        is_any |= looks && self.commit_if_any(ClusterState::plan_gather).await?;
        self.commit_if_any(|state| state.plan_drain_moves(&waits.called_off, now_us)).await?;
        if looks {
            let now_ms = self.clock.now_ms();
            let most = Limits { streams: self.config.streams_max, nodes: self.config.copies_max };
            is_any |= self.commit_if_any(|state| state.plan_say_copies(now_ms)).await?;
            is_any |= self.commit_if_any(|state| state.plan_more_copies(&most)).await?;
            is_any |= self.commit_if_any(ClusterState::plan_give_up_lost).await?;
            is_any |= self.commit_if_any(ClusterState::plan_adopt).await?;
            // What has been agreed since the look began is looked at the next time.
            waits.nothing_as_of = (!is_any).then_some(as_of);
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

    /// Asks the backups of the newest views how far they have the logs of incarnations that are over, and ends each log where all that answer have it
    /// ([`ClusterState::end_told`]). For a while it waits for those of which a backup has not answered that is not known to be lost.
    async fn end_logs(
        &self,
        over: &[(NodeNumber, u32)],
        known: &mut BTreeMap<(NodeNumber, u32), Over>,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        let now_us = self.clock.monotonic_us();
        known.retain(|incarnation, _| over.contains(incarnation));
        let mut asked = Vec::new();
        for of in over {
            let known = known.entry(*of).or_insert_with(|| Over::new(now_us));
            let waits = now_us.saturating_sub(known.since_us) < ANSWER_US_MAX;
            let questions = self.questions(*of, waits, ClusterState::ends_to_ask);
            if known.is_due(&questions, now_us) {
                asked.extend(questions);
            }
        }
        for (log, end, by) in self.ask_ends(asked, false, backups).await {
            self.commit(&mut *self.leading.lock().await, |state| state.plan_end_log(log, end)).await?;
            self.looks.lock().told(log, by);
        }
        Ok(())
    }

    fn questions(
        &self,
        of: (NodeNumber, u32),
        waits: bool,
        ends: impl Fn(&ClusterState, NodeNumber, u32) -> Vec<EndsAsked>,
    ) -> Vec<Question> {
        self.read(|state| {
            let asked = ends(state, of.0, of.1).into_iter().map(|(backup, address, logs)| {
                let epoch = state.node(backup).filter(|known| !known.fenced).map(|known| known.epoch);
                Question { of, backup, address, logs, epoch, waits }
            });
            asked.collect()
        })
    }

    /// While streamlets wait to be opened, has ends of lost logs that nobody has used decided again by what backups tell now: one that told of more may
    /// be lost since, and with it what nobody was told of (`docs/replication.md`, "An end that nobody can show"). At once where somebody is about
    /// to use one, and a backup takes part that has not told. `looks`: something was agreed since none waited.
    async fn take_ends_back(
        &self,
        opening: &mut Option<(u64, u64)>,
        looks: bool,
        now_us: u64,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        let wanted = self.looks.lock().wanted();
        self.decide_again(wanted, false, backups).await?;
        let now_looked_us = self.clock.monotonic_us();
        self.read(|state| self.looks.lock().looked(state, now_looked_us));
        if !looks || !self.read(|state| state.takes_used_ends() && state.waits_to_be_opened()) {
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
        self.decide_again(self.read(ClusterState::with_unused_ends), waits, backups).await
    }

    /// Takes ends of these incarnations' logs back that nobody has used, if backups that are there have less. `waits`: not those of which a backup has not
    /// answered that is not known to be lost.
    async fn decide_again(
        &self,
        of: Vec<(NodeNumber, u32)>,
        waits: bool,
        backups: &dyn Backups,
    ) -> Result<(), CoordinatorError> {
        let asked = of.into_iter().flat_map(|of| self.questions(of, waits, ClusterState::ends_to_ask_again)).collect();
        for (log, told, by) in self.ask_ends(asked, true, backups).await {
            let (plan, end) = (|state: &ClusterState| state.plan_take_back(log, told), told.end);
            if self.read(|state| plan(state).is_ok_and(|entries| !entries.is_empty())) {
                tracing::warn!(%log, end, "not all backups show a lost log to the end that was decided, and nobody has used that: it ends here now");
                self.commit(&mut *self.leading.lock().await, plan).await?;
            }
            self.looks.lock().told(log, by);
        }
        Ok(())
    }

    /// Where logs of fenced brokers end by what backups answer, and which. All are asked at once, so that it takes as long as the slowest of them, and not
    /// longer than a node may be silent.
    ///
    /// Those that are known to be lost are told to fence, and nobody waits for them, since what they say does not count
    /// ([`ClusterState::ends_that_count`]). `is_again`: they are not even asked, the fence is an old one.
    async fn ask_ends(
        &self,
        questions: Vec<Question>,
        is_again: bool,
        backups: &dyn Backups,
    ) -> Vec<(LogName, AgreedEnd, ToldBy)> {
        let wait = Duration::from_millis(self.config.timing.lost_after_ms);
        let mut told: BTreeMap<LogName, (Vec<(NodeNumber, ToldEnd)>, usize)> = BTreeMap::new();
        let (mut waited_for, mut by): (BTreeSet<LogName>, BTreeMap<LogName, ToldBy>) = Default::default();
        let mut asked = JoinSet::new();
        for question in questions {
            question.logs.iter().for_each(|(log, _)| told.entry(*log).or_default().1 += 1);
            if is_again && question.epoch.is_none() {
                continue;
            }
            let ((node, epoch), logs) = (question.of, question.logs.clone());
            let answer =
                tokio::time::timeout(wait, backups.fence(question.backup, &question.address, node, epoch, logs));
            let Some(takes_part_in) = question.epoch else {
                tokio::spawn(answer);
                continue;
            };
            let is_lost = until_lost(self.shared.clone(), question.backup, takes_part_in);
            asked.spawn(async move {
                let answer = tokio::select! {
                    answer = answer => answer.unwrap_or_else(|_| Err("it does not answer".into())),
                    () = is_lost => Err("it is lost".into()),
                };
                (question, takes_part_in, answer)
            });
        }
        while let Some(answered) = asked.join_next().await {
            let Ok((Question { of: (node, epoch), backup, logs, waits, .. }, takes_part_in, ends)) = answered else {
                continue;
            };
            let ends = match ends {
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
                by.entry(log).or_default().push((backup, takes_part_in));
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

    /// Takes nodes out of the group that nobody knows of: whoever led when they joined or were given up has not come further. A number that joins just now
    /// is not in the state yet: nobody joins while this looks.
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
        let mut alone = self.leading.lock().await;
        // Who has just become the leader does not know all that was decided: a node that has joined is one of which nobody knows, to it.
        self.make_sure(&mut alone).await?;
        let gone: BTreeSet<u64> =
            self.read(|state| members.nodes().map(|(id, _)| *id).filter(|id| is_gone(state, *id)).collect());
        self.take_out(&alone, gone).await
    }

    /// Takes nodes out of the group, with their votes, as far as they are in it: all but this one.
    pub(crate) async fn take_out(&self, _alone: &Leading, nodes: BTreeSet<u64>) -> Result<(), CoordinatorError> {
        let (me, members) = (u64::from(self.config.node), self.shared.current.read().members.membership().clone());
        let gone: BTreeSet<u64> =
            members.nodes().map(|(id, _)| *id).filter(|id| nodes.contains(id) && *id != me).collect();
        let votes: BTreeSet<u64> = members.voter_ids().filter(|id| gone.contains(id)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        tracing::info!(nodes = ?gone, "nodes that were given up leave the coordinators");
        let change =
            if votes.is_empty() { ChangeMembers::RemoveNodes(gone) } else { ChangeMembers::RemoveVoters(votes) };
        self.in_time(self.raft.change_membership(change, false)).await.map(drop)
    }

    /// Ends a change of who votes that is half done. It takes two entries, and between them two lists count: nothing is decided without a majority of each, and
    /// of the first that may be one node. Whoever began it may not lead any more.
    async fn end_change_of_votes(&self) -> Result<(), CoordinatorError> {
        let is_half_done = || self.shared.current.read().members.membership().get_joint_config().len() > 1;
        if !is_half_done() {
            return Ok(());
        }
        let _alone = self.leading.lock().await;
        // This node may have been between the two itself.
        if !is_half_done() {
            return Ok(());
        }
        tracing::info!("a change of who votes was half done; it is ended");
        // Nobody more than those of the last list, which alone counts then.
        let change = ChangeMembers::AddVoterIds(BTreeSet::new());
        self.in_time(self.raft.change_membership(change, true)).await.map(drop)
    }

    /// Who is to vote, if others do than should ([`who_votes`]).
    fn other_votes(&self) -> Option<BTreeSet<u64>> {
        let metrics = self.raft.metrics().borrow().clone();
        let (replication, last) = (metrics.replication.as_ref()?, metrics.last_log_index.unwrap_or(0));
        let is_close = |node: &u64| {
            replication.get(node).is_some_and(|at| at.is_some_and(|place| place.index + VOTER_LAG_MAX >= last))
        };
        let current = self.shared.current.read();
        let members = current.members.membership();
        let voters: BTreeSet<u64> = members.voter_ids().collect();
        let mut known: Vec<Coordinator> = Vec::new();
        for (node, _) in members.nodes() {
            let (votes, state) = (voters.contains(node), current.state.node(*node as NodeNumber));
            let live = state.is_some_and(|state| state.is_live(Roles::COORDINATOR));
            let draining = state.is_some_and(|state| state.draining);
            if votes || live && !draining && is_close(node) {
                known.push(Coordinator { node: *node, votes, live, draining });
            }
        }
        let wanted = who_votes(self.config.node.into(), &known);
        (wanted != voters && members.get_joint_config().len() == 1).then_some(wanted)
    }

    /// Has those vote who should.
    async fn give_votes(&self) -> Result<(), CoordinatorError> {
        self.end_change_of_votes().await?;
        self.let_leave().await?;
        if self.other_votes().is_none() {
            return Ok(());
        }
        let _alone = self.leading.lock().await;
        let Some(voters) = self.other_votes() else { return Ok(()) };
        tracing::info!(?voters, "other coordinators vote from now on");
        let change = ChangeMembers::ReplaceAllVoters(voters);
        self.in_time(self.raft.change_membership(change, true)).await.map(drop)
    }
}

/// Waits until an incarnation is known to be lost.
async fn until_lost(shared: Arc<Shared>, node: NodeNumber, epoch: u32) {
    let mut followed = shared.followed.clone();
    while shared.current.read().state.is_live(node, epoch) {
        if followed.changed().await.is_err() {
            return;
        }
    }
}

fn live_nodes(state: &ClusterState) -> Vec<(NodeNumber, u32)> {
    state.nodes().iter().filter(|(_, node)| !node.fenced).map(|(number, node)| (*number, node.epoch)).collect()
}

#[cfg(test)]
mod tests {
    use kera_coordinator::cluster::{Join, LogView};
    use kera_env::{FaultyDisk, MemoryDisk, SystemClock};
    use kera_format::cluster::{Doors, RaftPlace};
    use kera_format::raft::{LogEntry, Payload, Record};
    use kera_format::{StreamOptions, StreamletId, level};
    use kera_protocol::{
        AcceptLoss, Body, CreateStream, DeleteStream, ErrorBody, ForwardCommand, Message, Op, RaftAppend, RaftAppended,
        RaftBallot, RaftOutcome, RaftVote, RaftVoted, Status, UseEnds, UsedEnd,
    };
    use openraft::ServerState;
    use openraft::storage::RaftLogStorage;
    use tokio::sync::oneshot;

    use super::*;
    use crate::commands::Before;
    use crate::file::LogFile;
    use crate::group::{GroupConfig, Timing, encoded, packed};
    use crate::network::Transport;
    use crate::store::{LogStore, Writing};
    use crate::types::{StoredMembers, ballot_of, log_id, members, vote};
    use crate::{file, snapshot};

    /// Reaches node 2 only, which votes for whoever asks it, and takes entries from when it is to: until then who leads knows nothing of what is decided beside what it has applied.
    struct Second(watch::Receiver<bool>);

    impl Transport for Second {
        fn call(&self, to: u64, _: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>> {
            let (mut takes, version) = (self.0.clone(), op.version_max());
            Box::pin(async move {
                match (to, op) {
                    (2, Op::RaftVote) => {
                        let asked = RaftVote::decode(version, &body).map_err(|error| error.to_string())?;
                        Ok(encoded(&RaftVoted { ballot: asked.ballot, granted: true, last: None }, version))
                    }
                    (2, Op::RaftAppend) => {
                        takes.wait_for(|takes| *takes).await.map(drop).map_err(|error| error.to_string())?;
                        Ok(encoded(&RaftAppended { outcome: RaftOutcome::All, through: None, ballot: None }, version))
                    }
                    _ => Err("nobody is there".into()),
                }
            })
        }
    }

    /// Reaches node 2 only, and has a disk come to no end as soon as that one votes. What it is sent then.
    struct Stuck {
        disk: FaultyDisk,
        sent: watch::Sender<Option<RaftAppend>>,
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
                    self.sent.send_replace(Some(RaftAppend::decode(version, &body).expect("it leads")));
                    Ok(encoded(&RaftAppended { outcome: RaftOutcome::All, through: None, ballot: None }, version))
                }
                _ => Err("nobody is there".into()),
            };
            Box::pin(async move { answer })
        }
    }

    /// Else whoever has voted for it elects somebody else meanwhile.
    #[tokio::test]
    async fn a_leader_says_that_it_leads_before_its_first_entry_is_on_its_disk() {
        let ((mut config, disk), (sent, mut got)) = (kept(&founded(0), Vec::new()), watch::channel(None));
        // It asks for votes once: its disk would not take the next try, however long this thread was held up behind the first.
        config.timing.election_ms = 600_000;
        let disk = FaultyDisk::new(disk);
        let transport = Arc::new(Stuck { disk: disk.clone(), sent });
        let started = Group::start(config, Arc::new(disk.clone()), transport, Arc::new(SystemClock::new()));
        let group = started.await.unwrap();
        let leads = group.clone();
        tokio::spawn(async move { leads.say_that_it_leads().await });
        group.raft.trigger().elect().await.unwrap();
        let said = tokio::time::timeout(Duration::from_secs(120), got.wait_for(Option::is_some)).await;
        let said = said.expect("its disk comes to no end").unwrap().clone().unwrap();
        assert_eq!((said.ballot.node, said.ballot.committed, said.entries.len()), (1, true, 0));
        disk.set_stuck(false);
        group.stop().await;
    }

    /// Reaches node 2 only, which votes for whoever asks it, and says to who leads in an earlier term that it has voted like this.
    struct Further(RaftBallot);

    impl Transport for Further {
        fn call(&self, to: u64, _: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>> {
            let version = op.version_max();
            let answer: Result<Vec<u8>, String> = match (to, op) {
                (2, Op::RaftVote) => {
                    let ballot = RaftVote::decode(version, &body).expect("it asks for votes").ballot;
                    Ok(encoded(&RaftVoted { ballot, granted: true, last: None }, version))
                }
                (2, Op::RaftAppend) => {
                    let is_earlier = RaftAppend::decode(version, &body).expect("it leads").ballot.term < self.0.term;
                    let outcome = if is_earlier { RaftOutcome::NewerLeader } else { RaftOutcome::All };
                    let ballot = is_earlier.then_some(self.0);
                    Ok(encoded(&RaftAppended { outcome, through: None, ballot }, version))
                }
                _ => Err("nobody is there".into()),
            };
            Box::pin(async move { answer })
        }
    }

    /// What a node says that has voted for another one, on a slow disk, and has started again before it was sent an entry.
    async fn voted_on_a_slow_disk(term: u64, node: u64) -> RaftBallot {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        // The first vote takes as long, and the next one is written ahead.
        disk.set_slow_syncs(Some(Duration::from_millis(60)));
        let start = || {
            let log = LogFile::open(file::folder(Arc::new(disk.clone())), [2; 16]).unwrap();
            LogStore::start(log, Arc::default(), Arc::new(Writing::new(Arc::new(SystemClock::new())))).unwrap()
        };
        let mut store = start();
        for term in [term - 1, term] {
            store.save_vote(&vote(&RaftBallot { term, node, committed: false })).await.unwrap();
        }
        drop(store);
        ballot_of(&start().read_vote().await.unwrap().expect("it has voted"))
    }

    /// Else it would lead for ever, and nothing would be decided: nobody elects another one, for most who vote hear it.
    #[tokio::test]
    async fn who_leads_is_elected_anew_behind_the_vote_of_one_that_has_voted_for_it_and_started_again() {
        let further = voted_on_a_slow_disk(6, 1).await;
        assert!(further.term > 6, "it is written ahead");
        let (config, disk) = kept(&founded(0), Vec::new());
        let started = Group::start(config, disk, Arc::new(Further(further)), Arc::new(SystemClock::new()));
        let group = started.await.unwrap();
        let term = |place: Option<Place>| place.map_or(0, |place| place.leader_id.term);
        let waits = group.raft.wait(Some(Duration::from_secs(120)));
        let decided = waits.metrics(|metrics| term(metrics.last_applied) > further.term, "it has something decided");
        decided.await.unwrap();
        group.stop().await;
    }

    fn joins(node: NodeNumber, roles: Roles) -> Join {
        Join {
            node,
            uuid: [node as u8; 16],
            roles,
            rack: String::new(),
            doors: Doors { cluster: node.to_string(), ..Doors::default() },
            settings: Vec::new(),
            epoch_min: 1,
            has_all: true,
            levels: (1, level::NEWEST),
        }
    }

    /// Makes true what is planned; its entries.
    fn then(
        state: &mut ClusterState,
        plan: impl Fn(&ClusterState) -> Result<Vec<ClusterEntry>, CoordinatorError>,
    ) -> Vec<ClusterEntry> {
        let entries = plan(state).unwrap();
        entries.iter().for_each(|entry| state.apply(entry).unwrap());
        entries
    }

    /// Nodes 1 and 2 are coordinators, and so many more keep streams and copies.
    fn founded(others: NodeNumber) -> ClusterState {
        let mut state = ClusterState::default();
        (level::FIRST + 1..=level::NEWEST).for_each(|level| state.apply(&ClusterEntry::LevelRaised { level }).unwrap());
        then(&mut state, |state| state.plan_found([9; 16], &joins(1, Roles::COORDINATOR), 0));
        then(&mut state, |state| state.plan_join(&joins(2, Roles::COORDINATOR), 0));
        for node in 3..3 + others {
            let roles = Roles(Roles::BROKER.0 | Roles::BACKUP.0);
            then(&mut state, |state| state.plan_join(&joins(node, roles), 0));
        }
        state
    }

    /// What node 1 has on its disk: this state, and these entries in its log of which it does not know that they are decided. It votes with node 2, and node 3 is in its group.
    fn kept(state: &ClusterState, entries: Vec<ClusterEntry>) -> (GroupConfig, Arc<MemoryDisk>) {
        let disk = Arc::new(MemoryDisk::new());
        let place = |index| RaftPlace { term: 5, leader: 1, index };
        let nodes: Vec<(u64, String)> = (1..=3).map(|node: u64| (node, node.to_string())).collect();
        let applied = log_id(&place(100));
        let voters = StoredMembers::new(Some(applied), members(&[vec![1, 2]], &nodes));
        let folder = file::folder(disk.clone());
        let mut log = LogFile::open(folder.clone(), [1; 16]).unwrap();
        snapshot::write(&folder, 100, &snapshot::encode([1; 16], state, applied, &voters)).unwrap();
        let vote = Record::Vote { term: 5, node: 1, committed: false };
        let undecided = LogEntry { place: place(101), payload: Payload::Entries(entries) };
        log.write(vec![vote, Record::Purged { place: place(100) }, Record::Appended(undecided)]).unwrap();
        drop(log);
        let config = GroupConfig {
            node: 1,
            uuid: [1; 16],
            address: "1".into(),
            streams_max: 10,
            copies_max: 3,
            snapshot_entries: 1000,
            snapshot_bytes: 1 << 20,
            timing: Timing { command_ms: 120_000, stands_still_ms: 120_000, ..Timing::default() },
            level_max: level::NEWEST,
            balance_after_ms: None,
        };
        (config, disk)
    }

    /// Node 1 with that, which has just become the leader. It comes to know what is decided when it is said that node 2 takes entries.
    async fn leads(state: &ClusterState, entries: Vec<ClusterEntry>) -> (Arc<Group>, watch::Sender<bool>) {
        let ((config, disk), (takes, taken)) = (kept(state, entries), watch::channel(false));
        let started = Group::start(config, disk, Arc::new(Second(taken)), Arc::new(SystemClock::new()));
        let group = started.await.unwrap();
        let leads = group.raft.wait(None).metrics(|metrics| metrics.state == ServerState::Leader, "it leads").await;
        leads.unwrap();
        assert_eq!(group.applied(), 100);
        (group, takes)
    }

    /// Told that there is none whoever had asked went on to delete which stream has the name by then.
    #[tokio::test]
    async fn a_deletion_that_is_found_done_is_told_so_by_a_node_that_does_not_hear_of_it() {
        let mut state = founded(1);
        let made = CreateStream { name: "s".into(), options: StreamOptions::default(), if_not_exists: false };
        let most = Limits { streams: 10, nodes: 3 };
        then(&mut state, |state| state.plan_create_stream(&made, &most, 0, false));
        let stream = state.catalog.streams().next().unwrap().id;
        let ((mut config, disk), (_takes, taken)) = (kept(&state, Vec::new()), watch::channel(false));
        config.timing.command_ms = 50;
        let started = Group::start(config, disk, Arc::new(Second(taken)), Arc::new(SystemClock::new()));
        let group = started.await.unwrap();
        let (op, version, body) = packed(&DeleteStream { stream: stream.into() });
        let found = (Status::UnknownStream, &Before::WasThere(true));
        let told = group.done_before(op, version, &body, found, tokio::time::Instant::now()).await;
        assert!(told.is_some());
        assert!(group.read(|state| state.catalog.find(&stream.into()).is_ok()), "it has not heard of it");
        group.stop().await;
    }

    /// What comes of something that such a leader begins before it knows what is decided.
    async fn begun_before<T>(takes: &watch::Sender<bool>, begun: impl Future<Output = T>) -> T {
        let mut begun = std::pin::pin!(begun);
        tokio::select! {
            biased;
            _ = &mut begun => panic!("it can have nothing decided"),
            () = tokio::task::yield_now() => {}
        }
        takes.send_replace(true);
        begun.await
    }

    /// The error that a command is answered which such a leader gets; nothing if it is done.
    async fn refused<M: Message>(group: &Group, takes: &watch::Sender<bool>, message: &M) -> Option<String> {
        let (op, version, body) = packed(message);
        let command = ForwardCommand { op: op as u16, version, system: false, body };
        let mut answer = begun_before(takes, group.execute_forwarded(&command, &Arc::default())).await;
        loop {
            if Status::from_u16(answer.status) == Some(Status::Ok) {
                return None;
            }
            let said = ErrorBody::decode(&answer.body).unwrap().message;
            // Where this thread is held up node 2 does not answer in time.
            if !said.contains("no leader at the moment") {
                return Some(said);
            }
            answer = group.execute_forwarded(&command, &Arc::default()).await;
        }
    }

    #[tokio::test]
    async fn who_has_joined_is_not_taken_out_by_a_leader_that_does_not_know_it_yet() {
        let state = founded(0);
        let joined = state.plan_join(&joins(3, Roles::ALL), 0).unwrap();
        let (group, takes) = leads(&state, joined).await;
        let mut looked = begun_before(&takes, group.let_leave()).await;
        while looked.is_err() {
            looked = group.let_leave().await;
        }
        assert!(group.read(|state| state.node(3).is_some()));
        assert_eq!(group.peers().iter().map(|(node, _)| *node).collect::<Vec<_>>(), [1, 2, 3]);
        group.stop().await;
    }

    #[tokio::test]
    async fn nothing_is_given_up_of_who_is_lost_by_a_leader_that_does_not_know_it_yet() {
        let mut state = founded(2);
        let made = CreateStream { name: "s".into(), options: StreamOptions::default(), if_not_exists: false };
        let most = Limits { streams: 10, nodes: 3 };
        then(&mut state, |state| state.plan_create_stream(&made, &most, 0, false));
        let stream = state.catalog.streams().next().unwrap().id;
        let owner = state.owner(stream, 0).unwrap();
        let fenced = state.plan_fence(owner.node, owner.epoch).unwrap();
        let (group, takes) = leads(&state, fenced).await;
        let asked = AcceptLoss { stream: stream.into(), streamlet: StreamletId(0) };
        let said = refused(&group, &takes, &asked).await.expect("it may go on for some seconds");
        assert!(said.contains("may not know yet that it is lost"), "{said}");
        group.stop().await;
    }

    #[tokio::test]
    async fn an_end_is_not_used_that_a_leader_does_not_know_yet_before_backups_are_asked_once_more() {
        let mut state = founded(3);
        let epoch = |node| state.node(node).unwrap().epoch;
        let (log, user) = (LogName { node: 3, epoch: epoch(3), log: 0 }, (4, epoch(4)));
        let view = LogView { log, view: 1, first: 1, backups: vec![4, 5] };
        then(&mut state, |state| state.plan_view(&view));
        let mut later = state.clone();
        let mut entries = then(&mut later, |state| state.plan_fence(log.node, log.epoch));
        let end = AgreedEnd { end: 7, at_all: false, certain: true };
        entries.extend(then(&mut later, |state| state.plan_end_log(log, end)));
        let (group, takes) = leads(&state, entries).await;
        let ends = vec![UsedEnd { log: log.into(), end: 7 }];
        let asked = UseEnds { node: user.0, epoch: user.1, ends };
        let said = refused(&group, &takes, &asked).await.expect("both backups may know of a lower one");
        assert!(said.contains("backups that are back are asked first"), "{said}");
        group.stop().await;
    }

    /// Backups that are not there.
    struct Silent;

    impl Backups for Silent {
        fn fence(
            &self,
            _: NodeNumber,
            _: &str,
            _: NodeNumber,
            _: u32,
            _: Vec<(LogName, u64)>,
        ) -> Pending<Vec<(LogName, ToldEnd)>> {
            Box::pin(async { Err("nobody is there".into()) })
        }
    }

    #[tokio::test]
    async fn all_streams_are_looked_through_once_for_what_is_agreed_and_not_at_each_turn() {
        let state = founded(2);
        let made = |name: &'static str| {
            move |state: &ClusterState| {
                let made = CreateStream { name: name.into(), options: StreamOptions::default(), if_not_exists: false };
                let is_there = state.catalog.find(&name.into()).is_ok();
                let most = Limits { streams: 10, nodes: 3 };
                if is_there { Ok(Vec::new()) } else { state.plan_create_stream(&made, &most, 0, false) }
            }
        };
        let (group, takes) = leads(&state, made("a")(&state).unwrap()).await;
        takes.send_replace(true);
        let mut waits = Waits::default();
        // It has come to know what is agreed, and has what follows from that done.
        while waits.nothing_as_of.is_none_or(|as_of| as_of <= 101 || as_of != group.applied()) {
            drop(group.lead(Vec::new(), &mut waits, &Silent).await);
            tokio::task::yield_now().await;
        }
        let from = group.applied();
        LOOKED_THROUGH.set(0);
        for turn in 0..200 {
            while turn == 100 && group.commit(&mut *group.leading.lock().await, made("b")).await.is_err() {
                tokio::task::yield_now().await;
            }
            drop(group.lead(Vec::new(), &mut waits, &Silent).await);
        }
        // One, if nobody else was elected meanwhile.
        let agreed = group.applied() - from;
        assert!(group.read(|state| state.catalog.streams().count() == 2));
        assert!((1..=agreed).contains(&LOOKED_THROUGH.get()), "{} for {agreed}", LOOKED_THROUGH.get());
        group.stop().await;
    }

    /// As where the command before it holds what makes commands go one at a time: nothing becomes of it, and that is seen all the same.
    #[tokio::test]
    async fn what_does_not_come_to_an_end_is_looked_at_until_it_does() {
        let (ends, waits) = oneshot::channel();
        let (mut ends, mut looks) = (Some(ends), 0);
        let look = || {
            looks += 1;
            if looks == 3
                && let Some(ends) = ends.take()
            {
                ends.send(7).expect("it is waited for");
            }
        };
        assert_eq!(meanwhile(waits, tokio::task::yield_now, look).await, Ok(7));
        assert_eq!(looks, 3);
    }

    #[test]
    fn that_another_node_was_fenced_does_not_hide_that_this_one_cannot_be() {
        let mut fences = Fences::default();
        let mut said = Vec::new();
        for now_us in (0..=2 * FAILING_US_MAX).step_by(FAILING_US_MAX as usize / 4) {
            // Another one is silent at each look, is fenced, and is not silent any more.
            let other = (2, now_us as u32);
            fences.keep(&[other, (3, 1)]);
            assert_eq!(fences.of(other.0, other.1).look(false, now_us), None);
            said.extend(fences.of(3, 1).look(true, now_us));
        }
        assert_eq!(said, [Lasts::For(FAILING_US_MAX), Lasts::For(2 * FAILING_US_MAX)]);
        // It was heard in between.
        fences.keep(&[]);
        assert_eq!(fences.of(3, 1).look(true, 2 * FAILING_US_MAX + 1), None);
        assert_eq!(fences.0.len(), 1);
    }

    #[test]
    fn the_same_is_asked_after_longer_and_longer_times_and_anything_else_at_once() {
        let question = |epoch| {
            let logs = vec![(LogName { node: 1, epoch: 1, log: 0 }, 1)];
            vec![Question { of: (1, 1), backup: 2, address: "2".into(), logs, epoch, waits: true }]
        };
        let mut over = Over::new(0);
        let mut asked = |question: &[Question], from_ms: u64, to_ms: u64| {
            (from_ms..to_ms).step_by(50).filter(|ms| over.is_due(question, ms * 1000)).collect::<Vec<_>>()
        };
        assert_eq!(asked(&question(Some(3)), 0, 8_000), [0, 50, 150, 350, 750, 1_550, 3_150, 5_150, 7_150]);
        assert_eq!(asked(&question(None), 8_000, 8_200), [8_000, 8_050, 8_150], "it is lost now");
        assert_eq!(asked(&question(Some(4)), 8_200, 8_250), [8_200], "it takes part again");
    }
}
