//! How many copies partitions have, and at which nodes. A topic may get another number while it is written, streamlet by streamlet
//! (`docs/replication.md`, "Another number of copies"): until all have it the topic itself says the number that it had.

use std::collections::BTreeMap;

use kafka_protocol::messages::BrokerId;
use kera_protocol::admin::StreamInfo;

use crate::door::Door;
use crate::numbering::streamlet_of;

/// Nodes that are to have records, and those of them that have them.
pub(crate) type Replicas = (Vec<BrokerId>, Vec<BrokerId>);

/// The copies of one topic's partitions. Where they are is looked up once for each leader.
pub(crate) struct Copies<'a> {
    door: &'a Door,
    info: &'a StreamInfo,
    /// How many the topic is to have, while that changes.
    wanted: Option<u32>,
    known: BTreeMap<(i32, u32), Replicas>,
}

impl<'a> Copies<'a> {
    pub(crate) fn of(door: &'a Door, info: &'a StreamInfo) -> Copies<'a> {
        let wanted = if door.is_in_cluster() { door.coordinator.wanted_copies(info.id) } else { None };
        Copies { door, info, wanted, known: BTreeMap::new() }
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
        self.known.entry((leader, copies)).or_insert_with(|| self.door.copies_of(leader, copies)).clone()
    }
}
