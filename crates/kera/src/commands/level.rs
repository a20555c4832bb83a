//! `kera cluster level`: the level of a cluster, and who holds it back.

use std::time::Duration;

use kera_client::Client;
use kera_protocol::{ClusterDescription, MemberNode};
use serde::Serialize;

use crate::cli::Globals;
use crate::columns;
use crate::connect::connect;
use crate::error::CliError;
use crate::output::{Table, facts, print, print_json};

/// How long the leader may take to say what it has heard.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// The level of a cluster, as its leader knows it.
#[derive(Serialize)]
pub struct Level {
    /// The one in force.
    pub level: u32,
    /// The next one, if some node speaks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
    /// Nodes that do not let the cluster be raised to the next one.
    pub held_back_by: Vec<u32>,
    nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Node {
    node: u32,
    state: &'static str,
    /// Up to which level it lets the cluster be raised; nothing if it has not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    level_max: Option<u32>,
}

/// Runs the command.
///
/// # Errors
/// The node cannot be reached, or is in no cluster.
pub async fn run(globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let described = client.admin().describe_cluster().await?;
    if described.nodes.is_empty() {
        let error = CliError::failure("the node is in no cluster, so it has no level");
        return Err(error.next("docs/operations.md says how to start several"));
    }
    let Some(level) = of(&described).await else {
        return Err(CliError::failure("the leader of the coordinators does not say, or runs a version without levels"));
    };
    if globals.json { print_json(&level) } else { print(&text(&level)) }
}

/// The level of a cluster that one of its nodes has described. Only the leader has heard all nodes for sure, so that one is asked.
pub async fn of(described: &ClusterDescription) -> Option<Level> {
    let leader = described.nodes.iter().find(|node| node.node == described.leader)?;
    let ask = async {
        let client = Client::builder(&leader.native_address).client_name("kera").connect().await.ok()?;
        client.admin().describe_cluster().await.ok()
    };
    let told = match described.leader {
        0 => None,
        _ => tokio::time::timeout(ASKED_FOR, ask).await.ok().flatten(),
    };
    level(&told?)
}

fn level(told: &ClusterDescription) -> Option<Level> {
    let level = Some(told.level).filter(|level| *level != 0)?;
    let next = told.nodes.iter().any(|node| node.level_max > level).then_some(level + 1);
    let holds = |node: &&MemberNode| next.is_some_and(|next| node.level_max < next);
    let node = |of: &MemberNode| Node {
        node: of.node,
        state: if of.fenced { "lost" } else { "live" },
        level_max: Some(of.level_max).filter(|level_max| *level_max != 0),
    };
    Some(Level {
        level,
        next,
        held_back_by: told.nodes.iter().filter(holds).map(|node| node.node).collect(),
        nodes: told.nodes.iter().map(node).collect(),
    })
}

/// The level in words, in one line.
pub fn line(of: &Level) -> String {
    let nodes: Vec<String> = of.held_back_by.iter().map(u32::to_string).collect();
    match (of.next, nodes.len()) {
        (None, _) => of.level.to_string(),
        (Some(next), 0) => format!("{}, about to rise to {next}", of.level),
        (Some(next), 1) => format!("{}; node {} holds back level {next}", of.level, nodes[0]),
        (Some(next), _) => format!("{}; nodes {} hold back level {next}", of.level, nodes.join(", ")),
    }
}

fn text(of: &Level) -> String {
    let mut text = facts(&[("level", line(of))]);
    let mut table = Table::new(&columns::LEVELS);
    for node in &of.nodes {
        let level_max = node.level_max.map_or_else(|| "?".to_owned(), |level_max| level_max.to_string());
        table.row([node.node.to_string(), node.state.to_owned(), level_max]);
    }
    text.push_str(&table.text());
    text
}

#[cfg(test)]
pub(super) mod tests {
    use kera_protocol::Role;

    use super::*;

    pub(in crate::commands) fn described(level: u32, level_max: &[u32]) -> ClusterDescription {
        let member = |(node, level_max): (u32, &u32)| MemberNode {
            node,
            epoch: 1,
            uuid: [0; 16],
            fenced: false,
            votes: true,
            roles: vec![Role::Coordinator, Role::Broker, Role::Backup],
            rack: String::new(),
            cluster_address: String::new(),
            native_address: String::new(),
            streamlets: 0,
            level_max: *level_max,
        };
        let nodes = (1..).zip(level_max).map(member).collect();
        ClusterDescription {
            cluster: [1; 16],
            leader: 1,
            term: 1,
            applied: 1,
            nodes,
            logs: 0,
            waiting_streamlets: 0,
            level,
        }
    }

    #[test]
    fn who_holds_the_level_back_is_named() {
        let said = |at: u32, level_max: &[u32]| level(&described(at, level_max)).map(|level| line(&level));
        assert_eq!(said(0, &[0, 0]), None);
        assert_eq!(said(2, &[2, 2]).as_deref(), Some("2"));
        assert_eq!(said(1, &[1, 1]).as_deref(), Some("1"));
        assert_eq!(said(1, &[2, 2, 1]).as_deref(), Some("1; node 3 holds back level 2"));
        assert_eq!(said(1, &[2, 0, 1]).as_deref(), Some("1; nodes 2, 3 hold back level 2"));
        assert_eq!(said(1, &[3, 2]).as_deref(), Some("1, about to rise to 2"));
    }
}
