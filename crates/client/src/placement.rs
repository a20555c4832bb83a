//! Who owns which streamlet, as the client has been told: asked for when it is needed first, and again when a node says that it is not
//! the owner or cannot be reached. Kept for each stream, shared by all producers and consumers of a [`Client`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kera_format::limits::STREAMLETS_MAX;
use kera_format::{GroupId, StreamId, StreamletId};
use kera_protocol::{FindOwners, Op, Owner, Owners, Status, StreamletsTold};
use kera_rpc::{Connection, RpcError};

/// The node that a client was told to connect to, whichever that is: what it asks when there is only one.
pub(crate) const HOME: u32 = 0;
/// Nobody, at the moment.
pub(crate) const NOBODY: u32 = u32::MAX;
/// Its owner knows all applications of a stream.
pub(crate) const FIRST: StreamletId = StreamletId(0);
/// How often pages are asked for again because the cluster changed between them.
const PAGES_TRIES: usize = 8;
/// Streams whose owners are kept: those of others are asked for again.
const STREAMS_MAX: usize = 10_000;

/// The owners of a stream's streamlets, as of one state of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    cluster: [u8; 16],
    version: u64,
    /// Where nodes are, and their incarnations.
    nodes: HashMap<u32, (String, u32)>,
    /// By streamlet; none if there is one node that owns everything.
    owners: Vec<Owner>,
}

impl Placement {
    /// Of nodes 1 to 3, for tests.
    #[cfg(test)]
    pub(crate) fn of_three(version: u64, owners: Vec<Owner>) -> Placement {
        let nodes = (1..=3).map(|node| (node, (format!("host:{node}"), 1))).collect();
        Placement { cluster: [1; 16], version, nodes, owners }
    }

    /// Which state of the cluster it is.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether there is one node that owns everything.
    pub(crate) fn is_alone(&self) -> bool {
        self.owners.is_empty()
    }

    fn known(&self, node: u32) -> u32 {
        if self.nodes.contains_key(&node) { node } else { NOBODY }
    }

    /// The node that takes writes of a streamlet, and its owner epoch.
    pub(crate) fn owner(&self, streamlet: u32) -> (u32, u32) {
        match self.owners.get(streamlet as usize) {
            Some(owner) => (self.known(owner.node), owner.epoch),
            None if self.is_alone() => (HOME, 0),
            None => (NOBODY, 0),
        }
    }

    /// The node that takes writes of the [`FIRST`] streamlet.
    pub(crate) fn first_owner(&self) -> u32 {
        self.owner(FIRST.0).0
    }

    /// All nodes that own something.
    pub(crate) fn owners(&self) -> Vec<u32> {
        if self.is_alone() {
            return vec![HOME];
        }
        let owners: BTreeSet<u32> = self.owners.iter().map(|owner| self.known(owner.node)).collect();
        owners.into_iter().filter(|node| *node != NOBODY).collect()
    }

    /// All nodes that own something, those that are lost too.
    pub(crate) fn owners_and_lost(&self) -> BTreeSet<u32> {
        self.owners.iter().map(|owner| owner.node).filter(|node| ![HOME, NOBODY].contains(node)).collect()
    }

    /// The owners of some streamlets, of all if none are named, and what each of them owns of these.
    pub(crate) fn by_owner(&self, streamlets: &[StreamletId]) -> BTreeMap<u32, Vec<StreamletId>> {
        let all: Vec<StreamletId> = (0..self.owners.len() as u32).map(StreamletId).collect();
        let mut by_owner: BTreeMap<u32, Vec<StreamletId>> = BTreeMap::new();
        for streamlet in if streamlets.is_empty() { &all } else { streamlets } {
            by_owner.entry(self.owner(streamlet.0).0).or_default().push(*streamlet);
        }
        by_owner
    }

    /// Whether each streamlet has an owner.
    pub(crate) fn is_whole(&self) -> bool {
        self.owners.iter().all(|owner| self.nodes.contains_key(&owner.node))
    }

    /// The node that serves a group of a streamlet; of [`GroupId::NONE`], the oldest there is.
    pub(crate) fn holder(&self, streamlet: StreamletId, group: GroupId) -> u32 {
        match self.owners.get(streamlet.0 as usize) {
            Some(owner) => self.known(owner.holder(group)),
            None if self.is_alone() => HOME,
            None => NOBODY,
        }
    }

    /// Whether groups of a streamlet are at nobody for now: their node was lost, and the owner has yet to gather them.
    pub(crate) fn lacks_groups(&self, streamlet: StreamletId) -> bool {
        let is_there = |node: u32| self.nodes.contains_key(&node);
        let owner = self.owners.get(streamlet.0 as usize);
        owner.is_some_and(|owner| owner.older.iter().any(|older| !is_there(older.node)))
    }

