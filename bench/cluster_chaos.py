#!/usr/bin/env python3
"""Torments a cluster of three nodes while `kera verify` writes to it, and proves that nothing acknowledged is lost, doubled or reordered.

    bench/cluster_chaos.py target/release/kera --seconds 60 --copies 3 --durability process --seed 1

Every few seconds a node is killed with kill -9 and started again after up to three seconds, stopped in good order and started again,
or frozen (SIGSTOP) for one to two seconds. With `--kinds` also

    kill-all, stop-all   all nodes at once, by kill -9 or in good order
    power-all            kill-all, and what all nodes had in memory is gone, as after a loss of power: only `--durability power` survives it. It comes once more when all was
                         written, before it is read. What disks lose that had not synced it is not tried here: the simulator does (docs/simulator.md)
    move, drain          a streamlet is moved, a node emptied and filled again
    copies               a stream gets another number of copies, two or three
    cut                  a node cannot reach the others for one to nine seconds, nor they it; clients reach all of them
    isolate              nobody reaches a node, clients neither
    full-disk            the disk of a node is filled to the last byte for one to three seconds
    stuck-disk           the disk of a node does not answer for one to twenty seconds: whoever writes to it stands still (`--disk-files`)
    pair-cut             what a node sends to one other node does not arrive for one to nine seconds; all else does, the way back included
    slow-net             the cable of a node to the others is bad for two to six seconds: frames come late, out of order, twice or not at all (by netem, or by
                         bench/cable.py where the kernel has none), or the cable is narrow
    client-net           the same of the cable that clients use
    wipe                 a node is killed, its disk and memory are lost, and one with empty disks takes its place as docs/operations.md has it: at the same
                         addresses under a number of its own, and the old one is given up
    rot                  the disk of a node changes a bit in each MiB or so of segments and copies; nodes look through their disks all the time then
    decay                a node is killed, and its disk changes a bit of each file that says who it is, what the coordinators have decided or what is in other files,
                         each of which is there once more: nobody else's help is needed

With `--kafka-rate N` and Python's `confluent_kafka`, an idempotent Kafka producer writes N records per second to a topic with as many copies meanwhile, and
in the end a Kafka consumer reads that topic and what `kera verify` has written: both have to be whole, in order, and there once, too. With `--kafka-transactions`
another one copies that topic meanwhile, each batch in a transaction with the positions of what it has read: the copy has to have each record once as well, and what a
reader of committed records was shown of it meanwhile, at the same offset.

With `--from-one` all streams begin with one copy and get more when some records are there, before the first torment.

A disk that is lost while copies are made that the loss before has cost is more than is promised. So before a wipe, or changed bits, the script waits until everything has its
copies, and does without them if that takes longer than two minutes; with two copies it waits after one, too, before anything that may cost another copy. A kind that was wanted
and could never be done for that reason is a fault, and so is one that the cluster has refused each of more than five times.

After each torment something has to be acknowledged within a minute, and within two after the last one everything has to have its copies.

Whatever is done to networks and disks, wipe excepted, needs root: the script runs again in network and mount namespaces of its own, where each node has a network of its own with
one cable for clients and one for the other nodes, and a disk of `--disk-mib` in memory, or with `--disk-files` an ext4 in a file, so that syncs and O_DIRECT
meet the disk that TMPDIR is on. Otherwise it needs Python 3 and nothing else; ports on the loopback address are chosen freely. Prints what it did and the verdict;
exit status 1 if a promise was broken.
"""
import argparse
import copy
import glob
import json
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

from kafka_clients import Transactions, Witness, Writer, check_copied, check_verified, check_written, confluent_kafka, create_topic


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
# And a cluster in which so many seconds after a loss somebody still needs the node that is gone.
NEEDED_S = 120
# What has no copies so many seconds after the last torment is not waited for.
WHOLE_S = 120
# A native producer whose time is over has got its last acknowledgement so many seconds later.
LAST_S = 120
# A native producer gives up what is not acknowledged after so many seconds, and members wait for so long for what they lack: no torment lasts as long.
PATIENCE_S = 600
# What needs networks and disks of its own.
PLACES = {"cut", "isolate", "full-disk", "stuck-disk", "pair-cut", "slow-net", "client-net"}
# What the cluster may refuse just now. It is broken if it has refused each of more tries than so many.
REFUSED = {"move", "drain", "copies"}
REFUSED_MAX = 5
KINDS = {"kill", "stop", "freeze", "kill-all", "power-all", "stop-all", "wipe", "rot", "decay"} | REFUSED | PLACES
NAMESPACES = "KERA_CHAOS_NAMESPACES"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def own_namespaces():
    """Runs the script again where its networks and disks are nobody else's, unless it is there."""
    if os.environ.get(NAMESPACES):
        return
    if os.geteuid() != 0:
        sys.exit(f"{', '.join(sorted(PLACES))} and --disk-files need root, for networks and disks of their own; run it as root or leave them out")
    os.environ[NAMESPACES] = "1"
    # The nodes' namespaces and their last processes go with this one's.
    os.execvp("unshare", ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, *sys.argv])


