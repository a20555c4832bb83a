//! Groups that change between the classic and the consumer protocol while they have members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::consumer_protocol_subscription::TopicPartition;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerProtocolSubscription, JoinGroupRequest, JoinGroupResponse, ListGroupsRequest,
    SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::Encodable;
use kera_format::kafka_members::{MemberPart, MemberState};
use proptest::prelude::*;
use uuid::Uuid;

use crate::groups::embedded::{self, Named};
use crate::groups::group::text;
use crate::groups::testing::{GROUP, World, beat, caller, commit, fetch, group, join, sync};
use crate::groups::{Answer, Topics};

/// A client of the classic protocol that reads `orders`.
#[derive(Clone, Debug, Default)]
struct Classic {
    id: String,
    instance: Option<String>,
    generation: i32,
    owned: Vec<i32>,
    /// Keeps what it has while it joins again; else it gives everything back first.
    is_cooperative: bool,
    leads: bool,
    /// Whom it leads, and what they have.
    others: Vec<(String, Named)>,
    joins: Option<u64>,
    syncs: Option<u64>,
    /// Where it is.
    step: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum At {
    #[default]
    Joining,
    Syncing,
    Reading,
}

impl Classic {
    fn request(&self) -> JoinGroupRequest {
        let owned = TopicPartition::default().with_topic(TopicName(text("orders"))).with_partitions(self.owned.clone());
        let subscription = ConsumerProtocolSubscription::default()
            .with_topics(vec![text("orders")])
            .with_owned_partitions(if self.owned.is_empty() { Vec::new() } else { vec![owned] })
            .with_rack_id(Some(text("rack")));
        let mut told = Vec::from(3_i16.to_be_bytes());
        subscription.encode(&mut told, 3).expect("encodes");
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(told.into());
        join(&self.id).with_protocols(vec![protocol]).with_group_instance_id(self.instance.as_deref().map(text))
    }

    /// Does what a client does next. What it waits for it takes when it is there.
    fn poll(&mut self, world: &mut World) {
        match self.step {
            At::Joining => {
                if !self.is_cooperative {
                    self.owned.clear();
                }
                let request = self.request();
                let token = *self.joins.get_or_insert_with(|| world.join(9, &request));
                if let Some(response) = world.take_join(token) {
                    self.joins = None;
                    self.joined(&response);
                }
            }
            At::Syncing => {
                let assignments = self.assignments();
                let given: Vec<_> = assignments.iter().map(|(id, bytes)| (&id[..], &bytes[..])).collect();
                let mut request = sync(&self.id, self.generation, &given);
                request.group_instance_id = self.instance.as_deref().map(text);
                let token = *self.syncs.get_or_insert_with(|| world.sync(&request));
                if let Some(response) = world.take_sync(token) {
                    self.syncs = None;
                    self.synced(&response);
                }
            }
            At::Reading => {
                let code = world.static_heartbeat(&self.id, self.instance.as_deref(), self.generation);
                self.heard(code);
            }
        }
    }

    fn joined(&mut self, response: &JoinGroupResponse) {
        if response.error_code != 0 {
            if response.error_code == Code::MemberIdRequired.code() {
                self.id = response.member_id.to_string();
            } else {
                self.heard(response.error_code);
            }
            return;
        }
        self.id = response.member_id.to_string();
        self.generation = response.generation_id;
        self.leads = *response.leader == *self.id;
        let owned = |told: &Bytes| embedded::subscription(told).expect("a subscription").owned;
        self.others =
            (response.members.iter()).map(|member| (member.member_id.to_string(), owned(&member.metadata))).collect();
        self.step = At::Syncing;
    }

    fn synced(&mut self, response: &SyncGroupResponse) {
        if response.error_code != 0 {
            return self.heard(response.error_code);
        }
        let given = embedded::given(&response.assignment).expect("an assignment").partitions;
        let before = std::mem::take(&mut self.owned);
        self.owned = given.into_iter().flat_map(|(_, partitions)| partitions).collect();
        // Whoever keeps what it has joins again when it has given something back.
        let gives_back = before.iter().any(|partition| !self.owned.contains(partition));
        self.step = if self.is_cooperative && gives_back { At::Joining } else { At::Reading };
    }

