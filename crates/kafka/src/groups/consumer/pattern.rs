//! Patterns of names in the words of the `regex` crate. Kafka takes those of RE2J, most of which mean the same there.
//!
//! Two kinds do not: what is quoted, `\Q…\E`, as Java's `Pattern.quote` makes it, and general categories, `\pL`, `\p{Lu}`. The crate knows
//! the latter with tables of all of Unicode only, and compiled they are large. Names of topics are ASCII letters, digits, `.`, `_` and `-`
//! (`kera_format`'s `name_is_valid`), so what a category has of ASCII matches the same names.

/// The same pattern as the crate takes it. What is wrong in it stays as it is: the crate refuses that.
pub(super) fn translated(pattern: &str) -> String {
    let (mut said, mut rest, mut depth) = (String::with_capacity(pattern.len()), pattern, 0_usize);
    while let Some(first) = rest.chars().next() {
        // In a class nothing is quoted, for RE2J neither. Without its end a quotation goes to the pattern's.
        if let Some(quoted) = rest.strip_prefix("\\Q").filter(|_| depth == 0) {
            let (text, behind) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            said.push_str(&regex::escape(text));
            rest = behind;
            continue;
        }
        if let Some((class, behind)) = category(rest) {
            said.push_str(&class);
            rest = behind;
            continue;
        }
        let bytes = if let Some(behind) = rest.strip_prefix('\\') {
            // With what it escapes: behind an escaped backslash begins no quotation.
            1 + behind.chars().next().map_or(0, char::len_utf8)
        } else if let Some(behind) = rest.strip_prefix('[') {
            depth += 1;
            // A bracket right behind it is one of its characters.
            let inside = behind.strip_prefix('^').unwrap_or(behind);
            rest.len() - inside.strip_prefix(']').unwrap_or(inside).len()
        } else {
            depth -= usize::from(depth > 0 && first == ']');
            first.len_utf8()
        };
        let (text, behind) = rest.split_at(bytes);
        said.push_str(text);
        rest = behind;
    }
    said
}

/// The general category that a pattern begins with, as a class, which may stand in another one; and what is behind it.
fn category(pattern: &str) -> Option<(String, &str)> {
    let (is_other, behind) = match (pattern.strip_prefix("\\p"), pattern.strip_prefix("\\P")) {
        (Some(behind), _) => (false, behind),
        (None, behind) => (true, behind?),
    };
    let (name, behind) = match behind.strip_prefix('{') {
        Some(named) => named.split_once('}')?,
        None => behind.split_at_checked(1)?,
    };
    let (is_other, name) = name.strip_prefix('^').map_or((is_other, name), |name| (!is_other, name));
    let class = match name {
        "L" => "A-Za-z",
        "Lu" => "A-Z",
        "Ll" => "a-z",
        "N" | "Nd" => "0-9",
        "P" => r"._\-",
        "Pc" => "_",
        "Pd" => r"\-",
        "Po" => r"\.",
        _ => return None,
    };
    Some((format!("[{}{class}]", if is_other { "^" } else { "" }), behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_text() {
        for (pattern, said) in [
            (r"\Qorders.\E.*", r"orders\..*"),
            (r"\Qa", "a"),
            (r"\Q\E", ""),
            (r"\Q[a\E|\Q.b", r"\[a|\.b"),
            // As `Pattern.quote` quotes what has an end of a quotation in it.
            (r"\Qa\E\\E\Qb\E", r"a\\Eb"),
            // An escaped backslash, and then a letter.
            (r"\\Qa.\\E", r"\\Qa.\\E"),
            (r"\\\Qa.\E", r"\\a\."),
            // In a class it is nothing that there is.
            (r"[\Qa\E]\Q.\E", r"[\Qa\E]\."),
            (r"[]\Q]\Q.", r"[]\Q]\."),
            (r"[^]\Q]\Q.", r"[^]\Q]\."),
            (r"[[:alpha:]_]\Q.", r"[[:alpha:]_]\."),
            (r"\[\Q.\E]", r"\[\.]"),
            ("é\\", "é\\"),
        ] {
            assert_eq!(translated(pattern), said, "{pattern}");
        }
    }

    #[test]
    fn categories_are_what_names_have_of_them() {
        for (pattern, said) in [
            (r"\pL+\PN", "[A-Za-z]+[^0-9]"),
            (r"[\p{Lu}_]\p{^Lu}\P{^Ll}", "[[A-Z]_][^A-Z][a-z]"),
            (r"\\pL", r"\\pL"),
            (r"\p{Greek}\p{L", r"\p{Greek}\p{L"),
            (r"\p", r"\p"),
            (r"\pé", r"\pé"),
        ] {
            assert_eq!(translated(pattern), said, "{pattern}");
        }
    }
}
