//! Streams, applications and statistics: what `kera stream`, `kera status` and the like ask for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kera_format::{LaneId, StreamId, StreamOptions, StreamletId};
use kera_protocol::{
    AlterStream, ApplicationDescription, ApplicationState, ApplicationSummary, ClusterDescription, CommittedOffsets,
    CopiesDescription, CreateStream, DeleteApplication, DeleteStream, DescribeApplication, DescribeCluster,
    DescribeCopies, DescribeLogs, FetchOffsets, GetStream, ListApplications, ListStreams, LogsDescription, Lookup,
    LookupResult, Message, NodeStatus, NodeStatusResponse, ResetOffsets, Start, Status, StreamChanges, StreamInfo,
    StreamRef,
};

use kera_rpc::RpcError;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::placement::{FIRST, Placement};
use crate::{Client, ClientError};

/// For how long, at least, an owner that cannot be asked is waited for: another one may take over from it.
const NEXT_OWNER_TIMEOUT: Duration = Duration::from_secs(10);

/// What owners are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// To tell something.
    Tell,
    /// To change something: it is done at each owner that has answered, and an error says at which.
    Change,
    /// The same, and who does not know the application makes it. Whether there is room for another one is for the owner of the first streamlet to say: it
    /// is asked before the others, which would keep what it refuses.
    Make,
}

/// Applications, as all nodes together know them.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Applications {
    /// In the order of their names, then of their streams. Members count as often as at the node that has most of them.
    pub applications: Vec<ApplicationSummary>,
    /// Nodes that own streamlets and could not be asked, or are lost: how far applications are in these is not in their lag, and those that
    /// only such a node knows are missing.
    pub unheard: Vec<u32>,
}

/// What several owners know, in one list.
fn joined(answers: Vec<CommittedOffsets>) -> CommittedOffsets {
    let application = answers.first().map(|first| first.application).unwrap_or_default();
    let mut offsets: Vec<_> = answers.into_iter().flat_map(|answer| answer.offsets).collect();
    offsets.sort_by_key(|offset| (offset.streamlet, offset.lane, offset.cursor.group));
    CommittedOffsets { application, offsets }
}

/// The error of what owners were asked to change, when some of them have done it.
fn partly(done: BTreeSet<StreamletId>, wanted: impl Iterator<Item = StreamletId>, error: RpcError) -> ClientError {
    if done.is_empty() {
        return error.into();
    }
    let left: BTreeSet<StreamletId> = wanted.filter(|streamlet| !done.contains(streamlet)).collect();
    let (done, left) = (done.into_iter().collect(), left.into_iter().collect());
    ClientError::Partly { done, left, error: Box::new(error) }
}

fn not_heard(stream: StreamId, node: u32, streamlet: StreamletId) -> RpcError {
    let message = format!(
        "node {node} has not heard yet that it owns streamlet {streamlet} of stream {stream}, or owns it no more"
    );
    RpcError::Status { status: Status::NotReady, message, retry_after: None }
}

/// What several nodes know of the same applications.
fn summed_up(mut all: Vec<ApplicationSummary>) -> Vec<ApplicationSummary> {
    all.sort_by(|a, b| (&a.name, a.stream).cmp(&(&b.name, b.stream)));
    let mut merged: Vec<ApplicationSummary> = Vec::new();
    for part in all {
        match merged.last_mut().filter(|last| (&last.name, last.stream) == (&part.name, part.stream)) {
            Some(whole) => {
                whole.members = whole.members.max(part.members);
                whole.lag = whole.lag.saturating_add(part.lag);
                if part.state == ApplicationState::Active {
                    whole.state = part.state;
                }
            }
            None => merged.push(part),
        }
    }
    merged
}

/// Administers a server. Made by [`Client::admin`]; costs nothing.
///
/// Errors of all methods: [`ClientError::Rpc`] with the server's status and message, or with what kept the server from
/// being asked.
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) client: Client,
}

impl Admin {
    /// Makes a stream; an error if one of that name exists.
    pub async fn create_stream(&self, name: &str, options: StreamOptions) -> Result<StreamInfo, ClientError> {
        self.client.call(&CreateStream { name: name.into(), options, if_not_exists: false }).await
    }

    /// Makes a stream, or finds the one of that name, whatever its options are.
    pub async fn ensure_stream(&self, name: &str, options: StreamOptions) -> Result<StreamInfo, ClientError> {
        self.client.call_again(&CreateStream { name: name.into(), options, if_not_exists: true }).await
    }

    /// Finds a stream by name or id.
    pub async fn stream(&self, stream: impl Into<StreamRef>) -> Result<StreamInfo, ClientError> {
        self.client.call(&GetStream { stream: stream.into() }).await
    }

