"""Reading a blocking source while the event loop runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pocketmq.server.background import READ_AHEAD, READ_AHEAD_BYTES, BackgroundReader


def no_bytes(_: object) -> int:
    return 0


async def all_of(reader: BackgroundReader[int]) -> list[int]:
    found: list[int] = []
    while items := await reader.take():
        found += items
    return found


async def test_everything_comes_in_order() -> None:
    assert await all_of(BackgroundReader(iter(range(10_000)), no_bytes)) == list(range(10_000))


async def test_an_empty_source_ends_at_once() -> None:
    reader: BackgroundReader[int] = BackgroundReader(iter(()), no_bytes)
    assert await reader.take() == []
    assert await reader.take() == []


async def test_an_item_comes_before_the_next_one_is_there() -> None:
    gate = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        gate.wait(10)
        yield 2

    reader = BackgroundReader(slow(), no_bytes)
    assert await reader.take() == [1]
    gate.set()
    assert await reader.take() == [2]


@pytest.mark.parametrize(
    ("size", "most"), [(0, READ_AHEAD), (READ_AHEAD_BYTES // 4, 4)], ids=["items", "bytes"]
)
async def test_it_reads_no_further_ahead_than_it_may(size: int, most: int) -> None:
    reached = 0
    full = threading.Event()

    def count() -> Iterator[int]:
        nonlocal reached
        for number in range(most * 3):
            reached = number
            if number == most - 1:
                full.set()
            yield number

    reader = BackgroundReader(count(), lambda _: size)
    assert await asyncio.to_thread(full.wait, 10)
    assert reached <= most
    assert await all_of(reader) == list(range(most * 3))


async def test_an_error_comes_after_what_was_read_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("the disk is gone")

    reader = BackgroundReader(broken(), no_bytes)
    assert await reader.take() == [1]
    with pytest.raises(ValueError, match="the disk is gone"):
        await reader.take()
