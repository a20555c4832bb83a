//! The rules of `docs/replication.md` that the coordinator keeps, each with an entry that breaks it.

use kera_coordinator::catalog::Limits;
use kera_coordinator::cluster::{AgreedEnd, ClusterState, Join, LogView, Owner, ToldEnd, agreed_end};
use kera_format::catalog::Entry;
use kera_format::cluster::{ClusterEntry, Doors, LogName, NodeNumber, OwnerReason, Rack, Roles};
use kera_format::{StreamId, StreamOptions, StreamletId, level};
use kera_protocol::{CreateStream, RebuildRange, Status, StreamChanges, StreamletState, StreamletsRebuilt};

fn join(node: NodeNumber) -> Join {
    Join {
        node,
        uuid: [node as u8; 16],
        roles: Roles::ALL,
        rack: String::new(),
        doors: Doors { cluster: format!("10.0.0.{node}:7072"), ..Doors::default() },
        settings: vec![("streams.streams_max".into(), "100000".into())],
        epoch_min: 1,
        has_all: true,
        levels: (1, 2),
    }
}

/// Below the level that brought them settings come into no entry, as if nobody had given them, and everything else is done.
#[test]
fn settings_come_into_the_log_when_all_nodes_can_read_them() {
    let mut cluster = Cluster::new();
    let options = |name: &str| StreamOptions {
        settings: [(name.to_owned(), "5".to_owned())].into(),
        retention_ms: Some(5),
        ..StreamOptions::default()
    };
    let request = CreateStream { name: "a".into(), options: options("retention.ms"), if_not_exists: false };
    let changes =
        StreamChanges { settings: [("flush.ms".to_owned(), Some("7".to_owned()))].into(), ..StreamChanges::default() };
    let created = cluster.0.plan_create_stream(&request, &MOST, 0, false).unwrap();
    assert!(created.iter().all(|entry| entry.level() < level::SETTINGS), "{created:?}");
    cluster.apply(&created);
    let known = |cluster: &Cluster| cluster.0.catalog.find(&"a".into()).unwrap().options.clone();
    assert_eq!(known(&cluster), options("retention.ms").without_settings());
    assert_eq!(cluster.0.plan_alter_stream(&"a".into(), &changes, &MOST, 0).unwrap(), []);
    let id = cluster.0.catalog.find(&"a".into()).unwrap().id;
    let altered = Entry::StreamAltered { stream: id, at_ms: 0, options: options("retention.ms") };
    cluster.refuses(ClusterEntry::Catalog(altered), "this needs level 17");

    for level in cluster.0.level() + 1..=level::SETTINGS {
        cluster.apply(&[ClusterEntry::LevelRaised { level }]);
    }
    let altered = cluster.0.plan_alter_stream(&"a".into(), &changes, &MOST, 0).unwrap();
    assert_eq!(altered.iter().map(ClusterEntry::level).collect::<Vec<_>>(), [level::SETTINGS]);
    cluster.apply(&altered);
    assert_eq!(known(&cluster).settings, [("flush.ms".to_owned(), "7".to_owned())].into());
    let created = CreateStream { name: "b".into(), ..request };
    let created = cluster.0.plan_create_stream(&created, &MOST, 0, false).unwrap();
    cluster.apply(&created);
    assert_eq!(cluster.0.catalog.find(&"b".into()).unwrap().options, options("retention.ms"));
    let mut copy = ClusterState::default();
    cluster.0.snapshot().iter().for_each(|entry| copy.restore(entry).unwrap());
    assert_eq!(copy.snapshot(), cluster.0.snapshot());
    assert_eq!(copy.catalog.find(&"b".into()).unwrap().options, options("retention.ms"));
}

struct Cluster(ClusterState);

impl Cluster {
    /// Three nodes in epoch 1 and no stream.
    fn new() -> Cluster {
        let mut cluster = Cluster(ClusterState::default());
        let founded = cluster.0.plan_found([9; 16], &join(1), 0).unwrap();
        cluster.apply(&founded);
        for node in [2, 3] {
            let joined = cluster.0.plan_join(&join(node), 0).unwrap();
            cluster.apply(&joined);
        }
        cluster
    }

    fn apply(&mut self, entries: &[ClusterEntry]) {
        for entry in entries {
            self.0.apply(entry).unwrap_or_else(|refused| panic!("{entry:?}: {refused}"));
        }
    }

    /// Refused, for a reason with these words, and without a change.
    fn refuses(&mut self, entry: ClusterEntry, words: &str) {
        let before = self.0.snapshot();
        let refused = self.0.apply(&entry).expect_err("it breaks a rule").to_string();
        assert!(refused.contains(words), "{refused}");
        assert_eq!(self.0.snapshot(), before);
    }

    fn stream(&mut self, name: &str, streamlets: u32, replication: u32) -> StreamId {
        let options = StreamOptions { streamlets, replication, ..StreamOptions::default() };
        let request = CreateStream { name: name.into(), options, if_not_exists: false };
        let created = self.0.plan_create_stream(&request, &MOST, 0, false).unwrap();
        self.apply(&created);
        self.0.catalog.find(&name.into()).unwrap().id
    }

