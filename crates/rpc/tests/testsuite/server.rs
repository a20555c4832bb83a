//! The server over real sockets: what it does for those who behave, and to those who do not.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use kera_protocol::frame::FLAG_RESPONSE;
use kera_protocol::{FrameHeader, Op, Status};
use kera_rpc::{ConnectionRoom, RunningServer};

use crate::common::{Raw, Script, frame, hello_frame, start};

#[test]
fn frames_are_answered_in_order_however_they_are_cut() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    let frames: Vec<u8> = (0..100).flat_map(|i| frame(Op::NodeStatus, i, &vec![i as u8; i as usize * 13])).collect();
    for cut in [1, 23, 24, 25, 777, frames.len()] {
        for piece in frames.chunks(cut) {
            raw.write(piece);
        }
        for i in 0..100 {
            let (header, body) = raw.read();
            assert_eq!((header.correlation, header.status), (i, 0));
            assert_eq!(body, vec![i as u8; i as usize * 13]);
        }
    }
    assert_eq!(script.frames.load(SeqCst), 600);
    assert_eq!(server.stats().connections, 1);
}

#[test]
fn a_handshake_in_the_middle_is_answered_again() {
    let (server, _) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    raw.echo(b"before");
    raw.write(&hello_frame());
    assert_eq!(raw.read().0.status, 0);
    raw.echo(b"after");
}

#[test]
fn the_first_frame_must_be_hello() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::connect(server.local_addr());
    raw.write(&frame(Op::NodeStatus, 9, b""));
    let (header, status, message) = raw.read_error();
    assert_eq!((header.correlation, status), (9, Status::HelloExpected));
    assert!(message.contains("starts with Hello"), "{message}");
    raw.expect_end();
    script.until("closed", |s| s.closed.load(SeqCst) == 1);
    assert_eq!(script.offered.load(SeqCst), 0);
    assert_eq!(server.stats().rejected, 1);
}

#[test]
fn garbage_is_refused_without_disturbing_others() {
    let (server, _) = start(|_| {});
    let mut other = Raw::greeted(server.local_addr());
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        &[0x20, 0, 0, 0, 1, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
    ] {
        let mut raw = Raw::connect(server.local_addr());
        raw.write(garbage);
        let (_, status, _) = raw.read_error();
        assert!(matches!(status, Status::FrameTooLarge | Status::Malformed), "{status}");
        raw.expect_end();
        other.echo(b"still here");
    }
}

#[test]
fn an_oversize_frame_is_refused_by_its_header_alone() {
    let (server, _) = start(|config| config.hello.frame_bytes_max = 1 << 20);
    let mut other = Raw::greeted(server.local_addr());
    let mut raw = Raw::greeted(server.local_addr());
    raw.echo(&vec![3; (1 << 20) - 24]);
    let header = FrameHeader {
        frame_bytes: (1 << 20) + 1,
        op: Op::NodeStatus as u16,
        version: 1,
        correlation: 12,
        ..FrameHeader::default()
    };
    raw.write(&header.to_bytes());
    let (answer, status, message) = raw.read_error();
    assert_eq!((answer.correlation, status), (12, Status::FrameTooLarge));
    assert!(message.contains("1048576"), "{message}");
    raw.expect_end();
    other.echo(b"still here");
}

#[test]
fn unknown_operations_and_versions_are_answered_and_the_connection_goes_on() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    let mut unknown = frame(Op::NodeStatus, 5, b"body");
    unknown[4..6].copy_from_slice(&999_u16.to_le_bytes());
    raw.write(&unknown);
    let (header, status, message) = raw.read_error();
    assert_eq!((header.correlation, header.op, status), (5, 999, Status::UnknownOperation));
    assert!(message.contains("999"), "{message}");
    let mut version = frame(Op::NodeStatus, 6, b"body");
    version[6] = 200;
    raw.write(&version);
    let (header, status, _) = raw.read_error();
    assert_eq!((header.correlation, status), (6, Status::UnsupportedVersion));
    raw.echo(b"goes on");
    assert_eq!(script.offered.load(SeqCst), 1);
}

#[test]
fn a_client_that_sends_responses_is_closed() {
    let (server, _) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    let mut response = frame(Op::NodeStatus, 5, b"");
    response[7] = FLAG_RESPONSE;
    raw.write(&response);
    assert_eq!(raw.read_error().1, Status::Malformed);
    raw.expect_end();
}

