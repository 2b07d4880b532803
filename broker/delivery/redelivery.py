"""Messages that the broker stores again: delayed messages, retries and dead letters.

A delayed message waits in the schedule topic. Its record differs from the original message in
topic, queue, and the properties DELAY, REAL_TOPIC and REAL_QID. When it is due, it is stored under
its real topic, with those properties unchanged (cf. ScheduleMessageService.messageTimeup).

A message that a consumer sent back is stored with its reconsume times increased by one
(cf. AbstractSendMessageProcessor): under ``%RETRY%<group>``, after a delay that grows with each
retry, or as a dead letter under ``%DLQ%<group>``, if its retries are exhausted or the consumer asks
for that. RETRY_TOPIC and ORIGIN_MESSAGE_ID identify the original message and are set only once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.delivery.schedule import DELAY_KEY, level_for
from broker.store.limits import MAX_PULL_MESSAGES
from broker.store.results import PendingMessage
from remoting.protocol import names
from remoting.protocol.bodies.group import GroupRetryPolicy, SubscriptionGroupConfig
from remoting.protocol.errors import RecordError
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message import properties
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.message.view import RecordView, iter_records

if TYPE_CHECKING:
    from broker.store.engine import MessageStore

DLQ_QUEUES: Final = 1
"""Queues of a dead-letter topic."""

_FIRST_LEVEL: Final = 3
"""Delay level of the first retry, 10 s by default; each further retry is one level higher."""

_FIRST_LISTED: Final = 2
"""Index of the first retry's delay in a customized policy (cf. CustomizedRetryPolicy)."""

_MOST_POWER: Final = 32
"""The largest exponent of an exponential policy (cf. ExponentialRetryPolicy)."""

_FIRST_VERSION_WITH_MAX_RECONSUME: Final = 121
"""V3_4_9: the maxReconsumeTimes of older clients is ignored."""

_MOST_RECONSUMES: Final = 2**31 - 1
"""A record holds the number in 32 bits. A sender may set any, even a negative one."""

_WAIT: Final = properties.WAIT.encode()
_RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
_GROUPS_OWN: Final = (names.RETRY_PREFIX.encode(), names.DLQ_PREFIX.encode())
_ORIGIN_MESSAGE_ID: Final = properties.ORIGIN_MESSAGE_ID.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_REAL_QID: Final = properties.REAL_QID.encode()

REDELIVERY_BYTES: Final = 1 + len(
    properties.encode(
        {
            properties.RETRY_TOPIC: "",
            properties.ORIGIN_MESSAGE_ID: "0" * 56,
            properties.WAIT: "false",
            properties.DELAY: "18",
            properties.REAL_TOPIC: "t" * MAX_TOPIC_LENGTH,
            properties.REAL_QID: str(2**31 - 1),
        }
    )
)
"""Most bytes that redelivery adds to the properties, without the name of the topic. A send leaves
them free: RocketMQ accepts the message, and its consumers retry it for ever, as no retry and no
dead letter of it can be stored."""


def retries_exhausted(
    settings: SubscriptionGroupConfig,
    reconsume_times: int,
    requested: int | None,
    version: int,
) -> bool:
    """Return whether a message has had all its retries.

    Args:
        settings: the settings of its group.
        reconsume_times: how often the message has been sent back before.
        requested: the request's maxReconsumeTimes, which overrides the group's settings.
        version: the version of the client, as in the request.
    """
    max_retries = settings.retry_max_times
    if requested is not None and version >= _FIRST_VERSION_WITH_MAX_RECONSUME:
        max_retries = requested
    return reconsume_times >= max_retries


def retry_level(
    asked: int,
    reconsume_times: int,
    policy: GroupRetryPolicy | None,
    levels_ms: Sequence[int],
) -> int:
    """Return the delay level of the next retry.

    The consumer's level comes first, then the group's policy, then the retry count.

    Args:
        asked: the level that the consumer asks for; 0 if the broker chooses.
        reconsume_times: how often the message has been sent back before.
        policy: the policy of its group.
        levels_ms: the delays of the levels in ms, from level 1 on.
    """
    if asked:
        return asked
    reconsume_times = max(reconsume_times, 0)
    wait_ms = None if policy is None else _policy_wait_ms(policy, reconsume_times)
    return _FIRST_LEVEL + reconsume_times if wait_ms is None else level_for(wait_ms, levels_ms)


def _policy_wait_ms(policy: GroupRetryPolicy, reconsume_times: int) -> int | None:
    """Return the delay in ms by a group's policy; None if the policy defines none.

    The computation is that of RocketMQ 5.3.3 (cf. RetryPolicy.nextDelayDuration).
    """
    grows, listed = policy.exponential_retry_policy, policy.customized_retry_policy
    if policy.type == "EXPONENTIAL" and grows is not None:
        factor: int = grows.multiplier ** min(reconsume_times, _MOST_POWER)
        return min(grows.max, grows.initial * factor)
    if policy.type == "CUSTOMIZED" and listed is not None and listed.next:
        return listed.next[min(reconsume_times + _FIRST_LISTED, len(listed.next) - 1)]
    return None


