//! A backup on simulated disks: what it takes, what survives, what a recovery gets from it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use kera_backup::{Backup, BackupConfig, BackupError, BackupScrubber, OpenError, OpenReport, Ran, StoreDone, Taken};
use kera_env::{Disk, FaultyDisk, ManualClock, MemoryDisk, OpenMode, RealDisk, SeededRandom, copy_path, read_twice};
use kera_format::checksum::crc32c;
use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};
use kera_protocol::{
    BlockRange, BlockStored, BlocksRead, LaneStates, ListReplicas, LogView, ReadBlocks, ReleaseBlocks, Status,
    StoreHead, StoreOutcome, StreamletRef,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::*;

#[test]
fn blocks_are_taken_in_their_order_and_a_hole_says_what_is_next() {
    let mut rig = Rig::over(open(&memory().1, 1).0);
    assert_eq!(rig.store(LOG, 2, 1, false), Ok(BlockStored { outcome: StoreOutcome::Next, block: 1 }));
    for block in 1..=5 {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    assert_eq!(rig.store(LOG, 3, 1, false), Ok(stored(5)), "what is there is answered as stored");
    assert_eq!(rig.store(LOG, 8, 1, false), Ok(BlockStored { outcome: StoreOutcome::Next, block: 6 }));
    // The next view begins behind a hole; what is missing of the first can still come.
    assert_eq!(rig.store(LOG, 8, 8, false), Ok(stored(8)));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 5 }, BlockRange { first: 8, last: 8 }]);
    assert_eq!(rig.store(LOG, 6, 1, false), Ok(stored(6)));
    assert_eq!(rig.store(LOG, 7, 1, false), Ok(stored(8)));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 8 }]);
    assert_eq!(rig.read(LOG, 1, 8), Ok((1..=8).collect()));
}

/// With what a broker asks whether it is there: a block behind a hole in any log.
#[test]
fn a_question_is_answered_at_once_and_leaves_nothing() {
    let mut rig = Rig::over(open(&memory().1, 1).0);
    let question = 1 << 63 | 5;
    let ask = |rig: &Rig| {
        let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
        rig.backup.store(&head(LOG, question, 1, true, 0, &[]), &[], &done, 99)
    };
    let next = |block| Taken::Answered(BlockStored { outcome: StoreOutcome::Next, block });
    assert_eq!(ask(&rig), next(1));
    assert_eq!(rig.backup.list(&ListReplicas { after: None, limit: 0 }).replicas, []);
    for block in 1..=3 {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    assert_eq!(ask(&rig), next(4));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 3 }]);
    rig.backup.fence(LOG.node, LOG.epoch, &[]).expect("fenced");
    let fenced = BlockStored { outcome: StoreOutcome::Fenced, block: LOG.epoch.into() };
    assert_eq!(ask(&rig), Taken::Answered(fenced));
}

#[test]
fn one_sync_for_each_file_serves_all_that_wait() {
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let mut rig = Rig::over(open(&[Arc::new(faulty.clone()) as Arc<dyn Disk>], 1).0);
    let logs: Vec<LogId> = (0..4).map(|vlog| LogId { vlog, ..LOG }).collect();
    for log in &logs {
        assert_eq!(rig.store(*log, 1, 1, true), Ok(stored(1)));
    }
    let (writes, syncs, _) = faulty.counts();
    for block in 2..=11 {
        for log in &logs {
            assert_eq!(rig.send(*log, block, 1, true), Taken::Queued);
        }
    }
    rig.write();
    assert_eq!(rig.answers.all.lock().expect("no panic").len(), 44);
    let (writes_after, syncs_after, _) = faulty.counts();
    assert_eq!((writes_after - writes, syncs_after - syncs), (4, 4));
}

#[test]
fn a_full_disk_refuses_by_name_and_another_one_goes_on() {
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::with_capacity(256 << 10)));
    let disks = [Arc::new(faulty.clone()) as Arc<dyn Disk>];
    let mut rig = Rig::over(open(&disks, 1).0);
    let refused = (1..1000).find_map(|block| rig.store(LOG, block, 1, false).err()).expect("the disk is full at last");
    assert_eq!(refused.status, Status::DiskFull, "{refused}");
    assert!(refused.reason.contains("/memory-disk/replicas/") && refused.reason.contains("free space"), "{refused}");
    let [BlockRange { first: 1, last }] = rig.ranges(LOG)[..] else { panic!("one row of blocks") };
    assert_eq!(rig.read(LOG, 1, last), Ok((1..=last).collect()), "what was stored is there");

    let small = Arc::new(MemoryDisk::with_capacity(16 << 10)) as Arc<dyn Disk>;
    let (_, mut large) = memory();
    large.insert(0, small);
    let mut rig = Rig::over(open(&large, 1).0);
    assert!(rig.store(LOG, 1, 1, false).is_err(), "nothing is known of the disk yet");
    for block in 1..=300 {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
}

#[test]
fn after_a_failed_sync_blocks_are_sent_again_and_go_elsewhere() {
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let clock = Arc::new(ManualClock::new(1_000_000));
    let disks = vec![Arc::new(faulty.clone()) as Arc<dyn Disk>];
    let random = Arc::new(SeededRandom::new(3));
    let (backup, _) = Backup::open(config(), disks, Arc::clone(&clock) as _, random).expect("open");
    let mut rig = Rig::over(backup);
    for block in 1..=3 {
        assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
    }
    faulty.fail_sync(1);
    let error = rig.store(LOG, 4, 1, true).expect_err("not synced");
    assert_eq!(error.status, Status::DiskFailed);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 3 }]);
    assert!(rig.store(LOG, 4, 1, true).is_err(), "the disk is left alone for a while");
    clock.advance_ms(1000);
    assert_eq!(rig.store(LOG, 4, 1, true), Ok(stored(4)));
    assert_eq!(rig.store(LOG, 5, 1, true), Ok(stored(5)));
    assert_eq!(rig.backup.stats().files, 2);
    assert_eq!(rig.read(LOG, 1, 5), Ok((1..=5).collect()));
}

#[test]
fn a_file_that_failed_is_no_hole_when_those_around_it_are_given_back() {
    let machine = Machine::new();
    let mut rig = machine.start(1, 16 << 10).expect("open");
    for block in 1..=3 {
        assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
    }
    // The first file is full. What goes to the second is written and not synced, and is sent again.
    machine.faulty.fail_sync(2);
    rig.store(LOG, 4, 1, true).expect_err("not synced");
    machine.clock.advance_ms(1000);
    for block in 4..=12 {
        assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
    }
    rig.backup.release(&ReleaseBlocks { log: LOG, through_block: 11 });
    drop(rig);
    let rig = machine.start(2, 16 << 10).expect("open");
    let ends = rig.backup.fence(LOG.node, LOG.epoch, &[LogView { vlog: LOG.vlog, first_block: 1 }]).expect("fenced");
    assert!(ends[0].certain && ends[0].through == 12, "{ends:?}");
}

#[test]
fn what_a_start_takes_for_synced_survives_a_loss_of_power_with_its_name() {
    for seed in 0..20 {
        let (disk, disks) = memory();
        let mut rig = Rig::over(open(&disks, 1).0);
        assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)));
        drop(rig);
        let mut rig = Rig::over(open(&disks, 2).0);
        assert_eq!(rig.store(LOG, 1, 1, true), Ok(stored(1)), "it was killed, and has what it had written");
        drop(rig);
        disk.crash(seed);
        assert_eq!(Rig::over(open(&disks, 3).0).ranges(LOG), [BlockRange { first: 1, last: 1 }], "seed {seed}");
    }
}

/// The other backups may be away: then the log ends where this one says.
#[test]
fn what_a_fence_has_told_of_survives_a_loss_of_power_whether_or_not_it_was_to_be_synced() {
    let views = [LogView { vlog: LOG.vlog, first_block: 1 }];
    for seed in 0..20 {
        let (disk, disks) = memory();
        let mut rig = Rig::over(open(&disks, 1).0);
        (1..=200).for_each(|block| assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block))));
        assert!(!rig.backup.has_to_settle());
        assert_eq!(rig.backup.fence(LOG.node, LOG.epoch, &views).expect("fenced")[0].through, 200);
        assert!(rig.backup.has_to_settle());
        if seed % 2 == 0 {
            rig.write();
        } else {
            while rig.backup.settle_fenced(0) {}
        }
        assert!(!rig.backup.has_to_settle());
        drop(rig);
        disk.crash(seed);
        assert_eq!(Rig::over(open(&disks, 2).0).ranges(LOG), [BlockRange { first: 1, last: 200 }], "seed {seed}");
    }
}

/// Also where a full file has lost blocks, and its footer is there.
#[test]
fn what_a_loss_of_power_has_taken_is_missing_at_every_start_behind_it() {
    let mut damaged = 0;
    for seed in 0..300 {
        let machine = Machine::new();
        let mut rig = machine.start(1, 16 << 10).expect("open");
        (1..=20).for_each(|block| assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block))));
        drop(rig);
        machine.loses_power(seed);
        let start = |seed| {
            let rig = machine.start(seed, 16 << 10).expect("open");
            let end = rig.backup.end_now(LOG, 1);
            (rig.ranges(LOG), end.through, end.certain)
        };
        let first = start(2);
        assert!(first.1 == 20 || !first.2, "seed {seed}: {first:?}");
        damaged += usize::from(first.0.len() > 1);
        for again in 3..5 {
            assert_eq!(start(again), first, "seed {seed}");
        }
    }
    assert!(damaged > 20, "{damaged}");
}

