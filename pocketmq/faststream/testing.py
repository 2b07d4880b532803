"""FastStream's test broker: what is published goes to the handlers, without a server."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import MagicMock, patch

from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from broker.filters.sql import SqlFilter
from client.admin import Admin
from client.config import ProducerOptions
from client.consumer.options import expression_of
from client.consumer.outcome import MessageOutcome
from client.consumer.push import PushConsumer
from client.consumer.received import ReceivedMessage
from client.errors import AlreadySettled
from client.instance import Instance
from client.limits import REQUEST_REPLY_TIMEOUT
from client.message import Message, Receipt, Reply, SendStatus
from client.positions import seconds
from client.producer.columns import Preparer
from client.serde import raw
from pocketmq.faststream.broker import PocketBroker
from pocketmq.faststream.commands import PocketPublishCommand
from pocketmq.faststream.config import PocketBrokerConfig
from pocketmq.faststream.endpoints import TopicPublisher, TopicSubscriber
from pocketmq.faststream.message import Received
from pocketmq.faststream.producer import PocketProducer
from remoting.protocol.message import ids
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import SqlExpression
from remoting.protocol.queue import MessageQueue, QueueOffset

_IP: Final = "127.0.0.1"
_HOST: Final = host_bytes(_IP, 0)


class TestPocketBroker(TestBroker[PocketBroker, Any]):
    """Runs an application's handlers in a test: ``async with TestPocketBroker(broker) as br``.

    A message is encoded, filtered by tags or SQL and handed to one subscriber of each group before
    ``publish`` returns; what a handler raises, ``publish`` raises. Delays and retries don't happen.
    With ``with_real=True`` the messages go through the RocketMQ broker, see ``pocketmq.testing``.

    Args:
        brokers: the application's, one or more.
        with_real: use a RocketMQ broker.
        connect_only: don't start the brokers, because ``TestApp`` does.
    """

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
        config = broker.config.broker_config
        memory = MemoryProducer(self.brokers, config)
        with change_producer(config, memory), patch.object(config, "instance", _instance()):
            yield

    async def _fake_connect(self, broker: PocketBroker, *_: Any, **__: Any) -> Any:
        return broker.config.broker_config.instance


class MemoryProducer(PocketProducer):
    """Hands messages to the subscribers of some brokers."""

    def __init__(self, brokers: Sequence[PocketBroker], config: PocketBrokerConfig) -> None:
        super().__init__(config.broker_parser, config.broker_decoder)
        self._serializer = config.fd_config._serializer
        self.codec = config.broker_codec or self.codec
        self._brokers = brokers
        make_ids = ids.UniqueIdGenerator(_IP, os.getpid(), id(self), _now_ms)
        self._take_ids = make_ids.take
        self._preparer = Preparer(
            ProducerOptions(), raw, len(make_ids.next()), _now_ms, time.monotonic
        )
        self._stored = 0

    async def publish(self, cmd: PocketPublishCommand) -> Receipt:
        """Hand a message to a subscriber of each group; raises what a handler raises."""
        return (await self._deliver(await self._encode(cmd, [cmd.body])))[0]

    async def publish_batch(self, cmd: PocketPublishCommand) -> list[Receipt]:
        """Hand over messages, to subscribers of batches together."""
        return await self._deliver(await self._encode(cmd, cmd.batch_bodies, batch=True))

    async def request(self, cmd: PocketPublishCommand) -> Reply[bytes]:
        """Return what the first subscriber's handler returns.

        Raises:
            SubscriberNotFound: the topic has none.
            TimeoutError: the handler takes too long.
        """
        [message] = await self._encode(cmd, [cmd.body])
        stored = self._store(message)
        for subscriber, record in self._selected(stored):
            async with asyncio.timeout(
                REQUEST_REPLY_TIMEOUT if cmd.timeout is None else seconds(cmd.timeout)
            ):
                result = await subscriber.process_message(
                    [_received(record)] if subscriber.is_batch else _received(record)
                )
            command = PocketPublishCommand.from_cmd(result.as_publish_command())
            [answer] = await self._encode(command, [command.body])
            return Reply(
                body=answer.body,
                properties=answer.properties or {},
                id=self._take_ids(1)[0],
                sent_ms=_now_ms(),
            )
        raise SubscriberNotFound(f"no subscriber of the topic {cmd.destination}")

    async def _deliver(self, messages: Sequence[Message[bytes]]) -> list[Receipt]:
        stored = [self._store(message) for message in messages]
        batches = defaultdict[TopicSubscriber, list[Received]](list)
        for one in stored:
            for subscriber, record in self._selected(one):
                if subscriber.is_batch:
                    batches[subscriber].append(_received(record))
                else:
                    await subscriber.process_message(_received(record))
        for subscriber, batch in batches.items():
            await subscriber.process_message(batch)
        return [one.receipt for one in stored]

    def _store(self, message: Message[bytes]) -> _Stored:
        """Encode a message as a broker stores it. Raises UsageError as a send does."""
        columns = self._preparer.prepare(message, None)
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
            queue_id=queue.queue_id,
            flag=payload.flag,
            queue_offset=offset,
            sys_flag=payload.sys_flag,
            born_timestamp_ms=payload.born_ms,
            store_timestamp_ms=_now_ms(),
        )
        receipt = Receipt(
            SendStatus.OK, queue, offset, columns.ids[0], ids.offset_id(_IP, 0, offset)
        )
        return _Stored(record, receipt)

    def _selected(self, stored: _Stored) -> Iterator[tuple[TopicSubscriber, _Stored]]:
        """Yield a subscriber of each group that wants the message."""
        topic, groups = stored.receipt.queue.topic, set[str]()
        for subscriber in _subscribers(self._brokers):
            if subscriber.topic != topic or subscriber.group in groups:
                continue
            expression = expression_of(subscriber.tags, subscriber.group, topic)
            if isinstance(expression, SqlExpression):
                wanted = bool(SqlFilter(expression.text).select([memoryview(stored.record)], 1)[1])
            else:
                wanted = expression.matches(_received(stored).tag)
            if wanted:
                groups.add(subscriber.group)
                yield subscriber, stored


class _Stored(NamedTuple):
    record: bytes
    receipt: Receipt


class _Outcomes:
    """The outcome of one message in memory; see ``client.consumer.outcome.Settler``."""

    def __init__(self) -> None:
        self._outcome: MessageOutcome | None = None

    def settle(self, _: object, outcome: MessageOutcome) -> None:
        if self._outcome is not None:
            raise AlreadySettled("the message has an outcome already")
        self._outcome = outcome

    def settled(self, _: object) -> bool:
        return self._outcome is not None

    def outcome(self, _: object) -> MessageOutcome | None:
        return self._outcome

    def failures(self, _: object) -> int:
        return 0

    def hold(self, _: object) -> None:
        pass

    def end_hold(self, _: object) -> None:
        pass


def _received(stored: _Stored) -> Received:
    """Return the message as a consumer gets it; each group has its own."""
    return ReceivedMessage(stored.record, 0, stored.receipt.queue, raw, _Outcomes())


def _subscribers(brokers: Iterable[PocketBroker]) -> Iterator[TopicSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, TopicSubscriber)
            yield subscriber


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _instance() -> Any:
    """Return an instance without connections, whose consumers get no messages."""
    instance = MagicMock(Instance)
    instance.admin.return_value = MagicMock(Admin)
    instance.push_consumer.return_value = MagicMock(PushConsumer)
    return instance
