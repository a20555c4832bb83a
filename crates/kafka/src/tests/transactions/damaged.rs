//! A node whose disk does not give back what it has kept of transactions.

use std::sync::Weak;

use kera_format::kafka_groups::{self, CommittedOffset, Fact, OffsetKey};
use kera_format::{LaneId, SegmentId, StreamId, StreamletId};
use kera_log::{Location, ReadError, Segment, SegmentStore};

use super::*;
use crate::batch::Marker;
use crate::state_log::{StateLog, cannot_be_read};
use crate::transaction_doubt::Search;

/// A disk that takes everything and gives nothing back.
struct Rotten {
    log: Weak<kera_log::Log>,
    closed: Mutex<Vec<Arc<Segment>>>,
}

impl SegmentStore for Rotten {
    fn closed(&self, segment: Arc<Segment>) {
        self.closed.lock().push(segment);
    }
    fn want_space(&self, _: u64) {}
    fn load(&self, id: SegmentId, _: Location) {
        if let Some(log) = self.log.upgrade() {
            log.load_failed(id, "the checksum does not match".to_owned());
        }
    }
    fn release(&self, _: SegmentId, _: Location) {}
}

fn stream_of(world: &World, name: &str) -> StreamId {
    let (_, coordinator) = world.parts();
    coordinator.stream(&kera_protocol::StreamRef::Name(name.to_owned())).unwrap().id
}

impl Rotten {
    fn of(world: &World) -> Arc<Rotten> {
        let log = world.parts().0.log().clone();
        let rotten = Arc::new(Rotten { log: Arc::downgrade(&log), closed: Mutex::default() });
        log.set_store(rotten.clone());
        rotten
    }

    /// What is appended from now on is in other segments. Those of before stay in memory.
    fn keep(&self) {
        self.log.upgrade().unwrap().close_idle(i64::MAX, 0);
        self.closed.lock().clear();
    }

    /// Everything that is in a stream by now goes to the disk.
    fn take(&self, stream: kera_format::StreamId) {
        let log = self.log.upgrade().unwrap();
        log.close_idle(i64::MAX, 0);
        let closed = std::mem::take(&mut *self.closed.lock());
        for segment in closed {
            let id = segment.id();
            if id.stream != stream {
                self.closed.lock().push(segment);
                continue;
            }
            let bytes = segment.head().into();
            drop(segment);
            log.persisted(id, Location { disk: 0, container: 1, offset: 0, bytes });
            assert!(log.evict(id));
        }
    }
}

/// No start goes on without what a stream has lost, and says what to do; the first one changes nothing about that.
fn is_refused_for(world: &mut World, stream: &str) {
    for _ in 0..2 {
        let refused = world.open(false).expect_err("nobody has said that this is accepted").to_string();
        assert!(refused.starts_with(&format!("{stream}, which says")), "{refused}");
        assert!(
            refused.contains("the checksum does not match") && refused.contains("--accept-damage true"),
            "{refused}"
        );
    }
}

#[test]
fn a_node_goes_on_without_what_it_kept_of_transactions_when_it_is_told_to() {
    let mut world = World::new();
    let rotten = Rotten::of(&world);
    let stream = stream_of(&world, "_kera.transactions");
    let gone = world.init("gone").unwrap();
    assert_eq!((world.add("gone", gone, "t", 0), world.write("gone", gone, "t", 0, 0)), (0, (0, 0)));
    assert_eq!(world.end("gone", gone, true), 0);
    world.finish();
    world.sink.release();
    rotten.take(stream);
    let stays = world.init("stays").unwrap();
    assert_eq!((world.add("stays", stays, "t", 1), world.write("stays", stays, "t", 1, 0)), (0, (0, 0)));
    world.sink.release();

    is_refused_for(&mut world, "_kera.transactions");
    world.open(true).unwrap();
    // What can be read counts, and what was committed is there.
    assert_eq!((world.state("stays"), world.committed("t", 0)), ("Ongoing".to_owned(), vec![0]));
    assert_eq!(world.end("stays", stays, true), 0);
    world.finish();
    assert_eq!(world.committed("t", 1), [0]);
    assert!(world.init("gone").is_ok_and(|of| of.0 != gone.0), "it is not known any more");

    // From now on it is not needed: all that was known is in the journal once more. What is lost behind that is.
    world.sink.release();
    world.open(false).unwrap();
    assert_eq!((world.state("stays"), world.committed("t", 1)), ("CompleteCommit".to_owned(), vec![0]));
    rotten.take(stream);
    world.open(false).expect_err("that was not accepted");
}

