//! Sets of numbers as intervals: what was acknowledged, what was seen.

use std::collections::BTreeMap;
use std::ops::Range;

/// Numbers, kept as the fewest half-open intervals. Adding behind the last interval, the usual case, is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalSet {
    /// Start to end; neither overlapping nor touching.
    intervals: BTreeMap<u64, u64>,
}

impl IntervalSet {
    /// Adds a range and gives the parts of it that were in the set already.
    pub fn insert(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut known = Vec::new();
        if range.is_empty() {
            return known;
        }
        if let Some(mut last) = self.intervals.last_entry()
            && *last.get() == range.start
        {
            *last.get_mut() = range.end;
            return known;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Everything that overlaps or touches is taken out and becomes part of one interval.
        let first =
            self.intervals.range(..=start).next_back().map_or(start, |(&s, &e)| if e >= start { s } else { start });
        let touched: Vec<(u64, u64)> = self.intervals.range(first..=end).map(|(&s, &e)| (s, e)).collect();
        for (s, e) in touched {
            self.intervals.remove(&s);
            let overlap = s.max(range.start)..e.min(range.end);
            if !overlap.is_empty() {
                known.push(overlap);
            }
            start = start.min(s);
            end = end.max(e);
        }
        self.intervals.insert(start, end);
        known
    }

    /// Whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        self.intervals.range(..=number).next_back().is_some_and(|(_, &end)| number < end)
    }

    /// The parts of `range` that are not in the set, in order.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        let before = self.intervals.range(..=range.start).next_back();
        let inside = self.intervals.range(range.start.saturating_add(1)..range.end.max(range.start.saturating_add(1)));
        for (&start, &end) in before.into_iter().chain(inside) {
            if start > at {
                missing.push(at..start.min(range.end));
            }
            at = at.max(end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// The intervals in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.intervals.iter().map(|(&start, &end)| start..end)
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.iter().map(|interval| interval.end - interval.start).sum()
    }

    /// One more than the largest number; zero if there is none.
    pub fn end(&self) -> u64 {
        self.intervals.last_key_value().map_or(0, |(_, &end)| end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn agrees_with_a_set_of_numbers(ranges in proptest::collection::vec((0u64..60, 0u64..12), 0..25)) {
            let mut set = IntervalSet::default();
            let mut model = std::collections::BTreeSet::new();
            for (start, length) in ranges {
                let range = start..start + length;
                let known: Vec<u64> = set.insert(range.clone()).into_iter().flatten().collect();
                let expected: Vec<u64> = range.clone().filter(|n| model.contains(n)).collect();
                prop_assert_eq!(known, expected);
                model.extend(range);
                prop_assert_eq!(set.iter().flatten().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            }
            for start in 0..70u64 {
                prop_assert_eq!(set.contains(start), model.contains(&start));
                let missing: Vec<u64> = set.missing(start..start + 10).into_iter().flatten().collect();
                prop_assert_eq!(missing, (start..start + 10).filter(|n| !model.contains(n)).collect::<Vec<_>>());
            }
            prop_assert_eq!(set.count(), model.len() as u64);
            prop_assert_eq!(set.end(), model.last().map_or(0, |n| n + 1));
            let touching = set.iter().zip(set.iter().skip(1)).any(|(a, b)| a.end >= b.start);
            prop_assert!(!touching);
        }
    }
}
