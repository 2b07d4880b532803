"""A thread deletes files while messages are read and the store closes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from broker.store.engine import GetStatus, MessageStore
from broker.store.limits import StoreLimits
from broker.store.os_files import DiskUse
from tests.support.clock import ManualClock
from tests.support.waiting import until
from tests.unit.broker.store.retention.forgetful import HOUR, Disk, fill, kept, numbers
from tests.unit.broker.store.stores import opened


async def test_a_cold_read_of_a_file_deleted_meanwhile_returns_the_new_beginning(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 300)
    store.close()
    # Nothing that was there before is known to be in memory.
    store.config.limits = replace(store.config.limits, max_probes=0)
    store.open()
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.queues.close()
    cold = store.get("TopicTest", 0, 0, 10, wait=False)
    assert cold.status is GetStatus.COLD
    reading = asyncio.ensure_future(store.cold_reads.get("me", "TopicTest", 0, 0, 10))
    codes = asyncio.ensure_future(store.cold_reads.tags_codes("me", "TopicTest", 0, 0, 10))
    await asyncio.sleep(0)
    store.retention.step()
    result = await asyncio.wait_for(reading, 10)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == store.queries.min_offset("TopicTest", 0) > 0
    assert await asyncio.wait_for(codes, 10) == []


async def test_the_thread_deletes_and_ends_with_the_store(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(
        tmp_path,
        files=disk,
        clock=clock,
        retention=kept(first_delay_ms=0, interval_ms=10),
    )
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.start(asyncio.get_running_loop())
    async with asyncio.timeout(20):
        while store.log.start == 0:  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.01)
    low = store.queries.min_offset("TopicTest", 0)
    assert numbers(store) == list(range(low, 400))
    store.close()


async def test_nothing_is_deleted_soon_after_the_start_but_the_disk_is_checked(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    disk.use = DiskUse(95, 5)
    store = opened(tmp_path, files=disk, clock=clock, retention=kept(interval_ms=10))
    fill(store, 300)
    looked = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    async def looks(count: int) -> None:
        for _ in range(count):
            await asyncio.wait_for(looked.acquire(), 20)

    # Of both directories each time.
    disk.on_look = lambda: loop.call_soon_threadsafe(looked.release)
    store.start(loop)
    await looks(6)
    assert not store.writable
    assert store.log.start == 0
    clock.advance(61)
    await looks(6)
    assert store.log.start > 0
    store.close()


async def test_a_store_closes_at_once_while_files_are_deleted(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(
        tmp_path, files=disk, clock=clock, retention=kept(first_delay_ms=0, interval_ms=10)
    )
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.start(asyncio.get_running_loop())
    # The loop is not given back, so the thread waits for it.
    store.close()
    store.open()
    low = store.queries.min_offset("TopicTest", 0)
    assert numbers(store) == list(range(low, 400))
    store.close()


async def test_changed_settings_end_the_pause_between_two_runs(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(
        tmp_path,
        files=disk,
        clock=clock,
        limits=StoreLimits(pressed_seconds=0.01),
        retention=kept(interval_ms=3_600_000),
    )
    store.start(asyncio.get_running_loop())
    stats = store.retention.stats
    for number in range(3):
        # Each run notes a new measurement.
        measured = await until(lambda: stats.places)
        store.retention.configure(kept(interval_ms=3_600_001 + number))
        await until(lambda measured=measured: stats.places is not measured)
    store.close()
