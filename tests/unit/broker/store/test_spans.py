"""A get from several positions reads nearby messages together, with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore
from broker.store.limits import MAX_PULL_BYTES, StoreLimits
from tests.unit.broker.store.damage import BODY, PARTS, TOPIC, flip
from tests.unit.broker.store.stores import EVERY_CODE, LOG_FILE, message, opened
from tests.unit.broker.store.test_cold_reads import SlowFiles

QUEUES = 3
ROUNDS = 60
NEAR = 600
RECORD_BYTES = 114
MOST = [(count, MAX_PULL_BYTES) for count in (1, 7, 32, 64, 65, 140, 1000)]
MOST += [(7, 1), (32, 1000), (140, 5000), (140, 20_000)]
"""Maximum number of messages, and of bytes, of a get."""


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> StoreLimits:
    """How near two messages are that are looked at as one: the parameter of a test, or ``NEAR``."""
    near = getattr(request, "param", NEAR)
    return StoreLimits(block_bytes=near, hot_log_bytes=0)


@pytest.fixture
def store(tmp_path: Path, limits: StoreLimits) -> Iterator[MessageStore]:
    """Messages of three queues in turns, runs of one to four; all from before it was opened.

    They are in memory, whatever the system's page cache has let go.
    """
    store = opened(tmp_path, files=SlowFiles(), limits=limits)
    for number in range(ROUNDS):
        for queue_id in range(QUEUES):
            for _ in range(1 + number % 4):
                store.put(message(BODY % number, queue_id=queue_id, tag="a"))
    store.close()
    store.open()
    yield store
    store.close()


def test_a_get_over_gaps_and_files_returns_what_single_entries_give(
    store: MessageStore,
) -> None:
    assert store.log.end > 2 * LOG_FILE
    for queue_id in range(QUEUES):
        for offset in range(store.queries.max_offset(TOPIC, queue_id)):
            for count, most in MOST:
                at_once = store.get(TOPIC, queue_id, offset, count, max_bytes=most, wait=False)
                one_by_one = store.get(
                    *(TOPIC, queue_id, offset, count),
                    max_bytes=most,
                    codes=EVERY_CODE,
                    wait=False,
                )
                assert at_once.status is one_by_one.status is GetStatus.FOUND
                assert b"".join(at_once.records) == b"".join(one_by_one.records)
                assert at_once.count == one_by_one.count
                assert at_once.size == one_by_one.size
                assert at_once.next_offset == one_by_one.next_offset


@pytest.mark.parametrize("limits", [5 * RECORD_BYTES], indirect=True)
def test_adjacent_messages_with_a_gap_before_them_come_as_one_slice(store: MessageStore) -> None:
    # Rounds 2 and 3 gave this queue three messages and four, with six of others between them.
    queue = store.queues.get((TOPIC, 0))
    assert queue is not None
    sizes = [entry[1] for offset in range(3, 10) if (entry := queue.entry(offset))]
    assert max(sizes) == RECORD_BYTES
    result = store.get(TOPIC, 0, 3, 7, wait=False)
    assert [len(record) for record in result.records] == [sum(sizes[:3]), sum(sizes[3:])]


def test_behind_a_damaged_record_the_next_span_is_served(store: MessageStore) -> None:
    queue = store.queues.get((TOPIC, 0))
    entry = queue.entry(20) if queue is not None else None
    assert entry is not None
    flip(store, entry[0] + PARTS["magic"])
    result = store.get(TOPIC, 0, 0, 32)
    assert (result.count, result.next_offset) == (31, 32)
    assert store.stats.damaged_messages == 1
