//! What the Kafka doors of a cluster's nodes ask each other about transactions, at the address for nodes
//! (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`).
//!
//! One thread runs what comes from others, and what is to be done with their answers. It waits for nothing: an answer that rests on what
//! was appended leaves when that is durable.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_log::Observer;
use kera_protocol::{
    Body, ClaimGroup, ClaimPartition, EndInGroup, EndInPartitions, Message, Op, ProtocolError, TransactionsIn,
};

use crate::door::{After, Calls, Door, first_of};
use crate::transaction_claims::Claiming;

/// How late it is noticed that the door is gone.
const TICK: Duration = Duration::from_millis(50);

/// An answer to another node, or why it cannot be given now.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>;

/// Something for the thread.
pub(crate) type Work = Box<dyn FnOnce(&Arc<Door>, &mut Awaited) + Send>;

/// What the thread is woken by.
enum Event {
    Work(Work),
    /// Something is durable now that was not.
    Look,
}

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct NodeRequests(Sender<Event>);

/// What the thread has to do.
pub(crate) struct NodeWork {
    events: Receiver<Event>,
    awaited: Awaited,
}

/// What is left to do then.
type Then = Box<dyn FnOnce() + Send>;

/// What is done when something else is durable.
pub(crate) struct Awaited {
    waiting: Vec<(Vec<After>, Then)>,
    /// Claims that have come, and are dealt with when no more have.
    claims: Vec<Claiming>,
    calls: Calls,
}

struct Wake(Sender<Event>);

impl Observer for Wake {
    fn advanced(&self, _: u64) {
        // If nobody listens the node stops.
        let _ = self.0.send(Event::Look);
    }
}

impl NodeRequests {
    /// The way, and what is at its end.
    pub(crate) fn new() -> (NodeRequests, NodeWork) {
        let (sender, events) = channel();
        let observer: Arc<dyn Observer> = Arc::new(Wake(sender.clone()));
        (
            NodeRequests(sender),
            NodeWork {
                events,
                awaited: Awaited { waiting: Vec::new(), claims: Vec::new(), calls: Calls::new(observer) },
            },
        )
    }

    /// Has the thread do it.
    pub(crate) fn run(&self, work: Work) {
        let _ = self.0.send(Event::Work(work));
    }
}

impl Awaited {
    /// Does it when all that is durable.
    pub(crate) fn when_durable(&mut self, after: Vec<After>, done: Then) {
        self.waiting.push((after, done));
    }

    /// A claim is dealt with when all that has come is heard.
    pub(crate) fn claim(&mut self, claiming: Claiming) {
        self.claims.push(claiming);
    }

    fn look(&mut self) {
        // The sinks that are waited for, each with the ticket that comes first.
        let (mut waits, mut done): (Vec<After>, Vec<Then>) = (Vec::new(), Vec::new());
        self.waiting.retain_mut(|(after, then)| {
            after.retain(|after| !after.is_durable());
            for after in after.iter() {
                first_of(&mut waits, after);
            }
            if after.is_empty() {
                done.push(std::mem::replace(then, Box::new(|| ())));
            }
            !after.is_empty()
        });
        done.into_iter().for_each(|then| then());
        self.calls.wait(waits);
    }
}

impl NodeWork {
    /// Does what there is to do. In tests; otherwise [`work`] does.
    #[cfg(test)]
    pub(crate) fn go_on(&mut self, door: &Arc<Door>) -> usize {
        let mut done = 0;
        while let Ok(event) = self.events.try_recv() {
            self.hear(door, event);
            done += 1;
        }
        self.look(door);
        done
    }

    fn hear(&mut self, door: &Arc<Door>, event: Event) {
        if let Event::Work(work) = event {
            work(door, &mut self.awaited);
        }
    }

    /// All that has come is heard.
    fn look(&mut self, door: &Arc<Door>) {
        let claims = std::mem::take(&mut self.awaited.claims);
        door.transactions.claim_all(&mut self.awaited, claims);
        self.awaited.look();
    }
}

