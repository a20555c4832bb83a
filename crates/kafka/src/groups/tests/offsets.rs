//! Offsets: committing, fetching, deleting, expiring, surviving a restart; and what administrators see.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, DescribeGroupsResponse, GroupId,
    ListGroupsRequest, OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest, ProducerId, TopicName,
    TxnOffsetCommitRequest,
};
use kera_format::kafka_groups::{Entry, Fact};

use crate::groups::group::text;
use crate::groups::offsets::LOOKED_AT;
use crate::groups::testing::{GROUP, World, beat, caller, commit, fetch, fetch_all, group, join};
use crate::groups::{Answer, GroupConfig, Mark};

const DAY_MS: u64 = 24 * 3_600_000;

fn simple(offsets: &[(&str, i32, i64)]) -> kafka_protocol::messages::OffsetCommitRequest {
    commit("", -1, offsets)
}

fn delete_offsets(world: &mut World, offsets: &[(&str, i32)]) -> OffsetDeleteResponse {
    let topics = offsets.iter().map(|(topic, partition)| {
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(*partition);
        OffsetDeleteRequestTopic::default().with_name(TopicName(text(topic))).with_partitions(vec![partition])
    });
    let request = OffsetDeleteRequest::default().with_group_id(group()).with_topics(topics.collect());
    let done = world.ask(|coordinator, now, token| coordinator.delete_offsets(now, token, &caller(0), &request));
    match done.answer {
        Answer::DeleteOffsets(response) => response,
        other => panic!("{other:?}"),
    }
}

fn describe(world: &mut World, version: i16, id: &str) -> DescribeGroupsResponse {
    let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(id))]);
    let done = world.ask(|coordinator, now, token| coordinator.describe(now, token, &caller(version), &request));
    match done.answer {
        Answer::Describe(response) => response,
        other => panic!("{other:?}"),
    }
}

/// Name, state and type of the groups that are listed.
fn list(world: &mut World, states: &[&str], types: &[&str]) -> Vec<(String, String, String)> {
    let request = ListGroupsRequest::default()
        .with_states_filter(states.iter().map(|state| text(state)).collect())
        .with_types_filter(types.iter().map(|kind| text(kind)).collect());
    let done = world.ask(|coordinator, now, token| coordinator.list(now, token, &caller(5), &request));
    let Answer::List(response) = done.answer else { panic!("{:?}", done.answer) };
    let groups = response.groups.into_iter();
    groups.map(|of| (of.group_id.to_string(), of.group_state.to_string(), of.group_type.to_string())).collect()
}

fn delete(world: &mut World, id: &str) -> (i16, Option<Mark>) {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(id))]);
    let done = world.ask(|coordinator, now, token| coordinator.delete(now, token, &caller(2), &request));
    let Answer::Delete(response) = done.answer else { panic!("{:?}", done.answer) };
    (response.results[0].error_code, done.after)
}

fn txn_commit(world: &mut World, producer: i64, offsets: &[(&str, i32, i64)]) -> Vec<i16> {
    let topics = offsets.iter().map(|(topic, partition, offset)| {
        let partition =
            TxnOffsetCommitRequestPartition::default().with_partition_index(*partition).with_committed_offset(*offset);
        TxnOffsetCommitRequestTopic::default().with_name(TopicName(text(topic))).with_partitions(vec![partition])
    });
    let request = TxnOffsetCommitRequest::default()
        .with_group_id(group())
        .with_producer_id(ProducerId(producer))
        .with_generation_id(-1)
        .with_topics(topics.collect());
    let done = world.ask(|coordinator, now, token| coordinator.txn_commit(now, token, &caller(3), &request));
    let Answer::TxnCommit(response) = done.answer else { panic!("{:?}", done.answer) };
    response.topics.iter().flat_map(|topic| &topic.partitions).map(|of| of.error_code).collect()
}

#[test]
fn a_commit_is_answered_after_its_record_and_seen_after_a_restart() {
    let mut world = World::new();
    let (codes, after) = world.commit(&simple(&[("orders", 0, 7), ("items", 1, 9)]));
    assert_eq!((codes, after), (vec![0, 0], Some(Mark(2))));
    for _ in 0..2 {
        let (response, after) = world.fetch(&fetch(&[("orders", 0), ("orders", 1)], false));
        let orders = &response.groups[0].topics[0].partitions;
        assert_eq!((orders[0].committed_offset, orders[0].metadata.as_deref()), (7, Some("about")));
        assert_eq!(
            (orders[1].committed_offset, orders[1].metadata.as_deref(), orders[1].error_code),
            (-1, Some(""), 0)
        );
        assert!(after.is_none_or(|mark| mark == Mark(2)));
        assert_eq!(world.offsets(), [("items".into(), 1, 9), ("orders".into(), 0, 7)]);
        world.restart();
    }
}

