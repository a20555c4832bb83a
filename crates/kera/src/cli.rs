//! The command line as clap sees it: names, flags, help. What the commands do is in [`crate::commands`].

mod values;

use clap::builder::StyledStr;
use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use kera_client::Compression;
use kera_format::vlog_replica::LogId;
use kera_format::{BatchCompression, Cleanup, Durability, Order, ReplicationMode, Timestamps};
use kera_server::units::parse_duration_ms;

use crate::encoding::KeyEncoding;
use crate::numbers::{self, Span};
use crate::rows::{CsvTypes, Format};
use crate::settings::SettingFlags;
use crate::{bench, columns, verify};
pub use values::{Blocks, Limit, LogNames, StreamletName};
use values::{
    addresses, batch_compression, blocks, bytes_or_none, chunk_bytes, cleanup, compression, delimiter, durability,
    last_records, log_names, one_log, order, rate, replication_mode, segment_bytes, separator, streamlet_name,
    time_or_none, timestamps,
};

/// Most records for `kera consume --last`: so many are held in memory until it is known which are the last ones.
pub const LAST_MAX: u64 = 100_000;

/// KerA ingests, stores and serves streams: message broker and storage layer in one.
#[derive(Parser)]
#[command(name = "kera", version, propagate_version = true, infer_subcommands = false)]
#[command(after_help = "\
Start here:
  kera demo      a node, real data, a live view; nothing to set up
  kera serve     a node; its data is kept under ./kera-data

Then, in another terminal:
  kera stream create flights --streamlets 4
  kera produce flights --file flights.ndjson --key-field origin
  kera consume flights --application report --from earliest --follow

`kera help COMMAND` shows more examples.")]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
pub struct Globals {
    /// The node to talk to, or several with commas between.
    ///
    /// In a cluster it may be any of its nodes. Of several one must answer.
    #[arg(long, global = true, value_name = "HOST:PORT", env = "KERA_CONNECT", default_value = "127.0.0.1:7070")]
    #[arg(hide_env_values = true, help_heading = "Everywhere", value_parser = addresses)]
    pub connect: String,
    /// Print JSON for programs instead of text for people.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
}

/// What `kera` can do.
#[derive(Subcommand)]
pub enum Command {
    /// Run a node: coordinator, broker and storage in one process.
    #[command(after_long_help = "\
Examples:
  kera serve
      data under ./kera-data, clients on 127.0.0.1:7070, HTTP on :7071
  kera serve --data /var/lib/kera --listen 0.0.0.0:7070 --arena-bytes 8GiB
  kera serve --config kera.toml --log-format json
  KERA_LISTEN=0.0.0.0:7070 kera serve --http-listen none

Ctrl-C or SIGTERM stops it gracefully. Another one, a second or more later, stops it at once. What was \
acknowledged survives both, and kill -9.

Every flag is also a setting in the file and a KERA_* variable. `kera config show` lists them with their values.")]
    Serve(ServeArgs),
    /// Create, list, describe, alter and delete streams.
    #[command(subcommand, aliases = ["streams", "topic", "topics"])]
    Stream(StreamCommand),
    /// Write records from a file or standard input to a stream.
    #[command(after_long_help = "\
Examples:
  kera produce flights --file flights.ndjson --key-field origin
  kera produce flights --file flights.csv.zst --timestamp-field date
      the header line gives the names; .zst is unpacked
  tail -f app.log | kera produce logs
      every line is a record
  kera produce flights --file flights.ndjson --rate 1000 --on-error skip
  kera produce flights --file flights.ndjson --from-line 1001
      goes on behind the first 1,000 lines
  kera produce users --key-separator : --null-value null
      lines like ann:blue; after ann:null the key is gone
  kera produce users --key-separator : --key-encoding hex
      lines like 00ff:blue, for keys that are no text
  kera consume old --json | kera produce new --format records
      with keys and timestamps, but without headers

Records with the same key go to the same streamlet, in order. When the command ends well, everything is \
acknowledged.")]
    Produce(ProduceArgs),
    /// Read records of a stream to standard output.
    #[command(after_long_help = "\
Examples:
  kera consume flights --max 10      look at the first ten
  kera consume flights --last 10     the last ten of the whole stream
  kera consume flights --application report --from earliest --follow
      read on where `report` stopped, also after a crash
  kera consume flights --from 2h --format json | jq .
      what came in the last two hours, with keys and ordinals
  kera consume users --key-separator :
      lines like ann:blue, which kera produce reads with the same flag; null
      is no key or no value (there: --null-value null)
  kera consume users --key ann --last 1
      the last record of that key; all records of it without --last
  kera consume users --key 00ff --key-encoding hex
      the same for a key that is no text; base64 is understood too
  kera consume flights --streamlets 0-3,7
      these streamlets only

Without --application nothing is remembered. With it, records are committed after they were printed: after a kill \
-9 some may be printed again, none are left out. Several consumers with the same --application share the stream.")]
    Consume(ConsumeArgs),
    /// List, describe, delete and reset applications.
    ///
    /// An application is a name under which consumers remember how far they have read. These are those of KerA's own clients. Consumer
    /// groups of Kafka clients are kept apart from them, under the same names too: Kafka's tools, like kafka-consumer-groups.sh, list,
    /// describe and reset them.
    #[command(subcommand, aliases = ["applications"])]
    Application(ApplicationCommand),
    /// Show how the node is, and the nodes of its cluster.
    ///
    /// Of the node: memory, disks, and PROBLEM for each thing that needs somebody. In a cluster then a line for each node: whether it is
    /// live, drained or lost, what it owns, and what it keeps for others (the columns are explained below); nodes that do not do everything, with
    /// their roles; and what is moved or rebuilt just now, or gets another number of copies, with how much is left. What goes wrong in the
    /// cluster follows as PROBLEM too.
    #[command(after_long_help = columns::STATUS_HELP)]
    Status {
        /// End with status 1 if there is a PROBLEM, for scripts and monitors.
        #[arg(long)]
        check: bool,
    },
    /// Watch nodes, streams and applications live.
    #[command(after_long_help = columns::TOP_HELP)]
    Top(TopArgs),
    /// A cluster to try things out; the level of a cluster; recovery.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Move streamlets from node to node of a cluster.
    #[command(subcommand)]
    Streamlet(StreamletCommand),
    /// Empty a node of a cluster, use it again, or give it up.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Virtual logs of lost nodes of which something is missing.
    ///
    /// It says which nodes to start, and gives up what is gone for good.
    #[command(subcommand)]
    Log(LogCommand),
    /// Even out what the nodes of a cluster own and take, now.
    ///
    /// They do it by themselves when nothing has changed for a minute.
    #[command(after_long_help = columns::REBALANCE_HELP)]
    Rebalance(RebalanceArgs),
    /// Start a node, stream real flights through it and show it live.
    #[command(after_long_help = "\
Examples:
  kera demo                     about half a minute, under ./kera-demo
  kera demo --keep              the node keeps running, to try things out
  kera demo --rate 0 --json     as fast as it goes, and the numbers as JSON")]
    Demo(DemoArgs),
    /// Measure throughput and latency.
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: bench::Command,
    },
    /// Prove that nothing is lost, doubled or out of order.
    Verify {
        /// Which part.
        #[command(subcommand)]
        command: verify::Command,
    },
    /// Check a configuration, or show every setting.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print completions for a shell.
    #[command(after_long_help = "Example:\n  kera completions bash > /etc/bash_completion.d/kera")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// `kera serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// A TOML file with settings.
    #[arg(long, value_name = "FILE", env = "KERA_CONFIG", hide_env_values = true)]
    pub config: Option<String>,
    /// Settings, one flag each.
    #[command(flatten)]
    pub settings: SettingFlags,
    /// Speak like a version whose highest level of clusters was this, for tests of upgrades.
    #[arg(long, hide = true, value_name = "LEVEL")]
    pub speak_level: Option<u32>,
}

