"""What becomes of a message that a consumer could not handle (cf. AbstractSendMessageProcessor).

It is stored again with one more reconsume time: under ``%RETRY%<group>``, after a delay that grows
with each round, or under ``%DLQ%<group>`` when it has had all its retries or its consumer gives it
up. Where it came from first stays in it: RETRY_TOPIC and ORIGIN_MESSAGE_ID are set once.
"""

from __future__ import annotations

from typing import Final

from broker.delivery.delayed import replaced
from broker.store.results import PendingMessage
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.message import properties
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.message.view import RecordView

DLQ_QUEUES: Final = 1
"""Queues of a topic for dead letters."""

_FIRST_LEVEL: Final = 3
"""Of the first retry, 10 s; each further one is a level higher."""

_FIRST_VERSION_WITH_MAX_RECONSUME: Final = 121
"""3.4.9: before it the header's maxReconsumeTimes isn't meant."""

_DELAY: Final = properties.DELAY.encode()
_WAIT: Final = properties.WAIT.encode()
_RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
_ORIGIN_MESSAGE_ID: Final = properties.ORIGIN_MESSAGE_ID.encode()


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


def retry_level(asked: int, reconsume_times: int) -> int:
    """The delay level of the next try; what the consumer asked for, or else one by the round."""
    return asked or _FIRST_LEVEL + reconsume_times


def without_delay(text: bytes) -> bytes:
    """The properties of a dead letter: it doesn't wait."""
    return replaced(text, _DELAY, b"0")


def sent_back(record: RecordView, topic: str, queue_id: int, level: int) -> PendingMessage:
    """The message to store for one that was sent back.

    Args:
        record: as its consumer got it; the body is not copied.
        topic: of the group's retries or dead letters.
        queue_id: a queue of it.
        level: the delay level that its properties shall say; 0 for a dead letter.
    """
    text = record.properties_text
    if properties.find(text, _RETRY_TOPIC) is None:
        text = properties.append(text, _RETRY_TOPIC, record.topic.encode())
    if properties.find(text, _ORIGIN_MESSAGE_ID) is None:
        text = properties.append(text, _ORIGIN_MESSAGE_ID, record.offset_id.encode())
    text = replaced(replaced(text, _WAIT, b"false"), _DELAY, b"%d" % level)
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
        reconsume_times=record.reconsume_times + 1,
        store_host=record.store_host_bytes,
    )
