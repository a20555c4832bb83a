//! What a run of a cluster is made of, and what it has found.

use std::collections::BTreeMap;

use kera_format::level;

use super::faults::Fault;

/// What a run is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Decides everything else.
    pub seed: u64,
    /// How long faults happen, in simulated milliseconds.
    pub trouble_ms: u64,
    /// Records that each producer writes to each streamlet.
    pub records: u64,
    /// Three nodes, so that with three copies none can be spared, and streams of six streamlets: what real nodes are tormented with.
    pub three: bool,
    /// Whether producers have more chunks under way than a lane remembers places, and send them again early.
    pub eager: bool,
    /// Whether producers give up chunks that they have sent, and skip them.
    pub impatient: bool,
    /// Time between two faults, on average, in microseconds.
    pub fault_us: u64,
    /// Faults that may happen; all, if it is empty.
    pub only: Vec<Fault>,
    /// Whether streams may forget what is old.
    pub retention: bool,
    /// Whether streams keep so many bytes of each streamlet instead, and forget what is older.
    pub retention_bytes: bool,
    /// Whether applications read the streams.
    pub applications: bool,
    /// Whether whoever leads evens out the nodes by itself.
    pub balances: bool,
    /// Whether streams get another number of copies; in the end those with one get more.
    pub changes_copies: bool,
    /// Whether the coordinators have their log on their disks.
    pub coordinator_disks: bool,
    /// Whether one answer is all that a connection of a client takes before it is sent, so that others are held back.
    pub narrow: bool,
    /// Whether nodes that are stopped in good order answer first what is under way, as real ones do. Otherwise their connections end at once.
    pub finishes: bool,
    /// Whether nodes know some of what the coordinators decide from snapshots, as those that are far behind do, and not entry by entry, and are told of it so.
    pub sends_snapshots: bool,
    /// Whether nodes are told in pieces of what becomes true, as real ones are: anything may happen between two of them. Otherwise all that is left is told at once.
    pub in_pieces: bool,
    /// Whether backups say little of lanes in one answer, so that it is asked for in parts.
    pub tells_little: bool,
    /// What is asked of streams beside that.
    pub kind: Kind,
    /// The level of the cluster.
    pub level: u32,
    /// A defect that is put in, to see whether it is found.
    pub planted: Option<Planted>,
}

impl Plan {
    /// Whether some streams begin with one copy.
    pub(super) fn has_one_copy(&self) -> bool {
        self.kind == Kind::OneCopy || (self.changes_copies && self.kind != Kind::Async && self.seed % 4 < 2)
    }

    /// A run of half a minute, with whatever may go wrong.
    pub fn new(seed: u64) -> Plan {
        Plan {
            seed,
            trouble_ms: 30_000,
            records: 300,
            three: false,
            eager: false,
            impatient: false,
            fault_us: 1_500_000,
            only: Vec::new(),
            retention: true,
            retention_bytes: false,
            applications: false,
            balances: false,
            changes_copies: false,
            coordinator_disks: false,
            narrow: false,
            finishes: false,
            sends_snapshots: false,
            in_pieces: false,
            tells_little: false,
            kind: Kind::Usual,
            level: level::NEWEST,
            planted: None,
        }
    }
}

/// What streams are like, where that has runs of its own. Applications read them then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Lanes are read in their order, and are kept, or go with time.
    Usual,
    /// Records go when both applications have read them, and not before.
    Consumed,
    /// Groups are read in any order; nothing goes.
    Unordered,
    /// One copy, on the disk or in the memory of one node.
    OneCopy,
    /// Copies that producers do not wait for.
    Async,
    /// Of each key the last record is kept.
    Compacted,
    /// The same, and what both applications have read goes.
    CompactedConsumed,
}

