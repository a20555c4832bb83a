//! Records as JSON, one a line: what `kera consume --json` prints.
//!
//! Nothing is changed on the way: what is not text is printed in hexadecimal under another name, and a value that is a JSON object or
//! array is put in as it is written, so that the order of its fields and all digits of its numbers stay.

use kera_client::{ConsumedRecord, RecordView};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::encoding::hex;
use crate::when::show_instant;

/// Names and values of headers, as text or in hexadecimal.
type Headers = Vec<(String, Option<String>)>;

/// A record. Of fields that differ only by `_hex` there is one at most.
#[derive(Serialize)]
pub struct RecordJson<'a> {
    streamlet: u32,
    lane: u32,
    ordinal: u64,
    appended: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(flatten)]
    keys: Option<Keys<'a>>,
    #[serde(flatten)]
    headers: Option<HeadersJson>,
    #[serde(flatten)]
    value: ValueJson<'a>,
}

#[derive(Serialize)]
enum Keys<'a> {
    #[serde(rename = "key")]
    Text(&'a str),
    #[serde(rename = "key_hex")]
    Hex(String),
    #[serde(rename = "keys")]
    Texts(Vec<&'a str>),
    #[serde(rename = "keys_hex")]
    AllHex(Vec<String>),
}

#[derive(Serialize)]
enum HeadersJson {
    #[serde(rename = "headers")]
    Text(Headers),
    #[serde(rename = "headers_hex")]
    Hex(Headers),
}

#[derive(Serialize)]
enum ValueJson<'a> {
    #[serde(rename = "value")]
    Nothing(()),
    #[serde(rename = "value")]
    Text(&'a str),
    #[serde(rename = "value")]
    Structured(Box<RawValue>),
    #[serde(rename = "value_hex")]
    Hex(String),
}

impl<'a> RecordJson<'a> {
    /// Of a record and its `view`.
    pub fn new(record: &ConsumedRecord, view: &RecordView<'a>) -> RecordJson<'a> {
        RecordJson {
            streamlet: record.streamlet.0,
            lane: record.lane.0,
            ordinal: record.ordinal,
            appended: show_instant(record.append_time_ms),
            timestamp: view.timestamp_ms().map(show_instant),
            version: view.version(),
            keys: keys(view.keys().collect()),
            headers: headers(record.headers().collect()),
            value: value(view.value()),
        }
    }
}

fn keys(keys: Vec<&[u8]>) -> Option<Keys<'_>> {
    let texts: Option<Vec<&str>> = keys.iter().map(|key| std::str::from_utf8(key).ok()).collect();
    Some(match (&keys[..], texts) {
        ([], _) => return None,
        ([_], Some(texts)) => Keys::Text(texts[0]),
        ([key], None) => Keys::Hex(hex(key)),
        (_, Some(texts)) => Keys::Texts(texts),
        (_, None) => Keys::AllHex(keys.into_iter().map(hex).collect()),
    })
}

fn headers(headers: Vec<(&[u8], Option<&[u8]>)>) -> Option<HeadersJson> {
    if headers.is_empty() {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let texts = headers.iter().map(|(name, value)| match value {
        Some(value) => Some((text(name)?, Some(text(value)?))),
        None => Some((text(name)?, None)),
    });
    Some(match texts.collect() {
        Some(texts) => HeadersJson::Text(texts),
        None => HeadersJson::Hex(headers.into_iter().map(|(name, value)| (hex(name), value.map(hex))).collect()),
    })
}

fn value(bytes: Option<&[u8]>) -> ValueJson<'_> {
    let Some(bytes) = bytes else { return ValueJson::Nothing(()) };
    let Ok(text) = std::str::from_utf8(bytes) else { return ValueJson::Hex(hex(bytes)) };
    match structured(text) {
        Some(raw) => ValueJson::Structured(raw),
        None => ValueJson::Text(text),
    }
}

/// A JSON object or array, as it is written but for line ends, which are white space there and would end the line.
fn structured(text: &str) -> Option<Box<RawValue>> {
    if !text.starts_with(['{', '[']) || !text.ends_with(['}', ']']) {
        return None;
    }
    RawValue::from_string(text.replace(['\n', '\r'], " ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: Option<&[u8]>) -> String {
        serde_json::to_string(&value(bytes)).unwrap()
    }

    #[test]
    fn values_keep_their_digits_and_the_order_of_their_fields() {
        for written in [
            r#"{"n":12345678901234567890123,"f":0.1234567890123456789012345,"b":1,"a":2}"#,
            r#"{"large":1e400}"#,
            r#"[{"b": 1, "a":"\u0041"}]"#,
        ] {
            assert_eq!(shown(Some(written.as_bytes())), format!(r#"{{"value":{written}}}"#));
        }
        assert_eq!(shown(Some(b"{\n \"a\": 1\n}")), r#"{"value":{  "a": 1 }}"#, "a record is one line");
        assert_eq!(shown(Some(b"{\"a\":")), r#"{"value":"{\"a\":"}"#);
        assert_eq!(shown(Some(b"null")), r#"{"value":"null"}"#);
        assert_eq!(shown(None), r#"{"value":null}"#);
        assert_eq!(shown(Some(b"\xff\x00")), r#"{"value_hex":"ff00"}"#);
    }

    #[test]
    fn a_key_that_is_no_text_is_not_taken_for_one() {
        let shown = |of: Vec<&[u8]>| serde_json::to_string(&keys(of)).unwrap();
        assert_eq!(shown(vec![b"fffe"]), r#"{"key":"fffe"}"#);
        assert_eq!(shown(vec![b"\xff\xfe"]), r#"{"key_hex":"fffe"}"#);
        assert_eq!(shown(vec![b"a", b"b"]), r#"{"keys":["a","b"]}"#);
        assert_eq!(shown(vec![b"a", b"\xff"]), r#"{"keys_hex":["61","ff"]}"#);
    }

    #[test]
    fn headers_that_are_no_text_are_not_taken_for_it() {
        let shown = |of: Vec<(&[u8], Option<&[u8]>)>| serde_json::to_string(&headers(of)).unwrap();
        assert_eq!(shown(vec![(b"a", Some(b"1")), (b"b", None)]), r#"{"headers":[["a","1"],["b",null]]}"#);
        assert_eq!(shown(vec![(b"a", Some(b"\xff"))]), r#"{"headers_hex":[["61","ff"]]}"#);
        assert_eq!(shown(vec![]), "null");
    }
}