    /// An error: what follows from it.
    fn heard(&mut self, code: i16) {
        let is = |known: Code| known.code() == code;
        if code == 0 || is(Code::CoordinatorNotAvailable) {
            return;
        }
        self.step = At::Joining;
        if !self.is_cooperative || !is(Code::RebalanceInProgress) {
            self.owned.clear();
        }
        if is(Code::UnknownMemberId) || is(Code::FencedInstanceId) {
            self.id.clear();
        }
    }

    /// What the leader gives to whom: nothing that another one has and must give back first.
    fn assignments(&self) -> Vec<(String, Bytes)> {
        if !self.leads {
            return Vec::new();
        }
        let members = self.others.len() as i32;
        let has = |of: &Named, partition: i32| of.iter().any(|(_, of)| of.contains(&partition));
        let is_with_another =
            |id: &str, partition: i32| self.others.iter().any(|(other, owned)| other != id && has(owned, partition));
        let one = |(at, (id, _)): (usize, &(String, Named))| {
            let of = (0..4).filter(|partition| partition % members == at as i32 && !is_with_another(id, *partition));
            (id.clone(), embedded::assignment(b"\0\x01", &vec![("orders".to_owned(), of.collect())]))
        };
        self.others.iter().enumerate().map(one).collect()
    }
}

/// A client of the consumer protocol that reads `orders`.
#[derive(Clone, Debug, Default)]
struct Consumer {
    id: String,
    instance: Option<String>,
    epoch: i32,
    owned: Vec<(Uuid, Vec<i32>)>,
}

impl Consumer {
    fn new(id: &str) -> Consumer {
        Consumer { id: id.into(), ..Consumer::default() }
    }

    fn poll(&mut self, world: &mut World) -> i16 {
        let mut request = beat(&self.id, self.epoch, &["orders"], &self.owned);
        request.instance_id = self.instance.as_deref().map(text);
        let response = world.beat(&request);
        if response.error_code == 0 {
            self.epoch = response.member_epoch;
            if let Some(assigned) = response.assignment {
                self.owned = assigned.topic_partitions.iter().map(|of| (of.topic_id, of.partitions.clone())).collect();
            }
        } else if response.error_code != Code::CoordinatorNotAvailable.code() {
            self.epoch = 0;
            self.owned.clear();
        }
        response.error_code
    }

    fn leave(&mut self, world: &mut World, epoch: i32) -> i16 {
        let mut request = beat(&self.id, epoch, &[], &[]);
        request.instance_id = self.instance.as_deref().map(text);
        self.epoch = 0;
        self.owned.clear();
        world.beat(&request).error_code
    }

    fn owned(&self) -> Vec<i32> {
        self.owned.iter().flat_map(|(_, partitions)| partitions.iter().copied()).collect()
    }
}

/// A stable classic group: its members, each with what its leader gave it.
fn classic(world: &mut World, count: usize, is_cooperative: bool) -> Vec<Classic> {
    let mut members = vec![Classic { is_cooperative, ..Classic::default() }; count];
    for _ in 0..6 {
        members.iter_mut().for_each(|member| member.poll(world));
        world.pass(2_000);
    }
    assert!(members.iter().all(|member| member.step == At::Reading && member.owned.len() >= 4 / count));
    assert_eq!(distinct(&members, &[]), 4);
    members
}

/// Lets members do what they do until nothing changes any more. Never has one of them what another one has.
fn settle(world: &mut World, classic: &mut [Classic], consumers: &mut [Consumer]) {
    for _ in 0..12 {
        for at in 0..classic.len().max(consumers.len()) {
            if let Some(member) = classic.get_mut(at) {
                member.poll(world);
            }
            if let Some(member) = consumers.get_mut(at) {
                assert_eq!(member.poll(world), 0);
            }
            distinct(classic, consumers);
        }
        world.pass(500);
    }
    let count = distinct(classic, consumers);
    assert_eq!(count, 4, "somebody reads each partition");
}

fn distinct(classic: &[Classic], consumers: &[Consumer]) -> usize {
    let owned = classic.iter().flat_map(|member| member.owned.clone());
    let all: Vec<i32> = owned.chain(consumers.iter().flat_map(Consumer::owned)).collect();
    let distinct: BTreeSet<i32> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "{classic:?} {consumers:?}");
    all.len()
}

