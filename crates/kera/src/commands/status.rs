//! `kera status`: how the node is, and its cluster as it knows it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use kera_client::{Client, ClientError, Status, StreamId};
use kera_protocol::{
    ClusterDescription, CopiesDescription, CopyChange, LogsDescription, MemberNode, MoveInfo, MovesDescription,
    NodeHoldings, NodeStatusResponse, OwnLog, Role,
};
use kera_server::api::NodeJson;
use kera_server::identity::uuid_text;
use kera_server::units::{human_bytes, human_count, human_duration};

use crate::cli::Globals;
use crate::columns;
use crate::commands::copies::{self, ChangeJson};
use crate::commands::level::{self, Level};
use crate::commands::owners::{self, Owned};
use crate::connect::{OF_MAJORITY, connect, explain, lacking};
use crate::error::CliError;
use crate::output::{Table, facts, print, print_json, records_of};
use serde::Serialize;

/// Runs the command. `check`: a problem is an error.
///
/// # Errors
/// The node cannot be reached, or there is a problem and that was asked for.
pub async fn run(check: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let status = client.admin().node_status().await?;
    let cluster = client.admin().describe_cluster().await?;
    let cluster = Some(cluster).filter(|cluster| !cluster.nodes.is_empty());
    // Nobody knows what moves while the coordinators have no leader, and whoever looks at a cluster without one is not to wait until there is.
    let moves = match &cluster {
        Some(_) => soon(client.admin().describe_moves()).await.and_then(Result::ok),
        None => None,
    };
    let changes = if moves.is_some() { copies::known(&client).await } else { Vec::new() };
    let (copies, silent) = match &cluster {
        Some(cluster) => copies(cluster).await,
        None => (BTreeMap::new(), Vec::new()),
    };
    let mut names = HashMap::new();
    if moves.as_ref().is_some_and(|moves| !moves.moves.is_empty()) || copies.values().any(|of| !of.logs.own.is_empty())
    {
        names.extend(client.admin().streams("", true).await?.into_iter().map(|info| (info.id, info.name)));
    }
    let level = match &cluster {
        Some(cluster) => soon(level::of(cluster)).await.flatten(),
        None => None,
    };
    let waiting = match &cluster {
        Some(cluster) if lost_owners(cluster).next().is_some() => {
            soon(waiting(&client, cluster)).await.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let most_copies = match copies.values().any(|of| of.copies.under_replicated_blocks > 0) {
        true => most_copies(&client).await,
        false => None,
    };
    let own_problems = status.problems.clone();
    let cluster = cluster.map(|cluster| Cluster {
        cluster,
        moves,
        changes,
        names,
        copies,
        most_copies,
        silent,
        waiting,
        own_problems,
        level,
    });
    let problems = cluster.as_ref().map_or_else(Vec::new, problems);
    let count = status.problems.len() + problems.len();
    let told = if globals.json {
        let mut node = NodeJson::from(&status);
        node.problems.extend(problems);
        print_json(&StatusJson { node, cluster: cluster.as_ref().map(ClusterJson::from) })
    } else {
        let own = status_text(&status, cluster.as_ref().map(|of| &of.cluster), &globals.connect);
        let all =
            cluster.map_or_else(String::new, |cluster| format!("\n{}{}", cluster_text(&cluster), lines(&problems)));
        print(&(own + &all))
    };
    if check && count > 0 {
        let are = if count == 1 { "there is a problem".to_owned() } else { format!("there are {count} problems") };
        return Err(CliError::failure(are).next("see PROBLEM above, or `problems` with --json"));
    }
    told
}

fn lines(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("PROBLEM  {problem}\n")).collect()
}

/// Lost nodes that own streamlets.
fn lost_owners(cluster: &ClusterDescription) -> impl Iterator<Item = &MemberNode> {
    cluster.nodes.iter().filter(|node| node.fenced && node.streamlets > 0)
}

/// Streamlets that wait for lost nodes, as `STREAM/NUMBER`, with these nodes.
async fn waiting(client: &Client, cluster: &ClusterDescription) -> Vec<(u32, String)> {
    let owned = owners::of(client, None).await.ok().flatten().unwrap_or_default();
    let names = client.admin().streams("", true).await.unwrap_or_default();
    let names: HashMap<StreamId, String> = names.into_iter().map(|info| (info.id, info.name)).collect();
    let is_lost = |node: u32| lost_owners(cluster).any(|lost| lost.node == node);
    let name = |of: &Owned| names.get(&of.stream).cloned().unwrap_or_else(|| of.stream.to_string());
    let those = owned.iter().filter(|of| is_lost(of.owner));
    those.map(|of| (of.owner, format!("{}/{}", name(of), of.streamlet))).collect()
}

/// How long a node may take to say how its copies are, and the coordinators' leader what moves.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// What is answered soon; nothing otherwise.
pub async fn soon<T>(asked: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(ASKED_FOR, asked).await.ok()
}

/// How many copies a stream is to have at most, the owner's own included, of all streams; nothing where that is not known soon.
async fn most_copies(client: &Client) -> Option<u32> {
    let streams = soon(client.admin().streams("", true)).await?.ok()?;
    streams.iter().map(|of| of.options.replication).max()
}

/// What each live node says of its copies, and those that do not, with the reason. One of an earlier version, which has no copies, is neither.
async fn copies(cluster: &ClusterDescription) -> (BTreeMap<u32, Said>, Vec<(u32, String)>) {
    let mut asked = tokio::task::JoinSet::new();
    for node in cluster.nodes.iter().filter(|node| !node.fenced && !node.native_address.is_empty()) {
        let (number, address) = (node.node, node.native_address.clone());
        let late = || Err(format!("has not answered within {} s", ASKED_FOR.as_secs()));
        asked.spawn(async move { (number, soon(said_by(&address)).await.unwrap_or_else(late)) });
    }
    let (mut said, mut silent) = (BTreeMap::new(), Vec::new());
    for (node, answer) in asked.join_all().await {
        match answer {
            Ok(Some(of)) => drop(said.insert(node, of)),
            Ok(None) => {}
            Err(why) => silent.push((node, why)),
        }
    }
    silent.sort();
    (said, silent)
}

/// What the node at an address says of itself; nothing if it is of an earlier version. The error is why it does not, as the end of a sentence.
async fn said_by(address: &str) -> Result<Option<Said>, String> {
    let failed = |error: ClientError| format!("has not answered at {address} ({})", explain(&error).message);
    let is_earlier = |error: &ClientError| {
        let status = error.status();
        status.is_some_and(|status| {
            matches!(status, Status::UnknownOperation | Status::UnsupportedVersion | Status::NotSupported)
        })
    };
    let refused = |error: ClientError| if is_earlier(&error) { Ok(None) } else { Err(failed(error)) };
    let client = match Client::builder(address).client_name("kera").connect().await {
        Ok(client) => client,
        Err(error) => return refused(error),
    };
    let copies = match client.admin().describe_copies().await {
        Ok(copies) => copies,
        Err(error) => return refused(error),
    };
    // Nodes of earlier versions have none and refuse.
    let logs = client.admin().describe_logs().await.unwrap_or_default();
    let problems = client.admin().node_status().await.map_err(failed)?.problems;
    Ok(Some(Said { copies, logs, problems }))
}

/// What a node says of itself.
struct Said {
    copies: CopiesDescription,
    logs: LogsDescription,
    problems: Vec<String>,
}

/// What is told of the cluster.
struct Cluster {
    cluster: ClusterDescription,
    moves: Option<MovesDescription>,
    /// Streams that are to have another number of copies.
    changes: Vec<CopyChange>,
    names: HashMap<StreamId, String>,
    copies: BTreeMap<u32, Said>,
    /// So many copies a stream is to have at most. Asked for only where some are lacking.
    most_copies: Option<u32>,
    /// Nodes that are live and do not answer, with the reason.
    silent: Vec<(u32, String)>,
    /// Streamlets that wait for lost nodes, with these, as far as they were told.
    waiting: Vec<(u32, String)>,
    /// What the node that was asked first says goes wrong.
    own_problems: Vec<String>,
    /// Nothing while there is no leader that says.
    level: Option<Level>,
}

impl Cluster {
    fn holdings(&self, node: u32) -> Option<&NodeHoldings> {
        self.moves.as_ref()?.nodes.iter().find(|of| of.node == node)
    }

    /// Whether the node that was asked hears no majority of the coordinators, as it says: what it knows of leader and nodes is from before that.
    fn lacks_majority(&self) -> bool {
        self.own_problems.iter().any(|problem| lacking(problem).is_some())
    }

    fn name(&self, stream: StreamId) -> String {
        self.names.get(&stream).cloned().unwrap_or_else(|| stream.to_string())
    }

    fn state(&self, node: &MemberNode) -> &'static str {
        match self.holdings(node.node) {
            _ if node.fenced => "lost",
            Some(of) if of.draining && of.streamlets == 0 => "drained",
            Some(of) if of.draining => "draining",
            _ => "live",
        }
    }
}

