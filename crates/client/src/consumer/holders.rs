//! A consumer's links: one to each node that has what is read, made in the background, looked after while it is quiet, and
//! given up alone when its node does not answer. In a cluster, who has what is asked for again with every failure, as often as the back-off
//! allows; a node that says who the next owner is is believed at once. A node that owns everything is [`HOME`], and who owns what is no
//! question.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use kera_format::{GroupId, LaneId, StreamId, StreamletId};
use kera_protocol::{
    Body, FetchOffsets, FindOwners, JoinApplication, JoinedApplication, LookupResult, Op, Owners, Status, StreamInfo,
};
use kera_rpc::{Call, Connection, RpcError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Consumer;
use super::link::{Event, Link};
use super::membership::join;
use super::track::Track;
use crate::backoff::Backoff;
use crate::client::ended;
use crate::placement::{HOME, NOBODY, Placement};
use crate::{Client, ClientError};

/// A node that has said nothing for so long is asked whether it is there: a machine that is gone closes no connection.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// A node that takes longer to say so may be lost, and others may know who has what it had.
const DOUBT: Duration = Duration::from_millis(500);
/// A node that does not say within this that it is there is given up.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// A probe that is looked at so long after its time was not answered because nobody looked: it gets its time once more.
const LATE: Duration = Duration::from_millis(500);
/// After so long without a question for owners the next one is not held back by those before.
const BACKOFF_FORGOTTEN: Duration = Duration::from_secs(5);
/// For so long nodes of the cluster have to say that there is no such stream before they are believed: a consumer that has ended does not go on.
const UNKNOWN_MAX: Duration = Duration::from_secs(60);
/// That a node refuses a member which reads on elsewhere, or its commits, or does not give what comes next, is said again after so long.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// The ordinals behind the last records that were written, of lanes.
pub(super) type Ends = HashMap<(StreamletId, LaneId), u64>;

/// The nodes that a consumer reads from.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub(super) placement: Arc<Placement>,
    /// Owner epochs, and owners, of which earlier owners have told and `placement` does not know yet.
    told: HashMap<StreamletId, (u32, u32)>,
    linked: Vec<Holder>,
    /// Nodes that are being connected to, or could not be reached.
    away: HashMap<u32, Away>,
    /// The owners are to be asked for, not before this.
    ask_at: Option<Instant>,
    asked_at: Option<Instant>,
    asking: Option<Task<Arc<Placement>>>,
    backoff: Backoff,
    /// Since when nobody who was asked knows the stream.
    unknown_since: Option<Instant>,
    /// Whether the stream has grown is being asked; `None` if that could not be found out.
    pub(super) growing: Option<Task<Option<StreamInfo>>>,
    /// Where lanes end by now is being asked.
    pub(super) ending: Option<Task<Ends>>,
    /// When it was last said that a node refuses a member which reads on elsewhere.
    refused_at: Option<Instant>,
    /// New places are being found for tracks, by their numbers.
    pub(super) finding: HashMap<u64, Finding>,
}

/// A place is being found for a track.
#[derive(Debug)]
pub(super) struct Finding {
    /// The ordinal that it had come to.
    pub(super) expected: u64,
    pub(super) task: Task<Result<LookupResult, ClientError>>,
}

#[derive(Debug)]
struct Holder {
    node: u32,
    link: Link,
    heard_at: Instant,
    /// It was asked whether it is there, and has until then, or longer if it is heard of meanwhile.
    probe: Option<(Call, Instant)>,
    /// When it was asked so last, or linked.
    asked_at: Instant,
}

#[derive(Debug)]
struct Away {
    /// There was a connection, and it broke.
    lost: bool,
    not_before: Instant,
    backoff: Backoff,
    connecting: Option<Task<Reached>>,
    /// When that was begun last.
    since: Instant,
}

impl Away {
    fn new(now: Instant) -> Away {
        Away { lost: false, not_before: now, backoff: Backoff::default(), connecting: None, since: now }
    }
}

/// How a member joins at a node.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) message: JoinApplication,
    /// Only if the node knows the application; it owns this streamlet.
    pub(super) if_known_of: Option<StreamletId>,
}

