"""Who asked to hear about which topic's route: the bookkeeping of SUBSCRIBE_ROUTE, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from nameserver.limits import MAX_WATCHED_TOPICS, MAX_WATCHES

C = TypeVar("C", bound=Hashable)
"""A connection."""


class WatchLimitError(Exception):
    """More topics than one connection, or all together, may ask for."""


class Watches(Generic[C]):
    """Connection <-> topics, bounded per connection and in all."""

    def __init__(
        self, *, max_topics: int = MAX_WATCHED_TOPICS, max_watches: int = MAX_WATCHES
    ) -> None:
        self._max_topics = max_topics
        self._max_watches = max_watches
        self._topics: dict[C, frozenset[str]] = {}
        self._connections: dict[str, set[C]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def set(self, connection: C, topics: Collection[str]) -> None:
        """Replace what a connection wants to hear about; nothing ends it.

        Raises:
            WatchLimitError: too many topics; what it asked for before stays.
        """
        wanted = frozenset(topics)
        if len(wanted) > self._max_topics:
            raise WatchLimitError(
                f"{len(wanted)} topics are more than the {self._max_topics} that one connection "
                "may watch; watch those in use and ask for the others' routes now and then"
            )
        held = self._topics.get(connection, frozenset())
        if self._count - len(held) + len(wanted) > self._max_watches:
            raise WatchLimitError(
                f"{self._max_watches} topics are watched already, the most this name server "
                "takes; ask for routes now and then instead"
            )
        self.forget(connection)
        if wanted:
            self._topics[connection] = wanted
            self._count += len(wanted)
            for topic in wanted:
                self._connections.setdefault(topic, set()).add(connection)

    def forget(self, connection: C) -> None:
        """A connection ended."""
        held = self._topics.pop(connection, frozenset())
        self._count -= len(held)
        for topic in held:
            connections = self._connections[topic]
            connections.discard(connection)
            if not connections:
                del self._connections[topic]

    def concerned(self, topics: Iterable[str]) -> Iterator[tuple[C, str]]:
        """Whom to tell about which of these topics."""
        for topic in topics:
            for connection in tuple(self._connections.get(topic, ())):
                yield connection, topic
