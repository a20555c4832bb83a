//! The numbers of `/metrics`, from one table: what is encoded and docs/metrics.md are made from it.
//!
//! Nothing is counted here. The parts of the node count for themselves; a scrape reads them once and writes them out, on
//! the HTTP thread.

use std::fmt::{self, Write};

use kera_backup::BackupStats;
use kera_broker::{AdaptiveStats, BOUNDS_US, BrokerCounts, HistogramCounts};
use kera_kafka::DoorStats;
use kera_log::LogStats;
use kera_log::compact::CompactionStats;
use kera_rpc::ServerStats;
use kera_vlog::VirtualLogStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// Streams and applications that get lines of their own; of more only the first.
pub const LABELLED_MAX: usize = 1000;

/// Everything that a scrape shows, read at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What the broker counts.
    pub broker: BrokerCounts,
    /// How long requests took.
    pub latencies: LatencyCounts,
    /// What the log counts and holds.
    pub log: LogStats,
    /// All virtual logs together.
    pub virtual_logs: VirtualLogStats,
    /// The node's part of a cluster; zeros if it is in none.
    pub cluster: ClusterNumbers,
    /// The store and its disks.
    pub storage: Storage,
    /// What compaction has done.
    pub compaction: CompactionStats,
    /// What its thread has taken of a processor, in microseconds.
    pub compaction_us: u64,
    /// What was read of the disks to see whether it is what was written.
    pub scrub: ScrubNumbers,
    /// The server of the native protocol.
    pub server: ServerStats,
    /// What the door for Kafka clients counts.
    pub kafka: DoorStats,
    /// Its server.
    pub kafka_server: ServerStats,
    /// For how long the node has been up, in milliseconds.
    pub uptime_ms: u64,
    /// The node's incarnation.
    pub epoch: u32,
    /// Whether the node is ready.
    pub ready: bool,
    /// Each stream.
    pub streams: Vec<StreamNumbers>,
    /// Each application.
    pub applications: Vec<ApplicationNumbers>,
}

/// What a node of a cluster counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterNumbers {
    /// Nodes of the cluster, lost ones included; 0: the node is alone.
    pub nodes: u64,
    /// Those that are lost or stopped.
    pub nodes_lost: u64,
    /// Whether this node knows who leads the coordinators.
    pub has_leader: bool,
    /// The level in force.
    pub level: u64,
    /// Streamlets that this node owns.
    pub owned_streamlets: u64,
    /// Streamlets of the whole cluster whose owner is lost.
    pub lost_streamlets: u64,
    /// Streams of the whole cluster that are to have another number of copies than they have.
    pub copy_changes: u64,
    /// Virtual logs that this node has on backups.
    pub logs: u64,
    /// Blocks of them that were acknowledged.
    pub blocks: u64,
    /// Bytes of the chunks in those.
    pub chunk_bytes: u64,
    /// Bytes of chunks that wait for their copies.
    pub pending_bytes: u64,
    /// For how long the oldest of them have waited, in milliseconds.
    pub lag_ms: u64,
    /// Times that a backup was replaced or added.
    pub views_changed: u64,
    /// Blocks that have fewer copies than they should.
    pub under_replicated_blocks: u64,
    /// How long ago the backup was asked which copies it has that was asked longest ago, in milliseconds.
    pub heard_age_ms: u64,
    /// Streamlets with virtual logs of their own.
    pub adaptive: AdaptiveStats,
    /// What this node's backup holds and does.
    pub backup: BackupStats,
    /// Logs of lost incarnations of which it has copies.
    pub lost_logs: u64,
    /// Bytes of the files of those.
    pub lost_log_bytes: u64,
    /// Bytes of lost brokers that are still to be rebuilt here, or are and have not their copies yet.
    pub rebuild_left_bytes: u64,
    /// Streamlets of lost brokers that this node is to open and has not opened.
    pub waiting_streamlets: u64,
    /// Moves that this node has begun as the leader, unasked, to even out the nodes.
    pub balance_moves: u64,
    /// Segments that a disk has lost and of which backups do not have all.
    pub mend_failures: u64,
    /// For how long the write that is under way has been, of the coordinators' log or at all disks of copies, in milliseconds.
    pub disk_wait_ms: u64,
}

/// What was read of the disks to see whether it is what was written, since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScrubNumbers {
    /// Bytes that were read.
    pub bytes: u64,
    /// Segments, and blocks of copies, that were not.
    pub damaged: u64,
    /// When the last round ended, milliseconds since 1970; 0: there was none.
    pub last_round_ms: i64,
}