/// `kera config`.
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Report all mistakes of a configuration at once; starts nothing.
    Check(ServeArgs),
    /// Print every setting with its value and where it comes from, as a file that can be used.
    Show(ServeArgs),
}

/// `kera stream`.
#[derive(Subcommand)]
pub enum StreamCommand {
    /// Make a stream.
    #[command(after_long_help = "\
Examples:
  kera stream create flights
  kera stream create flights --streamlets 4 --retention-time 30d
  kera stream create flights --lanes 2 --retention-bytes 10GiB
  kera stream create payments --streamlets 8 --durability power
  kera stream create payments --replication 2
      in a cluster; without it there are three copies where three nodes can
      hold them

Streamlets are the partitions of a stream: records with one key stay in one, in order. Lanes let more producers \
and consumers work on one streamlet side by side, and give up the order between producers.")]
    Create {
        /// Its name: a-z A-Z 0-9 . _ -
        name: String,
        /// Options.
        #[command(flatten)]
        options: OptionArgs,
        /// It is no error if there is a stream of that name already.
        ///
        /// That one stays as it is.
        #[arg(long)]
        if_not_exists: bool,
    },
    /// List streams.
    #[command(alias = "ls", after_long_help = columns::STREAMS_HELP)]
    List {
        /// Only names that start so.
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
        /// Also those of the system.
        #[arg(long)]
        system: bool,
    },
    /// Show a stream's options, what is in it, and who reads it.
    ///
    /// In a cluster also which node owns which streamlet.
    #[command(after_long_help = columns::STREAM_HELP)]
    Describe {
        /// Its name.
        name: String,
        /// Also every lane, and in a cluster the owners of all streamlets.
        #[arg(long)]
        lanes: bool,
    },
    /// Change options of a stream; the others stay.
    #[command(mut_args(without_default))]
    #[command(after_long_help = "\
Examples:
  kera stream alter flights --retention-time 30d --retention-bytes none
  kera stream alter flights --streamlets 8
      more only; most keys move to another streamlet
  kera stream alter flights --replication 3
      in a cluster; says how far it is until that is done

With another --replication what was written gets its copies in the background while writers go on, streamlet by \
streamlet; a stream that has copies keeps 2 at least. Ctrl-C stops nothing but the waiting. Until all of it has \
them the stream has the number that it had: asking for that calls the change off, as long as nothing has come of \
it.")]
    Alter {
        /// Its name.
        name: String,
        /// Options to change.
        #[command(flatten)]
        options: OptionArgs,
        /// With --replication: do not wait until the copies are there.
        #[arg(long)]
        no_wait: bool,
    },
    /// Delete a stream and all of its data.
    Delete {
        /// Its name.
        name: String,
        /// It is no error if there is no such stream.
        #[arg(long)]
        if_exists: bool,
        /// Do not ask. Without a terminal to ask at it is needed.
        #[arg(long)]
        yes: bool,
    },
}

