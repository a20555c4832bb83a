use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kera_env::SystemClock;
use kera_format::{ApplicationId, StreamId, StreamOptions, StreamletId};
use kera_protocol::{
    CommittedOffsets, Empty, ErrorBody, FrameHeader, Op, OwnerRun, Owners, Status, StreamInfo, StreamOwners,
};
use kera_rpc::{Flow, Outbox, Peer, Session, SessionWaker};
use parking_lot::Mutex;

use super::routes::ROUTES;
use super::*;
use crate::readiness::{Phase, Readiness};

#[test]
fn the_openapi_document_covers_every_route_and_no_other() {
    let document: serde_json::Value = serde_json::from_str(&openapi_text()).unwrap();
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            described.insert((method.clone(), path.clone()));
        }
    }
    let routed: BTreeSet<(String, String)> = ROUTES.iter().map(|(m, p)| ((*m).into(), (*p).into())).collect();
    assert_eq!(described, routed);
}

#[test]
fn every_operation_says_what_it_does_and_what_it_answers() {
    let document: serde_json::Value = serde_json::from_str(&openapi_text()).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(operation["summary"].as_str().is_some_and(|s| s.len() > 10), "{method} {path} has a summary");
            assert!(!operation["responses"].as_object().unwrap().is_empty(), "{method} {path} has responses");
        }
    }
}

/// A server of a node that never gets beyond its start.
fn starting() -> (HttpServer, Arc<Readiness>) {
    limited(Limits::default())
}

fn limited(limits: Limits) -> (HttpServer, Arc<Readiness>) {
    let readiness = Arc::new(Readiness::default());
    readiness.enter(Phase::Starting("attaching the arena"));
    let state = Arc::new(HttpState { readiness: readiness.clone(), node: OnceLock::new() });
    (HttpServer::with_limits("127.0.0.1:0", state, limits).unwrap(), readiness)
}

fn request(address: SocketAddr, head: &str) -> String {
    request_with(address, head, &["Host: localhost"])
}

fn request_with(address: SocketAddr, head: &str, headers: &[&str]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    stream.write_all(format!("{head} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_node_that_starts_is_alive_and_not_ready_and_says_why() {
    let (server, readiness) = starting();
    assert!(request(server.address, "GET /healthz").starts_with("HTTP/1.1 200"));
    let answer = request(server.address, "GET /readyz");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("starting: attaching the arena"), "{answer}");
    for path in ["/metrics", "/v1/status", "/v1/streams"] {
        let answer = request(server.address, &format!("GET {path}"));
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"next_step\""), "{answer}");
    }
    readiness.enter(Phase::Serving);
    assert!(request(server.address, "GET /readyz").starts_with("HTTP/1.1 200"));
    server.stop();
}

#[test]
fn wrong_paths_and_methods_get_json_that_helps() {
    let (server, _) = starting();
    let answer = request(server.address, "GET /v1/stream");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("/openapi.json lists every path"), "{answer}");
    let answer = request(server.address, "DELETE /healthz");
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("\"error\""), "{answer}");
    assert!(request(server.address, "GET /openapi.json").contains("\"openapi\""));
    server.stop();
}