    fn fence(&mut self, node: NodeNumber) {
        let fenced = self.0.plan_fence(node, self.0.node(node).unwrap().epoch).unwrap();
        self.apply(&fenced);
    }

    fn rejoin(&mut self, node: NodeNumber, has_all: bool) {
        let joined = self.0.plan_join(&Join { has_all, ..join(node) }, 0).unwrap();
        self.apply(&joined);
    }

    fn view(&mut self, log: LogName, view: u32, first: u64, backups: &[NodeNumber]) {
        let agreed = self.0.plan_view(&LogView { log, view, first, backups: backups.to_vec() }).unwrap();
        self.apply(&agreed);
    }

    /// What the owner hands over of a streamlet to which nobody has written.
    fn state(&self, stream: StreamId, streamlet: u32) -> Vec<u8> {
        let epoch = self.owner(stream, streamlet).owner_epoch;
        let state = StreamletState {
            stream,
            streamlet: StreamletId(streamlet),
            epoch,
            lanes: Vec::new(),
            progress: Vec::new(),
        };
        kera_protocol::codec::bytes_of(&state)
    }

    fn owner(&self, stream: StreamId, streamlet: u32) -> Owner {
        self.0.owner(stream, streamlet).expect("an owner")
    }
}

const MOST: Limits = Limits { streams: 100, nodes: 16 };
const LOG: LogName = LogName { node: 1, epoch: 1, log: 0 };

fn agreed(view: u32, first: u64, backups: &[NodeNumber]) -> ClusterEntry {
    ClusterEntry::ViewAgreed { log: LOG, view, first, backups: backups.to_vec() }
}

fn recovered(stream: StreamId, node: NodeNumber, owner_epoch: u32) -> ClusterEntry {
    let (first, count, epoch, reason) = (0, 1, 1, OwnerReason::Recovered);
    ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number: 0 }
}

#[test]
fn a_node_comes_back_with_a_higher_epoch_and_under_its_own_number_only() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.0.node(2).unwrap().epoch, 1);
    cluster.rejoin(2, true);
    assert_eq!(cluster.0.node(2).unwrap().epoch, 2);
    let joined = |node, epoch, uuid| ClusterEntry::NodeJoined {
        node,
        epoch,
        uuid: [uuid; 16],
        roles: Roles::ALL,
        at_ms: 0,
        rack: String::new(),
        doors: Doors::default(),
    };
    cluster.refuses(joined(2, 2, 2), "has had epoch 2");
    cluster.refuses(joined(2, 3, 7), "another node is number 2");
    cluster.refuses(joined(4, 1, 2), "is number 2 of the cluster");
    cluster.refuses(joined(0, 1, 7), "from 1 on");
}

#[test]
fn a_node_whose_shared_settings_differ_is_refused_with_both_values() {
    let cluster = Cluster::new();
    let settings = vec![("streams.streams_max".to_owned(), "7".to_owned())];
    let refused = cluster.0.plan_join(&Join { settings, ..join(4) }, 0).unwrap_err().to_string();
    assert!(refused.contains("streams.streams_max is 100000 in the cluster and 7 on this node"), "{refused}");
}

#[test]
fn streamlets_are_spread_evenly_in_few_runs() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("wide", 100_000, 1);
    let owners = cluster.0.owners(stream).unwrap();
    assert_eq!(owners.runs().len(), 3);
    let counts: Vec<u64> = cluster.0.nodes().values().map(|node| node.streamlets).collect();
    assert!(counts.iter().all(|count| (33_333..=33_334).contains(count)), "{counts:?}");
    // Streams with one streamlet go where least is, not all to the first.
    let small: Vec<StreamId> = (0..6).map(|number| cluster.stream(&format!("s{number}"), 1, 1)).collect();
    let mut nodes: Vec<NodeNumber> = small.iter().map(|stream| cluster.owner(*stream, 0).node).collect();
    nodes.sort_unstable();
    assert_eq!(nodes.len() - nodes.iter().filter(|node| **node == 1).count(), 4);
    // A lost broker gets none.
    cluster.fence(2);
    let more = cluster.stream("more", 10, 1);
    assert!(cluster.0.owners(more).unwrap().runs().iter().all(|run| run.owner.node != 2));
    // Streamlets that are added are spread as well.
    let changes = StreamChanges { streamlets: Some(20), ..StreamChanges::default() };
    let altered = cluster.0.plan_alter_stream(&"more".into(), &changes, &MOST, 0).unwrap();
    cluster.apply(&altered);
    assert_eq!(cluster.0.owners(more).unwrap().unowned(20), []);
}

/// Why a stream with so many copies is not made, if it is not.
fn refused(cluster: &Cluster, replication: u32) -> Option<(Status, String)> {
    let options = StreamOptions { replication, ..StreamOptions::default() };
    let request = CreateStream { name: "asked".into(), options, if_not_exists: false };
    let planned = cluster.0.plan_create_stream(&request, &MOST, 0, false);
    planned.err().map(|error| (error.status(), error.to_string()))
}

fn too_many(replication: u32, nodes: u32) -> Option<(Status, String)> {
    let why =
        format!("replication is {replication}, but there are {nodes} nodes to hold copies; ask for {nodes} at most");
    Some((Status::InvalidOptions, why))
}

