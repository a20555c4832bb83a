//! What waits to be written to one connection: small answers copied into one buffer, large data as shared [`Bytes`].
//!
//! Sessions fill it, the connection's I/O thread writes it with vectored writes: everything that was answered in one go
//! leaves in one system call. In the steady state nothing is allocated: the buffer of small bytes is used again as soon
//! as it has been written.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use kera_protocol::frame::{FLAG_PUSH, FLAG_RESPONSE};
use kera_protocol::{Body, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Status};
use tokio::net::TcpStream;

use crate::Framing;
use crate::input::PREFIX_BYTES;
use crate::unsent::Unsent;

/// Slices of one vectored write.
const SLICES_MAX: usize = 64;
/// A small buffer above this is given back when it is empty.
const SMALL_BYTES_KEPT: usize = 64 << 10;
/// A change of less than this is not counted in the server's sum, so that answers that leave at once touch nothing that
/// other threads use.
const COUNTED_BYTES_MIN: usize = 16 << 10;

#[derive(Debug)]
enum Part {
    /// The next so many bytes of the small buffer.
    Small(usize),
    /// Bytes that are not copied: those that belong to a segment, all of which they keep in memory, or the outbox's own.
    Large { bytes: Bytes, is_own: bool },
}

/// The answers of one connection that are not written yet, in order.
///
/// It is bounded softly: nothing is refused, but above the bound the server reads no more from the connection until it
/// has drained, and a session should push no more ([`is_full`](Outbox::is_full)). The same holds for one that is not empty while
/// those of all connections of its server have as much as they may.
#[derive(Debug)]
pub struct Outbox {
    parts: VecDeque<Part>,
    /// Small bytes: up to `small_at` written, up to `small_covered` belonging to parts, the rest comes after all parts.
    small: Vec<u8>,
    small_at: usize,
    small_covered: usize,
    /// Bytes of the first part that are written already, when it is not of the small buffer.
    front_written: usize,
    /// Bytes of shared parts that are not written yet.
    shared_queued: usize,
    /// Bytes of parts of its own that are not written yet.
    own_queued: usize,
    bound: usize,
    /// Somebody was told that it is full, and not yet that it has drained.
    was_full: Cell<bool>,
    /// All bytes that were ever written.
    left: u64,
    /// What all outboxes of the server have, and what of this one is counted there.
    unsent: Arc<Unsent>,
    counted: usize,
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.unsent.count(self.counted, 0);
    }
}

impl Outbox {
    /// An empty outbox that is full from `bound` bytes on, by itself.
    pub fn new(bound: usize) -> Outbox {
        Outbox::counted(bound, Unsent::new(usize::MAX))
    }

    /// An empty outbox that is full from `bound` bytes on, and counted with others.
    pub(crate) fn counted(bound: usize, unsent: Arc<Unsent>) -> Outbox {
        Outbox {
            parts: VecDeque::new(),
            small: Vec::new(),
            small_at: 0,
            small_covered: 0,
            front_written: 0,
            shared_queued: 0,
            own_queued: 0,
            bound,
            was_full: Cell::new(false),
            left: 0,
            unsent,
            counted: 0,
        }
    }

    /// Bytes that wait to be written.
    #[inline]
    pub fn queued_bytes(&self) -> usize {
        self.shared_queued + self.own_queued + self.small.len() - self.small_at
    }

    /// Bytes of memory that it has beside the segments, what is written of them and not given back included.
    #[inline]
    fn own_bytes(&self) -> usize {
        let is_own = matches!(self.parts.front(), Some(Part::Large { is_own: true, .. }));
        self.own_queued + self.small.len() + if is_own { self.front_written } else { 0 }
    }

    /// The same, if nothing were in segments.
    pub(crate) fn all_bytes(&self) -> usize {
        self.own_bytes() + self.shared_queued
    }

