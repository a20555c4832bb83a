//! Reads that answer at once or wait, subscriptions, and the operations that tell what there is.

use kera_broker::BrokerConfig;
use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamOptions, StreamletId};
use kera_protocol::{
    AvailableGroups, AvailableSegments, Credit, Empty, GroupList, Lookup, NextSegments, Op, ReadAnswer, ReadChunks,
    ReadChunksResponse, ReadEntry, SegmentList, Start, Status, StreamStats, Subscribe, Subscribed, Unsubscribe,
};
use kera_rpc::Flow;

use crate::common::*;

/// A chunk for a streamlet.
fn chunk_for(streamlet: u32, value_bytes: usize) -> Vec<u8> {
    chunk_of(target(STREAM, streamlet, 0, 0), 1, value_bytes)
}

#[test]
fn a_read_answers_with_data_and_where_to_go_on() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(100), chunk(100)]);
    let answer = peer.read(STREAM, Cursor::default());
    let (told, data) = &answer.answers[0];
    assert_eq!(told.start.position, 128);
    assert_eq!(told.next.position as usize, 128 + data.len());
    assert_eq!((told.durable_ordinal, told.more()), (2, false));
    assert!(peer.read(STREAM, told.next).answers.is_empty());
    peer.write(&[chunk(100)]);
    assert_eq!(ordinals(&peer.read(STREAM, told.next).answers[0].1), [2]);
}

#[test]
fn how_long_requests_took_is_counted_by_kind_from_arrival_to_answer() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    house.stream(StreamId(8), power(options(1, 1)));
    let (mut peer, mut reader) = (house.peer(), house.peer());
    peer.write(&[chunk(10)]);
    // Answered when the disk is done, three milliseconds later.
    peer.send(&write_request(&[chunk_of(target(StreamId(8), 0, 0, 0), 1, 10)], 0));
    // Behind it, although it has nothing to wait for.
    peer.send(&write_request(&[chunk(10)], 0));
    house.clock.advance_ms(3);
    house.sink.sync();
    peer.run(&house);
    assert_eq!(peer.frames().len(), 2);
    reader.read(STREAM, Cursor::default());
    let latencies = house.broker.latencies();
    let process = latencies.write_process.read();
    assert_eq!((process.buckets[0], process.buckets[5], process.sum_us), (1, 1, 3_000));
    let power = latencies.write_power.read();
    assert_eq!((power.buckets.iter().sum::<u64>(), power.buckets[5]), (1, 1));
    assert_eq!(latencies.read.read().buckets[0], 1);
}

#[test]
fn a_connection_that_goes_takes_its_subscriptions_along() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut reader = house.peer();
    reader.send(&subscribe(&[entry(STREAM, 0, 0, Cursor::default())], 1 << 20));
    assert_eq!(house.broker.metrics().read().subscriptions, 1);
    drop(reader);
    assert_eq!(house.broker.metrics().read().subscriptions, 0);
}

#[test]
fn a_read_waits_until_there_is_something() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    let entries = [entry(STREAM, 0, 0, Cursor::default()), entry(STREAM, 1, 0, Cursor::default())];
    reader.send(&read_request(&entries, 5_000));
    assert!(reader.frames().is_empty());
    writer.write(&[chunk_for(1, 10)]);
    reader.run(&house);
    let answer: ReadChunksResponse = reader.frame().decode();
    assert_eq!(answer.answers.len(), 1);
    assert_eq!(answer.answers[0].0.index, 1);
    assert_eq!(reader.session.deadline_us(), None);
}

#[test]
fn a_read_that_waits_in_vain_is_answered_with_nothing() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut reader = house.peer();
    reader.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 5_000));
    assert_eq!(reader.session.deadline_us(), Some(5_000_000));
    house.clock.advance_ms(4_999);
    reader.run(&house);
    assert!(reader.frames().is_empty());
    house.clock.advance_ms(1);
    reader.run(&house);
    assert!(reader.frame().decode::<ReadChunksResponse>().answers.is_empty());
}

