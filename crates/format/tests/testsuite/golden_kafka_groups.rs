//! Records of the system stream `_kera.groups` against `spec/kafka_groups.json`.

use kera_format::kafka_groups::{CommittedOffset, Entry, Fact, GroupKind, GroupState, OffsetKey};
use kera_format::kafka_members::{ClassicPart, ClassicVoice, ConsumerPart, MemberPart, MemberState, MemberStep};
use kera_format::{FormatError, RecordView};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused, pushed, record, refused_by};

const NOW_MS: i64 = 1_700_000_000_000;

fn members() -> [MemberState; 3] {
    let classic = ClassicPart {
        generation: 17,
        members: 2,
        leads: true,
        session_ms: 45_000,
        protocols: vec![("range".into(), vec![0, 1, 2])],
        assignment: vec![9, 8],
    };
    let topic = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;
    let consumer = ConsumerPart {
        epoch: 18,
        previous_epoch: 17,
        step: MemberStep::Revoking,
        rack: None,
        pattern: None,
        assignor: Some("uniform".into()),
        names: vec!["orders".into()],
        assigned: vec![(topic, vec![0, 1])],
        revoking: vec![(topic, vec![2])],
        classic: None,
    };
    let voice = ClassicVoice { session_ms: 45_000, protocols: vec![("range".into(), vec![0, 1, 2])] };
    let both = ConsumerPart { classic: Some(voice), ..consumer.clone() };
    let classic = MemberState {
        instance: Some("place".into()),
        client_id: "app".into(),
        host: "/127.0.0.1".into(),
        rebalance_ms: 300_000,
        part: MemberPart::Classic(classic),
    };
    let [consumer, both] = [consumer, both].map(|part| MemberState {
        instance: None,
        part: MemberPart::Consumer(part),
        ..classic.clone()
    });
    [classic, consumer, both]
}

fn entries() -> Vec<(&'static str, &'static str, Entry)> {
    let entry = |fact| Entry { group: "report/a".into(), fact };
    let of = OffsetKey { topic: "orders".into(), partition: 3 };
    let state = GroupState {
        kind: GroupKind::Classic,
        members: true,
        epoch: 17,
        changed_ms: NOW_MS,
        protocol_type: "consumer".into(),
    };
    let [classic, consumer, both] = members();
    let member = |id: &str, member| entry(Fact::Member(id.into(), Some(Box::new(member))));
    let offset = CommittedOffset {
        offset: 1_000_000,
        leader_epoch: 5,
        committed_ms: NOW_MS,
        expires_ms: None,
        topic_id: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        metadata: "état".into(),
    };
    let expires = CommittedOffset {
        leader_epoch: -1,
        expires_ms: Some(NOW_MS + 60_000),
        topic_id: 0,
        metadata: String::new(),
        ..offset.clone()
    };
    vec![
        ("group", "after its 17th generation", entry(Fact::Group(Some(state)))),
        ("group, gone", "a record without a value", entry(Fact::Group(None))),
        ("offset", "with metadata", entry(Fact::Offset(of.clone(), Some(offset.clone())))),
        ("offset that expires", "of an old client", entry(Fact::Offset(of.clone(), Some(expires)))),
        ("offset, gone", "a record without a value", entry(Fact::Offset(of.clone(), None))),
        ("pending offset", "of producer 4711's transaction", entry(Fact::Pending(4_711, of.clone(), Some(offset)))),
        ("pending offset, gone", "the transaction has ended", entry(Fact::Pending(4_711, of, None))),
        ("classic member", "that leads two", member("app/1", classic)),
        ("consumer member", "that gives back", member("app/2", consumer)),
        ("consumer member that speaks the classic protocol", "the same", member("app/3", both)),
        ("member, gone", "a record without a value", entry(Fact::Member("app/1".into(), None))),
    ]
}

fn encode(entry: &Entry) -> Vec<u8> {
    pushed(|chunk| entry.encode(chunk))
}

fn counted<'a>(layout: Layout<'a>, name: &str, bytes: usize) -> Layout<'a> {
    layout.u32(&format!("{name} length")).text(name, bytes)
}

fn case(name: &str, about: &str, entry: &Entry) -> Case {
    let bytes = encode(entry);
    let layout = Layout::of_record(&bytes);
    let left = bytes.len() - 10 - usize::from(bytes[8]);
    let layout = match &entry.fact {
        Fact::Group(None) | Fact::Offset(_, None) | Fact::Pending(_, _, None) | Fact::Member(_, None) => layout,
        Fact::Member(_, Some(member)) => {
            let layout = layout.u8("version").u8("kind").u8("flags").u8("step").u32("epoch").u32("before");
            let layout = layout.u32("session_ms").u32("rebalance_ms");
            let layout = match &member.instance {
                Some(instance) => counted(layout, "instance", instance.len()),
                None => layout.u32("no instance"),
            };
            let layout = counted(counted(layout, "client_id", member.client_id.len()), "host", member.host.len());
            match &member.part {
                MemberPart::Classic(_) => {
                    let layout = layout.u32("assignment length").bytes("assignment", 2).u32("protocols");
                    counted(layout, "protocol", 5).u32("what it tells, length").bytes("what it tells", 3)
                }
                MemberPart::Consumer(part) => {
                    let layout = counted(layout.u32("no rack").u32("no pattern"), "assignor", 7);
                    let layout = counted(layout.u32("topics by name"), "topic", 6);
                    let layout = layout.u32("assigned topics").bytes("topic_id", 16).u32("partitions");
                    let layout = layout.u32("partition").u32("partition").u32("revoked topics");
                    let layout = layout.bytes("topic_id", 16).u32("partitions").u32("partition");
                    if part.classic.is_none() {
                        layout
                    } else {
                        let layout = counted(layout.u32("protocols"), "protocol", 5);
                        layout.u32("what it tells, length").bytes("what it tells", 3)
                    }
                }
            }
        }
        Fact::Group(Some(_)) => {
            layout.u8("version").u8("kind").u16("zero").u32("epoch").i64("changed_ms").text("protocol_type", left - 16)
        }
        Fact::Offset(..) | Fact::Pending(..) => layout
            .u8("version")
            .u8("flags")
            .u16("zero")
            .u32("leader_epoch")
            .i64("offset")
            .i64("committed_ms")
            .i64("expires_ms")
            .bytes("topic_id", 16)
            .text("metadata", left - 48),
    };
    layout.case(name, about)
}