/// A connection, and the membership if the node was asked for one.
pub(super) type Reached = (Connection, Option<JoinedApplication>);

/// Work in the background that ends with its owner.
#[derive(Debug)]
pub(super) struct Task<T>(pub(super) JoinHandle<Result<T, RpcError>>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Task<T> {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, RpcError>> {
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or_else(|error| Err(ended(&error))))
    }
}

/// What a consumer wakes up for.
#[derive(Debug)]
pub(super) enum Happening {
    /// Something on the link to a node.
    Link(u32, Event),
    /// A node was connected to, or could not be.
    Reached(u32, Result<Reached, RpcError>),
    /// Who has what.
    Owners(Result<Arc<Placement>, RpcError>),
    /// A node knows of later owners: they are asked for, not before this.
    Doubt(Instant),
    /// What the stream is by now, if that could be found out.
    Stream(Option<StreamInfo>),
    /// Where lanes end by now; nothing, if not all could be asked.
    Ends(Ends),
    /// Where a track goes on that had come to an ordinal.
    Found(u64, u64, Result<LookupResult, ClientError>),
}

impl Holder {
    /// When it is to be asked whether it is there.
    fn ask_at(&self, refresh: Option<Duration>) -> Instant {
        let quiet = self.heard_at + QUIET_MAX;
        refresh.map_or(quiet, |every| quiet.min(self.asked_at + every))
    }
}

impl Holders {
    /// None yet.
    pub(super) fn new() -> Holders {
        Holders { backoff: Backoff::for_owners(), ..Holders::default() }
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.linked.iter().map(|holder| &holder.link)
    }

    /// The links to some nodes.
    pub(super) fn links_of(&mut self, which: impl Fn(u32) -> bool) -> impl Iterator<Item = &mut Link> {
        self.linked.iter_mut().filter(move |holder| which(holder.node)).map(|holder| &mut holder.link)
    }

    /// The link to a node.
    pub(super) fn link(&mut self, node: u32) -> Option<&mut Link> {
        self.linked.iter_mut().find(|holder| holder.node == node).map(|holder| &mut holder.link)
    }

