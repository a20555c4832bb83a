//! What DescribeConfigs says that settings are for, to who asks for documentation (`include_documentation`).
//!
//! Consoles show it beside the value. It says what a setting does here; where that is nothing, it says so.

/// Settings, and what they are for.
const WORDS: &[(&[&str], &str)] = &[
    (&["advertised.listeners"], "Where clients reach this node."),
    (&["auto.create.topics.enable"], "Whether a topic that a client names is made when it is not there."),
    (
        &["cleanup.policy"],
        "What goes when it is old: whole segments beyond retention.ms or retention.bytes (delete), all but the \
             last record of each key (compact), or both. With an empty list everything is kept.",
    ),
    (
        &["compression.gzip.level", "compression.lz4.level", "compression.zstd.level"],
        "Kept and described, without effect: batches are compressed at the level that the codec has by default.",
    ),
    (
        &["compression.type"],
        "What batches are kept with. With `producer` they stay as they come; with anything else a batch that \
             comes otherwise is opened and compressed anew.",
    ),
    (&["default.replication.factor"], "How many copies a topic has that is made without a replication factor."),
    (
        &["delete.retention.ms"],
        "For how many milliseconds compaction leaves a record without a value, after what it deletes has gone.",
    ),
    (&["file.delete.delay.ms"], "Kept and described, without effect: what is deleted gives its space back at once."),
    (
        &["flush.messages"],
        "Kept and described, without effect. Whether a record is on the disk before it is acknowledged is said by \
             kera.durability.",
    ),
    (&["flush.ms"], "Kept and described, without effect: see kera.durability."),
    (
        &["follower.replication.throttled.replicas", "leader.replication.throttled.replicas"],
        "Kept and described, without effect: copies are not throttled by replica.",
    ),
    (&["index.interval.bytes", "segment.index.bytes"], "Kept and described, without effect: there are no index files."),
    (
        &["kera.durability"],
        "What an acknowledged record survives: a kill of processes (`process`), or also a loss of power (`power`), \
             for which it is synced to the disk before it is acknowledged.",
    ),
    (
        &["kera.replication.mode"],
        "Whether producers wait for copies (`sync`). With `async` they do not if they ask for acks=1, and may lose \
             what was acknowledged last when the leader is lost.",
    ),
    (&["local.retention.bytes", "local.retention.ms"], "Can only be -2: there are no tiers of storage."),
    (&["max.compaction.lag.ms"], "After how many milliseconds a record is compacted at the latest."),
    (
        &["max.message.bytes"],
        "The most bytes of a batch, as it comes: a larger one is refused. Segments are made large enough for it.",
    ),
    (
        &["message.timestamp.after.max.ms"],
        "How many milliseconds the time of a record may be ahead of the node's clock, with CreateTime.",
    ),
    (
        &["message.timestamp.before.max.ms"],
        "How many milliseconds the time of a record may be behind the node's clock, with CreateTime.",
    ),
    (
        &["message.timestamp.type"],
        "The time that records have: their producer's (CreateTime) or that of their append (LogAppendTime).",
    ),
    (&["min.cleanable.dirty.ratio"], "How much of a partition must be new before it is compacted, from 0 to 1."),
    (&["min.compaction.lag.ms"], "For how many milliseconds from its append on a record is left as it is."),
    (
        &["min.insync.replicas"],
        "With how many copies a write is acknowledged: always with the majority of those that the topic has. Less \
             may be asked for, more is refused.",
    ),
    (&["num.partitions"], "How many partitions a topic has that is made without a number."),
    (&["preallocate"], "Kept and described, without effect."),
    (
        &["remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable"],
        "Can only be false: there are no tiers of storage.",
    ),
    (&["retention.bytes"], "The most bytes that a partition keeps, in whole segments; -1 for no limit."),
    (&["retention.ms"], "For how many milliseconds records are kept, in whole segments; -1 for no limit."),
    (&["segment.bytes"], "Kept and described, without effect: the size of segments follows from max.message.bytes."),
    (&["segment.jitter.ms"], "Kept and described, without effect."),
    (
        &["segment.ms"],
        "After how many milliseconds a segment takes no more records, so that compaction and retention come to it.",
    ),
    (
        &["unclean.leader.election.enable"],
        "Kept and described, without effect: only who has all that was acknowledged leads a partition.",
    ),
];

/// What a setting of topics or of the node is for; empty for one that is not described.
pub(crate) fn documentation(name: &str) -> &'static str {
    WORDS.iter().find(|(names, _)| names.contains(&name)).map_or("", |(_, words)| words)
}
