"""FastStream's test broker: what is published goes to the handlers, without a server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, cast
from unittest.mock import MagicMock, patch

from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

import pocketmq
from client.config import ProducerOptions
from client.consumer.options import expression_of
from client.consumer.outcome import MessageOutcome
from client.limits import REQUEST_REPLY_TIMEOUT
from client.positions import Duration, seconds
from client.producer.columns import Preparer
from client.serde import raw
from pocketmq.faststream.broker import PocketBroker
from pocketmq.faststream.endpoints import (
    PocketBrokerConfig,
    TopicPublisher,
    TopicSubscriber,
    check_groups,
)
from pocketmq.faststream.message import Received
from pocketmq.faststream.publishing import PocketProducer, PocketPublishCommand
from remoting.protocol.message import ids
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import SqlExpression, TagExpression
from remoting.protocol.queue import MessageQueue, QueueOffset

_IP: Final = "127.0.0.1"
_HOST: Final = host_bytes(_IP, 0)


_FOR_DOCS: Final[dict[str, Any]] = (
    {"broker": PocketBroker} if "__init_subclass__" in vars(TestBroker) else {}
)
"""How FastStream 0.7.8 finds the test broker for the "try it out" of AsyncAPI documents."""


class TestPocketBroker(TestBroker[PocketBroker, Any], **_FOR_DOCS):
    """Runs an application's handlers in a test: ``async with TestPocketBroker(broker) as br``.

    A message is encoded, filtered by tags or SQL and handed to one subscriber of each group before
    ``publish`` returns; what a handler raises, ``publish`` raises. Delays and retries don't happen.
    With ``with_real=True`` the messages go through the RocketMQ broker, see ``pocketmq.testing``.

    Args:
        brokers: the application's, one or more.
        with_real: use a RocketMQ broker.
        connect_only: don't start the brokers, because ``TestApp`` does.
    """

    @asynccontextmanager
    async def _create_ctx(self) -> AsyncGenerator[list[PocketBroker], None]:
        subscribers = [] if self.with_real else _subscribers(self.brokers)
        running = [subscriber for subscriber in subscribers if subscriber.running]
        try:
            async with super()._create_ctx() as brokers:
                yield brokers
        finally:
            # The base class leaves all stopped: those of an application that tries a message out
            # would refuse every later one.
            for subscriber in running:
                subscriber.running = True

    def create_publisher_fake_subscriber(
        self, broker: PocketBroker, publisher: TopicPublisher
    ) -> tuple[TopicSubscriber, bool]:
        """Return the subscriber that records what a publisher publishes, and whether it is real."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: PocketBroker) -> Iterator[None]:
        check_groups(_subscribers([broker]))
        config = broker.config.broker_config
        memory = MemoryProducer(self.brokers, config)
        # It has no connections, and its consumers get no messages.
        instance = MagicMock(pocketmq.Instance)
        instance.admin.return_value = MagicMock(pocketmq.Admin)
        instance.push_consumer.return_value = MagicMock(pocketmq.PushConsumer)
        with change_producer(config, memory), patch.object(config, "instance", instance):
            yield

    async def _fake_connect(self, broker: PocketBroker, *_: Any, **__: Any) -> Any:
        return broker.config.broker_config.instance


