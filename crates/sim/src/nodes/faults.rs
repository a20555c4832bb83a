//! What goes wrong in a cluster, and how often.

use kera_env::{Random, SeededRandom};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $weight:literal;)+) => {
        /// Something that goes wrong in a cluster.
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

            fn weight(self) -> u64 {
                match self { $(Fault::$name => $weight),+ }
            }
        }
    };
}

faults! {
    /// kill -9 of a node. It is started again, at once or after a while.
    Kill = "kill", 6;
    /// kill -9 of all nodes at the same moment.
    KillAll = "kill-all", 1;
    /// A machine loses power: its arena is gone, and of its disk what was not synced.
    PowerCut = "power-cut", 3;
    /// All machines lose power at the same moment.
    PowerCutAll = "power-cut-all", 1;
    /// A machine burns: it comes back with nothing but its number, or not before everything is healed.
    Destroyed = "destroyed", 1;
    /// A process stands still for a while; it is declared lost and runs on.
    Freeze = "freeze", 4;
    /// A node is cut off from the others, or from clients, in one direction or both.
    CutOff = "cut-off", 4;
    /// Two nodes do not hear each other.
    PairCut = "pair-cut", 3;
    /// The coordinators have no leader for a while, and then another one.
    LeaderLost = "leader-lost", 2;
    /// The disk of a node is full for a while.
    DiskFull = "disk-full", 1;
    /// The disk of a node fails altogether for a while.
    DiskBroken = "disk-broken", 1;
    /// One of the next writes of a node fails.
    WriteFails = "write-fails", 1;
    /// Of one of the next writes of a node only a part gets to the disk.
    WriteTorn = "write-torn", 1;
    /// One of the next syncs of a node fails.
    SyncFails = "sync-fails", 1;
    /// The disk of a node is slow for a while.
    DiskSlow = "disk-slow", 2;
    /// A bit of a file with copies is changed while nobody looks.
    BitFlip = "bit-flip", 1;
}

/// Which faults happen in a run.
#[derive(Debug)]
pub(super) struct Faults {
    kinds: Vec<Fault>,
    weights: u64,
}

impl Faults {
    /// Those of `only`, or all. Without `power` no machine loses its power and comes back: a backup that lost what it had not synced
    /// does not know what that was.
    pub(super) fn new(only: &[Fault], power: bool) -> Faults {
        let needs_power = |fault: &Fault| matches!(fault, Fault::PowerCut | Fault::PowerCutAll);
        let allowed = |fault: &Fault| (only.is_empty() || only.contains(fault)) && (power || !needs_power(fault));
        let kinds: Vec<Fault> = Fault::ALL.iter().copied().filter(allowed).collect();
        let weights = kinds.iter().map(|fault| fault.weight()).sum();
        Faults { kinds, weights }
    }

    /// The next one; nothing, if there is none that may happen.
    pub(super) fn draw(&self, random: &SeededRandom) -> Option<Fault> {
        let mut drawn = Random::below(random, self.weights.max(1));
        for fault in &self.kinds {
            if drawn < fault.weight() {
                return Some(*fault);
            }
            drawn -= fault.weight();
        }
        None
    }
}
