//! The consumer: batches out, in order, with positions to come back to.

mod batch;
mod feeding;
mod holders;
mod kafka;
mod link;
mod membership;
mod track;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kera_format::{Cursor, LaneId, StreamId, StreamletId};
use kera_protocol::{CommitEntry, Start, StreamInfo};
use kera_rpc::RpcError;
use tokio::time::Instant;

pub use batch::{Batch, BatchRecord, ConsumedRecord};

use crate::backoff::{Backoff, within_reason};
use crate::placement::HOME;
use crate::{Client, ClientError};
use batch::Unpacked;
use holders::{Holders, reach};
use membership::{Carried, Membership};
use track::{Decoding, Piece, Track};

/// When an application consumer commits what it has delivered. A batch counts as processed when the next one is asked
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// At least this often while there is something to commit, and on close.
    Interval(Duration),
    /// Only when [`Consumer::commit`] is called. A group that the server asks back for another member is given back with the next commit, or,
    /// if there is none for as long as a lease lasts, from the last one on: then what was returned since is read again.
    ///
    /// What follows a group is given to the application only when the end of that group is committed. So when all groups that a member has are returned to
    /// their ends, [`Consumer::next_batch`] waits until [`Consumer::commit`] was called: a program that commits after so many records, or batches, calls it after so
    /// long a time as well, and drops the future of `next_batch` for that, which loses nothing.
    Manual,
}

/// What happens when retention has removed records before they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GapPolicy {
    /// The consumer goes on with the first record there is and counts the others in
    /// [`ConsumerStats::removed_records`].
    #[default]
    Count,
    /// [`ClientError::Removed`] once; the next call goes on with the first record there is.
    Error,
}

/// Where a consumer is in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// Where to read on.
    pub cursor: Cursor,
    /// Ordinal of the next record.
    pub ordinal: u64,
}

