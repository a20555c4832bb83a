//! What the node's broker is told of streams. It has opened those that it was told of at its start; whatever has changed since, and
//! whatever comes, it is told once and in order.

use std::sync::Arc;

use kera_coordinator::cluster::ToldStreams;
use kera_coordinator::{StreamEvent, StreamObserver};
use kera_protocol::StreamInfo;
use kera_raft::{Change, Group, Observer};
use parking_lot::Mutex;

struct Follower {
    observer: Arc<dyn StreamObserver>,
    told: Mutex<ToldStreams>,
}

impl Follower {
    fn new(observer: Arc<dyn StreamObserver>, known: Vec<StreamInfo>) -> Follower {
        Follower { observer, told: Mutex::new(ToldStreams::of(known)) }
    }

    /// Tells how the streams `current` that there are up to entry `through` differ from what was told before.
    fn catch_up<'a>(&self, told: &mut ToldStreams, current: impl IntoIterator<Item = &'a StreamInfo>, through: u64) {
        let events: Vec<StreamEvent> = told.catch_up(current, through);
        events.iter().for_each(|event| self.observer.stream_changed(event));
    }
}

impl Observer for Follower {
    fn changed(&self, index: u64, change: &Change) {
        if let Change::Stream(event) = change {
            let mut told = self.told.lock();
            if told.is_news(index, event) {
                self.observer.stream_changed(event);
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
    let (current, through) =
        group.read_at(|state, index| (state.catalog.streams().cloned().collect::<Vec<StreamInfo>>(), index));
    follower.catch_up(&mut told, &current, through);
}

#[cfg(test)]
mod tests {
    use kera_format::{StreamId, StreamOptions};

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
        let current = [info(5, 3), info(8, 2)];
        follower.catch_up(&mut follower.told.lock(), &current, 14);
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
