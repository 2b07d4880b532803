"""Tracks which bytes of a store are in memory, and which records have been validated.

A page fault on a map blocks its thread while the thread holds the GIL, and so blocks all threads.
Therefore, before a get reads old records, their blocks are looked up in the page cache; a positive
result is remembered for a second. If a get would need too many lookups, or the system has no
lookup, the range counts as cold: a thread reads it (``cold_reads``) and reports it here.

Bytes that left memory may be damaged when they are read from the disk again, so such records are
validated before delivery (``record_validator``). ``needs_check`` implements these rules:

- Records that this process appended are trusted while they are in the newest part of the log
  (``trusted_memory_ratio``), unless they, or later ones, were found to have left memory.
- For each queue one run of validated messages is remembered, so that other readers need not
  validate them again.
- The kernel does not report when a page leaves memory. So all validations are forgotten whenever
  any page is found to have left it, and once a minute.

Only the loop's thread uses this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.limits import ASKED_AHEAD_BYTES, StoreLimits
from broker.store.mapped_file import MappedFile
from broker.store.results import FileRange, Run
from remoting.runtime.process_limits import memory_bytes

_MOST_BLOCKS: Final = 2**24
"""Maximum blocks of one file: 1 TiB (``mappedFileSizeCommitLog`` is 1 GiB by default)."""


class PageCacheTracker:
    """Remembers what is in memory, and which records have been validated."""

    def __init__(self, log: CommitLog, limits: StoreLimits, monotonic: Callable[[], float]) -> None:
        """``monotonic`` returns a monotonic time in seconds."""
        self._log = log
        self._limits = limits
        self._block_bytes = limits.block_bytes
        self._trusted_bytes = max(
            limits.hot_log_bytes, int(memory_bytes() * limits.trusted_memory_ratio)
        )
        self._monotonic = monotonic
        # Until when a block counts as resident, by file number * _MOST_BLOCKS + block. Keys are
        # ints: thousands of tuples a second would cost garbage collections.
        self._until: dict[int, float] = {}
        # Physical offset behind the last records that were found to have left memory.
        self._cold_end = 0
        self._checked: dict[ConsumeQueue, tuple[int, int]] = {}
        self._checked_until = monotonic() + limits.checked_seconds

    # --- which records have to be checked

    def needs_check(self, queue: ConsumeQueue, offset: int, end: int, first: int) -> bool:
        """Return whether messages ``[offset, end)`` must be validated before delivery.

        ``first`` is the physical offset of the first one.
        """
        newest = self._log.end - self._trusted_bytes
        if offset >= queue.opened_offset and first >= max(
            self._log.opened_end, self._cold_end, newest
        ):
            return False
        now = self._monotonic()
        if now >= self._checked_until:
            self._forget_checks(now)
        low, high = self.checked_run(queue) or (offset, offset)
        return not (low <= offset and end <= high)

    def checked_run(self, queue: ConsumeQueue) -> tuple[int, int] | None:
        """Return the remembered run of validated messages: queue offset of the first, and end."""
        return self._checked.get(queue)

    def remember_checked(self, queue: ConsumeQueue, low: int, high: int) -> None:
        """Remember that messages ``[low, high)`` of a queue have been validated."""
        self._checked[queue] = (low, high)

    def _forget_checks(self, now: float) -> None:
        self._checked.clear()
        self._checked_until = now + self._limits.checked_seconds

    # --- what is resident

    def cold_entries(self, queue: ConsumeQueue, offset: int, longest: int) -> list[FileRange]:
        """Return the range of a queue's entries if some may not be in memory; else nothing."""
        if queue.is_recent(offset):
            return []
        place = queue.range_of(offset, longest)
        return [] if place is None or self.is_resident(*place) else [place]

    def cold_records(self, runs: Sequence[Run]) -> list[FileRange]:
        """Return the ranges that hold the runs if some may not be in memory; else nothing."""
        ranges: list[FileRange] = []
        file: MappedFile | None = None
        begin = behind = limit = 0
        for start, end, _ in runs:
            # One lookup for records that lie near each other: most queues share the log.
            if behind <= start <= behind + self._block_bytes and end <= limit:
                behind = end
                continue
            if file is not None:
                ranges.append(FileRange(file, begin - file.start, behind - file.start))
            file = self._log.file_at(start)
            limit = 0 if file is None else file.start + file.size
            begin, behind = start, min(end, limit)
        if file is not None:
            ranges.append(FileRange(file, begin - file.start, behind - file.start))
        if self.are_resident(ranges):
            return []
        self._cold_end = max(self._cold_end, runs[-1][1])
        return ranges

    def are_resident(self, ranges: Iterable[FileRange]) -> bool:
        """Return whether all ranges can be read without waiting for the disk."""
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
        """Return the same for one range; faster when its blocks are remembered as resident."""
        now = self._monotonic()
        until, block_bytes = self._until, self._block_bytes
        first = file.number * _MOST_BLOCKS
        for block in range(start // block_bytes, -(-end // block_bytes)):
            if until.get(first + block, now) <= now:
                return self.are_resident((FileRange(file, start, end),))
        return True

    def _ask(self, file: MappedFile, block: int, start: int, end: int, now: float) -> bool:
        """Look up the block, with those ahead if possible, or else only ``[start, end)`` of it."""
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
            # The get that follows reports the error.
            return True

    def _ask_ahead(self, file: MappedFile, block: int, now: float) -> bool:
        """Look up many blocks at once if the previous one is known: the reader is sequential.

        Raises:
            OSError: the file can't be mapped.
        """
        if self._until.get(file.number * _MOST_BLOCKS + block - 1, now) <= now:
            return False
        first = block * self._block_bytes
        behind = min(first + ASKED_AHEAD_BYTES, file.size)
        if not file.is_cached(first, behind - first):
            return False
        for resident in range(block, -(-behind // self._block_bytes)):
            self._know(file, resident, now)
        return True

    def fetched(self, ranges: Iterable[FileRange]) -> None:
        """Remember the blocks that the ranges cover as resident: they were read just now."""
        now, size = self._monotonic(), self._block_bytes
        for file, start, end in ranges:
            behind = file.size // size + 1 if end == file.size else end // size
            for block in range(-(-start // size), behind):
                self._know(file, block, now)

    def _know(self, file: MappedFile, block: int, now: float) -> None:
        if len(self._until) >= self._limits.max_resident_blocks:
            # Looking up all blocks again is cheaper than finding the oldest one each time.
            self._until.clear()
        self._until[file.number * _MOST_BLOCKS + block] = now + self._limits.resident_seconds
