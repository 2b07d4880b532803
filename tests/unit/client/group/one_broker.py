"""A group's members at one broker, on a loop with virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from remoting.protocol.queue import MessageQueue
from tests.unit.client.world import World


def queue(number: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def world(root: Path, **topics: int) -> AsyncIterator[World]:
    """Create a world of one broker with these topics."""
    async with World(root) as made:
        made.broker("broker-a", **(topics or {"T": 4}))
        yield made
