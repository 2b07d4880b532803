"""Deleting what is old because an administrator says so: codes 306, 316 and 329.

The answer says that it has begun. A queue is never taken away because its messages are gone, as
RocketMQ does it, for then it would count from 0 again while groups have higher offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from broker.state import BrokerState
from remoting.protocol.command import Command
from remoting.protocol.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")


class RetentionProcessor:
    """Serves deletions by hand."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def delete_old(self, command: Command, _: Connection) -> Command:
        """DELETE_EXPIRED_COMMITLOG: what is past its time goes now, whatever the hour is."""
        self._state.store.retention.ask()
        return command.reply()

    def clean_queues(self, command: Command, _: Connection) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE: files of queues all of whose messages are gone."""
        self._state.store.retention.ask()
        return command.reply()

    def clean_topics(self, command: Command, _: Connection) -> Command:
        """CLEAN_UNUSED_TOPIC: queues of topics that do not exist any more."""
        state = self._state
        for topic in state.store.topics_on_disk():
            if topic != SCHEDULE_TOPIC and state.topics.get(topic) is None:
                queues = state.store.delete_topic(topic)
                _log.info("queues of a topic that is gone deleted", topic=topic, queues=queues)
        return command.reply()
