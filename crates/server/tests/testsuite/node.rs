//! A node in this process, asked over its own protocol and over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kera_env::{Disk, RealDisk};
use kera_format::chunk::ChunkTarget;
use kera_format::{ChunkBuilder, Compression, Durability, Record, StreamId, StreamOptions, StreamletId};
use kera_protocol::{CreateStream, GetStream, NodeStatus, Status, WriteChunks};
use kera_rpc::{ClientConfig, Connection, RpcError};
use kera_server::Node;
use kera_server::config::Config;
use serde_json::{Value, json};

use crate::common::{self, PATIENCE};

fn config(dir: &Path) -> Config {
    let mut config = common::config(dir);
    config.http.listen = Some("127.0.0.1:0".into());
    // These tests are about the other two doors.
    config.kafka.listen = None;
    config
}

/// A client that waits for as long as anything may take.
fn patient() -> ClientConfig {
    ClientConfig { connect_timeout: PATIENCE, call_timeout: PATIENCE, ..ClientConfig::default() }
}

fn http(node: &Node, method: &str, path: &str, body: &str) -> (u16, Value) {
    http_with(node, method, path, "Host: localhost", body)
}

fn http_with(node: &Node, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(node.http_address().unwrap()).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\nContent-Length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
}

#[test]
fn one_connection_is_served_by_coordinator_broker_and_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connection = Connection::connect(&node.address().to_string(), patient()).await.unwrap();
        let create = CreateStream { name: "a".into(), options: StreamOptions::default(), if_not_exists: false };
        let made = connection.call(&create).await.unwrap();
        let found = connection.call(&GetStream { stream: "a".into() }).await.unwrap();
        assert_eq!(made, found);
        match connection.call(&create).await {
            Err(RpcError::Status { status: Status::StreamExists, .. }) => {}
            other => panic!("{other:?}"),
        }
        let status = connection.call(&NodeStatus).await.unwrap();
        assert!(status.ready && status.problems.is_empty(), "{status:?}");
        // Not that of the applications' offsets, which is the system's own.
        assert_eq!((status.streams, status.node_epoch), (1, 1));
        assert_eq!(status.disks.len(), 1);
    });
    node.stop();
}

