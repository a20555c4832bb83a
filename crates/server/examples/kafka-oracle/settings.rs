//! Settings of a topic, right and wrong ones, set in all ways and described; and records whose producer wants no answer.

use super::super::batches::{Spec, batch};
use super::super::requests;
use super::*;

/// Kafka's broker hears of a change of settings behind the controller's answer.
const HEARD_WITHIN: Duration = Duration::from_millis(50);
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;
/// Where a value comes from: the topic.
const OF_TOPIC: i8 = 1;
/// What settings may be given: values that both brokers take or refuse. What only one of them takes is in docs/kafka-compatibility.md.
const GIVEN: &[(&str, &[&str])] = &[
    ("cleanup.policy", &["compact", "delete", "compact,delete", "shred"]),
    ("compression.type", &["zstd", "producer", "uncompressed", "lz4", "brotli"]),
    ("compression.gzip.level", &["-1", "5", "99"]),
    ("delete.retention.ms", &["0", "5000", "-1"]),
    ("file.delete.delay.ms", &["0", "60000", "soon"]),
    ("flush.messages", &["1", "500", "0"]),
    ("flush.ms", &["0", "1000", "-1"]),
    ("follower.replication.throttled.replicas", &["*", "0:1,1:2", "one"]),
    ("index.interval.bytes", &["0", "4096", "-1"]),
    ("max.compaction.lag.ms", &["86400000", "0"]),
    ("max.message.bytes", &["1000000", "-1"]),
    ("message.timestamp.after.max.ms", &["3600000", "-5"]),
    ("message.timestamp.before.max.ms", &["1000", "x"]),
    ("message.timestamp.type", &["LogAppendTime", "CreateTime", "Never"]),
    ("min.cleanable.dirty.ratio", &["0.3", "0.75", "1.5", "-0.1"]),
    ("min.compaction.lag.ms", &["0", "60000", "-1"]),
    ("min.insync.replicas", &["1", "0"]),
    ("no.such.setting", &["1"]),
    ("preallocate", &["true", "false", "perhaps"]),
    ("retention.bytes", &["-1", "1000000", "much"]),
    ("retention.ms", &["-1", "86400000", "-7"]),
    ("segment.bytes", &["1073741824", "13", "big"]),
    ("segment.index.bytes", &["1024", "3"]),
    ("segment.jitter.ms", &["0", "100", "-1"]),
    ("segment.ms", &["3600000", "0"]),
    ("unclean.leader.election.enable", &["false", "true", "2"]),
];
/// What has another default here, as docs/kafka-compatibility.md says, or was set at the broker of Kafka for the sake of the oracle.
const OTHER_DEFAULTS: [&str; 7] = [
    "file.delete.delay.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "min.insync.replicas",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
];

