//! Taking over what lost brokers owned: steps 5 to 7 of `docs/replication.md`, "A broker is lost", for the streamlets that the
//! coordinators have given to this node.
//!
//! Two threads: one asks what lanes had and opens them, so that producers go on; the other rebuilds old groups behind it, and must
//! not hold the first one up when the next broker is lost. Both go on until the coordinators know that it is done, through errors and
//! through the loss of backups; after a restart the state of the coordinators says what is left to do.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_backup::BackupStats;
use kera_broker::{Broker, EndedLog, EndedView, HandedStates, Rebuild, RecoveryProgress, logs_without};
use kera_coordinator::CoordinatorError;
use kera_coordinator::cluster::{ClusterState, Offers, Owned, Views, asked_back};
use kera_format::cluster::{LogName, REBUILD_LOGS_MAX, REBUILD_RUNS_MAX};
use kera_format::vlog_replica::LogId;
use kera_format::{SegmentId, StreamId, StreamletId};
use kera_log::{Log, Stream, Streamlet};
use kera_protocol::{
    ChangeLog, GiveBack, LogChange, Message, RebuildNeeds, RebuildRange, Status, StreamletRef, StreamletState,
    StreamletsRebuilt,
};
use kera_raft::{Group, Transport};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;

use super::ask_backups::AskBackups;
use super::backups::BackupRole;
use super::retries::Retries;
use super::{Came, ask_while, floors, waiting};
use crate::fatal::Fatal;

/// Time until it is looked again for what may be tried again, and until the coordinators are told again.
const RETRY: Duration = Duration::from_millis(100);
/// Time until what holds a taking over up is logged again if it is still the same.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// Time between two looks at logs whose ends are not decided yet.
const PAUSE: Duration = Duration::from_millis(10);
/// How often it is looked whether logs of this node's earlier incarnations are still needed.
const TIDY: Duration = Duration::from_secs(5);

/// Streamlets that came to be held here since the start.
pub(super) type HeldAgain = BTreeSet<(StreamId, u32)>;

/// What was taken over together.
struct Taken {
    number: u64,
    rebuild: Arc<Rebuild>,
    /// When it was.
    began: Instant,
    /// How far it is.
    progress: Arc<RecoveryProgress>,
    /// What could be read of it when it failed last, if it has, and when it is tried again.
    failed_at: Mutex<(Option<u64>, Retries)>,
    /// When it failed first since more of it could be read.
    stuck_since: Mutex<Option<Instant>>,
}

impl Taken {
    fn new(number: u64, rebuild: Arc<Rebuild>) -> Taken {
        let (began, progress) = (Instant::now(), Arc::default());
        Taken { number, rebuild, began, progress, failed_at: Mutex::default(), stuck_since: Mutex::default() }
    }

    /// Bytes that are still to be rebuilt.
    fn left_bytes(&self) -> u64 {
        self.rebuild.bytes.saturating_sub(self.readable_bytes())
    }

    /// Why it gets no further for now, if it is under way and knows.
    fn held_up(&self) -> Option<String> {
        let is_without = self.progress.without_memory.load(Ordering::Relaxed) > 0;
        let left = self.left_bytes();
        let why = || {
            format!(
                "what lost nodes had is rebuilt when there is memory for it, and {left} bytes are left: the file system of the arena is full before the arena is; make that one larger, \
                 free some of it, or start the node with a smaller arena"
            )
        };
        is_without.then(why)
    }

    fn readable_bytes(&self) -> u64 {
        self.progress.bytes_readable.load(Ordering::Relaxed)
    }

    /// A try has failed that began when so much had been heard.
    fn has_failed(&self, heard: u64, now: Instant) {
        let (failed_at, retries) = &mut *self.failed_at.lock();
        // Who has got further goes on as soon as who fails for the first time.
        if failed_at.is_none_or(|failed_at| self.readable_bytes() > failed_at) {
            *retries = Retries::default();
            *self.stuck_since.lock() = Some(now);
        }
        retries.failed(heard, now);
        *failed_at = Some(self.readable_bytes());
    }

    /// When it is to be tried. `None`: at once.
    fn due(&self, heard: u64) -> Option<Instant> {
        self.failed_at.lock().1.due(heard)
    }

    /// Whether there is something left of it, and it gets further: it has not failed, or more can be read than when it did. What only reads again
    /// what it has read before does not.
    fn comes_on(&self) -> bool {
        self.left_bytes() > 0 && self.failed_at.lock().0.is_none_or(|failed_at| self.readable_bytes() > failed_at)
    }
}

/// From which logs it is rebuilt.
pub(super) struct Needs {
    pub(super) streamlets: Vec<Owned>,
    pub(super) logs: BTreeSet<LogId>,
    pub(super) rebuild: Arc<Rebuild>,
}

#[derive(Default)]
struct Work {
    /// Somebody should look at the state of the coordinators.
    look: bool,
    /// How often something was heard that may be what waits.
    heard: u64,
    /// Those that are open, until they are known to be rebuilt.
    taken: HashSet<Owned>,
    /// Those that could not be opened, and when that is tried again.
    retries: HashMap<Owned, Retries>,
    /// Since when those could not be opened that still are not.
    waits_since: HashMap<Owned, Instant>,
    /// Those that could not be opened when it was tried last, because nobody shows what they may have.
    unreadable: HashSet<Owned>,
    /// Those that nodes which have come back with them may have back: looked at before anything is opened, by the thread that opens.
    asked_back: Vec<GiveBack>,
    rebuilds: VecDeque<Arc<Taken>>,
    /// The one that is under way.
    rebuilding: Option<Arc<Taken>>,
    /// What is taken over and not known to be rebuilt, by the number of the taking over.
    needs: BTreeMap<u64, Needs>,
    next_taken: u64,
    /// Why something could not be taken over, as it was logged.
    said: Said,
    /// Why something is not taken over yet, and why something is not rebuilt yet.
    not_taken: Option<String>,
    not_rebuilt: Option<String>,
    stopping: bool,
}

