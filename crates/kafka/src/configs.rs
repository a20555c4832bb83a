//! Topic configurations and the options of streams: which Kafka name maps to what, and what is refused.
//!
//! Pure. A setting has a counterpart ([`set`] says which), or KerA has nothing that it could change and it is accepted without
//! effect ([`WITHOUT_EFFECT`], documented in docs/kafka-compatibility.md), or it is refused by name.

use kera_format::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use kera_format::segment::SEGMENT_HEADER_BYTES;
use kera_format::{CHUNK_HEADER_BYTES, Cleanup, Durability, StreamOptions};
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

/// Settings of Kafka's storage that nothing here corresponds to: how files are cut, flushed and indexed, and how compaction is
/// paced. Accepted, since programs set them without relying on them.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "segment.bytes",
    "segment.ms",
    "segment.jitter.ms",
    "segment.index.bytes",
    "index.interval.bytes",
    "flush.messages",
    "flush.ms",
    "file.delete.delay.ms",
    "preallocate",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "unclean.leader.election.enable",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
];

fn limit(value: &str) -> Result<Option<u64>, String> {
    match value.trim().parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(value) if value > 0 => Ok(Some(value.cast_unsigned())),
        _ => Err("is -1 for no limit, or a number from 1 on".to_owned()),
    }
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
            "compression.type" | "min.insync.replicas" | "message.timestamp.type" => {}
            _ if WITHOUT_EFFECT.contains(&name) => {}
            _ => return Err(format!("{name}: there is no such topic setting")),
        }
        return Ok(());
    };
    let done = match name {
        "retention.ms" => limit(value).map(|limit| options.retention_ms = limit),
        "retention.bytes" => limit(value).map(|limit| options.retention_bytes = limit),
        "cleanup.policy" => match value.trim() {
            "delete" => {
                options.cleanup = Cleanup::Delete;
                Ok(())
            }
            _ => Err("can only be `delete`: logs are not compacted".to_owned()),
        },
        "max.message.bytes" => match value.trim().parse::<u64>() {
            Ok(bytes) if bytes > 0 && bytes <= SEGMENT_BYTES_MAX as u64 - OVERHEAD => {
                let segment = (bytes + OVERHEAD).next_power_of_two().max(SEGMENT_BYTES_MIN as u64);
                options.segment_bytes_max = segment as u32;
                Ok(())
            }
            _ => Err(format!("is 1 to {}", SEGMENT_BYTES_MAX as u64 - OVERHEAD)),
        },
        "kera.durability" => value.trim().parse::<Durability>().map(|durability| options.durability = durability),
        "compression.type" => only(value, "producer"),
        "min.insync.replicas" => only(value, "1"),
        "message.timestamp.type" => only(value, "CreateTime"),
        _ if WITHOUT_EFFECT.contains(&name) => Ok(()),
        _ => return Err(format!("{name}: there is no such topic setting")),
    };
    done.map_err(|why| format!("{name} {why}"))
}

/// All settings that have a counterpart, and those whose value is fixed.
pub(crate) fn describe(options: &StreamOptions) -> Vec<Described> {
    let default = StreamOptions::default();
    let number = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
    let entry = |name, value: String, is_default, kind| Described { name, value, is_default, read_only: false, kind };
    let fixed =
        |name, value: &str, kind| Described { name, value: value.to_owned(), is_default: true, read_only: true, kind };
    vec![
        entry("cleanup.policy", options.cleanup.to_string(), options.cleanup == default.cleanup, Type::List),
        fixed("compression.type", "producer", Type::String),
        entry(
            "kera.durability",
            options.durability.to_string(),
            options.durability == default.durability,
            Type::String,
        ),
        entry(
            "max.message.bytes",
            message_bytes_max(options).to_string(),
            options.segment_bytes_max == default.segment_bytes_max,
            Type::Int,
        ),
        fixed("message.timestamp.type", "CreateTime", Type::String),
        fixed("min.insync.replicas", "1", Type::Int),
        entry(
            "retention.bytes",
            number(options.retention_bytes),
            options.retention_bytes == default.retention_bytes,
            Type::Long,
        ),
        entry("retention.ms", number(options.retention_ms), options.retention_ms == default.retention_ms, Type::Long),
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
            ("min.insync.replicas", "1"),
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
        assert_eq!(value("cleanup.policy"), Some(("delete", true)));
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
            ("cleanup.policy", "compact"),
            ("min.insync.replicas", "2"),
            ("compression.type", "zstd"),
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
    fn only_what_differs_is_changed() {
        let before = StreamOptions::default();
        let mut after = before.clone();
        assert!(changes(&before, &after).is_empty());
        after.retention_bytes = Some(5);
        let changed = changes(&before, &after);
        assert_eq!(changed, StreamChanges { retention_bytes: Some(Some(5)), ..StreamChanges::default() });
    }
}
