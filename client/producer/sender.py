"""From a batch to its receipts: which queue, which connection, and again if need be.

The fast lane: route known and connection open, so a batch is written at once and a callback
settles its messages; no task. Batches that find no connection are written in the order they came
once there is one: what was sent first to a queue lies first in it, unless it had to be sent again.
Whatever doesn't go that smoothly becomes one task per batch that tries until the batch is stored,
refused for good, or out of time or attempts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Final, Protocol

from client.backoff import Backoff
from client.config import ProducerOptions
from client.errors import (
    BrokerUnreachable,
    NoRoute,
    Outcome,
    PocketMQError,
    as_send_error,
)
from client.producer.accumulator import Lane
from client.producer.batch import Batch
from client.producer.delivery import BUSY, Delivery, Verdict, not_durable
from client.producer.network import Network
from client.producer.outgoing import Outgoing
from client.producer.own_time import OwnTime
from client.producer.queue_selector import RoundRobin
from client.receipt import Receipt, SendStatus
from client.routes import Route
from remoting.connection import Connection
from remoting.errors import ConnectFailed, RemotingError, RequestTimeout
from remoting.limits import STALL_SECONDS
from remoting.log import Log
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

_log = Log("client")

MAX_TURNS: Final = 10_000
"""Topics whose turn of round robin is remembered."""


_RECEIPT: Final[Callable[[Iterable[object]], Receipt]] = partial(tuple.__new__, Receipt)
"""A receipt of its fields without a step of Python: one is made for every message."""


class Finished(Protocol):
    """Called with a batch whose messages are all settled."""

    def __call__(self, batch: Batch, *, stored: bool) -> None: ...


class Sender:
    """Delivers the batches of one producer.

    Args:
        finished: is called with each batch once all its messages are settled.
        own_time: the clock of deadlines.
    """

    def __init__(
        self,
        network: Network,
        group: str,
        options: ProducerOptions,
        tasks: Supervisor,
        finished: Finished,
        own_time: OwnTime,
    ) -> None:
        self._network = network
        self._group = group
        self._options = options
        self._tasks = tasks
        self._finished = finished
        self._random = random.Random()  # noqa: S311 - spreads load
        self._turns: dict[str, RoundRobin] = {}
        self._loop = asyncio.get_running_loop()
        self._time = own_time
        self._now = own_time.now
        self._faults = network.faults
        self._written: set[Connection] = set()
        self._unconnected: dict[str, dict[Delivery, asyncio.TimerHandle]] = {}
        """What waits for a connection to an address, in its order, with the end of its time."""

    def dispatch(self, batch: Batch) -> None:
        """Send a batch; returns at once."""
        delivery = Delivery(batch)
        try:
            if not self._write_now(delivery):
                self._later(delivery)
        except Exception as error:  # noqa: BLE001 - its messages must be settled in any case
            self._unexpected(delivery, error)

    def flush(self) -> None:
        """What was dispatched leaves now, not at the end of the loop's turn."""
        for connection in self._written:
            connection.flush()
        self._written.clear()

    def request(self, batch: Batch, queue: MessageQueue, *, oneway: bool = False) -> Command:
        """The request that carries these messages to this queue."""
        payload = batch.payload()
        batched = payload.properties is None
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=batch.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._options.default_queues,
            queue_id=queue.queue_id,
            sys_flag=payload.sys_flag,
            born_timestamp=payload.born_ms,
            flag=payload.flag,
            properties=payload.properties,
            reconsume_times=0,
            batch=batched,
            bname=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if batched else RequestCode.SEND_MESSAGE_V2
        return self._network.remote.request(code, header, body=payload.body, oneway=oneway)

    async def write_oneway(self, item: Outgoing) -> None:
        """Write one message that nobody acknowledges. Raises SendError."""
        batch = Batch(Lane(item.lane), (item,))
        try:
            route = await self._route(item.topic, item.deadline - self._now())
            queue = item.queue(route.writable) or self._choose(route, None)
            address = self._address(route, queue)
        except PocketMQError as error:
            raise as_send_error(error) from error.__cause__
        written = False
        try:
            connection = await self._network.connect(address, item.deadline - self._now())
            connection.send_oneway(self.request(batch, queue, oneway=True))
            written = True
            await connection.drain()
        except RemotingError as error:
            failure = as_send_error(BrokerUnreachable(str(error), queue=queue, broker=address))
            failure.outcome = Outcome.UNKNOWN if written else Outcome.NOT_SENT
            raise failure from error

    # The fast lane

    def _write_now(self, delivery: Delivery) -> bool:
        """Write the first attempt, now or in its turn; False: it is no matter of a connection."""
        route = self._network.routes.table.get(delivery.batch.topic)
        if route is None or not route.writable:
            return False
        queue = delivery.batch.queue or self._choose(route, None)
        address = route.master(queue.broker_name)
        if address is None:
            return False
        delivery.queue = queue
        if address in self._unconnected:
            self._wait(delivery, address)
            return True
        connection = self._network.connected(address)
        if connection is None:
            self._connect(address)
            self._wait(delivery, address)
        else:
            self._write_first(delivery, connection, address)
        return True

    def _write_first(self, delivery: Delivery, connection: Connection, address: str) -> None:
        assert delivery.queue is not None
        now = self._now()
        command = self.request(delivery.batch, delivery.queue)
        try:
            future = connection.request_nowait(command, timeout=max(delivery.deadline - now, 0.0))
        except RemotingError:
            self._later(delivery)
            return
        self._written.add(connection)
        delivery.attempts += 1
        delivery.started = now
        future.add_done_callback(partial(self._answered, delivery, command.code, address))

    def _answered(
        self, delivery: Delivery, code: int, address: str, future: asyncio.Future[Command]
    ) -> None:
        if future.cancelled():
            self._broken(delivery, asyncio.CancelledError("the request was cancelled"))
            return
        failure = future.exception()
        if failure is None:
            verdict = self._judge(delivery, future.result(), code, address)
        elif isinstance(failure, RemotingError):
            verdict = self._lost(delivery, failure, address, written=True)
        else:
            self._broken(delivery, failure)
            return
        self._proceed(delivery, verdict)

    def _proceed(self, delivery: Delivery, verdict: Verdict) -> None:
        if verdict is Verdict.RETRY and not delivery.exhausted(self._options.retries):
            self._later(delivery)
        elif verdict is not Verdict.STORED:
            self._fail(delivery)

    # First attempts without a connection

    def _connect(self, address: str) -> None:
        self._tasks.spawn(
            self._network.connect(address, self._options.timeout),
            f"connection to {address}",
            on_done=partial(self._connected, address),
        )
        self._unconnected[address] = {}

    def _wait(self, delivery: Delivery, address: str) -> None:
        when = self._time.on_loop(delivery.deadline)
        late = self._loop.call_at(when, self._late, delivery, address, when)
        self._unconnected[address][delivery] = late

    def _late(self, delivery: Delivery, address: str, since: float) -> None:
        now = self._loop.time()
        if now - since > STALL_SECONDS:
            # The loop stalled, which kept the connection from being made: that time again.
            again = now + now - since
            late = self._loop.call_at(again, self._late, delivery, address, again)
            self._unconnected[address][delivery] = late
            return
        del self._unconnected[address][delivery]
        failure = ConnectFailed(address, "no connection within the time of the send")
        self._lost(delivery, failure, address, written=False)
        self._fail(delivery)

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        """Write what waited for a connection before anything else can be written to it."""
        if not task.cancelled():
            # Read, lest it be reported as lost when nothing waits any longer.
            task.exception()
        for delivery, late in self._unconnected.pop(address).items():
            late.cancel()
            try:
                self._write_first(delivery, task.result(), address)
            except RemotingError as failure:
                self._proceed(delivery, self._lost(delivery, failure, address, written=False))
            except asyncio.CancelledError as error:
                self._broken(delivery, error)
            except Exception as error:  # noqa: BLE001 - as in dispatch
                self._unexpected(delivery, error)

    # One task per batch

    def _later(self, delivery: Delivery) -> None:
        try:
            self._tasks.spawn(
                self._persist(delivery), "delivery", on_done=partial(self._ended, delivery)
            )
        except RuntimeError:
            self._fail(delivery)

    async def _persist(self, delivery: Delivery) -> None:
        """Try until the batch is settled."""
        backoff = Backoff(self._random)
        while not await self._attempt(delivery, backoff):
            pass

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        try:
            task.result()
        except asyncio.CancelledError as error:
            self._broken(delivery, error)
        except Exception as error:  # noqa: BLE001 - as in dispatch
            self._unexpected(delivery, error)

    async def _attempt(self, delivery: Delivery, backoff: Backoff) -> bool:
        """One attempt, with the pause before it. True when the batch is settled."""
        if delivery.failed_broker is not None and not await self._pause(delivery, backoff):
            self._fail(delivery)
            return True
        verdict = await self._try(delivery)
        if verdict is Verdict.STORED:
            return True
        exhausted = delivery.exhausted(self._options.retries)
        if verdict is Verdict.FAIL or exhausted or self._now() >= delivery.deadline:
            self._fail(delivery)
            return True
        return False

    async def _try(self, delivery: Delivery) -> Verdict:
        topic = delivery.batch.topic
        try:
            route = await self._route(topic, delivery.deadline - self._now())
            queue = delivery.batch.queue or self._choose(route, delivery.failed_broker)
            delivery.queue = queue
            address = self._address(route, queue)
        except PocketMQError as error:
            delivery.error = error
            delivery.failed_broker = delivery.failed_broker or ""
            retry = isinstance(error, NoRoute) and delivery.queue is not None
            return Verdict.RETRY if retry else Verdict.FAIL
        written = False
        try:
            connection = await self._network.connect(address, delivery.deadline - self._now())
            command = self.request(delivery.batch, queue)
            delivery.started = self._now()
            remaining = max(delivery.deadline - delivery.started, 0.0)
            future = connection.request_nowait(command, timeout=remaining)
            written = True
            delivery.attempts += 1
            answer = await future
        except RemotingError as failure:
            return self._lost(delivery, failure, address, written=written)
        return self._judge(delivery, answer, command.code, address)

    async def _pause(self, delivery: Delivery, backoff: Backoff) -> bool:
        """Wait before another attempt, unless another broker can be tried; False: out of time."""
        route = self._network.routes.table.get(delivery.batch.topic)
        if route is not None and delivery.batch.queue is None:
            now = self._loop.time()
            others = {queue.broker_name for queue in route.writable} - {delivery.failed_broker}
            if any(self._faults.available(broker, now) for broker in others):
                return True
        pause = backoff.next()
        if self._now() + pause >= delivery.deadline:
            return False
        await asyncio.sleep(pause)
        return True

    # Both

    async def _route(self, topic: str, timeout: float) -> Route:
        return await self._network.routes.to_write(topic, self._options.default_queues, timeout)

    def _choose(self, route: Route, avoid: str | None) -> MessageQueue:
        turn = self._turns.get(route.topic)
        if turn is None:
            if len(self._turns) >= MAX_TURNS:
                self._turns.clear()
            turn = self._turns[route.topic] = RoundRobin(self._random.getrandbits(31))
        return turn.next(route.writable, self._faults, self._loop.time(), avoid)

    def _address(self, route: Route, queue: MessageQueue) -> str:
        address = route.master(queue.broker_name)
        if address is None:
            self._network.routes.suspect(route.topic)
            raise NoRoute(
                "the queue's broker is not in the route",
                queue=queue,
                broker=queue.broker_name,
                hint="start its master, or send to another queue",
            )
        return address

    def _judge(self, delivery: Delivery, answer: Command, code: int, address: str) -> Verdict:
        queue = delivery.queue
        assert queue is not None
        verdict = delivery.judge(answer, code, self._group, address)
        now = self._now()
        self._faults.answered(queue.broker_name, now - delivery.started, self._time.on_loop(now))
        if verdict is Verdict.STORED:
            self._settle(delivery, queue, answer)
        else:
            delivery.failed_broker = queue.broker_name
            if answer.code not in BUSY:
                self._network.routes.suspect(queue.topic)
        return verdict

    def _lost(
        self, delivery: Delivery, failure: RemotingError, address: str, *, written: bool
    ) -> Verdict:
        queue = delivery.queue
        assert queue is not None
        delivery.failed_broker = queue.broker_name
        self._faults.failed(queue.broker_name, self._loop.time())
        self._network.routes.suspect(queue.topic)
        if isinstance(failure, RequestTimeout):
            self._network.doubt(address)
        return delivery.lost(failure, self._group, address, written=written)

    def _settle(self, delivery: Delivery, queue: MessageQueue, answer: Command) -> None:
        batch = delivery.batch
        try:
            stored = answer.read(SendMessageResponseHeader)
        except HeaderError as error:
            delivery.unknown = True
            delivery.error = PocketMQError(str(error), queue=queue, broker=queue.broker_name)
            self._fail(delivery)
            return
        if stored.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, stored.queue_id)
        status = SendStatus(answer.code)
        offset_ids = stored.msg_id.split(",")
        if len(offset_ids) != batch.count:
            offset_ids = [stored.msg_id] * batch.count
        offsets = range(stored.queue_offset, stored.queue_offset + batch.count)
        receipts = map(_RECEIPT, zip(repeat(status), repeat(queue), offsets, batch.ids, offset_ids))
        durable = status is SendStatus.OK or not self._options.require_durable
        for future, receipt in zip(batch.futures, receipts, strict=True):
            if future is None or future.done():
                continue
            if durable:
                future.set_result(receipt)
            else:
                future.set_exception(not_durable(receipt, self._group))
        self._finish(delivery, stored=True)

    def _unexpected(self, delivery: Delivery, error: Exception) -> None:
        _log.exception("batch not sent", topic=delivery.batch.topic)
        self._broken(delivery, error)

    def _broken(self, delivery: Delivery, error: BaseException) -> None:
        """Something that isn't the network's doing ended the delivery."""
        delivery.unknown = delivery.unknown or delivery.attempts > 0
        if delivery.error is None:
            delivery.error = PocketMQError(str(error) or type(error).__name__)
        self._fail(delivery)

    def _finish(self, delivery: Delivery, *, stored: bool) -> None:
        if not delivery.settled:
            delivery.settled = True
            self._finished(delivery.batch, stored=stored)

    def _fail(self, delivery: Delivery) -> None:
        for future in delivery.batch.futures:
            if future is not None and not future.done():
                future.set_exception(delivery.failure(delivery.batch.topic, self._group))
        self._finish(delivery, stored=False)
