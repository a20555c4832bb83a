//! A client's connection: handshake, pipelined calls, subscriptions.
//!
//! One task on the caller's tokio runtime reads and writes; everything else is a handle to it. Requests leave in the
//! order in which they were handed in. A connection that breaks stays broken: whoever owns it makes another one.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kera_protocol::{
    Body, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Hello, HelloResponse, Message, Op, ProtocolError, Status,
    encode_request,
};
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::hedge::first_of;
use crate::outbox::Outbox;
use crate::{ANSWER_TOO_LARGE, RpcError};

/// Bytes of a read buffer; frames share it until they are dropped.
const BLOCK_BYTES: usize = 256 << 10;
/// With large frames buffers are larger, up to this, so that little of a frame that does not fit is moved.
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// A read is not worth a system call for less room than this.
const READ_BYTES_MIN: usize = 32 << 10;
/// Bytes read or written before other tasks of the runtime have their turn.
const TURN_BYTES: usize = 1 << 20;
/// With fewer answers outstanding than that it is not looked which of them nobody waits for.
const PENDING_LOOK_MIN: usize = 1024;

/// How a client connects. [`Default`] works.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// What the program calls itself, for the server's logs and listings.
    pub client_name: String,
    /// Its version.
    pub client_version: String,
    /// How long connecting and the handshake may take together.
    pub connect_timeout: Duration,
    /// How long a call waits for its answer unless it says otherwise.
    pub call_timeout: Duration,
    /// How long the server's machine may take no notice of what was sent before the connection ends. `None`: as long as the system goes on trying,
    /// each time after twice as long: minutes. A server that is there and does not read for so long, with more under way than its
    /// socket takes, loses the connection as well, so this is for those that always read. Only on Linux.
    pub unnoticed_timeout: Option<Duration>,
    /// The largest frame taken from the server.
    pub frame_bytes_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            client_name: "kera-client".into(),
            client_version: env!("CARGO_PKG_VERSION").into(),
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(30),
            unnoticed_timeout: None,
            frame_bytes_max: kera_protocol::frame::FRAME_BYTES_MAX,
        }
    }
}

/// A frame from the server, its body not copied since it was read from the socket.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// Its body. Keeps the buffer alive that it came in, which other frames share.
    pub body: Bytes,
}

/// A connection to a server. Clones share it; it closes when the last one is dropped, then calls and subscriptions that
/// are left end with [`RpcError::Closed`].
#[derive(Clone, Debug)]
pub struct Connection {
    handle: Arc<Handle>,
}

/// A connection that whoever holds this does not keep open.
#[derive(Clone, Debug)]
pub struct WeakConnection {
    handle: Weak<Handle>,
}

impl WeakConnection {
    /// The connection, if anybody still has it.
    pub fn upgrade(&self) -> Option<Connection> {
        self.handle.upgrade().map(|handle| Connection { handle })
    }
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close("all its handles were dropped");
    }
}

#[derive(Debug)]
struct Shared {
    address: String,
    config: ClientConfig,
    hello: HelloResponse,
    queue: Mutex<Queue>,
    /// Something was queued, or the connection is to be closed.
    work: Notify,
    closed: Notify,
}

/// What was handed in and is not taken by the task yet.
#[derive(Debug, Default)]
struct Queue {
    requests: Vec<Request>,
    /// Subscriptions whose frames nobody wants any more.
    forget: Vec<u64>,
    correlation: u64,
    /// Somebody wants it closed, or it is closed already.
    end: Option<String>,
    ended: bool,
}

#[derive(Debug)]
struct Request {
    header: FrameHeader,
    parts: Parts,
    answer: Answer,
}

#[derive(Debug)]
enum Parts {
    One(Bytes),
    Many(Vec<Bytes>),
}

/// Who gets what comes back.
#[derive(Debug)]
enum Answer {
    Nobody,
    Call(oneshot::Sender<Result<Frame, RpcError>>),
    Subscription(mpsc::UnboundedSender<Result<Frame, RpcError>>),
}

impl Answer {
    /// Whether somebody still waits for it.
    fn is_awaited(&self) -> bool {
        match self {
            Answer::Nobody => false,
            Answer::Call(to) => !to.is_closed(),
            Answer::Subscription(to) => !to.is_closed(),
        }
    }

