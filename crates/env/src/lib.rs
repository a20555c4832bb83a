//! Time, disks and randomness as KerA's logic sees them: traits, the real ones, and ones for tests that forget,
//! tear, fail and repeat.
//!
//! Role logic (log, virtual log, broker, coordinator) takes everything of this kind from here and from nowhere else,
//! so that a test or a simulator can put it through power cuts and full disks and get the same run from the same
//! seed. Nothing here starts a thread.

mod aligned;
mod believed;
mod clock;
mod disk;
mod faulty;
mod folder;
mod lasting;
mod lock;
mod memory;
mod processors;
mod random;
mod real;
mod twice;

pub use aligned::AlignedBuffer;
pub use believed::{Believed, Doubt, Doubted, Reckoning};
pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{
    DISK_ALIGNMENT, DirectIo, Disk, DiskFile, LOST_ERRNOS, OpenMode, is_out_of_means, is_unreadable, read_readable,
};
pub use faulty::FaultyDisk;
pub use folder::Folder;
pub use lasting::{Lasting, Lasts};
pub use lock::{DirLock, LockError};
pub use memory::MemoryDisk;
pub use processors::{MachineProcessors, ProcessorTimes, Processors};
pub use random::{Random, SeededRandom, SystemRandom};
pub use real::{RealDisk, boot_id};
pub use twice::{Both, copy_path, read_twice, replace_twice, replace_with_copy, without_copy, write_copy};