class Place:
    """Where a node runs: a network namespace with two cables, and a small disk."""

    CLIENTS, CLUSTER = "10.77.1", "10.77.2"

    def __init__(self, number, data, mib, image=None):
        self.number, self.data, self.mib, self.image = number, data, mib, image
        # Its process holds the namespace.
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        self.ip("link", "set", "lo", "up")
        for letter, net in (("c", self.CLIENTS), ("n", self.CLUSTER)):
            ip("link", "add", f"{letter}{number}", "type", "veth", "peer", "name", f"{letter}in", "netns", str(self.holder.pid))
            ip("link", "set", f"{letter}{number}", "master", f"br-{letter}", "up")
            self.ip("addr", "add", f"{net}.{number}/24", "dev", f"{letter}in")
            self.ip("link", "set", f"{letter}in", "up")
        os.makedirs(data)
        self.mount()

    def mount(self):
        """An empty disk. That in a file is past the page cache of the disk below it, and its loop device goes with the last who uses it, however the script ends."""
        if not self.image:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.mib}m", "kera-chaos", self.data], check=True)
            return
        with open(self.image, "wb") as image:
            image.truncate(self.mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", self.image], check=True)
        attached = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", self.image], stdout=subprocess.PIPE, text=True)
        if attached.returncode:
            sys.exit(f"--disk-files: {self.image} cannot be made a disk; there have to be loop devices, and TMPDIR has to be on a disk")
        device = attached.stdout.strip()
        try:
            subprocess.run(["mount", "-t", "ext4", "-o", "noatime,discard", device, self.data], check=True)
        finally:
            # From now on it is held by the file system alone.
            subprocess.run(["losetup", "--detach", device], check=True)

    def umount(self):
        subprocess.run(["umount", "--lazy", self.data], check=True)
        if self.image:
            os.unlink(self.image)

    @classmethod
    def networks(cls):
        ip("link", "set", "lo", "up")
        for letter, net in (("c", cls.CLIENTS), ("n", cls.CLUSTER)):
            ip("link", "add", f"br-{letter}", "type", "bridge")
            ip("addr", "add", f"{net}.254/24", "dev", f"br-{letter}")
            ip("link", "set", f"br-{letter}", "up")

    @classmethod
    def slow_net(cls):
        """What can make a cable bad here. Not all kernels have netem."""
        means = []
        for name, words in (("netem", ["delay", "1ms"]), ("tbf", ["rate", "1mbit", "burst", "16kb", "limit", "16kb"])):
            if shutil.which("tc") and not subprocess.run(["tc", "qdisc", "add", "dev", "br-n", "root", name, *words], stderr=subprocess.DEVNULL, check=False).returncode:
                subprocess.run(["tc", "qdisc", "del", "dev", "br-n", "root"], check=True)
                means.append(name)
        if "netem" not in means and os.path.exists("/dev/net/tun"):
            means.append("cable")
        if not means:
            sys.exit("slow-net, client-net: the kernel has neither netem, tbf nor TAP devices, or there is no tc; leave them out of --kinds")
        return means

    def within(self, command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *command]

    def ip(self, *words):
        subprocess.run(self.within(["ip", *words]), check=True)

    def cut(self, letters, seconds):
        for letter in letters:
            ip("link", "set", f"{letter}{self.number}", "down")
        time.sleep(seconds)
        for letter in letters:
            ip("link", "set", f"{letter}{self.number}", "up")

    def cut_from(self, other, seconds):
        """Packets to the other one go to a card that nobody has, which nobody is told: connections stay half open, and new ones wait."""
        address = f"{self.CLUSTER}.{other.number}"
        self.ip("neigh", "replace", address, "lladdr", "02:00:00:00:00:01", "dev", "nin", "nud", "permanent")
        try:
            time.sleep(seconds)
        finally:
            self.ip("neigh", "del", address, "dev", "nin")

    def bad_cable(self, letter, chance, seconds):
        """Has all that a node sends and gets by one of its cables go through one that is bad."""
        mine, bridge = f"{letter}{self.number}", f"br-{letter}"
        delay = chance.randrange(1, 100)
        words = ["--delay-ms", str(delay), "--jitter-ms", str(chance.choice([0, delay // 2, delay])), "--loss", f"{chance.choice([0, 0.005, 0.02, 0.1])}"]
        words += ["--duplicate", f"{chance.choice([0, 0.01, 0.1])}", "--seed", str(chance.randrange(1 << 32))]
        print(f"          cable {' '.join(words)}, {seconds:.1f} s", flush=True)
        ip("link", "add", "br-x", "type", "bridge")
        ip("link", "set", "br-x", "up")
        command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "cable.py"), "br-x", bridge, *words]
        cable = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            if cable.stdout.readline().strip() != "there":
                raise Fault("bench/cable.py has not begun")
            ip("link", "set", mine, "master", "br-x")
            time.sleep(seconds)
        finally:
            ip("link", "set", mine, "master", bridge)
            cable.terminate()
            said = cable.communicate()[0].strip()
            ip("link", "del", "br-x")
        print(f"          {said}", flush=True)

    def slow(self, means, letter, ways, chance, seconds):
        """Makes the cable to the others or to clients bad, both ways or one, and good again."""
        if means == "cable":
            return self.bad_cable(letter, chance, seconds)
        ends = {"to it": ["tc"], "from it": self.within(["tc"])}
        cables = {"to it": f"{letter}{self.number}", "from it": f"{letter}in"}
        if means == "netem":
            delay = chance.randrange(5, 100)
            words = ["delay", f"{delay}ms", f"{delay // 2}ms", "loss", f"{chance.uniform(0.5, 5):.1f}%", "duplicate", "1%", "reorder", "90%", "50%"]
            words += ["rate", f"{chance.randrange(1, 20)}mbit"]
        else:
            # What waits for longer than the queue holds is dropped.
            words = ["rate", f"{int(200 * 50 ** chance.random())}kbit", "burst", "8kb", "limit", f"{chance.randrange(8, 64)}kb"]
        print(f"          {', '.join(ways)}: {means} {' '.join(words)}, {seconds:.1f} s", flush=True)
        made = []
        try:
            for way in ways:
                subprocess.run([*ends[way], "qdisc", "add", "dev", cables[way], "root", means, *words], check=True)
                made.append(way)
            time.sleep(seconds)
        finally:
            for way in made:
                subprocess.run([*ends[way], "qdisc", "del", "dev", cables[way], "root"], check=True)

    def stick(self, seconds):
        """Whatever is written to the disk waits until then; nobody is told of an error."""
        subprocess.run(["fsfreeze", "--freeze", self.data], check=True)
        try:
            time.sleep(seconds)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", self.data], check=True)

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
    def __init__(self, kera, folder, number, ports, arena, place=None, kafka_port=None, scrubs=False):
        self.scrubs = scrubs
        if place:
            hosts = [f"{net}.{number}" for net in (place.CLIENTS, place.CLUSTER)]
            first, ports = f"{place.CLUSTER}.1", [7070] * 3 + [7072] * 3
        else:
            hosts, first = ["127.0.0.1"] * 2, "127.0.0.1"
        self.kera, self.folder, self.arena, self.place = kera, folder, arena, place
        self.address, self.cluster = f"{hosts[0]}:{ports[number - 1]}", f"{hosts[1]}:{ports[2 + number]}"
        self.kafka = f"{hosts[0]}:{kafka_port}" if kafka_port else "none"
        self.named(number, f"{first}:{ports[3]}" if number > 1 else None)

    def named(self, number, join):
        self.number, self.process = number, None
        self.data = self.place.data if self.place else os.path.join(self.folder, f"node-{number}")
        self.log = os.path.join(self.folder, f"node-{number}.log")
        self.command = [self.kera, "serve", "--data", self.data, "--node", str(number)]
        self.command += ["--listen", self.address, "--cluster-listen", self.cluster]
        self.command += ["--kafka-listen", self.kafka, "--http-listen", "none", "--arena-bytes", self.arena]
        self.command += ["--scrub-every", "2s"] if self.scrubs else []
        if join:
            self.command += ["--join", join]

    def successor(self, number, join):
        """One with empty disks in the place of this one, whose disk and memory are lost: the addresses stay, the number does not."""
        remove(self.data)
        if self.place:
            self.place.umount()
            self.place.mount()
        new = copy.copy(self)
        new.named(number, join)
        return new

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


def forget(folder):
    """Removes the memory that killed nodes have left behind, of those whose data is in this folder."""
    for link in glob.glob("/dev/shm/kera-*.data"):
        if os.path.join(os.readlink(link), "").startswith(os.path.join(folder, "")):
            for path in (link, link.removesuffix(".data") + ".arena"):
                if os.path.lexists(path):
                    os.unlink(path)


def remove(folder):
    """Removes the folder of nodes that have ended, or that of one, and the memory that killed ones have left behind."""
    forget(folder)
    shutil.rmtree(folder, ignore_errors=True)


def state_after(kera, words, connect):
    """How what was to be moved is then, in a word. None: it was refused, as by a node that is lost just now, or takes long, as it may while disks are full; both are fine."""
    try:
        asked = subprocess.run([kera, *words, "--json", *connect], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        print(f"          {' '.join(words)} is not over after 60 s", flush=True)
        return None
    return json.loads(asked.stdout)["state"] if asked.returncode == 0 else None


def move(kera, nodes, node, kind, chance):
    """Moves a streamlet to a node, or to another one if that owns it already, or all away from it. Whether something has moved."""
    connect = ["--connect", ",".join(one.address for one in nodes)]
    if kind == "drain":
        words = ["node", "drain", str(node.number)]
        state = state_after(kera, words, connect)
        undone = subprocess.run([kera, *words, "--undo", *connect], stdout=subprocess.DEVNULL, timeout=120, check=False)
        if undone.returncode:
            raise Fault(f"{' '.join(words)} --undo ended with exit status {undone.returncode}")
        return state == "drained"
    others, streamlet = [one for one in nodes if one is not node], f"verify/{chance.randrange(6)}"
    for to in [node, *chance.sample(others, len(others))]:
        state = state_after(kera, ["streamlet", "move", streamlet, "--to", str(to.number)], connect)
        if state != "there":
            return state == "moved"
        print(f"          node {to.number} owns {streamlet} already", flush=True)
    return False


def described(nodes):
    """The cluster as the first node that answers knows it."""
    for node in nodes:
        try:
            asked = subprocess.run([node.kera, "status", "--json", "--connect", node.address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10)
        except subprocess.TimeoutExpired:
            continue
        if asked.returncode == 0:
            return json.loads(asked.stdout).get("cluster", {})
    return {}


def lacking(nodes):
    """What there is not of a cluster in which everything has its copies and nobody recovers anything, in words; nothing if it is there."""
    cluster = described(nodes)
    if not cluster:
        return "no node says how the cluster is"
    lacks = [f"{name} is {cluster[name]}" for name in ("waiting_streamlets", "moves_under_way") if cluster[name]]
    lacks += [f"of {change['streamlets']} streamlets of {change['stream']} {change['there']} have {change['wanted']} copies" for change in cluster["copy_changes"]]
    there, wanted = {node["node"] for node in cluster["nodes"]}, {node.number for node in nodes}
    if there != wanted:
        lacks.append(f"the nodes are {sorted(there)}, not {sorted(wanted)}")
    for node in cluster["nodes"]:
        said = [node["state"]] if node["state"] == "lost" else []
        said += [] if node["votes"] else ["it has no vote"]
        copies = node.get("copies")
        said += [f"{name} is {copies[name]}" for name in ("under_replicated_blocks", "rebuild_left_bytes") if copies[name]] if copies else ["it does not say"]
        if said + node["problems"]:
            lacks.append(f"node {node['node']}: {', '.join(said + node['problems'])}")
    return "; ".join(lacks)


def is_whole(nodes, is_over=lambda: False):
    """Waits until everything has its copies. Two looks have to say so: what a torment has cost is not known in the same moment."""
    began, good, lacks = time.monotonic(), 0, ""
    while good < 2 and time.monotonic() < began + WHOLE_S and not is_over():
        now = lacking(nodes)
        good, lacks = (0, now) if now else (good + 1, lacks)
        time.sleep(1)
    took = time.monotonic() - began
    if good < 2:
        print(f"          not everything has its copies after {took:.0f} s: {lacks}", flush=True)
    elif took > 5:
        print(f"          everything has its copies after {took:.0f} s", flush=True)
    return good == 2


def wipe(nodes, node, chance, wait):
    """Loses a node's disk and memory and replaces it. The old number is asked to go after `wait` seconds, until nobody needs anything of it."""
    node.signal(signal.SIGKILL)
    node.has_ended()
    others = [one for one in nodes if one is not node]
    time.sleep(chance.uniform(0, 3))
    new = node.successor(max(one.number for one in nodes) + 1, chance.choice(others).cluster)
    nodes[nodes.index(node)] = new
    print(f"          node {new.number} in the place of node {node.number}", flush=True)
    new.start()
    new.wait()
    time.sleep(wait)
    began = time.monotonic()
    remove_it = [node.kera, "node", "remove", str(node.number), "--connect", ",".join(one.address for one in nodes)]
    while True:
        removed = subprocess.run(remove_it, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if removed.returncode == 0:
            break
        if time.monotonic() > began + NEEDED_S:
            raise Fault(f"node {node.number} cannot be given up {NEEDED_S} s after its disks were lost: {removed.stdout.strip()}")
        time.sleep(0.5)
    print(f"          node {node.number} given up after {wait + time.monotonic() - began:.1f} s", flush=True)


def rot(nodes, node, chance):
    """Changes a bit here and there of what a node has stored, and waits until the node has looked through its disk and everything has its copies."""
    changed = 0
    for folder, end, front in (("containers", ".kera", 8192), ("replicas", ".replica", 4096)):
        for path in sorted(glob.glob(os.path.join(node.data, folder, f"*{end}"))):
            # What a backup writes to at the moment may not be acknowledged yet, and then this would be one disk more that is lost.
            if end == ".replica" and os.path.getmtime(path) > time.time() - 5:
                continue
            try:
                with open(path, "r+b") as file:
                    size = os.path.getsize(path)
                    for at in (chance.randrange(front, size) for _ in range(1 + size // (1 << 20)) if size > front):
                        file.seek(at)
                        byte = file.read(1)
                        if byte and byte != b"\0":
                            file.seek(at)
                            file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))
                            changed += 1
                    os.fsync(file.fileno())
            except FileNotFoundError:
                pass
    before, began = rounds(node), time.monotonic()
    while rounds(node) < before + 2:
        if time.monotonic() > began + WHOLE_S:
            raise Fault(f"node {node.number} still finds something on its disk {WHOLE_S} s after {changed} bits were changed; look at {node.log}")
        time.sleep(0.2)
    # Owners ask backups each quarter of a minute what they have.
    time.sleep(16)
    print(f"          {changed} bits changed, node {node.number} finds nothing more after {time.monotonic() - began - 16:.1f} s", flush=True)
    if not is_whole(nodes):
        raise Fault(f"not everything has its copies {WHOLE_S} s after bits of node {node.number} were changed")


def flip(path, start, end, chance):
    """Changes a bit of a file between two of its bytes."""
    with open(path, "r+b") as file:
        file.seek(chance.randrange(start, end))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))


def decay(node, chance):
    """Changes bits of a node that does not run, of what it has in two places: in one of the two."""
    changed = 0
    kept_twice = [os.path.join(node.data, "node.json"), *glob.glob(os.path.join(node.data, "raft", "*"))]
    for path in sorted(path for path in kept_twice if not path.endswith((".copy", ".tmp"))):
        path = chance.choice([one for one in (path, path + ".copy") if os.path.exists(one)])
        flip(path, 0, os.path.getsize(path), chance)
        changed += 1
    for path in sorted(glob.glob(os.path.join(node.data, "replicas", "*.replica"))):
        flip(path, 0, 64, chance)
        changed += 1
    for path in sorted(glob.glob(os.path.join(node.data, "containers", "*.kera"))):
        with open(path, "rb") as file:
            pages = range(4096, os.path.getsize(path), 4096)
            indexes = [at for at in pages if file.seek(at) == at and file.read(4) == b"KCBA"]
        # The header, or an index that another one follows.
        places = [0, *indexes[:-1]]
        if indexes:
            at = chance.choice(places)
            flip(path, at, at + 64, chance)
            changed += 1
    print(f"          {changed} bits changed", flush=True)


def rounds(node):
    """How often a node has looked through its disk and has found nothing."""
    with open(node.log, "rb") as log:
        return log.read().count(b"was read, and is what was written")


def change_copies(kera, nodes, args, stream, copies, wait=0):
    """Asks for another number of copies, which may be refused while a node is lost or nobody leads; waits until the stream has them if that is wanted. Whether it was
    taken."""
    connect = ["--connect", ",".join(one.address for one in nodes)]
    alter = [kera, "stream", "alter", stream, "--replication", str(copies), "--no-wait", *connect]
    altered = subprocess.run(alter, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    if altered.returncode:
        # The others are what the command says of a cluster that is not ready.
        passing = ("live nodes to hold copies, and there ", "next: try again in a moment", "no majority of the coordinators")
        if wait or not any(words in altered.stdout for words in passing):
            raise Fault(f"{stream} gets no other number of copies: {altered.stdout.strip()}")
        return False
    until = time.monotonic() + wait
    while wait:
        described = subprocess.run([kera, "stream", "describe", stream, "--json", *connect], stdout=subprocess.PIPE, check=True).stdout
        if json.loads(described)["options"]["replication"] == copies:
            break
        if time.monotonic() > until:
            raise Fault(f"{stream} has not {copies} copies after {wait} s")
        time.sleep(0.1)
    return True


def torment_all(nodes, kind, chance):
    """Ends all nodes and starts them again, one after the other."""
    for one in nodes:
        one.signal(signal.SIGTERM if kind == "stop-all" else signal.SIGKILL)
    for one in nodes:
        one.has_ended()
    for one in nodes if kind == "power-all" else []:
        forget(one.data)
    for one in chance.sample(nodes, len(nodes)):
        one.start()
    for one in nodes:
        one.wait()


def note(done, kind, is_done):
    if not is_done:
        print(f"          no {kind}", flush=True)
    word = kind if is_done else f"no {kind}"
    done[word] = done.get(word, 0) + 1


def never_done(done, kinds):
    """The kinds that were wanted and tried, and to which the cluster never was in the right state: nothing was proved of them."""
    for kind in sorted(kinds):
        tried = done.get(f"no {kind}", 0)
        if kind not in done and tried > (REFUSED_MAX if kind in REFUSED else 0):
            yield f"{kind} could not be done, {tried} times of {tried}: " + ("it was refused, or not over in time" if kind in REFUSED else "not everything had its copies")


def torment(args, nodes, chance, done, is_over, kind=None):
    """One torment, of that kind or by chance."""
    node, kind = chance.choice(nodes), kind or chance.choice(args.kinds.split(","))
    is_done = True
    # With three copies one loss after a wipe is survived, as long as it is not another disk; moves cost none.
    must_be_whole = kind in ("wipe", "rot") or args.least == 2 and not done.keys().isdisjoint({"wipe", "rot"}) and kind not in ("move", "drain", "copies", "full-disk")
    if must_be_whole and not is_whole(nodes, is_over):
        if not is_over():
            note(done, kind, False)
        return
    print(f"{time.strftime('%H:%M:%S')}  {kind}{'' if kind.endswith('all') else f' node {node.number}'}", flush=True)
    if kind.endswith("-all"):
        torment_all(nodes, kind, chance)
    elif kind == "copies":
        is_done = change_copies(node.command[0], nodes, args, chance.choice(args.streams), chance.choice([2, 3]))
    elif kind in ("move", "drain"):
        is_done = move(node.command[0], nodes, node, kind, chance)
    elif kind in ("cut", "isolate"):
        # Some last for longer than a node serves without coordinators.
        node.place.cut("n" if kind == "cut" else "cn", chance.choice([chance.uniform(1, 4), chance.uniform(6, 9)]))
    elif kind == "pair-cut":
        other = chance.choice([one for one in nodes if one is not node])
        print(f"          from node {other.number}", flush=True)
        node.place.cut_from(other.place, chance.choice([chance.uniform(1, 4), chance.uniform(6, 9)]))
    elif kind in ("slow-net", "client-net"):
        letter = "n" if kind == "slow-net" else "c"
        node.place.slow(chance.choice(args.means), letter, chance.choice([["to it"], ["from it"], ["to it", "from it"]]), chance, chance.uniform(2, 6))
    elif kind == "wipe":
        wipe(nodes, node, chance, args.give_up_after)
    elif kind == "rot":
        rot(nodes, node, chance)
    elif kind == "full-disk":
        node.place.fill(chance.uniform(1, 3))
    elif kind == "stuck-disk":
        # Some last for longer than a node whose disk does not answer says that it lives.
        node.place.stick(chance.choice([chance.uniform(1, 5), chance.uniform(11, 20)]))
        node.wait()
    elif kind == "freeze":
        node.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(1, 2))
        node.signal(signal.SIGCONT)
    else:
        node.signal(signal.SIGTERM if kind == "stop" else signal.SIGKILL)
        node.has_ended()
        if kind == "decay":
            decay(node, chance)
        time.sleep(chance.uniform(0, 3))
        node.start()
        node.wait()
    note(done, kind, is_done)


def goes_on(producing, acks):
    """Waits until something is acknowledged that was not before, if there is a producer."""
    with open(acks, "rb") as log:
        log.seek(0, os.SEEK_END)
        until = time.monotonic() + SERVE_S
        while producing.poll() is None and not any(line.startswith(b"ack ") for line in log.readlines()):
            if time.monotonic() > until:
                raise Fault(f"nothing is acknowledged {SERVE_S} s after that")
            time.sleep(0.1)


def attempt(call):
    """What is broken of what is called: nothing, or the node that is at fault."""
    try:
        call()
    except Fault as fault:
        print(f"{time.strftime('%H:%M:%S')}  BROKEN: {fault}; no more torments, what clients find comes at the end", flush=True)
        return [str(fault)]
    return []


def torment_while(running, until, args, nodes, chance, done, acks=None):
    """Torments nodes as long as `running` runs, at most until then, and looks after each torment whether it goes on if it is the producer with this log. What is
    broken: nothing, or the node that is at fault."""
    def is_over():
        return time.monotonic() >= until or running.poll() is not None

    def torments():
        while not is_over():
            torment(args, nodes, chance, done, is_over)
            if acks:
                goes_on(running, acks)
            time.sleep(args.pause)

    return attempt(torments)


def output_of(what, process, wait_s, broken):
    """What a client printed, once it has ended; one that has not after so many seconds is ended."""
    try:
        return process.communicate(timeout=wait_s)[0].strip()
    except subprocess.TimeoutExpired:
        broken.append(f"{what} has not ended {wait_s} s after its time")
        process.kill()
        return process.communicate()[0].strip()


def reads_nothing_again(consume, nodes, kind, chance):
    """What an application has read to the end and has committed does not come again, whatever all nodes go through in between."""
    def read():
        # What is leased to a member that others have lost sight of is given to nobody.
        describe, until = [consume[0], "application", "describe", "audit", "--stream", "verify", "--json", *consume[-2:]], time.monotonic() + LAST_S
        while (told := subprocess.run(describe, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)).returncode or json.loads(told.stdout)["members"]:
            if time.monotonic() > until:
                raise Fault(f"an application whose members have all gone still has some after {LAST_S} s, or cannot be described")
            time.sleep(0.2)
        consumed = subprocess.run(["timeout", str(LAST_S), *consume], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if consumed.returncode:
            raise Fault(f"an application cannot read to the end within {LAST_S} s: exit status {consumed.returncode}, {consumed.stderr.decode(errors='replace').strip()}")
        return consumed.stdout

    read()
    print(f"{time.strftime('%H:%M:%S')}  {kind}, when an application has read everything", flush=True)
    torment_all(nodes, kind, chance)
    if again := read():
        raise Fault(f"an application had read everything, and is given {len(again)} bytes of it again after {kind}")


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
    parser.add_argument("--record-bytes", type=int, default=100, help="bytes of a native record")
    parser.add_argument("--chunk-bytes", default="4KiB", help="bytes of a native chunk: with many large ones blocks between nodes are large")
    parser.add_argument("--linger-ms", type=int, default=0, help="so long a native chunk waits for more records")
    parser.add_argument("--patience-seconds", type=int, default=PATIENCE_S,
                        help="after so long without an acknowledgement the native producer gives records up, which may be there or not, and goes on")
    parser.add_argument("--arena-bytes", default="512MiB")
    parser.add_argument("--disk-mib", type=int, default=2048, help="size of each node's disk, where it has one of its own")
    parser.add_argument("--give-up-after", type=float, default=0, help="seconds from the start of a node in the place of one that was wiped until that one is given up")
    parser.add_argument("--disk-files", action="store_true", help="each node's disk is an ext4 in a file, not memory; needs root and loop devices")
    parser.add_argument("--members", type=int, default=0,
                        help="so many members of an application read it all as well, while the torments go on")
    parser.add_argument("--kafka-rate", type=int, default=0, help="records per second of a Kafka producer; 0: no Kafka clients")
    parser.add_argument("--kafka-transactions", action="store_true", help="copy what that one writes in transactions")
    parser.add_argument("--from-one", action="store_true", help="streams begin with one copy and get more before the first torment")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep data and logs")
    args = parser.parse_args()
    kinds = set(args.kinds.split(","))
    if kinds - KINDS:
        parser.error(f"--kinds: there is no {', '.join(sorted(kinds - KINDS))}; there are {', '.join(sorted(KINDS))}")
    if "stuck-disk" in kinds and not args.disk_files:
        parser.error("--kinds: stuck-disk is for disks that are files; add --disk-files")
    if "power-all" in kinds and args.durability != "power":
        parser.error("--kinds: power-all takes what is acknowledged with --durability process; add --durability power")
    if args.kafka_rate and not confluent_kafka:
        parser.error("--kafka-rate: this Python has no confluent_kafka; install it, or leave the flag out")
    if args.kafka_transactions and not args.kafka_rate:
        parser.error("--kafka-transactions: there is nothing to copy; say with --kafka-rate how much is to be written")
    if args.disk_files and not shutil.which("mkfs.ext4"):
        parser.error("--disk-files: there is no mkfs.ext4; install e2fsprogs, or leave the flag out")
    places = args.disk_files or not PLACES.isdisjoint(kinds)
    if places:
        own_namespaces()
    chance, done = random.Random(args.seed), {}
    # As many copies as there may be of something.
    args.least = 2 if "copies" in kinds else args.copies
    args.streams = ["verify"] + ["kafka"] * bool(args.kafka_rate) + ["copied"] * args.kafka_transactions
    copies = 1 if args.from_one else args.copies
    folder = tempfile.mkdtemp(prefix="kera-cluster-")
    ports = free_ports(9)
    kera = os.path.abspath(args.kera)
    args.means = None
    if places:
        Place.networks()
    if kinds & {"slow-net", "client-net"}:
        args.means = Place.slow_net()
        print(f"bad cables: by {' and '.join(args.means)}", flush=True)
    at = {}
    for number in (1, 2, 3):
        image = os.path.join(folder, f"disk-{number}.ext4") if args.disk_files else None
        at[number] = Place(number, os.path.join(folder, f"node-{number}"), args.disk_mib, image) if places else None
    nodes = [Node(kera, folder, number, ports, args.arena_bytes, at[number], args.kafka_rate and ports[5 + number], "rot" in kinds)
             for number in (1, 2, 3)]
    bootstrap = ",".join(node.kafka for node in nodes)
    connect = ",".join(node.address for node in nodes)
    failed = True
    try:
        for node in nodes:
            node.start()
            node.wait()
        time.sleep(2)
        acks = os.path.join(folder, "acks")
        create = [kera, "stream", "create", "verify", "--streamlets", "6", "--replication", str(copies)]
        create += ["--durability", args.durability, "--order", args.order, "--connect", connect]
        subprocess.run(create, check=True)
        writer = copier = witness = None
        if args.kafka_rate:
            create_topic(bootstrap, "kafka", 6, copies, {"kera.durability": args.durability})
            writer = Writer(bootstrap, "kafka", args.kafka_rate)
        if args.kafka_transactions:
            create_topic(bootstrap, "copied", 6, copies, {"kera.durability": args.durability})
            copier, witness = Transactions(bootstrap, "kafka", "copied"), Witness(bootstrap, "copied")
        produce = [kera, "verify", "produce", "--log", acks, "--seconds", str(args.seconds), "--rate", str(args.rate)]
        produce += ["--patience-seconds", str(args.patience_seconds), "--record-bytes", str(args.record_bytes)]
        produce += ["--chunk-bytes", args.chunk_bytes, "--linger-ms", str(args.linger_ms)]
        producing = subprocess.Popen(produce + ["--connect", connect], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until = time.monotonic() + args.seconds - 3
        time.sleep(2)
        for stream in args.streams if args.from_one else []:
            change_copies(kera, nodes, args, stream, args.copies, 60)
            print(f"          {stream} has {args.copies} copies", flush=True)
        broken = torment_while(producing, until, args, nodes, chance, done, acks)
        said = output_of("the native producer", producing, max(until + 3 - time.monotonic(), 0) + LAST_S, broken)
        # Whoever has little patience gives up what cannot be written in time; that is no fault then.
        gave_up = args.patience_seconds < PATIENCE_S and "were given up" in said
        print(re.sub(r"; run .*", "", said))
        if not broken and not is_whole(nodes):
            broken.append(f"not everything has its copies {WHOLE_S} s after the last torment")
        if "power-all" in kinds and not broken:
            broken += attempt(lambda: torment(args, nodes, chance, done, lambda: False, "power-all"))
        consume = [kera, "verify", "consume", "--log", acks, "--connect", connect]
        consumed = subprocess.run(consume, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(consumed.stdout.strip()[-2000:])
        if writer:
            writer.end()
            checks = [lambda: check_written(bootstrap, writer), lambda: check_verified(bootstrap, "verify", acks)]
            if copier:
                copier.end()
                witness.end()
                checks.append(lambda: check_copied(bootstrap, copier, witness))
            for check in checks:
                found, said = check()
                broken += found
                print(f"{said}: {'BROKEN' if found else 'all is there once, in order'}", flush=True)
        shared = 0
        if args.members > 0:
            members = subprocess.Popen(consume + ["--application", "audit", "--consumers", str(args.members), "--patience-seconds", str(PATIENCE_S)],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            broken += torment_while(members, float("inf"), args, nodes, chance, done)
            print(output_of("the application", members, LAST_S, broken)[-2000:])
            shared = members.returncode
            for kind in [one for one in ("power-all", "kill-all") if one in kinds and not broken][:1]:
                read = [kera, "consume", "verify", "--application", "audit", "--from", "earliest", "--connect", connect]
                broken += attempt(lambda: reads_nothing_again(read, nodes, kind, chance))
        broken += never_done(done, kinds)
        print("\n".join(broken[:20]), end="\n" if broken else "")
        print(f"copies {args.copies}, durability {args.durability}, order {args.order}, seed {args.seed}: "
              + ", ".join(f"{count} x {kind}" for kind, count in sorted(done.items())))
        failed = consumed.returncode != 0 or (producing.returncode != 0 and not gave_up) or shared != 0 or broken
    finally:
        stop_all(nodes)
        if failed or args.keep:
            print(f"logs and data are in {folder}")
        else:
            for place in filter(None, at.values()):
                place.umount()
            remove(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
