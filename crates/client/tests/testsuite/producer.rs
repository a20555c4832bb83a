//! The producer against a broker that fails on purpose.

// One task at a time: nobody else wants the reports meanwhile.
#![allow(clippy::await_holding_lock)]

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kera_client::{
    Client, ClientError, Compression, DeliveryReport, LaneId, Producer, ProducerBuilder, ProducerStats, Record,
    Routing, Status, StreamletId,
};
use kera_protocol::Op;

use crate::fake::{self, FakeServer, Fault, STREAM, numbered, run};
use crate::steady::later;

async fn client(server: &FakeServer) -> Client {
    server.client().connect().await.unwrap()
}

fn server_that(streamlets: u32, is_old: bool) -> FakeServer {
    let mut server = FakeServer::start(streamlets, 1);
    server.is_old = is_old;
    server.restart();
    server
}

async fn send_all(producer: &mut Producer, values: &[String]) {
    for value in values {
        producer.send(&Record::value(value.as_bytes())).await.unwrap();
    }
}

/// Sends records of a producer that gives them little time, all again until they were all acknowledged in it: how long that takes is up to the
/// machine as well.
async fn send_until_acknowledged(producer: &mut Producer, values: &[String]) {
    loop {
        send_all(producer, values).await;
        match producer.flush().await {
            Ok(()) => return,
            Err(error) => assert!(matches!(error, ClientError::DeliveryTimeout { .. }), "{error}"),
        }
    }
}

/// A producer whose chunks hold few records, and what it reported.
async fn small_chunks(
    server: &FakeServer,
    change: impl FnOnce(ProducerBuilder) -> ProducerBuilder,
) -> (Producer, Arc<Mutex<Vec<DeliveryReport>>>) {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&reports);
    let builder = client(server).await.producer(STREAM).chunk_bytes(200).request_bytes(700).in_flight(3);
    let builder = builder.on_report(move |report| all.lock().unwrap().push(report.clone()));
    (change(builder).build().await.unwrap(), reports)
}

#[test]
fn records_arrive_in_order_and_are_reported() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, reports) = small_chunks(&server, |b| b).await;
        let values = numbered(0..1_000);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0), values);
        let mut next = 0;
        for report in reports.lock().unwrap().iter() {
            assert_eq!(report.result.as_ref().unwrap().base_ordinal, Some(next));
            assert!(report.bytes <= 200);
            assert_eq!(report.first_record, next);
            next += u64::from(report.records);
        }
        assert_eq!(next, 1_000);
        let stats = producer.stats();
        assert_eq!((stats.records, stats.acknowledged_records, stats.buffered_bytes), (1_000, 1_000, 0));
        assert_eq!((stats.duplicate_chunks, stats.retried_chunks, stats.reconnects), (0, 0, 0));
        let requests = &server.fake.state().requests;
        assert!(requests.iter().any(|chunks| chunks.len() > 1), "no request had more than one chunk");
        producer.close().await.unwrap();
    });
}

#[test]
fn a_request_has_chunks_of_all_streamlets_in_turn() {
    let server = FakeServer::start(3, 2);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b.routing(Routing::RoundRobin).request_bytes(10_000)).await;
        server.fake.state().hold_writes = true;
        send_all(&mut producer, &numbered(0..300)).await;
        tokio::task::yield_now().await;
        server.fake.state().hold_writes = false;
        server.fake.wake_all();
        producer.flush().await.unwrap();
        let state = server.fake.state();
        let largest = state.requests.iter().max_by_key(|chunks| chunks.len()).unwrap();
        let streamlets: Vec<u32> = largest.iter().take(6).map(|(streamlet, _)| *streamlet).collect();
        assert_eq!(streamlets[..3], streamlets[3..], "{largest:?}");
        for streamlet in 0..3 {
            assert!(streamlets.contains(&streamlet));
        }
        // One producer writes to one lane of each streamlet.
        assert_eq!(state.logs.len(), 3);
    });
}

#[test]
fn a_lost_acknowledgement_is_retried_and_appended_once() {
    let server = FakeServer::start(2, 1);
    run(async {
        let (mut producer, reports) = small_chunks(&server, |b| b).await;
        server.fake.fail([Fault::Pass, Fault::AppendAndBreak, Fault::Pass, Fault::Break, Fault::AppendAndBreak]);
        let values = numbered(0..500);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        let mut all = server.fake.values(0, 0);
        all.extend(server.fake.values(1, 0));
        all.sort_by_key(|value| value[7..].parse::<usize>().unwrap());
        assert_eq!(all, values);
        for streamlet in 0..2 {
            let values = server.fake.values(streamlet, 0);
            assert!(values.is_sorted_by_key(|value| value[7..].parse::<usize>().unwrap()), "out of order");
        }
        let stats = producer.stats();
        assert!(stats.duplicate_chunks > 0 && stats.retried_chunks > 0 && stats.reconnects >= 3, "{stats:?}");
        assert_eq!(stats.acknowledged_records, 500);
        let reports = reports.lock().unwrap();
        assert!(reports.iter().all(|report| report.result.is_ok()));
        // Whenever it is reported, each says where it is: in a streamlet with one lane that is the number of its first record.
        let known =
            reports.iter().filter_map(|report| Some((report.first_record, report.result.as_ref().ok()?.base_ordinal?)));
        assert!(known.clone().count() > 0 && known.clone().all(|(first, ordinal)| first == ordinal));
        drop(reports);
        assert_eq!(server.fake.state().epochs, HashMap::from([(1, 0)]), "retries need no other epoch");
    });
}

