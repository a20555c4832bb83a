//! What brokers, coordinators and new owners say to backups: storing blocks of virtual logs, fencing, and what a recovery asks
//! for (thesis 6.3 to 6.6; `docs/replication.md` has the protocol that these are the messages of).
//!
//! [`StoreBlock`] is the hot path: a head of 72 bytes, then the block's chunks as they lie in their segments, so that a broker
//! sends them by vectored writes and a backup uses them where they lie in the frame.
//!
//! ```text
//! request                                    response to ReadBlocks
//! offset  bytes  field                       offset  bytes  field
//!      0     16  cluster                          0      4  count
//!     16      4  node                             4      4  zero
//!     20      4  epoch                            8      8  next_block
//!     24      4  vlog                            16   32×n  heads of blocks
//!     28      4  view                             …      …  their chunks, block after block
//!     32      8  view_first
//!     40      8  block                       head of a block
//!     48      8  written_ms                  offset  bytes  field
//!     56      4  chunk_count                      0      8  block
//!     60      4  chunk_bytes                      8      8  written_ms
//!     64      4  chunks_checksum                 16      4  chunk_count
//!     68      4  flags       1: synced           20      4  chunk_bytes
//!     72      …  chunks, back to back            24      4  chunks_checksum
//!                                                28      4  zero
//! ```

use bytes::Bytes;
use kera_format::vlog::{BLOCK_CHUNK_BYTES_MAX, QUESTIONS};
use kera_format::vlog_replica::LogId;
use kera_format::{Cursor, GroupId, LaneId, ProducerEpoch, ProducerId, SegmentIndex, StreamId, StreamletId};

use crate::codec::{Reader, Wire, wire_enum, wire_fields, wire_struct};
use crate::first::replication::{LaneStateListV1, NodeFencedV1};
use crate::message::{decode_whole, messages, responses, versioned_responses};
use crate::spec::{Documented, FieldDoc, Source, Specified, TracedField, any_chunks};
use crate::{Body, Message, Op, ProtocolError};

/// Bytes of a [`StoreBlock`] before its chunks.
pub const STORE_HEAD_BYTES: usize = 72;
/// Bytes of the answer to a [`ReadBlocks`] before its heads.
pub const READ_BLOCKS_HEAD_BYTES: usize = 16;
/// Bytes of the head of a block in that answer.
pub const BLOCK_HEAD_BYTES: usize = 32;
/// Flag of a [`StoreBlock`]: it is answered when it is synced, not when it survives a kill.
pub const STORE_SYNCED: u32 = 1;

wire_fields!(LogId, ["A virtual log of a node between two of its starts."], {
    node: u32, ["Number of the node in its cluster."];
    epoch: u32, ["The node's epoch: a new one each time it joins."];
    vlog: u32, ["Number of the virtual log in the node."];
});

wire_struct! {
    /// What is known of a block without its chunks.
    #[derive(Copy)]
    pub struct StoreHead {
        /// Uuid of the cluster.
        pub cluster: [u8; 16],
        /// Whose log it is of.
        pub log: LogId,
        /// Number of the view in which it is sent.
        pub view: u32,
        /// The view's first block.
        pub view_first: u64,
        /// The block's number in its log, from 1. From 2^63 on it is none's: whoever sends it, without chunks, asks whether the backup takes
        /// blocks of the log, which is answered with the next one that it does.
        pub block: u64,
        /// When it was made, milliseconds since 1970.
        pub written_ms: i64,
        /// Chunks in it.
        pub chunk_count: u32,
        /// Bytes of the chunks.
        pub chunk_bytes: u32,
        /// CRC-32C of the chunks.
        pub chunks_checksum: u32,
        /// 1: answered when it is synced; otherwise when it survives a kill of the backup's process.
        pub flags: u32,
    }
}
const _: () = assert!(<StoreHead as Wire>::BYTES_MIN == STORE_HEAD_BYTES && STORE_HEAD_BYTES.is_multiple_of(8));