#[test]
fn a_handshake_that_trickles_in_runs_out_of_time() {
    let (server, _) = start(|config| config.handshake_timeout = Duration::from_millis(200));
    let mut raw = Raw::connect(server.local_addr());
    let mut silent = Raw::connect(server.local_addr());
    // It would not be done for more than a minute.
    for byte in frame(Op::Hello, 1, &[0; 4_000]) {
        if raw.stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    raw.expect_end();
    silent.expect_end();
    assert_eq!(server.stats().rejected, 2);
}

#[test]
fn too_many_connections_are_told_so() {
    let (server, script) = start(|config| config.connections_max = 2);
    let mut first = Raw::greeted(server.local_addr());
    let second = Raw::greeted(server.local_addr());
    let mut third = Raw::connect(server.local_addr());
    third.write(&hello_frame());
    let (_, status, message) = third.read_error();
    assert_eq!(status, Status::Overloaded);
    assert!(message.contains("connections_max is 2"), "{message}");
    third.expect_end();
    first.echo(b"still here");
    drop(second);
    script.until("a place is free", |s| s.closed.load(SeqCst) == 1);
    while server.stats().connections > 1 {
        std::thread::yield_now();
    }
    Raw::greeted(server.local_addr()).echo(b"in");
    assert_eq!(server.stats().refused, 1);
}

#[test]
fn servers_that_share_room_have_so_many_connections_together() {
    let room = Arc::new(ConnectionRoom::new(2));
    let (one, script) = start(|config| config.room = Some(room.clone()));
    let (other, _) = start(|config| config.room = Some(room.clone()));
    let first = Raw::greeted(one.local_addr());
    let _second = Raw::greeted(other.local_addr());
    for server in [&one, &other] {
        let mut third = Raw::connect(server.local_addr());
        third.write(&hello_frame());
        let (_, status, message) = third.read_error();
        assert_eq!(status, Status::Overloaded);
        assert!(message.contains("may open leave 2 for connections"), "{message}");
        third.expect_end();
        assert_eq!((server.stats().connections, server.stats().refused), (1, 1));
    }
    drop(first);
    script.until("a place is free", |s| s.closed.load(SeqCst) == 1);
    while one.stats().connections > 0 {
        std::thread::yield_now();
    }
    Raw::greeted(other.local_addr()).echo(b"in");
}

#[test]
fn a_blocked_frame_is_offered_again_after_a_wake_and_order_is_kept() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&[frame(Op::Lookup, 1, b""), frame(Op::NodeStatus, 2, b"")].concat());
    script.until("offered", |s| s.offered.load(SeqCst) == 1);
    script.wake_all();
    script.until("offered again", |s| s.offered.load(SeqCst) == 2);
    assert_eq!(script.frames.load(SeqCst), 0);
    script.let_go.store(true, SeqCst);
    script.wake_all();
    assert_eq!(raw.read().0.correlation, 1);
    assert_eq!(raw.read().0.correlation, 2);
}

#[test]
fn a_blocked_connection_leaves_others_of_its_thread_alone() {
    let (server, script) = start(|_| {});
    let mut other = Raw::greeted(server.local_addr());
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&frame(Op::Lookup, 1, b""));
    script.until("offered", |s| s.offered.load(SeqCst) == 1);
    // Bytes of more frames wait in the socket, and do not wake anybody.
    raw.write(&frame(Op::NodeStatus, 2, &[7; 100_000]));
    for _ in 0..100 {
        other.echo(b"goes on");
    }
    assert_eq!(script.offered.load(SeqCst), 101, "the blocked frame was not tried again in vain");
    script.let_go.store(true, SeqCst);
    script.wake_all();
    assert_eq!(raw.read().0.correlation, 1);
    assert_eq!(raw.read().0.correlation, 2);
}

#[test]
fn a_blocked_frame_is_offered_again_after_the_deadline() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    script.deadline_lets_go.store(true, SeqCst);
    raw.write(&frame(Op::Lookup, 1, b""));
    script.until("offered", |s| s.offered.load(SeqCst) == 1);
    script.deadline_us.store(1, SeqCst);
    script.wake_all();
    assert_eq!(raw.read().0.correlation, 1);
    assert_eq!(script.deadlines.load(SeqCst), 1);
}

#[test]
fn a_slow_reader_stops_its_own_input_only() {
    let (server, script) = start(|config| config.outbox_bytes_max = 1 << 20);
    let mut other = Raw::greeted(server.local_addr());
    let raw = Raw::greeted(server.local_addr());
    let requests = 200;
    let mut writer = raw.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for i in 0..requests {
            writer.write_all(&frame(Op::StreamStats, i, &(1_u64 << 20).to_le_bytes())).unwrap();
        }
    });
    sender.join().unwrap();
    script.until("some are answered", |s| s.made.load(SeqCst) > 0);
    // What the sockets' buffers hold, and the outbox: far from the 200 MiB that were asked for.
    let mut handled = 0;
    while handled != script.made.load(SeqCst) {
        handled = script.made.load(SeqCst);
        other.echo(b"still here");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(handled < 100, "{handled} answers were made for a peer that takes none");
    let mut raw = raw;
    for i in 0..requests {
        let (header, body) = raw.read();
        assert_eq!((header.correlation, body.len()), (i, 1 << 20));
    }
}

