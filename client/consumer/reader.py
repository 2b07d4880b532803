"""The queues that a pull consumer reads, and the order in which their messages are returned.

Each queue has a ``Fetcher`` that fills its ``Prefetch``. Queues with messages are served round
robin, one pull response at a time. The application waits for the first message, for a refusal to
raise, or for the close. Cancelling that wait loses no message, because messages are removed only by
``take``, which doesn't wait.

Three offsets advance through a queue: ``next_pull`` (of the next pull), ``position`` (of the next
message to return; stored by an explicit commit) and ``settled`` (``position`` when the application
last asked for messages; stored by an automatic commit). The messages of a pull response form a
chunk, whose bytes count until its last message is returned, because they are in memory until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

from client.config import ConsumerOptions
from client.consumer.fetcher import Fetcher, FetcherOwner
from client.consumer.process_queue import PullBuffer
from client.consumer.received import ReceivedMessage
from client.errors import RemoteError, UsageError
from client.events import Event, deliver
from client.group.view import subscription_data
from client.network.context import ClientContext
from client.serde import Serde
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor, wait_at_most

T = TypeVar("T")
M = TypeVar("M")


class _Chunk(Generic[M]):
    __slots__ = ("end", "index", "messages", "size")

    def __init__(self, messages: Sequence[M], size: int, end: int) -> None:
        self.messages = messages
        self.size = size
        self.end = end
        self.index = 0


class Prefetch(PullBuffer, Generic[M]):
    """The prefetched messages of one queue.

    Args:
        offset_of: returns a message's offset.
        max_messages, max_bytes: pulling waits while the buffer holds this much or more.

    Attributes:
        position: offset of the next message to return; None before ``start``.
        settled: offset up to which the application is done; None: nothing since ``start``.
    """

    def __init__(
        self,
        queue: MessageQueue,
        offset_of: Callable[[M], int],
        *,
        max_messages: int,
        max_bytes: int,
    ) -> None:
        super().__init__(queue, max_messages=max_messages, max_bytes=max_bytes)
        self._offset_of = offset_of
        self._chunks: deque[_Chunk[M]] = deque()
        self.position: int | None = None
        self.settled: int | None = None
        self._started_at: int | None = None

    @property
    def moved(self) -> bool:
        """Whether ``position`` has advanced since ``start``."""
        return self.position != self._started_at

    @property
    def ready(self) -> bool:
        """Whether ``take`` may be called."""
        return self.messages > 0 and not self.paused

    def start(self, offset: int) -> None:
        """Restart at ``offset``: drop the waiting messages."""
        self._chunks.clear()
        self.messages = 0
        self.bytes = 0
        self.next_pull = offset
        self.position = offset
        self.settled = None
        self._started_at = offset

    def rewind(self) -> None:
        """Drop the waiting messages, so that they are pulled again."""
        self._chunks.clear()
        self.messages = 0
        self.bytes = 0
        self.next_pull = self.position

    def put(self, messages: Sequence[M], size: int, end: int) -> None:
        """See ``PullBuffer``."""
        self.next_pull = end
        if messages:
            self._chunks.append(_Chunk(messages, size, end))
            self.messages += len(messages)
            self.bytes += size
        elif not self._chunks:
            self.position = end
        else:
            self._chunks[-1].end = end

    def take(self, most: int) -> Sequence[M]:
        """Remove and return up to ``most`` messages of the first chunk."""
        chunk = self._chunks[0]
        start = chunk.index
        end = chunk.index = min(start + most, len(chunk.messages))
        self.messages -= end - start
        if end < len(chunk.messages):
            self.position = self._offset_of(chunk.messages[end - 1]) + 1
        else:
            self._chunks.popleft()
            self.bytes -= chunk.size
            self.position = chunk.end
        if start == 0 and end == len(chunk.messages):
            return chunk.messages
        return chunk.messages[start:end]

    @property
    def between_chunks(self) -> bool:
        """Whether no chunk has been returned in part: here the reader switches to other queues."""
        return not self._chunks or self._chunks[0].index == 0

    def settle(self) -> None:
        """Record that the application is done with all messages returned."""
        self.settled = self.position


_OFFSET_OF: Callable[[Any], int] = attrgetter("offset")


class QueueReader(FetcherOwner, Generic[T]):
    """Reads the queues of one pull consumer.

    Args:
        tasks: owns the fetchers' tasks.
        find_start: returns the offset to start a queue at for which no offset was set.
        on_reconnected: called with each queue whose broker may have lost the last commits.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        options: ConsumerOptions,
        serde: Serde[T],
        tasks: Supervisor,
        find_start: Callable[[MessageQueue], Awaitable[int]],
        on_reconnected: Callable[[MessageQueue], None],
    ) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._serde = serde
        self._tasks = tasks
        self._find_start = find_start
        self._on_reconnected = on_reconnected
        self._fetchers: dict[MessageQueue, Fetcher[T, Prefetch[ReceivedMessage[T]]]] = {}
        # Used as ordered sets.
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

    @property
    def cached(self) -> dict[MessageQueue, int]:
        """The number of messages read ahead, by queue. May be read in any thread."""
        # The copy of the items is one step: the event loop's thread can't change them meanwhile.
        return {queue: fetcher.sink.messages for queue, fetcher in list(self._fetchers.items())}

    def prefetch(self, queue: MessageQueue) -> Prefetch[ReceivedMessage[T]]:
        """Return the buffer of a queue. Raises UsageError if the queue isn't assigned."""
        return self._fetchers[queue].sink if queue in self._halted else self._fetcher(queue).sink

    def assign(
        self, queues: Iterable[MessageQueue], expression: TagExpression
    ) -> dict[MessageQueue, int]:
        """Read these queues and no others; one that is read with the same tags continues.

        Returns:
            For each queue given up, the offset up to which the application is done.
        """
        assigned = dict.fromkeys(queues)
        given_up = [
            queue
            for queue, fetcher in self._fetchers.items()
            if queue not in assigned or fetcher.expression != expression
        ]
        for queue in given_up:
            self.settle_queue(queue)
        settled = self.settled()
        for queue in given_up:
            self.drop(queue)
        for queue in assigned:
            if queue not in self._fetchers:
                self._add(queue, expression)
        return {queue: settled[queue] for queue in given_up if queue in settled}

    def add(self, queue: MessageQueue, expression: TagExpression, offset: int) -> None:
        """Read one more queue, from ``offset`` on."""
        self._add(queue, expression)
        self._fetchers[queue].sink.start(offset)

    def filter(self, queue: MessageQueue, expression: TagExpression) -> None:
        """Change a queue's tags from its position on; prefetched messages are dropped.

        A halted queue keeps its tags, because it goes to another member.
        """
        if queue in self._halted:
            return
        sink = self._fetcher(queue).sink
        self._fetchers[queue].cancel()
        self._ready.pop(sink, None)
        sink.rewind()
        self._fetch(sink, expression)

    def halt(self, queue: MessageQueue) -> None:
        """Stop reading and returning messages of a queue; keep its position until ``drop``."""
        if queue not in self._halted:
            sink = self._fetcher(queue).sink
            self._halted.add(queue)
            self._fetchers[queue].cancel()
            sink.pause()
            self._ready.pop(sink, None)

    async def finished(self, queue: MessageQueue, deadline: float) -> None:
        """Wait until the application is done with a queue's messages.

        Args:
            deadline: event loop time at which the wait ends in any case.
        """
        now = asyncio.get_running_loop().time
        while self._fetchers[queue].sink in self._handed_out and now() < deadline:
            await wait_at_most(deadline - now(), self._asked_again)

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
        """Stop reading a queue and forget its state."""
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
        """Continue at ``offset``; the pull in flight and prefetched messages are dropped."""
        fetcher = self._fetcher(queue)
        fetcher.cancel()
        self._forget(fetcher.sink)
        fetcher.sink.start(offset)
        fetcher.start(self._tasks)

    def pause(self, queue: MessageQueue) -> None:
        """Stop pulling and returning messages of a queue until ``resume``."""
        prefetch = self._fetcher(queue).sink
        prefetch.pause()
        self._ready.pop(prefetch, None)

    def resume(self, queue: MessageQueue) -> None:
        """Pull and return messages of a paused queue again."""
        fetcher = self._fetcher(queue)
        fetcher.sink.resume()
        fetcher.wake()
        if fetcher.sink.ready:
            self.fetched(fetcher.sink, 0.0)

    def subscriptions(self, version_ms: int) -> list[SubscriptionData]:
        """Return the subscriptions for heartbeats."""
        by_topic = {queue.topic: fetcher.expression for queue, fetcher in self._fetchers.items()}
        return [
            subscription_data(topic, expression, version_ms)
            for topic, expression in by_topic.items()
        ]

    # Returning messages

    @property
    def ready(self) -> bool:
        """Whether ``take`` returns any message."""
        return bool(self._ready)

    def take(self, most: int) -> list[ReceivedMessage[T]]:
        """Remove and return up to ``most`` prefetched messages; doesn't wait."""
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
                # Move the queue to the end, so that the other queues are served first.
                del ready[prefetch]
                ready[prefetch] = None
        return taken

    async def wait(self, timeout: float | None) -> None:
        """Wait for messages, a refusal or ``wake``, at most ``timeout`` seconds."""
        if not self._ready and not self._refusals and timeout != 0:
            await wait_at_most(timeout, self._woken)

    def wake(self) -> None:
        """Wake all callers of ``wait``."""
        self._woken.set()
        self._woken.clear()

    def raise_refusal(self) -> None:
        """Raise the next broker refusal that was not raised to the application yet, if any."""
        if self._refusals:
            raise self._refusals.pop(next(iter(self._refusals)))

    # Progress

    def settle(self) -> None:
        """Settle all messages returned: the application asks for more, so it is done with them."""
        for prefetch in self._handed_out:
            prefetch.settle()
        self._handed_out.clear()
        self._asked_again.set()
        self._asked_again.clear()

    def settle_queue(self, queue: MessageQueue) -> None:
        """Settle the messages returned from a queue that the application gives up."""
        sink = self._fetchers[queue].sink
        if sink in self._handed_out:
            del self._handed_out[sink]
            sink.settle()
            self._asked_again.set()
            self._asked_again.clear()

    def positions(self) -> dict[MessageQueue, int]:
        """Return the position of each queue whose position has advanced.

        All messages before it were returned or filtered out.
        """
        return {
            queue: fetcher.sink.position
            for queue, fetcher in self._fetchers.items()
            if fetcher.sink.position is not None and fetcher.sink.moved
        }

    def settled(self) -> dict[MessageQueue, int]:
        """Return for each queue the offset up to which the application is done."""
        offsets: dict[MessageQueue, int] = {}
        for queue, fetcher in self._fetchers.items():
            prefetch = fetcher.sink
            if prefetch not in self._handed_out and prefetch.moved:
                prefetch.settle()
            if prefetch.settled is not None:
                offsets[queue] = prefetch.settled
        return offsets

    # Called by the fetchers (``FetcherOwner``)

    async def find_start(self, queue: MessageQueue) -> int:
        """Return the offset to start a queue at for which no offset was set."""
        return await self._find_start(queue)

    def fetched(self, prefetch: Prefetch[Any], _: float) -> None:
        """Make a queue ready after messages were pulled."""
        if prefetch.ready:
            self._ready[prefetch] = None
        if self._refusals:
            self._refusals.pop(prefetch.queue, None)
        self.wake()

    def refused(self, queue: MessageQueue, error: RemoteError) -> None:
        """Record a broker's refusal, for ``raise_refusal``."""
        self._refusals[queue] = error
        self.wake()

    def reconnected(self, queue: MessageQueue) -> None:
        """Have the queue's offset committed again."""
        self._on_reconnected(queue)

    async def group_unknown(self, _: str) -> None:
        """Send a heartbeat to all brokers, one of which doesn't know the group."""
        self._context.heartbeat_soon()

    def tell(self, event: Event) -> None:
        """Pass an event to the application."""
        deliver(event, self._options.on_event, self._group)
