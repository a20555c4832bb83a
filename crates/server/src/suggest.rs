//! "Did you mean": the known name nearest to one that is not known. Used where people type names (settings, streams,
//! applications), never on a hot path. Pure.

/// Longest name compared; longer ones get no suggestion.
const NAME_BYTES_MAX: usize = 256;

/// The candidate nearest to `name`, if one is near enough to be what was meant: a typo or two, another case, or `-`
/// for `_`. Ties go to the first.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let wanted = plain(name);
    candidates
        .into_iter()
        .filter(|c| c.len() <= NAME_BYTES_MAX)
        .map(|candidate| (distance(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= wanted.len().max(candidate.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn plain(name: &str) -> Vec<char> {
    name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_what_was_meant() {
        let names = ["flights", "orders", "http_listen", "listen"];
        assert_eq!(nearest("flihgts", names), Some("flights"));
        assert_eq!(nearest("Flight", names), Some("flights"));
        assert_eq!(nearest("http-listen", names), Some("http_listen"));
        assert_eq!(nearest("listne", names), Some("listen"));
    }

    #[test]
    fn does_not_guess_wildly() {
        assert_eq!(nearest("payments", ["flights", "orders"]), None);
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest("anything", []), None);
    }
}
