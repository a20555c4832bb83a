#!/usr/bin/env python3
"""How long a stream with much data takes to get another number of copies, and how long producers and consumers pause meanwhile.

    bench/cluster_copies.py target/release/kera --gib 1 --from 1 --to 3

Three nodes on this machine, a stream of some streamlets with as many copies as it begins with, filled with as many GiB as asked for. While an open-loop producer
writes a little and a consumer follows, `kera stream alter` asks for the other number. Told are: how long that took, how many MiB of copies were made a second,
beside what the disk takes in the same run (one file, written and synced), and the longest and the typical time that any record waited for its
acknowledgement and for its receipt, beside the same without. Then a node is killed, and everything is read once: with several copies all of it is there.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_chaos import Node, free_ports, remove, stop_all
from cluster_move import latencies
from cluster_recovery import begin

STREAMLETS = 6


def probe(kera, connect, rate, seconds, warmup, while_it_runs):
    """One probe of latencies; `while_it_runs` is called when the consumer has read what is there."""
    line = [kera, "bench", "both", "--stream", "old", "--streamlets", str(STREAMLETS), "--rate", str(rate), "--seconds", str(seconds)]
    line += ["--sample", "1", "--warmup-seconds", str(warmup), "--chunk-bytes", "1KiB", "--connect", connect, "--json"]
    probing = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(warmup + 2)
    took = while_it_runs()
    out, err = probing.communicate()
    if probing.returncode != 0:
        sys.exit(f"the probe failed: {err}")
    return latencies(json.loads(out)), took


def disk_rate(kera, folder):
    """MiB a second that the disk of the nodes' folders takes, one file written through."""
    measure = [kera, "bench", "limit", "--disk", folder, "--disk-bytes", str(512 << 20), "--frame-bytes", "65536", "--seconds", "1", "--rounds", "1", "--json"]
    return json.loads(subprocess.run(measure, check=True, stdout=subprocess.PIPE).stdout)["disk"]["write_bytes_per_s"] / (1 << 20)


def change(kera, connect, copies):
    began = time.monotonic()
    alter = [kera, "stream", "alter", "old", "--replication", str(copies), "--connect", connect, "--json"]
    subprocess.run(alter, check=True, stdout=subprocess.DEVNULL)
    describe = [kera, "stream", "describe", "old", "--connect", connect, "--json"]
    while json.loads(subprocess.run(describe, check=True, stdout=subprocess.PIPE).stdout)["options"]["replication"] != copies:
        time.sleep(0.1)
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera", help="the program")
    parser.add_argument("--gib", type=float, default=1.0, help="data of the stream before")
    parser.add_argument("--from", dest="before", type=int, default=1, choices=[1, 2, 3])
    parser.add_argument("--to", type=int, default=3, choices=[2, 3])
    parser.add_argument("--durability", default="process", choices=["process", "power"])
    parser.add_argument("--rate", type=int, default=2000, help="records per second meanwhile")
    parser.add_argument("--seconds", type=int, default=40, help="for how long they are written; longer than the change takes")
    args = parser.parse_args()
    kera, mib = os.path.abspath(args.kera), int(args.gib * 1024)
    folder, ports = tempfile.mkdtemp(prefix="kera-copies-"), free_ports(6)
    nodes = [Node(kera, folder, number, ports, f"{max(512, mib)}MiB") for number in (1, 2, 3)]
    connect = ",".join(node.address for node in nodes)
    try:
        begin(kera, nodes, connect, mib, ["--streamlets", str(STREAMLETS), "--replication", str(args.before), "--durability", args.durability])
        os.sync()
        disk = disk_rate(kera, folder)
        warmup = round(2 + 4 * args.gib)
        still, _ = probe(kera, connect, args.rate, 5, warmup, lambda: None)
        with_change, took = probe(kera, connect, args.rate, args.seconds, warmup, lambda: change(kera, connect, args.to))
        copied = max(0, args.to - 1) * mib if args.to > args.before else 0
        print(json.dumps({"gib": args.gib, "from": args.before, "to": args.to, "durability": args.durability, "rate": args.rate, "without": still}))
        print(json.dumps({"seconds": round(took, 2), "copied_mib_s": round(copied / took), "disk_mib_s": round(disk), "with": with_change}))
        nodes[1].signal(signal.SIGKILL)
        nodes[1].process.wait()
        read = [kera, "bench", "consume", "--stream", "old", "--streamlets", str(STREAMLETS), "--records", str(mib << 10), "--connect", connect, "--json"]
        said = subprocess.run(read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
        # One that gets to the end of the stream before it has so many ends well, too.
        is_all = said.returncode == 0 and json.loads(said.stdout)["records"] >= mib << 10
        print(json.dumps({"read_without_node_2": is_all}))
    finally:
        stop_all(nodes)
        remove(folder)


if __name__ == "__main__":
    main()
