//! Group commit: what becomes durable when, in which order, with how many syncs, and who is told.

use std::sync::{Arc, Mutex};
use std::thread;

use kera_env::{Disk, FaultyDisk, MemoryDisk};
use kera_format::SegmentId;
use kera_log::{Appended, DurabilitySink, Observer};
use kera_vlog::{Ran, SegmentCloser, VirtualLogConfig};

use crate::support::{self, Calls, Rig, STREAMLETS, config, replay};

fn memory() -> Arc<dyn Disk> {
    Arc::new(MemoryDisk::new())
}

#[test]
fn nothing_is_readable_before_it_is_synced() {
    let rig = Rig::new(memory());
    let appended = rig.append(0, "a");
    let ticket = appended.ticket.expect("not durable yet");
    assert_eq!(rig.vlog.durable_through(), 0);
    assert!(rig.readable(0).is_empty());
    assert_eq!(rig.vlog.run_once(), Ran::Wrote { chunks: 1, bytes: 4096 });
    assert_eq!(rig.vlog.durable_through(), ticket);
    assert_eq!(rig.readable(0), ["a"]);
    assert_eq!(rig.vlog.run_once(), Ran::Idle);
}

#[test]
fn one_sync_serves_all_lanes() {
    let disk = FaultyDisk::new(memory());
    let large = VirtualLogConfig { file_bytes: 1 << 20, spares: 0, ..config() };
    let rig = Rig::with(Arc::new(disk.clone()), large, 1).expect("open");
    rig.append(0, "first");
    rig.vlog.run_once();
    let tickets: Vec<_> = (0..20).filter_map(|n| rig.append(n % STREAMLETS, &format!("{n}")).ticket).collect();
    assert!(tickets.is_sorted() && tickets.len() == 20);
    let (_, syncs, _) = disk.counts();
    assert!(matches!(rig.vlog.run_once(), Ran::Wrote { chunks: 20, .. }));
    assert_eq!(disk.counts().1 - syncs, 1);
    assert_eq!(rig.vlog.durable_through(), tickets[19]);
    assert_eq!(rig.readable(1), ["1", "5", "9", "13", "17"]);
}

/// Whoever looks at them serves others besides, and is to say that the disk stands still.
#[test]
fn counters_are_told_while_the_disk_stands_still() {
    let disk = FaultyDisk::new(memory());
    let rig = Rig::with(Arc::new(disk.clone()), config(), 1).expect("open");
    rig.append(0, "first");
    rig.vlog.run_once();
    rig.append(0, "second");
    disk.set_stuck(true);
    thread::scope(|scope| {
        let writing = scope.spawn(|| rig.vlog.run_once());
        disk.wait_until_stuck();
        assert_eq!(rig.vlog.stats().pending_references, 1);
        disk.set_stuck(false);
        assert!(matches!(writing.join().expect("no panic"), Ran::Wrote { chunks: 1, .. }));
    });
    assert_eq!((rig.vlog.stats().pending_references, rig.vlog.stats().pending_bytes), (0, 0));
}

#[test]
fn what_does_not_fit_into_a_block_goes_into_the_next() {
    let rig = Rig::new(memory());
    let text = "x".repeat(7000);
    let tickets: Vec<_> = (0..5).filter_map(|n| rig.append(n % 2, &text).ticket).collect();
    for (turn, durable) in [(1, 1), (2, 3), (3, 4)] {
        assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }), "turn {turn}");
        assert_eq!(rig.vlog.durable_through(), tickets[durable], "turn {turn}");
    }
    assert_eq!(rig.vlog.run_once(), Ran::Idle);
}

#[test]
fn a_chunk_that_is_larger_than_a_block_and_a_file_is_written_all_the_same() {
    let disk = memory();
    let small = VirtualLogConfig { file_bytes: 16 << 10, block_bytes_max: 4 << 10, ..config() };
    let rig = Rig::with(Arc::clone(&disk), small.clone(), 1).expect("open");
    let text = "x".repeat(40_000);
    rig.append(0, "before");
    rig.append(0, &text);
    rig.append(0, "after");
    while rig.vlog.run_once() != Ran::Idle {}
    assert_eq!(rig.readable(0).len(), 3);
    let (replayed, _) = replay(&disk, small).expect("replay");
    assert_eq!(replayed.texts[&0], ["before", &text, "after"]);
}

