//! The consumer against a broker that fails on purpose.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kera_client::{
    Batch, Client, ClientError, CommitMode, Compression, Consumer, ConsumerBuilder, GapPolicy, LaneId, Record, Start,
    StreamletId,
};
use kera_protocol::limits::READ_ENTRIES_MAX;
use kera_protocol::{Op, Status};
use kera_rpc::RpcError;

use crate::door::Door;
use crate::fake::{FakeServer, STREAM, numbered, run};
use crate::steady::later;

async fn client(server: &FakeServer) -> Client {
    server.client().connect().await.unwrap()
}

async fn build(server: &FakeServer, change: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder) -> Consumer {
    change(client(server).await.consumer(STREAM)).build().await.unwrap()
}

fn texts(batch: &Batch) -> Vec<String> {
    batch.records().map(|record| String::from_utf8(record.view.value().unwrap().to_vec()).unwrap()).collect()
}

/// Reads until so many records have come, by lane, and checks that ordinals follow.
async fn read(consumer: &mut Consumer, records: usize) -> BTreeMap<(u32, u32), Vec<String>> {
    let mut all: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
    let mut ordinals: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut count = 0;
    while count < records {
        let batch = consumer.next_batch().await.unwrap().expect("no end was asked for");
        let lane = (batch.streamlet().0, batch.lane().0);
        for record in batch.records() {
            let expected = ordinals.entry(lane).or_insert(record.ordinal);
            assert_eq!(record.ordinal, *expected, "ordinals of lane {lane:?}");
            *expected += 1;
        }
        assert_eq!(batch.len() as usize, batch.records().count());
        count += batch.len() as usize;
        all.entry(lane).or_default().extend(texts(&batch));
    }
    assert_eq!(count, records);
    all
}

/// Appends records in chunks of ten to one lane.
fn fill(server: &FakeServer, streamlet: u32, lane: u64, range: std::ops::Range<usize>) {
    for chunk in numbered(range).chunks(10) {
        server.append(streamlet, lane, chunk);
    }
}

#[test]
fn streamlets_that_a_stream_gets_are_read_from_their_beginning() {
    for long_poll in [false, true] {
        let server = FakeServer::start(1, 2);
        run(async {
            fill(&server, 0, 0, 0..20);
            let mut consumer =
                build(&server, |c| c.from(Start::Latest).long_poll(long_poll).refresh(Duration::from_millis(5))).await;
            server.grow(3);
            fill(&server, 2, 1, 0..30);
            fill(&server, 0, 1, 0..10);
            let all = read(&mut consumer, 40).await;
            assert_eq!((all[&(2, 1)].len(), all[&(0, 1)].len()), (30, 10));
            fill(&server, 1, 0, 0..10);
            assert_eq!(read(&mut consumer, 10).await[&(1, 0)].len(), 10);
        });
    }
}

/// It would read what it has forgotten once more from the beginning, and all that comes twice.
#[test]
fn a_node_that_has_not_heard_of_the_last_growth_is_not_believed() {
    for long_poll in [false, true] {
        let server = FakeServer::start(2, 1);
        run(async {
            let mut consumer = build(&server, |c| c.long_poll(long_poll).refresh(Duration::from_millis(5))).await;
            server.grow(3);
            fill(&server, 2, 0, 0..30);
            assert_eq!(read(&mut consumer, 30).await[&(2, 0)], numbered(0..30));
            for streamlets in [2, 3] {
                server.grow(streamlets);
                let asked = server.fake.state().stream_asked;
                // The one after the next is asked for when the next has been taken.
                tokio::select! {
                    never = consumer.idle() => match never {},
                    () = server.until("it looks", |state| state.stream_asked >= asked + 2) => {}
                }
            }
            fill(&server, 2, 0, 30..40);
            assert_eq!(read(&mut consumer, 10).await[&(2, 0)], numbered(30..40));
            assert_eq!(consumer.positions().len(), 3, "each lane once");
        });
    }
}

/// It left out what did not fit into one subscription without a word, and failed with what the node said when it subscribed to the rest.
#[test]
fn more_lanes_of_a_node_than_can_be_read_are_refused_and_named() {
    let is_named = |error: &ClientError| matches!(error, ClientError::Invalid { value, allowed, .. } if value == "65538" && allowed.contains("65536"));
    let server = FakeServer::start(32_769, 2);
    run(async {
        let error = client(&server).await.consumer(STREAM).build().await.expect_err("they are too many");
        assert!(is_named(&error), "{error}");
        fill(&server, 7, 1, 0..10);
        let mut consumer = build(&server, |c| c.streamlets(5..9)).await;
        assert_eq!(read(&mut consumer, 10).await[&(7, 1)], numbered(0..10));
    });
    let server = FakeServer::start(2, 2);
    run(async {
        let mut consumer = build(&server, |c| c.refresh(Duration::from_millis(5))).await;
        server.grow(32_769);
        let error = consumer.next_batch().await.expect_err("they have become too many");
        assert!(is_named(&error), "{error}");
    });
}

#[test]
fn a_consumer_starts_although_its_first_connections_break() {
    for application in [false, true] {
        let server = FakeServer::start(2, 2);
        run(async {
            fill(&server, 0, 0, 0..50);
            fill(&server, 1, 1, 0..30);
            let faults = [Op::GetStream, if application { Op::JoinApplication } else { Op::Lookup }];
            let start = |client: &Client| match application {
                true => client.consumer(STREAM).application("report"),
                false => client.consumer(STREAM).from(Start::Earliest),
            };
            for fault in faults {
                server.fake.state().breaks = vec![fault];
                let error =
                    start(&client(&server).await).build().await.expect_err("nothing is tried again unless asked");
                assert!(matches!(&error, ClientError::Rpc(e) if e.could_duplicate()), "{fault:?}: {error}");
            }
            server.fake.state().breaks = faults.to_vec();
            let patient = server.client().retry_timeout(Duration::from_secs(300)).connect().await.unwrap();
            let mut consumer = start(&patient).build().await.unwrap();
            assert!(server.fake.state().breaks.is_empty(), "both have happened");
            let all = read(&mut consumer, 80).await;
            assert_eq!((all[&(0, 0)].len(), all[&(1, 1)].len()), (50, 30));
        });
    }
}

/// Has something built while the stream is heard of in the third answer only. Whoever asks gives up after a second, and on a machine that
/// stands still that may be up before: then it is built anew.
async fn heard_of_late<T>(server: &FakeServer, build: impl AsyncFn() -> Result<T, ClientError>) -> T {
    loop {
        server.fake.state().unheard = 2;
        let begun = Instant::now();
        match build().await {
            Ok(built) => return built,
            Err(error) => assert!(begun.elapsed() >= Duration::from_secs(1), "it is not asked for again: {error}"),
        }
    }
}

#[test]
fn a_stream_that_a_node_has_not_heard_of_yet_is_asked_for_again() {
    let server = FakeServer::start(1, 1);
    run(async {
        let client = client(&server).await;
        heard_of_late(&server, async || client.producer(STREAM).build().await).await;
        heard_of_late(&server, async || client.consumer(STREAM).build().await).await;
        assert_eq!(server.fake.state().unheard, 0);
        let error = client.consumer("nothing").build().await.expect_err("nobody ever makes it");
        assert_eq!(error.status(), Some(Status::UnknownStream));
    });
}

#[test]
fn all_lanes_are_read_in_order_from_the_start_and_as_they_grow() {
    for long_poll in [false, true] {
        let server = FakeServer::start(2, 2);
        run(async {
            fill(&server, 0, 0, 0..500);
            fill(&server, 1, 1, 0..300);
            let mut consumer = build(&server, |b| b.long_poll(long_poll)).await;
            let first = read(&mut consumer, 800).await;
            assert_eq!(first[&(0, 0)], numbered(0..500));
            assert_eq!(first[&(1, 1)], numbered(0..300));
            fill(&server, 0, 0, 500..520);
            fill(&server, 0, 1, 0..20);
            let second = read(&mut consumer, 40).await;
            assert_eq!(second[&(0, 0)], numbered(500..520));
            assert_eq!(second[&(0, 1)], numbered(0..20));
            assert_eq!(consumer.stats().records, 840);
            assert_eq!(consumer.lag(), 0);
            consumer.close().await.unwrap();
        });
    }
}