impl StoreHead {
    /// Reads the head of a body and gives the chunks behind it, whose bytes are as many as it says. No checksum is verified.
    pub fn parse(version: u8, body: &[u8]) -> Result<(StoreHead, &[u8]), ProtocolError> {
        let mut from = Reader::new(body);
        let head = StoreHead::read(version, &mut from)?;
        let chunks = from.take(head.chunk_bytes as usize)?;
        from.finish()?;
        Ok((head, chunks))
    }

    /// Reads the head of a body whose chunks have not come yet.
    pub fn parse_start(version: u8, start: &[u8]) -> Result<StoreHead, ProtocolError> {
        StoreHead::read(version, &mut Reader::new(start))
    }

    fn read(version: u8, from: &mut Reader<'_>) -> Result<StoreHead, ProtocolError> {
        Op::StoreBlock.check_version(version)?;
        let head = StoreHead::get(from)?;
        from.enter("StoreHead.flags");
        if head.flags & !STORE_SYNCED != 0 {
            return Err(from.bad(head.flags.into(), "0 or 1"));
        }
        from.enter("StoreHead.chunk_bytes");
        let bytes = head.chunk_bytes as usize;
        if bytes > BLOCK_CHUNK_BYTES_MAX || !bytes.is_multiple_of(8) {
            return Err(from.bad(bytes as u64, "a multiple of 8, at most 33554432"));
        }
        Ok(head)
    }

    /// Whether it is no block but asks whether more are taken.
    pub fn asks(&self) -> bool {
        self.block >= QUESTIONS
    }

    /// Whether it is answered only when it is synced.
    pub fn synced(&self) -> bool {
        self.flags & STORE_SYNCED != 0
    }
}

/// Stores a block of a virtual log at a backup. For tests and documents: brokers send the head and the chunks from where they
/// are, backups use [`StoreHead::parse`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreBlock {
    /// Everything but the chunks.
    pub head: StoreHead,
    /// The chunks, stamped, back to back.
    pub chunks: Bytes,
}

wire_enum! {
    /// What became of a block.
    pub enum StoreOutcome, "0 (stored), 1 (fenced) or 2 (next)" {
        /// It is stored, now or since an earlier try.
        Stored = 0 => "stored",
        /// The node and epoch are fenced: nothing is taken from it any more.
        Fenced = 1 => "fenced",
        /// The blocks before it are missing.
        Next = 2 => "next",
    }
}

wire_struct! {
    /// What became of a block.
    #[derive(Copy)]
    pub struct BlockStored {
        /// How it went.
        pub outcome: StoreOutcome,
        /// Stored: up to which block the backup has the log, from the view's first one on, without a hole. Fenced: the epoch
        /// up to which the node is fenced. Next: the block that it can take.
        pub block: u64,
    }
}

wire_struct! {
    /// Of which log it is asked how far a backup has it.
    #[derive(Copy)]
    pub struct LogView {
        /// Number of the virtual log.
        pub vlog: u32,
        /// First block of its newest view.
        pub first_block: u64,
    }
}

wire_struct! {
    /// Takes nothing from a node and epoch, nor from earlier ones of the node, any more, and tells how far its logs are here.
    pub struct FenceNode {
        /// Number of the node.
        pub node: u32,
        /// The epoch; all up to it are fenced.
        pub epoch: u32,
        /// Logs of that epoch whose ends are asked for.
        pub logs: Vec<LogView>,
    }
}

wire_struct! {
    /// How far a backup has a log.
    #[derive(Copy)]
    pub struct LogEnd {
        /// Number of the virtual log.
        pub vlog: u32,
        /// The last block from the view's first one on, without a hole; the one before the first if there is none.
        pub through: u64,
        /// Whether it was never further. False: a loss of power may have taken blocks behind it before they were synced. It counts
        /// only if all backups of the view have answered and none is certain.
        pub certain: bool,
        /// The last block behind that was begun and does not read back; zero: none. It was answered to nobody, or a disk has changed it since: if another backup
        /// has it, it counts up to there.
        pub begun: u64,
    }
}