/// The thread. It ends when the door is gone.
pub(crate) fn work(door: &Weak<Door>, mut all: NodeWork) {
    loop {
        let received = all.events.recv_timeout(TICK);
        let Some(door) = door.upgrade() else { return };
        match received {
            Ok(event) => all.hear(&door, event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(event) = all.events.try_recv() {
            all.hear(&door, event);
        }
        all.look(&door);
    }
}

/// What a request from another node leads to.
pub(crate) enum Served<R> {
    /// This, when all that is durable.
    Now(R, Vec<After>),
    /// To be asked again a little later.
    Later(String),
}

/// An answer on its way.
pub(crate) struct Replying {
    version: u8,
    done: Answered,
}

impl Replying {
    /// Answers, when all that is durable.
    pub(crate) fn give<R: Body>(self, awaited: &mut Awaited, served: Served<R>) {
        match served {
            Served::Later(why) => (self.done)(Err(why)),
            Served::Now(response, after) => {
                let mut body = Vec::new();
                response.encode(self.version, &mut body);
                awaited.when_durable(after, Box::new(move || (self.done)(Ok(body))));
            }
        }
    }
}

impl Door {
    /// Answers the Kafka door of another node. `done` is called on another thread.
    pub fn answer(&self, op: Op, version: u8, body: Vec<u8>, done: Answered) {
        let replying = Replying { version, done };
        self.node_requests.run(Box::new(move |door, awaited| serve(door, awaited, op, &body, replying)));
    }

    /// Asks the Kafka door of a node, which may be this one. `done` is called on the thread for that, with why there is no answer
    /// otherwise.
    pub(crate) fn ask<M: Message>(
        &self,
        node: u32,
        message: &M,
        done: impl FnOnce(&Arc<Door>, &mut Awaited, Result<M::Response, String>) + Send + 'static,
    ) where
        M::Response: Send + 'static,
    {
        let (version, body, answered) = self.asked(message, done);
        if node == self.node_id().cast_unsigned() {
            self.answer(M::OP, version, body, answered);
        } else if let Some(others) = self.others() {
            others.ask(node, M::OP, body, answered);
        } else {
            answered(Err("the node does not reach others yet".to_owned()));
        }
    }

    /// Asks another node what its native clients ask. `done` is called as with [`ask`](Door::ask).
    pub(crate) fn ask_native<M: Message>(
        &self,
        node: u32,
        message: &M,
        done: impl FnOnce(&Arc<Door>, Result<M::Response, String>) + Send + 'static,
    ) where
        M::Response: Send + 'static,
    {
        let (_, body, answered) = self.asked(message, move |door, _, told| done(door, told));
        match self.others() {
            Some(others) => others.ask_native(node, M::OP, body, answered),
            None => answered(Err("the node does not reach others yet".to_owned())),
        }
    }

    /// A message as bytes, with its version, and how its answer comes to the thread.
    fn asked<M: Message>(
        &self,
        message: &M,
        done: impl FnOnce(&Arc<Door>, &mut Awaited, Result<M::Response, String>) + Send + 'static,
    ) -> (u8, Vec<u8>, Answered)
    where
        M::Response: Send + 'static,
    {
        let version = M::OP.version_max();
        let mut body = Vec::new();
        message.encode(version, &mut body);
        let back = self.node_requests.clone();
        let answered: Answered = Box::new(move |answer| {
            let told = |error: ProtocolError| error.to_string();
            let response = answer.and_then(|body| M::Response::decode(version, &body).map_err(told));
            back.run(Box::new(move |door, awaited| done(door, awaited, response)));
        });
        (version, body, answered)
    }
}

/// Gives a request to whom it is for.
fn serve(door: &Arc<Door>, awaited: &mut Awaited, op: Op, body: &[u8], replying: Replying) {
    /// What is asked, or an answer that it is not understood.
    macro_rules! decode {
        ($message:ty) => {
            match <$message>::decode(replying.version, body) {
                Ok(asked) => asked,
                Err(error) => return (replying.done)(Err(error.to_string())),
            }
        };
    }
    match op {
        Op::ClaimPartition => {
            let asked = decode!(ClaimPartition);
            awaited.claim(Claiming { asked, replying, waits: true });
        }
        Op::ClaimGroup => {
            let asked = decode!(ClaimGroup);
            door.transactions.claim_group(awaited, &asked, replying);
        }
        Op::TransactionsIn => {
            let known = door.transactions.known_in(&decode!(TransactionsIn));
            replying.give(awaited, known);
        }
        Op::EndInPartitions => {
            let ended = door.end_in_partitions(&decode!(EndInPartitions));
            replying.give(awaited, ended);
        }
        Op::EndInGroup => {
            let ended = door.end_in_group(&decode!(EndInGroup));
            replying.give(awaited, ended);
        }
        op => (replying.done)(Err(format!("{} is not about transactions", op.name()))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use kera_log::{ChunkReference, DurabilitySink, SinkError, Ticket};

    use super::*;

    /// Stands still, and counts who wants to be called.
    #[derive(Default)]
    struct Still {
        durable: AtomicU64,
        waits: AtomicU64,
    }

    impl DurabilitySink for Still {
        fn appended(&self, _: ChunkReference) -> Ticket {
            0
        }
        fn durable_through(&self) -> Ticket {
            self.durable.load(Ordering::Relaxed)
        }
        fn wait(&self, ticket: Ticket, _: &Arc<dyn Observer>, _: u64) -> bool {
            self.waits.fetch_add(1, Ordering::Relaxed);
            ticket > self.durable_through()
        }
        fn healthy(&self) -> Result<(), SinkError> {
            Ok(())
        }
        fn segment_safe(&self, _: kera_format::SegmentId) {}
    }

    #[test]
    fn a_log_that_stands_still_is_asked_for_one_call_however_long_and_for_however_many() {
        let still = Arc::new(Still::default());
        let sink: Arc<dyn DurabilitySink> = still.clone();
        let (_, mut work) = NodeRequests::new();
        let done = Arc::new(AtomicU64::new(0));
        for ticket in 1..=100 {
            let done = Arc::clone(&done);
            let then: Then = Box::new(move || _ = done.fetch_add(1, Ordering::Relaxed));
            work.awaited.when_durable(vec![After { sink: Arc::clone(&sink), ticket }], then);
        }
        (0..1000).for_each(|_| work.awaited.look());
        assert_eq!((still.waits.load(Ordering::Relaxed), done.load(Ordering::Relaxed)), (1, 0));
        still.durable.store(40, Ordering::Relaxed);
        (0..1000).for_each(|_| work.awaited.look());
        assert_eq!((still.waits.load(Ordering::Relaxed), done.load(Ordering::Relaxed)), (2, 40), "for the next one");
        still.durable.store(100, Ordering::Relaxed);
        work.awaited.look();
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }
}
