//! The `kera` binary: command line only. A node is `kera_server`, everything else talks to one through `kera_client`.

#![allow(unreachable_pub, reason = "this is a binary: `pub` is for other modules of it")]

mod bench;
mod cli;
mod commands;
mod connect;
mod error;
mod output;
mod records;
mod rows;
mod settings;
mod verify;
mod when;

use std::future::Future;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    let Cli { globals, command } = Cli::parse();
    let done = match command {
        Command::Serve(args) => return commands::serve::run(&args),
        Command::Bench { command } => return bench::run(command, &globals.connect, globals.json),
        Command::Verify { command } => return verify::run(command, &globals.connect, globals.json),
        Command::Demo(args) => commands::demo::run(&args, &globals),
        Command::Config(command) => commands::config::run(&command, &globals),
        Command::Stream(command) => wait(commands::stream::run(command, &globals)),
        Command::Application(command) => wait(commands::application::run(command, &globals)),
        Command::Produce(args) => wait(commands::produce::run(&args, &globals)),
        Command::Consume(args) => wait(commands::consume::run(&args, &globals)),
        Command::Status => wait(commands::status::run(&globals)),
        Command::Top(args) => wait(commands::top::run(&args, &globals)),
        Command::Cluster(cli::ClusterCommand::Up(args)) => wait(commands::cluster::up(&args, &globals)),
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
    if json { eprintln!("{}", error.to_json()) } else { eprintln!("{error}") }
}

fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kera", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
