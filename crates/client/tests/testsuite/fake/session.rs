//! One connection to the fake broker.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_env::Clock;
use kera_format::{Cursor, StreamletId};
use kera_protocol::read::{ANSWER_END_OF_GROUP, ENTRY_FOLLOW_GROUPS, write_answers};
use kera_protocol::{
    AllocateProducer, AllocatedProducer, Body, ChunkResult, ChunkResults, Credit, Empty, ErrorBody, FrameHeader,
    GetStream, LaneStats, LeasedGroups, Lookup, LookupResult, NodeInfo, Op, OwnerRun, Owners, ReadAnswer, ReadChunks,
    ReadEntry, Status, StreamOwners, StreamRef, StreamStats, StreamStatsResponse, Subscribe, Subscribed, Unsubscribe,
    WriteChunksView,
};
use kera_rpc::{Flow, Outbox, Session};

use super::{Fake, Fault, STREAM, State, WAITING_MAX};

pub struct FakeSession {
    fake: Arc<Fake>,
    subscriptions: Vec<FakeSubscription>,
    polls: Vec<(FrameHeader, ReadChunks)>,
    next_groups: Vec<(FrameHeader, kera_protocol::NextGroups, u64)>,
    /// Answers to writes that are late, in their order, and when they come.
    late: VecDeque<(u64, FrameHeader, Vec<ChunkResult>)>,
    /// Lookups that wait for the disk, and when that has given back what they are for.
    loading: VecDeque<(u64, FrameHeader, Lookup)>,
    /// It answers nothing any more; which of the lingering ones it is.
    silent: Option<usize>,
    clock: Arc<kera_env::SystemClock>,
}

struct FakeSubscription {
    header: FrameHeader,
    entries: Vec<Option<ReadEntry>>,
    credit: i64,
    push_bytes_max: usize,
}

impl FakeSession {
    pub fn new(fake: Arc<Fake>) -> FakeSession {
        let clock = Arc::clone(&fake.clock);
        let late = VecDeque::new();
        FakeSession {
            fake,
            subscriptions: Vec::new(),
            polls: Vec::new(),
            next_groups: Vec::new(),
            late,
            loading: VecDeque::new(),
            silent: None,
            clock,
        }
    }

    fn write(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        let fake = Arc::clone(&self.fake);
        let mut state = fake.state();
        if state.hold_writes {
            return Flow::Blocked;
        }
        if self.lingers(&mut state, header.version, body) {
            return Flow::Done;
        }
        let fault = state.faults.pop_front().unwrap_or(Fault::Pass);
        let view = WriteChunksView::parse(header.version, body).unwrap();
        let chunks: Vec<_> = view.chunks().map(|chunk| chunk.unwrap()).collect();
        state.requests.push(chunks.iter().map(|c| (c.header().streamlet.0, c.header().sequence)).collect());
        match fault {
            Fault::Break => return Flow::Close("a fault".into()),
            Fault::Stall => return Flow::Done,
            Fault::Request(status) => {
                out.error(header, status, &ErrorBody { message: "a fault".into(), retry_after_ms: 1 });
                return Flow::Done;
            }
            Fault::Forget => state.forget_producers(None),
            Fault::ForgetIn(streamlet) => state.forget_producers(Some(streamlet)),
            _ => {}
        }
        let mut mood = state.mood.take();
        // As long as connections fall silent the rest is to be well enough for much to be sent.
        let (chunks_fail, breaks) = if state.lingers { (25, 200) } else { (6, 60) };
        if mood.as_mut().is_some_and(|mood| mood.once_in(breaks)) {
            state.mood = mood;
            return Flow::Close("a mood".into());
        }
        let mut results = Vec::new();
        for (i, chunk) in chunks.iter().enumerate() {
            results.push(match fault {
                Fault::FirstChunk(status) if i == 0 => ChunkResult::failed(status, 0),
                _ if mood.as_mut().is_some_and(|mood| mood.once_in(chunks_fail)) => {
                    ChunkResult::failed(Status::ArenaFull, 0)
                }
                _ => state.append(chunk, view.skip(i as u32)),
            });
            // It is there, but its copies are late.
            if mood.as_mut().is_some_and(|mood| mood.once_in(chunks_fail)) && results[i].status == 0 {
                results[i] = ChunkResult::failed(Status::Timeout, 0);
            }
        }
        let breaks = mood.as_mut().is_some_and(|mood| mood.once_in(breaks));
        // The worst moment: somebody has just been told that something is missing.
        let is_gap = results.iter().any(|result| result.status() == Some(Status::SequenceGap));
        if state.lingers && is_gap && mood.as_mut().is_some_and(|mood| mood.once_in(2)) {
            let last = state.lingering.len().wrapping_sub(1);
            while state.append_lingering(last) {}
        }
        let late_us = mood.as_mut().map(|mood| mood.below(4) * mood.below(2_000));
        state.mood = mood;
        drop(state);
        fake.wake_all();
        match fault {
            Fault::AppendAndBreak => return Flow::Close("a fault".into()),
            Fault::AppendAndStall => return Flow::Done,
            _ if breaks => return Flow::Close("a mood".into()),
            _ => {}
        }
        match late_us {
            Some(late_us) => self.late.push_back((self.clock.monotonic_us() + late_us, *header, results)),
            None => tell(header, &results, out),
        }
        self.tell_late(out);
        Flow::Done
    }

