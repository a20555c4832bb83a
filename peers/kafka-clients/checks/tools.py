"""Kafka's own tools, if peers/kafka/kafka.sh has fetched them."""

import os
import subprocess
import tempfile

from .confluent import compacted, compacted_check, rd_values
from .suite import ADDRESS, check, expect, until


TOOLS = os.path.expanduser(
    os.path.join(os.environ.get("KERA_PEERS", os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/kera-peers"), "kafka/lib")
)
TOOLS_NAME = "kafka-clients and tools"


def tool_command(name, *arguments):
    full = name if name.startswith("kafka.") else f"org.apache.kafka.{name}"
    # Each of them runs for seconds: to compile less of it is quicker.
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{TOOLS}/*", full, *arguments]


def tool(name, *arguments, seconds=60, stdin=None):
    command = tool_command(name, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, input=stdin)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {(done.stderr or done.stdout)[-150:]}")
    return done.stdout


def tools_version():
    found = [name for name in os.listdir(TOOLS) if name.startswith("kafka-tools-4")]
    return found[0].removeprefix("kafka-tools-").removesuffix(".jar")


if os.path.isdir(TOOLS):

    @check(TOOLS_NAME, "kafka-topics: create, describe, list; kafka-configs: alter, describe")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        tool("tools.TopicCommand", *server, "--create", "--topic", "java-t", "--partitions", "2")
        expect("PartitionCount: 2" in tool("tools.TopicCommand", *server, "--describe", "--topic", "java-t"), True, "two")
        expect("java-t" in tool("tools.TopicCommand", *server, "--list"), True, "listed")
        entity = ["--entity-type", "topics", "--entity-name", "java-t"]
        tool("kafka.admin.ConfigCommand", *server, "--alter", *entity, "--add-config", "retention.ms=77777")
        expect("77777" in tool("kafka.admin.ConfigCommand", *server, "--describe", *entity), True, "altered")

    @check(TOOLS_NAME, "kafka-producer-perf-test (idempotent), kafka-get-offsets, kafka-consumer-perf-test (group)")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        count = ["--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
        tool("tools.ProducerPerformance", "--topic", "java-p", *count, "--producer-props", f"bootstrap.servers={ADDRESS}")
        expect(tool("tools.GetOffsetShell", *server, "--topic", "java-p").strip(), "java-p:0:20000", "offsets")
        out = tool("tools.ConsumerPerformance", *server, "--topic", "java-p", "--messages", "20000", "--timeout", "20000")
        expect(", 20000, " in out, True, f"consumed: {out[-200:]}")

    @check(TOOLS_NAME, "kafka-verifiable-producer, kafka-verifiable-consumer, kafka-consumer-groups")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        out = tool("tools.VerifiableProducer", *server, "--topic", "java-v", "--max-messages", "1000", "--acks", "-1")
        expect('"acked":1000' in out, True, f"acknowledged: {out[-200:]}")
        group = ["--group-id", "java-g", "--max-messages", "1000"]
        out = tool("tools.VerifiableConsumer", *server, "--topic", "java-v", *group)
        expect("offsets_committed" in out, True, f"committed: {out[-200:]}")
        out = tool("tools.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", "java-g")
        expect("java-v" in out and "1000" in out, True, f"described: {out[-200:]}")
        tool("tools.consumer.group.ConsumerGroupCommand", *server, "--delete", "--group", "java-g")

    @check(TOOLS_NAME, "kafka-producer-perf-test (transactions), kafka-transactions, kafka-console-consumer (read_committed)")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        count = ["--num-records", "5000", "--record-size", "100", "--throughput", "5000"]
        transactions = ["--transactional-id", "java", "--transaction-duration-ms", "100"]
        props = ["--producer-props", f"bootstrap.servers={ADDRESS}"]
        tool("tools.ProducerPerformance", "--topic", "java-x", *count, *transactions, *props)
        listed = tool("tools.TransactionsCommand", *server, "list")
        expect("java" in listed and "CompleteCommit" in listed, True, f"listed: {listed[-200:]}")
        described = tool("tools.TransactionsCommand", *server, "describe", "--transactional-id", "java")
        expect("CompleteCommit" in described, True, f"described: {described[-200:]}")
        conf = ["--topic", "java-x", "--from-beginning", "--max-messages", "5000", "--timeout-ms", "20000"]
        out = tool("tools.consumer.ConsoleConsumer", *server, *conf, "--isolation-level", "read_committed")
        expect(len(out.splitlines()), 5000, "records read")

    @check(TOOLS_NAME, "kafka-console-producer, kafka-console-consumer (keys, group), compression none, gzip, snappy, lz4, zstd")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        for kind in ["none", "gzip", "snappy", "lz4", "zstd"]:
            lines = [f"k{i}:{kind} {i}" for i in range(1000)]
            topic = ["--topic", f"java-{kind}"]
            keyed = ["--property", "parse.key=true", "--property", "key.separator=:"]
            tool("tools.ConsoleProducer", *server, *topic, *keyed, "--compression-codec", kind, stdin="\n".join(lines) + "\n")
            conf = ["--group", f"java-{kind}", "--from-beginning", "--max-messages", "1000", "--timeout-ms", "20000"]
            keyed = ["--property", "print.key=true", "--property", "key.separator=:"]
            expect(tool("tools.consumer.ConsoleConsumer", *server, *topic, *conf, *keyed).splitlines(), lines, "records read")

    @check(TOOLS_NAME, "kafka-configs and kafka-console-consumer: a compacted topic, described and read from the start")
    def _():
        topic, written, keys = compacted()
        server, entity = ["--bootstrap-server", ADDRESS], ["--entity-type", "topics", "--entity-name", topic]
        described = tool("kafka.admin.ConfigCommand", *server, "--describe", *entity)
        expect("cleanup.policy=compact" in described, True, f"described: {described[-300:]}")
        shown = [["--property", f"print.{what}=true"] for what in ["offset", "key"]]
        conf = ["--topic", topic, "--from-beginning", "--timeout-ms", "5000", "--property", "key.separator=|"]
        out = tool("tools.consumer.ConsoleConsumer", *server, *conf, *sum(shown, []))
        rows = [line.split("|", 2) for line in out.splitlines() if line.startswith("Offset:")]
        text = {"null": None}
        found = [(int(at[7:]), (key.encode(), text.get(value, value.encode()))) for at, key, value in rows]
        compacted_check(found, written, keys)

    @check(TOOLS_NAME, "kafka-log-dirs, kafka-leader-election, kafka-metadata-quorum, kafka-reassign-partitions, kafka-delete-records")
    def _():
        server = ["--bootstrap-server", ADDRESS]
        tool("tools.VerifiableProducer", *server, "--topic", "java-n", "--max-messages", "100", "--acks", "-1")
        out = tool("tools.LogDirsCommand", *server, "--describe", "--topic-list", "java-n")
        expect('"partition":"java-n-0"' in out, True, f"directories: {out[-200:]}")
        election = ["--election-type", "preferred", "--topic", "java-n", "--partition", "0"]
        out = tool("tools.LeaderElectionCommand", *server, *election)
        expect("Valid replica already elected" in out, True, f"elected: {out[-200:]}")
        out = tool("tools.MetadataQuorumCommand", *server, "describe", "--status")
        expect("LeaderId:" in out and "CurrentVoters:" in out, True, f"quorum: {out[-200:]}")
        with tempfile.TemporaryDirectory() as place:
            moves, ends = os.path.join(place, "moves"), os.path.join(place, "ends")
            with open(moves, "w", encoding="utf-8") as file:
                file.write('{"version":1,"partitions":[{"topic":"java-n","partition":0,"replicas":[1]}]}')
            out = tool("tools.reassign.ReassignPartitionsCommand", *server, "--execute", "--reassignment-json-file", moves)
            expect("Successfully started partition reassignment" in out, True, f"moved: {out[-200:]}")
            out = tool("tools.reassign.ReassignPartitionsCommand", *server, "--list")
            expect("No partition reassignments found" in out, True, f"listed: {out[-200:]}")
            with open(ends, "w", encoding="utf-8") as file:
                file.write('{"version":1,"partitions":[{"topic":"java-n","partition":0,"offset":40}]}')
            out = tool("tools.DeleteRecordsCommand", *server, "--offset-json-file", ends)
            expect("low_watermark: 40" in out, True, f"deleted: {out[-200:]}")

    @check(TOOLS_NAME, "kafka-consumer-groups: offsets are reset (to an offset, by shift, time, duration, file), and the group goes on there")
    def _():
        server, topic = ["--bootstrap-server", ADDRESS], "java-reset"
        tool("tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "1")
        tool("tools.ConsoleProducer", *server, "--topic", topic, stdin="".join(f"{i}\n" for i in range(500)))

        def read(count):
            """Of a group, which commits when it is closed."""
            conf = ["--topic", topic, "--group", topic, "--max-messages", str(count), "--timeout-ms", "30000"]
            return tool("tools.consumer.ConsoleConsumer", *server, *conf, "--from-beginning").splitlines()

        def group(*arguments):
            return tool("tools.consumer.group.ConsumerGroupCommand", *server, "--group", topic, *arguments)

        def reset(*how):
            return [line.split() for line in group("--reset-offsets", *how).splitlines() if line.startswith(topic)]

        def until_empty():
            until(lambda: "Empty" in group("--describe", "--state"), "the group is empty")

        expect(read(500)[-1], "499", "the last record")
        until(lambda: "Empty" in group("--describe", "--state"), "the group is empty")
        expect(reset("--topic", topic, "--to-offset", "120", "--dry-run"), [[topic, topic, "0", "120"]], "planned")
        for how, at in [
            (["--shift-by", "-100"], 400),
            (["--to-earliest"], 0),
            (["--to-latest"], 500),
            (["--to-datetime", "2020-01-01T00:00:00.000"], 0),
            (["--to-datetime", "2099-01-01T00:00:00.000"], 500),
            (["--by-duration", "PT1H"], 0),
            (["--to-offset", "120"], 120),
        ]:
            expect(reset("--all-topics", *how, "--execute"), [[topic, topic, "0", str(at)]], " ".join(how))
        expect(read(380), [str(i) for i in range(120, 500)], "read after a reset to an offset")
        until(lambda: "Empty" in group("--describe", "--state"), "the group is empty again")
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(f"{topic},0,250\n")
            file.flush()
            expect(reset("--from-file", file.name, "--execute"), [[topic, topic, "0", "250"]], "from a file")
        group("--delete-offsets", "--topic", topic)
        expect(topic in group("--describe").replace(f"group '{topic}'", ""), False, "offsets that were deleted are described")

    @check(TOOLS_NAME, "kafka-transactions: an open transaction is found, described and ended by force; its producer is fenced")
    def _():
        from confluent_kafka import KafkaException, Producer

        server, topic = ["--bootstrap-server", ADDRESS], "java-open"
        tool("tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "1")
        producer = Producer({"bootstrap.servers": ADDRESS, "transactional.id": topic, "log_level": 0})
        producer.init_transactions(20)
        for value, commit in [("a", True), ("b", False)]:
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.flush(20)
            if commit:
                producer.commit_transaction(20)

        def transactions(*arguments):
            return tool("tools.TransactionsCommand", *server, *arguments)

        def state():
            return transactions("describe", "--transactional-id", topic).splitlines()[-1].split("\t")

        expect([word.strip() for word in state()[4:5]], ["Ongoing"], "its state")
        described = transactions("describe-producers", "--topic", topic, "--partition", "0").splitlines()
        expect(described[1].split()[-1], "2", "where the open transaction starts")
        hanging = transactions("find-hanging", "--topic", topic, "--partition", "0").splitlines()
        expect(len(hanging), 1, f"no transaction hangs: {hanging}")
        transactions("forceTerminateTransaction", "--transactionalId", topic)
        expect(state()[4].strip(), "Empty", "its state when it was ended")
        try:
            producer.commit_transaction(20)
            raise AssertionError("a producer commits what was ended by force")
        except KafkaException as error:
            expect(error.args[0].name(), "_FENCED", "the error of its producer")
        conf = ["--topic", topic, "--from-beginning", "--timeout-ms", "60000", "--isolation-level", "read_committed"]
        producer = Producer({"bootstrap.servers": ADDRESS, "transactional.id": topic})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, "c")
        producer.commit_transaction(20)
        found = tool("tools.consumer.ConsoleConsumer", *server, *conf, "--max-messages", "2")
        expect(found.splitlines(), ["a", "c"], "what was committed")

    for mode, how in [("assigned", []), ("in a group", ["--group-mode", "--use-group-metadata"])]:

        @check(TOOLS_NAME, f"transactional-message-copier, {mode}: transactions that are aborted at random, offsets with them, read_committed")
        def _(mode=mode, how=how):
            server, source, copy = ["--bootstrap-server", ADDRESS], f"java-in-{len(how)}", f"java-copy-{len(how)}"
            for topic in [source, copy]:
                tool("tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "1")
            wanted = [str(i) for i in range(2000)]
            tool("tools.ConsoleProducer", *server, "--topic", source, stdin="\n".join(wanted) + "\n")
            places = ["--input-topic", source, "--input-partition", "0", "--output-topic", copy, "--consumer-group", copy]
            conf = ["--transaction-size", "50", "--transactional-id", copy, "--enable-random-aborts", *how]
            out = tool("tools.TransactionalMessageCopier", "--broker-list", ADDRESS, *places, *conf, seconds=120)
            expect('"remaining":0' in out, True, f"copied: {out[-200:]}")

            def read(isolation, count):
                conf = ["--from-beginning", "--timeout-ms", "60000", "--max-messages", str(count), "--isolation-level", isolation]
                return tool("tools.consumer.ConsoleConsumer", *server, "--topic", copy, *conf).splitlines()

            expect(read("read_committed", 2000) == wanted, True, "what was committed is each record once, in order")
            expect(rd_values(copy, 1, "read_committed") == sorted(wanted), True, "there is nothing else that was committed")
            expect(len(read("read_uncommitted", 2001)), 2001, "some were aborted")
            out = tool("tools.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", copy)
            expect([line.split()[3] for line in out.splitlines() if line.startswith(copy)], ["2000"], "committed")

    @check(TOOLS_NAME, "kafka-verifiable-consumer: a group is rolled from the classic to the consumer protocol, and back")
    def _():
        server, topic = ["--bootstrap-server", ADDRESS], "java-rolled"
        tool("tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "6")
        describe = ["tools.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", topic]
        members = []

        def join(protocol):
            timeout = ["--session-timeout", "6000"] if protocol == "classic" else []
            group = ["--topic", topic, "--group-id", topic, "--group-protocol", protocol, *timeout]
            command = tool_command("tools.VerifiableConsumer", *server, *group)
            members.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        def leave():
            # It closes its consumer when it is asked to end.
            members[0].terminate()
            members.pop(0).wait(60)

        def owners():
            return {line.split()[6] for line in tool(*describe).splitlines() if topic in line and len(line.split()) > 6} - {"-"}

        def written():
            return sum(int(line.split()[3]) for line in tool(*describe).splitlines() if line.startswith(topic) and "-" != line.split()[3])

        def go_on(what, count, total):
            until(lambda: len(owners()) == count, f"{what}: {count} members share the partitions")
            tool("tools.VerifiableProducer", *server, "--topic", topic, "--acks", "-1", "--max-messages", "600")
            until(lambda: written() == total, f"{what}: everything is committed")
            expect([member.poll() for member in members], [None] * count, f"{what}: members that have ended")

        try:
            join("classic")
            join("classic")
            go_on("classic", 2, 600)
            join("consumer")
            go_on("both", 3, 1200)
            leave()
            leave()
            go_on("consumer", 1, 1800)
            join("classic")
            go_on("both again", 2, 2400)
            leave()
            go_on("classic again", 1, 3000)
        finally:
            for member in members:
                member.kill()
                member.wait()

    for protocol in ["classic", "consumer"]:

        @check(TOOLS_NAME, f"kafka-verifiable-consumer: one of two members is killed, group protocol {protocol}")
        def _(protocol=protocol):
            server, topic = ["--bootstrap-server", ADDRESS], f"java-group-{protocol}"
            tool("tools.TopicCommand", *server, "--create", "--topic", topic, "--partitions", "6")
            timeout = ["--session-timeout", "6000"] if protocol == "classic" else []
            group = ["--topic", topic, "--group-id", topic, "--group-protocol", protocol, *timeout]
            command = tool_command("tools.VerifiableConsumer", *server, *group)
            members = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
            describe = ["tools.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", topic]

            def owners():
                return {line.split()[6] for line in tool(*describe).splitlines() if topic in line and len(line.split()) > 6} - {"-"}

            def written():
                return sum(int(line.split()[3]) for line in tool(*describe).splitlines() if line.startswith(topic) and "-" != line.split()[3])

            try:
                producer = ["tools.VerifiableProducer", *server, "--topic", topic, "--acks", "-1", "--max-messages"]
                tool(*producer, "600")
                until(lambda: len(owners()) == 2, "two members share the partitions")
                members[0].kill()
                until(lambda: len(owners()) == 1, "one has all of them")
                tool(*producer, "600")
                until(lambda: written() == 1200, "everything is committed")
            finally:
                for member in members:
                    member.kill()
                    member.wait()
