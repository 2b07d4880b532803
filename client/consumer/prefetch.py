"""The prefetched messages of one queue of a pull consumer. Does no I/O.

Three offsets advance through the queue: ``next_pull`` (of the next pull), ``position`` (of the next
message to return; stored by an explicit commit) and ``settled`` (``position`` when the application
last asked for messages; stored by an automatic commit). The messages of a pull response form a
chunk, whose bytes count until its last message is returned, because they are in memory until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from client.consumer.process_queue import PullBuffer
from remoting.protocol.queue import MessageQueue

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
