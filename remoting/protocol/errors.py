"""Errors in bytes that a peer sent or a file holds.

A caller's own mistakes raise ``ValueError`` or ``TypeError`` instead. A ``FrameError`` closes the
connection; for the others the request is answered with an error code of the protocol.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Bytes from a peer or a file can't be decoded."""


class FrameError(ProtocolError):
    """A frame or its header is undecodable or too large: the connection has to be closed."""


class HeaderError(ProtocolError):
    """A field of a command's header is missing or not of its type."""


class BodyError(ProtocolError):
    """A JSON, batch or compressed body can't be decoded or is larger than allowed."""


class RecordError(ProtocolError):
    """A message record is damaged."""
