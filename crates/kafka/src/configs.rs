//! Topic configurations and the options of streams: which Kafka name maps to what, and what is refused.
//!
//! Pure. A setting has a counterpart among the options ([`Is::Option`]), follows from them, or is only kept; anything else is refused by
//! name. What a client gives is kept in the words in which it was given, and is what is described for as long as it means what the options
//! are: a native command that changes an option afterwards has the last word
//! (`docs/decisions/0041-settings-are-kept-as-they-were-set.md`).

use std::collections::BTreeMap;

use kera_format::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SETTINGS_BYTES_MAX};
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::settings::{self, AFTER_MAX_MS, BEFORE_MAX_MS, MESSAGE_BYTES_MAX};
use kera_format::{BatchCompression, CHUNK_HEADER_BYTES, Cleanup, Durability, StreamOptions, Timestamps, copies_min};
use kera_protocol::admin::StreamChanges;

/// What a segment has beyond the one batch that fills it.
const OVERHEAD: u64 = (SEGMENT_HEADER_BYTES + CHUNK_HEADER_BYTES) as u64;

/// How values are checked by tools: Kafka's numbers of types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub(crate) enum Type {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// A setting as it is described.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Described {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// Somebody has set it, or the option that it stands for; otherwise its value is the default.
    pub(crate) is_set: bool,
    /// What it is when nobody has set it.
    pub(crate) default: String,
    /// What Kafka calls the broker's setting that gives the default; empty if there is none, or if it has no default of its own.
    pub(crate) of_broker: &'static str,
    pub(crate) kind: Type,
}

