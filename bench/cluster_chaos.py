#!/usr/bin/env python3
"""Torments a cluster of three nodes while `kera verify` writes to it, and proves that nothing acknowledged is lost, doubled or reordered.

    bench/cluster_chaos.py target/release/kera --seconds 60 --copies 3 --durability process --seed 1

Every few seconds a node is killed with kill -9 and started again after up to three seconds, stopped in good order and started again,
or frozen (SIGSTOP) for one to two seconds. With `--kinds` also

    kill-all, stop-all   all nodes at once, by kill -9 or in good order
    move, drain          a streamlet is moved, a node emptied and filled again
    cut                  a node cannot reach the others for one to nine seconds, nor they it; clients reach all of them
    isolate              nobody reaches a node, clients neither
    full-disk            the disk of a node is filled to the last byte for one to three seconds

With `--kafka-rate N` and Python's `confluent_kafka`, an idempotent Kafka producer writes N records per second to a topic with as many copies meanwhile, and
in the end a Kafka consumer reads that topic and what `kera verify` has written: both have to be whole, in order, and there once, too. With `--kafka-transactions`
another one copies that topic meanwhile, each batch in a transaction with the positions of what it has read: the copy has to have each record once as well.

The last three need root: the script runs again in network and mount namespaces of its own, where each node has a network of its own with one
cable for clients and one for the other nodes, and a disk of `--disk-mib` in memory. Otherwise it needs Python 3 and nothing else; ports on the
loopback address are chosen freely. Prints what it did and the verdict; exit status 1 if a promise was broken.
"""
import argparse
import glob
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from kafka_clients import Transactions, Writer, check_copied, check_verified, check_written, confluent_kafka, create_topic


def free_ports(count):
    """Ports below those that the system takes for connections: one of these might be taken while its node is down."""
    ports, candidates = [], iter(random.SystemRandom().sample(range(12_000, 32_000), 1000))
    while len(ports) < count:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = next(candidates)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports


# A node that was told to stop and still runs after so many seconds is a fault of the program.
STOP_S = 120
# So is one that does not serve so many seconds after it was started.
SERVE_S = 60
NAMESPACES = "KERA_CHAOS_NAMESPACES"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def own_namespaces():
    """Runs the script again where its networks and disks are nobody else's, unless it is there."""
    if os.environ.get(NAMESPACES):
        return
    if os.geteuid() != 0:
        sys.exit("cut, isolate and full-disk need root, for networks and disks of their own; run it as root or leave them out of --kinds")
    os.environ[NAMESPACES] = "1"
    # The nodes' namespaces and their last processes go with this one's.
    os.execvp("unshare", ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, *sys.argv])


class Place:
    """Where a node runs: a network namespace with two cables, and a small disk."""

    CLIENTS, CLUSTER = "10.77.1", "10.77.2"

    def __init__(self, number, data, mib):
        self.number, self.data = number, data
        # Its process holds the namespace.
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        inside = ["nsenter", "-t", str(self.holder.pid), "-n", "ip"]
        subprocess.run([*inside, "link", "set", "lo", "up"], check=True)
        for letter, net in (("c", self.CLIENTS), ("n", self.CLUSTER)):
            ip("link", "add", f"{letter}{number}", "type", "veth", "peer", "name", f"{letter}in", "netns", str(self.holder.pid))
            ip("link", "set", f"{letter}{number}", "master", f"br-{letter}", "up")
            subprocess.run([*inside, "addr", "add", f"{net}.{number}/24", "dev", f"{letter}in"], check=True)
            subprocess.run([*inside, "link", "set", f"{letter}in", "up"], check=True)
        os.makedirs(data)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "kera-chaos", data], check=True)

    @classmethod
    def networks(cls):
        ip("link", "set", "lo", "up")
        for letter, net in (("c", cls.CLIENTS), ("n", cls.CLUSTER)):
            ip("link", "add", f"br-{letter}", "type", "bridge")
            ip("addr", "add", f"{net}.254/24", "dev", f"br-{letter}")
            ip("link", "set", f"br-{letter}", "up")

    def within(self, command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *command]

    def cut(self, letters, seconds):
        for letter in letters:
            ip("link", "set", f"{letter}{self.number}", "down")
        time.sleep(seconds)
        for letter in letters:
            ip("link", "set", f"{letter}{self.number}", "up")

    def fill(self, seconds):
        path = os.path.join(self.data, "filler")
        try:
            with open(path, "wb", buffering=0) as filler:
                for size in (1 << 20, 4096):
                    try:
                        while filler.write(b"\0" * size) == size:
                            pass
                    except OSError:
                        pass
            time.sleep(seconds)
        finally:
            os.unlink(path)


class Fault(SystemExit):
    """A node does not do what it has to, whatever the torments are."""


