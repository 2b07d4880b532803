"""Run a scenario on one kind of cluster, and return its text with the actual outcomes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.scenarios.clusters import InLoop, Place
from tests.scenarios.loops import RealLoop, SimulatedLoop
from tests.scenarios.script import Script
from tests.scenarios.stage import Stage


def run_virtually(script: Script, root: Path) -> str:
    """Run a scenario without sockets, with virtual time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        random.seed(script.name)
        with loop.as_every_clock():
            return runner.run(_virtually(script, root))


async def _virtually(script: Script, root: Path) -> str:
    async with InLoop(root) as cluster:
        return await _told(script, cluster)


def run_in_real_time(script: Script, cluster: Place) -> str:
    """Run a scenario with sockets, in real time."""
    with asyncio.Runner(loop_factory=RealLoop) as runner:
        return runner.run(_told(script, cluster))


async def _told(script: Script, cluster: Place) -> str:
    async with Stage(script, cluster) as stage:
        outputs = await stage.run()
    return script.with_outcomes(outputs, cluster.kind)