#[test]
fn a_peer_that_takes_nothing_for_too_long_is_closed() {
    let (server, script) = start(|config| {
        config.outbox_bytes_max = 1 << 20;
        config.stall_timeout = Duration::from_millis(200);
    });
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&frame(Op::StreamStats, 1, &(64_u64 << 20).to_le_bytes()));
    script.until("closed", |s| s.closed.load(SeqCst) == 1);
}

#[test]
fn a_frame_whose_rest_does_not_come_is_given_up() {
    let (server, script) = start(|config| config.stall_timeout = Duration::from_millis(200));
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&frame(Op::NodeStatus, 1, &[1; 100])[..50]);
    script.until("closed", |s| s.closed.load(SeqCst) == 1);
    raw.expect_end();
}

#[test]
fn an_idle_connection_is_closed_if_so_configured() {
    // Whoever is held up before it says something is not idle for so long.
    let (server, _) = start(|config| config.hello.idle_timeout_ms = 8_000);
    let mut raw = Raw::greeted(server.local_addr());
    raw.echo(b"not idle");
    raw.expect_end();
}

#[test]
fn frames_of_all_sizes_come_through() {
    let (server, _) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    for bytes in [0, 1, 4_095, 4_096, 262_119, 262_120, 262_121, 1 << 20, 5_000_000, (8 << 20) - 24, 3] {
        raw.echo(&vec![bytes as u8; bytes]);
    }
}

/// Bodies of which each byte tells where it is.
fn told(bytes: usize, salt: usize) -> Vec<u8> {
    let mut body: Vec<u8> = (0..bytes).map(|at| ((at + salt) % 251) as u8).collect();
    body.iter_mut().take(1).for_each(|first| *first = 0);
    body
}

#[test]
fn large_frames_come_to_their_places_however_they_are_cut() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    let sizes = [0, 7, 8, 9, 70_000, 65_535 + 8, 262_120, 300_000, 40, 1 << 20, (8 << 20) - 24, 100, 200_000, 1 << 20];
    let bodies: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, bytes)| told(*bytes, n)).collect();
    let frames: Vec<u8> =
        bodies.iter().enumerate().flat_map(|(n, body)| frame(Op::StoreBlock, n as u64, body)).collect();
    for piece in [usize::MAX, 1 << 20, 100_003, 32_771, 4_096, 1_399] {
        let mut writer = raw.stream.try_clone().unwrap();
        let frames = frames.clone();
        let sender = std::thread::spawn(move || {
            frames.chunks(piece.min(frames.len())).for_each(|p| writer.write_all(p).unwrap())
        });
        for (n, body) in bodies.iter().enumerate() {
            let (header, answer) = raw.read();
            assert_eq!((header.correlation, header.status), (n as u64, 0));
            assert!(answer == *body, "{} bytes, sent {piece} at a time, differ", body.len());
        }
        sender.join().unwrap();
    }
    assert!(script.placed.load(SeqCst) >= 6, "{script:?}");
    assert_eq!(script.frames.load(SeqCst), 6 * sizes.len() as u64);
    drop(raw);
    script.until_all_are_gone(&server);
}

#[test]
fn a_blocked_frame_stays_in_its_place() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    let mut body = told(3 << 20, 1);
    body[0] = 1;
    raw.write(&frame(Op::StoreBlock, 5, &body));
    raw.write(&frame(Op::NodeStatus, 6, b"behind it"));
    script.until("offered", |s| s.offered.load(SeqCst) >= 1);
    script.wake_all();
    script.until("offered again", |s| s.offered.load(SeqCst) >= 2);
    assert_eq!(script.placed.load(SeqCst), 0);
    script.let_go.store(true, SeqCst);
    script.wake_all();
    assert!(raw.read().1 == body);
    assert_eq!((raw.read().1, script.placed.load(SeqCst)), (b"behind it".to_vec(), 1));
}

#[test]
fn places_are_bounded_as_buffers_are_and_end_with_their_connection() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    // Takes all that there is for large frames.
    let mut holder = Raw::greeted(server.local_addr());
    let large = frame(Op::StoreBlock, 1, &told((8 << 20) - 24, 0));
    holder.write(&large[..4 << 20]);
    script.until("some of it is there", |_| server.stats().inflight_bytes >= 8 << 20);
    let mut second = Raw::greeted(server.local_addr());
    second.write(&frame(Op::StoreBlock, 2, &told(1 << 20, 0))[..512 << 10]);
    // Frames that fit into the small buffers get through.
    Raw::greeted(server.local_addr()).echo(b"small");
    // Of the second one nothing has got a place: all there is are the first one's, a shared buffer and what is left of the large ones.
    assert!(server.stats().inflight_bytes <= (8 << 20) + 2 * (256 << 10), "{:?}", server.stats());
    drop(holder);
    // Then it is the second one's turn.
    second.write(&frame(Op::StoreBlock, 2, &told(1 << 20, 0))[512 << 10..]);
    assert_eq!(second.read().1.len(), 1 << 20);
    drop(second);
    script.until_all_are_gone(&server);
}

