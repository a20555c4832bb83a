//! A group of coordinators, step by step.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_coordinator::CoordinatorError;
use kera_coordinator::catalog::{Catalog, Limits};
use kera_env::Disk;
use kera_format::vlog_replica::LogId;
use kera_format::{StreamOptions, StreamletId, level};
use kera_protocol::{
    AcceptLogLoss, AcceptLoss, AllocateProducer, Body, ChangeLog, ChangeNode, CreateStream, DeleteStream,
    ForwardCommand, ForwardedCommand, LogChange, Message, NodeChange, Op, Status, StreamRef, UseEnds, UsedEnd,
};
use kera_raft::{Change, Observer, Stranger, Timing};

use crate::support::{TIMING, World, create, has_fourth_node, has_half_of_votes, is_change};

fn has(world: &World, at: u32, name: &str) -> bool {
    world.nodes[&at].group.read(|state| state.catalog.find(&name.into()).is_ok())
}

#[tokio::test]
async fn a_stream_that_is_made_on_any_node_is_known_on_all_and_at_once_where_it_was_asked_for() {
    let world = World::cluster(1, 3, 1).await;
    for at in 1..=4 {
        let name = format!("from-{at}");
        world.create(at, &name).await.unwrap();
        assert!(has(&world, at, &name), "the node that answered knows it");
    }
    world.agree().await;
    assert!((1..=4).all(|at| (1..=4).all(|of| has(&world, at, &format!("from-{of}")))));
    assert_eq!(world.voters(4), [1, 2, 3]);
}

#[tokio::test]
async fn another_leads_when_the_leader_is_killed_and_it_comes_back_with_a_higher_epoch() {
    let mut world = World::cluster(2, 3, 0).await;
    world.create(2, "before").await.unwrap();
    let first = world.leading().await;
    let epoch = world.nodes[&first].epoch;
    world.kill(first, Some(2)).await;
    let other = if first == 1 { 2 } else { 1 };
    world.create(other, "between").await.unwrap();
    assert_ne!(world.leader(), Some(first));
    world
        .until("it is fenced", |world| world.nodes[&other].group.read(|state| state.node(first).unwrap().fenced))
        .await;
    world.start(first).await;
    assert!(world.nodes[&first].group.is_member().await);
    let joined = world.join(first, 3).await;
    // More than that where it had to ask again, as when another one was elected meanwhile.
    assert!(joined.epoch > epoch, "{} behind {epoch}", joined.epoch);
    world.agree().await;
    assert!(has(&world, first, "before") && has(&world, first, "between"));
}

#[tokio::test]
async fn a_leader_that_is_cut_off_decides_nothing_and_forgets_what_it_had_begun() {
    let world = World::cluster(3, 3, 0).await;
    let old = world.leading().await;
    let others: Vec<u64> = (1..=3).filter(|node| *node != u64::from(old)).collect();
    world.part(&[old.into()], &others);
    let group = world.nodes[&old].group.clone();
    let wait = std::time::Duration::from_secs(3);
    let lonely = tokio::spawn(async move { tokio::time::timeout(wait, create(&group, "lonely", 1)).await });
    world
        .until("another leads", |world| others.iter().any(|node| world.nodes[&(*node as u32)].group.is_leader()))
        .await;
    world.create(others[0] as u32, "majority").await.unwrap();
    assert!(!has(&world, old, "majority"));
    let refused = lonely.await.unwrap();
    assert!(!matches!(refused, Ok(Ok(_))), "one of three has decided something: {refused:?}");
    world.heal();
    world.agree().await;
    assert!(has(&world, old, "majority") && !has(&world, old, "lonely"));
}

/// It goes on to be the leader for itself: nobody tells it of another one.
#[tokio::test]
async fn a_leader_knows_whether_most_coordinators_follow_it() {
    let world = World::cluster(31, 3, 0).await;
    world.until("all are content", |world| world.nodes.values().all(|node| node.group.is_followed())).await;
    let leader = world.leading().await;
    let others: Vec<u64> = (1..=3).filter(|node| *node != u64::from(leader)).collect();
    world.part(&[leader.into()], &others);
    world.until("it is not followed", |world| !world.nodes[&leader].group.is_followed()).await;
    let group = &world.nodes[&leader].group;
    assert!(group.is_leader(), "as far as it knows");
    group.note_others(u64::MAX);
    assert!(group.is_followed(), "it does not lead while its disk stands still");
    group.note_others(0);
    world.heal();
    world.until("all are content again", |world| world.nodes.values().all(|node| node.group.is_followed())).await;
}

/// Nothing that runs on the same thread can see it. Here that is the test's own.
#[tokio::test]
async fn whether_what_a_node_runs_on_runs_is_seen_by_who_does_not_run_on_it() {
    let world = World::cluster(32, 1, 0).await;
    let group = world.nodes[&1].group.clone();
    world.until("it takes turns", |_| (1..100_000).contains(&group.without_turn_us())).await;
    let began = std::time::Instant::now();
    while group.without_turn_us() < 300_000 {
        assert!(began.elapsed() < Duration::from_secs(240), "nobody sees that it takes none");
        std::hint::spin_loop();
    }
    world.until("it takes turns again", |_| group.without_turn_us() < 100_000).await;
}

