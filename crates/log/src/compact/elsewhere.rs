//! Which tombstones may go while other nodes have some of the streamlet.
//!
//! A move leaves groups where they were written, so what a tombstone hides may be at another node, which compacts what it has by itself. There the
//! record stays for as long as nothing later of its key is at that node. So a tombstone stays as well, unless no node that has
//! groups of earlier owners has a value of its key (`docs/decisions/0037-tombstones-look-at-other-nodes.md`).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use kera_format::ChunkView;

use super::AllCommitted;
use super::map::KeyHash;
use super::rewrite::{Rules, has_values};
use crate::lane::Lane;

/// Who has the groups of some owner epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// This node, all of them.
    Here,
    /// Another one, by its number.
    Node(u32),
    /// They are lost at the one that had them, and may come here.
    Nobody,
}

/// Groups of a streamlet at one node: from this owner epoch on, up to the next run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first owner epoch.
    pub first_epoch: u32,
    /// Who has them.
    pub holder: Holder,
}

/// What compaction must know of other nodes.
pub trait Others: Send + Sync {
    /// Who has the groups of a lane's streamlet, the earliest first. `None`: nobody can say so now, or some may still come to this node.
    fn runs(&self, lane: &Lane) -> Option<Vec<Run>>;

    /// Calls `each` with every chunk that another node has of a lane in groups of these owner epochs, until that returns false. An error unless it
    /// was called with all of them. May wait, for some seconds.
    fn read(
        &self,
        lane: &Lane,
        node: u32,
        epochs: Range<u32>,
        each: &mut dyn FnMut(&ChunkView<'_>) -> bool,
    ) -> Result<(), String>;
}

/// What a pass does with tombstones whose time is up.
pub(super) struct Tombstones<'a> {
    others: Option<&'a dyn Others>,
    runs: Option<Vec<Run>>,
    /// Of values at other nodes, once they are asked for; an inner `None`: they cannot be known in this pass.
    values: Option<Option<Arc<HashSet<KeyHash>>>>,
    keys_max: usize,
}

/// What becomes of the tombstones of a segment.
#[derive(Clone, Debug)]
pub(crate) enum Goes {
    /// Nothing that they hide is anywhere else.
    All,
    /// That is not known.
    None,
    /// It has not been looked yet.
    Unknown,
    /// Those of keys that are not among these.
    But(Arc<HashSet<KeyHash>>),
}

impl<'a> Tombstones<'a> {
    pub(super) fn new(others: Option<&'a dyn Others>, lane: &Lane, keys_max: usize) -> Tombstones<'a> {
        Tombstones { others, runs: others.and_then(|others| others.runs(lane)), values: None, keys_max }
    }

    /// Of a segment in a group of this owner epoch.
    pub(super) fn of(&self, epoch: u32) -> Goes {
        if self.others.is_none() {
            return Goes::All;
        }
        let Some(runs) = &self.runs else { return Goes::None };
        let at = runs.partition_point(|run| run.first_epoch <= epoch).saturating_sub(1);
        if runs.get(at).map(|run| run.holder) != Some(Holder::Here) {
            return Goes::None;
        }
        let before = &runs[..at];
        if before.iter().all(|run| run.holder == Holder::Here) {
            return Goes::All;
        }
        match &self.values {
            Some(Some(values)) => Goes::But(Arc::clone(values)),
            Some(None) => Goes::None,
            None => Goes::Unknown,
        }
    }

    /// Looks which keys have values at other nodes. `go_on` is asked now and then; what has no end because of it counts as not known.
    pub(super) fn look(&mut self, lane: &Lane, hash: &dyn Fn(&[u8]) -> KeyHash, go_on: &mut dyn FnMut() -> bool) {
        let mut values = HashSet::new();
        let whole = self.read_all(lane, &mut |chunk| {
            let fits = has_values(chunk, &AllCommitted, &mut |key| _ = values.insert(hash(key)));
            fits && values.len() <= self.keys_max && go_on()
        });
        if let Err(error) = &whole {
            tracing::debug!(?lane, error, "tombstones stay: what other nodes have is not known");
        }
        self.values = Some(whole.is_ok().then(|| Arc::new(values)));
    }

    fn read_all(&self, lane: &Lane, each: &mut dyn FnMut(&ChunkView<'_>) -> bool) -> Result<(), String> {
        let (Some(others), Some(runs)) = (self.others, &self.runs) else { return Err("nobody says who has it".into()) };
        let last_here = runs.iter().rposition(|run| run.holder == Holder::Here).unwrap_or(0);
        for (run, next) in runs[..last_here].iter().zip(&runs[1..]) {
            match run.holder {
                Holder::Here => {}
                Holder::Nobody => return Err("some of it is lost and may come here".into()),
                Holder::Node(node) => others.read(lane, node, run.first_epoch..next.first_epoch, each)?,
            }
        }
        Ok(())
    }
}

impl Rules<'_> {
    /// Whether a tombstone whose time is up may go.
    pub(super) fn lets_go(&self, key: &[u8]) -> bool {
        match &self.tombstones {
            Goes::All => true,
            Goes::None => false,
            Goes::Unknown => {
                self.asks.set(true);
                false
            }
            Goes::But(values) => !values.contains(&self.map.hash(key)),
        }
    }
}
