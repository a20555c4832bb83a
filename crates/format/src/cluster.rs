//! What the coordinators of a cluster agree on beyond the [catalog](crate::catalog): nodes, owners of streamlets, views of
//! virtual logs, moves. `docs/replication.md` says what they mean and `docs/formats/cluster.md` lays them out.
//!
//! They are framed as the entries of the catalog are, with kinds from 20 on, so that one log and one snapshot hold
//! both: [`ClusterEntry::Catalog`] is such an entry of the catalog.

use crate::checksum::crc32c;
use crate::wire::{put, u16_at, u32_at, u64_at};
use crate::{FormatError, LaneId, StreamId, align8, catalog};

mod examples;
mod handed;
mod reason;
mod writer;

pub use examples::examples;
pub use handed::{
    HANDED_BYTES_MAX, HANDED_LARGE_BYTES_MAX, HANDED_LARGE_TOTAL_BYTES_MAX, HANDED_USUAL_TOTAL_BYTES_MAX,
};
pub use reason::OwnerReason;
use writer::Writer;

/// The version of the bodies.
pub const CLUSTER_VERSION: u16 = 1;
/// The longest address or name of a rack.
pub const TEXT_BYTES_MAX: usize = 255;
/// Most backups of a view.
pub const BACKUPS_MAX: usize = 16;
/// Most copies of a stream, its owners' included.
pub const COPIES_MAX: u32 = 16;
/// Most settings that nodes must share.
pub const SETTINGS_MAX: usize = 16;
/// Most nodes of a membership.
pub const MEMBERS_MAX: usize = 4096;
/// The largest entry: a membership of so many nodes.
pub const CLUSTER_ENTRY_BYTES_MAX: usize = 2 << 20;

/// Most ranges of streamlets in what a node says of its rebuilds.
pub const REBUILD_RUNS_MAX: usize = 1000;
/// Most logs in it.
pub const REBUILD_LOGS_MAX: usize = 1000;
/// Most ends of logs in what a node says of those that it opens streamlets with.
pub const USED_ENDS_MAX: usize = 1000;

/// Number of a node in its cluster, from 1; 0 is no node.
pub type NodeNumber = u32;

/// Where a backup stands, seen from the node whose log may be copied to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Rack {
    /// Nobody has told.
    #[default]
    Unknown,
    /// In the rack of that node.
    Own,
    /// In another one; equal numbers are the same rack.
    Other(u32),
}

/// A virtual log: of which incarnation of which broker, and which of its logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogName {
    /// The broker.
    pub node: NodeNumber,
    /// Its epoch.
    pub epoch: u32,
    /// Which of its virtual logs.
    pub log: u32,
}

impl std::fmt::Display for LogName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "log {} of node {} epoch {}", self.log, self.node, self.epoch)
    }
}

/// Streamlets that their owner rebuilds, in one owner epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RebuildRun {
    /// Of which stream.
    pub stream: StreamId,
    /// The first streamlet.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// In which owner epoch they were taken over.
    pub owner_epoch: u32,
}

/// A place in the coordinators' own log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RaftPlace {
    /// Term of the leader that wrote it.
    pub term: u64,
    /// That leader.
    pub leader: u64,
    /// Number of the entry.
    pub index: u64,
}

/// Roles of a node, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Roles(pub u8);

impl Roles {
    /// Keeps the catalog and votes.
    pub const COORDINATOR: Roles = Roles(1);
    /// Serves streams.
    pub const BROKER: Roles = Roles(2);
    /// Keeps copies.
    pub const BACKUP: Roles = Roles(4);
    /// All three.
    pub const ALL: Roles = Roles(7);

