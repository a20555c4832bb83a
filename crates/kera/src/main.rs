//! The `kera` binary: command line only. A node is `kera_server`, everything else talks to one through `kera_client`.

#![allow(unreachable_pub, reason = "this is a binary: `pub` is for other modules of it")]
#![warn(clippy::print_stdout, clippy::print_stderr, reason = "they panic when nobody reads; `output` does not")]

mod bench;
mod cli;
mod columns;
mod commands;
mod connect;
mod encoding;
mod error;
mod hints;
mod numbers;
mod output;
mod records;
mod rows;
mod settings;
mod signals;
mod verify;
mod when;

use std::future::Future;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    let Cli { globals, command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_understood(error),
    };
    let done = match command {
        Command::Serve(args) => return commands::serve::run(&args, globals.json),
        Command::Bench { command } => return bench::run(command, &globals.connect, globals.json),
        Command::Verify { command } => return verify::run(command, &globals.connect, globals.json),
        Command::Demo(args) => commands::demo::run(&args, &globals),
        Command::Config(command) => commands::config::run(&command, &globals),
        Command::Stream(command) => wait(commands::stream::run(command, &globals)),
        Command::Application(command) => wait(commands::application::run(command, &globals)),
        Command::Produce(args) => wait(commands::produce::run(&args, &globals)),
        Command::Consume(args) => wait(commands::consume::run(&args, &globals)),
        Command::Status { check } => wait(commands::status::run(check, &globals)),
        Command::Top(args) => wait(commands::top::run(&args, &globals)),
        Command::Cluster(cli::ClusterCommand::Up(args)) => wait(commands::cluster::up(&args, &globals)),
        Command::Cluster(cli::ClusterCommand::Recover(args)) => commands::recover::run(&args, &globals),
        Command::Cluster(cli::ClusterCommand::Level) => wait(commands::level::run(&globals)),
        Command::Streamlet(command) => wait(commands::moves::streamlet(command, &globals)),
        Command::Log(command) => wait(commands::logs::run(command, &globals)),
        Command::Node(command) => wait(commands::moves::node(command, &globals)),
        Command::Rebalance(args) => wait(commands::moves::rebalance(&args, &globals)),
        Command::Completions { shell } => completions(shell),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error, globals.json);
            ExitCode::from(error.exit)
        }
    }
}

/// Help and versions, and command lines that make no sense: as JSON too, for programs that ask for it.
fn not_understood(mut error: clap::Error) -> ExitCode {
    // A variable that names the node is no flag that was given. With it clap takes the usage for one that needs --connect, and does not show its help to who says no command.
    if error.use_stderr()
        && let Err(help) = Cli::command().mut_arg("connect", |arg| arg.env(None::<&'static str>)).try_get_matches()
    {
        error = help;
    }
    hints::add(&mut error, std::env::args_os().map(|word| word.to_string_lossy().into_owned()));
    hints::add_number(&mut error);
    // An argument that is not known is a flag with a slip, not a value: flags that are like it are named all the same.
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    let mut words = std::env::args_os().take_while(|word| word != "--");
    if !error.use_stderr() || !words.any(|word| word == "--json") {
        error.exit();
    }
    report(&usage_error(&error.render().to_string()), true);
    ExitCode::from(error::EXIT_USAGE)
}

/// What clap says in several paragraphs, of which the usage and where to find help come last.
fn usage_error(text: &str) -> CliError {
    let (said, usage) = text.split_once("\n\nUsage: ").unwrap_or((text, ""));
    let said = said.split("\n\nFor more information").next().unwrap_or(said);
    let words = said.strip_prefix("error: ").unwrap_or(said).split_whitespace();
    let message = words.collect::<Vec<_>>().join(" ");
    let usage = usage.lines().next().unwrap_or("").trim();
    match usage {
        "" => CliError::usage(message).next("`kera --help` shows what there is"),
        usage => CliError::usage(message).next(format!("it is used like this: {usage}")),
    }
}

/// Runs a command on a runtime of this thread.
fn wait(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::failure(format!("cannot start: {error}")))?;
    let done = runtime.block_on(command);
    // A thread may still wait for standard input; nobody waits for it.
    runtime.shutdown_background();
    done
}

/// Prints an error where it belongs; a quiet one has no message.
fn report(error: &CliError, json: bool) {
    if error.message.is_empty() {
        return;
    }
    if json { output::say(error.to_json()) } else { output::say(error) }
}

fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kera", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_tools_lead_to_the_command_that_is_meant() {
        for (line, meant) in [
            ("list", "`kera stream list`"),
            ("--json ls", "`kera stream list`"),
            ("lag report", "`kera application list`"),
            ("node list", "`kera status`"),
            ("cluster --connect a:1 status", "`kera status`"),
            ("stop", "Ctrl-C or SIGTERM"),
            ("cluster down", "Ctrl-C where `kera cluster up` runs"),
            ("version", "`kera --version`"),
            ("create flights", "`kera stream create NAME`"),
        ] {
            let words: Vec<String> = std::iter::once("kera").chain(line.split_whitespace()).map(String::from).collect();
            let mut error = Cli::try_parse_from(&words).map(drop).unwrap_err();
            hints::add(&mut error, words.into_iter());
            let said = error.render().to_string();
            assert!(said.contains(meant), "{line}: {said}");
            assert!(!said.contains("similar subcommand"), "{line}: {said}");
        }
        // What is only a slip is told as before.
        let words = ["kera", "produse"].map(String::from);
        let mut error = Cli::try_parse_from(&words).map(drop).unwrap_err();
        hints::add(&mut error, words.into_iter());
        assert!(error.render().to_string().contains("'produce'"));
    }

    #[test]
    fn a_number_that_is_none_is_told_what_one_is() {
        for (line, flag) in [
            ("top --interval-ms 5s", "--interval-ms"),
            ("stream create s --streamlets four", "--streamlets"),
            ("produce s --linger-ms 5ms", "--linger-ms"),
        ] {
            let words = std::iter::once("kera").chain(line.split_whitespace());
            let mut error = Cli::try_parse_from(words).map(drop).unwrap_err();
            hints::add_number(&mut error);
            let said = error.render().to_string();
            assert!(said.contains(flag) && said.contains("tip: it is a whole number, without a unit"), "{said}");
        }
        // What has a message of its own keeps it.
        let mut error = Cli::try_parse_from(["kera", "top", "--interval-ms", "1"]).map(drop).unwrap_err();
        hints::add_number(&mut error);
        assert!(!error.render().to_string().contains("tip:"));
    }

    #[test]
    fn a_command_line_that_makes_no_sense_has_a_message_and_a_next_step() {
        let error = |line: &str| {
            let words = std::iter::once("kera").chain(line.split_whitespace());
            let error = Cli::try_parse_from(words).map(drop).unwrap_err();
            usage_error(&error.render().to_string())
        };
        for (line, says, next) in [
            ("--json nope", "unrecognized subcommand 'nope'", "kera"),
            ("stream create --json", "required arguments were not provided: <NAME>", "kera stream create"),
            ("consume s --max many", "invalid value 'many' for '--max <N>'", "--help"),
        ] {
            let error = error(line);
            assert!(error.message.starts_with(says) || error.message.contains(says), "{}", error.message);
            assert!(error.next_step.contains(next), "{}", error.next_step);
            assert!(!error.message.contains("For more information"), "{}", error.message);
            assert_eq!(error.exit, crate::error::EXIT_USAGE);
        }
    }
}
