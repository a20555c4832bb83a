//! Which requests are served, in which versions, and what each looks like on the wire.
//!
//! One table, [`APIS`], is what `ApiVersions` tells clients and what every request is walked along before it is decoded
//! ([`crate::shape`]). Clients choose their features by this table, so a request is in it only if it is served whole.
//!
//! # How a shape is written
//!
//! `b` a byte, `h` `i` `l` integers of 2, 4, 8 bytes, `u` an id of 16, `s` a string, `y` bytes, `[…]` an array, `(…)` a
//! structure in an array (which in flexible versions ends with tagged fields), `?(…)` one that may be absent, which a byte in
//! front of it says; `3+{…}` and `2-4{…}` are there in those
//! versions only. A request as a whole is a structure too. `<0s1(il)>` at the end of a structure are the tagged fields that the decoder knows, with
//! their numbers.

use kafka_protocol::messages::ApiKey;

/// A request that is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    pub(crate) key: ApiKey,
    /// The versions that are advertised.
    pub(crate) min: i16,
    pub(crate) max: i16,
    /// From this version on lengths are varints and structures end with tagged fields.
    pub(crate) flexible: i16,
    pub(crate) shape: &'static str,
}

const fn api(key: ApiKey, min: i16, max: i16, flexible: i16, shape: &'static str) -> Api {
    Api { key, min, max, flexible, shape }
}

/// No version of the request is flexible.
const NEVER: i16 = i16::MAX;

