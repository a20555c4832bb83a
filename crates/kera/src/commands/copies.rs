//! Streams that are to have another number of copies: how far that is, in words and as JSON, and waiting until it is done.

use std::time::Duration;

use kera_client::{Client, ClientError, Status, StreamId, StreamInfo};
use kera_format::copies_min;
use kera_protocol::{ClusterDescription, CopyChange, Role};
use serde::Serialize;

use crate::cli::Globals;
use crate::commands::status::soon;
use crate::connect::explain;
use crate::error::CliError;
use crate::output::say;

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(200);
/// Streams that are named where there may be many.
const NAMED: usize = 3;

/// A change as `--json` shows it.
#[derive(Serialize)]
pub struct ChangeJson {
    stream: String,
    copies: u32,
    wanted: u32,
    streamlets: u32,
    /// Those that have them.
    there: u32,
    /// Lost nodes that have something of the others.
    waits_for: Vec<u32>,
}

impl From<&CopyChange> for ChangeJson {
    fn from(of: &CopyChange) -> ChangeJson {
        ChangeJson {
            stream: of.name.clone(),
            copies: of.copies,
            wanted: of.wanted,
            streamlets: of.streamlets,
            there: of.there,
            waits_for: of.waits_for.clone(),
        }
    }
}

/// Changes that are under way; none where nodes are alone, or of versions that do not know of it.
async fn under_way(client: &Client) -> Result<Vec<CopyChange>, ClientError> {
    use Status::{InvalidArgument, NotSupported, UnknownOperation, UnsupportedVersion};
    match client.admin().copy_changes().await {
        Err(error) => match error.status() {
            Some(UnsupportedVersion | UnknownOperation | NotSupported | InvalidArgument) => Ok(Vec::new()),
            _ => Err(error),
        },
        changes => changes,
    }
}

/// The same as far as the coordinators' leader tells it soon: whoever looks at streams is not to wait until there is one.
pub async fn known(client: &Client) -> Vec<CopyChange> {
    soon(under_way(client)).await.and_then(Result::ok).unwrap_or_default()
}

/// The change of a stream.
pub fn of(changes: &[CopyChange], stream: StreamId) -> Option<&CopyChange> {
    changes.iter().find(|of| of.stream == stream)
}

/// How far it is.
pub fn progress(of: &CopyChange) -> String {
    format!("{} of {} streamlets have them", of.there, of.streamlets)
}

/// What it waits for that does not come by itself.
pub fn waits(of: &CopyChange) -> Option<String> {
    let nodes: Vec<String> = of.waits_for.iter().map(u32::to_string).collect();
    match nodes.len() {
        0 => None,
        1 => Some(format!("waits for node {}, which is lost: start it", nodes[0])),
        _ => Some(format!("waits for nodes {}, which are lost: start them", nodes.join(", "))),
    }
}

fn copies(number: u32) -> String {
    if number == 1 { "1 copy".to_owned() } else { format!("{number} copies") }
}

/// A line for each of the first ones.
pub fn status_text(changes: &[CopyChange], shown: usize) -> String {
    let mut text = String::new();
    for of in changes.iter().take(shown) {
        let (name, has, wanted, progress) = (&of.name, copies(of.copies), of.wanted, progress(of));
        text.push_str(&format!("copies: {name} has {has}, to be {wanted}: {progress}\n"));
    }
    if changes.len() > shown {
        text.push_str(&format!("and {} more streams get another number of copies\n", changes.len() - shown));
    }
    text
}

/// What goes wrong: a sentence for each lost node that some of them wait for.
pub fn problems(changes: &[CopyChange]) -> Vec<String> {
    let mut lost: Vec<u32> = changes.iter().flat_map(|of| of.waits_for.iter().copied()).collect();
    lost.sort_unstable();
    lost.dedup();
    let of_node = |node: u32| {
        let waiting = changes.iter().filter(|of| of.waits_for.contains(&node)).map(|of| of.name.as_str());
        let streams = named(&waiting.collect::<Vec<_>>());
        format!("the copies of {streams} wait for node {node}, which is lost: start it")
    };
    lost.into_iter().map(of_node).collect()
}

