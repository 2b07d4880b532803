"""Messages that the broker stores again: delayed ones, and ones that a consumer could not handle.

A delayed message waits in the schedule topic. Its record differs from the message that was sent in
its topic, its queue and three properties. The delivered message is the waiting one under its real
topic, with its properties unchanged: DELAY, REAL_TOPIC and REAL_QID stay in it (cf.
ScheduleMessageService.messageTimeup).

A message that was sent back is stored with one more reconsume time (cf.
AbstractSendMessageProcessor): under ``%RETRY%<group>``, after a delay that grows with each round,
or under ``%DLQ%<group>`` after its last retry, or if its consumer gives it up. RETRY_TOPIC
and ORIGIN_MESSAGE_ID name its origin and are set once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.delivery.schedule import DELAY_KEY, level_for
from broker.store.results import PendingMessage
from remoting.protocol import names
from remoting.protocol.bodies.group import GroupRetryPolicy, SubscriptionGroupConfig
from remoting.protocol.message import properties
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.message.view import RecordView

DLQ_QUEUES: Final = 1
"""Queues of a topic for dead letters."""

_FIRST_LEVEL: Final = 3
"""Of the first retry, 10 s; each further one is a level higher."""

_FIRST_LISTED: Final = 2
"""The entry of a customised policy for the first retry: its list begins with level 1."""

_MOST_POWER: Final = 32
"""An exponential policy grows no further."""

_FIRST_VERSION_WITH_MAX_RECONSUME: Final = 121
"""3.4.9: before it the header's maxReconsumeTimes isn't meant."""

_WAIT: Final = properties.WAIT.encode()
_RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
_ORIGIN_MESSAGE_ID: Final = properties.ORIGIN_MESSAGE_ID.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_REAL_QID: Final = properties.REAL_QID.encode()


def is_spent(
    settings: SubscriptionGroupConfig,
    reconsume_times: int,
    asked: int | None,
    version: int,
) -> bool:
    """Whether a message has had all its retries.

    Args:
        settings: its group's.
        reconsume_times: how often it was sent back already.
        asked: the request's maxReconsumeTimes, which goes before the group's settings.
        version: of the client that asks.
    """
    most = settings.retry_max_times
    if asked is not None and version >= _FIRST_VERSION_WITH_MAX_RECONSUME:
        most = asked
    return reconsume_times >= most


def retry_level(
    asked: int,
    reconsume_times: int,
    policy: GroupRetryPolicy | None,
    levels_ms: Sequence[int],
) -> int:
    """The delay level of the next try: what the consumer, the group's policy or the round asks for.

    Args:
        asked: by the consumer; 0 leaves it to the broker.
        reconsume_times: how often the message was sent back already.
        policy: its group's.
        levels_ms: how long the delay levels are.
    """
    if asked:
        return asked
    wait_ms = None if policy is None else _policy_wait_ms(policy, max(reconsume_times, 0))
    return _FIRST_LEVEL + reconsume_times if wait_ms is None else level_for(wait_ms, levels_ms)


def _policy_wait_ms(policy: GroupRetryPolicy, reconsume_times: int) -> int | None:
    """How long a group's policy lets a message wait; None where it has no waits of its own.

    As the policies of RocketMQ 5.3.3 compute it (cf. nextDelayDuration).
    """
    grows, listed = policy.exponential_retry_policy, policy.customized_retry_policy
    if policy.type == "EXPONENTIAL" and grows is not None:
        factor: int = grows.multiplier ** min(reconsume_times, _MOST_POWER)
        return min(grows.max, grows.initial * factor)
    if policy.type == "CUSTOMIZED" and listed is not None and listed.next:
        return listed.next[min(reconsume_times + _FIRST_LISTED, len(listed.next) - 1)]
    return None


def without_delay(text: bytes) -> bytes:
    """The properties of a dead letter: it doesn't wait."""
    return _replaced(text, DELAY_KEY, b"0")


def sent_back(record: RecordView, topic: str, queue_id: int, level: int) -> PendingMessage:
    """The message to store for one that was sent back.

    Args:
        record: as its consumer got it; the body is not copied.
        topic: of the group's retries or dead letters.
        queue_id: a queue of it.
        level: the delay level of its properties; 0 for a dead letter.
    """
    text = record.properties_text
    if properties.find(text, _RETRY_TOPIC) is None:
        text = properties.append(text, _RETRY_TOPIC, record.topic.encode())
    if properties.find(text, _ORIGIN_MESSAGE_ID) is None:
        text = properties.append(text, _ORIGIN_MESSAGE_ID, record.offset_id.encode())
    text = _replaced(_replaced(text, _WAIT, b"false"), DELAY_KEY, b"%d" % level)
    return _copy(record, topic, queue_id, text, record.reconsume_times + 1)


def postpone(message: PendingMessage, level: int, levels_ms: Sequence[int]) -> None:
    """Send a message to the queue of its delay level first.

    Args:
        message: as it would be stored now; changed in place.
        level: above 0; one above the last counts as the last.
        levels_ms: how long the levels are.
    """
    last = len(levels_ms)
    text = message.properties
    if level > last:
        level = last
        text = _replaced(text, DELAY_KEY, b"%d" % level)
    text = _replaced(text, _REAL_TOPIC, message.topic.encode())
    message.properties = _replaced(text, _REAL_QID, b"%d" % message.queue_id)
    message.topic = names.SCHEDULE_TOPIC
    message.queue_id = level - 1
    message.due_in_ms = levels_ms[level - 1]


def delivered(record: RecordView) -> PendingMessage:
    """The message that a record of the schedule topic has waited for.

    Its body is the record's, not copied.

    Raises:
        ValueError: the record doesn't say where it belongs; the text is a sentence.
    """
    text = record.properties_text
    topic, queue_id = properties.find(text, _REAL_TOPIC), properties.find(text, _REAL_QID)
    if topic is None or queue_id is None or not queue_id.isdigit():
        raise ValueError("it doesn't say to which queue of which topic it belongs")
    name = topic.decode("utf-8", "replace")
    if name in names.NOT_SENDABLE_TOPICS:
        raise ValueError(f"it belongs to {name}, where only the broker's own messages may go")
    return _copy(record, name, int(queue_id), text, record.reconsume_times)


def _copy(
    record: RecordView, topic: str, queue_id: int, text: bytes, reconsume_times: int
) -> PendingMessage:
    """The message to store again, under another topic and with other properties."""
    return PendingMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.stored_body,
        properties=text,
        tags_code=tags_code_of(text),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host_bytes,
        reconsume_times=reconsume_times,
        store_host=record.store_host_bytes,
    )


def _replaced(text: bytes, name: bytes, value: bytes) -> bytes:
    """A properties text with ``name`` once, at its end."""
    return properties.append(properties.remove(text, name), name, value)
