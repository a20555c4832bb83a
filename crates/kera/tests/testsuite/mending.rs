//! What the disks of three nodes have changed, with the nodes in processes: everybody reads all that was acknowledged, and what is found damaged has its copies again.
//! What has no copies is gone until the disk gives it again.

use std::path::Path;
use std::time::Instant;

use crate::common::members::{Member, cluster, free_ports, live, some_nodes_with, start_again, voters};
use crate::common::{self, Node, eventually};

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

    /// The same with two disks each.
    fn with_two_disks() -> House {
        let ports = free_ports::<6>();
        let flags = ["--arena-bytes", "16MiB", "--container-bytes", "16MiB", "--scrub-every", "off"];
        let two_disks = |at: usize| {
            let mut member = Member::new(at + 1, ports[at], ports[3 + at], (at > 0).then_some(ports[3]), &flags);
            let second = member.place.file("second");
            std::fs::create_dir(&second).expect("there is room");
            member.flags.extend(["--disks".to_owned(), second.display().to_string()]);
            member
        };
        let members: Vec<Member> = (0..3).map(two_disks).collect();
        let mut nodes: Vec<Option<Node>> = members.iter().map(|member| Some(member.start())).collect();
        nodes.iter_mut().flatten().for_each(|node| node.expect_warning(""));
        let all = (0..3).map(|at| format!("127.0.0.1:{}", ports[at])).collect::<Vec<_>>().join(",");
        let house = House { members, nodes, all };
        eventually("coordinators that vote", || voters(house.node(1)) == 3);
        house
    }

    /// Starts a node that must not start, and what it says.
    fn refused(&self, number: usize, more: &[&str]) -> String {
        let flags = self.members[number - 1].flags.iter().map(String::as_str);
        let output = common::run(flags.chain(more.iter().copied()));
        assert_eq!(output.status.code(), Some(16), "{}", common::stderr(&output));
        common::stderr(&output)
    }

    fn start(&mut self, number: usize, more: &[&str]) {
        let mut flags = self.members[number - 1].flags.clone();
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let mut node = Node::start_flags(&flags);
        node.expect_warning("");
        self.nodes[number - 1] = Some(node);
    }

    fn kill(&mut self, number: usize) {
        self.nodes[number - 1].take().expect("it runs").kill();
    }

    /// Nobody is lost, and everything that lost nodes had is with others.
    fn is_well(&self) {
        let status = || cluster(self.node(1));
        eventually("all nodes are there", || (0..3).all(|at| status()["nodes"][at]["state"] == "live"));
        eventually("nothing waits", || status()["waiting_streamlets"] == 0);
        eventually("all has its copies", || !self.node(1).ok("status").contains("PROBLEM"));
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
    // What was in memory until now is read from the disks, and so is what was mended.
    (0..2).for_each(|_| house.verify("consume"));
    let (again, failed) = (house.sum("kera_store_mended_segments_total"), house.sum("kera_store_mend_failures_total"));
    assert!(again <= changed as u64 && failed == 0, "{mended} mended, then {again} of {changed}, {failed} not");
}

