//! A node with a door for Kafka clients, in this process or in one that is killed, and the bytes of simple requests.

#![allow(unreachable_pub, reason = "one binary has all tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes};
use kera_server::Node;
use kera_server::config::Config;

/// The longest that anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Where a node that is killed is told to keep its things.
const DIR: &str = "KERA_TEST_NODE_DIR";

pub fn config(dir: &Path) -> Config {
    let mut config = Config::default();
    config.node.data = dir.join("data");
    config.node.io_threads = Some(1);
    config.network.listen = "127.0.0.1:0".into();
    config.http.listen = None;
    config.kafka.listen = Some("127.0.0.1:0".into());
    config.arena.bytes = Some(32 << 20);
    config.arena.dir = Some(dir.join("arena"));
    config
}

pub fn connect(node: &Node) -> TcpStream {
    connect_to(node.kafka_address().unwrap())
}

pub fn connect_to(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A request whose header is not flexible: key, version, correlation, client "t", body.
pub fn request(key: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = (11 + body.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(&key.to_be_bytes());
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&correlation.to_be_bytes());
    frame.extend_from_slice(&[0, 1, b't']);
    frame.extend_from_slice(body);
    frame
}

pub fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Asks in a version, with kafka-protocol's own codecs.
pub fn call<R: Request>(stream: &mut TcpStream, version: i16, asked: &R) -> R::Response {
    let key = ApiKey::try_from(R::KEY).unwrap();
    let mut body = BytesMut::new();
    let header = RequestHeader::default().with_request_api_key(R::KEY).with_request_api_version(version);
    header.encode(&mut body, key.request_header_version(version)).unwrap();
    asked.encode(&mut body, version).unwrap();
    stream.write_all(&(body.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let mut answered = Bytes::from(answer(stream));
    answered.advance(if key.response_header_version(version) > 0 { 5 } else { 4 });
    R::Response::decode(&mut answered, version).unwrap()
}

/// A node in a process of its own, which is killed when this goes.
pub struct Process {
    child: Child,
    pub kafka: SocketAddr,
}

impl Process {
    /// Runs the ignored test `name` of this very program, which calls [`serve_until_killed`], and waits until its node serves.
    pub fn start(name: &str, dir: &Path) -> Process {
        let _ = std::fs::remove_file(dir.join("address"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", name]).env(DIR, dir);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut process = Process { child, kafka: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let until = Instant::now() + PATIENCE;
        loop {
            if let Ok(address) = std::fs::read_to_string(dir.join("address")) {
                process.kafka = address.parse().unwrap();
                return process;
            }
            assert!(Instant::now() < until, "the node does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What the process of [`Process::start`] does.
pub fn serve_until_killed(config: impl Fn(&Path) -> Config) -> ! {
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let node = Node::start(&config(&dir)).unwrap();
    std::fs::write(dir.join("address.part"), node.kafka_address().unwrap().to_string()).unwrap();
    std::fs::rename(dir.join("address.part"), dir.join("address")).unwrap();
    loop {
        std::thread::park();
    }
}
