"""The process queue: the prefetched messages of one queue and its commit point. Does no I/O.

The messages of one pull response form a chunk. A run is a contiguous part of a chunk. Waiting runs
are kept in a deque sorted by offset; runs being handled are in a set. A run shrinks from the left
as its messages are settled, may return its remaining messages, or ends, so there is no state per
message.

The commit point, the lowest unsettled offset, is the minimum of the first offset of each handled
run and of the first waiting run. If there are none, it is the offset of the next pull, because
messages that the filter excluded count as done (cf. ProcessQueue.removeMessage).

The bytes of a chunk count until its last message is settled, because they are in memory until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence, Set
from typing import Any, Generic, Protocol, TypeVar

from client.consumer.outcome import MessageOutcome
from client.consumer.rates import TopicCounts
from remoting.protocol.queue import MessageQueue


class Numbered(Protocol):
    """A message, as far as the process queue needs it: something with a queue offset."""

    @property
    def offset(self) -> int: ...


M = TypeVar("M", bound=Numbered)


class Chunk(Generic[M]):
    """The messages of one pull response that match the subscription.

    Attributes:
        size: bytes that the response occupies in memory.
        left: number of messages that are not settled.
    """

    __slots__ = ("left", "messages", "size")

    def __init__(self, messages: Sequence[M], size: int) -> None:
        self.messages = messages
        self.size = size
        self.left = len(messages)


class Run(Generic[M]):
    """A contiguous part of a chunk: the indexes from ``start`` up to, not including, ``end``.

    Attributes:
        at: index of the message being handled; those before it are done.
        waits: whether the handler of that message is suspended, or has been.
        abandoned: whether its handler timed out or its queue was lost: its result is ignored.
    """

    __slots__ = ("abandoned", "at", "chunk", "end", "queue", "start", "waits")

    def __init__(self, queue: ProcessQueue[M], chunk: Chunk[M], start: int, end: int) -> None:
        self.queue = queue
        self.chunk = chunk
        self.start = start
        self.end = end
        self.at = start
        self.waits = False
        self.abandoned = False

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def messages(self) -> Sequence[M]:
        """Its messages, in order."""
        if self.start == 0 and self.end == len(self.chunk.messages):
            return self.chunk.messages
        return self.chunk.messages[self.start : self.end]

    @property
    def offset(self) -> int:
        """The offset of its first message."""
        return self.chunk.messages[self.start].offset

    def holds(self, offset: int) -> bool:
        """Return whether the message at ``offset`` is in this run and not done yet."""
        messages = self.chunk.messages
        at = max(self.at, self.start)
        return at < self.end and messages[at].offset <= offset <= messages[self.end - 1].offset


class PullBuffer(ABC):
    """The messages of one queue in a consumer's memory; a ``Fetcher`` adds to it.

    Args:
        max_messages, max_bytes: pulling waits while the buffer holds this much or more.

    Attributes:
        next_pull: offset of the next pull; None: not known yet.
        paused: nothing is pulled or dispatched.
        messages, bytes: number and size of the buffered messages.
    """

    def __init__(self, queue: MessageQueue, *, max_messages: int, max_bytes: int) -> None:
        self.queue = queue
        self.paused = False
        self.messages = 0
        self.bytes = 0
        self.next_pull: int | None = None
        self._max_messages = max_messages
        self._max_bytes = max_bytes

    @property
    def full(self) -> bool:
        """Whether the buffer holds its maximum of messages or bytes."""
        return self.messages >= self._max_messages or self.bytes >= self._max_bytes

    @abstractmethod
    def start(self, offset: int) -> None:
        """Set the offset of the next pull and drop the waiting messages."""

    @abstractmethod
    def put(self, messages: Sequence[Any], size: int, end: int) -> None:
        """Add the messages of a pull response.

        Args:
            messages: the messages that match the subscription, in order.
            size: bytes that the whole response occupies in memory.
            end: offset of the next pull.
        """

    def pause(self) -> None:
        """Stop pulling and dispatching until ``resume``."""
        self.paused = True

    def resume(self) -> None:
        """Allow pulling and dispatching again."""
        self.paused = False


class ProcessQueue(PullBuffer, Generic[M]):
    """The messages of one queue at a push consumer.

    Args:
        max_span: pulling waits while the newest message is this many offsets or more ahead of the
            commit point; None: without limit.
        counts: counts the messages, of all queues of the topic together.

    Attributes:
        dropped: whether the queue was lost: nothing is added any more.
        active: the runs being handled.
        outcomes: by offset, outcomes that the application has set on messages being handled.
        failures: by offset, number of failures of messages that are retried locally.
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        max_messages: int,
        max_bytes: int,
        max_span: int | None = None,
        counts: TopicCounts | None = None,
    ) -> None:
        super().__init__(queue, max_messages=max_messages, max_bytes=max_bytes)
        self.counts = counts or TopicCounts()
        self.dropped = False
        self.active: set[Run[M]] = set()
        self.outcomes: dict[int, MessageOutcome] = {}
        self.failures: dict[int, int] = {}
        self._max_span = max_span
        self._waiting: deque[Run[M]] = deque()
        self._newest = -1
        self._floor = 0

    # Pulled messages

    def start(self, offset: int) -> None:
        """Restart at ``offset``: drop the waiting messages, and forget those being handled."""
        self._waiting.clear()
        self.active.clear()
        self.outcomes.clear()
        self.failures.clear()
        self.messages = 0
        self.bytes = 0
        self.next_pull = offset
        self._floor = offset
        self._newest = offset - 1

    def put(self, messages: Sequence[M], size: int, end: int) -> None:
        """See ``PullBuffer``."""
        if self.dropped:
            return
        self.next_pull = end
        if not messages:
            return
        self._waiting.append(Run(self, Chunk(messages, size), 0, len(messages)))
        self.messages += len(messages)
        self.counts.pulled += len(messages)
        self.bytes += size
        self._newest = messages[-1].offset

    @property
    def full(self) -> bool:
        """Whether pulling must wait: a limit is reached, or the queue was dropped."""
        if self.messages >= self._max_messages or self.bytes >= self._max_bytes or self.dropped:
            return True
        if self._max_span is None or self._newest - self._floor < self._max_span:
            return False
        self._floor = self.commit_point or 0
        return self._newest - self._floor >= self._max_span

    # Handled messages

    @property
    def ready(self) -> bool:
        """Whether ``take`` may be called."""
        return bool(self._waiting) and not self.paused and not self.dropped

    @property
    def waiting(self) -> bool:
        """Whether any messages wait to be handled."""
        return bool(self._waiting)

    def take(self, most: int) -> Run[M]:
        """Move up to ``most`` of the first waiting messages, all of one chunk, to a handled run."""
        waiting = self._waiting
        span = waiting[0]
        start = span.start
        if span.end - start <= most:
            waiting.popleft()
            self.active.add(span)
            return span
        span.start = span.at = start + most
        run = Run(self, span.chunk, start, start + most)
        self.active.add(run)
        return run

    def cut(self, run: Run[M], count: int) -> None:
        """Settle the first ``count`` messages of a run as done; others are still being handled."""
        if run not in self.active:
            return
        run.start += count
        run.at = max(run.at, run.start)
        if run.start == run.end:
            self.active.discard(run)
        self.counts.done += count
        self._release(run.chunk, count)

    def finish(self, run: Run[M]) -> None:
        """Settle all messages of a run as done."""
        if run in self.active:
            self.active.discard(run)
            self.counts.done += run.end - run.start
            self._release(run.chunk, run.end - run.start)

    def _release(self, chunk: Chunk[M], count: int) -> None:
        assert 0 <= count <= chunk.left, "each message is settled once"
        chunk.left -= count
        self.messages -= count
        if chunk.left == 0:
            self.bytes -= chunk.size

    def give_back(self, run: Run[M], keep: int = 0) -> None:
        """Make all messages of a run except the first ``keep`` wait again, in offset order."""
        if run not in self.active:
            return
        middle = run.start + keep
        if middle < run.end:
            waiting = self._waiting
            rest = Run(self, run.chunk, middle, run.end)
            offset = rest.offset
            index = 0
            while index < len(waiting) and waiting[index].offset < offset:
                index += 1
            waiting.insert(index, rest)
            run.end = middle
        if keep == 0:
            self.active.discard(run)

    def keep_only(self, run: Run[M], kept: Set[int]) -> list[Run[M]]:
        """Settle a run's messages except those at the offsets ``kept``.

        Returns:
            A new run for each kept message. They have no handler, but stay active, so the commit
            point doesn't pass them.
        """
        if run not in self.active:
            return []
        runs = [
            Run(self, run.chunk, index, index + 1)
            for index in range(run.start, run.end)
            if run.chunk.messages[index].offset in kept
        ]
        assert len(runs) == len(kept), "only messages that were taken can be held"
        self.active.discard(run)
        self.active.update(runs)
        self._release(run.chunk, len(run) - len(runs))
        return runs

    def drop(self) -> None:
        """Drop the waiting messages, because the queue was lost; those being handled may finish."""
        self.dropped = True
        if self._waiting:
            # The next owner handles the dropped messages: the commit point must not pass them.
            self.next_pull = self._waiting[0].offset
        for span in self._waiting:
            self._release(span.chunk, len(span))
        self._waiting.clear()

    # Progress

    @property
    def commit_point(self) -> int | None:
        """The lowest unsettled offset; None before ``start``."""
        lowest = self.next_pull
        if lowest is None:
            return None
        if self._waiting:
            lowest = min(lowest, self._waiting[0].offset)
        for run in self.active:
            offset = run.offset
            lowest = min(lowest, offset)
        return lowest

    def run_of(self, offset: int) -> Run[M] | None:
        """Return the run in which the message at ``offset`` is being handled; None: no run."""
        for run in self.active:
            if run.holds(offset):
                return run
        return None
