//! Consumer groups: the coordinator assigns, members come to it one heartbeat after the other.

use std::sync::atomic::Ordering;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, ProducerId,
    TopicName, TxnOffsetCommitRequest,
};
use uuid::Uuid;

use crate::groups::consumer::{ASSIGNED, LOOKED_UP, MATCHED};
use crate::groups::group::text;
use crate::groups::testing::{World, beat, caller, commit, group, join};
use crate::groups::{Answer, GroupConfig, Topics};

/// A client: sends what it has, takes what it is told.
#[derive(Debug)]
struct Client {
    id: String,
    epoch: i32,
    owned: Vec<(Uuid, Vec<i32>)>,
    topics: Vec<&'static str>,
}

impl Client {
    fn join(world: &mut World, id: &str, topics: &[&'static str]) -> Client {
        let mut client = Client { id: id.into(), epoch: 0, owned: Vec::new(), topics: topics.to_vec() };
        client.beat(world);
        client
    }

    fn beat(&mut self, world: &mut World) -> ConsumerGroupHeartbeatResponse {
        let response = world.beat(&beat(&self.id, self.epoch, &self.topics, &self.owned));
        assert_eq!(response.error_code, 0, "{:?}", response.error_message);
        self.take(&response);
        response
    }

    fn take(&mut self, response: &ConsumerGroupHeartbeatResponse) {
        self.epoch = response.member_epoch;
        if let Some(assignment) = &response.assignment {
            self.owned =
                assignment.topic_partitions.iter().map(|topic| (topic.topic_id, topic.partitions.clone())).collect();
        }
    }

    fn count(&self) -> usize {
        self.owned.iter().map(|(_, partitions)| partitions.len()).sum()
    }
}

fn refused(world: &mut World, request: &ConsumerGroupHeartbeatRequest) -> Code {
    let response = world.beat(request);
    assert!(response.error_message.is_some());
    kafka_protocol::error::ResponseError::try_from_code(response.error_code).expect("an error")
}

fn state(world: &mut World) -> String {
    let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
    let done = world.ask(|coordinator, now, token| coordinator.consumer_describe(now, token, &caller(1), &request));
    let Answer::ConsumerDescribe(response) = done.answer else { panic!("{:?}", done.answer) };
    response.groups[0].group_state.to_string()
}

/// What becomes of offsets that a producer commits for a member.
fn txn_commit(world: &mut World, member_id: &str, instance: Option<&str>, epoch: i32) -> i16 {
    let of = TxnOffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(7);
    let of = TxnOffsetCommitRequestTopic::default().with_name(TopicName(text("orders"))).with_partitions(vec![of]);
    let request = TxnOffsetCommitRequest::default()
        .with_group_id(group())
        .with_producer_id(ProducerId(5))
        .with_member_id(text(member_id))
        .with_group_instance_id(instance.map(text))
        .with_generation_id(epoch)
        .with_topics(vec![of]);
    let done = world.ask(|coordinator, now, token| coordinator.txn_commit(now, token, &caller(3), &request));
    let Answer::TxnCommit(response) = done.answer else { panic!("{:?}", done.answer) };
    response.topics[0].partitions[0].error_code
}

#[test]
fn who_names_no_member_commits_in_a_transaction_while_there_are_members() {
    let mut world = World::new();
    let one = Client::join(&mut world, "one", &["orders"]);
    assert_eq!(txn_commit(&mut world, "", None, -1), 0);
    assert_eq!(txn_commit(&mut world, &one.id, None, one.epoch), 0);
    let unknown = Code::UnknownMemberId.code();
    assert_eq!(txn_commit(&mut world, "two", None, -1), unknown);
    assert_eq!(txn_commit(&mut world, "", Some("i"), -1), unknown);
    assert_eq!(txn_commit(&mut world, "", None, 1), unknown);
    assert_eq!(world.commit(&commit("", -1, &[("orders", 0, 1)])).0, [unknown], "outside of a transaction");
}

#[test]
fn a_second_member_gets_what_the_first_gives_back() {
    let mut world = World::new();
    let mut one = Client::join(&mut world, "one", &["orders", "items"]);
    assert_eq!((one.epoch, one.count()), (1, 6));
    let mut two = Client::join(&mut world, "two", &["orders", "items"]);
    assert_eq!((two.epoch, two.count()), (2, 0), "nothing is free yet");
    assert_eq!(state(&mut world), "Reconciling");
    // The first is told what to keep, says so, and only then the second has the rest.
    one.beat(&mut world);
    assert_eq!((one.epoch, one.count()), (1, 3));
    two.beat(&mut world);
    assert_eq!(two.count(), 0);
    one.beat(&mut world);
    assert_eq!((one.epoch, one.count()), (2, 3));
    two.beat(&mut world);
    assert_eq!((two.epoch, two.count()), (2, 3));
    assert_eq!(state(&mut world), "Stable");
    // Nothing changes any more.
    assert_eq!((one.beat(&mut world).member_epoch, two.beat(&mut world).member_epoch), (2, 2));
}

#[test]
fn a_heartbeat_that_says_nothing_is_told_only_what_changed() {
    let mut world = World::new();
    let one = Client::join(&mut world, "one", &["orders"]);
    let short = |epoch| {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group())
            .with_member_id(text("one"))
            .with_member_epoch(epoch)
            .with_rebalance_timeout_ms(-1)
            .with_subscribed_topic_names(None)
            .with_topic_partitions(None)
    };
    let response = world.beat(&short(one.epoch));
    assert_eq!((response.error_code, response.assignment), (0, None));
    assert_eq!(response.heartbeat_interval_ms, 5_000);
    world.topics.set("orders", 5);
    let response = world.beat(&short(one.epoch));
    assert_eq!(response.member_epoch, one.epoch + 1);
    assert_eq!(response.assignment.expect("changed").topic_partitions[0].partitions, [0, 1, 2, 3, 4]);
}