/// Copies of a stream whose maker does not say how many, where there are as many nodes for them; one where there are fewer: a loss would stop two of two.
/// Topics of Kafka clients get as many.
pub const COPIES_AUTO: u32 = 3;

/// How many copies a stream gets whose maker does not say.
#[derive(Debug)]
pub struct ByItself {
    /// So many.
    pub copies: u32,
    /// Nodes that can hold copies, those that are lost too: they are to come back. One: the node is alone.
    nodes: u32,
    /// Those of them that are lost.
    lost: Vec<u32>,
}

/// How many copies a stream gets whose maker does not say.
///
/// # Errors
/// The node does not say how its cluster is: with one copy for want of an answer the loss of a node would be the loss of data.
pub async fn by_itself(client: &Client) -> Result<ByItself, CliError> {
    ByItself::told(client.admin().describe_cluster().await)
}

impl ByItself {
    fn told(cluster: Result<ClusterDescription, ClientError>) -> Result<ByItself, CliError> {
        use Status::{NotSupported, UnknownOperation, UnsupportedVersion};
        match cluster {
            Ok(cluster) => Ok(ByItself::of(&cluster)),
            Err(error) => match error.status() {
                // A node of an earlier version, which is in no cluster.
                Some(UnsupportedVersion | UnknownOperation | NotSupported) => {
                    Ok(ByItself { copies: 1, nodes: 1, lost: Vec::new() })
                }
                _ => Err(explain(&error).next("say how many copies there are to be with --replication")),
            },
        }
    }

    fn of(cluster: &ClusterDescription) -> ByItself {
        let backups = || cluster.nodes.iter().filter(|node| node.roles.contains(&Role::Backup));
        // A broker that is no backup holds its own copy.
        let is_own = !backups().any(|node| node.roles.contains(&Role::Broker));
        let nodes = backups().count() as u32 + u32::from(is_own);
        let lost = backups().filter(|node| node.fenced).map(|node| node.node).collect();
        ByItself { copies: if nodes >= COPIES_AUTO { COPIES_AUTO } else { 1 }, nodes, lost }
    }

    /// What to know of a stream that was made so and has these copies, behind their number. Nothing where there is nothing to choose, or if somebody else
    /// has made it with another number.
    pub fn why(&self, name: &str, has: u32) -> String {
        if has != self.copies || self.nodes < 2 {
            return String::new();
        }
        if has > 1 {
            return format!(" (as in any cluster of {COPIES_AUTO} nodes or more; --replication says otherwise)");
        }
        let more = self.nodes;
        format!(
            "\nIt has one copy, so it waits for its nodes when they are lost; `kera stream alter {name} --replication {more}` gives it more, now or later."
        )
    }

    /// Why a stream was not made. While nodes are lost there may be too few for copies that nobody has asked for.
    pub fn refused(&self, error: &ClientError) -> CliError {
        let explained = refused(error);
        // Where enough live, something else is too much.
        let are_enough = self.nodes.saturating_sub(self.lost.len() as u32) >= copies_min(self.copies);
        if are_enough || error.status() != Some(Status::Overloaded) {
            return explained;
        }
        let lost: Vec<String> = self.lost.iter().map(u32::to_string).collect();
        let (nodes, are, them) = match lost.len() {
            1 => ("node", "is", "it"),
            _ => ("nodes", "are", "them"),
        };
        let lost = lost.join(", ");
        explained.next(format!(
            "{nodes} {lost} {are} lost: start {them}, or say with --replication how many copies there are to be"
        ))
    }
}

/// Why a stream was not made, or does not get another number of copies. Where too few nodes are live for them the message ends with what to do.
pub fn refused(error: &ClientError) -> CliError {
    let explained = explain(error);
    if error.status() == Some(Status::Overloaded) { with_nodes_to_start(explained) } else { explained }
}

