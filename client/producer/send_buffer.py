"""Messages that were accepted and are not settled: bounded, in their lanes, and out as requests.

``add`` and ``offer`` never wait; ``reserve`` waits for room. Messages to a topic without a known
route are kept together until it is found. At the end of the loop's turn, or when a lane has
lingered, what is ripe goes to the sender.

``flush`` waits for everything accepted before it: each flush begins a new epoch, and messages are
counted per epoch.

A ``reserve`` with a timeout of its own waits that long. Others wait as long as brokers acknowledge
something within the producer's timeout, for then it is the application that is fast; their timeout
begins when there is room.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from client.config import ProducerOptions
from client.context import ClientContext
from client.errors import BufferFull, PocketMQError, SendError, as_send_error
from client.limits import WAITING_PER_IN_FLIGHT
from client.message import Receipt
from client.producer.columns import ELEMENT_BYTES, ID_NAME, MessageColumns, SendLanes
from client.producer.delivery import OwnTime
from client.producer.prepare import SHORT_PROPERTIES, check_topic, properties_after_id
from client.producer.queue_selector import by_sharding_key
from client.producer.sender import Sender
from client.routes import Route
from remoting.limits import STALL_SECONDS
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor


class _Waiter(NamedTuple):
    """A send that waits for room."""

    future: asyncio.Future[None]
    columns: MessageColumns

    @property
    def patient(self) -> bool:
        """Whether it waits as long as anything is stored."""
        return self.columns.timeout is None


class SendBuffer:
    """The messages of one producer between their acceptance and their receipts.

    Attributes:
        time: the clock of deadlines.
        sender: delivers requests.
        id_bytes: that the property with the unique id takes of a message.
        messages, bytes: accepted and not settled.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        options: ProducerOptions,
        tasks: Supervisor,
        take_ids: Callable[[int], list[str]],
        now_ms: Callable[[], int],
        plain_bytes: int,
    ) -> None:
        """``plain_bytes``: bodies of bytes that are smaller leave as they are."""
        self._context = context
        self._group = group
        self._options = options
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.time = OwnTime(self._loop.time)
        self.sender = Sender(context, group, options, tasks, self._finished, self.time)
        self._lanes = SendLanes(
            linger=options.linger,
            max_batch_messages=options.max_batch_messages,
            max_batch_bytes=options.max_batch_bytes,
        )
        self._take_ids = take_ids
        self._now_ms = now_ms
        self._plain_bytes = plain_bytes
        self.id_bytes = len(ID_NAME) + len(take_ids(1)[0])
        self._fixed_bytes = ELEMENT_BYTES + self.id_bytes
        # Copied and bound: looked at for every message.
        self._most = options.max_batch_messages
        self._most_bytes = options.max_batch_bytes
        self._max_messages = options.max_in_flight
        self._max_bytes = options.max_in_flight_bytes
        self._create_future = self._loop.create_future
        self.messages = 0
        self.bytes = 0
        self._open: dict[str | MessageQueue, MessageColumns] = {}
        """Columns that plain messages of this turn of the loop join, by lane."""
        self._routeless: dict[str, list[MessageColumns]] = {}
        # Ordered by links: taking the first of a dict looks through all that were taken before.
        self._waiting: OrderedDict[asyncio.Future[None], _Waiter] = OrderedDict()
        self._stored_at = 0.0
        self._patience: asyncio.TimerHandle | None = None
        self._turn_scheduled = False
        self._turn_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
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
        """Accept a message that needs no preparation, if there is a route and room now.

        Returns:
            None if it has to be prepared and offered, which also reports what is wrong with it.
        """
        if type(body) is not bytes or type(topic) is not str:
            return None
        size = len(body)
        if not 0 < size < self._plain_bytes:
            return None
        size += self._fixed_bytes
        tail = ""
        if tag or keys or properties:
            # An iterator can be read once only, and preparing may have to read it again.
            if isinstance(keys, Iterator):
                return None
            tail = properties_after_id(topic, tag=tag, keys=keys, own=properties)
            if len(tail) >= SHORT_PROPERTIES:
                return None
            size += len(tail) if tail.isascii() else len(tail.encode())
        lane: str | MessageQueue = topic
        if queue is not None or sharding_key is not None:
            bound = self._queue_of(topic, queue, sharding_key)
            if bound is None:
                return None
            lane = bound
        columns = self._open.get(lane) or self._begin(topic, lane)
        if columns is None or self._waiting or not self._has_room(1, size):
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

    def _has_room(self, messages: int, size: int) -> bool:
        """Whether so much may be added. When nothing is in flight, always."""
        return not self.messages or (
            self.messages + messages <= self._max_messages and self.bytes + size <= self._max_bytes
        )

    def _queue_of(
        self, topic: str, queue: MessageQueue | None, sharding_key: str | None
    ) -> MessageQueue | None:
        """The queue a message is bound to; None: it isn't known, or can't be."""
        if queue is not None:
            return queue if queue.topic == topic and sharding_key is None else None
        route = self._context.routes.table.get(topic)
        if route is None or not route.writable or type(sharding_key) is not str:
            return None
        return by_sharding_key(route.writable, sharding_key)

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
        self._schedule_turn()
        return columns

    def _end(self, columns: MessageColumns) -> None:
        """No more messages join these columns: they queue behind the others of their lane."""
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
        """Accept prepared messages if there is room now. Raises BufferFull."""
        if self._waiting or not self._has_room(columns.count, columns.size):
            raise BufferFull(
                f"{self.messages} messages of {self.bytes} bytes are in flight already",
                topic=columns.topic,
                group=self._group,
                hint="await some of them, use `await send(...)`, or raise max_in_flight",
            )
        self.messages += columns.count
        self.bytes += columns.size
        return self.accept(columns)

    def accept(self, columns: MessageColumns) -> list[asyncio.Future[Receipt]]:
        """Queue prepared messages for which room was reserved; their futures."""
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
            self._schedule_turn()
            self._tasks.spawn(self._find_route(topic, columns.deadline), f"route of {topic}")
        else:
            self._queue([columns], route)
        # A copy: columns are split and joined on their way.
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
        elif not self._turn_scheduled:
            if self._options.linger == 0 or self._flushed:
                self._schedule_turn()
            else:
                self._arm()

    async def _find_route(self, topic: str, deadline: float) -> None:
        timeout = max(0.0, deadline - self.time.now())
        try:
            route = await self._context.routes.to_write(
                topic, self._options.default_queues, timeout
            )
        except PocketMQError as error:
            self._fail(self._routeless.pop(topic), error)
        except BaseException as error:
            self._fail(self._routeless.pop(topic), PocketMQError(repr(error), topic=topic))
            raise
        else:
            self._queue(self._routeless.pop(topic), route)

    async def write_oneway(self, columns: MessageColumns) -> None:
        """Write a prepared message that nobody acknowledges. Raises SendError."""
        columns.seal(self._take_ids)
        await self.sender.write_oneway(columns)

    # Waiting for room

    async def reserve(self, columns: MessageColumns) -> None:
        """Wait for room for messages that leave together.

        Raises:
            BufferFull: there was none in time, or too many wait already.
            SendError: the producer was closed.
        """
        if not self._waiting and self._has_room(columns.count, columns.size):
            self.messages += columns.count
            self.bytes += columns.size
            return
        if len(self._waiting) >= WAITING_PER_IN_FLIGHT * self._max_messages:
            raise BufferFull(
                f"{len(self._waiting)} sends wait for room already",
                topic=columns.topic,
                group=self._group,
                hint="use send_many, send fewer at a time, or raise max_in_flight",
            )
        waiter = _Waiter(self._loop.create_future(), columns)
        self._waiting[waiter.future] = waiter
        try:
            await self._granted(waiter)
        except BaseException as error:
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise BufferFull(
                    f"{self.messages} messages in flight left no room in time",
                    topic=columns.topic,
                    group=self._group,
                    hint="send more slowly, or raise max_in_flight",
                ) from None
            raise

    async def _granted(self, waiter: _Waiter) -> None:
        columns = waiter.columns
        if waiter.patient:
            if self._patience is None:
                self._patience = self._loop.call_later(self._options.timeout, self._end_patience)
            await waiter.future
            columns.deadline = self.time.now() + self._options.timeout
        else:
            async with asyncio.timeout(columns.deadline - self.time.now()):
                await waiter.future

    def _leave(self, waiter: _Waiter) -> None:
        future = waiter.future
        self._waiting.pop(future, None)
        if future.done() and not future.cancelled() and future.exception() is None:
            # There was room for it, and its task was cancelled before it could use that.
            self._release([waiter.columns])
        self._admit()

    def _release(self, several: Iterable[MessageColumns]) -> None:
        for columns in several:
            self.messages -= columns.count
            self.bytes -= columns.size

    def _admit(self) -> None:
        """There may be room: give it to those who wait, in turn."""
        while self._waiting:
            waiter = next(iter(self._waiting.values()))
            columns = waiter.columns
            if not waiter.future.done():
                if not self._has_room(columns.count, columns.size):
                    return
                self.messages += columns.count
                self.bytes += columns.size
                waiter.future.set_result(None)
            del self._waiting[waiter.future]

    def _end_patience(self) -> None:
        """End the wait of patient ones whose time is over while nothing was stored."""
        assert self._patience is not None
        late = self._loop.time() - self._patience.when()
        if late > STALL_SECONDS:
            # The loop stalled: what was acknowledged meanwhile has to be read first.
            self._patience = self._loop.call_later(late, self._end_patience)
            return
        self._patience = None
        now = self.time.now()
        stuck_at = self._stored_at + self._options.timeout
        ends = [
            (max(waiter.columns.deadline, stuck_at), waiter)
            for waiter in self._waiting.values()
            if waiter.patient
        ]
        for end, waiter in ends:
            if end <= now:
                self._turn_away(waiter, TimeoutError())
        later = min([end for end, _ in ends if end > now], default=None)
        if later is not None:
            self._patience = self._loop.call_later(later - now, self._end_patience)

    def _turn_away(self, waiter: _Waiter, error: Exception) -> None:
        del self._waiting[waiter.future]
        if not waiter.future.done():
            waiter.future.set_exception(error)

    # Leaving

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._turn_since = self._loop.time()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.time.leave_out(self._turn_since)
        self._turn_scheduled = False
        self._end_all()
        self._take()

    def _take(self) -> None:
        if self._turn_scheduled:
            self.time.leave_out(self._turn_since)
        now = self.time.now()
        late = self._lanes.expire(now)
        for request in self._lanes.take(now, everything=bool(self._flushed)):
            self.sender.dispatch(request)
        self.sender.flush()
        if late:
            self._fail(late, SendError("its queue's earlier messages took all its time"))
        if self._lanes.waiting:
            self._arm()

    def _arm(self) -> None:
        when = self._lanes.next_take()
        if when is None:
            return
        when = self.time.on_loop(when)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        assert self._timer is not None
        self.time.leave_out(self._timer.when())
        self._timer = None
        self._take()

    # Settling

    def _finished(self, request: MessageColumns, *, stored: bool) -> None:
        if stored and self._waiting:
            self._stored_at = self.time.now()
        self._release([request])
        self._unsettled[request.epoch] -= request.count
        more = self._lanes.finished(request)
        self._after_settling()
        if more:
            self._schedule_turn()

    def _fail(self, several: Sequence[MessageColumns], error: PocketMQError) -> None:
        """End messages that never left."""
        self._release(several)
        for columns in several:
            for future in columns.futures:
                if not future.done():
                    future.set_exception(self._own(error, columns.topic))
            self._unsettled[columns.epoch] -= columns.count
        self._after_settling()

    def _own(self, error: PocketMQError, topic: str) -> SendError:
        """An error for one message alone."""
        own = copy(as_send_error(error))
        own.topic, own.group, own.__cause__ = topic, self._group, error.__cause__
        return own

    def _after_settling(self) -> None:
        if self._flushed:
            self._end_flushes()
        self._admit()

    # Flushing

    async def flush(self) -> None:
        """Wait until all that was accepted before is settled."""
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
        """The producer closes: fail everything that has not left."""
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._end_all()
        for waiter in list(self._waiting.values()):
            topic = waiter.columns.topic
            self._turn_away(
                waiter, SendError("the producer was closed before it could be sent", topic=topic)
            )
        left = self._lanes.expire(math.inf)
        if left:
            self._fail(left, SendError("the producer was closed before it could be sent"))
