//! The front and a thief: what the argument in [`open`](super::open) claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_format::chunk::NO_TIMESTAMP;
use kera_format::{ChunkView, Compression, LaneId, ProducerEpoch, ProducerId, Record, StreamId, StreamletId};
use tokio::time::Instant;

use super::buffer::{Buffer, BufferSettings, Sequences};
use super::front::Front;
use super::open::LOOK_AGAIN;
use super::report::Delivered;
use super::sender::Shared;
use crate::{ClientError, Routing, Status};

/// From now on until all that a test writes is due, however long its thread stands still, and long before anything is given up.
const SOON: Duration = Duration::from_secs(300);

fn settings() -> BufferSettings {
    BufferSettings {
        stream: StreamId(1),
        streamlets: 1,
        lanes: 1,
        chunk_bytes: 400,
        chunk_bytes_max: 1 << 20,
        buffer_bytes: 1 << 20,
        linger: Duration::ZERO,
        delivery_timeout: Duration::from_secs(600),
        compression: Compression::None,
        routing: Routing::RoundRobin,
    }
}

fn front(settings: BufferSettings) -> (Front, Arc<Shared>) {
    let shared = Arc::new(Shared::new(Buffer::new(settings, ProducerId(1), ProducerEpoch(0)), None));
    (Front::new(Arc::clone(&shared)), shared)
}

fn push(front: &mut Front, number: u64) -> bool {
    front.push(&Record::value(&number.to_le_bytes()), None).unwrap()
}

/// The task's side: takes what is due at `now`, checks it and acknowledges it. The records, by streamlet.
fn take(shared: &Shared, now: Instant, next_sequence: &mut [u64]) -> Vec<(u32, u64)> {
    let mut buffer = shared.buffer();
    let taken = buffer.take(0, now, 4_000, Vec::new());
    assert!(taken.expired.is_empty());
    let mut records = Vec::new();
    for chunk in taken.chunks {
        let view = ChunkView::parse(&chunk.bytes).unwrap();
        view.verify().unwrap();
        assert_eq!(view.header().record_count, chunk.records);
        assert_eq!(view.header().sequence, next_sequence[chunk.streamlet as usize], "sequences have no gap");
        next_sequence[chunk.streamlet as usize] += 1;
        let before = records.len();
        for record in view.records() {
            let value = record.unwrap().value().unwrap();
            records.push((chunk.streamlet, u64::from_le_bytes(value.try_into().unwrap())));
        }
        assert_eq!(records.len() - before, chunk.records as usize);
        let delivered = Delivered {
            streamlet: StreamletId(chunk.streamlet),
            lane: LaneId(0),
            base_ordinal: Some(0),
            duplicate: false,
        };
        buffer.settle(chunk, Ok(delivered), now, true);
    }
    records
}

#[test]
fn a_thief_at_any_moment_loses_and_doubles_nothing() {
    const RECORDS: u64 = 300_000;
    for (streamlets, buffer_bytes, pause) in [(1, 1 << 20, 7), (3, 1 << 20, 1_000), (3, 2_000, 50)] {
        let (front, shared) = front(BufferSettings { streamlets, buffer_bytes, ..settings() });
        let (done, release) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut front = front;
                for number in 0..RECORDS {
                    while !push(&mut front, number) {
                        std::thread::yield_now();
                    }
                    // Also a producer that stops for a while, so that the thief gets the last word.
                    if number % pause == 0 {
                        std::thread::yield_now();
                    }
                }
                done.store(true, Ordering::Release);
                // No flush: what is open leaves by itself. The front stays until then.
                while !release.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            });
            let mut next_sequence = vec![0; streamlets as usize + 2];
            let mut looks = 0;
            while !done.load(Ordering::Acquire) || (all.len() as u64) < RECORDS {
                // The stream grows while chunks are open and stolen from.
                for (grown, at) in [(1, RECORDS / 3), (2, RECORDS / 2)] {
                    if all.len() as u64 >= at {
                        shared.buffer().grow(streamlets + grown);
                    }
                }
                let records = take(&shared, Instant::now(), &mut next_sequence);
                if records.is_empty() && done.load(Ordering::Acquire) {
                    std::thread::sleep(LOOK_AGAIN);
                    looks += 1;
                }
                all.extend(records);
                if looks > 10_000 {
                    break;
                }
            }
            release.store(true, Ordering::Release);
        });
        for streamlet in 0..streamlets + 2 {
            let mine = all.iter().filter(|(s, _)| *s == streamlet).map(|(_, number)| *number);
            assert!(mine.clone().is_sorted(), "records of a streamlet stay in order");
            assert!(mine.clone().next().is_some(), "streamlet {streamlet} of {streamlets} and 2 more got nothing");
        }
        let mut numbers: Vec<u64> = all.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..RECORDS), "{} of {RECORDS} records, or some twice", numbers.len());
    }
}