#[test]
fn who_waits_for_a_ticket_is_told_once_when_it_is_durable() {
    let rig = Rig::new(memory());
    let calls = Arc::new(Calls::default());
    let observer = Arc::clone(&calls) as Arc<dyn Observer>;
    let text = "x".repeat(10_000);
    let tickets: Vec<_> = (0..3).filter_map(|_| rig.append(0, &text).ticket).collect();
    assert!(rig.vlog.wait(tickets[1], &observer, 11));
    assert!(rig.vlog.wait(tickets[0], &observer, 10));
    assert!(rig.vlog.wait(tickets[2], &observer, 12));
    rig.vlog.run_once();
    assert_eq!(calls.tokens(), [10]);
    assert!(!rig.vlog.wait(tickets[0], &observer, 13), "it is durable already");
    while rig.vlog.run_once() != Ran::Idle {}
    assert_eq!(calls.tokens(), [10, 11, 12]);
}

#[test]
fn an_observer_that_is_gone_is_forgotten() {
    let rig = Rig::new(memory());
    let ticket = rig.append(0, "a").ticket.expect("not durable yet");
    for token in 0..10_000 {
        let observer: Arc<dyn Observer> = Arc::new(Calls::default());
        assert!(rig.vlog.wait(ticket, &observer, token));
    }
    assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
}

/// A session as the broker's: acknowledges a ticket when it is told, and not before it is durable.
struct Session {
    vlog: Arc<kera_vlog::VirtualLog>,
    woken: Mutex<u64>,
    changed: std::sync::Condvar,
}

impl Observer for Session {
    fn advanced(&self, token: u64) {
        assert!(self.vlog.durable_through() >= token, "told too early");
        *self.woken.lock().expect("no panic") += 1;
        self.changed.notify_all();
    }
}

#[test]
fn no_wake_up_is_lost_between_appenders_and_the_writer() {
    let rig = Arc::new(Rig::new(memory()));
    let writer = thread::spawn({
        let vlog = Arc::clone(&rig.vlog);
        move || vlog.run()
    });
    let appenders: Vec<_> = (0..STREAMLETS)
        .map(|streamlet| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                let session = Arc::new(Session {
                    vlog: Arc::clone(&rig.vlog),
                    woken: Mutex::new(0),
                    changed: std::sync::Condvar::new(),
                });
                let observer = Arc::clone(&session) as Arc<dyn Observer>;
                for n in 0..500 {
                    let ticket = rig.append(streamlet, &format!("{n}")).ticket.expect("not durable yet");
                    let before = *session.woken.lock().expect("no panic");
                    if rig.vlog.wait(ticket, &observer, ticket) {
                        let mut woken = session.woken.lock().expect("no panic");
                        while *woken == before {
                            woken = session.changed.wait(woken).expect("no panic");
                        }
                    }
                    assert!(rig.vlog.durable_through() >= ticket);
                }
            })
        })
        .collect();
    for appender in appenders {
        appender.join().expect("no panic");
    }
    rig.vlog.stop();
    writer.join().expect("no panic");
    for streamlet in 0..STREAMLETS {
        let expected: Vec<_> = (0..500).map(|n| n.to_string()).collect();
        assert_eq!(rig.readable(streamlet), expected);
    }
}

#[test]
fn stopping_writes_what_waits() {
    let disk = memory();
    let rig = Rig::new(Arc::clone(&disk));
    let tickets: Vec<_> = (0..50).filter_map(|n| rig.append(n % STREAMLETS, &"x".repeat(900)).ticket).collect();
    rig.vlog.stop();
    rig.vlog.run();
    assert_eq!(rig.vlog.durable_through(), tickets[49]);
    assert_eq!(rig.vlog.stats().pending_references, 0);
    assert_eq!(replay(&disk, config()).expect("replay").1.chunks, 50);
}

