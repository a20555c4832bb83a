//! How a consumer gets its data: connecting, finding where to start, keeping every track fed, and taking what comes.

use std::collections::{HashMap, HashSet};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use kera_format::{Cursor, LaneId, StreamId, StreamletId};
use kera_protocol::{
    GetStream, Lookup, LookupResult, ReadAnswer, ReadChunksView, ReadEntry, Start, Status, StreamInfo, limits,
};
use kera_rpc::RpcError;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::holders::{Ends, Finding, Task, is_said_again};
use super::link::{Event, Link};
use super::membership::REFUSED_FOR;
use super::track::{Piece, Track};
use super::{Consumer, GapPolicy};
use crate::placement::{HOME, NOBODY};
use crate::{Client, ClientError};

/// Lookups that a consumer has under way, or in line behind others at the nodes that they are for.
const LOOKUPS_AT_ONCE: usize = 256;
/// How long a lookup is tried again while a consumer is under way.
const LOOKUP_RETRY: Duration = Duration::from_secs(60);
/// How long that the stream has grown is tried to be found out.
const REFRESH_RETRY: Duration = Duration::from_secs(1);
/// Whoever waits for an end that does not come looks no more often than this where it is by now.
const ENDS_PAUSE: Duration = Duration::from_millis(100);
/// With more subscriptions than this, all tracks get one together: groups come one by one.
const FEEDS_MAX: usize = 16;
/// For how long nodes may say that they do not have what comes next before that is an error.
const SENT_AROUND_MAX: Duration = Duration::from_secs(60);
/// What is not given for now is asked for again after so long at most.
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(1);
/// Least credit of a subscription.
const CREDIT_BYTES_MIN: usize = 64 << 10;

impl Consumer {
    pub(super) fn check_streamlets(&self) -> Result<(), ClientError> {
        let options = &self.stream.options;
        let streamlets = self.settings.streamlets.iter().flatten().map(|streamlet| streamlet.0);
        if let Some(wrong) = streamlets.into_iter().find(|streamlet| *streamlet >= options.streamlets) {
            let allowed = format!("0 to {}: the stream has {}", options.streamlets - 1, options.streamlets);
            return Err(ClientError::invalid("consumer.streamlets", wrong, allowed));
        }
        let lanes = self.settings.lanes.iter().flatten().map(|lane| lane.0);
        if let Some(wrong) = lanes.into_iter().find(|lane| *lane >= options.lanes) {
            let allowed = format!("0 to {}: each streamlet has {}", options.lanes - 1, options.lanes);
            return Err(ClientError::invalid("consumer.lanes", wrong, allowed));
        }
        Ok(())
    }

    /// Refuses more lanes of one node than a connection may have entries: the rest would be read by nobody, and nobody would be told. Members of
    /// an application read no more groups at one time than that.
    pub(super) fn check_lanes_of_nodes(&self) -> Result<(), ClientError> {
        if self.settings.application.is_some() {
            return Ok(());
        }
        let mut lanes: HashMap<u32, usize> = HashMap::new();
        for (streamlet, _) in self.lanes() {
            *lanes.entry(self.holders.owner(streamlet).0).or_default() += 1;
        }
        lanes.remove(&NOBODY);
        check_lanes(lanes.into_values().max().unwrap_or_default())
    }

    fn lanes(&self) -> Vec<(StreamletId, LaneId)> {
        let options = &self.stream.options;
        let streamlets = self.settings.streamlets.clone();
        let streamlets = streamlets.unwrap_or_else(|| (0..options.streamlets).map(StreamletId).collect());
        let lanes = self.settings.lanes.clone();
        let lanes = lanes.unwrap_or_else(|| (0..options.lanes).map(LaneId).collect());
        let read = streamlets.iter().filter(|streamlet| !self.settings.without.contains(streamlet));
        read.flat_map(|streamlet| lanes.iter().map(|lane| (*streamlet, *lane))).collect()
    }

    pub(super) fn lookup(&self, streamlet: StreamletId, lane: LaneId, at: Start) -> Lookup {
        Lookup { stream: self.stream.id, streamlet, lane, at }
    }

    /// Finds where each lane starts (unless an application's leases will tell), and where it ends now if that is where
    /// to stop. The nodes are asked that have the lanes, by connections that short calls share.
    pub(super) async fn find_start(&mut self) -> Result<(), ClientError> {
        let application = self.settings.application.is_some();
        if application && !self.settings.until_end {
            return Ok(());
        }
        let from = if application { Start::Latest } else { self.settings.from };
        for lanes in self.lanes().chunks(LOOKUPS_AT_ONCE) {
            let mut finding = JoinSet::new();
            for (streamlet, lane) in lanes.iter().copied() {
                let (client, lookup) = (self.client().clone(), self.lookup(streamlet, lane, from));
                finding.spawn(async move { (streamlet, lane, client.find_place(&lookup, Duration::ZERO).await) });
            }
            while let Some(found) = finding.join_next().await {
                let Ok((streamlet, lane, at)) = found else { return Err(ClientError::Closed) };
                self.start_lane(streamlet, lane, from, &at?);
            }
        }
        Ok(())
    }

