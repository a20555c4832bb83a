//! Streams that get another number of copies, as `crates/server/src/cluster/changing.rs` does it, by turns. What copies are made of and when all are there
//! is decided by the real code ([`kera_broker::CopyRun`]), who may say so by the real rules. And streamlets that go on in another virtual log.

use std::collections::BTreeMap;

use kera_broker::{CopyRun, CopyStep};
use kera_coordinator::cluster::ToCopy;
use kera_format::{StreamId, StreamOptions, StreamletId};
use kera_log::Tenure;
use kera_protocol::{CopiesMade, FinishMove, StreamChanges};

use super::coordinators::Command;
use super::copies::lock;
use super::node::Running;
use super::plan::Planted;
use super::world::{Event, World};

/// Bytes that are given to a log at a time.
const BYTES: u64 = 64 << 10;
/// How often it is looked whether the last copies are durable, and for how long while writers wait.
const LOOK_US: u64 = 1_000;
const LAST_US: u64 = 1_000_000;
/// Time until a streamlet that did not get its copies is moved again.
const RETRY_US: u64 = 2_000_000;

/// What a node does for them.
#[derive(Default)]
pub(super) struct Changing {
    /// What was copied of streamlets.
    runs: BTreeMap<(StreamId, u32), Run>,
    /// The last copies of those that are let go.
    pub(super) last: Vec<Last>,
    /// What became of streamlets that were to go on in another virtual log, since the last look.
    pub(super) logs: LogsChanged,
}

/// How many streamlets that were opened went on in another virtual log, and how many stayed where they were although they were to.
#[derive(Default)]
pub(super) struct LogsChanged {
    pub(super) changed: u64,
    pub(super) stayed: u64,
}

/// What was copied of a streamlet, for which number of copies.
#[derive(Default)]
struct Run {
    copies: u32,
    run: CopyRun,
    not_before_us: u64,
}

/// The last copies of a streamlet that was let go, which wait to be durable.
pub(super) struct Last {
    pub(super) number: u64,
    of: ToCopy,
    state: Vec<u8>,
    until_us: u64,
}

impl Running {
    /// As `crates/server/src/cluster/adaptive.rs` does. What is refused stays in its log, which is always right: it is counted, and not as a change.
    pub(super) fn put_in_log(&mut self, stream: StreamId, streamlet: StreamletId, copies: u32) {
        let wanted = self.wanted_logs.remove(&(stream, streamlet)).flatten().filter(|_| copies > 1);
        let Some(found) = self.log.stream(stream) else { return };
        let Some(place) = found.streamlet(streamlet) else { return };
        // A number stands for one log.
        let options = StreamOptions { replication: copies, ..(*found.options()).clone() };
        let wanted = wanted.map(|number| number + 2 * copies as u8);
        let own = wanted.map(|number| (number, self.copies.own_sink(number, &options)));
        if place.own_log() == wanted {
            return;
        }
        let is_put = match self.changes_unsettled {
            true => place.put_in(own).is_ok(),
            false => self.broker.put_in_log(stream, streamlet, own).is_ok(),
        };
        let count = if is_put { &mut self.changing.logs.changed } else { &mut self.changing.logs.stayed };
        *count += 1;
    }

    fn copy_step(&mut self, of: &ToCopy, (is_last, lies): (bool, bool)) -> CopyStep {
        if lies {
            return CopyStep::Done;
        }
        let Some(stream) = self.log.stream(of.stream) else { return CopyStep::Later };
        let Some(place) = stream.streamlet(StreamletId(of.streamlet)).cloned() else { return CopyStep::Later };
        let options = StreamOptions { replication: of.wanted, ..(*stream.options()).clone() };
        let log = self.copies.log_of(of.stream, place.id(), &options);
        let known = self.changing.runs.entry((of.stream, of.streamlet)).or_default();
        if known.copies != of.wanted {
            *known = Run { copies: of.wanted, ..Run::default() };
        }
        match is_last {
            false => known.run.step(&self.log, &place, &*log.behind(), BYTES),
            true => known.run.last_step(&self.log, &place, &*log.behind(), BYTES),
        }
    }

    fn may_move_now(&mut self, of: &ToCopy, now_us: u64) -> bool {
        let stream = self.log.stream(of.stream);
        let place = stream.as_ref().and_then(|stream| stream.streamlet(StreamletId(of.streamlet)));
        let is_here = place.is_some_and(|place| place.tenure() == Tenure::Here);
        let known = self.changing.runs.entry((of.stream, of.streamlet)).or_default();
        if !is_here || now_us < known.not_before_us {
            return false;
        }
        (known.copies, known.not_before_us) = (of.wanted, now_us + RETRY_US);
        true
    }
}

