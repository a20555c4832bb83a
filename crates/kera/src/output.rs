//! What commands print: tables for people, JSON for programs, and a pipe that may close at any time.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use kera_server::units::human_count;
use serde::Serialize;

use crate::error::CliError;

/// Prints text to standard output. A reader that has gone away ends the command quietly, and well: who has more to do, or an outcome to tell by its
/// status, does that before it returns this.
///
/// # Errors
/// [`CliError::pipe_closed`], or what the operating system says.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| write_error(&error))
}

/// Says something on standard error, on a line of its own. If nobody takes it, or the disk that it goes to is full, it is not said, and that is all:
/// whatever is being done goes on, and ends with its own status.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The error of a write to standard output.
pub fn write_error(error: &io::Error) -> CliError {
    if error.kind() == ErrorKind::BrokenPipe {
        CliError::pipe_closed()
    } else {
        CliError::failure(format!("standard output: {error}"))
    }
}

/// Prints a value as indented JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::failure(error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Has a person type a word before something is done that cannot be undone. `lost`: what would be gone, for who is not at a terminal.
///
/// # Errors
/// Standard input is no terminal, or something else was typed.
pub fn have_typed(word: &str, question: &str, lost: impl FnOnce() -> String) -> Result<(), CliError> {
    match answer(question, lost)?.trim() == word {
        true => Ok(()),
        false => Err(CliError::failure("nothing was changed")),
    }
}

/// Has a person agree to what does not come back. `lost`: what would be gone, for who is not at a terminal. `kept`: what is as it was, for who does not
/// agree.
///
/// # Errors
/// Standard input is no terminal, or something else than yes was typed.
pub fn agreed(question: &str, lost: &str, kept: &str) -> Result<(), CliError> {
    let typed = answer(&format!("{question} [y/N] "), || lost.to_owned())?;
    if is_yes(&typed) { Ok(()) } else { Err(CliError::failure(kept)) }
}

fn is_yes(typed: &str) -> bool {
    matches!(typed.trim(), "y" | "Y" | "yes")
}

/// The line that a person types when asked. Who is not at a terminal must have said before that it is to be done.
fn answer(question: &str, lost: impl FnOnce() -> String) -> Result<String, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::usage(lost()).next("pass --yes to say so"));
    }
    let ask = || -> io::Result<String> {
        let mut errors = io::stderr().lock();
        errors.write_all(question.as_bytes()).and_then(|()| errors.flush())?;
        let mut typed = String::new();
        io::stdin().read_line(&mut typed)?;
        Ok(typed)
    };
    ask().map_err(|error| CliError::failure(format!("standard input: {error}")))
}

/// So many of something, in words: `1 streamlet`, `2 streamlets`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number of records, in words: `1 record`, `2,000 records`.
pub fn records_of(count: u64) -> String {
    format!("{} record{}", human_count(count), if count == 1 { "" } else { "s" })
}

/// Which nodes were not heard, as a sentence without its end; nothing if all were.
pub fn not_heard(unheard: &[u32]) -> Option<String> {
    let nodes: Vec<String> = unheard.iter().map(|node| format!("node {node}")).collect();
    let verb = if nodes.len() == 1 { "was" } else { "were" };
    (!nodes.is_empty()).then(|| format!("{} {verb} not heard", nodes.join(", ")))
}

/// Whether standard output is a terminal.
pub fn on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Rewrites text from a place on so that a terminal only shows it: control characters, but for tabs and line ends, and bytes that are no text become like `\x1b`.
pub fn make_harmless(text: &mut Vec<u8>, begin: usize) {
    let is_harmless = |c: char| !c.is_control() || matches!(c, '\t' | '\n');
    if std::str::from_utf8(&text[begin..]).is_ok_and(|text| text.chars().all(is_harmless)) {
        return;
    }
    let escape = |bytes: &[u8], text: &mut Vec<u8>| {
        for byte in bytes {
            text.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    };
    for part in text.split_off(begin).utf8_chunks() {
        for c in part.valid().chars() {
            let mut encoded = [0; 4];
            let bytes = c.encode_utf8(&mut encoded).as_bytes();
            if is_harmless(c) { text.extend_from_slice(bytes) } else { escape(bytes, text) }
        }
        escape(part.invalid(), text);
    }
}

/// The same of JSON, which stays what it is. Of control characters it has no other ones in its texts as they are than those from DEL on, and some terminals take commands of them, too.
pub fn make_json_harmless(text: &mut Vec<u8>, begin: usize) {
    let is_harmless = |c: char| !c.is_control() || c < '\x7f';
    let Ok(json) = std::str::from_utf8(&text[begin..]) else { return };
    if json.chars().all(is_harmless) {
        return;
    }
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if is_harmless(c) { shown.push(c) } else { shown.push_str(&format!("\\u{:04x}", u32::from(c))) }
    }
    text.truncate(begin);
    text.extend_from_slice(shown.as_bytes());
}