#[test]
fn a_stream_is_made_while_nodes_are_lost_if_as_many_live_as_writes_need() {
    let mut cluster = Cluster::new();
    assert_eq!((1..=4).map(|copies| refused(&cluster, copies)).collect::<Vec<_>>(), [None, None, None, too_many(4, 3)]);
    cluster.fence(3);
    assert_eq!((1..=4).map(|copies| refused(&cluster, copies)).collect::<Vec<_>>(), [None, None, None, too_many(4, 3)]);
    let stream = cluster.stream("three", 6, 3);
    let owners: Vec<NodeNumber> = (0..6).map(|at| cluster.owner(stream, at).node).collect();
    assert_eq!(owners, [1, 1, 1, 2, 2, 2]);
    assert_eq!(cluster.0.copies_of(stream, 0), 3);
    // Its first log begins with the backup that is there.
    cluster.view(LOG, 1, 1, &[2]);
    cluster.rejoin(3, true);
    cluster.view(LOG, 2, 9, &[2, 3]);
    assert_eq!(refused(&cluster, 3), None);
}

/// Kafka clients that make their topics at their start end with what is final.
#[test]
fn with_too_few_live_nodes_a_stream_is_refused_for_the_moment_and_the_lost_ones_are_named() {
    let mut cluster = Cluster::new();
    cluster.fence(2);
    cluster.fence(3);
    let later = |copies, nodes| {
        let why = format!(
            "replication is {copies}, which needs 2 live nodes to hold copies, and there is 1; start {nodes}, or ask for 1 at most for now"
        );
        Some((Status::Overloaded, why))
    };
    let nodes = "nodes 2, 3";
    assert_eq!([1, 2, 3].map(|copies| refused(&cluster, copies)), [None, later(2, nodes), later(3, nodes)]);
    assert_eq!(refused(&cluster, 4), too_many(4, 3), "it stays so when they are back");
    assert!(Status::Overloaded.retryable() && !Status::Overloaded.could_duplicate());
    cluster.rejoin(2, true);
    assert_eq!([2, 3].map(|copies| refused(&cluster, copies)), [None, None]);
    // Five copies need three, and with two live three can be had.
    let joined: Vec<ClusterEntry> =
        [4, 5].iter().flat_map(|node| cluster.0.plan_join(&join(*node), 0).unwrap()).collect();
    cluster.apply(&joined);
    [4, 5].iter().for_each(|node| cluster.fence(*node));
    let (status, why) = refused(&cluster, 5).unwrap();
    assert_eq!(status, Status::Overloaded);
    assert!(
        why.ends_with(
            "needs 3 live nodes to hold copies, and there are 2; start nodes 3, 4, 5, or ask for 3 at most for now"
        ),
        "{why}"
    );
}

#[test]
fn nodes_that_do_not_come_back_hold_no_copies_of_a_stream_that_is_made() {
    let mut cluster = Cluster::new();
    let drained = cluster.0.plan_drain(3, true).unwrap();
    cluster.apply(&drained);
    assert_eq!(refused(&cluster, 3), None, "it is a backup for as long as it runs");
    cluster.fence(3);
    assert_eq!(refused(&cluster, 3), too_many(3, 2));
    let back = cluster.0.plan_drain(3, false).unwrap();
    cluster.apply(&back);
    assert_eq!(refused(&cluster, 3), None);
    let removed = cluster.0.plan_remove(3).unwrap();
    cluster.apply(&removed);
    assert_eq!(refused(&cluster, 3), too_many(3, 2));
}

/// It has them: nothing is asked for that there is not.
#[test]
fn other_options_of_a_stream_change_whatever_nodes_are_left_for_its_copies() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("three", 2, 3);
    let alters = |cluster: &mut Cluster, streamlets: u32| {
        let retention_ms = Some(Some(u64::from(streamlets)));
        let changes = StreamChanges { streamlets: Some(streamlets), retention_ms, ..StreamChanges::default() };
        let altered = cluster.0.plan_alter_stream(&stream.into(), &changes, &MOST, 0).unwrap();
        cluster.apply(&altered);
        let options = &cluster.0.catalog.find(&stream.into()).unwrap().options;
        assert_eq!((options.streamlets, options.replication), (streamlets, 3));
        assert_eq!(cluster.0.copies_of(stream, streamlets - 1), 3);
    };
    let owner = |cluster: &Cluster| (1..=3).find(|node| cluster.0.node(*node).is_some_and(|of| of.streamlets == 0));
    let idle = owner(&cluster).expect("three nodes own two");
    cluster.fence(idle);
    alters(&mut cluster, 3);
    let removed = cluster.0.plan_remove(idle).unwrap();
    cluster.apply(&removed);
    alters(&mut cluster, 4);
}

#[test]
fn streamlets_without_a_broker_wait_for_one() {
    let mut cluster = Cluster::new();
    (1..=3).for_each(|node| cluster.fence(node));
    let stream = cluster.stream("early", 4, 1);
    assert!(cluster.0.owner(stream, 0).is_none());
    assert_eq!(cluster.0.plan_adopt().unwrap(), []);
    cluster.rejoin(2, true);
    let adopted = cluster.0.plan_adopt().unwrap();
    cluster.apply(&adopted);
    assert_eq!(cluster.owner(stream, 3).node, 2);
    assert_eq!(cluster.0.plan_adopt().unwrap(), []);
}