/// How long requests took, by kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct LatencyCounts {
    /// Writes with durability `process`.
    pub write_process: HistogramCounts,
    /// Writes with durability `power`.
    pub write_power: HistogramCounts,
    /// Reads.
    pub read: HistogramCounts,
    /// Produce requests of Kafka clients.
    pub kafka_produce: HistogramCounts,
    /// Their fetches.
    pub kafka_fetch: HistogramCounts,
}

/// The store and its disks, all together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Storage {
    /// Closed segments that are not on disk yet, in bytes of memory.
    pub dirty_bytes: u64,
    /// Segments that are on disk and in memory, in bytes of memory.
    pub clean_bytes: u64,
    /// Segments that wait to be read from disk.
    pub loads_waiting: u64,
    /// Bytes of segments on disk.
    pub stored_bytes: u64,
    /// Container files.
    pub containers: u64,
    /// Bytes of segments written.
    pub written_bytes: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Bytes of segments read back.
    pub loaded_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Segments that were read and are not what was written.
    pub corrupt_segments: u64,
    /// Disks that are full or failed.
    pub disks_down: u64,
}

/// A stream.
#[derive(Debug, Clone, Default)]
pub struct StreamNumbers {
    /// Its name.
    pub name: String,
    /// Records ever appended that it knows of.
    pub records: u64,
    /// Bytes of chunks it keeps.
    pub bytes: u64,
}

/// An application.
#[derive(Debug, Clone, Default)]
pub struct ApplicationNumbers {
    /// Its name.
    pub name: String,
    /// Its stream.
    pub stream: String,
    /// Its consumers.
    pub members: u64,
    /// Records it has not committed.
    pub lag: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Sort {
    Counter,
    Gauge,
    Histogram,
}

/// One number.
struct Metric {
    name: &'static str,
    sort: Sort,
    unit: Option<&'static str>,
    help: &'static str,
    read: fn(&Snapshot) -> u64,
}

/// A number per stream or application.
struct Family<T: 'static> {
    name: &'static str,
    sort: Sort,
    unit: Option<&'static str>,
    help: &'static str,
    read: fn(&T) -> u64,
}

const fn counter(name: &'static str, help: &'static str, read: fn(&Snapshot) -> u64) -> Metric {
    Metric { name, sort: Sort::Counter, unit: None, help, read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&Snapshot) -> u64) -> Metric {
    Metric { name, sort: Sort::Gauge, unit: None, help, read }
}

const fn bytes(metric: Metric) -> Metric {
    Metric { unit: Some("bytes"), ..metric }
}