    /// All bytes that were ever written.
    #[inline]
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left
    }

    /// Whether it keeps segments in memory.
    #[inline]
    pub(crate) fn has_shared(&self) -> bool {
        self.shared_queued > 0
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queued_bytes() == 0
    }

    /// Whether more waits than the connection's bound, or anything while the server's connections together are over theirs: the
    /// peer reads too slowly, nothing more should be pushed. Who is told so is told when that has changed
    /// ([`Session::on_drained`](crate::Session::on_drained)).
    #[inline]
    pub fn is_full(&self) -> bool {
        let is_full = self.queued_bytes() >= self.bound || self.is_held_up();
        if is_full {
            self.was_full.set(true);
        }
        is_full
    }

    /// Whether what waits has to leave before anything more is made, because others have too much.
    #[inline]
    fn is_held_up(&self) -> bool {
        !self.is_empty() && self.unsent.is_over()
    }

    /// Whether it has room again after somebody was told that it is full. Says so once.
    ///
    /// It remembers what was said, and does not look whether it is full now: the server's sum changes on other threads at any
    /// time, and a session that holds back because of it would never hear that it may go on.
    #[inline]
    pub(crate) fn has_drained(&mut self) -> bool {
        self.was_full.get()
            && self.queued_bytes() <= self.bound / 2
            && !self.is_held_up()
            && self.was_full.replace(false)
    }

    /// Starts a frame; its `frame_bytes` is filled in by [`FrameWriter::finish`].
    #[inline]
    pub fn begin(&mut self, header: &FrameHeader) -> FrameWriter<'_> {
        let start = self.small.len();
        let undo = self.undo();
        self.small.extend_from_slice(&header.to_bytes());
        FrameWriter { outbox: self, start, undo, framing: Framing::Native, finished: false }
    }

    /// Starts a frame of a [`Framing::Prefixed`] connection; its length is filled in by [`FrameWriter::finish`].
    #[inline]
    pub fn begin_prefixed(&mut self) -> FrameWriter<'_> {
        let start = self.small.len();
        let undo = self.undo();
        self.small.extend_from_slice(&[0; PREFIX_BYTES]);
        FrameWriter { outbox: self, start, undo, framing: Framing::Prefixed, finished: false }
    }

    fn undo(&self) -> Undo {
        let (parts, small_covered) = (self.parts.len(), self.small_covered);
        Undo { parts, small_covered, shared_queued: self.shared_queued, own_queued: self.own_queued }
    }

    /// Answers `request` with `body`.
    pub fn respond<B: Body>(&mut self, request: &FrameHeader, body: &B) {
        let mut frame = self.begin(&request.response(Status::Ok as u16));
        body.encode(request.version, frame.body());
        frame.finish();
    }

    /// Answers `request` with an error.
    pub fn error(&mut self, request: &FrameHeader, status: Status, error: &ErrorBody) {
        let mut frame = self.begin(&request.response(status as u16));
        error.encode(frame.body());
        frame.finish();
    }

    /// Starts a frame that is pushed to the subscription that `request` opened.
    #[inline]
    pub fn begin_push(&mut self, request: &FrameHeader, status: Status) -> FrameWriter<'_> {
        let header = FrameHeader { flags: FLAG_RESPONSE | FLAG_PUSH, ..request.response(status as u16) };
        self.begin(&header)
    }

    /// Everything that waits, copied: for tests of sessions without a server.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.queued_bytes());
        let mut at = self.small_at;
        let mut skip = self.front_written;
        for part in &self.parts {
            match part {
                Part::Small(bytes) => {
                    all.extend_from_slice(&self.small[at..at + bytes]);
                    at += bytes;
                }
                Part::Large { bytes, .. } => all.extend_from_slice(&bytes[skip..]),
            }
            skip = 0;
        }
        all.extend_from_slice(&self.small[at..]);
        all
    }

    /// Writes what waits, as far as the socket takes it, until no byte is `left` of those that a turn may move. `written` is called with the bytes of each write.
    pub(crate) fn write_to(
        &mut self,
        stream: &TcpStream,
        left: &mut usize,
        mut written: impl FnMut(usize),
    ) -> io::Result<()> {
        while !self.is_empty() && *left > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.slices(&mut slices);
            match stream.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.advance(bytes);
                    written(bytes);
                    *left = left.saturating_sub(bytes);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Fills `slices` with what is to be written next and returns how many there are.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        let mut at = self.small_at;
        let mut skip = self.front_written;
        for part in &self.parts {
            if count == SLICES_MAX {
                return count;
            }
            slices[count] = match part {
                Part::Small(bytes) => {
                    at += bytes;
                    IoSlice::new(&self.small[at - bytes..at])
                }
                Part::Large { bytes, .. } => IoSlice::new(&bytes[skip..]),
            };
            count += 1;
            skip = 0;
        }
        if self.small.len() > at && count < SLICES_MAX {
            slices[count] = IoSlice::new(&self.small[at..]);
            count += 1;
        }
        count
    }

    /// `written` bytes have left.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.left += written as u64;
        while written > 0 {
            match self.parts.front_mut() {
                Some(Part::Small(bytes)) => {
                    let taken = written.min(*bytes);
                    self.small_at += taken;
                    *bytes -= taken;
                    written -= taken;
                    if *bytes > 0 {
                        break;
                    }
                }
                Some(Part::Large { bytes, is_own }) => {
                    let queued = if *is_own { &mut self.own_queued } else { &mut self.shared_queued };
                    let taken = written.min(bytes.len() - self.front_written);
                    self.front_written += taken;
                    *queued -= taken;
                    written -= taken;
                    if self.front_written < bytes.len() {
                        break;
                    }
                    self.front_written = 0;
                }
                None => {
                    self.small_at += written;
                    self.small_covered = self.small_at;
                    break;
                }
            }
            self.parts.pop_front();
        }
        self.reclaim();
        self.count();
    }

    /// Tells the server's sum how much is its own now.
    #[inline]
    fn count(&mut self) {
        let own = self.own_bytes();
        if own.abs_diff(self.counted) >= COUNTED_BYTES_MIN || (own == 0 && self.counted > 0) {
            self.unsent.count(self.counted, own);
            self.counted = own;
        }
    }

    /// Copies what waits out of the segments that it belongs to, so that they can leave memory, as far as the server's sum has room. False if some
    /// is left in segments.
    ///
    /// A few bytes keep a whole segment, and one answer may have bytes of hundreds: a peer that does not take it would keep
    /// the arena from producers, with an outbox that is far from full. One that reads is gone before, and costs no copy.
    pub(crate) fn detach(&mut self) -> bool {
        let mut copied = Vec::new();
        // The front part is copied without what is written of it.
        let mut written = self.front_written;
        for part in std::mem::take(&mut self.parts) {
            match part {
                Part::Large { bytes, is_own: false } if self.unsent.try_add(bytes.len() - written) => {
                    let waits = &bytes[written..];
                    self.counted += waits.len();
                    self.own_queued += waits.len();
                    self.shared_queued -= waits.len();
                    self.front_written -= written;
                    copied.extend_from_slice(waits);
                }
                kept => {
                    self.push_copied(&mut copied);
                    self.parts.push_back(kept);
                }
            }
            written = 0;
        }
        self.push_copied(&mut copied);
        !self.has_shared()
    }

    fn push_copied(&mut self, copied: &mut Vec<u8>) {
        if !copied.is_empty() {
            let bytes = Bytes::from(std::mem::take(copied).into_boxed_slice());
            self.parts.push_back(Part::Large { bytes, is_own: true });
        }
    }

    /// Gets rid of small bytes that are written.
    fn reclaim(&mut self) {
        if self.small_at == self.small.len() {
            if self.small.capacity() > SMALL_BYTES_KEPT {
                self.small = Vec::new();
            }
            self.small.clear();
            self.small_at = 0;
            self.small_covered = 0;
        } else if self.small_at >= SMALL_BYTES_KEPT && self.small_at > self.small.len() / 2 {
            self.small.drain(..self.small_at);
            self.small_covered -= self.small_at;
            self.small_at = 0;
        }
    }

    /// Turns the small bytes at the end into a part, so that a large one can follow.
    fn cover(&mut self) {
        let bytes = self.small.len() - self.small_covered;
        if bytes > 0 {
            self.parts.push_back(Part::Small(bytes));
            self.small_covered = self.small.len();
        }
    }
}

