//! One example of every body: what `spec/messages/` and the documents show.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Skip};
use kera_format::cluster::RaftPlace;
use kera_format::ids::*;
use kera_format::raft::{LogEntry, Payload};
use kera_format::vlog_replica::LogId;
use kera_format::{BrokerPart, ChunkBuilder, Compression, Order, Record, Settings, StreamOptions};
use kera_protocol::first::admin::{AlterStreamV1, CreateStreamV1, StreamInfoV1, StreamListV1};
use kera_protocol::first::application::JoinApplicationV1;
use kera_protocol::first::cluster::{ClusterDescriptionV1, JoinClusterV1, NodeAliveV1, StreamletsRebuiltV1};
use kera_protocol::first::moves::{CopiesMadeV1, GiveBackV1, GroupsOfferedV1, OfferGroupsV1};
use kera_protocol::first::node::CopiesDescriptionV1;
use kera_protocol::first::replication::{LaneStateListV1, NodeFencedV1};
use kera_protocol::first::write::WriteChunksV1;
use kera_protocol::groups::{LeasedGroup, SegmentPlace};
use kera_protocol::placement::{ChunkMark, KeptGroup, LaneState, Memory, ProducerState};
use kera_protocol::read::{ANSWER_MORE, ENTRY_FOLLOW_GROUPS};
use kera_protocol::second::admin::{AlterStreamV2, CreateStreamV2, StreamInfoV2, StreamListV2};
use kera_protocol::second::moves::OfferGroupsV2;
use kera_protocol::*;

/// A body with an example.
pub(crate) trait Example {
    /// The example.
    fn example() -> Self;
}

macro_rules! examples {
    ($($name:ident => $value:expr;)+) => { $(
        impl Example for $name {
            fn example() -> Self {
                $value
            }
        }
    )+ };
}

const STREAM: StreamId = StreamId(17);
const APPLICATION: ApplicationId = ApplicationId(5);
const MEMBER: u64 = 1_001;
const GROUP: GroupId = GroupId::new(3, 8);
const NOW_MS: i64 = 1_700_000_000_000;

const ABORTED: AbortedRecords = AbortedRecords {
    stream: StreamId(17),
    partition: 3,
    producer_id: ProducerId(9),
    producer_epoch: ProducerEpoch(2),
    first_offset: 41,
    marker_offset: 44,
    stable_offset: 45,
};
const MOVE: MoveInfo = MoveInfo { number: 4, stream: StreamId(17), streamlet: StreamletId(3), from: 1, to: 2 };
const BALLOT: RaftBallot = RaftBallot { term: 3, node: 1, committed: true };
const PLACE: RaftPlace = RaftPlace { term: 3, leader: 1, index: 12 };

fn raft_entry() -> Vec<u8> {
    let mut bytes = Vec::new();
    LogEntry { place: RaftPlace { index: 13, ..PLACE }, payload: Payload::Blank }.encode(&mut bytes);
    bytes
}

fn cursor(segment: u32, position: u32) -> Cursor {
    Cursor { group: GROUP, segment: SegmentIndex(segment), position }
}

fn stream_info() -> StreamInfo {
    let settings = Settings::from([("segment.bytes".into(), "1073741824".into())]);
    let options = StreamOptions { streamlets: 4, lanes: 2, settings, ..StreamOptions::default() };
    StreamInfo { id: STREAM, name: "flights".into(), created_ms: NOW_MS, options }
}

/// The chunk of a producer that writes one record.
pub(crate) fn sent_chunk() -> Vec<u8> {
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(b"hello"));
    let target = ChunkTarget {
        stream: STREAM,
        streamlet: StreamletId(2),
        producer_id: ProducerId(1_000),
        producer_epoch: ProducerEpoch(0),
        sequence: 0,
    };
    builder.seal(&target, Compression::None).expect("a chunk")
}

/// The same as it is read again.
fn stored_chunk() -> Vec<u8> {
    let mut chunk = sent_chunk();
    let place = BrokerPart {
        group: GROUP,
        segment: SegmentIndex(0),
        base_ordinal: 42,
        append_time_ms: NOW_MS,
        lane: LaneId(0),
        position: 128,
    };
    place.stamp(&mut chunk);
    chunk
}

