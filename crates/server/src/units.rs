//! Sizes and times as people write them: `4GiB`, `7d`. Used by the configuration, the command line and the demo, on
//! any thread. Does no I/O; never rounds what it parses silently.

/// Bytes of a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes of a TiB.
pub const TIB: u64 = 1 << 40;

/// Milliseconds of a second.
pub const SECOND_MS: u64 = 1_000;
/// Milliseconds of a minute.
pub const MINUTE_MS: u64 = 60 * SECOND_MS;
/// Milliseconds of an hour.
pub const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Milliseconds of a day.
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// Unit names in lower case; the first of equals is how it is written back.
const BYTE_UNITS: &[(&str, u64)] = &[
    ("tib", TIB),
    ("gib", GIB),
    ("mib", MIB),
    ("kib", KIB),
    ("b", 1),
    ("", 1),
    ("t", TIB),
    ("g", GIB),
    ("m", MIB),
    ("k", KIB),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
];

const TIME_UNITS: &[(&str, u64)] = &[
    ("d", DAY_MS),
    ("h", HOUR_MS),
    ("m", MINUTE_MS),
    ("s", SECOND_MS),
    ("ms", 1),
    ("min", MINUTE_MS),
    ("w", 7 * DAY_MS),
];

/// Reads a size: a number with `B`, `KiB`, `MiB`, `GiB`, `TiB` (steps of 1024; `K`, `M`, `G`, `T` mean the same),
/// or `KB`, `MB`, `GB`, `TB` (steps of 1000). No unit means bytes. Case does not matter, decimals are allowed.
///
/// # Errors
/// What is wrong and what would be right, as a sentence without the name of the setting.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let help = "a size is a number with B, KiB, MiB, GiB or TiB, like 512MiB";
    let (number, unit) = split(text);
    let Some((_, factor)) = BYTE_UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)) else {
        return Err(format!("`{text}` is not a size: `{unit}` is no unit; {help}"));
    };
    let wrong = || match number {
        "" => format!("`{text}` is not a size: it has no number; {help}"),
        _ => format!("`{text}` is not a size: `{number}` is no number that fits; {help}"),
    };
    scale(number, *factor).ok_or_else(wrong)
}

/// Reads a time span in milliseconds: numbers with `ms`, `s`, `m` (or `min`), `h`, `d` or `w`, also several, like
/// `1h30m`. Zero needs no unit; every other number does, so that nobody takes seconds for milliseconds.
///
/// # Errors
/// What is wrong and what would be right, as a sentence without the name of the setting.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let help = "a time is a number with ms, s, m, h, d or w, like 500ms or 7d";
    let wrong = |why: String| format!("`{text}` is not a time: {why}; {help}");
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(0);
    }
    let (mut rest, mut total) = (trimmed, 0u64);
    if rest.is_empty() {
        return Err(wrong("it is empty".into()));
    }
    while !rest.is_empty() {
        let (number, tail) = split(rest);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let unit = tail[..end].trim();
        if unit.is_empty() {
            return Err(wrong(format!("`{number}` has no unit")));
        }
        let Some((_, factor)) = TIME_UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)) else {
            return Err(wrong(format!("`{unit}` is no unit")));
        };
        let part = scale(number, *factor).ok_or_else(|| wrong(format!("`{number}` is no number that fits")))?;
        total = total.checked_add(part).ok_or_else(|| wrong("it is too long".into()))?;
        rest = &tail[end..];
    }
    Ok(total)
}

/// The number at the start of `text` and what follows it, both trimmed.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

/// `number × factor`, exact for whole numbers; `None` when it is no number or does not fit.
fn scale(number: &str, factor: u64) -> Option<u64> {
    let number = number.replace('_', "");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let (whole, fraction) = number.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let part = fraction.parse::<u128>().ok()? * u128::from(factor) / 10u128.pow(fraction.len() as u32);
    whole.checked_mul(factor)?.checked_add(u64::try_from(part).ok()?)
}

/// Writes a size so that [`parse_bytes`] gives the same number: the largest unit that divides it.
pub fn exact_bytes(bytes: u64) -> String {
    for (name, factor) in [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{name}", bytes / factor);
        }
    }
    format!("{bytes}B")
}

