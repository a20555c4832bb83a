//! Members of classic groups with a name that outlives them.

use kafka_protocol::error::ResponseError as Code;

use crate::groups::testing::{World, join_with, sync};

/// A stable group of two members with names: their ids, leader first, with the names.
fn group(world: &mut World) -> Vec<(String, &'static str)> {
    let tokens = ["a", "b"].map(|name| (name, world.join(9, &join_with("", Some(name), &["range"]))));
    world.pass(6_000);
    let mut members = Vec::new();
    for (name, token) in tokens {
        let joined = world.take_join(token).expect("joined");
        assert_eq!((joined.error_code, joined.generation_id), (0, 1));
        let at = if joined.leader == joined.member_id { 0 } else { members.len() };
        members.insert(at, (joined.member_id.to_string(), name));
    }
    let leader = &members[0].0;
    let assignments: Vec<_> = members.iter().map(|(id, name)| (&id[..], name.as_bytes())).collect();
    for (id, name) in &members {
        let given = if id == leader { &assignments[..] } else { &[] };
        let token = world.sync(&sync(id, 1, given));
        assert_eq!(&world.take_sync(token).expect("synced").assignment[..], name.as_bytes());
    }
    members
}

#[test]
fn a_member_that_comes_back_has_its_place_and_nobody_else_notices() {
    for follower in [0, 1] {
        let mut world = World::new();
        let members = group(&mut world);
        let (old_id, name) = &members[follower];
        let token = world.join(9, &join_with("", Some(name), &["range"]));
        let joined = world.take_join(token).expect("joined at once");
        assert_eq!((joined.error_code, joined.generation_id), (0, 1));
        assert_ne!(*joined.member_id, **old_id);
        assert!(joined.member_id.starts_with(&format!("{name}-")));
        // The leader is told who is there, and that it has nothing to do.
        assert_eq!(joined.skip_assignment, follower == 0);
        assert_eq!(joined.members.len(), if follower == 0 { 2 } else { 0 });
        let token = world.sync(&sync(&joined.member_id, 1, &[]));
        assert_eq!(&world.take_sync(token).expect("synced").assignment[..], name.as_bytes());
        let (other, other_name) = &members[1 - follower];
        assert_eq!(world.static_heartbeat(other, Some(other_name), 1), 0);
        // Whoever had the name is fenced.
        assert_eq!(world.static_heartbeat(old_id, Some(name), 1), Code::FencedInstanceId.code());
        let token = world.join(9, &join_with(old_id, Some(name), &["range"]));
        assert_eq!(world.take_join(token).expect("refused").error_code, Code::FencedInstanceId.code());
        let token = world.sync(&sync(old_id, 1, &[]).with_group_instance_id(Some(crate::groups::group::text(name))));
        assert_eq!(world.take_sync(token).expect("refused").error_code, Code::FencedInstanceId.code());
    }
}

#[test]
fn an_old_leader_that_comes_back_does_not_learn_that_it_leads() {
    let mut world = World::new();
    let members = group(&mut world);
    let (old_id, name) = &members[0];
    let token = world.join(8, &join_with("", Some(name), &["range"]));
    let joined = world.take_join(token).expect("joined at once");
    assert_eq!((&*joined.leader, joined.members.len(), joined.skip_assignment), (&**old_id, 0, false));
}

#[test]
fn a_member_that_comes_back_with_another_protocol_makes_a_rebalance() {
    let mut world = World::new();
    let tokens = ["a", "b"].map(|name| world.join(9, &join_with("", Some(name), &["range", "sticky"])));
    world.pass(6_000);
    let ids = tokens.map(|token| world.take_join(token).expect("joined").member_id);
    let leader = ids.iter().min().expect("two").clone();
    let token = world.sync(&sync(&leader, 1, &[]));
    world.take_sync(token);
    for id in &ids {
        let token = world.sync(&sync(id, 1, &[]));
        assert_eq!(world.take_sync(token).map(|synced| synced.error_code), Some(0));
    }
    let token = world.join(9, &join_with("", Some("b"), &["sticky"]));
    assert_eq!(world.take_join(token), None);
    assert_eq!(world.static_heartbeat(&ids[0], Some("a"), 1), Code::RebalanceInProgress.code());
    let other = world.join(9, &join_with(&ids[0], Some("a"), &["range", "sticky"]));
    for token in [token, other] {
        let joined = world.take_join(token).expect("joined");
        assert_eq!((joined.generation_id, joined.protocol_name.as_deref()), (2, Some("sticky")));
    }
}

#[test]
fn a_waiting_member_whose_name_is_taken_is_fenced() {
    let mut world = World::new();
    let first = world.join(9, &join_with("", Some("a"), &["range"]));
    let second = world.join(9, &join_with("", Some("a"), &["range"]));
    let fenced = world.take_join(first).expect("answered");
    assert_eq!(fenced.error_code, Code::FencedInstanceId.code());
    world.pass(6_000);
    assert_eq!(world.take_join(second).expect("joined").error_code, 0);
}

#[test]
fn members_with_names_are_waited_for_until_their_session_ends() {
    let mut world = World::new();
    let members = group(&mut world);
    // The leader joins anew; the other one is away. It stays a member of the next generation.
    let token =
        world.join(9, &join_with(&members[0].0, Some(members[0].1), &["range"]).with_session_timeout_ms(600_000));
    world.pass(5_000);
    assert_eq!(world.static_heartbeat(&members[1].0, Some(members[1].1), 1), Code::RebalanceInProgress.code());
    assert_eq!(world.take_join(token), None);
    world.pass(10_000);
    // Its session is over: nobody is missing any more.
    let joined = world.take_join(token).expect("joined");
    assert_eq!((joined.generation_id, joined.members.len()), (2, 1));
}

#[test]
fn a_member_leaves_by_its_name() {
    let mut world = World::new();
    let members = group(&mut world);
    let left = world.leave(&[("", Some("nobody")), ("", Some(members[1].1)), (&members[1].0, Some(members[1].1))]);
    let codes: Vec<i16> = left.members.iter().map(|member| member.error_code).collect();
    assert_eq!(codes, [Code::UnknownMemberId.code(), 0, Code::UnknownMemberId.code()]);
    let token = world.join(9, &join_with(&members[0].0, Some(members[0].1), &["range"]));
    assert_eq!(world.take_join(token).expect("alone").members.len(), 1);
}

#[test]
fn a_member_that_comes_back_before_it_has_its_assignment_still_has_to_ask_for_it() {
    let mut world = World::new();
    let tokens = ["a", "b"].map(|name| world.join(9, &join_with("", Some(name), &["range"])));
    world.pass(6_000);
    let [one, two] = tokens.map(|token| world.take_join(token).expect("joined").member_id.to_string());
    let (leader, name) = if one < two { (one, "b") } else { (two, "a") };
    let token = world.sync(&sync(&leader, 1, &[]));
    assert_eq!(world.take_sync(token).map(|synced| synced.error_code), Some(0));
    let token = world.join(9, &join_with("", Some(name), &["range"]));
    let back = world.take_join(token).expect("joined at once").member_id.to_string();
    for _ in 0..7 {
        world.pass(9_000);
        world.heartbeat(&back, 1);
        world.heartbeat(&leader, 1);
    }
    assert_eq!(world.heartbeat(&back, 1), Code::UnknownMemberId.code());
}
