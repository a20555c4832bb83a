//! What a setting may hold: its kind, its limits, and how text becomes a value. Pure; used while the configuration is
//! loaded, before any thread is started.

use std::path::PathBuf;

use crate::suggest::nearest;
use crate::units::{exact_bytes, exact_duration, parse_bytes, parse_duration_ms};

/// The kind of a setting, with its limits. Bytes, milliseconds and counts are `u64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A path; relative ones start at the working directory.
    Path,
    /// A path, or one word that stands for none.
    OptionalPath {
        /// The word.
        word: &'static str,
    },
    /// Any number of paths: a list in the file, separated by commas elsewhere.
    Paths,
    /// `HOST:PORT` to listen on; port 0 takes a free one.
    Address,
    /// The same, or `none`.
    OptionalAddress,
    /// `HOST:PORT` to listen on, which others are told: a port of 0 is none. Whoever listens there refuses it, for a node that does not may have it in its file.
    ToldAddress,
    /// `HOST:PORT` that others are told, or that is another node's, or `none`: a port of 0 is none.
    OptionalToldAddress,
    /// A size.
    Bytes(Range),
    /// A time span.
    Duration(Range),
    /// A number.
    Count(Range),
    /// One of several words.
    Choice(&'static [&'static str]),
    /// One or more of several words, with commas between. What others there are is told by who looks at all of a configuration.
    Words(&'static [&'static str]),
    /// Any text that is not empty.
    Text,
    /// How much is logged, of all and of single modules.
    Levels,
    /// `true` or `false`.
    Switch,
}

/// Limits of a number, both allowed, and maybe a word that stands for "no number".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The smallest allowed value.
    pub min: u64,
    /// The largest allowed value.
    pub max: u64,
    /// `auto` or `none`, if that is allowed.
    pub word: Option<&'static str>,
}

/// From `min` to `max`.
pub(super) const fn range(min: u64, max: u64) -> Range {
    Range { min, max, word: None }
}

/// From `min` to `max`, or `word`.
pub(super) const fn range_or(word: &'static str, min: u64, max: u64) -> Range {
    Range { min, max, word: Some(word) }
}

/// A checked value on its way from text to the typed field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text, a word or an address.
    Text(String),
    /// A size, time or count.
    Number(u64),
    /// A switch.
    Switch(bool),
    /// Paths.
    Paths(Vec<PathBuf>),
    /// The word that stands for "no number", "no path" or "no address".
    Word,
}

/// A value as it is written in the file, before it is known what it should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// A flag, an environment variable or a string in the file.
    Text(String),
    /// An integer in the file.
    Integer(i64),
    /// A boolean in the file.
    Boolean(bool),
    /// A list of strings in the file.
    List(Vec<String>),
    /// Anything else in the file, by the name of its type.
    Other(&'static str),
}

impl Kind {
    /// What the kind allows, in words; for messages and the page of settings.
    pub fn allowed(&self) -> String {
        let bounds = |range: &Range, show: fn(u64) -> String| {
            let numbers = match (range.min, range.max) {
                (min, u64::MAX) => format!("{} or more", show(min)),
                (min, max) => format!("{} to {}", show(min), show(max)),
            };
            range.word.map_or(numbers.clone(), |word| format!("{numbers}, or `{word}`"))
        };
        match self {
            Kind::Path => "a path".into(),
            Kind::OptionalPath { word } => format!("a path, or `{word}`"),
            Kind::Paths => "a list of paths".into(),
            Kind::Address => "`HOST:PORT`; port 0 takes a free one".into(),
            Kind::OptionalAddress => "`HOST:PORT`; port 0 takes a free one; or `none`".into(),
            Kind::ToldAddress => "`HOST:PORT`; the port is not 0".into(),
            Kind::OptionalToldAddress => "`HOST:PORT`; the port is not 0; or `none`".into(),
            Kind::Bytes(range) => bounds(range, exact_bytes),
            Kind::Duration(range) => bounds(range, exact_duration),
            Kind::Count(range) => bounds(range, |n| n.to_string()),
            Kind::Choice(words) => listed(words),
            Kind::Words(words) => format!("{}; several are separated by commas", listed(words)),
            Kind::Text => "any text".into(),
            Kind::Levels => {
                format!("{}; several are separated by commas, with `MODULE=LEVEL` among them", listed(&LEVELS))
            }
            Kind::Switch => "`true` or `false`".into(),
        }
    }

