"""Two members of a group, of which one is killed (kill -9): what it had goes to the other, and nothing is lost."""

import os
import signal
import subprocess
import sys
import tempfile

from .confluent import rd_admin, rd_create
from .suite import ADDRESS, expect, until

PARTITIONS, COUNT = 6, 600
MEMBER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "member.py")


def shares(group):
    """How many partitions each member has."""
    described = rd_admin().describe_consumer_groups([group])[group].result(10)
    return sorted(len(member.assignment.topic_partitions) if member.assignment else 0 for member in described.members)


def committed(group):
    from confluent_kafka import ConsumerGroupTopicPartitions

    told = rd_admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
    return sum(max(0, place.offset) for place in told.topic_partitions)


class Member:
    def __init__(self, client, topic, protocol, kind):
        self.out, self.errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        command = [sys.executable, MEMBER, client, ADDRESS, topic, protocol]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.out, stderr=self.errors, text=True)
        self.process.stdin.write(f"{kind}\n")
        self.process.stdin.close()

    def lines(self):
        if self.process.poll() not in (None, -signal.SIGKILL):
            self.errors.seek(0)
            raise AssertionError(f"a member ended by itself: {self.errors.read()[-150:]}")
        at = os.fstat(self.out.fileno()).st_size
        # The last one may be on its way.
        whole = os.pread(self.out.fileno(), at, 0).rpartition(b"\n")[0]
        return whole.decode().splitlines()

    def values(self):
        return [line.split(" ", 1)[1] for line in self.lines()]

    def kill(self):
        self.process.kill()
        self.process.wait()


def a_member_is_killed(client, topic, produce, protocol="classic"):
    """`produce(topic, values)` writes values, in turn to each partition.

    Both members commit what is "kept"; the one that is killed has read of what is "lost" and said so to nobody.
    """
    rd_create(topic, PARTITIONS)
    named = {name: [f"{name} {i}" for i in range(COUNT)] for name in ["kept", "lost", "after"]}
    victim, survivor = (Member(client, topic, protocol, kind) for kind in ["victim", "survivor"])
    try:
        until(lambda: shares(topic) == [3, 3], lambda: f"two members share the partitions, {shares(topic)}")
        produce(topic, named["kept"])
        until(lambda: committed(topic) == COUNT, lambda: f"all of it is committed, {committed(topic)}")
        produce(topic, named["lost"])
        until(lambda: "lost" in " ".join(victim.values()), "who will be killed has read more")
        victim.kill()
        # The consumer protocol misses a member after the node's 45 seconds.
        until(lambda: shares(topic) == [PARTITIONS], lambda: f"the other one has all partitions, {shares(topic)}", 90)
        produce(topic, named["after"])
        until(lambda: committed(topic) == 3 * COUNT, lambda: f"everything is committed, {committed(topic)}")
        survivor.lines()
    finally:
        victim.kill()
        survivor.kill()
    found = survivor.values()
    for name in ["lost", "after"]:
        lacking = set(named[name]) - set(found)
        expect(len(lacking), 0, f"records {name!r} that the other one has not read")
    kept = [value for value in [*victim.values(), *found] if value.startswith("kept")]
    expect(sorted(kept), sorted(named["kept"]), "what was committed is read once")


def beside_the_other_protocol(client, topic, produce):
    """A member of the classic protocol shares partitions with one of the consumer protocol, which is confluent-kafka, and is left alone by it."""
    rd_create(topic, PARTITIONS)
    named = {name: [f"{name} {i}" for i in range(COUNT)] for name in ["kept", "after"]}
    classic = Member(client, topic, "classic", "survivor")
    members = [classic]
    try:
        until(lambda: shares(topic) == [PARTITIONS], lambda: f"the first one has all partitions, {shares(topic)}")
        other = Member("confluent-kafka", topic, "consumer", "victim")
        members.append(other)
        until(lambda: shares(topic) == [3, 3], lambda: f"both share the partitions, {shares(topic)}")
        produce(topic, named["kept"])
        until(lambda: committed(topic) == COUNT, lambda: f"all of it is committed, {committed(topic)}")
        other.kill()
        until(lambda: shares(topic) == [PARTITIONS], lambda: f"the classic one has all partitions again, {shares(topic)}", 90)
        produce(topic, named["after"])
        until(lambda: committed(topic) == 2 * COUNT, lambda: f"everything is committed, {committed(topic)}")
        classic.lines()
    finally:
        for member in members:
            member.kill()
    found = classic.values()
    expect(set(named["after"]) - set(found), set(), "records that the classic one has not read")
    kept = [value for value in [*other.values(), *found] if value.startswith("kept")]
    expect(sorted(kept), sorted(named["kept"]), "what was committed is read once")