/// A machine that is gone closes no connection: what it was asked is not answered, and not refused either.
#[tokio::test]
async fn who_waits_for_a_leader_that_is_silent_asks_the_next_one() {
    let world = World::cluster(11, 3, 1).await;
    let old = world.leading().await;
    let others: Vec<u64> = (1..=4).filter(|node| *node != u64::from(old)).collect();
    world.net.faults.lock().silent = true;
    world.part(&[old.into()], &others);
    let asked = others.iter().map(|&at| {
        let group = world.nodes[&(at as u32)].group.clone();
        tokio::spawn(async move { create(&group, &format!("from-{at}"), 1).await })
    });
    for asked in asked.collect::<Vec<_>>() {
        asked.await.unwrap().unwrap();
    }
    world.heal();
    world.agree().await;
    assert!(others.iter().all(|at| has(&world, old, &format!("from-{at}"))));
}

/// It has done it, and is cut off before it says so: the next one finds it done.
#[tokio::test]
async fn what_a_leader_has_done_that_could_not_say_so_is_not_refused_by_the_next_one() {
    let world = World::cluster(24, 3, 1).await;
    let group = &world.nodes[&4].group;
    let options = StreamOptions { streamlets: 3, ..StreamOptions::default() };
    let made = CreateStream { name: "made".into(), options, if_not_exists: false };
    let deleted = DeleteStream { stream: "made".into() };
    world.net.faults.lock().last = Some(is_change);
    let info = group.ask(&made).await.expect("it is made");
    assert_eq!((info.name.as_str(), info.options.streamlets), ("made", 3));
    world.heal();
    world.agree().await;
    // Who has it refused at once has not made it.
    assert!(group.ask(&made).await.unwrap_err().to_string().contains("exists"));
    world.net.faults.lock().last = Some(is_change);
    let other = CreateStream { options: StreamOptions { streamlets: 2, ..made.options.clone() }, ..made.clone() };
    assert!(group.ask(&other).await.is_err(), "another one was there before");
    world.heal();
    world.agree().await;
    world.net.faults.lock().last = Some(is_change);
    group.ask(&deleted).await.expect("it is deleted");
    assert!(!has(&world, 4, "made"));
    world.heal();
    world.agree().await;
    assert!(group.ask(&deleted).await.is_err());
}

/// The answer to whoever has deleted one is lost, and until it is asked for again somebody has made another one of that name.
#[tokio::test]
async fn a_stream_that_was_made_since_is_not_deleted_for_one_whose_deletion_was_not_answered() {
    let world = World::cluster(33, 3, 1).await;
    world.create(4, "made").await.unwrap();
    world.agree().await;
    let old = u64::from(world.leading().await);
    let others: Vec<u64> = (1..=3).filter(|node| *node != old).collect();
    // Who asks reaches the leader alone, and nobody once that has done it.
    world.part(&[4], &others);
    world.net.faults.lock().last = Some(is_change);
    let group = world.nodes[&4].group.clone();
    let asked = tokio::spawn(async move { group.ask(&DeleteStream { stream: "made".into() }).await });
    let other = others[0] as u32;
    world.until("it is deleted", |world| !has(world, other, "made")).await;
    let second = world.create(other, "made").await.expect("nobody has the name");
    world.heal();
    asked.await.unwrap().expect("it is deleted");
    world.agree().await;
    let is_there = |at: u32| world.nodes[&at].group.read(|state| state.catalog.find(&second.id.into()).is_ok());
    assert!((1..=4).all(is_there));
}

/// Begins with something that cannot come to its end yet.
async fn begin<T>(mut begun: Pin<&mut impl Future<Output = T>>) {
    tokio::select! {
        biased;
        _ = &mut begun => panic!("it reaches nobody"),
        () = tokio::task::yield_now() => {}
    }
}

/// It was told as not done, and whoever gave it once more heard that there is such a stream.
#[tokio::test]
async fn what_a_node_has_handed_on_before_it_was_cut_off_may_be_done_and_what_it_could_not_hand_on_is_not() {
    let mut world = World::cluster(37, 3, 0).await;
    // What is asked for at the next one waits for as long as somebody may lead.
    world.timing = Timing { command_ms: 2_000, ..TIMING };
    world.start(4).await;
    world.join(4, 3).await;
    world.agree().await;
    let old = u64::from(world.leading().await);
    let others: Vec<u64> = (1..=3).filter(|node| *node != old).collect();
    world.part(&[4], &others);
    world.net.faults.lock().last = Some(is_change);
    let group = &world.nodes[&4].group;
    let of = |name: &str| CreateStream { name: name.into(), options: StreamOptions::default(), if_not_exists: false };
    let untold = group.ask(&of("made")).await.expect_err("nobody tells it");
    assert!(matches!(untold, CoordinatorError::MayBeDone(_)), "{untold}");
    assert!(untold.status().could_duplicate() && untold.status().retryable(), "{untold}");
    let unsent = group.ask(&of("other")).await.expect_err("it reaches nobody");
    assert!(matches!(unsent, CoordinatorError::NoLeader(_)), "{unsent}");
    world.heal();
    world.agree().await;
    assert!(has(&world, 1, "made") && !has(&world, 1, "other"));
}

/// It was made by way of another node, and the answer to the first try is lost: the next leader has none.
#[tokio::test]
async fn a_stream_that_a_node_had_not_heard_of_is_told_as_deleted_though_the_first_answer_is_lost() {
    let world = World::cluster(38, 3, 1).await;
    let group = &world.nodes[&4].group;
    for by_name in [true, false] {
        world.part(&[4], &[1, 2, 3]);
        let info = world.create(1, &format!("new-{by_name}")).await.unwrap();
        let stream = if by_name { StreamRef::Name(info.name.clone()) } else { info.id.into() };
        let deletion = DeleteStream { stream };
        let mut asked = std::pin::pin!(group.ask(&deletion));
        begin(asked.as_mut()).await;
        assert!(!has(&world, 4, &info.name));
        world.net.faults.lock().last = Some(is_change);
        world.heal();
        asked.await.expect("it is deleted");
        assert!(world.net.faults.lock().last.is_none(), "the first answer was lost");
        world.heal();
        world.agree().await;
        assert!(!has(&world, 1, &info.name));
    }
}

