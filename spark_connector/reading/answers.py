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

import random
from dataclasses import dataclass
from typing import Final, TypeAlias

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from spark_connector.errors import BrokerError, DataLossError, DecodeError, UnknownTopicError
from spark_connector.limits import MAX_ANSWER_BYTES, RETRY_FIRST, RETRY_MAX
from spark_connector.planning.ranges import RangePartition, ReadOptions

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
class PullRefused:
    """The broker did not serve the pull.

    Attributes:
        reason: its own words.
        hint: what to do about it; with one, asking again is useless.
        is_busy: it has too much to do, and means to serve it later.
    """

    reason: str
    hint: str = ""
    is_busy: bool = False


Meaning: TypeAlias = Covered | Gone | Ends | NoTopic | PullRefused


def meaning(answer: Command, offset: int, *, is_filtered: bool) -> Meaning:
    """What an answer says to a pull of messages from ``offset`` on."""
    if answer.code not in _KNOWN:
        return _refusal(answer)
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


def _refusal(answer: Command) -> Meaning:
    reason = f"code {_name(answer.code)}: {answer.remark or 'no reason given'}"
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return NoTopic(reason)
    return PullRefused(
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


class RetryState:
    """A row of failures without progress in between.

    Args:
        choose: spreads the pauses of many tasks.

    Attributes:
        failures: how many there were in the row.
        refusals: how many of them were the broker's own.
    """

    def __init__(self, choose: random.Random) -> None:
        self._random = choose
        self._since: float | None = None
        self.failures = 0
        self.refusals = 0
        self._bound = 0.0

    def over(self) -> None:
        """There was progress."""
        self._since = None
        self.failures = self.refusals = 0
        self._bound = 0.0

    def failed(self, now: float, *, refused: bool = False) -> float:
        """One more failure; seconds since the first of the row."""
        if self._since is None:
            self._since = now
        self.failures += 1
        self._bound = min(RETRY_MAX, self._bound * 2) or RETRY_FIRST
        self.refusals += refused
        return now - self._since

    def pause(self) -> float:
        """Seconds to wait: half to the whole of a bound that doubles with each failure."""
        return self._bound * self._random.uniform(0.5, 1.0)


_OR_SKIP = "set onDataLoss=skip to read what is left"


def _queue(partition: RangePartition) -> str:
    return (
        f"topic {partition.topic}, queue {partition.queue_id} of broker {partition.broker_name} "
        f"({', '.join(partition.addresses)})"
    )


def gone(partition: RangePartition, first: int, end: int, count: int) -> DataLossError:
    """Messages within the range are gone, others behind them are there."""
    what = f"{count} of the messages" if count < end - first else f"{count} messages"
    return DataLossError(
        f"{what} from offset {first} up to {end} are gone: {_queue(partition)}; wanted were "
        f"{partition.start} up to {partition.end}",
        f"the broker keeps messages for fileReservedTime hours: read sooner or keep them longer; "
        f"{_OR_SKIP}",
    )


def ended(partition: RangePartition, position: int, ends: Ends) -> DataLossError:
    """The queue ends before the range does."""
    return DataLossError(
        f"no messages from offset {position} up to {partition.end}, the queue has {ends.min_offset}"
        f" up to {ends.max_offset}: {_queue(partition)}",
        "the topic was deleted and made anew, or the broker lost what it had not flushed: "
        f"restart the query from a new checkpoint; or {_OR_SKIP}",
    )


def no_topic(partition: RangePartition, position: int, answer: NoTopic) -> UnknownTopicError:
    """The topic vanished."""
    return UnknownTopicError(
        f"the topic vanished while offset {position} up to {partition.end} were to be read: "
        f"{_queue(partition)} says {answer.remark}",
        f"create it anew, leave it out of the query, or {_OR_SKIP}",
    )


def refused(partition: RangePartition, position: int, reason: str, hint: str) -> BrokerError:
    """The broker answers, but does not serve."""
    return BrokerError(
        f"the broker refuses to give messages from offset {position} on: {_queue(partition)}: "
        f"{reason}",
        hint or "look at the broker's log",
    )


def unreachable(
    partition: RangePartition, position: int, reason: str, waited: float
) -> BrokerError:
    """The broker did not answer for too long."""
    return BrokerError(
        f"no messages from offset {position} on for {waited:.0f} s: {_queue(partition)}: {reason}",
        "see that the broker runs and can be reached from the executors, or raise readTimeoutMs",
    )


def damaged(partition: RangePartition, first: int, end: int, error: DecodeError) -> DecodeError:
    """What came can't be understood."""
    return DecodeError(
        f"{error.what}; it came with offsets {first} up to {end} of {_queue(partition)}", error.hint
    )
