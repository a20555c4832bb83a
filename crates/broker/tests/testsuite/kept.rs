//! What applications have read in a cluster: kept with the streamlet, found again by whoever owns it next, and given to nobody before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use kera_backup::{Backup, BackupConfig, BackupError, StoreDone, Taken};
use kera_broker::{Broker, BrokerConfig, Copies, EndedLog, EndedView, NoStates, Opening, Rebuild, RecoveryProgress};
use kera_env::{Clock, Disk, ManualClock, MemoryDisk, Random, SeededRandom};
use kera_format::chunk::Chunks;
use kera_format::cluster::{HANDED_BYTES_MAX, HANDED_LARGE_BYTES_MAX};
use kera_format::vlog_replica::LogId;
use kera_format::{Cursor, GroupId, LaneId, SegmentId, SegmentIndex, StreamId, StreamOptions, StreamletId};
use kera_log::{Lane, Observer, Streamlet};
use kera_protocol::application::AfterCommit::{Done, Keep, Release};
use kera_protocol::application::{LeaveApplication, ListApplications};
use kera_protocol::placement::LaneState;
use kera_protocol::{
    BlockStored, BlocksRead, Body, CommitEntry, CommitOffsets, CommittedOffset, CommittedOffsets, DeleteApplication,
    FetchOffsets, JoinedApplication, LaneStateList, LaneStates, LeasedGroup, LeasedGroups, NextGroups, OfferGroups,
    OlderGroups, Owner, ReadBlocks, ReadChunksResponse, ReadEntry, ResetOffsets, Start, Status, StreamletState,
};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::common::cloud::{CLUSTER, X, block_head, no_states};
use crate::common::*;

const Y: StreamletId = StreamletId(1);
const APPLICATIONS: [&str; 2] = ["audit", "report"];

#[derive(Default)]
struct Heard(Mutex<Option<Result<BlockStored, BackupError>>>);

impl StoreDone for Heard {
    fn stored(&self, _: u64, result: Result<BlockStored, BackupError>) {
        *self.0.lock() = Some(result);
    }
    fn room(&self) {}
}

/// A backup that is asked by a call.
struct OneBackup(Arc<Backup>);

impl OneBackup {
    fn new() -> OneBackup {
        let config = BackupConfig { file_bytes: 4 << 20, ..BackupConfig::new(CLUSTER, 11) };
        let disks = vec![Arc::new(MemoryDisk::new()) as Arc<dyn Disk>];
        let (clock, random) = (Arc::new(ManualClock::new(5)), Arc::new(SeededRandom::new(11)));
        OneBackup(Backup::open(config, disks, clock, random).expect("a backup").0)
    }

    /// Has all that a house has of the first streamlet, as the log of a lost broker, a few chunks in a block.
    fn take(&self, house: &House, log: LogId) -> EndedLog {
        self.take_of(house, log, X)
    }

    /// The same of any streamlet.
    fn take_of(&self, house: &House, log: LogId, streamlet: StreamletId) -> EndedLog {
        let place = house.log.stream(STREAM).unwrap().streamlet(streamlet).unwrap().clone();
        let chunks: Vec<Vec<u8>> = place.all_lanes().flat_map(|lane| chunks_of(house, lane)).collect();
        let mut end = 0;
        for (block, chunks) in (1..).zip(chunks.chunks(5)) {
            let bytes = chunks.concat();
            let head = block_head(log, block, chunks.len(), &bytes);
            let heard = Arc::new(Heard::default());
            let done = Arc::clone(&heard) as Arc<dyn StoreDone>;
            if matches!(self.0.store(&head, &bytes, &done, block), Taken::Queued) {
                self.0.run_once(0);
                heard.0.lock().take().expect("an answer").expect("it is stored");
            }
            end = block;
        }
        EndedLog { log, views: vec![EndedView { first: 1, backups: vec![11] }], end, at_all: true }
    }
}

impl Copies for OneBackup {
    fn lane_states(&self, _: u32, asked: &LaneStates) -> Result<LaneStateList, NoStates> {
        self.0.lane_states(asked).map_err(no_states)
    }
    fn read_blocks(&self, _: u32, asked: &ReadBlocks) -> Result<BlocksRead, String> {
        self.0.read_blocks(asked).map_err(|error| error.to_string())
    }
}

/// All chunks of a lane as they lie in its segments.
fn chunks_of(house: &House, lane: &Lane) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for group in lane.groups(GroupId::NONE, usize::MAX) {
        for index in group.first_segment.0..=group.last_segment.0 {
            let id = SegmentId {
                stream: STREAM,
                streamlet: lane.streamlet_id(),
                lane: lane.id(),
                group: group.id,
                index: SegmentIndex(index),
            };
            let segment = house.log.segment(id).expect("in memory");
            let chunks = Chunks::new(segment.bytes(128, segment.head()));
            all.extend(chunks.map(|chunk| chunk.unwrap().as_bytes().to_vec()));
        }
    }
    all
}

fn owner(node: u32, epoch: u32) -> Owner {
    Owner { node, epoch, older: Vec::new() }
}

/// A node of a cluster that owns nothing.
fn node(number: u32, options: &StreamOptions) -> House {
    node_with(config(), number, options)
}

fn node_with(config: BrokerConfig, number: u32, options: &StreamOptions) -> House {
    in_cluster(House::with(BrokerConfig { epoch: number * 10, ..config }, 32 << 20), number, options)
}

fn in_cluster(house: House, number: u32, options: &StreamOptions) -> House {
    house.stream(STREAM, options.clone());
    house.broker.join_cluster(CLUSTER, number);
    house.broker.place_stream(1, STREAM, vec![owner(99, 1); options.streamlets as usize]).unwrap();
    house.sink.instant.store(true, Ordering::SeqCst);
    house
}

/// A node that owns the streamlet, which nobody has owned.
fn first_owner(number: u32, options: &StreamOptions) -> House {
    own_first(node(number, options), number)
}

fn own_first(house: House, number: u32) -> House {
    house.broker.set_owner(2, STREAM, X, owner(number, 2)).unwrap();
    house.broker.open_streamlet(STREAM, X, 2, None).unwrap();
    house
}

/// The next owner of a streamlet whose owner is lost; nothing is rebuilt yet.
fn takes_over(
    number: u32,
    epoch: u32,
    options: &StreamOptions,
    logs: &[EndedLog],
    backup: &OneBackup,
) -> (House, Rebuild) {
    let house = node(number, options);
    house.broker.set_owner(epoch.into(), STREAM, X, owner(number, epoch)).unwrap();
    let rebuild = house.broker.take_over(&[(STREAM, X, epoch)], logs, backup).unwrap();
    (house, rebuild)
}

fn fetch(peer: &mut Peer, application: &str) -> Result<Vec<CommittedOffset>, Status> {
    fetch_of(peer, application, vec![])
}

fn fetch_of(peer: &mut Peer, application: &str, streamlets: Vec<StreamletId>) -> Result<Vec<CommittedOffset>, Status> {
    peer.send(&FetchOffsets { application: application.into(), stream: STREAM, streamlets });
    let frame = peer.frame();
    match frame.status() {
        Status::Ok => Ok(frame.decode::<CommittedOffsets>().offsets),
        status => Err(status),
    }
}

/// One group of one record.
fn write(peer: &mut Peer) {
    assert_eq!(statuses(&peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 1, 40 << 10)])), [Status::Ok]);
}

/// Where the first chunk of a segment begins.
const FIRST_CHUNK: u32 = 128;

fn done(group: &LeasedGroup) -> CommitEntry {
    let cursor = Cursor { position: group.start.position.max(FIRST_CHUNK) + 41_072, ..group.start };
    commit_entry(group, cursor, group.start_ordinal + 1, Done)
}

fn all_offsets(peer: &mut Peer) -> Vec<Result<Vec<CommittedOffset>, Status>> {
    APPLICATIONS.iter().map(|name| fetch(peer, name)).collect()
}

