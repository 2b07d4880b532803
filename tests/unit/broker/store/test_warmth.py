"""Which page cache queries are made, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from broker.store.commit_log import CommitLog
from broker.store.limits import ASKED_AHEAD_BYTES
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files
from broker.store.page_cache import PageCacheTracker
from broker.store.results import FileRange
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import LIMITS

BLOCK_BYTES = LIMITS.block_bytes
SIZE = 4 * ASKED_AHEAD_BYTES + 100


class File:
    """A file whose first bytes are in memory."""

    number = 7
    size = SIZE

    def __init__(self, warm_bytes: int = SIZE) -> None:
        self.warm_bytes = warm_bytes
        self.asked: list[tuple[int, int]] = []

    def is_cached(self, position: int, length: int) -> bool:
        assert position + length <= self.size
        self.asked.append((position, length))
        return position + length <= self.warm_bytes


def tracker(clock: ManualClock) -> PageCacheTracker:
    log = CommitLog(Files(), MappedFiles(1), Path("none"), SIZE, LIMITS)
    return PageCacheTracker(log, LIMITS, clock.monotonic)


class Reader:
    """A sequential reader of such a file."""

    def __init__(self, file: File) -> None:
        self.clock = ManualClock()
        self.warmth = tracker(self.clock)
        self.file = file
        self.at = 0

    def read(self, length: int = 10_000) -> bool:
        start, self.at = self.at, min(self.at + length, SIZE)
        return self.warmth.is_resident(cast(MappedFile, self.file), start, self.at)


def test_sequential_readers_get_queries_ahead() -> None:
    reader = Reader(File())
    while reader.at < SIZE:
        assert reader.read()
    lengths = [length for _, length in reader.file.asked]
    assert lengths[:-1] == [BLOCK_BYTES, *[ASKED_AHEAD_BYTES] * 3]
    assert sum(lengths) == SIZE
    reader.at = 0
    assert reader.read(SIZE)
    assert len(reader.file.asked) == len(lengths)


def test_all_pages_are_queried_again_after_a_while() -> None:
    reader = Reader(File())
    assert reader.read()
    assert reader.read(BLOCK_BYTES)
    reader.clock.advance(LIMITS.resident_seconds)
    reader.at = 0
    reader.file.warm_bytes = 0
    assert not reader.read()


@pytest.mark.parametrize("warm_bytes", [3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 20_000])
def test_everything_up_to_the_first_page_out_of_memory_is_warm(warm_bytes: int) -> None:
    reader = Reader(File(warm_bytes))
    while reader.at + 10_000 <= warm_bytes:
        assert reader.read()
    assert not reader.read()


def test_scattered_reads_are_queried_in_blocks() -> None:
    file = File()
    warmth = tracker(ManualClock())
    places = range(0, SIZE - BLOCK_BYTES, 3 * BLOCK_BYTES)
    ranges = [FileRange(cast(MappedFile, file), at, at + 10) for at in places]
    assert warmth.are_resident(ranges)
    assert file.asked == [(at, BLOCK_BYTES) for at in places]
