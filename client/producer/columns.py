"""Messages on their way out, kept by column, and the lanes in which they wait. No loop, no socket.

Messages of one lane differ in little but body and properties. What they have in common is kept
once, the rest as a list per attribute: lists are cut, joined and encoded without a step of Python
per message.

A *free* lane (its key is the topic) may have any number of requests in flight, and each may go to
any queue; its messages are spread over the topic's queues. An *ordered* lane (its key is a queue,
chosen by name or by sharding key) has one request in flight, so that a retry can neither overtake
nor be overtaken. Within a lane messages leave in the order in which they came.
"""

from __future__ import annotations

from asyncio import Future
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

from client.limits import SPREAD_MESSAGES
from client.message import Receipt
from remoting.protocol.message import batch as batches
from remoting.protocol.queue import MessageQueue

ELEMENT_BYTES: Final = 22
"""Bytes of a batch element besides body and properties."""

ID_NAME: Final = "UNIQ_KEY\x01"
_NEXT_ID_NAME: Final = f"\n{ID_NAME}"


class Payload(NamedTuple):
    """The part of a request that depends on its messages; ``properties`` is None for a batch."""

    body: bytes
    properties: str | None
    born_ms: int
    flag: int = 0
    sys_flag: int = 0


class MessageColumns:
    """Messages of one lane: ``add`` until ``seal``; then ``split``, ``join`` and ``payload``.

    Attributes:
        lane: the topic, or the queue that the messages are bound to.
        sharding_key: chooses the queue once the route is known.
        deadline: of the last message, by the producer's clock.
        timeout: seconds given for these messages; None: the producer's.
        born_ms: when the first message was made.
        epoch: counts flushes; see ``SendBuffer``.
        spread: over how many queues the messages of a free lane may go.
        fixed: they leave as exactly one request.
        sys_flag, flags: of the messages; ``flags`` is empty when all are 0.
        size: bytes that they take of a batch, and of the producer's bound of bytes.
        tails: by index, the properties that follow the unique id.
        futures: each ends with its message's receipt or error.
    """

    __slots__ = (
        *("bodies", "born_ms", "deadline", "epoch", "fixed", "flags", "futures", "ids", "lane"),
        *("sharding_key", "size", "spread", "sys_flag", "tails", "texts", "timeout", "topic"),
    )

    def __init__(
        self,
        topic: str,
        lane: str | MessageQueue,
        deadline: float,
        born_ms: int,
        *,
        epoch: int = 0,
        spread: int = 1,
        fixed: bool = False,
        sys_flag: int = 0,
    ) -> None:
        self.topic = topic
        self.lane = lane
        self.deadline = deadline
        self.born_ms = born_ms
        self.epoch = epoch
        self.spread = spread
        self.fixed = fixed
        self.sys_flag = sys_flag
        self.sharding_key: str | None = None
        self.timeout: float | None = None
        self.size = 0
        self.bodies: list[bytes] = []
        self.tails: dict[int, str] = {}
        self.flags: list[int] = []
        self.futures: list[Future[Receipt]] = []
        self.ids: list[str] = []
        self.texts: list[bytes] = []

    @property
    def count(self) -> int:
        """Messages."""
        return len(self.bodies)

    @property
    def queue(self) -> MessageQueue | None:
        """The queue that they have to go to; None: any will do."""
        return self.lane if isinstance(self.lane, MessageQueue) else None

    def seal(self, take_ids: Callable[[int], list[str]]) -> None:
        """Give each message its unique id and encode its properties."""
        ids = self.ids = take_ids(len(self.bodies))
        if self.tails:
            tail = self.tails.get
            self.texts = [
                f"{ID_NAME}{one}{tail(index, '')}".encode() for index, one in enumerate(ids)
            ]
        else:
            self.texts = (ID_NAME + _NEXT_ID_NAME.join(ids)).encode().split(b"\n")

    def fitting(self, messages: int, size: int) -> int:
        """How many of the first messages fit into so many messages and bytes."""
        if self.size <= size:
            return min(messages, len(self.bodies))
        ends = accumulate(
            len(body) + len(text) + ELEMENT_BYTES
            for body, text in zip(self.bodies[:messages], self.texts, strict=False)
        )
        return bisect_right(list(ends), size)

    def split(self, count: int) -> MessageColumns:
        """Take the first messages away, as columns of their own."""
        first = MessageColumns(
            self.topic,
            self.lane,
            self.deadline,
            self.born_ms,
            epoch=self.epoch,
            spread=self.spread,
            sys_flag=self.sys_flag,
        )
        for name in ("bodies", "texts", "ids", "futures"):
            column = getattr(self, name)
            setattr(first, name, column[:count])
            del column[:count]
        first.size = ELEMENT_BYTES * count + sum(map(len, first.bodies + first.texts))
        self.size -= first.size
        return first

    def join(self, later: MessageColumns) -> None:
        """Append sealed messages of the same lane and epoch."""
        self.bodies += later.bodies
        self.texts += later.texts
        self.ids += later.ids
        self.futures += later.futures
        self.flags += later.flags
        self.size += later.size
        self.deadline = later.deadline

    def payload(self) -> Payload:
        """What a request carries; the same at each attempt."""
        if len(self.bodies) == 1:
            flag = self.flags[0] if self.flags else 0
            text = self.texts[0].decode()
            return Payload(self.bodies[0], text, self.born_ms, flag, self.sys_flag)
        if any(self.flags):
            body = batches.encode(zip(self.flags, self.bodies, self.texts, strict=True))
        else:
            body = batches.encode_columns(self.bodies, self.texts)
        return Payload(body, None, self.born_ms, sys_flag=self.sys_flag)