/// All of them. Produce says 0, since clients of the librdkafka family probe for it; versions below 3 carry record formats
/// that are not kept, and are answered with an error per partition.
pub(crate) const APIS: &[Api] = &[
    api(ApiKey::Produce, 0, 13, 9, "3+{s}hi[(0-12{s}13+{u}[(iy)])]"),
    api(
        ApiKey::Fetch,
        4,
        17,
        12,
        "4-14{i}iiib7+{ii}[(0-12{s}13+{u}[(i9+{i}l12+{i}5+{l}i<0u>)])]7+{[(7-12{s}13+{u}[i])]}11+{s}<0s1(il)>",
    ),
    api(ApiKey::ListOffsets, 1, 10, 6, "i2+{b}[(s[(i4+{i}l)])]10+{i}"),
    api(ApiKey::Metadata, 0, 13, 9, "[(10+{u}s)]4+{b}8-10{b}8+{b}"),
    api(ApiKey::ApiVersions, 0, 4, 3, "3+{ss}"),
    api(ApiKey::CreateTopics, 2, 7, 5, "[(sih[(i[i])][(ss)])]ib"),
    api(ApiKey::DeleteTopics, 1, 6, 4, "6+{[(su)]}1-5{[s]}i"),
    api(ApiKey::InitProducerId, 0, 5, 2, "si3+{lh}"),
    api(ApiKey::AddPartitionsToTxn, 0, 3, 3, "slh[(s[i])]"),
    api(ApiKey::AddOffsetsToTxn, 0, 4, 3, "slhs"),
    api(ApiKey::EndTxn, 0, 5, 3, "slhb"),
    api(ApiKey::TxnOffsetCommit, 0, 5, 3, "sslh3+{iss}[(s[(il2+{i}s)])]"),
    api(ApiKey::DescribeTransactions, 0, 0, 0, "[s]"),
    api(ApiKey::ListTransactions, 0, 1, 0, "[s][l]1+{l}"),
    api(ApiKey::OffsetForLeaderEpoch, 2, 4, 4, "3+{i}[(s[(iii)])]"),
    api(ApiKey::DescribeConfigs, 1, 4, 4, "[(bs[s])]b3+{b}"),
    api(ApiKey::AlterConfigs, 0, 2, 2, "[(bs[(ss)])]b"),
    api(ApiKey::CreatePartitions, 0, 3, 2, "[(si[([i])])]ib"),
    api(ApiKey::DeleteRecords, 0, 2, 2, "[(s[(il)])]i"),
    api(ApiKey::DescribeLogDirs, 1, 4, 2, "[(s[i])]"),
    api(ApiKey::DescribeTopicPartitions, 0, 0, 0, "[(s)]i?(si)"),
    api(ApiKey::IncrementalAlterConfigs, 0, 1, 1, "[(bs[(sbs)])]b"),
    api(ApiKey::OffsetCommit, 2, 9, 8, "sis7+{s}2-4{l}[(s[(il6+{i}s)])]"),
    api(ApiKey::OffsetFetch, 1, 9, 6, "1-7{s}1-7{[(s[i])]}8+{[(s9+{si}[(s[i])])]}7+{b}"),
    api(ApiKey::FindCoordinator, 0, 6, 3, "0-3{s}1+{b}4+{[s]}"),
    api(ApiKey::JoinGroup, 0, 9, 6, "si1+{i}s5+{s}s[(sy)]8+{s}"),
    api(ApiKey::Heartbeat, 0, 4, 4, "sis3+{s}"),
    api(ApiKey::LeaveGroup, 0, 5, 4, "s0-2{s}3+{[(ss5+{s})]}"),
    api(ApiKey::SyncGroup, 0, 5, 4, "sis3+{s}5+{ss}[(sy)]"),
    api(ApiKey::DescribeGroups, 0, 6, 5, "[s]3+{b}"),
    api(ApiKey::ListGroups, 0, 5, 3, "4+{[s]}5+{[s]}"),
    api(ApiKey::DeleteGroups, 0, 2, 2, "[s]"),
    api(ApiKey::OffsetDelete, 0, 0, NEVER, "s[(s[(i)])]"),
    api(ApiKey::ConsumerGroupHeartbeat, 0, 1, 0, "ssissi[s]1+{s}s[(u[i])]"),
    api(ApiKey::ConsumerGroupDescribe, 0, 1, 0, "[s]b"),
    api(ApiKey::DescribeCluster, 0, 2, 0, "b1+{b}2+{b}"),
    api(ApiKey::ElectLeaders, 0, 2, 2, "1+{b}[(s[i])]i"),
    api(ApiKey::AlterReplicaLogDirs, 1, 2, 2, "[(s[(s[i])])]"),
    api(ApiKey::DescribeQuorum, 0, 2, 0, "[(s[(i)])]"),
    api(ApiKey::AlterPartitionReassignments, 0, 1, 0, "i1+{b}[(s[(i[i])])]"),
    api(ApiKey::ListPartitionReassignments, 0, 0, 0, "i[(s[i])]"),
    api(ApiKey::ListConfigResources, 0, 1, 0, "1+{[b]}"),
    api(ApiKey::DescribeProducers, 0, 0, 0, "[(s[i])]"),
    api(ApiKey::DescribeClientQuotas, 0, 1, 1, "[(sbs)]b"),
    api(ApiKey::DescribeAcls, 1, 3, 2, "bsbssbb"),
    api(ApiKey::CreateAcls, 1, 3, 2, "[(bsbssbb)]"),
    api(ApiKey::DeleteAcls, 1, 3, 2, "[(bsbssbb)]"),
];

/// The entry of a request, if it is served in any version.
pub(crate) fn find(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key as i16 == key)
}

impl Api {
    pub(crate) fn is_flexible(&self, version: i16) -> bool {
        version >= self.flexible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_the_schemas() {
        for api in APIS {
            let known = api.key.valid_versions();
            assert!(api.max <= known.max, "{:?}", api.key);
            assert!(api.min >= known.min || api.key == ApiKey::Produce, "{:?}", api.key);
            for version in api.min.max(known.min)..=api.max {
                let flexible = api.key.request_header_version(version) >= 2;
                assert_eq!(api.is_flexible(version), flexible, "{:?} v{version}", api.key);
            }
        }
    }
}
