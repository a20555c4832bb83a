//! The requests: a random sequence of right and wrong ones. A seed gives one sequence; what a broker has given out (ids, epochs,
//! sessions) is put in from its own memory, so that both brokers are asked the same.

use bytes::Bytes;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, StrBytes};
use kera_format::kafka_codec::KafkaCodec;
use uuid::Uuid;

use super::batches::{Spec, batch, sign};
use super::requests;
use super::scenes::Scene;
use super::side::{Memory, Producer};

/// Settings of a topic.
type Settings = &'static [(&'static str, &'static str)];
/// Topics that are made first, with their partitions and settings. Nothing is old enough to be compacted while the oracle runs.
pub(crate) const TOPICS: [(&str, i32, Settings); 7] = [
    ("apples", 3, &[]),
    ("pears", 1, &[]),
    ("plums", 2, &[]),
    ("quinces", 2, &[("cleanup.policy", "compact"), ("min.compaction.lag.ms", "86400000")]),
    ("figs", 1, &[("compression.type", "zstd")]),
    ("medlars", 1, &[("message.timestamp.type", "LogAppendTime")]),
    ("grapes", 12, &[]),
];
/// A topic that transactions have nothing to do with.
pub(crate) const UNMARKED: &str = "figs";
/// Topics whose batches both brokers open when they come in.
const OPENED: [&str; 2] = ["quinces", "figs"];
/// A topic that comes and goes, and one that is never there.
pub(crate) const PASSING: &str = "cherries";
pub(crate) const UNKNOWN: &str = "nowhere";
/// The time of the first record.
const FIRST_MS: i64 = 1_700_000_000_000;

/// The epochs of leaders that a request names, of a broker whose first one is this.
fn in_epochs_from(first_epoch: i32, request: &mut RequestKind) {
    let count = |epoch: &mut i32| *epoch += if *epoch >= 0 { first_epoch } else { 0 };
    match request {
        RequestKind::Fetch(fetch) => {
            let partitions = fetch.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|one| count(&mut one.current_leader_epoch));
        }
        RequestKind::ListOffsets(list) => {
            let partitions = list.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.for_each(|one| count(&mut one.current_leader_epoch));
        }
        RequestKind::OffsetForLeaderEpoch(ends) => {
            for one in ends.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                count(&mut one.current_leader_epoch);
                count(&mut one.leader_epoch);
            }
        }
        _ => {}
    }
}

/// A request.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Asked {
    Request {
        key: ApiKey,
        version: i16,
        request: RequestKind,
        who: String,
    },
    /// Any bytes behind a length.
    Raw(Vec<u8>),
    /// Several requests that wait for one another, and the numbers that they are made from.
    Scene(Scene, Rng),
}

impl Asked {
    /// `who` is the producer, member or transactional id that it is about, as the memory knows it.
    pub(crate) fn new(key: ApiKey, version: i16, request: RequestKind, who: &str) -> Asked {
        Asked::Request { key, version, request, who: who.to_owned() }
    }

    pub(crate) fn key(&self) -> ApiKey {
        match self {
            Asked::Request { key, .. } => *key,
            Asked::Raw(_) | Asked::Scene(..) => ApiKey::ApiVersions,
        }
    }

    /// Its bytes, behind the length. Epochs of leaders in it are counted from `first_epoch`.
    pub(crate) fn frame(&self, correlation: i32, first_epoch: i32) -> Result<Vec<u8>, String> {
        let (key, version, request) = match self {
            Asked::Request { key, version, request, .. } => (key, *version, request),
            Asked::Raw(frame) => return Ok(frame.clone()),
            Asked::Scene(..) => return Err("a scene is several requests".to_owned()),
        };
        let header = RequestHeader::default()
            .with_request_api_key(*key as i16)
            .with_request_api_version(version)
            .with_correlation_id(correlation)
            .with_client_id(Some(text("oracle")));
        let mut frame = bytes::BytesMut::new();
        header.encode(&mut frame, key.request_header_version(version)).map_err(|error| format!("{error:#}"))?;
        let mut request = request.clone();
        in_epochs_from(first_epoch, &mut request);
        request.encode(&mut frame, version).map_err(|error| format!("{error:#}"))?;
        Ok(frame.to_vec())
    }

    /// Whether nothing will come back.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Asked::Request { request: RequestKind::Produce(produce), .. } if produce.acks == 0)
    }

    /// What it is, on one line.
    pub(crate) fn shown(&self) -> String {
        match self {
            Asked::Request { key, version, request, who } => {
                let shown = super::answer::tree(&format!("{request:#?}")).shown();
                format!("{key:?} v{version} {who} {}", shown.replace("unknown_tagged_fields={} ", ""))
            }
            Asked::Raw(frame) => format!("raw {frame:?}"),
            Asked::Scene(scene, _) => format!("{scene:?}"),
        }
    }
}

/// Numbers from a seed (SplitMix64).
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64, step: u64) -> Rng {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step.wrapping_mul(0xbf58_476d_1ce4_e5b9));
        rng.next();
        rng
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// From 0 to below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
    pub(crate) fn version(&mut self, min: i16, max: i16) -> i16 {
        min + self.below((max - min + 1) as u64) as i16
    }
}

pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(crate) fn named(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A name of a topic, now and then of one that is not there; and a partition.
pub(crate) fn place(rng: &mut Rng) -> (&'static str, i32) {
    let name = rng.pick(&[
        "apples", "apples", "apples", "apples", "pears", "pears", "plums", "quinces", "quinces", "figs", "medlars",
        PASSING, UNKNOWN,
    ]);
    let partition = if rng.one_in(12) { rng.pick(&[-1, 3, 99]) } else { rng.below(2) as i32 };
    (name, partition)
}

/// The same for who writes in transactions.
pub(crate) fn place_in_transaction(rng: &mut Rng) -> (&'static str, i32) {
    match place(rng) {
        (UNMARKED, index) => ("pears", index),
        other => other,
    }
}

/// A topic's id; the unknown one has one too, that nobody has given out.
pub(crate) fn id_of(memory: &Memory, name: &str) -> Uuid {
    memory.topics.get(name).copied().unwrap_or(Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef))
}

pub(crate) fn producer_of(memory: &Memory, who: &str) -> Producer {
    memory.producers.get(who).cloned().unwrap_or_default()
}

/// What is asked before anything random.
pub(crate) fn prologue() -> Vec<Asked> {
    let mut all: Vec<Asked> =
        TOPICS.iter().map(|(name, partitions, settings)| requests::create(name, *partitions, settings, 7)).collect();
    all.push(requests::find_coordinator(0, "group"));
    // Groups that stay: Kafka keeps one without offsets until it cleans up, KerA does not.
    all.extend(["group", "other"].map(requests::keep));
    all.push(requests::find_coordinator(1, "x0"));
    for who in ["i0", "i1", "x0", "x1"] {
        all.push(requests::init(who, who.starts_with('x'), None, 4));
    }
    all
}

/// The request of a number: first the prologue, then the random ones.
pub(crate) fn nth(seed: u64, number: u64, memory: &Memory) -> Asked {
    let mut prologue = prologue();
    match usize::try_from(number) {
        Ok(at) if at < prologue.len() => prologue.swap_remove(at),
        _ => step(seed, number, memory),
    }
}

/// The scene of a number in which members die.
pub(crate) fn deaths(seed: u64, number: u64) -> Asked {
    Asked::Scene(Scene::Deaths(number), Rng::new(seed, number))
}

/// The scene of a number in which a group changes its protocol.
pub(crate) fn rolls(seed: u64, number: u64) -> Asked {
    Asked::Scene(Scene::Roll(number), Rng::new(seed, number))
}

/// The scene of a number in which a topic's settings are changed.
pub(crate) fn settings(seed: u64, number: u64) -> Asked {
    Asked::Scene(Scene::Settings(number), Rng::new(seed, number))
}

/// The scene of a number in which a producer wants no answers.
pub(crate) fn silent(seed: u64, number: u64) -> Asked {
    Asked::Scene(Scene::Silent(number), Rng::new(seed, number))
}

/// The scene of a number in which an administrator has tools.
pub(crate) fn admin(seed: u64, number: u64) -> Asked {
    Asked::Scene(Scene::Admin(number), Rng::new(seed, number))
}

/// The scene of a number.
pub(crate) fn scene(seed: u64, number: u64) -> Asked {
    let mut rng = Rng::new(seed, number);
    Asked::Scene(Scene::pick(&mut rng, number), rng)
}

/// The request of a step.
fn step(seed: u64, number: u64, memory: &Memory) -> Asked {
    let mut rng = Rng::new(seed, number);
    let rng = &mut rng;
    match rng.below(100) {
        0..22 => produce(rng, number, memory),
        22..38 => requests::fetch(rng, memory),
        38..44 => requests::list_offsets(rng),
        44..46 => requests::end_of_epoch(rng),
        46..49 => requests::metadata(rng, memory),
        49..51 => requests::create_or_delete(rng, memory),
        51..53 => requests::delete_records(rng),
        53..56 => requests::configs(rng),
        56..58 => requests::begin(rng, memory),
        58..63 => requests::add_to_transaction(rng, memory),
        63..68 => requests::commit_in_transaction(rng, memory),
        68..74 => requests::end(rng, memory),
        74..76 => requests::tell_transactions(rng),
        76..81 => requests::member(rng, memory),
        81..84 => requests::commit(rng, memory),
        84..88 => requests::committed(rng),
        88..90 => requests::tell_groups(rng),
        90..92 => requests::forget(rng),
        92..95 => requests::consumer_group(rng, memory),
        95..97 => requests::tell_node(rng),
        97 => requests::tell_more(rng),
        98 => scene(seed, number),
        _ => wrong(rng),
    }
}

