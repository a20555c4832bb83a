//! Which parts of a segment have come, in any order.

/// What is there: from, to; in order, never touching.
#[derive(Default)]
pub(crate) struct Spans(Vec<(u32, u32)>);

/// What becomes of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Nothing of it is there.
    New,
    /// All of it is.
    There,
    /// Some of it is: it cannot be of the same row.
    Across,
}

impl Spans {
    /// How a part lies to what is there.
    pub(crate) fn part(&self, from: u32, to: u32) -> Part {
        match self.0.get(self.behind(from)) {
            Some(&(start, end)) if start < to => {
                if start <= from && to <= end {
                    Part::There
                } else {
                    Part::Across
                }
            }
            _ => Part::New,
        }
    }

    /// Adds a part that is [new](Part::New).
    pub(crate) fn add(&mut self, from: u32, to: u32) {
        let at = self.behind(from);
        let spans = &mut self.0;
        let joins_before = at > 0 && spans[at - 1].1 == from;
        let joins_behind = spans.get(at).is_some_and(|(start, _)| *start == to);
        match (joins_before, joins_behind) {
            (true, true) => spans[at - 1].1 = spans.remove(at).1,
            (true, false) => spans[at - 1].1 = to,
            (false, true) => spans[at].0 = from,
            (false, false) => spans.insert(at, (from, to)),
        }
    }

    /// Whether just all from one place to another is there.
    pub(crate) fn are_all(&self, from: u32, to: u32) -> bool {
        self.0 == [(from, to)]
    }

    /// Bytes that are there.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(from, to)| u64::from(to - from)).sum()
    }

    fn behind(&self, from: u32) -> usize {
        self.0.partition_point(|(_, end)| *end <= from)
    }
}

#[cfg(test)]
mod tests {
    use kera_env::{Random, SeededRandom};

    use super::*;

    #[test]
    fn spans_say_the_same_as_a_table() {
        let random = SeededRandom::new(1);
        for _ in 0..500 {
            let (mut spans, mut table) = (Spans::default(), [false; 80]);
            for _ in 0..random.below(40) {
                let (from, bytes) = (random.below(60) as u32, 1 + random.below(19) as u32);
                let (to, place) = (from + bytes, &mut table[from as usize..(from + bytes) as usize]);
                let there = place.iter().filter(|is_there| **is_there).count();
                let is = match there {
                    0 => Part::New,
                    all if all == place.len() => Part::There,
                    _ => Part::Across,
                };
                assert_eq!(spans.part(from, to), is);
                if is == Part::New {
                    spans.add(from, to);
                    place.fill(true);
                }
                assert_eq!(spans.bytes(), table.iter().filter(|is_there| **is_there).count() as u64);
                let first = table.iter().position(|is_there| *is_there).unwrap_or(0);
                let last = table.iter().rposition(|is_there| *is_there).map_or(0, |last| last + 1);
                let is_one = first < last && table[first..last].iter().all(|is_there| *is_there);
                assert_eq!(spans.are_all(first as u32, last as u32), is_one);
            }
        }
    }
}
