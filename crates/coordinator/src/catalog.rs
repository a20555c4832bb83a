//! The state: streams by name and id, producer ids and epochs, and the rules that commands must follow.
//!
//! Plain data, owned by [`Coordinator`](crate::Coordinator): no lock, no disk, no time of its own. `plan_*` checks a
//! command and says which entry does it; [`Catalog::apply`] makes an entry true, whether it was planned just now or
//! read from the journal at a start.

use std::collections::{BTreeMap, HashMap};

use kera_format::catalog::Entry;
use kera_format::cluster::COPIES_MAX;
use kera_format::{ProducerEpoch, ProducerId, StreamId, StreamOptions, limits, settings};
use kera_protocol::{CreateStream, ListStreams, StreamChanges, StreamInfo, StreamList, StreamRef};

use crate::CoordinatorError;

/// Names that start so are the system's own: clients may read such streams, but not make, change or delete them.
pub const SYSTEM_PREFIX: &str = "_kera.";
/// Those of the system's streams that a cluster has once for all nodes. Each node has the others for itself.
pub const CLUSTER_PREFIX: &str = "_kera.cluster.";
/// Producer ids are journalled this many at a time, so that most of them cost no write. A restart skips what is left
/// of a block.
pub const PRODUCER_BLOCK: u64 = 1000;
/// Most producers whose epoch was raised: 16 MiB of state, 32 MiB of snapshot. Others that ask for another epoch get another id.
pub const RAISED_EPOCHS_MAX: usize = 1 << 20;

/// What the node can give, which bounds what streams may ask for.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most streams, the system's included.
    pub streams: usize,
    /// Nodes that can hold a copy, those that are lost for a while among them.
    pub nodes: u32,
}

/// The state. See the module.
#[derive(Clone, Debug)]
pub struct Catalog {
    names: BTreeMap<String, StreamId>,
    streams: HashMap<StreamId, StreamInfo>,
    /// Of all streams, the system's included.
    lanes: u64,
    next_stream: StreamId,
    /// Ids below it were given out or belong to a block that this process or an earlier one reserved.
    producers_reserved: ProducerId,
    raised: HashMap<ProducerId, ProducerEpoch>,
    /// The highest id that has had all its epochs. Neither it nor one below it gets another one: see [`skip_numbers`](Catalog::skip_numbers).
    spent: ProducerId,
    /// Index of the next entry.
    next_index: u64,
}

impl Default for Catalog {
    fn default() -> Catalog {
        Catalog {
            names: BTreeMap::new(),
            streams: HashMap::new(),
            lanes: 0,
            next_stream: StreamId(1),
            producers_reserved: ProducerId(1),
            raised: HashMap::new(),
            spent: ProducerId(0),
            next_index: 1,
        }
    }
}

impl Catalog {
    /// The index that the next entry gets.
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    /// The first producer id that no block holds yet.
    pub fn producers_reserved(&self) -> ProducerId {
        self.producers_reserved
    }

    /// How many streams there are.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Whether there may be so many lanes more. Whoever leads asks before something is recorded: what is recorded
    /// is applied by every node, also where there are more than that since an earlier version.
    ///
    /// # Errors
    /// There would be more than [`limits::ALL_LANES_MAX`].
    pub fn check_lanes(&self, more: u64) -> Result<(), CoordinatorError> {
        let (has, limit) = (self.lanes, limits::ALL_LANES_MAX);
        let fits = more == 0 || has.saturating_add(more) <= limit;
        if fits { Ok(()) } else { Err(CoordinatorError::TooManyLanes { has, more, limit }) }
    }

    /// A stream by name or id.
    pub fn find(&self, stream: &StreamRef) -> Result<&StreamInfo, CoordinatorError> {
        let found = match stream {
            StreamRef::Id(id) => self.streams.get(id),
            StreamRef::Name(name) => self.names.get(name).and_then(|id| self.streams.get(id)),
        };
        found.ok_or_else(|| CoordinatorError::NoSuchStream { stream: short(&stream.to_string()) })
    }

    /// The number of the next stream that is made: all that there are, and were, have lower ones.
    pub fn next_stream(&self) -> StreamId {
        self.next_stream
    }

    /// All streams, in the order of their names.
    pub fn streams(&self) -> impl Iterator<Item = &StreamInfo> {
        self.names.values().filter_map(|id| self.streams.get(id))
    }

