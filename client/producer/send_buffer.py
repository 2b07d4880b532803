"""The producer's buffer: accepted, unsettled messages, grouped into lanes and cut into requests.

``add`` and ``offer`` never wait; ``put`` waits for room. Messages for a topic whose route is
not known are kept aside until it is found. In the next event loop iteration, or when a lane's
``linger`` time has passed, the requests that are due are passed to the sender.

A *free* lane (its key is the topic) may have any number of requests in flight, each to any queue;
its messages are spread over the topic's queues. An *ordered* lane (its key is a queue, named
by the application or chosen by sharding key) has one request in flight at a time, so that a retry
can't change the order. Within a lane, messages are sent in the order in which they were accepted.

``flush`` waits for everything accepted before it: each flush begins a new epoch, and unsettled
messages are counted per epoch.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

from client.config import ProducerOptions
from client.errors import BufferFull, PocketMQError, SendError, Unavailable, as_send_error
from client.limits import SPREAD_MESSAGES, WAITING_PER_IN_FLIGHT
from client.message import Receipt
from client.network.context import ClientContext
from client.network.routes import Route, by_sharding_key
from client.producer.columns import (
    ELEMENT_BYTES,
    ID_NAME,
    SHORT_PROPERTIES,
    MessageColumns,
    Preparer,
    check_topic,
    properties_after_id,
    properties_size,
)
from client.producer.room import RoomQueue
from client.producer.sender import DeadlineClock, Sender
from client.serde import Serde, raw
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor

_ROUTE_MARGIN: Final = 0.1
"""Without a route, sends whose time ends within so many seconds of each other fail together."""


class SendLane:
    """The sealed messages waiting under one key, and the number of requests in flight.

    Attributes:
        waiting: sealed columns, in order.
        count, size: messages in ``waiting``, and their size in bytes.
        since: when the lane last became non-empty, in monotonic seconds.
        deadline: the earliest deadline of ``waiting``, or one before it.
        spread: number of queues over which its messages may be distributed.
    """

    __slots__ = ("count", "deadline", "in_flight", "key", "since", "size", "spread", "waiting")

    def __init__(self, key: str | MessageQueue) -> None:
        self.key = key
        self.waiting: deque[MessageColumns] = deque()
        self.count = 0
        self.size = 0
        self.since = 0.0
        self.deadline = math.inf
        self.in_flight = 0
        self.spread = 1

    @property
    def ordered(self) -> bool:
        """Whether at most one request may be in flight."""
        return isinstance(self.key, MessageQueue)


class SendLanes:
    """All lanes of one producer; decides which messages are sent together, and when.

    A lane is due when ``linger`` seconds have passed since it became non-empty, or when it has a
    full batch. With ``linger`` 0 it is due at once, and the owner calls ``take`` once per event
    loop iteration.

    Args:
        linger: seconds for which a message may wait for others.
        max_batch_messages, max_batch_bytes: upper bounds of one request.
    """

    def __init__(self, *, linger: float, max_batch_messages: int, max_batch_bytes: int) -> None:
        self._linger = linger
        self._max_batch_messages = max_batch_messages
        self._max_batch_bytes = max_batch_bytes
        self._lanes: dict[str | MessageQueue, SendLane] = {}
        self._busy: dict[str | MessageQueue, SendLane] = {}

    @property
    def waiting(self) -> bool:
        """Whether any message has not been passed to the sender yet."""
        return bool(self._busy)

    def add(self, columns: MessageColumns, now: float) -> bool:
        """Queue sealed messages at ``now`` (monotonic seconds).

        Returns:
            Whether a full batch can be sent now.
        """
        lane = self._busy.get(columns.lane)
        if lane is None:
            lane = self._lanes.get(columns.lane)
            if lane is None:
                lane = self._lanes[columns.lane] = SendLane(columns.lane)
            self._busy[columns.lane] = lane
            lane.since = now
            lane.deadline = math.inf
        lane.deadline = min(lane.deadline, columns.deadline)
        lane.spread = columns.spread
        lane.waiting.append(columns)
        lane.count += columns.count
        lane.size += columns.size
        return self._full(lane) and not (lane.in_flight and lane.ordered)

    def take(self, now: float, *, everything: bool = False) -> list[MessageColumns]:
        """Remove and return the requests to send now; ``everything`` ignores ``linger``."""
        requests: list[MessageColumns] = []
        for lane in list(self._busy.values()):
            if lane.ordered:
                if not lane.in_flight and (everything or self._is_due(lane, now)):
                    requests.append(self._cut(lane, self._max_batch_messages))
            elif everything or self._is_due(lane, now):
                most = min(
                    self._max_batch_messages,
                    max(SPREAD_MESSAGES, -(-lane.count // lane.spread)),
                )
                while lane.waiting:
                    requests.append(self._cut(lane, most))
            if not lane.waiting:
                del self._busy[lane.key]
        return requests

    def next_take(self) -> float | None:
        """Return when ``expire`` and ``take`` are due next, in monotonic seconds; None: never."""
        times = [
            lane.deadline if lane.ordered and lane.in_flight else lane.since + self._linger
            for lane in self._busy.values()
        ]
        return min(times, default=None)

    def finished(self, request: MessageColumns) -> bool:
        """Record that a request was acknowledged or has failed.

        Returns:
            Whether its completion allows the next request of an ordered lane to be sent.
        """
        lane = self._lanes[request.lane]
        lane.in_flight -= 1
        if lane.waiting:
            return lane.ordered
        if not lane.in_flight:
            del self._lanes[lane.key]
        return False

    def divided(self, part: MessageColumns) -> None:
        """Record that a part of a request in flight has become a request of its own."""
        self._lanes[part.lane].in_flight += 1

    def expire(self, now: float) -> list[MessageColumns]:
        """Remove and return the messages whose deadline has passed while they waited."""
        expired: list[MessageColumns] = []
        for lane in list(self._busy.values()):
            if lane.deadline > now:
                continue
            # One with a timeout of its own may end before those in front of it.
            late = [columns for columns in lane.waiting if columns.deadline <= now]
            lane.waiting = deque(each for each in lane.waiting if each.deadline > now)
            lane.deadline = min((each.deadline for each in lane.waiting), default=math.inf)
            lane.count -= sum(columns.count for columns in late)
            lane.size -= sum(columns.size for columns in late)
            expired += late
            if not lane.waiting:
                del self._busy[lane.key]
                if not lane.in_flight:
                    del self._lanes[lane.key]
        return expired

    def _is_due(self, lane: SendLane, now: float) -> bool:
        return now >= lane.since + self._linger or self._full(lane)

    def _full(self, lane: SendLane) -> bool:
        return lane.count >= self._max_batch_messages or lane.size >= self._max_batch_bytes

    def _cut(self, lane: SendLane, most: int) -> MessageColumns:
        """Remove the lane's first messages, at most ``most``, and return them as one request."""
        waiting = lane.waiting
        request = waiting.popleft()
        if not request.fixed:
            fitting = max(1, request.fitting(most, self._max_batch_bytes))
            if fitting < request.count:
                waiting.appendleft(request)
                request = request.split(fitting)
            else:
                self._fill(request, waiting, most)
        lane.count -= request.count
        lane.size -= request.size
        lane.in_flight += 1
        return request

    def _fill(self, request: MessageColumns, waiting: deque[MessageColumns], most: int) -> None:
        while waiting:
            later = waiting[0]
            # A flush waits for the messages of past epochs only, and requests are counted under one
            # epoch: never mix epochs in a request.
            if later.fixed or later.epoch != request.epoch:
                return
            fitting = later.fitting(most - request.count, self._max_batch_bytes - request.size)
            if fitting < later.count:
                if fitting:
                    request.join(later.split(fitting))
                return
            request.join(later)
            waiting.popleft()


