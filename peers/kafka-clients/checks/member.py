"""A member of a group that reads until it is killed: a process of its own, so that it can die without a word.

usage: member.py CLIENT ADDRESS TOPIC PROTOCOL

It prints each record as it comes, and commits behind those whose value begins with "kept" and, if it is the survivor (its
standard input says so), behind all others too: so what a member leaves behind that dies is known.
"""

import asyncio
import sys

CLIENT, ADDRESS, TOPIC, PROTOCOL = sys.argv[1:5]
SURVIVES = sys.stdin.readline().strip() == "survivor"


def is_to_commit(partition, value):
    print(partition, value.decode(), flush=True)
    return SURVIVES or value.startswith(b"kept")


def confluent():
    from confluent_kafka import Consumer

    # How long a member of the consumer protocol may be silent is the broker's to say.
    session = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if PROTOCOL == "classic" else {}
    conf = {"bootstrap.servers": ADDRESS, "group.id": TOPIC, "group.protocol": PROTOCOL, **session}
    consumer = Consumer({**conf, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            raise SystemExit(str(message.error()))
        if is_to_commit(message.partition(), message.value()):
            consumer.commit(message)


def kafka_python():
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

    session = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=ADDRESS, group_id=TOPIC, enable_auto_commit=False, **session)
    for message in consumer:
        if is_to_commit(message.partition, message.value):
            at = TopicPartition(TOPIC, message.partition)
            consumer.commit({at: OffsetAndMetadata(message.offset + 1, "", -1)})


async def aiokafka():
    from aiokafka import AIOKafkaConsumer, TopicPartition

    session = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500, "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=ADDRESS, group_id=TOPIC, enable_auto_commit=False, **session)
    await consumer.start()
    async for message in consumer:
        if is_to_commit(message.partition, message.value):
            await consumer.commit({TopicPartition(TOPIC, message.partition): message.offset + 1})


if CLIENT == "aiokafka":
    asyncio.run(aiokafka())
else:
    {"confluent-kafka": confluent, "kafka-python": kafka_python}[CLIENT]()
