"""Sends: from the slice of a header to records, queue entries and an answer.

Each step is that of ``broker.processors.send`` and ``broker.store.writer`` for messages that
nothing is special about; all others are left to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.hot.answers import SendAnswers
from broker.hot.batch import Batches
from broker.hot.headers import (
    DECODE_ERRORS,
    AnySendHeader,
    decode_long_send,
    decode_send,
    has_few_fields,
    integer,
)
from broker.hot.properties import stored
from broker.hot.targets import Target, Targets, key_of
from broker.hot.turn import COLD, HEAVY, LIGHT, Serve, Turn
from broker.processors.send import answer_fields
from broker.state import BrokerState
from remoting.protocol.accelerated import crc32
from remoting.protocol.codes import FLAG_ONEWAY, RequestCode
from remoting.protocol.message.properties import CLUSTER, NAME_END
from remoting.protocol.message.record import FIXED_BYTES_V4, HEAD_V4, MAGIC_V1

_CRC_MASK: Final = 0x7FFFFFFF
_pack_head: Final = HEAD_V4.pack


class Sends:
    """Serves sends.

    Attributes:
        serves: code -> what serves its frames.
    """

    __slots__ = (
        "_batches",
        "_born_ms",
        "_born_text",
        "_bulk",
        "_cluster",
        "_host",
        "_max_body",
        "_turn",
        "serves",
        "targets",
    )

    def __init__(self, state: BrokerState, turn: Turn) -> None:
        self._turn = turn
        self._bulk = state.store.bulk
        self._host = state.packed_host
        self._max_body = state.store.config.max_message_size
        self._cluster = CLUSTER.encode() + NAME_END + state.config.cluster_name.encode()
        self._born_text, self._born_ms = "0", 0
        answers = SendAnswers(state.packed_host, answer_fields(state.config))
        self.targets = Targets(state, answers)
        self._batches = Batches(state, turn, answers)
        self.serves: dict[int, Serve] = {
            RequestCode.SEND_MESSAGE: partial(
                self._serve, RequestCode.SEND_MESSAGE, decode_long_send
            ),
            RequestCode.SEND_MESSAGE_V2: partial(
                self._serve, RequestCode.SEND_MESSAGE_V2, decode_send
            ),
            RequestCode.SEND_BATCH_MESSAGE: partial(
                self._serve, RequestCode.SEND_BATCH_MESSAGE, decode_send
            ),
        }

    def _serve(
        self,
        code: int,
        decode: Callable[[bytes], AnySendHeader],
        buffer: bytes,
        header_at: int,
        body_at: int,
        end: int,
    ) -> int:
        if not self._turn.takes_sends:
            return COLD
        text = buffer[header_at:body_at]
        try:
            header = decode(text)
        except DECODE_ERRORS:
            return COLD
        flag = header.flag
        if header.code != code or (flag and flag != FLAG_ONEWAY) or not has_few_fields(text):
            return COLD
        fields = header.extFields
        key = key_of(fields)
        target = self.targets.get(key) or self.targets.find(key, fields)
        # As a rule it was born in the same millisecond as the message before.
        if target is None or (fields.g != self._born_text and not self._see_born(fields.g)):
            return COLD
        opaque = None if flag else header.opaque
        if target.batch:
            done = self._batches.put(target, fields.i, buffer, body_at, end, self._born_ms, opaque)
            return HEAVY if done else COLD
        return LIGHT if self._one(target, fields.i, buffer[body_at:end], opaque) else COLD

    def _see_born(self, text: str) -> bool:
        born_ms = integer(text)
        if born_ms is None:
            return False
        self._born_text, self._born_ms = text, born_ms
        return True

    def _one(self, target: Target, sent: str, body: bytes, opaque: int | None) -> bool:
        kept = stored(sent, self._cluster)
        length = len(body)
        if kept is None or length > self._max_body:
            return False
        properties, waits, tags_code = kept
        topic = target.topic_text
        # The topic's own length byte is in its text.
        size = FIXED_BYTES_V4 - 1 + length + len(topic) + len(properties)
        bulk, run = self._bulk, target.run
        if (not run.room or bulk.position + size > bulk.limit) and not bulk.make_room(run, 1, size):
            return False
        position, number = bulk.position, run.next_offset
        bulk.records += (
            _pack_head(
                size,
                MAGIC_V1,
                crc32(body) & _CRC_MASK,
                target.queue_id,
                target.flag,
                number,
                position,
                target.sys_flag,
                self._born_ms,
                self._turn.peer.born_host,
                bulk.store_ms,
                self._host,
                target.reconsume_times,
                0,
                length,
            ),
            body,
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
        bulk.position = position + size
        bulk.messages += 1
        run.entries += (position, size, tags_code)
        run.next_offset = number + 1
        run.room -= 1
        turn = self._turn
        turn.messages += 1
        turn.message_bytes += length
        if opaque is not None:
            turn.answer_send(target.answer, (position, number, opaque), waits=waits)
        return True
