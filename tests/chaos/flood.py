"""Producers that send many messages per second, their acknowledgements, and one reader.

A message's body contains its number, and each number has exactly one valid body. Every second
producer sends each message only once, so none of its messages may be in the store twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Final, NamedTuple

import client
from client.limits import SEND_RETRIES
from tests.chaos.load import PATIENCE

PRODUCERS: Final = 4
"""Producers, each with its own connection."""

PER_SECOND: Final = 5000
"""Total rate of all producers in messages per second, while the broker answers."""

TICK_SECONDS: Final = 0.02
IN_FLIGHT: Final = 500
"""Maximum number of unanswered messages of one producer."""

_DIGITS: Final = 12
_NOISE: Final = Random(7).randbytes(64 * 1024)


def body_of(number: int) -> bytes:
    """Return the body of a message, 12 to 811 bytes long."""
    begin = number * 31 % (len(_NOISE) - 1000)
    return b"%012d" % number + _NOISE[begin : begin + number * 7919 % 800]


def number_of(body: bytes | memoryview) -> int:
    """Return a message's number, after checking its body byte for byte."""
    number = int(bytes(body[:_DIGITS]))
    assert body == body_of(number)
    return number


def copies_of(number: int) -> int:
    """Return how often a message may be in the store at most."""
    return 1 if number % PRODUCERS % 2 == 0 else 1 + SEND_RETRIES


class Place(NamedTuple):
    """The position that the broker returned for a message."""

    queue_id: int
    offset: int
    number: int


class Flood:
    """Sends until it is cancelled.

    Attributes:
        acknowledged: messages that the broker said it has.
        failed: sends that failed for good; whether their message is stored nobody knows.
    """

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._new: list[Place] = []
        self._progress = asyncio.Condition()
        self.acknowledged = 0
        self.failed = 0

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            for which in range(PRODUCERS):
                group.create_task(self._produce(which))

    def take(self) -> list[Place]:
        """Return what was acknowledged since the last call."""
        new, self._new = self._new, []
        return new

    async def wait_for(self, more: int) -> None:
        """Wait until so many further messages are acknowledged."""
        wanted = self.acknowledged + more
        async with self._progress:
            await self._progress.wait_for(lambda: self.acknowledged >= wanted)

    async def _produce(self, which: int) -> None:
        number = which
        at_once = int(PER_SECOND / PRODUCERS * TICK_SECONDS)
        sends: set[asyncio.Task[None]] = set()
        retries = copies_of(which) - 1
        async with client.Producer(self._address, group="flood", retries=retries) as producer:
            while True:
                # What could not be sent while the broker was away is not caught up on.
                for _ in range(min(at_once, IN_FLIGHT - len(sends))):
                    task = asyncio.create_task(self._send(producer, number))
                    sends.add(task)
                    task.add_done_callback(sends.discard)
                    number += PRODUCERS
                await asyncio.sleep(TICK_SECONDS)

    async def _send(self, producer: client.Producer[bytes], number: int) -> None:
        try:
            receipt = await producer.send(self._topic, body_of(number))
        except client.PocketMQError:
            self.failed += 1
            return
        self._new.append(Place(receipt.queue.queue_id, receipt.offset, number))
        self.acknowledged += 1
        async with self._progress:
            self._progress.notify_all()


class Reader:
    """Reads all queues from their beginning on, until it is cancelled.

    Attributes:
        rows: of each queue the numbers of its messages.
    """

    def __init__(self, address: str, topic: str, queues: int) -> None:
        self._address = address
        self._topic = topic
        self._progress = asyncio.Condition()
        self.rows: list[list[int]] = [[] for _ in range(queues)]

    async def run(self) -> None:
        """Read until cancelled; fail at a message that is not the next one."""
        async with client.PullConsumer(
            self._address, group="reader", request_timeout=PATIENCE
        ) as consumer:
            queues = await consumer.queues(self._topic)
            consumer.assign(queues)
            for queue in queues:
                await consumer.seek(queue, client.BEGIN)
            while True:
                for message in await consumer.get_many(1000, timeout=1.0):
                    row = self.rows[message.queue.queue_id]
                    assert message.offset == len(row), (message.queue, message.offset, len(row))
                    row.append(number_of(message.body))
                async with self._progress:
                    self._progress.notify_all()

    async def reach(self, place: Place) -> None:
        """Wait until a message has been read."""
        row = self.rows[place.queue_id]
        async with self._progress:
            await self._progress.wait_for(lambda: len(row) > place.offset)


@asynccontextmanager
async def flooded(address: str, topic: str, queues: int) -> AsyncIterator[tuple[Flood, Reader]]:
    """Run a flood and a reader during the block; an error of theirs ends it."""
    async with client.Admin(address, request_timeout=PATIENCE) as admin:
        await admin.create_topic(topic, queues=queues)
    flood, reader = Flood(address, topic), Reader(address, topic, queues)
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(flood.run()), group.create_task(reader.run())]
        try:
            yield flood, reader
        finally:
            for task in tasks:
                task.cancel()
