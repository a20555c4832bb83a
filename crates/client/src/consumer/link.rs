//! A consumer's connection and what is under way on it: subscriptions or polls, the request for groups, the question who owns what, a commit,
//! and heartbeats, which go on in a task of their own while the program is busy.
//!
//! Thrown away as a whole when the connection breaks; what must survive stands in the tracks.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use kera_format::{ApplicationId, StreamId};
use kera_protocol::{
    Body, CommitEntry, CommitResult, Credit, Heartbeat, LeasedGroups, Op, ReadChunks, ReadEntry, Status, Subscribe,
    Unsubscribe,
};
use kera_rpc::{Call, Connection, Frame, RpcError, Subscription};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::holders::Task;
use crate::placement::Placement;

/// How long a poll for data waits at the server at most.
const POLL_WAIT_MS: u32 = 30_000;
/// How long the answer to who owns what may take.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(5);
/// When the entries of a poll that was dropped count at the server no more: a while after it is answered there.
const POLL_GONE_AFTER: Duration = Duration::from_millis(POLL_WAIT_MS as u64 + 5_000);

/// A connection and what is under way on it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Connection,
    feeds: Vec<Feed>,
    groups: Option<Call>,
    /// Who owns what, as the node has heard.
    owners: Option<Task<Placement>>,
    commit: Option<(Call, Vec<(u64, CommitEntry)>)>,
    heartbeat: Option<HeartbeatTask>,
    /// Until when a poll that was dropped may wait at the server, and its entries count there.
    crowded_until: Option<Instant>,
}

/// Where data comes from.
#[derive(Debug)]
enum Feed {
    /// Pushed, within credit.
    Push { subscription: Subscription, tracks: Arc<[u64]>, credit_bytes: u64, owed: u64 },
    /// One request that waits.
    Poll { call: Call, tracks: Arc<[u64]> },
}

impl Feed {
    fn tracks(&self) -> &Arc<[u64]> {
        match self {
            Feed::Push { tracks, .. } | Feed::Poll { tracks, .. } => tracks,
        }
    }
}

/// What the link reports.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame with data for tracks, by index; and the subscription that it came by.
    Data { tracks: Arc<[u64]>, body: Bytes, subscription: Option<u64> },
    /// These tracks are not fed any more.
    Unfed { tracks: Arc<[u64]>, error: Option<RpcError> },
    /// Groups were leased.
    Groups(LeasedGroups),
    /// The node does not know yet whether it has any: it has taken streamlets over.
    GroupsLater,
    /// Who owns what, as the node has heard.
    Owners(Placement),
    /// The node does not say now who owns what.
    OwnersLater,
    /// A commit was answered.
    Committed { entries: Vec<(u64, CommitEntry)>, statuses: Vec<u16> },
    /// A commit failed as a whole.
    CommitFailed(RpcError),
    /// Leases to give back.
    Release(Vec<u64>),
    /// The membership has ended.
    MemberGone,
    /// The connection is of no more use.
    Broken(RpcError),
}

impl Link {
    pub(super) fn new(connection: Connection) -> Link {
        Link {
            connection,
            feeds: Vec::new(),
            groups: None,
            owners: None,
            commit: None,
            heartbeat: None,
            crowded_until: None,
        }
    }

    /// Has tracks fed within `credit`, of which the server gets `first` now; the rest is owed.
    pub(super) fn subscribe(
        &mut self,
        entries: Vec<ReadEntry>,
        tracks: Vec<u64>,
        credit: u64,
        first: u64,
    ) -> Result<(), RpcError> {
        let push_bytes_max = u32::try_from(credit / 2).unwrap_or(u32::MAX).max(1);
        let subscription = self.connection.subscribe(&Subscribe { credit_bytes: first, push_bytes_max, entries })?;
        let (tracks, owed) = (tracks.into(), credit - first);
        self.feeds.push(Feed::Push { subscription, tracks, credit_bytes: credit, owed });
        Ok(())
    }

    /// Asks for what comes next of tracks, and waits at the server for that; not past `until`.
    pub(super) fn poll(&mut self, entries: Vec<ReadEntry>, tracks: Vec<u64>, max_bytes: u32, until: Option<Duration>) {
        let until_ms = until.and_then(|until| u32::try_from(until.as_millis() + 1).ok()).unwrap_or(POLL_WAIT_MS);
        let max_wait_ms = until_ms.min(POLL_WAIT_MS);
        let call = self.connection.request(&ReadChunks { max_wait_ms, min_bytes: 1, max_bytes, entries });
        self.feeds.push(Feed::Poll { call, tracks: tracks.into() });
    }

    pub(super) fn feeds_count(&self) -> usize {
        self.feeds.len()
    }

    pub(super) fn is_polling(&self) -> bool {
        self.feeds.iter().any(|feed| matches!(feed, Feed::Poll { .. }))
    }

    /// Entries that it has at the server by what feeds it, those included that have ended since.
    pub(super) fn entries(&self) -> usize {
        self.feeds.iter().map(|feed| feed.tracks().len()).sum()
    }