fn house_now(house: &House) -> i64 {
    kera_env::Clock::now_ms(&*house.clock)
}

#[test]
fn min_bytes_are_waited_for_over_several_wakes() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    let mut request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 5_000);
    request.min_bytes = 500;
    reader.send(&request);
    for _ in 0..2 {
        writer.write(&[chunk(100)]);
        reader.run(&house);
        assert!(reader.frames().is_empty());
    }
    writer.write(&[chunk(100)]);
    reader.run(&house);
    let answer: ReadChunksResponse = reader.frame().decode();
    assert_eq!(ordinals(&answer.answers[0].1), [0, 1, 2]);
}

/// The next chunk does not fit any more: nothing that comes later would make it more.
#[test]
fn as_much_as_fits_is_enough() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..5 {
        peer.write(&[chunk(30_000)]);
    }
    let bytes = 100_000;
    let request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 10_000);
    peer.send(&ReadChunks { min_bytes: bytes, max_bytes: bytes, ..request });
    let answer: ReadChunksResponse = peer.frame().decode();
    assert_eq!(ordinals(&answer.answers[0].1), [0, 1, 2]);
}

#[test]
fn what_is_there_is_given_when_min_bytes_do_not_come_in_time() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(100)]);
    let mut request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 1_000);
    request.min_bytes = 500;
    peer.send(&request);
    assert!(peer.frames().is_empty());
    house.clock.advance_ms(1_000);
    peer.run(&house);
    assert_eq!(ordinals(&peer.frame().decode::<ReadChunksResponse>().answers[0].1), [0]);
}

#[test]
fn readers_do_not_see_what_is_not_durable() {
    let house = House::new();
    house.stream(STREAM, power(options(1, 1)));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    reader.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000));
    writer.send(&write_request(&[chunk(100)], 0));
    reader.run(&house);
    assert!(reader.frames().is_empty());
    house.sink.sync();
    reader.run(&house);
    assert_eq!(ordinals(&reader.frame().decode::<ReadChunksResponse>().answers[0].1), [0]);
}

#[test]
fn entries_take_turns_when_the_answer_is_full() {
    let house = House::new();
    house.stream(STREAM, options(4, 1));
    let mut peer = house.peer();
    for streamlet in 0..4 {
        peer.write(&[chunk_for(streamlet, 1_000), chunk_for(streamlet, 1_000)]);
    }
    let entries: Vec<ReadEntry> = (0..4).map(|streamlet| entry(STREAM, streamlet, 0, Cursor::default())).collect();
    let mut request = read_request(&entries, 0);
    request.max_bytes = 2_500;
    let mut seen = [0; 4];
    for _ in 0..4 {
        let answer = peer.call(&request);
        let bytes: usize = answer.answers.iter().map(|(_, data)| data.len()).sum();
        assert!(bytes <= 2_500, "{bytes}");
        for (told, _) in &answer.answers {
            seen[told.index as usize] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_first_chunk_larger_than_the_limits_comes_all_the_same() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(5_000), chunk(5_000)]);
    let mut request = read_request(&[ReadEntry { max_bytes: 10, ..entry(STREAM, 0, 0, Cursor::default()) }], 0);
    request.max_bytes = 20;
    let answer = peer.call(&request);
    assert_eq!(ordinals(&answer.answers[0].1), [0]);
    assert!(answer.answers[0].0.more());
}

/// A broker that takes the smallest frames there may be, with a chunk that fills one, and the entries of as many lanes.
fn small_frames(lanes: u32) -> (House, Vec<ReadEntry>) {
    let house = House::with(BrokerConfig { frame_bytes_max: 64 << 10, ..config() }, 16 << 20);
    house.stream(STREAM, options(lanes, 1));
    assert_eq!(statuses(&house.peer().write(&[chunk_for(lanes - 1, 64_900)])), [Status::Ok]);
    (house, (0..lanes).map(|streamlet| entry(STREAM, streamlet, 0, Cursor::default())).collect())
}