static METRICS: &[Metric] = &[
    gauge("node_ready", "1 if the node is ready for clients, as /readyz says.", |s| s.ready.into()),
    gauge("node_epoch", "The node's incarnation: one higher after every start.", |s| s.epoch.into()),
    gauge("node_uptime_seconds", "For how long the node has been up.", |s| s.uptime_ms / 1000),
    counter("write_requests", "Write requests answered.", |s| s.broker.write_requests),
    counter("chunks_appended", "Chunks appended.", |s| s.broker.chunks_appended),
    counter("records_appended", "Records appended.", |s| s.broker.records_appended),
    bytes(counter("appended", "Bytes of chunks appended.", |s| s.broker.bytes_appended)),
    counter("chunks_duplicate", "Chunks that a retry brought again; they were acknowledged and not appended.", |s| {
        s.broker.chunks_duplicate
    }),
    counter(
        "chunks_answered_early",
        "Chunks of streams with asynchronous replication that were acknowledged before their copies.",
        |s| s.broker.chunks_answered_early,
    ),
    counter("chunks_refused", "Chunks refused, whatever the reason.", |s| s.broker.chunks_refused),
    counter(
        "chunks_refused_no_room",
        "Chunks refused because the arena stayed full, or the disk behind, until their time was up.",
        |s| s.broker.chunks_no_room,
    ),
    counter("chunks_refused_checksum", "Chunks refused because their bytes were changed on the way.", |s| {
        s.broker.chunks_checksum
    }),
    counter(
        "chunks_refused_sequence",
        "Chunks refused because earlier ones were missing or their producer was fenced.",
        |s| s.broker.chunks_out_of_sequence,
    ),
    counter("chunks_refused_disk", "Chunks refused because the disk could not take them.", |s| s.broker.chunks_disk),
    counter(
        "writes_blocked",
        "Times that a producer was slowed down because the arena was full or the disk behind.",
        |s| s.broker.writes_blocked,
    ),
    counter("writes_timed_out", "Write requests that were not durable when their time was up.", |s| {
        s.broker.writes_timed_out
    }),
    counter("read_requests", "Read requests answered.", |s| s.broker.read_requests),
    counter("reads_waited", "Read requests that had to wait for data.", |s| s.broker.reads_waited),
    bytes(counter("read", "Bytes of chunks in answers to reads.", |s| s.broker.bytes_read)),
    counter("pushes", "Frames pushed to subscriptions.", |s| s.broker.pushes),
    bytes(counter("pushed", "Bytes of chunks pushed to subscriptions.", |s| s.broker.bytes_pushed)),
    counter("subscriptions_opened", "Subscriptions opened.", |s| s.broker.subscriptions_opened),
    counter("cursors_gone", "Reads of records that retention had already removed.", |s| s.broker.cursors_gone),
    counter("other_requests", "Requests of all other kinds answered.", |s| s.broker.other_requests),
    counter("requests_refused", "Requests answered with an error.", |s| s.broker.requests_refused),
    counter("members_joined", "Consumers that joined an application.", |s| s.broker.members_joined),
    counter("members_expired", "Consumers that were not heard of any more.", |s| s.broker.members_expired),
    counter("groups_leased", "Groups handed to consumers.", |s| s.broker.groups_leased),
    counter("releases_asked", "Groups that consumers were asked to give back, so that others get some.", |s| {
        s.broker.releases_asked
    }),
    counter("offsets_committed", "Offsets committed.", |s| s.broker.offsets_committed),
    counter("offsets_fenced", "Offsets refused because the group had gone to another consumer.", |s| {
        s.broker.offsets_fenced
    }),
    counter(
        "records_lost_to_retention",
        "Records that applications never saw because retention removed them first.",
        |s| s.broker.records_lost,
    ),
    bytes(gauge("arena", "The arena: all segment memory.", |s| s.log.arena.bytes)),
    bytes(gauge("arena_used", "Of the arena, blocks in use.", |s| s.log.arena.used_bytes)),
    bytes(gauge("arena_loaded", "Of the arena, blocks with segments loaded back from disk.", |s| {
        s.log.arena.loaded_bytes
    })),
    bytes(gauge("arena_resident", "Of the arena, what the machine really gives memory for.", |s| {
        s.log.arena.resident_bytes
    })),
    bytes(gauge("arena_spare", "Of the arena, free blocks that may have memory behind them.", |s| {
        s.log.arena.held_free_bytes
    })),
    bytes(counter("arena_given_back", "Free blocks of the arena whose memory was given back to the system.", |s| {
        s.log.arena.given_back_bytes
    })),
    counter("arena_full", "Appends that found the arena full.", |s| s.log.arena_full),
    gauge("streams", "Streams, those of the system included.", |s| s.log.streams),
    gauge("lanes", "Lanes that were ever written to.", |s| s.log.lanes),
    gauge("lane_producers", "Producers that lanes remember, counted in each lane that does.", |s| s.log.producers),
    bytes(gauge("lane_producers_memory", "Memory beside the arena that lanes take for that, about.", |s| {
        s.log.producer_bytes
    })),
    bytes(gauge(
        "lane_producers_memory_max",
        "Memory that they may take: a 16th of the arena, 32 MiB or about 2 KiB a lane, whichever is most; nearly there those that were silent longest are forgotten.",
        |s| s.log.producer_bytes_max,
    )),
    counter("lane_producers_forgotten", "Producers that lanes have forgotten to make room for others.", |s| {
        s.log.producers_forgotten
    }),
    counter("segments_opened", "Segments opened.", |s| s.log.segments_opened),
    counter("segments_closed", "Segments closed.", |s| s.log.segments_closed),
    counter("segments_evicted", "Segments taken out of memory; they are on disk.", |s| s.log.segments_evicted),
    counter("segments_loaded", "Segments loaded back into memory for readers.", |s| s.log.segments_loaded),
    counter("segments_dropped", "Segments removed by retention.", |s| s.log.segments_dropped),
    counter("vlog_blocks", "Blocks of virtual logs made durable: group commits.", |s| s.virtual_logs.blocks),
    counter("vlog_chunks", "Chunks made durable by virtual logs.", |s| s.virtual_logs.chunks),
    bytes(counter("vlog_written", "Bytes of blocks written by virtual logs, padding included.", |s| {
        s.virtual_logs.block_bytes
    })),
    bytes(counter("vlog_through", "Bytes of large segments that virtual logs wrote straight to containers.", |s| {
        s.virtual_logs.through_bytes
    })),
    counter("vlog_disk_microseconds", "Microseconds that virtual logs spent writing and syncing.", |s| {
        s.virtual_logs.disk_us
    }),
    gauge("vlog_disk_microseconds_max", "The longest write and sync of a virtual log.", |s| s.virtual_logs.disk_us_max),
    counter("vlog_failures", "Writes and syncs of virtual logs that failed.", |s| s.virtual_logs.failures),
    bytes(gauge("vlog_pending", "Bytes of chunks that are appended and not durable yet.", |s| {
        s.virtual_logs.pending_bytes
    })),
    bytes(gauge("vlog_files", "Bytes of the files of virtual logs.", |s| s.virtual_logs.file_bytes)),
    gauge("cluster_nodes", "Nodes of the cluster, lost ones included; 0: the node is alone.", |s| s.cluster.nodes),
    gauge("cluster_nodes_lost", "Nodes of the cluster that are lost or stopped, as this node knows.", |s| {
        s.cluster.nodes_lost
    }),
    gauge("cluster_has_leader", "1 if this node knows who leads the coordinators.", |s| {
        u64::from(s.cluster.has_leader)
    }),
    gauge("cluster_level", "The level that the cluster is at.", |s| s.cluster.level),
    gauge("cluster_owned_streamlets", "Streamlets that this node owns.", |s| s.cluster.owned_streamlets),
    gauge("cluster_lost_streamlets", "Streamlets of the cluster whose owner is lost and has no successor yet.", |s| {
        s.cluster.lost_streamlets
    }),
    gauge("cluster_copy_changes", "Streams whose number of copies is being changed, as far as this node knows.", |s| {
        s.cluster.copy_changes
    }),
    counter(
        "cluster_balance_moves",
        "Moves that this node has begun by itself, as the leader of the coordinators, to even out the nodes.",
        |s| s.cluster.balance_moves,
    ),
    gauge("copies_logs", "Virtual logs of this node that are on other nodes.", |s| s.cluster.logs),
    counter("copies_blocks", "Blocks that all backups of their view have stored.", |s| s.cluster.blocks),
    bytes(counter("copies_chunks", "Bytes of the chunks in those blocks.", |s| s.cluster.chunk_bytes)),
    bytes(gauge("copies_pending", "Bytes of chunks that wait for their copies.", |s| s.cluster.pending_bytes)),
    gauge("copies_lag_milliseconds", "For how long the oldest chunks that wait for their copies have waited.", |s| {
        s.cluster.lag_ms
    }),
    gauge(
        "copies_own_logs",
        "Streamlets that have a virtual log of their own because they filled a shared one.",
        |s| s.cluster.adaptive.own,
    ),
    counter("copies_own_logs_given", "Times that a streamlet got a virtual log of its own.", |s| {
        s.cluster.adaptive.out
    }),
    counter("copies_own_logs_left", "Times that a streamlet went back to a shared virtual log.", |s| {
        s.cluster.adaptive.back
    }),
    counter("copies_own_logs_refused", "Changes of virtual logs that were asked for and did not come.", |s| {
        s.cluster.adaptive.given_up
    }),
    counter("copies_views_changed", "Times that a backup was replaced or added.", |s| s.cluster.views_changed),
    gauge("copies_under_replicated_blocks", "Blocks that have fewer copies than they should.", |s| {
        s.cluster.under_replicated_blocks
    }),
    gauge(
        "copies_heard_age_milliseconds",
        "How long ago the backup was asked which copies it has that was asked longest ago: what its disks have lost since is in no number of this node.",
        |s| s.cluster.heard_age_ms,
    ),
    bytes(gauge(
        "rebuild_left",
        "Bytes of lost brokers that are still to be rebuilt here, or are and have not their copies yet.",
        |s| s.cluster.rebuild_left_bytes,
    )),
    gauge(
        "rebuild_waiting_streamlets",
        "Streamlets of lost brokers that this node is to open and has not opened yet.",
        |s| s.cluster.waiting_streamlets,
    ),
    gauge("backup_logs", "Virtual logs of other nodes of which this one has copies.", |s| s.cluster.backup.logs),
    bytes(gauge("backup_files", "Bytes of the files of copies.", |s| s.cluster.backup.file_bytes)),
    gauge(
        "backup_lost_logs",
        "Of the virtual logs of which this node has copies, those of nodes that were lost or started again since.",
        |s| s.cluster.lost_logs,
    ),
    bytes(gauge(
        "backup_lost_files",
        "Bytes of the files of those: they stay until nobody rebuilds from them and nothing is copied in them alone.",
        |s| s.cluster.lost_log_bytes,
    )),
    gauge(
        "disk_wait_milliseconds",
        "For how long the write that is under way has been, of the coordinators' log or at all disks of copies. At 10,000 the node falls silent.",
        |s| s.cluster.disk_wait_ms,
    ),
    bytes(counter("backup_written", "Bytes of copies written.", |s| s.cluster.backup.block_bytes)),
    bytes(gauge("backup_queued", "Bytes of copies that are not written yet.", |s| s.cluster.backup.queued_bytes)),
    counter("backup_failures", "Writes and syncs of copies that failed.", |s| s.cluster.backup.failures),
    bytes(gauge("store_dirty", "Memory of closed segments that are not on disk yet.", |s| s.storage.dirty_bytes)),
    bytes(gauge("store_clean", "Memory of segments that are also on disk and can be evicted at once.", |s| {
        s.storage.clean_bytes
    })),
    gauge("store_loads_waiting", "Segments that readers wait for to be read from disk.", |s| s.storage.loads_waiting),
    bytes(gauge("store_stored", "Bytes of segments on disk.", |s| s.storage.stored_bytes)),
    gauge("store_containers", "Container files on disk.", |s| s.storage.containers),
    bytes(counter("store_written", "Bytes of segments written to disk.", |s| s.storage.written_bytes)),
    counter("store_write_errors", "Writes of segments that failed.", |s| s.storage.write_errors),
    bytes(counter("store_loaded", "Bytes of segments read back from disk.", |s| s.storage.loaded_bytes)),
    counter("store_read_errors", "Reads of segments that failed.", |s| s.storage.read_errors),
    counter("store_corrupt_segments", "Segments that were read and are not what was written.", |s| {
        s.storage.corrupt_segments
    }),
    counter(
        "store_mended_segments",
        "Segments of those two kinds that were read from their copies, and written anew.",
        |s| s.log.segments_mended,
    ),
    counter(
        "store_mend_failures",
        "Segments of those two kinds of which no backup has copies, each time that somebody asked for them.",
        |s| s.cluster.mend_failures,
    ),
    bytes(counter("scrub_read", "Bytes on disks that were read to see whether they are what was written.", |s| {
        s.scrub.bytes
    })),
    counter(
        "scrub_damaged",
        "Segments, containers, and blocks of copies for other nodes that were found not to be.",
        |s| s.scrub.damaged,
    ),
    gauge(
        "scrub_last_round_seconds",
        "When all of it was read last, seconds since 1970; 0: not since the start.",
        |s| s.scrub.last_round_ms.max(0).cast_unsigned() / 1000,
    ),
    gauge("store_disks_down", "Disks that are full or failed.", |s| s.storage.disks_down),
    counter("compaction_passes", "Passes of compaction over a lane that came to their end.", |s| s.compaction.passes),
    counter("compaction_failures", "Passes of compaction that did not; the log says why.", |s| s.compaction.failures),
    gauge("compaction_failing_lanes", "Lanes that compaction leaves alone for a while, since a pass failed.", |s| {
        s.compaction.failing_lanes
    }),
    bytes(counter("compaction_read", "Bytes of segments that compaction has looked at.", |s| s.compaction.read_bytes)),
    counter("compaction_segments", "Segments that compaction has rewritten.", |s| s.compaction.segments),
    bytes(counter("compaction_rewritten", "Bytes of those segments, before.", |s| s.compaction.segment_bytes)),
    bytes(counter("compaction_removed", "Bytes that they have lost.", |s| s.compaction.removed_bytes)),
    counter("compaction_removed_records", "Records that they have lost.", |s| s.compaction.removed_records),
    bytes(gauge("compaction_backlog", "Bytes of compacted streams that no pass has looked at, and one could.", |s| {
        s.compaction.backlog_bytes
    })),
    gauge("compaction_last_pass_seconds", "When the last pass ended, seconds since 1970; 0: there was none.", |s| {
        (s.compaction.last_pass_ms / 1000).cast_unsigned()
    }),
    counter("compaction_cpu_microseconds", "Microseconds of a processor that compaction has taken.", |s| {
        s.compaction_us
    }),
    gauge("subscriptions", "Open subscriptions.", |s| s.broker.subscriptions),
    gauge("connections", "Open client connections.", |s| s.server.connections),
    counter("connections_accepted", "Connections accepted.", |s| s.server.accepted),
    counter("connections_refused", "Connections refused because there were too many.", |s| s.server.refused),
    counter("connections_rejected", "Connections closed for what they sent, or did not send in time.", |s| {
        s.server.rejected
    }),
    counter("frames_received", "Frames received.", |s| s.server.frames_in),
    bytes(counter("network_received", "Bytes received from clients.", |s| s.server.bytes_in)),
    bytes(counter("network_sent", "Bytes sent to clients.", |s| s.server.bytes_out)),
    bytes(gauge("network_receiving", "Bytes of frames that are being received or handled.", |s| {
        s.server.inflight_bytes
    })),
    gauge("kafka_connections", "Open connections of Kafka clients.", |s| s.kafka_server.connections),
    counter("kafka_connections_accepted", "Connections of Kafka clients accepted.", |s| s.kafka_server.accepted),
    counter("kafka_connections_refused", "Connections of Kafka clients refused because there were too many.", |s| {
        s.kafka_server.refused
    }),
    counter("kafka_connections_rejected", "Connections of Kafka clients closed for what they sent.", |s| {
        s.kafka_server.rejected
    }),
    bytes(counter("kafka_received", "Bytes received from Kafka clients.", |s| s.kafka_server.bytes_in)),
    bytes(counter("kafka_sent", "Bytes sent to Kafka clients.", |s| s.kafka_server.bytes_out)),
    counter("kafka_batches_refused", "Batches of Kafka producers refused, whatever the reason.", |s| {
        s.kafka.batches_refused
    }),
    counter("kafka_fetch_errors", "Partitions in answers to fetches of Kafka clients that have an error.", |s| {
        s.kafka.fetch_errors
    }),
    gauge("kafka_groups", "Consumer groups of Kafka clients.", |s| s.kafka.groups),
    gauge("kafka_fetch_sessions", "Fetch sessions of Kafka clients.", |s| s.kafka.fetch_sessions),
    gauge("kafka_fetch_session_partitions", "Partitions in the fetch sessions of Kafka clients.", |s| {
        s.kafka.fetch_session_partitions
    }),
];