    fn fail(self, error: RpcError) {
        // Whoever asked may have gone.
        match self {
            Answer::Nobody => {}
            Answer::Call(to) => drop(to.send(Err(error))),
            Answer::Subscription(to) => drop(to.send(Err(error))),
        }
    }
}

/// Who gets the answers that are outstanding, by their correlations.
///
/// Whoever asks gives up after a while, and asks again: a server that stands still for days, and whose machine still takes what is sent, would have one more here each time.
#[derive(Debug, Default)]
struct Pending {
    answers: HashMap<u64, Answer>,
    /// With so many of them those that nobody waits for go.
    look_at: usize,
}

impl Pending {
    fn insert(&mut self, correlation: u64, answer: Answer) {
        if self.answers.len() >= self.look_at {
            self.answers.retain(|_, answer| answer.is_awaited());
            self.look_at = (2 * self.answers.len()).max(PENDING_LOOK_MIN);
        }
        self.answers.insert(correlation, answer);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, reason: &str) {
        self.queue().end.get_or_insert_with(|| reason.into());
        self.work.notify_one();
    }

    fn closed_error(&self, reason: &str, sent: bool) -> RpcError {
        RpcError::Closed { address: self.address.clone(), reason: reason.into(), sent }
    }

    fn version(&self, op: Op) -> Result<u8, RpcError> {
        self.hello.common_version(op).ok_or_else(|| RpcError::Status {
            status: Status::UnsupportedVersion,
            message: format!("{} speaks no version of {op} that this client speaks", self.address),
            retry_after: None,
        })
    }
}

