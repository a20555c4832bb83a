//! Rebuilding applications and their offsets from what was recorded: at the start of a node from its system stream, from the
//! progress lane of a streamlet when this node becomes its owner.
//!
//! Record after record, the last one of a key counts. The oldest records may have been trimmed, but only below a copy of
//! everything: so positions may come before the record of their application, never without it.

use std::collections::BTreeMap;

use kera_format::applications::{Application, Entry, LaneKey, Position, StartAt};
use kera_format::chunk::Chunks;
use kera_format::{ApplicationId, GroupId, Records, StreamId, StreamletId};
use kera_log::Lane;
use kera_protocol::StreamletState;
use kera_protocol::placement::KeptGroup;

use super::keepers::OlderGroups;
use crate::failure::Failure;

/// What a replay has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayReport {
    /// Applications.
    pub applications: u64,
    /// Groups that they have a position in.
    pub positions: u64,
    /// Records read.
    pub records: u64,
    /// Bytes of their chunks.
    pub bytes: u64,
    /// Records that are not understood, passed over.
    pub passed_over: u64,
    /// Applications of streams that do not exist, dropped.
    pub dropped: u64,
}

/// What is known of a lane.
#[derive(Clone, Debug, Default)]
pub(super) struct LanePositions {
    pub(super) base: Option<Position>,
    pub(super) ahead: BTreeMap<GroupId, Position>,
}

/// An application as its records tell it.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    /// The record that says that it exists.
    pub(super) exists: Option<Application>,
    pub(super) lanes: BTreeMap<LaneKey, LanePositions>,
}

impl Replayed {
    /// Whether anything is recorded of it.
    pub(super) fn is_there(&self) -> bool {
        self.exists.is_some() || !self.lanes.is_empty()
    }

    /// The record that says that it exists; nothing if nothing is recorded of it. One whose record was never taken, as the arena was full, and whose
    /// positions were, gets one, made at `now_ms`: they must not be lost.
    pub(super) fn record(&self, now_ms: i64) -> Option<Application> {
        let unrecorded = Application { id: ApplicationId(0), start: StartAt::Earliest, created_ms: now_ms };
        self.is_there().then(|| self.exists.unwrap_or(unrecorded))
    }

    /// What is known of one streamlet.
    pub(super) fn of_streamlet(&self, streamlet: StreamletId) -> Replayed {
        let of = |key: &LaneKey| key.streamlet == streamlet;
        let lanes = self.lanes.iter().filter(|(key, _)| of(key)).map(|(key, known)| (*key, known.clone())).collect();
        Replayed { exists: self.exists, lanes }
    }
}

/// All applications, by name and stream.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) applications: BTreeMap<(String, StreamId), Replayed>,
    /// Groups that earlier owners of a streamlet have.
    pub(super) older: OlderGroups,
    pub(super) report: ReplayReport,
}

impl Replay {
    /// Reads a lane from its first chunk to its durable end. Blocks the thread while segments come from disk.
    pub(super) fn read(lane: &Lane) -> Result<Replay, Failure> {
        let mut replay = Replay::default();
        lane.replay(|data| replay.chunks(data))?;
        Ok(replay)
    }

    /// Takes what the next chunks tell.
    pub(super) fn chunks(&mut self, data: &[u8]) {
        self.report.bytes += data.len() as u64;
        for chunk in Chunks::new(data) {
            let Ok(chunk) = chunk else {
                self.report.passed_over += 1;
                continue;
            };
            let payload = match chunk.uncompressed() {
                Ok(payload) => payload,
                Err(error) => {
                    self.report.passed_over += 1;
                    tracing::warn!(%error, "a chunk of records of applications is passed over");
                    continue;
                }
            };
            for record in Records::new(&payload) {
                self.report.records += 1;
                match record.and_then(|record| Entry::decode(&record)) {
                    Ok((name, stream, entry)) => self.entry(name, stream, entry),
                    Err(error) => {
                        self.report.passed_over += 1;
                        tracing::warn!(%error, "a record of applications is passed over");
                    }
                }
            }
        }
    }

    /// Takes the groups that the last owner of a streamlet has.
    pub(super) fn take_kept(&mut self, state: &StreamletState) {
        for lane in &state.lanes {
            let groups = lane.groups.iter().map(|kept| (kept.group, *kept));
            self.older.entry(lane.lane).or_default().extend(groups);
        }
        self.report.records += 1;
    }

    fn entry(&mut self, name: String, stream: StreamId, entry: Entry) {
        let key = (name, stream);
        match entry {
            Entry::Kept { lane, group, first_ordinal, next_ordinal } => {
                let kept = KeptGroup { group, first_ordinal, next_ordinal };
                self.older.entry(lane.lane).or_default().insert(group, kept);
            }
            Entry::Deleted => drop(self.applications.remove(&key)),
            Entry::Exists(record) => self.applications.entry(key).or_default().exists = Some(record),
            Entry::Base { lane, position, anew } => {
                let known = self.applications.entry(key).or_default().lanes.entry(lane).or_default();
                known.base = Some(position);
                known.ahead.retain(|group, _| !anew && *group > position.cursor.group);
            }
            Entry::Ahead { lane, position } => {
                let known = self.applications.entry(key).or_default().lanes.entry(lane).or_default();
                known.ahead.insert(position.cursor.group, position);
            }
        }
    }
}
