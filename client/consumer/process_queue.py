"""The messages of one queue that are being consumed, and the commit point. Without I/O.

Answers to pulls are kept as they came, as chunks. Waiting messages are spans (a chunk, from, to)
sorted by offset; messages being handled are a set of runs, each a span that was taken. A run
shrinks from the left, gives back messages that it doesn't get to, or ends: nothing is kept, sorted
or counted per message. So the lowest unsettled offset, the commit point, is the minimum of a few
numbers: the first of each run and of the first waiting span. When the queue is empty it is where
the next pull begins, because messages that the filter left out are done, too (cf.
ProcessQueue.removeMessage).

A chunk's bytes count until its last message is settled, because they are in memory that long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Sequence
from typing import Any, Generic, Protocol, TypeVar

from client.consumer.outcome import MessageOutcome
from remoting.protocol.queue import MessageQueue


class Numbered(Protocol):
    """What a process queue needs of a message: its number in the queue."""

    @property
    def offset(self) -> int: ...


M = TypeVar("M", bound=Numbered)


class Chunk(Generic[M]):
    """The wanted messages of one answer.

    Attributes:
        left: how many of them are not settled.
    """

    __slots__ = ("left", "messages", "size")

    def __init__(self, messages: Sequence[M], size: int) -> None:
        self.messages = messages
        self.size = size
        self.left = len(messages)


class Run(Generic[M]):
    """Neighbours of one chunk that one handler has, from ``start`` to before ``end``.

    Attributes:
        at: which of them is being handled; those before it are done.
        waits: the handler of that one waits for something, or has waited.
        over: it timed out and was settled without its handler.
    """

    __slots__ = ("at", "chunk", "end", "over", "queue", "start", "waits")

    def __init__(self, queue: ProcessQueue[M], chunk: Chunk[M], start: int, end: int) -> None:
        self.queue = queue
        self.chunk = chunk
        self.start = start
        self.end = end
        self.at = start
        self.waits = False
        self.over = False

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
        """Whether the message at ``offset`` is one of those that are not settled yet."""
        messages = self.chunk.messages
        at = max(self.at, self.start)
        return at < self.end and messages[at].offset <= offset <= messages[self.end - 1].offset


class PullBuffer(ABC):
    """The messages of one queue that a consumer holds; a ``Fetcher`` fills it.

    Args:
        max_messages, max_bytes: no more is pulled while so much is held.

    Attributes:
        next_pull: where the next pull begins; None: not known yet.
        paused: nothing is pulled and nothing handed out.
        messages, bytes: what is held.
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
        """Whether enough messages are held."""
        return self.messages >= self._max_messages or self.bytes >= self._max_bytes

    @abstractmethod
    def start(self, offset: int) -> None:
        """Go to ``offset``; messages that wait are dropped."""

    @abstractmethod
    def put(self, messages: Sequence[Any], size: int, end: int) -> None:
        """An answer came; ``end`` is where the next pull begins.

        Args:
            messages: those that are wanted, in order.
            size: bytes that the whole answer keeps in memory.
        """

    def pause(self) -> None:
        """Pull nothing and hand out nothing until ``resume``."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False


class ProcessQueue(PullBuffer, Generic[M]):
    """The messages of one queue at its push consumer.

    Args:
        max_span: nothing is pulled while the newest message is so far ahead of the commit point;
            None: without limit.

    Attributes:
        dropped: the queue is another member's: outcomes no longer count.
        outcomes: recorded by offset while a handler runs.
        failures: of messages that were not sent back but kept, by offset.
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        max_messages: int,
        max_bytes: int,
        max_span: int | None = None,
    ) -> None:
        super().__init__(queue, max_messages=max_messages, max_bytes=max_bytes)
        self.dropped = False
        self.active: set[Run[M]] = set()
        self.outcomes: dict[int, MessageOutcome] = {}
        self.failures: dict[int, int] = {}
        self._max_span = max_span
        self._waiting: deque[Run[M]] = deque()
        self._newest = -1
        self._floor = 0

    # What is pulled

    def start(self, offset: int) -> None:
        """Go to ``offset``: drop waiting messages; those being handled no longer count."""
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
        self.bytes += size
        self._newest = messages[-1].offset

    @property
    def full(self) -> bool:
        """Whether enough messages are held, or the queue is dropped."""
        if self.messages >= self._max_messages or self.bytes >= self._max_bytes or self.dropped:
            return True
        if self._max_span is None or self._newest - self._floor < self._max_span:
            return False
        self._floor = self.commit_point or 0
        return self._newest - self._floor >= self._max_span

    # What is handled

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._waiting) and not self.paused and not self.dropped

    @property
    def waiting(self) -> bool:
        """Whether messages wait to be handled."""
        return bool(self._waiting)

    def take(self, most: int) -> Run[M]:
        """The first waiting messages, at most ``most``, all of one chunk."""
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
        """The first ``count`` messages of a run are settled, the others still being handled."""
        if run not in self.active:
            return
        run.start += count
        run.at = max(run.at, run.start)
        if run.start == run.end:
            self.active.discard(run)
        self._release(run.chunk, count)

    def finish(self, run: Run[M]) -> None:
        """All messages of a run are settled."""
        if run in self.active:
            self.active.discard(run)
            self._release(run.chunk, run.end - run.start)

    def _release(self, chunk: Chunk[M], count: int) -> None:
        chunk.left -= count
        self.messages -= count
        if chunk.left == 0:
            self.bytes -= chunk.size

    def give_back(self, run: Run[M], keep: int = 0) -> None:
        """All messages of a run but the first ``keep`` wait again, in their place."""
        if run not in self.active:
            return
        middle = run.start + keep
        if middle < run.end:
            self._insert(Run(self, run.chunk, middle, run.end))
            run.end = middle
        if keep == 0:
            self.active.discard(run)

    def _insert(self, span: Run[M]) -> None:
        waiting = self._waiting
        offset = span.offset
        place = 0
        while place < len(waiting) and waiting[place].offset < offset:
            place += 1
        waiting.insert(place, span)

    def keep_only(self, run: Run[M], kept: Container[int]) -> list[Run[M]]:
        """A run's messages at the offsets ``kept`` stay, each a run of its own; others are settled.

        Returns:
            The new runs; nobody handles them, but they hold the commit point.
        """
        if run not in self.active:
            return []
        runs = [
            Run(self, run.chunk, index, index + 1)
            for index in range(run.start, run.end)
            if run.chunk.messages[index].offset in kept
        ]
        self.active.discard(run)
        self.active.update(runs)
        self._release(run.chunk, len(run) - len(runs))
        return runs

    def drop(self) -> None:
        """The queue is lost: drop waiting messages; those being handled may finish."""
        self.dropped = True
        if self._waiting:
            # The next owner handles the waiting messages: the commit point must not pass them.
            self.next_pull = self._waiting[0].offset
        for span in self._waiting:
            self._release(span.chunk, len(span))
        self._waiting.clear()

    # How far

    @property
    def commit_point(self) -> int | None:
        """The lowest offset that is not settled; None before ``start``."""
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
        """The run in which the message at ``offset`` is being handled."""
        for run in self.active:
            if run.holds(offset):
                return run
        return None
