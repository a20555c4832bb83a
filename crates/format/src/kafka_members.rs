//! What the records of `_kera.groups` say of the members of a group: see [`crate::kafka_groups`].
//!
//! ```text
//! offset  bytes  field
//!      0      1  version         1
//!      1      1  kind            1 classic, 2 consumer
//!      2      1  flags           classic: 1 leads; consumer: 2 speaks the classic protocol
//!      3      1  step            consumer: 0 stable, 1 revoking, 2 lacking
//!      4      4  epoch           classic: its generation; consumer: its epoch, -2 if it is away
//!      8      4  before          classic: how many members the generation has; consumer: its epoch before
//!     12      4  session_ms      classic, and consumer that speaks the classic protocol
//!     16      4  rebalance_ms
//!     20      …  fields          each a length (u32; all ones: there is none) and so many bytes:
//!                                instance, client_id, host, then
//!                                classic: assignment; protocols: a count (u32), each a name and what it tells
//!                                consumer: rack, pattern, assignor; topics by name: a count, each a name; what it has,
//!                                what it gives back: a count, each a topic's id (16 bytes, big-endian), a count, partitions;
//!                                if it speaks the classic protocol: protocols, as in classic
//! ```

use crate::FormatError;
use crate::kafka_groups::{KAFKA_GROUPS_VERSION, at_most, bad, text};
use crate::wire::{put, u32_at};

/// The most bytes that the id of a member may have.
pub const MEMBER_NAME_BYTES_MAX: usize = 1_024;
/// The most bytes that the value of a member's record may have.
pub const MEMBER_BYTES_MAX: usize = 4 << 20;
/// Bytes of a member's value before its fields.
const HEAD_BYTES: usize = 20;
const FLAG_LEADS: u8 = 1;
const FLAG_SPEAKS_CLASSIC: u8 = 2;
/// The length of a field that is not there.
const NONE: u32 = u32::MAX;
/// The epoch of a member that is away.
const AWAY: i32 = -2;

/// Partitions by the ids of their topics.
pub type Partitions = Vec<(u128, Vec<i32>)>;
/// Names of protocols, each with what is told under it.
pub type Protocols = Vec<(String, Vec<u8>)>;

/// What is kept of a member of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberState {
    /// The name that outlives it, if it has one.
    pub instance: Option<String>,
    /// What its client calls itself.
    pub client_id: String,
    /// Where it connected from.
    pub host: String,
    /// How long it may take to join again, or to give partitions back, in milliseconds.
    pub rebalance_ms: u32,
    /// What depends on how members come together.
    pub part: MemberPart,
}

/// What is kept of a member of one kind of group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberPart {
    /// Of a group whose members agree among themselves.
    Classic(ClassicPart),
    /// Of a group whose coordinator assigns.
    Consumer(ConsumerPart),
}

/// A member of a generation that has its assignments.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClassicPart {
    /// Which generation.
    pub generation: u32,
    /// How many members it has: with fewer records it is not known whole.
    pub members: u32,
    /// Whether this one leads.
    pub leads: bool,
    /// How long it may be silent, in milliseconds.
    pub session_ms: u32,
    /// What it can do, what it likes most first, each with what the leader should know.
    pub protocols: Protocols,
    /// What the leader gave it.
    pub assignment: Vec<u8>,
}

/// Where a member is on its way to its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemberStep {
    /// It has what its epoch gives it.
    #[default]
    Stable,
    /// It was told to give partitions back and has not said that it did.
    Revoking,
    /// It should have partitions that others have not given back.
    Lacking,
}

/// A member of a group whose coordinator assigns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConsumerPart {
    /// Its epoch; -2 if it is away.
    pub epoch: i32,
    /// The one before.
    pub previous_epoch: i32,
    /// Where it is on its way.
    pub step: MemberStep,
    /// Its rack.
    pub rack: Option<String>,
    /// The pattern of names that it subscribes to.
    pub pattern: Option<String>,
    /// The assignor that it would like.
    pub assignor: Option<String>,
    /// The topics that it subscribes to by name.
    pub names: Vec<String>,
    /// What it has.
    pub assigned: Partitions,
    /// What it was told to give back.
    pub revoking: Partitions,
    /// If it speaks the classic protocol: what it says there. From level [`CHANGING_GROUPS`](crate::level::CHANGING_GROUPS) on.
    pub classic: Option<ClassicVoice>,
}