    /// All nodes that serve groups of a streamlet, the owner last.
    pub(crate) fn holders(&self, streamlet: StreamletId) -> Vec<u32> {
        match self.owners.get(streamlet.0 as usize) {
            Some(owner) => owner.holders().into_iter().filter(|node| self.nodes.contains_key(node)).collect(),
            None => vec![HOME],
        }
    }

    /// All nodes that serve groups of the stream, and those that would if they were not lost.
    pub(crate) fn holders_of_all(&self) -> (BTreeSet<u32>, BTreeSet<u32>) {
        if self.is_alone() {
            return (BTreeSet::from([HOME]), BTreeSet::new());
        }
        let holders = self.owners.iter().flat_map(Owner::holders).filter(|node| *node != HOME);
        holders.partition(|node| self.nodes.contains_key(node))
    }

    /// Where a node is; `None`: it is not known, or is [`HOME`].
    pub(crate) fn address(&self, node: u32) -> Option<&str> {
        self.nodes.get(&node).map(|(address, _)| address.as_str()).filter(|address| !address.is_empty())
    }

    /// A node's incarnation; zero: it is not known.
    pub(crate) fn node_epoch(&self, node: u32) -> u32 {
        self.nodes.get(&node).map_or(0, |(_, epoch)| *epoch)
    }