#[test]
fn a_chunk_that_fills_a_frame_of_its_own_comes_beside_many_lanes() {
    for lanes in [1, 20, 1_200] {
        let (house, entries) = small_frames(lanes);
        let mut peer = house.peer();
        let answer = peer.call(&read_request(&entries, 0));
        let (told, data) = answer.answers.last().unwrap();
        assert_eq!((told.index, told.status, ordinals(data)), (lanes - 1, Status::Ok as u16, vec![0]));
        peer.send(&subscribe(&entries, 1 << 20));
        peer.run(&house);
        let pushed = pushes(&mut peer);
        let (told, data) = pushed[0].answers.last().unwrap();
        assert_eq!((told.index, told.status, ordinals(data)), (lanes - 1, Status::Ok as u16, vec![0]));
        assert_eq!(pushed.len(), 1);
        // Until more is there it has nothing to do.
        peer.run(&house);
        assert!(peer.frames().is_empty());
        house.peer().write(&[chunk_for(0, 10)]);
        peer.run(&house);
        assert_eq!(pushes(&mut peer)[0].answers[0].0.index, 0);
    }
}

#[test]
fn the_end_of_a_group_is_told_unless_groups_are_followed() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..4 {
        peer.write(&[chunk(30 << 10)]);
    }
    let request = read_request(&[ReadEntry { flags: 0, ..entry(STREAM, 0, 0, Cursor::default()) }], 0);
    let first = peer.call(&request);
    let (told, data) = &first.answers[0];
    assert!(told.end_of_group());
    assert!(ordinals(data).len() < 4);
    let followed = peer.read(STREAM, Cursor::default());
    assert_eq!(ordinals(&followed.answers[0].1), [0, 1, 2, 3]);
    // Waiting at the end of a closed group is no waiting: the end is told again.
    let request = read_request(&[ReadEntry { flags: 0, ..entry(STREAM, 0, 0, told.next) }], 5_000);
    peer.send(&request);
    let again: ReadChunksResponse = peer.frame().decode();
    assert!(again.answers[0].0.end_of_group() || !again.answers[0].1.is_empty());
}

#[test]
fn what_cannot_be_read_is_told_per_entry() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(100)]);
    let here = peer.read(STREAM, Cursor::default()).answers[0].0.start;
    let entries = [
        entry(StreamId(99), 0, 0, Cursor::default()),
        entry(STREAM, 9, 0, Cursor::default()),
        entry(STREAM, 0, 9, Cursor::default()),
        entry(STREAM, 0, 0, Cursor { position: here.position + 8, ..here }),
        entry(STREAM, 0, 0, Cursor { group: GroupId(u64::MAX), ..here }),
        entry(STREAM, 0, 0, Cursor::default()),
    ];
    let answer = peer.call(&read_request(&entries, 60_000));
    let status = |index: u32| {
        let found = answer.answers.iter().find(|(told, _)| told.index == index);
        found.and_then(|(told, _)| told.status()).expect("an answer")
    };
    use Status::*;
    let found: Vec<Status> = (0..6).map(status).collect();
    assert_eq!(found, [UnknownStream, UnknownStreamlet, UnknownLane, NotAChunkBoundary, CursorUnknown, Ok]);
}

#[test]
fn a_cursor_that_retention_took_is_told_with_the_earliest_there_is() {
    let house = House::new();
    let kept = StreamOptions { retention_bytes: Some(64 << 10), ..options(1, 1) };
    house.stream(STREAM, kept);
    let mut peer = house.peer();
    peer.write(&[chunk(30 << 10)]);
    let first = peer.read(STREAM, Cursor::default()).answers[0].0.start;
    for _ in 0..12 {
        peer.write(&[chunk(30 << 10)]);
    }
    assert!(house.log.retain(house_now(&house)) > 0);
    let answer = peer.read(STREAM, first);
    let told = &answer.answers[0].0;
    assert_eq!(told.status(), Some(Status::CursorGone));
    assert!(told.next > first);
    assert!(ordinals(&peer.read(STREAM, told.next).answers[0].1)[0] > 0);
    assert_eq!(house.broker.metrics().read().cursors_gone, 1);
}

