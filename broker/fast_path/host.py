"""The connection of the fast path to the broker (``Host``) and to sockets (``FastPathFeed``).

The decisions are those of ``broker.processors``. In the requests of one client all but a few fields
repeat. What follows from the repeating fields is computed once, as a plan. The read pass caches
plans by the bytes of those fields, until ``is_current`` reports that topics, groups or queues have
changed. A request that is refused, or that only the slow path can handle, has no plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from broker.errors import LimitReached, RequestRefused
from broker.fast_path.read_pass import PullPlan, ReadPass, SendPlan
from broker.fast_path.templates import SendAnswers, found_template, make
from broker.groups.consumers import ConsumerGroup
from broker.processors.pull import COMMIT_OFFSET, SUBSCRIPTION, HeldPull
from broker.processors.send import added_properties, answer_fields, read_header
from broker.processors.table import Processors
from broker.state import BrokerState
from broker.store.results import Ack, GetResult, GetStatus
from broker.traffic.counts import GROUP_GET, TOPIC_PUT, key_of
from remoting.access.guard import Guard
from remoting.connection import Connection
from remoting.limits import SLICE_BYTES, SLICE_SECONDS
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.frame import GATHER_BYTES, Frame, cut, decode, encode
from remoting.protocol.headers.pull import (
    PullMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.message.record import (
    HOST_BYTES_V4,
    HOSTS_V6_MASK,
    TRANSACTION_MASK,
    host_bytes,
)

if TYPE_CHECKING:
    from broker.store.append import Appender
    from broker.store.consume_queue import QueueTable
    from broker.store.reader import EntryWindow, StoreReader
    from broker.store.record_validator import TagsCodes


Piece = bytes | memoryview

_NO_COMMAND: Final = Command(RequestCode.PULL_MESSAGE)


def _command(codec: int, header: bytes) -> Command:
    return decode(Frame(SerializeType(codec), memoryview(header), memoryview(b""), 0))


class FastPathStore(Protocol):
    """What the fast path needs of the message store.

    Attributes:
        queues: the consume queues.
        reader: reads messages from memory.
        appender: appends the messages of one socket read.
    """

    queues: QueueTable
    reader: StoreReader
    appender: Appender

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int,
        codes: TagsCodes | None,
        wait: bool,
    ) -> GetResult:
        """Return messages of a queue; see ``MessageStore.get``."""

    def when_durable(self, end_offset: int, callback: Callable[[Ack], None]) -> None:
        """Call back when messages may be acknowledged; see ``MessageStore.when_durable``."""


class Host:
    """The interface of the broker to the read pass.

    Args:
        state: the state of a broker whose store is open.
        processors: the slow path.
        guard: checks what accounts may do; None: everybody may do everything.

    Attributes:
        guard: see above.
        appender: stores messages.
        packed_host: the broker's address in records.
        cluster: the text of the property CLUSTER, and others that the broker adds to messages.
        max_body: the largest size of a message's body, in bytes.
        found: the templates of answers to pulls with messages, by codec.
        committed: the templates of answers to commits, by codec.
    """

    def __init__(
        self, state: BrokerState, processors: Processors, guard: Guard | None = None
    ) -> None:
        self.guard = guard
        self._state = state
        self._store: FastPathStore = state.store
        self._queues = self._store.queues
        self._reader = self._store.reader
        self._processors = processors
        self._answers = SendAnswers(state.packed_host, answer_fields(state.config))
        self._versions = self._source_versions()
        self.appender = self._store.appender
        self.packed_host = state.packed_host
        self.cluster = added_properties(state.config)
        self.max_body = state.store.config.max_message_size
        self.found = [found_template(codec) for codec in SerializeType]
        self.committed = [make(codec, ResponseCode.SUCCESS) for codec in SerializeType]

    @property
    def stores_v4(self) -> bool:
        """Whether this broker's address is IPv4; the read pass builds no other records."""
        return len(self.packed_host) == HOST_BYTES_V4

    def is_current(self) -> bool:
        """Return whether the existing plans are still valid; False once for each change."""
        versions = self._source_versions()
        if versions == self._versions:
            return True
        self._versions = versions
        return False

    def _source_versions(self) -> tuple[object, ...]:
        state = self._state
        return (
            *(state.topics.data_version, state.groups.data_version, self._queues.removals),
            state.config_version,
            None if self.guard is None else self.guard.file.rules,
        )

    def _may(self, command: Command, connection: Connection) -> bool:
        # For all requests with a plan's key: it has every field that says what they need. The group
        # of a send, which it lacks, is needed only for retry topics, which have no plan.
        return self.guard is None or self.guard.permits(command, connection)

    # sends

    def plan_send(self, codec: int, header: bytes, connection: Connection) -> SendPlan | None:
        """Return the plan for sends with such a header; None if they take the slow path."""
        try:
            command = _command(codec, header)
            fields = read_header(command)
            if fields.sys_flag & TRANSACTION_MASK or fields.sys_flag < 0:
                return None
            if not self._may(command, connection):
                return None
            if not self._processors.send.admits(command, connection, fields):
                return None
        except ProtocolError:
            return None
        queue = self._queues.get((fields.topic, fields.queue_id))
        if queue is None:
            return None
        return SendPlan(
            queue,
            self._answers.of(SerializeType(codec), fields.queue_id),
            flag=fields.flag,
            sys_flag=fields.sys_flag & ~HOSTS_V6_MASK,
            reconsume_times=fields.reconsume_times or 0,
            batch=fields.batch,
            count=self._state.traffic.count(TOPIC_PUT, fields.topic),
            meter=self._processors.quotas.meter_of_sends(command, connection, fields.topic),
        )

    def stored(self, messages: int, body_bytes: int) -> None:
        """Count stored messages."""
        counters = self._state.counters
        counters.messages_sent += messages
        counters.bytes_sent += body_bytes

    def when_durable(self, end: int, callback: Callable[[Ack], None]) -> None:
        """Call back when the log is safe up to ``end``; see ``MessageStore.when_durable``."""
        self._store.when_durable(end, callback)

    # commits

    def plan_commit(
        self, codec: int, header: bytes, connection: Connection
    ) -> tuple[str, str, int] | None:
        """Return group, topic and queue of commits with such a header; None: slow path."""
        try:
            command = _command(codec, header)
            fields = command.read(UpdateConsumerOffsetRequestHeader)
        except ProtocolError:
            return None
        has_queue = self._processors.offsets.has_queue
        if fields.forward or not has_queue(fields.topic, fields.queue_id):
            return None
        if not self._may(command, connection):
            return None
        return sys.intern(fields.consumer_group), sys.intern(fields.topic), fields.queue_id

    def commit(self, plan: tuple[str, str, int], offset: int) -> bool:
        """Store a group's offset; return False if the slow path must refuse it."""
        if self._state.sealed:
            return False
        try:
            self._processors.offsets.commit(*plan, offset)
        except (LimitReached, RequestRefused):
            return False
        return True

    # pulls

    def plan_pull(self, codec: int, header: bytes, connection: Connection) -> PullPlan | None:
        """Return the plan for pulls with such a header; None if they take the slow path."""
        pulls = self._processors.pull
        try:
            command = _command(codec, header)
            fields = command.read(PullMessageRequestHeader)
            if not self._may(command, connection):
                return None
            fields.bname = fields.proxy_froward_client_id = None
            admitted = pulls.admit(HeldPull(_NO_COMMAND, connection, fields))
        except (ProtocolError, RequestRefused, LimitReached):
            return None
        if admitted.records is not None:
            return None
        # Many plans have the same group and topic: keep one copy of each string.
        fields.consumer_group = sys.intern(fields.consumer_group)
        fields.topic = sys.intern(fields.topic)
        key = key_of(fields.topic, fields.consumer_group)
        count = self._state.traffic.count(GROUP_GET, key)
        meter = self._processors.quotas.meter_of_pulls(
            command, connection, fields.topic, fields.consumer_group
        )
        limits = pulls.limits(fields, () if meter is None else meter.allowance)
        account = None if self.guard is None else self.guard.account_of(command, connection)
        return PullPlan(fields, admitted.codes, limits, count, meter, account)

    def begin_pull(
        self, plan: PullPlan, offset: int, commit_offset: int, connection: Connection
    ) -> bool:
        """Update the filter, note the pull and commit its offset, before messages are read.

        Return False if the slow path must refuse the pull, or send the client to another broker.
        """
        state, header = self._state, plan.header
        header.queue_offset, header.commit_offset = offset, commit_offset
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        online = state.consumers.groups.get(group)
        if state.config.slave_read_enable and self._processors.pull.suggested(header, offset):
            return False
        try:
            # A pull without a subscription uses the one of the group's last heartbeat.
            if not header.sys_flag & SUBSCRIPTION and not self._takes_group(
                plan, online, connection
            ):
                return False
            if online is not None:
                online.pulled(topic, queue_id, offset, connection, state.clock.monotonic())
            if header.sys_flag & COMMIT_OFFSET and state.takes_commits:
                self._processors.offsets.commit(group, topic, queue_id, commit_offset)
        except (LimitReached, RequestRefused):
            return False
        return True

    def _takes_group(
        self, plan: PullPlan, online: ConsumerGroup | None, connection: Connection
    ) -> bool:
        """Check the pull again if the subscription in the group's last heartbeat has changed.

        Returns:
            False: the group filters by properties now; the slow path has to serve the pull.
        """
        header = plan.header
        subscription = None if online is None else online.subscriptions.get(header.topic)
        if (
            online is None
            or subscription is None
            or subscription is not plan.subscription
            or online.is_broadcasting
        ):
            held = HeldPull(_NO_COMMAND, connection, header)
            admitted = self._processors.pull.admit(held)
            if admitted.records is not None:
                return False
            plan.decide(admitted.codes, subscription)
        return True

    def window(self, plan: PullPlan) -> EntryWindow | None:
        """Return the entries and records for a pull to choose from; None: use ``pull``."""
        header = plan.header
        return self._reader.window(
            header.topic, header.queue_id, header.queue_offset, plan.max_count
        )

    def may_take(self, window: EntryWindow, scanned: int, begin: int, end: int) -> bool:
        """Return whether messages of an old window may be sent; see ``StoreReader.may_take``."""
        return self._reader.may_take(window, scanned, begin, end)

    def pulled(self, pulls: int, messages: int, size: int) -> None:
        """Count pulls that were answered from windows."""
        # Not by ``counters.pulled``: one file less on the path of a message.
        counters = self._state.counters
        counters.pulls_found += pulls
        counters.messages_pulled += messages
        counters.bytes_pulled += size
        self._reader.took(pulls, messages, size)

    def pull(
        self, codec: int, plan: PullPlan, opaque: int, connection: Connection
    ) -> list[Piece] | None:
        """Run a pull that can't be answered from a window.

        Return the frame of the answer, an empty list if the pull was parked, or None if it takes
        the slow path.
        """
        state, header = self._state, plan.header
        result = self._store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            plan.max_count,
            max_bytes=plan.max_bytes,
            codes=plan.codes,
            wait=False,
        )
        if result.status is GetStatus.COLD:
            return None
        serialize = SerializeType(codec)
        if result.status is GetStatus.FOUND:
            state.counters.pulled(1, result.count, result.size)
            state.traffic.got(header.consumer_group, header.topic, result.count, result.size)
            return self._encode_found(serialize, result, opaque)
        held = HeldPull(
            Command(RequestCode.PULL_MESSAGE, opaque, serialize=serialize),
            connection,
            header.copy(),
            lambda found, number: self._encode_found(serialize, found, number),
            () if plan.meter is None else plan.meter.allowance,
            plan.account,
        )
        pulls = self._processors.pull
        reply = pulls.answer(held, plan.codes, result, suspend=not state.stopping)
        return [] if reply is None else [encode(reply)]

    def _encode_found(self, codec: SerializeType, result: GetResult, opaque: int) -> list[Piece]:
        """Return the frame of an answer with messages."""
        size, records = result.size, result.records
        numbers = result.next_offset, result.min_offset, result.max_offset
        frame = self.found[codec].fill(opaque, *numbers, body_length=size)
        if size < GATHER_BYTES * len(records):
            # Joining small pieces is cheaper than passing each to the socket; large ones are sent
            # without a copy.
            return [b"".join((frame, *records))]
        return [frame, *records]


