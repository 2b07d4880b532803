"""Logging for code that also runs inside other programs: the standard library's.

A line is an event and its facts: ``_log.warning("connection dropped", remote="10.0.0.1:5")``.
Without any set-up it prints ``connection dropped: remote=10.0.0.1:5``; a structured logger finds
both parts on the record, as ``event`` and ``facts``, as PocketMQ's servers do.

``RateLimitedLog`` bounds warnings about peers: a hostile peer must not fill a disk with log lines.
"""

from __future__ import annotations

import logging
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
"""Lines of one endpoint; enough to see what goes on, 2 MB an hour at worst."""

_log = Log("remoting")


class RateLimitedLog:
    """Writes warnings, counts what it leaves out and says so with the next one."""

    __slots__ = ("_clock", "_left_out", "_second", "_written")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, event: str, **facts: Any) -> bool:
        """Log ``event`` unless this second has had its share; says whether it did."""
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second = second
            self._written = 0
        if self._written >= MAX_PER_SECOND:
            self._left_out += 1
            return False
        self._written += 1
        if self._left_out:
            facts["left_out_before"] = self._left_out
            self._left_out = 0
        _log.warning(event, **facts)
        return True