#[test]
fn reading_crosses_groups() {
    let server = FakeServer::start(1, 1);
    run(async {
        for i in 0..5 {
            fill(&server, 0, 0, i * 50..(i + 1) * 50);
            server.fake.state().logs.get_mut(&(0, 0)).unwrap().close_group();
        }
        let mut consumer = build(&server, |b| b).await;
        assert_eq!(read(&mut consumer, 250).await[&(0, 0)], numbered(0..250));
        fill(&server, 0, 0, 250..260);
        assert_eq!(read(&mut consumer, 10).await[&(0, 0)], numbered(250..260));
    });
}

#[test]
fn a_consumer_starts_where_it_is_told() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let mut latest = build(&server, |b| b.from(Start::Latest)).await;
        let mut ordinal = build(&server, |b| b.from(Start::Ordinal(37))).await;
        // Chunks are stamped with 1001, 1002 and so on.
        let mut time = build(&server, |b| b.from(Start::TimeMs(1_005))).await;
        let mut beyond = build(&server, |b| b.from(Start::Ordinal(100))).await;
        fill(&server, 0, 0, 100..110);
        assert_eq!(read(&mut latest, 10).await[&(0, 0)], numbered(100..110));
        assert_eq!(read(&mut ordinal, 73).await[&(0, 0)], numbered(37..110));
        assert_eq!(read(&mut time, 70).await[&(0, 0)], numbered(40..110));
        assert_eq!(read(&mut beyond, 10).await[&(0, 0)], numbered(100..110));
    });
}

#[test]
fn a_consumer_reads_only_the_lanes_it_is_told_to() {
    let server = FakeServer::start(3, 2);
    run(async {
        for streamlet in 0..3 {
            for lane in 0..2 {
                fill(&server, streamlet, lane, 0..10);
            }
        }
        let mut consumer = build(&server, |b| b.streamlets([2, 1]).lanes([1])).await;
        let all = read(&mut consumer, 20).await;
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), [(1, 1), (2, 1)]);
        let none = tokio::time::timeout(Duration::from_millis(50), consumer.next_batch()).await;
        assert!(none.is_err());
        let wrong = client(&server).await.consumer(STREAM).streamlets([3]).build().await.unwrap_err();
        assert!(wrong.to_string().contains("streamlet"), "{wrong}");
    });
}

#[test]
fn what_is_named_twice_is_read_once() {
    let server = FakeServer::start(2, 2);
    run(async {
        fill(&server, 1, 0, 0..10);
        let mut consumer = build(&server, |b| b.streamlets([1, 0, 1]).lanes([0, 0]).until_end(true)).await;
        assert_eq!(consumer.positions().len(), 2);
        let mut records = 0;
        while let Some(batch) = consumer.next_batch().await.unwrap() {
            records += batch.len();
        }
        assert_eq!(records, 10);
    });
}

#[test]
fn records_come_one_by_one_with_everything_they_have() {
    let server = FakeServer::start(1, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).compression(Compression::Zstd).build().await.unwrap();
        for i in 0..100_u64 {
            let text = format!("a value that compresses, number {i}");
            let keys: [&[u8]; 2] = [b"first", b"second"];
            let record = Record {
                keys: &keys,
                value: (i % 10 != 0).then_some(text.as_bytes()),
                version: Some(i),
                timestamp_ms: Some(i as i64),
                checksum: true,
            };
            producer.send(&record).await.unwrap();
        }
        producer.flush().await.unwrap();
        let mut consumer = build(&server, |b| b.until_end(true)).await;
        let mut ordinal = 0;
        while let Some(record) = consumer.next().await.unwrap() {
            let view = record.view();
            assert_eq!(
                (record.ordinal, view.version(), view.timestamp_ms()),
                (ordinal, Some(ordinal), Some(ordinal as i64))
            );
            assert_eq!(view.keys().collect::<Vec<_>>(), [&b"first"[..], b"second"]);
            assert_eq!(view.value().is_none(), ordinal % 10 == 0);
            view.verify().unwrap();
            ordinal += 1;
        }
        assert_eq!(ordinal, 100);
    });
}

#[test]
fn records_that_compress_well_are_not_all_unpacked_at_once() {
    let server = FakeServer::start(1, 1);
    run(async {
        let mut producer = client(&server).await.producer(STREAM).compression(Compression::Zstd).build().await.unwrap();
        let value = vec![7; 1 << 20];
        for _ in 0..40 {
            producer.deliver(&Record::value(&value)).await.unwrap();
        }
        let mut consumer = build(&server, |b| b.until_end(true)).await;
        let (mut ordinal, mut largest) = (0, 0);
        while let Some(batch) = consumer.next_batch().await.unwrap() {
            assert_eq!(batch.base_ordinal(), ordinal);
            (ordinal, largest) = (ordinal + batch.len(), largest.max(batch.len()));
        }
        assert_eq!(ordinal, 40);
        assert!(largest <= 4, "{largest} MiB were unpacked at once");
    });
}

#[test]
fn the_server_never_sends_more_than_there_is_credit_for() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..20_000);
        fill(&server, 1, 0, 0..20_000);
        let mut consumer = build(&server, |b| b.credit_bytes(64 << 10)).await;
        let first = consumer.next_batch().await.unwrap().unwrap().len() as usize;
        // It does not read on: the server stops.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let pushed = server.fake.state().pushed_bytes;
        assert!(pushed <= 3 * (64 << 10), "{pushed} bytes were pushed");
        let all = read(&mut consumer, 40_000 - first).await;
        assert_eq!(all.values().map(Vec::len).sum::<usize>(), 40_000 - first);
        assert!(server.fake.state().debt_bytes <= 64 << 10, "{}", server.fake.state().debt_bytes);
    });
}

#[test]
fn a_lost_connection_loses_and_doubles_nothing() {
    for long_poll in [false, true] {
        let mut server = FakeServer::start(2, 1);
        run(async {
            fill(&server, 0, 0, 0..5_000);
            fill(&server, 1, 0, 0..5_000);
            let mut consumer = build(&server, |b| b.credit_bytes(64 << 10).long_poll(long_poll)).await;
            let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
            let mut batches = 0;
            while all.values().map(Vec::len).sum::<usize>() < 10_000 {
                let batch = consumer.next_batch().await.unwrap().unwrap();
                all.entry(batch.streamlet().0).or_default().extend(texts(&batch));
                batches += 1;
                if batches % 3 == 0 && batches < 20 {
                    server.restart();
                }
            }
            for values in all.values() {
                assert_eq!(*values, numbered(0..5_000));
            }
            assert!(consumer.stats().reconnects > 2);
        });
    }
}

#[test]
fn a_server_that_is_away_for_a_while_is_waited_for() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 10).await;
        server.crash();
        let waiting = tokio::time::timeout(Duration::from_millis(200), consumer.next_batch()).await;
        assert!(waiting.is_err());
        server.restart();
        fill(&server, 0, 0, 10..20);
        assert_eq!(read(&mut consumer, 10).await[&(0, 0)], numbered(10..20));
    });
}

/// As behind a router that has forgotten its connections: nobody closes them.
#[test]
fn a_node_that_only_seems_to_be_there_is_connected_to_again() {
    let server = FakeServer::start(1, 1);
    let door = Door::before(server.address);
    run(async {
        fill(&server, 0, 0, 0..10);
        // Nothing here may be saved by a time that is up.
        let never = Duration::from_secs(600);
        let client = Client::builder(door.address.to_string()).call_timeout(never).connect().await.unwrap();
        let mut pushed = client.consumer(STREAM).build().await.unwrap();
        let mut polled = client.consumer(STREAM).long_poll(true).build().await.unwrap();
        read(&mut pushed, 10).await;
        read(&mut polled, 10).await;
        door.leave();
        fill(&server, 0, 0, 10..20);
        let (pushed, polled) = tokio::join!(read(&mut pushed, 10), read(&mut polled, 10));
        assert_eq!((&pushed[&(0, 0)], &polled[&(0, 0)]), (&numbered(10..20), &numbered(10..20)));
    });
}

