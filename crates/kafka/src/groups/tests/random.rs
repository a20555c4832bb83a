//! Random members that join, sync, commit, leave and die, a disk that is full now and then, and nodes that die with what
//! was not durable. After each request [`World::settle`] checks what must hold inside; here is what clients are promised:
//!
//! * an acknowledged commit is there after any number of crashes;
//! * a generation that somebody heard of has one leader, and never comes again but to whom was in it, if it was kept whole;
//! * every request is answered, once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::JoinGroupResponse;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kera_format::kafka_members::{MemberPart, MemberState};
use proptest::prelude::*;
use uuid::Uuid;

use crate::groups::testing::{World, beat, commit, join_with, sync};
use crate::groups::{Answer, GroupConfig};

/// What happens next; numbers choose a member or a partition.
#[derive(Clone, Debug)]
enum Event {
    Join(usize),
    Rejoin(usize),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    Commit(usize, i32),
    /// A commit of somebody who is no member.
    Foreign(i32),
    Pass(u64),
    /// Everything that was appended becomes durable.
    Durable,
    /// Everything is written anew, and what stands in front of that is not read any more.
    Copy,
    /// The journal is full, or no longer.
    Full(bool),
    Crash,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let member = 0..5usize;
    let event = prop_oneof![
        3 => member.clone().prop_map(Event::Join),
        4 => member.clone().prop_map(Event::Rejoin),
        4 => member.clone().prop_map(Event::Sync),
        2 => member.clone().prop_map(Event::Heartbeat),
        1 => member.clone().prop_map(Event::Leave),
        3 => (member, 0..4i32).prop_map(|(member, partition)| Event::Commit(member, partition)),
        1 => (0..4i32).prop_map(Event::Foreign),
        3 => (0..4_000u64).prop_map(Event::Pass),
        1 => (5_000..40_000u64).prop_map(Event::Pass),
        2 => Just(Event::Durable),
        1 => Just(Event::Copy),
        1 => any::<bool>().prop_map(Event::Full),
        1 => Just(Event::Crash),
    ];
    proptest::collection::vec(event, 1..120)
}

#[derive(Default)]
struct Client {
    id: String,
    generation: i32,
    leads: bool,
    members: Vec<String>,
    /// For members of consumer groups.
    owned: Vec<(Uuid, Vec<i32>)>,
}

struct Story {
    world: World,
    clients: Vec<Client>,
    /// Whether members have names that outlive them.
    named: bool,
    /// Requests without an answer that arrived: whose, and for commits of what.
    open: BTreeMap<u64, (usize, Option<(i32, i64)>)>,
    /// Which member asked for its assignment, by request: a client may have another id when the answer comes.
    syncs: BTreeMap<u64, String>,
    durable: u64,
    next_offset: i64,
    /// What was acknowledged for each partition.
    acknowledged: BTreeMap<i32, i64>,
    /// Leaders of the generations that somebody heard of.
    leaders: BTreeMap<i32, String>,
    /// The last generation of which a process that has died was heard.
    before_crash: i32,
    /// Whom leaders were told to be in a generation, by id and by name.
    told: BTreeMap<i32, Vec<(String, Option<String>)>>,
    /// Whether the last generation of before the crash goes on behind it.
    goes_on: bool,
}

impl Story {
    fn new(named: bool) -> Story {
        let config = GroupConfig { members_max: 4, ..GroupConfig::default() };
        Story {
            world: World::with(config),
            clients: (0..5).map(|_| Client::default()).collect(),
            named,
            open: BTreeMap::new(),
            syncs: BTreeMap::new(),
            durable: 0,
            next_offset: 0,
            acknowledged: BTreeMap::new(),
            leaders: BTreeMap::new(),
            before_crash: 0,
            told: BTreeMap::new(),
            goes_on: false,
        }
    }

    /// Lets all of this happen. Of how many generations somebody heard, and of how many partitions a commit was acknowledged.
    fn tell(events: &[Event], named: bool) -> (u64, u64) {
        let mut story = Story::new(named);
        for event in events {
            story.happen(event);
        }
        story.end()
    }

