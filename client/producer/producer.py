"""The public ``Producer`` class."""

from __future__ import annotations

import asyncio
import math
from asyncio import _get_running_loop
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from client.config import (
    Addresses,
    ProducerArguments,
    ProducerOptions,
    check_arguments,
    check_serde,
)
from client.errors import BufferFull, PocketMQError, SendError, UsageError, as_send_error
from client.interceptors import bind_all, close_all
from client.lifecycle import LifecycleState
from client.limits import CLOSE_TIMEOUT, REQUEST_REPLY_TIMEOUT
from client.message import Message, Receipt, Reply
from client.network.context import ClientContext, ClientPart
from client.positions import Duration, check_group, seconds
from client.producer.columns import Preparer, is_timed
from client.producer.intercepted import Intercepted
from client.producer.requests import Answerable, Requests
from client.producer.send_buffer import SendBuffer
from client.producer.timed import TimedSends
from client.producer.transactions import Transaction, Transactions
from client.serde import Serde, raw
from remoting.protocol.message.properties import PGROUP, TRAN_MSG
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor

T = TypeVar("T")

DEFAULT_GROUP = "pocketmq-producer"
"""The default producer group; it matters only for transactions and lists of producers."""

YIELD_MESSAGES = 1024
"""``send_many`` yields to the event loop after this many, so that preparing and sending overlap."""


class MessageArguments(TypedDict, total=False):
    """Keyword arguments of a send: attributes of ``Message``, and the send's own timeout.

    The overloads name them here, once. The implementations have them as parameters, which calls
    from a loop over many messages need for their speed.
    """

    tag: str | None
    keys: Iterable[str]
    properties: Mapping[str, str] | None
    sharding_key: str | None
    queue: MessageQueue | None
    timeout: Duration | None


class SendArguments(MessageArguments, total=False):
    """Keyword arguments of sends that may be delayed."""

    delay_level: int
    delay: Duration | None
    deliver_at: datetime | None


