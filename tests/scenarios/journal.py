"""What members handled: by whom, whether twice, in which order, and whether concurrently."""

from __future__ import annotations

from collections import Counter
from typing import Any

from remoting.protocol.queue import MessageQueue


class Journal:
    """The handler calls of one group."""

    def __init__(self) -> None:
        self.fresh: Counter[tuple[str, str]] = Counter()
        """Messages by member and topic, since the last step."""
        self.again: Counter[tuple[str, str]] = Counter()
        """Those of them that had been handled before."""
        self.finished: Counter[tuple[str, bytes]] = Counter()
        self.overlaps: list[str] = []
        self.disorder: list[str] = []
        self.ordered = False
        self._running: dict[MessageQueue, str] = {}
        self._last: dict[MessageQueue, int] = {}

    def begins(self, member: str, message: Any, *, ordered: bool) -> None:
        """Record that a member's handler was called with a message."""
        self.ordered |= ordered
        if ordered:
            other = self._running.get(message.queue)
            if other is not None:
                self.overlaps.append(f"{member} and {other}")
            self._running[message.queue] = member

    def ends(self, member: str, message: Any, *, ordered: bool) -> None:
        """Record that a handler returned."""
        key = (message.topic, bytes(message.body))
        self.fresh[member, message.topic] += 1
        if self.finished[key]:
            self.again[member, message.topic] += 1
        self.finished[key] += 1
        if ordered:
            if message.offset <= self._last.get(message.queue, -1) and not self.finished[key] > 1:
                self.disorder.append(str(message.queue))
            self._last[message.queue] = message.offset

    def returned(self, message: Any) -> None:
        """Record that a handler no longer handles the message."""
        self._running.pop(message.queue, None)

    def turn_over(self) -> None:
        """End a step."""
        self.fresh.clear()
        self.again.clear()

    def count(self, topic: str) -> tuple[int, int]:
        """Return how many messages of a topic were handled, and how many calls were repeats."""
        of_topic = [times for (name, _), times in self.finished.items() if name == topic]
        return len(of_topic), sum(of_topic) - len(of_topic)
