//! A workload in words that every system understands. An adapter turns it into the flags of its own load generator, or says
//! why it cannot.

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Servers that one machine is asked for at most.
const NODES_MAX: u32 = 16;

/// What is done to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Producers only.
    #[default]
    Produce,
    /// Consumers only, that catch up with what was written before.
    Consume,
    /// Producers and consumers at once.
    Both,
    /// The server is started on an empty directory, and left alone for a second.
    Start,
    /// `fill_mib` are written, the server is killed with signal 9, and started again.
    Restart,
    /// A server is killed with signal 9 while producers send at `rate`. The only one is started again at once; of several the first is
    /// lost for the rest of the run, and the others take over.
    Outage,
}

impl Mode {
    /// Whether a load generator makes the load, as opposed to the server being started and stopped.
    pub fn is_load(self) -> bool {
        matches!(self, Mode::Produce | Mode::Consume | Mode::Both)
    }
}

/// What acknowledged records survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Safety {
    /// kill -9 of the server.
    #[default]
    Process,
    /// Loss of power: they are on disk before they are acknowledged.
    Power,
}

impl Safety {
    /// As settings name it.
    pub fn name(self) -> &'static str {
        match self {
            Safety::Process => "process",
            Safety::Power => "power",
        }
    }
}

/// A workload: the knobs of the papers. Sizes are in bytes. What a file leaves out is as in [`Workload::default`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// What is done.
    pub mode: Mode,
    /// Servers (brokers): more than one form a cluster.
    pub nodes: u32,
    /// Copies of every record, the one that is served included; no more than there are servers.
    pub copies: u32,
    /// Streams (topics).
    pub streams: u32,
    /// Streamlets (partitions) of each stream.
    pub streamlets: u32,
    /// Lanes of each streamlet, the papers' active groups.
    pub lanes: u32,
    /// A chunk (batch).
    pub chunk_bytes: u64,
    /// Divided among all partitions this gives the chunk size instead.
    pub chunks_bytes_in_all: Option<u64>,
    /// A request, which carries chunks of many streamlets; `None`: 1 MiB.
    pub request_bytes: Option<u64>,
    /// Chunks that make a request, which gives its size instead.
    pub request_chunks: Option<u64>,
    /// A record's value.
    pub record_bytes: u64,
    /// Producers, each a thread.
    pub producers: u32,
    /// Consumers, each a thread.
    pub consumers: u32,
    /// Both of them.
    pub clients: Option<u32>,
    /// How long a chunk that is not full waits, in milliseconds.
    pub linger_ms: f64,
    /// Unanswered requests of a producer.
    pub in_flight: u32,
    /// Records per second of all producers together, open loop; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// What acknowledged records survive.
    pub durability: Safety,
    /// Whether records carry checksums of their own, beside their chunk's.
    pub record_checksum: bool,
    /// Whether consumers verify checksums.
    pub verify_checksums: bool,
    /// Whether the server recognises retries.
    pub idempotent: bool,
    /// Whether consumers ask for data instead of having it pushed.
    pub long_poll: bool,
    /// Virtual logs of each node.
    pub virtual_logs: u32,
    /// Memory of each node's arena.
    pub arena_bytes: u64,
    /// What all partitions together keep while a run goes on: less than half of all arenas, or the disk is measured; more than consumers
    /// ever fall behind, or what they have not read is gone.
    pub kept_bytes: u64,
    /// The largest segment; `None`: the server's choice.
    pub segment_bytes: Option<u64>,
    /// Of `consume`: records that are there to be read.
    pub records: u64,
    /// Of `restart`: what is written before the server is killed, in MiB.
    pub fill_mib: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Workload {
            mode: Mode::Produce,
            nodes: 1,
            copies: 1,
            streams: 1,
            streamlets: 16,
            lanes: 1,
            chunk_bytes: 16 << 10,
            chunks_bytes_in_all: None,
            request_bytes: None,
            request_chunks: None,
            record_bytes: 100,
            producers: 1,
            consumers: 1,
            clients: None,
            linger_ms: 1.0,
            in_flight: 5,
            rate: None,
            durability: Safety::Process,
            record_checksum: false,
            verify_checksums: true,
            idempotent: true,
            long_poll: false,
            virtual_logs: 1,
            arena_bytes: 4 << 30,
            kept_bytes: 1536 << 20,
            segment_bytes: None,
            records: 5_000_000,
            fill_mib: 256,
        }
    }
}