#[test]
fn the_first_views_of_a_cluster_bring_the_epochs_of_the_single_node_along() {
    let mut state = ClusterState::default();
    let options = StreamOptions::default();
    let request = CreateStream { name: "old".into(), options, if_not_exists: false };
    let limits = Limits { streams: 10, nodes: 1 };
    let created = state.catalog.plan_create(&request, &limits, 0, false).unwrap();
    state.apply(&ClusterEntry::Catalog(created)).unwrap();
    let founded = state.plan_found([9; 16], &Join { epoch_min: 41, ..join(1) }, 0).unwrap();
    founded.iter().for_each(|entry| state.apply(entry).unwrap());
    let owner = state.owner(StreamId(1), 0).unwrap();
    assert_eq!((owner.node, owner.epoch), (1, 41));
    assert!(owner.owner_epoch > 41, "ids of groups up to epoch 41 are in use");
}

#[test]
fn a_view_follows_the_newest_one_and_is_agreed_once() {
    let mut cluster = Cluster::new();
    cluster.refuses(agreed(1, 2, &[2]), "cannot begin with block 2");
    cluster.view(LOG, 1, 1, &[2, 3]);
    cluster.view(LOG, 2, 100, &[3]);
    let again = LogView { log: LOG, view: 2, first: 100, backups: vec![3] };
    assert_eq!(cluster.0.plan_view(&again).unwrap(), [], "asking twice is answered like asking once");
    cluster.refuses(agreed(2, 120, &[2]), "so 2 is not its next");
    cluster.refuses(agreed(4, 120, &[2]), "so 4 is not its next");
    cluster.refuses(agreed(3, 99, &[2]), "cannot begin with block 99");
    cluster.refuses(agreed(3, 120, &[]), "1 to 16 backups");
    cluster.refuses(agreed(3, 120, &[2, 2]), "named twice");
    cluster.refuses(agreed(3, 120, &[1]), "backup of its own");
    cluster.fence(3);
    cluster.refuses(agreed(3, 120, &[3]), "it is lost");
}

#[test]
fn a_fenced_broker_changes_no_view_and_an_old_incarnation_neither() {
    let mut cluster = Cluster::new();
    cluster.view(LOG, 1, 1, &[2, 3]);
    cluster.fence(1);
    cluster.refuses(agreed(2, 5, &[2]), "node 1 epoch 1 is fenced");
    cluster.refuses(ClusterEntry::BackupAdded { log: LOG, view: 1, backup: 2 }, "fenced");
    cluster.rejoin(1, true);
    cluster.refuses(agreed(2, 5, &[2]), "epoch 1 is over");
    cluster.refuses(ClusterEntry::NodeFenced { node: 1, epoch: 1 }, "epoch 1 is over");
}

#[test]
fn copies_are_added_to_older_views_only() {
    let mut cluster = Cluster::new();
    cluster.view(LOG, 1, 1, &[2]);
    cluster.refuses(ClusterEntry::BackupAdded { log: LOG, view: 1, backup: 3 }, "none of its older ones");
    cluster.view(LOG, 2, 50, &[3]);
    cluster.apply(&[ClusterEntry::BackupAdded { log: LOG, view: 1, backup: 3 }]);
    assert_eq!(cluster.0.logs()[&LOG].views[0].backups, [2, 3]);
    cluster.refuses(ClusterEntry::BackupAdded { log: LOG, view: 1, backup: 3 }, "already");
    cluster.refuses(ClusterEntry::BackupAdded { log: LOG, view: 0, backup: 3 }, "none of its older ones");
}

#[test]
fn a_log_ends_once_after_the_fence_and_not_before_what_was_acknowledged() {
    let mut cluster = Cluster::new();
    cluster.view(LOG, 1, 1, &[2]);
    cluster.view(LOG, 2, 50, &[3]);
    cluster.refuses(ClusterEntry::LogEnded { log: LOG, end: 60 }, "is not fenced");
    cluster.fence(1);
    cluster.refuses(ClusterEntry::LogEnded { log: LOG, end: 48 }, "before block 50 was acknowledged");
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 49 }]);
    cluster.refuses(ClusterEntry::LogEnded { log: LOG, end: 60 }, "is decided");
    assert_eq!(cluster.0.plan_end_log(LOG, AgreedEnd { end: 60, at_all: true, certain: true }).unwrap(), []);
    let other = LogName { log: 9, ..LOG };
    cluster.refuses(ClusterEntry::LogEnded { log: other, end: 1 }, "there is no log 9");
}

#[test]
fn what_a_backup_has_told_of_the_end_of_a_log_does_not_count_once_it_is_lost() {
    let mut cluster = Cluster::new();
    let told = [2, 3].map(|backup| (backup, ToldEnd { through: 40 + u64::from(backup), certain: true, begun: 0 }));
    let ends = |cluster: &Cluster, told: &[_]| agreed_end(&cluster.0.ends_that_count(told), 2);
    assert_eq!(ends(&cluster, &told), Some(42));
    cluster.fence(2);
    assert_eq!(ends(&cluster, &told), Some(43));
    assert_eq!(ends(&cluster, &told[..1]), None, "nobody else may have block 42");
    assert_eq!(ends(&cluster, &[(9, told[0].1)]), None, "there is no such node");
    cluster.rejoin(2, true);
    assert_eq!(ends(&cluster, &told[..1]), Some(42), "it is there again");
}