/// What the value of a setting that is no option may be.
#[derive(Clone, Copy, Debug)]
enum Takes {
    /// A whole number from the first to the second.
    Number(i64, i64),
    Truth,
    /// Replicas whose copying is throttled: `*`, or a list of `partition:broker`.
    Replicas,
    /// Nothing else: what is the case here.
    Only(&'static str),
}

/// What a setting is here.
#[derive(Clone, Copy, Debug)]
enum Is {
    /// An option of the stream.
    Option,
    /// Nothing but what was said, or this if nobody has said anything: it is the case here, or what it speaks of is not there.
    Kept(Takes, &'static str),
    /// The same, but what is the case follows from the options.
    Derived(Takes),
    /// With how many copies writes are acknowledged, which follows from the options as well, and cannot be more.
    Copies,
}

struct Known {
    name: &'static str,
    of_broker: &'static str,
    kind: Type,
    is: Is,
}

const fn known(name: &'static str, of_broker: &'static str, kind: Type, is: Is) -> Known {
    Known { name, of_broker, kind, is }
}

const INT_MAX: i64 = i32::MAX as i64;
const MS: Takes = Takes::Number(0, i64::MAX);
const POLICY: &str = "cleanup.policy";
/// The settings that count with the policy `delete` alone.
const LIMITS: [&str; 2] = ["retention.bytes", "retention.ms"];
/// Kafka's word for no limit of a time.
const MS_MAX: u64 = i64::MAX as u64;
const NEVER: &str = "9223372036854775807";
const NO_TIERS: Is = Is::Kept(Takes::Only("false"), "false");
const NO_TIER_LIMIT: Is = Is::Kept(Takes::Only("-2"), "-2");

/// All that there are, in the order of their names. Those that are [only kept](Is::Kept) are about Kafka's storage, to which nothing here
/// corresponds: how files are cut, flushed, indexed and copied, and how hard compressions try; programs set them without relying on them. But
/// for the limits of timestamps, which [`BatchLimits`] goes by.
const KNOWN: &[Known] = &[
    known(POLICY, "log.cleanup.policy", Type::List, Is::Option),
    known("compression.gzip.level", "compression.gzip.level", Type::Int, Is::Kept(Takes::Number(-1, 9), "-1")),
    known("compression.lz4.level", "compression.lz4.level", Type::Int, Is::Kept(Takes::Number(1, 17), "9")),
    known("compression.type", "compression.type", Type::String, Is::Option),
    known("compression.zstd.level", "compression.zstd.level", Type::Int, Is::Kept(Takes::Number(-131_072, 22), "3")),
    known("delete.retention.ms", "log.cleaner.delete.retention.ms", Type::Long, Is::Option),
    known("file.delete.delay.ms", "log.segment.delete.delay.ms", Type::Long, Is::Kept(MS, "0")),
    known("flush.messages", "log.flush.interval.messages", Type::Long, Is::Derived(Takes::Number(1, i64::MAX))),
    known("flush.ms", "", Type::Long, Is::Kept(MS, NEVER)),
    known("follower.replication.throttled.replicas", "", Type::List, Is::Kept(Takes::Replicas, "")),
    known("index.interval.bytes", "log.index.interval.bytes", Type::Int, Is::Kept(Takes::Number(0, INT_MAX), "4096")),
    known("kera.durability", "kera.durability", Type::String, Is::Option),
    known("kera.replication.mode", "kera.replication.mode", Type::String, Is::Option),
    known("leader.replication.throttled.replicas", "", Type::List, Is::Kept(Takes::Replicas, "")),
    known("local.retention.bytes", "log.local.retention.bytes", Type::Long, NO_TIER_LIMIT),
    known("local.retention.ms", "log.local.retention.ms", Type::Long, NO_TIER_LIMIT),
    known("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", Type::Long, Is::Option),
    known(MESSAGE_BYTES_MAX, "message.max.bytes", Type::Int, Is::Option),
    known(AFTER_MAX_MS, "log.message.timestamp.after.max.ms", Type::Long, Is::Kept(MS, NEVER)),
    known(BEFORE_MAX_MS, "log.message.timestamp.before.max.ms", Type::Long, Is::Kept(MS, NEVER)),
    known("message.timestamp.type", "log.message.timestamp.type", Type::String, Is::Option),
    known("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", Type::Double, Is::Option),
    known("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", Type::Long, Is::Option),
    known("min.insync.replicas", "min.insync.replicas", Type::Int, Is::Copies),
    known("preallocate", "log.preallocate", Type::Boolean, Is::Kept(Takes::Truth, "false")),
    // There are no tiers, so what is kept here is all that is kept.
    known("remote.log.copy.disable", "", Type::Boolean, NO_TIERS),
    known("remote.log.delete.on.disable", "", Type::Boolean, NO_TIERS),
    known("remote.storage.enable", "", Type::Boolean, NO_TIERS),
    known("retention.bytes", "log.retention.bytes", Type::Long, Is::Option),
    known("retention.ms", "log.retention.ms", Type::Long, Is::Option),
    known("segment.bytes", "log.segment.bytes", Type::Int, Is::Derived(Takes::Number(14, INT_MAX))),
    known(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        Type::Int,
        Is::Kept(Takes::Number(4, INT_MAX), "10485760"),
    ),
    known("segment.jitter.ms", "", Type::Long, Is::Kept(MS, "0")),
    known("segment.ms", "log.roll.ms", Type::Long, Is::Option),
    known(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        Type::Boolean,
        Is::Kept(Takes::Truth, "false"),
    ),
];

fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

impl Takes {
    fn check(self, value: &str) -> Result<(), String> {
        let value = value.trim();
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        let is_replica = |text: &str| text.split_once(':').is_some_and(|(of, at)| is_number(of) && is_number(at));
        match self {
            Takes::Number(least, most) => match value.parse::<i64>() {
                Ok(number) if (least..=most).contains(&number) => Ok(()),
                _ => Err(format!("is a number from {least} to {most}")),
            },
            Takes::Truth if ["true", "false"].iter().any(|known| value.eq_ignore_ascii_case(known)) => Ok(()),
            Takes::Truth => Err("is true or false".to_owned()),
            Takes::Replicas if value.is_empty() || value == "*" => Ok(()),
            Takes::Replicas if value.split(',').all(|one| is_replica(one.trim())) => Ok(()),
            Takes::Replicas => Err("is `*` or a list of partition:broker".to_owned()),
            Takes::Only(only) if value.eq_ignore_ascii_case(only) => Ok(()),
            Takes::Only(only) => Err(format!("can only be `{only}`")),
        }
    }
}

/// A limit of retention. Streams have none of 0; with 1 nothing that is closed is kept either.
fn limit(value: &str) -> Result<Option<u64>, String> {
    match value.trim().parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(value) if value >= 0 => Ok(Some(value.cast_unsigned().max(1))),
        _ => Err("is -1 for no limit, or a number from 0 on".to_owned()),
    }
}

/// A time from `least` milliseconds on.
fn time(value: &str, least: u64) -> Result<u64, String> {
    match value.trim().parse::<i64>() {
        Ok(ms) if ms >= 0 && ms.cast_unsigned() >= least => Ok(ms.cast_unsigned()),
        _ => Err(format!("is a number of milliseconds from {least} on")),
    }
}

/// A list of `delete` and `compact`, in any order. An empty one is that of a stream without limits of retention.
fn cleanup(value: &str) -> Result<Cleanup, String> {
    if is_empty_list(value) {
        return Ok(Cleanup::Delete);
    }
    let (mut compacts, mut deletes) = (false, false);
    for policy in value.split(',').map(str::trim) {
        match policy {
            "compact" => compacts = true,
            "delete" => deletes = true,
            _ => return Err("is `delete`, `compact`, both or nothing".to_owned()),
        }
    }
    Ok(match (compacts, deletes) {
        (true, true) => Cleanup::CompactDelete,
        (true, false) => Cleanup::Compact,
        (false, _) => Cleanup::Delete,
    })
}

fn is_empty_list(value: &str) -> bool {
    value.trim().is_empty()
}

/// Whether nothing is cleaned up: somebody has said an empty list of policies, and that is in force. Limits of retention that somebody says are kept then, and come into
/// force with the next policy.
fn keeps_all(options: &StreamOptions, settings: &settings::Settings) -> bool {
    let is_said = settings.get(POLICY).is_some_and(|policy| is_empty_list(policy));
    is_said && options.cleanup == Cleanup::Delete && options.retention_ms.is_none() && options.retention_bytes.is_none()
}

/// A part of one as whole percent.
fn percent(value: &str) -> Result<u32, String> {
    match value.trim().parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok((ratio * 100.0).round() as u32),
        _ => Err("is a number from 0 to 1".to_owned()),
    }
}

/// What Kafka calls it.
fn compression_name(kept: BatchCompression) -> &'static str {
    if kept == BatchCompression::None { "uncompressed" } else { kept.name() }
}

fn compression(value: &str) -> Result<BatchCompression, String> {
    let known = (0..).map_while(BatchCompression::from_u8).find(|kept| compression_name(*kept) == value.trim());
    known.ok_or_else(|| "is producer, uncompressed, gzip, snappy, lz4 or zstd".to_owned())
}

