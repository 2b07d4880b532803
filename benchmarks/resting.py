"""Runs loads and counts the broker's CPU time until it is idle.

The broker builds its index and writes checkpoints asynchronously, partly after the load. That CPU
time is part of the cost of a message, and must not disturb the next measurement.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks import tools
from benchmarks.scenarios import Scenario
from benchmarks.tools import Target

REST_SECONDS: Final = 2.25
"""The latest start of asynchronous work after a load: a busy broker defers its index until it has
been idle for a second, which it checks once a second."""

MOST_REST_SECONDS: Final = 8.0
LOOK_SECONDS: Final = 0.25
RESTING_SHARE: Final = 0.03
"""The share of a core below which a broker is considered idle."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, with a resolution of 1 ns (see clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def rest(pid: int, at_least: float) -> None:
    """Wait until a broker is idle.

    Args:
        pid: its process.
        at_least: the least time to wait, in seconds.
    """
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
    """Run a scenario once, see ``tools.load``, and wait until the broker is idle.

    ``cpu_us_per`` includes the CPU time after the load, in the proportion of the counted seconds;
    ``cpu_us_at_once`` is without it.
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