/// By the number that the node knows there is none any more, and by what it knows the stream that it makes was there before.
#[tokio::test]
async fn a_name_that_is_another_stream_s_by_now_is_taken_for_what_the_leader_knows() {
    let world = World::cluster(39, 3, 1).await;
    let group = &world.nodes[&4].group;
    let of = |name: &str| CreateStream { name: name.into(), options: StreamOptions::default(), if_not_exists: false };
    let deletion = |name: &str| DeleteStream { stream: name.into() };
    for name in ["made", "gone"] {
        world.create(1, name).await.unwrap();
    }
    world.agree().await;
    world.part(&[4], &[1, 2, 3]);
    let ask = &world.nodes[&1].group;
    for name in ["made", "gone"] {
        ask.ask(&deletion(name)).await.unwrap();
    }
    world.create(1, "made").await.unwrap();
    let (deleted, made) = (deletion("made"), of("gone"));
    let mut deleting = std::pin::pin!(group.ask(&deleted));
    let mut making = std::pin::pin!(group.ask(&made));
    begin(deleting.as_mut()).await;
    begin(making.as_mut()).await;
    world.heal();
    deleting.await.expect("it is deleted");
    assert!(!has(&world, 4, "made"));
    world.net.faults.lock().last = Some(is_change);
    making.await.expect("it is made");
    assert!(world.net.faults.lock().last.is_none(), "the first answer was lost");
    world.heal();
    world.agree().await;
    assert!(!has(&world, 1, "made") && has(&world, 1, "gone"));
}

/// Is told of nothing while it is held up.
struct HeldUp(AtomicBool);

