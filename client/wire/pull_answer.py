"""What an answer to a pull means for whoever wants every message of a range of a queue.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

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
"""Codes of the answers to a pull that the broker has served."""


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
class PullRefused:
    """The broker did not serve the pull.

    Attributes:
        reason: its remark.
        hint: what to do about it; with one, another attempt is useless.
        is_busy: the broker limits its load and may serve the pull later.
    """

    reason: str
    hint: str = ""
    is_busy: bool = False


PullMeaning: TypeAlias = Covered | Gone | Ends | NoTopic | PullRefused


def judge_pull(
    answer: Command, offset: int, *, is_filtered: bool, hints: Mapping[int, str]
) -> PullMeaning:
    """What the answer to a pull of messages from ``offset`` on means.

    Args:
        is_filtered: the pull asked for messages with certain tags only.
        hints: for refusals that another attempt won't change, by code: what to do about them.
    """
    if answer.code not in PULL_ANSWERS:
        reason = f"code {_name(answer.code)}: {answer.remark or 'no reason given'}"
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return NoTopic(reason)
        is_busy = answer.code in {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
        return PullRefused(reason, hints.get(answer.code, ""), is_busy)
    try:
        header = answer.read(PullMessageResponseHeader)
    except HeaderError as problem:
        return PullRefused(f"its answer can't be understood: {problem}")
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        if header.min_offset > offset:
            return Gone(header.min_offset)
        return Ends(header.min_offset, header.max_offset)
    after = header.next_begin_offset
    if answer.code == ResponseCode.PULL_NOT_FOUND and after <= offset:
        return Ends(header.min_offset, header.max_offset)
    if after <= offset:
        return PullRefused(f"it says that after {offset} comes {after}")
    if answer.code == ResponseCode.PULL_NOT_FOUND or not (is_filtered or answer.body):
        return Gone(after)
    return Covered(after)


def _name(code: int) -> str:
    try:
        return f"{code} ({ResponseCode(code).name})"
    except ValueError:
        return str(code)