fn decode(bytes: &[u8]) -> Result<Entry, FormatError> {
    Entry::decode(&RecordView::parse(bytes)?)
}

/// The value of the golden entry at this place.
fn value(at: usize) -> Vec<u8> {
    let bytes = encode(&entries()[at].2);
    RecordView::parse(&bytes).expect("a record").value().expect("a value").to_vec()
}

fn refused() -> Vec<Refused> {
    let (group, offset, classic, consumer) = (value(0), value(2), value(7), value(8));
    let changed = |value: &[u8], at: usize, byte: u8| {
        let mut value = value.to_vec();
        value[at] = byte;
        value
    };
    let cases = vec![
        ("no key", record("", None)),
        ("an unknown kind of key", record("members/a", None)),
        ("no group", record("offset/orders/3", None)),
        ("a topic that is not allowed", record("offset/a b/3/report", None)),
        ("a partition that is no number", record("offset/orders/x/report", None)),
        ("a partition below zero", record("offset/orders/-1/report", None)),
        ("a producer that is no number", record("pending/x/orders/3/report", None)),
        ("a group that is cut", record("group/report", Some(&group[..15]))),
        ("a group of an unknown version", record("group/report", Some(&changed(&group, 0, 2)))),
        ("an unknown kind of group", record("group/report", Some(&changed(&group, 1, 3)))),
        ("unknown flags of a group", record("group/report", Some(&changed(&group, 2, 2)))),
        ("a group that is not zero", record("group/report", Some(&changed(&group, 3, 1)))),
        ("an epoch over 31 bits", record("group/report", Some(&changed(&group, 7, 0x80)))),
        ("a protocol type that is not UTF-8", record("group/report", Some(&changed(&group, 16, 0xff)))),
        ("an offset that is cut", record("offset/orders/3/report", Some(&offset[..47]))),
        ("an offset of an unknown version", record("offset/orders/3/report", Some(&changed(&offset, 0, 2)))),
        ("unknown flags", record("offset/orders/3/report", Some(&changed(&offset, 1, 2)))),
        ("an offset that is not zero", record("offset/orders/3/report", Some(&changed(&offset, 2, 1)))),
        ("an offset below -1", record("offset/orders/3/report", Some(&changed(&offset, 15, 0x80)))),
        ("a time without its flag", record("offset/orders/3/report", Some(&changed(&offset, 24, 1)))),
        ("a member's id that is shorter than it says", record("member/9/app/1", None)),
        ("a member without a group", record("member/5/app/1", None)),
        ("a member that is cut", record("member/5/app/1/report", Some(&classic[..19]))),
        ("a member whose last field is cut", record("member/5/app/1/report", Some(&classic[..classic.len() - 1]))),
        ("a member of an unknown version", record("member/5/app/1/report", Some(&changed(&classic, 0, 2)))),
        ("an unknown kind of member", record("member/5/app/1/report", Some(&changed(&classic, 1, 3)))),
        ("unknown flags of a member", record("member/5/app/1/report", Some(&changed(&classic, 2, 2)))),
        ("a step of a classic member", record("member/5/app/1/report", Some(&changed(&classic, 3, 1)))),
        ("a generation over 31 bits", record("member/5/app/1/report", Some(&changed(&classic, 7, 0x80)))),
        ("flags of a consumer member", record("member/5/app/2/report", Some(&changed(&consumer, 2, 1)))),
        ("an unknown step", record("member/5/app/2/report", Some(&changed(&consumer, 3, 3)))),
        ("a member's epoch below -2", record("member/5/app/2/report", Some(&changed(&consumer, 7, 0x80)))),
        ("a session of a consumer member", record("member/5/app/2/report", Some(&changed(&consumer, 12, 1)))),
        ("metadata that is not UTF-8", record("offset/orders/3/report", Some(&changed(&offset, 48, 0xff)))),
    ];
    refused_by(cases, decode)
}

#[test]
fn records_of_kafka_groups_are_the_golden_bytes() {
    let code = Golden {
        structure: "record of Kafka groups".into(),
        document: "docs/formats/kafka-groups.md".into(),
        cases: entries().iter().map(|(name, about, entry)| case(name, about, entry)).collect(),
        refused: refused(),
    };
    golden::check_decoded("kafka_groups.json", &code, decode, entries().into_iter().map(|(_, _, entry)| entry));
}

#[test]
fn the_document_shows_the_golden_bytes() {
    documents::check("formats/kafka-groups.md", |_| None);
}