/// A table with a header; numbers to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(header: &[&str]) -> Table {
        Table { rows: vec![header.iter().map(|name| (*name).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text.
    pub fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width = |c: usize| self.rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        // Neither a date nor an address.
        let is_number = |cell: &str| {
            cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                && !cell.chars().skip(1).any(|c| ":-".contains(c))
        };
        let right: Vec<bool> = (0..columns)
            .map(|c| {
                self.rows.len() > 1 && self.rows[1..].iter().all(|row| row.get(c).is_some_and(|cell| is_number(cell)))
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let gap = if c == 0 { "" } else { "  " };
                let width = widths[c];
                let padded = if right[c] { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(gap);
                line.push_str(&padded);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Names and values, one per line, the values in one column.
pub fn facts(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_yes_is_taken_for_it() {
        assert!(["y\n", "Y\n", "yes\n", " yes \r\n"].into_iter().all(is_yes));
        assert!(!["", "\n", "n\n", "no\n", "yess\n", "y n\n"].into_iter().any(is_yes));
    }

    #[test]
    fn what_a_terminal_would_take_for_a_command_is_shown() {
        let shown = |bytes: &[u8]| {
            let mut text = b"\x1b".to_vec();
            text.extend_from_slice(bytes);
            make_harmless(&mut text, 1);
            assert_eq!(text[0], 0x1b, "what is in front of it stays");
            String::from_utf8(text[1..].to_vec()).expect("text")
        };
        assert_eq!(shown("gr\u{fc}n\tund so\n".as_bytes()), "gr\u{fc}n\tund so\n");
        assert_eq!(shown(b"\x1b[2Jgone\r\x7f\n"), "\\x1b[2Jgone\\x0d\\x7f\n");
        assert_eq!(shown(b"\xff\x00a\xc3\xbc\xc3\n"), "\\xff\\x00a\u{fc}\\xc3\n");
        assert_eq!(shown("\u{9b}2J".as_bytes()), "\\xc2\\x9b2J");
    }

    #[test]
    fn what_a_terminal_would_take_for_a_command_is_escaped_in_json() {
        for (json, shown) in [
            ("{\"value\":\"gr\u{fc}n\"}\n", "{\"value\":\"gr\u{fc}n\"}\n"),
            ("{\"value\":{\t\"a\": \"\u{9b}2J\u{7f}\"}}\n", "{\"value\":{\t\"a\": \"\\u009b2J\\u007f\"}}\n"),
        ] {
            let mut text = ["\u{9b}", json].concat().into_bytes();
            make_json_harmless(&mut text, "\u{9b}".len());
            assert_eq!(
                String::from_utf8(text).expect("text"),
                ["\u{9b}", shown].concat(),
                "what is in front of it stays"
            );
            let read = |json: &str| serde_json::from_str::<serde_json::Value>(json).expect("JSON");
            assert_eq!(read(shown), read(json), "it says the same");
        }
    }

    #[test]
    fn columns_line_up_and_numbers_stand_to_the_right() {
        let mut table = Table::new(&["NAME", "RECORDS", "NOTE"]);
        table.row(["flights".into(), "1,234".into(), String::new()]);
        table.row(["o".into(), "5".into(), "x".into()]);
        assert_eq!(table.text(), "NAME     RECORDS  NOTE\nflights    1,234\no              5  x\n");
        let mut table = Table::new(&["SINCE", "AT"]);
        table.row(["2026-11-28".into(), "127.0.0.1:7070".into()]);
        table.row(["2026-1-2".into(), "127.0.0.1:70".into()]);
        assert_eq!(table.text(), "SINCE       AT\n2026-11-28  127.0.0.1:7070\n2026-1-2    127.0.0.1:70\n");
        assert_eq!(facts(&[("a", "1".into()), ("bcd", "2".into())]), "a    1\nbcd  2\n");
    }
}
