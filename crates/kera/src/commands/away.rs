//! Which streamlets of a stream nobody can read at the moment, because what is in them is at a node that is lost. Asked by
//! `kera consume` before it begins and when nothing comes, and by `kera application` before it needs all owners.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kera_client::{Client, ClientError, Status, StreamInfo};
use kera_format::limits::STREAMLETS_MAX;
use kera_protocol::{FindOwners, OwnerRun, Owners};

use crate::output::say;

/// More pages of owners than a stream can have.
const PAGES_MAX: usize = 1_000;
/// Streamlets that are named one by one.
const NAMED_MAX: usize = 8;

/// How long a streamlet whose node is lost is waited for before it is done without it: another node may be taking over.
pub const TAKE_OVER_MAX: Duration = Duration::from_secs(4);
/// How often it is looked whether one has.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Whom a streamlet needs for what is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    /// All that have records of it.
    All,
    Owners,
}

/// Streamlets by the node that they wait for; zero: nobody owns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Away(BTreeMap<u32, BTreeSet<u32>>);

impl Away {
    /// What is away of a stream; nothing if there is one node.
    ///
    /// # Errors
    /// Nobody can be asked.
    pub async fn of(client: &Client, stream: &StreamInfo) -> Result<Away, ClientError> {
        Away::look(client, stream, Needed::All).await
    }

    async fn look(client: &Client, stream: &StreamInfo, needed: Needed) -> Result<Away, ClientError> {
        let (mut away, mut after) = (Away::default(), None);
        let fenced: Vec<u32> = match client.admin().describe_cluster().await {
            Ok(cluster) => cluster.nodes.iter().filter(|node| node.fenced).map(|node| node.node).collect(),
            // A node of an earlier version, which is in no cluster.
            Err(error) if error.status() == Some(Status::UnknownOperation) => return Ok(away),
            Err(error) => return Err(error),
        };
        for _ in 0..PAGES_MAX {
            let page = client.call(&FindOwners { streams: vec![stream.id.into()], after, limit: 0 }).await?;
            if page.node == 0 {
                break;
            }
            away.take(&page, &fenced, needed);
            let next = page.next_page();
            if next <= after {
                break;
            }
            after = next;
        }
        Ok(away)
    }

