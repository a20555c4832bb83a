//! How fast one connection is received: this crate's server against a bare loop that does the same work without it.
//!
//! `cargo run --release -p kera-rpc --example receive -- [frame KiB] [seconds]`. Both copy every body into a buffer of
//! 8 MiB, as a segment, and compute its CRC-32C. The sender is a thread with a blocking socket that sends the same frame.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_protocol::{FRAME_HEADER_BYTES, FrameHeader, Hello, HelloResponse, Op, encode_request};
use kera_rpc::{Flow, Outbox, Peer, Server, ServerConfig, Session, SessionWaker};

const SEGMENT_BYTES: usize = 8 << 20;

struct Sink {
    segment: Vec<u8>,
    at: usize,
    bytes: Arc<AtomicU64>,
    checksums: u32,
}

impl Sink {
    fn new(bytes: Arc<AtomicU64>) -> Sink {
        Sink { segment: vec![0; SEGMENT_BYTES], at: 0, bytes, checksums: 0 }
    }

    fn take(&mut self, body: &[u8]) {
        if self.at + body.len() > self.segment.len() {
            self.at = 0;
        }
        let to = &mut self.segment[self.at..self.at + body.len()];
        to.copy_from_slice(body);
        self.checksums ^= kera_format::checksum::crc32c(to);
        self.at += body.len();
        self.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    }
}

impl Session for Sink {
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
        self.take(body);
        out.begin(&header.response(0)).finish();
        Flow::Done
    }
    fn on_wake(&mut self, _: &mut Outbox) {}
}

fn send(address: SocketAddr, frame_bytes: usize, stop: &AtomicBool) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let mut hello = Vec::new();
    encode_request(&Hello { client_name: "receive".into(), client_version: String::new() }, 1, 0, &mut hello);
    stream.write_all(&hello).expect("the handshake is sent");
    let header = FrameHeader {
        frame_bytes: frame_bytes as u32,
        op: Op::WriteChunks as u16,
        version: 1,
        ..FrameHeader::default()
    };
    let mut frame = vec![7; frame_bytes];
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let frames = frame.repeat((256usize << 10).div_ceil(frame_bytes));
    let mut answers = stream.try_clone().expect("a socket can be cloned");
    let reader = std::thread::spawn(move || {
        let mut scrap = vec![0; 64 << 10];
        while matches!(answers.read(&mut scrap), Ok(1..)) {}
    });
    while !stop.load(Ordering::Relaxed) && stream.write_all(&frames).is_ok() {}
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let _ = reader.join();
}

/// Receives, copies, checksums and answers nothing.
fn bare(bytes: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_nonblocking(true).expect("a socket");
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            let mut sink = Sink::new(bytes);
            let mut buffer = vec![0; 256 << 10];
            loop {
                match stream.try_read(&mut buffer) {
                    Ok(0) => return,
                    Ok(bytes) => sink.take(&buffer[..bytes]),
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                        stream.readable().await.expect("a socket");
                    }
                    Err(_) => return,
                }
            }
        });
    });
    address
}

fn measure(name: &str, address: SocketAddr, frame_bytes: usize, seconds: u64, bytes: &AtomicU64) {
    let stop = Arc::new(AtomicBool::new(false));
    let sender = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || send(address, frame_bytes, &stop))
    };
    std::thread::sleep(Duration::from_millis(300));
    let (start, before) = (Instant::now(), bytes.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs(seconds));
    let rate = (bytes.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("{name:>6}: {rate:.2} GB/s in frames of {} KiB", frame_bytes >> 10);
    stop.store(true, Ordering::Relaxed);
    let _ = sender.join();
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let frame_bytes = (arguments.next().unwrap_or(16) << 10) as usize;
    let seconds = arguments.next().unwrap_or(3);
    let bytes = Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        measure("bare", bare(Arc::clone(&bytes)), frame_bytes, seconds, &bytes);
        let hello = HelloResponse {
            server_name: "receive".into(),
            server_version: String::new(),
            node_id: [0; 16],
            node_epoch: 1,
            ops: HelloResponse::ops_spoken(),
            frame_bytes_max: 32 << 20,
            chunk_bytes_max: 16 << 20,
            in_flight_bytes_max: 64 << 20,
            in_flight_requests_max: 1_000,
            subscriptions_max: 100,
            idle_timeout_ms: 0,
        };
        let clock = Arc::new(kera_env::SystemClock::new());
        let config = ServerConfig::new(([127, 0, 0, 1], 0).into(), hello, clock);
        let sink = Arc::clone(&bytes);
        let factory =
            Arc::new(move |_: Peer, _: SessionWaker| Box::new(Sink::new(Arc::clone(&sink))) as Box<dyn Session>);
        let server = Server::start(config, factory).expect("a server");
        measure("server", server.local_addr(), frame_bytes, seconds, &bytes);
    }
}
