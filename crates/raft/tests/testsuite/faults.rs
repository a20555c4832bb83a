//! Groups under faults. What they must survive: any message lost, late, doubled or without its answer; any minority cut off or
//! killed, with its disk's unsynced bytes gone; all killed at once, so or with one bit changed on each disk. Then: what was answered is there on every
//! node, and no two nodes were ever told different things at the same place of the log.

use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::CoordinatorError;
use kera_raft::Timing;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::{TIMING, World, create};

/// Rounds of a torment.
const ROUNDS: u32 = 6;

/// What goes wrong in a round, and is over when it returns; `unlucky` is a minority.
async fn trouble(world: &mut World, rng: &mut StdRng, all: &[u64], unlucky: &[u64]) {
    let pause = |ms| tokio::time::sleep(Duration::from_millis(ms));
    match rng.random_range(0..8) {
        0 => {
            let rest: Vec<u64> = all.iter().copied().filter(|node| !unlucky.contains(node)).collect();
            world.part(unlucky, &rest);
            pause(500).await;
        }
        1 => {
            for node in unlucky {
                world.kill(*node as u32, Some(rng.random())).await;
            }
            pause(300).await;
            for node in unlucky {
                world.start(*node as u32).await;
            }
        }
        2 => {
            for node in all {
                world.kill(*node as u32, Some(rng.random())).await;
            }
            for node in all {
                world.start(*node as u32).await;
            }
        }
        // Each disk changes a bit of what was synced.
        3 => {
            for node in all {
                world.kill(*node as u32, None).await;
            }
            for node in all {
                world.rot(*node as u32, rng);
                world.start(*node as u32).await;
            }
        }
        // The power goes everywhere, each time in the middle of another change to the disk, and for some in that of the start behind it.
        4 => {
            for node in all {
                world.disks[&(*node as u32)].cut_power_at(rng.random_range(1..60));
            }
            pause(rng.random_range(50..400)).await;
            for node in all {
                world.kill(*node as u32, Some(rng.random())).await;
            }
            for node in all {
                let disk = world.disks[&(*node as u32)].clone();
                if rng.random() {
                    disk.cut_power_at(rng.random_range(1..12));
                }
                let is_started = world.try_start(*node as u32).await;
                disk.cut_power_at(1 << 40);
                if !is_started || disk.is_off() {
                    world.kill(*node as u32, Some(rng.random())).await;
                    world.start(*node as u32).await;
                }
            }
        }
        // A write or a sync of a minority fails, or half of a write is there: those end by themselves.
        5 => {
            for node in unlucky {
                let disk = &world.faulty[&(*node as u32)];
                match rng.random_range(0..3) {
                    0 => disk.fail_write(rng.random_range(1..20)),
                    1 => disk.tear_write(rng.random_range(1..20)),
                    _ => disk.fail_sync(rng.random_range(1..20)),
                }
            }
            pause(400).await;
            for node in unlucky {
                world.kill(*node as u32, None).await;
                world.start(*node as u32).await;
            }
        }
        6 => {
            for node in unlucky {
                world.faulty[&(*node as u32)].set_space(Some(rng.random_range(0..5_000)));
            }
            pause(400).await;
            world.faulty.values().for_each(|disk| disk.heal());
        }
        _ => {
            for node in unlucky {
                world.faulty[&(*node as u32)].set_slow(Some(Duration::from_millis(rng.random_range(1..400))));
            }
            pause(400).await;
            world.faulty.values().for_each(|disk| disk.heal());
        }
    }
}

