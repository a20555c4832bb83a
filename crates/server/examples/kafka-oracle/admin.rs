//! What tools of administrators ask: elections, reassignments, the quorum, directories, access rules. Of one broker, which leads all partitions and keeps them.

use kafka_protocol::messages::{
    alter_partition_reassignments_request as reassign, alter_replica_log_dirs_request as dirs,
    describe_quorum_request as quorum, elect_leaders_request as elect, list_partition_reassignments_request as list,
};

use super::super::requests;
use super::*;

/// A topic of the scene has partitions 0 and 1. Of it and of others: right ones and wrong ones.
const PARTITIONS: [&[i32]; 6] = [&[0], &[1], &[0, 1], &[9], &[0, 9], &[]];

impl Play<'_> {
    pub(super) fn admin(&mut self) -> io::Result<()> {
        let name = self.group.clone();
        self.call(&requests::create(&name, 2, &[], 7))?;
        self.side.find_topic(&name, true)?;
        for _ in 0..4 + self.rng.below(6) {
            match self.rng.below(8) {
                0 | 1 => self.elect(&name)?,
                2 | 3 => self.reassign(&name)?,
                4 => self.reassignments(&name)?,
                5 => self.quorum()?,
                6 => self.move_dirs(&name)?,
                _ => self.access()?,
            }
        }
        let request = DeleteTopicsRequest::default().with_topic_names(vec![named(&name)]).with_timeout_ms(10_000);
        self.call(&Asked::new(ApiKey::DeleteTopics, 5, RequestKind::DeleteTopics(request), &name))?;
        Ok(())
    }

    /// The topic of the scene, or one that there is not.
    fn some_topic(&mut self, name: &str) -> TopicName {
        if self.rng.one_in(4) { named("nowhere") } else { named(name) }
    }

    fn elect(&mut self, name: &str) -> io::Result<()> {
        let version = self.rng.version(0, 2);
        let kind = if version == 0 { 0 } else { self.rng.pick(&[0, 0, 1, 1, 2]) };
        let mut topics = Vec::new();
        for _ in 0..self.rng.below(3) {
            let topic = self.some_topic(name);
            let partitions = self.rng.pick(&PARTITIONS).to_vec();
            topics.push(elect::TopicPartitions::default().with_topic(topic).with_partitions(partitions));
        }
        let asked = format!("{kind} {:?}", topics.iter().map(|one| (&one.topic, &one.partitions)).collect::<Vec<_>>());
        let request = ElectLeadersRequest::default()
            .with_election_type(kind)
            .with_topic_partitions(Some(topics))
            .with_timeout_ms(10_000);
        let request = Asked::new(ApiKey::ElectLeaders, version, RequestKind::ElectLeaders(request), "");
        let ResponseKind::ElectLeaders(told) = self.call(&request)? else { return Err(unexpected("ElectLeaders")) };
        let results = told.replica_election_results.iter().flat_map(|topic| {
            topic
                .partition_result
                .iter()
                .map(|one| format!("{:?} {} {}", topic.topic, one.partition_id, one.error_code))
        });
        let results = results.collect();
        self.say_all(&format!("elect v{version} {asked}: {}", told.error_code), results);
        Ok(())
    }

    fn reassign(&mut self, name: &str) -> io::Result<()> {
        const REPLICAS: [Option<&[i32]>; 7] =
            [Some(&[1]), Some(&[1]), None, Some(&[2]), Some(&[1, 1]), Some(&[]), Some(&[-1])];
        let version = self.rng.version(0, 1);
        let mut topics = Vec::new();
        for _ in 0..self.rng.below(3) {
            let topic = self.some_topic(name);
            let mut partitions = Vec::new();
            for index in self.rng.pick(&PARTITIONS) {
                let replicas = self.rng.pick(&REPLICAS).map(|all| all.iter().map(|id| BrokerId(*id)).collect());
                partitions.push(
                    reassign::ReassignablePartition::default().with_partition_index(*index).with_replicas(replicas),
                );
            }
            // A topic may be named once.
            if topics.iter().all(|one: &reassign::ReassignableTopic| one.name != topic) {
                topics.push(reassign::ReassignableTopic::default().with_name(topic).with_partitions(partitions));
            }
        }
        let of = |one: &reassign::ReassignablePartition| (one.partition_index, one.replicas.clone());
        let asked = topics.iter().map(|topic| (&topic.name, topic.partitions.iter().map(of).collect::<Vec<_>>()));
        let asked = format!("{:?}", asked.collect::<Vec<_>>());
        let request = AlterPartitionReassignmentsRequest::default().with_timeout_ms(10_000).with_topics(topics);
        let request = RequestKind::AlterPartitionReassignments(request);
        let request = Asked::new(ApiKey::AlterPartitionReassignments, version, request, "");
        let ResponseKind::AlterPartitionReassignments(told) = self.call(&request)? else {
            return Err(unexpected("AlterPartitionReassignments"));
        };
        let results = told.responses.iter().flat_map(|topic| {
            topic.partitions.iter().map(|one| format!("{:?} {} {}", topic.name, one.partition_index, one.error_code))
        });
        let results = results.collect();
        self.say_all(&format!("reassign v{version} {asked}: {}", told.error_code), results);
        Ok(())
    }

    fn reassignments(&mut self, name: &str) -> io::Result<()> {
        let topics = if self.rng.one_in(2) {
            None
        } else {
            let (name, indexes) = (self.some_topic(name), self.rng.pick(&PARTITIONS).to_vec());
            Some(vec![
                list::ListPartitionReassignmentsTopics::default().with_name(name).with_partition_indexes(indexes),
            ])
        };
        let request = ListPartitionReassignmentsRequest::default().with_timeout_ms(10_000).with_topics(topics);
        let request = RequestKind::ListPartitionReassignments(request);
        let request = Asked::new(ApiKey::ListPartitionReassignments, 0, request, "");
        let ResponseKind::ListPartitionReassignments(told) = self.call(&request)? else {
            return Err(unexpected("ListPartitionReassignments"));
        };
        self.say(&format!("reassignments {} {}", told.error_code, told.topics.len()));
        Ok(())
    }

    fn quorum(&mut self) -> io::Result<()> {
        let version = self.rng.version(0, 2);
        let (name, index) = self.rng.pick(&[
            ("__cluster_metadata", 0),
            ("__cluster_metadata", 0),
            ("__cluster_metadata", 1),
            ("somewhere", 0),
        ]);
        let partition = quorum::PartitionData::default().with_partition_index(index);
        let topic = quorum::TopicData::default().with_topic_name(named(name)).with_partitions(vec![partition]);
        let mut topics = vec![topic];
        topics.truncate(usize::from(!self.rng.one_in(8)));
        let asked = format!("{:?}", topics.first().map(|_| (name, index)));
        let request = DescribeQuorumRequest::default().with_topics(topics);
        let request = Asked::new(ApiKey::DescribeQuorum, version, RequestKind::DescribeQuorum(request), "");
        let ResponseKind::DescribeQuorum(told) = self.call(&request)? else { return Err(unexpected("DescribeQuorum")) };
        let results = told.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|one| {
                let ids = |all: &[describe_quorum_response::ReplicaState]| {
                    all.iter().map(|one| one.replica_id.0).collect::<Vec<_>>()
                };
                let (voters, observers) = (ids(&one.current_voters), ids(&one.observers));
                let (index, error, leader) = (one.partition_index, one.error_code, one.leader_id.0);
                format!(
                    "{:?} {index} {error} leader {leader} voters {voters:?} observers {observers:?}",
                    topic.topic_name
                )
            })
        });
        let results = results.collect();
        let nodes: Vec<i32> = told.nodes.iter().map(|node| node.node_id.0).collect();
        self.say_all(&format!("quorum v{version} {asked}: {} nodes {nodes:?}", told.error_code), results);
        Ok(())
    }

    /// Replicas are to move to a directory: the one where they are, or one that there is not.
    fn move_dirs(&mut self, name: &str) -> io::Result<()> {
        let request = RequestKind::DescribeLogDirs(DescribeLogDirsRequest::default().with_topics(Some(Vec::new())));
        let ResponseKind::DescribeLogDirs(told) = self.call(&Asked::new(ApiKey::DescribeLogDirs, 1, request, ""))?
        else {
            return Err(unexpected("DescribeLogDirs"));
        };
        let is_there = self.rng.one_in(2);
        let here = told.results.first().map(|one| one.log_dir.clone()).unwrap_or_default();
        let path = if is_there { here } else { text("/no/such/directory") };
        let mut topics = Vec::new();
        for _ in 0..1 + self.rng.below(2) {
            let (topic, partitions) = (self.some_topic(name), self.rng.pick(&PARTITIONS).to_vec());
            if topics.iter().all(|one: &dirs::AlterReplicaLogDirTopic| one.name != topic) {
                topics.push(dirs::AlterReplicaLogDirTopic::default().with_name(topic).with_partitions(partitions));
            }
        }
        let asked = format!("{:?}", topics.iter().map(|one| (&one.name, &one.partitions)).collect::<Vec<_>>());
        let dir = dirs::AlterReplicaLogDir::default().with_path(path).with_topics(topics);
        let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![dir]);
        let version = self.rng.version(1, 2);
        let request = Asked::new(ApiKey::AlterReplicaLogDirs, version, RequestKind::AlterReplicaLogDirs(request), "");
        let ResponseKind::AlterReplicaLogDirs(told) = self.call(&request)? else {
            return Err(unexpected("AlterReplicaLogDirs"));
        };
        let results = told.results.iter().flat_map(|topic| {
            let of = |one: &alter_replica_log_dirs_response::AlterReplicaLogDirPartitionResult| {
                format!("{:?} {} {}", topic.topic_name, one.partition_index, one.error_code)
            };
            topic.partitions.iter().map(of).collect::<Vec<_>>()
        });
        let results = results.collect();
        self.say_all(&format!("dirs there {is_there} {asked}"), results);
        Ok(())
    }

    /// Access rules are told, made and deleted. There is nobody who would heed them.
    fn access(&mut self) -> io::Result<()> {
        let version = self.rng.version(1, 3);
        let (kind, operation, permission) =
            (self.rng.pick(&[2, 3, 4, 99]), self.rng.pick(&[2, 3, 1]), self.rng.pick(&[2, 3, 1]));
        let said = match self.rng.below(3) {
            0 => {
                let request = DescribeAclsRequest::default()
                    .with_resource_type_filter(kind)
                    .with_pattern_type_filter(3)
                    .with_operation(operation)
                    .with_permission_type(permission);
                let request = RequestKind::DescribeAcls(request);
                match self.call(&Asked::new(ApiKey::DescribeAcls, version, request, ""))? {
                    ResponseKind::DescribeAcls(told) => {
                        format!("described {} {}", told.error_code, told.resources.len())
                    }
                    _ => return Err(unexpected("DescribeAcls")),
                }
            }
            1 => {
                let one = create_acls_request::AclCreation::default()
                    .with_resource_type(kind)
                    .with_resource_name(text("apples"))
                    .with_resource_pattern_type(3)
                    .with_principal(text("User:anna"))
                    .with_host(text("*"))
                    .with_operation(operation)
                    .with_permission_type(permission);
                let request = RequestKind::CreateAcls(CreateAclsRequest::default().with_creations(vec![one]));
                match self.call(&Asked::new(ApiKey::CreateAcls, version, request, ""))? {
                    ResponseKind::CreateAcls(told) => {
                        format!("created {:?}", told.results.iter().map(|one| one.error_code).collect::<Vec<_>>())
                    }
                    _ => return Err(unexpected("CreateAcls")),
                }
            }
            _ => {
                let one = delete_acls_request::DeleteAclsFilter::default()
                    .with_resource_type_filter(kind)
                    .with_pattern_type_filter(3)
                    .with_operation(operation)
                    .with_permission_type(permission);
                let request = RequestKind::DeleteAcls(DeleteAclsRequest::default().with_filters(vec![one]));
                match self.call(&Asked::new(ApiKey::DeleteAcls, version, request, ""))? {
                    ResponseKind::DeleteAcls(told) => {
                        format!(
                            "deleted {:?}",
                            told.filter_results.iter().map(|one| one.error_code).collect::<Vec<_>>()
                        )
                    }
                    _ => return Err(unexpected("DeleteAcls")),
                }
            }
        };
        self.say(&format!("access v{version} {kind} {operation} {permission} {said}"));
        Ok(())
    }
}
