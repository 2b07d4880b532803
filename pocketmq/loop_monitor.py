"""How long the event loop was busy with one thing: the stalls that everybody waits for.

A timer asks to be called every ``PERIOD`` seconds; how much later it is called is how long the loop
could not turn. Cheap enough to run always, but only ``--metrics-port`` starts it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

PERIOD: Final = 0.05
"""Seconds between two looks: a stall shorter than this is seen by chance only."""

STALL_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds, seconds; one more bucket holds what was longer."""


@dataclass(slots=True)
class Stalls:
    """What was seen so far.

    Attributes:
        buckets: how many looks were how late, see ``STALL_BUCKETS``.
        total: all lateness together, seconds.
        longest: the worst, seconds.
    """

    buckets: list[int] = field(default_factory=lambda: [0] * (len(STALL_BUCKETS) + 1))
    total: float = 0.0
    longest: float = 0.0

    def count(self, seconds: float) -> None:
        """One look came so late."""
        late = max(seconds, 0.0)
        self.buckets[bisect_left(STALL_BUCKETS, late)] += 1
        self.total += late
        self.longest = max(self.longest, late)


class LoopMonitor:
    """Watches the running loop between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.stalls = Stalls()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to look; on the loop to be watched."""
        self._loop = asyncio.get_running_loop()
        self._arm(self._loop)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(PERIOD, self._look, loop, monotonic() + PERIOD)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.stalls.count(monotonic() - due)
        self._arm(loop)
