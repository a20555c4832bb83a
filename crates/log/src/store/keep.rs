//! Keeping memory free for writers and loads: eviction, and closing cold segments when there is nothing else to give. On
//! the store's keeper thread, which also sends read-aheads on their way.

use std::sync::atomic::Ordering;

use super::core::Core;
use super::evict::eviction_order;
use super::host::{Host, Memory};
use super::signal::Step;

/// How long after cold segments were closed more may be.
const CLOSE_AGAIN_US: u64 = 20_000;
/// Which part of the memory that is kept free is missing when it is made good.
const MISSING_PART: u64 = 8;

impl<H: Host> Core<H> {
    /// Has everything evicted that nobody is on the way to.
    pub(crate) fn evict_unused(&self) {
        if !self.clean.lock().is_empty() {
            self.keeper.is_unused.store(true, Ordering::Relaxed);
            self.keeper.signal.notify();
        }
    }

    /// Evicts as much as writers and loads want, if it is there to evict.
    pub(crate) fn step_keep(&self) -> Step {
        let Some(host) = self.host() else { return Step::Idle };
        let more_ahead = std::mem::take(&mut *self.keeper.more_ahead.lock());
        let mut did_something = !more_ahead.is_empty();
        more_ahead.into_iter().for_each(|more| self.read_ahead(more));
        self.find_clean(host);
        self.readers.lock().forget_silent(self.now_us());

        let memory = host.memory();
        let (_, dirty_bytes) = self.queue.lock().dirty();
        let asked_bytes = self.keeper.wanted_bytes.swap(0, Ordering::Relaxed);
        let for_writers = missing_of(asked_bytes, &memory);
        let wanted_bytes = self.wanted_bytes(for_writers, &memory);
        let spare_bytes = self.spare_bytes(&memory);
        let is_wanted = wanted_bytes > 0 || spare_bytes > 0;
        let evicted_bytes = if is_wanted { self.evict(host, wanted_bytes, spare_bytes) } else { 0 };
        let short_bytes = wanted_bytes.saturating_sub(evicted_bytes);
        // A writer asks once, and then waits for some memory to come back. So its wish stays for as long as there is nothing to evict for it: what is on its way
        // to disk is written without delay, and each segment that gets there has the keeper look again. What is evicted wakes all who wait, and who still lacks
        // something asks again; of a wish whose writer has gone no more comes than that. Loads ask again by themselves. Of what a reader that stands still has
        // in its outbox no memory comes back when it is evicted: then there may be more that could go.
        let is_more_free = evicted_bytes > 0 && host.memory().free_bytes > memory.free_bytes;
        if for_writers > 0 && !is_more_free {
            self.keeper.wanted_bytes.fetch_max(asked_bytes, Ordering::Relaxed);
        }
        let is_dirty = dirty_bytes.saturating_mul(100) > memory.bytes.saturating_mul(self.config.dirty_percent_max);
        let is_pressed = short_bytes > 0 || is_dirty;
        if is_pressed && !self.keeper.is_pressed.load(Ordering::Relaxed) {
            did_something = true;
        }
        self.keeper.is_pressed.store(is_pressed, Ordering::Relaxed);
        did_something |= evicted_bytes > 0;
        if did_something {
            self.notify_writers();
        }
        let next = if short_bytes > dirty_bytes { self.close_cold(host) } else { Step::Idle };
        if did_something { Step::Again } else { next }
    }

    /// Segments that were in memory and on disk when the store was opened.
    fn find_clean(&self, host: &H) {
        let recovered = std::mem::take(&mut *self.keeper.recovered.lock());
        if recovered.is_empty() {
            return;
        }
        let images: Vec<_> = recovered.into_iter().filter_map(|id| host.segment(id)).collect();
        let mut clean = self.clean.lock();
        images.iter().for_each(|image| clean.add(image));
    }

    /// Bytes to evict: what writers lack, what loads have asked for in vain, or what is missing from the memory that is kept
    /// free so that they need not ask. That is made good once a part of it is missing: to look through all segments for each that is closed would be
    /// all that a core can do.
    fn wanted_bytes(&self, for_writers: u64, memory: &Memory) -> u64 {
        let for_loads = self.keeper.load_wanted_bytes.swap(0, Ordering::Relaxed);
        let kept_free = memory.bytes / 100 * self.config.free_percent_min;
        let missing = kept_free.saturating_sub(memory.free_bytes);
        let is_looked = for_writers.max(for_loads) > 0 || missing >= kept_free / MISSING_PART;
        if is_looked { for_writers.max(for_loads).max(missing) } else { 0 }
    }

    /// Bytes to evict ahead of loads while readers catch up, unless a reader is on its way to them: a load that has to ask
    /// lets the disk wait. Half of what is kept for loads, made good when half of that is left: to look through all
    /// segments for each load would be much work.
    ///
    /// When nobody has used the log for long it is all of them.
    fn spare_bytes(&self, memory: &Memory) -> u64 {
        if self.keeper.is_unused.swap(false, Ordering::Relaxed) {
            return u64::MAX;
        }
        let spare_bytes = memory.load_bytes / 2;
        let is_short = memory.load_free_bytes < spare_bytes / 2 && self.readers.lock().is_reading_ahead();
        if is_short { spare_bytes - memory.load_free_bytes } else { 0 }
    }

    /// Evicts `wanted_bytes`, and of what no reader is on its way to up to `spare_bytes`.
    fn evict(&self, host: &H, wanted_bytes: u64, spare_bytes: u64) -> u64 {
        let now_us = self.now_us();
        let candidates = self.clean.lock().candidates();
        // A copy, so that who begins to read a segment does not wait until all that could go is sorted.
        let places = self.readers.lock().places(now_us);
        let (order, unwanted) = eviction_order(candidates, places);
        let (mut evicted_bytes, mut evicted) = (0, 0);
        for (n, candidate) in order.into_iter().enumerate() {
            if evicted_bytes >= if n < unwanted { wanted_bytes.max(spare_bytes) } else { wanted_bytes } {
                break;
            }
            if host.evict(candidate.id) {
                evicted_bytes += candidate.bytes;
                evicted += 1;
            }
            self.clean.lock().remove(candidate.id);
        }
        if evicted > 0 {
            self.keeper.evicted_segments.fetch_add(evicted, Ordering::Relaxed);
            self.keeper.evicted_bytes.fetch_add(evicted_bytes, Ordering::Relaxed);
            self.disks.iter().for_each(|part| part.load_signal.notify());
        }
        evicted_bytes
    }

    /// Nothing to evict and not enough on its way to disk: memory is in open segments, and the coldest of them are closed.
    /// Not again before those had a chance to be written.
    fn close_cold(&self, host: &H) -> Step {
        let now_us = self.now_us();
        let again_us = self.keeper.close_again_us.load(Ordering::Relaxed);
        if now_us < again_us {
            return Step::Until(again_us);
        }
        self.keeper.close_again_us.store(now_us + CLOSE_AGAIN_US, Ordering::Relaxed);
        if host.close_coldest() > 0 { Step::Again } else { Step::Idle }
    }
}

/// Bytes that are missing for somebody who has asked for so many.
fn missing_of(asked_bytes: u64, memory: &Memory) -> u64 {
    match asked_bytes.saturating_sub(memory.free_bytes) {
        // There is enough of it, but in pieces: more has to go until some of them join.
        0 if memory.largest_free_bytes < asked_bytes => asked_bytes,
        short => short,
    }
}