    /// The value that was written, checked.
    ///
    /// # Errors
    /// What is wrong and what is allowed, as a sentence without the name of the setting.
    pub fn read(&self, written: &Written) -> Result<Value, String> {
        match (self, written) {
            (_, Written::Text(text)) => self.read_text(text),
            (Kind::Count(range) | Kind::Bytes(range), Written::Integer(n)) => match u64::try_from(*n) {
                Ok(value) => self.in_range(range, value, &n.to_string()),
                Err(_) => Err(format!("{n} is negative; allowed is {}", self.allowed())),
            },
            (Kind::Duration(_), Written::Integer(n)) => {
                Err(format!("{n} has no unit; write it as text, like \"{n}ms\" or \"{n}s\""))
            }
            (Kind::Switch, Written::Boolean(value)) => Ok(Value::Switch(*value)),
            (Kind::Paths, Written::List(paths)) => {
                if paths.iter().any(String::is_empty) {
                    return Err("one of the paths is empty".into());
                }
                Ok(Value::Paths(paths.iter().map(PathBuf::from).collect()))
            }
            (_, other) => Err(format!("{} stands where {} belongs", other.type_name(), self.allowed())),
        }
    }

    fn read_text(&self, text: &str) -> Result<Value, String> {
        let trimmed = text.trim();
        let is = |word: &str| trimmed.eq_ignore_ascii_case(word);
        match self {
            Kind::Path | Kind::Text | Kind::Words(_) | Kind::OptionalPath { .. } if trimmed.is_empty() => {
                Err(format!("it is empty; allowed is {}", self.allowed()))
            }
            Kind::OptionalPath { word } if is(word) => Ok(Value::Word),
            Kind::Path | Kind::Text | Kind::Words(_) | Kind::OptionalPath { .. } => Ok(Value::Text(text.into())),
            Kind::Paths => {
                let paths = trimmed.split(',').map(str::trim).filter(|p| !p.is_empty()).map(PathBuf::from);
                Ok(Value::Paths(paths.collect()))
            }
            Kind::OptionalAddress | Kind::OptionalToldAddress if is("none") => Ok(Value::Word),
            Kind::Address | Kind::OptionalAddress | Kind::ToldAddress => {
                check_address(trimmed).map(|_| Value::Text(trimmed.into()))
            }
            Kind::OptionalToldAddress => match check_address(trimmed)? {
                0 => Err(format!(
                    "`{trimmed}`: whoever connects must know the port, and 0 is none; allowed is 1 to 65535"
                )),
                _ => Ok(Value::Text(trimmed.into())),
            },
            Kind::Bytes(range) | Kind::Duration(range) | Kind::Count(range) => {
                if range.word.is_some_and(is) {
                    return Ok(Value::Word);
                }
                let value = match self {
                    Kind::Bytes(_) => parse_bytes(trimmed)?,
                    Kind::Duration(_) => parse_duration_ms(trimmed)?,
                    _ => (trimmed.replace('_', "").parse::<u64>())
                        .map_err(|_| format!("`{trimmed}` is not a number; allowed is {}", self.allowed()))?,
                };
                self.in_range(range, value, trimmed)
            }
            Kind::Levels => self.read_levels(trimmed),
            Kind::Choice(words) => match words.iter().find(|word| is(word)) {
                Some(word) => Ok(Value::Text((*word).into())),
                None => Err(format!("`{trimmed}` is none of {}", self.allowed())),
            },
            Kind::Switch => match trimmed.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Ok(Value::Switch(true)),
                "false" | "no" | "off" | "0" => Ok(Value::Switch(false)),
                _ => Err(format!("`{trimmed}` is neither `true` nor `false`")),
            },
        }
    }

    /// What filters log lines takes a word that is no level for a module, of which then everything is logged, and nothing of all others; and a module with a space in front of it for none
    /// that there is. A slip would silence the node.
    fn read_levels(&self, text: &str) -> Result<Value, String> {
        let all: Vec<&str> = text.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
        if all.is_empty() {
            return Err(format!("it is empty; allowed is {}", self.allowed()));
        }
        match all.iter().find_map(|one| wrong_level(one)) {
            Some(wrong) => Err(format!("{wrong}; allowed is {}", self.allowed())),
            None => Ok(Value::Text(all.join(","))),
        }
    }

    fn in_range(&self, range: &Range, value: u64, written: &str) -> Result<Value, String> {
        if (range.min..=range.max).contains(&value) {
            Ok(Value::Number(value))
        } else {
            let side = if value < range.min { "too small" } else { "too large" };
            Err(format!("{written} is {side}; allowed is {}", self.allowed()))
        }
    }

    /// The value as it is written in the file, so that reading it gives the same value.
    pub fn write(&self, value: &Value) -> String {
        match (self, value) {
            (Kind::Bytes(_), Value::Number(n)) => exact_bytes(*n),
            (Kind::Duration(_), Value::Number(n)) => exact_duration(*n),
            (_, Value::Number(n)) => n.to_string(),
            (_, Value::Text(text)) => text.clone(),
            (_, Value::Switch(on)) => on.to_string(),
            (_, Value::Paths(paths)) => paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(","),
            (Kind::Bytes(r) | Kind::Duration(r) | Kind::Count(r), Value::Word) => r.word.unwrap_or("none").into(),
            (Kind::OptionalPath { word }, Value::Word) => (*word).into(),
            (_, Value::Word) => "none".into(),
        }
    }

    /// The placeholder in a flag's help: `--listen HOST:PORT`.
    pub fn placeholder(&self) -> &'static str {
        match self {
            Kind::Path | Kind::OptionalPath { .. } => "DIR",
            Kind::Paths => "DIR,…",
            Kind::Address | Kind::OptionalAddress | Kind::ToldAddress | Kind::OptionalToldAddress => "HOST:PORT",
            Kind::Bytes(_) => "BYTES",
            Kind::Duration(_) => "TIME",
            Kind::Count(_) => "N",
            Kind::Choice(_) => "WORD",
            Kind::Words(_) => "WORD,…",
            Kind::Text => "TEXT",
            Kind::Levels => "LEVEL",
            Kind::Switch => "BOOL",
        }
    }
}

