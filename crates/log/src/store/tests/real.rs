//! The store's threads on a real disk, with direct I/O where the file system has it.

use std::path::Path;

use kera_env::{RealDisk, SystemClock};

use super::*;
use crate::store::threads;

#[test]
fn threads_write_load_and_stop_on_a_real_disk() {
    // Beside the build's output and not in /tmp, which may be a tmpfs without direct I/O.
    let target = std::env::current_exe().unwrap();
    let dir = tempfile::Builder::new().prefix("kera-store-").tempdir_in(target.parent().unwrap()).unwrap();
    let disks = || -> Vec<Arc<dyn Disk>> {
        ["a", "b"].into_iter().map(|name| Arc::new(open(&dir.path().join(name))) as Arc<dyn Disk>).collect()
    };
    let config = StoreConfig { container_bytes: 8 << 20, batch_bytes: 2 << 20, free_percent_min: 30, ..config() };
    let (core, _) =
        Core::open(config.clone(), disks(), Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(1)), None)
            .unwrap();
    let log = Arc::new(FakeLog::default());
    log.bytes.store(32 << 20, Ordering::Relaxed);
    core.attach(Arc::clone(&log));
    let mut bench = Bench { core: Arc::new(core), log, clock: Arc::new(ManualClock::new(0)), sizes: BTreeMap::new() };
    let running = threads::start(&bench.core).unwrap();
    for index in 0..20 {
        for lane in 0..4 {
            bench.close(id(lane, index), [700, 70_000, 300_000, 1_000_000][lane as usize]);
        }
    }
    bench.core.flush_all().unwrap();
    // By a thread of its own, which may have been held up.
    for _ in 0..12_000 {
        if bench.core.status().evicted_segments > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    running.stop();
    assert_eq!(bench.persisted().len(), 80);
    assert!(bench.core.status().disks.iter().all(|disk| disk.segments > 0));
    assert!(bench.core.status().evicted_segments > 0);

    let (core, recovery) =
        Core::open(config, disks(), Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(2)), None).unwrap();
    assert_eq!((recovery.segments.len(), recovery.unfinished, recovery.problems.len()), (80, 0, 0));
    bench.core = Arc::new(core);
    bench.core.attach(Arc::clone(&bench.log));
    bench.evict_all();
    let running = threads::start(&bench.core).unwrap();
    for id in bench.persisted() {
        while !bench.is_in_memory(id) {
            bench.demand(id);
            std::thread::yield_now();
        }
        let segment = bench.log.segment(id).unwrap();
        assert!(segment.image() == contents(id, bench.sizes[&id]).0, "{id}");
        segment.set_read();
        drop(segment);
        bench.release(id);
    }
    running.stop();
    while bench.core.step() == Step::Again {}
    let left: usize = disks().iter().map(|disk| disk.list("containers").unwrap().len()).sum();
    assert_eq!(left, 0, "all containers are removed");
}

fn open(path: &Path) -> RealDisk {
    RealDisk::open(path).unwrap()
}