    /// Whether all of `other` are among them.
    pub fn has(self, other: Roles) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where a node is reached; empty: not at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Doors {
    /// By other nodes.
    pub cluster: String,
    /// By clients of the native protocol.
    pub native: String,
    /// By Kafka clients.
    pub kafka: String,
    /// By HTTP.
    pub http: String,
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterEntry {
    /// An entry of the catalog.
    Catalog(catalog::Entry),
    /// The cluster has come into being.
    Founded {
        /// Its uuid.
        cluster: [u8; 16],
        /// The first owner epoch: above every epoch in ids of groups that its first node has.
        owner_epoch: u32,
        /// Settings that all nodes share, with their values.
        settings: Vec<(String, String)>,
    },
    /// A node has started, or come back.
    NodeJoined {
        /// Its number.
        node: NodeNumber,
        /// The epoch that it was given.
        epoch: u32,
        /// Its uuid.
        uuid: [u8; 16],
        /// What it does.
        roles: Roles,
        /// When, milliseconds since 1970.
        at_ms: i64,
        /// Its rack; empty: none.
        rack: String,
        /// Where it is reached.
        doors: Doors,
    },
    /// A node is lost as far as the others are concerned.
    NodeFenced {
        /// Which.
        node: NodeNumber,
        /// Which incarnation.
        epoch: u32,
    },
    /// A node that was fenced is gone for good.
    NodeRemoved {
        /// Which.
        node: NodeNumber,
    },
    /// A range of streamlets has another owner.
    OwnerChanged {
        /// Of which stream.
        stream: StreamId,
        /// The first streamlet.
        first: u32,
        /// How many.
        count: u32,
        /// The owner.
        node: NodeNumber,
        /// Its epoch.
        epoch: u32,
        /// The owner epoch.
        owner_epoch: u32,
        /// Why.
        reason: OwnerReason,
        /// The move, if that is why, or the owner epoch that is given up.
        number: u64,
    },
    /// A node that came back gets the streamlets that it had, with a higher owner epoch.
    OwnerReturned {
        /// The node.
        node: NodeNumber,
        /// The epoch in which it has come back.
        epoch: u32,
        /// Their owner epoch from now on.
        owner_epoch: u32,
        /// Those of streams with several copies too; otherwise only of those with one.
        all: bool,
    },
    /// Who has the groups of an owner epoch that are not with the owner.
    GroupsHeld {
        /// Of which stream.
        stream: StreamId,
        /// The first streamlet.
        first: u32,
        /// How many.
        count: u32,
        /// In whose ids the groups have this owner epoch.
        owner_epoch: u32,
        /// Who has them; 0: nobody any more.
        node: NodeNumber,
    },
    /// A virtual log has a view: its first, or another one.
    ViewAgreed {
        /// Which log.
        log: LogName,
        /// Number of the view, from 1.
        view: u32,
        /// The first block in it, from 1.
        first: u64,
        /// Who has the log from there on.
        backups: Vec<NodeNumber>,
    },
    /// A backup has got the blocks of a view that is not the newest.
    BackupAdded {
        /// Which log.
        log: LogName,
        /// Which view.
        view: u32,
        /// The backup.
        backup: NodeNumber,
    },
    /// A log of a fenced broker ends.
    LogEnded {
        /// Which log.
        log: LogName,
        /// Its last block; 0: it has none.
        end: u64,
    },
    /// A log is not needed any more.
    LogGivenUp {
        /// Which.
        log: LogName,
    },
    /// A streamlet is to move.
    MoveNoted {
        /// Number of the move.
        number: u64,
        /// Of which stream.
        stream: StreamId,
        /// Which streamlet.
        streamlet: u32,
        /// Who has it.
        from: NodeNumber,
        /// Who gets it.
        to: NodeNumber,
    },
    /// A move was called off.
    MoveCalledOff {
        /// Which.
        number: u64,
    },
    /// What a lost broker had of a range of streamlets is rebuilt at their owner, with all its copies.
    StreamletsRebuilt {
        /// Of which stream.
        stream: StreamId,
        /// The first streamlet.
        first: u32,
        /// How many.
        count: u32,
        /// The owner that has rebuilt them.
        node: NodeNumber,
        /// Its epoch.
        epoch: u32,
        /// The owner epoch in which it took them over. Zero below level [`REBUILT_IN`](crate::level::REBUILT_IN), where nobody says so.
        owner_epoch: u32,
    },
    /// Nobody needs the blocks of an older view of a log any more.
    ViewGivenUp {
        /// Which log.
        log: LogName,
        /// Which view.
        view: u32,
    },
    /// What a streamlet's owner was told when it took it over from another one by a move: where its lanes stood, and their producers.
    StreamletHanded {
        /// Of which stream.
        stream: StreamId,
        /// Which streamlet.
        streamlet: u32,
        /// The owner epoch in which it was taken over.
        owner_epoch: u32,
        /// A `StreamletState` of the protocol, version 1; empty: nobody needs it any more.
        state: Vec<u8>,
    },
    /// A node is to own nothing, or may again.
    NodeDraining {
        /// Which.
        node: NodeNumber,
        /// Whether it is to own nothing.
        draining: bool,
    },
    /// Groups that a node holds and does not own have been lost there: they are to be rebuilt by the owner.
    GroupsLost {
        /// Of which stream.
        stream: StreamId,
        /// The first streamlet.
        first: u32,
        /// How many.
        count: u32,
        /// In whose ids the groups have this owner epoch.
        owner_epoch: u32,
    },
    /// All nodes speak the next [level](crate::level), and from here on it is in force.
    LevelRaised {
        /// That level.
        level: u32,
    },
    /// Records at the front of a lane were deleted, or fewer of them than was thought: its owner says where it begins.
    LaneBegins {
        /// Of which stream.
        stream: StreamId,
        /// Which streamlet.
        streamlet: u32,
        /// Which lane of it.
        lane: LaneId,
        /// The owner epoch of whoever says so.
        owner_epoch: u32,
        /// The ordinal of the first record that is there.
        ordinal: u64,
    },
    /// A node says of all streamlets that it has taken over and not rebuilt which logs of lost nodes it needs for that. It stands for what the
    /// node has said before.
    RebuildNeeds {
        /// The node.
        node: NodeNumber,
        /// Its epoch.
        epoch: u32,
        /// The streamlets; none: it rebuilds nothing.
        runs: Vec<RebuildRun>,
        /// The logs.
        logs: Vec<LogName>,
    },
    /// A node is about to open streamlets of lost brokers with what these logs have up to their ends: from here on they are not taken back.
    EndsUsed {
        /// The node; 0: nobody yet, but all backups of these logs' newest views have shown these ends.
        node: NodeNumber,
        /// Its epoch; in a snapshot 0.
        epoch: u32,
        /// The logs, each with its last block.
        ends: Vec<(LogName, u64)>,
    },
    /// The end of a log that nobody has opened anything with is taken back: nobody who is left has it.
    EndTakenBack {
        /// Which log.
        log: LogName,
        /// Its last block now: a lower one; 0: it has none.
        end: u64,
    },
    /// A person says that what backups had of the end of a log, which are gone for good, is gone with them: its end counts as one that nobody has opened
    /// anything with, and may be taken back, also to what a backup has that is not certain of it.
    EndGivenUp {
        /// Which log.
        log: LogName,
    },
    /// All older groups of a streamlet that its owner rebuilds are at a node that has come back with them: it holds them from here on.
    /// Of those that the owner has written itself since an earlier owner epoch [`GroupsHeld`](ClusterEntry::GroupsHeld) says behind it, in the same batch, that they stay with the owner.
    GroupsReturned {
        /// Of which stream.
        stream: StreamId,
        /// Which streamlet.
        streamlet: u32,
        /// The owner epoch of who rebuilds it.
        owner_epoch: u32,
        /// Who has the groups.
        node: NodeNumber,
        /// Its epoch.
        epoch: u32,
    },
    /// In a snapshot: streamlets that are being rebuilt may need something of the logs of a node, up to those of this epoch of it. Of streamlets of which no
    /// such entry speaks it may be any log.
    RebuiltFrom {
        /// Of which stream.
        stream: StreamId,
        /// The first streamlet.
        first: u32,
        /// How many.
        count: u32,
        /// Whose logs.
        node: NodeNumber,
        /// The last of its epochs.
        epoch: u32,
    },
    /// A stream is to have another number of copies than it has: its streamlets get them one by one.
    CopiesWanted {
        /// Which stream.
        stream: StreamId,
        /// How many, the owner's included; 0: it has what it was to have, or is to keep what it has.
        copies: u32,
    },
    /// A node has as many copies as are wanted of all that it holds of a streamlet, as far as that is in logs of this incarnation.
    CopiesMade {
        /// Of which stream.
        stream: StreamId,
        /// Which streamlet.
        streamlet: u32,
        /// The node.
        node: NodeNumber,
        /// Its epoch.
        epoch: u32,
        /// How many.
        copies: u32,
    },
    /// In a snapshot: streamlets have another number of copies than their stream says.
    StreamletCopies {
        /// Of which stream.
        stream: StreamId,
        /// The first streamlet.
        first: u32,
        /// How many streamlets.
        count: u32,
        /// How many copies.
        copies: u32,
    },
    /// A person gives up what a streamlet that is being rebuilt may need of a view of a lost log; others wait for that view as before.
    ViewGivenUpFor {
        /// Of which stream.
        stream: StreamId,
        /// Which streamlet.
        streamlet: u32,
        /// The owner epoch of who rebuilds it: that one looks first whether somebody gives it these blocks after all.
        owner_epoch: u32,
        /// Which log.
        log: LogName,
        /// Number of the view.
        view: u32,
    },
    /// In a snapshot: what the other entries do not tell.
    ClusterCounters {
        /// The number of the next move.
        next_move: u64,
        /// The next owner epoch.
        next_owner_epoch: u32,
    },
    /// In a snapshot: up to where of the coordinators' log it goes.
    Applied {
        /// There.
        place: RaftPlace,
    },
    /// Who votes, and who is told.
    Membership {
        /// Where in the log it was written; nothing if it is an entry of the log itself.
        place: Option<RaftPlace>,
        /// Voters; two lists while one gives way to another.
        voters: Vec<Vec<u64>>,
        /// Everybody, with the address for other nodes.
        nodes: Vec<(u64, String)>,
    },
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], FormatError> {
        FormatError::need("cluster entry body", bytes, self.0.len())?;
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        Ok(taken)
    }
    fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32_at(self.take(4)?, 0))
    }
    fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64_at(self.take(8)?, 0))
    }
    fn uuid(&mut self) -> Result<[u8; 16], FormatError> {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(self.take(16)?);
        Ok(uuid)
    }
    fn count(&mut self, field: &'static str, most: usize) -> Result<usize, FormatError> {
        let count = self.u32()? as usize;
        if count > most {
            return Err(FormatError::OverLimit { field, value: count as u64, limit: most as u64 });
        }
        Ok(count)
    }
    fn text(&mut self, field: &'static str) -> Result<String, FormatError> {
        let bytes = self.count(field, TEXT_BYTES_MAX)?;
        let bytes = self.take(bytes)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| FormatError::BadField {
            field,
            value: bytes.len() as u64,
            allowed: "UTF-8",
        })
    }
    fn log(&mut self) -> Result<LogName, FormatError> {
        Ok(LogName { node: self.u32()?, epoch: self.u32()?, log: self.u32()? })
    }
    fn place(&mut self) -> Result<RaftPlace, FormatError> {
        Ok(RaftPlace { term: self.u64()?, leader: self.u64()?, index: self.u64()? })
    }
    fn needs(&mut self) -> Result<ClusterEntry, FormatError> {
        let (node, epoch) = (self.u32()?, self.u32()?);
        let count = self.count("cluster_entry.runs", REBUILD_RUNS_MAX)?;
        let mut run = || {
            let (stream, first) = (StreamId(self.u64()?), self.u32()?);
            Ok(RebuildRun { stream, first, count: self.u32()?, owner_epoch: self.u32()? })
        };
        let runs = (0..count).map(|_| run()).collect::<Result<_, FormatError>>()?;
        let count = self.count("cluster_entry.logs", REBUILD_LOGS_MAX)?;
        let logs = (0..count).map(|_| self.log()).collect::<Result<_, _>>()?;
        Ok(ClusterEntry::RebuildNeeds { node, epoch, runs, logs })
    }
    /// What was rebuilt, with an owner epoch or from before that was said.
    fn rebuilt(&mut self, has_owner_epoch: bool) -> Result<ClusterEntry, FormatError> {
        let (stream, first, count) = (StreamId(self.u64()?), self.u32()?, self.u32()?);
        let (node, epoch) = (self.u32()?, self.u32()?);
        let owner_epoch = if has_owner_epoch { self.u32()? } else { 0 };
        if has_owner_epoch && owner_epoch == 0 {
            let field = "cluster_entry.owner_epoch";
            return Err(FormatError::BadField { field, value: 0, allowed: "1 or higher" });
        }
        Ok(ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch, owner_epoch })
    }

    /// How many copies, the owner's included.
    fn copies(&mut self) -> Result<u32, FormatError> {
        match self.u32()? {
            copies @ 0..=COPIES_MAX => Ok(copies),
            other => {
                let (field, allowed) = ("cluster_entry.copies", "0 to 16");
                Err(FormatError::BadField { field, value: other.into(), allowed })
            }
        }
    }

    fn ends(&mut self) -> Result<ClusterEntry, FormatError> {
        let (node, epoch) = (self.u32()?, self.u32()?);
        let count = self.count("cluster_entry.ends", USED_ENDS_MAX)?;
        let ends = (0..count).map(|_| Ok((self.log()?, self.u64()?))).collect::<Result<_, FormatError>>()?;
        Ok(ClusterEntry::EndsUsed { node, epoch, ends })
    }
    fn switch(&mut self, field: &'static str) -> Result<bool, FormatError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(FormatError::BadField { field, value: other.into(), allowed: "0 or 1" }),
        }
    }
}