#[test]
fn a_connection_by_which_a_call_was_not_answered_is_not_used_for_the_next() {
    let server = FakeServer::start(1, 1);
    let door = Door::before(server.address);
    run(async {
        let call_timeout = Duration::from_secs(60);
        let client = Client::builder(door.address.to_string()).call_timeout(call_timeout);
        let admin = client.connect().await.unwrap().admin();
        admin.stream(STREAM).await.unwrap();
        door.leave();
        let (answer, ()) = tokio::join!(admin.stream(STREAM), later(call_timeout));
        let error = answer.expect_err("its connection is dead");
        assert!(error.retryable(), "{error}");
        admin.stream(STREAM).await.expect("the next one has another connection");
    });
}

/// It greets, and then says nothing more: the call failed when its time was up, although another node knows as well.
#[test]
fn a_node_that_does_not_answer_a_short_call_is_not_waited_for_where_there_are_others() {
    let (first, second) = (FakeServer::start(1, 1), FakeServer::start(1, 1));
    run(async {
        // Nothing here may be saved by a time that is up.
        let never = Duration::from_secs(3_600);
        let addresses = format!("{},{}", first.address, second.address);
        let client = Client::builder(addresses).call_timeout(never).connect().await.unwrap();
        first.fake.state().mutes = vec![Op::GetStream];
        client.admin().stream(STREAM).await.expect("the other one answers");
    });
}

#[test]
fn a_node_that_does_not_say_where_lanes_begin_is_not_waited_for_without_end() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        server.fake.state().mutes = vec![Op::Lookup];
        let client = server.client().call_timeout(Duration::from_millis(100));
        let error =
            client.clone().connect().await.unwrap().consumer(STREAM).build().await.expect_err("it says nothing");
        assert!(matches!(&error, ClientError::Rpc(RpcError::Timeout { .. })), "{error}");
        server.fake.state().mutes = vec![Op::Lookup];
        let patient = client.retry_timeout(Duration::from_secs(300)).connect().await.unwrap();
        let mut consumer = patient.consumer(STREAM).build().await.expect("it says so when it is asked again");
        assert_eq!(read(&mut consumer, 10).await[&(0, 0)], numbered(0..10));
    });
}

/// Those of a client share a connection, of which a node has a bounded number of requests wait.
#[test]
fn no_more_lookups_are_under_way_by_a_connection_than_a_node_has_wait() {
    const STREAMLETS: u32 = 300;
    for in_cluster in [false, true] {
        let mut server = FakeServer::start(STREAMLETS, 1);
        run(async {
            (0..STREAMLETS).for_each(|streamlet| fill(&server, streamlet, 0, 0..20));
            {
                let mut state = server.fake.state();
                (state.is_on_disk, state.in_cluster) = (true, in_cluster);
            }
            let client = client(&server).await;
            let build = || client.consumer(STREAM).from(Start::TimeMs(0)).build();
            let (consumer, other) = tokio::join!(build(), build());
            let (mut consumer, _) = (consumer.unwrap(), other.unwrap());
            read(&mut consumer, 20 * STREAMLETS as usize).await;
            server.crash();
            for log in server.fake.state().logs.values_mut() {
                log.chunks.truncate(1);
                log.next_ordinal = 10;
            }
            server.restart();
            for _ in 0..STREAMLETS {
                let error = consumer.next_batch().await.expect_err("the end of each lane is lost");
                assert!(matches!(error, ClientError::Gap { expected: 20, found: 10, .. }), "{error}");
            }
        });
    }
}

/// They wait at the node for what is on disk when nobody wants them any more, and others would be refused for them.
#[test]
fn lookups_that_were_given_up_are_in_nobodys_way() {
    const STREAMLETS: u32 = 100;
    for in_cluster in [false, true] {
        let server = FakeServer::start(STREAMLETS, 1);
        run(async {
            (0..STREAMLETS).for_each(|streamlet| fill(&server, streamlet, 0, 0..20));
            {
                let mut state = server.fake.state();
                (state.is_on_disk, state.in_cluster, state.load_us) = (true, in_cluster, 600_000_000);
            }
            let client = client(&server).await;
            let build = || client.consumer(STREAM).from(Start::TimeMs(0)).build();
            for given_up in 1..=3 {
                let many = async || {
                    while server.fake.state().loads < 32 * given_up {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                // The last time somebody else is in line behind them.
                let other = async {
                    many().await;
                    match given_up {
                        3 => build().await,
                        _ => std::future::pending().await,
                    }
                };
                let seen = async {
                    many().await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                };
                tokio::pin!(other);
                tokio::select! {
                    biased;
                    built = build() => panic!("{:?}", built.err()),
                    built = &mut other => panic!("{:?}", built.err()),
                    () = seen => {}
                }
                if given_up == 3 {
                    server.fake.state().load_us = 2_000;
                    read(&mut other.await.unwrap(), 20 * STREAMLETS as usize).await;
                }
            }
            read(&mut build().await.unwrap(), 20 * STREAMLETS as usize).await;
        });
    }
}

/// Connecting, the handshake and joining take longer than anybody waits for a batch.
#[test]
fn a_member_that_waits_shortly_each_time_connects_again_over_a_slow_path() {
    let mut server = FakeServer::start(1, 1);
    let door = Door::slow(server.address, Duration::from_millis(60));
    run(async {
        fill(&server, 0, 0, 0..10);
        server.fake.state().members.heartbeat_ms = 10_000;
        let client = Client::connect(door.address.to_string()).await.unwrap();
        let mut consumer = member(client.consumer(STREAM)).build().await.unwrap();
        read(&mut consumer, 10).await;
        consumer.commit().await.unwrap();
        server.crash();
        server.fake.state().members.forget();
        server.restart();
        fill(&server, 0, 0, 10..20);
        let mut all = Vec::new();
        while all.len() < 10 {
            let waited = tokio::time::timeout(Duration::from_millis(100), consumer.next_batch()).await;
            if let Ok(batch) = waited {
                all.extend(texts(&batch.unwrap().unwrap()));
            }
        }
        assert_eq!(all, numbered(10..20));
        assert_eq!(server.fake.state().members.members.len(), 1, "it joins once");
    });
}

#[test]
fn a_future_that_is_dropped_loses_nothing() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..3_000);
        let mut consumer = build(&server, |b| b.credit_bytes(64 << 10)).await;
        let mut all = Vec::new();
        while all.len() < 3_000 {
            let waited = tokio::time::timeout(Duration::from_micros(300), consumer.next_batch()).await;
            if let Ok(batch) = waited {
                all.extend(texts(&batch.unwrap().unwrap()));
            }
        }
        assert_eq!(all, numbered(0..3_000));
    });
}

#[test]
fn missing_records_are_an_error_and_reading_goes_on_after_it() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        server.fake.state().logs.get_mut(&(0, 0)).unwrap().chunks.remove(4);
        let mut consumer = build(&server, |b| b).await;
        let mut all = Vec::new();
        let mut gaps = 0;
        while all.len() < 90 {
            match consumer.next_batch().await {
                Ok(batch) => all.extend(texts(&batch.unwrap())),
                Err(ClientError::Gap { expected, found, .. }) => {
                    assert_eq!((expected, found, all.len()), (40, 50, 40));
                    gaps += 1;
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(gaps, 1);
        assert_eq!(all[40..], numbered(50..100));
    });
}

