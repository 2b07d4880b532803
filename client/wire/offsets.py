"""Headers of pulls and of requests for queue offsets, and reading their answers."""

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
from remoting.protocol.message.tags import SUBSCRIBE_ALL, TagExpression
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.queue import MessageQueue

COMMIT: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
"""Bits of a pull's sysFlag (cf. PullSysFlag)."""

WALK_MESSAGES: Final = 32
"""Messages per pull when a queue is read record by record, e.g. to find the first message stored at
or after a time."""


def pull_header(
    queue: MessageQueue,
    group: str,
    offset: int,
    *,
    messages: int,
    suspend_ms: int = 0,
    expression: str = SUBSCRIBE_ALL,
    expression_type: str = TagExpression.kind,
    max_bytes: int | None = None,
    commit: int | None = None,
) -> PullMessageRequestHeader:
    """Return the header of a pull that carries its filter; by default it gets every message.

    Args:
        suspend_ms: how long the broker may hold the pull; 0: it answers at once.
        commit: an offset to commit for the group along with the pull.
    """
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
        expression_type=expression_type,
        bname=queue.broker_name,
        max_msg_bytes=max_bytes,
    )


class RecordPage(NamedTuple):
    """Consecutive messages of a queue, and the offset after them.

    At the queue's end there are none, and the offset is the one asked for.
    """

    records: list[RecordView]
    next_offset: int


def read_page(answer: Command, offset: int) -> RecordPage:
    """Return the messages in the answer to a pull from ``offset``.

    Raises:
        HeaderError, RecordError: the answer is malformed.
    """
    following = answer.read(PullMessageResponseHeader).next_begin_offset
    if answer.code == ResponseCode.SUCCESS:
        return RecordPage(list(iter_records(answer.body)), following)
    at_end = answer.code == ResponseCode.PULL_NOT_FOUND
    return RecordPage([], offset if at_end else following)


def search_header(queue: MessageQueue, timestamp_ms: int) -> SearchOffsetRequestHeader:
    """Return the header of a search for the offset of a store time.

    The offset found is near that time; how near depends on the broker's version.
    """
    return SearchOffsetRequestHeader(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        bname=queue.broker_name,
    )


def committed_header(
    queue: MessageQueue, group: str, *, by_broker: bool = False
) -> QueryConsumerOffsetRequestHeader:
    """Return the header of a query for a group's committed offset.

    If nothing is committed, ``by_broker`` lets the broker return where the group should start.
    """
    return QueryConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        bname=queue.broker_name,
        set_zero_if_not_found=None if by_broker else False,
    )


def committed_offset(answer: Command) -> int | None:
    """Return the group's committed offset, or None. A 4.x broker may answer 0 for None.

    Raises:
        HeaderError: the answer is malformed.
    """
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    offset = answer.read(OffsetResponseHeader).offset
    return offset if offset >= 0 else None


def commit_header(
    queue: MessageQueue, group: str, offset: int
) -> UpdateConsumerOffsetRequestHeader:
    """Return the header of a request that commits ``offset`` for a group."""
    return UpdateConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        bname=queue.broker_name,
    )