#[test]
fn a_record_after_a_theft_opens_a_chunk() {
    let (mut front, shared) = front(settings());
    let mut next_sequence = [0];
    for number in 0..100 {
        push(&mut front, number);
        // Nothing has to become due, and no time passes.
        let now = Instant::now();
        assert_eq!(take(&shared, now, &mut next_sequence), [(0, number)]);
        assert_eq!(take(&shared, now, &mut next_sequence), []);
    }
    front.flush();
    assert_eq!(shared.buffer().stats.buffered_bytes, 0);
    assert_eq!(shared.buffer().stats.chunks, 100);
}

#[test]
fn a_record_that_the_thief_missed_is_found_when_it_looks_again() {
    let (mut front, shared) = front(settings());
    let mut next_sequence = [0];
    let now = Instant::now() + SOON;
    push(&mut front, 0);
    assert_eq!(take(&shared, now, &mut next_sequence), [(0, 0)]);
    // Written by a producer that had looked before the theft.
    front.push_unseen(&Record::value(&1_u64.to_le_bytes()));
    let mut buffer = shared.buffer();
    let taken = buffer.take(0, now, 4_000, Vec::new());
    assert!(taken.chunks.is_empty());
    assert_eq!(taken.due_at, Some(now + LOOK_AGAIN), "it is going to look again");
    drop(buffer);
    let later = now + LOOK_AGAIN;
    assert_eq!(take(&shared, later, &mut next_sequence), [(0, 1)]);
    // It looks once more, because it has found something; after that there is nothing to wait for.
    assert_eq!(shared.buffer().take(0, later, 4_000, Vec::new()).due_at, Some(later + LOOK_AGAIN));
    assert_eq!(shared.buffer().take(0, later + LOOK_AGAIN, 4_000, Vec::new()).due_at, None);
    push(&mut front, 2);
    front.flush();
    assert_eq!(take(&shared, later, &mut next_sequence), [(0, 2)]);
    assert_eq!(shared.buffer().stats.buffered_bytes, 0);
}

#[test]
fn a_record_that_comes_late_is_not_left_behind() {
    let (mut front, shared) = front(settings());
    let mut next_sequence = [0];
    let mut now = Instant::now() + SOON;
    push(&mut front, 0);
    front.push_interrupted(&Record::value(&1_u64.to_le_bytes()), || {
        assert_eq!(take(&shared, now, &mut next_sequence), [(0, 0)]);
        now += 2 * LOOK_AGAIN;
        assert_eq!(take(&shared, now, &mut next_sequence), []);
        assert_eq!(shared.buffer().take(0, now, 4_000, Vec::new()).due_at, None, "nobody will look at the chunk again");
    });
    assert_eq!(take(&shared, now, &mut next_sequence), [(0, 1)]);
    push(&mut front, 2);
    assert_eq!(take(&shared, now, &mut next_sequence), [(0, 2)]);
    front.flush();
    assert_eq!(shared.buffer().stats.buffered_bytes, 0);
}