    /// Whether the server may have room for what it has just refused when all else is dropped, or when a dropped poll has had its time.
    pub(super) fn is_crowded(&self) -> bool {
        !self.feeds.is_empty() || self.crowded_until.is_some_and(|until| Instant::now() < until)
    }

    /// Stops all feeding: what still comes is thrown away.
    pub(super) fn drop_feeds(&mut self) {
        if self.is_polling() {
            self.crowded_until = Some(Instant::now() + POLL_GONE_AFTER);
        }
        for feed in self.feeds.drain(..) {
            if let Feed::Push { subscription, .. } = &feed {
                self.connection.post(&Unsubscribe { subscription: subscription.correlation() });
            }
        }
    }

    /// Ends subscriptions none of whose tracks is read any more.
    pub(super) fn drop_idle_feeds(&mut self, is_read: impl Fn(u64) -> bool) {
        let connection = &self.connection;
        self.feeds.retain(|feed| match feed {
            Feed::Push { subscription, tracks, .. } if !tracks.iter().any(|track| is_read(*track)) => {
                connection.post(&Unsubscribe { subscription: subscription.correlation() });
                false
            }
            _ => true,
        });
    }

    /// Gives credit back, in pieces that are worth a frame.
    pub(super) fn give_credit(&mut self, id: u64, bytes: u64, all: bool) {
        for feed in &mut self.feeds {
            if let Feed::Push { subscription, credit_bytes, owed, .. } = feed
                && (subscription.correlation() == id || all)
            {
                *owed += if subscription.correlation() == id { bytes } else { 0 };
                if *owed > 0 && (all || *owed >= *credit_bytes / 4) {
                    let credit_bytes = std::mem::take(owed);
                    self.connection.post(&Credit { subscription: subscription.correlation(), credit_bytes });
                }
            }
        }
    }

    pub(super) fn ask_for_groups(&mut self, message: &kera_protocol::NextGroups) {
        self.groups = Some(self.connection.request(message));
    }

    pub(super) fn is_asking_for_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Asks who owns what of a stream, as the node has heard. `known`: what is known of that.
    pub(super) fn ask_for_owners(&mut self, stream: StreamId, known: &Arc<Placement>) {
        let (connection, known) = (self.connection.clone(), Arc::clone(known));
        let asking = async move { Placement::ask(&connection, stream, Some(&known), OWNERS_TIMEOUT).await };
        self.owners = Some(Task(tokio::spawn(asking)));
    }

    pub(super) fn is_asking_for_owners(&self) -> bool {
        self.owners.is_some()
    }

    pub(super) fn commit(&mut self, message: &kera_protocol::CommitOffsets, tracks: Vec<u64>) {
        let entries = tracks.into_iter().zip(message.entries.iter().copied()).collect();
        self.commit = Some((self.connection.request(message), entries));
    }

    pub(super) fn is_committing(&self) -> bool {
        self.commit.is_some()
    }

    pub(super) fn start_heartbeats(&mut self, application: ApplicationId, member: u64, every: Duration) {
        self.heartbeat = Some(HeartbeatTask::start(self.connection.clone(), Heartbeat { application, member }, every));
    }

    /// It is no member there any more; what is read goes on.
    pub(super) fn end_membership(&mut self) {
        (self.heartbeat, self.groups, self.owners, self.commit) = (None, None, None, None);
    }

    /// The next thing that happens. Loses nothing when it is not polled to the end.
    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(task) = &mut self.heartbeat
            && let Poll::Ready(Some(event)) = task.events.poll_recv(context)
        {
            return Poll::Ready(event);
        }
        if let Some(call) = &mut self.groups
            && let Poll::Ready(answer) = poll_call::<LeasedGroups>(call, context)
        {
            self.groups = None;
            return Poll::Ready(match answer {
                Err(error) if error.status() == Some(Status::NotReady) => Event::GroupsLater,
                answer => answer.map_or_else(broken, Event::Groups),
            });
        }
        if let Some(task) = &mut self.owners
            && let Poll::Ready(found) = task.poll(context)
        {
            self.owners = None;
            return Poll::Ready(match found {
                Ok(found) => Event::Owners(found),
                Err(RpcError::Timeout { .. }) => Event::OwnersLater,
                Err(error) if error.status().is_some_and(Status::retryable) => Event::OwnersLater,
                Err(error) => Event::Broken(error),
            });
        }
        if let Some((call, _)) = &mut self.commit
            && let Poll::Ready(answer) = poll_call::<CommitResult>(call, context)
        {
            let (_, entries) = self.commit.take().unwrap_or_else(|| unreachable!("it was polled just now"));
            return Poll::Ready(match answer {
                Ok(result) => Event::Committed { entries, statuses: result.statuses },
                Err(e) => match broken(e) {
                    Event::Broken(e) if e.status().is_some() => Event::CommitFailed(e),
                    event => event,
                },
            });
        }
        self.poll_feeds(context)
    }

    fn poll_feeds(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        for at in 0..self.feeds.len() {
            let (answer, subscription) = match &mut self.feeds[at] {
                Feed::Push { subscription, .. } => (subscription.poll_next(context), Some(subscription.correlation())),
                Feed::Poll { call, .. } => (std::pin::Pin::new(call).poll(context), None),
            };
            let Poll::Ready(answer) = answer else { continue };
            // The first one had its turn: others are looked at first next time.
            let tracks = Arc::clone(self.feeds[at].tracks());
            return Poll::Ready(match answer {
                Ok(frame) if is_data(&frame) => {
                    if subscription.is_none() {
                        self.feeds.swap_remove(at);
                    } else {
                        let turn = (at + 1) % self.feeds.len();
                        self.feeds.rotate_left(turn);
                    }
                    Event::Data { tracks, body: frame.body, subscription }
                }
                // The answer that says that the subscription stands.
                Ok(_) => return self.poll_feeds(context),
                Err(error @ RpcError::Status { .. }) => {
                    self.feeds.swap_remove(at);
                    Event::Unfed { tracks, error: Some(error) }
                }
                Err(error) => Event::Broken(error),
            });
        }
        Poll::Pending
    }
}

