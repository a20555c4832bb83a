//! The configuration of a node: one table says everything about each setting, and flags, environment, file, checks
//! and the page of settings all come from it. Read once at start; afterwards plain values that nobody changes.
//!
//! A setting is a line in [`settings!`](self) below: its type, its kind with limits, its default as one would write
//! it, its flag, and its documentation. Flag `--arena-bytes` is also `KERA_ARENA_BYTES` and, in the file, the key
//! under its section.

mod kind;
mod load;
mod page;

pub use kind::{Field, Kind, Range, Value, Written};
pub use load::{Loaded, Mistake, Mistakes, Origin, Sources, load};
pub use page::{file_text, page_text};

use std::net::SocketAddr;
use std::path::PathBuf;

use kind::{range, range_or};

use crate::units::{DAY_MS, GIB, HOUR_MS, KIB, MIB, SECOND_MS, TIB, exact_bytes};

/// What a node may do in its cluster.
const ROLES: [&str; 3] = ["coordinator", "broker", "backup"];

/// One setting: all there is to know about it.
pub struct Setting {
    /// The section in the file.
    pub section: &'static str,
    /// The key in its section.
    pub key: &'static str,
    /// The flag of `kera serve`, without dashes.
    pub flag: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// The default, as one would write it.
    pub default: &'static str,
    /// What it does, in Markdown; lines as in the source.
    pub doc: &'static str,
    get: fn(&Config) -> Value,
    set: fn(&mut Config, Value),
}

