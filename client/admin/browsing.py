"""Reading a topic by pages, in the order of store times, without a group's offsets.

The queues are merged by the store times of their next messages. Nothing is kept between two pages:
the cursor of a page has the place of each queue.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from client.admin.base import AdminBase, asked_queues, gathered
from client.admin.messages import FoundMessage, received
from client.consumer.options import Wanted, expression_of
from client.errors import NoRoute, PocketMQError, UsageError
from client.positions import BEGIN, Place, Position, instant, milliseconds
from client.wire.offsets import WALK_MESSAGES
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import TOOLS_CONSUMER_GROUP
from remoting.protocol.queue import MessageQueue

SCAN_LIMIT: Final = 10_000
"""Messages that one page looks at, unless the caller says otherwise."""

_AT_ONCE: Final = 8
"""Queues asked at the same time."""

_PART: Final = re.compile(r"([^~,]+)~(\d{1,10})~(begin|end|-?\d{1,19}|@-?\d{1,15})", re.ASCII)
"""A queue's part of a cursor: its next offset or, while its broker is down, where to begin."""


class BrowsePage(NamedTuple):
    """Some messages of a topic.

    Attributes:
        messages: in the order of their store times.
        cursor: where the next page begins, as text: pass it as ``start``. Also after the last
            page: then it has the messages that arrive later.
        complete: whether the end of each queue was reached.
        scanned: the messages that were looked at, including those that the filter left out.
        unreachable: why brokers didn't answer, by their names; their queues keep their places.
    """

    messages: list[FoundMessage]
    cursor: str
    complete: bool
    scanned: int
    unreachable: dict[str, PocketMQError]


class _QueueWalk:
    """A queue: ``place`` is the next message, and what comes from ``fetched`` on isn't read yet."""

    def __init__(self, queue: MessageQueue, place: int) -> None:
        self.queue = queue
        self.place = self.fetched = place
        self.records: deque[RecordView] = deque()
        self.ended = False


