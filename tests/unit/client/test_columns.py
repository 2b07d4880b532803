"""Plain messages by column: cut, joined, counted and encoded like single ones."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from client.producer.columns import ELEMENT_BYTES, MessageColumns
from client.producer.send_buffer import SendLanes
from remoting.protocol.message import batch as batches
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 0)
FIXED = ELEMENT_BYTES + len("UNIQ_KEY\x01ID00")


def columns(
    bodies: list[bytes], tails: list[str] | None = None, *, lane: Any = "T", epoch: int = 0
) -> MessageColumns:
    made = MessageColumns("T", lane, math.inf, 5, epoch=epoch)
    made.bodies += bodies
    made.tails = {number: tail for number, tail in enumerate(tails or ()) if tail}
    made.futures += [object() for _ in bodies]  # type: ignore[misc] - only carried along
    made.size = sum(FIXED + len(body) for body in bodies)
    made.size += sum(len(tail.encode()) for tail in made.tails.values())
    numbers = count()
    made.seal(lambda number: [f"ID{next(numbers):02}" for _ in range(number)])
    return made


def measured(one: MessageColumns) -> int:
    return sum(
        len(body) + len(text) + ELEMENT_BYTES
        for body, text in zip(one.bodies, one.texts, strict=True)
    )


BODIES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30)


def test_the_generated_id_precedes_given_properties():
    made = columns([b"a", b"b"], ["", "\x02TAGS\x01paid\x02ü\x01é"])
    assert made.texts == [
        b"UNIQ_KEY\x01ID00",
        "UNIQ_KEY\x01ID01\x02TAGS\x01paid\x02ü\x01é".encode(),
    ]
    assert made.size == measured(made)


@given(BODIES, st.data())
def test_splitting_and_joining_loses_nothing(bodies: list[bytes], data: st.DataObject):
    made = columns(bodies)
    futures = list(made.futures)
    at = data.draw(st.integers(0, len(bodies)))
    first = made.split(at)
    assert (first.count, made.count) == (at, len(bodies) - at)
    assert (first.size, made.size) == (measured(first), measured(made))
    first.join(made)
    assert (first.bodies, first.futures) == (bodies, futures)
    assert first.size == measured(first)


@given(BODIES, st.integers(0, 40), st.integers(0, 2000))
def test_the_longest_prefix_that_fits_is_taken(bodies: list[bytes], messages: int, size: int):
    made = columns(bodies)
    fitting = made.fitting(messages, size)
    assert fitting <= messages
    assert measured(made.split(fitting)) <= size
    if made.count and fitting < messages:
        assert measured(columns(bodies).split(fitting + 1)) > size


def test_a_batch_of_columns_is_encoded_like_any_other():
    made = columns([b"a", b"bc", b"de"], ["", "\x02p\x01v", ""])
    payload = made.payload()
    assert payload.properties is None
    assert payload.body == batches.encode(
        [(0, body, text) for body, text in zip(made.bodies, made.texts, strict=True)]
    )
    alone = columns([b"a"], ["\x02p\x01v"]).payload()
    assert (alone.body, alone.properties) == (b"a", "UNIQ_KEY\x01ID00\x02p\x01v")


def made_lanes(messages: int, size: int = 10**6) -> SendLanes:
    return SendLanes(linger=0.0, max_batch_messages=messages, max_batch_bytes=size)


@given(
    st.lists(st.one_of(st.none(), st.lists(st.binary(min_size=1, max_size=9), min_size=1))),
    st.integers(1, 6),
    st.integers(60, 300),
)
def test_batched_and_single_messages_of_a_queue_are_sent_in_order_and_within_limits(
    events: list[list[bytes] | None], messages: int, size: int
):
    lanes = made_lanes(messages, size)
    expected: list[bytes] = []
    for number, event in enumerate(events):
        made = columns(event or [b"single%d" % number], lane=QUEUE, epoch=number // 3)
        made.fixed = event is None
        lanes.add(made, 0.0)
        expected += made.bodies
    left: list[bytes] = []
    while taken := lanes.take(0.0):
        [request] = taken
        assert request.count == 1 or (request.count <= messages and request.size <= size)
        payload = request.payload()
        left += (
            [payload.body]
            if payload.properties is not None
            else [bytes(element.body) for element in batches.iter_elements(payload.body)]
        )
        lanes.finished(request)
    assert left == expected


def test_columns_that_waited_too_long_expire_as_a_whole():
    lanes = made_lanes(2)
    first, second = columns([b"a", b"b"], lane=QUEUE), columns([b"c", b"d", b"e"], lane=QUEUE)
    second.deadline = 3.0
    for one in (first, second):
        lanes.add(one, 0.0)
    [request] = lanes.take(0.0)
    assert lanes.expire(2.9) == []
    assert lanes.expire(3.0) == [second]
    lanes.finished(request)