    /// A page of streams.
    pub fn list(&self, request: &ListStreams) -> StreamList {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let limit = kera_protocol::limits::page_items(request.limit);
        let from = if request.after >= request.prefix && !request.after.is_empty() {
            Excluded(request.after.as_str())
        } else {
            Included(request.prefix.as_str())
        };
        let mut found = self
            .names
            .range::<str, _>((from, Unbounded))
            .take_while(|(name, _)| name.starts_with(&request.prefix))
            .filter(|(name, _)| request.system || !name.starts_with(SYSTEM_PREFIX))
            .filter_map(|(_, id)| self.streams.get(id));
        let streams = found.by_ref().take(limit).cloned().collect();
        StreamList { streams, more: found.next().is_some() }
    }

    /// The epoch of a producer that was given out.
    pub fn epoch(&self, producer: ProducerId) -> ProducerEpoch {
        self.raised.get(&producer).copied().unwrap_or(ProducerEpoch(0))
    }

    /// Checks the making of a stream. The name must be free.
    pub fn plan_create(
        &self,
        request: &CreateStream,
        limits: &Limits,
        now_ms: i64,
        system: bool,
    ) -> Result<Entry, CoordinatorError> {
        check_name(&request.name, system)?;
        if self.names.contains_key(&request.name) {
            return Err(CoordinatorError::StreamExists { name: request.name.clone() });
        }
        check_options(&request.options, limits)?;
        check_settings(request.options.settings.keys())?;
        if self.streams.len() >= limits.streams {
            return Err(CoordinatorError::Limit {
                what: "streams",
                limit: limits.streams as u64,
                advice: "delete one first",
            });
        }
        if !system {
            self.check_lanes(lanes_of(&request.options))?;
        }
        Ok(Entry::StreamCreated {
            stream: self.next_stream,
            at_ms: now_ms,
            options: request.options.clone(),
            name: request.name.clone(),
        })
    }

