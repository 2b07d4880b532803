"""The lane of nats-py with JetStream, on uvloop: one stream with file storage per partition.

Producing: ``publish_async`` with a future per message. Consuming: a pull consumer per stream
without acknowledgements, and ``fetch`` of many messages; the server would disconnect an ordered
(push) consumer for being too slow. Deliveries: ordered consumers. The offset of a message is its
sequence number in the stream.
"""

from __future__ import annotations

import asyncio
from typing import Any

import nats  # type: ignore[import-not-found]  # in .tools, not in our environment
from nats.js.api import (  # type: ignore[import-not-found]  # in .tools as well
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    StorageType,
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

WINDOW = 2_000
READ_AT_ONCE = 2_000


def _subjects(work: Work) -> list[str]:
    return [f"{work.topic}-{number}" for number in range(work.partitions)]


async def prepare(work: Work) -> None:
    """Create the streams."""
    async with await nats.connect(work.address) as connection:
        for subject in _subjects(work):
            await connection.jetstream().add_stream(
                name=subject, subjects=[subject], storage=StorageType.FILE
            )


async def produce(work: Work) -> Figures:
    """Send windows of futures, to the streams in rotation."""
    async with await nats.connect(work.address) as connection:
        stream = connection.jetstream(publish_async_max_pending=2 * WINDOW)
        subjects, publish, body = _subjects(work), stream.publish_async, work.body
        await stream.publish(subjects[0], body)

        async def offer(number: int) -> list[asyncio.Future[object]]:
            return [await publish(subjects[index % len(subjects)], body) for index in range(number)]

        watch = Stopwatch()
        await in_windows(work.messages, WINDOW, offer)
        return watch.stop(work.messages)


async def consume(work: Work) -> Figures:
    """Read all messages from the start, from all streams concurrently."""
    reading, size = Reading(work.messages), 0
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)

    async def read(stream: Any, subject: str) -> None:
        nonlocal size
        subscription = await stream.pull_subscribe(subject, stream=subject, config=config)
        left = (await stream.stream_info(subject)).state.messages
        while left:
            messages = await subscription.fetch(min(READ_AT_ONCE, left), timeout=PATIENCE)
            reading.took(len(messages))
            for message in messages:
                offset = message.metadata.sequence.stream
                size += len(message.data) + len(message.subject) + (offset >= 0)
            left -= len(messages)

    async with await nats.connect(work.address) as connection:
        stream = connection.jetstream()
        async with asyncio.TaskGroup() as group:
            for subject in _subjects(work):
                group.create_task(read(stream, subject))
        return reading.figures()


async def deliver(work: Work) -> Figures:
    """Send at a constant rate to a callback."""
    async with await nats.connect(work.address) as connection:
        stream, subjects, done = connection.jetstream(), _subjects(work), asyncio.Event()

        async def take(message: Any) -> None:
            deliveries.came(message.data)
            if deliveries.complete:
                done.set()

        for subject in subjects:
            await stream.subscribe(
                subject, cb=take, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW
            )
        deliveries = Deliveries(work)
        for number, pause in enumerate(deliveries.pauses()):
            await asyncio.sleep(pause)
            await stream.publish_async(subjects[number % len(subjects)], work.stamped())
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        return deliveries.figures()


if __name__ == "__main__":
    main(prepare, produce, consume, deliver)
