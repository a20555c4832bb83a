//! What nodes say to each other about the transactions of Kafka producers, whose coordinators, partitions and groups have different owners
//! (`docs/decisions/0021-kafka-transactions-in-a-cluster.md`). Clients send none of it.
//!
//! Errors that a Kafka client is told are Kafka's numbers; 0: none.

use kera_format::{ProducerEpoch, ProducerId, StreamId, StreamletId};

use crate::codec::wire_struct;
use crate::message::{messages, responses};

wire_struct! {
    /// A streamlet, and the epoch in which a node owns it.
    #[derive(Copy)]
    pub struct OwnedStreamlet {
        /// Of which stream.
        pub stream: StreamId,
        /// Which streamlet.
        pub streamlet: StreamletId,
        /// The owner's epoch.
        pub owner_epoch: u32,
    }
}

wire_struct! {
    /// Whoever has become the owner of streamlets asks a transaction coordinator what it knows of them.
    pub struct TransactionsIn {
        /// The coordinator's streamlet of `_kera.cluster.transactions`.
        pub part: u32,
        /// Which streamlets. An owner of an earlier epoch is not believed any more to have ended anything in them.
        pub streamlets: Vec<OwnedStreamlet>,
    }
}

wire_struct! {
    /// A transaction that has not ended in a partition, as far as its coordinator knows.
    #[derive(Copy)]
    pub struct OpenTransaction {
        /// Of which stream.
        pub stream: StreamId,
        /// Which partition.
        pub partition: u32,
        /// The producer's Kafka id.
        pub producer_id: ProducerId,
        /// The producer's epoch.
        pub producer_epoch: ProducerEpoch,
        /// The transaction has written nothing before this offset.
        pub from_offset: u64,
    }
}

wire_struct! {
    /// Records of an aborted transaction in a partition.
    #[derive(Copy)]
    pub struct AbortedRecords {
        /// Of which stream.
        pub stream: StreamId,
        /// Which partition.
        pub partition: u32,
        /// The producer's Kafka id.
        pub producer_id: ProducerId,
        /// The epoch of the marker that ends them.
        pub producer_epoch: ProducerEpoch,
        /// The transaction has written nothing before this offset.
        pub first_offset: u64,
        /// The offset of the marker.
        pub marker_offset: u64,
        /// Transactions that ended later have written nothing before this offset.
        pub stable_offset: u64,
    }
}

wire_struct! {
    /// What a transaction coordinator knows of streamlets. Durable before it is told.
    pub struct TransactionsHeld {
        /// The coordinator's own owner epoch.
        pub epoch: u32,
        /// What has not ended.
        pub open: Vec<OpenTransaction>,
        /// What was aborted.
        pub aborted: Vec<AbortedRecords>,
    }
}

wire_struct! {
    /// A partition's owner asks whether a producer's batch is part of a transaction that runs. Answered when that is durable.
    pub struct ClaimPartition {
        /// The transactional id.
        pub id: String,
        /// The producer's Kafka id.
        pub producer_id: ProducerId,
        /// The producer's epoch.
        pub producer_epoch: ProducerEpoch,
        /// The topic.
        pub topic: String,
        /// Which partition.
        pub partition: u32,
        /// The stream behind the topic's name.
        pub stream: StreamId,
        /// The partition's durable end.
        pub from_offset: u64,
        /// Whether the partition is added to the transaction if it is not in it.
        pub adds: bool,
    }
}

wire_struct! {
    /// Whether the producer may write.
    #[derive(Copy)]
    pub struct PartitionClaimed {
        /// Kafka's error; 0: it may, until the transaction's marker.
        pub error: u16,
        /// The transaction has written nothing to the partition before this offset.
        pub from_offset: u64,
        /// The coordinator's own owner epoch.
        pub part_epoch: u32,
    }
}

wire_struct! {
    /// A group's coordinator asks whether a producer commits offsets in a transaction that runs. Answered when that is durable.
    pub struct ClaimGroup {
        /// The transactional id.
        pub id: String,
        /// The producer's Kafka id.
        pub producer_id: ProducerId,
        /// The producer's epoch.
        pub producer_epoch: ProducerEpoch,
        /// The group.
        pub group: String,
        /// Whether the group is added to the transaction if it is not in it.
        pub adds: bool,
    }
}

