"""The meaning of the response code of a send."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from remoting.protocol.codes import ResponseCode

STORED_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""The message is stored; unless SUCCESS, less durably than the broker is configured."""


class SendVerdict(Enum):
    """What to do after an answer."""

    STORED = auto()
    BUSY = auto()
    """The broker is overloaded: it, or another one, may accept the message a moment later."""
    RETRY = auto()
    """Another broker may accept the message (cf. DefaultMQProducer.retryResponseCodes)."""
    FAIL = auto()


_VERDICTS: Final[dict[int, SendVerdict]] = {
    **dict.fromkeys(STORED_CODES, SendVerdict.STORED),
    ResponseCode.SYSTEM_BUSY: SendVerdict.BUSY,
    ResponseCode.FLOW_CONTROL: SendVerdict.BUSY,
    ResponseCode.TOPIC_NOT_EXIST: SendVerdict.RETRY,
    ResponseCode.SERVICE_NOT_AVAILABLE: SendVerdict.RETRY,
    ResponseCode.SYSTEM_ERROR: SendVerdict.RETRY,
    ResponseCode.NO_PERMISSION: SendVerdict.RETRY,
    ResponseCode.NO_BUYER_ID: SendVerdict.RETRY,
    ResponseCode.NOT_IN_CURRENT_UNIT: SendVerdict.RETRY,
}


def send_verdict(code: int) -> SendVerdict:
    """Return what to do after this response code; an unlisted code is final."""
    return _VERDICTS.get(code, SendVerdict.FAIL)