#[derive(Serialize)]
struct StatusJson {
    #[serde(flatten)]
    node: NodeJson,
    /// Nothing if the node is alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterJson>,
}

#[derive(Serialize)]
struct ClusterJson {
    cluster: String,
    leader: u32,
    term: u64,
    applied: u64,
    logs: u64,
    waiting_streamlets: u64,
    moves_under_way: u64,
    moves: Vec<MoveJson>,
    /// Streams that are to have another number of copies.
    copy_changes: Vec<ChangeJson>,
    /// Nothing while there is no leader that says.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
    /// Nodes that do not let the level rise.
    level_held_back_by: Vec<u32>,
    /// Nodes that vote of which none may be lost any more, or the cluster stands still.
    last_votes: Vec<u32>,
    nodes: Vec<MemberJson>,
}

#[derive(Serialize)]
struct MoveJson {
    number: u64,
    stream: String,
    streamlet: u32,
    from: u32,
    to: u32,
}

#[derive(Serialize)]
struct MemberJson {
    node: u32,
    uuid: String,
    epoch: u32,
    state: &'static str,
    roles: Vec<&'static str>,
    votes: bool,
    rack: String,
    cluster_address: String,
    address: String,
    streamlets: u64,
    /// Streamlets that others own and of which it serves what was written before.
    held_streamlets: u64,
    /// Nothing if the node does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<CopiesJson>,
    /// Its streamlets that have virtual logs of their own because they filled a shared one.
    own_logs: Vec<OwnLogJson>,
    /// What goes wrong there, and what it waits for that lost nodes have.
    problems: Vec<String>,
}

