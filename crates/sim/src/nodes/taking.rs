//! Taking over and rebuilding, as `crates/server/src/cluster/recovery.rs` does it, by turns: what has its turn, what it is opened from, and what the coordinators are told
//! of it. The work itself is done by [workers](super::recovering).

use std::collections::{BTreeSet, VecDeque};

use kera_broker::{Broker, EndedLog, EndedView, HandedStates, Rebuild, logs_without};
use kera_coordinator::cluster::{ClusterState, Owned, Sources, Views, asked_back};
use kera_env::Clock;
use kera_format::cluster::LogName;
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};
use kera_protocol::{Body, GiveBack, RebuildNeeds, RebuildRange, StreamletRef, StreamletState};

use super::node::Running;
use super::plan::Planted;
use super::recovering::{LeftOut, Reply, Worker};

/// Time until a step of a recovery that failed is tried again, in microseconds.
const RETRY_US: u64 = 100_000;

/// Steps 5 to 7, as far as this process is with them.
#[derive(Default)]
pub(super) struct Recovery {
    taken: BTreeSet<Owned>,
    pub(super) taking: Vec<Owned>,
    /// Which of those that need other nodes' logs has its turn.
    turn: usize,
    rebuilds: VecDeque<Rebuild>,
    /// The one that takes over, the one that rebuilds, and the one that mends.
    pub(super) workers: [Option<Worker>; 3],
    /// What each of them waits for.
    pub(super) asked: [u64; 3],
    /// What each of them is told if nobody answers.
    pub(super) late: [Option<Reply>; 3],
    /// The blocks of which each of them has asked a backup last: the backup, the log and the first block.
    pub(super) questions: [Option<(u32, LogId, u64)>; 3],
    /// Why the last step failed.
    pub(super) why: String,
    rebuilding: Option<Rebuild>,
    not_before_us: [u64; 3],
    /// Streamlets to report, and the command that does.
    pub(super) to_report: Vec<RebuildRange>,
    pub(super) reporting: Option<u64>,
    /// What is taken over and not known to be rebuilt, the first first.
    pub(super) needs: VecDeque<Needs>,
    /// The command that tells of it.
    pub(super) telling: Option<u64>,
    /// The command that says with which ends of logs streamlets are opened.
    pub(super) using: Option<u64>,
    tidy_us: u64,
    /// What nodes that have come back may have back, and what of that is not opened here from here on.
    pub(super) asked_back: Vec<GiveBack>,
    unreadable: BTreeSet<Owned>,
    /// What the node goes on rebuilding, of which it has come with nothing that was written since an earlier life of it took it over.
    pub(super) unwritten: BTreeSet<Owned>,
    pub(super) given: Vec<GiveBack>,
    pub(super) give_us: u64,
}

/// What was taken over together, each streamlet with its owner epoch, and the logs that it is rebuilt from.
pub(super) struct Needs {
    streamlets: Vec<Owned>,
    logs: BTreeSet<LogId>,
    rebuild: Rebuild,
}

impl Needs {
    /// The streamlets one by one.
    fn ranges(&self) -> Vec<RebuildRange> {
        let one = |(stream, StreamletId(first), owner_epoch): &Owned| RebuildRange {
            stream: *stream,
            first: *first,
            count: 1,
            owner_epoch: *owner_epoch,
        };
        self.streamlets.iter().map(one).collect()
    }
}

impl Recovery {
    /// That of an incarnation which has just begun.
    pub(super) fn of(known: &ClusterState, (node, epoch): (u32, u32), broker: &Broker) -> Recovery {
        let taken_over = known.taken_over_before(node, epoch).into_iter();
        let is_unwritten =
            |((stream, streamlet, _), since): &(Owned, u32)| !broker.has_since(*stream, *streamlet, *since);
        let unwritten = taken_over.filter(is_unwritten).map(|(one, _)| one).collect();
        Recovery { unwritten, ..Recovery::default() }
    }

    /// Nothing is taken over or rebuilt from here on.
    pub(super) fn stop(&mut self) {
        self.workers = [None, None, None];
        self.not_before_us = [u64::MAX; 3];
        self.to_report.clear();
    }

