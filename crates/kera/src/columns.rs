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

/// Of `kera status`.
pub const STATUS_HELP: &str = "\
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
        let tables: [(&str, &[&[&str]]); 6] = [
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
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
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
