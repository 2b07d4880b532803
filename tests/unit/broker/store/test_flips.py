"""With any flipped bytes, delivered messages are correct and in order, and few are missing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.engine import GetStatus, MessageStore
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.record import HEAD_BYTES_V4
from remoting.protocol.message.view import RecordView, iter_records
from tests.support.clock import ManualClock
from tests.support.sizes import size
from tests.unit.broker.store.damage import TOPIC, flip, flip_in
from tests.unit.broker.store.stores import LIMITS, NOTHING_HOT, QUEUE_FILE, message, opened

QUEUES: Final = 2
MESSAGES: Final = 60

CHECKED_HEAD: Final = (*range(16), *range(20, 36), *range(84, HEAD_BYTES_V4))
"""Without flags, times and hosts, whose damage nothing in a record reveals."""


def body_of(number: int) -> bytes:
    return b"%d." % number * (1 + number * 7 % 90)


def filled(root: Path, clock: ManualClock) -> tuple[MessageStore, list[bytes]]:
    """A store of a few files with messages of two queues, and their records."""
    store = opened(root, clock=clock, limits=NOTHING_HOT)
    for number in range(MESSAGES):
        store.put(message(body_of(number), queue_id=number % QUEUES, tag="ab"[number // 3 % 2]))
    # A start checks the last record, and cuts it off.
    store.put(message(b"end", topic="Other"))
    found: list[bytes] = []
    for number in range(MESSAGES):
        result = store.get(TOPIC, number % QUEUES, number // QUEUES, 1)
        found.append(bytes(result.records[0]))
    return store, found


def places_of(record: bytes) -> list[int]:
    """Return the positions in a record where a flip can be detected."""
    view = RecordView(record)
    behind = HEAD_BYTES_V4 + len(view.stored_body) + 1 + len(TOPIC) + 2
    return [*CHECKED_HEAD, *range(HEAD_BYTES_V4, behind)]


def pulled(store: MessageStore, queue_id: int, count: int, wanted: set[int] | None) -> list[bytes]:
    """The records of a queue, as consumers get them."""
    codes = None if wanted is None else frozenset(wanted)
    found: list[bytes] = []
    offset = 0
    while True:
        result = store.get(TOPIC, queue_id, offset, count, codes=codes)
        for run in result.records:
            found += [bytes(record.raw) for record in iter_records(run)]
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return found
        assert result.next_offset > offset
        offset = result.next_offset


@pytest.mark.timeout(size(ci=120, soak=1800))
@settings(max_examples=size(test=15, ci=30, soak=2000))
@given(data=st.data())
def test_only_flipped_messages_are_missing_and_all_delivered_ones_were_stored(
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = ManualClock()
        store, records = filled(Path(directory) / "store", clock)
        restarted = data.draw(st.booleans(), "restarted")
        if restarted:
            store.close()
        damaged: set[int] = set()
        numbers = st.integers(0, MESSAGES - 1)
        for number in data.draw(st.lists(numbers, max_size=size(ci=8, soak=20)), "damaged"):
            bits = data.draw(st.integers(1, 255), "bits")
            if data.draw(st.booleans(), "in the log"):
                place = RecordView(records[number]).physical_offset
                flip(store, place + data.draw(st.sampled_from(places_of(records[number]))), bits)
            else:
                # The tags code is not the record's business.
                at = number // QUEUES * ENTRY.size + data.draw(st.integers(0, 11), "of the entry")
                name = f"{at // QUEUE_FILE * QUEUE_FILE:020d}"
                queue = store.paths.consume_queues / TOPIC / str(number % QUEUES)
                flip_in(queue / name, at % QUEUE_FILE, bits)
            damaged.add(number)
        if restarted:
            store.open()
        clock.advance(LIMITS.checked_seconds)
        for wanted in (None, {97}, None):
            for queue_id in range(QUEUES):
                expected = [
                    record
                    for number, record in enumerate(records)
                    if number % QUEUES == queue_id and (wanted is None or number // 3 % 2 == 0)
                ]
                sound = [record for record in expected if records.index(record) not in damaged]
                got = pulled(store, queue_id, data.draw(st.integers(1, 70), "at once"), wanted)
                # A byte may have been flipped back.
                assert [record for record in got if record in sound] == sound
                assert [record for record in expected if record in got] == got
        store.close()