/// Nobody reads it. What is not found before the next loss is lost with it.
#[test]
fn what_nobody_reads_is_found_and_has_its_copies_again() {
    let mut house = House::new(&["--scrub-every", "1s"]);
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

    // Now the copies. Owners ask again and again what backups have, each when its time comes, and copy again what these have lost.
    let views = house.sum("kera_copies_views_changed_total");
    let changed = rotten("replicas", ".replica", 4096 + 700, 4 << 20);
    assert!(changed > 3, "{changed}");
    eventually("owners have heard of it", || house.sum("kera_copies_views_changed_total") > views);
    eventually("nothing more is found", || house.finds_nothing_more());
    let found = Instant::now();
    eventually("each owner has asked each backup since", || {
        let age = |number| house.metric(number, "kera_copies_heard_age_milliseconds");
        (1..=3).all(|number| u128::from(age(number)) < found.elapsed().as_millis())
    });
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

/// A disk that is not mounted looks like an empty one. The node must not take what was on it for something that never was.
#[test]
fn a_node_does_not_start_without_one_of_its_disks_before_somebody_gives_that_up() {
    let mut house = House::with_two_disks();
    house.node(1).ok("stream create rot --streamlets 6 --replication 2");
    house.verify(&format!("produce --records {RECORDS} --record-bytes 20000 --rate 3000"));
    house.kill(3);
    let (second, away) = (house.members[2].place.file("second"), house.members[2].place.file("away"));
    std::fs::rename(&second, &away).expect("it is unmounted");
    let said = house.refused(3, &[]);
    assert!(said.contains("there is no such directory") && !second.exists(), "{said}");
    std::fs::create_dir(&second).expect("where it is mounted");
    let said = house.refused(3, &[]);
    assert!(["cannot be found", "mount it", "--accept-damage true"].iter().all(|part| said.contains(part)), "{said}");
    // It is mounted again, and nothing has happened.
    std::fs::remove_dir_all(&second).expect("what is in the way");
    std::fs::rename(&away, &second).expect("it is mounted");
    house.start(3, &[]);
    house.is_well();
    house.verify("consume");
    // Now it is gone for good, and another one is in its place.
    house.kill(3);
    std::fs::rename(&second, &away).expect("it is broken");
    std::fs::create_dir(&second).expect("another one");
    house.refused(3, &[]);
    house.start(3, &["--accept-damage", "true"]);
    house.is_well();
    house.verify("consume");
    // From then on the node has the new disk, and not the old one.
    house.kill(3);
    let away = away.display().to_string();
    house.members[2].flags.push(format!("{},{away}", second.display()));
    let named = house.members[2].flags.iter().position(|flag| flag == "--disks").expect("it is there");
    house.members[2].flags.remove(named + 1);
    let said = house.refused(3, &[]);
    assert!(said.contains("is not one of this node's disks, or not any more"), "{said}");
    house.members[2].flags.pop();
    house.members[2].flags.push(second.display().to_string());
    house.start(3, &[]);
    house.is_well();
    house.verify("consume");
}

/// It has its arena, and so all that it had acknowledged but for what the disk has lost, of which nobody knows what it was.
#[test]
fn a_node_that_cannot_read_what_its_disk_had_is_rebuilt_by_others() {
    let mut house = House::new(&["--scrub-every", "off"]);
    house.node(1).ok("stream create rot --streamlets 6 --replication 2");
    house.verify(&format!("produce --records {RECORDS} --record-bytes 20000 --rate 3000"));
    house.kill(2);
    let files = house.files(2, "containers", ".kera");
    assert!(files.len() > 1);
    // The header of the first, and the index of a batch of the last, which has no footer yet.
    assert_eq!(rot(&files[0], 20, usize::MAX / 2), 1);
    assert_eq!(rot(&files[files.len() - 1], 4096 + 61, usize::MAX / 2), 1);
    for _ in 0..2 {
        house.start(2, &[]);
        house.is_well();
        house.verify("consume");
        house.kill(2);
    }
    house.start(2, &[]);
    house.is_well();
    let log = house.node(2).log();
    assert!(!log.contains("a disk has lost some of what this node had"), "it was told before");
}

/// A node of a cluster goes on with what it has of streamlets with one copy: nobody else has any. What it is given since counts, and takes the places of what its disk gives again.
#[test]
fn what_a_disk_gives_again_does_not_come_back_in_front_of_what_took_its_ordinals() {
    let [native, between] = free_ports();
    let member = Member::new(1, native, between, None, &["--container-bytes", "16MiB"]);
    let write = |node: &Node, what: &str, count: usize| -> Vec<String> {
        let lines: Vec<String> = (0..count).map(|number| format!("{what} {number}")).collect();
        let file = member.place.file(what);
        std::fs::write(&file, lines.join("\n") + "\n").expect("written");
        node.ok(&format!("produce once --file {}", file.display()));
        lines
    };
    let read = |node: &Node| common::sorted(common::lines(&node.ok("consume once")));
    let node = start_again(&member);
    node.ok("stream create once --streamlets 1 --replication 1");
    let first = write(&node, "first", 300);
    assert_eq!(read(&node), common::sorted(first));
    assert_eq!(node.stop(), 0);
    let files = common::files(&member.place.data().join("containers"));
    let is_container = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "kera");
    let files: Vec<std::path::PathBuf> = files.into_iter().filter(is_container).collect();
    assert!(!files.is_empty());
    let away = |path: &Path| member.place.file(&path.file_name().expect("it has one").to_string_lossy());
    for path in &files {
        let bytes = std::fs::metadata(path).expect("its size").len();
        std::fs::rename(path, away(path)).expect("it is away");
        std::fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("nothing is read there");
    }
    let node = start_again(&member);
    let second = write(&node, "second", 100);
    assert!(node.log().contains("has no readable header and is left alone"), "{}", node.log());
    assert_eq!(node.stop(), 0);
    files.iter().for_each(|path| std::fs::rename(away(path), path).expect("it is back"));
    let node = start_again(&member);
    assert!(node.log().contains("records with ordinals from 0 to 299 are left out"), "{}", node.log());
    assert_eq!(read(&node), common::sorted(second.clone()));
    let third = write(&node, "third", 10);
    let both = common::sorted([second, third].concat());
    assert_eq!(read(&node), both);
    assert_eq!(node.stop(), 0);
    let node = start_again(&member);
    assert_eq!(read(&node), both);
}

