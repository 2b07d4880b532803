"""Indexing the log behind its end, slice by slice.

A send does nothing for the index. The index's thread, a query, or a clean stop takes the lock and
calls ``step`` as often as it needs; so all of them work on the same position, and hold the lock for
one slice. After a clean stop the store's checkpoint has the position, valid as long as the last
file is unchanged; otherwise the files have it, since each has its last message (cf.
IndexService.buildIndex). After a crash only full files are valid (``file``): what came after them
is indexed again.

``LogReader`` reads the log piece by piece through maps of its own, because the log belongs to the
loop's thread. It takes the end, the names of the files and, of a file that is not mapped, a map of
its own; so it may be behind retention, which removes files, and goes on with what is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, Protocol

import structlog

from broker.store.checkpoint import IndexNote
from broker.store.commit_log import CommitLog
from broker.store.index import keys as batch
from broker.store.index.file import IndexFileSet
from broker.store.limits import MAX_RECORD_BYTES, StoreLimits
from broker.store.os_files import Files, Region
from remoting.process_limits import memory_bytes
from remoting.protocol import core
from remoting.protocol.disk.files import name_of
from remoting.protocol.message.record import FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2


class Piece(NamedTuple):
    """Bytes of the log from a physical offset on.

    Attributes:
        data: at most as many as were asked for; none at the end of a file.
        following: physical offset at which the next file begins.
    """

    position: int
    data: memoryview
    following: int


class LogReader:
    """Reads the log for one other thread than the loop's."""

    def __init__(self, log: CommitLog, files: Files, limits: StoreLimits) -> None:
        self._log = log
        self._disk = files
        self._opened_end = log.end
        self._hot_bytes = int(memory_bytes() * limits.trusted_memory_ratio)
        self._start = -1
        self._region: Region | None = None

    @property
    def hot_bytes(self) -> int:
        """So much of the log, its end, is taken to be in memory."""
        return self._hot_bytes

    @property
    def start(self) -> int:
        """Physical offset of the first byte that is there."""
        return self._log.start

    def read(self, position: int, end: int, most: int) -> Piece | None:
        """Up to ``most`` bytes of one file from ``position`` on, or from where there are some.

        Args:
            position: where a record begins, or a file ends.
            end: physical offset up to which the log may be read.
            most: bytes.

        Returns:
            None when the log has nothing there.

        Raises:
            OSError: the file can't be read.
        """
        for file in self._log.files:
            behind = file.start + file.size
            first = max(position, file.start)
            if first >= behind:
                continue
            stop = min(end, behind, first + most)
            if first >= stop:
                return None
            try:
                region = self._open(file.start, file.size)
                if first < max(self._opened_end, self._log.end - self._hot_bytes):
                    region.fetch(first - file.start, stop - first)
            except FileNotFoundError:
                # Retention was here; what comes next is still there.
                continue
            return Piece(first, region.view[first - file.start : stop - file.start], behind)
        return None

    def _open(self, start: int, size: int) -> Region:
        if self._region is None or self._start != start:
            self.close()
            path = self._log.directory / name_of(start)
            self._region = self._disk.open_mapped(path, size, create=False)
            self._start = start
        return self._region

    def close(self) -> None:
        """Let go of the map."""
        self._region = None
        self._start = -1


_log = structlog.get_logger("store")

_HEAD: Final = Struct(">II")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})


class Walk(Protocol):
    """Takes the keys from a piece of the log."""

    def __call__(self, data: memoryview, base: int, /) -> batch.Walked:
        """See ``batch.walk``."""
        ...


class IndexHits(NamedTuple):
    """What a search gave.

    Attributes:
        offsets: physical offsets of what may be the messages, the newest first.
        end_ms: store time of the last message that is indexed.
        end_offset: its physical offset.
    """

    offsets: list[int]
    end_ms: int
    end_offset: int


