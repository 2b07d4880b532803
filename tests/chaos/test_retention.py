"""Continuous deletion under load and slow readers never returns a wrong message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.app import Broker
from broker.config import BrokerConfig
from remoting.pool import ConnectionPool
from tests.chaos.retention_load import QUEUES, SENDERS, TOPIC, Load, send
from tests.chaos.small_disk import CAPACITY, Held, SmallDisk, deleted_bytes
from tests.support.sizes import size
from tests.unit.broker.store.stores import open_files

SECONDS = size(test=30.0, ci=30.0, soak=3600.0)
LOG_FILE = 1 << 20
QUEUE_FILE = 20 * 500
WATCHED = 30

MOST_FILES = CAPACITY // LOG_FILE + 150
"""Bytes for the log, for its queues and index, and for the configuration."""

MOST_DIRECTORIES = 12
INDEX_ENTRIES = 500

FORCED, FULL = 60, 70
"""Percent of the disk above which files are deleted, and above which nothing is stored."""

A_LOOK = 5
"""Percent of the disk that may be written or allocated between two checks."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 120)]


async def test_readers_get_what_was_sent_while_files_are_deleted(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    config = BrokerConfig(
        broker_name="broker-a",
        listen_port=0,
        store_path_root_dir=tmp_path,
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=QUEUE_FILE,
        clean_resource_interval_ms=200,
        disk_max_used_space_ratio=FORCED,
        disk_space_clean_forcibly_ratio=FORCED,
        disk_space_warning_level_ratio=FULL,
        max_hash_slots=500,
        max_index_entries=INDEX_ENTRIES,
    )
    pool = ConnectionPool()
    async with Broker(config, files=disk) as broker:
        await pool.request(broker.address, send(0, 0), timeout=10)
        load = Load(broker.address, pool, broker.store)
        held = await run(load, SECONDS, tmp_path)
        retention = broker.store.retention
        stats = retention.stats
        await settle(lambda: not deleted_files(tmp_path) and not retention.removals.held_bytes)
        logs = list((tmp_path / "commitlog").iterdir())
        queues = list((tmp_path / "consumequeue" / TOPIC).glob("*/*"))
        begins = [broker.store.queries.min_offset(TOPIC, queue) for queue in range(QUEUES)]
        ends = [broker.store.queries.max_offset(TOPIC, queue) for queue in range(QUEUES)]
    await pool.close()
    indexes = list((tmp_path / "index").iterdir())
    left = sum(end - begin for begin, end in zip(begins, ends, strict=True))

    # The disk was never full, and what is kept stayed below the bound.
    assert disk.refusals == 0
    assert disk.most_kept <= (FULL + A_LOOK) / 100 * CAPACITY
    assert disk.most_held >= LOG_FILE
    assert stats.log_files > 10
    assert stats.queue_files > 0
    assert load.acknowledged > 1000
    assert load.read > 1000
    assert load.moved > 0
    assert load.undercut > 0
    # Nothing piles up: a file is mapped once, which takes two descriptors, also one that is held.
    assert len(held) == WATCHED
    deleted = disk.most_held // LOG_FILE + 1
    assert max(one.files for one in held) <= MOST_FILES
    assert max(one.directories for one in held) <= MOST_DIRECTORIES
    assert max(one.maps for one in held) <= MOST_FILES + deleted
    assert max(one.descriptors for one in held) <= 2 * (MOST_FILES + deleted)
    # Nothing is left behind: no files of the log, of the index or of the queues.
    assert len(indexes) <= left // (INDEX_ENTRIES - 1) + 2
    assert len(logs) <= CAPACITY // LOG_FILE + 2
    wanted = [end // 500 - begin // 500 + 2 for begin, end in zip(begins, ends, strict=True)]
    assert len(queues) <= sum(wanted)
    assert deleted_bytes(tmp_path) == 0


def deleted_files(root: Path) -> list[str]:
    """Return this process's descriptors of deleted files of the store."""
    return [target for target in open_files(root) if target.endswith("(deleted)")]


async def run(load: Load, seconds: float, root: Path) -> list[Held]:
    """Run senders and readers of all kinds for some seconds; the first failure ends the run.

    Returns what was held every now and then.
    """
    some = (load.follow, load.begin, load.crawl, load.hold)
    tasks = [asyncio.create_task(read(queue)) for read in some for queue in range(QUEUES)]
    tasks += [asyncio.create_task(load.send(sender % QUEUES)) for sender in range(SENDERS)]
    held: list[Held] = []
    ended: set[asyncio.Task[None]] = set()
    for _ in range(WATCHED):
        ended, _ = await asyncio.wait(
            tasks, timeout=seconds / WATCHED, return_when=asyncio.FIRST_COMPLETED
        )
        if ended:
            break
        held.append(Held.of(root))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        await task
    return held


async def settle(is_done: Callable[[], bool]) -> None:
    """Wait until answers to closed connections have been dropped."""
    async with asyncio.timeout(60):
        while True:
            if is_done():
                return
            await asyncio.sleep(0.1)