#[test]
fn a_deleted_stream_wakes_its_readers() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.write(&[chunk(10)]);
    let at = peer.read(STREAM, Cursor::default()).answers[0].0.next;
    peer.send(&read_request(&[entry(STREAM, 0, 0, at)], 60_000));
    house.broker.stream_deleted(STREAM).expect("a stream");
    peer.run(&house);
    let answer: ReadChunksResponse = peer.frame().decode();
    assert_eq!(answer.answers[0].0.status(), Some(Status::UnknownStream));
}

#[test]
fn a_graceful_stop_answers_waiting_reads() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    peer.send(&read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000));
    let Peer { session, out, .. } = &mut peer;
    session.on_stop(out);
    assert!(peer.frame().decode::<ReadChunksResponse>().answers.is_empty());
}

#[test]
fn a_graceful_stop_answers_a_read_that_is_held_back_before_its_time_is_up() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let (mut reader, mut writer) = (house.peer_with(3_000), house.peer());
    writer.write(&[chunk(4_000)]);
    let mut request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 60_000);
    request.min_bytes = 16_000;
    reader.send(&request);
    request.max_wait_ms = 0;
    reader.send(&request);
    assert!(reader.out.is_full());
    writer.write(&[chunk(4_000)]);
    reader.run(&house);
    assert_eq!(reader.session.deadline_us(), None, "it is held back");
    let Peer { session, out, .. } = &mut reader;
    session.on_stop(out);
    let first = reader.frame().decode::<ReadChunksResponse>();
    assert_eq!(ordinals(&first.answers[0].1), [0]);
    reader.drained();
    let held_back = reader.frame().decode::<ReadChunksResponse>();
    assert_eq!(ordinals(&held_back.answers[0].1), [0, 1]);
}

#[test]
fn reads_whose_time_is_up_together_are_answered_as_far_as_the_peer_takes_them() {
    for stops in [false, true] {
        let house = House::with(BrokerConfig { waiting_max: 64, ..config() }, 16 << 20);
        house.stream(STREAM, options(1, 1));
        house.peer().write(&[chunk(4_000)]);
        let mut reader = house.peer_with(20_000);
        let mut request = read_request(&[entry(STREAM, 0, 0, Cursor::default())], 1_000);
        request.min_bytes = 8_000;
        (0..64).for_each(|_| assert_eq!(reader.send(&request), Flow::Done));
        assert!(reader.out.is_empty());
        if stops {
            let Peer { session, out, .. } = &mut reader;
            session.on_stop(out);
        } else {
            house.clock.advance_ms(1_000);
        }
        let mut answered = 0;
        while answered < 64 {
            reader.run(&house);
            assert!(reader.out.queued_bytes() < 20_000 + 5_000, "{} bytes", reader.out.queued_bytes());
            let answers = reader.frames();
            assert!(!answers.is_empty(), "only {answered} are answered");
            answers.iter().for_each(|answer| {
                assert_eq!(ordinals(&answer.decode::<ReadChunksResponse>().answers[0].1), [0]);
            });
            answered += answers.len();
            // Those that are held back are up to the peer.
            assert_eq!(reader.session.deadline_us(), None);
            let Peer { session, out, .. } = &mut reader;
            session.on_drained(out);
        }
        assert!(reader.frames().is_empty());
    }
}

