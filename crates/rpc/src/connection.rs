//! A client's connection: handshake, pipelined calls, subscriptions.
//!
//! One task on the caller's tokio runtime reads and writes; everything else is a handle to it. Requests leave in the
//! order in which they were handed in. A connection that breaks stays broken: whoever owns it makes another one.

use std::time::Duration;

use bytes::Bytes;
use kera_protocol::{FrameHeader, HelloResponse, Message, Op};

use crate::RpcError;

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
            frame_bytes_max: kera_protocol::frame::FRAME_BYTES_MAX,
        }
    }
}

/// A frame from the server, its body not copied since it was read from the socket.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// Its body.
    pub body: Bytes,
}

/// A connection to a server. Clones share it; it closes when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Connection {}

impl Connection {
    /// Connects to `address` (`host:port`) and does the handshake.
    pub async fn connect(address: &str, config: ClientConfig) -> Result<Connection, RpcError> {
        let _ = (address, config);
        todo!()
    }

    /// What the server said about itself.
    pub fn hello(&self) -> &HelloResponse {
        todo!()
    }

    /// Asks and waits for the answer, at most the configured time.
    pub async fn call<M: Message>(&self, message: &M) -> Result<M::Response, RpcError> {
        let _ = message;
        todo!()
    }

    /// Asks and waits for the answer, at most `timeout`.
    pub async fn call_within<M: Message>(&self, message: &M, timeout: Duration) -> Result<M::Response, RpcError> {
        let _ = (message, timeout);
        todo!()
    }

    /// Hands in a request whose body is `parts`, one after the other, and returns at once. It leaves after everything
    /// that was handed in before. Bounded by nothing: the caller bounds what it has in flight.
    pub fn send(&self, op: Op, parts: Vec<Bytes>, timeout: Duration) -> Call {
        let _ = (op, parts, timeout);
        todo!()
    }

    /// Hands in a request that has no answer.
    pub fn post<M: Message>(&self, message: &M) {
        let _ = message;
        todo!()
    }

    /// Hands in a request that is answered by many frames: the first answer, and whatever is pushed after it.
    pub fn subscribe<M: Message>(&self, message: &M) -> Subscription {
        let _ = message;
        todo!()
    }

    /// Whether it is broken or closed.
    pub fn is_closed(&self) -> bool {
        todo!()
    }

    /// Completes when it is broken or closed, and says why.
    pub async fn closed(&self) -> RpcError {
        todo!()
    }

    /// Closes it. Calls without an answer end with [`RpcError::Closed`].
    pub fn close(&self) {
        todo!()
    }
}

/// A request under way. Await it for the answer; dropped, the answer is thrown away.
#[derive(Debug)]
pub struct Call {}

impl std::future::Future for Call {
    type Output = Result<Frame, RpcError>;
    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        todo!()
    }
}

/// A stream of frames that answer one request. Dropped, further ones are thrown away: tell the server first.
#[derive(Debug)]
pub struct Subscription {}

impl Subscription {
    /// The correlation of its request.
    pub fn correlation(&self) -> u64 {
        todo!()
    }

    /// The next frame: one with an error status is [`RpcError::Status`]; a lost connection is [`RpcError::Closed`].
    pub async fn next(&mut self) -> Result<Frame, RpcError> {
        todo!()
    }
}