/// A distribution of times, with one line of buckets for each kind.
struct Timing {
    name: &'static str,
    help: &'static str,
    label: Option<&'static str>,
    kinds: fn(&LatencyCounts) -> Vec<(&'static str, HistogramCounts)>,
}

static TIMINGS: &[Timing] = &[
    Timing {
        name: "write",
        help: "How long writes took, from a whole request to its acknowledgement.",
        label: Some("durability"),
        kinds: |l| vec![("process", l.write_process), ("power", l.write_power)],
    },
    Timing {
        name: "read",
        help: "How long reads took, from a whole request to its answer; the wait for data is in it.",
        label: None,
        kinds: |l| vec![("", l.read)],
    },
    Timing {
        name: "kafka_request",
        help: "How long requests of Kafka clients took to their answer; a fetch's wait for data is in it.",
        label: Some("request"),
        kinds: |l| vec![("Produce", l.kafka_produce), ("Fetch", l.kafka_fetch)],
    },
];

static KAFKA_METRICS: &[Family<(String, u64)>] = &[Family {
    name: "kafka_requests",
    sort: Sort::Counter,
    unit: None,
    help: "Requests of Kafka clients, by Kafka's name of their kind.",
    read: |(_, requests)| *requests,
}];

static STREAM_METRICS: &[Family<StreamNumbers>] = &[
    Family {
        name: "stream_records",
        sort: Sort::Gauge,
        unit: None,
        help: "Records ever appended to the stream, as far as it still knows.",
        read: |s| s.records,
    },
    Family {
        name: "stream",
        sort: Sort::Gauge,
        unit: Some("bytes"),
        help: "Bytes of chunks that the stream keeps.",
        read: |s| s.bytes,
    },
];

static APPLICATION_METRICS: &[Family<ApplicationNumbers>] = &[
    Family {
        name: "application_members",
        sort: Sort::Gauge,
        unit: None,
        help: "Consumers of the application.",
        read: |a| a.members,
    },
    Family {
        name: "application_lag_records",
        sort: Sort::Gauge,
        unit: None,
        help: "Records that the application has not committed yet.",
        read: |a| a.lag,
    },
];

/// The numbers of a node.
pub struct Metrics {
    snapshot: Box<dyn Fn() -> Snapshot + Send + Sync>,
}

impl Metrics {
    /// Numbers that `snapshot` reads at every scrape.
    pub fn new(snapshot: impl Fn() -> Snapshot + Send + Sync + 'static) -> Metrics {
        Metrics { snapshot: Box::new(snapshot) }
    }

