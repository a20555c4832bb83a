//! Topic configurations and the options of streams: which Kafka name maps to what, and what is refused.
//!
//! Pure. A setting has a counterpart ([`set`] says which), or KerA has nothing that it could change and it is accepted without
//! effect ([`WITHOUT_EFFECT`], documented in docs/kafka-compatibility.md), or it is refused by name. What a client has named is kept
//! nowhere but in the options of its stream, so that what is described is what holds.

use kera_format::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{BatchCompression, CHUNK_HEADER_BYTES, Cleanup, Durability, StreamOptions, Timestamps, copies_min};
use kera_protocol::admin::StreamChanges;

/// What a segment has beyond the one batch that fills it.
const OVERHEAD: u64 = (SEGMENT_HEADER_BYTES + CHUNK_HEADER_BYTES) as u64;

/// How values are checked by tools: Kafka's numbers of types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub(crate) enum Type {
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
    pub(crate) is_default: bool,
    pub(crate) kind: Type,
}

/// What the value of a setting without effect may be.
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

const INT_MAX: i64 = i32::MAX as i64;

/// Settings of Kafka's storage that nothing here corresponds to: how files are cut, flushed, indexed and copied, and how hard
/// compressions try. Accepted, since programs set them without relying on them; what is no value of theirs is refused.
const WITHOUT_EFFECT: &[(&str, Takes)] = &[
    ("segment.bytes", Takes::Number(14, INT_MAX)),
    ("segment.jitter.ms", Takes::Number(0, i64::MAX)),
    ("segment.index.bytes", Takes::Number(4, INT_MAX)),
    ("index.interval.bytes", Takes::Number(0, INT_MAX)),
    ("flush.messages", Takes::Number(1, i64::MAX)),
    ("flush.ms", Takes::Number(0, i64::MAX)),
    ("file.delete.delay.ms", Takes::Number(0, i64::MAX)),
    ("preallocate", Takes::Truth),
    ("unclean.leader.election.enable", Takes::Truth),
    ("message.timestamp.before.max.ms", Takes::Number(0, i64::MAX)),
    ("message.timestamp.after.max.ms", Takes::Number(0, i64::MAX)),
    ("compression.gzip.level", Takes::Number(-1, 9)),
    ("compression.lz4.level", Takes::Number(1, 17)),
    ("compression.zstd.level", Takes::Number(-131_072, 22)),
    ("leader.replication.throttled.replicas", Takes::Replicas),
    ("follower.replication.throttled.replicas", Takes::Replicas),
    // There are no tiers, so what is kept here is all that is kept.
    ("remote.storage.enable", Takes::Only("false")),
    ("local.retention.ms", Takes::Only("-2")),
    ("local.retention.bytes", Takes::Only("-2")),
];

