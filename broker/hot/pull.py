"""Pulls that find something: from the slice of a header to slices of the log.

Who may read what is decided by ``broker.processors.pull``; for a pull that brings its own
subscription the decision is kept until topics or groups change. A pull that finds nothing is
parked, or answered, by that module too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final

from broker.errors import LimitReached, Refused
from broker.groups.consumers import ConsumerGroup
from broker.hot.answers import framed, template
from broker.hot.headers import (
    DECODE_ERRORS,
    PullFields,
    decode_pull,
    has_few_fields,
    integer,
    small_integer,
)
from broker.hot.turn import COLD, HEAVY, Piece, Serve, Turn
from broker.processors.offsets import OffsetProcessor
from broker.processors.pull import COMMIT_OFFSET, SUBSCRIPTION, Accept, HeldPull, PullProcessor
from broker.state import BrokerState
from broker.store.results import GetResult, GetStatus
from remoting.flow import GATHER_BYTES
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader

MAX_KNOWN_PULLS: Final = 16_384
"""Kinds of pulls remembered, one for each queue and group; more are a stream of odd headers."""

_MAX_TEXT_LENGTH: Final = 256
"""Of a field of the header that is remembered; nearly all are shorter."""

_key_of: Final[Callable[[PullFields], tuple[str, ...]]] = attrgetter(
    *("consumerGroup", "topic", "queueId", "maxMsgNums", "sysFlag", "suspendTimeoutMillis"),
    *("subscription", "subVersion", "expressionType", "maxMsgBytes", "requestSource"),
)
"""The texts of a header that tell its kind."""

_NO_COMMAND: Final = Command(RequestCode.PULL_MESSAGE)
_NEXT, _LOW, _HIGH = 8_111_111_111_111_111_111, 8_222_222_222_222_222_222, 8_333_333_333_333_333_333


class Known:
    """What all pulls of one kind have in common: all of their headers but the offsets.

    Attributes:
        subscription: of the group, by which ``accept`` was decided; None when it is in the header.
    """

    __slots__ = (
        "accept",
        "commits",
        "header",
        "is_decided",
        "max_bytes",
        "max_count",
        "subscription",
    )

    def __init__(
        self, header: PullMessageRequestHeader, accept: Accept, most: tuple[int, int]
    ) -> None:
        self.header = header
        self.accept = accept
        self.max_count, self.max_bytes = most
        self.commits = bool(header.sys_flag & COMMIT_OFFSET)
        # Without it the filter is that of the group's last heartbeat.
        self.is_decided = bool(header.sys_flag & SUBSCRIPTION)
        self.subscription: SubscriptionData | None = None


class Pulls:
    """Serves pulls.

    Attributes:
        serves: code -> what serves its frames.
        served: how many were.
    """

    __slots__ = (
        "_found",
        "_groups_version",
        "_known",
        "_offsets",
        "_pulls",
        "_state",
        "_texts",
        "_topics_version",
        "_turn",
        "served",
        "serves",
    )

    def __init__(
        self, state: BrokerState, pulls: PullProcessor, offsets: OffsetProcessor, turn: Turn
    ) -> None:
        self._state = state
        self._pulls = pulls
        self._offsets = offsets
        self._turn = turn
        self.served = 0
        self._known: dict[tuple[str, ...], Known] = {}
        # Most of what headers say they all say: each text is kept once.
        self._texts: dict[str, str] = {}
        self._topics_version = state.topics.data_version
        self._groups_version = state.groups.data_version
        self._found = _found_template()
        self.serves: dict[int, Serve] = {
            code: partial(self._serve, code)
            for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        }

    def _serve(self, code: int, buffer: bytes, header_at: int, body_at: int, _: int) -> int:
        text = buffer[header_at:body_at]
        try:
            header = decode_pull(text)
        except DECODE_ERRORS:
            return COLD
        if header.code != code or header.flag or not has_few_fields(text):
            return COLD
        fields = header.extFields
        offset, commit_offset = integer(fields.queueOffset), integer(fields.commitOffset)
        if offset is None or commit_offset is None:
            return COLD
        try:
            known = self._find(fields)
            if known is None:
                return COLD
            known.header.queue_offset, known.header.commit_offset = offset, commit_offset
            return self._pull(known, header.opaque)
        except (LimitReached, Refused):
            return COLD

    def _pull(self, known: Known, opaque: int) -> int:
        """Pull; raises what says that the general path has to refuse it."""
        state, turn = self._state, self._turn
        header = known.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        online = state.consumers.groups.get(group)
        accept = known.accept if known.is_decided else self._accept_of_group(known, online)
        if online is not None:
            online.pulled(topic, queue_id, turn.peer.connection, state.clock.monotonic())
        if known.commits and not state.stopping:
            self._offsets.commit(group, topic, queue_id, header.commit_offset)
        # It may ask for what has just been sent.
        turn.store()
        result = state.store.get(
            topic,
            queue_id,
            header.queue_offset,
            known.max_count,
            max_bytes=known.max_bytes,
            accept=accept,
            wait=False,
        )
        if result.status is GetStatus.FOUND:
            self._answer_found(result, opaque)
        elif result.status is GetStatus.COLD:
            return COLD
        else:
            self._answer_other(header, accept, result, opaque)
        self.served += 1
        return HEAVY

    def _accept_of_group(self, known: Known, online: ConsumerGroup | None) -> Accept:
        """The filter of the group's last heartbeat: decided anew when that says something else."""
        header = known.header
        subscription = None if online is None else online.subscriptions.get(header.topic)
        if (
            online is None
            or subscription is None
            or subscription is not known.subscription
            or online.is_broadcasting
        ):
            held = HeldPull(_NO_COMMAND, self._turn.peer.connection, header)
            known.accept = self._pulls.accept(held)
            known.subscription = subscription
        return known.accept

    def _answer_found(self, result: GetResult, opaque: int) -> None:
        size = result.size
        counters = self._state.counters
        counters.pulls_found += 1
        counters.messages_pulled += result.count
        counters.bytes_pulled += size
        self._turn.answers += self._pieces(result, opaque)

    def _pieces(self, result: GetResult, opaque: int) -> list[Piece]:
        """The answer to a pull that found something."""
        size, records = result.size, result.records
        fill = (result.next_offset, result.min_offset, result.max_offset, opaque)
        frame = framed(self._found % fill, size)
        if size < GATHER_BYTES * len(records):
            # While they are in the processor's cache; what is large is written as it is.
            return [b"".join((frame, *records))]
        return [frame, *records]

    def _answer_other(
        self, header: PullMessageRequestHeader, accept: Accept, result: GetResult, opaque: int
    ) -> None:
        command = Command(RequestCode.PULL_MESSAGE, opaque)
        connection = self._turn.peer.connection
        held = HeldPull(command, connection, header.copy(), self._pieces)
        reply = self._pulls.answer(held, accept, result, suspend=not self._state.stopping)
        if reply is not None:
            self._turn.answers.append(encode(reply))

    # kinds of pulls

    def _find(self, fields: PullFields) -> Known | None:
        state = self._state
        if (
            state.topics.data_version is not self._topics_version
            or state.groups.data_version is not self._groups_version
        ):
            self._topics_version = state.topics.data_version
            self._groups_version = state.groups.data_version
            self._forget()
        key = _key_of(fields)
        return self._known.get(key) or self._learn(key, fields)

    def _forget(self) -> None:
        self._known.clear()
        self._texts.clear()

    def _learn(self, key: tuple[str, ...], fields: PullFields) -> Known | None:
        header = _header_of(fields)
        if header is None or max(map(len, key)) > _MAX_TEXT_LENGTH:
            return None
        accept = self._pulls.accept(HeldPull(_NO_COMMAND, self._turn.peer.connection, header))
        if len(self._known) >= MAX_KNOWN_PULLS:
            self._forget()
        key = tuple(self._texts.setdefault(text, text) for text in key)
        header.consumer_group, header.topic = key[:2]
        known = self._known[key] = Known(header, accept, self._pulls.most(header))
        return known


