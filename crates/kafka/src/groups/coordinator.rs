//! All groups of a node: finds the group that a request is about, gives it its turn, keeps its time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::ApiKey;
use kera_coordinator::catalog::SYSTEM_PREFIX;
use kera_env::Random;
use kera_format::kafka_groups::{Entry, Fact, GROUP_NAME_BYTES_MAX, GroupKind, GroupState};

use super::api::{Answer, Done, GroupConfig, Journal, Now, Topics};
use super::classic::{join_error, sync_error};
use super::group::{Group, Kind, Turn};
use super::keeping::KeptMembers;
use super::offsets::Offsets;
use crate::limits_told::tell;

/// Groups that are looked through for expired offsets in one tick.
const SWEEP_GROUPS: usize = 256;

/// Whether a journal can tell of a group of this name: a record with a longer one could not be read again, and those of the system's names say
/// something about the journal.
pub(crate) fn may_be_recorded(id: &str) -> bool {
    id.len() <= GROUP_NAME_BYTES_MAX && !id.starts_with(SYSTEM_PREFIX)
}

/// The groups of a node. See the module for how it is driven.
pub struct Coordinator {
    config: GroupConfig,
    journal: Box<dyn Journal + Send>,
    topics: Arc<dyn Topics + Send + Sync>,
    random: Arc<dyn Random>,
    groups: BTreeMap<String, Group>,
    /// Members of whom the journal tells, until everything in it has been taken.
    kept: BTreeMap<String, KeptMembers>,
    /// When something happens to a group by itself.
    wakes: BTreeSet<(u64, String)>,
    done: Vec<Done>,
    /// Bytes that the members of all groups take.
    member_bytes: usize,
    /// Bytes that the offsets of all groups take.
    offset_bytes: usize,
    /// Why nobody is served: everything in the journal has not been taken yet, or the groups are another node's.
    closed: Option<Code>,
    sweep: Sweep,
}

/// The search for expired offsets, and for groups that have neither these nor members.
#[derive(Debug)]
struct Sweep {
    /// When the next one begins.
    next_ms: u64,
    /// The one that runs goes on behind this group.
    behind: Option<String>,
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coordinator { groups, closed, member_bytes, .. } = self;
        f.debug_struct("Coordinator")
            .field("groups", &groups.len())
            .field("closed", closed)
            .field("member_bytes", member_bytes)
            .finish_non_exhaustive()
    }
}

impl Coordinator {
    /// A coordinator that answers `COORDINATOR_LOAD_IN_PROGRESS` until it is [started](Coordinator::start).
    pub fn new(
        config: GroupConfig,
        journal: Box<dyn Journal + Send>,
        topics: Arc<dyn Topics + Send + Sync>,
        random: Arc<dyn Random>,
    ) -> Coordinator {
        Coordinator {
            config,
            journal,
            topics,
            random,
            groups: BTreeMap::new(),
            kept: BTreeMap::new(),
            wakes: BTreeSet::new(),
            done: Vec::new(),
            member_bytes: 0,
            offset_bytes: 0,
            closed: Some(Code::CoordinatorLoadInProgress),
            sweep: Sweep { next_ms: u64::MAX, behind: None },
        }
    }

    /// Takes one record of the journal, in their order.
    pub fn replay(&mut self, entry: Entry) {
        let Entry { group: id, fact } = entry;
        match fact {
            Fact::Group(None) => {
                self.offset_bytes -= self.groups.remove(&id).map_or(0, |group| group.offsets.bytes());
                self.kept.remove(&id);
            }
            Fact::Member(member, state) => self.kept.entry(id).or_default().replay(member, state),
            Fact::Group(Some(state)) => {
                // A group that begins, or changes its protocol, has its members recorded behind this.
                let stored = self.groups.get(&id).and_then(|known| known.head.stored.as_ref());
                if !state.members || stored.is_none_or(|stored| stored.kind != state.kind) {
                    self.kept.remove(&id);
                }
                let mut group = Group::of_state(&id, &state);
                if let Some(known) = self.groups.remove(&id) {
                    group.offsets = known.offsets;
                }
                self.groups.insert(id, group);
            }
            fact => {
                let group = self.groups.entry(id).or_insert_with_key(|id| Group::new(id, Now::default()));
                let before = group.offsets.bytes();
                group.offsets.replay(fact);
                self.offset_bytes = self.offset_bytes + group.offsets.bytes() - before;
            }
        }
    }