#[test]
fn a_member_that_is_lost_or_leaves_frees_what_it_had() {
    let mut world = World::new();
    let mut one = Client::join(&mut world, "one", &["orders"]);
    let mut two = Client::join(&mut world, "two", &["orders"]);
    for _ in 0..2 {
        one.beat(&mut world);
        two.beat(&mut world);
    }
    assert_eq!((one.count(), two.count()), (2, 2));
    world.pass(40_000);
    one.beat(&mut world);
    world.pass(10_000);
    one.beat(&mut world);
    assert_eq!((one.epoch, one.count()), (3, 4));
    assert_eq!(refused(&mut world, &beat("two", two.epoch, &["orders"], &[])), Code::UnknownMemberId);
    two = Client::join(&mut world, "two", &["orders"]);
    one.beat(&mut world);
    one.beat(&mut world);
    two.beat(&mut world);
    assert_eq!(two.count(), 2);
    let left = world.beat(&beat("two", -1, &[], &[]));
    assert_eq!((left.error_code, left.member_epoch), (0, -1));
    one.beat(&mut world);
    assert_eq!(one.count(), 4);
    world.beat(&beat("one", -1, &[], &[]));
    assert_eq!(state(&mut world), "Empty");
}

#[test]
fn who_does_not_give_back_in_time_is_thrown_out() {
    let mut world = World::new();
    let mut one = Client::join(&mut world, "one", &["orders"]);
    let mut two = Client::join(&mut world, "two", &["orders"]);
    let had = one.owned.clone();
    one.beat(&mut world);
    for _ in 0..6 {
        world.pass(10_000);
        // It is alive, and still has everything.
        let response = world.beat(&beat("one", one.epoch, &["orders"], &had));
        if response.error_code != 0 {
            break;
        }
        two.beat(&mut world);
    }
    assert_eq!(refused(&mut world, &beat("one", one.epoch, &["orders"], &had)), Code::UnknownMemberId);
    two.beat(&mut world);
    assert_eq!(two.count(), 4);
}

