"""aiokafka: a client for asyncio."""

import asyncio

from .confluent import compacted, compacted_check, rd_create
from .deaths import a_member_is_killed, beside_the_other_protocol
from .suite import ADDRESS, COMPRESSIONS, check, expect


@check("aiokafka", "produce, idempotent, and consume in a group")
def _():
    import aiokafka

    async def run():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ADDRESS, enable_idempotence=True)
        await producer.start()
        for i in range(300):
            await producer.send("aio", f"value {i}".encode())
        await producer.flush()
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "aio", bootstrap_servers=ADDRESS, group_id="aio", auto_offset_reset="earliest"
        )
        await consumer.start()
        offsets = [(await asyncio.wait_for(consumer.getone(), 20)).offset for _ in range(300)]
        await consumer.stop()
        expect(offsets, list(range(300)), "offsets")

    asyncio.run(run())


@check("aiokafka", "a compacted topic, read from the start")
def _():
    import aiokafka

    topic, written, keys = compacted("compacted-plain", kinds=("none", "gzip"))

    async def run():
        partition = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=ADDRESS)
        await consumer.start()
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = []
        while not found or found[-1][0] < max(written):
            m = await asyncio.wait_for(consumer.getone(), 20)
            found.append((m.offset, (m.key, m.value)))
        await consumer.stop()
        compacted_check(found, written, keys)

    asyncio.run(run())


@check("aiokafka", "transactions: commit and abort, read_committed")
def _():
    import aiokafka

    async def run():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ADDRESS, transactional_id="aio")
        await producer.start()
        for name, commit in [("a", True), ("b", False), ("c", True)]:
            await producer.begin_transaction()
            for i in range(100):
                await producer.send_and_wait("aio-txn", f"{name} {i}".encode())
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        await producer.stop()
        conf = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        consumer = aiokafka.AIOKafkaConsumer("aio-txn", bootstrap_servers=ADDRESS, **conf)
        await consumer.start()
        values = [(await asyncio.wait_for(consumer.getone(), 20)).value.decode() for _ in range(200)]
        await consumer.stop()
        expect(values, [f"{name} {i}" for name in "ac" for i in range(100)], "committed records")

    asyncio.run(run())


async def written(topic, values, parts, **conf):
    """Writes values in turn to each of the topic's partitions; where each of them came to lie."""
    import aiokafka

    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ADDRESS, **conf)
    await producer.start()
    told = [await producer.send(topic, value.encode(), partition=i % parts) for i, value in enumerate(values)]
    places = [(one.partition, one.offset) for one in await asyncio.gather(*told)]
    await producer.stop()
    return places


def write(topic, values):
    asyncio.run(written(topic, values, 6))


async def read(topic, parts):
    """What a topic has, up to its ends as they are."""
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=ADDRESS, auto_offset_reset="earliest")
    await consumer.start()
    places = [aiokafka.TopicPartition(topic, part) for part in range(parts)]
    consumer.assign(places)
    wanted = sum((await consumer.end_offsets(places)).values())
    found = [(await asyncio.wait_for(consumer.getone(), 20)).value.decode() for _ in range(wanted)]
    await consumer.stop()
    return found


for kind in COMPRESSIONS:

    @check("aiokafka", f"produce and consume, compression {kind}, idempotent, acks all and 1")
    def _(kind=kind):
        async def run():
            topic, wanted = f"aio-{kind}", []
            for name, conf in [("idempotent", {"enable_idempotence": True}), ("all", {"acks": "all"}), ("one", {"acks": 1})]:
                values = [f"{name} {i} " * 5 for i in range(1000)]
                places = await written(topic, values, 3, compression_type=None if kind == "none" else kind, **conf)
                expect(len(set(places)), 1000, "places of the records")
                wanted += values
            expect(sorted(await read(topic, 3)) == sorted(wanted), True, "what is read is what was written")

        rd_create(f"aio-{kind}", 3)
        asyncio.run(run())


@check("aiokafka", "topics: create, describe, partitions, configurations, delete records, groups, delete")
def _():
    import aiokafka
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    topic, first = "aio-admin", aiokafka.TopicPartition("aio-admin", 0)

    async def run(admin):
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "50000"})])

        async def parts():
            return len((await admin.describe_topics([topic]))[0]["partitions"])

        async def setting():
            [told] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            return {entry[0]: entry[1] for entry in told.resources[0][4]}["retention.ms"]

        expect((topic in await admin.list_topics(), await parts()), (True, 2), "listed, partitions")
        await admin.create_partitions({topic: NewPartitions(3)})
        expect(await parts(), 3, "partitions, more of them")
        expect(await setting(), "50000", "retention.ms")
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "60000"})])
        expect(await setting(), "60000", "retention.ms, altered")
        await written(topic, [str(i) for i in range(300)], 3)
        await admin.delete_records({first: RecordsToDelete(40)})
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=ADDRESS, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([first])
        message = await asyncio.wait_for(consumer.getone(), 20)
        expect(message.offset, 40, "the first record that is left")
        await consumer.commit({first: 100})
        await consumer.stop()
        expect(topic in [name for name, _ in await admin.list_consumer_groups()], True, "the group is listed")
        [told] = await admin.describe_consumer_groups([topic])
        expect((told.groups[0][0], told.groups[0][1], told.groups[0][2]), (0, topic, "Empty"), "the group's state")
        expect((await admin.list_consumer_group_offsets(topic))[first].offset, 100, "committed")
        await admin.delete_topics([topic])
        expect(topic in await admin.list_topics(), False, "still there")

    async def with_admin():
        admin = AIOKafkaAdminClient(bootstrap_servers=ADDRESS)
        await admin.start()
        try:
            await run(admin)
        finally:
            await admin.close()

    asyncio.run(with_admin())


@check("aiokafka", "seek: to an offset, to begin and end, by time")
def _():
    import aiokafka

    async def run():
        place, start = aiokafka.TopicPartition("aio-seek", 0), 1_700_000_000_000
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=ADDRESS)
        await producer.start()
        for i in range(1000):
            await producer.send("aio-seek", str(i).encode(), timestamp_ms=start + i * 10)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=ADDRESS)
        await consumer.start()
        consumer.assign([place])

        async def following():
            return (await asyncio.wait_for(consumer.getone(), 20)).offset

        for at in [600, 3, 999]:
            consumer.seek(place, at)
            expect(await following(), at, "the record that was sought")
        await consumer.seek_to_beginning(place)
        expect(await following(), 0, "the first record")
        await consumer.seek_to_end(place)
        expect(await consumer.position(place), 1000, "the end")
        for asked, wanted in [(start - 5, 0), (start + 4000, 400), (start + 4001, 401), (start + 9990, 999)]:
            told = (await consumer.offsets_for_times({place: asked}))[place]
            expect((told.offset, told.timestamp), (wanted, start + wanted * 10), f"offset by time, {asked - start}")
            consumer.seek(place, told.offset)
            expect(await following(), wanted, "the record of that time")
        told = await consumer.offsets_for_times({place: start + 10_000})
        expect(told[place], None, "offset of a time that has not come")
        await consumer.stop()

    rd_create("aio-seek", 1)
    asyncio.run(run())


@check("aiokafka", "group, classic protocol: a member is killed, the other one goes on")
def _():
    a_member_is_killed("aiokafka", "aio-deaths", write)


@check("aiokafka", "group, classic protocol beside a member of the consumer protocol, which is killed")
def _():
    beside_the_other_protocol("aiokafka", "aio-beside", write)
