//! Carrying out what is decided of a transaction of a cluster: the owners of its partitions write the markers and the coordinators of its
//! groups apply or forget its offsets, at this node's request, and then the end is recorded.
//!
//! Each is asked until it has said that it is done: a request that is lost, or comes to a node that owns the partition no more, is made
//! again, to whoever owns it then. Who is asked twice does it once. When the coordinator is lost, the next one begins anew, with all.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use kafka_protocol::ResponseError as Code;
use kera_broker::Heard;
use kera_format::kafka_transactions::AbortedRange;
use kera_format::{ProducerEpoch, ProducerId, StreamId};
use kera_protocol::admin::StreamRef;
use kera_protocol::{EndInGroup, EndInPartitions, EndedPartition, GroupEnded, PartitionEnded, PartitionsEnded};

use crate::door::{After, Door};
use crate::endings::Event;
use crate::groups::AppendFailed;
use crate::numbering::streamlet_of;
use crate::transaction_parts::{Marked, TransactionPart};
use crate::transactions::{Ending, NOT_WRITTEN};

/// After what time it is tried again where it could not be done.
const RETRY_MS: u64 = 50;

#[cfg(test)]
thread_local! {
    /// How many markers were looked at for what is to be asked for.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How far a marker, or a group, is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To be asked for, from this time on.
    ToDo(u64),
    Asked,
    Done,
}

struct Marker {
    stream: StreamId,
    partition: u32,
    from_offset: u64,
    step: Step,
    /// By whom it was written: the owner of which streamlet, in which epoch. By nobody, if the topic is gone.
    owner: Option<(u32, u32)>,
    aborted: Option<AbortedRange>,
}

/// What somebody has answered.
pub(crate) enum Told {
    /// Of these markers, asked of their owner in these epochs.
    Partitions(Vec<usize>, Result<PartitionsEnded, String>),
    /// Of this group.
    Group(usize, Result<GroupEnded, String>),
}

/// A transaction whose outcome is decided.
pub(crate) struct FarEnding {
    /// Tells it from others whose answers come.
    pub(crate) number: u64,
    part: Arc<TransactionPart>,
    ending: Ending,
    /// The decision is durable.
    decided: bool,
    markers: Vec<Marker>,
    groups: Vec<Group>,
    /// There is nothing to do before, unless an answer comes. All that are under way are gone on with whenever one of them can be, and each may have ten thousand markers.
    idle_until_ms: u64,
}

struct Group {
    name: String,
    step: Step,
    /// Its owner's, when that was asked last.
    owner_epoch: u32,
}

impl FarEnding {
    pub(crate) fn new(number: u64, part: Arc<TransactionPart>, ending: Ending) -> FarEnding {
        let written = ending.partitions.iter().filter(|(_, touched)| touched.from_offset != NOT_WRITTEN);
        let markers = written.filter_map(|(of, touched)| {
            Some(Marker {
                stream: touched.stream,
                partition: u32::try_from(of.partition).ok()?,
                from_offset: touched.from_offset,
                step: Step::ToDo(0),
                owner: None,
                aborted: None,
            })
        });
        let markers = markers.collect();
        let groups = ending.groups.iter();
        let groups = groups.map(|name| Group { name: name.clone(), step: Step::ToDo(0), owner_epoch: 0 }).collect();
        FarEnding { number, part, ending, decided: false, markers, groups, idle_until_ms: 0 }
    }

    /// Goes on as far as it can. True if it is over; what is to become durable first, if anything is, comes into `waits`.
    pub(crate) fn go_on(&mut self, door: &Door, events: &Sender<Event>, waits: &mut Vec<After>) -> bool {
        if self.part.is_closed() {
            // The next coordinator goes on with it.
            return true;
        }
        if !self.decided {
            match self.part.after(self.ending.after).filter(|after| !after.is_durable()) {
                Some(decision) => {
                    waits.push(decision);
                    return false;
                }
                None => self.decided = true,
            }
        }
        let now_ms = door.transactions.now().mono_ms;
        if now_ms < self.idle_until_ms {
            return false;
        }
        self.ask_owners(door, events, now_ms);
        self.ask_groups(door, events, now_ms);
        let steps = self.markers.iter().map(|marker| marker.step).chain(self.groups.iter().map(|group| group.step));
        let left = steps.filter(|step| *step != Step::Done);
        // When the first is to be asked for; who is asked has not answered.
        let next = left.map(|step| if let Step::ToDo(from_ms) = step { from_ms } else { u64::MAX }).min();
        match next {
            Some(from_ms) => {
                self.idle_until_ms = from_ms;
                false
            }
            None => self.are_told(door, now_ms) && self.end(door, now_ms),
        }
    }

    /// Whether all groups have been told at the owner that is known now. One that had been replaced may have said that it is done, since it did not know yet that it was not
    /// the one to say so: its successor is asked.
    fn are_told(&mut self, door: &Door, now_ms: u64) -> bool {
        for group in &mut self.groups {
            let owner = door.groups.owner_of(&door.broker, &group.name);
            if owner.is_none_or(|(_, epoch)| epoch != group.owner_epoch) {
                group.step = Step::ToDo(now_ms);
            }
        }
        self.groups.iter().all(|group| group.step == Step::Done)
    }

    /// Records the end. True if that is done.
    fn end(&mut self, door: &Door, now_ms: u64) -> bool {
        let marked = self.markers.iter().enumerate().filter_map(|(at, marker)| Some((at, marker.marked()?)));
        let (places, marked): (Vec<usize>, Vec<Marked>) = marked.unzip();
        let aborted: Vec<AbortedRange> = self.markers.iter().filter_map(|marker| marker.aborted).collect();
        match door.transactions.ended_far(&self.part, &self.ending, &marked, &aborted) {
            Ok(again) => {
                again.iter().for_each(|at| self.markers[places[*at]].step = Step::ToDo(now_ms));
                again.is_empty()
            }
            Err(AppendFailed) => false,
        }
    }