#[test]
fn epochs_fence_who_is_behind() {
    let mut world = World::new();
    let one = Client::join(&mut world, "one", &["orders"]);
    assert_eq!(refused(&mut world, &beat("one", one.epoch + 1, &["orders"], &[])), Code::FencedMemberEpoch);
    // Its last answer was lost: it may say the epoch before, if it has nothing that is not its own.
    let mut two = Client::join(&mut world, "two", &["orders"]);
    let mut again = Client { id: "one".into(), epoch: one.epoch, owned: one.owned.clone(), topics: vec!["orders"] };
    again.beat(&mut world);
    let before = again.epoch;
    again.beat(&mut world);
    assert!(again.epoch > before);
    two.beat(&mut world);
    assert_eq!(two.count(), 2);
    let kept = again.owned.clone();
    assert_eq!(world.beat(&beat("one", before, &["orders"], &kept)).error_code, 0);
    assert_eq!(refused(&mut world, &beat("one", before, &["orders"], &one.owned)), Code::FencedMemberEpoch);
    // It begins anew, and has nothing at first.
    let mut anew = Client::join(&mut world, "one", &["orders"]);
    anew.beat(&mut world);
    assert_eq!(anew.count(), 2);
}

/// Whoever lacks partitions takes a step with each heartbeat, in the same epoch: from then on it must know of that epoch.
#[test]
fn who_is_told_again_in_its_epoch_may_not_be_behind_it_any_more() {
    let mut world = World::new();
    Client::join(&mut world, "one", &["orders"]);
    let two = Client::join(&mut world, "two", &["orders"]);
    world.topics.set("orders", 6);
    let behind = beat("two", two.epoch, &["orders"], &two.owned);
    let told = world.beat(&behind);
    assert_eq!((told.error_code, told.member_epoch), (0, two.epoch + 1));
    assert_eq!(state(&mut world), "Reconciling", "the first one still has what is meant for it");
    let again = world.beat(&behind);
    assert_eq!((again.error_code, again.member_epoch), (0, two.epoch + 1), "its last answer was lost");
    assert_eq!(refused(&mut world, &behind), Code::FencedMemberEpoch);
}

#[test]
fn a_pattern_takes_topics_as_they_come() {
    let mut world = World::new();
    world.topics.set("ordersX", 1);
    let by_pattern = |epoch: i32, pattern: &str| {
        beat("one", epoch, &[], &[])
            .with_subscribed_topic_names(None)
            .with_subscribed_topic_regex(Some(text(pattern)))
            .with_topic_partitions(Some(Vec::new()))
    };
    let told = |response: ConsumerGroupHeartbeatResponse| -> usize {
        response.assignment.expect("told").topic_partitions.iter().map(|topic| topic.partitions.len()).sum()
    };
    let joined = world.beat(&by_pattern(0, "orders|it.*"));
    assert_eq!((joined.error_code, joined.member_epoch), (0, 1));
    assert_eq!(told(joined), 6, "the whole name must match");
    world.topics.set("iterations", 3);
    assert_eq!(told(world.beat(&by_pattern(1, "orders|it.*"))), 9);
    let invalid = by_pattern(2, "orders(");
    assert_eq!(refused(&mut world, &invalid), Code::InvalidRegularExpression);
    let huge = by_pattern(2, "(a{1000}){1000}");
    assert_eq!(refused(&mut world, &huge), Code::InvalidRegularExpression);
    assert_eq!(told(world.beat(&by_pattern(2, "nothing"))), 0);
}

