//! Messages of the log from and to other nodes, over whatever carries them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kera_env::is_out_of_means;
use kera_protocol::{Body, Message, Op, RaftAppend, RaftAppended, RaftOutcome, RaftSnapshot, RaftVote, RaftVoted};
use openraft::error::{RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{ErrorSubject, ErrorVerb, Snapshot, StorageError};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::snapshot::Carried;
use crate::types::{Ballot, Node, Place, TypeConfig, ballot_of, from_format, log_id, place_of, to_format, vote};

/// Bytes of a part of a snapshot.
const PART_BYTES: usize = 4 << 20;
/// Time between two tries to reach a node that cannot be reached.
const RETRY: Duration = Duration::from_millis(200);
/// Entries that are under way are waited for for so long, and for as long again for each MiB of them, before they are sent once more.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// What the error of a [command](Op::ForwardCommand) begins with that has certainly not left this node. Without it the command may have come to the other one.
pub const NOT_SENT: &str = "not sent: ";

/// An answer on its way.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// Carries requests to other nodes. May lose, delay and double them; must not change them.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request's body to a node and waits for the answer's. The error says why there is none: the request may have
    /// been done all the same.
    fn call(&self, to: u64, address: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>>;

    /// The same for an operation that has had several versions: `bodies` are the request in each of them, version 1 first. It is sent in the
    /// highest that both sides speak; the answer comes with the version it is in.
    fn call_versions(&self, to: u64, address: &str, op: Op, mut bodies: Vec<Vec<u8>>) -> Pending<(u8, Vec<u8>)> {
        // Who does not ask what the other side speaks reaches nodes of this very build only.
        let version = bodies.len() as u8;
        let answer = self.call(to, address, op, bodies.pop().unwrap_or_default());
        Box::pin(async move { Ok((version, answer.await?)) })
    }
}

/// Sends a message, in the highest version that both sides speak, and waits for its answer.
pub async fn ask<M: Message>(
    transport: &dyn Transport,
    to: u64,
    address: &str,
    message: &M,
) -> Result<M::Response, String> {
    let (version, answer) = transport.call_versions(to, address, M::OP, in_versions(message)).await?;
    M::Response::decode(version, &answer).map_err(|error| error.to_string())
}

/// A message in all versions that are spoken here, from the first on.
pub fn in_versions<M: Message>(message: &M) -> Vec<Vec<u8>> {
    (1..=M::OP.version_max()).map(|version| crate::group::encoded(message, version)).collect()
}

/// Makes links to other nodes.
pub(crate) struct Links(pub(crate) Arc<dyn Transport>);

impl RaftNetworkFactory<TypeConfig> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Node) -> Link {
        Link { transport: self.0.clone(), to: target, address: node.addr.clone(), sent: Mutex::new(None) }
    }
}

/// A way to one node.
pub(crate) struct Link {
    transport: Arc<dyn Transport>,
    to: u64,
    address: String,
    /// Entries that are under way.
    sent: Mutex<Option<Sent>>,
}

/// Entries that were sent and have not been answered.
struct Sent {
    /// What is in front of them, and the last of them.
    before: Option<Place>,
    last: Place,
    /// From when on they are sent once more.
    until: Instant,
    answer: Pending<RaftAppended>,
}

fn unreachable(reason: String) -> Unreachable {
    Unreachable::new(&io::Error::other(reason))
}

impl Link {
    async fn ask<M: Message>(&self, message: &M) -> Result<M::Response, Unreachable> {
        ask(&*self.transport, self.to, &self.address, message).await.map_err(unreachable)
    }

