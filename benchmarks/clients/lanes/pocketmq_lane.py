"""The lane of PocketMQ's client: ``send_nowait`` and ``get_many``, with default options."""

from __future__ import annotations

import asyncio

import client
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

READ_AT_ONCE = 1_000
WINDOW = 3_000
GROUP = "bench-clients"


async def prepare(work: Work) -> None:
    """Create the topic."""
    async with client.Admin(work.address) as admin:
        await admin.create_topic(work.topic, queues=work.partitions)


async def produce(work: Work) -> Figures:
    """Send windows of futures; each becomes a receipt."""
    async with client.Producer(work.address) as producer:
        await producer.send(work.topic, work.body)
        send, topic, body = producer.send_nowait, work.topic, work.body

        async def offer(number: int) -> list[asyncio.Future[client.Receipt]]:
            return [send(topic, body) for _ in range(number)]

        watch = Stopwatch()
        await in_windows(work.messages, WINDOW, offer)
        return watch.stop(work.messages)


async def consume(work: Work) -> Figures:
    """Read all messages from the start."""
    async with client.PullConsumer(work.address, group=GROUP) as consumer:
        consumer.assign(await consumer.queues(work.topic))
        reading, size = Reading(work.messages), 0
        while reading.left > 0:
            messages = await consumer.get_many(READ_AT_ONCE, timeout=PATIENCE)
            reading.took(len(messages))
            for message in messages:
                size += len(message.body) + len(message.topic) + (message.offset >= 0)
        return reading.figures()


async def deliver(work: Work) -> Figures:
    """Send at a constant rate to a waiting task."""
    async with (
        client.Producer(work.address) as producer,
        client.PullConsumer(work.address, group=GROUP) as consumer,
    ):
        queues = await consumer.queues(work.topic)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.END)
        deliveries = Deliveries(work)

        async def receive() -> None:
            while not deliveries.complete:
                messages = await consumer.get_many(READ_AT_ONCE, timeout=PATIENCE)
                assert messages, "nothing came"
                for message in messages:
                    deliveries.came(message.body)

        receiver = asyncio.create_task(receive())
        for pause in deliveries.pauses():
            await asyncio.sleep(pause)
            producer.send_nowait(work.topic, work.stamped())
        await receiver
        return deliveries.figures()


if __name__ == "__main__":
    main(prepare, produce, consume, deliver)