def without_delay(text: bytes) -> bytes:
    """Return the properties with the delay level set to 0, for a dead letter."""
    return replaced(text, DELAY_KEY, b"0")


def sent_back(record: RecordView, topic: str, queue_id: int, level: int) -> PendingMessage:
    """Return the message to store for a message that was sent back.

    Args:
        record: the record that the consumer received; the body is not copied.
        topic: the group's retry or dead-letter topic.
        queue_id: a queue of that topic.
        level: the delay level for its properties; 0 for a dead letter.
    """
    text = record.properties_text
    own = record.topic.encode()
    if record.topic == names.SCHEDULE_TOPIC:
        own = properties.find(text, _REAL_TOPIC) or own
    # A producer may have set it, to have an administrator's redrive send to a topic of others.
    if not own.startswith(_GROUPS_OWN) or properties.find(text, _RETRY_TOPIC) is None:
        text = replaced(text, _RETRY_TOPIC, own)
    if properties.find(text, _ORIGIN_MESSAGE_ID) is None:
        text = properties.append(text, _ORIGIN_MESSAGE_ID, record.offset_id.encode())
    text = replaced(replaced(text, _WAIT, b"false"), DELAY_KEY, b"%d" % level)
    if level == 0 and len(text) > MAX_PROPERTIES_BYTES:
        # A broker that leaves no room accepted it: better a dead letter without its origin.
        text = record.properties_text
    reconsume_times = min(record.reconsume_times + 1, _MOST_RECONSUMES)
    return copied(record, topic, queue_id, text, reconsume_times)


def postpone(message: PendingMessage, level: int, levels_ms: Sequence[int]) -> None:
    """Change a message so that it is stored in the schedule topic first.

    Args:
        message: the message with its real topic and queue; modified in place.
        level: the delay level, above 0; a level that doesn't exist means the last one.
        levels_ms: the delays of the levels in ms, from level 1 on.
    """
    last = len(levels_ms)
    text = message.properties
    if level > last:
        level = last
        text = replaced(text, DELAY_KEY, b"%d" % level)
    text = replaced(text, _REAL_TOPIC, message.topic.encode())
    message.properties = replaced(text, _REAL_QID, b"%d" % message.queue_id)
    message.topic = names.SCHEDULE_TOPIC
    message.queue_id = level - 1
    message.due_in_ms = levels_ms[level - 1]


def target_of(record: RecordView) -> tuple[str, int]:
    """Return the real topic and queue of a message that waits in one of the broker's topics.

    Raises:
        ValueError: it has none, or one where only the broker itself writes; the text is a sentence.
    """
    text = record.properties_text
    topic, queue_id = properties.find(text, _REAL_TOPIC), properties.find(text, _REAL_QID)
    if topic is None or queue_id is None or not queue_id.isdigit():
        raise ValueError("its properties REAL_TOPIC and REAL_QID don't name a queue")
    name = topic.decode("utf-8", "replace")
    if name in names.NOT_SENDABLE_TOPICS:
        raise ValueError(f"it belongs to {name}, where only the broker's own messages may go")
    return name, int(queue_id)


def is_void(record: RecordView, store: MessageStore) -> bool:
    """Return whether a message belongs to a topic that was deleted after the record was stored.

    The record may be the message itself, or wait for it in one of the broker's or retry topics.
    """
    text, topic, at = record.properties_text, record.topic, record.physical_offset
    if names.holds_messages_of_others(topic):
        topic = (properties.find(text, _REAL_TOPIC) or b"").decode("utf-8", "replace")
    if store.deleted.is_void(topic, at):
        return True
    if not topic.startswith(names.RETRY_PREFIX):
        return False
    origin = (properties.find(text, _RETRY_TOPIC) or b"").decode("utf-8", "replace")
    return store.deleted.is_void(origin, at)


class ExistingTopics:
    """Selects the messages of a retry topic that are not void; a ``RecordFilter``."""

    __slots__ = ("_store",)

    reach: Final = MAX_PULL_MESSAGES

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def select(self, records: Sequence[memoryview], most: int) -> tuple[list[memoryview], int, int]:
        """See ``RecordFilter``."""
        kept: list[memoryview] = []
        looked = 0
        for piece in records:
            with contextlib.suppress(RecordError):
                for record in iter_records(piece):
                    if len(kept) == most:
                        break
                    looked += 1
                    if not is_void(record, self._store):
                        kept.append(record.raw)
        return kept, len(kept), looked


def delivered(record: RecordView) -> PendingMessage:
    """Return the message to store under its real topic. Raises ``ValueError`` as ``target_of``.

    The body is not copied.
    """
    return copied(record, *target_of(record), record.properties_text, record.reconsume_times)


def copied(
    record: RecordView, topic: str, queue_id: int, text: bytes, reconsume_times: int
) -> PendingMessage:
    """Return a record's message with another topic, queue and properties."""
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


def replaced(text: bytes, name: bytes, value: bytes) -> bytes:
    """Return the properties with ``name`` set to ``value``, once and at the end."""
    return properties.append(properties.remove(text, name), name, value)
