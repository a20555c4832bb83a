//! Settings of topics as Kafka clients have given them, kept beside the options that they stand for.
//!
//! A stream's options say what holds. Its settings say what somebody has asked for, by Kafka's names and in the very words, so that who has
//! declared something finds it as it was declared (`docs/decisions/0041-settings-are-kept-as-they-were-set.md`). The Kafka door alone knows
//! what a value means, and takes one for said only as long as it means what the options are. Pure.

use std::collections::BTreeMap;

use crate::{FormatError, limits};

/// Settings as they were given: names and values.
pub type Settings = BTreeMap<String, String>;

/// From before when on a record is too old for a topic, in milliseconds.
pub const BEFORE_MAX_MS: &str = "message.timestamp.before.max.ms";
/// How far ahead of the clock a record may be, in milliseconds.
pub const AFTER_MAX_MS: &str = "message.timestamp.after.max.ms";
/// The largest batch, in bytes.
pub const MESSAGE_BYTES_MAX: &str = "max.message.bytes";

/// The names that there are, in their order: those of Kafka 4.1, and two of KerA.
pub const NAMES: &[&str] = &[
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "kera.durability",
    "kera.replication.mode",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    MESSAGE_BYTES_MAX,
    AFTER_MAX_MS,
    BEFORE_MAX_MS,
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
];

/// Whether there is a setting of this name.
pub fn is_known(name: &str) -> bool {
    NAMES.binary_search(&name).is_ok()
}

/// Bytes that names and values take together, of at most [`limits::SETTINGS_BYTES_MAX`].
pub fn bytes_of(settings: &Settings) -> usize {
    settings.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Checks how many there are and how much they take; whether their names are known is for who changes them to say, since later versions know others.
///
/// # Errors
/// More than [`limits::SETTINGS_MAX`], or than [`limits::SETTINGS_BYTES_MAX`] bytes.
pub fn check(settings: &Settings) -> Result<(), FormatError> {
    let within = |field, value: usize, limit: usize| {
        let over = FormatError::OverLimit { field, value: value as u64, limit: limit as u64 };
        if value > limit { Err(over) } else { Ok(()) }
    };
    within("settings", settings.len(), limits::SETTINGS_MAX)?;
    within("settings.bytes", bytes_of(settings), limits::SETTINGS_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_their_order_and_found() {
        assert!(NAMES.is_sorted());
        assert!(NAMES.len() <= limits::SETTINGS_MAX);
        assert!(NAMES.iter().all(|name| is_known(name)));
        assert!(!is_known("segment.byte") && !is_known(""));
    }

    #[test]
    fn too_many_and_too_large_ones_are_refused_with_the_limit() {
        let mut settings: Settings = (0..limits::SETTINGS_MAX).map(|at| (format!("s{at}"), String::new())).collect();
        assert_eq!(check(&settings), Ok(()));
        settings.insert("one.more".into(), String::new());
        assert_eq!(check(&settings), Err(FormatError::OverLimit { field: "settings", value: 65, limit: 64 }));
        let large = Settings::from([("name".into(), "v".repeat(limits::SETTINGS_BYTES_MAX - 4))]);
        assert_eq!(check(&large), Ok(()));
        let larger = Settings::from([("name".into(), "v".repeat(limits::SETTINGS_BYTES_MAX - 3))]);
        assert_eq!(check(&larger), Err(FormatError::OverLimit { field: "settings.bytes", value: 4097, limit: 4096 }));
    }
}