#[test]
fn the_next_owner_is_named_after_the_ends_of_all_logs_of_the_last_one() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("copied", 1, 2);
    assert_eq!(cluster.owner(stream, 0).node, 1);
    cluster.view(LOG, 1, 1, &[2]);
    let second = LogName { log: 1, ..LOG };
    cluster.view(second, 1, 1, &[3]);
    let next = cluster.0.next_owner_epoch();
    cluster.refuses(recovered(stream, 2, next), "is not fenced");
    cluster.fence(1);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 7 }]);
    cluster.refuses(recovered(stream, 2, next), "the end of log 1 of node 1 epoch 1 is not decided");
    assert!(cluster.0.plan_recover(1, 1).is_err());
    cluster.apply(&[ClusterEntry::LogEnded { log: second, end: 0 }]);
    cluster.refuses(recovered(stream, 2, next - 1), "owner epoch");
    cluster.refuses(recovered(stream, 1, next), "node 1 epoch 1 is fenced");
    let entries = cluster.0.plan_recover(1, 1).unwrap();
    cluster.apply(&entries);
    let owner = cluster.owner(stream, 0);
    assert!(owner.node != 1 && owner.owner_epoch >= next, "{owner:?}");
    assert_eq!(cluster.0.plan_recover(1, 1).unwrap(), []);
}

#[test]
fn a_log_is_kept_while_streamlets_are_recovered_from_it() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("copied", 1, 2);
    cluster.view(LOG, 1, 1, &[2]);
    cluster.fence(1);
    cluster.refuses(ClusterEntry::LogGivenUp { log: LOG }, "are recovered from");
    cluster.refuses(ClusterEntry::NodeRemoved { node: 1 }, "still owns 1 streamlets");
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 7 }]);
    // Nobody rebuilds anything yet: the node itself, back without what it had, must not take this for "nobody needs it".
    cluster.rejoin(1, false);
    cluster.refuses(ClusterEntry::LogGivenUp { log: LOG }, "are recovered from");
    assert!(cluster.0.plan_give_up_log(LOG).is_err());
    assert_eq!(cluster.0.plan_give_up_lost().unwrap(), []);
    cluster.fence(1);
    let entries = cluster.0.plan_recover(1, 1).unwrap();
    cluster.apply(&entries);
    // Whoever takes over from an owner that is lost while it rebuilds needs the log again.
    cluster.refuses(ClusterEntry::LogGivenUp { log: LOG }, "still rebuilds streamlets");
    assert_eq!(cluster.0.plan_give_up_lost().unwrap(), []);
    let owner = cluster.owner(stream, 0);
    let streamlets = vec![RebuildRange { stream, first: 0, count: 1, owner_epoch: 0 }];
    let rebuilt = StreamletsRebuilt { node: owner.node, epoch: owner.epoch + 1, streamlets };
    assert_eq!(cluster.0.plan_rebuilt(&rebuilt).unwrap(), [], "that is another incarnation's");
    let entries = cluster.0.plan_rebuilt(&StreamletsRebuilt { epoch: owner.epoch, ..rebuilt }).unwrap();
    cluster.apply(&entries);
    assert!(!cluster.owner(stream, 0).rebuilding);
    cluster.refuses(ClusterEntry::NodeRemoved { node: 1 }, "virtual logs");
    assert_eq!(cluster.0.plan_give_up_lost().unwrap(), [ClusterEntry::LogGivenUp { log: LOG }]);
    cluster.apply(&[ClusterEntry::LogGivenUp { log: LOG }, ClusterEntry::NodeRemoved { node: 1 }]);
    assert_eq!(cluster.0.plan_give_up_log(LOG).unwrap(), []);
}

#[test]
fn streams_with_one_copy_wait_for_their_node() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("single", 1, 1);
    let before = cluster.owner(stream, 0);
    cluster.fence(1);
    assert_eq!(cluster.0.plan_recover(1, 1).unwrap(), []);
    assert_eq!(cluster.owner(stream, 0), before);
    cluster.rejoin(1, false);
    let after = cluster.owner(stream, 0);
    assert_eq!((after.node, after.epoch), (1, 2));
    assert!(after.owner_epoch > before.owner_epoch);
}

#[test]
fn a_node_that_returns_gets_copied_streams_back_if_it_has_all_and_no_end_is_decided() {
    let lost = |decide: bool, has_all: bool| {
        let mut cluster = Cluster::new();
        let stream = cluster.stream("copied", 1, 2);
        cluster.view(LOG, 1, 1, &[2]);
        cluster.fence(1);
        if decide {
            cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 7 }]);
        }
        cluster.rejoin(1, has_all);
        let all = ClusterEntry::OwnerReturned { node: 1, epoch: 2, owner_epoch: 1000, all: true };
        if decide {
            cluster.refuses(all, "is decided, so its streamlets are recovered");
        }
        cluster.owner(stream, 0).epoch
    };
    assert_eq!(lost(false, true), 2);
    assert_eq!(lost(false, false), 1, "it has not all: recovered from the backups");
    assert_eq!(lost(true, true), 1, "an end is decided: somebody else may have appended behind it");
}

