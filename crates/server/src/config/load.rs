//! From flags, environment and file to one checked configuration. Reads every source to its end and reports all
//! mistakes together. Used once at start and by `kera config`; reads the one file it is told to.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::kind::Written;
use super::{Config, SETTINGS, Setting};
use crate::suggest::nearest;

/// The most bytes a configuration file may have.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most mistakes that are kept; a file that is no configuration at all has many.
const MISTAKES_MAX: usize = 100;

/// Where settings come from. Flags win over the environment, the environment over the file, the file over defaults.
#[derive(Debug, Default, Clone)]
pub struct Sources {
    /// The file, if one is named.
    pub file: Option<PathBuf>,
    /// Environment variables; those that do not start with `KERA_` are not looked at.
    pub environment: Vec<(String, String)>,
    /// The names of those whose values are no text.
    pub unreadable: Vec<String>,
    /// Flags that were given, as (name without dashes, value).
    pub flags: Vec<(String, String)>,
}

/// Where a setting's value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The file, with the line.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Environment(name) => f.write_str(name),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where: `kera.toml:7`, `--listen`, `KERA_LISTEN`, or nothing for what concerns several settings.
    pub place: String,
    /// The setting as `section.key`, if one is meant.
    pub setting: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.place, &self.setting] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.message)
    }
}

/// All that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the configuration has {count} mistake{}:", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl std::error::Error for Mistakes {}

/// A configuration that is right, and where each value came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The origin of each setting, in the order of [`SETTINGS`].
    pub origins: Vec<Origin>,
    /// Remarks that stop nobody: environment variables that look like a misspelt setting.
    pub notices: Vec<String>,
}

/// Reads all sources.
///
/// # Errors
/// Every mistake in every source: unknown settings, wrong types, values out of range, values that contradict each
/// other, a file that cannot be read or is no TOML.
pub fn load(sources: &Sources) -> Result<Loaded, Mistakes> {
    let mut loader =
        Loader { config: Config::default(), origins: vec![Origin::Default; SETTINGS.len()], mistakes: Vec::new() };
    if let Some(path) = &sources.file {
        loader.file(path);
    }
    let notices = loader.environment(&sources.environment);
    loader.unreadable(&sources.unreadable);
    for (flag, text) in &sources.flags {
        match SETTINGS.iter().position(|s| s.flag == flag) {
            Some(index) => loader.set(index, &Written::Text(text.clone()), Origin::Flag(flag.clone())),
            None => loader.mistake(format!("--{flag}"), "", "there is no such flag".into()),
        }
    }
    for (settings, message) in loader.config.contradictions() {
        let place = settings.iter().map(|key| loader.place_of(key)).collect::<Vec<_>>().join(", ");
        loader.mistake(place, &settings.join(" and "), message);
    }
    let kafka_listen = SETTINGS.iter().position(|setting| setting.flag == "kafka-listen");
    loader.config.kafka_by_default = kafka_listen.is_some_and(|index| loader.origins[index] == Origin::Default);
    loader.mistakes.truncate(MISTAKES_MAX);
    if loader.mistakes.is_empty() {
        Ok(Loaded { config: loader.config, origins: loader.origins, notices })
    } else {
        Err(Mistakes(loader.mistakes))
    }
}

struct Loader {
    config: Config,
    origins: Vec<Origin>,
    mistakes: Vec<Mistake>,
}

impl Loader {
    fn mistake(&mut self, place: String, setting: &str, message: String) {
        self.mistakes.push(Mistake { place, setting: setting.into(), message });
    }

    fn set(&mut self, index: usize, written: &Written, origin: Origin) {
        let setting = &SETTINGS[index];
        match setting.kind.read(written) {
            Ok(value) => {
                self.config.assign(index, value);
                self.origins[index] = origin;
            }
            Err(message) => self.mistake(origin.to_string(), &setting.name(), message),
        }
    }

    fn place_of(&self, name: &str) -> String {
        let index = SETTINGS.iter().position(|s| s.name() == name);
        index.map_or_else(String::new, |index| self.origins[index].to_string())
    }

    /// Sets what variables say; returns remarks on those that look like a misspelt setting. Others are left alone:
    /// orchestrators put variables of their own beside ours.
    fn environment(&mut self, variables: &[(String, String)]) -> Vec<String> {
        let mut notices = Vec::new();
        let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
        for (name, text) in variables.iter().filter(|(name, _)| name.starts_with("KERA_")) {
            if let Some(index) = known.iter().position(|k| k == name) {
                self.set(index, &Written::Text(text.clone()), Origin::Environment(name.clone()));
            } else if let Some(meant) = nearest(&name[5..], known.iter().map(|k| &k[5..])) {
                notices.push(format!("{name} is not a setting and was not used; did you mean KERA_{meant}?"));
            }
        }
        notices
    }