#[test]
fn what_retention_removed_is_counted_or_told() {
    for policy in [GapPolicy::Count, GapPolicy::Error] {
        let server = FakeServer::start(1, 1);
        run(async {
            fill(&server, 0, 0, 0..20_000);
            let mut consumer = build(&server, |b| b.credit_bytes(64 << 10).gaps(policy)).await;
            let first = consumer.next_batch().await.unwrap().unwrap().end_ordinal();
            // What was pushed already still comes; then there is a gap.
            server.fake.state().logs.get_mut(&(0, 0)).unwrap().first_kept = 1_999;
            let mut told = 0;
            let mut records = first;
            loop {
                match consumer.next_batch().await {
                    Ok(batch) => {
                        let batch = batch.unwrap();
                        records += batch.len();
                        if batch.end_ordinal() == 20_000 {
                            break;
                        }
                    }
                    Err(ClientError::Removed { records, .. }) => told += records,
                    Err(e) => panic!("{e}"),
                }
            }
            let removed = consumer.stats().removed_records;
            assert_eq!(records + removed.max(told), 20_000);
            assert!(removed.max(told) > 0);
            assert_eq!(told > 0, policy == GapPolicy::Error);
        });
    }
}

#[test]
fn groups_that_retention_removed_behind_the_reader_are_no_missing_records() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..20);
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 20).await;
        {
            // All at once, so that the server goes on with the first group there is and says nothing of the others.
            let mut state = server.fake.state();
            let log = state.logs.get_mut(&(0, 0)).unwrap();
            log.close_group();
            log.next_ordinal += 30;
            log.first_kept = 2;
        }
        fill(&server, 0, 0, 50..60);
        assert_eq!(read(&mut consumer, 10).await[&(0, 0)], numbered(50..60));
        assert_eq!(consumer.stats().removed_records, 30);
    });
}

/// Entries that have ended count at the node as long as others of their subscription have not.
#[test]
fn lanes_that_retention_has_overtaken_are_read_on_where_there_is_no_room_for_them_twice() {
    let server = FakeServer::start(6, 1);
    server.fake.state().entries_max = 10;
    run(async {
        (0..6).for_each(|streamlet| fill(&server, streamlet, 0, 0..10));
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 60).await;
        for log in server.fake.state().logs.values_mut().take(5) {
            log.close_group();
            log.next_ordinal += 30;
            log.first_kept = log.chunks.len();
        }
        server.fake.wake_all();
        tokio::select! {
            never = consumer.idle() => match never {},
            () = server.until("there is no room", |state| state.entries_refused > 0) => {}
        }
        (0..6).for_each(|streamlet| fill(&server, streamlet, 0, 40..50));
        let all = read(&mut consumer, 60).await;
        assert!(all.len() == 6 && all.values().all(|values| *values == numbered(40..50)), "{all:?}");
    });
}

/// As many lanes as a connection may have entries: one that is asked for again is one too many, so that all are dropped before the node refuses it.
#[test]
fn a_lane_that_retention_has_overtaken_is_read_on_where_a_connection_has_all_that_it_may() {
    let lanes = 256;
    let server = FakeServer::start(1, lanes);
    server.fake.state().entries_max = READ_ENTRIES_MAX;
    run(async {
        fill(&server, 0, 0, 0..10);
        let mut consumer = build(&server, |b| b.refresh(Duration::from_millis(100))).await;
        read(&mut consumer, 10).await;
        // Those that it gets are read without having been looked up.
        let streamlets = READ_ENTRIES_MAX as u32 / lanes;
        server.grow(streamlets);
        fill(&server, streamlets - 1, 0, 0..10);
        read(&mut consumer, 10).await;
        {
            let mut state = server.fake.state();
            let log = state.logs.get_mut(&(0, 0)).unwrap();
            log.close_group();
            log.next_ordinal += 30;
            log.first_kept = log.chunks.len();
        }
        fill(&server, 0, 0, 40..50);
        fill(&server, streamlets - 1, 0, 10..20);
        let all = read(&mut consumer, 20).await;
        assert_eq!(all[&(0, 0)], numbered(40..50));
        assert_eq!(all[&(streamlets - 1, 0)], numbered(10..20));
        assert_eq!(server.fake.state().entries_refused, 0);
    });
}

/// A poll that was dropped waits at the node, for as long as nothing comes.
#[test]
fn a_stream_that_grows_is_read_on_where_a_dropped_poll_leaves_no_room() {
    let server = FakeServer::start(6, 1);
    server.fake.state().entries_max = 10;
    run(async {
        let mut consumer = build(&server, |b| b.long_poll(true).refresh(Duration::from_millis(5))).await;
        server.grow(7);
        tokio::select! {
            never = consumer.idle() => match never {},
            () = server.until("there is no room", |state| state.entries_refused > 0) => {}
        }
        fill(&server, 0, 0, 0..10);
        fill(&server, 6, 0, 0..10);
        let all = read(&mut consumer, 20).await;
        assert_eq!((all[&(0, 0)].len(), all[&(6, 0)].len()), (10, 10));
    });
}

#[test]
fn more_lanes_than_a_node_has_room_for_are_an_error_at_last() {
    let server = FakeServer::start(6, 1);
    server.fake.state().entries_max = 5;
    run(async {
        let mut consumer = build(&server, |b| b).await;
        let error = consumer.next_batch().await.expect_err("there is no room");
        assert_eq!(error.status(), Some(Status::LimitReached), "{error}");
    });
}

#[test]
fn what_retention_removed_behind_what_stands_in_line_is_no_missing_record() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 10).await;
        for from in [10, 20] {
            let pushed_bytes = server.fake.state().pushed_bytes;
            fill(&server, 0, 0, from..from + 10);
            server.until("it is pushed", |state| state.pushed_bytes > pushed_bytes).await;
        }
        {
            let mut state = server.fake.state();
            let log = state.logs.get_mut(&(0, 0)).unwrap();
            log.close_group();
            log.next_ordinal += 30;
            log.first_kept = 3;
        }
        server.fake.wake_all();
        // Time for both pieces, and the word that what comes next is gone, to come in: the program has not asked for anything since.
        tokio::time::sleep(Duration::from_millis(50)).await;
        fill(&server, 0, 0, 60..70);
        let mut all = Vec::new();
        while all.len() < 30 {
            all.extend(texts(&consumer.next_batch().await.unwrap().unwrap()));
        }
        assert_eq!(all, [numbered(10..30), numbered(60..70)].concat());
        assert_eq!(consumer.stats().removed_records, 30);
    });
}

#[test]
fn a_damaged_chunk_is_named_and_can_be_skipped() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        {
            let mut state = server.fake.state();
            let chunk = &mut state.logs.get_mut(&(0, 0)).unwrap().chunks[5];
            let mut bytes = chunk.bytes.to_vec();
            let at = bytes.len() - 20;
            bytes[at] ^= 4;
            chunk.bytes = bytes.into();
        }
        let mut consumer = build(&server, |b| b).await;
        assert_eq!(read(&mut consumer, 50).await[&(0, 0)], numbered(0..50));
        let error = consumer.next_batch().await.unwrap_err();
        assert!(matches!(error, ClientError::Chunk { .. }), "{error}");
        consumer.seek(StreamletId(0), LaneId(0), Start::Ordinal(60)).await.unwrap();
        assert_eq!(read(&mut consumer, 40).await[&(0, 0)], numbered(60..100));
    });
}

#[test]
fn a_lane_that_lost_its_end_is_told_and_read_on() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 100).await;
        server.crash();
        {
            let mut state = server.fake.state();
            let log = state.logs.get_mut(&(0, 0)).unwrap();
            log.chunks.truncate(8);
            log.next_ordinal = 80;
            log.close_group();
        }
        server.restart();
        for chunk in numbered(200..230).chunks(10) {
            server.append(0, 0, chunk);
        }
        let error = consumer.next_batch().await.unwrap_err();
        assert!(matches!(error, ClientError::Gap { expected: 100, found: 80, .. }), "{error}");
        assert_eq!(read(&mut consumer, 30).await[&(0, 0)], numbered(200..230));
    });
}

#[test]
fn a_cursor_that_points_at_nothing_is_looked_up_again() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 100).await;
        server.crash();
        // The open group ends earlier than it did.
        server.fake.state().logs.get_mut(&(0, 0)).unwrap().chunks.truncate(8);
        server.fake.state().logs.get_mut(&(0, 0)).unwrap().next_ordinal = 80;
        server.restart();
        let error = consumer.next_batch().await.unwrap_err();
        assert!(matches!(error, ClientError::Gap { expected: 100, found: 80, .. }), "{error}");
        fill(&server, 0, 0, 80..100);
        assert_eq!(read(&mut consumer, 20).await[&(0, 0)], numbered(80..100));
    });
}

