//! Backups, before there are any: streams have one copy, so no broker has a virtual log that others know of, and nobody is asked.

use kera_format::cluster::{LogName, NodeNumber};
use kera_raft::{Backups, Pending};

/// Answers that there is nobody to fence.
pub(super) struct NoBackups;

impl Backups for NoBackups {
    fn fence(
        &self,
        backup: NodeNumber,
        _address: &str,
        _node: NodeNumber,
        _epoch: u32,
        _logs: Vec<(LogName, u64)>,
    ) -> Pending<Vec<(LogName, u64)>> {
        Box::pin(async move { Err(format!("node {backup} keeps no copies yet")) })
    }
}
