//! What has become true, as those are told of it who follow the state: and what a node's broker is told of that, in which order.
//!
//! Pure questions, like those of `duties.rs`: who follows a log of the coordinators asks them on a thread of its own, and a simulator by turns. What is looked at when something is
//! told is the newest state that there is, which may be ahead of what is told.

use std::collections::BTreeMap;

use kera_format::catalog::Entry as CatalogEntry;
use kera_format::cluster::{ClusterEntry, NodeNumber, OwnerReason};
use kera_format::{LaneId, StreamId};
use kera_protocol::StreamInfo;

use super::{ClusterState, Refused};
use crate::StreamEvent;

/// What has become true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A stream was made, altered or deleted.
    Stream(StreamEvent),
    /// Anything else.
    Cluster(ClusterEntry),
    /// A snapshot has replaced the state. Changes of streams have been told before; everything else may be different.
    Replaced,
}

/// One step of telling a node's broker of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Telling {
    /// Of the nodes.
    Nodes,
    /// Of the nodes, of all streams that it has as with [`Place`](Telling::Place), and up to which number it has heard of streams.
    Everything,
    /// Who owns the streamlets of a stream, and which of them it takes.
    Place(StreamId),
    /// That a stream is gone.
    Gone(StreamId),
    /// That it has heard of a stream, whatever became of that. Changes come in order: so all streams with lower numbers are placed that are still there. One that was made and is gone by
    /// the time that a node hears of its making is never placed; were it not said that it was heard of, whoever has written to it would wait for it without end.
    HeardOf(StreamId),
    /// That another node holds older groups of a streamlet that it may be rebuilding.
    HeldAgain(StreamId, u32),
    /// The same of whatever it may be rebuilding.
    AllHeldAgain,
    /// Where a lane begins.
    Begins(StreamId, u32, LaneId),
    /// What it has left of streamlets that others have [rebuilt](ClusterState::rebuilt_by_others) goes.
    DropRebuilt,
    /// The same of some streamlets: see [`is_rebuilt_by_others`](ClusterState::is_rebuilt_by_others).
    DropRebuiltOf {
        /// Of which stream.
        stream: StreamId,
        /// The first.
        first: u32,
        /// How many.
        count: u32,
    },
}

impl Telling {
    /// What is told to a node that begins to follow. What others have rebuilt since its log was put together nobody tells it one by one, and what it has left of that has to go
    /// before it hears that it may own it again: it would be taken for what it holds. If it owns it by the state that there is already, it stays: see `Change::Replaced` below.
    pub fn at_start() -> [Telling; 2] {
        [Telling::DropRebuilt, Telling::Everything]
    }
}

impl Change {
    /// What a node's broker is told of it, in this order; nothing of what does not concern it. All of it is told before anything of the next change is.
    pub fn tellings(&self, node: NodeNumber) -> Vec<Telling> {
        match self {
            // Nobody is told one by one of what others have rebuilt or hold again before it, and what was given up. Owners come first: what is open here and is others' by now is closed
            // by that, and nothing goes of what is open. Of what this node owns again by then nothing goes in either order: the state does not tell what is left of an earlier
            // time from what is held, which may be all there is. `docs/replication.md` says what that leaves ("Whose logs a rebuild needs").
            Change::Replaced => vec![Telling::Everything, Telling::DropRebuilt, Telling::AllHeldAgain],
            Change::Stream(StreamEvent::Deleted(info)) => vec![Telling::Gone(info.id), Telling::HeardOf(info.id)],
            Change::Stream(StreamEvent::Altered { after: info, .. } | StreamEvent::Created(info)) => {
                vec![Telling::Place(info.id), Telling::HeardOf(info.id)]
            }
            Change::Cluster(entry) => tellings_of(entry, node),
        }
    }

    /// Whether it is one of what a broker is told: of nodes, streams and owners. Also if the broker has heard of it before, with the newest state of something else: whoever
    /// was told the number of that by another node asks for a later one.
    pub fn is_told(&self) -> bool {
        use ClusterEntry as Is;
        let is_of_owners = |entry: &ClusterEntry| {
            let has_moved = matches!(entry, Is::OwnerChanged { .. } | Is::OwnerReturned { .. });
            has_moved || matches!(entry, Is::GroupsHeld { .. } | Is::GroupsLost { .. } | Is::GroupsReturned { .. })
        };
        let is_of_nodes = |entry: &ClusterEntry| {
            matches!(entry, Is::NodeJoined { .. } | Is::NodeFenced { .. } | Is::NodeRemoved { .. })
        };
        match self {
            Change::Replaced | Change::Stream(_) => true,
            Change::Cluster(entry) => is_of_owners(entry) || is_of_nodes(entry),
        }
    }