#[test]
fn what_a_web_page_asks_for_changes_nothing() {
    let (server, _) = starting();
    let post = "POST /v1/applications/s/a/reset";
    for (head, page, named) in [
        (post, "Origin: https://evil.example", "Origin"),
        (post, "Origin: null", "Origin"),
        (post, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site"),
        (post, "Sec-Fetch-Site: same-site", "Sec-Fetch-Site"),
        ("OPTIONS /v1/streams", "Origin: https://evil.example", "Origin"),
        ("DELETE /v1/streams/a", "Origin: https://evil.example", "Origin"),
    ] {
        let answer = request_with(server.address, head, &["Host: localhost", page]);
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(&format!("\"field\":\"{named}\"")), "{answer}");
    }
    // A link from another page, and what somebody types: nothing is changed by it, and no page can read it.
    for page in ["Origin: https://evil.example", "Sec-Fetch-Site: cross-site"] {
        let answer = request_with(server.address, "GET /v1/streams", &["Host: localhost", page]);
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    let answer = request_with(server.address, "DELETE /v1/streams/a", &["Host: localhost", "Sec-Fetch-Site: none"]);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    server.stop();
}

#[test]
fn a_loopback_address_is_asked_under_no_name_that_may_be_a_pages() {
    let (server, _) = starting();
    let port = server.address.port();
    for head in ["GET /v1/streams", "DELETE /v1/streams/a"] {
        for host in ["Host: evil.example".to_owned(), format!("Host: evil.example:{port}")] {
            let answer = request_with(server.address, head, &[&host]);
            assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"field\":\"Host\""), "{answer}");
        }
        for host in ["Host: localhost".to_owned(), format!("Host: 127.0.0.1:{port}"), "Host: [::1]:7071".to_owned()] {
            let answer = request_with(server.address, head, &[&host]);
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
    }
    let absolute = request_with(server.address, "GET http://evil.example/v1/streams", &["Host: localhost"]);
    assert!(absolute.starts_with("HTTP/1.1 403"), "{absolute}");
    assert!(request_with(server.address, "GET /healthz", &["Host: evil.example"]).starts_with("HTTP/1.1 200"));
    // Who asks without any is no browser.
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"GET /v1/streams HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 503"), "{answer}");
    server.stop();
}

#[test]
fn an_address_that_others_reach_is_asked_under_any_name() {
    let state = Arc::new(HttpState { readiness: Arc::new(Readiness::default()), node: OnceLock::new() });
    let server = HttpServer::with_limits("0.0.0.0:0", state, Limits::default()).unwrap();
    let at = SocketAddr::from(([127, 0, 0, 1], server.address.port()));
    let answer = request_with(at, "GET /v1/streams", &["Host: broker.example:7071"]);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let answer = request_with(at, "DELETE /v1/streams/a", &["Host: broker.example:7071", "Origin: null"]);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    server.stop();
}

/// Writes `piece` again and again, slowly, until the other side has ended the connection; what it said before.
fn drip(mut stream: TcpStream, piece: &[u8]) -> String {
    stream.set_nonblocking(true).unwrap();
    let mut said = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => said.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        // Once the connection has ended this fails, and what was said before that is still to be read.
        let _ = stream.write_all(piece);
        std::thread::sleep(Duration::from_millis(10));
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Twenty that send headers byte by byte, and what each is told in the end.
fn slow_ones(address: SocketAddr) -> Vec<JoinHandle<String>> {
    let slow = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
        std::thread::spawn(move || drip(stream, b"a"))
    };
    (0..20).map(slow).collect()
}

#[test]
fn who_sends_headers_byte_by_byte_is_cut_off_and_nobody_else_notices() {
    // While nobody is cut off others are served.
    let (server, _) = limited(Limits { headers: Duration::from_secs(3600), ..Limits::default() });
    let slow = slow_ones(server.address);
    assert!(request(server.address, "GET /healthz").starts_with("HTTP/1.1 200"));
    server.stop();
    slow.into_iter().for_each(|thread| drop(thread.join().unwrap()));

    let (server, _) = limited(Limits { headers: Duration::from_millis(300), ..Limits::default() });
    for thread in slow_ones(server.address) {
        let said = thread.join().unwrap();
        assert!(!said.contains("200 OK"), "{said}");
    }
    server.stop();
}

#[test]
fn who_sends_a_body_byte_by_byte_is_cut_off() {
    let (server, readiness) = limited(Limits { request: Duration::from_millis(300), ..Limits::default() });
    readiness.enter(Phase::Serving);
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n{{").unwrap();
    let said = drip(stream, b" ");
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("\"limit\":\"0.3 s\""), "{said}");
    server.stop();
}

#[test]
fn who_sends_nothing_is_cut_off() {
    let (server, _) = limited(Limits { headers: Duration::from_millis(100), ..Limits::default() });
    let mut stream = TcpStream::connect(server.address).unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains("200 OK"));
    server.stop();
}

