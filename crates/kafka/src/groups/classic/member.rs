//! A member of a classic group, with the requests of it that wait.

use bytes::Bytes;
use kafka_protocol::error::ResponseError as Code;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupResponse};

use super::super::api::Answer;
use super::super::group::{Turn, text};

/// Bytes that a member is counted for beside what it gives.
const MEMBER_BYTES: usize = 512;
/// Bytes that a protocol is counted for beside its name, which its group has once more, and what is told under it.
const PROTOCOL_BYTES: usize = 96;

/// A join that waits for its generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ParkedJoin {
    pub(super) token: u64,
    pub(super) version: i16,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The name that outlives it, if it has one.
    pub(super) instance: Option<String>,
    pub(super) client_id: String,
    pub(super) host: String,
    pub(super) session_ms: u64,
    pub(super) rebalance_ms: u64,
    /// What it can do, what it likes most first, each with what the leader should know.
    pub(super) protocols: Vec<(String, Bytes)>,
    pub(super) assignment: Bytes,
    pub(super) join: Option<ParkedJoin>,
    pub(super) sync: Option<u64>,
    /// It must be heard of before; never while one of its requests waits, unless it has never been in a generation.
    pub(super) deadline_ms: u64,
    /// Has never been in a generation.
    pub(super) is_new: bool,
}

impl Member {
    /// What it tells the leader under this protocol.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.iter().find(|(name, _)| name == protocol).map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    /// Bytes that it takes under this id.
    pub(super) fn bytes(&self, id: &str) -> usize {
        let names = [self.instance.as_deref().unwrap_or_default(), &self.client_id, &self.host].map(str::len);
        taken_bytes(id.len(), names, &self.protocols) + self.assignment.len()
    }

    /// Answers a parked join with an error. Whether there was one.
    pub(super) fn answer_join_error(&mut self, turn: &mut Turn<'_>, member_id: &str, code: Code) -> bool {
        let Some(parked) = self.join.take() else { return false };
        turn.answer(parked.token, join_error(parked.version, member_id, code));
        true
    }

    /// Answers a parked sync with an error.
    pub(super) fn answer_sync_error(&mut self, turn: &mut Turn<'_>, code: Code) {
        if let Some(token) = self.sync.take() {
            turn.answer(token, sync_error(code));
        }
    }
}

/// Bytes that a member takes which has no assignment: with an id of so many bytes, the names of its instance, its client and its host. Ids are in
/// up to three places, instances in two.
pub(super) fn taken_bytes(id: usize, [instance, client, host]: [usize; 3], protocols: &[(String, Bytes)]) -> usize {
    MEMBER_BYTES + 3 * id + 2 * instance + client + host + spoken_bytes(protocols)
}

/// Bytes that the protocols take which somebody names.
pub(in crate::groups) fn spoken_bytes(protocols: &[(String, Bytes)]) -> usize {
    let names: usize = protocols.iter().map(|(name, _)| name.len() + PROTOCOL_BYTES).sum();
    names + protocol_bytes(protocols)
}

/// Bytes of the protocols that somebody names, with what it tells under them.
pub(in crate::groups) fn protocol_bytes(protocols: &[(String, Bytes)]) -> usize {
    protocols.iter().map(|(name, bytes)| name.len() + bytes.len()).sum()
}

/// The refusal of a join.
pub(in crate::groups) fn join_error(version: i16, member_id: &str, code: Code) -> Answer {
    let response = JoinGroupResponse::default()
        .with_error_code(code.code())
        .with_generation_id(-1)
        .with_member_id(text(member_id))
        .with_protocol_type(None)
        // The field cannot be absent in old versions.
        .with_protocol_name((version < 7).then(|| text("")));
    Answer::Join(response)
}

/// The refusal of a sync.
pub(in crate::groups) fn sync_error(code: Code) -> Answer {
    Answer::Sync(SyncGroupResponse::default().with_error_code(code.code()))
}
