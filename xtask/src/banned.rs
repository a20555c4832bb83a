//! Side doors: role logic takes time, disks and randomness from `kera-env`, so that tests and a simulator can give it
//! others; and nobody leaves a placeholder behind.

use crate::lengths::is_product;
use crate::source::Source;
use crate::tree::{Problem, Tree};

/// Crates whose logic must run the same from the same seed.
const LOGIC: [&str; 7] = ["format", "protocol", "log", "vlog", "backup", "broker", "coordinator"];

/// What logic must not say, and what it says instead.
const SIDE_DOORS: [(&[&str], &str); 12] = [
    (&["Instant", ":", ":", "now"], "take `kera_env::Clock::monotonic_us`"),
    (&["SystemTime", ":", ":", "now"], "take `kera_env::Clock::now_ms`"),
    (&["thread_rng"], "take `kera_env::Random`"),
    (&["rand", ":", ":", "rng"], "take `kera_env::Random`"),
    (&["rand", ":", ":", "random"], "take `kera_env::Random`"),
    (&["std", ":", ":", "fs"], "take `kera_env::Disk`"),
    (&["thread", ":", ":", "sleep"], "wait for what you wait for, or let the shell call again later"),
    (&["TcpListener"], "leave sockets to `kera-rpc`"),
    (&["TcpStream"], "leave sockets to `kera-rpc`"),
    (&["UdpSocket"], "leave sockets to `kera-rpc`"),
    (&["UnixStream"], "leave sockets to `kera-rpc`"),
    (&["process", ":", ":", "exit"], "return an error; the node decides when a process ends"),
];

/// Where a side door is the front door: folder, what, and why.
const EXCEPTIONS: [(&str, &str); 1] = [
    // The arena is a file in shared memory that must be mapped: there is no disk behind it that could be another one.
    ("crates/log/src/arena/", "std::fs"),
];

/// What nobody leaves behind, anywhere.
const PLACEHOLDERS: [(&[&str], &str); 3] = [
    (&["todo", "!"], "write it, or return an error that says that it is not built"),
    (&["unimplemented", "!"], "write it, or return an error that says that it is not built"),
    (&["dbg", "!"], "use `tracing`"),
];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.with_ending(".rs") {
        let Ok(source) = Source::parse(text) else { continue };
        let logic = is_product(path) && LOGIC.iter().any(|name| path.starts_with(&format!("crates/{name}/")));
        for at in 0..source.tokens.len() {
            let token = &source.tokens[at];
            let mut report = |rule, found: &[&str], instead: &str| {
                if EXCEPTIONS.iter().any(|(folder, what)| path.starts_with(folder) && found.concat() == *what) {
                    return;
                }
                let message = format!("`{}` is not for this place: {instead}", found.concat());
                problems.push(Problem::new(path, token.line, rule, message));
            };
            for (found, instead) in PLACEHOLDERS {
                if source.is_at(at, found) {
                    report("placeholder", found, instead);
                }
            }
            if !logic || token.in_test {
                continue;
            }
            for (found, instead) in SIDE_DOORS {
                if source.is_at(at, found) {
                    report("side door", found, instead);
                }
            }
            if imports_from_std(&source, at, "fs") {
                report("side door", &["std", ":", ":", "fs"], "take `kera_env::Disk`");
            }
        }
    }
    problems
}

/// Whether `at` is `name` directly within the braces of `use std::{…}`.
fn imports_from_std(source: &Source, at: usize, name: &str) -> bool {
    if source.tokens[at].text != name {
        return false;
    }
    let mut depth = 0;
    for before in (0..at).rev() {
        match source.tokens[before].text.as_str() {
            "}" => depth += 1,
            "{" if depth > 0 => depth -= 1,
            "{" => {
                return before >= 4 && source.is_at(before - 4, &["use", "std", ":", ":"]) && starts_path(source, at);
            }
            ";" => return false,
            _ => {}
        }
    }
    false
}

/// Whether the token starts a path in a list, instead of going on with one.
fn starts_path(source: &Source, at: usize) -> bool {
    matches!(source.tokens[at - 1].text.as_str(), "{" | ",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn side_doors_are_found_in_logic_with_what_to_use_instead() {
        for (text, instead) in [
            ("fn a() { std::time::Instant::now(); }", "kera_env::Clock::monotonic_us"),
            ("fn a() { SystemTime::now(); }", "kera_env::Clock::now_ms"),
            ("fn a() { rand::rng(); }", "kera_env::Random"),
            ("use std::fs::File;", "kera_env::Disk"),
            ("use std::{fs, io};", "kera_env::Disk"),
            ("use std::{io, fs::File};", "kera_env::Disk"),
            ("fn a() { std::thread::sleep(d); }", "wait for what you wait for"),
            ("use std::net::TcpStream;", "kera-rpc"),
        ] {
            let found = found("crates/broker/src/a.rs", text);
            assert!(found.len() == 1 && found[0].contains(instead), "{text}: {found:?}");
        }
    }

    #[test]
    fn other_words_places_and_tests_are_left_alone() {
        for text in [
            "use std::{io, sync::Arc}; use rustix::fs;",
            "// std::fs\nconst A: &str = \"std::fs\";",
            "#[cfg(test)]\nmod tests { fn a() { Instant::now(); } }",
            "fn a(clock: &dyn Clock) { clock.now_ms(); }",
        ] {
            assert_eq!(found("crates/broker/src/a.rs", text), [""; 0], "{text}");
        }
        for path in ["crates/server/src/a.rs", "crates/log/tests/a.rs", "crates/vlog/examples/a.rs"] {
            assert_eq!(found(path, "fn a() { Instant::now(); }"), [""; 0], "{path}");
        }
    }

    #[test]
    fn placeholders_are_found_everywhere() {
        for path in ["crates/kera/src/main.rs", "crates/log/tests/a.rs"] {
            assert_eq!(found(path, "fn a() { todo!() }\nfn b() { dbg!(1); unimplemented!() }").len(), 3);
        }
    }
}