/// Who starts a thousand members has each of them join.
#[test]
fn topics_are_matched_and_looked_up_once_for_all_who_join_with_one_pattern() {
    let mut world = World::new();
    (0..40).for_each(|at| world.topics.set(&format!("logs-{at}"), 1));
    let beat_of = |at: usize, epoch: i32| {
        let beat = beat(&format!("member-{at}"), epoch, &[], &[]).with_subscribed_topic_names(None);
        beat.with_subscribed_topic_regex(Some(text("logs-.*")))
    };
    let looks = |world: &World| world.topics.looks.load(Ordering::Relaxed);
    let before = looks(&world);
    MATCHED.set(0);
    for at in 0..20 {
        let joined = world.beat(&beat_of(at, 0));
        assert_eq!((joined.error_code, joined.member_epoch), (0, at as i32 + 1));
    }
    assert_eq!(MATCHED.get(), 42, "each topic that there is");
    assert_eq!(looks(&world) - before, 80, "each that matches for the room that it takes, and for the group");
    // One comes, and another one is other than it was.
    world.topics.set("logs-40", 1);
    world.topics.set("logs-0", 2);
    let response = world.beat(&beat_of(19, 20));
    assert_eq!((response.error_code, response.member_epoch), (0, 21));
    assert_eq!((MATCHED.get(), looks(&world) - before), (42 + 43, 80 + 41));
}

/// Each target looks at all partitions and all members.
#[test]
fn who_joins_a_large_group_waits_a_little_for_a_target_that_is_for_all_who_join() {
    let mut world = World::new();
    world.topics.set("large", 1_000);
    ASSIGNED.set(0);
    LOOKED_UP.set(0);
    let mut all = Vec::new();
    for at in 0..100 {
        let mut client = Client { id: format!("member-{at}"), epoch: 0, owned: Vec::new(), topics: vec!["large"] };
        let told = client.beat(&mut world);
        let (in_ms, many) = if at == 0 { (5_000, 1_000) } else { (20, 0) };
        assert_eq!((told.heartbeat_interval_ms, client.epoch, client.count()), (in_ms, 1, many), "{at}");
        all.push(client);
    }
    assert_eq!((ASSIGNED.get(), LOOKED_UP.get()), (1, 1));
    world.pass(19);
    assert_eq!((all[99].beat(&mut world).heartbeat_interval_ms, ASSIGNED.get()), (1, 1));
    world.pass(1);
    // Whoever comes first has the target made in which all are.
    assert_eq!((all[99].beat(&mut world).heartbeat_interval_ms, ASSIGNED.get()), (5_000, 2));
    for _ in 0..3 {
        all.iter_mut().for_each(|client| drop(client.beat(&mut world)));
    }
    assert!(all.iter().all(|client| (client.epoch, client.count()) == (100, 10)), "{all:?}");
    assert_eq!((ASSIGNED.get(), LOOKED_UP.get(), state(&mut world).as_str()), (2, 1, "Stable"));
    // Who is alone again has all at once, however soon.
    for client in &all {
        assert_eq!(world.beat(&beat(&client.id, -1, &[], &[])).error_code, 0);
    }
    assert_eq!(Client::join(&mut world, "another", &["large"]).count(), 1_000);
}

#[test]
fn topics_are_gone_through_when_somebody_wants_what_nobody_else_does_or_the_last_does_not_any_more() {
    let mut world = World::new();
    LOOKED_UP.set(0);
    let joins = |world: &mut World, id: &str, topics: &[&'static str]| {
        Client::join(world, id, topics);
        LOOKED_UP.get()
    };
    let looked = [("a", "orders"), ("b", "items"), ("c", "orders")].map(|(id, topic)| joins(&mut world, id, &[topic]));
    assert_eq!(looked, [1, 2, 2]);
    world.beat(&beat("b", -1, &[], &[]));
    assert_eq!([joins(&mut world, "d", &["orders"]), joins(&mut world, "e", &["orders"])], [3, 3]);
    world.beat(&beat("e", -1, &[], &[]));
    assert_eq!(joins(&mut world, "f", &["orders"]), 3, "others want what it wanted");
    // One wants something else, and is the last to do so for a while.
    assert_eq!([joins(&mut world, "a", &["items"]), joins(&mut world, "a", &["orders"])], [4, 5]);
}