    /// Everything in the journal has been taken: requests are served from now on.
    ///
    /// Members that are kept whole are members again, and have a session's time to say so. A group that had others is empty from now on,
    /// not since its last record, so that its offsets do not expire in the moment of a restart.
    pub fn start(&mut self, now: Now) {
        for (id, members) in std::mem::take(&mut self.kept) {
            self.turn(now, &id, |kind, _, turn| members.restore(kind, turn));
        }
        for group in self.groups.values_mut() {
            if group.head.stored.as_ref().is_some_and(|state| state.members) && group.is_empty() {
                group.head.changed_ms = now.wall_ms;
            }
        }
        self.groups.retain(|_, group| !group.is_nothing());
        self.closed = None;
        self.sweep.next_ms = now.mono_ms.saturating_add(self.config.offsets_check_ms);
    }

    /// From now on every request is refused with `code`. Who waits for a generation is not told: that is the caller's to do.
    pub fn close(&mut self, code: Code) {
        self.closed = Some(code);
        self.groups.clear();
        self.kept.clear();
        self.wakes.clear();
        (self.member_bytes, self.offset_bytes) = (0, 0);
    }

    /// The same; but what producers have pending is kept, and nothing else, so that transactions which are decided can still
    /// [end](Coordinator::end_transaction).
    pub fn wind_down(&mut self, code: Code) {
        let groups = std::mem::take(&mut self.groups);
        self.close(code);
        for (id, group) in groups.into_iter().filter(|(_, group)| group.offsets.has_pending()) {
            let Group { offsets, .. } = group;
            self.offset_bytes += offsets.bytes();
            let left = Group { offsets, ..Group::new(&id, Now::default()) };
            self.groups.insert(id, left);
        }
    }

    /// Whether producers have offsets pending.
    pub fn has_pending(&self) -> bool {
        self.groups.values().any(|group| group.offsets.has_pending())
    }

    /// The producers that have offsets pending, each with its group.
    pub fn pending(&self) -> Vec<(String, i64)> {
        let of_each = |(id, group): (&String, &Group)| {
            group.offsets.pending_producers().map(|producer| (id.clone(), producer)).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(of_each).collect()
    }

    /// The answer of a closed coordinator to a request that waits for others: to join, or for an assignment.
    pub fn refused(key: ApiKey, version: i16, code: Code) -> Option<Answer> {
        match key {
            ApiKey::JoinGroup => Some(join_error(version, "", code)),
            ApiKey::SyncGroup => Some(sync_error(code)),
            _ => None,
        }
    }

    /// The answers that are ready since the last call.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    /// When [`tick`](Coordinator::tick) has something to do; None: when nobody asks, never.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let wake = self.wakes.first().map_or(u64::MAX, |(at_ms, _)| *at_ms);
        let next = wake.min(if self.sweep.behind.is_some() { 0 } else { self.sweep.next_ms });
        (next != u64::MAX).then_some(next)
    }

    /// Ends what is due. Looks at each group once: if something is due again at once, the next deadline says so.
    pub fn tick(&mut self, now: Now) {
        if self.closed.is_some() {
            return;
        }
        let later = self.wakes.split_off(&(now.mono_ms.saturating_add(1), String::new()));
        let due = std::mem::replace(&mut self.wakes, later);
        for (_, id) in due {
            if let Some(group) = self.groups.get_mut(&id) {
                group.head.wake_ms = u64::MAX;
            }
            self.turn(now, &id, |kind, _, turn| match kind {
                Kind::Classic(classic) => classic.tick(turn),
                Kind::Consumer(consumer) => consumer.tick(turn),
            });
        }
        self.sweep(now);
    }

    /// The topics that groups have offsets of and that are not among these.
    pub fn topics_beyond(&self, known: &BTreeSet<String>) -> BTreeSet<String> {
        let (mut beyond, mut last) = (BTreeSet::new(), None);
        for topic in self.groups.values().flat_map(|group| group.offsets.topics()) {
            // Partitions of one follow each other.
            if last.replace(topic) != Some(topic) && !known.contains(topic) {
                beyond.insert(topic.clone());
            }
        }
        beyond
    }

