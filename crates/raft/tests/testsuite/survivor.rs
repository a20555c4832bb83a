//! The majority of the coordinators is gone, and what one has that is left becomes the log of a group of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_env::{Disk, FaultyDisk, MemoryDisk};
use kera_format::cluster::{NodeNumber, RaftPlace};
use kera_protocol::{Body, ChangeNode, NodeChange, Op, RaftAppend, RaftBallot, RaftSnapshot, RaftVote, Status};
use kera_raft::{SKIPPED, Survivor};

use crate::support::World;

fn has(world: &World, at: NodeNumber, name: &str) -> bool {
    world.nodes[&at].group.read(|state| state.catalog.find(&name.into()).is_ok())
}

fn survivor(disk: &Arc<MemoryDisk>, node: NodeNumber) -> Survivor {
    Survivor::open(disk.clone(), [node as u8; 16]).expect("it is read").expect("it is in a cluster")
}

fn last(world: &World, node: NodeNumber) -> RaftPlace {
    survivor(&world.disks[&node], node).last()
}

/// Has a node that is stopped go on alone.
fn recover(world: &World, node: NodeNumber, gone: &[NodeNumber]) {
    let found = survivor(&world.disks[&node], node);
    assert_eq!(found.node(), node);
    found.check_gone(&gone.iter().copied().collect()).expect("a majority is gone");
    found.recover().expect("there is room");
}

/// A disk with what another one has of the coordinators' log.
fn copied(whole: &MemoryDisk) -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new());
    disk.create_dir_all("raft").unwrap();
    for path in whole.list("raft").unwrap().iter().map(|name| format!("raft/{name}")) {
        disk.replace(&path, &whole.read_all(&path, 1 << 30).unwrap()).unwrap();
    }
    disk
}

/// Three nodes of which the third one misses the last that the others decide, and then all are stopped. Also how far each log goes.
async fn third_is_behind(seed: u64) -> World {
    let mut world = World::cluster(seed, 3, 0).await;
    world.create(3, "before").await.unwrap();
    world.agree().await;
    world.part(&[3], &[1, 2]);
    world.until("another leads", |world| [1, 2].iter().any(|node| world.nodes[node].group.is_leader())).await;
    world.create(1, "lost").await.unwrap();
    for node in 1..=3 {
        world.kill(node, None).await;
    }
    world.heal();
    world
}

#[tokio::test]
async fn one_of_three_that_is_left_leads_alone_and_those_who_come_back_one_by_one_follow_it() {
    let mut world = third_is_behind(41).await;
    assert!(last(&world, 3).index < last(&world, 1).index, "its log does not go as far");
    let found = survivor(&world.disks[&3], 3);
    let refused = |gone: &[NodeNumber]| found.check_gone(&gone.iter().copied().collect()).unwrap_err();
    assert!(refused(&[1]).contains("a majority is left: node 2, node 3; start these"), "{}", refused(&[1]));
    assert!(refused(&[1, 3]).contains("node 3 is the one whose data directory this is"));
    assert!(refused(&[1, 7]).contains("no node 7 among those that this node knows: node 1, node 2, node 3"));
    let votes = |survivor: &Survivor| survivor.members().iter().filter(|of| of.votes).count();
    assert_eq!(votes(&found), 3);
    drop(found);

    recover(&world, 3, &[1, 2]);
    let found = survivor(&world.disks[&3], 3);
    assert_eq!((votes(&found), found.members().len()), (1, 3));
    assert!(found.last().index > u64::from(SKIPPED) && found.last().term > u64::from(SKIPPED));
    assert!(found.check_gone(&BTreeSet::from([1, 2])).is_err(), "it is the majority now");
    drop(found);
    world.start(3).await;
    world.join_at(3, 3, 3).await;
    assert!(has(&world, 3, "before") && !has(&world, 3, "lost"));
    let after = world.create(3, "after").await.unwrap();
    assert!(after.id.0 > u64::from(SKIPPED), "a number that the others may have given to a stream");

    for node in [1, 2] {
        world.start(node).await;
        world.join(node, 3).await;
        world.agree().await;
        assert!(has(&world, node, "after") && !has(&world, node, "lost"));
    }
    world.until("all vote again", |world| (1..=3).all(|node| world.voters(node) == [1, 2, 3])).await;
}