impl Workload {
    /// From the table of a file. The error names the knob.
    pub fn from_table(table: &toml::Table) -> Result<Workload, BenchError> {
        let read: Result<Workload, _> = table.clone().try_into();
        let mut workload = read.map_err(|e| BenchError::setting("workload", e.to_string().trim().to_owned()))?;
        if !(1..=NODES_MAX).contains(&workload.nodes) || !(1..=workload.nodes).contains(&workload.copies) {
            let message = format!(
                "{} nodes with {} copies: 1 to {NODES_MAX} nodes, and no more copies than nodes",
                workload.nodes, workload.copies
            );
            return Err(BenchError::setting("nodes", message));
        }
        if let Some(clients) = workload.clients {
            (workload.producers, workload.consumers) = (clients, clients);
        }
        if let Some(bytes) = workload.chunks_bytes_in_all {
            workload.chunk_bytes = (bytes / workload.partitions()).max(256);
        }
        if let Some(chunks) = workload.request_chunks {
            workload.request_bytes = Some((workload.chunk_bytes * chunks).clamp(1 << 10, 16 << 20));
        }
        Ok(workload)
    }

    /// Partitions as other systems have them: append positions of all streams.
    pub fn partitions(&self) -> u64 {
        u64::from(self.streams) * u64::from(self.streamlets) * u64::from(self.lanes)
    }

    /// What each streamlet keeps, in bytes.
    pub fn kept_bytes_each(&self) -> u64 {
        (self.kept_bytes / (u64::from(self.streams) * u64::from(self.streamlets))).max(1 << 20)
    }

    /// A request, in bytes: never smaller than a chunk.
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes.unwrap_or(1 << 20).max(self.chunk_bytes)
    }

    /// Records that fit into a chunk, with `extra` bytes beside each value; at least one.
    pub fn records_per_chunk(&self, extra: u64) -> u64 {
        (self.chunk_bytes / (self.record_bytes + extra)).max(1)
    }

    /// As small as it can be and still be the same thing: for tests.
    pub fn tiny(self) -> Workload {
        Workload {
            streams: self.streams.min(8),
            streamlets: self.streamlets.min(8),
            lanes: self.lanes.min(4),
            producers: self.producers.min(2),
            consumers: self.consumers.min(2),
            rate: self.rate.map(|rate| rate.min(2000.0)),
            arena_bytes: 128 << 20,
            kept_bytes: 48 << 20,
            chunk_bytes: self.chunk_bytes.min(128 << 10),
            segment_bytes: Some(256 << 10),
            records: self.records.min(5000),
            fill_mib: self.fill_mib.min(2),
            // Backups allocate a file for each log of each node whole.
            virtual_logs: self.virtual_logs.min(4),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Workload, BenchError> {
        Workload::from_table(&text.parse().unwrap())
    }

    #[test]
    fn what_follows_from_other_knobs_is_worked_out() {
        let workload = of("streamlets = 64\nlanes = 16\nchunks_bytes_in_all = 1048576\nclients = 4").unwrap();
        assert_eq!((workload.partitions(), workload.chunk_bytes), (1024, 1024));
        assert_eq!((workload.producers, workload.consumers), (4, 4));
        assert_eq!(of("chunk_bytes = 4096\nrequest_chunks = 4").unwrap().request_bytes(), 16 << 10);
        assert_eq!(of("streamlets = 100000\nchunks_bytes_in_all = 1048576").unwrap().chunk_bytes, 256);
        assert_eq!(of("chunk_bytes = 4000").unwrap().records_per_chunk(0), 40);
    }

    #[test]
    fn copies_need_nodes() {
        assert_eq!(of("nodes = 3\ncopies = 3").unwrap().copies, 3);
        assert!(of("copies = 2").unwrap_err().to_string().contains("no more copies than nodes"));
        assert!(of("nodes = 0\ncopies = 0").is_err());
    }

    #[test]
    fn a_knob_that_is_not_there_is_named() {
        let error = of("stremlets = 4").unwrap_err().to_string();
        assert!(error.contains("stremlets") && error.contains("streamlets"), "{error}");
        assert!(of("mode = \"dance\"").unwrap_err().to_string().contains("restart"));
    }

    #[test]
    fn tiny_keeps_the_kind_and_shrinks_the_rest() {
        let big = of("mode = \"both\"\nstreamlets = 100000\nclients = 16\nrate = 1e6\nlong_poll = true").unwrap();
        let tiny = big.clone().tiny();
        assert_eq!((tiny.mode, tiny.long_poll), (Mode::Both, true));
        assert!(tiny.partitions() <= 256 && tiny.producers <= 2 && tiny.rate == Some(2000.0));
    }
}
