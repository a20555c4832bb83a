//! `kera top`: nodes, streams and applications live. On a terminal tables that refresh in place, else a line for each and
//! look, with `--json` an object per look.

mod look;
mod screen;

use std::time::Duration;

use serde_json::json;

use crate::cli::{Globals, TopArgs};
use crate::connect::connect;
use crate::error::CliError;
use crate::output::{on_terminal, print, say};
use crate::signals;
use look::{ApplicationView, Look, View, Watch};

/// Runs the command until it is stopped, or for as many looks as it was told. A node that does not answer later is waited for: whoever watches
/// wants to see it come back.
///
/// # Errors
/// The node cannot be reached at the beginning, or at the last of so many looks.
pub async fn run(args: &TopArgs, globals: &Globals) -> Result<(), CliError> {
    let mut watch = Watch::new(connect(globals).await?);
    let interval = Duration::from_millis(args.interval_ms);
    // One look alone is not watched.
    let is_watched = on_terminal() && !globals.json && args.count.is_none_or(|count| count > 1);
    let mut screen = if is_watched { Some(screen::Screen::open()?) } else { None };
    let mut wishes = signals::listen(&[])?;
    let (mut before, mut shown): (Option<Look>, Option<View>) = (None, None);
    let mut looks = 0;
    loop {
        let looked = tokio::select! {
            looked = watch.look() => looked,
            () = quit(&mut screen) => break,
            _ = wishes.next() => break,
        };
        looks += 1;
        let is_last = args.count.is_some_and(|count| looks >= count);
        match looked {
            Ok(now) => {
                let view = View::new(before.as_ref(), &now);
                show(&view, &mut screen, globals)?;
                (before, shown) = (Some(now), Some(view));
            }
            Err(error) => match &mut shown {
                Some(view) if !is_last => wait_for(&error, view, &mut screen, globals)?,
                _ => return Err(error),
            },
        }
        if is_last {
            // What was drawn is gone with the screen: the last look is there to stay.
            drop(screen.take());
            return match &shown {
                Some(view) if is_watched => print(&plain(view)),
                _ => Ok(()),
            };
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = quit(&mut screen) => break,
            _ = wishes.next() => break,
        }
    }
    Ok(())
}

/// Completes when somebody at the terminal has had enough.
async fn quit(screen: &mut Option<screen::Screen>) {
    match screen {
        Some(screen) => screen.quit().await,
        None => std::future::pending().await,
    }
}

fn show(view: &View, screen: &mut Option<screen::Screen>, globals: &Globals) -> Result<(), CliError> {
    match screen {
        Some(screen) => screen.draw(view, &globals.connect),
        None if globals.json => print(&format!("{}\n", view_json(view))),
        None => print(&plain(view)),
    }
}

/// Says that nobody answers: on the terminal above what was seen last, otherwise where errors go.
fn wait_for(
    error: &CliError,
    last: &mut View,
    screen: &mut Option<screen::Screen>,
    globals: &Globals,
) -> Result<(), CliError> {
    let said = format!("no answer, waiting: {}", error.message);
    match screen {
        Some(screen) => {
            last.problems = vec![said];
            screen.draw(last, &globals.connect)
        }
        None => {
            say(said);
            Ok(())
        }
    }
}

/// A line per node of a cluster, stream, application and problem: for logs and pipes.
fn plain(view: &View) -> String {
    let mut text = String::new();
    for n in &view.nodes {
        text.push_str(&format!(
            "node {} state={} streamlets={} in_bytes_s={} out_bytes_s={} connections={}\n",
            n.node, n.state, n.streamlets, n.in_bytes_s, n.out_bytes_s, n.connections
        ));
    }
    for s in &view.streams {
        text.push_str(&format!(
            "stream {} in_records_s={} in_bytes_s={} out_records_s={} records={} bytes={}\n",
            s.name, s.in_records_s, s.in_bytes_s, s.out_records_s, s.records, s.bytes
        ));
    }
    if let Some(left_out) = view.left_out() {
        text.push_str(&format!("streams: {left_out}\n"));
    }
    for a in &view.applications {
        let rate = a.out_records_s.map_or_else(String::new, |rate| format!(" out_records_s={rate}"));
        text.push_str(&format!(
            "application {} stream={} consumers={}{rate} lag={}\n",
            a.name, a.stream, a.members, a.lag
        ));
    }
    for problem in &view.problems {
        text.push_str(&format!("PROBLEM  {problem}\n"));
    }
    if let Some(lacking) = view.lacking() {
        text.push_str(&format!("{lacking}\n"));
    }
    if view.streams.is_empty() { text + "no streams yet\n" } else { text }
}

fn view_json(view: &View) -> serde_json::Value {
    json!({
        "arena_used_bytes": view.arena_used_bytes,
        "arena_bytes": view.arena_bytes,
        "connections": view.connections,
        "in_bytes_s": view.in_bytes_s,
        "out_bytes_s": view.out_bytes_s,
        "nodes": view.nodes.iter().map(|n| json!({
            "node": n.node, "state": n.state, "streamlets": n.streamlets, "in_bytes_s": n.in_bytes_s, "out_bytes_s": n.out_bytes_s,
            "connections": n.connections, "arena_used_bytes": n.arena_used_bytes, "arena_bytes": n.arena_bytes,
        })).collect::<Vec<_>>(),
        "streams": view.streams.iter().map(|s| json!({
            "name": s.name, "in_records_s": s.in_records_s, "in_bytes_s": s.in_bytes_s, "out_records_s": s.out_records_s,
            "records": s.records, "bytes": s.bytes, "memory_bytes": s.memory_bytes, "disk_bytes": s.disk_bytes,
        })).collect::<Vec<_>>(),
        "streams_left_out": view.streams_left_out,
        "applications": view.applications.iter().map(application_json).collect::<Vec<_>>(),
        "unheard": view.unheard,
        "problems": view.problems,
    })
}

fn application_json(a: &ApplicationView) -> serde_json::Value {
    let mut told = json!({"name": a.name, "stream": a.stream, "members": a.members, "lag": a.lag});
    if let Some(rate) = a.out_records_s {
        told["out_records_s"] = rate.into();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_is_told_in_lines_too() {
        let view = View {
            arena_bytes: 0,
            arena_used_bytes: 0,
            connections: 0,
            in_bytes_s: 0,
            out_bytes_s: 0,
            problems: vec!["node 2 is lost".into(), "the disk is full".into()],
            nodes: Vec::new(),
            streams: Vec::new(),
            streams_left_out: 0,
            applications: Vec::new(),
            unheard: Vec::new(),
        };
        assert_eq!(plain(&view), "PROBLEM  node 2 is lost\nPROBLEM  the disk is full\nno streams yet\n");
    }
}
