//! What the coordinators of a cluster agree on, and their log on the disk, against `spec/`.

use kera_format::FormatError;
use kera_format::checksum::crc32c;
use kera_format::cluster::{ClusterEntry, RaftPlace, examples};
use kera_format::raft::{FileHeader, LogEntry, Payload, Record, encode_block, parse_block};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, refused_by};

/// The fields of a body: `name:bytes` a number, `name:text` a length and a text, `name:uuid`, `name:i64`.
fn fields<'a>(mut layout: Layout<'a>, body: &[u8], names: &str) -> Layout<'a> {
    let mut at = 0;
    for field in names.split_whitespace() {
        let (name, kind) = field.split_once(':').expect("name:kind");
        let size = match kind {
            "uuid" => 16,
            "text" => 4,
            "i64" => 8,
            bytes => bytes.parse().expect("a size"),
        };
        layout = match kind {
            "uuid" => layout.bytes(name, 16),
            "text" => {
                let bytes = u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes")) as usize;
                at += bytes;
                layout.u32(&format!("{name}_bytes")).text(name, bytes)
            }
            "i64" => layout.i64(name),
            "1" => layout.u8(name),
            "4" => layout.u32(name),
            _ => layout.u64(name),
        };
        at += size;
    }
    layout
}

fn body_of(entry: &ClusterEntry) -> &'static str {
    match entry {
        ClusterEntry::Catalog(_) => "",
        ClusterEntry::Founded { .. } => {
            "cluster:uuid owner_epoch:4 settings:4 settings[0].name:text settings[0].value:text"
        }
        ClusterEntry::NodeJoined { .. } => {
            "node:4 epoch:4 uuid:uuid at_ms:i64 roles:4 rack:text cluster:text native:text kafka:text http:text"
        }
        ClusterEntry::NodeFenced { .. } => "node:4 epoch:4",
        ClusterEntry::NodeRemoved { .. } => "node:4",
        ClusterEntry::OwnerChanged { .. } => "stream:8 number:8 first:4 count:4 node:4 epoch:4 owner_epoch:4 reason:4",
        ClusterEntry::OwnerReturned { .. } => "node:4 epoch:4 owner_epoch:4 all:1",
        ClusterEntry::GroupsHeld { .. } => "stream:8 first:4 count:4 owner_epoch:4 node:4",
        ClusterEntry::ViewAgreed { .. } => {
            "log.node:4 log.epoch:4 log.log:4 view:4 first:8 backups:4 backups[0]:4 backups[1]:4"
        }
        ClusterEntry::BackupAdded { .. } => "log.node:4 log.epoch:4 log.log:4 view:4 backup:4",
        ClusterEntry::LogEnded { .. } => "log.node:4 log.epoch:4 log.log:4 end:8",
        ClusterEntry::LogGivenUp { .. } | ClusterEntry::EndGivenUp { .. } => "log.node:4 log.epoch:4 log.log:4",
        ClusterEntry::MoveNoted { .. } => "number:8 stream:8 streamlet:4 from:4 to:4",
        ClusterEntry::MoveCalledOff { .. } => "number:8",
        ClusterEntry::StreamletsRebuilt { owner_epoch: 0, .. } => "stream:8 first:4 count:4 node:4 epoch:4",
        ClusterEntry::StreamletsRebuilt { .. } => "stream:8 first:4 count:4 node:4 epoch:4 owner_epoch:4",
        ClusterEntry::ViewGivenUp { .. } => "log.node:4 log.epoch:4 log.log:4 view:4",
        ClusterEntry::StreamletHanded { .. } => {
            "stream:8 streamlet:4 owner_epoch:4 state_bytes:4 state[0]:1 state[1]:1 state[2]:1"
        }
        ClusterEntry::NodeDraining { .. } => "node:4 draining:1",
        ClusterEntry::GroupsLost { .. } => "stream:8 first:4 count:4 owner_epoch:4",
        ClusterEntry::LevelRaised { .. } => "level:4",
        ClusterEntry::LaneBegins { .. } => "stream:8 streamlet:4 lane:4 owner_epoch:4 ordinal:8",
        ClusterEntry::RebuildNeeds { .. } => {
            "node:4 epoch:4 runs:4 runs[0].stream:8 runs[0].first:4 runs[0].count:4 runs[0].owner_epoch:4 logs:4 \
             logs[0].node:4 logs[0].epoch:4 logs[0].log:4"
        }
        ClusterEntry::EndsUsed { .. } => {
            "node:4 epoch:4 ends:4 ends[0].log.node:4 ends[0].log.epoch:4 ends[0].log.log:4 ends[0].end:8"
        }
        ClusterEntry::EndTakenBack { .. } => "log.node:4 log.epoch:4 log.log:4 end:8",
        ClusterEntry::GroupsReturned { .. } => "stream:8 streamlet:4 owner_epoch:4 node:4 epoch:4",
        ClusterEntry::RebuiltFrom { .. } => "stream:8 first:4 count:4 node:4 epoch:4",
        ClusterEntry::CopiesWanted { .. } => "stream:8 copies:4",
        ClusterEntry::CopiesMade { .. } => "stream:8 streamlet:4 node:4 epoch:4 copies:4",
        ClusterEntry::StreamletCopies { .. } => "stream:8 first:4 count:4 copies:4",
        ClusterEntry::ViewGivenUpFor { .. } => {
            "stream:8 streamlet:4 owner_epoch:4 log.node:4 log.epoch:4 log.log:4 view:4"
        }
        ClusterEntry::ClusterCounters { .. } => "next_move:8 next_owner_epoch:4",
        ClusterEntry::Applied { .. } => "place.term:8 place.leader:8 place.index:8",
        ClusterEntry::Membership { .. } => {
            "has_place:1 place.term:8 place.leader:8 place.index:8 voter_lists:4 voters:4 voters[0]:8 voters[1]:8 \
             nodes:4 nodes[0].node:8 nodes[0].address:text nodes[1].node:8 nodes[1].address:text"
        }
    }
}

