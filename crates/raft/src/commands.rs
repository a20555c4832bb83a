//! Commands: planned by the leader against the state, one at a time, and handed on to it by everybody else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_coordinator::CoordinatorError;
use kera_coordinator::catalog::{Limits, PRODUCER_BLOCK};
use kera_coordinator::cluster::{ClusterState, Join, LogView, Loss, Refused, move_info};
use kera_format::catalog::Entry;
use kera_format::cluster::{ClusterEntry, LogName, NodeNumber};
use kera_format::{ProducerEpoch, ProducerId};
use kera_protocol::limits::page_items;
use kera_protocol::{
    AcceptLogLoss, AcceptLoss, AcceptStreamletLoss, AllocateProducer, AllocatedProducer, AlterStream, BalancePlan,
    Body, ChangeLog, ChangeNode, CopiesMade, CreateStream, DeleteStream, DescribeCopyChanges, DescribeLostLogs,
    DescribeMoves, Empty, ErrorBody, FinishMove, ForwardCommand, ForwardedCommand, GiveBack, GroupsGone, JoinCluster,
    JoinedCluster, LogChange, Message, MovePlan, MoveStreamlet, MovesDescription, NodeChange, Op, PlanBalance,
    PlanRebalance, RebuildNeeds, RenewOwner, ReturnGroups, SetFloors, Status, StreamInfo, StreamRef, StreamletsRebuilt,
    UseEnds,
};
use openraft::{BasicNode, ChangeMembers};
use parking_lot::Mutex;

use crate::group::{Group, encoded};
use crate::network::{NOT_SENT, ask};

/// A lost node has stopped serving for certain when it has been fenced for so long, in milliseconds: it goes on for 5 s after it heard that it takes
/// part (`kera_broker::SERVES_MS`), and a coordinator may hear late of a fence. Less than commands wait.
const STOPPED_AFTER_MS: u64 = 7_000;

/// Time between two tries to find a leader.
const RETRY: Duration = Duration::from_millis(50);
/// A node that is sent the log knows what its leader has said to know after much less. One that does not goes on with what it knows.
const HEARS: Duration = Duration::from_secs(2);

/// Makes of a command the same one in its first version, for a leader that speaks no other. Refused if that cannot say what is asked for.
fn earlier(op: Op, command: &mut ForwardCommand) -> Result<(), CoordinatorError> {
    command.body = match op {
        Op::JoinCluster => encoded(&JoinCluster::decode(command.version, &command.body)?, 1),
        Op::StreamletsRebuilt => encoded(&StreamletsRebuilt::decode(command.version, &command.body)?, 1),
        Op::CopiesMade => encoded(&CopiesMade::decode(command.version, &command.body)?, 1),
        Op::GiveBack => first_of::<GiveBack>(command)?,
        Op::CreateStream => first_of::<CreateStream>(command)?,
        Op::AlterStream => first_of::<AlterStream>(command)?,
        _ => std::mem::take(&mut command.body),
    };
    command.version = 1;
    Ok(())
}

/// A message in its first version, if that has all of it.
fn first_of<M: Message + PartialEq>(command: &ForwardCommand) -> Result<Vec<u8>, CoordinatorError> {
    let message = M::decode(command.version, &command.body)?;
    let first = encoded(&message, 1);
    if M::decode(1, &first)? == message {
        return Ok(first);
    }
    let reason = "the coordinators' leader is of an earlier version, which does not know what is asked for; try again when all nodes run this one";
    Err(CoordinatorError::Refused(Refused(reason.into())))
}

/// Makes of the answer to a command in version `from` what who asked in version `to` expects. All others have the same bytes in all versions.
fn answered(op: Op, (from, to): (u8, u8), body: Vec<u8>) -> Result<Vec<u8>, CoordinatorError> {
    match op {
        Op::CreateStream | Op::AlterStream if from != to => Ok(encoded(&StreamInfo::decode(from, &body)?, to)),
        _ => Ok(body),
    }
}

/// What a node knows of what a command is about, before it asks first. By that it tells what has been done since.
pub(crate) enum Before {
    /// Whether there was the stream that is to be made or deleted, the log of which something is to be given up, or the rebuild that is to go on without something.
    WasThere(bool),
    /// What was lost that is to be given up.
    Lost(Loss),
}

impl Before {
    /// `None`: the command changes nothing when it is given twice, and is answered as before.
    fn of(op: Op, version: u8, body: &[u8], state: &ClusterState) -> Option<Before> {
        let stream = |stream: &StreamRef| Some(Before::WasThere(state.catalog.find(stream).is_ok()));
        match op {
            Op::CreateStream => stream(&StreamRef::Name(CreateStream::decode(version, body).ok()?.name)),
            Op::DeleteStream => stream(&DeleteStream::decode(version, body).ok()?.stream),
            Op::AcceptLogLoss => {
                let log = LogName::from(AcceptLogLoss::decode(version, body).ok()?.log);
                Some(Before::WasThere(state.logs().contains_key(&log)))
            }
            Op::AcceptStreamletLoss => {
                let AcceptStreamletLoss { stream, streamlet, .. } = AcceptStreamletLoss::decode(version, body).ok()?;
                Some(Before::WasThere(state.is_rebuilt(stream, streamlet.0)))
            }
            Op::AcceptLoss => {
                let AcceptLoss { stream, streamlet } = AcceptLoss::decode(version, body).ok()?;
                state.loss_of(&stream, streamlet.0).map(Before::Lost)
            }
            _ => None,
        }
    }
}

