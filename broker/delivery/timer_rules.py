"""When a timer message is due, in which slot of the wheel it waits, and what is stored then.

A message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS waits in the topic
rmq_sys_wheel_timer. Its property TIMER_OUT_MS is the time of its slot, the last whole second before
it is due. A message that is due after the roll window waits in an earlier slot; at that time it is
stored in the timer topic again (cf. HookUtils, TimerMessageStore).

RocketMQ delivers a slot when its second is over. Here a message is delivered at the ms it asks for.
No I/O.
"""

from __future__ import annotations

import re
from typing import Final

from broker.delivery.redelivery import copied, delivered, replaced
from broker.store.results import PendingMessage
from remoting.protocol import names
from remoting.protocol.disk.timer import PRECISION_MS, WHEEL_SLOTS
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message import properties
from remoting.protocol.message.view import RecordView

QUEUE: Final = 0
"""The only queue of the timer topic."""

PREFIX: Final = b"TIMER_DEL"
"""Without it in a message's properties, the message has no timer and recalls none."""

_SECONDS: Final = properties.TIMER_DELAY_SEC.encode()
_WAIT_MS: Final = properties.TIMER_DELAY_MS.encode()
_DELIVER_MS: Final = properties.TIMER_DELIVER_MS.encode()
TIMERS: Final = (_SECONDS, _WAIT_MS, _DELIVER_MS)
"""The properties that ask for a timer; the first of them counts."""

_OUT_MS: Final = properties.TIMER_OUT_MS.encode()
_RECALLED: Final = properties.TIMER_DEL_UNIQKEY.encode()
_ROLL_TIMES: Final = properties.TIMER_ROLL_TIMES.encode()
_ENQUEUE_MS: Final = properties.TIMER_ENQUEUE_MS.encode()
_DEQUEUE_MS: Final = properties.TIMER_DEQUEUE_MS.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_REAL_QID: Final = properties.REAL_QID.encode()
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()

_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_MAX_LONG: Final = 2**63 - 1

WHEEL_REACH_MS: Final = WHEEL_SLOTS * PRECISION_MS
"""Beyond this horizon the wheel reuses slots."""

LONGEST_SLOT_MS: Final = 2 * PRECISION_MS
"""How long after the time of its slot a message is due at most. A relative time counts from the
store time, which may be in the second after the one in which the slot was chosen."""


def asks_for_timer(text: bytes) -> bool:
    """Return whether a message's properties ask for a timer that has not expired yet."""
    return has_timer(text) and properties.find(text, _OUT_MS) is None


def has_timer(text: bytes) -> bool:
    """Return whether a message's properties have a timer, expired or not."""
    return PREFIX in text and any(properties.find(text, name) is not None for name in TIMERS)


def without_timer(text: bytes) -> bytes:
    """Return the properties without a timer, for a message with a delay level."""
    if PREFIX in text:
        for name in TIMERS:
            text = properties.remove(text, name)
    return text


def asked_ms(text: bytes, from_ms: int) -> int:
    """Return the time at which a message asks to be delivered.

    Args:
        text: its properties, with a timer.
        from_ms: where a relative time begins.

    Raises:
        ValueError: the property isn't a number.
    """
    for name, unit_ms in ((_SECONDS, 1000), (_WAIT_MS, 1), (_DELIVER_MS, 0)):
        value = properties.find(text, name)
        if value is not None:
            if _NUMBER.fullmatch(value) is None or abs(int(value)) > _MAX_LONG:
                raise ValueError(f"the property {name.decode()} is {value[:30]!r}, not a number")
            return from_ms + int(value) * unit_ms if unit_ms else int(value)
    raise ValueError("it has no timer")


def slot_of(due_ms: int) -> int:
    """Return the time of the slot for a message: the last whole second before it is due."""
    return (due_ms - 1) // PRECISION_MS * PRECISION_MS


def to_timer(message: PendingMessage, due_ms: int) -> None:
    """Change a message in place so that it is stored in the timer topic."""
    text = replaced(message.properties, _OUT_MS, b"%d" % slot_of(due_ms))
    text = replaced(text, _REAL_TOPIC, message.topic.encode())
    message.properties = replaced(text, _REAL_QID, b"%d" % message.queue_id)
    message.topic, message.queue_id = names.TIMER_TOPIC, QUEUE


