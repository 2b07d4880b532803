"""The queues that a pull consumer reads, and handing out their messages.

Each queue has a ``Fetcher`` that fills its ``Prefetch``; queues with messages take turns, answer by
answer. The application waits for the first message, for a refusal to raise, or for the end. No
message is lost when such a wait is cancelled: messages leave only in ``take``, which doesn't wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from operator import attrgetter
from typing import Any, Generic, TypeVar

from client.config import ConsumerOptions
from client.consumer.fetcher import Fetcher, FetcherOwner
from client.consumer.prefetch import Prefetch
from client.consumer.received import ReceivedMessage
from client.context import ClientContext
from client.errors import RemoteError, UsageError
from client.events import Event, deliver
from client.group.view import subscription_data
from client.serde import Serde
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

T = TypeVar("T")

_OFFSET_OF: Callable[[Any], int] = attrgetter("offset")


class QueueReader(FetcherOwner, Generic[T]):
    """The reading side of one consumer.

    Args:
        tasks: owns the fetchers' tasks.
        find_start: where a queue begins for which no offset was set.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        options: ConsumerOptions,
        serde: Serde[T],
        tasks: Supervisor,
        find_start: Callable[[MessageQueue], Awaitable[int]],
    ) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._serde = serde
        self._tasks = tasks
        self._find_start = find_start
        self._fetchers: dict[MessageQueue, Fetcher[T, Prefetch[ReceivedMessage[T]]]] = {}
        # Dictionaries without values: sets that keep the order.
        self._ready: dict[Prefetch[ReceivedMessage[T]], None] = {}
        self._handed_out: dict[Prefetch[ReceivedMessage[T]], None] = {}
        self._woken = asyncio.Event()
        self._refusals: dict[MessageQueue, RemoteError] = {}
        self._halted: set[MessageQueue] = set()
        self._asked_again = asyncio.Event()

    # Which queues

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read."""
        return list(self._fetchers)

    def prefetch(self, queue: MessageQueue) -> Prefetch[ReceivedMessage[T]]:
        """The state of a queue. Raises UsageError when it isn't assigned."""
        return self._fetchers[queue].sink if queue in self._halted else self._fetcher(queue).sink

    def assign(self, queues: Iterable[MessageQueue], expression: TagExpression) -> None:
        """Read these queues and no others; one that was read with the same tags goes on."""
        wanted = dict.fromkeys(queues)
        for queue in list(self._fetchers):
            if queue not in wanted or self._fetchers[queue].expression != expression:
                self.drop(queue)
        for queue in wanted:
            if queue not in self._fetchers:
                self._add(queue, expression)

    def add(self, queue: MessageQueue, expression: TagExpression, offset: int) -> None:
        """Read one more queue, from ``offset`` on."""
        self._add(queue, expression)
        self._fetchers[queue].sink.start(offset)

    def filter(self, queue: MessageQueue, expression: TagExpression) -> None:
        """Hand out other messages from here on; messages read ahead are dropped."""
        sink = self._fetcher(queue).sink
        self._fetchers[queue].cancel()
        self._ready.pop(sink, None)
        sink.rewind()
        self._fetch(sink, expression)

    def halt(self, queue: MessageQueue) -> None:
        """Read and hand out nothing more of a queue; its position is kept until ``drop``."""
        if queue not in self._halted:
            sink = self._fetcher(queue).sink
            self._halted.add(queue)
            self._fetchers[queue].cancel()
            sink.pause()
            self._ready.pop(sink, None)

    async def finished(self, queue: MessageQueue, deadline: float) -> None:
        """Wait until the application is done with a queue's messages, or until a loop time."""
        if self._fetchers[queue].sink in self._handed_out:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._asked_again.wait()
            except TimeoutError:
                pass

    def _add(self, queue: MessageQueue, expression: TagExpression) -> None:
        prefetch: Prefetch[ReceivedMessage[T]] = Prefetch(
            queue,
            _OFFSET_OF,
            max_messages=self._options.prefetch_messages,
            max_bytes=self._options.prefetch_bytes,
        )
        self._fetch(prefetch, expression)

    def _fetch(self, sink: Prefetch[ReceivedMessage[T]], expression: TagExpression) -> None:
        fetcher = self._fetchers[sink.queue] = Fetcher(
            self._context,
            self._group,
            sink,
            expression,
            self._options,
            self._serde,
            self,
        )
        fetcher.start(self._tasks)

    def drop(self, queue: MessageQueue) -> None:
        """Read a queue no longer."""
        self._halted.discard(queue)
        fetcher = self._fetchers.pop(queue)
        fetcher.cancel()
        self._forget(fetcher.sink)
        self._refusals.pop(queue, None)

    def _forget(self, prefetch: Prefetch[ReceivedMessage[T]]) -> None:
        self._ready.pop(prefetch, None)
        self._handed_out.pop(prefetch, None)

    def _fetcher(self, queue: MessageQueue) -> Fetcher[T, Prefetch[ReceivedMessage[T]]]:
        if queue in self._halted:
            raise UsageError("the queue goes to another member", queue=queue, group=self._group)
        try:
            return self._fetchers[queue]
        except KeyError:
            raise UsageError(
                "the queue is not assigned", queue=queue, group=self._group, hint="assign it first"
            ) from None

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset``; a pull under way and messages read ahead are dropped."""
        fetcher = self._fetcher(queue)
        fetcher.cancel()
        self._forget(fetcher.sink)
        fetcher.sink.start(offset)
        fetcher.start(self._tasks)

    def pause(self, queue: MessageQueue) -> None:
        """Hand out nothing of a queue."""
        prefetch = self._fetcher(queue).sink
        prefetch.pause()
        self._ready.pop(prefetch, None)

    def resume(self, queue: MessageQueue) -> None:
        """Go on with a paused queue."""
        fetcher = self._fetcher(queue)
        fetcher.sink.resume()
        fetcher.wake()
        if fetcher.sink.ready:
            self.fetched(fetcher.sink)

    def subscriptions(self, version_ms: int) -> list[SubscriptionData]:
        """The subscriptions for heartbeats."""
        by_topic = {queue.topic: fetcher.expression for queue, fetcher in self._fetchers.items()}
        return [
            subscription_data(topic, expression, version_ms)
            for topic, expression in by_topic.items()
        ]

    # Handing out

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something to give."""
        return bool(self._ready)

    def take(self, most: int) -> list[ReceivedMessage[T]]:
        """Hand out at most ``most`` messages."""
        taken: list[ReceivedMessage[T]] = []
        ready = self._ready
        while ready and len(taken) < most:
            prefetch = next(iter(ready))
            was_full = prefetch.full
            taken += prefetch.take(most - len(taken))
            if was_full and not prefetch.full:
                self._fetchers[prefetch.queue].wake()
            self._handed_out[prefetch] = None
            if not prefetch.ready:
                del ready[prefetch]
            elif prefetch.between_chunks:
                # The other queues take their turns.
                del ready[prefetch]
                ready[prefetch] = None
        return taken

    async def wait(self, timeout: float | None) -> None:
        """Wait for messages, a refusal or ``wake``, at most ``timeout`` seconds."""
        if self._ready or self._refusals or timeout == 0:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Let those who wait look again."""
        self._woken.set()
        self._woken.clear()

    def raise_refusal(self) -> None:
        """Raise the next refusal that the application hasn't seen, if there is one."""
        if self._refusals:
            raise self._refusals.pop(next(iter(self._refusals)))

    # How far

    def settle(self) -> None:
        """The application asks for more, so it is done with the messages it has."""
        for prefetch in self._handed_out:
            prefetch.settle()
        self._handed_out.clear()
        self._asked_again.set()
        self._asked_again.clear()

    def positions(self) -> dict[MessageQueue, int]:
        """The position of each queue that was read: all before was handed out or filtered out."""
        return {
            queue: fetcher.sink.position
            for queue, fetcher in self._fetchers.items()
            if fetcher.sink.position is not None and fetcher.sink.moved
        }

    def settled(self) -> dict[MessageQueue, int]:
        """The same, up to the messages that the application is done with."""
        found: dict[MessageQueue, int] = {}
        for queue, fetcher in self._fetchers.items():
            prefetch = fetcher.sink
            if prefetch not in self._handed_out and prefetch.moved:
                prefetch.settle()
            if prefetch.settled is not None:
                found[queue] = prefetch.settled
        return found

    # What fetchers ask and report (``FetcherOwner``)

    async def find_start(self, queue: MessageQueue) -> int:
        """Where a queue begins for which no offset was set."""
        return await self._find_start(queue)

    def fetched(self, prefetch: Prefetch[Any]) -> None:
        """Messages of a queue came."""
        if prefetch.ready:
            self._ready[prefetch] = None
        if self._refusals:
            self._refusals.pop(prefetch.queue, None)
        self.wake()

    def refused(self, queue: MessageQueue, error: RemoteError) -> None:
        """A broker refuses to be read from."""
        self._refusals[queue] = error
        self.wake()

    async def group_unknown(self, _: str) -> None:
        """A broker doesn't know the group: it needs a heartbeat."""
        self._context.heartbeat_soon()

    def tell(self, event: Event) -> None:
        """Pass an event on to the application."""
        deliver(event, self._options.on_event, self._group)
