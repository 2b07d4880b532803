"""What a broker and its topics and groups hold: codes 26, 28, 45, 202 and 208."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker.errors import Refused
from broker.processors.large_answers import LargeAnswers, sliced
from broker.processors.patience import Answer
from broker.rates import Rates
from broker.runtime_info import runtime_info
from broker.state import BrokerState
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.bodies.group import DelayOffsetSerializeWrapper
from remoting.protocol.bodies.stats import (
    ConsumeStats,
    KVTable,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import GetBrokerConfigResponseHeader
from remoting.protocol.headers.query import (
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
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
        name = command.read(GetTopicStatsInfoRequestHeader).topic
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
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