    /// All numbers in the OpenMetrics text format.
    ///
    /// # Errors
    /// Text cannot be written; that is a defect.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("kera");
        registry.register_collector(Box::new(Source((self.snapshot)())));
        let mut text = String::with_capacity(16 << 10);
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// One snapshot, as the registry takes it.
#[derive(Debug)]
struct Source(Snapshot);

impl Sort {
    fn metric_type(self) -> MetricType {
        match self {
            Sort::Counter => MetricType::Counter,
            Sort::Gauge => MetricType::Gauge,
            Sort::Histogram => MetricType::Histogram,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Counter => "counter",
            Sort::Gauge => "gauge",
            Sort::Histogram => "histogram",
        }
    }
}

/// The unit as the registry wants it. Units end a name, so they stand in the table.
fn unit(name: Option<&'static str>) -> Option<Unit> {
    name.map(|name| Unit::Other(name.into()))
}

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = &self.0;
        for metric in METRICS {
            let unit = unit(metric.unit);
            let value = (metric.read)(snapshot);
            let into = encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), metric.sort.metric_type())?;
            match metric.sort {
                Sort::Counter => ConstCounter::new(value).encode(into)?,
                Sort::Gauge | Sort::Histogram => ConstGauge::new(value).encode(into)?,
            }
        }
        timings(&mut encoder, &snapshot.latencies)?;
        families(&mut encoder, KAFKA_METRICS, &snapshot.kafka.requests, |(name, _)| vec![("request", name.clone())])?;
        families(&mut encoder, STREAM_METRICS, &snapshot.streams, |s| vec![("stream", s.name.clone())])?;
        families(&mut encoder, APPLICATION_METRICS, &snapshot.applications, |a| {
            vec![("stream", a.stream.clone()), ("application", a.name.clone())]
        })
    }
}

