//! `kera status`: how the node is.

use kera_protocol::NodeStatusResponse;
use kera_server::api::NodeJson;
use kera_server::identity::uuid_text;
use kera_server::units::{human_bytes, human_count, human_duration};

use crate::cli::Globals;
use crate::connect::connect;
use crate::error::CliError;
use crate::output::{facts, print, print_json};

/// Runs the command.
///
/// # Errors
/// The node cannot be reached.
pub async fn run(globals: &Globals) -> Result<(), CliError> {
    let status = connect(globals).await?.admin().node_status().await?;
    if globals.json { print_json(&NodeJson::from(&status)) } else { print(&status_text(&status, &globals.connect)) }
}

fn status_text(s: &NodeStatusResponse, address: &str) -> String {
    let roles: Vec<&str> = s.roles.iter().map(|role| role.name()).collect();
    let percent = (s.arena_used_bytes * 100).checked_div(s.arena_bytes).unwrap_or(0);
    let mut text = facts(&[
        ("node", format!("{} at {address}, version {}, start {}", uuid_text(&s.node_id), s.version, s.node_epoch)),
        ("roles", roles.join(", ")),
        ("state", if s.ready { "ready".into() } else { "not ready".to_owned() }),
        ("up", human_duration(s.uptime_ms)),
        ("arena", format!("{} of {} in use ({percent}%)", human_bytes(s.arena_used_bytes), human_bytes(s.arena_bytes))),
        (
            "streams",
            format!(
                "{} (lanes: {}, groups: {}, segments: {})",
                human_count(s.streams),
                human_count(s.lanes),
                human_count(s.groups),
                human_count(s.segments)
            ),
        ),
        ("stored", human_bytes(s.stored_bytes)),
        (
            "clients",
            format!(
                "connections: {}, subscriptions: {}, applications: {}",
                s.connections, s.subscriptions, s.applications
            ),
        ),
        (
            "written",
            format!("{} records, {} since the start", human_count(s.appended_records), human_bytes(s.appended_bytes)),
        ),
        ("read", format!("{} since the start", human_bytes(s.read_bytes))),
    ]);
    for disk in &s.disks {
        let problem = if disk.problem.is_empty() { String::new() } else { format!(" NOT USED: {}", disk.problem) };
        let (used, free, total) =
            (human_bytes(disk.used_bytes), human_bytes(disk.free_bytes), human_bytes(disk.total_bytes));
        text.push_str(&format!("disk     {}: {used} used, {free} free of {total}{problem}\n", disk.path));
    }
    for problem in &s.problems {
        text.push_str(&format!("PROBLEM  {problem}\n"));
    }
    text
}
