//! Blocks of logs of lost nodes that are at no backup any more, or may be, and giving them up (`docs/replication.md`, "Nobody is left who has it").

use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};

use crate::codec::wire_struct;
use crate::message::{messages, responses};

wire_struct! {
    /// Asks of which logs of lost nodes blocks are missing. Nothing is changed.
    #[derive(Copy)]
    pub struct DescribeLostLogs {
        /// Most logs in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// Blocks of a view of a log that is over, of which no backup is live; or, if there is a live one, the last blocks of the log, which the others alone may have.
    pub struct MissingBlocks {
        /// Number of the view.
        pub view: u32,
        /// The first block.
        pub first: u64,
        /// The last one; zero: nobody knows it, for the log has no end.
        pub last: u64,
        /// The nodes that had them. If some of them are live these have less, or have not told yet.
        pub backups: Vec<u32>,
    }
}

wire_struct! {
    /// Neighbouring streamlets.
    #[derive(Copy)]
    pub struct StreamletRange {
        /// Of which stream.
        pub stream: StreamId,
        /// The first one.
        pub first: u32,
        /// How many.
        pub count: u32,
    }
}

wire_struct! {
    /// A log of a lost node of which blocks are missing.
    pub struct LostLog {
        /// Which log.
        pub log: LogId,
        /// Its last block; zero also if that is not decided.
        pub end: u64,
        /// What is missing.
        pub missing: Vec<MissingBlocks>,
        /// Those of the nodes that had it, and of the log's own node, which may come back with it: they are lost, and not given up.
        pub lost_nodes: Vec<u32>,
        /// Those of them that are live. As long as there is one nothing can be given up, but for last blocks which it does not have.
        pub live_nodes: Vec<u32>,
        /// Streamlets that wait, or are rebuilt, and may have something in this log.
        pub streamlets: Vec<StreamletRange>,
    }
}

wire_struct! {
    /// Logs of lost nodes of which blocks are missing.
    pub struct LostLogs {
        /// Them, by node, epoch and number.
        pub logs: Vec<LostLog>,
    }
}

wire_struct! {
    /// A person says that nodes are gone for good, and with them what they had of a log: whoever waits for that goes on without it. Asked again
    /// it is answered as done.
    pub struct AcceptLogLoss {
        /// Which log.
        pub log: LogId,
        /// The nodes that are gone. All must be named that had what is missing, and the log's own node, unless they were given up.
        pub gone: Vec<u32>,
    }
}

wire_struct! {
    /// A person has a streamlet that is being rebuilt go on without blocks of a log of a lost node, all of one view. Others wait for them as before. Asked again it is
    /// answered as done.
    pub struct AcceptStreamletLoss {
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// Which log.
        pub log: LogId,
        /// The first block of the view.
        pub first: u64,
        /// Its last one, or the log's.
        pub last: u64,
        /// The nodes that are gone. All must be named that had these blocks and are lost, and the log's own node, unless they were given up.
        pub gone: Vec<u32>,
    }
}

messages! {
    DescribeLostLogs => LostLogs;
    AcceptLogLoss => crate::Empty;
    AcceptStreamletLoss => crate::Empty;
}
responses!(LostLogs,);
