//! One connection of a server: a task on the I/O thread it is pinned to, which reads, calls the session and writes.
//!
//! The task works in turns. A turn does everything that can be done without waiting: offer the frames that are in the
//! buffer to the session, write what it answered with one vectored write, read more. It ends when the socket or the session
//! has to be waited for, or when it has moved so many bytes that the other connections of the thread must have theirs.
//! Nothing here is allocated per frame, and no frame is copied.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::frame::FrameHeader;
use kera_protocol::{Body, ErrorBody, Hello, Op, ProtocolError, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use crate::input::{BufferPool, Input, Read};
use crate::outbox::Outbox;
use crate::server::Shared;
use crate::unsent::{Taking, time_for};
use crate::{Flow, Framing, Peer, Session, SessionFactory, SessionWaker};

/// What tells that the peer has closed its side while nothing is to be read: on Linux tokio tells so to who is interested in
/// priority, which no socket here ever has. Elsewhere it is noticed when there is memory.
#[cfg(target_os = "linux")]
const END_OF_INPUT: Interest = Interest::PRIORITY;
#[cfg(not(target_os = "linux"))]
const END_OF_INPUT: Interest = Interest::ERROR;
/// Bytes read and written in one turn before other connections have theirs.
const TURN_BYTES: usize = 512 << 10;
/// The largest frame before the handshake is done: whoever is not a client announces nonsense here.
const HANDSHAKE_FRAME_BYTES_MAX: usize = 4 << 10;
/// A session's deadline that does not move when it is called is not called again sooner than this.
const DEADLINE_PAUSE: Duration = Duration::from_millis(1);
/// A wait that ends so long after it was to end: the process was stopped, or its machine, and took and gave nothing meanwhile.
const LATE: Duration = Duration::from_secs(1);
/// While a frame has memory no wait is meant to be longer: a stop is seen only if a time has passed in it that was set before.
const FRAME_WAIT: Duration = Duration::from_secs(1);
/// How long, and how many bytes, a connection that was told why it is closed may go on sending before it is cut. Cut at
/// once, it would lose what it was told.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;

/// Why handling frames stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// No whole frame is in the buffer.
    Input,
    /// Too much waits to be written.
    Full,
    /// The session cannot deal with the first frame yet.
    Blocked,
    /// The connection is to be closed, or the server stops.
    Closing,
}

/// What a turn ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Yield,
    Wait(Waits),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Waits {
    read: bool,
    write: bool,
    /// Bytes of memory for a frame.
    memory: Option<usize>,
}

/// A place in the line for memory, which lasts while other things happen on the connection.
struct Wanted {
    bytes: usize,
    permit: Pin<Box<dyn Future<Output = OwnedSemaphorePermit>>>,
}

/// What ended a wait.
enum Event {
    Woken,
    Ready(io::Result<tokio::io::Ready>),
    Memory(OwnedSemaphorePermit),
    Timer,
}

/// Why and how the connection is closed.
#[derive(Debug)]
struct Closing {
    reason: String,
    /// The peer broke the rules and is told so.
    rejected: bool,
}

#[derive(Debug, Default)]
struct Counts {
    frames_in: u64,
    bytes_in: u64,
    bytes_out: u64,
}

pub(crate) struct Serving {
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: Peer,
    session: Box<dyn Session>,
    waker: SessionWaker,
    input: Input,
    out: Outbox,
    greeted: bool,
    framing: Framing,
    /// The first frame of the input was [`Flow::Blocked`] and nothing has happened since.
    blocked: bool,
    /// The first frame of the input has been offered before: also while stopping it is brought to its end.
    begun: bool,
    stopping: bool,
    closing: Option<Closing>,
    counts: Counts,
    memory: Option<Wanted>,
    /// The peer has closed its side, and the whole frame that waits for memory is in the socket.
    has_ended: bool,
    opened_at: Instant,
    /// When bytes last came in, while they were waited for; when some last left.
    read_at: Instant,
    wrote_at: Instant,
    has_read: bool,
    has_written: bool,
    /// When the first frame of the input had begun, and its memory had been got, but for the time in which nothing was read here; `None` while there is no
    /// memory of it.
    frame_at: Option<Instant>,
    /// When times were noted last, whether it was waited for input then, and until when at most.
    noted_at: Instant,
    has_waited_for_input: bool,
    due_at: Option<Instant>,
    is_next_frame: bool,
    /// How the peer takes what waits, if something does.
    taking: Option<Taking>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.session.on_close();
        self.publish_counts();
    }
}

