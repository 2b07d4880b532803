"""Queries for messages by key (code 12) and physical offset (33), and for queues (303 and 321).

A message found by the index is checked before it is sent, because hashes of keys collide, and after
a crash the index may have entries of messages that were lost. RocketMQ leaves both to the client.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from broker.errors import RequestRefused
from broker.processors.offload import Answer, Offload, sliced
from broker.state import BrokerState
from broker.store.index_keys import keys_in
from broker.store.limits import MAX_KEY_CANDIDATES, MAX_KEY_MESSAGES
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.stats import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import (
    UNIQUE_KEY_QUERY,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from remoting.protocol.message.view import RecordView

if TYPE_CHECKING:
    from remoting.connection import Connection

FOUND_BY_UNIQUE_KEY: Final = 32
"""The most messages in an answer to a query for a unique id (``defaultQueryMaxNum``)."""

_WHOLE_SECOND_MS: Final = 999
_NOT_FOUND: Final = "can not find message, maybe time range not correct"

MAX_ENTRIES: Final = 4096
"""Queue entries in one answer, about 250 KB of JSON; RocketMQ's limit is one queue file."""

_REMARK: Final = "not set any response code"
"""The remark in RocketMQ's successful answers to 321, where it isn't replaced."""

_NO_FILTER: Final = "null"
"""The filter data of a subscription by tags, which has none."""


class QueryProcessor:
    """Handles queries for messages and queue entries."""

    __slots__ = ("_offload", "_state")

    def __init__(self, state: BrokerState, offload: Offload) -> None:
        self._state = state
        self._offload = offload

    async def by_key(self, command: Command, connection: Connection) -> Command:
        """Handle QUERY_MESSAGE: return a topic's newest messages with a key, in log order."""
        header = command.read(QueryMessageRequestHeader)
        max_count = min(header.max_num, MAX_KEY_MESSAGES)
        if command.fields.get(UNIQUE_KEY_QUERY) == "true":
            max_count = FOUND_BY_UNIQUE_KEY
        matches = await self._state.store.index.find(
            header.topic,
            header.key,
            max_count=MAX_KEY_CANDIDATES,
            # Index entries have a resolution of 1 s. ``_matches`` checks the exact time.
            begin_ms=header.begin_timestamp - _WHOLE_SECOND_MS,
            end_ms=header.end_timestamp,
        )
        records: list[RecordView] = []
        room = self._state.config.limits.query_bytes
        for offset in matches.offsets:
            if len(records) >= max_count:
                break
            record = await self._record(connection, offset)
            if record is None or not _matches(record, header):
                continue
            room -= record.size
            if room < 0 and records:
                break
            records.append(record)
        if not records:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND,
                _NOT_FOUND,
                header=QueryMessageResponseHeader(
                    index_last_update_timestamp=0, index_last_update_phyoffset=0
                ),
            )
        records.sort(key=lambda one: one.physical_offset)
        return command.reply(
            header=QueryMessageResponseHeader(
                index_last_update_timestamp=matches.end_ms,
                index_last_update_phyoffset=matches.end_offset,
            ),
            body=b"".join([record.raw for record in records]),
        )

    async def by_id(self, command: Command, connection: Connection) -> Command:
        """Handle VIEW_MESSAGE_BY_ID: return the message at a physical offset."""
        header = command.read(ViewMessageRequestHeader)
        record = await self._record(connection, header.offset)
        if record is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        return command.reply(body=bytes(record.raw))

    async def _record(self, connection: Connection, physical_offset: int) -> RecordView | None:
        """Return the valid message at an offset, or None; with SYNC_FLUSH only if on disk."""
        record = await self._state.record_at(connection, physical_offset)
        visible_end = self._state.store.syncer.visible_end
        return None if record is None or physical_offset + record.size > visible_end else record

    # queues

    def time_span(self, command: Command, connection: Connection) -> Answer:
        """Handle QUERY_CONSUME_TIME_SPAN: return the store times and a group's progress."""
        header = command.read(QueryConsumeTimeSpanRequestHeader)
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        return self._offload.answer(
            command,
            connection,
            sliced(range(topic.write_queue_nums)),
            lambda ids: QueryConsumeTimeSpanBody(
                consume_time_span_set=[
                    self._span(header.topic, queue_id, header.group) for queue_id in ids
                ]
            ),
            brackets=b"[]",
        )

    def _span(self, topic: str, queue_id: int, group: str) -> QueueTimeSpan:
        """Return the times of one queue.

        For a group without an offset RocketMQ reports a delay since 1970; PocketMQ reports the
        delay since the first message.
        """
        state = self._state
        store = state.store
        consumed = state.offsets.query(group, topic, queue_id)
        end = store.queries.max_offset(topic, queue_id)
        first_ms = store.queries.earliest_store_time(topic, queue_id)
        last_ms = store.queries.store_time_at(topic, queue_id, end - 1)
        consumed_ms = first_ms
        if consumed > 0:
            consumed_ms = store.queries.store_time_at(topic, queue_id, consumed - 1)
        delay_ms = 0
        waiting = max(consumed, store.queries.min_offset(topic, queue_id))
        if waiting < end:
            delay_ms = state.clock.now_ms() - store.queries.store_time_at(topic, queue_id, waiting)
        return QueueTimeSpan(
            message_queue=state.message_queue(topic, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=consumed_ms,
            delay_time=delay_ms,
            min_time_stamp_str=_local_time(first_ms),
            max_time_stamp_str=_local_time(last_ms),
            consume_time_stamp_str=_local_time(consumed_ms),
        )

    async def entries(self, command: Command, connection: Connection) -> Command:
        """Handle QUERY_CONSUME_QUEUE: return raw queue entries, up to the end of their file."""
        header = command.read(QueryConsumeQueueRequestHeader)
        topic, queue_id = header.topic or "", header.queue_id or 0
        index, count = header.index or 0, min(header.count or 0, MAX_ENTRIES)
        store = self._state.store
        if queue_id not in store.queues.queue_ids(topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        rows = []
        if count > 0:
            rows = await store.cold_reads.entries(connection, topic, queue_id, index, count)
        body = QueryConsumeQueueResponseBody(
            queue_data=[ConsumeQueueData(*row) for row in rows] or None,
            max_queue_index=store.queries.max_offset(topic, queue_id),
            min_queue_index=store.queries.min_offset(topic, queue_id),
        )
        group = header.consumer_group
        if group is not None:
            online = self._state.consumers.groups.get(group)
            body.subscription_data = None if online is None else online.subscriptions.get(topic)
            saved = self._state.filters.get(topic, group)
            if body.subscription_data is None:
                body.filter_data = f"{group}@{topic} is not online!"
            elif saved is None:
                body.filter_data = _NO_FILTER
            else:
                body.filter_data = encode(saved.saved(), pretty=True).decode()
        remark = _REMARK if rows else f"Index {index} of {queue_id}@{topic} is not exist!"
        return command.reply(remark=remark, body=encode(body))


def _matches(record: RecordView, header: QueryMessageRequestHeader) -> bool:
    if not header.begin_timestamp <= record.store_timestamp_ms <= header.end_timestamp:
        return False
    keys = (key.decode("utf-8", "replace") for key in keys_in(record.properties_text))
    return record.topic == header.topic and header.key in keys


def _local_time(timestamp_ms: int) -> str:
    """Format a time like RocketMQ (cf. UtilAll.timeMillisToHumanString)."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{milliseconds:03d}"
