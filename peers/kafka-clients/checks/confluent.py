"""confluent-kafka: librdkafka for Python."""

import os
import threading
import time

from .suite import ADDRESS, COMPRESSIONS, check, expect, until


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


for kind in COMPRESSIONS:

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


def compacted(topic="compacted", keys=40, kinds=tuple(COMPRESSIONS)):
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


class Rolled:
    """A member that reads and commits until it is told to stop."""

    def __init__(self, topic, protocol, seen):
        self.topic, self.protocol, self.seen = topic, protocol, seen
        self.assigned, self.failed, self.stop = set(), None, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        from confluent_kafka import Consumer, KafkaException

        session = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if self.protocol == "classic" else {}
        conf = {"bootstrap.servers": ADDRESS, "group.id": self.topic, "group.protocol": self.protocol, **session}
        # What it has read it commits when it gives partitions back, and when it goes.
        consumer = Consumer({**conf, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.topic])
        try:
            while not self.stop.is_set():
                message = consumer.poll(0.1)
                self.assigned = {place.partition for place in consumer.assignment()}
                if message is not None and message.error():
                    raise KafkaException(message.error())
                if message is not None:
                    self.seen.append(message.value())
        except Exception as error:  # noqa: BLE001 - it is shown by whoever waits
            self.failed = error
        finally:
            consumer.close()
            self.assigned = set()

    def end(self):
        self.stop.set()
        self.thread.join(30)


@check("confluent-kafka", "group: rolled member by member from the classic to the consumer protocol, and back")
def _():
    from confluent_kafka import Producer

    topic, seen, written, members = "rd-rolled", [], [], []
    rd_create(topic, 6)
    producer = Producer({"bootstrap.servers": ADDRESS})

    def kind():
        listed = rd_admin().list_consumer_groups().result(10).valid
        return next(group.type.name for group in listed if group.group_id == topic)

    def shared():
        failed = [member.failed for member in members if member.failed]
        expect(failed, [], "what went wrong in members")
        parts = [member.assigned for member in members]
        return all(parts) and sum(len(part) for part in parts) == 6 and set().union(*parts) == set(range(6))

    def go_on(what, wanted):
        until(shared, lambda: f"{what}: partitions are shared, {[member.assigned for member in members]}")
        for i in range(600):
            written.append(f"{what} {i}".encode())
            producer.produce(topic, written[-1], partition=i % 6)
        expect(producer.flush(30), 0, "undelivered")
        until(lambda: len(set(seen)) == len(written), lambda: f"{what}: {len(set(seen))} of {len(written)} records are read")
        expect(kind(), wanted, f"{what}: the kind of the group")

    try:
        members += [Rolled(topic, "classic", seen) for _ in range(2)]
        go_on("two classic members", "CLASSIC")
        members.append(Rolled(topic, "consumer", seen))
        go_on("a consumer beside them", "CONSUMER")
        members.pop(0).end()
        go_on("a classic one has left", "CONSUMER")
        members.pop(0).end()
        members.append(Rolled(topic, "consumer", seen))
        go_on("two consumers", "CONSUMER")
        members.append(Rolled(topic, "classic", seen))
        go_on("a classic one beside them", "CONSUMER")
        members.pop(0).end()
        members.pop(0).end()
        go_on("classic again", "CLASSIC")
    finally:
        for member in members:
            member.end()
    expect(sorted(set(seen)), sorted(written), "records read")
    expect(len(seen), len(written), "records read, each once")


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


def rd_write(topic, values):
    from confluent_kafka import Producer

    failed = []
    producer = Producer({"bootstrap.servers": ADDRESS, "enable.idempotence": True})
    for i, value in enumerate(values):
        producer.produce(topic, value, partition=i % 6, on_delivery=lambda error, _: failed.append(error) if error else None)
    expect((producer.flush(30), failed), (0, []), "undelivered, and failed")


for protocol in ["classic", "consumer"]:

    @check("confluent-kafka", f"group, {protocol} protocol: a member is killed, the other one goes on")
    def _(protocol=protocol):
        from .deaths import a_member_is_killed

        a_member_is_killed("confluent-kafka", f"rd-deaths-{protocol}", rd_write, protocol)
