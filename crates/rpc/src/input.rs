//! What has been read from one connection and is not handled yet: a buffer in which frames are handled in place.
//!
//! Buffers of one size are shared by the connections of an I/O thread: a connection takes one when there is something to
//! read and gives it back when everything in it is handled, so that an idle connection holds nothing and a busy thread
//! keeps using the same memory, which stays in its cache. What all buffers of a server hold is bounded; a connection that
//! would go over the bound reads into a small buffer instead, which control traffic fits into, and waits with more.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BufMut;
use kera_env::AlignedBuffer;
use kera_protocol::frame::FrameHeader;
use kera_protocol::{FRAME_HEADER_BYTES, ProtocolError};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Framing, Place};

/// Bytes in front of a [`Framing::Prefixed`] frame.
pub(crate) const PREFIX_BYTES: usize = 4;
/// Bytes of a shared buffer: a few large frames, and it fits into a core's own cache.
pub(crate) const POOL_BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a buffer that is not counted: for control traffic when memory is short, and for the start of a frame whose
/// rest does not come.
pub(crate) const SMALL_BUFFER_BYTES: usize = 4 << 10;
/// Of what follows a frame in large memory no more is read with it: it fits into a small buffer, with a header.
const AHEAD_BYTES: usize = SMALL_BUFFER_BYTES - FRAME_HEADER_BYTES;
/// Bytes of free buffers that a thread keeps, oldest out.
const FREE_BYTES_KEPT: usize = 8 << 20;
/// A read is not worth a system call for less room than this, if moving what is in the buffer makes more.
const READ_BYTES_MIN: usize = 64 << 10;
/// Of a frame that gets a place of its own at least so much is yet to come: less is copied for less than a system call costs.
const PLACED_BYTES_MIN: usize = 64 << 10;

/// The bound on what all buffers of a server hold: half of it for shared buffers, half for frames that are larger. They
/// are apart because a connection holds a shared buffer while it waits for a large one: in one pot, connections that all
/// wait for more could hold everything.
///
/// Nobody hangs: shared memory is never waited for, and who waits for large memory holds none
/// ([`make_room`](Input::make_room) gives back what is there first). So all large memory that is taken belongs to connections
/// that wait for something else:
///
/// - for the rest of their frame. That it comes byte by byte is not enough: while others wait ([`Budget::is_waited_for`]) a
///   frame has to be there within a time that its size sets, from when its memory was got; time in which the server does not read it does not count.
/// - for their peer to take answers, since no frame is handled while the outbox is full. Here too it does not help to take
///   them byte by byte: what waits in the outbox has to leave within such a time while others wait.
/// - for the session, which has time limits of its own.
///
/// Then its memory comes back, also if the same connection has a next frame for it, and the line of those that wait moves on, as
/// the largest frame fits into the whole pot. The limits hold for shared memory as well, since who finds none of it waits for
/// large memory. They hold only while somebody waits: a slow line is no offence where there is memory.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    shared: Pot,
    large: Pot,
}

#[derive(Clone, Debug)]
struct Pot {
    permits: Arc<Semaphore>,
    /// Its size, in KiB as its permits are.
    kib: usize,
    /// Connections that stand in line for it.
    waiting: Arc<AtomicUsize>,
}

/// One that stands in line.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(waiting: &Arc<AtomicUsize>) -> Waiting {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(waiting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pot {
    fn new(bytes: usize) -> Pot {
        let kib = bytes.div_ceil(1 << 10).min(Semaphore::MAX_PERMITS);
        Pot { permits: Arc::new(Semaphore::new(kib)), kib, waiting: Arc::default() }
    }

    fn units(bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_many_owned(Self::units(bytes)).ok()
    }

    fn used_bytes(&self) -> u64 {
        (self.kib.saturating_sub(self.permits.available_permits()) as u64) << 10
    }
}

impl Budget {
    /// About `bytes`, and never less than one shared buffer and the largest frame.
    pub(crate) fn new(bytes: usize, frame_bytes_max: usize) -> Budget {
        Budget {
            shared: Pot::new((bytes / 2).max(POOL_BUFFER_BYTES)),
            large: Pot::new((bytes / 2).max(large_bytes(frame_bytes_max))),
        }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.shared.used_bytes() + self.large.used_bytes()
    }

