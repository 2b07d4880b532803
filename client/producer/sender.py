"""Delivery of send requests: choice of queue and connection, retries, and receipts.

Each attempt is one call of ``_write``: it writes the request and registers a callback for the
response. If the route is known and the connection is open, the first attempt needs no task. First
attempts without an open connection wait and are written in order once it is established, so
messages are stored in the order in which they were sent, unless one is retried. For every other
attempt a task looks up route, queue and connection.

``Delivery`` does no I/O: it classifies responses and failures. Once an attempt was written but not
answered, the outcome stays unknown unless a later attempt succeeds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container, Iterable
from functools import partial
from itertools import repeat
from typing import Final

from client.config import ProducerOptions
from client.errors import (
    BrokerUnreachable,
    MessageIllegal,
    NoRoute,
    NotDurable,
    Outcome,
    PocketMQError,
    RemoteError,
    SendError,
    as_send_error,
    remote_error,
)
from client.message import Receipt, SendStatus
from client.network.context import ClientContext
from client.network.remote import name_of, unavailable
from client.network.routes import MAX_QUEUES, RoundRobin, Route, by_sharding_key
from client.producer.columns import MessageColumns
from client.wire.backoff import Backoff, retry_after
from client.wire.send_verdict import SendVerdict, send_verdict
from remoting.connection import Connection
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost, RemotingError
from remoting.limits import STALL_SECONDS
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

_log = Log("client")

MAX_ROUND_ROBINS: Final = 10_000
"""Topics for which a round-robin position is kept; beyond that all are dropped."""

_RECEIPT: Final[Callable[[Iterable[object]], Receipt]] = partial(tuple.__new__, Receipt)
"""Builds a receipt from its fields, for every message. ``Receipt(*fields)`` would call the
``__new__`` that NamedTuple writes in Python, which takes a fifth longer."""


class DeadlineClock:
    """A producer's clock for deadlines: the event loop's time minus the time it was stalled.

    While the application blocks the event loop, nothing can be sent or received. That time says
    nothing about the broker, so it doesn't count against a deadline.

    Args:
        loop_time: returns the event loop's time in seconds.
    """

    def __init__(self, loop_time: Callable[[], float]) -> None:
        self._loop_time = loop_time
        self._lost = 0.0
        self._stall = (0.0, 0.0)

    def now(self) -> float:
        """Return the time in seconds."""
        return self._loop_time() - self._lost

    def on_loop(self, when: float) -> float:
        """Convert a time of this clock to event loop time, assuming no further stall."""
        return when + self._lost

    def exclude_stall(self, since: float) -> None:
        """Subtract the time since ``since`` if the event loop stalled.

        ``since`` is the event loop time at which the caller was due to run. A delay of more than
        ``STALL_SECONDS`` is a stall. Overlapping delays of several callers are subtracted once.
        """
        now = self._loop_time()
        if now - since <= STALL_SECONDS:
            return
        begin, end = self._stall
        if since > end:
            begin = end = since
        self._stall = (min(since, begin), now)
        self._lost += now - end + begin - self._stall[0]


class Delivery:
    """The delivery state of one request.

    Attributes:
        attempts: number of attempts that were written.
        backoff: the pauses between attempts; None before the first one.
        busy: number of attempts rejected by a busy broker; ``retries`` doesn't limit them.
        not_before: when brokers that were busy may be tried again, by their names.
        queue: the queue of the current or last attempt.
        failed_broker: the broker of the last failed attempt, to be avoided by the next one; empty
            if no broker was reached; None: no attempt has failed.
        later: the other parts of a divided batch, to be sent when this one is settled.
        unknown: whether an attempt was written but not answered.
        settled: whether all messages have their receipt or error.
        error: the error of the last failed attempt.
        started: when the last attempt was written, in seconds of the producer's clock.
        deadline: when the delivery fails, by the same clock.
    """

    __slots__ = (
        "attempts",
        "backoff",
        "busy",
        "deadline",
        "error",
        "failed_broker",
        "later",
        "not_before",
        "queue",
        "request",
        "settled",
        "started",
        "unknown",
    )

    def __init__(self, request: MessageColumns) -> None:
        self.request = request
        self.attempts = 0
        self.backoff: Backoff | None = None
        self.busy = 0
        self.queue: MessageQueue | None = request.queue
        self.failed_broker: str | None = None
        self.later: list[MessageColumns] = []
        self.not_before: dict[str, float] = {}
        self.unknown = False
        self.settled = False
        self.error: PocketMQError | None = None
        self.started = 0.0
        self.deadline = request.deadline

    def exhausted(self, retries: int) -> bool:
        """Return whether no retry is left. Attempts that wrote nothing don't count."""
        return retries == 0 or self.attempts - self.busy > retries

    def avoid(self, now: float) -> set[str]:
        """Return the brokers that shouldn't get the next attempt, if there are others."""
        avoided = {broker for broker, when in self.not_before.items() if when > now}
        if self.failed_broker and self.failed_broker not in self.not_before:
            avoided.add(self.failed_broker)
        return avoided

    def judge(
        self, answer: Command, code: int, group: str, address: str, account: str | None = None
    ) -> SendVerdict:
        """Classify the response to the request ``code``, which ``account`` has signed."""
        verdict = send_verdict(answer.code)
        if verdict is SendVerdict.STORED:
            return verdict
        self.error = remote_error(
            answer.code,
            answer.remark,
            name_of(code),
            queue=self.queue,
            group=group,
            broker=address,
            account=account,
            retry_after=retry_after(answer),
        )
        if verdict is SendVerdict.BUSY:
            self.busy += 1
        return verdict

    def lost(
        self, failure: RemotingError, group: str, address: str, *, written: bool
    ) -> SendVerdict:
        """Classify a connection failure and record its error.

        ``written``: the request had been written before the connection failed.
        """
        self.error = unavailable(failure, address, queue=self.queue, group=group)
        if written and isinstance(failure, ConnectionLost | AnswerTimeout):
            self.unknown = True
        return SendVerdict.FAIL if isinstance(failure, AnswerTimeout) else SendVerdict.RETRY

    def failure(self, topic: str, group: str) -> SendError:
        """Return the error for one message of the request; a new object on each call."""
        cause = self.error
        if cause is not None and not self.unknown:
            error = as_send_error(cause)
            error.topic, error.group = topic, group
            error.queue = cause.queue or self.queue
            if isinstance(cause, RemoteError):
                error.__cause__ = cause.__cause__
            else:
                error.message = f"the message was not sent: {cause.message}"
            return error
        why = cause.message if cause is not None else "no broker could be reached in time"
        error = SendError(
            f"the message was written to a broker, and no acknowledgement came: {why}"
            if self.unknown
            else f"the message was not sent: {why}",
            outcome=Outcome.UNKNOWN if self.unknown else Outcome.NOT_SENT,
            topic=topic,
            queue=self.queue,
            group=group,
            broker=cause.broker if cause is not None else None,
            hint="it may be stored: send it again only if a duplicate does no harm"
            if self.unknown
            else "try again later",
        )
        error.__cause__ = cause
        return error