    /// All addresses, for whoever looks for a node that answers.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &String> {
        self.nodes.values().map(|(address, _)| address).filter(|address| !address.is_empty())
    }

    /// Whether who says this has heard of all that a node owns of the first streamlets of the stream by what is `known`: owner epochs only rise. States of the
    /// cluster are numbered by each node as it hears of them, so the numbers of two nodes do not say that.
    pub(crate) fn has_heard_of(&self, known: &Placement, node: u32, streamlets: u32) -> bool {
        (0..streamlets).all(|streamlet| {
            let (owner, epoch) = known.owner(streamlet);
            owner != node || self.owner(streamlet).1 >= epoch
        })
    }

    /// Whether some of the first streamlets of the stream have a later owner than is `known`.
    pub(crate) fn has_later_owners(&self, known: &Placement, streamlets: u32) -> bool {
        (0..streamlets).any(|streamlet| self.owner(streamlet).1 > known.owner(streamlet).1)
    }

    /// Whether it is later than what is known.
    pub(crate) fn is_news(&self, known: Option<&Arc<Placement>>) -> bool {
        known.is_none_or(|known| self.version > known.version)
    }

    /// Whether a node that says this has told all groups of a streamlet that it has by what was `known` when it was asked for them before: see [`Owner::bears_out`]. The numbers of
    /// states do not tell, for each node numbers them as it hears of them.
    pub(crate) fn bears_out(&self, known: &Placement, streamlet: StreamletId, node: u32) -> bool {
        let at = streamlet.0 as usize;
        let (Some(says), Some(owner)) = (self.owners.get(at), known.owners.get(at)) else { return false };
        let runs = owner.older_runs().chain([(owner.epoch..u32::MAX, owner.node)]);
        let its = runs.filter(|(_, holder)| *holder == node).map(|(epochs, _)| epochs);
        self.cluster == known.cluster && says.bears_out(owner, node, its)
    }

    /// What a node says that is of no cluster, or of another one, although the client has been in a cluster before: nothing that can be
    /// used. It may only not have joined yet.
    fn check(&self, known: Option<&Arc<Placement>>, address: &str) -> Result<(), RpcError> {
        known.map_or(Ok(()), |known| self.check_is_of(known, address))
    }

    fn check_is_of(&self, known: &Placement, address: &str) -> Result<(), RpcError> {
        if known.is_alone() || self.cluster == known.cluster {
            return Ok(());
        }
        let message = format!("{address} is not of the cluster that the client talks to, or has not joined it yet");
        Err(RpcError::Status { status: Status::NotReady, message, retry_after: None })
    }

    /// Whether who answers on a connection is of the cluster of which this is. A node that has lost its data and was started without its cluster has its address as before, and counts its streams as
    /// the cluster does: it would say that there is no such stream, or take and give what is of another one.
    pub(crate) async fn check_who_answers(&self, connection: &Connection, timeout: Duration) -> Result<(), RpcError> {
        if self.is_alone() {
            return Ok(());
        }
        let address = connection.address();
        let told = match connection.hello().common_version(Op::FindOwners) {
            Some(_) => Placement::ask_cluster(connection, timeout).await,
            // It is of a version that knows no clusters.
            None => Ok(Placement::default()),
        };
        match told {
            Ok(told) => told.check_is_of(self, address),
            // It does not tell just then.
            Err(RpcError::Status { .. }) => Ok(()),
            // Nothing else was asked.
            Err(error) => Err(RpcError::Connect { address: address.to_owned(), reason: error.to_string() }),
        }
    }

    /// Asks a node, and waits so long for each page.
    pub(crate) async fn ask(
        connection: &Connection,
        stream: StreamId,
        known: Option<&Arc<Placement>>,
        timeout: Duration,
    ) -> Result<Placement, RpcError> {
        let found = Placement::ask_until_whole(connection, stream, timeout).await;
        let is_unknown = found.as_ref().is_err_and(|error| error.status() == Some(Status::UnknownStream));
        if is_unknown && known.is_some_and(|known| !known.is_alone()) {
            // One that is of no cluster, or of another one, says so of all streams, and while the cluster is down may be the only one that answers.
            Placement::ask_cluster(connection, timeout).await?.check(known, connection.address())?;
        }
        let found = found?;
        found.check(known, connection.address())?;
        Ok(found)
    }

    /// Of which cluster a node is, without what it knows of any stream.
    async fn ask_cluster(connection: &Connection, timeout: Duration) -> Result<Placement, RpcError> {
        let asked = FindOwners { streams: Vec::new(), after: None, limit: 1 };
        let page = connection.call_within(&asked, timeout).await?;
        Ok(Placement::of_nodes(&page, connection.address()))
    }

    async fn ask_until_whole(
        connection: &Connection,
        stream: StreamId,
        timeout: Duration,
    ) -> Result<Placement, RpcError> {
        if !connection.hello().ops.iter().any(|spoken| spoken.op == Op::FindOwners as u16) {
            return Ok(Placement::default());
        }
        for _ in 0..PAGES_TRIES {
            if let Some(placement) = Placement::ask_pages(connection, stream, timeout).await? {
                return Ok(placement);
            }
        }
        let message = "the cluster changed between all pages of its owners".to_owned();
        Err(RpcError::Status { status: Status::NotReady, message, retry_after: None })
    }

    /// All pages; `None` if they do not belong together. Of one number they may be as well, while it is being told what has changed: a run that has grown may be on none then.
    async fn ask_pages(
        connection: &Connection,
        stream: StreamId,
        timeout: Duration,
    ) -> Result<Option<Placement>, RpcError> {
        let mut placement: Option<Placement> = None;
        let (mut after, mut told) = (None, StreamletsTold::default());
        loop {
            let asked = FindOwners { streams: vec![stream.into()], after, limit: 0 };
            let page = connection.call_within(&asked, timeout).await?;
            if page.node == HOME {
                return Ok(Some(Placement { version: page.version, ..Placement::default() }));
            }
            let placement = placement.get_or_insert_with(|| Placement::of_nodes(&page, connection.address()));
            let next = page.next_page();
            // A page that does not go on would be asked for again and again.
            if placement.version != page.version || (page.more && next <= after) {
                return Ok(None);
            }
            placement.take(&page, stream);
            page.streams.iter().filter(|found| found.stream == stream).for_each(|found| told.take(found));
            if !page.more {
                let is_whole = after.is_none() || told.untold().next().is_none();
                return Ok(is_whole.then(|| std::mem::take(placement)));
            }
            after = next;
        }
    }

    /// The nodes of a page that came from `asked`, which may not know by which address it is reached.
    fn of_nodes(page: &Owners, asked: &str) -> Placement {
        let nodes = page.nodes.iter().map(|node| {
            let is_asked = node.node == page.node && node.address.is_empty();
            let address = if is_asked { asked.to_owned() } else { node.address.clone() };
            (node.node, (address, node.node_epoch))
        });
        Placement { cluster: page.cluster, version: page.version, nodes: nodes.collect(), owners: Vec::new() }
    }

    fn take(&mut self, page: &Owners, stream: StreamId) {
        for found in page.streams.iter().filter(|found| found.stream == stream) {
            let streamlets = found.streamlets.min(STREAMLETS_MAX) as usize;
            if self.owners.len() < streamlets {
                self.owners.resize(streamlets, Owner::default());
            }
            for run in &found.runs {
                let owner = run.owner();
                for streamlet in run.streamlets().take_while(|streamlet| (streamlet.0 as usize) < streamlets) {
                    self.owners[streamlet.0 as usize] = owner.clone();
                }
            }
        }
    }
}

/// What is known of streams.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    streams: HashMap<StreamId, Arc<Placement>>,
    /// The latest of all: where nodes are.
    latest: Option<Arc<Placement>>,
}