wire_struct! {
    /// Whether the producer may commit offsets.
    #[derive(Copy)]
    pub struct GroupClaimed {
        /// Kafka's error; 0: it may, until the transaction's end.
        pub error: u16,
        /// The transaction's number: later ones of the producer have larger numbers.
        pub number: i64,
        /// The coordinator's own owner epoch.
        pub part_epoch: u32,
    }
}

wire_struct! {
    /// A partition in which a transaction ends.
    #[derive(Copy)]
    pub struct EndedPartition {
        /// Of which stream.
        pub stream: StreamId,
        /// Which partition.
        pub partition: u32,
        /// The owner's epoch, as the coordinator knows it: in another one nothing is written.
        pub owner_epoch: u32,
        /// The transaction has written nothing before this offset.
        pub from_offset: u64,
    }
}

wire_struct! {
    /// A transaction coordinator has the owner of partitions write the markers of a transaction that is decided. Answered when they
    /// are as durable as their streams ask. Asked again it says the same.
    pub struct EndInPartitions {
        /// The coordinator's streamlet of `_kera.cluster.transactions`.
        pub part: u32,
        /// The coordinator's owner epoch: an earlier one than the owner has heard of is refused.
        pub part_epoch: u32,
        /// The producer's Kafka id.
        pub producer_id: ProducerId,
        /// The epoch of the markers.
        pub producer_epoch: ProducerEpoch,
        /// Whether the transaction is committed.
        pub commit: bool,
        /// Which partitions.
        pub partitions: Vec<EndedPartition>,
    }
}

wire_struct! {
    /// What became of a marker.
    #[derive(Copy)]
    pub struct PartitionEnded {
        /// Kafka's error; 0: it is written. `NOT_LEADER_OR_FOLLOWER`: the owner is another one, `TRANSACTION_COORDINATOR_FENCED`: so is the
        /// coordinator; anything else: to be tried again.
        pub error: u16,
        /// The partition's first offset: what was aborted before it need not be known any more.
        pub start: u64,
        /// What the transaction has left if it was aborted, and has written to the partition.
        pub aborted: Option<AbortedRecords>,
    }
}

wire_struct! {
    /// What became of markers.
    pub struct PartitionsEnded {
        /// In the order of the request.
        pub partitions: Vec<PartitionEnded>,
    }
}

wire_struct! {
    /// A transaction coordinator tells a group's coordinator how a transaction has ended. Answered when that is durable.
    pub struct EndInGroup {
        /// The coordinator's streamlet of `_kera.cluster.transactions`.
        pub part: u32,
        /// The coordinator's owner epoch: an earlier one than the group's coordinator has heard of is refused.
        pub part_epoch: u32,
        /// The group.
        pub group: String,
        /// The owner epoch of the group's streamlet, as the coordinator knows it: in another one nothing is done.
        pub owner_epoch: u32,
        /// The producer's Kafka id.
        pub producer_id: ProducerId,
        /// The transaction's number, as in [`GroupClaimed`].
        pub number: i64,
        /// Whether its offsets count.
        pub commit: bool,
    }
}

wire_struct! {
    /// What became of a group's pending offsets.
    #[derive(Copy)]
    pub struct GroupEnded {
        /// Kafka's error; 0: none are pending any more. `NOT_COORDINATOR`: the group's coordinator is another one,
        /// `TRANSACTION_COORDINATOR_FENCED`: so is the transaction's; anything else: to be tried again.
        pub error: u16,
    }
}

messages! {
    TransactionsIn => TransactionsHeld;
    ClaimPartition => PartitionClaimed;
    ClaimGroup => GroupClaimed;
    EndInPartitions => PartitionsEnded;
    EndInGroup => GroupEnded;
}
responses!(TransactionsHeld, PartitionClaimed, GroupClaimed, PartitionsEnded, GroupEnded);