    /// What a streamlet is rebuilt from that was taken over in an owner epoch.
    pub(super) fn rebuild_of(&self, of: Owned) -> Option<Rebuild> {
        self.needs.iter().find(|needs| needs.streamlets.contains(&of)).map(|needs| needs.rebuild.clone())
    }

    /// Whether a streamlet could not be opened because nobody shows what it may have.
    pub(super) fn is_unreadable(&self, of: &Owned) -> bool {
        self.unreadable.contains(of)
    }

    /// Whether a streamlet goes back to the node that it came from, or may.
    fn is_given(&self, one: &Owned) -> bool {
        self.given.iter().any(|asked| asked_back(asked) == *one)
    }

    /// What is taken over, and what was and is not known to be rebuilt.
    pub(super) fn taken(&self) -> Vec<Owned> {
        self.taking.iter().chain(self.needs.iter().flat_map(|needs| &needs.streamlets)).copied().collect()
    }

    /// Whether something is taken over or rebuilt.
    pub(super) fn is_busy(&self) -> bool {
        self.workers.iter().any(Option::is_some) || !self.rebuilds.is_empty() || self.rebuilding.is_some()
    }
}

impl Running {
    /// A turn of the two threads that recover: starts what is to be done. Whose worker has to be resumed first.
    pub(super) fn recover(&mut self, known: &ClusterState, now_us: u64, planted: Option<Planted>) -> Vec<usize> {
        let mut started = Vec::new();
        let is_free = |recovery: &Recovery, which: usize| {
            recovery.workers[which].is_none() && now_us >= recovery.not_before_us[which]
        };
        if is_free(&self.recovery, 0) && self.begin_to_take(known, planted) {
            started.push(0);
        }
        if is_free(&self.recovery, 1) && self.recovery.to_report.is_empty() && self.begin_to_rebuild(known, planted) {
            started.push(1);
        }
        if is_free(&self.recovery, 2) && self.mend(known, live(known)) {
            started.push(2);
        }
        started
    }

    /// Begins to take streamlets over, if there are some that wait for no end of a log.
    fn begin_to_take(&mut self, known: &ClusterState, planted: Option<Planted>) -> bool {
        let waits_for_none = planted == Some(Planted::WaitsForNoEnd);
        let recovery = &mut self.recovery;
        let mut owned = known.to_rebuild(self.number, self.epoch);
        let waits = known.waits_for_ends();
        owned.retain(|one| !recovery.taken.contains(one) && !recovery.is_given(one));
        owned.retain(|one| waits_for_none || !waits(one.0, one.1.0));
        // Whoever had it may come back.
        let gives_back = planted == Some(Planted::GivesBackWhatWasCut);
        owned.retain(|one| !gives_back || !recovery.unwritten.contains(one));
        // What this node was answered for before it gathers what another one has lost must not be cut.
        owned.retain(|(stream, streamlet, _)| {
            let found = self.log.stream(*stream);
            found.is_none_or(|found| found.streamlet(*streamlet).is_none_or(|place| place.is_settled()))
        });
        if owned.is_empty() {
            return false;
        }
        // What one of them waits for does not hold up the others: the next one has its turn.
        let mut parts = parts_of(known, owned, planted);
        let (mut sources, owned) = parts.swap_remove(recovery.turn % parts.len());
        if let (Some(Planted::PassesOverASource), Sources::Of(nodes)) = (planted, &mut sources)
            && nodes.len() > 1
        {
            nodes.pop_first();
        }
        recovery.taking.clone_from(&owned);
        let (handed, mut logs) = (handed(known, &owned), ended_for(known, planted));
        logs.retain(|ended| sources.have(ended.log.into()));
        let logs = to_open(known, &owned, logs, planted);
        recovery.workers[0] = Some(Worker::take_over(&self.broker, owned, logs, handed, live(known)));
        true
    }