impl Observer for HeldUp {
    fn changed(&self, _: u64, _: &Change) {
        while self.0.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Its disk stands still, say. Whoever is told that it is not ready asks another node, and hears that there is such a stream, or none.
#[tokio::test]
async fn what_is_done_to_a_stream_is_told_also_by_a_node_that_hears_of_it_late() {
    let mut world = World::new(34);
    world.timing = Timing { command_ms: 10_000, ..TIMING };
    world.found(Catalog::default()).await;
    let (group, held_up) = (&world.nodes[&1].group, Arc::new(HeldUp(AtomicBool::new(true))));
    group.observe(held_up.clone());
    let of = |name: &str| CreateStream { name: name.into(), options: StreamOptions::default(), if_not_exists: true };
    assert_eq!(group.ask(&of("made")).await.expect("it is made").name, "made");
    // What is the system's is used as soon as it is told.
    let mut body = Vec::new();
    of("_kera.own").encode(1, &mut body);
    let untold = group.request(Op::CreateStream, 1, &body, true).await.unwrap_err();
    assert!(untold.status() == Status::NotReady && untold.to_string().contains("it is done"), "{untold}");
    held_up.0.store(false, Ordering::Release);
    world.agree().await;
    assert!(has(&world, 1, "made") && has(&world, 1, "_kera.own"));
}

/// The same where the first answer is lost, and the next leader finds it done.
#[tokio::test]
async fn what_was_done_before_is_told_also_by_a_node_that_hears_of_it_late() {
    let world = World::cluster_at(36, 3, 1, Timing { command_ms: 10_000, ..TIMING }).await;
    let (group, held_up) = (&world.nodes[&4].group, Arc::new(HeldUp(AtomicBool::new(true))));
    group.observe(held_up.clone());
    let made = CreateStream { name: "made".into(), options: StreamOptions::default(), if_not_exists: false };
    world.net.faults.lock().last = Some(is_change);
    assert_eq!(group.ask(&made).await.expect("it is made").name, "made");
    assert!(world.net.faults.lock().last.is_none(), "the first answer was lost");
    held_up.0.store(false, Ordering::Release);
    world.heal();
    world.agree().await;
    assert!((1..=4).all(|at| has(&world, at, "made")));
}

/// The same where a person gives up what a lost node had.
#[tokio::test]
async fn a_loss_that_a_leader_has_accepted_that_could_not_say_so_is_not_refused_by_the_next_one() {
    let mut world = World::cluster(28, 3, 2).await;
    let mut made = 0;
    let has = |world: &World, node| world.nodes[&1].group.read(|state| state.node(node).unwrap().streamlets);
    while has(&world, 4) < 2 || has(&world, 5) == 0 {
        made += 1;
        world.create(1, &format!("single-{made}")).await.unwrap();
    }
    world.kill(4, None).await;
    let group = world.nodes[&5].group.clone();
    world.until("it is fenced", |_| group.read(|state| state.node(4).unwrap().fenced)).await;
    let owned_by = |node: u32| -> Vec<AcceptLoss> {
        group.read(|state| {
            let all =
                state.catalog.streams().flat_map(|info| (0..info.options.streamlets).map(move |at| (info.id, at)));
            let its = all.filter(|(stream, at)| state.owner(*stream, *at).is_some_and(|owner| owner.node == node));
            its.map(|(stream, at)| AcceptLoss { stream: stream.into(), streamlet: StreamletId(at) }).collect()
        })
    };
    let (lost, others) = (owned_by(4), owned_by(5));
    // Of another one, so that the node has stopped for certain: until then who asks is told to ask again.
    group.ask(&lost[0]).await.expect("it is given up");
    world.net.faults.lock().last = Some(is_change);
    group.ask(&lost[1]).await.expect("it is given up, by the one that is cut off");
    assert_eq!(owned_by(4).len(), lost.len() - 2);
    world.heal();
    world.agree().await;
    let refused = group.ask(&others[0]).await.expect_err("nothing of it was lost").to_string();
    assert!(refused.contains("is lost: node 5 has it"), "{refused}");
}

/// The same where a person gives up blocks that nobody has any more.
#[tokio::test]
async fn blocks_that_a_leader_has_given_up_that_could_not_say_so_are_not_refused_by_the_next_one() {
    let mut world = World::cluster(29, 3, 3).await;
    let mut made = 0;
    while world.nodes[&1].group.read(|state| state.node(4).unwrap().streamlets) == 0 {
        made += 1;
        create(&world.nodes[&1].group, &format!("copied-{made}"), 2).await.unwrap();
    }
    let epoch = world.nodes[&4].epoch;
    let log = |vlog| LogId { node: 4, epoch, vlog };
    for vlog in [0, 1] {
        let (change, backups) = (LogChange::View, vec![5]);
        let view = ChangeLog { log: log(vlog), change, view: 1, first_block: 1, backups };
        world.nodes[&4].group.ask(&view).await.unwrap();
    }
    world.backups.silent.lock().insert(5);
    world.kill(4, None).await;
    world.kill(5, None).await;
    let group = world.nodes[&6].group.clone();
    let is_fenced = |node: u32| group.read(|state| state.node(node).unwrap().fenced);
    world.until("both are fenced", |_| is_fenced(4) && is_fenced(5)).await;
    assert_eq!(group.read(|state| state.lost_log_infos(10).logs.len()), 2);
    let loss = |vlog| AcceptLogLoss { log: log(vlog), gone: vec![4, 5] };
    // Of another one, so that the node has stopped for certain: until then who asks is told to ask again.
    group.ask(&loss(1)).await.expect("it is given up");
    world.net.faults.lock().last = Some(is_change);
    group.ask(&loss(0)).await.expect("it is given up, by the one that is cut off");
    assert!(group.read(|state| state.lost_log_infos(10).logs.is_empty()));
    world.heal();
    world.agree().await;
    let other = AcceptLogLoss { log: LogId { node: 6, epoch: 9, vlog: 0 }, gone: vec![4] };
    let refused = group.ask(&other).await.expect_err("it never was").to_string();
    assert!(refused.contains("there is no log 0 of node 6 epoch 9"), "{refused}");
}

#[tokio::test]
async fn all_lose_power_and_come_back_with_all_that_was_answered() {
    let mut world = World::cluster(4, 3, 1).await;
    for number in 0..20 {
        world.create(1 + number % 4, &format!("s{number}")).await.unwrap();
    }
    for node in 1..=4 {
        world.kill(node, Some(node.into())).await;
    }
    for node in 1..=4 {
        world.start(node).await;
    }
    world.until("there is a leader", |world| world.leader().is_some()).await;
    for node in 1..=4 {
        assert!(world.join(node, 3).await.epoch >= 2);
    }
    world.agree().await;
    assert!((0..20).all(|number| has(&world, 4, &format!("s{number}"))));
}

#[tokio::test]
async fn a_log_of_few_and_large_entries_gets_a_snapshot_too() {
    let mut world = World::new(18);
    world.snapshot_bytes = 10_000;
    world.found(Catalog::default()).await;
    world.start(2).await;
    world.join(2, 1).await;
    for number in 0..100 {
        world.create(1, &format!("s{number}")).await.unwrap();
    }
    let has_one = |world: &World, node: u32| {
        world.disks[&node].list("raft").unwrap().iter().any(|name| name.ends_with(".snapshot"))
    };
    world.until("both have a snapshot", |world| has_one(world, 1) && has_one(world, 2)).await;
    world.agree().await;
}

#[tokio::test]
async fn a_node_that_is_far_behind_gets_a_snapshot() {
    let mut world = World::cluster(5, 1, 0).await;
    world.kill(1, None).await;
    world.snapshot_entries = 40;
    world.start(1).await;
    world.until("it leads", |world| world.leader() == Some(1)).await;
    world.start(2).await;
    world.join(2, 1).await;
    world.create(2, "first").await.unwrap();
    world.kill(2, None).await;
    for number in 0..150 {
        world.create(1, &format!("s{number}")).await.unwrap();
    }
    world.start(2).await;
    world.agree().await;
    assert!(has(&world, 2, "s149") && has(&world, 2, "first"));
    assert!(*world.nodes[&2].replaced.0.lock() > 0, "it was told by entries");
    // And it finds it again on its disk.
    world.kill(2, Some(5)).await;
    world.start(2).await;
    assert!(has(&world, 2, "first"), "of the snapshot, before it hears from anybody");
    world.agree().await;
}

/// Of the log, the snapshot and the number, before the other one is changed as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_disk_has_changed_is_written_anew_while_the_node_runs() {
    let mut world = World::cluster(8, 1, 0).await;
    world.kill(1, None).await;
    world.snapshot_entries = 20;
    world.start(1).await;
    world.until("it leads", |world| world.leader() == Some(1)).await;
    for number in 0..50 {
        world.create(1, &format!("s{number}")).await.unwrap();
    }
    let disk = world.disks[&1].clone();
    let newest = |end: &str| {
        let names = disk.list("raft").unwrap();
        format!("raft/{}", names.iter().rfind(|name| name.ends_with(end)).unwrap_or_else(|| panic!("{end}: {names:?}")))
    };
    world
        .until("there is a snapshot", |_| disk.list("raft").unwrap().iter().any(|name| name.ends_with("shot.copy")))
        .await;
    let look = |world: &World| {
        let group = world.nodes[&1].group.clone();
        tokio::task::spawn_blocking(move || group.look_at_disk(&|| true).unwrap())
    };
    let (bytes, is_damaged) = look(&world).await.unwrap();
    assert!(bytes > 0 && !is_damaged);
    for end in [".log", ".log.copy", ".snapshot", ".snapshot.copy"] {
        for _ in 0..2 {
            disk.flip_bit(&newest(end), 20, 1).unwrap();
            assert!(look(&world).await.unwrap().1, "{end}");
            assert!(!look(&world).await.unwrap().1, "{end}");
        }
    }
    for end in ["node", "node.copy"] {
        disk.flip_bit(&format!("raft/{end}"), 0, 1).unwrap();
        look(&world).await.unwrap();
    }
    world.create(1, "behind").await.unwrap();
    world.kill(1, Some(3)).await;
    world.start(1).await;
    world.until("it has all of it", |world| has(world, 1, "behind")).await;
    assert!((0..50).all(|number| has(&world, 1, &format!("s{number}"))));
}

#[tokio::test]
async fn the_first_node_brings_its_catalog_along() {
    let mut catalog = Catalog::default();
    for name in ["old", "gone"] {
        let request = CreateStream { name: name.into(), options: StreamOptions::default(), if_not_exists: false };
        let entry = catalog.plan_create(&request, &Limits { streams: 9, nodes: 1 }, 5, false).unwrap();
        catalog.apply(&entry).unwrap();
    }
    let entry = catalog.plan_delete(&"gone".into(), 6, false).unwrap();
    catalog.apply(&entry).unwrap();
    catalog.apply(&catalog.plan_reserve()).unwrap();
    let mut world = World::new(6);
    world.found(catalog).await;
    world.start(2).await;
    world.join(2, 1).await;
    let made = world.create(2, "new").await.unwrap();
    assert_eq!(made.id.0, 3, "the number of a deleted stream is not given again");
    let producer = world.nodes[&2].group.ask(&AllocateProducer { producer_id: None }).await.unwrap();
    assert_eq!(producer.producer_id.0, 1001, "ids that were reserved are skipped");
    world.agree().await;
    assert!(has(&world, 2, "old") && !has(&world, 2, "gone"));
}

/// It is one entry of the log, which takes several times as long on the way as there is between two signs of life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalog_that_is_long_on_the_way_comes_to_a_node_that_joins() {
    let mut catalog = Catalog::default();
    let settings = [("segment.bytes".to_owned(), "1".repeat(4000))].into();
    let options = StreamOptions { settings, ..StreamOptions::default() };
    for number in 0..2000 {
        let request = CreateStream { name: format!("s{number}"), options: options.clone(), if_not_exists: false };
        let entry = catalog.plan_create(&request, &Limits { streams: 9999, nodes: 1 }, 5, false).unwrap();
        catalog.apply(&entry).unwrap();
    }
    let mut world = World::new(23);
    world.found(catalog).await;
    world.net.faults.lock().us_per_kib = 20;
    world.start(2).await;
    world.join(2, 1).await;
    world.until("it has all of it", |world| has(world, 2, "s1999")).await;
}