impl Connection {
    /// Connects to `address` (`host:port`) and does the handshake; of a host with several addresses with whichever greets first. To be
    /// called on a tokio runtime with I/O and time enabled, which then also runs the connection's task.
    pub async fn connect(address: &str, config: ClientConfig) -> Result<Connection, RpcError> {
        let (timeout, mut failed) = (config.connect_timeout, Vec::new());
        let greeting = async {
            match lookup_host(address).await {
                Ok(found) => greet_any(address, &found.collect::<Vec<_>>(), &config, &mut failed).await,
                Err(error) => {
                    failed.push(RpcError::Connect { address: address.into(), reason: error.to_string() });
                    None
                }
            }
        };
        let greeted = match tokio::time::timeout(timeout, greeting).await {
            Ok(greeted) => greeted,
            Err(_) => {
                let reason = format!("no handshake within {} ms", timeout.as_millis());
                failed.push(RpcError::Connect { address: address.into(), reason });
                None
            }
        };
        let Some((stream, hello)) = greeted else { return Err(why_not(address, failed)) };
        let shared = Arc::new(Shared {
            address: address.into(),
            config,
            hello,
            queue: Mutex::new(Queue::default()),
            work: Notify::new(),
            closed: Notify::new(),
        });
        let task = Task {
            shared: Arc::clone(&shared),
            stream,
            out: Outbox::new(usize::MAX),
            requests: Vec::new(),
            pending: Pending::default(),
            buffer: BytesMut::new(),
            block_bytes: BLOCK_BYTES,
            complaint: None,
        };
        tokio::spawn(task.run());
        Ok(Connection { handle: Arc::new(Handle { shared }) })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// A handle that does not keep it open.
    pub fn downgrade(&self) -> WeakConnection {
        WeakConnection { handle: Arc::downgrade(&self.handle) }
    }

    /// Where it goes.
    pub fn address(&self) -> &str {
        &self.shared().address
    }

    /// What the server said about itself.
    pub fn hello(&self) -> &HelloResponse {
        &self.shared().hello
    }

    /// Asks and waits for the answer, at most the configured time.
    pub async fn call<M: Message>(&self, message: &M) -> Result<M::Response, RpcError> {
        self.call_within(message, self.shared().config.call_timeout).await
    }

    /// Asks and waits for the answer, at most `timeout`.
    pub async fn call_within<M: Message>(&self, message: &M, timeout: Duration) -> Result<M::Response, RpcError> {
        let Ok(answer) = tokio::time::timeout(timeout, self.request(message)).await else {
            return Err(RpcError::Timeout { address: self.address().into(), after: timeout });
        };
        let frame = answer?;
        M::Response::decode(frame.header.version, &frame.body)
            .map_err(|source| RpcError::Protocol { address: self.address().into(), source })
    }

    /// Hands in a message, in the version that both sides speak, whose answer is awaited later. As with
    /// [`send`](Connection::send) the caller bounds how long it waits.
    pub fn request<M: Message>(&self, message: &M) -> Call {
        let mut body = Vec::new();
        // Without a version in common there is nothing to encode: `send` reports it.
        if let Ok(version) = self.shared().version(M::OP) {
            message.encode(version, &mut body);
        }
        self.send(M::OP, vec![body.into()])
    }

    /// Hands in a request whose body is `parts`, one after the other, and returns at once. It leaves after everything
    /// that was handed in before. Neither time nor the number of requests is bounded: the caller bounds what it has in
    /// flight, and how long it waits.
    pub fn send(&self, op: Op, parts: Vec<Bytes>) -> Call {
        let (sender, receiver) = oneshot::channel();
        let call = |failed| Call { failed, receiver, address: self.address().into() };
        match self.shared().version(op) {
            Ok(version) => match self.enqueue(op, version, Parts::Many(parts), Answer::Call(sender)) {
                Ok(_) => call(None),
                Err(e) => call(Some(e)),
            },
            Err(e) => call(Some(e)),
        }
    }

    /// Hands in a request whose answer, if there is one, nobody waits for.
    pub fn post<M: Message>(&self, message: &M) {
        if let Ok(version) = self.shared().version(M::OP) {
            let mut body = Vec::new();
            message.encode(version, &mut body);
            // An error means that the connection is closed: then there is nobody to tell.
            let _ = self.enqueue(M::OP, version, Parts::One(body.into()), Answer::Nobody);
        }
    }

    /// Hands in a request that is answered by many frames: the first answer, and whatever is pushed after it. What comes
    /// in is not bounded here: the request or its credit does.
    pub fn subscribe<M: Message>(&self, message: &M) -> Result<Subscription, RpcError> {
        let (sender, frames) = mpsc::unbounded_channel();
        let version = self.shared().version(M::OP)?;
        let mut body = Vec::new();
        message.encode(version, &mut body);
        let correlation = self.enqueue(M::OP, version, Parts::One(body.into()), Answer::Subscription(sender))?;
        Ok(Subscription { correlation, frames, connection: self.clone() })
    }

    /// Throws away what still comes in for a subscription. Tell the server as well.
    fn forget(&self, correlation: u64) {
        self.shared().queue().forget.push(correlation);
    }

    /// The frame, or the error that it reports.
    fn check(&self, frame: Frame) -> Result<Frame, RpcError> {
        checked(self.address(), frame)
    }

    fn enqueue(&self, op: Op, version: u8, parts: Parts, answer: Answer) -> Result<u64, RpcError> {
        let shared = self.shared();
        let body_bytes: usize = match &parts {
            Parts::One(part) => part.len(),
            Parts::Many(parts) => parts.iter().map(Bytes::len).sum(),
        };
        let limit = shared.hello.frame_bytes_max as usize;
        if FRAME_HEADER_BYTES + body_bytes > limit {
            let value = (FRAME_HEADER_BYTES + body_bytes) as u64;
            return Err(RpcError::OverLimit { field: "frame bytes", value, limit: limit as u64 });
        }
        let mut queue = shared.queue();
        if let Some(reason) = &queue.end {
            return Err(shared.closed_error(reason, false));
        }
        queue.correlation += 1;
        let correlation = queue.correlation;
        let header = FrameHeader { op: op as u16, version, correlation, ..FrameHeader::default() };
        queue.requests.push(Request { header, parts, answer });
        let first = queue.requests.len() == 1;
        drop(queue);
        if first {
            shared.work.notify_one();
        }
        Ok(correlation)
    }

    /// Whether it is broken or closed.
    pub fn is_closed(&self) -> bool {
        self.shared().queue().end.is_some()
    }

    /// Completes when it is broken or closed, and says why.
    pub async fn closed(&self) -> RpcError {
        let shared = self.shared();
        let mut told = std::pin::pin!(shared.closed.notified());
        loop {
            // Listening before looking, so that nothing is missed in between.
            told.as_mut().enable();
            {
                let queue = shared.queue();
                if queue.ended {
                    return shared.closed_error(queue.end.as_deref().unwrap_or_default(), true);
                }
            }
            told.as_mut().await;
            told.set(shared.closed.notified());
        }
    }

    /// Closes it. Calls without an answer end with [`RpcError::Closed`].
    pub fn close(&self) {
        self.shared().close("it was closed on this side");
    }
}

/// A connection over which hands were shaken, and what the server said about itself.
type Greeted = (TcpStream, HelloResponse);

/// Connects to whichever of a host's addresses greets first: each is tried when the one before it has failed or takes long, since one may be
/// that of a machine that is gone, or of a process that accepts and says nothing. `None`: none of them does, and `failed` says why.
async fn greet_any(
    host: &str,
    addresses: &[SocketAddr],
    config: &ClientConfig,
    failed: &mut Vec<RpcError>,
) -> Option<Greeted> {
    let greetings = addresses.iter().copied().map(|at| {
        let (host, config) = (host.to_owned(), config.clone());
        async move { greet(&host, at, &config).await }
    });
    first_of(greetings, |error| failed.push(error.unwrap_or_else(|_| gone(host)))).await
}

/// Why there is no connection. What a server has said tells more than that others could not be reached.
fn why_not(address: &str, mut failed: Vec<RpcError>) -> RpcError {
    if let Some(at) = failed.iter().position(|error| !matches!(error, RpcError::Connect { .. })) {
        return failed.swap_remove(at);
    }
    let reasons = failed.into_iter().filter_map(|error| match error {
        RpcError::Connect { reason, .. } => Some(reason),
        _ => None,
    });
    let mut reasons: Vec<String> = reasons.collect();
    reasons.dedup();
    if reasons.is_empty() {
        reasons.push("the host has no address".into());
    }
    RpcError::Connect { address: address.into(), reason: reasons.join("; ") }
}

/// Connects to one of the addresses of `address` and shakes hands.
async fn greet(address: &str, at: SocketAddr, config: &ClientConfig) -> Result<Greeted, RpcError> {
    let failed = |reason: String| RpcError::Connect { address: address.into(), reason };
    let mut stream = TcpStream::connect(at).await.map_err(|e| failed(e.to_string()))?;
    stream.set_nodelay(true).map_err(|e| failed(e.to_string()))?;
    #[cfg(target_os = "linux")]
    SockRef::from(&stream).set_tcp_user_timeout(config.unnoticed_timeout).map_err(|e| failed(e.to_string()))?;
    let hello = Hello { client_name: config.client_name.clone(), client_version: config.client_version.clone() };
    let mut request = Vec::new();
    encode_request(&hello, 1, 0, &mut request);
    stream.write_all(&request).await.map_err(|e| failed(e.to_string()))?;
    let mut head = [0; FRAME_HEADER_BYTES];
    let cut = |e: io::Error| failed(format!("the handshake was not answered: {e}"));
    stream.read_exact(&mut head).await.map_err(cut)?;
    let protocol = |source: ProtocolError| RpcError::Protocol { address: address.into(), source };
    let header = FrameHeader::parse(&head, 1 << 20).map_err(protocol)?;
    let mut body = vec![0; header.body_bytes()];
    stream.read_exact(&mut body).await.map_err(cut)?;
    let frame = checked(address, Frame { header, body: body.into() })?;
    let hello = HelloResponse::decode(frame.header.version, &frame.body).map_err(protocol)?;
    Ok((stream, hello))
}

/// The frame, or the error that it reports.
fn checked(address: &str, frame: Frame) -> Result<Frame, RpcError> {
    if frame.header.status == Status::Ok as u16 {
        return Ok(frame);
    }
    let error =
        ErrorBody::decode(&frame.body).map_err(|source| RpcError::Protocol { address: address.into(), source })?;
    let status = Status::from_u16(frame.header.status).ok_or(RpcError::Protocol {
        address: address.into(),
        source: ProtocolError::BadField {
            field: "frame.status",
            value: frame.header.status.into(),
            allowed: "a status that this client knows; it may be older than the server",
        },
    })?;
    let retry_after = (error.retry_after_ms > 0).then(|| Duration::from_millis(error.retry_after_ms.into()));
    Err(RpcError::Status { status, message: error.message, retry_after })
}

/// A request under way. Await it for the answer; dropped, the answer is thrown away.
#[derive(Debug)]
#[must_use = "without being awaited, what became of the request is not known"]
pub struct Call {
    failed: Option<RpcError>,
    receiver: oneshot::Receiver<Result<Frame, RpcError>>,
    address: String,
}

impl Future for Call {
    type Output = Result<Frame, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.receiver).poll(context).map(|answer| match answer {
            Ok(Ok(frame)) => checked(&self.address, frame),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(gone(&self.address)),
        })
    }
}