/// The node that is asked does not answer for long, and the program never waits for long.
#[test]
fn a_lane_whose_place_is_being_found_holds_nothing_up() {
    let mut server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        fill(&server, 1, 0, 0..100);
        let mut consumer = build(&server, |b| b).await;
        read(&mut consumer, 200).await;
        server.crash();
        {
            let mut state = server.fake.state();
            let log = state.logs.get_mut(&(0, 0)).unwrap();
            log.chunks.truncate(8);
            log.next_ordinal = 80;
            state.lookups_left = Some(0);
        }
        server.restart();
        while server.fake.state().lookups_held == 0 {
            let nothing = tokio::time::timeout(Duration::from_millis(20), consumer.next_batch()).await;
            assert!(nothing.is_err(), "{nothing:?}");
        }
        fill(&server, 1, 0, 100..110);
        assert_eq!(read(&mut consumer, 10).await[&(1, 0)], numbered(100..110));
        // The first question is answered and no other one.
        server.fake.state().lookups_left = Some(1);
        server.fake.wake_all();
        let error = loop {
            if let Ok(told) = tokio::time::timeout(Duration::from_millis(20), consumer.next_batch()).await {
                break told.unwrap_err();
            }
        };
        assert!(matches!(error, ClientError::Gap { expected: 100, found: 80, .. }), "{error}");
        fill(&server, 0, 0, 80..100);
        assert_eq!(read(&mut consumer, 20).await[&(0, 0)], numbered(80..100));
    });
}

#[test]
fn until_end_ends_at_what_was_the_end() {
    for long_poll in [false, true] {
        let server = FakeServer::start(3, 1);
        run(async {
            let mut empty = build(&server, |b| b.until_end(true).long_poll(long_poll)).await;
            assert!(empty.next_batch().await.unwrap().is_none());
            fill(&server, 0, 0, 0..500);
            fill(&server, 2, 0, 0..10);
            let mut consumer = build(&server, |b| b.until_end(true).long_poll(long_poll)).await;
            fill(&server, 2, 0, 10..20);
            let mut records = 0;
            while let Some(batch) = consumer.next_batch().await.unwrap() {
                records += batch.len();
            }
            assert!((510..=520).contains(&records), "{records}");
            assert!(consumer.next_batch().await.unwrap().is_none());
        });
    }
}

/// As long as there was something to return nobody looked whether the end was reached.
#[test]
fn until_end_ends_although_the_stream_is_written_as_fast_as_it_is_read() {
    for is_member in [false, true] {
        let server = FakeServer::start(1, 1);
        run(async {
            fill(&server, 0, 0, 0..10);
            let how = |b: ConsumerBuilder| if is_member { member(b) } else { b };
            let mut consumer = build(&server, |b| how(b).until_end(true)).await;
            let (mut records, mut batches) = (0, 0);
            loop {
                // Something more has come before each batch is asked for.
                fill(&server, 0, 0, (batches + 1) * 10..(batches + 2) * 10);
                while consumer.lag() == 0 {
                    tokio::select! {
                        never = consumer.idle() => match never {},
                        () = tokio::time::sleep(Duration::from_millis(1)) => {}
                    }
                }
                let Some(batch) = consumer.next_batch().await.unwrap() else { break };
                (records, batches) = (records + batch.len(), batches + 1);
                assert!(batches < 20, "it goes on behind the end, member: {is_member}");
            }
            assert!(records >= 10, "{records}");
            assert!(consumer.next_batch().await.unwrap().is_none());
            consumer.close().await.unwrap();
        });
    }
}

/// As with copies that are gone, when a person has accepted that. It waited until others had written as much anew.
#[test]
fn until_end_ends_although_the_end_is_lost() {
    for (is_member, is_closed) in [(false, false), (false, true), (true, false)] {
        let mut server = FakeServer::start(1, 1);
        run(async {
            fill(&server, 0, 0, 0..100);
            let how = |b: ConsumerBuilder| b.until_end(true).refresh(Duration::from_millis(100));
            let mut consumer = build(&server, |b| how(if is_member { member(b) } else { b })).await;
            server.crash();
            {
                let mut state = server.fake.state();
                let log = state.logs.get_mut(&(0, 0)).unwrap();
                log.chunks.truncate(8);
                log.next_ordinal = 80;
                if is_closed {
                    log.close_group();
                }
            }
            server.restart();
            let mut records = 0;
            while let Some(batch) = consumer.next_batch().await.unwrap() {
                records += batch.len();
            }
            assert_eq!(records, 80, "member: {is_member}, closed: {is_closed}");
        });
    }
}

/// Nobody tells of a lane of which there is nothing, so it was taken to end where it did.
#[test]
fn until_end_ends_although_a_whole_lane_is_lost() {
    let mut server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        fill(&server, 1, 0, 0..10);
        let mut consumer = build(&server, |b| b.until_end(true).refresh(Duration::from_millis(100))).await;
        server.crash();
        server.fake.state().logs.remove(&(0, 0));
        server.restart();
        let mut records = 0;
        while let Some(batch) = consumer.next_batch().await.unwrap() {
            assert_eq!(batch.streamlet(), StreamletId(1));
            records += batch.len();
        }
        assert_eq!(records, 10);
    });
}

#[test]
fn until_end_ends_although_retention_takes_the_rest() {
    for policy in [GapPolicy::Count, GapPolicy::Error] {
        let server = FakeServer::start(1, 1);
        run(async {
            fill(&server, 0, 0, 0..20_000);
            let mut consumer = build(&server, |b| b.credit_bytes(64 << 10).until_end(true).gaps(policy)).await;
            let mut records = consumer.next_batch().await.unwrap().unwrap().len();
            {
                let mut state = server.fake.state();
                let log = state.logs.get_mut(&(0, 0)).unwrap();
                log.close_group();
                log.first_kept = log.chunks.len();
            }
            let mut told = 0;
            loop {
                match consumer.next_batch().await {
                    Ok(Some(batch)) => records += batch.len(),
                    Ok(None) => break,
                    Err(ClientError::Removed { records, .. }) => told += records,
                    Err(e) => panic!("{e}"),
                }
            }
            let removed = consumer.stats().removed_records;
            assert_eq!(records + removed.max(told), 20_000);
            assert_eq!(told > 0, policy == GapPolicy::Error);
        });
    }
}

#[test]
fn seek_goes_back_and_forth_in_one_lane_only() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..1_000);
        fill(&server, 1, 0, 0..1_000);
        let mut consumer = build(&server, |b| b.credit_bytes(64 << 10)).await;
        read_some(&mut consumer, 200).await;
        let before = position(&consumer, 1);
        consumer.seek(StreamletId(0), LaneId(0), Start::Ordinal(995)).await.unwrap();
        assert_eq!((position(&consumer, 0), position(&consumer, 1)), (995, before));
        let mut all = BTreeMap::<u32, Vec<String>>::new();
        while all.values().map(Vec::len).sum::<usize>() < 5 + 1_000 - before as usize {
            let batch = consumer.next_batch().await.unwrap().unwrap();
            all.entry(batch.streamlet().0).or_default().extend(texts(&batch));
        }
        assert_eq!(all[&0], numbered(995..1_000));
        assert_eq!(all.remove(&1).unwrap_or_default(), numbered(before as usize..1_000));
        consumer.seek(StreamletId(1), LaneId(0), Start::Earliest).await.unwrap();
        assert_eq!(read(&mut consumer, 1_000).await[&(1, 0)], numbered(0..1_000));
    });
}

async fn read_some(consumer: &mut Consumer, records: u64) {
    let mut count = 0;
    while count < records {
        count += consumer.next_batch().await.unwrap().unwrap().len();
    }
}

fn position(consumer: &Consumer, streamlet: u32) -> u64 {
    consumer.positions().iter().find(|position| position.streamlet.0 == streamlet).unwrap().ordinal
}