    /// Sends entries, or goes on waiting for the answer to those that were sent before.
    ///
    /// `openraft` gives up waiting when the next sign of life is due, and then wants the same sent again: what takes longer on the way would never be answered in
    /// time, and each time there would be one copy more of it under way. So what was sent stays, and its answer is taken for that to whatever is
    /// to follow the same place: a link belongs to one term of one leader, which changes nothing that is in its log, so the ones are the beginning of the others.
    async fn send(&mut self, request: &AppendEntriesRequest<TypeConfig>, last: Place) -> Result<RaftAppended, String> {
        let (before, slot) = (request.prev_log_id, self.sent.get_mut());
        slot.take_if(|sent| sent.before != before || sent.last > last || sent.until < Instant::now());
        let sent = slot.get_or_insert_with(|| {
            let message = append_message(request);
            let bytes: usize = message.entries.iter().map(Vec::len).sum();
            let until = Instant::now() + UNDER_WAY + UNDER_WAY * (bytes >> 20) as u32;
            let (transport, to, address) = (self.transport.clone(), self.to, self.address.clone());
            let answer = Box::pin(async move { ask(&*transport, to, &address, &message).await });
            Sent { before, last, until, answer }
        });
        let (answer, through) = ((&mut sent.answer).await, sent.last);
        *slot = None;
        let answer = answer?;
        // There are more of them by now.
        Ok(match answer.outcome {
            RaftOutcome::All if through < last => {
                RaftAppended { outcome: RaftOutcome::Part, through: Some(place_of(&through)), ..answer }
            }
            _ => answer,
        })
    }

    /// Reads a snapshot, on another thread, and sends it in parts. What is sent may go further than what was asked for, if the next one has been made since: `openraft` goes on
    /// behind the one that it knows of, with entries that the other node has by then.
    async fn send_snapshot(&self, ballot: Ballot, snapshot: Carried) -> Result<SnapshotResponse<u64>, NotSent> {
        let read = tokio::task::spawn_blocking(move || snapshot.into_bytes());
        let read = read.await.map_err(io::Error::other).flatten();
        let failed = |error| StorageError::<u64>::from_io_error(ErrorSubject::Snapshot(None), ErrorVerb::Read, error);
        let (place, bytes) = match read {
            // That passes, and it is sent then. Of what a disk has lost `openraft` is told, and this node's part ends with it.
            Err(error) if is_out_of_means(&error) => return Err(unreachable(error.to_string()).into()),
            read => read.map_err(failed)?,
        };
        let (place, mut offset) = (place_of(&place), 0);
        loop {
            let end = bytes.len().min(offset + PART_BYTES);
            let (part, last) = (bytes[offset..end].to_vec(), end == bytes.len());
            let message = RaftSnapshot { ballot: ballot_of(&ballot), place, offset: offset as u64, part, last };
            let taken = self.ask(&message).await?;
            let follows = vote(&taken.ballot);
            if last || follows > ballot {
                return Ok(SnapshotResponse { vote: follows });
            }
            offset = end;
        }
    }
}

type Failed = RPCError<u64, Node, RaftError<u64>>;
type NotSent = StreamingError<TypeConfig, openraft::error::Fatal<u64>>;

impl RaftNetwork<TypeConfig> for Link {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed> {
        let answer = match request.entries.last().map(|entry| entry.log_id) {
            Some(last) => self.send(&request, last).await.map_err(unreachable)?,
            // A sign of life does not wait for what is under way.
            None => self.ask(&append_message(&request)).await?,
        };
        Ok(appended(&answer))
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _option: RPCOption) -> Result<VoteResponse<u64>, Failed> {
        let last = request.last_log_id.as_ref().map(place_of);
        let voted = self.ask(&RaftVote { ballot: ballot_of(&request.vote), last }).await?;
        let last = voted.last.as_ref().map(log_id);
        Ok(VoteResponse::new(vote(&voted.ballot), last, voted.granted))
    }

    async fn full_snapshot(
        &mut self,
        ballot: Ballot,
        snapshot: Snapshot<TypeConfig>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, NotSent> {
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = self.send_snapshot(ballot, *snapshot.snapshot) => sent,
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(RETRY))
    }
}

fn append_message(request: &AppendEntriesRequest<TypeConfig>) -> RaftAppend {
    let encode = |entry| {
        let mut bytes = Vec::new();
        to_format(entry).encode(&mut bytes);
        bytes
    };
    RaftAppend {
        ballot: ballot_of(&request.vote),
        before: request.prev_log_id.as_ref().map(place_of),
        entries: request.entries.iter().map(encode).collect(),
        decided: request.leader_commit.as_ref().map(place_of),
    }
}