    /// Whether a request is put aside, because the connection is silent. Otherwise one that was may be treated now, in front of this one.
    fn lingers(&mut self, state: &mut State, version: u8, body: &[u8]) -> bool {
        if !state.lingers {
            return false;
        }
        let Some(mut mood) = state.mood.take() else { return false };
        if self.silent.is_none() && mood.once_in(30) {
            self.silent = Some(state.lingering.len());
            state.lingering.push(VecDeque::new());
        }
        if let Some(at) = self.silent {
            state.lingering[at].push_back((version, body.to_vec()));
        } else if mood.once_in(2) && !state.lingering.is_empty() {
            let at = mood.below(state.lingering.len() as u64) as usize;
            state.append_lingering(at);
        }
        state.mood = Some(mood);
        self.silent.is_some()
    }

    fn tell_late(&mut self, out: &mut Outbox) {
        while let Some((at_us, ..)) = self.late.front()
            && *at_us <= self.clock.monotonic_us()
        {
            let (_, header, results) = self.late.pop_front().expect("it is there");
            tell(&header, &results, out);
        }
    }

    /// A lookup that has to wait for the disk. As in earlier versions one too many is refused for good.
    fn load(&mut self, header: &FrameHeader, asked: Lookup, takes_us: u64, out: &mut Outbox) -> Flow {
        if self.loading.len() >= WAITING_MAX {
            return self.answer::<Empty>(header, out, Err(Status::LimitReached));
        }
        self.loading.push_back((self.clock.monotonic_us() + takes_us, *header, asked));
        Flow::Done
    }

    fn tell_loaded(&mut self, out: &mut Outbox) {
        while let Some((at_us, ..)) = self.loading.front()
            && *at_us <= self.clock.monotonic_us()
        {
            let (_, header, asked) = self.loading.pop_front().expect("it is there");
            let found = lookup(&self.fake.state(), &asked);
            self.answer(&header, out, found);
        }
    }

    /// Whether there is room for so many entries more.
    fn has_room(&self, state: &mut State, entries: usize) -> bool {
        let subscribed: usize = self.subscriptions.iter().map(|subscription| subscription.entries.len()).sum();
        let polled: usize = self.polls.iter().map(|(_, poll)| poll.entries.len()).sum();
        let has_room = subscribed + polled + entries <= state.entries_max;
        state.entries_refused += u64::from(!has_room);
        has_room
    }

