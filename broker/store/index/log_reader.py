"""The commit log as the index's thread reads it: piece by piece, through maps of its own.

The log belongs to the loop's thread. What this one takes from it are the end, the names of its
files and, of a file that is not mapped already, a map of its own; so it may be behind retention,
which removes files, and goes on with what is left then.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.files import Files, Region
from broker.store.index.limits import HOT_LOG_RATIO
from remoting.process_limits import memory_bytes
from remoting.protocol.disk.files import name_of


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

    def __init__(self, log: CommitLog, files: Files) -> None:
        self._log = log
        self._disk = files
        self._opened_end = log.end
        self._hot_bytes = int(memory_bytes() * HOT_LOG_RATIO)
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