#[test]
fn reads_that_are_held_back_are_answered_before_what_is_asked_for_after_them() {
    let house = House::with(BrokerConfig { waiting_max: 64, ..config() }, 16 << 20);
    house.stream(STREAM, options(1, 1));
    house.peer().write(&[chunk(4_000)]);
    let entries = [entry(STREAM, 0, 0, Cursor::default())];
    for subscribes in [false, true] {
        let mut reader = house.peer_with(20_000);
        if subscribes {
            reader.send(&subscribe(&entries, 0));
            assert_eq!(reader.frames().len(), 1);
        }
        let subscription = reader.correlation;
        let mut request = read_request(&entries, 1_000);
        request.min_bytes = 8_000;
        (0..16).for_each(|_| assert_eq!(reader.send(&request), Flow::Done));
        house.clock.advance_ms(1_000);
        reader.run(&house);
        let mut answered = reader.frames();
        // The peer has taken all of that, and what it sends comes before the session is told so.
        let flow = match subscribes {
            false => reader.send(&read_request(&entries, 0)),
            true => reader.send(&Credit { subscription, credit_bytes: 1 << 20 }),
        };
        assert_eq!(flow, Flow::Blocked);
        while reader.is_blocked() {
            let answers = reader.frames();
            assert!(!answers.is_empty(), "only {} are answered", answered.len());
            answered.extend(answers);
            reader.offer_again();
        }
        answered.extend(reader.frames());
        let responses = answered.iter().filter(|frame| !frame.header.is_push());
        let order: Vec<u64> = responses.map(|frame| frame.header.correlation).collect();
        assert_eq!(order, (subscription + 1..=subscription + 17).collect::<Vec<_>>());
        assert_eq!(answered.len() - order.len(), usize::from(subscribes), "pushed");
    }
}

#[test]
fn waiting_requests_and_their_entries_are_bounded() {
    let config = BrokerConfig { waiting_max: 2, entries_max: 3, ..config() };
    let house = House::with(config, 16 << 20);
    house.stream(STREAM, options(4, 1));
    let mut peer = house.peer();
    let one = [entry(STREAM, 0, 0, Cursor::default())];
    peer.send(&read_request(&one, 60_000));
    let three = [one[0], one[0], one[0]];
    assert_eq!(peer.refused(&read_request(&three, 60_000)), Status::LimitReached);
    peer.send(&read_request(&one, 60_000));
    // That passes.
    assert_eq!(peer.refused(&read_request(&one, 60_000)), Status::LoadPressure);
    // What is answered at once needs no place to wait.
    assert!(peer.call(&read_request(&one, 0)).answers.is_empty());
    house.clock.advance_ms(60_000);
    peer.run(&house);
    assert_eq!(peer.frames().len(), 2);
    peer.send(&read_request(&three, 60_000));
    assert!(peer.frames().is_empty());
}

fn subscribe(entries: &[ReadEntry], credit_bytes: u64) -> Subscribe {
    Subscribe { credit_bytes, push_bytes_max: 0, entries: entries.to_vec() }
}

/// The pushed frames among those that came, decoded.
fn pushes(peer: &mut Peer) -> Vec<ReadChunksResponse> {
    let frames = peer.frames();
    frames.iter().filter(|frame| frame.header.is_push()).map(|frame| frame.decode()).collect()
}

#[test]
fn a_subscription_pushes_what_is_there_and_what_comes() {
    let house = House::new();
    house.stream(STREAM, options(2, 1));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    writer.write(&[chunk_for(0, 10)]);
    let entries = [entry(STREAM, 0, 0, Cursor::default()), entry(STREAM, 1, 0, Cursor::default())];
    reader.send(&subscribe(&entries, 1 << 20));
    let frames = reader.frames();
    assert_eq!(frames.len(), 2);
    assert!(!frames[0].header.is_push());
    assert!(frames[0].decode::<Subscribed>().push_bytes_max > 0);
    assert!(frames[1].header.is_push());
    assert_eq!(frames[1].header.correlation, frames[0].header.correlation);
    assert_eq!(ordinals(&frames[1].decode::<ReadChunksResponse>().answers[0].1), [0]);

    for streamlet in [1, 0, 1] {
        writer.write(&[chunk_for(streamlet, 10)]);
        reader.run(&house);
        let pushed = pushes(&mut reader);
        assert_eq!(pushed.len(), 1);
        assert_eq!(pushed[0].answers[0].0.index, streamlet);
    }
    reader.run(&house);
    assert!(reader.frames().is_empty());
}