    fn push(&mut self, out: &mut Outbox) {
        let fake = Arc::clone(&self.fake);
        let mut state = fake.state();
        for subscription in &mut self.subscriptions {
            while subscription.credit > 0 {
                let (answers, data) = read(&state, &mut subscription.entries, subscription.push_bytes_max);
                if answers.is_empty() {
                    break;
                }
                let mut frame = out.begin_push(&subscription.header, Status::Ok);
                write_answers(&answers, frame.body());
                frame.body().extend_from_slice(&data);
                frame.finish();
                subscription.credit -= data.len() as i64;
                state.pushed_bytes += data.len() as u64;
                state.debt_bytes = state.debt_bytes.max(-subscription.credit);
            }
        }
        self.subscriptions.retain(|subscription| subscription.entries.iter().any(Option::is_some));
        let polls = std::mem::take(&mut self.polls);
        for (header, poll) in polls {
            let mut entries: Vec<_> = poll.entries.iter().copied().map(Some).collect();
            let (answers, data) = read(&state, &mut entries, poll.max_bytes as usize);
            if answers.is_empty() {
                self.polls.push((header, poll));
                continue;
            }
            let mut frame = out.begin(&header.response(0));
            write_answers(&answers, frame.body());
            frame.body().extend_from_slice(&data);
            frame.finish();
        }
        let waiting = std::mem::take(&mut self.next_groups);
        let now_us = self.clock.monotonic_us();
        for (header, request, until_us) in waiting {
            match super::members::next_groups(&mut state, &request) {
                Some(Ok(groups)) => out.respond(&header, &groups),
                Some(Err(status)) => out.error(&header, status, &ErrorBody::new("members")),
                None if until_us <= now_us => out.respond(&header, &LeasedGroups { groups: Vec::new() }),
                None => self.next_groups.push((header, request, until_us)),
            }
        }
    }

    fn answer<B: Body>(&self, header: &FrameHeader, out: &mut Outbox, answer: Result<B, Status>) -> Flow {
        match answer {
            Ok(body) => out.respond(header, &body),
            Err(status) => out.error(header, status, &ErrorBody::new("the fake says no")),
        }
        Flow::Done
    }
}

/// Whether something is to happen to an operation, which then has happened.
fn once(wanted: &mut Vec<Op>, op: Op) -> bool {
    let found = wanted.iter().position(|wanted| *wanted == op);
    found.map(|at| wanted.remove(at)).is_some()
}

fn tell(header: &FrameHeader, results: &[ChunkResult], out: &mut Outbox) {
    let mut frame = out.begin(&header.response(0));
    let mut answer = ChunkResults::begin(frame.body(), results.len() as u32);
    results.iter().for_each(|result| answer.push(result));
    answer.finish();
    frame.finish();
}

/// What the entries can be told now. Entries that end are taken out.
fn read(state: &State, entries: &mut [Option<ReadEntry>], bytes_max: usize) -> (Vec<ReadAnswer>, Vec<u8>) {
    let (mut answers, mut data) = (Vec::new(), Vec::new());
    for (index, slot) in entries.iter_mut().enumerate() {
        let Some(entry) = slot else { continue };
        let Some(log) = state.logs.get(&(entry.streamlet.0, entry.lane.0)) else { continue };
        let start = if entry.cursor == Cursor::default() { log.earliest() } else { entry.cursor };
        if start < log.earliest() {
            answers.push(ReadAnswer::failed(index as u32, Status::CursorGone, start, log.earliest()));
            *slot = None;
            continue;
        }
        // Behind the end of a group that takes no more: its end was lost.
        let group_end = log
            .chunks
            .iter()
            .rfind(|chunk| chunk.cursor.group == start.group)
            .map(|chunk| Cursor { position: chunk.cursor.position + chunk.bytes.len() as u32, ..chunk.cursor });
        if let Some(end) = group_end.filter(|end| start.group < log.end().group && start > *end) {
            answers.push(ReadAnswer::failed(index as u32, Status::CursorGone, start, end));
            *slot = None;
            continue;
        }
        if start > log.end() {
            answers.push(ReadAnswer::failed(index as u32, Status::CursorUnknown, start, start));
            *slot = None;
            continue;
        }
        let follow = entry.flags & ENTRY_FOLLOW_GROUPS != 0;
        let mut next = start;
        let from = data.len();
        let mut at = log.index_of(start);
        while let Some(chunk) = log.chunks.get(at) {
            let full = data.len() > from && data.len() + chunk.bytes.len() > bytes_max;
            if full || !follow && chunk.cursor.group != start.group {
                break;
            }
            data.extend_from_slice(&chunk.bytes);
            next = Cursor { position: chunk.cursor.position + chunk.bytes.len() as u32, ..chunk.cursor };
            at += 1;
        }
        // A group is over when a later one has started, or was closed.
        let over = next.group < log.end().group && log.chunks.get(at).is_none_or(|c| c.cursor.group > next.group);
        let end_of_group = over && !follow;
        if over && follow {
            next = log.chunks.get(at).map_or(log.end(), |chunk| chunk.cursor);
        }
        let data_bytes = (data.len() - from) as u32;
        if data_bytes == 0 && !end_of_group {
            continue;
        }
        answers.push(ReadAnswer {
            index: index as u32,
            status: 0,
            flags: if end_of_group { ANSWER_END_OF_GROUP } else { 0 },
            start,
            next,
            durable_ordinal: log.next_ordinal,
            data_bytes,
        });
        entry.cursor = next;
        if end_of_group {
            *slot = None;
        }
        if data.len() >= bytes_max {
            break;
        }
    }
    (answers, data)
}

