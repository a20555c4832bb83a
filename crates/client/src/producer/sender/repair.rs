//! What is done when sequences have holes: closing them, skipping them, or going on in another epoch or as another producer.

use std::time::Duration;

use kera_format::ProducerId;
use kera_protocol::{AllocateProducer, AllocatedProducer, ChunkResult, Status};
use kera_rpc::RpcError;
use tokio::time::Instant;

use super::super::buffer::{Buffer, Sealed, Sequences};
use super::{Link, Sender, Verdict};

/// How long a node may take to say which epoch is next, before another one is asked.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(2);

/// What has to be done to the sequences before anything else is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Repair {
    None,
    /// Close holes.
    Renumber,
    /// Start over with the producer's next epoch in the streamlets that [cannot skip](Sequences::Anew) what is missing.
    Epoch,
    /// Start over as another producer: the server does not know this one.
    Identity,
}

impl Sender {
    /// A chunk came too early, as the server says: it expects another one.
    pub(super) fn gap(&mut self, at: usize, chunk: &Sealed, result: &ChunkResult, buffer: &mut Buffer) -> Verdict {
        let (streamlet, sequence) = (chunk.streamlet, chunk.sequence);
        let (expected, may_be_there) = (result.base_ordinal, result.forgot);
        if let Some(skips) = chunk.skips {
            self.shared.set_last_error(format!("{}: sequence {expected} was expected", Status::SequenceGap));
            tracing::debug!(streamlet, ?skips, expected, "something has come since, or was forgotten");
            if skips.from == expected && self.links[at].not_before.is_none() {
                // No server says so; one that does is not asked without end.
                self.links[at].back_off(None);
            }
            buffer.misses(streamlet, expected, may_be_there);
            return Verdict::Again;
        }
        let has_hole = buffer.has_hole(streamlet, expected..sequence);
        // Otherwise the server misses chunks that it has acknowledged, or that were given up: it has lost them, or the producer.
        if !has_hole && !self.is_behind(at, chunk, buffer) && self.settings.producer_id.is_some() {
            self.shared.set_last_error(format!("{}: sequence {expected} was expected", Status::SequenceGap));
            let forgotten = buffer.misses(streamlet, expected, may_be_there);
            if may_be_there && chunk.has_unknown_try() {
                tracing::warn!(
                    streamlet,
                    sequence,
                    "the server may have forgotten what it has of the producer; records whose answer was lost may be in the stream twice"
                );
            }
            if forgotten > 0 {
                tracing::warn!(
                    streamlet,
                    sequence,
                    expected,
                    forgotten,
                    "the server has forgotten acknowledged chunks; the producer goes on behind them"
                );
            } else {
                tracing::debug!(streamlet, sequence, expected, may_be_there, "goes on behind chunks that are settled");
            }
        }
        Verdict::Again
    }

    /// Whether a chunk of the same streamlet with a lower sequence waits to be sent again, or is under way again.
    fn is_behind(&self, at: usize, chunk: &Sealed, buffer: &Buffer) -> bool {
        let waiting = buffer.first_waiting_sequence(chunk.streamlet);
        let is_before = |other: &Sealed| other.streamlet == chunk.streamlet && other.sequence < chunk.sequence;
        waiting.is_some_and(|sequence| sequence < chunk.sequence)
            || buffer.has_more_under_way(chunk.streamlet)
                && self.links[at].in_flight.iter().any(|request| request.chunks.iter().any(is_before))
    }

    pub(super) fn require(&mut self, repair: Repair) {
        if self.settings.producer_id.is_some() {
            self.repair = self.repair.max(repair);
        }
    }

    /// Nothing is under way: gives the chunks that wait the sequences with which they can go on.
    pub(super) async fn repair(&mut self, now: Instant) {
        self.give_up_expired(now);
        if self.repair == Repair::Renumber {
            self.shared.buffer().renumber(Sequences::Same);
            self.repair = Repair::None;
            return;
        }
        let producer_id = self.settings.producer_id.filter(|_| self.repair != Repair::Identity);
        match self.allocate(producer_id).await {
            Ok(allocated) => {
                // An id whose epochs are used up is followed by another one.
                let is_same = self.settings.producer_id.replace(allocated.producer_id) == Some(allocated.producer_id);
                if !is_same {
                    tracing::warn!(
                        "the producer goes on under another id; records whose answer was lost may be in the stream twice"
                    );
                }
                let epoch = allocated.producer_epoch;
                let sequences = match self.repair {
                    Repair::Epoch if is_same => Sequences::Anew(epoch),
                    _ => Sequences::All(allocated.producer_id, epoch),
                };
                self.shared.buffer().renumber(sequences);
                self.repair = Repair::None;
                self.repair_backoff.reset();
            }
            Err(RpcError::Status { status: Status::UnknownProducer, .. }) => self.repair = Repair::Identity,
            Err(error) => {
                self.shared.set_last_error(error.to_string());
                self.repair_at = Some(Instant::now() + self.repair_backoff.next(error.retry_after()));
            }
        }
    }

    /// Asks for the producer's next epoch, or for another one, one node after the other: none for long, for as long as it is asked nothing is sent and nothing given up.
    async fn allocate(&mut self, producer_id: Option<ProducerId>) -> Result<AllocatedProducer, RpcError> {
        let open = |link: &Link| link.connection.clone().filter(|known| !known.is_closed());
        let mut links = self.links.iter().enumerate().skip(self.repair_from);
        let connected = links.find_map(|(at, link)| Some((at, open(link)?)));
        let at = connected.as_ref().map(|(at, _)| *at);
        let asked = async {
            let connection = match connected {
                Some((_, connection)) => connection,
                // Another cluster, or a node of none, gives out ids that somebody has in this one.
                None => self.client.dedicated_within(&self.owners.placement, REPAIR_TIMEOUT).await?,
            };
            let allocated = connection.call(&AllocateProducer { producer_id }).await;
            Ok((connection, allocated))
        };
        match tokio::time::timeout(REPAIR_TIMEOUT, asked).await {
            Ok(Ok((connection, allocated))) => {
                if self.links[0].connection.is_none() && self.owners.placement.is_alone() {
                    self.links[0].connection = Some(connection);
                    self.learn_version(0);
                }
                allocated
            }
            Ok(Err(error)) => {
                self.repair_from = 0;
                Err(error)
            }
            Err(_) => {
                self.repair_from = at.map_or(0, |at| at + 1);
                let address = at.map_or("any node".into(), |at| format!("node {}", self.links[at].node));
                Err(RpcError::Timeout { address, after: REPAIR_TIMEOUT })
            }
        }
    }
}