fn kind(world: &mut World) -> String {
    let request = ListGroupsRequest::default();
    let done = world.ask(|coordinator, now, token| coordinator.list(now, token, &caller(5), &request));
    let Answer::List(response) = done.answer else { panic!("{:?}", done.answer) };
    let listed = response.groups.iter().find(|listed| *listed.group_id.0 == *GROUP).expect("listed");
    assert_eq!(&*listed.protocol_type, "consumer");
    listed.group_type.to_string()
}

/// The kinds of the members of a consumer group, by their ids.
fn member_types(world: &mut World) -> BTreeMap<String, i8> {
    let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group()]);
    let done = world.ask(|coordinator, now, token| coordinator.consumer_describe(now, token, &caller(1), &request));
    let Answer::ConsumerDescribe(response) = done.answer else { panic!("{:?}", done.answer) };
    let members = response.groups[0].members.iter();
    members.map(|member| (member.member_id.to_string(), member.member_type)).collect()
}

fn kept(world: &World) -> Vec<(String, MemberState)> {
    world.coordinator.groups().flat_map(|group| group.kind.kept()).collect()
}

#[test]
fn a_group_is_rolled_to_the_consumer_protocol_and_back_while_it_reads() {
    for is_cooperative in [false, true] {
        let mut world = World::new();
        let mut old = classic(&mut world, 2, is_cooperative);
        let generation = old[0].generation;
        world.commit(&commit(&old[0].id, generation, &[("orders", 0, 7)]));

        let mut new = vec![Consumer::new("new-0")];
        assert_eq!(new[0].poll(&mut world), 0);
        assert_eq!((new[0].epoch, new[0].owned()), (generation + 1, vec![]), "nothing is free yet");
        assert_eq!(kind(&mut world), "consumer");
        // Who has not joined again reads on and commits.
        assert_eq!(world.commit(&commit(&old[0].id, generation, &[("orders", 0, 8)])).0, [0]);
        assert_eq!(world.heartbeat(&old[0].id, generation), Code::RebalanceInProgress.code());
        settle(&mut world, &mut old, &mut new);
        assert_eq!(old.iter().map(|member| member.generation).collect::<Vec<_>>(), [new[0].epoch; 2]);
        let types = member_types(&mut world);
        assert_eq!((types[&old[0].id], types[&old[1].id], types["new-0"]), (0, 0, 1));
        // What somebody commits counts in the epoch that it was told, and not in another.
        let illegal = Code::IllegalGeneration.code();
        assert_eq!(world.commit(&commit(&old[0].id, generation, &[("orders", 0, 9)])).0, [illegal]);
        assert_eq!(world.commit(&commit(&old[0].id, old[0].generation, &[("orders", 0, 10)])).0, [0]);

        // The others follow, one after the other.
        for at in 1..3 {
            let gone = old.remove(0);
            assert_eq!(world.leave(&[(&gone.id, None)]).members[0].error_code, 0);
            new.push(Consumer::new(&format!("new-{at}")));
            settle(&mut world, &mut old, &mut new);
        }
        assert_eq!(kind(&mut world), "consumer");
        assert_eq!(world.offsets(), [("orders".into(), 0, 10)]);

        // And back.
        let mut old = vec![Classic { is_cooperative, ..Classic::default() }];
        settle(&mut world, &mut old, &mut new);
        let epoch = new[0].epoch;
        while let Some(mut gone) = new.pop() {
            assert_eq!(gone.leave(&mut world, -1), 0);
            if new.is_empty() {
                assert_eq!(kind(&mut world), "classic");
                old.push(Classic { is_cooperative, ..Classic::default() });
            }
            settle(&mut world, &mut old, &mut new);
        }
        assert!(old.iter().all(|member| member.generation > epoch && member.owned.len() == 2), "{old:?}");
        assert_eq!(world.offsets(), [("orders".into(), 0, 10)]);
    }
}

