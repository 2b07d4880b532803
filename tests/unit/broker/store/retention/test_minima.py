"""Where a queue begins when the log has lost its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.consume_queue import ConsumeQueue, QueueSpace
from broker.store.mapped_file import MappedFiles
from broker.store.os_files import Files
from broker.store.retention_policy import first_alive
from remoting.protocol.disk.files import ENTRY, FILLER
from tests.unit.broker.store.stores import LIMITS

FILLER_ENTRY = ENTRY.unpack(FILLER)


def queue_of(directory: Path, entries: list[int | None]) -> ConsumeQueue:
    """A queue with records at these log positions; None: that message is deleted."""
    space = QueueSpace(Files(), MappedFiles(2), 20 * 7, LIMITS)
    queue = ConsumeQueue(space, directory, "T", 0)
    for place in entries:
        queue.prepare(1)
        queue.append_packed(ENTRY.pack(*(FILLER_ENTRY if place is None else (place, 100, 1))))
        queue.next_offset = queue.max_offset
    return queue


@given(
    gaps=st.lists(st.tuples(st.booleans(), st.integers(100, 300)), max_size=60),
    start=st.integers(0, 9000),
    low=st.integers(0, 60),
)
def test_the_minimum_is_the_first_remaining_message(
    tmp_path_factory: pytest.TempPathFactory,
    gaps: list[tuple[bool, int]],
    start: int,
    low: int,
) -> None:
    entries: list[int | None] = []
    at = 0
    for is_there, gap in gaps:
        entries.append(at if is_there else None)
        at += gap
    queue = queue_of(tmp_path_factory.mktemp("queue"), entries)
    # A queue begins with a real entry, or is empty.
    low = next((n for n in range(low, len(entries)) if entries[n] is not None), len(entries))
    queue.min_offset = low
    alive = (n for n, e in enumerate(entries) if n >= low and e is not None and e >= start)
    assert first_alive(queue, start) == next(alive, len(entries))


@pytest.mark.parametrize("damaged", [(0, 0, 0), (0, -1, 0), (-1, 100, 1)])
def test_a_damaged_entry_may_be_that_of_the_first_message(
    tmp_path: Path, damaged: tuple[int, int, int]
) -> None:
    queue = queue_of(tmp_path, [0, 100, 200, 300, 400])
    queue.repair(2, ENTRY.pack(*damaged))
    assert first_alive(queue, 200) == 2


def test_a_missing_file_is_an_error_and_not_an_offset(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, [0, 100, 200])
    queue.files[0].unmap()
    (tmp_path / f"{0:020d}").unlink()
    with pytest.raises(FileNotFoundError):
        first_alive(queue, 150)