#[test]
fn the_admin_api_does_what_the_protocol_does() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let (code, made) = http(&node, "POST", "/v1/streams", "{\"name\":\"flights\",\"options\":{\"streamlets\":3}}");
    assert_eq!((code, &made["options"]["streamlets"]), (201, &json!(3)), "{made}");
    let (code, error) = http(&node, "POST", "/v1/streams", "{\"name\":\"flights\"}");
    assert_eq!((code, &error["field"]), (409, &json!("name")), "{error}");
    let (code, error) = http(&node, "POST", "/v1/streams", "{\"name\":\"a b\"}");
    assert_eq!((code, &error["field"]), (400, &json!("name")), "{error}");
    assert!(error["next_step"].as_str().unwrap().contains("a-z"), "{error}");
    let (code, error) = http(&node, "POST", "/v1/streams", "{\"name\":\"b\",\"options\":{\"streamlets\":99999999}}");
    assert_eq!((code, &error["limit"]), (400, &json!("131072")), "{error}");
    let (code, error) = http(&node, "POST", "/v1/streams", "{\"nam\":\"b\"}");
    assert_eq!((code, &error["field"]), (400, &json!("nam")), "{error}");
    for (body, field) in [
        ("{\"name\":5}", "name"),
        ("{\"name\":\"`b`\"", "body"),
        ("{\"name\":\"b\",\"options\":{\"streamlets\":-1}}", "options.streamlets"),
        ("{\"name\":\"b\",\"options\":{\"order\":\"`lane`\"}}", "order"),
        ("{\"name\":\"b\",\"name\":\"c\"}", "name"),
        ("{\"options\":{}}", "name"),
        ("5", "body"),
    ] {
        let (code, error) = http(&node, "POST", "/v1/streams", body);
        assert_eq!((code, &error["field"]), (400, &json!(field)), "{body}: {error}");
    }
    let (code, error) = http(&node, "GET", "/v1/streams?limit=abc", "");
    assert_eq!((code, &error["field"]), (400, &json!("limit")), "{error}");
    for to in ["[1]", "{\"x\":1}", "null", "1.5", "\"noon\""] {
        let (code, error) = http(&node, "POST", "/v1/applications/flights/a/reset", &format!("{{\"to\":{to}}}"));
        assert_eq!((code, &error["field"]), (400, &json!("to")), "{error}");
        assert!(error.to_string().contains("`earliest`, `latest` or a number"), "{error}");
    }
    for (method, path) in [("GET", "/v1/streams/%FF"), ("POST", "/v1/applications/%FF/a/reset")] {
        let (code, error) = http(&node, method, path, "{\"to\":\"latest\"}");
        assert_eq!((code, &error["field"]), (400, &json!("stream")), "{error}");
    }
    let (code, error) = http(&node, "GET", "/v1/streams?prefx=a", "");
    assert_eq!((code, &error["field"]), (400, &json!("prefx")), "{error}");
    let (code, error) = http(&node, "POST", "/v1/streams", &format!("{{\"name\":\"{}\"}}", "x".repeat(100_000)));
    assert_eq!((code, &error["limit"]), (413, &json!("65536")), "{error}");
    let (code, error) = http(&node, "PATCH", "/v1/streams/flights", "{\"order\":\"chaos\"}");
    assert_eq!((code, &error["field"]), (400, &json!("order")), "{error}");
    let (code, altered) =
        http(&node, "PATCH", "/v1/streams/flights", "{\"retention_ms\":null,\"retention_bytes\":1000000}");
    assert_eq!((code, &altered["options"]["retention_bytes"]), (200, &json!(1_000_000)), "{altered}");
    assert_eq!(altered["options"]["retention_ms"], Value::Null);
    let (code, list) = http(&node, "GET", "/v1/streams?prefix=fl", "");
    assert_eq!((code, list["streams"].as_array().unwrap().len()), (200, 1), "{list}");
    let (code, found) = http(&node, "GET", "/v1/streams/flights", "");
    assert_eq!((code, &found["records"]), (200, &json!(0)), "{found}");
    assert_eq!(http(&node, "GET", "/v1/applications", ""), (200, json!([])));
    assert_eq!(http(&node, "GET", "/v1/applications/flights/none", "").0, 404);
    assert_eq!(http(&node, "GET", "/v1/status", "").1["ready"], json!(true));
    assert_eq!(http(&node, "DELETE", "/v1/streams/flights", "").0, 204);
    assert_eq!(http(&node, "GET", "/v1/streams/flights", "").0, 404);
    node.stop();
}