impl Play<'_> {
    /// A setting, and a value for it.
    fn setting(&mut self) -> (&'static str, &'static str) {
        let (name, values) = self.rng.pick(GIVEN);
        // The first ones are right.
        let among = if self.rng.one_in(3) { values.len() } else { values.len().min(2) };
        (name, self.rng.pick(&values[..among]))
    }

    /// Different settings.
    fn some_settings(&mut self, most: u64) -> Vec<(&'static str, &'static str)> {
        let mut all: Vec<(&str, &str)> = Vec::new();
        for _ in 0..self.rng.below(most + 1) {
            let one = self.setting();
            if all.iter().all(|other| other.0 != one.0) {
                all.push(one);
            }
        }
        all
    }

    pub(super) fn settings(&mut self) -> io::Result<()> {
        let given = self.some_settings(3);
        let name = self.group.clone();
        if !self.made(&name, &given)? {
            return Ok(());
        }
        self.describe(&name)?;
        for _ in 0..2 + self.rng.below(5) {
            if self.rng.one_in(4) {
                let given = self.some_settings(3);
                self.replace(&name, &given)?;
            } else {
                let count = 1 + self.rng.below(2);
                let mut changes: Vec<(i8, &str, &str)> = Vec::new();
                for _ in 0..count {
                    let (setting, value) = self.setting();
                    // Only lists can be added to.
                    let is_list = setting == "cleanup.policy";
                    let ways: &[i8] =
                        if is_list { &[SET, DELETE, APPEND, SUBTRACT] } else { &[SET, SET, SET, DELETE, APPEND] };
                    let change = (self.rng.pick(ways), setting, value);
                    if changes.iter().all(|other| other.1 != setting) {
                        changes.push(change);
                    }
                }
                self.change(&name, &changes)?;
            }
            self.describe(&name)?;
        }
        self.remove(&name)
    }

    /// Makes a topic: whether it is there now.
    fn made(&mut self, name: &str, given: &[(&str, &str)]) -> io::Result<bool> {
        let asked = requests::create(name, 1, given, 7);
        let ResponseKind::CreateTopics(told) = self.call(&asked)? else { return Err(unexpected("CreateTopics")) };
        let error = told.topics.first().map_or(-99, |topic| topic.error_code);
        let configs = told.topics.iter().flat_map(|topic| topic.configs.iter().flatten());
        let configs = configs.filter(|one| !one.name.starts_with("kera."));
        let mut described: Vec<String> = configs
            .map(|one| {
                let value = if one.config_source == OF_TOPIC { one.value.as_deref() } else { Some("") };
                format!("{}={value:?} {} {}", one.name, one.read_only, one.is_sensitive)
            })
            .collect();
        described.sort();
        self.say(&format!("made {given:?} {error} {described:?}"));
        if error == 0 {
            self.side.find_topic(name, true)?;
        }
        Ok(error == 0)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let request = DeleteTopicsRequest::default().with_topic_names(vec![named(name)]).with_timeout_ms(10_000);
        let asked = Asked::new(ApiKey::DeleteTopics, 5, RequestKind::DeleteTopics(request), name);
        let ResponseKind::DeleteTopics(told) = self.call(&asked)? else { return Err(unexpected("DeleteTopics")) };
        self.say(&format!("removed {:?}", told.responses.first().map(|one| one.error_code)));
        Ok(())
    }

    fn replace(&mut self, name: &str, given: &[(&str, &str)]) -> io::Result<()> {
        let configs = given.iter().map(|(name, value)| {
            alter_configs_request::AlterableConfig::default().with_name(text(name)).with_value(Some(text(value)))
        });
        let validates = self.rng.one_in(4);
        let resource = alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_configs(configs.collect());
        let request = AlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(validates);
        let version = self.rng.version(0, 2);
        let asked = Asked::new(ApiKey::AlterConfigs, version, RequestKind::AlterConfigs(request), "");
        let ResponseKind::AlterConfigs(told) = self.call(&asked)? else { return Err(unexpected("AlterConfigs")) };
        let error = told.responses.first().map(|one| one.error_code);
        self.say(&format!("replaced {given:?} {validates} {error:?}"));
        Ok(())
    }

    fn change(&mut self, name: &str, changes: &[(i8, &str, &str)]) -> io::Result<()> {
        let configs = changes.iter().map(|(way, name, value)| {
            incremental_alter_configs_request::AlterableConfig::default()
                .with_name(text(name))
                .with_config_operation(*way)
                .with_value((*way != DELETE).then(|| text(value)))
        });
        let validates = self.rng.one_in(4);
        let resource = incremental_alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_configs(configs.collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let request = RequestKind::IncrementalAlterConfigs(request.with_validate_only(validates));
        let asked = Asked::new(ApiKey::IncrementalAlterConfigs, self.rng.version(0, 1), request, "");
        let ResponseKind::IncrementalAlterConfigs(told) = self.call(&asked)? else {
            return Err(unexpected("IncrementalAlterConfigs"));
        };
        let error = told.responses.first().map(|one| one.error_code);
        self.say(&format!("changed {changes:?} {validates} {error:?}"));
        Ok(())
    }

    /// What is described of all settings or of some, with or without where it comes from.
    fn describe(&mut self, name: &str) -> io::Result<()> {
        sleep(HEARD_WITHIN);
        let version = self.rng.version(1, 4);
        let (synonyms, words) = (self.rng.one_in(2), self.rng.one_in(2));
        let keys = self.rng.one_in(2).then(|| self.some_settings(4).iter().map(|(name, _)| text(name)).collect());
        let resource = describe_configs_request::DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_configuration_keys(keys);
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_synonyms(synonyms)
            .with_include_documentation(words && version >= 3);
        let asked = Asked::new(ApiKey::DescribeConfigs, version, RequestKind::DescribeConfigs(request), "");
        let ResponseKind::DescribeConfigs(told) = self.call(&asked)? else { return Err(unexpected("DescribeConfigs")) };
        let mut described = Vec::new();
        for one in told.results.iter().flat_map(|result| &result.configs) {
            if one.name.starts_with("kera.") {
                continue;
            }
            let is_set = one.config_source == OF_TOPIC;
            let has_other = OTHER_DEFAULTS.contains(&&*one.name);
            let value = if is_set || !has_other { one.value.as_deref() } else { Some("its default") };
            let source = if is_set || !has_other { one.config_source } else { -1 };
            let mut synonyms =
                one.synonyms.iter().map(|one| format!("{} {}", one.name, one.source)).collect::<Vec<_>>();
            if has_other {
                synonyms.truncate(usize::from(is_set));
            }
            described.push(format!(
                "{}={value:?} {source} {} {} {} {synonyms:?} {}",
                one.name,
                one.read_only,
                one.is_sensitive,
                one.config_type,
                one.documentation.as_ref().is_some_and(|words| !words.is_empty())
            ));
        }
        let error = told.results.first().map(|one| one.error_code);
        self.say_all(&format!("described {error:?}"), described);
        Ok(())
    }

    /// Records whose producer wants no answer: whether they are there, and whether the connection is still good.
    pub(super) fn silent(&mut self) -> io::Result<()> {
        let name = self.group.clone();
        if !self.made(&name, &[])? {
            return Ok(());
        }
        for turn in 0..2 + self.rng.below(5) {
            let version = self.rng.version(3, 12);
            let spec = Spec {
                count: 1 + self.rng.below(3) as u8,
                at_ms: 1_700_000_000_000,
                from: (-1, -1, -1),
                ..Spec::default()
            };
            let good = batch(&spec);
            let mut bad = good.clone();
            *bad.last_mut().expect("a batch has bytes") ^= 1;
            let what = self.rng.pick(&["good", "good", "good", "bad", "nowhere", "no partition", "good and bad"]);
            let partition = |index: i32, records: &[u8]| {
                produce_request::PartitionProduceData::default()
                    .with_index(index)
                    .with_records(Some(Bytes::copy_from_slice(records)))
            };
            let (topic, partitions) = match what {
                "good" => (&*name, vec![partition(0, &good)]),
                "bad" => (&*name, vec![partition(0, &bad)]),
                "nowhere" => ("nowhere", vec![partition(0, &good)]),
                "no partition" => (&*name, vec![partition(9, &good)]),
                _ => (&*name, vec![partition(0, &good), partition(9, &good)]),
            };
            let topic =
                produce_request::TopicProduceData::default().with_name(named(topic)).with_partition_data(partitions);
            let request = ProduceRequest::default().with_acks(0).with_timeout_ms(10_000).with_topic_data(vec![topic]);
            let asked = Asked::new(ApiKey::Produce, version, RequestKind::Produce(request), "");
            let by = format!("{name}-{turn}");
            self.side.send(&by, &asked)?;
            // Requests of a connection are done one after the other.
            let next = Asked::new(ApiKey::ApiVersions, 2, RequestKind::ApiVersions(ApiVersionsRequest::default()), "");
            let goes_on = self.side.send(&by, &next).is_ok() && self.side.receive(&by, &next).is_ok();
            let end = self.end_of(&name)?;
            self.say(&format!("{what} v{version} goes on {goes_on} end {end}"));
        }
        self.remove(&name)
    }

    fn end_of(&mut self, name: &str) -> io::Result<i64> {
        let partition = list_offsets_request::ListOffsetsPartition::default().with_timestamp(-1);
        let topic =
            list_offsets_request::ListOffsetsTopic::default().with_name(named(name)).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![topic]);
        let asked = Asked::new(ApiKey::ListOffsets, 5, RequestKind::ListOffsets(request), "");
        let ResponseKind::ListOffsets(told) = self.call(&asked)? else { return Err(unexpected("ListOffsets")) };
        Ok(told.topics.first().and_then(|topic| topic.partitions.first()).map_or(-99, |one| one.offset))
    }
}