    /// Whether moves of streamlets may be noted, called off or over since.
    pub fn is_about_moves(&self) -> bool {
        use ClusterEntry as Is;
        let Change::Cluster(entry) = self else { return false };
        matches!(
            entry,
            Is::MoveNoted { .. }
                | Is::MoveCalledOff { .. }
                | Is::OwnerChanged { .. }
                | Is::NodeJoined { .. }
                | Is::NodeFenced { .. }
        )
    }

    /// Whether something may be taken over or rebuilt behind it that could not before, or logs of a node's earlier incarnations may go. `state`: as it is now.
    pub fn may_be_waited_for(&self, state: &ClusterState) -> bool {
        use ClusterEntry as Is;
        match self {
            Change::Replaced => true,
            // A person has said that nobody has these blocks. Of logs that are written to it is their owners that need them no more.
            Change::Cluster(Is::ViewGivenUp { log, .. }) => !state.is_live(log.node, log.epoch),
            Change::Cluster(
                Is::LogEnded { .. }
                | Is::EndTakenBack { .. }
                | Is::EndGivenUp { .. }
                | Is::ViewGivenUpFor { .. }
                | Is::LogGivenUp { .. }
                | Is::StreamletsRebuilt { .. }
                | Is::GroupsReturned { .. }
                // Somebody may be back with what is missing.
                | Is::NodeJoined { .. }
                | Is::NodeFenced { .. }
                | Is::NodeRemoved { .. },
            ) => true,
            Change::Stream(_) | Change::Cluster(_) => false,
        }
    }
}

fn tellings_of(entry: &ClusterEntry, node: NodeNumber) -> Vec<Telling> {
    use ClusterEntry as Is;
    match entry {
        // Who gives it back may have rebuilt some of it before it was started again.
        Is::OwnerChanged { stream, first, count, reason: OwnerReason::GivenBack, .. } => {
            vec![Telling::Place(*stream), Telling::DropRebuiltOf { stream: *stream, first: *first, count: *count }]
        }
        Is::OwnerChanged { stream, .. } | Is::GroupsHeld { stream, .. } | Is::GroupsLost { stream, .. } => {
            vec![Telling::Place(*stream)]
        }
        Is::GroupsReturned { stream, streamlet, .. } => {
            vec![Telling::Place(*stream), Telling::HeldAgain(*stream, *streamlet)]
        }
        Is::LaneBegins { stream, streamlet, lane, .. } => vec![Telling::Begins(*stream, *streamlet, *lane)],
        Is::OwnerReturned { .. } => vec![Telling::Everything],
        Is::LogGivenUp { log } if log.node == node => vec![Telling::DropRebuilt],
        Is::StreamletsRebuilt { stream, first, count, .. } => {
            vec![Telling::DropRebuiltOf { stream: *stream, first: *first, count: *count }]
        }
        Is::NodeJoined { .. } | Is::NodeFenced { .. } | Is::NodeRemoved { .. } => vec![Telling::Nodes],
        _ => Vec::new(),
    }
}

/// The streams that somebody was told of who is told each of their changes once, and in order.
#[derive(Clone, Debug, Default)]
pub struct ToldStreams {
    known: BTreeMap<StreamId, StreamInfo>,
    /// What all entries up to this one have come to was told together. One by one they would take a stream back to options that it has no more; one that has grown since
    /// cannot go back.
    through: u64,
}

impl ToldStreams {
    /// Of somebody who knows these.
    pub fn of(known: impl IntoIterator<Item = StreamInfo>) -> ToldStreams {
        ToldStreams { known: known.into_iter().map(|info| (info.id, info)).collect(), through: 0 }
    }

    /// Whether what entry `index` has changed is news to whom it is about to be told: it may have been told with a later state.
    pub fn is_news(&mut self, index: u64, event: &StreamEvent) -> bool {
        if index <= self.through {
            return false;
        }
        match event {
            StreamEvent::Created(info) => self.known.insert(info.id, info.clone()).is_none(),
            StreamEvent::Altered { after, .. } => match self.known.get_mut(&after.id) {
                Some(known) if known.options != after.options => {
                    *known = after.clone();
                    true
                }
                _ => false,
            },
            StreamEvent::Deleted(info) => self.known.remove(&info.id).is_some(),
        }
    }

    /// All that is to be told to know these streams and no others, which are those behind entry `through`.
    pub fn catch_up<'a>(
        &mut self,
        current: impl IntoIterator<Item = &'a StreamInfo>,
        through: u64,
    ) -> Vec<StreamEvent> {
        self.through = through;
        let before = std::mem::take(&mut self.known);
        self.known = current.into_iter().map(|info| (info.id, info.clone())).collect();
        let gone = before.values().filter(|info| !self.known.contains_key(&info.id));
        let mut events: Vec<StreamEvent> = gone.cloned().map(StreamEvent::Deleted).collect();
        events.extend(self.known.values().filter_map(|info| change_of(before.get(&info.id), info)));
        events
    }
}

