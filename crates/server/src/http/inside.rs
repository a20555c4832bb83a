//! Requests to the node from inside the process: the admin API asks what a client would ask over a connection, and is
//! answered by the same sessions with the same checks and limits.
//!
//! Sessions belong to one thread; the HTTP handlers' futures may not. So a task on the HTTP thread owns the sessions and
//! handlers send it their requests.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kera_env::Clock;
use kera_protocol::frame::FRAME_HEADER_BYTES;
use kera_protocol::{Body, ErrorBody, FrameHeader, Message, Status};
use kera_rpc::{Flow, Outbox, Peer, Session, SessionWaker};
use tokio::sync::{mpsc, oneshot};

use super::{HttpNode, HttpState};

/// Requests that may wait for the task.
const QUEUE: usize = 256;
/// The longest that a request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer above which it is called too long.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer, or what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What kind.
    pub(super) status: Status,
    /// What was wrong, for people.
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: Status, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }
}

struct Request {
    header: FrameHeader,
    body: Vec<u8>,
    answer: oneshot::Sender<Result<Vec<u8>, Refusal>>,
}

/// A handle for handlers.
#[derive(Clone)]
pub(super) struct Inside {
    sender: mpsc::Sender<Request>,
}

impl Inside {
    /// The handle, and the task's main future, which is to run in the `LocalSet` of the thread that sessions are made on.
    pub(super) fn new(state: Arc<HttpState>) -> (Inside, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Inside { sender }, serve(state, receiver))
    }

    /// Asks and waits for the answer.
    pub(super) async fn call<M: Message>(&self, message: &M) -> Result<M::Response, Refusal> {
        let header = FrameHeader { op: M::OP as u16, version: M::OP.version_max(), ..FrameHeader::default() };
        let mut body = Vec::new();
        message.encode(header.version, &mut body);
        let (answer, answered) = oneshot::channel();
        let gone = |_| Refusal::new(Status::ShuttingDown, "the node is stopping");
        self.sender.send(Request { header, body, answer }).await.map_err(|_| gone(()))?;
        let body = answered.await.map_err(|_| gone(()))??;
        M::Response::decode(header.version, &body).map_err(|error| Refusal::new(Status::Internal, error.to_string()))
    }
}

async fn serve(state: Arc<HttpState>, mut requests: mpsc::Receiver<Request>) {
    while let Some(Request { header, body, answer }) = requests.recv().await {
        // Handlers ask only once there is a node.
        let Some(HttpNode { sessions, clock, .. }) = state.node.get() else { continue };
        let (sessions, clock) = (sessions.clone(), clock.clone());
        tokio::task::spawn_local(async move {
            let waker = SessionWaker::detached();
            let peer = Peer { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), connection: 0, io_thread: 0 };
            let mut session = sessions.open(peer, waker.clone());
            let asked = ask(&mut *session, &waker, &*clock, &header, &body);
            let result = tokio::time::timeout(TIMEOUT, asked).await;
            session.on_close();
            let late = || Refusal::new(Status::Timeout, format!("no answer within {} s", TIMEOUT.as_secs()));
            // Nobody waits any more when the HTTP client has gone away.
            let _ = answer.send(result.unwrap_or_else(|_| Err(late())));
        });
    }
}

async fn ask(
    session: &mut dyn Session,
    waker: &SessionWaker,
    clock: &dyn Clock,
    header: &FrameHeader,
    body: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let mut out = Outbox::new(ANSWER_BYTES_MAX);
    let mut flow = session.on_frame(header, body, &mut out);
    loop {
        if let Some(answer) = whole_frame(&out) {
            return answer;
        }
        if let Flow::Close(reason) = flow {
            return Err(Refusal::new(Status::Internal, reason));
        }
        let deadline = session.deadline_us().map(|at| Duration::from_micros(at.saturating_sub(clock.monotonic_us())));
        let late = tokio::time::timeout(deadline.unwrap_or(TIMEOUT), waker.woken()).await.is_err();
        if late {
            session.on_deadline(clock.monotonic_us(), &mut out);
        } else {
            waker.take();
            session.on_wake(&mut out);
        }
        if flow == Flow::Blocked {
            flow = session.on_frame(header, body, &mut out);
        }
    }
}

/// The body of the answer, or the error that it reports, once there is a whole frame.
fn whole_frame(out: &Outbox) -> Option<Result<Vec<u8>, Refusal>> {
    if out.is_empty() {
        return None;
    }
    let frame = out.to_vec();
    let broken = |error: String| Some(Err(Refusal::new(Status::Internal, error)));
    let header = match FrameHeader::parse(&frame, frame.len()) {
        Ok(header) => header,
        Err(error) => return broken(error.to_string()),
    };
    let body = &frame[FRAME_HEADER_BYTES..header.frame_bytes as usize];
    match Status::from_u16(header.status) {
        Some(Status::Ok) => Some(Ok(body.to_vec())),
        Some(status) => match ErrorBody::decode(body) {
            Ok(error) => Some(Err(Refusal { status, message: error.message })),
            Err(error) => broken(error.to_string()),
        },
        None => broken(format!("status {} is not known", header.status)),
    }
}
