//! A request without a session: what everything that comes from a client goes through before it is served. For fuzzing.

use kafka_protocol::messages::*;
use kafka_protocol::protocol::Decodable;

use crate::batch::{self, BatchHeader};
use crate::session::{Request, decode};
use crate::wire::{Malformed, Reader};
use crate::{apis, shape};

/// Reads a frame as a connection does, behind its length: header, shape, message; of Produce the batches' headers.
///
/// # Errors
/// What a connection would be closed for.
pub fn read_request(frame: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(frame, false);
    let (key, version, correlation) = (reader.i16()?, reader.i16()?, reader.i32()?);
    let unknown = Malformed::Value { what: "the request's key", value: key.into() };
    let api = apis::find(key).ok_or(unknown)?;
    if !(api.min..=api.max).contains(&version) {
        return Err(Malformed::Value { what: "the request's version", value: version.into() });
    }
    let request = Request { api, version, correlation };
    reader.nullable_string()?;
    if request.is_flexible() {
        reader.skip_tags()?;
    }
    let body = reader.rest();
    if api.key == ApiKey::Produce {
        return crate::produce::each_batch(&request, body, |batch| {
            let _ = BatchHeader::check(batch);
            let _ = batch::first_at(batch, 0, 0);
        });
    }
    shape::check(api.shape, version, request.is_flexible(), body)?;
    message(&request, body)
}

fn one<M: Decodable>(request: &Request, body: &[u8]) -> Result<(), Malformed> {
    decode::<M>(request, body).map(drop)
}

fn message(request: &Request, body: &[u8]) -> Result<(), Malformed> {
    match request.api.key {
        ApiKey::Fetch => one::<FetchRequest>(request, body),
        ApiKey::ListOffsets => one::<ListOffsetsRequest>(request, body),
        ApiKey::Metadata => one::<MetadataRequest>(request, body),
        ApiKey::OffsetCommit => one::<OffsetCommitRequest>(request, body),
        ApiKey::OffsetFetch => one::<OffsetFetchRequest>(request, body),
        ApiKey::FindCoordinator => one::<FindCoordinatorRequest>(request, body),
        ApiKey::JoinGroup => one::<JoinGroupRequest>(request, body),
        ApiKey::Heartbeat => one::<HeartbeatRequest>(request, body),
        ApiKey::LeaveGroup => one::<LeaveGroupRequest>(request, body),
        ApiKey::SyncGroup => one::<SyncGroupRequest>(request, body),
        ApiKey::DescribeGroups => one::<DescribeGroupsRequest>(request, body),
        ApiKey::ListGroups => one::<ListGroupsRequest>(request, body),
        ApiKey::ApiVersions => one::<ApiVersionsRequest>(request, body),
        ApiKey::CreateTopics => one::<CreateTopicsRequest>(request, body),
        ApiKey::DeleteTopics => one::<DeleteTopicsRequest>(request, body),
        ApiKey::InitProducerId => one::<InitProducerIdRequest>(request, body),
        ApiKey::OffsetForLeaderEpoch => one::<OffsetForLeaderEpochRequest>(request, body),
        ApiKey::DescribeConfigs => one::<DescribeConfigsRequest>(request, body),
        ApiKey::AlterConfigs => one::<AlterConfigsRequest>(request, body),
        ApiKey::CreatePartitions => one::<CreatePartitionsRequest>(request, body),
        ApiKey::DeleteGroups => one::<DeleteGroupsRequest>(request, body),
        ApiKey::IncrementalAlterConfigs => one::<IncrementalAlterConfigsRequest>(request, body),
        ApiKey::AddPartitionsToTxn => one::<AddPartitionsToTxnRequest>(request, body),
        ApiKey::AddOffsetsToTxn => one::<AddOffsetsToTxnRequest>(request, body),
        ApiKey::EndTxn => one::<EndTxnRequest>(request, body),
        ApiKey::TxnOffsetCommit => one::<TxnOffsetCommitRequest>(request, body),
        ApiKey::DescribeTransactions => one::<DescribeTransactionsRequest>(request, body),
        ApiKey::ListTransactions => one::<ListTransactionsRequest>(request, body),
        ApiKey::OffsetDelete => one::<OffsetDeleteRequest>(request, body),
        ApiKey::DescribeCluster => one::<DescribeClusterRequest>(request, body),
        ApiKey::DeleteRecords => one::<DeleteRecordsRequest>(request, body),
        ApiKey::DescribeLogDirs => one::<DescribeLogDirsRequest>(request, body),
        ApiKey::DescribeTopicPartitions => one::<DescribeTopicPartitionsRequest>(request, body),
        ApiKey::ConsumerGroupHeartbeat => one::<ConsumerGroupHeartbeatRequest>(request, body),
        ApiKey::ConsumerGroupDescribe => one::<ConsumerGroupDescribeRequest>(request, body),
        ApiKey::ElectLeaders => one::<ElectLeadersRequest>(request, body),
        ApiKey::AlterReplicaLogDirs => one::<AlterReplicaLogDirsRequest>(request, body),
        ApiKey::DescribeQuorum => one::<DescribeQuorumRequest>(request, body),
        ApiKey::AlterPartitionReassignments => one::<AlterPartitionReassignmentsRequest>(request, body),
        ApiKey::ListPartitionReassignments => one::<ListPartitionReassignmentsRequest>(request, body),
        ApiKey::DescribeProducers => one::<DescribeProducersRequest>(request, body),
        ApiKey::ListConfigResources => one::<ListConfigResourcesRequest>(request, body),
        ApiKey::DescribeClientQuotas => one::<DescribeClientQuotasRequest>(request, body),
        ApiKey::DescribeAcls => one::<DescribeAclsRequest>(request, body),
        ApiKey::CreateAcls => one::<CreateAclsRequest>(request, body),
        ApiKey::DeleteAcls => one::<DeleteAclsRequest>(request, body),
        key => Err(Malformed::Decode(format!("{key:?} is advertised and not read"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::APIS;
    use proptest::prelude::*;

    proptest! {
        /// What a shape lets through has all the bytes that its decoder asks for: if the two saw different counts and lengths,
        /// some bytes would be too few for the decoder. It may refuse values, such as a missing name.
        #[test]
        fn what_fits_its_shape_can_be_decoded(body in prop::collection::vec(0_u8..4, 0..60)) {
            for api in APIS.iter().filter(|api| api.key != ApiKey::Produce) {
                // Tagged fields of later versions of Fetch hold structures, which may end before their field does.
                let max = if api.key == ApiKey::Fetch { api.flexible - 1 } else { api.max };
                for version in api.min..=max {
                    let request = Request { api, version, correlation: 0 };
                    if shape::check(api.shape, version, request.is_flexible(), &body).is_ok() {
                        let read = message(&request, &body);
                        let text = read.map_or_else(|error| error.to_string(), |()| String::new()).to_lowercase();
                        prop_assert!(!text.contains("not enough bytes"), "{:?} v{version}: {text}", api.key);
                    }
                }
            }
        }

        #[test]
        fn any_bytes_are_read(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_request(&frame);
        }
    }
}
