"""Consumer offsets, queue bounds and queue locks: codes 14, 15, 29 to 32, 41 to 43, 308."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker.errors import (
    FAQ,
    RequestRefused,
    check_broker_name,
    check_client_id,
    check_group,
    check_topic,
)
from broker.group_monitor import GroupMonitor
from broker.groups.health import went_backwards
from broker.processors.offload import SLICE_ENTRIES, Answer, Offload, sliced_by_size
from broker.state import BrokerState
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    LockBatchResponseBody,
    QueryCorrectionOffsetBody,
    read_lock_request,
)
from remoting.protocol.bodies.topic import DataVersion
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import (
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.own_codes import TAKE_LOCKS
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from remoting.connection import Connection


_NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class OffsetProcessor:
    """Handles requests for offsets and queue locks."""

    __slots__ = ("_monitor", "_offload", "_state")

    def __init__(self, state: BrokerState, monitor: GroupMonitor, offload: Offload) -> None:
        self._offload = offload
        self._state = state
        self._monitor = monitor

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store a group's offset, even a lower one, which is counted and reported.

        Raises:
            LimitReached: the table of offsets is full.
            RequestRefused: the name of the topic or group is invalid.
        """
        try:
            before = self._state.offsets.commit(group, topic, queue_id, offset)
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if before is None:
            return
        self._state.counters.commits_backwards += 1
        self._monitor.happened(
            group,
            went_backwards(group, topic, queue_id, before, offset),
            stored=before,
            committed=offset,
        )

    def maximum(self, command: Command, _: Connection) -> Command:
        """Handle GET_MAX_OFFSET: return the offset that the next message will have."""
        header = command.read(GetMaxOffsetRequestHeader)
        offset = self._state.store.queries.max_offset(header.topic, header.queue_id)
        return command.reply(header=OffsetResponseHeader(offset=offset))

    def update(self, command: Command, _: Connection) -> Command:
        """Handle UPDATE_CONSUMER_OFFSET: store any offset of a topic that exists, as 5.3.3 does.

        Consumers commit their last offsets in a topic that was deleted while they read it. RocketMQ
        also stores those of queues that the topic has never had, until its memory is full.
        """
        header = command.read(UpdateConsumerOffsetRequestHeader)
        if header.topic not in self._state.topics:
            check_topic(header.topic)
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist! {FAQ}"
            )
        if not self.has_queue(header.topic, header.queue_id):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic {header.topic} has no queue {header.queue_id}: commit in one that it has,"
                " or give it more",
            )
        key = header.consumer_group, header.topic, header.queue_id
        if not header.forward or self._state.offsets.query(*key) < header.commit_offset:
            self.commit(*key, header.commit_offset)
        return command.reply()

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a topic has a queue, or had it before it was given fewer."""
        config = self._state.topics.get(topic)
        return config is not None and (
            0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)
            or self._state.store.queues.get((topic, queue_id)) is not None
        )

    def query(self, command: Command, _: Connection) -> Command:
        """Handle QUERY_CONSUMER_OFFSET: return a group's offset in a queue.

        A group without an offset starts at 0 if the queue's first message is still in memory.
        Otherwise the answer is QUERY_NOT_FOUND, and the client decides where to start.
        """
        header = command.read(QueryConsumerOffsetRequestHeader)
        stored = self._state.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if stored >= 0:
            return command.reply(header=OffsetResponseHeader(offset=stored))
        store, percent = self._state.store, self._state.config.access_message_in_memory_max_ratio
        if (
            header.set_zero_if_not_found is not False
            and store.queries.min_offset(header.topic, header.queue_id) <= 0
            and store.queries.is_offset_in_memory(header.topic, header.queue_id, 0, percent)
        ):
            return command.reply(header=OffsetResponseHeader(offset=0))
        return command.reply(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)

    def search(self, command: Command, _: Connection) -> Command:
        """Handle SEARCH_OFFSET_BY_TIMESTAMP: return the message stored nearest to a time."""
        header = command.read(SearchOffsetRequestHeader)
        queries = self._state.store.queries
        offset = queries.offset_by_time(
            header.topic, header.queue_id, header.timestamp, (header.boundary_type or "").upper()
        )
        return command.reply(header=OffsetResponseHeader(offset=offset))

    def minimum(self, command: Command, _: Connection) -> Command:
        """Handle GET_MIN_OFFSET: return the first offset that isn't deleted."""
        header = command.read(QueueRequestHeader)
        offset = self._state.store.queries.min_offset(header.topic, header.queue_id)
        return command.reply(header=OffsetResponseHeader(offset=offset))

    def earliest(self, command: Command, _: Connection) -> Command:
        """Handle GET_EARLIEST_MSG_STORETIME: that of a queue's first message, or -1."""
        header = command.read(QueueRequestHeader)
        stored_ms = self._state.store.queries.earliest_store_time(header.topic, header.queue_id)
        return command.reply(header=GetEarliestMsgStoretimeResponseHeader(timestamp=stored_ms))

    def all_offsets(self, command: Command, connection: Connection) -> Answer:
        """Handle GET_ALL_CONSUMER_OFFSET: return the whole table, for slaves."""
        table = self._state.offsets.table
        # Without a version, slaves of 5.x fail after they have put the offsets into their memory
        # (cf. SlaveSynchronize.syncConsumerOffset).
        version = DataVersion(self._state.started_ms, self._state.offsets.version)

        def body_of(keys: Sequence[str]) -> ConsumerOffsetSerializeWrapper:
            # Groups may have been deleted since the slices were made.
            offsets = {key: table[key] for key in keys if key in table}
            return ConsumerOffsetSerializeWrapper(offsets, version)

        slices = sliced_by_size((key, len(queues)) for key, queues in table.items())
        return self._offload.answer(command, connection, slices, body_of)

    def correction(self, command: Command, _: Connection) -> Command:
        """Handle QUERY_CORRECTION_OFFSET: return a topic's lowest offsets among all groups.

        As in RocketMQ, offsets of deleted messages don't count, and ``compareGroup`` changes
        nothing: RocketMQ looks it up as a topic and finds none. RocketMQ also deletes the offsets
        of ``filterGroups`` from its table; here these groups are only left out.
        """
        header = command.read(QueryCorrectionOffsetHeader)
        state, topic = self._state, header.topic
        groups = state.offsets.groups_of(topic) - set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group in groups:
            for queue_id, offset in state.offsets.queues_of(group, topic).items():
                if offset >= state.store.queries.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return command.reply(body=encode(QueryCorrectionOffsetBody(lowest)))

    # queue locks

    def lock(self, command: Command, connection: Connection) -> Answer:
        """Handle LOCK_BATCH_MQ: take or refresh locks; return the queues that the client holds."""
        group, client_id, parts = read_lock_request(command.body, SLICE_ENTRIES)
        check_group(group)
        check_client_id(client_id)
        by_force = command.fields.get(TAKE_LOCKS) == "true"

        def lock(some: Sequence[Callable[[], list[MessageQueue]]]) -> LockBatchResponseBody:
            queues = [queue for read in some for queue in read()]
            for queue in queues:
                check_topic(queue.topic)
                check_broker_name(queue.broker_name)
            now_ms = self._state.monotonic_ms
            held = self._state.locks.lock(group, client_id, queues, now_ms, by_force=by_force)
            return LockBatchResponseBody(lock_ok_mq_set=held)

        slices = [[part] for part in parts]
        return self._offload.answer(command, connection, slices, lock, brackets=b"[]")

    async def unlock(self, command: Command, _: Connection) -> Command:
        """Handle UNLOCK_BATCH_MQ: release locks, also of a client that is gone by now."""
        group, client_id, parts = read_lock_request(command.body, SLICE_ENTRIES)
        for number, read in enumerate(parts):
            if number:
                await asyncio.sleep(0)
            self._state.locks.unlock(group, client_id, read())
        return command.reply()