#[test]
fn a_page_of_a_streams_lanes_says_how_many_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let writer = Writer::new(&node);
    assert_eq!(http(&node, "PATCH", "/v1/streams/a", "{\"streamlets\":4,\"durability\":\"process\"}").0, 200);
    for streamlet in [0, 1, 3] {
        assert!(writer.write_to(streamlet));
    }
    let shown = |query: &str| {
        let (code, found) = http(&node, "GET", &format!("/v1/streams/a{query}"), "");
        let all = [&found["records"], &found["lanes_used_count"]].map(|sum| sum.as_u64().unwrap_or_default());
        assert_eq!((code, all), (200, [3, 3]), "{query}: {found}");
        let lanes = found["lanes_used"].as_array().unwrap();
        lanes.iter().map(|lane| lane["streamlet"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(shown(""), [0, 1, 3]);
    assert_eq!(shown("?limit=2"), [0, 1]);
    assert_eq!(shown("?limit=2&after=1/0"), [3]);
    assert!(shown("?after=3/0").is_empty());
    for query in ["after=1", "after=a/0", "limit=-1"] {
        let (code, error) = http(&node, "GET", &format!("/v1/streams/a?{query}"), "");
        assert_eq!((code, error["field"].as_str()), (400, query.split('=').next()), "{error}");
    }
    drop(writer);
    node.stop();
}

/// A browser on the machine sends it with the page's body, whatever that is said to be.
#[test]
fn a_web_page_moves_no_application() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let writer = Writer::new(&node);
    assert_eq!(http(&node, "PATCH", "/v1/streams/a", "{\"durability\":\"process\"}").0, 200);
    assert!(writer.write());
    let (path, latest) = ("/v1/applications/a/reader/reset", "{\"to\":\"latest\"}");
    assert_eq!(http(&node, "POST", path, "{\"to\":\"earliest\"}").0, 200);
    let lag = || http(&node, "GET", "/v1/applications/a/reader", "").1["lag"].clone();
    assert_eq!(lag(), json!(1));
    let page = "Host: localhost\r\nOrigin: https://evil.example\r\nContent-Type: text/plain";
    for (headers, field) in [(page, "Origin"), ("Host: evil.example", "Host")] {
        let (code, error) = http_with(&node, "POST", path, headers, latest);
        assert_eq!((code, &error["field"]), (403, &json!(field)), "{error}");
        assert_eq!(lag(), json!(1));
    }
    assert_eq!(http_with(&node, "GET", "/v1/streams", "Host: evil.example", "").0, 403);
    // As curl sends it.
    let form = "Host: 127.0.0.1:7071\r\nContent-Type: application/x-www-form-urlencoded";
    assert_eq!(http_with(&node, "POST", path, form, latest).0, 200);
    assert_eq!(lag(), json!(0));
    drop(writer);
    node.stop();
}

#[test]
fn metrics_are_scraped_from_a_running_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let (code, text) = http(&node, "GET", "/metrics", "");
    let text = text.as_str().unwrap();
    assert_eq!(code, 200);
    for line in ["kera_node_ready 1", "kera_node_epoch 1", "kera_streams 1", "kera_arena_bytes 33546240", "# EOF"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    node.stop();
}

#[test]
fn a_stop_removes_the_arena_and_a_start_begins_the_next_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(dir.path().join("arena")).unwrap().flatten().map(|file| file.path());
    // The arena, and the link to its data directory.
    let arena_files = || files().inspect(|file| assert!(file.exists(), "{}", file.display())).count();
    for epoch in 1..4 {
        let node = Node::start(&config(dir.path())).unwrap();
        assert_eq!(arena_files(), 2);
        assert_eq!(http(&node, "GET", "/v1/status", "").1["epoch"], json!(epoch));
        node.stop();
        assert_eq!(arena_files(), 0);
    }
}

/// What keeps a node from noting that everything is on disk must not take its arena, by which the next start knows the same.
#[test]
fn the_arena_goes_when_it_is_noted_that_everything_is_on_disk_and_not_before() {
    for can_be_noted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(&config(dir.path())).unwrap();
        if !can_be_noted {
            // The file cannot be replaced.
            std::fs::create_dir(dir.path().join("data/node.json.tmp")).unwrap();
        }
        node.stop();
        let arena_files = std::fs::read_dir(dir.path().join("arena")).unwrap().count();
        let identity = std::fs::read_to_string(dir.path().join("data/node.json")).unwrap();
        let expected = if can_be_noted { (0, true) } else { (2, false) };
        assert_eq!((arena_files, identity.contains("stopped")), expected);
    }
}

