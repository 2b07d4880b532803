"""Administration of topics: codes 17, 18, 21, 215, 305 and 351; of retention: 306, 316 and 329.

A change is answered when it is on disk and registered. The answer to a deletion is sent when the
deletion has begun. Unlike in RocketMQ, a queue isn't removed when its messages have been deleted: a
new queue would start at offset 0, below the offsets that groups have committed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import structs

from broker.errors import NOT_SAVED, RequestRefused, check_topic
from broker.limits import MAX_QUEUES_PER_TOPIC, MAX_TOPIC_ATTRIBUTES_LENGTH
from broker.processors.client_callbacks import ClientCallbackProcessor
from broker.processors.offload import Answer, Offload, sliced
from broker.processors.pull import PullProcessor
from broker.state import BrokerState
from broker.topics.table import MESSAGE_TYPE, MIXED, altered, parse_changes
from remoting.protocol import names
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.bodies.topic import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import (
    CreateTopicRequestHeader,
    TopicRequestHeader,
)

if TYPE_CHECKING:
    from remoting.connection import Connection


_log = structlog.get_logger("broker")

_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})
_MOST_PERM: Final = 15


class TopicProcessor:
    """Handles the administration of topics."""

    __slots__ = ("_callbacks", "_offload", "_pulls", "_state")

    def __init__(
        self,
        state: BrokerState,
        offload: Offload,
        pulls: PullProcessor,
        callbacks: ClientCallbackProcessor,
    ) -> None:
        self._offload = offload
        self._state = state
        self._pulls = pulls
        self._callbacks = callbacks

    def create(self, command: Command, _: Connection) -> Awaitable[Command]:
        """Handle UPDATE_AND_CREATE_TOPIC: replace the settings, and change the attributes."""
        header = command.read(CreateTopicRequestHeader)
        try:
            changes = parse_changes(header.attributes)
        except ValueError as error:
            raise _refused_attributes(header.topic, error) from None
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=changes,
        )
        return self._put_all(command, [config])

    def create_list(self, command: Command, _: Connection) -> Awaitable[Command]:
        """Handle UPDATE_AND_CREATE_TOPIC_LIST: set several topics, all or none."""
        body = decode(CreateTopicListRequestBody, command.body)
        return self._put_all(command, body.topic_config_list)

    def delete(self, command: Command, _: Connection) -> Awaitable[Command]:
        """Handle DELETE_TOPIC_IN_BROKER: delete settings, queues, and offsets, as in 5.3.3.

        A topic that is created later under the same name starts empty: messages
        that wait for it in other topics are void, see ``DeletedTopics``.
        """
        topic = command.read(TopicRequestHeader).topic
        self._check_name(topic)
        state = self._state
        config = state.topics.get(topic)
        state.topics.delete(topic, state.clock.now_ms())
        state.traffic.forget_topic(topic)
        if config is not None or topic in state.store.queues.topics():
            state.store.delete_topic(topic)
        for table in (state.offsets, state.locks, state.filters):
            table.remove_topic(topic)
        self._pulls.topic_deleted(topic)
        _log.info("topic deleted", topic=topic)
        # A name server keeps the topic until it is deleted there, too. An older registration that
        # still has the topic must not arrive after that.
        return self._deleted(command, config, self._saved(command, [topic]))

    async def _deleted(
        self, command: Command, config: TopicConfig | None, saved: Awaitable[Command]
    ) -> Command:
        if config is not None:
            await self._callbacks.topic_deleted(config)
        answer = await saved
        if await self._state.changes.topic_dropped():
            return answer
        return command.reply(ResponseCode.SYSTEM_ERROR, NOT_SAVED)

    def all_topics(self, command: Command, connection: Connection) -> Answer:
        """Handle GET_ALL_TOPIC_CONFIG: return the whole table."""
        version = self._state.topics.data_version
        return self._offload.answer(
            command,
            connection,
            sliced(list(self._state.topics.table.items())),
            lambda some: TopicConfigSerializeWrapper(dict(some), version),
            version=version,
        )

    def config(self, command: Command, _: Connection) -> Command:
        """Handle GET_TOPIC_CONFIG: return one topic's settings."""
        name = command.read(TopicRequestHeader).topic
        config = self._state.topics.get(name)
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}"
            )
        body = structs.replace(config, attributes=config.attributes or {})
        return command.reply(body=encode(body))

    def system_topics(self, command: Command, _: Connection) -> Command:
        """Handle GET_SYSTEM_TOPIC_LIST_FROM_BROKER: return the topics that clients can't change."""
        return command.reply(body=encode(TopicList(topic_list=sorted(self._state.topics.system))))

    def delete_old(self, command: Command, _: Connection) -> Command:
        """Delete expired files of log and queues soon, at any hour.

        Handle DELETE_EXPIRED_COMMITLOG and CLEAN_EXPIRED_CONSUMEQUEUE.
        """
        self._state.store.retention.ask()
        return command.reply()

    def clean_topics(self, command: Command, _: Connection) -> Command:
        """Handle CLEAN_UNUSED_TOPIC: delete the queues of topics that don't exist any more."""
        state = self._state
        for topic in state.store.queues.topics():
            # Half messages and others wait there, also if the settings of the topic were lost.
            if not names.is_system_topic(topic) and state.topics.get(topic) is None:
                queues = state.store.delete_topic(topic)
                _log.info(
                    "deleted the queues of a topic that does not exist", topic=topic, queues=queues
                )
        return command.reply()

    def _put_all(self, command: Command, requested: list[TopicConfig]) -> Awaitable[Command]:
        """Create or replace topics; ``attributes`` in ``requested`` contains changes."""
        made: dict[str, TopicConfig] = {}
        for config in requested:
            self._check_name(config.topic_name)
            _check_settings(config)
            before = made.get(config.topic_name) or self._state.topics.get(config.topic_name)
            attributes = self._attributes(config, before)
            made[config.topic_name] = structs.replace(config, attributes=attributes)
        configs = list(made.values())
        for config in configs:
            self._state.topics.put(config, self._state.clock.now_ms())
            _log.info(
                "topic set",
                topic=config.topic_name,
                queues=config.write_queue_nums,
                perm=config.perm,
            )
        return self._saved(command, [config.topic_name for config in configs])

    async def _saved(self, command: Command, topics: list[str]) -> Command:
        saved = await self._state.changes.topics_changed(topics, paced=False)
        return command.reply() if saved else command.reply(ResponseCode.SYSTEM_ERROR, NOT_SAVED)

    def _attributes(self, config: TopicConfig, before: TopicConfig | None) -> dict[str, str] | None:
        """Return a topic's attributes after the changes in ``config.attributes``."""
        changes = config.attributes
        if not changes:
            return None if before is None else before.attributes
        if (
            changes.get(f"+{MESSAGE_TYPE}") == MIXED
            and not self._state.config.enable_mixed_message_type
        ):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"MIXED message type is not supported. topic: {config.topic_name}; "
                "set enableMixedMessageType=true in the broker's configuration to allow it",
            )
        current = None if before is None else before.attributes or {}
        try:
            return altered(current, changes)
        except ValueError as error:
            raise _refused_attributes(config.topic_name, error) from None

    def _check_name(self, name: str) -> None:
        check_topic(name)
        if self._state.topics.is_system(name):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic."
            )


def _check_settings(config: TopicConfig) -> None:
    if config.topic_filter_type not in _FILTER_TYPES:
        _refuse(config, f"topicFilterType has to be one of {', '.join(sorted(_FILTER_TYPES))}")
    max_queues = MAX_QUEUES_PER_TOPIC
    if not (
        0 <= config.read_queue_nums <= max_queues and 0 <= config.write_queue_nums <= max_queues
    ):
        _refuse(config, f"a topic has 0 to {max_queues} queues")
    if not 0 <= config.perm <= _MOST_PERM:
        _refuse(
            config,
            f"perm is a sum of {names.PERM_READ} (read), {names.PERM_WRITE} (write) and "
            f"{names.PERM_INHERIT} (template)",
        )
    attributes = (config.attributes or {}).items()
    if sum(len(name) + len(value) for name, value in attributes) > MAX_TOPIC_ATTRIBUTES_LENGTH:
        _refuse(config, f"its attributes have more than {MAX_TOPIC_ATTRIBUTES_LENGTH} characters")


def _refused_attributes(topic: str, error: ValueError) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"{error} (attributes of topic {topic})")


def _refuse(config: TopicConfig, why: str) -> None:
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"topic {config.topic_name}: {why}")
