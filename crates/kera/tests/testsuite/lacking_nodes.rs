//! Streams and topics with copies that are made while a node of the cluster is down, as in a rolling restart, by the command line and by Kafka clients that make
//! their topics at their start.

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;

use crate::common::kafka::{Kafka, Three, name};
use crate::common::members::{Member, cluster, free_ports, live, start_again};
use crate::common::{self, Node, both, eventually};

const RECORDS: u32 = 20_000;
const NOT_CONTROLLER: i16 = 41;

fn of_topic(topic: &str, factor: i16) -> CreateTopicsRequest {
    let topic = CreatableTopic::default().with_name(name(topic)).with_num_partitions(2);
    let topic = topic.with_replication_factor(factor);
    CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000)
}

/// How many replicas each partition has, and how many of them are in sync. Who asks has the topic made if there is none.
fn replicas(three: &Three, topic: &str) -> Vec<(usize, usize)> {
    let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
    let asked = MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(true);
    let answer = Kafka::connect(three.kafka[0]).and_then(|mut kafka| kafka.call(5, &asked));
    let topics = answer.map(|answer| answer.topics).unwrap_or_default();
    let partitions = topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|of| (of.replica_nodes.len(), of.isr_nodes.len())).collect()
}

#[test]
fn what_is_made_while_a_node_is_down_has_its_copy_there_when_it_is_back() {
    let mut three = Three::start();
    let all = (0..3).map(|at| three.node(at).address()).collect::<Vec<_>>().join(",");
    let log = three.members[0].place.file("acks").display().to_string();
    three.kill(2);
    eventually("the loss is seen", || (0..2).all(|at| live(three.node(at)) == 2));
    three.node(1).ok("stream create native --streamlets 6 --replication 3");
    three.node(0).ok("stream create unsaid");
    for stream in ["native", "unsaid"] {
        let said = three.node(1).json(&format!("stream describe {stream}"));
        assert_eq!(said["options"]["replication"], 3, "{said}");
    }
    for (topic, factor) in [("named", 3), ("default", -1)] {
        let answer = three.until(5, &of_topic(topic, factor), || 0, |answer| answer.topics[0].error_code);
        let made = &answer.topics[0];
        assert_eq!((made.error_code, made.replication_factor), (0, 3), "{made:?}");
    }
    let everywhere = |three: &Three, topic: &str, in_sync: usize| {
        let told = replicas(three, topic);
        !told.is_empty() && told.iter().all(|of| *of == (3, in_sync))
    };
    let topics = ["named", "default", "by-itself", "native"];
    for topic in topics {
        eventually(&format!("a replica of {topic} is away"), || everywhere(&three, topic, 2));
    }
    let produced = common::verify_produce("native", &log, RECORDS, 10_000, &all).wait_with_output().expect("it ends");
    assert!(produced.status.success(), "{}", both(&produced));
    eventually("what lacks copies is told", || three.node(0).ok("status").contains("fewer copies than"));

    three.start_again(2);
    eventually("everything has its copies", || !three.node(0).ok("status").contains("PROBLEM"));
    for topic in topics {
        eventually(&format!("all replicas of {topic} are there"), || everywhere(&three, topic, 3));
    }
    three.kill(0);
    eventually("the next loss is seen", || live(three.node(1)) == 2);
    eventually("nothing waits for it", || cluster(three.node(1))["waiting_streamlets"] == 0);
    common::verify_consume("native", &log, RECORDS, &all);
}

/// Of two nodes the first one votes, so that somebody leads who can say it.
#[test]
fn with_too_few_live_nodes_clients_are_to_ask_again_and_it_goes_well_when_they_are_back() {
    let ports = free_ports::<4>();
    let members =
        [Member::new(1, ports[0], ports[2], None, &[]), Member::new(2, ports[1], ports[3], Some(ports[2]), &[])];
    let first = start_again(&members[0]);
    let second = start_again(&members[1]);
    eventually("two live nodes", || live(&first) == 2);
    second.kill();
    eventually("the loss is seen", || live(&first) == 1);
    let (_, said) = first.fails("stream create pair --replication 2");
    assert!(said.contains("replication is 2, which needs 2 live nodes to hold copies, and there is 1"), "{said}");
    assert!(said.contains("next: start node 2, or ask for 1 at most for now"), "{said}");
    let flags = &members[0].flags;
    let listen = flags.iter().position(|flag| flag == "--kafka-listen").expect("it is there") + 1;
    let port = flags[listen].rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let make = || {
        let answer = Kafka::connect(port).and_then(|mut kafka| kafka.call(5, &of_topic("topic", 2)));
        let made = answer.expect("an answer").topics.remove(0);
        (made.error_code, made.error_message.unwrap_or_default().to_string())
    };
    let (code, why) = make();
    assert!(code == NOT_CONTROLLER && why.contains("start node 2"), "{code} {why}");

    let _second: Node = start_again(&members[1]);
    eventually("it is back", || live(&first) == 2);
    first.ok("stream create pair --replication 2");
    assert_eq!(make(), (0, String::new()));
}