/// The server knows its lane, though not its place any more.
#[test]
fn an_acknowledgement_that_the_server_has_forgotten_names_the_lane() {
    let server = FakeServer::start(1, 2);
    run(async {
        let (mut producer, reports) = small_chunks(&server, |b| b.in_flight(1).request_bytes(4_000)).await;
        // More chunks than it remembers of a producer.
        server.fake.fail([Fault::AppendAndBreak]);
        let values = numbered(0..500);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 1), values);
        let reports = reports.lock().unwrap();
        let delivered = || reports.iter().map(|report| report.result.as_ref().unwrap());
        assert!(delivered().any(|delivered| delivered.base_ordinal.is_none()));
        assert!(delivered().all(|delivered| delivered.lane == LaneId(1)));
    });
}

#[test]
fn an_answer_that_does_not_come_breaks_the_connection_and_is_retried() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b.request_timeout(Duration::from_millis(100))).await;
        server.fake.fail([Fault::Pass, Fault::AppendAndStall, Fault::Pass, Fault::Stall]);
        let values = numbered(0..200);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0), values);
    });
}

#[test]
fn a_chunk_that_fails_for_now_is_sent_again_before_those_behind_it() {
    for status in [Status::ArenaFull, Status::ChunkChecksum, Status::Timeout, Status::DiskFull] {
        let server = FakeServer::start(1, 1);
        run(async {
            let (mut producer, _) = small_chunks(&server, |b| b).await;
            server.fake.fail([Fault::Pass, Fault::FirstChunk(status), Fault::Pass, Fault::FirstChunk(status)]);
            let values = numbered(0..300);
            send_all(&mut producer, &values).await;
            producer.flush().await.unwrap();
            assert_eq!(server.fake.values(0, 0), values, "{status}");
            assert!(producer.stats().retried_chunks > 0);
            assert_eq!(producer.stats().failed_records, 0);
        });
    }
}

#[test]
fn a_request_that_fails_as_a_whole_for_now_is_sent_again() {
    let server = FakeServer::start(2, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b).await;
        server.fake.fail([Fault::Request(Status::Overloaded), Fault::Request(Status::NotReady)]);
        let values = numbered(0..100);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        assert_eq!(producer.stats().acknowledged_records, 100);
    });
}

#[test]
fn a_refused_chunk_is_reported_and_those_behind_it_go_on_in_order() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, reports) = small_chunks(&server, |b| b).await;
        server.fake.fail([Fault::Pass, Fault::FirstChunk(Status::ChunkTooLarge)]);
        let values = numbered(0..300);
        send_all(&mut producer, &values).await;
        let error = producer.flush().await.unwrap_err();
        assert!(matches!(error, ClientError::Refused { status: Status::ChunkTooLarge, .. }), "{error}");
        assert!(!error.retryable() && !error.could_duplicate());
        let reports = reports.lock().unwrap();
        let lost: Vec<_> = reports.iter().filter(|report| report.result.is_err()).collect();
        assert_eq!(lost.len(), 1);
        let stored = server.fake.values(0, 0);
        assert_eq!(stored.len() + lost[0].records as usize, 300);
        assert!(stored.is_sorted_by_key(|value| value[7..].parse::<usize>().unwrap()));
        assert_eq!(producer.stats().failed_records, u64::from(lost[0].records));
        // The error was told once; from here on all is well.
        producer.flush().await.unwrap();
        assert_eq!(server.fake.state().epochs, HashMap::from([(1, 0)]), "it is certain that it is not there");
    });
}

/// A lane that has forgotten producers takes what comes behind a refused chunk. Nothing behind it may get a number that the server knows by something else, whether
/// that is acknowledged or not.
#[test]
fn what_is_there_behind_a_refused_chunk_keeps_its_number() {
    for second in [Fault::Pass, Fault::AppendAndBreak] {
        let server = FakeServer::start(1, 1);
        run(async {
            let (mut producer, _) = small_chunks(&server, |b| b.in_flight(2).request_bytes(1)).await;
            server.fake.state().forgot = true;
            server.fake.fail([Fault::FirstChunk(Status::ChunkTooLarge), second]);
            let value = |at: u32| format!("{at} {}", "x".repeat(100));
            for at in 0..10 {
                producer.send_to(StreamletId(0), &Record::value(value(at).as_bytes())).await.unwrap();
            }
            assert!(producer.flush().await.is_err());
            producer.flush().await.unwrap();
            assert_eq!(server.fake.values(0, 0), (1..10).map(value).collect::<Vec<_>>(), "{second:?}");
            assert_eq!(producer.stats().failed_records, 1);
        });
    }
}

