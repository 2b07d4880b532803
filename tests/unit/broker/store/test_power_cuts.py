"""Power cuts at any disk operation: everything acknowledged as durable survives.

Each seed determines a run: what the broker does, at which operation the power fails, and which
sectors, lengths and names are on the disk by then. A failing seed is printed; replay it with
``POCKETMQ_CRASH_SEED=<seed> pytest tests/unit/broker/store/test_power_cuts.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import replace
from random import Random

import pytest

from broker.store.limits import StoreLimits
from tests.support.sizes import size
from tests.unit.broker.store.simulated_disk import PowerCut, SimulatedDisk
from tests.unit.broker.store.stores import LIMITS, LOG_FILE
from tests.unit.broker.store.workload import Day

SEEDS = size(test=30, ci=300, soak=10_000)
EVERY = size(test=5, ci=1, soak=1)
"""Of how many operations one is where the power fails, if each has its turn."""
CHUNKS = 10
ACTIONS = 60
CUTS = 3
FAULTS = ("write", "allocate", "sync", "create", "name", "look")


def live(seed: int, *, faults: bool = False, limits: StoreLimits = LIMITS) -> Day:
    """Run a day with several power cuts; raise if a guarantee was broken."""
    random = Random(seed)
    day = Day(SimulatedDisk(random), sync=random.random() < 0.6, limits=limits)
    for _ in range(CUTS):
        disk = day.disk
        disk.kept = random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        disk.written_back = random.choice([0.0, 0.02, 0.2])
        disk.cut_at = disk.steps + random.randrange(1, 250)
        with contextlib.suppress(PowerCut):
            work(day, random, faults=faults)
        day.disk = disk.crashed or disk.cut()
    day.open()
    day.check()
    return day


def work(day: Day, random: Random, *, faults: bool) -> None:
    """Open and work, with an occasional clean stop and restart."""
    for part in (ACTIONS, ACTIONS // 4):
        day.open()
        day.check()
        if faults:
            day.disk.faults = {kind: random.choice([0, 0, 0.02, 0.1]) for kind in FAULTS}
        for _ in range(part):
            day.act()
        if random.random() < 0.5:
            return
        day.close()
        day.disk.faults = {}


def seeds_of(chunk: int) -> range:
    if seed := os.environ.get("POCKETMQ_CRASH_SEED"):
        return range(int(seed), int(seed) + 1)
    return range(chunk, SEEDS, CHUNKS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("faults", [False, True], ids=["power", "power and errors"])
def test_acknowledged_messages_survive_a_power_cut(chunk: int, faults: bool) -> None:
    for seed in seeds_of(chunk):
        # Every second start scans records together; otherwise that takes more than a day writes.
        limits = LIMITS if seed // CHUNKS % 2 else StoreLimits(alone_bytes=0)
        if seed // CHUNKS % 3 == 0:
            limits = replace(limits, queues_synced_together=2)
        try:
            live(seed, faults=faults, limits=limits)
        except BaseException:
            print(f"seed {seed}: POCKETMQ_CRASH_SEED={seed} replays it")  # noqa: T201
            raise


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sync", [False, True], ids=["ASYNC", "SYNC"])
def test_power_may_fail_at_every_single_operation(sync: bool) -> None:
    """One run, cut at each of its operations: start, work over several files, stop."""
    for cut_at in itertools.count(1, EVERY):
        disk = SimulatedDisk(Random(4))
        disk.cut_at = cut_at
        day = Day(disk, sync=sync)
        with contextlib.suppress(PowerCut):
            day.open()
            for _ in range(2 * ACTIONS):
                day.act()
            day.close()
        day.disk = disk.crashed or disk.cut()
        day.open()
        day.check()
        if disk.steps < cut_at:
            break
    assert cut_at > 200
    assert day.store.log.end > 3 * LOG_FILE