/// A fence that a disk has changed may be one that does not hold.
#[test]
fn no_byte_of_the_fences_is_needed_that_is_in_their_copy() {
    let whole = MemoryDisk::new();
    let disks = |disk: &MemoryDisk| vec![Arc::new(disk.clone()) as Arc<dyn Disk>];
    let (backup, _) = open(&disks(&whole), 1);
    backup.fence(LOG.node, LOG.epoch, &[]).expect("fenced");
    backup.fence(LOG.node + 1, 3, &[]).expect("fenced");
    drop(backup);
    let path = "replicas/fences".to_owned();
    let files = [path.clone(), copy_path(&path)].map(|path| (path.clone(), whole.read_all(&path, 9999).expect("read")));
    for (file, bytes) in &files {
        for at in 0..bytes.len() as u64 {
            let disk = MemoryDisk::new();
            disk.create_dir_all("replicas").expect("made");
            files.iter().for_each(|(path, bytes)| disk.replace(path, bytes).expect("written"));
            disk.flip_bit(file, at, (at % 8) as u8).expect("flip");
            let (backup, report) = open(&disks(&disk), 2);
            assert_eq!(report.fences, 2, "{file} {at}");
            let fenced = BlockStored { outcome: StoreOutcome::Fenced, block: LOG.epoch.into() };
            assert_eq!(Rig::over(backup).send(LOG, 1, 1, false), Taken::Answered(fenced), "{file} {at}");
            assert!(read_twice(&disk, &path, 9999).expect("read").are_same(), "{file} {at}");
        }
    }
    // What an earlier build has written to another disk counts, and does not stand for all that the first one had.
    let (empty, earlier) = (MemoryDisk::new(), MemoryDisk::new());
    earlier.create_dir_all("replicas").expect("made");
    earlier.replace(&path, &files[0].1).expect("written");
    let two = |first: &MemoryDisk| [disks(first), disks(&earlier)].concat();
    assert_eq!(open(&two(&empty), 2).1.fences, 2);
    // If it cannot be read, that is of no account beside those of the first disk, and is if that one has none.
    let unreadable = FaultyDisk::new(Arc::new(earlier.clone()));
    unreadable.set_unreadable(&path, 0);
    let beside = |first: &MemoryDisk| {
        let disks = [disks(first), vec![Arc::new(unreadable.clone()) as Arc<dyn Disk>]].concat();
        Backup::open(config(), disks, Arc::new(ManualClock::new(1_000_000)), Arc::new(SeededRandom::new(3)))
    };
    assert_eq!(beside(&whole).expect("opened").1.fences, 2);
    assert!(matches!(beside(&MemoryDisk::new()).err(), Some(OpenError::Disk { .. })));
    files.iter().for_each(|(path, _)| whole.flip_bit(path, 20, 1).expect("flip"));
    for disks in [disks(&whole), two(&whole)] {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let opened = Backup::open(config(), disks, clock, Arc::new(SeededRandom::new(3)));
        assert!(matches!(opened.err(), Some(OpenError::Fences { .. })));
    }
}

#[test]
fn brokers_wait_when_too_much_waits_for_the_disk() {
    let mut rig = Rig::over(open(&memory().1, 1).0);
    let full = (1..10_000).find(|&block| rig.send(LOG, block, 1, false) == Taken::Full).expect("it fills up");
    assert_eq!(*rig.answers.rooms.lock().expect("no panic"), 0);
    assert!(rig.backup.stats().queued_bytes <= 1 << 20);
    rig.write();
    assert!(*rig.answers.rooms.lock().expect("no panic") > 0);
    assert_eq!(rig.store(LOG, full, 1, false), Ok(stored(full)));
}

#[test]
fn a_flipped_bit_is_never_given_out() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=60 {
        assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
    }
    let files: Vec<String> =
        disk.list("replicas").expect("list").into_iter().filter(|n| n.ends_with(".replica")).collect();
    assert!(files.len() > 2, "{files:?}");
    // In a full file: found when it is read.
    disk.flip_bit(&format!("replicas/{}", files[0]), 4096 + 200, 3).expect("there");
    let error = rig.read(LOG, 1, 60).expect_err("damaged");
    assert_eq!(error.status, Status::SegmentUnreadable);
    assert!(error.reason.contains(&files[0]) && error.reason.contains("block 1"), "{error}");
    assert_eq!(rig.read(LOG, 2, 60), Ok((2..=60).collect()), "what is behind it can be read");
    // In the open file: found at the next start, which says what is missing.
    let open_file = format!("replicas/{}", files[files.len() - 1]);
    disk.flip_bit(&open_file, 4096 + 200, 3).expect("there");
    drop(rig);
    let (backup, report) = open(&disks, 2);
    assert_eq!(report.damage.len(), 1, "{report:?}");
    let mut rig = Rig::over(backup);
    let ranges = rig.ranges(LOG);
    assert_eq!((ranges.len(), ranges[0].first, ranges[1].last), (2, 1, 60), "{ranges:?}");
    assert!(ranges[1].first == ranges[0].last + 2, "one block does not read back");
    // Whether the log ends there it does not know and says so; what is missing is taken again.
    let views = [LogView { vlog: 0, first_block: 1 }];
    let missing = ranges[0].last + 1;
    let end = open(&disks, 3).0.fence(1, 6, &views).expect("fenced")[0];
    assert_eq!((end.through, end.certain), (0, true), "of epoch 6 there is nothing");
    assert_eq!(rig.store(LOG, missing, 1, true).expect("taken").outcome, StoreOutcome::Stored);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 60 }]);
    let end = rig.backup.fence(1, 7, &views).expect("fenced")[0];
    assert_eq!((end.through, end.certain), (60, true));
}

/// What a loss of power tears looks the same: nobody was answered for that.
#[test]
fn a_last_block_that_does_not_read_back_is_told_as_begun_by_every_start() {
    let views = [LogView { vlog: 0, first_block: 1 }];
    // Its chunks, its header, and what shows that there is one: blocks are of one page each here. Then nothing of it is left but the footer of a file that a start
    // has closed.
    let open_ones = [(8_u64, false, Some(200)), (8, false, Some(41)), (1, false, Some(200))];
    let closed_ones = [Some(200), Some(41), Some(0), None].map(|at| [(8, true, at), (1, true, at)]);
    for (blocks, is_closed, at) in open_ones.into_iter().chain(closed_ones.into_iter().flatten()) {
        let (disk, disks) = memory();
        let mut rig = Rig::over(open(&disks, 1).0);
        for block in 1..=blocks {
            assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
        }
        drop(rig);
        let end = |seed| {
            let (backup, report) = open(&disks, seed);
            assert_eq!(report.damage, [""; 0]);
            backup.end_now(LOG, 1)
        };
        if is_closed {
            assert_eq!(end(2).through, blocks);
        }
        let files = disk.list("replicas").expect("list");
        let file = files.iter().filter(|name| name.ends_with(".replica")).min().expect("one");
        let last = |page: u64| 4096 + page * 4096;
        let page = (0..64).map(last).take_while(|at| disk_reads(&disk, file, *at)).last().expect("blocks");
        let path = format!("replicas/{file}");
        match at {
            Some(at) => disk.flip_bit(&path, page + at, 3).expect("there"),
            None => {
                let file = disk.open(&path, OpenMode::ReadWrite, false).expect("there");
                file.write_at(page, &[0; 4096]).expect("written");
            }
        }
        for seed in 3..6 {
            let told = end(seed);
            assert_eq!((told.through, told.certain, told.begun), (blocks - 1, true, blocks), "start {seed}: {at:?}");
        }
        // Until the log goes on behind it.
        let mut rig = Rig::over(open(&disks, 6).0);
        if blocks > 1 {
            assert_eq!(rig.store(LOG, blocks, 1, true), Ok(stored(blocks)));
            let told = rig.backup.fence(1, 7, &views).expect("fenced")[0];
            assert_eq!((told.through, told.certain, told.begun), (blocks, true, 0));
            drop(rig);
            let told = end(7);
            assert_eq!((told.through, told.certain, told.begun), (blocks, true, 0));
        }
    }
}

type Opened = Result<(Arc<Backup>, OpenReport), OpenError>;

/// A row of 60 blocks, its files, and how to open what is there once more, in a run of the machine.
fn with_files() -> (FaultyDisk, Vec<String>, impl Fn(u8) -> Opened) {
    let (memory, _) = memory();
    let faulty = FaultyDisk::new(Arc::new(memory));
    let disk = faulty.clone();
    let start = move |boot: u8| {
        let config = BackupConfig { boot_id: Some([boot; 16]), ..config() };
        let clock = Arc::new(ManualClock::new(1_000_000));
        Backup::open(config, vec![Arc::new(disk.clone())], clock, Arc::new(SeededRandom::new(3)))
    };
    let mut rig = Rig::over(start(1).expect("open").0);
    (1..=60).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    drop(rig);
    let names = faulty.list("replicas").expect("list").into_iter().filter(|name| name.ends_with(".replica"));
    let files: Vec<String> = names.map(|name| format!("replicas/{name}")).collect();
    (faulty, files, start)
}

/// Where the last block of a file is. Blocks are of one page each here.
fn last_block(disk: &FaultyDisk, file: &str) -> u64 {
    let bytes = disk.read_all(file, 1 << 20).expect("read");
    let pages = (4096..bytes.len()).step_by(4096).take_while(|at| bytes[*at..].starts_with(b"KVBL"));
    pages.last().expect("blocks") as u64
}

/// It is damaged like what was changed, and no start ends for it.
#[test]
fn a_page_that_the_disk_cannot_read_costs_what_is_in_it_alone() {
    let all = BlockRange { first: 1, last: 60 };
    // The mark of a full file, and its footer: the blocks are there.
    for page in [1, 2] {
        let (disk, files, start) = with_files();
        assert!(files.len() > 2, "{files:?}");
        let bytes = disk.open(&files[0], OpenMode::Read, false).and_then(|file| file.len()).expect("there");
        disk.set_unreadable(&files[0], bytes - page * 4096);
        for _ in 0..2 {
            let (backup, report) = start(1).expect("open");
            assert_eq!((report.damage.len(), report.scanned > 0), (0, true), "{report:?}");
            assert_eq!(Rig::over(backup).ranges(LOG), [all]);
        }
    }
    // A block in the midst of the open file: its header, or its chunks.
    for at in [0, 200] {
        let (disk, files, start) = with_files();
        let last = last_block(&disk, &files[files.len() - 1]);
        disk.set_unreadable(&files[files.len() - 1], last - 4096 + at);
        for _ in 0..2 {
            let (backup, report) = start(1).expect("open");
            assert_eq!(report.damage.len(), 1, "{report:?}");
            assert!(report.damage[0].contains("cannot read"), "{report:?}");
            let (front, behind) = (BlockRange { last: 58, ..all }, BlockRange { first: 60, ..all });
            assert_eq!(Rig::over(backup).ranges(LOG), [front, behind]);
        }
    }
    // The first page of a file: that of the mark has a copy of the header.
    let (disk, files, start) = with_files();
    for file in [&files[0], &files[files.len() - 1]] {
        disk.set_unreadable(file, 0);
        let (backup, report) = start(1).expect("open");
        assert_eq!((report.damage.len(), Rig::over(backup).ranges(LOG)), (0, vec![all]));
    }
}

