//! Records of the system stream `_kera.transactions` against `spec/kafka_transactions.json`.

use kera_format::kafka_groups::OffsetKey;
use kera_format::kafka_transactions::{AbortedRange, Entry, Touched, Transaction, TransactionState};
use kera_format::{FormatError, RecordView, StreamId};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused, pushed, record, refused_by};

const NOW_MS: i64 = 1_700_000_000_000;

fn entries() -> Vec<(&'static str, &'static str, Entry)> {
    let entry = |transaction| Entry::Transaction("copy/1".into(), transaction);
    let of = |partition| {
        let touched = Touched { stream: StreamId(19), from_offset: 1_000 + partition as u64 };
        (OffsetKey { topic: "orders".into(), partition }, touched)
    };
    let aborted = AbortedRange {
        stream: StreamId(19),
        partition: 258,
        producer_id: 4_711,
        first_offset: 1_258,
        marker_offset: 1_300,
        stable_offset: 1_290,
        epoch: 8,
    };
    let committing = Transaction {
        state: TransactionState::Committing,
        producer_id: 4_711,
        epoch: 7,
        last_epoch: 6,
        previous_producer_id: -1,
        timeout_ms: 60_000,
        started_ms: NOW_MS - 500,
        changed_ms: NOW_MS,
        partitions: [of(3), of(258)].into(),
        groups: ["report/a".to_owned()].into(),
    };
    let empty = Transaction {
        state: TransactionState::Empty,
        last_epoch: -1,
        started_ms: -1,
        partitions: Default::default(),
        groups: Default::default(),
        ..committing.clone()
    };
    vec![
        ("transaction", "that will be committed", entry(Some(committing))),
        ("producer", "that has just begun", entry(Some(empty))),
        ("forgotten", "a record without a value", entry(None)),
        ("aborted", "what an aborted transaction has left in a partition", Entry::Aborted(aborted)),
    ]
}

fn encode(entry: &Entry) -> Vec<u8> {
    pushed(|chunk| entry.encode(chunk))
}

fn case(name: &str, about: &str, entry: &Entry) -> Case {
    let bytes = encode(entry);
    let mut layout = Layout::of_record(&bytes);
    if let Entry::Aborted(_) = entry {
        layout = layout.u8("version").u8("zero").u16("epoch").u32("zero").u64("marker_offset").u64("stable_offset");
    }
    if let Entry::Transaction(_, Some(transaction)) = entry {
        layout = layout
            .u8("version")
            .u8("state")
            .u16("epoch")
            .u32("timeout_ms")
            .i64("producer_id")
            .i64("previous_producer_id")
            .i64("started_ms")
            .i64("changed_ms")
            .bytes("last_epoch", 2)
            .u16("zero")
            .u32("partitions")
            .u32("groups");
        for of in transaction.partitions.keys() {
            layout = layout
                .u16("topic length")
                .text("topic", of.topic.len())
                .u32("partition")
                .u64("stream")
                .u64("from_offset");
        }
        for group in &transaction.groups {
            layout = layout.u16("group length").text("group", group.len());
        }
    }
    layout.case(name, about)
}

fn decode(bytes: &[u8]) -> Result<Entry, FormatError> {
    Entry::decode(&RecordView::parse(bytes)?)
}

/// The value of an aborted range.
fn range() -> Vec<u8> {
    let bytes = encode(&entries()[3].2);
    RecordView::parse(&bytes).expect("a record").value().expect("a value").to_vec()
}

fn refused() -> Vec<Refused> {
    let bytes = encode(&entries()[0].2);
    let value = RecordView::parse(&bytes).expect("a record").value().expect("a value").to_vec();
    let changed = |at: usize, byte: u8| {
        let mut value = value.clone();
        value[at] = byte;
        record("transaction/copy", Some(&value))
    };
    let cases = vec![
        ("no key", record("", None)),
        ("another kind of key", record("group/copy", None)),
        ("a transaction that is cut", record("transaction/copy", Some(&value[..51]))),
        ("lists that are cut", record("transaction/copy", Some(&value[..value.len() - 1]))),
        ("bytes behind its lists", record("transaction/copy", Some(&[&value[..], &[0]].concat()))),
        ("an unknown version", changed(0, 2)),
        ("an unknown state", changed(1, 6)),
        ("not zero", changed(42, 1)),
        ("too many partitions", changed(46, 1)),
        ("too many groups", changed(50, 1)),
        ("a topic that is longer than the record", changed(52, 255)),
        ("a topic that is not allowed", changed(54, b'/')),
        ("an aborted range without a partition", record("aborted/19", Some(&[1; 24]))),
        ("an aborted range with more in its key", record("aborted/19/258/4711/1258/0", Some(&range()))),
        ("an aborted range of no stream", record("aborted/x/258/4711/1258", Some(&range()))),
        ("an aborted range that is forgotten", record("aborted/19/258/4711/1258", None)),
        ("an aborted range that is cut", record("aborted/19/258/4711/1258", Some(&range()[..23]))),
        ("bytes behind an aborted range", record("aborted/19/258/4711/1258", Some(&[&range()[..], &[0]].concat()))),
        ("an unknown version of an aborted range", record("aborted/19/258/4711/1258", Some(&[2; 24]))),
        ("an aborted range that is not zero", record("aborted/19/258/4711/1258", Some(&[1; 24]))),
        ("an aborted range that ends before it begins", record("aborted/19/258/4711/1301", Some(&range()))),
    ];
    refused_by(cases, decode)
}

#[test]
fn records_of_kafka_transactions_are_the_golden_bytes() {
    let code = Golden {
        structure: "record of Kafka transactions".into(),
        document: "docs/formats/kafka-transactions.md".into(),
        cases: entries().iter().map(|(name, about, entry)| case(name, about, entry)).collect(),
        refused: refused(),
    };
    golden::check_decoded("kafka_transactions.json", &code, decode, entries().into_iter().map(|(_, _, entry)| entry));
}

#[test]
fn the_document_shows_the_golden_bytes() {
    documents::check("formats/kafka-transactions.md", |_| None);
}
