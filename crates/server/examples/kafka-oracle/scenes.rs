//! Scenes: groups of several members, who wait for one another. Each member has a connection of its own. A scene has a group that
//! is there before it and after it no more; what it says is one answer, in which members have no names: whom a broker makes
//! the leader, and which partitions its assignor gives to whom, is its own business.

#[path = "admin.rs"]
mod admin;
#[path = "rolls.rs"]
mod rolls;
#[path = "settings.rs"]
mod settings;

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::*;

use super::side::Side;
use super::steps::{Asked, Rng, named, text};

/// How often a scene looks again for what must come.
const TRIES: usize = 12_000;
const PAUSE: Duration = Duration::from_millis(10);
/// The shortest session that a classic member may have by default.
const SHORT_SESSION_MS: i32 = 6_000;
const LONG_SESSION_MS: i32 = 1_800_000;
/// How long the others wait for a member that does not come again.
const SHORT_REBALANCE_MS: i32 = 4_000;
const LONG_REBALANCE_MS: i32 = 60_000;
/// Most members of a scene.
const MEMBERS_MAX: usize = 4;
/// A topic whose partitions can be shared by any number of members up to that.
const SHARED: (&str, i32) = ("grapes", 12);
const SUBSCRIBED: &[u8] = b"\0\0\0\0\0\x01\0\x06grapes\0\0\0\0";

/// What a scene is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scene {
    /// Members of a classic group join, leave, die, come again. With the number that its group is named by.
    Herd(u64),
    /// A classic member falls silent until its session ends.
    Lapse(u64),
    /// Members of a group of the consumer protocol do the same.
    Flock(u64),
    /// They die, and come back from the dead.
    Deaths(u64),
    /// A group is rolled from one protocol to the other.
    Roll(u64),
    /// Settings of a topic are given, changed and described.
    Settings(u64),
    /// Records whose producer wants no answer.
    Silent(u64),
    /// What tools of administrators ask.
    Admin(u64),
}

impl Scene {
    pub(crate) fn pick(rng: &mut Rng, number: u64) -> Scene {
        match rng.below(24) {
            0 => Scene::Lapse(number),
            1..12 => Scene::Herd(number),
            _ => Scene::Flock(number),
        }
    }
}

/// Plays a scene with a broker: what it has answered.
pub(crate) fn play(side: &mut Side, scene: Scene, rng: Rng) -> io::Result<String> {
    let (Scene::Herd(number)
    | Scene::Lapse(number)
    | Scene::Flock(number)
    | Scene::Deaths(number)
    | Scene::Roll(number)
    | Scene::Settings(number)
    | Scene::Silent(number)
    | Scene::Admin(number)) = scene;
    let group = format!("{}-{number}", format!("{scene:?}").split('(').next().unwrap_or_default().to_lowercase());
    let mut play = Play {
        side,
        rng,
        group,
        said: String::new(),
        members: Vec::new(),
        born: 0,
        rebalance_ms: LONG_REBALANCE_MS,
        is_calm: false,
    };
    match scene {
        Scene::Herd(_) => play.herd()?,
        Scene::Lapse(_) => play.lapse()?,
        Scene::Flock(_) => play.flock()?,
        Scene::Deaths(_) => play.deaths()?,
        Scene::Roll(_) => play.roll()?,
        Scene::Settings(_) => play.settings()?,
        Scene::Silent(_) => play.silent()?,
        Scene::Admin(_) => play.admin()?,
    }
    Ok(play.said)
}

/// A member, as the client that it is knows itself.
#[derive(Clone, Debug, Default)]
struct Member {
    /// Its connection.
    name: String,
    id: String,
    instance: Option<String>,
    /// Its generation, or epoch.
    generation: i32,
    leads: bool,
    /// Partitions that it has been given, in the consumer protocol.
    owned: Vec<i32>,
}

struct Play<'a> {
    side: &'a mut Side,
    rng: Rng,
    group: String,
    said: String,
    members: Vec<Member>,
    born: u64,
    rebalance_ms: i32,
    /// The leader of a classic group stays, so that everybody knows who it is: then some members have instances.
    is_calm: bool,
}

