"""kafka-python: a client that is Python all through."""

from .confluent import compacted, compacted_check, rd_create
from .deaths import a_member_is_killed, beside_the_other_protocol
from .suite import ADDRESS, COMPRESSIONS, check, expect, until


@check("kafka-python", "produce, consume by hand, seek, end offsets")
def _():
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer = KafkaProducer(bootstrap_servers=ADDRESS, acks="all", compression_type="gzip")
    for i in range(1000):
        producer.send("py-plain", f"value {i}".encode(), key=b"k", headers=[("h", b"x")])
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=ADDRESS, auto_offset_reset="earliest", consumer_timeout_ms=3000)
    partition = TopicPartition("py-plain", 0)
    consumer.assign([partition])
    consumer.seek(partition, 400)
    expect(consumer.end_offsets([partition])[partition], 1000, "end offset")
    expect([m.offset for m in consumer], list(range(400, 1000)), "offsets")
    consumer.close()


@check("kafka-python", "group: subscribe, commit, go on where it stopped")
def _():
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=ADDRESS)
    for i in range(200):
        producer.send("py-group", f"value {i}".encode())
    producer.flush(20)

    def read(count):
        conf = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "consumer_timeout_ms": 12000}
        consumer = KafkaConsumer("py-group", bootstrap_servers=ADDRESS, group_id="py", **conf)
        offsets = []
        for message in consumer:
            offsets.append(message.offset)
            if len(offsets) == count:
                break
        consumer.commit()
        consumer.close()
        return offsets

    expect(read(100)[0], 0, "first offset")
    for i in range(200):
        producer.send("py-group", f"value {i}".encode())
    producer.flush(20)
    offsets = read(300)
    expect((offsets[0], offsets[-1]), (100, 399), "offsets of the second")
    producer.close()


@check("kafka-python", "a compacted topic, read from the start")
def _():
    from kafka import KafkaConsumer, TopicPartition

    topic, written, keys = compacted("compacted-plain", kinds=("none", "gzip"))
    consumer = KafkaConsumer(bootstrap_servers=ADDRESS, auto_offset_reset="earliest", consumer_timeout_ms=3000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)
    compacted_check([(m.offset, (m.key, m.value)) for m in consumer], written, keys)
    consumer.close()


@check("kafka-python", "transactions: commit and abort, read_committed")
def _():
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=ADDRESS, transactional_id="py")
    producer.init_transactions()
    for name, commit in [("a", True), ("b", False), ("c", True)]:
        producer.begin_transaction()
        for i in range(100):
            producer.send("py-txn", f"{name} {i}".encode())
        if commit:
            producer.commit_transaction()
        else:
            producer.flush(10)
            producer.abort_transaction()
    producer.close()
    conf = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 4000, "isolation_level": "read_committed"}
    consumer = KafkaConsumer("py-txn", bootstrap_servers=ADDRESS, **conf)
    expect([m.value.decode() for m in consumer], [f"{name} {i}" for name in "ac" for i in range(100)], "committed records")
    consumer.close()


def write(topic, values, **conf):
    """Writes values in turn to each of the topic's partitions; where each of them came to lie."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=ADDRESS, **conf)
    parts = len(producer.partitions_for(topic))
    told = [producer.send(topic, value.encode(), partition=i % parts) for i, value in enumerate(values)]
    producer.flush(30)
    places = [(one.partition, one.offset) for one in (future.get(30) for future in told)]
    producer.close()
    return places


def read(topic, parts):
    """What a topic has, up to its ends as they are."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=ADDRESS, auto_offset_reset="earliest", consumer_timeout_ms=20000)
    places = [TopicPartition(topic, part) for part in range(parts)]
    consumer.assign(places)
    wanted, found = sum(consumer.end_offsets(places).values()), []
    while len(found) < wanted:
        found.append(next(consumer).value.decode())
    consumer.close()
    return found


for kind in COMPRESSIONS:

    @check("kafka-python", f"produce and consume, compression {kind}, idempotent, acks all and 1")
    def _(kind=kind):
        topic, compression = f"py-{kind}", None if kind == "none" else kind
        rd_create(topic, 3)
        wanted = []
        for name, conf in [("idempotent", {}), ("all", {"acks": "all"}), ("one", {"acks": 1})]:
            values = [f"{name} {i} " * 5 for i in range(1000)]
            idempotent = name == "idempotent"
            places = write(topic, values, compression_type=compression, enable_idempotence=idempotent, **conf)
            expect(len(set(places)), 1000, "places of the records")
            wanted += values
        expect(sorted(read(topic, 3)) == sorted(wanted), True, "what is read is what was written")