/// How transactions ended that had begun in front of what cannot be read any more is written in the partitions.
#[test]
fn what_was_committed_stays_where_the_journal_has_lost_that_it_was() {
    let mut world = World::new();
    let rotten = Rotten::of(&world);
    let stream = stream_of(&world, "_kera.transactions");
    let begin = |world: &mut World, id: &str| {
        let of = world.init(id).unwrap();
        for partition in [0, 1] {
            assert_eq!((world.add(id, of, "t", partition), world.write(id, of, "t", partition, 0).0), (0, 0));
        }
        of
    };
    let [commits, aborts, _] = ["commits", "aborts", "runs"].map(|id| begin(&mut world, id));
    world.sink.release();
    rotten.keep();
    // From here on it is lost.
    for (id, of, commit) in [("commits", commits, true), ("aborts", aborts, false)] {
        assert_eq!(world.end(id, of, commit), 0);
        world.finish();
    }
    for (id, of) in [("commits", commits), ("aborts", aborts)] {
        assert_eq!((world.add(id, of, "t", 0), world.write(id, of, "t", 0, 1).0), (0, 0));
        assert_eq!(world.end(id, of, true), 0);
        world.finish();
    }
    let markers = [world.markers("t", 0).len(), world.markers("t", 1).len()];
    assert_eq!(markers, [4, 2]);
    world.sink.release();
    rotten.take(stream);

    is_refused_for(&mut world, "_kera.transactions");
    world.open(true).unwrap();
    world.finish();
    for expires in [false, true] {
        if expires {
            world.clock.advance_ms(TIMEOUT_MS as u64 + 1);
            world.running().door.transactions.tick();
            world.finish();
        }
        assert_eq!((world.state("commits"), world.state("aborts")), ("CompleteCommit".into(), "CompleteAbort".into()));
        // Two of theirs, and of what was committed since; what runs holds readers back until it is aborted.
        let shown = if expires { (vec![0, 5, 7], vec![0]) } else { (vec![0], vec![0]) };
        assert_eq!((world.committed("t", 0), world.committed("t", 1)), shown);
    }
    assert_eq!([world.markers("t", 0).len(), world.markers("t", 1).len()], [5, 3], "they end once more");
    assert_eq!(world.state("runs"), "CompleteAbort");
    for (id, of) in [("commits", commits), ("aborts", aborts)] {
        assert!(world.init(id).is_ok_and(|next| next.0 != of.0), "any epoch of it may have been another's");
    }
    // That is known from here on.
    world.sink.release();
    world.open(false).unwrap();
    assert_eq!((world.committed("t", 0), world.committed("t", 1)), (vec![0, 5, 7], vec![0]));
}

/// The lane knows what was written under each epoch, and takes it for a repetition if it comes again.
#[test]
fn no_epoch_is_given_out_again_that_the_journal_has_lost() {
    // Nothing runs in front of what is lost, or a transaction without partitions, or one whose partition does not say any more how it ended.
    for before in ["at rest", "only a group", "silent"] {
        let mut world = World::new();
        let rotten = Rotten::of(&world);
        let stream = stream_of(&world, "_kera.transactions");
        let first = world.init("a").unwrap();
        let mut offset = 0;
        match before {
            "only a group" => assert_eq!(world.add_group("a", first, "g"), 0),
            _ => assert_eq!((world.add("a", first, "t", 0), world.write("a", first, "t", 0, 0)), (0, (0, 0))),
        }
        if before == "at rest" {
            assert_eq!(world.end("a", first, true), 0);
            world.finish();
        }
        world.sink.release();
        rotten.keep();
        // From here on it is lost.
        if before != "at rest" {
            assert_eq!(world.end("a", first, true), 0);
            world.finish();
        }
        if before == "silent" {
            let topic = world.running().door.transactions.stream_of("t");
            rotten.take(topic);
        }
        for _ in 0..2 {
            let next = world.init("a").unwrap();
            assert_eq!(world.add("a", next, "t", 0), 0);
            let (error, at) = world.write("a", next, "t", 0, 0);
            assert_eq!((error, world.end("a", next, true)), (0, 0));
            world.finish();
            offset = at;
        }
        world.sink.release();
        rotten.take(stream);
        world.open(true).unwrap();
        world.finish();
        // One that still runs is aborted first.
        let next = match world.init("a") {
            Err(Code::ConcurrentTransactions) => {
                world.finish();
                world.init("a").unwrap()
            }
            next => next.unwrap(),
        };
        assert_ne!(next.0, first.0, "{before}");
        assert_eq!(world.add("a", next, "t", 0), 0);
        let (error, at) = world.write("a", next, "t", 0, 0);
        assert!(error == 0 && at > offset, "{before}: {error} {at}");
        assert_eq!(world.end("a", next, true), 0);
        world.finish();
        assert_eq!(world.committed_from("t", 0, at), [at], "{before}");
        // That is known from here on.
        world.sink.release();
        world.open(false).unwrap();
        assert_eq!(world.init("a"), Ok((next.0, next.1 + 1)), "{before}");
    }
}

