"""What a broker, its topics and its queues hold: codes 26, 28, 45, 202, 208, 303 and 321."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.processors.errors import RequestRefused
from broker.processors.offload import Answer, LargeAnswers, sliced
from broker.rates import Rates
from broker.runtime_info import runtime_info
from broker.state import BrokerState
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.bodies.group import DelayOffsetSerializeWrapper
from remoting.protocol.bodies.stats import (
    ConsumeQueueData,
    ConsumeStats,
    KVTable,
    OffsetWrapper,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import GetBrokerConfigResponseHeader, TopicRequestHeader
from remoting.protocol.headers.query import (
    GetConsumeStatsRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from remoting.connection import Connection


class FigureProcessor:
    """Serves figures."""

    __slots__ = ("_large", "_rates", "_state")

    def __init__(self, state: BrokerState, rates: Rates, large: LargeAnswers) -> None:
        self._large = large
        self._state = state
        self._rates = rates

    def broker_config(self, command: Command, _: Connection) -> Command:
        """GET_BROKER_CONFIG: the settings as properties text."""
        version = encode(self._state.config_version).decode()
        return command.reply(
            header=GetBrokerConfigResponseHeader(version=version),
            body=self._state.config.as_text(),
        )

    def runtime(self, command: Command, _: Connection) -> Command:
        """GET_BROKER_RUNTIME_INFO: the table that administration tools print."""
        return command.reply(body=encode(KVTable(table=runtime_info(self._state, self._rates))))

    def delay_offsets(self, command: Command, _: Connection) -> Command:
        """GET_ALL_DELAY_OFFSET: of each delay level the next message to deliver."""
        table = dict(self._state.delay_offsets)
        return command.reply(body=encode(DelayOffsetSerializeWrapper(offset_table=table)))

    def topic_stats(self, command: Command, connection: Connection) -> Answer:
        """GET_TOPIC_STATS_INFO: what each queue of a topic holds."""
        name = command.read(TopicRequestHeader).topic
        topic = self._state.topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        whole = MapParts(TopicStatsTable())

        def look(queue_ids: Sequence[int]) -> bytes:
            table = {
                self._queue(name, queue_id): self._topic_offset(name, queue_id)
                for queue_id in queue_ids
            }
            return whole.part(TopicStatsTable(offset_table=table))

        slices = [partial(look, ids) for ids in sliced(range(topic.write_queue_nums))]
        return self._large.answer(command, connection, whole, slices)

    def consume_stats(self, command: Command, connection: Connection) -> Answer:
        """GET_CONSUME_STATS: how far a group is in each queue of its topics."""
        header = command.read(GetConsumeStatsRequestHeader)
        queues = [
            (name, queue_id)
            for name in self._topics_of(header)
            if (topic := self._state.topics.get(name)) is not None
            and not self._unsubscribed(header.consumer_group, name)
            for queue_id in range(topic.read_queue_nums)
        ]
        whole = MapParts(ConsumeStats())

        def look(some: Sequence[tuple[str, int]]) -> bytes:
            table = {self._queue(*key): self._progress(header.consumer_group, *key) for key in some}
            return whole.part(ConsumeStats(offset_table=table))

        slices = [partial(look, some) for some in sliced(queues)]
        return self._large.answer(command, connection, whole, slices)

    def _topics_of(self, header: GetConsumeStatsRequestHeader) -> list[str]:
        if header.topic:
            return [header.topic]
        if header.topic_list:
            return [name for name in header.topic_list.split(";") if name]
        return sorted(self._state.offsets.topics_of(header.consumer_group))

    def _unsubscribed(self, group: str, topic: str) -> bool:
        """Whether a group is online and wants none of a topic that it once consumed."""
        online = self._state.consumers.groups.get(group)
        return (
            online is not None
            and bool(online.subscriptions)
            and (topic not in online.subscriptions)
        )

    def _progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store = self._state.store
        consumed = max(self._state.offsets.query(group, topic, queue_id), 0)
        last_ms = store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else 0
        return OffsetWrapper(
            broker_offset=store.max_offset(topic, queue_id),
            consumer_offset=consumed,
            last_timestamp=max(last_ms, 0),
        )

    def _topic_offset(self, topic: str, queue_id: int) -> TopicOffset:
        store = self._state.store
        end = store.max_offset(topic, queue_id)
        last_ms = store.store_time_at(topic, queue_id, end - 1) if end > 0 else 0
        return TopicOffset(
            min_offset=max(store.min_offset(topic, queue_id), 0),
            max_offset=end,
            last_update_timestamp=max(last_ms, 0),
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._state.config.broker_name, queue_id)


MAX_ENTRIES: Final = 4096
"""Entries in an answer, some 250 KB of JSON; RocketMQ gives as many as a file of the queue has."""

_REMARK: Final = "not set any response code"
"""What RocketMQ forgets to take out of its answer to 321."""

_NO_FILTER: Final = "null"
"""Filter data of a subscription by tags, which has none."""


class QueueLookProcessor:
    """Serves looks into queues."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def time_span(self, command: Command, _: Connection) -> Command:
        """QUERY_CONSUME_TIME_SPAN: when messages were stored, and how far a group has come."""
        header = command.read(QueryConsumeTimeSpanRequestHeader)
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        spans = [
            self._span(header.topic, queue_id, header.group)
            for queue_id in range(topic.write_queue_nums)
        ]
        return command.reply(body=encode(QueryConsumeTimeSpanBody(consume_time_span_set=spans)))

    def _span(self, topic: str, queue_id: int, group: str) -> QueueTimeSpan:
        """Of a group without an offset RocketMQ says that it waits since 1970; ours since the first
        message."""
        state = self._state
        store = state.store
        consumed = state.offsets.query(group, topic, queue_id)
        end = store.max_offset(topic, queue_id)
        first_ms = store.earliest_store_time(topic, queue_id)
        last_ms = store.store_time_at(topic, queue_id, end - 1)
        consumed_ms = first_ms
        if consumed > 0:
            consumed_ms = store.store_time_at(topic, queue_id, consumed - 1)
        delay_ms = 0
        waiting = max(consumed, store.min_offset(topic, queue_id))
        if waiting < end:
            delay_ms = state.clock.now_ms() - store.store_time_at(topic, queue_id, waiting)
        return QueueTimeSpan(
            message_queue=MessageQueue(topic, state.config.broker_name, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=consumed_ms,
            delay_time=delay_ms,
            min_time_stamp_str=_local_time(first_ms),
            max_time_stamp_str=_local_time(last_ms),
            consume_time_stamp_str=_local_time(consumed_ms),
        )

    async def entries(self, command: Command, connection: Connection) -> Command:
        """QUERY_CONSUME_QUEUE: entries of a queue as they are, up to the end of their file."""
        header = command.read(QueryConsumeQueueRequestHeader)
        topic, queue_id = header.topic or "", header.queue_id or 0
        index, count = header.index or 0, min(header.count or 0, MAX_ENTRIES)
        store = self._state.store
        if queue_id not in store.queue_ids(topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        rows = []
        if count > 0:
            rows = await store.entries(connection, topic, queue_id, index, count)
        body = QueryConsumeQueueResponseBody(
            queue_data=[ConsumeQueueData(*row) for row in rows] or None,
            max_queue_index=store.max_offset(topic, queue_id),
            min_queue_index=store.min_offset(topic, queue_id),
        )
        self._add_subscription(body, header.consumer_group, topic)
        remark = _REMARK if rows else f"Index {index} of {queue_id}@{topic} is not exist!"
        return command.reply(remark=remark, body=encode(body))

    def _add_subscription(
        self, body: QueryConsumeQueueResponseBody, group: str | None, topic: str
    ) -> None:
        if group is None:
            return
        online = self._state.consumers.groups.get(group)
        body.subscription_data = None if online is None else online.subscriptions.get(topic)
        body.filter_data = _NO_FILTER
        if body.subscription_data is None:
            body.filter_data = f"{group}@{topic} is not online!"


def _local_time(timestamp_ms: int) -> str:
    """As RocketMQ writes it (cf. UtilAll.timeMillisToHumanString)."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{milliseconds:03d}"