def out_ms(text: bytes) -> int:
    """Return TIMER_OUT_MS of a message in the timer topic.

    Raises:
        ValueError: it has none, or no time.
    """
    value = properties.find(text, _OUT_MS)
    if value is None or _NUMBER.fullmatch(value) is None or not 0 <= int(value) <= _MAX_LONG // 2:
        raise ValueError("its property TIMER_OUT_MS is no time")
    return int(value)


def due_ms(text: bytes, stored_ms: int, slot_ms: int) -> int:
    """Return when a message in the timer topic is due.

    Args:
        text: its properties.
        stored_ms: when it was stored.
        slot_ms: its TIMER_OUT_MS.

    Returns:
        The exact time, which is after ``slot_ms``; the end of the slot if the exact time is not
        known: the delay of a message that was rolled counts from before it was stored again.
    """
    try:
        asked = asked_ms(text, stored_ms)
    except ValueError:
        return slot_ms + PRECISION_MS
    rolled = _ROLL_TIMES in text and properties.find(text, _DELIVER_MS) is None
    if rolled or not slot_ms < asked < slot_ms + LONGEST_SLOT_MS:
        return slot_ms + PRECISION_MS
    return asked


def placed(slot_ms: int, now_ms: int, window_slots: int) -> tuple[int, bool]:
    """Return the time of the slot in which a message waits, and whether it is rolled there.

    Args:
        slot_ms: its TIMER_OUT_MS.
        now_ms: the time.
        window_slots: the roll window in slots, at least 2.
    """
    written_ms = now_ms // PRECISION_MS * PRECISION_MS
    beyond_ms = slot_ms - written_ms - window_slots * PRECISION_MS
    if beyond_ms < 0:
        return slot_ms, False
    # Half the window if little is left after it, so that the last part is not too short.
    near = beyond_ms < window_slots // 3 * PRECISION_MS
    return written_ms + (window_slots // 2 if near else window_slots) * PRECISION_MS, True


def recalled(text: bytes) -> bytes | None:
    """Return the key of the message that this message recalls, or None."""
    return properties.find(text, _RECALLED) if PREFIX in text else None


def real_topic(text: bytes) -> bytes:
    """Return the topic of a message in the timer topic."""
    return properties.find(text, _REAL_TOPIC) or b""


def recall_key(topic: str, unique_key: str) -> str:
    """Return the value of TIMER_DEL_UNIQKEY that recalls a message."""
    return f"{topic}+{unique_key}"


def recalled_topic(key: bytes) -> str:
    """Return the topic in a recall key; a topic's name contains no ``+``."""
    return key.partition(b"+")[0].decode("utf-8", "replace")


def key_of(text: bytes) -> bytes:
    """Return the recall key of a waiting message; without a unique id it can't be recalled."""
    return (
        (properties.find(text, _REAL_TOPIC) or b"")
        + b"+"
        + (properties.find(text, _UNIQ_KEY) or b"")
    )


def was_rolled(text: bytes) -> bool:
    """Return whether a message was stored in the timer topic again."""
    return _ROLL_TIMES in text and properties.find(text, _ROLL_TIMES) is not None


def rolled(record: RecordView, now_ms: int) -> PendingMessage:
    """Return the message to store in the timer topic again."""
    value = properties.find(record.properties_text, _ROLL_TIMES) or b"0"
    times = int(value) if _NUMBER.fullmatch(value) else 0
    text = _stamped(record, now_ms, (_ROLL_TIMES, times + 1))
    return copied(record, names.TIMER_TOPIC, QUEUE, text, record.reconsume_times)


def expired(record: RecordView, now_ms: int) -> PendingMessage:
    """Return the message to deliver; see ``delivered``."""
    message = delivered(record)
    message.properties = _stamped(record, now_ms)
    return message


def _stamped(record: RecordView, now_ms: int, *more: tuple[bytes, int]) -> bytes:
    """Return the properties with the times of the wheel, or without if there is no room for them.

    RocketMQ then drops the message.
    """
    text = record.properties_text
    written_ms = record.store_timestamp_ms // PRECISION_MS * PRECISION_MS
    for name, number in ((_ENQUEUE_MS, written_ms), (_DEQUEUE_MS, now_ms), *more):
        text = replaced(text, name, b"%d" % number)
    return text if len(text) <= MAX_PROPERTIES_BYTES else record.properties_text