class Node:
    def __init__(self, kera, folder, number, ports, arena, place=None, kafka_port=None):
        data = os.path.join(folder, f"node-{number}")
        if place:
            hosts = [f"{net}.{number}" for net in (place.CLIENTS, place.CLUSTER)]
            first, ports = f"{place.CLUSTER}.1", [7070] * 3 + [7072] * 3
        else:
            hosts, first = ["127.0.0.1"] * 2, "127.0.0.1"
        self.number, self.address, self.place = number, f"{hosts[0]}:{ports[number - 1]}", place
        self.kafka = f"{hosts[0]}:{kafka_port}" if kafka_port else "none"
        self.log = os.path.join(folder, f"node-{number}.log")
        self.command = [kera, "serve", "--data", data, "--node", str(number)]
        self.command += ["--listen", self.address, "--cluster-listen", f"{hosts[1]}:{ports[2 + number]}"]
        self.command += ["--kafka-listen", self.kafka, "--http-listen", "none", "--arena-bytes", arena]
        if number > 1:
            self.command += ["--join", f"{first}:{ports[3]}"]
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            command = self.place.within(self.command) if self.place else self.command
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self, seconds=SERVE_S):
        host, port = self.address.split(":")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.02)
        ended = self.process.poll()
        how = f"does not serve after {seconds} s" if ended is None else f"ended with exit status {ended}"
        raise Fault(f"node {self.number} {how}; look at {self.log}")

    def has_ended(self):
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired as late:
            raise Fault(f"node {self.number} has not stopped after {STOP_S} s; look at {self.log}") from late

    def signal(self, what):
        self.process.send_signal(what)


def stop_all(nodes):
    """Stops all that run, frozen or not, the first node last."""
    for node in reversed(nodes):
        if node.process and node.process.poll() is None:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
    for node in nodes:
        if node.process:
            try:
                node.process.wait(60)
            except subprocess.TimeoutExpired:
                node.process.kill()


def remove(folder):
    """Removes the folder of nodes that have ended, and the memory that killed ones have left behind."""
    for link in glob.glob("/dev/shm/kera-*.data"):
        if os.readlink(link).startswith(os.path.join(folder, "")):
            for path in (link, link.removesuffix(".data") + ".arena"):
                if os.path.lexists(path):
                    os.unlink(path)
    shutil.rmtree(folder, ignore_errors=True)


def move(kera, nodes, node, kind, chance):
    """Moves a streamlet to a node, or all away from it. One that is lost just now refuses, and it may take long while disks are full: both are fine."""
    connect = ["--connect", ",".join(one.address for one in nodes)]
    words = ["streamlet", "move", f"verify/{chance.randrange(6)}", "--to", str(node.number)]
    if kind == "drain":
        words = ["node", "drain", str(node.number)]
    try:
        subprocess.run([kera, *words, *connect], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        print(f"          {' '.join(words)} is not over after 60 s", flush=True)
    if kind == "drain":
        undone = subprocess.run([kera, *words, "--undo", *connect], stdout=subprocess.DEVNULL, timeout=120, check=False)
        if undone.returncode:
            raise Fault(f"{' '.join(words)} --undo ended with exit status {undone.returncode}")


def torment(nodes, kinds, chance, done):
    node, kind = chance.choice(nodes), chance.choice(kinds)
    print(f"{time.strftime('%H:%M:%S')}  {kind}{'' if kind.endswith('all') else f' node {node.number}'}", flush=True)
    if kind in ("kill-all", "stop-all"):
        for one in nodes:
            one.signal(signal.SIGKILL if kind == "kill-all" else signal.SIGTERM)
        for one in nodes:
            one.has_ended()
        for one in chance.sample(nodes, len(nodes)):
            one.start()
        for one in nodes:
            one.wait()
    elif kind in ("move", "drain"):
        move(node.command[0], nodes, node, kind, chance)
    elif kind in ("cut", "isolate"):
        # Some last for longer than a node serves without coordinators.
        node.place.cut("n" if kind == "cut" else "cn", chance.choice([chance.uniform(1, 4), chance.uniform(6, 9)]))
    elif kind == "full-disk":
        node.place.fill(chance.uniform(1, 3))
    elif kind == "freeze":
        node.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(1, 2))
        node.signal(signal.SIGCONT)
    else:
        node.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        node.has_ended()
        time.sleep(chance.uniform(0, 3))
        node.start()
        node.wait()
    done[kind] = done.get(kind, 0) + 1


