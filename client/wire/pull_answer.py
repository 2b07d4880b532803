"""The meaning of an answer to a pull, for a caller that needs every message of an offset range.

The range was within the queue when it was planned, and offsets are consecutive and never reused. So
a message that is not there now was lost: by retention, by a crash before a flush, or because the
topic was deleted. The answer shows which (cf. PullMessageProcessor):

================  ================================  ==========================================
 code              with                              means
================  ================================  ==========================================
 SUCCESS           a next offset, a body             records up to there
 RETRY_IMMEDIATELY a next offset, a filter           none of the messages up to there matched
 RETRY_IMMEDIATELY a next offset, no filter          the log no longer has the messages up to there
 NOT_FOUND         a next offset                     the queue has a gap up to there
 OFFSET_MOVED      min offset > requested offset     the messages below it are deleted
 NOT_FOUND, MOVED  max offset <= requested offset    the queue ends here
 TOPIC_NOT_EXIST                                     the topic is deleted
================  ================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from client.wire.backoff import retry_after
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.pull import PullMessageResponseHeader

PULL_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Response codes of pulls that the broker has carried out."""


@dataclass(frozen=True, slots=True)
class Covered:
    """All messages up to ``next_offset`` are in the answer's body, or did not match."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The messages up to ``next_offset`` are deleted; the queue continues there."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class Ends:
    """The queue spans ``[min_offset, max_offset)`` and has nothing at the requested offset."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class NoTopic:
    """The broker doesn't have the topic."""

    remark: str


@dataclass(frozen=True, slots=True)
class PullRefused:
    """The broker did not carry out the pull.

    Attributes:
        reason: the response code and remark.
        hint: what to do about it; if not empty, retrying is useless.
        is_busy: the broker is overloaded and may accept the pull later.
        retry_after: the seconds to wait that it names; 0 if none.
    """

    reason: str
    hint: str = ""
    is_busy: bool = False
    retry_after: float = 0.0


PullMeaning: TypeAlias = Covered | Gone | Ends | NoTopic | PullRefused


def judge_pull(
    answer: Command, offset: int, *, is_filtered: bool, hints: Mapping[int, str]
) -> PullMeaning:
    """Return the meaning of the answer to a pull of messages from ``offset``.

    Args:
        is_filtered: the pull asked only for messages with certain tags.
        hints: what to do, by response code, about errors for which retrying is useless.
    """
    if answer.code not in PULL_ANSWERS:
        reason = f"code {_name(answer.code)}: {answer.remark or 'no reason given'}"
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return NoTopic(reason)
        is_busy = answer.code in {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
        return PullRefused(reason, hints.get(answer.code, ""), is_busy, retry_after(answer))
    try:
        header = answer.read(PullMessageResponseHeader)
    except HeaderError as problem:
        return PullRefused(f"its answer is malformed: {problem}")
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        if header.min_offset > offset:
            return Gone(header.min_offset)
        return Ends(header.min_offset, header.max_offset)
    after = header.next_begin_offset
    if answer.code == ResponseCode.PULL_NOT_FOUND and after <= offset:
        return Ends(header.min_offset, header.max_offset)
    if after <= offset:
        return PullRefused(f"its next offset {after} is not above {offset}")
    if answer.code == ResponseCode.PULL_NOT_FOUND or not (is_filtered or answer.body):
        return Gone(after)
    return Covered(after)


def _name(code: int) -> str:
    try:
        return f"{code} ({ResponseCode(code).name})"
    except ValueError:
        return str(code)
