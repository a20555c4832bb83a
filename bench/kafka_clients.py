"""Kafka clients of the scripts beside this file: a producer that goes on through everything, one that copies what it has written in transactions, one that reads what
is committed as it comes, and a reader that looks at each record once.

They are librdkafka's, by way of `confluent_kafka`: nothing of them was written here, so what they agree to is not the word of KerA's own client."""
import random
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


class Stuck(Exception):
    """A call of the library has not returned long after its time was up."""


class Transactions:
    """Copies a topic into another one, record by record under the same keys: each batch in a transaction, with the positions of what was read. Some are aborted on purpose.

    What is copied has to be there once, whatever happens to brokers: a batch whose transaction comes to nothing is read again.

    `send_offsets_to_transaction` of librdkafka takes no notice of its limit, and may wait for ever for a coordinator that was away (its issues 5456 and 5511, open with
    2.16). What an application does about that is to start again, which is what this does: a new producer with the same transactional id, which fences the old one."""

    def __init__(self, bootstrap, source, target):
        self.source, self.target = source, target
        self.committed = self.aborted = self.opened = self.stuck = 0
        self.errors = []
        common = {"bootstrap.servers": bootstrap, "error_cb": lambda error: None, "log_level": 2}
        self.producing = common | {"transactional.id": f"copies-{source}", "transaction.timeout.ms": 15000}
        self.consuming = common | {"group.id": f"copies-{source}", "enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed",
                                   "session.timeout.ms": 10000}
        self.producer = self.consumer = None
        self.chance, self.has_moved = random.Random(source), False
        # What the consumer was given: `Consumer.assignment` of 2.16 waits for the library's thread without giving others their turn, and that one may wait for its own.
        self.given = []
        self.is_complete = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def moved(self, *_):
        self.has_moved, self.given = True, []

    def came(self, _, partitions):
        self.given = [confluent_kafka.TopicPartition(of.topic, of.partition) for of in partitions]

    def open(self):
        """Both clients anew: after an error that leaves none of them of use."""
        self.close()
        self.opened += 1
        self.producer = confluent_kafka.Producer(self.producing)
        self.insist(lambda: self.producer.init_transactions(30))
        self.consumer = confluent_kafka.Consumer(self.consuming)
        self.consumer.subscribe([self.source], on_assign=self.came, on_revoke=self.moved, on_lost=self.moved)

    def close(self):
        if self.consumer:
            self.consumer.close()
        self.producer = self.consumer = None

    @staticmethod
    def insist(call, seconds=120):
        until = time.monotonic() + seconds
        while True:
            try:
                return call()
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def rewind(self):
        """Reads on where the last transaction that was committed has left off."""
        if not self.given:
            return
        for at in self.insist(lambda: self.consumer.committed(self.given, 30)):
            at.offset = at.offset if at.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
            self.insist(lambda: self.consumer.seek(at))

    def copy(self, messages):
        self.producer.begin_transaction()
        for message in messages:
            self.producer.produce(self.target, key=message.key(), value=message.value())
        read = [at for at in self.consumer.position(self.given) if at.offset >= 0]
        self.send_offsets(self.producer, read, self.consumer.consumer_group_metadata())
        if self.chance.random() < 0.1:
            self.abort()
        else:
            self.insist(lambda: self.producer.commit_transaction(30))
            self.committed += 1

    def send_offsets(self, producer, read, member):
        """Raises [`Stuck`] if the call does not return within twice the time that it may take with all its attempts."""
        raised = []

        def call():
            try:
                self.insist(lambda: producer.send_offsets_to_transaction(read, member, 30), 60)
            except Exception as error:  # belongs to the caller
                raised.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(180)
        if thread.is_alive():
            raise Stuck
        if raised:
            raise raised[0]

    def abort(self):
        self.insist(lambda: self.producer.abort_transaction(30))
        self.aborted += 1
        self.rewind()

    def is_at_end(self):
        """Whether all that is there was read."""
        # A consumer that has read nothing since it was given a partition does not say where it is: where its group is.
        known = self.insist(lambda: self.consumer.committed(self.given, 30)) + self.consumer.position(self.given) if self.given else []
        ends = {at.partition: at.offset for at in known if at.offset >= 0}
        partitions = self.consumer.list_topics(self.source, 30).topics[self.source].partitions
        behind = [self.consumer.get_watermark_offsets(confluent_kafka.TopicPartition(self.source, of), 30)[1] for of in partitions]
        return all(end == 0 or ends.get(of, 0) >= end for of, end in zip(partitions, behind))

    def step(self):
        """Whether there is more to be done."""
        messages = [message for message in self.consumer.consume(200, 0.5) if not message.error()]
        if self.has_moved:
            # What was read may be somebody else's by now, and there is nobody else: it comes again.
            self.has_moved = False
            self.rewind()
        elif messages:
            self.copy(messages)
        elif self.is_complete.is_set() and self.is_at_end():
            return False
        return True

    def run(self):
        goes_on, since = True, time.monotonic()
        while goes_on:
            try:
                if not self.producer:
                    self.open()
                goes_on = self.step()
                since = time.monotonic()
            except Stuck:
                # Nothing can be asked of this producer any more, not even to end.
                self.stuck, self.producer = self.stuck + 1, None
                since = time.monotonic()
            except confluent_kafka.KafkaException as error:
                # Between an hour of torments and a fault of the brokers the difference is that it goes on again.
                if time.monotonic() > since + 300:
                    self.errors.append(f"{self.target}: nothing is copied for 300 s: {error}")
                    break
                try:
                    if self.producer and error.args[0].txn_requires_abort():
                        self.abort()
                        continue
                except confluent_kafka.KafkaException:
                    pass
                self.close()
            except Exception as error:  # whatever a client throws is an error that a user would see
                self.errors.append(f"{self.target}: {type(error).__name__}: {error}")
                break
        self.close()

    def end(self):
        """The source is complete: has it copy what is left, and waits."""
        self.is_complete.set()
        self.thread.join(600)
        if self.thread.is_alive():
            self.errors.append(f"{self.target}: not all is copied after 600 s")


