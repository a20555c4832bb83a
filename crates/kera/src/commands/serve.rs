//! `kera serve`: a node until it is told to stop.

use std::process::ExitCode;

use kera_server::config::load;
use kera_server::fatal::Fatal;
use kera_server::{logs, serve};
use serde_json::json;

use crate::cli::ServeArgs;
use crate::error::CliError;
use crate::output::say;
use crate::when::{now_ms, show_instant};

/// Runs the node. Why it ended goes to standard error with what to do next; as a log line if those are for programs, as JSON if that is
/// wanted. However little is to be logged, that is said: it is all that is left of the node.
pub fn run(args: &ServeArgs, json: bool) -> ExitCode {
    let Err(fatal) = start(args) else { return ExitCode::SUCCESS };
    let (status, next_step) = (fatal.exit_status(), fatal.next_step());
    if logs::are_json() && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(status, next_step, "{fatal}");
    } else if logs::are_json() {
        let (timestamp, message) = (show_instant(now_ms()), fatal.to_string());
        say(
            json!({ "timestamp": timestamp, "level": "ERROR", "message": message, "status": status, "next_step": next_step }),
        );
    } else if json {
        say(CliError::from(&fatal).to_json());
    } else {
        say(format_args!("error: {fatal}\n  next: {next_step}"));
    }
    ExitCode::from(status)
}

fn start(args: &ServeArgs) -> Result<(), Fatal> {
    if let Some(level) = args.speak_level {
        kera_format::level::speak_up_to(level);
    }
    let loaded = load(&args.sources())?;
    logs::start(&loaded.config)?;
    for notice in &loaded.notices {
        tracing::warn!("{notice}");
    }
    serve(&loaded.config)
}