impl Setting {
    /// `section.key`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }

    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("KERA_{}", self.flag.to_ascii_uppercase().replace('-', "_"))
    }

    /// Its value in a configuration, as one would write it.
    pub fn shown(&self, config: &Config) -> String {
        self.kind.write(&(self.get)(config))
    }

    /// Its documentation as one line.
    pub fn doc_line(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// What one file of each virtual log takes together when nobody says how large they are, as far as the next two allow it.
const VIRTUAL_LOGS_BYTES: u64 = 256 * MIB;
/// So many of the largest usual blocks, of 4 MiB, that a file does not end all the time.
const VIRTUAL_LOG_FILE_MIN: u64 = 32 * MIB;
const VIRTUAL_LOG_FILE_MAX: u64 = 128 * MIB;

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident: $type:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $field:ty = $kind:expr, $default:literal, $flag:literal;
            )+
        }
    )+) => {
        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $type {
                $($(#[doc = $doc])+ pub $key: $field,)+
            }
        )+

        /// A whole configuration, checked value by value. [`Default`] is what a node runs with when nothing is set.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config {
            $($(#[doc = $section_doc])+ pub $section: $type,)+
            /// Whether nobody has said where Kafka clients connect: if that port is taken, the node does without.
            pub kafka_by_default: bool,
        }

        impl Default for Config {
            fn default() -> Config {
                let read = |kind: Kind, text: &str| {
                    kind.read(&Written::Text(text.into())).expect("defaults are allowed values, as a test checks")
                };
                Config {
                    $($section: $type { $($key: Field::from_value(read($kind, $default)),)+ },)+
                    kafka_by_default: false,
                }
            }
        }

        /// Every setting, in the order of the page.
        pub static SETTINGS: &[Setting] = &[
            $($(Setting {
                section: stringify!($section),
                key: stringify!($key),
                flag: $flag,
                kind: $kind,
                default: $default,
                doc: concat!($($doc, "\n"),+),
                get: |config| Field::to_value(&config.$section.$key),
                set: |config, value| config.$section.$key = Field::from_value(value),
            },)+)+
        ];

        /// Every section with what it is about.
        pub static SECTIONS: &[(&str, &str)] = &[$((stringify!($section), concat!($($section_doc, "\n"),+)),)+];
    };
}

settings! {
    /// Where the node keeps its data, and how many threads serve clients.
    node: NodeSettings {
        /// The directory of the node: identity, catalog, virtual logs, containers. One process at a time uses it.
        data: PathBuf = Kind::Path, "./kera-data", "data";
        /// More directories, one per extra disk, for containers of closed segments. They are filled evenly with the
        /// data directory. They must exist: one that does not is taken for a disk that is not mounted, and refused.
        disks: Vec<PathBuf> = Kind::Paths, "", "disks";
        /// Threads that serve client connections; `auto` is one per core.
        io_threads: Option<u64> = Kind::Count(range_or("auto", 1, 1024)), "auto", "io-threads";
        /// How long a graceful stop waits for requests under way, and then again for data on its way to disk.
        stop_timeout: u64 = Kind::Duration(range(0, HOUR_MS)), "30s", "stop-timeout";
    }

    /// The native protocol: where clients connect, and what one of them can take.
    network: NetworkSettings {
        /// Where clients connect. Other machines can only reach it when it is not a loopback address. In a cluster its port is not 0: others are told of it.
        listen: String = Kind::Address, "127.0.0.1:7070", "listen";
        /// The address that clients and other nodes of a cluster are told to connect to, where it is not the one that is listened on; `none` is that one.
        advertised: Option<String> = Kind::OptionalToldAddress, "none", "advertised";
        /// Connections at a time, by each of the doors: of native clients, of Kafka clients, and of other nodes; more are refused with an error that says so. Each is a
        /// file of the process, of which it keeps a quarter for itself, 512 at least: where it may open few (`ulimit -n`) clients have fewer connections, by
        /// both doors together, and the start says how many.
        connections_max: u64 = Kind::Count(range(1, 1_000_000)), "10000", "connections-max";
        /// The largest frame a client may send, and so the most chunks of one request.
        frame_bytes_max: u64 = Kind::Bytes(range(64 * KIB, 256 * MIB)), "32MiB", "frame-bytes-max";
        /// Bytes of requests that all connections together may be sending or waiting for. Whoever needs more waits, and meanwhile
        /// each request that has begun must come within the stall timeout and a second for each 64 KiB. As many bytes of
        /// answers may wait for all clients together, or what one connection can have if that is more; beyond that each gets one at a time.
        receive_bytes_max: u64 = Kind::Bytes(range(MIB, TIB)), "256MiB", "receive-bytes-max";
        /// Bytes of answers that may wait on one connection before nothing more is read from it.
        unsent_bytes_max: u64 = Kind::Bytes(range(64 * KIB, GIB)), "8MiB", "unsent-bytes-max";
        /// A connection that takes none of the bytes that wait for it for so long is closed, and one that has begun a request
        /// and sends no more of it.
        stall_timeout: u64 = Kind::Duration(range(SECOND_MS, DAY_MS)), "60s", "stall-timeout";
        /// A connection that is silent for so long is closed. `none`: one of a Kafka client is closed after 10 minutes, as a Kafka broker does, for its clients expect
        /// it and come back, and one of another client never. Who wants more for Kafka clients says how much.
        idle_timeout: Option<u64> = Kind::Duration(range_or("none", SECOND_MS, 30 * DAY_MS)), "none", "idle-timeout";
    }

    /// The cluster, if the node is part of one: it is, if it has a number.
    cluster: ClusterSettings {
        /// The node's number in its cluster, which it keeps for ever; `none`: the node is alone. The first node of a cluster
        /// is one that is given a number and nobody to join; it brings its streams along.
        node: Option<u64> = Kind::Count(range_or("none", 1, 1_000_000)), "none", "node";
        /// Where other nodes reach this one; the address is told to them as it is written here, unless another one is advertised. Not for clients: whoever
        /// reaches it may command the cluster.
        listen: String = Kind::ToldAddress, "127.0.0.1:7072", "cluster-listen";
        /// The address that other nodes are told to connect to, where it is not the one that is listened on; `none` is that one.
        advertised: Option<String> = Kind::OptionalToldAddress, "none", "cluster-advertised";
        /// The cluster's address of any node of the cluster to join. A node that is in one asks there while it knows of no leader, and only a node of
        /// its own cluster. The first node is given it when there is another one: without it a start on an empty data directory founds another cluster.
        join: Option<String> = Kind::OptionalToldAddress, "none", "join";
        /// What the node does, separated by commas: `coordinator` keeps the catalog and votes if it is one of the first one,
        /// three or five; `broker` serves streams; `backup` keeps copies.
        roles: String = Kind::Words(&ROLES), "coordinator,broker,backup", "roles";
        /// The rack that the node stands in: copies are kept on different ones. `none`: not told.
        rack: String = Kind::Text, "none", "rack";
        /// Producers of a stream with asynchronous replication wait for copies when so many bytes of their virtual log have none yet:
        /// so much at most is lost with this node.
        lag_bytes_max: u64 = Kind::Bytes(range(0, TIB)), "64MiB", "copies-lag-bytes-max";
        /// The same when the oldest of them have had none for so long.
        lag_max: u64 = Kind::Duration(range(0, HOUR_MS)), "1s", "copies-lag-max";
        /// Virtual logs for single streamlets (adaptive replication): a streamlet that fills a log that it shares with others nearly alone gets one
        /// of its own by itself, and goes back when it is quiet. So many at most at a time; 0: none. Each costs a thread, and space for
        /// a file at each of its backups. Not for compacted streams, nor for those that have virtual logs of their own.
        own_logs_max: u64 = Kind::Count(range(0, 16)), "0", "own-logs-max";
        /// Bytes per second from which a streamlet is worth a virtual log of its own. It goes back below a quarter of that.
        own_logs_rate: u64 = Kind::Bytes(range(1, TIB)), "8MiB", "own-logs-rate";
        /// How often it is looked at what came into virtual logs. A streamlet gets one of its own when it filled the shared one six times in a row,
        /// goes back when it was quiet 24 times in a row, and changes once in 60 times at most; a node changes one in six times.
        own_logs_interval: u64 = Kind::Duration(range(10, HOUR_MS)), "5s", "own-logs-interval";
        /// Whether the nodes of the cluster are evened out without anybody asking for it: a node that was added or is back gets its share of streamlets, and what
        /// takes most is spread, a few moves at a time. It is done by the node that leads the coordinators, as that one is told here; not of streams of
        /// which what was written before would stay at the node before for ever: compacted ones, those with one copy, and those without any retention limit.
        balance: bool = Kind::Switch, "true", "balance";
        /// For how long no node has to be lost, rebuilt or emptied before that, and nodes have to be the same. Longer for a node that was lost several times in half an hour: twice
        /// as long for each time after the first, sixteen times at most.
        balance_after: u64 = Kind::Duration(range(100, DAY_MS)), "60s", "balance-after";
        /// The highest level that this node lets its cluster be raised to; `newest` is the highest that it speaks. Levels rise by
        /// themselves when all nodes speak the next one, and never fall: hold them back for as long as a return to the version
        /// before must be possible. A level that is in force already is not undone by this.
        level_max: Option<u64> = Kind::Count(range_or("newest", 1, 1_000_000)), "newest", "cluster-level-max";
    }

    /// Health, metrics and the admin API.
    http: HttpSettings {
        /// Where the HTTP server listens; `none` turns it off.
        listen: Option<String> = Kind::OptionalAddress, "127.0.0.1:7071", "http-listen";
    }

    /// The Kafka door: where Kafka clients connect. Connections, frames and timeouts are bounded as those of `[network]`.
    kafka: KafkaSettings {
        /// Where Kafka clients connect; `none` turns it off. If nobody sets it and the port is taken, a node that is in no cluster
        /// says so and does without. In a cluster say where: if nobody does, and native clients reach the node from other machines, those of Kafka are told
        /// of it by no other node. Its port is not 0 there.
        listen: Option<String> = Kind::OptionalAddress, "127.0.0.1:9092", "kafka-listen";
        /// The address that Kafka clients are told to connect to, where it is not the one that is listened on; `none` is
        /// that one. They connect to what they are told: a node that listens on all addresses of its machine, as `0.0.0.0`, needs one.
        advertised: Option<String> = Kind::OptionalToldAddress, "none", "kafka-advertised";
        /// Whether a topic that a client names is made when it is not there.
        auto_create: bool = Kind::Switch, "true", "kafka-auto-create";
        /// Partitions of a topic that is made without saying how many.
        partitions: u64 = Kind::Count(range(1, 131_072)), "1", "kafka-partitions";
        /// Copies of a topic that is made without saying how many, by itself or with the replication factor -1, as Kafka Streams makes its own. `auto` is 3 in a
        /// cluster of three nodes or more, and 1 otherwise.
        replication: Option<u64> = Kind::Count(range_or("auto", 1, 16)), "auto", "kafka-replication";
    }

    /// The arena: the shared memory that every append goes to first.
    arena: ArenaSettings {
        /// Its size, taken from the machine as it is used. `auto` is the least of 2 GiB, a quarter of the memory and
        /// half of what is free where the arena lies.
        bytes: Option<u64> = Kind::Bytes(range_or("auto", 16 * MIB, kera_log::ARENA_BYTES_MAX)), "auto", "arena-bytes";
        /// Where its file lies: a file system in memory, so that a killed process leaves it behind for the next.
        /// `auto` is `/dev/shm`, or the data directory where that is missing.
        dir: Option<PathBuf> = Kind::OptionalPath { word: "auto" }, "auto", "arena-dir";
    }

    /// Writing: what a producer may have under way, and how long it may wait.
    writes: WriteSettings {
        /// Unanswered write requests of one connection; the next one waits in its buffer.
        in_flight_requests_max: u64 = Kind::Count(range(1, 65_536)), "256", "in-flight-requests-max";
        /// Bytes of unanswered write requests of one connection; one request is always let through.
        in_flight_bytes_max: u64 = Kind::Bytes(range(MIB, 4 * GIB)), "64MiB", "in-flight-bytes-max";
        /// How long a write waits for room in the arena or for the disk when its request does not say.
        timeout: u64 = Kind::Duration(range(10, HOUR_MS)), "30s", "write-timeout";
        /// Open segments without a write for so long are closed and go to disk, so that quiet lanes take little memory.
        /// When nobody has written to the node or read from it for so long, segments that are on disk leave the arena,
        /// which gives its memory back.
        idle_close: u64 = Kind::Duration(range(SECOND_MS, DAY_MS)), "30s", "idle-close";
    }

    /// Reading: what a consumer may have under way.
    reads: ReadSettings {
        /// Bytes of data in one answer; a first chunk that is larger comes all the same.
        answer_bytes_max: u64 = Kind::Bytes(range(4 * KIB, 128 * MIB)), "8MiB", "answer-bytes-max";
        /// Bytes of data in one push of a subscription.
        push_bytes_max: u64 = Kind::Bytes(range(4 * KIB, 128 * MIB)), "1MiB", "push-bytes-max";
        /// Reads of one connection that wait at a time.
        waiting_max: u64 = Kind::Count(range(1, 65_536)), "64", "waiting-reads-max";
        /// Subscriptions of one connection.
        subscriptions_max: u64 = Kind::Count(range(1, 65_536)), "64", "subscriptions-max";
    }

    /// Streams: how many there may be.
    streams: StreamSettings {
        /// Streams of the node, those of the system included. Whatever it is, all streams together have 1,048,576 lanes at most: more are refused with `LimitReached`,
        /// `POLICY_VIOLATION` for Kafka clients. A lane that was written to takes some 2.5 KiB of memory at rest, so that all take 2.5 GiB; before that it takes far less.
        streams_max: u64 = Kind::Count(range(1, 10_000_000)), "100000", "streams-max";
    }

    /// Applications: named sets of consumers that share a stream.
    applications: ApplicationSettings {
        /// Applications of the node. With many lanes they may be fewer: one more is refused with `LimitReached` if all of them could come to take more than a
        /// 16th of the arena's size in memory (or 32 MiB), at 256 bytes for each application and each lane that its stream has at the node, used or not. The first
        /// application of a stream is never refused for that, and none that the node knows. In a cluster the owner of a
        /// stream's first streamlet decides by what it has itself, and is asked first; the other owners take whom it takes, so that applications go on where their
        /// stream grows to a full node, up to four times as much.
        applications_max: u64 = Kind::Count(range(1, 1_000_000)), "10000", "applications-max";
        /// Consumers of one application.
        members_max: u64 = Kind::Count(range(1, 1_000_000)), "10000", "members-max";
        /// After how long without a sign of life a consumer's groups go to others, when it does not say.
        lease: u64 = Kind::Duration(range(SECOND_MS, HOUR_MS)), "30s", "lease";
    }

    /// The virtual logs: where acknowledged records of streams with durability `power` are synced, many at a time.
    virtual_logs: VirtualLogSettings {
        /// How many there are; each has a thread and syncs on its own. A start with fewer than before reads those that are left over too, and gives them up as soon as what they
        /// have is stored. Records of one that no start has read, as builds before left them over, are left out where their ordinals were given to others meanwhile: that is said, and its files are
        /// kept aside as `*.damaged`.
        count: u64 = Kind::Count(range(1, 64)), "1", "virtual-logs";
        /// Bytes of a file. `auto` is 256 MiB divided by the number of virtual logs, at most 128 MiB and at least 32 MiB, and a power of two.
        file_bytes: Option<u64> = Kind::Bytes(range_or("auto", 4 * MIB, 16 * GIB)), "auto", "virtual-log-file-bytes";
        /// Bytes of files above which segments that keep the oldest file are closed early.
        keep_bytes: u64 = Kind::Bytes(range(16 * MIB, TIB)), "1GiB", "virtual-log-keep-bytes";
        /// Start although acknowledged records cannot be read any more, nor what the node has kept of Kafka transactions and, if it is alone, of Kafka groups, or a disk of `--disks` is gone for good: what was there is lost, but for what other nodes have copies
        /// of, and reported. For one start.
        accept_damage: bool = Kind::Switch, "false", "accept-damage";
    }

    /// Storage: how closed segments go to disk and come back.
    storage: StorageSettings {
        /// Bytes of a container file.
        container_bytes: u64 = Kind::Bytes(range(16 * MIB, 16 * GIB)), "256MiB", "container-bytes";
        /// How long a closed segment waits for others, so that they are written together, while memory is not short. Five times as long at most while copies for other nodes, or what is rebuilt from them, keep its disk busy.
        write_delay: u64 = Kind::Duration(range(0, HOUR_MS)), "2s", "write-delay";
        /// Percent of the arena that is kept free for writers by taking out segments that are on disk. Made good when an eighth of that is missing.
        free_percent_min: u64 = Kind::Count(range(0, 90)), "10", "free-percent-min";
        /// Threads that read from each disk.
        loaders_per_disk: u64 = Kind::Count(range(1, 64)), "2", "loaders-per-disk";
        /// How often all that is on the disks is read and verified, copies for other nodes included, so that what a disk has lost is found while others have it: 16 MiB
        /// a second, or as much more as it takes to be done in half of that time. `off`: never.
        scrub_every: Option<u64> = Kind::Duration(range_or("off", SECOND_MS, 365 * DAY_MS)), "7d", "scrub-every";
    }

    /// Compaction: of each key the last record is kept, in streams that ask for it.
    compaction: CompactionSettings {
        /// Percent of one processor core that it takes at most; `off` leaves all streams as they are.
        cpu_percent: Option<u64> = Kind::Count(range_or("off", 1, 100)), "10", "compaction-cpu-percent";
        /// Memory for the keys of one pass, taken while it runs: 24 bytes a key. A pass over more keys takes several turns.
        keys_bytes: u64 = Kind::Bytes(range(64 * KIB, 64 * GIB)), "64MiB", "compaction-keys-bytes";
    }

    /// What the node says about itself.
    logs: LogSettings {
        /// How log lines look: for people or for programs. They go to standard error.
        format: String = Kind::Choice(&["text", "json"]), "text", "log-format";
        /// How much is logged: `error`, `warn`, `info`, `debug`, `trace`, also per module, like
        /// `info,kera_broker=debug`.
        level: String = Kind::Levels, "info", "log-level";
    }
}

#[cfg(test)]
mod tests;

impl Config {
    /// Puts a checked value into setting number `index`.
    pub fn assign(&mut self, index: usize, value: Value) {
        (SETTINGS[index].set)(self, value);
    }

    /// Where clients and other nodes are told to connect.
    pub fn native_address(&self) -> &str {
        self.network.advertised.as_deref().unwrap_or(&self.network.listen)
    }

    /// Where other nodes are told to connect.
    pub fn cluster_address(&self) -> &str {
        self.cluster.advertised.as_deref().unwrap_or(&self.cluster.listen)
    }

    /// Where Kafka clients are told to connect, if they can at all.
    pub fn kafka_address(&self) -> Option<&str> {
        let listen = self.kafka.listen.as_deref()?;
        Some(self.kafka.advertised.as_deref().unwrap_or(listen))
    }

    /// Addresses that are told, and that nobody can connect to. Native clients are told by nodes of a cluster alone, those of Kafka by each node: they
    /// connect to nothing else, whatever address they were given.
    fn told_in_vain(&self) -> Vec<(Vec<&'static str>, String)> {
        let is_in_cluster = self.cluster.node.is_some();
        let told = [
            ("network.listen", "--advertised", is_in_cluster.then(|| self.native_address())),
            ("cluster.listen", "--cluster-advertised", is_in_cluster.then(|| self.cluster_address())),
            ("kafka.listen", "--kafka-advertised", self.kafka_address()),
        ];
        let is_any = |address: &str| address.parse::<SocketAddr>().is_ok_and(|at| at.ip().is_unspecified());
        let mut wrong = Vec::new();
        for (name, flag, address) in told {
            if let Some(address) = address.filter(|address| is_any(address)) {
                let message = format!(
                    "nobody can connect to {address}, which others are told; say with {flag} where this node is reached"
                );
                wrong.push((vec![name], message));
            }
        }
        wrong
    }

    /// What of the cluster's settings cannot be.
    fn wrong_in_cluster(&self) -> Vec<(Vec<&'static str>, String)> {
        let mut wrong = Vec::new();
        let words: Vec<&str> = self.cluster.roles.split(',').map(str::trim).collect();
        for word in words.iter().filter(|word| !ROLES.contains(word)) {
            let message = format!("`{word}` is no role; roles are coordinator, broker and backup");
            wrong.push((vec!["cluster.roles"], message));
        }
        if self.cluster.node.is_none() {
            if self.cluster.join.is_some() {
                let message = "a node that joins a cluster has a number; give it one with --node".to_owned();
                wrong.push((vec!["cluster.join", "cluster.node"], message));
            }
            return wrong;
        }
        let addresses = [
            ("network.listen", Some(&self.network.listen)),
            ("cluster.listen", Some(&self.cluster.listen)),
            ("kafka.listen", self.kafka.listen.as_ref()),
        ];
        for (name, _) in addresses.iter().filter(|(_, address)| address.is_some_and(|at| at.ends_with(":0"))) {
            wrong.push((vec![*name], "other nodes must know the port before it is taken; 0 is none".to_owned()));
        }
        if self.cluster.rack.len() > 255 {
            wrong.push((vec!["cluster.rack"], "the name of a rack has at most 255 bytes".to_owned()));
        }
        wrong
    }

    /// Bytes of a file of a virtual log. A log has two files once it is used, one of them written ahead with zeros: many logs together are to
    /// take little more of a disk than a few, and each file several of the largest blocks.
    pub fn virtual_log_file_bytes(&self) -> u64 {
        let share = VIRTUAL_LOGS_BYTES / self.virtual_logs.count.max(1);
        let auto = (1 << share.max(1).ilog2()) as u64;
        self.virtual_logs.file_bytes.unwrap_or(auto.clamp(VIRTUAL_LOG_FILE_MIN, VIRTUAL_LOG_FILE_MAX))
    }

    /// Doors that are to listen at the address of another one. With port 0 each gets a port of its own.
    fn doors_at_one_address(&self) -> Vec<(Vec<&'static str>, String)> {
        let doors = [
            ("network.listen", Some(&self.network.listen)),
            ("http.listen", self.http.listen.as_ref()),
            ("kafka.listen", self.kafka.listen.as_ref()),
            ("cluster.listen", self.cluster.node.map(|_| &self.cluster.listen)),
        ];
        let doors = doors.into_iter().filter_map(|(name, address)| Some((name, address?)));
        let doors: Vec<(&'static str, &String)> = doors.filter(|(_, address)| !address.ends_with(":0")).collect();
        let mut wrong = Vec::new();
        for (at, (name, address)) in doors.iter().enumerate() {
            for (other, _) in doors[at + 1..].iter().filter(|(_, other)| other == address) {
                let message = format!("both are {address}; give one of them another port");
                wrong.push((vec![*name, *other], message));
            }
        }
        wrong
    }

    /// Values that are allowed one by one and wrong together: the settings by name, and the sentence.
    fn contradictions(&self) -> Vec<(Vec<&'static str>, String)> {
        let mut wrong = self.doors_at_one_address();
        wrong.extend(self.told_in_vain());
        wrong.extend(self.wrong_in_cluster());
        let mut seen = vec![&self.node.data];
        for disk in &self.node.disks {
            if seen.contains(&disk) {
                let message = format!("{} is named twice; every disk is one directory", disk.display());
                wrong.push((vec!["node.data", "node.disks"], message));
            }
            seen.push(disk);
        }
        let (file, keep) = (self.virtual_log_file_bytes(), self.virtual_logs.keep_bytes);
        if keep < file {
            let message = format!("{} are to be kept, and one file has {}", exact_bytes(keep), exact_bytes(file));
            wrong.push((vec!["virtual_logs.keep_bytes", "virtual_logs.file_bytes"], message));
        }
        wrong
    }
}
