"""Splits of ranges are exact for any sizes: the same offsets, each once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_connector.source.ranges import RangePartition, gather, share, split


def ranges(sizes: list[tuple[int, int]]) -> list[RangePartition]:
    return [
        RangePartition("T", "b", number, start, start + size, ("a:1",))
        for number, (start, size) in enumerate(sizes)
    ]


def offsets(parts: list[RangePartition]) -> Counter[tuple[int, int]]:
    return Counter(
        (part.queue_id, offset) for part in parts for offset in range(part.start, part.end)
    )


SIZES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 300)), max_size=8)


@given(SIZES, st.integers(1, 60), st.integers(1, 400))
def test_every_split_holds_the_same_offsets(
    sizes: list[tuple[int, int]], min_partitions: int, max_records: int
):
    whole = ranges(sizes)
    parts = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert offsets(parts) == offsets(whole)
    assert all(0 < part.offsets <= max_records for part in parts)
    assert len(parts) >= min(min_partitions, sum(one.offsets for one in whole))
    assert all(part.addresses == ("a:1",) for part in parts)


@given(SIZES, st.integers(1, 60), st.integers(1, 400))
def test_pieces_of_a_range_differ_by_one_at_most(
    sizes: list[tuple[int, int]], min_partitions: int, max_records: int
):
    parts = split(ranges(sizes), min_partitions=min_partitions, max_records=max_records)
    for number in range(len(sizes)):
        lengths = {part.offsets for part in parts if part.queue_id == number}
        assert not lengths or max(lengths) - min(lengths) <= 1


@given(SIZES, st.integers(1, 10))
def test_gathered_pieces_are_the_same_and_no_task_is_much_larger(
    sizes: list[tuple[int, int]], most: int
):
    pieces = split(ranges(sizes), max_records=1000)
    tasks = gather(pieces, most)
    assert len(tasks) == min(most, len(pieces))
    assert offsets([piece for task in tasks for piece in task]) == offsets(pieces)
    loads = [sum(piece.offsets for piece in task) for task in tasks]
    largest = max((piece.offsets for piece in pieces), default=0)
    assert not loads or max(loads) - min(loads) <= largest


def test_nothing_is_split_unnecessarily():
    whole = ranges([(0, 100), (5, 0), (7, 250)])
    assert split(whole, max_records=250) == [whole[0], whole[2]]
    assert split([], min_partitions=9, max_records=1) == []


def test_larger_ranges_get_more_pieces():
    parts = split(ranges([(0, 100), (0, 900)]), min_partitions=10, max_records=10**6)
    assert Counter(part.queue_id for part in parts) == {0: 1, 1: 9}


@given(st.lists(st.integers(0, 10**9), max_size=20), st.integers(1, 10**9))
def test_a_limit_is_used_fully_and_starves_no_queue(available: list[int], limit: int):
    given_out = share(available, limit)
    waiting = sum(size > 0 for size in available)
    assert sum(given_out) == min(sum(available), max(limit, waiting))
    for size, taken in zip(available, given_out, strict=True):
        assert min(size, 1) <= taken <= size


@given(st.lists(st.integers(1000, 10**6), min_size=2, max_size=8), st.integers(100, 1000))
def test_shares_are_in_proportion(available: list[int], limit: int):
    total = sum(available)
    for size, taken in zip(available, share(available, limit), strict=True):
        assert abs(taken - limit * size / total) <= len(available)