class IndexBuilder:
    """How far the index is, and bringing it further.

    Attributes:
        lock: held by whoever calls a method.
        position: physical offset up to which the log is indexed.
        loaded: whether the files have been looked at.
        slice_bytes: of the log, which have as many keys as are indexed at once.
    """

    def __init__(
        self,
        row: IndexFileSet,
        log: LogReader,
        limits: StoreLimits,
        *,
        note: IndexNote | None,
        safe_ms: int | None,
    ) -> None:
        """``note``: of a clean stop; ``safe_ms``: after a crash, the checkpoint's index time."""
        self._row = row
        self._log = log
        self._note = note
        self._safe_ms = safe_ms
        self._limits = limits
        self._walk = fast_walk() or batch.walk
        self.slice_bytes = limits.index_min_slice_bytes
        self.lock = threading.Lock()
        self.position = 0
        self.loaded = False

    def load(self, log_end: int) -> None:
        """Find out how far the index is, unless that is known. Raises ``OSError``.

        It is not known any more when somebody has removed or shortened a file.
        """
        if self.loaded:
            if self._row.is_whole():
                return
            _log.warning("an index file was removed or shortened: messages are indexed anew")
            self.loaded = False
        self._row.load(log_end, safe_ms=self._safe_ms)
        last = self._row.last
        self.position = self._log.start
        if last is not None and last.header.next_entry > 1:
            self.position = max(self.position, self._behind(last.header.end_offset, log_end))
        note = self._note
        if (
            self._safe_ms is None
            and note is not None
            and note.last == self._last()
            and self._log.start <= note.indexed <= log_end
        ):
            self.position = note.indexed
        # From now on the files are not as it says.
        self._note = None
        self.loaded = True

    def _behind(self, end_offset: int, log_end: int) -> int:
        """Where to go on behind the last message that a file knows."""
        if self._safe_ms is not None:
            # A full file may have only some of its keys.
            return end_offset
        head = self._log.read(end_offset, log_end, _HEAD.size)
        if head is None or head.position != end_offset or len(head.data) < _HEAD.size:
            return end_offset
        size, _ = _HEAD.unpack(head.data)
        return end_offset + int(size) if end_offset + size <= log_end else end_offset

    def _last(self) -> list[object]:
        last = self._row.last
        return [] if last is None else [last.path.name, last.header.next_entry]

    def step(self, end: int) -> bool:
        """Index one slice of what lies before ``end``; whether there may be more.

        Raises:
            OSError: the disk refuses; what was indexed is.
        """
        self.load(end)
        walk = self._walk
        most = self._limits.index_plain_slice_bytes if walk is batch.walk else self.slice_bytes
        piece = self._log.read(self.position, end, most)
        if piece is None:
            self.position = max(self.position, end)
            return False
        walked = walk(piece.data, piece.position)
        if not walked.used:
            size = _record_size(piece.data)
            if len(piece.data) < size <= MAX_RECORD_BYTES:
                piece = self._log.read(piece.position, end, size) or piece
            walked = batch.walk(piece.data, piece.position)
        self._row.add(walked.batch)
        self.slice_bytes = slice_for(walked, self._limits)
        if walked.used:
            self.position = piece.position + walked.used
        else:
            self.position = self._step_over(piece, end)
        return self.position < end

    def _step_over(self, piece: Piece, end: int) -> int:
        """Where to go on when no good record begins at a place."""
        size = _record_size(piece.data)
        if size:
            # Damage that recovery has stepped over, if a record follows.
            following = self._log.read(piece.position + size, end, _HEAD.size)
            if following is not None and _record_size(following.data):
                return following.position
        return min(piece.following, end)

    def catch_up(self, end: int, go_on: Callable[[], bool]) -> bool:
        """Index up to ``end`` as long as ``go_on``; whether that is done. Takes the lock itself.

        Raises:
            OSError: the disk refuses.
        """
        while True:
            with self.lock:
                if not self.step(end):
                    return True
            if not go_on():
                return False

    def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> IndexHits:
        """See ``IndexFileSet.find``. Raises ``OSError``."""
        offsets = self._row.find(topic, key, max_count, begin_ms, end_ms)
        last = self._row.last
        if last is None:
            return IndexHits(offsets, 0, 0)
        return IndexHits(offsets, last.header.end_ms, last.header.end_offset)

    def drop_before(self, physical_offset: int) -> int:
        """See ``IndexFileSet.drop_before``. Raises ``OSError``."""
        self._log.close()
        return self._row.drop_before(physical_offset)

    def save(self) -> IndexNote | None:
        """Bring all to the disk; where the next start goes on. Raises ``OSError``."""
        if not self.loaded:
            return self._note
        self._row.sync()
        return IndexNote(self.position, self._last())

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()


def slice_for(walked: batch.Walked, limits: StoreLimits) -> int:
    """Bytes that hold as many keys as are worth a slice, going by those just found."""
    expected = walked.used * limits.index_slice_keys // max(len(walked.batch), 1)
    return min(max(expected, limits.index_min_slice_bytes), limits.index_max_slice_bytes)


def _record_size(data: memoryview) -> int:
    """What a record says of its size; 0 when none begins with these bytes."""
    if len(data) < _HEAD.size:
        return 0
    size, magic = _HEAD.unpack_from(data)
    return int(size) if magic in _MAGICS and size >= FIXED_BYTES_V4 else 0


def fast_walk() -> Walk | None:
    """The compiled way, where that runs."""
    if core.KIND != "compiled":
        return None
    from broker.store.index import compiled  # noqa: PLC0415 - only where the core runs

    return compiled.walk