/// What can be leased, by one member who takes everything: each group and where it begins.
fn offered(house: &House, name: &str) -> Vec<(GroupId, Cursor, u64)> {
    let mut peer = house.peer();
    let joined = peer.join(house, name, Start::Earliest);
    let groups = peer.next_groups(&joined, 100);
    let JoinedApplication { application, member, .. } = joined;
    let _: kera_protocol::Empty = peer.call(&LeaveApplication { application, member });
    let durable = house.log.stream(STREAM).unwrap().streamlet(X).unwrap().lane(LaneId(0)).unwrap().durable_ordinal();
    // A group with nothing left in it is offered while it is open, for what may come.
    let with_more = groups.iter().filter(|group| group.start_ordinal < durable);
    with_more.map(|group| (group.group, group.start, group.start_ordinal)).collect()
}

#[test]
fn the_next_owner_goes_on_from_the_last_commit_and_gives_nothing_before_it_knows_it() {
    let backup = OneBackup::new();
    let options = options(1, 1);
    let first = first_owner(1, &options);
    let mut peer = first.peer();
    (0..4).for_each(|_| write(&mut peer));
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&first, &joined, &[done(&group)]), [Status::Ok]);
    let second = peer.next_groups(&joined, 1)[0];
    assert_eq!(second.start_ordinal, 1);
    let told = fetch(&mut peer, "report").unwrap();

    let logs = [backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (next, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    let mut peer = next.peer();
    let mut asking = next.peer();
    asking.send(&FetchOffsets { application: "report".into(), stream: STREAM, streamlets: vec![] });
    assert!(asking.frames().is_empty(), "who asks how far it is waits until that is known");
    let again = peer.join(&next, "report", Start::Earliest);
    let JoinedApplication { application, member, .. } = again;
    peer.send(&NextGroups { application, member, max_groups: 1, max_wait_ms: 0 });
    assert_eq!(peer.frame().status(), Status::NotReady, "it does not say that there is nothing");
    let mut waiting = next.peer();
    let other = waiting.join(&next, "report", Start::Earliest);
    let JoinedApplication { application, member, .. } = other;
    waiting.send(&NextGroups { application, member, max_groups: 1, max_wait_ms: 600_000 });
    assert!(waiting.frames().is_empty());
    // A lease of the lost owner is over, and changes nothing.
    let late = CommitEntry { lease: second.lease, ..done(&second) };
    assert_eq!(peer.commit(&next, &again, &[late]), [Status::LeaseLost]);

    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    asking.run(&next);
    assert_eq!(asking.frame().decode::<CommittedOffsets>().offsets, told);
    waiting.run(&next);
    let given = waiting.frame().decode::<LeasedGroups>().groups;
    assert_eq!(given.iter().map(|group| (group.group, group.start_ordinal)).collect::<Vec<_>>(), [(second.group, 1)]);
    assert_eq!(peer.commit(&next, &again, &[late]), [Status::LeaseLost], "not even when the group is leased again");
    assert_eq!(fetch(&mut peer, "report").unwrap(), told);
}

/// It began at the end that there was when the streamlet was read, and its members, who waited, never saw what was written before that.
#[test]
fn an_application_of_what_is_new_is_given_what_is_written_before_its_streamlet_is_read() {
    let backup = OneBackup::new();
    let options = options(1, 1);
    let first = first_owner(1, &options);
    let mut peer = first.peer();
    (0..2).for_each(|_| write(&mut peer));
    peer.join(&first, "audit", Start::Earliest);
    let logs = [backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (next, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    let mut peer = next.peer();
    let joined = peer.join(&next, "report", Start::Latest);
    write(&mut peer);
    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    next.broker.tick();
    let given = peer.next_groups(&joined, 9);
    assert_eq!(given.iter().map(|group| (group.group.epoch(), group.start_ordinal)).collect::<Vec<_>>(), [(3, 2)]);
    // Nothing that was there before is new.
    let late = peer.join(&next, "late", Start::Latest);
    write(&mut peer);
    let given = peer.next_groups(&late, 9);
    assert_eq!(given.iter().map(|group| group.start_ordinal).collect::<Vec<_>>(), [3]);
}

/// Appends chunks to the progress lane of the streamlet, as its owner does.
fn record(house: &House, chunks: &[Vec<u8>]) {
    let place = house.log.stream(STREAM).unwrap().streamlet(X).unwrap().clone();
    for chunk in chunks {
        let view = kera_format::chunk::ChunkView::parse(chunk).unwrap();
        place.progress_lane().append(&view, 1).unwrap();
    }
}

/// Where a stream grows to a full node its applications come with their members, and these would end if they were refused.
#[test]
fn only_the_owner_of_the_first_streamlet_refuses_applications_for_which_there_is_no_room() {
    let room_for_one = BrokerConfig { applications_bytes_max: 4 << 8, ..config() };
    let house = node_with(room_for_one, 1, &StreamOptions { replication: 2, ..options(2, 4) });
    let mut peer = house.peer();
    let own = |version: u64, streamlet: StreamletId| {
        house.broker.set_owner(version, STREAM, streamlet, owner(1, 2)).unwrap();
        house.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
    };
    own(2, StreamletId(1));
    assert_eq!(statuses(&peer.write(&[chunk_of(target(STREAM, 1, 0, 0), 1, 10)])), [Status::Ok]);
    for name in APPLICATIONS {
        peer.join(&house, name, Start::Earliest);
    }
    own(3, X);
    assert_eq!(peer.refused(&join_request("late", STREAM, Start::Earliest)), Status::LimitReached);
    for name in APPLICATIONS {
        let joined = peer.join(&house, name, Start::Earliest);
        assert_eq!(peer.next_groups(&joined, 10).len(), 1, "those that there are go on");
    }
}

/// Who asks all owners at once came to those that do not decide, and stayed there although it was refused.
#[test]
fn owners_of_other_streamlets_have_a_limit_too() {
    let room_for_one = BrokerConfig { applications_bytes_max: 4 << 8, ..config() };
    let house = node_with(room_for_one, 1, &StreamOptions { replication: 2, ..options(2, 4) });
    let mut peer = house.peer();
    house.broker.set_owner(2, STREAM, StreamletId(1), owner(1, 2)).unwrap();
    house.broker.open_streamlet(STREAM, StreamletId(1), 2, None).unwrap();
    for at in 0..4 {
        peer.join(&house, &format!("report{at}"), Start::Earliest);
    }
    peer.send(&join_request("late", STREAM, Start::Earliest));
    let frame = peer.frame();
    assert_eq!(frame.status(), Status::LimitReached);
    let message = frame.error().message;
    assert!(
        message.contains("would be 20, the limit is 16") && message.contains("does not own streamlet 0"),
        "{message}"
    );
    assert!(message.contains("the owner of streamlet 0") && message.contains("kera application delete"), "{message}");
    peer.join(&house, "report0", Start::Earliest);
}

/// One that there is ended at a full owner which had not read yet that it knows it.
#[test]
fn who_may_be_known_in_what_is_still_read_is_told_to_come_back() {
    let room_for_one = BrokerConfig { applications_bytes_max: 4 << 8, ..config() };
    let options = StreamOptions { replication: 2, ..options(3, 4) };
    let owns = |house: &House, node: u32, streamlet: StreamletId| {
        house.broker.set_owner(2, STREAM, streamlet, owner(node, 2)).unwrap();
        house.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
    };
    let (moved, backup) = (StreamletId(1), OneBackup::new());
    let before = node(1, &options);
    owns(&before, 1, moved);
    before.peer().join(&before, "report", Start::Earliest);
    let logs = [backup.take_of(&before, LogId { node: 1, epoch: 10, vlog: 0 }, moved)];

    let house = node_with(room_for_one, 2, &options);
    let mut peer = house.peer();
    owns(&house, 2, StreamletId(2));
    for at in 0..4 {
        peer.join(&house, &format!("other{at}"), Start::Earliest);
    }
    house.broker.set_owner(3, STREAM, moved, owner(2, 3)).unwrap();
    assert_eq!(
        peer.refused(&join_request("report", STREAM, Start::Earliest)),
        Status::NotReady,
        "it is not opened yet"
    );
    let rebuild = house.broker.take_over(&[(STREAM, moved, 3)], &logs, &backup).unwrap();
    assert_eq!(peer.refused(&join_request("report", STREAM, Start::Earliest)), Status::NotReady);
    house.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    // As its node does again and again.
    house.broker.tick();
    peer.join(&house, "report", Start::Earliest);
    assert_eq!(peer.refused(&join_request("late", STREAM, Start::Earliest)), Status::LimitReached);
}

/// The names of the stream's applications at a node.
fn listed(house: &House) -> Vec<String> {
    let list = house.peer().call(&ListApplications { stream: Some(STREAM) });
    list.applications.into_iter().map(|application| application.name).collect()
}

/// A node that owns the first of two streamlets, and is named for the second one, which it has not taken over yet; and the log of the node that had
/// that one, with a record. Both nodes have made application `report`, which has no members now.
fn named_for_another(backup: &OneBackup) -> (House, Vec<EndedLog>) {
    let options = options(2, 1);
    let (lost, house) = (node(1, &options), node(2, &options));
    for (of, number, streamlet) in [(&lost, 1, Y), (&house, 2, X)] {
        of.broker.set_owner(2, STREAM, streamlet, owner(number, 2)).unwrap();
        of.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
        let mut peer = of.peer();
        let JoinedApplication { application, member, .. } = peer.join(of, "report", Start::Earliest);
        let _: kera_protocol::Empty = peer.call(&LeaveApplication { application, member });
    }
    assert_eq!(statuses(&lost.peer().write(&[chunk_of(target(STREAM, Y.0, 0, 0), 1, 100)])), [Status::Ok]);
    let logs = vec![backup.take_of(&lost, LogId { node: 1, epoch: 10, vlog: 0 }, Y)];
    house.broker.set_owner(3, STREAM, Y, owner(2, 3)).unwrap();
    (house, logs)
}

/// Takes over the streamlet that the node is named for.
fn takes_the_other(house: &House, logs: &[EndedLog], backup: &OneBackup) {
    let rebuild = house.broker.take_over(&[(STREAM, Y, 3)], logs, backup).unwrap();
    house.broker.rebuild(&rebuild, logs, backup, &RecoveryProgress::default()).unwrap();
    // As its node does again and again.
    house.broker.tick();
}

/// Whoever deletes it asks each owner that is named, and was told that it is gone: it came back with what was read of the streamlet then.
#[test]
fn an_application_is_not_deleted_while_a_streamlet_is_still_to_be_taken_over() {
    let backup = OneBackup::new();
    let (house, logs) = named_for_another(&backup);
    let mut peer = house.peer();
    let delete = DeleteApplication { application: "report".into(), stream: STREAM };
    assert_eq!(peer.refused(&delete), Status::NotReady);
    let (application, to) = ("report".into(), Start::Latest);
    let reset = ResetOffsets { application, stream: STREAM, streamlets: vec![], to, dry_run: false };
    assert_eq!(peer.refused(&reset), Status::NotReady, "it would set nothing in it");
    assert_eq!(fetch(&mut peer, "report"), Err(Status::NotReady));
    takes_the_other(&house, &logs, &backup);
    assert_eq!(listed(&house), ["report"]);
    let set: CommittedOffsets = peer.call(&reset);
    assert_eq!(set.offsets.iter().map(|offset| (offset.streamlet, offset.ordinal)).collect::<Vec<_>>(), [(Y, 1)]);
    let _: kera_protocol::Empty = peer.call(&delete);
    assert!(listed(&house).is_empty());
}

/// Clients name what they ask an owner for. They were sent on to the node that they had asked, and who asked for other streamlets waited as well.
#[test]
fn who_names_streamlets_waits_for_those_that_are_still_to_be_taken_over_and_for_no_others() {
    let backup = OneBackup::new();
    let (house, logs) = named_for_another(&backup);
    let mut peer = house.peer();
    write(&mut peer);
    let reset = |streamlets: Vec<StreamletId>| {
        let (application, to) = ("report".into(), Start::Earliest);
        ResetOffsets { application, stream: STREAM, streamlets, to, dry_run: false }
    };
    for asked in [vec![Y], vec![X, Y]] {
        assert_eq!(fetch_of(&mut peer, "report", asked.clone()), Err(Status::NotReady), "{asked:?}");
        peer.send(&reset(asked));
        let frame = peer.frame();
        assert_eq!(frame.status(), Status::NotReady);
        let message = frame.error().message;
        assert!(message.contains("is still to be taken over") && message.contains("`kera status`"), "{message}");
    }
    let set: CommittedOffsets = peer.call(&reset(vec![X]));
    assert_eq!(set.offsets.iter().map(|offset| (offset.streamlet, offset.ordinal)).collect::<Vec<_>>(), [(X, 0)]);
    assert_eq!(fetch_of(&mut peer, "report", vec![X]).map(|offsets| offsets.len()), Ok(1));
    takes_the_other(&house, &logs, &backup);
    assert!(fetch_of(&mut peer, "report", vec![Y]).is_ok());
    let set: CommittedOffsets = peer.call(&reset(vec![Y]));
    assert_eq!(set.offsets.iter().map(|offset| (offset.streamlet, offset.ordinal)).collect::<Vec<_>>(), [(Y, 0)]);
}

/// Asks for groups and does not wait: how many there are, or why that is not known.
fn groups_now(peer: &mut Peer, joined: &JoinedApplication) -> Result<usize, Status> {
    let JoinedApplication { application, member, .. } = *joined;
    peer.send(&NextGroups { application, member, max_groups: 9, max_wait_ms: 0 });
    let frame = peer.frame();
    match frame.status() {
        Status::Ok => Ok(frame.decode::<LeasedGroups>().groups.len()),
        status => Err(status),
    }
}

/// Whoever read to the end was told that there is nothing more, and ended, in front of all that the streamlet has.
#[test]
fn a_member_is_not_told_that_there_is_nothing_while_a_streamlet_is_still_to_be_taken_over() {
    let backup = OneBackup::new();
    let (house, logs) = named_for_another(&backup);
    let mut peer = house.peer();
    let joined = peer.join(&house, "report", Start::Earliest);
    assert_eq!(groups_now(&mut peer, &joined), Err(Status::NotReady));
    write(&mut peer);
    assert_eq!(groups_now(&mut peer, &joined), Ok(1), "groups of other streamlets are given");
    assert_eq!(groups_now(&mut peer, &joined), Err(Status::NotReady));
    let JoinedApplication { application, member, .. } = joined;
    let mut waiting = house.peer();
    waiting.send(&NextGroups { application, member, max_groups: 9, max_wait_ms: 600_000 });
    assert!(waiting.frames().is_empty(), "who waits goes on waiting");
    takes_the_other(&house, &logs, &backup);
    waiting.run(&house);
    let given = waiting.frame().decode::<LeasedGroups>().groups;
    assert_eq!(given.iter().map(|group| (group.streamlet, group.start_ordinal)).collect::<Vec<_>>(), [(Y, 0)]);
    assert_eq!(groups_now(&mut peer, &joined), Ok(0), "all of it is known");
}

/// A node with a disk that owns the streamlet, of which an application has read all, and whoever is connected to it.
fn stored_with_all_read() -> (House, Peer) {
    let options = StreamOptions { replication: 2, ..options(1, 1) };
    let house = own_first(in_cluster(House::stored(), 1, &options), 1);
    let mut peer = house.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&house, &joined, &[done(&group)]), [Status::Ok]);
    (house, peer)
}

/// The same where a disk does not give back what was recorded.
#[test]
fn a_member_is_not_told_that_there_is_nothing_while_it_cannot_be_read_how_far_the_application_is() {
    let (house, _) = stored_with_all_read();
    house.broker.set_owner(3, STREAM, X, owner(1, 3)).unwrap();
    assert!(house.store.evict_all(&house.log) > 0);
    house.broker.open_streamlet(STREAM, X, 3, None).unwrap();
    let mut peer = house.peer();
    let joined = peer.join(&house, "report", Start::Earliest);
    assert_eq!(groups_now(&mut peer, &joined), Err(Status::NotReady), "it is on its way from disk");
    house.store.fail(&house.log);
    assert_eq!(groups_now(&mut peer, &joined), Err(Status::NotReady), "it does not come");
    assert_eq!(groups_now(&mut peer, &joined), Err(Status::NotReady), "it is asked for again");
    assert!(house.store.bring(&house.log) > 0);
    let given = peer.next_groups(&joined, 9);
    assert_eq!(given.iter().map(|group| group.start_ordinal).collect::<Vec<_>>(), [1]);
}

/// Nobody had heard of it, and nobody would have deleted it.
#[test]
fn an_application_that_one_of_two_streamlets_did_not_take_is_not_found_by_the_next_owner_of_the_other() {
    let (backup, options) = (OneBackup::new(), options(2, 1));
    let house = node(1, &options);
    house.broker.place_stream(2, STREAM, vec![owner(1, 2), owner(1, 2)]).unwrap();
    for streamlet in [X, Y] {
        house.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
    }
    let mut peer = house.peer();
    peer.join(&house, "audit", Start::Earliest);
    house.broker.let_go(STREAM, Y).unwrap();
    assert_eq!(peer.refused(&join_request("report", STREAM, Start::Earliest)), Status::NotOwner);
    house.broker.keep_streamlet(STREAM, Y).unwrap();
    house.broker.tick();
    assert_eq!(listed(&house), ["audit"]);
    let logs = [backup.take(&house, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (next, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    next.broker.tick();
    assert_eq!(listed(&next), ["audit"]);
    // When the streamlet takes it, it is there.
    peer.join(&house, "report", Start::Earliest);
    assert_eq!(listed(&house), ["audit", "report"]);
}

/// The node has owned it before and wrote all of it anew then. What that replaced goes while it is awaited from disk, to be read again.
#[test]
fn what_is_read_may_go_when_a_copy_has_replaced_it() {
    let (house, mut peer) = stored_with_all_read();
    let told = fetch(&mut peer, "report").unwrap();
    let progress = house.log.stream(STREAM).unwrap().streamlet(X).unwrap().progress_lane().clone();
    let records = chunks_of(&house, &progress);
    house.broker.set_owner(3, STREAM, X, owner(1, 3)).unwrap();
    assert!(house.store.evict_all(&house.log) > 0);
    house.broker.open_streamlet(STREAM, X, 3, None).unwrap();
    record(&house, &records);
    let copy = progress.groups(GroupId::NONE, 9).last().expect("the copy").id;
    assert_eq!(copy.epoch(), 3);
    progress.set_consumed_floor(Some(Cursor { group: copy, ..Cursor::default() }));
    progress.close_group();
    house.sink.sync();
    house.store.fail(&house.log);
    assert!(house.store.evict_all(&house.log) > 0);
    house.log.retain(1);
    assert_eq!(progress.earliest().0.group, copy, "the rest is gone");
    let mut peer = house.peer();
    peer.send(&FetchOffsets { application: "report".into(), stream: STREAM, streamlets: vec![] });
    assert!(house.store.bring(&house.log) > 0, "the copy comes from disk");
    peer.run(&house);
    assert_eq!(peer.frame().decode::<CommittedOffsets>().offsets, told);
    house.broker.let_go(STREAM, X).unwrap();
    assert!(house.broker.handed_over(STREAM, X).unwrap().is_some());
}

#[test]
fn a_streamlet_that_cannot_be_handed_over_yet_is_not_let_go() {
    let backup = OneBackup::new();
    let options = options(1, 1);
    let first = first_owner(1, &options);
    let mut peer = first.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&first, &joined, &[done(&group)]), [Status::Ok]);
    let logs = [backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (next, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    let refused = next.broker.let_go(STREAM, X).unwrap_err();
    assert_eq!(refused.status, Status::NotReady, "{refused}");
    // Writers do not wait for what is to be known first.
    write(&mut next.peer());
    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    next.broker.let_go(STREAM, X).unwrap();
    assert!(next.broker.handed_over(STREAM, X).unwrap().is_some());
}

/// Who asks a node for a streamlet at the moment from which on that takes writes of it.
struct AsksAtOnce {
    me: Weak<AsksAtOnce>,
    broker: Weak<Broker>,
    /// Whether it was told what the next owner must know.
    told: Mutex<Option<Result<bool, Status>>>,
}

impl Opening for AsksAtOnce {
    fn opening(&self, _: StreamId, place: &Streamlet, _: u32) {
        let (lane, me) = (place.lane(LaneId(0)).expect("a lane"), self.me.upgrade().expect("it is asked"));
        assert!(lane.wait(lane.version(), &(me as Arc<dyn Observer>), 0));
    }
}

impl Observer for AsksAtOnce {
    fn advanced(&self, _: u64) {
        let broker = self.broker.upgrade().expect("a broker");
        let state = broker.let_go(STREAM, X).and_then(|()| broker.handed_over(STREAM, X));
        *self.told.lock() = Some(state.map(|state| state.is_some()).map_err(|failure| failure.status));
    }
}

/// A move right behind another: the next owner was told that nobody had read anything, and what the first one had told was gone with that.
#[test]
fn a_streamlet_that_is_opened_right_now_is_not_let_go_without_what_applications_have_read() {
    let options = options(1, 1);
    let (first, second, third) = (first_owner(1, &options), node(2, &options), node(3, &options));
    let mut peer = first.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&first, &joined, &[done(&group)]), [Status::Ok]);
    let told = fetch(&mut peer, "report").unwrap();
    let move_from = |house: &House| {
        house.broker.let_go(STREAM, X).unwrap();
        house.broker.handed_over(STREAM, X).unwrap().expect("all is durable")
    };
    let opens = |house: &House, number, epoch, before: &[(u32, u32)], state: &StreamletState| {
        let older = |(first_epoch, node): &(u32, u32)| OlderGroups { first_epoch: *first_epoch, node: *node };
        let owner = Owner { node: number, epoch, older: before.iter().map(older).collect() };
        house.broker.set_owner(epoch.into(), STREAM, X, owner).unwrap();
        house.broker.open_streamlet(STREAM, X, epoch, Some(state)).unwrap();
    };
    let asks = Arc::new_cyclic(|me| AsksAtOnce {
        me: Weak::clone(me),
        broker: Arc::downgrade(&second.broker),
        told: Mutex::default(),
    });
    second.broker.set_opening(Arc::clone(&asks) as Arc<dyn Opening>);
    opens(&second, 2, 3, &[(2, 1)], &move_from(&first));
    assert_eq!(*asks.told.lock(), Some(Err(Status::NotReady)));
    // Nobody waits for a move that cannot be yet, and it can be at once.
    write(&mut second.peer());
    assert_eq!(fetch(&mut second.peer(), "report").unwrap(), told);
    opens(&third, 3, 4, &[(2, 1), (3, 2)], &move_from(&second));
    assert_eq!(fetch(&mut third.peer(), "report").unwrap(), told);
}

/// There is nothing to be known of it, and that is known at once.
#[test]
fn a_streamlet_that_no_application_reads_is_let_go_as_soon_as_it_is_opened() {
    let house = first_owner(1, &options(1, 1));
    house.broker.let_go(STREAM, X).unwrap();
    assert!(house.broker.handed_over(STREAM, X).unwrap().is_some());
    house.broker.keep_streamlet(STREAM, X).unwrap();
    house.broker.let_go(STREAM, X).unwrap();
    let state = house.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    // It moves to the same node.
    house.broker.set_owner(3, STREAM, X, owner(1, 3)).unwrap();
    house.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    house.broker.let_go(STREAM, X).unwrap();
    assert!(house.broker.handed_over(STREAM, X).unwrap().is_some());
}

#[test]
fn leases_end_with_the_ownership_and_members_are_told_to_look_elsewhere() {
    let options = options(1, 1);
    let house = first_owner(1, &options);
    let mut peer = house.peer();
    write(&mut peer);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    house.broker.set_owner(3, STREAM, X, owner(2, 3)).unwrap();
    let JoinedApplication { application, member, .. } = joined;
    let commit = CommitOffsets { application, member, entries: vec![done(&group)] };
    assert_eq!(peer.refused(&commit), Status::UnknownApplication, "it owns nothing of the stream any more");
    assert_eq!(peer.refused(&join_request("report", STREAM, Start::Earliest)), Status::NotOwner);
    assert_eq!(
        peer.refused(&DeleteApplication { application: "report".into(), stream: STREAM }),
        Status::UnknownApplication
    );
}

/// A member reads from whoever has a group: the owner that it has the lease from may be frozen, or cut off, when its successor closes the group.
#[test]
fn an_owner_that_does_not_know_yet_that_it_is_none_refuses_no_end_of_a_group_for_good() {
    let backup = OneBackup::new();
    let options = options(1, 1);
    let first = first_owner(1, &options);
    let mut peer = first.peer();
    write(&mut peer);
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let logs = [backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (next, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    let mut reading = next.peer();
    reading.send(&read_request(&[ReadEntry { flags: 0, ..entry(STREAM, 0, 0, group.start) }], 0));
    let response: ReadChunksResponse = reading.frame().decode();
    let read = &response.answers[0].0;
    assert!(read.end_of_group() && read.next.group == group.group);
    for _ in 0..2 {
        let status = peer.commit(&first, &joined, &[done(&group)])[0];
        assert!(status == Status::NotReady && status.retryable());
    }
    // When it has heard of it the lease is over.
    first.broker.set_owner(3, STREAM, X, owner(2, 3)).unwrap();
    let JoinedApplication { application, member, .. } = joined;
    let commit = CommitOffsets { application, member, entries: vec![done(&group)] };
    assert_eq!(peer.refused(&commit), Status::UnknownApplication);
}

#[test]
fn a_streamlet_that_comes_back_brings_no_lease_along() {
    let options = options(2, 1);
    let house = node(1, &options);
    house.broker.place_stream(2, STREAM, vec![owner(1, 2), owner(1, 2)]).unwrap();
    for streamlet in [X, StreamletId(1)] {
        house.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
    }
    let mut peer = house.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&house, "report", Start::Earliest);
    let first = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&house, &joined, &[done(&first)]), [Status::Ok]);
    let group = peer.next_groups(&joined, 1)[0];
    let late = CommitEntry { after: Keep, ..done(&group) };
    house.broker.set_owner(3, STREAM, X, owner(2, 3)).unwrap();
    assert_eq!(peer.commit(&house, &joined, &[late]), [Status::LeaseLost]);
    assert!(peer.next_groups(&joined, 9).is_empty(), "nothing of it is leased any more");
    house.broker.set_owner(4, STREAM, X, owner(1, 4)).unwrap();
    house.broker.open_streamlet(STREAM, X, 4, None).unwrap();
    assert_eq!(peer.commit(&house, &joined, &[late]), [Status::LeaseLost]);
    let again = peer.next_groups(&joined, 9);
    assert_eq!(again.iter().map(|group| (group.group, group.start_ordinal)).collect::<Vec<_>>(), [(group.group, 1)]);
    assert_eq!(fetch(&mut peer, "report").unwrap().iter().map(|offset| offset.ordinal).collect::<Vec<_>>(), [1]);
}

/// Members join each owner once. One that came to know their application with a streamlet that moved to it has others of the stream already.
#[test]
fn an_application_that_comes_with_a_streamlet_reads_the_others_of_its_new_owner() {
    let options = options(2, 1);
    let (first, next) = (node(1, &options), node(2, &options));
    for (house, streamlet) in [(&first, X), (&next, StreamletId(1))] {
        house.broker.place_stream(2, STREAM, vec![owner(1, 2), owner(2, 2)]).unwrap();
        house.broker.open_streamlet(STREAM, streamlet, 2, None).unwrap();
    }
    let mut peer = first.peer();
    write(&mut peer);
    for (name, start) in [("report", Start::Earliest), ("alert", Start::Latest)] {
        peer.join(&first, name, start);
    }
    let chunk = |sequence| chunk_of(target(STREAM, 1, 7, sequence), 1, 100);
    assert_eq!(statuses(&next.peer().write(&[chunk(0)])), [Status::Ok]);
    first.broker.let_go(STREAM, X).unwrap();
    let state = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    let older = vec![kera_protocol::OlderGroups { first_epoch: 2, node: 1 }];
    next.broker.set_owner(3, STREAM, X, Owner { node: 2, epoch: 3, older }).unwrap();
    next.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    assert_eq!(statuses(&next.peer().write(&[chunk(1)])), [Status::Ok]);
    let begins = |name, start| {
        let mut peer = next.peer();
        let joined = peer.join(&next, name, start);
        let mut groups = peer.next_groups(&joined, 9);
        groups.sort_by_key(|group| group.streamlet);
        groups.iter().map(|group| (group.streamlet.0, group.start_ordinal)).collect::<Vec<_>>()
    };
    assert_eq!(begins("report", Start::Earliest), [(0, 0), (1, 0)]);
    assert_eq!(begins("alert", Start::Latest), [(1, 1)], "from where it was heard of on");
    let offsets = fetch(&mut next.peer(), "alert").unwrap();
    let recorded: Vec<_> = offsets.iter().map(|offset| (offset.streamlet.0, offset.ordinal)).collect();
    assert_eq!(recorded, [(0, 1), (1, 1)]);
}

#[test]
fn groups_of_the_last_owner_are_leased_also_if_only_the_records_came_along() {
    let options = options(1, 1);
    let (first, next) = (first_owner(1, &options), node(2, &options));
    let mut peer = first.peer();
    (0..3).for_each(|_| write(&mut peer));
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&first, &joined, &[done(&group)]), [Status::Ok]);
    first.broker.let_go(STREAM, X).unwrap();
    let mut state = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    state.lanes.iter_mut().for_each(|lane| lane.groups.clear());
    let older = vec![kera_protocol::OlderGroups { first_epoch: 2, node: 1 }];
    next.broker.set_owner(3, STREAM, X, Owner { node: 2, epoch: 3, older }).unwrap();
    next.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    let mut peer = next.peer();
    let joined = peer.join(&next, "report", Start::Earliest);
    for ordinal in 1..3 {
        let group = peer.next_groups(&joined, 9)[0];
        assert_eq!((group.group.epoch(), group.start_ordinal), (2, ordinal));
        assert_eq!(peer.commit(&next, &joined, &[done(&group)]), [Status::Ok]);
    }
    assert!(peer.next_groups(&joined, 9).is_empty());
}

