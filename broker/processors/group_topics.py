"""The topics that a consumer group has to itself: of its retries and of its dead letters."""

from __future__ import annotations

from broker.delivery.retry import DLQ_QUEUES
from broker.errors import Refused
from broker.state import BrokerState
from broker.topics import READ_WRITE, UNIT_SUB_FLAG
from remoting.protocol import names
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import ResponseCode
from remoting.protocol.limits import MAX_TOPIC_LENGTH


def retry_topic(state: BrokerState, group: str, queues: int, *, unit: bool) -> TopicConfig:
    """Where a group's messages go that shall be tried again; made if missing.

    Raises:
        Refused: the group's name is too long for a topic.
        LimitReached: there are too many topics.
    """
    flag = UNIT_SUB_FLAG if unit else 0
    return _fixed(state, names.retry_topic(group), queues, flag)


def dead_letter_topic(state: BrokerState, group: str) -> TopicConfig:
    """Where a group's messages go that it has given up; made if missing. Raises likewise."""
    return _fixed(state, names.dlq_topic(group), DLQ_QUEUES, 0)


def _fixed(state: BrokerState, name: str, queues: int, flag: int) -> TopicConfig:
    if len(name) > MAX_TOPIC_LENGTH:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the group's name is too long for its topic {name[:40]}...: a topic has at most "
            f"{MAX_TOPIC_LENGTH} characters",
        )
    topic, made = state.topics.create_fixed(
        name, queues, READ_WRITE, state.clock.now_ms(), sys_flag=flag
    )
    if made:
        state.changes.topics_changed([name], oneway=True)
    return topic
