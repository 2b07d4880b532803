r"""A message's properties as text: ``name 0x01 value 0x02 name 0x01 value``.

RocketMQ 4.9.1 to 5.1 writes no separator after the last entry, older and newer releases do; both
are read. Malformed text is tolerated: an entry counts only if it has a 0x01 with at least one
character on each side, the last of repeated names counts, and bytes that are not UTF-8 become
U+FFFD. So an empty value is written but lost on reading (cf. MessageDecoder).

A broker stores the text as it was received, so ``find``, ``append``, ``join`` and ``remove`` work
on the text: they neither decode nor reorder it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
DEAD_REASON: Final = "POCKETMQ_DEAD_REASON"
"""Why the message is a dead letter, as text. This and the next three are PocketMQ's own."""
DEAD_EXCEPTION: Final = "POCKETMQ_DEAD_EXCEPTION"
DEAD_CONSUMER: Final = "POCKETMQ_DEAD_CONSUMER"
DEAD_TIME: Final = "POCKETMQ_DEAD_TIME"
REDRIVEN: Final = "POCKETMQ_REDRIVEN"
"""Which dead letter the message is a copy of: PocketMQ's own."""
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
SHARDING_KEY: Final = "__SHARDINGKEY"

KEY_SEPARATOR: Final = " "
"""The separator of the keys in the value of ``KEYS``."""

NAME_END: Final = b"\x01"
ENTRY_END: Final = b"\x02"


def keys_of(value: str) -> list[str]:
    """Return the keys in the value of ``KEYS``, as brokers index them: only blanks separate."""
    return [key for key in value.split(KEY_SEPARATOR) if key]


def encode(entries: Mapping[str, str | None], *, trailing: bool = False) -> bytes:
    """Return the text of a mapping, in its order, without entries whose value is None.

    Args:
        entries: names and values.
        trailing: also write a separator after the last entry, as RocketMQ 5.2 and later do.

    Raises:
        ValueError: a name is empty or contains 0x01 or 0x02, or a value contains 0x02: the text
            could not be split again.
    """
    parts = [f"{name}\x01{value}" for name, value in entries.items() if value is not None]
    text = "\x02".join(parts)
    if text.count("\x01") != len(parts) or text.count("\x02") >= len(parts) > 0 or "" in entries:
        for name, value in entries.items():
            if not name:
                raise ValueError("a property has an empty name")
            if "\x01" in name or "\x02" in name:
                raise ValueError(f"the property name {name!r} holds 0x01 or 0x02; take these out")
            if value is not None and "\x02" in value:
                raise ValueError(f"the value of the property {name!r} holds 0x02; take it out")
    if trailing and parts:
        text += "\x02"
    return text.encode()


def decode(text: bytes | memoryview) -> dict[str, str]:
    """Decode a properties text. Never raises: malformed entries are left out."""
    entries = {}
    for entry in str(text, "utf-8", "replace").split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            entries[name] = value
    return entries


def find(text: bytes, name: bytes) -> bytes | None:
    """Return the value that ``decode(text)`` has for ``name``, without decoding the others."""
    marker = name + NAME_END
    at = text.rfind(marker)
    while at >= 0:
        if at == 0 or text[at - 1] == 2:
            start = at + len(marker)
            end = text.find(ENTRY_END, start)
            value = text[start:] if end < 0 else text[start:end]
            if value:
                return value
        at = text.rfind(marker, 0, at)
    return None


def join(text: bytes, more: bytes) -> bytes:
    """Return two texts joined, with a separator between them if one is needed."""
    if text and more and not text.endswith(ENTRY_END):
        return text + ENTRY_END + more
    return text + more


def append(text: bytes, name: bytes, value: bytes) -> bytes:
    """Return the text with an entry appended, which overrides earlier ones of the same name."""
    return join(text, name + NAME_END + value)


def remove(text: bytes, name: bytes) -> bytes:
    """Return the text without the entries called ``name``; other bytes are unchanged."""
    marker = name + NAME_END
    if marker not in text:
        return text
    *entries, last = text.split(ENTRY_END)
    kept = [entry + ENTRY_END for entry in entries if not entry.startswith(marker)]
    if not last.startswith(marker):
        kept.append(last)
    return b"".join(kept)
