//! Fetch sessions as a client sees them.

use kafka_protocol::messages::fetch_request::ForgottenTopic;

use super::partitions::flexible;
use super::*;

const VERSION: i16 = 12;

/// What a fetch in a session is answered: error, session, and of each partition its index, its end, whether it has records.
fn fetch(client: &mut Client, asked: &FetchRequest) -> (i16, i32, Vec<(i32, i64, bool)>) {
    let answer = client.ask(ApiKey::Fetch, VERSION, asked);
    let answer: FetchResponse = flexible(&answer, VERSION);
    let all = answer.responses.iter().flat_map(|topic| &topic.partitions).map(|one| {
        let has_records = one.records.as_ref().is_some_and(|records| !records.is_empty());
        (one.partition_index, one.high_watermark, has_records)
    });
    (answer.error_code, answer.session_id, all.collect())
}

/// A fetch of some partitions of "t" from 0 on, in a session.
fn request(partitions: &[i32], session: i32, epoch: i32) -> FetchRequest {
    let mut asked = fetch_request("t", 0, 0, 0).with_session_id(session).with_session_epoch(epoch);
    let one = asked.topics[0].partitions.remove(0);
    asked.topics[0].partitions = partitions.iter().map(|index| one.clone().with_partition(*index)).collect();
    if partitions.is_empty() {
        asked.topics.clear();
    }
    asked
}

#[test]
fn only_what_changes_is_said_and_told() {
    let mut client = Client::new();
    client.create("t", 3);
    let (error, id, told) = fetch(&mut client, &request(&[0, 1, 2], 0, 0));
    assert_eq!((error, told.len()), (0, 3));
    assert_ne!(id, 0);
    assert_eq!(fetch(&mut client, &request(&[], id, 1)), (0, id, vec![]), "nothing is new");
    assert_eq!(client.produce("t", 1, &batch(&[b"a"], (-1, -1, -1))), (0, 0));
    assert_eq!(fetch(&mut client, &request(&[], id, 2)), (0, id, vec![(1, 1, true)]));
    // The client goes on behind what it got, and asks for a partition no more that has something then.
    let mut asked = request(&[1], id, 3);
    asked.topics[0].partitions[0].fetch_offset = 1;
    asked.forgotten_topics_data =
        vec![ForgottenTopic::default().with_topic(asked.topics[0].topic.clone()).with_partitions(vec![2])];
    assert_eq!(client.produce("t", 2, &batch(&[b"b"], (-1, -1, -1))), (0, 0));
    assert_eq!(fetch(&mut client, &asked), (0, id, vec![]));
    assert_eq!(fetch(&mut client, &request(&[], id, 3)), (71, 0, vec![]), "an epoch twice");
    assert_eq!(fetch(&mut client, &request(&[], id ^ 1, 4)), (70, 0, vec![]), "no such session");
    let (_, another, _) = fetch(&mut client, &request(&[0], id, 0));
    assert!(another != 0 && another != id);
    assert_eq!(fetch(&mut client, &request(&[], id, 4)), (70, 0, vec![]), "another was begun instead of it");
    let door = client.door.as_ref().unwrap().0.clone();
    assert_eq!(door.fetch_sessions.counts(), (1, 1));
    client.session = None;
    assert_eq!(door.fetch_sessions.counts(), (0, 0), "the connection is gone");
}

#[test]
fn an_error_is_told_until_it_is_gone() {
    let mut client = Client::new();
    client.create("t", 1);
    let mut first = request(&[0], 0, 0);
    first.topics[0].partitions[0].fetch_offset = 1;
    let (error, id, told) = fetch(&mut client, &first);
    assert_eq!((error, told), (0, vec![(0, -1, false)]), "behind the end");
    assert_eq!(fetch(&mut client, &request(&[], id, 1)).2, [(0, -1, false)]);
    assert_eq!(client.produce("t", 0, &batch(&[b"a"], (-1, -1, -1))), (0, 0));
    assert_eq!(fetch(&mut client, &request(&[], id, 2)).2, [(0, 1, false)], "it is the end now");
    assert_eq!(fetch(&mut client, &request(&[], id, 3)).2, []);
}

#[test]
fn of_many_partitions_only_those_that_have_moved_are_looked_at_again() {
    let mut client = Client::new();
    client.create("t", 64);
    let all: Vec<i32> = (0..64).collect();
    let (error, id, _) = fetch(&mut client, &request(&all, 0, 0));
    assert_eq!(error, 0);
    let mut waits = request(&[], id, 1);
    (waits.max_wait_ms, waits.min_bytes) = (60_000, 1);
    assert_eq!(client.frame(&frame(ApiKey::Fetch, 12, 7, &waits)), Flow::Done);
    assert!(client.answer().is_none());
    let door = client.door.as_ref().unwrap().0.clone();
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), connection: 2, io_thread: 0 };
    let mut other = KafkaSessions(door).open(peer, SessionWaker::detached());
    let mut out = Outbox::new(1 << 20);
    let produce = produce_frame("t", 41, -1, &batch(&[b"a"], (-1, -1, -1)));
    assert_eq!(other.on_frame(&FrameHeader::default(), &produce, &mut out), Flow::Done);
    let answer: FetchResponse = flexible(&client.wait()[4..], VERSION);
    let told: Vec<_> = answer.responses.iter().flat_map(|topic| &topic.partitions).collect();
    assert_eq!(told.iter().map(|one| (one.partition_index, one.high_watermark)).collect::<Vec<_>>(), [(41, 1)]);
    assert!(told[0].records.as_ref().is_some_and(|records| !records.is_empty()));
}
