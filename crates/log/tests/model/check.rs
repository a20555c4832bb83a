//! What readers, lookups and retention must answer, given what the naive log holds.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use kera_format::checksum::crc32c;
use kera_format::chunk::Chunks;
use kera_format::{ChunkView, Cursor, GroupId, SegmentIndex};
use kera_log::{Lookup, ReadError, ReadOutcome, SegmentInfo};

use crate::model::Chunk;
use crate::world::{Bookmark, Name, PRODUCERS_KEPT_MS, Planted, World};

impl World {
    /// Reads from a place that a reader was at, or from the start.
    pub fn read(&mut self) {
        let Some(name) = self.any_lane() else { return };
        let bookmark = match self.random.below(8) {
            0 => Bookmark { lane: name, cursor: Cursor::default(), ordinal: 0 },
            1..4 if self.lanes[&name].readable() > 0 => {
                // A group that was opened after a change of durability may be readable before the one before it: then a
                // reader that was given that group sees it, and others do not yet. Here only those are tried.
                let at = self.random.below(self.lanes[&name].readable() as u64) as usize;
                let chunk = self.lanes[&name].chunks[at];
                Bookmark { lane: name, cursor: chunk.cursor, ordinal: chunk.base }
            }
            _ if !self.bookmarks.is_empty() => {
                let at = self.random.below(self.bookmarks.len() as u64) as usize;
                self.bookmarks.swap_remove(at)
            }
            _ => return,
        };
        let max_bytes = match self.random.below(4) {
            0 => 0,
            1 => self.random.below(3_000) as usize,
            2 => self.random.below(100_000) as usize,
            _ => 1 << 20,
        };
        let follow = self.random.one_in(2);
        if let Some(outcome) = self.read_until_there(bookmark, max_bytes, follow) {
            self.check_read(bookmark, &outcome, max_bytes, follow);
        }
    }

    /// Reads, and does for a read what the store's threads would do, until there is an answer.
    fn read_until_there(&mut self, bookmark: Bookmark, max_bytes: usize, follow: bool) -> Option<ReadOutcome> {
        let lane = self.lane(bookmark.lane);
        let mut cursor = bookmark.cursor;
        for round in 0..40 {
            match lane.read(cursor, max_bytes, follow) {
                Ok(outcome) if outcome.loading => {
                    assert!(outcome.data.is_empty());
                    if self.random.one_in(4) && round < 10 {
                        // Come back later: somebody else's read may find it loaded.
                        let ordinal = bookmark.ordinal;
                        self.bookmarks.push(Bookmark { lane: bookmark.lane, cursor: outcome.next, ordinal });
                        return None;
                    }
                    let corrupt = self.random.one_in(10) && round < 10;
                    if !self.store.load_one(self.log(), corrupt) {
                        self.make_room(round);
                    }
                    self.count(if corrupt { "load corrupt" } else { "load" });
                }
                Ok(outcome) => return Some(outcome),
                Err(ReadError::LoadFailed(_)) => self.count("load failed"),
                Err(ReadError::Gone { asked, earliest }) => {
                    assert_eq!(asked, cursor);
                    self.check_gone(bookmark, asked);
                    assert_ne!(asked, earliest);
                    cursor = earliest;
                    self.count("gone");
                }
                Err(error) => panic!("{bookmark:?}: {error}"),
            }
        }
        panic!("{bookmark:?} is never there");
    }

    /// A cursor may be gone only if its segment is, or if it points behind its end.
    fn check_gone(&self, bookmark: Bookmark, cursor: Cursor) {
        let segments = self.lane(bookmark.lane).segments(cursor.group, None, usize::MAX).unwrap_or_default();
        if let Some(segment) = segments.iter().find(|s| s.index == cursor.segment) {
            assert!(cursor.position > segment.durable_head, "{cursor:?} is there: {segment:?}");
        }
    }

