//! What clients may do, which is everything: there are no access control lists and no quotas, and whoever asks is told so as by
//! a Kafka broker without an authorizer.
//!
//! Pure, on the connection's I/O thread.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::delete_acls_response::DeleteAclsFilterResult;
use kafka_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse, DescribeAclsRequest,
    DescribeAclsResponse, DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};
use kafka_protocol::protocol::StrBytes;

/// Operations by the bit of their number: read 3, write 4, create 5, delete 6, alter 7, describe 8, cluster action 9, describe
/// configurations 10, alter them 11, idempotent write 12.
pub(crate) const TOPIC_OPERATIONS: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
pub(crate) const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;
pub(crate) const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;
/// Nobody asked.
pub(crate) const NOT_TOLD: i32 = i32::MIN;

const NO_AUTHORIZER: StrBytes =
    StrBytes::from_static_str("there are no access control lists: everybody may do everything");

/// The operations that are allowed, if they are asked for.
pub(crate) fn told_if(asked: bool, operations: i32) -> i32 {
    if asked { operations } else { NOT_TOLD }
}

pub(crate) fn describe_acls(_: &DescribeAclsRequest) -> DescribeAclsResponse {
    DescribeAclsResponse::default()
        .with_error_code(ResponseError::SecurityDisabled.code())
        .with_error_message(Some(NO_AUTHORIZER))
}

pub(crate) fn create_acls(asked: &CreateAclsRequest) -> CreateAclsResponse {
    let refused = AclCreationResult::default()
        .with_error_code(ResponseError::SecurityDisabled.code())
        .with_error_message(Some(NO_AUTHORIZER));
    CreateAclsResponse::default().with_results(vec![refused; asked.creations.len()])
}

pub(crate) fn delete_acls(asked: &DeleteAclsRequest) -> DeleteAclsResponse {
    let refused = DeleteAclsFilterResult::default()
        .with_error_code(ResponseError::SecurityDisabled.code())
        .with_error_message(Some(NO_AUTHORIZER));
    DeleteAclsResponse::default().with_filter_results(vec![refused; asked.filters.len()])
}

pub(crate) fn quotas(_: &DescribeClientQuotasRequest) -> DescribeClientQuotasResponse {
    DescribeClientQuotasResponse::default().with_entries(Some(Vec::new()))
}