    fn name(&self, at: usize) -> Option<String> {
        (self.named && at.is_multiple_of(2)).then(|| format!("name-{at}"))
    }

    fn appended(&self) -> u64 {
        self.world.journal.0.lock().entries.len() as u64
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Join(at) => self.join(*at, String::new()),
            Event::Rejoin(at) => self.join(*at, self.clients[*at].id.clone()),
            Event::Sync(at) => {
                let client = &self.clients[*at];
                let assignments: Vec<_> = client.members.iter().map(|id| (&id[..], id.as_bytes())).collect();
                let given = if client.leads { &assignments[..] } else { &[] };
                let token = self.world.sync(&sync(&client.id, client.generation, given));
                self.syncs.insert(token, self.clients[*at].id.clone());
                self.open.insert(token, (*at, None));
            }
            Event::Heartbeat(at) => {
                let client = &self.clients[*at];
                self.world.heartbeat(&client.id, client.generation);
            }
            Event::Leave(at) => {
                let id = self.clients[*at].id.clone();
                self.world.leave(&[(&id, None)]);
            }
            Event::Commit(at, partition) => {
                let (id, generation) = (self.clients[*at].id.clone(), self.clients[*at].generation);
                self.commit(*at, &id, generation, *partition);
            }
            Event::Foreign(partition) => self.commit(0, "", -1, *partition),
            Event::Pass(ms) => self.world.pass(*ms),
            Event::Durable => self.durable = self.appended(),
            Event::Copy => self.world.journal.copy(&self.world.coordinator),
            Event::Full(is_full) => self.world.journal.0.lock().is_full = *is_full,
            Event::Crash => self.crash(),
        }
        self.deliver();
    }

    fn join(&mut self, at: usize, id: String) {
        let name = self.name(at);
        let token = self.world.join(9, &join_with(&id, name.as_deref(), &["range"]));
        self.open.insert(token, (at, None));
    }

    fn commit(&mut self, at: usize, id: &str, generation: i32, partition: i32) {
        self.next_offset += 1;
        let (token, offset) = (self.world.token, self.next_offset);
        self.world.token += 1;
        let request = commit(id, generation, &[("orders", partition, offset)]);
        let caller = crate::groups::testing::caller(9);
        self.world.coordinator.commit(self.world.now, token, &caller, &request);
        self.world.settle();
        self.open.insert(token, (at, Some((partition, offset))));
    }

    /// Answers arrive, if what they rest on is durable.
    fn deliver(&mut self) {
        let durable = self.durable;
        let ready = self.world.done.iter().filter(|(_, done)| done.after.is_none_or(|mark| mark.0 <= durable));
        let ready: Vec<u64> = ready.map(|(token, _)| *token).collect();
        for token in ready {
            let done = self.world.take(token).expect("there");
            let (at, committed) = self.open.remove(&token).expect("somebody asked");
            match done.answer {
                Answer::Join(response) => self.joined(at, &response),
                Answer::Commit(response) => {
                    let (partition, offset) = committed.expect("a commit");
                    if response.topics[0].partitions[0].error_code == 0 {
                        let known = self.acknowledged.entry(partition).or_default();
                        *known = (*known).max(offset);
                    }
                }
                Answer::Sync(response) if response.error_code == 0 => {
                    // In generations of the past a leader may have told of members that are no more.
                    let given = String::from_utf8_lossy(&response.assignment);
                    assert!(given.is_empty() || self.named || *given == self.syncs[&token]);
                }
                Answer::Sync(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn joined(&mut self, at: usize, response: &JoinGroupResponse) {
        let id = response.member_id.to_string();
        self.clients[at].id.clone_from(&id);
        if response.error_code != 0 {
            return;
        }
        let (generation, leader) = (response.generation_id, response.leader.to_string());
        let client = &mut self.clients[at];
        client.generation = generation;
        client.leads = leader == id;
        client.members = response.members.iter().map(|member| member.member_id.to_string()).collect();
        let is_kept = self.goes_on && generation == self.before_crash && self.was_in(generation, at, &id);
        assert!(generation > self.before_crash || is_kept, "a generation came again");
        if !response.members.is_empty() {
            let name = |of: &JoinGroupResponseMember| of.group_instance_id.as_ref().map(|name| name.to_string());
            let members = response.members.iter().map(|of| (of.member_id.to_string(), name(of)));
            self.told.insert(generation, members.collect());
        }
        let known = self.leaders.entry(generation).or_insert_with(|| leader.clone());
        assert!(self.named || *known == leader, "two leaders");
    }

    fn crash(&mut self) {
        let is_whole = self.durable == self.appended();
        self.world.journal.cut(self.durable);
        let before = self.kept();
        self.world.restart();
        // All that are members still, or nobody: if the generation could not be recorded. Who has left since may be there again.
        let after = self.kept();
        let is_there = |id: &String| after.iter().any(|(known, _)| known == id);
        let are_there = before.iter().all(|(id, _)| is_there(id));
        assert!(after.is_empty() || !is_whole || self.named || are_there, "{before:?} became {after:?}");
        self.check_whole(&after);
        self.open.clear();
        self.before_crash = self.leaders.keys().last().copied().unwrap_or(0);
        let is_of = |member: &MemberState| match &member.part {
            MemberPart::Classic(part) => i64::from(part.generation) == i64::from(self.before_crash),
            MemberPart::Consumer(_) => false,
        };
        self.goes_on = after.iter().any(|(_, member)| is_of(member));
        self.check_offsets();
    }

    /// Whoever is there is all that the generation had: of one that is missing nobody has the partitions. Members that come back by their names have other ids.
    fn check_whole(&self, after: &[(String, MemberState)]) {
        let Some((_, MemberState { part: MemberPart::Classic(part), .. })) = after.first().filter(|_| !self.named)
        else {
            return;
        };
        let told = self.told.iter().find(|(generation, _)| i64::from(**generation) == i64::from(part.generation));
        let (_, told) = told.expect("its leader was told of it, and has assigned");
        let mut told: Vec<&String> = told.iter().map(|(id, _)| id).collect();
        let mut kept: Vec<&String> = after.iter().map(|(id, _)| id).collect();
        told.sort();
        kept.sort();
        assert_eq!(kept, told, "not all of a generation are there");
    }

    /// Whether a member that joins was in this generation, itself or by its name.
    fn was_in(&self, generation: i32, at: usize, id: &str) -> bool {
        let name = self.name(at);
        let mut told = self.told.get(&generation).into_iter().flatten();
        told.any(|(known, instance)| known == id || (name.is_some() && *instance == name))
    }

    fn kept(&self) -> Vec<(String, MemberState)> {
        self.world.coordinator.groups().flat_map(|group| group.kind.kept()).collect()
    }

    fn check_offsets(&mut self) {
        let offsets: BTreeMap<i32, i64> =
            self.world.offsets().into_iter().map(|(_, partition, offset)| (partition, offset)).collect();
        for (partition, acknowledged) in &self.acknowledged {
            let offset = offsets.get(partition).copied().unwrap_or(-1);
            assert!(offset >= *acknowledged, "partition {partition} lost {acknowledged}, it has {offset}");
        }
    }

    /// The disk takes everything again, and nobody asks for anything: whoever waits has its answer in the end.
    fn end(mut self) -> (u64, u64) {
        self.check_offsets();
        self.world.journal.0.lock().is_full = false;
        self.world.pass(700_000);
        self.durable = self.appended();
        self.deliver();
        assert_eq!(self.open.len(), 0, "requests that nobody answered");
        assert!(self.world.coordinator.groups().all(|group| group.is_empty() && group.head.member_bytes == 0));
        self.check_offsets();
        (self.leaders.len() as u64, self.acknowledged.len() as u64)
    }

    /// What a client of a consumer group has that is a member, the group says that it has, too; and that is with nobody else. How many members have something.
    fn check_one_has_it(&self) -> usize {
        let kept = self.kept().into_iter().filter_map(|(id, member)| match member.part {
            MemberPart::Consumer(part) => {
                Some((id, part.assigned.into_iter().chain(part.revoking).collect::<Vec<_>>()))
            }
            MemberPart::Classic(_) => None,
        });
        let held: BTreeMap<String, Vec<(u128, Vec<i32>)>> = kept.collect();
        let mut has_something = 0;
        for (at, client) in self.clients.iter().enumerate().filter(|(_, client)| client.generation > 0) {
            let id = format!("member-{at}");
            // Whoever was silent for too long does not know yet that others have it.
            let Some(of_client) = held.get(&id) else { continue };
            let of_topic = |(topic, of): &(Uuid, Vec<i32>)| -> Vec<(u128, i32)> {
                of.iter().map(|partition| (topic.as_u128(), *partition)).collect()
            };
            let owned: Vec<(u128, i32)> = client.owned.iter().flat_map(of_topic).collect();
            let has = |held: &[(u128, Vec<i32>)], (topic, partition): &(u128, i32)| {
                held.iter().any(|(known, of)| known == topic && of.contains(partition))
            };
            assert!(owned.iter().all(|one| has(of_client, one)), "{id} has {owned:?}, more than {of_client:?}");
            for (other, of_other) in held.iter().filter(|(other, _)| **other != id) {
                assert!(
                    !owned.iter().any(|one| has(of_other, one)),
                    "{id} has {owned:?}, of which {other} has some: {held:?}"
                );
            }
            has_something += usize::from(!owned.is_empty());
        }
        has_something
    }
}

#[test]
fn who_comes_back_by_its_name_after_a_crash_is_in_the_generation_that_was_kept() {
    use Event::{Crash, Durable, Join, Pass, Sync};
    Story::tell(&[Join(4), Pass(3_000), Durable, Sync(4), Durable, Crash, Join(4), Join(0)], true);
}

#[test]
fn who_asks_again_after_a_crash_is_in_the_generation_that_was_kept() {
    use Event::{Crash, Durable, Join, Pass, Rejoin, Sync};
    let begin = [Join(1), Durable, Rejoin(1), Join(3), Durable, Rejoin(3), Pass(6_000), Durable, Sync(1), Sync(3)];
    let after = [Durable, Crash, Rejoin(3), Rejoin(1), Durable];
    Story::tell(&[&begin[..], &after].concat(), false);
}

#[test]
fn members_that_go_while_nothing_can_be_recorded_leave_nothing_that_takes_memory() {
    use Event::{Full, Join, Pass, Rejoin};
    Story::tell(&[Join(0), Join(0), Join(1), Rejoin(0), Pass(11_309), Full(true), Pass(1_691)], false);
}

#[test]
fn who_joined_while_nothing_was_recorded_and_went_away_is_away_after_a_crash() {
    use Event::{Crash, Full, Join, Leave};
    consume_all(&[Full(true), Join(4), Full(false), Leave(4), Crash]);
}

#[test]
fn members_of_a_group_that_was_never_recorded_are_in_no_copy() {
    use Event::{Copy, Crash, Full, Join};
    consume_all(&[Full(true), Join(0), Full(false), Copy, Crash, Join(1), Crash]);
}

/// What the random stories below had: generations that somebody heard of, partitions of which a commit was acknowledged, and moments at which several
/// members of a consumer group had partitions.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);
static COMMITTED: AtomicU64 = AtomicU64::new(0);
static SHARED: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    fn stories_of_members(events in events(), named in any::<bool>()) {
        let (generations, committed) = Story::tell(&events, named);
        GENERATIONS.fetch_add(generations, Ordering::Relaxed);
        COMMITTED.fetch_add(committed, Ordering::Relaxed);
    }

    fn stories_of_consumers(events in events()) {
        SHARED.fetch_add(consume_all(&events), Ordering::Relaxed);
    }
}

#[test]
fn promises_to_members_are_kept() {
    stories_of_members();
    let (generations, committed) = (GENERATIONS.load(Ordering::Relaxed), COMMITTED.load(Ordering::Relaxed));
    assert!(generations > 20 && committed > 20, "hardly anything is promised: {generations}, {committed}");
}

#[test]
fn partitions_of_a_consumer_group_are_with_one_member_at_a_time() {
    stories_of_consumers();
    let shared = SHARED.load(Ordering::Relaxed);
    assert!(shared > 400, "hardly ever have two members something: {shared}");
}

/// Lets all of this happen to a consumer group. At how many moments several members had partitions.
fn consume_all(events: &[Event]) -> u64 {
    let mut story = Story::new(true);
    let mut heard = BTreeMap::new();
    let mut shared = 0;
    for event in events {
        consume(&mut story, event, &mut heard);
        shared += u64::from(story.check_one_has_it() > 1);
    }
    // Those who do not know that they are members are silent, and lost. The others have everything in the end.
    story.world.journal.0.lock().is_full = false;
    for _ in 0..20 {
        for at in 0..5 {
            beat_of(&mut story, at, false, &mut heard);
            shared += u64::from(story.check_one_has_it() > 1);
        }
        story.world.pass(5_000);
    }
    let owned = story.clients.iter().flat_map(|client| &client.owned).flat_map(|(_, of)| of);
    let mut owned: Vec<i32> = owned.copied().collect();
    owned.sort_unstable();
    let members = story.clients.iter().filter(|client| client.generation > 0).count();
    assert_eq!(owned, if members == 0 { vec![] } else { vec![0, 1, 2, 3] });
    shared
}

/// Lets something happen to a consumer group.
fn consume(story: &mut Story, event: &Event, heard: &mut BTreeMap<usize, i32>) {
    match event {
        Event::Join(at) => {
            story.clients[*at].generation = 0;
            story.clients[*at].owned.clear();
            beat_of(story, *at, true, heard);
        }
        Event::Rejoin(at) | Event::Sync(at) | Event::Heartbeat(at) => beat_of(story, *at, false, heard),
        Event::Leave(at) => {
            let away = story.name(*at).filter(|_| story.next_offset % 2 == 0);
            let mut request = beat(&format!("member-{at}"), -1, &[], &[]);
            request.instance_id = story.name(*at).map(|name| crate::groups::group::text(&name));
            if away.is_some() {
                request.member_epoch = -2;
            }
            story.next_offset += 1;
            story.world.beat(&request);
            story.clients[*at].generation = 0;
            story.clients[*at].owned.clear();
        }
        Event::Commit(at, partition) => {
            let (id, epoch) = (format!("member-{at}"), story.clients[*at].generation);
            story.world.commit(&commit(&id, epoch, &[("orders", *partition, 1)]));
        }
        Event::Crash => {
            let (before, is_kept) = (story.kept(), story.world.coordinator.groups().all(|group| group.kind.is_kept()));
            story.world.restart();
            assert!(!is_kept || story.kept() == before, "{before:?} became {:?}", story.kept());
            heard.clear();
        }
        Event::Copy => story.world.journal.copy(&story.world.coordinator),
        Event::Foreign(_) | Event::Durable => {}
        Event::Pass(ms) => story.world.pass(*ms),
        Event::Full(is_full) => story.world.journal.0.lock().is_full = *is_full,
    }
}

/// A heartbeat of one client: it joins if it is told to, or is a member.
fn beat_of(story: &mut Story, at: usize, joins: bool, heard: &mut BTreeMap<usize, i32>) {
    let client = &story.clients[at];
    if client.generation == 0 && !joins {
        return;
    }
    let owned = if client.generation == 0 { Vec::new() } else { client.owned.clone() };
    let mut request = beat(&format!("member-{at}"), client.generation, &["orders"], &owned);
    request.instance_id = story.name(at).map(|name| crate::groups::group::text(&name));
    let response = story.world.beat(&request);
    let client = &mut story.clients[at];
    if response.error_code == Code::CoordinatorNotAvailable.code() {
        return;
    }
    if response.error_code != 0 {
        client.generation = 0;
        client.owned.clear();
        heard.remove(&at);
        return;
    }
    let before = heard.insert(at, response.member_epoch).unwrap_or(0);
    assert!(joins || response.member_epoch >= before, "an epoch went back");
    client.generation = response.member_epoch;
    if let Some(assignment) = response.assignment {
        client.owned =
            assignment.topic_partitions.iter().map(|topic| (topic.topic_id, topic.partitions.clone())).collect();
    }
}