    /// The chunks of a read are those that follow, all of them, and the read ended where it may.
    fn check_read(&mut self, bookmark: Bookmark, outcome: &ReadOutcome, max_bytes: usize, follow: bool) {
        let name = bookmark.lane;
        let chunks: Vec<Bytes> = split(&outcome.data);
        let skip = usize::from(self.planted == Some(Planted::SkippedChunk) && chunks.len() > 1);
        let lane = &self.lanes[&name];
        let mut at = lane.at_ordinal(bookmark.ordinal);
        for bytes in &chunks[skip..] {
            let expected =
                at.unwrap_or_else(|| panic!("{name:?}: more than was appended and is durable: {outcome:?}\n{lane:#?}"));
            let expected = lane.chunks[expected];
            if ChunkView::parse(bytes).unwrap().broker().unwrap().base_ordinal != expected.base {
                println!("{:#?}", lane.chunks);
                let real = self.lane(name);
                for group in real.groups(GroupId::NONE, 100) {
                    println!("{group:?} {:#?}", real.segments(group.id, None, 100));
                }
            }
            check_chunk(&expected, bytes, bookmark);
            at = at.map(|at| at + 1).filter(|&at| at < lane.readable());
        }
        let total: usize = chunks.iter().map(Bytes::len).sum();
        assert_eq!(outcome.data_bytes, total);
        assert!(total <= max_bytes || chunks.len() == 1, "{total} of {max_bytes} bytes in {} chunks", chunks.len());
        let at_end = outcome.at_durable_end || self.planted == Some(Planted::EarlyEnd) && chunks.len() > 3;
        let next = at.map(|at| lane.chunks[at]);
        if at_end {
            assert_eq!(next, None, "{name:?}: {outcome:?} ends before the durable end");
        } else if let Some(next) = next {
            self.check_early_end(name, outcome, next, total, max_bytes, follow);
        }
        assert_eq!(outcome.durable_ordinal, lane.durable_ordinal());
        let ordinal = next.map_or(lane.durable_ordinal(), |next| next.base);
        self.bookmarks.push(Bookmark { lane: name, cursor: outcome.next, ordinal });
        if self.bookmarks.len() > 300 {
            let at = self.random.below(300) as usize;
            self.bookmarks.swap_remove(at);
        }
        if at_end && self.random.one_in(3) {
            self.wait(name, outcome.version);
        }
        self.pin(&outcome.data);
        self.count("read");
    }

    /// A read that stopped before the durable end had a reason.
    fn check_early_end(
        &self,
        name: Name,
        outcome: &ReadOutcome,
        next: Chunk,
        total: usize,
        max_bytes: usize,
        follow: bool,
    ) {
        let full = total > 0 && total + next.bytes as usize > max_bytes;
        let group_ends = !follow && outcome.end_of_group && next.cursor.group != outcome.next.group;
        let on_disk = self.log().segment(World::segment_id(name, &next)).is_none();
        assert!(full || group_ends || (on_disk && total > 0), "{name:?}: {outcome:?} could have had {next:?}");
    }