async fn torment(seed: u64, voters: u32, others: u32) {
    let mut world = World::cluster(seed, voters, others).await;
    world.snapshot_entries = 60;
    // Less than some troubles take.
    world.timing.lost_after_ms = 400;
    let mut rng = StdRng::seed_from_u64(seed);
    let acknowledged: Arc<Mutex<Vec<String>>> = Arc::default();
    let minority = (voters - 1) / 2;
    for round in 0..ROUNDS {
        {
            let faults = &mut *world.net.faults.lock();
            (faults.lose, faults.double) = (rng.random_range(0..15), rng.random_range(0..20));
            faults.delay_ms_max = rng.random_range(0..12);
        }
        let mut busy = Vec::new();
        for at in world.nodes.keys().copied().collect::<Vec<_>>() {
            let (group, acknowledged) = (world.nodes[&at].group.clone(), acknowledged.clone());
            busy.push(tokio::spawn(async move {
                for number in 0..8 {
                    let name = format!("s-{round}-{at}-{number}");
                    if create(&group, &name, 1).await.is_ok() {
                        acknowledged.lock().push(name);
                    }
                }
            }));
        }
        let all: Vec<u64> = (1..=u64::from(voters + others)).collect();
        let mut unlucky: Vec<u64> = Vec::new();
        while unlucky.len() < minority as usize {
            let node = rng.random_range(1..=u64::from(voters));
            if !unlucky.contains(&node) {
                unlucky.push(node);
            }
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(10..200))).await;
        trouble(&mut world, &mut rng, &all, &unlucky).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        world.net.faults.lock().parted.clear();
    }
    world.heal();
    // Whoever has just started has applied nothing until something is decided: all would agree on that.
    made(&world.nodes[&1].group, "behind-it").await;
    world.agree().await;
    let all: Vec<u32> = (1..=voters).collect();
    let voters: Vec<_> = world.nodes.keys().map(|at| (*at, world.voters(*at))).collect();
    let is_whole = voters.iter().all(|(_, voters)| *voters == all);
    assert!(is_whole, "seed {seed}: one list of voters counts, with all of them: {voters:?}");
    let acknowledged = acknowledged.lock().clone();
    assert!(!acknowledged.is_empty(), "nothing was acknowledged");
    for (number, node) in &world.nodes {
        let missing = acknowledged
            .iter()
            .find(|name| node.group.read(|state| state.catalog.find(&name.as_str().into()).is_err()));
        assert_eq!(missing, None, "seed {seed}: node {number} has not what was acknowledged");
    }
}

/// The seeds of a test, or those that `KERA_RAFT_SEEDS` says, like `100..200`.
fn seeds(tested: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("KERA_RAFT_SEEDS") else { return tested };
    let parsed = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    let seeds: std::ops::Range<u64> = parsed.unwrap_or_else(|| panic!("KERA_RAFT_SEEDS is FROM..TO, not {text}"));
    assert!(!seeds.is_empty(), "KERA_RAFT_SEEDS is FROM..TO with TO above FROM, not {text}: there is no seed in it");
    seeds
}

#[tokio::test]
async fn three_coordinators_and_a_node_that_is_told() {
    for seed in seeds(11..14) {
        println!("seed {seed}");
        torment(seed, 3, 1).await;
    }
}

#[tokio::test]
async fn five_coordinators() {
    for seed in seeds(21..23) {
        println!("seed {seed}");
        torment(seed, 5, 0).await;
    }
}

/// Asks until there is such a stream: a leader whose disk is full answers nobody, and whoever has asked it does not know what came of it.
async fn made(group: &kera_raft::Group, name: &str) {
    for _ in 0..5 {
        match create(group, name, 1).await {
            Ok(_) | Err(CoordinatorError::StreamExists { .. }) => return,
            Err(error) => assert!(matches!(error, CoordinatorError::NoLeader(_)), "{error}"),
        }
    }
    panic!("a majority has room for {name}");
}

/// Each disk is full for a while, then all of them: nobody is given up for it, and what is answered is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disks_make_coordinators_wait_and_nothing_else() {
    let mut world = World::cluster(5, 3, 0).await;
    world.snapshot_entries = 10;
    for node in 1..=3 {
        world.kill(node, None).await;
        world.start(node).await;
    }
    for full in [vec![1], vec![2], vec![3], vec![1, 2, 3]] {
        full.iter().for_each(|node| world.faulty[node].set_space(Some(0)));
        let at = (1..=3).find(|node| !full.contains(node)).unwrap_or(1);
        for number in 0..12 {
            let name = format!("full-{full:?}-{number}").replace([',', ' ', '[', ']'], "-");
            let group = &world.nodes[&at].group;
            if full.len() == 3 {
                let made = tokio::time::timeout(Duration::from_millis(300), create(group, &name, 1)).await;
                assert!(!matches!(made, Ok(Ok(_))), "nobody can keep it");
                break;
            }
            made(group, &name).await;
        }
        full.iter().for_each(|node| world.faulty[node].set_space(None));
        let name = format!("free-{}", full.len() * 10 + full[0] as usize);
        made(&world.nodes[&full[0]].group, &name).await;
        world.agree().await;
    }
    // One that stops does not wait for room.
    world.faulty[&2].set_space(Some(0));
    let _ = tokio::time::timeout(Duration::from_millis(500), world.create(2, "never")).await;
    world.kill(2, None).await;
}