wire_struct! {
    /// The fence is on disk.
    pub struct NodeFenced {
        /// One for each log that was asked for, but for those in which a disk has changed something: another backup is to be asked.
        pub ends: Vec<LogEnd>,
    }
}

wire_struct! {
    /// Lists the copies of virtual logs that a backup has.
    #[derive(Copy)]
    pub struct ListReplicas {
        /// Only logs behind this one in the order of node, epoch and number; absent: from the first.
        pub after: Option<LogId>,
        /// Most logs in the answer; zero, or more than [`crate::limits::PAGE_ITEMS_MAX`]: that many.
        pub limit: u32,
    }
}

wire_struct! {
    /// Blocks without a hole.
    #[derive(Copy, Hash)]
    pub struct BlockRange {
        /// The first block.
        pub first: u64,
        /// The last block.
        pub last: u64,
    }
}

wire_struct! {
    /// A copy of a virtual log.
    pub struct ReplicaInfo {
        /// The log.
        pub log: LogId,
        /// The blocks that are there, ascending.
        pub blocks: Vec<BlockRange>,
        /// Files that it takes.
        pub files: u32,
        /// Bytes of the files.
        pub bytes: u64,
        /// Whether the node and epoch are fenced.
        pub fenced: bool,
    }
}

wire_struct! {
    /// A page of copies.
    pub struct ReplicaList {
        /// By log.
        pub replicas: Vec<ReplicaInfo>,
        /// Whether there are more after the last one.
        pub more: bool,
    }
}

wire_struct! {
    /// A streamlet.
    #[derive(Copy, Hash, PartialOrd, Ord)]
    pub struct StreamletRef {
        /// The stream.
        pub stream: StreamId,
        /// The streamlet in it.
        pub streamlet: StreamletId,
    }
}

wire_struct! {
    /// Tells the state of lanes as a log has it: what their next owner must know before it takes writes.
    pub struct LaneStates {
        /// The log.
        pub log: LogId,
        /// Blocks from this one on.
        pub from_block: u64,
        /// Up to this one: where the log ends.
        pub through_block: u64,
        /// Of which streamlets; none: of all.
        pub streamlets: Vec<StreamletRef>,
    }
}

wire_struct! {
    /// A part of a segment that is in a log: chunks that follow one another.
    #[derive(Copy)]
    pub struct SegmentPart {
        /// The group.
        pub group: GroupId,
        /// The segment in it.
        pub segment: SegmentIndex,
        /// Where the first chunk starts.
        pub position: u32,
        /// Where the last chunk ends.
        pub end: u32,
        /// Ordinal of the first record.
        pub base_ordinal: u64,
        /// Ordinal of the record after the last.
        pub next_ordinal: u64,
        /// Of pieces of a compacted segment: of which rewriting, and places are those in its row; 0: of chunks as they were appended. From
        /// version 2 of the operation on.
        pub rewrite: u64,
        /// Where that row ends; 0: there is none. From version 2 of the operation on.
        pub row_end: u32,
    }
}

wire_struct! {
    /// One of the last chunks of a producer in a lane.
    #[derive(Copy)]
    pub struct ProducerPlace {
        /// The producer.
        pub producer_id: ProducerId,
        /// Its epoch.
        pub producer_epoch: ProducerEpoch,
        /// The chunk's sequence.
        pub sequence: u64,
        /// Ordinal of its first record.
        pub base_ordinal: u64,
        /// Where it is.
        pub at: Cursor,
    }
}

wire_struct! {
    /// A lane as a log has it.
    pub struct ReplicatedLane {
        /// The streamlet.
        pub streamlet: StreamletRef,
        /// The lane in it.
        pub lane: LaneId,
        /// Ordinal of the record after the last one that the log has.
        pub next_ordinal: u64,
        /// What of the lane is in the log, in the order of its places.
        pub parts: Vec<SegmentPart>,
        /// The last chunks of each producer, at most five of each, in the order of their ordinals.
        pub producers: Vec<ProducerPlace>,
    }
}

wire_struct! {
    /// States of lanes.
    pub struct LaneStateList {
        /// Those that have something in the blocks asked for.
        pub lanes: Vec<ReplicatedLane>,
    }
}