/// A disk may have lost what it knows of a file, and not what is in it.
#[test]
fn a_file_that_the_disk_cannot_open_is_lost_for_as_long_as_it_cannot_and_ends_no_start() {
    let (disk, files, start) = with_files();
    let last = files.len() - 1;
    let other = LogId { node: LOG.node + 1, vlog: LOG.vlog + 1, ..LOG };
    for at in [0, last] {
        disk.set_unopenable(&files[at]);
        for _ in 0..2 {
            let (backup, report) = start(1).expect("open");
            assert!(report.damage.len() == 1 && report.damage[0].starts_with(&files[at]), "{report:?}");
            let (ranges, end) = (Rig::over(backup.clone()).ranges(LOG), backup.end_now(LOG, 1));
            assert_eq!(ranges.len(), 1, "{ranges:?}");
            let [BlockRange { first, last: through }] = ranges[..] else { panic!("{ranges:?}") };
            assert_eq!((first > 1, through < 60), (at == 0, at == last), "{ranges:?}");
            // Any blocks of any log may be in it.
            assert!(!end.certain && !backup.end_now(other, 1).certain, "{end:?}");
        }
        disk.heal_reads();
        let (backup, report) = start(1).expect("open");
        assert_eq!(
            (report.damage, Rig::over(backup).ranges(LOG)),
            (Vec::new(), vec![BlockRange { first: 1, last: 60 }])
        );
    }
}

/// One sector costs the block that it is in, also while the node runs.
#[test]
fn what_is_behind_a_page_that_the_disk_cannot_read_is_looked_at_told_and_given() {
    // The header of a block, and the chunks of one.
    for at in [0, 200] {
        let (disk, files, start) = with_files();
        let rig = Rig::over(start(1).expect("open").0);
        disk.set_unreadable(&files[0], 3 * 4096 + at);
        let mut scrubber = BackupScrubber::new(rig.backup.clone());
        let damaged: u64 = std::iter::from_fn(|| scrubber.step()).map(|(_, damaged)| damaged).sum();
        let ranges = rig.ranges(LOG);
        assert_eq!((damaged, ranges.len()), (1, 2), "{at}: {ranges:?}");
        let bad = ranges[0].last + 1;
        assert_eq!((ranges[1].first, ranges[1].last), (bad + 1, 60), "{at}");
        assert_eq!(rig.read(LOG, bad, 60).expect_err("damaged").status, Status::SegmentUnreadable, "{at}");
        assert_eq!(rig.read(LOG, bad + 1, 60).map(|read| read[0]), Ok(bad + 1), "{at}");
    }
}

/// The pages of a file are taken for begun where the disk cannot read them: with zeros there a log would end in front of them for certain.
#[test]
fn a_last_block_that_the_disk_cannot_read_is_told_as_begun_by_every_start() {
    let end = |start: &dyn Fn(u8) -> Opened, boot| {
        let (backup, report) = start(boot).expect("open");
        assert_eq!(report.damage, [""; 0]);
        let end = backup.end_now(LOG, 1);
        (end.through, end.certain, end.begun)
    };
    for at in [0, 200] {
        let (disk, files, start) = with_files();
        let file = &files[files.len() - 1];
        disk.set_unreadable(file, last_block(&disk, file) + at);
        (0..3).for_each(|_| assert_eq!(end(&start, 1), (59, true, 60), "{at}"));
        disk.heal_reads();
        assert_eq!(end(&start, 1), (60, true, 0), "it is there still");
    }
    // A start has closed the file, and the power goes: its footer alone says that there was more. It was synced, so that was not what the power took.
    let (disk, files, start) = with_files();
    let file = &files[files.len() - 1];
    assert_eq!(end(&start, 1), (60, true, 0));
    disk.set_unreadable(file, last_block(&disk, file));
    [2, 2, 3].iter().for_each(|boot| assert_eq!(end(&start, *boot), (59, true, 60)));
    // So it is where zeros are read.
    let (disk, files, start) = with_files();
    let file = &files[files.len() - 1];
    assert_eq!(end(&start, 1), (60, true, 0));
    let opened = disk.open(file, OpenMode::ReadWrite, false).expect("there");
    opened.write_at(last_block(&disk, file), &[0; 4096]).expect("written");
    [1, 2, 2, 3].iter().for_each(|boot| assert_eq!(end(&start, *boot), (59, true, 60)));
    // What is behind the last block of a file that was closed is its footer.
    let (disk, files, start) = with_files();
    let file = &files[files.len() - 1];
    assert_eq!(end(&start, 1), (60, true, 0));
    disk.set_unreadable(file, last_block(&disk, file) + 4096);
    [1, 2].iter().for_each(|boot| assert_eq!(end(&start, *boot), (60, true, 0)));
}

#[test]
fn a_start_writes_nothing_where_a_footer_says_what_is_there() {
    let (disk, _, start) = with_files();
    let writes = || {
        let before = disk.counts().0;
        start(1).expect("open");
        disk.counts().0 - before
    };
    assert!(writes() > 0, "the last file had none");
    assert_eq!(writes(), 0);
}

/// It says whether the power was lost: without it that cannot be ruled out.
#[test]
fn what_is_known_of_losses_of_power_is_not_needed_by_a_start() {
    let (disk, _, start) = with_files();
    let mut rig = Rig::over(start(1).expect("open").0);
    let unsynced = LogId { vlog: LOG.vlog + 1, ..LOG };
    assert_eq!(rig.store(unsynced, 1, 1, false), Ok(stored(1)));
    drop(rig);
    let is_certain = || start(1).expect("open").0.end_now(unsynced, 1).certain;
    assert!(is_certain());
    disk.set_unreadable("replicas/power", 0);
    assert!(!is_certain());
}

/// Files are not given up for an error that says nothing of what is in them.
#[test]
fn an_error_that_may_pass_ends_a_start_and_costs_nothing() {
    let (disk, files, start) = with_files();
    let full = disk.open(&files[0], OpenMode::Read, false).and_then(|file| file.len()).expect("there");
    let open = &files[files.len() - 1];
    // No memory is left.
    disk.set_lost_errno(12);
    disk.set_unopenable(&files[0]);
    assert!(matches!(start(1).err(), Some(OpenError::Disk { path, .. }) if path == files[0]));
    disk.heal_reads();
    let power = "replicas/power".to_owned();
    for (path, at) in [(&files[0], 0), (&files[0], full - 4096), (open, 0), (open, 4096), (&power, 0)] {
        disk.set_unreadable(path, at);
        let error = start(1).err();
        assert!(matches!(&error, Some(OpenError::Disk { path: told, .. }) if told == path), "{path} {at}: {error:?}");
        disk.heal_reads();
    }
    assert_eq!(Rig::over(start(1).expect("open").0).ranges(LOG), [BlockRange { first: 1, last: 60 }]);
}

/// Whether a block begins there.
fn disk_reads(disk: &MemoryDisk, file: &str, at: u64) -> bool {
    let opened = disk.open(&format!("replicas/{file}"), OpenMode::Read, false).expect("there");
    let mut magic = [0; 4];
    opened.read_at(at, &mut magic).expect("read") == 4 && magic == *b"KVBL"
}

/// What is in front of a range is of another view, which has other backups; this one may be the only one of the range.
#[test]
fn what_is_damaged_in_front_of_a_range_does_not_matter() {
    // Its chunks, and its header.
    for at in [200, 9] {
        let (disk, disks) = memory();
        let mut rig = Rig::over(open(&disks, 1).0);
        for block in 1..=60 {
            assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
        }
        let asked = |from_block| LaneStates { log: LOG, from_block, through_block: 60, streamlets: Vec::new() };
        let whole = rig.backup.lane_states(&asked(2)).expect("states");
        let files = disk.list("replicas").expect("list");
        let file = files.iter().filter(|name| name.ends_with(".replica")).min().expect("one");
        disk.flip_bit(&format!("replicas/{file}"), 4096 + at, 3).expect("there");
        assert_eq!(rig.backup.lane_states(&asked(2)).expect("states"), whole);
        assert_eq!(rig.read(LOG, 2, 60), Ok((2..=60).collect()));
        assert!(rig.read(LOG, 1, 60).expect_err("damaged").reason.contains("is damaged"));
        // The block that is wanted itself is not passed over.
        disk.flip_bit(&format!("replicas/{file}"), 8192 + at, 3).expect("there");
        for refused in [rig.backup.lane_states(&asked(2)).map(drop), rig.read(LOG, 2, 60).map(drop)] {
            assert!(refused.expect_err("damaged").reason.contains("is damaged"));
        }
        assert_eq!(rig.read(LOG, 3, 60), Ok((3..=60).collect()));
    }
}

