"""What an answer to a pull means for a range of a queue: pure.

A planned range was within its queue, and offsets are dense and never given twice. So whatever isn't
there now has been lost: to retention, to a crash before a flush, or with the topic. An answer tells
which (cf. PullMessageProcessor):

================  ================================  ==========================================
 code              with                              means
================  ================================  ==========================================
 SUCCESS           a next offset, a body             records up to there
 RETRY_IMMEDIATELY a next offset, a filter           none of the messages up to there matched
 RETRY_IMMEDIATELY a next offset, no filter          the log no longer has the messages up to there
 NOT_FOUND         a next offset                     the queue has a hole up to there
 OFFSET_MOVED      a lowest offset above the asked   the messages below it are gone
 NOT_FOUND, MOVED  a highest offset up to the asked  the queue ends here
 TOPIC_NOT_EXIST                                     the topic is gone
================  ================================  ==========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from spark_connector.planning.ranges import RangePartition, ReadOptions
from spark_connector.reading.limits import MAX_ANSWER_BYTES

_SUBSCRIPTION: Final = 4
"""A pull's sysFlag: it brings its expression itself (cf. PullSysFlag)."""

_KNOWN: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

_HINTS: Final[dict[int, str]] = {
    ResponseCode.NO_PERMISSION: "let the topic, its broker and the group be read",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "check the option filterTags",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "create the group at the broker, or name one that is there with the option consumerGroup"
    ),
}
"""Refusals that another attempt won't change, and what to do about them."""


@dataclass(frozen=True, slots=True)
class Covered:
    """Everything up to ``next_offset`` is in the answer's body, or did not match."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages up to ``next_offset`` are gone; the queue goes on there."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Ends:
    """The queue has ``[min_offset, max_offset)``, and nothing at what was asked for."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class NoTopic:
    """The broker has no such topic."""

    remark: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker did not serve the pull.

    Attributes:
        reason: its own words.
        hint: what to do about it; with one, asking again is useless.
        is_busy: it has too much to do, and means to serve it later.
    """

    reason: str
    hint: str = ""
    is_busy: bool = False


Meaning: TypeAlias = Covered | Gone | Ends | NoTopic | Refused


def meaning(answer: Command, offset: int, *, is_filtered: bool) -> Meaning:
    """What an answer says to a pull of messages from ``offset`` on."""
    if answer.code not in _KNOWN:
        return _refusal(answer)
    try:
        header = answer.read(PullMessageResponseHeader)
    except HeaderError as problem:
        return Refused(f"its answer can't be understood: {problem}")
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        if header.min_offset > offset:
            return Gone(header.min_offset)
        return Ends(header.min_offset, header.max_offset)
    after = header.next_begin_offset
    if answer.code == ResponseCode.PULL_NOT_FOUND and after <= offset:
        return Ends(header.min_offset, header.max_offset)
    if after <= offset:
        return Refused(f"it says that after {offset} comes {after}")
    if answer.code == ResponseCode.PULL_NOT_FOUND or not (is_filtered or answer.body):
        return Gone(after)
    return Covered(after)


def _refusal(answer: Command) -> Meaning:
    reason = f"code {_name(answer.code)}: {answer.remark or 'no reason given'}"
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return NoTopic(reason)
    return Refused(
        reason,
        _HINTS.get(answer.code, ""),
        answer.code in {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE},
    )


def _name(code: int) -> str:
    try:
        return f"{code} ({ResponseCode(code).name})"
    except ValueError:
        return str(code)


def pull_request(partition: RangePartition, options: ReadOptions, offset: int, end: int) -> Command:
    """A pull of messages ``[offset, end)`` that is answered at once, whatever there is."""
    header = PullMessageRequestHeader(
        consumer_group=options.group,
        topic=partition.topic,
        queue_id=partition.queue_id,
        queue_offset=offset,
        max_msg_nums=min(end - offset, options.pull_batch_size),
        sys_flag=_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=options.filter_tags,
        sub_version=0,
        expression_type="TAG",
        bname=partition.broker_name,
        max_msg_bytes=MAX_ANSWER_BYTES,
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)