/// The task is gone without having said anything: its runtime was shut down.
fn gone(address: &str) -> RpcError {
    RpcError::Closed { address: address.into(), reason: "the runtime that it ran on is gone".into(), sent: true }
}

/// Frames that answer one request. Keeps the connection open. Dropped, further ones are thrown away: tell the server
/// first.
#[derive(Debug)]
pub struct Subscription {
    correlation: u64,
    frames: mpsc::UnboundedReceiver<Result<Frame, RpcError>>,
    connection: Connection,
}

impl Subscription {
    /// The correlation of its request.
    pub fn correlation(&self) -> u64 {
        self.correlation
    }

    /// The next frame: one with an error status is [`RpcError::Status`]; a lost connection is [`RpcError::Closed`].
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Frame, RpcError> {
        match self.frames.recv().await {
            Some(answer) => self.connection.check(answer?),
            None => Err(gone(self.connection.address())),
        }
    }

    /// As [`next`](Subscription::next), for those who wait for several things at once.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Frame, RpcError>> {
        self.frames.poll_recv(context).map(|answer| match answer {
            Some(answer) => self.connection.check(answer?),
            None => Err(gone(self.connection.address())),
        })
    }

    /// The next frame if it is there.
    pub fn try_next(&mut self) -> Option<Result<Frame, RpcError>> {
        let answer = self.frames.try_recv().ok()?;
        Some(answer.and_then(|frame| self.connection.check(frame)))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.connection.forget(self.correlation);
    }
}

