"""Messages that were accepted: within the bounds, in their lanes, out in batches.

``accept`` never waits. A message whose topic's route isn't known is kept with the others of that
topic until it is. At the end of the loop's turn, or when a lane has lingered, what is ripe goes to
the sender. ``flush`` waits for all that was accepted before it: each flush begins a new epoch, and
messages are counted per epoch.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from client.config import ProducerOptions
from client.errors import BufferFull, Outcome, PocketMQError, SendError, Unavailable
from client.producer.accumulator import Accumulator
from client.producer.batch import Batch
from client.producer.burst import ID_NAME, Burst
from client.producer.network import Network
from client.producer.outgoing import ELEMENT_BYTES, Outgoing, check_topic
from client.producer.queue_selector import by_sharding_key
from client.producer.sender import Sender
from client.receipt import Receipt
from client.routes import Route
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor


class _Waiter(NamedTuple):
    future: asyncio.Future[None]
    messages: int
    size: int


class Intake:
    """The messages of one producer between their acceptance and their receipts."""

    def __init__(
        self,
        network: Network,
        group: str,
        options: ProducerOptions,
        tasks: Supervisor,
        take_ids: Callable[[int], list[str]],
        now_ms: Callable[[], int],
    ) -> None:
        self._network = network
        self._group = group
        self._options = options
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._accumulator = Accumulator(
            linger=options.linger,
            max_batch_messages=options.max_batch_messages,
            max_batch_bytes=options.max_batch_bytes,
            max_messages=options.max_in_flight,
            max_bytes=options.max_in_flight_bytes,
        )
        self.sender = Sender(network, group, options, tasks, self._finished)
        self._most = options.max_batch_messages
        self._most_bytes = options.max_batch_bytes
        self._create_future = self._loop.create_future
        self._take_ids = take_ids
        self._now_ms = now_ms
        self._bursts: dict[str | MessageQueue | None, Burst] = {}
        self._fixed_bytes = ELEMENT_BYTES + len(ID_NAME) + sum(map(len, take_ids(1)))
        self._routeless: dict[str, list[Outgoing]] = {}
        self._waiters: deque[_Waiter] = deque()
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._epoch = 0
        self._unsettled = {0: 0}
        self._flushed: dict[int, asyncio.Future[None]] = {}

    @property
    def in_flight(self) -> int:
        """Messages accepted and not settled."""
        return self._accumulator.messages

    # Accepting

    def add(
        self,
        topic: str,
        body: bytes,
        tail: str = "",
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> asyncio.Future[Receipt] | None:
        """Accept a plain message into a burst of this turn of the loop, if there is room now.

        Args:
            tail: the properties behind its id.

        Returns:
            None if it has to go the long way, which also says what is wrong with it.
        """
        if queue is None and sharding_key is None:
            lane: str | MessageQueue | None = topic
        else:
            lane = self._queue_of(topic, queue, sharding_key)
        burst = self._bursts.get(lane) or self._begin(topic, lane)
        size = self._fixed_bytes + len(body)
        if tail:
            size += len(tail) if tail.isascii() else len(tail.encode())
        accumulator = self._accumulator
        if burst is None or self._waiters or not accumulator.has_room(1, size):
            return None
        accumulator.messages += 1
        accumulator.bytes += size
        future: asyncio.Future[Receipt] = self._create_future()
        burst.bodies.append(body)
        burst.tails.append(tail)
        burst.futures.append(future)
        burst.size += size
        if len(burst.bodies) >= self._most or burst.size >= self._most_bytes:
            self._end(burst)
        return future

    def _queue_of(
        self, topic: str, queue: MessageQueue | None, sharding_key: str | None
    ) -> MessageQueue | None:
        """The queue a message is bound to; None: it isn't known, or can't be."""
        if queue is not None:
            return queue if queue.topic == topic and sharding_key is None else None
        route = self._network.routes.table.get(topic)
        if route is None or not route.writable or type(sharding_key) is not str:
            return None
        return by_sharding_key(route.writable, sharding_key)

    def _begin(self, topic: str, lane: str | MessageQueue | None) -> Burst | None:
        route = self._network.routes.table.get(topic)
        if lane is None or route is None or not route.writable or topic in self._routeless:
            return None
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            return None
        deadline = self._loop.time() + self._options.timeout
        burst = Burst(topic, lane, deadline, self._now_ms(), self._epoch, len(route.writable))
        self._bursts[lane] = burst
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)
        return burst

    def _end(self, burst: Burst) -> None:
        """Nothing more comes to a burst: it queues behind what is in its lane."""
        del self._bursts[burst.lane]
        if not burst.count:
            return
        self._unsettled[burst.epoch] += burst.count
        burst.seal(self._take_ids)
        if self._accumulator.add(burst, self._loop.time(), spread=burst.spread):
            self._take()

    def _end_all(self) -> None:
        for burst in list(self._bursts.values()):
            self._end(burst)

    def offer(self, item: Outgoing) -> asyncio.Future[Receipt]:
        """Accept a message if there is room now. Raises BufferFull."""
        accumulator = self._accumulator
        if self._waiters or not accumulator.has_room(1, item.size):
            raise BufferFull(
                f"{accumulator.messages} messages of {accumulator.bytes} bytes "
                "are in flight already",
                topic=item.topic,
                group=self._group,
                hint="await some of them, use `await send(...)`, or raise max_in_flight",
            )
        accumulator.reserve(1, item.size)
        self.accept((item,))
        assert item.future is not None
        return item.future

    async def wait_for_room(self, items: Sequence[Outgoing]) -> None:
        """Take room for messages, waiting until their deadline for it. Raises SendError."""
        size = sum([item.size for item in items])
        if not self._waiters and self._accumulator.has_room(len(items), size):
            self._accumulator.reserve(len(items), size)
            return
        waiter = _Waiter(self._loop.create_future(), len(items), size)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(items[0].deadline):
                await waiter.future
        except BaseException as error:
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise SendError(
                    f"{self._accumulator.messages} messages in flight left no room in time",
                    outcome=Outcome.NOT_SENT,
                    topic=items[0].topic,
                    group=self._group,
                    hint="send more slowly, or raise max_in_flight",
                ) from None
            raise

    def _leave(self, waiter: _Waiter) -> None:
        if waiter.future.done() and not waiter.future.cancelled():
            self._accumulator.release(waiter.messages, waiter.size)
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
        self._admit()

    def accept(self, items: Sequence[Outgoing]) -> None:
        """Queue messages for which room was reserved; several of one topic stay together."""
        self._unsettled[self._epoch] += len(items)
        topic = items[0].topic
        route = self._network.routes.table.get(topic)
        for item in items:
            item.epoch = self._epoch
            item.future = self._loop.create_future()
        if topic in self._routeless:
            self._routeless[topic] += items
        elif route is None or not route.writable:
            self._routeless[topic] = list(items)
            self._tasks.spawn(self._find_route(topic, items[0].deadline), f"route of {topic}")
        else:
            self._queue(items, route)

    def _queue(self, items: Sequence[Outgoing], route: Route) -> None:
        now = self._loop.time()
        spread = len(route.writable)
        full = False
        for item in items:
            if item.sharding_key is not None:
                item.lane = item.queue(route.writable) or item.topic
            earlier = self._bursts.get(item.lane)
            if earlier is not None:
                self._end(earlier)
            full = self._accumulator.add(item, now, spread=spread) or full
        if full:
            self._take()
        elif not self._turn_scheduled:
            self._schedule()

    async def _find_route(self, topic: str, deadline: float) -> None:
        timeout = max(0.0, deadline - self._loop.time())
        try:
            route = await self._network.routes.to_write(
                topic, self._options.default_queues, timeout
            )
        except PocketMQError as error:
            self._give_up(self._routeless.pop(topic), error)
        except BaseException as error:
            self._give_up(self._routeless.pop(topic), PocketMQError(repr(error), topic=topic))
            raise
        else:
            self._queue(self._routeless.pop(topic), route)

    # Leaving

    def _schedule(self) -> None:
        if self._options.linger == 0 or self._flushed:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)
        else:
            self._arm()

    def _turn(self) -> None:
        self._turn_scheduled = False
        self._end_all()
        self._take()

    def _take(self) -> None:
        now = self._loop.time()
        late = self._accumulator.expire(now)
        for batch in self._accumulator.take(now, everything=bool(self._flushed)):
            self.sender.dispatch(batch)
        self.sender.flush()
        if late:
            self._fail(late, SendError("its queue's earlier messages took all its time"))
        if self._accumulator.waiting:
            self._arm()

    def _arm(self) -> None:
        when = self._accumulator.next_take()
        if when is None:
            return
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._take()

    # Settling

    def _finished(self, batch: Batch) -> None:
        more = self._accumulator.finished(batch)
        self._unsettled[batch.epoch] -= batch.count
        self._after_settling()
        if more and not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _give_up(self, items: Sequence[Outgoing], error: PocketMQError) -> None:
        """Messages that found no route."""
        self._accumulator.release(len(items), sum([item.size for item in items]))
        self._fail(items, error)

    def _fail(self, items: Sequence[Outgoing | Burst], error: PocketMQError) -> None:
        for item in items:
            for future in item.futures:
                if not future.done():
                    future.set_exception(self._own(error, item.topic))
            self._unsettled[item.epoch] -= item.count
        self._after_settling()

    def _own(self, error: PocketMQError, topic: str) -> PocketMQError:
        """An error for one message alone."""
        if not isinstance(error, SendError | Unavailable):
            return error
        own = type(error)(error.message, topic=topic, group=self._group, hint=error.hint)
        own.__cause__ = error.__cause__
        return own

    def _after_settling(self) -> None:
        if self._flushed:
            self._end_flushes()
        if self._waiters:
            self._admit()

    def _admit(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not self._accumulator.has_room(waiter.messages, waiter.size):
                return
            self._waiters.popleft()
            if not waiter.future.done():
                self._accumulator.reserve(waiter.messages, waiter.size)
                waiter.future.set_result(None)

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
        """The producer closes: what has not left never will."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_all()
        left = self._accumulator.expire(math.inf)
        if left:
            self._fail(left, SendError("the producer was closed before it could be sent"))