/// What a member of a group whose coordinator assigns says if it speaks the classic protocol.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClassicVoice {
    /// How long it may be silent, in milliseconds.
    pub session_ms: u32,
    /// What it can do, what it likes most first, each with what a leader would be told.
    pub protocols: Protocols,
}

impl MemberState {
    /// The value of its record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = vec![0; HEAD_BYTES];
        value[0] = KAFKA_GROUPS_VERSION;
        put(&mut value, 16, &self.rebalance_ms.to_le_bytes());
        put_option(&mut value, self.instance.as_deref());
        put_field(&mut value, self.client_id.as_bytes());
        put_field(&mut value, self.host.as_bytes());
        match &self.part {
            MemberPart::Classic(part) => {
                (value[1], value[2]) = (1, if part.leads { FLAG_LEADS } else { 0 });
                put(&mut value, 4, &part.generation.to_le_bytes());
                put(&mut value, 8, &part.members.to_le_bytes());
                put(&mut value, 12, &part.session_ms.to_le_bytes());
                put_field(&mut value, &part.assignment);
                put_protocols(&mut value, &part.protocols);
            }
            MemberPart::Consumer(part) => {
                value[1] = 2;
                value[3] = match part.step {
                    MemberStep::Stable => 0,
                    MemberStep::Revoking => 1,
                    MemberStep::Lacking => 2,
                };
                put(&mut value, 4, &part.epoch.to_le_bytes());
                put(&mut value, 8, &part.previous_epoch.to_le_bytes());
                for option in [&part.rack, &part.pattern, &part.assignor] {
                    put_option(&mut value, option.as_deref());
                }
                put_count(&mut value, part.names.len());
                part.names.iter().for_each(|name| put_field(&mut value, name.as_bytes()));
                put_partitions(&mut value, &part.assigned);
                put_partitions(&mut value, &part.revoking);
                if let Some(classic) = &part.classic {
                    value[2] = FLAG_SPEAKS_CLASSIC;
                    put(&mut value, 12, &classic.session_ms.to_le_bytes());
                    put_protocols(&mut value, &classic.protocols);
                }
            }
        }
        value
    }

    /// Reads the value of its record.
    pub fn parse(value: &[u8]) -> Result<MemberState, FormatError> {
        FormatError::need("member", HEAD_BYTES, value.len())?;
        at_most("member", value.len() as u64, MEMBER_BYTES_MAX as u64)?;
        if value[0] != KAFKA_GROUPS_VERSION {
            return Err(bad("member.version", value[0].into(), "1"));
        }
        let mut rest = Rest(&value[HEAD_BYTES..]);
        let instance = rest.option("member.instance")?;
        let client_id = rest.text("member.client_id")?;
        let host = rest.text("member.host")?;
        let part = match value[1] {
            1 => MemberPart::Classic(ClassicPart::parse(value, &mut rest)?),
            2 => MemberPart::Consumer(ConsumerPart::parse(value, &mut rest)?),
            other => return Err(bad("member.kind", other.into(), "1 or 2")),
        };
        if !rest.0.is_empty() {
            return Err(bad("member (bytes behind its fields)", rest.0.len() as u64, "0"));
        }
        Ok(MemberState { instance, client_id, host, rebalance_ms: u32_at(value, 16), part })
    }
}

impl ClassicPart {
    fn parse(value: &[u8], rest: &mut Rest<'_>) -> Result<ClassicPart, FormatError> {
        if value[2] & !FLAG_LEADS != 0 {
            return Err(bad("member.flags", value[2].into(), "bit 0"));
        }
        if value[3] != 0 {
            return Err(bad("member.step", value[3].into(), "0 in a classic group"));
        }
        let generation = u32_at(value, 4);
        if generation > i32::MAX as u32 {
            return Err(bad("member.epoch", generation.into(), "31 bits"));
        }
        let assignment = rest.field("member.assignment")?.to_vec();
        let protocols = rest.protocols()?;
        let (members, session_ms) = (u32_at(value, 8), u32_at(value, 12));
        Ok(ClassicPart { generation, members, leads: value[2] != 0, session_ms, protocols, assignment })
    }
}