fn is_data(frame: &Frame) -> bool {
    frame.header.op == Op::ReadChunks as u16 || frame.header.flags & kera_protocol::frame::FLAG_PUSH != 0
}

fn poll_call<B: Body>(call: &mut Call, context: &mut Context<'_>) -> Poll<Result<B, RpcError>> {
    std::pin::Pin::new(call).poll(context).map(|answer| {
        let frame = answer?;
        B::decode(frame.header.version, &frame.body)
            .map_err(|source| RpcError::Protocol { address: String::new(), source })
    })
}

/// What the failure of a call means.
fn broken(error: RpcError) -> Event {
    match error.status() {
        Some(Status::UnknownMember | Status::UnknownApplication) => Event::MemberGone,
        _ => Event::Broken(error),
    }
}

/// Keeps a membership alive, whatever the program is doing.
#[derive(Debug)]
struct HeartbeatTask {
    /// One that has not been looked at yet, at most.
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Drop for HeartbeatTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HeartbeatTask {
    fn start(connection: Connection, heartbeat: Heartbeat, every: Duration) -> HeartbeatTask {
        let (sender, events) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            let every = every.max(Duration::from_millis(10));
            loop {
                tokio::time::sleep(every).await;
                // An answer that takes longer than several heartbeats means a dead server, or a lost lease.
                match connection.call_within(&heartbeat, every * 4).await {
                    Ok(answer) if answer.release.is_empty() => {}
                    // What there is no room for comes again: each answer names all leases that are asked back.
                    Ok(answer) => drop(sender.try_send(Event::Release(answer.release))),
                    Err(e) => return drop(sender.send(broken(e)).await),
                }
            }
        });
        HeartbeatTask { events, task }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use kera_env::SystemClock;
    use kera_protocol::{ErrorBody, FrameHeader, HeartbeatResponse};
    use kera_rpc::{ClientConfig, Flow, Outbox, Peer, Server, ServerConfig, Session, SessionWaker};

    use super::*;
    use crate::testing::hello;

    /// So many heartbeats are answered, each with a lease that is asked back; then the member is not known any more.
    const ANSWERED: u64 = 5;

    struct Asking {
        heartbeats: Arc<AtomicU64>,
    }

    impl Session for Asking {
        fn on_frame(&mut self, header: &FrameHeader, _: &[u8], out: &mut Outbox) -> Flow {
            match self.heartbeats.fetch_add(1, Ordering::SeqCst) {
                0..ANSWERED => out.respond(header, &HeartbeatResponse { release: vec![7], leases: 1 }),
                _ => out.error(header, Status::UnknownMember, &ErrorBody::new("it is forgotten")),
            }
            Flow::Done
        }

        fn on_wake(&mut self, _: &mut Outbox) {}
    }

    #[test]
    fn what_heartbeats_tell_does_not_pile_up_while_the_program_is_busy() {
        let config = ServerConfig::new(([127, 0, 0, 1], 0).into(), hello(), Arc::new(SystemClock::new()));
        let heartbeats = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&heartbeats);
        let factory = Arc::new(move |_: Peer, _: SessionWaker| {
            Box::new(Asking { heartbeats: Arc::clone(&counted) }) as Box<dyn Session>
        });
        let server = Server::start(config, factory).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let address = server.local_addr().to_string();
            let connection = Connection::connect(&address, ClientConfig::default()).await.unwrap();
            let heartbeat = Heartbeat { application: ApplicationId(1), member: 2 };
            // Four times as long an answer may take: machines stand still for seconds.
            let mut task = HeartbeatTask::start(connection, heartbeat, Duration::from_millis(1_500));
            while heartbeats.load(Ordering::SeqCst) <= ANSWERED {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(matches!(task.events.recv().await, Some(Event::Release(leases)) if leases == [7]));
            assert!(matches!(task.events.recv().await, Some(Event::MemberGone)), "nothing else stands in front of it");
            assert!(task.events.recv().await.is_none());
        });
    }
}
