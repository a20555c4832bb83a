//! Topic configurations and the options of streams: which Kafka name maps to what, and what is refused.
//!
//! Pure. A setting has a counterpart ([`set`] says which), or KerA has nothing that it could change and it is accepted without
//! effect ([`WITHOUT_EFFECT`], documented in docs/kafka-compatibility.md), or it is refused by name.

use kera_format::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{BatchCompression, CHUNK_HEADER_BYTES, Cleanup, Durability, StreamOptions, Timestamps};
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
    pub(crate) read_only: bool,
    pub(crate) kind: Type,
}

/// Settings of Kafka's storage that nothing here corresponds to: how files are cut, flushed and indexed. Accepted, since programs
/// set them without relying on them.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "segment.bytes",
    "segment.jitter.ms",
    "segment.index.bytes",
    "index.interval.bytes",
    "flush.messages",
    "flush.ms",
    "file.delete.delay.ms",
    "preallocate",
    "unclean.leader.election.enable",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
];

/// Kafka's word for no limit of `max.compaction.lag.ms`.
const MS_MAX: u64 = i64::MAX as u64;

fn limit(value: &str) -> Result<Option<u64>, String> {
    match value.trim().parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(value) if value > 0 => Ok(Some(value.cast_unsigned())),
        _ => Err("is -1 for no limit, or a number from 1 on".to_owned()),
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

fn only(value: &str, allowed: &str) -> Result<(), String> {
    if value.trim().eq_ignore_ascii_case(allowed) { Ok(()) } else { Err(format!("can only be `{allowed}`")) }
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
            _ if WITHOUT_EFFECT.contains(&name) => {}
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
        "min.insync.replicas" => only(value, "1"),
        "message.timestamp.type" => timestamps(value).map(|timestamps| options.timestamps = timestamps),
        _ if WITHOUT_EFFECT.contains(&name) => Ok(()),
        _ => return Err(format!("{name}: there is no such topic setting")),
    };
    done.map_err(|why| format!("{name} {why}"))
}

/// Sets an option to its default, by its Kafka name. Of a setting that there is not nothing comes, as with Kafka: MirrorMaker unsets those of
/// newer brokers.
pub(crate) fn unset(options: &mut StreamOptions, name: &str) {
    let _unknown = set(options, name, None);
}

/// Adds to the one setting that is a list.
pub(crate) fn add(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    let known = list(options, name)?;
    set(options, name, Some(&value.into_iter().chain(known.split(',')).collect::<Vec<_>>().join(",")))
}

/// Takes away from the one setting that is a list.
pub(crate) fn take_away(options: &mut StreamOptions, name: &str, value: Option<&str>) -> Result<(), String> {
    let known = list(options, name)?;
    let goes = |one: &&str| value.unwrap_or_default().split(',').any(|gone| gone.trim() == *one);
    let left: Vec<&str> = known.split(',').filter(|one| !goes(one)).collect();
    set(options, name, Some(&left.join(",")))
}

fn list(options: &StreamOptions, name: &str) -> Result<String, String> {
    if name == "cleanup.policy" { Ok(options.cleanup.to_string()) } else { Err(format!("{name} is no list")) }
}

/// All settings that have a counterpart, and those whose value is fixed.
pub(crate) fn describe(options: &StreamOptions) -> Vec<Described> {
    let default = StreamOptions::default();
    let number = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
    let entry = |name, value: String, is_default, kind| Described { name, value, is_default, read_only: false, kind };
    let word = |name, value: &str, default: &str| entry(name, value.to_owned(), value == default, Type::String);
    let fixed =
        |name, value: &str, kind| Described { name, value: value.to_owned(), is_default: true, read_only: true, kind };
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
        fixed("min.insync.replicas", "1", Type::Int),
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
