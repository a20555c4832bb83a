//! The connections of clients to a node of a simulated cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kera_broker::Broker;
use kera_protocol::FrameHeader;

use crate::served::{Connection, WAKES_MAX};
pub(super) use crate::served::{NARROW_BYTES, OUTBOX_BYTES, Said};

/// See the module.
#[derive(Default)]
pub(super) struct Sessions {
    open: BTreeMap<u64, Connection>,
    /// How often one had held something back for want of room, and went on with it when there was room again.
    pub(super) went_on: u64,
    is_stopping: bool,
}

impl Sessions {
    pub(super) fn connect(&mut self, broker: &Arc<Broker>, wire: u64, out_bytes: usize) {
        self.open.insert(wire, Connection::new(broker, wire, out_bytes));
    }

    pub(super) fn lost(&mut self, wire: u64) {
        if let Some(connection) = self.open.remove(&wire) {
            connection.close();
        }
    }

    /// The node stops: what is under way is answered, and each connection ends when nothing is.
    pub(super) fn stop(&mut self, said: &mut Vec<Said>) {
        self.is_stopping = true;
        for connection in self.open.values_mut() {
            connection.stops();
            self.went_on += connection.serve(&|_, _, _| None, said);
        }
        self.end_those_over(said);
    }

    fn end_those_over(&mut self, said: &mut Vec<Said>) {
        let over: Vec<u64> = self.open.iter().filter(|(_, one)| one.is_over()).map(|(wire, _)| *wire).collect();
        for wire in over {
            said.push(Said::Closed(wire));
            self.lost(wire);
        }
    }

    /// Whether nobody is connected.
    pub(super) fn are_over(&self) -> bool {
        self.open.is_empty()
    }

    /// The node serves nobody any more.
    pub(super) fn close_all(&mut self) {
        std::mem::take(&mut self.open).into_values().for_each(Connection::close);
    }

    pub(super) fn request(&mut self, wire: u64, header: FrameHeader, body: Bytes, said: &mut Vec<Said>) {
        let Some(connection) = self.open.get_mut(&wire) else { return };
        connection.came(header, body);
        self.went_on += connection.serve(&|_, _, _| None, said);
    }

    /// Sessions that were woken, or whose deadline has passed, do what they have to, until nobody has anything to do.
    pub(super) fn settle(&mut self, now_us: u64, said: &mut Vec<Said>) {
        for _ in 0..WAKES_MAX {
            let mut is_quiet = true;
            for connection in self.open.values_mut() {
                if connection.wakes(now_us) {
                    is_quiet = false;
                    self.went_on += connection.serve(&|_, _, _| None, said);
                }
            }
            for gone in said.iter().filter_map(|one| if let Said::Closed(wire) = one { Some(*wire) } else { None }) {
                self.open.remove(&gone);
            }
            if is_quiet {
                if self.is_stopping {
                    self.end_those_over(said);
                }
                return;
            }
        }
        panic!("sessions never come to rest");
    }

    /// When the next session has something to do by itself.
    pub(super) fn deadline_us(&self) -> Option<u64> {
        self.open.values().filter_map(Connection::deadline_us).min()
    }
}