/// What has happened to a stream that is there.
fn change_of(before: Option<&StreamInfo>, after: &StreamInfo) -> Option<StreamEvent> {
    match before {
        None => Some(StreamEvent::Created(after.clone())),
        Some(before) if before.options != after.options => {
            Some(StreamEvent::Altered { before: before.clone(), after: after.clone() })
        }
        Some(_) => None,
    }
}

impl ClusterState {
    /// Makes an entry true as [`apply`](ClusterState::apply) does; what those are told who follow the state, if there is something to be told.
    pub fn apply_telling(&mut self, entry: &ClusterEntry) -> Result<Option<Change>, Refused> {
        let find = |state: &ClusterState, stream: StreamId| stream_of(state, stream).cloned();
        let before = match entry {
            ClusterEntry::Catalog(
                CatalogEntry::StreamAltered { stream, .. } | CatalogEntry::StreamDeleted { stream, .. },
            ) => find(self, *stream),
            _ => None,
        };
        self.apply(entry)?;
        let event = match entry {
            ClusterEntry::Catalog(CatalogEntry::StreamCreated { stream, .. }) => {
                find(self, *stream).map(StreamEvent::Created)
            }
            ClusterEntry::Catalog(CatalogEntry::StreamAltered { stream, .. }) => {
                let after = find(self, *stream);
                before.zip(after).map(|(before, after)| StreamEvent::Altered { before, after })
            }
            ClusterEntry::Catalog(CatalogEntry::StreamDeleted { .. }) => before.map(StreamEvent::Deleted),
            ClusterEntry::Catalog(_) => None,
            other => return Ok(Some(Change::Cluster(other.clone()))),
        };
        Ok(event.map(Change::Stream))
    }

    /// What those are told who follow the state when another one takes its place. Streams that have come are told by their numbers, as they were made: with each of them whoever is told
    /// takes those with lower numbers for told.
    pub fn changes_to(&self, after: &ClusterState) -> Vec<Change> {
        let gone = self.catalog.streams().filter(|info| stream_of(after, info.id).is_none());
        let gone = gone.map(|info| StreamEvent::Deleted(info.clone()));
        let mut there: Vec<&StreamInfo> = after.catalog.streams().collect();
        there.sort_unstable_by_key(|info| info.id);
        let others = there.into_iter().filter_map(|info| change_of(stream_of(self, info.id), info));
        gone.chain(others).map(Change::Stream).chain([Change::Replaced]).collect()
    }
}

fn stream_of(state: &ClusterState, stream: StreamId) -> Option<&StreamInfo> {
    state.catalog.find(&stream.into()).ok()
}

#[cfg(test)]
mod tests {
    use kera_format::StreamOptions;

    use super::*;

    fn stream(id: u64, streamlets: u32) -> StreamInfo {
        let options = StreamOptions { streamlets, ..StreamOptions::default() };
        StreamInfo { id: StreamId(id), name: format!("s{id}"), created_ms: 0, options }
    }

    fn created(id: u64) -> ClusterEntry {
        let StreamInfo { id: stream, name, options, .. } = stream(id, 1);
        ClusterEntry::Catalog(CatalogEntry::StreamCreated { stream, at_ms: 0, options, name })
    }

    #[test]
    fn what_happens_to_a_stream_is_told_with_what_it_was() {
        let mut state = ClusterState::default();
        let told = state.apply_telling(&created(5)).expect("made");
        assert_eq!(told, Some(Change::Stream(StreamEvent::Created(stream(5, 1)))));
        let deleted = ClusterEntry::Catalog(CatalogEntry::StreamDeleted { stream: StreamId(5), at_ms: 0 });
        let told = state.apply_telling(&deleted).expect("deleted");
        assert_eq!(told, Some(Change::Stream(StreamEvent::Deleted(stream(5, 1)))));
        assert!(state.apply_telling(&deleted).is_err(), "it is gone");
    }

    #[test]
    fn a_state_that_takes_the_place_of_another_one_is_told_as_streams_and_then_as_a_whole() {
        let of = |ids: &[u64]| {
            let mut state = ClusterState::default();
            ids.iter().for_each(|id| state.apply(&created(*id)).expect("made"));
            state
        };
        let told = of(&[1, 2]).changes_to(&of(&[2, 3]));
        let (gone, made) = (StreamEvent::Deleted(stream(1, 1)), StreamEvent::Created(stream(3, 1)));
        assert_eq!(told, [Change::Stream(gone), Change::Stream(made), Change::Replaced]);
    }

