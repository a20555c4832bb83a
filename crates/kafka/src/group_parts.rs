//! Which groups are this node's to coordinate.
//!
//! A node that is alone has all groups, in its own `_kera.groups`. In a cluster a group belongs to a streamlet of
//! `_kera.cluster.groups`, chosen by the hash of its name, and is coordinated by that streamlet's owner
//! (`docs/decisions/0017-applications-in-a-cluster.md`). Whoever becomes the owner reads the streamlet before it serves; whoever has been it
//! cannot append any more, so it acknowledges nothing. Nobody else serves.

use std::collections::HashMap;
use std::sync::Arc;

use kafka_protocol::ResponseError as Code;
use kera_broker::Broker;
use kera_env::{Clock, Random};
use kera_format::kafka_groups::Entry;
use kera_format::{StreamId, StreamOptions, StreamletId, murmur2};
use kera_log::{Stream, Streamlet, Tenure};
use parking_lot::{Mutex, RwLock};

use crate::door::{After, OtherNodes};
use crate::groups::{AppendFailed, Coordinator, GroupConfig, Journal, Mark, Now, Topics};
use crate::state_log::{StateLog, state_stream_options};

/// Where the groups of a cluster and their offsets are kept.
pub(crate) const STREAM: &str = "_kera.cluster.groups";
/// Its streamlets: how many nodes can share the work, and how much a node has to read before it serves. Never changes.
const STREAMLETS: u32 = 16;
/// What one streamlet's groups may take of what a node that is alone allows for all.
const SHARE: usize = 4;

/// The options of the stream: logs of its own, so that commits do not wait behind records.
pub(crate) fn stream_options(copies: u32) -> StreamOptions {
    StreamOptions { streamlets: STREAMLETS, replication: copies, virtual_logs: 1, ..state_stream_options() }
}

/// The streamlet of a group, of `count`.
fn streamlet_of(group: &str, count: usize) -> usize {
    (murmur2(group.as_bytes()) & 0x7fff_ffff) as usize % count.max(1)
}

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
struct Handle(Option<Arc<StateLog<Entry>>>);

impl Journal for Handle {
    fn append(&mut self, entries: &[Entry]) -> Result<Mark, AppendFailed> {
        self.0.as_ref().ok_or(AppendFailed)?.append(entries)
    }
}

/// What coordinators are made of.
#[derive(Clone)]
pub(crate) struct Making {
    pub(crate) topics: Arc<dyn Topics + Send + Sync>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Making {
    fn coordinator(&self, config: GroupConfig, log: Option<Arc<StateLog<Entry>>>) -> Coordinator {
        Coordinator::new(config, Box::new(Handle(log)), Arc::clone(&self.topics), Arc::clone(&self.random))
    }

    fn refusing(&self, code: Code) -> Arc<Part> {
        let mut coordinator = self.coordinator(GroupConfig::default(), None);
        coordinator.close(code);
        Part::new(coordinator, None)
    }

    fn now(&self) -> Now {
        Now { mono_ms: self.clock.monotonic_us() / 1000, wall_ms: self.clock.now_ms() }
    }

    /// A part with what is in its log. Blocks the thread while segments come from disk.
    pub(crate) fn read(&self, log: Arc<StateLog<Entry>>) -> Result<Arc<Part>, kera_log::ReadError> {
        let mut coordinator = self.coordinator(GroupConfig::default(), Some(Arc::clone(&log)));
        let (records, passed_over) = log.replay(|entry| coordinator.replay(entry))?;
        coordinator.start(self.now());
        let groups = coordinator.group_count();
        tracing::info!(groups, records, passed_over, "Kafka groups are open");
        Ok(Part::new(coordinator, Some(log)))
    }
}

/// Where the groups of a streamlet are.
enum Place {
    /// At another node, or nowhere.
    Elsewhere,
    /// Here, in this owner epoch, and on their way.
    Loading(u32),
    /// Here.
    Here(u32, Arc<Part>),
}

#[derive(Default)]
struct Table {
    /// The cluster's stream; `None`: the node is alone, or the cluster has none yet.
    stream: Option<Arc<Stream>>,
    places: Vec<Place>,
}

/// The parts of a node.
pub(crate) struct Parts {
    table: RwLock<Table>,
    elsewhere: Arc<Part>,
    loading: Arc<Part>,
    pub(crate) making: Making,
}

/// A streamlet whose groups are to be read.
pub(crate) struct Load {
    place: usize,
    epoch: u32,
    stream: StreamId,
    streamlet: Arc<Streamlet>,
    log: Arc<StateLog<Entry>>,
    making: Making,
}

impl Parts {
    /// None are here yet.
    pub(crate) fn new(making: Making) -> Parts {
        let (elsewhere, loading) =
            (making.refusing(Code::NotCoordinator), making.refusing(Code::CoordinatorLoadInProgress));
        Parts { table: RwLock::default(), elsewhere, loading, making }
    }

    /// All groups are here, of a node that is alone.
    pub(crate) fn set_alone(&self, part: Arc<Part>) {
        self.table.write().places = vec![Place::Here(0, part)];
    }

    /// The groups are the cluster's from here on, if there is its stream; what the node had for itself.
    pub(crate) fn set_shared(&self, stream: Option<Arc<Stream>>) -> Option<Arc<Part>> {
        let count = stream.as_ref().map_or(0, |stream| stream.streamlet_count());
        let places = (0..count).map(|_| Place::Elsewhere).collect();
        let before = std::mem::replace(&mut *self.table.write(), Table { stream, places });
        before.places.into_iter().find_map(|place| if let Place::Here(_, part) = place { Some(part) } else { None })
    }

