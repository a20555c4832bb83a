//! How a backup treats its disks: full files that are synced behind the writer, space that is used again, which way much goes, and what
//! becomes of one that stands still.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_backup::{Backup, BackupConfig, BackupError, BackupService, BackupSession, Ran, StoreDone, Taken};
use kera_env::{
    Clock, DirectIo, Disk, DiskFile, FaultyDisk, ManualClock, MemoryDisk, OpenMode, ProcessorTimes, Processors,
    SeededRandom,
};
use kera_format::vlog::{BLOCK_HEADER_BYTES, pages};
use kera_format::vlog_replica::LogId;
use kera_protocol::{
    BlockRange, BlockStored, FenceNode, FrameHeader, LaneStates, ListReplicas, LogView, Message, Op, ReadBlocks,
    ReleaseBlocks, Status, StoreOutcome,
};
use kera_rpc::{Flow, Outbox, Session, SessionWaker};

use crate::common::*;

const BLOCKS: u64 = 200;

fn boots(disk: &dyn Fn() -> Arc<dyn Disk>, boot: u8) -> Rig {
    let config = BackupConfig { boot_id: Some([boot; 16]), ..config() };
    let clock = Arc::new(ManualClock::new(1_000_000));
    Rig::over(Backup::open(config, vec![disk()], clock, Arc::new(SeededRandom::new(boot.into()))).expect("open").0)
}

fn files(disk: &dyn Disk, suffix: &str) -> usize {
    disk.list("replicas").expect("a folder").iter().filter(|name| name.ends_with(suffix)).count()
}

#[test]
fn full_files_that_were_synced_behind_the_writer_survive_a_loss_of_power() {
    for seed in 0..40 {
        let disk = MemoryDisk::new();
        let open: &dyn Fn() -> Arc<dyn Disk> = &|| Arc::new(disk.clone());
        let mut rig = boots(open, 1);
        for block in 1..=BLOCKS {
            assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
        }
        let full = files(&disk, ".replica") - 1;
        assert!((4..16).contains(&full), "{full} files are full, and the writer need not have synced any");
        let synced = rig.backup.stats().syncs;
        while rig.backup.sync_full(0) {}
        assert_eq!(rig.backup.stats().syncs - synced, full as u64 - 1, "all but the last one");
        drop(rig);
        disk.crash(seed);
        let ranges = boots(open, 2).ranges(LOG);
        // Two files and a little are not on the disk for certain.
        let most = BLOCKS - 3 * BLOCKS / full as u64;
        assert!(ranges.first().is_some_and(|range| range.first == 1 && range.last >= most), "seed {seed}: {ranges:?}");
    }
}

/// The footer of a full file is on the disk, and its last block is not.
#[test]
fn a_footer_that_tells_of_more_than_the_power_has_left_is_believed_by_no_start() {
    let disk = MemoryDisk::new();
    let open: &dyn Fn() -> Arc<dyn Disk> = &|| Arc::new(disk.clone());
    let mut rig = boots(open, 1);
    for block in 1..=BLOCKS {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    drop(rig);
    let names = disk.list("replicas").expect("a folder");
    let first = names.iter().filter(|name| name.ends_with(".replica")).min().expect("a file");
    let file = disk.open(&format!("replicas/{first}"), OpenMode::ReadWrite, false).expect("there");
    let begins = |at: &u64| {
        let mut magic = [0; 4];
        file.read_at(*at, &mut magic).expect("read") == 4 && magic == *b"KVBL"
    };
    let pages = file.len().expect("a length") / 4096;
    let last = (1..pages).map(|page| page * 4096).rfind(begins).expect("blocks");
    file.write_at(last, &[0; 4096]).expect("written");
    let ranges = boots(open, 2).ranges(LOG);
    assert_eq!((ranges.len(), ranges[0].first, ranges[1].last), (2, 1, BLOCKS), "{ranges:?}");
    assert_eq!(ranges[0].last + 2, ranges[1].first, "one block is gone: {ranges:?}");
    assert_eq!(boots(open, 2).ranges(LOG), ranges);
}

#[test]
fn a_writer_that_nobody_helps_syncs_when_too_many_are_full() {
    let disk = MemoryDisk::new();
    let mut rig = boots(&|| Arc::new(disk.clone()), 1);
    let mut block = 0;
    while files(&disk, ".replica") < 18 {
        block += 1;
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    assert_eq!(rig.backup.stats().syncs, 1, "of 17 full files one too many");
}

#[test]
fn what_could_not_be_synced_behind_the_writer_is_left_to_it() {
    let disk = MemoryDisk::new();
    let faulty = FaultyDisk::new(Arc::new(disk.clone()));
    let open: &dyn Fn() -> Arc<dyn Disk> = &|| Arc::new(faulty.clone());
    let mut rig = boots(open, 1);
    for block in 1..=BLOCKS {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    let (before, failures) = (rig.backup.stats().syncs, rig.backup.stats().failures);
    faulty.fail_sync(2);
    assert!(rig.backup.sync_full(0));
    assert!(!rig.backup.sync_full(0), "it failed");
    assert!(!rig.backup.sync_full(0), "and is not tried again here, where it would look as if it were well");
    assert_eq!((rig.backup.stats().syncs - before, rig.backup.stats().failures - failures), (1, 1));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: BLOCKS }], "the disk has all of it");
    // The disk is left alone for a while.
    assert!(matches!(rig.send(LOG, BLOCKS + 1, 1, false), Taken::Refused(error) if error.status == Status::DiskFailed));
}

/// The names of all files, the oldest first.
fn names(disk: &dyn Disk) -> Vec<String> {
    let mut names = disk.list("replicas").expect("a folder");
    names.retain(|name| name.ends_with(".replica"));
    names.sort();
    names.into_iter().map(|name| format!("replicas/{name}")).collect()
}

/// What a sync that fails has not written it tells once; the next one of the same file works, and the blocks are not there.
#[test]
fn what_a_sync_that_failed_has_not_written_is_not_told() {
    for behind_the_writer in [true, false] {
        let disk = MemoryDisk::new();
        let (faulty, clock) = (FaultyDisk::new(Arc::new(disk.clone())), Arc::new(ManualClock::new(1_000_000)));
        let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(faulty.clone())];
        let random = Arc::new(SeededRandom::new(1));
        let mut rig = Rig::over(Backup::open(config(), disks, clock.clone(), random).expect("open").0);
        let mut block = 0;
        while files(&disk, ".replica") < 17 {
            block += 1;
            assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
        }
        disk.flip_bit(&names(&disk)[0], 3 * 4096 + 200, 3).expect("there");
        let missing = |rig: &Rig| match rig.ranges(LOG)[..] {
            [first, second] => (first.last + 1..second.first).collect::<Vec<u64>>(),
            _ => Vec::new(),
        };
        assert_eq!(missing(&rig), [0; 0]);
        faulty.fail_sync(1);
        if behind_the_writer {
            assert!(!rig.backup.sync_full(0));
        } else {
            while rig.store(LOG, block + 1, 1, false).is_ok() {
                block += 1;
            }
        }
        assert_eq!(missing(&rig), [3], "it is read past the page cache at once");
        clock.advance_ms(1_000);
        let syncs = rig.backup.stats().syncs;
        while files(&disk, ".replica") < 20 {
            block += 1;
            assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)), "the writer goes on");
        }
        let full = files(&disk, ".replica") as u64 - 1;
        assert_eq!(rig.backup.stats().syncs - syncs, full - 16 - 1, "it is not asked to sync that one again");
        assert_eq!(missing(&rig), [3]);
    }
}

/// The blocks before it were answered without a sync: the next one, of another file, would count for them.
#[test]
fn what_was_answered_in_front_of_a_sync_that_failed_is_not_told_if_the_disk_does_not_have_it() {
    let (disk, faulty, clock, start) = one_disk();
    let mut rig = start(1);
    for block in [1, 2] {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    disk.flip_bit(&names(&disk)[0], 2 * 4096 + 200, 3).expect("there");
    faulty.fail_sync(1);
    assert!(rig.store(LOG, 3, 1, true).is_err());
    clock.advance_ms(1_000);
    assert_eq!(rig.store(LOG, 3, 1, true), Ok(stored(3)));
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 1, last: 1 }, BlockRange { first: 3, last: 3 }]);
}