#[test]
fn stopping_gives_up_on_a_disk_that_takes_nothing() {
    let disk = FaultyDisk::new(memory());
    let rig = Rig::new(Arc::new(disk.clone()));
    disk.set_broken(true);
    rig.append(0, "a");
    rig.vlog.stop();
    rig.vlog.run();
    assert_eq!(rig.vlog.durable_through(), 0);
}

#[test]
fn neighbouring_chunks_count_one_by_one() {
    let rig = Rig::new(memory());
    let tickets: Vec<_> = (0..10).filter_map(|n| rig.append(0, &n.to_string()).ticket).collect();
    assert_eq!(tickets, (1..=10).collect::<Vec<_>>());
    assert_eq!(rig.vlog.stats().pending_references, 1, "they are one reference");
    assert!(matches!(rig.vlog.run_once(), Ran::Wrote { chunks: 10, .. }));
    assert_eq!(rig.vlog.durable_through(), 10);
    assert_eq!(rig.vlog.stats().chunks, 10);
}

#[test]
fn too_many_waiting_references_refuse_appends_until_half_of_them_are_written() {
    let few = VirtualLogConfig { references_max: 8, block_bytes_max: 1, ..config() };
    let rig = Rig::with(memory(), few, 1).expect("open");
    for n in 0..9 {
        rig.vlog.healthy().expect("healthy");
        rig.append(n % STREAMLETS, "a");
    }
    let trouble = rig.vlog.healthy().expect_err("too many");
    assert!(trouble.reason.contains("9 chunks wait for the disk"), "{trouble}");
    let mut writes = 0;
    while rig.vlog.healthy().is_err() {
        assert!(matches!(rig.vlog.run_once(), Ran::Wrote { .. }));
        writes += 1;
    }
    assert_eq!(writes, 5);
    while rig.vlog.run_once() != Ran::Idle {}
    assert_eq!(rig.readable(0), ["a", "a", "a"]);
}

fn file_names(disk: &Arc<dyn Disk>) -> Vec<String> {
    disk.list("vlog").expect("list")
}

/// Fills several files and says which segments have chunks in them.
fn fill(rig: &Rig, disk: &Arc<dyn Disk>) -> Vec<SegmentId> {
    for n in 0..100 {
        rig.append(n % STREAMLETS, &"x".repeat(3000));
        rig.vlog.run_once();
    }
    let mut segments = replay(disk, config()).expect("replay").0.segments;
    segments.sort();
    segments.dedup();
    segments
}

#[test]
fn a_file_goes_when_its_segments_are_safe_and_is_used_again() {
    let disk = memory();
    let rig = Rig::new(Arc::clone(&disk));
    let segments = fill(&rig, &disk);
    let before = rig.vlog.stats().files;
    assert!(before > 4, "{before}");
    for id in &segments {
        rig.vlog.segment_safe(*id);
    }
    rig.vlog.run_once();
    let stats = rig.vlog.stats();
    assert_eq!(stats.files, 1, "only the current one");
    let spares = |names: &[String]| names.iter().filter(|name| name.ends_with(".spare")).count();
    assert_eq!(spares(&file_names(&disk)), 2);
    // What comes next goes into them, and none of what they had before comes back.
    for n in 0..60 {
        rig.append(0, &format!("{n} {}", "y".repeat(3000)));
        rig.vlog.run_once();
    }
    let (replayed, report) = replay(&disk, config()).expect("replay");
    let texts = &replayed.texts[&0];
    assert!(texts.len() as u64 <= report.chunks && texts.iter().skip_while(|t| t.starts_with('x')).count() == 60);
}

#[test]
fn files_go_from_the_oldest_on_and_one_segment_keeps_all_behind_it() {
    let disk = memory();
    let rig = Rig::new(Arc::clone(&disk));
    let segments = fill(&rig, &disk);
    let before = rig.vlog.stats().files;
    for id in &segments[1..] {
        rig.vlog.segment_safe(*id);
    }
    rig.vlog.run_once();
    assert_eq!(rig.vlog.stats().files, before, "the first segment is in the oldest file");
    replay(&disk, config()).expect("no holes");
    rig.vlog.segment_safe(segments[0]);
    rig.vlog.run_once();
    assert_eq!(rig.vlog.stats().files, 1);
}