impl Kind {
    /// All of them.
    pub const ALL: &'static [Kind] = &[
        Kind::Usual,
        Kind::Consumed,
        Kind::Unordered,
        Kind::OneCopy,
        Kind::Async,
        Kind::Compacted,
        Kind::CompactedConsumed,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Usual => "usual",
            Kind::Consumed => "consumed",
            Kind::Unordered => "unordered",
            Kind::OneCopy => "one-copy",
            Kind::Async => "async",
            Kind::Compacted => "compacted",
            Kind::CompactedConsumed => "compacted-consumed",
        }
    }

    /// Whether it is about applications.
    pub(super) fn is_of_applications(self) -> bool {
        self.is_consumed() || self == Kind::Unordered
    }

    /// Whether records go when all applications have read them.
    pub(super) fn is_consumed(self) -> bool {
        matches!(self, Kind::Consumed | Kind::CompactedConsumed)
    }

    /// Whether of each key the last record is kept.
    pub(super) fn is_compacted(self) -> bool {
        matches!(self, Kind::Compacted | Kind::CompactedConsumed)
    }
}

/// A defect of a cluster, to show that a run would find it. Each is put in where the simulator stands between parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Backups tell how far they have a log and go on taking blocks of it.
    NoFence,
    /// The last backup of a view is taken to have every block as soon as it is sent.
    AcknowledgesEarly,
    /// A new owner is not told of producers.
    ForgetsProducers,
    /// A view is asked for that begins behind what was written instead of behind what was acknowledged.
    ViewBehindWritten,
    /// Logs of lost brokers go as soon as somebody else owns what was in them.
    GivesUpEarly,
    /// A backup is not told that its machine has lost its power.
    ForgetsPowerCuts,
    /// Who gets a streamlet is not told where its lanes go on.
    HandsOverNoOrdinals,
    /// Who gets a streamlet is not told of its producers.
    HandsOverNoProducers,
    /// A node that starts drops the groups that it holds for others.
    ForgetsHeld,
    /// A node is stopped with everything on disk, but for what backups have not answered for.
    StopsUnsettled,
    /// A node that came back has its old logs given up although what it holds is nowhere else.
    GivesUpHeld,
    /// Who gets a streamlet is not told how far applications are in it.
    HandsOverNoPositions,
    /// Who takes a streamlet over is not told of what applications have committed.
    ForgetsPositions,
    /// A streamlet goes on in another virtual log although something in the first one is not acknowledged.
    ChangesUnsettled,
    /// A node takes all that it has of streams that are kept until they are read to be read.
    ConsumesEarly,
    /// Who rebuilds says that it needs no log for it.
    NeedsNothing,
    /// Who rebuilds has a node that came back hold what it has, all of it or not.
    TakesWhatIsNotAll,
    /// A log takes a backup to be there as soon as it asks whether it is.
    BelievesTheSilent,
    /// Virtual logs on the own disk say that everything is durable before it is.
    AcknowledgesUnwritten,
    /// What virtual logs on the own disk have is left out when a node starts.
    LeavesOutOwnLogs,
    /// What has one copy is given to others as soon as its node is lost.
    GivesOneCopyAway,
    /// A kill takes what a node had in memory, and it takes itself to have everything.
    ForgetsMemory,
    /// Producers that do not wait for copies are answered however long these are missing.
    NeverLate,
    /// Whoever takes something over waits for no end of a lost log.
    WaitsForNoEnd,
    /// Whoever takes something over passes over the logs of one of several nodes of which it may need something.
    PassesOverASource,
    /// Compaction takes all of a streamlet to be at its node when it removes tombstones.
    RemovesBlindly,
    /// A person switches a node off for good as soon as it owns nothing, whatever only it has.
    RemovesUncopied,
    /// Nodes take backups that were removed to have what they had.
    BelievesTheRemoved,
    /// Whoever comes under the number of a node that was removed is taken for one that nobody can take for another.
    ForgetsNumbers,
    /// Whoever takes over takes what one of several backups has lost to be given up.
    GivesUpReadable,
    /// A node that gets a streamlet is not told where its lanes begin.
    ForgetsFloors,
    /// Nodes say that they have made copies which they have not.
    SaysCopied,
    /// What a disk has lost is looked for nowhere.
    MendsNothing,
    /// A node that cannot read all that its disk had takes itself to have all.
    BelievesItsDisk,
    /// Retention goes by the wall clock as it is.
    BelievesItsClock,
    /// Who has taken something over gives it back to whoever offers it, opened or not.
    GivesBackBlindly,
    /// Who was started again since it took something over, and has written nothing of it since, waits for whoever had it before, and gives it back although that one has cut something of it.
    GivesBackWhatWasCut,
    /// A log that has lost a backup goes on with those that are left, and takes none in its place as long as there is one.
    TakesNoneBack,
    /// Streams keep a quarter of the bytes that they are to keep.
    KeepsTooLittle,
    /// Coordinators answer for votes that they have not written.
    ForgetsVotes,
    /// Coordinators that follow answer for entries that they have not written.
    AnswersUnwritten,
    /// A coordinator that is to go on alone goes on from its last snapshot, without what its log has behind that.
    RecoversOld,
    /// A coordinator that goes on alone skips terms and entries, and none of the numbers that those who are gone may have given.
    SkipsNoNumbers,
    /// Data takes a disk to its last byte.
    KeepsNothingFree,
    /// What a person has given up for one streamlet is left out for all that are taken over.
    GivesUpForAll,
    /// What a person has given up for a streamlet nobody is asked for any more before it goes on without.
    GoesOnUnasked,
    /// A stream that is new to a node is served there before it is known whose its streamlets are.
    ServesUnplaced,
    /// A state has its number at a node before all that has changed in it was told.
    NumbersEarly,
    /// A node that is told anything has heard of all streams that there are by then, also of those that it is still to be told of.
    HeardAhead,
}

