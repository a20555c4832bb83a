//! Members whose coordinator dies, and is another one then.

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::ConsumerGroupHeartbeatResponse;
use kera_format::kafka_groups::Fact;
use uuid::Uuid;

use crate::groups::GroupConfig;
use crate::groups::group::text;
use crate::groups::testing::{World, beat, commit, join, join_with, sync};

/// What is kept of the members of the group.
fn kept(world: &World) -> Vec<(String, kera_format::kafka_members::MemberState)> {
    world.coordinator.groups().flat_map(|group| group.kind.kept()).collect()
}

/// The only member of the group, in its first generation, under the name of "a".
fn alone(world: &mut World) -> String {
    let token = world.join(9, &join_with("", Some("a"), &["range"]));
    world.pass(6_000);
    let id = world.take_join(token).expect("joined").member_id.to_string();
    let token = world.sync(&sync(&id, 1, &[(&id, b"part")]));
    assert!(world.take_sync(token).is_some());
    id
}

#[test]
fn a_generation_goes_on_and_nobody_joins_again() {
    let mut world = World::new();
    let (members, generation) = world.stable(3);
    let before = kept(&world);
    assert_eq!(before.len(), 3);
    for _ in 0..2 {
        world.restart();
        assert_eq!(kept(&world), before);
        for id in &members {
            assert_eq!(world.heartbeat(id, generation), 0);
            assert_eq!(world.commit(&commit(id, generation, &[("orders", 0, 7)])).0, [0]);
            let token = world.sync(&sync(id, generation, &[]));
            let synced = world.take_sync(token).expect("at once");
            assert_eq!((synced.error_code, &synced.assignment[..]), (0, &id.as_bytes()[..4]));
        }
    }
    // Who asks again because it did not get its answer is told the same; a leader who asks again begins a rebalance.
    let token = world.join(9, &join(&members[1]));
    assert_eq!(world.take_join(token).map(|told| (told.error_code, told.generation_id)), Some((0, generation)));
    let token = world.join(9, &join(&members[0]));
    assert_eq!(world.heartbeat(&members[1], generation), Code::RebalanceInProgress.code());
    let others = [1, 2].map(|at| world.join(9, &join(&members[at])));
    let told = world.take_join(token).expect("all are there");
    assert_eq!((told.generation_id, &*told.leader, told.members.len()), (generation + 1, &members[0][..], 3));
    assert!(others.into_iter().all(|token| world.take_join(token).is_some()));
}

#[test]
fn members_have_a_session_to_say_that_they_are_there() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    world.pass(9_000);
    world.restart();
    world.pass(9_000);
    assert_eq!(world.heartbeat(&members[0], generation), 0);
    world.pass(2_000);
    assert_eq!(world.heartbeat(&members[1], generation), Code::UnknownMemberId.code());
    assert_eq!(world.heartbeat(&members[0], generation), Code::RebalanceInProgress.code());
}

#[test]
fn a_generation_without_assignments_is_not_kept_and_neither_is_the_one_before() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    let tokens = [0, 1].map(|at| world.join(9, &join(&members[at])));
    tokens.into_iter().for_each(|token| assert!(world.take_join(token).is_some()));
    assert!(kept(&world).is_empty());
    world.restart();
    assert_eq!(world.heartbeat(&members[0], generation + 1), Code::UnknownMemberId.code());
    let (_, next) = world.stable(2);
    assert!(next > generation + 1);
}

#[test]
fn while_members_join_again_the_generation_before_is_kept() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    let (_, _) = world.join_new();
    assert!(kept(&world).is_empty(), "a copy would not know who has left");
    world.restart();
    assert_eq!(world.heartbeat(&members[0], generation), 0);
    // A member that has left is there again, and is missed when its session is over.
    world.leave(&[(&members[1], None)]);
    world.restart();
    assert_eq!(world.heartbeat(&members[1], generation), 0);
}

#[test]
fn a_copy_that_does_not_know_who_has_left_takes_nobody_for_all() {
    let mut world = World::new();
    let (members, generation) = world.stable(3);
    world.leave(&[(&members[1], None)]);
    world.journal.copy(&world.coordinator);
    world.restart();
    for other in [&members[0], &members[2]] {
        assert_eq!(world.heartbeat(other, generation), Code::UnknownMemberId.code(), "nobody has what the third had");
    }
    let (_, next) = world.stable(2);
    assert!(next > generation);
}

