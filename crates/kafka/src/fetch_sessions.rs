//! Fetch sessions (KIP-227): what a client fetches, remembered between its fetches, so that it only names what has changed and
//! is only told what has.
//!
//! Sessions are limited in number and in partitions, those of all connections together. When there is no room the session
//! unused for longest goes, if that is long enough; otherwise a client gets none and names all partitions each time, as one
//! does that knows nothing of sessions. A connection that closes lets go of the session that it used last; a client that
//! comes back for it is told so, and begins another. Nor does one get a session that names what no topic can be called: such a name may be as long as a request, and each
//! partition of a session keeps its topic's.
//!
//! On I/O threads. The lock of the cache is held to find a session, that of a session to change or to list its partitions.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use kera_env::Random;
use kera_format::limits::STREAM_NAME_BYTES_MAX;
use parking_lot::Mutex;
use uuid::Uuid;

/// The id that says that there is no session.
pub(crate) const NO_SESSION: i32 = 0;
/// The epoch of a fetch that begins a session.
const BEGIN: i32 = 0;
/// The epoch of a fetch that ends one, or does without.
const END: i32 = -1;
/// From this version on topics are named by their ids.
const VERSION_TOPIC_IDS: i16 = 13;
/// A session unused for so long makes way for others, in microseconds: as in Kafka.
const IDLE_US: u64 = 120_000_000;

/// How a topic is named by those who fetch it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Named {
    Name(TopicName),
    Id(Uuid),
}

type Key = (Named, i32);

/// Whether the names of all these topics are short enough to be remembered.
fn may_be_kept(topics: &[FetchTopic]) -> bool {
    topics.iter().all(|topic| topic.topic.len() <= STREAM_NAME_BYTES_MAX)
}

/// A partition of a session: what is fetched, and what its client knows of it.
#[derive(Clone, Copy, Debug)]
struct Watched {
    offset: i64,
    bytes_max: i32,
    leader_epoch: i32,
    high_watermark: i64,
    log_start: i64,
}

impl Watched {
    /// A partition of which nothing was told yet.
    fn new(asked: &FetchPartition) -> Watched {
        Watched {
            offset: asked.fetch_offset,
            bytes_max: asked.partition_max_bytes,
            leader_epoch: asked.current_leader_epoch,
            high_watermark: -1,
            log_start: -1,
        }
    }
}

/// What is told of a partition in one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) error: i16,
    pub(crate) high_watermark: i64,
    pub(crate) log_start: i64,
    pub(crate) has_records: bool,
    /// It has some, for which no room was left.
    pub(crate) is_left_out: bool,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    /// What the next fetch has to say.
    epoch: i32,
    by_id: bool,
    partitions: BTreeMap<Key, Watched>,
    /// Where the next answer begins: with the first partition that was left out, or else behind the one that had records last, so that none is served
    /// before the others every time.
    next: Bound<Key>,
}

/// What a fetch is, in the eyes of sessions.
#[derive(Debug)]
pub(crate) enum Mode {
    /// It has none.
    Without,
    /// It names everything and wants a session.
    Begins,
    /// It goes on in this one: the request now has all partitions of it.
    GoesOn(Arc<Mutex<Session>>),
}

/// The sessions of a node.
pub(crate) struct FetchSessions {
    state: Mutex<State>,
    sessions_max: usize,
    partitions_max: usize,
    random: Arc<dyn Random>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<i32, Slot>,
    /// Of all sessions.
    partitions: usize,
}

struct Slot {
    session: Arc<Mutex<Session>>,
    partitions: usize,
    used_us: u64,
}

impl State {
    fn remove(&mut self, id: i32) {
        if let Some(slot) = self.sessions.remove(&id) {
            self.partitions -= slot.partitions;
        }
    }
}

impl FetchSessions {
    /// No sessions yet; at most so many, with at most so many partitions together.
    pub(crate) fn new(sessions_max: usize, partitions_max: usize, random: Arc<dyn Random>) -> FetchSessions {
        FetchSessions { state: Mutex::default(), sessions_max, partitions_max, random }
    }