#[test]
fn what_the_thief_left_is_sealed_by_the_producer() {
    for flush in [false, true] {
        let (mut front, shared) = front(settings());
        let mut next_sequence = [0];
        let now = Instant::now() + SOON;
        (0..3).for_each(|number| assert!(push(&mut front, number)));
        assert_eq!(take(&shared, now, &mut next_sequence).len(), 3);
        front.push_unseen(&Record::value(&3_u64.to_le_bytes()));
        front.push_unseen(&Record::value(&4_u64.to_le_bytes()));
        let rest = if flush {
            front.flush();
            vec![(0, 3), (0, 4)]
        } else {
            push(&mut front, 5);
            vec![(0, 3), (0, 4), (0, 5)]
        };
        assert_eq!(take(&shared, now, &mut next_sequence), rest);
        front.flush();
        assert_eq!(shared.buffer().stats.buffered_bytes, 0);
    }
}

#[test]
fn stolen_and_left_parts_have_their_own_timestamps() {
    let (mut front, shared) = front(settings());
    let stamped = |timestamp_ms| Record { timestamp_ms, ..Record::value(b"value") };
    let now = Instant::now() + SOON;
    let max = |shared: &Shared| {
        let taken = shared.buffer().take(0, now, 4_000, Vec::new());
        let stamps: Vec<i64> =
            taken.chunks.iter().map(|c| ChunkView::parse(&c.bytes).unwrap().header().max_timestamp_ms).collect();
        stamps
    };
    front.push(&stamped(Some(90)), None).unwrap();
    front.push(&stamped(Some(70)), None).unwrap();
    assert_eq!(max(&shared), [90]);
    front.push_unseen(&stamped(Some(-5)));
    front.push_unseen(&stamped(None));
    front.flush();
    assert_eq!(max(&shared), [-5]);
    front.push(&stamped(None), None).unwrap();
    front.flush();
    assert_eq!(max(&shared), [NO_TIMESTAMP]);
}

#[test]
fn a_record_that_comes_after_the_task_is_gone_is_given_up() {
    let (mut front, shared) = front(settings());
    push(&mut front, 0);
    let now = Instant::now();
    {
        let mut buffer = shared.buffer();
        buffer.fatal = Some(ClientError::Closed);
        for chunk in buffer.take_all(now) {
            buffer.settle(chunk, Err(ClientError::Closed), now, false);
        }
        buffer.ended = true;
    }
    front.push_unseen(&Record::value(&1_u64.to_le_bytes()));
    let serial = front.flush();
    let buffer = shared.buffer();
    assert!(buffer.is_settled(serial));
    assert_eq!((buffer.stats.failed_records, buffer.stats.buffered_bytes), (2, 0));
    drop(buffer);
    assert!(matches!(front.push(&Record::value(b"more"), None), Err(ClientError::Closed)));
}

#[test]
fn a_chunk_that_grows_keeps_its_records() {
    // Too many streamlets for a whole buffer each: chunks start small.
    let settings = BufferSettings { streamlets: 100, chunk_bytes: 16 << 10, buffer_bytes: 120_000, ..settings() };
    let (mut front, shared) = front(BufferSettings { routing: Routing::Streamlet(7), ..settings });
    let mut next_sequence = [0; 100];
    let mut all = Vec::new();
    for number in 0..20_000 {
        while !push(&mut front, number) {
            all.extend(take(&shared, Instant::now(), &mut next_sequence));
        }
        assert!(shared.buffer().stats.buffered_bytes <= 120_000);
    }
    front.flush();
    let serial = shared.buffer().sealed_serial();
    while !shared.buffer().is_settled(serial) {
        all.extend(take(&shared, Instant::now(), &mut next_sequence));
    }
    assert!(all.iter().copied().eq((0..20_000).map(|number| (7, number))));
    assert!(next_sequence[7] < 40, "chunks of {} records", 20_000 / next_sequence[7]);
}

