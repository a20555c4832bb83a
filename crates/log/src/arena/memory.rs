//! The arena's shared memory: a file, locked and mapped. The one place of this crate that talks to the operating system.
//!
//! Used by [`super::Arena`] only. The mapping starts at an address that is a multiple of 2 MiB and never moves. Nothing here
//! knows what is in the memory; nothing here is called per append.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

const MAPPING_ALIGN: usize = 2 << 20;

/// A file mapped for reading and writing, shared with whoever maps it too.
pub(super) struct SharedMemory {
    file: File,
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that lives as long as the value; who accesses which part of it is the caller's matter.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// Opens or creates the file, and locks it against other processes. `WouldBlock`: another process has it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

impl SharedMemory {
    /// Maps the first `bytes` of the file, which has at least as many.
    pub(super) fn map(file: File, bytes: usize) -> io::Result<SharedMemory> {
        let reserved_bytes = bytes + MAPPING_ALIGN;
        // SAFETY: a reservation of address space at a place of the kernel's choice.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                reserved_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let aligned = reserved.map_addr(|a| a.next_multiple_of(MAPPING_ALIGN));
        // SAFETY: the fixed mapping lies within the reservation above, which nothing else uses.
        let base = unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(aligned, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
        };
        let base = match base {
            Ok(base) => base,
            Err(error) => {
                // SAFETY: the reservation made above, given back whole.
                let _ = unsafe { rustix::mm::munmap(reserved, reserved_bytes) };
                return Err(error.into());
            }
        };
        let non_null =
            |p: *mut std::ffi::c_void| NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mapped at zero"));
        Ok(SharedMemory { file, reserved: non_null(reserved)?, reserved_bytes, base: non_null(base)?, bytes })
    }

    /// The first byte of the file in memory.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Backs a part of the file with memory and maps it, so that writing to it neither faults nor raises a signal. An error
    /// means that there is no memory for it. Whole pages.
    pub(super) fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "populate within the mapping");
        // SAFETY: within the mapping, asserted above; populating does not change contents.
        let populated = unsafe {
            let at = self.base.as_ptr().add(offset).cast();
            rustix::mm::madvise(at, bytes, Advice::LinuxPopulateWrite)
        };
        match populated {
            Ok(()) => Ok(()),
            // Kernels before 5.14 do not know it: have the memory at least, the pages are mapped as they are touched.
            Err(Errno::INVAL) => {
                Ok(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset as u64, bytes as u64)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Maps a part of the file for reading ahead of a walk through it. Best effort.
    pub(super) fn populate_read(&self, offset: usize, bytes: usize) {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            // SAFETY: within the mapping; populating does not change contents.
            let _ =
                unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), bytes, Advice::LinuxPopulateRead) };
        }
    }

    /// Gives the memory behind a part of the file back to the system: it reads as zeros from here on, and has to be
    /// [populated](SharedMemory::populate) before it is written. Whole pages.
    pub(super) fn give_back(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "give back within the mapping");
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset as u64, bytes as u64)?)
    }

    /// Bytes of the machine's memory that the file takes.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.file.metadata().map(|m| m.blocks() * 512).unwrap_or(0)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the reservation and the mapping within it; no reference outlives the arena that owns this.
        let _ = unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
    }
}