/// Settings of a consumer. Made by [`Client::consumer`]; the defaults read all of the stream from the first record on. It reads 65,536 lanes of
/// one node at most, unless it is a member of an application.
#[derive(Clone, Debug)]
pub struct ConsumerBuilder {
    client: Client,
    stream: String,
    from: Start,
    streamlets: Option<Vec<StreamletId>>,
    without: Vec<StreamletId>,
    lanes: Option<Vec<LaneId>>,
    application: Option<String>,
    member_name: String,
    commit: CommitMode,
    lease: Duration,
    groups_max: usize,
    credit_bytes: usize,
    long_poll: bool,
    verify: bool,
    gaps: GapPolicy,
    until_end: bool,
    refresh: Duration,
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client, stream: String) -> ConsumerBuilder {
        ConsumerBuilder {
            client,
            stream,
            from: Start::Earliest,
            streamlets: None,
            without: Vec::new(),
            lanes: None,
            application: None,
            member_name: String::new(),
            commit: CommitMode::Interval(Duration::from_secs(1)),
            lease: Duration::ZERO,
            groups_max: 4096,
            credit_bytes: 8 << 20,
            long_poll: false,
            verify: true,
            gaps: GapPolicy::default(),
            until_end: false,
            refresh: Duration::from_secs(10),
        }
    }

    /// Where to start in each lane; for an application only in lanes that it has committed nothing of.
    pub fn from(mut self, start: Start) -> Self {
        self.from = start;
        self
    }

    /// Reads only these streamlets. Not for applications.
    pub fn streamlets(mut self, streamlets: impl IntoIterator<Item = u32>) -> Self {
        self.streamlets = Some(each_once(streamlets.into_iter().map(StreamletId)));
        self
    }

    /// Reads all streamlets but these, and those that the stream will get. Not for applications.
    pub fn without_streamlets(mut self, streamlets: impl IntoIterator<Item = u32>) -> Self {
        self.without = streamlets.into_iter().map(StreamletId).collect();
        self
    }

    /// Reads only these lanes of each streamlet. Not for applications.
    pub fn lanes(mut self, lanes: impl IntoIterator<Item = u32>) -> Self {
        self.lanes = Some(each_once(lanes.into_iter().map(LaneId)));
        self
    }

    /// Reads as a member of the application `name`: its members share the stream's groups, and what is committed is
    /// where they go on after a restart.
    pub fn application(mut self, name: impl Into<String>) -> Self {
        self.application = Some(name.into());
        self
    }

    /// What this member is called in listings.
    pub fn member_name(mut self, name: impl Into<String>) -> Self {
        self.member_name = name.into();
        self
    }

    /// When to commit; every second unless set.
    pub fn commit(mut self, mode: CommitMode) -> Self {
        self.commit = match mode {
            CommitMode::Interval(interval) => CommitMode::Interval(within_reason(interval)),
            CommitMode::Manual => CommitMode::Manual,
        };
        self
    }

    /// After how long without a sign of life this member's groups go to others; the server's default unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Most groups of an application that this member reads at one time; 4,096 unless set. With order `lane` each lane has
    /// one that is open: lanes beyond the limit are left to other members. With [`until_end`](ConsumerBuilder::until_end) one that is read to
    /// that end is not read any more, and others are read in its place.
    pub fn groups_max(mut self, groups: usize) -> Self {
        self.groups_max = groups;
        self
    }

    /// Bytes that the server may send ahead of what was asked for; 8 MiB unless set. This bounds the consumer's memory, but for what the
    /// records of the last batch have been unpacked to: a few MiB, or one chunk.
    pub fn credit_bytes(mut self, bytes: usize) -> Self {
        self.credit_bytes = bytes;
        self
    }

    /// Asks for data with requests that wait at the server, instead of having it pushed.
    pub fn long_poll(mut self, long_poll: bool) -> Self {
        self.long_poll = long_poll;
        self
    }

    /// Whether the checksums of chunks are verified; on unless turned off.
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// What to do when retention has removed records before they were read.
    pub fn gaps(mut self, policy: GapPolicy) -> Self {
        self.gaps = policy;
        self
    }

    /// Ends, with `None`, at what was the end of the stream when the consumer was built; where that is lost since, at the end that there is
    /// then, which is looked for as often as [`refresh`](ConsumerBuilder::refresh) says while nothing comes. Streamlets that the stream gets later are not read. With
    /// [`CommitMode::Manual`] a group that was returned to its end in front of that is to be committed first: see there.
    /// A member of an application ends where the nodes have nothing to give to it, of all that they own: one that has not heard yet of what it has come to own is
    /// waited for. What other members have leased is not, be they gone or not; see [`Consumer::look_again`].
    pub fn until_end(mut self, until_end: bool) -> Self {
        self.until_end = until_end;
        self
    }

    /// How often a consumer of all streamlets looks whether the stream has got more, which it then reads from their first record
    /// on; every ten seconds unless set. Members of an application are given them without that: of a cluster's nodes they ask as often
    /// whether others own something of the stream by now.
    pub fn refresh(mut self, every: Duration) -> Self {
        self.refresh = within_reason(every);
        self
    }

    /// Finds the stream, joins the application, finds where to start. Errors: no such stream, which takes a second to be sure of, settings
    /// outside their limits, no server.
    pub async fn build(self) -> Result<Consumer, ClientError> {
        self.check()?;
        let stream = self.client.find_stream(&self.stream).await?;
        let now = Instant::now();
        let mut consumer = Consumer::new(self, stream, now);
        consumer.refresh_at += consumer.settings.refresh;
        consumer.check_streamlets()?;
        let until = now + consumer.client().retry_timeout();
        loop {
            let error = match consumer.begin().await {
                Ok(()) => return Ok(consumer),
                Err(error) => error,
            };
            let wait = consumer.back_off.next(None);
            if !error.retryable() || Instant::now() + wait > until {
                return Err(error);
            }
            // A member whose answer was lost is gone when its lease has run out, as after any lost connection.
            consumer.unlink();
            consumer.tracks.clear();
            tokio::time::sleep(wait).await;
        }
    }

    fn check(&self) -> Result<(), ClientError> {
        let is_part = self.streamlets.is_some() || !self.without.is_empty() || self.lanes.is_some();
        if self.application.is_some() && is_part {
            let allowed = "left out: the members of an application share all of the stream";
            let what = "consumer.streamlets, consumer.without_streamlets and consumer.lanes";
            return Err(ClientError::invalid(what, "set", allowed));
        }
        if !(1..=65_536).contains(&self.groups_max) {
            return Err(ClientError::invalid("consumer.groups_max", self.groups_max, "1 to 65536"));
        }
        if !((64 << 10)..=(1 << 30)).contains(&self.credit_bytes) {
            return Err(ClientError::invalid("consumer.credit_bytes", self.credit_bytes, "65536 to 1073741824"));
        }
        if u32::try_from(self.lease.as_millis()).is_err() {
            return Err(ClientError::invalid("consumer.lease", format!("{:?}", self.lease), "at most 49 days"));
        }
        Ok(())
    }
}

