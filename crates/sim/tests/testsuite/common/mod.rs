//! What both simulators' tests do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs seeds on two threads; what went wrong, by seed.
pub(crate) fn all(seeds: std::ops::Range<u64>, violation: impl Fn(u64) -> Option<String> + Sync) -> Vec<String> {
    assert!(!seeds.is_empty(), "no seed is run, so nothing is shown");
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return wrong;
            }
            if let Some(violation) = violation(seed) {
                wrong.push(format!("seed {seed}: {violation}"));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().flat_map(|worker| worker.join().expect("a run panicked")).collect()
    })
}
