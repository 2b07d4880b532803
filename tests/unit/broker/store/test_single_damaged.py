"""A single damaged record is not returned, and is distinguished from no record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.store.engine import MessageStore
from broker.store.queries import NotInMemory
from tests.unit.broker.store.damage import COUNT, PARTS, all_but, fill, flip, flip_in
from tests.unit.broker.store.stores import NOTHING_HOT, bodies, message, opened
from tests.unit.broker.store.test_cold_reads import SlowFiles


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = opened(tmp_path / "store", limits=NOTHING_HOT)
    yield store
    store.close()


@pytest.mark.parametrize("part", ["size", "body length", "body", "crc", "topic length"])
async def test_a_single_damaged_record_is_not_found(store: MessageStore, part: str) -> None:
    places = fill(store, COUNT)
    flip(store, places[3] + PARTS[part])
    with capture_logs() as logs:
        assert store.queries.record_at(places[3]) is None
        assert await store.cold_reads.record_at("me", places[3]) is None
    assert [(log["offset"], log["place"]) for log in logs] == [(3, places[3])]
    assert store.stats.damaged_messages == 1
    assert bodies(store) == all_but(3)
    assert store.stats.damaged_messages == 1


@pytest.mark.parametrize("size", [0, 90, 2**31])
def test_a_record_of_impossible_length_is_damaged(store: MessageStore, size: int) -> None:
    places = fill(store, COUNT)
    name = store.paths.commit_log / ("0" * 20)
    with name.open("r+b") as file:
        file.seek(places[3])
        file.write(size.to_bytes(4, "big"))
    assert store.queries.from_memory(lambda: store.queries.record_at(places[3])) is None
    assert store.stats.damaged_messages == 1
    assert bodies(store) == all_but(3)


@pytest.mark.parametrize("part", ["magic", "physical offset"])
def test_bytes_without_a_record_magic_are_no_record(store: MessageStore, part: str) -> None:
    places = fill(store, COUNT)
    flip(store, places[3] + PARTS[part])
    for place in (places[3], places[3] + 1, store.log.end, -1):
        assert store.queries.record_at(place) is None
    assert store.stats.damaged_messages == 0


def test_all_of_a_single_record_has_to_be_in_memory(tmp_path: Path) -> None:
    disk = SlowFiles()
    store = opened(tmp_path, files=disk, limits=NOTHING_HOT)
    place = store.put(message(b"x" * 5000)).physical_offset
    store.put(message())
    disk.cold = True
    path = store.paths.commit_log / ("0" * 20)
    disk.fetched.append((path, 0, 91))
    with pytest.raises(NotInMemory) as problem:
        store.queries.from_memory(lambda: store.queries.record_at(place))
    assert [end for _, _, end in problem.value.ranges] > [5000]
    store.close()


def test_a_reverted_flip_is_no_damage(store: MessageStore) -> None:
    """What a broken cable did once, and the next read does not see."""
    places = fill(store, COUNT)
    path = store.paths.commit_log / ("0" * 20)
    flip_in(path, places[3] + PARTS["body"])
    assert bodies(store) == all_but(3)
    flip_in(path, places[3] + PARTS["body"])
    assert bodies(store) == all_but()
