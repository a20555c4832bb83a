//! Errors of the command line: what was wrong, what to do next, and the exit status.

use std::fmt;

use kera_server::fatal::Fatal;

/// Exit status when what was asked for did not work.
pub const EXIT_FAILURE: u8 = 1;
/// Exit status when the command was not understood; the same as clap's.
pub const EXIT_USAGE: u8 = 2;
/// Exit status when the user has ended a command before it could tell anything, or had done what it was to do, as shells have it for Ctrl-C.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Why a command ends without having done its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// What was wrong: which field, which limit.
    pub message: String,
    /// What to do next; empty if there is nothing to advise.
    pub next_step: String,
    /// The exit status.
    pub exit: u8,
}

impl CliError {
    /// Something did not work.
    pub fn failure(message: impl Into<String>) -> CliError {
        CliError { message: message.into(), next_step: String::new(), exit: EXIT_FAILURE }
    }

    /// The command makes no sense as it was given.
    pub fn usage(message: impl Into<String>) -> CliError {
        CliError { message: message.into(), next_step: String::new(), exit: EXIT_USAGE }
    }

    /// A value makes no sense; what would be right stands behind `; it is` in what was said of it.
    pub fn value(said: &str) -> CliError {
        match said.split_once("; it is ") {
            Some((wrong, right)) => CliError::usage(wrong).next(format!("it is {right}")),
            None => CliError::usage(said),
        }
    }

    /// Whoever read standard output has gone away: the command ends quietly and well.
    pub fn pipe_closed() -> CliError {
        CliError { message: String::new(), next_step: String::new(), exit: 0 }
    }

    /// The same with advice.
    #[must_use]
    pub fn next(mut self, next_step: impl Into<String>) -> CliError {
        self.next_step = next_step.into();
        self
    }

    /// As a JSON object, for `--json`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "error": self.message, "next_step": self.next_step, "exit": self.exit })
    }
}

/// What a node that does not start tells is told by a command that starts one, too.
impl From<&Fatal> for CliError {
    fn from(fatal: &Fatal) -> CliError {
        CliError { message: fatal.to_string(), next_step: fatal.next_step(), exit: fatal.exit_status() }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if !self.next_step.is_empty() {
            write!(f, "\n  next: {}", self.next_step)?;
        }
        Ok(())
    }
}

impl std::error::Error for CliError {}