#[derive(Debug)]
struct Undo {
    parts: usize,
    small_covered: usize,
    shared_queued: usize,
    own_queued: usize,
}

/// A frame being written into an [`Outbox`]. Dropped without [`finish`](FrameWriter::finish) it leaves no trace.
#[derive(Debug)]
#[must_use = "a frame that is not finished is not sent"]
pub struct FrameWriter<'a> {
    outbox: &'a mut Outbox,
    start: usize,
    undo: Undo,
    framing: Framing,
    finished: bool,
}

impl FrameWriter<'_> {
    /// The buffer that the body goes to: the caller appends, and leaves alone what is there (earlier frames).
    #[inline]
    pub fn body(&mut self) -> &mut Vec<u8> {
        &mut self.outbox.small
    }

    /// Appends bytes that belong to somebody else, typically to a segment, to the body without copying them. A server copies
    /// them if the peer does not take them soon.
    #[inline]
    pub fn attach(&mut self, bytes: Bytes) {
        self.outbox.shared_queued += bytes.len();
        self.push(bytes, false);
    }

    /// Appends bytes to the body, without copying them, that take memory for this answer alone: they count as those of the
    /// [`body`](FrameWriter::body) do.
    pub fn attach_own(&mut self, bytes: Bytes) {
        self.outbox.own_queued += bytes.len();
        self.push(bytes, true);
    }

    #[inline]
    fn push(&mut self, bytes: Bytes, is_own: bool) {
        if !bytes.is_empty() {
            self.outbox.cover();
            self.outbox.parts.push_back(Part::Large { bytes, is_own });
        }
    }

    /// Bytes of the body so far.
    pub fn body_bytes(&self) -> usize {
        let large = self.outbox.shared_queued + self.outbox.own_queued - self.undo.shared_queued - self.undo.own_queued;
        let head = if self.framing == Framing::Native { FRAME_HEADER_BYTES } else { PREFIX_BYTES };
        self.outbox.small.len() - self.start - head + large
    }

    /// Completes the frame: it will be sent.
    #[inline]
    pub fn finish(mut self) {
        let body_bytes = self.body_bytes();
        let length = match self.framing {
            Framing::Native => ((FRAME_HEADER_BYTES + body_bytes) as u32).to_le_bytes(),
            Framing::Prefixed => (body_bytes as u32).to_be_bytes(),
        };
        self.outbox.small[self.start..self.start + 4].copy_from_slice(&length);
        self.finished = true;
        self.outbox.count();
    }
}