/// Settings come along to a cluster whose level knows them, and are left behind by one that is held back below it.
#[tokio::test]
async fn settings_come_along_as_far_as_the_level_knows_them() {
    for (level_max, kept) in [(level::SETTINGS, true), (level::SETTINGS - 1, false)] {
        let settings = [("segment.bytes".to_owned(), "1073741824".to_owned())].into();
        let options = StreamOptions { settings, retention_ms: Some(5), ..StreamOptions::default() };
        let request = CreateStream { name: "old".into(), options: options.clone(), if_not_exists: false };
        let mut catalog = Catalog::default();
        let entry = catalog.plan_create(&request, &Limits { streams: 9, nodes: 1 }, 5, false).unwrap();
        catalog.apply(&entry).unwrap();
        let mut world = World::new(9);
        world.level_max = level_max;
        world.found(catalog).await;
        world.start(2).await;
        world.join(2, 1).await;
        world.agree().await;
        let known = |node: u32| {
            world.nodes[&node].group.read(|state| state.catalog.find(&"old".into()).unwrap().options.clone())
        };
        let expected = if kept { options } else { options.without_settings() };
        assert_eq!((known(1), known(2)), (expected.clone(), expected));
        assert_eq!(world.nodes[&1].group.level(), level_max);
    }
}

#[tokio::test]
async fn producer_ids_are_given_once_whoever_leads() {
    let mut world = World::cluster(7, 3, 0).await;
    let (mut given, mut epoch) = (Vec::new(), 0);
    for _ in 0..3 {
        for at in world.nodes.keys().copied().collect::<Vec<_>>() {
            let answer = world.nodes[&at].group.ask(&AllocateProducer { producer_id: None }).await.unwrap();
            given.push(answer.producer_id.0);
        }
        let leader = world.leading().await;
        let known = kera_format::ProducerId(given[0]);
        let raised = world.nodes[&leader].group.ask(&AllocateProducer { producer_id: Some(known) }).await.unwrap();
        // Twice where the leader was lost before it could say so.
        assert!(raised.producer_id == known && raised.producer_epoch.0 > epoch, "{raised:?} behind {epoch}");
        epoch = raised.producer_epoch.0;
        world.kill(leader, None).await;
        world.start(leader).await;
        world.until("another leads", |world| world.leader().is_some()).await;
    }
    let count = given.len();
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), count);
}