#[test]
fn a_paused_consumer_delivers_nothing() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let mut consumer = build(&server, |b| b).await;
        consumer.pause();
        assert!(tokio::time::timeout(Duration::from_millis(50), consumer.next_batch()).await.is_err());
        consumer.resume();
        assert_eq!(read(&mut consumer, 100).await[&(0, 0)], numbered(0..100));
    });
}

#[test]
fn what_waits_to_be_delivered_is_bounded_however_often_the_connection_is_made_again() {
    for long_poll in [false, true] {
        let mut server = FakeServer::start(1, 1);
        run(async {
            fill(&server, 0, 0, 0..40_000);
            let credit = 256 << 10;
            let mut consumer = build(&server, |b| b.credit_bytes(credit).long_poll(long_poll)).await;
            consumer.pause();
            for _ in 0..20 {
                // All that is sent comes in.
                assert!(tokio::time::timeout(Duration::from_millis(50), consumer.next_batch()).await.is_err());
                server.restart();
            }
            // What is delivered without a server has waited.
            server.crash();
            consumer.resume();
            let mut all = Vec::new();
            while let Ok(batch) = tokio::time::timeout(Duration::from_millis(50), consumer.next_batch()).await {
                all.extend(texts(&batch.unwrap().unwrap()));
            }
            let waiting = consumer.stats().bytes;
            assert!(waiting < 2 * credit as u64, "{waiting} bytes have waited");
            server.restart();
            let rest = read(&mut consumer, 40_000 - all.len()).await.remove(&(0, 0));
            all.extend(rest.unwrap_or_default());
            assert_eq!(all, numbered(0..40_000));
        });
    }
}

// Applications.

fn member(builder: ConsumerBuilder) -> ConsumerBuilder {
    builder.application("app").commit(CommitMode::Interval(Duration::from_millis(10)))
}

/// What the application has committed in a lane.
fn committed(server: &FakeServer, streamlet: u32) -> u64 {
    server.fake.state().members.lanes.get(&(streamlet, 0)).map_or(0, |progress| progress.ordinal)
}

#[test]
fn a_member_goes_on_where_the_application_stopped() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        fill(&server, 1, 0, 0..100);
        let mut first = build(&server, member).await;
        read(&mut first, 200).await;
        first.close().await.unwrap();
        assert_eq!((committed(&server, 0), committed(&server, 1)), (100, 100));
        assert!(server.fake.state().members.leases().is_empty(), "the leases were given back");
        fill(&server, 0, 0, 100..110);
        let mut second = build(&server, member).await;
        assert_eq!(read(&mut second, 10).await[&(0, 0)], numbered(100..110));
        second.close().await.unwrap();
    });
}

#[test]
fn commits_happen_on_the_interval_without_being_asked_for() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let mut consumer = build(&server, member).await;
        read(&mut consumer, 100).await;
        // Asking for the next batch says that the last one is processed.
        while committed(&server, 0) < 100 || consumer.stats().commits == 0 {
            let waiting = tokio::time::timeout(Duration::from_millis(20), consumer.next_batch()).await;
            assert!(waiting.is_err());
        }
        assert_eq!(committed(&server, 0), 100);
    });
}

#[test]
fn manual_commits_commit_what_was_returned_and_nothing_else_does() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let manual = |b: ConsumerBuilder| b.application("app").commit(CommitMode::Manual);
        let mut consumer = build(&server, manual).await;
        for _ in 0..33 {
            consumer.next().await.unwrap().unwrap();
        }
        assert_eq!(committed(&server, 0), 0);
        consumer.commit().await.unwrap();
        assert_eq!(committed(&server, 0), 33);
        for _ in 0..40 {
            consumer.next().await.unwrap().unwrap();
        }
        consumer.close().await.unwrap();
        assert_eq!(committed(&server, 0), 33);
        let mut again = build(&server, manual).await;
        let next = again.next().await.unwrap().unwrap();
        assert_eq!(next.ordinal, 33);
        let rest = again.next_batch().await.unwrap().unwrap();
        assert_eq!(rest.base_ordinal(), 34);
        again.commit().await.unwrap();
        assert_eq!(committed(&server, 0), rest.end_ordinal());
        again.close().await.unwrap();
    });
}

#[test]
fn a_group_that_is_done_is_followed_by_the_next() {
    let server = FakeServer::start(2, 1);
    run(async {
        for i in 0..30 {
            for streamlet in 0..2 {
                fill(&server, streamlet, 0, i * 20..(i + 1) * 20);
                server.fake.state().logs.get_mut(&(streamlet, 0)).unwrap().close_group();
            }
        }
        let mut consumer = build(&server, member).await;
        let all = read(&mut consumer, 1_200).await;
        for streamlet in 0..2 {
            assert_eq!(all[&(streamlet, 0)], numbered(0..600));
        }
        consumer.close().await.unwrap();
        assert_eq!((committed(&server, 0), committed(&server, 1)), (600, 600));
    });
}

#[test]
fn one_member_reads_any_number_of_lanes_at_once() {
    let server = FakeServer::start(300, 1);
    run(async {
        for streamlet in 0..300 {
            fill(&server, streamlet, 0, 0..10);
        }
        let mut consumer = build(&server, member).await;
        assert_eq!(read(&mut consumer, 3_000).await.len(), 300);
        // Groups that come one by one do not take a subscription each for ever.
        for streamlet in 0..200 {
            server.fake.state().logs.get_mut(&(streamlet, 0)).unwrap().close_group();
            fill(&server, streamlet, 0, 10..20);
            read(&mut consumer, 10).await;
        }
        let most = server.fake.state().subscriptions_max;
        assert!(most <= 32, "{most} subscriptions were open at one time");
        consumer.close().await.unwrap();
    });
}

#[test]
fn until_end_ends_for_a_member_that_has_read_everything() {
    let server = FakeServer::start(3, 1);
    run(async {
        fill(&server, 0, 0, 0..500);
        fill(&server, 2, 0, 0..50);
        server.fake.state().logs.get_mut(&(2, 0)).unwrap().close_group();
        fill(&server, 2, 0, 50..70);
        let mut consumer = build(&server, |b| member(b).until_end(true)).await;
        let mut records = 0;
        while let Some(batch) = consumer.next_batch().await.unwrap() {
            records += batch.len();
        }
        assert_eq!(records, 570);
        consumer.close().await.unwrap();
        assert_eq!((committed(&server, 0), committed(&server, 2)), (500, 70));
        // All is committed: there is nothing to do for the next one.
        let mut again = build(&server, |b| member(b).until_end(true)).await;
        assert!(again.next_batch().await.unwrap().is_none());
        again.close().await.unwrap();
    });
}

/// What the stream has got since had no end to be read to, and the member waited for it.
#[test]
fn until_end_ends_for_a_member_although_the_stream_has_grown() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..20);
        let mut consumer = build(&server, |b| member(b).until_end(true)).await;
        server.grow(2);
        fill(&server, 1, 0, 0..5);
        let mut records = 0;
        while let Some(batch) = consumer.next_batch().await.unwrap() {
            assert_eq!(batch.streamlet(), StreamletId(0), "the other one was not there");
            records += batch.len();
        }
        assert_eq!(records, 20);
        consumer.close().await.unwrap();
        assert_eq!((committed(&server, 0), committed(&server, 1)), (20, 0), "the next one reads it");
    });
}

/// With as many groups as it may read it asked for no others, and did not hear that there are none.
#[test]
fn until_end_ends_for_a_member_that_has_as_many_groups_as_it_may_read() {
    for lanes in [1, 3] {
        let server = FakeServer::start(lanes, 1);
        run(async {
            (0..lanes).for_each(|streamlet| fill(&server, streamlet, 0, 0..30));
            let mut consumer = build(&server, |b| member(b).groups_max(1).until_end(true)).await;
            let mut records = 0;
            while let Some(batch) = consumer.next_batch().await.unwrap() {
                records += batch.len();
            }
            assert_eq!(records, u64::from(lanes) * 30);
            consumer.close().await.unwrap();
            assert!((0..lanes).all(|streamlet| committed(&server, streamlet) == 30));
        });
    }
}

