//! `kera streamlet`, `kera node` and `kera rebalance`: who owns what, changed on purpose.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use kera_client::{Client, StreamId, StreamletId};
use kera_format::vlog_replica::LogId;
use kera_protocol::{
    AcceptStreamletLoss, BalancePlan, MoveInfo, MovesDescription, NodeChange, NodeHoldings, PlannedMove, PlannedNode,
    Status,
};
use kera_server::units::human_bytes;
use serde::Serialize;

use crate::cli::{Blocks, Globals, NodeCommand, RebalanceArgs, StreamletCommand, StreamletName};
use crate::columns;
use crate::commands::copies::named;
use crate::connect::{check_streamlets, connect, explain, find_stream};
use crate::error::CliError;
use crate::numbers;
use crate::output::{Table, counted, have_typed, print, print_json, say};

/// How often it is looked how far things are.
const LOOK: Duration = Duration::from_millis(20);
/// Moves of a rebalance that are under way at a time.
const AT_ONCE: usize = 4;
/// How long a move is waited for: the coordinators call it off before.
const MOVE: Duration = Duration::from_secs(30);
/// After so long in which no streamlet has left a node that is drained, whoever waits for it is told where to look: a move that cannot be is called off before.
const STUCK: Duration = Duration::from_secs(30);
/// How often a move that was called off is asked for again.
const TRIES: u32 = 3;

/// A move as `--json` shows it.
#[derive(Serialize)]
struct MoveJson {
    stream: String,
    streamlet: u32,
    from: u32,
    to: u32,
    /// Of one that is planned, if the leader says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_s: Option<u64>,
}

/// A node of a plan as `--json` shows it.
#[derive(Serialize)]
struct PlannedNodeJson {
    node: u32,
    /// Whether it has told what it takes.
    told: bool,
    streamlets: u64,
    streamlets_after: u64,
    bytes_per_s: u64,
    bytes_per_s_after: u64,
}

/// Runs `kera streamlet`.
///
/// # Errors
/// The node cannot be reached, there is no such streamlet, or it cannot be moved now.
pub async fn streamlet(command: StreamletCommand, globals: &Globals) -> Result<(), CliError> {
    match command {
        StreamletCommand::Move { streamlet, to, no_wait } => move_one(&streamlet, to, no_wait, globals).await,
        StreamletCommand::AcceptLoss { streamlet, log, blocks, gone, yes } => match log.zip(blocks) {
            Some(of) => {
                let gone = numbers::each(&gone);
                accept_loss_of(&streamlet, of, (&gone[..], yes), globals).await
            }
            None => accept_loss(&streamlet, yes, globals).await,
        },
    }
}

async fn move_one(name: &StreamletName, to: u32, no_wait: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let stream = find_stream(&client, &name.stream).await?;
    check_streamlets(&stream, &[name.streamlet])?;
    let (began, at) = (Instant::now(), StreamletId(name.streamlet));
    let moving = client.admin().move_streamlet(stream.id, at, to).await?;
    let state = match (moving.number, no_wait) {
        (0, _) => "there",
        (_, true) => "moves",
        (number, false) => {
            wait_for(&client, number).await?;
            let owner = client.admin().owner(stream.id, at).await?;
            if owner != to {
                return Err(called_off(name, to, owner));
            }
            "moved"
        }
    };
    let took_ms = began.elapsed().as_millis() as u64;
    if globals.json {
        let (stream, streamlet) = (stream.name, name.streamlet);
        let one = MoveJson { stream, streamlet, from: moving.from, to, bytes_per_s: None };
        return print_json(&serde_json::json!({ "move": one, "state": state, "took_ms": took_ms }));
    }
    print(&match state {
        "there" => format!("{name} is at node {to} already\n"),
        "moves" => format!("{name} moves from node {} to node {to}; `kera status` shows how far it is\n", moving.from),
        _ => format!(
            "{name} has moved from node {} to node {to} ({took_ms} ms); what was written before stays at node {} until \
             retention takes it\n",
            moving.from, moving.from
        ),
    })
}

