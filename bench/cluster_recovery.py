#!/usr/bin/env python3
"""How long producers stop and how long old data is away when a broker of three is lost, and what a rebuild reaches.

    bench/cluster_recovery.py target/release/kera --mib 1024 --rounds 3

Three nodes on this machine, a stream with three copies (durability process) of which one node owns as many MiB as asked for. While an
open-loop producer writes a little, that node is killed with kill -9. Told are: the longest that any record waited for its acknowledgement,
when the streamlets were taken over, when all of the old data could be read again, and when it had its copies, from the nodes' own logs. Beside
them is told how fast the machine hands out memory, which what is rebuilt needs as much of: 4 GiB of shared memory in one go, behind the round and with nothing
else running. Last comes a line of what loopback and the disk of the nodes' folders give by `kera bench limit`, right behind the rounds, with the medians of their two
rates as parts of each. Needs six times the data as memory at most, and as much disk; `--arena-mib` has nodes take less of it, so that what is rebuilt goes through their disks.
With `--follow` a consumer reads what is written meanwhile, and the longest wait of a record for its receipt is told too. With `--freeze` the node is
stopped by a signal and not killed: no connection to it breaks, as when its machine is gone. With `--used-memory` nodes have had as much in memory before as they take for records, so that no time goes into pages that were never used: that is how nodes are that run for a while.
With `--behind-mib` an application has read all of the old data but so many MiB
when the node is killed, and goes on right behind that: told is after how long it had them.
With `--back-s` the killed node is started again after so many seconds, and told is what became of what it still has: how much of it was held there again, and how
much others read from backups instead. `--retention-mib` has the stream keep so much of what was written to it, so that retention takes its front all the time.
With `--where` nodes log where the time of a taking over and of a rebuild went, which is told too.
Behind each round everything is read once, from the front to the end: a rebuild that cannot be read has no figures. A load or a reader that fails, or that has counted
errors, ends the run with what it said.
"""
import argparse
import datetime
import json
import mmap
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster_chaos import Node, free_ports, remove, stop_all


# A stream that keeps so many MiB may have a segment less: retention takes whole ones.
SEGMENT_MIB = 8


def stamp(line):
    return datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp()


def find(nodes, words, after):
    for node in nodes:
        with open(node.log, encoding="utf-8", errors="replace") as log:
            for line in log:
                if words in line and stamp(line) >= after:
                    yield stamp(line), line


def where(nodes, after):
    """What nodes have logged of where the time went, line by line."""
    lines = [one for words in ("where the time of", "own backup has read meanwhile") for one in find(nodes, words, after)]
    return [{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)} for _, line in sorted(lines)]


def memory_mib_per_s(mib=4096, populate_write=23):
    """How fast memory is handed out. Some virtual machines fetch it from their host at a fraction of what copying takes."""
    memory = mmap.mmap(-1, mib << 20)
    began = time.monotonic()
    try:
        memory.madvise(populate_write)
    except OSError:  # Kernels before 5.14 do not know it.
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    return round(mib / (time.monotonic() - began))


def limits(kera, rounds, disk_bytes):
    """What the machine gives in this same hour, and how much of it a recovery makes use of."""
    with tempfile.TemporaryDirectory(prefix="kera-recovery-") as folder:
        measure = [kera, "bench", "limit", "--disk", folder, "--disk-bytes", str(disk_bytes), "--frame-bytes", "65536", "--seconds", "1", "--rounds", "1", "--json"]
        given = json.loads(subprocess.run(measure, check=True, stdout=subprocess.PIPE).stdout)
    disk = given["disk"]
    rates = {"loopback": given["loopback_bytes_per_s"], "disk_append": disk["append_bytes_per_s"],
             "disk_write": disk["write_bytes_per_s"], "disk_read": disk["read_bytes_per_s"]}
    told = {f"{name}_gb_per_s": round(rate / 1e9, 3) for name, rate in rates.items()}
    for reached in ("mib_per_s_since_taken", "mib_per_s_with_copies"):
        rate = statistics.median_low(one[reached] for one in rounds)
        told[reached] = {"median": rate, **{f"of_{name}": round((rate << 20) / limit, 3) for name, limit in rates.items()}}
    return {"limits": {**told, "disk_direct": disk["direct"], "sync_us_p50": disk["sync_us_p50"]}}


def owner(kera, connect):
    told = json.loads(subprocess.run([kera, "status", "--json", "--connect", connect], check=True, stdout=subprocess.PIPE).stdout)
    return [node["node"] for node in told["cluster"]["nodes"] if node["streamlets"] > 0][0]