/// Reading takes long, and those that were synced would be read in vain.
#[test]
fn what_a_sync_that_failed_was_to_cover_alone_is_read_and_holds_up_nobody() {
    let (disk, clock) = (MemoryDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let faulty = FaultyDisk::new(Arc::new(disk.clone()));
    let slow = SlowDisk::new(faulty.clone(), &clock);
    let reads = slow.reads.clone();
    let (backup, _) =
        Backup::open(config(), vec![Arc::new(slow)], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    let last = fill(&mut rig, LOG, 0, 4);
    // All but the third one, which is full, and the last one.
    while rig.backup.sync_full(0) {}
    for (file, page) in [(0, 3), (2, 2)] {
        disk.flip_bit(&names(&disk)[file], page * 4096 + 200, 3).expect("there");
    }
    assert_eq!(rig.send(LOG, last, 1, true), Taken::Queued, "it is there, and to be synced now");
    faulty.fail_sync(1);
    reads.set(true);
    let backup = Arc::clone(&rig.backup);
    let writer = std::thread::spawn(move || backup.run_once(0));
    reads.until_somebody_waits();
    let (backup, (done, is_done)) = (Arc::clone(&rig.backup), mpsc::channel());
    let other = std::thread::spawn(move || done.send(backup.sync_full(0)));
    assert_eq!(is_done.recv_timeout(Duration::from_secs(120)), Ok(false), "it waits for the writer");
    reads.set(false);
    assert_eq!(writer.join().expect("no panic"), Ran::Answered(1));
    other.join().expect("no panic").expect("somebody waited");
    assert!(rig.answers.all.lock().expect("no panic")[&rig.token].is_err());
    let ranges = rig.ranges(LOG);
    assert_eq!((ranges.len(), ranges[0].first, ranges[0].last > last / 2), (2, 1, true), "{ranges:?}");
}

fn release(rig: &Rig, log: LogId, through: u64) {
    rig.backup.release(&ReleaseBlocks { log, through_block: through });
}

#[test]
fn space_is_used_again_and_gives_way_when_the_disk_gets_short() {
    let disk = MemoryDisk::with_capacity(4 << 20);
    let config = BackupConfig { spares: 1000, ..config() };
    let clock = Arc::new(ManualClock::new(1_000_000));
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(disk.clone())];
    let (backup, _) = Backup::open(config, disks, clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    let mut block = 0;
    while disk.used_bytes() < 2 << 20 {
        block += 1;
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    release(&rig, LOG, block);
    // With so many four times as much is free.
    let spares = files(&disk, ".spare");
    assert!((11..=12).contains(&spares), "{spares} of 64 KiB, on a disk of 4 MiB");
    let (other, mut last) = (LogId { vlog: 1, ..LOG }, 0);
    rig.store(other, 1, 1, false).expect("it fits");
    assert_eq!(files(&disk, ".spare"), spares - 1, "one is used again");
    loop {
        match rig.store(other, last + 1, 1, false) {
            Ok(_) => last += 1,
            Err(error) => break assert_eq!(error.status, Status::DiskFull, "{error}"),
        }
        assert!(disk.used_bytes() <= 4 << 20);
    }
    assert_eq!(files(&disk, ".spare"), 0, "nothing is kept that would have been of use");
    assert!(disk.used_bytes() > (4 << 20) - (128 << 10));
    assert_eq!(rig.read(other, 1, last), Ok((1..=last).collect()));
}

#[test]
fn space_that_is_to_be_used_again_and_cannot_be_opened_is_kept_for_later() {
    let disk = MemoryDisk::new();
    let (faulty, clock) = (FaultyDisk::new(Arc::new(disk.clone())), Arc::new(ManualClock::new(1_000_000)));
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(faulty.clone())];
    let random = Arc::new(SeededRandom::new(1));
    let mut rig = Rig::over(Backup::open(config(), disks, clock.clone(), random).expect("open").0);
    for block in 1..=BLOCKS {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    release(&rig, LOG, BLOCKS);
    let before = (files(&disk, ".spare"), files(&disk, ".replica"));
    assert_eq!(before.0, 2);
    let other = LogId { vlog: 1, ..LOG };
    // Too many files are open.
    faulty.set_open_errno(Some(24));
    for _ in 0..3 {
        clock.advance_ms(1_000);
        assert!(rig.store(other, 1, 1, false).is_err());
        assert_eq!((files(&disk, ".spare"), files(&disk, ".replica")), before);
    }
    faulty.set_open_errno(None);
    clock.advance_ms(1_000);
    assert_eq!(rig.store(other, 1, 1, false), Ok(stored(1)));
    assert_eq!((files(&disk, ".spare"), files(&disk, ".replica")), (before.0 - 1, before.1 + 1));
}

#[test]
fn space_that_nobody_uses_again_is_given_back() {
    let disk = MemoryDisk::new();
    let clock = Arc::new(ManualClock::new(1_000_000));
    let (config, disks) = (BackupConfig { spares: 1000, ..config() }, vec![Arc::new(disk.clone()) as Arc<dyn Disk>]);
    let (backup, _) = Backup::open(config, disks, clock.clone(), Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    for block in 1..=BLOCKS {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    release(&rig, LOG, BLOCKS);
    let kept = files(&disk, ".spare");
    assert!(kept > 3, "{kept}");
    // In each ten minutes from now on two are used, by logs of their own.
    let mut used = 0;
    let mut ten_minutes = |rig: &mut Rig| {
        for _ in 0..2 {
            used += 1;
            rig.store(LogId { vlog: used, ..LOG }, 1, 1, false).expect("stored");
        }
        clock.advance_us(601_000_000);
    };
    ten_minutes(&mut rig);
    ten_minutes(&mut rig);
    assert_eq!(files(&disk, ".spare"), kept - 4, "there were none when it began, so all of them have just come");
    ten_minutes(&mut rig);
    assert_eq!(files(&disk, ".spare"), 0, "and then two are enough");
}

/// While it is shut writes wait in front of it, as those to a disk that does not answer do.
#[derive(Debug, Default)]
struct Gate {
    /// Whether it is shut, and how many wait.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().expect("no panic").0 = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.0).expect("no panic");
        state.1 -= 1;
    }

    fn until_somebody_waits(&self) {
        drop(self.changed.wait_while(self.state.lock().expect("no panic"), |state| state.1 == 0).expect("no panic"));
    }
}

/// A disk that takes its time for what goes past the page cache, and on whose clock that is seen; or none at all.
#[derive(Debug)]
struct SlowDisk {
    disk: Arc<dyn Disk>,
    clock: Arc<ManualClock>,
    gate: Arc<Gate>,
    /// In front of syncs.
    syncs: Arc<Gate>,
    /// In front of reads.
    reads: Arc<Gate>,
}

impl SlowDisk {
    fn new(disk: impl Disk + 'static, clock: &Arc<ManualClock>) -> SlowDisk {
        let (gate, syncs, reads) = (Arc::default(), Arc::default(), Arc::default());
        SlowDisk { disk: Arc::new(disk), clock: clock.clone(), gate, syncs, reads }
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn DiskFile>,
    clock: Arc<ManualClock>,
    gate: Arc<Gate>,
    syncs: Arc<Gate>,
    reads: Arc<Gate>,
    us_per_mib: u64,
}

impl Disk for SlowDisk {
    fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
        let us_per_mib = if direct { 5_000 } else { 500 };
        let (clock, gate, syncs, reads) =
            (self.clock.clone(), self.gate.clone(), self.syncs.clone(), self.reads.clone());
        Ok(Arc::new(SlowFile { file: self.disk.open(path, mode, direct)?, clock, gate, syncs, reads, us_per_mib }))
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn root(&self) -> &Path {
        self.disk.root()
    }
    fn direct_io(&self) -> DirectIo {
        self.disk.direct_io()
    }
}

impl DiskFile for SlowFile {
    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.gate.pass();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.clock.advance_us((bytes as u64 * self.us_per_mib) >> 20);
        self.file.write_vectored_at(offset, parts)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.reads.pass();
        self.file.read_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.syncs.pass();
        self.file.sync_data()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.allocate(offset, bytes)
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.punch_hole(offset, bytes)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

#[test]
fn a_disk_that_stands_still_takes_no_more_logs_and_holds_up_nobody_who_looks() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let slow = SlowDisk::new(MemoryDisk::new(), &clock);
    let gate = slow.gate.clone();
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(slow), Arc::new(MemoryDisk::new())];
    let (backup, _) = Backup::open(config(), disks, clock.clone(), Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    let ask = |rig: &Rig, log: LogId| {
        let done = Arc::clone(&rig.answers) as Arc<dyn StoreDone>;
        rig.backup.store(&head(log, 1 << 63 | 5, 1, true, 0, &[]), &[], &done, 99)
    };
    let next = |block| Taken::Answered(BlockStored { outcome: StoreOutcome::Next, block });
    assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)));
    gate.set(true);
    assert_eq!(rig.send(LOG, 2, 1, false), Taken::Queued);
    let backup = Arc::clone(&rig.backup);
    let writer = std::thread::spawn(move || backup.run_once(0));
    gate.until_somebody_waits();
    assert_eq!(ask(&rig, LOG), next(3), "a write that has just begun is nothing");
    clock.advance_us(600_000);
    let Taken::Refused(error) = ask(&rig, LOG) else { panic!("it would be chosen") };
    assert_eq!(error.status, Status::DiskFailed);
    assert!(error.reason.contains("600 ms so far"), "{error}");
    // Who looks waits for no disk, and another log goes to the other one.
    let stats = rig.backup.stats();
    assert_eq!((stats.blocks, stats.logs, rig.backup.log_bytes().len()), (1, 1, 1));
    let other = LogId { vlog: 1, ..LOG };
    assert_eq!(ask(&rig, other), next(1));
    assert_eq!(rig.send(other, 1, 1, false), Taken::Queued);
    assert_eq!(rig.backup.run_once(1), Ran::Answered(1));
    // It goes on: nothing that was taken is lost, and it counts as well again.
    gate.set(false);
    assert_eq!(writer.join().expect("no panic"), Ran::Answered(1));
    assert_eq!(ask(&rig, LOG), next(3));
    assert_eq!(rig.read(LOG, 1, 2), Ok(vec![1, 2]));
    assert_eq!(rig.backup.stats().blocks, 3);
}

/// What has been answered since, by operations.
fn answers(out: &mut Outbox) -> Vec<u16> {
    let (bytes, mut ops, mut at) = (std::mem::replace(out, Outbox::new(1 << 20)).to_vec(), Vec::new(), 0);
    while at < bytes.len() {
        let header = FrameHeader::parse(&bytes[at..], 1 << 20).expect("a frame");
        assert_eq!(header.status, 0, "operation {}", header.op);
        ops.push(header.op);
        at += header.frame_bytes as usize;
    }
    ops
}

fn serves(service: &Arc<BackupService>) -> Vec<JoinHandle<()>> {
    let thread = |thread| {
        let service = service.clone();
        std::thread::spawn(move || service.run(thread))
    };
    service.threads().into_iter().map(thread).collect()
}

/// A request in a version of its operation.
fn request<M: Message>(version: u8, message: &M) -> (FrameHeader, Vec<u8>) {
    let (mut body, op) = (Vec::new(), M::OP as u16);
    message.encode(version, &mut body);
    (FrameHeader { op, version, ..FrameHeader::default() }, body)
}

fn ask<M: Message>(session: &mut BackupSession, message: &M, out: &mut Outbox) {
    let (header, body) = request(1, message);
    assert_eq!(session.on_frame(&header, &body, out), Flow::Done);
}

/// Operations that are answered until there are so many, or nothing more comes for long. In order.
fn until(session: &mut BackupSession, waker: &SessionWaker, out: &mut Outbox, count: usize) -> Vec<u16> {
    let (mut answered, since) = (Vec::new(), Instant::now());
    while answered.len() < count && since.elapsed() < Duration::from_secs(120) {
        if waker.take() {
            session.on_wake(out);
            answered.extend(answers(out));
        }
        std::thread::yield_now();
    }
    answered.sort_unstable();
    answered
}

/// The status of the next answer.
fn next_status(session: &mut BackupSession, waker: &SessionWaker, out: &mut Outbox) -> u16 {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(120) {
        if waker.take() {
            session.on_wake(out);
            let bytes = std::mem::replace(out, Outbox::new(1 << 20)).to_vec();
            if !bytes.is_empty() {
                return FrameHeader::parse(&bytes, 1 << 20).expect("a frame").status;
            }
        }
        std::thread::yield_now();
    }
    panic!("nothing is answered")
}

/// For an owner of a version before that is the last word: while a cluster is upgraded it took nothing over of which newer backups have so much to say.
#[test]
fn who_cannot_ask_for_less_is_told_all_that_lanes_have() {
    let small = BackupConfig { states_bytes_max: 4096, ..config() };
    let (disk, clock) = (Arc::new(MemoryDisk::new()) as Arc<dyn Disk>, Arc::new(ManualClock::new(1_000_000)));
    let (backup, _) = Backup::open(small, vec![disk], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup.clone());
    for block in 1..=100 {
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)));
    }
    let service = BackupService::new(backup);
    let threads = serves(&service);
    let waker = SessionWaker::detached();
    let (mut session, mut out) = (BackupSession::new(service.clone(), waker.clone()), Outbox::new(1 << 20));
    let asked = LaneStates { log: LOG, from_block: 1, through_block: 100, streamlets: Vec::new() };
    for (version, status) in [(1, 0), (2, 0), (3, Status::LimitReached as u16)] {
        let (header, body) = request(version, &asked);
        assert_eq!(session.on_frame(&header, &body, &mut out), Flow::Done);
        assert_eq!(next_status(&mut session, &waker, &mut out), status, "version {version}");
        let mut answer = Vec::new();
        service.answer(&header, &body, &mut answer);
        let answer = FrameHeader::parse(&answer, 1 << 20).expect("a frame");
        assert_eq!(answer.status, status, "version {version}");
    }
    service.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn ops<const N: usize>(ops: [Op; N]) -> Vec<u16> {
    let mut ops = ops.map(|op| op as u16).to_vec();
    ops.sort_unstable();
    ops
}

