"""Plain messages of one lane and one turn of the loop, kept by column instead of as objects.

Messages that differ in nothing but body and properties need no object each: what they have in
common is said once, the rest is a list per attribute. Lists are cut, joined and encoded without a
step of Python per message.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self

from client.producer.batch import Batch, Payload
from client.producer.outgoing import ELEMENT_BYTES
from remoting.protocol.message import batch as batches
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from client.producer.accumulator import Lane
    from client.receipt import Receipt

ID_NAME: Final = "UNIQ_KEY\x01"
_NEXT_ID_NAME: Final = f"\n{ID_NAME}"


class Burst:
    """The columns. ``add`` until ``seal``, then ``split`` and ``join``.

    Attributes:
        lane: the key of their lane.
        deadline, born_ms, epoch: as of an ``Outgoing``.
        spread: over how many queues they may go.
        size: bytes they take of a batch.
    """

    __slots__ = (
        "bodies",
        "born_ms",
        "deadline",
        "epoch",
        "futures",
        "ids",
        "lane",
        "size",
        "spread",
        "tails",
        "texts",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        lane: str | MessageQueue,
        deadline: float,
        born_ms: int,
        epoch: int,
        spread: int,
    ) -> None:
        self.topic = topic
        self.lane = lane
        self.deadline = deadline
        self.born_ms = born_ms
        self.epoch = epoch
        self.spread = spread
        self.size = 0
        self.bodies: list[bytes] = []
        self.tails: list[str] = []
        self.futures: list[asyncio.Future[Receipt]] = []
        self.ids: list[str] = []
        self.texts: list[bytes] = []

    @property
    def count(self) -> int:
        """Messages."""
        return len(self.bodies)

    def seal(self, take_ids: Callable[[int], list[str]]) -> None:
        """Give all of them their ids and write their properties."""
        ids = self.ids = take_ids(len(self.bodies))
        if any(self.tails):
            named = zip(ids, self.tails, strict=True)
            self.texts = [f"{ID_NAME}{one}{tail}".encode() for one, tail in named]
        else:
            self.texts = (ID_NAME + _NEXT_ID_NAME.join(ids)).encode().split(b"\n")

    def fitting(self, messages: int, size: int) -> int:
        """How many of the first ones fit into so many messages and bytes."""
        if self.size <= size:
            return min(messages, len(self.bodies))
        ends = accumulate(
            len(body) + len(text) + ELEMENT_BYTES
            for body, text in zip(self.bodies[:messages], self.texts, strict=False)
        )
        return bisect_right(list(ends), size)

    def split(self, count: int) -> Burst:
        """Take the first ones away, as a burst of their own."""
        first = Burst(self.topic, self.lane, self.deadline, self.born_ms, self.epoch, self.spread)
        for name in ("bodies", "texts", "ids", "futures"):
            column = getattr(self, name)
            setattr(first, name, column[:count])
            del column[:count]
        first._measure()
        self.size -= first.size
        return first

    def join(self, later: Self) -> None:
        """Take over those of another sealed burst of this lane and epoch."""
        self.bodies += later.bodies
        self.texts += later.texts
        self.ids += later.ids
        self.futures += later.futures
        self.size += later.size
        self.deadline = later.deadline

    def _measure(self) -> None:
        fixed = ELEMENT_BYTES * len(self.bodies)
        self.size = fixed + sum(map(len, self.bodies)) + sum(map(len, self.texts))


class BurstBatch(Batch):
    """A sealed burst that leaves as one request."""

    __slots__ = ("_burst",)

    def __init__(self, lane: Lane, burst: Burst) -> None:
        self._describe(lane, burst.topic, burst.deadline, burst.epoch)
        self._burst = burst
        self.count = burst.count
        self.size = burst.size

    @property
    def futures(self) -> Sequence[asyncio.Future[Receipt]]:
        """What waits for the receipt of each."""
        return self._burst.futures

    @property
    def ids(self) -> Sequence[str]:
        """The unique id of each."""
        return self._burst.ids

    def payload(self) -> Payload:
        """See ``Batch.payload``."""
        burst = self._burst
        if self.count == 1:
            return Payload(burst.bodies[0], burst.texts[0].decode(), burst.born_ms)
        return Payload(batches.encode_columns(burst.bodies, burst.texts), None, burst.born_ms)