#[test]
fn a_subscription_stops_without_credit_and_goes_on_with_it() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    writer.write(&[chunk(1_000), chunk(1_000), chunk(1_000)]);
    reader.send(&subscribe(&[entry(STREAM, 0, 0, Cursor::default())], 1));
    let subscription = reader.correlation;
    // One push may overdraw the credit, by one chunk.
    let pushed = pushes(&mut reader);
    assert_eq!(pushed.len(), 1);
    assert_eq!(ordinals(&pushed[0].answers[0].1), [0]);
    writer.write(&[chunk(1_000)]);
    reader.run(&house);
    assert!(reader.frames().is_empty());
    // Too little to get out of the red.
    reader.send(&Credit { subscription, credit_bytes: 100 });
    assert!(pushes(&mut reader).is_empty());
    reader.send(&Credit { subscription, credit_bytes: 1_200 });
    let pushed = pushes(&mut reader);
    assert_eq!(pushed.iter().flat_map(|p| ordinals(&p.answers[0].1)).collect::<Vec<_>>(), [1]);
    reader.send(&Credit { subscription, credit_bytes: u64::MAX });
    let pushed = pushes(&mut reader);
    assert_eq!(pushed.iter().flat_map(|p| ordinals(&p.answers[0].1)).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_subscription_holds_back_while_the_connection_is_full() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut reader = house.peer_with(20_000);
    let mut writer = house.peer();
    writer.write(&vec![chunk(4_000); 12]);
    let mut request = subscribe(&[entry(STREAM, 0, 0, Cursor::default())], 1 << 20);
    request.push_bytes_max = 5_000;
    reader.send(&request);
    assert!(reader.out.queued_bytes() < 20_000 + 5_000);
    let mut seen: Vec<u64> = Vec::new();
    for _ in 0..10 {
        seen.extend(pushes(&mut reader).iter().flat_map(|p| ordinals(&p.answers[0].1)));
        let Peer { session, out, .. } = &mut reader;
        session.on_drained(out);
    }
    assert_eq!(seen, (0..12).collect::<Vec<_>>());
}

#[test]
fn a_subscription_ends_with_its_last_entry() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    for _ in 0..4 {
        peer.write(&[chunk(30 << 10)]);
    }
    let entries =
        [ReadEntry { flags: 0, ..entry(STREAM, 0, 0, Cursor::default()) }, entry(STREAM, 9, 0, Cursor::default())];
    peer.send(&subscribe(&entries, 1 << 20));
    let subscription = peer.correlation;
    let told: Vec<ReadAnswer> = pushes(&mut peer).iter().flat_map(|p| p.answers.iter().map(|a| a.0)).collect();
    assert!(told.iter().any(|answer| answer.status() == Some(Status::UnknownStreamlet)));
    assert!(told.iter().any(|answer| answer.end_of_group()));
    assert_eq!(peer.refused(&Credit { subscription, credit_bytes: 1 }), Status::UnknownSubscription);
}

#[test]
fn nothing_is_pushed_after_unsubscribe() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    reader.send(&subscribe(&[entry(STREAM, 0, 0, Cursor::default())], 1 << 20));
    let subscription = reader.correlation;
    reader.frames();
    let open = || house.broker.metrics().read().subscriptions;
    assert_eq!(open(), 1);
    let _: Empty = reader.call(&Unsubscribe { subscription });
    assert_eq!(open(), 0);
    writer.write(&[chunk(10)]);
    reader.run(&house);
    assert!(reader.frames().is_empty());
    assert_eq!(reader.refused(&Unsubscribe { subscription }), Status::UnknownSubscription);
}

#[test]
fn subscriptions_are_bounded() {
    let house = House::with(BrokerConfig { subscriptions_max: 1, ..config() }, 16 << 20);
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let request = subscribe(&[entry(STREAM, 0, 0, Cursor::default())], 1);
    let _: Subscribed = peer.call(&request);
    assert_eq!(peer.refused(&request), Status::LimitReached);
}

#[test]
fn wrong_entries_are_refused_with_the_field() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    assert_eq!(peer.refused(&read_request(&[], 0)), Status::InvalidArgument);
    let odd = ReadEntry { flags: 6, ..entry(STREAM, 0, 0, Cursor::default()) };
    assert_eq!(peer.refused(&read_request(&[odd], 0)), Status::InvalidArgument);
    assert_eq!(peer.refused(&subscribe(&[odd], 0)), Status::InvalidArgument);
    let many = vec![entry(STREAM, 0, 0, Cursor::default()); 65_537];
    assert_eq!(peer.refused(&read_request(&many, 0)), Status::LimitReached);
}