#[test]
fn who_waits_in_a_classic_group_that_changes_is_asked_to_join_again() {
    let mut world = World::new();
    let mut old = classic(&mut world, 2, false);
    let is_asked = Code::RebalanceInProgress.code();
    // One joins again, the other one has not yet, and one is new.
    old[0].step = At::Joining;
    old[0].poll(&mut world);
    let (id, token) = world.join_new();
    let mut new = [Consumer::new("new")];
    new[0].poll(&mut world);
    let refused = world.take_join(old[0].joins.take().expect("waits")).expect("answered");
    assert_eq!((refused.error_code, &*refused.member_id), (is_asked, &old[0].id[..]));
    let refused = world.take_join(token).expect("answered");
    assert_eq!((refused.error_code, &*refused.member_id), (is_asked, &id[..]));
    old.push(Classic { id, ..Classic::default() });
    settle(&mut world, &mut old, &mut new);

    // While its leader assigns.
    let mut world = World::new();
    let mut old = classic(&mut world, 2, false);
    old.iter_mut().for_each(|member| member.step = At::Joining);
    (0..2).for_each(|_| old.iter_mut().for_each(|member| member.poll(&mut world)));
    let follower = usize::from(old[0].leads);
    let token = old[follower].syncs.take().expect("the leader has not assigned");
    assert!(world.take_sync(token).is_none());
    old.iter_mut().for_each(|member| member.syncs = None);
    let mut new = [Consumer::new("new")];
    new[0].poll(&mut world);
    assert_eq!(world.take_sync(token).map(|response| response.error_code), Some(is_asked));
    settle(&mut world, &mut old, &mut new);
}

#[test]
fn what_members_have_while_assignments_are_taken_back_is_not_given_to_others() {
    let mut world = World::new();
    let mut old = classic(&mut world, 2, true);
    let leader = usize::from(!old[0].leads);
    // All join again, and before the leader assigns another one comes: what they were given is taken back, and they have it.
    old.iter_mut().for_each(|member| member.step = At::Joining);
    for at in [1 - leader, leader, 1 - leader] {
        old[at].poll(&mut world);
    }
    let (_, _) = world.join_new();
    let mut new = [Consumer::new("new")];
    new[0].poll(&mut world);
    assert_eq!(new[0].owned(), [] as [i32; 0]);
    old.iter_mut().for_each(|member| (member.joins, member.syncs, member.step) = (None, None, At::Joining));
    settle(&mut world, &mut old, &mut new);
}

#[test]
fn a_member_that_is_refused_changes_nothing() {
    let mut world = World::new();
    let old = classic(&mut world, 2, false);
    let before = (kept(&world), world.coordinator.groups().next().map(|group| group.head.member_bytes));
    let mut request = beat("new", 0, &[], &[]);
    request.subscribed_topic_regex = Some(text("(orders"));
    assert_eq!(world.beat(&request).error_code, Code::InvalidRegularExpression.code());
    world.journal.0.lock().is_full = true;
    assert_eq!(world.beat(&beat("new", 0, &["orders"], &[])).error_code, Code::CoordinatorNotAvailable.code());
    world.journal.0.lock().is_full = false;
    world.journal.0.lock().is_before_changes = true;
    let refused = world.beat(&beat("new", 0, &["orders"], &[]));
    assert_eq!(refused.error_code, Code::GroupIdNotFound.code());
    // With an epoch it is nobody's.
    world.journal.0.lock().is_before_changes = false;
    assert_eq!(world.beat(&beat("new", 3, &["orders"], &[])).error_code, Code::GroupIdNotFound.code());
    assert_eq!(world.beat(&beat("new", -1, &[], &[])).error_code, Code::GroupIdNotFound.code());
    assert_eq!((kept(&world), world.coordinator.groups().next().map(|group| group.head.member_bytes)), before);
    assert_eq!(kind(&mut world), "classic");
    old.iter().for_each(|member| assert_eq!(world.heartbeat(&member.id, member.generation), 0));
}