    /// Begins to rebuild what was taken over, or goes on with it.
    fn begin_to_rebuild(&mut self, known: &ClusterState, planted: Option<Planted>) -> bool {
        let recovery = &mut self.recovery;
        let next = recovery.rebuilding.take().or_else(|| recovery.rebuilds.pop_front());
        let Some(rebuild) = next else { return false };
        recovery.rebuilding = Some(rebuild.clone());
        let logs = ended_for(known, planted);
        let left_out = left_out(known, &rebuild, &logs, planted);
        recovery.workers[1] = Some(Worker::rebuild(&self.broker, rebuild, (logs, left_out), live(known)));
        true
    }

    /// A worker has taken over what it was to, or has not.
    pub(super) fn taken_over(&mut self, taken: Result<Rebuild, String>) {
        let recovery = &mut self.recovery;
        recovery.workers[0] = None;
        match taken {
            Ok(rebuild) => {
                let (streamlets, logs) = (recovery.taking.clone(), rebuild.needs.clone());
                recovery.needs.push_back(Needs { streamlets, logs, rebuild: rebuild.clone() });
                recovery.taken.extend(recovery.taking.drain(..));
                recovery.rebuilds.push_back(rebuild);
            }
            Err(why) => {
                if why.starts_with("SegmentUnreadable") {
                    recovery.unreadable.extend(recovery.taking.iter().copied());
                }
                (recovery.not_before_us[0], recovery.why) = (self.clock.monotonic_us() + RETRY_US, why);
                recovery.turn += 1;
            }
        }
    }

    /// A worker has rebuilt what it was to, or has not.
    pub(super) fn rebuilt(&mut self, done: Result<(), String>) {
        let recovery = &mut self.recovery;
        recovery.workers[1] = None;
        match done {
            Ok(()) => {
                recovery.rebuilding = None;
                recovery.to_report = recovery.needs.front().map(Needs::ranges).unwrap_or_default();
            }
            Err(why) => {
                (recovery.not_before_us[1], recovery.why) = (self.clock.monotonic_us() + RETRY_US, why);
                recovery.rebuilds.extend(recovery.rebuilding.take());
                recovery.needs.rotate_left(1);
            }
        }
    }

    /// What this node would have the coordinators know of its rebuilds, if they know anything else.
    pub(super) fn needs_to_tell(&self, known: &ClusterState, says_too_little: bool) -> Option<RebuildNeeds> {
        let streamlets = self.recovery.needs.iter().flat_map(Needs::ranges).collect();
        let logs: BTreeSet<LogId> = self.recovery.needs.iter().flat_map(|needs| &needs.logs).copied().collect();
        let logs = logs.into_iter().filter(|_| !says_too_little).collect();
        let said = RebuildNeeds { node: self.number, epoch: self.epoch, streamlets, logs };
        let is_news = self.recovery.telling.is_none() && known.takes_needs();
        let entries = is_news.then(|| known.plan_needs(&said))?;
        entries.is_ok_and(|entries| !entries.is_empty()).then_some(said)
    }

    /// Logs of this node's earlier incarnations that may go, looked for now and then.
    pub(super) fn old_logs(&mut self, known: &ClusterState, now_us: u64, gives_up_held: bool) -> Vec<LogName> {
        if now_us < self.recovery.tidy_us {
            return Vec::new();
        }
        self.recovery.tidy_us = now_us + 5_000_000;
        let old = known.own_lost_logs(self.number, self.epoch);
        if old.is_empty() || !self.copier.gives_up(known, (self.number, self.epoch), self.came_with_all) {
            return Vec::new();
        }
        if self.copier.needs_old_logs(&self.log) && !gives_up_held {
            return Vec::new();
        }
        old
    }
}

/// All logs of incarnations that are over whose ends are decided.
pub(super) fn ended_logs(state: &ClusterState) -> Vec<EndedLog> {
    let ended = state.lost_logs().filter_map(|(name, log)| {
        let views = log.views.iter().map(|view| EndedView { first: view.first, backups: view.backups.clone() });
        let id = LogId::from(name);
        Some(EndedLog { log: id, views: views.collect(), end: log.end?, at_all: log.ends_at_all() })
    });
    ended.collect()
}