    fn start_lane(&mut self, streamlet: StreamletId, lane: LaneId, from: Start, at: &LookupResult) {
        if self.settings.application.is_some() {
            self.targets.insert((streamlet, lane), at.durable_ordinal);
            return;
        }
        let ordinal = match from {
            Start::Ordinal(ordinal) => ordinal.clamp(at.ordinal, at.durable_ordinal.max(at.ordinal)),
            _ => at.ordinal,
        };
        let mut track = Track::new(streamlet, lane, at.cursor, ordinal);
        track.durable = at.durable_ordinal;
        track.target = self.settings.until_end.then_some(at.durable_ordinal);
        // Between finding the place and reading there, retention may go past it.
        self.add_track(track);
    }

    /// Whether it is to read streamlets that the stream will get.
    fn follows_growth(&self) -> bool {
        let settings = &self.settings;
        settings.application.is_none() && settings.streamlets.is_none() && !settings.until_end
    }

    /// Looks now and then whether the stream has grown. In a task: the node that is asked may be gone, and others have what is read.
    /// What cannot be found out now is found out the next time.
    fn look_for_growth(&mut self, now: Instant) {
        if !self.follows_growth() || self.holders.growing.is_some() || now < self.refresh_at {
            return;
        }
        self.refresh_at = now + self.settings.refresh;
        let (client, asked) = (self.client().clone(), GetStream { stream: self.stream.id.into() });
        let asking = async move { Ok(client.call_for(&asked, REFRESH_RETRY).await.ok()) };
        self.holders.growing = Some(Task(tokio::spawn(asking)));
    }

    /// Looks now and then, while nothing comes, whether lanes that are to be read to their ends still end where they did. An end that is lost, as where
    /// a person has accepted that, would be waited for until others had written as much anew. In a task, like growth.
    fn look_for_ends(&mut self, now: Instant) {
        if !self.settings.until_end || self.holders.ending.is_some() || now < self.refresh_at {
            return;
        }
        self.refresh_at = now + self.settings.refresh.max(ENDS_PAUSE);
        let before = std::mem::replace(&mut self.chunks_before, self.stats.chunks);
        let waiting = self.tracks.values().filter(|track| track.target.is_some() && !track.at_target() && !track.ended);
        let waiting: Vec<_> = waiting.map(|track| (track.streamlet, track.lane)).collect();
        if before != self.stats.chunks || !self.queue.is_empty() || waiting.is_empty() {
            return;
        }
        let (client, stream) = (self.client().clone(), self.stream.id);
        self.holders.ending = Some(Task(tokio::spawn(async move { Ok(ends_of(&client, stream, &waiting).await) })));
    }

    /// Lanes end here now: none is read to an end behind that.
    pub(super) fn take_ends(&mut self, ends: &Ends) {
        let tracks = self.tracks.values_mut();
        let of_tracks = tracks.filter_map(|track| Some(((track.streamlet, track.lane), track.target.as_mut()?)));
        let of_lanes = self.targets.iter_mut().map(|(lane, target)| (*lane, target));
        for (lane, target) in of_tracks.chain(of_lanes) {
            if let Some(end) = ends.get(&lane) {
                *target = (*target).min(*end);
            }
        }
    }

    /// Reads what the stream has got from the beginning. Fewer streamlets than before are not believed: a stream never shrinks, and a node
    /// that has not heard of the last growth yet tells of those before. Whoever believed it would take the others for ones that the
    /// stream has got when it hears of them again, and read them twice from there on.
    pub(super) fn follow_growth(&mut self, info: StreamInfo) {
        if info.options.streamlets < self.stream.options.streamlets {
            return;
        }
        let before: HashSet<_> = self.lanes().into_iter().collect();
        self.stream = info;
        if self.lanes().len() > before.len() {
            if let Err(error) = self.check_lanes_of_nodes() {
                self.failed = Some(error);
                return;
            }
            if self.settings.long_poll {
                // A poll that waits does not know of them.
                self.unfeed();
            }
        }
        for (streamlet, lane) in self.lanes().into_iter().filter(|lane| !before.contains(lane)) {
            tracing::debug!(stream = self.stream.name, %streamlet, %lane, "the stream has grown");
            let mut track = Track::new(streamlet, lane, Cursor::default(), 0);
            // Retention may have been there since.
            track.may_have_gap = true;
            self.add_track(track);
        }
    }