#[test]
fn a_damaged_front_is_not_taken_for_given_back() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=8 {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    drop(rig);
    let files = disk.list("replicas").expect("list");
    let file = files.iter().find(|name| name.ends_with(".replica")).expect("one");
    disk.flip_bit(&format!("replicas/{file}"), 4096 + 200, 3).expect("there");
    let (backup, report) = open(&disks, 2);
    assert_eq!(report.damage.len(), 1, "{report:?}");
    let rig = Rig::over(backup);
    let asked = |from_block, through_block| LaneStates { log: LOG, from_block, through_block, streamlets: Vec::new() };
    for refused in [rig.backup.lane_states(&asked(1, 8)).map(drop), rig.read(LOG, 1, 8).map(drop)] {
        let error = refused.expect_err("nobody gave block 1 back");
        assert!(error.status == Status::SegmentUnreadable && error.reason.contains("block 1 "), "{error}");
    }
    assert_eq!(rig.read(LOG, 2, 8), Ok((2..=8).collect()), "what is behind it can be read");
    assert!(rig.backup.lane_states(&asked(2, 8)).is_ok());
    let views = [LogView { vlog: 0, first_block: 1 }];
    let end = rig.backup.end_now(LOG, 1);
    assert_eq!((end.through, end.certain), (0, false), "it cannot know where the log ends");
    assert_eq!(
        rig.backup.fence(1, 7, &views).expect("fenced"),
        [],
        "and says nothing, for no loss of power explains it"
    );
}

#[test]
fn a_file_whose_header_is_damaged_is_not_taken_for_given_back_nor_the_log_for_shorter() {
    for which in [0, 2] {
        let (disk, disks) = memory();
        let mut rig = Rig::over(open(&disks, 1).0);
        for block in 1..=40 {
            assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
        }
        drop(rig);
        let files = replica_files(&disk);
        assert_eq!(files.len(), 3, "{files:?}");
        spoil_headers(&disk, &files[which]);
        // Once when it is found, and once when it is known already.
        for seed in [2, 3] {
            let rig = Rig::over(open(&disks, seed).0);
            assert!(rig.read(LOG, 1, 40).is_err() || rig.ranges(LOG)[0].last < 40);
            let asked = LaneStates { log: LOG, from_block: 1, through_block: 40, streamlets: Vec::new() };
            let has_last = rig.read(LOG, 40, 40).is_ok_and(|blocks| blocks == [40]);
            assert!(!has_last || rig.backup.lane_states(&asked).is_err(), "{which}");
            assert!(!rig.backup.end_now(LOG, 1).certain, "{which}");
        }
    }
}

/// The names of files of copies.
fn replica_files(disk: &MemoryDisk) -> Vec<String> {
    let names = disk.list("replicas").expect("list");
    names.into_iter().filter(|name| name.ends_with(".replica")).collect()
}

/// Changes a bit of a file's header, and of each copy of it.
fn spoil_headers(disk: &MemoryDisk, file: &str) {
    let path = format!("replicas/{file}");
    let opened = disk.open(&path, OpenMode::Read, false).expect("there");
    let (mut magic, last) = ([0; 4], opened.len().expect("a length") - 4096);
    opened.read_at(last, &mut magic).expect("read");
    let copies = [Some(0), Some(2048), (magic == *b"KVMK").then_some(last + 2048)];
    copies.into_iter().flatten().for_each(|at| disk.flip_bit(&path, at + 70, 3).expect("there"));
}

/// A file is found by any of them, and has all again then.
#[test]
fn a_header_that_does_not_read_back_is_there_once_more() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    (1..=40).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    drop(rig);
    let files = replica_files(&disk);
    assert_eq!(files.len(), 3, "{files:?}");
    let is_whole = |seed| {
        let (backup, report) = open(&disks, seed);
        assert_eq!(report.damage, [""; 0]);
        let rig = Rig::over(backup);
        assert_eq!(
            (rig.ranges(LOG), rig.read(LOG, 1, 40)),
            (vec![BlockRange { first: 1, last: 40 }], Ok((1..=40).collect()))
        );
        assert_eq!((rig.backup.end_now(LOG, 1).through, rig.backup.end_now(LOG, 1).certain), (40, true));
    };
    for (number, file) in (10..).zip(&files) {
        let path = format!("replicas/{file}");
        // The first one, and then, for that was written anew, its copy.
        disk.flip_bit(&path, 70, 3).expect("there");
        is_whole(number);
        disk.flip_bit(&path, 2048 + 70, 3).expect("there");
        is_whole(number + 10);
    }
    // Of a full file the whole first page.
    let full = disk.open(&format!("replicas/{}", files[0]), OpenMode::ReadWrite, false).expect("there");
    full.write_at(0, &[0xa5; 4096]).expect("written");
    is_whole(30);
    is_whole(31);
}

/// With two copies it may be the only one who is asked where the log ends.
#[test]
fn of_a_log_whose_only_file_lost_its_header_nothing_is_certain() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    (1..=8).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    drop(rig);
    spoil_headers(&disk, &replica_files(&disk)[0]);
    let views = [LogView { vlog: LOG.vlog, first_block: 1 }];
    let mut rig = Rig::over(open(&disks, 2).0);
    let end = rig.backup.end_now(LOG, 1);
    assert!(!end.certain, "{end:?}");
    assert_eq!(rig.backup.fence(LOG.node, LOG.epoch, &views).expect("fenced"), [], "what it has it cannot tell");
    // The file is no other log's that began behind it, and was no later part of one that goes on.
    for later in [LogId { node: 4, ..LOG }, LogId { epoch: 8, ..LOG }] {
        assert_eq!(rig.store(later, 1, 1, true), Ok(stored(1)));
    }
    for seed in 3..5 {
        let rig = Rig::over(open(&disks, seed).0);
        for later in [LogId { node: 4, ..LOG }, LogId { epoch: 8, ..LOG }] {
            let end = rig.backup.end_now(later, 1);
            assert_eq!((end.through, end.certain), (1, true));
        }
        assert!(!rig.backup.end_now(LOG, 1).certain);
    }
}