def _header_of(fields: PullFields) -> PullMessageRequestHeader | None:
    """The header without its offsets; None when one of its numbers is unusual."""
    queue_id = small_integer(fields.queueId)
    most = small_integer(fields.maxMsgNums)
    sys_flag = small_integer(fields.sysFlag)
    suspend_ms = integer(fields.suspendTimeoutMillis)
    sub_version = integer(fields.subVersion)
    max_bytes = small_integer(fields.maxMsgBytes)
    source = small_integer(fields.requestSource)
    if (
        queue_id is None
        or most is None
        or sys_flag is None
        or suspend_ms is None
        or sub_version is None
        or max_bytes is None
        or source is None
    ):
        return None
    return PullMessageRequestHeader(
        consumer_group=fields.consumerGroup,
        topic=fields.topic,
        queue_id=queue_id,
        queue_offset=0,
        max_msg_nums=most,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        subscription=fields.subscription,
        sub_version=sub_version,
        expression_type=fields.expressionType,
        max_msg_bytes=max_bytes,
    )


def _found_template() -> bytes:
    """Takes the next offset, the queue's bounds and the opaque."""
    return template(
        ResponseCode.SUCCESS,
        remark=GetStatus.FOUND.name,
        header=PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=_NEXT,
            min_offset=_LOW,
            max_offset=_HIGH,
        ),
        holes=((_NEXT, b"%d"), (_LOW, b"%d"), (_HIGH, b"%d")),
    )
