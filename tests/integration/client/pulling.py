"""Helpers of the pull consumer tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import client


async def fill(producer: client.Producer[bytes], count: int, first: int = 0) -> None:
    results = await producer.send_many(
        [client.Message("T", b"%d" % number) for number in range(first, first + count)]
    )
    assert all(isinstance(result, client.Receipt) for result in results)


async def take(consumer: Any, count: int, timeout: float = 10.0) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        batch = await consumer.get_many(count - len(got), timeout=timeout)
        assert batch, f"only {len(got)} of {count} came"
        got += [message.body for message in batch]
    return got


def queue(number: int) -> client.MessageQueue:
    return client.MessageQueue("T", "broker-a", number)


class FaultyStrategy:
    """Takes all queues, or fails."""

    name = "FAULTY"

    def __init__(self) -> None:
        self.broken = False

    def allocate(
        self, member: str, queues: Sequence[client.MessageQueue], members: Any, *, group: str
    ) -> list[client.MessageQueue]:
        if self.broken:
            raise ZeroDivisionError("a fault of the application")
        return list(queues)