/// For what has to come.
const PATIENCE: Duration = Duration::from_secs(180);

/// A connection that is kept open and has been answered `/healthz`.
fn answered(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(first_of_answer(&mut stream), "HTTP/1.1 200");
    stream
}

fn first_of_answer(stream: &mut TcpStream) -> String {
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn more_connections_than_allowed_wait_while_all_have_requests() {
    let (long, connections) = (Duration::from_secs(3600), 2);
    let (server, readiness) =
        limited(Limits { connections, headers: long, request: long, life: long, last_answer: long });
    readiness.enter(Phase::Serving);
    let begun = |_| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let headers = "Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 60000";
        write!(stream, "POST /v1/streams HTTP/1.1\r\n{headers}\r\n\r\n").unwrap();
        // Its body is waited for.
        assert_eq!(first_of_answer(&mut stream), "HTTP/1.1 100");
        stream
    };
    let mut busy: Vec<TcpStream> = (0..2).map(begun).collect();
    let mut third = TcpStream::connect(server.address).unwrap();
    write!(third, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(third.read(&mut [0; 12]).is_err(), "there are two already");
    busy.pop();
    third.set_read_timeout(None).unwrap();
    assert_eq!(first_of_answer(&mut third), "HTTP/1.1 200");
    server.stop();
}

/// An orchestrator that is not answered kills a node which is well. No answer is on its way on any of them, so none is waited for.
#[test]
fn whoever_comes_when_all_connections_are_silent_is_answered() {
    let (long, connections) = (Duration::from_secs(3600), 4);
    let (server, _) = limited(Limits { connections, headers: long, request: long, life: long, last_answer: long });
    let half = |stream: &mut TcpStream| write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
    let silent = TcpStream::connect(server.address).unwrap();
    let mut begun = TcpStream::connect(server.address).unwrap();
    half(&mut begun);
    // They are accepted in turn, so those before it are by now.
    let kept = answered(server.address);
    let mut again = answered(server.address);
    half(&mut again);
    let mut newest = Vec::new();
    for mut gone in [silent, begun, kept, again] {
        newest.push(answered(server.address));
        // It ends.
        gone.set_read_timeout(Some(PATIENCE)).unwrap();
        if let Err(error) = gone.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    server.stop();
}

#[test]
fn headers_without_end_are_refused() {
    let (server, _) = starting();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let _ = write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {}", "a".repeat(100 << 10));
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains("200 OK"));
    assert!(request(server.address, "GET /healthz").starts_with("HTTP/1.1 200"));
    server.stop();
}

/// Stands for the owner of a streamlet of which a node does not tell.
const UNTOLD: u32 = u32::MAX;

/// A node of a cluster, and stream 7 with two streamlets. It knows no application, and does what it is asked to.
struct Member {
    /// Who owns the streamlets, each time that it is asked; in the end it stays so.
    owners: Mutex<VecDeque<[u32; 2]>>,
    /// How often it has done something.
    done: AtomicU64,
}

impl Member {
    fn owners(&self) -> Owners {
        let mut owners = self.owners.lock();
        let now = if owners.len() > 1 { owners.pop_front() } else { owners.front().copied() };
        let run = |(first, node): (u32, u32)| OwnerRun {
            first: StreamletId(first),
            count: 1,
            step: 1,
            node,
            epoch: 1,
            older: Vec::new(),
        };
        let told = (0..).zip(now.into_iter().flatten()).filter(|(_, node)| *node != UNTOLD);
        let runs = told.map(run).collect();
        let streams = vec![StreamOwners { stream: StreamId(7), streamlets: 2, runs }];
        Owners { cluster: [1; 16], version: 1, node: 1, nodes: Vec::new(), streams, more: false }
    }
}

struct MemberSession(Arc<Member>);

impl Session for MemberSession {
    fn on_frame(&mut self, header: &FrameHeader, _: &[u8], out: &mut Outbox) -> Flow {
        let done = || self.0.done.fetch_add(1, Ordering::SeqCst);
        match Op::from_u16(header.op) {
            Some(Op::GetStream) => {
                let (id, name, options) = (StreamId(7), "s".to_owned(), StreamOptions::default());
                out.respond(header, &StreamInfo { id, name, created_ms: 1, options });
            }
            Some(Op::FindOwners) => out.respond(header, &self.0.owners()),
            Some(Op::DescribeApplication) => {
                out.error(header, Status::UnknownApplication, &ErrorBody::new("there is none"));
            }
            Some(Op::DeleteApplication) => {
                done();
                out.respond(header, &Empty);
            }
            Some(Op::ResetOffsets) => {
                done();
                out.respond(header, &CommittedOffsets { application: ApplicationId(1), offsets: Vec::new() });
            }
            other => panic!("{other:?} is not asked for"),
        }
        Flow::Done
    }

    fn on_wake(&mut self, _: &mut Outbox) {}
}

/// The status that node 1 answers such a request with while the streamlets have these owners one after the other, and how often it has done something.
fn of_member(owners: &[[u32; 2]], head: &str, body: &str) -> (String, u64) {
    let member = Arc::new(Member { owners: Mutex::new(owners.iter().copied().collect()), done: AtomicU64::new(0) });
    let readiness = Arc::new(Readiness::default());
    readiness.enter(Phase::Serving);
    let state = Arc::new(HttpState { readiness, node: OnceLock::new() });
    let serving = member.clone();
    let sessions = move |_: Peer, _: SessionWaker| Box::new(MemberSession(serving.clone())) as Box<dyn Session>;
    let node = HttpNode {
        sessions: Arc::new(sessions),
        clock: Arc::new(SystemClock::new()),
        metrics: Arc::new(Metrics::new(Default::default)),
        copy_changes: Box::new(Vec::new),
    };
    assert!(state.node.set(node).is_ok());
    let server = HttpServer::with_limits("127.0.0.1:0", state, Limits::default()).unwrap();
    let length = format!("Content-Length: {}", body.len());
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "{head} HTTP/1.1\r\nHost: localhost\r\n{length}\r\nConnection: close\r\n\r\n{body}").unwrap();
    let status = first_of_answer(&mut stream);
    server.stop();
    (status["HTTP/1.1 ".len()..].to_owned(), member.done.load(Ordering::SeqCst))
}