impl Placements {
    pub(crate) fn get(&self, stream: StreamId) -> Option<Arc<Placement>> {
        self.streams.get(&stream).cloned()
    }

    /// Where nodes of the cluster are, as was told last.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &String> {
        self.latest.iter().flat_map(|latest| latest.addresses())
    }

    /// Keeps what was found, unless something later is known. What is known then.
    pub(crate) fn put(&mut self, stream: StreamId, found: Placement) -> Arc<Placement> {
        if let Some(known) = self.streams.get(&stream).filter(|known| known.version > found.version) {
            return Arc::clone(known);
        }
        let found = Arc::new(found);
        if self.latest.as_ref().is_none_or(|latest| latest.version <= found.version) {
            self.latest = Some(Arc::clone(&found));
        }
        if self.streams.len() >= STREAMS_MAX {
            // What producers and consumers use they have themselves.
            self.streams.clear();
        }
        self.streams.insert(stream, Arc::clone(&found));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::{NodeInfo, OlderGroups, OwnerRun, StreamOwners};

    const STREAM: StreamId = StreamId(7);

    fn page(runs: Vec<OwnerRun>, streamlets: u32) -> Owners {
        let node = |node: u32| NodeInfo {
            node,
            node_epoch: 1,
            address: format!("host:{node}"),
            kafka_address: String::new(),
            http_address: String::new(),
            rack: String::new(),
            roles: vec![],
        };
        let streams = vec![StreamOwners { stream: STREAM, streamlets, runs }];
        Owners { cluster: [1; 16], version: 3, node: 1, nodes: vec![node(1), node(2)], streams, more: false }
    }

    fn placement(runs: Vec<OwnerRun>, streamlets: u32) -> Placement {
        let page = page(runs, streamlets);
        let mut placement = Placement::of_nodes(&page, "asked:1");
        placement.take(&page, STREAM);
        placement
    }

    #[test]
    fn groups_that_are_at_nobody_are_known_to_be_missing() {
        let older = |node: u32| OlderGroups { first_epoch: 1, node };
        let owner = |node: u32| Owner { node: 2, epoch: 9, older: vec![older(node)] };
        let placement =
            Placement::of_three(1, vec![owner(1), owner(NOBODY), owner(7), Owner { node: 3, epoch: 1, older: vec![] }]);
        let lacking = [0, 1, 2, 3].map(|at| placement.lacks_groups(StreamletId(at)));
        assert_eq!(lacking, [false, true, true, false], "nobody has them, or a node that is not there any more");
    }

    fn run(first: u32, count: u32, step: u32, node: u32) -> OwnerRun {
        OwnerRun { first: StreamletId(first), count, step, node, epoch: 4, older: vec![] }
    }

    #[test]
    fn owners_are_found_by_streamlet_and_group() {
        let mut second = run(1, 2, 2, 2);
        second.older = vec![OlderGroups { first_epoch: 2, node: 1 }];
        let placement = placement(vec![run(0, 2, 2, 1), second], 4);
        assert_eq!([0, 1, 2, 3, 4].map(|at| placement.owner(at).0), [1, 2, 1, 2, NOBODY]);
        assert_eq!(placement.holder(StreamletId(1), GroupId::NONE), 1);
        assert_eq!(placement.holder(StreamletId(1), GroupId::new(4, 0)), 2);
        assert_eq!(placement.holders(StreamletId(3)), [1, 2]);
        assert_eq!((placement.owners(), placement.is_whole()), (vec![1, 2], true));
        let of = |owned: [u32; 2]| owned.map(StreamletId).to_vec();
        assert_eq!(placement.by_owner(&[]).into_iter().collect::<Vec<_>>(), [(1, of([0, 2])), (2, of([1, 3]))]);
        assert_eq!(placement.by_owner(&[StreamletId(3)]).into_keys().collect::<Vec<_>>(), [2]);
        assert_eq!((placement.address(2), placement.address(9)), (Some("host:2"), None));
    }

    #[test]
    fn a_node_has_heard_of_what_it_owns_by_the_epochs_of_its_streamlets() {
        let of = |version, owners: &[(u32, u32)]| {
            let owner = |&(node, epoch): &(u32, u32)| Owner { node, epoch, older: vec![] };
            Placement::of_three(version, owners.iter().map(owner).collect())
        };
        let known = of(9, &[(1, 4), (2, 5)]);
        let heard = |told: &Placement| [1, 2].map(|node| told.has_heard_of(&known, node, 2));
        // A number of its own, and what others own does not matter.
        assert_eq!((heard(&of(3, &[(1, 4), (1, 2)])), known.has_later_owners(&known, 2)), ([true, false], false));
        assert_eq!(heard(&of(20, &[(1, 4)])), [true, false], "it has not heard yet that the stream has grown");
        assert!(of(20, &[(1, 4)]).has_heard_of(&known, 2, 1), "nobody asks for that");
        let later = of(3, &[(2, 6), (2, 5), (3, 9)]);
        assert_eq!((heard(&later), later.has_later_owners(&known, 2)), ([true, true], true));
        let grown = of(3, &[(1, 4), (2, 5), (3, 9)]);
        assert!(!grown.has_later_owners(&known, 2));
    }

    #[test]
    fn a_list_of_groups_counts_if_its_node_knows_the_same_or_has_let_go_of_nothing() {
        let of = |version: u64, (node, epoch): (u32, u32), older: &[(u32, u32)]| {
            let older = older.iter().map(|(first_epoch, node)| OlderGroups { first_epoch: *first_epoch, node: *node });
            Placement::of_three(version, vec![Owner { node, epoch, older: older.collect() }])
        };
        let known = of(9, (1, 9), &[(3, 2), (5, 3)]);
        let counts = |says: &Placement| [1, 2, 3].map(|node| says.bears_out(&known, StreamletId(0), node));
        assert_eq!(counts(&of(2, (1, 9), &[(3, 2), (5, 3)])), [true; 3]);
        // Whatever number the state has.
        for version in [2, 20] {
            assert_eq!(counts(&of(version, (1, 9), &[(3, 3)])), [false; 3], "something has moved since");
            assert_eq!(counts(&of(version, (3, 5), &[(3, 2)])), [false, true, true], "it has not heard of the owner");
            // Node 2 has let go of its groups.
            assert_eq!(counts(&of(version, (3, 5), &[(3, 3)])), [false, false, true]);
        }
        assert_eq!(counts(&of(20, (0, 0), &[])), [false; 3], "it has heard of nothing");
        assert_eq!(counts(&Placement::default()), [false; 3]);
        let another = Placement { cluster: [2; 16], ..of(9, (1, 9), &[(3, 2), (5, 3)]) };
        assert_eq!(counts(&another), [false; 3]);
    }

    #[test]
    fn what_makes_no_sense_is_nobodys() {
        let wild = placement(vec![run(0, u32::MAX, 1, 9), run(u32::MAX, 3, 0, 1)], 3);
        assert_eq!([0, 2, 3].map(|at| wild.owner(at).0), [NOBODY; 3]);
        assert!(wild.holders(StreamletId(0)).is_empty() && !wild.is_alone());
        let huge = placement(vec![run(0, 1, 1, 1)], u32::MAX);
        assert_eq!(huge.owners.len(), STREAMLETS_MAX as usize);
        assert_eq!(huge.owner(0).0, 1);
    }

    #[test]
    fn later_states_are_kept() {
        let mut known = Placements::default();
        let with = |version, node| Placement { version, ..placement(vec![run(0, 1, 1, node)], 1) };
        assert_eq!(known.put(STREAM, with(5, 1)).owner(0).0, 1);
        assert_eq!(known.put(STREAM, with(4, 2)).owner(0).0, 1, "a node that is behind");
        assert_eq!(known.put(STREAM, with(5, 2)).owner(0).0, 2);
        let addresses: Vec<&String> = known.addresses().collect();
        assert_eq!(addresses.len(), 2);
    }

    #[test]
    fn the_node_that_answers_may_not_know_where_it_is() {
        let mut page = page(vec![run(0, 1, 1, 1)], 1);
        page.nodes.iter_mut().for_each(|node| node.address.clear());
        let placement = Placement::of_nodes(&page, "asked:1");
        assert_eq!((placement.address(1), placement.address(2)), (Some("asked:1"), None));
    }

    #[test]
    fn nodes_of_other_clusters_and_of_none_are_not_believed() {
        let known = Arc::new(placement(vec![run(0, 1, 1, 1)], 1));
        let other = Placement { cluster: [2; 16], version: 9, ..placement(vec![run(0, 1, 1, 2)], 1) };
        assert!(placement(vec![run(0, 1, 1, 2)], 1).check(Some(&known), "a").is_ok());
        for wrong in [other, Placement::default()] {
            let error = wrong.check(Some(&known), "a").expect_err("it is of another cluster");
            assert!(error.retryable() && error.to_string().contains("has not joined"), "{error}");
            assert!(wrong.check(None, "a").is_ok() && wrong.check(Some(&Arc::default()), "a").is_ok());
        }
    }
}
