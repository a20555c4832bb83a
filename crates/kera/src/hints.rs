//! Words that other tools use for what `kera` does by another name, so that who types one is told of the command that is meant, and not of one that is only spelt like it.
//! Called once, for a command line that was not understood.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Behind which command a word was typed (none: the first one), what it may be, and what is meant by it.
type Hint = (&'static str, &'static [&'static str], &'static str);

const HINTS: [Hint; 12] = [
    ("", &["list", "ls"], "`kera stream list` lists streams"),
    ("", &["create", "new"], "`kera stream create NAME` makes a stream"),
    ("", &["delete", "rm", "describe", "alter"], "`kera stream` has it: `kera stream delete`, `describe` and `alter`"),
    (
        "",
        &["lag", "group", "groups", "consumer-group", "consumer-groups", "offsets"],
        "`kera application list` says who reads, and how far behind",
    ),
    ("", &["nodes", "info", "health", "ps"], "`kera status` shows the node, and those of its cluster"),
    ("node", &["list", "ls", "status", "describe"], "`kera status` shows the nodes"),
    ("cluster", &["status", "list", "ls", "describe", "info"], "`kera status` shows the cluster"),
    ("cluster", &["down", "stop"], "Ctrl-C where `kera cluster up` runs stops all of its nodes"),
    ("", &["stop", "shutdown", "down"], "Ctrl-C or SIGTERM (`kill PID`) stops a node; nothing is lost"),
    ("node", &["stop", "start"], "Ctrl-C or SIGTERM (`kill PID`) stops a node, `kera serve` starts it"),
    ("", &["start", "run", "server", "broker"], "`kera serve` runs a node"),
    ("", &["version"], "`kera --version` says it"),
];

/// Has an error of a command that there is not say which one is meant, if the word is a common one. `words`: the command line.
pub fn add(error: &mut clap::Error, words: impl Iterator<Item = String>) {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let Some(hint) = hint(typed, words) else { return };
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Suggested);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
}

/// Has an error of a number that is none say what one is: of its text only its first wrong digit is told.
pub fn add_number(error: &mut clap::Error) {
    let wrong =
        Error::source(&*error).and_then(|source| source.downcast_ref::<ParseIntError>()).map(ParseIntError::kind);
    if matches!(wrong, Some(IntErrorKind::InvalidDigit | IntErrorKind::Empty)) {
        let tip = "it is a whole number, without a unit, like 10";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// What is meant by a word that is no command where it stands.
fn hint(typed: &str, words: impl Iterator<Item = String>) -> Option<&'static str> {
    // The commands in front of it. A flag's value may be there as well, which is none that is looked for.
    let before: Vec<String> = words.skip(1).take_while(|word| word != typed).collect();
    let is_behind = |command: &str| before.iter().any(|word| word == command);
    let stands_behind = |command: &str| match command {
        "" => !COMMANDS.iter().any(|other| is_behind(other)),
        command => is_behind(command),
    };
    let is_meant = |hint: &&Hint| stands_behind(hint.0) && hint.1.contains(&typed);
    HINTS.iter().find(is_meant).map(|hint| hint.2)
}

/// Commands that have commands: a word behind one of them is meant otherwise than the first one.
const COMMANDS: [&str; 13] = [
    "stream",
    "streams",
    "topic",
    "topics",
    "application",
    "applications",
    "cluster",
    "streamlet",
    "node",
    "log",
    "bench",
    "verify",
    "config",
];