impl Work {
    /// The rebuild that has its turn. `Err`: none has before this moment, or before something is heard.
    ///
    /// What has failed waits, for longer and longer until something is heard: it reads all blocks that may have something of what it lacks, from every
    /// backup, and what it waits for may be a person. What is missing for this one may be there for another one, which does not wait for it.
    fn next_rebuild(&mut self, now: Instant) -> Result<Arc<Taken>, Option<Instant>> {
        let due = |at: &usize| self.rebuilds[*at].due(self.heard);
        let first = (0..self.rebuilds.len()).min_by_key(due).ok_or(None)?;
        if let Some(at) = due(&first).filter(|at| *at > now) {
            return Err(Some(at));
        }
        let taken = self.rebuilds.remove(first).ok_or(None)?;
        self.rebuilding = Some(taken.clone());
        Ok(taken)
    }

    /// The rebuild that is under way has failed. `heard`: what had been heard when it began.
    fn rebuild_failed(&mut self, heard: u64, now: Instant, why: String) {
        self.not_rebuilt = Some(why);
        if let Some(taken) = self.rebuilding.take() {
            taken.has_failed(heard, now);
            self.rebuilds.push_back(taken);
        }
    }

    /// Bytes that are still to be rebuilt, or are and have not their copies, which are `uncopied`. More than none before it `is_over`, as the coordinators have heard it.
    ///
    /// Nothing else tells that what lost nodes had has fewer copies than it should. It is in logs that others may have no copy of yet, blocks of which
    /// count as lacking only once they are made; and what is still to be opened has no bytes that are known. Who takes a disk away when nothing
    /// is left may take nothing that is nowhere else.
    fn left_bytes(&self, uncopied: u64, is_over: bool) -> u64 {
        let unread: u64 = self.rebuilding.iter().chain(&self.rebuilds).map(|taken| taken.left_bytes()).sum();
        if is_over { unread } else { unread.saturating_add(uncopied).max(1) }
    }

    /// Rebuilds that have failed, and since when each gets no further.
    fn not_rebuilt_yet(&self) -> Vec<(Arc<Taken>, Instant)> {
        let all = self.rebuilding.iter().chain(&self.rebuilds);
        let stuck = all.filter_map(|taken| Some((taken.clone(), (*taken.stuck_since.lock())?)));
        stuck.collect()
    }

    /// Those of what is to be rebuilt that are not open.
    fn not_open(&self, to_rebuild: Vec<Owned>) -> Vec<Owned> {
        to_rebuild.into_iter().filter(|one| !self.taken.contains(one)).collect()
    }

    /// Forgets what is open and rebuilt: it never is to be rebuilt in the same owner epoch again. A node lives for months, and each loss of another one brings some.
    fn forget_rebuilt(&mut self, to_rebuild: &[Owned]) {
        if !self.taken.is_empty() {
            let left: HashSet<&Owned> = to_rebuild.iter().collect();
            self.taken.retain(|one| left.contains(one));
        }
    }

    /// Leaves out what has failed and is not to be tried yet. Whether that is anything.
    fn retain_due(&self, owned: &mut Vec<Owned>, now: Instant) -> bool {
        let before = owned.len();
        let is_due = |one: &Owned| self.retries.get(one).is_none_or(|retries| retries.is_due(self.heard, now));
        owned.retain(is_due);
        owned.len() < before
    }

    /// Whether a rebuild gets further: the one that is under way, for the others wait for that one; or else one that is about to begin.
    ///
    /// Not for as long as one is left. What is missing for a rebuild may be missing for days, until a person decides, and meanwhile all else of which a
    /// backup is lost would have one copy less with each loss. The price is small: a rebuild that gets further after all finds at most the copies of
    /// half a second before it, at a rate that is bounded.
    fn comes_on(&self) -> bool {
        match &self.rebuilding {
            Some(taken) => taken.comes_on(),
            None => self.rebuilds.iter().any(|taken| taken.comes_on()),
        }
    }
}

/// What holds something up that is tried many times a second, as it was logged last, and when.
#[derive(Default)]
struct Said(Option<(String, Instant)>);

impl Said {
    /// Whether it is to be logged: when it is something else, and otherwise now and then.
    fn is_news(&mut self, reason: &str) -> bool {
        let is_news = self.0.as_ref().is_none_or(|(said, at)| said != reason || at.elapsed() > SAY_AGAIN);
        if is_news {
            self.0 = Some((reason.to_owned(), Instant::now()));
        }
        is_news
    }
}

/// See the module.
pub(super) struct Recovery {
    node: u32,
    epoch: u32,
    group: Arc<Group>,
    broker: Arc<Broker>,
    backups: AskBackups,
    /// What it got back at its start, or holds since it was moved away: what it has of that from before is copied in the logs of its
    /// earlier incarnations only, until it is copied again.
    returned: Vec<(StreamId, Range<u32>)>,
    /// Groups from before are of owner epochs below.
    began: u32,
    /// What it goes on rebuilding, of which it has come with nothing that was written since an earlier life of it took it over.
    unwritten: HashSet<Owned>,
    /// It came with all that it had acknowledged, and offers that to those who rebuild it.
    has_all: bool,
    /// What it came with may have lacked copies by then.
    may_lack_copies: bool,
    /// What it has offered.
    offers: Mutex<Offers>,
    /// With what is held again all that came back was copied again.
    copied: Mutex<Option<HeldAgain>>,
    /// Where the coordinators' log runs.
    runtime: Handle,
    work: Mutex<Work>,
    changed: Condvar,
}

/// Blocks of a log that is over.
pub(super) struct OldView {
    pub(super) log: LogId,
    pub(super) blocks: RangeInclusive<u64>,
    /// Who should have them.
    pub(super) backups: Vec<u32>,
    /// They are the log's last ones, and not all of these have shown that they have them.
    pub(super) is_unshown: bool,
}

