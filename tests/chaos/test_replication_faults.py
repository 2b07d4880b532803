"""A master and its slave under faults: what is acknowledged stays, and nothing else is read.

Producers and a reader record every call, and the history is judged at the end. See
``history_check`` for what must not be, and ``alterations`` for the faults that are planted here to
show that the judge finds them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.storetools.verify.check import CheckOptions, check
from tests.chaos.alterations import cut_power, set_clock
from tests.chaos.history_check import NS, Verdict
from tests.chaos.network import ROUTER, Network, Proxy, why_not
from tests.chaos.pair import Pair, running
from tests.chaos.recorder import LEVEL_MS
from tests.support.ports import free_port
from tests.support.sizes import size

MASTER_KILLS = size(test=1, ci=3, soak=10)
SLAVE_KILLS = size(test=2, ci=4, soak=10)
PARTITIONS = size(test=1, ci=3, soak=10)
POWER_CUTS = size(test=1, ci=2, soak=10)
"""Faults of a run."""

BETWEEN = size(ci=0.0, soak=12.0)
"""Seconds of undisturbed load after a kill of a slave; a soak takes an hour for 200 of them."""

SOME = 300
"""Acknowledgements between two faults, at most."""

QUICK = {"slaveTimeout": 500}
"""With which a master soon stops waiting for a slave that is gone."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(size(ci=300, soak=7200))]

FIGURES = {
    "send": "sends",
    "stored": "acknowledged",
    "unknown": "of unknown outcome",
    "failed": "refused",
    "read": "reads",
    "copies": "copies in the last read",
    "vanished": "read, not acknowledged, gone",
}
"""The names of a verdict's counts on the page of a soak."""

Record = Callable[[str, object], None]


def report(pair: Pair, verdict: Verdict, record_property: Record) -> None:
    """Keep the figures of a run, and fail if something happened that must not."""
    for done, number in pair.done.items():
        record_property(done, number)
    for kind, name in FIGURES.items():
        record_property(name, verdict.counts[kind])
    record_property("problems", sum(verdict.counts[kind] for kind in verdict.found))
    assert not verdict.problems, "\n".join(verdict.problems)


FLUSHES = size(
    test=["SYNC_FLUSH"], ci=["ASYNC_FLUSH", "SYNC_FLUSH"], soak=["ASYNC_FLUSH", "SYNC_FLUSH"]
)


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("run", range(size(ci=1, soak=25)))
async def test_slaves_that_succeed_their_masters_have_everything_acknowledged(
    tmp_path: Path, run: int, flush: str, record_property: Record
) -> None:
    moments = random.Random(f"{run} {flush}")
    pair = Pair(tmp_path / "pair", settings={"flushDiskType": flush})
    async with running(pair):
        for _ in range(MASTER_KILLS):
            await pair.until_stored(moments.randrange(50, SOME))
            await asyncio.sleep(moments.random() * 0.02)
            await pair.kill_master()
            await pair.promote()
        await pair.until_stored(1)
        verdict = await pair.judge()
    report(pair, verdict, record_property)


@pytest.mark.parametrize("run", range(size(ci=1, soak=20)))
async def test_what_befalls_a_slave_costs_nothing(
    tmp_path: Path, run: int, record_property: Record
) -> None:
    moments = random.Random(f"slave {run}")
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    proxy = Proxy(("", 0))
    pair = Pair(
        tmp_path / "pair",
        "ASYNC_MASTER",
        QUICK,
        proxy=proxy,
        alter={"a": [f"clock={clock}"], "b": [f"clock={clock}"]},
    )
    await proxy.open(free_port())
    async with running(pair):
        for number in range(SLAVE_KILLS):
            await pair.until_stored(moments.randrange(50, SOME))
            await asyncio.sleep(BETWEEN)
            await pair.kill_slave()
            await pair.until_stored(50)
            await asyncio.to_thread(pair.slave.start)
            befall = (step_the_clock, stop_the_slave, kill_the_recorder, cut_and_delay)
            await befall[number % len(befall)](pair, moments)
        pair.end_recorders()
        proxy.delay = 0.0
        await pair.in_sync()
        verdict = await pair.judge()
        await asyncio.to_thread(pair.master.stop)
        await asyncio.to_thread(pair.slave.stop)
        await proxy.close()
        assert pair.logs_are_equal()
        options = CheckOptions(levels_ms=(LEVEL_MS,))
        assert check(pair.slave.store, options).findings.is_sound
    report(pair, verdict, record_property)


async def step_the_clock(pair: Pair, moments: random.Random) -> None:
    """Set the brokers' clock a few seconds ahead, then back by less."""
    clock = pair.root.parent / "clock"
    await pair.set_clock(clock, moments.randrange(1, 5) * NS)
    await pair.until_stored(50)
    await pair.set_clock(clock, 0)