    /// What a fetch of `version` is. If it goes on in a session, what it changes is changed there, and all partitions of the
    /// session are put into the request.
    pub(crate) fn begin(&self, asked: &mut FetchRequest, version: i16, now_us: u64) -> Result<Mode, ResponseError> {
        let id = asked.session_id;
        if matches!(asked.session_epoch, BEGIN | END) {
            if id != NO_SESSION {
                self.remove(id);
            }
            return Ok(if asked.session_epoch == BEGIN { Mode::Begins } else { Mode::Without });
        }
        if !may_be_kept(&asked.topics) {
            // Its client names all partitions then, and gets no other one.
            self.remove(id);
            return Err(ResponseError::FetchSessionIdNotFound);
        }
        let session = {
            let mut state = self.state.lock();
            let slot = state.sessions.get_mut(&id).ok_or(ResponseError::FetchSessionIdNotFound)?;
            slot.used_us = now_us;
            Arc::clone(&slot.session)
        };
        let partitions = {
            let mut session = session.lock();
            if session.epoch != asked.session_epoch {
                return Err(ResponseError::InvalidFetchSessionEpoch);
            }
            if session.by_id != (version >= VERSION_TOPIC_IDS) {
                return Err(ResponseError::FetchSessionTopicIdError);
            }
            session.epoch = if session.epoch == i32::MAX { 1 } else { session.epoch + 1 };
            session.change(asked);
            asked.topics = session.topics();
            asked.forgotten_topics_data = Vec::new();
            session.partitions.len()
        };
        if partitions == 0 {
            self.remove(id);
            return Ok(Mode::Without);
        }
        if !self.resized(id, partitions, now_us) {
            return Err(ResponseError::FetchSessionIdNotFound);
        }
        Ok(Mode::GoesOn(session))
    }

    /// A session has so many partitions now. False if that is too many: it is gone then.
    fn resized(&self, id: i32, partitions: usize, now_us: u64) -> bool {
        let mut state = self.state.lock();
        let Some(slot) = state.sessions.get_mut(&id) else { return true };
        let before = std::mem::replace(&mut slot.partitions, partitions);
        state.partitions = state.partitions - before + partitions;
        if partitions > before && !self.make_room(&mut state, 0, 0, now_us) {
            state.remove(id);
            return false;
        }
        true
    }

    /// Begins a session with what a fetch has named and was told. Its id; [`NO_SESSION`] if there is no room for it.
    pub(crate) fn create(&self, asked: &FetchRequest, version: i16, told: &[Told], now_us: u64) -> i32 {
        if !may_be_kept(&asked.topics) {
            return NO_SESSION;
        }
        let by_id = version >= VERSION_TOPIC_IDS;
        let mut session = Session { epoch: 1, by_id, partitions: BTreeMap::new(), next: Bound::Unbounded };
        session.add(&asked.topics);
        if session.partitions.is_empty() {
            return NO_SESSION;
        }
        session.tell_all(&asked.topics, told, |_| {});
        let partitions = session.partitions.len();
        let mut state = self.state.lock();
        if !self.make_room(&mut state, 1, partitions, now_us) {
            return NO_SESSION;
        }
        let id = loop {
            let id = (self.random.next_u64() >> 33) as i32;
            if id != NO_SESSION && !state.sessions.contains_key(&id) {
                break id;
            }
        };
        state.partitions += partitions;
        state.sessions.insert(id, Slot { session: Arc::new(Mutex::new(session)), partitions, used_us: now_us });
        id
    }

    /// Lets idle sessions go until there is room for more. False if there is none.
    fn make_room(&self, state: &mut State, sessions: usize, partitions: usize, now_us: u64) -> bool {
        let fits = |state: &State| {
            state.sessions.len() + sessions <= self.sessions_max && state.partitions + partitions <= self.partitions_max
        };
        while !fits(state) {
            let oldest = state.sessions.iter().min_by_key(|(_, slot)| slot.used_us);
            match oldest.map(|(id, slot)| (*id, slot.used_us)) {
                Some((id, used_us)) if now_us.saturating_sub(used_us) >= IDLE_US => state.remove(id),
                _ => return false,
            }
        }
        true
    }

    /// A session is over.
    pub(crate) fn remove(&self, id: i32) {
        self.state.lock().remove(id);
    }

    /// How many sessions there are, and how many partitions are in them.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.sessions.len(), state.partitions)
    }
}

impl Session {
    fn named(&self, name: &TopicName, id: Uuid) -> Named {
        if self.by_id { Named::Id(id) } else { Named::Name(name.clone()) }
    }

    /// What a fetch names is added, or changed; what it forgets is removed.
    fn change(&mut self, asked: &FetchRequest) {
        self.add(&asked.topics);
        for topic in &asked.forgotten_topics_data {
            let named = self.named(&topic.topic, topic.topic_id);
            for partition in &topic.partitions {
                self.partitions.remove(&(named.clone(), *partition));
            }
        }
    }

    fn add(&mut self, topics: &[FetchTopic]) {
        for topic in topics {
            // A name is a part of the request's bytes, which are not to be kept for it.
            let name = TopicName(StrBytes::from_string(topic.topic.to_string()));
            let named = self.named(&name, topic.topic_id);
            for asked in &topic.partitions {
                let fresh = Watched::new(asked);
                let known = self.partitions.entry((named.clone(), asked.partition)).or_insert(fresh);
                let (high_watermark, log_start) = (known.high_watermark, known.log_start);
                *known = Watched { high_watermark, log_start, ..fresh };
            }
        }
    }