/// Two owners give back what is on it: each of them waits for the disk. Nobody does who fences, for that is on the first one.
#[test]
fn what_waits_for_a_disk_that_stands_still_holds_up_nobody_who_asks_for_what_is_on_another_one() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let slow = SlowDisk::new(MemoryDisk::new(), &clock);
    let gate = slow.gate.clone();
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(MemoryDisk::new()), Arc::new(slow)];
    let (backup, _) = Backup::open(config(), disks, clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup.clone());
    let (other, beside, filling) = (LogId { node: 2, ..LOG }, LogId { node: 3, ..LOG }, LogId { node: 4, ..LOG });
    assert_eq!(rig.store(other, 1, 1, false), Ok(stored(1)), "at the first disk");
    let mut last = 0;
    while rig.backup.stats().files < 4 {
        last += 1;
        assert_eq!(rig.store(LOG, last, 1, false), Ok(stored(last)));
    }
    for log in [filling, beside] {
        assert_eq!(rig.store(log, 1, 1, false), Ok(stored(1)), "at the first disk, and at that one");
    }
    let service = BackupService::new(backup.clone());
    let mut threads = serves(&service);
    gate.set(true);
    assert_eq!(rig.send(LOG, last + 1, 1, false), Taken::Queued);
    threads.push(std::thread::spawn(move || assert_eq!(backup.run_once(1), Ran::Answered(1))));
    gate.until_somebody_waits();
    let waker = SessionWaker::detached();
    let (mut session, mut out) = (BackupSession::new(service.clone(), waker.clone()), Outbox::new(1 << 20));
    for through_block in [last - 2, last - 1] {
        ask(&mut session, &ReleaseBlocks { log: LOG, through_block }, &mut out);
    }
    ask(&mut session, &FenceNode { node: 9, epoch: 1, logs: Vec::new() }, &mut out);
    // Also for what is on that one: what is known about an open file is the writer's, and what was written can be read.
    for log in [beside, other] {
        let asked = LaneStates { log, from_block: 1, through_block: 1, streamlets: Vec::new() };
        ask(&mut session, &asked, &mut out);
    }
    let asked = ReadBlocks { log: other, from_block: 1, through_block: 1, streamlets: Vec::new(), max_bytes: 1 << 20 };
    ask(&mut session, &asked, &mut out);
    let answered = until(&mut session, &waker, &mut out, 4);
    gate.set(false);
    assert_eq!(answered, ops([Op::LaneStates, Op::LaneStates, Op::ReadBlocks, Op::FenceNode]));
    service.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    session.on_wake(&mut out);
    assert_eq!(answers(&mut out).len(), 2, "and all others when it answers");
}

