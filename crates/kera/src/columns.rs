//! The columns of tables that commands print, and what their help says of each: one line, with the field that `--json` has for it where that is called
//! otherwise or stands elsewhere.
//!
//! Heads are short so that a row fits a terminal; scripts rely on the fields. So neither gets the other's name, and the help says which is which.

/// Nodes of a cluster, of `kera status`.
pub const NODES: [&str; 9] = ["NODE", "STATE", "EPOCH", "VOTES", "RACK", "ADDRESS", "OWNS", "OLDER", "KEEPS"];
/// Streams, of `kera stream list`.
pub const STREAMS: [&str; 8] = ["NAME", "STREAMLETS", "LANES", "COPIES", "DURABILITY", "ORDER", "RETENTION", "CREATED"];
/// Who reads a stream, of `kera stream describe`.
pub const READERS: [&str; 4] = ["APPLICATION", "STATE", "CONSUMERS", "LAG"];
/// Who owns streamlets, of `kera stream describe` in a cluster.
pub const OWNERS: [&str; 3] = ["STREAMLET", "OWNER", "EARLIER OWNERS WITH RECORDS"];
/// Lanes, of `kera stream describe --lanes`; in a cluster the owner stands behind the streamlet.
pub const LANES: [&str; 8] = ["STREAMLET", "LANE", "FIRST", "END", "BYTES", "GROUPS", "SEGMENTS", "LAST WRITE"];
/// Applications, of `kera application list`.
pub const APPLICATIONS: [&str; 5] = ["APPLICATION", "STREAM", "STATE", "CONSUMERS", "LAG"];
/// Consumers of an application, of `kera application describe`.
pub const CONSUMERS: [&str; 5] = ["CONSUMER", "ADDRESS", "JOINED", "LAST HEARD OF", "GROUPS"];
/// How far it is, of the same.
pub const PROGRESS: [&str; 5] = ["STREAMLET", "LANE", "COMMITTED", "END", "LAG"];
/// Where it goes on, of `kera application reset`.
pub const RESET: [&str; 5] = ["STREAMLET", "LANE", "NOW", "THEN", "RECORDS"];

/// Moves that are planned, of `kera rebalance --dry-run`.
pub const PLANNED_MOVES: [&str; 4] = ["STREAMLET", "FROM", "TO", "TAKES"];
/// What nodes own and take before these and after them, of the same.
pub const PLANNED_NODES: [&str; 5] = ["NODE", "STREAMLETS", "THEN", "TAKES", "THEN"];
/// Nodes of a cluster, of `kera cluster level`.
pub const LEVELS: [&str; 3] = ["NODE", "STATE", "UP TO"];
/// Nodes of a cluster, of `kera top` at a terminal.
pub const TOP_NODES: [&str; 7] = ["NODE", "STATE", "STREAMLETS", "IN", "OUT", "CONNECTIONS", "ARENA"];
/// Streams, of the same.
pub const TOP_STREAMS: [&str; 8] =
    ["STREAM", "IN records/s", "IN", "OUT records/s", "RECORDS", "BYTES", "IN MEMORY", "ON DISK"];
/// Applications, of the same.
pub const TOP_APPLICATIONS: [&str; 5] = ["APPLICATION", "STREAM", "CONSUMERS", "OUT records/s", "LAG"];

/// Of `kera status`.
pub const STATUS_HELP: &str = "\
Lines of the node, each with its field in --json:
  arena  memory for data that is not on disk yet and for readers
         (arena_used_bytes, arena_bytes)
  bytes  bytes of the chunks of records that it has, in memory or on disk, as
         bytes of `kera stream describe` and BYTES of `kera top`
         (stored_bytes)
  disk   what their segments take on disk, as ON DISK of `kera top`, and on
         the first disk also virtual logs; without copies for others, which
         are KEEPS (disks: used_bytes, free_bytes, total_bytes)

Columns of the nodes, each with its field in `cluster.nodes` of --json:
  NODE     its number (node)
  STATE    live, draining, drained or lost (state); silent if it does not
           answer and no majority is there to say that it is lost: --json
           tells what was known of it last
  EPOCH    one more each time it joined (epoch)
  VOTES    whether it votes on what the coordinators decide (votes)
  RACK     where it stands, if that was set (rack)
  ADDRESS  where clients reach it (address)
  OWNS     how many streamlets it owns (streamlets)
  OLDER    streamlets that have moved whose older records it serves
           (held_streamlets)
  KEEPS    how much it keeps as copies for others (copies.backup_bytes)

A ? says that nobody told it in time; the field is missing then, or 0.";