/// What a lane that has forgotten producers would take behind a refused chunk, the refused one comes first all the same; and nothing is said to be lost.
#[test]
fn a_lane_that_may_have_forgotten_the_producer_gets_all_in_order() {
    for written_before in [0, 20] {
        let server = FakeServer::start(1, 1);
        run(async {
            let (mut producer, _) = small_chunks(&server, |b| b.in_flight(3).request_bytes(1)).await;
            let value = |at: u32| format!("{at} {}", "x".repeat(100));
            let send = async |producer: &mut Producer, at: u32| {
                producer.send_to(StreamletId(0), &Record::value(value(at).as_bytes())).await.unwrap();
            };
            for at in 0..written_before {
                send(&mut producer, at).await;
            }
            producer.flush().await.unwrap();
            server.fake.fail([Fault::Forget, Fault::Pass, Fault::FirstChunk(Status::ArenaFull)]);
            if written_before == 0 {
                server.fake.state().faults.pop_front();
            }
            server.fake.state().tells_forgot = true;
            for at in written_before..40 {
                send(&mut producer, at).await;
            }
            producer.flush().await.unwrap();
            assert_eq!(server.fake.values(0, 0), (0..40).map(value).collect::<Vec<_>>());
            assert_eq!(server.fake.state().skipped, u64::from(written_before > 0));
            assert_eq!(producer.stats().forgotten_chunks, 0);
        });
    }
}

#[test]
fn a_server_that_forgot_acknowledged_chunks_gets_those_behind_them() {
    for is_old in [false, true] {
        let server = server_that(1, is_old);
        run(async {
            let (mut producer, _) = small_chunks(&server, |b| b).await;
            let values = numbered(0..100);
            send_all(&mut producer, &values[..50]).await;
            producer.flush().await.unwrap();
            let acknowledged = server.fake.chunk_count() as u64;
            server.fake.fail([Fault::Forget]);
            send_all(&mut producer, &values[50..]).await;
            producer.flush().await.unwrap();
            assert_eq!(server.fake.values(0, 0), values);
            let state = server.fake.state();
            assert_eq!((state.epochs[&1], state.skipped), (u16::from(is_old), u64::from(!is_old)));
            assert_eq!(producer.stats().forgotten_chunks, acknowledged);
            let first = state.requests.last().unwrap()[0].1;
            assert_eq!(first >= acknowledged, !is_old, "{:?}", state.requests);
        });
    }
}

/// Otherwise a node that stands still would hold up streamlets of all others, and what waits would not even be given up.
#[test]
fn who_does_not_say_which_epoch_is_next_is_not_waited_for() {
    let server = server_that(1, true);
    run(async {
        // Its calls wait for longer than the test.
        let client = server.client().call_timeout(Duration::from_secs(3_600)).connect().await.unwrap();
        let builder = client.producer(STREAM).chunk_bytes(200).request_bytes(700).in_flight(3);
        let mut producer = builder.build().await.unwrap();
        let values = numbered(0..20);
        send_all(&mut producer, &values[..10]).await;
        producer.flush().await.unwrap();
        server.fake.fail([Fault::Forget]);
        server.fake.state().mutes.push(Op::AllocateProducer);
        send_all(&mut producer, &values[10..]).await;
        tokio::time::timeout(Duration::from_secs(300), producer.flush()).await.unwrap().unwrap();
        assert_eq!(server.fake.values(0, 0), values);
        assert!(server.fake.state().mutes.is_empty());
    });
}

/// Of the other streamlet a chunk was appended and not answered: in another epoch it would be there twice.
#[test]
fn what_is_forgotten_in_one_streamlet_leaves_the_sequences_of_others_as_they_are() {
    for forgets in 0..2 {
        let server = FakeServer::start(2, 1);
        run(async {
            let (mut producer, _) = small_chunks(&server, |b| b.in_flight(1).request_bytes(1)).await;
            let value = |streamlet: u32, at: u32| format!("{streamlet} {at} {}", "x".repeat(100));
            for at in 0..10 {
                for streamlet in 0..2 {
                    let value = value(streamlet, at);
                    producer.send_to(StreamletId(streamlet), &Record::value(value.as_bytes())).await.unwrap();
                }
                if at == 4 {
                    producer.flush().await.unwrap();
                    server.fake.fail([Fault::AppendAndBreak, Fault::ForgetIn(forgets)]);
                }
            }
            producer.flush().await.unwrap();
            let all = |streamlet: u32| (0..10).map(|at| value(streamlet, at)).collect::<Vec<_>>();
            assert_eq!(server.fake.values(1 - forgets, 0), all(1 - forgets));
            assert_eq!(producer.stats().forgotten_chunks > 0, server.fake.state().skipped > 0);
            assert_eq!(server.fake.state().epochs[&1], 0);
        });
    }
}

/// A server that has forgotten a producer takes what it has of it already for new, and cannot tell whether it has it. Nor can the producer, which said that all is there once.
#[test]
fn what_may_be_there_twice_is_counted() {
    let forgets = [Fault::Forget, Fault::FirstChunk(Status::UnknownProducer)];
    for (is_there, forgets) in forgets.into_iter().flat_map(|forgets| [(true, forgets), (false, forgets)]) {
        let server = FakeServer::start(1, 1);
        run(async {
            let (mut producer, _) = small_chunks(&server, |b| b).await;
            let send = async |producer: &mut Producer, value: &str| {
                producer.send(&Record::value(value.as_bytes())).await.unwrap();
                producer.flush().await.unwrap();
            };
            send(&mut producer, "first").await;
            server.fake.state().tells_forgot = true;
            server.fake.fail([if is_there { Fault::AppendAndBreak } else { Fault::Break }, forgets]);
            send(&mut producer, "second").await;
            let count = server.fake.values(0, 0).iter().filter(|value| *value == "second").count();
            assert_eq!(count, if is_there { 2 } else { 1 });
            assert_eq!(producer.stats().doubtful_chunks, 1, "nobody can tell");
            // Of what comes behind it the server knows.
            server.fake.fail([Fault::AppendAndBreak]);
            send(&mut producer, "third").await;
            assert_eq!(server.fake.values(0, 0).iter().filter(|value| *value == "third").count(), 1);
            assert_eq!(producer.stats().doubtful_chunks, 1);
        });
    }
}

