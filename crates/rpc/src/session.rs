//! What a server is made of, seen from the role that answers: sessions, their factory, and how to wake one.
//!
//! A broker implements [`Session`]; the I/O thread of the connection calls it. One session is only ever called by one
//! thread, so it needs no locks of its own. It must never block: no sleep, no lock that is held across I/O, no disk.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_env::AlignedBuffer;
use kera_protocol::{FrameHeader, ProtocolError};
use tokio::sync::Notify;

use crate::Outbox;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The remote address.
    pub address: SocketAddr,
    /// The connection's number in this server, from 1, never reused.
    pub connection: u64,
    /// The I/O thread it is pinned to, from 0.
    pub io_thread: usize,
}

/// How frames are told apart on the connections of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// KerA's own protocol: a [`FrameHeader`] in front of every frame, and a handshake first.
    #[default]
    Native,
    /// Four bytes, big-endian, say how many follow; no handshake. The session gets a header that says nothing but the length,
    /// everything behind the prefix as body, and answers with [`Outbox::begin_prefixed`]. A peer whose frame is wrong is told
    /// nothing before it is cut, since only the session knows how to.
    Prefixed,
}

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The frame is dealt with (answered, or its answer comes later); go on with the next one.
    Done,
    /// The frame cannot be dealt with yet. It is kept, nothing more is read from the connection, and
    /// [`Session::on_frame`] is called again with the same frame after the session was woken, its
    /// [`deadline_us`](Session::deadline_us) has passed, or the outbox has drained. The session remembers how far it got.
    Blocked,
    /// What is in the outbox is sent, then the connection is closed. The reason goes to the log.
    Close(String),
}

/// Where most of a large frame goes, past the connection's read buffer.
#[derive(Debug)]
pub struct Place {
    /// So many bytes of the body stay in the read buffer, no more than have come.
    pub start_bytes: usize,
    /// The others are appended to it; it has room for them.
    pub buffer: AlignedBuffer,
}

/// One connection's conversation. Called on one thread only, never concurrently.
pub trait Session {
    /// A whole frame has come in. `body` lies in the connection's read buffer and is gone after the call.
    ///
    /// The server has checked that the operation is known, that its version is in range and that the handshake is done;
    /// what the body holds is unchecked. Answers go to `out` now or in a later call, in any order, with the frame's
    /// correlation; frames without an answer (credit) are fine.
    fn on_frame(&mut self, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow;

    /// A large frame has begun, and most of it has not come yet: where it is to go, if not into the read buffer. `start` is what
    /// has come of the body so far; it is unchecked, as all of it will be.
    ///
    /// For bodies that the session would copy to a place of its own anyway: they go there from the socket. May be asked more
    /// than once for the same frame if it answers `None`.
    fn place(&mut self, header: &FrameHeader, start: &[u8]) -> Option<Place> {
        let _ = (header, start);
        None
    }

    /// A frame that was given a [`place`](Session::place) has come in as a whole, instead of [`on_frame`](Session::on_frame): `start` is
    /// what stayed of the body, `rest` is the place with all else. Whoever takes the rest leaves an empty buffer behind; if the
    /// frame is [`Flow::Blocked`] the rest is to stay as it is.
    fn on_placed(&mut self, header: &FrameHeader, start: &[u8], rest: &mut AlignedBuffer, out: &mut Outbox) -> Flow {
        let _ = (header, start, rest, out);
        Flow::Close("a frame was placed that has no place".into())
    }

    /// What the log says of a frame that the server refuses before the session has seen it, as it closes the connection: who sent it, if
    /// the session knows, what is wrong, and the limit.
    fn refused_frame(&self, error: &ProtocolError) -> String {
        error.to_string()
    }

    /// The [`SessionWaker`] was used since the last call. A frame that was [`Flow::Blocked`] is offered again right after.
    fn on_wake(&mut self, out: &mut Outbox);

    /// The outbox was [full](Outbox::is_full) and has drained, to half of its bound or, where all connections of the server were over
    /// theirs, to nothing: a session that holds back pushes because of that goes on with them.
    fn on_drained(&mut self, out: &mut Outbox) {
        self.on_wake(out);
    }

    /// When [`on_deadline`](Session::on_deadline) wants to be called, on the clock of `Clock::monotonic_us`; `None`:
    /// never. Asked after every call into the session. Monotonic, so that a jump of the wall clock delays nobody.
    fn deadline_us(&self) -> Option<u64> {
        None
    }

    /// [`deadline_us`](Session::deadline_us) has passed. A frame that was [`Flow::Blocked`] is offered again right after.
    fn on_deadline(&mut self, now_us: u64, out: &mut Outbox) {
        let _ = now_us;
        self.on_wake(out);
    }

    /// Whether requests are unanswered. A graceful stop waits for these, up to its limit.
    fn is_busy(&self) -> bool {
        false
    }

    /// The server stops gracefully: no frame comes in any more. Waiting reads should be answered now.
    fn on_stop(&mut self, out: &mut Outbox) {
        let _ = out;
    }

    /// The connection is gone. Called exactly once, last.
    fn on_close(&mut self) {}
}

/// Makes the sessions of a server. Called on the I/O thread that the connection is pinned to.
pub trait SessionFactory: Send + Sync {
    /// A connection has been accepted. `waker` wakes the new session, from any thread.
    fn open(&self, peer: Peer, waker: SessionWaker) -> Box<dyn Session>;
}

impl<F> SessionFactory for F
where
    F: Fn(Peer, SessionWaker) -> Box<dyn Session> + Send + Sync,
{
    fn open(&self, peer: Peer, waker: SessionWaker) -> Box<dyn Session> {
        self(peer, waker)
    }
}

/// Wakes one session from any thread. Cheap to clone; wakes that come before the session runs are one.
#[derive(Clone, Debug, Default)]
pub struct SessionWaker {
    inner: Arc<WakeState>,
}

#[derive(Debug, Default)]
struct WakeState {
    pending: AtomicBool,
    notify: Notify,
}

impl SessionWaker {
    /// A waker that wakes nothing until somebody listens: for tests of sessions without a server.
    pub fn detached() -> SessionWaker {
        SessionWaker::default()
    }

    /// Has [`Session::on_wake`] called soon. Never blocks, may be called under a lock. Without effect on a connection
    /// that is gone.
    #[inline]
    pub fn wake(&self) {
        if !self.inner.pending.swap(true, Ordering::AcqRel) {
            self.inner.notify.notify_one();
        }
    }

    /// Whether a wake is pending, which it then no longer is. What happened before the wake is visible to the caller.
    #[inline]
    pub fn take(&self) -> bool {
        self.inner.pending.load(Ordering::Relaxed) && self.inner.pending.swap(false, Ordering::AcqRel)
    }

    /// Completes once a wake is pending.
    pub async fn woken(&self) {
        while !self.inner.pending.load(Ordering::Acquire) {
            self.inner.notify.notified().await;
        }
    }
}
