//! Commits of offsets that wait for the disk, and what comes behind them on the same connection.

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kera_protocol::StreamRef;

use super::transactions::{World, text, topic};
use super::*;
use crate::gone_topics::GoneTopics;
use crate::group_door::LOOKED_THROUGH;

const SESSION_MS: u64 = 10_000;

fn commit_of(member: &StrBytes, generation: i32, offset: i64) -> OffsetCommitRequest {
    let one = OffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(offset);
    let one = OffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(vec![one]);
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text("g")))
        .with_member_id(member.clone())
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![one])
}

fn beat_of(member: &StrBytes, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(GroupId(text("g")))
        .with_member_id(member.clone())
        .with_generation_id(generation)
}

impl World {
    /// Time passes, for groups too.
    fn pass(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.running().door.groups.tick();
    }

    /// A member of group `g`, alone in it, and its generation.
    fn join(&mut self) -> (StrBytes, i32) {
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata("m".into());
        let request = JoinGroupRequest::default()
            .with_group_id(GroupId(text("g")))
            .with_session_timeout_ms(SESSION_MS as i32)
            .with_rebalance_timeout_ms(60_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol]);
        self.send(3, &request);
        let joined = loop {
            if let Some(joined) = self.answer::<JoinGroupRequest>(3) {
                break joined;
            }
            self.sink.release();
            self.pass(1_000);
        };
        assert_eq!(joined.error_code, 0);
        let sync = SyncGroupRequest::default()
            .with_group_id(GroupId(text("g")))
            .with_member_id(joined.member_id.clone())
            .with_generation_id(joined.generation_id);
        assert_eq!(self.call(3, &sync).error_code, 0);
        (joined.member_id, joined.generation_id)
    }
}

#[test]
fn a_heartbeat_behind_a_commit_that_waits_for_the_disk_keeps_its_member() {
    let mut world = World::new();
    let (member, generation) = world.join();
    // The disk stands still for longer than the session lasts; the member commits and beats as it should.
    for at in 0..5 {
        world.send(2, &commit_of(&member, generation, at));
        world.send(0, &beat_of(&member, generation));
        world.pass(SESSION_MS / 2);
    }
    assert!(world.answer::<OffsetCommitRequest>(2).is_none(), "nothing is acknowledged that is not durable");
    world.sink.release();
    for _ in 0..5 {
        let committed = world.answer::<OffsetCommitRequest>(2).expect("the commits are durable");
        assert_eq!(committed.topics[0].partitions[0].error_code, 0);
        let beaten = world.answer::<HeartbeatRequest>(0).expect("in the order of the requests");
        assert_eq!(beaten.error_code, 0, "the member is still one");
    }
    assert!(!world.running().session.is_busy());
    let fetch = OffsetFetchRequest::default().with_group_id(GroupId(text("g"))).with_topics(None);
    assert_eq!(world.call(2, &fetch).topics[0].partitions[0].committed_offset, 4);
}

/// Kafka's tools did not describe the group any more: they ask where the partitions end that it has offsets of.
#[test]
fn offsets_go_with_a_topic_that_a_native_command_deletes() {
    let fetch = OffsetFetchRequest::default().with_group_id(GroupId(text("g"))).with_topics(None);
    // Also where the node is killed before it has looked.
    for is_killed in [false, true] {
        let mut world = World::new();
        assert_eq!(world.call(2, &commit_of(&text(""), -1, 3)).topics[0].partitions[0].error_code, 0);
        let mut gone = GoneTopics::default();
        gone.look(&world.running().door);
        assert_eq!(world.call(2, &fetch).topics.len(), 1, "its topic is there");
        world.parts().1.delete_stream(&StreamRef::Name("t".to_owned())).unwrap();
        if is_killed {
            world.restart();
            gone = GoneTopics::default();
        } else {
            gone.look(&world.running().door);
            assert_eq!(world.call(2, &fetch).topics.len(), 1, "it is not looked all the time");
            world.clock.advance_ms(60_000);
        }
        gone.look(&world.running().door);
        assert_eq!(world.call(2, &fetch).topics, []);
    }
}

#[test]
fn all_groups_are_looked_through_once_for_the_topics_that_one_request_deletes() {
    let mut world = World::new();
    assert_eq!(world.call(2, &commit_of(&text(""), -1, 3)).topics[0].partitions[0].error_code, 0);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    for (expected, looks) in [([0, 0, 0, unknown], 1), ([unknown; 4], 0)] {
        let before = LOOKED_THROUGH.get();
        let names = ["t", "u", "safe", "none"].map(topic).to_vec();
        let deleted = world.call(4, &DeleteTopicsRequest::default().with_topic_names(names).with_timeout_ms(1_000));
        let errors: Vec<i16> = deleted.responses.iter().map(|of| of.error_code).collect();
        assert_eq!((&errors[..], LOOKED_THROUGH.get() - before), (&expected[..], looks));
    }
    let fetch = OffsetFetchRequest::default().with_group_id(GroupId(text("g"))).with_topics(None);
    assert_eq!(world.call(2, &fetch).topics, []);
}

#[test]
fn a_connection_holds_only_so_many_commits() {
    let mut world = World::new();
    let most = DoorConfig::default().in_flight_requests_max;
    let (nobody, none) = (text(""), -1);
    for at in 0..most {
        world.send(2, &commit_of(&nobody, none, at as i64));
    }
    let one_more = frame(ApiKey::OffsetCommit, 2, 7, &commit_of(&nobody, none, most as i64));
    let running = world.running();
    assert_eq!(running.session.on_frame(&FrameHeader::default(), &one_more, &mut running.out), Flow::Blocked);
    world.sink.release();
    for _ in 0..most {
        assert!(world.answer::<OffsetCommitRequest>(2).is_some());
    }
    let running = world.running();
    assert_eq!(running.session.on_frame(&FrameHeader::default(), &one_more, &mut running.out), Flow::Done);
}

#[test]
fn other_requests_wait_behind_a_commit() {
    let mut world = World::new();
    world.send(2, &commit_of(&text(""), -1, 3));
    let metadata = frame(ApiKey::Metadata, 1, 7, &MetadataRequest::default());
    let running = world.running();
    assert_eq!(running.session.on_frame(&FrameHeader::default(), &metadata, &mut running.out), Flow::Blocked);
}