/// An option without what its help says of a default: of what is altered the rest stays as it is.
fn without_default(mut arg: Arg) -> Arg {
    let cut = |help: Option<&StyledStr>| {
        let text = help?.to_string();
        let (before, rest) = text.split_once(" [default: ")?;
        Some(format!("{before}{}", rest.split_once(']').map_or("", |(_, behind)| behind)))
    };
    if let Some(help) = cut(arg.get_help()) {
        arg = arg.help(help);
    }
    if let Some(help) = cut(arg.get_long_help()) {
        arg = arg.long_help(help);
    }
    arg
}

/// Options of a stream; what is not given stays as it is, or gets its default.
#[derive(Args, Clone, Debug, Default)]
pub struct OptionArgs {
    /// Partitions; each is owned by one broker [default: 1]
    #[arg(long, alias = "partitions", value_name = "M")]
    pub streamlets: Option<u32>,
    /// Append positions per streamlet [default: 1]
    ///
    /// Producer p writes to lane p mod Q.
    #[arg(long, value_name = "Q")]
    pub lanes: Option<u32>,
    /// Segments of a group, the unit handed to one consumer [default: 16]
    #[arg(hide_short_help = true, long, value_name = "P")]
    pub segments_per_group: Option<u32>,
    /// The largest segment, a power of two from 64KiB to 16MiB [default: 8MiB]
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = segment_bytes)]
    pub segment_bytes: Option<u32>,
    /// Copies on different nodes [default: 3 where three nodes can hold them, else 1]
    #[arg(long, alias = "replication-factor", value_name = "R")]
    pub replication: Option<u32>,
    /// Whether producers are answered when all copies have what they wrote, or when its owner has [default: sync]
    #[arg(hide_short_help = true, long, value_name = "sync|async", value_parser = replication_mode)]
    pub replication_mode: Option<ReplicationMode>,
    /// What acknowledged records survive [default: process]
    ///
    /// With process that is the death of every process, with power also the loss of power.
    #[arg(long, value_name = "process|power", value_parser = durability)]
    pub durability: Option<Durability>,
    /// Whether consumers get a lane's groups one after the other [default: lane]
    #[arg(long, value_name = "lane|none", value_parser = order)]
    pub order: Option<Order>,
    /// How long records are kept, like 7d; or none [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    pub retention_time: Option<Limit>,
    /// How much a streamlet keeps, like 10GiB; or none [default: none]
    #[arg(long, value_name = "BYTES", value_parser = bytes_or_none)]
    pub retention_bytes: Option<Limit>,
    /// Whether records go as soon as every application has read them [default: false]
    #[arg(long, value_name = "true|false", hide_possible_values = true)]
    pub retention_consumed: Option<bool>,
    /// What becomes of old records [default: delete]
    ///
    /// They are deleted, or the last one of each key is kept, or that within the retention limits.
    #[arg(long, value_name = "delete|compact|compact,delete", value_parser = cleanup)]
    pub cleanup: Option<Cleanup>,
    /// Virtual logs of its own; 0 shares the broker's [default: 0]
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub virtual_logs: Option<u32>,
    /// A segment takes no more appends when it was opened so long ago [default: 7d]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = parse_duration_ms)]
    pub segment_time: Option<u64>,
    /// A lane is compacted when so many percent of its bytes came after the last pass [default: 50]
    #[arg(hide_short_help = true, long, value_name = "PERCENT")]
    pub compact_dirty_percent: Option<u32>,
    /// Compaction leaves a record alone for so long after it was written [default: 0s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = parse_duration_ms)]
    pub compact_after: Option<u64>,
    /// A lane is compacted so long after a write at the latest; or none [default: none]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = time_or_none)]
    pub compact_within: Option<Limit>,
    /// How long records without a value are kept after what they hide has gone [default: 1d]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = parse_duration_ms)]
    pub tombstone_time: Option<u64>,
    /// The time of records that Kafka clients write: what they say, or when they were appended [default: create]
    #[arg(hide_short_help = true, long, value_name = "create|append", value_parser = timestamps)]
    pub timestamps: Option<Timestamps>,
    /// How batches that Kafka clients write are kept: as they come, or compressed so [default: producer]
    #[arg(hide_short_help = true, long, value_name = "producer|none|gzip|snappy|lz4|zstd", value_parser = batch_compression)]
    pub batch_compression: Option<BatchCompression>,
}

