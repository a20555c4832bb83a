//! The heartbeat of a member of a consumer group: the one request by which it joins, subscribes, gives back, takes and leaves.

use std::collections::BTreeSet;

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment as Assigned, TopicPartitions};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};

use super::super::api::{Answer, AppendFailed, Caller, Done, Now};
use super::super::classic::ClassicGroup;
use super::super::coordinator::Coordinator;
use super::super::group::{Kind, Turn, text};
use super::assignor::{self, Assignment};
use super::member::{Changed, names_bytes};
use super::{AWAY, ConsumerGroup, Member, Step};

/// A member leaves for good.
const LEAVE: i32 = -1;
/// From here on members choose their ids themselves.
const VERSION_OWN_ID: i16 = 1;
/// Bytes of the names of a member, an instance, a rack.
const NAME_BYTES_MAX: usize = 1_024;
/// Bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 4_096;

/// Why a heartbeat is refused: the error, and in words.
type Refusal = (Code, String);

impl Coordinator {
    /// ConsumerGroupHeartbeat.
    pub fn consumer_heartbeat(
        &mut self,
        now: Now,
        token: u64,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
    ) {
        let beaten = check(caller, request).and_then(|()| self.beat(now, caller, request));
        let (after, response) = match beaten {
            Ok((after, response)) => (after, response),
            Err((code, message)) => {
                let refused = ConsumerGroupHeartbeatResponse::default();
                (None, refused.with_error_code(code.code()).with_error_message(Some(text(&message))))
            }
        };
        self.finish(Done { token, after, answer: Answer::ConsumerHeartbeat(response) });
    }

