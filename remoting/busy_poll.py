"""Looking for the next request again and again, instead of sleeping, where it is about to come.

A thread that sleeps is woken by way of the scheduler and, on a virtual machine, of the host: that
takes 20 to 50 us, and what the thread had in its caches may be gone. A peer that waits for each
answer before it asks again pays for that in each of its round trips. So while single requests come
within ``POLL_SECONDS`` of the answer before, the loop goes round for as long without sleeping.

To wait no longer than sleeping costs is never worse than twice the best (Karlin, Manasse, McGeoch,
Owicki: Competitive randomized algorithms for nonuniform problems, 1990); the Linux kernel and KVM
do likewise (``net.core.busy_poll``, ``halt_poll_ns``). Peers that let more time pass, or send
several requests at a time, leave the loop to sleep, and so does whoever else needs its core.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

POLL_SECONDS: Final = 100e-6
"""On a virtual machine sleeping took 60 us of a round trip; the peer, which sleeps, too, needs its
time as well."""

ENOUGH: Final = 16
"""Single requests that come as soon as that, but for a few, before it is worth it."""

TAKEN_SECONDS: Final = 500e-6
"""A round of the loop with nothing to do took this long: meanwhile the core was somebody else's."""

FIRST_PAUSE_SECONDS: Final = 0.02
"""How long the loop sleeps as ever after that; twice as long each time it soon happens again."""

LAST_PAUSE_SECONDS: Final = 1.28

_MOST: Final = 4 * ENOUGH


def can_poll() -> bool:
    """Whether this process may use a core besides its peers'."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


class BusyPoll:
    """Keeps one loop from sleeping.

    Attributes:
        polling: whether it does so now.
        not_before: until then it does not; a time in seconds.
    """

    __slots__ = (
        "_frames",
        "_now",
        "_pause",
        "_rested",
        "_round",
        "_score",
        "_until",
        "not_before",
        "polling",
    )

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` tells the time in seconds."""
        self._now = now
        self._score = 0
        self._frames = 0
        self._rested = self._round = self._until = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self.not_before = 0.0
        self.polling = False

    def worked(self, came: float, answered: float, frames: int) -> None:
        """A read was worked.

        Args:
            came: when it was read, in seconds.
            answered: when its peer was last written to; before ``came`` if it got no answer yet.
            frames: worked so far, this read's included.
        """
        single = frames - self._frames == 1
        self._frames = frames
        self._round = came
        if answered < came:
            return
        if single and came - self._rested <= POLL_SECONDS:
            if self._score < _MOST:
                self._score += 1
        else:
            self._score >>= 1
        self._rested = self._round = answered
        self._until = answered + POLL_SECONDS
        if self._score >= ENOUGH and not self.polling and answered >= self.not_before:
            self.polling = True
            asyncio.get_running_loop().call_soon(self._poll)

    def _poll(self) -> None:
        now = self._now()
        if now - self._round > TAKEN_SECONDS:
            self._leave(now)
        self._round = now
        if now < self._until and self._score >= ENOUGH:
            asyncio.get_running_loop().call_soon(self._poll)
        else:
            self.polling = False

    def _leave(self, now: float) -> None:
        """Leave the core to whoever took it."""
        again = now - self.not_before < 2 * self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS) if again else FIRST_PAUSE_SECONDS
        self.not_before = now + self._pause
        self._score = 0