/// Recoveries read what is on it, alone and with what is on the other one.
#[test]
fn who_reads_what_is_on_a_disk_that_stands_still_holds_up_nobody_who_reads_from_another_one() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let faulty = [0, 1].map(|_| FaultyDisk::new(Arc::new(MemoryDisk::new())));
    let disks = faulty.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
    let (backup, _) = Backup::open(config(), disks, clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup.clone());
    let (beside, of_both) = (LogId { node: 2, ..LOG }, LogId { node: 3, ..LOG });
    for log in [LOG, beside, of_both] {
        assert_eq!(rig.store(log, 1, 1, false), Ok(stored(1)), "at the first disk, at the other one, and at the first");
    }
    faulty[0].fail_write(1);
    assert!(rig.store(of_both, 2, 1, false).is_err());
    for block in [2, 3] {
        assert_eq!(rig.store(of_both, block, 1, false), Ok(stored(block)), "at the other one");
    }
    let service = BackupService::new(backup);
    let threads = serves(&service);
    let waker = SessionWaker::detached();
    let (mut session, mut out) = (BackupSession::new(service.clone(), waker.clone()), Outbox::new(1 << 20));
    let read = |log, through_block| ReadBlocks {
        log,
        from_block: 1,
        through_block,
        streamlets: Vec::new(),
        max_bytes: 1 << 20,
    };
    faulty[1].set_stuck(true);
    let states = |log, through_block| LaneStates { log, from_block: 1, through_block, streamlets: Vec::new() };
    for _ in 0..2 {
        ask(&mut session, &read(beside, 1), &mut out);
        ask(&mut session, &states(of_both, 2), &mut out);
    }
    faulty[1].wait_until_stuck();
    ask(&mut session, &read(LOG, 1), &mut out);
    ask(&mut session, &states(LOG, 1), &mut out);
    ask(&mut session, &read(of_both, 2), &mut out);
    ask(&mut session, &ListReplicas { after: None, limit: 0 }, &mut out);
    let answered = until(&mut session, &waker, &mut out, 4);
    faulty[1].set_stuck(false);
    assert_eq!(
        answered,
        ops([Op::ReadBlocks, Op::LaneStates, Op::ReadBlocks, Op::ListReplicas]),
        "one of them in part"
    );
    let rest = ops([Op::ReadBlocks, Op::LaneStates, Op::ReadBlocks, Op::LaneStates]);
    assert_eq!(until(&mut session, &waker, &mut out, 4), rest, "when it answers");
    service.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[derive(Debug)]
struct HalfIdle(AtomicU64);

impl Processors for HalfIdle {
    fn times(&self) -> Option<ProcessorTimes> {
        let idle = self.0.fetch_add(1, Ordering::Relaxed);
        Some(ProcessorTimes { total: 2 * idle, idle })
    }
}

#[test]
fn much_goes_through_the_page_cache_where_a_slow_disk_is_all_that_is_waited_for() {
    for knows in [false, true] {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let disk = Arc::new(SlowDisk::new(MemoryDisk::new(), &clock));
        let processors = knows.then(|| Arc::new(HalfIdle(AtomicU64::new(0))) as Arc<dyn Processors>);
        let large = BackupConfig { file_bytes: 32 << 20, queue_bytes_max: 4 << 20, processors, ..config() };
        let disks: Vec<Arc<dyn Disk>> = vec![disk.clone()];
        let (backup, _) = Backup::open(large, disks, clock.clone(), Arc::new(SeededRandom::new(1))).expect("open");
        let mut rig = Rig::over(backup);
        let (mut last, began_us) = (0, clock.monotonic_us());
        for _ in 0..400 {
            for block in last + 1..=last + 100 {
                assert_eq!(rig.send(LOG, block, 1, false), Taken::Queued);
            }
            last += 100;
            while rig.backup.run_once(0) != Ran::Idle {}
            assert_eq!(rig.answers.all.lock().expect("no panic")[&rig.token], Ok(stored(last)));
        }
        let (stats, for_us) = (rig.backup.stats(), clock.monotonic_us() - began_us);
        assert!(for_us > 150_000, "{for_us}: long enough to see what is slow");
        assert_eq!(stats.direct_writes == 400, !knows, "{} of 400 went past it", stats.direct_writes);
        assert!(stats.direct_writes > 20, "and all did until that was known");
        assert_eq!(rig.read(LOG, 1, last), Ok((1..=last).collect()));
    }
}

/// A file is left behind a write that was torn, with what came of it on the disk. Then the power takes the block in front of that, and all of the next file.
#[test]
fn a_block_in_front_of_what_a_torn_write_left_is_not_taken_for_given_back() {
    let mut cut = 0;
    for seed in 0..1_000 {
        let disk = MemoryDisk::new();
        let faulty = FaultyDisk::new(Arc::new(disk.clone()));
        let open: &dyn Fn() -> Arc<dyn Disk> = &|| Arc::new(faulty.clone());
        let config = BackupConfig { boot_id: Some([1; 16]), ..config() };
        let clock = Arc::new(ManualClock::new(1_000_000));
        let opened = Backup::open(config, vec![open()], clock.clone(), Arc::new(SeededRandom::new(seed)));
        let mut rig = Rig::over(opened.expect("open").0);
        assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)));
        faulty.tear_write(1);
        assert!(rig.store(LOG, 2, 1, false).is_err());
        clock.advance_ms(1_000);
        assert_eq!(rig.store(LOG, 2, 1, false), Ok(stored(2)));
        assert_eq!(rig.store(LOG, 3, 1, false), Ok(stored(3)));
        drop(rig);
        disk.crash(seed);
        let rig = boots(open, 2);
        let read = rig.read(LOG, 1, 3).unwrap_or_default();
        assert!(read.iter().copied().eq(1..=read.len() as u64), "seed {seed}: {read:?} of 1, 2 and 3");
        cut += u32::from(read.len() < 3);
    }
    assert!(cut > 300, "the power took something in {cut} of 1,000");
}

