//! Of [`crate::node`]: how copies are, before it was told what is kept of lost nodes.

use super::bodies;
use crate::CopiesDescription;
use crate::codec::wire_struct;

wire_struct! {
    /// [`CopiesDescription`], version 1.
    #[derive(Copy)]
    pub struct CopiesDescriptionV1 {
        /// Virtual logs of this node that other nodes have copies of.
        pub logs: u64,
        /// Bytes of chunks that wait for their copies.
        pub pending_bytes: u64,
        /// Blocks of those logs that are needed and have fewer copies than they should.
        pub under_replicated_blocks: u64,
        /// Bytes of lost brokers that are still to be rebuilt here.
        pub rebuild_left_bytes: u64,
        /// Virtual logs of other nodes of which this one has a copy.
        pub backup_logs: u64,
        /// Bytes of the files of those copies.
        pub backup_bytes: u64,
    }
}

impl From<&CopiesDescription> for CopiesDescriptionV1 {
    fn from(current: &CopiesDescription) -> CopiesDescriptionV1 {
        CopiesDescriptionV1 {
            logs: current.logs,
            pending_bytes: current.pending_bytes,
            under_replicated_blocks: current.under_replicated_blocks,
            rebuild_left_bytes: current.rebuild_left_bytes,
            backup_logs: current.backup_logs,
            backup_bytes: current.backup_bytes,
        }
    }
}

impl From<CopiesDescriptionV1> for CopiesDescription {
    fn from(first: CopiesDescriptionV1) -> CopiesDescription {
        CopiesDescription {
            logs: first.logs,
            pending_bytes: first.pending_bytes,
            under_replicated_blocks: first.under_replicated_blocks,
            rebuild_left_bytes: first.rebuild_left_bytes,
            backup_logs: first.backup_logs,
            backup_bytes: first.backup_bytes,
            lost_logs: 0,
            lost_log_bytes: 0,
        }
    }
}

bodies!(CopiesDescriptionV1);
