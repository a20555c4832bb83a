//! `kera log`: virtual logs of lost nodes of which blocks are missing, and giving up what is gone for good.

use std::collections::{BTreeSet, HashMap};

use kera_client::{Client, StreamId};
use kera_protocol::{LostLog, MissingBlocks, StreamletRange};
use serde::Serialize;

use crate::cli::{Globals, LogCommand, LogNames};
use crate::connect::connect;
use crate::error::CliError;
use crate::numbers;
use crate::output::{have_typed, print, print_json};

/// A log as `--json` shows it.
#[derive(Serialize)]
struct LogJson {
    log: String,
    node: u32,
    epoch: u32,
    number: u32,
    /// Its last block; nothing if nobody knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<u64>,
    missing: Vec<MissingJson>,
    lost_nodes: Vec<u32>,
    live_nodes: Vec<u32>,
    streamlets: Vec<String>,
}

#[derive(Serialize)]
struct MissingJson {
    first: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<u64>,
    backups: Vec<u32>,
}

/// Runs `kera log`.
///
/// # Errors
/// The node cannot be reached, or something of what is given up may be at a node that comes back.
pub async fn run(command: LogCommand, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    // It has none that others keep copies of.
    let is_alone = client.admin().describe_cluster().await.is_ok_and(|cluster| cluster.nodes.is_empty());
    let lost = if is_alone { Vec::new() } else { client.admin().lost_logs().await? };
    let mut names = HashMap::new();
    if !lost.is_empty() {
        names.extend(client.admin().streams("", true).await?.into_iter().map(|info| (info.id, info.name)));
    }
    match command {
        LogCommand::List if is_alone && !globals.json => {
            print("nothing is missing of any virtual log: this node is alone, in no cluster, and waits for nobody\n")
        }
        LogCommand::List => list(&lost, &names, globals),
        LogCommand::AcceptLoss { logs, gone, yes } => {
            let chosen = logs.of(lost)?;
            let gone = numbers::each(&gone);
            accept_loss(&client, (&logs, chosen), &names, (&gone[..], yes), globals).await
        }
    }
}

impl LogNames {
    /// Those that are named.
    fn of(&self, lost: Vec<LostLog>) -> Result<Vec<LostLog>, CliError> {
        let known: Vec<String> = lost.iter().map(name).collect();
        let chosen: Vec<LostLog> =
            lost.into_iter().filter(|of| self.has(of.log.node, of.log.epoch, of.log.vlog)).collect();
        if chosen.is_empty() {
            let hint = match known.len() {
                0 => "nothing is missing of any log".to_owned(),
                _ => format!("those of which something is missing: {}", known.join(", ")),
            };
            return Err(CliError::failure(format!("nothing is missing of {self}")).next(hint));
        }
        Ok(chosen)
    }
}

fn list(lost: &[LostLog], names: &HashMap<StreamId, String>, globals: &Globals) -> Result<(), CliError> {
    if globals.json {
        return print_json(&serde_json::json!({ "logs": json(lost, names) }));
    }
    if lost.is_empty() {
        return print(
            "nothing is missing of any virtual log: each has a backup that is there, and nobody waits for more\n",
        );
    }
    let text: String = lost.iter().map(|log| told(log, names)).collect();
    print(&format!(
        "{text}Start the nodes that are lost: then nothing is. `kera log accept-loss LOG --gone NODE,…` gives up what is gone for good.\n"
    ))
}

async fn accept_loss(
    client: &Client,
    (named, logs): (&LogNames, Vec<LostLog>),
    names: &HashMap<StreamId, String>,
    (gone, yes): (&[u32], bool),
    globals: &Globals,
) -> Result<(), CliError> {
    if !yes {
        let text: String = logs.iter().map(|log| told(log, names)).collect();
        have_typed(
            &named.to_string(),
            &format!("What is missing of these logs is gone for good then:\n{text}Type {named} to go on: "),
            || format!("what is missing of these logs would be gone for good:\n{text}"),
        )?;
    }
    // A pipe that is closed meanwhile keeps nothing of it from being done.
    let mut said = Ok(());
    let (done, outcome) = each(logs, async |of: &LostLog| -> Result<(), CliError> {
        client.admin().accept_log_loss(of.log, gone).await?;
        if !globals.json && said.is_ok() {
            said = print(&format!("nobody waits any more for what is missing of log {}\n", name(of)));
        }
        Ok(())
    })
    .await;
    if globals.json {
        said = print_json(&serde_json::json!({ "accepted": json(&done, names) }));
    }
    outcome.and(said)
}

/// Gives up what is missing of one log after the other: those of which that is done, and why it is not of the next one.
async fn each(
    logs: Vec<LostLog>,
    mut give_up: impl AsyncFnMut(&LostLog) -> Result<(), CliError>,
) -> (Vec<LostLog>, Result<(), CliError>) {
    let mut done = Vec::new();
    for of in logs {
        if let Err(mut error) = give_up(&of).await {
            error.message = format!("log {}: {}", name(&of), error.message);
            return (done, Err(error));
        }
        done.push(of);
    }
    (done, Ok(()))
}