impl Written {
    fn type_name(&self) -> &'static str {
        match self {
            Written::Text(_) => "a text",
            Written::Integer(_) => "a number",
            Written::Boolean(_) => "true or false",
            Written::List(_) => "a list",
            Written::Other(name) => name,
        }
    }
}

/// Words as the page of settings has them.
fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// How much may be logged.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// What is wrong with a level, or one of a module, if something is.
fn wrong_level(text: &str) -> Option<String> {
    let (module, level) = text.rsplit_once('=').map_or((None, text), |(module, level)| (Some(module), level));
    let is_name =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if module.is_some_and(|module| !module.split("::").all(is_name)) {
        return Some(format!("`{text}` does not begin with the name of a module, like `kera_broker=debug`"));
    }
    if LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known)) {
        return None;
    }
    let meant = nearest(level, LEVELS).map(|level| format!("; did you mean `{level}`?"));
    Some(format!("`{level}` is no level{}", meant.unwrap_or_default()))
}

/// The port if `text` looks like `HOST:PORT`. Whether the host exists is found out when the node listens.
fn check_address(text: &str) -> Result<u16, String> {
    let help = "an address is HOST:PORT, like 127.0.0.1:7070 or [::1]:7070";
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("`{text}` has no port; {help}"));
    };
    if host.is_empty() {
        return Err(format!("`{text}` has no host; {help}; 0.0.0.0 is every interface"));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(format!("`{text}`: an IPv6 address stands in brackets; {help}"));
    }
    port.parse().map_err(|_| format!("`{text}`: the port `{port}` is not a number from 0 to 65535; {help}"))
}

/// A typed field that a checked [`Value`] can be put into. The kind of the setting guarantees that it fits; a value
/// that does not (a mistake in the table of settings) becomes the type's default, which a test rules out.
pub trait Field {
    /// The field for a value.
    fn from_value(value: Value) -> Self;
    /// The value of the field.
    fn to_value(&self) -> Value;
}