#[test]
fn what_is_told_waits_for_everything_that_was_recorded() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 7)]));
    assert_eq!(world.fetch(&fetch_all(false)).1, Some(Mark(1)));
    // The same again: what it repeats may not be durable yet.
    assert_eq!(world.commit(&simple(&[("unknown", 0, 7)])).1, Some(Mark(1)));
}

#[test]
fn old_clients_fetch_one_group() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 7), ("items", 1, 9)]));
    let topic =
        OffsetFetchRequestTopic::default().with_name(TopicName(text("orders"))).with_partition_indexes(vec![0, 2]);
    for (topics, expected) in [(Some(vec![topic]), vec![7, -1]), (None, vec![9, 7])] {
        let request = OffsetFetchRequest::default().with_group_id(group()).with_topics(topics);
        let done = world.ask(|coordinator, now, token| coordinator.fetch(now, token, &caller(5), &request));
        let Answer::Fetch(response) = done.answer else { panic!("{:?}", done.answer) };
        let offsets: Vec<i64> =
            response.topics.iter().flat_map(|topic| &topic.partitions).map(|of| of.committed_offset).collect();
        assert_eq!((offsets, response.groups.len()), (expected, 0));
    }
}

#[test]
fn a_commit_that_cannot_be_recorded_changes_nothing() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 7)]));
    world.journal.0.lock().is_full = true;
    let (codes, _) = world.commit(&simple(&[("orders", 0, 8), ("unknown", 0, 1)]));
    assert_eq!(codes, [Code::CoordinatorNotAvailable.code(), Code::UnknownTopicOrPartition.code()]);
    assert_eq!(world.offsets(), [("orders".into(), 0, 7)]);
}

#[test]
fn each_partition_of_a_commit_has_its_own_error() {
    let mut world = World::new();
    let mut request = simple(&[("orders", 0, 7), ("orders", 4, 7), ("orders", -1, 7), ("no", 0, 7), ("orders", 1, -2)]);
    request.topics.push(request.topics[0].clone());
    request.topics[5].partitions[0].committed_metadata = Some(text(&"m".repeat(4_097)));
    let (codes, _) = world.commit(&request);
    let unknown = Code::UnknownTopicOrPartition.code();
    let (invalid, large) = (Code::InvalidRequest.code(), Code::OffsetMetadataTooLarge.code());
    assert_eq!(codes, [0, unknown, unknown, unknown, invalid, large]);
}

#[test]
fn only_members_of_the_generation_commit_while_there_are_some() {
    let mut world = World::new();
    let (members, generation) = world.stable(1);
    let code = |world: &mut World, member: &str, generation| {
        world.commit(&commit(member, generation, &[("orders", 0, 1)])).0[0]
    };
    assert_eq!(code(&mut world, &members[0], generation), 0);
    assert_eq!(code(&mut world, &members[0], generation - 1), Code::IllegalGeneration.code());
    assert_eq!(code(&mut world, "nobody", generation), Code::UnknownMemberId.code());
    assert_eq!(code(&mut world, "", -1), Code::UnknownMemberId.code());
    let named = commit(&members[0], generation, &[("orders", 0, 1)]).with_group_instance_id(Some(text("a")));
    assert_eq!(world.commit(&named).0, [Code::UnknownMemberId.code()]);
    // While the members agree, who has been in the generation may still commit; when the next one is there, not before sync.
    let (_, token) = world.join_new();
    assert_eq!(code(&mut world, &members[0], generation), 0);
    world.join(9, &join(&members[0]));
    assert!(world.take_join(token).is_some());
    assert_eq!(code(&mut world, &members[0], generation + 1), Code::RebalanceInProgress.code());
}

#[test]
fn a_commit_keeps_its_member_alive() {
    let mut world = World::new();
    let (members, generation) = world.stable(1);
    for _ in 0..3 {
        world.pass(9_000);
        assert_eq!(world.commit(&commit(&members[0], generation, &[("orders", 0, 1)])).0, [0]);
    }
    world.pass(10_000);
    let unknown = world.commit(&commit(&members[0], generation, &[("orders", 0, 1)])).0;
    assert_eq!(unknown, [Code::UnknownMemberId.code()]);
}