fn without_effect(name: &str) -> Option<Takes> {
    WITHOUT_EFFECT.iter().find(|(known, _)| *known == name).map(|(_, takes)| *takes)
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

/// Kafka's word for no limit of `max.compaction.lag.ms`.
const MS_MAX: u64 = i64::MAX as u64;

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

/// A list of `delete` and `compact`, in any order.
fn cleanup(value: &str) -> Result<Cleanup, String> {
    let (mut compacts, mut deletes) = (false, false);
    for policy in value.split(',').map(str::trim) {
        match policy {
            "compact" => compacts = true,
            "delete" => deletes = true,
            _ => return Err("is `delete`, `compact` or both".to_owned()),
        }
    }
    Ok(match (compacts, deletes) {
        (true, true) => Cleanup::CompactDelete,
        (true, false) => Cleanup::Compact,
        (false, _) => Cleanup::Delete,
    })
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

/// The largest batch that fits into a segment of the stream.
pub(crate) fn message_bytes_max(options: &StreamOptions) -> u64 {
    u64::from(options.segment_bytes_max) - OVERHEAD
}

/// Sets an option by its Kafka name; without a value, to its default. The error names the setting.
pub(crate) fn set(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    let default = StreamOptions::default();
    let Some(value) = value else {
        match name {
            "retention.ms" => options.retention_ms = default.retention_ms,
            "retention.bytes" => options.retention_bytes = default.retention_bytes,
            "cleanup.policy" => options.cleanup = default.cleanup,
            "max.message.bytes" => options.segment_bytes_max = default.segment_bytes_max,
            "kera.durability" => options.durability = default.durability,
            "kera.replication.mode" => options.replication_mode = default.replication_mode,
            "segment.ms" => options.segment_ms = default.segment_ms,
            "min.cleanable.dirty.ratio" => options.compact_dirty_percent = default.compact_dirty_percent,
            "min.compaction.lag.ms" => options.compact_after_ms = default.compact_after_ms,
            "max.compaction.lag.ms" => options.compact_within_ms = default.compact_within_ms,
            "delete.retention.ms" => options.tombstone_ms = default.tombstone_ms,
            "compression.type" => options.batch_compression = default.batch_compression,
            "message.timestamp.type" => options.timestamps = default.timestamps,
            "min.insync.replicas" => {}
            _ if without_effect(name).is_some() => {}
            _ => return Err(format!("{name}: there is no such topic setting")),
        }
        return Ok(());
    };
    let done = match name {
        "retention.ms" => limit(value).map(|limit| options.retention_ms = limit),
        "retention.bytes" => limit(value).map(|limit| options.retention_bytes = limit),
        "cleanup.policy" => cleanup(value).map(|cleanup| options.cleanup = cleanup),
        "segment.ms" => time(value, 1).map(|ms| options.segment_ms = ms),
        "min.cleanable.dirty.ratio" => percent(value).map(|percent| options.compact_dirty_percent = percent),
        "min.compaction.lag.ms" => time(value, 0).map(|ms| options.compact_after_ms = ms),
        "max.compaction.lag.ms" => {
            time(value, 1).map(|ms| options.compact_within_ms = Some(ms).filter(|ms| *ms < MS_MAX))
        }
        "delete.retention.ms" => time(value, 0).map(|ms| options.tombstone_ms = ms),
        "max.message.bytes" => match value.trim().parse::<u64>() {
            Ok(bytes) if bytes > 0 && bytes <= SEGMENT_BYTES_MAX as u64 - OVERHEAD => {
                let segment = (bytes + OVERHEAD).next_power_of_two().max(SEGMENT_BYTES_MIN as u64);
                options.segment_bytes_max = segment as u32;
                Ok(())
            }
            _ => Err(format!("is 1 to {}", SEGMENT_BYTES_MAX as u64 - OVERHEAD)),
        },
        "kera.durability" => value.trim().parse::<Durability>().map(|durability| options.durability = durability),
        "kera.replication.mode" => value.trim().parse().map(|mode| options.replication_mode = mode),
        "compression.type" => compression(value).map(|kept| options.batch_compression = kept),
        "min.insync.replicas" => in_sync_copies(value, options.replication),
        "message.timestamp.type" => timestamps(value).map(|timestamps| options.timestamps = timestamps),
        _ => match without_effect(name) {
            Some(takes) => takes.check(value),
            None => return Err(format!("{name}: there is no such topic setting")),
        },
    };
    done.map_err(|why| format!("{name} {why}"))
}

/// Sets an option to its default, by its Kafka name. Of a setting that there is not nothing comes, as with Kafka: MirrorMaker unsets those of
/// newer brokers.
pub(crate) fn unset(options: &mut StreamOptions, name: &str) {
    let _unknown = set(options, name, None);
}

/// Adds to a setting that is a list.
pub(crate) fn add(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    if let Some(Takes::Replicas) = without_effect(name) {
        return set(options, name, value);
    }
    let known = list(options, name)?;
    set(options, name, Some(&value.into_iter().chain(known.split(',')).collect::<Vec<_>>().join(",")))
}

/// Takes away from a setting that is a list.
pub(crate) fn take_away(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    if let Some(Takes::Replicas) = without_effect(name) {
        return set(options, name, value);
    }
    let known = list(options, name)?;
    let goes = |one: &&str| value.unwrap_or_default().split(',').any(|gone| gone.trim() == *one);
    let left: Vec<&str> = known.split(',').filter(|one| !goes(one)).collect();
    set(options, name, Some(&left.join(",")))
}

fn list(options: &StreamOptions, name: &str) -> Result<String, String> {
    if name == "cleanup.policy" { Ok(options.cleanup.to_string()) } else { Err(format!("{name} is no list")) }
}

/// All settings that have a counterpart, and with how many copies writes are acknowledged, which follows from the stream's.
pub(crate) fn describe(options: &StreamOptions) -> Vec<Described> {
    let default = StreamOptions::default();
    let number = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
    let entry = |name, value: String, is_default, kind| Described { name, value, is_default, kind };
    let word = |name, value: &str, default: &str| entry(name, value.to_owned(), value == default, Type::String);
    vec![
        entry("cleanup.policy", options.cleanup.to_string(), options.cleanup == default.cleanup, Type::List),
        entry(
            "compression.type",
            compression_name(options.batch_compression).to_owned(),
            options.batch_compression == default.batch_compression,
            Type::String,
        ),
        entry(
            "delete.retention.ms",
            options.tombstone_ms.to_string(),
            options.tombstone_ms == default.tombstone_ms,
            Type::Long,
        ),
        word("kera.durability", options.durability.name(), default.durability.name()),
        word("kera.replication.mode", options.replication_mode.name(), default.replication_mode.name()),
        entry(
            "max.compaction.lag.ms",
            options.compact_within_ms.unwrap_or(MS_MAX).to_string(),
            options.compact_within_ms == default.compact_within_ms,
            Type::Long,
        ),
        entry(
            "max.message.bytes",
            message_bytes_max(options).to_string(),
            options.segment_bytes_max == default.segment_bytes_max,
            Type::Int,
        ),
        entry(
            "message.timestamp.type",
            timestamps_name(options.timestamps).to_owned(),
            options.timestamps == default.timestamps,
            Type::String,
        ),
        entry(
            "min.cleanable.dirty.ratio",
            (f64::from(options.compact_dirty_percent) / 100.0).to_string(),
            options.compact_dirty_percent == default.compact_dirty_percent,
            Type::Double,
        ),
        entry(
            "min.compaction.lag.ms",
            options.compact_after_ms.to_string(),
            options.compact_after_ms == default.compact_after_ms,
            Type::Long,
        ),
        entry("min.insync.replicas", copies_min(options.replication).to_string(), true, Type::Int),
        entry(
            "retention.bytes",
            number(options.retention_bytes),
            options.retention_bytes == default.retention_bytes,
            Type::Long,
        ),
        entry("retention.ms", number(options.retention_ms), options.retention_ms == default.retention_ms, Type::Long),
        entry("segment.ms", options.segment_ms.to_string(), options.segment_ms == default.segment_ms, Type::Long),
    ]
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
        let told = describe(&options);
        let value = |name| told.iter().find(|one| one.name == name).map(|one| (one.value.as_str(), one.is_default));
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
        assert_eq!(take_away(&mut options, name, Some("3:1")), Ok(()));
        assert_eq!(options, StreamOptions::default());
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
            assert_eq!((told.value, told.is_default), (most.to_string(), true));
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
            let told = describe(&options).into_iter().find(|one| one.name == name).unwrap();
            assert_eq!((told.value.as_str(), told.is_default), (value, true), "{name}");
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
        assert!(take_away(&mut options, "cleanup.policy", Some("compact")).is_err(), "nothing would be left");
        assert!(add(&mut options, "retention.ms", Some("5")).is_err());
    }

    #[test]
    fn a_setting_that_there_is_not_can_be_unset_and_not_set() {
        let mut options = StreamOptions { retention_bytes: Some(5), ..StreamOptions::default() };
        assert!(set(&mut options, "remote.log.delete.on.disable", Some("false")).is_err());
        assert!(set(&mut options, "remote.log.delete.on.disable", None).is_err(), "who makes a topic names no others");
        unset(&mut options, "remote.log.delete.on.disable");
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
        let changed = changes(&before, &after);
        assert_eq!(changed, StreamChanges { retention_bytes: Some(Some(5)), ..StreamChanges::default() });
    }
}
