"""Reading a store's directory without a broker: stopped or running, ours or Apache RocketMQ's.

Nothing is locked and nothing is written, so a reader needs no right but to read, and a broker does
not notice. A view of a running store is true of one moment; messages come after, and retention may
remove files (``StoreChanged``). Neither file sizes nor any other setting of the broker has to be
known. Files are read with ``pread``, never mapped: a file that is shortened under a map ends the
process with a signal, under ``pread`` it is an error.

``StoreView`` finds the files. A ``QueueView`` has a queue's messages and their positions; a
``LogView`` reads the log, by position or from end to end.

    view = StoreView(Path("/var/lib/pocketmq/store"))
    for chunk in view.log.walk(view.log.start, view.log_end().position):
        ...
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.store.results import StoreError
from broker.storetools.view_files import (
    DEFAULT_LIMITS,
    FileRow,
    StoreChanged,
    ViewFile,
    ViewLimits,
    unreadable,
)
from broker.storetools.view_log import Damage, LogChunk, LogEnd, LogView
from broker.storetools.view_queue import QueueRange, QueueView, ViewedRun
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.errors import RecordError

__all__ = [
    "PATH_SEPARATOR",
    "Damage",
    "LogChunk",
    "LogEnd",
    "LogView",
    "QueueRange",
    "QueueView",
    "StoreChanged",
    "StoreError",
    "StoreView",
    "ViewFile",
    "ViewLimits",
    "ViewedRun",
]

PATH_SEPARATOR: Final = ","
"""Between the directories of a commit log (cf. rocketmq.broker.multiPathSplitter)."""


class StoreView:
    """A store's directory.

    Args:
        root: ``storePathRootDir``.
        commit_log: ``storePathCommitLog``, one or several directories; ``root/commitlog`` when
            absent.
        limits: how much to hold at once.

    Raises:
        StoreError: there is no store, or it can't be read; the text says what to do.
    """

    def __init__(
        self,
        root: Path,
        *,
        commit_log: str | os.PathLike[str] | Sequence[Path] | None = None,
        limits: ViewLimits = DEFAULT_LIMITS,
    ) -> None:
        self.root = root
        self._limits = limits
        self._queues = root / "consumequeue"
        directories = _directories(root, commit_log)
        if not any(directory.is_dir() for directory in directories):
            raise StoreError(_no_store(root, directories))
        row = FileRow(directories, "the commit log", limits)
        self.log = LogView(row, synced_ms=self._checkpoint().physic_ms)

    def topics(self) -> list[str]:
        """Topics that have a queue on the disk, sorted. Raises ``StoreError``."""
        return sorted(_subdirectories(self._queues))

    def queues(self, topic: str) -> list[int]:
        """Ids of a topic's queues, ascending; none for a topic that has none."""
        names = _subdirectories(self._queues / _checked(topic))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """One queue; one that isn't there has no messages. Raises ``StoreError``."""
        directory = self._queues / _checked(topic) / str(queue_id)
        row = FileRow([directory], f"queue {queue_id} of topic {topic}", self._limits)
        return QueueView(row, self.log, topic, queue_id)

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """Which messages a queue has. Raises ``StoreError``."""
        return self.queue(topic, queue_id).range()

    def log_end(self) -> LogEnd:
        """Where the log ends now. Raises ``StoreError``."""
        return self.log.find_end(self._last_known())

    def _last_known(self) -> int:
        """Physical offset of the last message that a queue knows of."""
        last = 0
        for topic in self.topics():
            for queue_id in self.queues(topic):
                queue = self.queue(topic, queue_id)
                last = max(last, queue.last_position(queue.range().max_offset))
        return last

    def _checkpoint(self) -> Checkpoint:
        try:
            return Checkpoint.decode((self.root / "checkpoint").read_bytes())
        except (OSError, RecordError):
            # Without one nothing is known to be on the disk, which is the cautious reading.
            return Checkpoint()


def _directories(
    root: Path, commit_log: str | os.PathLike[str] | Sequence[Path] | None
) -> list[Path]:
    if commit_log is None:
        return [root / "commitlog"]
    if isinstance(commit_log, str | os.PathLike):
        names = os.fspath(commit_log).split(PATH_SEPARATOR)
        return [Path(name.strip()) for name in names if name.strip()]
    return list(commit_log)


def _no_store(root: Path, directories: Sequence[Path]) -> str:
    try:
        root.stat()
    except OSError as error:
        return f"there is no store at {root} ({error.strerror}): give its storePathRootDir"
    wanted = ", ".join(map(str, directories))
    return (
        f"there is no commit log at {wanted}: give the store's directory, the one that has"
        " commitlog and consumequeue in it, and the commit log's if it lies elsewhere"
    )


def _checked(topic: str) -> str:
    if not topic or "/" in topic or "\0" in topic or topic in {".", ".."}:
        raise StoreError(f"{topic!r} is not the name of a topic")
    return topic


def _subdirectories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if Path(entry.path).is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(str(path), error) from error
