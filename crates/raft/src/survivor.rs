//! What a node that is stopped has of the coordinators' log, when the majority of the coordinators is gone for good: read, and made the log of a group of this node
//! alone. `docs/replication.md`, "A lost majority of the coordinators", has the argument.
//!
//! Called by the command line, while no node uses the data directory. Nothing runs here, and nobody else is asked.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use kera_coordinator::cluster::ClusterState;
use kera_env::{Disk, Folder};
use kera_format::cluster::{NodeNumber, RaftPlace};
use kera_format::raft::Record;

use crate::file::{DIR, LogFile, OpenError, folder};
use crate::known::{KnownMember, known_members};
use crate::machine::Current;
use crate::snapshot;
use crate::types::{StoredMembers, from_format, log_id, members, place_of};

/// So many terms, entries and numbers are skipped, or several times as many: more than those who are gone can have had that this node does not know of, elections in vain of some days included.
/// Votes that were written ahead are 64 terms more at each start of one with a slow disk; by terms alone nobody is told apart, entries are skipped as well.
pub const SKIPPED: u32 = 1 << 20;

/// What a stopped node has of the coordinators' log.
pub struct Survivor {
    folder: Arc<Folder>,
    uuid: [u8; 16],
    node: NodeNumber,
    log: LogFile,
    /// With every entry of its log, whether or not anybody said that it was decided.
    current: Current,
}

