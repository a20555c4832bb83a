//! What waits to be written to one connection: small answers copied into one buffer, large data as shared [`Bytes`].
//!
//! Sessions fill it, the connection's I/O thread writes it with vectored writes: everything that was answered in one go
//! leaves in one system call. In the steady state nothing is allocated: the buffer of small bytes is used again as soon
//! as it has been written.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use kera_protocol::frame::{FLAG_PUSH, FLAG_RESPONSE};
use kera_protocol::{Body, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Status};

use crate::Framing;
use crate::input::PREFIX_BYTES;

/// Slices of one vectored write.
pub(crate) const SLICES_MAX: usize = 64;
/// A small buffer above this is given back when it is empty.
const SMALL_BYTES_KEPT: usize = 64 << 10;

#[derive(Debug)]
enum Part {
    /// The next so many bytes of the small buffer.
    Small(usize),
    /// Bytes that belong to somebody else, typically to a segment.
    Shared(Bytes),
}

/// The answers of one connection that are not written yet, in order.
///
/// It is bounded softly: nothing is refused, but above the bound the server reads no more from the connection until it
/// has drained, and a session should push no more ([`is_full`](Outbox::is_full)).
#[derive(Debug)]
pub struct Outbox {
    parts: VecDeque<Part>,
    /// Small bytes: up to `small_at` written, up to `small_covered` belonging to parts, the rest comes after all parts.
    small: Vec<u8>,
    small_at: usize,
    small_covered: usize,
    /// Bytes of the first part that are written already, when it is shared.
    front_written: usize,
    /// Bytes of shared parts that are not written yet.
    shared_queued: usize,
    bound: usize,
}

impl Outbox {
    /// An empty outbox that is full from `bound` bytes on.
    pub fn new(bound: usize) -> Outbox {
        Outbox {
            parts: VecDeque::new(),
            small: Vec::new(),
            small_at: 0,
            small_covered: 0,
            front_written: 0,
            shared_queued: 0,
            bound,
        }
    }

    /// Bytes that wait to be written.
    #[inline]
    pub fn queued_bytes(&self) -> usize {
        self.shared_queued + self.small.len() - self.small_at
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queued_bytes() == 0
    }

    /// Whether more waits than the connection's bound: the peer reads too slowly, nothing more should be pushed.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.queued_bytes() >= self.bound
    }

    /// Bytes that may be added before it is full.
    #[inline]
    pub fn room(&self) -> usize {
        self.bound.saturating_sub(self.queued_bytes())
    }

    /// Starts a frame; its `frame_bytes` is filled in by [`FrameWriter::finish`].
    #[inline]
    pub fn begin(&mut self, header: &FrameHeader) -> FrameWriter<'_> {
        let start = self.small.len();
        let undo =
            Undo { parts: self.parts.len(), small_covered: self.small_covered, shared_queued: self.shared_queued };
        self.small.extend_from_slice(&header.to_bytes());
        FrameWriter { outbox: self, start, undo, framing: Framing::Native, finished: false }
    }

    /// Starts a frame of a [`Framing::Prefixed`] connection; its length is filled in by [`FrameWriter::finish`].
    #[inline]
    pub fn begin_prefixed(&mut self) -> FrameWriter<'_> {
        let start = self.small.len();
        let undo =
            Undo { parts: self.parts.len(), small_covered: self.small_covered, shared_queued: self.shared_queued };
        self.small.extend_from_slice(&[0; PREFIX_BYTES]);
        FrameWriter { outbox: self, start, undo, framing: Framing::Prefixed, finished: false }
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
                Part::Shared(bytes) => all.extend_from_slice(&bytes[skip..]),
            }
            skip = 0;
        }
        all.extend_from_slice(&self.small[at..]);
        all
    }

    /// Fills `slices` with what is to be written next and returns how many there are.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
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
                Part::Shared(bytes) => IoSlice::new(&bytes[skip..]),
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
                Some(Part::Shared(bytes)) => {
                    let taken = written.min(bytes.len() - self.front_written);
                    self.front_written += taken;
                    self.shared_queued -= taken;
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

    /// Turns the small bytes at the end into a part, so that a shared one can follow.
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

    /// Appends bytes to the body without copying them.
    #[inline]
    pub fn attach(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outbox.cover();
            self.outbox.shared_queued += bytes.len();
            self.outbox.parts.push_back(Part::Shared(bytes));
        }
    }

    /// Bytes of the body so far.
    pub fn body_bytes(&self) -> usize {
        let shared = self.outbox.shared_queued - self.undo.shared_queued;
        let head = if self.framing == Framing::Native { FRAME_HEADER_BYTES } else { PREFIX_BYTES };
        self.outbox.small.len() - self.start - head + shared
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
    }
}

impl Drop for FrameWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.outbox.parts.truncate(self.undo.parts);
            self.outbox.small.truncate(self.start);
            self.outbox.small_covered = self.undo.small_covered;
            self.outbox.shared_queued = self.undo.shared_queued;
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
        /// A frame: bytes copied, bytes attached, bytes copied; whether it is finished.
        Frame(usize, usize, usize, bool),
        /// So many bytes are written, if there are as many.
        Written(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = || prop_oneof![Just(0_usize), 1..40_usize, Just(40_000)];
        let frame =
            (size(), size(), size(), prop::bool::weighted(0.8)).prop_map(|(a, b, c, d)| Step::Frame(a, b, c, d));
        prop::collection::vec(prop_oneof![frame, (0..50_000_usize).prop_map(Step::Written)], 0..40)
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
            let mut out = Outbox::new(100);
            let (mut expected, mut wire) = (Vec::new(), Vec::new());
            for (i, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Frame(a, b, c, finished) => {
                        let shared = Bytes::from(vec![i as u8 + 1; b]);
                        let mut frame = out.begin(&header(i as u64));
                        frame.body().extend(std::iter::repeat_n(i as u8, a));
                        frame.attach(shared.clone());
                        frame.body().extend(std::iter::repeat_n(i as u8, c));
                        prop_assert_eq!(frame.body_bytes(), a + b + c);
                        if finished {
                            frame.finish();
                            let frame_bytes = (FRAME_HEADER_BYTES + a + b + c) as u32;
                            expected.extend_from_slice(&FrameHeader { frame_bytes, ..header(i as u64) }.to_bytes());
                            expected.extend(std::iter::repeat_n(i as u8, a));
                            expected.extend_from_slice(&shared);
                            expected.extend(std::iter::repeat_n(i as u8, c));
                        }
                    }
                    Step::Written(bytes) => write(&mut out, bytes, &mut wire),
                }
                prop_assert_eq!(out.queued_bytes(), expected.len() - wire.len());
                prop_assert_eq!(out.is_full(), expected.len() - wire.len() >= 100);
                prop_assert_eq!(out.to_vec(), &expected[wire.len()..]);
            }
            write(&mut out, usize::MAX, &mut wire);
            prop_assert!(out.is_empty());
            prop_assert_eq!(wire, expected);
        }
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