#[test]
fn a_session_that_polls_many_quiet_lanes_registers_once() {
    let house = House::new();
    house.stream(STREAM, options(512, 1));
    let (mut reader, mut writer) = (house.peer(), house.peer());
    let entries: Vec<ReadEntry> = (0..512).map(|s| entry(STREAM, s, 0, Cursor::default())).collect();
    for round in 0..20u32 {
        reader.send(&read_request(&entries, 60_000));
        assert!(reader.frames().is_empty());
        let streamlet = round * 7 % 512;
        writer.write(&[chunk_for(streamlet, 10)]);
        reader.run(&house);
        let answer: ReadChunksResponse = reader.frame().decode();
        assert!(answer.answers.iter().any(|(told, _)| told.index == streamlet));
        // Read from the start again: what is there now is answered at once.
        assert!(!peer_has_news_only(&mut reader, &entries).is_empty());
        house.broker.stream_deleted(STREAM).expect("a stream");
        house.stream(STREAM, options(512, 1));
        reader.run(&house);
    }
}

fn peer_has_news_only(peer: &mut Peer, entries: &[ReadEntry]) -> Vec<u32> {
    peer.call(&read_request(entries, 0)).answers.iter().map(|(told, _)| told.index).collect()
}

#[test]
fn groups_of_all_lanes_are_listed_in_pages() {
    let house = House::new();
    house.stream(STREAM, options(1, 3));
    let mut peer = house.peer();
    for producer in [1, 2, 3, 2, 2, 1, 3, 2, 2, 1] {
        let sealed = chunk_of(target(STREAM, 0, producer, 0), 1, 40 << 10);
        let mut unsequenced = target(STREAM, 0, producer, 0);
        unsequenced.sequence = 0;
        let _ = sealed;
        // Producers that are not deduplicated all write to lane 0, so sequences count up here.
        let sequence = house.broker.metrics().read().chunks_appended;
        unsequenced.producer_id = kera_format::ProducerId(producer + 3 * (sequence + 1));
        peer.write(&[chunk_of(unsequenced, 1, 40 << 10)]);
    }
    let mut all = Vec::new();
    let mut after = GroupId::NONE;
    loop {
        let page: GroupList =
            peer.call(&AvailableGroups { stream: STREAM, streamlet: StreamletId(0), after, limit: 3 });
        all.extend(page.groups.iter().copied());
        if !page.more {
            break;
        }
        assert_eq!(page.groups.len(), 3);
        after = page.groups[2].group;
    }
    assert_eq!(all.len(), 10);
    assert!(all.windows(2).all(|pair| pair[0].group < pair[1].group));
    let records: u64 = all.iter().map(|group| group.durable_ordinal - group.first_ordinal).sum();
    assert_eq!(records, 10);
    assert!(all.iter().any(|group| group.lane == LaneId(1)) && all.iter().any(|group| !group.closed));

    let closed = all.iter().find(|group| group.closed).expect("a closed group");
    let of = |group| AvailableSegments { stream: STREAM, streamlet: StreamletId(0), group, after: None, limit: 0 };
    let list: SegmentList = peer.call(&of(closed.group));
    assert_eq!((list.lane, list.segments.len(), list.complete, list.more), (closed.lane, 1, true, false));
    assert_eq!(peer.refused(&of(GroupId(5))), Status::UnknownGroup);
    let wrong = AvailableGroups { stream: STREAM, streamlet: StreamletId(9), after: GroupId::NONE, limit: 0 };
    assert_eq!(peer.refused(&wrong), Status::UnknownStreamlet);
}