    #[allow(clippy::type_complexity)]
    fn beat(
        &mut self,
        now: Now,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<(Option<super::super::api::Mark>, ConsumerGroupHeartbeatResponse), Refusal> {
        let id = &**request.group_id;
        self.check_loaded().map_err(|code| (code, "groups are being read".to_owned()))?;
        if request.member_epoch == 0 {
            self.create(now, id).map_err(|code| (code, format!("group {id} cannot be made")))?;
        }
        let beaten = self.turn(now, id, |kind, _, turn| {
            if let Kind::Classic(classic) = kind
                && classic.is_empty()
                && (!classic.expects_members() || turn.journal.keeps_both_kinds())
                && request.member_epoch == 0
            {
                // Nobody is there who could mind: the group goes on as one whose coordinator assigns.
                *kind = Kind::Consumer(ConsumerGroup::new(classic.generation()));
            }
            let response = match (&mut *kind, request.member_epoch) {
                (Kind::Consumer(group), LEAVE | AWAY) => group.leave(turn, request)?,
                (Kind::Consumer(group), _) => group.beat(turn, caller, request)?,
                (Kind::Classic(classic), 0) => {
                    let (group, response) = change(classic, turn, caller, request)?;
                    *kind = Kind::Consumer(group);
                    response
                }
                (Kind::Classic(_), _) => return Err(not_a_consumer_group(id)),
            };
            Ok((turn.head.mark, response))
        });
        beaten.unwrap_or_else(|| Err((Code::GroupIdNotFound, format!("Consumer group {id} not found."))))
    }
}

fn not_a_consumer_group(id: &str) -> Refusal {
    (Code::GroupIdNotFound, format!("Group {id} is not a consumer group."))
}

/// The first member comes to a classic group that lets its coordinator assign: so the group does from now on, if the others can have that.
/// If the member is refused, or that cannot be recorded, nobody notices anything.
fn change(
    classic: &mut ClassicGroup,
    turn: &mut Turn<'_>,
    caller: &Caller,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<(ConsumerGroup, ConsumerGroupHeartbeatResponse), Refusal> {
    let id = turn.head.id.clone();
    if !turn.journal.keeps_both_kinds() {
        return Err(not_a_consumer_group(&id));
    }
    let members = classic
        .changing()
        .map_err(|why| (Code::GroupIdNotFound, format!("Classic group {id} cannot become a consumer group: {why}.")))?;
    if members.iter().any(|(_, subscription)| subscription.topics.len() > turn.config.member_topics_max) {
        return Err(not_a_consumer_group(&id));
    }
    let before = turn.head.member_bytes;
    turn.head.member_bytes -= classic.member_bytes();
    let mut group = ConsumerGroup::of_changing(turn, classic.generation(), members);
    match group.beat(turn, caller, request) {
        Ok(response) => {
            classic.has_changed(turn);
            Ok((group, response))
        }
        Err(refusal) => {
            turn.head.member_bytes = before;
            Err(refusal)
        }
    }
}

/// Whether a request makes sense by itself.
fn check(caller: &Caller, request: &ConsumerGroupHeartbeatRequest) -> Result<(), Refusal> {
    let invalid = |what: &str| Err((Code::InvalidRequest, what.to_owned()));
    if request.group_id.is_empty() {
        return invalid("GroupId can't be empty.");
    }
    let given = [Some(&request.member_id), request.instance_id.as_ref(), request.rack_id.as_ref()];
    if given.into_iter().flatten().any(|name| name.len() > NAME_BYTES_MAX) {
        return invalid("MemberId, InstanceId and RackId can't have more than 1024 bytes.");
    }
    if request.instance_id.as_deref() == Some("") {
        return invalid("InstanceId can't be empty.");
    }
    if request.rack_id.as_deref() == Some("") {
        return invalid("RackId can't be empty.");
    }
    let needs_id = caller.version >= VERSION_OWN_ID || request.member_epoch != 0;
    if needs_id && request.member_id.is_empty() {
        return invalid("MemberId can't be empty.");
    }
    match request.member_epoch {
        0 => {
            if request.rebalance_timeout_ms == -1 {
                return invalid("RebalanceTimeoutMs must be provided in first request.");
            }
            if request.topic_partitions.as_ref().is_none_or(|owned| !owned.is_empty()) {
                return invalid("TopicPartitions must be empty when (re-)joining.");
            }
            // An empty list, or pattern, is one: such a member reads nothing yet, and names what it reads later. So come clients whose
            // pattern matches nothing so far, or whose topics are gone when they join again.
            if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
                return invalid(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
                );
            }
        }
        AWAY if request.instance_id.is_none() => return invalid("InstanceId can't be null."),
        epoch if epoch < AWAY => return invalid("MemberEpoch is invalid."),
        _ => {}
    }
    match request.server_assignor.as_deref() {
        Some(name) if !assignor::NAMES.contains(&name) => {
            let known = assignor::NAMES.join(", ");
            let message = format!("ServerAssignor {name} is not supported. Supported assignors: {known}.");
            Err((Code::UnsupportedAssignor, message))
        }
        _ => Ok(()),
    }
}

impl ConsumerGroup {
    fn leave(
        &mut self,
        turn: &mut Turn<'_>,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<ConsumerGroupHeartbeatResponse, Refusal> {
        let (id, instance) = (&*request.member_id, request.instance_id.as_deref());
        if request.member_epoch == AWAY {
            self.check_instance(id, instance.unwrap_or_default())?;
            if let Some(member) = self.members.get_mut(id) {
                // It will come back under this name before its session ends. Nobody else gets what it had until then.
                for of in super::member::partitions(&member.revoking) {
                    self.held.remove(&of);
                }
                member.revoking.clear();
                member.revoke_deadline_ms = None;
                member.step = Step::Stable;
                member.epoch = AWAY;
                self.unkept.insert(id.to_owned());
                // What is kept of members counts only with the group's own record, which a full journal may not have taken.
                let recorded = self.store(turn).and_then(|()| self.keep(turn));
                recorded.map_err(|error| (Code::CoordinatorNotAvailable, error.to_string()))?;
            }
        } else {
            self.remove(turn, id, instance).map_err(|code| (code, format!("Member {id} is not in the group.")))?;
        }
        Ok(ConsumerGroupHeartbeatResponse::default()
            .with_member_id(Some(request.member_id.clone()))
            .with_member_epoch(request.member_epoch))
    }

    pub(super) fn check_instance(&self, id: &str, instance: &str) -> Result<(), Refusal> {
        match self.instances.get(instance) {
            None => Err((Code::UnknownMemberId, format!("Instance id {instance} is unknown."))),
            Some(owner) if owner != id => {
                let message = format!("Static member {id} with instance id {instance} was fenced by member {owner}.");
                Err((Code::FencedInstanceId, message))
            }
            Some(_) => Ok(()),
        }
    }

