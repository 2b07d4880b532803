"""The inside of a consumer without a broker: messages are put in directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from client import serde
from client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from client.consumer.concurrent import ConcurrentDispatcher
from client.consumer.handler import MessageHandler
from client.consumer.handler_pool import HandlingLimits
from client.consumer.options import PushOptions
from client.consumer.orderly import OrderlyDispatcher
from client.consumer.outcome import MessageOutcome
from client.consumer.received import ReceivedMessage, messages_of
from client.events import Start
from client.group.start_offsets import OffsetStore
from client.limits import BLOCKED_LOOP
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor

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


class Shelf(OffsetStore):
    """Records sent-back messages and commits; the test sets whether they succeed."""

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


class Alone:
    """A context without a broker, and a member without a group.

    Pulls come no further than to ask for a route; ``asked`` counts them.
    """

    group = "g"

    def __init__(self, events: list[Any]) -> None:
        self.locks: dict[MessageQueue, bool] = {}
        self.asked = 0
        self.routes = self.clock = self
        self._events = events

    async def to_read(self, _: str) -> Any:
        self.asked += 1
        await asyncio.Event().wait()

    def now_ms(self) -> int:
        return 42

    def heartbeat_soon(self) -> None:
        self._events.append("blocked")

    def expression(self, _: str) -> TagExpression:
        return ALL

    def holds_lock(self, queue: MessageQueue) -> bool:
        return self.locks.get(queue, True)


class Works:
    """Assigned queues, dispatcher and workers of one consumer.

    Args:
        handler: None: messages are taken by the test.
        options: of ``PushOptions``.
    """

    def __init__(
        self,
        handler: Callable[[Any], object] | None,
        *,
        kept_pause: float = 0.01,
        blocked_loop: float = BLOCKED_LOOP,
        **options: Any,
    ) -> None:
        self.options = PushOptions(**options)
        self.shelf = Shelf()
        self.events: list[Any] = []
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = Supervisor("test", on_failure=lambda _, e: self.failure.set_result(e))
        alone: Any = Alone(self.events)
        self.alone = alone
        self.locks = self.alone.locks
        self.queues: AssignedQueues[bytes] = AssignedQueues(
            alone, alone, self.options, serde.raw, self.tasks, self.shelf, self.events.append
        )
        self.handler = None if handler is None else MessageHandler(handler, self.options, "test")
        limits = HandlingLimits(kept_pause=kept_pause, blocked_loop=blocked_loop)
        self.dispatcher: ConcurrentDispatcher[bytes] | OrderlyDispatcher[bytes]
        if self.options.order is None:
            self.dispatcher = ConcurrentDispatcher(
                self.queues, self.handler, self.shelf.carry_out, limits
            )
        else:
            self.dispatcher = OrderlyDispatcher(
                self.queues, self.options.order, self.handler, self.shelf.carry_out, limits
            )

    def gain(self, queue: MessageQueue = QUEUE, start: int = 0) -> AssignedQueue[bytes]:
        return self.queues.gain(queue, Start(start, "stored", ""))

    def put(
        self, held: AssignedQueue[bytes], *offsets: int, times: int = 0
    ) -> list[ReceivedMessage[bytes]]:
        """Add the messages of an answer."""
        queue = held.queue
        body = b"".join(record(offset, queue, times=times) for offset in offsets)
        messages = messages_of(body, queue, serde.raw, held)
        held.process_queue.put(messages, len(body), offsets[-1] + 1)
        held.fetched(held.process_queue, 0.0)
        return messages

    def returned(self) -> list[int]:
        return [offset for offset, _ in self.shelf.returned]

    async def close(self) -> None:
        await self.tasks.close()
        if self.handler is not None:
            self.handler.close()


@asynccontextmanager
async def making() -> AsyncIterator[Callable[..., Works]]:
    """Creates ``Works``, and closes them at the end."""
    made: list[Works] = []

    def works(handler: Any, **options: Any) -> Works:
        made.append(Works(handler, **options))
        return made[-1]

    yield works
    for one in made:
        await one.close()


def recorder(got: list[Any]) -> Callable[[ReceivedMessage[Any]], Awaitable[None]]:
    """A handler that returns at once."""

    async def handle(message: ReceivedMessage[Any]) -> None:
        got.append(message.offset)

    return handle