/// The same, as whoever takes over has them.
fn ended_for(state: &ClusterState, planted: Option<Planted>) -> Vec<EndedLog> {
    let mut logs = ended_logs(state);
    if planted == Some(Planted::GivesUpReadable) {
        let is_there = |node: &u32| state.node(*node).is_some_and(|node| !node.fenced);
        let lacking = logs.iter_mut().flat_map(|log| &mut log.views);
        lacking.filter(|view| !view.backups.iter().all(is_there)).for_each(|view| view.backups.clear());
    }
    logs
}

/// Nodes that are not known to be lost.
fn live(known: &ClusterState) -> BTreeSet<u32> {
    known.nodes().iter().filter(|(_, node)| !node.fenced).map(|(number, _)| *number).collect()
}

/// What is taken over together, each with the nodes of whose logs it may need something.
fn parts_of(known: &ClusterState, owned: Vec<Owned>, planted: Option<Planted>) -> Vec<(Sources, Vec<Owned>)> {
    let parts = known.by_sources(owned);
    if planted == Some(Planted::GivesUpForAll) {
        return parts;
    }
    let alone = |(sources, owned): (Sources, Vec<Owned>)| {
        known.taken_alone(owned).into_iter().map(move |owned| (sources.clone(), owned))
    };
    parts.into_iter().flat_map(alone).collect()
}

/// The logs that streamlets are opened from, and what of them may be left out since a person has given it up. As `take_or_go_on_without` in
/// `crates/server/src/cluster/recovery.rs` has it.
fn to_open(
    known: &ClusterState,
    owned: &[Owned],
    logs: Vec<EndedLog>,
    planted: Option<Planted>,
) -> (Vec<EndedLog>, Views) {
    if planted == Some(Planted::GivesUpForAll) {
        return (logs_without(&logs, &given_up_for_any(known)), Views::new());
    }
    let [(stream, streamlet, owner_epoch)] = *owned else { return (logs, Views::new()) };
    let (before, all) = views_left_out(known, (stream, streamlet), owner_epoch, planted);
    (logs_without(&logs, &before), all.difference(&before).copied().collect())
}

/// What streamlets of a rebuild go on without if that fails. As `go_on_without` there.
fn left_out(known: &ClusterState, rebuild: &Rebuild, logs: &[EndedLog], planted: Option<Planted>) -> Vec<LeftOut> {
    let of = |name: &StreamletRef| {
        let StreamletRef { stream, streamlet } = *name;
        let epoch = known.owner(stream, streamlet.0).map_or(u32::MAX, |owner| owner.owner_epoch);
        let (before, all) = views_left_out(known, (stream, streamlet), epoch, planted);
        let (asked, left) = (logs_without(logs, &before), logs_without(logs, &all));
        (!all.is_empty()).then_some(LeftOut { name: *name, asked, left })
    };
    rebuild.streamlets.iter().filter_map(of).collect()
}

/// What was given up for a streamlet: what nobody is asked for any more, and all of it.
fn views_left_out(
    known: &ClusterState,
    place: (StreamId, StreamletId),
    owner_epoch: u32,
    planted: Option<Planted>,
) -> (Views, Views) {
    let (before, all) = known.views_left_out(place, owner_epoch);
    let before = if planted == Some(Planted::GoesOnUnasked) { all.clone() } else { before };
    (before, all)
}

/// What was given up for one streamlet or another.
fn given_up_for_any(known: &ClusterState) -> Views {
    let all = known.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(move |at| (info.id, at)));
    let given_up = all.flat_map(|(stream, at)| known.given_up_for(stream, at));
    given_up.map(|(log, view, _)| (LogId::from(log), view)).collect()
}

/// What streamlets took along when they moved last.
fn handed(known: &ClusterState, owned: &[Owned]) -> HandedStates {
    let kept = |(stream, streamlet, _): &Owned| {
        let kept = known.handed(*stream, streamlet.0)?;
        Some(((*stream, *streamlet), StreamletState::decode(1, &kept).expect("the coordinators checked it")))
    };
    owned.iter().filter_map(kept).collect()
}