/// The connection's task.
struct Task {
    shared: Arc<Shared>,
    stream: TcpStream,
    out: Outbox,
    /// Taken from the queue at once, and given back empty.
    requests: Vec<Request>,
    pending: Pending,
    buffer: BytesMut,
    block_bytes: usize,
    /// What the server said that answers no request: why it closes the connection.
    complaint: Option<String>,
}

enum Next {
    Yield,
    Wait,
    End(String),
}

impl Task {
    async fn run(mut self) {
        let reason = loop {
            match self.turn() {
                Ok(Next::End(reason)) => break reason,
                Ok(Next::Yield) => tokio::task::yield_now().await,
                Ok(Next::Wait) => {
                    let interest =
                        if self.out.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
                    tokio::select! {
                        ready = self.stream.ready(interest) => {
                            if let Err(e) = ready {
                                break e.to_string();
                            }
                        }
                        () = self.shared.work.notified() => {}
                    }
                }
                Err(e) => break e.to_string(),
            }
        };
        let reason = self.complaint.take().unwrap_or(reason);
        self.end(&reason);
    }

    /// Does what can be done without waiting.
    fn turn(&mut self) -> io::Result<Next> {
        let mut left = TURN_BYTES;
        loop {
            if let Some(reason) = self.take_requests() {
                return Ok(Next::End(reason));
            }
            self.out.write_to(&self.stream, &mut left, |_| ())?;
            if left == 0 {
                return Ok(Next::Yield);
            }
            self.make_room();
            match self.stream.try_read_buf(&mut self.buffer) {
                Ok(0) => return Ok(Next::End("the server closed it".into())),
                Ok(bytes) => left = left.saturating_sub(bytes),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Next::Wait),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if let Err(e) = self.frames() {
                let is_too_large = matches!(e, ProtocolError::FrameSize { bytes, max, .. } if bytes > max);
                let what = if is_too_large { ANSWER_TOO_LARGE } else { "it broke the protocol" };
                return Ok(Next::End(format!("{what}: {e}")));
            }
        }
    }

    /// Moves what was handed in into the outbox. `Some`: the connection is to be closed.
    fn take_requests(&mut self) -> Option<String> {
        let forget = {
            let mut queue = self.shared.queue();
            if queue.end.is_some() {
                return queue.end.clone();
            }
            std::mem::swap(&mut queue.requests, &mut self.requests);
            std::mem::take(&mut queue.forget)
        };
        for request in self.requests.drain(..) {
            let mut frame = self.out.begin(&request.header);
            match request.parts {
                Parts::One(part) => frame.attach(part),
                Parts::Many(parts) => parts.into_iter().for_each(|part| frame.attach(part)),
            }
            frame.finish();
            if !matches!(request.answer, Answer::Nobody) {
                self.pending.insert(request.header.correlation, request.answer);
            }
        }
        for correlation in forget {
            self.pending.answers.remove(&correlation);
        }
        None
    }