#[test]
fn a_commit_for_a_group_that_is_not_there() {
    let mut world = World::new();
    let request = commit("nobody", 1, &[("orders", 0, 1)]);
    for (version, code) in [(8, Code::IllegalGeneration), (9, Code::GroupIdNotFound)] {
        let done = world.ask(|coordinator, now, token| coordinator.commit(now, token, &caller(version), &request));
        let Answer::Commit(response) = done.answer else { panic!("{:?}", done.answer) };
        assert_eq!(response.topics[0].partitions[0].error_code, code.code());
    }
    assert_eq!(world.offsets(), []);
}

#[test]
fn offsets_of_all_groups_take_no_more_memory_than_there_is() {
    // Three offsets have room whose metadata says `about`.
    let mut world = World::with(GroupConfig { offset_bytes_max: 700, ..GroupConfig::default() });
    let full = Code::PolicyViolation.code();
    let of_others = |at: usize| simple(&[("items", 0, 1)]).with_group_id(GroupId(text(&format!("other-{at}"))));
    assert_eq!(world.commit(&simple(&[("orders", 0, 1), ("orders", 1, 1)])).0, [0, 0]);
    assert_eq!(txn_commit(&mut world, 11, &[("orders", 2, 1), ("orders", 3, 1)]), [0, full]);
    assert_eq!(world.commit(&of_others(0)).0, [full]);
    let count = world.coordinator.group_count();
    for restarts in [false, true] {
        if restarts {
            world.restart();
        }
        // Who has an offset has a later one in its place, unless that takes more.
        assert_eq!(world.commit(&simple(&[("orders", 0, 2), ("orders", 3, 2)])).0, [0, full]);
        assert_eq!(txn_commit(&mut world, 11, &[("orders", 2, 3)]), [0]);
        let mut longer = simple(&[("orders", 1, 3)]);
        longer.topics[0].partitions[0].committed_metadata = Some(text(&"m".repeat(200)));
        assert_eq!(world.commit(&longer).0, [full]);
        assert_eq!((world.commit(&of_others(1)).0, world.coordinator.group_count()), (vec![full], count));
    }
    // What is pending counts where it is committed, and what has gone makes room.
    world.coordinator.end_transaction(world.now, GROUP, 11, true).expect("recorded");
    assert_eq!(world.commit(&simple(&[("orders", 3, 2)])).0, [full]);
    // The next transaction goes on: what is committed makes room for what is to take its place, once.
    assert_eq!(txn_commit(&mut world, 11, &[("orders", 2, 4), ("orders", 3, 4)]), [0, full]);
    assert_eq!(txn_commit(&mut world, 11, &[("orders", 2, 5)]), [0]);
    assert_eq!(txn_commit(&mut world, 12, &[("orders", 2, 6)]), [full]);
    assert_eq!(delete_offsets(&mut world, &[("orders", 2)]).error_code, 0);
    assert_eq!(world.commit(&of_others(2)).0, [0]);
    assert_eq!(world.offsets(), [("orders".into(), 0, 2), ("orders".into(), 1, 1)]);
}

#[test]
fn topics_that_are_gone_are_looked_up_once_for_all_groups() {
    let mut world = World::new();
    let names: BTreeSet<String> = (0..20).map(|at| format!("topic-{at}")).collect();
    names.iter().for_each(|name| world.topics.set(name, 1));
    let all: Vec<(&str, i32, i64)> = names.iter().map(|name| (&**name, 0, 1)).collect();
    for at in 0..50 {
        let request = simple(&all).with_group_id(GroupId(text(&format!("group-{at}"))));
        assert_eq!(world.commit(&request).0, [0; 20]);
    }
    names.iter().for_each(|name| world.topics.set(name, 0));
    let before = world.topics.looks.load(Ordering::Relaxed);
    world.coordinator.topics_deleted(world.now, &names);
    assert!(world.topics.looks.load(Ordering::Relaxed) - before <= names.len());
    assert_eq!(world.coordinator.group_count(), 0);
}

