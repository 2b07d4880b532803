"""Messages read ahead of one queue, and how far they were handed out. Without I/O.

Three offsets advance through the queue: ``next_pull`` (pulled next), ``position`` (handed out next;
a commit stores it) and ``settled`` (handed out before the latest call for more; an automatic commit
stores it). Answers are kept as they came, one chunk each; a chunk's bytes count until its last
message is handed out, because they are in memory that long.
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
    """The messages of one queue that wait to be handed out.

    Args:
        offset_of: a message's offset.
        max_messages, max_bytes: no more is pulled while so much waits.
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
        """Whether anything was handed out, or passed over, since ``start``."""
        return self.position != self._started_at

    @property
    def ready(self) -> bool:
        """Whether something can be handed out."""
        return self.messages > 0 and not self.paused

    def start(self, offset: int) -> None:
        """Go to ``offset``; messages that wait are dropped."""
        self._chunks.clear()
        self.messages = 0
        self.bytes = 0
        self.next_pull = offset
        self.position = offset
        self.settled = None
        self._started_at = offset

    def rewind(self) -> None:
        """Drop the messages that wait, to pull them again."""
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
        """Hand out at most ``most`` messages of the first chunk."""
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
        """Whether the first waiting chunk is untouched: the place to take turns with others."""
        return not self._chunks or self._chunks[0].index == 0

    def settle(self) -> None:
        """The application is done with all messages handed out."""
        self.settled = self.position
