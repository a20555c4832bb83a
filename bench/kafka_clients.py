"""Kafka clients of the scripts beside this file: a producer that goes on through everything, and a reader that looks at each record once.

They are librdkafka's, by way of `confluent_kafka`: nothing of them was written here, so what they agree to is not the word of KerA's own client."""
import struct
import threading
import time

try:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic
except ImportError:
    confluent_kafka = None

# What `kera verify produce` writes: run, producer, streamlet and number behind a checksum and a magic number.
VERIFY = struct.Struct("<8xQIIQ")


def create_topic(bootstrap, topic, partitions, copies, config=None):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, copies, config=config or {})])[topic].result(30)


class Writer:
    """An idempotent producer (acks=all) that writes the numbers from 0 on, until it is told to end."""

    def __init__(self, bootstrap, topic, rate):
        self.topic, self.rate = topic, rate
        self.delivered, self.errors, self.lock = set(), [], threading.Lock()
        self.writing = threading.Event()
        self.writing.set()
        self.config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "error_cb": self.on_error, "delivery.timeout.ms": 300000, "log_level": 2}
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def failed(self, error):
        with self.lock:
            self.errors.append(f"{time.strftime('%H:%M:%S')} {error}")

    def on_error(self, error):
        # Lost connections and nodes that are away are told here, and are nobody's error: the library goes on by itself.
        if error.fatal() or not (error.retriable() or error.code() < 0):
            self.failed(f"the library says: {error}")

    def told(self, error, message):
        if error:
            self.failed(f"not delivered: {error}")
        else:
            with self.lock:
                self.delivered.add(int(message.value()))

    def run(self):
        try:
            producer = confluent_kafka.Producer(self.config)
            number, began = 0, time.monotonic()
            while self.writing.is_set():
                while number < (time.monotonic() - began) * self.rate:
                    try:
                        producer.produce(self.topic, key=str(number % 100), value=str(number), on_delivery=self.told)
                    except BufferError:
                        # It holds as much as it may; the rest waits.
                        break
                    number += 1
                producer.poll(0.01)
            if producer.flush(120) > 0:
                self.failed("records wait for their delivery after 120 s")
        except Exception as error:  # whatever a client throws is an error that a user would see
            self.failed(f"{type(error).__name__}: {error}")

    def end(self):
        """Has it deliver what it has, and waits."""
        self.writing.clear()
        self.thread.join()


def read_all(bootstrap, topic, seconds=300):
    """Partition and value of each record that is in a topic now, in the order of the offsets of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-all", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        ends = {}
        for partition in partitions:
            first, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), 30)
            if first < end:
                ends[partition] = (first, end)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, first) for partition, (first, _) in ends.items()])
        until = time.monotonic() + seconds
        while ends:
            if time.monotonic() > until:
                raise TimeoutError(f"{topic} is not read to its end after {seconds} s; partitions that are left: {sorted(ends)}")
            for message in consumer.consume(10000, 0.5):
                if message.error():
                    continue
                partition, offset = message.partition(), message.offset()
                if partition not in ends:
                    continue
                yield partition, message.value()
                if offset + 1 >= ends[partition][1]:
                    del ends[partition]
    finally:
        consumer.close()


class Rows:
    """Numbers that came in rising order, as ranges."""

    def __init__(self):
        self.ranges = []

    def add(self, number):
        """Whether it is behind all others."""
        if self.ranges and number < self.ranges[-1][1]:
            return False
        if self.ranges and number == self.ranges[-1][1]:
            self.ranges[-1][1] = number + 1
        else:
            self.ranges.append([number, number + 1])
        return True

    def has(self, begin, end):
        return any(first <= begin and end <= behind for first, behind in self.ranges)


def check_written(bootstrap, writer):
    """What is broken of the promises to a [`Writer`], and a sentence about what was seen."""
    rows, seen, broken = {}, set(), list(writer.errors)
    for partition, value in read_all(bootstrap, writer.topic):
        number = int(value)
        if not rows.setdefault(partition, Rows()).add(number):
            broken.append(f"{writer.topic}: record {number} comes twice or out of order in partition {partition}")
        seen.add(number)
    missing = writer.delivered - seen
    if missing:
        broken.append(f"{writer.topic}: {len(missing)} records were delivered and are not read, the first is {min(missing)}")
    return broken, f"a Kafka client wrote {len(writer.delivered)} records and reads {len(seen)}"


def check_verified(bootstrap, topic, acks):
    """The same for what `kera verify produce` has written, by its log of acknowledgements."""
    rows, broken, count, acknowledged = {}, [], 0, 0
    for partition, value in read_all(bootstrap, topic):
        run, producer, streamlet, number = VERIFY.unpack_from(value)
        count += 1
        if not rows.setdefault((run, producer, streamlet), Rows()).add(number):
            broken.append(f"{topic}: record {number} of producer {producer} comes twice or out of order in partition {partition}")
    with open(acks, encoding="ascii") as log:
        for line in log:
            word, *fields = line.split()
            if word != "ack":
                continue
            run, producer, streamlet, begin, end = int(fields[0], 16), *map(int, fields[1:5])
            acknowledged += end - begin
            if not rows.get((run, producer, streamlet), Rows()).has(begin, end):
                broken.append(f"{topic}: of the acknowledged records {begin} to {end - 1} of producer {producer}, streamlet {streamlet}, some are not read")
    return broken, f"a Kafka client reads {count} records of {acknowledged} that native producers had acknowledged"