#[test]
fn offsets_of_a_transaction_that_is_not_known_any_more_hold_nobody_up() {
    let mut world = World::new();
    let rotten = Rotten::of(&world);
    let stream = stream_of(&world, "_kera.transactions");
    let (lost, runs) = (world.init("lost").unwrap(), world.init("runs").unwrap());
    for (id, of, group) in [("lost", lost, "g"), ("runs", runs, "h")] {
        assert_eq!((world.add_group(id, of, group), world.commit_offset(id, of, group, 5)), (0, 0));
        assert_eq!(world.end(id, of, true), 0);
        world.finish();
    }
    assert_eq!(world.add("runs", runs, "t", 0), 0);
    world.sink.release();
    rotten.keep();
    // From here on it is lost.
    for (id, of, group) in [("lost", lost, "g"), ("runs", runs, "h")] {
        assert_eq!((world.add_group(id, of, group), world.commit_offset(id, of, group, 7)), (0, 0));
    }
    world.sink.release();
    rotten.take(stream);
    world.open(true).unwrap();
    world.finish();
    let unstable = Err(Code::UnstableOffsetCommit);
    assert_eq!((world.offset("g"), world.offset("h")), (Ok(5), unstable), "the other one is known, and has not ended");
    assert_eq!(world.end("runs", runs, true), 0);
    world.finish();
    world.sink.release();
    world.open(false).unwrap();
    assert_eq!((world.offset("g"), world.offset("h")), (Ok(5), Ok(7)));
}

/// What a producer has pending is not told apart by its transactions.
#[test]
fn a_transaction_that_was_over_takes_no_offsets_of_the_next_one_along() {
    for has_begun in [true, false] {
        let mut world = World::new();
        let rotten = Rotten::of(&world);
        let stream = stream_of(&world, "_kera.transactions");
        let of = world.init("id").unwrap();
        for partition in [0, 1] {
            assert_eq!((world.add("id", of, "t", partition), world.write("id", of, "t", partition, 0)), (0, (0, 0)));
        }
        assert_eq!((world.add_group("id", of, "g"), world.commit_offset("id", of, "g", 5)), (0, 0));
        world.sink.release();
        rotten.keep();
        // From here on it is lost.
        assert_eq!(world.end("id", of, true), 0);
        if has_begun {
            world.finish();
            assert_eq!((world.add_group("id", of, "g"), world.commit_offset("id", of, "g", 7)), (0, 0));
            assert_eq!((world.add("id", of, "t", 0), world.write("id", of, "t", 0, 1)), (0, (0, 2)));
        } else {
            // A marker was written, and the group has not heard of it.
            let door = world.running().door.clone();
            let lane = door.transactions.lane(door.transactions.stream_of("t"), 0).unwrap();
            crate::endings::append_marker(&lane, of, true, NOW_MS).unwrap();
        }
        world.sink.release();
        rotten.take(stream);
        world.open(true).unwrap();
        world.finish();
        assert_eq!(world.offset("g"), Ok(5), "{has_begun}");
    }
}