/// `kera produce`.
#[derive(Args)]
pub struct ProduceArgs {
    /// The stream.
    pub stream: String,
    /// The file; - is standard input.
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub file: String,
    /// How the file is cut into records.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub format: Format,
    /// The field that becomes the key.
    #[arg(long, value_name = "NAME")]
    pub key_field: Option<String>,
    /// The field that becomes the timestamp.
    ///
    /// It has a time like 2026-01-31T12:00:00Z, or a number since 1970.
    #[arg(long, value_name = "NAME")]
    pub timestamp_field: Option<String>,
    /// Of lines: what stands between key and value, like : or \t.
    ///
    /// \t is a tab.
    #[arg(long, value_name = "TEXT", value_parser = separator)]
    pub key_separator: Option<String>,
    /// How keys are written.
    ///
    /// Of those that --key-field or --key-separator names. hex and base64 are for keys that are no text.
    #[arg(long, value_name = "HOW", default_value = "text")]
    pub key_encoding: KeyEncoding,
    /// The value that stands for none, like null.
    ///
    /// Such a record says that its key is gone. Of lines and ndjson. With --key-separator it is the key that stands for none, too: such a
    /// record has no key.
    #[arg(long, value_name = "TEXT")]
    pub null_value: Option<String>,
    /// Of CSV: what stands between two fields, like ; or tab.
    ///
    /// It is one character; \t or tab is a tab. By the file's name if it is not said: a tab for .tsv, else a comma.
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Of CSV: what the cells become.
    ///
    /// It is auto unless it is said.
    #[arg(long, value_name = "TYPES")]
    pub csv_types: Option<CsvTypes>,
    /// Begin on this line of the input.
    ///
    /// That is with the record that begins there, or behind it. A CSV header is read all the same, and of a .zst file the lines are
    /// those that were packed. Of a JSON array it is the line on which an element begins.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub from_line: Option<u64>,
    /// Records per second at most [default: as fast as it goes]
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<u64>,
    /// Stop after this many records.
    #[arg(long, value_name = "N")]
    pub max: Option<u64>,
    /// Compress chunks: none, lz4 or zstd.
    #[arg(long, value_name = "CODEC", default_value = "none", value_parser = compression)]
    pub compression: Compression,
    /// Bytes of a chunk, the batch that is appended as one [default: 64KiB, or what a segment of the stream takes if that is less].
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = chunk_bytes)]
    pub chunk_bytes: Option<usize>,
    /// How long a chunk that is not full waits for more records, in milliseconds.
    #[arg(hide_short_help = true, long, value_name = "MS", default_value_t = 0)]
    pub linger_ms: u64,
    /// What to do with a record that is malformed.
    #[arg(long, value_name = "WHAT", default_value = "stop")]
    pub on_error: OnError,
    /// Show no progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// What to do with a malformed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    /// Stop there; what came before it is sent.
    Stop,
    /// Report it, leave it out and go on.
    Skip,
}

/// `kera consume`.
#[derive(Clone, Args)]
pub struct ConsumeArgs {
    /// The stream.
    pub stream: String,
    /// The application to read as; it goes on where it stopped.
    ///
    /// Consumers with the same application share the stream.
    #[arg(long, short, alias = "group", short_alias = 'g', value_name = "NAME")]
    pub application: Option<String>,
    /// Where to start: earliest, latest, a time, how long ago, like 2h, or ordinal:N
    /// [default: earliest; latest with --follow and no application]
    ///
    /// A time is like 2026-01-31T12:00:00Z. ordinal:N is the record with that number in each lane. Times are those at which nodes took
    /// records, whatever timestamps these have. Of the consumers of an application only the first one has it start there.
    #[arg(long, value_name = "WHEN")]
    pub from: Option<String>,
    /// Start with the newest N records, 100000 at most.
    ///
    /// With --follow it goes on behind them. Of several lanes they are those that nodes took last, in the order of that time (`appended` in
    /// --json); each lane keeps its own order. With --key only those of that key count.
    #[arg(long, value_name = "N", value_parser = last_records, conflicts_with_all = ["from", "application"])]
    pub last: Option<u64>,
    /// What Kafka's tool calls `--from earliest`.
    #[arg(long, hide = true, conflicts_with_all = ["from", "last"])]
    pub from_beginning: bool,
    /// Stop after this many records.
    #[arg(long, alias = "max-messages", short_alias = 'n', value_name = "N")]
    pub max: Option<u64>,
    /// Wait for more at the end of the stream.
    #[arg(long)]
    pub follow: bool,
    /// How a record is printed.
    ///
    /// It is value unless it is said.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Show>,
    /// Print keys too, with this behind them, like : or \t.
    ///
    /// \t is a tab. A key or a value that there is not is printed as null; of several keys the first is printed. Only --json tells all of
    /// them from others.
    #[arg(long, value_name = "TEXT", value_parser = separator, conflicts_with = "format")]
    pub key_separator: Option<String>,
    /// Only records whose key is exactly this.
    ///
    /// Give it more than once for several keys. Of a record with several keys the first counts. It reads all streamlets, as a key may be in
    /// any; with --streamlets it reads less. Not with --application, where what is not printed would count as read.
    #[arg(long = "key", value_name = "KEY", conflicts_with = "application")]
    pub keys: Vec<String>,
    /// How keys are written.
    ///
    /// Of those that --key names, and where --key-separator prints them. hex and base64 are for keys that are no text.
    #[arg(long, value_name = "HOW", default_value = "text")]
    pub key_encoding: KeyEncoding,
    /// Only these streamlets, like 0-3,7.
    ///
    /// Not with --application.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = numbers::streamlets)]
    #[arg(conflicts_with = "application")]
    pub streamlets: Vec<Span>,
    /// Only these lanes of each streamlet, like 0-3.
    ///
    /// Not with --application.
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = numbers::lanes)]
    #[arg(conflicts_with = "application")]
    pub lanes: Vec<Span>,
}

