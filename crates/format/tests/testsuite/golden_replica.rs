//! Files of copies of virtual logs at backups, and of their fences, against `spec/`.

use kera_format::checksum::crc32c;
use kera_format::ids::*;
use kera_format::vlog_replica::{Fences, Footer, LogId, PowerLosses, ReplicaHeader, ReplicaMark, SegmentRun};

use crate::support::documents;
use crate::support::golden::{self, Case, Golden, Layout, Refused, refused_by};

const CLUSTER: [u8; 16] = *b"0123456789abcdef";
const FILE: ReplicaHeader = ReplicaHeader {
    cluster: CLUSTER,
    log: LogId { node: 3, epoch: 7, vlog: 2 },
    backup: 4,
    file: 5,
    key: 0x1122_3344_5566_7788,
    first_block: 40,
    run_first: 12,
    synced: true,
};

fn footer() -> Footer {
    let run = SegmentRun {
        stream: StreamId(17),
        streamlet: StreamletId(2),
        lane: LaneId(1),
        group: GroupId::new(3, 8),
        segment: SegmentIndex(4),
        position: 128,
        end: 352,
        base_ordinal: 42,
        next_ordinal: 45,
        rewrite: 0,
        row_end: 0,
    };
    let mark = ReplicaMark {
        stream: StreamId(17),
        streamlet: StreamletId(2),
        lane: LaneId(1),
        producer_id: ProducerId(1_000),
        producer_epoch: ProducerEpoch(6),
        sequence: 9,
        base_ordinal: 44,
        at: Cursor { group: GroupId::new(3, 8), segment: SegmentIndex(4), position: 240 },
    };
    Footer { vlog: 2, file: 5, key: FILE.key, last_block: 99, segments: vec![run], producers: vec![mark] }
}

fn fences() -> Fences {
    Fences { entries: vec![(3, 7), (4, 1)] }
}

fn power_losses() -> PowerLosses {
    PowerLosses { boot_id: *b"since-this-start", ends: vec![(FILE.log, 99)] }
}

fn file_bytes() -> Vec<u8> {
    let mut bytes = vec![0xff; 96];
    FILE.write(&mut bytes);
    bytes
}

fn footer_bytes() -> Vec<u8> {
    let mut bytes = footer().encode();
    assert_eq!(bytes.len(), 4096);
    bytes.truncate(64 + 2 * 64);
    bytes
}

fn cases() -> Vec<Case> {
    let (file, footer, fences) = (file_bytes(), footer_bytes(), fences().encode());
    let losses = power_losses().encode();
    let file = Layout::of(&file)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .bytes("cluster", 16)
        .u32("node")
        .u32("epoch")
        .u32("vlog")
        .u32("backup")
        .u64("file")
        .u64("key")
        .u64("first_block")
        .u64("run_first")
        .u32("flags")
        .bytes("zero", 16)
        .u32("checksum");
    let footer = Layout::of(&footer)
        .text("magic", 4)
        .u16("version")
        .u16("header_bytes")
        .u32("vlog")
        .u32("segment_count")
        .u64("file")
        .u64("key")
        .u64("last_block")
        .u32("producer_count")
        .u32("entries_checksum")
        .bytes("zero", 12)
        .u32("checksum")
        .u64("segments[0].stream")
        .u32("segments[0].streamlet")
        .u32("segments[0].lane")
        .u64("segments[0].group")
        .u32("segments[0].segment")
        .u32("segments[0].position")
        .u32("segments[0].end")
        .u32("segments[0].row_end")
        .u64("segments[0].base_ordinal")
        .u64("segments[0].next_ordinal")
        .u64("segments[0].rewrite")
        .u64("producers[0].stream")
        .u32("producers[0].streamlet")
        .u32("producers[0].lane")
        .u64("producers[0].producer_id")
        .u64("producers[0].sequence")
        .u64("producers[0].base_ordinal")
        .u64("producers[0].group")
        .u32("producers[0].segment")
        .u32("producers[0].position")
        .u16("producers[0].producer_epoch")
        .bytes("producers[0].zero", 6);
    let fences = Layout::of(&fences)
        .text("magic", 4)
        .u16("version")
        .u16("zero")
        .u32("count")
        .u32("checksum")
        .u32("entries[0].node")
        .u32("entries[0].epoch")
        .u32("entries[1].node")
        .u32("entries[1].epoch");
    let losses = Layout::of(&losses)
        .text("magic", 4)
        .u16("version")
        .u16("zero")
        .u32("count")
        .u32("checksum")
        .bytes("boot_id", 16)
        .u32("entries[0].node")
        .u32("entries[0].epoch")
        .u32("entries[0].vlog")
        .u32("entries[0].zero")
        .u64("entries[0].end");
    vec![
        file.case("file", "the header of a file; the rest of its page is zeros"),
        footer.case(
            "footer",
            "a footer with a run of chunks and a producer, without the zeros up to the end of its page",
        ),
        fences.case("fences", "the fences of a backup, a whole file"),
        losses.case("power losses", "what a backup knows of losses of power, a whole file"),
    ]
}