/// An owner whose predecessor came back with its groups records that a little later. It may be lost, or stopped, before.
#[test]
fn groups_that_a_node_came_back_with_are_known_to_whoever_owns_the_streamlet_next() {
    let backup = OneBackup::new();
    let options = options(1, 1);
    let back = first_owner(1, &options);
    let mut peer = back.peer();
    (0..3).for_each(|_| write(&mut peer));
    let joined = peer.join(&back, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&back, &joined, &[done(&group)]), [Status::Ok]);
    let logs = [backup.take(&back, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (lost, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    back.broker.set_owner(3, STREAM, X, owner(2, 3)).unwrap();
    let lanes = back.broker.whole_lanes(STREAM, X).expect("all of it is there");
    let offered = OfferGroups {
        node: 1,
        epoch: 11,
        stream: STREAM,
        streamlet: X,
        owner_epoch: 3,
        lanes,
        cut_off: Vec::new(),
        let_go: Vec::new(),
        is_uncut: false,
    };
    let kept = lost.broker.check_offer(&rebuild, &offered, None, HANDED_BYTES_MAX).expect("it is all of it");
    let kept = StreamletState::decode(1, &kept).unwrap();
    // Nothing is left of the owner but what the coordinators keep.
    let handed = [((STREAM, X), kept)].into_iter().collect();
    let next = node(4, &options);
    let older = vec![kera_protocol::OlderGroups { first_epoch: 1, node: 1 }];
    next.broker.set_owner(5, STREAM, X, Owner { node: 4, epoch: 5, older }).unwrap();
    next.broker.take_over_moved(&[(STREAM, X, 5)], &[], &backup, &handed).unwrap();
    let mut peer = next.peer();
    let joined = peer.join(&next, "report", Start::Earliest);
    let given = peer.next_groups(&joined, 9)[0];
    assert_eq!((given.group.epoch(), given.start_ordinal), (2, 0), "nothing tells how far the application was");
    assert_eq!(peer.commit(&next, &joined, &[done(&given)]), [Status::Ok]);
    let given = peer.next_groups(&joined, 9)[0];
    assert_eq!((given.group.epoch(), given.start_ordinal), (2, 1));
}

/// The log of an owner of long ago is lost only now; since then the streamlet has moved twice, and its last owner was lost before it had written
/// anything.
#[test]
fn what_was_handed_over_counts_for_more_than_older_logs() {
    let backup = OneBackup::new();
    let options = options(1, 1);
    let (first, second) = (first_owner(1, &options), node(2, &options));
    let mut peer = first.peer();
    (0..3).for_each(|_| write(&mut peer));
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&first, &joined, &[done(&group)]), [Status::Ok]);
    let old = [backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 })];
    let move_from = |house: &House| {
        house.broker.let_go(STREAM, X).unwrap();
        house.broker.handed_over(STREAM, X).unwrap().expect("all is durable")
    };
    let older = vec![kera_protocol::OlderGroups { first_epoch: 2, node: 1 }];
    second.broker.set_owner(3, STREAM, X, Owner { node: 2, epoch: 3, older }).unwrap();
    second.broker.open_streamlet(STREAM, X, 3, Some(&move_from(&first))).unwrap();
    let mut peer = second.peer();
    let joined = peer.join(&second, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&second, &joined, &[done(&group)]), [Status::Ok]);
    let told = fetch(&mut peer, "report").unwrap();
    assert_eq!(told[0].ordinal, 2);
    let handed = [((STREAM, X), move_from(&second))].into_iter().collect();

    let next = node(4, &options);
    let older = [(2, 4), (3, 2)].map(|(first_epoch, node)| kera_protocol::OlderGroups { first_epoch, node });
    next.broker.set_owner(5, STREAM, X, Owner { node: 4, epoch: 5, older: older.to_vec() }).unwrap();
    let rebuild = next.broker.take_over_moved(&[(STREAM, X, 5)], &old, &backup, &handed).unwrap();
    next.broker.rebuild(&rebuild, &old, &backup, &RecoveryProgress::default()).unwrap();
    assert_eq!(fetch(&mut next.peer(), "report").unwrap(), told);
}