fn timestamps_name(timestamps: Timestamps) -> &'static str {
    match timestamps {
        Timestamps::Create => "CreateTime",
        Timestamps::Append => "LogAppendTime",
    }
}

fn timestamps(value: &str) -> Result<Timestamps, String> {
    let found = [Timestamps::Create, Timestamps::Append].into_iter().find(|one| timestamps_name(*one) == value.trim());
    found.ok_or_else(|| "is CreateTime or LogAppendTime".to_owned())
}

/// How many copies a client wants to be there before anything is acknowledged. More than a majority never has to be.
fn in_sync_copies(value: &str, copies: u32) -> Result<(), String> {
    let most = copies_min(copies);
    match value.trim().parse::<u32>() {
        Ok(least) if (1..=most).contains(&least) => Ok(()),
        Ok(least @ 1..) => {
            let of = if copies == 1 { "one copy".to_owned() } else { format!("{copies} copies") };
            Err(format!("is {least}, and a topic with {of} acknowledges with {most} of them: it is 1 to {most}"))
        }
        _ => Err(format!("is a number from 1 to {most}")),
    }
}

/// The segments of a topic whose largest batch may have so many bytes.
fn segment_bytes(value: &str) -> Result<u32, String> {
    let most = SEGMENT_BYTES_MAX as u64 - OVERHEAD;
    match value.trim().parse::<u64>() {
        Ok(bytes) if (1..=most).contains(&bytes) => {
            Ok((bytes + OVERHEAD).next_power_of_two().max(SEGMENT_BYTES_MIN as u64) as u32)
        }
        _ => Err(format!("is 1 to {most}")),
    }
}

/// The largest batch that fits into a segment of the stream.
pub(crate) fn message_bytes_max(options: &StreamOptions) -> u64 {
    u64::from(options.segment_bytes_max) - OVERHEAD
}

/// Changes the option that a setting stands for; `keeps_all`: nothing is cleaned up, so that a limit of retention is only checked. The error does not name the
/// setting.
fn apply(options: &mut StreamOptions, known: &Known, value: &str, keeps_all: bool) -> Result<(), String> {
    match known.is {
        Is::Kept(takes, _) | Is::Derived(takes) => return takes.check(value),
        Is::Copies => return in_sync_copies(value, options.replication),
        Is::Option => {}
    }
    match known.name {
        "retention.ms" => options.retention_ms = limit(value)?.filter(|_| !keeps_all),
        "retention.bytes" => options.retention_bytes = limit(value)?.filter(|_| !keeps_all),
        POLICY => {
            options.cleanup = cleanup(value)?;
            if is_empty_list(value) {
                (options.retention_ms, options.retention_bytes) = (None, None);
            }
        }
        "segment.ms" => options.segment_ms = time(value, 1)?,
        "min.cleanable.dirty.ratio" => options.compact_dirty_percent = percent(value)?,
        "min.compaction.lag.ms" => options.compact_after_ms = time(value, 0)?,
        "max.compaction.lag.ms" => options.compact_within_ms = Some(time(value, 1)?).filter(|ms| *ms < MS_MAX),
        "delete.retention.ms" => options.tombstone_ms = time(value, 0)?,
        MESSAGE_BYTES_MAX => options.segment_bytes_max = segment_bytes(value)?,
        "kera.durability" => options.durability = value.trim().parse::<Durability>()?,
        "kera.replication.mode" => options.replication_mode = value.trim().parse()?,
        "compression.type" => options.batch_compression = compression(value)?,
        "message.timestamp.type" => options.timestamps = timestamps(value)?,
        other => unreachable!("{other} is said to be an option, and a test sets all of them"),
    }
    Ok(())
}

/// What is in force, whatever anybody has said, in Kafka's words.
fn in_force(options: &StreamOptions, known: &Known) -> String {
    let limit = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
    match known.name {
        POLICY => options.cleanup.to_string(),
        "compression.type" => compression_name(options.batch_compression).to_owned(),
        "delete.retention.ms" => options.tombstone_ms.to_string(),
        // What is to survive a loss of power is on the disk before it is acknowledged.
        "flush.messages" if options.durability == Durability::Power => "1".to_owned(),
        "flush.messages" => NEVER.to_owned(),
        "kera.durability" => options.durability.name().to_owned(),
        "kera.replication.mode" => options.replication_mode.name().to_owned(),
        "max.compaction.lag.ms" => options.compact_within_ms.unwrap_or(MS_MAX).to_string(),
        MESSAGE_BYTES_MAX => message_bytes_max(options).to_string(),
        "message.timestamp.type" => timestamps_name(options.timestamps).to_owned(),
        "min.cleanable.dirty.ratio" => (f64::from(options.compact_dirty_percent) / 100.0).to_string(),
        "min.compaction.lag.ms" => options.compact_after_ms.to_string(),
        "min.insync.replicas" => copies_min(options.replication).to_string(),
        "retention.bytes" => limit(options.retention_bytes),
        "retention.ms" => limit(options.retention_ms),
        "segment.bytes" => options.segment_bytes_max.to_string(),
        "segment.ms" => options.segment_ms.to_string(),
        other => match known.is {
            Is::Kept(_, value) => value.to_owned(),
            _ => unreachable!("{other} is described above, and a test describes all of them"),
        },
    }
}

