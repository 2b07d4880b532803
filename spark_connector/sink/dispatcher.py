"""Sends the parcels of one task: connections to brokers, requests in flight, retries."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from client.routes import FaultTable, RoundRobin
from client.wire.backoff import Backoff
from client.wire.send_verdict import SendVerdict
from remoting.blocking import BlockingConnection
from remoting.errors import ConnectFailed, ConnectionLost, RemotingError
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.protocol.queue import MessageQueue
from spark_connector.connections import Lease
from spark_connector.errors import BrokerError, ConnectorError
from spark_connector.limits import (
    MAX_IN_FLIGHT_BYTES,
    MAX_IN_FLIGHT_MESSAGES,
    MAX_IN_FLIGHT_REQUESTS,
)
from spark_connector.sink.delivery import ParcelDelivery
from spark_connector.sink.encoder import Parcel
from spark_connector.sink.options import SendMode, SinkOptions
from spark_connector.sink.routes import WriteRoutes


class Channel:
    """Requests to one broker, several at a time.

    Args:
        lease: of the connection; it is entered here and left by ``close``.

    Raises:
        ConnectFailed: no connection can be made.
    """

    def __init__(self, address: str, lease: AbstractContextManager[BlockingConnection]) -> None:
        self.address = address
        self._lease = lease
        self._connection = lease.__enter__()
        self._in_flight: dict[int, ParcelDelivery] = {}
        self._messages = 0
        self._bytes = 0

    @property
    def idle(self) -> bool:
        """Whether no answer is waited for."""
        return not self._in_flight

    @property
    def stale(self) -> bool:
        """Whether the broker has left while nothing was asked of it, as it may after two minutes
        in which Spark had no rows for us."""
        return self.idle and not self._connection.usable

    def has_room(self, parcel: Parcel) -> bool:
        """Whether the parcel may be sent now. A large one may be when there is nothing else."""
        return self.idle or (
            len(self._in_flight) < MAX_IN_FLIGHT_REQUESTS
            and self._messages + parcel.messages <= MAX_IN_FLIGHT_MESSAGES
            and self._bytes + len(parcel.body) <= MAX_IN_FLIGHT_BYTES
        )

    def send(self, command: Command, delivery: ParcelDelivery, *, timeout: float) -> None:
        """Send a parcel's request. Raises RemotingError."""
        if command.is_oneway:
            self._connection.send_oneway(command, timeout=timeout)
            return
        opaque = self._connection.submit(command, timeout=timeout)
        self._in_flight[opaque] = delivery
        self._messages += delivery.parcel.messages
        self._bytes += len(delivery.parcel.body)

    def receive(self, now: float, timeout: float) -> tuple[ParcelDelivery, Command]:
        """The next answer; the oldest request has ``timeout`` from when it was sent.

        Raises:
            RemotingError: there is none; all that is in flight is lost.
        """
        oldest = next(iter(self._in_flight.values()))
        answer = self._connection.receive(timeout=max(oldest.sent_at + timeout - now, 0.0))
        delivery = self._in_flight.pop(answer.opaque)
        self._messages -= delivery.parcel.messages
        self._bytes -= len(delivery.parcel.body)
        return delivery, answer

    def request(self, command: Command, *, timeout: float) -> Command:
        """Any other request, while nothing is in flight. Raises RemotingError."""
        return self._connection.request(command, timeout=timeout)

    def close(self, failure: BaseException | None = None) -> list[ParcelDelivery]:
        """Give the connection back, for others to use if there was no failure.

        Returns:
            What was in flight, in the order it was sent.
        """
        lost = list(self._in_flight.values())
        self._in_flight.clear()
        self._messages = self._bytes = 0
        self._lease.__exit__(type(failure) if failure else None, failure, None)
        return lost


LAST_VERSION_WITHOUT_TIMERS = 411
"""What brokers of the last 4.x report; those of 5.x report more (cf. MQVersion)."""


@dataclass(slots=True)
class Counts:
    """What a task did.

    Attributes:
        messages, bytes, requests: that were stored; of one-way sends, that were sent.
        retries: attempts that had to be made again.
        busy: those of them that a broker was too busy for.
        unconfirmed: messages that the disk or a slave did not confirm in time.
    """

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    busy: int = 0
    unconfirmed: int = 0


