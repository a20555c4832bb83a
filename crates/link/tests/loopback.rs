//! A replicated log and its backups over TCP on the loopback device, in one process.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{CLUSTER, Cluster, LOG};
use kera_log::{DurabilitySink, SinkErrorKind};
use kera_protocol::{FenceNode, LaneStates, LogView, ReadBlocks};
use kera_rpc::{ClientConfig, Connection};

/// Waits for something that happens soon; a test that waits in vain fails.
fn until(what: &str, happened: impl Fn() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn chunks_are_durable_when_both_backups_have_them_and_a_lost_one_is_replaced() {
    let mut cluster = Cluster::start(3, 3, |_| {});
    let replicated = Arc::clone(&cluster.replicated[0]);
    let mut last = 0;
    for n in 0..100 {
        last = cluster.append(n % 4, 2000).expect("a ticket");
    }
    until("all is durable", || replicated.durable_through() == last);
    let stats = replicated.stats();
    assert_eq!((stats.chunks, stats.copies, stats.views_changed), (100, 3, 0));
    let before = replicated.state().1;
    assert_eq!(before.backups, [1, 2]);

    cluster.stop(2);
    for n in 0..100 {
        last = cluster.append(n % 4, 2000).expect("a ticket");
    }
    until("all is durable again", || replicated.durable_through() == last);
    let (acknowledged, after) = replicated.state();
    assert_eq!((after.number, &after.backups[..]), (2, &[1, 3][..]));
    assert!(replicated.stats().under_replicated > 0);

    // What a recovery asks, over the same doors.
    let address = cluster.address(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (lanes, read, fenced) = runtime.block_on(async {
        let connection = Connection::connect(&address, ClientConfig::default()).await.expect("connected");
        let states =
            LaneStates { log: LOG, from_block: after.first, through_block: acknowledged, streamlets: Vec::new() };
        let lanes = connection.call(&states).await.expect("states").lanes;
        let all = ReadBlocks {
            log: LOG,
            from_block: after.first,
            through_block: acknowledged,
            streamlets: Vec::new(),
            max_bytes: 1 << 30,
        };
        let read = connection.call(&all).await.expect("blocks");
        let logs = vec![LogView { vlog: LOG.vlog, first_block: after.first }];
        let fence = FenceNode { node: LOG.node, epoch: LOG.epoch, logs };
        (lanes, read, connection.call(&fence).await.expect("fenced"))
    });
    assert_eq!(lanes.len(), 4);
    assert_eq!(lanes.iter().map(|lane| lane.next_ordinal).sum::<u64>(), 200);
    assert_eq!(read.next_block, acknowledged + 1);
    assert_eq!((fenced.ends[0].through, fenced.ends[0].certain), (acknowledged, true));

    let lost = cluster.append(0, 2000).expect("it is taken before anybody knows");
    until("the log learns of the fence", || replicated.stats().fenced);
    assert!(replicated.durable_through() < lost);
    assert_eq!(replicated.healthy().expect_err("fenced").kind, SinkErrorKind::Fenced);
    assert_ne!(CLUSTER, [0; 16]);
}

#[test]
fn synced_blocks_are_there_after_a_restart_of_the_backup() {
    let mut cluster = Cluster::start(2, 3, |settings| settings.synced = true);
    let replicated = Arc::clone(&cluster.replicated[0]);
    let mut last = 0;
    for n in 0..50 {
        // Among small blocks large ones, which the backups receive where they write them from.
        last = cluster.append(n % 4, if n % 5 == 0 { 300_000 } else { 10_000 }).expect("a ticket");
    }
    until("all is durable", || replicated.durable_through() == last);
    let (acknowledged, _) = replicated.state();
    cluster.stop(1);
    let report = cluster.restart(1);
    assert!(report.damage.is_empty() && report.blocks >= acknowledged, "{report:?}");
    for n in 0..50 {
        last = cluster.append(n % 4, 10_000).expect("a ticket");
    }
    until("all is durable with the backup that came back", || replicated.durable_through() == last);
    // There was nobody else. If it was missed for a moment it is back after a while.
    until("both are its backups", || {
        let mut backups = replicated.state().1.backups;
        backups.sort_unstable();
        backups == [1, 2]
    });
}

#[test]
fn who_stands_where_a_backup_stood_gets_no_block() {
    let cluster = Cluster::start(2, 3, |settings| settings.uuid = *b"somebody else is");
    let replicated = Arc::clone(&cluster.replicated[0]);
    cluster.append(0, 100).expect("a ticket");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(replicated.durable_through(), 0, "nobody whom the view names has it");
    assert!((1..=2).all(|backup| cluster.backup(backup).stats().blocks == 0));
}