#[test]
fn a_producer_whose_id_is_not_known_any_more_gets_another() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b).await;
        server.fake.fail([Fault::FirstChunk(Status::UnknownProducer)]);
        let values = numbered(0..100);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0), values);
        assert_eq!(server.fake.state().epochs.len(), 2);
    });
}

#[test]
fn a_fenced_producer_says_so_and_takes_nothing_more() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b).await;
        server.fake.fail([Fault::FirstChunk(Status::StaleEpoch)]);
        send_all(&mut producer, &numbered(0..1)).await;
        let error = producer.flush().await.unwrap_err();
        assert!(matches!(error, ClientError::Fenced { .. }), "{error}");
        let error = producer.send(&Record::value(b"more")).await.unwrap_err();
        assert!(matches!(error, ClientError::Fenced { .. }), "{error}");
    });
}

#[test]
fn records_that_cannot_be_delivered_in_time_are_given_up() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, reports) = small_chunks(&server, |b| b.delivery_timeout(Duration::from_millis(300))).await;
        send_until_acknowledged(&mut producer, &numbered(0..10)).await;
        let failed_before = producer.stats().failed_records;
        server.crash();
        reports.lock().unwrap().clear();
        let lost = numbered(10..100);
        send_all(&mut producer, &lost).await;
        let error = producer.flush().await.unwrap_err();
        assert!(matches!(error, ClientError::DeliveryTimeout { .. }), "{error}");
        assert!(error.could_duplicate() && error.to_string().contains("300 ms"), "{error}");
        assert_eq!(producer.stats().failed_records - failed_before, 90);
        assert_eq!(producer.stats().buffered_bytes, 0);
        let failed = reports.lock().unwrap().iter().filter(|report| report.result.is_err()).count();
        assert!(failed > 1);
        // Once the server is back, so is the producer.
        server.restart();
        let behind = numbered(100..200);
        send_until_acknowledged(&mut producer, &behind).await;
        let stored = server.fake.values(0, 0);
        assert!(stored.ends_with(&behind) && !stored.iter().any(|value| lost.contains(value)), "{stored:?}");
    });
}

/// As with a machine that drops packets: a connection to it takes as long to fail as the client has patience, and all producers of a client want one.
#[test]
fn records_for_a_node_that_never_greets_are_given_up_in_their_time() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        // Nothing here may be saved by a connection that has failed.
        let client = server.client().connect_timeout(Duration::from_secs(600)).connect().await.unwrap();
        let mut producers = Vec::new();
        for _ in 0..20 {
            let builder = client.producer(STREAM).delivery_timeout(Duration::from_secs(2));
            producers.push(builder.build().await.unwrap());
        }
        server.crash();
        let _silent = TcpListener::bind(server.address).unwrap();
        for producer in &mut producers {
            send_all(producer, &numbered(0..1)).await;
        }
        for producer in &mut producers {
            let error = producer.flush().await.expect_err("nobody is there");
            assert!(matches!(error, ClientError::DeliveryTimeout { .. }), "{error}");
        }
    });
}

/// Nothing takes from open chunks while there is no connection.
#[test]
fn records_in_open_chunks_are_given_up_in_their_time() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        let builder = client(&server).await.producer(STREAM).delivery_timeout(Duration::from_millis(300));
        let mut producer = builder.build().await.unwrap();
        server.crash();
        for _ in 0..3 {
            let record = Record::value(b"a record");
            let given_up = tokio::time::timeout(Duration::from_secs(60), producer.deliver(&record)).await;
            let error = given_up.expect("its time is up long ago").expect_err("nobody is there");
            assert!(matches!(error, ClientError::DeliveryTimeout { .. }), "{error}");
        }
        server.restart();
        // Until it is connected to again its time may be up some times more.
        while let Err(error) = producer.deliver(&Record::value(b"the last one")).await {
            assert!(matches!(error, ClientError::DeliveryTimeout { .. }), "{error}");
        }
        let mut stored = server.fake.values(0, 0);
        stored.dedup();
        assert_eq!(stored, ["the last one"]);
    });
}

/// Whoever gives up a chunk that was sent does not know whether it is there; the server does.
#[test]
fn a_chunk_that_was_given_up_after_it_was_sent_is_skipped_if_it_is_not_there() {
    for (fault, is_old) in [(Fault::Stall, false), (Fault::AppendAndStall, false), (Fault::Stall, true)] {
        let server = server_that(2, is_old);
        run(async {
            // So much that only what is meant to be given up is.
            let (request, delivery) = (Duration::from_secs(60), Duration::from_secs(100));
            let (mut producer, _) =
                small_chunks(&server, |b| b.delivery_timeout(delivery).request_timeout(request).in_flight(1)).await;
            server.fake.fail([fault, Fault::Stall]);
            producer.send_to(StreamletId(0), &Record::value(b"given up")).await.unwrap();
            for left in [1, 0] {
                server.until("it has come", |state| state.faults.len() == left).await;
                later(request).await;
            }
            assert!(producer.flush().await.is_err());
            let behind = numbered(1..50);
            for value in &behind {
                producer.send_to(StreamletId(0), &Record::value(value.as_bytes())).await.unwrap();
                producer.send_to(StreamletId(1), &Record::value(value.as_bytes())).await.unwrap();
            }
            producer.flush().await.unwrap();
            let there = usize::from(fault == Fault::AppendAndStall);
            assert_eq!(server.fake.values(0, 0)[there..], behind);
            assert_eq!(server.fake.values(1, 0), behind);
            let epochs = u16::from(is_old && there == 0);
            assert_eq!(server.fake.state().epochs[&1], epochs);
            assert_eq!(server.fake.state().skipped, u64::from(!is_old && there == 0));
            assert_eq!(producer.stats().forgotten_chunks, 0);
        });
    }
}

