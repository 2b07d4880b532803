"""What can be wrong with the bytes a peer sent.

All of these are the peer's doing, never ours: a caller's own mistakes raise ``ValueError`` or
``TypeError``. What to do depends on the kind: a ``FrameError`` ends the connection, the others
are answered with the protocol's own code.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """What a peer sent can't be understood."""


class FrameError(ProtocolError):
    """A frame or its header is undecodable or too large: the connection has to go."""


class HeaderError(ProtocolError):
    """A field of a command's header is missing or not of its type."""


class BodyError(ProtocolError):
    """A JSON, batch or compressed body can't be understood, or is larger than allowed."""


class RecordError(ProtocolError):
    """A message record is damaged."""