/// They must never run where the one that is left is not reached. If they do they decide something, and it is in vain.
#[tokio::test]
async fn those_who_were_taken_for_gone_and_go_on_together_follow_as_soon_as_they_are_reached() {
    let mut world = third_is_behind(42).await;
    recover(&world, 3, &[1, 2]);
    world.part(&[3], &[1, 2]);
    for node in 1..=3 {
        world.start(node).await;
    }
    world.join_at(3, 3, 3).await;
    world.create(3, "after").await.unwrap();
    world.create(2, "in-vain").await.unwrap();
    world.heal();
    for node in [1, 2] {
        world.until("it follows", |world| has(world, node, "after")).await;
        world.join_at(node, node, 3).await;
    }
    world.agree().await;
    assert!([1, 2].iter().all(|node| !has(&world, *node, "in-vain") && !has(&world, *node, "lost")));
}

/// They have heard of the term of the one that is left, and not more, and one of them leads in the next: what it decides is of a later term than the snapshot that is to replace it.
#[tokio::test]
async fn those_who_were_taken_for_gone_and_lead_in_a_later_term_follow_as_soon_as_they_are_reached() {
    let mut world = third_is_behind(51).await;
    recover(&world, 3, &[1, 2]);
    let begins = last(&world, 3);
    world.part(&[3], &[1, 2]);
    for node in 1..=3 {
        world.start(node).await;
    }
    world.join_at(3, 3, 3).await;
    let ballot = RaftBallot { term: world.nodes[&3].group.describe().term, node: 3, committed: true };
    let append = RaftAppend { ballot, before: Some(begins), entries: Vec::new(), decided: Some(begins) };
    for node in [1, 2] {
        world.nodes[&node].group.handle(Op::RaftAppend, 1, &encoded(&append)).await.unwrap();
    }
    let leads = |world: &World| [1, 2].iter().any(|node| world.nodes[node].group.is_leader());
    world.until("one of them leads", leads).await;
    world.create(2, "in-vain").await.unwrap();
    assert!(world.nodes[&2].group.describe().term > ballot.term);
    world.create(3, "after").await.unwrap();
    world.heal();
    for node in [1, 2] {
        world.until("it follows", |world| has(world, node, "after")).await;
        world.join_at(3, node, 3).await;
    }
    world.agree().await;
    assert!([1, 2].iter().all(|node| !has(&world, *node, "in-vain") && !has(&world, *node, "lost")));
}

#[tokio::test]
async fn of_two_of_five_that_are_left_the_one_goes_on_whose_log_goes_furthest_and_the_other_follows_as_it_is() {
    let mut world = World::cluster(43, 5, 0).await;
    world.part(&[5], &[1, 2, 3, 4]);
    world.until("another leads", |world| (1..=4).any(|node| world.nodes[&node].group.is_leader())).await;
    world.create(4, "known").await.unwrap();
    for node in 1..=5 {
        world.kill(node, Some(node.into())).await;
    }
    world.heal();
    let place = |node| (last(&world, node).term, last(&world, node).index);
    assert!(place(4) > place(5));
    recover(&world, 4, &[1, 2, 3]);
    for node in [5, 4] {
        world.start(node).await;
    }
    world.join_at(4, 4, 5).await;
    world.join(5, 5).await;
    world.agree().await;
    assert!(has(&world, 5, "known"));
    assert_eq!(world.voters(5), [4], "of two one votes");
}

/// A person must not do that. What the one with the lower number has decided meanwhile is in vain, and nothing has two meanings.
#[tokio::test]
async fn of_two_that_both_go_on_alone_one_follows_the_other_as_soon_as_it_is_reached() {
    let mut world = World::cluster(49, 5, 0).await;
    world.create(4, "before").await.unwrap();
    world.agree().await;
    for node in 1..=5 {
        world.kill(node, None).await;
    }
    world.part(&[4], &[5]);
    let mut made = Vec::new();
    for node in [4, 5] {
        recover(&world, node, &[1, 2, 3]);
        world.start(node).await;
        world.join_at(node, node, 5).await;
        made.push(world.create(node, &format!("of-{node}")).await.unwrap().id);
    }
    assert_ne!(made[0], made[1], "each would take the other's records for its own");
    world.heal();
    world.until("it follows", |world| has(world, 4, "of-5")).await;
    world.join_at(5, 4, 5).await;
    world.agree().await;
    assert!(has(&world, 4, "before") && !has(&world, 4, "of-4"));
}