/// A batch, right or wrong; in `name`.
fn records(rng: &mut Rng, name: &str, spec: Spec) -> Vec<u8> {
    let mut spec = spec;
    if rng.one_in(2) {
        let codecs = [KafkaCodec::Gzip, KafkaCodec::Snappy, KafkaCodec::Lz4, KafkaCodec::Zstd];
        spec.codec = rng.pick(&codecs);
    }
    let any = rng.below(u64::from(spec.count)) as u8;
    spec.tombstone = rng.one_in(4).then_some(any);
    // Of two things that are wrong either may be told: what is wrong with the batch is for those without transactions.
    let wrong = if spec.transactional { u64::MAX } else { rng.below(30) };
    if OPENED.contains(&name) {
        spec.keyless = matches!(wrong, 8 | 9).then_some(any);
    }
    let mut records = batch(&spec);
    match wrong {
        0 => *records.last_mut().expect("a batch has bytes") ^= 1,
        1 => records[17] ^= 1,
        2 => records[16] = 1,
        3 => records.truncate(records.len() - 1),
        4 => records.extend_from_within(..),
        5 => records.clear(),
        6 if spec.codec == KafkaCodec::None || OPENED.contains(&name) => {
            // More records than there are.
            records[57..61].copy_from_slice(&9_i32.to_be_bytes());
            sign(&mut records);
        }
        7 => {
            records[22] |= 32;
            sign(&mut records);
        }
        12 if OPENED.contains(&name) && spec.count > 1 => {
            // Fewer records than there are.
            records[57..61].copy_from_slice(&1_i32.to_be_bytes());
            records[23..27].copy_from_slice(&0_i32.to_be_bytes());
            sign(&mut records);
        }
        13 if OPENED.contains(&name) && spec.codec == KafkaCodec::None => {
            // Says that it is compressed, and is not.
            records[22] |= rng.pick(&[1, 3, 4]);
            sign(&mut records);
        }
        _ => {}
    }
    records
}

fn produce(rng: &mut Rng, number: u64, memory: &Memory) -> Asked {
    let version = rng.version(3, 13);
    let who = rng.pick(&["", "i0", "i1", "x0", "x0", "x1"]);
    let transactional = who.starts_with('x');
    let known = producer_of(memory, who);
    let epoch = match rng.below(16) {
        0 => known.epoch - 1,
        1 => known.epoch + 1,
        _ => known.epoch,
    };
    let one = if transactional { place_in_transaction } else { place };
    let mut places = vec![one(rng)];
    if rng.one_in(3) {
        places.extend([one(rng), one(rng)]);
    }
    let mut topics: Vec<produce_request::TopicProduceData> = Vec::new();
    for (name, index) in places.clone() {
        let (next, last) = known.sequences.get(&(name.to_owned(), index)).copied().unwrap_or_default();
        let mut count = 1 + rng.below(4) as u8;
        let next = match rng.below(12) {
            // Kafka remembers a producer where it has a marker only, and takes what is first in a transaction at any number.
            0 if !transactional || next > 0 => next + 3,
            // The last batch again, as long as it was: KerA knows it by where it ended.
            1 if last > 0 => {
                count = last as u8;
                next - last
            }
            _ => next,
        };
        let spec = Spec {
            count,
            at_ms: FIRST_MS + number as i64 * 10,
            from: if who.is_empty() { (-1, -1, -1) } else { (known.id, epoch.max(0), next) },
            transactional,
            ..Spec::default()
        };
        let records = Bytes::from(records(rng, name, spec));
        let partition = produce_request::PartitionProduceData::default().with_index(index).with_records(Some(records));
        let topic = produce_request::TopicProduceData::default();
        let topic = if version >= 13 { topic.with_topic_id(id_of(memory, name)) } else { topic.with_name(named(name)) };
        match topics.iter_mut().find(|other| other.name == topic.name && other.topic_id == topic.topic_id) {
            // A partition comes once in a request.
            Some(known) if known.partition_data.iter().any(|other| other.index == index) => {}
            Some(known) => known.partition_data.push(partition),
            None => topics.push(topic.with_partition_data(vec![partition])),
        }
    }
    let is_there = places.iter().all(|(name, index)| *name == "apples" && matches!(index, 0 | 1));
    let acks = if !transactional && is_there && rng.one_in(12) { 2 } else { rng.pick(&[-1, 1]) };
    let id = (transactional && !(is_there && rng.one_in(12))).then(|| TransactionalId(text(who)));
    let request = ProduceRequest::default()
        .with_transactional_id(id)
        .with_acks(acks)
        .with_timeout_ms(10_000)
        .with_topic_data(topics);
    Asked::new(ApiKey::Produce, version, RequestKind::Produce(request), who)
}

/// What is no request, or of a version that nobody serves.
fn wrong(rng: &mut Rng) -> Asked {
    let head =
        |key: i16, version: i16| [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 9, 0, 1, b'o']].concat();
    Asked::Raw(match rng.below(6) {
        0 => [head(18, 99), vec![0, 1, 2, 3]].concat(),
        1 => head(3, 99),
        2 => head(999, 0),
        // Counts that lie: Metadata 1, ListOffsets 1, OffsetFetch 1.
        3 => [head(3, 1), vec![0x7f, 0xff, 0xff, 0xff]].concat(),
        4 => [head(2, 1), vec![0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0]].concat(),
        _ => [head(9, 1), vec![0, 9, b'g']].concat(),
    })
}