/// How a consumed record is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// The value and a line end. At a terminal what is no text is shown like \x1b.
    Value,
    /// A JSON object with keys, value, time, streamlet, lane and ordinal.
    Json,
    /// The value's bytes and nothing else, at a terminal too.
    Raw,
}

/// `kera application`.
#[derive(Subcommand)]
pub enum ApplicationCommand {
    /// List applications.
    #[command(after_long_help = columns::APPLICATIONS_HELP)]
    List {
        /// Only those of this stream.
        #[arg(long)]
        stream: Option<String>,
    },
    /// Show an application's members, and how far it is in each lane.
    #[command(after_long_help = columns::APPLICATION_HELP)]
    Describe {
        /// Its name.
        name: String,
        /// Its stream.
        ///
        /// It is needed if several streams have an application of that name.
        #[arg(long)]
        stream: Option<String>,
    },
    /// Forget an application and what it has read.
    ///
    /// It must have no running consumers.
    Delete {
        /// Its name.
        name: String,
        /// Its stream.
        ///
        /// It is needed if several streams have an application of that name.
        #[arg(long)]
        stream: Option<String>,
        /// Do not ask. Without a terminal to ask at it is needed.
        #[arg(long)]
        yes: bool,
    },
    /// Set where an application goes on.
    ///
    /// It must have no running consumers. What would be set is shown first, and you are asked.
    #[command(after_long_help = columns::RESET_HELP)]
    Reset {
        /// Its name.
        name: String,
        /// Its stream.
        ///
        /// It is needed if several streams have an application of that name, or none has one yet.
        #[arg(long)]
        stream: Option<String>,
        /// Where to: earliest, latest, a time, how long ago, like 2h, or ordinal:N.
        ///
        /// Times are those at which nodes took records.
        #[arg(long, value_name = "WHEN")]
        to: String,
        /// Only these streamlets, like 0-3,7.
        ///
        /// In a cluster a new application is made only if 0 is among them.
        #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = numbers::streamlets)]
        streamlets: Vec<Span>,
        /// Only show what would be set.
        #[arg(long)]
        dry_run: bool,
        /// Do not ask. Without a terminal to ask at it is needed.
        #[arg(long, conflicts_with = "dry_run")]
        yes: bool,
    },
}

/// `kera top`.
#[derive(Args)]
pub struct TopArgs {
    /// Time between two looks, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval_ms: u64,
    /// Stop after this many looks.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// `kera cluster`.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Start some nodes that form a cluster on this machine.
    ///
    /// Each is a process with its own data. They are stopped at Ctrl-C, or when the command is ended.
    #[command(after_long_help = "\
Examples:
  kera cluster up
      three nodes under ./kera-cluster, clients on 127.0.0.1:7081 to 7083
  kera cluster up --nodes 5 --data /tmp/five
  kera cluster up --json
      process ids and addresses for scripts

Data stays: the same command starts the same cluster again.")]
    Up(ClusterUpArgs),
    /// Show the level of a cluster, and who holds it back.
    ///
    /// The level is what its nodes may count on each other to understand.
    #[command(after_long_help = columns::LEVEL_HELP)]
    Level,
    /// Have a stopped node lead alone when most others are gone for good.
    ///
    /// It leads the coordinators then, with what it knows of their decisions.
    #[command(after_long_help = "\
Examples:
  kera cluster recover --data ./three
      how far its log of the coordinators' decisions goes
  kera cluster recover --data ./three --gone 1,2
      nodes 1 and 2 are gone: says what is lost, and asks
  kera cluster recover --data ./three --gone 1,2 --yes

It works on the data directory of a node that does not run. Of several nodes that are left, look at all and take \
the one whose log goes furthest. The others are started afterwards as they are. docs/operations.md says when to do \
it, and what must never be done after it.")]
    Recover(RecoverArgs),
}

/// `kera cluster recover`.
#[derive(Args)]
pub struct RecoverArgs {
    /// The data directory of the node, which must not run.
    #[arg(long, value_name = "DIR")]
    pub data: String,
    /// The nodes that are gone for good, like 1,2 or 1-2. Without it nothing is changed.
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', value_parser = numbers::nodes)]
    pub gone: Vec<Span>,
    /// Do not ask. Without a terminal to ask at it is needed.
    #[arg(long, requires = "gone")]
    pub yes: bool,
}