/// Clients that take all files of a process had its coordinator given up when its log went on in another file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinators_wait_for_files_to_open() {
    const EMFILE: i32 = 24;
    let world = World::cluster(7, 3, 0).await;
    for out in [vec![1], vec![1, 2, 3]] {
        for node in &out {
            // What cannot be written goes on in another file, which cannot be opened.
            world.faulty[node].set_open_errno(Some(EMFILE));
            world.faulty[node].fail_write(1);
        }
        let opens: Vec<u64> = out.iter().map(|node| world.faulty[node].opens()).collect();
        let (group, name) = (world.nodes[&3].group.clone(), format!("out-{}", out.len()));
        let asked = name.clone();
        let asking = tokio::spawn(async move { made(&group, &asked).await });
        // What is asked for has them write, and try again and again.
        for (node, before) in out.iter().zip(opens) {
            world.until("it is tried again", |world| world.faulty[node].opens() >= before + 3).await;
        }
        out.iter().for_each(|node| world.faulty[node].set_open_errno(None));
        asking.await.unwrap();
        for node in 1..=3 {
            made(&world.nodes[&node].group, &format!("{name}-{node}")).await;
        }
        world.agree().await;
    }
}

/// A node whose disk does not answer falls silent, be it the leader or not, and others go on without it; when all disks stand still nobody is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_stands_still_is_taken_for_lost_and_not_all_of_them_at_once() {
    let is_fenced = |world: &World, at: u32, node: u32| {
        world.nodes[&at].group.read(|state| state.node(node).is_some_and(|node| node.fenced))
    };
    // All: each has something to write. Nobody hears of anybody, and behind it nobody is to blame. One whose thread goes on later than those of the others
    // is not lost for that yet.
    let world = World::cluster_at(6, 3, 0, Timing { stands_still_ms: 900, lost_after_ms: 5_000, ..TIMING }).await;
    world.faulty.values().for_each(|disk| disk.set_slow(Some(Duration::from_secs(12))));
    let group = world.nodes[&1].group.clone();
    let waits = tokio::spawn(async move { create(&group, "while-all-stand", 1).await });
    let all_stand = |world: &World| world.nodes.values().all(|node| node.group.disk_wait_us() >= 900_000);
    world.until("all of them stand still at once", all_stand).await;
    // For longer than it takes until who is silent is lost, and not until one of them goes on: its next step would be as slow, and it alone stood still.
    tokio::time::sleep(Duration::from_millis(6_000)).await;
    world.faulty.values().for_each(|disk| disk.set_slow(None));
    // It may have been done, or there was nobody who led: nobody promised anything.
    let _ = waits.await.expect("no panic");
    made(&world.nodes[&2].group, "behind-it").await;
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert!((1..=3).all(|node| !is_fenced(&world, 1, node)), "all of them stood still");
    world.agree().await;
    // The leader, and one that follows.
    let mut world = World::cluster_at(6, 3, 0, Timing { stands_still_ms: 900, ..TIMING }).await;
    let long = Some(Duration::from_secs(5));
    for leads in [true, false] {
        let leader = world.leading().await;
        let node = if leads { leader } else { (1..=3).find(|node| *node != leader).expect("three") };
        let other = (1..=3).find(|other| *other != node).expect("three");
        world.faulty[&node].set_slow(long);
        made(&world.nodes[&other].group, &format!("while-{leads}")).await;
        world.until("it is fenced", |world| is_fenced(world, other, node)).await;
        made(&world.nodes[&other].group, &format!("without-{leads}")).await;
        world.faulty[&node].set_slow(None);
        world.until("it learns of it", |world| is_fenced(world, node, node)).await;
        world.kill(node, None).await;
        world.start(node).await;
        world.join(node, 3).await;
        world.agree().await;
    }
}

/// Who leads, in this term or in a later one.
async fn leading_in(world: &World) -> (u32, u64) {
    loop {
        let leader = world.leading().await;
        let term = world.nodes[&leader].group.describe().term;
        // Another one may have been elected in that term meanwhile.
        if world.nodes[&leader].group.is_leader() {
            return (leader, term);
        }
    }
}