/// It was replaced again and again, and came back each time: it has what it missed meanwhile nowhere.
#[test]
fn a_log_that_comes_back_in_many_views_keeps_one_file_open_and_only_what_is_asked_for() {
    const VIEWS: u64 = 200;
    let clock = Arc::new(ManualClock::new(1_000_000));
    let disk = MemoryDisk::new();
    let slow = SlowDisk::new(disk.clone(), &clock);
    let gate = slow.gate.clone();
    let handles = || Arc::strong_count(&gate) - 2;
    let (backup, _) =
        Backup::open(config(), vec![Arc::new(slow)], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    for view in 1..=VIEWS {
        let first = 10 * view;
        assert_eq!(rig.store(LOG, first, first, false), Ok(stored(first)));
        assert_eq!(rig.store(LOG, first + 1, first, false), Ok(stored(first + 1)));
        while rig.backup.sync_full(0) {}
    }
    assert_eq!(handles(), 1);
    // A header, two blocks, a footer and its mark, of a page each; the last one has its space reserved.
    let (most, told) = ((VIEWS - 1) * 5 * 4096 + config().file_bytes, rig.backup.stats().file_bytes);
    assert!(disk.used_bytes() <= told && told <= most, "{} bytes, and {told} are told", disk.used_bytes());
    // What is closed is there, and goes on if something comes late.
    assert_eq!(rig.store(LOG, 12, 10, false), Ok(stored(12)));
    assert_eq!(rig.read(LOG, 10, 12), Ok(vec![10, 11, 12]));
    assert_eq!(rig.ranges(LOG).len() as u64, VIEWS);
    // Of a row its last file stays for as long as somebody may ask for one of its views.
    release(&rig, LOG, 10 * VIEWS);
    assert_eq!((rig.backup.stats().files, rig.ranges(LOG).len() as u64), (VIEWS, VIEWS));
    let (newest, needed) = (10 * VIEWS, BlockRange { first: 501, last: 519 });
    rig.backup.forget_rows(LOG, &[needed, BlockRange { first: newest, last: u64::MAX }]);
    let left = [500, 510, newest].map(|first| BlockRange { first, last: first + 1 });
    assert_eq!((&rig.ranges(LOG)[..], rig.backup.stats().files), (&left[..], 3));
    assert_eq!(rig.store(LOG, newest + 2, newest, false), Ok(stored(newest + 2)));
    rig.backup.fence(LOG.node, LOG.epoch, &[]).expect("fenced");
    assert_eq!(rig.backup.forget_rows(LOG, &[]).files, 0, "others take over from it");
}

/// The power may have taken what was behind them.
#[test]
fn rows_that_may_have_gone_on_are_not_forgotten() {
    let disk = MemoryDisk::new();
    let open: &dyn Fn() -> Arc<dyn Disk> = &|| Arc::new(disk.clone());
    let mut rig = boots(open, 1);
    for first in [10, 20] {
        assert_eq!(rig.store(LOG, first, first, false), Ok(stored(first)));
    }
    drop(rig);
    let rig = boots(open, 2);
    let newest = [BlockRange { first: 30, last: u64::MAX }];
    assert_eq!(rig.backup.forget_rows(LOG, &newest).files, 0);
    assert!(!rig.backup.end_now(LOG, 30).certain, "block 30 may have been there");
}

/// With durability `process`: nobody has synced them.
#[test]
fn what_was_given_back_is_not_open_any_more() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let slow = SlowDisk::new(MemoryDisk::new(), &clock);
    let gate = slow.gate.clone();
    let handles = || Arc::strong_count(&gate) - 2;
    let (backup, _) =
        Backup::open(config(), vec![Arc::new(slow)], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    let mut last = 0;
    while rig.backup.stats().files < 4 {
        last += 1;
        assert_eq!(rig.store(LOG, last, 1, false), Ok(stored(last)));
    }
    assert_eq!(handles(), 4, "three are full and not synced");
    release(&rig, LOG, last);
    assert_eq!(handles(), 1, "the last one takes more");
    release(&rig, LOG, u64::MAX);
    assert_eq!(handles(), 0);
}

/// A backup with two disks, of which the first is about to fail, and the log's first block on that one.
struct Failing {
    rig: Rig,
    faulty: FaultyDisk,
    /// In front of writes to the first disk.
    gate: Arc<Gate>,
    /// In front of syncs of the other one.
    syncs: Arc<Gate>,
}

fn failing(synced: bool) -> Failing {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let faulty = FaultyDisk::new(Arc::new(MemoryDisk::new()));
    let (first, other) = (SlowDisk::new(faulty.clone(), &clock), SlowDisk::new(MemoryDisk::new(), &clock));
    let (gate, syncs) = (first.gate.clone(), other.syncs.clone());
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(first), Arc::new(other)];
    let (backup, _) = Backup::open(config(), disks, clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    assert_eq!(rig.store(LOG, 1, 1, synced), Ok(stored(1)));
    Failing { rig, faulty, gate, syncs }
}

impl Failing {
    /// Block 2 is not written, and while it is tried another one is sent. The token of that one.
    fn fails(&mut self, meanwhile: u64, synced: bool) -> u64 {
        self.gate.set(true);
        assert_eq!(self.rig.send(LOG, 2, 1, synced), Taken::Queued);
        let (token, backup) = (self.rig.token, Arc::clone(&self.rig.backup));
        let writer = std::thread::spawn(move || backup.run_once(0));
        self.gate.until_somebody_waits();
        assert_eq!(self.rig.send(LOG, meanwhile, 1, synced), Taken::Queued);
        self.faulty.fail_write(1);
        self.gate.set(false);
        assert_eq!(writer.join().expect("no panic"), Ran::Answered(1));
        assert!(self.answer(token).expect("it was tried").is_err());
        self.rig.token
    }

    fn answer(&self, token: u64) -> Option<Result<BlockStored, BackupError>> {
        self.rig.answers.all.lock().expect("no panic").get(&token).cloned()
    }
}

#[test]
fn what_was_queued_behind_a_write_that_failed_is_not_written_when_its_log_goes_on_at_another_disk() {
    for synced in [false, true] {
        let mut failing = failing(synced);
        let behind = failing.fails(3, synced);
        let rig = &mut failing.rig;
        assert_eq!(rig.send(LOG, 2, 1, synced), Taken::Queued);
        assert_eq!(rig.backup.run_once(1), Ran::Answered(1), "it goes on at the other one");
        rig.backup.run_once(0);
        for block in 3..=9 {
            assert_eq!(rig.store(LOG, block, 1, synced), Ok(stored(block)));
        }
        assert_eq!(rig.read(LOG, 1, 9), Ok((1..=9).collect()));
        assert!(failing.answer(behind).expect("it was answered").is_err(), "whoever sent it sends it again");
    }
}

#[test]
fn who_waits_at_a_disk_for_a_block_that_went_to_another_one_is_not_answered_before_that_is_synced() {
    let mut failing = failing(true);
    let waits = failing.fails(2, true);
    let rig = &mut failing.rig;
    assert_eq!(rig.send(LOG, 2, 1, true), Taken::Queued);
    let (again, backup) = (rig.token, Arc::clone(&rig.backup));
    failing.syncs.set(true);
    let writer = std::thread::spawn(move || backup.run_once(1));
    failing.syncs.until_somebody_waits();
    failing.rig.backup.run_once(0);
    assert!(failing.answer(waits).is_none_or(|answer| answer.is_err()), "it is written and not synced");
    assert_eq!(failing.answer(again), None);
    failing.syncs.set(false);
    assert_eq!(writer.join().expect("no panic"), Ran::Answered(1));
    assert_eq!(failing.answer(again), Some(Ok(stored(2))));
}

#[test]
fn what_waits_for_a_writer_and_what_it_is_with_take_no_more_than_they_may_together() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let slow = SlowDisk::new(MemoryDisk::new(), &clock);
    let (gate, config) = (slow.gate.clone(), BackupConfig { file_bytes: 8 << 20, ..config() });
    let most = config.queue_bytes_max;
    let (backup, _) = Backup::open(config, vec![Arc::new(slow)], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)));
    let (mut next, mut held) = (2, 0);
    let mut fill = |rig: &mut Rig| {
        while rig.send(LOG, next, 1, false) == Taken::Queued {
            held += pages(BLOCK_HEADER_BYTES + chunks(LOG, next).1.len());
            next += 1;
        }
        (next, held)
    };
    fill(&mut rig);
    gate.set(true);
    let backup = Arc::clone(&rig.backup);
    let writer = std::thread::spawn(move || backup.run_once(0));
    gate.until_somebody_waits();
    let (next, held) = fill(&mut rig);
    assert!((most / 2..=most).contains(&held), "{held} bytes");
    gate.set(false);
    writer.join().expect("no panic");
    rig.write();
    assert_eq!(rig.store(LOG, next, 1, false), Ok(stored(next)));
}

/// A disk behind a page cache. What a sync fails to write is there for whoever reads through the cache, and counts as written; the disk does not have it.
#[derive(Debug, Clone)]
struct CachedDisk {
    shown: MemoryDisk,
    has: MemoryDisk,
    cache: Arc<Mutex<Cache>>,
}

#[derive(Debug, Default)]
struct Cache {
    /// Places of pages that have yet to be written, by file.
    dirty: BTreeMap<String, BTreeSet<u64>>,
    /// The next sync of a file fails.
    fails_to_sync: bool,
    /// The next sync of the folder fails.
    fails_to_sync_names: bool,
    /// No file can be cut.
    fails_to_cut: bool,
    /// There is no way past it.
    is_all: bool,
}

impl CachedDisk {
    fn new() -> CachedDisk {
        CachedDisk { shown: MemoryDisk::new(), has: MemoryDisk::new(), cache: Arc::default() }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().expect("no panic")
    }
}

#[derive(Debug)]
struct CachedFile {
    disk: CachedDisk,
    path: String,
    direct: bool,
    shown: Arc<dyn DiskFile>,
    has: Arc<dyn DiskFile>,
}

impl CachedFile {
    fn write_back(&self) -> io::Result<()> {
        let dirty = self.disk.cache().dirty.remove(&self.path).unwrap_or_default();
        for at in dirty {
            let mut page = [0; 4096];
            let read = self.shown.read_at(at, &mut page)?;
            self.has.write_at(at, &page[..read])?;
        }
        self.has.set_len(self.shown.len()?)?;
        self.has.sync_data()
    }
}

impl Disk for CachedDisk {
    fn open(&self, path: &str, mode: OpenMode, direct: bool) -> io::Result<Arc<dyn DiskFile>> {
        let shown = self.shown.open(path, mode, direct)?;
        let mode = if mode == OpenMode::Create { mode } else { OpenMode::ReadWrite };
        let has = self.has.open(path, mode, direct)?;
        let direct = direct && !self.cache().is_all;
        Ok(Arc::new(CachedFile { disk: self.clone(), path: path.to_owned(), direct, shown, has }))
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.shown.list(dir)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.cache().dirty.remove(path);
        self.shown.remove(path).and_then(|()| self.has.remove(path))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut cache = self.cache();
        let dirty = cache.dirty.remove(from).unwrap_or_default();
        cache.dirty.insert(to.to_owned(), dirty);
        self.shown.rename(from, to).and_then(|()| self.has.rename(from, to))
    }
    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.shown.create_dir_all(dir).and_then(|()| self.has.create_dir_all(dir))
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        if std::mem::take(&mut self.cache().fails_to_sync_names) {
            return Err(io::Error::other("some of the names cannot be written"));
        }
        self.shown.sync_dir(dir).and_then(|()| self.has.sync_dir(dir))
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.shown.free_bytes()
    }
    fn root(&self) -> &Path {
        self.shown.root()
    }
    fn direct_io(&self) -> DirectIo {
        self.shown.direct_io()
    }
}