#[test]
fn a_group_that_was_left_stays_empty() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 7)]));
    world.leave(&[(&members[0], None), (&members[1], None)]);
    world.restart();
    // It is there, for its offsets.
    assert_eq!(world.offsets(), [("orders".to_owned(), 0, 7)]);
    assert!(world.coordinator.groups().all(|group| group.is_empty()));
    assert_eq!(world.heartbeat(&members[0], generation), Code::UnknownMemberId.code());
}

#[test]
fn who_took_the_place_of_another_has_it_still() {
    let mut world = World::new();
    let old = alone(&mut world);
    let token = world.join(9, &join_with("", Some("a"), &["range"]));
    let joined = world.take(token).expect("at once");
    assert!(joined.after.is_some(), "nobody hears of the id before it is recorded");
    let crate::groups::Answer::Join(joined) = joined.answer else { panic!("{joined:?}") };
    world.restart();
    assert_eq!(kept(&world).len(), 1);
    assert_eq!(world.static_heartbeat(&joined.member_id, Some("a"), 1), 0);
    assert_eq!(world.static_heartbeat(&old, Some("a"), 1), Code::FencedInstanceId.code());
}

#[test]
fn nobody_gets_the_place_of_another_while_that_cannot_be_recorded() {
    let mut world = World::new();
    let old = alone(&mut world);
    let before = kept(&world);
    for restarts in [false, true] {
        world.journal.0.lock().is_full = true;
        let token = world.join(9, &join_with("", Some("a"), &["range", "sticky"]));
        let refused = world.take_join(token).expect("at once");
        assert_eq!((refused.error_code, &*refused.member_id), (Code::CoordinatorNotAvailable.code(), ""));
        world.journal.0.lock().is_full = false;
        if restarts {
            world.restart();
        }
        // Whoever has the place has it still, as it was.
        assert_eq!(kept(&world), before);
        assert_eq!(world.static_heartbeat(&old, Some("a"), 1), 0);
    }
    let token = world.join(9, &join_with("", Some("a"), &["range", "sticky"]));
    let joined = world.take_join(token).expect("at once");
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    let token = world.sync(&sync(&joined.member_id, 1, &[]));
    assert_eq!(&world.take_sync(token).expect("at once").assignment[..], b"part");
    world.restart();
    assert_eq!(world.static_heartbeat(&joined.member_id, Some("a"), 1), 0);
    assert_eq!(world.static_heartbeat(&old, Some("a"), 1), Code::FencedInstanceId.code());
}

#[test]
fn nothing_is_kept_that_others_would_not_understand_or_that_cannot_be_recorded() {
    for fails in [false, true] {
        let mut world = World::new();
        world.journal.0.lock().is_older = !fails;
        if fails {
            let (id, token) = world.join_new();
            world.pass(3_000);
            assert!(world.take_join(token).is_some());
            world.journal.0.lock().is_full = true;
            let token = world.sync(&sync(&id, 1, &[(&id, b"part")]));
            assert_eq!(&world.take_sync(token).expect("all the same").assignment[..], b"part");
            world.journal.0.lock().is_full = false;
        } else {
            world.stable(2);
        }
        let told = world.journal.0.lock().entries.clone();
        assert!(told.iter().all(|entry| !matches!(entry.fact, Fact::Member(..))));
        world.restart();
        assert!(world.coordinator.groups().all(|group| group.is_empty()));
    }
}

#[test]
fn a_generation_of_which_a_member_is_missing_is_not_taken_for_whole() {
    let mut world = World::new();
    let (members, generation) = world.stable(3);
    let mut left = 2;
    world.journal.0.lock().entries.retain(|entry| {
        let is_member = matches!(entry.fact, Fact::Member(..));
        left -= usize::from(is_member && left > 0);
        !is_member || left > 0
    });
    world.restart();
    assert_eq!(world.heartbeat(&members[0], generation), Code::UnknownMemberId.code());
}