fn with_nodes_to_start(error: CliError) -> CliError {
    match error.message.rsplit_once("; ").filter(|(_, next)| next.starts_with("start node")) {
        Some((what, next)) => CliError::failure(what).next(next),
        None => error,
    }
}

/// Some names, and how many more there are.
pub fn named(names: &[&str]) -> String {
    let (first, more) = names.split_at(names.len().min(NAMED));
    if more.is_empty() { first.join(", ") } else { format!("{} and {} more", first.join(", "), more.len()) }
}

/// How far a stream is that was told to have so many copies; nothing if it has them, or asked for nothing else.
///
/// # Errors
/// The node cannot be reached, or nobody leads the coordinators.
pub async fn change_of(client: &Client, stream: StreamId) -> Result<Option<CopyChange>, CliError> {
    Ok(of(&under_way(client).await?, stream).cloned())
}

/// Waits until a stream has so many copies, and says how far it is; the stream as it is then.
///
/// # Errors
/// Somebody has asked for something else meanwhile, or the node cannot be reached.
pub async fn wait(
    client: &Client,
    stream: &StreamInfo,
    wanted: u32,
    globals: &Globals,
) -> Result<StreamInfo, CliError> {
    let goes_on = |error: CliError| error.next("it goes on by itself; `kera status` shows how far it is");
    let mut told = None;
    while let Some(change) = change_of(client, stream.id).await.map_err(goes_on)? {
        if change.wanted != wanted {
            return Err(instead(&stream.name, wanted, change.wanted));
        }
        let now = (change.there, change.waits_for.clone());
        if told.as_ref() != Some(&now) && !globals.json {
            let waits = waits(&change).map_or_else(String::new, |waits| format!("; the rest {waits}"));
            say(format_args!("{} is to have {}: {}{waits}", change.name, copies(wanted), progress(&change)));
            told = Some(now);
        }
        tokio::time::sleep(LOOK).await;
    }
    let after = client.admin().stream(stream.id).await?;
    match after.options.replication {
        has if has == wanted => Ok(after),
        has => Err(instead(&stream.name, wanted, has)),
    }
}

