//! Sessions on threads of their own, over one log, with a disk that syncs on another: no wake is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kera_format::Cursor;
use kera_protocol::{Credit, Op, ReadChunksResponse, ReadEntry, Subscribe, WriteChunksResponse};

use crate::common::*;

const LANES: u32 = 8;
const WRITERS: u64 = 3;
const CHUNKS: u64 = 400;

/// Runs a session until `done`, as a server does: it is called when its waker says so, and never otherwise.
fn until(peer: &mut Peer, house: &House, mut done: impl FnMut(&mut Peer) -> bool) {
    let give_up = Instant::now() + Duration::from_secs(300);
    while !done(peer) {
        peer.run(house);
        assert!(Instant::now() < give_up, "a wake was lost");
        thread::yield_now();
    }
}

fn write_all(house: &House, producer: u64) {
    let mut peer = house.peer();
    let mut answered = 0;
    let count = |peer: &mut Peer| {
        let frames = peer.frames();
        frames.iter().for_each(|frame| assert_eq!(frame.decode::<WriteChunksResponse>().results[0].status, 0));
        frames.len() as u64
    };
    for sequence in 0..CHUNKS {
        let streamlet = (sequence % u64::from(LANES)) as u32;
        let sealed = chunk_of(target(STREAM, streamlet, producer, sequence / u64::from(LANES)), 1, 100);
        peer.send(&write_request(&[sealed], 60_000));
        until(&mut peer, house, |peer| {
            answered += count(peer);
            answered + 8 > sequence
        });
    }
    until(&mut peer, house, |peer| {
        answered += count(peer);
        answered == CHUNKS
    });
}

fn entries() -> Vec<ReadEntry> {
    (0..LANES).map(|streamlet| entry(STREAM, streamlet, 0, Cursor::default())).collect()
}

/// Notes what came; whether that is everything.
fn note(seen: &mut BTreeSet<(u32, u64)>, response: &ReadChunksResponse) -> bool {
    for (told, data) in &response.answers {
        for ordinal in ordinals(data) {
            assert!(seen.insert((told.index, ordinal)), "twice: {ordinal} of {}", told.index);
        }
    }
    seen.len() as u64 == WRITERS * CHUNKS
}

fn subscribe_to_all(house: &House) {
    let mut peer = house.peer();
    peer.send(&Subscribe { credit_bytes: 5_000, push_bytes_max: 1_000, entries: entries() });
    let subscription = peer.correlation;
    let mut seen = BTreeSet::new();
    until(&mut peer, house, |peer| {
        let mut all = false;
        for frame in peer.frames().iter().filter(|frame| frame.header.is_push()) {
            let response: ReadChunksResponse = frame.decode();
            let credit_bytes = response.answers.iter().map(|(_, data)| data.len() as u64).sum();
            all = note(&mut seen, &response);
            peer.send(&Credit { subscription, credit_bytes });
        }
        all
    });
}

fn poll_all(house: &House) {
    let mut peer = house.peer();
    let mut asked = entries();
    let mut seen = BTreeSet::new();
    loop {
        peer.send(&read_request(&asked, 600_000));
        let mut answer = None;
        until(&mut peer, house, |peer| {
            answer = peer.frames().pop();
            answer.is_some()
        });
        let frame = answer.expect("an answer");
        assert_eq!(Op::from_u16(frame.header.op), Some(Op::ReadChunks));
        let response: ReadChunksResponse = frame.decode();
        for (told, _) in &response.answers {
            asked[told.index as usize].cursor = told.next;
        }
        if note(&mut seen, &response) {
            return;
        }
    }
}

fn everybody(durable: bool) {
    let house = House::with(config(), 64 << 20);
    let shape = options(LANES, 1);
    house.stream(STREAM, if durable { power(shape) } else { shape });
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let house = &house;
        let disk = scope.spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    house.sink.sync();
                    thread::yield_now();
                }
            }
        });
        let mut threads: Vec<_> = (0..WRITERS).map(|id| scope.spawn(move || write_all(house, 1 + id))).collect();
        threads.push(scope.spawn(|| subscribe_to_all(house)));
        threads.push(scope.spawn(|| poll_all(house)));
        for thread in threads {
            thread.join().expect("a thread");
        }
        stop.store(true, Ordering::Relaxed);
        disk.join().expect("the disk");
    });
}

#[test]
fn no_wake_is_lost_without_a_disk() {
    everybody(false);
}

#[test]
fn no_wake_is_lost_with_a_disk() {
    everybody(true);
}