    /// Finds a stream by name, as whoever is about to write or read it does: where one node does not know it the others are asked in turn, and for a second, before it is said
    /// that there is none. It may have been made a moment ago by way of another node, and one that is cut off hears of it later than that.
    pub async fn find_stream(&self, name: &str) -> Result<StreamInfo, ClientError> {
        self.client.find_stream(name).await
    }

    /// All streams whose names start with `prefix`, in the order of their names; `system`: also those of the system.
    pub async fn streams(&self, prefix: &str, system: bool) -> Result<Vec<StreamInfo>, ClientError> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |info: &StreamInfo| info.name.clone());
            let page = self.client.call(&ListStreams { prefix: prefix.into(), after, limit: 0, system }).await?;
            let more = page.more && !page.streams.is_empty();
            all.extend(page.streams);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Changes options of a stream, all or none.
    pub async fn alter_stream(
        &self,
        stream: impl Into<StreamRef>,
        changes: StreamChanges,
    ) -> Result<StreamInfo, ClientError> {
        self.client.call(&AlterStream { stream: stream.into(), changes }).await
    }

    /// Deletes a stream and all of its data.
    pub async fn delete_stream(&self, stream: impl Into<StreamRef>) -> Result<(), ClientError> {
        self.client.call(&DeleteStream { stream: stream.into() }).await.map(drop)
    }

    /// Where in a lane something is, whichever node has it.
    pub async fn lookup(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        lane: LaneId,
        at: Start,
    ) -> Result<LookupResult, ClientError> {
        self.client.find_place(&Lookup { stream, streamlet, lane, at }, self.client.retry_timeout()).await
    }

    /// Applications of a stream, or of all streams. In a cluster each node tells of what it owns; those that cannot be asked are named
    /// instead of being waited for. Errors: no node answers.
    pub async fn applications(&self, stream: Option<StreamId>) -> Result<Applications, ClientError> {
        let message = ListApplications { stream };
        let nodes = self.client.all_nodes().await?;
        if nodes.is_empty() {
            let applications = self.client.call(&message).await?.applications;
            return Ok(Applications { applications, unheard: Vec::new() });
        }
        let owners = self.owners(stream).await?;
        let (mut all, mut failed, mut heard) = (Vec::new(), None, BTreeSet::new());
        for (node, address) in nodes {
            match self.client.call_at(&address, &message).await {
                Ok(answer) => {
                    heard.insert(node);
                    all.extend(answer.applications);
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if heard.is_empty() => Err(error.into()),
            _ => {
                let unheard = owners.difference(&heard).copied().collect();
                Ok(Applications { applications: summed_up(all), unheard })
            }
        }
    }

    /// The nodes that own streamlets of a stream, or any, whether they are lost or not.
    async fn owners(&self, stream: Option<StreamId>) -> Result<BTreeSet<u32>, ClientError> {
        if let Some(stream) = stream {
            return Ok(self.newest_placement(stream).await?.owners_and_lost());
        }
        let nodes = self.describe_cluster().await?.nodes;
        Ok(nodes.into_iter().filter(|node| node.streamlets > 0).map(|node| node.node).collect())
    }

    /// An application's members, leases and lag. In a cluster what all owners of streamlets tell: a member has an entry at each of them.
    pub async fn application(&self, stream: StreamId, name: &str) -> Result<ApplicationDescription, ClientError> {
        let mut answers = self.application_by_owner(stream, name).await?.into_iter();
        let Some(mut whole) = answers.next() else {
            let message = format!("stream {stream} has no application `{name}`");
            return Err(RpcError::Status { status: Status::UnknownApplication, message, retry_after: None }.into());
        };
        for part in answers {
            whole.members.extend(part.members);
            whole.leases.extend(part.leases);
            whole.lanes.extend(part.lanes);
            whole.lag = whole.lag.saturating_add(part.lag);
            if part.state == ApplicationState::Active {
                whole.state = part.state;
            }
        }
        whole.lanes.sort_by_key(|lane| (lane.streamlet, lane.lane));
        whole.leases.sort_by_key(|lease| (lease.streamlet, lease.lane, lease.group));
        Ok(whole)
    }

    /// The same as each owner of streamlets tells it. Numbers of members are those of one owner: two of them give the same one to different
    /// consumers.
    pub async fn application_by_owner(
        &self,
        stream: StreamId,
        name: &str,
    ) -> Result<Vec<ApplicationDescription>, ClientError> {
        self.at_owners(stream, &[], |_| DescribeApplication { application: name.into(), stream }).await
    }

    /// How far an application has read.
    pub async fn offsets(&self, stream: StreamId, application: &str) -> Result<CommittedOffsets, ClientError> {
        let message = |streamlets| FetchOffsets { application: application.into(), stream, streamlets };
        Ok(joined(self.at_owners(stream, &[], message).await?))
    }

    /// Sets how far an application has read; it must have no members. One that is not there is made; in a cluster the first streamlet has to be
    /// among those that are set for that, for its owner decides whether there is room. It is not asked where the owners of all that are set know the
    /// application. `dry_run` only tells what would be set. Errors:
    /// [`ClientError::Partly`] if some owners have done it and others not.
    pub async fn reset_offsets(
        &self,
        stream: StreamId,
        application: &str,
        streamlets: Vec<StreamletId>,
        to: Start,
        dry_run: bool,
    ) -> Result<CommittedOffsets, ClientError> {
        let message = |streamlets| ResetOffsets { application: application.into(), stream, streamlets, to, dry_run };
        let is_apart = !dry_run && !streamlets.is_empty() && !streamlets.contains(&FIRST);
        if is_apart && !self.client.placement(stream).await?.is_alone() {
            // None of those who set it decides whether there is room for it.
            self.check_known(stream, application, &streamlets).await?;
        }
        let asked = if dry_run { Asked::Tell } else { Asked::Make };
        Ok(joined(self.at_owners_each(stream, &streamlets, asked, message).await?))
    }

    /// Refuses if neither the owners of these streamlets know an application, each of them, nor the owner of the first one. Those come first: where they
    /// know it nothing is made, and the first owner, which may be away or may never have had room for it, has no say.
    async fn check_known(&self, stream: StreamId, application: &str, of: &[StreamletId]) -> Result<(), ClientError> {
        let mut is_known = true;
        for owned in self.newest_placement(stream).await?.by_owner(of).into_values() {
            is_known = self.is_known(stream, application, &owned).await?;
            if !is_known {
                break;
            }
        }
        if is_known || self.is_known(stream, application, &[FIRST]).await? {
            return Ok(());
        }
        let message = format!(
            "the owner of streamlet 0 of stream {stream} does not know an application `{application}`, and a new one is made with that streamlet: \
             set it as well, or all"
        );
        Err(RpcError::Status { status: Status::UnknownApplication, message, retry_after: None }.into())
    }

    /// Whether an owner of these streamlets knows an application.
    async fn is_known(&self, stream: StreamId, application: &str, of: &[StreamletId]) -> Result<bool, ClientError> {
        let message = |streamlets| FetchOffsets { application: application.into(), stream, streamlets };
        match self.at_owners(stream, of, message).await {
            Err(ClientError::Rpc(error)) if error.status() == Some(Status::UnknownApplication) => Ok(false),
            answered => answered.map(|_| true),
        }
    }

    /// Forgets an application and what it has read; it must have no members. Errors: [`ClientError::Partly`] if some owners have done it and
    /// others not.
    pub async fn delete_application(&self, stream: StreamId, name: &str) -> Result<(), ClientError> {
        let message = |_| DeleteApplication { application: name.into(), stream };
        self.at_owners_each(stream, &[], Asked::Change, message).await.map(drop)
    }

    /// Who has what of a stream now: what the client knows may be old.
    pub(crate) async fn newest_placement(&self, stream: StreamId) -> Result<Arc<Placement>, ClientError> {
        let placement = self.client.placement(stream).await?;
        if placement.is_alone() {
            return Ok(placement);
        }
        Ok(self.client.refresh(stream, &placement).await.unwrap_or(placement))
    }

    /// Asks the owners of streamlets, which keep what applications have read of them; of `streamlets`, all if there are none. An owner
    /// that does not know the application has nothing to say, unless no other has.
    async fn at_owners<M: Message>(
        &self,
        stream: StreamId,
        streamlets: &[StreamletId],
        message: impl Fn(Vec<StreamletId>) -> M,
    ) -> Result<Vec<M::Response>, ClientError> {
        self.at_owners_each(stream, streamlets, Asked::Tell, message).await
    }

    /// The same, whatever they are [`Asked`] for.
    async fn at_owners_each<M: Message>(
        &self,
        stream: StreamId,
        streamlets: &[StreamletId],
        asked: Asked,
        message: impl Fn(Vec<StreamletId>) -> M,
    ) -> Result<Vec<M::Response>, ClientError> {
        let mut placement = self.newest_placement(stream).await?;
        if placement.is_alone() {
            return Ok(vec![self.client.call(&message(streamlets.to_vec())).await?]);
        }
        let (mut answers, mut done) = (Vec::new(), BTreeSet::new());
        let (mut unknown, mut nothing_to_do) = (None, BTreeSet::new());
        let until = Instant::now() + self.client.retry_timeout().max(NEXT_OWNER_TIMEOUT);
        let mut backoff = Backoff::default();
        loop {
            let (mut failed, mut owners) = (None, Vec::from_iter(placement.by_owner(streamlets)));
            owners.sort_by_key(|(_, owned)| asked == Asked::Make && !owned.contains(&FIRST));
            for (node, mut owned) in owners {
                // What an owner has told of before it moved is not asked for twice.
                owned.retain(|streamlet| !done.contains(streamlet) && !nothing_to_do.contains(streamlet));
                if owned.is_empty() {
                    continue;
                }
                let (message, its) = (message(owned.clone()), (node, &mut owned));
                let (answer, left) = self.at_owner(stream, &placement, its, asked, &message).await;
                failed = left.or(failed);
                match answer {
                    Ok(answer) => {
                        answers.push(answer);
                        done.extend(owned);
                    }
                    Err(error) if error.status() == Some(Status::UnknownApplication) => {
                        unknown = Some(error);
                        nothing_to_do.extend(owned);
                    }
                    Err(error) => {
                        failed = Some(error);
                        if asked == Asked::Make && owned.contains(&FIRST) {
                            break;
                        }
                    }
                }
            }
            let Some(error) = failed else { break };
            let wait = backoff.next(error.retry_after());
            let failed = match !error.retryable() || Instant::now() + wait > until {
                true => Some(error),
                false => {
                    tokio::time::sleep(wait).await;
                    match self.client.refresh(stream, &placement).await {
                        Ok(found) => {
                            placement = found;
                            None
                        }
                        Err(error) => Some(error).filter(|error| !error.retryable()),
                    }
                }
            };
            if let Some(error) = failed {
                let done = if asked == Asked::Tell { BTreeSet::new() } else { done };
                let wanted = placement.by_owner(streamlets).into_values().flatten();
                return Err(partly(done, wanted.filter(|streamlet| !nothing_to_do.contains(streamlet)), error));
            }
        }
        match unknown {
            Some(error) if answers.is_empty() => Err(error.into()),
            _ => Ok(answers),
        }
    }

    /// Asks an owner for what it owns. One that is to change something at all of that has to know before and behind that that it is its own. What it says, and why that does not count
    /// for all of it: in `owned` what it counts for is left.
    ///
    /// It says that it is done when it is done with what it has been told to own, and a client counts that for all that it takes the node for the owner of. Other
    /// nodes may have told it of a streamlet that the node has not heard of yet, and one may have left the node by the time that it was asked. An application that is deleted would
    /// come back with what is recorded of that one.
    async fn at_owner<M: Message>(
        &self,
        stream: StreamId,
        placement: &Placement,
        (node, owned): (u32, &mut Vec<StreamletId>),
        asked: Asked,
        message: &M,
    ) -> (Result<M::Response, RpcError>, Option<RpcError>) {
        if asked != Asked::Change {
            return (self.client.call_node(placement, node, message).await, None);
        }
        match self.not_owned(stream, placement, (node, &owned[..])).await {
            Ok(others) if others.is_empty() => {}
            Ok(others) => return (Err(not_heard(stream, node, others[0])), None),
            Err(error) => return (Err(error), None),
        }
        let answer = self.client.call_node(placement, node, message).await;
        let counts = match &answer {
            Ok(_) => true,
            Err(error) => error.status() == Some(Status::UnknownApplication),
        };
        if !counts {
            return (answer, None);
        }
        let left = match self.not_owned(stream, placement, (node, &owned[..])).await {
            Ok(others) => {
                owned.retain(|streamlet| !others.contains(streamlet));
                others.first().map(|other| not_heard(stream, node, *other))
            }
            Err(error) => {
                owned.clear();
                Some(error)
            }
        };
        (answer, left)
    }

    /// Those streamlets of which a node knows another owner, or another owner epoch, than the client.
    async fn not_owned(
        &self,
        stream: StreamId,
        placement: &Placement,
        (node, owned): (u32, &[StreamletId]),
    ) -> Result<Vec<StreamletId>, RpcError> {
        let heard = self.client.placement_at(placement, node, stream).await?;
        let is_other = |streamlet: &StreamletId| heard.owner(streamlet.0) != placement.owner(streamlet.0);
        Ok(owned.iter().copied().filter(is_other).collect())
    }

    /// How the cluster is, as the node knows it; one that is alone answers without nodes.
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, ClientError> {
        self.client.call(&DescribeCluster).await
    }

    /// How the copies of what the node owns are, and what it keeps for others.
    pub async fn describe_copies(&self) -> Result<CopiesDescription, ClientError> {
        self.client.call(&DescribeCopies).await
    }

    /// Which streamlets the node has in virtual logs of their own. Refused by nodes of versions that have none.
    pub async fn describe_logs(&self) -> Result<LogsDescription, ClientError> {
        self.client.call(&DescribeLogs).await
    }

    /// How the node is.
    pub async fn node_status(&self) -> Result<NodeStatusResponse, ClientError> {
        self.client.call(&NodeStatus).await
    }
}