/// Writes a time span so that [`parse_duration_ms`] gives the same number: the largest unit that divides it.
pub fn exact_duration(ms: u64) -> String {
    for (name, factor) in [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS)] {
        if ms >= factor && ms.is_multiple_of(factor) {
            return format!("{}{name}", ms / factor);
        }
    }
    if ms == 0 { "0s".into() } else { format!("{ms}ms") }
}

/// A size for people: three digits or so, like `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    for (name, factor) in [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)] {
        if bytes >= factor {
            let value = bytes as f64 / factor as f64;
            return if value < 10.0 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") };
        }
    }
    format!("{bytes} B")
}

/// A count for people, with thousands set apart: `1,234,567`.
pub fn human_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time span for people: the two largest units, like `2h 5m`.
pub fn human_duration(ms: u64) -> String {
    if ms < SECOND_MS {
        return format!("{ms} ms");
    }
    if ms < 10 * SECOND_MS {
        return format!("{:.1} s", ms as f64 / 1000.0);
    }
    let units = [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS)];
    let first = units.iter().position(|(_, factor)| ms >= *factor).unwrap_or(3);
    let (name, factor) = units[first];
    let mut text = format!("{}{name}", ms / factor);
    if let Some((next, next_factor)) = units.get(first + 1) {
        let rest = ms % factor / next_factor;
        if rest > 0 {
            text.push_str(&format!(" {rest}{next}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("4GiB", 4 * GIB),
            ("4 gib", 4 * GIB),
            ("4g", 4 * GIB),
            ("1.5MiB", 3 * MIB / 2),
            (".5k", 512),
            ("10MB", 10_000_000),
            ("1_000kb", 1_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_that_are_none_say_what_would_be() {
        for text in ["", "GiB", "4 apples", "4GiBs", "-1", "1.2.3MiB", "1.", "20000000TiB"] {
            let error = parse_bytes(text).expect_err(text);
            assert!(error.contains("like 512MiB"), "{error}");
        }
        assert!(parse_bytes("4Gibi").unwrap_err().contains("`Gibi` is no unit"));
        assert!(parse_bytes("20000000TiB").unwrap_err().contains("`20000000` is no number that fits"));
        assert!(parse_bytes("GiB").unwrap_err().contains("it has no number"));
    }

    #[test]
    fn times_with_one_or_more_units() {
        for (text, ms) in [
            ("0", 0),
            ("5ms", 5),
            ("1s", 1_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("2min", 120_000),
            ("7d", 7 * DAY_MS),
            ("1h30m", 90 * MINUTE_MS),
            ("1d 12h", 36 * HOUR_MS),
            ("2w", 14 * DAY_MS),
        ] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
    }

    #[test]
    fn times_that_are_none_say_what_would_be() {
        for text in ["", "5", "s", "5 parsecs", "1h30", "99999999999999999999d", "900000000000d"] {
            let error = parse_duration_ms(text).expect_err(text);
            assert!(error.contains("like 500ms or 7d"), "{error}");
        }
        assert!(parse_duration_ms("30").unwrap_err().contains("`30` has no unit"));
    }

    #[test]
    fn people_get_few_digits() {
        assert_eq!(human_bytes(512), "512 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(300 * MIB), "300 MiB");
        assert_eq!(human_count(0), "0");
        assert_eq!(human_count(999), "999");
        assert_eq!(human_count(1_234_567), "1,234,567");
        assert_eq!(human_duration(42), "42 ms");
        assert_eq!(human_duration(2_500), "2.5 s");
        assert_eq!(human_duration(125 * MINUTE_MS), "2h 5m");
        assert_eq!(human_duration(7 * DAY_MS), "7d");
    }

    proptest! {
        #[test]
        fn what_is_written_exactly_reads_back(value in 0u64..1 << 50) {
            prop_assert_eq!(parse_bytes(&exact_bytes(value)), Ok(value));
            prop_assert_eq!(parse_duration_ms(&exact_duration(value)), Ok(value));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse_bytes(&text);
            let _ = parse_duration_ms(&text);
        }
    }
}