fn entry_case(name: &str, entry: &ClusterEntry) -> Case {
    let mut bytes = Vec::new();
    entry.encode(8, &mut bytes);
    let layout =
        Layout::of(&bytes).u32("checksum").u32("entry_bytes").u64("index").u16("kind").u16("version").u32("zero");
    fields(layout, &bytes[24..], body_of(entry)).rest("padding").case(name, "an entry")
}

/// `bytes` with a byte changed, and the checksum at their front over `covered` put right.
fn changed(bytes: &[u8], at: usize, value: u8, covered: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = value;
    let crc = crc32c(&bytes[4..covered]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn entries_of_a_cluster_are_the_golden_bytes() {
    let cases = examples().iter().map(|(name, entry)| entry_case(name, entry)).collect();
    let mut joined = Vec::new();
    examples()[1].1.encode(8, &mut joined);
    let end = u32::from_le_bytes(joined[4..8].try_into().expect("4 bytes")) as usize;
    let mut torn = joined.clone();
    torn[30] ^= 1;
    let parse =
        |bytes: &[u8]| -> Result<ClusterEntry, FormatError> { ClusterEntry::parse(bytes).map(|parsed| parsed.1) };
    let refused = vec![
        ("a byte changed", torn),
        ("padding cut", joined[..joined.len() - 1].to_vec()),
        ("unknown kind", changed(&joined, 16, 99, end)),
        ("unknown version", changed(&joined, 18, 2, end)),
        ("no roles", changed(&joined, 24 + 32, 0, end)),
        ("a rack that is too long", changed(&joined, 24 + 37, 1, end)),
        ("a rack that is no text", changed(&joined, 24 + 40, 0xff, end)),
    ];
    let code = Golden {
        structure: "cluster entry".into(),
        document: "docs/formats/cluster.md".into(),
        cases,
        refused: refused_by(refused, parse),
    };
    let golden = golden::check("cluster.json", &code);
    golden.check_refused(parse);
    for (name, entry) in examples() {
        let bytes = golden.case(name).bytes();
        assert_eq!(ClusterEntry::parse(&bytes), Ok((8, entry, bytes.len())), "{name}");
    }
}

fn block() -> Vec<Record> {
    let place = |index| RaftPlace { term: 3, leader: 1, index };
    let fenced = Payload::Entries(vec![examples()[2].1.clone()]);
    vec![
        Record::Vote { term: 3, node: 1, committed: true },
        Record::Truncated { from: 11 },
        Record::Appended(LogEntry { place: place(11), payload: Payload::Blank }),
        Record::Appended(LogEntry { place: place(12), payload: fenced }),
        Record::Purged { place: place(9) },
    ]
}

#[test]
fn files_of_the_coordinators_log_are_the_golden_bytes() {
    let header = FileHeader { node: *b"0123456789abcdef", generation: 4 };
    let file = header.encode();
    let file_layout = Layout::of(&file).text("magic", 4).u16("version").u16("header_bytes").bytes("node", 16);
    let file_layout = file_layout.u64("generation").bytes("zero", 28).u32("checksum");
    let mut bytes = Vec::new();
    encode_block(7, &block(), &mut bytes);
    let record = |layout: Layout<'static>, number: usize| {
        let name = |field: &str| format!("records[{number}].{field}");
        layout.u32(&name("record_bytes")).u16(&name("kind")).u16(&name("zero"))
    };
    let leaked: &'static [u8] = bytes.clone().leak();
    let mut layout = Layout::of(leaked).u32("checksum").u32("block_bytes").u64("sequence");
    layout = record(layout, 0).u64("term").u64("node").u64("committed");
    layout = record(layout, 1).u64("from");
    layout = record(layout, 2).u64("place.term").u64("place.leader").u64("place.index").u64("entries");
    layout = record(layout, 3).u64("place.term").u64("place.leader").u64("place.index").u64("entries");
    layout = layout.bytes("entries[0]", 32);
    layout = record(layout, 4).u64("place.term").u64("place.leader").u64("place.index");
    let cases = vec![file_layout.case("file", "the header of a file"), layout.case("block", "one of each record")];
    let mut torn = bytes.clone();
    torn[40] ^= 1;
    let end = bytes.len();
    let parse = |bytes: &[u8]| parse_block(bytes).map(|parsed| parsed.1);
    let refused = vec![
        ("a byte changed", torn),
        ("cut", bytes[..end - 1].to_vec()),
        ("unknown record", changed(&bytes, 16 + 4, 9, end)),
        ("a record beyond its block", changed(&bytes, 16 + 1, 9, end)),
        ("a record smaller than its header", changed(&bytes, 16, 7, end)),
    ];
    let code = Golden {
        structure: "log of the coordinators".into(),
        document: "docs/formats/raft.md".into(),
        cases,
        refused: refused_by(refused, parse),
    };
    let golden = golden::check("raft.json", &code);
    golden.check_refused(parse);
    assert_eq!(FileHeader::parse(&golden.case("file").bytes()), Ok(header));
    assert_eq!(parse_block(&golden.case("block").bytes()), Ok((7, block(), end)));
}

#[test]
fn the_documents_show_the_golden_bytes() {
    for document in ["formats/cluster.md", "formats/raft.md"] {
        documents::check(document, |_| None);
    }
}