impl Recovery {
    /// Starts both threads. `links`: where connections to backups run, with a transport of their own.
    pub(super) fn start(
        Came { node, epoch, has_all, may_lack_copies, .. }: Came,
        group: &Arc<Group>,
        broker: &Arc<Broker>,
        own: Arc<BackupRole>,
        (transport, links): (Arc<dyn Transport>, Handle),
        runtime: &Handle,
    ) -> Result<(Arc<Recovery>, Vec<JoinHandle<()>>), Fatal> {
        let (returned, began) = group.read(|state| state.came_back_with(node, epoch));
        let recovery = Arc::new(Recovery {
            returned,
            began,
            // Before anything of it is opened: what that drops is not to be taken for what never was.
            unwritten: unwritten(broker, group.read(|state| state.taken_over_before(node, epoch))),
            has_all,
            may_lack_copies,
            offers: Mutex::default(),
            copied: Mutex::default(),
            node,
            epoch,
            group: group.clone(),
            broker: broker.clone(),
            backups: AskBackups::new(group, (node, epoch), own, (transport, links), runtime),
            runtime: runtime.clone(),
            work: Mutex::default(),
            changed: Condvar::new(),
        });
        let no_thread = |error| Fatal::Resources { what: "a thread that takes over streamlets", error };
        let spawn = |name: &str, run: fn(&Recovery)| {
            let recovery = recovery.clone();
            std::thread::Builder::new().name(name.into()).spawn(move || run(&recovery)).map_err(no_thread)
        };
        let threads = vec![spawn("kera-take-over", Recovery::take)?, spawn("kera-rebuild", Recovery::rebuild)?];
        Ok((recovery, threads))
    }

    /// Something has changed that may be work. Never blocks.
    pub(super) fn look(&self) {
        let mut work = self.work.lock();
        (work.look, work.heard) = (true, work.heard + 1);
        drop(work);
        self.changed.notify_all();
    }

    /// Has both threads return, soon: neither waits for more than what it writes just now.
    pub(super) fn stop(&self) {
        self.backups.stop();
        self.work.lock().stopping = true;
        self.changed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.work.lock().stopping
    }

    /// Has the coordinators do what a message asks for, unless the node is to stop first.
    fn ask_coordinators<M>(&self, message: M) -> Result<M::Response, CoordinatorError>
    where
        M: Message<Response: Send> + Send + Sync + 'static,
    {
        ask_while((&self.group, &self.runtime), message, || !self.is_stopping())
    }

    /// The first thread.
    fn take(&self) {
        loop {
            {
                let mut work = self.work.lock();
                let until = Instant::now() + TIDY;
                while !work.look && !work.stopping && !self.changed.wait_until(&mut work, until).timed_out() {}
                if work.stopping {
                    return;
                }
                work.look = false;
            }
            self.give_up_old_logs();
            let mut tidied = Instant::now();
            while !self.is_stopping() && !self.take_all() {
                self.tell_needs();
                let has_failed = !self.work.lock().retries.is_empty();
                std::thread::sleep(if has_failed { RETRY } else { PAUSE });
                // What is waited for here may be another node that waits for this.
                if tidied.elapsed() > TIDY {
                    self.give_up_old_logs();
                    tidied = Instant::now();
                }
            }
            self.tell_needs();
        }
    }

    /// Tells the coordinators from which logs this node rebuilds, if they know anything else: others may be given up meanwhile. Asked again when
    /// it is looked again, if they do not hear it.
    fn tell_needs(&self) {
        let said = needs_of(self.node, self.epoch, self.work.lock().needs.values());
        // What is the same to them is not told again.
        let is_news = |state: &ClusterState| {
            state.takes_needs() && state.plan_needs(&said).is_ok_and(|entries| !entries.is_empty())
        };
        if self.is_stopping() || !self.group.read(is_news) {
            return;
        }
        if let Err(error) = self.ask_coordinators(said) {
            tracing::debug!(%error, "the coordinators do not know yet from which logs this node rebuilds");
        }
    }

    /// Has logs of this node's earlier incarnations given up that nobody needs: if it has nothing of that time any more, or never got
    /// anything back. Those from which somebody rebuilds stay, see [`ClusterState::plan_give_up_lost`].
    fn give_up_old_logs(&self) {
        let old: Vec<LogName> = self.group.read(|state| state.own_lost_logs(self.node, self.epoch));
        if old.is_empty() || !self.may_give_up_old_logs() {
            return;
        }
        let (segments, again) = self.returned_segments();
        if !segments.is_empty() && !self.has_copied(&again) {
            return;
        }
        for name in old {
            if self.is_stopping() {
                return;
            }
            let log = LogId::from(name);
            let (view, first_block, backups) = (self.epoch, 0, Vec::new());
            let message = ChangeLog { log, change: LogChange::GiveUp, view, first_block, backups };
            if let Err(error) = self.ask_coordinators(message) {
                tracing::debug!(%log, %error, "an old log is given up later");
            }
        }
    }

    /// Segments from before this incarnation, of what came back with it, and those of its streamlets that came to be held here since.
    pub(super) fn returned_segments(&self) -> (Vec<SegmentId>, HeldAgain) {
        let (log, again) = (self.broker.log(), self.held_again());
        let segments = self.returned(&again, |_, streamlet| log.returned_segments(streamlet, self.began));
        (segments.into_iter().flatten().collect(), again)
    }

    /// Bytes that backups need for these: of all copies but the owner's.
    pub(super) fn returned_bytes(&self) -> u64 {
        let log = self.broker.log();
        let copies = |streamlet: &Streamlet| u64::from(streamlet.copies().saturating_sub(1));
        let of = |_: &Stream, streamlet: &Streamlet| copies(streamlet) * log.returned_bytes(streamlet, self.began);
        self.returned(&self.held_again(), of).into_iter().sum()
    }

    fn returned<T>(&self, again: &HeldAgain, of: impl Fn(&Stream, &Streamlet) -> T) -> Vec<T> {
        let log = self.broker.log();
        let is_before = |stream: StreamId, at: u32| {
            self.returned.iter().any(|(known, range)| *known == stream && range.contains(&at))
        };
        let of_run = |(stream, range): &(StreamId, Range<u32>)| {
            let stream = log.stream(*stream)?;
            let of_run = stream.streamlets().filter(|one| range.contains(&one.id().0));
            Some(of_run.map(|one| of(&stream, one)).collect::<Vec<_>>())
        };
        let since = again.iter().filter(|(stream, at)| !is_before(*stream, *at));
        let since: Vec<_> = since.map(|(stream, at)| (*stream, *at..*at + 1)).collect();
        self.returned.iter().chain(&since).filter_map(of_run).flatten().collect()
    }