const LOG: LogId = LogId { node: 3, epoch: 7, vlog: 2 };

fn streamlet() -> StreamletRef {
    StreamletRef { stream: STREAM, streamlet: StreamletId(2) }
}

fn store_block() -> StoreBlock {
    let chunks = stored_chunk();
    let head = StoreHead {
        cluster: *b"cluster-16-bytes",
        log: LOG,
        view: 2,
        view_first: 40,
        block: 41,
        written_ms: NOW_MS,
        chunk_count: 1,
        chunk_bytes: chunks.len() as u32,
        chunks_checksum: crc32c(&chunks),
        flags: 0,
    };
    StoreBlock { head, chunks: chunks.into() }
}

fn blocks_read() -> BlocksRead {
    let StoreBlock { head, chunks } = store_block();
    let StoreHead { block, written_ms, chunk_count, chunk_bytes, chunks_checksum, .. } = head;
    let head = BlockHead { block, written_ms, chunk_count, chunk_bytes, chunks_checksum, zero: 0 };
    BlocksRead { next_block: 42, blocks: vec![(head, chunks)] }
}

fn lane_states() -> LaneStateList {
    let part = SegmentPart {
        group: GROUP,
        segment: SegmentIndex(0),
        position: 128,
        end: 240,
        base_ordinal: 42,
        next_ordinal: 43,
        rewrite: 0,
        row_end: 0,
    };
    // A segment that was rewritten once, and whose only piece is its row.
    let group = GroupId(GROUP.0 - 1);
    let pieces = SegmentPart { group, end: 400, base_ordinal: 30, next_ordinal: 42, ..part };
    let pieces = SegmentPart { rewrite: 1 << 32 | 0x1234_5678, row_end: 400, ..pieces };
    let place = ProducerPlace {
        producer_id: ProducerId(1_000),
        producer_epoch: ProducerEpoch(0),
        sequence: 0,
        base_ordinal: 42,
        at: cursor(0, 128),
    };
    let (lane, next_ordinal) = (LaneId(0), 43);
    let streamlet = streamlet();
    LaneStateList {
        lanes: vec![ReplicatedLane {
            streamlet,
            lane,
            next_ordinal,
            parts: vec![pieces, part],
            producers: vec![place],
        }],
    }
}

fn read_entry() -> ReadEntry {
    ReadEntry {
        stream: STREAM,
        streamlet: StreamletId(2),
        lane: LaneId(0),
        cursor: cursor(0, 128),
        max_bytes: 1 << 20,
        flags: ENTRY_FOLLOW_GROUPS,
    }
}

fn read_response() -> ReadChunksResponse {
    let data = Bytes::from(stored_chunk());
    let answer = ReadAnswer {
        index: 0,
        status: 0,
        flags: ANSWER_MORE,
        start: cursor(0, 128),
        next: cursor(0, 128 + data.len() as u32),
        durable_ordinal: 45,
        data_bytes: data.len() as u32,
    };
    let gone = ReadAnswer::failed(1, Status::CursorGone, cursor(0, 128), cursor(3, 0));
    ReadChunksResponse { answers: vec![(answer, data), (gone, Bytes::new())] }
}

fn segment_list() -> SegmentList {
    let segment = SegmentInfo {
        index: SegmentIndex(1),
        place: SegmentPlace::Open,
        base_ordinal: 42,
        durable_ordinal: 45,
        durable_head: 464,
        capacity_bytes: 1 << 16,
        first_append_ms: NOW_MS,
        last_append_ms: NOW_MS + 20,
    };
    SegmentList { lane: LaneId(0), segments: vec![segment], complete: false, more: false }
}

fn committed_offsets() -> CommittedOffsets {
    let offset = CommittedOffset {
        streamlet: StreamletId(2),
        lane: LaneId(0),
        cursor: cursor(0, 240),
        ordinal: 43,
        done: false,
        committed_ms: NOW_MS,
    };
    CommittedOffsets { application: APPLICATION, offsets: vec![offset] }
}

