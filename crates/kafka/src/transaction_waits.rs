//! Who waits for the end of a transaction: sessions on a node that is alone, owners of partitions in a cluster.
//!
//! Many transactions end each second while others are waited for, so an end is told to those that wait for it, and to nobody else. Called on
//! any thread, also under a coordinator's lock; never waits, and calls nobody.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Those that wait, by the transactional id whose transaction is to end.
pub(crate) struct EndWaits<T>(Mutex<HashMap<String, Vec<T>>>);

impl<T> Default for EndWaits<T> {
    fn default() -> EndWaits<T> {
        EndWaits(Mutex::default())
    }
}

impl<T> EndWaits<T> {
    /// One more waits for the end of the transaction of `id`.
    pub(crate) fn add(&self, id: String, one: T) {
        self.0.lock().entry(id).or_default().push(one);
    }

    /// Those that wait for the end of the transaction of `id`, who wait no more.
    pub(crate) fn take(&self, id: &str) -> Vec<T> {
        self.0.lock().remove(id).unwrap_or_default()
    }

    /// Those that are such, whatever they wait for, who wait no more.
    pub(crate) fn take_if(&self, is_such: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        self.0.lock().retain(|_, of| {
            taken.extend(of.extract_if(.., |one| is_such(one)));
            !of.is_empty()
        });
        taken
    }

    /// All of them, who wait no more.
    pub(crate) fn take_all(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock()).into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_to_those_that_wait_for_it_and_to_nobody_else() {
        let waits = EndWaits::default();
        for (id, one) in [("first", 1), ("second", 2), ("first", 3), ("third", 4)] {
            waits.add(id.to_owned(), one);
        }
        assert_eq!(waits.take("first"), [1, 3]);
        assert!(waits.take("first").is_empty());
        assert!(waits.take("of nobody").is_empty());
        let mut rest = waits.take_all();
        rest.sort_unstable();
        assert_eq!(rest, [2, 4]);
        assert!(waits.take_all().is_empty());
    }
}
