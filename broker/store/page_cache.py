"""What is known of a store's bytes in memory: which are resident, and which records are sound.

A fault in a map stops the thread it happens in, and with it, the GIL being held, all others. So
before a get touches records from long ago, the page cache is asked, block by block, and the answer
holds for a second. A get that would ask too much, and a file system that can't be asked, count as
cold: then a thread fetches the bytes (``cold_reads``) and reports them here.

Bytes that left memory may come back from the disk as something else, so records that were read
from a disk are checked before delivery (``record_validator``). ``needs_check`` is the rule:

- Records that this process appended, and that have not left memory as far as it knows, are trusted.
- Of each queue one run of checked messages is remembered, so that other readers need no new check.
- The system doesn't tell when a page leaves memory. So all checks are forgotten whenever any page
  turns out to have left it, and each minute.

Only the loop's thread comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.limits import ASKED_AHEAD_BYTES, StoreLimits
from broker.store.mapped_file import MappedFile
from broker.store.results import FileRange, Run
from remoting.process_limits import memory_bytes

_MOST_BLOCKS: Final = 2**24
"""Of one file, which has 1 TiB at most (``mappedFileSizeCommitLog`` is 1 GiB unless changed)."""


class PageCacheTracker:
    """What is known to be in memory, and to be as it was stored."""

    def __init__(self, log: CommitLog, limits: StoreLimits, monotonic: Callable[[], float]) -> None:
        """``monotonic`` returns the time in seconds."""
        self._log = log
        self._limits = limits
        self._block_bytes = limits.block_bytes
        self._trusted_bytes = max(
            limits.hot_log_bytes, int(memory_bytes() * limits.trusted_memory_ratio)
        )
        self._monotonic = monotonic
        # By numbers: tuples would be the garbage collector's work, thousands of them a second.
        self._until: dict[int, float] = {}
        # Older records left memory before this one.
        self._cold_end = 0
        self._checked: dict[ConsumeQueue, tuple[int, int]] = {}
        self._checked_until = monotonic() + limits.checked_seconds

    # --- which records have to be checked

    def needs_check(self, queue: ConsumeQueue, offset: int, end: int, first: int) -> bool:
        """Whether messages ``[offset, end)``, the first at ``first`` in the log, may be damaged."""
        newest = self._log.end - self._trusted_bytes
        if offset >= queue.opened_offset and first >= max(
            self._log.opened_end, self._cold_end, newest
        ):
            return False
        low, high = self.checked(queue) or (offset, offset)
        return not (low <= offset and end <= high)

    def checked(self, queue: ConsumeQueue) -> tuple[int, int] | None:
        """The messages of a queue that were found sound: the first, and behind the last."""
        now = self._monotonic()
        if now >= self._checked_until:
            self._forget_checks(now)
        return self._checked.get(queue)

    def remember_checked(self, queue: ConsumeQueue, low: int, high: int) -> None:
        """Messages ``[low, high)`` of a queue were found sound."""
        self._checked[queue] = (low, high)

    def _forget_checks(self, now: float) -> None:
        self._checked.clear()
        self._checked_until = now + self._limits.checked_seconds

    # --- what is resident

    def cold_entries(self, queue: ConsumeQueue, offset: int, longest: int) -> list[FileRange]:
        """Where entries of a queue lie, if some of them may not be in memory."""
        if queue.is_recent(offset):
            return []
        place = queue.range_of(offset, longest)
        return [] if place is None or self.is_resident(*place) else [place]

    def cold_records(self, runs: Sequence[Run]) -> list[FileRange]:
        """Where the records of runs lie, if some of them may not be in memory."""
        ranges = []
        for start, end, _ in runs:
            file = self._log.file_at(start)
            if file is not None:
                ranges.append(FileRange(file, start - file.start, min(end - file.start, file.size)))
        if self.are_resident(ranges):
            return []
        self._cold_end = max(self._cold_end, runs[-1][1])
        return ranges

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
                    self._forget_checks(now)
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
        """Ask for the whole block and those ahead, or else only for ``[start, end)``."""
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
            # The get that follows fails, and reports it.
            return True

    def _ask_ahead(self, file: MappedFile, block: int, now: float) -> bool:
        """Ask for much at once if the block before is known: the file is read sequentially.

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
        """The ranges were read just now: the blocks that they cover are resident."""
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