/// How a command is given again that may have been done: a stream that is to be deleted by its name is named by its number, if this node knew it before the first try. By its name
/// one could be taken that somebody has made since.
fn by_number(op: Op, version: u8, body: &[u8], state: &ClusterState) -> Option<Vec<u8>> {
    if op != Op::DeleteStream {
        return None;
    }
    let DeleteStream { stream } = DeleteStream::decode(version, body).ok()?;
    let known = state.catalog.find(&stream).ok()?;
    Some(encoded(&DeleteStream { stream: known.id.into() }, version))
}

/// Whether people and programs ask for something, and not nodes, which use what they were told at once. It is told as done also where this node has not heard of it after as long as a command
/// waits: told as an error it would be asked for once more, at another node, and be refused since it is done.
fn is_for_clients(op: Op) -> bool {
    matches!(op, Op::CreateStream | Op::AlterStream | Op::DeleteStream | Op::MoveStreamlet | Op::ChangeNode)
        || matches!(op, Op::AcceptLoss | Op::AcceptLogLoss | Op::AcceptStreamletLoss)
}

/// Whether a command that was done is refused when it is given once more: whoever gives it has to be told whether it may be done. Kafka's clients say how many partitions a topic is to have, and are
/// refused when it has them.
pub fn is_refused_again(op: Op, version: u8, body: &[u8]) -> bool {
    match op {
        Op::CreateStream => CreateStream::decode(version, body).is_ok_and(|asked| !asked.if_not_exists),
        Op::AlterStream => AlterStream::decode(version, body).is_ok_and(|asked| asked.changes.streamlets.is_some()),
        Op::DeleteStream | Op::AcceptLoss | Op::AcceptLogLoss | Op::AcceptStreamletLoss => true,
        _ => false,
    }
}

/// Whether what a node knows may be too old to tell what it has done from what is so anyway. A name may be another stream's by now, or nobody's, and what the node does not know of, or not as lost,
/// may be there, and lost.
fn may_be_behind(op: Op, version: u8, body: &[u8], before: Option<&Before>) -> bool {
    let was_there = matches!(before, Some(Before::WasThere(true)));
    match op {
        Op::CreateStream => was_there && is_refused_again(op, version, body),
        Op::DeleteStream => {
            let by_name = |asked: DeleteStream| matches!(asked.stream, StreamRef::Name(_));
            !was_there || DeleteStream::decode(version, body).is_ok_and(by_name)
        }
        Op::AcceptLoss | Op::AcceptLogLoss | Op::AcceptStreamletLoss => {
            !was_there && !matches!(before, Some(Before::Lost(_)))
        }
        _ => false,
    }
}

/// What a leader knows beside the state. Whoever holds it gives commands, and nobody else does.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    /// The term in which the next fields were filled.
    term: u64,
    /// The next producer id to give out.
    next_producer: ProducerId,
    /// Where the block ends that this leader has reserved itself. What the state has reserved may be a later leader's block, of which this one has not heard yet that it leads.
    reserved: ProducerId,
    /// The term of the entry that the last command has written; zero: none.
    pub(crate) wrote_in: u64,
    /// The term in which the last command has made sure that this node leads: it knows all that was decided before that.
    pub(crate) led_in: u64,
    /// Set once the log is asked to take something of the command that is under way.
    pub(crate) begun: Arc<AtomicBool>,
}

fn check_same_term(done_in: u64, planned_in: u64) -> Result<(), CoordinatorError> {
    if done_in == planned_in {
        return Ok(());
    }
    Err(CoordinatorError::NoLeader("another node may have led in between".into()))
}

impl Leading {
    /// An error if the last command was written in another term than the one in which it was planned.
    ///
    /// A leader may be one again before it notices that another one was in between, and then its entry is taken although it was planned against what was true before that one. The rules refuse what does
    /// not fit any more, but take the same block of producer ids, or the same epoch of a producer, once more: the other leader has given it to somebody. In one term there is one leader, which plans
    /// behind all that those before it have written, and has one command under way at a time.
    fn check_wrote_in(&self, planned_in: u64) -> Result<(), CoordinatorError> {
        check_same_term(self.wrote_in, planned_in)
    }

    /// An error if the last command found this node to lead in another term than the one in which it has looked which producer ids are given out.
    fn check_led_in(&self, looked_in: u64) -> Result<(), CoordinatorError> {
        check_same_term(self.led_in, looked_in)
    }
}

