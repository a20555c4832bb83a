//! Records of `containers/begins` against `spec/begins.json`.

use kera_format::begins::Begin;
use kera_format::checksum::crc32c;
use kera_format::{FormatError, LaneId, StreamId, StreamletId};

use crate::support::documents;
use crate::support::golden::{self, Golden, Layout, Refused, refused_by};

fn begin() -> Begin {
    Begin {
        node: *b"0123456789abcdef",
        stream: StreamId(19),
        streamlet: StreamletId(258),
        lane: LaneId(3),
        ordinal: 72_623_859_790_382_856,
    }
}

fn refused() -> Vec<Refused> {
    let bytes = begin().encode();
    let changed = |at: usize, byte: u8, is_right: bool| {
        let mut bytes = bytes.to_vec();
        bytes[at] = byte;
        if is_right {
            let crc = crc32c(&bytes[..52]);
            bytes[52..].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    };
    let cases = vec![
        ("cut off", bytes[..55].to_vec()),
        ("wrong magic", changed(0, b'k', true)),
        ("an unknown version", changed(4, 2, true)),
        ("bytes that are not zero", changed(48, 1, true)),
        ("a changed bit", changed(41, 6, false)),
    ];
    refused_by(cases, Begin::parse)
}

#[test]
fn records_of_where_lanes_begin_are_the_golden_bytes() {
    let bytes = begin().encode();
    let layout = Layout::of(&bytes)
        .text("magic", 4)
        .u16("version")
        .u16("zero")
        .bytes("node", 16)
        .u64("stream")
        .u32("streamlet")
        .u32("lane")
        .u64("ordinal")
        .u32("zero")
        .u32("checksum");
    let code = Golden {
        structure: "record of where a lane begins".into(),
        document: "docs/formats/begins.md".into(),
        cases: vec![layout.case("begin", "a record")],
        refused: refused(),
    };
    let decode = |bytes: &[u8]| -> Result<Begin, FormatError> { Begin::parse(bytes) };
    golden::check_decoded("begins.json", &code, decode, [begin()]);
}

#[test]
fn the_document_says_what_the_golden_file_says() {
    documents::check("formats/begins.md", |_| None);
}