/// A small file system that can be filled, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` without the right to mount, which says so. Continuous integration has it: there the test fails.
    fn mount(mib: u64) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "kera-test"]).arg(dir.path());
        if mount.output().is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk(dir));
        }
        let may_lack = std::env::var_os("CI").is_none();
        assert!(may_lack, "there is no right to mount, and `CI` is set: nothing may be left out");
        eprintln!("no right to mount: nothing to test");
        None
    }

    fn fill(&self) {
        self.fill_to(0);
    }

    /// Fills it until so many bytes are free.
    fn fill_to(&self, free_bytes: u64) {
        let mut file = std::fs::File::options().create(true).append(true).open(self.0.path().join("filler")).unwrap();
        let piece = vec![7; 64 << 10];
        while self.free_bytes() >= free_bytes && file.write(&piece).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }

    fn free_bytes(&self) -> u64 {
        RealDisk::open_buffered(self.0.path()).and_then(|disk| disk.free_bytes()).unwrap()
    }

    /// A node whose data is on it, in files that are small enough.
    fn config(&self, dir: &Path) -> Config {
        let mut config = config(dir);
        config.node.data = self.0.path().join("data");
        config.virtual_logs.file_bytes = Some(4 << 20);
        config.virtual_logs.keep_bytes = 16 << 20;
        config.storage.container_bytes = 16 << 20;
        config
    }
}

/// A client of a node, with a stream of durability `power`.
struct Writer {
    runtime: tokio::runtime::Runtime,
    client: Connection,
    stream: StreamId,
}

impl Writer {
    fn new(node: &Node) -> Writer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = node.address().to_string();
        let client = runtime.block_on(Connection::connect(&address, patient())).unwrap();
        let made = Writer::make(&runtime, &client, "a").unwrap();
        Writer { runtime, client, stream: made }
    }

    fn make(runtime: &tokio::runtime::Runtime, client: &Connection, name: &str) -> Result<StreamId, RpcError> {
        let options = StreamOptions { durability: Durability::Power, ..StreamOptions::default() };
        let made = CreateStream { name: name.into(), options, if_not_exists: false };
        Ok(runtime.block_on(client.call(&made))?.id)
    }

    /// Writes 200 KiB. Whether they are acknowledged, for which there is time.
    fn write(&self) -> bool {
        self.write_to(0)
    }

    fn write_to(&self, streamlet: u32) -> bool {
        self.write_within(streamlet, 600_000)
    }

    /// The same where it may be that they never are.
    fn try_to_write(&self) -> bool {
        self.write_within(0, 50)
    }

    fn write_within(&self, streamlet: u32, timeout_ms: u32) -> bool {
        let mut chunk = ChunkBuilder::default();
        chunk.push(&Record::value(&[1; 200 << 10]));
        let target = ChunkTarget { stream: self.stream, streamlet: StreamletId(streamlet), ..ChunkTarget::default() };
        let chunks = chunk.seal(&target, Compression::None).unwrap().into();
        let wanted = WriteChunks { timeout_ms, chunk_count: 1, skips: Vec::new(), chunks };
        let written = self.runtime.block_on(self.client.call(&wanted));
        written.is_ok_and(|written| written.results[0].status == Status::Ok as u16)
    }

    /// Writes until the node says that its disk is full.
    fn write_until_full(&self, node: &Node, before_each: impl Fn()) {
        let (mut code, mut said) = (200, Value::Null);
        let until = Instant::now() + PATIENCE;
        while code == 200 && Instant::now() < until {
            before_each();
            self.try_to_write();
            (code, said) = http(node, "GET", "/readyz", "");
            // The node looks at its disks once a second.
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(code == 503 && said["error"].as_str().unwrap().contains("full"), "{code} {said}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A test that fails leaves a node with open files: the mount goes at once, its memory with the last of them.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).output();
    }
}

/// The disk of the virtual log takes nothing, and then the stream is to survive kills only. What is acknowledged from there on is behind what is not durable, and
/// the store gets it after that, which is never.
#[test]
fn what_is_acknowledged_behind_what_never_became_durable_outlives_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    let writer = Writer::new(&node);
    let (logs, away) = (dir.path().join("data/vlog"), dir.path().join("away"));
    std::fs::rename(&logs, &away).unwrap();
    std::fs::write(&logs, "no directory").unwrap();
    assert!(!writer.try_to_write(), "it is not durable");
    assert_eq!(http(&node, "PATCH", "/v1/streams/a", "{\"durability\":\"process\"}").0, 200);
    assert!(writer.write());
    drop(writer);
    node.stop();
    let identity = std::fs::read_to_string(dir.path().join("data/node.json")).unwrap();
    assert!(!identity.contains("stopped"), "{identity}");
    // Of a process that has ended nobody holds the file: this one goes on, so what is in it is put into another.
    let mut files = std::fs::read_dir(dir.path().join("arena")).unwrap().map(|file| file.unwrap().path());
    let arena = files.find(|file| file.extension().is_some_and(|of| of == "arena")).expect("it stays");
    std::fs::copy(&arena, dir.path().join("copy")).unwrap();
    std::fs::rename(dir.path().join("copy"), &arena).unwrap();
    std::fs::remove_file(&logs).unwrap();
    std::fs::rename(&away, &logs).unwrap();
    let node = Node::start(&config(dir.path())).unwrap();
    // The first one is there as after a kill: nobody was told that it is not. It goes to the disk first.
    let records = || http(&node, "GET", "/v1/streams/a", "").1["records"].clone();
    let (mut found, until) = (records(), Instant::now() + PATIENCE);
    while found != json!(2) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
        found = records();
    }
    assert_eq!(found, json!(2));
    node.stop();
}

