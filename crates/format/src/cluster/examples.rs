//! An entry of each kind, for tests and golden bytes of the formats that have them. Nothing else uses it.

use super::{ClusterEntry, Doors, LogName, OwnerReason, RaftPlace, RebuildRun, Roles};
use crate::{LaneId, StreamId};

/// One of each kind, for tests and documents.
pub fn examples() -> Vec<(&'static str, ClusterEntry)> {
    let log = LogName { node: 2, epoch: 7, log: 1 };
    let stream = StreamId(17);
    let doors = Doors {
        cluster: "10.0.0.2:7072".into(),
        native: "10.0.0.2:7070".into(),
        kafka: "10.0.0.2:9092".into(),
        http: String::new(),
    };
    let place = RaftPlace { term: 3, leader: 1, index: 12 };
    let mut examples = vec![
        (
            "cluster founded",
            ClusterEntry::Founded {
                cluster: *b"0123456789abcdef",
                owner_epoch: 5,
                settings: vec![("network.frame_bytes_max".into(), "32MiB".into())],
            },
        ),
        (
            "node joined",
            ClusterEntry::NodeJoined {
                node: 2,
                epoch: 7,
                uuid: *b"fedcba9876543210",
                roles: Roles::ALL,
                at_ms: 1_700_000_000_000,
                rack: "b".into(),
                doors,
            },
        ),
        ("node fenced", ClusterEntry::NodeFenced { node: 2, epoch: 7 }),
        ("node removed", ClusterEntry::NodeRemoved { node: 2 }),
        (
            "owner changed",
            ClusterEntry::OwnerChanged {
                stream,
                first: 1,
                count: 3,
                node: 2,
                epoch: 7,
                owner_epoch: 9,
                reason: OwnerReason::Moved,
                number: 4,
            },
        ),
        ("owner returned", ClusterEntry::OwnerReturned { node: 2, epoch: 8, owner_epoch: 10, all: true }),
        ("groups held", ClusterEntry::GroupsHeld { stream, first: 1, count: 3, owner_epoch: 8, node: 1 }),
        ("view agreed", ClusterEntry::ViewAgreed { log, view: 2, first: 100, backups: vec![1, 3] }),
        ("backup added", ClusterEntry::BackupAdded { log, view: 1, backup: 3 }),
        ("log ended", ClusterEntry::LogEnded { log, end: 120 }),
        ("log given up", ClusterEntry::LogGivenUp { log }),
        ("move noted", ClusterEntry::MoveNoted { number: 4, stream, streamlet: 1, from: 1, to: 2 }),
        ("move called off", ClusterEntry::MoveCalledOff { number: 4 }),
        ("view given up", ClusterEntry::ViewGivenUp { log, view: 1 }),
        ("cluster counters", ClusterEntry::ClusterCounters { next_move: 5, next_owner_epoch: 11 }),
        ("applied", ClusterEntry::Applied { place }),
        (
            "membership",
            ClusterEntry::Membership {
                place: Some(place),
                voters: vec![vec![1, 2]],
                nodes: vec![(1, "10.0.0.1:7072".into()), (2, "10.0.0.2:7072".into())],
            },
        ),
    ];
    examples.extend(examples_of_moves(stream, log));
    examples.extend(examples_of_what_becomes_of_streamlets(stream));
    examples
}

fn examples_of_moves(stream: StreamId, log: LogName) -> Vec<(&'static str, ClusterEntry)> {
    let runs = vec![RebuildRun { stream, first: 1, count: 3, owner_epoch: 9 }];
    vec![
        (
            "streamlet handed over",
            ClusterEntry::StreamletHanded { stream, streamlet: 1, owner_epoch: 9, state: vec![1, 2, 3] },
        ),
        ("node draining", ClusterEntry::NodeDraining { node: 2, draining: true }),
        ("groups lost", ClusterEntry::GroupsLost { stream, first: 1, count: 3, owner_epoch: 8 }),
        ("level raised", ClusterEntry::LevelRaised { level: 2 }),
        (
            "lane begins",
            ClusterEntry::LaneBegins { stream, streamlet: 1, lane: LaneId(3), owner_epoch: 9, ordinal: 1_000_000 },
        ),
        ("rebuild needs", ClusterEntry::RebuildNeeds { node: 2, epoch: 7, runs, logs: vec![log] }),
        ("ends used", ClusterEntry::EndsUsed { node: 2, epoch: 7, ends: vec![(log, 120)] }),
        ("end taken back", ClusterEntry::EndTakenBack { log, end: 118 }),
        ("end given up", ClusterEntry::EndGivenUp { log }),
        (
            "view given up for a streamlet",
            ClusterEntry::ViewGivenUpFor { stream, streamlet: 1, owner_epoch: 9, log, view: 2 },
        ),
        ("groups returned", ClusterEntry::GroupsReturned { stream, streamlet: 1, owner_epoch: 9, node: 3, epoch: 8 }),
    ]
}

fn examples_of_what_becomes_of_streamlets(stream: StreamId) -> [(&'static str, ClusterEntry); 7] {
    let rebuilt =
        |owner_epoch| ClusterEntry::StreamletsRebuilt { stream, first: 1, count: 3, node: 2, epoch: 7, owner_epoch };
    [
        ("streamlets rebuilt", rebuilt(0)),
        ("streamlets rebuilt in an owner epoch", rebuilt(9)),
        ("rebuilt from", ClusterEntry::RebuiltFrom { stream, first: 1, count: 3, node: 1, epoch: 6 }),
        ("copies wanted", ClusterEntry::CopiesWanted { stream, copies: 3 }),
        ("copies made", ClusterEntry::CopiesMade { stream, streamlet: 1, node: 2, epoch: 7, copies: 3 }),
        ("streamlet copies", ClusterEntry::StreamletCopies { stream, first: 1, count: 3, copies: 3 }),
        (
            "streamlet given back",
            ClusterEntry::OwnerChanged {
                stream,
                first: 1,
                count: 1,
                node: 2,
                epoch: 8,
                owner_epoch: 11,
                reason: OwnerReason::GivenBack,
                number: 9,
            },
        ),
    ]
}