class FastPathFeed:
    """Passes one connection's reads to the read pass; see ``remoting.endpoint.Feed``.

    Attributes:
        connection: the connection.
        born_host: the packed address of its peer, for records; empty if unknown.
    """

    __slots__ = (
        *("_counters", "_max_frame_bytes", "_now", "_pass", "_until"),
        *("born_host", "connection"),
    )

    def __init__(self, read_pass: ReadPass, connection: Connection) -> None:
        endpoint = connection.endpoint
        self._counters = endpoint.counters
        self._pass = read_pass
        self._max_frame_bytes = endpoint.limits.max_frame_bytes
        self._now = endpoint.clock.monotonic
        self._until = 0.0
        self.connection = connection
        # A peer that has already disconnected has no address; its sends take the slow path.
        self.born_host = host_bytes(*connection.remote) if connection.remote[0] else b""

    def __call__(self, buffer: bytes, position: int) -> int:
        """Handle the frames in the next ``SLICE_BYTES`` of a read; return the new position."""
        read_pass = self._pass
        self._until = self._now() + SLICE_SECONDS
        before = read_pass.frames
        try:
            return read_pass.work(self, buffer, position, position + SLICE_BYTES, self._may_go_on)
        finally:
            self._counters.frames_in += read_pass.frames - before

    def _may_go_on(self) -> bool:
        return self._now() < self._until

    def work_slow(self, buffer: bytes, position: int) -> int:
        """Handle one frame on the slow path.

        Return the position after it, or ``position`` if the frame is incomplete.
        """
        frame = cut(buffer, position, max_frame_bytes=self._max_frame_bytes)
        if frame is None:
            return position
        self.connection.receive(frame)
        return frame.end
