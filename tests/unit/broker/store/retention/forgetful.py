"""Stores that delete messages, with the disk and the clock that cause it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.store.config import RetentionConfig
from broker.store.consume_queue import ConsumeQueue
from broker.store.engine import MessageStore, PutStatus
from broker.store.os_files import DiskUse, Files
from tests.unit.broker.store.stores import QUEUE_FILE, message, read_all

HOUR = 3600.0
EVERY_HOUR = frozenset(range(24))
PER_QUEUE_FILE = QUEUE_FILE // 20


class Disk(Files):
    """A disk with a settable fill level, or with the store's own size as its limit."""

    def __init__(self) -> None:
        self.use = DiskUse(10, 90)
        self.use_error: OSError | None = None
        self.remove_error: OSError | None = None
        self.on_look: Callable[[], object] = lambda: None

    def disk_use(self, path: Path) -> DiskUse:
        self.on_look()
        if self.use_error is not None:
            raise self.use_error
        return self.use

    def remove(self, path: Path) -> None:
        if self.remove_error is not None:
            raise self.remove_error
        super().remove(path)


def kept(**changes: Any) -> RetentionConfig:
    values: dict[str, Any] = {"delete_hours": EVERY_HOUR, "log_pause_ms": 0}
    return RetentionConfig(**(values | changes))


def fill(
    store: MessageStore, count: int, *, first: int = 0, topic: str = "TopicTest", queue_id: int = 0
) -> None:
    """Store messages whose bodies are their numbers; a log file holds about ninety."""
    for number in range(first, first + count):
        put = message(b"%-64d" % number, topic=topic, queue_id=queue_id)
        assert store.put(put).status is PutStatus.OK
    store.flush()


def numbers(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[int]:
    found = read_all(store, topic, queue_id)
    for record in found:
        assert record.queue_offset == int(record.body)
        assert record.check_crc()
    return [int(record.body) for record in found]


def log_names(store: MessageStore) -> list[int]:
    """Return the first offsets of the log files that exist and are in use."""
    names = sorted(int(path.name) for path in store.paths.commit_log.iterdir())
    assert names[: len(store.log.files)] == [f.start for f in store.log.files]
    return names


def queue_directory(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> Path:
    return store.paths.consume_queues / topic / str(queue_id)


def queue_names(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[int]:
    return sorted(int(path.name) for path in queue_directory(store, topic, queue_id).iterdir())


def queue_of(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> ConsumeQueue:
    queue = store.queues.get((topic, queue_id))
    assert queue is not None
    return queue
