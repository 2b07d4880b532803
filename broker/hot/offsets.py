"""Commits of offsets: UPDATE_CONSUMER_OFFSET."""

from __future__ import annotations

from typing import Final

from broker.errors import LimitReached, Refused
from broker.hot.answers import framed, template
from broker.hot.headers import DECODE_ERRORS, decode_commit, has_few_fields, integer, small_integer
from broker.hot.turn import COLD, LIGHT, Serve, Turn
from broker.processors.offsets import OffsetProcessor
from remoting.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode

_CODE: Final = RequestCode.UPDATE_CONSUMER_OFFSET


class Commits:
    """Serves commits.

    Attributes:
        serves: code -> what serves its frames.
        served: how many were.
    """

    __slots__ = ("_answer", "_offsets", "_turn", "served", "serves")

    def __init__(self, offsets: OffsetProcessor, turn: Turn) -> None:
        self._offsets = offsets
        self._turn = turn
        self.served = 0
        self._answer = template(ResponseCode.SUCCESS)
        self.serves: dict[int, Serve] = {_CODE: self._serve}

    def _serve(self, buffer: bytes, header_at: int, body_at: int, _: int) -> int:
        text = buffer[header_at:body_at]
        try:
            header = decode_commit(text)
        except DECODE_ERRORS:
            return COLD
        fields, flag = header.extFields, header.flag
        queue_id, offset = small_integer(fields.queueId), integer(fields.commitOffset)
        if (
            queue_id is None
            or offset is None
            or header.code != _CODE
            or (flag and flag != FLAG_ONEWAY)
            or not has_few_fields(text)
        ):
            return COLD
        try:
            self._offsets.commit(fields.consumerGroup, fields.topic, queue_id, offset)
        except (LimitReached, Refused):
            return COLD
        if not flag:
            self._turn.answers.append(framed(self._answer % header.opaque))
        self.served += 1
        return LIGHT