fn description() -> ApplicationDescription {
    ApplicationDescription {
        application: APPLICATION,
        name: "report".into(),
        stream: STREAM,
        state: ApplicationState::Active,
        order: Order::Lane,
        members: vec![MemberInfo {
            member: MEMBER,
            name: "worker-1".into(),
            address: "127.0.0.1:50000".into(),
            joined_ms: NOW_MS,
            heartbeat_ms: NOW_MS + 3_000,
            leases: 1,
        }],
        leases: vec![LeaseInfo {
            lease: 77,
            member: MEMBER,
            streamlet: StreamletId(2),
            lane: LaneId(0),
            group: GROUP,
            since_ms: NOW_MS,
            until_ms: NOW_MS + 13_000,
        }],
        lanes: vec![LaneProgress {
            streamlet: StreamletId(2),
            lane: LaneId(0),
            committed_ordinal: Some(43),
            durable_ordinal: 45,
            lag: 2,
        }],
        lag: 2,
    }
}

fn node_status() -> NodeStatusResponse {
    NodeStatusResponse {
        node_id: *b"node-id-16-bytes",
        node_epoch: 3,
        version: "0.1.0".into(),
        roles: vec![Role::Coordinator, Role::Broker],
        started_ms: NOW_MS,
        uptime_ms: 60_000,
        ready: true,
        problems: vec![],
        arena_bytes: 1 << 30,
        arena_used_bytes: 1 << 20,
        streams: 2,
        lanes: 8,
        groups: 9,
        segments: 12,
        stored_bytes: 1_234_567,
        connections: 3,
        subscriptions: 1,
        applications: 1,
        appended_records: 10_000,
        appended_bytes: 1_200_000,
        read_bytes: 600_000,
        pending_bytes: 0,
        disks: vec![DiskStatus {
            path: "kera-data".into(),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            used_bytes: 1 << 28,
            problem: String::new(),
        }],
    }
}

fn owners() -> Owners {
    let node = |node: u32, rack: &str| NodeInfo {
        node,
        node_epoch: 3,
        address: format!("127.0.0.1:{}", 7_069 + node),
        kafka_address: format!("127.0.0.1:{}", 9_091 + node),
        http_address: String::new(),
        rack: rack.into(),
        roles: vec![Role::Broker, Role::Backup],
    };
    let older = vec![OlderGroups { first_epoch: 3, node: 1 }];
    let run = |first, count, step, node, epoch, older| OwnerRun { first, count, step, node, epoch, older };
    Owners {
        cluster: *b"cluster-16-bytes",
        version: 42,
        node: 1,
        nodes: vec![node(1, "a"), node(2, "b")],
        streams: vec![StreamOwners {
            stream: STREAM,
            streamlets: 8,
            runs: vec![run(StreamletId(2), 3, 2, 1, 3, vec![]), run(StreamletId(3), 1, 1, 2, 5, older)],
        }],
        more: false,
    }
}

fn streamlet_state() -> StreamletState {
    let mark = ChunkMark { sequence: 0, base_ordinal: 42, cursor: cursor(0, 128) };
    let producer = ProducerState {
        producer_id: ProducerId(1_000),
        producer_epoch: ProducerEpoch(0),
        sequence: 0,
        chunks: vec![mark],
    };
    let lane = LaneState {
        lane: LaneId(0),
        next_ordinal: 43,
        last_append_ms: NOW_MS,
        memory: Memory::Whole,
        producers: vec![producer],
        groups: vec![KeptGroup { group: GROUP, first_ordinal: 0, next_ordinal: 43 }],
    };
    StreamletState { stream: STREAM, streamlet: StreamletId(2), epoch: 3, lanes: vec![lane], progress: vec![1, 2, 3] }
}

