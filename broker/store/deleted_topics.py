"""Which records of the log belong to topics that have been deleted since they were stored.

A deleted topic's records stay in the log: as its messages, and as delayed, timed, half and retried
messages that wait in topics of the broker. If the topic is created again, they are not messages of
the new one. So the end of the log at the deletion is kept in ``config/deletedTopics.json``, until
retention has deleted the log up to there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from broker.store.os_files import Files
from remoting.protocol.accelerated import json_dumps, json_loads

MAX_DELETED_TOPICS: Final = 10_000
"""The file, which each deletion writes, has some 600 KB then. The oldest deletions are dropped."""

_log = structlog.get_logger("store")


class DeletedTopics:
    """The deletions of topics, in the file of one store.

    Attributes:
        ends: by topic, the physical offset of the end of the log when it was deleted.
    """

    def __init__(self, files: Files, path: Path) -> None:
        """Read the file. Raises ``OSError``."""
        self._files = files
        self._path = path
        self.ends: dict[str, int] = {}
        try:
            table = json_loads(files.read(self._path) or b'{"logEnds":{}}')["logEnds"]
            self.ends = {str(topic): int(end) for topic, end in table.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning(
                "the file of deleted topics is damaged: delayed, timed and half messages of a topic"
                " that was deleted may be delivered if it was created again",
                file=str(self._path),
                reason=str(error),
            )

    def is_void(self, topic: str, physical_offset: int) -> bool:
        """Return whether a topic was deleted after the record at an offset was stored."""
        return physical_offset < self.ends.get(topic, 0)

    def add(self, topic: str, log_start: int, log_end: int) -> None:
        """Note the deletion of a topic; it is on the disk afterwards, unless the disk is full."""
        self.ends.pop(topic, None)
        kept = [(name, end) for name, end in self.ends.items() if end > log_start]
        self.ends = dict([*kept[1 - MAX_DELETED_TOPICS :], (topic, log_end)])
        try:
            self._write()
        except OSError as error:
            _log.warning(
                "the deletion of a topic can't be noted: after a crash, its messages may come back",
                topic=topic,
                reason=str(error),
            )

    def fit(self, log_start: int, log_end: int) -> None:
        """Limit the deletions to the log, before it gets new records.

        After a power failure, the log may end before the records of a deleted topic.

        Raises:
            OSError: the file can be neither written nor removed.
        """
        ends = {name: min(end, log_end) for name, end in self.ends.items() if end > log_start}
        if ends != self.ends:
            self.ends = ends
            try:
                self._write()
            except OSError:
                # It must not stay: it would be wrong about the next records.
                self._files.remove(self._path)

    def _write(self) -> None:
        self._files.make_directory(self._path.parent, durable=True)
        self._files.replace(self._path, json_dumps({"logEnds": self.ends}), backup=False)
