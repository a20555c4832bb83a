//! The client's connection against the server, over real sockets.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::{NodeStatus, Op, Status, Unsubscribe};
use kera_rpc::{ClientConfig, Connection, RpcError};

use crate::common::{Raw, start};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect(address: std::net::SocketAddr) -> Connection {
    let config = ClientConfig { connect_timeout: Duration::from_secs(120), ..ClientConfig::default() };
    Connection::connect(&address.to_string(), config).await.unwrap()
}

#[test]
fn requests_are_pipelined_and_answers_find_their_callers() {
    let (server, script) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        assert_eq!(connection.hello().server_name, "scripted");
        let late: Vec<_> = (0..10).map(|_| connection.send(Op::NextGroups, Vec::new())).collect();
        let calls: Vec<_> = (0..500_usize)
            .map(|i| {
                let parts = vec![Bytes::from(vec![i as u8; i * 100]), Bytes::new(), Bytes::from(vec![1; 3])];
                connection.send(Op::NodeStatus, parts)
            })
            .collect();
        for (i, call) in calls.into_iter().enumerate() {
            let frame = call.await.unwrap();
            assert_eq!(frame.body.len(), i * 100 + 3);
            assert!(frame.body[..i * 100].iter().all(|byte| *byte == i as u8));
        }
        script.let_go.store(true, SeqCst);
        script.wake_all();
        for call in late {
            call.await.unwrap();
        }
    });
}

#[test]
fn large_answers_come_through() {
    let (server, _) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        for bytes in [0_u64, 1, 100_000, 262_144, 1 << 20, 20_000_000, 5] {
            let frame = connection.send(Op::StreamStats, vec![bytes.to_le_bytes().to_vec().into()]).await.unwrap();
            assert_eq!(frame.body.len() as u64, bytes);
        }
    });
}

#[test]
fn who_is_sent_more_than_it_takes_knows_that_it_may_ask_for_less() {
    let (server, _) = start(|_| {});
    runtime().block_on(async {
        let config = ClientConfig {
            connect_timeout: Duration::from_secs(120),
            frame_bytes_max: 1 << 20,
            ..ClientConfig::default()
        };
        let address = server.local_addr().to_string();
        let ask = |connection: &Connection, bytes: u64| {
            connection.send(Op::StreamStats, vec![bytes.to_le_bytes().to_vec().into()])
        };
        let connection = Connection::connect(&address, config.clone()).await.unwrap();
        let with_it = connection.send(Op::NextGroups, Vec::new());
        for error in [ask(&connection, 2 << 20).await.unwrap_err(), with_it.await.unwrap_err()] {
            assert!(error.is_answer_too_large() && error.retryable(), "{error}");
        }
        let connection = Connection::connect(&address, config).await.unwrap();
        assert_eq!(ask(&connection, 1 << 19).await.unwrap().body.len(), 1 << 19);
        let refused = connection.send(Op::ReadChunks, Vec::new()).await.unwrap_err();
        let closed = connection.send(Op::DeleteStream, Vec::new()).await.unwrap_err();
        assert!(!refused.is_answer_too_large() && !closed.is_answer_too_large(), "{refused}, {closed}");
    });
}

#[test]
fn an_error_status_says_what_and_when() {
    let (server, _) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        let error = connection.send(Op::ReadChunks, Vec::new()).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::ArenaFull));
        assert_eq!(error.retry_after(), Some(Duration::from_millis(70)));
        assert!(error.retryable() && !error.could_duplicate());
        assert!(error.to_string().contains("not today"), "{error}");
    });
}

#[test]
fn a_call_that_is_not_answered_times_out_and_the_connection_goes_on() {
    let (server, _) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        let wait = Duration::from_millis(50);
        let call = kera_protocol::NextGroups {
            application: kera_format::ApplicationId(1),
            member: 1,
            max_groups: 1,
            max_wait_ms: 1,
        };
        let error = connection.call_within(&call, wait).await.unwrap_err();
        assert!(matches!(error, RpcError::Timeout { .. }), "{error}");
        assert!(error.retryable() && error.could_duplicate());
        connection.send(Op::NodeStatus, Vec::new()).await.unwrap();
    });
}