impl DiskFile for CachedFile {
    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.shown.write_vectored_at(offset, parts)?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let pages = offset / 4096..(offset + bytes as u64).div_ceil(4096);
        self.disk.cache().dirty.entry(self.path.clone()).or_default().extend(pages.map(|page| page * 4096));
        if self.direct { self.write_back() } else { Ok(()) }
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.direct {
            return self.shown.read_at(offset, bytes);
        }
        self.write_back()?;
        self.has.read_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut cache = self.disk.cache();
        if std::mem::take(&mut cache.fails_to_sync) {
            cache.dirty.remove(&self.path);
            return Err(io::Error::other("some of it cannot be written"));
        }
        drop(cache);
        self.write_back()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        if self.disk.cache().fails_to_cut && bytes < self.shown.len()? {
            return Err(io::Error::other("it cannot be cut"));
        }
        self.shown.set_len(bytes).and_then(|()| self.has.set_len(bytes))
    }
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shown.allocate(offset, bytes)
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shown.punch_hole(offset, bytes).and_then(|()| self.has.punch_hole(offset, bytes))
    }
    fn len(&self) -> io::Result<u64> {
        self.shown.len()
    }
}

/// Only what the sync has not written is sent again: who takes it for synced answers for what a loss of power takes.
#[test]
fn what_a_sync_that_failed_has_not_written_is_not_taken_for_synced_by_the_next_process() {
    let start = |disk: Arc<dyn Disk>, boot| {
        let config = BackupConfig { boot_id: Some([boot; 16]), file_bytes: 16 << 10, ..config() };
        let clock = Arc::new(ManualClock::new(1_000_000));
        Rig::over(Backup::open(config, vec![disk], clock, Arc::new(SeededRandom::new(boot.into()))).expect("open").0)
    };
    // The file is cut, or it is not and is read past the page cache.
    for (fails_to_cut, is_all) in [(false, true), (true, false), (false, false)] {
        // Of a file that takes more, and of one that is full with the third block and has a footer.
        for lost in [2, 3] {
            let disk = CachedDisk::new();
            disk.cache().is_all = is_all;
            let mut rig = start(Arc::new(disk.clone()), 1);
            for block in 1..lost {
                assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)));
            }
            disk.cache().fails_to_sync = true;
            disk.cache().fails_to_cut = fails_to_cut;
            assert_eq!(rig.send(LOG, lost, 1, true), Taken::Queued);
            if lost == 3 {
                assert_eq!(rig.send(LOG, lost + 1, 1, true), Taken::Queued);
            }
            rig.write();
            assert!(rig.answers.all.lock().expect("no panic")[&rig.token].is_err());
            assert!(!disk.cache().fails_to_sync, "it has failed");
            disk.cache().fails_to_cut = false;
            drop(rig);
            let mut rig = start(Arc::new(disk.clone()), 1);
            assert_eq!(rig.store(LOG, lost, 1, true), Ok(stored(lost)));
            drop(rig);
            for seed in 0..5 {
                disk.has.crash(seed);
            }
            let rig = start(Arc::new(disk.has.clone()), 2);
            assert_eq!(rig.read(LOG, 1, lost), Ok((1..=lost).collect()), "{fails_to_cut} {is_all}");
            assert_eq!((rig.backup.end_now(LOG, 1).through, rig.backup.end_now(LOG, 1).certain), (lost, true));
        }
    }
}

/// A sync that failed has written the block and not the header, or the disk has changed that since: the system shows it until the power goes.
#[test]
fn a_header_that_only_the_page_cache_has_is_written_once_more() {
    for byte in [0_u8, 7] {
        let disk = CachedDisk::new();
        let start = |disk: Arc<dyn Disk>, boot: u8| boots(&|| Arc::clone(&disk), boot);
        let mut rig = start(Arc::new(disk.clone()), 1);
        assert_eq!(rig.store(LOG, 1, 1, true), Ok(stored(1)));
        drop(rig);
        let file = disk.has.open(&names(&disk.has)[0], OpenMode::ReadWrite, false).expect("open");
        file.write_at(0, &[byte; 4096]).and_then(|()| file.sync_data()).expect("written");
        let mut rig = start(Arc::new(disk.clone()), 1);
        assert_eq!(rig.store(LOG, 1, 1, true), Ok(stored(1)));
        drop(rig);
        disk.has.crash(1);
        let rig = start(Arc::new(disk.has.clone()), 2);
        assert_eq!(rig.read(LOG, 1, 1), Ok(vec![1]));
    }
}

/// A disk that is full behind its back, or a sector that takes no writes: a node that did not start for one file of copies would have its own streams away as well.
#[test]
fn a_header_that_only_the_page_cache_has_and_that_cannot_be_written_keeps_no_backup_from_starting() {
    let disk = CachedDisk::new();
    let mut rig = boots(&|| Arc::new(disk.clone()), 1);
    assert_eq!(rig.store(LOG, 1, 1, true), Ok(stored(1)));
    drop(rig);
    let file = disk.has.open(&names(&disk.has)[0], OpenMode::ReadWrite, false).expect("open");
    file.write_at(0, &[0; 4096]).and_then(|()| file.sync_data()).expect("written");
    let faulty = FaultyDisk::new(Arc::new(disk.clone()));
    faulty.fail_write(1);
    let (clock, random) = (Arc::new(ManualClock::new(1_000_000)), Arc::new(SeededRandom::new(1)));
    let config = BackupConfig { boot_id: Some([1; 16]), ..config() };
    let (backup, report) = Backup::open(config, vec![Arc::new(faulty)], clock, random).expect("it starts");
    assert!(report.damage.len() == 1 && report.damage[0].contains("goes with the power"), "{report:?}");
    assert_eq!(Rig::over(backup).read(LOG, 1, 1), Ok(vec![1]));
}

/// It tells that once, to one of the logs that have files with new names.
#[test]
fn a_sync_of_the_folder_that_failed_counts_for_all_files_whose_names_it_may_have_lost() {
    let (disk, clock) = (CachedDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(disk.clone())];
    let random = Arc::new(SeededRandom::new(1));
    let mut rig = Rig::over(Backup::open(config(), disks, clock.clone(), random).expect("open").0);
    let logs = [LOG, LogId { vlog: 1, ..LOG }];
    disk.cache().fails_to_sync_names = true;
    for log in logs {
        assert_eq!(rig.send(log, 1, 1, true), Taken::Queued);
    }
    rig.write();
    assert!(rig.answers.all.lock().expect("no panic").values().all(Result::is_err));
    clock.advance_ms(1_000);
    for log in logs {
        assert_eq!(rig.store(log, 1, 1, true), Ok(stored(1)), "in a file of another name");
    }
}

/// The first file of a row that nobody asks to sync is synced when it begins; that of another log is written by then, and is synced behind it.
#[test]
fn a_sync_of_the_folder_that_failed_when_a_file_began_counts_for_all_files_too() {
    let (disk, clock) = (CachedDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(disk.clone())];
    let random = Arc::new(SeededRandom::new(1));
    let mut rig = Rig::over(Backup::open(config(), disks, clock.clone(), random).expect("open").0);
    let other = LogId { vlog: 1, ..LOG };
    disk.cache().fails_to_sync_names = true;
    assert_eq!(rig.send(LOG, 1, 1, true), Taken::Queued);
    assert_eq!(rig.send(other, 1, 1, false), Taken::Queued);
    rig.write();
    assert!(rig.answers.all.lock().expect("no panic").values().all(Result::is_err));
    clock.advance_ms(1_000);
    for (log, synced) in [(LOG, true), (other, false)] {
        assert_eq!(rig.store(log, 1, 1, synced), Ok(stored(1)), "in a file of another name");
    }
}

/// Stores blocks behind `block` that nobody asks to sync, until there are so many files more. The first block of the last one.
fn fill(rig: &mut Rig, log: LogId, mut block: u64, more: u64) -> u64 {
    let files = rig.backup.stats().files + more;
    while rig.backup.stats().files < files {
        block += 1;
        assert_eq!(rig.store(log, block, 1, false), Ok(stored(block)));
    }
    block
}

/// How many files went.
fn released(rig: &Rig, log: LogId, through_block: u64) -> u32 {
    rig.backup.release(&ReleaseBlocks { log, through_block }).files
}