    /// Checks changes to a stream. `None` if they change nothing.
    pub fn plan_alter(
        &self,
        stream: &StreamRef,
        changes: &StreamChanges,
        limits: &Limits,
        now_ms: i64,
        system: bool,
    ) -> Result<Option<Entry>, CoordinatorError> {
        let info = self.find(stream)?;
        check_name(&info.name, system)?;
        let options = changes.apply(&info.options);
        let mut mistakes = live_changes(&info.options, &options);
        // The copies that it has it may keep, also where there are fewer nodes by now: something else is to change.
        let limits = Limits { nodes: limits.nodes.max(info.options.replication), ..limits.clone() };
        if let Err(CoordinatorError::BadOptions { mistakes: more }) = check_options(&options, &limits) {
            mistakes.extend(more);
        }
        let set = changes.settings.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name);
        if let Err(CoordinatorError::BadOptions { mistakes: more }) = check_settings(set) {
            mistakes.extend(more);
        }
        if !mistakes.is_empty() {
            return Err(CoordinatorError::BadOptions { mistakes });
        }
        if !system {
            self.check_lanes(lanes_of(&options).saturating_sub(lanes_of(&info.options)))?;
        }
        let changed = options != info.options;
        Ok(changed.then_some(Entry::StreamAltered { stream: info.id, at_ms: now_ms, options }))
    }

    /// Checks the deletion of a stream.
    pub fn plan_delete(&self, stream: &StreamRef, now_ms: i64, system: bool) -> Result<Entry, CoordinatorError> {
        let info = self.find(stream)?;
        check_name(&info.name, system)?;
        Ok(Entry::StreamDeleted { stream: info.id, at_ms: now_ms })
    }

    /// The next block of producer ids.
    pub fn plan_reserve(&self) -> Entry {
        Entry::ProducersReserved { below: ProducerId(self.producers_reserved.0.saturating_add(PRODUCER_BLOCK)) }
    }

    /// Skips so many numbers of streams and blocks of producer ids. `None`, and nothing is changed: there are not as many left.
    ///
    /// Producers with ids below may have had epochs raised of which this state does not know, and the same epoch must not be given twice. So the last of the skipped ids, which
    /// nobody has, is noted as one that has had all its epochs, and whoever asks for another epoch of an id below gets an id that nobody has. That such
    /// a note also comes of a producer that really has had them all costs producers below it no more than that.
    pub(crate) fn skip_numbers(&mut self, count: u32) -> Option<()> {
        let next_stream = self.next_stream.0.checked_add(count.into())?;
        let reserved = self.producers_reserved.0.checked_add(PRODUCER_BLOCK * u64::from(count))?;
        (self.next_stream, self.producers_reserved) = (StreamId(next_stream), ProducerId(reserved));
        if self.raised.len() >= RAISED_EPOCHS_MAX {
            // None of them is asked for again.
            self.raised.clear();
        }
        self.note_raised(ProducerId(reserved - 1), ProducerEpoch(u16::MAX));
        Some(())
    }

    fn note_raised(&mut self, producer: ProducerId, epoch: ProducerEpoch) {
        if epoch.0 == u16::MAX {
            self.spent = self.spent.max(producer);
        }
        self.raised.insert(producer, epoch);
    }

    /// The next epoch of `producer`, `given_below` being the first id that nobody has. `None`: it has had them all, or one with a higher id has, or as many producers have had theirs
    /// raised as may be noted, and another id must be given instead. An error would not do: nobody of these is ever forgotten, so whoever asks again would ask for ever.
    pub fn plan_raise(&self, producer: ProducerId, given_below: ProducerId) -> Result<Option<Entry>, CoordinatorError> {
        if producer.0 == 0 || producer >= given_below {
            return Err(CoordinatorError::NoSuchProducer(producer));
        }
        if producer <= self.spent || (self.raised.len() >= RAISED_EPOCHS_MAX && !self.raised.contains_key(&producer)) {
            return Ok(None);
        }
        let Some(next) = self.epoch(producer).0.checked_add(1) else { return Ok(None) };
        Ok(Some(Entry::ProducerEpochRaised { producer, epoch: ProducerEpoch(next) }))
    }

    /// Makes the entry with the next index true. An error, in words, if it contradicts the state: a planned entry never
    /// does, one from a damaged file may.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::StreamCreated { stream, at_ms, options, name } => {
                if self.names.contains_key(name) || self.streams.contains_key(stream) || stream.0 == 0 {
                    return Err(format!("stream {stream} `{name}` is created twice"));
                }
                self.names.insert(name.clone(), *stream);
                self.lanes = self.lanes.saturating_add(lanes_of(options));
                let info = StreamInfo { id: *stream, name: name.clone(), created_ms: *at_ms, options: options.clone() };
                self.streams.insert(*stream, info);
                self.next_stream = self.next_stream.max(StreamId(stream.0.saturating_add(1)));
            }
            Entry::StreamAltered { stream, options, .. } => match self.streams.get_mut(stream) {
                Some(info) => {
                    let others = self.lanes.saturating_sub(lanes_of(&info.options));
                    self.lanes = others.saturating_add(lanes_of(options));
                    info.options = options.clone();
                }
                None => return Err(format!("stream {stream} is altered, but there is no such stream")),
            },
            Entry::StreamDeleted { stream, .. } => match self.streams.remove(stream) {
                Some(info) => {
                    self.lanes = self.lanes.saturating_sub(lanes_of(&info.options));
                    self.names.remove(&info.name);
                }
                None => return Err(format!("stream {stream} is deleted, but there is no such stream")),
            },
            Entry::ProducersReserved { below } => {
                self.producers_reserved = self.producers_reserved.max(*below);
            }
            Entry::ProducerEpochRaised { producer, epoch } => {
                if self.raised.len() >= RAISED_EPOCHS_MAX && !self.raised.contains_key(producer) {
                    return Err(format!("more than {RAISED_EPOCHS_MAX} producers have a raised epoch"));
                }
                self.note_raised(*producer, *epoch);
            }
            Entry::Counters { .. } | Entry::End { .. } => return Err("an entry of snapshots is in a journal".into()),
        }
        self.next_index = self.next_index.saturating_add(1);
        Ok(())
    }

    /// The whole state as entries of a snapshot, [`Entry::Counters`] first, without [`Entry::End`].
    pub fn snapshot(&self) -> Vec<Entry> {
        let mut entries = vec![
            Entry::Counters { next_stream: self.next_stream, next_index: self.next_index },
            Entry::ProducersReserved { below: self.producers_reserved },
        ];
        let mut raised: Vec<_> = self.raised.iter().map(|(producer, epoch)| (*producer, *epoch)).collect();
        raised.sort_unstable();
        entries.extend(raised.into_iter().map(|(producer, epoch)| Entry::ProducerEpochRaised { producer, epoch }));
        entries.extend(self.streams().map(|info| Entry::StreamCreated {
            stream: info.id,
            at_ms: info.created_ms,
            options: info.options.clone(),
            name: info.name.clone(),
        }));
        entries
    }

    /// Takes one entry of a snapshot.
    pub fn restore(&mut self, entry: &Entry) -> Result<(), String> {
        let index = self.next_index;
        match entry {
            Entry::Counters { next_stream, next_index } => {
                (self.next_stream, self.next_index) = (*next_stream, *next_index);
                return Ok(());
            }
            other => self.apply(other)?,
        }
        self.next_index = index;
        Ok(())
    }
}