wire_struct! {
    /// Reads blocks of a log: whole ones to copy them, or only the chunks of some streamlets to rebuild their groups.
    pub struct ReadBlocks {
        /// The log.
        pub log: LogId,
        /// The first block.
        pub from_block: u64,
        /// The last block.
        pub through_block: u64,
        /// Only chunks of these streamlets; none: the blocks as they are.
        pub streamlets: Vec<StreamletRef>,
        /// About how many bytes of chunks; at least one block is answered.
        pub max_bytes: u32,
    }
}

wire_struct! {
    /// The head of a block that is read.
    #[derive(Copy)]
    pub struct BlockHead {
        /// Its number in its log.
        pub block: u64,
        /// When it was made, milliseconds since 1970.
        pub written_ms: i64,
        /// Chunks that follow of it.
        pub chunk_count: u32,
        /// Bytes of them.
        pub chunk_bytes: u32,
        /// CRC-32C of them.
        pub chunks_checksum: u32,
        /// Zero.
        pub zero: u32,
    }
}
const _: () = assert!(<BlockHead as Wire>::BYTES_MIN == BLOCK_HEAD_BYTES && BLOCK_HEAD_BYTES.is_multiple_of(8));

/// Blocks that were read, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlocksRead {
    /// Where to go on: behind the last block that was looked at.
    pub next_block: u64,
    /// Each with its chunks. Blocks without chunks of the streamlets asked for are left out.
    pub blocks: Vec<(BlockHead, Bytes)>,
}

wire_struct! {
    /// Gives files of a log back: nobody needs its blocks up to one of them any more.
    #[derive(Copy)]
    pub struct ReleaseBlocks {
        /// The log.
        pub log: LogId,
        /// Files go whose blocks are all up to this one; the highest number: all, and the log is forgotten.
        pub through_block: u64,
    }
}

wire_struct! {
    /// What went.
    #[derive(Copy)]
    pub struct BlocksReleased {
        /// Files.
        pub files: u32,
        /// Their bytes.
        pub bytes: u64,
    }
}

messages! {
    FenceNode => NodeFenced;
    ListReplicas => ReplicaList;
    ReadBlocks => BlocksRead;
    ReleaseBlocks => BlocksReleased;
}
responses!(BlockStored, ReplicaList, BlocksReleased);
versioned_responses! {
    NodeFenced, 1 NodeFencedV1;
    LaneStateList, 1 LaneStateListV1;
}

impl Message for LaneStates {
    const OP: Op = Op::LaneStates;
    type Response = LaneStateList;
}

impl Body for LaneStates {
    fn encode(&self, _version: u8, out: &mut Vec<u8>) {
        self.put(out);
    }

    fn decode(version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        Op::LaneStates.check_version(version)?;
        decode_whole(body)
    }
}

impl Message for StoreBlock {
    const OP: Op = Op::StoreBlock;
    type Response = BlockStored;
}

impl Body for StoreBlock {
    fn encode(&self, _version: u8, out: &mut Vec<u8>) {
        self.head.put(out);
        out.extend_from_slice(&self.chunks);
    }

    fn decode(version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        let (head, chunks) = StoreHead::parse(version, body)?;
        Ok(StoreBlock { head, chunks: Bytes::copy_from_slice(chunks) })
    }
}

impl Body for BlocksRead {
    fn encode(&self, _version: u8, out: &mut Vec<u8>) {
        (self.blocks.len() as u32).put(out);
        0u32.put(out);
        self.next_block.put(out);
        for (head, _) in &self.blocks {
            head.put(out);
        }
        for (_, chunks) in &self.blocks {
            out.extend_from_slice(chunks);
        }
    }

    fn decode(_version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        BlocksRead::parse(&Bytes::copy_from_slice(body))
    }
}