/// Writes a frame that its session holds back, of `first` bytes, and behind it the start of one of `second`: what is left to
/// write of that.
fn one_behind_the_other(raw: &mut Raw, (first, second): (usize, usize), script: &Script) -> Vec<u8> {
    let offered = script.offered.load(SeqCst);
    raw.write(&frame(Op::Lookup, 1, &vec![1; first]));
    script.until("offered", |s| s.offered.load(SeqCst) > offered);
    let mut second = frame(Op::NodeStatus, 2, &vec![2; second]);
    let rest = second.split_off(100_000);
    raw.write(&second);
    rest
}

#[test]
fn a_frame_behind_a_smaller_one_does_not_wait_for_the_memory_of_that() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    for sizes in [(4_600_000, 6_700_000), (300_000, 8_300_000), (8_300_000, 8_380_000)] {
        script.let_go.store(false, SeqCst);
        let mut raw = Raw::greeted(server.local_addr());
        let rest = one_behind_the_other(&mut raw, sizes, &script);
        script.let_go.store(true, SeqCst);
        script.wake_all();
        assert_eq!(raw.read().0.correlation, 1);
        let mut writer = raw.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || writer.write_all(&rest).unwrap());
        let (header, body) = raw.read();
        assert_eq!((header.correlation, body.len()), (2, sizes.1));
        assert!(body.iter().all(|byte| *byte == 2));
        sender.join().unwrap();
        raw.echo(b"goes on");
    }
    script.until_all_are_gone(&server);
}

#[test]
fn connections_that_all_need_more_memory_than_they_have_get_it_one_after_the_other() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    let mut senders = Vec::new();
    let mut all: Vec<Raw> = (0..2).map(|_| Raw::greeted(server.local_addr())).collect();
    let sizes = (2_700_000, 5_500_000);
    let rests: Vec<Vec<u8>> = all.iter_mut().map(|raw| one_behind_the_other(raw, sizes, &script)).collect();
    script.let_go.store(true, SeqCst);
    script.wake_all();
    for (raw, rest) in all.iter_mut().zip(rests) {
        assert_eq!(raw.read().0.correlation, 1);
        let mut writer = raw.stream.try_clone().unwrap();
        senders.push(std::thread::spawn(move || writer.write_all(&rest).unwrap()));
    }
    for raw in &mut all {
        let (header, body) = raw.read();
        assert_eq!((header.correlation, body.len()), (2, sizes.1));
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    drop(all);
    script.until_all_are_gone(&server);
}

#[test]
fn connections_that_find_no_shared_memory_take_turns_with_large_memory() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    // Together they hold the one shared buffer, and of the large memory all but as much.
    let mut shared = Raw::greeted(server.local_addr());
    shared.write(&frame(Op::NodeStatus, 1, &vec![1; 200_000])[..100_000]);
    script.until("it has the shared one", |_| server.stats().inflight_bytes >= 256 << 10);
    let mut large = Raw::greeted(server.local_addr());
    large.write(&frame(Op::NodeStatus, 1, &vec![1; 8_300_000])[..100_000]);
    script.until("it has large memory", |_| server.stats().inflight_bytes >= 8 << 20);
    let mut others: Vec<Raw> = (0..3).map(|_| Raw::greeted(server.local_addr())).collect();
    for _ in 0..3 {
        let body = told(100_000, 1);
        others.iter_mut().for_each(|raw| raw.write(&frame(Op::NodeStatus, 77, &body).repeat(2)));
        for raw in &mut others {
            assert!((0..2).all(|_| raw.read().1 == body));
        }
    }
    drop((shared, large, others));
    script.until_all_are_gone(&server);
}

/// What follows a large frame is read in pieces that fit into a small buffer, whatever it is.
#[test]
fn frames_of_all_sizes_come_one_behind_the_other() {
    for inflight_bytes_max in [1, 256 << 20] {
        let (server, _) = start(|config| config.inflight_bytes_max = inflight_bytes_max);
        let mut raw = Raw::greeted(server.local_addr());
        let sizes = [1 << 20, 0, 70_000, 1 << 20, 4_040, 4_048, 5 << 20, 3, 9, 262_120, 262_121, 2 << 20, 6 << 20, 1];
        let bodies: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, bytes)| told(*bytes, n)).collect();
        let sent = bodies.iter().enumerate().flat_map(|(n, body)| frame(Op::NodeStatus, n as u64, body));
        let sent: Vec<u8> = sent.collect();
        let mut writer = raw.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        for (n, body) in bodies.iter().enumerate() {
            let (header, answer) = raw.read();
            assert!(header.correlation == n as u64 && answer == *body, "{} bytes differ", body.len());
        }
        sender.join().unwrap();
    }
}

