"""A load of numbered messages on servers that are killed meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import client

BACK_WITHIN = 10.0
"""Seconds within which clients go on by themselves once a server is back, be the machine busy; who
misses it looks for it again after thirty."""

PATIENCE = 30.0
"""Seconds a test gives its own questions and waits; a busy machine may stand still for some."""


@dataclass
class Load:
    """Numbers sent in sequence by several senders, each repeated until acknowledged.

    Attributes:
        acknowledged: The numbers the broker said yes to.
        problems: Sends that failed for good, with what the client said; the outcome of some is
            unknown, so their message may or may not be stored.
    """

    producer: client.Producer[bytes]
    topic: str
    senders: int = 8
    acknowledged: set[int] = field(default_factory=set)
    problems: list[client.PocketMQError] = field(default_factory=list)
    _next: int = 0
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.senders):
                group.create_task(self._send())

    async def wait_for(self, more: int) -> None:
        """Wait until ``more`` further numbers are acknowledged."""
        wanted = len(self.acknowledged) + more
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.acknowledged) >= wanted)

    async def _send(self) -> None:
        while True:
            number, self._next = self._next, self._next + 1
            try:
                await self.producer.send(self.topic, b"%d" % number)
            except client.PocketMQError as problem:
                self.problems.append(problem)
                continue
            self.acknowledged.add(number)
            async with self._progress:
                self._progress.notify_all()


async def stored_numbers(nameserver: str, topic: str) -> list[int]:
    """Return every number that the broker has, in the order of the queues."""
    numbers: list[int] = []
    async with client.Admin(nameserver, request_timeout=PATIENCE) as admin:
        stats = await admin.topic_stats(topic)
    stored = sum(offsets.max_offset - offsets.min_offset for offsets in stats.values())
    async with client.PullConsumer(
        nameserver, group="checker", request_timeout=PATIENCE
    ) as consumer:
        consumer.assign(stats)
        for queue in stats:
            await consumer.seek(queue, client.BEGIN)
        async with asyncio.timeout(60):
            while len(numbers) < stored:
                numbers += [int(m.body) for m in await consumer.get_many(10_000, timeout=1.0)]
    return numbers
