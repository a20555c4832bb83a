//! What goes wrong in a cluster or is done to it, and how often.

use crate::faults::{Faults, faults};

faults! {
    /// Something that goes wrong in a cluster.
    {
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
        /// A bit of a segment that a node has stored is changed while nobody looks.
        Rot = "rot", 6;
        /// A person has a streamlet move to another node.
        Move = "move", 6;
        /// A person drains a node, and lets it own streamlets again after a while.
        Drain = "drain", 1;
        /// A person has the streamlets evened out.
        Rebalance = "rebalance", 1;
        /// A node is stopped in good order. It is started again, at once or after a while.
        Stop = "stop", 2;
        /// All nodes are stopped in good order at the same moment.
        StopAll = "stop-all", 1;
        /// A streamlet goes on in another virtual log of its owner.
        ChangeLog = "change-log", 6;
        /// The clock of a machine is set forward or back, by up to an hour.
        ClockJump = "clock-jump", 2;
        /// A person removes a node for good, or one that has burned; another machine may come.
        Remove = "remove", 2;
        /// Machines burn that alone have something. A person gives up what is gone.
        LastCopy = "last-copy", 2;
        /// Somebody deletes records from the front of a lane.
        DeleteRecords = "delete-records", 4;
        /// A person wants a stream to have another number of copies.
        ChangeCopies = "change-copies", 4;
        /// The clock of a machine is years ahead, and is set right after a while.
        ClockYears = "clock-years", 2;
        /// A coordinator is killed, and a bit of what it has of their log is changed before it is back.
        LogRot = "log-rot", 4;
        /// The disk of a node stands still for a while, and whoever needs it waits.
        DiskStuck = "disk-stuck", 3;
        /// All coordinators but one burn, or are switched off, and a person has the one that is left go on alone. Once in a run.
        MajorityLost = "majority-lost", 3;
        /// The disk of a node is full for data for a while: what is kept free of it takes the rest.
        DataFull = "data-full", 3;
        /// A machine burns, and the disks of all that have a view of one of its logs lose that. A person has one streamlet after the other go on without.
        BlocksLost = "blocks-lost", 4;
        /// A person has a stream made, which is written to and read at once.
        MakeStream = "make-stream", 6;
        /// A person has one of those streams deleted.
        DeleteStream = "delete-stream", 3;
        /// A node is killed, and is back with all that it had when those who took over from it could not open that and were killed as well.
        Unopened = "unopened", 6;
    }
}

/// Those of `only`, or all but those that have runs of their own: changes of virtual logs, clocks that jump, nodes that are removed, last copies that are lost,
/// blocks that nobody gives, for a while or for good, records that are deleted, streams that are made and deleted, segments and the coordinators' log that are changed on the disks, disks that stand still or take no data, a lost majority of the coordinators, and, if that is not asked for,
/// numbers of copies that change. Without `power` machines do not lose their power all at once: nothing would be left that is certain.
pub(super) fn faults_of(only: &[Fault], power: bool, changes_copies: bool) -> Faults<Fault> {
    use Fault::*;
    let own_runs = [ChangeLog, ClockJump, ClockYears, Remove, LastCopy, BlocksLost, Unopened, DeleteRecords];
    let of_streams = [MakeStream, DeleteStream];
    let of_disks = [Rot, LogRot, DiskStuck, MajorityLost, DataFull];
    let is_own = |fault: Fault| own_runs.contains(&fault) || of_streams.contains(&fault) || of_disks.contains(&fault);
    let has_own_runs = |fault: Fault| is_own(fault) || (fault == Fault::ChangeCopies && !changes_copies);
    let is_wanted = |fault: Fault| if only.is_empty() { !has_own_runs(fault) } else { only.contains(&fault) };
    Faults::those(|fault| is_wanted(fault) && (power || fault != Fault::PowerCutAll))
}
