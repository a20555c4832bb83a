"""Kafka Streams counts words exactly once in a node, while both are killed; then the counts are compared with the right ones.

usage: wordcount.py KERA [cluster]

cluster: three nodes, with three copies of every topic; one of them is killed, and started again when others have taken over.

Needs java 17, javac and Maven, which fetches the jars into KERA_PEERS (default ~/.cache/kera-peers)/streams. The state is
RocksDB's; at the last turn it is deleted and restored from the changelog.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.environ.get("KERA_PEERS", os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "kera-peers"))
LIB = os.path.join(PEERS, "streams", "lib")
KERA = sys.argv[1]
CLUSTER = sys.argv[2:] == ["cluster"]
# Lines and seed of each turn: whole, the application is killed, the node is killed, the application is killed and its state lost.
TURNS = [(2000, 1), (6000, 2), (6000, 3), (6000, 4)]


def build(classes):
    if not os.path.isdir(LIB):
        part = LIB + ".part"
        shutil.rmtree(part, ignore_errors=True)
        pom = ["--file", os.path.join(HERE, "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        subprocess.run(["mvn", "--quiet", "--batch-mode", *pom], check=True, stdout=sys.stderr)
        os.rename(part, LIB)
    subprocess.run(["javac", "-cp", f"{LIB}/*", "-d", classes, os.path.join(HERE, "WordCount.java")], check=True)


class Node:
    def __init__(self, place):
        self.place = place
        self.memory = tempfile.mkdtemp(dir="/dev/shm")
        self.port = "0"
        self.start()

    def start(self):
        log = os.path.join(self.place, "log")
        begun = os.path.getsize(log) if os.path.exists(log) else 0
        command = [KERA, "serve", "--data", os.path.join(self.place, "data"), "--arena-dir", self.memory, "--arena-bytes", "256MiB"]
        command += ["--listen", "127.0.0.1:0", "--http-listen", "none", "--log-format", "json"]
        with open(log, "ab") as out:
            self.process = subprocess.Popen([*command, "--kafka-listen", f"127.0.0.1:{self.port}"], stdout=out, stderr=out)
        for _ in range(300):
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(begun)
                ready = re.search(r'"message":"ready".*"kafka":"([^"]*)"', file.read())
            if ready:
                self.address = ready[1]
                self.port = self.address.rsplit(":", 1)[1]
                return
            time.sleep(0.1)
        sys.exit("the node does not start")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.memory, ignore_errors=True)


class Cluster:
    """Three nodes. The one that is killed is the second: it coordinates and leads a third of everything."""

    def __init__(self, place):
        self.place = place
        self.port = 20000 + os.getpid() % 1000 * 9
        self.memory = tempfile.mkdtemp(dir="/dev/shm")
        self.processes = [self.run(number) for number in range(3)]
        self.address = ",".join(f"127.0.0.1:{self.port + 3 + number}" for number in range(3))
        asked = [KERA, "status", "--json", "--connect", f"127.0.0.1:{self.port}"]
        for _ in range(300):
            told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            if len(re.findall(r'"state": *"live"', told)) == 3:
                return
            time.sleep(0.1)
        sys.exit("the nodes do not start")

    def run(self, number):
        own = os.path.join(self.memory, str(number))
        os.makedirs(own, exist_ok=True)
        command = [KERA, "serve", "--data", os.path.join(self.place, f"data-{number}"), "--arena-dir", own, "--arena-bytes", "256MiB"]
        command += ["--http-listen", "none", "--log-format", "json", "--node", str(number + 1)]
        listen = {"listen": number, "kafka-listen": 3 + number, "cluster-listen": 6 + number}
        command += [word for name, at in listen.items() for word in (f"--{name}", f"127.0.0.1:{self.port + at}")]
        if number:
            command += ["--join", f"127.0.0.1:{self.port + 6}"]
        with open(os.path.join(self.place, f"log-{number}"), "ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out)

    def kill(self):
        self.processes[1].send_signal(signal.SIGKILL)
        self.processes[1].wait()

    def start(self):
        time.sleep(3)
        self.processes[1] = self.run(1)

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.memory, ignore_errors=True)


def main():
    with tempfile.TemporaryDirectory() as place:
        build(os.path.join(place, "classes"))
        java = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        java += ["-cp", f"{LIB}/*:{place}/classes", "WordCount"]
        if CLUSTER:
            os.environ["COPIES"] = "3"
        node = Cluster(place) if CLUSTER else Node(place)
        output = os.path.join(place, "streams.log")
        app = []

        def words(*arguments):
            return subprocess.run([*java, *map(str, arguments)], check=True, capture_output=True, text=True).stdout

        def start():
            # One that was killed before holds its partitions until its session ends.
            with open(output, "ab") as out:
                app.append(subprocess.Popen([*java, "run", node.address, f"{place}/state", cleanup], stdout=out, stderr=out))
            for _ in range(600):
                if len(told("state RUNNING")) >= len(app):
                    return
                time.sleep(0.1)
            sys.exit("the application does not run")

        def kill():
            app[-1].send_signal(signal.SIGKILL)
            app[-1].wait()

        def told(pattern):
            with open(output, encoding="utf-8", errors="replace") as file:
                return re.findall(pattern, file.read())

        try:
            topics = words("topics", node.address).strip()
            cleanup = topics.split()[0]
            print(f"changelog with cleanup.policy={topics}", flush=True)
            start()
            for number, (lines, seed) in enumerate(TURNS):
                writer = threading.Thread(target=words, args=("write", node.address, lines, seed, 100 if number else 0))
                writer.start()
                time.sleep(3 if number else 0)
                if number in (1, 3):
                    kill()
                    if number == 3:
                        shutil.rmtree(f"{place}/state")
                    start()
                elif number == 2:
                    node.kill()
                    node.start()
                writer.join()
            pairs = [str(value) for turn in TURNS for value in turn]
            done = subprocess.run([*java, "check", node.address, *pairs], capture_output=True, text=True, check=False)
            restored = sum(int(count) for count in told(r"restored \S+ (\d+)"))
            killed = f"the application killed twice, {'one of three nodes' if CLUSTER else 'the node'} once"
            print(f"{killed}; {restored} records restored from the changelog; {done.stdout.strip()}{done.stderr[-500:]}")
            left, offsets = map(int, words("left", node.address).split(" of "))
            until = time.time() + (0 if CLUSTER else 60)
            while cleanup == "compact" and left > offsets / 4 and time.time() < until:
                time.sleep(2)
                left, offsets = map(int, words("left", node.address).split(" of "))
            print(f"changelog: {left} records left of {offsets} offsets", flush=True)
            for error in told(r"error (.*)")[:5]:
                print(f"told by a thread that was replaced: {error}")
            # What is in another owner's groups is compacted by nobody.
            is_compacted = CLUSTER or cleanup != "compact" or left <= offsets / 4
            sys.exit(0 if done.returncode == 0 and restored > 0 and is_compacted else 1)
        finally:
            if app:
                kill()
            node.end()
            if os.environ.get("KEEP"):
                shutil.copytree(place, os.environ["KEEP"], dirs_exist_ok=True)


main()
