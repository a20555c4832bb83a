//! Where readers start, as people write it: points in time, and back: `2001-01-01 00:47`, `2026-01-01T12:00:00Z`, `1767225600000`, `2h`; or the
//! number of a record, `ordinal:1000`.
//! Pure but for [`parse_start`], which takes "now" from the machine.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use kera_client::Start;
use kera_server::units::parse_duration_ms;

/// Where a reader starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At the first record there is.
    Earliest,
    /// After the last record there is.
    Latest,
    /// At the first record appended at or after this time, milliseconds since 1970.
    At(i64),
    /// At the record with this number in each lane; at the first one there is if that is gone.
    Ordinal(u64),
}

/// Reads `earliest`, `latest`, `ordinal:` and a number, an instant, or a time span that is taken back from `now_ms`: `2h` is two hours ago.
///
/// # Errors
/// What would be right, as a sentence.
pub fn parse_when(text: &str, now_ms: i64) -> Result<When, String> {
    match text.trim() {
        "earliest" => return Ok(When::Earliest),
        "latest" => return Ok(When::Latest),
        _ => {}
    }
    if let Some(number) = text.trim().strip_prefix("ordinal:") {
        let wrong = |_| format!("`{text}` is no number of a record; it is like ordinal:1000");
        return number.parse().map(When::Ordinal).map_err(wrong);
    }
    if let Some(at) = parse_instant(text) {
        return Ok(When::At(at));
    }
    let span = text.trim().trim_start_matches('-').trim_end_matches("ago").trim_end();
    match parse_duration_ms(span) {
        Ok(ms) if span != "0" => Ok(When::At(now_ms.saturating_sub(i64::try_from(ms).unwrap_or(i64::MAX)))),
        _ => Err(format!(
            "`{text}` is no point in time; it is `earliest`, `latest`, a time like 2026-01-31T12:00:00Z, milliseconds \
             since 1970, how long ago, like 2h, or the number of a record, like ordinal:1000"
        )),
    }
}