/// A vote is on the disk of who asks for it before anybody is asked, and then on the disk of who gives it. Where both take longer than an election waits each began anew before the votes of the
/// last one had come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinators_whose_disks_sync_later_than_they_wait_for_votes_elect_a_leader() {
    let timing = Timing { heartbeat_ms: 100, election_ms: 200, ..TIMING };
    let mut world = World::cluster_at(9, 3, 0, timing).await;
    world.slow_syncs = Some(Duration::from_millis(300));
    world.faulty.values().for_each(|disk| disk.set_slow_syncs(Some(Duration::from_millis(300))));
    made(&world.nodes[&1].group, "slowly").await;
    let (first, before) = leading_in(&world).await;
    world.kill(first, None).await;
    let (second, term) = leading_in(&world).await;
    assert!(term > before, "it was elected on slow disks");
    made(&world.nodes[&second].group, "without-the-first").await;
    // Those who start have written nothing yet that says how slow their disks are. One of them has led, and lacks what has come since: the other one has to be elected.
    let second = world.leading().await;
    let third = (1..=3).find(|node| ![first, second].contains(node)).expect("three");
    for node in [second, third] {
        world.kill(node, None).await;
    }
    for node in [first, third] {
        world.start(node).await;
    }
    world.until("the third leads", |world| world.nodes[&third].group.is_leader()).await;
    made(&world.nodes[&third].group, "without-the-second").await;
    world.faulty.values().for_each(|disk| disk.set_slow_syncs(None));
    world.slow_syncs = None;
    world.start(second).await;
    for node in 1..=3 {
        world.join(node, 3).await;
    }
    world.agree().await;
}

/// A sync that takes longer than a leader may be silent, which is up to three times what an election waits.
const LATE: Duration = Duration::from_millis(5 * TIMING.election_ms);

/// Nobody is lost who is silent: what is done about that is decided as slowly as all else, and is not what these tests are about.
const SLOWLY: Timing = Timing { lost_after_ms: 600_000, command_ms: 10_000, ..TIMING };

/// Has these nodes have slow disks, and all others fast ones.
fn slow_down(world: &World, slow: &[u32]) {
    world.faulty.iter().for_each(|(node, disk)| disk.set_slow_syncs(Some(LATE).filter(|_| slow.contains(node))));
}

fn all_have(world: &World, name: &str) -> bool {
    world.nodes.values().all(|node| node.group.read(|state| state.catalog.find(&name.into()).is_ok()))
}

/// Has a stream made that all get to know of while one leader leads in one term. A machine that stands still for a moment makes an election of that: then another one.
async fn stays(world: &World, name: &str) {
    for number in 0..8 {
        let (leader, term) = leading_in(world).await;
        let (group, name) = (&world.nodes[&leader].group, format!("{name}-{number}"));
        made(group, &name).await;
        world.until("it is on all disks", |world| all_have(world, &name)).await;
        if group.is_leader() && group.describe().term == term {
            return;
        }
    }
    panic!("nobody leads for as long as an entry takes: {name}");
}

/// Each leader would be given up with its first entry, and whoever has just written would try to be elected in the place of one that lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinators_whose_disks_sync_later_than_a_leader_is_missed_elect_one_that_stays() {
    let mut world = World::cluster_at(10, 3, 0, SLOWLY).await;
    let first = world.leading().await;
    slow_down(&world, &[1, 2, 3]);
    world.kill(first, None).await;
    stays(&world, "elected").await;
    world.start(first).await;
    // Only that of who leads, and then only that of one who follows.
    let leader = world.leading().await;
    slow_down(&world, &[leader]);
    stays(&world, "leads").await;
    let leader = world.leading().await;
    let follows = (1..=3).find(|node| *node != leader).expect("three");
    slow_down(&world, &[follows]);
    stays(&world, "follows").await;
    slow_down(&world, &[]);
    world.agree().await;
}

