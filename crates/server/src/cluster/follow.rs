//! What the node's broker is told of streams. It has opened those that it was told of at its start; whatever has changed since, and
//! whatever comes, it is told once and in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_coordinator::{StreamEvent, StreamObserver};
use kera_format::StreamId;
use kera_protocol::StreamInfo;
use kera_raft::{Change, Group, Observer};
use parking_lot::Mutex;

struct Follower {
    observer: Arc<dyn StreamObserver>,
    told: Mutex<BTreeMap<StreamId, StreamInfo>>,
}

impl Follower {
    fn tell(&self, told: &mut BTreeMap<StreamId, StreamInfo>, event: &StreamEvent) {
        let is_news = match event {
            StreamEvent::Created(info) => told.insert(info.id, info.clone()).is_none(),
            StreamEvent::Altered { after, .. } => match told.get_mut(&after.id) {
                Some(known) if known.options != after.options => {
                    *known = after.clone();
                    true
                }
                _ => false,
            },
            StreamEvent::Deleted(info) => told.remove(&info.id).is_some(),
        };
        if is_news {
            self.observer.stream_changed(event);
        }
    }
}

impl Observer for Follower {
    fn changed(&self, _index: u64, change: &Change) {
        if let Change::Stream(event) = change {
            self.tell(&mut self.told.lock(), event);
        }
    }
}

/// Has an observer that knows `known` follow the group.
pub(super) fn observe(group: &Group, observer: Arc<dyn StreamObserver>, known: Vec<StreamInfo>) {
    let told = known.into_iter().map(|info| (info.id, info)).collect();
    let follower = Arc::new(Follower { observer, told: Mutex::new(told) });
    // What comes meanwhile waits until the difference has been told.
    let mut told = follower.told.lock();
    group.observe(follower.clone());
    let current: BTreeMap<StreamId, StreamInfo> =
        group.read(|state| state.catalog.streams().map(|info| (info.id, info.clone())).collect());
    let before = told.clone();
    for info in before.values().filter(|info| !current.contains_key(&info.id)) {
        follower.tell(&mut told, &StreamEvent::Deleted(info.clone()));
    }
    for info in current.into_values() {
        let event = match before.get(&info.id) {
            Some(before) => StreamEvent::Altered { before: before.clone(), after: info },
            None => StreamEvent::Created(info),
        };
        follower.tell(&mut told, &event);
    }
}