impl ClusterEntry {
    fn kind(&self) -> u16 {
        match self {
            ClusterEntry::Catalog(_) => 0,
            ClusterEntry::Founded { .. } => 20,
            ClusterEntry::NodeJoined { .. } => 21,
            ClusterEntry::NodeFenced { .. } => 22,
            ClusterEntry::NodeRemoved { .. } => 23,
            ClusterEntry::OwnerChanged { .. } => 24,
            ClusterEntry::OwnerReturned { .. } => 25,
            ClusterEntry::GroupsHeld { .. } => 26,
            ClusterEntry::ViewAgreed { .. } => 27,
            ClusterEntry::BackupAdded { .. } => 28,
            ClusterEntry::LogEnded { .. } => 29,
            ClusterEntry::LogGivenUp { .. } => 30,
            ClusterEntry::MoveNoted { .. } => 31,
            ClusterEntry::MoveCalledOff { .. } => 32,
            ClusterEntry::ClusterCounters { .. } => 33,
            ClusterEntry::Applied { .. } => 34,
            ClusterEntry::Membership { .. } => 35,
            ClusterEntry::StreamletsRebuilt { owner_epoch: 0, .. } => 36,
            ClusterEntry::ViewGivenUp { .. } => 37,
            ClusterEntry::StreamletHanded { .. } => 40,
            ClusterEntry::NodeDraining { .. } => 41,
            ClusterEntry::GroupsLost { .. } => 42,
            ClusterEntry::LevelRaised { .. } => 43,
            ClusterEntry::LaneBegins { .. } => 44,
            ClusterEntry::RebuildNeeds { .. } => 45,
            ClusterEntry::StreamletsRebuilt { .. } => 46,
            ClusterEntry::EndsUsed { .. } => 47,
            ClusterEntry::EndTakenBack { .. } => 48,
            ClusterEntry::GroupsReturned { .. } => 49,
            ClusterEntry::RebuiltFrom { .. } => 50,
            ClusterEntry::EndGivenUp { .. } => 51,
            ClusterEntry::CopiesWanted { .. } => 52,
            ClusterEntry::CopiesMade { .. } => 53,
            ClusterEntry::StreamletCopies { .. } => 54,
            ClusterEntry::ViewGivenUpFor { .. } => 55,
        }
    }