#[tokio::test]
async fn a_broker_that_is_lost_is_fenced_its_logs_end_and_its_streamlets_get_other_owners() {
    let mut world = World::cluster(8, 3, 1).await;
    // Node 4 owns something with two copies, and has a log at node 1.
    let mut made = 0;
    while world.nodes[&1].group.read(|state| state.node(4).unwrap().streamlets) == 0 {
        made += 1;
        create(&world.nodes[&1].group, &format!("copied-{made}"), 2).await.unwrap();
    }
    let epoch = world.nodes[&4].epoch;
    let log = LogId { node: 4, epoch, vlog: 0 };
    let view = ChangeLog { log, change: LogChange::View, view: 1, first_block: 1, backups: vec![1, 2] };
    world.nodes[&4].group.ask(&view).await.unwrap();
    world.nodes[&4].group.ask(&view).await.unwrap();
    world.kill(4, None).await;
    let leader = world.leading().await;
    world
        .until("its streamlets have other owners", |world| {
            world.nodes[&leader].group.read(|state| state.node(4).unwrap().streamlets) == 0
        })
        .await;
    assert!(world.backups.fenced.lock().iter().all(|(_, node, of)| (*node, *of) == (4, epoch)));
    let end = world.nodes[&leader].group.read(|state| state.logs_of(4, epoch).next().unwrap().1.end);
    assert_eq!(end, Some(7));
    let next = ChangeLog { view: 2, first_block: 3, ..view };
    let refused = world.nodes[&leader].group.ask(&next).await.unwrap_err().to_string();
    assert!(refused.contains("is fenced"), "{refused}");
    world.agree().await;
}

/// Node 4, which owned something, is lost, and its log ends at block 9, which backup 5 alone has: backup 2 keeps silent. The log.
async fn with_an_end_of_one_backup(world: &mut World) -> LogId {
    let mut made = 0;
    while world.nodes[&1].group.read(|state| state.node(4).unwrap().streamlets) == 0 {
        made += 1;
        create(&world.nodes[&1].group, &format!("copied-{made}"), 3).await.unwrap();
    }
    let log = LogId { node: 4, epoch: world.nodes[&4].epoch, vlog: 0 };
    let view = ChangeLog { log, change: LogChange::View, view: 1, first_block: 1, backups: vec![5, 2] };
    world.nodes[&4].group.ask(&view).await.unwrap();
    world.backups.silent.lock().insert(2);
    world.kill(4, None).await;
    world.until("its log ends", |world| end_of(world, log) == Some(9)).await;
    log
}

fn end_of(world: &World, log: LogId) -> Option<u64> {
    let leader = world.leader()?;
    world.nodes[&leader].group.read(|state| state.logs_of(log.node, log.epoch).next().unwrap().1.end)
}

/// One backup alone told of the end, and is lost before anybody has opened anything with it.
#[tokio::test]
async fn an_end_that_nobody_has_used_is_decided_again_when_nobody_shows_it() {
    let mut world = World::cluster(12, 3, 2).await;
    let log = with_an_end_of_one_backup(&mut world).await;
    world.kill(5, None).await;
    world.backups.silent.lock().clear();
    world.until("it ends where others have it", |world| end_of(world, log) == Some(7)).await;
    world.agree().await;
}

/// The other one is back when somebody is about to open something with it: used it would stay, at one backup for good.
#[tokio::test]
async fn a_backup_that_is_back_is_asked_before_an_end_is_used() {
    let mut world = World::cluster(14, 3, 2).await;
    let log = with_an_end_of_one_backup(&mut world).await;
    world.backups.silent.lock().clear();
    let uses = |end| UseEnds { node: 1, epoch: world.nodes[&1].epoch, ends: vec![UsedEnd { log, end }] };
    let refused = world.nodes[&1].group.ask(&uses(9)).await.expect_err("one has less").to_string();
    assert!(refused.contains("ends at block 7 by now, not at 9"), "{refused}");
    world.nodes[&1].group.ask(&uses(7)).await.expect("both have it");
    assert_eq!(end_of(&world, log), Some(7));
    world.agree().await;
}

/// One that does not answer is not waited for without end.
#[tokio::test]
async fn an_end_is_used_although_a_backup_keeps_silent() {
    let mut world = World::cluster(15, 3, 2).await;
    let log = with_an_end_of_one_backup(&mut world).await;
    let uses = UseEnds { node: 1, epoch: world.nodes[&1].epoch, ends: vec![UsedEnd { log, end: 9 }] };
    world.nodes[&1].group.ask(&uses).await.expect("it is waited for long enough");
    assert_eq!(end_of(&world, log), Some(9));
}