#[test]
fn offsets_of_a_topic_that_is_gone_are_found_without_a_look_at_all_that_a_group_has() {
    let mut world = World::new();
    let names: BTreeSet<String> = (0..500).map(|at| format!("topic-{at:03}")).collect();
    names.iter().for_each(|name| world.topics.set(name, 2));
    let all: Vec<(&str, i32, i64)> = names.iter().flat_map(|name| [(&**name, 0, 1), (&**name, 1, 2)]).collect();
    assert_eq!(world.commit(&simple(&all)).0, [0; 1_000]);
    assert_eq!(txn_commit(&mut world, 11, &[("topic-007", 1, 6), ("topic-300", 1, 6)]), [0, 0]);
    let looked_at = |world: &mut World, gone: &[&str]| {
        gone.iter().for_each(|name| world.topics.set(name, 0));
        LOOKED_AT.set(0);
        let gone: BTreeSet<String> = gone.iter().map(|name| (*name).to_owned()).collect();
        world.coordinator.topics_deleted(world.now, &gone);
        LOOKED_AT.get()
    };
    // One place in what is committed, and in what is pending.
    assert_eq!(looked_at(&mut world, &["topic-007"]), 2);
    assert_eq!(looked_at(&mut world, &["topic-498", "a", "z"]), 3 + 2);
    let left: Vec<(String, i32, i64)> = all
        .iter()
        .filter(|(name, ..)| !["topic-007", "topic-498"].contains(name))
        .map(|(name, partition, offset)| ((*name).to_owned(), *partition, *offset))
        .collect();
    assert_eq!(world.offsets(), left);
    // And of many that are gone, none of which it has an offset of, few are looked up.
    let others: Vec<String> = (0..2_000).map(|at| format!("other-{at:04}")).collect();
    let others: Vec<&str> = others.iter().map(|name| &**name).collect();
    assert_eq!(looked_at(&mut world, &others), 2);
    world.coordinator.end_transaction(world.now, GROUP, 11, true).expect("recorded");
    let changed = |of: &(String, i32, i64)| (&*of.0, of.1) == ("topic-300", 1);
    let expected = left.into_iter().map(|of| if changed(&of) { (of.0, of.1, 6) } else { of });
    assert_eq!(world.offsets(), expected.collect::<Vec<_>>());
}

/// A thousand threads of one application have a producer each.
#[test]
fn producers_are_looked_through_only_for_a_partition_of_which_others_have_an_offset_pending() {
    let mut world = World::new();
    world.topics.set("many", 200);
    for at in 0..200 {
        assert_eq!(txn_commit(&mut world, 1_000 + i64::from(at), &[("many", at, 5)]), [0]);
    }
    LOOKED_AT.set(0);
    assert_eq!(world.commit(&simple(&[("orders", 0, 7), ("orders", 1, 7)])).0, [0, 0]);
    for producer in 1_000..1_199 {
        world.coordinator.end_transaction(world.now, GROUP, producer, producer % 2 == 0).expect("recorded");
    }
    assert_eq!(LOOKED_AT.get(), 0);
    let unstable = Code::UnstableOffsetCommit.code();
    let told = |world: &mut World| {
        let told = world.fetch(&fetch(&[("many", 196), ("many", 197), ("many", 198), ("many", 199)], true)).0;
        let partitions = told.groups[0].topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|of| (of.error_code, of.committed_offset)).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut world), [(0, 5), (0, -1), (0, 5), (unstable, -1)]);
    // Two have one pending, and both are overtaken.
    assert_eq!(txn_commit(&mut world, 3, &[("many", 199, 6), ("many", 196, 6)]), [0, 0]);
    assert_eq!(world.commit(&simple(&[("many", 199, 9)])).0, [0]);
    assert_eq!(LOOKED_AT.get(), 2);
    assert_eq!(told(&mut world), [(unstable, -1), (0, -1), (0, 5), (0, 9)]);
    for producer in [3, 1_199] {
        world.coordinator.end_transaction(world.now, GROUP, producer, true).expect("recorded");
    }
    assert_eq!((told(&mut world), LOOKED_AT.get()), (vec![(0, 6), (0, -1), (0, 5), (0, 9)], 2));
}

#[test]
fn a_topic_that_is_made_again_has_not_been_read() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 7), ("items", 0, 1)]));
    world.topics.set("orders", 0);
    world.topics.set("orders", 4);
    assert_eq!(world.offsets(), [("items".into(), 0, 1)]);
    // Who says that the first one is gone may come when the second one is read already.
    world.commit(&simple(&[("orders", 1, 5)]));
    assert_eq!(txn_commit(&mut world, 11, &[("orders", 2, 6)]), [0]);
    world.topics.set("items", 0);
    world.coordinator.topics_deleted(world.now, &BTreeSet::from(["orders".into(), "items".into()]));
    world.restart();
    world.coordinator.end_transaction(world.now, GROUP, 11, true).expect("recorded");
    assert_eq!(world.offsets(), [("orders".into(), 1, 5), ("orders".into(), 2, 6)]);
    world.topics.set("orders", 0);
    world.coordinator.topics_deleted(world.now, &BTreeSet::from(["orders".into()]));
    world.restart();
    assert_eq!(world.offsets(), []);
    assert_eq!(world.coordinator.group_count(), 0);
}