#[test]
fn heartbeats_go_on_while_the_program_is_busy() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        let mut consumer = build(&server, member).await;
        consumer.next_batch().await.unwrap();
        let before = server.fake.state().members.heartbeats;
        server.until("heartbeats", |state| state.members.heartbeats > before + 3).await;
        consumer.close().await.unwrap();
    });
}

#[test]
fn groups_in_an_answer_that_is_lost_with_its_connection_are_read() {
    let server = FakeServer::start(3, 1);
    run(async {
        (0..3).for_each(|streamlet| fill(&server, streamlet, 0, 0..100));
        server.fake.state().members.lost_answers = 2;
        let mut consumer = build(&server, |b| member(b).groups_max(2).until_end(true)).await;
        let all = read(&mut consumer, 200).await;
        assert_eq!(all.values().map(Vec::len).collect::<Vec<_>>(), [100, 100], "two at a time");
        assert_eq!(server.fake.state().members.lost_answers, 0);
        consumer.close().await.unwrap();
    });
}

/// What its node goes on having for it is read by nobody for as long as the member is heard of.
#[test]
fn a_member_of_which_a_lease_is_not_taken_back_comes_back_without_it() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        let mut consumer = build(&server, member).await;
        read(&mut consumer, 10).await;
        while committed(&server, 0) < 10 {
            let _ = tokio::time::timeout(Duration::from_millis(10), consumer.next_batch()).await;
        }
        let joins = {
            let mut state = server.fake.state();
            // The group is given by another lease, as by a node that has it back.
            let progress = state.members.lanes.get_mut(&(0, 0)).unwrap();
            let lease = std::mem::take(&mut progress.lease);
            progress.member = 0;
            state.members.refused = Some(lease);
            state.members.joins
        };
        server.fake.wake_all();
        while server.fake.state().members.joins == joins {
            let _ = tokio::time::timeout(Duration::from_millis(10), consumer.next_batch()).await;
        }
        fill(&server, 0, 0, 10..20);
        assert_eq!(read(&mut consumer, 10).await[&(0, 0)], numbered(10..20));
    });
}

#[test]
fn a_lease_that_is_asked_back_is_given_back_with_what_was_processed() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..1_000);
        fill(&server, 1, 0, 0..1_000);
        let mut consumer = build(&server, |b| member(b).credit_bytes(64 << 10)).await;
        // How far the lane was returned that is asked back. Asking for the next batch says that the last one is processed.
        let (mut count, mut processed) = (0, 0);
        while count < 100 || processed == 0 {
            let batch = consumer.next_batch().await.unwrap().unwrap();
            count += batch.len();
            if batch.streamlet().0 == 0 {
                processed = batch.end_ordinal();
            }
        }
        let lease = server.fake.state().members.lanes[&(0, 0)].lease;
        {
            let mut state = server.fake.state();
            state.members.release = vec![lease];
            // Nobody gets it again here.
            state.members.reserved.insert((0, 0));
        }
        // Asked back by a heartbeat, given back by the consumer as it goes on.
        while consumer.stats().released == 0 {
            if let Ok(batch) = tokio::time::timeout(Duration::from_millis(10), consumer.next_batch()).await {
                let batch = batch.unwrap().unwrap();
                if batch.streamlet().0 == 0 {
                    processed = batch.end_ordinal();
                }
            }
        }
        let (released, at) = {
            let state = server.fake.state();
            (state.members.released.clone(), state.members.lanes[&(0, 0)].ordinal)
        };
        assert_eq!(released, [lease]);
        assert_eq!(at, processed);
        // The other lane is read on; the first one stays where it was left.
        while committed(&server, 1) < 1_000 {
            let waited = tokio::time::timeout(Duration::from_millis(20), consumer.next_batch()).await;
            if let Ok(batch) = waited {
                assert_eq!(batch.unwrap().unwrap().streamlet().0, 1);
            }
        }
        {
            let mut state = server.fake.state();
            state.members.release.clear();
            state.members.reserved.clear();
        }
        // All of it may have been processed before it was asked back.
        fill(&server, 0, 0, 1_000..1_010);
        server.fake.wake_all();
        let again = consumer.next_batch().await.unwrap().unwrap();
        assert_eq!((again.streamlet().0, again.base_ordinal()), (0, at), "it goes on where it was left");
        consumer.close().await.unwrap();
    });
}

/// What a program has of a batch when its lease ends is all that it gets.
#[test]
fn a_member_that_commits_itself_gives_a_lease_back_where_it_has_committed_and_reads_no_more_of_it() {
    let server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..1_000);
        fill(&server, 1, 0, 0..1_000);
        let manual = |b: ConsumerBuilder| b.application("app").commit(CommitMode::Manual).credit_bytes(64 << 10);
        let mut consumer = build(&server, manual).await;
        let first = consumer.next().await.unwrap().unwrap();
        let (asked, other) = (first.streamlet.0, 1 - first.streamlet.0);
        let lease = server.fake.state().members.lanes[&(asked, 0)].lease;
        let mut returned: BTreeMap<u32, Vec<u64>> = BTreeMap::from([(asked, vec![first.ordinal]), (other, vec![])]);
        {
            let mut state = server.fake.state();
            state.members.release = vec![lease];
            state.members.reserved.insert((asked, 0));
        }
        let told = server.fake.state().members.heartbeats;
        server.until("it is asked back", |state| state.members.heartbeats > told + 2).await;
        // In the middle of a batch, and of the next one.
        while server.fake.state().members.released.is_empty() {
            for _ in 0..7 {
                let record = consumer.next().await.unwrap().unwrap();
                returned.get_mut(&record.streamlet.0).unwrap().push(record.ordinal);
            }
            consumer.commit().await.unwrap();
        }
        let at = committed(&server, asked);
        assert!((8..1_000).contains(&at), "given back at {at}");
        while returned[&other].len() < 1_000 {
            let record = consumer.next().await.unwrap().unwrap();
            returned.get_mut(&record.streamlet.0).unwrap().push(record.ordinal);
        }
        assert_eq!(returned[&asked], (0..at).collect::<Vec<_>>(), "the next member reads from {at} on");
        assert_eq!(consumer.stats().released, 1);
        consumer.close().await.unwrap();
    });
}

/// An idle member commits nothing, and what it has read is all committed.
#[test]
fn a_lease_of_a_member_that_commits_itself_is_given_back_at_once_if_all_is_committed() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        let manual = |b: ConsumerBuilder| b.application("app").commit(CommitMode::Manual);
        let mut consumer = build(&server, manual).await;
        read(&mut consumer, 10).await;
        consumer.commit().await.unwrap();
        {
            let mut state = server.fake.state();
            state.members.release = state.members.leases();
            state.members.reserved.insert((0, 0));
        }
        while consumer.stats().released == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(10), consumer.next_batch()).await;
        }
        assert_eq!(committed(&server, 0), 10);
        consumer.close().await.unwrap();
    });
}

/// Others wait for it, and it may never commit.
#[test]
fn a_member_that_commits_itself_keeps_what_is_asked_back_no_longer_than_its_lease() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        server.fake.state().members.lease_ms = 1_000;
        let manual = |b: ConsumerBuilder| b.application("app").commit(CommitMode::Manual);
        let mut consumer = build(&server, manual).await;
        for _ in 0..10 {
            consumer.next().await.unwrap().unwrap();
        }
        consumer.commit().await.unwrap();
        consumer.next().await.unwrap().unwrap();
        {
            let mut state = server.fake.state();
            state.members.release = state.members.leases();
            state.members.reserved.insert((0, 0));
        }
        while consumer.stats().released == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(50), consumer.next_batch()).await;
        }
        assert_eq!(committed(&server, 0), 10, "what it has not committed is read again");
        consumer.commit().await.unwrap();
        assert_eq!(committed(&server, 0), 10);
        consumer.close().await.unwrap();
    });
}

