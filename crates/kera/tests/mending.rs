//! What the disks of three nodes have changed, with the nodes in processes: everybody reads all that was acknowledged, and what is found damaged has its copies again.

mod common;

use std::path::Path;

use common::members::{Member, cluster, free_ports, some_nodes_with};
use common::{Node, eventually};

const RECORDS: u32 = 6_000;

/// Three nodes that look through their disks all the time, and have little memory.
struct House {
    members: Vec<Member>,
    nodes: Vec<Option<Node>>,
    all: String,
}

impl House {
    fn new(more: &[&str]) -> House {
        let ports = free_ports::<6>();
        let flags = ["--arena-bytes", "16MiB", "--container-bytes", "16MiB"];
        let (members, nodes) = some_nodes_with(3, &ports, &[&flags[..], more].concat());
        let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
        House { members, nodes, all }
    }

    fn node(&self, number: usize) -> &Node {
        self.nodes[number - 1].as_ref().expect("it runs")
    }

    fn verify(&self, line: &str) {
        let log = self.members[0].place.file("log").display().to_string();
        let line = format!("verify {line} --stream rot --log {log} --connect {}", self.all);
        let output = common::run(line.split_whitespace());
        assert!(output.status.success(), "{}{}", common::stdout(&output), common::stderr(&output));
    }

    fn metric(&self, number: usize, name: &str) -> u64 {
        let (_, text) = self.node(number).get("/metrics");
        let line = text.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with(' '));
        let value = line.unwrap_or_else(|| panic!("there is no {name}"))[name.len()..].trim();
        value.parse::<f64>().expect("a number") as u64
    }

    fn sum(&self, name: &str) -> u64 {
        (1..=3).map(|number| self.metric(number, name)).sum()
    }

    /// Whether a round that begins from now on finds nothing at any node.
    fn finds_nothing_more(&self) -> bool {
        let rounds = || {
            let log = |number| self.node(number).log();
            (1..=3).map(|number| log(number).matches("read, and is what was written").count()).collect::<Vec<_>>()
        };
        let (found, before) = (self.sum("kera_scrub_damaged_total"), rounds());
        eventually("two more rounds are over", || rounds().iter().zip(&before).all(|(now, before)| *now > before + 1));
        self.sum("kera_scrub_damaged_total") == found
    }

    fn files(&self, number: usize, folder: &str, end: &str) -> Vec<std::path::PathBuf> {
        let folder = self.members[number - 1].place.data().join(folder);
        let files = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = files.filter(|path| path.to_string_lossy().ends_with(end)).collect();
        files.sort();
        files
    }
}

/// Changes a byte of every so many of a file, from a place on. How many.
fn rot(path: &Path, mut at: usize, every: usize) -> usize {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let bytes = file.metadata().expect("its size").len() as usize;
    let mut changed = 0;
    while at < bytes {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).expect("read");
        // Where nothing was written nothing is changed.
        if byte != [0] {
            file.write_all_at(&[byte[0] ^ 4], at as u64).expect("written");
            changed += 1;
        }
        at += every;
    }
    file.sync_all().expect("synced");
    changed
}

#[test]
fn what_the_owners_disks_have_changed_is_read_from_backups() {
    let house = House::new(&["--scrub-every", "off"]);
    house.node(1).ok("stream create rot --streamlets 3 --replication 2");
    house.verify(&format!("produce --records {RECORDS} --record-bytes 20000 --rate 3000"));
    eventually("most of it is on disk", || house.sum("kera_store_dirty_bytes") < 32 << 20);
    let mut changed = 0;
    for number in 1..=3 {
        let files = house.files(number, "containers", ".kera");
        changed += files.iter().map(|path| rot(path, 3 * 4096 + 700, 512 << 10)).sum::<usize>();
    }
    assert!(changed > 30, "{changed}");
    house.verify("consume");
    let (mended, failed) = (house.sum("kera_store_mended_segments_total"), house.sum("kera_store_mend_failures_total"));
    assert!(mended > 10 && failed == 0, "{mended} mended, {failed} not");
    // It is on the disks again as it was: nothing is looked for once more.
    house.verify("consume");
    assert_eq!(house.sum("kera_store_mended_segments_total"), mended);
}

/// Nobody reads it. What is not found before the next loss is lost with it.
#[test]
fn what_nobody_reads_is_found_and_has_its_copies_again() {
    let mut house = House::new(&["--scrub-every", "1s", "--scrub-bytes-per-second", "1GiB"]);
    house.node(1).ok("stream create rot --streamlets 3 --replication 2");
    house.verify(&format!("produce --records {RECORDS} --record-bytes 20000 --rate 3000"));
    let rotten = |folder, end, at, every| {
        let files = (1..=3).flat_map(|number| house.files(number, folder, end));
        files.map(|path| rot(&path, at, every)).sum::<usize>()
    };
    let changed = rotten("containers", ".kera", 3 * 4096 + 700, 512 << 10);
    assert!(changed > 10, "{changed}");
    eventually("each node has found something", || {
        (1..=3).all(|number| house.metric(number, "kera_scrub_damaged_total") > 0)
    });
    eventually("nothing more is found", || house.finds_nothing_more());
    let (found, mended) = (house.sum("kera_scrub_damaged_total"), house.sum("kera_store_mended_segments_total"));
    assert!(mended >= found && house.sum("kera_store_mend_failures_total") == 0, "{mended} of {found}");

    // Now the copies. Owners ask again and again what backups have, and copy again what these have lost.
    let views = house.sum("kera_copies_views_changed_total");
    let changed = rotten("replicas", ".replica", 4096 + 700, 4 << 20);
    assert!(changed > 3, "{changed}");
    eventually("owners have heard of it", || house.sum("kera_copies_views_changed_total") > views);
    eventually("nothing more is found", || house.finds_nothing_more());
    eventually("all has its copies", || {
        let lacking = || house.sum("kera_copies_under_replicated_blocks");
        lacking() == 0
            && (0..20).all(|_| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                lacking() == 0
            })
    });
    house.nodes[2].take().expect("it runs").kill();
    std::fs::remove_dir_all(house.members[2].place.data()).expect("its disk");
    eventually("the loss is seen", || cluster(house.node(1))["nodes"][2]["state"] == "lost");
    eventually("nothing waits for it", || cluster(house.node(1))["waiting_streamlets"] == 0);
    house.verify("consume");
}