#[test]
fn members_that_a_coordinator_cannot_assign_to_stay_among_themselves() {
    // An assignor that says more than partitions, as that of Kafka Streams; an assignment that is none; members that do not consume.
    let special = b"\0\x01\0\0\0\0\0\0\0\x05tasks";
    let cases: [(&str, &[u8]); 3] = [("consumer", special), ("consumer", b"\0\x01\0\0\0\x07"), ("connect", b"")];
    for (protocol_type, assignment) in cases {
        let mut world = World::new();
        let first = world.join(3, &join("").with_protocol_type(text(protocol_type)));
        world.pass(6_000);
        let id = world.take_join(first).expect("joined").member_id.to_string();
        let request = sync(&id, 1, &[(&id, assignment)]).with_protocol_type(Some(text(protocol_type)));
        let synced = world.sync(&request);
        assert_eq!(world.take_sync(synced).map(|response| response.error_code), Some(0));
        let refused = world.beat(&beat("new", 0, &["orders"], &[]));
        assert_eq!(refused.error_code, Code::GroupIdNotFound.code());
        assert!(refused.error_message.expect("told").contains("cannot become a consumer group"));
        assert_eq!(world.heartbeat(&id, 1), 0);
    }
}

#[test]
fn members_of_the_classic_protocol_that_do_not_fit_are_refused() {
    let mut world = World::new();
    let mut new = [Consumer::new("new")];
    new[0].poll(&mut world);
    let refused = |world: &mut World, request: &JoinGroupRequest| {
        let token = world.join(9, request);
        world.take_join(token).map(|response| response.error_code)
    };
    let inconsistent = Some(Code::InconsistentGroupProtocol.code());
    let named = |name: &str, told: &'static [u8]| {
        let protocol =
            JoinGroupRequestProtocol::default().with_name(text(name)).with_metadata(Bytes::from_static(told));
        join("one").with_protocols(vec![protocol])
    };
    assert_eq!(refused(&mut world, &join("one").with_protocol_type(text("connect"))), inconsistent);
    assert_eq!(refused(&mut world, &join("one").with_protocols(Vec::new())), inconsistent);
    assert_eq!(refused(&mut world, &named("range", b"\0\0\0\0\0\x01")), inconsistent);
    // They have to agree when they are alone.
    assert_eq!(refused(&mut world, &join("one")), Some(0));
    let two = named("roundrobin", b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff").with_member_id(text("two"));
    assert_eq!(refused(&mut world, &two), inconsistent);
    // A name that outlives its member, and is another one's or nobody's.
    let named = |id: &str| join(id).with_group_instance_id(Some(text("name")));
    assert_eq!(refused(&mut world, &named("three")), Some(Code::UnknownMemberId.code()));
    assert_eq!(refused(&mut world, &named("")), Some(0));
    assert_eq!(refused(&mut world, &named("three")), Some(Code::FencedInstanceId.code()));
    // Nobody syncs or is heard that is of the other kind, or in another epoch.
    assert_eq!(world.heartbeat("new", new[0].epoch), Code::UnknownMemberId.code());
    assert_eq!(world.heartbeat("one", 77), Code::IllegalGeneration.code());
    let token = world.sync(&sync("new", new[0].epoch, &[]));
    assert_eq!(world.take_sync(token).map(|response| response.error_code), Some(Code::UnknownMemberId.code()));
    let token = world.sync(&sync("one", 2, &[]).with_protocol_name(Some(text("roundrobin"))));
    assert_eq!(world.take_sync(token).map(|response| response.error_code), inconsistent);
    // Before all nodes know of it, nobody comes.
    world.journal.0.lock().is_before_changes = true;
    assert_eq!(refused(&mut world, &join("four")), inconsistent);
}