impl Drop for FrameWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.outbox.parts.truncate(self.undo.parts);
            self.outbox.small.truncate(self.start);
            self.outbox.small_covered = self.undo.small_covered;
            self.outbox.shared_queued = self.undo.shared_queued;
            self.outbox.own_queued = self.undo.own_queued;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::Op;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// A frame: bytes copied, bytes attached of a segment, of its own, bytes copied; whether it is finished.
        Frame(usize, usize, usize, usize, bool),
        /// So many bytes are written, if there are as many.
        Written(usize),
        Detached,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = || prop_oneof![Just(0_usize), 1..40_usize, Just(40_000)];
        let frame = (size(), size(), size(), size(), prop::bool::weighted(0.8))
            .prop_map(|(a, b, c, d, e)| Step::Frame(a, b, c, d, e));
        let written = (0..50_000_usize).prop_map(Step::Written);
        prop::collection::vec(prop_oneof![4 => frame, 4 => written, 1 => Just(Step::Detached)], 0..40)
    }

    fn header(correlation: u64) -> FrameHeader {
        FrameHeader { op: Op::NodeStatus as u16, version: 1, correlation, ..FrameHeader::default() }
    }

    /// What vectored writes would put on the wire.
    fn write(out: &mut Outbox, mut bytes: usize, wire: &mut Vec<u8>) {
        while bytes > 0 && !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = out.slices(&mut slices);
            let mut written = 0;
            for slice in &slices[..count] {
                let taken = slice.len().min(bytes - written);
                wire.extend_from_slice(&slice[..taken]);
                written += taken;
            }
            bytes -= written;
            out.advance(written);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn writes_what_was_put_in_whatever_the_socket_takes(steps in steps()) {
            let unsent = Unsent::new(usize::MAX);
            let mut out = Outbox::counted(100, Arc::clone(&unsent));
            let (mut expected, mut wire) = (Vec::new(), Vec::new());
            for (i, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Frame(a, b, own, c, finished) => {
                        let shared = Bytes::from(vec![i as u8 + 1; b]);
                        let mut frame = out.begin(&header(i as u64));
                        frame.body().extend(std::iter::repeat_n(i as u8, a));
                        frame.attach(shared.clone());
                        frame.attach_own(Bytes::from(vec![i as u8 + 2; own]));
                        frame.body().extend(std::iter::repeat_n(i as u8, c));
                        prop_assert_eq!(frame.body_bytes(), a + b + own + c);
                        if finished {
                            frame.finish();
                            let frame_bytes = (FRAME_HEADER_BYTES + a + b + own + c) as u32;
                            expected.extend_from_slice(&FrameHeader { frame_bytes, ..header(i as u64) }.to_bytes());
                            expected.extend(std::iter::repeat_n(i as u8, a));
                            expected.extend_from_slice(&shared);
                            expected.extend(std::iter::repeat_n(i as u8 + 2, own));
                            expected.extend(std::iter::repeat_n(i as u8, c));
                        }
                    }
                    Step::Written(bytes) => write(&mut out, bytes, &mut wire),
                    Step::Detached => {
                        prop_assert!(out.detach());
                        prop_assert!(!out.has_shared());
                    }
                }
                prop_assert!(unsent.bytes().abs_diff(out.own_bytes()) < COUNTED_BYTES_MIN);
                prop_assert_eq!(out.left_bytes(), wire.len() as u64);
                prop_assert_eq!(out.queued_bytes(), expected.len() - wire.len());
                prop_assert_eq!(out.is_full(), expected.len() - wire.len() >= 100);
                prop_assert_eq!(out.to_vec(), &expected[wire.len()..]);
            }
            write(&mut out, usize::MAX, &mut wire);
            prop_assert!(out.is_empty());
            prop_assert_eq!(wire, expected);
            prop_assert_eq!(unsent.bytes(), 0);
        }
    }

    /// Bytes of a segment, and how many know of it.
    fn of_segment(bytes: usize) -> (Bytes, Arc<Vec<u8>>) {
        #[derive(Clone)]
        struct Slice(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Slice {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let segment = Arc::new(vec![7; bytes]);
        (Bytes::from_owner(Slice(Arc::clone(&segment))), segment)
    }

    fn attach(out: &mut Outbox, bytes: Bytes) {
        let mut frame = out.begin(&header(1));
        frame.attach(bytes);
        frame.finish();
    }

    #[test]
    fn what_is_detached_keeps_no_segment_and_does_not_pass_the_sum() {
        let unsent = Unsent::new(100_000);
        let [mut first, mut second] = [(); 2].map(|()| Outbox::counted(1 << 20, Arc::clone(&unsent)));
        let (bytes, segment) = of_segment(60_000);
        attach(&mut first, bytes.clone());
        attach(&mut second, bytes);
        assert_eq!((Arc::strong_count(&segment), unsent.bytes()), (2, 0), "one slice that both share");
        first.advance(10_000);
        let before = first.to_vec();
        assert!(first.detach());
        assert_eq!((first.to_vec(), first.has_shared()), (before, false));
        assert!(!second.detach(), "there is no room for both");
        assert!(second.has_shared());
        drop(first);
        assert_eq!(unsent.bytes(), 0);
        assert!(second.detach());
        assert_eq!(Arc::strong_count(&segment), 1);
    }

    #[test]
    fn of_what_does_not_fit_into_the_sum_as_much_is_detached_as_fits() {
        let unsent = Unsent::new(100_000);
        let mut out = Outbox::counted(1 << 20, Arc::clone(&unsent));
        let segments = [50_000, 70_000, 30_000, 35_000].map(|bytes| {
            let (bytes, segment) = of_segment(bytes);
            attach(&mut out, bytes);
            segment
        });
        let kept = || segments.each_ref().map(|segment| Arc::strong_count(segment) > 1);
        out.advance(FRAME_HEADER_BYTES + 10_000);
        let before = out.to_vec();
        assert!(!out.detach());
        assert_eq!(out.to_vec(), before);
        assert_eq!((kept(), unsent.bytes()), ([false, true, false, true], 70_000));
        // The first of those that are left is in front now, and has been taken in part.
        out.advance(40_000 + FRAME_HEADER_BYTES + 40_000);
        let before = out.to_vec();
        assert!(out.detach());
        assert_eq!((out.to_vec(), kept()), (before, [false; 4]));
        out.advance(out.queued_bytes());
        assert_eq!(unsent.bytes(), 0);
    }

    #[test]
    fn beyond_the_sum_it_is_full_until_it_is_empty_and_says_once_that_it_has_drained() {
        let unsent = Unsent::new(100_000);
        let mut out = Outbox::counted(1 << 20, Arc::clone(&unsent));
        out.begin(&header(1)).finish();
        assert!(!out.is_full() && !out.has_drained());
        unsent.count(0, 100_000);
        assert!(out.is_full() && !out.has_drained());
        // Others have drained in between.
        unsent.count(100_000, 0);
        assert!(!out.is_full() && out.has_drained() && !out.has_drained());
        unsent.count(0, 100_000);
        assert!(out.is_full());
        out.advance(out.queued_bytes());
        assert!(!out.is_full() && out.has_drained());
    }

    #[test]
    fn memory_is_given_back_when_everything_is_written() {
        let mut out = Outbox::new(1 << 20);
        let mut frame = out.begin(&header(1));
        frame.body().resize(SMALL_BYTES_KEPT * 4, 0);
        frame.finish();
        out.advance(out.queued_bytes());
        assert!(out.small.capacity() <= SMALL_BYTES_KEPT);
    }
}
