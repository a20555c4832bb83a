//! How a broker hears of the cluster that its node is in: what comes before what when it is told of streams and of their owners, and when a state of the cluster has its number.
//!
//! Called by whoever follows the coordinators, one call at a time: a thread that follows their log, or a simulator by turns. What a node knows beside its broker it says itself
//! ([`Placing`]). What is told is the newest state that there is, and the broker may have to hear of other changes in front of that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_format::{StreamId, StreamOptions, StreamletId};
use kera_log::{StreamError, Tenure};
use kera_protocol::{Owner, StreamletState};

use crate::broker::Broker;
use crate::failure::Failure;

/// What a broker is told of a state before all that has changed in it is told: had it the number of this one, whoever was told it would look at none of those changes any more.
pub const UNNUMBERED: u64 = 0;

/// What is known of a stream beside who owns it, while a broker is told that.
pub trait Placing {
    /// A streamlet that is about to be taken over gets as many copies as it is to have.
    fn set_copies(&mut self, streamlet: StreamletId);
    /// The broker knows the owners: its lanes are told where they begin, and whoever takes over may begin.
    fn placed(&mut self);
    /// What the last owner of a streamlet handed over that is about to be opened; nothing if nobody ever did.
    fn handed(&mut self, streamlet: StreamletId) -> Option<StreamletState>;
    /// A streamlet that is about to be opened gets as many copies as it is to have, and goes on in the log that is chosen for it.
    fn choose_log(&mut self, streamlet: StreamletId);
    /// The broker does not follow: of one streamlet, or of the whole stream. What was to be done with the others is done.
    fn failed(&mut self, streamlet: Option<StreamletId>, failure: Failure);
}

/// Whether something has changed, in the entry of the coordinators' log that is being told, of what the broker is told. One entry may change many streams: when a node is lost, the owners
/// of all of which it had something. So its number waits for the last of them.
#[derive(Debug, Default)]
pub struct News(AtomicBool);

impl News {
    /// Something has.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// All of entry `index` was told.
    pub fn number(&self, broker: &Broker, index: u64) {
        if self.0.swap(false, Ordering::Relaxed) {
            broker.told_up_to(index);
        }
    }
}

impl Broker {
    /// The catalog has one more stream. `has_owners`: its streamlets belong to nodes, if there are several; otherwise each node has one of its own.
    pub fn hear_of_stream(&self, id: StreamId, options: StreamOptions, has_owners: bool) -> Result<(), StreamError> {
        match has_owners && self.ownership().node() != 0 {
            true => self.stream_comes(id, options),
            false => self.stream_created(id, options),
        }
    }

    /// Who owns the streamlets of a stream, from 0 on. Of these the broker opens those that are `mine` and are not open, and is to take over those that are `lost`.
    ///
    /// The state may be ahead of what was told. A stream that is not here comes with a change of its own, or has just gone; streamlets that it has not here come with a change of their own,
    /// and as long as it does not have them the broker takes no owner of them. Nothing is done about either.
    pub fn hear_of_owners(
        &self,
        stream: StreamId,
        owners: &[Owner],
        mine: &[u32],
        lost: &[u32],
        with: &mut dyn Placing,
    ) {
        let Some(streamlets) = self.log().stream(stream).map(|found| found.streamlet_count()) else { return };
        let owners: Vec<Owner> = owners.iter().take(streamlets as usize).cloned().collect();
        // Whoever takes them over begins as soon as the broker knows that they are its own.
        for streamlet in lost.iter().copied().filter(|at| *at < streamlets) {
            with.set_copies(StreamletId(streamlet));
        }
        if let Err(failure) = self.place_stream(UNNUMBERED, stream, owners.clone()) {
            return self.does_not_follow((stream, None), failure, with);
        }
        with.placed();
        for streamlet in mine {
            let Some(epoch) = owners.get(*streamlet as usize).map(|owner| owner.epoch) else { continue };
            let streamlet = StreamletId(*streamlet);
            if self.takes_writes(stream, streamlet, epoch) {
                continue;
            }
            let handed = with.handed(streamlet);
            with.choose_log(streamlet);
            if let Err(failure) = self.open_streamlet(stream, streamlet, epoch, handed.as_ref()) {
                self.does_not_follow((stream, Some(streamlet)), failure, with);
            }
        }
    }