class MemoryProducer(PocketProducer):
    """Hands messages to the subscribers of some brokers."""

    def __init__(self, brokers: Sequence[PocketBroker], config: PocketBrokerConfig) -> None:
        super().__init__(config.broker_parser, config.broker_decoder)
        self.connect(None, config.fd_config, config.broker_codec)
        self._brokers = brokers
        self._take_ids = ids.UniqueIdGenerator(_IP, os.getpid(), id(self), _now_ms).take
        id_bytes = len(self._take_ids(1)[0])
        self._preparer = Preparer(ProducerOptions(), raw, id_bytes, _now_ms, time.monotonic)
        self._stored = 0

    async def publish(self, cmd: PocketPublishCommand) -> pocketmq.Receipt:
        """Hand a message to a subscriber of each group; raises what a handler raises."""
        return (await self._deliver(await self._encode(cmd, [cmd.body]), cmd.timeout))[0]

    async def publish_batch(self, cmd: PocketPublishCommand) -> list[pocketmq.Receipt]:
        """Hand over messages, to subscribers of batches together."""
        messages = await self._encode(cmd, cmd.batch_bodies, batch=True)
        self._preparer.prepare_batch(messages, None)
        return await self._deliver(messages, cmd.timeout)

    async def request(self, cmd: PocketPublishCommand) -> pocketmq.Reply[bytes]:
        """Return what the handler of the first subscriber that answers returns.

        Raises:
            SubscriberNotFound: the topic has none.
            TimeoutError: the handler takes too long, or no subscriber answers.
        """
        stored = [self._store(each, cmd.timeout) for each in await self._encode(cmd, [cmd.body])]
        is_handled = False
        timeout = REQUEST_REPLY_TIMEOUT if cmd.timeout is None else seconds(cmd.timeout)
        for subscriber, [message] in self._selected(stored):
            async with asyncio.timeout(timeout):
                raw_message = [message] if subscriber.config.batch else message
                result = await subscriber.process_message(raw_message)
            is_handled = True
            if subscriber.config.batch or subscriber.config.no_reply:
                continue
            command = PocketPublishCommand.from_cmd(result.as_publish_command())
            [answer] = await self._encode(command, [command.body])
            own = answer.properties or {}
            return pocketmq.Reply(body=answer.body, properties=own, id="memory", sent_ms=_now_ms())
        if is_handled:
            raise TimeoutError(f"no subscriber of the topic {cmd.destination} answers requests")
        raise SubscriberNotFound(f"no subscriber of the topic {cmd.destination}")

    async def _deliver(
        self, messages: Sequence[pocketmq.Message[bytes]], timeout: Duration | None
    ) -> list[pocketmq.Receipt]:
        stored = [self._store(message, timeout) for message in messages]
        for subscriber, chosen in self._selected(stored):
            size = subscriber.config.consuming.get("batch_size", 1)
            batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
            for each in batches if subscriber.config.batch else chosen:
                await subscriber.process_message(each)
        return [one.receipt for one in stored]

    def _store(self, message: pocketmq.Message[bytes], timeout: Duration | None) -> _Stored:
        """Encode a message as a broker stores it. Raises UsageError as a send does."""
        columns = self._preparer.prepare(message, timeout)
        columns.seal(self._take_ids)
        payload = columns.payload()
        queue = message.queue or MessageQueue(message.topic, "memory", 0)
        offset, self._stored = QueueOffset(self._stored), self._stored + 1
        record = encode_record(
            topic=message.topic,
            body=payload.body,
            properties=(payload.properties or "").encode(),
            born_host=_HOST,
            store_host=_HOST,
            queue_offset=offset,
            sys_flag=payload.sys_flag,
            born_timestamp_ms=payload.born_ms,
            store_timestamp_ms=_now_ms(),
        )
        receipt = pocketmq.Receipt(
            pocketmq.SendStatus.OK, queue, offset, columns.ids[0], ids.offset_id(_IP, 0, offset)
        )
        return _Stored(record, receipt)

    def _selected(
        self, stored: Sequence[_Stored]
    ) -> Iterator[tuple[TopicSubscriber, list[Received]]]:
        """Yield a subscriber of each group, and the messages that it wants."""
        topic, groups = stored[0].receipt.queue.topic, set[str]()
        for subscriber in _subscribers(self._brokers):
            if subscriber.topic != topic or subscriber.group in groups:
                continue
            expression = expression_of(subscriber.config.tags, subscriber.group, topic)
            is_sql = isinstance(expression, SqlExpression)
            chosen = [
                message
                for one in stored
                # Each group has its own copy, with its own outcome.
                for message in [
                    pocketmq.ReceivedMessage(one.record, 0, one.receipt.queue, raw, _Outcome())
                ]
                if (_is_selected(expression, one) if is_sql else expression.matches(message.tag))
            ]
            if chosen:
                groups.add(subscriber.group)
                yield subscriber, chosen


def _is_selected(sql: TagExpression, stored: _Stored) -> bool:
    # Only here: an application may have a module ``broker`` of its own.
    from broker.filters.sql import SqlFilter  # noqa: PLC0415

    return bool(SqlFilter(sql.text).select([memoryview(stored.record)], 1)[1])


class _Stored(NamedTuple):
    record: bytes
    receipt: pocketmq.Receipt


class _Outcome:
    """The outcome of one message in memory; see ``client.consumer.outcome.Settler``."""

    def __init__(self) -> None:
        self._outcome: MessageOutcome | None = None

    def settle(self, _: object, outcome: MessageOutcome) -> None:
        if self._outcome is not None:
            raise pocketmq.AlreadySettled("the message has an outcome already")
        self._outcome = outcome

    def settled(self, _: object) -> bool:
        return self._outcome is not None

    def outcome(self, _: object) -> MessageOutcome | None:
        return self._outcome

    def failures(self, _: object) -> int:
        return 0

    def hold(self, _: object) -> None: ...

    def end_hold(self, _: object) -> None: ...


def _subscribers(brokers: Iterable[PocketBroker]) -> list[TopicSubscriber]:
    return cast(list[TopicSubscriber], [each for one in brokers for each in one.subscribers])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
