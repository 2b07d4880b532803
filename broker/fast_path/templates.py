"""Templates of answers, made from frames of the general encoder.

A sample answer is encoded, and cut at the values that vary. So answers on the fast path have the
same bytes as those on the slow path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from broker.store.results import GetStatus
from remoting.protocol.codes import ResponseCode, SerializeType
from remoting.protocol.command import Command, Header
from remoting.protocol.core.answer import AnswerTemplate
from remoting.protocol.frame import PREFIX_BYTES, encode
from remoting.protocol.headers.pull import PullMessageResponseHeader
from remoting.protocol.headers.send import SendMessageResponseHeader

OPAQUE, FIRST, SECOND, THIRD, IDS, FIELDS_LENGTH, TEXT = range(7)
"""What is written into a hole; see ``AnswerTemplate``."""

MAX_SEND_TEMPLATES: Final = 1_024
"""Cached templates of answers to sends, about 400 bytes each."""

_BINARY_HEAD_BYTES: Final = 17
_LENGTH_BYTES: Final = 4
_OPAQUE: Final = 1_912_345_678
_NUMBERS: Final = (8_111_111_111_111_111_111, 8_222_222_222_222_222_222, 8_333_333_333_333_333_333)
_ID: Final = "\ue000"
_UNIQUE_ID: Final = "\ue001"

Hole = tuple[bytes, int]
"""The encoded sample value that marks a hole, and the hole's kind."""

Answers = tuple[AnswerTemplate, AnswerTemplate]
"""The answers for success and for a message that wasn't flushed in time."""


def _holes(codec: SerializeType) -> list[Hole]:
    numbers = zip(_NUMBERS, (FIRST, SECOND, THIRD), strict=True)
    texts = ((_ID.encode(), IDS), (_UNIQUE_ID.encode(), TEXT))
    if codec is SerializeType.JSON:
        return [
            (b"%d" % _OPAQUE, OPAQUE),
            *((b"%d" % number, kind) for number, kind in numbers),
            *texts,
        ]
    if codec is SerializeType.ROCKETMQ:
        return [
            (_OPAQUE.to_bytes(4, "big"), OPAQUE),
            *((_with_length(b"%d" % number), kind) for number, kind in numbers),
            *((_with_length(text), kind) for text, kind in texts),
        ]
    return [
        (b"\xce" + _OPAQUE.to_bytes(4, "big"), OPAQUE),
        *((b"\xcf" + number.to_bytes(8, "big"), kind) for number, kind in numbers),
        *((bytes((0xA0 | len(text),)) + text, kind) for text, kind in texts),
    ]


def _with_length(text: bytes) -> bytes:
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def make(
    codec: SerializeType,
    code: int,
    *,
    remark: str | None = None,
    header: Header | None = None,
    extra: Sequence[tuple[str, str]] = (),
    id_prefix: bytes = b"",
) -> AnswerTemplate:
    """Return the template of an answer; ``header`` has sample values where it has holes."""
    request = Command(0, _OPAQUE, serialize=codec)
    sample = encode(request.reply(code, remark, header=header, extra=extra))[PREFIX_BYTES:]
    kinds = []
    places = sorted(
        (place, text, kind) for text, kind in _holes(codec) if (place := sample.find(text)) >= 0
    )
    fields_at = _BINARY_HEAD_BYTES + len((remark or "").encode())
    if codec is SerializeType.ROCKETMQ and header is not None:
        length = sample[fields_at : fields_at + _LENGTH_BYTES]
        places = sorted([*places, (fields_at, length, FIELDS_LENGTH)])
    begin = 0
    literals = []
    for place, text, kind in places:
        literals.append(sample[begin:place])
        kinds.append(kind)
        begin = place + len(text)
    return AnswerTemplate(codec, [*literals, sample[begin:]], kinds, id_prefix)


class SendAnswers:
    """Templates of answers to sends; ``of`` returns those for a codec and a queue id, cached.

    Args:
        packed_host: the broker's address in message ids.
        extra: the fields of every answer to a send.
    """

    def __init__(self, packed_host: bytes, extra: tuple[tuple[str, str], ...]) -> None:
        self._extra = extra
        self._id_prefix = packed_host.hex().upper().encode()
        # Few templates are needed: thousands of topics share the same few queue ids.
        self.of = lru_cache(maxsize=MAX_SEND_TEMPLATES)(self._make)

    def _make(self, codec: SerializeType, queue_id: int) -> tuple[Answers, Answers]:
        """Return the answers to messages without and with a unique id.

        Their holes are the opaque, the queue offset, the ids of the messages and the unique id.
        """
        plain, named = (
            SendMessageResponseHeader(
                msg_id=_ID, queue_id=queue_id, queue_offset=_NUMBERS[0], transaction_id=unique_id
            )
            for unique_id in (None, _UNIQUE_ID)
        )
        return self._answers(codec, plain), self._answers(codec, named)

    def _answers(self, codec: SerializeType, header: Header) -> Answers:
        success, late = (
            make(codec, code, header=header, extra=self._extra, id_prefix=self._id_prefix)
            for code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
        )
        return success, late


def found_template(codec: SerializeType) -> AnswerTemplate:
    """Return the template of answers to pulls with messages.

    Its holes are the opaque, the next offset, and the queue's lowest and highest offset.
    """
    low, high = _NUMBERS[1:]
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=_NUMBERS[0], min_offset=low, max_offset=high
    )
    return make(codec, ResponseCode.SUCCESS, remark=GetStatus.FOUND.name, header=header)