@check("kafka-python", "topics: create, describe, partitions, configurations, offsets, delete records, groups, delete")
def _():
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
    from kafka.admin import ConfigResource, OffsetSpec

    admin = KafkaAdminClient(bootstrap_servers=ADDRESS)
    topic, first = "py-admin", TopicPartition("py-admin", 0)
    admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "50000"}}}, wait_for_metadata=True)
    parts = lambda: len(admin.describe_topics([topic])[0]["partitions"])  # noqa: E731
    setting = lambda: admin.describe_configs([ConfigResource("TOPIC", topic)])["topic"][topic]  # noqa: E731
    expect((topic in admin.list_topics(), parts()), (True, 2), "listed, partitions")
    admin.create_partitions({topic: 3})
    until(lambda: parts() == 3, "there are three partitions")
    expect(setting()["retention.ms"]["value"], "50000", "retention.ms")
    admin.alter_configs([ConfigResource("TOPIC", topic, {"retention.ms": "60000"})])
    expect(setting()["retention.ms"]["value"], "60000", "retention.ms, altered")
    write(topic, [f"{i}" for i in range(300)])
    admin.delete_records({first: 40})
    begins = admin.list_partition_offsets({first: OffsetSpec.EARLIEST})[first].offset
    expect((begins, admin.list_partition_offsets({first: OffsetSpec.LATEST})[first].offset), (40, 100), "begin and end")
    consumer = KafkaConsumer(bootstrap_servers=ADDRESS, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([first])
    expect(consumer.poll(10000)[first][0].offset, 40, "the first record that is left")
    consumer.commit()
    consumer.close()
    expect(topic in [group["group_id"] for group in admin.list_groups()], True, "the group is listed")
    expect(admin.describe_groups([topic])[topic]["group_state"], "Empty", "the group's state")
    expect(admin.list_group_offsets([topic])[topic][first].offset, 100, "committed")
    admin.reset_group_offsets(topic, {first: OffsetSpec.EARLIEST})
    expect(admin.list_group_offsets([topic])[topic][first].offset, 40, "committed, reset")
    admin.delete_groups([topic])
    admin.delete_topics([topic])
    until(lambda: topic not in admin.list_topics(), "the topic is gone")
    admin.close()


@check("kafka-python", "seek: to an offset, to begin and end, by time")
def _():
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    rd_create("py-seek", 1)
    place, start = TopicPartition("py-seek", 0), 1_700_000_000_000
    producer = KafkaProducer(bootstrap_servers=ADDRESS)
    for i in range(1000):
        producer.send("py-seek", str(i).encode(), timestamp_ms=start + i * 10)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=ADDRESS, consumer_timeout_ms=20000)
    consumer.assign([place])
    following = lambda: next(consumer).offset  # noqa: E731
    for at in [600, 3, 999]:
        consumer.seek(place, at)
        expect(following(), at, "the record that was sought")
    consumer.seek_to_beginning(place)
    expect(following(), 0, "the first record")
    consumer.seek_to_end(place)
    expect(consumer.position(place), 1000, "the end")
    for asked, wanted in [(start - 5, 0), (start + 4000, 400), (start + 4001, 401), (start + 9990, 999)]:
        told = consumer.offsets_for_times({place: asked})[place]
        expect((told.offset, told.timestamp), (wanted, start + wanted * 10), f"offset by time, {asked - start}")
        consumer.seek(place, told.offset)
        expect(following(), wanted, "the record of that time")
    expect(consumer.offsets_for_times({place: start + 10_000})[place], None, "offset of a time that has not come")
    consumer.close()


@check("kafka-python", "group, classic protocol: a member is killed, the other one goes on")
def _():
    a_member_is_killed("kafka-python", "py-deaths", write)


@check("kafka-python", "group, classic protocol beside a member of the consumer protocol, which is killed")
def _():
    beside_the_other_protocol("kafka-python", "py-beside", write)