    /// The level of a cluster from which on all of its nodes can read the entry: it is not written below that.
    pub fn level(&self) -> u32 {
        match self {
            ClusterEntry::LevelRaised { level } => *level,
            ClusterEntry::Catalog(entry) => entry.level(),
            // Earlier versions refuse it, and would know another state from then on.
            ClusterEntry::MoveNoted { from, to, .. } if from == to => crate::level::SELF_MOVES,
            ClusterEntry::LaneBegins { .. } => crate::level::AGREED_FLOORS,
            ClusterEntry::RebuildNeeds { .. } => crate::level::REBUILD_NEEDS,
            ClusterEntry::StreamletsRebuilt { owner_epoch: 1.., .. } => crate::level::REBUILT_IN,
            ClusterEntry::EndsUsed { .. } | ClusterEntry::EndTakenBack { .. } => crate::level::USED_ENDS,
            ClusterEntry::GroupsReturned { .. } => crate::level::RETURNED_GROUPS,
            ClusterEntry::RebuiltFrom { .. } => crate::level::REBUILT_FROM,
            ClusterEntry::EndGivenUp { .. } => crate::level::LOST_ENDS,
            ClusterEntry::ViewGivenUpFor { .. } => crate::level::LOST_FOR_ONE,
            ClusterEntry::CopiesWanted { .. }
            | ClusterEntry::CopiesMade { .. }
            | ClusterEntry::StreamletCopies { .. }
            | ClusterEntry::OwnerChanged { reason: OwnerReason::Copied, .. } => crate::level::CHANGED_COPIES,
            ClusterEntry::OwnerChanged { reason: OwnerReason::GivenBack, .. } => crate::level::GIVEN_BACK,
            // Earlier versions cannot read it.
            ClusterEntry::StreamletHanded { state, .. } if state.len() > HANDED_BYTES_MAX => crate::level::LARGE_MOVES,
            _ => crate::level::FIRST,
        }
    }

