"""Single old records and entries are read in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from broker.store.results import StoreError
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.stores import message, opened
from tests.unit.broker.store.test_cold_reads import LITTLE_HOT, SlowFiles

TOPIC = "TopicTest"
BODIES = [b"%d" % number * 300 for number in range(60)]


@pytest.fixture
def disk() -> SlowFiles:
    return SlowFiles()


@pytest.fixture
def places() -> list[int]:
    """Return the physical offsets of the messages."""
    return []


@pytest.fixture
def store(tmp_path: Path, disk: SlowFiles, places: list[int]) -> Iterator[MessageStore]:
    """A store whose messages are only on disk."""
    before = opened(tmp_path)
    places += [before.put(message(body, tag="a")).physical_offset for body in BODIES]
    before.close()
    store = opened(tmp_path, files=disk, limits=LITTLE_HOT)
    disk.cold = True
    yield store
    store.close()


async def test_a_cold_record_is_read_in_a_thread(
    store: MessageStore, disk: SlowFiles, places: list[int]
) -> None:
    for place, body in zip(places, BODIES, strict=True):
        found = await store.cold_reads.record_at("me", place)
        assert found is not None
        assert RecordView(found).body == body
    assert disk.threads
    assert all(name.startswith("store-cold-read") for name in disk.threads)


async def test_a_record_in_memory_is_taken_from_there(store: MessageStore, disk: SlowFiles) -> None:
    place = store.put(message(b"new")).physical_offset
    found = await store.cold_reads.record_at("me", place)
    assert found is not None
    assert RecordView(found).body == b"new"
    assert disk.threads == set()


@pytest.mark.parametrize("wrong", [-1, 1, 10**9])
async def test_an_offset_without_a_record(store: MessageStore, wrong: int) -> None:
    assert await store.cold_reads.record_at("me", wrong) is None


async def test_entry_fields_are_read_in_a_thread(store: MessageStore, disk: SlowFiles) -> None:
    assert await store.cold_reads.tags_codes("me", TOPIC, 0, 0, 7) == [97] * 7
    assert await store.cold_reads.tags_codes("me", TOPIC, 0, len(BODIES) - 2, 7) == [97] * 2
    assert disk.threads


@pytest.mark.parametrize("offset", [-1, len(BODIES)])
async def test_missing_entries(store: MessageStore, offset: int) -> None:
    assert await store.cold_reads.tags_codes("me", TOPIC, 0, offset, 7) == []
    assert await store.cold_reads.tags_codes("me", "Other", 0, 0, 7) == []


async def test_a_disk_that_cannot_be_read_is_an_error(
    store: MessageStore, disk: SlowFiles, places: list[int]
) -> None:
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(StoreError, match="Input/output error"):
        await store.cold_reads.record_at("me", places[0])
    with pytest.raises(StoreError, match="Input/output error"):
        await store.cold_reads.tags_codes("me", TOPIC, 0, 0, 1)