#[test]
fn a_file_that_a_sick_disk_does_not_let_go_of_keeps_those_behind_it() {
    let faulty = FaultyDisk::new(memory());
    let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
    let rig = Rig::new(Arc::clone(&disk));
    let segments = fill(&rig, &disk);
    let before = rig.vlog.stats().files;
    faulty.set_broken(true);
    for id in &segments {
        rig.vlog.segment_safe(*id);
    }
    rig.vlog.run_once();
    faulty.set_broken(false);
    assert_eq!(rig.vlog.stats().files, before, "none is forgotten that is still there");
    for _ in 0..30 {
        rig.append(0, &"y".repeat(3000));
        rig.vlog.run_once();
    }
    // They go with the next file that is begun, and a start finds no hole whenever it comes.
    assert!(rig.vlog.stats().files < before);
    replay(&disk, config()).expect("no holes");
}

/// Its first block could not be synced, or its own header.
#[test]
fn a_file_without_a_block_that_a_sick_disk_does_not_let_go_of_is_no_hole() {
    for sync in [2, 1] {
        let faulty = FaultyDisk::new(memory());
        let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
        let rig = Rig::new(Arc::clone(&disk));
        faulty.fail_sync(sync);
        faulty.fail_remove(1);
        let mut segments = vec![segment_of(&rig.append(0, "a"))];
        assert!(matches!(rig.vlog.run_once(), Ran::Stuck { .. }));
        assert_eq!(file_names(&disk).len(), 1, "it is still there");
        rig.clock.advance_ms(60_000);
        assert!(matches!(rig.vlog.run_once(), Ran::Wrote { chunks: 1, .. }));
        for _ in 0..100 {
            segments.push(segment_of(&rig.append(0, &"x".repeat(3000))));
            rig.vlog.run_once();
        }
        for id in &segments {
            rig.vlog.segment_safe(*id);
        }
        rig.vlog.run_once();
        assert_eq!(rig.vlog.stats().files, 1, "only the current one");
        replay(&disk, config()).expect("no holes");
    }
}

/// The segment of a chunk of streamlet 0.
fn segment_of(appended: &Appended) -> SegmentId {
    let (streamlet, lane) = (kera_format::StreamletId(0), kera_format::LaneId(0));
    let cursor = appended.cursor;
    SegmentId { stream: support::STREAM, streamlet, lane, group: cursor.group, index: cursor.segment }
}

#[test]
fn a_segment_that_is_safe_while_its_chunks_still_wait_keeps_no_file() {
    let disk = memory();
    let rig = Rig::new(Arc::clone(&disk));
    let id = segment_of(&rig.append(0, "a"));
    // The stream is deleted: its segment is gone before its chunk is written.
    rig.vlog.segment_safe(id);
    rig.vlog.run_once();
    rig.vlog.run_once();
    for _ in 0..10 {
        rig.append(1, &"x".repeat(10_000));
        rig.vlog.run_once();
    }
    let (replayed, _) = replay(&disk, config()).expect("replay");
    assert_eq!(replayed.texts.get(&0), None, "the file with it is gone");
}

#[derive(Default)]
struct Asked(Mutex<Vec<SegmentId>>);

impl SegmentCloser for Asked {
    fn close_segments(&self, ids: &[SegmentId]) {
        self.0.lock().expect("no panic").extend_from_slice(ids);
    }
}

#[test]
fn slow_lanes_are_asked_to_close_the_segments_that_keep_old_files() {
    let disk = memory();
    let rig = Rig::with(disk, VirtualLogConfig { keep_bytes: 256 << 10, ..config() }, 1).expect("open");
    let asked = Arc::new(Asked::default());
    rig.vlog.set_closer(Arc::clone(&asked) as Arc<dyn SegmentCloser>);
    let slow = rig.append(3, "slow").cursor;
    for _ in 0..100 {
        rig.append(0, &"x".repeat(10_000));
        rig.vlog.run_once();
    }
    let asked = asked.0.lock().expect("no panic");
    let found = asked.iter().any(|id| id.streamlet.0 == 3 && id.group == slow.group && id.index == slow.segment);
    assert!(found, "{asked:?}");
}