    fn ask_owners(&mut self, door: &Door, events: &Sender<Event>, now_ms: u64) {
        let mut asked: Vec<(u32, Vec<usize>, Vec<EndedPartition>)> = Vec::new();
        for (at, marker) in self.markers.iter_mut().enumerate() {
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            if !matches!(marker.step, Step::ToDo(from_ms) if from_ms <= now_ms) {
                continue;
            }
            let find = || door.coordinator.stream(&StreamRef::Id(marker.stream)).ok();
            let info = match door.broker.ownership().find(marker.stream, find) {
                Heard::Of(info) => info,
                // The topic is gone, and with it what the transaction has written; or it is so new that this node has not heard of it.
                unknown => {
                    marker.owner = None;
                    let is_gone = unknown == Heard::Gone;
                    marker.step = if is_gone { Step::Done } else { Step::ToDo(now_ms + RETRY_MS) };
                    continue;
                }
            };
            let streamlet = streamlet_of(marker.partition, &info.options);
            let owner = door.broker.ownership().owner(marker.stream, streamlet);
            let Some(owner) = owner.filter(|owner| owner.node != 0) else {
                marker.step = Step::ToDo(now_ms + RETRY_MS);
                continue;
            };
            (marker.step, marker.owner) = (Step::Asked, Some((streamlet.0, owner.epoch)));
            let one = EndedPartition {
                stream: marker.stream,
                partition: marker.partition,
                owner_epoch: owner.epoch,
                from_offset: marker.from_offset,
            };
            match asked.iter_mut().find(|(node, ..)| *node == owner.node) {
                Some((_, places, partitions)) => {
                    places.push(at);
                    partitions.push(one);
                }
                None => asked.push((owner.node, vec![at], vec![one])),
            }
        }
        for (node, places, partitions) in asked {
            let message = EndInPartitions {
                part: self.part.number,
                part_epoch: self.part.epoch,
                producer_id: ProducerId(self.ending.producer_id.cast_unsigned()),
                producer_epoch: ProducerEpoch(self.ending.epoch.cast_unsigned()),
                commit: self.ending.commit,
                partitions,
            };
            let (number, events) = (self.number, events.clone());
            door.ask(node, &message, move |_, _, told| {
                // If nobody listens the node stops.
                let _ = events.send(Event::Told(number, Told::Partitions(places, told)));
            });
        }
    }

    fn ask_groups(&mut self, door: &Door, events: &Sender<Event>, now_ms: u64) {
        for (at, group) in self.groups.iter_mut().enumerate() {
            if !matches!(group.step, Step::ToDo(from_ms) if from_ms <= now_ms) {
                continue;
            }
            let Some((node, owner_epoch)) = door.groups.owner_of(&door.broker, &group.name) else {
                group.step = Step::ToDo(now_ms + RETRY_MS);
                continue;
            };
            (group.step, group.owner_epoch) = (Step::Asked, owner_epoch);
            let message = EndInGroup {
                part: self.part.number,
                part_epoch: self.part.epoch,
                group: group.name.clone(),
                owner_epoch,
                producer_id: ProducerId(self.ending.producer_id.cast_unsigned()),
                number: self.ending.number,
                commit: self.ending.commit,
            };
            let (number, events) = (self.number, events.clone());
            door.ask(node, &message, move |_, _, told| {
                let _ = events.send(Event::Told(number, Told::Group(at, told)));
            });
        }
    }

    /// Takes an answer.
    pub(crate) fn hear(&mut self, told: Told, now_ms: u64) {
        self.idle_until_ms = 0;
        match told {
            Told::Partitions(places, Ok(PartitionsEnded { partitions })) if places.len() == partitions.len() => {
                for (at, told) in places.into_iter().zip(partitions) {
                    self.hear_of(at, &told, now_ms);
                }
            }
            Told::Partitions(places, told) => {
                tracing::debug!(id = self.ending.id, why = ?told.err(), "markers have to wait");
                places.into_iter().for_each(|at| self.markers[at].step = Step::ToDo(now_ms + RETRY_MS));
            }
            Told::Group(at, Ok(GroupEnded { error: 0 })) => self.groups[at].step = Step::Done,
            Told::Group(at, told) => {
                tracing::debug!(id = self.ending.id, group = self.groups[at].name, ?told, "a group has to wait");
                self.groups[at].step = Step::ToDo(now_ms + RETRY_MS);
            }
        }
    }

    fn hear_of(&mut self, at: usize, told: &PartitionEnded, now_ms: u64) {
        let marker = &mut self.markers[at];
        if told.error != 0 {
            let why = Code::try_from_code(told.error.cast_signed());
            tracing::debug!(id = self.ending.id, partition = marker.partition, ?why, "a marker has to wait");
            marker.step = Step::ToDo(now_ms + RETRY_MS);
            return;
        }
        marker.step = Step::Done;
        marker.aborted = told.aborted.filter(|_| !self.ending.commit).map(|of| AbortedRange {
            stream: marker.stream,
            partition: marker.partition,
            producer_id: self.ending.producer_id,
            first_offset: of.first_offset,
            marker_offset: of.marker_offset,
            stable_offset: of.stable_offset,
            epoch: self.ending.epoch,
        });
        self.part.state.lock().left.trim(marker.stream, marker.partition, told.start);
    }
}

impl Marker {
    fn marked(&self) -> Option<Marked> {
        let (streamlet, owner_epoch) = self.owner?;
        Some(Marked { stream: self.stream, streamlet, owner_epoch })
    }
}