/// Whoever is elected on a slow disk has on it what its leader has had decided, whenever any of them loses its power.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_slow_disks_have_decided_is_there_after_power_cuts() {
    let mut world = World::cluster_at(12, 3, 0, SLOWLY).await;
    let mut names = vec!["before".to_owned()];
    made(&world.nodes[&1].group, &names[0]).await;
    for round in 0..3_u64 {
        slow_down(&world, &[1, 2, 3]);
        // In the midst of what it does next the leader, then one that follows, and then the leader again.
        let leader = world.leading().await;
        let unlucky = if round == 1 { (1..=3).find(|node| *node != leader).expect("three") } else { leader };
        world.disks[&unlucky].cut_power_at(1 + round * 2);
        let other = (1..=3).find(|node| *node != unlucky).expect("three");
        let name = format!("meanwhile-{round}");
        made(&world.nodes[&other].group, &name).await;
        names.push(name);
        world.kill(unlucky, Some(round)).await;
        world.start(unlucky).await;
    }
    slow_down(&world, &[]);
    // Whoever has just started has applied nothing until something is decided.
    made(&world.nodes[&1].group, "behind-it").await;
    world.agree().await;
    let lost: Vec<&String> = names.iter().filter(|name| !all_have(&world, name)).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Who asks nobody hears nobody: that says nothing of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_node_that_asks_the_others_says_that_it_does_not_hear_them() {
    let mut world = World::cluster_at(8, 3, 0, Timing { stands_still_ms: 900, ..TIMING }).await;
    let leader = world.leading().await;
    let node = (1..=3).find(|node| *node != leader).expect("three");
    world.faulty[&node].set_slow(Some(Duration::from_secs(15)));
    made(&world.nodes[&leader].group, "while-it-stands").await;
    // For as long as who asks is waited for, and a second.
    let stands = |world: &World| world.nodes[&node].group.disk_wait_us() >= 900_000 + 6_000_000;
    world.until("its disk stands still", stands).await;
    assert_eq!(world.nodes[&node].group.lacks_majority(), None, "the others are there");
    world.faulty[&node].set_slow(None);
    // It knows who votes before it has joined.
    world.kill(node, None).await;
    world.start(node).await;
    world.until("it knows who votes", |world| world.voters(node) == [1, 2, 3]).await;
    assert_eq!(world.nodes[&node].group.lacks_majority(), None, "it has asked nobody yet");
    world.join(node, 3).await;
    world.agree().await;
    // Who is cut off asks.
    let others: Vec<u64> = (1..=3).filter(|other| *other != u64::from(node)).collect();
    world.part(&[node.into()], &others);
    let said =
        format!("no majority of the coordinators: node {node} does not hear nodes {} and {}", others[0], others[1]);
    world.until("it says so", |world| world.nodes[&node].group.lacks_majority().as_ref() == Some(&said)).await;
    world.heal();
    world.until("it hears them", |world| world.nodes[&node].group.lacks_majority().is_none()).await;
}

/// What the coordinators say cannot be kept any more: the node takes no part in anything that is decided, and nobody must take it for one that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_refuses_the_log_falls_silent_and_others_go_on_without_it() {
    let mut world = World::cluster(7, 3, 0).await;
    for leads in [false, true] {
        let leader = world.leading().await;
        let node = if leads { leader } else { (1..=3).find(|node| *node != leader).expect("three") };
        let other = (1..=3).find(|other| *other != node).expect("three");
        world.faulty[&node].set_broken(true);
        made(&world.nodes[&other].group, &format!("while-{leads}")).await;
        let is_fenced =
            |world: &World| world.nodes[&other].group.read(|state| state.node(node).is_some_and(|node| node.fenced));
        world.until("it is fenced", is_fenced).await;
        let ended = tokio::time::timeout(Duration::from_secs(120), world.nodes[&node].group.ended()).await;
        let why = ended.expect("whoever runs it is told");
        assert!(why.contains("error"), "{why}");
        made(&world.nodes[&other].group, &format!("without-{leads}")).await;
        // It starts again when its disk is well.
        world.kill(node, None).await;
        world.start(node).await;
        world.join(node, 3).await;
        world.agree().await;
    }
}

/// What is written to a full disk waits for room without end, and who looks at the disk would wait behind that: nobody could stop him.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_looks_at_a_full_disk_ends_when_he_is_told_to() {
    let world = World::cluster(5, 1, 0).await;
    let group = world.nodes[&1].group.clone();
    let look = |goes_on: bool| {
        let group = group.clone();
        tokio::task::spawn_blocking(move || group.look_at_disk(&|| goes_on))
    };
    world.faulty[&1].set_space(Some(0));
    let asked = group.clone();
    tokio::spawn(async move { create(&asked, "late", 1).await });
    // Once it is being written.
    let mut looked = look(false).await.unwrap();
    for _ in 0..600 {
        if looked.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        looked = look(false).await.unwrap();
    }
    let error = looked.unwrap_err().to_string();
    assert!(error.contains("is being written"), "{error}");
    assert!(group.read(|state| state.catalog.find(&"late".into()).is_err()), "nobody can keep it");
    let waiting = look(true);
    world.faulty[&1].set_space(None);
    assert!(!waiting.await.unwrap().unwrap().1, "who goes on waits until there is room");
}