    /// Whether a connection waits for memory.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.large.waiting.load(Ordering::Relaxed) > 0
    }
}

/// The buffer for a frame of `wanted` bytes that a shared one is too small for: with room for the start of the next one.
fn large_bytes(wanted: usize) -> usize {
    (wanted + SMALL_BUFFER_BYTES).next_multiple_of(POOL_BUFFER_BYTES)
}

/// The free buffers of one I/O thread.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    budget: Budget,
}

impl BufferPool {
    pub(crate) fn new(budget: Budget) -> Rc<BufferPool> {
        Rc::new(BufferPool { free: RefCell::default(), budget })
    }

    /// A buffer of exactly so many bytes, the one that was given back last if there is one.
    fn take(&self, bytes: usize) -> Vec<u8> {
        let mut free = self.free.borrow_mut();
        match free.iter().rposition(|buffer| buffer.capacity() == bytes) {
            Some(at) => free.remove(at),
            None => Vec::with_capacity(bytes),
        }
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() < POOL_BUFFER_BYTES {
            return;
        }
        buffer.clear();
        let mut free = self.free.borrow_mut();
        free.push(buffer);
        let mut kept: usize = free.iter().map(Vec::capacity).sum();
        while kept > FREE_BYTES_KEPT {
            kept -= free.remove(0).capacity();
        }
    }
}

/// The first prefixed frame: a header that only says how long it is, and everything behind the prefix.
fn prefixed(bytes: &[u8], frame_bytes_max: usize) -> Result<Option<(FrameHeader, &[u8])>, ProtocolError> {
    let Some(length) = bytes.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let length = i32::from_be_bytes(*length);
    let max = frame_bytes_max.saturating_sub(PREFIX_BYTES);
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= max) else {
        return Err(ProtocolError::FrameSize { bytes: u64::from(length.cast_unsigned()), min: 0, max: max as u64 });
    };
    let frame_bytes = PREFIX_BYTES + length;
    let header = FrameHeader { frame_bytes: frame_bytes as u32, ..FrameHeader::default() };
    Ok(bytes.get(PREFIX_BYTES..frame_bytes).map(|body| (header, body)))
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The frame that has started needs this many bytes of memory, and the server holds too much already.
    NoMemory(usize),
    /// The peer has closed its side.
    End,
}

/// A frame most of which goes somewhere else than into the buffer.
#[derive(Debug)]
struct Placed {
    header: FrameHeader,
    /// Bytes of it that are in the buffer.
    front: usize,
    rest: AlignedBuffer,
    /// Bytes of the rest that have not come yet.
    left: usize,
    _permit: OwnedSemaphorePermit,
}

fn came(read: io::Result<usize>) -> io::Result<Read> {
    match read {
        Ok(0) => Ok(Read::End),
        Ok(bytes) => Ok(Read::Bytes(bytes)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Read::Nothing),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Read::Bytes(0)),
        Err(e) => Err(e),
    }
}

/// One connection's buffer.
#[derive(Debug)]
pub(crate) struct Input {
    pool: Rc<BufferPool>,
    buffer: Vec<u8>,
    /// Where the first byte is that is not handled.
    at: usize,
    permit: Option<OwnedSemaphorePermit>,
    /// The buffer is large memory.
    is_large: bool,
    /// A frame was in this buffer that is handled: the one that it was got for.
    is_used: bool,
    framing: Framing,
    /// The first frame, if it has a place of its own. Nothing behind it is in the buffer then.
    placed: Option<Placed>,
    /// The frame before had one: the next one may be as large, so no more of it than its head is read before it is known.
    reads_little: bool,
}

impl Drop for Input {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

impl Input {
    pub(crate) fn new(pool: Rc<BufferPool>, framing: Framing) -> Input {
        let (buffer, placed) = (Vec::new(), None);
        let (permit, is_large, is_used, reads_little) = (None, false, false, false);
        Input { pool, buffer, at: 0, permit, is_large, is_used, framing, placed, reads_little }
    }