/// What is named, in order: a lane that is named twice would be read twice, side by side.
fn each_once<T: Ord>(named: impl Iterator<Item = T>) -> Vec<T> {
    let mut named: Vec<T> = named.collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// Reads a stream. Used by one task; dropped, an application's groups are given back when the lease runs out, so
/// [`close`](Consumer::close) it.
#[derive(Debug)]
pub struct Consumer {
    settings: ConsumerBuilder,
    stream: StreamInfo,
    tracks: HashMap<u64, Track>,
    next_track: u64,
    /// Received and not delivered.
    queue: VecDeque<Piece>,
    queued_bytes: usize,
    /// Tracks wait to be fed until less is received and not delivered.
    is_full: bool,
    /// The track of the batch that was returned last; it counts as processed when the program comes back.
    returned: Option<u64>,
    unpacked: Option<(u64, Unpacked)>,
    /// The nodes that have what is read.
    holders: Holders,
    /// By node: one at each owner of streamlets.
    memberships: BTreeMap<u32, Membership>,
    /// How far groups had been processed whose leases ended with a membership: where to go on if they come back.
    carried: HashMap<(StreamletId, LaneId, kera_format::GroupId), Carried>,
    /// Leases that are not read any more and have to be given back, by the node that gave them and their numbers.
    given_back: BTreeMap<(u32, u64), CommitEntry>,
    /// Where an application's lanes ended when it was built, if it is to stop there.
    targets: HashMap<(StreamletId, LaneId), u64>,
    failed: Option<ClientError>,
    /// What the program has to be told of tracks, once; then they go on.
    to_tell: VecDeque<(u64, ClientError)>,
    /// What went wrong last of what is tried again.
    trouble: Option<RpcError>,
    /// When it was said last that something is not given for long.
    unread_said_at: Option<Instant>,
    paused: bool,
    back_off: Backoff,
    feed_at: Instant,
    commit_at: Instant,
    refresh_at: Instant,
    /// Chunks that had been delivered when it was last looked whether what is to be read to its end still comes.
    chunks_before: u64,
    stats: ConsumerStats,
}

/// What a consumer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerStats {
    /// Records delivered.
    pub records: u64,
    /// Chunks delivered.
    pub chunks: u64,
    /// Bytes of chunks delivered, as stored.
    pub bytes: u64,
    /// Records that retention removed before they were read.
    pub removed_records: u64,
    /// Connections made again.
    pub reconnects: u64,
    /// Commits that a server took, as a whole or in part.
    pub commits: u64,
    /// Leases given back because the server asked for it.
    pub released: u64,
    /// Leases that were lost: other members read on from the last commit.
    pub lost: u64,
}

impl Consumer {
    fn new(settings: ConsumerBuilder, stream: StreamInfo, now: Instant) -> Consumer {
        Consumer {
            stream,
            settings,
            tracks: HashMap::new(),
            next_track: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            is_full: false,
            returned: None,
            unpacked: None,
            holders: Holders::new(),
            memberships: BTreeMap::new(),
            carried: HashMap::new(),
            given_back: BTreeMap::new(),
            targets: HashMap::new(),
            failed: None,
            to_tell: VecDeque::new(),
            trouble: None,
            unread_said_at: None,
            paused: false,
            back_off: Backoff::default(),
            feed_at: now,
            commit_at: now,
            refresh_at: now,
            chunks_before: 0,
            stats: ConsumerStats::default(),
        }
    }