#[test]
fn a_server_that_is_killed_and_restarted_under_load_loses_and_doubles_nothing() {
    let mut server = FakeServer::start(3, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b.routing(Routing::RoundRobin)).await;
        let sender = tokio::spawn(async move {
            for value in numbered(0..20_000) {
                producer.send(&Record::value(value.as_bytes())).await.unwrap();
                tokio::task::yield_now().await;
            }
            producer.flush().await.unwrap();
            producer
        });
        let mut reached = 0;
        while !sender.is_finished() {
            let chunks = server.fake.chunk_count();
            if chunks >= reached + 300 {
                reached = chunks;
                server.restart();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let producer = sender.await.unwrap();
        let mut all = Vec::new();
        for streamlet in 0..3 {
            let values = server.fake.values(streamlet, 0);
            assert!(values.is_sorted_by_key(|value| value[7..].parse::<usize>().unwrap()), "out of order");
            all.extend(values);
        }
        all.sort_by_key(|value| value[7..].parse::<usize>().unwrap());
        assert_eq!(all, numbered(0..20_000));
        assert!(producer.stats().reconnects > 0, "the server was never restarted");
    });
}

/// Chunks fail for now that are there and that are not, answers are late and connections break: whatever is sent again, and in whichever order that becomes
/// known, each record is there once and in order, without another epoch.
#[test]
fn a_server_in_any_mood_loses_and_doubles_nothing() {
    let told = std::thread::scope(|scope| {
        let of_seed: Vec<_> = (0..16).map(|seed| scope.spawn(move || in_a_mood(seed))).collect();
        of_seed.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(told.iter().any(|stats| stats.duplicate_chunks > 0) && told.iter().any(|stats| stats.reconnects > 0));
}

fn in_a_mood(seed: u64) -> ProducerStats {
    let server = FakeServer::start(4, 1);
    let mut told = ProducerStats::default();
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b.routing(Routing::RoundRobin)).await;
        server.fake.state().mood = Some(fake::Mood::new(seed));
        send_all(&mut producer, &numbered(0..1_000)).await;
        producer.flush().await.unwrap();
        let mut all = Vec::new();
        for streamlet in 0..4 {
            let values = server.fake.values(streamlet, 0);
            let mut sorted = values.clone();
            sorted.sort_by_key(|value| value[7..].parse::<usize>().unwrap());
            assert!(values == sorted, "seed {seed}: out of order in streamlet {streamlet}");
            all.extend(values);
        }
        all.sort_by_key(|value| value[7..].parse::<usize>().unwrap());
        assert!(all == numbered(0..1_000), "seed {seed}: {} records", all.len());
        told = producer.stats();
        assert_eq!((told.forgotten_chunks, told.doubtful_chunks), (0, 0), "seed {seed}");
        assert_eq!(server.fake.state().epochs[&1], 0, "seed {seed}");
    });
    told
}

/// A server that stands still answers nobody, clients give up and connect anew, and when it goes on it may treat what had come by the old connections after what came
/// by the new ones, at any time. What was given up may be there or not. Nothing else may be missing, and nothing may be there twice.
#[test]
fn what_comes_late_by_a_connection_that_was_given_up_is_not_there_twice() {
    let told = std::thread::scope(|scope| {
        let of_seed: Vec<_> = (0..12).map(|seed| scope.spawn(move || in_which_old_connections_linger(seed))).collect();
        of_seed.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(told.iter().any(|(stats, ..)| stats.failed_records > 0), "nothing was given up");
    assert!(told.iter().any(|(_, skipped, _)| *skipped > 0), "nothing was skipped");
    assert!(told.iter().any(|(.., lingered)| *lingered > 0), "nothing came late");
}

fn in_which_old_connections_linger(seed: u64) -> (ProducerStats, u64, u64) {
    let server = FakeServer::start(2, 1);
    let mut told = (ProducerStats::default(), 0, 0);
    run(async {
        let (request_timeout, delivery_timeout) = (Duration::from_millis(20), Duration::from_millis(30));
        let (mut producer, reports) =
            small_chunks(&server, |b| b.request_timeout(request_timeout).delivery_timeout(delivery_timeout)).await;
        {
            let mut state = server.fake.state();
            (state.mood, state.lingers) = (Some(fake::Mood::new(seed)), true);
        }
        for (streamlet, value) in (0..2).cycle().zip(&numbered(0..2_500)) {
            producer.send_to(StreamletId(streamlet), &Record::value(value.as_bytes())).await.unwrap();
            if streamlet == 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let _ = producer.flush().await;
        for streamlet in 0..2 {
            let number = |value: &String| value[7..].parse::<u64>().unwrap();
            let stored: Vec<u64> = server.fake.values(streamlet, 0).iter().map(number).collect();
            assert!(stored.is_sorted_by(|a, b| a < b), "seed {seed}: twice or out of order in {streamlet}: {stored:?}");
            let reports = reports.lock().unwrap();
            // They were sent by turns: the n-th record of the streamlet is the (2 n + streamlet)-th of all.
            let here = reports.iter().filter(|report| report.streamlet.0 == streamlet && report.result.is_ok());
            for record in here.flat_map(|report| report.first_record..report.first_record + u64::from(report.records)) {
                let number = 2 * record + u64::from(streamlet);
                assert!(stored.binary_search(&number).is_ok(), "seed {seed}: record {number} is lost");
            }
        }
        let state = server.fake.state();
        assert_eq!(state.epochs[&1], 0, "seed {seed}");
        told = (producer.stats(), state.skipped, state.lingered);
    });
    told
}

#[test]
fn send_waits_while_the_buffer_is_full_and_goes_on_when_there_is_room() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, _) =
            small_chunks(&server, |b| b.buffer_bytes(1_000).linger(Duration::from_secs(3_600))).await;
        server.fake.state().hold_writes = true;
        let mut taken = 0;
        while producer.try_send(&Record::value(b"0123456789")).unwrap() {
            taken += 1;
        }
        assert_eq!(taken, 1_000 / 18);
        let record = Record::value(b"one more");
        let waiting = producer.send(&record);
        assert!(tokio::time::timeout(Duration::from_millis(50), waiting).await.is_err());
        assert_eq!(producer.stats().records, taken);
        server.fake.state().hold_writes = false;
        server.fake.wake_all();
        producer.send(&Record::value(b"one more")).await.unwrap();
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0).len() as u64, taken + 1);
    });
}

