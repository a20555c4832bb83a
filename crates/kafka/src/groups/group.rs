//! One group: what it is called, how its members come together, its offsets; and the turn in which something happens to it.

use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::protocol::StrBytes;
use kera_env::Random;
use kera_format::kafka_groups::{Entry, Fact, GroupKind, GroupState};
use kera_format::kafka_members::MemberState;

use super::api::{Answer, AppendFailed, Done, GroupConfig, Journal, Mark, Now, Topics};
use super::changing::CONSUMERS;
use super::classic::ClassicGroup;
use super::consumer::ConsumerGroup;
use super::offsets::Offsets;

/// Bytes of members that are recorded in one go; one that takes more goes alone.
const KEPT_BYTES: usize = 1 << 20;

/// A group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) head: Head,
    pub(super) kind: Kind,
    pub(super) offsets: Offsets,
}

/// How the members of a group come together.
#[derive(Debug)]
pub(super) enum Kind {
    /// By join and sync; also a group that never had members.
    Classic(ClassicGroup),
    /// By heartbeats.
    Consumer(ConsumerGroup),
}

/// What every group has.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) id: String,
    /// Of the last record of this group. What rests on it may be told when it is durable.
    pub(super) mark: Option<Mark>,
    /// What the journal says of it.
    pub(super) stored: Option<GroupState>,
    /// When it last became empty or stopped being so, milliseconds since 1970.
    pub(super) changed_ms: i64,
    /// Nothing happens to it by itself before this moment. May be too early, never too late.
    pub(super) wake_ms: u64,
    /// Bytes that its members take, [what is made](Kind::made_bytes) of what they gave included.
    pub(super) member_bytes: usize,
    /// What of these was made.
    pub(super) made_bytes: usize,
}

/// Something happens to a group: everything that it may use.
pub(super) struct Turn<'a> {
    pub(super) now: Now,
    pub(super) config: &'a GroupConfig,
    pub(super) topics: &'a dyn Topics,
    pub(super) random: &'a dyn Random,
    pub(super) journal: &'a mut dyn Journal,
    pub(super) done: &'a mut Vec<Done>,
    pub(super) head: &'a mut Head,
    /// Bytes that members of all groups may still take.
    pub(super) bytes_left: usize,
    /// Bytes that offsets of all groups may still take.
    pub(super) offset_bytes_left: usize,
}

impl Group {
    pub(super) fn new(id: &str, now: Now) -> Group {
        let head = Head { id: id.to_owned(), changed_ms: now.wall_ms, wake_ms: u64::MAX, ..Head::default() };
        Group { head, kind: Kind::Classic(ClassicGroup::new(0, None)), offsets: Offsets::default() }
    }

    /// A group of which the journal tells.
    pub(super) fn of_state(id: &str, state: &GroupState) -> Group {
        let kind = match state.kind {
            GroupKind::Consumer => Kind::Consumer(ConsumerGroup::new(state.epoch as i32)),
            GroupKind::Classic | GroupKind::OffsetsOnly => {
                let is_known = state.kind == GroupKind::Classic;
                Kind::Classic(ClassicGroup::new(state.epoch as i32, is_known.then(|| state.protocol_type.clone())))
            }
        };
        let head = Head {
            id: id.to_owned(),
            stored: Some(state.clone()),
            changed_ms: state.changed_ms,
            wake_ms: u64::MAX,
            ..Head::default()
        };
        Group { head, kind, offsets: Offsets::default() }
    }

    /// Whether it has no members.
    pub(super) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Classic(classic) => classic.is_empty(),
            Kind::Consumer(consumer) => consumer.is_empty(),
        }
    }

    /// Whether nothing would be missed if it were gone.
    pub(super) fn is_nothing(&self) -> bool {
        self.head.stored.is_none() && self.offsets.is_empty() && self.is_empty() && !self.waits()
    }

    /// Whether members that were given an id may still come back with it.
    pub(super) fn waits(&self) -> bool {
        matches!(&self.kind, Kind::Classic(classic) if classic.expects_members())
    }

    /// What the journal is told of it now.
    pub(super) fn state(&self) -> GroupState {
        let (kind, epoch, protocol_type) = match &self.kind {
            Kind::Classic(classic) => {
                let kind = if classic.protocol_type().is_some() { GroupKind::Classic } else { GroupKind::OffsetsOnly };
                (kind, classic.generation(), classic.protocol_type().unwrap_or_default())
            }
            Kind::Consumer(consumer) => (GroupKind::Consumer, consumer.epoch(), CONSUMERS),
        };
        GroupState {
            kind,
            members: !self.is_empty(),
            epoch: epoch.max(0) as u32,
            changed_ms: self.head.changed_ms,
            protocol_type: protocol_type.to_owned(),
        }
    }
}