fn stats(state: &State) -> StreamStatsResponse {
    let lanes = state.logs.iter().map(|((streamlet, lane), log)| LaneStats {
        streamlet: kera_format::StreamletId(*streamlet),
        lane: kera_format::LaneId(*lane),
        first_ordinal: log.first_ordinal(),
        durable_ordinal: log.next_ordinal,
        next_ordinal: log.next_ordinal,
        bytes: 0,
        memory_bytes: 0,
        disk_bytes: 0,
        groups: 1,
        segments: 1,
        last_append_ms: 0,
        compacted_ordinal: 0,
        uncompacted_bytes: 0,
    });
    StreamStatsResponse { lanes: lanes.collect(), more: false }
}

/// It is alone, or the only node of a cluster.
fn owners(state: &State) -> Owners {
    let node = u32::from(state.in_cluster);
    let info = NodeInfo {
        node,
        node_epoch: 1,
        address: String::new(),
        kafka_address: String::new(),
        http_address: String::new(),
        rack: String::new(),
        roles: Vec::new(),
    };
    let (stream, streamlets) = (state.info.id, state.info.options.streamlets);
    let all = OwnerRun { first: StreamletId(0), count: streamlets, step: 1, node, epoch: 1, older: Vec::new() };
    let streams = state.in_cluster.then(|| StreamOwners { stream, streamlets, runs: vec![all] });
    let streams = streams.into_iter().collect();
    Owners { cluster: [node as u8; 16], version: node.into(), node, nodes: vec![info], streams, more: false }
}

fn lookup(state: &State, lookup: &Lookup) -> Result<LookupResult, Status> {
    let options = &state.info.options;
    if lookup.streamlet.0 >= options.streamlets || lookup.lane.0 >= options.lanes {
        return Err(Status::UnknownLane);
    }
    let Some(log) = state.logs.get(&(lookup.streamlet.0, lookup.lane.0)) else {
        return Ok(LookupResult { cursor: Cursor::default(), ordinal: 0, first_ordinal: 0, durable_ordinal: 0 });
    };
    let (cursor, ordinal) = log.lookup(lookup.at);
    Ok(LookupResult { cursor, ordinal, first_ordinal: log.first_ordinal(), durable_ordinal: log.next_ordinal })
}