    /// What is not handled yet.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// The first frame, if it is there as a whole.
    #[inline]
    pub(crate) fn frame(&self, frame_bytes_max: usize) -> Result<Option<(FrameHeader, &[u8])>, ProtocolError> {
        let bytes = self.bytes();
        if self.framing == Framing::Prefixed {
            return prefixed(bytes, frame_bytes_max);
        }
        if bytes.len() < FRAME_HEADER_BYTES {
            if bytes.len() >= 4 {
                FrameHeader::parse_length(bytes, frame_bytes_max)?;
            }
            return Ok(None);
        }
        let header = FrameHeader::parse(bytes, frame_bytes_max)?;
        Ok(bytes.get(FRAME_HEADER_BYTES..header.frame_bytes as usize).map(|body| (header, body)))
    }

    /// Whether the first frame has a place of its own.
    #[inline]
    pub(crate) fn is_placed(&self) -> bool {
        self.placed.is_some()
    }

    /// The first frame if it has a place of its own and is there as a whole: its header, what of its body stayed here, all else.
    pub(crate) fn placed(&mut self) -> Option<(FrameHeader, &[u8], &mut AlignedBuffer)> {
        let placed = self.placed.as_mut().filter(|placed| placed.left == 0)?;
        let start = &self.buffer[self.at..][FRAME_HEADER_BYTES..placed.front];
        Some((placed.header, start, &mut placed.rest))
    }

    /// Gives the first frame a place of its own if it is a large one most of which has not come yet, `place` has one, and the
    /// server's budget has room. To be called when [`frame`](Input::frame) had none.
    pub(crate) fn place(&mut self, frame_bytes_max: usize, place: impl FnOnce(&FrameHeader, &[u8]) -> Option<Place>) {
        let bytes = self.bytes();
        if self.placed.is_some() || bytes.len() < FRAME_HEADER_BYTES {
            return;
        }
        let Ok(header) = FrameHeader::parse(bytes, frame_bytes_max) else { return };
        let frame_bytes = header.frame_bytes as usize;
        if frame_bytes.saturating_sub(bytes.len()) < PLACED_BYTES_MIN {
            return;
        }
        let Some(permit) = self.pool.budget.large.try_take(frame_bytes) else { return };
        let Some(Place { start_bytes, buffer: mut rest }) = place(&header, &bytes[FRAME_HEADER_BYTES..]) else {
            return;
        };
        let front = FRAME_HEADER_BYTES + start_bytes;
        let there = bytes.get(front..).expect("a place for what is behind what has come");
        let left = frame_bytes - bytes.len();
        assert!(there.len() + left <= rest.remaining_mut(), "a place has room for what goes there");
        rest.extend_from_slice(there);
        self.buffer.truncate(self.at + front);
        self.placed = Some(Placed { header, front, rest, left, _permit: permit });
    }

    /// The first frame is handled.
    #[inline]
    pub(crate) fn consume(&mut self, frame_bytes: usize) {
        let placed = self.placed.take();
        self.reads_little = placed.is_some();
        self.is_used = true;
        self.at += placed.map_or(frame_bytes, |placed| placed.front);
        debug_assert!(self.at <= self.buffer.len());
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
    }

    /// Whether it holds memory of which the server has no more than so much.
    pub(crate) fn holds_memory(&self) -> bool {
        self.permit.is_some() || self.placed.is_some()
    }

    /// How large the frame is that has started, as far as is known; it has been checked by [`frame`](Input::frame).
    pub(crate) fn wanted_bytes(&self) -> usize {
        match self.bytes().first_chunk::<4>() {
            Some(length) if self.framing == Framing::Prefixed => {
                PREFIX_BYTES + usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0)
            }
            Some(length) => u32::from_le_bytes(*length) as usize,
            None => FRAME_HEADER_BYTES,
        }
    }

    /// Reads once. Called when no whole frame is in the buffer.
    pub(crate) fn read(&mut self, stream: &TcpStream) -> io::Result<Read> {
        if let Some(placed) = &mut self.placed {
            let read = came(stream.try_read_buf(&mut (&mut placed.rest).limit(placed.left)));
            if let Ok(Read::Bytes(bytes)) = read {
                placed.left -= bytes;
            }
            return read;
        }
        let wanted = self.wanted_bytes();
        if let Err(bytes) = self.make_room(wanted) {
            return Ok(Read::NoMemory(bytes));
        }
        let mut room = self.buffer.capacity() - self.buffer.len();
        if self.reads_little && self.bytes().len() < SMALL_BUFFER_BYTES {
            room = room.min(SMALL_BUFFER_BYTES);
        }
        if self.is_large {
            room = room.min((wanted + AHEAD_BYTES).saturating_sub(self.bytes().len()));
        }
        came(stream.try_read_buf(&mut (&mut self.buffer).limit(room)))
    }