/// `bytes` with changes, and with the checksum of the first `covered` bytes put right behind them if that is not zero.
fn changed(bytes: &[u8], changes: &[(usize, u8)], covered: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    changes.iter().for_each(|(at, value)| bytes[*at] = *value);
    if covered > 0 {
        let crc = crc32c(&bytes[..covered]);
        bytes[covered..covered + 4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

fn refused() -> Vec<Refused> {
    let (file, footer, fences) = (file_bytes(), footer_bytes(), fences().encode());
    let mut all = refused_by(
        vec![
            ("file: wrong magic", changed(&file, &[(0, b'k')], 92)),
            ("file: unknown version", changed(&file, &[(4, 2)], 92)),
            ("file: other header size", changed(&file, &[(6, 64)], 92)),
            ("file: a field changed", changed(&file, &[(24, 8)], 0)),
            ("file: cut", file[..95].to_vec()),
        ],
        ReplicaHeader::parse,
    );
    all.extend(refused_by(
        vec![
            ("footer: wrong magic", changed(&footer, &[(0, b'k')], 60)),
            ("footer: unknown version", changed(&footer, &[(4, 2)], 60)),
            ("footer: other header size", changed(&footer, &[(6, 96)], 60)),
            ("footer: a field changed", changed(&footer, &[(32, 1)], 0)),
            ("footer: more entries than bytes", changed(&footer, &[(12, 2)], 60)),
            ("footer: too many entries", changed(&footer, &[(15, 1)], 60)),
            ("footer: an entry changed", changed(&footer, &[(100, 1)], 60)),
        ],
        Footer::parse,
    ));
    all.extend(refused_by(
        vec![
            ("fences: wrong magic", changed(&fences, &[(0, b'k')], 0)),
            ("fences: too many", changed(&fences, &[(11, 1)], 0)),
            ("fences: an entry changed", changed(&fences, &[(24, 8)], 0)),
            ("fences: an entry cut", fences[..31].to_vec()),
        ],
        Fences::parse,
    ));
    let losses = power_losses().encode();
    all.extend(refused_by(
        vec![
            ("power losses: wrong magic", changed(&losses, &[(0, b'k')], 0)),
            ("power losses: too many", changed(&losses, &[(11, 1)], 0)),
            ("power losses: an entry changed", changed(&losses, &[(48, 8)], 0)),
            ("power losses: an entry cut", losses[..55].to_vec()),
        ],
        PowerLosses::parse,
    ));
    all
}

#[test]
fn files_of_backups_are_the_golden_bytes() {
    let code = Golden {
        structure: "replica file".into(),
        document: "docs/formats/replica.md".into(),
        cases: cases(),
        refused: refused(),
    };
    let golden = golden::check("replica.json", &code);
    assert_eq!(ReplicaHeader::parse(&golden.case("file").bytes()), Ok(FILE));
    assert_eq!(Footer::parse(&golden.case("footer").bytes()), Ok(footer()));
    assert_eq!(Fences::parse(&golden.case("fences").bytes()), Ok(fences()));
    assert_eq!(PowerLosses::parse(&golden.case("power losses").bytes()), Ok(power_losses()));
    for refused in &golden.refused {
        let error = match refused.name.split(':').next() {
            Some("file") => ReplicaHeader::parse(&refused.bytes).map(drop),
            Some("footer") => Footer::parse(&refused.bytes).map(drop),
            Some("power losses") => PowerLosses::parse(&refused.bytes).map(drop),
            _ => Fences::parse(&refused.bytes).map(drop),
        };
        assert_eq!(error.err().map(|e| e.to_string()), Some(refused.error.clone()), "{}", refused.name);
    }
}

#[test]
fn the_page_on_replicas_shows_the_golden_bytes() {
    documents::check("formats/replica.md", |_| None);
}