/// What a recovery asks for is the same from memory, from footers and from blocks.
#[test]
fn lanes_states_come_from_memory_footers_and_blocks_alike() {
    let (_, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=100 {
        rig.store(LOG, block, 1, false).expect("stored");
    }
    let asked = |from_block, through_block| LaneStates { log: LOG, from_block, through_block, streamlets: Vec::new() };
    let whole = rig.backup.lane_states(&asked(1, 100)).expect("states");
    assert_eq!(whole.lanes.len(), 2);
    assert_eq!(whole.lanes[0].next_ordinal, 301);
    assert_eq!(whole.lanes[0].producers.len(), 5);
    let last = whole.lanes[1].producers.iter().map(|place| place.sequence).max();
    assert_eq!(last, Some(301), "of streamlet 1, block 100 has chunk 1");
    // After a restart all is in footers; a range that cuts files is read from blocks.
    let cut = rig.backup.lane_states(&asked(1, 99)).expect("states");
    assert_eq!(cut.lanes[0].next_ordinal, 298);
    drop(rig);
    let (backup, report) = open(&disks, 2);
    assert_eq!((report.scanned, report.blocks), (1, 100));
    assert_eq!(backup.lane_states(&asked(1, 100)).expect("states"), whole);
    assert_eq!(backup.lane_states(&asked(1, 99)).expect("states"), cut);
    let streamlets = vec![StreamletRef { stream: StreamId(1), streamlet: StreamletId(1) }];
    let one = backup.lane_states(&LaneStates { streamlets: streamlets.clone(), ..asked(1, 100) }).expect("states");
    assert_eq!(one.lanes, whole.lanes[1..]);
    // The same streamlet's chunks, and no others.
    let read = ReadBlocks { log: LOG, from_block: 1, through_block: 100, streamlets, max_bytes: 1 << 20 };
    let read = backup.read_blocks(&read).expect("read");
    assert_eq!(read.next_block, 101);
    assert!(read.blocks.iter().all(|(head, bytes)| head.chunk_count == 1 && crc32c(bytes) == head.chunks_checksum));
    assert_eq!(read.blocks.len(), (1..=100).filter(|block| block % 3 > 0).count());
}

/// Whoever takes over asked for all of it again and again otherwise, and refused the answer each time.
#[test]
fn lanes_that_have_too_much_to_tell_are_told_in_parts() {
    let (_, disks) = memory();
    let small = BackupConfig { states_bytes_max: 4096, ..config() };
    let clock = Arc::new(ManualClock::new(1_000_000));
    let (backup, _) = Backup::open(small, disks.clone(), clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    for block in 1..=100 {
        rig.store(LOG, block, 1, false).expect("stored");
    }
    let asked = |blocks: (u64, u64), streamlets: &[u32]| {
        let name = |number: &u32| StreamletRef { stream: StreamId(1), streamlet: StreamletId(*number) };
        let (from_block, through_block) = blocks;
        LaneStates { log: LOG, from_block, through_block, streamlets: streamlets.iter().map(name).collect() }
    };
    for streamlets in [&[][..], &[0, 1], &[0]] {
        let refused = rig.backup.lane_states(&asked((1, 100), streamlets)).expect_err("too much");
        assert_eq!(refused.status, Status::LimitReached, "{refused}");
    }
    let parts = |streamlet: u32, ten: u64| {
        let states = rig.backup.lane_states(&asked((10 * ten + 1, 10 * ten + 10), &[streamlet])).expect("little");
        let [lane] = &states.lanes[..] else { panic!("{states:?}") };
        lane.parts.clone()
    };
    let told = [0, 1].map(|streamlet| (0..10).flat_map(|ten| parts(streamlet, ten)).collect::<Vec<_>>());
    drop(rig);
    let (backup, _) = open(&disks, 2);
    let whole = backup.lane_states(&asked((1, 100), &[])).expect("it may say more");
    let whole: Vec<Vec<_>> = whole.lanes.into_iter().map(|lane| lane.parts).collect();
    assert!(whole.iter().all(|parts| parts.len() > 60), "{whole:?}");
    assert_eq!(whole, told);
}

/// Each block is looked at by its header first. What that was read into took the place of memory for blocks, a page for each of them, until none was kept any more.
#[test]
fn memory_that_blocks_are_read_into_is_kept_once_however_many_are_read() {
    let large = BackupConfig { file_bytes: 8 << 20, ..config() };
    let clock = Arc::new(ManualClock::new(1_000_000));
    let (backup, _) = Backup::open(large, memory().1, clock, Arc::new(SeededRandom::new(1))).expect("open");
    let rig = Rig::over(backup);
    let many = |block: u64| {
        let all = (60 * block..60 * (block + 1)).map(|part| chunks(LOG, part));
        all.fold((0_u32, Vec::new()), |(count, bytes), (more, chunks)| (count + more, [bytes, chunks].concat()))
    };
    let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
    for block in 1..=20 {
        let (count, bytes) = many(block);
        let head = head(LOG, block, 1, false, count, &bytes);
        assert_eq!(rig.backup.store(&head, &bytes, &done, block), Taken::Queued);
        rig.write();
    }
    let read = || {
        for block in 1..=20 {
            let streamlets = Vec::new();
            let asked =
                ReadBlocks { log: LOG, from_block: block, through_block: block, streamlets, max_bytes: 1 << 20 };
            let read = rig.backup.read_blocks(&asked).expect("read");
            let [(_, bytes)] = &read.blocks[..] else { panic!("one block") };
            assert!(bytes.len() > 32 << 10, "it is worth being lent");
            assert_eq!(&bytes[..], many(block).1, "block {block}");
        }
        rig.backup.stats().queued_bytes
    };
    let kept = read();
    assert_eq!(read(), kept);
}

/// Most of it was copied out of that memory, and a little is in blocks that are wanted as they are.
#[test]
fn a_few_blocks_do_not_keep_the_memory_that_many_were_read_into() {
    let large_files = BackupConfig { file_bytes: 8 << 20, ..config() };
    let clock = Arc::new(ManualClock::new(1_000_000));
    let (backup, _) = Backup::open(large_files, memory().1, clock, Arc::new(SeededRandom::new(1))).expect("open");
    let rig = Rig::over(backup);
    // With a chunk of another streamlet, or without.
    let content = |block: u64| match block % 2 {
        0 => (3, [large(block), chunks(LOG, 1).1].concat()),
        _ => chunks(LOG, 3),
    };
    let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
    for block in 1..=20 {
        let (count, bytes) = content(block);
        let head = head(LOG, block, 1, false, count, &bytes);
        assert_eq!(rig.backup.store(&head, &bytes, &done, block), Taken::Queued);
        rig.write();
    }
    let streamlets = vec![StreamletRef { stream: StreamId(1), streamlet: StreamletId(0) }];
    let asked = ReadBlocks { log: LOG, from_block: 1, through_block: 20, streamlets, max_bytes: 1 << 20 };
    let read = rig.backup.read_blocks(&asked).expect("read");
    assert!(read.blocks.len() > 5 && rig.backup.stats().direct_read_bytes > 0);
    assert!(read.blocks.iter().all(|(head, _)| head.chunk_count == 1 + u32::from(head.block.is_multiple_of(2))));
    let kept = rig.backup.stats().queued_bytes;
    drop(read);
    assert_eq!(rig.backup.stats().queued_bytes, kept, "nobody had any of it any more");
}

/// Each header that is passed over is a read that waits for the disk: a rebuild, which reads a log from its end in pieces, looked at all in front of each piece in its file.
#[test]
fn a_block_in_a_large_file_is_found_without_a_look_at_all_in_front_of_it() {
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(faulty.clone())];
    let open = |seed| {
        let config = BackupConfig { file_bytes: 16 << 20, ..config() };
        let clock = Arc::new(ManualClock::new(1_000_000));
        Rig::over(Backup::open(config, disks.clone(), clock, Arc::new(SeededRandom::new(seed))).expect("open").0)
    };
    let rig = open(1);
    let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
    for block in 1..=60 {
        let chunk = large(block);
        assert_eq!(rig.backup.store(&head(LOG, block, 1, false, 1, &chunk), &chunk, &done, block), Taken::Queued);
        rig.write();
    }
    assert_eq!(rig.backup.stats().files, 1);
    let reads = |rig: &Rig, block: u64| {
        let (_, _, before) = faulty.counts();
        let streamlets = Vec::new();
        let asked = ReadBlocks { log: LOG, from_block: block, through_block: block, streamlets, max_bytes: 1 };
        let read = rig.backup.read_blocks(&asked).expect("read");
        assert!(read.next_block == block + 1 && read.blocks[0].1[..] == large(block)[..], "block {block}");
        faulty.counts().2 - before
    };
    // The headers of those within half a MiB, its own, and itself.
    assert!([60, 41, 20, 59, 2].iter().all(|block| reads(&rig, *block) <= 5));
    drop(rig);
    // The next process passes over all of them once.
    let rig = open(2);
    assert!(reads(&rig, 60) > 50);
    assert!([60, 41, 20, 59, 2].iter().all(|block| reads(&rig, *block) <= 6));
}

/// While a disk is away files on others get numbers that it has given before. Where a block is in one of them says nothing of the other.
#[test]
fn blocks_are_found_in_two_files_that_have_one_number_on_two_disks() {
    let other = LogId { vlog: 1, ..LOG };
    let disks: Vec<MemoryDisk> = (0..2).map(|_| MemoryDisk::new()).collect();
    let open = |disks: &[MemoryDisk], seed| {
        let disks = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
        let config = BackupConfig { file_bytes: 16 << 20, ..config() };
        let clock = Arc::new(ManualClock::new(1_000_000));
        Rig::over(Backup::open(config, disks, clock, Arc::new(SeededRandom::new(seed))).expect("open").0)
    };
    let rig = open(&disks[..1], 1);
    let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
    for block in 1..=60 {
        let chunk = large(block);
        assert_eq!(rig.backup.store(&head(LOG, block, 1, false, 1, &chunk), &chunk, &done, block), Taken::Queued);
        rig.write();
    }
    drop((rig, done));
    let mut rig = open(&disks[1..], 2);
    (1..=60).for_each(|block| assert_eq!(rig.store(other, block, 1, false), Ok(stored(block))));
    drop(rig);
    let files = |disk: &MemoryDisk| disk.list("replicas").expect("list");
    assert!(disks.iter().all(|disk| files(disk).contains(&"0000000001.replica".to_owned())));
    let rig = open(&disks, 3);
    let streamlets = Vec::new();
    let asked = ReadBlocks { log: LOG, from_block: 60, through_block: 60, streamlets, max_bytes: 1 };
    let read = rig.backup.read_blocks(&asked).expect("read");
    assert_eq!((read.next_block, &read.blocks[0].1[..]), (61, &large(60)[..]));
    assert!(rig.backup.stats().passed_blocks > 50, "where they are is known now");
    assert_eq!(rig.read(other, 60, 60), Ok(vec![60]));
}

/// Who rebuilds from this node's own backup reads many blocks at once, past the page cache, unless that has them.
#[test]
fn what_is_read_at_once_is_what_is_read_block_by_block_also_of_damaged_files() {
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let (clock, seeded) = (Arc::new(ManualClock::new(1_000_000)), Arc::new(SeededRandom::new(3)));
    let config = BackupConfig { file_bytes: 6 << 20, ..config() };
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(faulty.clone())];
    let rig = Rig::over(Backup::open(config, disks, clock, seeded).expect("open").0);
    let content = |block: u64| if block.is_multiple_of(4) { chunks(LOG, block) } else { (1, large(block % 60)) };
    let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
    for block in 1..=100 {
        let (count, bytes) = content(block);
        let head = head(LOG, block, 1, false, count, &bytes);
        assert_eq!(rig.backup.store(&head, &bytes, &done, block), Taken::Queued);
        rig.write();
    }
    let files: Vec<String> =
        faulty.list("replicas").expect("list").into_iter().filter(|name| name.ends_with(".replica")).collect();
    assert_eq!(files.len(), 3);
    let ask = |from_block, through_block, streamlet: Option<u32>, max_bytes| {
        let of = |at| StreamletRef { stream: StreamId(1), streamlet: StreamletId(at) };
        let streamlets = streamlet.map(of).into_iter().collect();
        rig.backup.read_blocks(&ReadBlocks { log: LOG, from_block, through_block, streamlets, max_bytes })
    };
    // The blocks of a streamlet, or of all, and those that do not read back.
    let read_all = |streamlet: Option<u32>| {
        let (mut all, mut bad, mut next) = (Vec::new(), Vec::new(), 1);
        while next <= 100 {
            let read = ask(next, 100, streamlet, 1 << 20).or_else(|_| ask(next, next, streamlet, 1));
            match read {
                Ok(read) => {
                    assert!(read.next_block > next);
                    next = read.next_block;
                    for (head, bytes) in read.blocks {
                        assert_eq!(crc32c(&bytes), head.chunks_checksum);
                        let is_part = streamlet.is_some() && head.block.is_multiple_of(4);
                        assert!(is_part || bytes[..] == content(head.block).1[..], "block {}", head.block);
                        all.push((head.block, head.chunk_count));
                    }
                }
                Err(error) => {
                    assert_eq!(error.status, Status::SegmentUnreadable);
                    bad.push(next);
                    next += 1;
                }
            }
        }
        (all, bad)
    };
    let read_as = |streamlet, cached| {
        faulty.set_cached(cached);
        let (_, _, before) = faulty.counts();
        let read = read_all(streamlet);
        (read, faulty.counts().2 - before)
    };
    let (whole, reads) = read_as(None, false);
    assert_eq!((whole.0.len(), whole.1.len()), (100, 0));
    let direct = rig.backup.stats().direct_read_bytes;
    let (by_block, many_reads) = read_as(None, true);
    let stats = rig.backup.stats();
    assert!(direct > 10 << 20 && stats.direct_read_bytes == direct && stats.read_bytes > direct + (14 << 20));
    assert!(by_block == whole && many_reads > 200 && reads < many_reads / 4, "{reads} of {many_reads}");
    let (mut rng, mut damaged) = (StdRng::seed_from_u64(1), 0);
    for round in 0..40 {
        let path = format!("replicas/{}", files[rng.random_range(0..files.len())]);
        // Now and then it is the header of a block.
        let page = rng.random_range(1..1000_u64) * 4096;
        match round % 3 {
            0 => faulty.set_unreadable(&path, page + 100),
            1 => faulty.flip_bit_on_read(&path, page + rng.random_range(0..64), 3),
            _ => {}
        }
        let streamlet = [None, Some(0), Some(1)][rng.random_range(0..3_usize)];
        let ((at_once, _), (by_block, _)) = (read_as(streamlet, false), read_as(streamlet, true));
        assert_eq!(at_once, by_block, "{path} at {page}");
        damaged += at_once.1.len();
        faulty.heal_reads();
    }
    assert!(damaged > 5, "{damaged} blocks did not read back");
}

