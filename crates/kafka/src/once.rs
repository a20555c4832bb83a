//! Requests that name something again and again. A few bytes ask for it each time, and an answer to it may be large: who told of it as often as it
//! is named would let a short request take all memory there is. On whatever thread answers the request.

use std::collections::HashSet;
use std::hash::Hash;

/// Leaves out what has come before, by its key; the order stays.
pub(crate) fn once<T, K: Eq + Hash>(
    all: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> impl Iterator<Item = T> {
    let mut seen = HashSet::new();
    all.into_iter().filter(move |one| seen.insert(key(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_is_left_out_and_the_order_stays() {
        let all = once([(3, 'a'), (1, 'b'), (3, 'c'), (2, 'd'), (1, 'e')], |(number, _)| *number);
        assert_eq!(all.collect::<Vec<_>>(), [(3, 'a'), (1, 'b'), (2, 'd')]);
    }
}