#[test]
fn a_pattern_may_quote_and_name_categories() {
    let mut world = World::new();
    for topic in ["orders.eu", "ordersXeu", "a", "Orders-9"] {
        world.topics.set(topic, 1);
    }
    let mut matches = |pattern: &str| {
        // Each in a group of its own.
        let join = beat("one", 0, &[], &[]).with_group_id(GroupId(text(pattern))).with_subscribed_topic_names(None);
        let joined = world.beat(&join.with_subscribed_topic_regex(Some(text(pattern))));
        assert_eq!(joined.error_code, 0, "{pattern}: {:?}", joined.error_message);
        let given = joined.assignment.expect("who joins is told what it has").topic_partitions;
        let name = |id: Uuid| world.topics.name(id).expect("there");
        let mut names: Vec<String> = given.iter().map(|topic| name(topic.topic_id)).collect();
        names.sort();
        names
    };
    assert_eq!(matches(r"\Qorders.\E.*"), ["orders.eu"]);
    assert_eq!(matches(r"orders.eu"), ["orders.eu", "ordersXeu"]);
    assert_eq!(matches(r"\Qa"), ["a"]);
    assert_eq!(matches(r"\p{Lu}\pL+\p{Pd}\pN"), ["Orders-9"]);
    assert_eq!(matches(r"[\p{Ll}]"), ["a"]);
    assert_eq!(matches(r"\P{Lu}\pL*"), ["a", "items", "orders", "ordersXeu"]);
    for refused_one in [r"[\Qa\E]", r"\p{Greek}", r"\Ea"] {
        let join = beat("two", 0, &[], &[]).with_subscribed_topic_regex(Some(text(refused_one)));
        assert_eq!(refused(&mut world, &join), Code::InvalidRegularExpression, "{refused_one}");
    }
}

#[test]
fn the_assignor_is_what_most_members_want() {
    let mut world = World::new();
    world.topics.set("items", 4);
    let join = |id: &str| beat(id, 0, &["orders", "items"], &[]).with_server_assignor(Some(text("range")));
    world.beat(&join("a"));
    let response = world.beat(&join("b"));
    assert_eq!(response.error_code, 0);
    let other = join("c").with_server_assignor(Some(text("sticky")));
    assert_eq!(refused(&mut world, &other), Code::UnsupportedAssignor);
    // `a` keeps the first half of each topic.
    let all: Vec<(Uuid, Vec<i32>)> =
        ["orders", "items"].map(|name| (world.topics.topic(name).expect("there").id, vec![0, 1, 2, 3])).to_vec();
    let kept = world.beat(&beat("a", 1, &["orders", "items"], &all)).assignment.expect("told");
    let halves: Vec<_> = kept.topic_partitions.iter().map(|topic| topic.partitions.clone()).collect();
    assert_eq!(halves, [[0, 1], [0, 1]]);
}

#[test]
fn a_member_with_a_name_comes_back_to_its_place() {
    let mut world = World::new();
    let named = |id: &str, epoch: i32, owned: &[(Uuid, Vec<i32>)]| {
        beat(id, epoch, &["orders"], owned).with_instance_id(Some(text("a")))
    };
    let joined = world.beat(&named("one", 0, &[]));
    assert_eq!(joined.member_epoch, 1);
    let mut other = Client::join(&mut world, "other", &["orders"]);
    assert_eq!(refused(&mut world, &named("two", 0, &[])), Code::UnreleasedInstanceId);
    let away = world.beat(&named("one", -2, &[]));
    assert_eq!((away.error_code, away.member_epoch), (0, -2));
    other.beat(&mut world);
    assert_eq!(other.count(), 0, "what it had is kept for it");
    let back = world.beat(&named("two", 0, &[]));
    assert_eq!((back.error_code, back.member_epoch), (0, 2));
    assert_eq!(refused(&mut world, &named("one", 1, &[])), Code::FencedInstanceId);
    other.beat(&mut world);
    assert_eq!(other.count(), 2);
    world.beat(&named("two", -2, &[]));
    world.pass(30_000);
    other.beat(&mut world);
    world.pass(20_000);
    other.beat(&mut world);
    assert_eq!(other.count(), 4, "it did not come back in time");
}