#[test]
fn whoever_waits_for_memory_does_not_keep_control_traffic_out() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    // Holds the memory for large frames, and does not go on.
    let mut holder = Raw::greeted(server.local_addr());
    let large = frame(Op::NodeStatus, 1, &vec![1; 5 << 20]);
    holder.write(&large[..2 << 20]);
    // Holds the one shared buffer.
    let mut second = Raw::greeted(server.local_addr());
    second.write(&frame(Op::NodeStatus, 1, &vec![1; 200 << 10])[..100 << 10]);
    // Waits for memory for a large frame.
    let mut waiting = Raw::greeted(server.local_addr());
    let mut writer = waiting.stream.try_clone().unwrap();
    let body = vec![2; 6 << 20];
    let sender = std::thread::spawn(move || writer.write_all(&frame(Op::NodeStatus, 7, &body)).unwrap());
    // Small frames get through.
    Raw::greeted(server.local_addr()).echo(b"small");
    assert!(server.stats().inflight_bytes > 0);
    holder.write(&large[2 << 20..]);
    assert_eq!(holder.read().1.len(), 5 << 20);
    let (header, body) = waiting.read();
    assert_eq!((header.correlation, body.len()), (7, 6 << 20));
    sender.join().unwrap();
    drop((holder, second, waiting));
    script.until_all_are_gone(&server);
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_a_frame_ends_its_session() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&frame(Op::NodeStatus, 1, &[0; 100])[..60]);
    drop(raw);
    script.until("closed", |s| s.closed.load(SeqCst) == 1);
}

#[test]
fn a_session_can_close_its_connection() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&[frame(Op::NodeStatus, 1, b"first"), frame(Op::DeleteStream, 2, b"")].concat());
    assert_eq!(raw.read().1, b"first");
    raw.expect_end();
    script.until("closed", |s| s.closed.load(SeqCst) == 1);
    assert_eq!(server.stats().rejected, 0);
}

#[test]
fn a_graceful_stop_lets_waiting_requests_be_answered() {
    let (server, script) = start(|config| config.io_threads = 2);
    let address = server.local_addr();
    let mut waiting = Raw::greeted(address);
    let mut idle = Raw::greeted(address);
    waiting.write(&frame(Op::NextGroups, 4, b""));
    script.until("it waits", |s| s.frames.load(SeqCst) == 1);
    let stopper = std::thread::spawn(move || server.stop(Duration::from_secs(120)));
    script.until("told", |s| s.stopped.load(SeqCst) == 2);
    idle.expect_end();
    script.let_go.store(true, SeqCst);
    script.wake_all();
    assert_eq!(waiting.read().0.correlation, 4);
    waiting.expect_end();
    stopper.join().unwrap();
    assert_eq!(script.closed.load(SeqCst), 2);
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_stop_does_not_wait_longer_than_it_was_told() {
    let (server, script) = start(|_| {});
    let mut waiting = Raw::greeted(server.local_addr());
    waiting.write(&frame(Op::NextGroups, 4, b""));
    script.until("it waits", |s| s.frames.load(SeqCst) == 1);
    server.stop(Duration::from_millis(50));
    waiting.expect_end();
    assert_eq!(script.closed.load(SeqCst), 1);
}

#[test]
fn a_flood_on_one_connection_does_not_starve_another() {
    let (server, _) = start(|_| {});
    let flood = Raw::greeted(server.local_addr());
    let mut other = Raw::greeted(server.local_addr());
    let mut writer = flood.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let frames = frame(Op::Subscribe, 1, &[0; 8]).repeat(10_000);
        while writer.write_all(&frames).is_ok() {}
    });
    for _ in 0..200 {
        other.echo(b"gets its turn");
    }
    flood.stream.shutdown(Shutdown::Both).unwrap();
    sender.join().unwrap();
}

/// Begins a frame that all large memory is got for: what is left to write of it.
fn hold_all(holder: &mut Raw, server: &RunningServer, script: &Script) -> Vec<u8> {
    let mut large = frame(Op::NodeStatus, 1, &vec![1; (8 << 20) - 24]);
    let rest = large.split_off(1 << 20);
    holder.write(&large);
    script.until("it has all large memory", |_| server.stats().inflight_bytes >= 8 << 20);
    rest
}

