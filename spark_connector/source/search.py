"""Finding messages before they are read: by time, by key, and how large they are.

A broker's search by time gives an offset near the wanted one, by rules that differ between
versions; from there this walks on to the exact one (cf. ConsumeQueue.getOffsetInQueueByTime).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from client.limits import MAX_TIME_WALK
from client.routes import Route
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
from remoting.protocol.message.tags import SUBSCRIBE_ALL
from remoting.protocol.message.view import iter_records
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import UnknownTopicError
from spark_connector.requests import request, understand
from spark_connector.source.brokers import Brokers, addresses_of

KEY_MATCHES: Final = 32
"""Messages an index is asked for; a broker gives 64 at most, and who gives this many may have more
(cf. MessageStoreConfig.defaultQueryMaxNum)."""

_ANY_INDEX: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.QUERY_NOT_FOUND),
        int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        int(ResponseCode.SYSTEM_ERROR),
    }
)
"""A broker without an index is read instead."""


class KeyMatches(NamedTuple):
    """What a broker's index has for a key.

    Attributes:
        offsets: the messages' queues and offsets.
        indexed_until_ms: messages stored later may not be in the index yet.
    """

    offsets: list[tuple[MessageQueue, int]]
    indexed_until_ms: int


class MessageSearch:
    """Searches in the queues of known routes; the ``Questions`` of ``planning.positions``.

    Args:
        brokers: whom to ask.
        routes: of the topics.
        group: named by pulls, and the one whose offsets are looked up.
    """

    def __init__(self, brokers: Brokers, routes: Mapping[str, Route], group: str) -> None:
        self._brokers = brokers
        self._routes = routes
        self._group = group
        self._committed: dict[MessageQueue, int | None] = {}

    def at_or_after(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time; the queue's end for none."""
        # Of several messages of one millisecond a 4.9 broker finds any: begin one before.
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
        """How far the group has come. One question per broker answers for all its queues."""
        if queue not in self._committed:
            queues = self._routes[queue.topic].readable
            self._committed |= self._brokers.committed(self._routes, self._group, queues)
        return self._committed.get(queue)

    def mean_size(self, queue: MessageQueue, offset: int) -> float | None:
        """The average stored size, in bytes, of some messages; None: there are none."""
        records, _ = self._page(queue, offset)
        return sum(record.size for record in records) / len(records) if records else None

    def by_key(self, topic: str, key: str) -> dict[str, KeyMatches | None]:
        """What each broker's index has for a key; None where it can't be relied on.

        That is where a broker serves no such question, has no match at all, as one whose index is
        switched off, or so many that there may be more.
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
        """Some messages from an offset on, and where the next ones begin."""
        address = self._address(queue)
        header = pull_header(
            queue,
            self._group,
            offset,
            messages=WALK_MESSAGES,
            suspend_ms=0,
            expression=SUBSCRIBE_ALL,
        )
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
                f"no name server knows the broker of queue {queue}",
                "check that it runs and registers",
            )
        return addresses[0]