#[test]
fn nothing_more_is_returned_of_a_batch_whose_lease_is_lost() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        server.fake.state().logs.get_mut(&(0, 0)).unwrap().close_group();
        let manual = |b: ConsumerBuilder| b.application("app").commit(CommitMode::Manual);
        let mut consumer = build(&server, manual).await;
        for _ in 0..5 {
            consumer.next().await.unwrap().unwrap();
        }
        {
            // Another member has it now.
            let mut state = server.fake.state();
            let progress = state.members.lanes.get_mut(&(0, 0)).unwrap();
            (progress.lease, progress.member) = (99, 98);
        }
        consumer.commit().await.unwrap();
        assert_eq!(consumer.stats().lost, 1);
        let more = tokio::time::timeout(Duration::from_millis(100), consumer.next()).await;
        assert!(more.is_err(), "the other member reads it");
        {
            // Or not.
            let mut state = server.fake.state();
            let progress = state.members.lanes.get_mut(&(0, 0)).unwrap();
            (progress.lease, progress.member) = (0, 0);
        }
        server.fake.wake_all();
        assert_eq!(consumer.next().await.unwrap().unwrap().ordinal, 5, "the rest of the group was not read");
        consumer.close().await.unwrap();
    });
}

#[test]
fn a_member_whose_group_retention_has_taken_goes_on_with_the_next_one_under_its_own_lease() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..20_000);
        let mut consumer = build(&server, |b| member(b).credit_bytes(64 << 10)).await;
        let first = consumer.next_batch().await.unwrap().unwrap();
        let mut ordinals: Vec<u64> = first.records().map(|record| record.ordinal).collect();
        let lease = server.fake.state().members.lanes[&(0, 0)].lease;
        server.fake.state().logs.get_mut(&(0, 0)).unwrap().close_group();
        fill(&server, 0, 0, 20_000..20_100);
        server.fake.state().logs.get_mut(&(0, 0)).unwrap().first_kept = 2_000;
        while ordinals.last() != Some(&20_099) {
            let batch = consumer.next_batch().await.unwrap().unwrap();
            ordinals.extend(batch.records().map(|record| record.ordinal));
        }
        assert!(ordinals.is_sorted_by(|one, next| one < next), "each is read once");
        let next_group = ordinals.iter().filter(|ordinal| **ordinal >= 20_000);
        assert!(next_group.copied().eq(20_000..20_100));
        consumer.commit().await.unwrap();
        assert_eq!(server.fake.state().members.done, [lease]);
        consumer.close().await.unwrap();
        assert_eq!(committed(&server, 0), 20_100);
    });
}

#[test]
fn a_member_closes_with_an_error_if_the_server_is_away() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..10);
        let call_timeout = Duration::from_secs(60);
        let client = server.client().call_timeout(call_timeout).connect().await.unwrap();
        let mut consumer = member(client.consumer(STREAM)).build().await.unwrap();
        for _ in 0..10 {
            consumer.next().await.unwrap().unwrap();
        }
        server.crash();
        let (committed, ()) = tokio::join!(consumer.commit(), later(call_timeout));
        let error = committed.expect_err("nobody takes the commit");
        assert!(error.to_string().contains(&server.address.to_string()), "{error}");
        let (closed, ()) = tokio::join!(consumer.close(), later(call_timeout));
        closed.expect_err("nobody takes the commit");
    });
}

#[test]
fn a_lease_that_was_lost_is_dropped_and_counted() {
    let server = FakeServer::start(1, 1);
    run(async {
        fill(&server, 0, 0, 0..100);
        let mut consumer = build(&server, member).await;
        read(&mut consumer, 100).await;
        {
            // Another member has it now, and has read less.
            let mut state = server.fake.state();
            let progress = state.members.lanes.get_mut(&(0, 0)).unwrap();
            (progress.lease, progress.member, progress.ordinal) = (99, 98, 5);
        }
        while consumer.stats().lost == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(10), consumer.next_batch()).await;
        }
        assert_eq!(committed(&server, 0), 5, "a lost lease commits nothing");
        consumer.close().await.unwrap();
    });
}

#[test]
fn a_member_survives_a_restart_of_the_server_that_keeps_its_leases() {
    let mut server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..3_000);
        fill(&server, 1, 0, 0..3_000);
        let mut consumer = build(&server, |b| member(b).credit_bytes(64 << 10)).await;
        let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut batches = 0;
        while all.values().map(Vec::len).sum::<usize>() < 6_000 {
            let batch = consumer.next_batch().await.unwrap().unwrap();
            all.entry(batch.streamlet().0).or_default().extend(texts(&batch));
            batches += 1;
            if batches % 4 == 0 {
                server.restart();
            }
        }
        for values in all.values() {
            assert_eq!(*values, numbered(0..3_000), "a lease that was kept repeats nothing");
        }
        consumer.close().await.unwrap();
        assert_eq!((committed(&server, 0), committed(&server, 1)), (3_000, 3_000));
    });
}

#[test]
fn a_member_that_the_server_has_forgotten_joins_again_and_loses_nothing() {
    let mut server = FakeServer::start(2, 1);
    run(async {
        fill(&server, 0, 0, 0..8_000);
        fill(&server, 1, 0, 0..8_000);
        let mut consumer = build(&server, |b| member(b).credit_bytes(64 << 10)).await;
        let mut seen: BTreeMap<u32, std::collections::BTreeSet<u64>> = BTreeMap::new();
        let mut batches = 0;
        while seen.values().map(std::collections::BTreeSet::len).sum::<usize>() < 16_000 {
            let batch = consumer.next_batch().await.unwrap().unwrap();
            let ordinals = batch.records().map(|record| record.ordinal);
            seen.entry(batch.streamlet().0).or_default().extend(ordinals);
            batches += 1;
            if batches % 3 == 0 && batches < 12 {
                server.crash();
                server.fake.state().members.forget();
                server.restart();
            }
        }
        assert!(server.fake.state().members.joins > 2);
        consumer.close().await.unwrap();
        assert_eq!((committed(&server, 0), committed(&server, 1)), (8_000, 8_000));
    });
}

/// It waited for ever, without a word: the membership that it had lost was taken for one elsewhere.
#[test]
fn a_member_whose_place_another_one_has_got_at_the_only_node_ends() {
    let mut server = FakeServer::start(1, 1);
    run(async {
        server.fake.state().members.members_max = 1;
        fill(&server, 0, 0, 0..10);
        let mut first = build(&server, member).await;
        read(&mut first, 10).await;
        server.crash();
        {
            // Its lease ends while it is cut off, and another one joins.
            let members = &mut server.fake.state().members;
            members.forget();
            members.members.push(98);
        }
        server.restart();
        let ended = tokio::time::timeout(Duration::from_secs(300), first.next_batch()).await.expect("it ends");
        assert_eq!(ended.unwrap_err().status(), Some(Status::LimitReached));
    });
}

#[test]
fn two_members_share_the_lanes() {
    let server = FakeServer::start(4, 1);
    run(async {
        for streamlet in 0..4 {
            fill(&server, streamlet, 0, 0..50);
        }
        let mut first = build(&server, |b| member(b).groups_max(2)).await;
        let mut second = build(&server, |b| member(b).groups_max(2)).await;
        let mut all = read(&mut first, 100).await;
        all.extend(read(&mut second, 100).await);
        assert_eq!(all.len(), 4);
        first.close().await.unwrap();
        second.close().await.unwrap();
        assert_eq!((0..4).map(|streamlet| committed(&server, streamlet)).sum::<u64>(), 200);
    });
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let server = FakeServer::start(1, 1);
    run(async {
        let client = client(&server).await;
        for (builder, field) in [
            (client.consumer(STREAM).credit_bytes(0), "credit_bytes"),
            (client.consumer(STREAM).application("a").groups_max(0), "groups_max"),
            (client.consumer(STREAM).application("a").streamlets([0]), "streamlets"),
            (client.consumer(STREAM).lanes([1]), "lane"),
        ] {
            let error = builder.build().await.unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
        assert!(client.consumer("none").build().await.is_err());
    });
}
