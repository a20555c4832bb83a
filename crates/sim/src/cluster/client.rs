//! Clients of a run: each has one connection at a time, sends requests, and is told what comes back.
//!
//! They follow the protocol as `kera-client` does, with its rules for retries, but without its runtime and its sockets.

use bytes::Bytes;
use kera_env::{Random, SeededRandom};
use kera_protocol::{Body, FRAME_HEADER_BYTES, FrameHeader, Message, Status};

use super::truth::{Truth, Violation};

/// A client that waited so long for any answer takes its connection for dead, in microseconds.
pub(super) const PATIENCE_US: u64 = 20_000_000;

/// What a client wants of the world.
#[derive(Debug)]
pub(super) enum Wish {
    /// A connection to a node; the one that it has is given up.
    Connect,
    /// A request on the connection that it has.
    Send(FrameHeader, Bytes),
    /// To be called so many microseconds from now.
    Timer(u64),
}

/// What a client sees of the world.
pub(super) struct Around<'a> {
    pub(super) now_us: u64,
    pub(super) random: &'a SeededRandom,
    pub(super) truth: &'a mut Truth,
    pub(super) wishes: Vec<Wish>,
    pub(super) correlation: &'a mut u64,
}

impl Around<'_> {
    pub(super) fn below(&self, limit: u64) -> u64 {
        Random::below(self.random, limit)
    }

    /// Sends a request; its correlation.
    pub(super) fn send<M: Message>(&mut self, message: &M) -> u64 {
        *self.correlation += 1;
        let mut body = Vec::new();
        let version = M::OP.version_max();
        message.encode(version, &mut body);
        let header = FrameHeader {
            frame_bytes: (FRAME_HEADER_BYTES + body.len()) as u32,
            op: M::OP as u16,
            version,
            correlation: *self.correlation,
            ..FrameHeader::default()
        };
        self.wishes.push(Wish::Send(header, body.into()));
        *self.correlation
    }

    pub(super) fn connect(&mut self) {
        self.wishes.push(Wish::Connect);
    }

    pub(super) fn timer(&mut self, delay_us: u64) {
        self.wishes.push(Wish::Timer(delay_us));
    }
}

/// A client.
pub(super) trait Client {
    /// There is a connection; nothing is said on it yet. Called first, and after [`Wish::Connect`].
    fn connected(&mut self, around: &mut Around<'_>) -> Result<(), Violation>;
    /// An answer.
    fn answer(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation>;
    /// The connection is gone.
    fn lost(&mut self, around: &mut Around<'_>) -> Result<(), Violation>;
    /// The time has come.
    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation>;
    /// Whether it has nothing more to do.
    fn is_done(&self, truth: &Truth) -> bool;
    /// Where it stands, for a run that does not end.
    fn state(&self) -> String;
}

/// An answer to a request.
pub(crate) struct Answer {
    pub(crate) header: FrameHeader,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn status(&self) -> Status {
        Status::from_u16(self.header.status).expect("a node of this build sends statuses of this build")
    }

    /// Reads the body of a good answer.
    pub(crate) fn decode<B: Body>(&self) -> Result<B, Violation> {
        B::decode(self.header.version, &self.body)
            .map_err(|error| Violation(format!("an answer is malformed: {error}")))
    }

    /// What an error says.
    pub(crate) fn error(&self) -> String {
        let body = kera_protocol::ErrorBody::decode(&self.body);
        format!("{}: {}", self.status().name(), body.map_or_else(|_| "no reason".to_owned(), |body| body.message))
    }
}

/// A bad answer that must be tried again: whether it may, or why it must not be there at all.
pub(crate) fn retry(answer: &Answer, asked: &str) -> Result<(), Violation> {
    if answer.status().retryable() {
        return Ok(());
    }
    Err(Violation(format!("{asked} is refused: {}", answer.error())))
}
