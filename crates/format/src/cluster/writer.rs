//! Writing the bodies of entries.

use super::{LogName, NodeNumber, RaftPlace, RebuildRun};

/// Appends fields to bytes, one after the other.
pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.u32(value.len() as u32).bytes(value.as_bytes())
    }

    pub(super) fn log(&mut self, log: &LogName) -> &mut Self {
        self.u32(log.node).u32(log.epoch).u32(log.log)
    }

    pub(super) fn needs(&mut self, node: NodeNumber, epoch: u32, runs: &[RebuildRun], logs: &[LogName]) {
        self.u32(node).u32(epoch).u32(runs.len() as u32);
        for RebuildRun { stream, first, count, owner_epoch } in runs {
            self.u64(stream.0).u32(*first).u32(*count).u32(*owner_epoch);
        }
        self.u32(logs.len() as u32);
        for log in logs {
            self.log(log);
        }
    }

    pub(super) fn u32_unless_zero(&mut self, value: u32) {
        if value != 0 {
            self.u32(value);
        }
    }

    pub(super) fn members(&mut self, voters: &[Vec<u64>], nodes: &[(u64, String)]) {
        self.u32(voters.len() as u32);
        for list in voters {
            self.u32(list.len() as u32);
            for voter in list {
                self.u64(*voter);
            }
        }
        self.u32(nodes.len() as u32);
        for (node, address) in nodes {
            self.u64(*node).text(address);
        }
    }

    pub(super) fn ends(&mut self, node: NodeNumber, epoch: u32, ends: &[(LogName, u64)]) {
        self.u32(node).u32(epoch).u32(ends.len() as u32);
        for (log, end) in ends {
            self.log(log).u64(*end);
        }
    }

    pub(super) fn place(&mut self, place: &RaftPlace) -> &mut Self {
        self.u64(place.term).u64(place.leader).u64(place.index)
    }
}