    /// Makes room in the buffer, for all of a frame that has started.
    fn make_room(&mut self) {
        let have = self.buffer.len();
        let wanted = match self.buffer.first_chunk::<4>() {
            Some(length) => u32::from_le_bytes(*length) as usize,
            None => FRAME_HEADER_BYTES,
        };
        if self.buffer.capacity() >= wanted.max(have + READ_BYTES_MIN) {
            return;
        }
        self.block_bytes = self.block_bytes.max((4 * wanted).min(BLOCK_BYTES_MAX));
        self.buffer.reserve(wanted.max(self.block_bytes) - have);
    }

    /// Hands out the frames that are there.
    fn frames(&mut self) -> Result<(), ProtocolError> {
        let limit = self.shared.config.frame_bytes_max;
        loop {
            if self.buffer.len() < FRAME_HEADER_BYTES {
                if self.buffer.len() >= 4 {
                    FrameHeader::parse_length(&self.buffer, limit)?;
                }
                return Ok(());
            }
            let header = FrameHeader::parse(&self.buffer, limit)?;
            if !header.is_response() {
                let (field, allowed) = ("frame.flags", "1 or 3: servers send responses");
                return Err(ProtocolError::BadField { field, value: header.flags.into(), allowed });
            }
            let frame_bytes = header.frame_bytes as usize;
            if self.buffer.len() < frame_bytes {
                return Ok(());
            }
            let body = self.buffer.split_to(frame_bytes).freeze().slice(FRAME_HEADER_BYTES..);
            self.deliver(Frame { header, body });
        }
    }

    fn deliver(&mut self, frame: Frame) {
        let correlation = frame.header.correlation;
        match self.pending.answers.get(&correlation) {
            Some(Answer::Subscription(to)) => {
                if to.send(Ok(frame)).is_err() {
                    self.pending.answers.remove(&correlation);
                }
            }
            Some(Answer::Call(_)) => {
                if let Some(Answer::Call(to)) = self.pending.answers.remove(&correlation) {
                    // Whoever asked may have given up.
                    let _ = to.send(Ok(frame));
                }
            }
            Some(Answer::Nobody) | None => {
                // Others answer requests whose answers nobody waits for: the connection goes on, and may end for another reason.
                let closes =
                    |status| matches!(status, Status::Malformed | Status::FrameTooLarge | Status::HelloExpected);
                if let Err(RpcError::Status { status, message, .. }) = checked(&self.shared.address, frame)
                    && (correlation == 0 || closes(status))
                {
                    self.complaint = Some(format!("{status}: {message}"));
                }
            }
        }
    }

    /// Tells everybody that it is over.
    fn end(&mut self, reason: &str) {
        let unsent = {
            let mut queue = self.shared.queue();
            if queue.ended {
                return;
            }
            queue.end.get_or_insert_with(|| reason.into());
            queue.ended = true;
            std::mem::take(&mut queue.requests)
        };
        for (_, answer) in self.pending.answers.drain() {
            answer.fail(self.shared.closed_error(reason, true));
        }
        for request in unsent {
            request.answer.fail(self.shared.closed_error(reason, false));
        }
        self.shared.closed.notify_waiters();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.end("the runtime that it ran on is gone");
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use kera_env::SystemClock;

    use super::*;
    use crate::{Flow, Peer, RunningServer, Server, ServerConfig, Session, SessionWaker};

    /// It shakes hands and says nothing else.
    struct Greeter;

    impl Session for Greeter {
        fn on_frame(&mut self, _: &FrameHeader, _: &[u8], _: &mut Outbox) -> Flow {
            Flow::Done
        }

        fn on_wake(&mut self, _: &mut Outbox) {}
    }

    /// It answers the first request with this status, and closes the connection at the second one.
    struct Refuser(Option<Status>);

    impl Session for Refuser {
        fn on_frame(&mut self, header: &FrameHeader, _: &[u8], out: &mut Outbox) -> Flow {
            let Some(status) = self.0.take() else { return Flow::Close("that is enough".into()) };
            out.error(header, status, &ErrorBody::new("what was refused"));
            Flow::Done
        }

        fn on_wake(&mut self, _: &mut Outbox) {}
    }

    fn server(connections_max: usize) -> RunningServer {
        serve(connections_max, || Box::new(Greeter) as Box<dyn Session>)
    }

    fn serve(connections_max: usize, session: impl Fn() -> Box<dyn Session> + Send + Sync + 'static) -> RunningServer {
        let hello = HelloResponse {
            server_name: "greeter".into(),
            server_version: "1".into(),
            node_id: [1; 16],
            node_epoch: 1,
            ops: HelloResponse::ops_spoken(),
            frame_bytes_max: 8 << 20,
            chunk_bytes_max: 1 << 20,
            in_flight_bytes_max: 64 << 20,
            in_flight_requests_max: 1_000,
            subscriptions_max: 10,
            idle_timeout_ms: 0,
        };
        let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into(), hello, Arc::new(SystemClock::new()));
        config.connections_max = connections_max;
        let factory = Arc::new(move |_: Peer, _: SessionWaker| session());
        Server::start(config, factory).unwrap()
    }

