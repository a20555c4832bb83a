//! From request frames to commands and back: what a broker's session does with the coordinator's operations.

use kera_protocol::frame::{begin_frame, finish_frame};
use kera_protocol::{
    AllocateProducer, AlterStream, Body, CreateStream, DeleteStream, Empty, FrameHeader, GetStream, ListStreams, Op,
    Status, encode_error, encode_response,
};

use crate::{Coordinator, CoordinatorError};

impl Coordinator {
    /// Whether [`handle`](Coordinator::handle) answers `op`.
    pub fn serves(op: Op) -> bool {
        use Op::{AllocateProducer, AlterStream, CreateStream, DeleteStream, GetStream, ListStreams};
        matches!(op, CreateStream | GetStream | ListStreams | AlterStream | DeleteStream | AllocateProducer)
            || Coordinator::is_for_cluster(op)
    }

    /// Requests that make sense in a cluster only, and go to the leader of its coordinators.
    fn is_for_cluster(op: Op) -> bool {
        use Op::{
            AcceptLogLoss, AcceptLoss, AcceptStreamletLoss, ChangeNode, DescribeCopyChanges, DescribeLostLogs,
            DescribeMoves, MoveStreamlet, PlanBalance, PlanRebalance,
        };
        matches!(op, MoveStreamlet | ChangeNode | PlanRebalance | DescribeMoves | AcceptLoss | AcceptStreamletLoss)
            || matches!(op, DescribeLostLogs | AcceptLogLoss | PlanBalance | DescribeCopyChanges)
    }

    /// Answers one request: appends the whole response frame to `out`. `op` must be one that is
    /// [served](Coordinator::serves). May block on the disk.
    pub fn handle(&self, op: Op, request: &FrameHeader, body: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        if let Err(error) = self.answer(op, request, body, out) {
            out.truncate(start);
            encode_error(request, error.status(), &error.body(), out);
        }
    }

    fn answer(&self, op: Op, request: &FrameHeader, body: &[u8], out: &mut Vec<u8>) -> Result<(), CoordinatorError> {
        let version = request.version;
        op.check_version(version)?;
        match op {
            Op::CreateStream => {
                let message = CreateStream::decode(version, body)?;
                encode_response(request, &self.create_stream(&message)?, out);
            }
            Op::GetStream => {
                let message = GetStream::decode(version, body)?;
                encode_response(request, &self.stream(&message.stream)?, out);
            }
            Op::ListStreams => {
                let message = ListStreams::decode(version, body)?;
                encode_response(request, &self.list_streams(&message), out);
            }
            Op::AlterStream => {
                let message = AlterStream::decode(version, body)?;
                encode_response(request, &self.alter_stream(&message.stream, &message.changes)?, out);
            }
            Op::DeleteStream => {
                let message = DeleteStream::decode(version, body)?;
                self.delete_stream(&message.stream)?;
                encode_response(request, &Empty, out);
            }
            Op::AllocateProducer => {
                let message = AllocateProducer::decode(version, body)?;
                encode_response(request, &self.allocate_producer(message.producer_id)?, out);
            }
            op if Coordinator::is_for_cluster(op) => {
                let answer = self.ask_cluster(op, version, body)?;
                let start = begin_frame(&request.response(Status::Ok as u16), out);
                out.extend_from_slice(&answer);
                finish_frame(out, start, 0);
            }
            other => unreachable!("{other} is not the coordinator's; see Coordinator::serves"),
        }
        Ok(())
    }
}