fn unexpected(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

impl Play<'_> {
    fn say(&mut self, what: &str) {
        self.said.push_str(if self.said.is_empty() { "" } else { "; " });
        self.said.push_str(what);
    }

    /// Says what several members were answered, in an order that does not tell who is who.
    fn say_all(&mut self, what: &str, mut answers: Vec<String>) {
        answers.sort();
        self.say(&format!("{what} [{}]", answers.join(", ")));
    }

    fn group_id(&self) -> GroupId {
        GroupId(text(&self.group))
    }

    fn call(&mut self, asked: &Asked) -> io::Result<ResponseKind> {
        self.side.exchange(asked)?.ok_or_else(|| unexpected("no answer"))
    }

    fn newborn(&mut self, is_static: bool) -> Member {
        self.born += 1;
        let name = format!("{}-{}", self.group, self.born);
        Member { instance: is_static.then(|| format!("{name}-place")), name, ..Member::default() }
    }

    // Classic groups.

    fn join_of(&mut self, member: &Member, session_ms: i32) -> Asked {
        let protocol = |name: &str| {
            join_group_request::JoinGroupRequestProtocol::default()
                .with_name(text(name))
                .with_metadata(Bytes::from_static(SUBSCRIBED))
        };
        let request = JoinGroupRequest::default()
            .with_group_id(self.group_id())
            .with_session_timeout_ms(session_ms)
            .with_rebalance_timeout_ms(self.rebalance_ms.max(self.side.rebalance_ms_min))
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol("range"), protocol("roundrobin")]);
        let version = self.rng.version(5, 9);
        Asked::new(ApiKey::JoinGroup, version, RequestKind::JoinGroup(request), "")
    }

    /// The id that a member without an instance gets before it may join.
    fn introduce(&mut self, member: &mut Member) -> io::Result<()> {
        if member.instance.is_some() {
            return Ok(());
        }
        let asked = self.join_of(member, LONG_SESSION_MS);
        let ResponseKind::JoinGroup(told) = self.call(&asked)? else { return Err(unexpected("JoinGroup")) };
        member.id = told.member_id.to_string();
        self.say(&format!("introduced {} {}", told.error_code, !member.id.is_empty()));
        Ok(())
    }

    /// Takes the answer to a join.
    fn joined(&mut self, member: &mut Member, asked: &Asked) -> io::Result<String> {
        let ResponseKind::JoinGroup(told) = self.side.receive(&member.name, asked)? else {
            return Err(unexpected("JoinGroup"));
        };
        if told.error_code == 0 {
            member.id = told.member_id.to_string();
            member.generation = told.generation_id;
            member.leads = told.leader == told.member_id;
        }
        let mut instances: Vec<bool> = told.members.iter().map(|one| one.group_instance_id.is_some()).collect();
        instances.sort_unstable();
        Ok(format!(
            "{} generation {} leads {} protocol {:?} {:?} skip {} members {instances:?}",
            told.error_code,
            told.generation_id,
            member.leads,
            told.protocol_type.as_deref().unwrap_or("consumer"),
            told.protocol_name.as_deref(),
            told.skip_assignment
        ))
    }

    fn beat(&mut self, member: &Member, generation: i32) -> io::Result<i16> {
        let version = self.rng.version(3, 4);
        let request = HeartbeatRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id(generation)
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance.as_deref().map(text));
        let asked = Asked::new(ApiKey::Heartbeat, version, RequestKind::Heartbeat(request), "");
        let ResponseKind::Heartbeat(told) = self.call(&asked)? else { return Err(unexpected("Heartbeat")) };
        Ok(told.error_code)
    }

    fn commit(&mut self, member: &Member, generation: i32) -> io::Result<i16> {
        let partition = offset_commit_request::OffsetCommitRequestPartition::default().with_committed_offset(0);
        let topic = offset_commit_request::OffsetCommitRequestTopic::default().with_name(named(SHARED.0));
        let request = OffsetCommitRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id_or_member_epoch(generation)
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_topics(vec![topic.with_partitions(vec![partition])]);
        let asked = Asked::new(ApiKey::OffsetCommit, 9, RequestKind::OffsetCommit(request), "");
        let ResponseKind::OffsetCommit(told) = self.call(&asked)? else { return Err(unexpected("OffsetCommit")) };
        let first = told.topics.first().and_then(|topic| topic.partitions.first());
        Ok(first.map_or(-99, |partition| partition.error_code))
    }

    fn leave(&mut self, member: &Member) -> io::Result<Vec<i16>> {
        let who = leave_group_request::MemberIdentity::default()
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance.as_deref().map(text));
        let request = LeaveGroupRequest::default().with_group_id(self.group_id()).with_members(vec![who]);
        let version = self.rng.version(3, 5);
        let asked = Asked::new(ApiKey::LeaveGroup, version, RequestKind::LeaveGroup(request), "");
        let ResponseKind::LeaveGroup(told) = self.call(&asked)? else { return Err(unexpected("LeaveGroup")) };
        Ok(std::iter::once(told.error_code).chain(told.members.iter().map(|one| one.error_code)).collect())
    }

    /// The group's state, and how many members it has.
    fn described(&mut self) -> io::Result<(String, usize)> {
        let request = DescribeGroupsRequest::default().with_groups(vec![self.group_id()]);
        let asked = Asked::new(ApiKey::DescribeGroups, 5, RequestKind::DescribeGroups(request), "");
        let ResponseKind::DescribeGroups(told) = self.call(&asked)? else { return Err(unexpected("DescribeGroups")) };
        let group = told.groups.first().ok_or_else(|| unexpected("no group"))?;
        Ok((group.group_state.to_string(), group.members.len()))
    }

    /// Waits until requests that are not answered yet have done what they do.
    fn wait_for(&mut self, state: &str, members: usize) -> io::Result<()> {
        let mut last = (String::new(), 0);
        for _ in 0..TRIES {
            last = self.described()?;
            if last.0 == state && last.1 == members {
                return Ok(());
            }
            sleep(PAUSE);
        }
        self.say(&format!("wanted {state} with {members}, is {} with {}", last.0, last.1));
        Ok(())
    }

    /// Everybody who is there asks to join and is answered; `asked` is who has asked already.
    fn gather(&mut self, mut asked: Vec<(usize, Asked)>) -> io::Result<()> {
        for at in 0..self.members.len() {
            if asked.iter().all(|(known, _)| *known != at) {
                let member = self.members[at].clone();
                let join = self.join_of(&member, LONG_SESSION_MS);
                self.side.send(&member.name, &join)?;
                asked.push((at, join));
            }
        }
        self.all_joined(&asked)?;
        self.share()
    }

    /// Takes the answers to the joins of members.
    fn all_joined(&mut self, asked: &[(usize, Asked)]) -> io::Result<()> {
        let mut answers = Vec::new();
        for (at, join) in asked {
            let mut member = self.members[*at].clone();
            answers.push(self.joined(&mut member, join)?);
            self.members[*at] = member;
        }
        self.say_all("joined", answers);
        Ok(())
    }

    /// A member asks for its assignment; a leader brings everybody's.
    fn sync_of(&mut self, member: &Member, parts: Vec<sync_group_request::SyncGroupRequestAssignment>) -> Asked {
        let version = self.rng.version(3, 5);
        let mut request = SyncGroupRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id(member.generation)
            .with_member_id(text(&member.id))
            .with_group_instance_id(member.instance.as_deref().map(text))
            .with_assignments(if member.leads { parts } else { Vec::new() });
        if version >= 5 {
            request = request.with_protocol_type(Some(text("consumer"))).with_protocol_name(Some(text("range")));
        }
        Asked::new(ApiKey::SyncGroup, version, RequestKind::SyncGroup(request), "")
    }

    /// The leader gives everybody a part; it may ask first or last.
    fn share(&mut self) -> io::Result<()> {
        self.members.sort_by_key(|member| !member.leads);
        let parts: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| {
                sync_group_request::SyncGroupRequestAssignment::default()
                    .with_member_id(text(&member.id))
                    .with_assignment(Bytes::from(format!("part {at}")))
            })
            .collect();
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        if self.rng.one_in(2) {
            order.reverse();
        }
        let mut asked = Vec::new();
        for at in order {
            let member = self.members[at].clone();
            let sync = self.sync_of(&member, parts.clone());
            self.side.send(&member.name, &sync)?;
            asked.push((member.name, sync));
        }
        let mut answers = Vec::new();
        for (name, sync) in asked {
            let ResponseKind::SyncGroup(told) = self.side.receive(&name, &sync)? else {
                return Err(unexpected("SyncGroup"));
            };
            answers.push(format!("{} {:?}", told.error_code, String::from_utf8_lossy(&told.assignment)));
        }
        self.say_all("shared", answers);
        Ok(())
    }

    /// What those who are in the group hear, and who names a wrong generation.
    fn chat(&mut self) -> io::Result<()> {
        let mut answers = Vec::new();
        for member in self.members.clone() {
            let (beat, stale) = (self.beat(&member, member.generation)?, self.beat(&member, member.generation - 1)?);
            let commit = self.commit(&member, member.generation)?;
            let late = self.commit(&member, member.generation + 1)?;
            answers.push(format!("beat {beat} stale {stale} commit {commit} late {late}"));
        }
        self.say_all("chat", answers);
        let (state, members) = self.described()?;
        self.say(&format!("{state} {members}"));
        Ok(())
    }

    fn herd(&mut self) -> io::Result<()> {
        if self.rng.one_in(3) {
            self.rebalance_ms = SHORT_REBALANCE_MS;
        }
        self.is_calm = self.rng.one_in(2);
        let is_static = self.is_calm && self.rng.one_in(2);
        let mut first = self.newborn(is_static);
        self.introduce(&mut first)?;
        self.members.push(first);
        self.gather(Vec::new())?;
        for _ in 0..2 + self.rng.below(3) {
            self.chat()?;
            self.round()?;
            if self.members.iter().any(|member| member.instance.is_some()) && self.rng.one_in(2) {
                self.come_again()?;
            }
        }
        self.chat()?;
        self.end()
    }

    /// Somebody leaves, somebody dies, somebody comes; the others join again.
    fn round(&mut self) -> io::Result<()> {
        let fresh = self.rng.below(3).min((MEMBERS_MAX - self.members.len()) as u64);
        let leaves = self.members.len() > 1 && self.rng.one_in(3);
        if leaves {
            let at = if !self.is_calm && self.rng.one_in(2) { 0 } else { self.members.len() - 1 };
            let gone = self.members.remove(at);
            let told = self.leave(&gone)?;
            let again = self.leave(&gone)?;
            let beat = self.beat(&gone, gone.generation)?;
            self.say(&format!("left {told:?} again {again:?} beat {beat}"));
        }
        // With an instance it would stay until its session ends.
        let last = self.members.len() - 1;
        let dies = self.rebalance_ms == SHORT_REBALANCE_MS && last > 0 && self.rng.one_in(2);
        let at = if !self.is_calm && self.rng.one_in(2) { 0 } else { last };
        let dead = (dies && self.members[at].instance.is_none()).then(|| self.members.remove(at));
        let mut all = self.members.len() + usize::from(dead.is_some());
        let mut asked = Vec::new();
        for _ in 0..fresh {
            let is_static = self.is_calm && self.rng.one_in(2);
            let mut member = self.newborn(is_static);
            self.introduce(&mut member)?;
            let join = self.join_of(&member, LONG_SESSION_MS);
            self.side.send(&member.name, &join)?;
            all += 1;
            self.wait_for("PreparingRebalance", all)?;
            asked.push((self.members.len(), join));
            self.members.push(member);
        }
        if asked.is_empty() && !leaves {
            // A leader who asks again wants to assign anew. If it is the one that has died, the first that is left is as good.
            let at = if dead.as_ref().is_some_and(|dead| dead.leads) { None } else { Some(0) };
            if let Some(at) = at {
                let member = self.members[at].clone();
                let join = self.join_of(&member, LONG_SESSION_MS);
                self.side.send(&member.name, &join)?;
                asked.push((at, join));
                if all > 1 {
                    self.wait_for("PreparingRebalance", all)?;
                }
            } else if let Some(dead) = dead {
                // Nobody notices.
                self.members.insert(0, dead);
                return Ok(());
            }
        }
        let mut answers = Vec::new();
        for (at, member) in self.members.clone().into_iter().enumerate() {
            if asked.iter().all(|(known, _)| *known != at) {
                let (beat, commit) = (self.beat(&member, member.generation)?, self.commit(&member, member.generation)?);
                answers.push(format!("beat {beat} commit {commit}"));
            }
        }
        self.say_all("meanwhile", answers);
        self.gather(asked)?;
        if let Some(dead) = dead {
            let beat = self.beat(&dead, dead.generation)?;
            self.say(&format!("dead {beat}"));
        }
        Ok(())
    }

    /// A static member starts again: it has its instance, and no id.
    fn come_again(&mut self) -> io::Result<()> {
        let Some(at) = self.members.iter().position(|member| member.instance.is_some()) else { return Ok(()) };
        let old = self.members[at].clone();
        self.born += 1;
        let mut member = Member { id: String::new(), name: format!("{}-again-{}", old.name, self.born), ..old.clone() };
        let join = self.join_of(&member, LONG_SESSION_MS);
        self.side.send(&member.name, &join)?;
        let told = self.joined(&mut member, &join)?;
        // A leader that has come again is told by an old version that another leads, which is itself.
        let leads = old.leads;
        let beat = self.beat(&old, old.generation)?;
        let commit = self.commit(&old, old.generation)?;
        let now = self.beat(&member, member.generation)?;
        self.say(&format!("again {told} old {beat} {commit} new {now}"));
        member.leads = leads;
        self.members[at] = member;
        Ok(())
    }

    /// All leave, and the group goes.
    fn end(&mut self) -> io::Result<()> {
        let mut answers = Vec::new();
        for member in std::mem::take(&mut self.members) {
            answers.push(format!("{:?}", self.leave(&member)?));
        }
        self.say_all("left", answers);
        self.delete()
    }

    fn delete(&mut self) -> io::Result<()> {
        let (state, members) = self.described()?;
        let request = DeleteGroupsRequest::default().with_groups_names(vec![self.group_id()]);
        let asked = Asked::new(ApiKey::DeleteGroups, 2, RequestKind::DeleteGroups(request), "");
        let ResponseKind::DeleteGroups(told) = self.call(&asked)? else { return Err(unexpected("DeleteGroups")) };
        let code = told.results.first().map_or(-99, |one| one.error_code);
        self.say(&format!("{state} {members} deleted {code}"));
        Ok(())
    }

    /// Of two members one is never heard of again.
    fn lapse(&mut self) -> io::Result<()> {
        for _ in 0..2 {
            let mut member = self.newborn(false);
            self.introduce(&mut member)?;
            self.members.push(member);
        }
        let (first, second) = (self.members[0].clone(), self.members[1].clone());
        let quiet = self.join_of(&first, SHORT_SESSION_MS);
        self.side.send(&first.name, &quiet)?;
        let mut first = first;
        let told = self.joined(&mut first, &quiet)?;
        self.say(&format!("quiet {told}"));
        let loud = self.join_of(&second, LONG_SESSION_MS);
        self.side.send(&second.name, &loud)?;
        self.wait_for("PreparingRebalance", 2)?;
        let quiet = self.join_of(&first, SHORT_SESSION_MS);
        self.side.send(&first.name, &quiet)?;
        self.members[0] = first;
        self.gather(vec![(1, loud), (0, quiet)])?;
        self.members.sort_by_key(|member| member.id != second.id && member.name != second.name);
        let quiet = self.members.pop().ok_or_else(|| unexpected("nobody"))?;
        let began = Instant::now();
        let loud = self.members[0].clone();
        let mut beat = 0;
        while beat == 0 && began.elapsed() < Duration::from_secs(30) {
            sleep(PAUSE * 10);
            beat = self.beat(&loud, loud.generation)?;
        }
        let dead = self.beat(&quiet, quiet.generation)?;
        self.say(&format!("beat {beat} dead {dead}"));
        self.gather(Vec::new())?;
        self.chat()?;
        self.end()
    }

    // The consumer protocol.

    /// A heartbeat; `joins` and leaves are epochs 0, -1 and -2.
    fn pulse(&mut self, at: usize, epoch: i32) -> io::Result<String> {
        let member = self.members[at].clone();
        let topic = consumer_group_heartbeat_request::TopicPartitions::default();
        let topic = topic.with_topic_id(self.side.memory.topics[SHARED.0]);
        let owned =
            if member.owned.is_empty() { Vec::new() } else { vec![topic.with_partitions(member.owned.clone())] };
        let mut request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(self.group_id())
            .with_member_id(text(&member.id))
            .with_instance_id(member.instance.as_deref().map(text))
            .with_member_epoch(epoch)
            .with_rebalance_timeout_ms(if epoch == 0 { self.rebalance_ms } else { -1 })
            .with_topic_partitions((epoch >= 0).then_some(owned));
        if epoch == 0 {
            request = request
                .with_subscribed_topic_names(Some(vec![named(SHARED.0)]))
                .with_server_assignor(Some(text("uniform")))
                .with_topic_partitions(Some(Vec::new()));
        }
        let asked = Asked::new(ApiKey::ConsumerGroupHeartbeat, 1, RequestKind::ConsumerGroupHeartbeat(request), "");
        let ResponseKind::ConsumerGroupHeartbeat(told) = self.call(&asked)? else {
            return Err(unexpected("ConsumerGroupHeartbeat"));
        };
        let member = &mut self.members[at];
        if told.error_code == 0 {
            member.generation = told.member_epoch;
            if let Some(given) = &told.assignment {
                member.owned = given.topic_partitions.iter().flat_map(|topic| topic.partitions.clone()).collect();
            }
        }
        let given = told.assignment.is_some().then_some(member.owned.len());
        Ok(format!("{} epoch {} given {given:?}", told.error_code, told.member_epoch))
    }

    /// Beats until nobody is told anything new: what everybody has then.
    fn settle(&mut self) -> io::Result<()> {
        for _ in 0..12 {
            let before: Vec<(i32, usize)> = self.members.iter().map(|one| (one.generation, one.owned.len())).collect();
            for at in 0..self.members.len() {
                self.pulse(at, self.members[at].generation)?;
            }
            let after: Vec<(i32, usize)> = self.members.iter().map(|one| (one.generation, one.owned.len())).collect();
            if before == after {
                break;
            }
        }
        self.settled();
        Ok(())
    }

    /// What everybody has now.
    fn settled(&mut self) {
        let have = self.members.iter().map(|one| format!("epoch {} has {}", one.generation, one.owned.len())).collect();
        self.say_all("settled", have);
        let mut all: Vec<i32> = self.members.iter().flat_map(|one| one.owned.clone()).collect();
        all.sort_unstable();
        self.say(&format!("each once {}", all == (0..SHARED.1).collect::<Vec<i32>>()));
    }

    fn flock(&mut self) -> io::Result<()> {
        for _ in 0..4 + self.rng.below(6) {
            self.flap()?;
            if !self.members.is_empty() && self.rng.one_in(2) {
                self.settle()?;
            }
        }
        self.disperse()
    }

    /// All leave, and the group goes.
    fn disperse(&mut self) -> io::Result<()> {
        if let Some(member) = self.members.first().cloned() {
            let commit = self.commit(&member, member.generation)?;
            let late = self.commit(&member, member.generation + 1)?;
            self.say(&format!("commit {commit} late {late}"));
        }
        let mut told = Vec::new();
        for at in 0..self.members.len() {
            told.push(self.pulse(at, -1)?);
        }
        self.say_all("left", told);
        self.delete()
    }

    /// Somebody comes.
    fn comes(&mut self, is_static: bool) -> io::Result<()> {
        let mut member = self.newborn(is_static);
        member.id = format!("{}-id", member.name);
        self.members.push(member);
        let told = self.pulse(self.members.len() - 1, 0)?;
        self.say(&format!("comes {told}"));
        Ok(())
    }

    /// Members die in every way there is: their place is taken, they do not give back, they are silent for too long.
    fn deaths(&mut self) -> io::Result<()> {
        for (is_static, rebalance_ms) in
            [(false, LONG_REBALANCE_MS), (true, LONG_REBALANCE_MS), (false, SHORT_REBALANCE_MS)]
        {
            self.rebalance_ms = rebalance_ms;
            self.comes(is_static)?;
        }
        self.rebalance_ms = LONG_REBALANCE_MS;
        self.settle()?;
        self.usurp(1)?;
        self.withhold(2)?;
        self.fall_silent(&[1, 2])?;
        self.disperse()
    }

    /// Somebody with another id wants the place of a static member that is there; the member itself is one step behind, and too far.
    fn usurp(&mut self, at: usize) -> io::Result<()> {
        let member = self.members[at].clone();
        self.members[at].id = format!("{}-usurper", member.id);
        let (told, late) = (self.pulse(at, 0)?, self.pulse(at, member.generation)?);
        self.members[at] = member.clone();
        let behind = self.pulse(at, member.generation - 1)?;
        let far = self.pulse(at, member.generation - 2)?;
        let now = self.pulse(at, member.generation)?;
        self.say(&format!("usurper {told} late {late} behind {behind} far {far} now {now}"));
        Ok(())
    }

    /// A member that is told to give back, for one who comes, and is not heard of for longer than it may take.
    fn withhold(&mut self, at: usize) -> io::Result<()> {
        self.comes(false)?;
        let told = self.pulse(at, self.members[at].generation)?;
        self.say(&format!("is to give back {told}"));
        self.others_share(&[at])?;
        let late = self.pulse(at, self.members[at].generation)?;
        self.members[at].owned.clear();
        let again = self.pulse(at, 0)?;
        self.say(&format!("has not given back {late} again {again}"));
        self.settle()
    }

    /// Members that are silent until their sessions end. One comes again as it was, one that is static under another id.
    fn fall_silent(&mut self, silent: &[usize]) -> io::Result<()> {
        self.others_share(silent)?;
        for &at in silent {
            let old = self.members[at].clone();
            let late = self.pulse(at, old.generation)?;
            let commit = self.commit(&old, old.generation)?;
            self.members[at].owned.clear();
            if old.instance.is_some() {
                self.members[at].id = format!("{}-again", old.id);
            }
            let again = self.pulse(at, 0)?;
            let now = self.members[at].clone();
            self.members[at] = old.clone();
            let old = self.pulse(at, old.generation)?;
            self.members[at] = now;
            self.say(&format!("dead {late} commit {commit} again {again} the old one {old}"));
        }
        self.settle()
    }

    /// All but these beat until they have everything.
    fn others_share(&mut self, silent: &[usize]) -> io::Result<()> {
        let began = Instant::now();
        let others: Vec<usize> = (0..self.members.len()).filter(|at| !silent.contains(at)).collect();
        while began.elapsed() < Duration::from_secs(90) {
            for &at in &others {
                self.pulse(at, self.members[at].generation)?;
            }
            if others.iter().map(|at| self.members[*at].owned.len()).sum::<usize>() == SHARED.1 as usize {
                break;
            }
            sleep(PAUSE * 30);
        }
        let have = others.iter().map(|at| &self.members[*at]);
        let have = have.map(|one| format!("epoch {} has {}", one.generation, one.owned.len())).collect();
        self.say_all("others", have);
        Ok(())
    }

    /// Somebody comes, goes, or says what is wrong.
    fn flap(&mut self) -> io::Result<()> {
        let count = self.members.len();
        if count == 0 || count < MEMBERS_MAX && self.rng.one_in(2) {
            let is_static = self.rng.one_in(3);
            return self.comes(is_static);
        }
        let at = self.rng.below(count as u64) as usize;
        let member = self.members[at].clone();
        match self.rng.below(5) {
            0 | 1 => {
                let told = self.pulse(at, -1)?;
                let late = self.pulse(at, member.generation)?;
                self.members.remove(at);
                self.say(&format!("goes {told} late {late}"));
            }
            2 => {
                let told = self.pulse(at, member.generation + 5)?;
                self.say(&format!("ahead {told}"));
            }
            3 if member.instance.is_some() => {
                // It stops for a while, and comes again as another with the same instance.
                let told = self.pulse(at, -2)?;
                self.members[at].id = format!("{}-again", member.id);
                self.members[at].owned.clear();
                let again = self.pulse(at, 0)?;
                self.say(&format!("rests {told} comes again {again}"));
                let now = self.members[at].clone();
                self.members[at] = member;
                let old = self.pulse(at, now.generation)?;
                self.members[at] = now;
                self.say(&format!("the old one {old}"));
            }
            3 => {
                let told = self.pulse(at, -2)?;
                self.say(&format!("rests without an instance {told}"));
            }
            _ => {
                let told = self.pulse(at, member.generation)?;
                self.say(&format!("beats {told}"));
            }
        }
        Ok(())
    }
}
