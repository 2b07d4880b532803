"""All consume queues of a store: found by topic and queue id, made on the first message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from broker.store.consume_queue import ConsumeQueue, QueueEnds, QueueSpace
from broker.store.results import OpeningProgress, StoreError
from remoting.protocol.names import validate_topic

_MAX_QUEUE_ID = 2**31 - 1


class QueueTable:
    """The queues; reading never makes one.

    Only the loop's thread changes the table; others may iterate over ``all()``.

    Attributes:
        removals: how often queues were taken off; who kept one looks whether it is still the one.
    """

    def __init__(self, space: QueueSpace, directory: Path) -> None:
        self._space = space
        self._directory = directory
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.get = self._queues.get
        self.removals = 0

    def __len__(self) -> int:
        return len(self._queues)

    def all(self) -> list[ConsumeQueue]:
        """Every queue; a copy."""
        return list(self._queues.values())

    def topics(self) -> list[str]:
        """Sorted names of the topics that have a queue."""
        return sorted({topic for topic, _ in self._queues.copy()})

    def queue_ids(self, topic: str) -> list[int]:
        """Sorted ids of a topic's queues."""
        return sorted(queue_id for name, queue_id in self._queues.copy() if name == topic)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, which gets its files with the first message.

        Raises:
            ValueError: topic or queue id can't be part of a path, or there are too many queues.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            validate_topic(topic)
            if not 0 <= queue_id <= _MAX_QUEUE_ID:
                raise ValueError(f"topic {topic} can't have a queue {queue_id}: count from 0")
            most = self._space.limits.max_queues
            if len(self._queues) >= most:
                raise ValueError(
                    f"queue {queue_id} of topic {topic} would be one more than the {most}"
                    " a store may have: delete unused topics or start another broker"
                )
            queue = self._add(topic, queue_id)
        return queue

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self._space, self._path(topic, queue_id), topic, queue_id)
        self._queues[queue.key] = queue
        return queue

    def _path(self, topic: str, queue_id: int) -> Path:
        return self._directory / topic / str(queue_id)

    def load(self, progress: OpeningProgress) -> None:
        """Find the queues on the disk.

        Raises:
            StoreError: a file does not fit the configuration.
            OpeningGivenUp: ``progress`` says so.
            OSError: a file can't be read.
        """
        files = self._space.files
        for topic in files.list(self._directory):
            try:
                validate_topic(topic)
            except ValueError:
                continue
            for name in files.list(self._directory / topic):
                if name.isascii() and name.isdigit() and str(int(name)) == name:
                    progress.look()
                    queue = self._add(topic, int(name))
                    queue.load()

    def ends(self) -> dict[str, list[QueueEnds]] | None:
        """Where the queues of each topic end; None when one has entries yet to come."""
        found: dict[str, list[QueueEnds]] = {}
        for queue in self._queues.values():
            if not queue.is_whole:
                return None
            ends = queue.ends()
            if ends is not None:
                found.setdefault(queue.topic, []).append(ends)
        return found

    def last_position(self) -> int:
        """Physical offset of one of the log's last messages; 0 when none came lately."""
        return max((queue.last_position() for queue in self._queues.values()), default=0)

    def restore(self, topics: Mapping[str, Iterable[QueueEnds]]) -> None:
        """Take over the queues of a clean stop, without looking at their files."""
        for topic, all_ends in topics.items():
            for ends in all_ends:
                self._add(topic, ends.queue_id).restore(ends)

    def close(self) -> None:
        """Let go of all maps."""
        self._space.maps.close()

    def destroy(self) -> None:
        """Take all queues off the disk. Raises ``OSError``."""
        self._queues.clear()
        self._space.files.remove_directory(self._directory)

    def remove_topic(self, topic: str) -> int:
        """Take a topic's queues off the disk; how many there were.

        Raises:
            StoreError: they can't be removed.
        """
        queues = [queue for queue in self.all() if queue.topic == topic]
        self.removals += 1
        try:
            for queue in queues:
                del self._queues[topic, queue.queue_id]
                queue.remove()
            if queues:
                self._space.files.remove_directory(self._directory / topic)
        except OSError as error:
            raise StoreError(
                f"the queues of topic {topic} in {self._directory / topic} can't be removed"
                f" ({error.strerror}): check the owner of the directory, then delete it again"
            ) from error
        return len(queues)