/// As by two recoveries that skip as much.
#[tokio::test]
async fn a_leader_with_another_entry_at_a_place_that_is_decided_is_refused() {
    let mut world = third_is_behind(50).await;
    recover(&world, 3, &[1, 2]);
    let begins = last(&world, 3);
    world.start(3).await;
    world.join_at(3, 3, 3).await;
    let group = &world.nodes[&3].group;
    let (term, applied) = (group.describe().term, group.applied());
    let ballot = RaftBallot { term: term + 1, node: 2, committed: true };
    for at in [begins.index, applied - 1, applied] {
        for of in [begins.term, term + 1] {
            let place = RaftPlace { term: of, leader: 2, index: at };
            let append = |before, decided| RaftAppend { ballot, before, entries: Vec::new(), decided };
            let part = RaftSnapshot { ballot, place, offset: 0, part: Vec::new(), last: false };
            for (op, body) in [
                (Op::RaftAppend, encoded(&append(Some(place), Some(begins)))),
                (Op::RaftAppend, encoded(&append(None, Some(place)))),
                (Op::RaftSnapshot, encoded(&part)),
            ] {
                let (status, error) = group.handle(op, 1, &body).await.unwrap_err();
                assert_eq!(status, Status::InvalidArgument, "{op} {place:?}");
                assert!(error.message.contains("node 2 leads coordinators with another log"), "{}", error.message);
            }
        }
    }
    // One of before the present leader may be nothing but deposed: nobody is told to clear what it has.
    let deposed = RaftBallot { term, ..ballot };
    let place = RaftPlace { term: begins.term, leader: 2, index: applied };
    let append = RaftAppend { ballot: deposed, before: Some(place), entries: Vec::new(), decided: Some(begins) };
    let (status, error) = group.handle(Op::RaftAppend, 1, &encoded(&append)).await.unwrap_err();
    assert_eq!(status, Status::InvalidArgument);
    assert!(error.message.contains("follows by itself") && !error.message.contains("empty"), "{}", error.message);
    assert!(group.is_leader());
    // One with the same log is followed.
    let append = RaftAppend { ballot, before: Some(begins), entries: Vec::new(), decided: Some(begins) };
    group.handle(Op::RaftAppend, 1, &encoded(&append)).await.unwrap();
    let follows = |world: &World| world.nodes[&3].group.leader().is_some_and(|(node, _)| node == 2);
    world.until("it follows", follows).await;
}

/// The only one that votes of two is gone; the other one need not even be a coordinator.
#[tokio::test]
async fn a_node_that_never_voted_goes_on_when_the_one_that_voted_alone_is_gone() {
    let mut world = World::cluster(44, 1, 1).await;
    world.create(2, "before").await.unwrap();
    for node in 1..=2 {
        world.kill(node, Some(node.into())).await;
    }
    recover(&world, 2, &[1]);
    world.start(2).await;
    world.join_at(2, 2, 1).await;
    assert!(has(&world, 2, "before"));
    world.create(2, "after").await.unwrap();
    assert_eq!(world.voters(2), [2]);
}

/// The last of these nodes goes on, another one is added, and those who were gone are given up, so that nothing is sent to them any more. Then they are started nevertheless.
async fn those_who_were_given_up_are_back(seed: u64, voters: NodeNumber, others: NodeNumber) {
    let mut world = World::cluster(seed, voters, others).await;
    let left = voters + others;
    let (gone, new): (Vec<NodeNumber>, _) = ((1..left).collect(), left + 1);
    // The last one has heard that it is in the cluster.
    world.agree().await;
    for node in 1..=left {
        world.kill(node, None).await;
    }
    let old = last(&world, 1);
    recover(&world, left, &gone);
    world.start(left).await;
    world.join_at(left, left, voters).await;
    world.start(new).await;
    world.join(new, voters).await;
    for node in &gone {
        let removed = ChangeNode { node: *node, change: NodeChange::Remove };
        world.nodes[&left].group.ask(&removed).await.unwrap();
    }
    world.agree().await;

    let term = world.nodes[&left].group.describe().term;
    for node in &gone {
        world.start(*node).await;
    }
    let leads = |world: &World| gone.iter().any(|node| world.nodes[node].group.is_leader());
    world.until("they lead the group that they know", leads).await;
    // They ask all whom they knew all the time.
    for at in 0..30 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        world.create(new, &format!("after-{at}")).await.unwrap();
    }
    // As if they had heard of the term all the same.
    let (term_above, decided) = (term + 1, RaftPlace { term: old.term, leader: 1, index: old.index });
    let ballot = RaftBallot { term: term_above, node: 1, committed: true };
    let append = RaftAppend { ballot, before: None, entries: Vec::new(), decided: Some(decided) };
    let place = RaftPlace { term: term_above, leader: 1, index: old.index + 1 };
    let vote = RaftVote { ballot: RaftBallot { committed: false, ..ballot }, last: Some(place) };
    let part = RaftSnapshot { ballot, place, offset: 0, part: Vec::new(), last: false };
    for node in [left, new] {
        let group = &world.nodes[&node].group;
        for (op, body) in
            [(Op::RaftAppend, encoded(&append)), (Op::RaftVote, encoded(&vote)), (Op::RaftSnapshot, encoded(&part))]
        {
            let (status, _) = group.handle(op, 1, &body).await.unwrap_err();
            assert_eq!(status, Status::InvalidArgument, "{op}");
        }
        assert_eq!((group.leader().map(|(node, _)| node), group.describe().term), (Some(left), term));
    }
    assert!(world.nodes[&left].group.is_leader());
    assert!(gone.iter().all(|node| world.nodes[node].group.describe().term < term), "nobody has told them the term");
}