/// An owner with one record, and so many applications that have read it.
fn owner_with_applications(names: impl Iterator<Item = String>) -> House {
    let house = first_owner(1, &options(1, 1));
    let mut peer = house.peer();
    write(&mut peer);
    for name in names {
        let joined = peer.join(&house, &name, Start::Earliest);
        let group = peer.next_groups(&joined, 1)[0];
        let commit = CommitEntry { after: Keep, ..done(&group) };
        assert_eq!(peer.commit(&house, &joined, &[commit]), [Status::Ok]);
    }
    house
}

/// Names that nothing makes shorter.
fn long_names() -> impl Iterator<Item = String> {
    let random = SeededRandom::new(7);
    std::iter::repeat_with(move || (0..249).map(|_| char::from(b'a' + (random.next_u64() % 26) as u8)).collect())
}

/// The node that owns the streamlet next, with what the coordinators have kept of it.
fn next_owner_with(kept: &[u8]) -> House {
    let kept = StreamletState::decode(1, kept).unwrap();
    let next = node(2, &options(1, 1));
    let older = vec![kera_protocol::OlderGroups { first_epoch: 2, node: 1 }];
    next.broker.set_owner(3, STREAM, X, Owner { node: 2, epoch: 3, older }).unwrap();
    next.broker.open_streamlet(STREAM, X, 3, Some(&kept)).unwrap();
    next
}

