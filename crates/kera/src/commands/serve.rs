//! `kera serve`: a node until it is told to stop.

use std::process::ExitCode;

use kera_server::config::load;
use kera_server::fatal::Fatal;
use kera_server::{logs, serve};

use crate::cli::ServeArgs;

/// Runs the node. Problems go to the log, and the last one to standard error with what to do next.
pub fn run(args: &ServeArgs) -> ExitCode {
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            eprintln!("error: {fatal}\n  next: {}", fatal.next_step());
            ExitCode::from(fatal.exit_status())
        }
    }
}

fn start(args: &ServeArgs) -> Result<(), Fatal> {
    let loaded = load(&args.sources())?;
    logs::start(&loaded.config)?;
    for notice in &loaded.notices {
        tracing::warn!("{notice}");
    }
    serve(&loaded.config)
}