    /// With each of them all that have lower numbers count as told.
    #[test]
    fn streams_that_come_with_a_snapshot_are_told_in_the_order_of_their_numbers() {
        let state = |streams: &[(u64, &str)]| {
            let mut state = ClusterState::default();
            for (number, name) in streams {
                let (stream, name, options) = (StreamId(*number), (*name).to_owned(), StreamOptions::default());
                let made = CatalogEntry::StreamCreated { stream, at_ms: 1, options, name };
                state.apply(&ClusterEntry::Catalog(made)).expect("made");
            }
            state
        };
        let told = state(&[(3, "d")]).changes_to(&state(&[(3, "d"), (5, "c"), (8, "a"), (9, "b")]));
        let made = told.iter().filter_map(|change| match change {
            Change::Stream(StreamEvent::Created(info)) => Some(info.id.0),
            _ => None,
        });
        assert_eq!(made.collect::<Vec<u64>>(), [5, 8, 9]);
        assert_eq!(told.last(), Some(&Change::Replaced));
    }

    #[test]
    fn a_stream_is_placed_before_it_was_heard_of_and_gone_all_the_same() {
        let (made, gone) = (StreamEvent::Created(stream(7, 1)), StreamEvent::Deleted(stream(7, 1)));
        let heard = Telling::HeardOf(StreamId(7));
        assert_eq!(Change::Stream(made).tellings(1), [Telling::Place(StreamId(7)), heard.clone()]);
        assert_eq!(Change::Stream(gone).tellings(1), [Telling::Gone(StreamId(7)), heard]);
    }

    #[test]
    fn who_begins_to_follow_drops_what_others_have_rebuilt_meanwhile_before_it_hears_of_owners() {
        let at_start = Telling::at_start();
        let at = |what: Telling| at_start.iter().position(|one| *one == what).expect("it is told");
        assert!(at(Telling::DropRebuilt) < at(Telling::Everything));
    }

    #[test]
    fn who_gives_a_streamlet_back_drops_what_it_has_of_it_once_it_knows_the_owner() {
        let (stream, first, count) = (StreamId(7), 3, 1);
        let tellings = |reason| {
            let entry = ClusterEntry::OwnerChanged {
                stream,
                first,
                count,
                node: 2,
                epoch: 4,
                owner_epoch: 9,
                reason,
                number: 8,
            };
            Change::Cluster(entry).tellings(1)
        };
        let drops = Telling::DropRebuiltOf { stream, first, count };
        assert_eq!(tellings(OwnerReason::GivenBack), [Telling::Place(stream), drops]);
        assert_eq!(tellings(OwnerReason::Moved), [Telling::Place(stream)], "it may hold older groups of it");
    }

    /// Nobody tells it one by one. What it rebuilds would wait for blocks that nobody gives, although somebody has come back with it.
    #[test]
    fn who_is_brought_up_by_a_snapshot_is_told_of_what_others_hold_again_by_then_once_it_knows_the_owners() {
        let tellings = Change::Replaced.tellings(1);
        let at = |what: Telling| tellings.iter().position(|one| *one == what).expect("it is told");
        assert!(at(Telling::Everything) < at(Telling::AllHeldAgain));
    }

    /// Nothing of it is what a broker is told: whoever has the number before it need not ask again.
    #[test]
    fn a_change_that_no_broker_is_told_of_has_no_number_for_it() {
        let is_told = |entry| Change::Cluster(entry).is_told();
        assert!(is_told(ClusterEntry::NodeFenced { node: 1, epoch: 1 }));
        assert!(!is_told(ClusterEntry::LevelRaised { level: 2 }));
    }

    #[test]
    fn what_somebody_knows_already_is_no_news() {
        let mut told = ToldStreams::of([stream(1, 1), stream(2, 1)]);
        let altered = |of: &StreamInfo| StreamEvent::Altered { before: stream(2, 1), after: of.clone() };
        let caught_up = told.catch_up(&[stream(2, 4), stream(3, 1)], 14);
        let (gone, made) = (StreamEvent::Deleted(stream(1, 1)), StreamEvent::Created(stream(3, 1)));
        assert_eq!(caught_up, [gone.clone(), altered(&stream(2, 4)), made.clone()]);
        // What the log tells of the same comes behind that.
        assert_eq!([gone, altered(&stream(2, 4)), made].map(|event| told.is_news(14, &event)), [false; 3]);
        assert!(!told.is_news(15, &altered(&stream(2, 4))), "it is so already");
        assert!(told.is_news(15, &altered(&stream(2, 5))) && told.is_news(16, &StreamEvent::Deleted(stream(3, 1))));
        assert!(!told.is_news(17, &StreamEvent::Deleted(stream(3, 1))), "once");
    }
}