examples! {
    Empty => Empty;
    Hello => Hello { client_name: "example".into(), client_version: "0.1.0".into() };
    HelloResponse => HelloResponse {
        server_name: "kera".into(),
        server_version: "0.1.0".into(),
        node_id: *b"node-id-16-bytes",
        node_epoch: 3,
        ops: vec![
            OpRange { op: Op::Hello as u16, version_min: 1, version_max: 1 },
            OpRange { op: Op::WriteChunks as u16, version_min: 1, version_max: 1 },
        ],
        frame_bytes_max: 32 << 20,
        chunk_bytes_max: (16 << 20) - 128,
        in_flight_bytes_max: 64 << 20,
        in_flight_requests_max: 1_024,
        subscriptions_max: 128,
        idle_timeout_ms: 600_000,
    };
    CreateStream => CreateStream {
        name: "flights".into(),
        options: stream_info().options,
        if_not_exists: true,
    };
    StreamInfo => stream_info();
    GetStream => GetStream { stream: "flights".into() };
    ListStreams => ListStreams { prefix: "fl".into(), after: String::new(), limit: 100, system: false };
    StreamList => StreamList { streams: vec![stream_info()], more: false };
    AlterStream => AlterStream {
        stream: STREAM.into(),
        changes: StreamChanges {
            retention_ms: Some(Some(86_400_000)),
            retention_bytes: Some(None),
            settings: BTreeMap::from([
                ("retention.bytes".into(), None),
                ("retention.ms".into(), Some("86400000".into())),
            ]),
            ..Default::default()
        },
    };
    DeleteStream => DeleteStream { stream: STREAM.into() };
    AllocateProducer => AllocateProducer { producer_id: None };
    AllocatedProducer => AllocatedProducer { producer_id: ProducerId(1_000), producer_epoch: ProducerEpoch(0) };
    FindOwners => FindOwners { streams: vec![STREAM.into()], after: Some((STREAM, StreamletId(1))), limit: 100 };
    Owners => owners();
    StreamletState => streamlet_state();
    WriteChunks => WriteChunks {
        timeout_ms: 30_000,
        chunk_count: 1,
        skips: vec![(0, Skip { from: 15 })],
        chunks: Bytes::from(sent_chunk()),
    };
    WriteChunksResponse => WriteChunksResponse { results: vec![ChunkResult {
        status: 0,
        duplicate: false,
        forgot: false,
        lane: LaneId(0),
        cursor: cursor(0, 128),
        base_ordinal: 42,
    }] };
    ReadChunks => ReadChunks {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 4 << 20,
        entries: vec![read_entry(), ReadEntry { streamlet: StreamletId(3), ..read_entry() }],
    };
    ReadChunksResponse => read_response();
    Subscribe => Subscribe { credit_bytes: 8 << 20, push_bytes_max: 1 << 20, entries: vec![read_entry()] };
    Subscribed => Subscribed { push_bytes_max: 1 << 20 };
    Credit => Credit { subscription: 9, credit_bytes: 1 << 20 };
    Unsubscribe => Unsubscribe { subscription: 9 };
    NextGroups => NextGroups { application: APPLICATION, member: MEMBER, max_groups: 4, max_wait_ms: 1_000 };
    LeasedGroups => LeasedGroups { groups: vec![LeasedGroup {
        streamlet: StreamletId(2),
        lane: LaneId(0),
        group: GROUP,
        start: cursor(0, 128),
        start_ordinal: 42,
        lease: 77,
    }] };
    NextSegments => NextSegments {
        stream: STREAM,
        streamlet: StreamletId(2),
        group: GROUP,
        after: Some(SegmentIndex(0)),
        limit: 16,
        max_wait_ms: 1_000,
    };
    SegmentList => segment_list();
    AvailableGroups => AvailableGroups { stream: STREAM, streamlet: StreamletId(2), after: GroupId::NONE, limit: 100 };
    GroupList => GroupList {
        groups: vec![GroupInfo {
            group: GROUP,
            lane: LaneId(0),
            first_segment: SegmentIndex(0),
            last_segment: SegmentIndex(1),
            first_ordinal: 0,
            durable_ordinal: 45,
            bytes: 66_000,
            closed: false,
            first_append_ms: NOW_MS - 60_000,
            last_append_ms: NOW_MS + 20,
        }],
        more: false,
    };
    AvailableSegments => AvailableSegments {
        stream: STREAM,
        streamlet: StreamletId(2),
        group: GROUP,
        after: None,
        limit: 0,
    };
    Lookup => Lookup { stream: STREAM, streamlet: StreamletId(2), lane: LaneId(0), at: Start::TimeMs(NOW_MS) };
    LookupResult => LookupResult { cursor: cursor(0, 128), ordinal: 42, first_ordinal: 0, durable_ordinal: 45 };
    StreamStats => StreamStats {
        stream: STREAM,
        streamlets: vec![StreamletId(2)],
        after: Some((StreamletId(1), LaneId(1))),
        limit: 0,
    };
    StreamStatsResponse => StreamStatsResponse {
        lanes: vec![LaneStats {
            streamlet: StreamletId(2),
            lane: LaneId(0),
            first_ordinal: 0,
            durable_ordinal: 45,
            next_ordinal: 46,
            bytes: 66_000,
            memory_bytes: 131_072,
            disk_bytes: 0,
            groups: 1,
            segments: 2,
            last_append_ms: NOW_MS + 20,
            compacted_ordinal: 30,
            uncompacted_bytes: 4_096,
        }],
        more: false,
    };
    JoinApplication => JoinApplication {
        application: "report".into(),
        stream: STREAM,
        member_name: "worker-1".into(),
        member: MEMBER,
        start: Start::Earliest,
        lease_ms: 0,
        leases: Some(vec![76, 77]),
    };
    JoinedApplication => JoinedApplication {
        application: APPLICATION,
        member: MEMBER,
        lease_ms: 10_000,
        heartbeat_ms: 3_000,
        order: Order::Lane,
    };
    Heartbeat => Heartbeat { application: APPLICATION, member: MEMBER };
    HeartbeatResponse => HeartbeatResponse { release: vec![77], leases: 3 };
    CommitOffsets => CommitOffsets {
        application: APPLICATION,
        member: MEMBER,
        entries: vec![CommitEntry {
            streamlet: StreamletId(2),
            lane: LaneId(0),
            lease: 77,
            cursor: cursor(0, 240),
            ordinal: 43,
            after: AfterCommit::Keep,
        }],
    };
    CommitResult => CommitResult { statuses: vec![Status::Ok as u16] };
    FetchOffsets => FetchOffsets { application: "report".into(), stream: STREAM, streamlets: vec![] };
    CommittedOffsets => committed_offsets();
    LeaveApplication => LeaveApplication { application: APPLICATION, member: MEMBER };
    ListApplications => ListApplications { stream: Some(STREAM) };
    ApplicationList => ApplicationList { applications: vec![ApplicationSummary {
        application: APPLICATION,
        name: "report".into(),
        stream: STREAM,
        state: ApplicationState::Active,
        members: 1,
        lag: 2,
    }] };
    DescribeApplication => DescribeApplication { application: "report".into(), stream: STREAM };
    ApplicationDescription => description();
    DeleteApplication => DeleteApplication { application: "report".into(), stream: STREAM };
    ResetOffsets => ResetOffsets {
        application: "report".into(),
        stream: STREAM,
        streamlets: vec![],
        to: Start::Ordinal(40),
        dry_run: true,
    };
    NodeStatus => NodeStatus;
    NodeStatusResponse => node_status();
    DescribeCopies => DescribeCopies;
    DescribeLogs => DescribeLogs;
    LogsDescription => LogsDescription {
        own: vec![OwnLog { stream: StreamId(17), streamlet: StreamletId(3), log: 4 }],
    };
    CopiesDescription => CopiesDescription {
        logs: 4,
        pending_bytes: 1 << 20,
        under_replicated_blocks: 17,
        rebuild_left_bytes: 3 << 30,
        backup_logs: 8,
        backup_bytes: 5 << 30,
        lost_logs: 2,
        lost_log_bytes: 1 << 30,
    };
    RaftVote => RaftVote { ballot: BALLOT, last: Some(PLACE) };
    RaftVoted => RaftVoted { ballot: BALLOT, granted: true, last: Some(PLACE) };
    RaftAppend => RaftAppend { ballot: BALLOT, before: Some(PLACE), entries: vec![raft_entry()], decided: Some(PLACE) };
    RaftAppended => RaftAppended { outcome: RaftOutcome::NewerLeader, through: None, ballot: Some(BALLOT) };
    RaftSnapshot => RaftSnapshot { ballot: BALLOT, place: PLACE, offset: 8, part: b"part".to_vec(), last: true };
    RaftSnapshotTaken => RaftSnapshotTaken { ballot: BALLOT };
    ForwardCommand => ForwardCommand { op: Op::DeleteStream as u16, version: 1, system: false, body: vec![1, 0, 0, 0, 0] };
    ForwardedCommand => ForwardedCommand { status: Status::Ok as u16, body: vec![], index: 12 };
    JoinCluster => JoinCluster {
        node: 2,
        uuid: *b"fedcba9876543210",
        roles: vec![Role::Broker, Role::Backup],
        rack: "b".into(),
        cluster_address: "10.0.0.2:7072".into(),
        native_address: "10.0.0.2:7070".into(),
        kafka_address: "10.0.0.2:9092".into(),
        http_address: String::new(),
        settings: vec![SharedSetting { name: "streams.streams_max".into(), value: "100000".into() }],
        epoch_min: 7,
        has_all: true,
        level_min: 1,
        level_max: 2,
    };
    CreateStreamV1 => CreateStreamV1::from(&CreateStream::example());
    StreamInfoV1 => StreamInfoV1::from(&stream_info());
    StreamListV1 => StreamListV1::from(&StreamList::example());
    AlterStreamV1 => AlterStreamV1::from(&AlterStream::example());
    CreateStreamV2 => CreateStreamV2::from(&CreateStream::example());
    StreamInfoV2 => StreamInfoV2::from(&stream_info());
    StreamListV2 => StreamListV2::from(&StreamList::example());
    AlterStreamV2 => AlterStreamV2::from(&AlterStream::example());
    JoinApplicationV1 => JoinApplicationV1 {
        member: 0,
        ..JoinApplicationV1::from(&JoinApplication::example())
    };
    WriteChunksV1 => WriteChunksV1::from(&WriteChunks::example());
    JoinClusterV1 => JoinClusterV1::from(&JoinCluster::example());
    NodeAliveV1 => NodeAliveV1::from(&NodeAlive::example());
    CopiesDescriptionV1 => CopiesDescriptionV1::from(&CopiesDescription::example());
    LaneStateListV1 => LaneStateListV1::from(&lane_states());
    StreamletsRebuiltV1 => StreamletsRebuiltV1::from(&StreamletsRebuilt::example());
    ClusterDescriptionV1 => ClusterDescriptionV1::from(&ClusterDescription::example());
    JoinedCluster => JoinedCluster { cluster: *b"0123456789abcdef", epoch: 7, index: 12 };
    NodeAlive => NodeAlive { node: 2, epoch: 7, level_max: 2 };
    NodeHeard => NodeHeard { leader: 1, live: true };
    DescribeCluster => DescribeCluster;
    ClusterDescription => ClusterDescription {
        cluster: *b"0123456789abcdef",
        leader: 1,
        term: 3,
        applied: 12,
        nodes: vec![MemberNode {
            node: 2,
            epoch: 7,
            uuid: *b"fedcba9876543210",
            fenced: false,
            votes: true,
            roles: vec![Role::Coordinator, Role::Broker],
            rack: "b".into(),
            cluster_address: "10.0.0.2:7072".into(),
            native_address: "10.0.0.2:7070".into(),
            streamlets: 9,
            level_max: 2,
        }],
        logs: 1,
        waiting_streamlets: 0,
        level: 1,
    };
    ChangeLog => ChangeLog { log: LOG, change: LogChange::View, view: 2, first_block: 100, backups: vec![1, 4] };
    RebuildNeeds => RebuildNeeds {
        node: 2,
        epoch: 7,
        streamlets: vec![RebuildRange { stream: StreamId(17), first: 3, count: 1, owner_epoch: 8 }],
        logs: vec![LogId { node: 1, epoch: 4, vlog: 0 }],
    };
    UseEnds => UseEnds {
        node: 2,
        epoch: 7,
        ends: vec![UsedEnd { log: LogId { node: 1, epoch: 4, vlog: 0 }, end: 120 }],
    };
    StreamletsRebuilt => StreamletsRebuilt {
        node: 3,
        epoch: 7,
        streamlets: vec![RebuildRange { stream: StreamId(17), first: 1, count: 3, owner_epoch: 8 }],
    };
    StoreBlock => store_block();
    BlockStored => BlockStored { outcome: StoreOutcome::Stored, block: 41 };
    FenceNode => FenceNode { node: 3, epoch: 7, logs: vec![LogView { vlog: 2, first_block: 40 }] };
    NodeFenced => NodeFenced { ends: vec![LogEnd { vlog: 2, through: 41, certain: true, begun: 42 }] };
    NodeFencedV1 => NodeFencedV1::from(&NodeFenced::example());
    ListReplicas => ListReplicas { after: None, limit: 100 };
    ReplicaList => ReplicaList {
        replicas: vec![ReplicaInfo {
            log: LOG,
            blocks: vec![BlockRange { first: 40, last: 41 }],
            files: 1,
            bytes: 32 << 20,
            fenced: false,
        }],
        more: false,
    };
    LaneStates => LaneStates { log: LOG, from_block: 40, through_block: 41, streamlets: vec![streamlet()] };
    LaneStateList => lane_states();
    ReadBlocks => ReadBlocks {
        log: LOG,
        from_block: 40,
        through_block: 41,
        streamlets: vec![streamlet()],
        max_bytes: 1 << 20,
    };
    BlocksRead => blocks_read();
    ReleaseBlocks => ReleaseBlocks { log: LOG, through_block: 39 };
    BlocksReleased => BlocksReleased { files: 1, bytes: 32 << 20 };
    MoveStreamlet => MoveStreamlet { stream: StreamRef::Name("payments".into()), streamlet: StreamletId(3), to: 2 };
    MoveInfo => MOVE;
    LetGo => LetGo { number: 4, stream: StreamId(17), streamlet: StreamletId(3) };
    LetGone => LetGone { state: vec![1, 2, 3] };
    FinishMove => FinishMove { number: 4, node: 2, epoch: 7, state: vec![1, 2, 3] };
    ChangeNode => ChangeNode { node: 2, change: NodeChange::Remove };
    PlanRebalance => PlanRebalance { limit: 100 };
    MovePlan => MovePlan { moves: vec![MoveInfo { number: 0, ..MOVE }] };
    GroupsGone => GroupsGone {
        node: 1,
        epoch: 7,
        groups: vec![HeldGroups { stream: StreamId(17), first: 3, count: 1, owner_epoch: 8 }],
    };
    OfferGroups => OfferGroups {
        node: 1,
        epoch: 7,
        stream: StreamId(17),
        streamlet: StreamletId(3),
        owner_epoch: 8,
        lanes: vec![WholeLane { lane: LaneId(0), first_ordinal: 0, next_ordinal: 1_000 }],
        cut_off: vec![WholeLane { lane: LaneId(0), first_ordinal: 1_000, next_ordinal: 1_020 }],
        let_go: vec![LaneId(0)],
        is_uncut: true,
    };
    GroupsOffered => GroupsOffered {
        is_taken: false,
        lacking: vec![WholeLane { lane: LaneId(0), first_ordinal: 1_000, next_ordinal: 1_010 }],
    };
    OfferGroupsV1 => OfferGroupsV1::from(&OfferGroups::example());
    OfferGroupsV2 => OfferGroupsV2::from(&OfferGroups::example());
    GroupsOfferedV1 => GroupsOfferedV1 { is_taken: true };
    ReturnGroups => ReturnGroups {
        node: 2,
        epoch: 7,
        stream: StreamId(17),
        streamlet: StreamletId(3),
        owner_epoch: 8,
        holder: 1,
        holder_epoch: 9,
        state: vec![1, 2, 3],
    };
    GiveBack => GiveBack {
        node: 2,
        epoch: 7,
        stream: StreamId(17),
        streamlet: StreamletId(3),
        owner_epoch: 8,
        to: 1,
        to_epoch: 9,
        keeps: vec![3],
    };
    GiveBackV1 => GiveBackV1::from(&GiveBack::example());
    CopiesMade => CopiesMade {
        node: 1,
        epoch: 7,
        stream: StreamId(17),
        streamlet: StreamletId(3),
        copies: 3,
        number: 4,
        state: vec![1, 2, 3],
        owner_epoch: 8,
    };
    CopiesMadeV1 => CopiesMadeV1::from(&CopiesMade::example());
    DescribeCopyChanges => DescribeCopyChanges { limit: 100 };
    CopyChanges => CopyChanges {
        changes: vec![CopyChange {
            stream: StreamId(17),
            name: "payments".into(),
            copies: 1,
            wanted: 3,
            streamlets: 8,
            there: 5,
            waits_for: vec![2],
        }],
        more: false,
    };
    RenewOwner => RenewOwner { stream: StreamId(17), streamlet: StreamletId(3), node: 1, epoch: 7 };
    SetFloors => SetFloors {
        floors: vec![LaneFloor {
            stream: StreamId(17),
            streamlet: StreamletId(3),
            lane: LaneId(1),
            owner_epoch: 8,
            ordinal: 1_000_000,
        }],
    };
    DescribeMoves => DescribeMoves { limit: 100 };
    MovesDescription => MovesDescription {
        moves: vec![MOVE],
        under_way: 1,
        nodes: vec![NodeHoldings { node: 1, draining: true, streamlets: 9, held: 1, logs: 2 }],
    };
    AcceptLoss => AcceptLoss { stream: StreamRef::Name("payments".into()), streamlet: StreamletId(3) };
    DescribeLostLogs => DescribeLostLogs { limit: 100 };
    LostLogs => LostLogs {
        logs: vec![LostLog {
            log: LOG,
            end: 0,
            missing: vec![MissingBlocks { view: 2, first: 101, last: 0, backups: vec![2, 3] }],
            lost_nodes: vec![1, 3],
            live_nodes: Vec::new(),
            streamlets: vec![StreamletRange { stream: StreamId(17), first: 3, count: 2 }],
        }],
    };
    NodeLoad => NodeLoad {
        node: 2,
        epoch: 7,
        bytes_per_s: 9 << 20,
        streamlets: vec![StreamletLoad { stream: StreamId(17), streamlet: StreamletId(3), bytes_per_s: 8 << 20 }],
    };
    PlanBalance => PlanBalance { limit: 100 };
    BalancePlan => BalancePlan {
        moves: vec![PlannedMove {
            stream: StreamId(17),
            streamlet: StreamletId(3),
            from: 1,
            to: 2,
            bytes_per_s: 8 << 20,
        }],
        nodes: vec![PlannedNode {
            node: 1,
            told: true,
            streamlets: 9,
            bytes_per_s: 17 << 20,
            streamlets_after: 8,
            bytes_per_s_after: 9 << 20,
        }],
        by_itself: true,
    };
    AcceptLogLoss => AcceptLogLoss { log: LOG, gone: vec![1, 2, 3] };
    AcceptStreamletLoss => AcceptStreamletLoss {
        stream: StreamId(17),
        streamlet: StreamletId(3),
        log: LOG,
        first: 101,
        last: 120,
        gone: vec![2, 3],
    };
    TransactionsIn => TransactionsIn {
        part: 5,
        streamlets: vec![OwnedStreamlet { stream: StreamId(17), streamlet: StreamletId(3), owner_epoch: 8 }],
    };
    TransactionsHeld => TransactionsHeld {
        epoch: 7,
        open: vec![OpenTransaction {
            stream: StreamId(17),
            partition: 3,
            producer_id: ProducerId(9),
            producer_epoch: ProducerEpoch(2),
            from_offset: 41,
        }],
        aborted: vec![ABORTED],
    };
    ClaimPartition => ClaimPartition {
        id: "transfers".into(),
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(2),
        topic: "payments".into(),
        partition: 3,
        stream: StreamId(17),
        from_offset: 41,
        adds: true,
    };
    PartitionClaimed => PartitionClaimed { error: 0, from_offset: 41, part_epoch: 7 };
    ClaimGroup => ClaimGroup {
        id: "transfers".into(),
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(2),
        group: "accounts".into(),
        adds: false,
    };
    GroupClaimed => GroupClaimed { error: 0, number: 1_700_000_000_000, part_epoch: 7 };
    EndInPartitions => EndInPartitions {
        part: 5,
        part_epoch: 7,
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(2),
        commit: false,
        partitions: vec![EndedPartition { stream: StreamId(17), partition: 3, owner_epoch: 8, from_offset: 41 }],
    };
    PartitionsEnded => PartitionsEnded {
        partitions: vec![
            PartitionEnded { error: 0, start: 12, aborted: Some(ABORTED) },
            PartitionEnded { error: 6, start: 0, aborted: None },
        ],
    };
    EndInGroup => EndInGroup {
        part: 5,
        part_epoch: 7,
        group: "accounts".into(),
        owner_epoch: 8,
        producer_id: ProducerId(9),
        number: 1_700_000_000_000,
        commit: true,
    };
    GroupEnded => GroupEnded { error: 0 };
}