#[test]
fn a_copy_of_everything_has_the_members_too() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    world.commit(&commit(&members[0], generation, &[("orders", 0, 7)]));
    world.beat(&beat("one", 0, &["orders"], &[]).with_group_id(kafka_protocol::messages::GroupId(text("other"))));
    let before = kept(&world);
    assert_eq!(before.len(), 3);
    world.journal.copy(&world.coordinator);
    world.restart();
    assert_eq!(kept(&world), before);
    assert_eq!(world.heartbeat(&members[0], generation), 0);
}

#[test]
fn a_large_generation_is_recorded_in_pieces() {
    let config = GroupConfig { member_bytes_max: 1 << 20, ..GroupConfig::default() };
    let mut world = World::with(config);
    let big = vec![7_u8; 400 << 10];
    let joined: Vec<_> = (0..8).map(|_| world.join_new()).collect();
    world.pass(6_000);
    let ids: Vec<String> = joined.iter().map(|(id, _)| id.clone()).collect();
    let leader = joined.iter().find_map(|(_, token)| world.take_join(*token)).expect("joined").leader.to_string();
    let assignments: Vec<_> = ids.iter().map(|id| (&id[..], &big[..])).collect();
    let token = world.sync(&sync(&leader, 1, &assignments));
    assert_eq!(world.take_sync(token).map(|synced| synced.assignment.len()), Some(big.len()));
    let before = kept(&world);
    world.restart();
    assert_eq!((kept(&world).len(), kept(&world) == before), (8, true));
    assert_eq!(world.heartbeat(&ids[7], 1), 0);
}

/// What a member is told: its epoch, and how many partitions if that is said.
fn told(response: &ConsumerGroupHeartbeatResponse) -> (i16, i32, Option<usize>) {
    let given = response.assignment.as_ref();
    let count = given.map(|given| given.topic_partitions.iter().map(|topic| topic.partitions.len()).sum());
    (response.error_code, response.member_epoch, count)
}

fn owned(response: &ConsumerGroupHeartbeatResponse) -> Vec<(Uuid, Vec<i32>)> {
    let given = response.assignment.as_ref().expect("an assignment");
    given.topic_partitions.iter().map(|topic| (topic.topic_id, topic.partitions.clone())).collect()
}

/// Two members of a consumer group that have two partitions each, in epoch 2: what they have.
fn two(world: &mut World) -> [Vec<(Uuid, Vec<i32>)>; 2] {
    let all = owned(&world.beat(&beat("one", 0, &["orders"], &[])));
    world.beat(&beat("two", 0, &["orders"], &[]));
    let less = owned(&world.beat(&beat("one", 1, &["orders"], &all)));
    assert_eq!(told(&world.beat(&beat("one", 1, &["orders"], &less))).1, 2);
    let rest = owned(&world.beat(&beat("two", 2, &["orders"], &[])));
    [less, rest]
}

/// A heartbeat that only says that somebody is there.
fn alive(world: &mut World, id: &str, epoch: i32) -> (i16, i32, Option<usize>) {
    let request = beat(id, epoch, &[], &[]).with_rebalance_timeout_ms(-1);
    told(&world.beat(&request.with_subscribed_topic_names(None).with_topic_partitions(None)))
}

#[test]
fn members_of_a_consumer_group_go_on_with_their_epochs_and_partitions() {
    let mut world = World::new();
    let has = two(&mut world);
    let before = kept(&world);
    for _ in 0..2 {
        world.restart();
        assert_eq!(kept(&world), before);
        for id in ["one", "two"] {
            assert_eq!(alive(&mut world, id, 2), (0, 2, None), "nothing has changed for {id}");
            assert_eq!(world.commit(&commit(id, 2, &[("orders", 0, 7)])).0, [0]);
        }
    }
    assert_eq!(told(&world.beat(&beat("two", 2, &["orders"], &has[1]))), (0, 2, Some(2)));
    // Who does not come back is missed when a session is over, and the other one gets what it had.
    world.restart();
    world.pass(44_000);
    assert_eq!(alive(&mut world, "one", 2), (0, 2, None));
    world.pass(2_000);
    assert_eq!(alive(&mut world, "one", 2), (0, 3, Some(4)));
    assert_eq!(alive(&mut world, "two", 2).0, Code::UnknownMemberId.code());
}