/// Nobody else has any of it. Said to be gone it would be nobody's for good.
#[test]
fn what_a_node_holds_and_cannot_read_is_served_when_its_disk_gives_it_again() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = some_nodes_with(3, &ports, &["--container-bytes", "16MiB"]);
    let place = &members[2].place;
    let first_node = nodes[0].take().expect("it runs");
    let write = |what: &str, count: usize| -> Vec<String> {
        let lines: Vec<String> = (0..count).map(|number| format!("{what} {number}")).collect();
        let file = place.file(what);
        std::fs::write(&file, lines.join("\n") + "\n").expect("written");
        first_node.ok(&format!("produce held --file {}", file.display()));
        lines
    };
    let read = || common::sorted(common::lines(&first_node.ok("consume held")));
    first_node.ok("stream create held --streamlets 1 --replication 1");
    first_node.ok("streamlet move held/0 --to 3");
    let first = write("first", 300);
    first_node.ok("streamlet move held/0 --to 2");
    let second = write("second", 100);
    assert_eq!(nodes[2].take().expect("it runs").stop(), 0);
    let files = common::files(&place.data().join("containers"));
    let is_container = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "kera");
    let files: Vec<std::path::PathBuf> = files.into_iter().filter(is_container).collect();
    assert!(!files.is_empty());
    let away = |path: &Path| place.file(&path.file_name().expect("it has one").to_string_lossy());
    for path in &files {
        let bytes = std::fs::metadata(path).expect("its size").len();
        std::fs::rename(path, away(path)).expect("it is away");
        std::fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("nothing is read there");
    }
    let node = start_again(&members[2]);
    eventually("it looks what it holds", || node.log().contains("they stay said to be here"));
    assert_eq!(read(), common::sorted(second.clone()));
    assert_eq!(node.stop(), 0);
    files.iter().for_each(|path| std::fs::rename(away(path), path).expect("it is back"));
    nodes[2] = Some(start_again(&members[2]));
    assert_eq!(read(), common::sorted([first, second].concat()));
}

/// A streamlet has moved to another node since a start that lacked the last of it. That one has given the ordinals to other records, and nothing that the first one has tells.
#[test]
fn what_a_disk_gives_again_of_a_streamlet_that_has_moved_ends_where_its_next_owner_began() {
    let ports = free_ports::<6>();
    let (members, mut nodes) = some_nodes_with(3, &ports, &["--container-bytes", "16MiB"]);
    let place = &members[2].place;
    let write = |node: &Node, what: &str, count: usize| -> Vec<String> {
        let lines: Vec<String> = (0..count).map(|number| format!("{what} {number}")).collect();
        let file = place.file(what);
        std::fs::write(&file, lines.join("\n") + "\n").expect("written");
        node.ok(&format!("produce moved --file {}", file.display()));
        lines
    };
    let read = |node: &Node| common::sorted(common::lines(&node.ok("consume moved")));
    let containers = || -> Vec<std::path::PathBuf> {
        let files = common::files(&place.data().join("containers")).into_iter();
        files.filter(|path| path.extension().is_some_and(|end| end == "kera")).collect()
    };
    let first_node = nodes[0].take().expect("it runs");
    let start = |node: &mut Option<Node>| {
        *node = Some(start_again(&members[2]));
        eventually("it is live again", || live(&first_node) == 3);
    };
    let stop = |node: &mut Option<Node>| assert_eq!(node.take().expect("it runs").stop(), 0);
    first_node.ok("stream create moved --streamlets 1 --replication 1");
    first_node.ok("streamlet move moved/0 --to 3");
    let first = write(&first_node, "first", 300);
    stop(&mut nodes[2]);
    let before = containers();
    start(&mut nodes[2]);
    let lost = write(&first_node, "lost", 200);
    assert_eq!(read(&first_node), common::sorted([first.clone(), lost].concat()));
    stop(&mut nodes[2]);
    let files: Vec<std::path::PathBuf> = containers().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(!files.is_empty());
    let away = |path: &Path| place.file(&path.file_name().expect("it has one").to_string_lossy());
    for path in &files {
        let bytes = std::fs::metadata(path).expect("its size").len();
        std::fs::rename(path, away(path)).expect("it is away");
        std::fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("nothing is read there");
    }
    start(&mut nodes[2]);
    first_node.ok("streamlet move moved/0 --to 2");
    let second = write(&first_node, "second", 100);
    let both = common::sorted([first, second].concat());
    assert_eq!(read(&first_node), both);
    stop(&mut nodes[2]);
    files.iter().for_each(|path| std::fs::rename(away(path), path).expect("it is back"));
    start(&mut nodes[2]);
    let said = nodes[2].as_ref().expect("it runs").log();
    let expected = ["records with ordinals from 300 to 499 are left out", "the next owner of the streamlet"];
    assert!(expected.iter().all(|words| said.contains(words)), "{said}");
    assert_eq!(read(&first_node), both);
}