#[test]
fn offsets_of_a_transaction_count_when_it_commits() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 1)]));
    for (producer, commits) in [(11, true), (12, false)] {
        assert_eq!(txn_commit(&mut world, producer, &[("orders", 0, producer), ("no", 0, 1)]), [0, 3]);
        world.restart();
        let (response, _) = world.fetch(&fetch(&[("orders", 0), ("orders", 1)], true));
        let orders = &response.groups[0].topics[0].partitions;
        assert_eq!((orders[0].error_code, orders[0].committed_offset), (Code::UnstableOffsetCommit.code(), -1));
        assert_eq!(orders[1].error_code, 0);
        let before = if commits { 1 } else { 11 };
        assert_eq!(world.offsets(), [("orders".into(), 0, before)]);
        for _ in 0..2 {
            world.coordinator.end_transaction(world.now, GROUP, producer, commits).expect("recorded");
        }
        world.restart();
        assert_eq!(world.offsets(), [("orders".into(), 0, 11)]);
        assert_eq!(world.fetch(&fetch(&[("orders", 0)], true)).0.groups[0].topics[0].partitions[0].error_code, 0);
    }
}

#[test]
fn an_older_transaction_takes_nothing_back_that_was_committed_since() {
    for restarts in [false, true] {
        let mut world = World::new();
        let go_on = |world: &mut World| {
            if restarts {
                world.restart();
            }
        };
        assert_eq!(txn_commit(&mut world, 11, &[("orders", 0, 100), ("orders", 1, 101)]), [0, 0]);
        go_on(&mut world);
        assert_eq!(world.commit(&simple(&[("orders", 0, 200)])).0, [0]);
        go_on(&mut world);
        // What is told for stable stays, however the transaction ends.
        let (response, _) = world.fetch(&fetch(&[("orders", 0)], true));
        assert_eq!(response.groups[0].topics[0].partitions[0].committed_offset, 200);
        world.coordinator.end_transaction(world.now, GROUP, 11, true).expect("recorded");
        go_on(&mut world);
        assert_eq!(world.offsets(), [("orders".into(), 0, 200), ("orders".into(), 1, 101)]);
        // What is written later counts when it is committed.
        assert_eq!(txn_commit(&mut world, 11, &[("orders", 0, 300)]), [0]);
        world.coordinator.end_transaction(world.now, GROUP, 11, true).expect("recorded");
        assert_eq!(world.offsets()[0].2, 300);
    }
}

#[test]
fn of_several_transactions_the_offset_stays_that_was_written_last() {
    // Who writes first and who second, and who ends first and who second, with what comes of it then.
    let all = [
        ([11, 12], [(12, true, 200), (11, true, 200)]),
        ([12, 11], [(11, true, 200), (12, true, 200)]),
        ([12, 11], [(12, true, 100), (11, true, 200)]),
        ([12, 11], [(11, false, -1), (12, true, 100)]),
    ];
    for (written, ended) in all {
        for copies in [None, Some(false), Some(true)] {
            let mut world = World::new();
            let go_on = |world: &mut World| {
                if copies == Some(true) {
                    world.journal.copy(&world.coordinator);
                }
                if copies.is_some() {
                    world.restart();
                }
            };
            for (producer, offset) in written.into_iter().zip([100, 200]) {
                assert_eq!(txn_commit(&mut world, producer, &[("orders", 0, offset)]), [0]);
                go_on(&mut world);
            }
            for (producer, commit, expected) in ended {
                world.coordinator.end_transaction(world.now, GROUP, producer, commit).expect("recorded");
                go_on(&mut world);
                let offset = world.offsets().first().map_or(-1, |of| of.2);
                assert_eq!(offset, expected, "{written:?} {ended:?} {copies:?}");
            }
        }
    }
}