    /// Changes what is known of offers.
    pub(super) fn offers<T>(&self, change: impl FnOnce(&mut Offers) -> T) -> T {
        change(&mut self.offers.lock())
    }

    /// Streamlets that came to be held here since the start.
    pub(super) fn held_again(&self) -> HeldAgain {
        let offers = self.offers.lock();
        self.group.read(|state| offers.held(state, self.node))
    }

    /// Whether nothing that is offered, or may be, can come to be held here, with its copies in the old logs.
    fn may_give_up_old_logs(&self) -> bool {
        let mut offers = self.offers.lock();
        self.group.read(|state| offers.give_up_old_logs(state, (self.node, self.epoch), self.has_all))
    }

    /// Whether all that came back has its copies in logs of this incarnation, with what is held again.
    fn has_copied(&self, again: &HeldAgain) -> bool {
        self.copied.lock().as_ref().is_some_and(|copied| again.is_subset(copied))
    }

    /// What a streamlet is rebuilt from that was taken over in an owner epoch, until the coordinators know that it is rebuilt.
    pub(super) fn rebuild_of(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        owner_epoch: u32,
    ) -> Option<Arc<Rebuild>> {
        let work = self.work.lock();
        let found = work.needs.values().find(|needs| needs.streamlets.contains(&(stream, streamlet, owner_epoch)));
        found.map(|needs| needs.rebuild.clone())
    }

    /// What a streamlet took along when it moved last.
    pub(super) fn handed_state(&self, stream: StreamId, streamlet: StreamletId) -> Option<StreamletState> {
        self.handed(&[(stream, streamlet, 0)]).into_values().next()
    }

    /// All that came back has its copies in logs of this incarnation, with these that are held again.
    pub(super) fn copied_returned(&self, again: HeldAgain) {
        *self.copied.lock() = Some(again);
        self.look();
    }

    /// Blocks of this node's earlier incarnations, with the backups that should have them.
    pub(super) fn old_views(&self) -> Vec<OldView> {
        let logs = self.group.read(|state| ended_logs(state, self.node));
        let mut views = Vec::new();
        for EndedLog { log, views: of_log, end, at_all } in logs.into_iter().filter(|ended| ended.log.node == self.node)
        {
            let nexts: Vec<u64> = of_log.iter().skip(1).map(|view| view.first).chain([end + 1]).collect();
            let of_view = |(view, next): (EndedView, u64)| {
                let is_unshown = !at_all && next == end + 1;
                OldView { log, blocks: view.first..=next - 1, backups: view.backups, is_unshown }
            };
            let of_log = of_log.into_iter().zip(nexts).map(of_view);
            views.extend(of_log.filter(|view| !view.blocks.is_empty() && !view.backups.is_empty()));
        }
        views
    }

    /// Blocks of this node's earlier incarnations, with the backups that have them, also of logs whose ends are not decided: up to whatever there is.
    pub(super) fn kept_blocks(&self) -> Vec<(LogId, RangeInclusive<u64>, Vec<u32>)> {
        self.group.read(|state| state.blocks_of_earlier_lives(self.node))
    }

    /// Whether what this node came with may have lacked copies by then.
    pub(super) fn may_lack_copies(&self) -> bool {
        self.may_lack_copies
    }

    /// Whether nobody can show where a log of this node's earlier incarnations ends.
    pub(super) fn has_open_end(&self) -> bool {
        self.group.read(|state| state.has_open_end(self.node))
    }

    /// The coordinators' log.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// How backups are asked for what they have of logs.
    pub(super) fn backups(&self) -> &dyn kera_broker::Copies {
        &self.backups
    }

    /// Asks a backup.
    pub(super) fn ask_backup<M: Message>(&self, backup: u32, asked: &M) -> Result<M::Response, String> {
        self.backups.ask(backup, asked)
    }

    /// A node has come back with a streamlet that this one has taken over, and gets it back if this one cannot open it. `is_uncut`: its start has cut nothing of it.
    pub(super) fn ask_back(&self, asked: GiveBack, is_uncut: bool) {
        let mut work = self.work.lock();
        let one = asked_back(&asked);
        let is_new = work.unreadable.contains(&one) && !work.asked_back.contains(&asked);
        let is_unwritten = self.unwritten.contains(&one);
        if is_new && self.group.read(|state| state.gives_back(&asked, is_uncut, is_unwritten)) {
            work.asked_back.push(asked);
        }
    }

    /// Gives back what was asked for and is not open here. This thread, which alone opens streamlets, opens none of these from here on, for as long as the coordinators may come to
    /// agree: those of which that is so.
    fn give_back(&self) -> HashSet<Owned> {
        let mut given = std::mem::take(&mut self.work.lock().asked_back);
        self.group.read(|state| given.retain(|asked| state.may_be_given_back(asked)));
        given.retain(|asked| !self.broker.is_of_epoch(asked.stream, asked.streamlet, asked.owner_epoch));
        for asked in &given {
            if self.is_stopping() {
                break;
            }
            match self.ask_coordinators(asked.clone()) {
                Ok(_) => {
                    let GiveBack { stream, streamlet, to, .. } = *asked;
                    tracing::info!(%stream, %streamlet, node = to, "a streamlet that cannot be opened here goes back to the node that has it");
                }
                Err(error) => tracing::debug!(%error, "a streamlet that cannot be opened is given back later"),
            }
        }
        let owned = given.iter().map(asked_back).collect();
        self.work.lock().asked_back.append(&mut given);
        owned
    }

