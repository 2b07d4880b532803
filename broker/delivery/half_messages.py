"""Half messages: transactional messages whose transaction is still open.

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC, queue 0. Its record differs from the message that
was sent in its topic, its queue, its system flag and two properties. The message that is committed
has the half message's properties unchanged. An op message in RMQ_SYS_TRANS_OP_HALF_TOPIC closes a
half message: its body is the half message's queue offset (cf. TransactionalMessageBridge).

``HalfMessages`` tracks which half messages are open. No I/O. A check stores a half message again,
at a new offset; the producer may still end it at the old one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from broker.delivery.redelivery import copied, delivered, replaced
from broker.store.results import PendingMessage
from remoting.protocol import names
from remoting.protocol.message import properties
from remoting.protocol.message.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.message.view import RecordView

QUEUE: Final = 0
"""Half topic, op topic and the topic of discarded half messages have this queue only."""

PGROUP: Final = properties.PGROUP.encode()

_CHECK_TIMES: Final = properties.TRANSACTION_CHECK_TIMES.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_REAL_QID: Final = properties.REAL_QID.encode()

_OP_PROPERTIES: Final = properties.encode({properties.WAIT: "true", properties.TAGS: "d"})
_OP_TAGS_CODE: Final = tags_code_of(_OP_PROPERTIES)

MAX_DIGITS: Final = 10
"""Digits of the largest Java int; a number in a property that has as many counts as none."""

_OFFSET_DIGITS: Final = 19
"""Digits of the largest offset in an op message."""


def to_half(message: PendingMessage) -> None:
    """Turn a message into its half message, in place."""
    text = properties.append(message.properties, _REAL_TOPIC, message.topic.encode())
    message.properties = properties.append(text, _REAL_QID, b"%d" % message.queue_id)
    message.sys_flag &= ~TRANSACTION_MASK
    message.topic, message.queue_id = names.HALF_TOPIC, QUEUE


def committed(record: RecordView) -> PendingMessage:
    """Return the message to store when a half message is committed.

    Raises:
        ValueError: it has no real topic and queue.
    """
    message = delivered(record)
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = record.physical_offset
    return message


def op_message(offset: int, now_ms: int) -> PendingMessage:
    """Return the op message that closes a half message, by its queue offset, as 4.9 writes it."""
    return PendingMessage(
        topic=names.OP_HALF_TOPIC,
        queue_id=QUEUE,
        body=b"%d" % offset,
        properties=_OP_PROPERTIES,
        tags_code=_OP_TAGS_CODE,
        born_timestamp_ms=now_ms,
    )


def op_offsets(body: bytes | memoryview) -> list[int]:
    """Return the queue offsets in an op message: one, or several with commas as 5.x writes them."""
    parts = bytes(body).split(b",")
    return [int(part) for part in parts if part.isdigit() and len(part) < _OFFSET_DIGITS]


def recheck_copy(record: RecordView, check_times: int) -> PendingMessage:
    """Return the half message to store before the ``check_times``-th check of its producer."""
    text = replaced(record.properties_text, _CHECK_TIMES, b"%d" % check_times)
    return copied(record, names.HALF_TOPIC, QUEUE, text, record.reconsume_times)


def discarded(record: RecordView) -> PendingMessage:
    """Return the message to store when no producer has ended a half message."""
    text = record.properties_text
    return copied(record, names.CHECK_MAX_TIME_TOPIC, QUEUE, text, record.reconsume_times)


def check_times_of(record: RecordView) -> int:
    """Return how often the producer was asked about a half message."""
    value = properties.find(record.properties_text, _CHECK_TIMES)
    return int(value) if value is not None and value.isdigit() and len(value) < MAX_DIGITS else 0


def may_replace_half(record: RecordView) -> bool:
    """Return whether a record may replace a half message; see ``replaces_half_message``."""
    if record.topic == names.HALF_TOPIC:
        return properties.find(record.properties_text, _CHECK_TIMES) is not None
    is_committed = record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return is_committed or record.topic == names.CHECK_MAX_TIME_TOPIC


def replaces_half_message(record: RecordView, half: RecordView) -> bool:
    """Return whether a record is ``half`` committed, stored again by a check, or discarded."""
    return record.physical_offset > half.physical_offset and _unchanged(record) == _unchanged(half)


def _unchanged(record: RecordView) -> tuple[object, ...]:
    """Return what stays the same when a half message is committed, stored again or discarded."""
    text = replaced(record.properties_text, _CHECK_TIMES, b"")
    return text, record.stored_body, record.born_timestamp_ms, record.born_host_bytes


class HalfMessages:
    """Tracks which half messages are open, in one byte for each since the oldest open one.

    Args:
        begin: all half messages below this queue offset are closed.
        op_begin: all op messages below this offset close half messages below ``begin``.
        max_moved: limit of re-stored half messages that can still be ended at their old offset.
            The producers of others are asked once more.
    """

    __slots__ = (
        "_done",
        "_done_count",
        "_formers",
        "_max_moved",
        "_moved",
        "_ops",
        "begin",
        "op_begin",
    )

    def __init__(self, begin: int, op_begin: int, *, max_moved: int) -> None:
        self.begin = begin
        self.op_begin = op_begin
        self._done = bytearray()
        self._done_count = 0
        # Highest half-message offset closed by each op message.
        self._ops = array("q")
        # Of half messages that were stored again: former offset -> offset, and the other way.
        self._moved: dict[int, int] = {}
        self._formers: dict[int, list[int]] = {}
        self._max_moved = max_moved

    def is_open(self, offset: int) -> bool:
        """Return whether a half message is not closed; it may not have been stored."""
        at = offset - self.begin
        return at >= 0 and not (at < len(self._done) and self._done[at])

    def open_offset(self, offset: int) -> int | None:
        """Return the current offset of the half message stored at ``offset``; None: not open."""
        offset = self._moved.get(offset, offset)
        return offset if self.is_open(offset) else None

    def next_open(self, offset: int) -> int:
        """Return the first open offset from ``offset`` on, without a loop."""
        at = self._done.find(0, max(offset - self.begin, 0))
        return max(offset, self.begin + (len(self._done) if at < 0 else at))

    def count_open(self, end: int) -> int:
        """Return how many of the half messages below ``end`` are open."""
        return max(end - self.begin - self._done_count, 0)

    @property
    def window(self) -> int:
        """How many half messages take memory here: all since the oldest open one."""
        return len(self._done)

    def op_stored(self, offsets: Iterable[int]) -> None:
        """Record the next op message and close its half messages."""
        last = -1
        for offset in offsets:
            self.end(offset)
            last = max(last, offset)
        self._ops.append(last)

    def end(self, offset: int) -> None:
        """Close a half message."""
        at = offset - self.begin
        if at < 0:
            return
        if at >= len(self._done):
            self._done.extend(bytes(at + 1 - len(self._done)))
        self._done_count += not self._done[at]
        self._done[at] = 1
        for former in self._formers.pop(offset, ()):
            del self._moved[former]

    def moved(self, before: int, now: int) -> None:
        """Record that a half message was stored again, at another offset."""
        formers = [*self._formers.pop(before, ()), before]
        self._formers[now] = formers
        self._moved.update(dict.fromkeys(formers, now))
        while len(self._moved) > self._max_moved:
            for former in self._formers.pop(next(iter(self._formers))):
                del self._moved[former]

    def advance(self, first: int) -> bool:
        """Move ``begin`` past closed half messages; return whether anything moved.

        Args:
            first: the first half message that the store still has, and the least ``begin``.
        """
        before = self.begin, self.op_begin
        # Zero bytes and what was not marked yet are open.
        done = self._done.find(0)
        passed = max(len(self._done) if done < 0 else done, first - self.begin)
        if passed > 0:
            self._done_count -= sum(self._done[:passed])
            del self._done[:passed]
            self.begin += passed
        ops = next((n for n, of in enumerate(self._ops) if of >= self.begin), len(self._ops))
        del self._ops[:ops]
        self.op_begin += ops
        return (self.begin, self.op_begin) != before