class BrowsingAdmin(AdminBase):
    """The part of ``Admin`` that reads topics."""

    async def browse(
        self,
        topic: str,
        start: Position | str = BEGIN,
        *,
        limit: int = 100,
        scan_limit: int = SCAN_LIMIT,
        tags: Wanted = "*",
        queues: Collection[MessageQueue] | None = None,
    ) -> BrowsePage:
        """Return a page of a topic's messages. It commits nothing, and no group is involved.

        The order goes on from page to page, except after a page that ``scan_limit`` ended.

        Args:
            start: the cursor of the page before. Or a position: an end, a time, an offset of each
                queue; a negative number: that many messages before each queue's end.
            limit: the most messages of the page.
            scan_limit: the most messages that brokers look at; with a filter, the last request may
                exceed it.
            tags: which messages, as in ``subscribe=``.
            queues: only these queues; by default all readable ones. A cursor has its own.

        Raises:
            UsageError: ``start`` is no position and no cursor, or a queue doesn't exist.
        """
        if min(limit, scan_limit) < 1:
            raise UsageError("limit and scan_limit have to be 1 or more", topic=topic)
        wanted = expression_of(tags, TOOLS_CONSUMER_GROUP, topic)
        failures: dict[str, PocketMQError] = {}
        walks, unplaced = await self._walks(topic, start, queues, failures)
        found: list[FoundMessage] = []
        heads: list[tuple[int, MessageQueue, _QueueWalk]] = []
        scanned, dry = 0, list(walks)
        while len(found) < limit:
            if dry and scanned < scan_limit:
                # With a filter, one request may look at thousands of messages.
                count = _AT_ONCE if wanted.is_all else 1
                asked, dry = dry[:count], dry[count:]
                size = min(limit, WALK_MESSAGES, max(1, (scan_limit - scanned) // len(asked)))
                scanned += await self._fetch(asked, wanted, size, failures)
                for walk in asked:
                    if walk.records:
                        heapq.heappush(heads, _head(walk))
                    elif not walk.ended and walk.queue.broker_name not in failures:
                        dry.append(walk)
            elif heads:
                walk = heapq.heappop(heads)[2]
                record = walk.records.popleft()
                found.append(received(record, walk.queue.broker_name))
                walk.place = record.queue_offset + 1
                if walk.records:
                    heapq.heappush(heads, _head(walk))
                else:
                    walk.place = walk.fetched
                    if not walk.ended:
                        dry.append(walk)
            else:
                break
        if failures and all(walk.queue.broker_name in failures for walk in walks):
            raise next(iter(failures.values()))
        complete = not failures and all(walk.ended and not walk.records for walk in walks)
        # Those that had no turn come first in the next page.
        waiting = set(dry)
        order = [*dry, *(walk for walk in walks if walk not in waiting)]
        places = {walk.queue: walk.place for walk in order} | unplaced
        cursor = ",".join(_part(queue, place) for queue, place in places.items())
        return BrowsePage(found, cursor, complete, scanned, failures)

    async def _walks(
        self,
        topic: str,
        start: Position | str,
        queues: Collection[MessageQueue] | None,
        failures: dict[str, PocketMQError],
    ) -> tuple[list[_QueueWalk], dict[MessageQueue, Position]]:
        """Return the queues at their places, and the rest: those whose brokers are down."""
        route = await self._routes.fresh(topic)
        readable, asked = route.readable, set(asked_queues(route))
        if isinstance(start, str):
            wanted = _parsed(topic, start)
        else:
            wanted = dict.fromkeys(readable if queues is None else queues, start)
            if unknown := wanted.keys() - set(readable):
                raise UsageError(
                    "there is no such queue", queue=min(unknown), hint="see `pocketmq topic status`"
                )
        # A queue that its broker no longer has is over, but a broker may come back.
        brokers = {queue.broker_name for queue in asked}
        gone = [queue for queue in wanted if queue.broker_name not in brokers]
        why = "its broker isn't registered or doesn't answer"
        failures |= {queue.broker_name: NoRoute(why, queue=queue) for queue in gone}
        places, failed = await gathered(
            {queue: self._place(queue, wanted[queue]) for queue in wanted if queue in asked}
        )
        failures |= {queue.broker_name: error for queue, error in failed.items()}
        walks = [_QueueWalk(queue, place) for queue, place in places.items()]
        return walks, {queue: wanted[queue] for queue in [*gone, *failed]}

    async def _place(self, queue: MessageQueue, start: Position) -> int:
        if type(start) is int and start < 0:
            begin, end = await asyncio.gather(
                self._offsets.minimum(queue), self._offsets.maximum(queue)
            )
            return max(begin, end + start)
        return await self._offsets.find(queue, start, TOOLS_CONSUMER_GROUP)

    async def _fetch(
        self,
        walks: Sequence[_QueueWalk],
        wanted: TagExpression,
        messages: int,
        failures: dict[str, PocketMQError],
    ) -> int:
        """Read on in queues of which nothing is left; return how many messages were looked at."""
        pages, failed = await gathered(
            {
                walk: self._offsets.page(
                    walk.queue, TOOLS_CONSUMER_GROUP, walk.fetched, messages, wanted
                )
                for walk in walks
            }
        )
        failures |= {walk.queue.broker_name: error for walk, error in failed.items()}
        scanned = 0
        for walk, page in pages.items():
            scanned += max(0, page.next_offset - walk.fetched)
            walk.ended = not page.records and page.next_offset <= walk.fetched
            walk.fetched = page.next_offset
            # Brokers choose by hashes of tags.
            walk.records.extend(one for one in page.records if wanted.matches(one.tags))
            if not walk.records:
                walk.place = walk.fetched
        return scanned


def _head(walk: _QueueWalk) -> tuple[int, MessageQueue, _QueueWalk]:
    return walk.records[0].store_timestamp_ms, walk.queue, walk


def _part(queue: MessageQueue, place: Position) -> str:
    if isinstance(place, Place):
        text = place.value
    else:
        text = str(place) if isinstance(place, int) else f"@{milliseconds(place)}"
    return f"{queue.broker_name}~{queue.queue_id}~{text}"


def _parsed(topic: str, cursor: str) -> dict[MessageQueue, Position]:
    parts = [_PART.fullmatch(part) for part in cursor.split(",")]
    places = {
        MessageQueue(topic, part[1], int(part[2])): _position(part[3]) for part in parts if part
    }
    if not cursor or len(places) < len(parts) or None in places.values():
        raise UsageError(
            f"{cursor[:100]!r} is no cursor of a page", topic=topic, hint="begin anew without it"
        )
    return {queue: place for queue, place in places.items() if place is not None}


def _position(text: str) -> Position | None:
    if text in {"begin", "end"}:
        return Place(text)
    return instant(int(text[1:])) if text.startswith("@") else int(text)