impl Kind {
    /// Bytes that are taken by what the coordinator has made of what members gave.
    pub(super) fn made_bytes(&self) -> usize {
        match self {
            Kind::Classic(classic) => classic.made_bytes(),
            Kind::Consumer(consumer) => consumer.made_bytes(),
        }
    }
}

impl Turn<'_> {
    /// An answer that may leave at once.
    pub(super) fn answer(&mut self, token: u64, answer: Answer) {
        self.done.push(Done { token, after: None, answer });
    }

    /// An answer that may leave when everything recorded of the group is durable.
    pub(super) fn answer_durable(&mut self, token: u64, answer: Answer) {
        self.done.push(Done { token, after: self.head.mark, answer });
    }

    /// Records facts about the group.
    pub(super) fn append(&mut self, facts: impl IntoIterator<Item = Fact>) -> Result<(), AppendFailed> {
        let group = &self.head.id;
        let entries: Vec<_> = facts.into_iter().map(|fact| Entry { group: group.clone(), fact }).collect();
        if !entries.is_empty() {
            self.head.mark = Some(self.journal.append(&entries)?);
        }
        Ok(())
    }

    /// Records members of the group as they are now, or that they are gone (`None`), if the journal takes such records.
    pub(super) fn keep(
        &mut self,
        members: impl IntoIterator<Item = (String, Option<MemberState>)>,
    ) -> Result<(), AppendFailed> {
        if !self.journal.keeps_members() {
            return Ok(());
        }
        let group = self.head.id.clone();
        let (mut piece, mut bytes) = (Vec::new(), 0);
        for (id, member) in members {
            let entry = Entry { group: group.clone(), fact: Fact::Member(id, member.map(Box::new)) };
            let more = entry.bytes();
            if bytes + more > KEPT_BYTES && !piece.is_empty() {
                self.head.mark = Some(self.journal.append(&std::mem::take(&mut piece))?);
                bytes = 0;
            }
            bytes += more;
            piece.push(entry);
        }
        if !piece.is_empty() {
            self.head.mark = Some(self.journal.append(&piece)?);
        }
        Ok(())
    }

    /// Records that the group is so from now on.
    pub(super) fn store(
        &mut self,
        kind: GroupKind,
        members: bool,
        epoch: i32,
        protocol_type: &str,
    ) -> Result<(), AppendFailed> {
        let changed_ms = self.now.wall_ms;
        let state = GroupState {
            kind,
            members,
            epoch: epoch.max(0) as u32,
            changed_ms,
            protocol_type: protocol_type.to_owned(),
        };
        self.head.changed_ms = changed_ms;
        self.append([Fact::Group(Some(state.clone()))])?;
        self.head.stored = Some(state);
        Ok(())
    }

    /// Asks to be woken not later than `at_ms`.
    pub(super) fn wake(&mut self, at_ms: u64) {
        self.head.wake_ms = self.head.wake_ms.min(at_ms);
    }

    /// An id that nobody had before: a prefix and 128 random bits in the form of a UUID.
    pub(super) fn fresh_id(&self, prefix: &str) -> String {
        let id = uuid::Builder::from_random_bytes(self.random_bytes()).into_uuid();
        format!("{prefix}-{id}")
    }

    /// Random bytes.
    pub(super) fn random_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.random.fill(&mut bytes);
        bytes
    }
}

/// A text of Kafka's.
pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// The number of an error; 0 for none.
pub(super) fn code(result: Result<(), Code>) -> i16 {
    result.err().map_or(0, |code| code.code())
}
