//! What the crate rdkafka can do with a node: each check is a function, its outcome a line "client, what, result", parted by
//! tabs.
//!
//! usage: rdkafka-check ADDRESS

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

type Result<T = ()> = std::result::Result<T, String>;

const PATIENCE: Duration = Duration::from_secs(30);
const PARTITIONS: i32 = 6;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, what: &str) -> Result {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?} instead of {wanted:?}")) }
}

fn conf(address: &str, settings: &[(&str, &str)]) -> ClientConfig {
    let mut conf = ClientConfig::new();
    conf.set("bootstrap.servers", address);
    for (name, value) in settings {
        conf.set(*name, *value);
    }
    conf
}

fn admin(address: &str) -> Result<AdminClient<DefaultClientContext>> {
    conf(address, &[]).create().map_err(text)
}

async fn create(address: &str, topic: &str, partitions: i32) -> Result {
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    let made = admin(address)?.create_topics([&new], &AdminOptions::new()).await.map_err(text)?;
    made.into_iter().try_for_each(|one| one.map(drop).map_err(|(topic, code)| format!("{topic}: {code}")))
}

fn values(name: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|i| format!("{name} {i}")).collect()
}

/// Sends "NAME 0" and so on, in turn to each partition, and waits for them.
async fn send(producer: &FutureProducer, topic: &str, name: &str, count: usize, partitions: i32) -> Result {
    let mut sent = Vec::new();
    for i in 0..count {
        let (key, value) = (format!("k{i}"), format!("{name} {i}"));
        let headers = OwnedHeaders::new().insert(Header { key: "h", value: Some("x") });
        let record = FutureRecord::to(topic).key(&key).payload(&value).headers(headers);
        let record = record.partition(i as i32 % partitions);
        sent.push(producer.send_result(record).map_err(|(error, _)| text(error))?);
    }
    for delivery in sent {
        delivery.await.map_err(text)?.map_err(|(error, _)| text(error))?;
    }
    Ok(())
}

/// Reads until every partition is at its end. The values, in no order.
fn read(address: &str, topic: &str, partitions: i32, from: i64, isolation: &str) -> Result<Vec<String>> {
    let settings = [("group.id", "none"), ("enable.partition.eof", "true"), ("enable.auto.commit", "false")];
    let mut conf = conf(address, &settings);
    let consumer: BaseConsumer = conf.set("isolation.level", isolation).create().map_err(text)?;
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Offset(from)).map_err(text)?;
    }
    consumer.assign(&list).map_err(text)?;
    let (mut found, mut ended, until) = (Vec::new(), BTreeSet::new(), Instant::now() + PATIENCE);
    while ended.len() < partitions as usize {
        if Instant::now() > until {
            return Err("not all partitions were read to their end".into());
        }
        match consumer.poll(Duration::from_millis(200)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(ended.insert(partition)),
            Some(Err(error)) => return Err(text(error)),
            Some(Ok(message)) => {
                expect(message.headers().map(|headers| headers.count()), Some(1), "headers")?;
                found.push(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
            }
        }
    }
    Ok(found)
}

fn same(found: Vec<String>, wanted: &BTreeSet<String>) -> Result {
    expect(found.len(), wanted.len(), "records read")?;
    if found.into_iter().collect::<BTreeSet<_>>() == *wanted { Ok(()) } else { Err("other records are read".into()) }
}

async fn topics(address: &str) -> Result {
    create(address, "rs-admin", 3).await?;
    let (admin, options) = (admin(address)?, AdminOptions::new());
    let metadata = admin.inner().fetch_metadata(Some("rs-admin"), PATIENCE).map_err(text)?;
    expect(metadata.topics()[0].partitions().len(), 3, "partitions")?;
    let topic = ResourceSpecifier::Topic("rs-admin");
    let alter = AlterConfig::new(topic).set("retention.ms", "60000");
    for altered in admin.alter_configs([&alter], &options).await.map_err(text)? {
        altered.map_err(|(_, code)| text(code))?;
    }
    let described = admin.describe_configs([&topic], &options).await.map_err(text)?;
    let described = described.into_iter().next().ok_or("nothing is described")?.map_err(text)?;
    let value = described.get("retention.ms").and_then(|entry| entry.value.clone());
    expect(value.as_deref(), Some("60000"), "retention.ms")?;
    let deleted = admin.delete_topics(&["rs-admin"], &options).await.map_err(text)?;
    deleted[0].clone().map(drop).map_err(|(_, code)| text(code))
}

async fn compressed(address: &str, kind: &str) -> Result {
    let topic = format!("rs-{kind}");
    create(address, &topic, 3).await?;
    for (name, more) in
        [("plain", ("acks", "all")), ("leader", ("acks", "1")), ("idempotent", ("enable.idempotence", "true"))]
    {
        let producer: FutureProducer = conf(address, &[("compression.type", kind), more]).create().map_err(text)?;
        send(&producer, &topic, name, 3000, 3).await?;
    }
    let wanted = ["plain", "leader", "idempotent"].into_iter().flat_map(|name| values(name, 3000)).collect();
    same(read(address, &topic, 3, 0, "read_committed")?, &wanted)
}