class Witness:
    """Reads what is committed of a topic from its front on, until it is told to end, and keeps where it was shown what: that may not change any more."""

    def __init__(self, bootstrap, topic):
        self.topic, self.seen, self.errors = topic, {}, []
        self.config = {"bootstrap.servers": bootstrap, "group.id": "witness", "enable.auto.commit": False, "auto.offset.reset": "earliest",
                       "isolation.level": "read_committed", "error_cb": lambda error: None, "log_level": 2}
        self.reading = threading.Event()
        self.reading.set()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            consumer = confluent_kafka.Consumer(self.config)
            partitions = consumer.list_topics(self.topic, 30).topics[self.topic].partitions
            consumer.assign([confluent_kafka.TopicPartition(self.topic, of, confluent_kafka.OFFSET_BEGINNING) for of in partitions])
            while self.reading.is_set():
                for message in consumer.consume(1000, 0.5):
                    if not message.error():
                        self.take(message.partition(), message.offset(), message.value())
            consumer.close()
        except Exception as error:  # whatever a client throws is an error that a user would see
            self.errors.append(f"{self.topic}, read as it came: {type(error).__name__}: {error}")

    def take(self, partition, offset, value):
        before = self.seen.setdefault((partition, offset), value)
        if before != value:
            self.errors.append(f"{self.topic}: offset {offset} of partition {partition} was {before} when it was read first, and {value} later")

    def end(self):
        self.reading.clear()
        self.thread.join(60)
        if self.thread.is_alive():
            self.errors.append(f"{self.topic}, read as it came: the reader has not ended after 60 s")

    def broken(self, last):
        """What is broken, given what is there in the end by partition and offset."""
        changed = sorted(at for at, value in self.seen.items() if last.get(at) != value)
        if changed:
            (partition, offset), now = changed[0], last.get(changed[0])
            yield (f"{self.topic}: {len(changed)} records were shown as committed and are not there in the end, the first is {self.seen[changed[0]]} at offset {offset} of "
                   f"partition {partition}, where now is {'none' if now is None else now}")
        if last and not self.seen:
            yield f"{self.topic}: nothing was shown as committed before the end"
        yield from self.errors


def read_all(bootstrap, topic, seconds=300, isolation="read_committed"):
    """Partition, offset and value of each record that is in a topic now, in the order of the offsets of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-all", "enable.auto.commit": False, "enable.partition.eof": True,
                                         "isolation.level": isolation})
    try:
        left = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING) for partition in left])
        until = time.monotonic() + seconds
        while left:
            if time.monotonic() > until:
                raise TimeoutError(f"{topic} is not read to its end after {seconds} s; partitions that are left: {sorted(left)}")
            for message in consumer.consume(10000, 0.5):
                if not message.error():
                    yield message.partition(), message.offset(), message.value()
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
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
    for partition, _, value in read_all(bootstrap, writer.topic):
        number = int(value)
        if not rows.setdefault(partition, Rows()).add(number):
            broken.append(f"{writer.topic}: record {number} comes twice or out of order in partition {partition}")
        seen.add(number)
    missing = writer.delivered - seen
    if missing:
        broken.append(f"{writer.topic}: {len(missing)} records were delivered and are not read, the first is {min(missing)}")
    return broken, f"a Kafka client wrote {len(writer.delivered)} records and reads {len(seen)}"


def check_copied(bootstrap, copier, witness):
    """The same for [`Transactions`], and for what a [`Witness`] was shown of them."""
    rows, broken = {}, list(copier.errors)
    written = {int(value) for _, _, value in read_all(bootstrap, copier.source)}
    copied, last = set(), {}
    for partition, offset, value in read_all(bootstrap, copier.target):
        last[partition, offset] = value
        number = int(value)
        if not rows.setdefault(partition, Rows()).add(number):
            broken.append(f"{copier.target}: record {number} comes twice or out of order in partition {partition}")
        copied.add(number)
    if written != copied:
        broken.append(f"{copier.target}: {len(written - copied)} records are not copied, and {len(copied - written)} are that nobody wrote; "
                      f"the first is {min(written ^ copied)}")
    broken += witness.broken(last)
    all_of_it = sum(1 for _ in read_all(bootstrap, copier.target, isolation="read_uncommitted"))
    return broken, (f"a Kafka client copied {len(copied)} records in {copier.committed} transactions, aborted {copier.aborted}, with {all_of_it - len(copied)} records, "
                    f"and opened {copier.opened} times, {copier.stuck} of them behind a call that did not return; {len(witness.seen)} were shown as they came")


def check_verified(bootstrap, topic, acks):
    """The same for what `kera verify produce` has written, by its log of acknowledgements."""
    rows, broken, count, acknowledged = {}, [], 0, 0
    for partition, _, value in read_all(bootstrap, topic):
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
