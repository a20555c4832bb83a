//! Log lines on standard error, as text or as JSON. Set up once per process, before the first line.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{Config, Mistake, Mistakes};

static JSON: AtomicBool = AtomicBool::new(false);
static FOR_A_PERSON: AtomicBool = AtomicBool::new(false);

/// Whether log lines are written, and for programs.
pub fn are_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Whether log lines are written, as text that is read at a terminal.
pub fn are_for_a_person() -> bool {
    FOR_A_PERSON.load(Ordering::Relaxed)
}

/// Sends log lines to standard error as the configuration says. A second call in the same process changes nothing.
///
/// # Errors
/// The level is none.
pub fn start(config: &Config) -> Result<(), Mistakes> {
    // What Raft says to itself is for those who ask for it by name.
    let level = &config.logs.level;
    let level = if level.contains("openraft") { level.clone() } else { format!("{level},openraft=off") };
    let filter = EnvFilter::try_new(level).map_err(|error| {
        let message = format!("`{}` is no level: {error}; it is error, warn, info, debug or trace", config.logs.level);
        Mistakes(vec![Mistake { place: String::new(), setting: "logs.level".into(), message }])
    })?;
    // A line that cannot be written (who collected them is gone, the disk is full) is lost, and no more is: to say so on standard error, as the
    // library would, panics there.
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    // Only a second call can fail, in a process with several nodes: the first one's choice stays.
    let (json, is_terminal) = (config.logs.format == "json", std::io::stderr().is_terminal());
    JSON.store(json, Ordering::Relaxed);
    FOR_A_PERSON.store(!json && is_terminal, Ordering::Relaxed);
    let _ = if json {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    } else {
        let no_color = std::env::var_os("NO_COLOR");
        lines.with_ansi(has_colors(is_terminal, no_color.as_deref())).with_target(false).try_init()
    };
    Ok(())
}

/// Whether lines have colors: at a terminal, unless `NO_COLOR` has a value, as <https://no-color.org> has it.
fn has_colors(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_no_colors_gets_none() {
        let colors = |is_terminal, no_color: Option<&str>| has_colors(is_terminal, no_color.map(OsStr::new));
        assert!(colors(true, None) && colors(true, Some("")));
        assert!(!colors(true, Some("1")) && !colors(false, None));
    }
}
