"""The lane of aiokafka, with its compiled extension, on uvloop.

Producing: ``send`` with a future per message, and larger batches than the default of 16 KiB; a
linger would make it slower. Consuming: ``getmany``. Deliveries: ``send`` and ``getone``.
"""

from __future__ import annotations

import asyncio

from aiokafka import (  # type: ignore[import-not-found]  # in .tools, not in our environment
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)
from aiokafka.admin import (  # type: ignore[import-not-found]  # in .tools as well
    AIOKafkaAdminClient,
    NewTopic,
)

from benchmarks.clients.lanes.measuring import (
    PATIENCE,
    Deliveries,
    Figures,
    Reading,
    Stopwatch,
    Work,
    in_windows,
    main,
)

READ_AT_ONCE = 500
WINDOW = 5_000
BATCH_BYTES = 128 * 1024
MILLISECONDS = 1000


async def prepare(work: Work) -> None:
    """Create the topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=work.address)
    await admin.start()
    await admin.create_topics([NewTopic(work.topic, work.partitions, 1)])
    await admin.close()


async def produce(work: Work) -> Figures:
    """Send windows of futures."""
    producer = AIOKafkaProducer(bootstrap_servers=work.address, acks=1, max_batch_size=BATCH_BYTES)
    async with producer:
        await producer.send_and_wait(work.topic, work.body)
        send, topic, body = producer.send, work.topic, work.body

        async def offer(number: int) -> list[asyncio.Future[object]]:
            return [await send(topic, body) for _ in range(number)]

        watch = Stopwatch()
        await in_windows(work.messages, WINDOW, offer)
        return watch.stop(work.messages)


async def consume(work: Work) -> Figures:
    """Read all messages from the start."""
    consumer = AIOKafkaConsumer(bootstrap_servers=work.address)
    async with consumer:
        partitions = [TopicPartition(work.topic, number) for number in range(work.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        reading, size = Reading(work.messages), 0
        while reading.left > 0:
            found = await consumer.getmany(
                timeout_ms=int(PATIENCE * MILLISECONDS), max_records=READ_AT_ONCE
            )
            reading.took(sum(map(len, found.values())))
            for messages in found.values():
                for message in messages:
                    size += len(message.value) + len(message.topic) + (message.offset >= 0)
        return reading.figures()


async def deliver(work: Work) -> Figures:
    """Send at a constant rate to a waiting task."""
    consumer = AIOKafkaConsumer(bootstrap_servers=work.address)
    producer = AIOKafkaProducer(bootstrap_servers=work.address, acks=1)
    async with producer, consumer:
        partitions = [TopicPartition(work.topic, number) for number in range(work.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        deliveries = Deliveries(work)

        async def receive() -> None:
            while not deliveries.complete:
                message = await asyncio.wait_for(consumer.getone(), PATIENCE)
                deliveries.came(message.value)

        receiver = asyncio.create_task(receive())
        for pause in deliveries.pauses():
            await asyncio.sleep(pause)
            await producer.send(work.topic, work.stamped())
        await receiver
        return deliveries.figures()


if __name__ == "__main__":
    main(prepare, produce, consume, deliver)
