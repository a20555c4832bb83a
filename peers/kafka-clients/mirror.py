"""Copies topics from one Kafka cluster to another, KerA on either side, and takes consumer groups along.

usage: mirror.py FROM TO TOPIC... [--groups GROUP,...] [--follow]

Keys, values, headers, timestamps and partitions stay; what was aborted in transactions is left out, so offsets may be others: a
group's offset becomes that of the same record. A topic that is not there is made with as many partitions, and with as many copies
as the target makes by itself (a target older than Kafka 2.4 makes none so: make the topics there before). One that holds records
already is refused. Ends when everything is copied that was there when it began; with --follow goes on until it is interrupted
(Ctrl-C), and moves the groups then. Needs the package confluent-kafka.
"""

import argparse
import signal
import sys
import threading
from bisect import bisect_right

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 30


def reach(at):
    """A client for the cluster at an address; nobody answering there ends the run."""
    # It would say so twenty times a second until then.
    client = AdminClient({"bootstrap.servers": at, "log_level": 2})
    try:
        client.list_topics(timeout=WAIT_S)
    except KafkaException as error:
        sys.exit(f"{at}: no Kafka cluster answers there: {error.args[0].str()}")
    return client


def make(source, target, names):
    """The topics at the target; partitions of each."""
    found = source.list_topics(timeout=WAIT_S).topics
    there = target.list_topics(timeout=WAIT_S).topics
    counts = {}
    for name in names:
        if name not in found:
            sys.exit(f"{name}: there is no such topic")
        counts[name] = len(found[name].partitions)
        if name not in there:
            # -1: as many copies as the target makes by itself. One copy would be lost with its node.
            for future in target.create_topics([NewTopic(name, counts[name], -1)]).values():
                try:
                    future.result(WAIT_S)
                except KafkaException as error:
                    sys.exit(f"{name}: cannot be made at the target: {error.args[0].str()}")
        elif len(there[name].partitions) != counts[name]:
            sys.exit(f"{name}: has {len(there[name].partitions)} partitions at the target and {counts[name]} at the source")
    return counts


class Copy:
    """One run: where each partition is to end, and which offset became which."""

    def __init__(self, arguments, counts):
        common = {"group.id": "mirror", "enable.auto.commit": False, "isolation.level": "read_committed"}
        more = {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
        self.consumer = Consumer({"bootstrap.servers": arguments.source, **common, **more})
        self.producer = Producer({"bootstrap.servers": arguments.target, "enable.idempotence": True, "linger.ms": 20})
        self.parts = [(name, p) for name, count in counts.items() for p in range(count)]
        at_target = Consumer({"bootstrap.servers": arguments.target, "group.id": "mirror"})
        for name, p in self.parts:
            if at_target.get_watermark_offsets(TopicPartition(name, p), timeout=WAIT_S)[1] > 0:
                sys.exit(f"{name}: partition {p} holds records at the target already")
        at_target.close()
        self.following = arguments.follow
        self.stop = threading.Event()
        # Per partition where runs of records begin that have no hole at the source: their offsets there and at the target. What
        # follows the last copied record at the target.
        self.runs = {part: ([], []) for part in self.parts}
        self.ends = {part: 0 for part in self.parts}
        self.count = 0
        self.failed = []

    def run(self):
        self.consumer.assign([TopicPartition(name, p, 0) for name, p in self.parts])
        left = set(self.parts)
        while (left or self.following) and not self.stop.is_set() and not self.failed:
            for message in self.consumer.consume(1000, 0.5):
                part = (message.topic(), message.partition())
                if message.error() is None:
                    self.send(part, message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(part)
                else:
                    self.failed.append(message.error())
        self.producer.flush()
        if self.failed:
            sys.exit(f"not everything is copied: {self.failed[0]}")
        return self.count

    def send(self, part, message):
        record = {"key": message.key(), "value": message.value(), "headers": message.headers(), "partition": part[1]}
        kind, timestamp = message.timestamp()
        if kind:
            record["timestamp"] = timestamp

        def delivered(error, copy, at=message.offset()):
            if error:
                self.failed.append(error)
                return
            before, after = self.runs[part]
            if not before or copy.offset() - at != after[-1] - before[-1]:
                before.append(at)
                after.append(copy.offset())
            self.ends[part] = copy.offset() + 1
            self.count += 1

        while True:
            try:
                self.producer.produce(part[0], on_delivery=delivered, **record)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.producer.poll(0)

    def translated(self, place):
        """Where a group goes on at the target; nothing if it has read nothing."""
        part = (place.topic, place.partition)
        if place.offset < 0 or part not in self.runs:
            return None
        before, after = self.runs[part]
        run = bisect_right(before, place.offset) - 1
        following = 0 if run < 0 else after[run] + place.offset - before[run]
        # Behind the end of a run comes the next one.
        most = after[run + 1] if run + 1 < len(after) else self.ends[part]
        return TopicPartition(place.topic, place.partition, min(following, most))


def move_groups(source, target, copy, groups):
    for group in groups:
        found = source.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(WAIT_S)
        places = [place for place in map(copy.translated, found.topic_partitions) if place]
        if places:
            asked = [ConsumerGroupTopicPartitions(group, places)]
            target.alter_consumer_group_offsets(asked)[group].result(WAIT_S)
        print(f"group {group}: {len(places)} partitions" if places else f"group {group}: has committed nothing in these topics")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("source", metavar="FROM", help="a Kafka address of the cluster that has the topics, HOST:PORT")
    parser.add_argument("target", metavar="TO", help="a Kafka address of the cluster that gets them, HOST:PORT")
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="a topic to copy")
    parser.add_argument("--groups", default="", help="consumer groups to take along, with commas between")
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    arguments = parser.parse_args()
    source, target = reach(arguments.source), reach(arguments.target)
    copy = Copy(arguments, make(source, target, arguments.topics))
    signal.signal(signal.SIGINT, lambda *_: copy.stop.set())
    print(f"{copy.run()} records copied")
    move_groups(source, target, copy, filter(None, arguments.groups.split(",")))


main()