impl Survivor {
    /// Reads what there is; `None`: this node's log does not say that it is in a cluster. As at any start what of file and copy is not what was written is
    /// written anew. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub fn open(disk: Arc<dyn Disk>, uuid: [u8; 16]) -> Result<Option<Survivor>, OpenError> {
        let folder = folder(disk);
        let log = LogFile::open(folder.clone(), uuid)?;
        let mut current = Current::of_newest(&folder)?;
        log.check_cut(current.applied.map(|place| place.index))?;
        let next = current.applied.map_or(0, |place| place.index + 1);
        for (index, entry) in log.contents().entries.range(next..) {
            let expected = current.applied.map_or(0, |place| place.index + 1);
            if *index != expected {
                let reason = format!("entry {index} is there and entry {expected} is not, nor a snapshot with it");
                return Err(OpenError::Damaged { path: DIR.to_owned(), offset: 0, reason });
            }
            current.apply(from_format(entry.clone()));
        }
        let is_member = |node: &NodeNumber| current.members.membership().get_node(&u64::from(*node)).is_some();
        let me = current.state.nodes().iter().find(|(_, known)| known.uuid == uuid).map(|(node, _)| *node);
        Ok(me.filter(is_member).map(|node| Survivor { folder, uuid, node, log, current }))
    }

    /// This node's number.
    pub fn node(&self) -> NodeNumber {
        self.node
    }

    /// The state with all that its log has.
    pub fn state(&self) -> &ClusterState {
        &self.current.state
    }

    /// Its last entry. Of several logs the one that goes furthest has the highest term here, and of those the highest index.
    pub fn last(&self) -> RaftPlace {
        self.current.applied.as_ref().map(place_of).unwrap_or_default()
    }

    /// All nodes that its log names, by number.
    pub fn members(&self) -> Vec<KnownMember> {
        known_members(&self.current.members)
    }

    /// Whether the majority is gone if these nodes are.
    ///
    /// # Errors
    /// Why not, in words, with what to do.
    pub fn check_gone(&self, gone: &BTreeSet<NodeNumber>) -> Result<(), String> {
        let members = self.members();
        let known: Vec<NodeNumber> = members.iter().map(|member| member.node).collect();
        if gone.contains(&self.node) {
            return Err(format!("node {} is the one whose data directory this is, so it is not gone", self.node));
        }
        if let Some(unknown) = gone.iter().find(|node| !known.contains(node)) {
            return Err(format!("there is no node {unknown} among those that this node knows: {}", named(&known)));
        }
        let is_left = |node: &&u64| !gone.contains(&(**node as NodeNumber));
        let lists = self.current.members.membership().get_joint_config();
        let has_majority = |list: &BTreeSet<u64>| list.iter().filter(is_left).count() > list.len() / 2;
        if !lists.iter().all(has_majority) {
            return Ok(());
        }
        let left = members.iter().filter(|of| of.votes && !gone.contains(&of.node)).map(|of| of.node);
        let left: Vec<NodeNumber> = left.collect();
        Err(format!(
            "of the nodes that vote a majority is left: {}; start these, and name the others with `kera node remove` then",
            named(&left)
        ))
    }

    /// Makes of it the log of a group in which this node alone votes, and all others that it knew follow: where it went to. Cannot be undone. Blocks.
    ///
    /// It writes three times, and may end between any two of them. Behind the first it is done once more, behind the second the next start does the rest.
    ///
    /// 1. A vote for itself, in a term above all that the others have. By itself it only says that this node has tried to be elected.
    /// 2. A snapshot, in that term and behind all entries that the others have: what this log makes, with this node as the one that votes, with numbers skipped and
    ///    incarnations ended ([`skip_numbers`](ClusterState::skip_numbers) says why). Whoever starts with it takes it for what a leader of that term has sent, and cuts
    ///    the log in front of it. Not before the vote: the node would be elected in a term below that of its last entry.
    /// 3. That the log begins behind it. Not before the snapshot, without which what was in front of it would be gone.
    ///
    /// How much is skipped depends on its place among the nodes that it knows, so that no two of them go on with the same terms, entries and numbers, if a person has both go on: the one
    /// that is behind follows as soon as the other reaches it, as those who were taken for gone do.
    ///
    /// What the disk refuses behind the second is no error: it has happened, and the next start writes the copy of the snapshot, and that the log begins behind it. Who were told
    /// that it failed might have another node go on as well.
    ///
    /// # Errors
    /// The disk refuses, and nothing has happened; or there are no numbers left.
    pub fn recover(mut self) -> io::Result<RaftPlace> {
        let none_left = || io::Error::other("there are no terms or entries left to skip");
        let (before, vote) = (self.last(), self.log.contents().vote.map_or(0, |(term, ..)| term));
        let rank = self.members().iter().take_while(|member| member.node != self.node).count();
        let skipped =
            u32::try_from(rank + 1).ok().and_then(|times| SKIPPED.checked_mul(times)).ok_or_else(none_left)?;
        let term = before.term.max(vote).checked_add(skipped.into()).ok_or_else(none_left)?;
        let index = before.index.checked_add(skipped.into()).ok_or_else(none_left)?;
        let (node, place) = (u64::from(self.node), RaftPlace { term, leader: self.node.into(), index });
        let state = Arc::make_mut(&mut self.current.state);
        state.skip_numbers(skipped).map_err(io::Error::other)?;
        state.end_incarnations(self.node, skipped).map_err(io::Error::other)?;
        let known: Vec<(u64, String)> = self.members().into_iter().map(|of| (of.node.into(), of.address)).collect();
        let group = StoredMembers::new(Some(log_id(&place)), members(&[vec![node]], &known));
        let bytes = snapshot::encode(self.uuid, &self.current.state, log_id(&place), &group);

        self.log.write(vec![Record::Vote { term, node, committed: false }])?;
        let failures = self.folder.failures();
        let written = snapshot::write(&self.folder, index, &bytes);
        match written.and_then(|()| self.log.write(vec![Record::Purged { place }])) {
            Ok(_) => self.log.copy(),
            Err(error) if self.has_happened(&place, &bytes, failures) => {
                tracing::warn!(%error, "the disk has refused what the next start writes");
            }
            Err(error) => return Err(error),
        }
        Ok(place)
    }

    /// Whether the newest snapshot is the one that was to be written, on the disk for certain. So many syncs of the folder had failed before it was begun: if another one has
    /// since, that one that works says nothing of its name, which it gets once more.
    fn has_happened(&self, place: &RaftPlace, bytes: &[u8], failures: u64) -> bool {
        let newest = snapshot::read_newest(&**self.folder.disk());
        newest.is_ok_and(|found| found.is_some_and(|(loaded, _)| place_of(&loaded.applied) == *place))
            && (self.folder.sync_since(failures).is_ok()
                || self.folder.replace(&snapshot::path_of(place.index), bytes).is_ok())
    }
}

/// Nodes in words.
fn named(nodes: &[NodeNumber]) -> String {
    nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ")
}
