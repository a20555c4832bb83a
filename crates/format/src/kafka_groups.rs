//! The records that keep Kafka's consumer groups and their offsets, in the system stream `_kera.groups`.
//!
//! Ordinary KerA records in ordinary chunks. The primary key says in text what is told about; the group comes last, for
//! its name may hold any character:
//!
//! ```text
//! group/GROUP                                a group; without a value: it is gone, with all of its offsets
//! offset/TOPIC/PARTITION/GROUP               an offset that it committed; without a value: it is gone
//! pending/PRODUCER/TOPIC/PARTITION/GROUP     one that it gets if the producer's transaction commits; without a value: gone
//! member/BYTES/MEMBER/GROUP                  a member ([`crate::kafka_members`]); without a value: it is gone
//! ```
//! `PARTITION`, `PRODUCER` and `BYTES`, the length of `MEMBER`, are decimal. The last record of a key counts. Values:
//!
//! ```text
//! group                                       offset
//! offset  bytes  field                        offset  bytes  field
//!      0      1  version        1                  0      1  version       1
//!      1      1  kind           0 offsets only,    1      1  flags         1 expires
//!                               1 classic,         2      2  zero
//!                               2 consumer         4      4  leader_epoch  signed; -1: unknown
//!      2      1  flags          1 has members      8      8  offset        signed, not below -1
//!      3      1  zero                             16      8  committed_ms
//!      4      4  epoch          generation        24      8  expires_ms    zero without the flag
//!      8      8  changed_ms                       32     16  topic_id      zero: unknown
//!     16      …  protocol_type  UTF-8             48      …  metadata      UTF-8
//! ```

use crate::kafka_members::{MEMBER_NAME_BYTES_MAX, MemberState};
use crate::wire::{i64_at, put, u16_at, u32_at};
use crate::{ChunkBuilder, FormatError, Record, RecordView, limits};

/// The version of the layouts of values.
pub const KAFKA_GROUPS_VERSION: u8 = 1;
/// The most bytes that a group's name may have.
pub const GROUP_NAME_BYTES_MAX: usize = 1_024;
/// The most bytes that a group's protocol type may have.
pub const PROTOCOL_TYPE_BYTES_MAX: usize = 255;
/// The most bytes that the metadata of an offset may have.
pub const METADATA_BYTES_MAX: usize = 32_767;
/// The most bytes that one of these records takes, but for those of members: head, the longest key, the longest value.
pub const RECORD_BYTES_MAX: usize = 64 + GROUP_NAME_BYTES_MAX + 249 + 48 + OFFSET_BYTES + METADATA_BYTES_MAX;
/// Bytes of a group's value before its protocol type.
const GROUP_BYTES: usize = 16;
/// Bytes of an offset's value before its metadata.
const OFFSET_BYTES: usize = 48;
const FLAG_EXPIRES: u8 = 1;
const FLAG_MEMBERS: u8 = 1;

/// How a group's members come together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GroupKind {
    /// It never had members: somebody only commits offsets under its name.
    #[default]
    OffsetsOnly,
    /// Members agree among themselves: join, sync, generations.
    Classic,
    /// The coordinator assigns partitions: one heartbeat, member epochs.
    Consumer,
}

/// What is kept of a group beside its offsets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupState {
    /// How its members come together.
    pub kind: GroupKind,
    /// Whether it had members then. Those of which there are records are there after a restart.
    pub members: bool,
    /// The last generation, or the group's epoch.
    pub epoch: u32,
    /// When it changed to this, milliseconds since 1970.
    pub changed_ms: i64,
    /// What its members say they are, such as `consumer` or `connect`; may be empty.
    pub protocol_type: String,
}

/// An offset that a group committed for one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommittedOffset {
    /// Of the next record to read.
    pub offset: i64,
    /// The leader's epoch when it was read; -1 if not known.
    pub leader_epoch: i32,
    /// When it was committed, milliseconds since 1970.
    pub committed_ms: i64,
    /// When it may be forgotten, if the commit said so; milliseconds since 1970.
    pub expires_ms: Option<i64>,
    /// The topic's id; zero if not known.
    pub topic_id: u128,
    /// Anything that the consumer wants to keep with it.
    pub metadata: String,
}

