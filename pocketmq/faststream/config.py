"""What a broker and its routers, subscribers and publishers share."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from faststream._internal.configs import BrokerConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import IncorrectState

from client.consumer.options import Model, Orderly
from client.errors import TopicNotFound
from client.events import EventHandler
from client.instance import Instance
from client.interceptors import Interceptor
from client.positions import Duration, StartFrom
from pocketmq.faststream.producer import PocketProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faststream._internal.context import ContextRepo

    from client.group.strategies import Strategy

DEFAULT_APP = "faststream"

DEFAULT_QUEUES = 8
"""Queues of a topic that a start creates, by broker; RocketMQ's own default."""


class SubscriberOptions(TypedDict, total=False):
    """How a subscriber consumes; see ``client.consumer.options.PushOptions``."""

    concurrency: int
    batch_size: int
    order: Orderly | None
    model: Model
    consume_timeout: Duration
    max_retries: int
    max_span: int
    start_from: StartFrom
    strategy: str | Strategy
    prefetch_messages: int
    prefetch_bytes: int
    pull_messages: int
    suspend: Duration
    on_event: EventHandler | None
    interceptors: Sequence[Interceptor]


@dataclass(kw_only=True)
class PocketBrokerConfig(BrokerConfig):
    """The configuration of a broker or router.

    Attributes:
        app: what the default groups begin with.
        declare: create the topics that don't exist when their subscribers and publishers start.
        queues: the number of queues of such a topic, by broker.
        instance: the connections; None: the broker isn't connected.
    """

    producer: PocketProducer = field(default_factory=PocketProducer)
    app: str = DEFAULT_APP
    declare: bool = True
    queues: int = DEFAULT_QUEUES
    instance: Instance[bytes] | None = None

    @property
    def client(self) -> Instance[bytes]:
        """The connections. Raises IncorrectState without them."""
        if self.instance is None:
            raise IncorrectState("the broker isn't connected: await broker.connect() first")
        return self.instance

    async def declare_topic(self, topic: str) -> None:
        """Create a topic, unless it exists or topics aren't declared.

        Raises:
            NoPermission: the account may not create topics.
            Unavailable: no name server or broker could be asked.
        """
        if not self.declare:
            return
        admin = self.client.admin()
        try:
            await admin.topic_route(topic)
        except TopicNotFound:
            await admin.create_topic(topic, queues=self.queues)


class _LoggerStorage(DefaultLoggerStorage):
    """Makes the logger of a broker, with columns as wide as its longest topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 5}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> Any:
        logger = self._get_logger_ref()
        if logger is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
            logger = get_broker_logger(
                name="pocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-10s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


logger_state = partial(make_logger_state, default_storage_cls=_LoggerStorage)
"""Returns the logger of a broker: with ``EMPTY`` FastStream's own, without one none."""

INFO = logging.INFO