#[test]
fn offsets_of_topics_that_are_read_are_not_deleted() {
    let mut world = World::new();
    assert_eq!(delete_offsets(&mut world, &[("orders", 0)]).error_code, Code::GroupIdNotFound.code());
    let (members, generation) = world.stable(1);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 1), ("items", 0, 1)]));
    let response = delete_offsets(&mut world, &[("orders", 0), ("items", 0), ("items", 7)]);
    let codes: Vec<i16> = response.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
    assert_eq!(codes, [Code::GroupSubscribedToTopic.code(), 0, Code::UnknownTopicOrPartition.code()]);
    assert_eq!(world.offsets(), [("orders".into(), 0, 1)]);
    world.restart();
    assert_eq!(world.offsets(), [("orders".into(), 0, 1)]);
    // It has as long as a session to say that it still reads it.
    let code = |response: OffsetDeleteResponse| response.topics[0].partitions[0].error_code;
    assert_eq!(code(delete_offsets(&mut world, &[("orders", 0)])), Code::GroupSubscribedToTopic.code());
    world.pass(11_000);
    let response = delete_offsets(&mut world, &[("orders", 0)]);
    assert_eq!(response.topics[0].partitions[0].error_code, 0);
    assert_eq!(world.offsets(), []);
}

#[test]
fn members_that_are_no_consumers_keep_their_offsets() {
    let mut world = World::new();
    let token = world.join(3, &join("").with_protocol_type(text("connect")));
    world.pass(3_000);
    assert_eq!(world.take_join(token).map(|joined| joined.error_code), Some(0));
    assert_eq!(delete_offsets(&mut world, &[("orders", 0)]).error_code, Code::NonEmptyGroup.code());
}

#[test]
fn offsets_expire_when_nobody_needs_them_for_long() {
    let mut world = World::new();
    let (members, generation) = world.stable(1);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 1), ("items", 0, 1)]));
    // A member reads `orders`; `items` is of the past.
    for _ in 0..(8 * DAY_MS / 9_000) {
        world.pass(9_000);
        assert_eq!(world.heartbeat(&members[0], generation), 0);
    }
    assert_eq!(world.offsets(), [("orders".into(), 0, 1)]);
    // Now it is gone: the time begins when the group becomes empty, not with the commit.
    world.leave(&[(&members[0], None)]);
    world.pass(6 * DAY_MS);
    assert_eq!(world.offsets(), [("orders".into(), 0, 1)]);
    world.pass(2 * DAY_MS);
    assert_eq!(world.offsets(), []);
    assert_eq!(world.coordinator.group_count(), 0);
    world.restart();
    assert_eq!(world.coordinator.group_count(), 0);
}

#[test]
fn a_group_without_members_and_offsets_goes_soon() {
    let mut world = World::new();
    let soon_ms = 2 * world.config.offsets_check_ms;
    let modern = |epoch: i32| beat("m", epoch, &["orders"], &[]).with_group_id(GroupId(text("modern")));
    for is_restarted in [false, true] {
        let (members, _) = world.stable(1);
        assert_eq!(world.beat(&modern(0)).error_code, 0);
        world.leave(&[(&members[0], None)]);
        assert_eq!(world.beat(&modern(-1)).error_code, 0);
        assert_eq!(world.coordinator.group_count(), 2);
        if is_restarted {
            world.restart();
            assert_eq!(world.coordinator.group_count(), 2);
        }
        world.pass(soon_ms);
        assert_eq!(world.coordinator.group_count(), 0);
        world.restart();
        assert_eq!(world.coordinator.group_count(), 0, "the journal knows that they are gone");
    }
    // With members it stays, and with offsets for their time, however often it is read anew.
    let (members, generation) = world.stable(1);
    for _ in 0..(soon_ms / 9_000) {
        world.pass(9_000);
        assert_eq!(world.heartbeat(&members[0], generation), 0);
    }
    world.commit(&commit(&members[0], generation, &[("orders", 0, 1)]));
    world.leave(&[(&members[0], None)]);
    for _ in 0..2 {
        world.pass(3 * DAY_MS);
        assert_eq!(world.offsets(), [("orders".into(), 0, 1)]);
        world.restart();
    }
    assert_eq!(delete_offsets(&mut world, &[("orders", 0)]).error_code, 0);
    assert_eq!(txn_commit(&mut world, 5, &[("orders", 0, 7)]), [0]);
    world.pass(soon_ms);
    assert_eq!(world.coordinator.group_count(), 1, "an offset is pending");
}