impl World {
    /// A turn of what a node does for streams that are to have another number of copies.
    pub(super) fn change_copies(&mut self, node: u32) {
        let (epoch, now_us) = (self.node(node).epoch, self.now_us());
        let lies = self.plan.planted == Some(Planted::SaysCopied);
        let known = self.node(node).known.clone();
        let work = lock(&known).to_copy(node, epoch);
        let Some(running) = self.node_mut(node).running() else { return };
        let is_wanted = |(stream, streamlet): &(StreamId, u32), copies: u32| {
            work.iter().any(|of| (of.stream, of.streamlet, of.wanted) == (*stream, *streamlet, copies))
        };
        running.changing.runs.retain(|place, of| is_wanted(place, of.copies));
        for of in work {
            let Some(running) = self.node_mut(node).running() else { return };
            if of.is_more() && running.copy_step(&of, (false, lies)) != CopyStep::Done {
                continue;
            }
            let (stream, streamlet) = (of.stream, StreamletId(of.streamlet));
            if !of.is_owner {
                let (copies, number, state) = (of.wanted, 0, Vec::new());
                let owner_epoch = of.owner_epoch;
                let made = CopiesMade { node, epoch, stream, streamlet, copies, number, state, owner_epoch };
                self.ask(node, Command::Made(made));
            } else if lock(&known).may_be_copied(stream, of.streamlet) && running.may_move_now(&of, now_us) {
                self.ask(node, Command::Renew(stream, of.streamlet, node, epoch));
            }
        }
    }

    /// A streamlet is let go for a move to its own node. Whether it is to have another number of copies with that: then the rest of them is made first.
    pub(super) fn begins_last_copies(&mut self, node: u32, number: u64, what: (StreamId, u32), state: &[u8]) -> bool {
        let (epoch, until_us) = (self.node(node).epoch, self.now_us() + LAST_US);
        let known = self.node(node).known.clone();
        let of = lock(&known).to_copy(node, epoch).into_iter().find(|of| (of.stream, of.streamlet) == what);
        let Some(running) = self.node_mut(node).running() else { return false };
        let is_known = running.changing.runs.contains_key(&what);
        let Some(of) = of.filter(|of| of.is_owner && (is_known || !of.is_more())) else { return false };
        running.changing.last.retain(|last| last.number != number);
        running.changing.last.push(Last { number, of, state: state.to_vec(), until_us });
        self.make_last_copies(node, number);
        true
    }

    pub(super) fn make_last_copies(&mut self, node: u32, number: u64) {
        let (now_us, epoch, life) = (self.now_us(), self.node(node).epoch, self.node(node).life);
        let lies = self.plan.planted == Some(Planted::SaysCopied);
        let Some(running) = self.node_mut(node).running() else { return };
        let Some(at) = running.changing.last.iter().position(|last| last.number == number) else { return };
        let of = running.changing.last[at].of;
        let is_there = !of.is_more() || running.copy_step(&of, (true, lies)) == CopyStep::Done;
        if !is_there && now_us < running.changing.last[at].until_us {
            self.schedule.after(LOOK_US, Event::LastCopies(node, life, number));
            return;
        }
        let Last { state, .. } = running.changing.last.remove(at);
        if !is_there {
            self.ask(node, Command::FinishMove(FinishMove { number, node, epoch, state }));
            return;
        }
        let (stream, streamlet, copies, owner_epoch) =
            (of.stream, StreamletId(of.streamlet), of.wanted, of.owner_epoch);
        let made = CopiesMade { node, epoch, stream, streamlet, copies, number, state, owner_epoch };
        self.ask(node, Command::Made(made));
    }

    /// The coordinators have answered. A move goes on without the copies if they are refused.
    pub(super) fn copies_told(&mut self, node: u32, made: CopiesMade, told: Option<bool>) {
        let CopiesMade { epoch, number, state, .. } = made;
        match told {
            // It is counted when it becomes true: it is said again and again until that is known.
            _ if number == 0 => {}
            Some(false) => {
                self.ask(node, Command::FinishMove(FinishMove { number, node, epoch, state }));
            }
            told => {
                *self.events_of.entry("got another number of copies").or_default() += u64::from(told == Some(true));
                self.move_finished(node, number, told == Some(true));
            }
        }
    }

    /// A person wants a stream to have another number of copies.
    pub(super) fn wants_copies(&mut self, at: u32) -> bool {
        if self.node(at).process.is_none() {
            return false;
        }
        let streams: Vec<(StreamId, u32)> =
            self.coordinators.state.catalog.streams().map(|info| (info.id, info.options.replication)).collect();
        if streams.is_empty() {
            return false;
        }
        let (stream, has) = streams[self.below(streams.len() as u64) as usize];
        let least = if has == 1 { 1 } else { 2 };
        let wanted = least + self.below(u64::from(self.replication - least + 1)) as u32;
        self.ask(at, Command::Alter(stream, wanted));
        wanted != has
    }

    /// Has what has one copy get as many as the others have: then any machine may burn.
    pub(super) fn copy_all(&mut self) {
        self.copies_all = true;
        self.schedule.after(1_000_000, Event::CopyAll);
        let one = self.coordinators.state.catalog.streams().filter(|info| info.options.replication == 1);
        let one: Vec<StreamId> = one.map(|info| info.id).collect();
        let Some(at) = (1..=self.count()).find(|at| self.node(*at).process.is_some()) else { return };
        for stream in one {
            self.ask(at, Command::Alter(stream, self.replication));
        }
    }

    /// Streams that are to have another number of copies and have it not yet.
    pub(super) fn to_be_copied(&self) -> Vec<String> {
        let state = &self.coordinators.state;
        let changes = state.copy_changes(100).changes.into_iter().map(|change| format!("{change:?}"));
        let one = state.catalog.streams().filter(|info| self.copies_all && info.options.replication == 1);
        changes.chain(one.map(|info| format!("stream {} has one copy", info.id))).collect()
    }
}

/// What a person asks for.
pub(super) fn copies(copies: u32) -> StreamChanges {
    StreamChanges { replication: Some(copies), ..StreamChanges::default() }
}