#[test]
fn a_lost_connection_ends_calls_and_says_what_may_have_happened() {
    let (server, script) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        let waiting = connection.send(Op::NextGroups, Vec::new());
        let mut subscription = connection
            .subscribe(&kera_protocol::Subscribe { credit_bytes: 0, push_bytes_max: 0, entries: Vec::new() })
            .unwrap();
        connection.send(Op::NodeStatus, Vec::new()).await.unwrap();
        let closing = connection.send(Op::DeleteStream, Vec::new());
        for error in [waiting.await.unwrap_err(), closing.await.unwrap_err(), subscription.next().await.unwrap_err()] {
            assert!(matches!(error, RpcError::Closed { sent: true, .. }), "{error}");
            assert!(error.retryable() && error.could_duplicate());
        }
        assert!(matches!(connection.closed().await, RpcError::Closed { .. }));
        assert!(connection.is_closed());
        let error = connection.send(Op::NodeStatus, Vec::new()).await.unwrap_err();
        assert!(matches!(error, RpcError::Closed { sent: false, .. }), "{error}");
        assert!(!error.could_duplicate());
        script.until("closed", |s| s.closed.load(SeqCst) == 1);
    });
}

#[test]
fn a_subscription_gets_what_is_pushed_until_it_is_dropped() {
    let (server, _) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        // The scripted session pushes as often as the first field of the body says.
        let subscribe = kera_protocol::Subscribe { credit_bytes: 1_000, push_bytes_max: 0, entries: Vec::new() };
        let mut subscription = connection.subscribe(&subscribe).unwrap();
        for i in 0..500_u64 {
            let frame = subscription.next().await.unwrap();
            assert!(frame.header.is_push());
            assert_eq!(frame.body[..], i.to_le_bytes());
        }
        drop(subscription);
        connection.send(Op::NodeStatus, Vec::new()).await.unwrap();
        assert!(connection.call(&NodeStatus).await.is_err(), "an empty body is no NodeStatusResponse");
    });
}

#[test]
fn nobody_listening_is_an_error_that_names_the_address() {
    // Held, so that nobody else listens there meanwhile.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = held.local_addr().unwrap().to_string();
    runtime().block_on(async {
        let error = Connection::connect(&address, ClientConfig::default()).await.unwrap_err();
        assert!(matches!(error, RpcError::Connect { .. }), "{error}");
        assert!(error.to_string().contains(&address), "{error}");
    });
}

#[test]
fn a_server_that_does_not_answer_the_handshake_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime().block_on(async {
        let config = ClientConfig { connect_timeout: Duration::from_millis(100), ..ClientConfig::default() };
        let error = Connection::connect(&address, config).await.unwrap_err();
        assert!(error.to_string().contains("no handshake"), "{error}");
    });
}

#[test]
fn a_full_server_is_an_error_with_its_status() {
    let (server, _) = start(|config| config.connections_max = 1);
    let _first = Raw::greeted(server.local_addr());
    runtime().block_on(async {
        let address = server.local_addr().to_string();
        let error = Connection::connect(&address, ClientConfig::default()).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::Overloaded), "{error}");
        assert!(error.retryable());
    });
}

#[test]
fn a_request_over_the_limit_is_not_sent() {
    let (server, script) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        let error = connection.send(Op::NodeStatus, vec![vec![0; 8 << 20].into()]).await.unwrap_err();
        assert!(matches!(error, RpcError::OverLimit { limit: 8388608, .. }), "{error}");
        connection.send(Op::NodeStatus, Vec::new()).await.unwrap();
        assert_eq!(script.frames.load(SeqCst), 1);
    });
}

#[test]
fn dropping_the_last_handle_closes_the_connection() {
    let (server, script) = start(|_| {});
    runtime().block_on(async {
        let connection = connect(server.local_addr()).await;
        let clone = connection.clone();
        drop(connection);
        clone.send(Op::NodeStatus, Vec::new()).await.unwrap();
        clone.post(&Unsubscribe { subscription: 1 });
        drop(clone);
        tokio::task::yield_now().await;
        while script.closed.load(SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}