class Producer(ClientPart, Generic[T]):
    """Sends messages; used as ``async with Producer("127.0.0.1:9876") as producer``.

    Args:
        nameservers: ``host:port;host:port``; default: the environment variable NAMESRV_ADDR.
        group: the producer group.
        serde: serializes values to message bodies; without one, bodies are bytes.
        options: see ``client.config.ProducerOptions`` and ``ClientOptions``.

    Raises:
        UsageError: an argument is wrong, or no name server is given.
    """

    @overload
    def __init__(
        self: Producer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: None = None,
        **options: Unpack[ProducerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[T],
        **options: Unpack[ProducerArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[Any] | None = None,
        **options: Unpack[ProducerArguments],
    ) -> None:
        self._prepare(group, cast("Serde[T]", serde or raw), options)
        self._attach("producer", ClientContext(nameservers, options), shared=False)

    def _prepare(self, group: str, serde: Serde[T], options: Mapping[str, Any]) -> None:
        check_group(group)
        check_serde(serde)
        check_arguments("Producer", options, ProducerArguments)
        self.group = group
        self._serde = serde
        self._options = ProducerOptions.gather(options)

    # Lifecycle

    def _open(self) -> None:
        around = self._interceptors = bind_all(self._options.interceptors, self)  # may raise
        super()._open()
        context = self._context
        self._loop = asyncio.get_running_loop()
        self._tasks = Supervisor(f"producer {self.group}")
        self._buffer = SendBuffer(context, self.group, self._options, self._serde, self._tasks)
        self._preparer: Preparer[T] = self._buffer.preparer
        self._later: set[asyncio.Task[Receipt]] = set()
        """Sends of ``send_nowait`` that need a task of their own."""
        self._timed = TimedSends(context, self.group, self._options)
        self._intercepted: Intercepted[T] | None = None
        if around:
            self._intercepted = Intercepted(self._buffer, self._timed, around)
        self._transactions: Transactions[T] = Transactions(
            context, self.group, self._options.transaction_checker, self._serde, self._tasks, around
        )
        self._requests = Requests(context, self.group, self._preparer)
        context.add_producer(self, self.group, self._transactions.on_check)
        if self._options.transaction_checker is not None:
            self._stay_known()

    def _stay_known(self) -> None:
        """Let brokers know the producer, of which they ask about transactions."""
        self._tasks.spawn(self._transactions.stay_known(), "brokers")

    async def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Send all accepted messages, then close; messages not acknowledged in time fail.

        Args:
            timeout: seconds to wait for the messages in flight.
        """
        await self._life.close(partial(self._close, seconds(timeout)))

    async def _close(self, timeout: float) -> None:
        self._life.state = LifecycleState.CLOSED
        try:
            async with asyncio.timeout(timeout):
                await self._flush()
        except TimeoutError:
            pass
        finally:
            self._buffer.abandon()
            await self._tasks.close()
            await close_all(self._interceptors)
            await self._context.remove_producer(self, self.group, self._transactions.on_check)
            if self._owns_context:
                await self._context.close()

    # Sending

    @overload
    async def send(self, message: Message[T], /, *, timeout: Duration | None = None) -> Receipt: ...

    @overload
    async def send(self, topic: str, body: T, **arguments: Unpack[SendArguments]) -> Receipt: ...

    async def send(
        self,
        topic: str | Message[T],
        body: T | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Send a message and wait for its acknowledgement.

        Pass either a ``Message``, or topic, body and attributes. The call waits while the bound of
        messages in flight is reached. Cancelling it doesn't recall the message.

        Args:
            delay, deliver_at: see ``Message``; the message is due by the broker's clock.
            timeout: seconds for the whole call, including the wait for room. Without it, the
                producer's ``timeout`` applies from the moment there is room, and the wait for room
                ends when nothing is acknowledged for that long.

        Returns:
            Where the message is stored, and how durably.

        Raises:
            UsageError: the message is invalid.
            SendError: the message was not acknowledged; ``outcome`` says whether it may be stored
                nevertheless. Depending on the cause it is also a ``NoNameServer``, ``NoRoute``,
                ``BrokerUnreachable`` or ``BufferFull``, or the ``RemoteError`` with which a broker
                refused it.
        """
        self._check()
        plain = not delay_level and delay is None and deliver_at is None
        if plain and timeout is None and self._intercepted is None:
            future = self._buffer.add(topic, body, tag, keys, properties, sharding_key, queue)
            if future is not None:
                return await future
        message = _message(
            topic, body, tag, keys, properties, sharding_key, queue, delay_level, delay, deliver_at
        )
        if self._intercepted is not None:
            return await self._intercepted.send(message, timeout)
        if is_timed(message):
            return await self._send_timed(message, timeout)
        return await (self._add(message, timeout) or await self._accept(message, timeout))

    @overload
    def send_nowait(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> asyncio.Future[Receipt]: ...

    @overload
    def send_nowait(
        self, topic: str, body: T, **arguments: Unpack[SendArguments]
    ) -> asyncio.Future[Receipt]: ...

    def send_nowait(
        self,
        topic: str | Message[T],
        body: T | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> asyncio.Future[Receipt]:
        """Accept a message without waiting; the returned future resolves as ``send`` would.

        This is the fastest method of sending.

        Raises:
            UsageError: the message is invalid, or the call is not made on the producer's event
                loop.
            BufferFull: the bound of messages or bytes in flight is reached.
        """
        self._check()
        plain = not delay_level and delay is None and deliver_at is None
        if plain and timeout is None and self._intercepted is None:
            future = self._buffer.add(topic, body, tag, keys, properties, sharding_key, queue)
            if future is not None:
                return future
        message = _message(
            topic, body, tag, keys, properties, sharding_key, queue, delay_level, delay, deliver_at
        )
        if self._intercepted is not None:
            return self._send_later(self._intercepted.send(message, timeout))
        if is_timed(message):
            # Its brokers may have to be asked first.
            return self._send_later(self._send_timed(message, timeout))
        future = self._add(message, timeout)
        return future or self._buffer.offer(self._preparer.prepare(message, timeout))[0]

    @overload
    async def send_oneway(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> None: ...

    @overload
    async def send_oneway(
        self, topic: str, body: T, **arguments: Unpack[SendArguments]
    ) -> None: ...

    async def send_oneway(
        self,
        topic: str | Message[T],
        body: T | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Send a message that no broker acknowledges: it may be lost without an error.

        Raises:
            UsageError: the message is invalid.
            SendError: no connection to a broker could be made, or writing to it failed; see
                ``send``.
        """
        self._check()
        message = _message(
            topic, body, tag, keys, properties, sharding_key, queue, delay_level, delay, deliver_at
        )
        if self._intercepted is not None:
            await self._intercepted.send_oneway(message, timeout)
        else:
            message = await self._timed.require_timers(message, timeout)
            await self._buffer.write_oneway(self._preparer.prepare(message, timeout))

    async def send_batch(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt]:
        """Send messages of one topic as one request: either all are stored, contiguously, or none.

        They go to the queue given by the ``queue`` or ``sharding_key`` of the first message, or
        to any queue if it has neither.

        Raises:
            UsageError: ``messages`` is empty or can't be one batch (topics, delays, size).
            SendError: the batch was not acknowledged; see ``send``.
        """
        self._check()
        messages = list(messages)
        if self._intercepted is not None and messages:
            return await self._intercepted.send_batch(messages, timeout)
        futures = await self._buffer.put(self._preparer.prepare_batch(messages, timeout))
        await asyncio.wait(futures)
        for failure in [future.exception() for future in futures]:
            if failure is not None:
                raise failure
        return [future.result() for future in futures]

    async def send_many(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt | SendError]:
        """Send any number of messages, in batches, with many in flight, within the bounds.

        Returns:
            For each message, in order, its receipt or its error; errors of single messages are not
            raised.
        """
        self._check()
        if self._intercepted is not None:
            return await self._intercepted.send_many(messages, timeout)
        waiting: list[asyncio.Future[Receipt] | SendError] = []
        for number, message in enumerate(messages, 1):
            try:
                if is_timed(message):
                    message = await self._timed.require_timers(message, timeout)  # noqa: PLW2901
                future = self._add(message, timeout)
                waiting.append(future or await self._accept(message, timeout))
            except PocketMQError as error:
                waiting.append(as_send_error(error))
            except Exception as error:  # noqa: BLE001 - others have their receipts
                invalid = UsageError(f"message {number} can't be sent: {error!r}", group=self.group)
                waiting.append(as_send_error(invalid))
            if number % YIELD_MESSAGES == 0:
                await asyncio.sleep(0)
        results: list[Receipt | SendError] = []
        for entry in waiting:
            try:
                results.append(entry if isinstance(entry, SendError) else await entry)
            except PocketMQError as error:
                results.append(as_send_error(error))
        return results

    def _send_later(self, sending: Coroutine[Any, Any, Receipt]) -> asyncio.Task[Receipt]:
        if len(self._later) >= self._options.max_in_flight:
            sending.close()
            raise BufferFull(
                f"{len(self._later)} messages are in flight already",
                group=self.group,
                hint="await some of them, use `await send(...)`, or raise max_in_flight",
            )
        # The caller gets the task's exception, so it isn't logged.
        task = self._tasks.spawn(sending, "a send", on_done=self._later.discard)
        self._later.add(task)
        return task

    async def _send_timed(self, message: Message[T], timeout: Duration | None) -> Receipt:
        message = await self._timed.require_timers(message, timeout)
        return await (self._add(message, timeout) or await self._accept(message, timeout))

    def _add(self, message: Message[T], timeout: Duration | None) -> asyncio.Future[Receipt] | None:
        """Accept a message without the ``Preparer``; None: it needs that, or there is no room."""
        if timeout is not None or message.delay_level or message.flag or not message.wait:
            return None
        if is_timed(message):
            return None
        return self._buffer.add(
            message.topic,
            message.body,
            message.tag,
            message.keys,
            message.properties,
            message.sharding_key,
            message.queue,
        )

    async def _accept(
        self, message: Message[T], timeout: Duration | None
    ) -> asyncio.Future[Receipt]:
        """Prepare a message and accept it once there is room. Raises UsageError, SendError."""
        return (await self._buffer.put(self._preparer.prepare(message, timeout)))[0]

    def _check(self) -> None:
        """Raise UsageError unless the producer is open and called on its event loop."""
        if self._life.state is LifecycleState.OPEN and _get_running_loop() is self._loop:
            # Never true in a forked child: there no loop, or another one, is running.
            return
        self._life.check()
        if _get_running_loop() is not self._loop:
            raise UsageError(
                "the producer was called from another thread or event loop than its own",
                group=self.group,
                hint="call it through loop.call_soon_threadsafe or"
                " asyncio.run_coroutine_threadsafe, or use client.blocking",
            )

    # Transactions

    @overload
    def transaction(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> Transaction[T]: ...

    @overload
    def transaction(
        self, topic: str, body: T, **arguments: Unpack[MessageArguments]
    ) -> Transaction[T]: ...

    def transaction(
        self,
        topic: str | Message[T],
        body: T | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout: Duration | None = None,
    ) -> Transaction[T]:
        """Return a transaction, whose message consumers get when it commits.

            async with producer.transaction("orders", b"...", keys=["o-1"]) as transaction:
                await database.save(order, transaction.id)

        The end of the block commits, an exception rolls back. After a crash the broker asks the
        ``transaction_checker`` of one of the group's producers.

        Args:
            timeout: seconds for sending the half message.

        Raises:
            UsageError: the producer has no ``transaction_checker``.
        """
        self._check()
        self._transactions.check_usable()
        message = _message(topic, body, tag, keys, properties, sharding_key, queue, 0)
        if message.delay_level or is_timed(message):
            raise UsageError(
                "a message of a transaction can't have a delay_level or a time of delivery",
                topic=message.topic,
                hint="leave it out: a broker refuses such a message",
            )
        system = {TRAN_MSG: "true", PGROUP: self.group}
        return Transaction(
            self._transactions, message, lambda: self._send_with(system, message, timeout)
        )

    async def _send_with(
        self, system: Mapping[str, str], message: Message[T], timeout: Duration | None
    ) -> Receipt:
        """Send a message with the properties of RocketMQ in ``system`` besides its own."""
        self._check()
        if self._intercepted is not None:
            return await self._intercepted.send(message, timeout, system=system)
        columns = self._preparer.prepare(message, timeout, system=system)
        return await (await self._buffer.put(columns))[0]

    async def recall(self, handle: str) -> str:
        """Recall a message before its time of delivery.

        The broker records the recall; its answer doesn't show whether the message is still
        pending. Recall a message at least a second before its time.

        Args:
            handle: ``Receipt.recall_handle`` of the message.

        Returns:
            The message's unique id.

        Raises:
            UsageError: it is no handle.
            NoRoute: the broker that has the message is not in the route.
            Unavailable: it can't be reached or doesn't answer.
            RemoteError: it refuses, for example because the time is over, or has no recalls.
        """
        self._check()
        return await self._timed.recall(handle)

    # Requests and replies

    @overload
    async def request(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> Reply[T]: ...

    @overload
    async def request(
        self, topic: str, body: T, **arguments: Unpack[MessageArguments]
    ) -> Reply[T]: ...

    async def request(
        self,
        topic: str | Message[T],
        body: T | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout: Duration | None = None,
    ) -> Reply[T]:
        """Send a message and wait for the reply of the consumer that gets it.

        Args:
            timeout: seconds for the send and the reply together; 3 without it.

        Raises:
            UsageError: it can't be sent as it is.
            SendError: it was not acknowledged; see ``send``.
            RequestTimeout: no reply came in time; the message may still be handled.
            UnreadableMessage: the reply can't be decompressed or deserialized.
        """
        self._check()
        message = _message(topic, body, tag, keys, properties, sharding_key, queue, 0)
        limit = REQUEST_REPLY_TIMEOUT if timeout is None else seconds(timeout)
        if math.isinf(limit):
            raise UsageError(
                "the timeout of a request can't be inf: it is sent in milliseconds",
                topic=message.topic,
                hint="give a number of seconds",
            )
        return await self._requests.ask(
            message, limit, lambda system: self._send_with(system, message, limit)
        )

    async def reply(
        self, request: Answerable, body: T, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Answer a message that was sent with ``request``, by any RocketMQ client.

        Args:
            request: as a consumer got it.
            properties: the application's own names and values, for the reply.

        Raises:
            UsageError: it is no request, or the reply can't be sent as it is.
            RemoteError: the broker refused the reply; the requester is gone, or waits no longer.
            Unavailable: no broker could be asked, or none answered in time.
        """
        self._check()
        await self._requests.reply(request, body, properties)

    async def flush(self) -> None:
        """Wait until every message accepted before this call is acknowledged or has failed."""
        self._life.check()
        await self._flush()

    async def _flush(self) -> None:
        if self._later:
            await asyncio.wait(set(self._later))
        await self._buffer.flush()


def _message(
    topic: str | Message[T],
    body: T | None,
    tag: str | None,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    queue: MessageQueue | None,
    delay_level: int,
    delay: Duration | None = None,
    deliver_at: datetime | None = None,
) -> Message[T]:
    """Return the arguments of a send as one ``Message``. Raises UsageError."""
    if isinstance(topic, str):
        return Message(
            topic,
            cast(T, body),
            tag,
            keys,
            properties,
            sharding_key,
            queue,
            delay_level=delay_level,
            delay=delay,
            deliver_at=deliver_at,
        )
    if any((body, tag, keys, properties, sharding_key, queue, delay_level, delay, deliver_at)):
        raise UsageError(
            "a Message has its body and attributes itself",
            topic=topic.topic,
            hint="give either a Message, or topic, body and attributes",
        )
    return topic


def serde_of(producer: Producer[T]) -> Serde[T]:
    """Return the serde that makes bytes of a producer's values."""
    return producer._serde


def shared_producer(
    context: ClientContext, group: str, serde: Serde[T], options: Mapping[str, Any]
) -> Producer[T]:
    """Return an open producer on a context that is open and shared with other clients."""
    producer: Producer[T] = Producer.__new__(Producer)
    producer._prepare(group, serde, options)
    producer._attach("producer", context, shared=True)
    producer._open()
    return producer