fn timings(encoder: &mut DescriptorEncoder<'_>, latencies: &LatencyCounts) -> fmt::Result {
    for timing in TIMINGS {
        let unit = Some(Unit::Seconds);
        let mut into = encoder.encode_descriptor(timing.name, timing.help, unit.as_ref(), MetricType::Histogram)?;
        for (kind, counts) in (timing.kinds)(latencies) {
            let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.buckets).collect();
            let (sum, count) = (counts.sum_us as f64 / 1e6, counts.buckets.iter().sum());
            match timing.label {
                Some(label) => {
                    let labels = [(label, kind)];
                    into.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
                None => into.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
            }
        }
    }
    Ok(())
}

fn families<T>(
    encoder: &mut DescriptorEncoder<'_>,
    families: &[Family<T>],
    all: &[T],
    labels: fn(&T) -> Vec<(&'static str, String)>,
) -> fmt::Result {
    for family in families.iter().filter(|_| !all.is_empty()) {
        let unit = unit(family.unit);
        let mut into = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), family.sort.metric_type())?;
        for one in all.iter().take(LABELLED_MAX) {
            let labels = labels(one);
            let (value, into) = ((family.read)(one), into.encode_family(&labels)?);
            match family.sort {
                Sort::Counter => ConstCounter::new(value).encode(into)?,
                Sort::Gauge | Sort::Histogram => ConstGauge::new(value).encode(into)?,
            }
        }
    }
    Ok(())
}

