"""What Kafka clients can do with a node: each check is a function, its outcome a row of the table in the document.

usage: check.py ADDRESS DOCUMENT
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version

ADDRESS, DOCUMENT = sys.argv[1], sys.argv[2]
BEGIN, END = "<!-- begin: made by peers/kafka-clients/check.sh -->", "<!-- end -->"
CHECKS = []


def check(client, what):
    def note(function):
        CHECKS.append((client, what, function))
        return function

    return note


def expect(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")


# confluent-kafka (librdkafka)


ADMIN = []


def rd_admin():
    from confluent_kafka.admin import AdminClient

    # It must outlive the futures that it gives.
    if not ADMIN:
        ADMIN.append(AdminClient({"bootstrap.servers": ADDRESS}))
    return ADMIN[0]


def rd_create(name, partitions):
    from confluent_kafka.admin import NewTopic

    for future in rd_admin().create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(10)


def rd_produce(topic, count, partitions, **conf):
    from confluent_kafka import Producer

    failed, done = [], []
    producer = Producer({"bootstrap.servers": ADDRESS, **conf})
    for i in range(count):
        producer.produce(
            topic,
            key=f"k{i}",
            value=f"value {i} " * 5,
            partition=i % partitions,
            headers={"h": b"x"},
            on_delivery=lambda error, m: (failed if error else done).append(error or m.offset()),
        )
    expect(producer.flush(30), 0, "undelivered")
    expect(failed, [], "failed deliveries")


def rd_read(topic, partitions, wanted, offset=0):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, p, offset) for p in range(partitions)])
    following, count, until = {}, 0, time.time() + 20
    while count < wanted and time.time() < until:
        for message in consumer.consume(500, 0.5):
            if message.error():
                raise AssertionError(str(message.error()))
            expect(message.offset(), following.get(message.partition(), offset), "offset")
            following[message.partition()] = message.offset() + 1
            count += 1
    consumer.close()
    expect(count, wanted, "records read")


@check("confluent-kafka", "topics: create, list, describe and alter configurations, delete")
def _():
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    rd_create("rd-admin", 3)
    admin = rd_admin()
    expect(len(admin.list_topics(timeout=10).topics["rd-admin"].partitions), 3, "partitions")
    entry = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs([ConfigResource(2, "rd-admin", incremental_configs=[entry])]).values():
        future.result(10)
    for future in admin.describe_configs([ConfigResource(2, "rd-admin")]).values():
        expect(future.result(10)["retention.ms"].value, "60000", "retention.ms")
    for future in admin.delete_topics(["rd-admin"]).values():
        future.result(10)
    expect("rd-admin" in admin.list_topics(timeout=10).topics, False, "still there")


for kind in ["none", "gzip", "snappy", "lz4", "zstd"]:

    @check("confluent-kafka", f"produce and consume, compression {kind}, acks all, then idempotent")
    def _(kind=kind):
        topic = f"rd-{kind}"
        rd_create(topic, 3)
        rd_produce(topic, 3000, 3, **{"compression.type": kind})
        rd_produce(topic, 3000, 3, **{"compression.type": kind, "enable.idempotence": True})
        rd_read(topic, 3, 6000)


def compacted_fill(topic, versions, keys, kinds):
    """A compacted topic with many versions of few keys: what each offset holds."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import NewTopic

    config = {"cleanup.policy": "compact", "max.message.bytes": "60000", "min.cleanable.dirty.ratio": "0.01"}
    for future in rd_admin().create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(10)
    written, failed = {}, []

    def told(error, message):
        if error:
            failed.append(error)
        else:
            written[message.offset()] = (message.key(), message.value())

    for n, kind in enumerate(kinds):
        conf = {"compression.type": kind, "enable.idempotence": n % 2 == 0, "batch.num.messages": 100}
        producer = Producer({"bootstrap.servers": ADDRESS, **conf})
        for version in range(versions):
            for key in range(keys):
                value = None if (version + key) % 11 == 10 else f"{kind} {version} {key} " + os.urandom(60).hex()
                producer.produce(topic, key=f"key {key}", value=value, on_delivery=told)
            producer.poll(0)
        expect(producer.flush(30), 0, "undelivered")
    # A compacted topic takes no record without a key.
    refused = []
    producer.produce(topic, value="x", on_delivery=lambda error, _: refused.append(error and error.code()))
    producer.flush(30)
    expect((refused, failed), ([87], []), "refused without a key, and others")
    return written


