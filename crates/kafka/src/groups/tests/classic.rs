//! Classic groups: joining, generations, assignments, leaving, silence.

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::{GroupId, JoinGroupRequest, LeaveGroupRequest};

use crate::groups::group::{Kind, text};
use crate::groups::testing::{World, caller, join, join_with, sync};
use crate::groups::{Answer, Coordinator, GroupConfig};

fn join_error(world: &mut World, version: i16, request: &JoinGroupRequest) -> i16 {
    let token = world.join(version, request);
    world.take_join(token).expect("refused at once").error_code
}

#[test]
fn a_first_member_is_given_an_id_and_leads_after_the_delay() {
    let mut world = World::new();
    let first = world.join(9, &join(""));
    let first = world.take_join(first).expect("refused at once");
    assert_eq!(first.error_code, Code::MemberIdRequired.code());
    assert!(first.member_id.starts_with("client-") && first.member_id.len() == "client-".len() + 36);
    let token = world.join(9, &join(&first.member_id));
    world.pass(2_999);
    assert_eq!(world.take_join(token), None);
    world.pass(1);
    let joined = world.take_join(token).expect("joined");
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((&*joined.leader, &*joined.member_id), (&*first.member_id, &*first.member_id));
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    assert_eq!(joined.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(joined.members[0].metadata[8..14], *b"orders");
}

#[test]
fn old_clients_join_without_an_id() {
    for version in 0..4 {
        let mut world = World::new();
        let token = world.join(version, &join("").with_rebalance_timeout_ms(-1));
        world.pass(3_000);
        assert_eq!(world.take_join(token).expect("joined").error_code, 0);
    }
}

#[test]
fn the_first_generation_waits_for_those_that_come_but_not_longer_than_a_rebalance() {
    let mut world = World::new();
    let mut tokens = Vec::new();
    // Somebody comes in each delay, for longer than the rebalance timeout.
    for _ in 0..30 {
        tokens.push(world.join_new().1);
        world.pass(2_500);
        if world.done.contains_key(&tokens[0]) {
            break;
        }
    }
    let waited_ms = world.now.mono_ms - 1_000;
    assert!((60_000..=65_000).contains(&waited_ms), "{waited_ms}");
    let leaders: Vec<_> =
        tokens.iter().filter_map(|token| world.take_join(*token)).map(|joined| joined.leader).collect();
    assert!(leaders.len() >= 24 && leaders.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn followers_wait_for_the_leader_and_each_gets_its_own_assignment() {
    let mut world = World::new();
    let (one, two) = (world.join_new(), world.join_new());
    world.pass(6_000);
    let joined = [world.take_join(one.1).expect("joined"), world.take_join(two.1).expect("joined")];
    let (leader, follower) = if *joined[0].leader == *one.0 { (&one.0, &two.0) } else { (&two.0, &one.0) };
    let told: Vec<usize> = joined.iter().map(|joined| joined.members.len()).collect();
    assert_eq!(told.iter().sum::<usize>(), 2, "only the leader hears of the members");
    let waiting = world.sync(&sync(follower, 1, &[]));
    assert_eq!(world.take_sync(waiting), None);
    assert_eq!(world.heartbeat(follower, 1), 0);
    let led = world.sync(&sync(leader, 1, &[(leader, b"L"), (follower, b"F"), ("nobody", b"N")]));
    assert_eq!(&world.take_sync(led).expect("synced").assignment[..], b"L");
    let synced = world.take_sync(waiting).expect("synced");
    assert_eq!((&synced.assignment[..], synced.protocol_name.as_deref()), (&b"F"[..], Some("range")));
    // Asking again tells the same.
    let again = world.sync(&sync(follower, 1, &[]));
    assert_eq!(&world.take_sync(again).expect("synced").assignment[..], b"F");
}

#[test]
fn one_more_member_brings_everybody_into_the_next_generation() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    let (new, token) = world.join_new();
    assert_eq!(world.heartbeat(&members[0], generation), Code::RebalanceInProgress.code());
    let tokens: Vec<u64> = members.iter().map(|id| world.join(9, &join(id))).collect();
    let joined = world.take_join(token).expect("all are there");
    assert_eq!((joined.error_code, joined.generation_id, &*joined.member_id), (0, generation + 1, &*new));
    for token in tokens {
        assert_eq!(world.take_join(token).expect("joined").generation_id, generation + 1);
    }
    assert_eq!(world.heartbeat(&members[0], generation), Code::IllegalGeneration.code());
    assert_eq!(world.heartbeat(&members[0], generation + 1), 0);
}

#[test]
fn who_does_not_join_again_in_time_is_no_member_any_more() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    let (_, token) = world.join_new();
    let stays = world.join(9, &join(&members[1]));
    // The leader says that it is alive, and does not join.
    for _ in 0..12 {
        assert_eq!(world.take_join(token), None);
        assert_eq!(world.heartbeat(&members[0], generation), Code::RebalanceInProgress.code());
        world.pass(5_000);
    }
    let joined = [world.take_join(token).expect("joined"), world.take_join(stays).expect("joined")];
    assert!(joined.iter().all(|joined| *joined.leader != *members[0]));
    assert_eq!(joined.iter().map(|joined| joined.members.len()).sum::<usize>(), 2);
    assert_eq!(world.heartbeat(&members[0], generation + 1), Code::UnknownMemberId.code());
}

#[test]
fn a_silent_member_is_lost_after_its_session() {
    let mut world = World::new();
    let (members, generation) = world.stable(2);
    world.pass(9_000);
    assert_eq!(world.heartbeat(&members[0], generation), 0);
    world.pass(2_000);
    assert_eq!(world.heartbeat(&members[0], generation), Code::RebalanceInProgress.code());
    let token = world.join(9, &join(&members[0]));
    let joined = world.take_join(token).expect("nobody else is there");
    assert_eq!((joined.generation_id, joined.members.len()), (generation + 1, 1));
    world.pass(10_000);
    assert_eq!(world.heartbeat(&members[0], generation + 1), Code::UnknownMemberId.code());
    assert_eq!(world.coordinator.next_deadline_ms(), Some(601_000), "nothing is left to wait for but the sweep");
}

#[test]
fn waiting_members_are_not_silent() {
    let mut world = World::new();
    let (members, _) = world.stable(2);
    let waits = world.join(9, &join(&members[0]).with_session_timeout_ms(6_000));
    assert_eq!(world.take_join(waits), None);
    // The other one keeps alive, and joins late.
    for _ in 0..5 {
        world.pass(8_000);
        world.heartbeat(&members[1], 1);
    }
    let last = world.join(9, &join(&members[1]));
    assert!(world.take_join(last).is_some());
    assert_eq!(world.take_join(waits).expect("still a member").error_code, 0);
}

#[test]
fn who_does_not_sync_in_time_is_thrown_out() {
    let mut world = World::new();
    let (one, two) = (world.join_new(), world.join_new());
    world.pass(6_000);
    let joined = world.take_join(one.1).expect("joined");
    let (leader, follower) = if *joined.leader == *one.0 { (one.0, two.0) } else { (two.0, one.0) };
    let waiting = world.sync(&sync(&follower, 1, &[]));
    // The leader says that it is alive, and does not assign.
    for _ in 0..6 {
        world.pass(9_000);
        assert_eq!(world.heartbeat(&leader, 1), 0);
    }
    assert_eq!(world.take_sync(waiting), None);
    world.pass(6_000);
    assert_eq!(world.take_sync(waiting).expect("answered").error_code, Code::RebalanceInProgress.code());
    assert_eq!(world.heartbeat(&leader, 1), Code::UnknownMemberId.code());
    let token = world.join(9, &join(&follower));
    assert_eq!(&*world.take_join(token).expect("joined").leader, &*follower);
}

#[test]
fn members_that_leave_are_told_one_by_one() {
    let mut world = World::new();
    let (members, generation) = world.stable(3);
    let left = world.leave(&[(&members[0], None), ("nobody", None), (&members[1], Some("unknown"))]);
    let codes: Vec<i16> = left.members.iter().map(|member| member.error_code).collect();
    assert_eq!(codes, [0, Code::UnknownMemberId.code(), Code::UnknownMemberId.code()]);
    assert_eq!(left.error_code, 0);
    assert_eq!(world.heartbeat(&members[1], generation), Code::RebalanceInProgress.code());
    assert_eq!(world.heartbeat(&members[0], generation), Code::UnknownMemberId.code());
}

#[test]
fn an_old_client_leaves_and_its_join_is_answered() {
    let mut world = World::new();
    let (id, token) = world.join_new();
    let request = LeaveGroupRequest::default().with_group_id(GroupId(text("group"))).with_member_id(text(&id));
    let leave = |world: &mut World| match world
        .ask(|coordinator, now, token| coordinator.leave(now, token, &caller(2), &request))
        .answer
    {
        Answer::Leave(response) => response.error_code,
        other => panic!("{other:?}"),
    };
    assert_eq!(leave(&mut world), 0);
    assert_eq!(world.take_join(token).expect("answered").error_code, Code::UnknownMemberId.code());
    assert_eq!(leave(&mut world), Code::UnknownMemberId.code());
}

#[test]
fn the_protocol_with_most_votes_wins_among_those_that_all_support() {
    let mut world = World::new();
    let wishes: [&[&str]; 3] = [&["only", "b", "a"], &["b", "a"], &["a", "b"]];
    let tokens: Vec<u64> = wishes.map(|wish| world.join(3, &join_with("", None, wish))).to_vec();
    world.pass(6_000);
    for token in tokens {
        assert_eq!(world.take_join(token).expect("joined").protocol_name.as_deref(), Some("b"));
    }
    let different = join_error(&mut world, 9, &join_with("", None, &["only"]));
    assert_eq!(different, Code::InconsistentGroupProtocol.code());
    let another = join_with("", None, &["b"]).with_protocol_type(text("connect"));
    assert_eq!(join_error(&mut world, 9, &another), Code::InconsistentGroupProtocol.code());
}

#[test]
fn requests_that_make_no_sense_get_kafkas_errors() {
    let mut world = World::new();
    let session = |ms| join("").with_session_timeout_ms(ms);
    for (request, code) in [
        (session(5_999), Code::InvalidSessionTimeout),
        (session(1_800_001), Code::InvalidSessionTimeout),
        (join("").with_group_id(GroupId(text(""))), Code::InvalidGroupId),
        (join("").with_group_id(GroupId(text(&"g".repeat(1_025)))), Code::InvalidGroupId),
        (join("nobody"), Code::UnknownMemberId),
        (join_with("", None, &[]), Code::InconsistentGroupProtocol),
        (join("").with_protocol_type(text("")), Code::InconsistentGroupProtocol),
        (join_with("", Some(""), &["range"]), Code::InvalidRequest),
    ] {
        assert_eq!(join_error(&mut world, 9, &request), code.code(), "{request:?}");
    }
    assert_eq!(world.coordinator.group_count(), 0, "a refused join leaves nothing behind");
    let token = world.sync(&sync("nobody", 1, &[]));
    assert_eq!(world.take_sync(token).expect("refused").error_code, Code::UnknownMemberId.code());
    assert_eq!(world.heartbeat("nobody", 1), Code::UnknownMemberId.code());
    let (members, generation) = world.stable(1);
    let refused = |world: &mut World, request| {
        let token = world.sync(&request);
        world.take_sync(token).expect("refused").error_code
    };
    assert_eq!(refused(&mut world, sync(&members[0], generation + 1, &[])), Code::IllegalGeneration.code());
    let other = sync(&members[0], generation, &[]).with_protocol_name(Some(text("other")));
    assert_eq!(refused(&mut world, other), Code::InconsistentGroupProtocol.code());
}

#[test]
fn a_group_has_its_most_members_and_takes_no_more() {
    let mut world = World::with(GroupConfig { members_max: 2, ..GroupConfig::default() });
    let (members, _) = world.stable(2);
    assert_eq!(join_error(&mut world, 9, &join("")), Code::GroupMaxSizeReached.code());
    assert_eq!(join_error(&mut world, 9, &join("unknown")), Code::GroupMaxSizeReached.code());
    let again = world.join(9, &join(&members[0]));
    let last = world.join(9, &join(&members[1]));
    assert_eq!(world.take_join(again).map(|joined| joined.error_code), Some(0));
    assert_eq!(world.take_join(last).map(|joined| joined.error_code), Some(0));
}

#[test]
fn ids_that_nobody_comes_back_with_are_bounded_and_forgotten() {
    let mut world = World::with(GroupConfig { members_max: 3, ..GroupConfig::default() });
    for _ in 0..3 {
        assert_eq!(join_error(&mut world, 9, &join("")), Code::MemberIdRequired.code());
    }
    assert_eq!(join_error(&mut world, 9, &join("")), Code::GroupMaxSizeReached.code());
    world.pass(10_000);
    assert_eq!(world.coordinator.group_count(), 0);
}

#[test]
fn groups_and_bytes_are_bounded() {
    // One member has room with what it gives, and no other one.
    let config =
        GroupConfig { groups_max: 1, members_bytes_max: 1_000, member_bytes_max: 60, ..GroupConfig::default() };
    let mut world = World::with(config);
    let small = |id: &str, bytes: usize| {
        let mut request = join(id);
        request.protocols[0].metadata = vec![7; bytes].into();
        request
    };
    let token = world.join(3, &small("", 50));
    assert_eq!(join_error(&mut world, 3, &small("", 61)), Code::PolicyViolation.code());
    assert_eq!(join_error(&mut world, 3, &small("", 50)), Code::PolicyViolation.code());
    let other = small("", 1).with_group_id(GroupId(text("other")));
    assert_eq!(join_error(&mut world, 3, &other), Code::PolicyViolation.code());
    world.pass(3_000);
    let member = world.take_join(token).expect("joined").member_id;
    let large = vec![0; 61];
    let token = world.sync(&sync(&member, 1, &[(&member, &large)]));
    assert_eq!(world.take_sync(token).expect("refused").error_code, Code::PolicyViolation.code());
    world.pass(20_000);
    assert_eq!(world.heartbeat(&member, 1), Code::UnknownMemberId.code());
    let token = world.join(3, &small("", 50));
    world.pass(3_000);
    assert_eq!(world.take_join(token).expect("what the lost member had is free").error_code, 0);
}

#[test]
fn promised_ids_of_all_groups_are_bounded_and_forgotten() {
    let mut world = World::with(GroupConfig { members_bytes_max: 1 << 20, ..GroupConfig::default() });
    let first = |world: &mut World, at: usize| {
        let request = join("").with_group_id(GroupId(text(&format!("group-{at}"))));
        join_error(world, 9, &request)
    };
    let count =
        (0..10_000).find(|at| first(&mut world, *at) != Code::MemberIdRequired.code()).expect("there is an end");
    assert!(count > 1_000, "{count}");
    assert_eq!(first(&mut world, count), Code::PolicyViolation.code());
    assert_eq!(world.coordinator.group_count(), count);
    world.pass(10_000);
    assert_eq!(world.coordinator.group_count(), 0);
    assert_eq!(first(&mut world, 0), Code::MemberIdRequired.code());
}

#[test]
fn topics_that_members_name_take_no_more_memory_than_there_is() {
    const BYTES_MAX: usize = 64 << 10;
    let mut world = World::with(GroupConfig { members_bytes_max: BYTES_MAX, ..GroupConfig::default() });
    let mut told = Vec::from(*b"\0\0\0\0\x07\xd0");
    (0..2_000).for_each(|at| told.extend(format!("\0\x05t{at:04}").bytes()));
    told.extend([0xff; 4]);
    let mut request = join("");
    request.protocols[0].metadata = told.into();
    let token = world.join(3, &request);
    world.pass(3_000);
    let joined = world.take_join(token).expect("joined");
    assert_eq!(joined.error_code, 0);
    let token = world.sync(&sync(&joined.member_id, 1, &[(&joined.member_id, b"part")]));
    assert_eq!(world.take_sync(token).expect("synced").error_code, 0);
    for restarts in [false, true] {
        if restarts {
            world.restart();
        }
        assert_eq!(world.heartbeat(&joined.member_id, 1), 0);
        let group = world.coordinator.groups().next().expect("it is there");
        assert!(group.head.member_bytes <= BYTES_MAX, "{}", group.head.member_bytes);
        let Kind::Classic(classic) = &group.kind else { panic!("{:?}", group.kind) };
        assert!(classic.is_subscribed("orders"), "nobody knows that it does not read it");
    }
}

#[test]
fn who_is_a_member_joins_again_however_little_memory_is_left() {
    // One member has room, and with it nobody else.
    let mut world = World::with(GroupConfig { members_bytes_max: 1_400, ..GroupConfig::default() });
    let (id, token) = world.join_new();
    world.pass(6_000);
    assert_eq!(world.take_join(token).expect("joined").error_code, 0);
    assert_eq!(join_error(&mut world, 9, &join("")), Code::PolicyViolation.code());
    let token = world.join(9, &join(&id));
    assert_eq!(world.take_join(token).expect("the same again").error_code, 0);
}

#[test]
fn a_second_join_of_the_same_member_ends_the_first() {
    let mut world = World::new();
    let (id, first) = world.join_new();
    let second = world.join(9, &join(&id));
    assert_eq!(world.take_join(first).expect("answered").error_code, Code::RebalanceInProgress.code());
    world.pass(3_000);
    let joined = world.take_join(second).expect("joined");
    // The answer was lost: the same again, for it changed nothing.
    let third = world.join(9, &join(&id));
    assert_eq!(world.take_join(third), Some(joined));
}

#[test]
fn a_generation_that_cannot_be_recorded_is_told_to_nobody() {
    let mut world = World::new();
    let (id, token) = world.join_new();
    world.journal.0.lock().is_full = true;
    world.pass(3_000);
    assert_eq!(world.take_join(token).expect("answered").error_code, Code::CoordinatorNotAvailable.code());
    let token = world.join(9, &join(&id));
    assert_eq!(world.take_join(token).expect("answered").error_code, Code::CoordinatorNotAvailable.code());
    world.journal.0.lock().is_full = false;
    let token = world.join(9, &join(&id));
    let joined = world.take_join(token).expect("joined");
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
}

#[test]
fn answers_about_a_generation_wait_for_its_record() {
    let mut world = World::new();
    let (_, token) = world.join_new();
    world.pass(3_000);
    let done = world.take(token).expect("joined");
    assert!(done.after.is_some());
}

#[test]
fn generations_go_on_after_a_restart_if_members_do_not() {
    let mut world = World::new();
    world.journal.0.lock().is_older = true;
    let (members, generation) = world.stable(2);
    world.restart();
    assert_eq!(world.heartbeat(&members[0], generation), Code::UnknownMemberId.code());
    assert_eq!(join_error(&mut world, 9, &join(&members[0])), Code::UnknownMemberId.code());
    let (_, next) = world.stable(2);
    assert!(next > generation);
}

#[test]
fn until_everything_is_read_nobody_is_served() {
    let mut world = World::new();
    let random = std::sync::Arc::new(kera_env::SeededRandom::new(1));
    world.coordinator =
        Coordinator::new(world.config.clone(), Box::new(world.journal.clone()), world.topics.clone(), random);
    let loading = Code::CoordinatorLoadInProgress.code();
    assert_eq!(join_error(&mut world, 9, &join("")), loading);
    let token = world.sync(&sync("nobody", 1, &[]));
    assert_eq!(world.take_sync(token).expect("refused").error_code, loading);
    // Whoever was a member should not run away because of it.
    assert_eq!(world.heartbeat("nobody", 1), 0);
    world.pass(1_000_000);
}
