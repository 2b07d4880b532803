"""A broker in memory with scripted answers, whose connections a reader leases."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remoting.blocking import Place
from remoting.errors import RemotingError
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from remoting.protocol.message import properties
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.message.view import iter_records
from spark_connector.source.options import ReadOptions
from spark_connector.source.ranges import RangePartition

HOST = host_bytes("127.0.0.1", 10911)
ADDRESS, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"
TAGS = ("red", "green", "blue", "grey")

Special = Callable[[PullMessageRequestHeader], Command | Exception | None]


def record(offset: int, *, body: bytes | None = None, tag: str | None = None) -> bytes:
    """A record of the queue; its body is its offset."""
    facts = {properties.TAGS: tag or TAGS[offset % len(TAGS)]}
    return encode_record(
        topic="T",
        body=b"%d" % offset if body is None else body,
        properties=properties.encode(facts),
        born_host=HOST,
        store_host=HOST,
        queue_id=3,
        queue_offset=offset,
        physical_offset=offset * 1000,
    )


def answer(code: int, after: int = 0, low: int = 0, high: int = 0, body: bytes = b"") -> Command:
    """An answer to a pull."""
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=after, min_offset=low, max_offset=high
    )
    return Command(code, header=header, body=body)


class FakeBroker:
    """Serves one queue.

    Args:
        low, high: offsets that are there.
        cap: messages a pull may bring.
        order: which of the requests in flight is answered next, again and again.

    Attributes:
        special: answers a pull in place of the broker; an exception ends the connection.
        holes: offsets whose records are gone, though those around them are there.
        asked: what pulls wanted, in order: offset and count.
        leases: addresses that were connected to.
        returned: connections that came back in order.
    """

    def __init__(
        self, low: int = 0, high: int = 1000, *, cap: int = 1024, order: Sequence[int] = ()
    ) -> None:
        self.low, self.high, self.cap = low, high, cap
        self.special: Special = lambda _: None
        self.holes: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.leases: list[str] = []
        self.returned = 0
        self.order = deque(order)

    @contextmanager
    def lease(self, address: str) -> Iterator[Any]:
        self.leases.append(address)
        connection = FakeConnection(self)
        yield connection
        assert not connection.waiting
        self.returned += 1

    def serve(self, request: Command) -> Command:
        header = wire(request).read(PullMessageRequestHeader)
        self.asked.append((header.queue_offset, header.max_msg_nums))
        special = self.special(header)
        if isinstance(special, Exception):
            raise special
        return special or self._pull(header)

    def _pull(self, header: PullMessageRequestHeader) -> Command:
        offset, low, high = header.queue_offset, self.low, self.high
        if offset < low:
            return answer(ResponseCode.PULL_OFFSET_MOVED, low, low, high)
        if offset > high:
            return answer(ResponseCode.PULL_OFFSET_MOVED, high, low, high)
        if offset == high:
            return answer(ResponseCode.PULL_NOT_FOUND, high, low, high)
        tags = TagExpression.parse(header.subscription)
        found = []
        at = offset
        while at < min(high, offset + 800) and len(found) < min(header.max_msg_nums, self.cap):
            if at not in self.holes and tags.matches(TAGS[at % len(TAGS)]):
                found.append(record(at))
            at += 1
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
        return answer(code, at, low, high, b"".join(found))


class FakeConnection:
    """The part of a connection that a reader uses."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._opaque = 0
        self.waiting: list[tuple[int, Command]] = []

    def submit(self, request: Command, *, timeout: float) -> int:
        self._opaque += 1
        self.waiting.append((self._opaque, request))
        return self._opaque

    def receive(self, *, timeout: float, place: Place) -> Command:
        order = self._broker.order
        choice = order.popleft() if order else 0
        order.append(choice)
        opaque, request = self.waiting.pop(choice % len(self.waiting))
        received = wire(self._broker.serve(request))
        received.opaque = opaque
        body = received.body
        target = place(received, len(body)) if body else None
        if target is not None:
            target[:] = body
            received.body = target
        return received


def wire(command: Command) -> Command:
    """Return a command as decoded at the other end."""
    frame = cut(encode(command))
    assert frame is not None
    return decode(frame)


class FakeDecoder:
    """Batches are lists of ``(offset, body)``."""

    class _Decoded:
        def __init__(self, batch: list[tuple[int, bytes]]) -> None:
            self.batch = batch
            self.rows = len(batch)
            self.skipped = self.damaged = 0

    def batches(
        self,
        buffer: memoryview,
        *,
        first_offset: int,
        end_offset: int,
        tags: TagExpression | None,
        max_rows: int,
    ) -> Iterator[Any]:
        yield self._Decoded(
            [
                (record.queue_offset, bytes(record.body))
                for record in iter_records(buffer)
                if first_offset <= record.queue_offset < end_offset
                and (tags is None or tags.matches(record.tags))
            ]
        )


class Clock:
    """A clock that advances only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def partition(start: int, end: int, *addresses: str) -> RangePartition:
    """A range of the queue."""
    return RangePartition("T", "broker-a", 3, start, end, addresses or (ADDRESS,))


def options(**others: Any) -> ReadOptions:
    """Return the options of a read."""
    return ReadOptions(group="spark", **others)


def lost(reason: str = "reset") -> RemotingError:
    """Return the error of a closed connection."""
    return RemotingError(ADDRESS, reason)