#[test]
fn a_streamlet_moves_by_the_number_of_its_move() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("moving", 1, 1);
    let before = cluster.owner(stream, 0);
    let noted = cluster.0.plan_move(&stream.into(), 0, 2).unwrap();
    cluster.apply(&noted);
    assert_eq!(cluster.0.plan_move(&stream.into(), 0, 2).unwrap(), [], "asking twice is answered like asking once");
    assert!(cluster.0.plan_move(&stream.into(), 0, 3).unwrap_err().to_string().contains("it moves already, by move 1"));
    cluster.apply(&[ClusterEntry::MoveCalledOff { number: 1 }]);
    let noted = cluster.0.plan_move(&stream.into(), 0, 3).unwrap();
    cluster.apply(&noted);
    // What node 2 was told in the move that was called off does not count in this one.
    let state = cluster.state(stream, 0);
    assert!(cluster.0.plan_finish_move(1, 2, 1, &state).unwrap_err().to_string().contains("called off"));
    assert!(cluster.0.plan_finish_move(2, 2, 1, &state).unwrap_err().to_string().contains("to another node"));
    let mut big = <StreamletState as kera_protocol::Body>::decode(1, &state).unwrap();
    big.progress = vec![0; 64 << 10];
    let refused = cluster.0.plan_finish_move(2, 3, 1, &kera_protocol::codec::bytes_of(&big)).unwrap_err();
    assert!(refused.to_string().contains("the limit is 65536"), "no node could read such an entry: {refused}");
    let finished = cluster.0.plan_finish_move(2, 3, 1, &state).unwrap();
    cluster.apply(&finished);
    assert_eq!(cluster.0.handed(stream, 0).as_deref(), Some(&state[..]), "what it took along is kept with its owner");
    let after = cluster.owner(stream, 0);
    assert_eq!(after.node, 3);
    assert!(after.owner_epoch > before.owner_epoch);
    let held = cluster.0.owners(stream).unwrap().held();
    assert_eq!((held[0].node, held[0].owner_epoch), (1, 1), "the old groups stay where they are, all of them");
    assert!(cluster.0.moves().is_empty());
}

/// Raised one by one, as the coordinators do it.
fn raise_to(cluster: &mut Cluster, level: u32) {
    let raised: Vec<_> = (cluster.0.level() + 1..=level).map(|level| ClusterEntry::LevelRaised { level }).collect();
    cluster.apply(&raised);
}

#[test]
fn a_streamlet_moves_to_its_own_node_and_has_a_new_owner_epoch() {
    let mut cluster = Cluster::new();
    let (stream, single) = (cluster.stream("copied", 2, 2), cluster.stream("single", 1, 1));
    let noted = ClusterEntry::MoveNoted { number: 1, stream, streamlet: 0, from: 1, to: 1 };
    cluster.refuses(noted.clone(), "needs level 4");
    raise_to(&mut cluster, 4);
    let before = cluster.owner(stream, 0);
    assert_eq!(before.node, 1);
    assert!(cluster.0.plan_renew(stream, 0, (2, 1)).unwrap_err().to_string().contains("does not own"));
    assert!(cluster.0.plan_renew(stream, 0, (1, 2)).unwrap_err().to_string().contains("does not own"));
    let node = cluster.owner(single, 0).node;
    assert!(cluster.0.plan_renew(single, 0, (node, 1)).unwrap_err().to_string().contains("has no copies"));
    assert_eq!(cluster.0.plan_move(&stream.into(), 0, 1).unwrap(), [], "who asks for the node that has it gets that");
    assert_eq!(cluster.0.plan_renew(stream, 0, (1, 1)).unwrap(), [noted]);
    let mut epochs = vec![before.owner_epoch];
    for number in 1..4 {
        let noted = cluster.0.plan_renew(stream, 0, (1, 1)).unwrap();
        cluster.apply(&noted);
        assert_eq!(cluster.0.plan_renew(stream, 0, (1, 1)).unwrap(), [], "asking twice is answered like asking once");
        let refused = cluster.0.plan_move(&stream.into(), 0, 2).unwrap_err().to_string();
        assert!(refused.contains("it moves already"), "{refused}");
        let finished = cluster.0.plan_finish_move(number, 1, 1, &cluster.state(stream, 0)).unwrap();
        cluster.apply(&finished);
        let after = cluster.owner(stream, 0);
        assert_eq!((after.node, cluster.0.owned_in((1, 1), stream, 0)), (1, Some(after.owner_epoch)));
        epochs.push(after.owner_epoch);
        let held = cluster.0.owners(stream).unwrap().held();
        assert_eq!((held.len(), held[0].node, held[0].owner_epoch), (1, 1, 1), "all that is older, in one");
    }
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
    // From here it moves as any, and what the node has is all of these epochs.
    let noted = cluster.0.plan_move(&stream.into(), 0, 2).unwrap();
    cluster.apply(&noted);
    let finished = cluster.0.plan_finish_move(4, 2, 1, &cluster.state(stream, 0)).unwrap();
    cluster.apply(&finished);
    let held: Vec<_> =
        cluster.0.owners(stream).unwrap().held().iter().map(|held| (held.owner_epoch, held.node)).collect();
    assert_eq!(held, [(1, 1), (epochs[3], 1)]);
    assert_eq!(cluster.0.plan_renew(stream, 0, (2, 1)).unwrap().len(), 1);
}