#[derive(Serialize)]
struct OwnLogJson {
    stream: String,
    streamlet: u32,
    log: u32,
}

fn own_logs(whole: &Cluster, of: &LogsDescription) -> Vec<OwnLogJson> {
    let one = |own: &OwnLog| OwnLogJson { stream: whole.name(own.stream), streamlet: own.streamlet.0, log: own.log };
    of.own.iter().map(one).collect()
}

#[derive(Serialize)]
struct CopiesJson {
    logs: u64,
    pending_bytes: u64,
    under_replicated_blocks: u64,
    rebuild_left_bytes: u64,
    backup_logs: u64,
    backup_bytes: u64,
    lost_logs: u64,
    lost_log_bytes: u64,
}

impl From<&CopiesDescription> for CopiesJson {
    fn from(of: &CopiesDescription) -> CopiesJson {
        CopiesJson {
            logs: of.logs,
            pending_bytes: of.pending_bytes,
            under_replicated_blocks: of.under_replicated_blocks,
            rebuild_left_bytes: of.rebuild_left_bytes,
            backup_logs: of.backup_logs,
            backup_bytes: of.backup_bytes,
            lost_logs: of.lost_logs,
            lost_log_bytes: of.lost_log_bytes,
        }
    }
}

impl From<&Cluster> for ClusterJson {
    fn from(whole: &Cluster) -> ClusterJson {
        let of = &whole.cluster;
        let moves = whole.moves.as_ref().map_or(&[][..], |moves| &moves.moves);
        let one = |of: &MoveInfo| MoveJson {
            number: of.number,
            stream: whole.name(of.stream),
            streamlet: of.streamlet.0,
            from: of.from,
            to: of.to,
        };
        let member = |node: &MemberNode| MemberJson {
            node: node.node,
            uuid: uuid_text(&node.uuid),
            epoch: node.epoch,
            state: whole.state(node),
            roles: node.roles.iter().map(|role| role.name()).collect(),
            votes: node.votes,
            rack: node.rack.clone(),
            cluster_address: node.cluster_address.clone(),
            address: node.native_address.clone(),
            streamlets: node.streamlets,
            held_streamlets: whole.holdings(node.node).map_or(0, |of| of.held),
            copies: whole.copies.get(&node.node).map(|of| CopiesJson::from(&of.copies)),
            own_logs: whole.copies.get(&node.node).map_or_else(Vec::new, |of| own_logs(whole, &of.logs)),
            problems: whole.copies.get(&node.node).map_or_else(Vec::new, |of| of.problems.clone()),
        };
        ClusterJson {
            cluster: uuid_text(&of.cluster),
            leader: of.leader,
            term: of.term,
            applied: of.applied,
            logs: of.logs,
            waiting_streamlets: of.waiting_streamlets,
            moves_under_way: whole.moves.as_ref().map_or(0, |moves| moves.under_way),
            moves: moves.iter().map(one).collect(),
            copy_changes: whole.changes.iter().map(ChangeJson::from).collect(),
            level: whole.level.as_ref().map(|level| level.level),
            level_held_back_by: whole.level.as_ref().map_or_else(Vec::new, |level| level.held_back_by.clone()),
            last_votes: if whole.lacks_majority() { Vec::new() } else { last_votes(of) },
            nodes: of.nodes.iter().map(member).collect(),
        }
    }
}