    fn beat(
        &mut self,
        turn: &mut Turn<'_>,
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<ConsumerGroupHeartbeatResponse, Refusal> {
        let owned = owned(request);
        let id = if request.member_id.is_empty() { turn.fresh_id("consumer") } else { request.member_id.to_string() };
        let (candidate, before) = self.candidate(turn, &id, request, owned.as_ref())?;
        let member = self.update(turn, &id, (candidate, before.as_deref()), caller, request)?;
        // Not before: who is refused changes nothing.
        if let Some(owner) = before {
            self.succeed(turn, &id, &owner);
        }
        let stepped = self.step(turn, &id, member, owned.as_ref());
        let changed = stepped.map_err(|error| (Code::CoordinatorNotAvailable, error.to_string()))?;
        let Some(member) = self.members.get(&id) else {
            return Err((Code::UnknownMemberId, format!("Member {id} is not in the group.")));
        };
        let subscribes = request.subscribed_topic_names.is_some() || request.subscribed_topic_regex.is_some();
        let is_full = request.member_epoch == 0
            || (request.rebalance_timeout_ms != -1 && subscribes && request.topic_partitions.is_some());
        let tells = is_full || changed.assigned;
        let beat_ms = self.beat_again_ms(&id, turn.now.mono_ms, turn.config.consumer_heartbeat_ms);
        Ok(ConsumerGroupHeartbeatResponse::default()
            .with_member_id(Some(text(&id)))
            .with_member_epoch(member.epoch)
            .with_heartbeat_interval_ms(i32::try_from(beat_ms).unwrap_or(i32::MAX))
            .with_assignment(tells.then(|| assigned(&member.assigned))))
    }

    /// Takes a member as it is now, and a step on its way. All of that is recorded when this succeeds.
    pub(super) fn step(
        &mut self,
        turn: &mut Turn<'_>,
        id: &str,
        member: Member,
        owned: Option<&Assignment>,
    ) -> Result<Changed, AppendFailed> {
        let known = self.members.get(id);
        let changed = known.is_none_or(|known| known.names != member.names || known.pattern != member.pattern);
        // A thousand members that want what others want do not have all topics gone through for each of them.
        let is_as_before = changed
            && !self.topics_are_left
            && self.others_want_the_same(id, &member)
            && known.is_none_or(|known| self.others_want_the_same(id, known));
        self.admit(turn, id, member);
        let is_known = self.topics_version == Some(turn.topics.version());
        if changed || !is_known {
            let topics_changed = !(is_known && is_as_before) && self.look_up(turn.topics);
            if changed || topics_changed {
                self.epoch = self.epoch.saturating_add(1);
            }
        }
        // Whoever joins again after this is there already, and nobody has heard of the epoch: a retry does no harm.
        self.store(turn)?;
        self.assign_if_due(turn.now.mono_ms);
        let changed = self.reconcile(turn, id, owned);
        self.keep(turn)?;
        Ok(changed)
    }

    /// The member that a heartbeat comes from, as it was; and whose place it is to [have](ConsumerGroup::succeed), if that is another one's.
    fn candidate(
        &self,
        turn: &Turn<'_>,
        id: &str,
        request: &ConsumerGroupHeartbeatRequest,
        owned: Option<&Assignment>,
    ) -> Result<(Member, Option<String>), Refusal> {
        let epoch = request.member_epoch;
        let fenced = |code: Code| (code, format!("Member {id} with epoch {epoch} is fenced: it must join again."));
        let instance = request.instance_id.as_deref();
        let away = instance.and_then(|instance| self.instances.get(instance)).filter(|owner| *owner != id).cloned();
        if let (0, Some(owner)) = (epoch, away) {
            self.check_away(id, &owner)?;
            return Ok((self.successor(&owner), Some(owner)));
        }
        if epoch != 0
            && let Some(instance) = instance
        {
            self.check_instance(id, instance)?;
        }
        let member = match self.members.get(id) {
            None if epoch != 0 => Err((Code::UnknownMemberId, format!("Member {id} is not in the group."))),
            None if self.members.len() >= turn.config.members_max => {
                let most = turn.config.members_max;
                Err((Code::GroupMaxSizeReached, format!("The group has its most members: {most}.")))
            }
            None => Ok(Member::new(instance)),
            // Without one the member still has the one that it told when it joined.
            Some(known) if instance.is_some() && known.instance.as_deref() != instance => {
                Err((Code::FencedInstanceId, format!("Member {id} joined under another instance id.")))
            }
            // The answer to its join was lost.
            Some(known) if epoch == 0 && known.previous_epoch == 0 && known.epoch != AWAY && known.spoken.is_none() => {
                Ok(known.clone())
            }
            // It begins anew and says that it has nothing.
            Some(known) if epoch == 0 => {
                let mut member = known.clone();
                (member.epoch, member.previous_epoch, member.step) = (0, 0, Step::Stable);
                (member.assigned, member.revoking) = (Assignment::new(), Assignment::new());
                Ok(member)
            }
            Some(known) => known.check_epoch(epoch, owned).map(|()| known.clone()).map_err(fenced),
        };
        member.map(|member| (member, None))
    }

    /// Whether somebody may come back under the name that outlives it: if whoever has the name is away. Who speaks the classic protocol never says that it goes away.
    fn check_away(&self, id: &str, owner: &str) -> Result<(), Refusal> {
        let is_away = self.members.get(owner).is_some_and(|member| member.epoch == AWAY || member.spoken.is_some());
        if !is_away || self.members.contains_key(id) {
            let message = format!("Static member {id} cannot join: its instance id is owned by member {owner}.");
            return Err((Code::UnreleasedInstanceId, message));
        }
        Ok(())
    }

    /// Who has the place of another. What that one was to give back nobody waits for any more: it is a member no more.
    fn successor(&self, owner: &str) -> Member {
        let mut member = self.members.get(owner).cloned().unwrap_or_else(|| Member::new(None));
        (member.epoch, member.previous_epoch, member.step) = (0, 0, Step::Stable);
        member.revoking.clear();
        (member.revoke_deadline_ms, member.answer_deadline_ms) = (None, None);
        member
    }

    /// Somebody has the place of another from now on.
    pub(super) fn succeed(&mut self, turn: &mut Turn<'_>, id: &str, owner: &str) -> Member {
        if let Some(target) = self.target.remove(owner) {
            self.target.insert(id.to_owned(), target);
        }
        let member = self.successor(owner);
        let before = self.members.remove(owner);
        let had = before.as_ref().map_or(0, |before| before.bytes(owner));
        turn.head.member_bytes = turn.head.member_bytes + member.bytes(id) - had;
        for of in before.iter().flat_map(|before| super::member::partitions(&before.revoking)) {
            self.held.remove(&of);
        }
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.to_owned());
        }
        self.members.insert(id.to_owned(), member.clone());
        self.unkept.extend([owner.to_owned(), id.to_owned()]);
        member
    }