#[test]
fn a_silent_member_of_the_classic_protocol_has_its_own_session_and_a_rebalance_to_join_again() {
    let mut world = World::new();
    let mut old = classic(&mut world, 2, false);
    let mut new = [Consumer::new("new")];
    new[0].poll(&mut world);
    let members = |world: &mut World| member_types(world).len();
    // The session that they asked for is 10 s, that of consumers 45 s.
    world.pass(9_000);
    assert_eq!(world.heartbeat(&old[0].id, old[0].generation), Code::RebalanceInProgress.code());
    world.pass(1_000);
    assert_eq!(members(&mut world), 2);
    // It is heard of, and does not do what it is asked for: it has 60 s for that since it was asked.
    for _ in 0..7 {
        world.pass(8_000);
        new[0].poll(&mut world);
        assert_eq!(world.heartbeat(&old[0].id, old[0].generation), Code::RebalanceInProgress.code());
    }
    world.pass(4_000);
    assert_eq!(members(&mut world), 1);
    new[0].poll(&mut world);
    assert_eq!(new[0].owned().len(), 4);
    // Who joins and never asks for its assignment.
    old.truncate(1);
    old[0] = Classic::default();
    (0..2).for_each(|_| old[0].poll(&mut world));
    assert_eq!((old[0].step, members(&mut world)), (At::Syncing, 2));
    for _ in 0..7 {
        world.pass(9_000);
        new[0].poll(&mut world);
        world.heartbeat(&old[0].id, old[0].generation);
    }
    assert_eq!(members(&mut world), 1);
}

#[test]
fn a_static_member_takes_its_name_from_one_protocol_to_the_other() {
    let mut world = World::new();
    let mut old = [Classic { instance: Some("name".into()), ..Classic::default() }];
    (0..6).for_each(|_| {
        old[0].poll(&mut world);
        world.pass(2_000);
    });
    let had = old[0].owned.clone();
    assert_eq!(had.len(), 4);
    // It does not say that it goes: who comes under its name has its place, and what it had.
    let mut new = [Consumer { id: "new".into(), instance: Some("name".into()), ..Consumer::default() }];
    assert_eq!(new[0].poll(&mut world), 0);
    assert_eq!(new[0].owned(), had);
    let fenced = Code::FencedInstanceId.code();
    assert_eq!(world.static_heartbeat(&old[0].id, Some("name"), old[0].generation), fenced);
    // And back, when it says that it is away for a while. Nobody is left who lets the coordinator assign.
    assert_eq!(new[0].leave(&mut world, -2), 0);
    assert_eq!(kind(&mut world), "consumer");
    old[0] = Classic { instance: Some("name".into()), ..Classic::default() };
    settle(&mut world, &mut old, &mut []);
    assert_eq!(kind(&mut world), "classic");
}

#[test]
fn a_member_is_not_fenced_by_one_under_its_name_that_is_refused() {
    let mut world = World::new();
    let mut old = [Classic { instance: Some("name".into()), ..Classic::default() }];
    (0..6).for_each(|_| {
        old[0].poll(&mut world);
        world.pass(2_000);
    });
    let mut new = [Consumer::new("new")];
    settle(&mut world, &mut old, &mut new);
    let refused = beat("newcomer", 0, &[], &[]).with_instance_id(Some(text("name")));
    let refused = world.beat(&refused.with_subscribed_topic_regex(Some(text("orders("))));
    assert_eq!(refused.error_code, Code::InvalidRegularExpression.code());
    assert_eq!(world.static_heartbeat(&old[0].id, Some("name"), old[0].generation), 0);
}

#[test]
fn whatever_was_recorded_of_a_change_when_its_coordinator_died_no_partition_is_with_two() {
    let mut world = World::new();
    let mut old = classic(&mut world, 3, true);
    // Three members of four partitions: one has two.
    let mut new = vec![Consumer::new("new")];
    let before = world.journal.0.lock().entries.len();
    new[0].poll(&mut world);
    let changed = world.journal.0.lock().entries.len();
    settle(&mut world, &mut old, &mut new);
    world.restart();
    settle(&mut world, &mut old, &mut new);
    new[0].leave(&mut world, -1);
    settle(&mut world, &mut old, &mut []);
    let entries = world.journal.0.lock().entries.clone();
    for end in before..=entries.len() {
        world.journal.0.lock().entries = entries[..end].to_vec();
        world.restart();
        let members = kept(&world);
        // The change is there with all of its members, or with nobody.
        let consumers = members.iter().filter(|(_, member)| matches!(member.part, MemberPart::Consumer(_))).count();
        assert!(consumers == 0 || consumers == members.len(), "{members:?}");
        if end < changed && end > before {
            assert!(members.is_empty() || members.len() == 3, "{members:?}");
        }
        // Clients that know nothing of it come to it again.
        let mut clients = (vec![Classic::default(); 2], vec![Consumer::new("another")]);
        for _ in 0..80 {
            clients.0.iter_mut().for_each(|member| member.poll(&mut world));
            clients.1[0].poll(&mut world);
            world.pass(1_000);
        }
        settle(&mut world, &mut clients.0, &mut clients.1);
    }
}