#[test]
fn linger_lets_a_chunk_fill_and_flush_does_not_wait_for_it() {
    let server = FakeServer::start(1, 1);
    run(async {
        let builder = client(&server).await.producer(STREAM).linger(Duration::from_secs(3_600));
        let mut producer = builder.build().await.unwrap();
        for value in numbered(0..100) {
            producer.send(&Record::value(value.as_bytes())).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(server.fake.chunk_count(), 0);
        producer.flush().await.unwrap();
        assert_eq!(server.fake.chunk_count(), 1);
        let builder = client(&server).await.producer(STREAM).linger(Duration::from_millis(20));
        let mut producer = builder.build().await.unwrap();
        producer.send(&Record::value(b"leaves by itself")).await.unwrap();
        server.until("it left", |state| state.logs[&(0, 0)].chunks.len() == 2).await;
    });
}

#[test]
fn without_linger_a_record_leaves_at_once() {
    let server = FakeServer::start(1, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).build().await.unwrap();
        for i in 1..20 {
            producer.send(&Record::value(b"now")).await.unwrap();
            server.until("it left", |state| state.logs.get(&(0, 0)).is_some_and(|log| log.chunks.len() == i)).await;
        }
    });
}

#[test]
fn deliver_tells_where_the_record_is() {
    let server = FakeServer::start(4, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).build().await.unwrap();
        let record = Record { keys: &[b"key"], value: Some(b"value"), ..Record::default() };
        for ordinal in 0..5 {
            let delivered = producer.deliver(&record).await.unwrap();
            assert_eq!(delivered.base_ordinal, Some(ordinal));
            assert_eq!(delivered.streamlet.0, kera_client::routing::streamlet_of_key(b"key", 4, 1));
            assert!(!delivered.duplicate);
        }
    });
}

#[test]
fn send_all_and_send_to_take_what_send_takes() {
    let server = FakeServer::start(2, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).buffer_bytes(70_000).build().await.unwrap();
        let values = numbered(0..20_000);
        let builder = values.iter().map(|value| Record { keys: &[b"k"], ..Record::value(value.as_bytes()) });
        assert_eq!(producer.send_all(builder).await.unwrap(), 20_000);
        producer.flush().await.unwrap();
        let streamlet = kera_client::routing::streamlet_of_key(b"k", 2, 1);
        assert_eq!(server.fake.values(streamlet, 0), values);
        let other = 1 - streamlet;
        producer.send_to(StreamletId(other), &Record::value(b"there")).await.unwrap();
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(other, 0), ["there"]);
        assert!(producer.send_to(StreamletId(2), &Record::value(b"nowhere")).await.is_err());
    });
}

#[test]
fn compressed_chunks_are_stored_compressed() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let server = FakeServer::start(1, 1);
        run(async {
            let builder = client(&server).await.producer(STREAM).compression(compression);
            let mut producer = builder.linger(Duration::from_millis(5)).build().await.unwrap();
            let values = numbered(0..5_000);
            send_all(&mut producer, &values).await;
            producer.flush().await.unwrap();
            assert_eq!(server.fake.values(0, 0), values);
            let stored: usize = server.fake.state().logs[&(0, 0)].chunks.iter().map(|chunk| chunk.bytes.len()).sum();
            assert!(stored < 5_000 * 10, "{stored} bytes");
        });
    }
}