impl Field for String {
    fn from_value(value: Value) -> String {
        if let Value::Text(text) = value { text } else { String::new() }
    }
    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl Field for PathBuf {
    fn from_value(value: Value) -> PathBuf {
        String::from_value(value).into()
    }
    fn to_value(&self) -> Value {
        Value::Text(self.display().to_string())
    }
}

impl Field for Vec<PathBuf> {
    fn from_value(value: Value) -> Vec<PathBuf> {
        if let Value::Paths(paths) = value { paths } else { Vec::new() }
    }
    fn to_value(&self) -> Value {
        Value::Paths(self.clone())
    }
}

impl Field for u64 {
    fn from_value(value: Value) -> u64 {
        if let Value::Number(n) = value { n } else { 0 }
    }
    fn to_value(&self) -> Value {
        Value::Number(*self)
    }
}

impl Field for bool {
    fn from_value(value: Value) -> bool {
        value == Value::Switch(true)
    }
    fn to_value(&self) -> Value {
        Value::Switch(*self)
    }
}

impl<T: Field> Field for Option<T> {
    fn from_value(value: Value) -> Option<T> {
        if value == Value::Word { None } else { Some(T::from_value(value)) }
    }
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Word, Field::to_value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["127.0.0.1:7070", "localhost:0", "[::1]:9", "node-1.example:65535"] {
            assert_eq!(Kind::Address.read_text(good), Ok(Value::Text(good.into())));
        }
        for bad in ["localhost", ":7070", "::1:7070", "localhost:65536", "localhost:http", ""] {
            assert!(Kind::Address.read_text(bad).unwrap_err().contains("HOST:PORT"), "{bad}");
        }
        assert_eq!(Kind::OptionalAddress.read_text("none"), Ok(Value::Word));
        assert!(Kind::Address.read_text("none").is_err());
        for kind in [Kind::ToldAddress, Kind::OptionalToldAddress] {
            assert_eq!(kind.read_text("h:1"), Ok(Value::Text("h:1".into())));
            assert!(kind.read_text("h").unwrap_err().contains("HOST:PORT") && !kind.allowed().contains("free one"));
        }
        assert_eq!(Kind::OptionalToldAddress.read_text("none"), Ok(Value::Word));
        let refused = Kind::OptionalToldAddress.read_text("h:0").unwrap_err();
        assert!(refused.contains("`h:0`: whoever connects must know the port"), "{refused}");
        assert_eq!(Kind::ToldAddress.read_text("h:0"), Ok(Value::Text("h:0".into())));
    }

    #[test]
    fn numbers_keep_their_limits() {
        let kind = Kind::Bytes(range_or("auto", 64 << 10, 1 << 30));
        assert_eq!(kind.read(&Written::Text("1MiB".into())), Ok(Value::Number(1 << 20)));
        assert_eq!(kind.read(&Written::Integer(1 << 20)), Ok(Value::Number(1 << 20)));
        assert_eq!(kind.read(&Written::Text("AUTO".into())), Ok(Value::Word));
        let small = kind.read(&Written::Text("1KiB".into())).unwrap_err();
        assert_eq!(small, "1KiB is too small; allowed is 64KiB to 1GiB, or `auto`");
        assert!(kind.read(&Written::Integer(-1)).unwrap_err().contains("negative"));
        assert!(kind.read(&Written::Boolean(true)).unwrap_err().contains("true or false stands where 64KiB"));
    }

    #[test]
    fn a_time_without_a_unit_is_refused() {
        let kind = Kind::Duration(range(0, 1 << 40));
        assert!(kind.read(&Written::Integer(30)).unwrap_err().contains("\"30ms\" or \"30s\""));
    }

    #[test]
    fn a_word_that_is_no_level_is_not_taken_for_a_module() {
        let read = |text: &str| Kind::Levels.read_text(text);
        for good in ["info", "WARN", "off", "kera_broker=debug", "info,kera_log::store=trace,openraft=off"] {
            assert_eq!(read(good), Ok(Value::Text(good.into())));
        }
        assert_eq!(read(" info, kera_broker=debug, "), Ok(Value::Text("info,kera_broker=debug".into())));
        let bad = [
            "warning",
            "verbose",
            "inf",
            "kera_broker",
            "info,kera_broker",
            "kera_broker=loud",
            "=info",
            "a b=info",
            "",
            ",",
        ];
        for bad in bad {
            assert!(read(bad).unwrap_err().contains("`error`, `warn`, `info`"), "{bad}");
        }
        assert!(read("inf").unwrap_err().starts_with("`inf` is no level; did you mean `info`?"), "{:?}", read("inf"));
    }

    #[test]
    fn lists_and_choices() {
        assert_eq!(Kind::Paths.read_text("a, b,"), Ok(Value::Paths(vec!["a".into(), "b".into()])));
        assert_eq!(Kind::Paths.read_text(""), Ok(Value::Paths(vec![])));
        assert!(Kind::Paths.read(&Written::List(vec!["a".into(), String::new()])).is_err());
        let kind = Kind::Choice(&["text", "json"]);
        assert_eq!(kind.read_text("JSON"), Ok(Value::Text("json".into())));
        assert!(kind.read_text("xml").unwrap_err().contains("none of `text`, `json`"));
    }
}
