"""Many records checked together give the same results as one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import RecordError
from remoting.protocol.message.view import RecordView
from spark_connector.store.gathering import are_of, are_readable
from tests.unit.spark_connector.decode.records import records


def laid_out(parts: list[bytes]) -> tuple[memoryview, list[int]]:
    starts = [sum(map(len, parts[:number])) for number in range(len(parts))]
    return memoryview(b"".join(parts)), starts


@given(
    parts=st.lists(records(), min_size=1, max_size=6),
    topics=st.lists(
        st.sampled_from(["orders", "order", "grün", "%RETRY%billing", "t" * 127]), min_size=1
    ),
)
def test_records_of_a_topic_are_those_whose_view_says_so(
    parts: list[bytes], topics: list[str]
) -> None:
    buffer, starts = laid_out(parts)
    found = are_of(buffer, np.array(starts, dtype=np.int64), topics)
    assert found.tolist() == [RecordView(buffer, start).topic in topics for start in starts]


@given(
    parts=st.lists(records(), min_size=1, max_size=4),
    wounds=st.lists(st.tuples(st.integers(36, 10_000), st.binary(min_size=1, max_size=8))),
)
def test_a_record_whose_topic_is_unreadable_is_kept(
    parts: list[bytes], wounds: list[tuple[int, bytes]]
) -> None:
    """The decoder then says what is wrong with it."""
    hurt = [bytearray(part) for part in parts]
    for at, data in wounds:
        target = hurt[at % len(hurt)]
        place = 36 + at % (len(target) - 36 - min(len(data), len(target) - 37))
        target[place : place + len(data)] = data[: len(target) - place]
    buffer, starts = laid_out([bytes(part) for part in hurt])
    found = are_of(buffer, np.array(starts, dtype=np.int64), ["orders"])
    for start, part, kept in zip(starts, parts, found.tolist(), strict=True):
        try:
            view = RecordView(buffer[start : start + len(part)])
        except RecordError:
            continue
        assert kept == (view.topic == "orders")


def test_only_entries_that_point_into_one_file_can_be_read() -> None:
    positions = np.array([0, 900, 950, 999, 1000, 3000, 2999, -5, 5000, 10])
    sizes = np.array([100, 100, 100, 100, 100, 100, 100, 100, 100, 90])
    starts, ends = np.array([0, 1000, 3000]), np.array([1000, 2000, 4000])
    found = are_readable(positions, sizes, starts, ends)
    assert found.tolist() == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_without_a_log_nothing_can_be_read() -> None:
    nothing = np.array([], dtype=np.int64)
    found = are_readable(np.array([0]), np.array([100]), nothing, nothing)
    assert found.tolist() == [False]