    /// The member with what the request says about it; with whose place it is to have, if that is another one's.
    fn update(
        &mut self,
        turn: &Turn<'_>,
        id: &str,
        (mut member, before): (Member, Option<&str>),
        caller: &Caller,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<Member, Refusal> {
        if let Some(names) = &request.subscribed_topic_names {
            if names.len() > turn.config.member_topics_max {
                let most = turn.config.member_topics_max;
                return Err((Code::InvalidRequest, format!("A member may subscribe to {most} topics by name.")));
            }
            member.names = names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
        }
        if let Some(pattern) = request.subscribed_topic_regex.as_deref() {
            if pattern.len() > PATTERN_BYTES_MAX {
                let message = format!("A pattern can't have more than {PATTERN_BYTES_MAX} bytes.");
                return Err((Code::InvalidRegularExpression, message));
            }
            member.pattern = (!pattern.is_empty()).then(|| pattern.to_owned());
        }
        (member.spoken, member.answer_deadline_ms) = (None, None);
        if request.rebalance_timeout_ms >= 0 {
            member.rebalance_ms = request.rebalance_timeout_ms as u64;
        }
        if let Some(rack) = &request.rack_id {
            member.rack = Some(rack.to_string());
        }
        if let Some(assignor) = &request.server_assignor {
            member.assignor = Some(assignor.to_string());
        }
        member.client_id.clone_from(&caller.client_id);
        member.host.clone_from(&caller.host);
        self.check_room(turn, (id, before), &member)?;
        Ok(member)
    }

    /// Whether there is memory for a member as it is now, and for what it subscribes to. Who takes no more than before may stay, however little is left; before is `before`, if it
    /// is to have the place of that one. Its pattern can be matched afterwards.
    fn check_room(
        &mut self,
        turn: &Turn<'_>,
        (id, before): (&str, Option<&str>),
        member: &Member,
    ) -> Result<(), Refusal> {
        let place = before.unwrap_or(id);
        let known = self.members.get(place);
        let is_known = known.is_some_and(|known| known.names == member.names && known.pattern == member.pattern);
        let more = member.bytes(id).saturating_sub(known.map_or(0, |known| known.bytes(place)));
        let refusal = || Err((Code::PolicyViolation, "No memory is left for subscriptions.".to_owned()));
        if member.given_bytes() > turn.config.member_bytes_max || more > turn.bytes_left {
            return refusal();
        }
        let Some(pattern) = member.pattern.as_deref() else {
            let room = turn.bytes_left - more;
            return if is_known || self.more_bytes(turn.topics, &member.names) <= room { Ok(()) } else { refusal() };
        };
        let is_compiled = self.patterns.contains_key(pattern);
        self.compile(pattern)
            .map_err(|code| (code, format!("SubscribedTopicRegex `{pattern}` is not a valid regular expression.")))?;
        if is_known {
            return Ok(());
        }
        self.match_topics(turn.topics, turn.topics.version(), Some(pattern));
        let nothing = BTreeSet::new();
        let matches = self.patterns.get(pattern).map_or(&nothing, |pattern| &pattern.matches);
        let made = names_bytes(matches) + self.more_bytes(turn.topics, member.names.union(matches));
        if more + made <= turn.bytes_left {
            return Ok(());
        }
        if !is_compiled {
            self.patterns.remove(pattern);
        }
        refusal()
    }

    /// Bytes that somebody takes already who says that it is this one.
    pub(super) fn had_by(&self, id: &str, instance: Option<&str>) -> usize {
        let id = instance.and_then(|instance| self.instances.get(instance)).map_or(id, |owner| owner);
        self.members.get(id).map_or(0, |known| known.bytes(id))
    }

    /// Takes the member as it is now, has that recorded if it is other than it was, and expects to hear of it again.
    pub(super) fn admit(&mut self, turn: &mut Turn<'_>, id: &str, mut member: Member) {
        member.deadline_ms = turn.now.mono_ms.saturating_add(member.session_ms(turn.config));
        turn.wake(member.deadline_ms);
        turn.head.member_bytes += member.bytes(id);
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.to_owned());
        }
        if self.members.get(id).is_none_or(|known| !known.is_kept_as(&member)) {
            self.unkept.insert(id.to_owned());
        }
        if let Some(known) = self.members.get(id) {
            turn.head.member_bytes -= known.bytes(id);
            self.spoken -= usize::from(known.spoken.is_some());
            for of in known.held() {
                self.held.remove(&of);
            }
        }
        self.held.extend(member.held());
        self.spoken += usize::from(member.spoken.is_some());
        self.members.insert(id.to_owned(), member);
    }

    /// Takes the member a step on its way, and has it recorded if that makes it another one.
    fn reconcile(&mut self, turn: &mut Turn<'_>, id: &str, owned: Option<&Assignment>) -> Changed {
        let nothing = Assignment::new();
        let target = self.target.get(id).unwrap_or(&nothing);
        let Some(member) = self.members.get_mut(id) else { return Changed::default() };
        let before: Vec<_> = member.held().collect();
        let (epoch, step) = (member.epoch, member.step);
        let changed = member.reconcile(self.target_epoch, target, owned, &self.held);
        for of in before {
            self.held.remove(&of);
        }
        self.held.extend(member.held());
        if member.step != Step::Revoking {
            member.revoke_deadline_ms = None;
        } else if step != Step::Revoking || epoch != member.epoch {
            let deadline_ms = turn.now.mono_ms.saturating_add(member.rebalance_ms);
            member.revoke_deadline_ms = Some(deadline_ms);
            turn.wake(deadline_ms);
        }
        if changed.member {
            self.unkept.insert(id.to_owned());
        }
        changed
    }
}

/// What a member says it has, if it says so.
fn owned(request: &ConsumerGroupHeartbeatRequest) -> Option<Assignment> {
    let mut owned = Assignment::new();
    for topic in request.topic_partitions.as_ref()? {
        owned.entry(topic.topic_id).or_default().extend(&topic.partitions);
    }
    Some(owned)
}

fn assigned(assignment: &Assignment) -> Assigned {
    let topics = assignment.iter().map(|(topic, partitions)| {
        TopicPartitions::default().with_topic_id(*topic).with_partitions(partitions.iter().copied().collect())
    });
    Assigned::default().with_topic_partitions(topics.collect())
}
