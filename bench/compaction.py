"""What compaction costs: its share of a processor, how fast it is beside reading the same from disk, and what producers notice.

usage: compaction.py KERA [RECORDS]

A stream of one streamlet is filled with records of 1000 bytes over 100,000 keys while nothing is compacted; then the node is
started with a share of a core and does it. Everything lies in one directory under TMPDIR, and is deleted.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

KERA = sys.argv[1]
RECORDS = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
KEYS = 100_000


class Node:
    def __init__(self, place, percent):
        self.log = open(os.path.join(place, "log"), "wb")
        self.memory = tempfile.mkdtemp(dir="/dev/shm")
        arguments = ["--data", f"{place}/data", "--arena-dir", self.memory, "--arena-bytes", "1GiB"]
        arguments += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0"]
        arguments += ["--log-format", "json", "--compaction-cpu-percent", str(percent)]
        self.process = subprocess.Popen([KERA, "serve", *arguments], stderr=self.log)
        for _ in range(600):
            with open(self.log.name, encoding="utf-8") as file:
                ready = re.search(r'"message":"ready".*', file.read())
            if ready:
                self.address, self.http = (re.search(rf'"{name}":"([^"]*)"', ready[0])[1] for name in ("listen", "http"))
                return
            time.sleep(0.05)
        sys.exit("the node does not start")

    def run(self, *arguments):
        command = [KERA, *arguments, "--connect", self.address]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.http}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("kera_compaction_"))
        return {name.removeprefix("kera_compaction_").removesuffix("_total"): int(value) for name, value in pairs}

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.memory, ignore_errors=True)


def rate(node, *arguments):
    told = json.loads(node.run("bench", *arguments, "--json"))
    return find(told, "mib_per_s") * 1.048576, find(told, "records_per_s")


def find(told, name):
    """The first field of that name, however deep."""
    if isinstance(told, dict):
        if name in told:
            return told[name]
        told = list(told.values())
    if isinstance(told, list):
        for one in told:
            found = find(one, name)
            if found is not None:
                return found
    return None


def fill(node):
    keyed = ["--key-distribution", "uniform", "--keys", str(KEYS), "--record-bytes", "1000", "--chunk-bytes", "64KiB"]
    node.run("bench", "produce", "--stream", "states", "--streamlets", "1", "--keep", *keyed, "--records", str(RECORDS))


def compact(node):
    """Waits until nothing is left to do. Wall seconds and what the metrics say."""
    started, found = time.time(), node.metrics()
    while found["passes"] == 0 or found["backlog_bytes"] > 0:
        time.sleep(0.05)
        found = node.metrics()
    return time.time() - started, found


def shares(place, full):
    for percent in (100, 10):
        shutil.rmtree(f"{place}/data")
        shutil.copytree(full, f"{place}/data")
        node = Node(place, percent)
        seconds, found = compact(node)
        cpu = found["cpu_microseconds"] / 1e6
        read, before, removed = (found[name] / 1e6 for name in ("read_bytes", "rewritten_bytes", "removed_bytes"))
        print(
            f"{percent} % of a core: {seconds:.1f} s, {cpu:.2f} s of a processor ({100 * cpu / seconds:.0f} %); {read:.0f} MB read,"
            f" {before:.0f} MB became {before - removed:.0f} MB: {before / seconds:.0f} MB/s, {before / cpu:.0f} MB per second of a"
            f" processor; {found['removed_records']} of {RECORDS} records removed",
            flush=True,
        )
        node.stop()


def producers(place, full):
    for turn in range(2):
        for percent in ("off", 10):
            shutil.rmtree(f"{place}/data")
            shutil.copytree(full, f"{place}/data")
            node = Node(place, percent)
            told = rate(node, "produce", "--seconds", "6", "--retention-bytes", "16MiB")
            found = node.metrics()
            busy = f"{found['read_bytes'] / 1e6:.0f} MB compaction has read meanwhile" if percent != "off" else "no compaction"
            print(f"turn {turn}: produced {told[0]:.0f} MB/s, {told[1] / 1e6:.2f} M records/s; {busy}", flush=True)
            node.stop()


def main():
    with tempfile.TemporaryDirectory() as place:
        full = f"{place}/full"
        node = Node(place, "off")
        node.run("stream", "create", "states", "--cleanup", "compact")
        fill(node)
        node.stop()
        shutil.copytree(f"{place}/data", full)
        node = Node(place, "off")
        told = rate(node, "consume", "--stream", "states", "--streamlets", "1", "--record-bytes", "1000", "--records", str(RECORDS))
        print(f"read from disk by a consumer: {told[0]:.0f} MB/s", flush=True)
        node.stop()
        shares(place, full)
        producers(place, full)


main()