def reads(kera, connect, records):
    """An application reads on where it was."""
    consume = [kera, "consume", "old", "--application", "behind", "--from", "earliest", "--max", str(records), "--connect", connect]
    return subprocess.Popen(consume, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def output_of(what, process, wait_s=None):
    """What a client printed, once it has ended well and within so many seconds: what it tells of a run that failed is no figure."""
    try:
        out, err = process.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        sys.exit(f"{what} has not ended after {wait_s} s")
    if process.returncode != 0:
        sys.exit(f"{what} failed with status {process.returncode}: {err}")
    return out


def told_by(process):
    """The figures of a load, which counted no error on either side."""
    said = json.loads(output_of("the load", process))
    for side in (said, said.get("consume", {})):
        if side.get("errors", 0):
            sys.exit(f"the load had {side['errors']} errors; the first: {said.get('first_error')}")
    return said


def kept_of(records, retention_mib):
    """So many of the records that were written have to be there. None of them takes more than a KiB."""
    return min(records, max(retention_mib - SEGMENT_MIB, 0) << 10) if retention_mib else records


def read_back(kera, connect, at_least, keeps_all):
    """Reads all that there is, from the front to the end. Nothing of it may be missing: a hole is an error of the reader's, and what is gone for good it counts, which
    only retention may take."""
    consume = [kera, "bench", "consume", "--stream", "old", "--streamlets", "1", "--records", "1000000000000", "--connect", connect, "--json"]
    process = subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = told_by(process)
    if said["records"] < at_least or keeps_all and said["removed"]:
        sys.exit(f"of {at_least} records or more {said['records']} could be read back, and {said['removed']} are gone")
    return said["records"]


def begin(kera, nodes, connect, mib, options, used_mib=0):
    """Starts the nodes, has each use so many MiB of memory, and makes stream `old` with these options and so many MiB in records of 1,000 bytes."""
    for node in nodes:
        node.start()
        node.wait()
    time.sleep(2)
    if used_mib:
        use_memory(kera, connect, used_mib)
    create = [kera, "stream", "create", "old", *options, "--connect", connect]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    fill = [kera, "bench", "produce", "--stream", "old", *options[:2], "--records", str(mib << 10), "--record-bytes", "1000"]
    subprocess.run(fill + ["--chunk-bytes", "64KiB", "--connect", connect], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def use_memory(kera, connect, mib):
    """Each of the three nodes has had so many MiB in memory: a stream of one copy is written there, and deleted again."""
    stream = ["--streamlets", "3"]
    subprocess.run([kera, "stream", "create", "before", *stream, "--connect", connect], check=True, stdout=subprocess.DEVNULL)
    fill = [kera, "bench", "produce", "--stream", "before", *stream, "--records", str(3 * mib << 10), "--record-bytes", "1000", "--chunk-bytes", "64KiB"]
    subprocess.run(fill + ["--connect", connect], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([kera, "stream", "delete", "before", "--yes", "--connect", connect], check=True, stdout=subprocess.DEVNULL)


def round_of(kera, mib, args):
    arena_mib, probe_rate, follow, freeze, wait_s, behind_mib = args.arena_mib, args.rate, args.follow, args.freeze, args.wait_s, args.behind_mib
    folder, ports = tempfile.mkdtemp(prefix="kera-recovery-"), free_ports(6)
    nodes = [Node(kera, folder, number, ports, f"{arena_mib or 2 * mib}MiB") for number in (1, 2, 3)]
    connect = ",".join(node.address for node in nodes)
    try:
        retention = ["--retention-bytes", f"{args.retention_mib}MiB"] if args.retention_mib else []
        used_mib = (arena_mib or 2 * mib) if args.used_memory else 0
        begin(kera, nodes, connect, mib, ["--streamlets", "1", "--replication", "3", *retention], used_mib)
        if behind_mib:
            output_of("the application, before the node was lost,", reads(kera, connect, (mib - behind_mib) << 10))
        lost = nodes[owner(kera, connect) - 1]
        if args.retention_mib:
            time.sleep(2)  # Retention is behind by a moment.
        # A consumer reads what is there already before the clock starts.
        warmup = 1 + mib // 128 if follow else 0
        probe = [kera, "bench", "both" if follow else "produce", "--stream", "old", "--streamlets", "1", "--rate", str(probe_rate), "--seconds", "8"]
        probe += ["--sample", "1"] + (["--warmup-seconds", str(warmup)] if follow else [])
        probing = subprocess.Popen(probe + ["--chunk-bytes", "1KiB", "--connect", connect, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(3 + warmup)
        killed = time.time()
        if freeze:
            lost.signal(signal.SIGSTOP)
        else:
            lost.signal(signal.SIGKILL)
            lost.process.wait()
        if args.back_s is not None:
            told, written = back(nodes, lost, killed, args.back_s, probing)
            return {**told, "read_back_records": read_back(kera, connect, kept_of((mib << 10) + written, args.retention_mib), not args.retention_mib)}
        behind = reads(kera, connect, behind_mib << 10) if behind_mib else None
        others = [node for node in nodes if node is not lost]
        if behind:
            output_of("the application that was behind", behind, wait_s)
            behind_s = round(time.time() - killed, 3)
        said = told_by(probing)
        until = time.monotonic() + wait_s
        while not list(find(others, "what a lost broker had is rebuilt", killed)) and time.monotonic() < until:
            time.sleep(0.1)
        taken = max(at for at, _ in find(others, "were taken over", killed)) - killed
        readable = max(at for at, _ in find(others, "what a lost broker had can be read again", killed)) - killed
        at, line = max(find(others, "what a lost broker had is rebuilt", killed))
        size = int(re.search(r"bytes=(\d+)", line).group(1))
        received = {"received_after_at_most_s": round(said["consume"]["latency_us"]["max"] / 1e6, 3)} if follow else {}
        return {
            "stopped_at_most_s": round(said["latency_us"]["max"] / 1e6, 3),
            **received,
            **({"behind_has_all_after_s": behind_s} if behind else {}),
            "taken_over_s": round(taken, 3),
            "readable_s": round(readable, 3),
            "has_its_copies_s": round(at - killed, 3),
            "rebuilt_mib": size >> 20,
            "mib_per_s_since_taken": round((size >> 20) / max(readable - taken, 0.001)),
            "mib_per_s_with_copies": round((size >> 20) / max(at - killed - taken, 0.001)),
            "read_back_records": read_back(kera, connect, kept_of((mib << 10) + said["records"], args.retention_mib), not args.retention_mib),
            **({"where": where(others, killed)} if args.where else {}),
        }
    finally:
        stop_all(nodes)
        remove(folder)


def back(nodes, lost, killed, after_s, probing):
    """The node is there again, while others rebuild what it had: what became of that, and how many records were written meanwhile."""
    others = [node for node in nodes if node is not lost]
    time.sleep(after_s)
    lost.start()
    lost.wait()
    serves = time.time() - killed
    said = told_by(probing)
    until = time.monotonic() + 60
    while not list(find(others, "what a lost broker had is rebuilt", killed)):
        if time.monotonic() > until:
            sys.exit("nobody has rebuilt what the node had, or held it again with it, 60 s after it was back: there are no figures")
        time.sleep(0.1)
    number = lambda name, words: [int(re.search(name + r"=(\d+)", line).group(1)) for _, line in find(others, words, killed)]
    held = number("bytes", "older groups are with the node that came back with them")
    told = {
        "stopped_at_most_s": round(said["latency_us"]["max"] / 1e6, 3),
        "serves_again_s": round(serves, 3),
        "taken_over_mib": sum(number("bytes", "were taken over")) >> 20,
        "held_again_mib": sum(held) >> 20,
        "read_mib": sum(number("read_bytes", "what a lost broker had is rebuilt")) >> 20,
        "refused": sum(1 for _ in find([lost], "what is here of older groups is not all", killed)),
    }
    return told, said["records"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera", help="the program")
    parser.add_argument("--mib", type=int, default=1024, help="old data of the broker that is lost")
    parser.add_argument("--arena-mib", type=int, help="memory of each node for records; twice the old data if it is not given")
    parser.add_argument("--wait-s", type=int, default=60, help="how long new copies may take, behind the eight seconds of the producer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=2000, help="records per second while the broker is lost")
    parser.add_argument("--follow", action="store_true", help="a consumer reads what is written meanwhile")
    parser.add_argument("--behind-mib", type=int, help="an application that has read all but so many MiB goes on")
    parser.add_argument("--back-s", type=float, help="the killed node is started again after so many seconds")
    parser.add_argument("--retention-mib", type=int, help="the stream keeps so much of what is written to it")
    parser.add_argument("--freeze", action="store_true", help="the node falls silent, and no connection to it breaks")
    parser.add_argument("--used-memory", action="store_true", help="nodes have used all of their memory for records before, as those have that run for a while")
    parser.add_argument("--where", action="store_true", help="tell where the time of a taking over and of a rebuild went")
    args = parser.parse_args()
    if args.where:
        os.environ["KERA_LOG_LEVEL"] = "info,kera_broker::recovery=debug,kera_server::cluster::recovery=debug"
    kera = os.path.abspath(args.kera)
    rounds = []
    for _ in range(args.rounds):
        rounds.append(round_of(kera, args.mib, args))
        print(json.dumps({**rounds[-1], "memory_mib_per_s": memory_mib_per_s()}), flush=True)
    if rounds and args.back_s is None:
        print(json.dumps(limits(kera, rounds, args.mib << 20)), flush=True)


if __name__ == "__main__":
    main()