/// A file that is to be the first of its row is what a start knows the row by, and the system tells somebody else that its name was not written.
#[test]
fn a_sync_of_the_folder_that_failed_counts_for_a_file_that_is_to_be_the_first_of_its_row_whoever_was_told() {
    let other = LogId { vlog: 1, ..LOG };
    for told in ["a fence", "a file that begins", "a release", "who syncs behind the writer"] {
        let (disk, clock) = (CachedDisk::new(), Arc::new(ManualClock::new(1_000_000)));
        let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(disk.clone())];
        let random = Arc::new(SeededRandom::new(1));
        let mut rig = Rig::over(Backup::open(config(), disks, clock.clone(), random).expect("open").0);
        let of_other = fill(&mut rig, other, 0, 2);
        let second = fill(&mut rig, LOG, 0, 2);
        let third = fill(&mut rig, LOG, second, 1);
        disk.cache().fails_to_sync_names = true;
        match told {
            "a fence" => assert!(rig.backup.fence(8, 1, &[]).is_err()),
            "a file that begins" => assert!(rig.store(LogId { vlog: 2, ..LOG }, 1, 1, false).is_err()),
            "a release" => assert_eq!(released(&rig, other, of_other - 1), 0),
            _ => assert!(!rig.backup.sync_full(0)),
        }
        assert!(!disk.cache().fails_to_sync_names, "{told}");
        for first in [second, third] {
            assert_eq!(released(&rig, LOG, first - 1), 0, "{told}: its name is doubtful");
        }
        clock.advance_ms(1_000);
        let fourth = fill(&mut rig, LOG, third, 1);
        assert_eq!(released(&rig, LOG, fourth - 1), 3, "{told}: this one is known to be there");
        assert_eq!(rig.ranges(LOG), [BlockRange { first: fourth, last: fourth }]);
    }
}

/// Before a file on one disk goes, the one in front of it is gone from the other for good.
#[test]
fn a_sync_of_the_folder_that_failed_when_files_were_given_back_counts_for_names_that_were_made() {
    let (cached, clock) = (CachedDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let faulty = [FaultyDisk::new(Arc::new(cached.clone())), FaultyDisk::new(Arc::new(MemoryDisk::new()))];
    let disks = faulty.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
    let config = BackupConfig { spares: 0, ..config() };
    let opened = Backup::open(config, disks, clock.clone(), Arc::new(SeededRandom::new(1)));
    let mut rig = Rig::over(opened.expect("open").0);
    // A row of three files: on the first disk, the other one, and the first again.
    let row = LogId { vlog: 1, ..LOG };
    assert_eq!(rig.store(row, 1, 1, true), Ok(stored(1)));
    for (fails, block) in [(0, 2), (1, 3)] {
        clock.advance_ms(1_000);
        faulty[fails].fail_write(1);
        assert!(rig.store(row, block, 1, true).is_err());
        assert_eq!(rig.store(row, block, 1, true), Ok(stored(block)), "at the other one");
    }
    clock.advance_ms(1_000);
    // It goes where there are fewer, and the next one where the row is.
    assert_eq!(rig.store(LogId { vlog: 2, ..LOG }, 1, 1, false), Ok(stored(1)));
    let second = fill(&mut rig, LOG, 0, 2);
    assert_eq!(files(&cached, ".replica"), 4);
    cached.cache().fails_to_sync_names = true;
    assert_eq!(released(&rig, row, 2), 1, "what is on the other disk stays");
    assert!(!cached.cache().fails_to_sync_names);
    assert_eq!(released(&rig, LOG, second - 1), 0, "its name is doubtful");
    assert_eq!(released(&rig, row, 2), 1, "it is tried again");
}

/// What runs a backup with two disks, and starts it again.
struct TwoDisks {
    memory: [MemoryDisk; 2],
    faulty: [FaultyDisk; 2],
    clock: Arc<ManualClock>,
}

impl TwoDisks {
    fn new() -> TwoDisks {
        let memory = [MemoryDisk::new(), MemoryDisk::new()];
        let faulty = memory.each_ref().map(|disk| FaultyDisk::new(Arc::new(disk.clone())));
        TwoDisks { memory, faulty, clock: Arc::new(ManualClock::new(1_000_000)) }
    }

    fn start(&self, boot: u8) -> Rig {
        self.start_with(boot, &self.faulty)
    }

    fn start_with(&self, boot: u8, disks: &[FaultyDisk]) -> Rig {
        let config = BackupConfig { boot_id: Some([boot; 16]), spares: 0, ..config() };
        let disks = disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>).collect();
        let opened = Backup::open(config, disks, self.clock.clone(), Arc::new(SeededRandom::new(boot.into())));
        Rig::over(opened.expect("open").0)
    }

    /// A row of three files with a block each: on the first disk, the other one, and the first again.
    fn with_row(&self) -> Rig {
        let mut rig = self.start(1);
        assert_eq!(rig.store(LOG, 1, 1, true), Ok(stored(1)));
        for (fails, block) in [(0, 2), (1, 3)] {
            self.clock.advance_ms(1_000);
            self.faulty[fails].fail_write(1);
            assert!(rig.store(LOG, block, 1, true).is_err());
            assert_eq!(rig.store(LOG, block, 1, true), Ok(stored(block)), "at the other one");
        }
        assert_eq!(self.memory.each_ref().map(|disk| files(disk, ".replica")), [2, 1]);
        rig
    }
}

/// What is missing of a row behind its first file would be damage.
fn ends_for_certain(rig: &Rig) {
    let asked = LaneStates { log: LOG, from_block: 1, through_block: 3, streamlets: Vec::new() };
    assert!(rig.backup.lane_states(&asked).is_ok(), "{:?}", rig.ranges(LOG));
    let views = [LogView { vlog: LOG.vlog, first_block: 1 }];
    let ends = rig.backup.fence(LOG.node, LOG.epoch, &views).expect("fenced");
    assert!(ends.iter().any(|end| end.through == 3 && end.certain), "{ends:?}");
}

#[test]
fn files_of_a_row_that_are_on_several_disks_come_back_in_their_order_behind_a_loss_of_power() {
    for seed in 0..20 {
        let disks = TwoDisks::new();
        let rig = disks.with_row();
        release(&rig, LOG, 2);
        assert_eq!(disks.memory.each_ref().map(|disk| files(disk, ".replica")), [1, 0]);
        drop(rig);
        // The other disk has written on its own what has become of its names, and the first one has not.
        disks.memory[1].sync_dir("replicas").expect("synced");
        disks.memory.iter().for_each(|disk| disk.crash(seed));
        ends_for_certain(&disks.start(2));
    }
}

/// Two calls, of which the second one begins at the other disk.
#[test]
fn what_was_given_back_before_of_a_row_is_gone_for_good_before_more_of_it_goes() {
    for seed in 0..20 {
        let disks = TwoDisks::new();
        let rig = disks.with_row();
        (1..=2).for_each(|through| release(&rig, LOG, through));
        drop(rig);
        disks.memory[1].sync_dir("replicas").expect("synced");
        disks.memory.iter().for_each(|disk| disk.crash(seed));
        ends_for_certain(&disks.start(2));
    }
}

#[test]
fn a_file_that_a_disk_does_not_let_go_of_keeps_those_of_its_row_behind_it() {
    let disks = TwoDisks::new();
    let rig = disks.with_row();
    disks.faulty[0].fail_remove(1);
    let asked = ReleaseBlocks { log: LOG, through_block: 2 };
    assert_eq!(rig.backup.release(&asked).files, 0);
    assert_eq!((rig.ranges(LOG), rig.read(LOG, 1, 3)), (vec![BlockRange { first: 1, last: 3 }], Ok(vec![1, 2, 3])));
    drop(rig);
    let rig = disks.start(1);
    disks.faulty[1].fail_remove(1);
    assert_eq!(rig.backup.release(&asked).files, 1, "the first one");
    drop(rig);
    let rig = disks.start(1);
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 2, last: 3 }]);
    assert_eq!(rig.backup.release(&asked).files, 1, "it is tried again");
    ends_for_certain(&rig);
    drop(rig);
    ends_for_certain(&disks.start(1));
}

/// The row goes on at the other disk, which would fill up with what is behind the files of the first one.
#[test]
fn a_disk_that_is_not_well_and_lets_go_of_nothing_keeps_no_files_on_the_others() {
    for comes_back in [true, false] {
        let disks = TwoDisks::new();
        let mut rig = disks.with_row();
        disks.clock.advance_ms(1_000);
        disks.faulty[0].set_broken(true);
        assert!(rig.store(LOG, 4, 1, true).is_err());
        assert_eq!(rig.store(LOG, 4, 1, true), Ok(stored(4)), "at the other one");
        // Long after it failed, and with nothing tried on it since.
        disks.clock.advance_ms(60_000);
        let asked = ReleaseBlocks { log: LOG, through_block: 3 };
        for files_gone in [1, 0] {
            assert_eq!(rig.backup.release(&asked).files, files_gone);
            assert_eq!(disks.memory.each_ref().map(|disk| files(disk, ".replica")), [2, 1]);
            assert_eq!(rig.ranges(LOG), [BlockRange { first: 4, last: 4 }]);
        }
        let rig = if comes_back {
            disks.faulty[0].set_broken(false);
            assert_eq!(rig.backup.release(&asked).files, 2, "it is asked again");
            assert_eq!(disks.memory.each_ref().map(|disk| files(disk, ".replica")), [0, 1]);
            drop(rig);
            disks.start(1)
        } else {
            drop(rig);
            disks.start_with(1, &disks.faulty[1..])
        };
        let end = rig.backup.end_now(LOG, 1);
        assert_eq!((end.through, end.certain), (4, true));
    }
}