    pub(super) fn add_track(&mut self, track: Track) {
        self.tracks.insert(self.next_track, track);
        self.next_track += 1;
        self.feed_at = Instant::now();
    }

    /// Waits for something to happen, and deals with it. Dropping the future loses nothing: all that takes time goes on in tasks, and what
    /// they have come to is dealt with without waiting.
    pub(super) async fn work_once(&mut self) {
        self.start_what_is_due();
        let until = self.next_timer();
        let happening = tokio::select! {
            biased;
            happening = std::future::poll_fn(|context| self.holders.poll(context)) => Some(happening),
            () = tokio::time::sleep_until(until) => None,
        };
        if let Some(happening) = happening {
            self.happened(happening);
        }
    }

    /// Deals with what has already happened, without waiting.
    pub(super) fn look(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // Bounded, so that a fast server does not keep the program from its records.
        for _ in 0..16 {
            let Poll::Ready(happening) = self.holders.poll(&mut context) else { break };
            self.happened(happening);
        }
        self.start_what_is_due();
    }

    fn start_what_is_due(&mut self) {
        self.look_after_holders();
        let now = Instant::now();
        self.look_for_growth(now);
        self.look_for_ends(now);
        if self.is_full && self.queued_bytes < self.settings.credit_bytes {
            (self.is_full, self.feed_at) = (false, now);
        }
        self.commit_if_due(now);
        self.ask_what_was_heard_if_due();
        self.ask_for_groups_if_due(now);
        if now >= self.feed_at {
            self.feed(now);
        }
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let mut until = now + Duration::from_secs(3600);
        let waiting = |at: Instant| if at > now { at } else { now + Duration::from_secs(3600) };
        until = until.min(waiting(self.feed_at));
        for membership in self.memberships.values() {
            until = until.min(waiting(membership.groups_at)).min(waiting(membership.commits_at));
        }
        if let Some(at) = self.holders.next_timer(self.refreshes_owners(), now) {
            until = until.min(at);
        }
        let looks_for_ends = self.settings.until_end && self.holders.ending.is_none();
        if looks_for_ends || (self.follows_growth() && self.holders.growing.is_none()) {
            until = until.min(self.refresh_at.max(now));
        }
        if let Some(at) = self.gives_back_at() {
            until = until.min(at);
        }
        let has_to_commit = !self.given_back.is_empty() || self.tracks.values().any(Track::has_to_commit);
        if !self.memberships.is_empty() && has_to_commit {
            until = until.min(waiting(self.commit_at));
        }
        until
    }