    /// Takes over what is to be; false: something is left.
    fn take_all(&self) -> bool {
        let (given, heard) = (self.give_back(), self.work.lock().heard);
        let to_rebuild = self.to_rebuild();
        let mut owned = {
            let mut work = self.work.lock();
            work.forget_rebuilt(&to_rebuild);
            work.not_open(to_rebuild)
        };
        if owned.is_empty() {
            let mut work = self.work.lock();
            (work.not_taken, work.unreadable, work.retries) = (None, HashSet::new(), HashMap::new());
            work.waits_since.clear();
            return true;
        }
        // The leader ends the logs of all that are lost, this node's earlier incarnations included: only then their blocks say all. The
        // others' streamlets do not wait for one of which nobody can show where it ends.
        let all = owned.len();
        // What is known here is told to the broker, and may not have been yet.
        owned.retain(|(stream, streamlet, epoch)| self.broker.is_named_owner(*stream, *streamlet, *epoch));
        let logs = self.group.read(|state| {
            let waits = state.waits_for_ends();
            owned.retain(|(stream, streamlet, _)| !waits(*stream, streamlet.0));
            ended_logs(state, self.node)
        });
        owned.retain(|one| !given.contains(one));
        retain_settled(self.broker.log(), &mut owned);
        let waits = self.work.lock().retain_due(&mut owned, Instant::now());
        let mut is_all = owned.len() == all;
        if owned.is_empty() {
            return false;
        }
        let streams: BTreeSet<StreamId> = owned.iter().map(|(stream, ..)| *stream).collect();
        let log = self.broker.log();
        self.group.read(|state| streams.iter().for_each(|stream| floors::agree(log, state, *stream)));
        let mut not_taken = None;
        for (sources, owned) in self.group.read(|state| state.by_sources(owned)) {
            if self.is_stopping() {
                return false;
            }
            let logs: Vec<EndedLog> = logs.iter().filter(|ended| sources.have(ended.log.into())).cloned().collect();
            let parts = self.group.read(|state| state.taken_alone(owned));
            for owned in parts {
                if let Err(reason) = self.take_or_go_on_without(&owned, &logs) {
                    let (now, mut work) = (Instant::now(), self.work.lock());
                    for one in owned {
                        work.retries.entry(one).or_default().failed(heard, now);
                        work.waits_since.entry(one).or_insert(now);
                    }
                    not_taken.get_or_insert(reason);
                }
            }
        }
        if let Some(reason) = &not_taken {
            self.say_not_yet(reason);
            is_all = false;
        }
        // What waits to be tried again still waits for the same.
        if not_taken.is_some() || !waits {
            self.work.lock().not_taken = not_taken;
        }
        is_all
    }

    /// Takes over streamlets that may need something of these logs. One of which a person has given up blocks, which comes alone, goes on without those of them that
    /// [do not come](Broker::take_over_without), and without all that an owner before may have left out.
    fn take_or_go_on_without(&self, owned: &[Owned], logs: &[EndedLog]) -> Result<(), String> {
        let [(stream, streamlet, owner_epoch)] = *owned else { return self.take_part(owned, logs, &Views::new()) };
        let (before, all) = self.group.read(|state| state.views_left_out((stream, streamlet), owner_epoch));
        let may_come: Views = all.difference(&before).copied().collect();
        self.take_part(owned, &logs_without(logs, &before), &may_come)
    }

    /// Has streamlets of a rebuild that has failed go on without blocks that a person has given up for them. Whether any does.
    fn go_on_without(&self, taken: &Taken, logs: &[EndedLog]) -> bool {
        let mut goes_on = false;
        for name in taken.rebuild.streamlets.iter().copied() {
            let StreamletRef { stream, streamlet } = name;
            let (before, all) = self.group.read(|state| {
                let epoch = state.owner(stream, streamlet.0).map_or(u32::MAX, |owner| owner.owner_epoch);
                state.views_left_out((stream, streamlet), epoch)
            });
            if all.is_empty() || self.is_stopping() {
                continue;
            }
            let (asked, left) = (logs_without(logs, &before), logs_without(logs, &all));
            let logs = (&asked[..], &left[..]);
            match self.broker.go_on_without(&taken.rebuild, name, logs, &self.backups, &taken.progress) {
                Ok(is_it) => goes_on |= is_it,
                Err(failure) => {
                    tracing::warn!(%stream, %streamlet, error = %failure, "a streamlet does not go on without what was given up for it");
                }
            }
        }
        goes_on
    }

    /// Takes over streamlets that may need something of these logs. `given_up`: views that a person has given up for them and that may still come.
    fn take_part(&self, owned: &[Owned], logs: &[EndedLog], given_up: &Views) -> Result<(), String> {
        let (began, handed) = (Instant::now(), self.handed(owned));
        let taken = self.broker.take_over_without(owned, (logs, given_up), &self.backups, &handed);
        let is_unreadable = taken.as_ref().is_err_and(|failure| failure.status == Status::SegmentUnreadable)
            // Or else nobody was asked any more.
            && !self.is_stopping();
        {
            let mut work = self.work.lock();
            work.unreadable.retain(|one| !owned.contains(one));
            work.unreadable.extend(owned.iter().filter(|_| is_unreadable));
        }
        let (rebuild, left_out) = taken.map_err(|failure| failure.to_string())?;
        for (log, view) in left_out {
            tracing::warn!(?owned, %log, view, "a streamlet was opened without blocks that nobody gives, as a person has said");
        }
        let rebuild = Arc::new(rebuild);
        let (bytes, streamlets) = (rebuild.bytes, owned.len());
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(streamlets, bytes, took_ms, "streamlets of a lost broker were taken over");
        let mut work = self.work.lock();
        work.taken.extend(owned.iter().copied());
        for one in owned {
            work.retries.remove(one);
            work.waits_since.remove(one);
        }
        work.next_taken += 1;
        let number = work.next_taken;
        let logs = rebuild.needs.clone();
        work.needs.insert(number, Needs { streamlets: owned.to_vec(), logs, rebuild: rebuild.clone() });
        work.rebuilds.push_back(Arc::new(Taken::new(number, rebuild)));
        drop(work);
        self.changed.notify_all();
        Ok(())
    }

    fn say_not_yet(&self, reason: &str) {
        if self.work.lock().said.is_news(reason) {
            tracing::warn!(reason, "streamlets of a lost broker are not taken over yet");
        }
    }

    /// What streamlets took along when they moved last, as the coordinators keep it.
    fn handed(&self, owned: &[Owned]) -> HandedStates {
        let kept = |(stream, streamlet, _): &Owned| {
            let kept = self.group.read(|state| state.handed(*stream, streamlet.0))?;
            let read = <StreamletState as kera_protocol::Body>::decode(1, &kept);
            let read = read.inspect_err(
                |error| tracing::error!(%stream, %streamlet, %error, "what was handed over cannot be read"),
            );
            Some(((*stream, *streamlet), read.ok()?))
        };
        owned.iter().filter_map(kept).collect()
    }