/// Moves that are shown one by one, and streams that are to have another number of copies.
const SHOWN: usize = 10;

/// What a node does that was not told otherwise.
const ALL_ROLES: [Role; 3] = [Role::Coordinator, Role::Broker, Role::Backup];

/// The nodes, a line each, which fits a terminal of 80 columns with addresses and amounts as they usually are. Nearly all nodes do everything: roles are told
/// of the others.
fn members_text(whole: &Cluster) -> String {
    let mut table = Table::new(&columns::NODES);
    let mut roles = String::new();
    for node in &whole.cluster.nodes {
        if ALL_ROLES.iter().any(|role| !node.roles.contains(role)) {
            let only: Vec<&str> = node.roles.iter().map(|role| role.name()).collect();
            roles.push_str(&format!("roles: node {} is {} only\n", node.node, only.join(" and ")));
        }
        // Nobody is left to declare it lost.
        let is_silent = whole.lacks_majority() && whole.silent.iter().any(|(silent, _)| *silent == node.node);
        table.row([
            node.node.to_string(),
            if is_silent { "silent" } else { whole.state(node) }.to_owned(),
            node.epoch.to_string(),
            if node.votes { "yes" } else { "no" }.to_owned(),
            node.rack.clone(),
            node.native_address.clone(),
            node.streamlets.to_string(),
            whole.holdings(node.node).map_or_else(|| "?".to_owned(), |of| of.held.to_string()),
            whole.copies.get(&node.node).map_or_else(|| "?".to_owned(), |of| human_bytes(of.copies.backup_bytes)),
        ]);
    }
    table.text() + &roles
}

fn cluster_text(whole: &Cluster) -> String {
    let cluster = &whole.cluster;
    let leader = match cluster.leader {
        _ if whole.lacks_majority() => "not known: the node that was asked hears no majority".to_owned(),
        0 => "none is known".to_owned(),
        node => format!("node {node}, term {}", cluster.term),
    };
    let level = whole.level.as_ref().map_or_else(|| "not known: the leader does not say".to_owned(), level::line);
    let mut known = vec![("cluster", uuid_text(&cluster.cluster)), ("leader", leader), ("level", level)];
    known.extend(last_votes_text(cluster).filter(|_| !whole.lacks_majority()).map(|votes| ("votes", votes)));
    let mut text = facts(&known);
    text.push_str(&members_text(whole));
    if let Some(moves) = whole.moves.as_ref().filter(|moves| moves.under_way > 0) {
        for of in moves.moves.iter().take(SHOWN) {
            let (name, MoveInfo { number, streamlet, from, to, .. }) = (whole.name(of.stream), of);
            text.push_str(&format!("move {number}: {name}/{streamlet} from node {from} to node {to}\n"));
        }
        let more = moves.under_way.saturating_sub(SHOWN as u64);
        if more > 0 {
            text.push_str(&format!("and {more} more moves\n"));
        }
    }
    text.push_str(&copies::status_text(&whole.changes, SHOWN));
    for (node, Said { copies: of, logs, .. }) in &whole.copies {
        for own in own_logs(whole, logs) {
            let OwnLogJson { stream, streamlet, log } = own;
            text.push_str(&format!("own log: {stream}/{streamlet} of node {node} has virtual log {log} for itself\n"));
        }
        if of.rebuild_left_bytes > 0 {
            let left = human_bytes(of.rebuild_left_bytes);
            text.push_str(&format!("rebuild: node {node} has {left} of lost nodes left to rebuild, or to copy\n"));
        }
        if of.lost_log_bytes > 0 {
            let (bytes, logs) = (human_bytes(of.lost_log_bytes), of.lost_logs);
            let logs = if logs == 1 { "a log".to_owned() } else { format!("{logs} logs") };
            text.push_str(&format!(
                "before: node {node} keeps {bytes} in {logs} from before nodes were started again or lost, until nobody needs them\n"
            ));
        }
    }
    text
}

