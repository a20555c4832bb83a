//! Records as `kera consume --json` prints them, one a line: keys, value, timestamp and version as they were. Headers cannot be kept, and
//! are counted.

use std::borrow::Cow;
use std::io::BufRead;

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::value::RawValue;

use super::{Row, RowError, RowSource, read_line};
use crate::encoding::unhex;
use crate::when::parse_instant;

pub(super) struct RecordRows {
    input: Box<dyn BufRead + Send>,
    text: Vec<u8>,
    line: u64,
}

/// What is read of a line. Where a record was is not.
#[derive(serde::Deserialize)]
struct Written<'a> {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    key_hex: Option<String>,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    keys_hex: Vec<String>,
    /// Of none there is `null`, which is not the same as not to be there.
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(default)]
    value_hex: Option<String>,
    #[serde(borrow, default)]
    timestamp: Option<&'a RawValue>,
    #[serde(default)]
    version: Option<u64>,
    #[serde(default)]
    headers: Vec<IgnoredAny>,
    #[serde(default)]
    headers_hex: Vec<IgnoredAny>,
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl RecordRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>) -> RecordRows {
        RecordRows { input, text: Vec::new(), line: 0 }
    }

    fn fill(&self, row: &mut Row) -> Result<(), RowError> {
        let wrong = |field: Option<&str>, what: String| RowError::new(self.line, field, what);
        let written: Written<'_> = serde_json::from_slice(&self.text).map_err(|error| {
            let what = error.to_string();
            let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
            wrong(None, format!("this is no record: {what} (column {})", error.column()))
        })?;
        let hex = |field: &str, text: &str| {
            unhex(text.as_bytes()).ok_or_else(|| wrong(Some(field), format!("`{text}` is not hexadecimal")))
        };
        let mut keys: Vec<Vec<u8>> = written.key.into_iter().chain(written.keys).map(String::into_bytes).collect();
        for text in written.key_hex.iter() {
            keys.push(hex("key_hex", text)?);
        }
        for text in &written.keys_hex {
            keys.push(hex("keys_hex", text)?);
        }
        let mut keys = keys.into_iter();
        (row.key, row.more_keys) = (keys.next(), keys.collect());
        row.value.clear();
        row.no_value = false;
        match (written.value, &written.value_hex) {
            (None, None) => {
                let message = "there is no `value` and no `value_hex`; `\"value\": null` is a record without a value";
                return Err(wrong(None, message.into()));
            }
            (_, Some(text)) => row.value = hex("value_hex", text)?,
            (Some(raw), None) if raw.get() == "null" => row.no_value = true,
            (Some(raw), None) => row.value.extend_from_slice(text_of(raw).as_bytes()),
        }
        row.version = written.version;
        row.headers = (written.headers.len() + written.headers_hex.len()) as u64;
        row.timestamp_ms = None;
        if let Some(raw) = written.timestamp {
            let text = text_of(raw);
            let Some(at) = parse_instant(&text) else {
                let message = format!("`{text}` is no time; it is like 2026-01-31T12:00:00Z, or a number since 1970");
                return Err(wrong(Some("timestamp"), message));
            };
            row.timestamp_ms = Some(at);
        }
        Ok(())
    }
}

impl RowSource for RecordRows {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        loop {
            self.line += 1;
            row.line = self.line;
            if !read_line(&mut *self.input, self.line, &mut self.text)? {
                return Ok(false);
            }
            if !self.text.trim_ascii().is_empty() {
                self.fill(row)?;
                return Ok(true);
            }
        }
    }
}

/// The text of a string, anything else as it is written.
fn text_of(raw: &RawValue) -> Cow<'_, str> {
    serde_json::from_str(raw.get()).map_or(Cow::Borrowed(raw.get()), |text: String| Cow::Owned(text))
}
