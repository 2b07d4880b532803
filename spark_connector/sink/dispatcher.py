"""Sends the parcels of one task: manages connections, requests in flight and retries."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from client.network.routes import FaultTable, RoundRobin
from client.wire.backoff import Backoff, retry_after
from client.wire.send_verdict import SendVerdict
from client.wire.timers import has_timers, timer_probe
from remoting.blocking import BlockingConnection
from remoting.errors import ConnectFailed, ConnectionLost, RemotingError
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
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
    """A connection to one broker with several requests in flight.

    Args:
        address: the broker, ``host:port``.
        lease: the lease of the connection; entered here and exited by ``close``.

    Raises:
        ConnectFailed: no connection can be opened.
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
        """Whether no request is in flight."""
        return not self._in_flight

    @property
    def stale(self) -> bool:
        """Whether the broker has closed the connection while it was idle.

        Brokers close idle connections after two minutes, and Spark may have no rows for longer.
        """
        return self.idle and not self._connection.usable

    def has_room(self, parcel: Parcel) -> bool:
        """Return whether a parcel may be sent now.

        A parcel that exceeds the limits by itself may be sent when nothing is in flight.
        """
        return self.idle or (
            len(self._in_flight) < MAX_IN_FLIGHT_REQUESTS
            and self._messages + parcel.messages <= MAX_IN_FLIGHT_MESSAGES
            and self._bytes + len(parcel.body) <= MAX_IN_FLIGHT_BYTES
        )

    def send(self, command: Command, delivery: ParcelDelivery, *, timeout: float) -> None:
        """Send a parcel's request.

        Args:
            command: the request.
            delivery: returned by ``receive`` with the answer, unless the request is one-way.
            timeout: for sending, in seconds.

        Raises:
            RemotingError: the request can't be sent.
        """
        if command.is_oneway:
            self._connection.send_oneway(command, timeout=timeout)
            return
        opaque = self._connection.submit(command, timeout=timeout)
        self._in_flight[opaque] = delivery
        self._messages += delivery.parcel.messages
        self._bytes += len(delivery.parcel.body)

    def receive(self, now: float, timeout: float) -> tuple[ParcelDelivery, Command]:
        """Return the next answer and its delivery.

        Args:
            now: the current time, monotonic seconds.
            timeout: seconds that the oldest request may take, from when it was sent.

        Raises:
            RemotingError: there is no answer in time; all requests in flight are lost.
        """
        oldest = next(iter(self._in_flight.values()))
        answer = self._connection.receive(timeout=max(oldest.sent_at + timeout - now, 0.0))
        delivery = self._in_flight.pop(answer.opaque)
        self._messages -= delivery.parcel.messages
        self._bytes -= len(delivery.parcel.body)
        return delivery, answer

    def request(self, command: Command, *, timeout: float) -> Command:
        """Send another request and return its answer. Nothing may be in flight.

        Raises:
            RemotingError: there is no answer within ``timeout`` seconds.
        """
        return self._connection.request(command, timeout=timeout)

    def close(self, failure: BaseException | None = None) -> list[ParcelDelivery]:
        """End the lease of the connection.

        Args:
            failure: why the connection must not be reused, or None.

        Returns:
            The deliveries in flight, in the order they were sent.
        """
        lost = list(self._in_flight.values())
        self._in_flight.clear()
        self._messages = self._bytes = 0
        self._lease.__exit__(type(failure) if failure else None, failure, None)
        return lost


@dataclass(slots=True)
class Counts:
    """Counters of one task.

    Attributes:
        messages, bytes, requests: what was stored, or, with one-way sends, sent.
        retries: repeated attempts.
        busy: attempts repeated because the broker was busy.
        unconfirmed: messages whose flush or replication was not confirmed in time.
    """

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    busy: int = 0
    unconfirmed: int = 0