/// Which offset of a group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OffsetKey {
    /// The topic.
    pub topic: String,
    /// The partition in it.
    pub partition: i32,
}

/// What one record tells about a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// The group is so; `None`: it is gone, with all of its offsets.
    Group(Option<GroupState>),
    /// An offset; `None`: it is gone.
    Offset(OffsetKey, Option<CommittedOffset>),
    /// An offset that counts when this producer's transaction commits; `None`: it has ended.
    Pending(i64, OffsetKey, Option<CommittedOffset>),
    /// A member, by its id; `None`: it is gone. Those of a classic group count if they are of its last generation, and all there.
    Member(String, Option<Box<MemberState>>),
}

/// One record: a group and a fact about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The group.
    pub group: String,
    /// What is told.
    pub fact: Fact,
}

impl Entry {
    /// Appends the record of this entry to a chunk. It takes at most [`RECORD_BYTES_MAX`] if names and metadata keep
    /// their limits, which the caller has checked.
    pub fn encode(&self, into: &mut ChunkBuilder) {
        let group = &self.group;
        let (key, value) = match &self.fact {
            Fact::Group(state) => (format!("group/{group}"), state.as_ref().map(GroupState::to_bytes)),
            Fact::Offset(of, offset) => (
                format!("offset/{}/{}/{group}", of.topic, of.partition),
                offset.as_ref().map(CommittedOffset::to_bytes),
            ),
            Fact::Pending(producer, of, offset) => (
                format!("pending/{producer}/{}/{}/{group}", of.topic, of.partition),
                offset.as_ref().map(CommittedOffset::to_bytes),
            ),
            Fact::Member(id, member) => {
                (format!("member/{}/{id}/{group}", id.len()), member.as_ref().map(|member| member.to_bytes()))
            }
        };
        into.push(&Record { keys: &[key.as_bytes()], value: value.as_deref(), ..Record::default() });
    }

    /// About how many bytes its record takes; not less.
    pub fn bytes(&self) -> usize {
        let value = match &self.fact {
            Fact::Group(state) => state.as_ref().map_or(0, |state| GROUP_BYTES + state.protocol_type.len()),
            Fact::Offset(_, offset) | Fact::Pending(_, _, offset) => {
                offset.as_ref().map_or(0, |offset| OFFSET_BYTES + offset.metadata.len())
            }
            Fact::Member(id, member) => id.len() + member.as_ref().map_or(0, |member| member.to_bytes().len()),
        };
        let topic = match &self.fact {
            Fact::Offset(of, _) | Fact::Pending(_, of, _) => of.topic.len(),
            Fact::Group(_) | Fact::Member(..) => 0,
        };
        64 + self.group.len() + topic + value
    }

    /// What a record tells.
    pub fn decode(record: &RecordView<'_>) -> Result<Entry, FormatError> {
        let bytes = record.key().unwrap_or_default();
        let wrong = || bad("groups.key", bytes.len() as u64, "group/…, offset/…/…/…, pending/…/…/…/… or member/…/…/…");
        let key = std::str::from_utf8(bytes).map_err(|_| wrong())?;
        let (what, rest) = key.split_once('/').ok_or_else(wrong)?;
        let (group, fact) = match what {
            "group" => (rest, Fact::Group(record.value().map(GroupState::parse).transpose()?)),
            "offset" => {
                let (of, group) = offset_key(rest).ok_or_else(wrong)?;
                (group, Fact::Offset(of, record.value().map(CommittedOffset::parse).transpose()?))
            }
            "pending" => {
                let (producer, rest) = rest.split_once('/').ok_or_else(wrong)?;
                let producer = producer.parse().map_err(|_| wrong())?;
                let (of, group) = offset_key(rest).ok_or_else(wrong)?;
                (group, Fact::Pending(producer, of, record.value().map(CommittedOffset::parse).transpose()?))
            }
            "member" => {
                let (id, group) = member_key(rest).ok_or_else(wrong)?;
                at_most("groups.key (member)", id.len() as u64, MEMBER_NAME_BYTES_MAX as u64)?;
                let member = record.value().map(MemberState::parse).transpose()?;
                (group, Fact::Member(id.to_owned(), member.map(Box::new)))
            }
            _ => return Err(wrong()),
        };
        at_most("groups.key (group)", group.len() as u64, GROUP_NAME_BYTES_MAX as u64)?;
        Ok(Entry { group: group.to_owned(), fact })
    }
}

