//! What readers of a lane may see of what is durable in it, where somebody else decides that: transactions.

use std::fmt::Debug;
use std::sync::Arc;

use crate::lane::Lane;

/// Holds records of one lane back from readers, and has them pass over others. Set once for a lane, before the first record is
/// appended that it is about; readers look for it after they have read.
pub trait Visibility: Send + Sync + Debug {
    /// Up to which ordinal readers may read. `durable` is the lane's durable end, from before the call.
    fn end(&self, durable: u64) -> u64;

    /// Whether that is known. As long as it is not, [`end`](Visibility::end) lets nobody read, and says nothing of where readers are to begin or to stop.
    fn is_known(&self) -> bool {
        true
    }

    /// The producers whose records of transactions nobody may read, if some of those are in `from..to`: a producer's Kafka id, and
    /// the ordinal from which on that holds, until the marker that ends its transaction. In any order.
    fn hidden(&self, from: u64, to: u64) -> Vec<(i64, u64)>;
}

impl Lane {
    /// From now on readers see through it. The first one stays.
    pub fn set_visibility(&self, make: impl FnOnce() -> Arc<dyn Visibility>) {
        self.visibility.get_or_init(make);
    }

    /// What readers see through; `None`: all that is durable.
    #[inline]
    pub fn visibility(&self) -> Option<&Arc<dyn Visibility>> {
        self.visibility.get()
    }
}