    /// Gives all links up.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Link> {
        self.away.clear();
        self.linked.drain(..).map(|holder| holder.link)
    }

    /// A node that is being connected to is not any more. It is connected to again if it is needed.
    pub(super) fn stop_reaching(&mut self, node: u32) {
        if let Some(away) = self.away.get_mut(&node) {
            away.connecting = None;
        }
    }

    fn remove(&mut self, node: u32) -> Option<Link> {
        let at = self.linked.iter().position(|holder| holder.node == node)?;
        Some(self.linked.swap_remove(at).link)
    }

    /// The node that serves a group of a streamlet, as far as is known.
    pub(super) fn holder(&self, streamlet: StreamletId, group: GroupId) -> u32 {
        match self.told.get(&streamlet) {
            Some((epoch, node)) if group.epoch() >= *epoch => *node,
            _ => self.placement.holder(streamlet, group),
        }
    }

    /// The owner of a streamlet and its owner epoch, as far as is known.
    pub(super) fn owner(&self, streamlet: StreamletId) -> (u32, u32) {
        match self.told.get(&streamlet) {
            Some((epoch, node)) => (*node, *epoch),
            None => self.placement.owner(streamlet.0),
        }
    }

    /// All nodes that own something, as far as is known.
    pub(super) fn owners(&self) -> Vec<u32> {
        let told = self.told.values().map(|(_, node)| *node);
        self.placement.owners().into_iter().chain(told).collect()
    }

    /// What a node said with `NotOwner`: the owner in the upper half, and its owner epoch. What is no news, and nodes of which nobody
    /// knows where they are, are passed over.
    fn take_hint(&mut self, streamlet: StreamletId, hint: u64) {
        let (node, epoch) = ((hint >> 32) as u32, hint as u32);
        let known = self.told.get(&streamlet).map_or(0, |(epoch, _)| *epoch);
        if epoch > known.max(self.placement.owner(streamlet.0).1) && self.placement.address(node).is_some() {
            self.told.insert(streamlet, (epoch, node));
        }
    }

    /// A node does not have what comes next of a streamlet, from `group` on. When to ask for it again: at once if another node is known to
    /// have it.
    pub(super) fn sent_on(
        &mut self,
        node: u32,
        (streamlet, group): (StreamletId, GroupId),
        hint: u64,
        now: Instant,
    ) -> Instant {
        self.take_hint(streamlet, hint);
        let holder = self.holder(streamlet, group);
        if holder != node && holder == self.placement.holder(streamlet, group) {
            return now;
        }
        // What is known of the owners is too old.
        let later = self.want_owners(now);
        if holder == node { later } else { now }
    }

    /// Who has what could not be found out. Whether that is since there is no such stream any more.
    fn is_gone(&mut self, error: &RpcError, now: Instant) -> bool {
        let is_unknown = error.status() == Some(Status::UnknownStream);
        is_unknown && now.saturating_duration_since(*self.unknown_since.get_or_insert(now)) > UNKNOWN_MAX
    }

    /// Who has what, as a node said that was asked.
    fn take_placement(&mut self, placement: Arc<Placement>) {
        self.unknown_since = None;
        if placement.version() > self.placement.version() {
            self.backoff.reset();
        }
        self.placement = placement;
        let placement = &self.placement;
        self.told.retain(|streamlet, (epoch, node)| {
            placement.owner(streamlet.0).1 < *epoch && placement.address(*node).is_some()
        });
    }

    /// The owners may have changed. When to look again.
    pub(super) fn want_owners(&mut self, now: Instant) -> Instant {
        if let Some(at) = self.ask_at {
            return at;
        }
        if self.asked_at.is_none_or(|at| at + BACKOFF_FORGOTTEN < now) {
            self.backoff.reset();
        }
        let at = now + self.backoff.next(None);
        if self.asking.is_none() {
            self.ask_at = Some(at);
        }
        at
    }

    /// Whether the owners are being asked for, or are to be.
    pub(super) fn are_wanted(&self) -> bool {
        self.ask_at.is_some() || self.asking.is_some()
    }

    /// Whether a node that is being connected to lets itself be waited for for so long that others are asked as well.
    fn is_doubted(&self, node: u32, now: Instant) -> bool {
        self.away.get(&node).is_some_and(|away| away.connecting.is_some() && away.since + DOUBT <= now)
    }

    /// Whether a node could not be reached, or its connection broke, and nothing was heard of it since.
    fn is_down(&self, node: u32) -> bool {
        self.away.get(&node).is_some_and(|away| !away.backoff.is_first())
    }

    /// When there is something to look after, at the latest.
    pub(super) fn next_timer(&self, refresh: Option<Duration>, now: Instant) -> Option<Instant> {
        let quiet = self.linked.iter().map(|holder| match &holder.probe {
            Some((_, until)) => Some(doubted_at(*until)).filter(|at| *at > now).unwrap_or(*until),
            None => holder.ask_at(refresh),
        });
        quiet.chain(self.ask_at).min().map(|at| at.max(now))
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Happening> {
        let mut newer = false;
        // In front of what else comes by the links, which may never end.
        for holder in &mut self.linked {
            if let Some((call, _)) = &mut holder.probe
                && let Poll::Ready(answer) = Pin::new(call).poll(context)
            {
                (holder.heard_at, holder.probe) = (Instant::now(), None);
                newer |= match answer {
                    Ok(frame) => Owners::decode(frame.header.version, &frame.body)
                        .is_ok_and(|found| found.version > self.placement.version()),
                    // It is there, and there is nobody else to ask.
                    Err(RpcError::Status { .. }) if holder.node == HOME => false,
                    Err(error) => return Poll::Ready(Happening::Link(holder.node, Event::Broken(error))),
                };
            }
        }
        if newer {
            let at = self.want_owners(Instant::now());
            return Poll::Ready(Happening::Doubt(at));
        }
        for holder in &mut self.linked {
            if let Poll::Ready(event) = holder.link.poll_event(context) {
                holder.heard_at = Instant::now();
                if let Some((_, until)) = &mut holder.probe {
                    *until = holder.heard_at + PROBE_TIMEOUT;
                }
                return Poll::Ready(Happening::Link(holder.node, event));
            }
        }
        for (node, away) in &mut self.away {
            if let Some(task) = &mut away.connecting
                && let Poll::Ready(reached) = task.poll(context)
            {
                away.connecting = None;
                return Poll::Ready(Happening::Reached(*node, reached));
            }
        }
        if let Some(task) = &mut self.asking
            && let Poll::Ready(found) = task.poll(context)
        {
            self.asking = None;
            return Poll::Ready(Happening::Owners(found));
        }
        if let Some(task) = &mut self.growing
            && let Poll::Ready(found) = task.poll(context)
        {
            self.growing = None;
            return Poll::Ready(Happening::Stream(found.ok().flatten()));
        }
        if let Some(task) = &mut self.ending
            && let Poll::Ready(found) = task.poll(context)
        {
            self.ending = None;
            return Poll::Ready(Happening::Ends(found.unwrap_or_default()));
        }
        let found = self.finding.iter_mut().find_map(|(id, finding)| match finding.task.poll(context) {
            Poll::Ready(found) => Some((*id, finding.expected, found)),
            Poll::Pending => None,
        });
        if let Some((id, expected, found)) = found {
            self.finding.remove(&id);
            return Poll::Ready(Happening::Found(id, expected, found.unwrap_or_else(|error| Err(error.into()))));
        }
        Poll::Pending
    }

    /// Asks quiet nodes whether they are there, and with `refresh` every node so often, however much it has to tell. One that has not answered
    /// in time, if there is one.
    ///
    /// The answer also tells of later owners than are known. A member has no other way to hear of one at which it is not yet: none of the
    /// nodes that it is at has anything of what that owner has, and while all of them are busy none is quiet.
    fn probe(&mut self, stream: StreamId, refresh: Option<Duration>, now: Instant) -> Option<u32> {
        let is_in_doubt = |holder: &Holder| holder.probe.as_ref().is_some_and(|(_, until)| doubted_at(*until) <= now);
        if !self.placement.is_alone() && self.asking.is_none() && self.linked.iter().any(is_in_doubt) {
            self.want_owners(now);
        }
        for holder in &mut self.linked {
            let ask_at = holder.ask_at(refresh);
            match &mut holder.probe {
                Some((_, until)) if *until + LATE < now => *until = now + PROBE_TIMEOUT,
                Some((_, until)) if *until <= now => return Some(holder.node),
                Some(_) => {}
                None if ask_at <= now => {
                    holder.asked_at = now;
                    if holder.link.connection.hello().common_version(Op::FindOwners).is_none() {
                        // A node of an earlier version cannot be asked.
                        holder.heard_at = now;
                        continue;
                    }
                    let asked = FindOwners { streams: vec![stream.into()], after: None, limit: 1 };
                    holder.probe = Some((holder.link.connection.request(&asked), now + PROBE_TIMEOUT));
                }
                None => {}
            }
        }
        None
    }
}

