//! Finding places in lanes whose groups several nodes may have.

use std::time::Duration;

use kera_format::GroupId;
use kera_protocol::{AvailableGroups, GroupInfo, Lookup, LookupResult, Start, Status};
use kera_rpc::RpcError;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::placement::Placement;
use crate::{Client, ClientError};

/// How often owners are asked for again, at least, while a place is looked for and nodes send each other's way.
const TRIES: u32 = 8;
/// For how long, at least, a place is looked for whose node cannot be reached: another one may take over from it.
const NEXT_OWNER_TIMEOUT: Duration = Duration::from_secs(10);

impl Client {
    /// Where in a lane something is, whoever has it. What fails and may work later is tried again for so long, and a few times
    /// while streamlets move.
    pub(crate) async fn find_place(&self, lookup: &Lookup, retry_for: Duration) -> Result<LookupResult, ClientError> {
        let mut placement = self.placement(lookup.stream).await?;
        if placement.is_alone() {
            return self.call_for(lookup, retry_for).await;
        }
        let until = Instant::now() + retry_for.max(NEXT_OWNER_TIMEOUT);
        let mut backoff = Backoff::for_owners();
        let mut tries = 0;
        loop {
            let error = match self.find_in(&placement, lookup).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            tries += 1;
            let wait = backoff.next(error.retry_after());
            let is_moving = error.status() == Some(Status::NotOwner) && tries < TRIES;
            // Its owner has not heard yet that the stream has grown, and that it owns it.
            let is_unheard = error.status() == Some(Status::UnknownStreamlet);
            if !(error.retryable() || is_unheard) || (Instant::now() + wait > until && !is_moving) {
                return Err(error.into());
            }
            tokio::time::sleep(wait).await;
            match self.refresh(lookup.stream, &placement).await {
                Ok(found) => placement = found,
                Err(error) if error.retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn find_in(&self, placement: &Placement, lookup: &Lookup) -> Result<LookupResult, RpcError> {
        let holders = placement.holders(lookup.streamlet);
        let (owner, _) = placement.owner(lookup.streamlet.0);
        if lookup.at != Start::Latest && placement.lacks_groups(lookup.streamlet) {
            // What the others have would look like all, and a reader would begin behind what is only away.
            let message = format!(
                "older groups of streamlet {} are at a node that is lost, and are not rebuilt yet; `kera status` shows what is missing",
                lookup.streamlet
            );
            return Err(RpcError::Status { status: Status::NotReady, message, retry_after: None });
        }
        if holders.len() < 2 {
            return self.call_node(placement, owner, lookup).await;
        }
        let latest = self.call_node(placement, owner, &Lookup { at: Start::Latest, ..*lookup }).await?;
        if lookup.at == Start::Latest {
            return Ok(latest);
        }
        let mut groups = Vec::new();
        for node in &holders {
            self.groups_of(placement, *node, lookup, &mut groups).await?;
        }
        for node in holders {
            self.check_holder(placement, node, lookup).await?;
        }
        groups.sort_unstable_by_key(|(group, _): &(GroupInfo, u32)| group.group);
        let first_ordinal = groups.first().map_or(latest.first_ordinal, |(group, _)| group.first_ordinal);
        let found = groups.iter().find(|(group, _)| match lookup.at {
            Start::Earliest => true,
            Start::Latest => false,
            Start::Ordinal(ordinal) => group.durable_ordinal > ordinal,
            Start::TimeMs(time_ms) => group.last_append_ms >= time_ms,
        });
        let place = match (found, lookup.at) {
            (None, _) => latest,
            // Where the first of them begins, too: records in front of that may be deleted and lie there for a while.
            (Some((group, node)), Start::Earliest | Start::Ordinal(_)) => {
                let wanted = if let Start::Ordinal(ordinal) = lookup.at { ordinal } else { 0 };
                let at = Start::Ordinal(wanted.max(group.first_ordinal));
                self.call_node(placement, *node, &Lookup { at, ..*lookup }).await?
            }
            (Some((_, node)), _) => self.call_node(placement, *node, lookup).await?,
        };
        Ok(LookupResult { first_ordinal, durable_ordinal: latest.durable_ordinal, ..place })
    }

    /// Whether what a node has told of its groups is what `placement` expects of it. One that was lost and started again has forgotten groups that
    /// others have rebuilt: where they were there would be nothing, and a reader would begin behind them. Whoever has forgotten something
    /// knows who has it now, so it is asked after it has told, and what may be later than `placement` counts.
    async fn check_holder(&self, placement: &Placement, node: u32, lookup: &Lookup) -> Result<(), RpcError> {
        let knows = self.placement_at(placement, node, lookup.stream).await?;
        match knows.bears_out(placement, lookup.streamlet, node) {
            true => Ok(()),
            false => {
                let message = format!("node {node} says that others have groups of streamlet {} now", lookup.streamlet);
                Err(RpcError::Status { status: Status::NotOwner, message, retry_after: None })
            }
        }
    }

    /// The groups of a lane with something in them that a node has.
    async fn groups_of(
        &self,
        placement: &Placement,
        node: u32,
        lookup: &Lookup,
        into: &mut Vec<(GroupInfo, u32)>,
    ) -> Result<(), RpcError> {
        let mut after = GroupId::NONE;
        loop {
            let asked = AvailableGroups { stream: lookup.stream, streamlet: lookup.streamlet, after, limit: 0 };
            let page = self.call_node(placement, node, &asked).await?;
            let wanted = |group: &&GroupInfo| group.lane == lookup.lane && group.durable_ordinal > group.first_ordinal;
            into.extend(page.groups.iter().filter(wanted).map(|group| (*group, node)));
            match page.groups.last() {
                Some(last) if page.more && last.group > after => after = last.group,
                _ => return Ok(()),
            }
        }
    }
}