#[test]
fn next_segments_waits_for_one() {
    let house = House::new();
    house.stream(STREAM, StreamOptions { segments_per_group: 4, ..options(1, 1) });
    let (mut reader, mut writer) = (house.peer(), house.peer());
    writer.write(&[chunk(40 << 10)]);
    let group = reader.read(STREAM, Cursor::default()).answers[0].0.start.group;
    let mut request =
        NextSegments { stream: STREAM, streamlet: StreamletId(0), group, after: None, limit: 0, max_wait_ms: 60_000 };
    let first: SegmentList = reader.call(&request);
    assert_eq!(first.segments.len(), 1);
    request.after = Some(first.segments[0].index);
    reader.send(&request);
    assert!(reader.frames().is_empty());
    writer.write(&[chunk(40 << 10)]);
    reader.run(&house);
    let next: SegmentList = reader.frame().decode();
    assert_eq!(next.segments[0].index.0, 1);
    assert!(!next.complete);
    // In vain.
    request.after = Some(next.segments[0].index);
    reader.send(&request);
    house.clock.advance_ms(60_000);
    reader.run(&house);
    assert!(reader.frame().decode::<SegmentList>().segments.is_empty());
}

#[test]
fn lookups_find_ordinals_times_and_ends() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut peer = house.peer();
    let lookup = |at| Lookup { stream: STREAM, streamlet: StreamletId(0), lane: LaneId(0), at };
    assert_eq!(peer.call(&lookup(Start::Latest)).ordinal, 0);
    let started = house_now(&house);
    for _ in 0..3 {
        peer.write(&[chunk_of(target(STREAM, 0, 0, 0), 10, 8)]);
        house.clock.advance_ms(1_000);
    }
    assert_eq!(peer.call(&lookup(Start::Earliest)).ordinal, 0);
    assert_eq!(peer.call(&lookup(Start::Ordinal(15))).ordinal, 10);
    assert_eq!(peer.call(&lookup(Start::TimeMs(started + 1_500))).ordinal, 20);
    let latest = peer.call(&lookup(Start::Latest));
    assert_eq!((latest.ordinal, latest.durable_ordinal, latest.first_ordinal), (30, 30, 0));
    let found = peer.call(&lookup(Start::Ordinal(15)));
    assert_eq!(ordinals(&peer.read(STREAM, found.cursor).answers[0].1)[0], 10);
}

#[test]
fn statistics_come_in_pages_without_unused_lanes() {
    let house = House::new();
    house.stream(STREAM, options(5, 1));
    let mut peer = house.peer();
    peer.write(&[chunk_for(1, 10), chunk_for(3, 10), chunk_for(4, 10), chunk_for(4, 10)]);
    let mut request = StreamStats { stream: STREAM, streamlets: vec![], after: None, limit: 2 };
    let page = peer.call(&request);
    assert_eq!(page.lanes.iter().map(|lane| lane.streamlet.0).collect::<Vec<_>>(), [1, 3]);
    assert!(page.more);
    request.after = Some((StreamletId(3), LaneId(0)));
    let page = peer.call(&request);
    assert_eq!((page.lanes[0].next_ordinal, page.more), (2, false));
    request.streamlets = vec![StreamletId(0), StreamletId(1)];
    request.after = None;
    assert_eq!(peer.call(&request).lanes.len(), 1);
    request.streamlets = vec![StreamletId(77)];
    assert_eq!(peer.refused(&request), Status::UnknownStreamlet);
}

#[test]
fn bodies_of_random_bytes_never_panic() {
    let house = House::new();
    house.stream(STREAM, options(1, 1));
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for op in Op::ALL.iter().copied().filter(|op| kera_broker::BrokerSession::serves(*op)) {
        for _ in 0..300 {
            let mut peer = house.peer();
            let bytes = (random() % 200) as usize;
            let body: Vec<u8> = (0..bytes).map(|_| if random() % 2 == 0 { 0 } else { random() as u8 }).collect();
            match peer.raw(op, &body) {
                Flow::Close(_) => assert_eq!(peer.frame().status(), Status::Malformed, "{op}"),
                Flow::Blocked => panic!("{op} blocked on {body:?}"),
                Flow::Done => drop(peer.frames()),
            }
        }
    }
}
