"""The budget of the hot path: what a chunk and a byte cost a node, in CPU time, system calls, waits for locks and copies.

usage: budget.py KERA [--seconds S] [--json]

A node and a producer are started for each size of chunk, then with a consumer beside it. Everything is a difference of counters before
and after the load: CPU of each group of the node's threads from /proc, chunks and bytes from the node's own metrics, system calls, page
faults and switches from `perf stat` on the node's process, and where the time goes from `perf record`. Cycles are counted where the
machine lets itself be asked, else they are time at the clock that /proc/cpuinfo names. Needs perf, and the right to use it on one's own
processes and on tracepoints (root, or kernel.perf_event_paranoid = -1). All data is in TMPDIR and /dev/shm, and deleted.
"""

import argparse
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

# Of each of 16 streamlets: little enough that nothing is written to disk, more than a consumer falls behind.
KEPT = "96MiB"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SHAPES = [
    ("produce", "1KiB"),
    ("produce", "16KiB"),
    ("produce", "64KiB"),
    ("both", "16KiB"),
]
# What is counted by itself; the rest are "other".
CALLS = ["epoll_wait", "epoll_pwait", "read", "readv", "recvfrom", "write", "writev", "sendto", "sendmsg", "futex", "pwrite64"]
CALLS += ["pwritev", "fdatasync", "fallocate", "madvise"]
# Of a symbol, what it is part of; the first that fits. Everything else is "the rest" of the kernel or of the program.
PARTS = [
    ("copies between socket and program (kernel)", r"^\[k\].*(copy_to_iter|copy_from_iter|copyin|copyout|rep_movs|copy_user|skb_copy)"),
    ("the lane, with the copy into its segment", r"^\[\.\].*(Lane.*append|copy|memmove)"),
    ("checksums", r"^\[\.\].*crc"),
    ("memory touched ahead, or for the first time (kernel)", r"^\[k\].*(clear_page|shmem|fault|get_user_pages|memcg|alloc_pages|folio)"),
    ("TCP and loopback (kernel)", r"^\[k\].*(tcp|skb|ip_|net_|sock|napi|loopback|dev_|inet|softirq)"),
    ("sleeping and waking up (kernel)", r"^\[k\].*(sched|futex|wake|epoll|ep_|idle|switch|hrtimer|poll|spin_unlock_irq)"),
    ("writing to disk (kernel)", r"^\[k\].*(ext4|blk|bio|iomap|jbd2|virtio)"),
    ("the rest of the kernel", r"^\[k\]"),
    ("requests and answers", r"^\[\.\].*(kera_broker|kera_rpc|kera_protocol)"),
    ("tokio and mio", r"^\[\.\].*(tokio|mio::)"),
    ("the rest of the node", r"^\[\.\]"),
]


class Node:
    def __init__(self, kera):
        self.place = tempfile.mkdtemp(prefix="kera-budget-")
        self.memory = tempfile.mkdtemp(prefix="kera-budget-", dir="/dev/shm")
        log = os.path.join(self.place, "log")
        words = ["--data", f"{self.place}/data", "--arena-dir", self.memory, "--arena-bytes", "4GiB", "--log-format", "json"]
        words += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--kafka-listen", "none"]
        with open(log, "wb") as out:
            self.process = subprocess.Popen([kera, "serve", *words], stderr=out)
        for _ in range(600):
            with open(log, encoding="utf-8") as file:
                ready = re.search(r'"message":"ready".*', file.read())
            if ready:
                self.address, self.http = (re.search(rf'"{name}":"([^"]*)"', ready[0])[1] for name in ("listen", "http"))
                return
            time.sleep(0.05)
        self.stop()
        sys.exit("the node does not start")

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.http}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("kera_"))}

    def threads(self):
        """Ticks outside the kernel and in it, by group of threads."""
        groups = collections.defaultdict(lambda: [0, 0])
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{task}/stat", encoding="utf-8") as file:
                name, fields = file.read().rsplit(")", 1)
            group = groups[re.sub(r"[-0-9]*$", "", name.split("(", 1)[1])]
            group[0] += int(fields.split()[11])
            group[1] += int(fields.split()[12])
        return groups

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)


