//! Offsets of topics that are not there any more, on a node that is alone.
//!
//! Who deletes a topic as a Kafka client has its offsets forgotten with it. But native commands delete streams as well, and a node may be killed between the two. Kafka's tools
//! ask for the end of each partition that a group has an offset of, and give up describing the group where there is none. In a cluster topics are deleted at any
//! node, and all of them look ([`crate::group_door::follow`]).

use std::collections::BTreeSet;

use crate::door::Door;

/// How often it is looked whether there are others, in microseconds.
const LOOK_US: u64 = 10_000_000;

/// Looks for such offsets, and forgets them.
#[derive(Default)]
pub(crate) struct GoneTopics {
    /// The topics that there were when no offset of others was found.
    known: Option<BTreeSet<String>>,
    next_us: u64,
}

impl GoneTopics {
    /// Looks, if it is time and there are other topics than the last time. Called again and again, by the thread for commands.
    ///
    /// The catalog of a node that is alone is whole from its start on. A topic that is made just now may not be among those that are looked at, and keeps what was committed for
    /// it all the same, since it is looked up once more by its name.
    pub(crate) fn look(&mut self, door: &Door) {
        let now_us = door.clock.monotonic_us();
        if now_us < self.next_us || door.is_in_cluster() {
            return;
        }
        self.next_us = now_us + LOOK_US;
        let topics: BTreeSet<String> = door.catalog.infos().into_iter().map(|info| info.name).collect();
        if self.known.as_ref() == Some(&topics) {
            return;
        }
        let gone = door.groups.topics_beyond(&topics);
        if gone.is_empty() {
            self.known = Some(topics);
        } else {
            // The next look says whether that could be recorded.
            door.groups.topics_deleted(&gone);
        }
    }
}