    /// The topics of these names are gone: what was committed for them is forgotten. Who says so knows their names alone, and may be late: what is of a topic that was made
    /// again under the name of one stays.
    pub fn topics_deleted(&mut self, now: Now, names: &BTreeSet<String>) {
        // Once for all groups: there may be many of both, and whoever asks for a group waits meanwhile.
        let topics = Arc::clone(&self.topics);
        let again = |name: &str| topics.topic(name).map(|topic| topic.id.as_u128());
        let names: BTreeMap<&str, Option<u128>> = names.iter().map(|name| (&**name, again(name))).collect();
        let ids: Vec<String> = self.groups.keys().cloned().collect();
        for id in ids {
            // If it cannot be recorded, the topic's id tells another topic of the same name apart.
            self.turn(now, &id, |_, offsets, turn| offsets.delete_topics(turn, &names).is_ok());
        }
    }

    /// Everything there is, to be written again so that what stands before can go: groups behind `behind`, until about
    /// `bytes_max` bytes are reached. The second is what to go on behind; None when that was all.
    ///
    /// Each group is taken whole, and what is recorded of it later stands behind the copy: so the copy and what follows
    /// say the same as the whole journal.
    pub fn snapshot(&self, behind: Option<&str>, bytes_max: usize) -> (Vec<Entry>, Option<String>) {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (id, group) in self.groups.range::<str, _>((from, Bound::Unbounded)) {
            if bytes >= bytes_max && !entries.is_empty() {
                let last = entries.last().map(|entry: &Entry| entry.group.clone());
                return (entries, last);
            }
            // Of a group whose own record failed the members are not kept either: whoever reads them would take them for members
            // of the next group of the name.
            let is_stored = group.head.stored.is_some();
            let state = is_stored.then(|| Fact::Group(Some(group.state())));
            let keeps_members = is_stored && self.journal.keeps_members();
            let members = if keeps_members { group.kind.kept() } else { Vec::new() };
            let members = members.into_iter().map(|(id, member)| Fact::Member(id, Some(Box::new(member))));
            for fact in state.into_iter().chain(members).chain(group.offsets.facts()) {
                let entry = Entry { group: id.clone(), fact };
                bytes += entry.bytes();
                entries.push(entry);
            }
        }
        (entries, None)
    }

    /// How many groups there are.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Bytes that their offsets take.
    #[cfg(test)]
    pub(super) fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    pub(super) fn config(&self) -> &GroupConfig {
        &self.config
    }

    pub(super) fn topics(&self) -> &dyn Topics {
        &*self.topics
    }

    pub(super) fn journal(&mut self) -> &mut dyn Journal {
        &mut *self.journal
    }

    pub(super) fn finish(&mut self, done: Done) {
        self.done.push(done);
    }

    /// Why nobody is served, if nobody is.
    ///
    /// # Errors
    /// What is answered.
    pub fn check_loaded(&self) -> Result<(), Code> {
        self.closed.map_or(Ok(()), Err)
    }

    pub(super) fn find(&self, id: &str) -> Result<&Group, Code> {
        self.check_loaded()?;
        self.groups.get(id).ok_or(Code::GroupIdNotFound)
    }

    /// The group is there afterwards, or may not be.
    pub(super) fn create(&mut self, now: Now, id: &str) -> Result<(), Code> {
        self.check_loaded()?;
        if self.groups.contains_key(id) {
            return Ok(());
        }
        if !may_be_recorded(id) {
            return Err(Code::InvalidGroupId);
        }
        if self.groups.len() >= self.config.groups_max {
            tell("consumer groups", id, self.config.groups_max);
            return Err(Code::PolicyViolation);
        }
        self.groups.insert(id.to_owned(), Group::new(id, now));
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &str) {
        if let Some(group) = self.groups.remove(id) {
            self.member_bytes -= group.head.member_bytes;
            self.offset_bytes -= group.offsets.bytes();
            self.wakes.remove(&(group.head.wake_ms, id.to_owned()));
        }
    }

