"""Logging with the standard library, because the code also runs inside other programs.

A line is an event and its facts: ``_log.warning("connection dropped", remote="10.0.0.1:5")``. With
plain logging it is written as ``connection dropped: remote=10.0.0.1:5``. A structured formatter,
such as that of PocketMQ's servers, finds both parts on the record, as ``event`` and ``facts``.

``RateLimitedLog`` limits lines that peers can cause, so that a hostile peer can't fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from remoting.runtime.clock import Clock

ROOT = "pocketmq"
"""The parent of all loggers of PocketMQ."""


class Log:
    """A logger of events with facts, named after a part of PocketMQ."""

    __slots__ = ("_logger",)

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{part}")

    def debug(self, event: str, **facts: Any) -> None:
        """Log what is useful only for debugging."""
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        """Log normal operation."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Log what an operator should check."""
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """Log an error."""
        self._write(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: Any) -> None:
        """Log an error, with the exception that is being handled."""
        self._write(logging.ERROR, event, {"exc_info": True, **facts})

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        exc_info = facts.pop("exc_info", None)
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        # A peer's text may contain lone surrogates, which can't be encoded.
        text = text.encode(errors="backslashreplace").decode()
        self._logger.log(
            level,
            "%s: %s" if text else "%s%s",
            event,
            text,
            exc_info=exc_info,
            extra={"event": event, "facts": facts},
        )


MAX_PER_SECOND: Final = 20
"""Lines per second of one ``RateLimitedLog``: enough to diagnose, and some 7 MB an hour at most."""

_log = Log("remoting")


class RateLimitedLog:
    """Writes a limited number of lines per interval; the next line has the number of dropped ones.

    Args:
        clock: measures the intervals.
        log: writes a line, given an event and its facts.
        interval: in seconds.
        burst: the limit of lines in an interval.
    """

    __slots__ = ("_burst", "_clock", "_ends_at", "_interval", "_left", "_log", "_unreported")

    def __init__(
        self,
        clock: Clock,
        log: Callable[..., object] = _log.warning,
        *,
        interval: float = 1.0,
        burst: int = MAX_PER_SECOND,
    ) -> None:
        self._clock = clock
        self._log = log
        self._interval = interval
        self._burst = burst
        self._left = 0
        self._ends_at = float("-inf")
        self._unreported = 0

    def write(self, event: str, **facts: Any) -> bool:
        """Log ``event`` unless the limit is reached; return whether it was logged.

        The fact ``unreported`` is the number of lines dropped before this one.
        """
        now = self._clock.monotonic()
        if now >= self._ends_at:
            self._ends_at = now + self._interval
            self._left = self._burst
        if not self._left:
            self._unreported += 1
            return False
        self._left -= 1
        self._log(event, **facts, unreported=self._unreported)
        self._unreported = 0
        return True