#[test]
fn a_node_that_comes_back_has_no_move_to_itself_any_more() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("copied", 1, 2);
    raise_to(&mut cluster, 4);
    let noted = cluster.0.plan_renew(stream, 0, (1, 1)).unwrap();
    cluster.apply(&noted);
    let state = cluster.state(stream, 0);
    let joined = cluster.0.plan_join(&Join { levels: (1, 4), ..join(1) }, 0).unwrap();
    cluster.apply(&joined);
    assert!(cluster.0.moves().is_empty());
    assert!(cluster.0.plan_finish_move(1, 1, 2, &state).unwrap_err().to_string().contains("called off"));
}

#[test]
fn a_move_is_over_when_one_of_its_nodes_comes_back_in_another_epoch() {
    for back in [1, 2] {
        let mut cluster = Cluster::new();
        let stream = cluster.stream("moving", 1, 1);
        let noted = cluster.0.plan_move(&stream.into(), 0, 2).unwrap();
        cluster.apply(&noted);
        cluster.rejoin(back, true);
        let epoch = cluster.0.node(2).unwrap().epoch;
        let state = cluster.state(stream, 0);
        assert!(
            cluster.0.plan_finish_move(1, 2, epoch, &state).unwrap_err().to_string().contains("called off"),
            "{back}"
        );
    }
}

#[test]
fn a_recovery_ends_the_move_of_what_it_gives_away() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("moving", 1, 2);
    let noted = cluster.0.plan_move(&stream.into(), 0, 2).unwrap();
    cluster.apply(&noted);
    cluster.fence(1);
    let entries = cluster.0.plan_recover(1, 1).unwrap();
    cluster.apply(&entries);
    assert!(cluster.0.moves().is_empty());
}

#[test]
fn a_stream_that_is_deleted_leaves_nothing_behind() {
    let mut cluster = Cluster::new();
    let empty = cluster.0.snapshot();
    let stream = cluster.stream("gone", 9, 1);
    let noted = cluster.0.plan_move(&stream.into(), 0, 2).unwrap();
    cluster.apply(&noted);
    let deleted = cluster.0.plan_delete_stream(&"gone".into(), 0).unwrap();
    cluster.apply(&deleted);
    assert!(cluster.0.moves().is_empty() && cluster.0.owners(stream).is_none());
    assert!(cluster.0.nodes().values().all(|node| node.streamlets == 0));
    // All but counters that only rise, in the first entry and the last.
    assert_eq!(cluster.0.snapshot()[2..empty.len() - 1], empty[2..empty.len() - 1]);
}

#[test]
fn a_snapshot_gives_the_same_state_and_the_same_answers() {
    let mut cluster = Cluster::new();
    let stream = cluster.stream("copied", 10, 2);
    cluster.stream("single", 3, 1);
    cluster.view(LOG, 1, 1, &[2]);
    cluster.view(LOG, 2, 50, &[3]);
    let noted = cluster.0.plan_move(&stream.into(), 9, 2).unwrap();
    cluster.apply(&noted);
    let finished = cluster.0.plan_finish_move(1, 2, 1, &cluster.state(stream, 9)).unwrap();
    cluster.apply(&finished);
    let noted = cluster.0.plan_move(&stream.into(), 8, 2).unwrap();
    cluster.apply(&noted);
    cluster.fence(1);
    cluster.apply(&[ClusterEntry::LogEnded { log: LOG, end: 70 }]);
    let mut copy = ClusterState::default();
    for entry in cluster.0.snapshot() {
        copy.restore(&entry).unwrap();
    }
    assert_eq!(copy.snapshot(), cluster.0.snapshot());
    assert_eq!(copy.plan_recover(1, 1).unwrap(), cluster.0.plan_recover(1, 1).unwrap());
    let stale = recovered(stream, 2, 1);
    assert_eq!(copy.check(&stale), cluster.0.check(&stale));
    assert_eq!(copy.lost(), cluster.0.lost());
}

#[test]
fn streams_of_the_system_have_no_owner() {
    let mut cluster = Cluster::new();
    let request = CreateStream { name: "_kera.own".into(), options: StreamOptions::default(), if_not_exists: false };
    let created = cluster.0.plan_create_stream(&request, &MOST, 0, true).unwrap();
    cluster.apply(&created);
    assert_eq!(cluster.0.plan_adopt().unwrap(), []);
    assert!(cluster.0.nodes().values().all(|node| node.streamlets == 0));
}

#[test]
fn the_counters_of_a_single_node_come_along_at_the_founding_only() {
    let counters = kera_format::catalog::Entry::Counters { next_stream: StreamId(9), next_index: 3 };
    let mut state = ClusterState::default();
    state.apply(&ClusterEntry::Catalog(counters.clone())).unwrap();
    state.apply(&state.plan_found([9; 16], &join(1), 0).unwrap()[0]).unwrap();
    assert!(state.apply(&ClusterEntry::Catalog(counters)).unwrap_err().to_string().contains("for snapshots"));
}