    /// Positions that no chunk starts at are refused, wherever they are.
    pub fn read_nonsense(&mut self) {
        let Some(name) = self.any_lane() else { return };
        let readable = self.lanes[&name].readable();
        if readable == 0 {
            return;
        }
        let at = self.random.below(readable as u64) as usize;
        let chunk = self.lanes[&name].chunks[at];
        let lane = self.lane(name);
        let inside = Cursor {
            position: chunk.cursor.position + 1 + self.random.below(u64::from(chunk.bytes) - 1) as u32,
            ..chunk.cursor
        };
        match lane.read(inside, 1000, true) {
            Err(ReadError::NotAChunkBoundary(cursor)) => assert_eq!(cursor, inside),
            Ok(outcome) => assert!(outcome.loading && outcome.data.is_empty(), "{outcome:?}"),
            Err(ReadError::LoadFailed(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let never = Cursor { group: GroupId::new(self.epoch + 1, 1), ..chunk.cursor };
        assert_eq!(lane.read(never, 1000, true).err(), Some(ReadError::Unknown(never)));
        self.count("nonsense");
    }

    /// Lookups find what a search through the list finds.
    pub fn lookup(&mut self) {
        let Some(name) = self.any_lane() else { return };
        let model = &self.lanes[&name];
        let lane = self.lane(name);
        assert_eq!(lane.latest().1, model.durable_ordinal());
        let first = model.chunks.front().map_or(model.next_ordinal, |chunk| chunk.base);
        assert!(lane.earliest().1 <= first);
        let (found, expected) = if self.random.one_in(2) {
            let ordinal = self.random.below(model.next_ordinal + 3);
            (lane.lookup_ordinal(ordinal), model.at_ordinal(ordinal))
        } else {
            let times = model.chunks.front().map_or(0, |c| c.append_ms)..=model.last_ms;
            let ms = times.start() - 3 + self.random.below((times.end() - times.start() + 6) as u64) as i64;
            let expected = model.chunks.iter().take(model.readable()).position(|chunk| chunk.append_ms >= ms);
            (lane.lookup_time(ms), expected)
        };
        match found {
            Ok(Lookup::Found { cursor, ordinal }) => {
                let bookmark = Bookmark { lane: name, cursor, ordinal };
                let expected = expected.map_or(model.durable_ordinal(), |at| model.chunks[at].base);
                let at = model.at_ordinal(ordinal).map_or(model.durable_ordinal(), |at| model.chunks[at].base);
                assert_eq!(at, expected, "{name:?}: found {bookmark:?}");
                self.bookmarks.push(bookmark);
            }
            Ok(Lookup::Loading(_)) => {
                if !self.store.load_one(self.log(), false) {
                    self.make_room(1);
                }
            }
            Err(ReadError::LoadFailed(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.count("lookup");
    }

    /// Retention takes what is due and nothing else.
    pub fn retain(&mut self) {
        self.now_ms += self.random.below(1_500) as i64;
        for name in self.lanes.keys().copied().collect::<Vec<_>>() {
            let chunks = &self.lanes[&name].chunks;
            let floor = chunks.get(chunks.len() / 2).filter(|c| c.settled).map(|chunk| chunk.cursor);
            self.lane(name).set_consumed_floor(floor);
        }
        let bytes_before: Vec<(Name, u64)> =
            self.lanes.keys().map(|&name| (name, self.lane(name).stats().bytes)).collect();
        self.log().retain(self.now_ms);
        for name in self.lanes.keys().copied().collect::<Vec<_>>() {
            self.check_retained(name, &bytes_before);
        }
        self.count("retain");
    }

    fn check_retained(&mut self, name: Name, bytes_before: &[(Name, u64)]) {
        let options = self.streams[&name.0].clone();
        let real = self.lane(name);
        let stats = real.stats();
        let lane = self.lanes.get_mut(&name).unwrap();
        let floor = lane.chunks.get(lane.chunks.len() / 2).filter(|c| c.settled).map(|chunk| chunk.cursor);
        let mut dropped = lane.drop_before(stats.first_ordinal);
        if self.planted == Some(Planted::GreedyRetention) && !lane.chunks.is_empty() {
            dropped.push(lane.chunks[0]);
        }
        let cutoff = self.now_ms - options.retention_ms.unwrap_or(u64::MAX / 2) as i64;
        let streamlet: u64 = bytes_before.iter().filter(|(n, _)| (n.0, n.1) == (name.0, name.1)).map(|(_, b)| b).sum();
        let over = options.retention_bytes.is_some_and(|limit| streamlet > limit);
        let far_over = options.retention_bytes.is_some_and(|limit| streamlet > 2 * limit);
        for chunk in &dropped {
            let is_young = self.now_ms < chunk.append_ms + PRODUCERS_KEPT_MS as i64;
            let is_needed = is_young && lane.remembers_any(chunk.base..chunk.next());
            assert!(far_over || !is_needed, "{chunk:?} tells of its producer at {}", self.now_ms);
            let old = chunk.append_ms < cutoff;
            let read = options.retention_consumed && floor.is_some_and(|floor| chunk.cursor.group < floor.group);
            assert!(old || over || read, "{chunk:?} was not due at {}", self.now_ms);
            assert!(chunk.settled, "{chunk:?} was not durable");
        }
        // The oldest closed segment that is left is not due, unless none behind it is on disk.
        let first = lane.chunks.front().copied();
        let groups = real.groups(GroupId::NONE, usize::MAX);
        let (first_ordinal, next_ordinal) = (stats.first_ordinal, stats.next_ordinal);
        for ordinal in [first_ordinal, first_ordinal.midpoint(next_ordinal), stats.durable_ordinal, next_ordinal] {
            let holds = groups.iter().find(|group| group.next_ordinal > ordinal);
            assert_eq!(real.group_at(ordinal), holds.map(|group| group.id), "{ordinal}: {groups:?}");
        }
        let later = groups.iter().flat_map(|g| real.segments(g.id, None, usize::MAX).unwrap_or_default()).skip(1);
        if let Some(first) = first.filter(|_| later.into_iter().any(|s| s.on_disk)) {
            let segments = real.segments(first.cursor.group, None, 1).unwrap_or_default();
            let oldest = segments.first().filter(|s| s.index == first.cursor.segment && !s.open);
            let settled = lane.chunks.iter().take_while(|c| c.segment() == first.segment()).all(|c| c.settled);
            let may_be_needed = |s: &&SegmentInfo| {
                let end = s.last_append_ms + PRODUCERS_KEPT_MS as i64;
                let next = lane.chunks.iter().take_while(|c| c.segment() == first.segment()).last().map(Chunk::next);
                self.now_ms < end && lane.remembers_any(s.base_ordinal..next.unwrap_or(s.base_ordinal))
            };
            if let Some(oldest) = oldest.filter(|oldest| settled && !may_be_needed(oldest)) {
                assert!(oldest.last_append_ms >= cutoff, "{oldest:?} is due at {}", self.now_ms);
            }
        }
    }

    /// Nobody sleeps while there is something to read.
    pub fn check_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for waiting in waiting {
            let lane = self.lane(waiting.lane);
            if waiting.bell.rung.load(Ordering::SeqCst) > 0 {
                continue;
            }
            assert_eq!(lane.durable_ordinal(), waiting.durable_ordinal, "{:?}: a lost wake-up", waiting.lane);
            self.waiting.push(waiting);
        }
    }

    /// What readers hold does not change, whatever became of the segment.
    pub fn check_pins(&mut self) {
        for (bytes, checksum) in &self.pins {
            let recycled = self.planted == Some(Planted::RecycledTooEarly);
            assert_eq!(crc32c(bytes), *checksum + u32::from(recycled), "bytes changed under a reader");
        }
        if self.random.one_in(20) {
            self.pins.clear();
        }
    }

    /// Everything is in both logs, and nothing else; then nothing is left in the arena.
    pub fn finish(&mut self) {
        self.make_room(0);
        self.bookmarks.clear();
        for name in self.lanes.keys().copied().collect::<Vec<_>>() {
            let mut ordinal = 0;
            let mut cursor = Cursor::default();
            loop {
                let bookmark = Bookmark { lane: name, cursor, ordinal };
                let Some(outcome) = self.read_until_there(bookmark, 100_000, true) else { continue };
                self.check_read(bookmark, &outcome, 100_000, true);
                let next = self.bookmarks.pop().expect("the place behind the read");
                (cursor, ordinal) = (next.cursor, next.ordinal);
                if outcome.at_durable_end {
                    break;
                }
                self.make_room(1);
            }
            assert_eq!(ordinal, self.lanes[&name].durable_ordinal());
            let (cursor, _) = self.lane(name).latest();
            assert!(cursor >= self.lanes[&name].chunks.back().map_or(cursor, |c| c.cursor));
        }
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.delete_stream(id);
        }
        self.pins.clear();
        self.sink.sync(usize::MAX);
        while self.store.persist_one(self.log()) {}
        while self.store.load_one(self.log(), false) {}
        assert_eq!(self.store.lock().disk.len(), 0, "disk space that nobody needs");
        assert_eq!(self.sink.lock().synced.len(), 0, "chunks that the virtual log keeps for nobody");
        let stats = self.log().stats();
        assert_eq!((stats.arena.used_bytes, stats.arena.free_bytes), (0, stats.arena.bytes), "{stats:?}");
    }
}

/// The chunks of what a read returned: each buffer holds whole ones.
fn split(data: &[Bytes]) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    for bytes in data {
        assert!(!bytes.is_empty());
        for chunk in Chunks::new(bytes) {
            chunks.push(bytes.slice_ref(chunk.expect("whole chunks").as_bytes()));
        }
    }
    chunks
}

/// A chunk is the one that was appended, stamped with its place.
fn check_chunk(expected: &Chunk, bytes: &[u8], bookmark: Bookmark) {
    let view = kera_format::ChunkView::parse(bytes).unwrap();
    view.verify().unwrap();
    let (header, part) = (view.header(), view.broker().unwrap());
    let cursor = Cursor { group: part.group, segment: part.segment, position: part.position };
    assert_eq!(
        (cursor, part.base_ordinal),
        (expected.cursor, expected.base),
        "not the chunk that follows {bookmark:?}"
    );
    assert_eq!((header.producer_checksum, bytes.len() as u32), (expected.checksum, expected.bytes));
    assert_eq!(part.append_time_ms, expected.append_ms);
    let _: SegmentIndex = part.segment;
}
