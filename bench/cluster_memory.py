#!/usr/bin/env python3
"""What backups need in memory for very many small streams with three copies.

    bench/cluster_memory.py target/release/kera --streams 10000

Three nodes on this machine, streams of one streamlet in segments of 64 KiB, and some records for each of them. Told is, for each node, how much memory
of its own it has (`RssAnon`: heap and stacks, with all that it knows of streams, lanes and copies) before the streams are made and after all have been written
to, and how many bytes of copies it keeps in files. The arena is not in it: it has the size that it was given.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_chaos import Node, free_ports, remove, stop_all


def memory(nodes):
    told = []
    for node in nodes:
        with open(f"/proc/{node.process.pid}/status", encoding="utf-8") as status:
            of = dict(line.split(":", 1) for line in status)
        told.append(int(of["RssAnon"].split()[0]) >> 10)
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera", help="the program")
    parser.add_argument("--streams", type=int, default=10000)
    parser.add_argument("--records", type=int, default=20, help="records of 100 bytes for each stream")
    args = parser.parse_args()
    kera, folder, ports = os.path.abspath(args.kera), tempfile.mkdtemp(prefix="kera-memory-"), free_ports(6)
    nodes = [Node(kera, folder, number, ports, "1GiB") for number in (1, 2, 3)]
    connect = ["--connect", ",".join(node.address for node in nodes)]
    try:
        for node in nodes:
            node.start()
            node.wait()
        time.sleep(2)
        before = memory(nodes)

        def create(number):
            line = [kera, "stream", "create", f"many-{number}", "--replication", "3", "--segment-bytes", "64KiB", *connect]
            for _ in range(20):
                if subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                    return
                time.sleep(0.2)  # A node is taken for lost for a moment when the machine is too busy.
            sys.exit(f"stream {number} cannot be made; look at {nodes[0].log}")

        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(create, range(args.streams)))
        made = time.monotonic() - began
        produce = [kera, "bench", "produce", "--stream", "many", "--streams", str(args.streams), "--streamlets", "1", "--keep"]
        produce += ["--records", str(args.streams * args.records), "--record-bytes", "100", "--chunk-bytes", "1KiB"]
        subprocess.run(produce + connect, check=True, stdout=subprocess.DEVNULL)
        after = memory(nodes)
        told = json.loads(subprocess.run([kera, "status", "--json", *connect], check=True, stdout=subprocess.PIPE).stdout)
        for node, old, new, of in zip(nodes, before, after, told["cluster"]["nodes"]):
            line = {"node": node.number, "own_mib_before": old, "own_mib": new}
            line |= {"streamlets": of["streamlets"], "copies_mib": of["copies"]["backup_bytes"] >> 20, "copies_logs": of["copies"]["backup_logs"]}
            print(json.dumps(line))
        print(json.dumps({"streams": args.streams, "made_in_s": round(made, 1)}))
    finally:
        stop_all(nodes)
        remove(folder)


if __name__ == "__main__":
    main()