    /// Feeds the tracks that are not fed, each by the node that has what comes next.
    fn feed(&mut self, now: Instant) {
        let feeds = self.holders.links().map(Link::feeds_count).max();
        if feeds.is_some_and(|count| count >= FEEDS_MAX) {
            self.unfeed();
        }
        self.feed_at = now + Duration::from_secs(3600);
        let mut nodes: Vec<u32> = self.tracks.values().filter_map(|track| self.to_feed(track)).collect();
        if self.settings.application.is_some() {
            nodes.extend(self.owners_to_join(now));
        }
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            if self.holders.link(node).is_some() {
                self.feed_by(node);
            } else if let Some(at) = self.reach(node, now) {
                self.feed_at = self.feed_at.min(at);
            }
        }
        if let Some(at) = self.rested_at(now) {
            self.feed_at = self.feed_at.min(at);
        }
    }

    /// When the first track has rested that no poll waits for: one that is under way where it was refused is [over](Consumer::poll_wait) by then, and all are asked for again.
    fn rested_at(&mut self, now: Instant) -> Option<Instant> {
        let resting = self.tracks.values().filter_map(|track| {
            let until = track.rests(now)?;
            Some((self.holders.holder(track.streamlet, track.received.group), track.node, until))
        });
        let mut resting: Vec<_> = resting.collect();
        resting
            .retain(|(node, last, _)| node != last || !self.holders.link(*node).is_some_and(|link| link.is_polling()));
        resting.into_iter().map(|(.., until)| until).min()
    }

    /// How long a poll waits at a node at most: until what it does not ask for has rested.
    fn poll_wait(&self, node: u32, now: Instant) -> Option<Duration> {
        let of_node = |track: &&Track| self.holders.holder(track.streamlet, track.received.group) == node;
        let resting = self.tracks.values().filter_map(|track| Some((track, track.rests(now)?)));
        resting.filter(|(track, _)| of_node(track)).map(|(_, until)| until.saturating_duration_since(now)).min()
    }

    /// The tracks that a node has to feed.
    fn to_feed_by(&self, node: u32) -> Vec<u64> {
        let its_own = self.tracks.iter().filter(|(_, track)| self.to_feed(track) == Some(node));
        its_own.map(|(id, _)| *id).collect()
    }

    /// Feeds the tracks that a node has to feed.
    fn feed_by(&mut self, node: u32) {
        let follow = if self.settings.application.is_some() { 0 } else { kera_protocol::read::ENTRY_FOLLOW_GROUPS };
        let Some(link) = self.holders.link(node) else { return };
        if self.settings.long_poll && link.is_polling() && node != HOME {
            // A poll that waits there does not know of tracks that have come from another node.
            self.unfeed_by(|of| of == node);
        } else if self.settings.long_poll && link.is_polling() {
            return;
        }
        if self.queued_bytes >= self.settings.credit_bytes {
            self.is_full = true;
            return;
        }
        let mut ids = self.to_feed_by(node);
        if ids.is_empty() {
            return;
        }
        if self.settings.application.is_none() {
            // Streamlets may have moved there since it was built.
            let fed = self.tracks.values().filter(|track| track.fed && track.node == node).count();
            if let Err(error) = check_lanes(fed + ids.len()) {
                self.failed = Some(error);
                return;
            }
        }
        let others = self.holders.link(node).map_or(0, |link| link.entries());
        if others > 0 && others + ids.len() > limits::READ_ENTRIES_MAX {
            // Entries that have ended count at the node as long as others of their subscription have not.
            self.unfeed_by(|of| of == node);
            ids = self.to_feed_by(node);
        }
        ids.truncate(limits::READ_ENTRIES_MAX);
        let mut entries = Vec::with_capacity(ids.len());
        for id in &ids {
            let Some(track) = self.tracks.get_mut(id) else { continue };
            (track.fed, track.node) = (true, node);
            let (streamlet, lane, cursor) = (track.streamlet, track.lane, track.received);
            entries.push(ReadEntry { stream: self.stream.id, streamlet, lane, cursor, max_bytes: 0, flags: follow });
        }
        let wait = self.poll_wait(node, Instant::now());
        let Some(link) = self.holders.link(node) else { return };
        let credit = self.settings.credit_bytes;
        if self.settings.long_poll {
            link.poll(entries, ids, u32::try_from(credit / 2).unwrap_or(u32::MAX), wait);
            return;
        }
        let share = credit as u128 * entries.len() as u128 / self.tracks.len().max(1) as u128;
        let share = (share as usize).max(CREDIT_BYTES_MIN);
        // What is in line came by others, which may be gone: nobody counts it but this. The rest of the credit follows as that is delivered.
        let first = (credit - self.queued_bytes).max(CREDIT_BYTES_MIN).min(share);
        if let Err(error) = link.subscribe(entries, ids, share as u64, first as u64) {
            self.handle(node, Event::Broken(error));
        }
    }

    /// Has new places found for lanes whose cursors point at nothing, of each once all that was received of it is delivered. In tasks: a node that
    /// does not answer may hold up one lane, and not the others.
    pub(super) fn find_astray(&mut self) {
        let in_line = |id: u64| self.queue.iter().any(|piece| piece.track == id);
        let is_found = |id: u64| self.holders.finding.contains_key(&id);
        let astray = self.tracks.iter().filter(|(id, track)| track.astray && !is_found(**id) && !in_line(**id));
        let places = astray.map(|(id, track)| (*id, track.streamlet, track.lane, track.delivered.1));
        let room = LOOKUPS_AT_ONCE.saturating_sub(self.holders.finding.len());
        for (id, streamlet, lane, expected) in places.take(room).collect::<Vec<_>>() {
            let (client, lookup) = (self.client().clone(), self.lookup(streamlet, lane, Start::Ordinal(expected)));
            let task = Task(tokio::spawn(async move { Ok(client.find_place(&lookup, LOOKUP_RETRY).await) }));
            self.holders.finding.insert(id, Finding { expected, task });
        }
    }

    /// A place was found for a lane whose cursor pointed at nothing when it had come to the ordinal `expected`, or none.
    pub(super) fn found_place(&mut self, id: u64, expected: u64, found: Result<LookupResult, ClientError>) {
        let Some(track) = self.tracks.get_mut(&id).filter(|track| track.astray && track.delivered.1 == expected) else {
            // It is not read any more, or has been set back meanwhile.
            return;
        };
        let at = match found {
            Ok(at) => at,
            Err(error) => return self.to_tell.push_back((id, error)),
        };
        let (streamlet, lane) = (track.streamlet, track.lane);
        tracing::debug!(%streamlet, %lane, expected, found = at.ordinal, "a cursor that points at nothing is replaced");
        (track.astray, track.received, track.may_have_gap) = (false, at.cursor, at.first_ordinal > expected);
        let is_all_gone = track.target.is_some_and(|target| (expected + 1..=at.first_ordinal).contains(&target));
        self.feed_at = Instant::now();
        if track.lease.is_none() && is_all_gone {
            // Retention has taken all that there was to read.
            track.delivered = (at.cursor, at.first_ordinal);
            let records = at.first_ordinal - expected;
            if self.settings.gaps == GapPolicy::Error {
                return self.to_tell.push_back((id, ClientError::Removed { streamlet, lane, records }));
            }
            self.stats.removed_records += records;
        }
        if track.lease.is_some_and(|lease| lease.group != at.cursor.group) {
            // The rest of the leased group is lost; what follows it is leased with its next group.
            track.ended = true;
        }
        if at.durable_ordinal < expected {
            let found = at.durable_ordinal;
            let is_processed = track.processed == track.delivered;
            track.delivered = (at.cursor, found);
            if is_processed {
                track.processed = track.delivered;
            }
            self.to_tell.push_back((id, ClientError::Gap { streamlet, lane, expected, found }));
        }
    }

    pub(super) fn handle(&mut self, node: u32, event: Event) {
        match event {
            Event::Data { tracks, body, subscription } => self.take_data(node, &tracks, &body, subscription),
            Event::Unfed { tracks, error } => self.take_unfed(node, &tracks, error),
            Event::Groups(groups) => self.take_groups(node, groups),
            Event::GroupsLater | Event::OwnersLater => self.ask_for_groups_later(node),
            Event::Owners(told) => self.take_what_was_heard(node, &told),
            Event::Committed { entries, statuses } => self.take_committed(node, &entries, &statuses),
            Event::CommitFailed(error) if error.retryable() => {
                let wait = self.back_off.next(None);
                self.commit_later(node, wait);
                self.take_refusal(node, error, Instant::now());
            }
            Event::CommitFailed(error) => self.failed = Some(error.into()),
            Event::Release(leases) => self.take_release(node, &leases),
            Event::MemberGone => {
                self.lose_membership(node);
                self.unlink_holder(node);
            }
            Event::Broken(error) => {
                tracing::debug!(stream = self.stream.name, node, "the consumer's connection is given up");
                match error.status().is_some() && !error.retryable() {
                    true => self.failed = Some(error.into()),
                    false => self.trouble = Some(error),
                }
                self.unlink_holder(node);
            }
        }
    }

    fn take_unfed(&mut self, node: u32, tracks: &[u64], error: Option<RpcError>) {
        let refused = error.as_ref().and_then(RpcError::status).filter(|status| status.retryable());
        if let Some(error) = error.filter(|error| !error.retryable()) {
            // What has ended, or was dropped, may count at the node yet: only who has nothing else there is over its limit.
            let is_limit = error.status() == Some(Status::LimitReached);
            if !(is_limit && self.holders.link(node).is_some_and(|link| link.is_crowded())) {
                self.failed = Some(error.into());
                return;
            }
            self.unfeed_by(|of| of == node);
        }
        for id in tracks {
            if let Some(track) = self.tracks.get_mut(id) {
                track.fed = false;
            }
            if let Some(status) = refused {
                self.take_unread(*id, status);
            }
        }
        self.feed_at = Instant::now() + self.back_off.next(None);
    }

    /// What comes next of a track is not given for now, which is tried again for as long as that takes: what a disk has lost may never be given. The program is returned nothing
    /// of it meanwhile, and hears nothing: where that lasts it is said, and again now and then.
    ///
    /// After how long, at least, it is to be asked for again by itself: the longer the longer it lasts. Each answer starts the common back-off over, and this one would be asked for as
    /// fast as a node refuses it, each time with a look at its disk.
    fn take_unread(&mut self, id: u64, status: Status) -> Duration {
        let now = Instant::now();
        let Some(track) = self.tracks.get_mut(&id) else { return Duration::ZERO };
        let lasts = track.refused_for(now);
        if lasts >= REFUSED_FOR && is_said_again(&mut self.unread_said_at, now) {
            let (stream, streamlet, lane, node) = (self.stream.name.as_str(), track.streamlet, track.lane, track.node);
            tracing::warn!(
                stream, %streamlet, %lane, node, %status, advice = status.hint(),
                "what comes next of a lane has not been given for a while; it is tried again"
            );
        }
        (lasts / 2).min(REFUSED_WAIT_MAX)
    }

    fn take_data(&mut self, node: u32, tracks: &[u64], body: &Bytes, subscription: Option<u64>) {
        let view = match ReadChunksView::parse(body) {
            Ok(view) => view,
            Err(source) => {
                let address = self.client().address().to_owned();
                self.failed = Some(RpcError::Protocol { address, source }.into());
                return;
            }
        };
        self.back_off.reset();
        self.heard_from(node);
        if subscription.is_none() {
            // One answer per poll: whatever it told, all are asked for again.
            for id in tracks {
                if let Some(track) = self.tracks.get_mut(id) {
                    track.fed = false;
                }
            }
            self.feed_at = Instant::now();
        }
        for (answer, data) in view.answers() {
            let credit = subscription.map(|id| (node, id, data.len() as u64));
            let id = tracks.get(answer.index as usize).copied();
            let known = id.is_some_and(|id| self.tracks.contains_key(&id));
            match (id, known) {
                (Some(id), true) => self.take_answer(id, &answer, body.slice_ref(data), credit),
                _ => self.credit(credit),
            }
        }
    }

    fn take_answer(&mut self, id: u64, answer: &ReadAnswer, data: Bytes, credit: Option<(u32, u64, u64)>) {
        let is_alone = self.is_alone();
        let Some(track) = self.tracks.get_mut(&id) else { return };
        track.refused = track.refused.filter(|_| answer.status().is_some_and(Status::retryable));
        match answer.status() {
            Some(Status::Ok) if track.is_leased_apart_from(answer.start.group) => {
                self.end_of_leased(id);
                self.credit(credit);
            }
            Some(Status::CursorGone) if track.is_leased_apart_from(answer.next.group) => self.end_of_leased(id),
            Some(Status::Ok) => {
                (track.received, track.sent_around) = (answer.next, None);
                track.durable = track.durable.max(answer.durable_ordinal);
                // With a lease the entry ends with its group; it stays fed, for there is no more to come.
                let end_of_group = answer.end_of_group() && track.lease.is_some();
                self.queued_bytes += data.len();
                let (next, committed, holes) = (answer.next, answer.committed(), answer.holes());
                let after_gone = std::mem::take(&mut track.received_gone);
                self.queue.push_back(Piece {
                    track: id,
                    data,
                    next,
                    end_of_group,
                    committed,
                    holes,
                    after_gone,
                    credit,
                });
            }
            Some(Status::CursorGone) => {
                (track.received, track.fed) = (answer.next, false);
                // What stands in line is still delivered before it.
                track.received_gone = true;
                // Perhaps everything up to where it is to stop was taken, and then nothing comes that would tell.
                track.astray = track.lease.is_none() && track.target.is_some();
                self.feed_at = Instant::now();
            }
            Some(Status::CursorUnknown | Status::NotAChunkBoundary | Status::UnknownGroup) => {
                (track.fed, track.astray) = (false, true);
            }
            // Nobody reads streamlets that no node has told of: it has not heard yet that the stream has grown, and what it owns of that.
            Some(status) if status == Status::NotOwner || (status == Status::UnknownStreamlet && !is_alone) => {
                self.take_elsewhere(id, answer, status);
            }
            Some(status) if status.retryable() => {
                track.fed = false;
                let (apart, now) = (self.take_unread(id, status), Instant::now());
                let again = now + self.back_off.next(None).max(apart);
                // By a poll all others are asked for at once.
                match self.tracks.get_mut(&id).filter(|_| credit.is_none()) {
                    Some(track) => track.rests_until = Some(again),
                    None => self.feed_at = self.feed_at.min(again),
                }
            }
            status => {
                let status = status.unwrap_or(Status::Internal);
                let (streamlet, lane) = (track.streamlet, track.lane);
                let message = format!("streamlet {streamlet} lane {lane} cannot be read: {status}; {}", status.hint());
                self.failed = Some(RpcError::Status { status, message, retry_after: None }.into());
            }
        }
    }

    /// A node does not have what comes next: it says who does, as far as it knows.
    fn take_elsewhere(&mut self, id: u64, answer: &ReadAnswer, status: Status) {
        let Some(track) = self.tracks.get_mut(&id) else { return };
        // A node that sends back to where the reader comes from knows as little as the one there.
        let forward = answer.next.group > track.received.group;
        (track.received, track.fed) = (answer.next, false);
        let (streamlet, node, now) = (track.streamlet, track.node, Instant::now());
        if track.sent_elsewhere(now) > SENT_AROUND_MAX {
            let message = format!("nobody has what comes next of streamlet {streamlet}; node {node} said so last");
            self.failed = Some(RpcError::Status { status, message, retry_after: None }.into());
        } else if forward {
            let place = (streamlet, answer.next.group);
            let again = self.holders.sent_on(node, place, answer.durable_ordinal, now);
            self.feed_at = self.feed_at.min(again);
        } else {
            let again = self.holders.want_owners(now);
            self.feed_at = self.feed_at.min(again);
        }
    }

    /// Retention has taken what was left of a leased group, and the server goes on with another one. That is not the lease's: its member commits
    /// in no other group, and whoever leases it reads it too. So the lease ends where it is, behind what stands in line, as at the end
    /// of its group: an empty piece says so in its turn, and the track stays fed until the lease is done, for there is no more to come. What
    /// was taken counts as removed at whoever reads the next group.
    fn end_of_leased(&mut self, id: u64) {
        let Some(track) = self.tracks.get_mut(&id) else { return };
        track.fed = true;
        self.queue.push_back(Piece {
            track: id,
            data: Bytes::new(),
            next: track.received,
            end_of_group: true,
            committed: false,
            holes: false,
            after_gone: false,
            credit: None,
        });
    }

    pub(super) fn credit(&mut self, credit: Option<(u32, u64, u64)>) {
        let Some((node, id, bytes)) = credit else { return };
        if let Some(link) = self.holders.link(node) {
            link.give_credit(id, bytes, false);
        }
    }

    /// Nothing is in line: whatever credit is owed goes back at once.
    pub(super) fn credit_all(&mut self) {
        self.holders.links_of(|_| true).for_each(|link| link.give_credit(0, 0, true));
        if self.settings.long_poll {
            self.feed_at = self.feed_at.min(Instant::now());
        }
    }

    /// Stops feeding all tracks; they are fed again from where they are.
    pub(super) fn unfeed(&mut self) {
        self.unfeed_by(|_| true);
        self.feed_at = Instant::now();
    }

    /// Stops what some nodes feed, or fed last. Whoever calls this has it fed again.
    pub(super) fn unfeed_by(&mut self, which: impl Fn(u32) -> bool) {
        self.holders.links_of(&which).for_each(Link::drop_feeds);
        self.tracks.values_mut().filter(|track| which(track.node)).for_each(|track| track.fed = false);
    }

    /// Gives the connections up. Tracks go on from where they are when there are others.
    pub(super) fn unlink(&mut self) {
        self.unfeed();
        for link in self.holders.give_up() {
            link.connection.close();
        }
        self.may_have_more(|_| true);
        // What is in line came by subscriptions that are gone.
        for piece in &mut self.queue {
            piece.credit = None;
        }
    }
}

