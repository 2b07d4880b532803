"""Index files removed or truncated while a store is open: their contents are reindexed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from tests.unit.broker.store.stores import message, opened

ENTRIES = 100
MESSAGES = 250
FOREVER = 2**62


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return opened(tmp_path / "store", max_hash_slots=2000, max_index_entries=ENTRIES)


async def offsets_of(store: MessageStore, key: int) -> list[int]:
    found = await store.index.find(
        "TopicTest", f"key-{key}", max_count=10, begin_ms=0, end_ms=FOREVER
    )
    return found.offsets


def put(store: MessageStore, first: int) -> dict[int, int]:
    """Put messages with one key each; return number -> physical offset."""
    return {
        number: store.put(message(properties=b"KEYS\x01key-%d" % number)).physical_offset
        for number in range(first, first + MESSAGES)
    }


def take(path: Path, length: int | None) -> None:
    if length is None:
        path.unlink()
    else:
        os.truncate(path, length)


@pytest.mark.parametrize("length", [None, 0, 5000])
async def test_the_contents_of_a_lost_last_file_are_reindexed(
    store: MessageStore, length: int | None
) -> None:
    places = put(store, 0)
    assert await offsets_of(store, MESSAGES - 1) == [places[MESSAGES - 1]]
    take(sorted(store.paths.index.iterdir())[-1], length)
    for number, place in places.items():
        assert await offsets_of(store, number) == [place]
    places |= put(store, MESSAGES)
    for number, place in places.items():
        assert await offsets_of(store, number) == [place]
    store.close()
    store.open()
    for number, place in places.items():
        assert await offsets_of(store, number) == [place]
    store.close()


@pytest.mark.parametrize("length", [None, 0, 5000])
async def test_without_an_earlier_file_the_others_are_searched(
    store: MessageStore, length: int | None
) -> None:
    places = put(store, 0)
    assert await offsets_of(store, 0) == [places[0]]
    take(min(store.paths.index.iterdir()), length)
    assert await offsets_of(store, MESSAGES - 1) == [places[MESSAGES - 1]]
    assert await offsets_of(store, 0) == []
    places |= put(store, MESSAGES)
    assert await offsets_of(store, MESSAGES + 5) == [places[MESSAGES + 5]]
    store.close()


@pytest.mark.parametrize("length", [None, 0])
async def test_without_any_file_everything_is_reindexed(
    store: MessageStore, length: int | None
) -> None:
    places = put(store, 0)
    assert await offsets_of(store, 0) == [places[0]]
    for path in list(store.paths.index.iterdir()):
        take(path, length)
    for number, place in places.items():
        assert await offsets_of(store, number) == [place]
    store.close()


async def test_a_stop_completes_an_index_that_lost_its_last_file(store: MessageStore) -> None:
    places = put(store, 0)
    assert await offsets_of(store, 0) == [places[0]]
    take(sorted(store.paths.index.iterdir())[-1], 0)
    store.close()
    store.open()
    for number, place in places.items():
        assert await offsets_of(store, number) == [place]
    store.close()