#[test]
fn who_is_refused_does_not_take_the_place_of_another() {
    let config = GroupConfig { members_bytes_max: 64 << 10, member_topics_max: 2, ..GroupConfig::default() };
    let mut world = World::with(config);
    let named =
        |id: &str, epoch: i32, topics: &[&str]| beat(id, epoch, topics, &[]).with_instance_id(Some(text("place")));
    let given = world.beat(&named("one", 0, &["orders"])).assignment;
    assert!(given.as_ref().is_some_and(|given| !given.topic_partitions.is_empty()));
    assert_eq!(world.beat(&named("one", -2, &[])).error_code, 0);
    let pattern = |pattern: &str| named("two", 0, &[]).with_subscribed_topic_regex(Some(text(pattern)));
    assert_eq!(refused(&mut world, &pattern("orders(")), Code::InvalidRegularExpression);
    assert_eq!(refused(&mut world, &named("two", 0, &["a", "b", "c"])), Code::InvalidRequest);
    let large = ["a", "b"].map(|name| name.repeat(40_000));
    let large = named("two", 0, &large.each_ref().map(String::as_str));
    assert_eq!(refused(&mut world, &large), Code::PolicyViolation);
    // It is still away, and whoever comes next has its place.
    let three = world.beat(&named("three", 0, &["orders"]));
    assert_eq!((three.error_code, &three.assignment), (0, &given));
    assert_eq!(refused(&mut world, &named("two", 0, &["orders"])), Code::UnreleasedInstanceId);
}

#[test]
fn a_name_that_has_not_changed_need_not_be_told_again() {
    let mut world = World::new();
    let named = |id: &str| beat(id, 0, &["orders"], &[]).with_instance_id(Some(text("a")));
    assert_eq!(world.beat(&named("one")).member_epoch, 1);
    let kept = world.beat(&beat("one", 1, &["orders"], &[]));
    assert_eq!((kept.error_code, kept.member_epoch), (0, 1));
    assert_eq!(refused(&mut world, &named("two")), Code::UnreleasedInstanceId, "it is still the first one's");
}

#[test]
fn only_members_with_their_epoch_commit_and_fetch() {
    let mut world = World::new();
    let one = Client::join(&mut world, "one", &["orders"]);
    let code = |world: &mut World, id: &str, epoch| world.commit(&commit(id, epoch, &[("orders", 0, 1)])).0[0];
    assert_eq!(code(&mut world, "one", one.epoch), 0);
    assert_eq!(code(&mut world, "one", one.epoch - 1), Code::StaleMemberEpoch.code());
    assert_eq!(code(&mut world, "two", one.epoch), Code::UnknownMemberId.code());
    assert_eq!(code(&mut world, "", -1), Code::UnknownMemberId.code());
    let old = commit("one", one.epoch, &[("orders", 0, 1)]);
    let done = world.ask(|coordinator, now, token| coordinator.commit(now, token, &caller(8), &old));
    let Answer::Commit(response) = done.answer else { panic!("{:?}", done.answer) };
    assert_eq!(response.topics[0].partitions[0].error_code, Code::UnsupportedVersion.code());
    let mut fetch = crate::groups::testing::fetch_all(false);
    assert_eq!(world.fetch(&fetch).0.groups[0].error_code, 0);
    fetch.groups[0].member_id = Some(text("one"));
    assert_eq!(world.fetch(&fetch).0.groups[0].error_code, Code::StaleMemberEpoch.code());
    fetch.groups[0].member_epoch = one.epoch;
    assert_eq!(world.fetch(&fetch).0.groups[0].error_code, 0);
}

