//! `kera top`: streams and applications live. On a terminal a table that refreshes in place, else a line per stream and
//! look, with `--json` an object per look.

mod look;
mod screen;

use std::time::Duration;

use serde_json::json;

use crate::cli::{Globals, TopArgs};
use crate::commands::consume::stop_signal;
use crate::connect::connect;
use crate::error::CliError;
use crate::output::{on_terminal, print};
use look::{Look, View, look};

/// Runs the command until it is stopped, or for as many looks as it was told.
///
/// # Errors
/// The node cannot be reached, or is gone.
pub async fn run(args: &TopArgs, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let interval = Duration::from_millis(args.interval_ms);
    let mut screen = if on_terminal() && !globals.json { Some(screen::Screen::open()?) } else { None };
    let stop = stop_signal();
    tokio::pin!(stop);
    let mut before: Option<Look> = None;
    let mut looks = 0;
    while args.count.is_none_or(|count| looks < count) {
        let now = look(&client).await?;
        let view = View::new(before.as_ref(), &now);
        match &mut screen {
            Some(screen) => screen.draw(&view, &globals.connect)?,
            None if globals.json => print(&format!("{}\n", view_json(&view)))?,
            None => print(&plain(&view))?,
        }
        before = Some(now);
        looks += 1;
        if args.count.is_some_and(|count| looks >= count) {
            break;
        }
        let quit = async {
            match &mut screen {
                Some(screen) => screen.quit().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = quit => break,
            () = &mut stop => break,
        }
    }
    Ok(())
}

/// A line per stream and application: for logs and pipes.
fn plain(view: &View) -> String {
    let mut text = String::new();
    for s in &view.streams {
        text.push_str(&format!(
            "stream {} in_records_s={} in_bytes_s={} out_records_s={} records={} bytes={}\n",
            s.name, s.in_records_s, s.in_bytes_s, s.out_records_s, s.records, s.bytes
        ));
    }
    for a in &view.applications {
        text.push_str(&format!(
            "application {} stream={} consumers={} out_records_s={} lag={}\n",
            a.name, a.stream, a.members, a.out_records_s, a.lag
        ));
    }
    if text.is_empty() { "no streams yet\n".into() } else { text }
}

fn view_json(view: &View) -> serde_json::Value {
    json!({
        "arena_used_bytes": view.arena_used_bytes,
        "arena_bytes": view.arena_bytes,
        "connections": view.connections,
        "in_bytes_s": view.in_bytes_s,
        "out_bytes_s": view.out_bytes_s,
        "streams": view.streams.iter().map(|s| json!({
            "name": s.name, "in_records_s": s.in_records_s, "in_bytes_s": s.in_bytes_s, "out_records_s": s.out_records_s,
            "records": s.records, "bytes": s.bytes, "memory_bytes": s.memory_bytes, "disk_bytes": s.disk_bytes,
        })).collect::<Vec<_>>(),
        "applications": view.applications.iter().map(|a| json!({
            "name": a.name, "stream": a.stream, "members": a.members, "out_records_s": a.out_records_s, "lag": a.lag,
        })).collect::<Vec<_>>(),
        "problems": view.problems,
    })
}
