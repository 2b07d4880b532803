"""Requests about the offsets of queues, and what their answers mean."""

from __future__ import annotations

from typing import Final, NamedTuple

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.queue import MessageQueue

COMMIT: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
"""Bits of a pull's sysFlag (cf. PullSysFlag)."""

WALK_MESSAGES: Final = 32
"""Messages read with one pull to find the first one stored at or after an instant."""


def pull_header(
    queue: MessageQueue,
    group: str,
    offset: int,
    *,
    messages: int,
    suspend_ms: int,
    expression: str,
    max_bytes: int | None = None,
    commit: int | None = None,
) -> PullMessageRequestHeader:
    """The header of a pull that brings its expression, and perhaps how far the group has come."""
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=messages,
        sys_flag=SUBSCRIPTION | (SUSPEND if suspend_ms else 0) | (0 if commit is None else COMMIT),
        commit_offset=commit or 0,
        suspend_timeout_millis=suspend_ms,
        subscription=expression,
        sub_version=0,
        expression_type="TAG",
        bname=queue.broker_name,
        max_msg_bytes=max_bytes,
    )


class RecordPage(NamedTuple):
    """Some messages of a queue, and where the next ones begin; no messages at its end."""

    records: list[RecordView]
    next_offset: int


def read_page(answer: Command, offset: int) -> RecordPage:
    """The messages that the answer to a pull from ``offset`` on brings.

    Raises:
        HeaderError, RecordError: it can't be read.
    """
    following = answer.read(PullMessageResponseHeader).next_begin_offset
    if answer.code == ResponseCode.SUCCESS:
        return RecordPage(list(iter_records(answer.body)), following)
    return RecordPage([], following if answer.code == ResponseCode.PULL_OFFSET_MOVED else offset)


def search_header(queue: MessageQueue, timestamp_ms: int) -> SearchOffsetRequestHeader:
    """Asks for the offset of a store time; brokers give one near it, by rules of their version."""
    return SearchOffsetRequestHeader(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        bname=queue.broker_name,
    )


def committed_header(
    queue: MessageQueue, group: str, *, by_broker: bool = False
) -> QueryConsumerOffsetRequestHeader:
    """Asks how far a group has committed; ``by_broker``: or where the broker has it begin."""
    return QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        bname=queue.broker_name,
        set_zero_if_not_found=None if by_broker else False,
    )


def committed_offset(answer: Command) -> int | None:
    """How far the group has committed; None: nothing yet. A 4.x broker may answer 0 for that.

    Raises:
        HeaderError: the answer can't be read.
    """
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    offset = answer.read(OffsetResponseHeader).offset
    return offset if offset >= 0 else None


def commit_header(
    queue: MessageQueue, group: str, offset: int
) -> UpdateConsumerOffsetRequestHeader:
    """Stores how far a group has come."""
    return UpdateConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        bname=queue.broker_name,
    )