/// The page of all metrics, in Markdown. A test compares it with `docs/metrics.md`.
pub fn page_text() -> String {
    let mut page = String::from(HEAD);
    let mut line = |name: &str, unit: Option<&str>, sort: Sort, labels: &str, help: &str| {
        let unit = unit.map_or(String::new(), |unit| format!("_{unit}"));
        let total = if sort == Sort::Counter { "_total" } else { "" };
        let _ = writeln!(page, "| `kera_{name}{unit}{total}`{labels} | {} | {help} |", sort.name());
    };
    for m in METRICS {
        line(m.name, m.unit, m.sort, "", m.help);
    }
    for timing in TIMINGS {
        let label = timing.label.map_or(String::new(), |label| format!(" `{{{label}}}`"));
        line(timing.name, Some("seconds"), Sort::Histogram, &label, timing.help);
    }
    for m in KAFKA_METRICS {
        line(m.name, m.unit, m.sort, " `{request}`", m.help);
    }
    for m in STREAM_METRICS {
        line(m.name, m.unit, m.sort, " `{stream}`", m.help);
    }
    for m in APPLICATION_METRICS {
        line(m.name, m.unit, m.sort, " `{stream, application}`", m.help);
    }
    page
}

const HEAD: &str = "\
# Metrics

<!-- Generated from the table in crates/server/src/metrics.rs; KERA_UPDATE_DOCS=1 cargo test -p kera-server writes it. -->

