"""Loads whose CPU time counts until the broker has come to rest.

An index and safe points are made behind the messages' back, partly when the load is over: that is
part of what a message costs, and whoever is measured next is not to be disturbed by it.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks import tools
from benchmarks.scenarios import Scenario
from benchmarks.tools import Target

REST_SECONDS: Final = 2.25
"""What is done behind the messages' back begins so late: a busy broker puts its index off until it
has found itself idle for a second, looking once a second."""

MOST_REST_SECONDS: Final = 8.0
LOOK_SECONDS: Final = 0.25
RESTING_SHARE: Final = 0.03
"""Of a core: what a broker that has nothing to do takes at most."""


def cpu_seconds(pid: int) -> float:
    """CPU time a process and its threads have used, in steps of 1 ns (see clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def rest(pid: int, at_least: float) -> None:
    """Wait until a broker does nothing more of its own."""
    begun = time.monotonic()
    while True:
        before = cpu_seconds(pid)
        time.sleep(LOOK_SECONDS)
        waited = time.monotonic() - begun
        idle = cpu_seconds(pid) - before < RESTING_SHARE * LOOK_SECONDS
        if (idle and waited >= at_least) or waited >= MOST_REST_SECONDS:
            return


def load(
    scenario: Scenario, target: Target, *, seconds: float, warm: float = 0.0
) -> dict[str, float]:
    """One run: see ``tools.load``; what is done afterwards is part of ``cpu_us_per``.

    What was done while the load ran is ``cpu_us_at_once``. Of the rest, the seconds that count have
    their share.
    """
    figures = tools.load(scenario, target, seconds=seconds, warm=warm)
    ended = cpu_seconds(target.pid)
    rest(target.pid, 0.0 if scenario.mode == "pull" else REST_SECONDS)
    late = (cpu_seconds(target.pid) - ended) * seconds / (seconds + warm)
    at_once = figures["cpu_us_per"]
    return {
        **figures,
        "cpu_us_per": at_once + 1e6 * late / figures["n"],
        "cpu_us_at_once": at_once,
    }