fn instead(name: &str, wanted: u32, other: u32) -> CliError {
    let message = format!("{name} is not to have {} any more: somebody has asked for {other} instead", copies(wanted));
    CliError::failure(message).next(format!("`kera stream describe {name}` shows what it has"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::level::tests::described;

    fn change(name: &str, copies: u32, wanted: u32, waits_for: &[u32]) -> CopyChange {
        let (stream, name, waits_for) = (StreamId(7), name.to_owned(), waits_for.to_vec());
        CopyChange { stream, name, copies, wanted, streamlets: 8, there: 5, waits_for }
    }

    fn by_itself(nodes: usize) -> ByItself {
        let mut cluster = described(1, &[1; 9]);
        cluster.nodes.truncate(nodes);
        ByItself::of(&cluster)
    }

    #[test]
    fn who_has_not_said_how_many_copies_gets_three_where_there_are_as_many_nodes_for_them() {
        let copies = |nodes| by_itself(nodes).copies;
        assert_eq!([0, 1, 2, 3, 9].map(copies), [1, 1, 1, 3, 3]);
        let mut cluster = described(1, &[1; 3]);
        cluster.nodes[2].fenced = true;
        assert_eq!(ByItself::of(&cluster).copies, 3, "it is to come back");
        cluster.nodes[2].roles = vec![Role::Coordinator, Role::Broker];
        assert_eq!(ByItself::of(&cluster).copies, 1, "it holds none");
        cluster.nodes[0].roles = vec![Role::Broker];
        cluster.nodes[1].roles = vec![Role::Backup];
        cluster.nodes[2].roles = vec![Role::Backup];
        assert_eq!(ByItself::of(&cluster).copies, 3, "one of them is the broker's own");
    }

    #[test]
    fn who_has_not_said_how_many_copies_is_told_how_many_and_why() {
        assert_eq!(by_itself(0).why("flights", 1), "", "a node that is alone");
        assert_eq!(by_itself(1).why("flights", 1), "");
        assert!(by_itself(2).why("flights", 1).contains("kera stream alter flights --replication 2"));
        assert_eq!(by_itself(2).why("flights", 2), "", "somebody else has made it");
        assert!(by_itself(5).why("flights", 3).starts_with(" (as in any cluster of 3 nodes or more; --replication"));
    }

    fn failed(status: Status) -> ClientError {
        ClientError::Refused { records: 0, streamlet: kera_client::StreamletId(0), status }
    }

    #[test]
    fn a_node_of_a_version_that_has_no_clusters_is_alone() {
        for status in [Status::UnknownOperation, Status::UnsupportedVersion, Status::NotSupported] {
            let told = ByItself::told(Err(failed(status))).expect("a node that is alone");
            assert_eq!((told.copies, told.why("flights", 1)), (1, String::new()), "{status}");
        }
        let error = ByItself::told(Err(failed(Status::NotReady))).expect_err("it is not known");
        assert!(error.next_step.contains("--replication"), "{error}");
    }

    #[test]
    fn nodes_are_to_be_started_only_where_too_few_live_for_the_copies() {
        let advice = |nodes: usize, lost: usize, status: Status| {
            let mut cluster = described(1, &[1; 9]);
            cluster.nodes.truncate(nodes);
            cluster.nodes.iter_mut().take(lost).for_each(|node| node.fenced = true);
            ByItself::of(&cluster).refused(&failed(status)).next_step.contains("lost: start")
        };
        assert!(advice(3, 2, Status::Overloaded) && advice(5, 4, Status::Overloaded));
        assert!(
            !advice(3, 1, Status::Overloaded) && !advice(5, 3, Status::Overloaded),
            "two live: as many as writes need"
        );
        assert!(!advice(3, 0, Status::Overloaded) && !advice(2, 1, Status::Overloaded));
        assert!(!advice(3, 2, Status::StreamExists) && !advice(3, 2, Status::InvalidOptions));
    }

    #[test]
    fn what_is_refused_while_too_few_nodes_live_is_told_with_the_nodes_that_are_to_be_started() {
        let why = "replication is 3, which needs 2 live nodes to hold copies, and there is 1";
        let next = "start nodes 2, 3, or ask for 1 at most for now";
        let told = with_nodes_to_start(CliError::failure(format!("{why}; {next}")).next("try again later"));
        assert_eq!((told.message.as_str(), told.next_step.as_str()), (why, next));
        let other = CliError::failure("there are 7 connections; the limit is 7").next("try again later");
        assert_eq!(with_nodes_to_start(other.clone()), other);
    }

    #[test]
    fn how_far_changes_are_is_told_with_the_lost_nodes_that_they_wait_for() {
        let changes = [change("flights", 1, 3, &[]), change("payments", 2, 3, &[2]), change("orders", 3, 2, &[1, 2])];
        assert_eq!(
            status_text(&changes, 2),
            "copies: flights has 1 copy, to be 3: 5 of 8 streamlets have them\n\
             copies: payments has 2 copies, to be 3: 5 of 8 streamlets have them\n\
             and 1 more streams get another number of copies\n"
        );
        assert_eq!(
            problems(&changes),
            [
                "the copies of orders wait for node 1, which is lost: start it",
                "the copies of payments, orders wait for node 2, which is lost: start it"
            ]
        );
        assert_eq!(status_text(&[], 2), "");
        assert_eq!(waits(&changes[0]), None);
        assert_eq!(waits(&changes[1]).as_deref(), Some("waits for node 2, which is lost: start it"));
        assert_eq!(waits(&changes[2]).as_deref(), Some("waits for nodes 1, 2, which are lost: start them"));
        assert_eq!(named(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }

    #[test]
    fn who_asked_for_something_else_is_told() {
        let said = instead("flights", 3, 1).to_string();
        assert!(said.contains("flights is not to have 3 copies any more: somebody has asked for 1 instead"), "{said}");
    }
}