def compacted_check(found, written, keys):
    """What is left is what was written there, in order, with the last of each key."""
    expect([offset for offset, _ in found], sorted(offset for offset, _ in found), "order")
    for offset, pair in found:
        expect(pair, written[offset], f"offset {offset}")
    last, left = {}, {}
    for offset in sorted(written):
        last[written[offset][0]] = offset
    for offset, (key, _) in found:
        left[key] = offset
    expect(len(last), keys, "keys")
    expect(left, last, "last offset of each key")


def rd_read_to_end(topic):
    """All that is there, up to the end as it is at the start."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    end, found, until = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1], [], time.time() + 30
    while not found or found[-1][0] < end - 1:
        expect(time.time() < until, True, "in time")
        for message in consumer.consume(500, 0.5):
            if message.error():
                raise AssertionError(str(message.error()))
            found.append((message.offset(), (message.key(), message.value())))
    consumer.close()
    return found


COMPACTED = {}


def compacted(topic="compacted", keys=40, kinds=("none", "gzip", "snappy", "lz4", "zstd")):
    """A topic that is compacted, and what was written to it."""
    if topic not in COMPACTED:
        written = compacted_fill(topic, 500 // len(kinds), keys, kinds)
        found, until = rd_read_to_end(topic), time.time() + 60
        while len(found) > len(written) / 4:
            compacted_check(found, written, keys)
            expect(time.time() < until, True, f"compacted: {len(found)} of {len(written)} are left")
            time.sleep(0.5)
            found = rd_read_to_end(topic)
        COMPACTED[topic] = (written, keys)
    return (topic, *COMPACTED[topic])


@check("confluent-kafka", "a compacted topic: many versions of few keys, read while and after it is compacted")
def _():
    topic, written, keys = compacted()
    compacted_check(rd_read_to_end(topic), written, keys)


@check("confluent-kafka", "topics that set the time of append and a compression")
def _():
    """What the producer says of time and compression is not what is kept, and readers see what is."""
    from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

    admin, topic, kinds = rd_admin(), "rd-stamped", ["none", "gzip", "snappy", "lz4", "zstd"]
    settings = {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(10)
    for future in admin.describe_configs([ConfigResource(2, topic)]).values():
        described = future.result(10)
        expect({name: described[name].value for name in settings}, settings, "settings")
    began = int(time.time() * 1000)

    def produce(values, **conf):
        told = []
        producer = Producer({"bootstrap.servers": ADDRESS, "enable.idempotence": True, **conf})
        for value in values:
            producer.produce(topic, value, timestamp=1000, on_delivery=lambda error, m: told.append((error, m.timestamp())))
        expect(producer.flush(20), 0, "undelivered")
        return told

    def is_stamped(told):
        return told[0] == TIMESTAMP_LOG_APPEND_TIME and told[1] >= began - 1000

    written = []
    for kind in kinds:
        values = [f"{kind} {number} ".encode() * 20 for number in range(50)]
        written += values
        told = produce(values, **{"compression.type": kind})
        expect([one for one in told if one[0] or not is_stamped(one[1])], [], "told to the producer")
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs([ConfigResource(2, topic, incremental_configs=[entry])]).values():
        future.result(10)
    produce([b"last"])
    consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages, until = [], time.time() + 20
    while len(messages) < len(written) + 1 and time.time() < until:
        messages += consumer.consume(500, 0.5)
    consumer.close()
    expect([message.value() for message in messages], [*written, b"last"], "values")
    expect([m.timestamp() for m in messages[:-1] if not is_stamped(m.timestamp())], [], "told to the reader")
    expect(messages[-1].timestamp(), (TIMESTAMP_CREATE_TIME, 1000), "the time of a record after the setting was taken back")


@check("confluent-kafka", "acks 0 and 1, seek, offsets by time, watermarks")
def _():
    from confluent_kafka import Consumer, TopicPartition

    rd_create("rd-seek", 1)
    rd_produce("rd-seek", 500, 1, acks=1)
    rd_produce("rd-seek", 500, 1, acks=0)
    rd_read("rd-seek", 1, 1000)
    rd_read("rd-seek", 1, 400, offset=600)
    consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "none"})
    expect(consumer.get_watermark_offsets(TopicPartition("rd-seek", 0), timeout=10), (0, 1000), "watermarks")
    hour_ms, now_ms = 3_600_000, int(time.time() * 1000)
    found = consumer.offsets_for_times([TopicPartition("rd-seek", 0, now_ms - hour_ms)], timeout=10)
    expect(found[0].offset, 0, "offset an hour ago")
    found = consumer.offsets_for_times([TopicPartition("rd-seek", 0, now_ms + hour_ms)], timeout=10)
    expect(found[0].offset, -1, "offset in an hour")
    consumer.close()


def rd_group(protocol):
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    topic, group = f"rd-group-{protocol}", f"rd-{protocol}"
    rd_create(topic, 6)
    rd_produce(topic, 3000, 6)
    seen, stop, lock, assigned = [], threading.Event(), threading.Lock(), {}

    def member(number, own_stop):
        conf = {
            "bootstrap.servers": ADDRESS,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(conf)
        consumer.subscribe([topic])
        while not (stop.is_set() or own_stop.is_set()):
            message = consumer.poll(0.1)
            assigned[number] = {p.partition for p in consumer.assignment()}
            if message is None:
                continue
            if message.error():
                raise AssertionError(str(message.error()))
            with lock:
                seen.append((message.partition(), message.offset()))
            consumer.commit(message, asynchronous=True)
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            # It has read nothing since it got its partitions.
            expect(error.args[0].name(), "_NO_OFFSET", "the last commit")
        consumer.close()
        assigned[number] = set()

    def until(condition, what, seconds=30):
        limit = time.time() + seconds
        while not condition():
            if time.time() > limit:
                raise AssertionError(f"{what}: not in {seconds} s; assigned {assigned}")
            time.sleep(0.05)

    def shared(*numbers):
        parts = [assigned.get(number, set()) for number in numbers]
        return all(parts) and sum(len(part) for part in parts) == 6 and set().union(*parts) == set(range(6))

    ends = [threading.Event() for _ in range(3)]
    threads = [threading.Thread(target=member, args=(n, ends[n]), daemon=True) for n in range(3)]
    try:
        threads[0].start()
        threads[1].start()
        until(lambda: shared(0, 1), "two members share the partitions")
        until(lambda: len(set(seen)) == 3000, "every record is read")
        threads[2].start()
        until(lambda: shared(0, 1, 2), "a third member gets its part")
        ends[0].set()
        until(lambda: shared(1, 2), "a member that leaves gives its part back")
    finally:
        stop.set()
        for thread in threads:
            if thread.ident:
                thread.join(20)
    consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": group})
    committed = consumer.committed([TopicPartition(topic, p) for p in range(6)], timeout=10)
    consumer.close()
    expect([p.offset for p in committed], [500] * 6, "committed")
    for future in rd_admin().delete_consumer_groups([group]).values():
        future.result(10)


@check("confluent-kafka", "group, classic protocol: members join and leave, commit, delete the group")
def _():
    rd_group("classic")


@check("confluent-kafka", "group, consumer protocol (KIP-848): the same")
def _():
    rd_group("consumer")


def rd_values(topic, partitions, isolation):
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    conf = {"bootstrap.servers": ADDRESS, "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**conf, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    values, ended, until = [], set(), time.time() + 20
    while len(ended) < partitions and time.time() < until:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                values.append(message.value().decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(str(message.error()))
    consumer.close()
    expect(len(ended), partitions, "partitions read to their end")
    return sorted(values)


@check("confluent-kafka", "transactions: commit, abort, offsets of a group, fencing, read_committed")
def _():
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    rd_create("rd-txn-in", 1)
    rd_create("rd-txn", 3)
    rd_produce("rd-txn-in", 100, 1)
    conf = {"bootstrap.servers": ADDRESS, "transactional.id": "rd"}
    producer = Producer(conf)
    producer.init_transactions(10)
    consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "rd-txn", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rd-txn-in"])
    until = time.time() + 20
    while consumer.poll(0.5) is None and time.time() < until:
        pass

    def run(name, commit, offset=None):
        producer.begin_transaction()
        for i in range(300):
            producer.produce("rd-txn", value=f"{name} {i}", partition=i % 3)
        if offset is not None:
            offsets = [TopicPartition("rd-txn-in", 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 10)
        if commit:
            producer.commit_transaction(10)
        else:
            producer.flush(10)
            producer.abort_transaction(10)

    committed = lambda: consumer.committed([TopicPartition("rd-txn-in", 0)], timeout=10)[0].offset  # noqa: E731
    run("a", True, 40)
    expect(committed(), 40, "the committed offset")
    run("b", False, 60)
    expect(committed(), 40, "the committed offset after an abort")
    run("c", True)
    run("d", False)
    run("e", True, 100)
    expect(committed(), 100, "the committed offset in the end")
    consumer.close()
    wanted = sorted(f"{name} {i}" for name in "ace" for i in range(300))
    expect(rd_values("rd-txn", 3, "read_committed") == wanted, True, "what was committed is read")
    uncommitted = rd_values("rd-txn", 3, "read_uncommitted")
    expect(len(uncommitted) - len(set(uncommitted)), 0, "records twice")
    expect(set(uncommitted) > set(wanted), True, "what was aborted is read by others")
    producer.begin_transaction()
    producer.produce("rd-txn", value="f", partition=0)
    producer.flush(10)
    expect(rd_values("rd-txn", 3, "read_committed") == wanted, True, "an open transaction is not read")
    another = Producer(conf)
    another.init_transactions(20)
    try:
        producer.commit_transaction(10)
        raise AssertionError("a fenced producer commits")
    except KafkaException as error:
        expect(error.args[0].name(), "_FENCED", "the error of a fenced producer")
    another.begin_transaction()
    another.produce("rd-txn", value="g", partition=0)
    another.commit_transaction(10)
    expect(rd_values("rd-txn", 3, "read_committed") == sorted([*wanted, "g"]), True, "what the other has committed is read")


# kafka-python


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


# aiokafka


@check("aiokafka", "produce, idempotent, and consume in a group")
def _():
    import aiokafka

    async def run():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ADDRESS, enable_idempotence=True)
        await producer.start()
        for i in range(300):
            await producer.send("aio", f"value {i}".encode())
        await producer.flush()
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "aio", bootstrap_servers=ADDRESS, group_id="aio", auto_offset_reset="earliest"
        )
        await consumer.start()
        offsets = [(await asyncio.wait_for(consumer.getone(), 20)).offset for _ in range(300)]
        await consumer.stop()
        expect(offsets, list(range(300)), "offsets")

    asyncio.run(run())


@check("aiokafka", "a compacted topic, read from the start")
def _():
    import aiokafka

    topic, written, keys = compacted("compacted-plain", kinds=("none", "gzip"))

    async def run():
        partition = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=ADDRESS)
        await consumer.start()
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = []
        while not found or found[-1][0] < max(written):
            m = await asyncio.wait_for(consumer.getone(), 20)
            found.append((m.offset, (m.key, m.value)))
        await consumer.stop()
        compacted_check(found, written, keys)

    asyncio.run(run())


@check("aiokafka", "transactions: commit and abort, read_committed")
def _():
    import aiokafka

    async def run():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ADDRESS, transactional_id="aio")
        await producer.start()
        for name, commit in [("a", True), ("b", False), ("c", True)]:
            await producer.begin_transaction()
            for i in range(100):
                await producer.send_and_wait("aio-txn", f"{name} {i}".encode())
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        await producer.stop()
        conf = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        consumer = aiokafka.AIOKafkaConsumer("aio-txn", bootstrap_servers=ADDRESS, **conf)
        await consumer.start()
        values = [(await asyncio.wait_for(consumer.getone(), 20)).value.decode() for _ in range(200)]
        await consumer.stop()
        expect(values, [f"{name} {i}" for name in "ac" for i in range(100)], "committed records")

    asyncio.run(run())


# Kafka's own tools, if peers/kafka/kafka.sh has fetched them

TOOLS = os.path.expanduser(
    os.path.join(os.environ.get("KERA_PEERS", os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/kera-peers"), "kafka/lib")
)
TOOLS_NAME = "kafka-clients and tools"


def tool_command(name, *arguments):
    full = name if name.startswith("kafka.") else f"org.apache.kafka.{name}"
    return ["java", "-Xmx256m", "-cp", f"{TOOLS}/*", full, *arguments]


def tool(name, *arguments, seconds=60, stdin=None):
    command = tool_command(name, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, input=stdin)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {(done.stderr or done.stdout)[-150:]}")
    return done.stdout


def tools_version():
    found = [name for name in os.listdir(TOOLS) if name.startswith("kafka-tools-4")]
    return found[0].removeprefix("kafka-tools-").removesuffix(".jar")


if os.path.isdir(TOOLS):

    @check(TOOLS_NAME, "kafka-topics: create, describe, list; kafka-configs: alter, describe")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        tool("tools.TopicCommand", *server, "--create", "--topic", "java-t", "--partitions", "2")
        expect("PartitionCount: 2" in tool("tools.TopicCommand", *server, "--describe", "--topic", "java-t"), True, "two")
        expect("java-t" in tool("tools.TopicCommand", *server, "--list"), True, "listed")
        entity = ["--entity-type", "topics", "--entity-name", "java-t"]
        tool("kafka.admin.ConfigCommand", *server, "--alter", *entity, "--add-config", "retention.ms=77777")
        expect("77777" in tool("kafka.admin.ConfigCommand", *server, "--describe", *entity), True, "altered")

    @check(TOOLS_NAME, "kafka-producer-perf-test (idempotent), kafka-get-offsets, kafka-consumer-perf-test (group)")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        count = ["--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
        tool("tools.ProducerPerformance", "--topic", "java-p", *count, "--producer-props", f"bootstrap.servers={ADDRESS}")
        expect(tool("tools.GetOffsetShell", *server, "--topic", "java-p").strip(), "java-p:0:20000", "offsets")
        out = tool("tools.ConsumerPerformance", *server, "--topic", "java-p", "--messages", "20000", "--timeout", "20000")
        expect(", 20000, " in out, True, f"consumed: {out[-200:]}")

    @check(TOOLS_NAME, "kafka-verifiable-producer, kafka-verifiable-consumer, kafka-consumer-groups")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        out = tool("tools.VerifiableProducer", *server, "--topic", "java-v", "--max-messages", "1000", "--acks", "-1")
        expect('"acked":1000' in out, True, f"acknowledged: {out[-200:]}")
        group = ["--group-id", "java-g", "--max-messages", "1000"]
        out = tool("tools.VerifiableConsumer", *server, "--topic", "java-v", *group)
        expect("offsets_committed" in out, True, f"committed: {out[-200:]}")
        out = tool("tools.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", "java-g")
        expect("java-v" in out and "1000" in out, True, f"described: {out[-200:]}")
        tool("tools.consumer.group.ConsumerGroupCommand", *server, "--delete", "--group", "java-g")

    @check(TOOLS_NAME, "kafka-producer-perf-test (transactions), kafka-transactions, kafka-console-consumer (read_committed)")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        count = ["--num-records", "5000", "--record-size", "100", "--throughput", "5000"]
        transactions = ["--transactional-id", "java", "--transaction-duration-ms", "100"]
        props = ["--producer-props", f"bootstrap.servers={ADDRESS}"]
        tool("tools.ProducerPerformance", "--topic", "java-x", *count, *transactions, *props)
        listed = tool("tools.TransactionsCommand", *server, "list")
        expect("java" in listed and "CompleteCommit" in listed, True, f"listed: {listed[-200:]}")
        described = tool("tools.TransactionsCommand", *server, "describe", "--transactional-id", "java")
        expect("CompleteCommit" in described, True, f"described: {described[-200:]}")
        conf = ["--topic", "java-x", "--from-beginning", "--max-messages", "5000", "--timeout-ms", "20000"]
        out = tool("tools.consumer.ConsoleConsumer", *server, *conf, "--isolation-level", "read_committed")
        expect(len(out.splitlines()), 5000, "records read")

    @check(TOOLS_NAME, "kafka-console-producer, kafka-console-consumer (keys, group), compression none, gzip, snappy, lz4, zstd")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        for kind in ["none", "gzip", "snappy", "lz4", "zstd"]:
            lines = [f"k{i}:{kind} {i}" for i in range(1000)]
            topic = ["--topic", f"java-{kind}"]
            keyed = ["--property", "parse.key=true", "--property", "key.separator=:"]
            tool("tools.ConsoleProducer", *server, *topic, *keyed, "--compression-codec", kind, stdin="\n".join(lines) + "\n")
            conf = ["--group", f"java-{kind}", "--from-beginning", "--max-messages", "1000", "--timeout-ms", "20000"]
            keyed = ["--property", "print.key=true", "--property", "key.separator=:"]
            expect(tool("tools.consumer.ConsoleConsumer", *server, *topic, *conf, *keyed).splitlines(), lines, "records read")

    @check(TOOLS_NAME, "kafka-configs and kafka-console-consumer: a compacted topic, described and read from the start")
    def _():
        topic, written, keys = compacted()
        server, entity = ["--bootstrap-server", ADDRESS], ["--entity-type", "topics", "--entity-name", topic]
        described = tool("kafka.admin.ConfigCommand", *server, "--describe", *entity)
        expect("cleanup.policy=compact" in described, True, f"described: {described[-300:]}")
        shown = [["--property", f"print.{what}=true"] for what in ["offset", "key"]]
        conf = ["--topic", topic, "--from-beginning", "--timeout-ms", "5000", "--property", "key.separator=|"]
        out = tool("tools.consumer.ConsoleConsumer", *server, *conf, *sum(shown, []))
        rows = [line.split("|", 2) for line in out.splitlines() if line.startswith("Offset:")]
        text = {"null": None}
        found = [(int(at[7:]), (key.encode(), text.get(value, value.encode()))) for at, key, value in rows]
        compacted_check(found, written, keys)

    @check(TOOLS_NAME, "kafka-log-dirs, kafka-leader-election, kafka-metadata-quorum, kafka-reassign-partitions, kafka-delete-records")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        tool("tools.VerifiableProducer", *server, "--topic", "java-n", "--max-messages", "100", "--acks", "-1")
        out = tool("tools.LogDirsCommand", *server, "--describe", "--topic-list", "java-n")
        expect('"partition":"java-n-0"' in out, True, f"directories: {out[-200:]}")
        election = ["--election-type", "preferred", "--topic", "java-n", "--partition", "0"]
        out = tool("tools.LeaderElectionCommand", *server, *election)
        expect("Valid replica already elected" in out, True, f"elected: {out[-200:]}")
        out = tool("tools.MetadataQuorumCommand", *server, "describe", "--status")
        expect("LeaderId:" in out and "CurrentVoters:" in out, True, f"quorum: {out[-200:]}")
        with tempfile.TemporaryDirectory() as place:
            moves, ends = os.path.join(place, "moves"), os.path.join(place, "ends")
            with open(moves, "w", encoding="utf-8") as file:
                file.write('{"version":1,"partitions":[{"topic":"java-n","partition":0,"replicas":[1]}]}')
            out = tool("tools.reassign.ReassignPartitionsCommand", *server, "--execute", "--reassignment-json-file", moves)
            expect("Successfully started partition reassignment" in out, True, f"moved: {out[-200:]}")
            out = tool("tools.reassign.ReassignPartitionsCommand", *server, "--list")
            expect("No partition reassignments found" in out, True, f"listed: {out[-200:]}")
            with open(ends, "w", encoding="utf-8") as file:
                file.write('{"version":1,"partitions":[{"topic":"java-n","partition":0,"offset":40}]}')
            out = tool("tools.DeleteRecordsCommand", *server, "--offset-json-file", ends)
            expect("low_watermark: 40" in out, True, f"deleted: {out[-200:]}")

    for protocol in ["classic", "consumer"]:

        @check(TOOLS_NAME, f"kafka-verifiable-consumer: one of two members is killed, group protocol {protocol}")
        def _(protocol=protocol):
            server, topic = ["--bootstrap-server", ADDRESS], f"java-group-{protocol}"
            tool("tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "6")
            timeout = ["--session-timeout", "6000"] if protocol == "classic" else []
            group = ["--topic", topic, "--group-id", topic, "--group-protocol", protocol, *timeout]
            command = tool_command("tools.VerifiableConsumer", *server, *group)
            members = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
            describe = ["tools.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", topic]

            def until(condition, what, seconds=70):
                limit = time.time() + seconds
                while not condition():
                    if time.time() > limit:
                        raise AssertionError(f"{what}: not in {seconds} s")

            def owners():
                return {line.split()[6] for line in tool(*describe).splitlines() if topic in line and len(line.split()) > 6} - {"-"}

            def written():
                return sum(int(line.split()[3]) for line in tool(*describe).splitlines() if line.startswith(topic) and "-" != line.split()[3])

            try:
                producer = ["tools.VerifiableProducer", *server, "--topic", topic, "--acks", "-1", "--max-messages"]
                tool(*producer, "600")
                until(lambda: len(owners()) == 2, "two members share the partitions")
                members[0].kill()
                until(lambda: len(owners()) == 1, "one has all of them")
                tool(*producer, "600")
                until(lambda: written() == 1200, "everything is committed")
            finally:
                for member in members:
                    member.kill()
                    member.wait()


def programs():
    """Clients of other languages: each a program that prints its rows, as KERA_CLIENTS says, one command a line."""
    for command in filter(None, os.environ.get("KERA_CLIENTS", "").splitlines()):
        child = subprocess.Popen([*command.split(), ADDRESS], stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            # Maven ends its colours on a line of its own, also when nobody sees them.
            row = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip("\n").replace("|", "/").split("\t")
            if len(row) == 3:
                yield row
            else:
                print(line, end="", flush=True)
        if child.wait() != 0:
            yield command.split()[-1], "the program", f"fails: exit {child.returncode}"


def main():
    rows = []
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    for client, what, function in CHECKS:
        if only not in f"{client} {what}":
            continue
        start = time.time()
        try:
            function()
            result = "works"
        except BaseException as error:  # noqa: BLE001 - whatever it is goes into the table
            result = f"fails: {type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")[:200]
        print(f"{client} · {what} · {result} · {time.time() - start:.1f} s", flush=True)
        release = tools_version() if client == TOOLS_NAME else version(client)
        rows.append(f"| {client} {release} | {what} | {result} |")
    for client, what, result in programs():
        if only in f"{client} {what}":
            print(f"{client} · {what} · {result}", flush=True)
            rows.append(f"| {client} | {what} | {result[:200]} |")
    if only:
        return
    table = "\n".join([BEGIN, "| client | what | result |", "| --- | --- | --- |", *rows, END])
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(before + table + after)


main()