    /// A value that cannot be read is one that somebody wants all the same: the default would be another one.
    fn unreadable(&mut self, variables: &[String]) {
        for setting in SETTINGS {
            if let Some(name) = variables.iter().find(|name| **name == setting.variable()) {
                let message = "its value is not UTF-8, as all values have to be".to_owned();
                self.mistake(name.clone(), &setting.name(), message);
            }
        }
    }

    fn file(&mut self, path: &Path) {
        let text = match read_file(path) {
            Ok(text) => text,
            Err(message) => return self.mistake(path.display().to_string(), "", message),
        };
        let line_of = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count();
        let (table, errors) = DeTable::parse_recoverable(&text);
        for error in errors {
            let line = error.span().map_or(1, |span| line_of(span.start));
            self.mistake(format!("{}:{line}", path.display()), "", error.message().trim().replace('\n', "; "));
        }
        let mut sections: Vec<_> = table.get_ref().iter().collect();
        sections.sort_by_key(|(name, _)| name.span().start);
        for (section, content) in sections {
            let place = |at: usize| Origin::File(path.to_owned(), line_of(at));
            let Some(keys) = content.get_ref().as_table() else {
                let at = place(section.span().start);
                self.unknown_section(section.get_ref(), at, false);
                continue;
            };
            if !SETTINGS.iter().any(|s| s.section == section.get_ref()) {
                self.unknown_section(section.get_ref(), place(section.span().start), true);
                continue;
            }
            let mut keys: Vec<_> = keys.iter().collect();
            keys.sort_by_key(|(key, _)| key.span().start);
            for (key, value) in keys {
                let at = place(key.span().start);
                let is_it = |s: &Setting| s.section == section.get_ref() && s.key == key.get_ref();
                match SETTINGS.iter().position(is_it) {
                    Some(index) => self.set(index, &written(value.get_ref()), at),
                    None => self.unknown_key(section.get_ref(), key.get_ref(), at),
                }
            }
        }
    }

    fn unknown_section(&mut self, name: &str, at: Origin, is_table: bool) {
        let home = SETTINGS.iter().find(|s| s.key == name && !is_table);
        let message = match (home, nearest(name, SETTINGS.iter().map(|s| s.section))) {
            (Some(setting), _) => format!("`{name}` belongs into the section [{}]", setting.section),
            (None, Some(section)) => format!("there is no `{name}`; did you mean the section [{section}]?"),
            (None, None) => format!("there is no section [{name}]; `kera config show` lists all of them"),
        };
        self.mistake(at.to_string(), "", message);
    }

    fn unknown_key(&mut self, section: &str, key: &str, at: Origin) {
        let siblings = SETTINGS.iter().filter(|s| s.section == section).map(|s| s.key);
        let elsewhere = SETTINGS.iter().find(|s| s.key == key).map(Setting::name);
        let names: Vec<String> = SETTINGS.iter().map(Setting::name).collect();
        let full = format!("{section}.{key}");
        let meant = (nearest(key, siblings).map(|k| format!("{section}.{k}")).or(elsewhere))
            .or_else(|| nearest(&full, names.iter().map(String::as_str)).map(String::from));
        let message = match meant {
            Some(name) => format!("there is no such setting; did you mean {name}?"),
            None => "there is no such setting; `kera config show` lists all of them".into(),
        };
        self.mistake(at.to_string(), &full, message);
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let next = "name the right file with --config, or leave the flag out for the defaults";
    let cannot = |error: std::io::Error| format!("cannot be read: {error}; {next}");
    let bytes = std::fs::metadata(path).map_err(cannot)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(format!("has {bytes} bytes, a configuration has at most {FILE_BYTES_MAX}; {next}"));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

fn written(value: &DeValue<'_>) -> Written {
    match value {
        DeValue::String(text) => Written::Text(text.to_string()),
        DeValue::Boolean(value) => Written::Boolean(*value),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            parsed.map_or(Written::Other("a number that is too large"), Written::Integer)
        }
        DeValue::Float(_) => Written::Other("a decimal number"),
        DeValue::Datetime(_) => Written::Other("a date"),
        DeValue::Table(_) => Written::Other("a table"),
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> = items.iter().map(|i| i.get_ref().as_str().map(String::from)).collect();
            texts.map_or(Written::Other("a list of other things than texts"), Written::List)
        }
    }
}