/// `kera cluster up`.
#[derive(Args)]
pub struct ClusterUpArgs {
    /// How many nodes: coordinators, brokers and backups all of them.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub nodes: u16,
    /// Where the nodes keep their data, a folder each.
    #[arg(long, value_name = "DIR", default_value = "./kera-cluster")]
    pub data: String,
    /// Port of the first node for clients; the others have the next ones.
    #[arg(long, value_name = "PORT", default_value_t = 7081, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// The same for Kafka clients.
    #[arg(long, value_name = "PORT", default_value_t = 9081, value_parser = clap::value_parser!(u16).range(1..))]
    pub kafka_port: u16,
    /// The same for health, metrics and the REST API.
    #[arg(long, value_name = "PORT", default_value_t = 7281, value_parser = clap::value_parser!(u16).range(1..))]
    pub http_port: u16,
    /// The same for the nodes among themselves.
    #[arg(long, value_name = "PORT", default_value_t = 7181, value_parser = clap::value_parser!(u16).range(1..))]
    pub cluster_port: u16,
    /// Memory of each node for streams.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub arena_bytes: String,
}

/// `kera streamlet`.
#[derive(Subcommand)]
pub enum StreamletCommand {
    /// Have another node own a streamlet.
    #[command(after_long_help = "\
Examples:
  kera streamlet move payments/3 --to 2
  kera streamlet move payments/3 --to 2 --no-wait

No data is copied. Writers pause for a few milliseconds and go on at the new owner; what was written before stays \
at the old one, which serves it until retention takes it. `kera stream describe payments` shows who owns what.")]
    Move {
        /// The streamlet, as STREAM/NUMBER.
        #[arg(value_name = "STREAM/NUMBER", value_parser = streamlet_name)]
        streamlet: StreamletName,
        /// The node that gets it.
        #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u32).range(1..))]
        to: u32,
        /// Do not wait until it is there.
        #[arg(long)]
        no_wait: bool,
    },
    /// Go on without what only a lost node had of a streamlet, or blocks of a lost log had.
    ///
    /// This cannot be undone.
    #[command(after_long_help = "\
Examples:
  kera streamlet accept-loss payments/3 --yes
  kera streamlet accept-loss payments/3 --log 1/4/0 --blocks 1-99 --gone 1,5
      without these blocks, which payments/3 is rebuilt from

For streamlets whose node is lost for good and that nobody else has a copy of: they go on, without the records \
that only that node had, at another one. Numbers of records begin again at 0, or where the streamlet last moved. \
If the node can come back, start it instead: then nothing is lost.

What streamlets with copies wait for is in virtual logs: look at `kera log list` first, for `kera log accept-loss` \
keeps all that some node still has. With --log and --blocks one streamlet alone goes on, also where backups are \
live that do not give the blocks; `kera status` names both. All other streamlets wait as before. Say all blocks that \
were copied to the same nodes: what is refused says which these are. They are asked for once more first. What is \
lost is what `kera log accept-loss` says; of a compacted stream keys may come back that were deleted.")]
    AcceptLoss {
        /// The streamlet, as STREAM/NUMBER.
        #[arg(value_name = "STREAM/NUMBER", value_parser = streamlet_name)]
        streamlet: StreamletName,
        /// The log of which blocks are missing, as NODE/EPOCH/NUMBER.
        #[arg(long, value_name = "LOG", value_parser = one_log, requires = "blocks")]
        log: Option<LogId>,
        /// The blocks that it goes on without.
        #[arg(long, value_name = "FIRST-LAST", value_parser = blocks, requires = "log")]
        blocks: Option<Blocks>,
        /// The nodes that had them and are gone for good, with the log's own, like 1,2,3 or 1-3.
        #[arg(long, value_name = "NODE,…", value_delimiter = ',', value_parser = numbers::nodes, requires = "log")]
        gone: Vec<Span>,
        /// Do not ask. Without a terminal to ask at it is needed.
        #[arg(long)]
        yes: bool,
    },
}

