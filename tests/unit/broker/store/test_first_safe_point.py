"""After a start that had to walk over much, the next one need not, however soon it comes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from broker.store.limits import StoreLimits
from broker.store.message_store import MessageStore
from broker.store.safe_point import SafePoint, SafePointFile
from broker.store.sync import Wish
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.stores import LIMITS, bodies, message, opened, small_config

NEVER_MS = 3_600_000
MESSAGES = 100


@pytest.fixture
def limits() -> StoreLimits:
    """Soon there is much in the log, and nothing is put off: no later sync makes up for it."""
    return StoreLimits(
        safe_point_bytes=1000,
        safe_point_queue_seconds=0,
        mark_queue_seconds=0,
        mark_seconds=10,
        first_turn_seconds=0.001,
    )


@pytest.fixture
def crashed(tmp_path: Path, limits: StoreLimits) -> MessageStore:
    """A store that was killed before it had a safe point, which will not take a turn by itself."""
    store = opened(tmp_path / "store")
    for number in range(MESSAGES):
        store.put(message(b"%d" % number))
    left = crash(store)
    store.close()
    config = small_config(left.paths.root, flush_interval_consume_queue_ms=NEVER_MS, limits=limits)
    return MessageStore(config)


async def test_a_safe_point_is_made_at_once_when_much_was_walked_over(
    crashed: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    written: asyncio.Future[SafePoint] = loop.create_future()
    real = SafePointFile.write

    def write(self: SafePointFile, point: SafePoint) -> None:
        real(self, point)
        if point.end == crashed.end_offset and not written.done():
            loop.call_soon_threadsafe(written.set_result, point)

    assert crashed.open().scanned_records == MESSAGES
    monkeypatch.setattr(SafePointFile, "write", write)
    crashed.start(loop)
    point = await asyncio.wait_for(written, 60)
    assert point.numbers == {"TopicTest": {0: MESSAGES}}

    again = crash(crashed)
    crashed.close()
    report = again.open()
    assert not report.clean
    assert report.scanned_records <= 1
    assert len(bodies(again)) == MESSAGES
    again.close()


async def test_a_disk_that_refuses_it_is_not_asked_for_ever(
    crashed: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    crashed.open()
    turns = 0
    enough = asyncio.Event()
    flusher = crashed._opened().syncer.queues

    def turn() -> Wish:
        nonlocal turns
        turns += 1
        if turns == LIMITS.first_turns:
            loop.call_soon_threadsafe(enough.set)
        return Wish.NOTHING

    monkeypatch.setattr(flusher, "turn", turn)
    crashed.start(loop)
    await asyncio.wait_for(enough.wait(), 60)
    crashed.close()
    assert turns == LIMITS.first_turns


# --- while the log grows fast


@pytest.fixture
def busy(tmp_path: Path, limits: StoreLimits) -> MessageStore:
    """A store whose log grows by what counts as much, and whose queues' thread does not look."""
    config = small_config(
        tmp_path / "store",
        flush_interval_consume_queue_ms=NEVER_MS,
        flush_commit_log_least_pages=0,
        flush_interval_commit_log_ms=10,
        limits=limits,
    )
    return MessageStore(config)


async def test_a_log_that_grows_fast_has_a_safe_point_after_each_of_its_syncs(
    busy: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.open()
    loop = asyncio.get_running_loop()
    written: asyncio.Queue[SafePoint] = asyncio.Queue()
    real = SafePointFile.write

    def write(self: SafePointFile, point: SafePoint) -> None:
        real(self, point)
        loop.call_soon_threadsafe(written.put_nowait, point)

    monkeypatch.setattr(SafePointFile, "write", write)
    busy.start(loop)
    for _ in range(3):
        for _ in range(20):
            busy.put(message(b"x" * 100))
        while (await asyncio.wait_for(written.get(), 60)).end != busy.end_offset:
            pass
    left = crash(busy)
    assert left.open().scanned_records <= 1
    left.close()
    busy.close()


async def test_a_loop_that_has_no_time_to_mark_holds_up_no_sync(
    busy: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.config.limits = replace(busy.config.limits, mark_seconds=0.001)
    busy.open()
    log = busy._opened().syncer.log
    loop = asyncio.get_running_loop()
    busy.start(loop)
    synced = threading.Event()
    real = log.sync

    def sync() -> bool:
        done = real()
        synced.set()
        return done

    monkeypatch.setattr(log, "sync", sync)
    for _ in range(20):
        busy.put(message(b"x" * 100))
    # The loop waits here: it takes no mark.
    assert synced.wait(10)
    assert log.flushed == busy.end_offset
    busy.close()
