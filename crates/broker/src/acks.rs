//! Answers that wait for the disk, in the order of their requests.
//!
//! A request that wrote something is answered when every ticket that its chunks got is durable, and not before the
//! requests before it (thesis 7.1.2: the virtual logs are synchronised after all chunks of a request are appended). The
//! session goes on appending later requests meanwhile. Only the first answer in line waits at a sink; when it goes,
//! those behind it that are durable too go with it.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_log::{DurabilitySink, Observer, Ticket};
use kera_protocol::read::ANSWER_BYTES;
use kera_protocol::write::{RESULT_BYTES, RESULTS_HEAD_BYTES};
use kera_protocol::{FrameHeader, Status};
use kera_rpc::Outbox;

use crate::failure::Failure;
use crate::latency::Latencies;
use crate::signals::Token;

/// Buffers of answers kept for reuse.
const SPARE_MAX: usize = 64;
/// A larger buffer is given back instead.
const SPARE_BYTES_MAX: usize = 64 * ANSWER_BYTES;

/// The tickets of one request: the highest per sink.
#[derive(Default)]
pub(crate) struct Tickets(Vec<(Arc<dyn DurabilitySink>, Ticket)>);

impl Tickets {
    /// Adds a ticket of a sink.
    pub(crate) fn add(&mut self, sink: &Arc<dyn DurabilitySink>, ticket: Ticket) {
        match self.0.iter_mut().find(|(known, _)| Arc::ptr_eq(known, sink)) {
            Some((_, highest)) => *highest = ticket.max(*highest),
            None => self.0.push((Arc::clone(sink), ticket)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that is not durable yet.
    fn pending(&self) -> Option<&(Arc<dyn DurabilitySink>, Ticket)> {
        self.0.iter().find(|(sink, ticket)| sink.durable_through() < *ticket)
    }
}

/// What is answered once it is durable: a whole response body.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) body: Vec<u8>,
    pub(crate) tickets: Tickets,
}

struct Pending {
    request: FrameHeader,
    status: Status,
    /// The body is the results of a write that came then: when its time is up they tell, chunk by chunk, what may be there.
    write_received_us: Option<u64>,
    answer: Answer,
    request_bytes: usize,
    deadline_us: u64,
}

/// What [`Acks::complete`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Completed {
    /// Answers that went out.
    pub(crate) answers: u64,
    /// Of those, writes whose time was up before they were durable.
    pub(crate) timed_out: u64,
}

/// The answers of one session that are not out yet.
#[derive(Default)]
pub(crate) struct Acks {
    queue: VecDeque<Pending>,
    bytes: usize,
    /// The sink (by address) and ticket that calls back.
    armed: Option<(usize, Ticket)>,
    spare: Vec<Answer>,
}

impl Acks {
    /// Answers in line.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing is in line.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of the requests in line.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the first in line is answered even if it is not durable.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.queue.front().map(|first| first.deadline_us)
    }

    /// A buffer to write an answer into.
    pub(crate) fn buffer(&mut self) -> Answer {
        self.spare.pop().unwrap_or_default()
    }

    /// Puts an answer in line behind those that are there. `request_bytes` counts against the session's bytes in flight.
    pub(crate) fn push(
        &mut self,
        request: &FrameHeader,
        answer: Answer,
        write_received_us: Option<u64>,
        request_bytes: usize,
        deadline_us: u64,
    ) {
        self.bytes += request_bytes;
        let status = Status::Ok;
        let request = *request;
        self.queue.push_back(Pending { request, status, write_received_us, answer, request_bytes, deadline_us });
    }

    /// Puts a refusal in line.
    pub(crate) fn push_failure(&mut self, request: &FrameHeader, failure: &Failure) {
        let mut answer = self.buffer();
        failure.body().encode(&mut answer.body);
        let (request, status) = (*request, failure.status);
        self.queue.push_back(Pending {
            request,
            status,
            write_received_us: None,
            answer,
            request_bytes: 0,
            deadline_us: u64::MAX,
        });
    }

    /// The call-back of a sink has come.
    pub(crate) fn fired(&mut self) {
        self.armed = None;
    }

    /// Sends what is durable, or out of time, from the front of the line.
    pub(crate) fn complete(
        &mut self,
        now_us: u64,
        observer: &Arc<dyn Observer>,
        latencies: &Latencies,
        out: &mut Outbox,
    ) -> Completed {
        let mut done = Completed::default();
        while let Some(first) = self.queue.front() {
            if let Some((sink, ticket)) = first.answer.tickets.pending() {
                if now_us >= first.deadline_us {
                    done.timed_out += 1;
                    self.time_out_front();
                } else {
                    let wanted = (Arc::as_ptr(sink).cast::<()>() as usize, *ticket);
                    if self.armed == Some(wanted) || sink.wait(*ticket, observer, Token::Sink.to_u64()) {
                        self.armed = Some(wanted);
                        break;
                    }
                    continue;
                }
            }
            done.answers += 1;
            self.send_front(now_us, latencies, out);
        }
        done
    }

    fn send_front(&mut self, now_us: u64, latencies: &Latencies, out: &mut Outbox) {
        let Some(pending) = self.queue.pop_front() else { return };
        let Pending { request, status, write_received_us, answer, request_bytes, .. } = pending;
        if let Some(received_us) = write_received_us {
            let process = answer.tickets.is_empty();
            let of = if process { &latencies.write_process } else { &latencies.write_power };
            of.observe(now_us.saturating_sub(received_us));
        }
        self.bytes -= request_bytes;
        let mut frame = out.begin(&request.response(status as u16));
        frame.body().extend_from_slice(&answer.body);
        frame.finish();
        self.recycle(answer);
    }

    /// Takes back a buffer.
    pub(crate) fn recycle(&mut self, mut answer: Answer) {
        if self.spare.len() < SPARE_MAX && answer.body.capacity() <= SPARE_BYTES_MAX {
            answer.body.clear();
            answer.tickets.0.clear();
            self.spare.push(answer);
        }
    }

    /// The first in line is appended but not durable in time. What it wrote may yet become durable: `Timeout` says that a
    /// retry could duplicate, unless the broker recognises the producer.
    ///
    /// That goes for each result that says that a chunk is there. Of one that came again, and whose place is not remembered, that is
    /// `SequenceTooOld`: a producer with more under way than there are places takes it for an acknowledgement, and the chunk that was
    /// there before is not durable either. If it went out as it is, the chunk would be acknowledged, and lost with its owner.
    fn time_out_front(&mut self) {
        let is_there = [Status::Ok, Status::SequenceTooOld].map(|status| (status as u16).to_le_bytes());
        let Some(first) = self.queue.front_mut() else { return };
        if first.write_received_us.is_some() {
            let (results, _) = first.answer.body[RESULTS_HEAD_BYTES..].as_chunks_mut::<RESULT_BYTES>();
            for result in results {
                if is_there.contains(&[result[0], result[1]]) {
                    result[..2].copy_from_slice(&(Status::Timeout as u16).to_le_bytes());
                }
            }
        } else {
            first.status = Status::Timeout;
            first.answer.body.clear();
            let message = "what was written is not on the disk yet, and the request's time is up";
            Failure::later(Status::Timeout, message).body().encode(&mut first.answer.body);
        }
    }
}