    /// All partitions, as a request names them, from the one on whose turn it is.
    fn topics(&self) -> Vec<FetchTopic> {
        let first = self.partitions.range((self.next.as_ref(), Bound::Unbounded));
        let rest = match &self.next {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(Bound::Excluded(key)),
            Bound::Excluded(key) => Some(Bound::Included(key)),
        };
        let second = rest.into_iter().flat_map(|end| self.partitions.range((Bound::Unbounded, end)));
        let mut topics: Vec<FetchTopic> = Vec::new();
        let mut last: Option<&Named> = None;
        for ((named, partition), watched) in first.chain(second) {
            if last != Some(named) {
                last = Some(named);
                topics.push(match named {
                    Named::Name(name) => FetchTopic::default().with_topic(name.clone()),
                    Named::Id(id) => FetchTopic::default().with_topic_id(*id),
                });
            }
            let asked = FetchPartition::default()
                .with_partition(*partition)
                .with_fetch_offset(watched.offset)
                .with_partition_max_bytes(watched.bytes_max)
                .with_current_leader_epoch(watched.leader_epoch);
            topics.last_mut().expect("a topic was put").partitions.push(asked);
        }
        topics
    }

    /// Notes what an answer tells of the partitions of a request, and calls `each` with whether the client has to hear of it.
    pub(crate) fn tell_all(&mut self, topics: &[FetchTopic], told: &[Told], mut each: impl FnMut(bool)) {
        let (mut told, mut left_out) = (told.iter(), None);
        for topic in topics {
            let named = self.named(&topic.topic, topic.topic_id);
            for (asked, told) in topic.partitions.iter().zip(&mut told) {
                let key = (named.clone(), asked.partition);
                if told.is_left_out {
                    left_out.get_or_insert_with(|| key.clone());
                }
                each(self.tell(key, told));
            }
        }
        if let Some(key) = left_out {
            self.next = Bound::Included(key);
        }
    }