/// Of `kera cluster level`.
pub const LEVEL_HELP: &str = "\
Example:
  kera cluster level
      the level in force, and up to which level each node lets it rise

Columns, each with its field in `nodes` of --json:
  NODE   its number (node)
  STATE  live or lost (state)
  UP TO  the highest level that it lets the cluster have; ? if it has not
         said, as a version without levels (level_max)

The level rises by itself when all nodes speak the next one, those that are lost too unless they were given up \
with `kera node remove`. It never falls; until it has risen nodes can go back to the version before. \
--cluster-level-max of `kera serve` holds it back.";

/// Of `kera rebalance`.
pub const REBALANCE_HELP: &str = "\
Examples:
  kera rebalance --dry-run
      the moves that would do it, and what nodes take before and after
  kera rebalance
      does them, a few at a time, and says how far it is

What producers append counts more than how many streamlets a node owns, from 1 MiB/s in all on. Nodes within a \
tenth of the mean are left alone. Streams that are not moved by themselves are moved too: compacted ones, and \
those with one copy or without retention.

No data is copied: what is written from now on goes to the new owner, what was written before is served where it \
is until retention takes it. Producers and consumers follow by themselves. Ctrl-C stops between two moves; nothing \
has to be undone.

Columns of --dry-run, each with its field in `moves` of --json:
  STREAMLET  what is moved (stream, streamlet)
  FROM       the node that owns it (from)
  TO         the node that gets it (to)
  TAKES      bytes that it takes from producers per second (bytes_per_s)

and in `nodes`:
  NODE        its number (node)
  STREAMLETS  how many it owns (streamlets)
  TAKES       bytes that it takes from producers per second (bytes_per_s)
  THEN        the same after the moves (streamlets_after, bytes_per_s_after)";

/// Of `kera log list`.
pub const LOGS_HELP: &str = "\
Example:
  kera log list
      which blocks of which logs, and which nodes to start

Lines of each log, with their fields in `logs` of --json:
  log            its name, NODE/EPOCH/NUMBER, which kera log accept-loss takes
                 (log, and node, epoch, number)
  blocks         which are missing, and which nodes had them (missing, each
                 with first, last, backups)
  its own node   the broker whose log it is (node)
  streamlets     those that may have something in it (streamlets)

Nodes are live (live_nodes), lost: to be started (lost_nodes), or given up. `end` is the number of the last block; \
where nobody knows that it is missing, and so is `last`.

Brokers write their streamlets with copies to virtual logs, and backups keep these. When a broker is lost others \
take over from the backups. If all of those that had some blocks are lost too, who takes over waits: start one of \
them, with its disks, and nothing is lost.";

/// Of `kera top`.
pub const TOP_HELP: &str = "\
Examples:
  kera top
      tables that refresh in place; q, Esc or Ctrl-C ends it
  kera top --count 1
      one look, as lines; after more looks the last one is printed so
  kera top | cat
      a line for each node, stream, application and PROBLEM, like in_bytes_s=0
  kera top --json
      an object for each look, on a line of its own

Columns of nodes of a cluster, each with its field in `nodes` of --json:
  NODE         its number (node)
  STATE        live, lost, or silent if it does not answer (state)
  STREAMLETS   how many it owns (streamlets)
  IN           bytes that it takes per second (in_bytes_s)
  OUT          bytes that it sends to readers per second (out_bytes_s)
  CONNECTIONS  connections to it (connections)
  ARENA        how much of its memory for data is in use
               (arena_used_bytes, arena_bytes)

Columns of streams (`streams`):
  STREAM         its name (name)
  IN records/s   records that it takes per second (in_records_s)
  IN             bytes that it takes per second (in_bytes_s)
  OUT records/s  records that applications read per second (out_records_s)
  RECORDS        records that can be read (records)
  BYTES          bytes of their chunks (bytes)
  IN MEMORY      memory of the segments that they are in (memory_bytes)
  ON DISK        what these take on disk, without copies at other nodes
                 (disk_bytes)

Columns of applications (`applications`):
  APPLICATION    its name (name)
  STREAM         what it reads (stream)
  CONSUMERS      how many it has (members)
  OUT records/s  records that it reads per second (out_records_s)
  LAG            records that it has not committed (lag)

Rates are those since the look before: at the first one they are 0. On a narrow terminal some columns are left out.";

