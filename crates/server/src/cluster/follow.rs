//! What the node's broker is told of streams. It has opened those that it was told of at its start; whatever has changed since, and
//! whatever comes, it is told once and in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_coordinator::{StreamEvent, StreamObserver};
use kera_format::StreamId;
use kera_protocol::StreamInfo;
use kera_raft::{Change, Group, Observer};
use parking_lot::Mutex;

/// What the broker was told.
struct Told {
    streams: BTreeMap<StreamId, StreamInfo>,
    /// It was told what all entries up to this one have come to together. One by one they would take a stream back to options that it has no more; one that has grown since cannot go
    /// back.
    through: u64,
}

struct Follower {
    observer: Arc<dyn StreamObserver>,
    told: Mutex<Told>,
}

impl Follower {
    fn new(observer: Arc<dyn StreamObserver>, known: Vec<StreamInfo>) -> Follower {
        let streams = known.into_iter().map(|info| (info.id, info)).collect();
        Follower { observer, told: Mutex::new(Told { streams, through: 0 }) }
    }

    fn tell(&self, told: &mut Told, event: &StreamEvent) {
        let is_news = match event {
            StreamEvent::Created(info) => told.streams.insert(info.id, info.clone()).is_none(),
            StreamEvent::Altered { after, .. } => match told.streams.get_mut(&after.id) {
                Some(known) if known.options != after.options => {
                    *known = after.clone();
                    true
                }
                _ => false,
            },
            StreamEvent::Deleted(info) => told.streams.remove(&info.id).is_some(),
        };
        if is_news {
            self.observer.stream_changed(event);
        }
    }

    /// Tells how the streams `current` that there are up to entry `through` differ from what was told before.
    fn tell_all(&self, told: &mut Told, current: BTreeMap<StreamId, StreamInfo>, through: u64) {
        told.through = through;
        let before = told.streams.clone();
        for info in before.values().filter(|info| !current.contains_key(&info.id)) {
            self.tell(told, &StreamEvent::Deleted(info.clone()));
        }
        for info in current.into_values() {
            let event = match before.get(&info.id) {
                Some(before) => StreamEvent::Altered { before: before.clone(), after: info },
                None => StreamEvent::Created(info),
            };
            self.tell(told, &event);
        }
    }
}

impl Observer for Follower {
    fn changed(&self, index: u64, change: &Change) {
        if let Change::Stream(event) = change {
            let told = &mut *self.told.lock();
            if index > told.through {
                self.tell(told, event);
            }
        }
    }
}

/// Has an observer that knows `known` follow the group.
pub(super) fn observe(group: &Group, observer: Arc<dyn StreamObserver>, known: Vec<StreamInfo>) {
    let follower = Arc::new(Follower::new(observer, known));
    // What comes meanwhile waits until the difference has been told.
    let mut told = follower.told.lock();
    group.observe(follower.clone());
    let (current, through) = group.read_at(|state, index| {
        let streams = state.catalog.streams().map(|info| (info.id, info.clone()));
        (streams.collect(), index)
    });
    follower.tell_all(&mut told, current, through);
}

#[cfg(test)]
mod tests {
    use kera_format::StreamOptions;

    use super::*;

    /// Notes how many streamlets a stream has; none: it is gone.
    #[derive(Default)]
    struct Notes(Mutex<Vec<(u64, u32)>>);

    impl StreamObserver for Notes {
        fn stream_changed(&self, event: &StreamEvent) {
            let noted = match event {
                StreamEvent::Created(info) | StreamEvent::Altered { after: info, .. } => {
                    (info.id.0, info.options.streamlets)
                }
                StreamEvent::Deleted(info) => (info.id.0, 0),
            };
            self.0.lock().push(noted);
        }
    }

    fn info(stream: u64, streamlets: u32) -> StreamInfo {
        let options = StreamOptions { streamlets, ..StreamOptions::default() };
        StreamInfo { id: StreamId(stream), name: format!("of-{stream}"), created_ms: 1, options }
    }

    /// The log would have gone back to fewer streamlets than it has, and said that it does not follow and the node is to be started again.
    #[test]
    fn what_was_told_of_a_later_state_is_not_told_again_as_it_was_before() {
        let notes = Arc::new(Notes::default());
        let follower = Follower::new(notes.clone(), vec![info(5, 1), info(6, 1)]);
        let grows = |from, to| StreamEvent::Altered { before: info(5, from), after: info(5, to) };
        let current = [info(5, 3), info(8, 2)].map(|info| (info.id, info));
        follower.tell_all(&mut follower.told.lock(), current.into(), 14);
        assert_eq!(std::mem::take(&mut *notes.0.lock()), [(6, 0), (5, 3), (8, 2)]);
        // What is in that state comes entry by entry behind it.
        let events = [
            (10, StreamEvent::Deleted(info(6, 1))),
            (11, grows(1, 2)),
            (12, StreamEvent::Created(info(7, 1))),
            (12, StreamEvent::Created(info(8, 2))),
            (13, grows(2, 3)),
            (14, StreamEvent::Deleted(info(7, 1))),
            (15, grows(3, 4)),
            (16, StreamEvent::Created(info(9, 1))),
        ];
        events.into_iter().for_each(|(index, event)| follower.changed(index, &Change::Stream(event)));
        assert_eq!(*notes.0.lock(), [(5, 4), (9, 1)]);
    }
}