/// Connects to a node, and joins there if that is wanted. [`Status::UnknownApplication`]: it was to be joined only if it knows the application.
pub(super) async fn reach(
    client: Client,
    placement: Arc<Placement>,
    node: u32,
    joining: Option<Joining>,
) -> Result<Reached, RpcError> {
    let connection = client.dedicated_to(&placement, node).await?;
    let Some(Joining { message, if_known_of }) = joining else { return Ok((connection, None)) };
    if let Some(streamlet) = if_known_of {
        let (application, stream) = (message.application.clone(), message.stream);
        connection.call(&FetchOffsets { application, stream, streamlets: vec![streamlet] }).await?;
    }
    let joined = join(&connection, message).await?;
    Ok((connection, Some(joined)))
}

/// Whether something is to be said now that may go on for long: it is noted as said then.
pub(super) fn is_said_again(said_at: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = said_at.is_none_or(|at| at + REFUSED_AGAIN <= now);
    if is_due {
        *said_at = Some(now);
    }
    is_due
}

/// When a node that is asked whether it is there, and has `until` then to say so, is doubted.
fn doubted_at(until: Instant) -> Instant {
    until - PROBE_TIMEOUT + DOUBT
}

impl Consumer {
    pub(super) fn happened(&mut self, happening: Happening) {
        let now = Instant::now();
        match happening {
            Happening::Link(node, event) => self.handle(node, event),
            Happening::Reached(node, Ok(reached)) => self.reached(node, reached),
            Happening::Reached(node, Err(error)) => {
                tracing::debug!(stream = self.stream.name, node, %error, "a node cannot be reached");
                match self.is_final(node, &error) {
                    true => self.failed = Some(error.into()),
                    // What is wrong is that the owner that makes applications is away.
                    false if error.status() == Some(Status::UnknownApplication) => {}
                    false => {
                        self.say_if_refused(node, &error, now);
                        self.trouble = Some(error);
                    }
                }
                self.back_off_from(node, now);
                if node != HOME {
                    self.holders.want_owners(now);
                }
                self.feed_at = now;
            }
            Happening::Owners(Ok(placement)) => self.take_owners(placement, now),
            // Where all owners are lost nobody is connected to who would say that it was deleted.
            Happening::Owners(Err(error)) if self.holders.is_gone(&error, now) => self.failed = Some(error.into()),
            Happening::Owners(Err(_)) => {
                self.holders.want_owners(now);
            }
            Happening::Doubt(at) => self.feed_at = self.feed_at.min(at),
            Happening::Stream(info) => {
                if let Some(info) = info {
                    self.follow_growth(info);
                }
            }
            Happening::Ends(ends) => self.take_ends(&ends),
            Happening::Found(id, expected, found) => self.found_place(id, expected, found),
        }
    }

