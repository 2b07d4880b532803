"""The properties text of a send: what a 4.9 broker stores of it, worked out without decoding it.

The same as the general path makes by ``remoting.protocol.message.properties``; the usual shape,
one ``WAIT`` that says true, is cut out here, everything else is left to those functions.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message import properties
from remoting.protocol.message.tags import tags_code_of

_WAIT_NAME: Final = properties.WAIT.encode()
_WAIT: Final = _WAIT_NAME + properties.NAME_END
_WAIT_TRUE: Final = _WAIT + b"true"
# Each of DELAY, TRAN_MSG and the TIMER_* properties has one of these in its name.
_DELAY: Final = properties.DELAY.encode()
_MS: Final = b"_MS"
_TAGS: Final = properties.TAGS.encode() + properties.NAME_END
_SEPARATOR: Final = 2


Stored: TypeAlias = tuple[bytes, bool, int]
"""What becomes of a properties text: the text, whether it asks to wait for the disk, tags code."""


def stored(sent: str, cluster: bytes) -> Stored | None:
    """The text to store; None when the general path has to look at it.

    Args:
        sent: as it came.
        cluster: the entry that the broker appends.
    """
    text = sent.encode()
    # As ``asks_for_more``, without a call.
    if _DELAY in text or _MS in text:
        return None
    waits = True
    at = text.find(_WAIT)
    if at >= 0:
        cut = _without_wait(text, at)
        if cut is None:
            waits = says_wait(text)
            text = properties.remove(text, _WAIT_NAME)
        else:
            text = cut
    tagged = _TAGS in text
    if text and text[-1] != _SEPARATOR:
        text += properties.ENTRY_END + cluster
    else:
        text += cluster
    if len(text) > MAX_PROPERTIES_BYTES:
        return None
    return text, waits, tags_code_of(text) if tagged else 0


def asks_for_more(text: bytes) -> bool:
    """Whether a text may ask for delay, a timer or a transaction; the general path looks closer."""
    return _DELAY in text or _MS in text


def _without_wait(text: bytes, at: int) -> bytes | None:
    """The text without its only ``WAIT``, found at ``at``, if that is an entry that says true."""
    end = at + len(_WAIT_TRUE)
    if text[at:end] != _WAIT_TRUE or (at and text[at - 1] != _SEPARATOR):
        return None
    if text.find(_WAIT, end) >= 0:
        return None
    if end == len(text):
        return text[:at]
    return text[:at] + text[end + 1 :] if text[end] == _SEPARATOR else None


def says_wait(text: bytes) -> bool:
    """Whether a text asks for an answer only when the message is on the disk."""
    value = properties.find(text, _WAIT_NAME)
    return value is None or value.lower() == b"true"
