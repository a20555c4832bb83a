//! Levels of a cluster, and nodes of two versions in one group.

use kera_format::level::{COPIED_IN, FIRST, NEWEST};
use kera_format::{StreamId, StreamletId};
use kera_protocol::codec::bytes_of;
use kera_protocol::{AlterStream, CopiesMade, FinishMove, MoveStreamlet, StreamChanges, StreamletState};

use crate::support::World;

fn levels(world: &World) -> Vec<u32> {
    world.nodes.values().map(|node| node.group.level()).collect()
}

/// A cluster of three coordinators of an earlier version.
async fn earlier(seed: u64) -> World {
    let mut world = World::new(seed);
    world.net.old.lock().extend([1, 2, 3]);
    world.found(Default::default()).await;
    for node in 2..=3 {
        world.start(node).await;
        world.join(node, 3).await;
    }
    let voting = |world: &World| world.nodes[&3].group.describe().nodes.iter().filter(|node| node.votes).count();
    world.until("all coordinators vote", |world| voting(world) == 3).await;
    world
}

/// Starts a node again, as one of this version.
async fn upgrade(world: &mut World, node: u32) {
    world.kill(node, None).await;
    world.net.old.lock().remove(&node.into());
    world.start(node).await;
    world.join(node, 3).await;
}

#[tokio::test]
async fn a_cluster_that_begins_is_at_the_newest_level() {
    let world = World::cluster(1, 3, 1).await;
    world.agree().await;
    assert_eq!(levels(&world), [NEWEST; 4]);
}

#[tokio::test]
async fn the_level_rises_by_itself_when_the_last_node_is_upgraded_and_not_before() {
    let mut world = earlier(2).await;
    world.create(1, "before").await.unwrap();
    for node in [2, 3] {
        upgrade(&mut world, node).await;
        world.create(node, &format!("on-{node}")).await.unwrap();
        // Everybody has been heard for long.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert_eq!(levels(&world), [FIRST; 3], "node 1 does not speak the next one");
    }
    upgrade(&mut world, 1).await;
    world.until("the next level", |world| levels(world) == [NEWEST; 3]).await;
    world.agree().await;
    // What a node has on its disk is of that level too.
    world.kill(2, Some(2)).await;
    world.start(2).await;
    world.join(2, 3).await;
    world.agree().await;
    assert_eq!(levels(&world), [NEWEST; 3]);
}

#[tokio::test]
async fn a_node_that_is_lost_holds_the_level_back_until_it_is_given_up() {
    let mut world = earlier(3).await;
    world.kill(1, None).await;
    for node in [2, 3] {
        let lost =
            |world: &World, at: u32| world.nodes[&at].group.read(|state| state.node(1).is_none_or(|it| it.fenced));
        let other = 5 - node;
        world.until("node 1 is lost", |world| lost(world, other)).await;
        world.net.old.lock().remove(&u64::from(node));
        // Two of three are needed, so that both are there at all times.
        world.kill(node, None).await;
        world.start(node).await;
        world.join(node, 3).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(levels(&world), [FIRST; 2], "node 1 may come back as it was");
    let change = kera_protocol::ChangeNode { node: 1, change: kera_protocol::NodeChange::Remove };
    world.nodes[&2].group.ask(&change).await.unwrap();
    world.until("the next level", |world| levels(world) == [NEWEST; 2]).await;
}

#[tokio::test]
async fn a_node_holds_the_level_back_for_its_operator() {
    let mut world = World::new(4);
    world.level_max = FIRST;
    world.found(Default::default()).await;
    world.level_max = NEWEST;
    world.start(2).await;
    world.join(2, 1).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(levels(&world), [FIRST; 2]);
    let described = world.nodes[&1].group.describe();
    let said: Vec<(u32, u32)> = described.nodes.iter().map(|node| (node.node, node.level_max)).collect();
    assert_eq!((described.level, said), (FIRST, vec![(1, FIRST), (2, NEWEST)]));
}

#[tokio::test]
async fn who_does_not_speak_the_level_in_force_is_refused_and_nothing_changes() {
    let mut world = World::cluster(5, 1, 0).await;
    world.net.old.lock().insert(2);
    world.start(2).await;
    let message = kera_protocol::JoinCluster { level_max: FIRST, ..world.join_message(2, 1) };
    let refused = world.nodes[&1].group.ask(&message).await.unwrap_err().to_string();
    let expected = format!("the cluster is at level {NEWEST} and this node speaks levels 1 to 1");
    assert!(refused.contains(&expected), "{refused}");
    assert_eq!((world.nodes[&1].group.describe().nodes.len(), world.nodes[&1].group.peers().len()), (1, 1));
}

/// A stream whose streamlet has moved, and which is to have two copies: who had it before, and in which epoch of its own.
async fn moved_and_to_be_copied(world: &World, at: u32) -> (StreamId, u32, u32) {
    let stream = world.create(at, "copied").await.unwrap().id;
    let group = &world.nodes[&at].group;
    let owner = |world: &World| world.nodes[&at].group.read(|state| state.owner(stream, 0));
    world.until("it has an owner", |world| owner(world).is_some()).await;
    let from = owner(world).unwrap();
    let (streamlet, to) = (StreamletId(0), from.node % 3 + 1);
    let epoch = group.read(|state| state.node(to).unwrap().epoch);
    group.ask(&MoveStreamlet { stream: stream.into(), streamlet, to }).await.unwrap();
    let number = group.read(|state| state.move_of(stream, 0)).unwrap();
    let (lanes, progress) = (Vec::new(), Vec::new());
    let state = bytes_of(&StreamletState { stream, streamlet, epoch: from.owner_epoch, lanes, progress });
    group.ask(&FinishMove { number, node: to, epoch, state }).await.unwrap();
    let changes = StreamChanges { replication: Some(2), ..StreamChanges::default() };
    group.ask(&AlterStream { stream: stream.into(), changes }).await.unwrap();
    (stream, from.node, from.epoch)
}

/// It got the body of the next version as one of its own, took it for malformed, and the change of copies stood still.
#[tokio::test]
async fn a_leader_of_before_is_told_of_copies_as_it_knows_it() {
    let mut world = World::new(6);
    world.level_max = COPIED_IN - 1;
    world.found(Default::default()).await;
    for node in 2..=3 {
        world.start(node).await;
        world.join(node, 3).await;
    }
    world.until("all coordinators vote", |world| world.voters(1).len() == 3).await;
    let leader = world.leading().await;
    let at = leader % 3 + 1;
    let (stream, node, epoch) = moved_and_to_be_copied(&world, at).await;
    assert_eq!(levels(&world), [COPIED_IN - 1; 3]);
    world.net.old.lock().extend((1..=3).filter(|other| *other != u64::from(at)));
    let group = &world.nodes[&at].group;
    let owner_epoch = group.read(|state| state.owner(stream, 0)).unwrap().owner_epoch;
    let (streamlet, state) = (StreamletId(0), Vec::new());
    let is_to_copy = || group.read(|state| state.to_copy(node, epoch).iter().any(|of| of.stream == stream));
    assert!(is_to_copy());
    group.ask(&CopiesMade { node, epoch, stream, streamlet, copies: 2, number: 0, state, owner_epoch }).await.unwrap();
    assert!(!is_to_copy(), "it is believed");
}