/// `kera log`.
#[derive(Subcommand)]
pub enum LogCommand {
    /// Show what of the logs of lost nodes is at no node that is there.
    ///
    /// Who had it is shown too, and which streamlets it may be of.
    #[command(after_long_help = columns::LOGS_HELP)]
    List,
    /// Go on without what is missing of logs.
    ///
    /// It is for logs of which the nodes are gone for good that had it. This cannot be undone.
    #[command(after_long_help = "\
Examples:
  kera log accept-loss 1/4/0 --gone 1,2,3
      one log: number 0 of node 1, of its epoch 4
  kera log accept-loss 1 --gone 1,2,3
      all logs of node 1 of which something is missing

For logs of which `kera log list` says that blocks are missing, when all machines that had them are gone with \
their disks. Name these nodes with --gone: those that had the blocks, and the logs' own node, which may have had \
all of it in its memory. It is refused if one of them is live, and if one may come back that is not named. Of the \
last blocks of a log, which may be at some nodes alone while others have less, name the former; the log ends then \
where the latter have it.

What is lost: records of the streamlets that `kera log list` names, as far as they were in these blocks and \
nowhere else, acknowledged ones too. All that some node has is kept, but for one thing: a lane of a streamlet has \
no holes, so that where something in its midst is gone, what was before that goes as well. Where its end is gone \
it goes on in front of that, and numbers of records are given out again; applications may read some again.

A node that comes back nevertheless may be started: it is cut to what the others have.")]
    AcceptLoss {
        /// The logs, as NODE/EPOCH/NUMBER, NODE/EPOCH or NODE.
        #[arg(value_name = "LOG", value_parser = log_names)]
        logs: LogNames,
        /// The nodes that are gone for good, like 1,2,3 or 1-3.
        #[arg(long, value_name = "NODE,…", value_delimiter = ',', value_parser = numbers::nodes)]
        gone: Vec<Span>,
        /// Do not ask. Without a terminal to ask at it is needed.
        #[arg(long)]
        yes: bool,
    },
}

/// `kera node`.
#[derive(Subcommand)]
pub enum NodeCommand {
    /// Move all streamlets of a node to others and give it no new ones.
    #[command(after_long_help = "\
Examples:
  kera node drain 2
      moves them a few at a time, and says what is left
  kera node drain 2 --no-wait
      it goes on by itself; `kera status` shows how far it is
  kera node drain 2 --undo
      the node may own streamlets again

The node keeps what was written to it before the moves and serves it until retention takes it; it also keeps \
copies of others, and votes, for as long as it runs. When it is empty: stop it, then `kera node remove 2`.

What it keeps of streams with one copy is nowhere else: `kera stream alter NAME --replication 2` before it is \
stopped gives them copies, and then nothing has to wait for retention.")]
    Drain {
        /// The node's number.
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        node: u32,
        /// Let it own streamlets again instead.
        #[arg(long)]
        undo: bool,
        /// Do not wait until it owns none.
        #[arg(long)]
        no_wait: bool,
    },
    /// Give up a node that is gone for good.
    ///
    /// It must be lost or stopped, and nothing may be needed of it.
    #[command(after_long_help = "\
Example:
  kera node remove 2

The node must have been stopped, or be lost, and own nothing: streams with copies are taken over by others by \
themselves, in a second; those with one copy keep it until it is back, or until `kera streamlet accept-loss`: of a \
node that still runs give them copies before, with `kera stream alter NAME --replication 2`. Its number and its \
vote are free afterwards. A machine with empty disks joins under a number of its own.")]
    Remove {
        /// The node's number.
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        node: u32,
    },
}

/// `kera rebalance`.
#[derive(Args)]
pub struct RebalanceArgs {
    /// Only show what would be moved.
    #[arg(long)]
    pub dry_run: bool,
}