async fn seeks(address: &str) -> Result {
    create(address, "rs-seek", 1).await?;
    let producer: FutureProducer = conf(address, &[]).create().map_err(text)?;
    send(&producer, "rs-seek", "v", 1000, 1).await?;
    let wanted = (600..1000).map(|i| format!("v {i}")).collect();
    same(read(address, "rs-seek", 1, 600, "read_committed")?, &wanted)?;
    let consumer: BaseConsumer = conf(address, &[("group.id", "none")]).create().map_err(text)?;
    expect(consumer.fetch_watermarks("rs-seek", 0, PATIENCE).map_err(text)?, (0, 1000), "watermarks")?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("rs-seek", 0, Offset::Offset(1)).map_err(text)?;
    let found = consumer.offsets_for_times(list, PATIENCE).map_err(text)?;
    expect(found.elements()[0].offset(), Offset::Offset(0), "offset of 1970")
}

/// Reads in a group until it is killed: a process of its own, so that it can die without a word.
fn member(address: &str, topic: &str) -> Result {
    let settings = [("group.id", topic), ("session.timeout.ms", "6000"), ("heartbeat.interval.ms", "500")];
    let mut conf = conf(address, &settings);
    conf.set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = conf.create().map_err(text)?;
    consumer.subscribe(&[topic]).map_err(text)?;
    loop {
        if let Some(message) = consumer.poll(Duration::from_millis(200)) {
            let message = message.map_err(text)?;
            println!("{}", String::from_utf8_lossy(message.payload().unwrap_or_default()));
            consumer.commit_message(&message, CommitMode::Async).map_err(text)?;
        }
    }
}

/// Processes that end with whoever looks after them.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) -> Result {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > limit {
            return Err(format!("{what}: not in {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

async fn group(address: &str) -> Result {
    let topic = "rs-group";
    create(address, topic, PARTITIONS).await?;
    let producer: FutureProducer = conf(address, &[]).create().map_err(text)?;
    send(&producer, topic, "before", 600, PARTITIONS).await?;
    let start = || {
        let mut command = Command::new(std::env::current_exe().map_err(text)?);
        command.args([address, "member", topic]).stdout(Stdio::piped()).spawn().map_err(text)
    };
    let mut members = Members(vec![start()?, start()?]);
    let look: BaseConsumer = conf(address, &[("group.id", topic)]).create().map_err(text)?;
    let count = || match look.fetch_group_list(Some(topic), PATIENCE) {
        Ok(list) => {
            list.groups().iter().filter(|group| group.state() == "Stable").map(|group| group.members().len()).sum()
        }
        Err(_) => 0,
    };
    until("two members", || count() == 2)?;
    let mut kill = |at: usize| {
        let child: &mut Child = &mut members.0[at];
        let (_, mut out) = (child.kill(), String::new());
        let _ = child.wait();
        child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut out)).map_err(text).map(|_| out)
    };
    let mut out = kill(0)?;
    until("a member that died is missed", || count() == 1)?;
    send(&producer, topic, "after", 600, PARTITIONS).await?;
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, PARTITIONS - 1);
    until("everything is committed", || {
        let committed = look.committed_offsets(list.clone(), PATIENCE);
        let sum = committed.map(|list| list.elements().iter().filter_map(|one| one.offset().to_raw()).sum::<i64>());
        sum == Ok(1200)
    })?;
    out += &kill(1)?;
    let found: BTreeSet<String> = out.lines().map(str::to_owned).collect();
    same(found.into_iter().collect(), &values("before", 600).into_iter().chain(values("after", 600)).collect())
}

async fn transactions(address: &str) -> Result {
    let topic = "rs-txn";
    create(address, topic, 3).await?;
    let settings = [("transactional.id", "rs")];
    let producer: FutureProducer = conf(address, &settings).create().map_err(text)?;
    producer.init_transactions(PATIENCE).map_err(text)?;
    for (name, commits) in [("a", true), ("b", false), ("c", true)] {
        producer.begin_transaction().map_err(text)?;
        send(&producer, topic, name, 300, 3).await?;
        let ended = if commits { producer.commit_transaction(PATIENCE) } else { producer.abort_transaction(PATIENCE) };
        ended.map_err(text)?;
    }
    let wanted = values("a", 300).into_iter().chain(values("c", 300)).collect();
    same(read(address, topic, 3, 0, "read_committed")?, &wanted)?;
    expect(read(address, topic, 3, 0, "read_uncommitted")?.len(), 900, "what others read")?;
    let another: FutureProducer = conf(address, &settings).create().map_err(text)?;
    another.init_transactions(PATIENCE).map_err(text)?;
    let ended = producer.begin_transaction();
    let fenced = match ended {
        Ok(()) => send(&producer, topic, "fenced", 1, 1).await.and(producer.commit_transaction(PATIENCE).map_err(text)),
        Err(error) => Err(text(error)),
    };
    expect(fenced.is_err(), true, "a fenced producer is refused")
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(address) = arguments.get(1) else { return eprintln!("usage: rdkafka-check ADDRESS") };
    if let [_, address, role, topic] = &arguments[..]
        && role == "member"
    {
        return member(address, topic).unwrap_or_else(|error| eprintln!("{error}"));
    }
    let (_, version) = rdkafka::util::get_rdkafka_version();
    let row = |what: &str, result: Result| {
        let result =
            result.map_or_else(|error| format!("fails: {}", error.replace('\n', " ")), |()| "works".to_owned());
        println!("rdkafka 0.39.0 (crate), librdkafka {version}\t{what}\t{result}");
    };
    row("topics: create, describe, describe and alter configurations, delete", topics(address).await);
    for kind in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let what = format!("produce and consume, compression {kind}, acks all and 1, idempotent");
        row(&what, compressed(address, kind).await);
    }
    row("seek, offsets by time, watermarks", seeks(address).await);
    row("group, classic protocol: members join, one is killed, the other goes on", group(address).await);
    row("transactions: commit, abort, read_committed, fencing", transactions(address).await);
}