#[test]
fn what_many_applications_have_read_fits_into_what_the_coordinators_keep() {
    let name = |number: u32| format!("an-application-with-a-rather-long-name-as-they-are-made-by-programs-{number}");
    let first = owner_with_applications((0..800).map(name));
    first.broker.let_go(STREAM, X).unwrap();
    let state = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    assert!(state.progress.len() > 128 << 10);
    let kept = kera_broker::kept_state(&state, HANDED_BYTES_MAX);
    assert!(kept.len() <= HANDED_BYTES_MAX, "{} bytes", kept.len());
    let next = next_owner_with(&kept);
    let mut peer = next.peer();
    for number in [0, 1, 399, 799] {
        assert_eq!(fetch(&mut peer, &name(number)).unwrap()[0].ordinal, 1);
    }
}

#[test]
fn a_streamlet_of_more_applications_than_can_go_along_stays_and_serves() {
    let house = owner_with_applications(long_names().take(450));
    let refused = house.broker.let_go(STREAM, X).unwrap_err();
    assert_eq!(refused.status, Status::LimitReached);
    assert!(refused.to_string().contains("delete applications"), "{refused}");
    write(&mut house.peer());
}

/// Long before a streamlet cannot move any more somebody may see that it will not.
#[test]
fn it_is_known_which_streamlets_take_much_along() {
    let house = owner_with_applications(long_names().take(450));
    let much = house.broker.take_along(32 << 10);
    assert_eq!(much.iter().map(|(stream, streamlet, _)| (*stream, *streamlet)).collect::<Vec<_>>(), [(STREAM, X)]);
    let bytes = much[0].2;
    assert!((48 << 10..HANDED_LARGE_BYTES_MAX / 2).contains(&bytes), "{bytes}");
    assert_eq!(house.broker.take_along(bytes - 1), much);
    assert!(house.broker.take_along(bytes).is_empty());
    assert!(house.broker.take_along(HANDED_LARGE_BYTES_MAX / 2).is_empty());
    assert!(node(2, &options(1, 1)).broker.take_along(0).is_empty(), "it owns none");
}

