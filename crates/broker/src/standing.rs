//! For how long a node may take itself for what the coordinators last said that it is.
//!
//! A node that cannot reach the coordinators may have been declared lost without knowing it. Two things may then be wrong.
//!
//! * **Reads may be old.** Another node owns its streamlets and has acknowledged more. What this one shows was acknowledged and stays
//!   where it is, so nobody sees what was never there, but they may see it late without end. So reads stop, and whoever asks
//!   is sent to other nodes.
//! * **Writes of streams with one copy may be in vain.** No backup is asked for them that could refuse. Nobody takes such
//!   streamlets over by himself; but a person may have given up what only this node had (`kera streamlet accept-loss`), and
//!   the streamlet has another owner. So these writes stop, and the coordinators wait with that for longer than a node
//!   goes on ([`SERVES_MS`]).
//!
//! **Writes of streams with more copies go on.** Each is acknowledged by every backup of its log's view, and a node that was declared lost has been
//! fenced by one of them before anybody else gets its streamlets (`docs/replication.md`, invariants 4 and 5): what it acknowledges is
//! kept, whether or not it hears from coordinators. So a cluster whose coordinators have no majority, as while they elect a leader, goes on
//! taking writes.
//!
//! Elections take less than a second; [`SERVES_MS`] is ten times the silence after which a node is declared lost. It is measured
//! from when the coordinators were asked, and compared by whoever serves, not by a timer: a process that was stopped for a minute knows at its first request that
//! its time is over. The clock is one that goes on while the machine is suspended ([`Clock::since_boot_us`]), as those of the coordinators do
//! (`docs/decisions/0057-a-machine-that-was-suspended.md`).

use std::sync::atomic::{AtomicU64, Ordering};

use kera_env::Clock;
use parking_lot::Mutex;

/// How long a node goes on without hearing from a majority of the coordinators, in milliseconds.
pub const SERVES_MS: u64 = 5_000;

/// See the module. Set by whoever hears the coordinators, read by every session.
#[derive(Debug)]
pub(crate) struct Standing {
    until_us: AtomicU64,
    /// That no majority of the coordinators is there, as whoever hears them says it. Only told, never gone by.
    lacking: Mutex<Option<String>>,
}

impl Standing {
    /// A node that is in no cluster stands by itself.
    pub(crate) fn alone() -> Standing {
        Standing { until_us: AtomicU64::new(u64::MAX), lacking: Mutex::default() }
    }

    pub(crate) fn set_confirmed(&self, at_us: u64) {
        self.until_us.store(at_us.saturating_add(SERVES_MS * 1000), Ordering::Relaxed);
    }

    pub(crate) fn set_lacking(&self, said: Option<String>) {
        *self.lacking.lock() = said;
    }

    pub(crate) fn lacking(&self) -> Option<String> {
        self.lacking.lock().clone()
    }

    #[inline]
    pub(crate) fn holds(&self, clock: &dyn Clock) -> bool {
        let until_us = self.until_us.load(Ordering::Relaxed);
        until_us == u64::MAX || clock.since_boot_us() < until_us
    }
}
