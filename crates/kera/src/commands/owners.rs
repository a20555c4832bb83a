//! Who owns which streamlets, as the node that is asked knows it.

use kera_client::{Client, StreamId};
use kera_protocol::{FindOwners, OwnerRun, StreamRef};
use serde::Serialize;

use crate::error::CliError;

/// How often all pages are asked for if they do not belong together because something changes just then.
const TRIES: u32 = 5;

/// A streamlet and its nodes, as `--json` shows it.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its stream.
    #[serde(skip)]
    pub stream: StreamId,
    /// Its number in it.
    pub streamlet: u32,
    /// The node that owns it; 0: nobody at the moment.
    pub owner: u32,
    /// Nodes that serve what was written before it had this owner, the first ones first.
    pub earlier: Vec<u32>,
}

/// The streamlets of a stream, or of all streams if none is named, in order; nothing of a node that is in no cluster.
///
/// # Errors
/// The node cannot be asked.
pub async fn of(client: &Client, stream: Option<StreamId>) -> Result<Option<Vec<Owned>>, CliError> {
    for _ in 0..TRIES {
        let (mut after, mut version, mut found) = (None, None, Vec::new());
        loop {
            let streams: Vec<StreamRef> = stream.iter().map(|id| (*id).into()).collect();
            let page = client.call(&FindOwners { streams, after, limit: 0 }).await?;
            if page.node == 0 {
                return Ok(None);
            }
            if *version.get_or_insert(page.version) != page.version {
                break;
            }
            found.extend(page.streams.iter().flat_map(|of| of.runs.iter().flat_map(|run| owned(of.stream, run))));
            after = page.next_page();
            if after.is_none() {
                found.sort_by_key(|of: &Owned| (of.stream, of.streamlet));
                return Ok(Some(found));
            }
        }
    }
    Err(CliError::failure("owners of streamlets change all the time").next("try again"))
}

fn owned(stream: StreamId, run: &OwnerRun) -> impl Iterator<Item = Owned> + '_ {
    let mut earlier: Vec<u32> = Vec::new();
    for node in run.older.iter().map(|older| older.node).filter(|node| *node != 0 && *node != run.node) {
        if !earlier.contains(&node) {
            earlier.push(node);
        }
    }
    run.streamlets().map(move |streamlet| Owned {
        stream,
        streamlet: streamlet.0,
        owner: run.node,
        earlier: earlier.clone(),
    })
}

/// Nodes as a table shows them.
pub fn listed(nodes: &[u32]) -> String {
    let all: Vec<String> = nodes.iter().filter(|node| **node != 0).map(u32::to_string).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use kera_client::StreamletId;
    use kera_protocol::OlderGroups;

    use super::*;

    #[test]
    fn each_streamlet_of_a_run_has_its_owner_and_each_earlier_one_once() {
        let older = [3, 0, 2, 3, 1].map(|node| OlderGroups { first_epoch: node + 1, node }).to_vec();
        let run = OwnerRun { first: StreamletId(1), count: 2, step: 3, node: 2, epoch: 7, older };
        let found: Vec<Owned> = owned(StreamId(9), &run).collect();
        let one = |streamlet| Owned { stream: StreamId(9), streamlet, owner: 2, earlier: vec![3, 1] };
        assert_eq!(found, [one(1), one(4)]);
        assert_eq!(
            (listed(&found[0].earlier), listed(&[]), listed(&[0])),
            ("3, 1".into(), "none".into(), "none".into())
        );
    }
}
