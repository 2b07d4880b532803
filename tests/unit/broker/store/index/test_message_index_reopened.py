"""After a stop or a crash messages are found again, whatever happened to the index."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from broker.store.checkpoint import decode, encode
from broker.store.engine import MessageStore
from broker.store.limits import StoreLimits
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.disk.index_file import HEADER
from tests.support.clock import ManualClock
from tests.unit.broker.store.crashes import forget
from tests.unit.broker.store.damage import PARTS, flip
from tests.unit.broker.store.index.indexed import (
    ENTRIES,
    SLOTS,
    SMALL,
    check,
    fill,
    find,
    index_files,
    keyed,
    reopen,
)
from tests.unit.broker.store.stores import FailingFiles, opened

pytestmark = pytest.mark.usefixtures("way")


async def test_a_closed_store_has_all_indexed_and_continues(store: MessageStore) -> None:
    fill(store, range(30))
    store = reopen(store)
    fill(store, range(30, 60))
    await check(store, range(60))
    store.close()


async def test_the_checkpoint_covers_full_files_which_a_crash_leaves_unchanged(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, range(30))
    await check(store, range(30))
    clock.advance(1)
    fill(store, range(30, 50))
    store.close()
    checkpoint = Checkpoint.decode(store.paths.checkpoint.read_bytes())
    assert checkpoint.index_ms == clock.now_ms()
    clock.advance(1)
    store = reopen(store)
    fill(store, range(50, 60))
    await check(store, range(60))
    before = {path.name: path.stat().st_ctime_ns for path in store.paths.index.iterdir()}
    store = reopen(store, crash=True)
    await check(store, range(60))
    after = {path.name: path.stat().st_ctime_ns for path in store.paths.index.iterdir()}
    kept = [name for name in sorted(before) if after.get(name) == before[name]]
    assert kept == sorted(before)[:-1]
    store.close()


async def test_a_store_without_saved_progress_continues_after_the_last_indexed_message(
    store: MessageStore,
) -> None:
    fill(store, range(30))
    store.close()
    forget(store.paths.own_checkpoint, "index")
    before = [path.read_bytes() for path in sorted(store.paths.index.iterdir())]
    store = reopen(store)
    await check(store, range(30))
    store.close()
    assert [path.read_bytes() for path in sorted(store.paths.index.iterdir())] == before


@pytest.mark.parametrize(
    "note",
    [
        None,
        [],
        {"indexed": 999999, "last": ["20200101000000000", 7]},
        {"indexed": "x", "last": []},
        {"indexed": 7},
    ],
)
async def test_saved_progress_of_other_files_is_ignored(store: MessageStore, note: object) -> None:
    fill(store, range(30))
    store.close()
    path = store.paths.own_checkpoint
    path.write_bytes(encode(decode(path.read_bytes()) | {"index": note}))
    store = reopen(store)
    await check(store, range(30))
    store.close()


async def test_after_a_crash_everything_is_found_again(store: MessageStore) -> None:
    fill(store, range(50))
    await check(store, range(50))
    store = reopen(store, crash=True)
    fill(store, range(50, 60))
    await check(store, range(60))
    store.close()


async def test_after_a_crash_a_file_that_was_not_full_is_rebuilt(store: MessageStore) -> None:
    fill(store, range(50))
    await check(store, range(50))
    names = index_files(store)
    store.close()
    last = store.paths.index / names[-1]
    torn = bytearray(last.read_bytes())
    torn[HEADER.size : HEADER.size + 4 * SLOTS] = bytes(4 * SLOTS)
    last.write_bytes(torn)
    store.paths.abort.touch()
    store = opened(store.paths.root, **SMALL)
    await check(store, range(50))
    store.close()


@pytest.mark.parametrize("part", ["size", "magic", "physical offset"])
@pytest.mark.parametrize("slice_bytes", [200, 64 * 1024])
async def test_messages_behind_a_damaged_head_are_found(
    tmp_path: Path, part: str, slice_bytes: int
) -> None:
    limits = StoreLimits(
        index_min_slice_bytes=slice_bytes,
        index_max_slice_bytes=slice_bytes,
        index_plain_slice_bytes=slice_bytes,
    )
    store = opened(tmp_path / "store", limits=limits, **SMALL)
    places = [store.put(keyed(f"k{number}")).physical_offset for number in range(40)]
    store.close()
    shutil.rmtree(store.paths.index)
    for number in (10, 20, 21):
        flip(store, places[number] + PARTS[part], 64)
    store = reopen(store)
    await check(store, range(10))
    await check(store, range(11, 20))
    await check(store, range(22, 40))
    store.close()


@pytest.mark.parametrize(
    "header",
    [
        (0, 0, 0, 10**9, 0, 3),
        (0, 0, 0, 0, 0, ENTRIES + 1),
        (0, 0, 500, 100, 1, 3),
        (0, 0, 0, 100, 99, 3),
        (0, 0, 0, 0, 5, 1),
    ],
)
async def test_a_file_with_an_invalid_header_is_rebuilt(
    store: MessageStore, header: tuple[int, ...]
) -> None:
    fill(store, range(10))
    store.close()
    forget(store.paths.own_checkpoint, "index")
    (path,) = store.paths.index.iterdir()
    path.write_bytes(HEADER.pack(*header) + path.read_bytes()[HEADER.size :])
    store = reopen(store)
    await check(store, range(10))
    store.close()


async def test_files_of_another_length_and_foreign_files_are_left_unchanged(
    store: MessageStore,
) -> None:
    fill(store, range(10))
    store.close()
    (path,) = store.paths.index.iterdir()
    os.truncate(path, 100)
    (store.paths.index / "notes.txt").write_text("mine")
    store = reopen(store)
    await check(store, range(10))
    assert len(index_files(store)) == 3
    assert path.stat().st_size == 100
    store.close()


async def test_a_store_with_indexing_off_finds_what_was_indexed(store: MessageStore) -> None:
    fill(store, range(5))
    store.close()
    store = opened(store.paths.root, message_index_enable=False, **SMALL)
    store.start(asyncio.get_running_loop())
    store.put(keyed("later"))
    assert await find(store, "later") == []
    assert await find(store, "k3") == [b"k3"]
    store.close()
    store = opened(store.paths.root, **SMALL)
    assert await find(store, "later") == [b"later"]
    store.close()


async def test_a_kill_with_indexing_off_keeps_what_was_indexed(store: MessageStore) -> None:
    fill(store, range(5))
    store.close()
    store = opened(store.paths.root, message_index_enable=False, **SMALL)
    for crash in (True, False, False):
        store = reopen(store, crash=crash)
        await check(store, range(5))
    store.close()
    # As a kill in the middle of an addition leaves it.
    (path,) = store.paths.index.iterdir()
    torn = bytearray(path.read_bytes())
    torn[HEADER.size : HEADER.size + 4 * SLOTS] = bytes(4 * SLOTS)
    path.write_bytes(torn)
    store = opened(store.paths.root, **SMALL)
    await check(store, range(5))
    store.close()


async def test_an_index_that_fails_at_the_stop_is_completed_by_the_next_start(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "store", files=files, **SMALL)
    fill(store, range(10))
    await check(store, range(10))
    fill(store, range(10, 40))
    files.full, files.full_for = True, "/index/"
    store.close()
    assert not store.paths.abort.exists()
    store = opened(tmp_path / "store", **SMALL)
    await check(store, range(40))
    store.close()
