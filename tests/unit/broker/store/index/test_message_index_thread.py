"""A thread indexes the backlog, and its failures stop nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.store.index import IndexBuilder
from broker.store.limits import StoreLimits
from broker.store.results import PutStatus
from remoting.runtime.process_limits import memory_bytes
from tests.unit.broker.store.index.indexed import SMALL, check, fill, find, index_files, keyed
from tests.unit.broker.store.stores import FailingFiles, opened

HASTY = StoreLimits(index_look_seconds=0.01, index_retry_seconds=0.01)

pytestmark = pytest.mark.usefixtures("way")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.01)


async def test_the_thread_indexes_by_itself_when_the_store_is_idle(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", limits=HASTY, **SMALL)
    store.start(asyncio.get_running_loop())
    fill(store, range(5))
    await until(lambda: store.paths.index.exists() and store.index.backlog_bytes == 0)
    assert index_files(store)
    store.close()


@pytest.mark.parametrize("bounded_by", ["memory", "keys"])
async def test_a_busy_store_is_not_indexed_until_the_backlog_is_large(
    tmp_path: Path, bounded_by: str
) -> None:
    limits = replace(HASTY, index_busy_bytes=-1)
    if bounded_by == "memory":
        limits = replace(limits, trusted_memory_ratio=2000 / memory_bytes())
    else:
        limits = replace(limits, index_max_backlog_slices=4, index_min_slice_bytes=500)
    store = opened(tmp_path / "store", limits=limits, **SMALL)
    store.start(asyncio.get_running_loop())
    assert await find(store, "k0") == []
    fill(store, range(5))
    waiting = store.index.backlog_bytes
    assert 0 < waiting < 2000
    await asyncio.sleep(0.1)
    assert store.index.backlog_bytes == waiting
    fill(store, range(5, 30))
    # The thread may have looked meanwhile: what came after that may be too little again.
    await until(lambda: store.index.backlog_bytes < 2000)
    store.close()


async def test_a_full_disk_stops_the_index_and_nothing_else(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "store", files=files, limits=HASTY, **SMALL)
    files.full, files.full_for = True, "/index/"
    store.start(asyncio.get_running_loop())
    fill(store, range(30))
    await until(lambda: store.index.trouble is not None)
    assert "No space left" in str(store.index.trouble)
    assert "index can't be written" not in str(store.why_not_writable)
    assert await find(store, "k3") == []
    files.full = False
    await until(lambda: store.index.trouble is None)
    await check(store, range(30))
    store.close()


async def test_an_internal_error_ends_indexing_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "store", limits=HASTY, **SMALL)
    monkeypatch.setattr(IndexBuilder, "step", lambda *_: 1 // 0)
    store.start(asyncio.get_running_loop())
    await until(lambda: store.index.trouble is not None)
    assert "report this" in str(store.index.trouble)
    assert store.put(keyed("a")).status is PutStatus.OK
    store.close()