#[test]
fn members_are_asked_to_join_again_when_topics_change() {
    let mut world = World::new();
    let mut old = classic(&mut world, 1, true);
    let mut new = [Consumer::new("new")];
    settle(&mut world, &mut old, &mut new);
    world.topics.set("orders", 6);
    assert_eq!(world.heartbeat(&old[0].id, old[0].generation), Code::RebalanceInProgress.code());
    for _ in 0..4 {
        old[0].poll(&mut world);
        new[0].poll(&mut world);
    }
    assert_eq!((old[0].owned.len(), new[0].owned().len()), (3, 3));
    // Whoever says who it is may see offsets, in its epoch.
    let mut request = fetch(&[("orders", 0)], false);
    request.groups[0].member_id = Some(text(&old[0].id));
    request.groups[0].member_epoch = old[0].generation;
    assert_eq!(world.fetch(&request).0.groups[0].error_code, 0);
    request.groups[0].member_epoch -= 1;
    assert_eq!(world.fetch(&request).0.groups[0].error_code, Code::IllegalGeneration.code());
}

/// What happens next, and to whom.
#[derive(Clone, Debug)]
enum Event {
    Poll(usize),
    /// Goes, and comes back speaking the other protocol.
    Switch(usize),
    /// Dies, and another one comes.
    Die(usize),
    Pass(u64),
    Full(bool),
    Crash,
}

#[derive(Clone, Debug)]
enum Client {
    Classic(Classic),
    Consumer(Consumer),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        16 => (0..4usize).prop_map(Event::Poll),
        2 => (0..4usize).prop_map(Event::Switch),
        1 => (0..4usize).prop_map(Event::Die),
        3 => (0..4_000u64).prop_map(Event::Pass),
        1 => (5_000..70_000u64).prop_map(Event::Pass),
        1 => any::<bool>().prop_map(Event::Full),
        1 => Just(Event::Crash),
    ];
    proptest::collection::vec(event, 1..200)
}

struct Story {
    world: World,
    clients: Vec<Client>,
    ids: usize,
    named: bool,
    /// At how many moments members of both kinds had partitions of one group.
    both: u64,
}

impl Story {
    /// A client of another kind than the last one here. Every other one keeps what it has while it joins again, if it is of the classic kind.
    fn fresh(&mut self, at: usize, is_classic: bool) -> Client {
        self.ids += 1;
        let instance = (self.named && at.is_multiple_of(2)).then(|| format!("name-{at}"));
        if is_classic {
            Client::Classic(Classic { instance, is_cooperative: at < 2, ..Classic::default() })
        } else {
            Client::Consumer(Consumer { instance, ..Consumer::new(&format!("consumer-{}", self.ids)) })
        }
    }