/// `TOPIC/PARTITION/GROUP` taken apart.
fn offset_key(text: &str) -> Option<(OffsetKey, &str)> {
    let (topic, rest) = text.split_once('/')?;
    let (partition, group) = rest.split_once('/')?;
    let partition = partition.parse().ok().filter(|partition| *partition >= 0)?;
    limits::name_is_valid(topic).then(|| (OffsetKey { topic: topic.to_owned(), partition }, group))
}

/// `BYTES/MEMBER/GROUP` taken apart: a member's id may hold any character, too.
fn member_key(text: &str) -> Option<(&str, &str)> {
    let (bytes, rest) = text.split_once('/')?;
    let bytes: usize = bytes.parse().ok()?;
    Some((rest.get(..bytes)?, rest.get(bytes..)?.strip_prefix('/')?))
}

pub(crate) fn bad(field: &'static str, value: u64, allowed: &'static str) -> FormatError {
    FormatError::BadField { field, value, allowed }
}

pub(crate) fn at_most(field: &'static str, value: u64, limit: u64) -> Result<(), FormatError> {
    if value > limit { Err(FormatError::OverLimit { field, value, limit }) } else { Ok(()) }
}

fn check_head(what: &'static str, value: &[u8], least: usize, most: usize) -> Result<(), FormatError> {
    FormatError::need(what, least, value.len())?;
    at_most(what, value.len() as u64, (least + most) as u64)?;
    if value[0] != KAFKA_GROUPS_VERSION {
        return Err(bad("groups.version", value[0].into(), "1"));
    }
    Ok(())
}

pub(crate) fn text(field: &'static str, bytes: &[u8]) -> Result<String, FormatError> {
    let text = std::str::from_utf8(bytes).map_err(|error| bad(field, error.valid_up_to() as u64, "UTF-8"))?;
    Ok(text.to_owned())
}

impl GroupState {
    /// The value of its record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = vec![0; GROUP_BYTES];
        value[0] = KAFKA_GROUPS_VERSION;
        value[1] = match self.kind {
            GroupKind::OffsetsOnly => 0,
            GroupKind::Classic => 1,
            GroupKind::Consumer => 2,
        };
        value[2] = if self.members { FLAG_MEMBERS } else { 0 };
        put(&mut value, 4, &self.epoch.to_le_bytes());
        put(&mut value, 8, &self.changed_ms.to_le_bytes());
        value.extend_from_slice(self.protocol_type.as_bytes());
        value
    }

    /// Reads the value of its record.
    pub fn parse(value: &[u8]) -> Result<GroupState, FormatError> {
        check_head("group", value, GROUP_BYTES, PROTOCOL_TYPE_BYTES_MAX)?;
        let kind = match value[1] {
            0 => GroupKind::OffsetsOnly,
            1 => GroupKind::Classic,
            2 => GroupKind::Consumer,
            other => return Err(bad("group.kind", other.into(), "0 to 2")),
        };
        if value[2] & !FLAG_MEMBERS != 0 {
            return Err(bad("group.flags", value[2].into(), "bit 0"));
        }
        if value[3] != 0 {
            return Err(bad("group.zero", value[3].into(), "0"));
        }
        let epoch = u32_at(value, 4);
        if epoch > i32::MAX as u32 {
            return Err(bad("group.epoch", epoch.into(), "31 bits"));
        }
        let protocol_type = text("group.protocol_type", &value[GROUP_BYTES..])?;
        Ok(GroupState {
            kind,
            members: value[2] & FLAG_MEMBERS != 0,
            epoch,
            changed_ms: i64_at(value, 8),
            protocol_type,
        })
    }
}

