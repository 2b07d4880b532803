"""Logging for code that also runs inside other programs: the standard library's.

A line is an event and its facts: ``_log.warning("connection dropped", remote="10.0.0.1:5")``.
Without any set-up it prints ``connection dropped: remote=10.0.0.1:5``; a structured logger finds
both parts on the record, as ``event`` and ``facts``, as PocketMQ's servers do.

``RateLimitedLog`` bounds lines that peers can cause: a hostile one must not fill a disk with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from remoting.clock import Clock

ROOT = "pocketmq"
"""The parent of all our loggers."""


class Log:
    """A logger of events with facts, by the name of a part of PocketMQ."""

    __slots__ = ("_logger",)

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{part}")

    def debug(self, event: str, **facts: Any) -> None:
        """What only somebody who looks for an error wants to know."""
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        """What happens in the ordinary course of things."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """What somebody should look at."""
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """What went wrong."""
        self._write(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: Any) -> None:
        """What went wrong, with the exception that is being handled."""
        self._write(logging.ERROR, event, {"exc_info": True, **facts})

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        exc_info = facts.pop("exc_info", None)
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        # Half of a surrogate pair, which a peer's text may hold, fits into no file.
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
"""Lines of one kind; enough to see what goes on, 2 MB an hour at worst."""

_log = Log("remoting")


class RateLimitedLog:
    """Writes some lines per interval, counts the others and reports them with the next line.

    Args:
        clock: tells when an interval ends.
        log: writes a line of an event and its facts.
        interval: seconds.
        burst: lines that an interval may have.
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
        """Log ``event`` unless this interval has had its lines; says whether it did.

        The fact ``unreported`` is the number of lines left out before this one.
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
