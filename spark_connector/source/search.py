"""Searches for messages by store time and by key, and samples of their sizes.

A broker's search by time returns an offset near the requested one; how near differs between
versions. From there messages are read until the exact offset is found
(cf. ConsumeQueue.getOffsetInQueueByTime).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from client.limits import MAX_TIME_WALK
from client.network.routes import Route
from client.wire.offsets import (
    WALK_MESSAGES,
    RecordPage,
    pull_header,
    read_page,
    search_header,
)
from client.wire.pull_answer import PULL_ANSWERS
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.pull import (
    OffsetResponseHeader,
)
from remoting.protocol.headers.query import QueryMessageRequestHeader, QueryMessageResponseHeader
from remoting.protocol.message.view import iter_records
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import UnknownTopicError
from spark_connector.requests import request, understand
from spark_connector.source.brokers import Brokers, addresses_of

KEY_MATCHES: Final = 32
"""Messages requested from an index (cf. MessageStoreConfig.defaultQueryMaxNum; a broker returns at
most maxMsgsNumBatch, 64). A result of this many may be incomplete."""

_ANY_INDEX: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.QUERY_NOT_FOUND),
        int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        int(ResponseCode.SYSTEM_ERROR),
    }
)
"""Response codes to a query by key; after any but success the queues are read instead."""


class KeyMatches(NamedTuple):
    """The messages with a key in a broker's index.

    Attributes:
        offsets: queue and offset of each message.
        indexed_until_ms: messages stored after this time may not be in the index yet.
    """

    offsets: list[tuple[MessageQueue, int]]
    indexed_until_ms: int


class MessageSearch:
    """Searches in the queues of some routes; implements ``resolve.OffsetLookup``.

    Args:
        brokers: sends the requests.
        routes: the routes of the topics.
        group: the consumer group named in pulls, whose committed offsets are looked up.
    """

    def __init__(self, brokers: Brokers, routes: Mapping[str, Route], group: str) -> None:
        self._brokers = brokers
        self._routes = routes
        self._group = group
        self._committed: dict[MessageQueue, int | None] = {}

    def at_or_after(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end."""
        # Of several messages of one millisecond a 4.9 broker finds any: search 1 ms earlier.
        offset = self._search(queue, max(0, timestamp_ms - 1))
        for _ in range(MAX_TIME_WALK // WALK_MESSAGES):
            records, following = self._page(queue, offset)
            for record in records:
                if record.store_timestamp_ms >= timestamp_ms:
                    return record.queue_offset
            if not records and following == offset:
                break
            offset = following
        return offset

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None.

        The offsets of all queues of a topic are requested together, and cached.
        """
        if queue not in self._committed:
            queues = self._routes[queue.topic].readable
            self._committed |= self._brokers.committed(self._routes, self._group, queues)
        return self._committed.get(queue)

    def mean_size(self, queue: MessageQueue, offset: int) -> float | None:
        """Return the average stored size of some messages from an offset on, in bytes, or None."""
        records, _ = self._page(queue, offset)
        return sum(record.size for record in records) / len(records) if records else None

    def stored_ms(self, queue: MessageQueue, offset: int) -> int | None:
        """Return when the message at an offset was stored, in ms since 1970, or None."""
        records, _ = self._page(queue, offset)
        for record in records:
            if record.queue_offset == offset:
                return record.store_timestamp_ms
        return None

    def by_key(self, topic: str, key: str) -> dict[str, KeyMatches | None]:
        """Return the messages with a key in each broker's index, or None if it can't be used.

        The latter is the case if a broker doesn't support the request, if it has no match (its
        index may be switched off), or if it has so many matches that there may be more.
        """
        route = self._routes[topic]
        return {
            name: self._index(name, address, topic, key)
            for name in sorted(route.brokers)
            if (address := route.address(name)) is not None
        }

    def _index(self, broker: str, address: str, topic: str, key: str) -> KeyMatches | None:
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=KEY_MATCHES, begin_timestamp=0, end_timestamp=2**62
        )
        answer = self._brokers.calls.one(
            address,
            request(RequestCode.QUERY_MESSAGE, header),
            f"messages of topic {topic} by key",
            accept=_ANY_INDEX,
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        fresh = understand(address, answer.read, QueryMessageResponseHeader)
        records = understand(address, list, iter_records(answer.body))
        if not records or len(records) >= KEY_MATCHES:
            return None
        return KeyMatches(
            [
                (MessageQueue(topic, broker, record.queue_id), record.queue_offset)
                for record in records
                if record.topic == topic
            ],
            fresh.index_last_update_timestamp,
        )

    def _search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        address = self._address(queue)
        header = search_header(queue, timestamp_ms)
        answer = self._brokers.calls.one(
            address,
            request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header),
            f"an offset of queue {queue} by time",
        )
        return max(0, understand(address, answer.read, OffsetResponseHeader).offset)

    def _page(self, queue: MessageQueue, offset: int) -> RecordPage:
        """Return some messages from an offset on, and the offset after them."""
        address = self._address(queue)
        header = pull_header(queue, self._group, offset, messages=WALK_MESSAGES)
        answer = self._brokers.calls.one(
            address,
            request(RequestCode.PULL_MESSAGE, header),
            f"messages of queue {queue}",
            accept=PULL_ANSWERS,
        )
        return understand(address, read_page, answer, offset)

    def _address(self, queue: MessageQueue) -> str:
        addresses = addresses_of(self._routes, queue)
        if not addresses:
            raise UnknownTopicError(
                f"the broker of queue {queue} is not registered at any name server",
                "check that it runs and registers",
            )
        return addresses[0]