    /// Whether there is no sense in trying to reach a node again. Of a cluster's nodes others may know more than one that says something odd.
    ///
    /// One that was to be joined if it knows the application does not: it is joined when the owner of the first streamlet has taken the member. And
    /// that one refuses a new application for which it has no room; it may have been away when others had the application already, and who is a member
    /// there reads on, until there is room. But one who is to stop at the end would wait for that. And who is a member at no other node has nothing to
    /// read on: its membership at the one that refuses it is over, though it has not heard so, and one that is alone is the first owner as well.
    fn is_final(&self, node: u32, error: &RpcError) -> bool {
        let goes_on = match error.status() {
            Some(Status::UnknownApplication) => true,
            Some(Status::LimitReached) => {
                let is_first = self.holders.placement.first_owner() == node;
                let is_elsewhere = node != HOME && self.memberships.keys().any(|of| *of != node);
                is_first && is_elsewhere && !self.settings.until_end
            }
            _ => false,
        };
        !goes_on && !error.retryable() && (node == HOME || error.status().is_some())
    }

    /// A member reads on without a node that has no room for it: nobody would hear of what it does not read, so that is said now and then.
    fn say_if_refused(&mut self, node: u32, error: &RpcError, now: Instant) {
        if error.status() == Some(Status::LimitReached) && is_said_again(&mut self.holders.refused_at, now) {
            let stream = self.stream.name.as_str();
            tracing::warn!(stream, node, %error, "a node refuses this member, which reads what others have and tries again");
        }
    }

    /// A node was connected to.
    pub(super) fn reached(&mut self, node: u32, (connection, joined): Reached) {
        let lost = self.holders.away.get_mut(&node).is_some_and(|away| std::mem::take(&mut away.lost));
        self.stats.reconnects += u64::from(lost);
        let mut link = Link::new(connection);
        let now = Instant::now();
        if let Some(joined) = joined {
            if self.memberships.is_empty() {
                // The others take it from now on.
                self.holders.away.values_mut().for_each(|away| away.not_before = now);
            }
            self.take_membership(node, &mut link, &joined);
        }
        self.holders.linked.push(Holder { node, link, heard_at: now, probe: None, asked_at: now });
        self.feed_at = now;
    }

    /// How often nodes are asked for later owners, if they are asked however busy they are: by a member, which has to be at all owners.
    pub(super) fn refreshes_owners(&self) -> Option<Duration> {
        self.settings.application.as_ref().map(|_| self.settings.refresh)
    }