/// The store of the node gives way to what somebody waits for.
#[test]
fn blocks_that_are_read_to_be_rebuilt_are_waited_for_and_those_that_are_copied_are_not() {
    let (_disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=20 {
        rig.store(LOG, block, 1, false).expect("stored");
    }
    let read = |streamlets: &[StreamletRef], max_bytes| {
        let before = rig.backup.first_bytes(0);
        let (mut next, streamlets) = (1, streamlets.to_vec());
        while next <= 20 {
            let streamlets = streamlets.clone();
            let asked = ReadBlocks { log: LOG, from_block: next, through_block: 20, streamlets, max_bytes };
            next = rig.backup.read_blocks(&asked).expect("read").next_block;
        }
        rig.backup.first_bytes(0) - before
    };
    assert!(rig.backup.first_bytes(0) >= 20 * 4096, "all that is written is waited for");
    let wanted = [StreamletRef { stream: StreamId(1), streamlet: StreamletId(0) }];
    for max_bytes in [3000, 1 << 20] {
        assert_eq!(read(&[], max_bytes), 0);
        assert!(read(&wanted, max_bytes) >= 20 * 4096);
    }
    assert_eq!(rig.backup.first_bytes(1), 0, "there is no such disk");
}

#[test]
fn files_are_given_back_and_the_logs_end_stays_known() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 41..=140 {
        rig.store(LOG, block, 41, false).expect("stored");
    }
    let before = rig.backup.stats().files;
    let released = rig.backup.release(&ReleaseBlocks { log: LOG, through_block: 100 });
    assert!(released.files > 1 && u64::from(released.files) < before, "{released:?}");
    let first = rig.ranges(LOG)[0].first;
    assert!(first > 41 && first <= 101);
    assert_eq!(rig.store(LOG, 50, 41, false), Ok(stored(140)), "nobody needs it any more");
    // Whoever asks for an older view, all of whose blocks went, must see that they were there: it is not lost.
    let old = |from_block| ReadBlocks {
        log: LOG,
        from_block,
        through_block: first - 1,
        streamlets: Vec::new(),
        max_bytes: 1 << 20,
    };
    let gone = kera_protocol::BlocksRead { next_block: first, blocks: Vec::new() };
    assert_eq!(rig.backup.read_blocks(&old(41)).expect("read"), gone);
    assert_eq!(rig.backup.read_blocks(&old(first - 1)).expect("read"), gone);
    assert_eq!(rig.backup.read_blocks(&old(40)).expect("read").next_block, 40, "that one it never had");
    drop(rig);
    let mut rig = Rig::over(open(&disks, 2).0);
    assert_eq!(rig.backup.read_blocks(&old(41)).expect("read"), gone);
    let views = [LogView { vlog: 0, first_block: 41 }];
    assert_eq!(rig.store(LOG, 141, 41, false), Ok(stored(141)));
    assert_eq!(rig.backup.fence(1, 6, &views).expect("fenced")[0].through, 40, "epoch 6 has no log");
    assert_eq!(rig.backup.fence(1, 7, &views).expect("fenced")[0].through, 141);
    let late = rig.backup.release(&ReleaseBlocks { log: LOG, through_block: 140 });
    assert_eq!(late.files, 0, "who takes over waits for what it was told of");
    let all = rig.backup.release(&ReleaseBlocks { log: LOG, through_block: u64::MAX });
    assert!(all.files > 0);
    assert!(rig.backup.list(&ListReplicas { after: None, limit: 0 }).replicas.is_empty());
    let left = disk.list("replicas").expect("list");
    assert!(left.iter().all(|name| !name.ends_with(".replica")), "{left:?}");
    assert!(left.iter().filter(|name| name.ends_with(".spare")).count() <= 2, "{left:?}");
    assert_eq!(rig.store(LOG, 142, 41, false), Ok(BlockStored { outcome: StoreOutcome::Fenced, block: 7 }));
    // Space that was used before is used again, and what it held does not come back.
    let other = LogId { node: 2, ..LOG };
    rig.store(other, 1, 1, true).expect("stored");
    drop(rig);
    let rig = Rig::over(open(&disks, 3).0);
    assert_eq!(rig.ranges(other), [BlockRange { first: 1, last: 1 }]);
    assert_eq!(rig.ranges(LOG), []);
}

/// The owner stood still, was declared lost, and gives back what it was about to when it runs on. Meanwhile the backup was started again.
/// Whoever finds out that it is needed takes what is behind its files' names away again.
#[test]
fn a_log_that_is_set_aside_is_forgotten_and_its_files_stay() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=100 {
        rig.store(LOG, block, 1, false).expect("stored");
    }
    let names = replica_files(&disk);
    let aside = rig.backup.set_aside(LOG);
    assert_eq!((aside.files as usize, aside.bytes > 0), (names.len(), true));
    assert!(names.len() > 1 && replica_files(&disk).is_empty());
    assert_eq!(rig.backup.set_aside(LOG).files, 0, "it is said once");
    drop(rig);
    let mut rig = Rig::over(open(&disks, 2).0);
    assert!(rig.backup.list(&ListReplicas { after: None, limit: 0 }).replicas.is_empty());
    let other = LogId { node: 2, ..LOG };
    rig.store(other, 1, 1, true).expect("stored");
    assert!(replica_files(&disk).iter().all(|name| !names.contains(name)), "their names are nobody else's");
    drop(rig);
    for name in &names {
        disk.rename(&format!("replicas/{name}.unknown"), &format!("replicas/{name}")).expect("it is there");
    }
    let rig = Rig::over(open(&disks, 3).0);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 100 }]);
    assert_eq!(rig.ranges(other), [BlockRange { first: 1, last: 1 }]);
}

#[test]
fn what_a_recovery_was_told_of_before_a_restart_is_not_given_back_behind_it() {
    let disks = memory().1;
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=100 {
        rig.store(LOG, block, 1, false).expect("stored");
    }
    let late = ReleaseBlocks { log: LOG, through_block: 60 };
    let asked = LaneStates { log: LOG, from_block: 1, through_block: 100, streamlets: Vec::new() };
    rig.backup.lane_states(&asked).expect("told");
    assert_eq!(rig.backup.release(&late).files, 0);
    drop(rig);
    let rig = Rig::over(open(&disks, 2).0);
    rig.backup.keep_whole(LOG);
    assert_eq!(rig.backup.release(&late).files, 0, "the coordinators know that its node is lost");
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 100 }]);
    assert!(rig.backup.release(&ReleaseBlocks { log: LOG, through_block: u64::MAX }).files > 1);
    assert_eq!(rig.ranges(LOG), []);
}

#[test]
fn blocks_of_another_cluster_and_changed_ones_are_refused() {
    let backup = open(&memory().1, 1).0;
    let (count, bytes) = chunks(LOG, 1);
    let done = Arc::new(Answers::default()) as Arc<dyn StoreDone>;
    let right = head(LOG, 1, 1, false, count, &bytes);
    let foreign = StoreHead { cluster: [0; 16], ..right };
    assert!(
        matches!(backup.store(&foreign, &bytes, &done, 1), Taken::Refused(error) if error.status == Status::Malformed)
    );
    let changed = StoreHead { chunks_checksum: 1, ..right };
    let Taken::Refused(error) = backup.store(&changed, &bytes, &done, 1) else { panic!("taken") };
    assert_eq!(error.status, Status::ChunkChecksum);
    for wrong in [StoreHead { block: 0, ..right }, StoreHead { view_first: 2, ..right }] {
        assert!(matches!(backup.store(&wrong, &bytes, &done, 1), Taken::Refused(_)));
    }
}

/// What a backup runs on.
struct Machine {
    disk: MemoryDisk,
    faulty: FaultyDisk,
    clock: Arc<ManualClock>,
    /// Counts its losses of power.
    boots: Cell<u8>,
}

impl Machine {
    fn new() -> Machine {
        let disk = MemoryDisk::new();
        let faulty = FaultyDisk::new(Arc::new(disk.clone()));
        Machine { disk, faulty, clock: Arc::new(ManualClock::new(1_000_000)), boots: Cell::new(0) }
    }

    fn start(&self, seed: u64, file_bytes: u64) -> Result<Rig, OpenError> {
        let disks = vec![Arc::new(self.faulty.clone()) as Arc<dyn Disk>];
        let boot_id = Some([1 + self.boots.get(); 16]);
        let config = BackupConfig { file_bytes, boot_id, ..config() };
        let opened = Backup::open(config, disks, self.clock.clone(), Arc::new(SeededRandom::new(seed)));
        opened.map(|(backup, _)| Rig::over(backup))
    }

    fn loses_power(&self, seed: u64) {
        self.disk.crash(seed);
        self.boots.set(self.boots.get() + 1);
    }
}

/// What must hold after anything: `acknowledged` was answered as stored.
struct Promised {
    acknowledged: BTreeMap<LogId, u64>,
    fenced: Option<u32>,
    end: BTreeMap<LogId, u64>,
    /// Of logs that nobody asks to sync: the power took something that was answered, and nothing has followed.
    cut: BTreeSet<LogId>,
}