#[test]
fn a_streamlet_of_many_applications_goes_where_the_coordinators_keep_more() {
    let names: Vec<String> = long_names().take(600).collect();
    let first = owner_with_applications(names.iter().cloned());
    first.broker.let_go_within(STREAM, X, HANDED_LARGE_BYTES_MAX).unwrap();
    let state = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    let kept = kera_broker::kept_state(&state, HANDED_LARGE_BYTES_MAX);
    assert!(kept.len() > HANDED_BYTES_MAX && kept.len() <= HANDED_LARGE_BYTES_MAX, "{} bytes", kept.len());
    let next = next_owner_with(&kept);
    let mut peer = next.peer();
    for number in [0, 1, 299, 599] {
        assert_eq!(fetch(&mut peer, &names[number]).unwrap()[0].ordinal, 1);
    }
}

/// As many as a streamlet may have.
#[test]
fn a_streamlet_of_many_lanes_goes_where_the_coordinators_keep_more() {
    let first = owner_with_applications(["report".to_owned()].into_iter());
    first.broker.let_go(STREAM, X).unwrap();
    let told = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    let lane = |at: u32| LaneState { lane: LaneId(at), groups: Vec::new(), ..told.lanes[0].clone() };
    let state = StreamletState { lanes: (0..4_096).map(lane).collect(), ..told.clone() };
    let second = node(2, &options(1, 4096));
    second.broker.set_owner(3, STREAM, X, owner(2, 3)).unwrap();
    second.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    let refused = second.broker.let_go(STREAM, X).unwrap_err();
    assert_eq!(refused.status, Status::LimitReached);
    assert!(refused.to_string().contains("65536 at most go along when it moves (more from level"), "{refused}");
    second.broker.let_go_within(STREAM, X, HANDED_LARGE_BYTES_MAX).unwrap();
    let state = second.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    let kept = kera_broker::kept_state(&state, HANDED_LARGE_BYTES_MAX);
    assert!(kept.len() > HANDED_BYTES_MAX && kept.len() <= HANDED_LARGE_BYTES_MAX, "{} bytes", kept.len());
    // The next owner was lost before it wrote anything: this is what there is for the one behind it.
    let kept = StreamletState::decode(1, &kept).unwrap();
    let third = node(3, &options(1, 4096));
    third.broker.set_owner(4, STREAM, X, owner(3, 4)).unwrap();
    third.broker.open_streamlet(STREAM, X, 4, Some(&kept)).unwrap();
    let place = third.log.stream(STREAM).unwrap().streamlet(X).unwrap().clone();
    assert_eq!(place.lanes().filter(|lane| lane.next_ordinal() == 1).count(), 4_096);
    assert_eq!(fetch(&mut third.peer(), "report").unwrap()[0].ordinal, 1);
}

/// Whoever reads a streamlet looks at each of its lanes.
#[test]
fn lanes_that_nobody_has_written_to_do_not_keep_a_streamlet_where_it_is() {
    let house = first_owner(1, &options(1, 4096));
    let place = house.log.stream(STREAM).unwrap().streamlet(X).unwrap().clone();
    (0..4096).for_each(|lane| assert!(place.lane(LaneId(lane)).is_some()));
    write(&mut house.peer());
    house.broker.let_go(STREAM, X).unwrap();
    let state = house.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    assert_eq!(state.lanes.len(), 1);
}

