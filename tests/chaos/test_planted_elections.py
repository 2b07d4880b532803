"""Faults that are planted into the brokers of a group are found when masters are elected.

They are those that the simulation finds (``tests/simulation/broken.py``), in processes. With none,
the same steps cost nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.history import events
from tests.chaos.history_check import Judge
from tests.chaos.network import Network
from tests.chaos.pair import COMMITS_LAG, Node, record_store, running, until
from tests.chaos.recorder import read_all
from tests.chaos.test_replication_faults import on_a_network
from tests.chaos.trio import SOON, Trio
from tests.interop.pairs import log_bytes
from tests.support.sizes import SIZE

ENOUGH = 50
"""Acknowledgements between two steps."""

SECONDS = 6.0
"""For which hosts are cut off: less than a slave stays in sync without an acknowledgement, or a
master takes messages without its controller."""

MOST_RUNS = 5
"""In which a fault is found: the steps for the union rule depend on when a master asks."""

Record = Callable[[str, object], None]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]


def others(trio: Trio) -> list[Node]:
    """Return the brokers that are not the master."""
    return [node for node in trio.nodes if node is not trio.master]


async def stored_meanwhile(trio: Trio) -> None:
    """Let messages be acknowledged, as far as they are."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            await trio.until_stored(ENOUGH)


def cut_from_master(trio: Trio, network: Network, *slaves: Node) -> None:
    """Cut slaves off from their master, but not from the controllers.

    A slave that is only stopped finds what its master sent meanwhile when it goes on.
    """
    master = trio.master.store.name
    for node in slaves:
        network.cut(master, node.store.name)
        network.cut(node.store.name, master)


async def only_one_left(trio: Trio, network: Network, last: Node) -> list[Node]:
    """Kill the other slave and then the master, and let the last one go on; return it."""
    for node in (*(node for node in others(trio) if node is not last), trio.master):
        await asyncio.to_thread(node.kill)
    trio.crashed()
    network.heal()
    await until(lambda: trio.group().master_address == last.address, SOON)
    return [last]


async def master_killed(trio: Trio, _: Network) -> list[Node]:
    """Kill the master under load."""
    slaves = others(trio)
    await trio.kill_master()
    await trio.elected(slaves)
    return slaves


async def slave_cut_off(trio: Trio, network: Network) -> list[Node]:
    """Cut a slave off while messages are acknowledged; then only it is left."""
    last, _ = others(trio)
    cut_from_master(trio, network, last)
    await stored_meanwhile(trio)
    return await only_one_left(trio, network, last)


async def slave_joins(trio: Trio, network: Network) -> list[Node]:
    """Let the master not hear that a slave has joined; then only the slave is left."""
    last, other = others(trio)
    last.pause()
    await trio.elected([trio.master, other])
    # At once: the master has just heard a controller, without which it takes messages for 10 s.
    for controller in trio.controllers.hosts:
        network.cut(controller, trio.master.store.name)
    last.resume()
    try:
        await until(lambda: last.address in trio.members(), SECONDS)
    except TimeoutError:
        network.heal()
        return trio.nodes  # the master was asking the controller something else
    cut_from_master(trio, network, last)
    await stored_meanwhile(trio)
    return await only_one_left(trio, network, last)


async def master_returns(trio: Trio, network: Network) -> list[Node]:
    """Let the master have messages alone, and come back when the others have more."""
    old, slaves = trio.master, others(trio)
    cut_from_master(trio, network, *slaves)
    end = await asyncio.to_thread(old.log_end)
    await until(lambda: old.log_end() > end)
    await trio.kill_master()
    network.heal()
    await trio.elected(slaves)
    await trio.until_stored(10 * ENOUGH)
    await asyncio.to_thread(old.start)
    with suppress(TimeoutError):
        await trio.elected(trio.nodes)
    return trio.nodes


FAULTS: dict[str, tuple[dict[str, int], Callable[[Trio, Network], Awaitable[list[Node]]]]] = {
    "eager-replica": ({}, master_killed),
    "counting-foreign": ({}, slave_cut_off),
    "without-union": ({"haMaxTimeSlaveNotCatchup": 2000}, slave_joins),
    "keeping": ({}, master_returns),
}
"""The settings and the steps for each alteration."""


async def found(trio: Trio, network: Network, fault: str) -> set[str]:
    """Return what is found after the steps for a fault."""
    _, steps = FAULTS[fault]
    async with running(trio):
        await trio.until_stored(4 * ENOUGH)
        nodes = await steps(trio, network)
        await trio.until_stored(ENOUGH)
        trio.end_recorders()
        await read_all(trio.nameserver, trio.history, patience=15.0)
        with suppress(TimeoutError):
            await until(lambda: len({node.log_end() for node in nodes}) == 1)
        end = min(node.log_end() for node in nodes)
        for node in nodes:
            await asyncio.to_thread(node.kill)
            record_store(node.store, trio.history, f"store-{node.store.name}")
    kinds = Judge(commits_lag=COMMITS_LAG).judge(events(trio.history)).found
    if end > 0 and len({log_bytes(node.store, end) for node in nodes}) > 1:
        kinds.add("logs differ")
    return kinds


if SIZE == "soak":

    @pytest.mark.parametrize("is_planted", [True, False], ids=["planted", "sound"])
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_in_a_group_is_found(
        tmp_path: Path, fault: str, is_planted: bool, record_property: Record
    ) -> None:
        async def test(network: Network) -> None:
            settings = {"minInSyncReplicas": 1, **FAULTS[fault][0]}
            alter = [fault] if is_planted else []
            begun = time.monotonic()
            for run in range(1, 1 + (MOST_RUNS if is_planted else 1)):
                trio = Trio(tmp_path / f"trio{run}", settings, network=network, alter=alter)
                kinds = await found(trio, network, fault)
                network.heal()
                if kinds:
                    break
            record_property("runs", run)
            record_property("seconds", round(time.monotonic() - begun))
            record_property("found", ", ".join(sorted(kinds)))
            assert bool(kinds) is is_planted

        on_a_network(test, "abcxyz")