class ParcelDispatcher:
    """Sends the parcels of one task.

    Args:
        lease: connections.
        clock: seconds, monotonic.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        options: SinkOptions,
        routes: WriteRoutes,
        lease: Lease,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._timeout = options.connection.request_timeout
        self._oneway = options.send_mode is SendMode.ONEWAY
        self._routes = routes
        self._lease = lease
        self._clock = clock
        self._now_ms = now_ms
        self._sleep = sleep
        self._random = random.Random()  # noqa: S311 - spreads load
        self._faults = FaultTable()
        self._turns: dict[str, RoundRobin] = {}
        self._channels: dict[str, Channel] = {}
        self._under_way: dict[MessageQueue, str] = {}
        self._again: deque[ParcelDelivery] = deque()
        self._timers: dict[str, bool] = {}
        self.counts = Counts()

    def send(self, parcel: Parcel) -> None:
        """Send a parcel, now or after waiting for room.

        Raises:
            BrokerError: this or an earlier parcel could not be stored.
            ConnectorError: there is no queue or no timer for it.
        """
        delivery = ParcelDelivery(
            parcel=parcel,
            deadline=self._clock() + self._options.send_timeout,
            retries=self._options.retries,
            backoff=Backoff(self._random),
        )
        self._send_again()
        while parcel.queue in self._under_way:
            self._settle(self._channels[self._under_way[parcel.queue]])
            self._send_again()
        self._attempt(delivery)

    def flush(self) -> None:
        """Wait until all is stored. Raises as ``send`` does."""
        self._send_again()
        while waiting := [channel for channel in self._channels.values() if not channel.idle]:
            self._settle(waiting[0])
            self._send_again()

    def close(self, failure: BaseException | None = None) -> None:
        """Give the connections back; after a failure none is used again."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close(failure)

    # attempts

    def _send_again(self) -> None:
        while self._again:
            delivery = self._again.popleft()
            self._pause(delivery)
            self._attempt(delivery)

    def _attempt(self, delivery: ParcelDelivery) -> None:
        """Try until the parcel is sent; ``_settle`` takes the answer later."""
        while not self._try(delivery):
            pass

    def _try(self, delivery: ParcelDelivery) -> bool:
        """Whether the parcel was sent; if not, this has waited for something."""
        parcel = delivery.parcel
        queue = delivery.queue = parcel.queue or self._choose(delivery)
        address = self._routes.address(queue)
        if address is None:
            self._unreachable(delivery, "no broker of this name is in the topic's route")
            return False
        delivery.address = address
        try:
            channel = self._channel(address)
        except ConnectFailed as failure:
            self._unreachable(delivery, str(failure))
            return False
        if not channel.has_room(parcel):
            self._settle(channel)
            return False
        delivery.attempts += 1
        delivery.sent_at = self._clock()
        try:
            if parcel.deliver_ms is not None and parcel.deliver_ms > self._now_ms():
                self._need_timers(channel, delivery)
            channel.send(self._request(parcel, queue), delivery, timeout=self._timeout)
        except RemotingError as failure:
            self._drop(channel, failure)
            self._retry(delivery, delivery.lost(str(failure)))
            self._pause(self._again.pop())
            return False
        if self._oneway:
            self._stored(delivery)
        elif delivery.ordered:
            self._under_way[queue] = address
        return True

    def _choose(self, delivery: ParcelDelivery) -> MessageQueue:
        topic = delivery.parcel.topic
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns[topic] = RoundRobin(self._random.getrandbits(31))
        avoid = delivery.queue.broker_name if delivery.queue else None
        return turn.next(self._routes.queues(topic), self._faults, self._clock(), avoid)

    def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is not None and channel.stale:
            self._channels.pop(address).close(ConnectionLost(address, "closed by the peer"))
            channel = None
        if channel is None:
            channel = self._channels[address] = Channel(address, self._lease(address))
        return channel

    def _request(self, parcel: Parcel, queue: MessageQueue) -> Command:
        batched = parcel.properties is None
        header = SendMessageRequestHeaderV2(
            producer_group=self._options.producer_group,
            topic=parcel.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._options.default_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=self._now_ms(),
            flag=parcel.flag,
            properties=parcel.properties,
            reconsume_times=0,
            batch=batched,
            bname=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if batched else RequestCode.SEND_MESSAGE_V2
        command = Command.request(code, header, oneway=self._oneway)
        command.body = parcel.body
        return command

    def _need_timers(self, channel: Channel, delivery: ParcelDelivery) -> None:
        """Check that the broker can keep a message back until an instant.

        Raises:
            ConnectorError: it can't.
            RemotingError: the broker does not answer.
        """
        queue = delivery.queue
        assert queue is not None
        if channel.address not in self._timers:
            header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
            probe = Command.request(RequestCode.GET_MAX_OFFSET, header)
            version = channel.request(probe, timeout=self._timeout).version
            self._timers[channel.address] = version > LAST_VERSION_WITHOUT_TIMERS
        if not self._timers[channel.address]:
            raise ConnectorError(
                f"row {delivery.parcel.first_row} of the task has a deliverTimestamp to come, and "
                f"broker {queue.broker_name} ({channel.address}) has no timers",
                "use the column delayLevel, or a broker of RocketMQ 5",
            )

    # outcomes

    def _settle(self, channel: Channel) -> None:
        """Take the next answer."""
        try:
            delivery, answer = channel.receive(self._clock(), self._timeout)
        except RemotingError as failure:
            self._drop(channel, failure)
            return
        verdict = delivery.judge(answer)
        queue = delivery.queue
        assert queue is not None
        if verdict is SendVerdict.STORED:
            now = self._clock()
            self._faults.answered(queue.broker_name, now - delivery.sent_at, now)
            self._stored(delivery)
            if answer.code != ResponseCode.SUCCESS:
                # The disk or a slave did not confirm in time: the broker gets a pause.
                self.counts.unconfirmed += delivery.parcel.messages
                self._sleep(delivery.backoff.next())
            return
        if verdict is SendVerdict.BUSY:
            self.counts.busy += 1
        else:
            self._routes.invalidate(queue.topic)
        self._retry(delivery, verdict)

    def _stored(self, delivery: ParcelDelivery) -> None:
        self.counts.messages += delivery.parcel.messages
        self.counts.bytes += len(delivery.parcel.body)
        self.counts.requests += 1
        if delivery.parcel.queue is not None:
            self._under_way.pop(delivery.parcel.queue, None)

    def _drop(self, channel: Channel, failure: RemotingError) -> None:
        """A connection ended: send its unanswered parcels again."""
        self._channels.pop(channel.address, None)
        for delivery in channel.close(failure):
            assert delivery.queue is not None
            self._faults.failed(delivery.queue.broker_name, self._clock())
            self._routes.invalidate(delivery.parcel.topic)
            self._retry(delivery, delivery.lost(str(failure)))

    def _unreachable(self, delivery: ParcelDelivery, why: str) -> None:
        """Nothing could be sent, which costs no attempt: only the deadline ends this."""
        assert delivery.queue is not None
        self._faults.failed(delivery.queue.broker_name, self._clock())
        self._routes.invalidate(delivery.parcel.topic)
        delivery.why = why
        self._pause(delivery)

    def _retry(self, delivery: ParcelDelivery, verdict: SendVerdict) -> None:
        if verdict is SendVerdict.FAIL:
            raise self._error(delivery)
        self.counts.retries += 1
        self._again.append(delivery)

    def _pause(self, delivery: ParcelDelivery) -> None:
        """Before another attempt, unless another broker can be tried at once."""
        now = self._clock()
        if now >= delivery.deadline:
            raise self._error(delivery)
        if delivery.parcel.queue is None and delivery.queue is not None:
            brokers = {queue.broker_name for queue in self._routes.queues(delivery.parcel.topic)}
            others = brokers - {delivery.queue.broker_name}
            if any(self._faults.available(broker, now) for broker in others):
                return
        self._sleep(min(delivery.backoff.next(), delivery.deadline - now))

    def _error(self, delivery: ParcelDelivery) -> BrokerError:
        started = delivery.deadline - self._options.send_timeout
        return delivery.error(self._clock() - started)