#[test]
fn what_a_member_still_has_to_give_back_nobody_gets_after_a_restart() {
    let mut world = World::new();
    let all = owned(&world.beat(&beat("one", 0, &["orders"], &[])));
    world.beat(&beat("two", 0, &["orders"], &[]));
    let less = owned(&world.beat(&beat("one", 1, &["orders"], &all)));
    world.restart();
    // `one` has been told to give back and has not said that it did.
    for _ in 0..3 {
        let epochs = ["one", "two"].map(|id| world_epoch(&world, id));
        assert_eq!(told(&world.beat(&beat("one", epochs[0], &["orders"], &all))).0, 0);
        let second = world.beat(&beat("two", epochs[1], &["orders"], &[]));
        assert_eq!(second.error_code, 0);
        assert!(second.assignment.is_none_or(|given| given.topic_partitions.is_empty()));
        world.restart();
    }
    let mut second = ConsumerGroupHeartbeatResponse::default();
    for _ in 0..4 {
        world.beat(&beat("one", world_epoch(&world, "one"), &["orders"], &less));
        let told = world.beat(&beat("two", world_epoch(&world, "two"), &["orders"], &[]));
        second = if told.assignment.is_some() { told } else { second };
    }
    assert_eq!(told(&second).2, Some(2));
}

fn world_epoch(world: &World, id: &str) -> i32 {
    let all = kept(world);
    let member = &all.iter().find(|(known, _)| known == id).expect("a member").1;
    let kera_format::kafka_members::MemberPart::Consumer(part) = &member.part else { panic!("{member:?}") };
    part.epoch
}

#[test]
fn a_topic_that_has_grown_meanwhile_is_shared_anew() {
    let mut world = World::new();
    two(&mut world);
    world.topics.set("orders", 6);
    world.restart();
    assert_eq!(alive(&mut world, "one", 2), (0, 3, Some(3)));
    assert_eq!(alive(&mut world, "two", 2), (0, 3, Some(3)));
}

#[test]
fn a_member_that_left_and_one_that_is_away_are_so_after_a_restart() {
    let mut world = World::new();
    let named = |id: &str, epoch| beat(id, epoch, &["orders"], &[]).with_instance_id(Some(text("place")));
    world.beat(&named("first", 0));
    assert_eq!(world.beat(&named("first", -2)).error_code, 0);
    world.restart();
    let second = world.beat(&named("second", 0));
    assert_eq!(told(&second).2, Some(4), "it has the place of the one that is away");
    world.restart();
    assert_eq!(world.beat(&named("first", 1)).error_code, Code::FencedInstanceId.code());
    assert_eq!(world.beat(&named("second", second.member_epoch)).error_code, 0);
    assert_eq!(world.beat(&named("second", -1)).error_code, 0);
    world.restart();
    assert!(world.coordinator.groups().all(|group| group.is_empty()));
}

#[test]
fn members_that_cannot_all_be_right_join_again() {
    let mut world = World::new();
    two(&mut world);
    // A record that was lost, and another that says that the partitions are with somebody else as well.
    let mut entries = world.journal.0.lock().entries.clone();
    let of_one = entries.iter().rev().find_map(|entry| match &entry.fact {
        Fact::Member(id, Some(state)) if id == "one" => Some((entry.group.clone(), state.clone())),
        _ => None,
    });
    let (group, state) = of_one.expect("it was recorded");
    entries.push(kera_format::kafka_groups::Entry { group, fact: Fact::Member("three".into(), Some(state)) });
    world.journal.0.lock().entries = entries;
    world.restart();
    assert_eq!(alive(&mut world, "one", 2).0, Code::UnknownMemberId.code());
    assert_eq!(told(&world.beat(&beat("one", 0, &["orders"], &[]))).2, Some(4));
}

#[test]
fn members_are_recorded_when_all_nodes_understand_it() {
    let mut world = World::new();
    world.journal.0.lock().is_older = true;
    two(&mut world);
    world.journal.0.lock().is_older = false;
    assert_eq!(alive(&mut world, "one", 2), (0, 2, None));
    world.restart();
    assert_eq!(alive(&mut world, "two", 2), (0, 2, None));
}