`GET /metrics` on the HTTP address (default `127.0.0.1:7071`) answers in the OpenMetrics text format, which Prometheus
reads. Counters start at zero with every start of the node. Of streams and applications the first 1000 have lines of
their own.

Worth an alert: `kera_node_ready` is 0, `kera_application_lag_records` grows, `kera_writes_blocked_total` grows (the arena
is too small, or disks are too slow), `kera_store_disks_down` is not 0, any of the `_errors`, `_failures` and `corrupt`
counters grows.

In a cluster also: `kera_cluster_nodes_lost` is not 0 for longer than a restart takes, `kera_cluster_has_leader` is 0, `kera_cluster_lost_streamlets` or
`kera_rebuild_waiting_streamlets` is not 0 for a minute, `kera_copies_under_replicated_blocks` is not 0 and does not fall, `kera_copies_lag_milliseconds` is above
1000, `kera_cluster_owned_streamlets` is far from that of other nodes. [Operations](operations.md#alerts) says what each of them means and what to do.

| name | type | meaning |
| --- | --- | --- |
";

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Snapshot {
        let mut snapshot = Snapshot { ready: true, epoch: 3, ..Snapshot::default() };
        snapshot.broker.records_appended = 17;
        snapshot.latencies.write_power.buckets[2] = 4;
        snapshot.latencies.write_power.buckets[12] = 1;
        snapshot.latencies.write_power.sum_us = 1_500_000;
        snapshot.streams.push(StreamNumbers { name: "flights".into(), records: 5, bytes: 6 });
        snapshot.kafka.requests = vec![("Produce".into(), 9), ("Fetch".into(), 0)];
        let (name, stream) = ("a".into(), "flights".into());
        snapshot.applications.push(ApplicationNumbers { name, stream, members: 1, lag: 2 });
        snapshot
    }

    #[test]
    fn the_page_of_metrics_is_up_to_date() {
        crate::docs::compare("docs/metrics.md", &page_text());
    }

    #[test]
    fn every_documented_metric_is_scraped_and_every_scraped_one_documented() {
        let text = Metrics::new(sample).text().unwrap();
        let mut scraped: Vec<&str> = (text.lines().filter(|line| !line.starts_with('#')))
            .map(|line| line.split(['{', ' ']).next().unwrap_or_default())
            .map(|name| ["_sum", "_count", "_bucket"].iter().fold(name, |n, end| n.strip_suffix(end).unwrap_or(n)))
            .collect();
        scraped.dedup();
        let page = page_text();
        let documented: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
        assert_eq!(scraped, documented);
    }

    #[test]
    fn values_and_labels_are_written() {
        let text = Metrics::new(sample).text().unwrap();
        for line in [
            "kera_records_appended_total 17",
            "kera_node_epoch 3",
            "kera_kafka_requests_total{request=\"Produce\"} 9",
            "kera_stream_bytes{stream=\"flights\"} 6",
            "kera_application_lag_records{stream=\"flights\",application=\"a\"} 2",
            "# UNIT kera_arena_bytes bytes",
            "kera_write_seconds_bucket{le=\"0.00025\",durability=\"power\"} 0",
            "kera_write_seconds_bucket{le=\"0.0005\",durability=\"power\"} 4",
            "kera_write_seconds_bucket{le=\"10.0\",durability=\"power\"} 4",
            "kera_write_seconds_bucket{le=\"+Inf\",durability=\"power\"} 5",
            "kera_write_seconds_count{durability=\"power\"} 5",
            "kera_write_seconds_sum{durability=\"power\"} 1.5",
            "kera_read_seconds_count 0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn names_are_unique_and_help_is_a_sentence() {
        let mut names: Vec<&str> = METRICS.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        assert!(METRICS.iter().all(|m| m.help.ends_with('.') && m.help.len() > 10));
    }
}