impl ConsumerPart {
    fn parse(value: &[u8], rest: &mut Rest<'_>) -> Result<ConsumerPart, FormatError> {
        if value[2] & !FLAG_SPEAKS_CLASSIC != 0 {
            return Err(bad("member.flags", value[2].into(), "0 or 2 in a consumer group"));
        }
        let step = match value[3] {
            0 => MemberStep::Stable,
            1 => MemberStep::Revoking,
            2 => MemberStep::Lacking,
            other => return Err(bad("member.step", other.into(), "0 to 2")),
        };
        let (epoch, previous_epoch) = (u32_at(value, 4) as i32, u32_at(value, 8) as i32);
        for (field, epoch) in [("member.epoch", epoch), ("member.before", previous_epoch)] {
            if epoch < 0 && epoch != AWAY {
                return Err(bad(field, epoch as u32 as u64, "31 bits, or -2"));
            }
        }
        let (session_ms, speaks_classic) = (u32_at(value, 12), value[2] != 0);
        if session_ms != 0 && !speaks_classic {
            return Err(bad("member.session_ms", session_ms.into(), "0 in a consumer group"));
        }
        Ok(ConsumerPart {
            epoch,
            previous_epoch,
            step,
            rack: rest.option("member.rack")?,
            pattern: rest.option("member.pattern")?,
            assignor: rest.option("member.assignor")?,
            names: rest.list(4, |rest| rest.text("member.topic"))?,
            assigned: rest.partitions()?,
            revoking: rest.partitions()?,
            classic: speaks_classic
                .then(|| Ok(ClassicVoice { session_ms, protocols: rest.protocols()? }))
                .transpose()?,
        })
    }
}

fn put_count(value: &mut Vec<u8>, count: usize) {
    value.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_field(value: &mut Vec<u8>, bytes: &[u8]) {
    put_count(value, bytes.len());
    value.extend_from_slice(bytes);
}

fn put_option(value: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_field(value, text.as_bytes()),
        None => value.extend_from_slice(&NONE.to_le_bytes()),
    }
}

fn put_protocols(value: &mut Vec<u8>, protocols: &Protocols) {
    put_count(value, protocols.len());
    for (name, metadata) in protocols {
        put_field(value, name.as_bytes());
        put_field(value, metadata);
    }
}

fn put_partitions(value: &mut Vec<u8>, partitions: &Partitions) {
    put_count(value, partitions.len());
    for (topic, partitions) in partitions {
        value.extend_from_slice(&topic.to_be_bytes());
        put_count(value, partitions.len());
        partitions.iter().for_each(|partition| value.extend_from_slice(&partition.to_le_bytes()));
    }
}

/// What has not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], FormatError> {
        FormatError::need(field, count, self.0.len())?;
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(bytes)
    }

    fn count(&mut self, field: &'static str) -> Result<u32, FormatError> {
        Ok(u32_at(self.bytes(field, 4)?, 0))
    }

    fn field(&mut self, field: &'static str) -> Result<&'a [u8], FormatError> {
        let count = self.count(field)?;
        self.bytes(field, count as usize)
    }

    fn text(&mut self, field: &'static str) -> Result<String, FormatError> {
        text(field, self.field(field)?)
    }

    fn option(&mut self, field: &'static str) -> Result<Option<String>, FormatError> {
        if self.0.starts_with(&NONE.to_le_bytes()) {
            self.0 = &self.0[4..];
            return Ok(None);
        }
        self.text(field).map(Some)
    }

    /// A count and so many things, each of which takes so many bytes at least: a count that lies ends here.
    fn list<T>(
        &mut self,
        bytes_min: usize,
        mut one: impl FnMut(&mut Rest<'a>) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let count = self.count("member (a count)")? as usize;
        FormatError::need("member (what is counted)", count.saturating_mul(bytes_min), self.0.len())?;
        (0..count).map(|_| one(self)).collect()
    }

    fn protocols(&mut self) -> Result<Protocols, FormatError> {
        self.list(8, |rest| {
            let name = rest.text("member.protocol")?;
            Ok((name, rest.field("member.protocol (what it tells)")?.to_vec()))
        })
    }

    fn partitions(&mut self) -> Result<Partitions, FormatError> {
        self.list(20, |rest| {
            let topic = rest.bytes("member.topic_id", 16)?.try_into().expect("sixteen bytes");
            let partitions = rest.list(4, |rest| {
                let partition = rest.count("member.partition")? as i32;
                if partition < 0 {
                    return Err(bad("member.partition", partition as u32 as u64, "31 bits"));
                }
                Ok(partition)
            })?;
            Ok((u128::from_be_bytes(topic), partitions))
        })
    }
}