/// With the one in the midst missing nobody knows what the last one is, and it is never forgotten.
#[test]
fn files_of_a_row_that_is_forgotten_come_back_in_their_order_as_well() {
    for seed in 0..20 {
        let disks = TwoDisks::new();
        let mut rig = disks.with_row();
        disks.clock.advance_ms(1_000);
        assert_eq!(rig.store(LOG, 10, 10, true), Ok(stored(10)));
        let needed = [BlockRange { first: 10, last: u64::MAX }];
        assert_eq!(rig.backup.forget_rows(LOG, &needed).files, 3);
        drop(rig);
        disks.memory[1].sync_dir("replicas").expect("synced");
        disks.memory.iter().for_each(|disk| disk.crash(seed));
        let rig = disks.start(2);
        rig.backup.forget_rows(LOG, &needed);
        assert_eq!(rig.ranges(LOG), [BlockRange { first: 10, last: 10 }], "seed {seed}");
    }
}

/// A disk of which no file is used again, and how to start with it in a run of the machine.
fn one_disk() -> (MemoryDisk, FaultyDisk, Arc<ManualClock>, impl Fn(u8) -> Rig) {
    let disk = MemoryDisk::new();
    let (faulty, clock) = (FaultyDisk::new(Arc::new(disk.clone())), Arc::new(ManualClock::new(1_000_000)));
    let (started_on, time) = (faulty.clone(), clock.clone());
    let start = move |boot: u8| {
        let config = BackupConfig { boot_id: Some([boot; 16]), spares: 0, ..config() };
        let disks: Vec<Arc<dyn Disk>> = vec![Arc::new(started_on.clone())];
        let random = Arc::new(SeededRandom::new(boot.into()));
        Rig::over(Backup::open(config, disks, time.clone(), random).expect("open").0)
    };
    (disk, faulty, clock, start)
}

/// Its first block could not be written. Behind a loss of power a start keeps it, and would miss the blocks behind it.
#[test]
fn a_file_without_a_block_that_a_disk_does_not_let_go_of_goes_in_its_turn() {
    let (disk, faulty, clock, start) = one_disk();
    let mut rig = start(1);
    assert_eq!(rig.store(LOG, 1, 1, true), Ok(stored(1)));
    let fails = |rig: &mut Rig, block| {
        assert!(rig.store(LOG, block, 1, true).is_err());
        clock.advance_ms(1_000);
    };
    // The file takes no more, and of the next one the header is written, and the block is not.
    faulty.fail_write(1);
    fails(&mut rig, 2);
    faulty.fail_write(2);
    faulty.fail_remove(1);
    fails(&mut rig, 2);
    assert_eq!(files(&disk, ".replica"), 2, "it is still there");
    assert_eq!(rig.store(LOG, 2, 1, true), Ok(stored(2)));
    faulty.fail_write(1);
    fails(&mut rig, 3);
    assert_eq!(rig.store(LOG, 3, 1, true), Ok(stored(3)));
    assert_eq!((files(&disk, ".replica"), rig.read(LOG, 1, 3)), (4, Ok(vec![1, 2, 3])));
    release(&rig, LOG, 2);
    assert_eq!((files(&disk, ".replica"), rig.ranges(LOG)), (1, vec![BlockRange { first: 3, last: 3 }]));
    drop(rig);
    let end = start(2).backup.end_now(LOG, 1);
    assert_eq!((end.through, end.certain), (3, true));
}

/// The first one of a row that nobody asks to sync: it has its header, and could not be synced.
#[test]
fn a_file_that_was_not_begun_and_that_a_disk_does_not_let_go_of_goes_in_its_turn() {
    let (disk, faulty, clock, start) = one_disk();
    let mut rig = start(1);
    let fails = |rig: &mut Rig, block| {
        assert!(rig.store(LOG, block, 1, false).is_err());
        clock.advance_ms(1_000);
    };
    faulty.fail_sync(1);
    faulty.fail_remove(1);
    fails(&mut rig, 1);
    assert_eq!(files(&disk, ".replica"), 1, "it is still there");
    assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)));
    for block in [2, 3] {
        faulty.fail_write(1);
        fails(&mut rig, block);
        assert_eq!(rig.store(LOG, block, 1, false), Ok(stored(block)), "in a file of its own");
    }
    assert_eq!((files(&disk, ".replica"), rig.read(LOG, 1, 3)), (4, Ok(vec![1, 2, 3])));
    release(&rig, LOG, 2);
    assert_eq!((files(&disk, ".replica"), rig.ranges(LOG)), (1, vec![BlockRange { first: 3, last: 3 }]));
    drop(rig);
    assert_eq!(start(2).backup.end_now(LOG, 1).through, 3);
}

/// Who gives it back has its files by then, and a start would take the one that is left for all that there is of the log.
#[test]
fn a_file_that_begins_while_its_log_is_given_back_goes_with_it() {
    let (disk, clock) = (MemoryDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let slow = SlowDisk::new(disk.clone(), &clock);
    let gate = slow.gate.clone();
    let (backup, _) =
        Backup::open(config(), vec![Arc::new(slow)], clock, Arc::new(SeededRandom::new(1))).expect("open");
    let mut rig = Rig::over(backup);
    gate.set(true);
    assert_eq!(rig.send(LOG, 1, 1, false), Taken::Queued);
    let backup = Arc::clone(&rig.backup);
    let writer = std::thread::spawn(move || backup.run_once(0));
    gate.until_somebody_waits();
    release(&rig, LOG, u64::MAX);
    gate.set(false);
    assert_eq!(writer.join().expect("no panic"), Ran::Answered(1));
    assert!(rig.answers.all.lock().expect("no panic")[&rig.token].is_err());
    assert_eq!((files(&disk, ".replica"), rig.backup.stats().logs), (0, 0));
    assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)), "another log of that name");
}

/// While it is made sure of that for one row, in another one a file is full, one could not be begun, and the one that follows is not synced.
#[test]
fn what_is_given_back_leaves_a_file_that_survives_also_where_that_came_meanwhile() {
    let (disk, clock) = (MemoryDisk::new(), Arc::new(ManualClock::new(1_000_000)));
    let faulty = FaultyDisk::new(Arc::new(disk.clone()));
    let slow = SlowDisk::new(faulty.clone(), &clock);
    let syncs = slow.syncs.clone();
    let config = BackupConfig { spares: 0, ..config() };
    let opened = Backup::open(config, vec![Arc::new(slow)], clock.clone(), Arc::new(SeededRandom::new(1)));
    let mut rig = Rig::over(opened.expect("open").0);
    let fails = |rig: &mut Rig, block, view_first| {
        faulty.fail_write(1);
        assert!(rig.store(LOG, block, view_first, false).is_err());
        clock.advance_ms(1_000);
    };
    assert_eq!(rig.store(LOG, 1, 1, false), Ok(stored(1)));
    fails(&mut rig, 2, 1);
    assert_eq!(rig.store(LOG, 2, 1, false), Ok(stored(2)), "in the row's second file");
    assert_eq!(rig.store(LOG, 10, 10, false), Ok(stored(10)));
    syncs.set(true);
    let backup = Arc::clone(&rig.backup);
    let asked = ReleaseBlocks { log: LOG, through_block: 10 };
    let releasing = std::thread::spawn(move || backup.release(&asked).files);
    syncs.until_somebody_waits();
    fails(&mut rig, 11, 10);
    faulty.fail_remove(1);
    fails(&mut rig, 11, 10);
    assert_eq!(rig.store(LOG, 11, 10, false), Ok(stored(11)));
    assert_eq!(files(&disk, ".replica"), 5, "one has no block");
    syncs.set(false);
    assert_eq!(releasing.join().expect("no panic"), 1, "the first one of the first row");
    assert_eq!(rig.ranges(LOG), [BlockRange { first: 2, last: 2 }, BlockRange { first: 10, last: 11 }]);
}
