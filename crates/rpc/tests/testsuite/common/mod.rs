//! A scripted session, a server around it, and a client that writes bytes as it likes.
// Each test file is a crate of its own that uses a part of it.
#![allow(unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kera_env::AlignedBuffer;
use kera_protocol::{
    Body, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Hello, HelloResponse, Op, Status, encode_request,
};
use kera_rpc::{Flow, Outbox, Peer, Place, RunningServer, Server, ServerConfig, Session, SessionWaker};

/// What the test sees of all sessions, and how it steers them.
#[derive(Debug, Default)]
pub struct Script {
    pub frames: AtomicU64,
    pub offered: AtomicU64,
    /// Answers of `StreamStats` and `GetStream`.
    pub made: AtomicU64,
    /// Bytes of them that somebody has, and the most there ever were.
    pub held_bytes: AtomicU64,
    pub held_bytes_peak: AtomicU64,
    /// `StoreBlock` that came to its place.
    pub placed: AtomicU64,
    pub opened: AtomicU64,
    pub closed: AtomicU64,
    pub stopped: AtomicU64,
    pub deadlines: AtomicU64,
    /// `Lookup` is blocked until this is set.
    pub let_go: AtomicBool,
    /// Sessions ask to be called then.
    pub deadline_us: AtomicU64,
    /// A deadline sets `let_go`.
    pub deadline_lets_go: AtomicBool,
    /// Sessions are busy while something waits for an answer.
    pub wakers: Mutex<Vec<SessionWaker>>,
}

impl Script {
    pub fn wake_all(&self) {
        for waker in self.wakers.lock().unwrap().iter() {
            waker.wake();
        }
    }

    /// Waits until no session is open any more, and all memory of their frames is given back: a session is closed before that is.
    pub fn until_all_are_gone(&self, server: &RunningServer) {
        self.until("all are gone", |s| s.opened.load(Ordering::SeqCst) == s.closed.load(Ordering::SeqCst));
        self.until("their memory is given back", |_| server.stats().inflight_bytes == 0);
    }

    /// Waits until `reached` is.
    pub fn until(&self, what: &str, reached: impl Fn(&Script) -> bool) {
        for _ in 0..60_000 {
            if reached(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("never: {what}; {self:?}");
    }
}

/// The bytes of an answer, counted while somebody has them.
struct Held {
    bytes: Vec<u8>,
    script: Arc<Script>,
}

impl Held {
    fn bytes_of(bytes: usize, script: &Arc<Script>) -> Bytes {
        let now = script.held_bytes.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        script.held_bytes_peak.fetch_max(now, Ordering::SeqCst);
        Bytes::from_owner(Held { bytes: vec![5; bytes], script: Arc::clone(script) })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.script.held_bytes.fetch_sub(self.bytes.len() as u64, Ordering::SeqCst);
    }
}

/// In front of what is placed.
const IN_FRONT: &[u8] = b"front";

/// What the operations do here: `NodeStatus` echoes its body, `StreamStats` answers with so many bytes as its body says,
/// `GetStream` with so many as of a segment, `Lookup` blocks the connection until let go, `NextGroups` is answered in a later wake, last first, and so
/// is `NextSegments`, with so many bytes as of a segment, `ReadChunks` fails,
/// `Subscribe` is answered by as many pushes as its body says, `DeleteStream` closes. `StoreBlock` echoes its body too, and has a place for
/// all behind its first eight bytes; if the first one is 1 it is blocked until let go.
struct Scripted {
    script: Arc<Script>,
    /// With how many bytes each is answered.
    waiting: Vec<(FrameHeader, usize)>,
}

fn number(body: &[u8]) -> usize {
    u64::from_le_bytes(body[..8].try_into().unwrap()) as usize
}

impl Session for Scripted {
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        self.script.offered.fetch_add(1, Ordering::SeqCst);
        match Op::from_u16(header.op).unwrap() {
            Op::NodeStatus => {
                let mut frame = out.begin(&header.response(0));
                frame.body().extend_from_slice(body);
                frame.finish();
            }
            Op::StreamStats => {
                self.script.made.fetch_add(1, Ordering::SeqCst);
                let mut frame = out.begin(&header.response(0));
                frame.attach_own(Held::bytes_of(number(body), &self.script));
                frame.finish();
            }
            Op::GetStream => {
                let mut frame = out.begin(&header.response(0));
                frame.attach(Held::bytes_of(number(body), &self.script));
                frame.finish();
                self.script.made.fetch_add(1, Ordering::SeqCst);
            }
            Op::Lookup => {
                if !self.script.let_go.load(Ordering::SeqCst) {
                    return Flow::Blocked;
                }
                out.begin(&header.response(0)).finish();
            }
            Op::NextGroups => self.waiting.push((*header, 0)),
            Op::NextSegments => self.waiting.push((*header, number(body))),
            Op::ReadChunks => {
                let error = ErrorBody { message: "not today".into(), retry_after_ms: 70 };
                out.error(header, Status::ArenaFull, &error);
            }
            Op::StoreBlock => {
                if body.first() == Some(&1) && !self.script.let_go.load(Ordering::SeqCst) {
                    return Flow::Blocked;
                }
                let mut frame = out.begin(&header.response(0));
                frame.body().extend_from_slice(body);
                frame.finish();
            }
            Op::Subscribe => {
                for i in 0..number(body) {
                    let mut frame = out.begin_push(header, Status::Ok);
                    frame.body().extend_from_slice(&(i as u64).to_le_bytes());
                    frame.finish();
                }
            }
            Op::Unsubscribe => {}
            Op::DeleteStream => return Flow::Close("asked to".into()),
            op => panic!("{op} is not scripted"),
        }
        self.script.frames.fetch_add(1, Ordering::SeqCst);
        Flow::Done
    }

    fn place(&mut self, header: &FrameHeader, start: &[u8]) -> Option<Place> {
        if header.op != Op::StoreBlock as u16 || start.len() < 8 {
            return None;
        }
        let mut buffer = AlignedBuffer::with_capacity(IN_FRONT.len() + header.body_bytes() - 8);
        buffer.extend_from_slice(IN_FRONT);
        Some(Place { start_bytes: 8, buffer })
    }

    fn on_placed(&mut self, header: &FrameHeader, start: &[u8], rest: &mut AlignedBuffer, out: &mut Outbox) -> Flow {
        assert_eq!(&rest[..IN_FRONT.len()], IN_FRONT);
        let body = [start, &rest[IN_FRONT.len()..]].concat();
        let flow = self.on_frame(header, &body, out);
        if flow == Flow::Done {
            self.script.placed.fetch_add(1, Ordering::SeqCst);
            drop(std::mem::take(rest));
        }
        flow
    }

    fn on_wake(&mut self, out: &mut Outbox) {
        if self.script.let_go.load(Ordering::SeqCst) {
            while let Some((header, bytes)) = self.waiting.pop() {
                let mut frame = out.begin(&header.response(0));
                frame.attach(Held::bytes_of(bytes, &self.script));
                frame.finish();
            }
        }
    }

    fn deadline_us(&self) -> Option<u64> {
        Some(self.script.deadline_us.load(Ordering::SeqCst)).filter(|at| *at > 0)
    }

    fn on_deadline(&mut self, _: u64, _: &mut Outbox) {
        self.script.deadlines.fetch_add(1, Ordering::SeqCst);
        self.script.deadline_us.store(0, Ordering::SeqCst);
        if self.script.deadline_lets_go.load(Ordering::SeqCst) {
            self.script.let_go.store(true, Ordering::SeqCst);
        }
    }

    fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn on_stop(&mut self, _: &mut Outbox) {
        self.script.stopped.fetch_add(1, Ordering::SeqCst);
    }

    fn on_close(&mut self) {
        self.script.closed.fetch_add(1, Ordering::SeqCst);
    }
}

pub fn hello_response() -> HelloResponse {
    HelloResponse {
        server_name: "scripted".into(),
        server_version: "1".into(),
        node_id: [1; 16],
        node_epoch: 2,
        ops: HelloResponse::ops_spoken(),
        frame_bytes_max: 8 << 20,
        chunk_bytes_max: 1 << 20,
        in_flight_bytes_max: 64 << 20,
        in_flight_requests_max: 1_000,
        subscriptions_max: 10,
        idle_timeout_ms: 0,
    }
}

pub fn start(change: impl FnOnce(&mut ServerConfig)) -> (RunningServer, Arc<Script>) {
    let clock = Arc::new(kera_env::SystemClock::new());
    let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into(), hello_response(), clock);
    // A test that is held up for long has its handshake all the same.
    config.handshake_timeout = Duration::from_secs(120);
    change(&mut config);
    let script = Arc::new(Script::default());
    let factory = {
        let script = Arc::clone(&script);
        Arc::new(move |_: Peer, waker: SessionWaker| {
            script.opened.fetch_add(1, Ordering::SeqCst);
            script.wakers.lock().unwrap().push(waker);
            Box::new(Scripted { script: Arc::clone(&script), waiting: Vec::new() }) as Box<dyn Session>
        })
    };
    (Server::start(config, factory).unwrap(), script)
}

