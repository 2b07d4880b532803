"""Where records begin, and where a batch is cut off."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.decode.layout import portions, walk
from tests.unit.spark_connector.decode.records import record

SIZE = len(record())


def test_records_are_found_one_behind_the_other() -> None:
    starts = walk(record() + record(body=b"xy") + record())
    assert starts is not None
    assert starts.tolist() == [0, SIZE, 2 * SIZE + 2]


def test_a_part_of_a_buffer_can_be_walked() -> None:
    starts = walk(b"123" + record() * 2 + b"456", 3, 3 + 2 * SIZE)
    assert starts is not None
    assert starts.tolist() == [3, 3 + SIZE]


def test_an_empty_buffer_has_no_records() -> None:
    starts = walk(b"")
    assert starts is not None
    assert starts.tolist() == []


def test_a_cut_off_or_shapeless_buffer_has_no_starts() -> None:
    assert walk(record()[:-1]) is None
    assert walk(record() + b"x") is None
    assert walk(bytes(500)) is None


@given(
    bodies=st.lists(st.integers(0, 300), max_size=30),
    max_rows=st.integers(1, 10),
    max_bytes=st.integers(1, 1000),
)
def test_portions_are_all_records_in_order_within_the_bounds(
    bodies: list[int], max_rows: int, max_bytes: int
) -> None:
    buffer = b"".join(record(body=bytes(length)) for length in bodies)
    starts = walk(buffer)
    assert starts is not None
    parts = list(portions(buffer, starts, max_rows, max_bytes))
    assert np.concatenate([starts[:0], *parts]).tolist() == starts.tolist()
    for part in parts[:-1]:
        assert 1 <= len(part) <= max_rows
    ends = [*starts.tolist(), len(buffer)]
    for part in (part for part in parts if len(part) > 1):
        end = ends[ends.index(int(part[-1])) + 1]
        assert end - int(part[0]) <= max_bytes
