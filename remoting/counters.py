"""What happened on the sockets, as plain integers that anybody may read at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the start, except the gauges at the end."""

    connections_accepted: int = 0
    connections_refused: int = 0
    """Accepted and closed at once: ``max_connections`` was reached."""
    connections_opened: int = 0
    """Connected by us."""
    connects_failed: int = 0
    connections_closed: int = 0

    dropped_bad_frame: int = 0
    """Undecodable, too large, or of a codec that was not agreed on."""
    dropped_idle: int = 0
    dropped_slow_frame: int = 0
    """A frame did not arrive whole in time."""
    dropped_slow_reader: int = 0
    """The peer did not take its answers."""
    dropped_hoarding: int = 0
    """Held more than its share of what all connections together may hold."""
    dropped_slow_close: int = 0
    """The last bytes were not taken within the close timeout."""

    frames_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    responses_unknown: int = 0
    """Responses nobody waits for (any more)."""
    requests_timed_out: int = 0
    requests_failed: int = 0
    """Handlers that raised."""
    requests_refused_busy: int = 0
    """Answered SYSTEM_BUSY because too much was in progress."""

    requests_in_progress: int = 0
    """Gauge: handlers at work."""
    bytes_in_flight: int = 0
    """Gauge: frames whose handlers are at work."""
    bytes_held: int = 0
    """Gauge: frames that are not whole yet, and answers that peers are slow to take."""

    @property
    def dropped(self) -> int:
        """All connections that were dropped for what the peer did or did not do."""
        return (
            self.dropped_bad_frame
            + self.dropped_idle
            + self.dropped_slow_frame
            + self.dropped_slow_reader
            + self.dropped_hoarding
            + self.dropped_slow_close
        )