    /// The second thread.
    fn rebuild(&self) {
        let mut said = Said::default();
        loop {
            let Some((taken, heard)) = self.next_rebuild() else { return };
            let (before, logs) = (self.backups.own_stats(), self.group.read(|state| ended_logs(state, self.node)));
            let rebuild = || self.broker.rebuild(&taken.rebuild, &logs, &self.backups, &taken.progress);
            let mut done = rebuild();
            let is_unreadable = done.as_ref().is_err_and(|failure| failure.status == Status::SegmentUnreadable);
            if is_unreadable && self.go_on_without(&taken, &logs) {
                done = rebuild();
            }
            if let Err(failure) = done {
                let failure = failure.to_string();
                if said.is_news(&failure) {
                    tracing::warn!(error = failure, "what a lost broker had is not rebuilt yet");
                }
                self.work.lock().rebuild_failed(heard, Instant::now(), failure);
                continue;
            }
            self.report(taken.number);
            let mut work = self.work.lock();
            (work.rebuilding, work.not_rebuilt) = (None, None);
            work.needs.remove(&taken.number);
            drop(work);
            self.look();
            let took_ms = taken.began.elapsed().as_millis() as u64;
            let (bytes, read_bytes) = (taken.rebuild.bytes, taken.progress.bytes_read.load(Ordering::Relaxed));
            tracing::info!(bytes, read_bytes, took_ms, "what a lost broker had is rebuilt");
            tell_reads(&before, &self.backups.own_stats());
        }
    }

    /// Waits for the next rebuild, and says what has been heard by then. Nothing: it is to stop.
    fn next_rebuild(&self) -> Option<(Arc<Taken>, u64)> {
        let mut work = self.work.lock();
        while !work.stopping {
            match work.next_rebuild(Instant::now()) {
                Ok(taken) => return Some((taken, work.heard)),
                Err(Some(at)) => _ = self.changed.wait_until(&mut work, at),
                Err(None) => self.changed.wait(&mut work),
            }
        }
        None
    }

