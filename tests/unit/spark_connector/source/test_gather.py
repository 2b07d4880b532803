"""Answers collected in one buffer."""

from __future__ import annotations

import pytest

from remoting.protocol.message.view import iter_records
from spark_connector.source.pull import Gather, start_of
from tests.unit.spark_connector.source.broker import record


def records(first: int, end: int) -> bytes:
    return b"".join(record(n) for n in range(first, end))


def offsets(gather: Gather) -> list[int]:
    return [record.queue_offset for record in iter_records(gather.view)]


def receive(gather: Gather, body: bytes) -> memoryview:
    room = gather.room(len(body))
    room[:] = body
    return room


def test_bodies_received_into_the_buffer_are_not_copied() -> None:
    gather = Gather(100_000)
    gather.add(receive(gather, records(5, 10)), 5, 10)
    gather.add(receive(gather, records(10, 12)), 10, 12)
    assert offsets(gather) == [5, 6, 7, 8, 9, 10, 11]
    assert (gather.first, gather.end, gather.expected) == (5, 12, 7)


def test_bodies_that_waited_elsewhere_are_copied() -> None:
    gather = Gather(100_000)
    gather.add(memoryview(records(5, 10)), 5, 10)
    gather.add(receive(gather, records(10, 12)), 10, 12)
    gather.add(memoryview(records(12, 13)), 12, 13)
    assert offsets(gather) == list(range(5, 13))


def test_what_was_not_added_leaves_no_trace() -> None:
    gather = Gather(100_000)
    receive(gather, records(90, 99))
    gather.add(receive(gather, records(5, 6)), 5, 6)
    assert offsets(gather) == [5]


@pytest.mark.parametrize("is_received_here", [True, False])
def test_messages_that_were_brought_before_are_omitted(is_received_here: bool) -> None:
    gather = Gather(100_000)
    gather.add(receive(gather, records(0, 8)), 0, 8)
    body = records(5, 12)
    gather.add(receive(gather, body) if is_received_here else memoryview(body), 8, 12)
    assert offsets(gather) == list(range(12))


def test_it_grows_and_keeps_what_it_has() -> None:
    gather = Gather(10)
    for n in range(50):
        gather.add(receive(gather, records(n * 10, n * 10 + 10)), n * 10, n * 10 + 10)
    assert offsets(gather) == list(range(500))


def test_it_is_used_again() -> None:
    gather = Gather(100_000)
    gather.add(receive(gather, records(0, 8)), 0, 8)
    before = gather.view.obj
    gather.clear()
    assert (gather.used, gather.expected) == (0, 0)
    gather.add(receive(gather, records(20, 21)), 20, 21)
    assert gather.view.obj is before
    assert (gather.first, gather.end, offsets(gather)) == (20, 21, [20])


def test_an_answer_without_messages_moves_the_end() -> None:
    gather = Gather(1000)
    gather.add(memoryview(b""), 0, 800)
    assert (gather.end, gather.expected) == (800, 0)
    gather.add(memoryview(record(801)), 800, 900)
    gather.add(memoryview(b""), 900, 1000)
    assert (gather.first, gather.end, offsets(gather)) == (800, 1000, [801])


@pytest.mark.parametrize(
    ("body", "first", "start"),
    [
        (b"", 0, 0),
        (records(0, 3), 0, 0),
        (records(5, 6), 0, 0),
        (records(0, 3), 2, len(records(0, 2))),
        (records(0, 3), 3, len(records(0, 3))),
        # What can't be followed is left to the decoder.
        (b"abc", 7, 0),
        (bytes(200), 7, 0),
        (records(0, 2)[:-5], 2, len(records(0, 2)) - 5),
        (records(0, 1) + bytes(100), 9, len(records(0, 1))),
        (b"\x7f\xff\xff\xff" + bytes(100), 9, 104),
    ],
)
def test_the_first_new_message_is_found(body: bytes, first: int, start: int) -> None:
    assert start_of(memoryview(body), first) == start