#[test]
fn groups_change_their_kind_while_they_are_empty() {
    let mut world = World::new();
    // As it is before all nodes know that there may be both kinds in one group.
    world.journal.0.lock().is_before_changes = true;
    let (members, generation) = world.stable(1);
    assert_eq!(refused(&mut world, &beat("one", 0, &["orders"], &[])), Code::GroupIdNotFound);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 7)]));
    world.leave(&[(&members[0], None)]);
    let one = Client::join(&mut world, "one", &["orders"]);
    assert!(one.epoch > generation, "epochs go on where generations were");
    assert_eq!(world.offsets(), [("orders".into(), 0, 7)]);
    let refused = world.join(9, &join(""));
    let refused = world.take_join(refused).expect("refused");
    assert_eq!(refused.error_code, Code::InconsistentGroupProtocol.code());
    world.beat(&beat("one", -1, &[], &[]));
    let (_, next) = world.stable(1);
    assert!(next > one.epoch);
    assert_eq!(world.offsets(), [("orders".into(), 0, 7)]);
}

#[test]
fn epochs_go_on_after_a_restart_if_members_do_not() {
    let mut world = World::new();
    world.journal.0.lock().is_older = true;
    let one = Client::join(&mut world, "one", &["orders"]);
    world.commit(&commit("one", one.epoch, &[("orders", 0, 7)]));
    world.restart();
    assert_eq!(refused(&mut world, &beat("one", one.epoch, &["orders"], &one.owned)), Code::UnknownMemberId);
    let stale = world.commit(&commit("one", one.epoch, &[("orders", 0, 8)])).0;
    assert_eq!(stale, [Code::UnknownMemberId.code()]);
    let again = Client::join(&mut world, "one", &["orders"]);
    assert!(again.epoch > one.epoch);
    assert_eq!(world.offsets(), [("orders".into(), 0, 7)]);
}

#[test]
fn an_epoch_that_cannot_be_recorded_is_told_to_nobody() {
    let mut world = World::new();
    world.journal.0.lock().is_full = true;
    let request = beat("one", 0, &["orders"], &[]);
    assert_eq!(refused(&mut world, &request), Code::CoordinatorNotAvailable);
    world.journal.0.lock().is_full = false;
    let joined = world.beat(&request);
    assert_eq!((joined.error_code, joined.member_epoch), (0, 1));
    assert_eq!(world.journal.0.lock().entries.len(), 2, "the group and its member");
}

#[test]
fn requests_that_make_no_sense_are_refused_with_a_reason() {
    let mut world = World::with(GroupConfig { members_max: 1, member_topics_max: 2, ..GroupConfig::default() });
    let first = || beat("one", 0, &["orders"], &[]);
    let some = [(Uuid::from_u128(1), vec![0])];
    for request in [
        first().with_group_id(GroupId(text(""))),
        first().with_member_id(text("")),
        first().with_member_id(text(&"m".repeat(1_025))),
        first().with_instance_id(Some(text(""))),
        first().with_rack_id(Some(text(""))),
        first().with_rebalance_timeout_ms(-1),
        first().with_subscribed_topic_names(None),
        first().with_topic_partitions(None),
        first().with_member_epoch(-3),
        first().with_member_epoch(-2),
        beat("one", 0, &["orders"], &some),
        beat("one", 0, &["a", "b", "c"], &[]),
    ] {
        assert_eq!(refused(&mut world, &request), Code::InvalidRequest, "{request:?}");
    }
    assert_eq!(world.coordinator.group_count(), 0);
    assert_eq!(refused(&mut world, &first().with_member_epoch(1)), Code::GroupIdNotFound);
    world.beat(&first());
    assert_eq!(refused(&mut world, &beat("two", 0, &["orders"], &[])), Code::GroupMaxSizeReached);
    assert_eq!(refused(&mut world, &beat("two", 1, &["orders"], &[])), Code::UnknownMemberId);
}