impl Group {
    /// Has the leader do what a request asks for; the answer's body. Returns when this node knows of it, observers included; or, of what [clients](is_for_clients) ask for that is not the system's,
    /// after as long as a command waits.
    /// Waits for a leader, and tries the next one if one is lost, for as long as [`Timing`](crate::Timing) says. The one that is lost may have done it nevertheless:
    /// what the next one finds done then is [taken for that](Group::done_before). A stream that is deleted by its name is the one that had it at first. Where no next one answers, what would be
    /// [refused](is_refused_again) is told as [perhaps done](CoordinatorError::MayBeDone).
    pub async fn request(&self, op: Op, version: u8, body: &[u8], system: bool) -> Result<Vec<u8>, CoordinatorError> {
        let mut command = ForwardCommand { op: op as u16, version, system, body: body.to_vec() };
        let deadline = tokio::time::Instant::now() + Duration::from_millis(self.config.timing.command_ms);
        let mut last = "there is none".to_owned();
        // Whether some try may have done it, and whether a leader elsewhere has answered to the last one.
        let (may_be_done, mut leader_says) = (Arc::<AtomicBool>::default(), false);
        let (before, again) = self.look_first(op, version, body, deadline).await;
        while tokio::time::Instant::now() < deadline {
            let is_again = may_be_done.load(Ordering::Relaxed);
            if is_again && let Some(again) = &again {
                command.body.clone_from(again);
            }
            let forwarded = match self.hand_on(&command, deadline, &may_be_done).await {
                Ok(forwarded) => forwarded,
                Err(reason) => {
                    (leader_says, last) = (false, reason.unwrap_or(last));
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            match Status::from_u16(forwarded.status) {
                Some(Status::Ok) => {
                    let followed = self.wait_followed(forwarded.index).await;
                    if system || !is_for_clients(op) {
                        followed?;
                    }
                    return answered(op, (command.version, version), forwarded.body);
                }
                Some(Status::NotReady) => {
                    last =
                        ErrorBody::decode(&forwarded.body).map_or_else(|error| error.to_string(), |body| body.message);
                    leader_says = self.leader().is_some_and(|(leader, _)| leader != self.config.node);
                    tokio::time::sleep(RETRY).await;
                }
                // A leader of an earlier version: it is asked again as its like would ask it.
                Some(Status::UnsupportedVersion) if command.version > 1 => earlier(op, &mut command)?,
                status => {
                    let (status, body) = (status.unwrap_or(Status::Internal), again.as_deref().unwrap_or(body));
                    if is_again
                        && let Some(before) = &before
                        && let Some(done) = self.done_before(op, version, body, (status, before), deadline).await
                    {
                        return Ok(done);
                    }
                    let body = ErrorBody::decode(&forwarded.body)?;
                    return Err(CoordinatorError::Leader { status, body });
                }
            }
        }
        // One that has answered is there, and says itself what keeps it.
        let lacking = if leader_says { None } else { self.lacks_majority() };
        if may_be_done.load(Ordering::Relaxed) && is_refused_again(op, version, body) {
            let why = lacking.unwrap_or(last);
            return Err(CoordinatorError::MayBeDone(format!("nobody has told this node whether it is done: {why}")));
        }
        let why = || format!("no leader of the coordinators has done it: {last}");
        Err(CoordinatorError::NoLeader(lacking.unwrap_or_else(why)))
    }

    /// What this node knows of what a command is about before it is given, and how it is given [again](by_number). Where that [may be too old](may_be_behind) it hears first what the leader
    /// knows: by what it knew a try whose answer is lost could not be told from what somebody else has done, and was refused the second time, or told as done and was not.
    async fn look_first(
        &self,
        op: Op,
        version: u8,
        body: &[u8],
        deadline: tokio::time::Instant,
    ) -> (Option<Before>, Option<Vec<u8>>) {
        let look = |state: &ClusterState| (Before::of(op, version, body, state), by_number(op, version, body, state));
        let known = self.read(look);
        if !may_be_behind(op, version, body, known.0.as_ref()) {
            return known;
        }
        let heard = async {
            loop {
                match self.leader_is_at(deadline).await {
                    Some(index) => return index,
                    None => tokio::time::sleep(RETRY).await,
                }
            }
        };
        if let Ok(index) = tokio::time::timeout_at(deadline, heard).await {
            // Whether or not its observers have heard of it. One that comes no further has it done all the same.
            let _ = self.look_until(|| (self.applied() >= index).then_some(()), HEARS).await;
        }
        self.read(look)
    }

    /// The answer to a command that was given again and is refused because it has been done: a stream that is to be made is there, with what was asked for, or one that
    /// is to be deleted is not; what a person gives up of a streamlet nobody has any more, or nobody has the log. By an earlier try of which no answer has come, for before the first
    /// one that was not so, as far as this node knew (`before`). Somebody else may have done the same meanwhile; then that is as good.
    pub(crate) async fn done_before(
        &self,
        op: Op,
        version: u8,
        body: &[u8],
        (status, before): (Status, &Before),
        deadline: tokio::time::Instant,
    ) -> Option<Vec<u8>> {
        let answer = match (op, status, before) {
            (Op::CreateStream, Status::StreamExists, Before::WasThere(false)) => {
                let asked = CreateStream::decode(version, body).ok()?;
                let name = StreamRef::Name(asked.name.clone());
                let made = self.known_of(|state| state.catalog.find(&name).ok().cloned()).await?;
                let is_it = [true, false].iter().any(|kept| made.options == asked.with_settings_if(*kept).options);
                is_it.then(|| encoded(&made, version))?
            }
            (Op::DeleteStream, Status::UnknownStream, Before::WasThere(true)) => {
                let DeleteStream { stream } = DeleteStream::decode(version, body).ok()?;
                // By its number, which nobody has again: it is done also where this node does not hear of that in time.
                let _ = self.known_of(|state| state.catalog.find(&stream).is_err().then_some(())).await;
                encoded(&Empty, version)
            }
            (Op::AcceptLoss, Status::InvalidArgument, Before::Lost(loss)) => {
                self.catch_up(deadline).await?;
                self.read(|state| state.goes_on_without(loss)).then(|| encoded(&Empty, version))?
            }
            (Op::AcceptLogLoss, Status::InvalidArgument, Before::WasThere(true)) => {
                let log = LogName::from(AcceptLogLoss::decode(version, body).ok()?.log);
                self.catch_up(deadline).await?;
                self.read(|state| !state.logs().contains_key(&log)).then(|| encoded(&Empty, version))?
            }
            (Op::AcceptStreamletLoss, Status::InvalidArgument, Before::WasThere(true)) => {
                let AcceptStreamletLoss { stream, streamlet, .. } = AcceptStreamletLoss::decode(version, body).ok()?;
                self.catch_up(deadline).await?;
                self.read(|state| !state.is_rebuilt(stream, streamlet.0)).then(|| encoded(&Empty, version))?
            }
            _ => return None,
        };
        let is_followed = self.wait_followed(self.applied()).await.is_ok();
        (is_followed || is_for_clients(op)).then_some(answer)
    }

    /// Waits until this node knows all that the leader does. For what may be refused for other reasons as well: waiting for what would tell that it is done takes long where it is not.
    async fn catch_up(&self, deadline: tokio::time::Instant) -> Option<()> {
        let index = self.leader_is_at(deadline).await?;
        self.wait_followed(index).await.ok()
    }

    /// Up to which entry the leader knows what is decided, which is all that was before it is asked; 0 of one that does not know the question. `None`: none has answered.
    async fn leader_is_at(&self, deadline: tokio::time::Instant) -> Option<u64> {
        let body = encoded(&DescribeMoves { limit: 1 }, 1);
        let question = ForwardCommand { op: Op::DescribeMoves as u16, version: 1, system: false, body };
        let told = self.hand_on(&question, deadline, &Arc::default()).await.ok()?;
        match Status::from_u16(told.status) {
            Some(Status::Ok) => Some(told.index),
            Some(Status::NotReady) => None,
            _ => Some(0),
        }
    }

    /// Waits until this node's state has something that a leader's has, whether or not its observers have heard of it.
    async fn known_of<T>(&self, find: impl Fn(&ClusterState) -> Option<T>) -> Option<T> {
        let most = Duration::from_millis(self.config.timing.command_ms);
        self.look_until(|| self.read(&find), most).await
    }

    /// Looks for something now and whenever something was applied, for at most so long.
    async fn look_until<T>(&self, find: impl Fn() -> Option<T>, most: Duration) -> Option<T> {
        let mut metrics = self.raft.metrics();
        let known = async {
            loop {
                if let Some(found) = find() {
                    return Some(found);
                }
                // Also when something was applied.
                metrics.changed().await.ok()?;
            }
        };
        tokio::time::timeout(most, known).await.ok()?
    }

    /// Has the leader do it once, be it this node or another one. The error says why there is no answer; `None`: nobody leads. `may_be_done` is set where it may be done by that although
    /// the answer does not say so.
    ///
    /// Where this node leads it is waited for until the `deadline`, and then let go wherever it stands, as it would be if this node were gone: the lock that makes commands go one
    /// at a time is free again, and what the log was asked for may be done nevertheless.
    async fn hand_on(
        &self,
        command: &ForwardCommand,
        deadline: tokio::time::Instant,
        may_be_done: &Arc<AtomicBool>,
    ) -> Result<ForwardedCommand, Option<String>> {
        match self.leader() {
            Some((leader, _)) if leader == self.config.node => {
                let done = tokio::time::timeout_at(deadline, self.execute_forwarded(command, may_be_done)).await;
                done.map_err(|_| Some("this node leads, and does not come to an end with it".to_owned()))
            }
            Some((leader, address)) => {
                let answer = self.ask_leader(leader, &address, command).await;
                // Another one that is not ready does not say whether its log was asked for something.
                let is_not_done = match &answer {
                    Ok(answer) => Status::from_u16(answer.status) != Some(Status::NotReady),
                    Err(reason) => reason.starts_with(NOT_SENT),
                };
                if !is_not_done {
                    may_be_done.store(true, Ordering::Relaxed);
                }
                answer.map_err(|reason| Some(reason.strip_prefix(NOT_SENT).map(str::to_owned).unwrap_or(reason)))
            }
            None => Err(None),
        }
    }

    /// Has another node do it. A machine that is gone, or cut off, closes no connection, and its answer is waited for long: who follows another
    /// leader by then asks that one. The first may have done it nevertheless, as when a connection to it ends.
    async fn ask_leader(
        &self,
        leader: NodeNumber,
        address: &str,
        command: &ForwardCommand,
    ) -> Result<ForwardedCommand, String> {
        let mut metrics = self.raft.metrics();
        let is_other = |other: u64| other != u64::from(leader);
        tokio::select! {
            biased;
            answer = ask(&*self.transport, leader.into(), address, command) => answer,
            Ok(_) = metrics.wait_for(|now| now.current_leader.is_some_and(is_other)) => {
                Err(format!("node {leader} did not answer, and another one leads"))
            }
        }
    }

    /// The same for a message.
    pub async fn ask<M: Message>(&self, message: &M) -> Result<M::Response, CoordinatorError> {
        let (op, version, body) = crate::group::packed(message);
        let answer = self.request(op, version, &body, false).await?;
        Ok(M::Response::decode(version, &answer)?)
    }

    /// `begun` is set once the log is asked to take something of it.
    pub(crate) async fn execute_forwarded(
        &self,
        command: &ForwardCommand,
        begun: &Arc<AtomicBool>,
    ) -> ForwardedCommand {
        let done = {
            let mut leading = self.leading.lock().await;
            leading.begun = begun.clone();
            let done = self.execute(&mut leading, command).await;
            // What this node has decided by itself as the leader is no part of it.
            leading.begun = Arc::default();
            done
        };
        match done {
            Ok((body, index)) => ForwardedCommand { status: Status::Ok as u16, body, index },
            Err(error) => {
                let mut body = Vec::new();
                error.body().encode(&mut body);
                ForwardedCommand { status: error.status() as u16, body, index: 0 }
            }
        }
    }

    async fn execute(
        &self,
        leading: &mut Leading,
        command: &ForwardCommand,
    ) -> Result<(Vec<u8>, u64), CoordinatorError> {
        let ForwardCommand { version, system, body, .. } = command;
        let (version, now_ms) = (*version, self.clock.now_ms());
        let most = Limits { streams: self.config.streams_max, nodes: self.config.copies_max };
        let Some(op) = Op::from_u16(command.op) else {
            return Err(CoordinatorError::Refused(Refused("the operation is not known here".into())));
        };
        op.check_version(version)?;
        match op {
            Op::CreateStream => {
                let request = CreateStream::decode(version, body)?;
                let name = StreamRef::Name(request.name.clone());
                let index =
                    self.commit(leading, |state| match state.plan_create_stream(&request, &most, now_ms, *system) {
                        Err(CoordinatorError::StreamExists { .. }) if request.if_not_exists => Ok(Vec::new()),
                        planned => planned,
                    });
                let index = index.await?;
                self.stream_answer(&name, version, index)
            }
            Op::AlterStream => {
                let AlterStream { stream, changes } = AlterStream::decode(version, body)?;
                let plan = self.commit(leading, |state| state.plan_alter_stream(&stream, &changes, &most, now_ms));
                let index = plan.await?;
                self.stream_answer(&stream, version, index)
            }
            Op::DeleteStream => {
                let DeleteStream { stream } = DeleteStream::decode(version, body)?;
                let index = self.commit(leading, |state| state.plan_delete_stream(&stream, now_ms)).await?;
                Ok((encoded(&Empty, version), index))
            }
            Op::AllocateProducer => {
                let request = AllocateProducer::decode(version, body)?;
                let (answer, index) = self.allocate(leading, request.producer_id).await?;
                Ok((encoded(&answer, version), index))
            }
            Op::JoinCluster => {
                let request = JoinCluster::decode(version, body)?;
                let answer = self.admit(leading, &request, now_ms).await?;
                Ok((encoded(&answer, version), answer.index))
            }
            Op::ChangeLog => {
                let request = ChangeLog::decode(version, body)?;
                let index = self.change_log(leading, &request).await?;
                Ok((encoded(&Empty, version), index))
            }
            Op::StreamletsRebuilt => {
                let request = StreamletsRebuilt::decode(version, body)?;
                let index = self.commit(leading, |state| state.plan_rebuilt(&request)).await?;
                Ok((encoded(&Empty, version), index))
            }
            Op::RebuildNeeds => {
                let said = RebuildNeeds::decode(version, body)?;
                let index = self.commit(leading, |state| state.plan_needs(&said)).await?;
                Ok((encoded(&Empty, version), index))
            }
            Op::UseEnds => {
                let said = UseEnds::decode(version, body)?;
                Ok((encoded(&Empty, version), self.use_ends(leading, &said).await?))
            }
            other => self.execute_move(leading, other, version, body).await,
        }
    }

    /// What has to do with moves and with nodes that come and go.
    async fn execute_move(
        &self,
        leading: &mut Leading,
        op: Op,
        version: u8,
        body: &[u8],
    ) -> Result<(Vec<u8>, u64), CoordinatorError> {
        let done = |index| Ok((encoded(&Empty, version), index));
        match op {
            Op::MoveStreamlet => {
                let MoveStreamlet { stream, streamlet, to } = MoveStreamlet::decode(version, body)?;
                let at = streamlet.0;
                let index = self.commit(leading, |state| state.plan_move(&stream, at, to)).await?;
                Ok((self.move_answer(&stream, at, version)?, index))
            }
            Op::RenewOwner => {
                let RenewOwner { stream, streamlet, node, epoch } = RenewOwner::decode(version, body)?;
                let at = streamlet.0;
                let index = self.commit(leading, |state| state.plan_renew(stream, at, (node, epoch))).await?;
                Ok((self.move_answer(&stream.into(), at, version)?, index))
            }
            Op::FinishMove => {
                let FinishMove { number, node, epoch, state: kept } = FinishMove::decode(version, body)?;
                done(self.commit(leading, |state| state.plan_finish_move(number, node, epoch, &kept)).await?)
            }
            Op::ChangeNode => {
                let asked = ChangeNode::decode(version, body)?;
                done(self.change_node(leading, &asked).await?)
            }
            Op::GroupsGone => {
                let gone = GroupsGone::decode(version, body)?;
                done(self.commit(leading, |state| state.plan_groups_gone(&gone)).await?)
            }
            Op::ReturnGroups => {
                let returned = ReturnGroups::decode(version, body)?;
                done(self.commit(leading, |state| state.plan_returned(&returned)).await?)
            }
            Op::GiveBack => {
                let given = GiveBack::decode(version, body)?;
                done(self.commit(leading, |state| state.plan_given_back(&given)).await?)
            }
            Op::CopiesMade => {
                let made = CopiesMade::decode(version, body)?;
                done(self.commit(leading, |state| state.plan_copies_made(&made)).await?)
            }
            Op::SetFloors => done(self.set_floors(leading, &SetFloors::decode(version, body)?).await?),
            Op::AcceptLoss => {
                let AcceptLoss { stream, streamlet } = AcceptLoss::decode(version, body)?;
                let plan = |state: &ClusterState| {
                    self.check_owner_has_stopped(state, &stream, streamlet.0)?;
                    state.plan_accept_loss(&stream, streamlet.0)
                };
                let index = self.commit(leading, plan).await?;
                tracing::warn!(?stream, streamlet = streamlet.0, "a person has given up what a lost node had");
                done(index)
            }
            Op::AcceptLogLoss => {
                let asked = AcceptLogLoss::decode(version, body)?;
                done(self.accept_log_loss(leading, &asked).await?)
            }
            Op::AcceptStreamletLoss => {
                let asked = AcceptStreamletLoss::decode(version, body)?;
                done(self.accept_streamlet_loss(leading, &asked).await?)
            }
            other => self.execute_question(leading, other, version, body).await,
        }
    }

    /// What is asked, and changes nothing.
    async fn execute_question(
        &self,
        leading: &mut Leading,
        op: Op,
        version: u8,
        body: &[u8],
    ) -> Result<(Vec<u8>, u64), CoordinatorError> {
        match op {
            Op::DescribeLostLogs => {
                let DescribeLostLogs { limit } = DescribeLostLogs::decode(version, body)?;
                let index = self.make_sure(leading).await?;
                let described = self.read(|state| state.lost_log_infos(page_items(limit)));
                Ok((encoded(&described, version), index))
            }
            Op::DescribeCopyChanges => {
                let DescribeCopyChanges { limit } = DescribeCopyChanges::decode(version, body)?;
                let index = self.make_sure(leading).await?;
                let described = self.read(|state| state.copy_changes(page_items(limit)));
                Ok((encoded(&described, version), index))
            }
            Op::PlanRebalance => {
                let PlanRebalance { limit } = PlanRebalance::decode(version, body)?;
                let index = self.make_sure(leading).await?;
                let moves = self.balance_plan(limit)?.moves.iter().map(move_info).collect();
                Ok((encoded(&MovePlan { moves }, version), index))
            }
            Op::PlanBalance => {
                let PlanBalance { limit } = PlanBalance::decode(version, body)?;
                let index = self.make_sure(leading).await?;
                Ok((encoded(&self.balance_plan(limit)?, version), index))
            }
            Op::DescribeMoves => {
                let DescribeMoves { limit } = DescribeMoves::decode(version, body)?;
                let index = self.make_sure(leading).await?;
                let limit = page_items(limit);
                let described = self.read(|state| MovesDescription {
                    moves: state.move_infos().take(limit).collect(),
                    under_way: state.moves().len() as u64,
                    nodes: state.holdings(),
                });
                Ok((encoded(&described, version), index))
            }
            other => Err(CoordinatorError::Refused(Refused(format!("{other} is no command")))),
        }
    }

    /// What evens out the brokers, by what they have said that they take.
    fn balance_plan(&self, limit: u32) -> Result<BalancePlan, CoordinatorError> {
        let now_us = self.clock.monotonic_us();
        self.loads.lock().leads(now_us);
        let rates = self.read(|state| self.heard_rates(state, now_us));
        let Some(rates) = rates else {
            return Err(CoordinatorError::NoLeader("the leader has not heard yet what the nodes take".into()));
        };
        let plan = self.read(|state| state.plan_balance(&rates, limit as usize, &|_, _| true));
        Ok(BalancePlan { by_itself: self.config.balance_after_ms.is_some(), ..plan })
    }

    async fn use_ends(&self, leading: &mut Leading, said: &UseEnds) -> Result<u64, CoordinatorError> {
        let plan = |state: &ClusterState| {
            self.look_before(state, said)?;
            state.plan_use_ends(said)
        };
        self.commit(leading, plan).await
    }

    /// Has those asked first that may know of lower ends: who asks tries again, or asks the backups again if an end was taken back.
    ///
    /// Part of what is planned: to a leader that has just become one and does not know all that was decided the ends may not be decided, so that there is nobody to be asked.
    fn look_before(&self, state: &ClusterState, said: &UseEnds) -> Result<(), CoordinatorError> {
        let now_us = self.clock.monotonic_us();
        match self.looks.lock().is_before(state, said, now_us) {
            false => Ok(()),
            true => Err(CoordinatorError::NoLeader(
                "backups that are back are asked first how far they have lost logs".into(),
            )),
        }
    }

    /// A node that is given up leaves the group first, with its vote. Afterwards would be too late: once nobody has the number another machine
    /// may answer under it, which knows nothing of what the one before had agreed to, and its vote would count as that of the one before.
    /// Who is taken out and then not given up, because this leader is lost, is let in again when it comes back.
    async fn change_node(&self, leading: &mut Leading, asked: &ChangeNode) -> Result<u64, CoordinatorError> {
        let ChangeNode { node, change } = *asked;
        if change == NodeChange::Remove {
            // Refused before anything changes.
            self.commit(leading, |state| state.plan_remove(node).map(|_| Vec::new())).await?;
            self.take_out(leading, BTreeSet::from([node.into()])).await?;
        }
        let index = self.commit(leading, |state| match change {
            NodeChange::Drain => state.plan_drain(node, true),
            NodeChange::Use => state.plan_drain(node, false),
            NodeChange::Remove => state.plan_remove(node),
        });
        let index = index.await?;
        tracing::info!(node, change = change.name(), "a person has changed what a node is there for");
        Ok(index)
    }

    /// A person gives up what nodes had of a log that are gone for good. Not before its node has stopped for certain, if it was there a moment ago.
    async fn accept_log_loss(&self, leading: &mut Leading, asked: &AcceptLogLoss) -> Result<u64, CoordinatorError> {
        let plan = |state: &ClusterState| {
            // What is refused for good is so at once.
            let planned = state.plan_accept_log_loss(asked)?;
            self.check_lost_has_stopped(state, asked.log.node)?;
            Ok(planned)
        };
        let index = self.commit(leading, plan).await?;
        tracing::warn!(log = %asked.log, gone = ?asked.gone, "a person has given up what is missing of a lost log");
        Ok(index)
    }

    /// A person has one streamlet go on without blocks of a log. Not before the log's node has stopped for certain, if it was there a moment ago.
    async fn accept_streamlet_loss(
        &self,
        leading: &mut Leading,
        asked: &AcceptStreamletLoss,
    ) -> Result<u64, CoordinatorError> {
        let plan = |state: &ClusterState| {
            // What is refused for good is so at once.
            let planned = state.plan_accept_streamlet_loss(asked)?;
            self.check_lost_has_stopped(state, asked.log.node)?;
            Ok(planned)
        };
        let index = self.commit(leading, plan).await?;
        let AcceptStreamletLoss { stream, streamlet, log, first, last, gone } = asked;
        tracing::warn!(%stream, %streamlet, %log, first, last, ?gone, "a person has a streamlet go on without blocks of a lost log");
        Ok(index)
    }

    async fn set_floors(&self, leading: &mut Leading, asked: &SetFloors) -> Result<u64, CoordinatorError> {
        self.commit(leading, |state| state.plan_floors(asked)).await
    }

    /// How it stands with the move of a streamlet.
    fn move_answer(&self, stream: &StreamRef, streamlet: u32, version: u8) -> Result<Vec<u8>, CoordinatorError> {
        let gone = || CoordinatorError::Refused(Refused("nobody owns it any more".into()));
        let info = self.read(|state| state.move_info(stream, streamlet)).ok_or_else(gone)?;
        Ok(encoded(&info, version))
    }

    /// A lost owner may be there still, cut off, and go on for a while: what it acknowledges of a stream with one copy is not in vain
    /// before somebody else owns the streamlet.
    ///
    /// Part of what is planned: to a leader that has just become one and does not know all that was decided a lost owner is one that takes part.
    fn check_owner_has_stopped(
        &self,
        state: &ClusterState,
        stream: &StreamRef,
        streamlet: u32,
    ) -> Result<(), CoordinatorError> {
        let Ok(info) = state.catalog.find(stream) else { return Ok(()) };
        match state.owner(info.id, streamlet) {
            Some(owner) if !state.is_live(owner.node, owner.epoch) => {
                self.check_has_stopped(state, (owner.node, owner.epoch))
            }
            _ => Ok(()),
        }
    }

    /// The same of a node, if it is lost.
    fn check_lost_has_stopped(&self, state: &ClusterState, node: NodeNumber) -> Result<(), CoordinatorError> {
        match state.node(node) {
            Some(known) if known.fenced => self.check_has_stopped(state, (node, known.epoch)),
            _ => Ok(()),
        }
    }

    fn check_has_stopped(&self, state: &ClusterState, incarnation: (NodeNumber, u32)) -> Result<(), CoordinatorError> {
        let since = self.fenced_us.lock().get(&incarnation).copied();
        let has_stopped = match since {
            Some(since) => self.clock.monotonic_us().saturating_sub(since) > STOPPED_AFTER_MS * 1000,
            // It has another incarnation, or is gone: that one has ended.
            None => state.node(incarnation.0).is_none_or(|node| node.epoch > incarnation.1),
        };
        if has_stopped {
            return Ok(());
        }
        Err(CoordinatorError::NoLeader(format!("node {} may not know yet that it is lost", incarnation.0)))
    }

    fn stream_answer(&self, stream: &StreamRef, version: u8, index: u64) -> Result<(Vec<u8>, u64), CoordinatorError> {
        let info = self.read(|state| state.catalog.find(stream).cloned())?;
        Ok((encoded(&info, version), index))
    }

    async fn allocate(
        &self,
        leading: &mut Leading,
        producer: Option<ProducerId>,
    ) -> Result<(AllocatedProducer, u64), CoordinatorError> {
        // It may be of an earlier moment, and never of a later one.
        let term = self.raft.metrics().borrow().current_term;
        self.allocate_in(term, leading, producer).await
    }

    /// The same, for a leader of this term.
    pub(crate) async fn allocate_in(
        &self,
        term: u64,
        leading: &mut Leading,
        producer: Option<ProducerId>,
    ) -> Result<(AllocatedProducer, u64), CoordinatorError> {
        // A leader skips what the one before it had left of its block.
        if leading.term != term {
            self.make_sure(leading).await?;
            let reserved = self.read(|state| state.catalog.producers_reserved());
            (leading.term, leading.next_producer, leading.reserved) = (term, reserved, reserved);
        }
        let catalog = |entry| vec![ClusterEntry::Catalog(entry)];
        if let Some(producer_id) = producer {
            let below = leading.next_producer;
            let looked = |state: &ClusterState| state.catalog.plan_raise(producer_id, below);
            // An id that another leader has given out since is one that nobody has, to a node that does not know yet that it leads no more. Whoever asks with its own would give up.
            if self.read(looked).is_err() {
                self.make_sure(leading).await?;
                leading.check_led_in(term)?;
            }
            if self.read(looked)?.is_some() {
                // What the state says later may be of a later leader.
                let raised_to = Mutex::new(ProducerEpoch(0));
                let plan = |state: &ClusterState| {
                    let entry = state.catalog.plan_raise(producer_id, below)?;
                    if let Some(Entry::ProducerEpochRaised { epoch, .. }) = &entry {
                        *raised_to.lock() = *epoch;
                    }
                    Ok(entry.map_or(Vec::new(), catalog))
                };
                let index = self.commit(leading, plan).await?;
                leading.check_wrote_in(term)?;
                let producer_epoch = raised_to.into_inner();
                return Ok((AllocatedProducer { producer_id, producer_epoch }, index));
            }
        }
        let mut index = 0;
        if leading.next_producer >= leading.reserved {
            let first = AtomicU64::new(0);
            let plan = |state: &ClusterState| {
                first.store(state.catalog.producers_reserved().0, Ordering::Relaxed);
                Ok(catalog(state.catalog.plan_reserve()))
            };
            index = self.commit(leading, plan).await?;
            leading.check_wrote_in(term)?;
            let first = first.load(Ordering::Relaxed);
            leading.next_producer = ProducerId(first);
            leading.reserved = ProducerId(first.saturating_add(PRODUCER_BLOCK));
        }
        let producer_id = leading.next_producer;
        leading.next_producer = ProducerId(producer_id.0 + 1);
        Ok((AllocatedProducer { producer_id, producer_epoch: ProducerEpoch(0) }, index))
    }

    /// Lets a node join: it is told of the log first, so that it learns of itself what it has become.
    async fn admit(
        &self,
        leading: &mut Leading,
        request: &JoinCluster,
        now_ms: i64,
    ) -> Result<JoinedCluster, CoordinatorError> {
        let join = Join::from(request);
        // Refused before anything changes.
        let refused = |state: &kera_coordinator::cluster::ClusterState| {
            state.check_disks(&join).map_err(CoordinatorError::Refused)
        };
        self.commit(leading, |state| refused(state).and_then(|()| state.plan_join(&join, now_ms)).map(|_| Vec::new()))
            .await?;
        *self.joining.lock() = Some((join.node, join.uuid));
        let (id, node) = (u64::from(join.node), BasicNode::new(&join.doors.cluster));
        if self.read(|state| state.node(join.node).is_none()) {
            // What is in the group under a number that nobody has is another machine: this one has nothing of the log, and begins as any that is new.
            self.take_out(leading, BTreeSet::from([id])).await?;
        }
        let known = self.shared.current.read().members.membership().get_node(&id).cloned();
        match known {
            Some(known) if known == node => {}
            Some(_) => {
                let change = ChangeMembers::SetNodes([(id, node)].into_iter().collect());
                self.in_time(self.raft.change_membership(change, true)).await.map(drop)?;
            }
            None => self.in_time(self.raft.add_learner(id, node, false)).await.map(drop)?,
        }
        let index = self.commit(leading, |state| state.plan_join(&join, now_ms)).await?;
        self.heard.lock().remove(&join.node);
        let epoch = self.read(|state| state.node(join.node).map_or(0, |node| node.epoch));
        tracing::info!(node = join.node, epoch, address = join.doors.cluster, "a node has joined the cluster");
        Ok(JoinedCluster { cluster: self.read(|state| state.cluster()), epoch, index })
    }

    async fn change_log(&self, leading: &mut Leading, request: &ChangeLog) -> Result<u64, CoordinatorError> {
        let ChangeLog { log, change, view, first_block, backups } = request.clone();
        let log = LogName::from(log);
        let asked = LogView { log, view, first: first_block, backups };
        self.commit(leading, |state| match change {
            LogChange::View => state.plan_view(&asked),
            LogChange::AddBackup => state.plan_add_backup(log, view, asked.backups.first().copied().unwrap_or(0)),
            LogChange::GiveUp => state.plan_give_up_old_log(log, view),
            LogChange::GiveUpView => state.plan_give_up_view(log, view),
        })
        .await
    }
}