    /// A stream is gone by the newest state, and the change that says so is still to be told. The state does not say any more who has had it in between, so changes in front of that one are
    /// told without it, and have their numbers: what is known here of its owners may be older than those, and [nobody is told](Broker::find_owners) it from here on. Whoever asks is to ask again,
    /// and learns then that it is gone. If it was never placed it is not this node's.
    pub fn hear_of_no_owners(&self, stream: StreamId) {
        if let Some(found) = self.log().stream(stream) {
            found.place_elsewhere();
            self.ownership().goes(stream);
        }
    }

    /// Says so, unless the stream has gone meanwhile: while a node starts, another thread takes it from the log.
    fn does_not_follow(
        &self,
        (stream, streamlet): (StreamId, Option<StreamletId>),
        failure: Failure,
        with: &mut dyn Placing,
    ) {
        if self.log().stream(stream).is_some() {
            with.failed(streamlet, failure);
        }
    }

    /// Whether this node takes writes of a streamlet in this owner epoch already.
    fn takes_writes(&self, stream: StreamId, streamlet: StreamletId, epoch: u32) -> bool {
        let found = self.log().stream(stream);
        let place = found.as_ref().and_then(|found| found.streamlet(streamlet));
        place.is_some_and(|place| place.tenure() != Tenure::Elsewhere && place.owner_epoch() == epoch)
    }

    /// The streams that the broker has, those that the state has first, and below which number it has all that are still there. `next`: below which there are all. The state may be ahead of
    /// what was told: a stream that it does not have yet comes with a change of its own. Were it heard of before that, it would pass for gone in between. One that the state has no more is
    /// [told of as well](Broker::hear_of_no_owners) until it goes with a change of its own.
    pub fn known_to(&self, streams: impl IntoIterator<Item = StreamId>, next: StreamId) -> (Vec<StreamId>, StreamId) {
        let has = |stream: &StreamId| self.log().stream(*stream).is_some();
        let (mut there, to_come): (Vec<StreamId>, Vec<StreamId>) = streams.into_iter().partition(has);
        let known: BTreeSet<StreamId> = there.iter().copied().collect();
        let here = self.log().streams().into_iter().filter(|stream| !stream.is_system()).map(|stream| stream.id());
        there.extend(here.filter(|stream| !known.contains(stream)));
        (there, to_come.into_iter().min().unwrap_or(next))
    }

