//! What another build of KerA has left: an older one's arena is taken over, a later one's is refused and stays as it is.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use kera_format::arena::{ArenaHeader, BlockSize};
use serde_json::{Value, json};

use crate::common::{self, Place, run, stderr};

const ARENA_BYTES: u64 = 64 << 20;

fn identity(place: &Place) -> Value {
    let text = std::fs::read(place.data().join("node.json")).expect("a node was here");
    serde_json::from_slice(&text).expect("it is JSON")
}

fn set_identity(place: &Place, identity: &Value) {
    std::fs::write(place.data().join("node.json"), identity.to_string()).expect("it can be written");
}

fn arena(place: &Place) -> PathBuf {
    place.arena_files().pop().expect("an arena")
}

fn header(path: &Path) -> ArenaHeader {
    let mut page = [0; 80];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut page)).expect("it has a header");
    ArenaHeader::parse(&page).expect("a good one")
}

/// An arena as builds made them that knew plain blocks only, empty. What a node writes into it from then on is what they would have
/// written.
fn make_older_arena(place: &Place) {
    let name = identity(place)["node"].as_str().expect("a uuid").to_owned();
    let digits: String = name.chars().filter(|c| *c != '-').collect();
    let node = u128::from_str_radix(&digits, 16).expect("a uuid").to_be_bytes();
    let boot_id = kera_env::boot_id();
    let header = ArenaHeader { node, boot_id, blocks: BlockSize::Plain, bytes: ARENA_BYTES };
    let mut file = std::fs::File::create(place.arena().join(format!("kera-{name}.arena"))).expect("a file");
    file.set_len(header.file_bytes()).expect("there is room");
    file.write_all(&header.encode()).expect("there is room");
}

#[test]
fn what_an_older_build_had_in_memory_when_it_was_killed_is_taken_over_and_written_to_disk() {
    let place = Place::new();
    let node = place.start();
    node.ok("stream create flights --streamlets 2");
    assert_eq!(node.stop(), 0);
    assert_eq!(identity(&place)["version"], 1, "an older build may go on: all is on disk");

    make_older_arena(&place);
    let node = place.start();
    assert_eq!(node.ready()["arena"], "attached");
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.ndjson")));
    node.kill();
    assert_eq!(header(&arena(&place)).blocks, BlockSize::Plain, "it keeps its blocks");
    // The older build would have said this of itself.
    let mut older = identity(&place);
    older["version"] = json!(1);
    set_identity(&place, &older);

    let node = place.start();
    assert_eq!(node.ready()["arena"], "attached");
    assert_eq!(identity(&place)["version"], 2, "an older build may not");
    assert_eq!(node.ok("consume flights").lines().count(), 200);
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.ndjson")));
    assert_eq!(node.stop(), 0);

    let node = place.start();
    assert_eq!(header(&arena(&place)).blocks, BlockSize::Roomy);
    assert_eq!(node.ok("consume flights").lines().count(), 400);
    assert_eq!(node.stop(), 0);
}

#[test]
fn what_a_later_build_has_left_is_refused_and_stays_as_it_is() {
    let place = Place::new();
    let node = place.start();
    node.ok("stream create flights");
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.ndjson")));
    node.kill();

    let known = identity(&place);
    set_identity(&place, &json!({ "version": 3, "node": known["node"], "epoch": 1, "something": "else" }));
    let refused = run(place.flags());
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(19), "{said}");
    assert!(said.contains("version 3") && said.contains("move nothing away"), "{said}");
    set_identity(&place, &known);

    let path = arena(&place);
    let mut page = header(&path).encode();
    page[8] = 3;
    let checksum = kera_format::checksum::crc32c(&page[..76]);
    page[76..].copy_from_slice(&checksum.to_le_bytes());
    let replace = |page: &[u8; 80]| {
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(page)).expect("it can be written");
    };
    let good = header(&path).encode();
    replace(&page);
    let refused = run(place.flags());
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(19), "{said}");
    assert!(said.contains("it has version 3") && said.contains("nowhere else"), "{said}");

    replace(&good);
    let node = place.start();
    assert_eq!(node.ready()["arena"], "attached");
    assert_eq!(node.ok("consume flights").lines().count(), 200);
    assert_eq!(node.stop(), 0);
}
