#!/usr/bin/env python3
"""How long producers and consumers pause when a streamlet with much data moves from node to node of three.

    bench/cluster_move.py target/release/kera --gib 1 --moves 6

Three nodes on this machine, a stream with one streamlet and as many copies as asked for, filled with as many GiB as asked for. While an
open-loop producer writes a little and a consumer follows, the streamlet is moved to the next node, again and again. Told are: how long each
move took as `kera streamlet move` says, and the longest and the typical time that any record waited for its acknowledgement and for its
receipt, beside the same without moves. No data is copied by a move. Behind the moves everything is read once, from the front to the end; a load or a reader that fails, or has
counted errors, and records that are missing end the run. Needs about three times the data as memory at most, and as much disk.
With `--application` the consumer is a member of an application, which has to leave the old owner and join the new one to get a lease.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_chaos import Node, free_ports, remove, stop_all
from cluster_recovery import begin, owner, read_back, told_by

# So many seconds are given to a consumer for each GiB that it reads before the clock starts.
READ_S = 4


def check_room(gib, copies):
    """A full disk would stop the nodes, and whatever else writes to it."""
    place = tempfile.gettempdir()
    free, needed = shutil.disk_usage(place).free / 2**30, gib * copies * 1.1 + 2
    if free < needed:
        sys.exit(f"{place} has {free:.1f} GiB free, and {needed:.1f} are needed: free some, set TMPDIR to another disk, or ask for fewer with --gib")


def probe(kera, connect, rate, seconds, moves, warmup, application):
    """One probe of latencies, with so many moves in it, behind a time in which the consumer reads what is there already."""
    line = [kera, "bench", "both", "--stream", "old", "--streamlets", "1", "--rate", str(rate), "--seconds", str(seconds), "--sample", "1", "--warmup-seconds", str(warmup)]
    line += ["--application", "moved"] if application else []
    probing = subprocess.Popen(line + ["--chunk-bytes", "1KiB", "--connect", connect, "--json"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    took = []
    time.sleep(warmup + 2)
    for _ in range(moves):
        to = owner(kera, connect) % 3 + 1
        move = [kera, "streamlet", "move", "old/0", "--to", str(to), "--json", "--connect", connect]
        said = json.loads(subprocess.run(move, check=True, stdout=subprocess.PIPE).stdout)
        assert said["state"] == "moved", said
        took.append(said["took_ms"])
        time.sleep(1)
    return told_by(probing), took


def latencies(said):
    """Every latency that the probe tells of, in milliseconds."""
    of = lambda value: {key: round(value[key] / 1000, 2) for key in ("p50", "p99", "max")}
    told = {"to_acknowledgement_ms": of(said["latency_us"])}
    if "consume" in said:
        told["to_receipt_ms"] = of(said["consume"]["latency_us"])
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera", help="the program")
    parser.add_argument("--gib", type=float, default=1.0, help="data of the streamlet before it moves")
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--copies", type=int, default=3, choices=[1, 2, 3])
    parser.add_argument("--rate", type=int, default=2000, help="records per second while it moves")
    parser.add_argument("--application", action="store_true", help="the consumer is a member of an application")
    args = parser.parse_args()
    check_room(args.gib, args.copies)
    kera, mib = os.path.abspath(args.kera), int(args.gib * 1024)
    folder, ports = tempfile.mkdtemp(prefix="kera-move-"), free_ports(6)
    nodes = [Node(kera, folder, number, ports, f"{max(512, mib // 2)}MiB") for number in (1, 2, 3)]
    connect = ",".join(node.address for node in nodes)
    try:
        begin(kera, nodes, connect, mib, ["--streamlets", "1", "--replication", str(args.copies)])
        # What the disk has still to take of it would hide what a move costs.
        os.sync()
        warmup = round(1 + args.gib * READ_S)
        still, _ = probe(kera, connect, args.rate, 5, 0, warmup, args.application)
        moved, took = probe(kera, connect, args.rate, 4 + 2 * args.moves, args.moves, warmup, args.application)
        print(json.dumps({"gib": args.gib, "copies": args.copies, "rate": args.rate, "without": latencies(still)}))
        written = (mib << 10) + still["records"] + moved["records"]
        print(json.dumps({"moves": args.moves, "move_ms": took, "with": latencies(moved), "read_back_records": read_back(kera, connect, written, True)}))
    finally:
        stop_all(nodes)
        remove(folder)


if __name__ == "__main__":
    main()