/// Nodes that vote of which none may be lost any more: without it nothing is decided, and after some seconds nobody is served. Nobody, where a
/// node is alone or a majority is missing already.
fn last_votes(cluster: &ClusterDescription) -> Vec<u32> {
    let votes = || cluster.nodes.iter().filter(|node| node.votes);
    let left: Vec<u32> = votes().filter(|node| !node.fenced).map(|node| node.node).collect();
    let is_last = cluster.nodes.len() > 1 && left.len() == votes().count() / 2 + 1;
    if is_last { left } else { Vec::new() }
}

/// The same in words, which fit a terminal of 80 columns.
fn last_votes_text(cluster: &ClusterDescription) -> Option<String> {
    let (last, all) = (last_votes(cluster), cluster.nodes.iter().filter(|node| node.votes).count());
    let named = last.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match last.len() {
        0 => None,
        1 => Some(format!("node {named} alone: the cluster stands still if it is lost")),
        _ => Some(format!("nodes {named} left of {all}: the cluster stands still if one more is lost")),
    }
}

/// Streamlets that are named one by one where there may be many.
const NAMED: usize = 5;

/// What goes wrong in the cluster, a sentence each, but for what the node that was asked first says itself. What several nodes say is there once.
fn problems(whole: &Cluster) -> Vec<String> {
    let mut all = Vec::new();
    if whole.lacks_majority() {
        all.push(format!("without a majority no streams are made and no owners change: {OF_MAJORITY}"));
    } else if whole.cluster.leader == 0 {
        all.push(
            "no leader of the coordinators is known: no streams can be made and no owners change until a majority of them is up (most are gone for good: \
             `kera cluster recover`)"
                .to_owned(),
        );
    }
    for (node, Said { copies: of, .. }) in whole.copies.iter().filter(|(_, of)| of.copies.under_replicated_blocks > 0) {
        all.push(lacks_copies(*node, of.under_replicated_blocks, &whole.cluster, whole.most_copies));
    }
    for lost in lost_owners(&whole.cluster) {
        let those = whole.waiting.iter().filter(|(node, _)| *node == lost.node).map(|(_, name)| name.as_str());
        all.push(waits_for(lost.node, lost.streamlets, &those.collect::<Vec<_>>()));
    }
    all.extend(copies::problems(&whole.changes));
    let lost = whole.cluster.nodes.iter().filter(|node| node.fenced && node.streamlets == 0);
    all.extend(lost.map(|node| is_lost(node, &whole.cluster)));
    let silent = whole.silent.iter();
    let is = if whole.lacks_majority() { "" } else { "is live and " };
    all.extend(silent.map(|(node, why)| format!("node {node} {is}{why}: what goes wrong there is not known")));
    let mut saying: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, of) in &whole.copies {
        for problem in of.problems.iter().filter(|problem| !whole.own_problems.contains(problem)) {
            saying.entry(problem).or_default().push(node.to_string());
        }
    }
    all.extend(saying.into_iter().map(|(problem, nodes)| format!("node {}: {problem}", nodes.join(", "))));
    all
}

/// That data has fewer copies than it should, and until when. `most`: how many a stream is to have at most.
///
/// The owner has one of them, and each of the others is at another node that is a backup. Where enough of those are left nobody has to be waited for.
fn lacks_copies(node: u32, blocks: u64, cluster: &ClusterDescription, most: Option<u32>) -> String {
    let what = match blocks {
        1 => format!("1 block of node {node} has fewer copies than it should"),
        blocks => format!("{} blocks of node {node} have fewer copies than they should", human_count(blocks)),
    };
    let others = || cluster.nodes.iter().filter(|of| of.node != node && of.roles.contains(&Role::Backup));
    let left = others().filter(|of| !of.fenced).count();
    let lost: Vec<String> = others().filter(|of| of.fenced).map(|of| format!("node {}", of.node)).collect();
    match lost.is_empty() || most.is_none_or(|most| left + 1 >= most as usize) {
        // They are copied behind what is written meanwhile, if there are nodes enough.
        true => format!("{what}: they are copied again, where another node has the role of a backup and room"),
        false => format!("{what}, until {} is back or another node joins", lost.join(" or ")),
    }
}