#[test]
fn a_record_that_is_too_large_is_refused_alone() {
    let server = FakeServer::start(1, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).buffer_bytes(1 << 20).build().await.unwrap();
        producer.send(&Record::value(b"before")).await.unwrap();
        let error = producer.send(&Record::value(&vec![0; 4 << 20])).await.unwrap_err();
        assert!(matches!(error, ClientError::Record(_)), "{error}");
        // Larger than a chunk and than the whole buffer, but not than what the stream takes.
        producer.send(&Record::value(&vec![b'x'; 3 << 20])).await.unwrap();
        producer.send(&Record::value(b"after")).await.unwrap();
        producer.flush().await.unwrap();
        let stored = server.fake.values(0, 0);
        assert_eq!((stored[0].as_str(), stored[1].len(), stored[2].as_str()), ("before", 3 << 20, "after"));
    });
}

#[test]
fn settings_outside_their_limits_are_named() {
    let server = FakeServer::start(2, 1);
    run(async {
        let client = client(&server).await;
        for (builder, field) in [
            (client.producer(STREAM).chunk_bytes(64 << 20), "chunk_bytes"),
            (client.producer(STREAM).chunk_bytes(10), "chunk_bytes"),
            (client.producer(STREAM).in_flight(0), "in_flight"),
            (client.producer(STREAM).buffer_bytes(1_000), "buffer_bytes"),
            (client.producer(STREAM).request_bytes(0), "request_bytes"),
            (client.producer(STREAM).routing(Routing::Streamlet(2)), "streamlet"),
        ] {
            let error = builder.build().await.unwrap_err();
            assert!(error.to_string().starts_with(field), "{error}");
        }
        let error = client.producer("none").build().await.unwrap_err();
        assert_eq!(error.status(), Some(Status::UnknownStream));
    });
}

#[test]
fn many_streamlets_do_not_take_more_memory_than_allowed() {
    let server = FakeServer::start(10_000, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).buffer_bytes(1 << 20).build().await.unwrap();
        for i in 0..30_000_u32 {
            let key = i.to_le_bytes();
            let record = Record { keys: &[&key], value: Some(b"value"), ..Record::default() };
            producer.send(&record).await.unwrap();
        }
        producer.flush().await.unwrap();
        let stored: u64 = server.fake.state().logs.values().map(|log| log.next_ordinal).sum();
        assert_eq!(stored, 30_000);
    });
}

#[test]
fn dropping_a_producer_gives_up_what_is_not_acknowledged() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, reports) = small_chunks(&server, |b| b.linger(Duration::from_secs(3_600))).await;
        server.fake.state().hold_writes = true;
        send_all(&mut producer, &numbered(0..10)).await;
        drop(producer);
        while reports.lock().unwrap().iter().map(|report| report.records).sum::<u32>() < 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let reports = reports.lock().unwrap();
        assert!(reports.iter().all(|report| is_closed(report.result.as_ref().unwrap_err())));
    });
}

/// What was given up because the producer has ended, whether it may be in the stream or not.
fn is_closed(error: &ClientError) -> bool {
    match error {
        ClientError::Unknown { error, .. } => is_closed(error),
        error => matches!(error, ClientError::Closed),
    }
}

/// Whoever believed that they are not there sent them anew, and had them twice.
#[test]
fn what_may_be_there_of_a_producer_that_ends_is_told_apart_from_what_was_never_sent() {
    let server = FakeServer::start(1, 1);
    run(async {
        // Nothing here is to be sent again.
        let never = Duration::from_secs(3_600);
        let (mut producer, reports) =
            small_chunks(&server, |b| b.in_flight(1).request_timeout(never).delivery_timeout(never)).await;
        server.fake.fail([Fault::AppendAndStall]);
        send_all(&mut producer, &numbered(0..1)).await;
        server.until("it is there", |state| state.chunk_count() == 1).await;
        send_all(&mut producer, &numbered(1..50)).await;
        drop(producer);
        while reports.lock().unwrap().iter().map(|report| report.records).sum::<u32>() < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.fake.values(0, 0), numbered(0..1));
        for report in reports.lock().unwrap().iter() {
            let error = report.result.as_ref().unwrap_err();
            assert!(is_closed(error) && !error.retryable(), "{error}");
            assert_eq!(error.could_duplicate(), report.first_record == 0, "{error}");
        }
    });
}

/// Each answer that says that nothing was appended is known as such, not only the last one: who is told that the records may be there cannot send them anew.
#[test]
fn what_was_refused_for_now_and_then_for_good_is_certainly_not_there() {
    for (first, is_unknown) in [
        (Fault::FirstChunk(Status::Overloaded), false),
        (Fault::FirstChunk(Status::ArenaFull), false),
        (Fault::Request(Status::NotReady), false),
        (Fault::FirstChunk(Status::Timeout), true),
        (Fault::Break, true),
    ] {
        let server = FakeServer::start(1, 1);
        run(async {
            // Nothing here is to run out of time.
            let (mut producer, reports) =
                small_chunks(&server, |b| b.delivery_timeout(Duration::from_secs(3_600))).await;
            server.fake.fail([first, Fault::FirstChunk(Status::ChunkTooLarge)]);
            send_all(&mut producer, &numbered(0..1)).await;
            let error = producer.flush().await.unwrap_err();
            assert_eq!((error.status(), error.could_duplicate()), (Some(Status::ChunkTooLarge), is_unknown), "{error}");
            assert_eq!(matches!(error, ClientError::Refused { .. }), !is_unknown, "{error}");
            assert_eq!(reports.lock().unwrap().len(), 1);
        });
    }
}

#[test]
fn without_an_id_chunks_are_not_deduplicated() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b.idempotent(false)).await;
        server.fake.fail([Fault::AppendAndBreak]);
        producer.send(&Record::value(b"twice")).await.unwrap();
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0), ["twice", "twice"]);
        assert!(server.fake.state().epochs.is_empty());
    });
}

