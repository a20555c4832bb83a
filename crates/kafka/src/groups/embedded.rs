//! What consumers of the classic protocol tell each other through their coordinator: what they subscribe to and have, and what their
//! leader gives them. Kafka calls it the embedded consumer protocol; a coordinator looks inside when it has to assign itself.
//!
//! ```text
//! subscription: version i16 · topics: count i32, names · user data · from 1 on: what it has · from 2 on: generation i32 · from 3 on: rack
//! assignment:   version i16 · partitions: count i32, each a topic's name and its partitions: count i32, i32 each · user data
//! ```
//! Names are an i16 length and so many bytes, user data an i32 length; -1 is none. What stands behind is of later versions.

use bytes::Bytes;

/// The newest version that is known here; in what follows it later ones are the same.
const VERSION_MAX: i16 = 3;

/// Partitions by the names of their topics.
pub(super) type Named = Vec<(String, Vec<i32>)>;

/// What a consumer subscribes to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Subscription {
    pub(super) topics: Vec<String>,
    /// What it had when it said so.
    pub(super) owned: Named,
    pub(super) rack: Option<String>,
}

/// What a leader gave a consumer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Given {
    pub(super) partitions: Named,
    /// Whether the assignor said something beside that, which nobody else could say.
    pub(super) is_special: bool,
}

/// Reads a subscription. None if it is not one.
pub(super) fn subscription(bytes: &[u8]) -> Option<Subscription> {
    let mut rest = Rest(bytes);
    let version = rest.i16()?;
    let topics = rest.list(2, Rest::text)?;
    // Versions 0 may have been written without user data.
    let mut subscription = Subscription { topics, ..Subscription::default() };
    if version >= 1 {
        rest.data()?;
        subscription.owned = rest.partitions()?;
    }
    if version >= 2 {
        rest.i32()?;
    }
    if version >= 3 {
        subscription.rack = rest.optional_text()?;
    }
    Some(subscription)
}

/// Reads an assignment. None if it is not one. No bytes at all are what somebody has whom the leader gave nothing.
pub(super) fn given(bytes: &[u8]) -> Option<Given> {
    if bytes.is_empty() {
        return Some(Given::default());
    }
    let mut rest = Rest(bytes);
    rest.i16()?;
    let partitions = rest.partitions()?;
    let is_special = !rest.0.is_empty() && rest.data()?.is_some_and(|data| !data.is_empty());
    Some(Given { partitions, is_special })
}

/// The assignment for somebody whose subscription is `subscription`, in the version of that.
pub(super) fn assignment(subscription: &[u8], partitions: &Named) -> Bytes {
    let version = Rest(subscription).i16().unwrap_or(0).clamp(0, VERSION_MAX);
    let mut bytes = Vec::from(version.to_be_bytes());
    bytes.extend_from_slice(&(partitions.len() as i32).to_be_bytes());
    for (topic, partitions) in partitions {
        // Names of topics have 249 bytes at most.
        bytes.extend_from_slice(&(topic.len() as i16).to_be_bytes());
        bytes.extend_from_slice(topic.as_bytes());
        bytes.extend_from_slice(&(partitions.len() as i32).to_be_bytes());
        partitions.iter().for_each(|partition| bytes.extend_from_slice(&partition.to_be_bytes()));
    }
    bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    bytes.into()
}