fn appended(answer: &RaftAppended) -> AppendEntriesResponse<u64> {
    let through: Option<Place> = answer.through.as_ref().map(log_id);
    match (answer.outcome, answer.ballot) {
        (RaftOutcome::All, _) => AppendEntriesResponse::Success,
        (RaftOutcome::Part, _) => AppendEntriesResponse::PartialSuccess(through),
        (RaftOutcome::NewerLeader, Some(ballot)) => AppendEntriesResponse::HigherVote(vote(&ballot)),
        (RaftOutcome::Conflict | RaftOutcome::NewerLeader, _) => AppendEntriesResponse::Conflict,
    }
}

pub(crate) fn append_request(message: RaftAppend) -> Result<AppendEntriesRequest<TypeConfig>, String> {
    let parse = |bytes: &Vec<u8>| kera_format::raft::LogEntry::parse(bytes).map(from_format);
    let entries = message.entries.iter().map(parse).collect::<Result<_, _>>();
    Ok(AppendEntriesRequest {
        vote: vote(&message.ballot),
        prev_log_id: message.before.as_ref().map(log_id),
        entries: entries.map_err(|error| error.to_string())?,
        leader_commit: message.decided.as_ref().map(log_id),
    })
}

pub(crate) fn append_answer(answer: AppendEntriesResponse<u64>) -> RaftAppended {
    let (outcome, through, ballot) = match answer {
        AppendEntriesResponse::Success => (RaftOutcome::All, None, None),
        AppendEntriesResponse::PartialSuccess(through) => (RaftOutcome::Part, through.as_ref().map(place_of), None),
        AppendEntriesResponse::Conflict => (RaftOutcome::Conflict, None, None),
        AppendEntriesResponse::HigherVote(newer) => (RaftOutcome::NewerLeader, None, Some(ballot_of(&newer))),
    };
    RaftAppended { outcome, through, ballot }
}

pub(crate) fn vote_request(message: &RaftVote) -> VoteRequest<u64> {
    VoteRequest::new(vote(&message.ballot), message.last.as_ref().map(log_id))
}

pub(crate) fn vote_answer(answer: &VoteResponse<u64>) -> RaftVoted {
    let last = answer.last_log_id.as_ref().map(place_of);
    RaftVoted { ballot: ballot_of(&answer.vote), granted: answer.vote_granted, last }
}

#[cfg(test)]
mod tests {
    use kera_env::{Disk, FaultyDisk, MemoryDisk};
    use kera_protocol::RaftBallot;

    use super::*;
    use crate::{file, snapshot};

    const EMFILE: i32 = 24;

    struct Nobody;

    impl Transport for Nobody {
        fn call(&self, _: u64, _: &str, _: Op, _: Vec<u8>) -> Pending<Vec<u8>> {
            Box::pin(async { Err("nobody is there".into()) })
        }
    }

    /// Clients can bring it about that no file can be opened, and the leader's part in the log ended with that.
    #[tokio::test]
    async fn a_snapshot_that_cannot_be_opened_now_is_sent_later() {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        disk.create_dir_all(file::DIR).unwrap();
        let folder = file::folder(Arc::new(disk.clone()));
        snapshot::write(&folder, 1, b"it is none").unwrap();
        let link = Link { transport: Arc::new(Nobody), to: 2, address: "2".into(), sent: Mutex::new(None) };
        let ballot = vote(&RaftBallot { term: 1, node: 1, committed: true });
        let (before, send) = (disk.opens(), || link.send_snapshot(ballot, Carried::Newest(folder.clone())));
        disk.set_open_errno(Some(EMFILE));
        let sent = send().await;
        assert!(matches!(sent, Err(StreamingError::Unreachable(_))), "{sent:?}");
        assert!(disk.opens() > before);
        disk.set_open_errno(None);
        let sent = send().await;
        assert!(matches!(sent, Err(StreamingError::StorageError(_))), "{sent:?}");
    }
}
