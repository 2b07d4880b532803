"""Message trace: what a client did with a message, as records in the bodies of trace messages.

A record is text: fields joined by the character 1, ended by the character 2. Its kind determines
its fields. A trace message has the ids and keys of its records' messages as its keys, by which the
index finds it (cf. TraceDataEncoder).

Java joins an absent text as ``null``, and drops empty fields at the end of a record before it
counts them. So an absent text is ``null`` here too: an empty one at the end makes mqadmin fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple

from remoting.protocol.command import parse_bool, parse_integer
from remoting.protocol.message.properties import keys_of

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
ABSENT: Final = "null"

MAX_BODY_BYTES: Final = 118_000
"""Bytes of the records in one trace message (cf. AsyncTraceDispatcher: 128,000 - 10,000)."""

MAX_KEYS_BYTES: Final = 16_000
"""Bytes of the keys of one trace message: half of what the properties of a message may have."""


class TracedMessageType(IntEnum):
    """What a traced message is (cf. MessageType)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3
    ORDERED = 4


class ConsumeResult(IntEnum):
    """How a handler ended (cf. ConsumeReturnType)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One record; fields that its kind doesn't have keep their defaults (cf. TraceContext).

    Attributes:
        kind: ``Pub`` (sent), ``SubBefore`` and ``SubAfter`` (before and after a handler's call),
            ``EndTransaction`` or ``Recall``.
        time_ms: of the event, by the client's clock, in ms since 1970; 0 if the record has none.
        region: of the broker.
        group: of the producer or consumer.
        message_id: the id that the producer assigned.
        keys: separated by blanks.
        store_host: ``host:port`` of the broker.
        body_bytes: as it was sent.
        cost_ms: how long the send, or the handler, took.
        message_type: a ``TracedMessageType``, or a later one.
        offset_id: assigned by the broker.
        client_host: of the client; most records have none.
        request_id: the same before and after one call of a handler.
        retries: how often the message had been delivered before.
        result: a ``ConsumeResult``, or a later one.
        state: of the transaction: ``COMMIT_MESSAGE``, ``ROLLBACK_MESSAGE`` or ``UNKNOW``.
        from_check: whether the broker asked for the state.
    """

    kind: str
    time_ms: int = 0
    region: str = ""
    group: str = ""
    topic: str = ""
    message_id: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: int = TracedMessageType.NORMAL
    offset_id: str = ""
    success: bool = True
    client_host: str = ""
    request_id: str = ""
    retries: int = 0
    result: int = ConsumeResult.SUCCESS
    transaction_id: str = ""
    state: str = ""
    from_check: bool = False

    def encode(self) -> str:
        """Return the record as text."""
        values = (self.kind, *(_text(getattr(self, name)) for name in _FIELDS[self.kind]))
        return FIELD_END.join(values) + RECORD_END


_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    kind: tuple(names.split())
    for kind, names in {
        "Pub": "time_ms region group topic message_id tags keys store_host body_bytes cost_ms"
        " message_type offset_id success",
        "SubBefore": "time_ms region group request_id message_id retries keys",
        "SubAfter": "request_id message_id cost_ms success keys result time_ms group",
        "EndTransaction": "time_ms region group topic message_id tags keys store_host message_type"
        " transaction_id state from_check",
        "Recall": "time_ms region group topic message_id success",
    }.items()
}

_FIRST_PUB: Final = tuple(name for name in _FIELDS["Pub"] if name != "offset_id")
"""The fields of a Pub record of RocketMQ before 4.5."""

_OPTIONAL: Final = {"SubAfter": ("result", "time_ms", "group")}
"""Fields at the end that older clients, or clients of a cloud, leave out."""

_KINDS: Final[dict[str, Any]] = {field.name: field.type for field in fields(TraceRecord)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or ABSENT


def decode(body: bytes) -> list[TraceRecord]:
    """Return the records of a trace message, without those that can't be read.

    Unknown kinds and further fields are of later releases, and are left out.
    """
    found = []
    for text in body.decode("utf-8", "replace").split(RECORD_END):
        kind, *values = text.split(FIELD_END)
        names = _FIELDS.get(kind, ())
        if kind == "Pub":
            names = _FIRST_PUB if len(values) == len(_FIRST_PUB) else (*names, "client_host")
        needed = len(names) - len(_OPTIONAL.get(kind, ())) - ("client_host" in names)
        if not names or len(values) < needed:
            continue
        try:
            read = {
                name: _value(_KINDS[name], value)
                for name, value in zip(names, values, strict=False)
            }
        except ValueError:
            continue
        found.append(TraceRecord(kind=kind, **read))
    return found


def _value(kind: str, text: str) -> Any:
    if kind == "bool":
        return parse_bool(text)
    if kind == "int":
        return parse_integer(text, 64) if text else 0
    return "" if text == ABSENT else text


class TraceMessage(NamedTuple):
    """Body and keys of a trace message, and the number of its records."""

    body: bytes
    keys: tuple[str, ...]
    records: int


def messages_of(records: Iterable[TraceRecord]) -> Iterator[TraceMessage]:
    """Divide records among trace messages, as few as their limits allow."""
    body, keys, count, keys_bytes = b"", dict[str, None](), 0, 0
    for record in records:
        encoded = record.encode().encode()
        own = dict.fromkeys((record.message_id, *keys_of(record.keys)))
        own_bytes = sum(len(key.encode()) + 1 for key in own)
        if own_bytes > MAX_KEYS_BYTES:
            # Its id is enough to find it.
            own, own_bytes = {record.message_id: None}, len(record.message_id) + 1
        if count and (
            len(body) + len(encoded) > MAX_BODY_BYTES or keys_bytes + own_bytes > MAX_KEYS_BYTES
        ):
            yield TraceMessage(body, tuple(keys), count)
            body, keys, count, keys_bytes = b"", {}, 0, 0
        body += encoded
        keys |= own
        count += 1
        keys_bytes += own_bytes
    if count:
        yield TraceMessage(body, tuple(keys), count)
