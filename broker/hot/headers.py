"""The JSON headers of hot requests, read in one step into typed structs.

What is read here is what the general codec would read: each struct names all fields that the hot
path knows, as texts, and refuses everything else (unknown fields, nulls, bare numbers, nesting),
which sends the frame the general way. Of repeated fields the last wins, as everywhere.

The code of a request is taken from the beginning of its header, where every client known writes
it; who writes it elsewhere is served the general way.
"""

# ruff: noqa: N815 - the wire's names
from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct, ValidationError, json

from remoting.protocol.limits import MAX_EXT_FIELDS

KEY_BYTES: Final = 12
"""Of a header's beginning, which tell its code."""

Int: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

_LONG_HEADER_BYTES: Final = 7 * MAX_EXT_FIELDS
"""A shorter header can't have too many fields: each takes seven bytes, ``"a":"",``, or more."""


class _Envelope(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    code: Int
    opaque: Int = 0
    flag: Int = 0
    version: Int = 0
    language: str = ""
    remark: str | None = None
    serializeTypeCurrentRPC: str = ""


class SendFields(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, by their names on the wire."""

    a: str
    b: str
    c: str
    d: str
    e: str
    f: str
    g: str
    h: str
    i: str = ""
    j: str = "0"
    k: str = ""
    l: str = "0"  # noqa: E741 - the wire's name
    m: str = ""
    n: str = ""


class LongSendFields(
    Struct,
    forbid_unknown_fields=True,
    gc=False,
    kw_only=True,
    rename={
        "a": "producerGroup",
        "b": "topic",
        "c": "defaultTopic",
        "d": "defaultTopicQueueNums",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
        "j": "reconsumeTimes",
        "k": "unitMode",
        "l": "maxReconsumeTimes",
        "m": "batch",
        "n": "bname",
    },
):
    """SEND_MESSAGE: the same under long names."""

    a: str
    b: str
    c: str
    d: str
    e: str
    f: str
    g: str
    h: str
    i: str = ""
    j: str = "0"
    k: str = ""
    l: str = "0"  # noqa: E741 - as above
    m: str = ""
    n: str = ""


class SendHeader(_Envelope):
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    extFields: SendFields


class LongSendHeader(_Envelope):
    """SEND_MESSAGE."""

    extFields: LongSendFields


class PullFields(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE. An absent text and an empty one mean the same."""

    consumerGroup: str
    topic: str
    queueId: str
    queueOffset: str
    maxMsgNums: str
    sysFlag: str
    commitOffset: str
    suspendTimeoutMillis: str
    subVersion: str
    subscription: str = ""
    expressionType: str = ""
    maxMsgBytes: str = "0"
    requestSource: str = "0"
    bname: str = ""
    proxyFrowardClientId: str = ""


class CommitFields(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """UPDATE_CONSUMER_OFFSET."""

    consumerGroup: str
    topic: str
    queueId: str
    commitOffset: str
    bname: str = ""


class PullHeader(_Envelope):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    extFields: PullFields


class CommitHeader(_Envelope):
    """UPDATE_CONSUMER_OFFSET."""

    extFields: CommitFields


AnySendFields = SendFields | LongSendFields
AnySendHeader = SendHeader | LongSendHeader

decode_send: Final[Callable[[bytes], SendHeader]] = json.Decoder(SendHeader).decode
decode_long_send: Final[Callable[[bytes], LongSendHeader]] = json.Decoder(LongSendHeader).decode
decode_pull: Final[Callable[[bytes], PullHeader]] = json.Decoder(PullHeader).decode
decode_commit: Final[Callable[[bytes], CommitHeader]] = json.Decoder(CommitHeader).decode

DECODE_ERRORS: Final = (ValidationError, UnicodeDecodeError, ValueError)
"""What the decoders raise: the general way finds out what is wrong, if anything is."""


def has_few_fields(header: bytes) -> bool:
    """Whether the general codec would not complain of the number of ext fields, repeats included.

    By the quotes, of which each field has four; a text rich in quotes is counted the general way.
    """
    return len(header) < _LONG_HEADER_BYTES or header.count(b'"') < 4 * MAX_EXT_FIELDS


def integer(text: str) -> int | None:
    """A number as every client writes it; None for anything unusual, be it right or wrong."""
    if len(text) <= 18 and text.isascii() and text.isdigit():
        return int(text)
    return None


def small_integer(text: str) -> int | None:
    """The same for a number of 32 bits."""
    value = integer(text)
    return value if value is not None and value < 2**31 else None
