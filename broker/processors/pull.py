"""Pulls: codes 11 and 361 (cf. PullMessageProcessor).

A pull is checked by ``admit``, its offset is committed if it contains one, and the messages are
read from the store. Messages are sent as slices of the commit log, without a copy for each. If
there is no message yet and the client allows suspension, the pull is parked. It runs again, without
suspension, when a message arrives, at its deadline, or when the broker stops. Messages that are not
in memory are read in a thread, and a task waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

import structlog

from broker.delivery.long_poll import ParkedPull
from broker.delivery.redelivery import ExistingTopics
from broker.errors import FAQ, RequestRefused, is_tag_type, remark_of, without_filter
from broker.filters.expressions import SqlError
from broker.filters.sql import SqlFilter
from broker.filters.table import compile_filter
from broker.limits import (
    BYTES_PER_CHARACTER,
    DEFAULT_PULL_BYTES,
    DEFAULT_PULL_MESSAGES,
    MAX_SUBSCRIPTION_LENGTH,
    MAX_SUSPEND_MS,
    SHORT_SUBSCRIPTION_LENGTH,
)
from broker.processors.offsets import OffsetProcessor
from broker.state import BrokerState
from broker.store.record_validator import TagsCodes
from broker.store.results import (
    GetResult,
    GetStatus,
    PendingMessage,
    RecordFilter,
    StoreBusy,
)
from broker.traffic.quotas import Allowance, Quotas, capped, take
from remoting.access.accounts import SUB
from remoting.access.guard import EXCEPTION, Guard
from remoting.protocol import names
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.group import OffsetMovedEvent
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from remoting.protocol.message import properties
from remoting.protocol.message.tags import TagExpression, tags_code

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")

COMMIT_OFFSET: Final = 0x1
SUSPEND: Final = 0x2
SUBSCRIPTION: Final = 0x4
"""Bits of the header's ``sysFlag`` (cf. PullSysFlag)."""

_parse_short_tags = lru_cache(maxsize=256)(TagExpression.parse)

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    # Only for a woken pull, which may not wait for the disk: the client's next pull will.
    GetStatus.COLD: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullFilter(NamedTuple):
    """The filter of a pull.

    Attributes:
        codes: the tags codes of matching messages; None for all.
        records: a filter by the records' contents; None if tags alone decide.
    """

    codes: TagsCodes | None = None
    records: RecordFilter | None = None


_EVERYTHING: Final = PullFilter()


class GetArgs(TypedDict):
    """The arguments of the store's ``get`` for a pull."""

    topic: str
    queue_id: int
    offset: int
    max_count: int
    max_bytes: int
    codes: TagsCodes | None
    records: RecordFilter | None


@dataclass(slots=True)
class HeldPull:
    """A pull with what is needed to run it again after it was parked.

    Attributes:
        command: the request.
        connection: the client's connection.
        header: the request's header.
        allowance: the quotas that limit it.
        account: the account that signed it; None if it needed no signature.
        pieces: on the fast path, returns the frame of an answer with messages, from the result and
            the request's opaque; None: the answer is encoded as usual.
    """

    command: Command
    connection: Connection
    header: PullMessageRequestHeader
    pieces: Callable[[GetResult, int], Sequence[bytes | memoryview]] | None = None
    allowance: Allowance = ()
    account: str | None = None

    def drop_unneeded(self) -> None:
        """Drop everything that another run doesn't need: headers may be large, and pulls many."""
        request, header = self.command, self.header
        self.command = Command(
            request.code, request.opaque, request.flag, serialize=request.serialize
        )
        header.bname = header.proxy_froward_client_id = None