/// A log, what is missing of it, who had that, and whom it concerns.
fn told(of: &LostLog, names: &HashMap<StreamId, String>) -> String {
    let end =
        |of: &MissingBlocks| if of.last == 0 { "on, to nobody knows where".into() } else { format!("to {}", of.last) };
    let mut text =
        format!("log {} (log {} of node {}, of its epoch {})\n", name(of), of.log.vlog, of.log.node, of.log.epoch);
    for blocks in &of.missing {
        let (there, lost): (Vec<u32>, Vec<u32>) =
            blocks.backups.iter().partition(|backup| of.live_nodes.contains(backup));
        let at = match there.is_empty() {
            true => with_states(&lost, of),
            false => format!(
                "may be at {} alone; {} has less, or has not told yet",
                with_states(&lost, of),
                with_states(&there, of)
            ),
        };
        text.push_str(&format!("  blocks {} {}: {at}\n", blocks.first, end(blocks)));
    }
    text.push_str(&format!("  its own node: {}\n", with_states(&[of.log.node], of)));
    let streamlets = streamlets(&of.streamlets, names);
    text.push_str(&match streamlets.len() {
        0 => "  nobody is known to need it; others wait until it has an end\n".to_owned(),
        _ => format!("  streamlets that may have something in it: {}\n", streamlets.join(", ")),
    });
    text.push_str(&next(of));
    text
}

/// What to do, in a line.
fn next(of: &LostLog) -> String {
    let lost: Vec<String> = of.lost_nodes.iter().map(ToString::to_string).collect();
    let (all, node) = (lost.join(","), of.log.node);
    if of.live_nodes.contains(&node) {
        return format!("  next: wait, node {node} is live and may have all of it; stop it if it has not\n");
    }
    if lost.is_empty() {
        // Nobody may come back: those who had it were given up.
        return format!("  next: kera log accept-loss {}\n", name(of));
    }
    format!("  next: start one of nodes {all}; if all are gone: kera log accept-loss {} --gone {all}\n", name(of))
}

fn with_states(nodes: &[u32], of: &LostLog) -> String {
    let all: BTreeSet<u32> = nodes.iter().copied().collect();
    let state = |node: &u32| match (of.live_nodes.contains(node), of.lost_nodes.contains(node)) {
        (true, _) => format!("node {node} (live)"),
        (_, true) => format!("node {node} (lost)"),
        _ => format!("node {node} (given up)"),
    };
    all.iter().map(state).collect::<Vec<_>>().join(", ")
}

fn name(of: &LostLog) -> String {
    format!("{}/{}/{}", of.log.node, of.log.epoch, of.log.vlog)
}

fn streamlets(ranges: &[StreamletRange], names: &HashMap<StreamId, String>) -> Vec<String> {
    let range = |of: &StreamletRange| {
        let stream = names.get(&of.stream).cloned().unwrap_or_else(|| of.stream.to_string());
        match of.count {
            1 => format!("{stream}/{}", of.first),
            count => format!("{stream}/{} to {stream}/{}", of.first, of.first + count - 1),
        }
    };
    ranges.iter().map(range).collect()
}

fn json(logs: &[LostLog], names: &HashMap<StreamId, String>) -> Vec<LogJson> {
    let missing = |of: &MissingBlocks| MissingJson {
        first: of.first,
        last: (of.last != 0).then_some(of.last),
        backups: of.backups.clone(),
    };
    let each = |of: &StreamletRange| {
        let range = *of;
        let one = move |at| StreamletRange { first: at, count: 1, ..range };
        streamlets(&(range.first..range.first + range.count).map(one).collect::<Vec<_>>(), names)
    };
    let one = |of: &LostLog| LogJson {
        log: name(of),
        node: of.log.node,
        epoch: of.log.epoch,
        number: of.log.vlog,
        end: (!of.missing.iter().any(|blocks| blocks.last == 0)).then_some(of.end),
        missing: of.missing.iter().map(missing).collect(),
        lost_nodes: of.lost_nodes.clone(),
        live_nodes: of.live_nodes.clone(),
        streamlets: of.streamlets.iter().flat_map(each).collect(),
    };
    logs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::vlog_replica::LogId;

    #[test]
    fn what_to_type_next_is_told_of_each_log() {
        let of = |lost: &[u32], live: &[u32]| LostLog {
            log: LogId { node: 1, epoch: 4, vlog: 0 },
            end: 0,
            missing: vec![MissingBlocks { view: 1, first: 101, last: 0, backups: vec![2, 3] }],
            lost_nodes: lost.to_vec(),
            live_nodes: live.to_vec(),
            streamlets: Vec::new(),
        };
        let next = |lost: &[u32], live: &[u32]| {
            let text = told(&of(lost, live), &HashMap::new());
            text.lines().last().expect("a line").trim().to_owned()
        };
        let all = "next: start one of nodes 1,2,3; if all are gone: kera log accept-loss 1/4/0 --gone 1,2,3";
        assert_eq!(next(&[1, 2, 3], &[]), all);
        assert_eq!(next(&[], &[]), "next: kera log accept-loss 1/4/0");
        assert!(next(&[2, 3], &[1]).starts_with("next: wait, node 1 is live"));
        // The end alone: node 3 has less.
        assert!(next(&[1, 2], &[3]).ends_with("kera log accept-loss 1/4/0 --gone 1,2"));
    }

    #[tokio::test]
    async fn those_given_up_before_one_is_refused_are_known_and_which_one_that_is() {
        let logs = [0, 1, 2].map(|vlog| LostLog {
            log: LogId { node: 4, epoch: 1, vlog },
            end: 0,
            missing: Vec::new(),
            lost_nodes: Vec::new(),
            live_nodes: Vec::new(),
            streamlets: Vec::new(),
        });
        let mut asked = Vec::new();
        let (done, outcome) = each(logs.to_vec(), async |of: &LostLog| -> Result<(), CliError> {
            asked.push(of.log.vlog);
            if of.log.vlog == 1 { Err(CliError::failure("node 3 may come back")) } else { Ok(()) }
        })
        .await;
        assert_eq!(asked, [0, 1], "nothing behind it is given up");
        assert_eq!(done, logs[..1]);
        assert_eq!(outcome.unwrap_err().message, "log 4/1/1: node 3 may come back");
    }
}