#[test]
fn a_streamlet_moves_if_what_is_told_of_its_lanes_and_applications_fits_in_its_shortest_form() {
    let name = |number: u32| format!("an-application-with-a-rather-long-name-as-they-are-made-by-programs-{number}");
    let first = owner_with_applications((0..150).map(name));
    first.broker.let_go(STREAM, X).unwrap();
    let told = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    // With so many lanes.
    let state = |lanes: u32| {
        let lane = |lane: u32| LaneState { lane: LaneId(lane), producers: Vec::new(), ..told.lanes[0].clone() };
        let lane = |at: u32| LaneState { groups: Vec::new(), ..lane(at) };
        StreamletState { lanes: (0..lanes).map(lane).collect(), ..told.clone() }
    };
    let plain = |state: &StreamletState| kera_protocol::codec::bytes_of(state).len();
    let kept = |state: &StreamletState| kera_broker::kept_state(state, HANDED_BYTES_MAX).len();
    let mut both = [0, 0];
    for lanes in [1, 1_000, 2_000, 2_100, 2_200, 2_300, 4_096] {
        let next = node(2, &options(1, 4096));
        next.broker.set_owner(3, STREAM, X, owner(2, 3)).unwrap();
        next.broker.open_streamlet(STREAM, X, 3, Some(&state(lanes))).unwrap();
        let fits = kept(&state(lanes)) <= HANDED_BYTES_MAX;
        both[usize::from(fits)] += 1;
        match next.broker.let_go(STREAM, X) {
            Ok(()) => {
                let state = next.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
                assert!(fits && kept(&state) <= HANDED_BYTES_MAX, "{lanes}: {} bytes", kept(&state));
            }
            Err(refused) => {
                assert!(!fits, "{lanes} lanes fit: {refused}");
                assert_eq!(refused.status, Status::LimitReached);
                assert!(refused.to_string().contains("delete applications"), "{refused}");
            }
        }
    }
    assert!(both[0] > 1 && both[1] > 1, "{both:?}");
    assert!(plain(&state(2_000)) > HANDED_BYTES_MAX, "these need the shortest form");
}

/// A commit of where retention has put an application moves nothing here; the next owner must know it all the same.
#[test]
fn a_commit_of_where_retention_has_put_it_is_recorded() {
    let backup = OneBackup::new();
    let options = StreamOptions { retention_bytes: Some(150 << 10), ..options(1, 1) };
    let first = first_owner(1, &options);
    let mut peer = first.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&first, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&first, &joined, &[commit_entry(&group, group.start, 0, Release)]), [Status::Ok]);
    (0..10).for_each(|_| write(&mut peer));
    assert!(first.log.retain(first.clock.now_ms()) > 0);
    let group = peer.next_groups(&joined, 1)[0];
    assert!(group.start_ordinal > 0);
    assert_eq!(
        peer.commit(&first, &joined, &[commit_entry(&group, group.start, group.start_ordinal, Keep)]),
        [Status::Ok]
    );
    let told = fetch(&mut peer, "report").unwrap();
    assert_eq!(told[0].ordinal, group.start_ordinal);

    let logs = [backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 })];
    let (next, rebuild) = takes_over(2, 3, &options, &logs, &backup);
    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    assert_eq!(fetch(&mut next.peer(), "report").unwrap(), told);
}

/// What an earlier owner's retention had taken comes back with its copies: an application that was already behind it is not sent in front of it.
#[test]
fn a_group_that_comes_back_whole_is_read_from_where_the_application_is() {
    let backup = OneBackup::new();
    let options = StreamOptions { segments_per_group: 3, retention_bytes: Some(100 << 10), ..options(1, 1) };
    let (first, second) = (first_owner(1, &options), node(2, &options));
    let mut peer = first.peer();
    (0..3).for_each(|_| write(&mut peer));
    peer.join(&first, "report", Start::Earliest);
    let whole = backup.take(&first, LogId { node: 1, epoch: 10, vlog: 0 });
    assert!(first.log.retain(first.clock.now_ms()) > 0);
    first.broker.let_go(STREAM, X).unwrap();
    let state = first.broker.handed_over(STREAM, X).unwrap().expect("all is durable");
    let older = vec![kera_protocol::OlderGroups { first_epoch: 2, node: 1 }];
    second.broker.set_owner(3, STREAM, X, Owner { node: 2, epoch: 3, older }).unwrap();
    second.broker.open_streamlet(STREAM, X, 3, Some(&state)).unwrap();
    let mut peer = second.peer();
    let joined = peer.join(&second, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!((group.start.segment, group.start_ordinal), (SegmentIndex(0), 1), "which segment has it is not known");
    let commit = commit_entry(&group, group.start, group.start_ordinal, Keep);
    assert_eq!(peer.commit(&second, &joined, &[commit]), [Status::Ok]);

    let logs = [whole, backup.take(&second, LogId { node: 2, epoch: 20, vlog: 0 })];
    let next = node(4, &options);
    let older = [(2, 4), (3, 4)].map(|(first_epoch, node)| kera_protocol::OlderGroups { first_epoch, node });
    next.broker.set_owner(5, STREAM, X, Owner { node: 4, epoch: 5, older: older.to_vec() }).unwrap();
    let handed = [((STREAM, X), state)].into_iter().collect();
    let rebuild = next.broker.take_over_moved(&[(STREAM, X, 5)], &logs, &backup, &handed).unwrap();
    next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
    let start = Cursor { segment: SegmentIndex(1), ..group.start };
    assert_eq!(offered(&next, "report"), [(group.group, start, 1)]);
    let mut peer = next.peer();
    assert_eq!(ordinals(&peer.read(STREAM, group.start).answers[0].1), [0, 1, 2], "all of it is back");
    assert_eq!(ordinals(&peer.read(STREAM, start).answers[0].1), [1, 2]);
}

#[test]
fn a_commit_that_the_streamlet_did_not_take_is_not_acknowledged() {
    let options = options(1, 1);
    let house = first_owner(1, &options);
    let mut peer = house.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    house.broker.let_go(STREAM, X).unwrap();
    let JoinedApplication { application, member, .. } = joined;
    let commit = CommitOffsets { application, member, entries: vec![done(&group)] };
    assert_eq!(peer.refused(&commit), Status::NotOwner);
    house.broker.keep_streamlet(STREAM, X).unwrap();
    assert_eq!(fetch(&mut peer, "report").unwrap(), []);
    assert_eq!(peer.commit(&house, &joined, &[done(&group)]), [Status::Ok], "the lease is still its own");
}

#[test]
fn readers_and_statistics_do_not_see_the_lane_of_progress() {
    let options = options(1, 1);
    let house = first_owner(1, &options);
    let mut peer = house.peer();
    write(&mut peer);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&house, &joined, &[CommitEntry { after: Keep, ..done(&group) }]), [Status::Ok]);
    let groups =
        peer.call(&kera_protocol::AvailableGroups { stream: STREAM, streamlet: X, after: GroupId::NONE, limit: 0 });
    assert_eq!(groups.groups.len(), 1);
    let stats = peer.call(&kera_protocol::StreamStats { stream: STREAM, streamlets: vec![], after: None, limit: 0 });
    assert_eq!(stats.lanes.len(), 1);
    let at = kera_protocol::Lookup { stream: STREAM, streamlet: X, lane: LaneId::PROGRESS, at: Start::Earliest };
    assert_eq!(peer.refused(&at), Status::UnknownLane);
    peer.send(&read_request(&[entry(STREAM, 0, u32::MAX, Cursor::default())], 0));
    let answer: kera_protocol::ReadChunksResponse = peer.frame().decode();
    assert_eq!(answer.answers[0].0.status(), Some(Status::UnknownLane));
}