    /// Greets whoever is at these addresses; there is a limit that only a hanging test reaches.
    fn greet_all(addresses: &[SocketAddr]) -> Result<Greeted, RpcError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (config, mut failed) = (ClientConfig::default(), Vec::new());
            let greeting = greet_any("host", addresses, &config, &mut failed);
            let greeted = tokio::time::timeout(Duration::from_secs(60), greeting).await.expect("the test hangs");
            greeted.ok_or_else(|| why_not("host", failed))
        })
    }

    #[test]
    fn answers_that_nobody_waits_for_any_more_do_not_pile_up() {
        let (mut pending, mut waits, mut most) = (Pending::default(), Vec::new(), 0);
        for correlation in 0..100_000_u64 {
            let (sender, receiver) = oneshot::channel();
            pending.insert(correlation, Answer::Call(sender));
            if correlation.is_multiple_of(1_000) {
                waits.push((correlation, receiver));
            }
            most = most.max(pending.answers.len());
        }
        assert!(most <= PENDING_LOOK_MIN, "{most}");
        let is_there = |(correlation, _): &(u64, _)| pending.answers.contains_key(correlation);
        assert!(waits.len() == 100 && waits.iter().all(is_there));
    }

    #[test]
    fn an_address_that_says_nothing_is_left_for_the_next_one_of_its_host() {
        let (silent, server) = (TcpListener::bind("127.0.0.1:0").unwrap(), server(10));
        let (_, hello) = greet_all(&[silent.local_addr().unwrap(), server.local_addr()]).unwrap();
        assert_eq!(hello.server_name, "greeter");
    }

    /// As when a subscription has ended at the server before it is ended here: hours later that was told as why the connection had closed.
    #[test]
    fn what_is_refused_without_closing_the_connection_is_not_why_it_closes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (status, is_told) in [(Status::UnknownSubscription, false), (Status::Malformed, true)] {
            let server = serve(10, move || Box::new(Refuser(Some(status))) as Box<dyn Session>);
            let reason = runtime.block_on(async {
                let address = server.local_addr().to_string();
                let connection = Connection::connect(&address, ClientConfig::default()).await.unwrap();
                connection.post(&kera_protocol::Unsubscribe { subscription: 1 });
                connection.post(&kera_protocol::Unsubscribe { subscription: 1 });
                let closed = tokio::time::timeout(Duration::from_secs(60), connection.closed());
                closed.await.expect("the test hangs").to_string()
            });
            assert_eq!(reason.contains("what was refused"), is_told, "{reason}");
        }
    }

    #[test]
    fn what_a_server_has_said_is_told_and_not_that_another_address_is_dead() {
        let server = server(1);
        // Held, so that nobody else listens there meanwhile.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let dead = held.local_addr().unwrap();
        let _only_one = greet_all(&[server.local_addr()]).unwrap();
        for addresses in [[dead, server.local_addr()], [server.local_addr(), dead]] {
            let error = greet_all(&addresses).unwrap_err();
            assert_eq!(error.status(), Some(Status::Overloaded), "{error}");
        }
        let error = greet_all(&[dead, dead]).unwrap_err();
        assert!(error.retryable() && error.to_string().contains("host: "), "{error}");
        assert!(greet_all(&[]).unwrap_err().to_string().contains("no address"));
    }
}
