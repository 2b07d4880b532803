"""Answers collected in one buffer."""

from __future__ import annotations

import pytest

from remoting.protocol.message.view import iter_records
from spark_connector.source.pull import AnswerBuffer, start_of
from tests.unit.spark_connector.source.broker import record


def records(first: int, end: int) -> bytes:
    return b"".join(record(n) for n in range(first, end))


def offsets(buffer: AnswerBuffer) -> list[int]:
    return [record.queue_offset for record in iter_records(buffer.view)]


def receive(buffer: AnswerBuffer, body: bytes) -> memoryview:
    room = buffer.room(len(body))
    room[:] = body
    return room


def test_bodies_received_into_the_buffer_are_not_copied() -> None:
    buffer = AnswerBuffer(100_000)
    buffer.add(receive(buffer, records(5, 10)), 5, 10)
    buffer.add(receive(buffer, records(10, 12)), 10, 12)
    assert offsets(buffer) == [5, 6, 7, 8, 9, 10, 11]
    assert (buffer.first, buffer.end, buffer.expected) == (5, 12, 7)


def test_bodies_that_waited_elsewhere_are_copied() -> None:
    buffer = AnswerBuffer(100_000)
    buffer.add(memoryview(records(5, 10)), 5, 10)
    buffer.add(receive(buffer, records(10, 12)), 10, 12)
    buffer.add(memoryview(records(12, 13)), 12, 13)
    assert offsets(buffer) == list(range(5, 13))


def test_what_was_not_added_leaves_no_trace() -> None:
    buffer = AnswerBuffer(100_000)
    receive(buffer, records(90, 99))
    buffer.add(receive(buffer, records(5, 6)), 5, 6)
    assert offsets(buffer) == [5]


@pytest.mark.parametrize("is_received_here", [True, False])
def test_messages_that_were_brought_before_are_omitted(is_received_here: bool) -> None:
    buffer = AnswerBuffer(100_000)
    buffer.add(receive(buffer, records(0, 8)), 0, 8)
    body = records(5, 12)
    buffer.add(receive(buffer, body) if is_received_here else memoryview(body), 8, 12)
    assert offsets(buffer) == list(range(12))


def test_it_grows_and_keeps_what_it_has() -> None:
    buffer = AnswerBuffer(10)
    for n in range(50):
        buffer.add(receive(buffer, records(n * 10, n * 10 + 10)), n * 10, n * 10 + 10)
    assert offsets(buffer) == list(range(500))


def test_it_is_used_again() -> None:
    buffer = AnswerBuffer(100_000)
    buffer.add(receive(buffer, records(0, 8)), 0, 8)
    before = buffer.view.obj
    buffer.clear()
    assert (buffer.used, buffer.expected) == (0, 0)
    buffer.add(receive(buffer, records(20, 21)), 20, 21)
    assert buffer.view.obj is before
    assert (buffer.first, buffer.end, offsets(buffer)) == (20, 21, [20])


def test_an_answer_without_messages_moves_the_end() -> None:
    buffer = AnswerBuffer(1000)
    buffer.add(memoryview(b""), 0, 800)
    assert (buffer.end, buffer.expected) == (800, 0)
    buffer.add(memoryview(record(801)), 800, 900)
    buffer.add(memoryview(b""), 900, 1000)
    assert (buffer.first, buffer.end, offsets(buffer)) == (800, 1000, [801])


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