/// As where the server is away, and a program gives each flush a short time.
#[test]
fn chunks_that_are_flushed_early_take_little_more_memory_than_is_allowed() {
    let buffer_bytes = 128 << 10;
    let (mut front, shared) = front(BufferSettings { chunk_bytes: 64 << 10, buffer_bytes, ..settings() });
    let mut number = 0;
    while push(&mut front, number) {
        front.flush();
        number += 1;
    }
    let all = shared.buffer().take_all(Instant::now());
    assert_eq!(all.len() as u64, number);
    let beside = all.len() * size_of_val(&all[0]);
    let memory: usize = all.into_iter().map(|chunk| chunk.bytes.into_memory().unwrap().capacity()).sum();
    assert!(memory + beside <= 2 * buffer_bytes, "{memory} and {beside} bytes for {number} records");
}

#[test]
fn chunks_change_their_way_when_nothing_is_under_way_and_can_come_back() {
    let (mut front, shared) = front(settings());
    let now = Instant::now() + SOON;
    let done = |buffer: &mut Buffer, chunk| {
        let (streamlet, lane) = (StreamletId(0), LaneId(0));
        buffer.settle(chunk, Ok(Delivered { streamlet, lane, base_ordinal: Some(0), duplicate: false }), now, true)
    };
    push(&mut front, 0);
    front.flush();
    let mut first = shared.buffer().take(0, now, 4_000, Vec::new()).chunks;
    push(&mut front, 1);
    front.flush();
    let mut buffer = shared.buffer();
    buffer.set_route(0, 1);
    for route in [0, 1] {
        assert!(buffer.take(route, now, 4_000, Vec::new()).chunks.is_empty(), "one is still under way by the old one");
    }
    // It comes back before that, and nothing happens any more that would put it in line.
    buffer.set_route(0, 0);
    done(&mut buffer, first.remove(0));
    let mut second = buffer.take(0, now, 4_000, Vec::new()).chunks;
    assert_eq!(second.len(), 1);
    buffer.set_route(0, 1);
    buffer.put_back(second.drain(..));
    assert!(buffer.take(0, now, 4_000, Vec::new()).chunks.is_empty());
    let mut second = buffer.take(1, now, 4_000, Vec::new()).chunks;
    assert_eq!(second.iter().map(|chunk| chunk.sequence).collect::<Vec<_>>(), [1]);
    done(&mut buffer, second.remove(0));
}

/// A hole is closed by those behind it, as long as nobody can have one of the numbers that they get.
#[test]
fn nothing_gets_the_number_of_a_chunk_that_was_given_up_and_may_be_there() {
    for may_be_there in [false, true] {
        let (mut front, shared) = front(settings());
        let now = Instant::now() + SOON;
        for number in 0..3 {
            push(&mut front, number);
            front.flush();
        }
        let mut buffer = shared.buffer();
        let mut sent = buffer.take(0, now, 1, Vec::new()).chunks;
        sent.extend(buffer.take(0, now, 1, Vec::new()).chunks);
        assert_eq!(sent.iter().map(|chunk| chunk.sequence).collect::<Vec<_>>(), [0, 1]);
        sent[0].attempts = 1;
        sent[1].attempts = u32::from(may_be_there);
        let status = Status::ChunkTooLarge;
        let refused = ClientError::Refused { records: 1, streamlet: StreamletId(0), status };
        let (after, reason) = (Duration::from_secs(1), String::new());
        let given_up = ClientError::DeliveryTimeout { records: 1, streamlet: StreamletId(0), after, reason };
        buffer.settle(sent.remove(0), Err(refused), now, false);
        buffer.settle(sent.remove(0), Err(given_up), now, false);
        buffer.renumber(Sequences::Same);
        let left = buffer.take(0, now, 1, Vec::new()).chunks;
        assert_eq!(left.iter().map(|chunk| chunk.sequence).collect::<Vec<_>>(), [if may_be_there { 2 } else { 0 }]);
    }
}

