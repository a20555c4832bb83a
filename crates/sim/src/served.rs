//! Connections of clients to a simulated node: real sessions of its broker, without sockets. The same for one node and for several.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kera_broker::{Broker, BrokerSession};
use kera_protocol::{FRAME_HEADER_BYTES, FrameHeader, Op};
use kera_rpc::{Flow, Outbox, SessionWaker};

/// What a connection holds that is not sent, at most.
pub(crate) const OUTBOX_BYTES: usize = 4 << 20;
/// So little that one answer fills it.
pub(crate) const NARROW_BYTES: usize = 1;
/// Turns in a row, before sessions count as some that never come to rest.
pub(crate) const WAKES_MAX: u32 = 100_000;

/// Answers what is not for the broker.
pub(crate) type Others<'a> = dyn Fn(Op, &FrameHeader, &Bytes) -> Option<(FrameHeader, Bytes)> + 'a;

/// What a connection did.
pub(crate) enum Said {
    /// It sent a frame.
    Frame(u64, FrameHeader, Bytes),
    /// It was closed by the node.
    Closed(u64),
}

/// A connection, as its node has it.
pub(crate) struct Connection {
    wire: u64,
    session: BrokerSession,
    waker: SessionWaker,
    out: Outbox,
    out_bytes: usize,
    /// Requests that have come and are not taken.
    waiting: VecDeque<(FrameHeader, Bytes)>,
    /// The first of these has been offered before.
    begun: bool,
    is_stopping: bool,
}

impl Connection {
    pub(crate) fn new(broker: &Arc<Broker>, wire: u64, out_bytes: usize) -> Connection {
        let waker = SessionWaker::detached();
        let session = broker.session(([127, 0, 0, 1], wire as u16).into(), waker.clone());
        let (out, waiting) = (Outbox::new(out_bytes), VecDeque::new());
        Connection { wire, session, waker, out, out_bytes, waiting, begun: false, is_stopping: false }
    }

    pub(crate) fn close(mut self) {
        self.session.on_close();
    }

    /// A request has come in.
    pub(crate) fn came(&mut self, header: FrameHeader, body: Bytes) {
        self.waiting.push_back((header, body));
    }

    /// Its node stops: what is under way is brought to its end, and nothing else begins.
    pub(crate) fn stops(&mut self) {
        self.is_stopping = true;
        self.session.on_stop(&mut self.out);
    }

    /// Whether its node stops, and nothing is under way any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_stopping && !self.session.is_busy()
    }

    /// When it has something to do by itself.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.session.deadline_us()
    }

    /// Does what is due, or what it was woken for. Whether there was anything.
    pub(crate) fn wakes(&mut self, now_us: u64) -> bool {
        if self.session.deadline_us().is_some_and(|at_us| at_us <= now_us) {
            self.session.on_deadline(&mut self.out);
            return true;
        }
        let is_woken = self.waker.take();
        if is_woken {
            self.session.on_wake(&mut self.out);
        }
        is_woken
    }

    /// Takes the requests that wait, until one is held back, and says what there is to say: how often it went on with something that had waited for room. Not with every
    /// answer that fills it: behind most of them nothing waits. As `turn` in `crates/rpc/src/serving.rs` does.
    pub(crate) fn serve(&mut self, others: &Others<'_>, said: &mut Vec<Said>) -> u64 {
        let (mut went_on, mut has_room_again) = (0, false);
        loop {
            let (waited, was_held_back) = (self.waiting.len(), !self.out.is_empty());
            let is_closed = self.handle(others, said);
            let has_gone_on = was_held_back || self.waiting.len() < waited;
            went_on += u64::from(has_room_again && has_gone_on);
            let was_full = self.out.is_full();
            self.say(said);
            if is_closed {
                said.push(Said::Closed(self.wire));
            }
            if is_closed || !was_full {
                return went_on;
            }
            has_room_again = true;
            self.session.on_drained(&mut self.out);
        }
    }

    /// Whether it is closed.
    fn handle(&mut self, others: &Others<'_>, said: &mut Vec<Said>) -> bool {
        while !self.out.is_full()
            && (self.begun || !self.is_stopping)
            && let Some((header, body)) = self.waiting.front()
        {
            let op = Op::from_u16(header.op).expect("clients here send known operations");
            if let Some((header, body)) = others(op, header, body) {
                said.push(Said::Frame(self.wire, header, body));
                self.waiting.pop_front();
                continue;
            }
            let flow = self.session.handle(op, header, body, &mut self.out);
            self.begun = matches!(flow, Flow::Blocked);
            match flow {
                Flow::Done => drop(self.waiting.pop_front()),
                Flow::Blocked => return false,
                Flow::Close(_) => return true,
            }
        }
        false
    }

    /// The socket of a simulated node takes all.
    fn say(&mut self, said: &mut Vec<Said>) {
        let bytes = Bytes::from(self.out.to_vec());
        let mut sent = 0;
        while sent < bytes.len() {
            let header = FrameHeader::parse(&bytes[sent..], OUTBOX_BYTES * 2).expect("a node sends whole frames");
            let end = sent + header.frame_bytes as usize;
            said.push(Said::Frame(self.wire, header, bytes.slice(sent + FRAME_HEADER_BYTES..end)));
            sent = end;
        }
        self.out = Outbox::new(self.out_bytes);
    }
}
