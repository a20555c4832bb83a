//! What can go wrong for a program that uses the client, and what to do about it.

use std::time::Duration;

use kera_format::{FormatError, LaneId, StreamletId};
use kera_protocol::Status;
use kera_rpc::RpcError;

/// Why something did not work. [`retryable`](ClientError::retryable) and
/// [`could_duplicate`](ClientError::could_duplicate) say what a caller may do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The server could not be asked, or answered with an error. Producers and consumers retry by themselves what can be
    /// retried, so what comes out of them has no remedy, or its time was up.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// A setting or an argument outside its limits. Nothing was sent.
    #[error("{field} is {value}; allowed is {allowed}")]
    Invalid {
        /// What is wrong.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A record that is too large or has too many keys. It was not taken; everything else goes on.
    #[error("the record cannot be sent: {0}")]
    Record(FormatError),
    /// Records that the producer had taken were not acknowledged in time. They may be in the stream nevertheless.
    #[error("{} not acknowledged within {} ms; last error: {reason}", records_were(*records, *streamlet), after.as_millis())]
    DeliveryTimeout {
        /// How many records.
        records: u64,
        /// For which streamlet.
        streamlet: StreamletId,
        /// How long it was tried.
        after: Duration,
        /// What went wrong last.
        reason: String,
    },
    /// Records that the producer had taken were refused for good. They are not in the stream.
    #[error("{} refused: {status}; {}", records_were(*records, *streamlet), status.hint())]
    Refused {
        /// How many records.
        records: u64,
        /// For which streamlet.
        streamlet: StreamletId,
        /// Why.
        status: Status,
    },
    /// Records that the producer had taken were given up although nobody knows what became of a try to send them: they may be in the stream. Those
    /// of which that is known are given up with `error` itself.
    #[error("{} for streamlet {streamlet} may be in the stream or not: {error}", counted(*records))]
    Unknown {
        /// How many records.
        records: u64,
        /// For which streamlet.
        streamlet: StreamletId,
        /// Why they were given up.
        error: Box<ClientError>,
    },
    /// Another producer has taken over this producer's id. This one can do no more.
    #[error("the producer is fenced: another one uses its id with epoch {current}; stop, or make another producer")]
    Fenced {
        /// The epoch that is valid now.
        current: u64,
    },
    /// Records are missing that the consumer should have got, and retention has not removed them.
    #[error("streamlet {streamlet} lane {lane}: ordinal {expected} was expected, {found} came; records are missing")]
    Gap {
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
        /// The next ordinal there should have been.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// Retention has removed records before they were read, and the consumer is set to stop then.
    #[error("streamlet {streamlet} lane {lane}: retention removed {}", before_they_were_read(*records))]
    Removed {
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
        /// How many.
        records: u64,
    },
    /// A chunk that is damaged or that this client cannot read.
    #[error("streamlet {streamlet} lane {lane}, chunk at {cursor} from ordinal {ordinal} on: {source}; {}", skipping(*streamlet, *of_application))]
    Chunk {
        /// The streamlet.
        streamlet: StreamletId,
        /// The lane.
        lane: LaneId,
        /// Where the chunk is.
        cursor: String,
        /// The ordinal that it starts with.
        ordinal: u64,
        /// It was read for an application, whose members cannot seek.
        of_application: bool,
        /// What is wrong with it.
        source: FormatError,
    },
    /// What was asked for is done for some streamlets, whose owners have answered, and not for others, or nobody knows. It may be asked for
    /// again: where it is done it is only done once more.
    #[error("it is done for {}, and not for {}: {error}", named(done), named(left))]
    Partly {
        /// For which it is done, in their order.
        done: Vec<StreamletId>,
        /// For which it is not, in their order.
        left: Vec<StreamletId>,
        /// Why.
        error: Box<RpcError>,
    },
    /// The producer or consumer was closed.
    #[error("it is closed")]
    Closed,
}

fn counted(records: u64) -> String {
    if records == 1 { "1 record".to_owned() } else { format!("{records} records") }
}

fn before_they_were_read(records: u64) -> String {
    format!("{} before {} read", counted(records), if records == 1 { "it was" } else { "they were" })
}

fn records_were(records: u64, streamlet: StreamletId) -> String {
    format!("{} for streamlet {streamlet} {}", counted(records), if records == 1 { "was" } else { "were" })
}

/// How a chunk is skipped that nobody can read.
fn skipping(streamlet: StreamletId, of_application: bool) -> String {
    match of_application {
        true => format!(
            "skip it by stopping the application's members and `kera application reset NAME --streamlets {streamlet} --to ordinal:N` with a later ordinal, \
             which is then that of all lanes of the streamlet"
        ),
        false => "skip it by seeking to a later ordinal".into(),
    }
}

/// Streamlets that are named one by one.
const NAMED_MAX: usize = 8;

/// Streamlets in words: `streamlets 0, 3`.
fn named(streamlets: &[StreamletId]) -> String {
    let mut named: Vec<String> = streamlets.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if streamlets.len() > NAMED_MAX {
        named.push(format!("and {} more", streamlets.len() - NAMED_MAX));
    }
    let noun = if streamlets.len() == 1 { "streamlet" } else { "streamlets" };
    format!("{noun} {}", named.join(", "))
}

impl ClientError {
    /// Whether doing the same again later may work.
    pub fn retryable(&self) -> bool {
        match self {
            ClientError::Rpc(e) => e.retryable(),
            ClientError::Partly { error, .. } => error.retryable(),
            ClientError::Unknown { error, .. } => error.retryable(),
            ClientError::DeliveryTimeout { .. } => true,
            _ => false,
        }
    }

    /// Whether what failed may have been done nevertheless, so that doing it again could do it twice.
    pub fn could_duplicate(&self) -> bool {
        match self {
            ClientError::Rpc(e) => e.could_duplicate(),
            ClientError::Partly { error, .. } => error.could_duplicate(),
            ClientError::DeliveryTimeout { .. } | ClientError::Unknown { .. } => true,
            _ => false,
        }
    }

    /// The server's status, if it gave one.
    pub fn status(&self) -> Option<Status> {
        match self {
            ClientError::Rpc(e) => e.status(),
            ClientError::Partly { error, .. } => error.status(),
            ClientError::Unknown { error, .. } => error.status(),
            ClientError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    pub(crate) fn invalid(field: &'static str, value: impl ToString, allowed: impl Into<String>) -> ClientError {
        ClientError::Invalid { field, value: value.to_string(), allowed: allowed.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_damaged_chunk_is_skipped_is_told_as_its_reader_can() {
        let told = |of_application| {
            let source = FormatError::OverLimit { field: "chunk", value: 2, limit: 1 };
            let (streamlet, lane) = (StreamletId(3), LaneId(1));
            let cursor = "1:2/0/128".into();
            ClientError::Chunk { streamlet, lane, cursor, ordinal: 50, of_application, source }.to_string()
        };
        assert!(told(false).contains("from ordinal 50 on") && told(false).ends_with("seeking to a later ordinal"));
        assert!(told(true).contains("`kera application reset NAME --streamlets 3 --to ordinal:N`"), "{}", told(true));
        assert!(!told(true).contains("seeking"));
    }

    #[test]
    fn records_are_counted_in_words_that_fit() {
        let said = |records| {
            let (streamlet, status) = (StreamletId(3), Status::ChunkTooLarge);
            let refused = ClientError::Refused { records, streamlet, status };
            let unknown = ClientError::Unknown { records, streamlet, error: Box::new(ClientError::Closed) };
            [refused.to_string(), unknown.to_string()]
        };
        let [refused, unknown] = said(1);
        assert!(refused.starts_with("1 record for streamlet 3 was refused: "), "{refused}");
        assert_eq!(unknown, "1 record for streamlet 3 may be in the stream or not: it is closed");
        let [refused, unknown] = said(2);
        assert!(refused.starts_with("2 records for streamlet 3 were refused: "), "{refused}");
        assert!(unknown.starts_with("2 records for streamlet 3 may be"), "{unknown}");
    }

    #[test]
    fn what_is_done_in_part_says_where() {
        let streamlets = |from: u32, to: u32| (from..to).map(StreamletId).collect::<Vec<_>>();
        let lost = RpcError::Connect { address: "host:1".into(), reason: "refused".into() };
        let why = lost.to_string();
        let error = ClientError::Partly { done: streamlets(1, 12), left: streamlets(0, 1), error: Box::new(lost) };
        let said = "it is done for streamlets 1, 2, 3, 4, 5, 6, 7, 8, and 3 more, and not for streamlet 0: ";
        assert_eq!(error.to_string(), format!("{said}{why}"));
        assert!(error.retryable() && error.status().is_none());
    }
}