class PullProcessor:
    """Handles pulls, and wakes parked ones."""

    __slots__ = ("_guard", "_offsets", "_quotas", "_state", "_woken")

    def __init__(
        self,
        state: BrokerState,
        offsets: OffsetProcessor,
        quotas: Quotas,
        guard: Guard | None = None,
    ) -> None:
        self._state = state
        self._guard = guard
        self._quotas = quotas
        self._offsets = offsets
        self._woken: list[ParkedPull] = []

    def pull(
        self, command: Command, connection: Connection
    ) -> Command | Awaitable[Command | None] | None:
        """Handle PULL_MESSAGE and LITE_PULL_MESSAGE."""
        header = command.read(PullMessageRequestHeader)
        held = HeldPull(command, connection, header)
        pull_filter = self.admit(held)
        if self._guard is not None:
            held.account = self._guard.account_of(command, connection)
        held.allowance = self._quotas.admit_pull(
            command, connection, header.topic, header.consumer_group
        )
        online = self._state.consumers.groups.get(header.consumer_group)
        if online is not None:
            now, offset = self._state.clock.monotonic(), header.queue_offset
            online.pulled(header.topic, header.queue_id, offset, connection, now)
        if header.sys_flag & COMMIT_OFFSET and self._state.takes_commits:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        args = self.get_args(held, pull_filter)
        result = self._state.store.get(**args, wait=False)
        if result.status is GetStatus.COLD:
            return self._pull_from_disk(held, args)
        return self.answer(held, pull_filter.codes, result, suspend=not self._state.stopping)

    async def _pull_from_disk(self, held: HeldPull, args: GetArgs) -> Command | None:
        try:
            result = await self._state.store.cold_reads.get(held.connection, **args)
        except StoreBusy as busy:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, str(busy)) from busy
        self._check_rights(held)
        suspend = not (self._state.stopping or held.connection.closed)
        return self.answer(held, args["codes"], result, suspend=suspend)

    # parked pulls

    def wake_soon(self, pulls: list[ParkedPull]) -> None:
        """Run parked pulls again, a limited number in each iteration of the event loop."""
        if pulls and not self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)
        self._woken += pulls

    def _wake_some(self) -> None:
        at_once = self._state.config.limits.woken_at_once
        woken, self._woken = self._woken[:at_once], self._woken[at_once:]
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)
        self.wake(woken)

    def expire(self) -> None:
        """Wake the pulls whose deadline has passed; called every ``TICK_SECONDS``."""
        state = self._state
        self.wake_soon(state.long_polls.expired(state.clock.monotonic()))

    def wake_all(self) -> None:
        """Answer all parked pulls now, when the broker stops."""
        woken, self._woken = self._woken, []
        self.wake(woken + self._state.long_polls.drain())

    def rights_changed(self) -> None:
        """Answer the parked pulls whose accounts may not read their topics any more."""
        polls = self._state.long_polls
        self.wake_soon(polls.take(lambda parked: self._denial(_held(parked)) is not None))

    def topic_deleted(self, topic: str) -> None:
        """Answer the parked pulls of a topic that does not exist any more."""
        self.wake_soon(self._state.long_polls.take(lambda parked: parked.topic == topic))

    def _check_rights(self, held: HeldPull) -> None:
        """Raise ``RequestRefused`` if a pull that has waited is denied by now."""
        if denial := self._denial(held):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, denial)

    def _denial(self, held: HeldPull) -> str | None:
        """Return why a pull that has waited is denied; None if it may be served."""
        if self._guard is None:
            return None
        header = held.header
        needed = ((names.retry_topic(header.consumer_group), SUB), (header.topic, SUB))
        lack = self._guard.lacking(held.account, held.connection, needed)
        return None if lack is None else f"{EXCEPTION}: {lack}"

    def wake(self, pulls: list[ParkedPull]) -> None:
        """Run parked pulls again, and send their answers even if no message is found."""
        woken: dict[Connection, None] = {}
        for parked in pulls:
            held = _held(parked)
            if held.connection.closed:
                continue
            woken[held.connection] = None
            try:
                self._check_rights(held)
                # The message that woke it was just stored and is in memory, so ``wait`` is off.
                pull_filter = self.admit(held)
                result = self._state.store.get(**self.get_args(held, pull_filter), wait=False)
                if result.status is GetStatus.FOUND:
                    # Other pulls may have used it up since this one was parked.
                    self._quotas.check(held.allowance, held.connection)
                if (
                    pull_filter.records is not None
                    and result.status is GetStatus.NO_MATCHED_MESSAGE
                    and result.next_offset == result.max_offset
                    and self._park_again(parked, result.next_offset)
                ):
                    continue
                reply = self.answer(held, pull_filter.codes, result, suspend=False)
            except RequestRefused as refused:
                reply = held.command.reply(refused.code, refused.remark, extra=refused.extra)
            except Exception:  # noqa: BLE001 - whatever fails is answered
                _log.exception("parked pull failed", topic=parked.topic, queue=parked.queue_id)
                reply = held.command.reply(
                    ResponseCode.SYSTEM_ERROR, "the broker failed to serve this pull; see its log"
                )
            if reply is not None:
                held.connection.send(reply)
        # Flush once for all answers of a connection, and now instead of in the next iteration of
        # the event loop, for low latency.
        for connection in woken:
            connection.flush()

    def answer(
        self, held: HeldPull, codes: TagsCodes | None, result: GetResult, *, suspend: bool
    ) -> Command | None:
        """Return the answer; None if messages were sent from here or the pull was parked.

        Args:
            held: the pull.
            codes: its filter, for parking.
            result: what the store returned.
            suspend: whether the pull may be parked.
        """
        header = held.header
        code = _CODES.get(result.status)
        if code is None:
            # The queue is empty: offset 0 is its next message, any other offset is invalid.
            is_start = header.queue_offset == 0
            code = ResponseCode.PULL_NOT_FOUND if is_start else ResponseCode.PULL_OFFSET_MOVED
        if code == ResponseCode.SUCCESS:
            self._found(held, result)
            return None
        self._state.counters.pulls_missed += 1
        replica = self._state.replica
        if replica is not None and code == ResponseCode.PULL_OFFSET_MOVED:
            # The master may have what a slave lacks (cf. offsetCheckInSlave): go there, or wait.
            alive = replica.state.connected
            code = ResponseCode.PULL_RETRY_IMMEDIATELY if alive else ResponseCode.PULL_NOT_FOUND
            result = replace(result, next_offset=header.queue_offset)
        if (
            code == ResponseCode.PULL_NOT_FOUND
            and suspend
            and header.sys_flag & SUSPEND
            and self._park(held, codes)
        ):
            return None
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._report_moved(header, result.next_offset)
        return self._reply(held, code, result)

    def suggested(self, header: PullMessageRequestHeader, offset: int) -> int:
        """Return the id of the broker that the client should pull from at ``offset``.

        With ``slaveReadEnable``, a group that reads what may not be in memory goes to a slave (cf.
        suggestPullingFromSlave).
        """
        state = self._state
        group = state.groups.table.get(header.consumer_group)
        if group is None or not state.config.slave_read_enable:
            return 0
        percent = state.config.access_message_in_memory_max_ratio
        queue = header.topic, header.queue_id
        if state.store.queries.is_offset_in_memory(*queue, offset, percent):
            return group.broker_id
        return group.which_broker_when_consume_slowly

    def _reply(self, held: HeldPull, code: int, result: GetResult) -> Command:
        return held.command.reply(
            code,
            result.status.name,
            header=PullMessageResponseHeader(
                suggest_which_broker_id=self.suggested(held.header, result.next_offset),
                next_begin_offset=result.next_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
        )

    # checks

    def admit(self, held: HeldPull) -> PullFilter:
        """Check whether a pull is allowed, in RocketMQ's order; return its filter.

        Raises:
            RequestRefused: it isn't.
            LimitReached: its group can't be created.
        """
        state, header = self._state, held.header
        if not state.config.broker_permission & names.PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{state.host}] pulling message is forbidden"
            )
        group = state.group_config(header.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
            )
        self._check_queue(held)
        if header.sys_flag & SUBSCRIPTION:
            pull_filter = self._filter_of_text(header)
        else:
            enable = group.consume_broadcast_enable
            pull_filter = self._filter_of_subscription(header, broadcast_enable=enable)
        is_retry = header.topic.startswith(names.RETRY_PREFIX)
        if is_retry and pull_filter is _EVERYTHING and state.store.deleted.ends:
            # Retries of a deleted topic would be delivered as messages of one created again.
            return PullFilter(records=ExistingTopics(state.store))
        return pull_filter

    def _check_queue(self, held: HeldPull) -> None:
        header = held.header
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! {FAQ}",
            )
        if not topic.perm & names.PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[/{held.connection.remote_text}]",
            )

    def _filter_of_subscription(
        self, header: PullMessageRequestHeader, *, broadcast_enable: bool
    ) -> PullFilter:
        group = self._state.consumers.groups.get(header.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
            )
        if not broadcast_enable and group.is_broadcasting:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        if not self._state.groups.may_read(header.consumer_group, header.topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] is forbidden for "
                f"topic[{header.topic}]",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
            )
        if subscription.sub_version < header.sub_version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if not is_tag_type(subscription.expression_type):
            return PullFilter(records=self._filter_of_group(header, subscription.expression_type))
        if subscription.sub_string == "*":
            return _EVERYTHING
        return PullFilter(frozenset(subscription.code_set))

    def _filter_of_group(
        self, header: PullMessageRequestHeader, expression_type: str | None
    ) -> SqlFilter:
        saved = self._state.filters.get(header.topic, header.consumer_group)
        if saved is None or saved.filter is None:
            raise RequestRefused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if saved.data.client_version < header.sub_version:
            raise RequestRefused(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        if not self._state.config.enable_property_filter:
            raise without_filter(expression_type)
        return saved.filter

    def _filter_of_text(self, header: PullMessageRequestHeader) -> PullFilter:
        text = header.subscription
        if not is_tag_type(header.expression_type):
            if not text:
                raise _unparsable()
            if not self._state.config.enable_property_filter:
                raise without_filter(header.expression_type)
            try:
                return PullFilter(records=compile_filter(header.expression_type, text))
            except SqlError as error:
                # RocketMQ ignores the filter then, and delivers every message.
                raise _unparsable(str(error)) from None
        if text is not None and len(text) > MAX_SUBSCRIPTION_LENGTH:
            raise _unparsable()
        is_short = len(text or "") <= SHORT_SUBSCRIPTION_LENGTH
        try:
            # Only short ones are cached, so that the cache stays small.
            expression = _parse_short_tags(text) if is_short else TagExpression.parse(text)
        except ValueError:
            raise _unparsable() from None
        return _EVERYTHING if expression.is_all else PullFilter(expression.codes)

    # the store

    def limits(
        self, header: PullMessageRequestHeader, allowance: Allowance = ()
    ) -> tuple[int, int]:
        """Return the limits of messages and of bytes for a pull."""
        config = self._state.config
        count = max(min(header.max_msg_nums, config.pull_max_messages), 1)
        size = DEFAULT_PULL_BYTES if count <= DEFAULT_PULL_MESSAGES else config.pull_max_bytes
        if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
            size = min(header.max_msg_bytes, config.pull_max_bytes)
        return capped(allowance, count, size) if allowance else (count, size)

    def get_args(self, held: HeldPull, pull_filter: PullFilter) -> GetArgs:
        """Return the arguments for the store's ``get``."""
        header = held.header
        max_count, max_bytes = self.limits(header, held.allowance)
        return {
            "topic": header.topic,
            "queue_id": header.queue_id,
            "offset": header.queue_offset,
            "max_count": max_count,
            "max_bytes": max_bytes,
            "codes": pull_filter.codes,
            "records": pull_filter.records,
        }

    def _found(self, held: HeldPull, result: GetResult) -> None:
        self._state.counters.pulled(1, result.count, result.size)
        take(held.allowance, result.count, result.size)
        header = held.header
        self._state.traffic.got(header.consumer_group, header.topic, result.count, result.size)
        if held.pieces is not None:
            held.connection.send_pieces(held.pieces(result, held.command.opaque))
            return
        held.connection.send_with_body(
            self._reply(held, ResponseCode.SUCCESS, result), result.records
        )

    def _park_again(self, parked: ParkedPull, offset: int) -> bool:
        """Park a pull again until its deadline: no message before ``offset`` matches."""
        state = self._state
        if state.stopping or state.clock.monotonic() >= parked.deadline:
            return False
        held = _held(parked)
        parked.offset = held.header.queue_offset = offset
        return state.long_polls.park(parked)

    def _park(self, held: HeldPull, codes: TagsCodes | None) -> bool:
        state, header = self._state, held.header
        config = state.config
        wait_ms = (
            min(header.suspend_timeout_millis, MAX_SUSPEND_MS)
            if config.long_polling_enable
            else config.short_polling_time_ms
        )
        # What its expression takes beyond a short one; the weight is an estimate in bytes.
        excess = max(len(header.subscription or "") - SHORT_SUBSCRIPTION_LENGTH, 0)
        held.drop_unneeded()
        parked = state.long_polls.park(
            ParkedPull(
                topic=header.topic,
                queue_id=header.queue_id,
                offset=header.queue_offset,
                deadline=state.clock.monotonic() + wait_ms / 1000,
                codes=codes,
                owner=held.connection,
                request=held,
                weight=BYTES_PER_CHARACTER * excess,
            )
        )
        state.counters.pulls_parked += parked
        return parked

    def _report_moved(self, header: PullMessageRequestHeader, next_offset: int) -> None:
        """Store an event in OFFSET_MOVED_EVENT: a group was given another offset."""
        state = self._state
        event = OffsetMovedEvent(
            consumer_group=header.consumer_group,
            message_queue=state.message_queue(header.topic, header.queue_id),
            offset_request=header.queue_offset,
            offset_new=next_offset,
        )
        group = header.consumer_group
        state.store.put(
            PendingMessage(
                topic=names.OFFSET_MOVED_TOPIC,
                queue_id=0,
                body=encode(event),
                properties=properties.encode({properties.KEYS: group, properties.TAGS: group}),
                tags_code=tags_code(group),
                born_timestamp_ms=state.clock.now_ms(),
                born_host=state.packed_host,
            )
        )


def _held(parked: ParkedPull) -> HeldPull:
    held = parked.request
    assert isinstance(held, HeldPull)
    return held


def _unparsable(why: str = "") -> RequestRefused:
    return RequestRefused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        "parse the consumer's subscription failed" + (f": {remark_of(why)}" if why else ""),
    )