impl BlocksRead {
    /// Reads an answer's body without copying it: the chunks are parts of it.
    ///
    /// # Errors
    /// Those of [`Body::decode`].
    pub fn parse(body: &Bytes) -> Result<BlocksRead, ProtocolError> {
        let mut from = Reader::new(body);
        from.enter("BlocksRead.count");
        let count = from.count(BLOCK_HEAD_BYTES)?;
        from.enter("BlocksRead.zero");
        let zero = u32::get(&mut from)?;
        if zero != 0 {
            return Err(from.bad(zero.into(), "0"));
        }
        from.enter("BlocksRead.next_block");
        let next_block = u64::get(&mut from)?;
        let heads = (0..count).map(|_| BlockHead::get(&mut from)).collect::<Result<Vec<_>, _>>()?;
        let mut blocks = Vec::with_capacity(count);
        for head in heads {
            from.enter("BlocksRead.chunks");
            blocks.push((head, body.slice_ref(from.take(head.chunk_bytes as usize)?)));
        }
        from.finish()?;
        Ok(BlocksRead { next_block, blocks })
    }
}

impl Documented for StoreBlock {
    const NAME: &'static str = "StoreBlock";
    fn doc() -> String {
        "Stores a block of a virtual log. Behind these fields, whose bytes are 72, follow the chunks, stamped, back to back."
            .to_owned()
    }
    fn fields() -> Vec<FieldDoc> {
        StoreHead::fields()
    }
}

impl Documented for BlocksRead {
    const NAME: &'static str = "BlocksRead";
    fn doc() -> String {
        "Blocks in their order, those without a chunk of the streamlets asked for left out. Behind these fields follow the \
         blocks' heads, then the chunks of all."
            .to_owned()
    }
    fn fields() -> Vec<FieldDoc> {
        let field = |name, kind: &str, doc: &str| FieldDoc { name, kind: kind.to_owned(), doc: doc.to_owned() };
        vec![
            field("count", "u32", "How many blocks."),
            field("zero", "u32", "Zero."),
            field("next_block", "u64", "Where to go on: behind the last block that was looked at."),
            field("heads", "count × BlockHead", "Their heads, without a count of their own."),
            field("chunks", "bytes", "Their chunks, as many bytes as their heads say."),
        ]
    }
}

impl Specified for StoreBlock {
    fn traced(&self) -> Vec<TracedField> {
        let mut trace = crate::spec::Trace::default();
        trace.inside("head", &self.head);
        trace_bytes(&mut trace, "chunks", &self.chunks);
        trace.fields
    }
    fn any(source: &mut Source<'_>) -> Self {
        let (chunk_count, chunks) = any_chunks(source);
        let head = StoreHead {
            flags: source.below(2) as u32,
            chunk_count,
            chunk_bytes: chunks.len() as u32,
            ..StoreHead::sample(source)
        };
        StoreBlock { head, chunks: Bytes::from(chunks) }
    }
}

impl Specified for BlocksRead {
    fn traced(&self) -> Vec<TracedField> {
        let mut trace = crate::spec::Trace::default();
        trace.inside("count", &(self.blocks.len() as u32));
        trace.inside("zero", &0u32);
        trace.inside("next_block", &self.next_block);
        for (i, (head, _)) in self.blocks.iter().enumerate() {
            trace.inside(&format!("heads[{i}]"), head);
        }
        for (i, (_, chunks)) in self.blocks.iter().enumerate() {
            trace_bytes(&mut trace, &format!("chunks[{i}]"), chunks);
        }
        trace.fields
    }
    fn any(source: &mut Source<'_>) -> Self {
        let block = |source: &mut Source<'_>| {
            let (chunk_count, chunks) = any_chunks(source);
            let chunk_bytes = chunks.len() as u32;
            (BlockHead { chunk_count, chunk_bytes, ..BlockHead::sample(source) }, Bytes::from(chunks))
        };
        let next_block = u64::sample(source);
        let count = source.below(4);
        BlocksRead { next_block, blocks: (0..count).map(|_| block(source)).collect() }
    }
}

fn trace_bytes(trace: &mut crate::spec::Trace, name: &str, bytes: &[u8]) {
    if !bytes.is_empty() {
        trace.leaf(name, "chunks", format!("\"{} bytes\"", bytes.len()), bytes.to_vec());
    }
}