    /// The next batch, in order within each lane. Waits until there is one. `None`: the end, if the consumer was told to
    /// stop there ([`ConsumerBuilder::until_end`]). With [`CommitMode::Manual`] it also waits, for as long as that takes, for what was returned to the end of
    /// a group to be committed, if there is nothing else to return.
    ///
    /// Dropping the future loses nothing. Connections that break are made again, so errors are for good, apart from
    /// [`ClientError::Removed`] and [`ClientError::Gap`], after which the next call goes on.
    pub async fn next_batch(&mut self) -> Result<Option<Batch>, ClientError> {
        if let Some((track, unpacked)) = self.unpacked.take() {
            let rest = unpacked.rest();
            if !rest.is_empty() {
                self.returned = Some(track);
                return Ok(Some(rest));
            }
        }
        self.settle();
        loop {
            self.look();
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            if let Some((_, error)) = self.to_tell.pop_front() {
                return Err(error);
            }
            if !self.paused
                && let Some(batch) = self.deliver()?
            {
                return Ok(Some(batch));
            }
            if self.at_end() {
                return Ok(None);
            }
            self.find_astray();
            self.work_once().await;
        }
    }

    /// The next record. [`next_batch`](Consumer::next_batch) costs less per record.
    pub async fn next(&mut self) -> Result<Option<ConsumedRecord>, ClientError> {
        loop {
            if let Some((_, unpacked)) = &mut self.unpacked {
                if let Some(record) = unpacked.next() {
                    return Ok(Some(record));
                }
                self.unpacked = None;
            }
            let Some(batch) = self.next_batch().await? else { return Ok(None) };
            let track = self.returned.unwrap_or_default();
            self.unpacked = Some((track, Unpacked::new(batch)));
        }
    }

    /// For a program that cannot take records just now, as while its own reader stands still: does everything but return some. Never ends;
    /// dropping the future loses nothing.
    ///
    /// A member that only waited would go on telling that it lives, and would never hear that groups are asked back for other members.
    pub async fn idle(&mut self) -> std::convert::Infallible {
        loop {
            self.look();
            self.work_once().await;
        }
    }

    /// The program has come back: what was returned to it is processed, unless it says so itself, by committing.
    fn settle(&mut self) {
        if self.settings.commit != CommitMode::Manual
            && let Some(id) = self.returned
        {
            self.settle_track(id);
        }
    }

    /// What was returned of a track is processed.
    fn settle_track(&mut self, id: u64) {
        let Some(track) = self.tracks.get_mut(&id) else { return };
        let within = self.unpacked.as_ref().filter(|(of, _)| *of == id).and_then(|(_, unpacked)| unpacked.position());
        track.processed = within.unwrap_or(track.delivered);
    }

    /// Returns nothing more of the batch that is being taken record by record if it is of one of these tracks: the next member reads it.
    /// What was returned of it is all that was delivered, so it has not come to the end of its group, if the rest did.
    fn drop_unpacked(&mut self, which: impl Fn(u64) -> bool) {
        let Some((id, unpacked)) = self.unpacked.take_if(|(id, _)| which(*id)) else { return };
        if let (Some(track), Some(position)) = (self.tracks.get_mut(&id), unpacked.position()) {
            (track.delivered, track.ended) = (position, false);
        }
    }