/// What was said of a setting, if that is in force: to say it again would change nothing. `options` are those without settings.
fn said<'a>(options: &StreamOptions, settings: &'a settings::Settings, known: &Known) -> Option<&'a String> {
    let value = settings.get(known.name)?;
    let mut again = options.clone();
    let is_taken = apply(&mut again, known, value, keeps_all(options, settings)).is_ok();
    (is_taken && again == *options).then_some(value)
}

fn no_such(name: &str) -> String {
    format!("{name}: there is no such topic setting")
}

/// Sets an option by its Kafka name, and keeps how; without a value, to its default. The error names the setting.
pub(crate) fn set(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    let known = find(name).ok_or_else(|| no_such(name))?;
    let kept_all = keeps_all(options, &options.settings);
    match value {
        Some(value) => {
            if name == POLICY && is_empty_list(value) && !kept_all {
                keep_limits(options);
            }
            apply(options, known, value, kept_all).map_err(|why| format!("{name} {why}"))?;
            options.settings.insert(name.to_owned(), value.to_owned());
        }
        None => {
            if matches!(known.is, Is::Option) {
                let default = in_force(&StreamOptions::default(), known);
                apply(options, known, &default, kept_all).map_err(|why| format!("{name} {why}"))?;
            }
            options.settings.remove(name);
        }
    }
    if kept_all && !keeps_all(options, &options.settings) {
        put_limits(options);
    }
    Ok(())
}

/// Limits of retention that are in force and that nobody has said here are kept as if somebody had: they come into force again with the next policy.
fn keep_limits(options: &mut StreamOptions) {
    let (plain, default) = (options.without_settings(), StreamOptions::default());
    for known in LIMITS.into_iter().filter_map(find) {
        let value = in_force(&plain, known);
        if said(&plain, &options.settings, known).is_some() {
            continue;
        }
        if value == in_force(&default, known) {
            options.settings.remove(known.name);
        } else {
            options.settings.insert(known.name.to_owned(), value);
        }
    }
}

/// There is a policy again: the limits of retention are those that were said, and otherwise the defaults.
fn put_limits(options: &mut StreamOptions) {
    let default = StreamOptions::default();
    for known in LIMITS.into_iter().filter_map(find) {
        let value = options.settings.get(known.name).cloned().unwrap_or_else(|| in_force(&default, known));
        // It was taken when it was said.
        let _taken = apply(options, known, &value, false);
    }
}

/// Sets an option to its default, by its Kafka name. Of a setting that there is not nothing comes, as with Kafka: MirrorMaker unsets those of
/// newer brokers.
pub(crate) fn unset(options: &mut StreamOptions, name: &str) {
    let _unknown = set(options, name, None);
    options.settings.remove(name);
}

/// Sets all options that have a Kafka name to their defaults, and keeps nothing.
pub(crate) fn unset_all(options: &mut StreamOptions) {
    options.settings.clear();
    KNOWN.iter().for_each(|known| unset(options, known.name));
}

/// The parts of a setting that is a list.
fn parts(options: &StreamOptions, name: &str) -> Result<Vec<String>, String> {
    let known = find(name).ok_or_else(|| no_such(name))?;
    if known.kind != Type::List {
        return Err(format!("{name} is no list"));
    }
    let plain = options.without_settings();
    let value = said(&plain, &options.settings, known).cloned().unwrap_or_else(|| in_force(&plain, known));
    Ok(value.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect())
}

/// Adds to a setting that is a list.
pub(crate) fn add(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    let mut parts = parts(options, name)?;
    for part in value.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if !parts.iter().any(|known| known == part) {
            parts.push(part.to_owned());
        }
    }
    set(options, name, Some(&parts.join(",")))
}

/// Takes away from a setting that is a list.
pub(crate) fn take_away(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    let mut parts = parts(options, name)?;
    parts.retain(|part| value.unwrap_or_default().split(',').all(|gone| gone.trim() != part));
    set(options, name, Some(&parts.join(",")))
}

/// Whether what is kept is little enough. The error names the largest setting.
pub(crate) fn check_kept(options: &StreamOptions) -> Result<(), String> {
    let bytes = settings::bytes_of(&options.settings);
    let largest = options.settings.iter().max_by_key(|(_, value)| value.len());
    match largest {
        Some((name, value)) if bytes > SETTINGS_BYTES_MAX => Err(format!(
            "{name} has {} bytes: the settings of a topic are kept as they are given, and may take {SETTINGS_BYTES_MAX} bytes in all with their \
             names; these take {bytes}",
            value.len()
        )),
        _ => Ok(()),
    }
}

/// All settings that there are: as they were given, if that is in force, and otherwise what is.
pub(crate) fn describe(options: &StreamOptions) -> Vec<Described> {
    let plain = options.without_settings();
    let default = StreamOptions::default();
    let keeps_all = keeps_all(&plain, &options.settings);
    let of = |known: &Known| {
        // Without a policy a limit of retention is what it will be with one.
        let holds = if keeps_all && LIMITS.contains(&known.name) { &default } else { &plain };
        let in_force = in_force(holds, known);
        let said = said(&plain, &options.settings, known);
        let default = if matches!(known.is, Is::Option) { self::in_force(&default, known) } else { in_force.clone() };
        Described {
            name: known.name,
            is_set: said.is_some() || in_force != default,
            value: said.cloned().unwrap_or(in_force),
            default,
            of_broker: known.of_broker,
            kind: known.kind,
        }
    };
    KNOWN.iter().map(of).collect()
}