#[test]
fn many_producers_of_a_client_share_connections_and_outlive_each_other() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        let client = client(&server).await;
        let build = || client.producer(STREAM).linger(Duration::ZERO).build();
        let mut producers = Vec::new();
        for _ in 0..60 {
            producers.push(build().await.unwrap());
        }
        for (n, producer) in producers.iter_mut().enumerate() {
            send_all(producer, &numbered(n..n + 1)).await;
            producer.flush().await.unwrap();
        }
        let connections = server.fake.state().wakers.len();
        assert_eq!(connections, 16 + 1, "one more for short calls");
        // Those that end take nobody's connection along.
        for producer in producers.drain(..40) {
            producer.close().await.unwrap();
        }
        for (n, producer) in (60..).zip(&mut producers) {
            send_all(producer, &numbered(n..n + 1)).await;
            producer.flush().await.unwrap();
            assert_eq!(producer.stats().reconnects, 0);
        }
        server.restart();
        for (n, producer) in (80..).zip(&mut producers) {
            send_all(producer, &numbered(n..n + 1)).await;
            producer.flush().await.unwrap();
        }
        assert_eq!(server.fake.values(0, 0), numbered(0..100));
        assert!(server.fake.state().wakers.len() <= 16 + 1, "broken ones are made again as few as they were");
    });
}

#[test]
fn streamlets_that_a_stream_gets_are_written_to() {
    let server = FakeServer::start(1, 1);
    run(async {
        let (mut producer, _) = small_chunks(&server, |b| b.refresh(Duration::from_millis(5))).await;
        let keys: Vec<String> = numbered(0..50);
        let refused = producer.send_to(StreamletId(1), &Record::value(b"early")).await.expect_err("there is one");
        assert!(refused.to_string().contains("below 1"), "{refused}");
        for key in &keys {
            producer.send(&Record { keys: &[key.as_bytes()], ..Record::value(b"a value") }).await.unwrap();
        }
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0).len(), 50);

        server.grow(3);
        let mut sent = 50;
        while server.fake.values(1, 0).is_empty() || server.fake.values(2, 0).is_empty() {
            for key in &keys {
                producer.send(&Record { keys: &[key.as_bytes()], ..Record::value(b"a value") }).await.unwrap();
            }
            producer.flush().await.unwrap();
            sent += 50;
            assert!(sent < 1_000_000, "the producer does not find out");
        }
        producer.send_to(StreamletId(2), &Record::value(b"the last")).await.unwrap();
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(2, 0).last().unwrap(), "the last");
        let all: usize = (0..3).map(|streamlet| server.fake.values(streamlet, 0).len()).sum();
        assert_eq!(all, sent + 1, "all of them, and once");
        producer.close().await.unwrap();
    });
}

#[test]
fn a_producer_whose_task_has_panicked_gives_up_what_it_had_and_takes_nothing_more() {
    let server = FakeServer::start(1, 1);
    run(async {
        let builder = client(&server).await.producer(STREAM).chunk_bytes(200).buffer_bytes(1_000);
        let mut producer = builder.on_report(|_| panic!("a report that goes wrong")).build().await.unwrap();
        let mut sent = Ok(());
        for number in 0..1_000 {
            // It waits for room that nobody makes any more.
            sent = producer.send(&Record::value(format!("record {number}").as_bytes())).await;
            if sent.is_err() {
                break;
            }
        }
        assert!(matches!(sent, Err(ClientError::Closed)), "{sent:?}");
        let _ = producer.flush().await;
        assert!(matches!(producer.deliver(&Record::value(b"more")).await, Err(ClientError::Closed)));
        let _ = producer.close().await;
    });
}

#[test]
fn a_producer_whose_runtime_has_ended_says_so() {
    let server = FakeServer::start(1, 1);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    server.fake.state().hold_writes = true;
    let mut producer = other.block_on(async { client(&server).await.producer(STREAM).build().await.unwrap() });
    other.block_on(producer.send(&Record::value(b"record"))).unwrap();
    drop(other);
    run(async {
        assert!(producer.flush().await.is_err_and(|error| is_closed(&error)));
        assert!(matches!(producer.deliver(&Record::value(b"more")).await, Err(ClientError::Closed)));
    });
}

#[test]
fn times_without_an_end_are_taken() {
    let server = FakeServer::start(1, 1);
    run(async {
        let never = Duration::MAX;
        let client = server.client().retry_timeout(never).connect_timeout(never).call_timeout(never);
        let client = client.connect().await.unwrap();
        let producer = client.producer(STREAM).delivery_timeout(never).request_timeout(never).refresh(never);
        let mut producer = producer.linger(never).build().await.unwrap();
        let values = numbered(0..100);
        send_all(&mut producer, &values).await;
        producer.flush().await.unwrap();
        assert_eq!(server.fake.values(0, 0), values);
        producer.close().await.unwrap();
        let mut all = client.consumer(STREAM).refresh(never).build().await.unwrap();
        assert_eq!(all.next().await.unwrap().unwrap().ordinal, 0);
        let member = client.consumer(STREAM).application("app").commit(kera_client::CommitMode::Interval(never));
        let mut member = member.build().await.unwrap();
        assert_eq!(member.next().await.unwrap().unwrap().ordinal, 0);
        member.close().await.unwrap();
    });
}