class ParcelDispatcher:
    """Sends the parcels of one task.

    Parcels for a given queue are sent one after the other, each after the answer to the previous
    one, so that retries don't change their order. Other parcels are pipelined.

    Args:
        options: the options of the write.
        routes: the routes of the topics.
        lease: leases connections.
        clock: returns monotonic seconds.
        now_ms: returns the wall clock time in ms since 1970.
        sleep: sleeps for seconds, between attempts.

    Attributes:
        counts: counters, kept up to date while sending.
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
        """Send a parcel; waits until there is room for it, but not for its answer.

        Raises:
            BrokerError: this or an earlier parcel could not be stored.
            ConnectorError: the topic has no queue, or the broker doesn't support timers.
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
        """Wait until all parcels are stored. Raises the errors of ``send``."""
        self._send_again()
        while waiting := [channel for channel in self._channels.values() if not channel.idle]:
            self._settle(waiting[0])
            self._send_again()

    def close(self, failure: BaseException | None = None) -> None:
        """End the leases of all connections; after a failure they are closed."""
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
        """Try until the parcel is sent; ``_settle`` processes the answer later."""
        while not self._try(delivery):
            pass

    def _try(self, delivery: ParcelDelivery) -> bool:
        """Try to send a parcel once; return False, after waiting, if it was not sent."""
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
        avoid = (delivery.queue.broker_name,) if delivery.queue else ()
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
        """Check that the broker can deliver a message at a given time.

        Raises:
            ConnectorError: it can't.
            RemotingError: the broker does not answer.
        """
        queue = delivery.queue
        assert queue is not None
        if channel.address not in self._timers:
            probe = Command.request(RequestCode.RECALL_MESSAGE, timer_probe(queue.topic))
            answer = channel.request(probe, timeout=self._timeout)
            self._timers[channel.address] = has_timers(answer)
        if not self._timers[channel.address]:
            raise ConnectorError(
                f"row {delivery.parcel.first_row} of the task has a deliverTimestamp to come, and "
                f"broker {queue.broker_name} ({channel.address}) has no timers",
                "use the column delayLevel, or a broker of RocketMQ 5",
            )

    # outcomes

    def _settle(self, channel: Channel) -> None:
        """Receive the next answer of a channel and process it."""
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
                # Flush or replication was not confirmed in time: reduce the load on the broker.
                self.counts.unconfirmed += delivery.parcel.messages
                self._sleep(delivery.backoff.next())
            return
        if wait := retry_after(answer):
            delivery.not_before = self._clock() + wait
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
        """Drop a failed connection and schedule its unanswered parcels for another attempt."""
        self._channels.pop(channel.address, None)
        for delivery in channel.close(failure):
            assert delivery.queue is not None
            self._faults.failed(delivery.queue.broker_name, self._clock())
            self._routes.invalidate(delivery.parcel.topic)
            self._retry(delivery, delivery.lost(str(failure)))

    def _unreachable(self, delivery: ParcelDelivery, why: str) -> None:
        """Record that nothing could be sent, and pause.

        This doesn't count as an attempt: only the deadline ends the retries.
        """
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
        """Sleep before another attempt, unless another broker can be tried at once.

        After a refusal that names a time, sleep in any case: a quota is usually the same at all
        brokers.

        Raises:
            BrokerError: the deadline of the delivery has passed.
        """
        now = self._clock()
        if now >= delivery.deadline:
            raise self._error(delivery)
        when, delivery.not_before = delivery.not_before, 0.0
        if when:
            self._sleep(max(min(when, delivery.deadline) - now, 0.0))
            return
        if delivery.parcel.queue is None and delivery.queue is not None:
            brokers = {queue.broker_name for queue in self._routes.queues(delivery.parcel.topic)}
            others = brokers - {delivery.queue.broker_name}
            if any(self._faults.available(broker, now) for broker in others):
                return
        self._sleep(min(delivery.backoff.next(), delivery.deadline - now))

    def _error(self, delivery: ParcelDelivery) -> BrokerError:
        started = delivery.deadline - self._options.send_timeout
        return delivery.error(self._clock() - started)