#[test]
fn a_frame_that_trickles_in_keeps_no_memory_from_others() {
    let (server, script) = start(|config| {
        config.inflight_bytes_max = 1;
        // Also of the second one, which may be held up with its frame for nearly as long.
        config.stall_timeout = Duration::from_secs(10);
        config.bytes_per_s_min = 64 << 20;
    });
    let mut holder = Raw::greeted(server.local_addr());
    let rest = hold_all(&mut holder, &server, &script);
    let trickle = std::thread::spawn(move || {
        for byte in rest.chunks(1) {
            if holder.stream.write_all(byte).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut second = Raw::greeted(server.local_addr());
    second.echo(&vec![2; 1 << 20]);
    trickle.join().unwrap();
    assert_eq!(script.closed.load(SeqCst), 1, "it is gone");
}

#[test]
fn who_has_a_next_large_frame_takes_turns_with_others() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    let mut busy = Raw::greeted(server.local_addr());
    // The memory of the first frame is enough for the second one, whose rest does not come.
    let _rest = one_behind_the_other(&mut busy, (5_500_000, 5_500_000), &script);
    let mut other = Raw::greeted(server.local_addr());
    other.write(&frame(Op::NodeStatus, 7, &vec![2; 3_500_000])[..300_000]);
    let mut control = Raw::greeted(server.local_addr());
    (0..10).for_each(|_| control.echo(b"the other one stands in line"));
    script.let_go.store(true, SeqCst);
    script.wake_all();
    assert_eq!(busy.read().0.correlation, 1);
    other.write(&frame(Op::NodeStatus, 7, &vec![2; 3_500_000])[300_000..]);
    assert_eq!(other.read().1, vec![2; 3_500_000]);
}

#[test]
fn who_waits_from_the_middle_of_a_next_large_frame_on_has_its_turn_behind_that() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    let mut busy = Raw::greeted(server.local_addr());
    let rest = one_behind_the_other(&mut busy, (5_500_000, 5_500_000), &script);
    script.let_go.store(true, SeqCst);
    script.wake_all();
    assert_eq!(busy.read().0.correlation, 1);
    let (middle, end) = rest.split_at(1 << 20);
    busy.write(middle);
    script.until("much of the second one has come", |_| server.stats().bytes_in > 5_500_000 + (1 << 20));
    let mut other = Raw::greeted(server.local_addr());
    other.write(&frame(Op::NodeStatus, 7, &vec![2; 3_500_000])[..300_000]);
    let mut control = Raw::greeted(server.local_addr());
    (0..10).for_each(|_| control.echo(b"the other one stands in line"));
    busy.write(end);
    assert_eq!(busy.read().1, vec![2; 5_500_000]);
    other.write(&frame(Op::NodeStatus, 7, &vec![2; 3_500_000])[300_000..]);
    assert_eq!(other.read().1, vec![2; 3_500_000]);
    assert_eq!(script.closed.load(SeqCst), 0);
}

#[test]
fn who_waits_for_memory_is_missed_when_it_closes_unless_its_frame_is_there() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    let mut holder = Raw::greeted(server.local_addr());
    let rest = hold_all(&mut holder, &server, &script);
    let mut whole = Raw::greeted(server.local_addr());
    whole.write(&frame(Op::NodeStatus, 8, &vec![3; 300_000]));
    whole.stream.shutdown(Shutdown::Write).unwrap();
    let mut part = Raw::greeted(server.local_addr());
    part.write(&frame(Op::NodeStatus, 7, &vec![2; 300_000])[..100_000]);
    drop(part);
    script.until("it is missed", |s| s.closed.load(SeqCst) == 1);
    holder.write(&rest);
    assert_eq!(holder.read().1.len(), (8 << 20) - 24);
    assert_eq!(whole.read().1, vec![3; 300_000]);
    whole.expect_end();
}

#[test]
fn who_waits_for_memory_keeps_its_place_when_it_is_woken() {
    let (server, script) = start(|config| config.inflight_bytes_max = 1);
    let mut holder = Raw::greeted(server.local_addr());
    let rest = hold_all(&mut holder, &server, &script);
    let mut first = Raw::greeted(server.local_addr());
    first.write(&frame(Op::NodeStatus, 7, &vec![2; 300_000]));
    let mut control = Raw::greeted(server.local_addr());
    (0..10).for_each(|_| control.echo(b"the first has its place"));
    // Would take all memory, and not give it back.
    let mut second = Raw::greeted(server.local_addr());
    second.write(&frame(Op::NodeStatus, 8, &vec![3; (8 << 20) - 24])[..300_000]);
    for _ in 0..10 {
        control.echo(b"so has the second");
        script.wakers.lock().unwrap()[1].wake();
    }
    holder.write(&rest);
    assert_eq!(holder.read().1.len(), (8 << 20) - 24);
    assert_eq!(first.read().1, vec![2; 300_000]);
}