#[test]
fn a_clock_that_jumps_expires_no_offset_before_it_is_believed() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 1)]));
    world.commit(&simple(&[("orders", 1, 1)]).with_retention_time_ms(DAY_MS as i64));
    let mut tick = |jump_ms: i64| {
        world.now.mono_ms += world.config.offsets_check_ms;
        let wall_ms = world.now.believed.now_ms() + world.config.offsets_check_ms as i64;
        (world.now.wall_ms, world.now.believed) = (wall_ms + jump_ms, wall_ms.into());
        world.coordinator.tick(world.now);
        world.offsets().len()
    };
    assert_eq!((tick(8 * DAY_MS as i64), tick(0)), (2, 2));
    world.pass(8 * DAY_MS);
    assert_eq!(world.offsets(), []);
}

#[test]
fn a_restart_neither_ends_nor_stops_the_time_of_offsets() {
    let mut world = World::new();
    world.journal.0.lock().is_older = true;
    let (members, generation) = world.stable(1);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 1)]));
    for _ in 0..(8 * DAY_MS / 9_000) {
        world.pass(9_000);
        assert_eq!(world.heartbeat(&members[0], generation), 0);
    }
    // Its members are not kept, and lost with the node; it is empty since then, however often the node is restarted.
    world.restart();
    for days in 1..=8 {
        world.pass(DAY_MS);
        assert_eq!(world.offsets().len(), usize::from(days < 7), "after {days} days");
        world.restart();
    }
}

#[test]
fn an_offset_with_a_time_of_its_own_expires_then() {
    let mut world = World::new();
    world.commit(&simple(&[("orders", 0, 1)]).with_retention_time_ms(3_600_000));
    world.commit(&simple(&[("orders", 1, 1)]));
    world.pass(3_000_000);
    assert_eq!(world.offsets().len(), 2);
    world.pass(1_200_000);
    assert_eq!(world.offsets(), [("orders".into(), 1, 1)]);
}

#[test]
fn groups_are_listed_and_described() {
    let mut world = World::new();
    let (members, _) = world.stable(2);
    world.commit(&simple(&[("orders", 0, 1)]).with_group_id(GroupId(text("offsets"))));
    world.beat(&beat("m", 0, &["orders"], &[]).with_group_id(GroupId(text("modern"))));
    let named = |name: &str, state: &str, kind: &str| (name.to_owned(), state.to_owned(), kind.to_owned());
    let all = [
        named("group", "Stable", "classic"),
        named("modern", "Stable", "consumer"),
        named("offsets", "Empty", "classic"),
    ];
    assert_eq!(list(&mut world, &[], &[]), all);
    assert_eq!(list(&mut world, &["stable"], &["CLASSIC"]), all[..1]);
    assert_eq!(list(&mut world, &["Empty", "Dead"], &[]), all[2..]);
    assert_eq!(list(&mut world, &[], &["share"]), []);

    let described = &describe(&mut world, 5, GROUP).groups[0];
    assert_eq!((&*described.group_state, &*described.protocol_data, described.error_code), ("Stable", "range", 0));
    assert_eq!(described.members.len(), 2);
    let leader = described.members.iter().find(|member| *member.member_id == *members[0]).expect("there");
    assert_eq!((&*leader.client_id, &*leader.client_host), ("client", "/127.0.0.1"));
    assert_eq!(leader.member_assignment, members[0].as_bytes()[..4]);
    for (version, code) in [(5, 0), (6, Code::GroupIdNotFound.code())] {
        for id in ["nobody", "modern"] {
            let described = &describe(&mut world, version, id).groups[0];
            assert_eq!((&*described.group_state, described.error_code), ("Dead", code), "{id} in {version}");
        }
    }
}