#[test]
fn what_is_kept_stays_short_and_is_not_taken_by_the_streams_retention() {
    let options = StreamOptions {
        retention_ms: Some(1),
        retention_bytes: Some(64 << 10),
        segments_per_group: 64,
        ..options(1, 1)
    };
    let house = first_owner(1, &options);
    let mut peer = house.peer();
    write(&mut peer);
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    let lane = house.log.stream(STREAM).unwrap().streamlet(X).unwrap().progress_lane().clone();
    let entry = commit_entry(&group, Cursor { position: 41_200, ..group.start }, 1, Keep);
    assert_eq!(peer.commit(&house, &joined, &[entry]), [Status::Ok]);
    let before = fetch(&mut peer, "report").unwrap();
    for round in 0..5_200 {
        if round % 500 == 0 {
            house.clock.advance_ms(5_000);
            house.broker.tick();
            house.log.retain(house.clock.now_ms());
            peer.heartbeat(&joined);
        }
        let (application, to) = (format!("application-{}", round % 50), Start::Earliest);
        let reset = ResetOffsets { application, stream: STREAM, streamlets: vec![], to, dry_run: false };
        let _: CommittedOffsets = peer.call(&reset);
    }
    house.broker.tick();
    house.log.retain(house.clock.now_ms());
    let bytes = lane.stats().bytes;
    assert!(lane.stats().next_ordinal > 5_200 && bytes < 600 << 10, "{bytes} bytes are kept");
    drop((lane, peer));
    let restarted = house.restart();
    restarted.sink.instant.store(true, Ordering::SeqCst);
    restarted.broker.join_cluster(CLUSTER, 1);
    restarted.broker.place_stream(1, STREAM, vec![owner(1, 3)]).unwrap();
    restarted.broker.open_streamlet(STREAM, X, 3, None).unwrap();
    assert_eq!(fetch(&mut restarted.peer(), "report").unwrap(), before);
    assert_eq!(fetch(&mut restarted.peer(), "application-49").unwrap().len(), 1);
}

#[test]
fn what_a_node_kept_while_it_was_alone_goes_to_its_streamlets() {
    let house = House::new();
    house.sink.instant.store(true, Ordering::SeqCst);
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    (0..2).for_each(|_| write(&mut peer));
    let joined = peer.join(&house, "report", Start::Earliest);
    let group = peer.next_groups(&joined, 1)[0];
    assert_eq!(peer.commit(&house, &joined, &[done(&group)]), [Status::Ok]);
    let told = fetch(&mut peer, "report").unwrap();
    drop(peer);
    // It founds a cluster, twice, since the first time it is killed; then the application is deleted for good.
    let mut house = house;
    for epoch in [2, 3] {
        house = house.restart();
        house.sink.instant.store(true, Ordering::SeqCst);
        house.broker.join_cluster(CLUSTER, 1);
        house.broker.place_stream(1, STREAM, vec![owner(1, epoch)]).unwrap();
        house.broker.open_streamlet(STREAM, X, epoch, None).unwrap();
        assert_eq!(fetch(&mut house.peer(), "report").unwrap(), told);
    }
    let _: kera_protocol::Empty =
        house.peer().call(&DeleteApplication { application: "report".into(), stream: STREAM });
    let house = house.restart();
    house.sink.instant.store(true, Ordering::SeqCst);
    house.broker.join_cluster(CLUSTER, 1);
    house.broker.place_stream(1, STREAM, vec![owner(1, 4)]).unwrap();
    house.broker.open_streamlet(STREAM, X, 4, None).unwrap();
    assert_eq!(fetch(&mut house.peer(), "report"), Err(Status::UnknownApplication));
}

/// What happens at an owner.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Lease(usize),
    Commit(usize, usize, u8),
    Reset(usize),
    Delete(usize),
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let application = 0..APPLICATIONS.len();
    prop_oneof![
        3 => Just(Step::Write),
        3 => application.clone().prop_map(Step::Lease),
        5 => (application.clone(), 0..8_usize, 0..3_u8).prop_map(|(of, at, after)| Step::Commit(of, at, after)),
        1 => application.clone().prop_map(Step::Reset),
        1 => application.prop_map(Step::Delete),
        1 => Just(Step::Tick),
    ]
}

/// Applications at one owner: their members and leases.
#[derive(Default)]
struct Members {
    joined: [Option<JoinedApplication>; 2],
    leases: [Vec<LeasedGroup>; 2],
}

impl Members {
    fn joined(&mut self, house: &House, of: usize) -> JoinedApplication {
        let join = || house.peer().join(house, APPLICATIONS[of], Start::Earliest);
        self.joined[of].get_or_insert_with(join).clone()
    }

    fn run(&mut self, house: &House, step: Step) {
        let mut peer = house.peer();
        match step {
            Step::Write => write(&mut peer),
            Step::Lease(of) => {
                let joined = self.joined(house, of);
                self.leases[of].extend(peer.next_groups(&joined, 2));
            }
            Step::Commit(of, at, after) => {
                let joined = self.joined(house, of);
                let Some(group) = self.leases[of].get(at).copied() else { return };
                if group.start.position > FIRST_CHUNK {
                    // Given back behind its only record: there is nothing in it to be done with.
                    return;
                }
                let entry = match after {
                    0 => CommitEntry { after: Keep, ..done(&group) },
                    1 => CommitEntry { after: Release, ..done(&group) },
                    _ => done(&group),
                };
                // An open group is not done.
                let status = peer.commit(house, &joined, &[entry])[0];
                assert!(matches!(status, Status::Ok | Status::NotReady), "{status:?}");
                if status == Status::Ok && after > 0 {
                    self.leases[of].remove(at);
                }
            }
            Step::Reset(of) => {
                self.leave(house, of);
                let (application, to) = (APPLICATIONS[of].into(), Start::Earliest);
                let reset = ResetOffsets { application, stream: STREAM, streamlets: vec![], to, dry_run: false };
                let _: CommittedOffsets = peer.call(&reset);
            }
            Step::Delete(of) => {
                self.leave(house, of);
                peer.send(&DeleteApplication { application: APPLICATIONS[of].into(), stream: STREAM });
                assert!(matches!(peer.frame().status(), Status::Ok | Status::UnknownApplication));
            }
            Step::Tick => {
                house.broker.tick();
                house.log.retain(house.clock.now_ms());
            }
        }
    }

    fn leave(&mut self, house: &House, of: usize) {
        self.leases[of].clear();
        if let Some(JoinedApplication { application, member, .. }) = self.joined[of].take() {
            let leave = LeaveApplication { application, member };
            let _: kera_protocol::Empty = house.peer().call(&leave);
        }
    }
}

/// Positions that owners had told before they were lost, and groups that they would have offered.
static TOLD: AtomicU64 = AtomicU64::new(0);
static OFFERED: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// One owner after the other is lost, at any moment: whoever is next knows exactly what was told last, and offers exactly what the one
    /// before it would have offered.
    fn owners_are_lost(
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..25), 2..4),
        is_none in any::<bool>(),
    ) {
        let options = if is_none { order_none(options(1, 1)) } else { options(1, 1) };
        let mut house = first_owner(1, &options);
        let last = rounds.len();
        for (round, steps) in (1..).zip(rounds) {
            let mut members = Members::default();
            for step in steps {
                members.run(&house, step);
            }
            (0..2).for_each(|of| members.leave(&house, of));
            if round as usize == last {
                break;
            }
            // As it is for whoever is next: a group that was open is closed.
            house.log.stream(STREAM).unwrap().streamlet(X).unwrap().lane(LaneId(0)).unwrap().close_group();
            let known: Vec<usize> = (0..2).filter(|of| fetch(&mut house.peer(), APPLICATIONS[*of]).is_ok()).collect();
            // Looking for what to offer puts together what is done: both have done that when they are compared.
            let offers: Vec<_> = known.iter().map(|of| offered(&house, APPLICATIONS[*of])).collect();
            let told = all_offsets(&mut house.peer());
            OFFERED.fetch_add(offers.iter().map(Vec::len).sum::<usize>() as u64, Ordering::Relaxed);
            TOLD.fetch_add(told.iter().flatten().map(Vec::len).sum::<usize>() as u64, Ordering::Relaxed);
            let backup = OneBackup::new();
            let logs = [backup.take(&house, LogId { node: round, epoch: round * 10, vlog: 0 })];
            let (next, rebuild) = takes_over(round + 1, round + 2, &options, &logs, &backup);
            next.broker.rebuild(&rebuild, &logs, &backup, &RecoveryProgress::default()).unwrap();
            let offers_now: Vec<_> = known.iter().map(|of| offered(&next, APPLICATIONS[*of])).collect();
            prop_assert_eq!(offers_now, offers);
            prop_assert_eq!(all_offsets(&mut next.peer()), told);
            house = next;
        }
    }
}

#[test]
fn owners_that_are_lost_lose_nothing_of_what_they_told() {
    owners_are_lost();
    let (told, offered) = (TOLD.load(Ordering::Relaxed), OFFERED.load(Ordering::Relaxed));
    assert!(told > 0 && offered > 0, "nothing is lost that was told: {told} positions, {offered} groups");
}
