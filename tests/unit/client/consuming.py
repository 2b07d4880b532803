"""A consumer's inside without a broker: messages are put in by hand, what comes out is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from client import serde
from client.consumer.concurrent import ConcurrentDispatcher
from client.consumer.crew import as_async, is_async
from client.consumer.intake import AssignedQueue, AssignedQueues
from client.consumer.options import PushOptions
from client.consumer.orderly import OrderlyDispatcher, QueueLanes
from client.consumer.outcome import MessageOutcome
from client.consumer.received import ReceivedMessage, messages_of
from client.consumer.threads import HandlerThreads
from client.events import Start
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

HOST = host_bytes("10.0.0.1", 1234)
ALL = TagExpression.parse("*")
QUEUE = MessageQueue("T", "a", 0)


def record(
    offset: int,
    queue: MessageQueue,
    *,
    times: int = 0,
    properties: bytes = b"",
    sys_flag: int = 0,
) -> bytes:
    return encode_record(
        topic=queue.topic,
        body=b"%d" % offset,
        properties=properties or b"UNIQ_KEY\x01%d" % offset,
        born_host=HOST,
        store_host=HOST,
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=1000 + offset,
        sys_flag=sys_flag,
        born_timestamp_ms=1,
        store_timestamp_ms=2,
        reconsume_times=times,
    )


class Shelf:
    """Where messages and offsets go; a test says whether that works."""

    def __init__(self) -> None:
        self.returned: list[tuple[int, MessageOutcome]] = []
        self.works = True
        self.offsets: dict[MessageQueue, int] = {}

    async def carry_out(self, message: ReceivedMessage[Any], outcome: MessageOutcome) -> bool:
        await asyncio.sleep(0)
        self.returned.append((message.offset, outcome))
        return self.works

    async def stored(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        self.offsets[queue] = offset

    async def save(self) -> None:
        pass

    def close(self) -> None:
        pass


class Stub:
    """A fetcher that fetches nothing."""

    expression = ALL
    stalled = False
    carrying = False
    carried = False

    def __init__(self) -> None:
        self.woken = 0

    async def landed(self) -> None:
        """No pull is on its way."""

    def wake(self) -> None:
        self.woken += 1


class HandFed(AssignedQueues[bytes]):
    """An intake whose messages a test puts in."""

    def _fetch(self, held: AssignedQueue[bytes], expression: TagExpression) -> None:
        stub: Any = Stub()
        held.fetcher = stub
        held.fetching = self._tasks.spawn(asyncio.sleep(3600), "no fetching")


class Works:
    """AssignedQueues, way and workers of one consumer.

    Args:
        handler: None: messages are taken by the test.
        options: of ``PushOptions``.
    """

    def __init__(
        self,
        handler: Callable[[Any], object] | None,
        *,
        kept_pause: float = 0.01,
        **options: Any,
    ) -> None:
        self.options = PushOptions(**options)
        self.shelf = Shelf()
        self.events: list[Any] = []
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = Supervisor("test", on_failure=lambda _, e: self.failure.set_result(e))
        self.locks: dict[MessageQueue, bool] = {}
        instance: Any = None
        self.intake = HandFed(
            instance, "g", self.options, serde.raw, self.tasks, self.shelf, self.events.append
        )
        call, cancels, threads = None, True, None
        if handler is not None:
            cancels = is_async(handler)
            if not cancels:
                threads = HandlerThreads("test", self.options.concurrency)
            batches = self.options.batch_size > 1
            call = as_async(handler, threads, self.options.interceptors, batches=batches)
        self.threads = threads
        common = (self.options, self.tasks, "g", call, self.shelf)
        if self.options.order is None:
            self.way: ConcurrentDispatcher[bytes] | OrderlyDispatcher[bytes] = ConcurrentDispatcher(
                self.intake, *common, cancels=cancels, kept_pause=kept_pause
            )
        else:
            lanes: QueueLanes[bytes] = QueueLanes(
                self.intake, self.tasks, self.shelf, lambda queue: self.locks.get(queue, True)
            )
            self.way = OrderlyDispatcher(
                self.intake,
                self.options,
                self.options.order,
                *common[1:],
                lanes,
                cancels=cancels,
                now_ms=lambda: 42,
                on_blocked=lambda: self.events.append("blocked"),
                kept_pause=kept_pause,
            )
        self.intake.on_ready = self.way.crew.wake

    def gain(self, queue: MessageQueue = QUEUE, start: int = 0) -> AssignedQueue[bytes]:
        held = self.intake.gain(queue, Start(start, "stored", ""), ALL)
        self.way.gained(held)
        return held

    def put(
        self, held: AssignedQueue[bytes], *offsets: int, times: int = 0
    ) -> list[ReceivedMessage[bytes]]:
        """An answer with these messages comes."""
        queue = held.queue.queue
        body = b"".join(record(offset, queue, times=times) for offset in offsets)
        messages = messages_of(body, queue, serde.raw, held)
        held.queue.put(messages, len(body), offsets[-1] + 1)
        self.intake.fetched(held.queue)
        return messages

    def returned(self) -> list[int]:
        return [offset for offset, _ in self.shelf.returned]

    async def close(self) -> None:
        await self.tasks.close()
        if self.threads is not None:
            self.threads.close()


@asynccontextmanager
async def making() -> AsyncIterator[Callable[..., Works]]:
    """Makes ``Works``, and closes them in the end."""
    made: list[Works] = []

    def works(handler: Any, **options: Any) -> Works:
        made.append(Works(handler, **options))
        return made[-1]

    yield works
    for one in made:
        await one.close()


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)


def recorder(got: list[Any]) -> Callable[[ReceivedMessage[Any]], Awaitable[None]]:
    """A handler that returns at once."""

    async def handle(message: ReceivedMessage[Any]) -> None:
        got.append(message.offset)

    return handle