    /// The node has heard of a stream, whatever became of it, and of all that were made before it: see [`heard_of_streams`](Broker::heard_of_streams).
    pub fn heard_of(&self, stream: StreamId) {
        self.heard_of_streams(StreamId(stream.0.saturating_add(1)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kera_env::ManualClock;
    use kera_log::{Arena, ArenaConfig, Log, LogConfig};
    use kera_protocol::{FindOwners, Status};

    use super::*;
    use crate::BrokerConfig;

    const STREAM: StreamId = StreamId(5);

    fn broker() -> (Arc<Broker>, tempfile::TempDir) {
        let dir = tempfile::tempdir().expect("a directory");
        let config = ArenaConfig { path: dir.path().join("placing.arena"), bytes: 16 << 20, node: [1; 16] };
        let (arena, _) = Arena::create_or_attach(config).expect("an arena");
        let log = Log::new(LogConfig::default(), arena);
        (Broker::new(BrokerConfig::default(), log, Arc::new(ManualClock::new(0))), dir)
    }

    /// The first of its changes is told, and somebody asks of the second one's stream.
    #[test]
    fn an_entry_with_several_changes_has_no_number_before_the_last_of_them() {
        let (broker, _dir) = broker();
        let version = || {
            let all = FindOwners { streams: Vec::new(), after: None, limit: 0 };
            broker.find_owners(&all).ok().map(|told| told.version)
        };
        let news = News::default();
        for _ in 0..2 {
            news.note();
            assert_eq!(version(), Some(0));
        }
        news.number(&broker, 9);
        assert_eq!(version(), Some(9));
        // Nothing of the next one was told.
        news.number(&broker, 10);
        assert_eq!(version(), Some(9));
    }

    #[test]
    fn a_stream_that_the_broker_is_still_to_be_told_of_is_not_heard_of() {
        let (broker, _dir) = broker();
        broker.stream_created(STREAM, StreamOptions::default()).expect("made");
        let known = |streams: &[u64]| broker.known_to(streams.iter().copied().map(StreamId), StreamId(9));
        assert_eq!(known(&[5]), (vec![STREAM], StreamId(9)), "those in between are gone");
        assert_eq!(known(&[5, 7, 8]), (vec![STREAM], StreamId(7)));
    }

    /// Another node owns it by now, and it was deleted behind that: the newest state does not say any more who that is. With the number of a state in which it had another owner the
    /// owner before was told.
    #[test]
    fn the_owners_of_a_stream_that_a_later_state_has_no_more_are_told_to_nobody() {
        let (broker, _dir) = broker();
        broker.join_cluster([1; 16], 1);
        broker.hear_of_stream(STREAM, StreamOptions::default(), true).expect("it comes");
        broker.hear_of_owners(STREAM, &[of(2, 6)], &[], &[], &mut Noted::default());
        broker.told_up_to(9);
        let asks = |streams| broker.find_owners(&FindOwners { streams, after: None, limit: 0 });
        let one = || asks(vec![STREAM.into()]).map_err(|failure| failure.status);
        assert_eq!(one().map(|told| (told.version, told.streams[0].runs[0].epoch)), Ok((9, 6)));
        broker.hear_of_no_owners(STREAM);
        broker.told_up_to(17);
        assert_eq!(one().map(|told| told.version), Err(Status::NotReady));
        let all = asks(Vec::new()).expect("all that are there");
        assert!(all.version == 17 && all.streams.is_empty(), "{all:?}");
        broker.stream_deleted(STREAM).expect("it was there");
        assert_eq!(one().map(|told| told.version), Err(Status::UnknownStream));
    }

    /// The node found it in its log when it started. It was told as this node's, and would have taken writes.
    #[test]
    fn a_stream_that_has_gone_while_the_node_started_is_not_its_own() {
        let (broker, _dir) = broker();
        broker.stream_created(STREAM, StreamOptions::default()).expect("made");
        broker.join_cluster([1; 16], 1);
        let (there, heard_before) = broker.known_to([], StreamId(9));
        assert_eq!((&there[..], heard_before), (&[STREAM][..], StreamId(9)));
        broker.hear_of_no_owners(STREAM);
        let asked = FindOwners { streams: vec![STREAM.into()], after: None, limit: 0 };
        let told = broker.find_owners(&asked).map_err(|failure| failure.status);
        assert_eq!(told.map(|told| told.node), Err(Status::NotReady));
        let stream = broker.log().stream(STREAM).expect("it is there");
        assert_eq!(stream.streamlet(StreamletId(0)).expect("it has one").tenure(), Tenure::Elsewhere);
        // Once its log was told it is told of as what is gone.
        broker.stream_deleted(STREAM).expect("it was there");
        broker.hear_of_no_owners(STREAM);
        assert!(broker.known_to([], StreamId(9)).0.is_empty());
        assert_eq!(broker.find_owners(&asked).map_err(|failure| failure.status), Err(Status::UnknownStream));
    }

    /// It was deleted by the time that this node heard of its making.
    #[test]
    fn a_stream_that_came_and_went_is_not_waited_for() {
        let (broker, _dir) = broker();
        let may_come = |stream| broker.ownership().may_hear_of(StreamId(stream));
        broker.heard_of_streams(StreamId(50));
        assert!(may_come(50));
        broker.heard_of(StreamId(50));
        assert_eq!([50, 51].map(may_come), [false, true]);
    }

    /// Notes what is asked, and of which streamlet. If it is to, it has the stream deleted as soon as something is asked.
    #[derive(Default)]
    struct Noted(Vec<(&'static str, u32)>, Option<(&'static str, Arc<Broker>)>);

    impl Noted {
        fn note(&mut self, what: &'static str, at: u32) {
            self.0.push((what, at));
            if let Some((_, broker)) = self.1.take_if(|(when, _)| *when == what) {
                broker.stream_deleted(STREAM).expect("it was there");
            }
        }
    }

    impl Placing for Noted {
        fn set_copies(&mut self, streamlet: StreamletId) {
            self.note("copies", streamlet.0);
        }
        fn placed(&mut self) {
            self.note("placed", 0);
        }
        fn handed(&mut self, streamlet: StreamletId) -> Option<StreamletState> {
            self.note("handed", streamlet.0);
            None
        }
        fn choose_log(&mut self, streamlet: StreamletId) {
            self.note("log", streamlet.0);
        }
        fn failed(&mut self, streamlet: Option<StreamletId>, _: Failure) {
            self.note("failed", streamlet.map_or(u32::MAX, |at| at.0));
        }
    }

    fn of(node: u32, epoch: u32) -> Owner {
        Owner { node, epoch, older: Vec::new() }
    }

    #[test]
    fn copies_are_known_before_owners_and_what_is_open_is_opened_once() {
        let (broker, _dir) = broker();
        broker.join_cluster([1; 16], 1);
        let options = StreamOptions { streamlets: 3, ..StreamOptions::default() };
        broker.hear_of_stream(STREAM, options, true).expect("it comes");
        let owners = [of(1, 7), of(1, 8), of(2, 7)];
        let mut noted = Noted::default();
        broker.hear_of_owners(STREAM, &owners, &[0], &[1], &mut noted);
        assert_eq!(noted.0, [("copies", 1), ("placed", 0), ("handed", 0), ("log", 0)]);
        let stream = broker.log().stream(STREAM).expect("it is there");
        let tenure = |at| stream.streamlet(StreamletId(at)).expect("it has one").tenure();
        // Whoever takes over opens the second one.
        assert_eq!([0, 1, 2].map(tenure), [Tenure::Here, Tenure::Elsewhere, Tenure::Elsewhere]);
        let mut noted = Noted::default();
        broker.hear_of_owners(STREAM, &owners, &[0], &[], &mut noted);
        assert_eq!(noted.0, [("placed", 0)]);
    }

    /// Of a stream that is not there nothing is. Of all owners of the other one its broker took some, opened none, and was to be started again.
    #[test]
    fn of_a_stream_that_the_log_is_still_to_be_told_to_grow_what_it_has_is_placed() {
        let (broker, _dir) = broker();
        broker.join_cluster([1; 16], 1);
        let owners = [of(1, 3), of(2, 3), of(1, 3), of(1, 3)];
        let mut noted = Noted::default();
        broker.hear_of_owners(STREAM, &owners, &[0, 2], &[3], &mut noted);
        assert!(noted.0.is_empty(), "{:?}", noted.0);
        let options = StreamOptions { streamlets: 2, ..StreamOptions::default() };
        broker.hear_of_stream(STREAM, options, true).expect("it comes");
        broker.hear_of_owners(STREAM, &owners, &[0, 2], &[3], &mut noted);
        assert_eq!(noted.0, [("placed", 0), ("handed", 0), ("log", 0)]);
        assert_eq!(broker.ownership().owners(STREAM), Some(owners[..2].to_vec()));
    }

    /// Another thread takes it from the log.
    #[test]
    fn a_stream_that_goes_while_it_is_placed_is_nothing_to_be_told_of() {
        let all = [("copies", 1), ("placed", 0), ("handed", 0), ("log", 0)];
        for (when, asked) in [("copies", 1), ("handed", 4)] {
            let (broker, _dir) = broker();
            broker.join_cluster([1; 16], 1);
            let options = StreamOptions { streamlets: 2, ..StreamOptions::default() };
            broker.hear_of_stream(STREAM, options, true).expect("it comes");
            let mut noted = Noted(Vec::new(), Some((when, broker.clone())));
            broker.hear_of_owners(STREAM, &[of(1, 7), of(1, 8)], &[0], &[1], &mut noted);
            assert_eq!(noted.0, all[..asked]);
            assert!(broker.log().stream(STREAM).is_none(), "it has not gone");
        }
    }

    /// The state has two more by now, each of which was added for itself.
    #[test]
    fn streamlets_are_opened_one_by_one_as_the_log_is_told_of_them() {
        let (broker, _dir) = broker();
        broker.join_cluster([1; 16], 1);
        let grown = |streamlets| StreamOptions { streamlets, ..StreamOptions::default() };
        broker.hear_of_stream(STREAM, grown(1), true).expect("it comes");
        let owners = [of(1, 7), of(1, 8), of(1, 9)];
        for streamlets in 1..=3 {
            broker.stream_altered(STREAM, grown(streamlets)).expect("it grows");
            let mut noted = Noted::default();
            broker.hear_of_owners(STREAM, &owners, &[0, 1, 2], &[], &mut noted);
            let newest = streamlets - 1;
            assert_eq!(noted.0, [("placed", 0), ("handed", newest), ("log", newest)]);
        }
    }
}