    /// Takes the next batch out of what was received.
    fn deliver(&mut self) -> Result<Option<Batch>, ClientError> {
        let how = Decoding {
            verify: self.settings.verify,
            gaps: self.settings.gaps,
            holes: self.stream.options.cleanup.compacts(),
        };
        while let Some(mut piece) = self.queue.pop_front() {
            let before = piece.data.len();
            let track = self.tracks.get_mut(&piece.track);
            let Some(track) = track.filter(|track| !track.lease.is_some_and(|lease| lease.releasing)) else {
                self.queued_bytes -= before;
                self.credit(piece.credit);
                continue;
            };
            // Who is to stop at the end that there was is given nothing more of a lane that has come there. What is written meanwhile would else be returned, and
            // as long as something is returned nobody looks whether the end of all of them is reached: never, where it is written as fast as it is read. The end of
            // a group that has nothing in front of it is taken, for the group to be done.
            if before > 0 && track.at_target() {
                self.queued_bytes -= before;
                self.credit(piece.credit);
                continue;
            }
            let delivered = track.delivered;
            let decoded = track::decode(track, &mut piece, how);
            self.queued_bytes -= before - piece.data.len();
            self.stats.removed_records += decoded.removed;
            self.stats.chunks += decoded.batch.chunks.len() as u64;
            self.stats.bytes += decoded.bytes;
            let id = piece.track;
            match decoded.error {
                // Comes again with the next call if there is something to deliver first.
                Some(error) => {
                    self.queue.push_front(piece);
                    if decoded.batch.chunks.is_empty() {
                        return Err(error);
                    }
                    if let (ClientError::Gap { expected, .. }, Some(track)) = (&error, self.tracks.get_mut(&id)) {
                        track.delivered.1 = *expected;
                    }
                }
                None if !piece.data.is_empty() => self.queue.push_front(piece),
                None => self.credit(piece.credit),
            }
            if !decoded.batch.chunks.is_empty() {
                self.stats.records += decoded.batch.len();
                self.returned = Some(id);
                return Ok(Some(decoded.batch));
            }
            let is_manual = self.settings.commit == CommitMode::Manual;
            if let Some(track) = self.tracks.get_mut(&id)
                && (!is_manual || track.processed == delivered)
            {
                // Nothing in it for the program: nothing that it has to process.
                track.processed = track.delivered;
            }
        }
        self.credit_all();
        Ok(None)
    }

    /// Whether everything was delivered up to where the stream ended when the consumer was built.
    fn at_end(&self) -> bool {
        if !self.settings.until_end || !self.queue.is_empty() {
            return false;
        }
        let all = self.tracks.values().all(|track| track.at_target() || track.ended);
        if self.settings.application.is_none() {
            return all;
        }
        // What was lost with a lease may be another node's to give.
        if !self.holders.placement.is_whole() || self.holders.are_wanted() {
            return false;
        }
        let (owners, is_alone) = (self.holders.placement.owners(), self.is_alone());
        let is_empty = |node: &u32| self.memberships.get(node).is_some_and(|membership| membership.is_at_end(is_alone));
        // What follows a group is given only when its end is committed.
        all && owners.iter().all(is_empty) && self.tracks.values().all(|track| !track.ended)
    }

    /// After the end: a member of an application has the nodes asked once more whether they have groups for it. Others may have given some back since, or
    /// were not heard of until their leases were over.
    pub fn look_again(&mut self) {
        let now = Instant::now();
        self.memberships.values_mut().for_each(|membership| membership.may_have_more(now));
    }

    /// Where each lane ended when the consumer was built, or ends now if that was lost since: of a member of an application that is to stop there, see
    /// [`until_end`](ConsumerBuilder::until_end).
    pub fn ends(&self) -> HashMap<(StreamletId, LaneId), u64> {
        self.targets.clone()
    }

    /// Goes on elsewhere in a lane. What was received ahead of it is thrown away. Not for applications.
    pub async fn seek(&mut self, streamlet: StreamletId, lane: LaneId, to: Start) -> Result<(), ClientError> {
        let wanted = |track: &Track| track.streamlet == streamlet && track.lane == lane && track.lease.is_none();
        let Some(id) = self.tracks.iter().find(|(_, track)| wanted(track)).map(|(id, _)| *id) else {
            let what = format!("streamlet {streamlet} lane {lane}");
            return Err(ClientError::invalid("seek", what, "a lane that this consumer reads, and no application's"));
        };
        let at = self.client().find_place(&self.lookup(streamlet, lane, to), self.client().retry_timeout()).await?;
        let ordinal = match to {
            Start::Ordinal(ordinal) => ordinal.clamp(at.ordinal, at.durable_ordinal.max(at.ordinal)),
            _ => at.ordinal,
        };
        self.unfeed();
        self.unpacked = self.unpacked.take().filter(|(of, _)| *of != id);
        let (dropped, kept) = self.queue.drain(..).partition::<VecDeque<_>, _>(|piece| piece.track == id);
        self.queue = kept;
        self.queued_bytes -= dropped.iter().map(|piece| piece.data.len()).sum::<usize>();
        self.holders.finding.remove(&id);
        self.to_tell.retain(|(of, _)| *of != id);
        if let Some(track) = self.tracks.get_mut(&id) {
            let target = track.target;
            *track = Track { target, durable: at.durable_ordinal, ..Track::new(streamlet, lane, at.cursor, ordinal) };
        }
        Ok(())
    }

