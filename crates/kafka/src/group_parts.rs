//! Which groups are this node's to coordinate.
//!
//! A node that is alone has all groups, in its own `_kera.groups`. In a cluster a group belongs to a streamlet of
//! `_kera.cluster.groups`, chosen by the hash of its name, and is coordinated by that streamlet's owner
//! (`docs/decisions/0017-applications-in-a-cluster.md`). Whoever becomes the owner reads the streamlet before it serves; whoever has been it
//! cannot append any more, so it acknowledges nothing. Nobody else serves.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use kafka_protocol::ResponseError as Code;
use kera_broker::Broker;
use kera_env::{Clock, Random};
use kera_format::kafka_groups::Entry;
use kera_format::level;
use parking_lot::Mutex;

use crate::door::{After, Catalog, OtherNodes};
use crate::groups::{AppendFailed, Coordinator, GroupConfig, Journal, Mark, Now, Topics};
use crate::state_log::{Bounded, Edge, StateLog};
use crate::state_parts::{Coming, StateParts};

/// Where the groups of a cluster and their offsets are kept.
pub(crate) const STREAM: &str = "_kera.cluster.groups";
/// What one streamlet's groups may take of what a node that is alone allows for all.
const SHARE: usize = 4;

/// Groups that are coordinated together.
pub(crate) struct Part {
    pub(crate) coordinator: Mutex<Coordinator>,
    /// `None`: nothing is kept, for all is refused.
    pub(crate) log: Option<Arc<StateLog<Entry>>>,
    /// Taken under the coordinator's lock.
    pub(crate) claims: Mutex<GroupClaims>,
}

/// The producers that commit offsets of groups in transactions which their coordinators know, in a cluster.
#[derive(Default)]
pub(crate) struct GroupClaims {
    /// By group and producer: its epoch, and the transaction's number.
    granted: HashMap<(String, i64), (i16, i64)>,
    /// What coordinators are asked now, each with a number that no other has. The end of a transaction ends them.
    asked: Vec<(String, i64, u64)>,
    asked_last: u64,
}

impl GroupClaims {
    /// Whether a producer may commit offsets of a group now.
    pub(crate) fn has(&self, group: &str, (producer_id, epoch): (i64, i16)) -> bool {
        self.granted.get(&(group.to_owned(), producer_id)).is_some_and(|granted| granted.0 == epoch)
    }

    /// A producer's coordinator is asked now: the number to come back with.
    pub(crate) fn ask(&mut self, group: &str, producer_id: i64) -> u64 {
        self.asked_last += 1;
        self.asked.push((group.to_owned(), producer_id, self.asked_last));
        self.asked_last
    }

    /// It has answered: with which epoch and in which transaction the producer may commit, if it may. Without effect if one of the
    /// producer's has ended in between.
    pub(crate) fn answered(&mut self, group: &str, producer_id: i64, number: u64, granted: Option<(i16, i64)>) {
        let is_it = |asked: &(String, i64, u64)| (&*asked.0, asked.1, asked.2) == (group, producer_id, number);
        let Some(at) = self.asked.iter().position(is_it) else { return };
        self.asked.swap_remove(at);
        if let Some(granted) = granted {
            self.granted.insert((group.to_owned(), producer_id), granted);
        }
    }

    /// A producer's transaction has ended. False if what is told of is an earlier one than the one that runs.
    pub(crate) fn end(&mut self, group: &str, producer_id: i64, transaction: i64) -> bool {
        let key = (group.to_owned(), producer_id);
        if self.granted.get(&key).is_some_and(|granted| granted.1 != transaction) {
            return false;
        }
        self.granted.remove(&key);
        self.asked.retain(|asked| (&*asked.0, asked.1) != (group, producer_id));
        true
    }
}

impl Part {
    fn new(coordinator: Coordinator, log: Option<Arc<StateLog<Entry>>>) -> Arc<Part> {
        Arc::new(Part { coordinator: Mutex::new(coordinator), log, claims: Mutex::default() })
    }

    /// What an answer that rests on `mark` waits for.
    pub(crate) fn after(&self, mark: Option<Mark>) -> Option<After> {
        let (mark, sink) = (mark?, self.log.as_ref()?.sink()?);
        Some(After { sink: Arc::clone(sink), ticket: mark.0 })
    }
}

/// A coordinator's handle on its log.
struct Handle {
    log: Option<Arc<StateLog<Entry>>>,
    catalog: Arc<Catalog>,
}

impl Journal for Handle {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        self.log.as_ref().ok_or(AppendFailed)?.append(entries)
    }

    fn keeps_members(&self) -> bool {
        self.catalog.coordinator.all_understand(level::MEMBERS_KEPT)
    }

    fn keeps_both_kinds(&self) -> bool {
        self.catalog.coordinator.all_understand(level::CHANGING_GROUPS)
    }
}

/// What coordinators are made of.
#[derive(Clone)]
pub(crate) struct Making {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) topics: Arc<dyn Topics + Send + Sync>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Making {
    pub(crate) fn coordinator(&self, config: GroupConfig, log: Option<Arc<StateLog<Entry>>>) -> Coordinator {
        let journal = Box::new(Handle { log, catalog: Arc::clone(&self.catalog) });
        Coordinator::new(config, journal, Arc::clone(&self.topics), Arc::clone(&self.random))
    }

    fn refusing(&self, code: Code) -> Arc<Part> {
        let mut coordinator = self.coordinator(GroupConfig::default(), None);
        coordinator.close(code);
        Part::new(coordinator, None)
    }

    pub(crate) fn now(&self) -> Now {
        Now::of(&*self.clock)
    }

