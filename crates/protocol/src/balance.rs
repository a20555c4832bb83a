//! What brokers take, and the moves that even it out: what nodes tell the leader of the coordinators, and what it plans from that
//! (`docs/replication.md`, "Nodes are evened out").

use kera_format::{StreamId, StreamletId};

use crate::codec::wire_struct;
use crate::message::{messages, responses};

wire_struct! {
    /// What producers append to a streamlet, and half of what those who follow it get.
    #[derive(Copy)]
    pub struct StreamletLoad {
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// Bytes a second, smoothed over some tens of seconds.
        pub bytes_per_s: u64,
    }
}

wire_struct! {
    /// A broker tells the leader of the coordinators what it takes, each few seconds. It stands for what the broker has told before; nobody writes
    /// it down.
    pub struct NodeLoad {
        /// The broker.
        pub node: u32,
        /// Its epoch.
        pub epoch: u32,
        /// Bytes a second that producers append to all streamlets that it owns, and half of those that readers get of what is new in them, smoothed over some tens of
        /// seconds.
        pub bytes_per_s: u64,
        /// The busiest of these streamlets, the busiest first: more than [`crate::limits::LOAD_STREAMLETS_MAX`] are not looked at.
        pub streamlets: Vec<StreamletLoad>,
    }
}

wire_struct! {
    /// Asks for the moves that even out the brokers by what they own and take, and what comes of them. Nothing is changed. `NotReady` while the leader is
    /// new and has not heard what brokers take.
    #[derive(Copy)]
    pub struct PlanBalance {
        /// Most moves in the answer; zero, or more than [`crate::limits::BALANCE_MOVES_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// A move that would be made.
    #[derive(Copy)]
    pub struct PlannedMove {
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// Who has it.
        pub from: u32,
        /// Who would get it.
        pub to: u32,
        /// Bytes a second that producers append to it; of one that is none of the busiest of its node an equal part of what the others take.
        pub bytes_per_s: u64,
    }
}

wire_struct! {
    /// A broker before and after the moves of a plan, with those that are under way counted as done.
    #[derive(Copy)]
    pub struct PlannedNode {
        /// Its number.
        pub node: u32,
        /// Whether it has told what it takes. If not, its streamlets count like an average one.
        pub told: bool,
        /// Streamlets that it owns.
        pub streamlets: u64,
        /// Bytes a second that producers append to them.
        pub bytes_per_s: u64,
        /// Streamlets that it would own.
        pub streamlets_after: u64,
        /// Bytes a second that would be appended to those.
        pub bytes_per_s_after: u64,
    }
}

wire_struct! {
    /// Moves that even out the brokers, and what comes of them.
    pub struct BalancePlan {
        /// The moves, the most useful first.
        pub moves: Vec<PlannedMove>,
        /// All live brokers that are not drained, by number.
        pub nodes: Vec<PlannedNode>,
        /// Whether the leader evens them out by itself.
        pub by_itself: bool,
    }
}

messages! {
    NodeLoad => crate::Empty;
    PlanBalance => BalancePlan;
}
responses!(BalancePlan,);