    /// Delivers nothing until [`resume`](Consumer::resume): `next_batch` waits. Leases are kept.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Undoes [`pause`](Consumer::pause).
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Where it is: after the batches and records that were returned.
    pub fn positions(&self) -> Vec<Position> {
        let mut all: Vec<Position> = Vec::with_capacity(self.tracks.len());
        for (id, track) in &self.tracks {
            let mut position = track.position();
            if let Some((of, unpacked)) = &self.unpacked
                && of == id
                && let Some((cursor, ordinal)) = unpacked.position()
            {
                (position.cursor, position.ordinal) = (cursor, ordinal);
            }
            all.push(position);
        }
        all.sort_by_key(|position| (position.streamlet, position.lane, position.cursor));
        all
    }

    /// Commits everything returned so far, and waits for the server to have it. Nothing to do without an application.
    ///
    /// What was returned of groups that this member has lost, or has given back meanwhile ([`CommitMode::Manual`]), is not committed: others
    /// read it again. [`ConsumerStats::lost`] and [`ConsumerStats::released`] count these.
    ///
    /// A server that is away is waited for as long as for the answer to a call ([`ClientBuilder::call_timeout`](crate::ClientBuilder::call_timeout)), or as
    /// long as calls are tried again if that is longer. Then the error is what went wrong last; the server may have got the commit nevertheless,
    /// and the next commit is of all this and what is returned until then.
    pub async fn commit(&mut self) -> Result<(), ClientError> {
        let ids: Vec<u64> = self.tracks.keys().copied().collect();
        ids.into_iter().for_each(|id| self.settle_track(id));
        // What the server wants back it gets now that the program has vouched for all that it has of it.
        let leases = self.tracks.values_mut().filter_map(|track| track.lease.as_mut());
        leases.for_each(|lease| lease.releasing |= lease.asked_back.is_some());
        self.trouble = None;
        let patience = self.client().patience();
        match tokio::time::timeout(patience, self.commit_settled()).await {
            Ok(done) => done,
            Err(_) => {
                let address = self.client().address().to_owned();
                let timeout = || RpcError::Timeout { address, after: patience };
                Err(self.trouble.take().unwrap_or_else(timeout).into())
            }
        }
    }

    /// Records that can be read and have not been returned yet, as far as the server has told.
    pub fn lag(&self) -> u64 {
        let positions = self.positions().into_iter().map(|position| position.ordinal).sum::<u64>();
        self.tracks.values().map(|track| track.durable).sum::<u64>().saturating_sub(positions)
    }

    /// The stream it reads.
    pub fn stream(&self) -> StreamId {
        self.stream.id
    }

    /// What it has done so far.
    pub fn stats(&self) -> ConsumerStats {
        self.stats
    }

    /// Commits (unless commits are manual), gives the groups back and closes the connection. Waits no longer for a server that is away than
    /// [`commit`](Consumer::commit) does, and some seconds; the error is that of the commit.
    pub async fn close(mut self) -> Result<(), ClientError> {
        let mut result = Ok(());
        if self.settings.commit != CommitMode::Manual {
            result = self.commit().await;
        }
        self.leave().await;
        result
    }

    /// Connects, becomes a member of the application, finds where to start.
    async fn begin(&mut self) -> Result<(), ClientError> {
        self.holders.placement = self.client().placement_of_found(self.stream.id).await?;
        self.check_lanes_of_nodes()?;
        if self.is_alone() {
            let reached = reach(self.client().clone(), Arc::default(), HOME, self.joining(HOME)).await?;
            self.reached(HOME, reached);
        }
        self.find_start().await?;
        if self.settings.application.is_some() && !self.is_alone() {
            // Looking for its end may have found later owners: what these have is to be read up to there.
            self.holders.placement = self.client().placement(self.stream.id).await?;
        }
        Ok(())
    }

    /// Whether one node owns everything.
    fn is_alone(&self) -> bool {
        self.holders.placement.is_alone()
    }

    fn client(&self) -> &Client {
        &self.settings.client
    }
}