class SendBuffer:
    """The messages of one producer, from acceptance to receipt.

    Attributes:
        time: the clock for deadlines.
        sender: delivers requests.
        preparer: validates and encodes the messages that ``add`` doesn't take.
        messages, bytes: number and total size of accepted, unsettled messages.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        options: ProducerOptions,
        serde: Serde[Any],
        tasks: Supervisor,
    ) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.time = DeadlineClock(self._loop.time)
        self._lanes = SendLanes(
            linger=options.linger,
            max_batch_messages=options.max_batch_messages,
            max_batch_bytes=options.max_batch_bytes,
        )
        self.sender = Sender(
            context, group, options, tasks, self._finished, self._lanes.divided, self.time
        )
        self._take_ids = context.ids.take
        self._now_ms = context.clock.now_ms
        # Bodies below this size need neither serde nor compression.
        self._plain_bytes = options.plain_bytes if serde is raw else 0
        id_bytes = len(ID_NAME) + len(self._take_ids(1)[0])
        self._fixed_bytes = ELEMENT_BYTES + id_bytes
        self.preparer = Preparer(options, serde, id_bytes, self._now_ms, self.time.now)
        # Copies and bound methods, to save attribute lookups: used for every message.
        self._most = options.max_batch_messages
        self._most_bytes = options.max_batch_bytes
        self._max_messages = options.max_in_flight
        self._max_bytes = options.max_in_flight_bytes
        self._create_future = self._loop.create_future
        self.messages = 0
        self.bytes = 0
        self._open: dict[str | MessageQueue, MessageColumns] = {}
        """By lane: unsealed columns that collect plain messages until the next ``_take``."""
        self._routeless: dict[str, list[MessageColumns]] = {}
        self._room = RoomQueue(options.timeout, self.time.now, self._take_room, self._give_back)
        self._waiting = self._room.waiting
        self._take_scheduled = False
        self._take_scheduled_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._epoch = 0
        self._unsettled = {0: 0}
        self._flushed: dict[int, asyncio.Future[None]] = {}

    # Accepting

    def add(
        self,
        topic: object,
        body: object,
        tag: str | None,
        keys: Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
    ) -> asyncio.Future[Receipt] | None:
        """Accept a message that needs no preparation, if its route is known and there is room.

        Returns:
            The future of its receipt; None if the caller must use the ``Preparer`` and ``offer``
            or ``put`` instead, which also report invalid arguments.

        Raises:
            UsageError: the topic, tag, keys or properties are invalid.
        """
        if (
            type(body) is not bytes
            or type(topic) is not str
            or not 0 < (size := len(body)) < self._plain_bytes
        ):
            return None
        size += self._fixed_bytes
        tail = ""
        if tag or keys or properties:
            # An iterator can be consumed only once, and the ``Preparer`` may need the keys again.
            if isinstance(keys, Iterator):
                return None
            tail = properties_after_id(topic, tag=tag, keys=keys, own=properties)
            if len(tail) >= SHORT_PROPERTIES:
                return None
            size += len(tail) if tail.isascii() else properties_size(topic, tail)
        lane: str | MessageQueue = topic
        if queue is not None:
            if queue.topic != topic or sharding_key is not None:
                return None
            lane = queue
        elif sharding_key is not None:
            route = self._context.routes.table.get(topic)
            if route is None or not route.writable or type(sharding_key) is not str:
                return None
            lane = by_sharding_key(route.writable, sharding_key)
        columns = self._open.get(lane) or self._begin(topic, lane)
        if columns is None or self._waiting:
            return None
        if self.messages and (
            self.messages >= self._max_messages or self.bytes + size > self._max_bytes
        ):
            return None
        self.messages += 1
        self.bytes += size
        columns.size += size
        bodies = columns.bodies
        if tail:
            columns.tails[len(bodies)] = tail
        bodies.append(body)
        future: asyncio.Future[Receipt] = self._create_future()
        columns.futures.append(future)
        if len(bodies) >= self._most or columns.size >= self._most_bytes:
            self._end(columns)
        return future

    def _take_room(self, columns: MessageColumns) -> bool:
        """Count messages as in flight if there is room, or if nothing else is in flight.

        The exception lets a message that is larger than the whole bound be sent on its own.
        """
        messages, size = self.messages + columns.count, self.bytes + columns.size
        if self.messages and (messages > self._max_messages or size > self._max_bytes):
            return False
        self.messages, self.bytes = messages, size
        return True

    def _give_back(self, columns: MessageColumns) -> None:
        self.messages -= columns.count
        self.bytes -= columns.size

    def _begin(self, topic: str, lane: str | MessageQueue) -> MessageColumns | None:
        route = self._context.routes.table.get(topic)
        if route is None or not route.writable or topic in self._routeless:
            return None
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            return None
        columns = self._open[lane] = MessageColumns(
            topic,
            lane,
            self.time.now() + self._options.timeout,
            self._now_ms(),
            epoch=self._epoch,
            spread=len(route.writable),
        )
        self._schedule_take()
        return columns

    def _end(self, columns: MessageColumns) -> None:
        """Close open columns: seal them and queue them at the end of their lane."""
        del self._open[columns.lane]
        if not columns.count:
            return
        self._unsettled[columns.epoch] += columns.count
        columns.seal(self._take_ids)
        if self._lanes.add(columns, self.time.now()):
            self._take()

    def _end_all(self) -> None:
        for columns in list(self._open.values()):
            self._end(columns)

    def offer(self, columns: MessageColumns) -> list[asyncio.Future[Receipt]]:
        """Accept prepared messages without waiting. Raises BufferFull if there is no room."""
        if self._waiting or not self._take_room(columns):
            raise BufferFull(
                f"{self.messages} messages of {self.bytes} bytes are in flight already",
                topic=columns.topic,
                group=self._group,
                hint="await some of them, use `await send(...)`, or raise max_in_flight",
            )
        return self._accept(columns)

    async def put(self, columns: MessageColumns) -> list[asyncio.Future[Receipt]]:
        """Accept prepared messages that are sent together, once there is room for them.

        Raises:
            BufferFull: there was no room in time, or too many sends are waiting already.
            SendError: the producer was closed.
        """
        if self._waiting or not self._take_room(columns):
            await self._wait_for_room(columns)
        return self._accept(columns)

    def _accept(self, columns: MessageColumns) -> list[asyncio.Future[Receipt]]:
        """Queue prepared messages for which room is reserved, and return their futures."""
        self._unsettled[self._epoch] += columns.count
        columns.epoch = self._epoch
        columns.futures = futures = [self._create_future() for _ in columns.bodies]
        columns.seal(self._take_ids)
        topic = columns.topic
        route = self._context.routes.table.get(topic)
        if topic in self._routeless:
            self._routeless[topic].append(columns)
        elif route is None or not route.writable:
            self._routeless[topic] = [columns]
            self._schedule_take()
            self._tasks.spawn(self._find_route(topic), f"route of {topic}")
        else:
            self._queue([columns], route)
        # Return a copy: splitting and joining columns changes the list.
        return list(futures)

    def _queue(self, several: Sequence[MessageColumns], route: Route) -> None:
        now = self.time.now()
        full = False
        for columns in several:
            columns.spread = len(route.writable)
            if columns.sharding_key is not None:
                columns.lane = by_sharding_key(route.writable, columns.sharding_key)
            earlier = self._open.get(columns.lane)
            if earlier is not None:
                self._end(earlier)
            full = self._lanes.add(columns, now) or full
        if full:
            self._take()
        elif not self._take_scheduled:
            if self._options.linger == 0 or self._flushed:
                self._schedule_take()
            else:
                self._arm()

    async def _find_route(self, topic: str) -> None:
        deadline = min(columns.deadline for columns in self._routeless[topic])
        timeout = max(0.0, deadline - self.time.now())
        try:
            route = await self._context.routes.to_write(
                topic, self._options.default_queues, timeout
            )
        except PocketMQError as error:
            waiting = self._routeless.pop(topic)
            latest = deadline + _ROUTE_MARGIN if isinstance(error, Unavailable) else math.inf
            self._fail([columns for columns in waiting if columns.deadline <= latest], error)
            if left := [columns for columns in waiting if columns.deadline > latest]:
                self._routeless[topic] = left
                self._tasks.spawn(self._find_route(topic), f"route of {topic}")
        except BaseException as error:
            self._fail(self._routeless.pop(topic), PocketMQError(repr(error), topic=topic))
            raise
        else:
            self._queue(self._routeless.pop(topic), route)

    async def write_oneway(self, columns: MessageColumns) -> None:
        """Send a prepared message oneway. Raises SendError."""
        columns.seal(self._take_ids)
        await self.sender.write_oneway(columns)

    async def _wait_for_room(self, columns: MessageColumns) -> None:
        if len(self._waiting) >= WAITING_PER_IN_FLIGHT * self._max_messages:
            raise BufferFull(
                f"{len(self._waiting)} sends wait for room already",
                topic=columns.topic,
                group=self._group,
                hint="use send_many, send fewer at a time, or raise max_in_flight",
            )
        try:
            await self._room.wait(columns)
        except TimeoutError:
            raise BufferFull(
                f"{self.messages} messages in flight left no room in time",
                topic=columns.topic,
                group=self._group,
                hint="send more slowly, or raise max_in_flight",
            ) from None

    # Sending

    def _schedule_take(self) -> None:
        if not self._take_scheduled:
            self._take_scheduled = True
            self._take_scheduled_at = self._loop.time()
            self._loop.call_soon(self._scheduled_take)

    def _scheduled_take(self) -> None:
        self.time.exclude_stall(self._take_scheduled_at)
        self._take_scheduled = False
        self._end_all()
        self._take()

    def _take(self) -> None:
        if self._take_scheduled:
            self.time.exclude_stall(self._take_scheduled_at)
        now = self.time.now()
        late = self._lanes.expire(now)
        for request in self._lanes.take(now, everything=bool(self._flushed)):
            self.sender.dispatch(request)
        self.sender.flush()
        if late:
            self._fail(
                late, SendError("it timed out while earlier messages of its queue were being sent")
            )
        if self._lanes.waiting:
            self._arm()

    def _arm(self) -> None:
        when = self._lanes.next_take()
        if when is None:
            return
        when = self.time.on_loop(when)
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        # uvloop returns a handle without ``when()`` for a time that has come.
        self._timer, self._timer_at = self._loop.call_at(when, self._timer_fired), when

    def _timer_fired(self) -> None:
        assert self._timer is not None
        self.time.exclude_stall(self._timer_at)
        self._timer = None
        self._take()

    # Settling

    def _finished(self, request: MessageColumns, stored: bool) -> None:
        if stored and self._waiting:
            self._room.stored()
        self._give_back(request)
        self._unsettled[request.epoch] -= request.count
        more = self._lanes.finished(request)
        self._after_settling()
        if more:
            self._schedule_take()

    def _fail(self, several: Sequence[MessageColumns], error: PocketMQError) -> None:
        """Fail messages that were never passed to the sender."""
        for columns in several:
            self._give_back(columns)
            for future in columns.futures:
                if not future.done():
                    # Each future gets its own object.
                    own = copy(as_send_error(error))
                    own.topic, own.group, own.__cause__ = (
                        columns.topic,
                        self._group,
                        error.__cause__,
                    )
                    future.set_exception(own)
            self._unsettled[columns.epoch] -= columns.count
        self._after_settling()

    def _after_settling(self) -> None:
        if self._flushed:
            self._end_flushes()
        if self._waiting:
            self._room.admit()

    # Flushing

    async def flush(self) -> None:
        """Wait until every message accepted before is settled."""
        self._end_all()
        epoch = self._epoch
        self._epoch += 1
        self._unsettled[self._epoch] = 0
        future = self._flushed[epoch] = self._loop.create_future()
        self._take()
        self._end_flushes()
        await asyncio.shield(future)

    def _end_flushes(self) -> None:
        for epoch in sorted(self._flushed):
            if any(self._unsettled[earlier] for earlier in self._unsettled if earlier <= epoch):
                return
            for earlier in [number for number in self._unsettled if number <= epoch]:
                del self._unsettled[earlier]
            self._flushed.pop(epoch).set_result(None)

    def abandon(self) -> None:
        """Fail everything not yet passed to the sender, because the producer closes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_all()
        why = "the producer was closed before it could be sent"
        self._room.close(lambda topic: SendError(why, topic=topic))
        left = self._lanes.expire(math.inf)
        if left:
            self._fail(left, SendError(why))
