//! What the coordinator's tests share.

pub(crate) mod changing;
pub(crate) mod copied;
pub(crate) mod finishing;
pub(crate) mod moved;

use std::sync::Arc;

use kera_coordinator::{Coordinator, CoordinatorConfig, OpenError};
use kera_env::{Disk, ManualClock, MemoryDisk};
use kera_format::StreamOptions;
use kera_protocol::CreateStream;

pub(crate) const NODE: [u8; 16] = *b"the node's uuid!";

pub(crate) fn open(disk: &MemoryDisk) -> Result<Coordinator, OpenError> {
    open_on(Arc::new(disk.clone()))
}

pub(crate) fn open_on(disk: Arc<dyn Disk>) -> Result<Coordinator, OpenError> {
    Coordinator::open(&CoordinatorConfig::single(NODE), disk, Arc::new(ManualClock::new(1_000)))
}

pub(crate) fn create(name: &str) -> CreateStream {
    CreateStream { name: name.into(), options: StreamOptions::default(), if_not_exists: false }
}

/// The path of the only file whose name ends so.
pub(crate) fn only_file(disk: &MemoryDisk, suffix: &str) -> String {
    let names = disk.list("catalog").expect("list");
    let mut found = names.iter().filter(|name| name.ends_with(suffix));
    let name = found.next().expect("one file");
    assert_eq!(found.next(), None, "{names:?}");
    format!("catalog/{name}")
}
