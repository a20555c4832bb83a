//! `ReadChunks`: one answer with data of many lanes, at once or when there is some (docs/read-path.md names the steps).

use kera_protocol::{FrameHeader, ReadChunks, Status, limits};
use kera_rpc::Outbox;

use crate::config::data_bytes_max;
use crate::entries::{self, Entries, Gathered};
use crate::failure::Failure;
use crate::lanes::Watch;
use crate::session::Core;
use crate::signals::Token;

/// A read that waits for data.
pub(crate) struct WaitingRead {
    request: FrameHeader,
    pub(crate) entries: Entries,
    min_bytes: usize,
    budget: usize,
    received_us: u64,
    deadline_us: u64,
    /// What the peer has not taken is in the way.
    is_held_back: bool,
}

impl WaitingRead {
    /// Checks a request and resolves its lanes. Entries that cannot be read are refused into `gathered`. `room` is how many
    /// entries the connection may still have waiting, `rotation` where in them to begin.
    pub(crate) fn new(
        core: &mut Core,
        request: &FrameHeader,
        message: &ReadChunks,
        room: usize,
        rotation: usize,
        gathered: &mut Gathered,
    ) -> Result<WaitingRead, Failure> {
        entries::check(&message.entries, room)?;
        let config = &core.broker.config;
        let asked = if message.max_bytes == 0 { usize::MAX } else { message.max_bytes as usize };
        let budget = asked.min(config.read_bytes_max).min(data_bytes_max(message.entries.len()));
        let wait_us = u64::from(message.max_wait_ms.min(limits::WAIT_MS_MAX)) * 1000;
        let received_us = core.clock.monotonic_us();
        Ok(WaitingRead {
            request: *request,
            entries: Entries::resolve(core, &message.entries, rotation, gathered),
            min_bytes: (message.min_bytes as usize).clamp(1, budget.max(1)),
            budget,
            received_us,
            deadline_us: received_us + wait_us,
            is_held_back: false,
        })
    }

    /// When it is answered in any case; while it is held back that is up to the peer.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        (!self.is_held_back).then_some(self.deadline_us)
    }

    /// Whether it waits for the outbox to drain.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    /// It is not answered before the outbox has drained; with `last` its time is up then.
    pub(crate) fn hold_back(&mut self, last: bool) {
        self.is_held_back = true;
        if last {
            self.deadline_us = self.received_us;
        }
    }

    /// The outbox has room for its answer. Whether its time is up.
    pub(crate) fn go_on(&mut self, now_us: u64) -> bool {
        std::mem::take(&mut self.is_held_back) && self.deadline_us <= now_us
    }

    /// Reads what is there and answers if it is enough, if there is something else to tell, or if `force`d: the time is
    /// up. Otherwise the session is called back for each lane that is read to its end, under the number `waiter`.
    pub(crate) fn serve(
        &mut self,
        core: &mut Core,
        waiter: u32,
        force: bool,
        gathered: &mut Gathered,
        out: &mut Outbox,
    ) -> bool {
        let frame_data_max = data_bytes_max(self.entries.list.len());
        self.entries.gather(&core.broker, self.budget, frame_data_max, false, gathered);
        // Nobody is called back for an entry that still stands in line, as one does of which the next chunk did not fit, or the next segment has to come from disk.
        let has_more = self.entries.has_line();
        let is_enough = gathered.data_bytes >= self.min_bytes || (has_more && gathered.data_bytes > 0);
        if force || gathered.event || is_enough {
            core.counts.read_requests += 1;
            core.counts.bytes_read += gathered.data_bytes as u64;
            core.counts.cursors_gone += gathered.gone;
            core.broker.latencies.read.observe(core.clock.monotonic_us().saturating_sub(self.received_us));
            gathered.send(&self.request.response(Status::Ok as u16), out);
            return true;
        }
        // Not enough yet: what was found is read again when more is there, so that no segment is pinned meanwhile.
        for number in gathered.found.drain(..) {
            self.entries.moved(number);
        }
        self.entries.watch_quiet(core, waiter, gathered);
        if has_more {
            core.observer.advanced(Token::Waiter(waiter).to_u64());
        }
        false
    }
}

impl Entries {
    /// Has the session called back for the entries that are read to the end.
    pub(crate) fn watch_quiet(&mut self, core: &mut Core, waiter: u32, gathered: &mut Gathered) {
        for (number, seen) in gathered.quiet.drain(..) {
            let entry = &mut self.list[number as usize];
            let lanes = &mut core.lanes;
            let slot = *entry.slot.get_or_insert_with(|| lanes.watch(&entry.lane, Watch { waiter, entry: number }));
            lanes.arm(slot, seen, &core.observer);
        }
    }

    /// Takes the watchers off again.
    pub(crate) fn unwatch(&mut self, core: &mut Core, waiter: u32) {
        for (number, entry) in self.list.iter_mut().enumerate() {
            if let Some(slot) = entry.slot.take() {
                core.lanes.unwatch(slot, Watch { waiter, entry: number as u32 });
            }
        }
    }
}
