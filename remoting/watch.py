"""The deadlines of one connection, as a function of the time: no timer, no socket."""

from __future__ import annotations

from enum import Enum
from math import inf

from remoting.counters import Counters
from remoting.limits import ConnectionLimits


class Verdict(Enum):
    """Why a connection has to end; the value is the text for people."""

    IDLE = "idle for too long"
    SLOW_FRAME = "a frame did not arrive whole in time"
    SLOW_READER = "the peer does not take its answers"
    HOARDING = "all connections together hold too much, and this one more than its share"
    SLOW_CLOSE = "the peer did not take the last bytes"

    def count(self, counters: Counters) -> None:
        """Count a connection that ends for this reason."""
        match self:
            case Verdict.IDLE:
                counters.dropped_idle += 1
            case Verdict.SLOW_FRAME:
                counters.dropped_slow_frame += 1
            case Verdict.SLOW_READER:
                counters.dropped_slow_reader += 1
            case Verdict.HOARDING:
                counters.dropped_hoarding += 1
            case Verdict.SLOW_CLOSE:
                counters.dropped_slow_close += 1


class Watch:
    """When a connection was last seen doing what it should."""

    __slots__ = ("_limits", "blocked_since", "closing_since", "frame_since", "last_in", "last_out")

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self.last_in = now
        self.last_out = now
        self.frame_since = inf
        """Since when a frame has been arriving; inf: none is."""
        self.blocked_since = inf
        """Since when the peer has left more than the high-water mark unread; inf: it has not."""
        self.closing_since = inf
        """Since when the last bytes have been leaving; inf: the connection is open."""

    def verdict(self, now: float, *, busy: bool) -> Verdict | None:
        """Whether it has to end now. ``busy``: requests wait for an answer, so it is not idle."""
        limits = self._limits
        if self.closing_since != inf:
            late = self.closing_since + limits.close_timeout <= now
            return Verdict.SLOW_CLOSE if late else None
        if self.blocked_since + limits.unsent_timeout <= now:
            return Verdict.SLOW_READER
        if self.frame_since + limits.frame_timeout <= now:
            return Verdict.SLOW_FRAME
        if not busy and self._active() + limits.idle_timeout <= now:
            return Verdict.IDLE
        return None

    def next_at(self, now: float) -> float:
        """When to look again, if nothing else happens."""
        limits = self._limits
        if self.closing_since != inf:
            return self.closing_since + limits.close_timeout
        idle_at = self._active() + limits.idle_timeout
        return min(
            self.blocked_since + limits.unsent_timeout,
            self.frame_since + limits.frame_timeout,
            idle_at if idle_at > now else now + limits.idle_timeout,
        )

    def _active(self) -> float:
        return max(self.last_in, self.last_out)