impl CommittedOffset {
    /// The value of its record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = vec![0; OFFSET_BYTES];
        value[0] = KAFKA_GROUPS_VERSION;
        value[1] = if self.expires_ms.is_some() { FLAG_EXPIRES } else { 0 };
        put(&mut value, 4, &self.leader_epoch.to_le_bytes());
        put(&mut value, 8, &self.offset.to_le_bytes());
        put(&mut value, 16, &self.committed_ms.to_le_bytes());
        put(&mut value, 24, &self.expires_ms.unwrap_or(0).to_le_bytes());
        put(&mut value, 32, &self.topic_id.to_be_bytes());
        value.extend_from_slice(self.metadata.as_bytes());
        value
    }

    /// Reads the value of its record.
    pub fn parse(value: &[u8]) -> Result<CommittedOffset, FormatError> {
        check_head("offset", value, OFFSET_BYTES, METADATA_BYTES_MAX)?;
        if value[1] & !FLAG_EXPIRES != 0 {
            return Err(bad("offset.flags", value[1].into(), "bit 0"));
        }
        let zero = u16_at(value, 2);
        if zero != 0 {
            return Err(bad("offset.zero", zero.into(), "0"));
        }
        let expires = value[1] & FLAG_EXPIRES != 0;
        let expires_ms = i64_at(value, 24);
        if !expires && expires_ms != 0 {
            return Err(bad("offset.expires_ms", expires_ms as u64, "0 without its flag"));
        }
        let offset = i64_at(value, 8);
        if offset < -1 {
            return Err(bad("offset.offset", offset as u64, "-1 and up"));
        }
        Ok(CommittedOffset {
            offset,
            leader_epoch: u32_at(value, 4) as i32,
            committed_ms: i64_at(value, 16),
            expires_ms: expires.then_some(expires_ms),
            topic_id: u128::from_be_bytes(value[32..48].try_into().expect("sixteen bytes")),
            metadata: text("offset.metadata", &value[OFFSET_BYTES..])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka_members::{
        ClassicPart, ClassicVoice, ConsumerPart, MEMBER_BYTES_MAX, MemberPart, MemberStep, Partitions,
    };
    use crate::{ChunkView, Records};
    use proptest::prelude::*;

    fn round_trip(entry: &Entry) -> Result<Entry, FormatError> {
        let mut chunk = ChunkBuilder::default();
        entry.encode(&mut chunk);
        let sealed = chunk.seal(&Default::default(), Default::default()).expect("it fits");
        let view = ChunkView::parse(&sealed).expect("sealed");
        let most = if matches!(entry.fact, Fact::Member(..)) { MEMBER_BYTES_MAX } else { RECORD_BYTES_MAX };
        assert!(view.payload().len() <= most);
        Entry::decode(&Records::new(view.payload()).next().expect("one record").expect("well-formed"))
    }

    fn partitions() -> impl Strategy<Value = Partitions> {
        proptest::collection::vec((any::<u128>(), proptest::collection::vec(0..=i32::MAX, 0..4)), 0..3)
    }

    fn members() -> impl Strategy<Value = MemberState> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        let protocols = || proptest::collection::vec((".{0,9}", bytes()), 0..3);
        let classic = (0..=i32::MAX as u32, any::<u32>(), any::<bool>(), any::<u32>(), protocols(), bytes()).prop_map(
            |(generation, members, leads, session_ms, protocols, assignment)| {
                MemberPart::Classic(ClassicPart { generation, members, leads, session_ms, protocols, assignment })
            },
        );
        let step = prop_oneof![Just(MemberStep::Stable), Just(MemberStep::Revoking), Just(MemberStep::Lacking)];
        let epoch = || prop_oneof![Just(-2), 0..=i32::MAX];
        let option = || proptest::option::of(".{0,9}");
        let names = proptest::collection::vec(".{0,9}", 0..3);
        let (subscribed, has) = ((option(), option(), option(), names), (partitions(), partitions()));
        let voice =
            (any::<u32>(), protocols()).prop_map(|(session_ms, protocols)| ClassicVoice { session_ms, protocols });
        let consumer = (epoch(), epoch(), step, subscribed, has, proptest::option::of(voice)).prop_map(
            |(epoch, previous_epoch, step, (rack, pattern, assignor, names), (assigned, revoking), classic)| {
                MemberPart::Consumer(ConsumerPart {
                    epoch,
                    previous_epoch,
                    step,
                    rack,
                    pattern,
                    assignor,
                    names,
                    assigned,
                    revoking,
                    classic,
                })
            },
        );
        (option(), ".{0,9}", ".{0,9}", any::<u32>(), prop_oneof![classic, consumer]).prop_map(
            |(instance, client_id, host, rebalance_ms, part)| MemberState {
                instance,
                client_id,
                host,
                rebalance_ms,
                part,
            },
        )
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let kind = prop_oneof![Just(GroupKind::OffsetsOnly), Just(GroupKind::Classic), Just(GroupKind::Consumer)];
        let state = (kind, any::<bool>(), 0..=i32::MAX as u32, any::<i64>(), ".{0,20}").prop_map(
            |(kind, members, epoch, changed_ms, protocol_type)| GroupState {
                kind,
                members,
                epoch,
                changed_ms,
                protocol_type,
            },
        );
        let key = ("[a-zA-Z0-9._-]{3,249}", 0..=i32::MAX).prop_map(|(topic, partition)| OffsetKey { topic, partition });
        let offset = (-1..=i64::MAX, any::<i32>(), any::<i64>(), any::<Option<i64>>(), any::<u128>(), ".{0,40}")
            .prop_map(|(offset, leader_epoch, committed_ms, expires_ms, topic_id, metadata)| CommittedOffset {
                offset,
                leader_epoch,
                committed_ms,
                expires_ms,
                topic_id,
                metadata,
            });
        let offset = proptest::option::of(offset);
        let fact = prop_oneof![
            proptest::option::of(state).prop_map(Fact::Group),
            (key.clone(), offset.clone()).prop_map(|(key, offset)| Fact::Offset(key, offset)),
            (any::<i64>(), key, offset).prop_map(|(producer, key, offset)| Fact::Pending(producer, key, offset)),
            ("(.|/){0,20}", proptest::option::of(members()))
                .prop_map(|(id, member)| Fact::Member(id, member.map(Box::new))),
        ];
        // A group's name may look like anything, also like a key.
        ("(.|/){0,60}", fact).prop_map(|(group, fact)| Entry { group, fact })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entry in entries()) {
            prop_assert_eq!(round_trip(&entry), Ok(entry));
        }

        #[test]
        fn bytes_from_outside_never_panic(key in any::<Vec<u8>>(), value in any::<Option<Vec<u8>>>()) {
            let mut bytes = Vec::new();
            Record { keys: &[&key], value: value.as_deref(), ..Record::default() }.encode(&mut bytes);
            let _ = RecordView::parse(&bytes).and_then(|record| Entry::decode(&record));
        }
    }

    proptest! {
        #[test]
        fn a_members_bytes_never_panic_wherever_they_are_cut_or_changed(
            member in members(),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut bytes = member.to_bytes();
            let at = at.index(bytes.len());
            prop_assert!(MemberState::parse(&bytes[..at]).is_err());
            bytes[at] = byte;
            if let Ok(member) = MemberState::parse(&bytes) {
                prop_assert_eq!(member.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn the_longest_names_and_metadata_fit_into_a_record() {
        let of = OffsetKey { topic: "t".repeat(249), partition: i32::MAX };
        let offset = CommittedOffset {
            offset: 1,
            leader_epoch: 0,
            committed_ms: 0,
            expires_ms: None,
            topic_id: 0,
            metadata: "m".repeat(METADATA_BYTES_MAX),
        };
        let group = "g".repeat(GROUP_NAME_BYTES_MAX);
        let entry = Entry { group, fact: Fact::Pending(i64::MIN, of, Some(offset)) };
        assert_eq!(round_trip(&entry), Ok(entry.clone()));
        let longer = Entry { group: "g".repeat(GROUP_NAME_BYTES_MAX + 1), fact: Fact::Group(None) };
        assert!(round_trip(&longer).is_err());
    }
}