/// Where what was written to lanes ends by now. Not how far they can be read: where a transaction is not known to have ended that may go back for a while, as behind a move,
/// and nothing is lost.
///
/// The owner of a lane is asked first: it answers only when it has all that there is of the streamlet, and knows which transactions run in it. What nodes tell of how much
/// they have says nothing alone: one that is about to take a streamlet over has what it had in an earlier time, and whoever took the end of that for the lane's would not
/// read what was written since.
async fn ends_of(client: &Client, stream: StreamId, waiting: &[(StreamletId, LaneId)]) -> Ends {
    let mut ends = Ends::new();
    for lanes in waiting.chunks(LOOKUPS_AT_ONCE) {
        let mut finding = JoinSet::new();
        for (streamlet, lane) in lanes.iter().copied() {
            let (client, lookup) = (client.clone(), Lookup { stream, streamlet, lane, at: Start::Latest });
            finding.spawn(async move { ((streamlet, lane), client.find_place(&lookup, Duration::ZERO).await) });
        }
        while let Some(found) = finding.join_next().await {
            if let Ok((lane, Ok(at))) = found {
                ends.insert(lane, at.ordinal.max(at.durable_ordinal));
            }
        }
    }
    match client.admin().stream_stats(stream).await {
        Ok(all) if all.unheard.is_empty() => {
            for told in all.lanes {
                if let Some(end) = ends.get_mut(&(told.streamlet, told.lane)) {
                    *end = (*end).max(told.next_ordinal);
                }
            }
            ends
        }
        _ => Ends::new(),
    }
}

