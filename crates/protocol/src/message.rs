//! What a body is, what makes a request of it, and whole frames from either.

use crate::codec::{Reader, Wire};
use crate::frame::{FLAG_PUSH, FLAG_RESPONSE, begin_frame, finish_frame};
use crate::spec::{Source, Trace};
use crate::{ErrorBody, FrameHeader, Op, ProtocolError, Status};

/// The body of a request or of a response.
pub trait Body: Sized {
    /// Appends it as `version` lays it out.
    ///
    /// # Panics
    /// Never for a version in the operation's [range](Op::versions).
    fn encode(&self, version: u8, out: &mut Vec<u8>);

    /// Reads it. A body that goes on after its last field is an error.
    fn decode(version: u8, body: &[u8]) -> Result<Self, ProtocolError>;
}

/// The body of a request.
pub trait Message: Body {
    /// The operation it asks for.
    const OP: Op;
    /// The body of the answer when it went well; otherwise it is an [`ErrorBody`].
    type Response: Body;
}

/// A body without fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Empty;

impl Wire for Empty {
    const BYTES_MIN: usize = 0;
    fn put(&self, _out: &mut Vec<u8>) {}
    fn get(_from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok(Empty)
    }
    fn kind() -> String {
        "nothing".to_owned()
    }
    fn trace(&self, _trace: &mut Trace) {}
    fn sample(_source: &mut Source<'_>) -> Self {
        Empty
    }
}

/// Reads a body that is one [`Wire`] value and nothing else.
pub(crate) fn decode_whole<T: Wire>(body: &[u8]) -> Result<T, ProtocolError> {
    let mut from = Reader::new(body);
    let value = T::get(&mut from)?;
    from.finish()?;
    Ok(value)
}

/// Says which operation a request asks for and what answers it, for operations that have had one version so far.
macro_rules! messages {
    ($($request:ident => $response:ty;)+) => { $(
        impl $crate::Body for $request {
            fn encode(&self, _version: u8, out: &mut Vec<u8>) {
                $crate::codec::Wire::put(self, out);
            }
            fn decode(version: u8, body: &[u8]) -> Result<Self, $crate::ProtocolError> {
                $crate::Op::$request.check_version(version)?;
                $crate::message::decode_whole(body)
            }
        }
        impl $crate::Message for $request {
            const OP: $crate::Op = $crate::Op::$request;
            type Response = $response;
        }
    )+ };
}
pub(crate) use messages;

/// Implements [`Body`] for responses that have had one version so far. The version was checked with the request.
macro_rules! responses {
    ($($name:ty),+ $(,)?) => { $(
        impl $crate::Body for $name {
            fn encode(&self, _version: u8, out: &mut Vec<u8>) {
                $crate::codec::Wire::put(self, out);
            }
            fn decode(_version: u8, body: &[u8]) -> Result<Self, $crate::ProtocolError> {
                $crate::message::decode_whole(body)
            }
        }
    )+ };
}
pub(crate) use responses;

/// The current struct in a version of its operation: the frozen struct of that one if there is one, made from what it knows.
macro_rules! put_version {
    ($current:expr, $version:expr, $out:expr, $($number:literal $frozen:ident),+) => {
        match $version {
            $($number => $crate::codec::Wire::put(&$frozen::from($current), $out),)+
            _ => $crate::codec::Wire::put($current, $out),
        }
    };
}
pub(crate) use put_version;

/// The current struct from the bytes of a version of its operation: what the frozen struct of that one does not have gets what it means there.
macro_rules! take_version {
    ($version:expr, $body:expr, $($number:literal $frozen:ident),+) => {
        match $version {
            $($number => $crate::message::decode_whole::<$frozen>($body).map(Into::into),)+
            _ => $crate::message::decode_whole($body),
        }
    };
}
pub(crate) use take_version;