    /// Asks who has what if that is due, and whether quiet nodes are still there.
    pub(super) fn look_after_holders(&mut self) {
        let now = Instant::now();
        let refresh = self.refreshes_owners();
        while let Some(node) = self.holders.probe(self.stream.id, refresh, now) {
            tracing::debug!(stream = self.stream.name, node, "a node does not answer");
            self.unlink_holder(node);
        }
        let holders = &mut self.holders;
        if holders.asking.is_none() && holders.ask_at.is_some_and(|at| at <= now) {
            (holders.ask_at, holders.asked_at) = (None, Some(now));
            let (seen, stream) = (Arc::clone(&holders.placement), self.stream.id);
            let client = self.client().clone();
            let asking = tokio::spawn(async move { client.refresh(stream, &seen).await });
            self.holders.asking = Some(Task(asking));
        }
    }

    /// Connects to a node in the background. When to look again, unless something happens when it is done.
    pub(super) fn reach(&mut self, node: u32, now: Instant) -> Option<Instant> {
        if node == NOBODY {
            return Some(self.holders.want_owners(now));
        }
        let client = self.client().clone();
        let placement = Arc::clone(&self.holders.placement);
        let is_member = self.memberships.contains_key(&node) || placement.owners().contains(&node);
        let joining = if is_member { self.joining(node) } else { None };
        let is_newcomer = joining.is_some() && self.memberships.is_empty();
        if node != HOME && self.holders.is_down(node) && self.holders.asking.is_none() {
            // Tries to reach it get rare, or take long, and its successor is to be heard of soon.
            self.holders.want_owners(now);
        }
        let away = self.holders.away.entry(node).or_insert_with(|| Away::new(now));
        if away.connecting.is_none() {
            if away.not_before > now {
                return Some(away.not_before);
            }
            away.since = now;
            away.connecting = Some(Task(tokio::spawn(reach(client, placement, node, joining))));
        }
        // Then others are asked as well.
        Some(away.since + DOUBT).filter(|at| is_newcomer && *at > now)
    }

    /// The node that is to feed a track, if it has to be fed. Of one that has come to where it is to stop nothing more is delivered.
    pub(super) fn to_feed(&self, track: &Track) -> Option<u32> {
        let finished = track.ended || track.at_target() || track.lease.is_some_and(|lease| lease.releasing);
        let wanted = !(track.fed || track.astray || finished || track.rests(Instant::now()).is_some());
        wanted.then(|| self.holders.holder(track.streamlet, track.received.group))
    }

    /// Gives the link to a node up. What it fed goes on from where it is, there or elsewhere.
    pub(super) fn unlink_holder(&mut self, node: u32) {
        let Some(link) = self.holders.remove(node) else { return };
        link.connection.close();
        self.may_have_more(|of| of == node);
        let now = Instant::now();
        self.unfeed_by(|of| of == node);
        for piece in &mut self.queue {
            // What is in line came by subscriptions that are gone.
            piece.credit = piece.credit.filter(|(of, ..)| *of != node);
        }
        self.back_off_from(node, now);
        if let Some(away) = self.holders.away.get_mut(&node) {
            away.lost = true;
        }
        if node != HOME {
            self.holders.want_owners(now);
        }
        self.feed_at = now;
    }

    fn back_off_from(&mut self, node: u32, now: Instant) {
        let away = self.holders.away.entry(node).or_insert_with(|| Away::new(now));
        away.not_before = now + away.backoff.next(None);
    }

    /// Data came from a node: it is there.
    pub(super) fn heard_from(&mut self, node: u32) {
        if let Some(away) = self.holders.away.get_mut(&node) {
            away.backoff.reset();
        }
    }

    /// Owners at which the consumer is no member yet, and is to become one.
    ///
    /// Who is a member nowhere may be the first of a new application, and whether there is room for another one is for the owner of the first streamlet to
    /// say: the others make it for whoever asks, and would keep one that is refused there. So that owner is asked first, and the others when it
    /// has taken the member. If it is away they are asked as well, and take who belongs to an application that they [know](Joining::if_known_of): its
    /// members go on without that owner.
    pub(super) fn owners_to_join(&mut self, now: Instant) -> Vec<u32> {
        let mut owners = self.holders.placement.owners();
        if self.memberships.is_empty() {
            let first = self.holders.placement.first_owner();
            if first == NOBODY {
                // Nobody else has it looked for while nobody is joined.
                owners.push(first);
            } else if !self.holders.is_down(first) && !self.holders.is_doubted(first, now) {
                owners.retain(|node| *node == first);
            }
        }
        owners.retain(|node| !self.memberships.contains_key(node) || self.holders.link(*node).is_none());
        for node in &owners {
            // It was connected to only to read what it has of others' streamlets.
            if let Some(link) = self.holders.remove(*node) {
                link.connection.close();
                self.tracks.values_mut().filter(|track| track.node == *node).for_each(|track| track.fed = false);
                self.queue.iter_mut().for_each(|piece| piece.credit = piece.credit.filter(|(of, ..)| of != node));
            }
        }
        owners
    }

