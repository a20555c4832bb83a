"""MirrorMaker 2 copies topics and takes groups along, from a Kafka broker of its own to a node. What comes of each check is a line
"client, what, result", parted by tabs.

usage: check.py ADDRESS        with the Python of check.sh

Needs Java 17, Maven, and the broker of peers/kafka/kafka.sh (fetch). The jars go into KERA_PEERS (default
~/.cache/kera-peers)/mirrormaker. MIRROR_KAFKA_PORT (19492) and the next port are the broker's.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.environ.get("KERA_PEERS", os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "kera-peers"))
LIB = os.path.join(PEERS, "mirrormaker", "lib")
BROKER = os.path.join(HERE, "..", "..", "kafka", "kafka.sh")
PORT = os.environ.get("MIRROR_KAFKA_PORT", "19492")
OLD, NEW = f"127.0.0.1:{PORT}", sys.argv[1]
PARTITIONS = 3
BATCH = 600
PATIENCE_S = 90
# Of the first record. A fixed time would some day be older than the retention, and the records gone before they are copied.
BEGAN_MS = int(time.time() * 1000)


def fetch():
    if not os.path.isdir(LIB):
        part = LIB + ".part"
        shutil.rmtree(part, ignore_errors=True)
        pom = ["--file", os.path.join(HERE, "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        subprocess.run(["mvn", "--quiet", "--batch-mode", *pom], check=True, stdout=sys.stderr)
        os.rename(part, LIB)


def release():
    found = [name for name in os.listdir(LIB) if name.startswith("connect-mirror-4")]
    return found[0].removeprefix("connect-mirror-").removesuffix(".jar")


def broker(*arguments):
    environment = {**os.environ, "KAFKA_PORT": PORT, "KAFKA_HEAP": "600m"}
    return subprocess.run([BROKER, *arguments], env=environment, check=True, capture_output=True, text=True).stdout


class Mirror:
    """MirrorMaker in a process of its own: it copies topics and groups whose names begin with a word."""

    def __init__(self, place, word, exactly_once):
        once = "enabled" if exactly_once else "disabled"
        settings = f"""
            clusters = old, new
            old.bootstrap.servers = {OLD}
            new.bootstrap.servers = {NEW}
            old->new.enabled = true
            new->old.enabled = false
            topics = {word}-.*
            groups = {word}-.*
            old->new.topics = {word}-.*
            old->new.groups = {word}-.*
            replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
            replication.factor = 1
            checkpoints.topic.replication.factor = 1
            heartbeats.topic.replication.factor = 1
            offset-syncs.topic.replication.factor = 1
            offset.storage.replication.factor = 1
            status.storage.replication.factor = 1
            config.storage.replication.factor = 1
            sync.group.offsets.enabled = true
            sync.group.offsets.interval.seconds = 1
            emit.checkpoints.interval.seconds = 1
            refresh.topics.interval.seconds = 2
            refresh.groups.interval.seconds = 2
            sync.topic.configs.interval.seconds = 2
            offset.lag.max = 0
            tasks.max = 2
            new.exactly.once.source.support = {once}
            old.consumer.isolation.level = read_committed
            dedicated.mode.enable.internal.rest = {str(exactly_once).lower()}
            listeners = http://127.0.0.1:0
        """
        path = os.path.join(place, f"{word}.properties")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(line.strip() for line in settings.splitlines()))
        logging = os.path.join(place, "log4j2.properties")
        with open(logging, "w", encoding="utf-8") as file:
            file.write("rootLogger.level = warn\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n")
            file.write("appender.out.name = out\nappender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %d %p %c{1} %m%n\n")
        self.log = open(os.path.join(place, f"{word}.log"), "w+", encoding="utf-8", errors="replace")
        command = ["java", "-Xmx400m", f"-Dlog4j2.configurationFile={logging}", "-cp", f"{LIB}/*"]
        self.process = subprocess.Popen(
            [*command, "org.apache.kafka.connect.mirror.MirrorMaker", path], stdout=self.log, stderr=subprocess.STDOUT
        )

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self):
        self.log.seek(0)
        return " ".join(self.log.read().split())[-400:]


ADMINS = {}


def admin(at):
    # They must outlive the futures that they give.
    if at not in ADMINS:
        ADMINS[at] = AdminClient({"bootstrap.servers": at})
    return ADMINS[at]


def create(topic, partitions, config):
    admin(OLD).create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


def write(topic, numbers, **conf):
    """Records in transactions, every third of which is aborted: those that count."""
    producer = Producer({"bootstrap.servers": OLD, "transactional.id": topic, "log_level": 0, **conf})
    producer.init_transactions(30)
    kept = []
    for start in range(0, len(numbers), 100):
        part = numbers[start : start + 100]
        producer.begin_transaction()
        for n in part:
            headers = [("n", str(n).encode()), ("none", None)]
            producer.produce(topic, f"value {n}", f"key {n % 50}", n % PARTITIONS, timestamp=BEGAN_MS + n, headers=headers)
        if start // 100 % 3 == 2:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            kept += part
    return kept


def read(at, topic, partitions):
    """What is committed there, of each partition."""
    conf = {"bootstrap.servers": at, "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**conf, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found, ended, until = {p: [] for p in range(partitions)}, set(), time.time() + 30
    while len(ended) < partitions and time.time() < until:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                record = (message.key(), message.value(), message.headers(), message.timestamp()[1])
                found[message.partition()].append(record)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif message.error().code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise AssertionError(str(message.error()))
    consumer.close()
    return found


def until(condition, what):
    limit = time.time() + PATIENCE_S
    while not condition():
        if time.time() > limit:
            raise AssertionError(f"{what}: not in {PATIENCE_S} s")
        time.sleep(1)


def is_copied(topic, partitions):
    try:
        return read(NEW, topic, partitions) == read(OLD, topic, partitions)
    except KafkaException:
        return False


def configured(topic, name, wanted):
    resource = ConfigResource(2, topic)
    try:
        described = admin(NEW).describe_configs([resource])[resource].result(10)
    except KafkaException:
        return False
    return described[name].value == wanted


def go_on(at, group, topic, count):
    """A member of a group reads: the numbers of its records."""
    conf = {"bootstrap.servers": at, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**conf, "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    numbers, last = [], time.time()
    while len(numbers) < count and time.time() < last + 15:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            numbers.append(int(message.value().split()[1]))
            last = time.time()
    consumer.commit(asynchronous=False)
    consumer.close()
    return numbers


def committed(at, group, topic):
    consumer = Consumer({"bootstrap.servers": at, "group.id": group})
    places = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=10)
    consumer.close()
    return [place.offset for place in places]


def mirrors(place, word, exactly_once):
    orders, table, group = f"{word}-orders", f"{word}-table", f"{word}-readers"
    create(orders, PARTITIONS, {"retention.ms": "77777777777"})
    create(table, PARTITIONS, {"cleanup.policy": "compact"})
    kept = write(orders, list(range(BATCH)), **{"compression.type": "zstd"})
    write(table, list(range(BATCH)))
    seen = go_on(OLD, group, orders, len(kept) // 2)
    mirror = Mirror(place, word, exactly_once)
    try:
        until(lambda: is_copied(orders, PARTITIONS), "what was there is copied")
        kept += write(orders, list(range(BATCH, 2 * BATCH)), **{"compression.type": "lz4"})
        until(lambda: is_copied(orders, PARTITIONS), "what has come is copied")
        until(lambda: is_copied(table, PARTITIONS), "the compacted topic is copied")
        until(lambda: configured(orders, "retention.ms", "77777777777"), "the retention is copied")
        until(lambda: configured(table, "cleanup.policy", "compact"), "the cleanup policy is copied")
        until(lambda: max(committed(NEW, group, orders)) > 0, "the group's offsets are copied")
    except AssertionError as error:
        raise AssertionError(f"{error}; {mirror.last_words()}") from error
    finally:
        mirror.end()
    # A group may read again what MirrorMaker has no exact place for, and misses nothing.
    rest = go_on(NEW, group, orders, 2 * len(kept))
    missing = set(kept) - set(seen) - set(rest)
    if missing or len(rest) >= len(kept):
        raise AssertionError(f"the group misses {len(missing)} records, and reads {len(rest)} of {len(kept)} at its new place")


def main():
    fetch()
    place = tempfile.mkdtemp()
    what = f"topics (transactions, zstd, lz4; compacted), configurations and a group, from Kafka {release()}"
    try:
        broker("start")
        for word, exactly_once, more in [("mm", False, ""), ("eos", True, ", exactly once")]:
            try:
                mirrors(place, word, exactly_once)
                result = "works"
            except BaseException as error:  # noqa: BLE001 - whatever it is goes into the table
                result = f"fails: {type(error).__name__}: {error}".replace("\n", " ").replace("\t", " ")
            print(f"MirrorMaker {release()}\t{what}{more}\t{result}", flush=True)
    finally:
        broker("stop")
        shutil.rmtree(place)


main()