#[test]
fn an_older_view_that_nobody_needs_has_no_backups_and_the_newest_keeps_its_own() {
    let mut cluster = Cluster::new();
    cluster.view(LOG, 1, 1, &[2]);
    cluster.refuses(ClusterEntry::ViewGivenUp { log: LOG, view: 1 }, "none of its older ones");
    cluster.view(LOG, 2, 50, &[3]);
    cluster.refuses(ClusterEntry::ViewGivenUp { log: LOG, view: 0 }, "none of its older ones");
    cluster.refuses(ClusterEntry::ViewGivenUp { log: LOG, view: 2 }, "none of its older ones");
    let entries = cluster.0.plan_give_up_view(LOG, 1).unwrap();
    assert_eq!(entries, [ClusterEntry::ViewGivenUp { log: LOG, view: 1 }]);
    cluster.apply(&entries);
    assert_eq!(cluster.0.plan_give_up_view(LOG, 1).unwrap(), []);
    let views: Vec<_> = cluster.0.logs()[&LOG].views.iter().map(|view| (view.first, view.backups.len())).collect();
    assert_eq!(views, [(1, 0), (50, 1)]);
    cluster.view(LOG, 3, 60, &[2]);
    cluster.fence(1);
    cluster.refuses(ClusterEntry::ViewGivenUp { log: LOG, view: 2 }, "is fenced");
}

#[test]
fn the_level_rises_one_by_one_when_all_nodes_speak_the_next_one_and_the_lost_ones_too() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.0.level(), 1);
    let plan = |cluster: &Cluster, says: [Option<u32>; 3]| {
        cluster.0.plan_raise_level(|node, epoch| says[node as usize - 1].filter(|_| epoch == 1)).unwrap()
    };
    let raised = [ClusterEntry::LevelRaised { level: 2 }];
    assert_eq!(plan(&cluster, [Some(2), Some(2), Some(1)]), []);
    assert_eq!(plan(&cluster, [Some(2), Some(2), None]), [], "nobody has heard node 3 say so");
    cluster.fence(3);
    assert_eq!(plan(&cluster, [Some(2), Some(2), None]), [], "node 3 may come back as it was");
    assert_eq!(plan(&cluster, [Some(2), Some(2), Some(2)]), raised);
    cluster.rejoin(3, true);
    assert_eq!(plan(&cluster, [Some(2), Some(2), Some(2)]), [], "what it said, it said before it came back");

    cluster.refuses(ClusterEntry::LevelRaised { level: 3 }, "so the next one is 2, not 3");
    cluster.refuses(ClusterEntry::LevelRaised { level: 1 }, "so the next one is 2, not 1");
    let is_told = |cluster: &Cluster| cluster.0.snapshot().contains(&raised[0]);
    assert!(!is_told(&cluster), "nodes of the first level do not know the entry");
    cluster.apply(&raised);
    assert_eq!(cluster.0.level(), 2);
    let mut copy = ClusterState::default();
    cluster.0.snapshot().iter().for_each(|entry| copy.restore(entry).unwrap());
    assert_eq!((copy.level(), is_told(&cluster)), (2, true));
    let refused = cluster.0.plan_join(&Join { levels: (1, 1), ..join(2) }, 0).unwrap_err().to_string();
    assert!(refused.contains("at level 2 and this node speaks levels 1 to 1"), "{refused}");
    let refused = cluster.0.plan_join(&Join { levels: (3, 4), ..join(2) }, 0).unwrap_err().to_string();
    assert!(refused.contains("at level 2 and this node speaks levels 3 to 4"), "{refused}");
}

#[test]
fn backups_of_other_racks_come_first_and_it_is_told_where_each_stands() {
    let mut cluster = Cluster(ClusterState::default());
    let at = |node, rack: &str| Join { rack: rack.into(), ..join(node) };
    let founded = cluster.0.plan_found([9; 16], &at(1, "a"), 0).unwrap();
    cluster.apply(&founded);
    for (node, rack) in [(2, "a"), (3, "b"), (4, "b"), (5, "c"), (6, "")] {
        let joined = cluster.0.plan_join(&at(node, rack), 0).unwrap();
        cluster.apply(&joined);
    }
    cluster.view(LogName { node: 6, epoch: 1, log: 0 }, 1, 1, &[3]);
    let found = cluster.0.backups_for(1, 0);
    let numbers: Vec<NodeNumber> = found.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [4, 5, 6, 3, 2], "3 has a log already, and 2 stands in the same rack");
    let rack = |node| found.iter().find(|(number, _)| *number == node).expect("it is live").1;
    assert_eq!((rack(2), rack(6)), (Rack::Own, Rack::Unknown));
    assert!(matches!(rack(3), Rack::Other(_)) && rack(3) == rack(4) && rack(3) != rack(5));
    assert_eq!(cluster.0.backups_for(6, 0).iter().filter(|(_, rack)| *rack == Rack::Own).count(), 0);
}