#[test]
fn an_answer_that_is_not_taken_lets_go_of_its_segments_and_is_whole_all_the_same() {
    let (server, script) = start(|_| {});
    let mut raw = Raw::greeted(server.local_addr());
    for correlation in 0..2 {
        raw.write(&frame(Op::GetStream, correlation, &(30_u64 << 20).to_le_bytes()));
    }
    script.until("it is made", |s| s.made.load(SeqCst) > 0);
    script.until("nothing of it is kept in the log's memory", |s| s.held_bytes.load(SeqCst) == 0);
    assert_eq!(script.closed.load(SeqCst), 0);
    for correlation in 0..2 {
        let (header, body) = raw.read();
        assert_eq!(header.correlation, correlation);
        assert!(body.len() == 30 << 20 && body.iter().all(|byte| *byte == 5));
    }
}

#[test]
fn answers_that_nobody_takes_are_bounded_over_all_connections() {
    const ANSWER: u64 = 1 << 20;
    let (server, script) = start(|config| {
        config.inflight_bytes_max = 16 << 20;
        config.answer_bytes_max = ANSWER as usize;
    });
    let mut deaf: Vec<Raw> = (0..50).map(|_| Raw::greeted(server.local_addr())).collect();
    for raw in &mut deaf {
        raw.write(&frame(Op::StreamStats, 1, &ANSWER.to_le_bytes()).repeat(40));
    }
    let mut other = Raw::greeted(server.local_addr());
    let mut made = 0;
    while made < 50 || made != script.made.load(SeqCst) {
        made = script.made.load(SeqCst);
        other.echo(b"still here");
        std::thread::sleep(Duration::from_millis(200));
    }
    let peak = script.held_bytes_peak.load(SeqCst);
    assert!(peak <= (16 + 52) * ANSWER, "{peak} bytes were held at a time");
    // Who reads is served, and so is each of the others once it does.
    for raw in std::iter::once(&mut other).chain(deaf.iter_mut().take(3)) {
        raw.write(&frame(Op::StreamStats, 1, &ANSWER.to_le_bytes()));
    }
    assert_eq!(other.read().1.len() as u64, ANSWER);
    for raw in &mut deaf[..3] {
        (0..41).for_each(|_| assert_eq!(raw.read().1.len() as u64, ANSWER));
    }
    assert_eq!(script.closed.load(SeqCst), 0);
}

#[test]
fn for_what_is_copied_out_of_segments_the_connection_goes_that_has_taken_nothing_for_longest() {
    const ANSWER: u64 = 40 << 20;
    let (server, script) = start(|config| {
        config.inflight_bytes_max = 50 << 20;
        config.bytes_per_s_min = 64 << 20;
    });
    let mut all = Vec::new();
    for made in 1..=3 {
        let mut raw = Raw::greeted(server.local_addr());
        raw.write(&frame(Op::GetStream, made, &ANSWER.to_le_bytes()));
        script.until("it is made", |s| s.made.load(SeqCst) == made);
        all.push(raw);
    }
    script.until("all segments are let go", |s| s.held_bytes.load(SeqCst) == 0);
    script.until("two are closed", |s| s.closed.load(SeqCst) == 2);
    let mut last = all.pop().unwrap();
    assert_eq!(last.read().1.len() as u64, ANSWER);
    last.echo(b"goes on");
    assert_eq!(script.closed.load(SeqCst), 2);
}

/// What waits for all connections has no room for one answer of so many bytes.
const TOO_LARGE: u64 = 48 << 20;

fn start_with_little_room() -> (RunningServer, Arc<Script>) {
    start(|config| {
        config.inflight_bytes_max = 1;
        config.outbox_bytes_max = 64 << 10;
        config.answer_bytes_max = 1 << 20;
        config.bytes_per_s_min = 320 << 10;
        config.stall_timeout = Duration::from_secs(3_600);
    })
}

