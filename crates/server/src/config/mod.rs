//! The configuration of a node: one table says everything about each setting, and flags, environment, file, checks
//! and the page of settings all come from it. Read once at start; afterwards plain values that nobody changes.
//!
//! A setting is a line in [`settings!`](self) below: its type, its kind with limits, its default as one would write
//! it, its flag, and its documentation. Flag `--arena-bytes` is also `KERA_ARENA_BYTES` and, in the file, the key
//! under its section.

mod kind;
mod load;
mod page;

pub use kind::{Field, Kind, Range, Value, Written};
pub use load::{Loaded, Mistake, Mistakes, Origin, Sources, load};
pub use page::{file_text, page_text};

use std::path::PathBuf;

use kind::{range, range_or};

use crate::units::{KIB, MIB, TIB};

/// One setting: all there is to know about it.
pub struct Setting {
    /// The section in the file.
    pub section: &'static str,
    /// The key in its section.
    pub key: &'static str,
    /// The flag of `kera serve`, without dashes.
    pub flag: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// The default, as one would write it.
    pub default: &'static str,
    /// What it does, in Markdown; lines as in the source.
    pub doc: &'static str,
    get: fn(&Config) -> Value,
    set: fn(&mut Config, Value),
}

impl Setting {
    /// `section.key`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }

    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("KERA_{}", self.flag.to_ascii_uppercase().replace('-', "_"))
    }

    /// Its value in a configuration, as one would write it.
    pub fn shown(&self, config: &Config) -> String {
        self.kind.write(&(self.get)(config))
    }

    /// Its documentation as one line.
    pub fn doc_line(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident: $type:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $field:ty = $kind:expr, $default:literal, $flag:literal;
            )+
        }
    )+) => {
        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $type {
                $($(#[doc = $doc])+ pub $key: $field,)+
            }
        )+

        /// A whole configuration, checked value by value. [`Default`] is what a node runs with when nothing is set.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config {
            $($(#[doc = $section_doc])+ pub $section: $type,)+
        }

        impl Default for Config {
            fn default() -> Config {
                let read = |kind: Kind, text: &str| {
                    kind.read(&Written::Text(text.into())).expect("defaults are allowed values, as a test checks")
                };
                Config {
                    $($section: $type { $($key: Field::from_value(read($kind, $default)),)+ },)+
                }
            }
        }

        /// Every setting, in the order of the page.
        pub static SETTINGS: &[Setting] = &[
            $($(Setting {
                section: stringify!($section),
                key: stringify!($key),
                flag: $flag,
                kind: $kind,
                default: $default,
                doc: concat!($($doc, "\n"),+),
                get: |config| Field::to_value(&config.$section.$key),
                set: |config, value| config.$section.$key = Field::from_value(value),
            },)+)+
        ];

        /// Every section with what it is about.
        pub static SECTIONS: &[(&str, &str)] = &[$((stringify!($section), concat!($($section_doc, "\n"),+)),)+];
    };
}

settings! {
    /// Where the node keeps its data, and how many threads serve clients.
    node: NodeSettings {
        /// The directory of the node: identity, catalog, virtual logs, containers. One process at a time uses it.
        data: PathBuf = Kind::Path, "./kera-data", "data";
        /// More directories, one per extra disk, for containers of closed segments. They are filled evenly with the
        /// data directory.
        disks: Vec<PathBuf> = Kind::Paths, "", "disks";
        /// Threads that serve client connections; `auto` is one per core.
        io_threads: Option<u64> = Kind::Count(range_or("auto", 1, 1024)), "auto", "io-threads";
    }

    /// The native protocol: where clients connect, and what one of them can take.
    network: NetworkSettings {
        /// Where clients connect. Other machines can only reach it when it is not a loopback address.
        listen: String = Kind::Address, "127.0.0.1:7070", "listen";
        /// Connections at a time; more are refused with an error that says so.
        connections_max: u64 = Kind::Count(range(1, 1_000_000)), "10000", "connections-max";
        /// The largest frame a client may send, and so the most chunks of one request.
        frame_bytes_max: u64 = Kind::Bytes(range(64 * KIB, 256 * MIB)), "32MiB", "frame-bytes-max";
    }

    /// Health, metrics and the admin API.
    http: HttpSettings {
        /// Where the HTTP server listens; `none` turns it off.
        listen: Option<String> = Kind::OptionalAddress, "127.0.0.1:7071", "http-listen";
    }

    /// The arena: the shared memory that every append goes to first.
    arena: ArenaSettings {
        /// Its size, taken from the machine as it is used. `auto` is the least of 2 GiB, a quarter of the memory and
        /// half of what is free where the arena lies.
        bytes: Option<u64> = Kind::Bytes(range_or("auto", 16 * MIB, 64 * TIB)), "auto", "arena-bytes";
        /// Where its file lies: a file system in memory, so that a killed process leaves it behind for the next.
        /// `auto` is `/dev/shm`, or the data directory where that is missing.
        dir: Option<PathBuf> = Kind::OptionalPath { word: "auto" }, "auto", "arena-dir";
    }

    /// What the node says about itself.
    logs: LogSettings {
        /// How log lines look: for people or for programs. They go to standard error.
        format: String = Kind::Choice(&["text", "json"]), "text", "log-format";
        /// How much is logged: `error`, `warn`, `info`, `debug`, `trace`, also per module, like
        /// `info,kera_broker=debug`.
        level: String = Kind::Text, "info", "log-level";
    }
}

#[cfg(test)]
mod tests;

impl Config {
    /// Puts a checked value into setting number `index`.
    pub fn assign(&mut self, index: usize, value: Value) {
        (SETTINGS[index].set)(self, value);
    }

    /// Values that are allowed one by one and wrong together: the settings by name, and the sentence.
    fn contradictions(&self) -> Vec<(Vec<&'static str>, String)> {
        let mut wrong = Vec::new();
        if let Some(http) = &self.http.listen
            && *http == self.network.listen
            && !http.ends_with(":0")
        {
            wrong.push((vec!["network.listen", "http.listen"], format!("both are {http}; give one of them another port")));
        }
        let mut seen = vec![&self.node.data];
        for disk in &self.node.disks {
            if seen.contains(&disk) {
                let message = format!("{} is named twice; every disk is one directory", disk.display());
                wrong.push((vec!["node.data", "node.disks"], message));
            }
            seen.push(disk);
        }
        wrong
    }
}