/// What has not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn i16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        self.optional_text()?
    }

    /// A text, or that there is none.
    #[allow(clippy::option_option)]
    fn optional_text(&mut self) -> Option<Option<String>> {
        match self.i16()? {
            -1 => Some(None),
            length => {
                let bytes = self.bytes(usize::try_from(length).ok()?)?;
                Some(Some(std::str::from_utf8(bytes).ok()?.to_owned()))
            }
        }
    }

    /// User data, or that there is none.
    fn data(&mut self) -> Option<Option<&'a [u8]>> {
        match self.i32()? {
            -1 => Some(None),
            length => Some(Some(self.bytes(usize::try_from(length).ok()?)?)),
        }
    }

    /// A count, and so many things that take so many bytes each at least: a count that lies takes no memory.
    fn list<T>(&mut self, bytes_min: usize, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.i32()?).ok()?;
        if count > self.0.len() / bytes_min {
            return None;
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn partitions(&mut self) -> Option<Named> {
        self.list(6, |rest| Some((rest.text()?, rest.list(4, Rest::i32)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::group::text;
    use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition as Assigned;
    use kafka_protocol::messages::consumer_protocol_subscription::TopicPartition as Owned;
    use kafka_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicName};
    use kafka_protocol::protocol::{Decodable, Encodable};

    fn written(version: i16, data: Option<&'static [u8]>) -> Vec<u8> {
        let owned = Owned::default().with_topic(TopicName(text("a"))).with_partitions(vec![0, 7]);
        let subscription = ConsumerProtocolSubscription::default()
            .with_topics(vec![text("a"), text("orders")])
            .with_user_data(data.map(Bytes::from_static))
            .with_owned_partitions(if version >= 1 { vec![owned] } else { Vec::new() })
            .with_generation_id(if version >= 2 { 5 } else { -1 })
            .with_rack_id((version >= 3).then(|| text("b")));
        let mut bytes = Vec::from(version.to_be_bytes());
        subscription.encode(&mut bytes, version).expect("encodes");
        bytes
    }

    #[test]
    fn a_subscription_is_read_in_each_version() {
        for version in 0..=3_i16 {
            for data in [None, Some(&b"data"[..])] {
                let mut bytes = written(version, data);
                let expected = Subscription {
                    topics: vec!["a".into(), "orders".into()],
                    owned: if version >= 1 { vec![("a".into(), vec![0, 7])] } else { Vec::new() },
                    rack: (version >= 3).then(|| "b".into()),
                };
                assert_eq!(subscription(&bytes), Some(expected.clone()));
                // As a later version may add to it.
                bytes.extend_from_slice(b"later");
                assert_eq!(subscription(&bytes), Some(expected));
            }
        }
    }

    #[test]
    fn a_subscription_that_is_cut_or_lies_is_none() {
        let whole = written(3, Some(b"data"));
        for end in 0..whole.len() {
            assert_eq!(subscription(&whole[..end]), None, "{end}");
        }
        for bytes in [
            &b"\0\0\x7f\xff\xff\xff"[..],
            b"\0\0\xff\xff\xff\xff",
            b"\0\0\0\0\0\x01\xff\xff",
            b"\0\0\0\0\0\x01\0\x05ab",
            b"\0\x01\0\0\0\0\xff\xff\xff\xff\x7f\xff\xff\xff",
            b"\0\x01\0\0\0\0\xff\xff\xff\xff\0\0\0\x01\0\x01a\x7f\xff\xff\xff",
        ] {
            assert_eq!(subscription(bytes), None);
        }
    }

    #[test]
    fn an_assignment_is_what_kafka_would_write_and_is_read_again() {
        let partitions = vec![("a".to_owned(), vec![0, 7]), ("orders".to_owned(), vec![2])];
        for version in 0..=3_i16 {
            let bytes = assignment(&written(version, None), &partitions);
            let mut rest = bytes.slice(2..);
            assert_eq!(bytes[..2], version.to_be_bytes());
            let told = ConsumerProtocolAssignment::decode(&mut rest, version).expect("an assignment");
            let told: Vec<(&str, &[i32])> =
                told.assigned_partitions.iter().map(|of| (&**of.topic, &of.partitions[..])).collect();
            assert_eq!(told, [("a", &[0, 7][..]), ("orders", &[2])]);
            assert!(rest.is_empty());
            assert_eq!(given(&bytes), Some(Given { partitions: partitions.clone(), is_special: false }));
        }
    }

    #[test]
    fn what_an_assignor_says_beside_partitions_is_seen() {
        let of = |data: Option<&'static [u8]>| {
            let assigned = Assigned::default().with_topic(TopicName(text("a"))).with_partitions(vec![1]);
            let assignment = ConsumerProtocolAssignment::default()
                .with_assigned_partitions(vec![assigned])
                .with_user_data(data.map(Bytes::from_static));
            let mut bytes = vec![0, 1];
            assignment.encode(&mut bytes, 1).expect("encodes");
            given(&bytes).map(|given| given.is_special)
        };
        assert_eq!((of(None), of(Some(b"")), of(Some(b"tasks"))), (Some(false), Some(false), Some(true)));
        assert_eq!(given(b""), Some(Given::default()));
        assert_eq!(given(b"\0\0\0\0\0\x01"), None);
    }
}