def load(kera, node, mode, chunk, seconds):
    words = ["bench", mode, "--connect", node.address, "--chunk-bytes", chunk, "--retention-bytes", KEPT, "--json"]
    words += ["--seconds", str(seconds), "--warmup-seconds", "0"]
    done = subprocess.run([kera, *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kera bench: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout)


def counted(node, work):
    """What perf counts of the node while `work` runs."""
    events = [f"syscalls:sys_enter_{call}" for call in CALLS]
    events += ["raw_syscalls:sys_enter", "page-faults", "context-switches", "cycles"]
    out = os.path.join(node.place, "stat")
    perf = subprocess.Popen(["perf", "stat", "-x", ";", "-o", out, "-e", ",".join(events), "-p", str(node.process.pid)])
    time.sleep(0.3)
    if perf.poll() is not None:
        sys.exit("perf stat does not run: see what is needed at the head of this file")
    work()
    perf.send_signal(signal.SIGINT)
    perf.wait()
    found = {}
    with open(out, encoding="utf-8") as file:
        for line in file:
            fields = line.split(";")
            if len(fields) > 2:
                found[fields[2].split(":")[-1].removeprefix("sys_enter_") if ":" in fields[2] else fields[2]] = fields[0]
    # The event of all calls has the same last word as none of the single ones.
    return {name: float(value) for name, value in found.items() if value.replace(".", "", 1).isdigit()}


def parts(node, work):
    """Shares of the node's CPU time."""
    data = os.path.join(node.place, "perf.data")
    words = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-o", data, "-p", str(node.process.pid)]
    perf = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    work()
    perf.send_signal(signal.SIGINT)
    perf.wait()
    words = ["perf", "report", "-i", data, "--stdio", "--no-children", "--sort", "sym", "-F", "overhead,sym"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    shares, symbols = collections.Counter(), []
    for line in text.splitlines():
        found = re.match(r"\s*([0-9.]+)%\s+(\[.\].*)", line)
        if found:
            share, symbol = float(found[1]), found[2].strip()
            part = next((name for name, pattern in PARTS if re.search(pattern, symbol)), "the rest of the kernel")
            shares[part] += share
            symbols.append((share, symbol))
    return dict(shares), sorted(symbols, reverse=True)[:40]


def clock_hz():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return float(re.search(r"cpu MHz\s*:\s*([0-9.]+)", file.read())[1]) * 1e6


def one(kera, mode, chunk, seconds):
    node = Node(kera)
    try:
        # The arena's memory is touched first, once for every page in its life.
        load(kera, node, mode, chunk, 2.0)
        before, threads = node.metrics(), node.threads()
        counts = counted(node, lambda: load(kera, node, mode, chunk, seconds))
        after, ended = node.metrics(), node.threads()
        shares, symbols = parts(node, lambda: load(kera, node, mode, chunk, seconds))
    finally:
        node.stop()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    chunks, size = grown["kera_chunks_appended_total"], grown["kera_appended_bytes_total"]
    cpu = {}
    for group, (user, system) in ended.items():
        then = threads.get(group, [0, 0])
        cpu[group] = [(now - past) * 1e9 / TICKS_PER_S for now, past in zip((user, system), then)]
    # Memory that is touched ahead is touched once in the life of the arena: it is no cost of a chunk.
    ahead = sum(cpu.get("kera-warm", [0]))
    ns = sum(map(sum, cpu.values())) - ahead
    cycles = counts.get("cycles", 0) * ns / (ns + ahead) or ns * clock_hz() / 1e9
    calls = counts.get("sys_enter", 0)
    named = {call: counts.get(call, 0) for call in CALLS if counts.get(call, 0) > 0}
    return {
        "mode": mode,
        "chunk": chunk,
        "chunks": chunks,
        "bytes": size,
        "records_per_chunk": grown["kera_records_appended_total"] / chunks,
        "chunks_per_request": chunks / max(grown["kera_write_requests_total"], 1),
        "ns_per_chunk": ns / chunks,
        "ns_per_byte": ns / size,
        "touching_ahead_ns_per_chunk": ahead / chunks,
        "cycles_counted": bool(counts.get("cycles")),
        "cycles_per_chunk": cycles / chunks,
        "cycles_per_byte": cycles / size,
        "cpu_ns_per_chunk": {group: [round(part / chunks, 1) for part in both] for group, both in cpu.items() if sum(both) / ns > 0.002},
        "calls_per_chunk": calls / chunks,
        "calls_per_mib": calls / (size / (1 << 20)),
        "calls_per_1000_chunks": {call: 1000 * count / chunks for call, count in named.items()},
        "faults_per_1000_chunks": 1000 * counts.get("page-faults", 0) / chunks,
        "switches_per_1000_chunks": 1000 * counts.get("context-switches", 0) / chunks,
        "written_to_disk": grown["kera_store_written_bytes_total"] / size,
        "sent_to_consumers": (grown["kera_pushed_bytes_total"] + grown["kera_read_bytes_total"]) / size,
        "shares": shares,
        "symbols": symbols,
    }


def show(budget):
    how = "counted" if budget["cycles_counted"] else "time at the clock's rate: this machine counts none"
    print(f"\n{budget['mode']}, chunks of {budget['chunk']}: {budget['chunks']:.0f} chunks, {budget['bytes'] / 1e6:.0f} MB, "
          f"{budget['records_per_chunk']:.1f} records a chunk, {budget['chunks_per_request']:.1f} chunks a request")
    print(f"  CPU            {budget['ns_per_chunk']:.0f} ns a chunk, {budget['ns_per_byte']:.3f} ns a byte, "
          f"and {budget['touching_ahead_ns_per_chunk']:.0f} ns a chunk to touch memory ahead")
    print(f"  cycles         {budget['cycles_per_chunk']:.0f} a chunk, {budget['cycles_per_byte']:.2f} a byte ({how})")
    for group, (user, system) in sorted(budget["cpu_ns_per_chunk"].items(), key=lambda one: -sum(one[1])):
        print(f"    {group:<14} {user:.0f} ns a chunk outside the kernel, {system:.0f} in it")
    calls = ", ".join(f"{call} {count:.1f}" for call, count in sorted(budget["calls_per_1000_chunks"].items(), key=lambda one: -one[1]) if count >= 0.05)
    print(f"  system calls   {1000 * budget['calls_per_chunk']:.1f} in 1000 chunks, {budget['calls_per_mib']:.2f} a MiB; {calls}")
    print(f"  page faults    {budget['faults_per_1000_chunks']:.2f} in 1000 chunks; switches {budget['switches_per_1000_chunks']:.1f}")
    print(f"  bytes          {budget['written_to_disk']:.2f} to disk and {budget['sent_to_consumers']:.2f} to consumers for each appended")
    for part, share in sorted(budget["shares"].items(), key=lambda one: -one[1]):
        print(f"    {share:5.1f} %  {part}: {share / 100 * budget['ns_per_chunk']:.0f} ns a chunk, {share / 100 * budget['ns_per_byte']:.4f} a byte")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not shutil.which("perf"):
        sys.exit("perf is missing (Debian: apt-get install linux-perf)")
    budgets = []
    for mode, chunk in SHAPES:
        budgets.append(one(args.kera, mode, chunk, args.seconds))
        if not args.json:
            show(budgets[-1])
            sys.stdout.flush()
    if args.json:
        print(json.dumps(budgets, indent=1))


main()