/// The backups of a log that has no end are machines without power, which are asked for it all the time.
#[tokio::test]
async fn who_falls_silent_while_backups_are_asked_that_do_not_answer_is_fenced_nevertheless() {
    let mut world = World::cluster(16, 3, 3).await;
    let mut made = 0;
    while world.nodes[&1].group.read(|state| state.node(4).unwrap().streamlets) == 0 {
        made += 1;
        create(&world.nodes[&1].group, &format!("copied-{made}"), 3).await.unwrap();
    }
    let log = LogId { node: 4, epoch: world.nodes[&4].epoch, vlog: 0 };
    let view = ChangeLog { log, change: LogChange::View, view: 1, first_block: 1, backups: vec![5] };
    world.nodes[&4].group.ask(&view).await.unwrap();
    let is_fenced = |world: &World, node: u32| {
        world.nodes[&1].group.read(|state| state.node(node).is_some_and(|known| known.fenced))
    };
    world.backups.off.lock().insert(5);
    world.kill(4, None).await;
    world.until("the broker is fenced", |world| is_fenced(world, 4)).await;
    world.kill(5, None).await;
    world.until("its backup is fenced", |world| is_fenced(world, 5)).await;
    world.kill(6, None).await;
    world.until("a third one is fenced", |world| is_fenced(world, 6)).await;
    assert_eq!(end_of(&world, log), None, "nobody can show the end");
    // It is back, with its power, and tells.
    world.backups.off.lock().clear();
    world.start(5).await;
    world.join(5, 3).await;
    world.until("the log ends", |world| end_of(world, log) == Some(9)).await;
    world.agree().await;
}

/// The number of a coordinator is given up, and another machine has it at once.
#[tokio::test]
async fn another_machine_has_the_number_of_a_coordinator_that_was_given_up_a_moment_ago() {
    let mut world = World::cluster(17, 3, 0).await;
    let leader = world.leading().await;
    let gone = (1..=3).find(|node| *node != leader).unwrap();
    world.kill(gone, None).await;
    let is_fenced = |world: &World| world.nodes[&leader].group.read(|state| state.node(gone).unwrap().fenced);
    world.until("it is fenced", is_fenced).await;
    // It is there, with nothing, and waits to be let in.
    world.disks.remove(&gone);
    world.machines.insert(gone, 77);
    world.start(gone).await;
    world.nodes[&leader].group.ask(&ChangeNode { node: gone, change: NodeChange::Remove }).await.unwrap();
    world.join(gone, 3).await;
    world.create(leader, "behind").await.unwrap();
    world.agree().await;
    assert!(has(&world, gone, "behind"));
    world.until("all vote", |world| (1..=3).all(|at| world.voters(at) == [1, 2, 3])).await;
    world.agree().await;
}

/// All were without power, and the disk of one is gone: what answers at its address now votes for anybody. Nobody has applied anything yet.
#[tokio::test]
async fn who_starts_again_takes_no_vote_of_another_machine_at_the_address_of_a_coordinator() {
    let mut world = World::cluster(23, 3, 0).await;
    world.create(1, "before").await.unwrap();
    for node in 1..=3 {
        world.kill(node, Some(node.into())).await;
    }
    world.disks.remove(&1);
    world.machines.insert(1, 77);
    world.start(1).await;
    world.start(2).await;
    let began = world.nodes[&2].group.describe().term;
    world.until("some elections", |world| world.nodes[&2].group.describe().term >= began + 3).await;
    let second = &world.nodes[&2].group;
    assert!(second.leader().is_none(), "one of three coordinators is left: {:?}", second.describe());
    assert_eq!(second.read(|state| state.cluster()), [0; 16], "nothing is applied");
    assert_eq!(second.cluster(), Some([9; 16]));
    assert_eq!(world.nodes[&1].group.cluster(), None);
    let said = |uuid, op| second.check_is(1, op, [uuid; 16]);
    assert_eq!((said(1, Op::RaftVote), said(77, Op::RaftVote)), (Ok(()), Err(Stranger::Another(1))));
    assert_eq!(second.check_is(4, Op::RaftAppend, [4; 16]), Err(Stranger::Unknown(4)));
    assert_eq!(second.check_is(4, Op::NodeAlive, [4; 16]), Ok(()));

    world.start(3).await;
    world.until("the two lead", |world| world.leader().is_some_and(|leader| leader != 1)).await;
    world.until("they have all", |world| (2..=3).all(|at| has(world, at, "before"))).await;
    assert!(!has(&world, 1, "before"));
}

/// Whoever leads is lost when two lists of voters count. If both went on to, nobody could lead without node 1, which is all of the first one.
#[tokio::test]
async fn a_change_of_who_votes_that_is_half_done_is_ended_by_whoever_leads_next() {
    let mut world = World::new(20);
    world.found(Catalog::default()).await;
    world.net.faults.lock().last = Some(has_half_of_votes);
    for node in 2..=3 {
        world.start(node).await;
        world.join_at(1, node, 3).await;
    }
    world.until("it is half done", |world| world.net.faults.lock().last.is_none()).await;
    for node in 1..=3 {
        world.kill(node, Some(node.into())).await;
    }
    world.heal();
    for node in 1..=3 {
        world.start(node).await;
    }
    world.until("there is a leader", |world| world.leader().is_some()).await;
    for node in 1..=3 {
        world.join(node, 3).await;
    }
    world.until("all vote", |world| (1..=3).all(|at| world.voters(at) == [1, 2, 3])).await;
    world.kill(1, None).await;
    world.create(2, "behind").await.unwrap();
    world.agree().await;
}