    /// Tells the coordinators of what was taken over together, until they have heard it.
    fn report(&self, number: u64) {
        let Some(streamlets) = self.work.lock().needs.get(&number).map(|of| owned_ranges(&of.streamlets)) else {
            return;
        };
        let rebuilt = StreamletsRebuilt { node: self.node, epoch: self.epoch, streamlets };
        while !self.is_stopping() {
            match self.ask_coordinators(rebuilt.clone()) {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, "the coordinators do not know yet that a rebuild is done");
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    /// What is taken over here, or is to be, and is not known to be rebuilt, as the coordinators have heard it.
    fn to_rebuild(&self) -> Vec<Owned> {
        self.group.read(|state| state.to_rebuild(self.node, self.epoch))
    }

    /// Streamlets that are to be taken over and are not yet.
    pub(super) fn left_to_open(&self) -> u64 {
        let to_rebuild = self.to_rebuild();
        let left = self.work.lock().not_open(to_rebuild);
        if left.is_empty() {
            return 0;
        }
        // What was rebuilt between the two looks may be forgotten by the second one, and is not left.
        let is_still: HashSet<Owned> = self.to_rebuild().into_iter().collect();
        left.iter().filter(|one| is_still.contains(one)).count() as u64
    }

    /// What waits here for lost nodes, a sentence each.
    pub(super) fn waits(&self) -> Vec<String> {
        let (left, advice) = (self.left_to_open(), self.group.read(waiting::to_start));
        let wanted: HashSet<Owned> = self.to_rebuild().into_iter().collect();
        let now = Instant::now();
        let work = self.work.lock();
        let (not_taken, not_rebuilt) = (work.not_taken.clone().filter(|_| left > 0), work.not_rebuilt.clone());
        // What has failed for it says so by itself.
        let held_up = work.rebuilding.as_ref().filter(|_| not_rebuilt.is_none()).and_then(|taken| taken.held_up());
        let unopened = work.waits_since.iter().filter(|(one, _)| wanted.contains(one));
        let unopened: Vec<_> = unopened.map(|((stream, at, _), since)| ((*stream, at.0), *since)).collect();
        let stuck = work.not_rebuilt_yet();
        // What is awaited lanes say, which have locks of their own.
        drop(work);
        let unread: Vec<_> = stuck.iter().flat_map(|(taken, since)| self.awaited(taken, *since)).collect();
        let told = |waiting: Vec<_>| self.group.read(|state| waiting::who_waits(state, waiting, now));
        let ((unopened, next), (unread, then)) = (told(unopened), told(unread));
        let taken = not_taken
            .map(|why| format!("{left} streamlets of lost nodes wait to be opened{unopened}: {why}{advice}{next}"));
        let rebuilt =
            not_rebuilt.map(|why| format!("what lost nodes had cannot be rebuilt{unread}: {why}{advice}{then}"));
        taken.into_iter().chain(rebuilt).chain(held_up).collect()
    }

    /// Streamlets of a rebuild of which something is awaited, with since when it fails.
    fn awaited(&self, taken: &Taken, since: Instant) -> Vec<((StreamId, u32), Instant)> {
        let log = self.broker.log();
        let is_awaiting = |name: &&StreamletRef| {
            log.stream(name.stream).is_some_and(|of| of.streamlet(name.streamlet).is_some_and(|at| at.is_awaiting()))
        };
        let awaiting = taken.rebuild.streamlets.iter().filter(is_awaiting);
        awaiting.map(|name| ((name.stream, name.streamlet.0), since)).collect()
    }

    /// What is left of rebuilds here: see [`Work::left_bytes`].
    pub(super) fn left_bytes(&self) -> u64 {
        let is_over = self.to_rebuild().is_empty();
        self.work.lock().left_bytes(self.broker.log().rebuilt_bytes(), is_over)
    }

    /// Whether a rebuild gets further, so that what is in no hurry waits for it.
    pub(super) fn comes_on(&self) -> bool {
        self.work.lock().comes_on()
    }
}

/// Says in the log what this node's own backup has read since `before`, for a rebuild and for whoever else asked it, and how long that took.
fn tell_reads(before: &BackupStats, now: &BackupStats) {
    let since = |count: fn(&BackupStats) -> u64| count(now).saturating_sub(count(before));
    tracing::debug!(
        read_bytes = since(|stats| stats.read_bytes),
        direct_read_bytes = since(|stats| stats.direct_read_bytes),
        passed_blocks = since(|stats| stats.passed_blocks),
        read_ms = since(|stats| stats.read_us) / 1000,
        finding_ms = since(|stats| stats.finding_us) / 1000,
        direct_read_ms = since(|stats| stats.direct_read_us) / 1000,
        "what this node's own backup has read meanwhile"
    );
}

/// Those of streamlets that were taken over in an earlier owner epoch of which a node has nothing that was written since.
fn unwritten(broker: &Broker, taken_over: Vec<(Owned, u32)>) -> HashSet<Owned> {
    let is_unwritten = |((stream, streamlet, _), since): &(Owned, u32)| !broker.has_since(*stream, *streamlet, *since);
    taken_over.into_iter().filter(is_unwritten).map(|(one, _)| one).collect()
}

/// All logs of incarnations that are over whose ends are decided. Who takes something over asks first whether it [waits](ClusterState::waits_for_ends)
/// for others. Backups are in the order in which `node` asks them: what it has itself does not cross the network.
fn ended_logs(state: &ClusterState, node: u32) -> Vec<EndedLog> {
    let ended = state.lost_logs().filter_map(|(name, log)| {
        let views = log.views.iter().map(|view| {
            let mut backups = view.backups.clone();
            backups.sort_by_key(|backup| *backup != node);
            EndedView { first: view.first, backups }
        });
        Some(EndedLog { log: name.into(), views: views.collect(), end: log.end?, at_all: log.ends_at_all() })
    });
    ended.collect()
}

/// Leaves out streamlets of which something that was appended here is not acknowledged yet: what this node was answered for before it gathers what another one has lost
/// must not be cut. The others do not wait for them, since nothing of one streamlet is cut, or decided, with another one; and what one waits for may be long in
/// coming, as a disk with room.
fn retain_settled(log: &Log, owned: &mut Vec<Owned>) {
    owned.retain(|(stream, streamlet, _)| {
        let found = log.stream(*stream);
        found.is_none_or(|found| found.streamlet(*streamlet).is_none_or(|place| place.is_settled()))
    });
}

/// What a node says of its rebuilds. As much as there is room for: what is left out may need any log.
pub(super) fn needs_of<'a>(node: u32, epoch: u32, taken: impl Iterator<Item = &'a Needs>) -> RebuildNeeds {
    let (mut streamlets, mut logs) = (Vec::new(), BTreeSet::new());
    for needs in taken {
        let more: BTreeSet<LogId> = logs.union(&needs.logs).copied().collect();
        let ranges = owned_ranges(&needs.streamlets);
        if more.len() <= REBUILD_LOGS_MAX && streamlets.len() + ranges.len() <= REBUILD_RUNS_MAX {
            logs = more;
            streamlets.extend(ranges);
        }
    }
    RebuildNeeds { node, epoch, streamlets, logs: logs.into_iter().collect() }
}

/// Neighbours of one owner epoch together.
fn owned_ranges(owned: &[Owned]) -> Vec<RebuildRange> {
    let mut sorted = owned.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<RebuildRange> = Vec::new();
    for (stream, StreamletId(first), owner_epoch) in sorted {
        match ranges.last_mut() {
            Some(last) if (last.stream, last.first + last.count, last.owner_epoch) == (stream, first, owner_epoch) => {
                last.count += 1;
            }
            _ => ranges.push(RebuildRange { stream, first, count: 1, owner_epoch }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use kera_broker::BrokerConfig;
    use kera_env::ManualClock;

    use super::super::testing::with_unacknowledged;
    use super::*;

    /// A rebuild of so many bytes that waits for its turn.
    fn taken(work: &mut Work, bytes: u64) -> Arc<Taken> {
        let mut rebuild = Rebuild::default();
        rebuild.bytes = bytes;
        work.next_taken += 1;
        work.rebuilds.push_back(Arc::new(Taken::new(work.next_taken, Arc::new(rebuild))));
        work.rebuilds[work.rebuilds.len() - 1].clone()
    }

    /// Has the one that is next begin, whenever that is.
    fn begins(work: &mut Work) -> Arc<Taken> {
        work.next_rebuild(Instant::now() + Duration::from_secs(1 << 20)).expect("it waits")
    }

    fn reads(taken: &Taken, bytes: u64) {
        taken.progress.bytes_read.fetch_add(2 * bytes, Ordering::Relaxed);
        taken.progress.bytes_readable.fetch_add(bytes, Ordering::Relaxed);
    }

    fn fails(work: &mut Work) {
        work.rebuild_failed(work.heard, Instant::now(), "a backup is missing".into());
    }

    /// Another node is lost and comes back for as long as this one lives.
    #[test]
    fn what_is_rebuilt_is_forgotten_and_what_is_open_is_not_opened_again() {
        let mut work = Work::default();
        for epoch in 1..=1_000 {
            let to_rebuild: Vec<Owned> = (0..4).map(|at| (StreamId(1), StreamletId(at), epoch)).collect();
            work.forget_rebuilt(&to_rebuild);
            assert_eq!(work.not_open(to_rebuild.clone()), to_rebuild);
            work.taken.extend(&to_rebuild);
            // The coordinators have heard of the first two.
            work.forget_rebuilt(&to_rebuild[2..]);
            assert!(work.not_open(to_rebuild[2..].to_vec()).is_empty());
            assert_eq!(work.taken.len(), 2);
        }
        work.forget_rebuilt(&[]);
        assert!(work.taken.is_empty());
    }

    #[test]
    fn a_rebuild_that_gets_no_further_holds_up_no_copies() {
        let mut work = Work::default();
        assert!(!work.comes_on());
        let stuck = taken(&mut work, 1000);
        assert!(work.comes_on(), "it is about to begin");
        begins(&mut work);
        reads(&stuck, 900);
        assert!(work.comes_on());
        fails(&mut work);
        assert!(!work.comes_on(), "the rest is nowhere");
        begins(&mut work);
        stuck.progress.bytes_read.fetch_add(5000, Ordering::Relaxed);
        assert!(!work.comes_on(), "what was read was there already");
        fails(&mut work);
        assert!(!work.comes_on());
        // Its backup is back.
        begins(&mut work);
        reads(&stuck, 50);
        assert!(work.comes_on());
        reads(&stuck, 50);
        assert!(!work.comes_on(), "nothing is left of it");
    }

    #[test]
    fn a_rebuild_that_waits_for_memory_says_so() {
        let mut work = Work::default();
        let waits = taken(&mut work, 1000);
        assert_eq!(waits.held_up(), None);
        waits.progress.without_memory.fetch_add(2, Ordering::Relaxed);
        reads(&waits, 100);
        let why = waits.held_up().expect("it waits");
        assert!(why.contains("900 bytes are left"), "{why}");
    }

    #[test]
    fn copies_wait_for_a_rebuild_that_gets_further_beside_one_that_does_not() {
        let mut work = Work::default();
        taken(&mut work, 1000);
        let other = taken(&mut work, 1000);
        begins(&mut work);
        fails(&mut work);
        assert!(work.comes_on(), "the other one is about to begin");
        begins(&mut work);
        reads(&other, 10);
        assert!(work.comes_on());
        reads(&other, 990);
        work.rebuilding = None;
        assert!(!work.comes_on());
        // One more waits until this one has looked through all there is once more.
        begins(&mut work);
        taken(&mut work, 1000);
        assert!(!work.comes_on());
    }

    #[test]
    fn something_is_left_of_a_rebuild_until_it_has_its_copies() {
        let mut work = Work::default();
        assert_eq!(work.left_bytes(0, true), 0);
        assert_eq!(work.left_bytes(0, false), 1, "it is not opened, and nobody knows how much it is");
        let taken = taken(&mut work, 1000);
        begins(&mut work);
        assert_eq!(work.left_bytes(0, false), 1000);
        reads(&taken, 900);
        assert_eq!(work.left_bytes(900, false), 1000);
        reads(&taken, 100);
        assert_eq!(work.left_bytes(700, false), 700, "all of it can be read, and has no copies");
        assert_eq!(work.left_bytes(0, false), 1, "the coordinators have not heard that it is over");
        assert!(!work.comes_on(), "other copies do not wait for that");
        work.rebuilding = None;
        assert_eq!(work.left_bytes(700, true), 0, "these are of what is not rebuilt for a lost node any more");
    }

    #[test]
    fn a_streamlet_whose_log_cannot_acknowledge_holds_up_no_other_one() {
        let (log, _dir) = with_unacknowledged();
        let of = |stream, streamlet| (StreamId(stream), StreamletId(streamlet), 5);
        let mut owned = vec![of(1, 0), of(1, 1), of(1, 2), of(2, 1)];
        retain_settled(&log, &mut owned);
        assert_eq!(owned, [of(1, 0), of(1, 2), of(2, 1)]);
    }

    #[test]
    fn what_was_written_since_it_was_taken_over_is_not_unwritten() {
        let (log, _dir) = with_unacknowledged();
        let broker = Broker::new(BrokerConfig::default(), log, Arc::new(ManualClock::new(0)));
        let of = |streamlet, epoch| (StreamId(1), StreamletId(streamlet), epoch);
        // What is there of the second one is of the very first epoch.
        let taken_over = vec![(of(0, 5), 0), (of(1, 6), 0), (of(1, 7), 1)];
        assert_eq!(unwritten(&broker, taken_over), HashSet::from([of(0, 5), of(1, 7)]));
    }

    /// How often rebuilds begin in so many seconds, all of which fail at once.
    fn tries(work: &mut Work, now: &mut Instant, seconds: u64) -> u32 {
        let (mut tries, end) = (0, *now + Duration::from_secs(seconds));
        while *now < end {
            match work.next_rebuild(*now) {
                Ok(_) => {
                    work.rebuild_failed(work.heard, *now, "a backup is missing".into());
                    tries += 1;
                }
                Err(at) => *now = at.expect("it waits").min(end),
            }
        }
        tries
    }

    #[test]
    fn a_rebuild_that_waits_for_a_person_does_not_read_everything_all_the_time() {
        let (mut work, mut now) = (Work::default(), Instant::now());
        taken(&mut work, 1000);
        assert_eq!(tries(&mut work, &mut now, 1), 4, "what is soon there is soon found");
        assert!(tries(&mut work, &mut now, 3600) < 370);
        // A backup is back, but not with that.
        work.heard += 1;
        assert_eq!(tries(&mut work, &mut now, 1), 4);
        // It gets further each time.
        for _ in 0..5 {
            begins(&mut work);
            reads(work.rebuilding.as_ref().expect("it is under way"), 10);
            work.rebuild_failed(work.heard, now, "the arena is full".into());
            let at = work.next_rebuild(now).err().flatten().expect("it waits");
            assert_eq!(at - now, RETRY);
        }
    }

    #[test]
    fn a_rebuild_that_waits_for_a_person_holds_up_no_other_one() {
        let (mut work, mut now) = (Work::default(), Instant::now());
        taken(&mut work, 1000);
        tries(&mut work, &mut now, 3600);
        let other = taken(&mut work, 1000);
        assert_eq!(work.next_rebuild(now).expect("it has not failed").number, other.number);
    }

    #[test]
    fn backups_are_not_asked_all_the_time_what_lanes_had_that_wait_for_a_person() {
        let stuck: Owned = (StreamId(1), StreamletId(0), 5);
        let other: Owned = (StreamId(1), StreamletId(1), 5);
        let (mut work, mut now, mut asked) = (Work::default(), Instant::now(), 0);
        let look = |work: &Work, now| {
            let mut owned = vec![stuck, other];
            let waits = work.retain_due(&mut owned, now);
            assert!(owned.contains(&other) && waits != owned.contains(&stuck));
            owned.contains(&stuck)
        };
        for _ in 0..36_000 {
            if look(&work, now) {
                work.retries.entry(stuck).or_default().failed(work.heard, now);
                asked += 1;
            }
            now += RETRY;
        }
        assert!(asked < 370, "{asked} times in an hour");
        now += RETRY;
        work.heard += 1;
        assert!(look(&work, now), "its backup may be back");
    }
}