/// Of `kera stream list`.
pub const STREAMS_HELP: &str = "\
Columns, each with its field in --json:
  NAME        its name (name)
  STREAMLETS  its partitions (options.streamlets)
  LANES       append positions of each streamlet (options.lanes)
  COPIES      copies on different nodes (options.replication); `1 of 3`: it is
              to have 3 (replication_wanted)
  DURABILITY  what acknowledged records survive (options.durability)
  ORDER       whether a lane is read by one consumer at a time (options.order)
  RETENTION   what is kept (options.retention_ms, retention_bytes,
              retention_consumed and cleanup)
  CREATED     the day on which it was made (created_ms)";

/// Of `kera stream describe`.
pub const STREAM_HELP: &str = "\
Columns of applications, each with its field in `applications` of --json:
  APPLICATION  who reads it (name)
  STATE        active if it has consumers, empty if not (state)
  CONSUMERS    how many it has (members)
  LAG          records that it has not committed (lag)

Columns of streamlets in a cluster (`owners`):
  STREAMLET                    its number (streamlet)
  OWNER                        the node that takes its records (owner)
  EARLIER OWNERS WITH RECORDS  nodes that serve older ones (earlier)

Columns of lanes, with --lanes (`lanes_used`):
  STREAMLET   its streamlet (streamlet)
  OWNER       the node that owns that, in a cluster (owner, in `owners`)
  LANE        its number in the streamlet (lane)
  FIRST       ordinal of the first record that is kept (first_ordinal)
  END         ordinal behind the last that can be read (durable_ordinal)
  BYTES       bytes of its chunks (bytes)
  GROUPS      its groups, the pieces that consumers share (groups)
  SEGMENTS    its segments, of which groups are made (segments)
  LAST WRITE  when it was last written to (last_append_ms)";

/// Of `kera application list`.
pub const APPLICATIONS_HELP: &str = "\
Columns, each with its field in --json:
  APPLICATION  its name (name)
  STREAM       what it reads (stream)
  STATE        active if it has consumers, empty if not (state)
  CONSUMERS    how many it has (members)
  LAG          records that it has not committed (lag)";

/// Of `kera application describe`.
pub const APPLICATION_HELP: &str = "\
Columns of consumers, each with its field in `members` of --json:
  CONSUMER       what it calls itself (name), or else its number (member)
  ADDRESS        where it connects from (address)
  JOINED         when it came (joined_ms)
  LAST HEARD OF  when it last said that it lives (heartbeat_ms)
  GROUPS         groups that it reads just now (leases)

Columns of lanes (`lanes`):
  STREAMLET  its streamlet (streamlet)
  LANE       its number in the streamlet (lane)
  COMMITTED  ordinal at which it goes on; - if it has committed nothing
             (committed_ordinal)
  END        ordinal behind the last that can be read (durable_ordinal)
  LAG        records between the two (lag)";

/// Of `kera application reset`.
pub const RESET_HELP: &str = "\
Examples:
  kera application reset report --to earliest
  kera application reset report --to 2h --yes
  kera application reset report --to 2026-01-31T12:00:00Z --dry-run
  kera application reset report --to latest --stream flights
  kera application reset report --to ordinal:0 --streamlets 0-3,7

Columns, each with its field in `offsets` of --json:
  STREAMLET  the streamlet (streamlet)
  LANE       the lane in it (lane)
  NOW        ordinal at which it goes on now; - if nothing is committed (from)
  THEN       ordinal at which it goes on then (to, and ordinal)
  RECORDS    how many are read again, or skipped (read_again, skipped)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// What is printed under a head must not have to be guessed.
    #[test]
    fn the_help_of_a_command_explains_every_column_that_it_prints() {
        let tables: [(&str, &[&[&str]]); 9] = [
            ("top", &[&TOP_NODES, &TOP_STREAMS, &TOP_APPLICATIONS]),
            ("cluster level", &[&LEVELS]),
            ("rebalance", &[&PLANNED_MOVES, &PLANNED_NODES]),
            ("status", &[&NODES]),
            ("stream list", &[&STREAMS]),
            ("stream describe", &[&READERS, &OWNERS, &LANES]),
            ("application list", &[&APPLICATIONS]),
            ("application describe", &[&CONSUMERS, &PROGRESS]),
            ("application reset", &[&RESET]),
        ];
        for (line, tables) in tables {
            let mut command = Cli::command();
            for word in line.split(' ') {
                command = command.find_subcommand(word).expect("there is such a command").clone();
            }
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let explains = |column: &str| {
                let mut lines = help.lines().filter_map(|line| line.strip_prefix("  ")?.strip_prefix(column));
                lines.any(|rest| rest.starts_with("  ") && !rest.trim().is_empty())
            };
            for column in tables.iter().copied().flatten().copied() {
                assert!(explains(column), "{line}: {column}\n{help}");
            }
        }
    }
}