/// `kera demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// Where the node keeps its data; emptied first if an earlier demo made it.
    #[arg(long, value_name = "DIR", default_value = "./kera-demo")]
    pub data: String,
    /// Flights per second; 0 is as fast as it goes.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub rate: u64,
    /// Flights to stream; all of them unless set.
    #[arg(long, value_name = "N")]
    pub max: Option<u64>,
    /// Keep the node running afterwards, until Ctrl-C.
    #[arg(long)]
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// What stands below the flags, in the short help or in the long one.
    fn explained(command: &clap::Command) -> String {
        let (short, long) = (command.get_after_help(), command.get_after_long_help());
        short.or(long).map(ToString::to_string).unwrap_or_default()
    }

    /// Calls `look` with each command, and with what is typed for it.
    fn each_command(command: &mut clap::Command, typed: &str, look: &mut impl FnMut(&mut clap::Command, &str)) {
        look(command, typed);
        for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
            let typed = format!("{typed} {}", below.get_name());
            each_command(below, &typed, look);
        }
    }

    /// Who only wants to know what a flag is called must not have to scroll.
    #[test]
    fn the_short_help_fits_a_screen_and_the_long_one_says_more() {
        const LINES_MAX: usize = 45;
        let mut all = Cli::command().term_width(80);
        all.build();
        each_command(&mut all, "kera", &mut |command: &mut clap::Command, typed: &str| {
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            assert!(short.lines().count() <= LINES_MAX, "{typed}: {} lines\n{short}", short.lines().count());
            let wide = [&short, &long].into_iter().flat_map(|help| help.lines()).find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{typed}");
            let explained = explained(command);
            assert!(long.contains(explained.lines().next().unwrap_or_default()), "{typed}\n{long}");
            // Nobody looks for more who is not told of it.
            let has_more = long.lines().count() > short.lines().count();
            assert!(!has_more || short.contains("see more with '--help'"), "{typed}\n{short}");
        });
    }

    /// There the paragraphs of a help are wrapped, once, and its examples stay whole.
    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        fn look(command: &clap::Command) {
            let text = explained(command);
            let lines: Vec<&str> = text.lines().collect();
            let is_example = |line: &str| line.starts_with(' ');
            for line in &lines {
                assert!(!is_example(line) || line.chars().count() <= 78, "{}: {line}", command.get_name());
            }
            for two in lines.windows(2) {
                let goes_on = two.iter().all(|line| !line.is_empty() && !is_example(line));
                assert!(!goes_on, "{}: a line end within a paragraph: {two:?}", command.get_name());
            }
            command.get_subcommands().for_each(look);
        }
        look(&Cli::command());
    }

    /// What is not given stays as it is there: a default would say otherwise.
    #[test]
    fn who_alters_a_stream_is_told_of_no_defaults() {
        let all = Cli::command();
        let stream = all.find_subcommand("stream").expect("there is one");
        let help = |name: &str| {
            let mut command = stream.find_subcommand(name).expect("there is one").clone().term_width(200);
            (command.render_help().to_string(), command.render_long_help().to_string())
        };
        let ((short, long), (short_alter, long_alter)) = (help("create"), help("alter"));
        for (create, alter) in [(short, short_alter), (long, long_alter)] {
            assert!(create.contains("[default: 7d]") && create.contains("[default: 1]"), "{create}");
            assert!(alter.contains("How long records are kept, like 7d; or none"), "{alter}");
            assert!(!alter.contains("[default: "), "{alter}");
        }
    }

    #[test]
    fn a_rate_is_a_whole_number_and_leaving_it_out_is_said() {
        assert_eq!(rate("1000"), Ok(1000));
        for bad in ["0", "-1", "1.5", "10/s", ""] {
            assert!(rate(bad).is_err_and(|said| said.contains("leave the flag out")), "{bad}");
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["127.0.0.1:7070", "node-1:7070", "[::1]:7070", "a:1, b:2,"] {
            assert_eq!(addresses(good), Ok(good.to_owned()));
        }
        for bad in ["", ",", "127.0.0.1", "localhost", ":7070", "a:port", "::1:7070", "a:70700", "a:1,b"] {
            assert!(addresses(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_delimiter_is_one_character() {
        for (text, byte) in [(";", b';'), ("|", b'|'), ("\\t", b'\t'), ("tab", b'\t'), ("\t", b'\t')] {
            assert_eq!(delimiter(text), Ok(byte));
        }
        for bad in ["", ";;", "\"", "\n", "ü", "\\n"] {
            assert!(delimiter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn blocks_are_given_up_with_their_log_and_both_are_said() {
        assert_eq!(blocks("7"), Ok(Blocks { first: 7, last: 7 }));
        assert_eq!(blocks("1-99"), Ok(Blocks { first: 1, last: 99 }));
        for bad in ["", "-", "0-5", "9-1", "1-2-3", "a-b"] {
            assert!(blocks(bad).is_err(), "{bad}");
        }
        assert_eq!(one_log("1/4/0"), Ok(LogId { node: 1, epoch: 4, vlog: 0 }));
        assert!(one_log("1/4").is_err() && one_log("1").is_err());
        for line in ["--log 1/4/0", "--blocks 1-99", "--gone 1", "--log 1 --blocks 1-99"] {
            let words = ["kera", "streamlet", "accept-loss", "s/3"].into_iter().chain(line.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn what_scripts_rely_on_is_understood() {
        for line in [
            "serve --data d --listen 127.0.0.1:1 --http-listen none --config f --log-format json",
            "stream create s --streamlets 4 --lanes 2 --segments-per-group 8 --replication 1 --durability power --order none \
             --retention-time 7d --retention-bytes 10GiB --cleanup compact --connect a:1 --json",
            "produce s --format records --null-value null --key-separator :",
            "produce s --file f --format csv --delimiter ; --csv-types text --from-line 17",
            "produce s --file f --format ndjson --key-field k --timestamp-field t --rate 5 --compression lz4 --chunk-bytes 1KiB \
             --linger-ms 5 --on-error skip",
            "consume s --application a --from earliest --max 3 --follow --format json",
            "consume s --last 5 --follow --json",
            "consume s --last 100000 --max 1 --key a --key b --streamlets 0-3,7 --streamlets 9 --lanes 0,2-3",
            "consume s --from ordinal:7",
            "consume s --key 00ff --key-encoding hex --key-separator :",
            "produce s --key-field k --key-encoding base64",
            "application reset a --to latest --streamlets 0-3,7 --yes",
            "application delete a --stream s --yes",
            "stream list",
            "stream describe s",
            "stream alter s --retention-time none",
            "stream alter s --replication 3 --no-wait",
            "stream delete s --yes",
            "log list --json",
            "log accept-loss 1/4/0 --gone 1,2,3 --yes",
            "log accept-loss 1 --gone 1-3,7",
            "streamlet accept-loss s/3 --yes",
            "streamlet accept-loss s/3 --log 1/4/0 --blocks 1-99 --gone 1,5 --yes",
            "--connect a:1 status",
            "status --check --json",
            "top",
            "config check --config f",
        ] {
            let words = std::iter::once("kera").chain(line.split_whitespace());
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
