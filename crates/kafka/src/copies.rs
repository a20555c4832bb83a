//! How many copies partitions have, and at which nodes. A topic may get another number while it is written, streamlet by streamlet
//! (`docs/replication.md`, "Another number of copies"): until all have it the topic itself says the number that it had.

use std::collections::BTreeMap;

use kafka_protocol::messages::BrokerId;
use kera_protocol::admin::StreamInfo;

use crate::door::Door;
use crate::numbering::streamlet_of;

/// Nodes that are to have records, and those of them that have them.
pub(crate) type Replicas = (Vec<BrokerId>, Vec<BrokerId>);

/// Where so many copies of what a node leads are, by that node and their number: whatever the topic.
#[derive(Default)]
pub(crate) struct Known(BTreeMap<(i32, u32), Replicas>);

#[cfg(test)]
thread_local! {
    /// How often it was looked up where copies are, which takes a look at all logs of the cluster.
    pub(crate) static LOOKED_UP: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The copies of one topic's partitions. Where they are is looked up once for each leader.
pub(crate) struct Copies<'a> {
    door: &'a Door,
    info: &'a StreamInfo,
    /// How many the topic is to have, while that changes.
    wanted: Option<u32>,
    known: Known,
}

impl<'a> Copies<'a> {
    pub(crate) fn of(door: &'a Door, info: &'a StreamInfo) -> Copies<'a> {
        Copies::with(door, info, Known::default())
    }

    /// The same for one of many topics: with what was looked up for those before.
    pub(crate) fn with(door: &'a Door, info: &'a StreamInfo, known: Known) -> Copies<'a> {
        let wanted = if door.is_in_cluster() { door.coordinator.wanted_copies(info.id) } else { None };
        Copies { door, info, wanted, known }
    }

    /// What was looked up so far.
    pub(crate) fn known(self) -> Known {
        self.known
    }

    /// How many the topic is to have, while that changes: as many as it says, if it is turned back.
    pub(crate) fn wanted(&self) -> Option<u32> {
        self.wanted
    }

    /// How many it has in the end.
    pub(crate) fn in_the_end(&self) -> u32 {
        self.wanted.unwrap_or(self.info.options.replication)
    }

    /// How many a partition has now. Nobody is asked unless that changes.
    pub(crate) fn in_force(&self, partition: i32) -> u32 {
        match self.wanted {
            None => self.info.options.replication,
            Some(_) => {
                let streamlet = streamlet_of(partition.cast_unsigned(), &self.info.options);
                self.door.coordinator.copies_of(self.info.id, streamlet.0)
            }
        }
    }

    /// Where those of a partition are now, by its leader.
    pub(crate) fn replicas(&mut self, partition: i32, leader: i32) -> Replicas {
        self.at(leader, self.in_force(partition))
    }

    /// Where so many copies of what a node leads are, or would be.
    pub(crate) fn at(&mut self, leader: i32, copies: u32) -> Replicas {
        let look_up = || {
            #[cfg(test)]
            LOOKED_UP.set(LOOKED_UP.get() + 1);
            self.door.copies_of(leader, copies)
        };
        self.known.0.entry((leader, copies)).or_insert_with(look_up).clone()
    }
}