    /// Fills a part with what was recorded in its log since it was read.
    pub(crate) fn fill(&self, part: &Part, entries: Vec<Entry>) {
        let mut coordinator = part.coordinator.lock();
        entries.into_iter().for_each(|entry| coordinator.replay(entry));
        coordinator.start(self.now());
    }

    /// A part with what is in its log, and why not all of it could be read. What stands in front of a whole copy that was written since is not
    /// needed. Whoever goes on with it starts its coordinator. Blocks the thread while segments come from disk.
    pub(crate) fn read(
        &self,
        log: Arc<StateLog<Entry>>,
    ) -> Result<(Arc<Part>, Option<kera_log::ReadError>), kera_log::ReadError> {
        let begin = || self.coordinator(GroupConfig::default(), Some(Arc::clone(&log)));
        // Behind what cannot be read: what a copy has said so far.
        let (mut coordinator, mut unread, mut copied) = (begin(), None, None);
        let (records, passed_over) = log.replay_past_damage(|entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    (unread, copied) = (Some(error), None);
                    return;
                }
            };
            match entry.edge() {
                Some(Edge::Begin) => copied = unread.is_some().then(begin),
                Some(Edge::End) => {
                    if let Some(whole) = copied.take() {
                        (coordinator, unread) = (whole, None);
                    }
                }
                None => {
                    if let Some(copied) = &mut copied {
                        copied.replay(entry.clone());
                    }
                    coordinator.replay(entry);
                }
            }
        })?;
        let groups = coordinator.group_count();
        tracing::info!(groups, records, passed_over, "Kafka groups are open");
        Ok((Part::new(coordinator, Some(log)), unread))
    }

    /// The same of a node that is one of several by now: its part serves nobody, and transactions that were decided end there. Blocks the
    /// thread in the same way.
    pub(crate) fn read_pending(&self, log: Arc<StateLog<Entry>>) -> Result<Arc<Part>, kera_log::ReadError> {
        let mut coordinator = self.coordinator(GroupConfig::default(), Some(Arc::clone(&log)));
        log.replay(|entry| coordinator.replay(entry))?;
        coordinator.wind_down(Code::NotCoordinator);
        Ok(Part::new(coordinator, Some(log)))
    }
}

/// The parts of a node.
pub(crate) struct Parts {
    places: StateParts<Part>,
    pub(crate) making: Making,
}

/// A streamlet whose groups are to be read.
pub(crate) struct Load {
    coming: Coming<Entry>,
    making: Making,
}

impl Deref for Parts {
    type Target = StateParts<Part>;

    fn deref(&self) -> &StateParts<Part> {
        &self.places
    }
}

impl Parts {
    /// None are here yet.
    pub(crate) fn new(making: Making, broker: &Arc<Broker>) -> Parts {
        let (elsewhere, loading) =
            (making.refusing(Code::NotCoordinator), making.refusing(Code::CoordinatorLoadInProgress));
        Parts { places: StateParts::new(elsewhere, loading, broker), making }
    }

    /// Groups by the parts that answer for them.
    pub(crate) fn split<T>(&self, groups: Vec<T>, name: impl Fn(&T) -> &str) -> Vec<(Arc<Part>, Vec<T>)> {
        let mut split: Vec<(Arc<Part>, Vec<T>)> = Vec::new();
        for group in groups {
            let part = self.find(name(&group));
            match split.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &part)) {
                Some((_, groups)) => groups.push(group),
                None => split.push((part, vec![group])),
            }
        }
        split
    }

    /// Looks at who owns the streamlets now: the parts that have left, and what is to be read.
    pub(crate) fn follow(&self) -> (Vec<Arc<Part>>, Vec<Load>) {
        let (left, coming) = self.places.follow(STREAM, &self.making.clock);
        let load = |coming| Load { coming, making: self.making.clone() };
        (left, coming.into_iter().map(load).collect())
    }

    /// The groups of a streamlet are read: they are served, if it is still this node's in the same epoch.
    pub(crate) fn loaded(&self, load: &Load, part: Arc<Part>) {
        self.places.loaded(&load.coming, &part);
    }
}

impl Load {
    /// The number of the streamlet.
    pub(crate) fn number(&self) -> usize {
        self.coming.streamlet.id().0 as usize
    }

    /// What its coordinator is made of.
    pub(crate) fn making(&self) -> &Making {
        &self.making
    }

    /// Reads the groups ([`Coming::read`]). Blocks the thread.
    pub(crate) fn run(
        &self,
        broker: &Broker,
        others: impl Fn() -> Option<Arc<dyn OtherNodes>>,
        go_on: impl Fn() -> bool,
    ) -> Option<Arc<Part>> {
        let all = GroupConfig::default();
        let config = GroupConfig {
            groups_max: all.groups_max / SHARE,
            members_bytes_max: all.members_bytes_max / SHARE,
            offset_bytes_max: all.offset_bytes_max / SHARE,
            ..all
        };
        let Coming { streamlet, epoch, log, .. } = &self.coming;
        let begin = || self.making.coordinator(config.clone(), Some(Arc::clone(log)));
        let fill = (begin, |coordinator: &mut Coordinator, entry| coordinator.replay(entry));
        let (mut coordinator, records, passed_over) = self.coming.read(broker, "Kafka groups", fill, others, go_on)?;
        coordinator.start(self.making.now());
        let (streamlet, groups) = (streamlet.id(), coordinator.group_count());
        tracing::info!(%streamlet, epoch, groups, records, passed_over, "Kafka groups are here");
        Some(Part::new(coordinator, Some(Arc::clone(log))))
    }
}