/// The lanes of a stream. Kafka clients see each as a partition.
fn lanes_of(options: &StreamOptions) -> u64 {
    u64::from(options.streamlets) * u64::from(options.lanes)
}

/// Whether the streamlets of a stream of this name have owners in a cluster.
pub fn has_owners(name: &str) -> bool {
    !name.starts_with(SYSTEM_PREFIX) || name.starts_with(CLUSTER_PREFIX)
}

fn check_name(name: &str, system: bool) -> Result<(), CoordinatorError> {
    let bad = |reason| Err(CoordinatorError::BadName { name: short(name), reason });
    if !limits::name_is_valid(name) {
        return bad("is not 1 to 249 of the characters a-z A-Z 0-9 . _ -, or it is `.` or `..`");
    }
    if name.starts_with(SYSTEM_PREFIX) && !system {
        return bad("starts with `_kera.`, which is kept for the system's own streams");
    }
    Ok(())
}

/// Every limit of the options themselves, and what this node cannot give: all mistakes at once.
fn check_options(options: &StreamOptions, limits: &Limits) -> Result<(), CoordinatorError> {
    let mut mistakes: Vec<String> = options.check().iter().map(ToString::to_string).collect();
    mistakes.extend(too_many_copies(options.replication, limits.nodes));
    if options.virtual_logs > 0 && options.replication == 1 {
        let wanted = options.virtual_logs;
        mistakes.push(format!(
            "virtual_logs is {wanted}, but streams with one copy share those of their node; use 0 (shared)"
        ));
    }
    if mistakes.is_empty() { Ok(()) } else { Err(CoordinatorError::BadOptions { mistakes }) }
}

/// What to say of more copies than so many nodes can hold. What no stream may have is said by the options' own limits.
pub(crate) fn too_many_copies(wanted: u32, nodes: u32) -> Option<String> {
    let there = if nodes == 1 { "there is 1 node".to_owned() } else { format!("there are {nodes} nodes") };
    let is_too_many = wanted > nodes && wanted <= COPIES_MAX;
    is_too_many.then(|| format!("replication is {wanted}, but {there} to hold copies; ask for {nodes} at most"))
}

/// Settings are kept under names that there are. What was kept by a later version stays until it is unset.
fn check_settings<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), CoordinatorError> {
    let unknown = names.filter(|name| !settings::is_known(name));
    let mistakes: Vec<String> = unknown.map(|name| format!("settings: there is no `{}`", short(name))).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(CoordinatorError::BadOptions { mistakes }) }
}

/// Which differences a stream that has data cannot follow.
fn live_changes(before: &StreamOptions, after: &StreamOptions) -> Vec<String> {
    let mut mistakes = Vec::new();
    if after.streamlets < before.streamlets {
        let (has, wanted) = (before.streamlets, after.streamlets);
        mistakes.push(format!("streamlets is {has} and cannot shrink to {wanted}: streamlets hold data"));
    }
    if after.lanes != before.lanes {
        // A producer would move to another lane, away from what says which of its chunks are there already.
        let has = before.lanes;
        mistakes.push(format!("lanes is {has} and cannot change on a live stream, make another stream"));
    }
    if after.replication != before.replication {
        let has = before.replication;
        mistakes.push(format!(
            "replication is {has} and changes only in a cluster; docs/operations.md says how to start one"
        ));
    }
    if after.virtual_logs != before.virtual_logs {
        let has = before.virtual_logs;
        mistakes.push(format!("virtual_logs is {has} and cannot change on a live stream, make another stream"));
    }
    if after.durability != before.durability && before.replication > 1 {
        // Its chunks are on their way through a log of one durability; in another one they could overtake them.
        mistakes.push("durability of a stream with copies cannot change, make another stream".to_owned());
    }
    mistakes
}

/// Text from outside, cut to what fits into a message.
fn short(text: &str) -> String {
    match text.char_indices().nth(260) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