#[test]
fn only_the_way_that_something_is_to_leave_by_is_wanted() {
    let (mut front, shared) = front(settings());
    let wanted = |shared: &Shared| [0, 1, 2].map(|route| shared.buffer().wants(route));
    assert_eq!(wanted(&shared), [false; 3]);
    push(&mut front, 0);
    assert_eq!(wanted(&shared), [true, false, false], "it is in an open chunk");
    shared.buffer().set_route(0, 1);
    assert_eq!(wanted(&shared), [false, true, false]);
    front.flush();
    assert_eq!(wanted(&shared), [false, true, false], "it is in a sealed chunk");
    shared.buffer().set_route(0, 2);
    assert_eq!(wanted(&shared), [false, false, true]);
    shared.buffer().set_route(0, 1);
    let now = Instant::now() + SOON;
    let taken = shared.buffer().take(1, now, 4_000, Vec::new()).chunks;
    assert_eq!(taken.len(), 1);
    assert_eq!(wanted(&shared), [false; 3], "it is under way");
    shared.buffer().put_back(taken);
    assert_eq!(wanted(&shared), [false, true, false]);
}

/// As with a node that is away, which takes nothing, while the program goes on.
#[test]
fn what_stands_in_line_for_a_lost_node_does_not_grow_each_time_that_records_are_given_up() {
    let (mut front, shared) = front(settings());
    let timeout = settings().delivery_timeout;
    let give_up = |now: Instant| {
        let mut buffer = shared.buffer();
        let (expired, next) = buffer.take_expired(now);
        assert!(next.is_none_or(|next| next > now), "it would be looked again and again");
        let records: u32 = expired.iter().map(|chunk| chunk.records).sum();
        for chunk in expired {
            buffer.settle(chunk, Err(ClientError::Closed), now, false);
        }
        (records, next)
    };
    for number in 0..1_000 {
        push(&mut front, number);
        assert_eq!(give_up(Instant::now() + timeout).0, 1, "record {number}");
        assert!(shared.buffer().in_line() < 10, "record {number}: {} in line", shared.buffer().in_line());
    }
    // The chunk of the last one is open yet. It is looked at once more, and then nothing is to leave.
    assert!(shared.buffer().wants(0));
    assert_eq!(give_up(Instant::now() + timeout + LOOK_AGAIN), (0, None));
    assert!(!shared.buffer().wants(0));
}

#[test]
fn a_record_that_was_missed_when_those_before_it_were_given_up_has_its_own_time() {
    let (mut front, shared) = front(settings());
    let timeout = settings().delivery_timeout;
    push(&mut front, 0);
    let now = Instant::now() + timeout;
    let (expired, next) = shared.buffer().take_expired(now);
    assert_eq!((expired.len(), next), (1, Some(now + LOOK_AGAIN)), "it is looked for");
    front.push_unseen(&Record::value(&1_u64.to_le_bytes()));
    let mut looks = vec![now + LOOK_AGAIN];
    let expired = loop {
        let (expired, next) = shared.buffer().take_expired(looks[looks.len() - 1]);
        match expired.is_empty() {
            true => looks.push(next.expect("something waits")),
            false => break expired,
        }
    };
    assert_eq!(expired.len(), 1);
    assert_eq!(looks, [now + LOOK_AGAIN, now + 2 * LOOK_AGAIN, now + timeout]);
}

/// Whoever looks for what has expired does not look at all that waits each time.
#[test]
fn what_is_put_back_into_line_is_given_up_in_its_own_time() {
    let (mut front, shared) = front(settings());
    let timeout = settings().delivery_timeout;
    push(&mut front, 0);
    front.flush();
    let begun = Instant::now();
    let first = shared.buffer().take(0, begun, 4_000, Vec::new()).chunks;
    std::thread::sleep(Duration::from_millis(2));
    push(&mut front, 1);
    front.flush();
    // What is known of those that wait is of before the first one has come back.
    let (expired, next) = shared.buffer().take_expired(begun + timeout);
    assert_eq!(expired.len(), 0);
    assert!(next.is_some_and(|at| at > begun + timeout));
    shared.buffer().put_back(first);
    let (expired, _) = shared.buffer().take_expired(begun + timeout);
    assert_eq!(expired.iter().map(|chunk| chunk.sequence).collect::<Vec<_>>(), [0]);
}
