"""After a long recovery, the next start is short, however soon it comes."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from broker.store.checkpoint import SafePoint, decode
from broker.store.engine import MessageStore
from broker.store.limits import StoreLimits
from broker.store.os_files import Files
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.stores import LIMITS, bodies, message, opened, small_config

NEVER_MS = 3_600_000
MESSAGES = 100


class WatchedDisk(Files):
    """A disk that notifies the loop of each safe point, and can refuse to write it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.points: asyncio.Queue[SafePoint] = asyncio.Queue()
        self.refuses = False
        self.refused = 0

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if self.refuses:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace(path, data, backup=backup)
        point = SafePoint.of(decode(data)["safe"])
        self.loop.call_soon_threadsafe(self.points.put_nowait, point)

    async def reached(self, end: int) -> SafePoint:
        """The safe point at an end of the log, once it is written."""
        while (point := await asyncio.wait_for(self.points.get(), 60)).end != end:
            pass
        return point


@pytest.fixture
async def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.fixture
def limits() -> StoreLimits:
    """Soon there is much in the log, and nothing is put off: no later sync makes up for it."""
    return StoreLimits(
        safe_point_bytes=1000,
        safe_point_queue_seconds=0,
        mark_queue_seconds=0,
        mark_seconds=10,
        first_safe_point_seconds=0.001,
    )


@pytest.fixture
def crashed(tmp_path: Path, disk: WatchedDisk, limits: StoreLimits) -> MessageStore:
    """A store that was killed before it had a safe point, which will not take a turn by itself."""
    store = opened(tmp_path / "store")
    for number in range(MESSAGES):
        store.put(message(b"%d" % number))
    left = crash(store)
    store.close()
    config = small_config(left.paths.root, flush_interval_consume_queue_ms=NEVER_MS, limits=limits)
    return MessageStore(config, files=disk)


async def test_a_safe_point_is_written_at_once_after_a_long_recovery(
    crashed: MessageStore, disk: WatchedDisk
) -> None:
    assert crashed.open().scanned_records == MESSAGES
    crashed.start(asyncio.get_running_loop())
    point = await disk.reached(crashed.log.end)
    assert point.numbers == {"TopicTest": {0: MESSAGES}}

    again = crash(crashed)
    crashed.close()
    report = again.open()
    assert not report.clean
    assert report.scanned_records <= 1
    assert len(bodies(again)) == MESSAGES
    again.close()


async def test_a_disk_that_refuses_the_safe_point_is_not_retried_forever(
    crashed: MessageStore, disk: WatchedDisk
) -> None:
    crashed.open()
    disk.refuses = True
    crashed.start(asyncio.get_running_loop())
    # Whatever comes first: the turns are used up, or a second is over.
    await asyncio.sleep(1)
    crashed.close()
    assert 0 < disk.refused <= LIMITS.first_safe_point_tries


# --- while the log grows fast


@pytest.fixture
def busy(tmp_path: Path, disk: WatchedDisk, limits: StoreLimits) -> MessageStore:
    """A store whose log grows by what counts as much, and whose queues' thread does not look."""
    config = small_config(
        tmp_path / "store",
        flush_interval_consume_queue_ms=NEVER_MS,
        flush_commit_log_least_pages=0,
        flush_interval_commit_log_ms=10,
        limits=limits,
    )
    return MessageStore(config, files=disk)


async def test_a_log_that_grows_fast_has_a_safe_point_after_each_of_its_syncs(
    busy: MessageStore, disk: WatchedDisk
) -> None:
    busy.open()
    busy.start(asyncio.get_running_loop())
    for _ in range(3):
        for _ in range(20):
            busy.put(message(b"x" * 100))
        await disk.reached(busy.log.end)
    left = crash(busy)
    assert left.open().scanned_records <= 1
    left.close()
    busy.close()


def hold_up_loop(store: MessageStore) -> None:
    """Wait until the log is synced, in the thread that should take the mark."""
    deadline = time.monotonic() + 10
    while store.syncer.log.flushed < store.log.end and time.monotonic() < deadline:
        time.sleep(0.001)


async def test_a_busy_loop_delays_no_sync(busy: MessageStore) -> None:
    busy.config.limits = replace(busy.config.limits, mark_seconds=0.001)
    busy.open()
    busy.start(asyncio.get_running_loop())
    for _ in range(20):
        busy.put(message(b"x" * 100))
    hold_up_loop(busy)
    assert busy.syncer.log.flushed == busy.log.end
    busy.close()