#[test]
fn a_member_may_come_before_it_knows_what_to_read() {
    let mut world = World::new();
    let mut one = Client::join(&mut world, "one", &[]);
    assert_eq!((one.epoch, one.count(), state(&mut world).as_str()), (1, 0, "Stable"));
    world.restart();
    one.beat(&mut world);
    assert_eq!((one.epoch, one.count()), (1, 0), "it is kept as it is");
    world.topics.set("later", 3);
    one.topics = vec!["later"];
    one.beat(&mut world);
    assert_eq!((one.epoch, one.count()), (2, 3));
    // Its topics are gone, and it joins again with nothing.
    let again = world.beat(&beat("one", 0, &[], &[]));
    let given = again.assignment.expect("who joins is told what it has");
    assert_eq!((again.error_code, given.topic_partitions), (0, Vec::new()));
    // So does one with an empty pattern; who says neither is refused.
    let by_pattern = |pattern: Option<&str>| {
        beat("two", 0, &[], &[]).with_subscribed_topic_names(None).with_subscribed_topic_regex(pattern.map(text))
    };
    assert_eq!(refused(&mut world, &by_pattern(None)), Code::InvalidRequest);
    assert_eq!(world.beat(&by_pattern(Some(""))).error_code, 0);
}

/// What members take may have so many bytes.
fn small() -> World {
    World::with(GroupConfig { members_bytes_max: 1 << 20, ..GroupConfig::default() })
}

/// How many groups can be made one after the other before memory is used up, each by the join of one member; and nothing is left of them later.
fn groups_until_full(world: &mut World, join: impl Fn(usize) -> ConsumerGroupHeartbeatRequest) -> usize {
    let join_group = |world: &mut World, at: usize| {
        let id = GroupId(text(&format!("group-{at}")));
        let response = world.beat(&join(at).with_group_id(id));
        Code::try_from_code(response.error_code)
    };
    let refused = (0..10_000).find_map(|at| Some((at, join_group(world, at)?)));
    let (count, code) = refused.expect("there is an end");
    assert_eq!((code, world.coordinator.group_count()), (Code::PolicyViolation, count));
    // Who is a member already may stay.
    let again = beat("member", 1, &["orders"], &[]).with_subscribed_topic_names(None).with_topic_partitions(None);
    let again = again.with_group_id(GroupId(text("group-0"))).with_rebalance_timeout_ms(-1);
    assert_eq!(world.beat(&again).error_code, 0);
    world.pass(100_000);
    assert_eq!(join_group(world, 10_000), None, "there is room again");
    count
}

#[test]
fn names_of_members_take_memory() {
    let mut world = small();
    let count = groups_until_full(&mut world, |_| {
        let instance = Some(text(&"i".repeat(1_000)));
        beat("member", 0, &["orders"], &[]).with_instance_id(instance.clone()).with_rack_id(instance)
    });
    assert!((100..400).contains(&count), "{count}");
}

#[test]
fn what_members_read_takes_memory() {
    let mut world = small();
    (0..10).for_each(|at| world.topics.set(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"][at], 500));
    // Each group has all of it; one more than fits is refused before it has anything.
    let pattern = |_| beat("member", 0, &[], &[]).with_subscribed_topic_regex(Some(text(".")));
    assert_eq!(groups_until_full(&mut world, pattern), 2);
    let names = |_| beat("member", 0, &["a", "b", "c", "d"], &[]);
    assert_eq!(groups_until_full(&mut small_with(2_500), names), 1);
    // Those who read what others read take little more than the first.
    let mut world = small_with(2_500);
    for at in 0..20 {
        assert_eq!(world.beat(&beat(&format!("member-{at}"), 0, &["a", "b", "c", "d"], &[])).error_code, 0);
    }
}

/// The same with topics of so many partitions.
fn small_with(partitions: u32) -> World {
    let world = small();
    ["a", "b", "c", "d"].into_iter().for_each(|name| world.topics.set(name, partitions));
    world
}
