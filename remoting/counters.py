"""Counters of connections and requests: plain integers that may be read at any time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class CloseReason(Enum):
    """Why a connection is dropped; the value is the reason as text."""

    BAD_FRAME = "a frame is undecodable, too large, or of a codec that was not agreed on"
    IDLE = "idle for too long"
    SLOW_FRAME = "a frame did not arrive whole in time"
    SLOW_READER = "the peer does not read its answers"
    HOARDING = "the connections hold too much memory, this one more than its share"
    SLOW_CLOSE = "the peer did not read the last bytes"


class TlsFailure(StrEnum):
    """Why a TLS handshake failed."""

    CERTIFICATE = "certificate"
    """The client's certificate was refused or missing."""
    CLOSED = "closed"
    """The peer closed the connection during the handshake."""
    CROWDED = "crowded"
    """The oldest unfinished handshake was ended for a new one."""
    INVALID = "invalid"
    """What the peer sent is no TLS, or has no algorithm in common."""
    PLAIN = "plain"
    """Plain text on a port that accepts TLS only."""
    REJECTED = "rejected"
    """The peer refused the server's certificate, or its algorithms."""
    SLOW = "slow"
    """The handshake, or the first byte, did not arrive in time."""
    VERSION = "version"
    """The peer offered no TLS version from 1.2 on."""


@dataclass(slots=True)
class Counters:
    """Counts since the start, followed by four gauges."""

    connections_accepted: int = 0
    connections_refused: int = 0
    """Accepted and closed at once, see ``Endpoint.reason_to_refuse``."""
    connections_refused_address: int = 0
    """Those of them that were too many from one address."""
    connections_opened: int = 0
    """Connections made by this side."""
    connects_failed: int = 0
    connections_closed: int = 0

    dropped: Counter[CloseReason] = field(default_factory=Counter)

    tls_accepted: int = 0
    """Handshakes that ended well."""
    tls_failed: Counter[TlsFailure] = field(default_factory=Counter)

    frames_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    responses_unknown: int = 0
    """Responses whose request is unknown or no longer pending."""
    requests_timed_out: int = 0
    requests_failed: int = 0
    """Requests whose handler raised an exception."""
    requests_refused_busy: int = 0
    """Requests answered SYSTEM_BUSY because too many were in progress."""

    requests_paused: int = 0
    """Times that a server stopped reading from a peer with too many requests in progress."""

    requests_in_progress: int = 0
    """Gauge: requests in progress."""
    bytes_in_flight: int = 0
    """Gauge: bytes of the frames of requests in progress."""
    bytes_held: int = 0
    """Gauge: bytes of incomplete or unprocessed frames, and of unsent answers."""
    tls_connections: int = 0
    """Gauge: open connections with TLS that were accepted."""
