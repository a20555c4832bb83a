//! Records of the system stream `_kera.floors` against `spec/kafka_floors.json`.

use kera_format::kafka_floors::Entry;
use kera_format::{FormatError, LaneId, RecordView, StreamId, StreamletId};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused, pushed, record, refused_by};

fn entries() -> Vec<(&'static str, &'static str, Entry)> {
    let entry = |ordinal| Entry { stream: StreamId(19), streamlet: StreamletId(258), lane: LaneId(3), ordinal };
    vec![
        ("floor", "records below were deleted", entry(Some(72_623_859_790_382_856))),
        ("none", "a record without a value", entry(None)),
    ]
}

fn encode(entry: &Entry) -> Vec<u8> {
    pushed(|chunk| entry.encode(chunk))
}

fn case(name: &str, about: &str, entry: &Entry) -> Case {
    let bytes = encode(entry);
    let mut layout = Layout::of_record(&bytes);
    if entry.ordinal.is_some() {
        layout = layout.u8("version").bytes("zero", 7).u64("ordinal");
    }
    layout.case(name, about)
}

fn decode(bytes: &[u8]) -> Result<Entry, FormatError> {
    Entry::decode(&RecordView::parse(bytes)?)
}

fn refused() -> Vec<Refused> {
    let value = [1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
    let changed = |at: usize, byte: u8| {
        let mut value = value;
        value[at] = byte;
        record("floor/19/258/3", Some(&value))
    };
    let cases = vec![
        ("no key", record("", None)),
        ("another kind of key", record("group/copy", None)),
        ("a key that is cut", record("floor/19/258", None)),
        ("a key with more", record("floor/19/258/3/4", None)),
        ("a streamlet that cannot be", record("floor/19/4294967296/3", None)),
        ("a value that is cut", record("floor/19/258/3", Some(&value[..15]))),
        ("bytes behind the value", record("floor/19/258/3", Some(&[0; 17]))),
        ("an unknown version", changed(0, 2)),
        ("bytes that are not zero", changed(7, 1)),
    ];
    refused_by(cases, decode)
}

#[test]
fn records_of_kafka_floors_are_the_golden_bytes() {
    let code = Golden {
        structure: "record of where Kafka partitions begin".into(),
        document: "docs/formats/kafka-floors.md".into(),
        cases: entries().iter().map(|(name, about, entry)| case(name, about, entry)).collect(),
        refused: refused(),
    };
    golden::check_decoded("kafka_floors.json", &code, decode, entries().into_iter().map(|(_, _, entry)| entry));
}

#[test]
fn the_document_shows_the_golden_bytes() {
    documents::check("formats/kafka-floors.md", |_| None);
}