/// As [`parse_when`], with the machine's clock, for a reader.
///
/// # Errors
/// What would be right, as a sentence.
pub fn parse_start(text: &str) -> Result<Start, String> {
    Ok(match parse_when(text, now_ms())? {
        When::Earliest => Start::Earliest,
        When::Latest => Start::Latest,
        When::At(ms) => Start::TimeMs(ms),
        When::Ordinal(number) => Start::Ordinal(number),
    })
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Reads an instant as milliseconds since 1970: a date with or without time (`-` or `/` between its numbers, `T` or a
/// space before the time, `Z` or an offset at the end; without one it is UTC), or a number of seconds, milliseconds,
/// microseconds or nanoseconds since 1970, told apart by size; and what [`show_instant`] writes of times that no date stands for.
pub fn parse_instant(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Some(number) = text.strip_suffix("ms") {
        // What dates stand for is none: `500ms` is how long ago.
        return number.parse::<i64>().ok().filter(|ms| !DATES.contains(ms));
    }
    if text.len() >= 9 && text.bytes().all(|b| b.is_ascii_digit()) {
        return epoch_number(text.parse().ok()?);
    }
    let (date, rest) = text.split_at_checked(10).filter(|(date, _)| date.is_ascii())?;
    let separator = date.as_bytes()[4];
    if !matches!(separator, b'-' | b'/') || date.as_bytes()[7] != separator {
        return None;
    }
    let day = days_from_civil(digits(&date[0..4])?, digits(&date[5..7])?, digits(&date[8..10])?)?;
    let day_ms = day * 86_400_000;
    let Some(time) = rest.strip_prefix(['T', 't', ' ']) else {
        return rest.is_empty().then_some(day_ms);
    };
    let zone_at = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (time, zone) = time.split_at(zone_at);
    Some(day_ms + time_of_day_ms(time)? - zone_ms(zone)?)
}

/// A number of seconds or smaller units since 1970, in milliseconds.
pub fn epoch_number(number: i64) -> Option<i64> {
    match number {
        0..100_000_000_000 => Some(number * 1000),
        100_000_000_000..100_000_000_000_000 => Some(number),
        100_000_000_000_000..100_000_000_000_000_000 => Some(number / 1000),
        100_000_000_000_000_000.. => Some(number / 1_000_000),
        _ => None,
    }
}

fn digits(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn time_of_day_ms(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let (hour, minute) = (digits(parts.next()?)?, digits(parts.next()?)?);
    let (second, fraction) = match parts.next() {
        None => (0, 0),
        Some(second) => {
            let (whole, fraction) = second.split_once('.').unwrap_or((second, "0"));
            let thousandths = format!("{:0<3}", fraction.get(..fraction.len().min(3))?);
            (digits(whole)?, digits(&thousandths)?)
        }
    };
    let fits = hour < 24 && minute < 60 && second < 61 && parts.next().is_none();
    fits.then_some(((hour * 60 + minute) * 60 + second) * 1000 + fraction)
}

fn zone_ms(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first() {
        None | Some(b'Z' | b'z') if text.len() <= 1 => return Some(0),
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return None,
    };
    let offset = text[1..].replace(':', "");
    let (hours, minutes) = offset.split_at_checked(2)?;
    let minutes = if minutes.is_empty() { 0 } else { digits(minutes)? };
    Some(sign * (digits(hours)? * 60 + minutes) * 60_000)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; `None` if there is no such date.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month_index = usize::try_from(month - 1).ok()?;
    if day < 1 || day > *days_of.get(month_index)? {
        return None;
    }
    let years_before = year - 1;
    let days = years_before * 365 + years_before.div_euclid(4) - years_before.div_euclid(100)
        + years_before.div_euclid(400)
        + days_of[..month_index].iter().sum::<i64>()
        + day
        - 1;
    Some(days - 719_162)
}

/// Milliseconds since 1970 that a date with four digits of a year stands for: the years 1 to 9999.
const DATES: RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// Writes milliseconds since 1970 as `2026-01-31T12:00:00.000Z`; outside the years 1 to 9999 as their number with its unit, as in
/// `1767225600000000ms`: without it that would be read as microseconds.
pub fn show_instant(ms: i64) -> String {
    if !DATES.contains(&ms) {
        return format!("{ms}ms");
    }
    let (days, rest) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let mut year = 1970 + days.div_euclid(366).min(days.div_euclid(365));
    while days_from_civil(year + 1, 1, 1).is_some_and(|first| first <= days) {
        year += 1;
    }
    let mut month = 12;
    while days_from_civil(year, month, 1).is_some_and(|first| first > days) {
        month -= 1;
    }
    let day = days - days_from_civil(year, month, 1).unwrap_or(days) + 1;
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, fraction) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_in_many_spellings() {
        let noon = 978_350_400_000;
        for text in [
            "2001-01-01T12:00:00Z",
            "2001-01-01 12:00",
            "2001/01/01 12:00",
            "2001-01-01T13:00:00.000+01:00",
            "2001-01-01t07:00-0500",
            "978350400",
            "978350400000",
            "978350400000000",
            "978350400000000000",
        ] {
            assert_eq!(parse_instant(text), Some(noon), "{text}");
        }
        assert_eq!(parse_instant("2001-01-01"), Some(noon - 12 * 3_600_000));
        assert_eq!(parse_instant("1970-01-01T00:00:00.5Z"), Some(500));
    }

    #[test]
    fn what_is_no_instant() {
        for text in [
            "",
            "yesterday",
            "2001-13-01",
            "2001-02-29",
            "2001-1-1",
            "2001-01-01 25:00",
            "2001-01-01X",
            "12",
            "2001-01-01T12:00+1",
        ] {
            assert_eq!(parse_instant(text), None, "{text}");
        }
        assert!(parse_instant("2000-02-29").is_some());
    }

    #[test]
    fn starts() {
        assert_eq!(parse_when("earliest", 0), Ok(When::Earliest));
        assert_eq!(parse_when("latest", 0), Ok(When::Latest));
        assert_eq!(parse_when("2h", 10_000_000), Ok(When::At(2_800_000)));
        assert_eq!(parse_when("30m ago", 10_000_000), Ok(When::At(8_200_000)));
        assert_eq!(parse_when("500ms", 10_000), Ok(When::At(9_500)), "a time span");
        assert_eq!(parse_when("1970-01-02", 0), Ok(When::At(86_400_000)));
        assert!(parse_when("earlyest", 0).unwrap_err().contains("`earliest`, `latest`"));
    }

    #[test]
    fn instants_are_written_as_they_are_read() {
        assert_eq!(show_instant(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(show_instant(-1), "1969-12-31T23:59:59.999Z");
        let mut ms = -62_000_000_000_000;
        for ms in [253_402_300_800_000, 1_767_225_600_000_000, i64::MAX, -62_135_596_800_001, i64::MIN] {
            assert_eq!(show_instant(ms), format!("{ms}ms"));
            assert_eq!(parse_instant(&show_instant(ms)), Some(ms));
        }
        while ms < 253_000_000_000_000 {
            assert_eq!(parse_instant(&show_instant(ms)), Some(ms));
            ms += 86_400_000 * 17 + 12_345_678;
        }
    }
}