    fn tell(&mut self, key: Key, told: &Told) -> bool {
        let Some(watched) = self.partitions.get_mut(&key) else { return true };
        let failed = told.error != 0;
        // Behind an error the client hears of the partition again, whatever it knew.
        let high_watermark = if failed { -1 } else { told.high_watermark };
        let differs = (watched.high_watermark, watched.log_start) != (high_watermark, told.log_start);
        (watched.high_watermark, watched.log_start) = (high_watermark, told.log_start);
        if told.has_records {
            self.next = Bound::Excluded(key);
        }
        failed || told.has_records || differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::SystemRandom;

    fn sessions(sessions_max: usize, partitions_max: usize) -> FetchSessions {
        FetchSessions::new(sessions_max, partitions_max, Arc::new(SystemRandom))
    }

    fn request(partitions: std::ops::Range<i32>) -> FetchRequest {
        let all = partitions.map(|index| FetchPartition::default().with_partition(index).with_partition_max_bytes(1));
        let topic = FetchTopic::default().with_topic(TopicName(StrBytes::from_static_str("t")));
        FetchRequest::default().with_topics(vec![topic.with_partitions(all.collect())])
    }

    fn create(sessions: &FetchSessions, partitions: std::ops::Range<i32>, now_us: u64) -> i32 {
        let told = Told { error: 0, high_watermark: 5, log_start: 0, has_records: false, is_left_out: false };
        let asked = request(partitions);
        let told = vec![told; asked.topics[0].partitions.len()];
        sessions.create(&asked, 12, &told, now_us)
    }

    fn go_on(sessions: &FetchSessions, id: i32, epoch: i32, mut asked: FetchRequest, now_us: u64) -> Vec<i32> {
        (asked.session_id, asked.session_epoch) = (id, epoch);
        let mode = sessions.begin(&mut asked, 12, now_us).unwrap();
        assert!(matches!(mode, Mode::GoesOn(_)));
        asked.topics.iter().flat_map(|topic| topic.partitions.iter().map(|one| one.partition)).collect()
    }

    #[test]
    fn what_is_idle_makes_way_and_what_is_used_does_not() {
        let sessions = sessions(2, 10);
        let first = create(&sessions, 0..3, 0);
        let second = create(&sessions, 0..3, 1);
        assert_eq!(create(&sessions, 0..3, 2), NO_SESSION, "two are enough");
        assert_eq!(go_on(&sessions, first, 1, FetchRequest::default(), IDLE_US), [0, 1, 2]);
        let third = create(&sessions, 0..3, 1 + IDLE_US);
        assert_ne!(third, NO_SESSION);
        let mut asked = FetchRequest::default().with_session_id(second).with_session_epoch(1);
        let gone = sessions.begin(&mut asked, 12, 1 + IDLE_US).unwrap_err();
        assert_eq!(gone, ResponseError::FetchSessionIdNotFound);
        assert_eq!(sessions.counts(), (2, 6));
        assert_eq!(create(&sessions, 0..11, 9 * IDLE_US), NO_SESSION, "more partitions than there may be");
        assert_eq!(sessions.counts().0, 0, "room was made for it");
    }

    #[test]
    fn a_session_that_grows_too_large_is_over() {
        let sessions = sessions(9, 10);
        let id = create(&sessions, 0..8, 0);
        assert_eq!(go_on(&sessions, id, 1, request(5..10), 0).len(), 10);
        let mut asked = request(10..11);
        (asked.session_id, asked.session_epoch) = (id, 2);
        assert_eq!(sessions.begin(&mut asked, 12, 0).unwrap_err(), ResponseError::FetchSessionIdNotFound);
        assert_eq!(sessions.counts(), (0, 0));
    }

    /// One of four megabytes is taken in a request, and a session may have a quarter of a million.
    #[test]
    fn names_that_no_topic_can_have_are_not_remembered() {
        let sessions = sessions(9, 10);
        let named = |bytes: usize| {
            let topic = FetchTopic::default().with_topic(TopicName(StrBytes::from_string("t".repeat(bytes))));
            FetchRequest::default().with_topics(vec![topic.with_partitions(vec![FetchPartition::default()])])
        };
        let told = [Told { error: 3, high_watermark: -1, log_start: -1, has_records: false, is_left_out: false }];
        assert_eq!(sessions.create(&named(STREAM_NAME_BYTES_MAX + 1), 12, &told, 0), NO_SESSION);
        let id = sessions.create(&named(STREAM_NAME_BYTES_MAX), 12, &told, 0);
        assert_eq!(sessions.counts(), (1, 1));
        let mut asked = named(STREAM_NAME_BYTES_MAX + 1).with_session_id(id).with_session_epoch(1);
        assert_eq!(sessions.begin(&mut asked, 12, 0).unwrap_err(), ResponseError::FetchSessionIdNotFound);
        assert_eq!(sessions.counts(), (0, 0));
    }

    #[test]
    fn who_had_records_is_last_the_next_time() {
        let sessions = sessions(9, 10);
        let id = create(&sessions, 0..4, 0);
        let mut asked = FetchRequest::default().with_session_id(id).with_session_epoch(1);
        let Ok(Mode::GoesOn(session)) = sessions.begin(&mut asked, 12, 0) else { panic!("it is there") };
        let none = Told { error: 0, high_watermark: 5, log_start: 0, has_records: false, is_left_out: false };
        let told = [none, Told { has_records: true, ..none }, none, Told { high_watermark: 6, ..none }];
        let mut shown = Vec::new();
        session.lock().tell_all(&asked.topics, &told, |is_shown| shown.push(is_shown));
        assert_eq!(shown, [false, true, false, true], "what has records, and what has another end");
        assert_eq!(go_on(&sessions, id, 2, FetchRequest::default(), 0), [2, 3, 0, 1]);
    }

    #[test]
    fn who_was_left_out_is_first_the_next_time() {
        let sessions = sessions(9, 10);
        let id = create(&sessions, 0..4, 0);
        let mut asked = FetchRequest::default().with_session_id(id).with_session_epoch(1);
        let Ok(Mode::GoesOn(session)) = sessions.begin(&mut asked, 12, 0) else { panic!("it is there") };
        let has = Told { error: 0, high_watermark: 5, log_start: 0, has_records: true, is_left_out: false };
        let left_out = Told { has_records: false, is_left_out: true, ..has };
        session.lock().tell_all(&asked.topics, &[has, left_out, left_out, has], |_| {});
        assert_eq!(go_on(&sessions, id, 2, FetchRequest::default(), 0), [1, 2, 3, 0]);
    }

    #[test]
    fn epochs_are_counted_and_names_stay_of_one_kind() {
        let sessions = sessions(9, 10);
        let id = create(&sessions, 0..2, 0);
        let refused = |epoch: i32, version: i16| {
            let mut asked = FetchRequest::default().with_session_id(id).with_session_epoch(epoch);
            sessions.begin(&mut asked, version, 0).unwrap_err()
        };
        assert_eq!(refused(2, 12), ResponseError::InvalidFetchSessionEpoch);
        assert_eq!(refused(1, 13), ResponseError::FetchSessionTopicIdError);
        assert_eq!(go_on(&sessions, id, 1, FetchRequest::default(), 0), [0, 1]);
        assert_eq!(refused(1, 12), ResponseError::InvalidFetchSessionEpoch, "the same again");
        let mut last = FetchRequest::default().with_session_id(id).with_session_epoch(END);
        assert!(matches!(sessions.begin(&mut last, 12, 0), Ok(Mode::Without)));
        assert_eq!(refused(2, 12), ResponseError::FetchSessionIdNotFound);
    }
}
