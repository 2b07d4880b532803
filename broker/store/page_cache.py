"""What is taken to be in the page cache, so that the loop may touch it through the maps.

A fault in a map stops the thread it happens in, and with it, the GIL being held, all others. So
before a get touches records from long ago, the page cache is asked (``page_cache``), block by
block, and what it said holds for a second. A get that would ask too much, and a file system that
can't be asked, count as cold: then a thread fetches what is wanted (``cold_reads``) and tells here.

What left memory may come back from the disk as something else. So whenever something turns out not
to be there, and each minute, a new **generation** begins, in which what was read before is not
known.

Only the loop's thread comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.store.limits import ASKED_AHEAD_BYTES, StoreLimits
from broker.store.mapped_file import MappedFile
from broker.store.results import FileRange

_MOST_BLOCKS: Final = 2**24
"""Of one file, which has 1 TiB at most (``mappedFileSizeCommitLog`` is 1 GiB unless changed)."""


class PageCacheTracker:
    """The blocks of files that are known to be in memory."""

    def __init__(self, monotonic: Callable[[], float], limits: StoreLimits) -> None:
        """``monotonic`` tells the time in seconds."""
        self._monotonic = monotonic
        self._limits = limits
        self._block_bytes = limits.block_bytes
        # By numbers: tuples would be the garbage collector's work, thousands of them a second.
        self._until: dict[int, float] = {}
        self._epoch = 1
        self._epoch_ends = monotonic() + self._limits.checked_seconds

    @property
    def generation(self) -> int:
        """The number of this generation; above 0."""
        now = self._monotonic()
        if now >= self._epoch_ends:
            self._begin_epoch(now)
        return self._epoch

    def _begin_epoch(self, now: float) -> None:
        self._epoch += 1
        self._epoch_ends = now + self._limits.checked_seconds

    def are_resident(self, ranges: Iterable[FileRange]) -> bool:
        """Whether all of the ranges can be touched without waiting for the disk."""
        now = self._monotonic()
        until, block_bytes = self._until, self._block_bytes
        probes = 0
        for file, start, end in ranges:
            first = file.number * _MOST_BLOCKS
            for block in range(start // block_bytes, -(-end // block_bytes)):
                if until.get(first + block, now) > now:
                    continue
                probes += 1
                if probes > self._limits.max_probes or not self._ask(file, block, start, end, now):
                    self._begin_epoch(now)
                    return False
        return True

    def is_resident(self, file: MappedFile, start: int, end: int) -> bool:
        """Whether one range can be touched; faster when it is known to be in memory."""
        now = self._monotonic()
        until, block_bytes = self._until, self._block_bytes
        first = file.number * _MOST_BLOCKS
        for block in range(start // block_bytes, -(-end // block_bytes)):
            if until.get(first + block, now) <= now:
                return self.are_resident((FileRange(file, start, end),))
        return True

    def _ask(self, file: MappedFile, block: int, start: int, end: int, now: float) -> bool:
        """Ask for the whole block and those ahead, or else for what is wanted of it."""
        first = block * self._block_bytes
        behind = min(first + self._block_bytes, file.size)
        try:
            if self._ask_ahead(file, block, now):
                return True
            cached = file.is_cached(first, behind - first)
            if cached:
                self._know(file, block, now)
                return True
            start, end = max(start, first), min(end, behind)
            return cached is False and file.is_cached(start, end - start) is True
        except OSError:
            # The get finds out that it can't be read, and says so.
            return True

    def _ask_ahead(self, file: MappedFile, block: int, now: float) -> bool:
        """Ask for much, if the block before is known: somebody reads on and on.

        Raises:
            OSError: it can't be mapped.
        """
        if self._until.get(file.number * _MOST_BLOCKS + block - 1, now) <= now:
            return False
        first = block * self._block_bytes
        behind = min(first + ASKED_AHEAD_BYTES, file.size)
        if not file.is_cached(first, behind - first):
            return False
        for known in range(block, -(-behind // self._block_bytes)):
            self._know(file, known, now)
        return True

    def fetched(self, ranges: Iterable[FileRange]) -> None:
        """The ranges were read just now; blocks that lie in one whole are known to be there."""
        now, size = self._monotonic(), self._block_bytes
        for file, start, end in ranges:
            behind = file.size // size + 1 if end == file.size else end // size
            for block in range(-(-start // size), behind):
                self._know(file, block, now)

    def _know(self, file: MappedFile, block: int, now: float) -> None:
        if len(self._until) >= self._limits.max_resident_blocks:
            # All will be asked anew, which takes less than to find the oldest each time.
            self._until.clear()
        self._until[file.number * _MOST_BLOCKS + block] = now + self._limits.resident_seconds
