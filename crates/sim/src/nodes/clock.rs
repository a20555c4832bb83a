//! The clocks of a machine as a process on it sees them, and clocks that are years ahead for a while.

use std::sync::{Arc, Mutex};

use kera_env::{Believed, Clock, Doubted, ManualClock, Reckoning};
use kera_log::Log;

use super::copies::lock;
use super::faults::Fault;
use super::node::Node;
use super::world::{Event, World};

const HOUR_MS: i64 = 3_600_000;
const YEAR_MS: i64 = 365 * 24 * HOUR_MS;

/// How the processes of a node find out how old something is.
#[derive(Clone, Debug, Default)]
pub(super) struct Ages {
    /// What the node's disk has of a doubt. A real one has it within a second, and writes it once a minute.
    doubted: Arc<Mutex<Option<Doubted>>>,
    /// They go by the wall clock, whatever that says: a defect.
    pub(super) believes_all: bool,
}

/// What a process believes of the wall clock it has to find out by itself, each one anew.
#[derive(Debug)]
pub(super) struct ProcessClock {
    machine: Arc<ManualClock>,
    reckoning: Reckoning,
    ages: Ages,
}

impl ProcessClock {
    pub(super) fn of(node: &Node) -> Arc<ProcessClock> {
        Arc::new(ProcessClock { machine: node.clock.clone(), reckoning: Reckoning::default(), ages: node.ages.clone() })
    }

    /// The time by which something may be deleted for its age.
    pub(super) fn of_ages(&self) -> Believed {
        let believed = self.believed();
        *lock(&self.ages.doubted) = believed.doubted();
        if self.ages.believes_all { self.now_ms().into() } else { believed }
    }

    /// Before anything is deleted or appended, as a real start does it.
    pub(super) fn begin_with(&self, log: &Log) {
        self.begin(log.newest_append_ms(self.now_ms()), *lock(&self.ages.doubted));
    }
}

impl Clock for ProcessClock {
    fn now_ms(&self) -> i64 {
        self.machine.now_ms()
    }

    fn monotonic_us(&self) -> u64 {
        self.machine.monotonic_us()
    }

    fn since_boot_us(&self) -> u64 {
        self.machine.since_boot_us()
    }

    fn reckoning(&self) -> &Reckoning {
        &self.reckoning
    }
}

impl World {
    /// The clock of a node is years ahead, until somebody sets it right. Nothing that is kept for a time goes for that.
    pub(super) fn jump_by_years(&mut self, node: u32, lasts_us: u64) {
        let by_ms = (1 + self.below(50)) as i64 * YEAR_MS;
        let clock = &self.node(node).clock;
        clock.set_now_ms(clock.now_ms() + by_ms);
        self.schedule.after(lasts_us, Event::Heal(node, Fault::ClockYears));
    }

    pub(super) fn set_clock_right(&mut self, node: u32) {
        self.node(node).clock.set_now_ms(self.clock.now_ms());
    }

    /// A process has begun while the clock of its machine is ahead, and believes it: it has nothing, or something that was written by that clock before any process had looked at it. Nobody
    /// could know better, and from here on nobody knows when retention takes what.
    pub(super) fn look_at_clock(&mut self, node: u32) {
        let running = self.node(node).process.as_ref().and_then(|process| process.running.as_ref());
        if running.is_some_and(|running| running.clock.believed().now_ms() > self.clock.now_ms() + HOUR_MS) {
            self.told.has_jumped = true;
            *self.events_of.entry("believed a wrong clock").or_default() += 1;
        }
    }
}
