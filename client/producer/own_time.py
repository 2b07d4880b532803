"""The clock of a producer's deadlines.

It leaves out what the loop spent elsewhere while a message waited for its turn: as long as the
application keeps the loop busy nothing can be sent or read, and that is no broker's silence.
"""

from __future__ import annotations

from collections.abc import Callable

from remoting.limits import STALL_SECONDS


class OwnTime:
    """Seconds as ``loop_time`` counts them, without the loop's stalls."""

    def __init__(self, loop_time: Callable[[], float]) -> None:
        self._loop_time = loop_time
        self._lost = 0.0
        self._stall = (0.0, 0.0)

    def now(self) -> float:
        """The time for deadlines."""
        return self._loop_time() - self._lost

    def on_loop(self, when: float) -> float:
        """The loop's time that is ``when`` here if it stalls no more."""
        return when + self._lost

    def leave_out(self, since: float) -> None:
        """The caller should have run at ``since`` (the loop's time): was that long ago, it stalled.

        Time that several callers were kept waiting counts once.
        """
        now = self._loop_time()
        if now - since <= STALL_SECONDS:
            return
        begin, end = self._stall
        if since > end:
            begin = end = since
        self._stall = (min(since, begin), now)
        self._lost += now - end + begin - self._stall[0]