impl Planted {
    /// All of them.
    pub const ALL: &'static [Planted] = &[
        Planted::NoFence,
        Planted::AcknowledgesEarly,
        Planted::ForgetsProducers,
        Planted::ViewBehindWritten,
        Planted::GivesUpEarly,
        Planted::ForgetsPowerCuts,
        Planted::HandsOverNoOrdinals,
        Planted::HandsOverNoProducers,
        Planted::ForgetsHeld,
        Planted::StopsUnsettled,
        Planted::GivesUpHeld,
        Planted::HandsOverNoPositions,
        Planted::ForgetsPositions,
        Planted::ChangesUnsettled,
        Planted::ConsumesEarly,
        Planted::NeedsNothing,
        Planted::TakesWhatIsNotAll,
        Planted::BelievesTheSilent,
        Planted::AcknowledgesUnwritten,
        Planted::LeavesOutOwnLogs,
        Planted::GivesOneCopyAway,
        Planted::ForgetsMemory,
        Planted::NeverLate,
        Planted::WaitsForNoEnd,
        Planted::PassesOverASource,
        Planted::RemovesBlindly,
        Planted::RemovesUncopied,
        Planted::BelievesTheRemoved,
        Planted::ForgetsNumbers,
        Planted::GivesUpReadable,
        Planted::ForgetsFloors,
        Planted::SaysCopied,
        Planted::MendsNothing,
        Planted::BelievesItsDisk,
        Planted::BelievesItsClock,
        Planted::GivesBackBlindly,
        Planted::GivesBackWhatWasCut,
        Planted::TakesNoneBack,
        Planted::KeepsTooLittle,
        Planted::ForgetsVotes,
        Planted::AnswersUnwritten,
        Planted::RecoversOld,
        Planted::SkipsNoNumbers,
        Planted::KeepsNothingFree,
        Planted::GivesUpForAll,
        Planted::GoesOnUnasked,
        Planted::ServesUnplaced,
        Planted::NumbersEarly,
        Planted::HeardAhead,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// What a run has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The same for every run of this plan.
    pub trace: u64,
    /// Events that happened.
    pub events: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// Records that producers were told of.
    pub acknowledged: u64,
    /// How often something was compared with what must hold.
    pub checks: u64,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What the cluster did about them, by name.
    pub did: BTreeMap<&'static str, u64>,
    /// What must not happen and did.
    pub violation: Option<String>,
}