impl Serving {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stream: TcpStream,
        peer: Peer,
        factory: &dyn SessionFactory,
        waker: SessionWaker,
        pool: Rc<BufferPool>,
    ) -> Serving {
        let now = Instant::now();
        let framing = shared.config.framing;
        Serving {
            session: factory.open(peer, waker.clone()),
            out: Outbox::counted(shared.config.outbox_bytes_max, Arc::clone(&shared.unsent)),
            shared,
            stream,
            peer,
            waker,
            input: Input::new(pool, framing),
            greeted: framing == Framing::Prefixed,
            framing,
            blocked: false,
            begun: false,
            memory: None,
            has_ended: false,
            opened_at: now,
            stopping: false,
            closing: None,
            counts: Counts::default(),
            read_at: now,
            wrote_at: now,
            has_read: false,
            has_written: false,
            frame_at: None,
            noted_at: now,
            has_waited_for_input: true,
            due_at: None,
            is_next_frame: false,
            taking: None,
        }
    }

    /// Serves until the connection is closed by either side, breaks, or the server stops.
    pub(crate) async fn run(mut self) {
        let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut armed = None;
        let end = loop {
            match self.turn() {
                Ok(Next::End) => break Ok(()),
                Ok(Next::Yield) => {
                    self.publish_counts();
                    tokio::task::yield_now().await;
                }
                Ok(Next::Wait(waits)) => {
                    self.publish_counts();
                    if let Err(e) = self.wait(waits, &mut timer, &mut armed).await {
                        break Err(e);
                    }
                }
                Err(e) => break Err(e),
            }
        };
        match (end, &self.closing) {
            (Ok(()), Some(closing)) if closing.rejected => {
                self.shared.rejected(&self.peer, &closing.reason);
                linger(&mut self.stream).await;
            }
            (Ok(()), Some(closing)) => {
                tracing::debug!(peer = %self.peer.address, reason = closing.reason, "connection closed");
                let _ = self.stream.shutdown().await;
            }
            (Ok(()), None) => tracing::debug!(peer = %self.peer.address, "connection closed by the peer"),
            (Err(e), _) => tracing::debug!(peer = %self.peer.address, error = %e, "connection lost"),
        }
    }

    /// Does what can be done without waiting.
    fn turn(&mut self) -> io::Result<Next> {
        let mut left = TURN_BYTES;
        loop {
            self.wakes();
            let stopped = self.frames();
            self.write(&mut left)?;
            if self.out.has_drained() {
                self.blocked = false;
                self.session.on_drained(&mut self.out);
                if left > 0 {
                    continue;
                }
            }
            // Before it may end: what has drained just now may set a frame free that is to be brought to its end.
            if left == 0 {
                return Ok(Next::Yield);
            }
            if self.out.is_empty() && (self.closing.is_some() || self.stopping && !self.session.is_busy()) {
                return Ok(Next::End);
            }
            let write = !self.out.is_empty();
            match stopped {
                Stopped::Full if !self.out.is_full() => continue,
                Stopped::Full | Stopped::Blocked | Stopped::Closing => {
                    return Ok(Next::Wait(Waits { write, ..Waits::default() }));
                }
                Stopped::Input => self.place(),
            }
            match self.input.read(&self.stream)? {
                Read::Bytes(bytes) => {
                    self.has_read = true;
                    self.counts.bytes_in += bytes as u64;
                    left = left.saturating_sub(bytes);
                }
                Read::Nothing => return Ok(Next::Wait(Waits { read: true, write, memory: None })),
                Read::NoMemory(bytes) => {
                    return Ok(Next::Wait(Waits { read: false, write, memory: Some(bytes) }));
                }
                Read::End => return Ok(Next::End),
            }
        }
    }

    /// Tells the session that it was woken, or that the server stops.
    fn wakes(&mut self) {
        if !self.waker.take() {
            return;
        }
        if !self.stopping && self.shared.stopping.load(Ordering::Acquire) {
            self.stopping = true;
            self.session.on_stop(&mut self.out);
        }
        self.blocked = false;
        self.session.on_wake(&mut self.out);
    }

    fn frame_bytes_max(&self) -> usize {
        if self.greeted { self.shared.config.hello.frame_bytes_max as usize } else { HANDSHAKE_FRAME_BYTES_MAX }
    }

    /// Asks the session where the rest of a large frame is to go.
    fn place(&mut self) {
        if self.framing == Framing::Native && self.greeted && !self.stopping {
            let (limit, session) = (self.frame_bytes_max(), &mut self.session);
            self.input.place(limit, |header, start| is_spoken(header).then(|| session.place(header, start)).flatten());
        }
    }

    /// Offers frames to the session until something stops it.
    fn frames(&mut self) -> Stopped {
        loop {
            if self.blocked {
                return Stopped::Blocked;
            }
            if self.closing.is_some() || self.stopping && !self.begun {
                return Stopped::Closing;
            }
            if self.out.is_full() {
                return Stopped::Full;
            }
            let limit = self.frame_bytes_max();
            let (header, flow) = if self.input.is_placed() {
                let Some((header, start, rest)) = self.input.placed() else { return Stopped::Input };
                (header, self.session.on_placed(&header, start, rest, &mut self.out))
            } else {
                let (header, body) = match self.input.frame(limit) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Stopped::Input,
                    Err(e) => {
                        self.reject(&e);
                        continue;
                    }
                };
                let is_sessions = self.framing == Framing::Prefixed || self.greeted && is_spoken(&header);
                let flow = match is_sessions {
                    true => self.session.on_frame(&header, body, &mut self.out),
                    false => unusual_frame(&self.shared, &mut self.greeted, &header, body, &mut self.out),
                };
                (header, flow)
            };
            match flow {
                Flow::Done => {}
                Flow::Blocked => {
                    self.blocked = true;
                    self.begun = true;
                    return Stopped::Blocked;
                }
                Flow::Close(reason) => {
                    let rejected = self.framing == Framing::Prefixed || !self.greeted || header.is_response();
                    self.closing = Some(Closing { reason, rejected });
                }
            }
            self.begun = false;
            self.counts.frames_in += 1;
            self.input.consume(header.frame_bytes as usize);
            self.is_next_frame = true;
        }
    }

    /// Tells the peer what is wrong with its frame, whose header may be all there is, and closes.
    fn reject(&mut self, error: &ProtocolError) {
        if self.framing == Framing::Prefixed {
            self.closing = Some(Closing { reason: self.session.refused_frame(error), rejected: true });
            return;
        }
        let mut header = FrameHeader::default();
        if let Some(bytes) = self.input.bytes().first_chunk::<16>() {
            header.op = u16::from_le_bytes([bytes[4], bytes[5]]);
            header.version = bytes[6];
            header.correlation = u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"));
        }
        let message = ErrorBody::new(format!("{error}; the connection is closed"));
        self.out.error(&header, error.status(), &message);
        self.closing = Some(Closing { reason: error.to_string(), rejected: true });
    }

    /// Writes what waits, as far as the socket takes it.
    fn write(&mut self, left: &mut usize) -> io::Result<()> {
        self.out.write_to(&self.stream, left, |bytes| {
            self.has_written = true;
            self.counts.bytes_out += bytes as u64;
        })
    }

    /// Waits for the first thing that lets the next turn get on. An error ends the connection.
    async fn wait(&mut self, waits: Waits, timer: &mut Pin<Box<Sleep>>, armed: &mut Option<Instant>) -> io::Result<()> {
        if waits.read {
            self.input.settle();
        }
        self.line_up_for_memory(waits.memory);
        let now = Instant::now();
        self.note_times(waits, now);
        let until = self.next_deadline(now);
        if until.is_some_and(|until| until <= now) {
            // Whoever is woken all the time does not escape it.
            return self.expired(now);
        }
        if let Some(until) = until
            && armed.is_none_or(|armed| until < armed)
        {
            timer.as_mut().reset(until);
            *armed = Some(until);
        }
        self.due_at = until;
        let sees_end = waits.memory.is_some() && !self.has_ended;
        let mut interest = match (waits.read, waits.write) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => Interest::ERROR,
        };
        if sees_end {
            interest |= END_OF_INPUT;
        }
        let event = tokio::select! {
            biased;
            () = self.waker.woken() => Event::Woken,
            ready = self.stream.ready(interest) => Event::Ready(ready),
            permit = granted(&mut self.memory) => Event::Memory(permit),
            () = timer.as_mut(), if armed.is_some() => Event::Timer,
        };
        match event {
            Event::Woken => Ok(()),
            Event::Ready(Ok(ready)) if ready.is_error() && !waits.read && !waits.write => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Event::Ready(Ok(ready)) if ready.is_read_closed() && sees_end => self.input_ends(),
            Event::Ready(ready) => ready.map(drop),
            Event::Memory(permit) => {
                if let Some(wanted) = self.memory.take() {
                    self.input.grant(wanted.bytes, permit);
                    self.frame_at = Some(Instant::now());
                }
                Ok(())
            }
            Event::Timer => {
                *armed = None;
                let now = Instant::now();
                self.forgive_late(now);
                self.expired(now)
            }
        }
    }

    fn line_up_for_memory(&mut self, bytes: Option<usize>) {
        if self.memory.as_ref().map(|wanted| wanted.bytes) != bytes {
            self.memory = bytes.map(|bytes| Wanted { bytes, permit: Box::pin(self.input.memory(bytes)) });
        }
    }

    /// The peer answers for no time in which nobody was here to read or write.
    fn forgive_late(&mut self, now: Instant) {
        let late = self.due_at.take().map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        if late > LATE {
            self.frame_at = self.frame_at.map(|at| now.min(at + late));
            if let Some(taking) = &mut self.taking {
                taking.since = now.min(taking.since + late);
            }
        }
    }

    /// Notes what has happened since the last wait.
    fn note_times(&mut self, waits: Waits, now: Instant) {
        self.forgive_late(now);
        if !self.has_waited_for_input {
            self.frame_at = self.frame_at.map(|at| now.min(at + (now - self.noted_at)));
        }
        (self.noted_at, self.has_waited_for_input) = (now, waits.read);
        if std::mem::take(&mut self.has_read) || !waits.read {
            self.read_at = now;
        }
        // What was put into an empty outbox waits from now on, not from when that became empty.
        if std::mem::take(&mut self.has_written) || self.taking.is_none() {
            self.wrote_at = now;
        }
        if std::mem::take(&mut self.is_next_frame) {
            self.frame_at = None;
        }
        self.frame_at = self.input.holds_memory().then(|| self.frame_at.unwrap_or(now));
        if self.out.is_empty() {
            self.taking = None;
        } else if self.taking.as_ref().is_none_or(|taking| taking.is_over(&self.out)) {
            self.taking = Some(Taking::new(&self.out, now));
        }
    }

    /// The peer has closed its side while a frame waits for memory. If all of the frame is in the socket it is served, as it is
    /// where there is memory; of any other the rest does not come.
    fn input_ends(&mut self) -> io::Result<()> {
        let there = self.input.bytes().len() as u64 + rustix::io::ioctl_fionread(&self.stream)?;
        if there < self.input.wanted_bytes() as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.has_ended = true;
        Ok(())
    }

    /// The first time at which something is to be done although nothing happens.
    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let session = self.session.deadline_us().map(|deadline_us| {
            let in_us = deadline_us.saturating_sub(self.shared.config.clock.monotonic_us());
            now + Duration::from_micros(in_us).max(DEADLINE_PAUSE)
        });
        let look = self.taking.as_ref().map(Taking::look_at);
        let frame = self.frame_at.map(|_| now + FRAME_WAIT);
        session.into_iter().chain(self.limit().map(|(at, _)| at)).chain(look).chain(frame).min()
    }

    /// When the connection has to be closed if nothing happens until then, and why.
    fn limit(&self) -> Option<(Instant, &'static str)> {
        let config = &self.shared.config;
        let idle_ms = config.hello.idle_timeout_ms;
        let mut first = None;
        let mut by = |applies: bool, at: Instant, why: &'static str| {
            if applies && first.is_none_or(|(first, _)| at < first) {
                first = Some((at, why));
            }
        };
        let writes = !self.out.is_empty();
        let reads = !self.blocked && !self.stopping && self.memory.is_none() && !self.out.is_full();
        let time_for = |bytes| time_for(bytes, config.stall_timeout, config.bytes_per_s_min);
        let held_since = self.frame_at.filter(|_| self.shared.budget.is_waited_for());
        if let Some(since) = held_since {
            let frame_until = since + time_for(self.input.wanted_bytes());
            by(reads, frame_until, "a frame comes too slowly while others wait for memory");
        }
        if let Some(taking) = &self.taking {
            let is_short = held_since.is_some() || self.shared.unsent.is_over() || taking.found_no_room();
            let taken_until = taking.since + time_for(taking.bytes);
            by(is_short, taken_until, "what waits for the peer is taken too slowly while others lack memory");
            // Since it was seen to be too slow it may have taken enough.
            let slow_from = taking.is_slow_from(&self.out, config.bytes_per_s_min);
            let why = "the peer takes too slowly what waits for it, nobody has taken nothing for longer, and others lack memory";
            by(taking.is_to_close(), slow_from, why);
        }
        by(!self.greeted, self.opened_at + config.handshake_timeout, "no handshake in time");
        by(writes, self.wrote_at + config.stall_timeout, "the peer takes nothing of what waits for it");
        let partial = reads && !self.input.bytes().is_empty();
        by(partial, self.read_at + config.stall_timeout, "the rest of a frame does not come");
        let idle = reads && idle_ms > 0 && !writes && !self.session.is_busy();
        by(idle, self.read_at + Duration::from_millis(idle_ms.into()), "idle for too long");
        first
    }

    /// The timer has fired: does what is due.
    fn expired(&mut self, now: Instant) -> io::Result<()> {
        if let Some((at, why)) = self.limit()
            && at <= now
        {
            if !self.greeted {
                self.shared.rejected(&self.peer, why);
            }
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        if let Some(taking) = &mut self.taking
            && taking.look_at() <= now
        {
            let is_slow = taking.is_slow_from(&self.out, self.shared.config.bytes_per_s_min) <= now;
            let who = (self.peer.connection, &self.waker);
            taking.look(&mut self.out, now, is_slow.then_some(self.wrote_at), &self.shared.unsent, who);
        }
        let now_us = self.shared.config.clock.monotonic_us();
        if self.session.deadline_us().is_some_and(|at| at <= now_us) {
            self.blocked = false;
            self.session.on_deadline(now_us, &mut self.out);
        }
        Ok(())
    }

    fn publish_counts(&mut self) {
        let Counts { frames_in, bytes_in, bytes_out } = std::mem::take(&mut self.counts);
        let counters = &self.shared.counters[self.peer.io_thread];
        for (counter, count) in
            [(&counters.frames_in, frames_in), (&counters.bytes_in, bytes_in), (&counters.bytes_out, bytes_out)]
        {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

async fn granted(memory: &mut Option<Wanted>) -> OwnedSemaphorePermit {
    match memory {
        Some(wanted) => wanted.permit.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Whether a frame is a request that this build understands.
#[inline]
fn is_spoken(header: &FrameHeader) -> bool {
    match Op::from_u16(header.op) {
        Some(op) => op != Op::Hello && !header.is_response() && op.versions().contains(&header.version),
        None => false,
    }
}

/// A handshake, or a frame that is not for the session.
fn unusual_frame(shared: &Shared, greeted: &mut bool, header: &FrameHeader, body: &[u8], out: &mut Outbox) -> Flow {
    let mut refuse = |status: Status, message: String, close: bool| {
        out.error(header, status, &ErrorBody::new(message.clone()));
        if close { Flow::Close(message) } else { Flow::Done }
    };
    if header.is_response() {
        return refuse(Status::Malformed, "frame.flags says response; clients send requests".into(), true);
    }
    let Some(op) = Op::from_u16(header.op) else {
        let message = format!("operation {} is not known here; Hello lists those that are", header.op);
        return refuse(Status::UnknownOperation, message, !*greeted);
    };
    if !*greeted && op != Op::Hello {
        return refuse(Status::HelloExpected, format!("{op} came first; a connection starts with Hello"), true);
    }
    if let Err(e) = op.check_version(header.version) {
        return refuse(e.status(), e.to_string(), !*greeted);
    }
    match Hello::decode(header.version, body) {
        Ok(_) => {
            *greeted = true;
            out.respond(header, &shared.config.hello);
            Flow::Done
        }
        Err(e) => refuse(e.status(), e.to_string(), true),
    }
}

/// Lets the peer read what it was told before the connection is cut.
pub(crate) async fn linger(stream: &mut TcpStream) {
    let _ = stream.shutdown().await;
    let mut scrap = [0; 4 << 10];
    let mut left = LINGER_BYTES;
    let _ = tokio::time::timeout(LINGER, async {
        while let Ok(bytes @ 1..) = stream.read(&mut scrap).await
            && left > 0
        {
            left = left.saturating_sub(bytes);
        }
    })
    .await;
}
