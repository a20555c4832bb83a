//! The consumer: batches out, in order, with positions to come back to.

use std::time::Duration;

use bytes::Bytes;
use kera_format::{Cursor, GroupId, LaneId, RecordView, StreamId, StreamletId};
use kera_protocol::Start;

use crate::{Client, ClientError};

/// When an application consumer commits what it has delivered. A batch counts as processed when the next one is asked
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// At least this often while there is something to commit, and on close.
    Interval(Duration),
    /// Only when [`Consumer::commit`] is called.
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

/// Settings of a consumer. Made by [`Client::consumer`]; the defaults read all of the stream from the first record on.
#[derive(Clone, Debug)]
pub struct ConsumerBuilder {
    client: Client,
    stream: String,
    from: Start,
    streamlets: Option<Vec<StreamletId>>,
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
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client, stream: String) -> ConsumerBuilder {
        ConsumerBuilder {
            client,
            stream,
            from: Start::Earliest,
            streamlets: None,
            lanes: None,
            application: None,
            member_name: String::new(),
            commit: CommitMode::Interval(Duration::from_secs(1)),
            lease: Duration::ZERO,
            groups_max: 64,
            credit_bytes: 8 << 20,
            long_poll: false,
            verify: true,
            gaps: GapPolicy::default(),
            until_end: false,
        }
    }

    /// Where to start in each lane; for an application only in lanes that it has committed nothing of.
    pub fn from(mut self, start: Start) -> Self {
        self.from = start;
        self
    }

    /// Reads only these streamlets. Not for applications.
    pub fn streamlets(mut self, streamlets: impl IntoIterator<Item = u32>) -> Self {
        self.streamlets = Some(streamlets.into_iter().map(StreamletId).collect());
        self
    }

    /// Reads only these lanes of each streamlet. Not for applications.
    pub fn lanes(mut self, lanes: impl IntoIterator<Item = u32>) -> Self {
        self.lanes = Some(lanes.into_iter().map(LaneId).collect());
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
        self.commit = mode;
        self
    }

    /// After how long without a sign of life this member's groups go to others; the server's default unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Most groups of an application that this member reads at one time; 64 unless set.
    pub fn groups_max(mut self, groups: usize) -> Self {
        self.groups_max = groups;
        self
    }

    /// Bytes that the server may send ahead of what was asked for; 8 MiB unless set. This bounds the consumer's memory.
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

    /// Ends, with `None`, at what was the end of the stream when the consumer was built.
    pub fn until_end(mut self, until_end: bool) -> Self {
        self.until_end = until_end;
        self
    }

    /// Finds the stream, joins the application, finds where to start. Errors: no such stream, settings outside their
    /// limits, no server.
    pub async fn build(self) -> Result<Consumer, ClientError> {
        todo!()
    }
}

/// Reads a stream. Used by one task; dropped, an application's groups are given back when the lease runs out, so
/// [`close`](Consumer::close) it.
#[derive(Debug)]
pub struct Consumer {}

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
    /// Commits that the server took.
    pub commits: u64,
    /// Leases given back because the server asked for it.
    pub released: u64,
    /// Leases that were lost: other members read on from the last commit.
    pub lost: u64,
}

impl Consumer {
    /// The next batch, in order within each lane. Waits until there is one. `None`: the end, if the consumer was told to
    /// stop there ([`ConsumerBuilder::until_end`]).
    ///
    /// Dropping the future loses nothing. Connections that break are made again, so errors are for good, apart from
    /// [`ClientError::Removed`].
    pub async fn next_batch(&mut self) -> Result<Option<Batch>, ClientError> {
        todo!()
    }

    /// The next record. [`next_batch`](Consumer::next_batch) costs less per record.
    pub async fn next(&mut self) -> Result<Option<ConsumedRecord>, ClientError> {
        todo!()
    }

    /// Goes on elsewhere in a lane. What was received ahead of it is thrown away. Not for applications.
    pub async fn seek(&mut self, streamlet: StreamletId, lane: LaneId, to: Start) -> Result<(), ClientError> {
        let _ = (streamlet, lane, to);
        todo!()
    }

    /// Delivers nothing until [`resume`](Consumer::resume): `next_batch` waits. Leases are kept.
    pub fn pause(&mut self) {
        todo!()
    }

    /// Undoes [`pause`](Consumer::pause).
    pub fn resume(&mut self) {
        todo!()
    }

    /// Where it is: after the batches and records that were returned.
    pub fn positions(&self) -> Vec<Position> {
        todo!()
    }

    /// Commits everything returned so far, and waits for the server to have it.
    pub async fn commit(&mut self) -> Result<(), ClientError> {
        todo!()
    }

    /// Records that can be read and have not been returned yet, as far as the server has told.
    pub fn lag(&self) -> u64 {
        todo!()
    }

    /// The stream it reads.
    pub fn stream(&self) -> StreamId {
        todo!()
    }

    /// What it has done so far.
    pub fn stats(&self) -> ConsumerStats {
        todo!()
    }

    /// Commits (unless commits are manual), gives the groups back and closes the connection.
    pub async fn close(self) -> Result<(), ClientError> {
        todo!()
    }
}

/// Consecutive records of one lane, as they came in one read. Holds on to the memory they came in.
#[derive(Clone, Debug)]
pub struct Batch {
    streamlet: StreamletId,
    lane: LaneId,
    chunks: Vec<BatchChunk>,
}

#[derive(Clone, Debug)]
struct BatchChunk {
    group: GroupId,
    base_ordinal: u64,
    append_time_ms: i64,
    record_count: u32,
    /// Records of the chunk that come before where the consumer started.
    skip: u32,
    payload: Bytes,
}

impl Batch {
    /// The streamlet.
    pub fn streamlet(&self) -> StreamletId {
        self.streamlet
    }

    /// The lane.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// How many records there are.
    pub fn len(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.record_count - chunk.skip)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ordinal of the first record.
    pub fn base_ordinal(&self) -> u64 {
        self.chunks.first().map_or(0, |chunk| chunk.base_ordinal + u64::from(chunk.skip))
    }

    /// The records in place, in order.
    pub fn records(&self) -> impl Iterator<Item = BatchRecord<'_>> {
        std::iter::empty()
    }
}

/// A record in a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct BatchRecord<'a> {
    /// Its number in the lane.
    pub ordinal: u64,
    /// When its chunk was appended, milliseconds since 1970.
    pub append_time_ms: i64,
    /// Its keys, value and the rest.
    pub view: RecordView<'a>,
}

/// A record on its own, sharing the memory it came in.
#[derive(Clone, Debug)]
pub struct ConsumedRecord {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// The group.
    pub group: GroupId,
    /// Its number in the lane.
    pub ordinal: u64,
    /// When its chunk was appended, milliseconds since 1970.
    pub append_time_ms: i64,
    bytes: Bytes,
}

impl ConsumedRecord {
    /// Its keys, value and the rest.
    pub fn view(&self) -> RecordView<'_> {
        todo!()
    }
}
