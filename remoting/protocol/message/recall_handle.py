"""The recall handle of a timer message: what a broker needs to find it in its wheel.

It is the URL-safe base64 text of ``v1 topic broker time id``, with the time of the message's slot
plus 1 ms and the message's unique id (cf. RecallMessageHandle).
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

_VERSION: Final = "v1"

MAX_HANDLE_LENGTH: Final = 2_048
"""Characters; a handle with the longest topic and broker name has 800."""


class RecallHandle(NamedTuple):
    """A decoded handle."""

    topic: str
    broker_name: str
    time: str
    """ms since 1970, not checked."""
    unique_id: str

    def encode(self) -> str:
        """Return the text."""
        return urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()


def decode(text: str) -> RecallHandle:
    """Decode a handle.

    Raises:
        ValueError: the text is not a handle; the error is RocketMQ's.
    """
    try:
        if len(text) > MAX_HANDLE_LENGTH:
            raise ValueError  # noqa: TRY301 - one message for all
        padded = text + "=" * (-len(text) % 4)
        version, *fields = b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        if version != _VERSION or len(fields) < 4:
            raise ValueError  # noqa: TRY301
    except (ValueError, binascii.Error):
        raise ValueError("recall handle is invalid") from None
    return RecallHandle(*fields[:4])
