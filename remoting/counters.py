"""Counters of connections and requests: plain integers that may be read at any time."""

from __future__ import annotations

from dataclasses import dataclass


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

    dropped_bad_frame: int = 0
    """A frame was undecodable, too large, or of a codec that was not agreed on."""
    dropped_idle: int = 0
    dropped_slow_frame: int = 0
    """A frame did not arrive whole in time."""
    dropped_slow_reader: int = 0
    """The peer did not read its answers."""
    dropped_hoarding: int = 0
    """It held more than its share of the memory for all connections."""
    dropped_slow_close: int = 0
    """The last bytes could not be sent within the close timeout."""

    tls_accepted: int = 0
    """Handshakes that ended well."""
    tls_failed_certificate: int = 0
    """The client's certificate was refused or missing."""
    tls_failed_closed: int = 0
    """The peer closed the connection during the handshake."""
    tls_failed_crowded: int = 0
    """The oldest unfinished handshake was ended for a new one."""
    tls_failed_invalid: int = 0
    """What the peer sent is no TLS, or has no algorithm in common."""
    tls_failed_plain: int = 0
    """Plain text on a port that accepts TLS only."""
    tls_failed_rejected: int = 0
    """The peer refused the server's certificate, or its algorithms."""
    tls_failed_slow: int = 0
    """The handshake, or the first byte, did not arrive in time."""
    tls_failed_version: int = 0
    """The peer offered no TLS version from 1.2 on."""

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

    @property
    def dropped(self) -> int:
        """The number of connections dropped for any of the reasons above."""
        return (
            self.dropped_bad_frame
            + self.dropped_idle
            + self.dropped_slow_frame
            + self.dropped_slow_reader
            + self.dropped_hoarding
            + self.dropped_slow_close
        )