def torment_while(running, until, args, nodes, chance, done):
    """Torments nodes as long as `running` runs, at most until then. What is broken: nothing, or the node that is at fault."""
    try:
        while time.monotonic() < until and running.poll() is None:
            torment(nodes, args.kinds.split(","), chance, done)
            time.sleep(args.pause)
    except Fault as fault:
        print(f"{time.strftime('%H:%M:%S')}  BROKEN: {fault}; no more torments, what clients find comes at the end", flush=True)
        return [str(fault)]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kera", help="the program")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--copies", type=int, default=3, choices=[2, 3])
    parser.add_argument("--durability", default="process", choices=["process", "power"])
    parser.add_argument("--order", default="lane", choices=["lane", "none"])
    parser.add_argument("--kinds", default="kill,kill,stop,freeze", help="what is done, the more often the likelier")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two torments")
    parser.add_argument("--rate", type=int, default=20000, help="records per second")
    parser.add_argument("--arena-bytes", default="512MiB")
    parser.add_argument("--disk-mib", type=int, default=2048, help="size of each node's disk, where it has one of its own")
    parser.add_argument("--members", type=int, default=0,
                        help="so many members of an application read it all as well, while the torments go on")
    parser.add_argument("--kafka-rate", type=int, default=0, help="records per second of a Kafka producer; 0: no Kafka clients")
    parser.add_argument("--kafka-transactions", action="store_true", help="copy what that one writes in transactions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep data and logs")
    args = parser.parse_args()
    known = {"kill", "stop", "freeze", "kill-all", "stop-all", "move", "drain", "cut", "isolate", "full-disk"}
    unknown = set(args.kinds.split(",")) - known
    if unknown:
        parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if args.kafka_rate and not confluent_kafka:
        parser.error("--kafka-rate: this Python has no confluent_kafka; install it, or leave the flag out")
    if args.kafka_transactions and not args.kafka_rate:
        parser.error("--kafka-transactions: there is nothing to copy; say with --kafka-rate how much is to be written")
    places = not {"cut", "isolate", "full-disk"}.isdisjoint(args.kinds.split(","))
    if places:
        own_namespaces()
    chance, done = random.Random(args.seed), {}
    folder = tempfile.mkdtemp(prefix="kera-cluster-")
    ports = free_ports(9)
    kera = os.path.abspath(args.kera)
    if places:
        Place.networks()
    at = {number: Place(number, os.path.join(folder, f"node-{number}"), args.disk_mib) if places else None for number in (1, 2, 3)}
    nodes = [Node(kera, folder, number, ports, args.arena_bytes, at[number], args.kafka_rate and ports[5 + number]) for number in (1, 2, 3)]
    bootstrap = ",".join(node.kafka for node in nodes)
    connect = ",".join(node.address for node in nodes)
    failed = True
    try:
        for node in nodes:
            node.start()
            node.wait()
        time.sleep(2)
        acks = os.path.join(folder, "acks")
        create = [kera, "stream", "create", "verify", "--streamlets", "6", "--replication", str(args.copies)]
        create += ["--durability", args.durability, "--order", args.order, "--connect", connect]
        subprocess.run(create, check=True)
        writer = copier = None
        if args.kafka_rate:
            create_topic(bootstrap, "kafka", 6, args.copies, {"kera.durability": args.durability})
            writer = Writer(bootstrap, "kafka", args.kafka_rate)
        if args.kafka_transactions:
            create_topic(bootstrap, "copied", 6, args.copies, {"kera.durability": args.durability})
            copier = Transactions(bootstrap, "kafka", "copied")
        produce = [kera, "verify", "produce", "--log", acks, "--seconds", str(args.seconds), "--rate", str(args.rate)]
        producing = subprocess.Popen(produce + ["--connect", connect], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until = time.monotonic() + args.seconds - 3
        time.sleep(2)
        broken = torment_while(producing, until, args, nodes, chance, done)
        said = producing.communicate()[0].strip()
        print(re.sub(r"; run .*", "", said))
        consume = [kera, "verify", "consume", "--log", acks, "--connect", connect]
        consumed = subprocess.run(consume, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(consumed.stdout.strip()[-2000:])
        if writer:
            writer.end()
            checks = [lambda: check_written(bootstrap, writer), lambda: check_verified(bootstrap, "verify", acks)]
            if copier:
                copier.end()
                checks.append(lambda: check_copied(bootstrap, copier))
            for check in checks:
                found, said = check()
                broken += found
                print(f"{said}: {'BROKEN' if found else 'all is there once, in order'}", flush=True)
        shared = 0
        if args.members > 0:
            members = subprocess.Popen(consume + ["--application", "audit", "--consumers", str(args.members)],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            broken += torment_while(members, float("inf"), args, nodes, chance, done)
            print(members.communicate()[0].strip()[-2000:])
            shared = members.returncode
        print("\n".join(broken[:20]), end="\n" if broken else "")
        print(f"copies {args.copies}, durability {args.durability}, order {args.order}, seed {args.seed}: "
              + ", ".join(f"{count} x {kind}" for kind, count in sorted(done.items())))
        failed = consumed.returncode != 0 or producing.returncode != 0 or shared != 0 or broken
    finally:
        stop_all(nodes)
        if failed or args.keep:
            print(f"logs and data are in {folder}")
        else:
            for place in filter(None, at.values()):
                subprocess.run(["umount", "--lazy", place.data], check=False)
            remove(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
