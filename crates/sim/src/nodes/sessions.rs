//! The connections of clients to a simulated node: real sessions of its broker, without sockets.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kera_broker::{Broker, BrokerSession};
use kera_protocol::{FrameHeader, Op};
use kera_rpc::{Flow, Outbox, SessionWaker};
use std::sync::Arc;

use crate::cluster::machine::frames_of;
pub(super) use crate::cluster::machine::{OUTBOX_BYTES, Said};

/// So little that one answer fills it.
pub(super) const NARROW_BYTES: usize = 1;
/// Turns in a row, before sessions count as some that never come to rest.
const WAKES_MAX: u32 = 100_000;

struct Connection {
    session: BrokerSession,
    waker: SessionWaker,
    out: Outbox,
    out_bytes: usize,
    waiting: VecDeque<(FrameHeader, Bytes)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Sessions {
    open: BTreeMap<u64, Connection>,
    /// How often one had held something back for want of room, and went on with it when there was room again.
    pub(super) went_on: u64,
}

impl Sessions {
    pub(super) fn connect(&mut self, broker: &Arc<Broker>, wire: u64, out_bytes: usize) {
        let waker = SessionWaker::detached();
        let session = broker.session(([127, 0, 0, 1], wire as u16).into(), waker.clone());
        let (out, waiting) = (Outbox::new(out_bytes), VecDeque::new());
        self.open.insert(wire, Connection { session, waker, out, out_bytes, waiting });
    }

    pub(super) fn lost(&mut self, wire: u64) {
        if let Some(mut connection) = self.open.remove(&wire) {
            connection.session.on_close();
        }
    }

    /// The node serves nobody any more.
    pub(super) fn close_all(&mut self) {
        std::mem::take(&mut self.open).into_values().for_each(|mut connection| connection.session.on_close());
    }

    pub(super) fn request(&mut self, wire: u64, header: FrameHeader, body: Bytes, said: &mut Vec<Said>) {
        let Some(connection) = self.open.get_mut(&wire) else { return };
        connection.waiting.push_back((header, body));
        self.went_on += serve(connection, wire, said);
    }

    /// Sessions that were woken, or whose deadline has passed, do what they have to, until nobody has anything to do.
    pub(super) fn settle(&mut self, now_us: u64, said: &mut Vec<Said>) {
        for _ in 0..WAKES_MAX {
            let mut is_quiet = true;
            for (wire, connection) in &mut self.open {
                if connection.session.deadline_us().is_some_and(|at_us| at_us <= now_us) {
                    connection.session.on_deadline(&mut connection.out);
                } else if connection.waker.take() {
                    connection.session.on_wake(&mut connection.out);
                } else {
                    continue;
                }
                is_quiet = false;
                self.went_on += serve(connection, *wire, said);
            }
            for gone in said.iter().filter_map(|one| if let Said::Closed(wire) = one { Some(*wire) } else { None }) {
                self.open.remove(&gone);
            }
            if is_quiet {
                return;
            }
        }
        panic!("sessions never come to rest");
    }

    /// When the next session has something to do by itself.
    pub(super) fn deadline_us(&self) -> Option<u64> {
        self.open.values().filter_map(|connection| connection.session.deadline_us()).min()
    }
}

/// Gives a connection the requests that wait, until one is held back, and takes what it has to say: how often it went on with something that had waited for room. Not with every
/// answer that fills it: behind most of them nothing waits. As `turn` in `crates/rpc/src/serving.rs` does.
fn serve(connection: &mut Connection, wire: u64, said: &mut Vec<Said>) -> u64 {
    let (mut went_on, mut has_room_again) = (0, false);
    loop {
        let (waited, was_held_back) = (connection.waiting.len(), !connection.out.is_empty());
        let is_closed = handle(connection);
        let has_gone_on = was_held_back || connection.waiting.len() < waited;
        went_on += u64::from(has_room_again && has_gone_on);
        let was_full = connection.out.is_full();
        frames_of(&connection.out, wire, said);
        connection.out = Outbox::new(connection.out_bytes);
        if is_closed {
            said.push(Said::Closed(wire));
        }
        if is_closed || !was_full {
            return went_on;
        }
        has_room_again = true;
        connection.session.on_drained(&mut connection.out);
    }
}

/// Whether it is closed.
fn handle(connection: &mut Connection) -> bool {
    while !connection.out.is_full()
        && let Some((header, body)) = connection.waiting.front()
    {
        let op = Op::from_u16(header.op).expect("clients here send known operations");
        match connection.session.handle(op, header, body, &mut connection.out) {
            Flow::Done => drop(connection.waiting.pop_front()),
            Flow::Blocked => return false,
            Flow::Close(_) => return true,
        }
    }
    false
}