#[test]
fn a_node_with_a_full_disk_is_alive_and_not_ready_until_there_is_room() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&disk.config(dir.path())).unwrap();
    let writer = Writer::new(&node);
    assert_eq!(http(&node, "GET", "/readyz", "").0, 200);
    // Files that are allocated ahead take some more.
    writer.write_until_full(&node, || disk.fill());
    let mut code = 503;
    assert_eq!(http(&node, "GET", "/healthz", "").0, 200);
    disk.free();
    let until = Instant::now() + PATIENCE;
    while code != 200 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
        writer.try_to_write();
        code = http(&node, "GET", "/readyz", "").0;
    }
    assert_eq!(code, 200);
    drop(writer);
    node.stop();
}

/// Data stops in front of it, and what must be noted has room. Of 256 MiB that is a fiftieth.
#[test]
fn the_last_of_a_disk_takes_no_data() {
    let Some(disk) = SmallDisk::mount(256) else { return };
    let dir = tempfile::tempdir().unwrap();
    disk.fill_to(60 << 20);
    let node = Node::start(&disk.config(dir.path())).unwrap();
    let writer = Writer::new(&node);
    writer.write_until_full(&node, || {});
    // It says so when one kind of file has no room left. Others may have some.
    let until = Instant::now() + PATIENCE;
    while disk.free_bytes() >= 16 << 20 && Instant::now() < until {
        writer.try_to_write();
    }
    (0..20).for_each(|_| _ = writer.try_to_write());
    let free = disk.free_bytes();
    assert!((4 << 20..16 << 20).contains(&free), "{free} bytes are free");
    Writer::make(&writer.runtime, &writer.client, "b").expect("the catalog has room");
    drop(writer);
    node.stop();
}

#[test]
fn a_port_for_kafka_clients_that_nobody_asked_for_may_be_somebody_elses() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // A start that fails ends its process, and its arena with it: in this one the next try needs another.
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [asked_for, by_default] = [false, true].map(|by_default| {
        let mut config = config(dirs[usize::from(by_default)].path());
        config.kafka.listen = Some(taken.local_addr().unwrap().to_string());
        config.kafka_by_default = by_default;
        Node::start(&config)
    });
    let refused = asked_for.err().expect("the port is taken").to_string();
    assert!(refused.contains("Kafka clients"), "{refused}");
    let node = by_default.unwrap();
    assert_eq!(node.kafka_address(), None);
    assert_eq!(http(&node, "GET", "/readyz", "").0, 200);
    node.stop();
}
