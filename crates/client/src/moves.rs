//! Moving streamlets, emptying and giving up nodes: what `kera streamlet`, `kera node` and `kera rebalance` ask for.

use kera_format::vlog_replica::LogId;
use kera_format::{StreamId, StreamletId};
use kera_protocol::{
    AcceptLogLoss, AcceptLoss, AcceptStreamletLoss, BalancePlan, ChangeNode, CopyChange, DescribeCopyChanges,
    DescribeLostLogs, DescribeMoves, FindOwners, LostLog, MoveInfo, MoveStreamlet, MovesDescription, NodeChange,
    PlanBalance, PlanRebalance, StreamRef,
};

use crate::{Admin, ClientError};

impl Admin {
    /// Has a streamlet move to another broker; returns when that is noted. Number 0: it is there already.
    pub async fn move_streamlet(
        &self,
        stream: impl Into<StreamRef>,
        streamlet: StreamletId,
        to: u32,
    ) -> Result<MoveInfo, ClientError> {
        self.client.call(&MoveStreamlet { stream: stream.into(), streamlet, to }).await
    }

    /// Which streamlets move, and what each node has.
    pub async fn describe_moves(&self) -> Result<MovesDescription, ClientError> {
        self.client.call(&DescribeMoves { limit: 0 }).await
    }

    /// Streams that are about to have another number of copies. Refused by nodes of versions that do not know of it.
    pub async fn copy_changes(&self) -> Result<Vec<CopyChange>, ClientError> {
        Ok(self.client.call(&DescribeCopyChanges { limit: 0 }).await?.changes)
    }

    /// The moves that would even out the brokers, at most so many; 0: as many as are told at once. Nothing is changed.
    pub async fn plan_rebalance(&self, limit: u32) -> Result<Vec<MoveInfo>, ClientError> {
        Ok(self.client.call(&PlanRebalance { limit }).await?.moves)
    }

    /// The same with what brokers take, before and after. Refused by nodes of versions that do not know of it.
    pub async fn plan_balance(&self, limit: u32) -> Result<BalancePlan, ClientError> {
        self.client.call(&PlanBalance { limit }).await
    }

    /// Has a node give up its streamlets, use it again, or give it up for good.
    pub async fn change_node(&self, node: u32, change: NodeChange) -> Result<(), ClientError> {
        self.client.call(&ChangeNode { node, change }).await.map(drop)
    }

    /// Goes on without what only a lost node had of a streamlet.
    pub async fn accept_loss(&self, stream: impl Into<StreamRef>, streamlet: StreamletId) -> Result<(), ClientError> {
        self.client.call(&AcceptLoss { stream: stream.into(), streamlet }).await.map(drop)
    }

    /// Logs of lost nodes of which blocks are missing.
    pub async fn lost_logs(&self) -> Result<Vec<LostLog>, ClientError> {
        Ok(self.client.call(&DescribeLostLogs { limit: 0 }).await?.logs)
    }

    /// Goes on without what nodes had of a log that are gone for good.
    pub async fn accept_log_loss(&self, log: LogId, gone: &[u32]) -> Result<(), ClientError> {
        self.client.call(&AcceptLogLoss { log, gone: gone.to_vec() }).await.map(drop)
    }

    /// Has a streamlet that is being rebuilt go on without blocks of a lost log.
    pub async fn accept_streamlet_loss(&self, loss: &AcceptStreamletLoss) -> Result<(), ClientError> {
        self.client.call(loss).await.map(drop)
    }

    /// The node that owns a streamlet, as the node that is asked knows it; 0: nobody.
    pub async fn owner(&self, stream: StreamId, streamlet: StreamletId) -> Result<u32, ClientError> {
        let mut after = None;
        loop {
            let asked = FindOwners { streams: vec![stream.into()], after, limit: 0 };
            let page = self.client.call(&asked).await?;
            let mut runs = page.streams.iter().flat_map(|of| &of.runs);
            if let Some(run) = runs.find(|run| run.contains(streamlet)) {
                return Ok(run.node);
            }
            after = page.next_page();
            if after.is_none() {
                return Ok(0);
            }
        }
    }
}
