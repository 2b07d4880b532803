"""What ranges of a queue take in the log."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store import queries as lookups
from broker.store import range_bytes
from broker.store.message_store import MessageStore
from broker.store.results import StoreError
from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from tests.unit.broker.store.stores import message, opened, read_all
from tests.unit.broker.store.test_cold_reads import SlowFiles

QUEUE = ("TopicTest", 0)


async def measured(
    store: MessageStore, begin: int, end: int, limit: int | None = None
) -> ByteAnswer:
    return await store.bytes_of("me", *QUEUE, ByteQuestion(begin, end, limit))


def filled(root: Path, bodies: list[int], files: SlowFiles | None = None) -> MessageStore:
    store = opened(root, files=files)
    for length in bodies:
        store.put(message(bytes(length)))
    return store


def sizes(store: MessageStore) -> list[int]:
    return [record.size for record in read_all(store)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A queue of three files, whose entries are looked at 20 at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_bytes, "SLICE_ENTRIES", 20)
        store = filled(tmp_path, [10 + 7 * number % 300 for number in range(130)])
        yield store
        store.close()


async def test_the_size_of_a_range_is_that_of_its_records(store: MessageStore) -> None:
    known = sizes(store)
    for begin, end in ((0, 130), (0, 0), (3, 4), (19, 21), (49, 51), (7, 128), (130, 130)):
        assert await measured(store, begin, end) == ByteAnswer(sum(known[begin:end]), end)


@given(
    bodies=st.lists(st.integers(0, 400), min_size=1, max_size=30),
    begin=st.integers(0, 31),
    length=st.integers(0, 31),
    limit=st.integers(0, 8000),
    at_once=st.integers(1, 9),
)
def test_a_limit_reaches_as_far_as_whole_messages_do(
    bodies: list[int], begin: int, length: int, limit: int, at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_bytes, "SLICE_ENTRIES", at_once)
        store = filled(Path(root), bodies)
        known = sizes(store)
        answer = asyncio.run(measured(store, begin, begin + length, limit))
        store.close()
    end = min(begin + length, len(known))
    reached, size = begin, 0
    while reached < end and size + known[reached] <= limit:
        size += known[reached]
        reached += 1
    following = known[reached] if reached < end else None
    assert answer == ByteAnswer(size, reached, following)


async def test_beyond_either_end_there_is_nothing(store: MessageStore) -> None:
    known = sizes(store)
    assert await measured(store, 100, 2**63 - 1) == ByteAnswer(sum(known[100:]), 130)
    assert await measured(store, 2**62, 2**62 + 5, 0) == ByteAnswer(0, 2**62)
    nowhere = await store.bytes_of("me", "nowhere", 7, ByteQuestion(3, 9))
    assert nowhere == ByteAnswer(0, 3)


async def test_messages_that_were_deleted_have_no_bytes(store: MessageStore) -> None:
    known = sizes(store)
    queue = store.queues.get(QUEUE)
    assert queue is not None
    for file in queue.drop_before(60):
        file.remove()
    assert await measured(store, 0, 70) == ByteAnswer(sum(known[60:70]), 70)
    assert await measured(store, 0, 60, 0) == ByteAnswer(0, 60)
    assert await measured(store, 0, 40) == ByteAnswer(0, 40)
    assert await measured(store, 0, 130, 1) == ByteAnswer(0, 60, known[60])


async def test_messages_may_be_deleted_meanwhile(store: MessageStore) -> None:
    known = sizes(store)
    queue = store.queues.get(QUEUE)
    assert queue is not None
    counting = asyncio.ensure_future(measured(store, 0, 130))
    await asyncio.sleep(0)
    for file in queue.drop_before(77):
        file.remove()
    assert await counting == ByteAnswer(sum(known[:20]) + sum(known[77:]), 130)


async def test_a_topic_may_be_deleted_meanwhile(store: MessageStore) -> None:
    counting = asyncio.ensure_future(measured(store, 0, 130))
    await asyncio.sleep(0)
    store.delete_topic(QUEUE[0])
    with pytest.raises(StoreError, match="can't be read at message 20"):
        await counting


async def test_one_request_looks_at_so_many_entries(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_bytes, "MAX_LOOKED_AT", 30)
    known = sizes(store)
    assert await measured(store, 5, 130) == ByteAnswer(sum(known[5:35]), 35)
    limit = sum(known[5:35])
    assert await measured(store, 5, 130, limit) == ByteAnswer(limit, 35)


async def test_the_loop_turns_while_a_range_is_counted(store: MessageStore) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.ensure_future(turn())
    await measured(store, 0, 130)
    turning.cancel()
    assert turns >= 6


async def test_entries_that_stand_for_no_message_have_no_bytes(tmp_path: Path) -> None:
    store = filled(tmp_path, [10] * 30)
    known = sizes(store)
    queue = store.queues.get(QUEUE)
    assert queue is not None
    queue.replay_gap(10, 20)
    assert await measured(store, 0, 30) == ByteAnswer(sum(known[:20]), 30)
    assert await measured(store, 10, 30, known[0]) == ByteAnswer(known[0], 21, known[0])
    store.close()


async def test_what_the_disk_alone_has_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "HOT_QUEUE_ENTRIES", 0)
    monkeypatch.setattr("broker.store.cold_reads.HOT_QUEUE_ENTRIES", 0)
    before = filled(tmp_path, [10] * 120)
    known = sizes(before)
    before.close()
    disk = SlowFiles()
    store = opened(tmp_path, files=disk)
    disk.cold = True
    assert await measured(store, 0, 120) == ByteAnswer(sum(known), 120)
    assert len(disk.fetched) == 3
    assert all("cold" in name for name in disk.threads), disk.threads
    disk.fetched.clear()
    store.close()