/// Sends blocks of three logs with loss, duplication and reordering; kills the process or cuts the power at any change of the
/// disk; fences; lets writes and syncs fail; and demands after every start that what was answered is there. Returns what that was.
fn torment(seed: u64) -> Promised {
    let mut rng = StdRng::seed_from_u64(seed);
    let machine = Machine::new();
    let synced = rng.random();
    // Small files, so that a write goes to several.
    let file_bytes = if rng.random() { 64 << 10 } else { 16 << 10 };
    let mut rig = machine.start(seed, file_bytes).expect("open");
    let mut promised =
        Promised { acknowledged: BTreeMap::new(), fenced: None, end: BTreeMap::new(), cut: BTreeSet::new() };
    let logs: Vec<LogId> = (0..3).map(|vlog| LogId { vlog, ..LOG }).collect();
    let mut sent: BTreeMap<LogId, u64> = BTreeMap::new();
    for _ in 0..rng.random_range(20..120) {
        machine.clock.advance_ms(200);
        match rng.random_range(0..24) {
            0..=11 => {
                let log = logs[rng.random_range(0..3)];
                if promised.cut.contains(&log) {
                    // Whoever has these blocks sends none behind them; it takes another view.
                    continue;
                }
                let highest = sent.entry(log).or_default();
                let block = match rng.random_range(0..10) {
                    0 => rng.random_range(1..*highest + 4),
                    _ => *highest + 1,
                };
                let taken = rig.send(log, block, 1, synced);
                match taken {
                    Taken::Answered(answer) => answered(&mut promised, log, answer),
                    Taken::Queued => *highest = block.max(*highest),
                    // The disk is off.
                    Taken::Refused(_) | Taken::Full => {}
                }
                if let Taken::Answered(BlockStored { outcome: StoreOutcome::Next, block }) = taken {
                    *highest = block - 1;
                }
            }
            12..=16 => rig.write(),
            17 if rng.random_ratio(1, 2) => machine.disk.cut_power_at(rng.random_range(1..12)),
            18 if promised.fenced.is_none() && rng.random_ratio(1, 4) => {
                let views: Vec<LogView> = logs.iter().map(|log| LogView { vlog: log.vlog, first_block: 1 }).collect();
                collect(&mut rig, &mut promised);
                if let Ok(ends) = rig.backup.fence(1, 7, &views) {
                    promised.fenced = Some(7);
                    let certain = logs.iter().zip(ends).filter(|(_, end)| end.certain);
                    promised.end = certain.map(|(log, end)| (*log, end.through)).collect();
                }
            }
            20 => machine.faulty.fail_write(rng.random_range(1..4)),
            21 => machine.faulty.tear_write(rng.random_range(1..4)),
            22 => machine.faulty.fail_sync(rng.random_range(1..3)),
            23 => while rig.backup.settle_fenced(0) || rig.backup.sync_full(0) {},
            _ if rng.random_ratio(1, 3) => {
                collect(&mut rig, &mut promised);
                rig = restart(rig, &mut rng, &machine, file_bytes);
                note_cut(&rig, &mut promised, synced, seed);
                sent = logs.iter().map(|log| (*log, rig.ranges(*log).first().map_or(0, |range| range.last))).collect();
                check(&mut rig, &promised, seed, synced);
            }
            _ => {}
        }
        collect(&mut rig, &mut promised);
    }
    rig = restart(rig, &mut rng, &machine, file_bytes);
    note_cut(&rig, &mut promised, synced, seed);
    check(&mut rig, &promised, seed, synced);
    promised
}

fn answered(promised: &mut Promised, log: LogId, answer: BlockStored) {
    match answer.outcome {
        StoreOutcome::Stored => {
            assert!(promised.fenced.is_none(), "{log}: stored through {} after the fence", answer.block);
            let highest = promised.acknowledged.entry(log).or_default();
            *highest = answer.block.max(*highest);
        }
        StoreOutcome::Fenced => {}
        StoreOutcome::Next => assert!(promised.fenced.is_none(), "{log}: asks for a block after the fence"),
    }
}

fn collect(rig: &mut Rig, promised: &mut Promised) {
    let answers: Vec<_> = rig.answers.all.lock().expect("no panic").drain().collect();
    for (token, result) in answers {
        if let Ok(answer) = result {
            answered(promised, rig.sent[&token].0, answer);
        }
    }
}

/// What the power has taken of logs that nobody asks to sync: the backup must not be certain of their ends, nor answer for blocks in the
/// midst that it does not have.
fn note_cut(rig: &Rig, promised: &mut Promised, synced: bool, seed: u64) {
    let mut told = promised.acknowledged.clone();
    for (log, end) in &promised.end {
        // It may have told of blocks that it had not answered yet.
        let through = told.entry(*log).or_default();
        *through = (*through).max(*end);
    }
    for (log, told) in told.into_iter().filter(|_| !synced) {
        let ranges = rig.ranges(log);
        if told == 0 || ranges.iter().any(|range| range.first == 1 && range.last >= told) {
            continue;
        }
        promised.cut.insert(log);
        promised.end.remove(&log);
        let end = rig.backup.end_now(log, 1);
        assert!(!end.certain, "seed {seed}: {log} has {ranges:?} of {told} and is certain of {end:?}");
        let asked = |from_block, through_block| LaneStates { log, from_block, through_block, streamlets: Vec::new() };
        let has_last = rig.read(log, told, told).is_ok_and(|blocks| !blocks.is_empty());
        assert!(!has_last || rig.backup.lane_states(&asked(1, told)).is_err(), "seed {seed}: {log} has {ranges:?}");
        let read = rig.read(log, 1, told).unwrap_or_default();
        assert!(read.iter().copied().eq(1..=read.len() as u64), "seed {seed}: {log}: {read:?}");
    }
}

/// A kill keeps what was written. The power takes what was not synced.
fn restart(rig: Rig, rng: &mut StdRng, machine: &Machine, file_bytes: u64) -> Rig {
    drop(rig);
    machine.faulty.heal();
    if machine.disk.is_off() || rng.random() {
        machine.loses_power(rng.random());
    }
    loop {
        match machine.start(rng.random(), file_bytes) {
            Ok(rig) if !machine.disk.is_off() => return rig,
            // It may go again while a start looks through the disk, and it need not be what the start waits for that is lost.
            started => {
                assert!(machine.disk.is_off(), "{:?}", started.err());
                machine.loses_power(rng.random());
            }
        }
    }
}

fn check(rig: &mut Rig, promised: &Promised, seed: u64, synced: bool) {
    for (log, acknowledged) in promised.acknowledged.iter().filter(|(log, _)| !promised.cut.contains(log)) {
        let ranges = rig.ranges(*log);
        // Behind what was answered a torn block may have whole ones behind it, but not if nobody was answered before a sync.
        let torn = ranges.iter().skip(1).find(|range| range.first <= *acknowledged + 1 || synced);
        assert_eq!(torn, None, "seed {seed}: {log}: {ranges:?}, {acknowledged} were answered");
        assert!(!synced || rig.backup.end_now(*log, 1).certain, "seed {seed}: {log} is not certain");
        // Of one that nobody asks to sync the power may have taken the first blocks, none of which was answered.
        let last = ranges.first().filter(|range| range.first == 1).map_or(0, |range| range.last);
        assert_eq!(rig.read(*log, 1, last), Ok((1..=last).collect()), "seed {seed}: {log}");
        assert!(last >= *acknowledged, "seed {seed}: {log} has {last} blocks, {acknowledged} were answered as stored");
    }
    if let Some(epoch) = promised.fenced {
        for (log, end) in &promised.end {
            let acknowledged = promised.acknowledged.get(log).copied().unwrap_or(0);
            assert!(acknowledged <= *end, "seed {seed}: {log} ends at {end}, {acknowledged} were answered as stored");
            let last = rig.ranges(*log).first().map_or(0, |range| range.last);
            assert!(last >= *end, "seed {seed}: {log} has {last} blocks, and was said to end at {end}");
            let next = last + 1;
            let fenced = BlockStored { outcome: StoreOutcome::Fenced, block: epoch.into() };
            assert_eq!(
                rig.send(*log, next, 1, synced),
                Taken::Answered(fenced),
                "seed {seed}: the fence of {log} is gone"
            );
        }
    }
}

#[test]
fn what_was_answered_survives_anything_and_a_fence_holds() {
    let all: Vec<Promised> = (0..2_000).map(torment).collect();
    let count = |is: fn(&Promised) -> bool| all.iter().filter(|promised| is(promised)).count();
    let answered = count(|promised| !promised.acknowledged.is_empty());
    let fenced = count(|promised| promised.fenced.is_some() && !promised.end.is_empty());
    let cut = count(|promised| !promised.cut.is_empty());
    assert!(answered > 50 && fenced > 50 && cut > 50, "answered: {answered}, fenced: {fenced}, cut: {cut}");
}

#[test]
fn disk_space_is_reserved_as_blocks_come() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let large = BackupConfig { file_bytes: 32 << 20, ..config() };
    let clock = Arc::new(ManualClock::new(1_000_000));
    let (backup, _) = Backup::open(large, vec![disk], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    rig.store(LOG, 1, 1, false).expect("it is stored");
    assert_eq!(rig.backup.stats().file_bytes, 4 << 20);
    let mut block = 1;
    while rig.backup.stats().file_bytes == 4 << 20 {
        block += 1;
        rig.store(LOG, block, 1, false).expect("it is stored");
        assert!(block < 4_000, "they have more by now");
    }
    assert_eq!(rig.backup.stats().file_bytes, 8 << 20);
}

#[test]
fn much_at_a_time_goes_past_the_page_cache_and_reads_back_with_what_is_between() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder.path()).expect("a disk"));
    let large = BackupConfig { file_bytes: 32 << 20, queue_bytes_max: 4 << 20, ..config() };
    let open = |seed| {
        let clock = Arc::new(ManualClock::new(1_000_000));
        Backup::open(large.clone(), vec![disk.clone()], clock, Arc::new(SeededRandom::new(seed))).expect("open").0
    };
    let mut rig = Rig::over(open(1));
    let mut last = 0;
    // Each block takes a page at least. Neither write touches the pages of the other.
    for (count, direct_writes) in [(1, 0), (100, 1), (1, 1), (2, 1), (100, 2), (100, 3), (1, 3)] {
        for block in last + 1..=last + count {
            assert_eq!(rig.send(LOG, block, 1, false), Taken::Queued);
        }
        last += count;
        rig.write();
        assert_eq!(rig.answers.all.lock().expect("no panic")[&rig.token], Ok(stored(last)));
        assert_eq!(rig.backup.stats().direct_writes, direct_writes, "behind block {last}");
        assert_eq!(rig.read(LOG, 1, last), Ok((1..=last).collect()));
    }
    drop(rig);
    assert_eq!(Rig::over(open(2)).read(LOG, 1, last), Ok((1..=last).collect()));
}

