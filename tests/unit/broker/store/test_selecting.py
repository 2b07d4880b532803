"""Gets with a filter that looks into records: nothing wanted is left out, nothing comes twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker.filters.sql import SqlFilter
from broker.store.engine import GetStatus, MessageStore
from remoting.protocol.message.view import iter_records
from tests.unit.broker.store.stores import message, opened

COUNT = 300


def fill(store: MessageStore, choose: random.Random, *, mixed: bool) -> list[tuple[int, bytes]]:
    """Store messages with a number each; other queues' lie between them if ``mixed``."""
    stored = []
    for number in range(COUNT):
        body = b"%d " % number + b"x" * choose.choice((0, 10, 3_000))
        amount = choose.randrange(100)
        store.put(message(body, properties=b"amount\x01%d" % amount))
        stored.append((amount, body))
        if mixed and choose.random() < 0.5:
            store.put(message(b"other", queue_id=1, properties=b"amount\x0150"))
    return stored


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_walk_finds_what_matches_once_and_in_order(
    tmp_path: Path, mixed: bool, reopened: bool
) -> None:
    choose = random.Random(5)
    store = opened(tmp_path)
    stored = fill(store, choose, mixed=mixed)
    if reopened:
        store.close()
        store = opened(tmp_path)
    for most in (1, 3, 32, 1_000):
        for max_bytes in (1, 5_000, 1 << 20):
            bound = choose.randrange(100)
            wanted = [body for amount, body in stored if amount >= bound]
            found, offset = [], 0
            while offset < COUNT:
                result = store.get(
                    *("TopicTest", 0, offset, most),
                    max_bytes=max_bytes,
                    records=SqlFilter(f"amount >= {bound}"),
                )
                bodies = [bytes(one.body) for run in result.records for one in iter_records(run)]
                assert len(bodies) == result.count <= most
                assert result.size == sum(map(len, result.records))
                assert result.size <= max_bytes or result.count == 1
                assert result.next_offset > offset
                expected = GetStatus.FOUND if bodies else GetStatus.NO_MATCHED_MESSAGE
                assert result.status is expected
                found += bodies
                offset = result.next_offset
            assert found == wanted
    store.close()


def test_damaged_messages_are_passed_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, random.Random(6), mixed=False)
    store.close()
    log = min((tmp_path / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    body = data.index(b"7 xxx")
    data[body + 2] ^= 0xFF
    log.write_bytes(data)
    store = opened(tmp_path)
    found, offset = [], 0
    while offset < COUNT:
        result = store.get("TopicTest", 0, offset, 32, records=SqlFilter("amount >= 0"))
        found += [int(one.body.split()[0]) for run in result.records for one in iter_records(run)]
        offset = result.next_offset
    assert found == [number for number in range(COUNT) if number != 7]
    store.close()


def test_what_is_filtered_is_counted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    stored = fill(store, random.Random(7), mixed=False)
    result = store.get("TopicTest", 0, 0, 1_000, records=SqlFilter("amount >= 50"))
    kept = sum(amount >= 50 for amount, _ in stored[: result.next_offset])
    stats = store.stats
    assert (stats.got_messages, stats.filtered_messages) == (kept, result.next_offset - kept)
    store.close()
