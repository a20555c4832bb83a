#!/usr/bin/env python3
"""Upgrades a cluster of three nodes from one build of kera to another, node by node and under load, and proves that no client saw an error and
that nothing acknowledged is lost, doubled or reordered.

    bench/cluster_upgrade.py OLD NEW                 both are programs; the same one twice is a rolling restart
    bench/cluster_upgrade.py OLD NEW --back          and back to OLD before the last node, which needs the level not to have risen

`kera verify` of NEW writes meanwhile, to a stream with three copies. Where Python has `confluent_kafka`, a producer (idempotent, acks=all) and two
members of a group write and read a topic with three copies as well; whatever their librdkafka reports as an error for good, and every record that
is not delivered, not read, or is there twice or out of order, fails the run. What a group reads again, where a member had not committed it yet, does not. Needs Python 3; ports on the loopback address are chosen freely. Exit status 1 if a promise was
broken.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from cluster_chaos import Node, free_ports, remove, stop_all
from kafka_clients import Writer, check_written, confluent_kafka, create_topic


def described(kera, nodes):
    """The cluster as the first node that answers knows it."""
    for node in nodes:
        asked = subprocess.run([kera, "status", "--json", "--connect", node.address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if asked.returncode == 0:
            return json.loads(asked.stdout).get("cluster", {})
    return {}


def eventually(what, holds, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return
        time.sleep(0.1)
    sys.exit(f"{what}: not within {seconds} s")


class Kafka:
    """A producer, two members of a group, and what they saw."""

    TOPIC = "upgraded"

    def __init__(self, bootstrap, rate):
        self.bootstrap, self.stop = bootstrap, threading.Event()
        self.read, self.lock = {}, threading.Lock()
        create_topic(bootstrap, self.TOPIC, 6, 3)
        self.writer = Writer(bootstrap, self.TOPIC, rate)
        self.threads = [threading.Thread(target=self.guard) for _ in range(2)]
        for thread in self.threads:
            thread.start()

    def guard(self):
        try:
            self.consume()
        except Exception as error:  # whatever a client throws is an error that a user would see
            self.writer.failed(f"{type(error).__name__}: {error}")

    def consume(self):
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "upgrade", "auto.offset.reset": "earliest",
                                             "error_cb": self.writer.on_error})
        consumer.subscribe([self.TOPIC])
        while not self.stop.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                self.writer.failed(f"reading: {message.error()}")
                continue
            with self.lock:
                number = int(message.value())
                self.read[number] = self.read.get(number, 0) + 1
        consumer.close()

    def end(self):
        """What was broken, and what was seen."""
        self.writer.end()
        delivered, until = self.writer.delivered, time.monotonic() + 90
        while time.monotonic() < until:
            with self.lock:
                if delivered and delivered <= self.read.keys():
                    break
            time.sleep(0.2)
        self.stop.set()
        for thread in self.threads:
            thread.join()
        missing = len(delivered - self.read.keys())
        again = sum(count - 1 for count in self.read.values())
        # With what the library has said.
        broken, _ = check_written(self.bootstrap, self.writer)
        said = f"Kafka clients: {len(delivered)} records delivered, {missing} of them not read, {again} read again"
        return (broken or missing > 0), "\n".join([said, *broken[:20]])


def change(nodes, at, kera, looking):
    """Stops a node in good order and starts another program in its place; how long clients had two nodes."""
    node, others = nodes[at], [one for number, one in enumerate(nodes) if number != at]
    began = time.monotonic()
    node.signal(15)
    node.process.wait(60)
    eventually("its streamlets have other owners", lambda: described(looking, others).get("waiting_streamlets") == 0)
    node.command[0] = kera
    node.start()
    node.wait()
    is_live = lambda one: one["state"] == "live"
    eventually("it is back", lambda: len(list(filter(is_live, described(looking, others).get("nodes", [])))) == 3)
    time.sleep(1)
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the program that the cluster begins with")
    parser.add_argument("new", help="the program that it ends with")
    parser.add_argument("--back", action="store_true", help="go back to OLD with two nodes before all are NEW")
    parser.add_argument("--durability", default="process", choices=["process", "power"])
    parser.add_argument("--rate", type=int, default=10000, help="native records per second")
    parser.add_argument("--kafka-rate", type=int, default=1000, help="records per second of the Kafka producer")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two nodes")
    parser.add_argument("--seconds", type=int, default=60, help="how long the native producer writes; it should be longer than the upgrade takes")
    parser.add_argument("--arena-bytes", default="512MiB")
    parser.add_argument("--keep", action="store_true", help="keep data and logs")
    args = parser.parse_args()
    old, new = os.path.abspath(args.old), os.path.abspath(args.new)
    folder = tempfile.mkdtemp(prefix="kera-upgrade-")
    ports = free_ports(9)
    nodes = [Node(old, folder, number, ports, args.arena_bytes, kafka_port=ports[5 + number]) for number in (1, 2, 3)]
    connect = ",".join(node.address for node in nodes)
    failed = True
    try:
        for node in nodes:
            node.start()
            node.wait()
        eventually("coordinators that vote", lambda: [n["votes"] for n in described(new, nodes).get("nodes", [])] == [True] * 3)
        acks = os.path.join(folder, "acks")
        create = [old, "stream", "create", "verify", "--streamlets", "6", "--replication", "3", "--durability", args.durability]
        subprocess.run([*create, "--connect", connect], check=True)
        kafka = Kafka(",".join(node.kafka for node in nodes), args.kafka_rate) if confluent_kafka else None
        produce = [new, "verify", "produce", "--log", acks, "--seconds", str(args.seconds), "--rate", str(args.rate), "--connect", connect]
        producing = subprocess.Popen(produce, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(args.pause)
        steps = [(0, new), (1, new)] + ([(1, old), (0, old), (0, new), (1, new)] if args.back else []) + [(2, new)]
        for at, program in steps:
            took = change(nodes, at, program, new)
            level = described(new, nodes).get("level", "not known")
            print(f"{time.strftime('%H:%M:%S')}  node {at + 1} is {'NEW' if program == new else 'OLD'} after {took:.1f} s, level {level}", flush=True)
            time.sleep(args.pause)
        in_time = producing.poll() is None
        levels = subprocess.run([new, "cluster", "level", "--connect", connect], stdout=subprocess.PIPE, text=True)
        print(levels.stdout.strip())
        said = producing.communicate()[0].strip()
        print(re.sub(r"; run .*", "", said)[-1000:])
        if not in_time:
            print("the producer had ended before the last node was changed; give it more --seconds")
        consume = [new, "verify", "consume", "--log", acks, "--connect", connect]
        consumed = subprocess.run(consume, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(consumed.stdout.strip()[-1000:])
        broken, said = kafka.end() if kafka else (False, "no confluent_kafka: no Kafka clients")
        print(said)
        failed = consumed.returncode != 0 or producing.returncode != 0 or broken or not in_time
    finally:
        if "producing" in locals() and producing.poll() is None:
            producing.kill()
        if "kafka" in locals() and kafka:
            kafka.writer.writing.clear()
            kafka.stop.set()
        stop_all(nodes)
        if failed or args.keep:
            print(f"logs and data are in {folder}")
        else:
            remove(folder)
    print("BROKEN" if failed else "kept every promise")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