    /// Something happens to a group. A group that is nothing afterwards is forgotten.
    pub(super) fn turn<R>(
        &mut self,
        now: Now,
        id: &str,
        act: impl FnOnce(&mut Kind, &mut Offsets, &mut Turn<'_>) -> R,
    ) -> Option<R> {
        let group = self.groups.get_mut(id)?;
        let Group { head, kind, offsets } = group;
        let (wake_before_ms, bytes_before) = (head.wake_ms, [head.member_bytes, offsets.bytes()]);
        let mut turn = Turn {
            now,
            config: &self.config,
            topics: &*self.topics,
            random: &*self.random,
            journal: &mut *self.journal,
            done: &mut self.done,
            head,
            bytes_left: self.config.members_bytes_max.saturating_sub(self.member_bytes),
            offset_bytes_left: self.config.offset_bytes_max.saturating_sub(self.offset_bytes),
        };
        let result = act(kind, offsets, &mut turn);
        // The last member that let the coordinator assign has gone, and others are left: they agree among themselves again.
        if let Kind::Consumer(consumer) = kind
            && consumer.is_classic()
            && let Some(classic) = consumer.to_classic(&mut turn)
        {
            *kind = Kind::Classic(classic);
        }
        let made_bytes = kind.made_bytes();
        head.member_bytes = head.member_bytes + made_bytes - std::mem::replace(&mut head.made_bytes, made_bytes);
        let wake_ms = group.head.wake_ms;
        self.member_bytes = self.member_bytes + group.head.member_bytes - bytes_before[0];
        self.offset_bytes = self.offset_bytes + group.offsets.bytes() - bytes_before[1];
        if wake_ms != wake_before_ms {
            self.wakes.remove(&(wake_before_ms, id.to_owned()));
            if wake_ms != u64::MAX {
                self.wakes.insert((wake_ms, id.to_owned()));
            }
        }
        if group.is_nothing() {
            self.remove(id);
        }
        Some(result)
    }

    /// Looks for offsets whose time is up, some groups at a time.
    fn sweep(&mut self, now: Now) {
        if self.sweep.behind.is_none() && now.mono_ms < self.sweep.next_ms {
            return;
        }
        let from = self.sweep.behind.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let ids = self.groups.range::<str, _>((from, Bound::Unbounded)).map(|(id, _)| id.clone());
        let ids: Vec<String> = ids.take(SWEEP_GROUPS).collect();
        for id in &ids {
            self.expire(now, id);
        }
        if ids.len() < SWEEP_GROUPS {
            self.sweep = Sweep { next_ms: now.mono_ms.saturating_add(self.config.offsets_check_ms), behind: None };
        } else {
            self.sweep.behind = ids.last().cloned();
        }
    }

    /// Forgets expired offsets of a group, and the group itself if it has no others and no members.
    fn expire(&mut self, now: Now, id: &str) {
        let left = self.turn(now, id, |kind, offsets, turn| {
            let changed_ms = turn.head.changed_ms;
            let result = match kind {
                Kind::Classic(classic) if classic.protocol_type().is_none() => offsets.expire(turn, None, |_| false),
                Kind::Classic(classic) if classic.is_empty() => offsets.expire(turn, Some(changed_ms), |_| false),
                Kind::Classic(classic) if classic.knows_topics() => {
                    offsets.expire(turn, None, |topic| classic.is_subscribed(topic))
                }
                Kind::Classic(_) => Ok(()),
                Kind::Consumer(consumer) if consumer.is_empty() => offsets.expire(turn, Some(changed_ms), |_| false),
                Kind::Consumer(consumer) => offsets.expire(turn, None, |topic| consumer.is_subscribed(topic)),
            };
            // After a failure of the journal the next sweep tries again.
            result.is_ok() && offsets.is_empty()
        });
        // What a group is kept for are its offsets: they have their time, from when it became empty. One that has none, also none that is pending,
        // goes at once, as in Kafka. Else every name that somebody joined under once would count against the most groups for days, and
        // programs that take a new name each time would use that up. Who comes to it later begins it anew.
        let is_over = |group: &Group| group.is_empty() && !group.waits();
        if left == Some(true) && self.groups.get(id).is_some_and(is_over) {
            let gone = Entry { group: id.to_owned(), fact: Fact::Group(None) };
            if self.journal.append(&[gone]).is_ok() {
                self.remove(id);
            }
            return;
        }
        self.store_emptiness(now, id);
    }

    /// The journal hears that a group has no members since a restart, so that the next one does not begin its time anew.
    fn store_emptiness(&mut self, now: Now, id: &str) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let state: GroupState = group.state();
        let stale = group.head.stored.as_ref().is_some_and(|stored| stored.members && !state.members);
        if stale && state.kind != GroupKind::OffsetsOnly {
            let entry = Entry { group: id.to_owned(), fact: Fact::Group(Some(state.clone())) };
            self.turn(now, id, |_, _, turn| {
                if let Ok(mark) = turn.journal.append(&[entry]) {
                    turn.head.mark = Some(mark);
                    turn.head.stored = Some(state);
                }
            });
        }
    }
}