/// What settings that somebody has given say about batches: which are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchLimits {
    /// The most bytes of a batch.
    pub(crate) bytes: u64,
    /// How far a record's time may be behind the clock, in milliseconds.
    pub(crate) before_ms: u64,
    /// How far it may be ahead.
    pub(crate) after_ms: u64,
}

impl BatchLimits {
    /// Those of a stream: none, but for what was said and is in force.
    pub(crate) fn of(options: &StreamOptions) -> BatchLimits {
        let number = |name: &str| options.settings.get(name).and_then(|value| value.trim().parse::<u64>().ok());
        let is_said = |value: &&String| segment_bytes(value) == Ok(options.segment_bytes_max);
        let bytes = options.settings.get(MESSAGE_BYTES_MAX).filter(is_said).and_then(|_| number(MESSAGE_BYTES_MAX));
        BatchLimits {
            bytes: bytes.unwrap_or(u64::MAX),
            before_ms: number(BEFORE_MAX_MS).unwrap_or(MS_MAX),
            after_ms: number(AFTER_MAX_MS).unwrap_or(MS_MAX),
        }
    }

    /// Whether a time, in milliseconds since 1970, is near enough to the clock's. Negative: there is none, and nothing to say about it.
    pub(crate) fn allow(&self, time_ms: i64, now_ms: i64) -> bool {
        let ahead_ms = i128::from(time_ms) - i128::from(now_ms);
        time_ms < 0 || (-i128::from(self.before_ms)..=i128::from(self.after_ms)).contains(&ahead_ms)
    }
}

/// What has to change in what is kept.
fn settings_changes(before: &StreamOptions, after: &StreamOptions) -> BTreeMap<String, Option<String>> {
    let gone = before.settings.keys().filter(|name| !after.settings.contains_key(*name));
    let set = after.settings.iter().filter(|(name, value)| before.settings.get(*name) != Some(value));
    let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
    gone.map(|name| (name.clone(), None)).chain(set).collect()
}