/// That a node is lost of which nothing waits any more: the next loss is not as harmless.
fn is_lost(node: &MemberNode, cluster: &ClusterDescription) -> String {
    let number = node.node;
    let votes = || cluster.nodes.iter().filter(|node| node.votes);
    let (all, left) = (votes().count(), votes().filter(|node| !node.fenced).count());
    let last = match node.votes && left <= all / 2 + 1 {
        true => "; of the nodes that vote all are needed that are left",
        false => "",
    };
    format!("node {number} is lost: start it, or give it up with `kera node remove {number}`{last}")
}

/// That streamlets wait for a lost node: some by name.
fn waits_for(node: u32, count: u64, names: &[&str]) -> String {
    let wait = if count == 1 { "streamlet waits" } else { "streamlets wait" };
    let mut named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = count.saturating_sub(names.len().min(NAMED) as u64);
    if more > 0 && !named.is_empty() {
        named.push_str(&format!(" and {more} more"));
    }
    let named = if named.is_empty() { named } else { format!(" ({named})") };
    let copied = if count == 1 { "if it has copies it waits" } else { "those with copies wait" };
    format!(
        "{count} {wait}{named} for node {node}, which is lost: start it; {copied} until others have seen what it had"
    )
}

/// Which node it is that answers: of a cluster its number, and the address that it has there. Clients may name several. With an address as it usually
/// is that fits a terminal of 80 columns.
fn who(s: &NodeStatusResponse, cluster: Option<&ClusterDescription>, address: &str) -> String {
    let member = cluster.and_then(|cluster| cluster.nodes.iter().find(|node| node.uuid == s.node_id));
    match member {
        Some(member) => {
            format!("{} at {} ({})", member.node, member.native_address, uuid_text(&s.node_id))
        }
        None => format!("{} at {address}", uuid_text(&s.node_id)),
    }
}