/// Whether so many lanes can be read from one node.
fn check_lanes(lanes: usize) -> Result<(), ClientError> {
    if lanes <= limits::READ_ENTRIES_MAX {
        return Ok(());
    }
    let allowed = format!(
        "at most {} of one node: read the stream with several consumers, each some of its streamlets, or as an application",
        limits::READ_ENTRIES_MAX
    );
    Err(ClientError::invalid("consumer.streamlets times lanes", lanes, allowed))
}

#[cfg(test)]
mod tests {
    use kera_format::StreamOptions;

    use super::*;
    use crate::ConsumerBuilder;

    /// Who reads what a disk has lost, and is to stop at the end, waited for it without a word.
    #[test]
    fn that_a_lane_is_not_given_for_long_is_said_and_it_is_tried_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let client = Client::builder("nobody:1").unconnected(vec!["nobody:1".to_owned()]);
            let settings = ConsumerBuilder::new(client, "stream".to_owned());
            let options = StreamOptions { streamlets: 2, ..StreamOptions::default() };
            let stream = StreamInfo { id: StreamId(7), name: "stream".to_owned(), created_ms: 1, options };
            let mut consumer = Consumer::new(settings, stream, Instant::now());
            let here = Cursor::default();
            for at in 0..2 {
                consumer.add_track(Track::new(StreamletId(at), LaneId(0), here, 0));
            }
            // When it was said last, after an answer for each.
            let answer = |consumer: &mut Consumer, told: [Status; 2]| {
                // As with each answer, and when tracks are fed.
                consumer.back_off.reset();
                consumer.feed_at = Instant::now() + Duration::from_secs(3600);
                for (id, status) in (0_u64..).zip(told) {
                    consumer.tracks.get_mut(&id).unwrap().fed = true;
                    let answer = ReadAnswer::failed(0, status, here, here);
                    consumer.take_answer(id, &answer, Bytes::new(), Some((HOME, 1, 0)));
                    assert_eq!(consumer.tracks[&id].fed, status == Status::Ok, "it is asked for again");
                }
                assert!(consumer.failed.is_none());
                consumer.unread_said_at
            };
            let lost = [Status::SegmentUnreadable, Status::Ok];
            let mut last = None;
            for _ in 0..5 {
                last = answer(&mut consumer, lost);
                tokio::time::advance(Duration::from_secs(2)).await;
            }
            assert_eq!(last, None);
            assert_eq!(consumer.feed_at, Instant::now() - Duration::from_secs(2) + REFUSED_WAIT_MAX, "not at once");
            let first_at = Some(Instant::now());
            assert_eq!(answer(&mut consumer, lost), first_at, "for ten seconds, whatever the other one gives");
            for _ in 0..5 {
                tokio::time::advance(Duration::from_secs(10)).await;
                assert_eq!(answer(&mut consumer, lost), first_at, "once a minute");
            }
            tokio::time::advance(Duration::from_secs(10)).await;
            let again_at = Some(Instant::now());
            assert_eq!(answer(&mut consumer, lost), again_at);
            // What passes at once is not said, also of a lane of which nothing comes in between.
            for _ in 0..10 {
                tokio::time::advance(Duration::from_secs(20)).await;
                assert_eq!(answer(&mut consumer, [Status::Ok, Status::Fenced]), again_at);
            }
            // The same where a node refuses all that it was asked for together.
            let refuse = |consumer: &mut Consumer| {
                let error = RpcError::Status { status: Status::NotReady, message: String::new(), retry_after: None };
                consumer.handle(1, Event::Unfed { tracks: [0].into(), error: Some(error) });
                consumer.unread_said_at
            };
            assert_eq!(refuse(&mut consumer), again_at);
            tokio::time::advance(Duration::from_secs(10)).await;
            assert_eq!(refuse(&mut consumer), Some(Instant::now()));
        });
    }

    /// A poll is answered as soon as something is refused, however long it would have waited for the others.
    #[test]
    fn a_lane_that_is_not_given_is_polled_for_once_a_second_and_the_others_wait_for_their_records() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let client = Client::builder("nobody:1").unconnected(vec!["nobody:1".to_owned()]);
            let settings = ConsumerBuilder::new(client, "stream".to_owned()).long_poll(true);
            let options = StreamOptions { streamlets: 2, ..StreamOptions::default() };
            let stream = StreamInfo { id: StreamId(7), name: "stream".to_owned(), created_ms: 1, options };
            let began = Instant::now();
            let mut consumer = Consumer::new(settings, stream, began);
            let here = Cursor::default();
            for at in 0..2 {
                consumer.add_track(Track::new(StreamletId(at), LaneId(0), here, 0));
            }
            let (mut polls, mut refused) = (0, 0);
            while began.elapsed() < Duration::from_secs(60) {
                let asked = consumer.to_feed_by(HOME);
                assert!(asked.contains(&1), "the other one is always waited for");
                polls += 1;
                if asked.contains(&0) {
                    refused += 1;
                    // As with each answer.
                    consumer.back_off.reset();
                    let lost = ReadAnswer::failed(0, Status::SegmentUnreadable, here, here);
                    consumer.take_answer(0, &lost, Bytes::new(), None);
                } else {
                    let wait = consumer.poll_wait(HOME, Instant::now()).expect("not longer than one rests");
                    assert_eq!(consumer.rested_at(Instant::now()), Some(Instant::now() + wait), "if nobody polled");
                    tokio::time::advance(wait).await;
                }
            }
            assert!((60..90).contains(&refused) && polls < 180, "{refused} of {polls}");
            assert!(consumer.failed.is_none());
        });
    }
}