/// As [`messages!`], for operations whose request has had other versions: each with its number and its frozen struct.
macro_rules! versioned_messages {
    ($($request:ident, $($number:literal $frozen:ident),+ => $response:ty;)+) => { $(
        impl $crate::Body for $request {
            fn encode(&self, version: u8, out: &mut Vec<u8>) {
                $crate::message::put_version!(self, version, out, $($number $frozen),+)
            }
            fn decode(version: u8, body: &[u8]) -> Result<Self, $crate::ProtocolError> {
                $crate::Op::$request.check_version(version)?;
                $crate::message::take_version!(version, body, $($number $frozen),+)
            }
        }
        impl $crate::Message for $request {
            const OP: $crate::Op = $crate::Op::$request;
            type Response = $response;
        }
    )+ };
}
pub(crate) use versioned_messages;

/// As [`responses!`], for those that have had other versions.
macro_rules! versioned_responses {
    ($($name:ident, $($number:literal $frozen:ident),+;)+) => { $(
        impl $crate::Body for $name {
            fn encode(&self, version: u8, out: &mut Vec<u8>) {
                $crate::message::put_version!(self, version, out, $($number $frozen),+)
            }
            fn decode(version: u8, body: &[u8]) -> Result<Self, $crate::ProtocolError> {
                $crate::message::take_version!(version, body, $($number $frozen),+)
            }
        }
    )+ };
}
pub(crate) use versioned_responses;

responses!(Empty);

/// Appends a whole request frame.
pub fn encode_request<M: Message>(message: &M, version: u8, correlation: u64, out: &mut Vec<u8>) {
    let header = FrameHeader { op: M::OP as u16, version, correlation, ..FrameHeader::default() };
    let start = begin_frame(&header, out);
    message.encode(version, out);
    finish_frame(out, start, 0);
}

/// Appends a whole response frame that says that `request` went well.
pub fn encode_response<B: Body>(request: &FrameHeader, body: &B, out: &mut Vec<u8>) {
    let start = begin_frame(&request.response(Status::Ok as u16), out);
    body.encode(request.version, out);
    finish_frame(out, start, 0);
}

/// Appends a whole response frame that says that `request` failed.
pub fn encode_error(request: &FrameHeader, status: Status, error: &ErrorBody, out: &mut Vec<u8>) {
    let start = begin_frame(&request.response(status as u16), out);
    error.encode(out);
    finish_frame(out, start, 0);
}

/// Appends the header of a frame pushed to the subscription that `request` opened; the body follows, and
/// [`finish_frame`] with the returned start.
pub fn encode_push(request: &FrameHeader, status: Status, out: &mut Vec<u8>) -> usize {
    let header = FrameHeader { flags: FLAG_RESPONSE | FLAG_PUSH, ..request.response(status as u16) };
    begin_frame(&header, out)
}

/// Calls the macro `$call` once with the names of all requests, by the numbers of their operations: for tests and
/// documents that must not forget one.
#[macro_export]
macro_rules! for_each_message {
    ($call:ident) => {
        $call! {
            Hello, CreateStream, GetStream, ListStreams, AlterStream, DeleteStream, AllocateProducer, FindOwners,
            WriteChunks, ReadChunks, Subscribe, Credit, Unsubscribe, NextGroups, NextSegments, AvailableGroups,
            AvailableSegments, Lookup, StreamStats, JoinApplication, Heartbeat, CommitOffsets, FetchOffsets,
            LeaveApplication, ListApplications, DescribeApplication, DeleteApplication, ResetOffsets, NodeStatus, DescribeCopies, DescribeLogs, RaftVote, RaftAppend,
            RaftSnapshot, ForwardCommand, JoinCluster, NodeAlive, DescribeCluster, ChangeLog, StreamletsRebuilt, RebuildNeeds, StoreBlock,
            FenceNode, ListReplicas, LaneStates, ReadBlocks, ReleaseBlocks, MoveStreamlet, LetGo, FinishMove, ChangeNode,
            PlanRebalance, GroupsGone, DescribeMoves, AcceptLoss, TransactionsIn, ClaimPartition, ClaimGroup,
            RenewOwner, SetFloors, EndInPartitions, EndInGroup, UseEnds, OfferGroups, ReturnGroups, DescribeLostLogs,
            AcceptLogLoss, CopiesMade, DescribeCopyChanges, NodeLoad, PlanBalance, GiveBack, AcceptStreamletLoss,
        }
    };
}