class SendLane:
    """The sealed messages of one key that wait, and how many requests are in flight."""

    __slots__ = ("count", "in_flight", "key", "since", "size", "spread", "waiting")

    def __init__(self, key: str | MessageQueue) -> None:
        self.key = key
        self.waiting: deque[MessageColumns] = deque()
        self.count = 0
        self.size = 0
        self.since = 0.0
        self.in_flight = 0
        self.spread = 1

    @property
    def ordered(self) -> bool:
        """Whether at most one request may be in flight."""
        return isinstance(self.key, MessageQueue)


class SendLanes:
    """All lanes of one producer: which messages leave together, and when.

    A lane is ripe when its oldest message has waited ``linger`` seconds or a full batch is there.
    With ``linger`` 0 it is ripe at once, and the owner calls ``take`` once per turn of the loop.

    Args:
        linger: seconds for which a message may wait for others.
        max_batch_messages, max_batch_bytes: bounds of one request.
    """

    def __init__(self, *, linger: float, max_batch_messages: int, max_batch_bytes: int) -> None:
        self._linger = linger
        self._max_batch_messages = max_batch_messages
        self._max_batch_bytes = max_batch_bytes
        self._lanes: dict[str | MessageQueue, SendLane] = {}
        self._busy: dict[str | MessageQueue, SendLane] = {}

    @property
    def waiting(self) -> bool:
        """Whether any message has not left yet."""
        return bool(self._busy)

    def add(self, columns: MessageColumns, now: float) -> bool:
        """Queue sealed messages at ``now`` (monotonic seconds); True when a full batch is ready."""
        lane = self._busy.get(columns.lane)
        if lane is None:
            lane = self._lanes.get(columns.lane)
            if lane is None:
                lane = self._lanes[columns.lane] = SendLane(columns.lane)
            self._busy[columns.lane] = lane
            lane.since = now
        lane.spread = columns.spread
        lane.waiting.append(columns)
        lane.count += columns.count
        lane.size += columns.size
        return self._full(lane) and not (lane.in_flight and lane.ordered)

    def take(self, now: float, *, everything: bool = False) -> list[MessageColumns]:
        """The requests that may leave now; ``everything`` doesn't wait for linger."""
        requests: list[MessageColumns] = []
        for lane in list(self._busy.values()):
            if lane.ordered:
                if not lane.in_flight and (everything or self._ripe(lane, now)):
                    requests.append(self._cut(lane, self._max_batch_messages))
            elif everything or self._ripe(lane, now):
                most = min(
                    self._max_batch_messages,
                    max(SPREAD_MESSAGES, -(-lane.count // lane.spread)),
                )
                while lane.waiting:
                    requests.append(self._cut(lane, most))
            if not lane.waiting:
                del self._busy[lane.key]
        return requests

    def next_take(self) -> float | None:
        """When to ``expire`` and ``take`` again if nothing else happens before; None: never."""
        times = [
            lane.waiting[0].deadline
            if lane.ordered and lane.in_flight
            else lane.since + self._linger
            for lane in self._busy.values()
        ]
        return min(times, default=None)

    def finished(self, request: MessageColumns) -> bool:
        """A request was acknowledged or given up; True when its lane has more that had to wait."""
        lane = self._lanes[request.lane]
        lane.in_flight -= 1
        if lane.waiting:
            return lane.ordered
        if not lane.in_flight:
            del self._lanes[lane.key]
        return False

    def expire(self, now: float) -> list[MessageColumns]:
        """Take out, for good, what waited behind another request until its deadline."""
        expired: list[MessageColumns] = []
        for lane in list(self._busy.values()):
            waiting = lane.waiting
            while waiting and waiting[0].deadline <= now:
                columns = waiting.popleft()
                lane.count -= columns.count
                lane.size -= columns.size
                expired.append(columns)
            if not waiting:
                del self._busy[lane.key]
                if not lane.in_flight:
                    del self._lanes[lane.key]
        return expired

    def _ripe(self, lane: SendLane, now: float) -> bool:
        return now >= lane.since + self._linger or self._full(lane)

    def _full(self, lane: SendLane) -> bool:
        return lane.count >= self._max_batch_messages or lane.size >= self._max_batch_bytes

    def _cut(self, lane: SendLane, most: int) -> MessageColumns:
        """One request of the lane's first messages, of at most ``most``."""
        waiting = lane.waiting
        request = waiting.popleft()
        if not request.fixed:
            fitting = max(1, request.fitting(most, self._max_batch_bytes))
            if fitting < request.count:
                waiting.appendleft(request)
                request = request.split(fitting)
            else:
                self._fill(request, waiting, most)
        lane.count -= request.count
        lane.size -= request.size
        lane.in_flight += 1
        return request

    def _fill(self, request: MessageColumns, waiting: deque[MessageColumns], most: int) -> None:
        while waiting:
            later = waiting[0]
            # A flush waits for its own epoch only, so a request has messages of one.
            if later.fixed or later.epoch != request.epoch:
                return
            fitting = later.fitting(most - request.count, self._max_batch_bytes - request.size)
            if fitting < later.count:
                if fitting:
                    request.join(later.split(fitting))
                return
            request.join(later)
            waiting.popleft()
