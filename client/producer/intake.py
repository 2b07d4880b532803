"""Messages that were accepted: within the bounds, in their lanes, out in batches.

``accept`` never waits. A message whose topic's route isn't known is kept with the others of that
topic until it is. At the end of the loop's turn, or when a lane has lingered, what is ripe goes to
the sender. ``flush`` waits for all that was accepted before it: each flush begins a new epoch, and
messages are counted per epoch.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from copy import copy

from client.config import ProducerOptions
from client.errors import BufferFull, PocketMQError, SendError, as_send_error
from client.producer.accumulator import Accumulator
from client.producer.batch import Batch
from client.producer.burst import ID_NAME, Burst
from client.producer.network import Network
from client.producer.outgoing import ELEMENT_BYTES, Outgoing, check_topic
from client.producer.own_time import OwnTime
from client.producer.queue_selector import by_sharding_key
from client.producer.room import Room
from client.producer.sender import Sender
from client.receipt import Receipt
from client.routes import Route
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor


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
        self.time = OwnTime(self._loop.time)
        self._accumulator = Accumulator(
            linger=options.linger,
            max_batch_messages=options.max_batch_messages,
            max_batch_bytes=options.max_batch_bytes,
            max_messages=options.max_in_flight,
            max_bytes=options.max_in_flight_bytes,
        )
        self.room = Room(self._accumulator, group, options, self.time)
        self._waiting = self.room.waiting  # looked at for each message
        self.sender = Sender(network, group, options, tasks, self._finished, self.time)
        self._most = options.max_batch_messages
        self._most_bytes = options.max_batch_bytes
        self._create_future = self._loop.create_future
        self._take_ids = take_ids
        self._now_ms = now_ms
        self._bursts: dict[str | MessageQueue | None, Burst] = {}
        self._fixed_bytes = ELEMENT_BYTES + len(ID_NAME) + sum(map(len, take_ids(1)))
        self._routeless: dict[str, list[Outgoing]] = {}
        self._turn_scheduled = False
        self._turn_since = 0.0
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
        if burst is None or self._waiting or not accumulator.has_room(1, size):
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

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._turn_since = self._loop.time()
            self._loop.call_soon(self._turn)

    def _begin(self, topic: str, lane: str | MessageQueue | None) -> Burst | None:
        route = self._network.routes.table.get(topic)
        if lane is None or route is None or not route.writable or topic in self._routeless:
            return None
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            return None
        deadline = self.time.now() + self._options.timeout
        burst = Burst(topic, lane, deadline, self._now_ms(), self._epoch, len(route.writable))
        self._bursts[lane] = burst
        self._schedule_turn()
        return burst

    def _end(self, burst: Burst) -> None:
        """Nothing more comes to a burst: it queues behind what is in its lane."""
        del self._bursts[burst.lane]
        if not burst.count:
            return
        self._unsettled[burst.epoch] += burst.count
        burst.seal(self._take_ids)
        if self._accumulator.add(burst, self.time.now(), spread=burst.spread):
            self._take()

    def _end_all(self) -> None:
        for burst in list(self._bursts.values()):
            self._end(burst)

    def offer(self, item: Outgoing) -> asyncio.Future[Receipt]:
        """Accept a message if there is room now. Raises BufferFull."""
        accumulator = self._accumulator
        if self._waiting or not accumulator.has_room(1, item.size):
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
            self._schedule_turn()
            self._tasks.spawn(self._find_route(topic, items[0].deadline), f"route of {topic}")
        else:
            self._queue(items, route)

    def _queue(self, items: Sequence[Outgoing], route: Route) -> None:
        now = self.time.now()
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
        timeout = max(0.0, deadline - self.time.now())
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
            self._schedule_turn()
        else:
            self._arm()

    def _turn(self) -> None:
        self.time.leave_out(self._turn_since)
        self._turn_scheduled = False
        self._end_all()
        self._take()

    def _take(self) -> None:
        if self._turn_scheduled:
            self.time.leave_out(self._turn_since)
        now = self.time.now()
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

    def _finished(self, batch: Batch, *, stored: bool) -> None:
        if stored:
            self.room.stored()
        more = self._accumulator.finished(batch)
        self._unsettled[batch.epoch] -= batch.count
        self._after_settling()
        if more:
            self._schedule_turn()

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

    def _own(self, error: PocketMQError, topic: str) -> SendError:
        """An error for one message alone."""
        own = copy(as_send_error(error))
        own.topic, own.group, own.__cause__ = topic, self._group, error.__cause__
        return own

    def _after_settling(self) -> None:
        if self._flushed:
            self._end_flushes()
        self.room.admit()

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
        self.room.close()
        left = self._accumulator.expire(math.inf)
        if left:
            self._fail(left, SendError("the producer was closed before it could be sent"))