fn encoded(body: &impl Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.encode(1, &mut bytes);
    bytes
}

#[tokio::test]
async fn the_one_that_voted_alone_and_was_given_up_never_leads_those_who_went_on() {
    those_who_were_given_up_are_back(46, 1, 1).await;
}

#[tokio::test]
async fn two_of_three_that_were_given_up_never_lead_those_who_went_on() {
    those_who_were_given_up_are_back(47, 3, 0).await;
}

/// There is room for some of what it writes: for the snapshot and not for its copy, too.
#[tokio::test]
async fn a_recovery_that_fails_has_not_happened() {
    let world = third_is_behind(48).await;
    let gone = BTreeSet::from([1, 2]);
    let mut outcomes = [0, 0];
    for space in (0..16 << 10).step_by(48) {
        let disk = copied(&world.disks[&3]);
        let full = Arc::new(FaultyDisk::new(disk.clone()));
        let found = Survivor::open(full.clone(), [3; 16]).unwrap().unwrap();
        full.set_space(Some(space));
        let has_happened = found.recover().is_ok();
        assert_eq!(survivor(&disk, 3).check_gone(&gone).is_err(), has_happened, "{space}");
        outcomes[usize::from(has_happened)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The one that works behind that says nothing of the snapshot, which the node would start with, and which could be gone with the power afterwards.
#[tokio::test]
async fn a_recovery_of_which_a_sync_of_the_folder_fails_gives_its_snapshot_its_name_once_more() {
    let world = third_is_behind(51).await;
    let disk = copied(&world.disks[&3]);
    let faulty = Arc::new(FaultyDisk::new(disk.clone()));
    let found = Survivor::open(faulty.clone(), [3; 16]).unwrap().unwrap();
    let path = format!("raft/{:016}.snapshot", found.last().index + 3 * u64::from(SKIPPED));
    let was_named_again = Arc::new(AtomicBool::new(false));
    let (of, again, named) = (faulty.clone(), was_named_again.clone(), path.clone());
    faulty.once_named(&path, move || {
        of.fail_sync_dir(1);
        of.once_named(&named, move || again.store(true, Ordering::Relaxed));
    });
    found.recover().unwrap();
    assert!(was_named_again.load(Ordering::Relaxed));
    assert!(survivor(&disk, 3).check_gone(&BTreeSet::from([1, 2])).is_err(), "it has happened");
}

/// The power goes at each change that it makes to the disk.
#[tokio::test]
async fn a_recovery_that_ends_in_the_middle_is_done_again_or_was_done() {
    let mut world = third_is_behind(45).await;
    for node in [1, 2] {
        world.disks.remove(&node);
    }
    let whole = world.disks.remove(&3).unwrap();
    let gone = BTreeSet::from([1, 2]);
    let (mut again, mut steps, mut is_over) = ([0, 0], 0, false);
    while !is_over {
        steps += 1;
        let disk = copied(&whole);
        let found = survivor(&disk, 3);
        disk.cut_power_at(steps);
        is_over = found.recover().is_ok() && !disk.is_off();
        disk.crash(steps);
        let found = survivor(&disk, 3);
        let is_needed = found.check_gone(&gone).is_ok();
        again[usize::from(is_needed)] += 1;
        if is_needed {
            found.recover().unwrap();
        }
        world.disks.insert(3, disk);
        world.start(3).await;
        world.join_at(3, 3, 3).await;
        assert!(has(&world, 3, "before"), "{steps}");
        world.create(3, "after").await.unwrap();
        world.kill(3, None).await;
    }
    assert!(again.iter().all(|count| *count > 0), "{again:?}");
}