def not_durable(receipt: Receipt, group: str) -> NotDurable:
    """Return the error for a message that is stored less durably than the producer requires."""
    error = NotDurable(
        f"the message is stored, but the broker reports {receipt.status.name}",
        outcome=Outcome.UNKNOWN,
        queue=receipt.queue,
        group=group,
        broker=receipt.queue.broker_name,
        hint="look at the broker's disk and slaves; receipt says where the message is",
    )
    error.receipt = receipt
    return error


class Sender:
    """Delivers the requests of one producer.

    Args:
        finished: called once per request, when all its messages are settled, with the request and
            whether it was stored.
        divided: called with a part of a request that has become a request of its own.
        deadline_clock: the producer's clock for deadlines.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        options: ProducerOptions,
        tasks: Supervisor,
        finished: Callable[[MessageColumns, bool], None],
        divided: Callable[[MessageColumns], None],
        deadline_clock: DeadlineClock,
    ) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._tasks = tasks
        self._finished = finished
        self._divided = divided
        self._random = random.Random()  # noqa: S311 - spreads load
        self._round_robins: dict[str, RoundRobin] = {}
        self._loop = asyncio.get_running_loop()
        self._time = deadline_clock
        self._now = deadline_clock.now
        self._faults = context.faults
        self._serialize = context.remote.serialize
        self._keeps_answers = bool(options.interceptors)
        self._connections: dict[str, Connection] = {}
        """Open connections by address: a cache in front of the context's, used per request."""
        self._written: set[Connection] = set()
        self._unconnected: dict[str, dict[Delivery, asyncio.TimerHandle]] = {}
        """By address: deliveries waiting for a connection, in order, each with its time-out."""

    def dispatch(self, request: MessageColumns) -> None:
        """Start the delivery of a request; doesn't wait for it."""
        delivery = Delivery(request)
        try:
            if not self._write_now(delivery):
                self._try_later(delivery)
        except Exception as error:  # noqa: BLE001 - every message must be settled
            self._unexpected(delivery, error)

    def flush(self) -> None:
        """Flush the connections written to, without waiting for their next scheduled flush."""
        for connection in self._written:
            connection.flush()
        self._written.clear()

    async def write_oneway(self, message: MessageColumns) -> None:
        """Send one sealed message oneway. Raises SendError."""
        try:
            route = await self._route(message.topic, message.deadline - self._now())
            queue = message.queue
            if message.sharding_key is not None:
                queue = by_sharding_key(route.writable, message.sharding_key)
            queue = queue or self._choose(route)
            address = self._address(route, queue)
        except PocketMQError as error:
            raise as_send_error(error) from error.__cause__
        written = False
        try:
            connection = await self._context.connect(address, message.deadline - self._now())
            connection.send_oneway(self.command(message, queue, oneway=True))
            written = True
            await connection.drain()
        except RemotingError as error:
            failure = as_send_error(BrokerUnreachable(str(error), queue=queue, broker=address))
            failure.outcome = Outcome.UNKNOWN if written else Outcome.NOT_SENT
            raise failure from error

    def command(
        self, request: MessageColumns, queue: MessageQueue, *, oneway: bool = False
    ) -> Command:
        """Return the remoting command that sends ``request`` to ``queue``."""
        payload = request.payload()
        batched = payload.properties is None
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=request.topic,
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
        command = Command.request(code, header, body=payload.body, oneway=oneway)
        command.serialize = self._serialize
        return command

    # One attempt

    def _write(self, delivery: Delivery, connection: Connection, address: str) -> None:
        """Write the request; ``_answered`` handles its response or the connection's failure.

        Raises:
            RemotingError: the request could not be written.
        """
        assert delivery.queue is not None
        now = self._now()
        command = self.command(delivery.request, delivery.queue)
        future = connection.request_nowait(command, timeout=max(delivery.deadline - now, 0.0))
        delivery.attempts += 1
        delivery.started = now
        self._written.add(connection)
        future.add_done_callback(partial(self._answered, delivery, command.code, address))

    def _answered(
        self, delivery: Delivery, code: int, address: str, future: asyncio.Future[Command]
    ) -> None:
        if future.cancelled():
            self._broken(delivery, asyncio.CancelledError("the request was cancelled"))
            return
        failure = future.exception()
        if failure is None:
            self._proceed(delivery, self._judge(delivery, future.result(), code, address))
        elif isinstance(failure, RemotingError):
            self._proceed(delivery, self._lost(delivery, failure, address, written=True))
        else:
            self._broken(delivery, failure)

    def _proceed(self, delivery: Delivery, verdict: SendVerdict) -> None:
        """After an attempt: do nothing if it was stored, else retry or fail the request."""
        if verdict is SendVerdict.STORED:
            return
        exhausted = delivery.exhausted(self._options.retries)
        late = self._now() >= delivery.deadline
        if not late and self._is_divisible(delivery):
            self._divide(delivery)
        elif verdict is SendVerdict.FAIL or exhausted or late:
            self._fail(delivery)
        else:
            self._try_later(delivery)

    def _is_divisible(self, delivery: Delivery) -> bool:
        request = delivery.request
        illegal = isinstance(delivery.error, MessageIllegal) and not delivery.unknown
        return illegal and request.count > 1 and not request.fixed

    def _divide(self, delivery: Delivery) -> None:
        """Send a refused batch in two halves, one after the other.

        So only what the broker can't take fails, e.g. one message of many, and a batch that is
        larger than the broker's ``maxMessageSize`` is stored.
        """
        first = Delivery(delivery.request.split(delivery.request.count // 2))
        first.later = [delivery.request, *delivery.later]
        self._divided(first.request)
        self._try_later(first)

    # The first attempt

    def _write_now(self, delivery: Delivery) -> bool:
        """Write the first attempt, or queue it until its connection is established.

        Returns:
            False if the route has to be looked up first.
        """
        route = self._context.routes.table.get(delivery.request.topic)
        if route is None or not route.writable:
            return False
        queue = delivery.request.queue or self._choose(route)
        address = route.master(queue.broker_name)
        if address is None:
            return False
        delivery.queue = queue
        connection = None
        if address not in self._unconnected:
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                connection = self._context.connected(address)
                if connection is None:
                    self._connect(address)
                else:
                    self._connections[address] = connection
        if connection is None:
            when = self._time.on_loop(delivery.deadline)
            late = self._loop.call_at(when, self._late, delivery, address, when)
            self._unconnected[address][delivery] = late
        else:
            self._write_first(delivery, connection, address)
        return True

    def _write_first(self, delivery: Delivery, connection: Connection, address: str) -> None:
        try:
            self._write(delivery, connection, address)
        except RemotingError:
            self._try_later(delivery)

    def _connect(self, address: str) -> None:
        self._tasks.spawn(
            self._context.connect(address, self._options.timeout),
            f"connection to {address}",
            on_done=partial(self._connected, address),
        )
        self._unconnected[address] = {}

    def _late(self, delivery: Delivery, address: str, since: float) -> None:
        now = self._loop.time()
        if now - since > STALL_SECONDS:
            # The loop stalled, so the connection could not make progress: extend the wait by the
            # length of the stall.
            again = now + now - since
            late = self._loop.call_at(again, self._late, delivery, address, again)
            self._unconnected[address][delivery] = late
            return
        del self._unconnected[address][delivery]
        failure = ConnectFailed(address, "no connection within the time of the send")
        self._lost(delivery, failure, address, written=False)
        self._fail(delivery)

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        """Write the waiting first attempts, before anyone else can write to the connection."""
        if not task.cancelled():
            # Mark the exception as retrieved: if no delivery waits any more, nothing below does,
            # and asyncio would log it.
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

    # Any other attempt

    def _try_later(self, delivery: Delivery) -> None:
        try:
            self._tasks.spawn(
                self._try(delivery), "delivery", on_done=partial(self._attempt_ended, delivery)
            )
        except RuntimeError:
            self._fail(delivery)

    def _attempt_ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        try:
            task.result()
        except asyncio.CancelledError as error:
            self._broken(delivery, error)
        except Exception as error:  # noqa: BLE001 - as in dispatch
            self._unexpected(delivery, error)

    async def _try(self, delivery: Delivery) -> None:
        """Look up route, queue and connection, and write; pause first if an attempt has failed."""
        if delivery.failed_broker is not None and not await self._pause(delivery):
            self._fail(delivery)
            return
        request = delivery.request
        try:
            route = await self._route(request.topic, delivery.deadline - self._now())
            avoid = delivery.avoid(self._now())
            delivery.queue = queue = request.queue or self._choose(route, avoid)
            address = self._address(route, queue)
        except PocketMQError as error:
            delivery.error = error
            delivery.failed_broker = delivery.failed_broker or ""
            retry = isinstance(error, NoRoute) and delivery.queue is not None
            self._proceed(delivery, SendVerdict.RETRY if retry else SendVerdict.FAIL)
            return
        try:
            connection = await self._context.connect(address, delivery.deadline - self._now())
            self._write(delivery, connection, address)
        except RemotingError as failure:
            self._proceed(delivery, self._lost(delivery, failure, address, written=False))

    async def _pause(self, delivery: Delivery) -> bool:
        """Wait before a retry, unless another broker can be tried at once.

        Returns:
            False if the pause would exceed the deadline.
        """
        route = self._context.routes.table.get(delivery.request.topic)
        if route is not None and delivery.request.queue is None:
            now = self._loop.time()
            others = {queue.broker_name for queue in route.writable} - delivery.avoid(self._now())
            if any(
                # An order conf may name brokers that have no master.
                route.master(broker) is not None and self._faults.available(broker, now)
                for broker in others
            ):
                return True
        # The earliest time that a broker has named; else growing pauses.
        pause = min(delivery.not_before.values(), default=0.0) - self._now()
        if pause <= 0:
            if delivery.backoff is None:
                delivery.backoff = Backoff(self._random)
            pause = delivery.backoff.next()
        if self._now() + pause >= delivery.deadline:
            return False
        await asyncio.sleep(pause)
        return True

    async def _route(self, topic: str, timeout: float) -> Route:
        return await self._context.routes.to_write(topic, self._options.default_queues, timeout)

    def _choose(self, route: Route, avoid: Container[str] = ()) -> MessageQueue:
        turn = self._round_robins.get(route.topic)
        if turn is None:
            if len(self._round_robins) >= MAX_ROUND_ROBINS:
                self._round_robins.clear()
            turn = self._round_robins[route.topic] = RoundRobin(self._random.getrandbits(31))
        return turn.next(route.writable, self._faults, self._loop.time(), avoid)

    def _address(self, route: Route, queue: MessageQueue) -> str:
        address = route.master(queue.broker_name)
        if address is None:
            self._context.routes.invalidate(route.topic)
            raise NoRoute(
                "the queue's broker is not in the route",
                queue=queue,
                broker=queue.broker_name,
                hint="start its master, or send to another queue",
            )
        return address

    # Outcomes

    def _judge(self, delivery: Delivery, answer: Command, code: int, address: str) -> SendVerdict:
        queue = delivery.queue
        assert queue is not None
        verdict = SendVerdict.STORED
        if answer.code != ResponseCode.SUCCESS:
            verdict = delivery.judge(
                answer, code, self._group, address, self._context.remote.account
            )
        now = self._now()
        self._faults.answered(queue.broker_name, now - delivery.started, self._time.on_loop(now))
        if verdict is SendVerdict.STORED:
            self._settle(delivery, queue, answer)
        else:
            delivery.failed_broker = queue.broker_name
            delivery.not_before.pop(queue.broker_name, None)
            if wait := retry_after(answer):
                delivery.not_before[queue.broker_name] = now + wait
            if verdict is not SendVerdict.BUSY:
                self._context.routes.invalidate(queue.topic)
        return verdict

    def _lost(
        self, delivery: Delivery, failure: RemotingError, address: str, *, written: bool
    ) -> SendVerdict:
        queue = delivery.queue
        assert queue is not None
        delivery.failed_broker = queue.broker_name
        delivery.not_before.pop(queue.broker_name, None)
        self._faults.failed(queue.broker_name, self._loop.time())
        self._context.routes.invalidate(queue.topic)
        if isinstance(failure, AnswerTimeout):
            self._context.heartbeats.probe(address)
        return delivery.lost(failure, self._group, address, written=written)

    def _settle(self, delivery: Delivery, queue: MessageQueue, answer: Command) -> None:
        request = delivery.request
        try:
            stored = answer.read(SendMessageResponseHeader)
            if stored.queue_offset < 0 or not 0 <= stored.queue_id < MAX_QUEUES:
                raise HeaderError(  # noqa: TRY301 - an answer that cannot be read either
                    f"the broker acknowledges the message with queue {stored.queue_id} and offset"
                    f" {stored.queue_offset}"
                )
        except HeaderError as error:
            delivery.unknown = True
            delivery.error = PocketMQError(str(error), queue=queue, broker=queue.broker_name)
            self._fail(delivery)
            return
        if self._keeps_answers:
            self._context.keep_send_answer(queue.broker_name, answer.pairs or ())
        if stored.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, stored.queue_id)
        status = SendStatus(answer.code)
        count = request.count
        offset_ids = stored.msg_id.split(",")
        if len(offset_ids) != count:
            offset_ids = [stored.msg_id] * count
        offsets = range(stored.queue_offset, stored.queue_offset + count)
        handles = repeat(stored.recall_handle)
        fields = zip(
            *(repeat(status), repeat(queue), offsets, request.ids, offset_ids, handles),
            strict=False,
        )
        durable = status is SendStatus.OK or not self._options.require_durable
        for future, receipt in zip(request.futures, map(_RECEIPT, fields), strict=True):
            if future.done():
                continue
            if durable:
                future.set_result(receipt)
            else:
                future.set_exception(not_durable(receipt, self._group))
        self._finish(delivery, stored=True)

    def _unexpected(self, delivery: Delivery, error: Exception) -> None:
        _log.exception("request not sent", topic=delivery.request.topic)
        self._broken(delivery, error)

    def _broken(self, delivery: Delivery, error: BaseException) -> None:
        """Fail a delivery because of cancellation or an unexpected error."""
        delivery.unknown = delivery.unknown or delivery.attempts > 0
        if delivery.error is None:
            delivery.error = PocketMQError(str(error) or type(error).__name__)
        self._fail(delivery)

    def _finish(self, delivery: Delivery, *, stored: bool) -> None:
        if not delivery.settled:
            delivery.settled = True
            self._finished(delivery.request, stored)
            if delivery.later:
                following = Delivery(delivery.later[0])
                following.later = delivery.later[1:]
                self._try_later(following)

    def _fail(self, delivery: Delivery) -> None:
        for future in delivery.request.futures:
            if not future.done():
                future.set_exception(delivery.failure(delivery.request.topic, self._group))
        self._finish(delivery, stored=False)