/// One may have left before the node was asked, and be asked nothing at its next owner: what was forgotten would come back with it.
#[test]
fn what_was_done_to_a_part_of_an_application_is_not_told_as_done_to_all_of_it() {
    for (head, body, done) in [
        ("DELETE /v1/applications/s/a", "", "204"),
        ("POST /v1/applications/s/a/reset", "{\"to\":\"earliest\"}", "200"),
    ] {
        let told = |owners: &[[u32; 2]]| {
            let (status, done) = of_member(owners, head, body);
            format!("{status} {done}")
        };
        assert_eq!(told(&[[1, 1]]), format!("{done} 1"));
        assert_eq!(told(&[[1, 2]]), "501 0");
        assert_eq!(told(&[[1, 1], [1, 2]]), "501 1", "node 2 has it by now");
        assert_eq!(told(&[[1, 1], [1, 0]]), "503 1");
        // The stream has grown, say, and the node hears a moment later whose the new ones are.
        assert_eq!(told(&[[1, UNTOLD]]), "503 0");
    }
}

#[test]
fn a_node_to_which_a_stream_has_just_come_does_not_say_that_it_has_no_such_application() {
    let told = |owners: &[[u32; 2]]| of_member(owners, "GET /v1/applications/s/a", "").0;
    assert_eq!(told(&[[1, 1]]), "404");
    assert_eq!(told(&[[1, 2]]), "501");
    assert_eq!(told(&[[1, 1], [1, 2]]), "501");
    assert_eq!(told(&[[2, 2], [1, 1]]), "503");
}
