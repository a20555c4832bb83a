#!/usr/bin/env python3
"""Three nodes of KerA and three Kafka brokers on this machine, three copies, all of them acknowledged: what producers reach, in turns.

    peers/kafka/kafka.sh fetch; (cd peers/rdkafka-bench && cargo build --release)
    bench/cluster_compare.py target/release/kera --rounds 2 --seconds 5
    bench/cluster_compare.py target/release/kera --streams 128 --chunks 1024         # streams, or topics, of one streamlet each

KerA's producer is its own client (`kera bench produce`, durability process: an acknowledged record is in the memory of its owner and in
the files of two others, not synced), Kafka's is librdkafka with acks=all, min.insync.replicas=2, which does not sync either. Kafka is
treated as `kera-bench` treats it: its brokers are loaded for a minute before the first figure, because three of them on two cores compile
their hot path for about so long and have a tenth of their rate until then; its producer is not idempotent, because an idempotent
librdkafka never sleeps while a partition has more to send than may be under way, and takes the cores that the brokers need. KerA's
producer is idempotent. Both producers have a second before their clock starts.
KerA's nodes are loaded once before their first figure too, for as long as it takes to touch their arenas for the first time.

Records of 100 bytes, one stream of 16 streamlets or partitions. Prints a line for each chunk size with the medians and the ratio. Nodes of both
are stopped at the end. Needs 10 GiB of memory and of disk.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_chaos import Node, free_ports, remove, stop_all

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KAFKA = os.path.join(HERE, "peers/kafka/kafka.sh")
LOAD = os.path.join(HERE, "peers/rdkafka-bench/target/release/rdkafka-bench")
BROKERS = [19092, 19102, 19112]
# As in crates/bench/src/experiment/systems/kafka.rs: seconds of load before the first figure, and how much longer that may take.
WARMUP_SECONDS = 60
WARMED_UP_WITHIN = 60
KERA_WARMUP_SECONDS = 5
CLIENT_WARMUP_SECONDS = 1


def kafka(port, *words, check=True):
    environment = dict(os.environ, KAFKA_PORT=str(port), KAFKA_CLUSTER_ID="a2VyYS1iZW5jaC1jbHVzdA", KAFKA_HEAP="1g")
    return subprocess.run([KAFKA, *words], env=environment, check=check, stdout=subprocess.PIPE, text=True)


def start_kafka():
    shared = ["min.insync.replicas=2", "default.replication.factor=3", "offsets.topic.replication.factor=3"]
    # Deleted topics give their space back before the next turn.
    shared.append("log.segment.delete.delay.ms=1000")
    kafka(BROKERS[0], "start", *shared)
    for number, port in enumerate(BROKERS[1:], 2):
        own = [f"node.id={number}", "process.roles=broker", f"listeners=PLAINTEXT://127.0.0.1:{port}"]
        kafka(port, "start", *own, f"controller.quorum.voters=1@127.0.0.1:{BROKERS[0] + 1}", *shared)


def load_of_kafka(what, seconds, streams, chunk):
    command = [LOAD, what, "--bootstrap", ",".join(f"127.0.0.1:{port}" for port in BROKERS), "--replication", "3"]
    command += ["--topics", str(streams), "--partitions", str(streamlets(streams)), "--batch-bytes", str(chunk)]
    command += ["--seconds", str(seconds), "--warmup-seconds", str(CLIENT_WARMUP_SECONDS), "--records", "2000000000"]
    command += ["--buffer-bytes", "33554432", "--topic-property", "min.insync.replicas=2"]
    return command + ["-X", "acks=all", "-X", "enable.idempotence=false"]


def warm_up_kafka(seconds):
    """Has producers and consumers load the brokers until what they do often is compiled."""
    warm = load_of_kafka("both", seconds, 1, 16384)
    try:
        subprocess.run(warm, check=True, stdout=subprocess.DEVNULL, timeout=seconds + WARMED_UP_WITHIN)
    except subprocess.TimeoutExpired:
        # Loaded for that long they are warm, whatever consumers have not got yet; the topic is still there.
        delete = load_of_kafka("delete", seconds, 1, 16384)
        subprocess.run(delete, check=False, stdout=subprocess.DEVNULL, timeout=WARMED_UP_WITHIN)


def of_kafka(chunk, seconds, streams):
    command = load_of_kafka("produce", seconds, streams, chunk) + ["--spread", "batch"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said)["records_per_s"]


def streamlets(streams):
    return 16 if streams == 1 else 1


def of_kera(kera, connect, chunk, seconds, name, streams):
    names = [name] if streams == 1 else [f"{name}-{number}" for number in range(streams)]
    for one in names:
        create = [kera, "stream", "create", one, "--streamlets", str(streamlets(streams)), "--replication", "3", "--connect", connect]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    command = [kera, "bench", "produce", "--stream", name, "--streams", str(streams), "--streamlets", str(streamlets(streams))]
    command += ["--chunk-bytes", str(chunk), "--seconds", str(seconds)]
    command += ["--record-bytes", "100", "--connect", connect, "--json", "--warmup-seconds", str(CLIENT_WARMUP_SECONDS)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for one in names:
        subprocess.run([kera, "stream", "delete", one, "--connect", connect, "--yes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads(said)["records_per_s"]


def settle():
    """Neither side's turn has the disk take what the other one has left."""
    time.sleep(2)
    os.sync()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera", help="the program")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chunks", default="1024,16384,65536")
    parser.add_argument("--streams", type=int, default=1, help="one of 16 streamlets, or more of one streamlet each")
    parser.add_argument("--kafka-warmup-seconds", type=int, default=WARMUP_SECONDS, help="load of fresh brokers before the first figure")
    parser.add_argument("--arena", default="2GiB", help="memory for records of each of KerA's nodes")
    args = parser.parse_args()
    kera, folder = os.path.abspath(args.kera), tempfile.mkdtemp(prefix="kera-compare-")
    ports = free_ports(6)
    nodes = [Node(kera, folder, number, ports, args.arena) for number in (1, 2, 3)]
    connect = ",".join(node.address for node in nodes)
    try:
        for node in nodes:
            node.start()
            node.wait()
        of_kera(kera, connect, 16384, KERA_WARMUP_SECONDS, "warm-up", 1)
        start_kafka()
        if args.kafka_warmup_seconds:
            warm_up_kafka(args.kafka_warmup_seconds)
        settle()
        for chunk in map(int, args.chunks.split(",")):
            ours, theirs = [], []
            for turn in range(args.rounds):
                ours.append(of_kera(kera, connect, chunk, args.seconds, f"bench-{chunk}-{turn}", args.streams))
                settle()
                theirs.append(of_kafka(chunk, args.seconds, args.streams))
                settle()
            us, them = statistics.median(ours), statistics.median(theirs)
            spread = lambda rates: "–".join(f"{rate / 1e6:.3f}" for rate in (min(rates), max(rates)))
            print(f"{args.streams} x {streamlets(args.streams)}, chunks of {chunk:6}: KerA {us / 1e6:.3f} M/s ({spread(ours)}), Kafka {them / 1e6:.3f} M/s ({spread(theirs)}), "
                  + (f"ratio {us / them:.1f}" if them else "which acknowledged nothing in that time"), flush=True)
    finally:
        for port in reversed(BROKERS):
            kafka(port, "stop", check=False)
        stop_all(nodes)
        remove(folder)


if __name__ == "__main__":
    main()
