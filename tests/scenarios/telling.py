"""Run a scenario on one kind of cluster, and return its text with the actual outcomes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.scenarios.clusters import InLoop, Place
from tests.scenarios.loops import RealLoop, StoryLoop
from tests.scenarios.script import Script
from tests.scenarios.stage import Stage


def tell_virtually(script: Script, root: Path) -> str:
    """Without sockets, on a clock that jumps."""
    with asyncio.Runner(loop_factory=StoryLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, StoryLoop)
        random.seed(script.name)
        with loop.telling_time():
            return runner.run(_virtually(script, root))


async def _virtually(script: Script, root: Path) -> str:
    async with InLoop(root) as cluster:
        return await _told(script, cluster)


def tell_really(script: Script, cluster: Place) -> str:
    """With sockets, in real time."""
    with asyncio.Runner(loop_factory=RealLoop) as runner:
        return runner.run(_told(script, cluster))


async def _told(script: Script, cluster: Place) -> str:
    async with Stage(script, cluster) as stage:
        outputs = await stage.tell()
    return script.told(outputs, cluster.kind)
