//! The virtual logs on a node's own disk, for streams with one copy: real ones, whose writers take turns.

use std::sync::Arc;

use kera_env::{Clock, Disk, Folder, Random};
use kera_log::store::DiskStore;
use kera_log::{DurabilitySink, Log, Restored};
use kera_vlog::{Ran, VirtualLog, VirtualLogConfig};

use super::node::{Node, Running, StartError};
use super::world::{Event, World};
use crate::cluster::machine::{Close, WeakSink, restore, small_virtual_log};
use crate::cluster::truth::Violation;

const OWN_LOGS: u32 = 2;

/// Those of a process; none if no stream of the run has one copy.
#[derive(Clone, Default)]
pub(super) struct OwnLogs(Vec<Arc<VirtualLog>>);

impl OwnLogs {
    /// As sinks. `lie`: they say that everything is durable before it is: a defect.
    pub(super) fn sinks(&self, lie: bool) -> Vec<Arc<dyn DurabilitySink>> {
        let sink = |one: &Arc<VirtualLog>| Arc::new(WeakSink::new(one, lie)) as Arc<dyn DurabilitySink>;
        self.0.iter().map(sink).collect()
    }

    /// Before the replay.
    pub(super) fn attach(&self, log: &Arc<Log>, store: &Arc<DiskStore>) {
        for own in &self.0 {
            own.set_closer(Arc::new(Close::new(log)));
            own.set_write_through(store.clone());
        }
    }

    /// What the disk has not taken yet.
    pub(super) fn pending(&self) -> u64 {
        self.0.iter().map(|own| own.stats().pending_references).sum()
    }

    /// A turn of all writers. Whether there may be more to do at once.
    fn step(&self) -> bool {
        self.0.iter().fold(false, |any, own| matches!(own.run_once(), Ran::Wrote { .. }) | any)
    }
}

impl Node {
    pub(super) fn open_own_logs(
        &self,
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        random: &Arc<dyn Random>,
    ) -> Result<OwnLogs, StartError> {
        let folder = Arc::new(Folder::new(Arc::clone(disk), &VirtualLogConfig::new(0, self.id).directory));
        let open = |number| {
            let config = small_virtual_log(number, self.id);
            let opened = VirtualLog::open_in(Arc::clone(&folder), config, Arc::clone(clock), Arc::clone(random));
            opened.map_err(|error| self.why(error))
        };
        let count = if self.has_own_logs { OWN_LOGS } else { 0 };
        Ok(OwnLogs((0..count).map(open).collect::<Result<_, _>>()?))
    }

    /// Brings back what a virtual log has and nobody else.
    pub(super) fn replay(&self, own: &OwnLogs, log: &Log, store: &DiskStore) -> Result<(), StartError> {
        for own in &own.0 {
            let replayed = own.replay(&mut |chunk| match self.leaves_out_own_logs {
                true => Ok(Restored::AlreadyThere),
                false => restore(log, store, &self.clock, (own.virtual_log(), chunk)),
            });
            let report = replayed.map_err(|error| self.why(error))?;
            self.sound(&report.damage.iter().map(|damage| damage.reason.to_string()).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl Running {
    /// A turn of the writers of the virtual logs on the own disk.
    fn step_own_logs(&self) -> bool {
        self.own.step()
    }
}

impl World {
    pub(super) fn run_own_logs(&mut self, node: u32, life: u32) -> Result<(), Violation> {
        let disk_us = self.node(node).disk_us;
        let more = self.node_mut(node).running().is_some_and(|running| running.step_own_logs());
        let pause_us = if more { disk_us + self.below(disk_us) } else { 2_000 + self.below(2_000) };
        self.schedule.after(pause_us, Event::OwnLogs(node, life));
        Ok(())
    }
}
