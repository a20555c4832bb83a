//! `kera cluster recover`: makes what a stopped node has of the coordinators' log a group of this node alone, when the majority of the coordinators is gone for good.

use std::collections::BTreeSet;
use std::path::Path;

use kera_server::identity::uuid_text;
use kera_server::survivor::{StoppedNode, Survivor};
use serde::Serialize;

use crate::cli::{Globals, RecoverArgs};
use crate::error::{CliError, EXIT_FAILURE};
use crate::numbers;
use crate::output::{Table, facts, have_typed, print, print_json};

/// What a stopped node has of the coordinators' log, as `--json` shows it.
#[derive(Serialize)]
struct SurvivorJson {
    node: u32,
    cluster: String,
    /// Of its last entry.
    term: u64,
    /// Of its last entry.
    entry: u64,
    nodes: Vec<MemberJson>,
    /// Nothing if nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    leads_from: Option<PlaceJson>,
}

#[derive(Serialize)]
struct MemberJson {
    node: u32,
    votes: bool,
    gone: bool,
    cluster_address: String,
}

/// Where the log of the group goes on that the node leads alone.
#[derive(Serialize)]
struct PlaceJson {
    term: u64,
    entry: u64,
}

/// Runs the command.
///
/// # Errors
/// The directory is in use or is that of no node of a cluster, a majority is left, or nobody has agreed.
pub fn run(args: &RecoverArgs, globals: &Globals) -> Result<(), CliError> {
    let data = Path::new(&args.data);
    let StoppedNode { survivor, lock } =
        StoppedNode::open(data).map_err(|fatal| CliError { exit: EXIT_FAILURE, ..CliError::from(&fatal) })?;
    let gone: BTreeSet<u32> = numbers::each(&args.gone).into_iter().collect();
    let found = json(&survivor, &gone);
    if !gone.is_empty() {
        survivor.check_gone(&gone).map_err(CliError::failure)?;
    }
    let text = text(&found, &args.data);
    if gone.is_empty() {
        return if globals.json { print_json(&found) } else { print(&(text + &next(&found, &args.data))) };
    }
    let mut told = Ok(());
    if !args.yes {
        // Where it is asked, wherever standard output goes and whatever is printed there.
        let word = listed(&gone);
        have_typed(&word, &format!("{text}\nType {word} to go on: "), || format!("this does not come back:\n{text}"))?;
    } else if !globals.json {
        told = print(&text);
    }
    let place = survivor.recover();
    let place = place.map_err(|error| CliError::failure(format!("{}: {error}", data.display())))?;
    // From here on the node may be started.
    drop(lock);
    let done = SurvivorJson { leads_from: Some(PlaceJson { term: place.term, entry: place.index }), ..found };
    told.and(if globals.json { print_json(&done) } else { print(&said(&done)) })
}

fn listed(nodes: &BTreeSet<u32>) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn json(survivor: &Survivor, gone: &BTreeSet<u32>) -> SurvivorJson {
    let last = survivor.last();
    let members = survivor.members().into_iter().map(|of| MemberJson {
        node: of.node,
        votes: of.votes,
        gone: gone.contains(&of.node),
        cluster_address: of.address,
    });
    SurvivorJson {
        node: survivor.node(),
        cluster: uuid_text(&survivor.state().cluster()),
        term: last.term,
        entry: last.index,
        nodes: members.collect(),
        leads_from: None,
    }
}

/// What there is, and what would become of it, in lines of 80 columns.
fn text(of: &SurvivorJson, data: &str) -> String {
    let mut text = facts(&[
        ("node", format!("{}, stopped, in {data}", of.node)),
        ("cluster", of.cluster.clone()),
        ("its log", format!("goes to term {}, entry {}", of.term, of.entry)),
    ]);
    let mut table = Table::new(&["NODE", "VOTES", "IS", "ADDRESS"]);
    let any_gone = of.nodes.iter().any(|node| node.gone);
    for node in &of.nodes {
        let is = match node.gone {
            true => "gone for good",
            false if node.node == of.node => "this one",
            false if any_gone => "left, will follow",
            false => "",
        };
        let votes = if node.votes { "yes" } else { "no" };
        table.row([node.node.to_string(), votes.to_owned(), is.to_owned(), node.cluster_address.clone()]);
    }
    text.push_str(&table.text());
    if any_gone {
        text.push_str(&format!(
            "
Node {} will lead the coordinators alone, with all that its log has.
* What the others decided and its log does not have is lost: streams that were
  made, owners, copies, offsets at which deleted records end.
* Records are lost of which only nodes that are gone have copies.
* The nodes that are gone must never run again where this one is not reached:
  as a majority of the cluster before they would go on with that. One that is
  back while this one leads and reaches it is made to follow it.
* Of several nodes that are left take the one whose log goes furthest: the one
  with the highest term, and of those the highest entry.
* Copies of logs that its own log does not name are set aside by the first start
  (`.unknown`). It cannot be undone: copy its data directory away first.
* Never do this on two nodes: each would lead a cluster of its own.
",
            of.node
        ));
    }
    text
}

/// What to do with that, for who has named nobody.
fn next(of: &SurvivorJson, data: &str) -> String {
    format!(
        "
Nothing was changed. Of several nodes that are left the one goes on whose log
goes furthest: the one with the highest term, and of those the highest entry.
When the majority of those that vote is gone for good, on node {} if it is that:
  kera cluster recover --data {data} --gone NODE,...
",
        of.node
    )
}

fn said(of: &SurvivorJson) -> String {
    let from = of.leads_from.as_ref().map_or(0, |place| place.term);
    format!(
        "Node {} leads alone, from term {from} on. Start it, then the others that are
left, as they are. `kera status` says what waits, `kera log list` what nobody
has any more.
",
        of.node
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(gone: bool) -> SurvivorJson {
        let member = |node: u32| MemberJson {
            node,
            votes: node < 3,
            gone: gone && node < 3,
            cluster_address: format!("10.0.0.{node}:7072"),
        };
        SurvivorJson {
            node: 3,
            cluster: uuid_text(&[7; 16]),
            term: 5,
            entry: 1234,
            nodes: (1..=4).map(member).collect(),
            leads_from: Some(PlaceJson { term: 1_048_581, entry: 1_049_810 }),
        }
    }

    #[test]
    fn what_would_be_done_fits_a_terminal_and_names_who_goes_on_and_who_is_gone() {
        let all = text(&found(true), "/var/lib/kera") + &next(&found(false), "/var/lib/kera") + &said(&found(true));
        assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
        assert!(all.contains("its log  goes to term 5, entry 1234"), "{all}");
        assert!(all.contains("Node 3 will lead the coordinators alone"), "{all}");
        assert_eq!(all.matches("gone for good ").count(), 2, "{all}");
        assert_eq!(all.matches("left, will follow").count(), 1, "{all}");
        assert!(!text(&found(false), "/var/lib/kera").contains("will lead"));
    }
}