/// What it has asked its log for has reached nobody, and it comes back to a log that begins far behind: it never hears what became of that.
#[tokio::test]
async fn a_leader_that_was_cut_off_while_a_node_joined_decides_again_when_it_leads_again() {
    let mut world = World::new(27);
    world.snapshot_entries = 60;
    world.timing = Timing { command_ms: 10_000, ..TIMING };
    world.found(Catalog::default()).await;
    world.timing = TIMING;
    for node in 2..=3 {
        world.start(node).await;
        world.join(node, 3).await;
    }
    world.until("all vote", |world| (1..=3).all(|at| world.voters(at) == [1, 2, 3])).await;
    world.have_lead(1).await;
    world.agree().await;
    world.net.faults.lock().lost = Some(has_fourth_node);
    let (group, joins) = (world.nodes[&1].group.clone(), handed_on(&world.join_message(4, 3)));
    let joining = group.clone();
    let joined = tokio::spawn(async move { joining.handle(Op::ForwardCommand, 1, &joins).await });
    world.until("it is cut off", |world| world.net.faults.lock().lost.is_none()).await;
    for number in 0..300 {
        world.create(2, &format!("s{number}")).await.unwrap();
    }
    world.heal();
    world.until("it has all of it", |world| has(world, 1, "s299")).await;
    world.until("as a snapshot", |world| *world.nodes[&1].replaced.0.lock() > 0).await;

    let asks = handed_on(&AllocateProducer { producer_id: None });
    for _ in 0..60 {
        world.have_lead(1).await;
        // As another node would ask it, which waits as long as it takes.
        let answer = tokio::time::timeout(Duration::from_secs(300), group.handle(Op::ForwardCommand, 1, &asks)).await;
        let answer = answer.expect("it is answered").expect("it is taken");
        let answer = ForwardedCommand::decode(1, &answer).unwrap();
        if Status::from_u16(answer.status) == Some(Status::Ok) {
            let joined = ForwardedCommand::decode(1, &joined.await.unwrap().unwrap()).unwrap();
            assert_eq!(Status::from_u16(joined.status), Some(Status::NotReady));
            return;
        }
    }
    panic!("it decides nothing");
}

/// A command as a node hands it on to the one that leads.
fn handed_on<M: Message>(message: &M) -> Vec<u8> {
    let body = kera_raft::in_versions(message).pop().expect("one at least");
    let command = ForwardCommand { op: M::OP as u16, version: M::OP.version_max(), system: false, body };
    kera_raft::in_versions(&command).pop().expect("one at least")
}

/// Two that both vote are lost with either of them.
#[tokio::test]
async fn who_is_left_of_three_votes_alone_and_goes_on_without_the_other_one() {
    let mut world = World::cluster(21, 3, 0).await;
    let leader = world.leading().await;
    let gone = (1..=3).find(|node| *node != leader).unwrap();
    world.kill(gone, None).await;
    let is_fenced = |world: &World| world.nodes[&leader].group.read(|state| state.node(gone).unwrap().fenced);
    world.until("it is fenced", is_fenced).await;
    world.nodes[&leader].group.ask(&ChangeNode { node: gone, change: NodeChange::Remove }).await.unwrap();
    // Whoever leads by then.
    world.until("one votes", |world| world.voters(leader).len() == 1).await;
    let left = world.voters(leader)[0];
    let other = (1..=3).find(|node| ![left, gone].contains(node)).unwrap();
    world.until("that one knows", |world| world.voters(left) == [left]).await;
    world.kill(other, None).await;
    world.create(left, "alone").await.unwrap();
    // And with the other one there may be three again.
    world.start(other).await;
    world.join(other, 3).await;
    world.disks.remove(&gone);
    world.machines.insert(gone, 77);
    world.start(gone).await;
    world.join(gone, 3).await;
    world.until("all vote", |world| (1..=3).all(|at| world.voters(at) == [1, 2, 3])).await;
    world.agree().await;
}

#[tokio::test]
async fn the_only_one_that_votes_gives_its_vote_away_when_it_is_drained() {
    let mut world = World::cluster(22, 1, 0).await;
    world.start(2).await;
    world.join(2, 2).await;
    world.nodes[&2].group.ask(&ChangeNode { node: 1, change: NodeChange::Drain }).await.unwrap();
    world.until("the other one votes", |world| (1..=2).all(|at| world.voters(at) == [2])).await;
    world.create(1, "both").await.unwrap();
    world.kill(1, None).await;
    world.create(2, "alone").await.unwrap();
    let is_fenced = |world: &World| world.nodes[&2].group.read(|state| state.node(1).unwrap().fenced);
    world.until("it is fenced", is_fenced).await;
    // What it owned waits for it, for streams here have one copy.
    world.agree().await;
}

/// It is out of the group before it hears of anything again: its own state never says that it is lost.
#[tokio::test]
async fn a_node_that_is_given_up_while_it_is_cut_off_learns_of_it() {
    let world = World::cluster(19, 3, 1).await;
    let epoch = world.nodes[&4].epoch;
    world.part(&[4], &[1, 2, 3]);
    let is_fenced = |world: &World| world.nodes[&1].group.read(|state| state.node(4).unwrap().fenced);
    world.until("it is fenced", is_fenced).await;
    world.nodes[&1].group.ask(&ChangeNode { node: 4, change: NodeChange::Remove }).await.unwrap();
    assert!(!world.nodes[&4].group.is_over(epoch), "it has heard of nothing");
    world.heal();
    world.until("it knows", |world| world.nodes[&4].group.is_over(epoch)).await;
}

#[tokio::test]
async fn a_node_that_is_refused_changes_nothing() {
    let mut world = World::cluster(9, 1, 0).await;
    world.start(2).await;
    let before = world.nodes[&1].group.describe();
    let message = kera_protocol::JoinCluster { uuid: [1; 16], ..world.join_message(2, 1) };
    let refused = world.nodes[&1].group.ask(&message).await.unwrap_err().to_string();
    assert!(refused.contains("is number 1 of the cluster"), "{refused}");
    let after = world.nodes[&1].group.describe();
    assert_eq!((after.nodes, world.nodes[&1].group.peers().len()), (before.nodes, 1));
}