    /// The cluster's stream, once this node knows of it.
    pub(crate) fn stream(&self) -> Option<Arc<Stream>> {
        self.table.read().stream.clone()
    }

    /// Whether all groups are here.
    pub(crate) fn is_alone(&self) -> bool {
        let table = self.table.read();
        table.stream.is_none() && !table.places.is_empty()
    }

    /// The streamlet that a group's coordinator owns, in a cluster that has the stream.
    pub(crate) fn streamlet_of(&self, group: &str) -> Option<(Arc<Stream>, StreamletId)> {
        let table = self.table.read();
        let streamlet = streamlet_of(group, table.places.len());
        Some((table.stream.clone()?, StreamletId(streamlet as u32)))
    }

    /// The part that answers for a group, if only that it is not here.
    pub(crate) fn find(&self, group: &str) -> Arc<Part> {
        let table = self.table.read();
        match table.places.get(streamlet_of(group, table.places.len())) {
            Some(Place::Here(_, part)) => Arc::clone(part),
            Some(Place::Loading(_)) => Arc::clone(&self.loading),
            Some(Place::Elsewhere) | None => Arc::clone(&self.elsewhere),
        }
    }

    /// The part of a group and the epoch in which it is this node's, if it is here.
    pub(crate) fn find_here(&self, group: &str) -> Option<(u32, Arc<Part>)> {
        let table = self.table.read();
        match table.places.get(streamlet_of(group, table.places.len())) {
            Some(Place::Here(epoch, part)) => Some((*epoch, Arc::clone(part))),
            _ => None,
        }
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

    /// The parts that are here.
    pub(crate) fn here(&self) -> Vec<Arc<Part>> {
        let table = self.table.read();
        let here = table.places.iter().filter_map(|place| match place {
            Place::Here(_, part) => Some(Arc::clone(part)),
            Place::Loading(_) | Place::Elsewhere => None,
        });
        here.collect()
    }

    /// The same, and while some are on their way the one that says so.
    pub(crate) fn listed(&self) -> Vec<Arc<Part>> {
        let mut parts = self.here();
        if self.table.read().places.iter().any(|place| matches!(place, Place::Loading(_))) {
            parts.push(Arc::clone(&self.loading));
        }
        parts
    }

    /// Looks at who owns the streamlets now: the parts that have left, and what is to be read.
    pub(crate) fn follow(&self) -> (Vec<Arc<Part>>, Vec<Load>) {
        let mut table = self.table.write();
        let (mut left, mut loads) = (Vec::new(), Vec::new());
        let Table { stream: Some(stream), places } = &mut *table else { return (left, loads) };
        for (at, place) in places.iter_mut().enumerate() {
            let Some(streamlet) = stream.streamlet(StreamletId(at as u32)) else { continue };
            let epoch = streamlet.owner_epoch();
            let mine = streamlet.tenure() != Tenure::Elsewhere && epoch != 0;
            if matches!(*place, Place::Here(known, _) | Place::Loading(known) if mine && known == epoch) {
                continue;
            }
            if let Place::Here(_, part) = std::mem::replace(place, Place::Elsewhere) {
                left.push(part);
            }
            if let (true, Some(log)) = (mine, StateLog::of(STREAM, stream, StreamletId(at as u32), &self.making.clock))
            {
                *place = Place::Loading(epoch);
                let (streamlet, making) = (Arc::clone(streamlet), self.making.clone());
                loads.push(Load { place: at, epoch, stream: stream.id(), streamlet, log, making });
            }
        }
        (left, loads)
    }

    /// The groups of a streamlet are read: they are served, if it is still this node's in the same epoch.
    pub(crate) fn loaded(&self, load: &Load, part: Arc<Part>) {
        if let Some(place) = self.table.write().places.get_mut(load.place)
            && matches!(place, Place::Loading(epoch) if *epoch == load.epoch)
        {
            *place = Place::Here(load.epoch, part);
        }
    }
}

impl Load {
    /// Reads the groups, those that older owners have from `others`. Blocks the thread while they come from disk or from other nodes;
    /// `None` if the streamlet is not this node's any more, or when nobody wants them.
    pub(crate) fn run(
        &self,
        broker: &Broker,
        others: impl Fn() -> Option<Arc<dyn OtherNodes>>,
        go_on: impl Fn() -> bool,
    ) -> Option<Arc<Part>> {
        let elsewhere = |node, from| {
            let others = others().ok_or("the node does not reach others yet")?;
            others.read(node, self.stream, self.streamlet.id(), from)
        };
        let is_mine =
            || self.streamlet.tenure() != Tenure::Elsewhere && self.streamlet.owner_epoch() == self.epoch && go_on();
        let all = GroupConfig::default();
        let config =
            GroupConfig { groups_max: all.groups_max / SHARE, members_bytes_max: all.members_bytes_max / SHARE, ..all };
        while is_mine() {
            let log = Arc::clone(&self.log);
            let mut coordinator = self.making.coordinator(config.clone(), Some(Arc::clone(&log)));
            match log.replay_while(broker, |entry| coordinator.replay(entry), elsewhere, is_mine) {
                Ok(read) => {
                    let (records, passed_over) = read?;
                    coordinator.start(self.making.now());
                    let (streamlet, groups) = (self.streamlet.id(), coordinator.group_count());
                    tracing::info!(%streamlet, epoch = self.epoch, groups, records, passed_over, "Kafka groups are here");
                    return Some(Part::new(coordinator, Some(log)));
                }
                Err(error) => {
                    tracing::warn!(streamlet = %self.streamlet.id(), %error, "Kafka groups cannot be read yet");
                    log.rest();
                }
            }
        }
        None
    }
}