fn status_text(s: &NodeStatusResponse, cluster: Option<&ClusterDescription>, address: &str) -> String {
    let roles: Vec<&str> = s.roles.iter().map(|role| role.name()).collect();
    let percent = (s.arena_used_bytes * 100).checked_div(s.arena_bytes).unwrap_or(0);
    let mut text = facts(&[
        ("node", who(s, cluster, address)),
        ("version", s.version.clone()),
        ("roles", roles.join(", ")),
        ("state", if s.ready { "ready".into() } else { "not ready".to_owned() }),
        ("up", format!("{}, start {}", human_duration(s.uptime_ms), s.node_epoch)),
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
        ("bytes", format!("{} of records, in memory or on disk", human_bytes(s.stored_bytes))),
        (
            "clients",
            format!(
                "connections: {}, subscriptions: {}, applications: {}",
                s.connections, s.subscriptions, s.applications
            ),
        ),
        ("written", format!("{}, {} since the start", records_of(s.appended_records), human_bytes(s.appended_bytes))),
        ("read", format!("{} since the start", human_bytes(s.read_bytes))),
    ]);
    for disk in &s.disks {
        let problem = if disk.problem.is_empty() { String::new() } else { format!(" NOT USED: {}", disk.problem) };
        let (used, free, total) =
            (human_bytes(disk.used_bytes), human_bytes(disk.free_bytes), human_bytes(disk.total_bytes));
        text.push_str(&format!("disk     {}: {used} on disk, {free} free of {total}{problem}\n", disk.path));
    }
    text + &lines(&s.problems)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::level::tests::described;
    use kera_protocol::DiskStatus;

    /// What a node says of itself that has taken so many bytes.
    pub(in crate::commands) fn told(number: u32, appended_bytes: u64) -> NodeStatusResponse {
        NodeStatusResponse {
            node_id: [number as u8; 16],
            node_epoch: 1,
            version: String::new(),
            roles: Vec::new(),
            started_ms: 0,
            uptime_ms: 0,
            ready: true,
            problems: vec!["the disk is full".into()],
            arena_bytes: 100,
            arena_used_bytes: 10,
            streams: 0,
            lanes: 0,
            groups: 0,
            segments: 0,
            stored_bytes: 0,
            connections: 2,
            subscriptions: 0,
            applications: 0,
            appended_records: 0,
            appended_bytes,
            read_bytes: 0,
            pending_bytes: 0,
            disks: Vec::new(),
        }
    }

    fn whole(cluster: ClusterDescription) -> Cluster {
        Cluster {
            cluster,
            moves: None,
            changes: Vec::new(),
            names: HashMap::new(),
            copies: BTreeMap::new(),
            most_copies: None,
            silent: Vec::new(),
            waiting: Vec::new(),
            own_problems: Vec::new(),
            level: None,
        }
    }

    #[test]
    fn the_nodes_of_a_cluster_fit_a_terminal_and_what_they_do_is_told_of_those_that_do_not_do_everything() {
        let mut cluster = described(1, &[1; 3]);
        for node in &mut cluster.nodes {
            node.rack = format!("rack-{}", node.node);
            node.native_address = format!("192.168.100.10{}:7070", node.node);
            node.streamlets = 1234;
        }
        cluster.nodes[1].roles = vec![Role::Broker, Role::Backup];
        let of = |backup_bytes| {
            let copies = CopiesDescription { backup_bytes, ..CopiesDescription::default() };
            Said { copies, logs: LogsDescription::default(), problems: Vec::new() }
        };
        let copies = [1, 2, 3].map(|node| (node, of(123 << 30))).into();
        let text = members_text(&Cluster { copies, ..whole(cluster) });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("192.168.100.102:7070  1234  ?      123 GiB\n"), "{text}");
        assert_eq!(text.lines().last(), Some("roles: node 2 is broker and backup only"), "{text}");
    }

    #[test]
    fn what_a_node_says_of_itself_fits_a_terminal() {
        let mut cluster = described(1, &[1; 3]);
        cluster.nodes[1].uuid = [7; 16];
        cluster.nodes[1].native_address = "192.168.100.102:7070".into();
        let status = NodeStatusResponse {
            version: "0.1.0".into(),
            node_epoch: 123,
            roles: ALL_ROLES.to_vec(),
            disks: vec![DiskStatus {
                path: "./kera-data".into(),
                total_bytes: 252 << 30,
                free_bytes: 73 << 30,
                used_bytes: 17 << 20,
                problem: String::new(),
            }],
            ..told(7, 1 << 30)
        };
        for cluster in [None, Some(&cluster)] {
            let text = status_text(&status, cluster, "192.168.100.102:7070");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(
                text.contains("192.168.100.102:7070") && text.contains("0.1.0") && text.contains("start 123"),
                "{text}"
            );
            // As `kera stream describe` and `kera top` call them, and as the help explains them.
            for name in ["arena", "bytes", "disk"] {
                let has = |of: &str| of.lines().any(|line| line.trim_start().starts_with(&format!("{name}  ")));
                assert!(has(&text) && has(columns::STATUS_HELP), "{name}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn a_live_node_that_does_not_answer_and_copies_that_wait_are_problems() {
        // It takes connections and says nothing.
        let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut cluster = described(1, &[1; 3]);
        cluster.nodes.drain(..2);
        cluster.nodes[0].native_address = mute.local_addr().unwrap().to_string();
        cluster.nodes[0].streamlets = 2;
        let (copies, silent) = copies(&cluster).await;
        assert_eq!((copies.len(), silent[0].0), (0, 3));
        let change = CopyChange {
            stream: StreamId(7),
            name: "orders".into(),
            copies: 1,
            wanted: 2,
            streamlets: 2,
            there: 1,
            waits_for: vec![2],
        };
        let said = problems(&Cluster { changes: vec![change], copies, silent, ..whole(cluster) });
        assert_eq!(said[0], "the copies of orders wait for node 2, which is lost: start it");
        assert!(said[1].starts_with("node 3 is live and has not answered within 1 s"), "{said:?}");
        assert_eq!(said.len(), 2);
    }

    #[tokio::test]
    async fn a_node_that_turns_clients_away_is_not_taken_for_one_of_an_earlier_version() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let Err(why) = said_by(&gone).await else { panic!("nobody is there") };
        assert!(why.starts_with(&format!("has not answered at {gone} (")), "{why}");
    }

    #[test]
    fn where_most_coordinators_are_away_nothing_is_said_as_if_they_were_there() {
        let mut cluster = described(1, &[1; 3]);
        (cluster.leader, cluster.nodes[2].fenced) = (1, true);
        cluster.nodes.iter_mut().for_each(|node| node.votes = true);
        let late = vec![(2, "has not answered within 1 s".to_owned())];
        let before = Cluster { silent: late, ..whole(cluster) };
        let text = cluster_text(&before);
        assert!(text.contains("node 1, term") && text.contains("if one more is lost"), "{text}");
        let own = "no majority of the coordinators: node 1 does not hear nodes 2 and 3: nothing is read here";
        let lacking = Cluster { own_problems: vec![own.to_owned()], ..before };
        let text = cluster_text(&lacking);
        assert!(!text.contains("term") && !text.contains("one more"), "{text}");
        let state = |node: &str| text.lines().find_map(|line| line.strip_prefix(node)?.split_whitespace().next());
        let states = [1, 2, 3].map(|node| state(&format!("   {node}")));
        assert_eq!(states, [Some("live"), Some("silent"), Some("lost")]);
        let said = problems(&lacking);
        assert!(said[0].starts_with("without a majority") && said[0].ends_with("`kera cluster recover`"), "{said:?}");
        assert!(said.iter().any(|said| said.starts_with("node 2 has not answered")), "{said:?}");
        assert!(ClusterJson::from(&lacking).last_votes.is_empty());
    }

    #[test]
    fn a_lost_node_is_a_problem_also_when_nothing_waits_for_it() {
        let mut cluster = described(1, &[1; 4]);
        cluster.nodes[2].fenced = true;
        (cluster.nodes[3].fenced, cluster.nodes[3].votes) = (true, false);
        let said = "node 3 is lost: start it, or give it up with `kera node remove 3`; of the nodes that vote all are needed that are left";
        assert_eq!(is_lost(&cluster.nodes[2], &cluster), said);
        let said = "node 4 is lost: start it, or give it up with `kera node remove 4`";
        assert_eq!(is_lost(&cluster.nodes[3], &cluster), said);
    }

    #[test]
    fn it_is_said_without_whom_the_coordinators_have_no_majority() {
        let of = |nodes: usize, votes: &[u32], lost: &[u32]| {
            let mut cluster = described(1, &vec![1; nodes]);
            for node in &mut cluster.nodes {
                (node.votes, node.fenced) = (votes.contains(&node.node), lost.contains(&node.node));
            }
            let said = last_votes_text(&cluster).unwrap_or_default();
            assert!(said.chars().count() + "cluster  ".len() <= 80, "{said}");
            (last_votes(&cluster), said)
        };
        assert_eq!(of(1, &[1], &[]).0, [0; 0], "there is nobody else");
        assert_eq!(of(2, &[1], &[]), (vec![1], "node 1 alone: the cluster stands still if it is lost".into()));
        assert_eq!(of(3, &[1, 2, 3], &[]), (Vec::new(), String::new()));
        let said = "nodes 1, 3 left of 3: the cluster stands still if one more is lost";
        assert_eq!(of(3, &[1, 2, 3], &[2]), (vec![1, 3], said.into()));
        assert_eq!(of(4, &[1, 2, 3], &[4]).0, [0; 0], "who is lost has no vote");
        assert_eq!(of(5, &[1, 2, 3, 4, 5], &[2, 5]).0, [1, 3, 4]);
        assert_eq!(of(3, &[1, 2, 3], &[1, 2]).0, [0; 0], "it stands still already");
    }

    #[test]
    fn until_when_data_lacks_copies_is_told_with_it() {
        let mut cluster = described(1, &[1; 3]);
        let again = "13 blocks of node 1 have fewer copies than they should: they are copied again, where";
        let said = lacks_copies(1, 13, &cluster, Some(3));
        assert!(said.starts_with(again), "{said}");
        cluster.nodes[1].fenced = true;
        let said = "1 block of node 1 has fewer copies than it should, until node 2 is back or another node joins";
        assert_eq!(lacks_copies(1, 1, &cluster, Some(3)), said);
        // Node 3 is enough for two copies.
        for most in [Some(2), None] {
            let said = lacks_copies(1, 13, &cluster, most);
            assert!(said.starts_with(again), "{said}");
        }
        // What is no backup never had a copy.
        let mut cluster = described(1, &[1; 4]);
        (cluster.nodes[1].fenced, cluster.nodes[2].fenced) = (true, true);
        cluster.nodes[2].roles = vec![Role::Coordinator];
        assert_eq!(lacks_copies(1, 1, &cluster, Some(3)), said);
    }

    #[test]
    fn streamlets_that_wait_are_named_and_those_that_are_too_many_counted() {
        let names = ["a/0", "a/1", "b/0", "b/1", "b/2", "b/3"];
        let said = waits_for(1, 7, &names);
        assert!(
            said.starts_with("7 streamlets wait (a/0, a/1, b/0, b/1, b/2 and 2 more) for node 1, which is lost"),
            "{said}"
        );
        assert!(waits_for(1, 1, &names[..1]).starts_with("1 streamlet waits (a/0) for node 1"));
        assert!(waits_for(1, 3, &[]).starts_with("3 streamlets wait for node 1"));
    }
}
