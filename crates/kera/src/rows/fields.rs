//! Picking fields out of a JSON object without building it: the object is checked as a whole, only the fields that
//! were asked for are kept.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Picks;

/// The fields of one object, as they are written.
#[derive(Default)]
pub(super) struct Picked<'a> {
    pub key: Option<&'a RawValue>,
    pub timestamp: Option<&'a RawValue>,
}

/// Checks that `json` is one JSON value and picks fields from it.
pub(super) fn pick<'a>(json: &'a [u8], picks: &Picks) -> Result<Picked<'a>, serde_json::Error> {
    let mut from = serde_json::Deserializer::from_slice(json);
    let picked = if picks.key.is_none() && picks.timestamp.is_none() {
        serde::Deserialize::deserialize(&mut from).map(|IgnoredAny| Picked::default())?
    } else {
        Seed(picks).deserialize(&mut from)?
    };
    from.end()?;
    Ok(picked)
}

struct Seed<'p>(&'p Picks);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Picked<'de>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Picked<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Picked<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object, because a field is picked from it")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Picked<'de>, A::Error> {
        let mut picked = Picked::default();
        while let Some(Name(name)) = map.next_key()? {
            let is = |pick: &Option<String>| pick.as_deref() == Some(&*name);
            match (is(&self.0.key), is(&self.0.timestamp)) {
                (false, false) => drop(map.next_value::<IgnoredAny>()?),
                (key, timestamp) => {
                    let value: &RawValue = map.next_value()?;
                    picked.key = if key { Some(value) } else { picked.key };
                    picked.timestamp = if timestamp { Some(value) } else { picked.timestamp };
                }
            }
        }
        Ok(picked)
    }
}

/// A name of a field, borrowed unless it has escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The names of the first fields of an object, for a message.
pub(super) fn names(json: &[u8]) -> String {
    const SHOWN_MAX: usize = 12;
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json).unwrap_or_default();
    let mut names: Vec<String> = object.keys().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    if object.len() > SHOWN_MAX {
        names.push("…".into());
    }
    if names.is_empty() { "no field".into() } else { names.join(", ") }
}

/// The bytes of a key: the text of a string, everything else as it is written. `None` for null.
pub(super) fn key_bytes(raw: &RawValue) -> Option<Vec<u8>> {
    let text = raw.get();
    if text == "null" {
        return None;
    }
    match serde_json::from_str::<Cow<'_, str>>(text) {
        Ok(unescaped) => Some(unescaped.into_owned().into_bytes()),
        Err(_) => Some(text.as_bytes().to_vec()),
    }
}

/// The text of a field: unquoted if it is a string.
pub(super) fn text(raw: &RawValue) -> String {
    serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
}