/// A marker was written to one partition and not to the other one.
#[test]
fn a_transaction_whose_end_is_lost_ends_everywhere_as_it_did_somewhere() {
    for commits in [true, false] {
        let mut world = World::new();
        let rotten = Rotten::of(&world);
        let stream = stream_of(&world, "_kera.transactions");
        let of = world.init("id").unwrap();
        for partition in [0, 1] {
            assert_eq!((world.add("id", of, "t", partition), world.write("id", of, "t", partition, 0)), (0, (0, 0)));
        }
        world.sink.release();
        rotten.keep();
        // From here on it is lost.
        assert_eq!((world.add_group("id", of, "g"), world.commit_offset("id", of, "g", 7)), (0, 0));
        assert_eq!(world.end("id", of, commits), 0);
        let door = world.running().door.clone();
        let lane = door.transactions.lane(door.transactions.stream_of("t"), 0).unwrap();
        crate::endings::append_marker(&lane, of, commits, NOW_MS).unwrap();
        world.sink.release();
        rotten.take(stream);
        world.open(true).unwrap();
        world.finish();
        let shown = if commits { vec![0] } else { vec![] };
        assert_eq!((world.committed("t", 0), world.committed("t", 1)), (shown.clone(), shown));
        let marker = |epoch| vec![(1, Kind::Marker(commits, epoch))];
        assert_eq!((world.markers("t", 0), world.markers("t", 1)), (marker(of.1), marker(i16::MAX)));
        // Nobody had told the group.
        assert_eq!(world.offset("g"), Ok(if commits { 7 } else { -1 }));
    }
}

/// Nobody knows how the transaction ended, and others of its producer may have been committed.
#[test]
fn nothing_is_hidden_behind_what_the_disk_has_lost_with_a_marker() {
    let mut world = World::new();
    let rotten = Rotten::of(&world);
    let stream = stream_of(&world, "_kera.transactions");
    let of = world.init("id").unwrap();
    assert_eq!((world.add("id", of, "t", 0), world.write("id", of, "t", 0, 0)), (0, (0, 0)));
    world.sink.release();
    rotten.keep();
    assert_eq!(world.end("id", of, true), 0);
    world.finish();
    let topic = world.running().door.transactions.stream_of("t");
    rotten.take(topic);
    assert_eq!((world.add("id", of, "t", 0), world.write("id", of, "t", 0, 1)), (0, (0, 2)));
    assert_eq!(world.end("id", of, true), 0);
    world.finish();
    world.sink.release();
    rotten.take(stream);
    world.open(true).unwrap();
    world.clock.advance_ms(TIMEOUT_MS as u64 + 1);
    world.running().door.transactions.tick();
    world.finish();
    assert_eq!((world.state("id"), world.committed_from("t", 0, 2)), ("CompleteAbort".into(), vec![2]));
}

/// Compaction takes out markers of what was committed. The next one may be that of another transaction.
#[test]
fn a_marker_behind_a_gap_ends_nothing() {
    let mut world = World::new();
    let of = world.init("id").unwrap();
    assert_eq!((world.add("id", of, "t", 0), world.write("id", of, "t", 0, 0)), (0, (0, 0)));
    assert_eq!(world.end("id", of, false), 0);
    world.finish();
    let door = world.running().door.clone();
    let lane = door.transactions.lane(door.transactions.stream_of("t"), 0).unwrap();
    let data = lane.read(kera_format::Cursor::default(), 1 << 20, true).unwrap().data.concat();
    let first = kera_format::chunk::Chunks::new(&data).next().unwrap().unwrap().header().total_bytes();
    let (record, marker) = data.split_at(first);
    let found = Ok(Some((1, Marker { producer_id: of.0, epoch: of.1, commits: false })));
    for (from, earliest, record, expected) in [
        (0, 0, record, Ok(())),
        (1, 0, &[][..], Ok(())),
        // Retention has taken the beginning.
        (0, 1, &[], Ok(())),
        (0, 0, &[], Err(())),
    ] {
        let mut search = Search::new(of.0, from, earliest);
        assert_eq!(search.look(record), Ok(None));
        let looked = search.look(marker);
        assert_eq!(looked.as_ref().map(drop).map_err(drop), expected, "{from} {earliest}");
        assert!(looked.is_err() || looked == found, "{looked:?}");
    }
    assert_eq!(Search::new(of.0 + 1, 0, 0).look(&data), Ok(None), "it is another producer's");
    assert_eq!(Search::new(of.0, 2, 0).look(&data), Ok(None), "it is of an earlier one");
}

