//! What `crates/server/src/cluster/mender.rs` and `crates/server/src/node/scrub.rs` do, by turns, and disks that change what a node has stored.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use kera_broker::{MendFrom, NotGathered};
use kera_coordinator::cluster::ClusterState;
use kera_env::{AlignedBuffer, Disk, OpenMode};
use kera_format::SegmentId;
use kera_format::container::{BATCH_MAGIC, CONTAINER_MAGIC, PAGE_BYTES, Trailer};
use kera_format::segment::{SEGMENT_HEADER_BYTES, SEGMENT_MAGIC};
use kera_log::{Log, Mender, Scrubber};

use super::copies::{Copies, lock};
use super::faults::Fault;
use super::node::{Node, Running};
use super::recovering::Worker;
use super::world::World;

/// Segments that a disk has lost, in the order in which that was noticed.
#[derive(Default)]
pub(super) struct Damaged(Mutex<VecDeque<SegmentId>>);

impl Mender for Damaged {
    fn damaged(&self, id: SegmentId, _: &str) -> bool {
        lock(&self.0).push_back(id);
        true
    }
}

impl Damaged {
    pub(super) fn of(log: &Log, mends_nothing: bool) -> Arc<Damaged> {
        let damaged = Arc::<Damaged>::default();
        if !mends_nothing {
            log.mend_with(damaged.clone());
        }
        damaged
    }
}

impl Running {
    /// Begins to look for a segment that the disk has lost. Whether there is one.
    pub(super) fn mend(&mut self, known: &ClusterState, live: BTreeSet<u32>) -> bool {
        while let Some(id) = lock(&self.damaged.0).pop_front() {
            let Some(of) = self.log.damaged_segment(id) else {
                self.log.not_mended(id, "it is not looked for any more".to_owned());
                continue;
            };
            let from = may_have(&self.copies, known, self.number, id);
            self.recovery.workers[2] = Some(Worker::mend(&self.log, of, from, live));
            return true;
        }
        false
    }

    /// A worker has put a segment on the disk again, or has not found it.
    pub(super) fn mended(&mut self, id: SegmentId, done: Result<(), NotGathered>) {
        self.recovery.workers[2] = None;
        if let Err(not) = done {
            self.log.not_mended(id, not.reason);
        }
    }

    /// Reads all that is on the disk. How many segments are damaged of which that was not known.
    pub(super) fn scrub(&self) -> u64 {
        let mut scrubber = Scrubber::new(self.log.clone(), self.store.clone());
        std::iter::from_fn(|| scrubber.step()).map(|(_, damaged)| damaged).sum()
    }

    /// Whether its disk lacks nothing that it is to have.
    fn is_mended(&self) -> bool {
        self.scrub() == 0 && lock(&self.damaged.0).is_empty() && self.recovery.workers[2].is_none()
    }
}

/// Where copies of a segment may be.
fn may_have(copies: &Copies, known: &ClusterState, node: u32, id: SegmentId) -> Vec<MendFrom> {
    let mut from = Vec::new();
    for log in copies.all() {
        let ranges = log.blocks_of(id).into_iter();
        from.extend(ranges.map(|(blocks, backups)| MendFrom { log: log.id(), blocks, backups, is_over: false }));
    }
    let old = known.blocks_of_earlier_lives(node).into_iter();
    from.extend(old.map(|(log, blocks, backups)| MendFrom { log, blocks, backups, is_over: true }));
    from
}

impl World {
    /// Changes a bit of a segment that a node has stored. Others have it, and its owner may be asked for it no more.
    pub(super) fn rot(&mut self, node: u32) -> bool {
        // A start looks once at what the disk has, before it joins; here it does so again when it has joined.
        let joins = self.node(node).process.as_ref().is_some_and(|process| process.running.is_none());
        if self.plan.has_one_copy() || joins || !self.survives(&[node], &[node], false) {
            return false;
        }
        // Also of what says where segments are: without that nobody knows what is lost when the node starts again.
        let only_images = self.below(2) == 0;
        let pages = pages(&self.node(node).memory, only_images).unwrap_or_default();
        if pages.is_empty() {
            return false;
        }
        let (path, page) = &pages[self.below(pages.len() as u64) as usize];
        let skipped = if only_images { SEGMENT_HEADER_BYTES as u64 } else { 0 };
        let offset = page * PAGE_BYTES as u64 + skipped;
        let (more, bit) = (self.below(PAGE_BYTES as u64 - skipped), self.below(8) as u8);
        let at = self.node_mut(node);
        at.is_flipped = true;
        if let Some(running) = at.running() {
            running.store.evict_unused();
        }
        at.memory.flip_bit(path, offset + more, bit).is_ok()
    }

    /// Looks through a node's disk, in runs whose disks change.
    pub(super) fn scrub(&mut self, node: u32) {
        if self.plan.only.contains(&Fault::Rot)
            && let Some(running) = self.node_mut(node).running()
        {
            running.scrub();
        }
    }
}

impl World {
    /// Disks that are still to be mended. Nothing else is lost before that: a segment that its owner has lost is in fewer copies. But one that was compacted
    /// may be in none, and is with the next start only.
    pub(super) fn damaged(&self) -> Vec<String> {
        let changes = self.plan.only.contains(&Fault::Rot) && !self.plan.kind.is_compacted();
        let running = |node: &Node| node.process.as_ref()?.running.as_ref().map(|running| !running.is_mended());
        let damaged = self.nodes.iter().filter(|node| changes && running(node) == Some(true));
        damaged.map(|node| format!("the disk of node {} has lost something", node.number)).collect()
    }
}

/// The first pages of the images on a disk, or those that say where they are, by their files.
fn pages(disk: &dyn Disk, only_images: bool) -> std::io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for name in disk.list("containers")?.into_iter().filter(|name| name.ends_with(".kera")) {
        let path = format!("containers/{name}");
        let file = disk.open(&path, OpenMode::Read, false)?;
        let (bytes, mut page) = (file.len()?, AlignedBuffer::zeroed(PAGE_BYTES));
        let pages = bytes / PAGE_BYTES as u64;
        file.read_at(pages.saturating_sub(1) * PAGE_BYTES as u64, &mut page)?;
        // A footer begins as an image does.
        let end = Trailer::parse(&page, bytes).map_or(pages, |trailer| trailer.at / PAGE_BYTES as u64);
        for at in 0..end {
            file.read_at(at * PAGE_BYTES as u64, &mut page)?;
            let begins =
                [SEGMENT_MAGIC, CONTAINER_MAGIC, BATCH_MAGIC].map(|magic| page.starts_with(&magic.to_le_bytes()));
            if if only_images { begins[0] } else { begins[1] || begins[2] } {
                found.push((path.clone(), at));
            }
        }
    }
    Ok(found)
}
