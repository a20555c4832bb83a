//! Subscriptions: data of lanes is pushed as it becomes readable, as long as the consumer has given credit and the
//! connection takes it (thesis 7.4.2 argues for pushing).
//!
//! Two bounds keep what is made for a slow consumer small: its credit, and the connection's outbox. When either is used up
//! the entries stay in line; credit, or the drained outbox, sets them going again. What it does not take soon keeps no segment in
//! memory: the server copies it.

use kera_protocol::frame::{FLAG_PUSH, FLAG_RESPONSE};
use kera_protocol::{FrameHeader, Status, Subscribe};
use kera_rpc::Outbox;

use crate::config::data_bytes_max;
use crate::entries::{self, Entries, Gathered};
use crate::failure::Failure;
use crate::session::Core;
use crate::signals::Token;

/// A subscription, from its `Subscribe` to its `Unsubscribe`, the end of its last entry, or the connection's end.
pub(crate) struct Subscription {
    request: FrameHeader,
    pub(crate) entries: Entries,
    /// Bytes that may still be pushed; below zero when the last push overdrew it.
    credit: i64,
    push_bytes: usize,
}

impl Subscription {
    /// Checks a request and resolves its lanes. Entries that cannot be read are refused into `gathered`, which goes out with
    /// the first push.
    pub(crate) fn new(
        core: &mut Core,
        request: &FrameHeader,
        message: &Subscribe,
        room: usize,
        gathered: &mut Gathered,
    ) -> Result<Subscription, Failure> {
        entries::check(&message.entries, room)?;
        let config = &core.broker.config;
        let push_bytes = match message.push_bytes_max as usize {
            0 => config.push_bytes_max,
            asked => asked.min(config.push_bytes_max),
        };
        let push_bytes = push_bytes.min(data_bytes_max(message.entries.len()));
        let credit = message.credit_bytes.min(config.credit_bytes_max) as i64;
        let entries = Entries::resolve(core, &message.entries, 0, gathered);
        Ok(Subscription { request: *request, entries, credit, push_bytes })
    }

    /// Most bytes of one push.
    pub(crate) fn push_bytes(&self) -> usize {
        self.push_bytes
    }

    /// The `Subscribe`'s correlation.
    pub(crate) fn correlation(&self) -> u64 {
        self.request.correlation
    }

    /// Adds credit, up to the limit.
    pub(crate) fn add_credit(&mut self, bytes: u64, limit: u64) {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add_unsigned(bytes).min(limit);
    }

    /// Pushes what is there, within credit and outbox. What `gathered` already holds goes out in any case. True if the
    /// subscription is over: every entry has ended, and has been told of.
    pub(crate) fn pump(&mut self, core: &mut Core, waiter: u32, gathered: &mut Gathered, out: &mut Outbox) -> bool {
        let frame_data_max = data_bytes_max(self.entries.list.len());
        loop {
            let may_read = self.credit > 0 && self.entries.has_line() && !out.is_full();
            if may_read {
                let budget = self.push_bytes.min(self.credit as usize);
                self.entries.gather(&core.broker, budget, frame_data_max, true, gathered);
            }
            self.entries.watch_quiet(core, waiter, gathered);
            if gathered.is_empty() {
                if may_read && self.entries.has_line() {
                    // A round without a byte: the lanes are changing under us. Others have their turn first.
                    core.observer.advanced(Token::Waiter(waiter).to_u64());
                }
                return self.entries.all_ended();
            }
            core.counts.pushes += 1;
            core.counts.bytes_pushed += gathered.data_bytes as u64;
            core.counts.cursors_gone += gathered.gone;
            self.credit -= gathered.data_bytes as i64;
            let header = FrameHeader { flags: FLAG_RESPONSE | FLAG_PUSH, ..self.request.response(Status::Ok as u16) };
            gathered.send(&header, out);
            gathered.clear();
        }
    }
}