    /// Makes room for the rest of a frame of `wanted` bytes, and if possible for more. `Err`: how many bytes are missing in
    /// the server's budget.
    ///
    /// Large memory that is too small for the frame is given back before more is asked for: connections that each wait for more
    /// and keep what they have could hold everything, one connection even by itself. What is in it fits into a small buffer: it
    /// was got for a frame that is handled, and with one no more than [`AHEAD_BYTES`] of what follows are read. The same is done
    /// if what follows is not large, because it would be read in small pieces, and if others wait: who has a next frame each
    /// time would keep it for ever. But never before the frame is handled that memory was got for, or nobody of those who take
    /// turns with it would come any further; and no more once so much of the next frame has come that it does not fit into a small
    /// buffer: who begins to wait then has its turn before the frame behind that.
    fn make_room(&mut self, wanted: usize) -> Result<(), usize> {
        let is_known = self.bytes().len() >= 4;
        let fits = wanted > POOL_BUFFER_BYTES && wanted <= self.buffer.capacity();
        let is_begun = fits && self.bytes().len() > SMALL_BUFFER_BYTES;
        let is_kept = is_begun || fits && !self.pool.budget.is_waited_for();
        if self.is_large && self.is_used && is_known && !is_kept {
            debug_assert!(self.bytes().len() <= SMALL_BUFFER_BYTES);
            self.settle();
        }
        if self.buffer.capacity() < POOL_BUFFER_BYTES {
            if let Some(permit) = self.pool.budget.shared.try_take(POOL_BUFFER_BYTES) {
                self.move_to(self.pool.take(POOL_BUFFER_BYTES), Some(permit), false);
            } else if self.buffer.capacity() < SMALL_BUFFER_BYTES {
                self.move_to(Vec::with_capacity(SMALL_BUFFER_BYTES), None, false);
            }
        }
        if self.buffer.capacity() < wanted {
            let bytes = large_bytes(wanted);
            let permit = self.pool.budget.large.try_take(bytes).ok_or(bytes)?;
            self.grant(bytes, permit);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        if self.at > 0 && (room < READ_BYTES_MIN || self.buffer.capacity() - self.at < wanted) {
            self.buffer.copy_within(self.at.., 0);
            self.buffer.truncate(self.buffer.len() - self.at);
            self.at = 0;
        }
        Ok(())
    }

    fn move_to(&mut self, mut buffer: Vec<u8>, permit: Option<OwnedSemaphorePermit>, is_large: bool) {
        buffer.extend_from_slice(self.bytes());
        self.pool.give_back(std::mem::replace(&mut self.buffer, buffer));
        self.at = 0;
        self.permit = permit;
        (self.is_large, self.is_used) = (is_large, false);
    }

    /// Stands in line for so many bytes of memory; to be followed by [`grant`](Input::grant). Dropped, it gives up its place.
    pub(crate) fn memory(&self, bytes: usize) -> impl Future<Output = OwnedSemaphorePermit> + use<> {
        let large = &self.pool.budget.large;
        let (permits, waiting) = (Arc::clone(&large.permits), Waiting::new(&large.waiting));
        async move {
            let permit = permits.acquire_many_owned(Pot::units(bytes)).await;
            drop(waiting);
            permit.expect("the semaphore is never closed")
        }
    }

    /// Uses large memory that was taken from the budget.
    pub(crate) fn grant(&mut self, bytes: usize, permit: OwnedSemaphorePermit) {
        self.move_to(self.pool.take(bytes), Some(permit), true);
    }

    /// Nothing is coming at the moment: holds on to no more than is needed for what is there.
    pub(crate) fn settle(&mut self) {
        let bytes = self.bytes().len();
        if bytes == 0 {
            self.pool.give_back(std::mem::take(&mut self.buffer));
            self.at = 0;
            self.permit = None;
            self.is_large = false;
        } else if bytes <= SMALL_BUFFER_BYTES && self.permit.is_some() {
            self.move_to(Vec::with_capacity(SMALL_BUFFER_BYTES), None, false);
        }
    }
}
