"""An export while a cluster's messages are deleted, delayed or duplicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import client
from client.serde import raw
from pocketmq.export.from_cluster import ClusterSource
from pocketmq.export.writers import ExportError, ExportSelection, Message
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import TagExpression

QUEUE = client.MessageQueue("orders", "broker-a", 0)
OTHER = client.MessageQueue("orders", "broker-a", 1)
HOST = host_bytes("127.0.0.1", 10911)


def record(offset: int, queue: client.MessageQueue = QUEUE, *, crc: int | None = None) -> Message:
    data = encode_record(
        topic="orders",
        body=b"%d" % offset,
        born_host=HOST,
        store_host=HOST,
        queue_id=queue.queue_id,
        queue_offset=offset,
        crc=crc,
    )
    return Message(data, 0, queue, raw)


class World:
    """An instance, its consumer and its administration in one.

    Answers are given in their order: messages, or an event that the consumer hears of.
    """

    def __init__(self, answers: Sequence[list[Message] | Any], begin: int, end: int) -> None:
        self._answers = list(answers)
        self._range = begin, end
        self._position = 0
        self._hear: Callable[[Any], None] = lambda _: None

    def admin(self) -> World:
        return self

    def pull_consumer(self, *, group: str, on_event: Callable[[Any], None]) -> World:
        self._hear = on_event
        return self

    async def min_offset(self, queue: client.MessageQueue) -> int:
        return self._range[0]

    async def max_offset(self, queue: client.MessageQueue) -> int:
        return self._range[1]

    def assign(self, queues: Sequence[client.MessageQueue], *, tags: str) -> None:
        assert list(queues) == [QUEUE]

    async def seek(self, queue: client.MessageQueue, offset: int) -> None:
        self._position = offset

    async def position(self, queue: client.MessageQueue) -> int:
        return self._position

    async def get_many(self, count: int, *, timeout: float) -> list[Message]:
        answer = self._answers.pop(0)
        if isinstance(answer, list):
            if answer:
                self._position = max(self._position, answer[-1].offset + 1)
            return answer
        self._hear(answer)
        return []


async def export(
    world: World, lines: list[str] | None = None, **more: Any
) -> tuple[list[int], int]:
    """Offsets of the messages given, and the numbers done; what is damaged fails the test."""
    selection = ExportSelection(topic="orders", tags=TagExpression.parse("*"), **more)
    tell = (lines if lines is not None else []).append
    source = ClusterSource(world, selection, [QUEUE], tell)  # type: ignore[arg-type] # a stand-in
    await source.open()
    offsets, passed = [], 0
    async for portion in source.portions():
        offsets += [message.offset for message in portion.messages]
        passed += portion.passed
        assert not portion.damage
    assert passed == source.total
    return offsets, passed


async def test_a_queue_is_read_to_where_it_ended() -> None:
    world = World([[record(2), record(3)], [], [record(4), record(5), record(6)]], 2, 6)
    # What came behind the end is passed by, though it was read.
    assert await export(world) == ([2, 3, 4, 5], 4)


async def test_messages_of_an_earlier_position_are_not_exported_twice() -> None:
    world = World([[record(0)], [record(0), record(1)], [record(2)]], 0, 3)
    assert await export(world) == ([0, 1, 2], 3)


async def test_deleted_messages_end_the_export_with_an_error() -> None:
    world = World([[record(0)], client.OffsetMoved(QUEUE, 1, 40)], 0, 100)
    with pytest.raises(ExportError, match=r"messages 1 to 39 of .* were deleted"):
        await export(world)


async def test_what_moves_elsewhere_does_not_matter() -> None:
    world = World([client.OffsetMoved(OTHER, 1, 40), [record(0)]], 0, 1)
    assert await export(world) == ([0], 1)


async def test_waiting_is_reported() -> None:
    lines: list[str] = []
    error = client.RequestTimeout("no answer within 3 s")
    world = World([client.QueueWaiting(QUEUE, error), [record(0)]], 0, 1)
    assert await export(world, lines) == ([0], 1)
    assert lines == [f"waiting: {error}"]


async def test_positions_are_limited_to_the_queue() -> None:
    assert await export(World([[record(5)]], 5, 6), begin=0, end=99) == ([5], 1)
    assert await export(World([], 5, 6), begin=6, end=2) == ([], 0)


async def test_a_message_with_a_wrong_checksum_is_damage() -> None:
    world = World([[record(0, crc=1), record(1)]], 0, 2)
    selection = ExportSelection(topic="orders", tags=TagExpression.parse("*"))
    source = ClusterSource(world, selection, [QUEUE], print)  # type: ignore[arg-type] # a stand-in
    await source.open()
    (portion,) = [portion async for portion in source.portions()]
    assert [message.offset for message in portion.messages] == [1]
    assert "message 0 of" in portion.damage[0]
    assert "the CRC of its body" in portion.damage[0]
