"""The committed offset of each group in each queue (cf. ConsumerOffsetManager).

A commit is not validated: topic, group and queue need not exist, and an offset lower than the
stored one is accepted, since an operator's reset needs that. Lower offsets are reported, because
messages will be delivered again. The table is saved in ``config/consumerOffset.json`` as
``topic@group`` -> queue -> offset.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import LimitReached
from broker.limits import LIMITS
from remoting.protocol import names

SEPARATOR = "@"


class ConsumerOffsets:
    """The offsets of all groups.

    Attributes:
        table: ``topic@group`` -> queue id -> next offset to consume.
        version: counts the changes. ``SavedTables`` compares it with the version last written.
    """

    __slots__ = ("_count", "_limit", "_topics", "table", "version")

    def __init__(
        self,
        table: Mapping[str, Mapping[int, int]] | None = None,
        *,
        limit: int = LIMITS.consumer_offsets,
    ) -> None:
        self.table: dict[str, dict[int, int]] = {
            key: dict(queues) for key, queues in (table or {}).items()
        }
        self._topics: dict[str, set[str]] = {}
        for key in self.table:
            topic, _, group = key.partition(SEPARATOR)
            self._topics.setdefault(group, set()).add(topic)
        self._count = sum(map(len, self.table.values()))
        self._limit = limit
        self.version = 0

    def __len__(self) -> int:
        return self._count

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Store an offset; return the previous one if that was higher, else None.

        Raises:
            LimitReached: the table is full and the queue isn't in it.
            ValueError: the name of the topic or group is invalid.
        """
        key = f"{topic}{SEPARATOR}{group}"
        queues = self.table.get(key)
        before = None if queues is None else queues.get(queue_id)
        if before is None:
            if queues is None:
                names.validate_topic(topic)
                names.validate_group(group)
            if self._count >= self._limit:
                raise LimitReached(
                    f"the broker keeps at most {self._limit} consumer offsets; delete unused "
                    f"groups before {group} can commit in {topic}"
                )
            self._count += 1
            queues = self.table.setdefault(key, {})
            self._topics.setdefault(group, set()).add(topic)
        if before == offset:
            return None
        assert queues is not None
        queues[queue_id] = offset
        self.version += 1
        return before if before is not None and offset < before else None

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the stored offset, or -1 if there is none."""
        queues = self.table.get(f"{topic}{SEPARATOR}{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of a group's offsets in a topic, by queue."""
        return dict(self.table.get(f"{topic}{SEPARATOR}{group}", {}))

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which a group has offsets."""
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have offsets in a topic."""
        return {group for group, topics in self._topics.items() if topic in topics}

    def remove_group(self, group: str) -> int:
        """Delete all offsets of a group; return how many there were."""
        topics = self._topics.pop(group, set())
        removed = sum(len(self.table.pop(f"{topic}{SEPARATOR}{group}")) for topic in topics)
        self._count -= removed
        self.version += bool(removed)
        return removed

    def remove_topic(self, topic: str) -> None:
        """Delete the offsets of all groups in a topic."""
        for group in self.groups_of(topic):
            self._count -= len(self.table.pop(f"{topic}{SEPARATOR}{group}"))
            self._topics[group].discard(topic)
            if not self._topics[group]:
                del self._topics[group]
            self.version += 1
