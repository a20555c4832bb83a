//! Lists of numbers as people write them at the command line: `0-3,7`.
//!
//! Commas are cut by clap, which names the flag when a part of its list makes no sense. A part stays two numbers until it is known what there is:
//! a range takes no memory before that.

use std::collections::BTreeSet;

use kera_format::limits::{LANES_MAX, STREAMLETS_MAX};

/// Most nodes that one range may name: more than a cluster has.
const NODES_MAX: u64 = 1_000;

/// Numbers that follow each other, like 0-3, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    first: u32,
    last: u32,
}

impl Span {
    fn has(self, number: u32) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// Whether a number is among those that are named; if none are, all are meant.
pub fn are_meant(spans: &[Span], number: u32) -> bool {
    spans.is_empty() || spans.iter().any(|span| span.has(number))
}

/// The highest number of each part: if there are these, there are all.
pub fn highest(spans: &[Span]) -> Vec<u32> {
    spans.iter().map(|span| span.last).collect()
}

/// All numbers that are named, each once, in order. There are no more than the numbers that there can be.
pub fn each(spans: &[Span]) -> Vec<u32> {
    let all: BTreeSet<u32> = spans.iter().flat_map(|span| span.first..=span.last).collect();
    all.into_iter().collect()
}

/// A part of a list of streamlets.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn streamlets(text: &str) -> Result<Span, String> {
    span(text, "streamlet", STREAMLETS_MAX - 1)
}

/// A part of a list of lanes.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn lanes(text: &str) -> Result<Span, String> {
    span(text, "lane", LANES_MAX - 1)
}

/// A part of a list of nodes.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn nodes(text: &str) -> Result<Span, String> {
    let span = span(text, "node", u32::MAX)?;
    match u64::from(span.last - span.first) < NODES_MAX {
        true => Ok(span),
        false => Err(format!("`{}` names too many nodes; a range has {NODES_MAX} at most", text.trim())),
    }
}

/// A part of a list of such things, whose numbers go up to `highest`.
fn span(text: &str, what: &str, highest: u32) -> Result<Span, String> {
    let text = text.trim();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(format!(
            "`{text}` is no {what}'s number, and no range of them; name numbers and ranges with commas between, like 0-3,7"
        ));
    };
    if first > last {
        return Err(format!(
            "`{text}` runs backwards; a range is written with the smaller number first, like {last}-{first}"
        ));
    }
    match (u32::try_from(first), u32::try_from(last)) {
        (Ok(first), Ok(last)) if last <= highest => Ok(Span { first, last }),
        _ => Err(format!("`{text}` goes too far; the highest number that a {what} can have is {highest}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Vec<u32>, String> {
        let spans: Result<Vec<Span>, String> = text.split(',').map(streamlets).collect();
        spans.map(|spans| each(&spans))
    }

    #[test]
    fn ranges_and_numbers_make_a_list_in_which_each_is_once() {
        assert_eq!(list("0-3,7"), Ok(vec![0, 1, 2, 3, 7]));
        assert_eq!(list("7, 2 - 3,3,7-7"), Ok(vec![2, 3, 7]));
        assert_eq!(list("131071"), Ok(vec![131_071]));
        assert_eq!(nodes("4294967295").map(|span| highest(&[span])), Ok(vec![u32::MAX]));
        let spans = [streamlets("2-3").unwrap(), streamlets("7").unwrap()];
        assert_eq!(highest(&spans), [3, 7]);
        assert!(are_meant(&spans, 3) && are_meant(&spans, 7) && !are_meant(&spans, 4));
        assert!(are_meant(&[], 4), "all are meant if none is named");
    }

    /// The flag is named by clap; the bad part and what is allowed are told here.
    #[test]
    fn what_is_no_range_is_refused_with_its_part_and_what_is_allowed() {
        for part in ["", "x", "0-", "-3", "1-2-3", "0..3", "1.5", "-", "99999999999999999999"] {
            let said = streamlets(part).unwrap_err();
            assert!(said.starts_with(&format!("`{part}` is no streamlet's number")), "{said}");
            assert!(said.contains("like 0-3,7"), "{said}");
        }
        assert_eq!(
            lanes("3-0").unwrap_err(),
            "`3-0` runs backwards; a range is written with the smaller number first, like 0-3"
        );
        for (said, part, highest) in [
            (streamlets("0-4294967295"), "`0-4294967295`", "131071"),
            (streamlets("131072"), "`131072`", "131071"),
            (lanes("0-4096"), "`0-4096`", "4095"),
            (nodes("1-4294967296"), "`1-4294967296`", "4294967295"),
            (nodes("1-1001"), "`1-1001`", "1000 at most"),
        ] {
            let said = said.unwrap_err();
            assert!(said.starts_with(part) && said.ends_with(highest), "{said}");
        }
    }
}
