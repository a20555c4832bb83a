//! Records of the system stream `_kera.applications` against `spec/applications.json`.

use kera_format::applications::{Application, Entry, LaneKey, Position, StartAt};
use kera_format::ids::*;
use kera_format::{FormatError, RecordView};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused, pushed, record, refused_by};

const NOW_MS: i64 = 1_700_000_000_000;

fn entries() -> Vec<(&'static str, &'static str, Entry)> {
    let lane = LaneKey { streamlet: StreamletId(3), lane: LaneId(1) };
    let cursor = Cursor { group: GroupId::new(2, 9), segment: SegmentIndex(5), position: 4_224 };
    let position = Position { cursor, ordinal: 1_000_000, done: false, committed_ms: NOW_MS };
    let exists = |start| Entry::Exists(Application { id: ApplicationId(0x2_0000_0004), start, created_ms: NOW_MS });
    let of_group = Position { done: true, ..position };
    vec![
        ("application", "made to start at a time", exists(StartAt::TimeMs(NOW_MS - 60_000))),
        ("application, earliest", "made to start at the first record there is", exists(StartAt::Earliest)),
        ("deleted", "a record without a value", Entry::Deleted),
        ("position", "in a lane", Entry::Base { lane, position, anew: false }),
        (
            "position, set",
            "by a reset or a copy: what was known of later groups is void",
            Entry::Base { lane, position, anew: true },
        ),
        (
            "position ahead",
            "in a group that is done before an earlier one is",
            Entry::Ahead { lane, position: of_group },
        ),
        (
            "kept group",
            "in a progress lane: an earlier owner has it",
            Entry::Kept { lane, group: GroupId::new(2, 9), first_ordinal: 999_000, next_ordinal: 1_000_400 },
        ),
    ]
}

fn encode(entry: &Entry) -> Vec<u8> {
    pushed(|chunk| entry.encode("report", StreamId(17), chunk))
}

fn case(name: &str, about: &str, entry: &Entry) -> Case {
    let bytes = encode(entry);
    let layout = Layout::of_record(&bytes);
    let layout = match entry {
        Entry::Deleted => layout,
        Entry::Exists(_) => {
            layout.u8("version").u8("start").bytes("zero", 6).u64("id").i64("start_at").i64("created_ms")
        }
        Entry::Kept { .. } => layout.u8("version").bytes("zero", 7).u64("first_ordinal").u64("next_ordinal"),
        Entry::Base { .. } | Entry::Ahead { .. } => layout
            .u8("version")
            .u8("flags")
            .u16("zero")
            .u32("segment")
            .u64("group")
            .u32("position")
            .u32("zero")
            .u64("ordinal")
            .i64("committed_ms"),
    };
    layout.case(name, about)
}

fn decode(bytes: &[u8]) -> Result<(String, StreamId, Entry), FormatError> {
    Entry::decode(&RecordView::parse(bytes)?)
}

fn refused() -> Vec<Refused> {
    let [.., (_, _, position), _, _, kept] = &entries()[..] else { unreachable!() };
    let position = encode(position);
    let value = &position[position.len() - 40..];
    let application = encode(&entries()[0].2);
    let application = &application[application.len() - 32..];
    let kept = encode(&kept.2);
    let kept = &kept[kept.len() - 24..];
    let changed = |value: &[u8], at: usize, byte: u8| {
        let mut value = value.to_vec();
        value[at] = byte;
        value
    };
    let cases = vec![
        ("no key", record("", Some(value))),
        ("a name that is not allowed", record("a b/17", None)),
        ("no stream", record("report", None)),
        ("a stream that is no number", record("report/x", None)),
        ("three parts", record("report/17/3", Some(value))),
        ("six parts", record("report/17/3/1/5/6", Some(value))),
        ("a lane over 32 bits", record("report/17/3/4294967296", Some(value))),
        ("a position without a value", record("report/17/3/1", None)),
        ("another group than the key's", record("report/17/3/1/5", Some(value))),
        ("a position that is cut", record("report/17/3/1", Some(&value[..39]))),
        ("a position that is too long", record("report/17/3/1", Some(&[value, &[0]].concat()))),
        ("a position of an unknown version", record("report/17/3/1", Some(&changed(value, 0, 2)))),
        ("unknown flags", record("report/17/3/1", Some(&changed(value, 1, 4)))),
        ("a position that is not zero", record("report/17/3/1", Some(&changed(value, 2, 1)))),
        ("a kept group that is cut", record("/17/3/1/5", Some(&kept[..23]))),
        ("a kept group of an unknown version", record("/17/3/1/5", Some(&changed(kept, 0, 2)))),
        ("a kept group that is not zero", record("/17/3/1/5", Some(&changed(kept, 1, 1)))),
        ("a position without an application", record("/17/3/1", Some(value))),
        ("an application that is cut", record("report/17", Some(&application[..31]))),
        ("an unknown start", record("report/17", Some(&changed(application, 1, 4)))),
        ("an application that is not zero", record("report/17", Some(&changed(application, 7, 1)))),
    ];
    refused_by(cases, decode)
}

#[test]
fn records_of_applications_are_the_golden_bytes() {
    let code = Golden {
        structure: "record of applications".into(),
        document: "docs/formats/applications.md".into(),
        cases: entries().iter().map(|(name, about, entry)| case(name, about, entry)).collect(),
        refused: refused(),
    };
    let of = |entry: &Entry| if matches!(entry, Entry::Kept { .. }) { "" } else { "report" };
    let decoded = entries().into_iter().map(|(_, _, entry)| (of(&entry).to_owned(), StreamId(17), entry));
    golden::check_decoded("applications.json", &code, decode, decoded);
}

#[test]
fn the_document_shows_the_golden_bytes() {
    documents::check("formats/applications.md", |_| None);
}