fn called_off(name: &StreamletName, to: u32, owner: u32) -> CliError {
    CliError::failure(format!("the move of {name} to node {to} was called off; node {owner} owns it"))
        .next(format!(
            "look at `kera status` whether a node is lost, and otherwise at what node {to} has logged: \"a streamlet does not come yet\", with the reason"
        ))
}

/// Waits until a move is over, one way or the other.
async fn wait_for(client: &Client, number: u64) -> Result<(), CliError> {
    let until = Instant::now() + MOVE;
    while client.admin().describe_moves().await?.moves.iter().any(|of| of.number == number) {
        if Instant::now() > until {
            return Err(CliError::failure(format!("move {number} is not over after {} s", MOVE.as_secs()))
                .next("it goes on by itself; `kera status` shows how far it is"));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

async fn accept_loss(name: &StreamletName, yes: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let stream = find_stream(&client, &name.stream).await?;
    check_streamlets(&stream, &[name.streamlet])?;
    if !yes {
        have_typed(
            &name.to_string(),
            &format!("What only a lost node had of {name} is gone for good then. Type the streamlet's name to go on: "),
            || format!("what only a lost node had of {name} would be gone for good"),
        )?;
    }
    client.admin().accept_loss(stream.id, StreamletId(name.streamlet)).await?;
    if globals.json {
        return print_json(
            &serde_json::json!({ "stream": stream.name, "streamlet": name.streamlet, "accepted": true }),
        );
    }
    print(&format!("{name} goes on without what only the lost node had\n"))
}

/// Has one streamlet go on without blocks of a log.
async fn accept_loss_of(
    name: &StreamletName,
    (log, Blocks { first, last }): (LogId, Blocks),
    (gone, yes): (&[u32], bool),
    globals: &Globals,
) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let stream = find_stream(&client, &name.stream).await?;
    check_streamlets(&stream, &[name.streamlet])?;
    let LogId { node, epoch, vlog } = log;
    let what = format!("what {name} had in blocks {first} to {last} of log {node}/{epoch}/{vlog} and nowhere else");
    if !yes {
        have_typed(
            &name.to_string(),
            &format!(
                "{what} is gone for good then, with what was in front of it. Type the streamlet's name to go on: "
            ),
            || format!("{what} would be gone for good, with what was in front of it"),
        )?;
    }
    let streamlet = StreamletId(name.streamlet);
    let loss = AcceptStreamletLoss { stream: stream.id, streamlet, log, first, last, gone: gone.to_vec() };
    client.admin().accept_streamlet_loss(&loss).await?;
    if globals.json {
        return print_json(&serde_json::json!({
            "stream": stream.name,
            "streamlet": name.streamlet,
            "log": format!("{node}/{epoch}/{vlog}"),
            "first": first,
            "last": last,
            "accepted": true,
        }));
    }
    print(&format!(
        "{name} goes on without blocks {first} to {last} of log {node}/{epoch}/{vlog}, once its owner has asked for them in vain; \
         `kera status` says what it waits for\n"
    ))
}

/// Runs `kera node`.
///
/// # Errors
/// The node cannot be reached, or what is asked for cannot be: the error says why, and what to do.
pub async fn node(command: NodeCommand, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    match command {
        NodeCommand::Drain { node, undo: true, .. } => {
            client.admin().change_node(node, NodeChange::Use).await?;
            said(
                globals,
                node,
                "used",
                &format!(
                    "node {node} may own streamlets again: it gets some by itself when nothing has changed for a while, and at once by \
                     `kera rebalance`\n"
                ),
            )
        }
        NodeCommand::Drain { node, no_wait, .. } => {
            client.admin().change_node(node, NodeChange::Drain).await?;
            drained(&client, node, no_wait, globals).await
        }
        NodeCommand::Remove { node } => {
            client.admin().change_node(node, NodeChange::Remove).await?;
            said(globals, node, "removed", &format!("node {node} is given up; its number is free\n"))
        }
    }
}

fn said(globals: &Globals, node: u32, state: &str, text: &str) -> Result<(), CliError> {
    if globals.json { print_json(&serde_json::json!({ "node": node, "state": state })) } else { print(text) }
}

/// Says how far the draining of a node is, until it owns nothing.
async fn drained(client: &Client, node: u32, no_wait: bool, globals: &Globals) -> Result<(), CliError> {
    let mut waiting = Waiting { node, told: None, since: Instant::now(), is_told_where: false };
    let (left, is_lost) = loop {
        let described = client.admin().describe_moves().await?;
        let left = holdings(&described, node)?;
        if !left.draining {
            return Err(CliError::failure(format!("node {node} is not drained any more: somebody has said `--undo`")));
        }
        // Nothing moves from a node that is lost before it is back, also if it was lost while it was waited for.
        let known = client.admin().describe_cluster().await?;
        let is_lost = known.nodes.iter().any(|of| of.node == node && of.fenced);
        if left.streamlets == 0 || no_wait || is_lost {
            break (left, is_lost);
        }
        if let Some(text) = waiting.text(left.streamlets, described.under_way, Instant::now())
            && !globals.json
        {
            say(text);
        }
        tokio::time::sleep(LOOK * 5).await;
    };
    if globals.json {
        let NodeHoldings { streamlets, held, .. } = left;
        let state = if streamlets == 0 { "drained" } else { "draining" };
        return print_json(
            &serde_json::json!({ "node": node, "state": state, "streamlets": streamlets, "held_streamlets": held }),
        );
    }
    let single = one_copy(client).await?;
    print(&drained_text(&left, is_lost, &single.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// What whoever waits for the draining of a node has been told.
struct Waiting {
    node: u32,
    /// How many streamlets it owned.
    told: Option<u64>,
    /// Since when it has owned so many.
    since: Instant,
    /// That none leaves, and where to look.
    is_told_where: bool,
}

impl Waiting {
    /// What is to be said now, if anything.
    fn text(&mut self, streamlets: u64, under_way: u64, now: Instant) -> Option<String> {
        let (node, has, moves) = (self.node, counted(streamlets, "streamlet"), counted(under_way, "move"));
        let are = if under_way == 1 { "is" } else { "are" };
        if self.told != Some(streamlets) {
            (self.told, self.since, self.is_told_where) = (Some(streamlets), now, false);
            return Some(format!("node {node} owns {has}, {moves} {are} under way"));
        }
        if self.is_told_where || now.saturating_duration_since(self.since) < STUCK {
            return None;
        }
        self.is_told_where = true;
        Some(format!(
            "node {node} still owns {has}: none has left for {} s, {moves} {are} under way. Where they are to go, nodes log \"a streamlet does not come \
             yet\" with the reason; `kera status` shows whether a node is lost or something is rebuilt",
            STUCK.as_secs()
        ))
    }
}

/// Streams with one copy.
async fn one_copy(client: &Client) -> Result<Vec<String>, CliError> {
    let streams = client.admin().streams("", false).await?;
    Ok(streams.into_iter().filter(|info| info.options.replication == 1).map(|info| info.name).collect())
}

/// What is left at a node that is drained, and what to do about it. `single`: streams with one copy.
fn drained_text(left: &NodeHoldings, is_lost: bool, single: &[&str]) -> String {
    let node = left.node;
    if is_lost {
        return match left.streamlets {
            0 => format!(
                "node {node} is lost, owns no streamlets and gets none. If it does not come back: `kera node remove {node}`.\n"
            ),
            has => format!(
                "node {node} is lost and owns {}, to be had when it is started; those with copies others take over as soon as they have \
                 seen what it had. It gets no new ones.\n",
                counted(has, "streamlet")
            ),
        };
    }
    let rest = match (left.streamlets, left.held) {
        (0, 0) => {
            return format!(
                "node {node} owns no streamlets and gets none. It serves nothing else, and is a backup for others until it is stopped: \
                 stop it, then `kera node remove {node}`.\n"
            );
        }
        (0, held) if single.is_empty() => format!(
            "node {node} owns no streamlets and gets none. It still serves what was written before of {}, of all of which others have copies: \
             stop it when `kera status` names no blocks that have fewer copies than they should. Others rebuild what it held; when nothing is \
             under OLDER for it any more, `kera node remove {node}`.\n",
            counted(held, "streamlet")
        ),
        (0, held) => format!(
            "node {node} owns no streamlets and gets none. It still serves what was written before of {}. What has copies needs no waiting: \
             others rebuild it when the node is stopped. What has one copy is there until retention takes it, or gets copies; then stop the node, \
             and `kera node remove {node}` when nothing is under OLDER for it any more.\n",
            counted(held, "streamlet")
        ),
        (has, _) => {
            let which = if has == 1 { "which moves by itself" } else { "which move by themselves" };
            format!("node {node} owns {}, {which}; `kera status` shows how far it is\n", counted(has, "streamlet"))
        }
    };
    if single.is_empty() {
        return rest;
    }
    format!(
        "{rest}If it has something of streams with one copy ({}), nobody else has that: `kera stream alter NAME --replication 2` before it is \
         stopped gives them copies.\n",
        named(single)
    )
}

fn holdings(described: &MovesDescription, node: u32) -> Result<NodeHoldings, CliError> {
    let found = described.nodes.iter().find(|of| of.node == node).copied();
    found.ok_or_else(|| CliError::failure(format!("node {node} is not in the cluster any more")))
}

/// Runs `kera rebalance`.
///
/// # Errors
/// The node cannot be reached, or moves are called off again and again.
pub async fn rebalance(args: &RebalanceArgs, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let names: HashMap<StreamId, String> =
        client.admin().streams("", true).await?.into_iter().map(|info| (info.id, info.name)).collect();
    if args.dry_run {
        return match planned(&client).await? {
            Planned::Told(plan) => tell_balance(&plan, &names, globals),
            Planned::Moves(moves) => tell_plan(&moves, &names, globals),
        };
    }
    let (mut moved, mut failures) = (Moved::new(), 0);
    loop {
        let mut plan = client.admin().plan_rebalance(0).await?;
        // What nodes take changes meanwhile: nothing is moved on and on because of that.
        plan.retain(|of| !moved.contains(&(of.stream, of.streamlet)));
        if plan.is_empty() {
            break;
        }
        let missed = carry_out(&client, plan, &names, globals, &mut moved).await?;
        failures = if missed.moves == 0 { 0 } else { failures + 1 };
        if failures == TRIES {
            return Err(not_balanced(&missed, moved.len()));
        }
    }
    if globals.json {
        return print_json(&serde_json::json!({ "moved": moved.len() }));
    }
    print(&match moved.len() {
        0 => EVEN.to_owned(),
        1 => "1 streamlet has moved\n".to_owned(),
        done => format!("{done} streamlets have moved\n"),
    })
}

fn not_balanced(missed: &Missed, done: usize) -> CliError {
    let why = missed.refusal.as_ref().map_or(String::new(), |why| format!("; the last that was refused: {why}"));
    let moves = counted(missed.moves as u64, "move");
    CliError::failure(format!("{moves} did not come to pass {TRIES} times, {done} are done{why}"))
        .next("look at `kera status` whether a node is lost, and try again")
}

fn to_be_done(moves: usize) -> String {
    let them = if moves == 1 { "it" } else { "them" };
    format!("{}; `kera rebalance` does {them}\n", counted(moves as u64, "move"))
}

/// Streamlets that a rebalance has moved.
type Moved = HashSet<(StreamId, StreamletId)>;

/// What is said if nothing is to be moved.
const EVEN: &str = "nothing is to be moved: the nodes are as even as they get\n";

/// What would be moved.
enum Planned {
    /// And what comes of it.
    Told(BalancePlan),
    /// The leader, or the node that is asked, is of a version that says no more.
    Moves(Vec<MoveInfo>),
}

async fn planned(client: &Client) -> Result<Planned, CliError> {
    use Status::{InvalidArgument, NotSupported, UnknownOperation, UnsupportedVersion};
    match client.admin().plan_balance(0).await {
        Ok(plan) => Ok(Planned::Told(plan)),
        Err(error) => match error.status() {
            Some(UnsupportedVersion | UnknownOperation | NotSupported | InvalidArgument) => {
                Ok(Planned::Moves(client.admin().plan_rebalance(0).await?))
            }
            _ => Err(error.into()),
        },
    }
}

fn tell_balance(plan: &BalancePlan, names: &HashMap<StreamId, String>, globals: &Globals) -> Result<(), CliError> {
    let name = |of: &PlannedMove| names.get(&of.stream).cloned().unwrap_or_else(|| of.stream.to_string());
    if globals.json {
        let one = |of: &PlannedMove| MoveJson {
            stream: name(of),
            streamlet: of.streamlet.0,
            from: of.from,
            to: of.to,
            bytes_per_s: Some(of.bytes_per_s),
        };
        let node = |of: &PlannedNode| {
            let PlannedNode { node, told, streamlets, bytes_per_s, streamlets_after, bytes_per_s_after } = *of;
            PlannedNodeJson { node, told, streamlets, streamlets_after, bytes_per_s, bytes_per_s_after }
        };
        return print_json(&serde_json::json!({
            "moves": plan.moves.iter().map(one).collect::<Vec<_>>(),
            "nodes": plan.nodes.iter().map(node).collect::<Vec<_>>(),
            "by_itself": plan.by_itself,
        }));
    }
    let mut nodes = Table::new(&columns::PLANNED_NODES);
    for of in &plan.nodes {
        let takes = |bytes: u64| format!("{}/s", human_bytes(bytes));
        nodes.row([
            of.node.to_string(),
            of.streamlets.to_string(),
            of.streamlets_after.to_string(),
            if of.told { takes(of.bytes_per_s) } else { "not told".into() },
            takes(of.bytes_per_s_after),
        ]);
    }
    if plan.moves.is_empty() {
        return print(&format!("{}{EVEN}", nodes.text()));
    }
    let mut moves = Table::new(&columns::PLANNED_MOVES);
    for of in &plan.moves {
        let takes = format!("{}/s", human_bytes(of.bytes_per_s));
        moves.row([format!("{}/{}", name(of), of.streamlet), of.from.to_string(), of.to.to_string(), takes]);
    }
    print(&format!("{}\n{}{}", moves.text(), nodes.text(), to_be_done(plan.moves.len())))
}

fn tell_plan(plan: &[MoveInfo], names: &HashMap<StreamId, String>, globals: &Globals) -> Result<(), CliError> {
    let name = |of: &MoveInfo| names.get(&of.stream).cloned().unwrap_or_else(|| of.stream.to_string());
    if globals.json {
        let json = |of: &MoveInfo| MoveJson {
            stream: name(of),
            streamlet: of.streamlet.0,
            from: of.from,
            to: of.to,
            bytes_per_s: None,
        };
        return print_json(&serde_json::json!({ "moves": plan.iter().map(json).collect::<Vec<_>>() }));
    }
    if plan.is_empty() {
        return print(EVEN);
    }
    let mut table = Table::new(&["STREAMLET", "FROM", "TO"]);
    for of in plan {
        table.row([format!("{}/{}", name(of), of.streamlet), of.from.to_string(), of.to.to_string()]);
    }
    print(&format!("{}{}", table.text(), to_be_done(plan.len())))
}

/// Moves of a plan that did not come to pass.
#[derive(Default)]
struct Missed {
    moves: usize,
    /// Why the last one was refused, if one was; the others were called off.
    refusal: Option<String>,
}

/// Does the moves of a plan, a few at a time; those that did not come to pass.
async fn carry_out(
    client: &Client,
    plan: Vec<MoveInfo>,
    names: &HashMap<StreamId, String>,
    globals: &Globals,
    moved: &mut Moved,
) -> Result<Missed, CliError> {
    let (mut waiting, mut under_way, mut missed) = (VecDeque::from(plan), Vec::<MoveInfo>::new(), Missed::default());
    while !waiting.is_empty() || !under_way.is_empty() {
        while under_way.len() < AT_ONCE
            && let Some(of) = waiting.pop_front()
        {
            match client.admin().move_streamlet(of.stream, of.streamlet, of.to).await {
                Ok(noted) => under_way.push(noted),
                // What has changed since it was planned is planned again.
                Err(error) if error.status().is_some() => {
                    missed.moves += 1;
                    missed.refusal = Some(explain(&error).message);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let moves = client.admin().describe_moves().await?.moves;
        let over: Vec<MoveInfo> =
            under_way.extract_if(.., |of| !moves.iter().any(|known| known.number == of.number)).collect();
        for of in over {
            if client.admin().owner(of.stream, of.streamlet).await? != of.to {
                missed.moves += 1;
                continue;
            }
            moved.insert((of.stream, of.streamlet));
            if !globals.json {
                let stream = names.get(&of.stream).cloned().unwrap_or_default();
                let (streamlet, from, to) = (of.streamlet, of.from, of.to);
                say(format_args!("{stream}/{streamlet} has moved from node {from} to node {to}"));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_move_was_refused_is_said_at_the_end() {
        let said = |moves, refusal| not_balanced(&Missed { moves, refusal }, 5).message;
        assert_eq!(said(2, None), "2 moves did not come to pass 3 times, 5 are done");
        let refused = said(1, Some("node 3 is drained".into()));
        assert_eq!(
            refused,
            "1 move did not come to pass 3 times, 5 are done; the last that was refused: node 3 is drained"
        );
    }

    #[test]
    fn who_waits_for_a_drain_that_stands_still_is_told_where_to_look_once() {
        let (node, begun) = (2, Instant::now());
        let mut waiting = Waiting { node, told: None, since: begun, is_told_where: false };
        let mut after = |streamlets, moves, time: Duration| waiting.text(streamlets, moves, begun + time);
        let first = after(3, 1, Duration::ZERO);
        assert_eq!(first.as_deref(), Some("node 2 owns 3 streamlets, 1 move is under way"));
        assert_eq!(after(3, 0, STUCK / 2), None);
        assert!(after(2, 1, STUCK).is_some_and(|text| text.contains("owns 2 streamlets")));
        assert_eq!(after(2, 0, STUCK * 2 - Duration::from_millis(1)), None, "one has left meanwhile");
        let stuck = after(2, 0, STUCK * 2).expect("it stands still");
        assert!(stuck.contains("a streamlet does not come yet"), "{stuck}");
        assert_eq!(after(2, 0, STUCK * 9), None, "once");
        assert!(
            after(1, 0, STUCK * 9).is_some() && after(1, 0, STUCK * 10).is_some(),
            "and again if it stands still again"
        );
    }

    #[test]
    fn what_is_left_at_a_drained_node_is_told_with_what_nobody_else_has() {
        let left = |streamlets, held| NodeHoldings { node: 2, draining: true, streamlets, logs: 0, held };
        let empty = drained_text(&left(0, 0), false, &["flights"]);
        assert!(empty.ends_with("stop it, then `kera node remove 2`.\n") && !empty.contains("one copy"), "{empty}");
        let copied = drained_text(&left(0, 3), false, &[]);
        assert!(copied.contains("what was written before of 3 streamlets") && !copied.contains("one copy"), "{copied}");
        assert!(!copied.contains("retention"), "what has copies is not waited for: {copied}");
        let single = "If it has something of streams with one copy (flights), nobody else has that: `kera stream alter NAME --replication 2` before \
                      it is stopped gives them copies.\n";
        assert!(drained_text(&left(0, 3), false, &["flights"]).ends_with(single));
        assert!(drained_text(&left(4, 0), false, &["flights"]).ends_with(single));
        let lost = drained_text(&left(0, 3), true, &[]);
        assert!(lost.starts_with("node 2 is lost") && !lost.contains("stop it"), "{lost}");
        assert!(drained_text(&left(1, 0), true, &[]).contains("owns 1 streamlet, to be had when it is started"));
    }
}