impl Session for FakeSession {
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        let op = Op::from_u16(header.op).unwrap();
        if op == Op::WriteChunks {
            return self.write(header, body, out);
        }
        let fake = Arc::clone(&self.fake);
        let mut state = fake.state();
        if once(&mut state.breaks, op) {
            return Flow::Close("a fault".into());
        }
        if once(&mut state.mutes, op) {
            return Flow::Done;
        }
        if op == Op::Lookup
            && let Some(left) = state.lookups_left
        {
            let Some(left) = left.checked_sub(1) else {
                state.lookups_held += 1;
                return Flow::Blocked;
            };
            state.lookups_left = Some(left);
        }
        let flow = match op {
            Op::GetStream => {
                let found = match GetStream::decode(1, body).unwrap().stream {
                    StreamRef::Name(name) => name == STREAM,
                    StreamRef::Id(id) => id == state.info.id,
                };
                state.stream_asked += 1;
                let is_heard_of = state.unheard == 0;
                state.unheard = state.unheard.saturating_sub(1);
                let found = found && is_heard_of;
                self.answer(header, out, if found { Ok(state.info.clone()) } else { Err(Status::UnknownStream) })
            }
            Op::AllocateProducer => {
                let asked = AllocateProducer::decode(1, body).unwrap().producer_id;
                let id = asked.map_or(state.epochs.len() as u64 + 1, |id| id.0);
                let epoch = state.epochs.entry(id).and_modify(|epoch| *epoch += 1).or_insert(0);
                let producer_epoch = kera_format::ProducerEpoch(*epoch);
                let producer_id = kera_format::ProducerId(id);
                self.answer(header, out, Ok(AllocatedProducer { producer_id, producer_epoch }))
            }
            Op::FindOwners => {
                let found = owners(&state);
                self.answer(header, out, Ok(found))
            }
            Op::StreamStats => {
                StreamStats::decode(1, body).unwrap();
                self.answer(header, out, Ok(stats(&state)))
            }
            Op::Lookup if state.is_on_disk => {
                state.loads += 1;
                self.load(header, Lookup::decode(1, body).unwrap(), state.load_us, out)
            }
            Op::Lookup => self.answer(header, out, lookup(&state, &Lookup::decode(1, body).unwrap())),
            Op::ReadChunks => {
                let poll = ReadChunks::decode(1, body).unwrap();
                state.polls += 1;
                if self.has_room(&mut state, poll.entries.len()) {
                    self.polls.push((*header, poll));
                } else {
                    out.error(header, Status::LimitReached, &ErrorBody::new("entries"));
                }
                Flow::Done
            }
            Op::Subscribe => {
                let subscribe = Subscribe::decode(1, body).unwrap();
                if !self.has_room(&mut state, subscribe.entries.len()) {
                    return self.answer::<Empty>(header, out, Err(Status::LimitReached));
                }
                state.subscribes += 1;
                state.credit_bytes += subscribe.credit_bytes;
                let push_bytes_max = match subscribe.push_bytes_max {
                    0 => 64 << 10,
                    bytes => bytes as usize,
                };
                out.respond(header, &Subscribed { push_bytes_max: push_bytes_max as u32 });
                self.subscriptions.push(FakeSubscription {
                    header: *header,
                    entries: subscribe.entries.into_iter().map(Some).collect(),
                    credit: subscribe.credit_bytes as i64,
                    push_bytes_max,
                });
                state.subscriptions_max = state.subscriptions_max.max(self.subscriptions.len());
                Flow::Done
            }
            Op::Credit => {
                let credit = Credit::decode(1, body).unwrap();
                state.credit_bytes += credit.credit_bytes;
                for subscription in &mut self.subscriptions {
                    if subscription.header.correlation == credit.subscription {
                        subscription.credit += credit.credit_bytes as i64;
                    }
                }
                Flow::Done
            }
            Op::Unsubscribe => {
                let unsubscribe = Unsubscribe::decode(1, body).unwrap();
                self.subscriptions.retain(|s| s.header.correlation != unsubscribe.subscription);
                self.answer(header, out, Ok(Empty))
            }
            Op::NextGroups => {
                let request = kera_protocol::NextGroups::decode(1, body).unwrap();
                let until_us = self.clock.monotonic_us() + u64::from(request.max_wait_ms) * 1_000;
                if state.members.lost_answers > 0 && super::members::next_groups(&mut state, &request).is_some() {
                    state.members.lost_answers -= 1;
                    return Flow::Close("a fault".into());
                }
                self.next_groups.push((*header, request, until_us));
                Flow::Done
            }
            op => super::members::on_frame(&mut state, op, header, body, out),
        };
        drop(state);
        self.push(out);
        flow
    }

    fn on_wake(&mut self, out: &mut Outbox) {
        self.tell_late(out);
        self.tell_loaded(out);
        self.push(out);
    }

    fn deadline_us(&self) -> Option<u64> {
        let late = self.late.front().map(|(at_us, ..)| *at_us);
        let loading = self.loading.front().map(|(at_us, ..)| *at_us);
        self.next_groups.iter().map(|(.., until_us)| *until_us).chain(late).chain(loading).min()
    }
}