/// What has to change in a stream so that it has other options.
pub(crate) fn changes(before: &StreamOptions, after: &StreamOptions) -> StreamChanges {
    StreamChanges {
        retention_ms: (before.retention_ms != after.retention_ms).then_some(after.retention_ms),
        retention_bytes: (before.retention_bytes != after.retention_bytes).then_some(after.retention_bytes),
        cleanup: (before.cleanup != after.cleanup).then_some(after.cleanup),
        segment_bytes_max: (before.segment_bytes_max != after.segment_bytes_max).then_some(after.segment_bytes_max),
        durability: (before.durability != after.durability).then_some(after.durability),
        replication_mode: (before.replication_mode != after.replication_mode).then_some(after.replication_mode),
        segment_ms: (before.segment_ms != after.segment_ms).then_some(after.segment_ms),
        compact_dirty_percent: (before.compact_dirty_percent != after.compact_dirty_percent)
            .then_some(after.compact_dirty_percent),
        compact_after_ms: (before.compact_after_ms != after.compact_after_ms).then_some(after.compact_after_ms),
        compact_within_ms: (before.compact_within_ms != after.compact_within_ms).then_some(after.compact_within_ms),
        tombstone_ms: (before.tombstone_ms != after.tombstone_ms).then_some(after.tombstone_ms),
        timestamps: (before.timestamps != after.timestamps).then_some(after.timestamps),
        batch_compression: (before.batch_compression != after.batch_compression).then_some(after.batch_compression),
        settings: settings_changes(before, after),
        ..StreamChanges::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_maps_is_set_and_described() {
        let mut options = StreamOptions::default();
        for (name, value) in [
            ("retention.ms", "60000"),
            ("retention.bytes", "-1"),
            ("max.message.bytes", "1000000"),
            ("kera.durability", "power"),
            ("segment.bytes", "14"),
            ("cleanup.policy", " delete, compact"),
            ("segment.ms", "100"),
            ("min.cleanable.dirty.ratio", "0.01"),
            ("min.compaction.lag.ms", "5"),
            ("max.compaction.lag.ms", "6000"),
            ("delete.retention.ms", "0"),
            ("min.insync.replicas", "1"),
            ("compression.type", "uncompressed"),
            ("message.timestamp.type", "LogAppendTime"),
        ] {
            assert_eq!(set(&mut options, name, Some(value)), Ok(()), "{name}");
        }
        assert_eq!(options.retention_ms, Some(60_000));
        assert_eq!((options.retention_bytes, options.segment_bytes_max), (None, 1 << 20));
        assert!(message_bytes_max(&options) >= 1_000_000);
        let told = describe(&options.without_settings());
        let value = |name| told.iter().find(|one| one.name == name).map(|one| (one.value.as_str(), !one.is_set));
        assert_eq!(value("retention.ms"), Some(("60000", false)));
        assert_eq!(value("kera.durability"), Some(("power", false)));
        assert_eq!(value("cleanup.policy"), Some(("compact,delete", false)));
        assert_eq!(value("compression.type"), Some(("uncompressed", false)));
        assert_eq!(value("message.timestamp.type"), Some(("LogAppendTime", false)));
        assert_eq!(value("segment.ms"), Some(("100", false)));
        assert_eq!(value("min.cleanable.dirty.ratio"), Some(("0.01", false)));
        assert_eq!(value("min.compaction.lag.ms"), Some(("5", false)));
        assert_eq!(value("max.compaction.lag.ms"), Some(("6000", false)));
        assert_eq!(value("delete.retention.ms"), Some(("0", false)));
        for described in &told {
            assert_eq!(set(&mut options.clone(), described.name, Some(&described.value)), Ok(()), "{}", described.name);
            assert_eq!(set(&mut options, described.name, None), Ok(()), "{}", described.name);
        }
        assert_eq!(options, StreamOptions::default());
    }

    #[test]
    fn what_does_not_map_is_refused_by_name() {
        let mut options = StreamOptions::default();
        for (name, value) in [
            ("cleanup.policy", "squeeze"),
            ("cleanup.policy", "compact,"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("min.compaction.lag.ms", "-1"),
            ("max.compaction.lag.ms", "0"),
            ("segment.ms", "0"),
            ("min.insync.replicas", "2"),
            ("min.insync.replicas", "0"),
            ("segment.bytes", "1 GiB"),
            ("flush.messages", "0"),
            ("preallocate", "yes"),
            ("compression.zstd.level", "23"),
            ("leader.replication.throttled.replicas", "0:1,all"),
            ("remote.storage.enable", "true"),
            ("local.retention.ms", "1000"),
            ("retention.ms", "-2"),
            ("compression.type", "none"),
            ("message.timestamp.type", "append"),
            ("retention.ms", "soon"),
            ("max.message.bytes", "17000000"),
            ("no.such.setting", "1"),
        ] {
            let refused = set(&mut options, name, Some(value)).unwrap_err();
            assert!(refused.starts_with(name), "{refused}");
        }
        assert_eq!(options, StreamOptions::default());
    }

    #[test]
    fn what_nothing_corresponds_to_is_taken_as_kafka_takes_it() {
        let mut options = StreamOptions::default();
        for (name, value) in [
            ("segment.bytes", "1073741824"),
            ("segment.jitter.ms", "0"),
            ("flush.ms", "9223372036854775807"),
            ("preallocate", "False"),
            ("unclean.leader.election.enable", "true"),
            ("compression.gzip.level", "-1"),
            ("compression.lz4.level", "9"),
            ("compression.zstd.level", "-5"),
            ("leader.replication.throttled.replicas", "*"),
            ("follower.replication.throttled.replicas", "0:1, 1:2"),
            ("follower.replication.throttled.replicas", ""),
            ("remote.storage.enable", "false"),
            ("local.retention.ms", "-2"),
            ("local.retention.bytes", "-2"),
        ] {
            assert_eq!(set(&mut options, name, Some(value)), Ok(()), "{name}");
            assert_eq!(set(&mut options, name, None), Ok(()), "{name}");
        }
        let name = "leader.replication.throttled.replicas";
        assert_eq!(add(&mut options, name, Some("3:1")), Ok(()));
        assert_eq!(add(&mut options, name, Some("4:1,3:1")), Ok(()));
        assert_eq!(described(&options, name), ("3:1,4:1".to_owned(), true));
        assert_eq!(take_away(&mut options, name, Some("3:1")), Ok(()));
        assert_eq!(described(&options, name), ("4:1".to_owned(), true));
        assert_eq!(take_away(&mut options, name, Some("4:1")), Ok(()));
        assert_eq!(described(&options, name), (String::new(), true));
        unset(&mut options, name);
        assert_eq!(options, StreamOptions::default());
    }

    fn described(options: &StreamOptions, name: &str) -> (String, bool) {
        let told = describe(options).into_iter().find(|one| one.name == name).unwrap();
        (told.value, told.is_set)
    }

    #[test]
    fn every_setting_that_may_be_kept_is_described_and_set() {
        let options = StreamOptions::default();
        let told = describe(&options);
        assert!(told.iter().map(|one| one.name).eq(settings::NAMES.iter().copied()));
        for one in &told {
            let (name, value) = (one.name, &one.value);
            assert_eq!((one.is_set, &one.default), (false, value), "{name}");
            let mut again = options.clone();
            assert_eq!(set(&mut again, name, Some(value)), Ok(()), "{name}");
            assert_eq!(again.without_settings(), options, "{name}");
            assert_eq!(described(&again, name), (value.clone(), true), "{name}");
        }
    }

    #[test]
    fn what_was_given_is_described_as_it_was_given() {
        let mut options = StreamOptions { replication: 3, ..StreamOptions::default() };
        for (name, value) in [
            ("retention.ms", "604800000"),
            ("retention.bytes", "0"),
            ("segment.bytes", "1073741824"),
            ("max.message.bytes", "1000000"),
            ("min.cleanable.dirty.ratio", "0.304"),
            ("min.insync.replicas", "1"),
            ("cleanup.policy", "delete, compact"),
            ("flush.messages", "10000"),
        ] {
            assert_eq!(set(&mut options, name, Some(value)), Ok(()), "{name}");
            assert_eq!(described(&options, name), (value.to_owned(), true), "{name}");
        }
        assert_eq!(take_away(&mut options, "cleanup.policy", Some("delete")), Ok(()));
        assert_eq!(described(&options, "cleanup.policy"), ("compact".to_owned(), true));
        unset_all(&mut options);
        assert_eq!(options, StreamOptions { replication: 3, ..StreamOptions::default() });
    }

    #[test]
    fn an_option_that_was_changed_otherwise_has_the_last_word() {
        let mut options = StreamOptions::default();
        assert_eq!(set(&mut options, "retention.ms", Some("60000")), Ok(()));
        assert_eq!(set(&mut options, "max.message.bytes", Some("1000000")), Ok(()));
        (options.retention_ms, options.segment_bytes_max) = (Some(5), 8 << 20);
        assert_eq!(described(&options, "retention.ms"), ("5".to_owned(), true));
        assert!(!described(&options, "max.message.bytes").1, "it is the default again");
        assert_eq!(BatchLimits::of(&options).bytes, u64::MAX);
        options.retention_ms = StreamOptions::default().retention_ms;
        assert_eq!(described(&options, "retention.ms"), ("604800000".to_owned(), false));
        // What was kept is there still: it is said again by whoever sets the same.
        options.retention_ms = Some(60_000);
        assert_eq!(described(&options, "retention.ms"), ("60000".to_owned(), true));
        // What could not have been given is not described.
        options.settings.insert("segment.bytes".into(), "large".into());
        assert_eq!(described(&options, "segment.bytes"), ("8388608".to_owned(), false));
    }

    #[test]
    fn more_than_is_kept_is_refused_by_the_name_of_what_is_largest() {
        let mut options = StreamOptions::default();
        assert_eq!(check_kept(&options), Ok(()));
        let replicas = vec!["0:1"; 1500].join(",");
        assert_eq!(set(&mut options, "segment.bytes", Some("1000")), Ok(()));
        assert_eq!(set(&mut options, "leader.replication.throttled.replicas", Some(&replicas)), Ok(()));
        let refused = check_kept(&options).unwrap_err();
        assert!(refused.starts_with("leader.replication.throttled.replicas has 5999 bytes"), "{refused}");
        assert!(refused.contains("4096 bytes in all"), "{refused}");
    }

    #[test]
    fn limits_of_batches_are_those_that_somebody_has_given() {
        let none = BatchLimits::of(&StreamOptions::default());
        assert_eq!(none, BatchLimits { bytes: u64::MAX, before_ms: MS_MAX, after_ms: MS_MAX });
        assert!(none.allow(0, i64::MAX) && none.allow(i64::MAX, 0) && none.allow(-1, 5));
        let mut options = StreamOptions::default();
        for (name, value) in [(MESSAGE_BYTES_MAX, "1000"), (BEFORE_MAX_MS, " 100"), (AFTER_MAX_MS, "10")] {
            assert_eq!(set(&mut options, name, Some(value)), Ok(()));
            assert!(options.limits_batches());
        }
        let limits = BatchLimits::of(&options);
        assert_eq!(limits, BatchLimits { bytes: 1000, before_ms: 100, after_ms: 10 });
        for (time_ms, allowed) in [(899, false), (900, true), (1010, true), (1011, false), (i64::MIN, true)] {
            assert_eq!(limits.allow(time_ms, 1000), allowed, "{time_ms}");
        }
    }

    #[test]
    fn copies_in_sync_are_at_most_the_majority_that_writes_wait_for() {
        for (copies, most) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            let mut options = StreamOptions { replication: copies, ..StreamOptions::default() };
            for least in 1..=most {
                assert_eq!(set(&mut options, "min.insync.replicas", Some(&least.to_string())), Ok(()));
            }
            let refused = set(&mut options, "min.insync.replicas", Some(&(most + 1).to_string())).unwrap_err();
            assert!(
                refused.contains(&format!("is {}, ", most + 1)) && refused.contains(&format!("1 to {most}")),
                "{refused}"
            );
            let told = describe(&options).into_iter().find(|one| one.name == "min.insync.replicas").unwrap();
            assert_eq!((told.value, told.is_set), (most.to_string(), true));
            unset(&mut options, "min.insync.replicas");
            assert_eq!(described(&options, "min.insync.replicas"), (most.to_string(), false));
        }
    }

    #[test]
    fn no_retention_at_all_is_the_least_that_there_is() {
        let mut options = StreamOptions::default();
        assert_eq!(set(&mut options, "retention.ms", Some("0")), Ok(()));
        assert_eq!(set(&mut options, "retention.bytes", Some("0")), Ok(()));
        assert_eq!((options.retention_ms, options.retention_bytes), (Some(1), Some(1)));
        assert!(options.check().is_empty());
    }

    #[test]
    fn what_kafka_describes_by_default_is_the_default() {
        let mut options = StreamOptions::default();
        for (name, value) in [
            ("cleanup.policy", "delete"),
            ("min.cleanable.dirty.ratio", "0.5"),
            ("min.compaction.lag.ms", "0"),
            ("max.compaction.lag.ms", "9223372036854775807"),
            ("delete.retention.ms", "86400000"),
            ("segment.ms", "604800000"),
        ] {
            assert_eq!(set(&mut options, name, Some(value)), Ok(()), "{name}");
            assert_eq!(described(&options, name), (value.to_owned(), true), "{name}");
            unset(&mut options, name);
            assert_eq!(described(&options, name), (value.to_owned(), false), "{name}");
        }
        assert_eq!(options, StreamOptions::default());
    }

    #[test]
    fn policies_are_added_and_taken_away() {
        let mut options = StreamOptions::default();
        for (change, value, becomes) in [
            (
                add as fn(&mut StreamOptions, &str, Option<&str>) -> Result<(), String>,
                "compact",
                Cleanup::CompactDelete,
            ),
            (add, "delete", Cleanup::CompactDelete),
            (take_away, "delete", Cleanup::Compact),
            (take_away, "delete", Cleanup::Compact),
        ] {
            assert_eq!(change(&mut options, "cleanup.policy", Some(value)), Ok(()));
            assert_eq!(options.cleanup, becomes);
        }
        assert_eq!(take_away(&mut options, "cleanup.policy", Some("compact")), Ok(()));
        assert_eq!(described(&options, "cleanup.policy"), (String::new(), true), "nothing is left");
        assert_eq!(add(&mut options, "cleanup.policy", Some("compact")), Ok(()));
        assert_eq!(options.cleanup, Cleanup::Compact);
        assert!(add(&mut options, "retention.ms", Some("5")).is_err());
    }

    /// As in Kafka: the limits are described as they were said, and count again as soon as there is a policy.
    #[test]
    fn without_a_policy_everything_is_kept_and_limits_wait_for_one() {
        let day_ms = "86400000";
        for first in ["cleanup.policy", "retention.ms"] {
            let mut options = StreamOptions::default();
            let mut all = [("cleanup.policy", " "), ("retention.ms", day_ms)];
            all.sort_by_key(|(name, _)| *name != first);
            for (name, value) in all {
                assert_eq!(set(&mut options, name, Some(value)), Ok(()), "{name}");
            }
            assert_eq!((options.cleanup, options.retention_ms, options.retention_bytes), (Cleanup::Delete, None, None));
            assert!(options.check().is_empty());
            assert_eq!(described(&options, "cleanup.policy"), (" ".to_owned(), true));
            assert_eq!(described(&options, "retention.ms"), (day_ms.to_owned(), true));
            assert_eq!(described(&options, "retention.bytes"), ("-1".to_owned(), false));
            assert!(set(&mut options, "retention.bytes", Some("many")).is_err());
            assert_eq!(set(&mut options, "retention.bytes", Some("5000")), Ok(()));
            assert_eq!((options.retention_ms, options.retention_bytes), (None, None), "still");
            assert_eq!(set(&mut options, "cleanup.policy", Some("delete")), Ok(()));
            assert_eq!((options.retention_ms, options.retention_bytes), (Some(86_400_000), Some(5_000)));
        }
        let mut options = StreamOptions::default();
        assert_eq!(set(&mut options, "cleanup.policy", Some("")), Ok(()));
        let default_ms = StreamOptions::default().retention_ms;
        assert_eq!(described(&options, "retention.ms"), (default_ms.unwrap().to_string(), false));
        unset(&mut options, "retention.ms");
        assert_eq!(options.retention_ms, None);
        unset(&mut options, "cleanup.policy");
        assert_eq!(options, StreamOptions::default(), "the default policy, with the default limits");
    }

    #[test]
    fn limits_of_a_native_command_are_not_lost_without_a_policy() {
        let mut options =
            StreamOptions { retention_ms: None, retention_bytes: Some(7_000), ..StreamOptions::default() };
        // What somebody has said before that does not hold any more.
        options.settings.insert("retention.ms".into(), "1000".into());
        let before = (options.retention_ms, options.retention_bytes);
        assert_eq!(set(&mut options, "cleanup.policy", Some("")), Ok(()));
        assert_eq!((options.retention_ms, options.retention_bytes), (None, None));
        assert_eq!(described(&options, "retention.bytes"), ("7000".to_owned(), true));
        // A native command has the last word, as ever.
        let limited = StreamOptions { retention_ms: Some(5), ..options.clone() };
        assert_eq!(described(&limited, "cleanup.policy"), ("delete".to_owned(), false));
        assert_eq!(described(&limited, "retention.ms"), ("5".to_owned(), true));
        assert_eq!(set(&mut options, "cleanup.policy", Some("compact,delete")), Ok(()));
        assert_eq!((options.retention_ms, options.retention_bytes), before);
    }

    #[test]
    fn a_setting_that_there_is_not_can_be_unset_and_not_set() {
        let mut options = StreamOptions { retention_bytes: Some(5), ..StreamOptions::default() };
        assert!(set(&mut options, "message.downconversion.enable", Some("false")).is_err());
        assert!(set(&mut options, "message.downconversion.enable", None).is_err(), "who makes a topic names no others");
        unset(&mut options, "message.downconversion.enable");
        assert_eq!(options.retention_bytes, Some(5));
        unset(&mut options, "retention.bytes");
        assert_eq!(options, StreamOptions::default());
    }

    #[test]
    fn only_what_differs_is_changed() {
        let before = StreamOptions::default();
        let mut after = before.clone();
        assert!(changes(&before, &after).is_empty());
        after.retention_bytes = Some(5);
        after.settings.insert("retention.bytes".into(), "5".into());
        let changed = changes(&before, &after);
        assert_eq!(changed.apply(&before), after);
        assert_eq!(changes(&after, &before).settings, BTreeMap::from([("retention.bytes".to_owned(), None)]));
        assert_eq!(changes(&after, &before).apply(&after), before);
        let settings = BTreeMap::from([("retention.bytes".to_owned(), Some("5".to_owned()))]);
        assert_eq!(changed, StreamChanges { retention_bytes: Some(Some(5)), settings, ..StreamChanges::default() });
    }
}
