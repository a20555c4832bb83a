//! What goes wrong, and how often.

use kera_env::{Random, SeededRandom};

use crate::faults::{Faults, faults};

faults! {
    /// Something that goes wrong.
    {
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
}

/// Those of `only`, or all. Without `power` nothing happens that a stream which only survives kills would not survive.
pub(super) fn faults_of(only: &[Fault], power: bool) -> Faults<Fault> {
    Faults::those(|fault| (only.is_empty() || only.contains(&fault)) && (power || fault != Fault::PowerCut))
}

/// Time until the next one.
pub(super) fn pause_us(random: &SeededRandom) -> u64 {
    200_000 + Random::below(random, 3_000_000)
}
