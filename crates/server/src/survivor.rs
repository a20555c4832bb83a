//! What a node that is stopped has of the coordinators' log, for `kera cluster recover`. Nothing of the node runs, and its data directory is locked.

use std::path::Path;
use std::sync::Arc;

use kera_env::{DirLock, Disk, RealDisk, SystemRandom};
pub use kera_raft::Survivor;

use crate::fatal::Fatal;
use crate::identity::{self, Identity};
use crate::{cluster, node};

/// A node that is stopped.
pub struct StoppedNode {
    /// Its part of the coordinators' log.
    pub survivor: Survivor,
    /// As long as it is held nobody starts the node.
    pub lock: DirLock,
}

impl StoppedNode {
    /// Reads what a data directory has of the coordinators' log. Blocks.
    ///
    /// # Errors
    /// Another process uses the directory, it is not that of a node of a cluster, the node's build is another one, or a file is damaged.
    pub fn open(data: &Path) -> Result<StoppedNode, Fatal> {
        let not_of_a_node = |what: &str| {
            let message = format!("{} {what}", data.display());
            Err(Fatal::not_here(message, "name the data directory of a node of the cluster with --data"))
        };
        if !data.join(identity::FILE).exists() && !data.join(kera_env::copy_path(identity::FILE)).exists() {
            return not_of_a_node("is no data directory of a node");
        }
        let lock = node::lock(data)?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(data).map_err(|error| Fatal::directory(data, error))?);
        let identity = Identity::begin(&*disk, &SystemRandom)?;
        let opened = Survivor::open(disk, identity.node).map_err(|error| cluster::not_opened(data, error))?;
        let Some(survivor) = opened else { return not_of_a_node("is that of a node that knows of no cluster") };
        cluster::check_level(survivor.state().level())?;
        Ok(StoppedNode { survivor, lock })
    }
}