pub fn hello_frame() -> Vec<u8> {
    let mut frame = Vec::new();
    encode_request(&Hello { client_name: "raw".into(), client_version: "1".into() }, 1, 1, &mut frame);
    frame
}

pub fn frame(op: Op, correlation: u64, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        frame_bytes: (FRAME_HEADER_BYTES + body.len()) as u32,
        op: op as u16,
        version: 1,
        correlation,
        ..FrameHeader::default()
    };
    [&header.to_bytes()[..], body].concat()
}

/// A client without manners.
pub struct Raw {
    pub stream: TcpStream,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        Raw { stream }
    }

    pub fn greeted(address: SocketAddr) -> Raw {
        let mut raw = Raw::connect(address);
        raw.write(&hello_frame());
        let (header, body) = raw.read();
        assert_eq!(header.status, 0);
        assert_eq!(HelloResponse::decode(1, &body).unwrap(), hello_response_of(&body));
        raw
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn read(&mut self) -> (FrameHeader, Vec<u8>) {
        let mut head = [0; FRAME_HEADER_BYTES];
        self.stream.read_exact(&mut head).unwrap();
        let header = FrameHeader::parse(&head, 1 << 30).unwrap();
        let mut body = vec![0; header.body_bytes()];
        self.stream.read_exact(&mut body).unwrap();
        (header, body)
    }

    pub fn read_error(&mut self) -> (FrameHeader, Status, String) {
        let (header, body) = self.read();
        let message = ErrorBody::decode(&body).unwrap().message;
        (header, Status::from_u16(header.status).unwrap(), message)
    }

    pub fn echo(&mut self, body: &[u8]) {
        self.write(&frame(Op::NodeStatus, 77, body));
        let (header, answer) = self.read();
        assert_eq!((header.correlation, header.status), (77, 0));
        assert!(answer == body, "the echo differs");
    }

    /// Nothing comes any more: the server has closed.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "{} more bytes", rest.len()),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

fn hello_response_of(body: &[u8]) -> HelloResponse {
    let sent = HelloResponse::decode(1, body).unwrap();
    HelloResponse { frame_bytes_max: sent.frame_bytes_max, idle_timeout_ms: sent.idle_timeout_ms, ..hello_response() }
}
