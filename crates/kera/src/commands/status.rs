//! `kera status`: how the node is, and its cluster as it knows it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use kera_client::{Client, StreamId};
use kera_protocol::{
    ClusterDescription, CopiesDescription, CopyChange, LogsDescription, MemberNode, MoveInfo, MovesDescription,
    NodeHoldings, NodeStatusResponse, OwnLog,
};
use kera_server::api::NodeJson;
use kera_server::identity::uuid_text;
use kera_server::units::{human_bytes, human_count, human_duration};

use crate::cli::Globals;
use crate::commands::copies::{self, ChangeJson};
use crate::commands::level::{self, Level};
use crate::connect::connect;
use crate::error::CliError;
use crate::output::{Table, facts, print, print_json};
use serde::Serialize;

/// Runs the command.
///
/// # Errors
/// The node cannot be reached.
pub async fn run(globals: &Globals) -> Result<(), CliError> {
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
    let copies = match &cluster {
        Some(cluster) => copies(cluster).await,
        None => BTreeMap::new(),
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
    let own_problems = status.problems.clone();
    let cluster = cluster.map(|cluster| Cluster { cluster, moves, changes, names, copies, own_problems, level });
    if globals.json {
        let cluster = cluster.as_ref().map(ClusterJson::from);
        return print_json(&StatusJson { node: NodeJson::from(&status), cluster });
    }
    let text = status_text(&status, &globals.connect);
    print(&cluster.map_or(text.clone(), |cluster| text + "\n" + &cluster_text(&cluster)))
}

/// How long a node may take to say how its copies are, and the coordinators' leader what moves.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// What is answered soon; nothing otherwise.
pub async fn soon<T>(asked: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(ASKED_FOR, asked).await.ok()
}

/// What each live node says of its copies; one that does not answer soon is left out.
async fn copies(cluster: &ClusterDescription) -> BTreeMap<u32, Said> {
    let mut asked = tokio::task::JoinSet::new();
    for node in cluster.nodes.iter().filter(|node| !node.fenced && !node.native_address.is_empty()) {
        let (number, address) = (node.node, node.native_address.clone());
        asked.spawn(async move {
            let ask = async {
                let client = Client::builder(&address).client_name("kera").connect().await.ok()?;
                let copies = client.admin().describe_copies().await.ok()?;
                // Nodes of earlier versions have none and refuse.
                let logs = client.admin().describe_logs().await.unwrap_or_default();
                let problems = client.admin().node_status().await.map_or_else(|_| Vec::new(), |status| status.problems);
                Some(Said { copies, logs, problems })
            };
            Some((number, tokio::time::timeout(ASKED_FOR, ask).await.ok()??))
        });
    }
    asked.join_all().await.into_iter().flatten().collect()
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
    /// What the node that was asked first says goes wrong.
    own_problems: Vec<String>,
    /// Nothing while there is no leader that says.
    level: Option<Level>,
}

impl Cluster {
    fn holdings(&self, node: u32) -> Option<&NodeHoldings> {
        self.moves.as_ref()?.nodes.iter().find(|of| of.node == node)
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
            nodes: of.nodes.iter().map(member).collect(),
        }
    }
}

/// Moves that are shown one by one, and streams that are to have another number of copies.
const SHOWN: usize = 10;

fn cluster_text(whole: &Cluster) -> String {
    let cluster = &whole.cluster;
    let leader = match cluster.leader {
        0 => "none is known".to_owned(),
        node => format!("node {node}, term {}", cluster.term),
    };
    let level = whole.level.as_ref().map_or_else(|| "not known: the leader does not say".to_owned(), level::line);
    let mut text = facts(&[("cluster", uuid_text(&cluster.cluster)), ("leader", leader), ("level", level)]);
    let mut table =
        Table::new(&["NODE", "STATE", "EPOCH", "ROLES", "VOTES", "RACK", "ADDRESS", "STREAMLETS", "OLDER", "KEEPS"]);
    for node in &cluster.nodes {
        let roles: Vec<&str> = node.roles.iter().map(|role| role.name()).collect();
        table.row([
            node.node.to_string(),
            whole.state(node).to_owned(),
            node.epoch.to_string(),
            roles.join(","),
            if node.votes { "yes" } else { "no" }.to_owned(),
            node.rack.clone(),
            node.native_address.clone(),
            node.streamlets.to_string(),
            whole.holdings(node.node).map_or_else(|| "?".to_owned(), |of| of.held.to_string()),
            whole.copies.get(&node.node).map_or_else(|| "?".to_owned(), |of| human_bytes(of.copies.backup_bytes)),
        ]);
    }
    text.push_str(&table.text());
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
            text.push_str(&format!("rebuild: node {node} has {left} of lost nodes left to rebuild\n"));
        }
        if of.lost_log_bytes > 0 {
            let (bytes, logs) = (human_bytes(of.lost_log_bytes), of.lost_logs);
            text.push_str(&format!(
                "lost: node {node} keeps {bytes} in {logs} logs of lost nodes until they are not needed\n"
            ));
        }
        if of.under_replicated_blocks > 0 {
            let blocks = human_count(of.under_replicated_blocks);
            text.push_str(&format!("PROBLEM  {blocks} blocks of node {node} have fewer copies than they should\n"));
        }
    }
    for lost in cluster.nodes.iter().filter(|node| node.fenced && node.streamlets > 0) {
        let (waiting, node) = (lost.streamlets, lost.node);
        text.push_str(&format!(
            "PROBLEM  {waiting} streamlets wait for node {node}, which is lost: start it; those with copies wait until others have seen what it \
             had\n"
        ));
    }
    text + &problems_text(whole)
}

/// What other nodes than the one that was asked first say goes wrong: what several say, once.
fn problems_text(whole: &Cluster) -> String {
    let mut saying: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, of) in &whole.copies {
        for problem in of.problems.iter().filter(|problem| !whole.own_problems.contains(problem)) {
            saying.entry(problem).or_default().push(node.to_string());
        }
    }
    let line = |(problem, nodes): (&str, Vec<String>)| format!("PROBLEM  node {}: {problem}\n", nodes.join(", "));
    saying.into_iter().map(line).collect()
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