#[test]
fn a_node_goes_on_without_what_it_kept_of_groups_when_it_is_told_to() {
    let mut world = World::new();
    let rotten = Rotten::of(&world);
    let stream = stream_of(&world, "_kera.groups");
    let commit = |world: &mut World, group: &str| {
        let door = world.running().door.clone();
        let log = StateLog::find("_kera.groups", &door.catalog, &door.broker, &door.clock).unwrap();
        let offset = CommittedOffset {
            offset: 7,
            leader_epoch: -1,
            committed_ms: NOW_MS,
            expires_ms: None,
            topic_id: 0,
            metadata: String::new(),
        };
        let fact = Fact::Offset(OffsetKey { topic: "t".to_owned(), partition: 0 }, Some(offset));
        log.append(&[kafka_groups::Entry { group: group.to_owned(), fact }]).unwrap();
        world.sink.release();
    };
    commit(&mut world, "gone");
    rotten.take(stream);
    commit(&mut world, "stays");
    is_refused_for(&mut world, "_kera.groups");
    world.open(true).unwrap();
    assert_eq!((world.offset("gone"), world.offset("stays")), (Ok(-1), Ok(7)));
    // From now on it is not needed: what is known is there once more. What is lost behind that is.
    world.sink.release();
    world.open(false).unwrap();
    assert_eq!((world.offset("gone"), world.offset("stays")), (Ok(-1), Ok(7)));
    world.sink.release();
    rotten.take(stream);
    world.open(false).expect_err("that was not accepted");
}

/// A node that keeps where partitions of topic `t` begin.
struct Floored {
    world: World,
    rotten: Arc<Rotten>,
    kept: StreamId,
    topic: StreamId,
}

impl Floored {
    fn new() -> Floored {
        let world = World::new();
        let rotten = Rotten::of(&world);
        let (kept, topic) = (stream_of(&world, "_kera.floors"), stream_of(&world, "t"));
        Floored { world, rotten, kept, topic }
    }

    fn lane(&self, partition: u32) -> Arc<kera_log::Lane> {
        let stream = self.world.parts().0.log().stream(self.topic).unwrap();
        Arc::clone(stream.streamlet(StreamletId(partition)).unwrap().lane(LaneId(0)).unwrap())
    }

    /// The first of two records is deleted.
    fn delete(&mut self, partition: u32) {
        for ordinal in 0..2 {
            assert_eq!(self.world.plain("t", partition as i32), ordinal);
        }
        self.world.sink.release();
        let lane = self.lane(partition);
        assert!(self.world.running().door.floors.raise(&[(lane, 1)]).is_ok());
        self.world.sink.release();
    }
}

#[test]
fn a_node_goes_on_without_where_partitions_begin_when_it_is_told_to() {
    let mut floored = Floored::new();
    floored.delete(0);
    floored.rotten.take(floored.kept);
    floored.delete(1);
    is_refused_for(&mut floored.world, "_kera.floors");
    floored.world.open(true).unwrap();
    // From now on it is not needed: what is known is there once more. What is lost behind that is.
    floored.world.sink.release();
    floored.world.open(false).unwrap();
    assert_eq!(floored.world.running().door.floors.known(), [((floored.topic, StreamletId(1), LaneId(0)), 1)]);
    floored.rotten.take(floored.kept);
    floored.world.open(false).expect_err("that was not accepted");
}

#[test]
fn a_node_goes_on_when_nothing_of_where_partitions_begin_can_be_read() {
    let mut floored = Floored::new();
    floored.delete(0);
    floored.rotten.take(floored.kept);
    is_refused_for(&mut floored.world, "_kera.floors");
    floored.world.open(true).unwrap();
    floored.world.sink.release();
    floored.world.open(false).unwrap();
    assert_eq!(floored.world.running().door.floors.known(), []);
}

#[test]
fn what_cannot_be_accepted_is_not_advised() {
    let says = |why: &ReadError| cannot_be_read("s", "what it says", why).to_string().contains("--accept-damage");
    assert!(says(&ReadError::LoadFailed("rotten".to_owned())) && !says(&ReadError::Deleted));
}
