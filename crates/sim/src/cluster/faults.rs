//! What goes wrong, and how often.

use kera_env::{Random, SeededRandom};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $weight:literal;)+) => {
        /// Something that goes wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name),+
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Fault] = &[$(Fault::$name),+];

            /// Its name on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text),+ }
            }

            /// How often it happens, beside the others.
            fn weight(self) -> u64 {
                match self { $(Fault::$name => $weight),+ }
            }
        }
    };
}

faults! {
    /// kill -9 of the node. It is started again soon.
    Kill = "kill", 3;
    /// The machine loses power in the middle of one of its next changes to the disk.
    PowerCut = "power-cut", 3;
    /// The node's process stands still for a while.
    Freeze = "freeze", 2;
    /// A connection breaks, and both sides learn of it.
    ConnectionLost = "connection-lost", 5;
    /// A connection breaks, and nobody is told.
    ConnectionDead = "connection-dead", 2;
    /// Nothing gets from one side to the other for a while.
    Partition = "partition", 2;
    /// The disk is full for a while.
    DiskFull = "disk-full", 2;
    /// The disk fails altogether for a while.
    DiskBroken = "disk-broken", 1;
    /// One of the next writes fails.
    WriteFails = "write-fails", 2;
    /// Of one of the next writes only a part gets to the disk, and it fails.
    WriteTorn = "write-torn", 2;
    /// One of the next syncs fails.
    SyncFails = "sync-fails", 2;
    /// The disk is slow for a while.
    DiskSlow = "disk-slow", 2;
    /// The machine's clock jumps, up to an hour in either direction.
    ClockJump = "clock-jump", 1;
}

/// Which faults happen in a run.
#[derive(Debug)]
pub(super) struct Faults {
    kinds: Vec<Fault>,
    weights: u64,
}

impl Faults {
    /// Those of `only`, or all. Without `power` nothing happens that a stream which only survives kills would not survive.
    pub(super) fn new(only: &[Fault], power: bool) -> Faults {
        let allowed = |fault: &Fault| (only.is_empty() || only.contains(fault)) && (power || *fault != Fault::PowerCut);
        let kinds: Vec<Fault> = Fault::ALL.iter().copied().filter(allowed).collect();
        let weights = kinds.iter().map(|fault| fault.weight()).sum();
        Faults { kinds, weights }
    }

    /// Time until the next one.
    pub(super) fn pause_us(&self, random: &SeededRandom) -> u64 {
        200_000 + Random::below(random, 3_000_000)
    }

    /// The next one.
    pub(super) fn draw(&self, random: &SeededRandom) -> Fault {
        let mut drawn = Random::below(random, self.weights.max(1));
        for fault in &self.kinds {
            if drawn < fault.weight() {
                return *fault;
            }
            drawn -= fault.weight();
        }
        // There is nothing that may happen but the mildest of all.
        Fault::ConnectionLost
    }
}