/// A client waits for each group that it has named.
#[test]
fn who_names_too_many_groups_is_told_so_of_each() {
    const WITHIN: usize = 10_000;
    fn limit(text: &str) -> bool {
        text.contains("10000 groups")
    }
    let mut world = World::new();
    let ids: Vec<GroupId> = (0..WITHIN + 2).map(|at| GroupId(text(&at.to_string()))).collect();
    let is_told = |told: Vec<(GroupId, i16, Option<bool>)>, has_text: bool| {
        assert_eq!(told.len(), ids.len());
        for (at, (id, code, text)) in told.into_iter().enumerate() {
            let is_beyond = at >= WITHIN;
            assert_eq!((&id, code == Code::InvalidRequest.code()), (&ids[at], is_beyond));
            assert_eq!(text == Some(true), is_beyond && has_text, "{id:?}");
        }
    };
    for version in [5, 6] {
        let request = DescribeGroupsRequest::default().with_groups(ids.clone());
        let done = world.ask(|coordinator, now, token| coordinator.describe(now, token, &caller(version), &request));
        let Answer::Describe(told) = done.answer else { panic!("{:?}", done.answer) };
        let told = told.groups.into_iter();
        let told = told.map(|of| (of.group_id, of.error_code, of.error_message.map(|text| limit(&text))));
        is_told(told.collect(), version == 6);
    }
    let request = ConsumerGroupDescribeRequest::default().with_group_ids(ids.clone());
    let done = world.ask(|coordinator, now, token| coordinator.consumer_describe(now, token, &caller(1), &request));
    let Answer::ConsumerDescribe(told) = done.answer else { panic!("{:?}", done.answer) };
    let told = told.groups.into_iter();
    let told = told.map(|of| (of.group_id, of.error_code, of.error_message.map(|text| limit(&text))));
    is_told(told.collect(), true);
    let request = DeleteGroupsRequest::default().with_groups_names(ids.clone());
    let done = world.ask(|coordinator, now, token| coordinator.delete(now, token, &caller(2), &request));
    let Answer::Delete(told) = done.answer else { panic!("{:?}", done.answer) };
    is_told(told.results.into_iter().map(|of| (of.group_id, of.error_code, None)).collect(), false);
}

#[test]
fn a_group_without_members_is_deleted_with_its_offsets() {
    let mut world = World::new();
    let (members, generation) = world.stable(1);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 1)]));
    assert_eq!(delete(&mut world, GROUP), (Code::NonEmptyGroup.code(), None));
    assert_eq!(delete(&mut world, "nobody"), (Code::GroupIdNotFound.code(), None));
    world.leave(&[(&members[0], None)]);
    world.journal.0.lock().is_full = true;
    assert_eq!(delete(&mut world, GROUP).0, Code::CoordinatorNotAvailable.code());
    assert_eq!(world.offsets().len(), 1);
    world.journal.0.lock().is_full = false;
    let kept = world.journal.0.lock().entries.len() as u64;
    assert_eq!(delete(&mut world, GROUP), (0, Some(Mark(kept + 1))));
    assert_eq!(world.offsets(), []);
    world.commit(&simple(&[("items", 0, 3)]));
    world.restart();
    assert_eq!(world.offsets(), [("items".into(), 0, 3)]);
}

#[test]
fn a_copy_says_the_same_as_the_journal() {
    let mut world = World::with(GroupConfig { initial_delay_ms: 10, ..GroupConfig::default() });
    let (members, generation) = world.stable(1);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 1), ("items", 0, 2)]));
    world.leave(&[(&members[0], None)]);
    txn_commit(&mut world, 5, &[("orders", 1, 5)]);
    for number in 0..20 {
        let id = GroupId(text(&format!("other-{number}")));
        world.commit(&simple(&[("orders", number % 4, 1)]).with_group_id(id));
    }
    let (mut copy, mut behind, mut steps) = (Vec::new(), None::<String>, 0);
    loop {
        let (entries, next) = world.coordinator.snapshot(behind.as_deref(), 500);
        copy.extend(entries);
        steps += 1;
        match next {
            Some(next) => behind = Some(next),
            None => break,
        }
        if steps == 2 {
            // What happens meanwhile stands behind the copy, or is in it.
            world.journal.0.lock().entries.clear();
            world.commit(&simple(&[("orders", 3, 99)]));
            world.commit(&simple(&[("orders", 3, 98)]).with_group_id(GroupId(text("other-9"))));
        }
    }
    assert!(steps > 3);
    copy.append(&mut world.journal.0.lock().entries);
    let facts = |world: &World| -> Vec<(String, Vec<Fact>)> {
        world.coordinator.groups().map(|group| (group.head.id.clone(), group.offsets.facts().collect())).collect()
    };
    let before = (facts(&world), list(&mut world, &[], &[]));
    world.journal.0.lock().entries = copy;
    world.restart();
    assert_eq!((facts(&world), list(&mut world, &[], &[])), before);
    let next = world.stable(1).1;
    assert!(next > generation);
}

#[test]
fn entries_are_as_large_as_the_format_allows_and_no_larger() {
    let mut world = World::new();
    let id = "g".repeat(kera_format::kafka_groups::GROUP_NAME_BYTES_MAX + 1);
    let (codes, _) = world.commit(&simple(&[("orders", 0, 1)]).with_group_id(GroupId(text(&id))));
    assert_eq!(codes, [Code::InvalidGroupId.code()]);
    let entries: Vec<Entry> = world.journal.0.lock().entries.clone();
    assert_eq!(entries, []);
}