    fn poll(&mut self, at: usize) {
        match &mut self.clients[at] {
            Client::Classic(member) => member.poll(&mut self.world),
            Client::Consumer(member) => {
                member.poll(&mut self.world);
            }
        }
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Poll(at) => self.poll(*at),
            Event::Switch(at) => {
                let was = self.clients[*at].clone();
                let is_classic = matches!(was, Client::Classic(_));
                match was {
                    Client::Classic(member) if member.instance.is_none() => {
                        self.world.leave(&[(&member.id, None)]);
                    }
                    Client::Classic(_) => {}
                    Client::Consumer(mut member) => {
                        let epoch = if member.instance.is_some() { -2 } else { -1 };
                        member.leave(&mut self.world, epoch);
                    }
                }
                self.clients[*at] = self.fresh(*at, !is_classic);
            }
            Event::Die(at) => {
                let is_classic = matches!(self.clients[*at], Client::Classic(_));
                self.clients[*at] = self.fresh(*at, is_classic);
            }
            Event::Pass(ms) => self.world.pass(*ms),
            Event::Full(is_full) => self.world.journal.0.lock().is_full = *is_full,
            Event::Crash => {
                self.world.restart();
                for client in &mut self.clients {
                    if let Client::Classic(member) = client {
                        (member.joins, member.syncs) = (None, None);
                    }
                }
            }
        }
        self.check();
    }

    /// What a client has that is a member of a consumer group, the group says that it has, too; and that is with nobody else.
    fn check(&mut self) {
        let held: BTreeMap<String, Named> = kept(&self.world)
            .into_iter()
            .filter_map(|(id, member)| match member.part {
                MemberPart::Consumer(part) => {
                    let name = |topic: u128| self.world.topics.name(Uuid::from_u128(topic)).expect("a topic");
                    let all = part.assigned.into_iter().chain(part.revoking);
                    Some((id, all.map(|(topic, of)| (name(topic), of)).collect()))
                }
                MemberPart::Classic(_) => None,
            })
            .collect();
        let (mut classic, mut consumers) = (0, 0);
        for client in &self.clients {
            let (id, owned) = match client {
                Client::Classic(member) => (&member.id, member.owned.clone()),
                Client::Consumer(member) => (&member.id, member.owned()),
            };
            let Some(of_client) = held.get(id) else { continue };
            let has = |of: &Named, partition: &i32| of.iter().any(|(_, of)| of.contains(partition));
            assert!(owned.iter().all(|partition| has(of_client, partition)), "{client:?} has more than {of_client:?}");
            for (_, of_other) in held.iter().filter(|(other, _)| *other != id) {
                let is_shared = owned.iter().any(|partition| has(of_other, partition));
                assert!(!is_shared, "{client:?} has what is another one's too: {held:?}");
            }
            let count = if matches!(client, Client::Classic(_)) { &mut classic } else { &mut consumers };
            *count += owned.len();
        }
        self.both += u64::from(classic > 0 && consumers > 0);
    }

    /// Nothing happens any more, and everybody does what it should: each partition is read, and by one.
    fn end(mut self) -> u64 {
        self.world.journal.0.lock().is_full = false;
        for _ in 0..150 {
            (0..self.clients.len()).for_each(|at| self.poll(at));
            self.world.pass(1_000);
            self.check();
        }
        let owned = self.clients.iter().flat_map(|client| match client {
            Client::Classic(member) => member.owned.clone(),
            Client::Consumer(member) => member.owned(),
        });
        let mut owned: Vec<i32> = owned.collect();
        owned.sort_unstable();
        assert_eq!(owned, [0, 1, 2, 3], "{:?}", self.clients);
        // Who is alone with its kind has its kind of group.
        let classic = self.clients.iter().filter(|client| matches!(client, Client::Classic(_))).count();
        assert_eq!(kind(&mut self.world), if classic == 4 { "classic" } else { "consumer" });
        self.both
    }
}

/// At how many moments of the random stories members of both kinds had partitions of one group.
static BOTH: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    fn stories_of_both_kinds(events in events(), named in any::<bool>()) {
        let mut story = Story { world: World::new(), clients: Vec::new(), ids: 0, named, both: 0 };
        for at in 0..4 {
            let client = story.fresh(at, true);
            story.clients.push(client);
        }
        for event in &events {
            story.happen(event);
        }
        BOTH.fetch_add(story.end(), Ordering::Relaxed);
    }
}

#[test]
fn a_group_of_both_kinds_reads_each_partition_once() {
    stories_of_both_kinds();
    let both = BOTH.load(Ordering::Relaxed);
    assert!(both > 3_000, "hardly ever has a group members of both kinds: {both}");
}