/// Takes such an answer piece by piece, for longer than anybody may stand still.
fn take_slowly(raw: &mut Raw, script: &Script) {
    let (mut piece, mut taken) = (vec![0; 64 << 10], 0);
    while taken < 24 + TOO_LARGE as usize {
        let bytes = raw.stream.read(&mut piece).unwrap();
        assert!(bytes > 0, "closed after {taken} bytes: {script:?}");
        taken += bytes;
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_takes_an_answer_that_there_is_no_room_to_copy_is_not_closed() {
    let (server, script) = start_with_little_room();
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&frame(Op::GetStream, 1, &TOO_LARGE.to_le_bytes()));
    take_slowly(&mut raw, &script);
    raw.echo(b"goes on");
    assert_eq!(script.closed.load(SeqCst), 0);
}

#[test]
fn where_there_is_no_room_to_copy_who_takes_nothing_is_closed_and_who_reads_is_not() {
    let (server, script) = start_with_little_room();
    let mut reader = Raw::greeted(server.local_addr());
    reader.write(&frame(Op::GetStream, 1, &TOO_LARGE.to_le_bytes()));
    script.until("it waits for the reader", |s| s.made.load(SeqCst) == 1);
    // Something waits for this one for less long.
    let mut deaf = Raw::greeted(server.local_addr());
    deaf.write(&frame(Op::GetStream, 1, &TOO_LARGE.to_le_bytes()));
    take_slowly(&mut reader, &script);
    script.until("the deaf one is closed", |s| s.closed.load(SeqCst) == 1);
    script.until("nothing of it is kept in the log's memory", |s| s.held_bytes.load(SeqCst) == 0);
    reader.echo(b"goes on");
    assert_eq!(script.closed.load(SeqCst), 1);
}

#[test]
fn nobody_is_closed_for_one_that_has_more_than_all_may_have() {
    const ANSWER: u64 = 8 << 20;
    let (server, script) = start(|config| {
        config.inflight_bytes_max = 1;
        config.outbox_bytes_max = 32 << 20;
        config.answer_bytes_max = ANSWER as usize;
        config.stall_timeout = Duration::from_secs(3_600);
        config.bytes_per_s_min = 64 << 20;
    });
    let mut deaf = Raw::greeted(server.local_addr());
    deaf.write(&frame(Op::GetStream, 1, &ANSWER.to_le_bytes()));
    script.until("it waits for the deaf one", |s| s.made.load(SeqCst) == 1);
    let mut greedy = Raw::greeted(server.local_addr());
    for correlation in 0..8 {
        greedy.write(&frame(Op::NextSegments, correlation, &ANSWER.to_le_bytes()));
    }
    script.until("all are asked for", |s| s.frames.load(SeqCst) == 9);
    script.let_go.store(true, SeqCst);
    script.wake_all();
    script.until("the one that has too much is closed", |s| s.closed.load(SeqCst) == 1);
    assert_eq!(deaf.read().1.len() as u64, ANSWER);
    deaf.echo(b"goes on");
    script.until("nothing is kept in the log's memory", |s| s.held_bytes.load(SeqCst) == 0);
    assert_eq!(script.closed.load(SeqCst), 1);
}

/// While it takes its answers nothing is read of its next frame.
#[test]
fn a_frame_is_not_given_up_for_time_in_which_it_is_not_read() {
    const ANSWER: u64 = 64 << 20;
    let (server, script) = start(|config| {
        config.inflight_bytes_max = 1;
        config.outbox_bytes_max = 64 << 10;
        // Together less than it takes its answers for, twice as fast as it must, and more than it may be held up.
        config.stall_timeout = Duration::from_secs(10);
        config.bytes_per_s_min = 2 << 20;
    });
    let mut raw = Raw::greeted(server.local_addr());
    raw.write(&frame(Op::NextSegments, 1, &ANSWER.to_le_bytes()));
    script.until("it is asked for", |s| s.frames.load(SeqCst) == 1);
    let rest = hold_all(&mut raw, &server, &script);
    let mut other = Raw::greeted(server.local_addr());
    let (begins, goes_on) = (frame(Op::NodeStatus, 7, &vec![2; 3_500_000]), 300_000);
    other.write(&begins[..goes_on]);
    let mut control = Raw::greeted(server.local_addr());
    (0..10).for_each(|_| control.echo(b"the other one stands in line"));
    script.let_go.store(true, SeqCst);
    script.wake_all();
    raw.stream.read_exact(&mut [0; 24]).unwrap();
    let mut piece = vec![0; 1 << 20];
    for _ in 0..ANSWER >> 20 {
        raw.stream.read_exact(&mut piece).unwrap();
        std::thread::sleep(Duration::from_millis(250));
    }
    raw.write(&rest);
    assert_eq!(raw.read().1.len(), (8 << 20) - 24);
    other.write(&begins[goes_on..]);
    assert_eq!(other.read().1, vec![2; 3_500_000]);
    assert_eq!(script.closed.load(SeqCst), 0);
}

#[test]
fn who_takes_answers_byte_by_byte_is_closed_while_others_lack_memory() {
    let (server, script) = start(|config| {
        config.inflight_bytes_max = 1;
        config.outbox_bytes_max = 64 << 10;
        config.stall_timeout = Duration::from_secs(3);
        config.bytes_per_s_min = 64 << 20;
    });
    let mut slow = Raw::greeted(server.local_addr());
    slow.write(&frame(Op::StreamStats, 1, &(100_u64 << 20).to_le_bytes()));
    script.until("it is made", |s| s.made.load(SeqCst) == 1);
    let (mut piece, mut taken) = (vec![0; 64 << 10], 0);
    while script.closed.load(SeqCst) == 0 {
        taken += slow.stream.read(&mut piece).unwrap_or(0);
        assert!(taken < 90 << 20, "it has taken nearly all of it, and was not closed");
        std::thread::sleep(Duration::from_millis(20));
    }
}