async def stop_the_slave(pair: Pair, moments: random.Random) -> None:
    """Stop the slave's process for longer than the master waits."""
    await pair.pause(pair.slave, 1.0 + moments.random())


async def kill_the_recorder(pair: Pair, moments: random.Random) -> None:
    """Kill the recorder, and start another one."""
    pair.end_recorders()
    pair.record()
    pair.done["recorder kills"] += 1


async def cut_and_delay(pair: Pair, moments: random.Random) -> None:
    """Let the stream be slow, be silent in one direction, and end."""
    proxy = pair.proxy
    assert proxy is not None
    proxy.delay = 0.05
    direction = moments.choice(["up", "down"])
    proxy.silent.add(direction)
    await pair.until_stored(50)
    proxy.silent.clear()
    await pair.until_stored(50)
    await proxy.drop()
    pair.done["one-way cuts"] += 1


# --- partitions


def on_a_network(test: Callable[[Network], Coroutine[Any, Any, None]], hosts: str = "ab") -> None:
    """Run a test on the router of a network with these hosts."""
    if reason := why_not():
        pytest.skip(reason)
    network = Network(hosts)
    try:
        network.open()
        network.run(ROUTER, asyncio.run, test(network))
    finally:
        network.close()


CUTS = {
    "slave from master": [("a", "b"), ("b", "a")],
    "master to slave": [("a", "b")],
    "slave to master": [("b", "a")],
    "clients from master": [(ROUTER, "a"), ("a", ROUTER)],
    "master alone": [("a", "b"), ("b", "a"), (ROUTER, "a"), ("a", ROUTER)],
}


@pytest.mark.parametrize("run", range(size(ci=1, soak=10)))
def test_partitions_cost_nothing_acknowledged(
    tmp_path: Path, run: int, record_property: Record
) -> None:
    """Cut, go on, heal, in turns; at last the master is cut off, and its slave succeeds it."""

    async def test(network: Network) -> None:
        moments = random.Random(f"partitions {run}")
        pair = Pair(tmp_path / "pair", settings=QUICK, network=network)
        async with running(pair):
            for _ in range(PARTITIONS):
                await pair.until_stored(moments.randrange(50, SOME))
                name = moments.choice([*CUTS])
                await cut(pair, network, name, 1.0 + 2 * moments.random())
                network.heal()
                await pair.until_stored(1)
            await cut(pair, network, "master alone", 1.0)
            await pair.kill_master()
            network.heal()
            await pair.promote()
            await pair.until_stored(1)
            verdict = await pair.judge()
        report(pair, verdict, record_property)

    on_a_network(test)


async def cut(pair: Pair, network: Network, name: str, seconds: float) -> None:
    """Cut the network for some time."""
    for source, target in CUTS[name]:
        network.cut(source, target)
    await asyncio.sleep(seconds)
    pair.done[f"cut: {name}"] += 1


# --- power cuts


def with_disks(root: Path, role: str, flush: str) -> Pair:
    """A pair of which each broker has a disk that forgets what was not synced."""
    disks = {name: [f"copies={root / 'disks'}"] for name in ("a", "b")}
    settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": 256 * 1024, **SMALL_FILES}
    return Pair(root / "pair", role, settings, alter=disks)


SMALL_FILES = {
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 64 * 1024,
}


@pytest.mark.parametrize("run", range(size(ci=1, soak=5)))
async def test_synced_pairs_lose_nothing_acknowledged_when_the_power_of_both_fails(
    tmp_path: Path, run: int, record_property: Record
) -> None:
    moments = random.Random(f"power {run}")
    pair = with_disks(tmp_path, "SYNC_MASTER", "SYNC_FLUSH")
    async with running(pair):
        for number in range(POWER_CUTS):
            await pair.until_stored(moments.randrange(50, SOME))
            await power_fails(pair, tmp_path / "disks")
            if number % 2:
                await asyncio.gather(pair.start_master(), pair.start_slave())
            else:
                await pair.promote()
        await pair.until_stored(1)
        verdict = await pair.judge()
    report(pair, verdict, record_property)


async def power_fails(pair: Pair, disks: Path) -> None:
    """Kill both brokers, and leave on their disks what was synced."""
    await pair.kill_master()
    await pair.kill_slave()
    pair.crashed()  # once more: a group may have committed at the slave in between
    for node in (pair.master, pair.slave):
        pair.done["log bytes lost"] += await asyncio.to_thread(cut_power, node.store, disks)
    pair.done["power cuts"] += 1
