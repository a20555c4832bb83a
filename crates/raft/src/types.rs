//! `openraft`'s types for our cluster, and the way between them and the bytes of [`kera_format`] and [`kera_protocol`].

use std::collections::{BTreeMap, BTreeSet};

use kera_format::FormatError;
use kera_format::cluster::{ClusterEntry, RaftPlace};
use kera_format::raft::{LogEntry, Payload, Record, encode_blocks};
use kera_protocol::RaftBallot;
use openraft::{BasicNode, CommittedLeaderId, EntryPayload, LogId, Membership, StoredMembership, Vote};

use crate::snapshot::Carried;

/// What a command proposes: entries that become true one after the other. The first that the rules do not allow ends it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Batch(pub(crate) Vec<ClusterEntry>);

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Applied {
    /// Why it was refused, if it was.
    pub(crate) refused: Option<String>,
}

openraft::declare_raft_types!(
    /// The types that `openraft` works with.
    pub(crate) TypeConfig:
        D = Batch,
        R = Applied,
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = Carried,
);

/// A node of the log; its address is that for other nodes.
pub(crate) type Node = BasicNode;
pub(crate) type Entry = openraft::Entry<TypeConfig>;
pub(crate) type Place = LogId<u64>;
pub(crate) type Members = Membership<u64, Node>;
pub(crate) type StoredMembers = StoredMembership<u64, Node>;
pub(crate) type Ballot = Vote<u64>;

pub(crate) fn place_of(id: &Place) -> RaftPlace {
    RaftPlace { term: id.leader_id.term, leader: id.leader_id.node_id, index: id.index }
}

pub(crate) fn log_id(place: &RaftPlace) -> Place {
    LogId::new(CommittedLeaderId::new(place.term, place.leader), place.index)
}

pub(crate) fn ballot_of(vote: &Ballot) -> RaftBallot {
    RaftBallot { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
}

pub(crate) fn vote(ballot: &RaftBallot) -> Ballot {
    match ballot.committed {
        true => Vote::new_committed(ballot.term, ballot.node),
        false => Vote::new(ballot.term, ballot.node),
    }
}

pub(crate) fn membership_entry(at: Option<&Place>, members: &Members) -> ClusterEntry {
    let voters = members.get_joint_config().iter().map(|list| list.iter().copied().collect()).collect();
    let nodes = members.nodes().map(|(node, at)| (*node, at.addr.clone())).collect();
    ClusterEntry::Membership { place: at.map(place_of), voters, nodes }
}

pub(crate) fn members(voters: &[Vec<u64>], nodes: &[(u64, String)]) -> Members {
    let lists: Vec<BTreeSet<u64>> = voters.iter().map(|list| list.iter().copied().collect()).collect();
    let nodes: BTreeMap<u64, Node> = nodes.iter().map(|(node, addr)| (*node, BasicNode::new(addr))).collect();
    Membership::new(lists, nodes)
}

pub(crate) fn to_format(entry: &Entry) -> LogEntry {
    let payload = match &entry.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(batch) => Payload::Entries(batch.0.clone()),
        EntryPayload::Membership(members) => Payload::Entries(vec![membership_entry(None, members)]),
    };
    LogEntry { place: place_of(&entry.log_id), payload }
}

/// Whether nodes can read these entries. One that they cannot would be in the log for good, with everything behind it.
pub(crate) fn check_readable(entries: &[ClusterEntry]) -> Result<(), FormatError> {
    let place = RaftPlace { term: 0, leader: 0, index: 0 };
    let mut bytes = Vec::new();
    let entry = LogEntry { place, payload: Payload::Entries(entries.to_vec()) };
    entry.encode(&mut bytes);
    LogEntry::parse(&bytes)?;
    encode_blocks(1, &[Record::Appended(entry)]).map(drop)
}

pub(crate) fn from_format(entry: LogEntry) -> Entry {
    let payload = match entry.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Entries(entries) => match &entries[..] {
            [ClusterEntry::Membership { voters, nodes, .. }] => EntryPayload::Membership(members(voters, nodes)),
            _ => EntryPayload::Normal(Batch(entries)),
        },
    };
    Entry { log_id: log_id(&entry.place), payload }
}

#[cfg(test)]
mod tests {
    use kera_format::StreamId;
    use kera_format::cluster::{HANDED_BYTES_MAX, HANDED_LARGE_BYTES_MAX};

    use super::*;

    #[test]
    fn what_no_node_could_read_is_found_before_it_is_written() {
        let handed = |bytes| {
            let (stream, streamlet, owner_epoch) = (StreamId(1), 0, 1);
            ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state: vec![0; bytes] }
        };
        assert!(check_readable(&[handed(10), handed(HANDED_LARGE_BYTES_MAX)]).is_ok());
        let error = check_readable(&[handed(10), handed(HANDED_LARGE_BYTES_MAX + 1)]).unwrap_err();
        assert!(error.to_string().contains("cluster_entry.state is 524289, the limit is 524288"), "{error}");
        let error = check_readable(&vec![handed(HANDED_BYTES_MAX); 1024]).unwrap_err();
        assert!(error.to_string().contains("raft_record.record_bytes"), "{error}");
    }
}