#[test]
fn a_run_is_answered_before_the_blocks_of_the_next_one_are_written() {
    struct Noted(Mutex<Vec<(u64, u64)>>, FaultyDisk);
    impl StoreDone for Noted {
        fn stored(&self, token: u64, result: Result<BlockStored, BackupError>) {
            assert!(result.is_ok());
            self.0.lock().expect("no panic").push((token, self.1.counts().0));
        }
        fn room(&self) {}
    }
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let (backup, _) = open(&[Arc::new(faulty.clone()) as Arc<dyn Disk>], 1);
    let noted = Arc::new(Noted(Mutex::default(), faulty.clone()));
    let done = Arc::clone(&noted) as Arc<dyn StoreDone>;
    let store = |vlog, block| {
        let log = LogId { vlog, ..LOG };
        let (count, bytes) = chunks(log, block);
        assert_eq!(
            backup.store(&head(log, block, 1, false, count, &bytes), &bytes, &done, u64::from(vlog)),
            Taken::Queued
        );
    };
    (0..3).for_each(|vlog| store(vlog, 1));
    while backup.run_once(0) != Ran::Idle {}
    noted.0.lock().expect("no panic").clear();
    let writes = faulty.counts().0;
    (0..3).for_each(|vlog| store(vlog, 2));
    while backup.run_once(0) != Ran::Idle {}
    let noted = noted.0.lock().expect("no panic").clone();
    assert_eq!(noted, [(0, writes + 1), (1, writes + 2), (2, writes + 3)]);
}

/// A log to which nobody writes keeps its last file open for good.
#[test]
fn a_file_to_which_blocks_are_written_is_looked_through_as_well() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    let found = |rig: &Rig| {
        let mut scrubber = BackupScrubber::new(rig.backup.clone());
        std::iter::from_fn(|| scrubber.step()).map(|(_, damaged)| damaged).sum::<u64>()
    };
    (1..=2).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    let files = disk.list("replicas").expect("list");
    let files: Vec<&String> = files.iter().filter(|name| name.ends_with(".replica")).collect();
    assert_eq!((files.len(), found(&rig)), (1, 0));
    disk.flip_bit(&format!("replicas/{}", files[0]), 4096 + 200, 3).expect("there");
    assert_eq!((found(&rig), rig.ranges(LOG)), (1, vec![BlockRange { first: 2, last: 2 }]));
    assert_eq!((rig.store(LOG, 3, 1, true), found(&rig)), (Ok(stored(3)), 0));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 2, last: 3 }]);
}

/// The round of looks may be a week away.
#[test]
fn what_somebody_could_not_read_is_not_told_to_be_there_from_then_on() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    (1..=3).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    let files = disk.list("replicas").expect("list");
    let file = files.iter().find(|name| name.ends_with(".replica")).expect("a file");
    disk.flip_bit(&format!("replicas/{file}"), 4096 + 200, 3).expect("there");
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 3 }], "nobody knows");
    assert_eq!(rig.read(LOG, 2, 3), Ok(vec![2, 3]));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 3 }], "it was not read");
    assert_eq!(rig.read(LOG, 1, 3).expect_err("damaged").status, Status::SegmentUnreadable);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 2, last: 3 }]);
    assert_eq!(rig.read(LOG, 2, 3), Ok(vec![2, 3]));
}

/// A file has blocks of several views, and who knows of a loss in one copies nothing again of another.
#[test]
fn that_something_of_a_file_is_lost_hides_nothing_that_is_lost_later() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    (1..=4).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    let files = disk.list("replicas").expect("list");
    let file = files.iter().find(|name| name.ends_with(".replica")).expect("a file");
    disk.flip_bit(&format!("replicas/{file}"), 4096 + 200, 3).expect("there");
    assert_eq!(rig.read(LOG, 1, 4).expect_err("damaged").status, Status::SegmentUnreadable);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 2, last: 4 }]);
    disk.flip_bit(&format!("replicas/{file}"), 8192 + 200, 3).expect("there");
    assert_eq!(rig.read(LOG, 2, 4).expect_err("damaged").status, Status::SegmentUnreadable);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 3, last: 4 }]);
    // So it is with what a recovery asks for.
    disk.flip_bit(&format!("replicas/{file}"), 12288 + 200, 3).expect("there");
    let asked = LaneStates { log: LOG, from_block: 3, through_block: 3, streamlets: Vec::new() };
    assert_eq!(rig.backup.lane_states(&asked).expect_err("damaged").status, Status::SegmentUnreadable);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 4, last: 4 }]);
}

/// A backup that has no more files to open would have all of its copies made again, and could not give them to whoever needs them meanwhile.
#[test]
fn what_cannot_be_opened_for_want_of_files_is_left_to_the_next_round() {
    let faulty = Arc::new(FaultyDisk::new(Arc::new(MemoryDisk::new())));
    let disks = [faulty.clone() as Arc<dyn Disk>];
    let mut rig = Rig::over(open(&disks, 1).0);
    (1..=2).for_each(|block| assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block))));
    let read = |rig: &Rig| {
        let mut scrubber = BackupScrubber::new(rig.backup.clone());
        let read = std::iter::from_fn(|| scrubber.step());
        read.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    };
    let all = [BlockRange { first: 1, last: 2 }];
    // EMFILE.
    faulty.set_open_errno(Some(24));
    assert_eq!((read(&rig), rig.ranges(LOG)), ((0, 0), all.to_vec()));
    faulty.set_open_errno(None);
    let (bytes, damaged) = read(&rig);
    assert!(bytes > 0);
    assert_eq!((damaged, rig.ranges(LOG)), (0, all.to_vec()));
}

/// Nobody has asked for it yet.
#[test]
fn what_does_not_read_back_any_more_is_found_and_not_told_to_be_there() {
    let (disk, disks) = memory();
    let mut rig = Rig::over(open(&disks, 1).0);
    for block in 1..=60 {
        assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
    }
    let scrub = |rig: &Rig| {
        let mut scrubber = BackupScrubber::new(rig.backup.clone());
        std::iter::from_fn(|| scrubber.step()).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    };
    let (bytes, damaged) = scrub(&rig);
    assert!(bytes > 40 * 4096 && damaged == 0, "{bytes} {damaged}");
    let files: Vec<String> =
        disk.list("replicas").expect("list").into_iter().filter(|n| n.ends_with(".replica")).collect();
    // A block's chunks in the first file, and the header of one in the second.
    disk.flip_bit(&format!("replicas/{}", files[0]), 3 * 4096 + 200, 3).expect("there");
    disk.flip_bit(&format!("replicas/{}", files[1]), 2 * 4096 + 9, 3).expect("there");
    assert_eq!(scrub(&rig).1, 2);
    let ranges = rig.ranges(LOG);
    assert_eq!((ranges.len(), ranges[0].first, ranges[2].last), (3, 1, 60), "{ranges:?}");
    assert!(ranges.windows(2).all(|two| two[1].first == two[0].last + 2), "{ranges:?}");
    assert_eq!(scrub(&rig).1, 0, "it is known");
    // Whoever asks for one of them is told that it is damaged, and gets the others.
    let bad = ranges[0].last + 1;
    assert_eq!(rig.read(LOG, bad, 60).expect_err("damaged").status, Status::SegmentUnreadable);
    assert_eq!(rig.read(LOG, bad + 1, ranges[1].last), Ok((bad + 1..=ranges[1].last).collect()));
    // A file that is gone is gone with all that was in it.
    disk.remove(&format!("replicas/{}", files[1])).expect("there");
    assert!(scrub(&rig).1 > 3);
    assert_eq!(rig.ranges(LOG).last().expect("the rest").last, 60);
    // What was given back is nobody's.
    rig.backup.release(&ReleaseBlocks { log: LOG, through_block: u64::MAX });
    assert_eq!((scrub(&rig), rig.ranges(LOG)), ((0, 0), Vec::new()));
}

#[test]
fn blocks_that_are_read_keep_what_they_had_while_others_are_read_into_the_memory_of_those_that_are_done_with() {
    let (_disk, disks) = memory();
    let rig = Rig::over(open(&disks, 1).0);
    for block in 1..=8 {
        let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
        let chunk = large(block);
        assert_eq!(rig.backup.store(&head(LOG, block, 1, false, 1, &chunk), &chunk, &done, block), Taken::Queued);
        rig.write();
    }
    let read = |from_block, through_block, streamlet| {
        let streamlets = vec![StreamletRef { stream: StreamId(1), streamlet: StreamletId(streamlet) }];
        rig.backup
            .read_blocks(&ReadBlocks { log: LOG, from_block, through_block, streamlets, max_bytes: 1 << 20 })
            .expect("read")
    };
    let check = |read: &BlocksRead| {
        for (head, bytes) in &read.blocks {
            assert!(bytes[..] == large(head.block)[..], "block {} has another content", head.block);
            assert_eq!((head.chunk_count, head.chunks_checksum), (1, crc32c(bytes)));
        }
        read.blocks.len()
    };
    let first = read(1, 4, 0);
    let kept = rig.backup.stats().queued_bytes;
    let second = read(5, 8, 0);
    assert_eq!((check(&first), check(&second)), (4, 4));
    drop(first);
    assert!(rig.backup.stats().queued_bytes > kept + 600_000, "it is kept for the next ones");
    let third = read(2, 5, 0);
    assert_eq!((check(&second), check(&third)), (4, 4));
    assert_eq!((read(1, 8, 1).next_block, check(&read(1, 8, 1))), (9, 0), "of another streamlet there is nothing");
}
