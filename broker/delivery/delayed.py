"""A message on its way into the schedule topic, and on its way out again.

The record that waits differs from the message that was sent in its topic, its queue and three
properties; the one that is delivered is the waiting one under its real topic, with the text as it
is: DELAY, REAL_TOPIC and REAL_QID stay in it (cf. ScheduleMessageService.messageTimeup).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.store.results import PendingMessage
from remoting.protocol import names
from remoting.protocol.message import properties
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.message.view import RecordView

_DELAY: Final = properties.DELAY.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_REAL_QID: Final = properties.REAL_QID.encode()


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
        text = replaced(text, _DELAY, b"%d" % level)
    text = replaced(text, _REAL_TOPIC, message.topic.encode())
    message.properties = replaced(text, _REAL_QID, b"%d" % message.queue_id)
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
    return PendingMessage(
        topic=name,
        queue_id=int(queue_id),
        body=record.stored_body,
        properties=text,
        tags_code=tags_code_of(text),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host_bytes,
        reconsume_times=record.reconsume_times,
        store_host=record.store_host_bytes,
    )


def replaced(text: bytes, name: bytes, value: bytes) -> bytes:
    """A properties text with ``name`` once, at its end."""
    return properties.append(properties.remove(text, name), name, value)
