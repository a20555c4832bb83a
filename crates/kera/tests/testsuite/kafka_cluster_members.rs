//! Members of Kafka consumer groups in three nodes of which the one that coordinates is killed: they go on under their ids, in their
//! generation or epoch, with what they were assigned, and commit as if nothing had happened.

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;

use crate::common;
use crate::common::kafka::{Three, name, text};

const MEMBER_ID_REQUIRED: i16 = 79;
const UNKNOWN_MEMBER_ID: i16 = 25;
const GROUP: i8 = 0;

fn group(id: &str) -> GroupId {
    GroupId(text(id))
}

/// The coordinator of a group.
fn of<'a>(three: &'a Three, id: &'a str) -> impl Fn() -> usize + 'a {
    move || three.coordinator(GROUP, id)
}

fn join(three: &Three, id: &str, member: &str) -> JoinGroupResponse {
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
    let request = JoinGroupRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_session_timeout_ms(300_000)
        .with_rebalance_timeout_ms(300_000)
        .with_protocols(vec![protocol.with_metadata(Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff"))]);
    three.until(5, &request, of(three, id), |told| told.error_code)
}

fn sync(three: &Three, id: &str, member: &str, generation: i32, parts: &[(&str, &'static str)]) -> (i16, Bytes) {
    let parts = parts.iter().map(|(member, part)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::from_static(part.as_bytes()))
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_generation_id(generation)
        .with_assignments(parts.collect());
    let told = three.until(3, &request, of(three, id), |told| told.error_code);
    (told.error_code, told.assignment)
}

fn heartbeat(three: &Three, id: &str, member: &StrBytes, generation: i32) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group(id))
        .with_member_id(member.clone())
        .with_generation_id(generation);
    three.until(3, &request, of(three, id), |told| told.error_code).error_code
}

fn commit(three: &Three, id: &str, member: &StrBytes, epoch: i32, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default().with_name(name("t")).with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group(id))
        .with_member_id(member.clone())
        .with_generation_id_or_member_epoch(epoch)
        .with_topics(vec![topic]);
    let code = |told: &OffsetCommitResponse| told.topics[0].partitions[0].error_code;
    code(&three.until(9, &request, of(three, id), code))
}

/// A heartbeat of a consumer group, which says everything if it is the first.
fn beat(three: &Three, id: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatResponse {
    let request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group(id))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(if epoch == 0 { 300_000 } else { -1 })
        .with_subscribed_topic_names((epoch == 0).then(|| vec![name("t")]))
        .with_topic_partitions((epoch == 0).then(Vec::new));
    three.until(1, &request, of(three, id), |told| told.error_code)
}

/// A group whose coordinator is the same as another's, so that both are lost at once.
fn beside(three: &Three, other: &str) -> String {
    let node = three.coordinator(GROUP, other);
    let names = (0..).map(|number| format!("flock-{number}"));
    names.take(64).find(|id| three.coordinator(GROUP, id) == node).expect("one of so many")
}

#[test]
fn members_go_on_when_their_coordinator_is_lost() {
    let mut three = Three::start();
    three.make_topic("t");
    let knows = |node: &common::Node| node.json("cluster level")["level"].as_u64() >= Some(5);
    common::eventually("the level that keeps members", || knows(three.node(0)));

    let herd = "herd";
    let first = join(&three, herd, "");
    assert_eq!(first.error_code, MEMBER_ID_REQUIRED);
    let id = first.member_id;
    let joined = join(&three, herd, &id);
    assert_eq!((joined.error_code, &joined.leader), (0, &id));
    let generation = joined.generation_id;
    assert_eq!(sync(&three, herd, &id, generation, &[(&id, "part")]), (0, Bytes::from_static(b"part")));
    assert_eq!(commit(&three, herd, &id, generation, 7), 0);

    let flock = beside(&three, herd);
    let begun = beat(&three, &flock, "bird", 0);
    assert_eq!(begun.error_code, 0, "{:?}", begun.error_message);
    let epoch = begun.member_epoch;
    let given = begun.assignment.expect("all of it");
    assert_eq!(given.topic_partitions[0].partitions.len(), 3);
    assert_eq!(commit(&three, &flock, &text("bird"), epoch, 8), 0);

    let mut lost = three.coordinator(GROUP, herd);
    for round in 0..2 {
        three.kill(lost);
        assert_eq!(heartbeat(&three, herd, &id, generation), 0, "round {round}");
        assert_eq!(sync(&three, herd, &id, generation, &[]), (0, Bytes::from_static(b"part")));
        assert_eq!(commit(&three, herd, &id, generation, 9 + round), 0);
        let told = beat(&three, &flock, "bird", epoch);
        assert_eq!((told.error_code, told.member_epoch, told.assignment), (0, epoch, None), "round {round}");
        assert_eq!(commit(&three, &flock, &text("bird"), epoch, 19 + round), 0);
        // Who never was a member is none.
        assert_eq!(heartbeat(&three, herd, &text("nobody"), generation), UNKNOWN_MEMBER_ID);
        three.start_again(lost);
        common::eventually("everything has an owner", || {
            // Its session is of 45 s, and would be over on a machine that stands still now and then.
            assert_eq!(beat(&three, &flock, "bird", epoch).error_code, 0, "round {round}");
            three.node(lost).json("status")["cluster"]["waiting_streamlets"] == 0
        });
        lost = three.coordinator(GROUP, herd);
    }
    assert_eq!((three.offset(herd, "t", 0), three.offset(&flock, "t", 0)), (10, 20));
}
