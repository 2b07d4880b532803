"""Messages are found by key, newest first, in any index file."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from broker.store.index import slice_for
from broker.store.index_files import IndexFileSet
from broker.store.index_keys import KeyBatch, Walked
from broker.store.limits import StoreLimits
from broker.store.results import StoreBusy, StoreError
from remoting.protocol.disk.index_file import file_bytes
from tests.support.clock import ManualClock
from tests.unit.broker.store.index.indexed import (
    ENTRIES,
    FOREVER,
    SLOTS,
    SMALL,
    check,
    fill,
    find,
    index_files,
    keyed,
)
from tests.unit.broker.store.stores import LIMITS, SettableClock, message, opened

pytestmark = pytest.mark.usefixtures("way")


async def test_a_message_is_found_at_once_by_its_id_and_by_each_key(store: MessageStore) -> None:
    store.put(message(b"one", properties=b"KEYS\x01a b\x02UNIQ_KEY\x01ID"))
    for key in ("a", "b", "ID"):
        assert await find(store, key) == [b"one"]
    assert await find(store, "a b") == []
    assert await find(store, "c") == []
    store.close()


async def test_of_messages_with_one_key_the_newest_come_first(store: MessageStore) -> None:
    for number in range(5):
        store.put(message(b"%d" % number, properties=b"KEYS\x01same"))
    assert await find(store, "same") == [b"4", b"3", b"2", b"1", b"0"]
    assert await find(store, "same", max_count=2) == [b"4", b"3"]
    store.close()


async def test_a_time_range_is_searched_in_whole_seconds(
    store: MessageStore, clock: ManualClock
) -> None:
    begun = clock.now_ms()
    for number in range(4):
        store.put(message(b"%d" % number, properties=b"KEYS\x01same"))
        clock.advance(10)
    found = await find(store, "same", begin_ms=begun + 10_000, end_ms=begun + 20_000)
    assert found == [b"2", b"1"]
    assert await find(store, "same", begin_ms=begun + 50_000) == []
    store.close()


async def test_files_roll_when_they_are_full_and_all_are_searched(store: MessageStore) -> None:
    fill(store, range(100))
    await check(store, range(100))
    # 200 keys, 39 entries a file.
    assert len(index_files(store)) == 6
    assert len(set(index_files(store))) == 6
    store.close()


async def test_names_of_files_continue_when_the_clock_goes_back(
    store: MessageStore, clock: SettableClock
) -> None:
    fill(store, range(15))
    await check(store, range(15))
    clock.set_back(3600)
    fill(store, range(15, 100))
    names = index_files(store)
    await check(store, range(100))
    assert index_files(store)[: len(names)] == names
    store.close()


async def test_index_files_of_deleted_messages_only_are_removed(store: MessageStore) -> None:
    fill(store, range(100))
    await check(store, range(100))
    assert store.index.drop_before(0) == 0
    dropped = store.index.drop_before(store.log.end)
    assert dropped == 5
    assert len(index_files(store)) == 1
    assert await find(store, "k99") == [b"k99"]
    store.close()


async def test_records_longer_than_a_slice_and_ends_of_files_are_passed(tmp_path: Path) -> None:
    limits = StoreLimits(
        index_min_slice_bytes=200, index_max_slice_bytes=200, index_plain_slice_bytes=200
    )
    store = opened(tmp_path / "store", limits=limits, **SMALL)
    for number in range(20):
        store.put(message(b"x" * 900 * (number % 7), properties=b"KEYS\x01k%d" % number))
    for number in range(20):
        assert await find(store, f"k{number}") == [b"x" * 900 * (number % 7)]
    store.close()


async def test_rolled_back_messages_are_not_found_and_prepared_ones_are(
    store: MessageStore,
) -> None:
    store.put(keyed("prepared", sys_flag=4))
    store.put(keyed("rolled", sys_flag=12))
    assert await find(store, "prepared") == [b"prepared"]
    assert await find(store, "rolled") == []
    store.close()


async def test_in_sync_mode_only_what_the_disk_has_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", flush_disk_type="SYNC_FLUSH", **SMALL)
    store.put(keyed("a"))
    assert await find(store, "a") == []
    store.flush()
    assert await find(store, "a") == [b"a"]
    store.close()


async def test_queries_are_bounded_and_refused_when_the_store_closes(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", limits=StoreLimits(max_index_queries=1), **SMALL)
    fill(store, range(3))
    index = store.index
    first = asyncio.ensure_future(find(store, "k1"))
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy, match="try again"):
        await find(store, "k2")
    assert await first == [b"k1"]
    store.close()
    with pytest.raises(StoreError, match="closing"):
        await index.find("TopicTest", "k1", max_count=1, begin_ms=0, end_ms=FOREVER)


async def test_an_index_that_cannot_be_read_says_so(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, range(3))

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(IndexFileSet, "find", refuse)
    with pytest.raises(StoreError, match="can't be read"):
        await find(store, "k1")
    store.close()


@pytest.mark.parametrize(
    ("used", "keys", "expected"),
    [
        (900 * 1000, 1000, 900 * LIMITS.index_slice_keys),
        (1200 * 1000, 1000, LIMITS.index_max_slice_bytes),
        (200 * 1000, 2000, LIMITS.index_min_slice_bytes),
        (LIMITS.index_min_slice_bytes, 0, LIMITS.index_max_slice_bytes),
        (0, 0, LIMITS.index_min_slice_bytes),
    ],
)
def test_a_slice_has_about_the_intended_number_of_keys(used: int, keys: int, expected: int) -> None:
    found = KeyBatch([1] * keys, [], [])
    assert slice_for(Walked(found, used), LIMITS) == expected


def test_the_limits_fit_together() -> None:
    least = LIMITS.index_max_backlog_slices * LIMITS.index_min_slice_bytes
    assert LIMITS.index_busy_bytes <= least
    assert (
        LIMITS.index_plain_slice_bytes < LIMITS.index_min_slice_bytes < LIMITS.index_max_slice_bytes
    )
    assert LIMITS.index_max_slice_bytes <= LIMITS.index_busy_bytes
    assert file_bytes(SLOTS, ENTRIES) == 40 + 4 * SLOTS + 20 * ENTRIES