    /// Appends the entry with its header and padding to `out`.
    pub fn encode(&self, index: u64, out: &mut Vec<u8>) {
        if let ClusterEntry::Catalog(entry) = self {
            return entry.encode(index, out);
        }
        let start = out.len();
        out.extend_from_slice(&[0; catalog::ENTRY_HEADER_BYTES]);
        self.encode_body(&mut Writer(out));
        let entry = &mut out[start..];
        let entry_bytes = entry.len();
        put(entry, 4, &(entry_bytes as u32).to_le_bytes());
        put(entry, 8, &index.to_le_bytes());
        put(entry, 16, &self.kind().to_le_bytes());
        put(entry, 18, &CLUSTER_VERSION.to_le_bytes());
        let crc = crc32c(&entry[4..]);
        put(entry, 0, &crc.to_le_bytes());
        out.resize(start + align8(entry_bytes), 0);
    }

    fn encode_body(&self, out: &mut Writer<'_>) {
        match self {
            ClusterEntry::Catalog(_) => unreachable!("encoded as an entry of the catalog"),
            ClusterEntry::Founded { cluster, owner_epoch, settings } => {
                out.bytes(cluster).u32(*owner_epoch).u32(settings.len() as u32);
                for (name, value) in settings {
                    out.text(name).text(value);
                }
            }
            ClusterEntry::NodeJoined { node, epoch, uuid, roles, at_ms, rack, doors } => {
                out.u32(*node).u32(*epoch).bytes(uuid).u64(*at_ms as u64).u32(roles.0.into()).text(rack);
                out.text(&doors.cluster).text(&doors.native).text(&doors.kafka).text(&doors.http);
            }
            ClusterEntry::NodeFenced { node, epoch } => {
                out.u32(*node).u32(*epoch);
            }
            ClusterEntry::NodeRemoved { node } => {
                out.u32(*node);
            }
            ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number } => {
                out.u64(stream.0).u64(*number).u32(*first).u32(*count).u32(*node).u32(*epoch).u32(*owner_epoch);
                out.u32(*reason as u32);
            }
            ClusterEntry::OwnerReturned { node, epoch, owner_epoch, all } => {
                out.u32(*node).u32(*epoch).u32(*owner_epoch).u8((*all).into());
            }
            other => other.encode_log_or_move(out),
        }
    }

    fn encode_log_or_move(&self, out: &mut Writer<'_>) {
        match self {
            ClusterEntry::GroupsHeld { stream, first, count, owner_epoch, node } => {
                out.u64(stream.0).u32(*first).u32(*count).u32(*owner_epoch).u32(*node);
            }
            ClusterEntry::ViewAgreed { log, view, first, backups } => {
                out.log(log).u32(*view).u64(*first).u32(backups.len() as u32);
                for backup in backups {
                    out.u32(*backup);
                }
            }
            ClusterEntry::BackupAdded { log, view, backup } => {
                out.log(log).u32(*view).u32(*backup);
            }
            ClusterEntry::ViewGivenUp { log, view } => {
                out.log(log).u32(*view);
            }
            ClusterEntry::LogEnded { log, end } | ClusterEntry::EndTakenBack { log, end } => {
                out.log(log).u64(*end);
            }
            ClusterEntry::LogGivenUp { log } | ClusterEntry::EndGivenUp { log } => {
                out.log(log);
            }
            ClusterEntry::MoveNoted { number, stream, streamlet, from, to } => {
                out.u64(*number).u64(stream.0).u32(*streamlet).u32(*from).u32(*to);
            }
            ClusterEntry::MoveCalledOff { number } => {
                out.u64(*number);
            }
            ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch, owner_epoch } => {
                out.u64(stream.0).u32(*first).u32(*count).u32(*node).u32(*epoch).u32_unless_zero(*owner_epoch);
            }
            ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state } => {
                out.u64(stream.0).u32(*streamlet).u32(*owner_epoch).u32(state.len() as u32).bytes(state);
            }
            ClusterEntry::NodeDraining { node, draining } => {
                out.u32(*node).u8((*draining).into());
            }
            ClusterEntry::GroupsLost { stream, first, count, owner_epoch } => {
                out.u64(stream.0).u32(*first).u32(*count).u32(*owner_epoch);
            }
            ClusterEntry::LevelRaised { level } => {
                out.u32(*level);
            }
            ClusterEntry::LaneBegins { stream, streamlet, lane, owner_epoch, ordinal } => {
                out.u64(stream.0).u32(*streamlet).u32(lane.0).u32(*owner_epoch).u64(*ordinal);
            }
            ClusterEntry::RebuildNeeds { node, epoch, runs, logs } => out.needs(*node, *epoch, runs, logs),
            ClusterEntry::EndsUsed { node, epoch, ends } => out.ends(*node, *epoch, ends),
            ClusterEntry::GroupsReturned { stream, streamlet, owner_epoch, node, epoch } => {
                out.u64(stream.0).u32(*streamlet).u32(*owner_epoch).u32(*node).u32(*epoch);
            }
            ClusterEntry::RebuiltFrom { stream, first, count, node, epoch } => {
                out.u64(stream.0).u32(*first).u32(*count).u32(*node).u32(*epoch);
            }
            ClusterEntry::CopiesWanted { stream, copies } => {
                out.u64(stream.0).u32(*copies);
            }
            ClusterEntry::CopiesMade { stream, streamlet, node, epoch, copies } => {
                out.u64(stream.0).u32(*streamlet).u32(*node).u32(*epoch).u32(*copies);
            }
            ClusterEntry::StreamletCopies { stream, first, count, copies } => {
                out.u64(stream.0).u32(*first).u32(*count).u32(*copies);
            }
            ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log, view } => {
                out.u64(stream.0).u32(*streamlet).u32(*owner_epoch).log(log).u32(*view);
            }
            other => other.encode_group(out),
        }
    }

    /// What is about the coordinators themselves.
    fn encode_group(&self, out: &mut Writer<'_>) {
        match self {
            ClusterEntry::ClusterCounters { next_move, next_owner_epoch } => {
                out.u64(*next_move).u32(*next_owner_epoch);
            }
            ClusterEntry::Applied { place } => {
                out.place(place);
            }
            ClusterEntry::Membership { place, voters, nodes } => {
                out.u8(place.is_some().into()).place(&place.unwrap_or_default()).members(voters, nodes);
            }
            other => unreachable!("{other:?} is encoded before"),
        }
    }

    /// Reads and verifies the entry at the start of `bytes`: its index, itself, and the bytes it takes with padding.
    pub fn parse(bytes: &[u8]) -> Result<(u64, ClusterEntry, usize), FormatError> {
        FormatError::need("cluster entry header", catalog::ENTRY_HEADER_BYTES, bytes.len())?;
        if u16_at(bytes, 16) < 20 {
            let (index, entry, size) = catalog::Entry::parse(bytes)?;
            return Ok((index, ClusterEntry::Catalog(entry), size));
        }
        let entry_bytes = u32_at(bytes, 4) as usize;
        let limit = CLUSTER_ENTRY_BYTES_MAX;
        if !(catalog::ENTRY_HEADER_BYTES..=limit).contains(&entry_bytes) {
            return Err(FormatError::BadField {
                field: "cluster_entry.entry_bytes",
                value: entry_bytes as u64,
                allowed: "24 to 2 MiB",
            });
        }
        FormatError::need("cluster entry", align8(entry_bytes), bytes.len())?;
        let (found, computed) = (u32_at(bytes, 0), crc32c(&bytes[4..entry_bytes]));
        if found != computed {
            return Err(FormatError::Checksum { what: "cluster_entry.checksum", found, computed });
        }
        if u16_at(bytes, 18) != CLUSTER_VERSION {
            let value = u16_at(bytes, 18).into();
            return Err(FormatError::BadField { field: "cluster_entry.version", value, allowed: "1" });
        }
        let mut body = Fields(&bytes[catalog::ENTRY_HEADER_BYTES..entry_bytes]);
        let entry = ClusterEntry::parse_body(u16_at(bytes, 16), &mut body)?;
        if !body.0.is_empty() {
            let value = body.0.len() as u64;
            return Err(FormatError::BadField { field: "cluster_entry.rest", value, allowed: "no byte behind it" });
        }
        Ok((u64_at(bytes, 8), entry, align8(entry_bytes)))
    }

    fn parse_body(kind: u16, body: &mut Fields<'_>) -> Result<ClusterEntry, FormatError> {
        Ok(match kind {
            20 => {
                let (cluster, owner_epoch) = (body.uuid()?, body.u32()?);
                let count = body.count("cluster_entry.settings", SETTINGS_MAX)?;
                let setting = |body: &mut Fields<'_>| Ok((body.text("cluster_entry.setting")?, body.text("value")?));
                let settings = (0..count).map(|_| setting(body)).collect::<Result<_, FormatError>>()?;
                ClusterEntry::Founded { cluster, owner_epoch, settings }
            }
            21 => {
                let (node, epoch, uuid, at_ms) = (body.u32()?, body.u32()?, body.uuid()?, body.u64()? as i64);
                let roles = match body.u32()? {
                    roles @ 1..=7 => Roles(roles as u8),
                    other => {
                        let (field, allowed) = ("cluster_entry.roles", "1 to 7");
                        return Err(FormatError::BadField { field, value: other.into(), allowed });
                    }
                };
                let rack = body.text("cluster_entry.rack")?;
                let mut door = || body.text("cluster_entry.door");
                let doors = Doors { cluster: door()?, native: door()?, kafka: door()?, http: door()? };
                ClusterEntry::NodeJoined { node, epoch, uuid, roles, at_ms, rack, doors }
            }
            22 => ClusterEntry::NodeFenced { node: body.u32()?, epoch: body.u32()? },
            23 => ClusterEntry::NodeRemoved { node: body.u32()? },
            24 => {
                let (stream, number, first, count) = (StreamId(body.u64()?), body.u64()?, body.u32()?, body.u32()?);
                let (node, epoch, owner_epoch) = (body.u32()?, body.u32()?, body.u32()?);
                let reason = OwnerReason::from_number(body.u32()?)?;
                ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number }
            }
            25 => {
                let (node, epoch, owner_epoch) = (body.u32()?, body.u32()?, body.u32()?);
                ClusterEntry::OwnerReturned { node, epoch, owner_epoch, all: body.switch("cluster_entry.all")? }
            }
            _ => return ClusterEntry::parse_log_or_move(kind, body),
        })
    }

    fn parse_log_or_move(kind: u16, body: &mut Fields<'_>) -> Result<ClusterEntry, FormatError> {
        Ok(match kind {
            26 => ClusterEntry::GroupsHeld {
                stream: StreamId(body.u64()?),
                first: body.u32()?,
                count: body.u32()?,
                owner_epoch: body.u32()?,
                node: body.u32()?,
            },
            27 => {
                let (log, view, first) = (body.log()?, body.u32()?, body.u64()?);
                let count = body.count("cluster_entry.backups", BACKUPS_MAX)?;
                let backups = (0..count).map(|_| body.u32()).collect::<Result<_, _>>()?;
                ClusterEntry::ViewAgreed { log, view, first, backups }
            }
            28 => ClusterEntry::BackupAdded { log: body.log()?, view: body.u32()?, backup: body.u32()? },
            29 => ClusterEntry::LogEnded { log: body.log()?, end: body.u64()? },
            30 => ClusterEntry::LogGivenUp { log: body.log()? },
            31 => ClusterEntry::MoveNoted {
                number: body.u64()?,
                stream: StreamId(body.u64()?),
                streamlet: body.u32()?,
                from: body.u32()?,
                to: body.u32()?,
            },
            32 => ClusterEntry::MoveCalledOff { number: body.u64()? },
            33 => ClusterEntry::ClusterCounters { next_move: body.u64()?, next_owner_epoch: body.u32()? },
            34 => ClusterEntry::Applied { place: body.place()? },
            35 => {
                let has_place = body.switch("cluster_entry.has_place")?;
                let place = Some(body.place()?).filter(|_| has_place);
                let mut voters = Vec::new();
                for _ in 0..body.count("cluster_entry.voter_lists", 2)? {
                    let count = body.count("cluster_entry.voters", MEMBERS_MAX)?;
                    voters.push((0..count).map(|_| body.u64()).collect::<Result<_, _>>()?);
                }
                let count = body.count("cluster_entry.nodes", MEMBERS_MAX)?;
                let node = |body: &mut Fields<'_>| Ok((body.u64()?, body.text("cluster_entry.address")?));
                let nodes = (0..count).map(|_| node(body)).collect::<Result<_, FormatError>>()?;
                ClusterEntry::Membership { place, voters, nodes }
            }
            36 => body.rebuilt(false)?,
            37 => ClusterEntry::ViewGivenUp { log: body.log()?, view: body.u32()? },
            _ => return ClusterEntry::parse_since_moves(kind, body),
        })
    }

    fn parse_since_moves(kind: u16, body: &mut Fields<'_>) -> Result<ClusterEntry, FormatError> {
        Ok(match kind {
            40 => {
                let (stream, streamlet, owner_epoch) = (StreamId(body.u64()?), body.u32()?, body.u32()?);
                let bytes = body.count("cluster_entry.state", HANDED_LARGE_BYTES_MAX)?;
                let state = body.take(bytes)?.to_vec();
                ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state }
            }
            41 => ClusterEntry::NodeDraining { node: body.u32()?, draining: body.switch("cluster_entry.draining")? },
            42 => ClusterEntry::GroupsLost {
                stream: StreamId(body.u64()?),
                first: body.u32()?,
                count: body.u32()?,
                owner_epoch: body.u32()?,
            },
            43 => ClusterEntry::LevelRaised { level: body.u32()? },
            44 => ClusterEntry::LaneBegins {
                stream: StreamId(body.u64()?),
                streamlet: body.u32()?,
                lane: LaneId(body.u32()?),
                owner_epoch: body.u32()?,
                ordinal: body.u64()?,
            },
            45 => body.needs()?,
            46 => body.rebuilt(true)?,
            47 => body.ends()?,
            48 => ClusterEntry::EndTakenBack { log: body.log()?, end: body.u64()? },
            49 => ClusterEntry::GroupsReturned {
                stream: StreamId(body.u64()?),
                streamlet: body.u32()?,
                owner_epoch: body.u32()?,
                node: body.u32()?,
                epoch: body.u32()?,
            },
            50 => ClusterEntry::RebuiltFrom {
                stream: StreamId(body.u64()?),
                first: body.u32()?,
                count: body.u32()?,
                node: body.u32()?,
                epoch: body.u32()?,
            },
            51 => ClusterEntry::EndGivenUp { log: body.log()? },
            _ => return ClusterEntry::parse_copies(kind, body),
        })
    }

    fn parse_copies(kind: u16, body: &mut Fields<'_>) -> Result<ClusterEntry, FormatError> {
        Ok(match kind {
            52 => ClusterEntry::CopiesWanted { stream: StreamId(body.u64()?), copies: body.copies()? },
            53 => ClusterEntry::CopiesMade {
                stream: StreamId(body.u64()?),
                streamlet: body.u32()?,
                node: body.u32()?,
                epoch: body.u32()?,
                copies: body.copies()?,
            },
            54 => ClusterEntry::StreamletCopies {
                stream: StreamId(body.u64()?),
                first: body.u32()?,
                count: body.u32()?,
                copies: body.copies()?,
            },
            55 => ClusterEntry::ViewGivenUpFor {
                stream: StreamId(body.u64()?),
                streamlet: body.u32()?,
                owner_epoch: body.u32()?,
                log: body.log()?,
                view: body.u32()?,
            },
            _ => {
                let (field, value) = ("cluster_entry.kind", kind.into());
                return Err(FormatError::BadField { field, value, allowed: "20 to 37 or 40 to 55" });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_comes_back_and_a_flipped_bit_or_a_missing_end_is_noticed() {
        for (name, entry) in examples() {
            let mut bytes = Vec::new();
            entry.encode(9, &mut bytes);
            assert_eq!(ClusterEntry::parse(&bytes), Ok((9, entry, bytes.len())), "{name}");
            let unpadded = u32_at(&bytes, 4) as usize;
            for end in 0..bytes.len() {
                assert!(ClusterEntry::parse(&bytes[..end]).is_err(), "{name} cut at {end}");
            }
            for bit in 0..unpadded * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(ClusterEntry::parse(&bytes).is_err(), "{name}, bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_large_state_needs_its_level_and_one_above_the_limit_cannot_be_read() {
        let handed = |bytes| {
            let (stream, streamlet, owner_epoch) = (StreamId(1), 0, 1);
            ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state: vec![7; bytes] }
        };
        let read = |entry: &ClusterEntry| {
            let mut bytes = Vec::new();
            entry.encode(9, &mut bytes);
            ClusterEntry::parse(&bytes).map(|(_, entry, _)| entry)
        };
        assert_eq!(handed(HANDED_BYTES_MAX).level(), crate::level::FIRST);
        assert_eq!(handed(HANDED_BYTES_MAX + 1).level(), crate::level::LARGE_MOVES);
        let largest = handed(HANDED_LARGE_BYTES_MAX);
        assert_eq!(read(&largest), Ok(largest));
        let error = read(&handed(HANDED_LARGE_BYTES_MAX + 1)).unwrap_err().to_string();
        assert!(error.contains("cluster_entry.state"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_never_panic(kind in 20u16..56, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ClusterEntry::parse_body(kind, &mut Fields(&body));
        }
    }
}
