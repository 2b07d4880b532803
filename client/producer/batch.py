"""What leaves as one request, whatever kind of messages it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from client.producer.outgoing import Outgoing
from remoting.protocol.message import batch as batches
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from client.producer.accumulator import Lane
    from client.receipt import Receipt


class Payload(NamedTuple):
    """What a request says of its messages; ``properties`` is None when there are several."""

    body: bytes
    properties: str | None
    born_ms: int
    flag: int = 0
    sys_flag: int = 0


class Batch:
    """Messages that leave as one request; ``queue`` is None when any will do.

    Attributes:
        count: messages.
        size: their bytes.
        deadline: of the last one.
        epoch: of the first one; see ``Intake``.
    """

    __slots__ = ("count", "deadline", "epoch", "items", "lane", "queue", "size", "topic")

    def __init__(self, lane: Lane, items: Sequence[Outgoing]) -> None:
        self._describe(lane, items[0].topic, items[-1].deadline, items[0].epoch)
        self.items: Final[Sequence[Outgoing]] = items
        self.count = len(items)
        self.size = sum([item.size for item in items])

    def _describe(self, lane: Lane, topic: str, deadline: float, epoch: int) -> None:
        self.lane = lane
        self.queue = lane.key if isinstance(lane.key, MessageQueue) else None
        self.topic = topic
        self.deadline = deadline
        self.epoch = epoch

    @property
    def futures(self) -> Sequence[asyncio.Future[Receipt] | None]:
        """What waits for the receipt of each; None: nothing does."""
        return [item.future for item in self.items]

    @property
    def ids(self) -> Sequence[str]:
        """The unique id of each."""
        return [item.id for item in self.items]

    def payload(self) -> Payload:
        """The request's part that depends on the messages; the same at each attempt."""
        first = self.items[0]
        if self.count == 1:
            return Payload(first.body, first.properties, first.born_ms, first.flag, first.sys_flag)
        body = batches.encode(
            [(item.flag, item.body, item.properties.encode()) for item in self.items]
        )
        return Payload(body, None, first.born_ms, sys_flag=first.sys_flag)