    fn take_owners(&mut self, placement: Arc<Placement>, now: Instant) {
        self.holders.take_placement(placement);
        self.feed_at = now;
        if !self.is_alone() && (self.holders.link(HOME).is_some() || self.holders.away.contains_key(&HOME)) {
            // The node has joined a cluster since.
            self.unlink();
        }
        self.follow_owners();
        // A node that is read from may have lost what it had to another. The other tracks that it feeds go on at once.
        let holders = &self.holders;
        let stray = |track: &&Track| track.fed && holders.holder(track.streamlet, track.received.group) != track.node;
        let mut nodes: Vec<u32> = self.tracks.values().filter(stray).map(|track| track.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            self.unlink_holder(node);
            if let Some(away) = self.holders.away.get_mut(&node) {
                (away.not_before, away.lost) = (now, false);
            }
        }
        let placement = &self.holders.placement;
        self.holders.away.retain(|node, _| *node == HOME || placement.address(*node).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::{OlderGroups, Owner};

    const X: StreamletId = StreamletId(0);

    fn holders() -> Holders {
        let owners = vec![Owner { node: 1, epoch: 4, older: vec![] }];
        Holders { placement: Arc::new(Placement::of_three(7, owners)), ..Holders::default() }
    }

    fn group(epoch: u32) -> GroupId {
        GroupId::new(epoch, 0)
    }

    #[test]
    fn what_the_owner_before_says_holds_until_the_owners_are_known_to_be_later() {
        let (mut holders, now) = (holders(), Instant::now());
        assert_eq!(holders.sent_on(1, (X, group(5)), 2 << 32 | 5, now), now);
        assert_eq!([3, 4, 5, 6].map(|epoch| holders.holder(X, group(epoch))), [1, 1, 2, 2]);
        assert!(holders.ask_at.is_some(), "all owners are asked for in any case");
        assert_eq!(holders.sent_on(2, (X, group(6)), 3 << 32 | 6, now), now);
        assert_eq!(holders.holder(X, group(6)), 3);
        // One who is behind, and a node that nobody knows.
        for hint in [2 << 32 | 5, 9 << 32 | 8, 0] {
            assert!(holders.sent_on(3, (X, group(7)), hint, now) > now);
            assert_eq!(holders.holder(X, group(6)), 3);
        }
        let older = vec![OlderGroups { first_epoch: 4, node: 1 }];
        let behind = vec![Owner { node: 2, epoch: 5, older: older.clone() }];
        holders.take_placement(Arc::new(Placement::of_three(8, behind)));
        assert_eq!([4, 5, 6].map(|epoch| holders.holder(X, group(epoch))), [1, 2, 3]);
        let later = vec![Owner { node: 1, epoch: 7, older }];
        holders.take_placement(Arc::new(Placement::of_three(9, later)));
        assert_eq!(holders.holder(X, group(7)), 1);
        assert!(holders.told.is_empty());
    }

    #[test]
    fn owners_that_are_news_start_the_back_off_over() {
        let (mut holders, now) = (holders(), Instant::now());
        let ask = |holders: &mut Holders| {
            let wait = holders.want_owners(now) - now;
            (holders.ask_at, holders.asked_at) = (None, Some(now));
            wait
        };
        let first = (0..12).map(|_| ask(&mut holders)).max();
        let longest = Some(Duration::from_millis(500));
        assert!(first >= longest, "nothing that was told has helped");
        holders.take_placement(Arc::new(Placement::of_three(7, vec![])));
        assert!(Some(ask(&mut holders)) >= longest, "it was known before");
        holders.take_placement(Arc::new(Placement::of_three(8, vec![])));
        assert!(Some(ask(&mut holders)) < longest);
    }
}