    /// What has a lost owner and is taken over by nobody. While that is not known it says once what is waited for. Older records that are away
    /// do not count: what applications have read is at the owners.
    ///
    /// # Errors
    /// Nobody can be asked.
    pub async fn without_owner(client: &Client, stream: &StreamInfo) -> Result<Away, ClientError> {
        let (begun, mut has_said) = (Instant::now(), false);
        loop {
            let away = Away::look(client, stream, Needed::Owners).await?;
            if away.is_nothing() || begun.elapsed() >= TAKE_OVER_MAX {
                return Ok(away);
            }
            if !std::mem::replace(&mut has_said, true) {
                say(away.sentence());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn take(&mut self, page: &Owners, fenced: &[u32], needed: Needed) {
        let is_there = |node: u32| page.nodes.iter().any(|known| known.node == node) && !fenced.contains(&node);
        for run in page.streams.iter().flat_map(|of| &of.runs) {
            let older = run.older.iter().map(|older| older.node).filter(|_| needed == Needed::All);
            if let Some(lost) = std::iter::once(run.node).chain(older).find(|node| !is_there(*node)) {
                let lost = if lost == u32::MAX { 0 } else { lost };
                self.0.entry(lost).or_default().extend(streamlets(run));
            }
        }
    }

    /// Only what a reader of these streamlets misses, which are in order; none named: of all.
    #[must_use]
    pub fn among(mut self, wanted: &[u32]) -> Away {
        if !wanted.is_empty() {
            for streamlets in self.0.values_mut() {
                streamlets.retain(|streamlet| wanted.binary_search(streamlet).is_ok());
            }
        }
        self.0.retain(|_, streamlets| !streamlets.is_empty());
        self
    }

    /// These too, each with the node that it waits for or has waited for.
    pub fn add(&mut self, others: &Away) {
        for (node, streamlets) in &others.0 {
            self.0.entry(*node).or_default().extend(streamlets);
        }
    }

    /// These too, which wait for nobody in particular.
    pub fn add_streamlets(&mut self, streamlets: impl IntoIterator<Item = u32>) {
        self.0.entry(0).or_default().extend(streamlets);
        self.0.retain(|_, streamlets| !streamlets.is_empty());
    }

    /// Of these what is not among the others, whichever node that waits for.
    #[must_use]
    pub fn without(mut self, others: &Away) -> Away {
        self.0.values_mut().for_each(|streamlets| streamlets.retain(|streamlet| !others.has(*streamlet)));
        self.0.retain(|_, streamlets| !streamlets.is_empty());
        self
    }

    /// The same in parts, each of which waits for one node. A streamlet that waits for several, or has waited for them one after the other, is
    /// in one part only.
    pub fn by_node(self) -> impl Iterator<Item = Away> {
        let mut parted = BTreeSet::new();
        self.0.into_iter().filter_map(move |(node, mut streamlets)| {
            streamlets.retain(|streamlet| parted.insert(*streamlet));
            (!streamlets.is_empty()).then(|| Away(BTreeMap::from([(node, streamlets)])))
        })
    }

    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a streamlet is.
    pub fn has(&self, streamlet: u32) -> bool {
        self.0.values().any(|streamlets| streamlets.contains(&streamlet))
    }

    /// The streamlets.
    pub fn streamlets(&self) -> Vec<u32> {
        let all: BTreeSet<u32> = self.0.values().flatten().copied().collect();
        all.into_iter().collect()
    }

    /// Without whom they wait for: `streamlets 0, 3 wait`.
    pub fn that_wait(&self) -> String {
        wait(&self.streamlets())
    }

    /// As a sentence without its end: `streamlets 0, 3 wait for node 1, which is lost`.
    pub fn sentence(&self) -> String {
        let one = |(node, streamlets): (&u32, &BTreeSet<u32>)| {
            let whom = match node {
                0 => "a node that takes over".to_owned(),
                node => format!("node {node}, which is lost"),
            };
            format!("{} for {whom}", wait(streamlets))
        };
        self.0.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

/// `streamlets 0, 3 wait`
fn wait<'a>(streamlets: impl IntoIterator<Item = &'a u32, IntoIter: ExactSizeIterator>) -> String {
    let streamlets = streamlets.into_iter();
    let count = streamlets.len();
    let mut named: Vec<String> = streamlets.take(NAMED_MAX).map(u32::to_string).collect();
    if count > NAMED_MAX {
        named.push(format!("and {} more", count - NAMED_MAX));
    }
    let (noun, verb) = if count == 1 { ("streamlet", "waits") } else { ("streamlets", "wait") };
    format!("{noun} {} {verb}", named.join(", "))
}

fn streamlets(run: &OwnerRun) -> Vec<u32> {
    run.streamlets().map(|streamlet| streamlet.0).take_while(|streamlet| *streamlet < STREAMLETS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_client::{StreamId, StreamletId};
    use kera_protocol::{NodeInfo, OlderGroups, StreamOwners};

    #[test]
    fn streamlets_whose_owner_or_whose_older_records_are_at_a_lost_node_are_away() {
        let node = |node| NodeInfo {
            node,
            node_epoch: 1,
            address: String::new(),
            kafka_address: String::new(),
            http_address: String::new(),
            rack: String::new(),
            roles: vec![],
        };
        let run = |first, count, node, older: Option<u32>| OwnerRun {
            first: StreamletId(first),
            count,
            step: 2,
            node,
            epoch: 4,
            older: older.into_iter().map(|node| OlderGroups { first_epoch: 1, node }).collect(),
        };
        let runs = vec![run(0, 2, 1, None), run(1, 1, 2, None), run(3, 1, 2, Some(1)), run(4, 1, 0, None)];
        let streams = vec![StreamOwners { stream: StreamId(7), streamlets: 5, runs }];
        let page =
            Owners { cluster: [1; 16], version: 3, node: 2, nodes: vec![node(1), node(2)], streams, more: false };
        let mut away = Away::default();
        away.take(&page, &[1], Needed::Owners);
        assert_eq!(away.streamlets(), [0, 2, 4], "streamlet 3 has an owner");
        away.take(&page, &[1], Needed::All);
        let said = "streamlet 4 waits for a node that takes over; streamlets 0, 2, 3 wait for node 1, which is lost";
        assert_eq!(away.sentence(), said);
        assert_eq!(away.streamlets(), [0, 2, 3, 4]);
        assert!(away.has(3) && !away.has(1));
        assert_eq!(away.clone().among(&[1, 3]).sentence(), "streamlet 3 waits for node 1, which is lost");
        // Somebody has taken over from the lost node, and is lost too.
        let now = Away(BTreeMap::from([(2, BTreeSet::from([0, 3]))]));
        assert_eq!(away.clone().without(&now).streamlets(), [2, 4]);
        assert!(now.clone().without(&away).is_nothing());
        let mut more = now;
        more.add_streamlets(0..0);
        assert_eq!(more.streamlets(), [0, 3]);
        more.add_streamlets(5..7);
        assert_eq!(more.without(&away).streamlets(), [5, 6]);
        assert!(away.among(&[1]).is_nothing());
    }

    /// Each part gets a reader of its own.
    #[test]
    fn a_streamlet_that_has_waited_for_several_nodes_is_in_one_part() {
        let of = |node: u32, streamlets: &[u32]| Away(BTreeMap::from([(node, streamlets.iter().copied().collect())]));
        let mut away = of(1, &[0, 3]);
        // Its next owner is lost too.
        away.add(&of(2, &[0, 3]));
        // What the stream has got waits for nobody in particular at first.
        away.add_streamlets([3, 5]);
        away.add(&of(2, &[4]));
        let parts: Vec<Away> = away.by_node().collect();
        assert_eq!(parts, [of(0, &[3, 5]), of(1, &[0]), of(2, &[4])]);
    }
}
