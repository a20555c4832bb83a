"""Kills a node again and again while a producer writes transactions, and reads what is committed afterwards: every transaction
whose commit was acknowledged must be there whole, none that was aborted may be, and of none a part; for a Kafka consumer and for
a native one.

usage: kill.py KERA [SECONDS [SEED]]        with the Python of check.sh
"""

import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

KERA = sys.argv[1]
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
ADDRESS, NATIVE = "127.0.0.1:19392", "127.0.0.1:19393"
RECORDS, PARTITIONS = 30, 3
TOPICS = {"in-process": "process", "on-power": "power"}
PRODUCER = {
    "bootstrap.servers": ADDRESS,
    "transactional.id": "killed",
    "transaction.timeout.ms": 20_000,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Node:
    def __init__(self):
        self.data, self.arena = tempfile.mkdtemp(), tempfile.mkdtemp(dir="/dev/shm")
        self.kills = 0
        self.start()

    def start(self):
        flags = ["--data", f"{self.data}/data", "--arena-dir", self.arena, "--arena-bytes", "256MiB"]
        flags += ["--listen", NATIVE, "--http-listen", "none", "--kafka-listen", ADDRESS]
        self.process = subprocess.Popen([KERA, "serve", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.kills += 1

    def end(self):
        self.kill()
        shutil.rmtree(self.data)
        shutil.rmtree(self.arena)


def write(until, chance):
    """Writes transactions: which were committed, which were aborted, and of which nobody knows."""
    committed, aborted, unknown, producer, number = [], [], [], None, 0
    while time.time() < until:
        is_commit, decided = chance.random() < 0.6, False
        try:
            if producer is None:
                producer = Producer(PRODUCER)
                producer.init_transactions(20)
            number += 1
            producer.begin_transaction()
            for i in range(RECORDS):
                producer.produce(list(TOPICS)[i % 2], value=f"{number} {i}", partition=i % PARTITIONS)
            if is_commit:
                decided = True
                producer.commit_transaction(15)
                committed.append(number)
            else:
                producer.flush(10)
                producer.abort_transaction(15)
                aborted.append(number)
        except KafkaException as error:
            (unknown if decided else aborted).append(number)
            if decided and error.args[0].txn_requires_abort():
                try:
                    producer.abort_transaction(15)
                    aborted.append(unknown.pop())
                    continue
                except KafkaException:
                    pass
            producer = None
    return committed, aborted, unknown


def read():
    """What is committed: the records of each transaction."""
    conf = {"bootstrap.servers": ADDRESS, "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**conf, "isolation.level": "read_committed", "log_level": 0})
    consumer.assign([TopicPartition(topic, p, 0) for topic in TOPICS for p in range(PARTITIONS)])
    found, ended, until = {}, set(), time.time() + 60
    while len(ended) < len(TOPICS) * PARTITIONS and time.time() < until:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                number, i = map(int, message.value().split())
                found.setdefault(number, []).append(i)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add((message.topic(), message.partition()))
    consumer.close()
    if len(ended) < len(TOPICS) * PARTITIONS:
        sys.exit("not all partitions can be read to their end")
    return found


def read_natively():
    """The same, as native consumers see it."""
    found = {}
    for topic in TOPICS:
        command = [KERA, "consume", topic, "--connect", NATIVE, "--from", "earliest"]
        for line in subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout.splitlines():
            number, i = map(int, line.split())
            found.setdefault(number, []).append(i)
    return found


def main():
    chance, node, is_over = random.Random(SEED), Node(), threading.Event()
    admin = AdminClient({"bootstrap.servers": ADDRESS, "log_level": 0})
    new = [NewTopic(name, PARTITIONS, 1, config={"kera.durability": kept}) for name, kept in TOPICS.items()]
    for future in admin.create_topics(new).values():
        future.result(20)

    def kill():
        own = random.Random(SEED + 1)
        while not is_over.wait(own.uniform(0.3, 1.2)):
            node.kill()
            node.start()
            time.sleep(0.5)

    killer = threading.Thread(target=kill)
    killer.start()
    committed, aborted, unknown = write(time.time() + SECONDS, chance)
    is_over.set()
    killer.join()
    # Whatever still runs is aborted by this.
    Producer(PRODUCER).init_transactions(30)
    try:
        seen = {"Kafka": read(), "native": read_natively()}
    finally:
        kills = node.kills
        node.end()
    whole = list(range(RECORDS))
    wrong = False
    for reader, found in seen.items():
        lost = [number for number in committed if sorted(found.get(number, [])) != whole]
        shown = [number for number in aborted if number in found]
        torn = [number for number in found if sorted(found[number]) != whole]
        wrong |= bool(lost or shown or torn)
        print(f"{reader} consumer: {len(found)} transactions, lost {lost}, aborted and shown {shown}, torn {torn}")
    counts = f"{len(committed)} committed, {len(aborted)} aborted, {len(unknown)} unknown"
    print(f"{kills} kills; transactions: {counts}")
    sys.exit(1 if wrong or not committed or not kills else 0)


main()
