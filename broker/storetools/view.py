"""Read a store's directory without a broker: stopped or running, PocketMQ's or Apache RocketMQ's.

Nothing is locked or written, so read permission is enough, and a running broker is not affected. A
view of a running store shows one moment: later messages are not seen, and retention may remove
files (``StoreChanged``). No setting of the broker, such as the size of files, is needed. Files are
read with ``pread``, never mapped: reading a map of a file that was shortened kills the process with
SIGBUS, while ``pread`` returns an error.

``StoreView`` finds the files. ``QueueView`` reads the entries of a queue, ``LogView`` the commit
log, at an offset or sequentially.

The files of a queue are preallocated, so the queue ends behind the last entry with a size. Its
first entries may be fillers, or belong to messages that retention has deleted. A broker may be
writing the last entry, or have crashed before its message was synced: entries at the end without a
record are ``torn``, and not counted.

    view = StoreView(Path("/var/lib/pocketmq/store"))
    for chunk in view.log.walk(view.log.start, view.log_end().position):
        ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from broker.store.checkpoint import SafePoint, decode
from broker.store.consume_queue import FILLER_SIZE
from broker.store.log_view import LogEnd, LogView
from broker.store.raw_files import (
    DEFAULT_LIMITS,
    FileRow,
    StoreChanged,
    ViewFile,
    ViewLimits,
    names_in,
)
from broker.store.results import StoreError
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, Checkpoint
from remoting.protocol.errors import RecordError

OWN_CHECKPOINT: Final = "pocketmq-checkpoint"
"""The file of ``broker.store.checkpoint``."""

_PATH_SEPARATOR: Final = ","
"""Separates the directories of a commit log (cf. rocketmq.broker.multiPathSplitter)."""


# Size and physical offset of a record.
_HEAD: Final = Struct(">I24xq")
_NO_MESSAGE: Final = frozenset({0, FILLER_SIZE})


class QueueRange(NamedTuple):
    """The messages ``[min_offset, max_offset)`` of a queue.

    Behind them are ``torn`` entries that have no record in the log.
    """

    min_offset: int
    max_offset: int
    torn: int


class ViewedRun(NamedTuple):
    """Consecutive packed entries; ``offset`` is the queue offset of the first."""

    offset: int
    entries: memoryview


class QueueView:
    """The entries of one queue of one topic."""

    def __init__(self, row: FileRow, log: LogView, topic: str, queue_id: int) -> None:
        self._row = row
        self._log = log
        self.topic = topic
        self.queue_id = queue_id

    def range(self) -> QueueRange:
        """Return the range of messages that the queue has now. Raises ``StoreError``."""
        if not self._log.files:
            return QueueRange(0, 0, 0)
        written = self._row.start // ENTRY_BYTES
        for file in reversed(self._row.files):
            if count := written_entries(self._row, file):
                written = file.start // ENTRY_BYTES + count
                break
        end = written
        while end * ENTRY_BYTES > self._row.start and self._is_torn(end - 1):
            end -= 1
        return QueueRange(min(self._find_min(end), end), end, written - end)

    def last_position(self, end: int) -> int:
        """Return the physical offset of message ``end - 1``; 0 for none. Raises ``StoreError``."""
        if end * ENTRY_BYTES <= self._row.start:
            return 0
        position, size, _ = self._entry(end - 1)
        return 0 if size in _NO_MESSAGE else position

    def entries(
        self, begin: int, end: int, *, max_entries: int | None = None
    ) -> Iterator[ViewedRun]:
        """Yield the entries of messages ``[begin, end)``, in runs of at most ``max_entries``.

        An entry may be a filler (``FILLER``): its message was lost or deleted.

        Raises:
            StoreChanged: retention has deleted them meanwhile.
            StoreError: they don't exist, or can't be read.
        """
        most = max_entries or self._row.limits.entries
        while begin < end:
            file = self._row.file_of(begin * ENTRY_BYTES)
            count = min(end - begin, file.end // ENTRY_BYTES - begin, most)
            length = max(count, 1) * ENTRY_BYTES
            yield ViewedRun(begin, self._row.read(begin * ENTRY_BYTES, length))
            begin += count

    def offset_of_time(self, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a time.

        Without such a message it is ``max_offset``. Messages may be missed if the broker's clock
        was set back. Raises ``StoreError``.

        Args:
            timestamp_ms: ms since the epoch.
        """
        low, high, _ = self.range()
        while low < high:
            middle = (low + high) // 2
            at, stored_ms = middle, self._store_time(middle)
            while stored_ms is None and at + 1 < high:
                at += 1
                stored_ms = self._store_time(at)
            if stored_ms is None or stored_ms >= timestamp_ms:
                high = middle
            else:
                low = at + 1
        return low

    # --- bounds

    def _is_torn(self, offset: int) -> bool:
        position, size, _ = self._entry(offset)
        if size == FILLER_SIZE or position < self._log.start:
            return False
        head = memoryview(bytearray(_HEAD.size))
        try:
            self._log.read_into(position, head)
        except StoreChanged:
            return False
        except StoreError:
            return True
        return _HEAD.unpack(head) != (size, position)

    def _find_min(self, end: int) -> int:
        log_start = self._log.start
        for file in self._row.files:
            first = file.start // ENTRY_BYTES
            count = min(file.size // ENTRY_BYTES, end - first)
            if count <= 0:
                break
            position, size, _ = self._entry(first)
            if size not in _NO_MESSAGE and position >= log_start:
                return first
            position, size, _ = self._entry(first + count - 1)
            if size not in _NO_MESSAGE and position < log_start:
                continue
            _, found = first_from(self._row.read(file.start, count * ENTRY_BYTES), log_start)
            if found < count:
                return first + found
        return end

    def _entry(self, offset: int) -> tuple[int, int, int]:
        position, size, tags_code = ENTRY.unpack(self._row.read(offset * ENTRY_BYTES, ENTRY_BYTES))
        return position, size, tags_code

    def _store_time(self, offset: int) -> int | None:
        position, size, _ = self._entry(offset)
        return None if size in _NO_MESSAGE else self._log.stored_ms(position)


def written_entries(row: FileRow, file: ViewFile) -> int:
    """Return the number of entries in a file of a queue. Raises ``StoreError``."""
    used = row.used_end(file) - file.start
    count = min(-(-used // ENTRY_BYTES), file.size // ENTRY_BYTES)
    if count:
        last = row.read(file.start + (count - 1) * ENTRY_BYTES, ENTRY_BYTES)
        # The broker may be writing the last entry: the offset is written, the size not yet.
        count -= ENTRY.unpack(last)[1] <= 0
    return count


def first_from(entries: memoryview, place: int) -> tuple[int, int]:
    """Find the first message at or behind physical offset ``place``, by bisection.

    Returns:
        The index behind the last entry whose message is before ``place``, and the index of the
        first entry whose message is not; the number of entries if there is none.
    """
    count = len(entries) // ENTRY_BYTES

    def next_real(index: int) -> int:
        while index < count and ENTRY.unpack_from(entries, index * ENTRY_BYTES)[1] in _NO_MESSAGE:
            index += 1
        return index

    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        at = next_real(middle)
        if at == count or ENTRY.unpack_from(entries, at * ENTRY_BYTES)[0] >= place:
            high = middle
        else:
            low = at + 1
    return low, next_real(low)


class StoreView:
    """A read-only view of a store.

    Args:
        root: ``storePathRootDir``.
        commit_log: ``storePathCommitLog``, one or several directories; ``root/commitlog`` when
            absent.
        limits: bound memory and descriptors.

    Raises:
        StoreError: there is no store, or it can't be read; the message says what to do.
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
        directories = log_directories(root, commit_log)
        if not any(directory.is_dir() for directory in directories):
            raise StoreError(_no_store(root, directories))
        row = FileRow(directories, "the commit log", limits)
        self.log = LogView(row, synced_ms=self.checkpoint().physic_ms)

    def topics(self) -> list[str]:
        """Return the sorted names of the topics that have a directory. Raises ``StoreError``."""
        return _subdirectories(self._queues)

    def queues(self, topic: str) -> list[int]:
        """Return the sorted ids of a topic's queues. Raises ``StoreError``."""
        names = _subdirectories(self._queues / _checked(topic))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def all_queues(self) -> Iterator[tuple[str, int]]:
        """Yield topic and id of every queue, sorted. Raises ``StoreError``."""
        for topic in self.topics():
            for queue_id in self.queues(topic):
                yield topic, queue_id

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """Return a queue, which has no messages if it doesn't exist. Raises ``StoreError``."""
        directory = self._queues / _checked(topic) / str(queue_id)
        row = FileRow([directory], f"queue {queue_id} of topic {topic}", self._limits)
        return QueueView(row, self.log, topic, queue_id)

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """Return the range of messages of a queue. Raises ``StoreError``."""
        return self.queue(topic, queue_id).range()

    def log_end(self) -> LogEnd:
        """Return the present end of the log. Raises ``StoreError``."""
        return self.log.find_end(self.last_position())

    def last_position(self) -> int:
        """Return the physical offset of the last message in any queue; 0 for none.

        Raises:
            StoreError: a file can't be read.
        """
        queues = (self.queue(*key) for key in self.all_queues())
        return max((queue.last_position(queue.range().max_offset) for queue in queues), default=0)

    def checkpoint(self) -> Checkpoint:
        """Return RocketMQ's checkpoint; all zeros when it is missing or damaged."""
        try:
            return Checkpoint.decode((self.root / "checkpoint").read_bytes())
        except (OSError, RecordError):
            return Checkpoint()

    def own_checkpoint(self) -> dict[str, Any]:
        """Return the sections of PocketMQ's own checkpoint; empty when there is none.

        Raises:
            ValueError: the file is damaged.
        """
        try:
            return decode((self.root / OWN_CHECKPOINT).read_bytes())
        except OSError:
            return {}

    def safe_point(self) -> SafePoint | None:
        """Return PocketMQ's safe point; None when there is none that fits this log."""
        try:
            point = SafePoint.of(self.own_checkpoint()["safe"])
            found = memoryview(bytearray(len(point.head) // 2))
            if found and point.tail >= self.log.start:
                self.log.read_into(point.tail, found)
        except (ValueError, KeyError, TypeError, AttributeError, StoreError):
            return None
        # Retention may have deleted the record at the tail.
        is_known = point.tail < self.log.start or found.hex() == point.head
        return point if is_known and point.tail <= point.end else None


def log_directories(
    root: Path, commit_log: str | os.PathLike[str] | Sequence[Path] | None
) -> list[Path]:
    """Return the directories of a store's commit log; arguments as for ``StoreView``."""
    if commit_log is None:
        return [root / "commitlog"]
    if isinstance(commit_log, str | os.PathLike):
        names = os.fspath(commit_log).split(_PATH_SEPARATOR)
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
    return [name for name in names_in(path) if (path / name).is_dir()]
