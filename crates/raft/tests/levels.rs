//! Levels of a cluster, and nodes of two versions in one group.

#[allow(dead_code, unreachable_pub)]
mod support;

use kera_format::level::{FIRST, NEWEST};
use support::World;

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
